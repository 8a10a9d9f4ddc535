// Layers and optimisers, against loops written from their definitions: a few steps, each state.
#include <algorithm>

#include "plain.hpp"

namespace koine::test {
namespace {

using enum DType;

// One of a tensor's numbers after each step; all numbers of a parameter go the same way.
struct Hand {
  std::vector<Real> value, gradient, first, second;
};

/// A rule's step by hand: number `t` from 1.
using Step = std::function<void(Hand& hand, int t, Real rate)>;
using Make = std::function<std::unique_ptr<nn::Optimizer>(std::vector<Tensor> parameters)>;

struct Rule {
  const char* name;
  Make make;
  Step step;
};

Step sgd(Real momentum, Real decay, bool nesterov) {
  return [=](Hand& h, int, Real rate) {
    for (size_t i = 0; i < h.value.size(); ++i) {
      Real g = h.gradient[i] + decay * h.value[i];
      h.first[i] = momentum * h.first[i] + g;
      if (momentum != 0) g = nesterov ? g + momentum * h.first[i] : h.first[i];
      h.value[i] -= rate * g;
    }
  };
}
// Weight decay as a part of the gradient, or apart.
Step adam(Real beta1, Real beta2, Real eps, Real decay, bool apart) {
  return [=](Hand& h, int t, Real rate) {
    for (size_t i = 0; i < h.value.size(); ++i) {
      const Real g = h.gradient[i] + (apart ? 0 : decay * h.value[i]);
      h.first[i] = beta1 * h.first[i] + (1 - beta1) * g;
      h.second[i] = beta2 * h.second[i] + (1 - beta2) * g * g;
      const Real m = h.first[i] / (1 - std::pow(beta1, t)),
                 v = h.second[i] / (1 - std::pow(beta2, t));
      if (apart) h.value[i] -= rate * decay * h.value[i];
      h.value[i] -= rate * m / (std::sqrt(v) + eps);
    }
  };
}

template <class O, class... Args>
Make maker(Args... args) {
  return [=](std::vector<Tensor> p) { return std::make_unique<O>(std::move(p), args...); };
}

const std::vector<Rule> rules = {
    {"SGD", maker<nn::SGD>(0.25), sgd(0, 0, false)},
    {"SGD with decay", maker<nn::SGD>(0.25, 0.0, 0.125), sgd(0, 0.125L, false)},
    {"SGD with momentum", maker<nn::SGD>(0.25, 0.75), sgd(0.75L, 0, false)},
    {"SGD in Nesterov's form", maker<nn::SGD>(0.25, 0.75, 0.125, true), sgd(0.75L, 0.125L, true)},
    {"Adam", maker<nn::Adam>(0.25), adam(0.9L, 0.999L, 1e-8L, 0, false)},
    {"Adam with decay", maker<nn::Adam>(0.25, 0.75, 0.5, 0.125, 0.25),
     adam(0.75L, 0.5L, 0.125L, 0.25L, false)},
    {"AdamW", maker<nn::AdamW>(0.25), adam(0.9L, 0.999L, 1e-8L, 0.01L, true)},
    {"AdamW with decay", maker<nn::AdamW>(0.25, 0.75, 0.5, 0.125, 0.5),
     adam(0.75L, 0.5L, 0.125L, 0.5L, true)},
};

}  // namespace

// Parameters of any shape, a scalar too.
TEST(layers, optimisers_step_by_step) {
  std::mt19937_64 random(test_seed());
  for (const Rule& rule : rules)
    for (const DType d : {Float32, Float64})
      on_both(d == Float64, [&] {
        const std::vector<Plain> start = {exact_numbers(random, d, {3, 2}),
                                          exact_numbers(random, d, {}),
                                          exact_numbers(random, d, {5})};
        std::vector<Tensor> parameters;
        std::vector<Hand> hands;
        for (const Plain& p : start) {
          parameters.push_back(tensor_of(p).requires_grad());
          const std::vector<Real> zeros(p.at.size());
          hands.push_back({p.at, {}, zeros, zeros});
        }
        const auto optimizer = rule.make(parameters);
        for (int t = 1; t <= 4; ++t) {
          const double rate = t == 3 ? 0.125 : 0.25;
          optimizer->set_learning_rate(rate);
          EXPECT_EQ(optimizer->learning_rate(), rate);
          for (size_t k = 0; k < parameters.size(); ++k) {
            const Plain g = exact_numbers(random, d, start[k].shape);
            hands[k].gradient = g.at;
            parameters[k].set_grad(tensor_of(g));
          }
          optimizer->step();
          for (size_t k = 0; k < parameters.size(); ++k) {
            rule.step(hands[k], t, rate);
            EXPECT_EQ(difference({d, start[k].shape, hands[k].value}, parameters[k], {16, 4}), "")
                << rule.name << ", step " << t << ", seed " << test_seed();
          }
        }
      });
}

TEST(layers, gradients_are_clipped_to_a_joint_norm) {
  on_both(false, [] {
    for (const Real most : {2.5L, 5.0L, 100.0L}) {
      Tensor a = Tensor::zeros({2}).clone().requires_grad(),
             b = Tensor::zeros({}).clone().requires_grad();
      nn::SGD optimizer({a, b}, 1);
      a.set_grad(Tensor::from<float>({1, -4}));
      b.set_grad(Tensor(8.0));  // the norm is 9
      optimizer.clip_grad_norm(static_cast<double>(most));
      const Real scale = std::min<Real>(1, most / (9 + 1e-6L));
      EXPECT_EQ(difference(row_of(Float32, {scale, -4 * scale}), a.grad(), {4}), "");
      EXPECT_EQ(difference({Float32, {}, {8 * scale}}, b.grad(), {4}), "");
    }
  });
}

TEST(layers, learning_rates_by_step) {
  const double pi = std::acos(-1.0);
  for (const int64_t warmup : {0, 4})
    for (int64_t step = 0; step < 30; ++step) {
      const double done =
          std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(20 - warmup));
      const double want = step < warmup
                              ? 3.0 * static_cast<double>(step + 1) / static_cast<double>(warmup)
                              : 1 + (3.0 - 1) * (1 + std::cos(pi * done)) / 2;
      EXPECT_NEAR(nn::cosine_schedule(step, 20, 3, 1, warmup), want, 1e-14) << step;
      EXPECT_EQ(nn::step_schedule(step, 7, 3, 0.5), 3 / static_cast<double>(1 << step / 7)) << step;
    }
  EXPECT_EQ(nn::cosine_schedule(0, 10, 2), 2);
  EXPECT_NEAR(nn::cosine_schedule(10, 10, 2), 0, 1e-16);
}

namespace {

// What an axis 1 of several holds.
std::vector<Real> feature(const Plain& x, int64_t c) {
  std::vector<Real> out;
  for (int64_t i = 0; i < count_of(x.shape); ++i)
    if (place_of(x.shape, i)[1] == c) out.push_back(x.at[static_cast<size_t>(i)]);
  return out;
}
struct Spread {
  Real mean = 0, squares = 0;  // squares: the sum of the squared distances from the mean
};
Spread spread_of(const std::vector<Real>& values) {
  Spread out;
  for (const Real v : values) out.mean += v / static_cast<Real>(values.size());
  for (const Real v : values) out.squares += (v - out.mean) * (v - out.mean);
  return out;
}

void set_values(Tensor& target, const Plain& values) { target.assign(tensor_of(values)).realize(); }

}  // namespace

// While training by the batch's own variance; what is kept for later takes the unbiased one.
TEST(layers, batchnorm) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{6, 3}, {4, 3, 5}, {2, 3, 3, 4}, {1, 3}})
    on_both(shape.size() == 3, [&] {
      nn::BatchNorm layer(3, 0.5, 0.25);
      const Plain weight = exact_numbers(random, Float32, {3}),
                  bias = exact_numbers(random, Float32, {3});
      set_values(layer.weight, weight);
      set_values(layer.bias, bias);
      std::vector<Real> means(3, 0), variances(3, 1);
      for (int step = 0; step < 2; ++step) {
        const Plain x = exact_numbers(random, Float32, shape);
        auto normalised = [&](const std::vector<Real>& mean, const std::vector<Real>& variance) {
          return plain(Float32, shape, [&](const Place& at) {
            const auto c = static_cast<size_t>(at[1]);
            return (x(at) - mean[c]) / std::sqrt(variance[c] + 0.5L) * weight.at[c] + bias.at[c];
          });
        };
        std::vector<Real> batch_means, batch_variances;
        for (int64_t c = 0; c < 3; ++c) {
          const std::vector<Real> values = feature(x, c);
          const Spread s = spread_of(values);
          const auto n = static_cast<Real>(values.size());
          batch_means.push_back(s.mean);
          batch_variances.push_back(s.squares / n);
          Real& mean = means[static_cast<size_t>(c)];
          Real& variance = variances[static_cast<size_t>(c)];
          mean = 0.75L * mean + 0.25L * s.mean;
          variance = 0.75L * variance + 0.25L * s.squares / std::max<Real>(1, n - 1);
        }
        const Within near{16, 16};
        EXPECT_EQ(
            difference(normalised(batch_means, batch_variances), layer(tensor_of(x), true), near),
            "");
        EXPECT_EQ(difference(row_of(Float32, means), layer.running_mean, near), "") << step;
        EXPECT_EQ(difference(row_of(Float32, variances), layer.running_var, near), "") << step;
        EXPECT_EQ(difference(normalised(means, variances), layer(tensor_of(x), false), near), "");
        EXPECT_EQ(difference(row_of(Float32, means), layer.running_mean, near), "") << "unchanged";
      }
    });
}

TEST(layers, layernorm_embedding_linear_and_conv2d) {
  std::mt19937_64 random(test_seed());
  on_both(false, [&] {
    nn::LayerNorm norm(5, 0.25);
    const Plain weight = exact_numbers(random, Float32, {5}),
                bias = exact_numbers(random, Float32, {5}),
                x = exact_numbers(random, Float32, {2, 3, 5});
    set_values(norm.weight, weight);
    set_values(norm.bias, bias);
    const Plain normalised = plain(Float32, {2, 3, 5}, [&](const Place& at) {
      std::vector<Real> row;
      for (int64_t j = 0; j < 5; ++j) row.push_back(x({at[0], at[1], j}));
      const Spread s = spread_of(row);
      return (x(at) - s.mean) / std::sqrt(s.squares / 5 + 0.25L) * weight({at[2]}) + bias({at[2]});
    });
    EXPECT_EQ(difference(normalised, norm(tensor_of(x)), {16, 16}), "");

    nn::Embedding table(4, 3);
    EXPECT_EQ(table.weight.shape(), (Shape{4, 3}));
    const Plain rows = exact_numbers(random, Float32, {4, 3});
    set_values(table.weight, rows);
    const std::vector<int32_t> words{3, 0, 3, 1};
    const Plain looked_up = plain(Float32, {2, 2, 3}, [&](const Place& at) {
      return rows({words[static_cast<size_t>(2 * at[0] + at[1])], at[2]});
    });
    EXPECT_EQ(difference(looked_up, table(Tensor::from(words, {2, 2}))), "");

    nn::Linear linear(5, 2), plain_linear(5, 2, false);
    const Plain w = exact_numbers(random, Float32, {2, 5}), b = exact_numbers(random, Float32, {2});
    set_values(linear.weight, w);
    set_values(linear.bias, b);
    set_values(plain_linear.weight, w);
    EXPECT_FALSE(plain_linear.bias.defined());
    for (const bool biased : {true, false}) {
      const Plain want = plain(Float32, {2, 3, 2}, [&](const Place& at) {
        Real sum = biased ? b({at[2]}) : 0;
        for (int64_t j = 0; j < 5; ++j) sum += x({at[0], at[1], j}) * w({at[2], j});
        return sum;
      });
      EXPECT_EQ(difference(want, (biased ? linear : plain_linear)(tensor_of(x))), "");
    }

    // The layer hands on its window and its groups.
    nn::Conv2d conv(4, 6, 3, {2, 1, 2}, 2);
    const Plain image = exact_numbers(random, Float32, {1, 4, 8, 7}),
                kernel = exact_numbers(random, Float32, {6, 2, 3, 3}),
                offset = exact_numbers(random, Float32, {6});
    set_values(conv.weight, kernel);
    set_values(conv.bias, offset);
    const Plain convolved = plain(Float32, {1, 6, 3, 3}, [&](const Place& at) {
      Real sum = offset({at[1]});
      for (int64_t c = 0; c < 2; ++c)
        for (int64_t i = 0; i < 3; ++i)
          for (int64_t j = 0; j < 3; ++j) {
            const int64_t y = 2 * at[2] - 1 + 2 * i, z = 2 * at[3] - 1 + 2 * j;
            if (y < 0 || y >= 8 || z < 0 || z >= 7) continue;
            sum += image({0, at[1] / 3 * 2 + c, y, z}) * kernel({at[1], c, i, j});
          }
      return sum;
    });
    EXPECT_EQ(difference(convolved, conv(tensor_of(image))), "");
  });
}

}  // namespace koine::test
