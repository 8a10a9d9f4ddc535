// Gradients of random expressions of every differentiable op against central differences in
// float64, in strict and in default mode.
#include <cmath>

#include "check.hpp"
#include "gradient_check.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

// One random expression: equal seeds give equal expressions, over whatever inputs.
class Expression {
 public:
  Expression(uint64_t seed, bool leaves) : random_(seed), leaves_(leaves) {}

  Tensor of(const std::vector<Tensor>& inputs) {
    pool_ = inputs;
    for (int k = 0; k < 7; ++k) pool_.push_back(bounded(op()));
    Tensor loss = Tensor::from<double>({0}).sum();
    for (size_t k = pool_.size() - 3; k < pool_.size(); ++k) {
      const Tensor weights = doubles(pool_[k].shape(), random_, -2, 2);
      loss = loss + (pool_[k] * weights).sum();
    }
    return loss;
  }
  const std::string& text() const { return text_; }

 private:
  uint64_t pick(uint64_t n) { return random_() % n; }
  Tensor any() { return pool_[pick(pool_.size())]; }
  // With at least one axis, and the number of one.
  Tensor with_axes() {
    const Tensor t = any();
    return t.ndim() > 0 ? t : t.reshape({1});
  }
  int64_t axis_of(const Tensor& t) {
    return static_cast<int64_t>(pick(static_cast<uint64_t>(t.ndim())));
  }
  // Of a shape that fits beside `a`.
  Tensor beside(const Tensor& a) {
    const Tensor b = any();
    if (b.shape() == a.shape() || b.ndim() == 0) return b;
    for (const Tensor& t : pool_)
      if (t.shape() == a.shape()) return t;
    return b.mean();
  }
  static Tensor bounded(const Tensor& t) { return (t * Tensor(0.25)).tanh() * Tensor(4.0); }
  static Tensor positive(const Tensor& t) { return t.square() + Tensor(0.3); }
  Tensor named(const char* name, const Tensor& t) {
    text_ += std::string(text_.empty() ? "" : ", ") + name;
    return t;
  }

  Tensor op() {
    switch (pick(5)) {
      case 0:
        return unary_op();
      case 1:
        return binary_op();
      case 2:
        return movement_op();
      case 3:
        return reduce_op();
      default:
        return other_op();
    }
  }

  Tensor unary_op() {
    const Tensor x = any();
    switch (pick(30)) {
      case 0:
        return named("neg", -x);
      case 1:
        return named("reciprocal", positive(x).reciprocal());
      case 2:
        return named("sqrt", positive(x).sqrt());
      case 3:
        return named("rsqrt", positive(x).rsqrt());
      case 4:
        return named("exp", x.exp());
      case 5:
        return named("exp2", x.exp2());
      case 6:
        return named("log", positive(x).log());
      case 7:
        return named("log2", positive(x).log2());
      case 8:
        return named("sin", x.sin());
      case 9:
        return named("cos", x.cos());
      case 10:
        return named("tan", (x * Tensor(0.25)).tan());
      case 11:
        return named("abs", x.abs());
      case 12:
        return named("square", x.square());
      case 13:
        return named("relu", x.relu());
      case 14:
        return named("leaky_relu", x.leaky_relu());
      case 15:
        return named("sigmoid", x.sigmoid());
      case 16:
        return named("tanh", x.tanh());
      case 17:
        return named("gelu", x.gelu());
      case 18:
        return named("silu", x.silu());
      case 19:
        return named("softplus", x.softplus());
      case 20:
        return named("elu", x.elu());
      case 21:
        return named("clip", x.clip(-1, 1.5));
      case 22:
        return named("floor", x.floor() * x);
      case 23:
        return named("round", x.round() * x);
      case 24:
        return named("trunc", x.trunc() + x.ceil());
      case 25:
        return named("sign", x.sign() * x);
      case 26:
        return named("Recip", Tensor(unary(Op::Recip, positive(x).uop())));
      case 27:
        return named("contiguous", x.contiguous());
      case 28:
        return named("contiguous_backward", x.contiguous_backward());
      default:
        return named("clone", x.clone());
    }
  }

  Tensor binary_op() {
    const Tensor a = any(), b = beside(a);
    switch (pick(14)) {
      case 0:
        return named("add", a + b);
      case 1:
        return named("sub", a - b);
      case 2:
        return named("mul", a * b);
      case 3:
        return named("div", a / positive(b));
      case 4:
        return named("maximum", a.maximum(b));
      case 5:
        return named("minimum", a.minimum(b));
      case 6:
        return named("pow", positive(a).pow(b));
      case 7:
        return named("mod", a.mod(positive(b)));
      case 8:
        return named("mod, negative", a.mod(-positive(b)));
      case 9:
        return named("idiv", a.idiv(positive(b)) + a);
      case 10:
        return named("lerp", a.lerp(b, Tensor(0.3)));
      case 11:
        return named("where", Tensor::where(a < b, a * a, b));
      case 12:
        return named("masked_fill", a.masked_fill(a > Tensor(1.0), 0.5));
      default:
        return named("mulacc", Tensor(mulacc(a.uop(), a.uop(), b.uop())));
    }
  }

  Tensor movement_op() {
    const Tensor x = with_axes();
    const int64_t axis = axis_of(x), n = x.size(axis);
    const auto one = std::vector<IndexItem>(static_cast<size_t>(axis), Slice{});
    auto indexed = [&](const IndexItem& item) {
      auto items = one;
      items.push_back(item);
      return x[items];
    };
    std::vector<std::pair<int64_t, int64_t>> padding(static_cast<size_t>(x.ndim()), {0, 0});
    padding[static_cast<size_t>(axis)] = {1, 2};
    switch (pick(15)) {
      case 0:
        return named("transpose", x.transpose(axis, -1));
      case 1:
        return named("flip", x.flip({axis}));
      case 2:
        return named("flatten", x.flatten());
      case 3:
        return named("unsqueeze, expand", x.unsqueeze(0).repeat([&] {
          Shape times(static_cast<size_t>(x.ndim()) + 1, 1);
          times[0] = 2;
          return times;
        }()));
      case 4:
        return named("slice", indexed(Slice{n / 2, {}}));
      case 5:
        return named("slice with a step", indexed(Slice{{}, {}, 2}));
      case 6:
        return named("slice back", indexed(Slice{{}, {}, -3}));
      case 7:
        return named("position", indexed(-1));
      case 8:
        return named("pad", x.pad(padding, 0.5));
      case 9: {
        Shape offset(static_cast<size_t>(x.ndim()), 0), size = x.shape();
        size[static_cast<size_t>(axis)] += 2;
        return named("pad with a fill",
                     Tensor(pad(x.uop(), shape_of(offset), shape_of(size), any().mean().uop())));
      }
      case 10:
        return named("roll", x.roll(1, axis));
      case 11:
        return named("cat", Tensor::cat({x, x * x}, axis));
      case 12:
        return named("stack", Tensor::stack({x, x.sin()}, axis));
      case 13:
        return named("tril", x.ndim() > 1 ? x.tril() : x);
      default:
        return named("cumsum", x.cumsum(axis));
    }
  }

  Tensor reduce_op() {
    const Tensor x = with_axes();
    const int64_t axis = axis_of(x);
    const Tensor::Axes over = pick(3) == 0 ? Tensor::Axes{} : Tensor::Axes{axis};
    const bool keep = pick(2) == 0;
    switch (pick(12)) {
      case 0:
        return named("sum", x.sum(over, keep));
      case 1:
        return named("prod", x.prod(over, keep));
      case 2:
        return named("max", x.max(over, keep));
      case 3:
        return named("min", x.min(over, keep));
      case 4:
        return named("mean", x.mean(over, keep));
      case 5:
        return named("var", x.var(over, keep, 0));
      case 6:
        return named("std", x.std(over, keep, 0));
      case 7:
        return named("norm", x.norm(over, keep));
      case 8:
        return named("logsumexp", x.logsumexp(over, keep));
      case 9:
        return named("softmax", x.softmax(axis));
      case 10:
        return named("log_softmax", x.log_softmax(axis));
      default:
        return named("layernorm", x.layernorm(1));
    }
  }

  Tensor other_op() {
    const Tensor x = with_axes();
    const int64_t axis = axis_of(x), n = x.size(axis);
    auto positions = [&](int64_t count) {
      std::vector<int32_t> at;
      for (int64_t k = 0; k < count; ++k)
        at.push_back(static_cast<int32_t>(pick(static_cast<uint64_t>(n))));
      return Tensor::from(at, {count});
    };
    switch (pick(9)) {
      case 0:
        return named("index_select", x.index_select(axis, positions(3)));
      case 1: {
        const Tensor at = positions(1).reshape(Shape(static_cast<size_t>(x.ndim()), 1));
        return named("gather", x.gather(axis, at.expand(x.shape())));
      }
      case 2: {
        const Tensor at = positions(1).reshape(Shape(static_cast<size_t>(x.ndim()), 1));
        return named("scatter_add", x.scatter_add(axis, at.expand(x.shape()), x.cos()));
      }
      case 3: {
        const Tensor square = x.reshape({x.numel() / x.shape().back(), x.shape().back()});
        return named("matmul", square.matmul(square.T()) * Tensor(0.1));
      }
      case 4: {
        const Tensor around = any().mean();
        const auto f = koine::function([&](const Tensor& t) { return t * around + t.sin(); },
                                       pick(2) ? Resolve::Substitute : Resolve::Precompile);
        return named("function", f(x));
      }
      case 5: {
        const auto outer = koine::function([](const Tensor& t) {
          const auto inner = koine::function([&](const Tensor& s) { return s * t; });
          return inner(t.cos());
        });
        return named("nested functions", outer(x));
      }
      case 6:
        if (!leaves_) (void)x.tolist<double>();  // a look in between
        return named("look", x * Tensor(2.0));
      case 7: {
        Tensor y = x * Tensor(1.5);
        std::vector<IndexItem> items(static_cast<size_t>(axis), Slice{});
        items.emplace_back(Slice{{}, {}, 2});
        const Tensor part = x[items].sin();
        if (leaves_) {
          y[items].assign(part);  // is part of the graph where a leaf lies below
        } else {
          const Tensor even = Tensor::arange(n).mod(Tensor(2)) == Tensor(0);
          Shape wide(static_cast<size_t>(x.ndim()), 1);
          wide[static_cast<size_t>(axis)] = n;
          y = Tensor::where(even.reshape(wide), x.sin(), y);
        }
        return named("write through a view", y);
      }
      default: {
        const Tensor mask = x.detach() > Tensor(0.0);
        return named("where detached", Tensor::where(mask, x * x, x));
      }
    }
  }

  std::mt19937_64 random_;
  bool leaves_;
  std::vector<Tensor> pool_;
  std::string text_;
};

}  // namespace

TEST(gradient_fuzz, expressions_against_differences) {
  const int64_t cases = test_cases(200);
  int64_t compared = 0;
  for (int64_t c = 0; c < cases; ++c) {
    const uint64_t case_seed = test_seed() + static_cast<uint64_t>(c) * 7919;
    std::mt19937_64 random(case_seed);
    Options o = options();
    o.strict = random() % 2 == 0;
    const OptionScope scope(o);
    const bool leaves = random() % 2 == 0;
    const uint64_t seed = random();
    std::vector<Tensor> inputs, directions;
    for (uint64_t k = 0; k < 2; ++k) {
      Shape sizes;
      for (uint64_t r = random() % 4; r-- > 0;)
        sizes.push_back(1 + static_cast<int64_t>(random() % 4));
      inputs.push_back(doubles(sizes, random, -2, 2));
      directions.push_back(doubles(sizes, random));
    }
    auto at = [&](double distance) {
      std::vector<Tensor> moved;
      for (size_t k = 0; k < inputs.size(); ++k)
        moved.push_back((inputs[k] + directions[k] * Tensor(distance)).realize());
      return Expression(seed, false).of(moved).item();
    };
    auto difference_at = [&](double h) { return (at(h) - at(-h)) / (2 * h); };
    const double want = difference_at(1e-5), again = difference_at(3e-6);
    // Beside a corner, or where the numbers leave the range, differences say nothing.
    if (!(std::fabs(want - again) <= 1e-5 * std::max(1.0, std::fabs(want)))) continue;
    ++compared;
    Expression expression(seed, leaves);
    std::vector<Tensor> grads;
    if (leaves) {
      for (Tensor& t : inputs) t.requires_grad();
      expression.of(inputs).backward();
      for (const Tensor& t : inputs) grads.push_back(t.has_grad() ? t.grad() : t.zeros_like());
    } else {
      grads = expression.of(inputs).gradient(inputs);
    }
    double got = 0;
    for (size_t k = 0; k < grads.size(); ++k) got += (grads[k] * directions[k]).sum().item();
    ASSERT_NEAR(got, want, 2e-5 * std::max(1.0, std::fabs(want)))
        << "KOINE_TEST_SEED=" << case_seed << " KOINE_TEST_CASES=1"
        << (o.strict ? ", strict" : ", default") << (leaves ? ", leaves: " : ": ")
        << expression.text();
  }
  EXPECT_TRUE(cases < 20 || compared * 10 > cases * 7) << "too many corners: " << compared;
}

}  // namespace koine::test
