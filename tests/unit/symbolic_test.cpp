// Tensors whose sizes are Variables: one program serves all values of a declared range.
#include <cmath>
#include <sstream>

#include "check.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t salt) {
  return Tensor(leaf(sizes, DType::Float32, salt)).isfinite().cast(DType::Float32) *
         Tensor::from(
             [&] {
               std::mt19937_64 random(salt + 7);
               int64_t count = 1;
               for (const int64_t s : sizes) count *= s;
               std::vector<float> data;
               for (int64_t i = 0; i < count; ++i)
                 data.push_back(static_cast<float>(random() % 2001) / 1000.0F - 1);
               return data;
             }(),
             sizes);
}

Slice upto(const Size& stop) { return Slice{{}, stop}; }

// The values of both, equal to the bit in strict mode and within `error` of the larger ones else.
void expect_close(const Tensor& symbolic, const Tensor& constant, double error) {
  EXPECT_EQ(symbolic.shape().present(), constant.shape().present());
  const auto a = symbolic.tolist<double>(), b = constant.tolist<double>();
  ASSERT_EQ(a.size(), b.size());
  double largest = 0;
  for (const double v : b) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < a.size(); ++i) {
    if (options().strict) {
      ASSERT_EQ(a[i], b[i]) << "element " << i;
    } else {
      ASSERT_NEAR(a[i], b[i], error * largest) << "element " << i;
    }
  }
}

// What `compute` makes of x[:n] for every n: compiled for the first alone, in both modes, and what
// it makes of x cut at a number.
void expect_one_program(const Tensor& x, int64_t low, int64_t high, int64_t step,
                        const std::function<Tensor(const Tensor&, const Size&)>& compute) {
  const Variable n("n", low, high);
  in_both_modes([&] {
    for (int64_t k = low; k <= high; k += step) {
      SCOPED_TRACE(fmt::format("n = {}", k));
      const Size bound = n.bind(k);
      const Tensor symbolic = compute(x[upto(bound)], bound);
      reset_counters();
      (void)symbolic.bytes();
      if (k != low) {
        EXPECT_EQ(counters().compiled, 0);
      }
      expect_close(symbolic, compute(x[upto(k)], k), 1e-6);
    }
  });
}

}  // namespace

TEST(symbolic, a_size_is_a_number_or_an_expression) {
  const Variable n("n", 1, 128);
  const Size s = n.bind(12), seven = 7;
  EXPECT_TRUE(seven.is_number());
  EXPECT_EQ(seven, 7);
  EXPECT_EQ(seven * 2 + 1, 15);
  EXPECT_FALSE(s.is_number());
  EXPECT_EQ((s * 2 + 1).present(), 25);
  EXPECT_EQ((s * 2 + 1).largest(), 257);
  EXPECT_EQ((s * 2 + 1).smallest(), 3);
  EXPECT_EQ(s + s, 2 * s);
  EXPECT_EQ((s * 6) / 3, s * 2);
  for (const int64_t a : {-7, 7, -6, 0}) {  // numbers round down like expressions
    for (const int64_t b : {3, -3}) {
      const auto quotient =
          static_cast<int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
      EXPECT_EQ(Size(a) / b, quotient);
      EXPECT_EQ(Size(a) % b, a - quotient * b);
      EXPECT_EQ(((s - 12 + a) / b).present(), quotient);
      EXPECT_EQ(((s - 12 + a) % b).present(), a - quotient * b);
    }
  }
  expect_error([&] { (void)(s / 0); }, {"n=12", "divided by 0"});
  expect_error([&] { (void)(seven % 0); }, {"7", "divided by 0"});
  EXPECT_EQ(s - s, 0);
  EXPECT_FALSE(s == 12);
  EXPECT_EQ(smaller(s, 200), s);
  EXPECT_EQ(smaller(s, 5).present(), 5);
  EXPECT_EQ(larger(s, 5).present(), 12);
  EXPECT_TRUE(never_exceeds(s, 128));
  EXPECT_FALSE(never_exceeds(s, 127));
  EXPECT_EQ(s.text(), "n=12");
  EXPECT_EQ((s * 2).text(), "(n=12)*2");
  expect_error([&] { (void)int64_t{s}; }, {"n=12", "symbolic", "present"});
  expect_error([&] { (void)n.bind(129); }, {"'n'", "129", "1 to 128"});
  expect_error([&] { (void)n.bind(0); }, {"'n'", "0", "1 to 128"});
  expect_error([&] { (void)Variable("2n", 1, 2); }, {"Variable('2n', 1, 2)"});
  expect_error([&] { (void)Variable("koine_n", 1, 2); }, {"Variable('koine_n', 1, 2)", "library"});
}

TEST(symbolic, a_shape_holds_its_sizes_and_prints_them) {
  const Variable n("n", 1, 8);
  const Tensor x = Tensor::arange(24).reshape({8, 3}), y = x[upto(n.bind(2))];
  EXPECT_EQ(y.shape(), (Shape{n.bind(2), 3}));
  EXPECT_FALSE(y.shape() == (Shape{2, 3}));
  EXPECT_EQ(y.size(0).present(), 2);
  EXPECT_EQ(y.numel(), n.bind(2) * 3);
  std::ostringstream text;
  text << y.size(0) << " " << y.numel();
  EXPECT_EQ(text.str(), "n=2 (n=2)*3");
  EXPECT_EQ(y.tolist<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(y.bytes().size(), 24U);
  EXPECT_EQ(y.repr(), "Tensor([[0, 1, 2],\n        [3, 4, 5]], dtype=int32, device=CPU)");
  EXPECT_EQ(y.sum().item<int>(), 15);
  EXPECT_EQ((x[{upto(n.bind(1)), 2}].item<int>()), 2);
  expect_error([&] { (void)y.item(); }, {"item", "(n=2, 3)", "6 elements"});
  // Its memory is as large as the largest.
  const Tensor z = (y + 1).realize();
  EXPECT_EQ(memory_of(z.uop())->bytes(), 8 * 3 * 4);
  EXPECT_EQ((z * 2).tolist<int>(), (std::vector<int>{2, 4, 6, 8, 10, 12}));
}

TEST(symbolic, spec_B3_spec_B6_movement_agrees_with_the_interpreter) {
  const Variable n("n", 0, 6), m("m", 1, 4), at("at", 0, 2);
  const Tensor x(leaf({6, 4}));
  for (const auto& [k, j] : {std::pair(0, 1), std::pair(1, 4), std::pair(5, 3), std::pair(6, 4)}) {
    const Size a = n.bind(k), b = m.bind(j), from = at.bind(k % 3);
    const Tensor y = x[{upto(a), upto(b)}];
    expect_same_everywhere(y * y);
    expect_same_everywhere(y.reshape({-1}) + 1.0);
    expect_same_everywhere(y.flatten() + 1.0);
    expect_same_everywhere(y.reshape({b, a}) + 1.0);
    expect_same_everywhere(y.transpose().contiguous());
    expect_same_everywhere(y.pad({{1, 2}, {from, 0}}, 3.0));
    expect_same_everywhere(y.pad({{0, 6 - a}, {0, 4 - b}}));
    expect_same_everywhere(y.unsqueeze(1).expand({a, 3, b}) + 1.0);
    expect_same_everywhere(y.flip({0, 1}) + 1.0);
    expect_same_everywhere(x[{Slice{from, from + 4}, Slice{1, {}}}] + 1.0);
    expect_same_everywhere(x[from] + 1.0);
    expect_same_everywhere(Tensor::cat({y, x[{Slice{}, upto(b)}], y * 2.0}, 0));
    expect_same_everywhere(Tensor::cat({y, y.neg()}, 1));
    expect_same_everywhere(Tensor::stack({y, y.neg()}, 1));
    expect_same_everywhere(y.repeat({2, 1}) + 1.0);
    expect_same_everywhere(y[{Slice{{}, {}, -1}, Slice{{}, {}, -1}}] + 1.0);
    expect_same_everywhere(y.tril() + y.triu(1));
  }
}

TEST(symbolic, reductions_and_creation_agree_with_the_interpreter) {
  const Variable n("n", 1, 40), m("m", 1, 4);
  const Tensor x(leaf({4, 40}));
  for (const auto& [k, j] :
       {std::pair(1, 1), std::pair(17, 4), std::pair(32, 3), std::pair(40, 2)}) {
    const Size a = n.bind(k), b = m.bind(j);
    const Tensor y = x[{upto(b), upto(a)}], finite = y.isfinite().cast(DType::Float32) + 1.0;
    for (const Tensor& t : {y.max({1}), y.min(), y.sum({0}), finite.sum(), finite.mean({1}),
                            finite.var({1}), y.any({0}), y.all(), y.argmax(1), y.argmin(0),
                            finite.prod({0}), finite.matmul(finite.transpose())})
      expect_same_everywhere(t);
    expect_same_everywhere(Tensor::arange(a));
    expect_same_everywhere(Tensor::arange(3, a + 5, 2));
    expect_same_everywhere(Tensor::arange(a, 0, -1, DType::Float32));
    expect_same_everywhere(Tensor::full({a, b}, 2.5) * Tensor::ones({b}));
    expect_same_everywhere(Tensor::zeros({a}, DType::Int32) + Tensor(a));
    EXPECT_EQ(Tensor::arange(a).sum().item<int>(), k * (k - 1) / 2);
    EXPECT_EQ(Tensor::full({a, b}, 2.0).sum().item(), 2.0 * k * j);
    EXPECT_EQ(Tensor(a).item<int>(), k);
  }
}

TEST(symbolic, one_program_serves_every_length) {
  const Tensor x = random_tensor({40, 24}, 1), w = random_tensor({24, 16}, 2);
  const std::map<std::string, std::function<Tensor(const Tensor&, const Size&)>> computations = {
      {"elementwise", [](const Tensor& y, const Size&) { return (y * 2.0 + 1.0).relu(); }},
      {"softmax", [](const Tensor& y, const Size&) { return y.softmax(0); }},
      {"rows", [](const Tensor& y, const Size&) { return y.log_softmax(1); }},
      {"norm", [](const Tensor& y, const Size&) { return y.layernorm(); }},
      {"mean", [](const Tensor& y, const Size&) { return y.mean({0}) + y.std({0}, false, 0); }},
      {"product", [&](const Tensor& y, const Size&) { return y.matmul(w).gelu(); }},
      {"erf", [](const Tensor& y, const Size&) { return y.erf() + y.gelu("none"); }},
      {"square", [](const Tensor& y, const Size&) { return y.matmul(y.transpose()); }},
      {"inner", [](const Tensor& y, const Size&) { return y.transpose().matmul(y); }},
      {"attention",
       [](const Tensor& y, const Size& n) {
         const Tensor at = Tensor::arange(n);
         return y.scaled_dot_product_attention(y, y * 0.5,
                                               at.reshape({n, 1}) >= at.reshape({1, n}));
       }},
      {"rows by index",
       [](const Tensor& y, const Size& n) {
         return y.index_select(0, n - 1 - Tensor::arange(n).cast(DType::Int64));
       }},
      {"cross entropy",
       [](const Tensor& y, const Size& n) {
         return y.cross_entropy(Tensor::arange(n).mod(24).cast(DType::Int32));
       }},
      {"running sums", [](const Tensor& y, const Size&) { return y.cumsum(0) + y.cumsum(1); }},
      {"joined", [](const Tensor& y, const Size& n) {
         return Tensor::cat({y, Tensor::zeros({40 - n, 24})}).sum({1});
       }}};
  for (const auto& [name, compute] : computations) {
    SCOPED_TRACE(name);
    expect_one_program(x, 1, 40, 13, compute);
  }
}

namespace {

// Two layers of a decoder: attention that looks back, layer norms, and an MLP.
class Transformer {
 public:
  Transformer() {
    for (uint64_t layer = 0; layer < 2; ++layer)
      layers_.push_back({random_tensor({width, 3 * width}, 10 * layer + 1),
                         random_tensor({width, width}, 10 * layer + 2),
                         random_tensor({width, 4 * width}, 10 * layer + 3),
                         random_tensor({4 * width, width}, 10 * layer + 4)});
    Tensor::realize({embedding, places});
    for (const Layer& l : layers_) Tensor::realize({l.qkv, l.out, l.up, l.down});
  }

  Tensor operator()(const Tensor& tokens, const Size& n) const {
    Tensor x = embedding.index_select(0, tokens) + places[upto(n)];
    const Tensor at = Tensor::arange(n), mask = at.reshape({n, 1}) >= at.reshape({1, n});
    for (const Layer& l : layers_) {
      const Tensor qkv =
          x.layernorm().matmul(l.qkv).reshape({n, 3, heads, width / heads}).permute({1, 2, 0, 3});
      const Tensor seen = qkv[0].scaled_dot_product_attention(qkv[1], qkv[2], mask);
      x = x + seen.permute({1, 0, 2}).reshape({n, width}).matmul(l.out) * 0.1;
      x = x + x.layernorm().matmul(l.up).gelu().matmul(l.down) * 0.1;
    }
    return x.layernorm().matmul(embedding.transpose());
  }

  static constexpr int64_t width = 16, heads = 2, longest = 32, vocabulary = 20;

 private:
  struct Layer {
    Tensor qkv, out, up, down;
  };
  Tensor embedding = random_tensor({vocabulary, width}, 90),
         places = random_tensor({longest, width}, 91);
  std::vector<Layer> layers_;
};

}  // namespace

TEST(symbolic, spec_L_twenty_lengths_of_a_transformer_compile_once) {
  in_both_modes([] {
    const Transformer model;
    const Variable n("n", 1, Transformer::longest);
    std::vector<int> words;
    for (int i = 0; i < Transformer::longest; ++i) words.push_back(i * 7 % Transformer::vocabulary);
    const Tensor tokens = Tensor::from(words, {Transformer::longest});
    clear_compile_cache();
    std::vector<std::vector<float>> results;
    int64_t kernels = 0;
    for (int64_t length = 32; length > 12; --length) {
      reset_counters();
      const Size size = n.bind(length);
      results.push_back(model(tokens[upto(size)], size).tolist<float>());
      if (length == 32) {
        kernels = counters().kernels;
      } else {
        EXPECT_EQ(counters().compiled, 0) << "length " << length;
      }
      EXPECT_EQ(counters().kernels, kernels);
      EXPECT_EQ(results.back().size(), static_cast<size_t>(length * Transformer::vocabulary));
    }
    for (const int64_t length : {32, 21, 13}) {
      const auto expected = model(tokens[upto(length)], length).tolist<float>();
      const auto& got = results[static_cast<size_t>(32 - length)];
      for (size_t i = 0; i < expected.size(); ++i) {
        if (options().strict) {
          ASSERT_EQ(got[i], expected[i]) << "length " << length << ", element " << i;
        } else {
          ASSERT_NEAR(got[i], expected[i], 1e-4) << "length " << length << ", element " << i;
        }
      }
    }
  });
}

TEST(symbolic, a_training_step_with_a_symbolic_batch) {
  const Tensor data = random_tensor({24, 8}, 3).realize();
  std::vector<int> classes;
  for (int i = 0; i < 24; ++i) classes.push_back(i % 5);
  const Tensor labels = Tensor::from(classes, {24});
  const Variable n("batch", 1, 24);
  in_both_modes([&] {
    auto train = [&](const std::function<Size(int64_t)>& size, bool counts) {
      Tensor w = random_tensor({8, 16}, 4).realize(), v = random_tensor({16, 5}, 5).realize();
      w.requires_grad();
      v.requires_grad();
      std::vector<Tensor> parameters{w, v};
      nn::SGD optimiser(parameters, 0.5);
      std::vector<double> out;
      for (int step = 0; step < 5; ++step) {
        const Size batch = size(24 - 5 * step);
        reset_counters();
        optimiser.zero_grad();
        const Tensor loss =
            data[upto(batch)].matmul(w).relu().matmul(v).cross_entropy(labels[upto(batch)]);
        loss.backward();
        optimiser.step();
        out.push_back(loss.item());
        if (counts && step > 1) {
          EXPECT_EQ(counters().compiled, 0) << "step " << step;
        }
      }
      for (const double x : w.tolist<double>()) out.push_back(x);
      return out;
    };
    const auto symbolic = train([&](int64_t k) { return n.bind(k); }, true),
               constant = train([](int64_t k) { return Size(k); }, false);
    ASSERT_EQ(symbolic.size(), constant.size());
    for (size_t i = 0; i < constant.size(); ++i)
      EXPECT_NEAR(symbolic[i], constant[i], options().strict ? 0 : 1e-5) << i;
  });
}

// A size and a number that change from call to call are arguments of one program.
TEST(symbolic, a_size_and_a_rate_that_change_compile_once_more) {
  const std::vector<float> data{1, 2, 3, 4, 5, 6, 7, 8};
  const Tensor x = Tensor::from(data, {8}).realize();
  const Variable n("n", 1, 8);
  clear_compile_cache();
  reset_counters();
  for (int k = 1; k <= 8; ++k) {
    const float rate = 0.25F * static_cast<float>(k) + 1.0F;
    const std::vector<float> got = (x[upto(n.bind(k))] * rate).tolist<float>();
    ASSERT_EQ(ssize(got), k);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], data[i] * rate) << k << ", " << i;
  }
  EXPECT_EQ(counters().compiled, 2);
}

TEST(symbolic, gradients_agree_with_those_of_constant_sizes) {
  const Tensor x = random_tensor({12, 6}, 6).realize(), w = random_tensor({6, 6}, 7).realize();
  const Variable n("n", 1, 12);
  for (const int64_t k : {1, 5, 12}) {
    auto gradients = [&](const Size& size) {
      const Tensor y = x[upto(size)],
                   mixed = Tensor::cat({y.matmul(w).softmax(-1), y.flip({0})}, 1);
      const Tensor loss = (mixed.square().mean({0}) * y.pad({{0, 12 - size}, {0, 0}}).sum()).sum() +
                          y.max({0}).sum() + y.layernorm().gelu().mean();
      return loss.gradient({x, w});
    };
    const auto symbolic = gradients(n.bind(k)), constant = gradients(k);
    for (size_t i = 0; i < 2; ++i) expect_close(symbolic[i], constant[i], 1e-5);
  }
}

TEST(symbolic, positions_of_a_cache_and_writes_through_symbolic_views) {
  const Variable at("at", 0, 7);
  Tensor cache = Tensor::zeros({8, 2}).clone().realize();
  for (int i = 0; i < 8; ++i) {
    const Size place = at.bind(i);
    reset_counters();
    cache[Slice{place, place + 1}].assign(
        Tensor::from<float>({1.0F + i, 2.0F * i}).reshape({1, 2}));
    const Tensor seen = cache[upto(place + 1)].sum({0});
    EXPECT_EQ(seen.tolist<float>(),
              (std::vector<float>{(i + 1) * (i + 2) / 2.0F, static_cast<float>(i * (i + 1))}));
    if (i > 1) {
      EXPECT_EQ(counters().compiled, 0) << "position " << i;
    }
  }
}

TEST(symbolic, methods_of_many_parts_take_symbolic_sizes) {
  const Variable n("n", 1, 16);
  const Tensor x = Tensor::arange(32).reshape({16, 2}).cast(DType::Float32).realize();
  auto layer = function([](const Tensor& a, const Tensor& b) { return a.softmax(-1) + b.sum({0}); },
                        Resolve::Precompile);
  for (const int64_t k : {5, 1, 16}) {
    const Size s = n.bind(k);
    const Tensor y = x[upto(s)], z = x[upto(k)];
    reset_counters();
    EXPECT_EQ(layer(y, y).tolist<float>(), layer(z, z).tolist<float>());
    EXPECT_EQ((y * 2.0).to("CPU:1").tolist<float>(), (z * 2.0).tolist<float>());
    EXPECT_EQ(Tensor::rand({s, 3}).tolist<float>().size(), static_cast<size_t>(3 * k));
    EXPECT_EQ(y.dropout(0.5).shape(), y.shape());
    EXPECT_EQ(Tensor::einsum("ij,kj->ik", {y, y}).tolist<float>(),
              z.matmul(z.transpose()).tolist<float>());
    EXPECT_EQ(y.index_select(0, Tensor::from<int>({0, -1})).tolist<float>(),
              z.index_select(0, Tensor::from<int>({0, -1})).tolist<float>());
    EXPECT_EQ(y.bitcast(DType::Int32).tolist<int>(), z.bitcast(DType::Int32).tolist<int>());
    const Tensor images = Tensor::ones({16, 1, 6, 6})[upto(s)];
    EXPECT_EQ(images.conv2d(Tensor::ones({2, 1, 3, 3})).sum().item(), static_cast<double>(k * 288));
    EXPECT_EQ(images.max_pool2d(2).sum().item(), static_cast<double>(k * 9));
    Tensor base = x.clone().realize(), rows = Tensor::zeros({s, 2}).clone();
    base[upto(s)].assign(Tensor::zeros({s, 2}));
    EXPECT_EQ(base.sum().item(), 496 - static_cast<double>(k * (2 * k - 1)));
    base.setitem({Tensor::arange(s)}, 1.0);
    EXPECT_EQ(base.sum().item(), 496 - static_cast<double>(k * (2 * k - 3)));
    rows.setitem({Tensor::from<int>({0, 0})}, 3.0);
    EXPECT_EQ(rows.sum().item(), 6);
  }
  expect_error([&] { (void)x[upto(n.bind(5))].index_select(0, Tensor::from<int>({0, 5})).bytes(); },
               {"index_select", "position 5", "size 5"});
  for (const char* method : {"split", "chunk"})
    expect_error(
        [&] {
          const Tensor y = x[upto(n.bind(5))];
          (void)(method[0] == 's' ? y.split(2)[0] : y.chunk(2)[0]);
        },
        {method, "n=5", "symbolic"});
}

// Positions that go round, steps over several elements, and the order of all: each compiled once.
TEST(symbolic, rolls_steps_and_order_take_symbolic_sizes) {
  const Tensor x = (Tensor::arange(66) * 37 % 19).reshape({22, 3}).cast(DType::Float32).realize();
  const std::vector<std::function<Tensor(const Tensor&, const Size&)>> methods{
      [](const Tensor& t, const Size&) { return t.roll(2, 0); },
      [](const Tensor& t, const Size&) { return t.roll(-25, 0) * 2.0; },
      [](const Tensor& t, const Size&) { return t.roll(1); },
      [](const Tensor& t, const Size&) { return t[Slice{{}, {}, 2}]; },
      [](const Tensor& t, const Size&) { return t[Slice{1, {}, 3}] + 1.0; },
      [](const Tensor& t, const Size&) { return t[Slice{{}, {}, -2}]; },
      [](const Tensor& t, const Size&) { return t[Slice{-2, {}, -3}].sum({0}); },
      [](const Tensor& t, const Size&) { return t[Slice{{}, {}, 50}]; },
      [](const Tensor& t, const Size&) { return t.argsort(0); },
      [](const Tensor& t, const Size&) { return t.sort(0, true).first; },
      [](const Tensor& t, const Size&) { return t.T().sort().first; },
      [](const Tensor& t, const Size&) { return t.topk(2, 0).first; },
      [](const Tensor& t, const Size&) { return t.cast(DType::UInt8).sort(0, true).second; },
      [](const Tensor& t, const Size&) { return t.cummax(0); },
      [](const Tensor& t, const Size&) { return t.T().cummin(-1); },
      [](const Tensor&, const Size& n) { return Tensor::eye(n) * 3.0; },
  };
  for (const auto& method : methods) {
    SCOPED_TRACE(fmt::format("method {}", &method - methods.data()));
    expect_one_program(x, 2, 22, 4, method);
  }
  const Variable n("n", 2, 22);
  const Tensor y = x[upto(n.bind(7))];
  expect_error([&] { (void)y.topk(3, 0); }, {"topk", "3", "n=7"});
  expect_error([&] { (void)Tensor::eye(n.bind(7) - 3); }, {"eye", "negative"});
  const std::vector<float> nan_last =
      Tensor::where(y == 0.0, Tensor(NAN), y).sort(0).first.tolist<float>();
  EXPECT_TRUE(std::isnan(nan_last[18]));  // column 0 of the last row
}

TEST(symbolic, gradients_of_rolls_steps_and_order) {
  const Variable n("n", 2, 22);
  const Tensor w = (Tensor::arange(66) % 7).reshape({22, 3}).cast(DType::Float32).realize();
  const std::vector<std::function<Tensor(const Tensor&)>> methods{
      [](const Tensor& t) { return t.roll(2, 0); },
      [](const Tensor& t) { return t[Slice{1, {}, 3}]; },
      [](const Tensor& t) { return t[Slice{{}, {}, -2}]; },
      [](const Tensor& t) { return t.sort(0).first; },
      [](const Tensor& t) { return t.topk(2, 0).first; },
      [](const Tensor& t) { return t.cummax(0); },
  };
  for (const auto& method : methods) {
    SCOPED_TRACE(fmt::format("method {}", &method - methods.data()));
    for (const int64_t k : {2, 9, 22}) {
      auto gradient = [&](const Size& rows) {
        const Tensor x =
            (Tensor::arange(66) * 37 % 64).reshape({22, 3}).cast(DType::Float32).realize();
        const Tensor y = method(x[upto(rows)]);
        return (y * y * w[upto(y.size(0))]).sum().gradient({x})[0];
      };
      expect_close(gradient(n.bind(k)), gradient(k), 1e-6);
    }
  }
}

// Statistics of a symbolic batch, the last of one element, where nothing is left to divide by.
TEST(symbolic, batch_norm_of_a_symbolic_batch) {
  const Variable n("n", 1, 6);
  const Tensor x = random_tensor({6, 3}, 13).realize();
  for (const int64_t k : {6, 2, 1}) {
    nn::BatchNorm symbolic(3), constant(3);
    expect_close(symbolic(x[upto(n.bind(k))], true), constant(x[upto(k)], true), 1e-6);
    expect_close(symbolic.running_var, constant.running_var, 1e-6);
    const auto rows = x.tolist<double>();
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < k; ++i)
      mean += rows[static_cast<size_t>(3 * i)] / static_cast<double>(k);
    for (int64_t i = 0; i < k; ++i) squares += std::pow(rows[static_cast<size_t>(3 * i)] - mean, 2);
    EXPECT_NEAR(symbolic.running_var.tolist<double>()[0],
                0.9 + 0.1 * squares / static_cast<double>(std::max<int64_t>(k - 1, 1)), 1e-6);
  }
}

TEST(symbolic, spec_amend_37_what_does_not_fit_is_refused_before_anything_runs) {
  const Variable n("n", 1, 8), m("m", 1, 8), wide("n", 1, 16);
  const Tensor x = Tensor::arange(8).cast(DType::Float32).realize();
  expect_error([&] { (void)(x[upto(n.bind(3))] + x[upto(m.bind(3))]); },
               {"(n=3,)", "(m=3,)", "broadcast"});
  expect_error([&] { (void)(x[upto(n.bind(3))] + x[upto(n.bind(4))]); }, {"(n=3,)", "(n=4,)"});
  expect_error([&] { (void)(x[upto(n.bind(3))] + x[upto(3)]); }, {"(n=3,)", "(3,)"});
  expect_error([&] { (void)x[upto(n.bind(3))].reshape({n.bind(3), 2}); },
               {"reshape", "n=3", "multiply"});
  expect_error([&] { (void)Tensor::stack({x[upto(n.bind(3))], x[upto(3)]}); }, {"stack", "n=3"});
  expect_error([&] { (void)x[Slice{n.bind(3) - 4, {}}]; }, {"n=3", "-3 to 4", "start", "end"});
  expect_error([&] { (void)x[n.bind(3)]; }, {"position n=3", "size 8"});
  expect_error([&] { (void)x.shrink({{n.bind(3), 4}}); }, {"shrink", "n=3..4"});
  expect_error([&] { (void)Tensor::arange(0, n.bind(3) - 2); }, {"arange", "may be negative"});
  expect_error([&] { (void)x[upto(n.bind(3))].split(2); }, {"n=3", "symbolic"});
  const Tensor a = x[upto(n.bind(3))].sum(), b = x[upto(n.bind(4))].sum(),
               c = Tensor::arange(wide.bind(3)).sum();
  reset_counters();
  expect_error([&] { (void)(a + b).item(); }, {"'n'", "3", "4", "one graph"});
  expect_error([&] { (void)(a + c).item(); }, {"'n'", "1 to 8", "1 to 16"});
  // Bound by nobody, or on the graph's side out of range.
  const Tensor open(shrink(x.uop(), shape_of({0}), stack(std::vector<UOp>{n.uop()})));
  expect_error([&] { (void)open.sum().item(); }, {"'n'", "has no value"});
  expect_error([&] { (void)open.realize(); }, {"realize", "(n,)", "bind()"});
  expect_error([&] { (void)realize({open.sum().uop()}, {{"n", 12}}); }, {"'n'", "12", "1 to 8"});
  expect_error([&] { (void)realize({a.uop()}, {{"n", 4}}); }, {"'n'", "3", "4"});
  // A size that no kernel needs is looked at too.
  const UOp none = mul(cast(n.uop(), DType::Int32), constant_int(DType::Int32, 0));
  expect_error([&] { (void)realize({none}, {{"n", 12}}); }, {"'n'", "12", "1 to 8"});
  EXPECT_EQ(counters().kernels, 0);
  EXPECT_EQ(a.item(), 3);
  EXPECT_EQ(b.item(), 6);
}

TEST(symbolic, a_bound_variable_reads_and_writes_as_text) {
  const UOp n = variable("n", 1, 8), three = bind(n, 3);
  EXPECT_TRUE(is_bound(three));
  EXPECT_FALSE(is_bound(n));
  EXPECT_EQ(bound_value(three), 3);
  EXPECT_EQ(bind(three, 3), three);
  EXPECT_EQ(without_values(add(three, n)), add(n, n));
  EXPECT_EQ(three.bounds().high, 8);
  EXPECT_EQ(parse(to_text(three)), three);
  EXPECT_EQ(interpret_index(mul(three, three), {}), 9);
  expect_error([&] { (void)bind(three, 4); }, {"'n'", "bound to 3", "4"});
  expect_error([&] { (void)present_value(add(n, three)); }, {"'n'", "no value"});
}

namespace {

// What the kernels of a value are made of, on the machine at hand: lanes of the widest Load and
// Store, and threads.
struct Made {
  int64_t load_lanes = 1, store_lanes = 1, threads = 1;
};
Made made_of(const Tensor& value) {
  Made out;
  const Target& target = device_runtime("CPU").target();
  for (const Kernel& kernel : schedule({value.uop()})) {
    const LoweredKernel k = lower_kernel(kernel.ast, target);
    for (const UOp& u : k.linear.src()) {
      if (u.is(Op::Load)) out.load_lanes = std::max(out.load_lanes, lane_count(u));
      if (u.is(Op::Store)) out.store_lanes = std::max(out.store_lanes, lane_count(u.src(1)));
      if (u.is(Op::Special)) out.threads = std::max(out.threads, const_int(u.src(0)));
    }
  }
  return out;
}

}  // namespace

TEST(symbolic, lanes_threads_and_tails_as_for_constants) {
  const Variable n("n", 1, 4096);
  const Tensor x = random_tensor({4096, 64}, 8).realize(), line = x.reshape({-1}),
               w = random_tensor({64, 64}, 9).realize();
  const Size k = n.bind(100);
  const std::vector<std::pair<Tensor, bool>> values = {
      {line[upto(k)] * 2.0, false},        {x[upto(k)] * 2.0 + 1.0, true},
      {x[upto(k)].sum({0}), false},        {x[upto(k)].softmax(-1), true},
      {x[upto(k)].matmul(w).relu(), true}, {w.matmul(x[upto(k)].transpose()), true}};
  for (size_t i = 0; i < values.size(); ++i) {
    SCOPED_TRACE(fmt::format("value {}", i));
    const Made made = made_of(values[i].first);
    EXPECT_GE(made.load_lanes, 4);
    EXPECT_GE(made.store_lanes, 4);
    if (values[i].second) {
      EXPECT_GE(made.threads, 2);
    }
  }
  // Strict mode keeps the order of a sum: lanes run along the results, or there are none.
  const Tensor sum = line[upto(k)].sum();
  EXPECT_EQ(made_of(sum).load_lanes >= 4, !options().strict);
}

TEST(symbolic, tails_are_neither_read_nor_written_beyond_the_end) {
  const Tensor x(leaf({40, 9})), row(leaf({40}));
  const Variable n("n", 0, 40);
  for (const int64_t k : {0, 1, 3, 7, 8, 9, 16, 31, 33, 40}) {
    SCOPED_TRACE(fmt::format("n = {}", k));
    const Size s = n.bind(k);
    const Tensor line = row[upto(s)], rows = x[upto(s)],
                 finite = rows.isfinite().cast(DType::Float32);
    expect_same_everywhere(line * 2.0);
    expect_same_everywhere(line.flip({0}) + line);
    expect_same_everywhere(line.isfinite().cast(DType::Int32).sum());
    expect_same_everywhere(row[Slice{40 - s, {}}] + 1.0);
    expect_same_everywhere(finite.matmul(finite.transpose()));
    expect_same_everywhere(finite.transpose().matmul(finite));
    expect_same_everywhere(rows.transpose().contiguous() + line);
    expect_same_everywhere(line.index_select(0, Tensor::arange(s).flip({0})) + 1.0);
  }
}

// The part of a fold that a window over its padding reads may begin before the fold, or end behind
// it; what is computed of it lies inside.
TEST(symbolic, windows_over_the_padding_of_a_fold_compute_what_it_has) {
  const Tensor x = Tensor(leaf({5, 4}, DType::UInt8)),
               padded = x.prod({0}).reshape({4, 1}).pad({{2, 3}, {2, 1}});
  const Variable k("k", 0, 8);
  for (int64_t from = 0; from <= 8; ++from) {
    SCOPED_TRACE(fmt::format("k = {}", from));
    const Size first = k.bind(from);
    expect_same_everywhere(padded[{Slice{first, first + 1}}]);
  }
}

// Large enough for threads: parts of the rows, the last of them shorter or empty.
TEST(symbolic, threads_share_a_symbolic_number_of_rows) {
  const Variable n("n", 1, 1024);
  const Tensor x = random_tensor({1024, 96}, 11).realize(),
               w = random_tensor({96, 80}, 12).realize();
  in_both_modes([&] {
    for (const int64_t k : {1, 15, 17, 500, 1023, 1024}) {
      SCOPED_TRACE(fmt::format("n = {}", k));
      const Tensor a = x[upto(n.bind(k))], b = x[upto(k)];
      expect_close(a * 3.0 + 1.0, b * 3.0 + 1.0, 0);
      expect_close(a.matmul(w).relu(), b.matmul(w).relu(), 1e-5);
      expect_close(w.transpose().matmul(a.transpose()), w.transpose().matmul(b.transpose()), 1e-5);
      expect_close(a.softmax(-1), b.softmax(-1), 1e-6);
      expect_close(a.sum({0}), b.sum({0}), 1e-5);
      expect_close(a.sum({1}), b.sum({1}), 1e-5);
    }
  });
}

// One program for every length, whatever axis has it.
TEST(symbolic, parts_of_joins_are_computed_into_their_slices) {
  const Variable n("n", 1, 40);
  const Tensor x = random_tensor({40, 24}, 51).realize(), y = random_tensor({40, 24}, 53).realize(),
               w = random_tensor({24, 20}, 55).realize();
  using Make = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::tuple<const char*, size_t, Make> makes[] = {
      {"rows", 2, [&](auto& a, auto& b) { return Tensor::cat({a.matmul(w), b.matmul(w)}, 0); }},
      {"columns", 2, [&](auto& a, auto& b) { return Tensor::cat({a.matmul(w), b.matmul(w)}, 1); }},
      {"a product behind what is there", 3,
       [&](auto& a, auto&) { return Tensor::cat({a + 1, y.matmul(w).matmul(w.transpose())}, 0); }},
      {"stack", 2, [&](auto& a, auto& b) { return Tensor::stack({a.matmul(w), b.matmul(w)}, 1); }},
  };
  for (const auto& [what, kernels, make] : makes) {
    SCOPED_TRACE(what);
    for (const int64_t k : {1, 7, 40}) {
      const Slice bound{{}, n.bind(k)}, known{{}, k};
      const Tensor symbolic = make(x[bound], y[bound]), concrete = make(x[known], y[known]);
      EXPECT_EQ(schedule({symbolic.uop()}).size(), kernels);
      expect_close(symbolic, concrete, 1e-5);
    }
  }
}

}  // namespace koine::test
