// Gradients against finite differences, layers, optimisers, einsum, pooling.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "check.hpp"
#include "gradient_check.hpp"
#include "plain.hpp"

namespace koine::test {
TEST(gradients, finite_differences) {
  const Tensor x = doubles({2, 3}, 1), p = doubles({2, 3}, 2, 0.5, 2);
  check_gradient([](const Tensor& t) { return t * t + t; }, x);
  check_gradient([](const Tensor& t) { return Tensor(1.0) / t; }, p);
  check_gradient([](const Tensor& t) { return t.exp() + t.sin() + t.tanh(); }, x);
  check_gradient([](const Tensor& t) { return t.log() + t.sqrt() + t.rsqrt(); }, p);
  check_gradient([&](const Tensor& t) { return p.pow(t); }, x);
  check_gradient([&](const Tensor& t) { return t.pow(x); }, p);
  check_gradient([&](const Tensor& t) { return t.maximum(p); }, x);
  check_gradient([](const Tensor& t) { return Tensor::where(t < Tensor(0.0), t * t, t); }, x);
  check_gradient([](const Tensor& t) { return t.softmax() + t.log_softmax() + t.layernorm(); }, x);
  check_gradient(
      [](const Tensor& t) { return t.max({1}) + t.prod({1}) + t.logsumexp({1}) + t.var({1}); }, x);
  check_gradient(
      [](const Tensor& t) {
        return t.permute({1, 0})
            .flip({0})
            .pad({{1, 0}, {0, 2}})
            .reshape({4, 4})
            .shrink({{0, 3}, {1, 4}});
      },
      x);
  check_gradient(
      [](const Tensor& t) { return t.cumsum(1) + Tensor::cat({t, t}, 0).shrink({{1, 3}, {0, 3}}); },
      x);
  check_gradient([](const Tensor& t) { return t.index_select(1, Tensor::from<int>({2, 0, 2})); },
                 x);
  check_gradient(
      [](const Tensor& t) { return t.gather(1, Tensor::from<int>({2, 0, 1, 1}).reshape({2, 2})); },
      x);
  check_gradient([](const Tensor& t) { return t.matmul(t.T()); }, x);
  const Tensor image = doubles({1, 2, 5, 5}, 3), kernel = doubles({3, 2, 3, 3}, 4);
  check_gradient([&](const Tensor& t) { return t.conv2d(kernel, {}, {2, 1, 1}); }, image);
  check_gradient([&](const Tensor& t) { return image.conv2d(t, {}, {1, 1, 2}); }, kernel);
  check_gradient(
      [&](const Tensor& t) { return t.pad({{0, 0}, {0, 0}, {0, 1}, {0, 1}}).max_pool2d(2); },
      image);
  check_gradient([&](const Tensor& t) { return t.avg_pool2d(3, 1); }, image);
}

TEST(gradients, spec_amend_40_corners) {
  const double nan = std::nan("");
  auto slopes = [&](const Tensor& points, auto f) { return f(points).sum().gradient({points})[0]; };
  const Tensor corners = Tensor::from<float>({-2, -0.0f, 0, 3});
  EXPECT_EQ(slopes(corners, [](const Tensor& x) { return x.relu(); }).tolist<float>(),
            (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(slopes(corners, [](const Tensor& x) { return x.abs(); }).tolist<float>(),
            (std::vector<float>{-1, 0, 0, 1}));
  EXPECT_EQ(slopes(corners, [](const Tensor& x) { return x.sign(); }).tolist<float>(),
            (std::vector<float>{0, 0, 0, 0}));
  // Far out and at the corners: the derivatives as functions of their own.
  struct Curve {
    const char* name;
    std::function<Tensor(const Tensor&)> f;
    std::function<double(double)> slope;
  };
  auto logistic = [](double x) {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
  };
  const std::vector<Curve> curves = {
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); },
       [&](double x) { return logistic(x) * logistic(-x); }},
      {"tanh", [](const Tensor& x) { return x.tanh(); },
       [&](double x) { return 4 * logistic(2 * x) * logistic(-2 * x); }},
      {"silu", [](const Tensor& x) { return x.silu(); },
       [&](double x) { return logistic(x) + (x == 0 ? 0 : x * logistic(x) * logistic(-x)); }},
      {"softplus", [](const Tensor& x) { return x.softplus(); }, logistic},
      {"elu", [](const Tensor& x) { return x.elu(); },
       [](double x) { return x > 0 ? 1 : std::exp(x); }},
      {"logits",
       [](const Tensor& x) {
         return x.binary_crossentropy_logits(Tensor::full(x.shape(), 0.25)) * Tensor(x.numel());
       },
       [&](double x) { return logistic(x) - 0.25; }},
  };
  for (const Curve& curve : curves)
    for (const DType d : {DType::Float32, DType::Float64}) {
      const std::vector<double> at{-400, -100, -20, -1, -0.0, 0, 1e-3, 1, 20, 100, 400};
      const Tensor x = Tensor::from(at, {static_cast<int64_t>(at.size())}).cast(d).realize();
      const auto got = slopes(x, curve.f).template tolist<double>();
      for (size_t i = 0; i < at.size(); ++i)
        EXPECT_NEAR(got[i], curve.slope(at[i]), 1e-6) << curve.name << " at " << at[i];
    }
  EXPECT_EQ(Tensor::from<double>({-inf, inf}).relu().tolist<double>(),
            (std::vector<double>{0, inf}));
  EXPECT_TRUE(std::isnan(Tensor(nan).relu().item())) << "as NumPy's maximum";
  const Tensor a = Tensor::from<float>({2, 2});
  EXPECT_EQ(a.max().gradient({a})[0].tolist<float>(), (std::vector<float>{0.5, 0.5}))
      << "ties split evenly";
  const Tensor z = Tensor::from<float>({0, 2, 3});
  EXPECT_EQ(z.prod().gradient({z})[0].tolist<float>(), (std::vector<float>{6, 0, 0}));
}

// What NumPy gives, at the corners.
TEST(tensors, division_powers_and_signs_at_the_corners) {
  for (const DType d : {DType::Float32, DType::Float64}) {
    const Tensor a = Tensor::from<double>({7, -7, 7, -7, 1, 1, -1, 0, -0.0, inf, 3, -1e-30})
                         .cast(d),
                 b = Tensor::from<double>({2, 2, -2, -2, inf, -inf, inf, -3, 5, 2, 0, 1}).cast(d);
    const double below_1 = d == DType::Float64 ? 1 - 0x1p-53 : 1 - 0x1p-24;
    expect_exactly(a.mod(b), {1, 1, -1, -1, 1, -inf, inf, -0.0, 0, NAN, NAN, below_1});
    expect_exactly(a.idiv(b), {3, -4, -4, 3, 0, -1, -1, -0.0, -0.0, NAN, inf, -1});
    expect_exactly(Tensor::from<double>({-0.5, -0.0, 0.5, 1.5, 2.5, -2.5}).cast(d).round(),
                   {-0.0, -0.0, 0, 2, 2, -2});
    expect_exactly(Tensor::from<double>({-0.0, 0, -3, NAN}).cast(d).sign(), {0, 0, -1, NAN});
  }
  EXPECT_EQ(Tensor::from<float>({1}).mod(Tensor::from<float>({0.001f})).item<float>(),
            std::fmod(1.0f, 0.001f));
  EXPECT_EQ(Tensor::from<uint8_t>({2, 3, 7}).pow(Tensor::from<uint8_t>({255, 5, 0})).tolist<int>(),
            (std::vector<int>{0, 243, 1}));
  EXPECT_EQ(Tensor::from<int64_t>({3, -3}).pow(Tensor(39)).tolist<int64_t>(),
            (std::vector<int64_t>{4052555153018976267, -4052555153018976267}));
  EXPECT_EQ(Tensor::from<int32_t>({2, 1, -1, -1})
                .pow(Tensor::from<int32_t>({-1, -5, -3, -4}))
                .tolist<int>(),
            (std::vector<int>{0, 1, -1, 1}));
  EXPECT_EQ(Tensor::from<uint64_t>({3})
                .pow(Tensor(constant_bits(DType::UInt64, ~uint64_t{0})))
                .tolist<uint64_t>(),
            (std::vector<uint64_t>{12297829382473034411u}))
      << "a constant exponent beyond int64: the inverse of 3 modulo 2^64";
  EXPECT_EQ(Tensor::from<uint8_t>({20, 20}).prod().item<int>(), 400);
}

TEST(tensors, literals_keep_all_their_digits) {
  const Tensor x = Tensor::from<double>({3, -0.7});
  auto expect = [&](const Tensor& got, auto f) {
    EXPECT_EQ(got.dtype(), DType::Float64);
    EXPECT_EQ(got.tolist<double>(), (std::vector<double>{f(3.0), f(-0.7)}));
  };
  expect(x + Tensor(0.1), [](double v) { return v + 0.1; });
  expect(Tensor(0.1) - x, [](double v) { return 0.1 - v; });
  expect(x * 0.1, [](double v) { return v * 0.1; });
  expect(x / 0.3, [](double v) { return v / 0.3; });
  expect(x.maximum(0.1), [](double v) { return std::max(v, 0.1); });
  expect(Tensor::where(x > 0.1, x, 0.1), [](double v) { return v > 0.1 ? v : 0.1; });
  Tensor written = Tensor::from<double>({3, -0.7});
  written.setitem({1}, 0.1);
  EXPECT_EQ(written.tolist<double>(), (std::vector<double>{3, 0.1}));
  written.assign(0.3);
  EXPECT_EQ(written.tolist<double>(), (std::vector<double>{0.3, 0.3}));
  // A literal is one for as long as nothing else was assigned to it.
  Tensor t(0.1);
  t += x[0];
  const double sum = 3.1f;  // in place, t stays float32
  EXPECT_EQ((t + x).tolist<double>(), (std::vector<double>{sum + 3, sum - 0.7}));
  Tensor other(0.1);
  other.assign(Tensor(0.5));
  EXPECT_EQ((other * x).tolist<double>(), (std::vector<double>{1.5, -0.35}));
  // Narrow floats round once.
  EXPECT_EQ((Tensor::ones({1}, DType::Float16) * 0.1).cast(DType::Float64).item(),
            bits_to_double(DType::Float16, double_to_bits(DType::Float16, 0.1)));
}

// Values against the C library's, by relative error: small results keep their digits.
TEST(tensors, activations_keep_their_digits) {
  struct Curve {
    const char* name;
    std::function<Tensor(const Tensor&)> f;
    std::function<double(double)> exact;
  };
  const std::vector<Curve> curves = {
      {"tanh", [](const Tensor& x) { return x.tanh(); }, [](double x) { return std::tanh(x); }},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); },
       [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"softplus", [](const Tensor& x) { return x.softplus(); },
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }},
      {"elu", [](const Tensor& x) { return x.elu(); },
       [](double x) { return x > 0 ? x : std::expm1(x); }},
  };
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> exponent(-20, 4.2);
  std::vector<double> at{0, -0.0, 0.625, -0.625};
  for (int i = 0; i < 4000; ++i) at.push_back((i % 2 ? 1 : -1) * std::exp2(exponent(random)));
  for (double& x : at) x = static_cast<double>(static_cast<float>(x));
  const Shape shape{static_cast<int64_t>(at.size())};
  for (const Curve& curve : curves)
    for (const auto& [d, unit] :
         {std::pair{DType::Float32, 0x1p-23}, std::pair{DType::Float64, 0x1p-52}}) {
      const auto got = curve.f(Tensor::from(at, shape).cast(d)).tolist<double>();
      double worst = 0;
      for (size_t i = 0; i < at.size(); ++i) {
        const double exact = curve.exact(at[i]);
        ASSERT_EQ(std::signbit(got[i]), std::signbit(exact)) << curve.name << " of " << at[i];
        if (exact != 0)
          worst = std::max(worst, std::fabs(got[i] - exact) / std::fabs(exact) / unit);
      }
      EXPECT_LT(worst, 16) << curve.name << " " << dtype_name(d) << ", seed " << test_seed();
    }
  const Tensor ends = Tensor::from<double>({-inf, inf});
  EXPECT_EQ(ends.tanh().tolist<double>(), (std::vector<double>{-1, 1}));
  EXPECT_EQ(ends.sigmoid().tolist<double>(), (std::vector<double>{0, 1}));
  EXPECT_EQ(ends.softplus().tolist<double>(), (std::vector<double>{0, inf}));
  EXPECT_EQ(ends.elu().tolist<double>(), (std::vector<double>{-1, inf}));
  EXPECT_TRUE(std::isnan(Tensor(std::nan("")).tanh().item()));
  EXPECT_NEAR(Tensor::from<float>({0.3f}).cast(DType::Float16).tanh().item(), std::tanh(0.3), 5e-4);
  EXPECT_EQ(Tensor::from<double>({inf, 1}).logsumexp().item(), inf);
  EXPECT_EQ(Tensor::from<double>({-inf, -inf}).logsumexp().item(), -inf);
}

TEST(gradients, second_order) {
  const Tensor x = Tensor::from<float>({3});
  const Tensor g = (x * x * x).sum().gradient({x})[0];
  EXPECT_NEAR(g.sum().gradient({x})[0].item(), 18, 1e-5);
}

TEST(tensors, einsum_and_matmul) {
  const Tensor a = doubles({3, 4}, 5), b = doubles({4, 5}, 6), c = doubles({2, 3, 4}, 7);
  EXPECT_EQ(Tensor::einsum("ij,jk->ik", {a, b}).tolist<double>(), a.matmul(b).tolist<double>());
  EXPECT_EQ(Tensor::einsum("ij->ji", {a}).tolist<double>(), a.T().tolist<double>());
  EXPECT_NEAR(Tensor::einsum("ii", {a.matmul(a.T())}).item(), a.square().sum().item(), 1e-12);
  EXPECT_EQ(c.matmul(b).shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(a.matmul(doubles({4}, 8)).shape(), (Shape{3}));
  EXPECT_EQ(doubles({4}, 8).matmul(b).shape(), (Shape{5}));
}

TEST(tensors, positions_and_masks) {
  const Tensor x = Tensor::from<float>({3, 9, 1, 9}).reshape({2, 2});
  EXPECT_EQ(x.argmax(1).tolist<int>(), (std::vector<int>{1, 1}));
  EXPECT_EQ(x.argmin(0).tolist<int>(), (std::vector<int>{1, 0})) << "the first of equals";
  EXPECT_EQ(Tensor::from<float>({1, NAN, 5}).argmax().item<int>(), 1);
  EXPECT_EQ(Tensor::ones({3, 3}).tril().sum().item(), 6);
  EXPECT_EQ(Tensor::from<float>({0.5f, 1.5f, 2.5f, -0.5f}).round().tolist<float>(),
            (std::vector<float>{0, 2, 2, -0.0f}));
  EXPECT_EQ(Tensor::arange(5).cumsum().tolist<int>(), (std::vector<int>{0, 1, 3, 6, 10}));
  EXPECT_EQ(Tensor::arange(4).roll(1, 0).tolist<int>(), (std::vector<int>{3, 0, 1, 2}));
  const Tensor two = Tensor::arange(4).reshape({2, 2});
  EXPECT_EQ(two.roll(1).tolist<int>(), (std::vector<int>{3, 0, 1, 2}));
  EXPECT_EQ(two.roll({1, 1}, {0, 1}).tolist<int>(), (std::vector<int>{3, 2, 1, 0}));
  EXPECT_EQ(Tensor::arange(2).repeat({2, 2}).tolist<int>(),
            (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(Tensor::from<int>({1, 0}).one_hot(3).tolist<int>(),
            (std::vector<int>{0, 1, 0, 1, 0, 0}));
}

TEST(nn, optimisers_reach_the_minimum) {
  auto minimise = [](auto make) {
    Tensor w = Tensor::from<float>({5, -3}).requires_grad();
    auto optimizer = make(std::vector<Tensor>{w});
    for (int i = 0; i < 300; ++i) {
      optimizer.zero_grad();
      const Tensor loss = (w - Tensor::from<float>({1, 2})).square().sum();
      loss.backward();
      optimizer.clip_grad_norm(10);
      optimizer.step();
    }
    return w.tolist<float>();
  };
  for (const auto& w : {minimise([](auto p) { return nn::SGD(p, 0.05, 0.5, 0, true); }),
                        minimise([](auto p) { return nn::Adam(p, 0.1); }),
                        minimise([](auto p) { return nn::AdamW(p, 0.1, 0.9, 0.999, 1e-8, 0); })}) {
    EXPECT_NEAR(w[0], 1, 0.02);
    EXPECT_NEAR(w[1], 2, 0.02);
  }
}

TEST(nn, training_goes_on_from_the_state_of_an_optimizer) {
  const auto goes_on = [](auto make) {
    const auto train = [](Tensor& w, nn::Optimizer& optimizer, int steps) {
      for (int i = 0; i < steps; ++i) {
        optimizer.zero_grad();
        ((w - Tensor::from<float>({1, 2})).square() * (w + 3)).sum().backward();
        optimizer.step();
      }
      return w.tolist<float>();
    };
    Tensor w = Tensor::from<float>({5, -3}).requires_grad();
    auto optimizer = make(std::vector<Tensor>{w});
    (void)train(w, optimizer, 3);
    nn::StateDict saved;
    for (const auto& [name, t] : nn::get_state(optimizer)) saved.emplace(name, t.clone().realize());
    Tensor other = w.detach().clone().requires_grad();
    const auto expected = train(w, optimizer, 3);
    auto again = make(std::vector<Tensor>{other});
    nn::load_state(again, saved);
    EXPECT_EQ(train(other, again, 3), expected);
    EXPECT_EQ(again.tensors().size(), saved.size() + 2) << "parameters and the learning rate";
    return saved.size();
  };
  EXPECT_EQ(goes_on([](auto p) { return nn::SGD(p, 0.01); }), 0u);
  EXPECT_EQ(goes_on([](auto p) { return nn::SGD(p, 0.01, 0.9); }), 1u);
  EXPECT_EQ(goes_on([](auto p) { return nn::AdamW(p, 0.1); }), 4u);
}

TEST(nn, a_loss_that_was_read_can_still_be_differentiated) {
  Tensor w = Tensor::from<float>({2}).requires_grad();
  const Tensor loss = (w * w).sum();
  EXPECT_EQ(loss.item(), 4);
  loss.backward();
  EXPECT_EQ(w.grad().item(), 4);
}

// In a process of its own, since the environment is read once.
TEST(options, each_comes_from_its_variable) {
  const std::vector<std::pair<const char*, const char*>> environment{
      {"KOINE_DEBUG", "3"},       {"KOINE_VERIFY", "2"},          {"KOINE_NOOPT", "1"},
      {"KOINE_FP", "strict"},     {"KOINE_INDEX", "fill"},        {"KOINE_THREADS", "5"},
      {"KOINE_CPU", "generic"},   {"KOINE_DEVICE", "INTERP"},     {"KOINE_DUMP", "select"},
      {"KOINE_POISON", "1"},      {"KOINE_MEMORY_LIMIT", "4096"}, {"KOINE_NAN", "1"},
      {"KOINE_SCATTER", "atomic"}};
  ASSERT_EQ(environment.size(), option_table().size());
  auto all_are_set = [] {
    const Options& o = options();
    const bool numbers = o.debug == 3 && o.verify == 2 && o.noopt && o.threads == 5 && o.poison &&
                         o.memory_limit == 4096 && o.nan && o.atomic_scatter;
    const bool words = o.strict && o.index == IndexMode::Fill && o.cpu == "generic" &&
                       o.device == "INTERP" && o.dump == "select";
    std::_Exit(numbers && words ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::pair<std::string, std::optional<std::string>>> old;
  for (const auto& [name, value] : environment) {
    const char* now = std::getenv(name);
    old.emplace_back(name, now == nullptr ? std::nullopt : std::optional<std::string>(now));
    setenv(name, value, 1);
  }
  EXPECT_EXIT(all_are_set(), testing::ExitedWithCode(0), "");
  for (const auto& [name, value] : old)
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
}

TEST(docs, every_switch_is_documented) {
  std::ifstream in("docs/switches.md");
  std::stringstream page;
  page << in.rdbuf();
  ASSERT_FALSE(page.str().empty()) << "run from the project's root";
  for (const OptionRow& row : option_table())
    EXPECT_NE(page.str().find(fmt::format("`{}`", row.name)), std::string::npos) << row.name;
}

}  // namespace koine::test
