// What compositions cost, counted: operations on values, bytes of memory, kernels. What they are
// made of is computed, not loaded; each number is what the mathematics asks for (rows L2 and C38).
#include <algorithm>
#include <cmath>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/nn/optim.hpp"

namespace koine::test {
namespace {

// The counter's definition: each elementwise op and each step of a fold is one operation, a cast
// and what computes or tests a place is none; a difference is two (a product with -1 and a sum)
// unless what is subtracted is the same for a whole row, and so is an equality (`!=`, `not`).
struct Work {
  double operations = 0, bytes = 0;
  int64_t kernels = 0;
};

using Tensors = std::vector<Tensor>;

struct Row {
  const char* name;
  std::function<Tensors()> build;
  Work asked;  // kernels: at most
};

Work work_of(const Tensors& values) {
  reset_counters();
  Tensor::realize(values);
  const Counters c = counters();
  return {c.operations, c.bytes, c.kernels};
}

constexpr double most_above = 1.05;

void expect_about(const char* what, double got, double asked) {
  EXPECT_LE(got, most_above * asked) << what;
  EXPECT_GE(got, asked / most_above) << what << ": less than asked for, which is wrong";
}

void expect_work(const Row& row) {
  SCOPED_TRACE(row.name);
  const Work got = work_of(row.build());
  expect_about("operations", got.operations, row.asked.operations);
  expect_about("bytes", got.bytes, row.asked.bytes);
  EXPECT_LE(got.kernels, row.asked.kernels);
}

void expect_table(const std::vector<Row>& table) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const Row& row : table) expect_work(row);
}

// Numbers in memory.
Tensor data(const Shape& shape) { return Tensor::randn(shape).realize(); }
Tensor parameter(const Shape& shape) { return data(shape).requires_grad(); }

// --- rows ----------------------------------------------------------------------------------------

constexpr int64_t rows = 48, inner = 40, columns = 32;
constexpr double elements = rows * columns, array = 4 * elements;  // bytes of float32
constexpr double product_operations = 2 * elements * inner;
constexpr double product_inputs = 4.0 * (rows * inner + inner * columns);

Tensor product() { return data({rows, inner}).matmul(data({inner, columns})); }
// Two operations an element, of two arrays.
Tensor chain() {
  const Tensor x = data({rows, columns}), y = data({rows, columns});
  return x * y + x;
}
// A sine an element.
Tensor dear() { return data({rows, columns}).sin(); }

// A product, and in its kernel `each` operations for each element of it.
Work in_one(double each, double more_bytes = 0) {
  return {product_operations + each * elements, product_inputs + more_bytes + array, 1};
}
// A product, and one pass over it: `each` operations an element, and what it writes.
Work one_pass(double each, double written) {
  return {product_operations + each * elements, product_inputs + array + array + written, 2};
}

TEST(work, spec_L2_elementwise_after_a_product) {
  auto x = product;
  expect_table({
      {"exp", [x] { return Tensors{x().exp()}; }, in_one(1)},
      {"bias, relu", [x] { return Tensors{(x() + data({columns})).relu()}; },
       in_one(2, 4 * columns)},
      {"sigmoid", [x] { return Tensors{x().sigmoid()}; }, in_one(8)},
      {"silu", [x] { return Tensors{x().silu()}; }, in_one(16)},
      {"tanh", [x] { return Tensors{x().tanh()}; }, in_one(28)},
      {"gelu", [x] { return Tensors{x().gelu()}; }, in_one(33)},
      {"gelu by erf", [x] { return Tensors{x().gelu("none")}; }, in_one(72)},
      {"erf", [x] { return Tensors{x().erf()}; }, in_one(50)},
      {"times an array", [x] { return Tensors{x() * data({rows, columns})}; }, in_one(1, array)},
      {"flip", [x] { return Tensors{x().flip({0, 1})}; }, in_one(0)},
      {"transpose", [x] { return Tensors{x().transpose().exp()}; }, in_one(1)},
      {"tril", [x] { return Tensors{x().tril()}; }, in_one(1)},
  });
}

TEST(work, spec_L2_reduces_over_the_rows_of_a_product) {
  auto x = product;
  const double column = 4 * rows;
  expect_table({
      {"sum", [x] { return Tensors{x().sum(1)}; }, one_pass(1, column)},
      {"max", [x] { return Tensors{x().max(1)}; }, one_pass(1, column)},
      {"norm", [x] { return Tensors{x().norm(1)}; }, one_pass(2, column)},
      {"var", [x] { return Tensors{x().var(1)}; }, one_pass(4, column)},
      {"std", [x] { return Tensors{x().std(1)}; }, one_pass(4, column)},
      {"logsumexp", [x] { return Tensors{x().logsumexp(1)}; }, one_pass(4, column)},
      {"argmax", [x] { return Tensors{x().argmax(1)}; }, one_pass(7, column)},
      {"softmax", [x] { return Tensors{x().softmax(1)}; }, one_pass(5, array)},
      {"log_softmax", [x] { return Tensors{x().log_softmax(1)}; }, one_pass(5, array)},
      {"layernorm", [x] { return Tensors{x().layernorm()}; }, one_pass(5, array)},
      {"rmsnorm",
       [x] {
         const Tensor h = x();
         return Tensors{h * (h.square().mean(1, true) + 1e-5).rsqrt()};
       },
       one_pass(3, array)},
      {"c - max",
       [x] {
         const Tensor h = x();
         return Tensors{h - h.max(1, true)};
       },
       one_pass(2, array)},
      {"-max + c",
       [x] {
         const Tensor h = x();
         return Tensors{(-h.max(1, true)) + h};
       },
       one_pass(2, array)},
      {"c == max",
       [x] {
         const Tensor h = x();
         return Tensors{h == h.max(1, true)};
       },
       one_pass(3, elements)},
      {"between min and max",
       [x] {
         const Tensor h = x(), low = h.min(1, true);
         return Tensors{(h - low) / (h.max(1, true) - low)};
       },
       one_pass(5, array)},
      {"sum of all", [x] { return Tensors{x().sum()}; }, one_pass(1, 4)},
      {"sum over axis 0", [x] { return Tensors{x().sum(0)}; }, one_pass(1, 4 * columns)},
  });
}

TEST(work, spec_L2_reduces_over_columns_of_a_product) {
  auto x = product;
  expect_table({
      {"c - max over axis 0",
       [x] {
         const Tensor h = x();
         return Tensors{h - h.max(0, true)};
       },
       {product_operations + 2 * elements, product_inputs + array + 2 * array, 2}},
      {"softmax over axis 0",
       [x] { return Tensors{x().softmax(0)}; },
       // product; maximum and exponentials; their sum and quotient
       {product_operations + 5 * elements, product_inputs + array + 2 * array + 2 * array, 3}},
  });
}

// A value that needs folds of its columns first is one kernel with these, which goes along columns
// twice: x is read once.
TEST(work, spec_W11_columns) {
  constexpr int64_t images = 4, channels = 12, size = 8;
  constexpr double row = 4 * columns, e = images * channels * size * size;
  auto x = [] { return data({rows, columns}); };
  auto image = [] { return data({images, channels, size, size}); };
  const std::vector<int64_t> of_channel{0, 2, 3};
  auto normalised = [](const Tensor& c, const std::vector<int64_t>& axes) {
    const Tensor centred = c - c.mean(axes, true);
    return centred * (centred.square().mean(axes, true) + 1e-5).rsqrt();
  };
  auto gradients = [=](const Tensor& z, const std::vector<int64_t>& axes) {
    Shape of_one = z.shape();
    for (const int64_t axis : axes) of_one[static_cast<size_t>(axis)] = 1;
    const Tensor w = parameter(of_one), b = parameter(of_one);
    return ((normalised(z, axes) * w + b) * data(z.shape())).sum().gradient({z, w, b});
  };
  expect_table({
      {"c - max",
       [=] {
         const Tensor c = x();
         return Tensors{c - c.max(0, true)};
       },
       {2 * elements, 2 * array, 1}},
      {"softmax", [=] { return Tensors{x().softmax(0)}; }, {5 * elements, 4 * array, 2}},
      // mean, difference, variance: 2, difference again, factor
      {"batch norm", [=] { return Tensors{normalised(x(), {0})}; }, {6 * elements, 2 * array, 1}},
      {"batch norm of images",
       [=] { return Tensors{normalised(image(), of_channel)}; },
       {6 * e, 8 * e, 1}},
      // 8 arrays in 4 kernels without this
      {"gradients of batch norm",
       [=] { return gradients(parameter({rows, columns}), {0}); },
       {19 * elements, 5 * array + 7 * row, 2}},
      {"gradients of batch norm of images",
       [=] { return gradients(parameter({images, channels, size, size}), of_channel); },
       {21 * e, 20 * e, 2}},
      {"an array and the maxima of its columns, of the same input",
       [=] {
         const Tensor c = x();
         return Tensors{c * 2, c.max(0)};
       },
       {2 * elements, 2 * array + row, 1}},
      {"an array and the maxima of its rows, of the same input",
       [=] {
         const Tensor c = x();
         return Tensors{c * 2, c.max(1)};
       },
       {2 * elements, 2 * array + 4 * rows, 1}},
      // A column is folded where it is stored only if it lies in a cache: else it is read again.
      {"long columns",
       [] {
         const Tensor c = data({1 << 14, 64});
         return Tensors{c - c.max(0, true)};
       },
       {2.0 * (1 << 20), 3 * 4.0 * (1 << 20), 2}},
  });
}

// What is folded over rows of other elementwise values: these are computed once, for a row at a
// time, which LOCAL memory holds.
TEST(work, spec_L2_rows_of_what_is_dear) {
  auto x = dear;
  const double in = array, column = 4 * rows;
  auto fused = [&](double each, double written) {
    return Work{(1 + each) * elements, in + written, 1};
  };
  expect_table({
      {"sum of sines", [x] { return Tensors{x().sum(1)}; }, {2 * elements, in + column, 1}},
      {"softmax of sines", [x] { return Tensors{x().softmax(1)}; }, fused(5, array)},
      {"log_softmax of sines", [x] { return Tensors{x().log_softmax(1)}; }, fused(5, array)},
      {"layernorm of sines", [x] { return Tensors{x().layernorm()}; }, fused(5, array)},
      {"var of sines", [x] { return Tensors{x().var(1)}; }, fused(4, column)},
      {"argmax of sines", [x] { return Tensors{x().argmax(1)}; }, fused(7, column)},
      {"sines - max",
       [x] {
         const Tensor h = x();
         return Tensors{h - h.max(1, true)};
       },
       fused(2, array)},
      {"sines + sines turned",
       [x] {
         const Tensor h = x();
         return Tensors{h + h.reshape({columns, rows}).transpose()};
       },
       {2 * elements, in + array + array + array, 2}},
  });
}

// The same of rows as long as the classes of a language model: what is computed once lies in a
// cache of the core that computes it.
TEST(work, spec_L2_long_rows) {
  constexpr int64_t few = 16, tokens = 50257, wide = 30000;
  constexpr double logits = few * tokens, features = few * wide;
  auto x = [] { return data({few, tokens}); };
  auto of = [](int64_t size, auto&& f) {
    return [=] {
      const Tensor z = parameter({few, size});
      return (f(z) * data({few, size})).sum().gradient({z});
    };
  };
  expect_table({
      {"softmax", [x] { return Tensors{x().softmax(1)}; }, {5 * logits, 8 * logits, 1}},
      {"log_softmax", [x] { return Tensors{x().log_softmax(1)}; }, {5 * logits, 8 * logits, 1}},
      {"layernorm", [x] { return Tensors{x().layernorm()}; }, {5 * logits, 8 * logits, 1}},
      {"gradient of softmax",
       of(wide, [](const Tensor& z) { return z.softmax(1); }),
       {9 * features, 12 * features, 1}},
      {"gradient of layernorm",
       of(wide, [](const Tensor& z) { return z.layernorm(); }),
       {12 * features, 12 * features, 1}},
      // Eight rows are enough for all threads, whatever their length. No LOCAL memory has these, so
      // exponentials are computed for the sum and for the quotient.
      {"softmax of very long rows",
       [] { return Tensors{data({8, 1 << 18}).softmax(1)}; },
       {7.0 * (1 << 21), 8.0 * (1 << 21), 1}},
  });
}

// The same of what costs as little as a load.
TEST(work, spec_L2_rows_of_what_is_cheap) {
  auto x = chain;
  const double in = 2 * array, column = 4 * rows;
  auto fused = [&](double each, double written) {
    return Work{(2 + each) * elements, in + written, 1};
  };
  expect_table({
      {"softmax of memory",
       [] { return Tensors{data({rows, columns}).softmax(1)}; },
       {5 * elements, 2 * array, 1}},
      {"log_softmax of memory",
       [] { return Tensors{data({rows, columns}).log_softmax(1)}; },
       {5 * elements, 2 * array, 1}},
      {"layernorm of memory",
       [] { return Tensors{data({rows, columns}).layernorm()}; },
       {5 * elements, 2 * array, 1}},
      {"argmax of memory",
       [] { return Tensors{data({rows, columns}).argmax(1)}; },
       {7 * elements, array + column, 1}},
      {"sum of a chain", [x] { return Tensors{x().sum(1)}; }, fused(1, column)},
      {"softmax of a chain", [x] { return Tensors{x().softmax(1)}; }, fused(5, array)},
      {"log_softmax of a chain", [x] { return Tensors{x().log_softmax(1)}; }, fused(5, array)},
      {"layernorm of a chain", [x] { return Tensors{x().layernorm()}; }, fused(5, array)},
      {"var of a chain", [x] { return Tensors{x().var(1)}; }, fused(4, column)},
      {"argmax of a chain", [x] { return Tensors{x().argmax(1)}; }, fused(7, column)},
      {"chain - max",
       [x] {
         const Tensor h = x();
         return Tensors{h - h.max(1, true)};
       },
       fused(2, array)},
  });
}

// A product with few results is a kernel before what is folded over these, however long it is.
TEST(work, spec_L2_rows_of_a_vector_of_products) {
  constexpr int64_t long_axis = 512, classes = 10;
  auto x = [] { return data({long_axis}).matmul(data({long_axis, classes})); };
  constexpr double product_work = 2 * long_axis * classes;
  constexpr double inputs = 4 * (long_axis + long_axis * classes), vector = 4 * classes;
  auto one_pass = [&](double each, double written) {
    return Work{product_work + each * classes, inputs + vector + vector + written, 2};
  };
  expect_table({
      {"softmax", [x] { return Tensors{x().softmax(0)}; }, one_pass(5, vector)},
      {"log_softmax", [x] { return Tensors{x().log_softmax(0)}; }, one_pass(5, vector)},
      {"argmax", [x] { return Tensors{x().argmax(0)}; }, one_pass(7, 4)},
      {"c - max",
       [x] {
         const Tensor h = x();
         return Tensors{h - h.max(0, true)};
       },
       one_pass(2, vector)},
      {"sum of tanh", [x] { return Tensors{x().tanh().sum(0)}; }, one_pass(29, 4)},
  });
}

// Each in a kernel of its own, however many there are.
TEST(work, spec_C38_long_chains_of_softmax_are_linear) {
  auto operations = [](int count) {
    Tensor z = data({16, 16});
    const Tensor x = data({16, 16});
    for (int i = 0; i < count; ++i) z = z.exp().softmax(1) + x;
    double total = 0;
    for (const auto& [own, bytes] : counted_work({z.uop()})) total += own;
    return total;
  };
  EXPECT_LE(operations(120), 10.1 * operations(12));
}

TEST(work, spec_L2_softmax_and_layernorm_move_their_input_and_their_output_once) {
  const Tensor x(new_buffer(shape_of({32768, 1024}), DType::Float32, Device("CPU")));
  for (const Tensor& value : {x.softmax(1), x.log_softmax(1), x.layernorm()}) {
    const std::vector<Kernel> kernels = schedule({value.uop()});
    ASSERT_EQ(kernels.size(), 1u) << "no temporary";
    EXPECT_EQ(lower_kernel(kernels[0].ast, generic_target(true)).estimate.bytes,
              2.0 * 32768 * 1024 * 4);
  }
}

// --- products of products ------------------------------------------------------------------------

TEST(work, spec_L2_attention) {
  constexpr int64_t batch = 2, length = 24, width = 32;
  constexpr double one = batch * length * width;  // elements of q, k, v
  constexpr double scores = batch * length * length;
  constexpr double project = 2 * one * width;
  // Scores times a factor, softmax, and their product with v; each stage writes what it gives.
  constexpr double attend = 4 * scores * width + 6 * scores;
  constexpr double attend_bytes =
      4 * (2 * one + scores) + 4 * (2 * scores) + 4 * (scores + 2 * one);
  constexpr double project_bytes = 4 * (one + width * width + one);
  auto leaf = [] { return data({batch, length, width}); };
  auto weight = [] { return data({width, width}); };
  auto computed = [=] {
    const Tensor x = leaf();
    return Tensors{x.matmul(weight()), x.matmul(weight()), x.matmul(weight())};
  };
  const Work whole{3 * project + attend, 3 * project_bytes + attend_bytes, 3 + 4};
  auto with = [](Work w, double operations, double bytes) {
    return Work{w.operations + operations, w.bytes + bytes, w.kernels};
  };
  expect_table({
      {"of memory",
       [=] { return Tensors{leaf().scaled_dot_product_attention(leaf(), leaf())}; },
       {attend, attend_bytes, 4}},
      {"of products",
       [=] {
         const Tensors t = computed();
         return Tensors{t[0].scaled_dot_product_attention(t[1], t[2])};
       },
       whole},
      {"causal",
       [=] {
         const Tensors t = computed();
         const Tensor mask = Tensor::ones({length, length}, DType::Bool).tril();
         return Tensors{t[0].scaled_dot_product_attention(t[1], t[2], mask)};
       },
       with(whole, scores, 0)},
      {"mask of floats",
       [=] {
         const Tensors t = computed();
         return Tensors{t[0].scaled_dot_product_attention(t[1], t[2], data({length, length}))};
       },
       with(whole, scores, 4 * length * length)},
      {"mask of bools",
       [=] {
         const Tensors t = computed();
         const Tensor mask = (data({length, length}) < 0.5).realize();
         return Tensors{t[0].scaled_dot_product_attention(t[1], t[2], mask)};
       },
       with(whole, scores, length * length)},
  });
}

TEST(work, spec_L2_blocks) {
  constexpr int64_t batch = 32, width = 32, wide = 48;
  constexpr double x = batch * width, square = 2 * x * width, weights = width * width;
  auto start = [] { return data({batch, width}); };
  auto weight = [] { return data({width, width}); };
  auto chained = [=](int depth) {
    Tensor h = start();
    for (int i = 0; i < depth; ++i) h = h + h.matmul(weight());
    return h;
  };
  expect_table({
      {"residual of layernorm",
       [=] {
         const Tensor h = start().matmul(weight());
         return Tensors{h + h.layernorm().matmul(weight())};
       },
       {2 * square + 5 * x + x, 4 * (x + weights + x + 2 * x + x + weights + x + x), 3}},
      {"residual stream of 6",
       [=] { return Tensors{chained(6)}; },
       {6 * (square + x), 6 * 4 * (2 * x + weights + x) - 6 * 4 * x, 6}},
      {"its last row",
       [=] { return Tensors{chained(6).shrink({{batch - 1, batch}, {0, width}}).exp()}; },
       {6 * (square + x) / batch + width, 4 * 6 * (2 * width + weights), 6}},
      {"two products added",
       [=] {
         const Tensor h = start();
         return Tensors{h.matmul(weight()) + h.matmul(weight())};
       },
       {2 * square + x, 4 * (5 * x + 2 * weights), 2}},
      {"gated unit",
       [=] {
         const Tensor h = start(), a = data({width, wide}), b = data({width, wide});
         return Tensors{(h.matmul(a).silu() * h.matmul(b)).matmul(data({wide, width}))};
       },
       {3 * 2.0 * batch * width * wide + 17.0 * batch * wide,
        4 * (2 * x + 3.0 * width * wide + 4.0 * batch * wide + x), 3}},
      {"halves of a product",
       [=] {
         const Tensor h = start().matmul(data({width, wide}));
         return Tensors{h.shrink({{0, batch}, {0, wide / 2}}).silu() *
                        h.shrink({{0, batch}, {wide / 2, wide}})};
       },
       {2.0 * batch * width * wide + 17.0 * batch * wide / 2,
        4 * (x + width * wide + 2.0 * batch * wide + batch * wide / 2.0), 2}},
  });
}

// Four parts of a length are more than 64 bits hold.
TEST(work, a_few_rows_of_more_than_memory_holds_are_computed) {
  constexpr int64_t huge = 3'500'000'000'000'000'000, some = 8;
  const Tensor x = data({1, 2}), w = data({some, 16});
  const auto product = [&](int64_t n) {
    const Tensor sums = x.expand({n, 2}).sin().sum({1});
    return sums.shrink({{n - some, n}}).reshape({1, some}).matmul(w);
  };
  EXPECT_EQ(product(huge).tolist<float>(), product(some).tolist<float>());
}

// Of a value in memory only what is read is computed, and what that is computed from likewise.
TEST(work, spec_L2_what_is_left_out_is_not_computed) {
  constexpr int64_t n = 256, width = 64, some = 8;
  constexpr double weights = width * width;
  auto weight = [] { return data({width, width}); };
  auto hidden = [=] { return data({n, width}).matmul(weight()).relu(); };
  auto next = [=](const Tensor& part) { return Tensors{part.matmul(weight())}; };
  constexpr double each = 2 * weights + width, moved = 4 * (2 * width);
  auto layers = [=](double count) {
    return Work{count * (each + 2 * weights), 4 * 2 * weights + count * (2 * moved), 2};
  };
  expect_table({
      {"first rows", [=] { return next(hidden().shrink({{0, some}, {0, width}})); }, layers(some)},
      {"last rows", [=] { return next(hidden().shrink({{n - some, n}, {0, width}})); },
       layers(some)},
      {"rows here and there, between the first and the last of them",
       [=] {
         const Tensor h = hidden();
         return next(h.shrink({{16, 16 + some}, {0, width}}) +
                     h.shrink({{16 + some, 16 + 2 * some}, {0, width}}));
       },
       {2 * some * each + some * (width + 2 * weights),
        4 * 2 * weights + 2 * some * moved + some * 4 * (5 * width), 3}},
      {"nearly all of them",
       [=] { return next(hidden().shrink({{1, n}, {0, width}})); },
       {n * each + (n - 1) * 2 * weights, 4 * 2 * weights + n * 2 * moved, 2}},
      {"a part of a part",
       [=] {
         const Tensor part = hidden().shrink({{64, 128}, {0, width}}).matmul(weight()).relu();
         return next(part.shrink({{some, 2 * some}, {0, width}}));
       },
       {some * (2 * each + 2 * weights), 4 * 3 * weights + some * 3 * moved, 3}},
      {"half of a running sum, which begins before it",
       [] { return Tensors{data({4096}).cumsum(0).shrink({{2048, 4096}}) * Tensor(2.0)}; },
       {2 * 4096 + 2048, 4 * (2 * 4096 + 2 * 2048), 2}},
      {"its last element",
       [] { return Tensors{data({4096}).cumsum(0).shrink({{4095, 4096}}) * Tensor(2.0)}; },
       {4096 + 1, 4 * 4096, 1}},
      {"a row of a product, which nobody else holds",
       [=] { return Tensors{data({n, width}).matmul(weight()).shrink({{3, 4}, {0, width}})}; },
       {2 * weights, 4 * (weights + 2 * width), 1}},
  });
}

// --- joins and parts of what is computed ---------------------------------------------------------

TEST(work, spec_C38_joins_and_parts_of_a_product_compute_it_once) {
  auto x = product;
  const double in = product_inputs;
  constexpr double p = product_operations;
  const Tensor at = Tensor::randint({20}, 0, rows).realize();
  expect_table({
      // One choice an element of what has two parts; products are stored straight into their
      // slices.
      {"cat with itself",
       [x] {
         const Tensor h = x();
         return Tensors{Tensor::cat({h, h}, 0)};
       },
       {p + 2 * elements, in + array + array + 2 * array, 2}},
      {"cat of two products",
       [x] { return Tensors{Tensor::cat({x(), x()}, 1)}; },
       {2 * p, 2 * (in + array), 2}},
      {"stack of two products",
       [x] { return Tensors{Tensor::stack({x(), x()}, 0)}; },
       {2 * p, 2 * (in + array), 2}},
      {"cat with an array",
       [x] { return Tensors{Tensor::cat({x(), data({rows, columns})}, 1)}; },
       {p, in + array + 2 * array, 2}},
      {"roll",
       [x] { return Tensors{x().roll(5, 1)}; },
       {p + elements, in + array + array + array, 2}},
      {"pad",
       [x] { return Tensors{x().pad({{0, rows}, {0, 0}})}; },
       {p + 2 * elements, in + array + array + 2 * array, 2}},
      {"product + its transpose",
       [x] {
         const Tensor h = x();
         return Tensors{h + h.reshape({columns, rows}).transpose()};
       },
       {p + elements, in + array + array + array, 2}},
      {"rotated halves",
       [x] {
         const Tensor h = x();
         const auto half = [&](int64_t from) {
           return h.shrink({{0, rows}, {from, from + columns / 2}});
         };
         return Tensors{h * data({columns}) +
                        Tensor::cat({half(columns / 2).neg(), half(0)}, 1) * data({columns})};
       },
       {p + 4.5 * elements, in + array + array + 8 * columns + array, 2}},
      {"rows by index",
       [=] { return Tensors{x().index_select(0, at)}; },
       // of each index: whether it is negative, its sum with the size, a choice
       {p + 3 * 20 + 20 * columns, in + array + 2 * 20 * 4 + array * 20 / rows * 2 + 20 * 4, 3}},
  });
}

// Of a tensor of indices each use asks first whether all are inside (`indices` of int32).
Work checked(double indices, Work w) {
  return {w.operations + 7 * indices, w.bytes + 4 * indices + 1, w.kernels + 1};
}
// The same where both read the places from memory: what makes them is computed once.
Work checked_in_memory(double indices, Work w) {
  return {w.operations + 4 * indices, w.bytes + 8 * indices + 1, w.kernels + 1};
}

// Positions may name any of the rows that were left, and these are computed.
TEST(work, spec_L2_positions_into_a_slice_compute_the_slice) {
  constexpr int64_t n = 256, width = 64, some = 8;
  const Tensor x = data({n, width}), w = data({width, width}),
               at = Tensor::from<int64_t>({1, 0, 7, -1}).realize();
  const Tensor part = x.matmul(w).relu()[Slice{{}, some}], whole = x.matmul(w).relu().realize();
  constexpr double row = 2 * width * width + width, all = some * row;
  EXPECT_LE(work_of({part.index_select(0, at)}).operations, all + 50);
  EXPECT_LE(work_of({x.matmul(w).relu()[Slice{{}, some}].topk(3, 1).first}).operations, 4 * all);
  const Tensor turned = x.matmul(w).relu().T()[Slice{{}, some}];
  EXPECT_LE(work_of({turned.index_select(0, at)}).operations, n / width * all + 50);
  EXPECT_EQ(part.index_select(0, at).tolist<float>(),
            whole.index_select(0, Tensor::from<int64_t>({1, 0, 7, 7})).tolist<float>());
}

TEST(work, spec_C38_what_is_read_by_index_is_computed_once_before) {
  constexpr int64_t bins = 512, hits = 96;
  auto positions = [] { return Tensor::randint({hits}, 0, bins).realize(); };
  auto histogram = [](const Tensor& at) {
    return Tensor::zeros({bins}).scatter_add(0, at, data({hits}));
  };
  // Each hit: its place (whether it is negative, its sum with the size, a choice; 8 bytes) and a
  // sum. That is added to zeros, for each bin, or for each place that is read.
  constexpr double count = 3 * hits + hits,
                   count_bytes = (4 + 8) * hits + (8 + 4) * hits + 4 * bins;
  expect_table({
      {"histogram", [=] { return Tensors{histogram(positions())}; },
       checked_in_memory(hits, {count + bins, count_bytes + 2 * 4 * bins, 3})},
      {"histogram[at]",
       [=] {
         const Tensor at = positions();
         return Tensors{histogram(at).index_select(0, at)};
       },
       checked_in_memory(hits, {count + hits, count_bytes + (8 + 4 + 4) * hits, 3})},
      {"histogram.roll[at]",
       [=] {
         const Tensor at = positions();
         return Tensors{histogram(at).roll(1, 0).index_select(0, at)};
       },
       // which part of the roll it is in is a matter of its place
       checked_in_memory(hits, {count + hits, count_bytes + (8 + 4 + 4) * hits, 3})},
      {"sum[at]", [=] { return Tensors{data({bins, 8}).sum(1).index_select(0, positions())}; },
       checked(hits, {8.0 * bins + 3 * hits, 4 * (8 * bins + bins) + 4.0 * 3 * hits, 2})},
  });
}

// A step in which particles leave their charge on a grid and take a force from it: linear in both.
TEST(work, spec_C38_particles_in_cells_are_linear) {
  auto step = [](int64_t particles, int64_t cells) {
    const Tensor size(static_cast<double>(cells));
    Tensor x = Tensor::rand({particles}).realize() * size, v = data({particles});
    for (int t = 0; t < 2; ++t) {
      const Tensor left = x.floor().cast(DType::Int32), share = x - x.floor();
      const Tensor right = (left + 1).mod(Tensor(static_cast<int>(cells)));
      const Tensor charge =
          Tensor::zeros({cells}).scatter_add(0, left, 1.0 - share).scatter_add(0, right, share);
      const Tensor field = (charge - charge.mean()).cumsum(0);
      v = v + (field.index_select(0, left) * (1.0 - share) + field.index_select(0, right) * share);
      x = (x + v * 0.1).mod(size);
    }
    double operations = 0;
    for (const auto& [of_kernel, bytes] : counted_work({x.uop(), v.uop()})) operations += of_kernel;
    return operations;
  };
  const double base = step(400, 64);
  EXPECT_LE(base, 60 * (400 + 64) * 2);
  EXPECT_LE(step(4000, 640), 10.1 * base);
  EXPECT_LE(step(4000, 64), 10.1 * base);
}

// Each element is stored by the part that it comes from, however many others there are and however
// long they are.
TEST(work, spec_C38_joins_of_parts_of_any_length_look_at_none_but_their_own) {
  constexpr int64_t wide = 8;
  Tensors parts;
  double numbers = 0;
  for (int64_t k = 0; k < 64; ++k) {
    parts.push_back(data({1 + k * 37 % 20, wide}));
    numbers += static_cast<double>(parts.back().numel().present());
  }
  constexpr double slice = 64 * wide;
  auto slice_of_many = [](int64_t from) {
    Tensors equal;
    for (int64_t k = 0; k < 80; ++k) equal.push_back(data({64, wide}));
    return Tensors{Tensor::cat(equal, 0)[Slice{{from}, {from + 64}}] * 2.0};
  };
  expect_table({
      {"cat", [=] { return Tensors{Tensor::cat(parts, 0)}; }, {0, 8 * numbers, 20}},
      {"what is made of it",
       [=] { return Tensors{Tensor::cat(parts, 0) * 2.0}; },
       {numbers, 16 * numbers, 21}},
      {"one of many parts", [=] { return slice_of_many(64 * 50); }, {slice, 8 * slice, 1}},
      // a load of each and which of the two; the product
      {"a slice of two", [=] { return slice_of_many(32 + 64 * 50); }, {2 * slice, 12 * slice, 1}},
  });
}

// --- gradients -----------------------------------------------------------------------------------

// Each part takes its own slice of the cotangent, however many others there are.
TEST(work, spec_C38_the_gradient_of_joined_parts_is_linear) {
  constexpr int64_t size = 1000;
  for (const int64_t axis : {0, 1}) {
    auto work = [&](int64_t count) {
      Tensors parts;
      const Shape shape = axis == 0 ? Shape{size, 2} : Shape{2, size};
      for (int64_t k = 0; k < count; ++k) parts.push_back(parameter(shape));
      const Tensors gradients = Tensor::cat(parts, axis).square().sum().gradient(parts);
      const Work got = work_of(gradients);
      for (size_t k = 0; k < parts.size(); k += 7)
        EXPECT_EQ((gradients[k] - parts[k] * 2).abs().max().item(), 0) << k;
      return got;
    };
    const Work few = work(32), many = work(128);
    EXPECT_LE(few.operations, 2.0 * 32 * 2 * size);
    EXPECT_LE(many.operations, most_above * 4 * few.operations);
    EXPECT_LE(many.bytes, most_above * 4 * few.bytes);
    EXPECT_LE(many.kernels, 4 * few.kernels);
  }
}

TEST(work, spec_C38_gradients_by_index_are_linear) {
  constexpr int64_t vocabulary = 512, width = 8, count = 64, wide = 16;
  constexpr double table = 4 * vocabulary * width, picked = count * width;  // bytes; elements
  auto embedded = [](const Tensor& w) {
    return w.index_select(0, Tensor::randint({count}, 0, vocabulary).realize());
  };
  // The place of each row, and each element of it added where it was picked.
  constexpr double places = 3 * count;
  expect_table({
      {"embedding",
       [=] {
         const Tensor w = parameter({vocabulary, width});
         return (embedded(w) * data({count, width})).sum().gradient({w});
       },
       checked(count, {places + picked, 4 * count + 4 * picked + table, 1})},
      {"embedding, squared",
       [=] {
         const Tensor w = parameter({vocabulary, width});
         return embedded(w).square().sum().gradient({w});
       },
       // twice the rows that were picked
       checked(count, {places + 2 * picked, 4 * count + 4 * picked + table, 1})},
      {"embedding and a product",
       [=] {
         const Tensor w = parameter({vocabulary, width}), k = data({width, wide});
         return embedded(w).matmul(k).square().sum().gradient({w});
       },
       // The rows times k, doubled; that times k; the sum by place.
       checked(count, {2 * places + 2 * picked * wide * 2 + 1.0 * count * wide + picked,
                       (4 * count + 8 * count) +
                           (8 * count + 4 * picked + 4 * width * wide + 4 * count * wide) +
                           (4 * count * wide + 4 * width * wide + 4 * picked) +
                           (8 * count + 4 * picked + table),
                       4})},
      {"gather",
       [=] {
         const Tensor w = parameter({vocabulary, width});
         const Tensor which = Tensor::randint({count, width}, 0, vocabulary).realize();
         return (w.gather(0, which) * data({count, width})).sum().gradient({w});
       },
       checked(picked, {3 * picked + picked, 4 * picked + 4 * picked + table, 1})},
  });
}

TEST(work, spec_L2_gradients_of_products) {
  constexpr int64_t batch = 32, in = 24, hidden = 40, out = 16;
  constexpr double first = 2.0 * batch * in * hidden, second = 2.0 * batch * hidden * out;
  constexpr double forward = first + second, backward = first + 2 * second;  // no gradient for x
  constexpr double h = batch * hidden, o = batch * out, w1 = in * hidden, w2 = hidden * out;
  constexpr double x = batch * in;
  // h: bias, relu; its sign and a choice, and the sum for the bias.
  constexpr double operations = forward + backward + 5 * h;
  // x to h; h to outputs; the loss; its gradient behind the relu; weights and biases.
  constexpr double bytes = 4 * ((x + w1 + hidden + h) + (h + w2 + o) + (o + w2 + h + h) +
                                (x + h + w1) + (h + hidden) + (h + o + w2) + (o + out));
  auto network = [=](auto&& loss) {
    return [=] {
      const Tensor a = parameter({hidden, in}), b = parameter({hidden});
      const Tensor c = parameter({out, hidden}), d = parameter({out});
      return loss(data({batch, in}).linear(a, b).relu().linear(c, d)).gradient({a, b, c, d});
    };
  };
  expect_table({
      {"network and cross entropy", network([=](const Tensor& z) {
         return z.cross_entropy(Tensor::randint({batch}, 0, out).realize());
       }),
       // bias, maximum, difference, exponential, sum, quotient, choice, factor; sum for the bias
       checked(batch, {operations + 9 * o, bytes + 4 * (o + out + batch + o), 8})},
      {"network and squares",
       network([=](const Tensor& z) { return z.square().mean(); }),
       {operations + 4 * o, bytes + 4 * out, 7}},
  });
}

// Scores, their softmax, its cotangent and that of the scores, and a product for each operand.
TEST(work, spec_L2_gradients_of_attention) {
  constexpr int64_t batch = 2, length = 24, width = 32;
  constexpr double one = batch * length * width, scores = batch * length * length;
  auto gradients = [=](const Tensor& mask) {
    const Tensors t{parameter({batch, length, width}), parameter({batch, length, width}),
                    parameter({batch, length, width})};
    const Tensor y = t[0].scaled_dot_product_attention(t[1], t[2], mask);
    return (y * data({batch, length, width})).sum().gradient(t);
  };
  // a factor, softmax; product, sum, difference, product, factor
  const Work plain{5 * 2 * scores * width + (6 + 5) * scores, 4 * (10 * one + 10 * scores), 7};
  const Work masked{plain.operations + scores, plain.bytes + 4 * length * length, 7};
  expect_table({
      {"of memory", [=] { return gradients(Tensor()); }, plain},
      {"with a mask", [=] { return gradients(data({length, length})); }, masked},
  });
}

TEST(work, spec_L2_gradients_of_rows) {
  constexpr double e = elements;
  auto of = [](auto&& f) {
    return [=] {
      const Tensor z = parameter({rows, columns});
      return f(z).gradient({z});
    };
  };
  auto weighted = [](const Tensor& t) { return (t * data({rows, columns})).sum(); };
  expect_table({
      // s = softmax: 5; g s, its sum, g - that, times s: 4
      {"softmax",
       of([=](const Tensor& z) { return weighted(z.softmax(1)); }),
       {9 * e, 3 * array, 1}},
      {"cross entropy", of([=](const Tensor& z) {
         return z.cross_entropy(Tensor::randint({rows}, 0, columns).realize());
       }),
       // maximum, difference, exponential, sum, quotient, the target's class, factor
       checked(rows, {7 * e, 2 * array + 4 * rows, 1})},
      {"layernorm",
       of([=](const Tensor& z) { return weighted(z.layernorm()); }),
       {12 * e, 3 * array, 1}},
  });
}

TEST(work, spec_L2_convolutions) {
  constexpr int64_t images = 4, in = 8, out = 16, size = 12, inside = size - 2;
  constexpr double x = images * in * size * size, w = out * in * 9;
  constexpr double y = images * out * inside * inside, padded = images * out * size * size;
  constexpr double convolution = 2 * y * in * 9, same = 2 * padded * in * 9;
  auto image = [] { return data({images, in, size, size}); };
  auto kernel = [] { return data({out, in, 3, 3}); };
  auto convolved = [=] { return image().conv2d(kernel()); };
  auto normalised = [](const Tensor& t) {
    const Tensor mean = t.mean({0, 2, 3}, true), centred = t - mean;
    return centred * (centred.square().mean({0, 2, 3}, true) + 1e-5).rsqrt();
  };
  const Tensor::Window around{1, 1, 1};
  expect_table({
      {"conv, bias, relu",
       [=] { return Tensors{image().conv2d(kernel(), data({out})).relu()}; },
       {convolution + 2 * y, 4 * (x + w + out + y), 1}},
      {"padded conv of relu",
       [=] { return Tensors{image().relu().conv2d(kernel(), {}, around)}; },
       // of each window element: whether it lies outside
       {same + 9 * x + x, 4 * (2 * x + x + w + padded), 2}},
      {"conv, relu, max pool",
       [=] { return Tensors{convolved().relu().max_pool2d(2)}; },
       {convolution + 2 * y, 4 * (x + w + y + y + y / 4), 2}},
      {"batch norm after conv",
       [=] { return Tensors{normalised(convolved())}; },
       // mean and variance: sum; difference, square, sum. Then difference, product, in one kernel.
       {convolution + 6 * y, 4 * (x + w + y + 2 * y), 2}},
      {"and relu",
       [=] { return Tensors{normalised(convolved()).relu()}; },
       {convolution + 7 * y, 4 * (x + w + y + 2 * y), 2}},
      {"residual block",
       [=] {
         const Tensor h = image().relu(), k = data({in, in, 3, 3});
         return Tensors{h + h.conv2d(k, {}, around)};
       },
       {2 * x * in * 9 + 9 * x + 2 * x, 4 * (2 * x + x + in * in * 9 + x), 2}},
  });
}

// The gradient of a window goes back to where it was read, each element once.
TEST(work, spec_C38_gradients_of_windows) {
  constexpr int64_t images = 4, in = 8, out = 16, size = 12, inside = size - 2;
  constexpr double x = images * in * size * size, w = out * in * 9;
  constexpr double y = images * out * inside * inside;
  constexpr int64_t wide = 48, along = (wide - 2) / 2;
  constexpr double convolution = 2 * y * in * 9, windows = images * in * along * along * 9;
  auto image = [] { return parameter({images, in, size, size}); };
  auto weight = [] { return parameter({out, in, 3, 3}); };
  expect_table({
      {"weight of a convolution",
       [=] {
         const Tensor k = weight();
         return (image().conv2d(k) * data({images, out, inside, inside})).sum().gradient({k});
       },
       {convolution, 4 * (x + w + y), 1}},
      {"input of a convolution",
       [=] {
         const Tensor t = image();
         return (t.conv2d(weight()) * data({images, out, inside, inside})).sum().gradient({t});
       },
       // For each pixel and each window that may hold it: product, choice, sum. Fewer operations
       // would be a product into all windows, and memory of nine images.
       {3 * 9 * out * x, 4 * (y + w + x), 1}},
      {"average pool",
       [=] {
         const Tensor t = image();
         return (t.avg_pool2d(2) * data({images, in, 6, 6})).sum().gradient({t});
       },
       {x, 4 * (x / 4 + x), 1}},
      {"max pool",
       [=] {
         const Tensor t = image();
         return (t.max_pool2d(2) * data({images, in, 6, 6})).sum().gradient({t});
       },
       // maximum; equality, its sum; the share of each; where it is spread, which differ, choice
       {x + 2 * x + x + x / 4 + 2 * x, 4 * (3 * x + 5 * x / 4), 2}},
      {"max pool 3 by 2",
       [=] {
         const Tensor t = parameter({images, in, wide, wide});
         return (t.max_pool2d(3, 2) * data({images, in, along, along})).sum().gradient({t});
       },
       // The same, but that no memory is made of what is spread: each pixel asks the windows that
       // hold it whether they differ, chooses, and sums.
       {windows + 2 * windows + windows + windows / 9 + 3 * windows,
        4 * (3 * images * in * wide * wide + 2 * 2 * windows / 9 + windows / 9), 2}},
  });
}

// A window of 64 by 64 costs no more than one of 16 by 16: four running sums, of ends and of
// beginnings along each axis, and how these are added.
TEST(work, spec_C38_sums_of_windows_cost_the_same_whatever_the_window) {
  constexpr int64_t size = 256;
  auto image = [] { return data({1, 1, size, size}).requires_grad(); };
  for (const int64_t kernel : {16, 64}) {
    const Work forward = work_of({image().avg_pool2d(kernel, 1)});
    const Tensor x = image();
    const int64_t out = size - kernel + 1;
    const Work back =
        work_of((x.avg_pool2d(kernel, 1) * data({1, 1, out, out})).sum().gradient({x}));
    EXPECT_LE(forward.operations, 15 * size * size) << kernel;
    EXPECT_LE(forward.bytes, 10 * 4 * size * size) << kernel;
    EXPECT_LE(back.operations, 17 * size * size) << kernel;
    EXPECT_LE(back.bytes, 10 * 4 * size * size) << kernel;
  }
}

// --- optimiser steps -----------------------------------------------------------------------------

// Beside a value what is kept of its rows for the backward pass: x is read once, each fold is
// computed once, and all is stored by one kernel.
TEST(work, spec_W11_values_and_folds_of_their_rows) {
  auto x = [] { return data({rows, columns}); };
  const double column = 4 * rows;
  auto one = [](double each, double written) { return Work{each * elements, array + written, 1}; };
  expect_table({
      {"c - max, max",
       [x] {
         const Tensor c = x(), most = c.max(1, true);
         return Tensors{c - most, most};
       },
       one(2, array + column)},
      {"softmax, max",
       [x] {
         const Tensor c = x();
         return Tensors{c.softmax(1), c.max(1)};
       },
       one(5, array + column)},
      {"exp, sum of exp",
       [x] {
         const Tensor e = x().exp();
         return Tensors{e, e.sum(1)};
       },
       one(2, array + column)},
      {"sum of exp, exp",
       [x] {
         const Tensor e = x().exp();
         return Tensors{e.sum(1), e};
       },
       one(2, array + column)},
      {"softmax, log_softmax",
       [x] {
         const Tensor c = x();
         return Tensors{c.softmax(1), c.log_softmax(1)};
       },
       one(6, 2 * array)},
      {"layernorm, mean, rstd",
       [x] {
         const Tensor c = x(), mean = c.mean(1, true), centred = c - mean,
                      rstd = (centred.square().mean(1, true) + 1e-5).rsqrt();
         return Tensors{centred * rstd, mean, rstd};
       },
       one(5, array + 2 * column)},
      {"mean, variance",
       [x] {
         const Tensor c = x();
         return Tensors{c.mean(1), c.var(1)};
       },
       one(4, 2 * column)},
  });
}

TEST(work, spec_W11_optimiser_steps) {
  constexpr int64_t layers = 6, out = 16, in = 24;
  constexpr double numbers = layers * (out * in + out);
  using Make = std::function<std::unique_ptr<nn::Optimizer>(const Tensors&)>;
  struct Step {
    const char* name;
    Make make;
    double operations, arrays;  // for each number of a parameter
    int64_t kernels;
  };
  const std::vector<Step> table{
      // p - rate g: a difference is two
      {"SGD", [](const Tensors& p) { return std::make_unique<nn::SGD>(p, 0.1); }, 3, 3, 2},
      {"SGD with momentum", [](const Tensors& p) { return std::make_unique<nn::SGD>(p, 0.1, 0.9); },
       5, 5, 2},
      // m: 3, v: 4, corrected: 2, root, sum, quotient, rate, difference
      {"Adam", [](const Tensors& p) { return std::make_unique<nn::Adam>(p, 0.1); }, 15, 7, 6},
      {"AdamW", [](const Tensors& p) { return std::make_unique<nn::AdamW>(p, 0.1); }, 17, 7, 6},
  };
  for (const Step& step : table) {
    SCOPED_TRACE(step.name);
    Tensors parameters;
    for (int k = 0; k < layers; ++k) {
      parameters.push_back(parameter({out, in}));
      parameters.push_back(parameter({out}));
    }
    auto with_gradients = [&] {
      for (Tensor& p : parameters) p.set_grad(data(p.shape()));
    };
    const auto optimiser = step.make(parameters);
    with_gradients();
    optimiser->step();
    with_gradients();
    reset_counters();
    optimiser->step();
    const Counters c = counters();
    expect_about("operations", c.operations, step.operations * numbers);
    expect_about("bytes", c.bytes, 4 * step.arrays * numbers);
    EXPECT_LE(c.kernels, step.kernels);
  }
}

}  // namespace
}  // namespace koine::test
