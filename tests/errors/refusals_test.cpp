// What is refused in words, and named after what the user called.
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

const Tensor& image() {
  static const Tensor x = Tensor::ones({1, 2, 4, 4});
  return x;
}

}  // namespace

TEST(refusals, class_targets) {
  const Tensor logits = Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  auto loss = [&](const Tensor& target) {
    return [&logits, target] { (void)logits.cross_entropy(target).item(); };
  };
  expect_error(loss(Tensor::from<int>({1, -1})),
               {"cross_entropy: class -1", "element 1", "use 0 to 2"});
  expect_error(loss(Tensor::from<int>({3, 1})), {"class 3", "element 0", "use 0 to 2"});
  expect_error(loss(Tensor::from<float>({1, 2})),
               {"cross_entropy: class targets must be integers", "float32"});
  expect_error([&] { (void)logits.nll_loss(Tensor::from<float>({1, 2})); },
               {"nll_loss: class targets must be integers", "float32"});
  expect_error(loss(Tensor::from<int>({1, 2, 0})), {"(2, 3)", "(3,)"});
  expect_error([&] { (void)logits.nll_loss(Tensor::from<int>({0, -2})).item(); },
               {"nll_loss: class -2"});
  expect_error([&] { (void)logits.nll_loss(Tensor::from<uint64_t>({0, ~uint64_t{0}})).item(); },
               {"nll_loss: class"});
  expect_error(
      [&] { (void)logits.sparse_categorical_crossentropy(Tensor::from<int>({0, 1}), 1.5); },
      {"sparse_categorical_crossentropy: the label smoothing 1.5"});
}

// What a node refuses names the source that it refuses.
TEST(refusals, operands_of_a_node) {
  const UOp whole = constant_int(DType::Int32, 1), real = constant(DType::Float32, 1);
  expect_error([&] { (void)where(whole, real, real); },
               {"Where: the condition is int32, not bool"});
  expect_error([&] { (void)add(whole, real); },
               {"Add: source 1 is float32, source 0 is int32: cast them to one dtype"});
  expect_error([&] { (void)unary(Op::Sin, whole); }, {"Sin: needs a float dtype, got int32"});
  expect_error([&] { (void)binary(Op::Shl, real, real); },
               {"Shl: needs an integer dtype, got float32"});
  const UOp n = variable("n", 1, 3), one = index_const(1);
  expect_error([&] { (void)UOp::make(Op::Param, {n.src(0), one, one, n.src(0)}, n.arg()); },
               {"Param: what Variable 'n' is bound to must be a constant, got Stack"});
  expect_error([&] { (void)UOp::make(Op::CustomFunction, {n}); },
               {"CustomFunction: needs the name of a function of the host"});
}

TEST(refusals, an_ignored_class_does_not_count) {
  const Tensor logs = Tensor::from<float>({-1, -2, -3, -4, -5, -6}).reshape({3, 2});
  EXPECT_EQ(logs.nll_loss(Tensor::from<int>({0, -100, 1}), -100).item(), (1 + 6) / 2.0);
  EXPECT_EQ(logs.nll_loss(Tensor::from<int>({0, 0, 1}), 0).item(), 6);
  EXPECT_TRUE(std::isnan(logs.nll_loss(Tensor::from<int>({7, 7, 7}), 7).item()));
  expect_error([&] { (void)logs.nll_loss(Tensor::from<int>({0, -100, 2}), -100).item(); },
               {"class 2"});
  const Tensor two = logs[Slice{0, 2}];
  EXPECT_NEAR(logs.cross_entropy(Tensor::from<int>({0, 1, -1}), -1).item(),
              two.cross_entropy(Tensor::from<int>({0, 1})).item(), 1e-7);
  EXPECT_NEAR(logs.sparse_categorical_crossentropy(Tensor::from<int>({0, 1, 9}), 0.25, 9).item(),
              two.sparse_categorical_crossentropy(Tensor::from<int>({0, 1}), 0.25).item(), 1e-7);
}

TEST(refusals, creation) {
  expect_error([] { (void)Tensor::uniform(3, 3, 1); }, {"uniform", "3", "1"});
  expect_error([] { (void)Tensor::uniform(3, 0, INFINITY); }, {"uniform", "finite"});
  expect_error([] { (void)Tensor::eye(-1); }, {"eye", "-1"});
  expect_error([] { (void)Tensor::arange(0, 300, 1, DType::UInt8); },
               {"arange(0, 300, 1)", "uint8", "299"});
  expect_error([] { (void)Tensor::arange(0, int64_t{1} << 40, int64_t{1} << 38); },
               {"arange", "int32", "wider"});
  expect_error([] { (void)Tensor::arange(-1, 3, 1, DType::UInt32); }, {"uint32", "-1"});
  expect_error([] { (void)Tensor::arange(3e38, 4e38, 5e37); },
               {"arange(3e+38, 4e+38, 5e+37)", "float32 does not hold", "wider dtype"});
  expect_error([] { (void)Tensor::arange(0.0, 1e5, 2e4, DType::Float16); }, {"float16", "80000"});
  expect_error([] { (void)Tensor::arange(-1.0, 1.0, 1.0, DType::UInt8); }, {"uint8", "-1"});
  expect_error([] { (void)Tensor::linspace(0, 1e39, 3); }, {"linspace(0, 1e+39, 3)", "float32"});
  EXPECT_EQ(Tensor::arange(0.5, 3, 1, DType::UInt8).tolist<uint8_t>(),
            (std::vector<uint8_t>{0, 1, 2}));
  expect_error([] { (void)Tensor::arange(0, NAN); }, {"arange(0, nan, 1)", "finite"});
  expect_error([] { (void)Tensor::arange(0.0, 1, 0); }, {"arange", "step", "0"});
  expect_error([] { (void)Tensor::arange(0, 1e300, 0.5); }, {"arange(0, 1e+300, 0.5)", "memory"});
  expect_error([] { (void)Tensor::arange(INT64_MIN, INT64_MAX, 1, DType::Int64); },
               {"more elements"});
  EXPECT_EQ(Tensor::arange(INT64_MIN, INT64_MAX, INT64_MAX, DType::Int64).tolist<int64_t>(),
            (std::vector<int64_t>{INT64_MIN, -1, INT64_MAX - 1}));
  EXPECT_EQ(Tensor::arange(INT64_MAX, INT64_MIN, INT64_MIN, DType::Int64).tolist<int64_t>(),
            (std::vector<int64_t>{INT64_MAX, -1}));
  EXPECT_EQ(Tensor::arange(0, 256, 255, DType::UInt8).tolist<int>(), (std::vector<int>{0, 255}));
  EXPECT_EQ(Tensor::arange(5, 5, 1, DType::Int8).numel(), 0);
  expect_error([] { (void)Tensor::arange(65000, 70000, 1000, DType::Float16); },
               {"arange", "float16", "69000"});
  expect_error([] { (void)Tensor::arange(-500, 0, 1, DType::Float8E4M3); }, {"float8", "-500"});
  expect_error([] { (void)Tensor::arange(0, 3, 1, DType::Bool); }, {"bool", "0 to 2"});
  EXPECT_EQ(Tensor::arange(65500, 65505, 4, DType::Float16).tolist<int>(),
            (std::vector<int>{65504, 65504}));
  EXPECT_EQ(Tensor::arange(0, 2, 1, DType::Bool).tolist<int>(), (std::vector<int>{0, 1}));
  // Sizes whose product leaves 64 bits.
  const int64_t big = int64_t{1} << 32;
  expect_error([&] { (void)Tensor::from<float>({1, 2}, {big, big}); },
               {"from: 2 elements", "(4294967296, 4294967296)"});
  expect_error([] { (void)Tensor::from<bool>({true}, {2}); }, {"from: 1 elements", "(2,)"});
  expect_error([&] { (void)Tensor::ones(2).reshape({big, big}); }, {"reshape", "4294967296"});
  expect_error([&] { (void)Tensor::rand({big, big}); }, {"too large"});
  expect_error([] { (void)Tensor::ones(2).pad({{INT64_MAX, INT64_MAX}}); }, {"pad", "too large"});
}

TEST(refusals, movement) {
  const Tensor x = Tensor::arange(6).reshape({2, 3}), s(1.0);
  expect_error([&] { (void)Tensor::ones(2).expand({-2, 2}); }, {"expand", "(-2, 2)", "negative"});
  EXPECT_EQ(Tensor::ones(2).expand({3, -1}).shape(), (Shape{3, 2}));
  expect_error([&] { (void)x.flatten(1, 0); }, {"flatten", "axis 1", "axis 0", "(2, 3)"});
  expect_error([&] { (void)s.softmax(); }, {"softmax", "a scalar has no axis -1"});
  expect_error([&] { (void)s.T(); }, {"a scalar has no axis"});
  // Steps beyond the axis take one element, whatever their size.
  auto every = [&](int64_t step) { return x[Slice{1, 2}].flatten()[Slice{{}, {}, step}]; };
  for (const int64_t step : {int64_t{3}, int64_t{4}, INT64_MAX}) {
    EXPECT_EQ(every(step).tolist<int>(), std::vector<int>{3}) << step;
    EXPECT_EQ(every(-step).tolist<int>(), std::vector<int>{5}) << step;
  }
  EXPECT_EQ(every(INT64_MIN).tolist<int>(), std::vector<int>{5});
  const Slice far_apart{{}, {}, INT64_MAX};
  EXPECT_EQ(Tensor::zeros({0})[far_apart].numel(), 0);
  // Diagonals outside of the matrix keep all or nothing, also those beyond 32 bits.
  const std::vector<int> all{0, 1, 2, 3, 4, 5}, none(6, 0);
  for (const int64_t far : {int64_t{3}, int64_t{1} << 32, INT64_MAX}) {
    EXPECT_EQ(x.tril(far).tolist<int>(), all) << far;
    EXPECT_EQ(x.triu(far).tolist<int>(), none) << far;
    EXPECT_EQ(x.tril(-far).tolist<int>(), none) << far;
    EXPECT_EQ(x.triu(-far).tolist<int>(), all) << far;
  }
  EXPECT_EQ(x.triu(INT64_MIN).tolist<int>(), all);
  EXPECT_EQ(x.tril(-1).tolist<int>(), (std::vector<int>{0, 0, 0, 3, 0, 0}));
  EXPECT_EQ(x.triu(1).tolist<int>(), (std::vector<int>{0, 1, 2, 0, 0, 5}));
}

TEST(refusals, pools_and_convolutions) {
  expect_error([] { (void)image().max_pool2d(2, 0); }, {"max_pool2d", "stride 0"});
  expect_error([] { (void)image().avg_pool2d(2, 0); }, {"avg_pool2d", "stride 0"});
  expect_error([] { (void)image().max_pool2d(0); }, {"max_pool2d", "kernel 0"});
  expect_error([] { (void)image().max_pool2d(5); }, {"max_pool2d", "5", "(1, 2, 4, 4)"});
  expect_error([] { (void)image().avg_pool2d(5); }, {"avg_pool2d", "5", "(1, 2, 4, 4)"});
  expect_error([] { (void)image().avg_pool2d(3, 1, 2); }, {"avg_pool2d", "padding 2", "half"});
  expect_error([] { (void)image().max_pool2d(3, 1, 2); }, {"max_pool2d", "padding 2", "half"});
  expect_error([] { (void)image().max_pool2d(2, 1, -1); }, {"max_pool2d", "padding -1"});
  EXPECT_EQ(image().max_pool2d(5, 1, 1).shape(), (Shape{1, 2, 2, 2}));
  expect_error([] { (void)image().conv2d(Tensor::ones({3, 1, 2, 2}), {}, {}, 2); },
               {"conv2d", "2 groups do not divide the 3 output channels"});
  expect_error([] { (void)image().conv2d(Tensor::ones({4, 2, 2, 2}), {}, {}, 0); },
               {"conv2d", "0 groups"});
  expect_error([] { (void)image().conv2d(Tensor::ones({4, 2, 2, 2}), Tensor::ones(3)); },
               {"conv2d", "bias", "(3,)", "(4,)"});
  expect_error([] { (void)image().conv2d(Tensor::ones({4, 2, 2, 2}), {}, {1, 0, INT64_MAX}); },
               {"conv2d", "dilation", "2^31"});
  expect_error([] { (void)image().conv2d(Tensor::ones({4, 2, 2, 2}), {}, {1, INT64_MAX, 1}); },
               {"conv2d", "padding", "2^31"});
  expect_error([] { nn::Linear(0, 3); }, {"Linear", "0 features in", "3 out"});
  expect_error([] { nn::Linear(3, -1); }, {"Linear", "3 features in", "-1 out"});
  expect_error([] { nn::Conv2d(4, 4, 3, {}, 0); }, {"Conv2d", "0 groups"});
  expect_error([] { nn::Conv2d(4, 6, 3, {}, 4); }, {"Conv2d", "4 groups do not divide", "6"});
  expect_error(
      [] {
        nn::BatchNorm norm(3);
        (void)norm(image(), true);
      },
      {"BatchNorm", "(1, 2, 4, 4)", "3"});
  nn::BatchNorm norm(2);
  expect_error([&] { (void)norm(Tensor::zeros({0, 2, 4, 4}), true); },
               {"BatchNorm", "(0, 2, 4, 4)", "no elements"});
  EXPECT_EQ(norm(Tensor::zeros({0, 2, 4, 4}), false).numel(), 0);
  EXPECT_EQ(norm.running_mean.tolist<float>(), std::vector<float>(2, 0));
}

TEST(refusals, reductions_of_nothing) {
  expect_error([] { (void)Tensor::zeros({0, 3}).max(0); }, {"max", "axis 0", "(0, 3)", "empty"});
  expect_error([] { (void)Tensor::zeros({0, 3}).min(); }, {"min", "axis 0", "(0, 3)"});
  expect_error([] { (void)Tensor::zeros({2, 0}).argmin(1); }, {"argmin", "(2, 0)"});
  expect_error([] { (void)Tensor::zeros({2, 0}).argmax(1); }, {"argmax", "(2, 0)"});
  EXPECT_EQ(Tensor::zeros({0, 3}).max(1).shape(), Shape{0});
  EXPECT_EQ(Tensor::zeros({3, 0}).softmax().shape(), (Shape{3, 0}));
  EXPECT_EQ(Tensor::zeros({3, 0}).logsumexp(1).tolist<float>(), (std::vector<float>(3, -INFINITY)));
  EXPECT_FALSE(Tensor::zeros({0}).any().item<bool>());
  EXPECT_TRUE(Tensor::zeros({0}).all().item<bool>());
  expect_error([] { (void)image().layernorm(-1); }, {"layernorm", "-1", "(1, 2, 4, 4)"});
  expect_error([] { (void)image().layernorm(5); }, {"layernorm", "5"});
}

TEST(refusals, parts_of_an_empty_axis_are_empty) {
  const Tensor none = Tensor::zeros({2, 0});
  const std::vector<Tensor> three = none.chunk(3, 1), one = none.split(4, 1);
  ASSERT_EQ(three.size(), 3u);
  ASSERT_EQ(one.size(), 1u);
  for (const Tensor& part : {three[0], three[2], one[0]}) EXPECT_EQ(part.shape(), (Shape{2, 0}));
}

TEST(refusals, optimisers) {
  Tensor w = Tensor::ones({2, 3}).clone().requires_grad();
  for (const double rate : {-0.1, std::nan(""), double{INFINITY}}) {
    expect_error([&] { nn::SGD({w}, rate); }, {"learning rate", fmt::format("{}", rate)});
    nn::SGD sgd({w}, 0.1);
    expect_error([&] { sgd.set_learning_rate(rate); }, {"learning rate"});
    EXPECT_EQ(sgd.learning_rate(), 0.1);
  }
  for (const double beta : {-0.1, 1.0, std::nan("")}) {
    expect_error([&] { nn::Adam({w}, 1e-3, beta); }, {"beta1", fmt::format("{}", beta)});
    expect_error([&] { nn::AdamW({w}, 1e-3, 0.9, beta); }, {"beta2", "[0, 1)"});
  }
  expect_error([&] { nn::Adam({w}, 1e-3, 0.9, 0.999, -1); }, {"eps", "-1"});
  expect_error([&] { nn::Adam({w}, 1e-3, 0.9, 0.999, 1e-8, -1); }, {"weight decay", "-1"});
  expect_error([&] { nn::SGD({w}, 0.1, -0.5); }, {"momentum", "-0.5"});
  expect_error([&] { nn::SGD({w}, 0.1, 0, -0.5); }, {"weight decay", "-0.5"});
  expect_error([&] { nn::SGD({w}, 0.1, 0, 0, true); }, {"Nesterov", "momentum"});
  expect_error([&] { nn::SGD({w, Tensor::ones(2), w}, 0.1); },
               {"parameters 0 and 2", "(2, 3)", "one tensor"});
  expect_error([&] { nn::SGD({w, w.reshape(6)}, 0.1); }, {"parameters 0 and 1"});
  expect_error([&] { nn::SGD({w, Tensor::arange(3)}, 0.1); }, {"parameter 1", "(3,)", "int32"});
  nn::SGD changed({w}, 0.1);
  changed.set_learning_rate(0.25);
  EXPECT_EQ(changed.learning_rate(), 0.25);
  nn::SGD zero({w}, 0, 0.0);  // a rate of 0 is a legal schedule
  w.sum().backward();
  zero.step();
  EXPECT_EQ(w.tolist<float>(), std::vector<float>(6, 1));
}

TEST(refusals, schedules) {
  expect_error([] { (void)nn::step_schedule(5, 0, 1, .5); }, {"step_schedule", "every 0"});
  expect_error([] { (void)nn::cosine_schedule(-1, 10, 1); }, {"cosine_schedule", "step -1"});
  EXPECT_EQ(nn::step_schedule(5, 2, 1, .5), .25);
}

TEST(refusals, name_the_method_that_was_called) {
  const Tensor a = Tensor::ones({2, 3}), b = Tensor::ones({4});
  expect_error([&] { (void)a.mse_loss(b); }, {"mse_loss of (2, 3), (4,)"});
  expect_error([&] { (void)a.binary_crossentropy_logits(b); },
               {"binary_crossentropy_logits of (2, 3), (4,)"});
  expect_error([&] { (void)a.linear(Tensor::ones({5, 4})); }, {"linear of (2, 3), (5, 4)"});
  expect_error([&] { (void)a.linear(Tensor::ones({5, 3}), b); },
               {"linear of (2, 3), (5, 3), (4,)"});
  expect_error([&] { (void)a.scaled_dot_product_attention(Tensor::ones({2, 4}), a); },
               {"scaled_dot_product_attention of (2, 3), (2, 4), (2, 3)"});
  expect_error([&] { (void)(a - b); }, {"-: shapes (2, 3) and (4,)", "axis -1"});
  expect_error([&] { (void)(a < b); }, {"<: shapes (2, 3) and (4,)"});
  expect_error([&] { (void)a.maximum(b); }, {"maximum: shapes (2, 3) and (4,)"});
  expect_error([&] { (void)a.lerp(b, 0.5); }, {"lerp of (2, 3), (4,)"});
  expect_error([&] { (void)Tensor::where(b != 0, a, 0.0); }, {"where: shapes (4,) and (2, 3)"});
  expect_error([&] { (void)a.masked_fill(b != 0, 0.0); }, {"masked_fill of (2, 3), (4,)"});
  expect_error([&] { (void)Tensor::where(a, a, 0.0); }, {"where: the condition", "float32"});
  expect_error([&] { (void)a.masked_fill(a, 0.0); }, {"masked_fill: the condition", "float32"});
  EXPECT_EQ(Tensor::where(Tensor::from<int>({2, 0}), 1, 3).tolist<int>(), (std::vector<int>{1, 3}));
  expect_error([&] { (void)a.softmax(2); }, {"softmax: axis 2", "(2, 3)"});
  expect_error([&] { (void)a.log_softmax(2); }, {"log_softmax: axis 2"});
  expect_error([&] { (void)a.logsumexp(2); }, {"logsumexp: axis 2"});
  expect_error([&] { (void)a.std(2); }, {"std: axis 2"});
  expect_error([&] { (void)a.min(2); }, {"min: axis 2"});
  expect_error([&] { (void)a.all(2); }, {"all: axis 2"});
  expect_error([&] { (void)a.argmin(2); }, {"argmin: axis 2"});
  expect_error([&] { (void)a.mean(2); }, {"mean: axis 2"});
  expect_error([&] { (void)a.norm(2); }, {"norm: axis 2"});
  expect_error([&] { (void)a.cross_entropy(Tensor::arange(3)); }, {"cross_entropy: needs"});
  const Tensor flag = a != 0, i = Tensor::arange(3);
  expect_error([&] { (void)(flag - flag); }, {"-: bool has no difference"});
  expect_error([&] { (void)a.bitwise_and(a); }, {"bitwise_and of (2, 3), (2, 3)", "float32"});
  expect_error([&] { (void)a.bitwise_or(a); }, {"bitwise_or of (2, 3), (2, 3)"});
  expect_error([&] { (void)a.bitwise_xor(a); }, {"bitwise_xor of (2, 3), (2, 3)"});
  expect_error([&] { (void)a.bitwise_not(); }, {"bitwise_not of (2, 3)"});
  expect_error([&] { (void)a.lshift(1); }, {"lshift of (2, 3), ()"});
  expect_error([&] { (void)flag.rshift(flag); }, {"rshift of (2, 3), (2, 3)", "bool"});
  expect_error([&] { (void)flag.idiv(flag); }, {"idiv of (2, 3), (2, 3)", "bool"});
  expect_error([&] { (void)flag.mod(flag); }, {"mod of (2, 3), (2, 3)", "bool"});
  expect_error([&] { (void)flag.neg(); }, {"neg of (2, 3)", "bool"});
  expect_error([&] { (void)a.bitcast(DType::Float64); }, {"bitcast of (2, 3)", "12 bytes"});
  expect_error([&] { (void)a.clip(b, 1); }, {"clip of (2, 3), (4,), ()"});
  expect_error([&] { (void)a.hardtanh(2, 1); }, {"hardtanh of (2, 3)", "2", "1"});
  expect_error([&] { (void)a.dot(Tensor::ones({4, 5})); }, {"dot of (2, 3), (4, 5)"});
  expect_error([&] { (void)b.T(); }, {"T of (4,)"});
  expect_error([&] { (void)a.view({4, 2}); }, {"view of (2, 3)", "(4, 2)"});
  expect_error([&] { (void)a.repeat({1, -1}); }, {"repeat", "-1", "axis 1", "(2, 3)"});
  expect_error([&] { (void)a.pad({{0, 0}, {-1, 0}}); }, {"pad: -1 and 0", "axis 1", "(2, 3)"});
  expect_error([&] { (void)a.split(0); }, {"split of (2, 3)", "0"});
  for (const Shape& shape : {Shape{2, -1}, Shape{int64_t{1} << 40, int64_t{1} << 40}}) {
    const std::string why = "has a negative size or is too large";
    expect_error([&] { (void)Tensor::zeros(shape); }, {"zeros: shape", why});
    expect_error([&] { (void)Tensor::ones(shape); }, {"ones: shape", why});
    expect_error([&] { (void)Tensor::full(shape, 2); }, {"full: shape", why});
    expect_error([&] { (void)Tensor::rand(shape); }, {"rand: shape", why});
    expect_error([&] { (void)Tensor::randn(shape); }, {"randn: shape", why});
    expect_error([&] { (void)Tensor::randint(shape, 0, 2); }, {"randint: shape", why});
    expect_error([&] { (void)Tensor::uniform(shape, 0, 2); }, {"uniform: shape", why});
  }
  expect_error([&] { (void)a.permute({0, 0}); }, {"permute of (2, 3)", "(0, 0)"});
  expect_error([&] { (void)Tensor::ones({2, 2, 3}).matmul(Tensor::ones({3, 3, 3})); },
               {"matmul: shapes (2, 2, 3) and (3, 3, 3)", "axis -3", "2 and 3"});
  expect_error([&] { (void)a[{i, Tensor::arange(2)}]; },
               {"index: positions of shapes (3,), (2,) do not broadcast"});
  for (const bool add : {false, true})
    expect_error(
        [&] {
          const Tensor wide = Tensor::zeros({2, 4}, DType::Int32), from = Tensor::zeros({2, 4});
          (void)(add ? a.scatter_add(0, wide, from) : a.scatter(0, wide, from));
        },
        {add ? "scatter_add: index (2, 4)" : "scatter: index (2, 4)", "(2, 3)", "axis 1"});
  Tensor x = Tensor::zeros({2, 3}).clone();
  expect_error([&] { x.assign(b); }, {"assign: shape (4,)", "(2, 3)"});
  expect_error([&] { x.setitem({0}, b); }, {"setitem of (2, 3), (4,)"});
  expect_error([&] { x.setitem({5}, b); }, {"setitem: position 5", "(2, 3)"});
  expect_error([&] { x.setitem({i}, b); }, {"setitem of (2, 3), (4,)"});
}

// --- positions out of range: KOINE_INDEX decides, for every method (amendment C28) -------------

namespace {

// The ways to use positions, on an axis of size 3.
struct Positions {
  std::string name;
  std::function<Tensor(const Tensor& index)> use;
  std::vector<float> clamped, filled;  // results for positions {-4, 1, 3}
};
std::vector<Positions> uses() {
  const Tensor x = Tensor::from<float>({1, 2, 3}), src = Tensor::from<float>({10, 20, 30});
  return {
      {"index", [=](const Tensor& i) { return x[i]; }, {1, 2, 3}, {0, 2, 0}},
      {"index_select", [=](const Tensor& i) { return x.index_select(0, i); }, {1, 2, 3}, {0, 2, 0}},
      {"Embedding",
       [=](const Tensor& i) {
         nn::Embedding rows(3, 1);
         rows.weight = x.reshape({3, 1});
         return rows(i).flatten();
       },
       {1, 2, 3},
       {0, 2, 0}},
      {"gather", [=](const Tensor& i) { return x.gather(-1, i); }, {1, 2, 3}, {0, 2, 0}},
      {"scatter", [=](const Tensor& i) { return x.scatter(-1, i, src); }, {10, 20, 30}, {1, 20, 3}},
      {"scatter_add",
       [=](const Tensor& i) { return x.scatter_add(0, i, src); },
       {11, 22, 33},
       {1, 22, 3}},
      {"setitem",
       [=](const Tensor& i) {
         Tensor y = x.clone();
         y.setitem({i}, src);
         return y;
       },
       {10, 20, 30},
       {1, 20, 3}},
  };
}

}  // namespace

TEST(refusals, spec_amend_28_every_index_method_obeys_the_switch) {
  for (const bool strict : {false, true})
    for (const Positions& p : uses()) {
      Options o = options();
      o.strict = strict;
      const Tensor outside = Tensor::from<int>({-4, 1, 3});
      {
        const OptionScope scope(o);
        expect_error([&] { (void)p.use(outside).tolist<float>(); },
                     {p.name + ": position -4", "element 0", "(3,)", "use -3 to 2"});
        expect_error([&] { (void)p.use(Tensor::from<uint64_t>({0, 1, 1ull << 63})).realize(); },
                     {p.name + ": position", "element 2"});
        expect_error([&] { (void)p.use(Tensor::from<float>({0, 1, 2})); },
                     {p.name, "integers", "float32"});
        // Negative positions count from the end.
        EXPECT_EQ(p.use(Tensor::from<int>({-3, -2, -1})).tolist<float>(),
                  p.use(Tensor::from<int>({0, 1, 2})).tolist<float>())
            << p.name;
      }
      o.index = IndexMode::Clamp;
      {
        const OptionScope scope(o);
        EXPECT_EQ(p.use(outside).tolist<float>(), p.clamped) << p.name;
        EXPECT_EQ(p.use(Tensor::from<uint64_t>({0, 1, 1ull << 63})).tolist<float>(), p.clamped)
            << p.name;
      }
      o.index = IndexMode::Fill;
      {
        const OptionScope scope(o);
        EXPECT_EQ(p.use(outside).tolist<float>(), p.filled) << p.name;
      }
    }
}

// Classes are no positions: none counts from the end.
TEST(refusals, spec_amend_28_one_hot_obeys_the_switch) {
  for (const int outside : {-1, 3}) {
    const Tensor classes = Tensor::from<int>({outside, 1});
    const int nearest = outside < 0 ? 0 : 2;
    for (const IndexMode mode : {IndexMode::Raise, IndexMode::Clamp, IndexMode::Fill}) {
      Options o = options();
      o.index = mode;
      const OptionScope scope(o);
      if (mode == IndexMode::Raise) {
        expect_error([&] { (void)classes.one_hot(3).realize(); },
                     {fmt::format("one_hot: class {}", outside), "element 0", "use 0 to 2"});
        continue;
      }
      std::vector<int> want{0, 0, 0, 0, 1, 0};
      if (mode == IndexMode::Clamp) want[static_cast<size_t>(nearest)] = 1;
      EXPECT_EQ(classes.one_hot(3).tolist<int>(), want) << outside;
    }
  }
}

TEST(refusals, spec_amend_28_positions_on_an_axis_of_one) {
  const Tensor single = Tensor::zeros({1, 2});
  for (const int at : {1, -2})
    expect_error([&] { (void)single.index_select(0, Tensor::from<int>({0, at})).realize(); },
                 {fmt::format("index_select: position {} (element 1 of shape", at),
                  "out of range for size 1: use -1 to 0"});
  expect_error([&] { (void)Tensor::from<uint8_t>({0, 1}).one_hot(1).realize(); },
               {"one_hot: class 1 (element 1", "out of range for size 1: use 0 to 0"});
}

// Of an axis without elements: an Error, or what the switch says, and nothing is read.
TEST(refusals, spec_amend_28_positions_on_an_empty_axis) {
  const Tensor none = Tensor::zeros({0, 2}), first = Tensor::from<int>({0});
  expect_error([&] { (void)none.index_select(0, first).realize(); },
               {"index_select: position 0", "size 0, which has none"});
  expect_error([&] { (void)first.one_hot(0).realize(); }, {"one_hot: class 0", "size 0"});
  for (const IndexMode mode : {IndexMode::Clamp, IndexMode::Fill}) {
    Options o = options();
    o.index = mode;
    const OptionScope scope(o);
    EXPECT_EQ(none.index_select(0, first).tolist<int>(), (std::vector<int>{0, 0}));
    EXPECT_EQ(Tensor::zeros({0}).scatter(0, first, Tensor::ones({1})).numel(), 0);
    EXPECT_EQ(first.one_hot(0).shape(), (Shape{1, 0}));
  }
}

TEST(refusals, scatter_counts_its_axis_from_the_end) {
  const Tensor x = Tensor::zeros({2, 3}), src = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2});
  const Tensor index = Tensor::from<int>({2, 0, 1, 1}).reshape({2, 2});
  EXPECT_EQ(x.scatter(-1, index, src).tolist<float>(), (std::vector<float>{2, 0, 1, 0, 4, 0}));
  EXPECT_EQ(x.scatter(1, index, src).tolist<float>(), (std::vector<float>{2, 0, 1, 0, 4, 0}));
  EXPECT_EQ(x.scatter(-2, index.minimum(1), src).tolist<float>(),
            x.scatter(0, index.minimum(1), src).tolist<float>());
}

TEST(refusals, a_variable_has_a_name_that_every_text_can_carry) {
  for (const char* name : {"", "a b", "2n", "n+1", "n\n", "\u00e9"})
    expect_error([&] { (void)variable(name, 0, 8); }, {"Variable('", "letters, digits and _"});
  expect_error([] { (void)variable("n", 8, 0); }, {"Variable('n', 8, 0)", "min <= max"});
  EXPECT_EQ(variable("_n2", 3, 3).bounds().low, 3);
}

TEST(refusals, results_of_symbolic_shape_say_what_to_do) {
  const UOp n = variable("n", 1, 8), line = leaf({8});
  const UOp part = shrink(line, shape_of({0}), stack(std::vector<UOp>{n}));
  expect_error([&] { (void)realize({part}, {{"n", 3}}); },
               {"realize", "symbolic shape (n,)", "pad()", "(8,)", "reduce"});
  expect_error([&] { (void)realize({add(part, part)}, {{"n", 3}}); }, {"symbolic shape (n,)"});
  expect_error([&] { (void)part.sizes(); }, {"shape (n,)", "symbolic", "must be known"});
  expect_error([&] { (void)Tensor(part).tolist<float>(); }, {"realize", "symbolic shape (n,)"});
  expect_error([&] { (void)Tensor(part).sum().item(); }, {"Variable 'n' has no value", "bind"});
  // As it says: padded to its largest shape, or reduced.
  const UOp padded = pad(part, shape_of({0}), shape_of({8}), constant(DType::Float32, 0));
  EXPECT_EQ(realize({padded}, {{"n", 3}})[0].sizes(), (std::vector<int64_t>{8}));
  EXPECT_EQ(realize({reduce(Op::Add, part, {0})}, {{"n", 3}})[0].sizes(),
            (std::vector<int64_t>{1}));
}

TEST(refusals, temporaries_that_no_machine_holds) {
  const Tensor one = Tensor::full({1}, 1, DType::Int64).clone().realize();
  const Tensor first = (one.expand({int64_t{1} << 59}) * 2).contiguous(),
               second = (first + 1).contiguous();
  for (const char* device : {"CPU", "INTERP"}) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    expect_error([&] { (first * second).sum().realize(); },
                 {"temporary memory", "4611686018427387904 bytes", "int64", "smaller parts"});
    // Symbolic sizes count with their largest value.
    const Size n = Variable("n", 1, int64_t{1} << 31).bind(2),
               m = Variable("m", 1, int64_t{1} << 31).bind(2);
    const Tensor table = (one.reshape({1, 1}).expand({n, m}) * 2).contiguous();
    expect_error([&] { (table.sum(0, true) + table).sum().realize(); },
                 {"temporary memory", "int64", "smaller parts"});
  }
}

// Of a kernel made by hand; edits make none.
TEST(refusals, more_lanes_than_a_vector_has) {
  for (const auto& [type, steps] :
       {std::pair{AxisType::Upcast, 700}, {AxisType::GroupReduce, 257}, {AxisType::Upcast, 256}}) {
    const UOp i = range(0, index_const(steps), type),
              in = param(1, shape_of({700}), DType::Float32);
    const bool folds = type == AxisType::GroupReduce;
    const UOp out = param(0, shape_of({700}), DType::Float32), read = load(index(in, {i})),
              place = index(out, {folds ? index_const(0) : i});
    const UOp stored = folds ? store(place, reduce_ranges(Op::Add, read, std::vector<UOp>{i}))
                             : end(store(place, read), std::vector<UOp>{i});
    const std::vector<Opt> none;
    const auto lowered = [&] {
      (void)lower_kernel(sink(std::vector<UOp>{stored}), generic_target(false), {}, &none);
    };
    if (steps > 256)
      expect_error(lowered, {std::to_string(steps), "at most 256 lanes", "split it"});
    else
      EXPECT_NO_THROW(lowered());
  }
}

}  // namespace koine::test
