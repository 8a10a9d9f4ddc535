// Sums over rows that another kernel goes over anyway begin there (row W11): gradients of weights
// beside that of what they are multiplied with.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/pipeline.hpp"
#include "random_edits.hpp"

namespace koine::test {
namespace {

using Layer = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;
const std::pair<const char*, Layer> layers[] = {
    {"layernorm",
     [](const Tensor& x, const Tensor& w, const Tensor& b) { return x.layernorm() * w + b; }},
    {"rmsnorm",
     [](const Tensor& x, const Tensor& w, const Tensor& b) {
       return x * (x.square().mean({-1}, true) + 1e-5).rsqrt() * w + b;
     }},
    {"gelu", [](const Tensor& x, const Tensor& w, const Tensor& b) { return (x * w + b).gelu(); }},
    {"softmax",
     [](const Tensor& x, const Tensor& w, const Tensor& b) { return (x * w).softmax(-1) * b; }}};

// The gradients of the input, the weight and the bias of a layer, weighted by other numbers.
std::vector<Tensor> gradients(const Layer& layer, const Tensor& x, uint64_t salt = 0) {
  const Shape features{x.size(-1)};
  const Tensor w = (small(features, salt + 1) + 1.0).cast(x.dtype()).realize(),
               b = small(features, salt + 2).cast(x.dtype()).realize(),
               g = small(x.shape(), salt + 3).cast(x.dtype()).realize();
  return (layer(x, w, b) * g).sum().gradient({x, w, b});
}

std::vector<UOp> values_of(const std::vector<Tensor>& tensors) {
  std::vector<UOp> out;
  for (const Tensor& t : tensors) out.push_back(t.uop());
  return out;
}

// Memory without contents: for what is only scheduled.
Tensor unwritten(const Shape& shape) {
  const std::vector<int64_t> sizes(shape.begin(), shape.end());
  return Tensor(new_buffer(shape_of(sizes), DType::Float32, Device("CPU")));
}

double bytes_of(const std::vector<Kernel>& kernels) {
  double out = 0;
  for (const Kernel& k : kernels) out += lower_kernel(k.ast, generic_target(false)).estimate.bytes;
  return out;
}

// A program whose first output is this value, with sums that begin beside rows however short.
struct Program {
  Callified program;
  std::vector<Kernel> kernels;
};
Program beside_rows(const std::vector<UOp>& values) {
  std::vector<UOp> destinations;
  for (const UOp& v : values)
    destinations.push_back(buffer_from_host(v.shape(), v.dtype(), "CPU", nullptr));
  Program out{callify(values, destinations), {}};
  CompileOptions how = compile_options();
  how.cached_bytes = 0;
  out.kernels = kernels_of(rangeify(out.program.body, how));
  return out;
}

// Where a loop stands along which sums in memory go on; -1: nowhere.
int step_axis(const UOp& ast) {
  const std::vector<UOp> axes = kernel_ranges(ast);
  for (const UOp& u : toposort(ast))
    if (u.is(Op::After) && u.src(0).is(Op::Param) && u.src(1).is(Op::Range))
      return static_cast<int>(std::find(axes.begin(), axes.end(), u.src(1)) - axes.begin());
  return -1;
}

}  // namespace

TEST(column_sums, spec_W11_what_the_gradients_of_a_norm_read_comes_from_memory_once) {
  const OptionScope mode(Options{});
  constexpr double rows = 32768, columns = 1024, array = 4 * rows * columns;
  const Tensor x = unwritten({32768, 1024}), w = unwritten({1024}), b = unwritten({1024}),
               g = unwritten({32768, 1024});
  for (const size_t k : {size_t{0}, size_t{1}}) {
    SCOPED_TRACE(layers[k].first);
    const std::vector<Kernel> kernels =
        schedule(values_of((layers[k].second(x, w, b) * g).sum().gradient({x, w, b})));
    ASSERT_EQ(kernels.size(), 2u);
    // x, g and the gradient of x; two sums of every 16 rows, stored and read; weight and two sums.
    EXPECT_EQ(bytes_of(kernels), 3 * array + 4 * array / 16 + 3 * 4 * columns);
  }
}

TEST(column_sums, spec_W11_what_stays_apart) {
  const OptionScope mode(Options{});
  auto step_axes = [](const Tensor& x, const Layer& layer) {
    const Tensor w = unwritten({x.size(-1)}), b = unwritten({x.size(-1)}), g = unwritten(x.shape());
    int out = 0;
    for (const Kernel& k : schedule(values_of((layer(x, w, b) * g).sum().gradient({x, w, b}))))
      out += step_axis(k.ast) >= 0;
    return out;
  };
  const Layer& norm = layers[0].second;
  EXPECT_EQ(step_axes(unwritten({512, 768}), norm), 1);
  EXPECT_EQ(step_axes(unwritten({4, 128, 768}), norm), 1) << "rows of two axes";
  EXPECT_EQ(step_axes(unwritten({512, 768}), layers[2].second), 1) << "no sums of rows";
  EXPECT_EQ(step_axes(unwritten({512, 768}), layers[3].second), 1) << "sums of two kernels";
  EXPECT_EQ(step_axes(unwritten({64, 768}), norm), 0) << "a cache holds all of it";
  EXPECT_EQ(step_axes(unwritten({509, 768}), norm), 0) << "no part of the rows is whole";
  EXPECT_EQ(step_axes(unwritten({65536, 16}), norm), 0) << "rows too short for lanes";
  EXPECT_EQ(step_axes(unwritten({16, 1 << 14}), norm), 0) << "too few parts for threads";
  EXPECT_EQ(step_axes(unwritten({64, 1 << 17}), norm), 1);
  EXPECT_EQ(step_axes(unwritten({64, 1 << 18}), norm), 0) << "no cache holds the sums of a row";
  const Tensor y = unwritten({512, 768}), w = unwritten({768}), g = unwritten({512, 768});
  const std::vector<Tensor> slopes = ((y.layernorm() * w) * g).sum().gradient({y, w});
  const std::vector<Kernel> step = schedule(values_of({slopes[0], w - slopes[1] * 0.1}));
  EXPECT_EQ(step.size(), 2u) << "what is made of a sum stays in its kernel";
  EXPECT_GE(std::max(step_axis(step.front().ast), step_axis(step.back().ast)), 0);
  const OptionScope strict(strict_options());
  EXPECT_EQ(step_axes(unwritten({512, 768}), norm), 0) << "which sums each column in order";
}

// Behind a product the gradient of the rows lies in memory of its own: the kernel that begins sums
// keeps its reason, and partial sums get memory that nothing else has.
TEST(column_sums, spec_W11_beside_rows_in_memory) {
  const OptionScope mode(Options{});
  const Tensor a = unwritten({512, 64}), v = unwritten({64, 768}), w = unwritten({768}),
               g = unwritten({512, 768});
  const std::vector<Tensor> slopes = ((a.matmul(v).layernorm() * w) * g).sum().gradient({a, v, w});
  std::map<int64_t, UOp> memory;
  int begun = 0;
  for (const Kernel& k : schedule(values_of(slopes))) {
    for (const UOp& b : k.buffers)
      if (b.is(Op::Buffer)) {
        EXPECT_EQ(memory.emplace(b.as<BufferArg>().slot, b).first->second, b);
      }
    if (step_axis(k.ast) < 0) continue;
    ++begun;
    EXPECT_NE(k.reason, "output");
  }
  EXPECT_EQ(begun, 1);
}

// What an optimiser makes of a gradient stays in the kernel of its sum, which waits for the rows.
TEST(column_sums, spec_W11_a_step_of_training) {
  const OptionScope mode(Options{});
  const Tensor x = small({2, 512, 300}).realize(), y = small({2, 512, 300}, 1).realize();
  std::vector<std::vector<double>> after;
  for (const bool strict : {false, true}) {
    const OptionScope how(strict ? strict_options() : Options{});
    nn::LayerNorm first(300), second(300);
    nn::Adam adam({first.weight, first.bias, second.weight, second.bias}, 0.1);
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = (second(first(x).gelu()) - y).square().sum();
      loss.backward();
      adam.step();
    }
    after.push_back({});
    for (const Tensor& t : {first.weight, first.bias, second.weight, second.bias})
      for (const double v : t.tolist<double>()) after.back().push_back(v);
  }
  for (size_t i = 0; i < after[0].size(); ++i) ASSERT_NEAR(after[0][i], after[1][i], 1e-3) << i;
}

// Sums that begin beside rows are those of float64 in strict mode, which begins none, within what
// default mode promises.
TEST(column_sums, spec_W11_values_are_those_of_sums_apart) {
  for (int64_t turn = 0; turn < test_cases(6); ++turn) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(turn);
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", seed));
    std::mt19937_64 random(seed);
    const auto& [name, layer] = layers[random() % std::size(layers)];
    const int64_t rows = 8 * static_cast<int64_t>(32 + random() % 80),
                  columns = 128 * 1024 / rows + 64 + static_cast<int64_t>(random() % 200);
    const Shape shape = random() % 2 == 0 ? Shape{rows, columns} : Shape{2, rows, columns};
    const DType dtype = random() % 3 == 0 ? DType::Float16 : DType::Float32;
    const Tensor x = small(shape, seed).cast(dtype).realize();
    SCOPED_TRACE(fmt::format("{} of {} {}", name, shape_text(x.uop().shape()), dtype_name(dtype)));
    std::vector<std::vector<double>> got, expected;
    {
      const OptionScope mode(Options{});
      for (const Tensor& t : gradients(layer, x, seed)) got.push_back(t.tolist<double>());
    }
    {
      const OptionScope mode(strict_options());
      auto exact = [&layer](const Tensor& y, const Tensor& w, const Tensor& b) {
        return layer(y.cast(DType::Float64), w.cast(DType::Float64), b.cast(DType::Float64));
      };
      for (const Tensor& t : gradients(exact, x, seed)) expected.push_back(t.tolist<double>());
    }
    const double unit = dtype == DType::Float16 ? 0x1p-11 : 0x1p-24;
    for (size_t k = 0; k < got.size(); ++k) {
      double largest = 0;
      for (const double v : expected[k]) largest = std::max(largest, std::abs(v));
      for (size_t i = 0; i < got[k].size(); ++i)
        ASSERT_NEAR(got[k][i], expected[k][i], 200 * unit * (largest + 1)) << "gradient " << k;
    }
  }
}

// Whatever edits a kernel of rows with begun sums has, on loops and on groups of threads.
TEST(column_sums, spec_O7_edits_leave_the_sums) {
  const OptionScope mode(Options{});
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", test_seed()));
  for (const auto& [name, layer] : layers) {
    SCOPED_TRACE(name);
    const Tensor x = small({32, 64});
    const std::vector<Tensor> all = gradients(layer, x);
    // The gradient of the weight first: it is looked at.
    const std::vector<UOp> values{all[1].uop(), all[0].uop(), all[2].uop()};
    const BoundedArray expected = interpret_bounded(values[0], bindings_of(values[0]));
    const Program p = beside_rows(values);
    size_t at = 0;
    while (at < p.kernels.size() && step_axis(p.kernels[at].ast) < 0) ++at;
    ASSERT_LT(at, p.kernels.size());
    std::vector<std::pair<const char*, std::vector<Opt>>> edits{
        {"INTERP", {}}, {"CPU", {}}, {"SIMT", {}}};
    for (int i = 0; i < 6; ++i) {
      edits.emplace_back("CPU",
                         random_edits(p.kernels[at].ast, random, generic_target(false)).list);
      if (i < 3) edits.emplace_back("INTERP", edits.back().second);
      if (i < 3)
        edits.emplace_back("SIMT",
                           random_edits(p.kernels[at].ast, random, simt_target(false)).list);
    }
    for (const auto& [device, opts] : edits) {
      Options o = options();
      o.device = device;
      if (opts.empty()) o.verify = 3;  // each stage by itself
      const OptionScope scope(o);
      std::string what = device;
      for (const Opt& opt : opts) what += " " + opt_text(opt);
      EXPECT_EQ(difference(expected, run_kernels(p.kernels, p.program, {at, opts})), "") << what;
    }
  }
}

TEST(column_sums, no_edit_shares_out_the_steps_of_a_sum_in_memory) {
  const OptionScope mode(Options{});
  const std::vector<Tensor> all = gradients(layers[0].second, small({32, 64}));
  for (const Kernel& k : beside_rows(values_of(all)).kernels) {
    const int at = step_axis(k.ast);
    if (at < 0) continue;
    for (const AxisType type :
         {AxisType::Upcast, AxisType::Thread, AxisType::Global, AxisType::Local})
      expect_error(
          [&] { (void)apply_opt(k.ast, {OptOp::Split, at, 2, type}); },
          {fmt::format("Split: axis {}: what lies in memory goes on along it, step by step: "
                       "it may not become {}",
                       at, axis_type_name(type))});
    expect_error([&] { (void)apply_opt(k.ast, {OptOp::Padto, at, 3}); },
                 {fmt::format("Padto: axis {}: what lies in memory goes on along it", at)});
    EXPECT_TRUE(can_apply(k.ast, {OptOp::Split, at, 2, AxisType::Loop}));
    return;
  }
  FAIL() << "no kernel begins a sum";
}

// Numbers that are none, and zeros with a sign.
TEST(column_sums, infinities_nans_and_zeros) {
  const OptionScope mode(Options{});
  const double nan = std::nan("");
  std::vector<float> data(32 * 64, -0.0F);
  data[5] = static_cast<float>(inf);
  data[64 * 17 + 6] = static_cast<float>(nan);
  data[64 * 3 + 7] = static_cast<float>(inf), data[64 * 30 + 7] = static_cast<float>(-inf);
  const Tensor g = Tensor::from(data, {32, 64}).realize(), y = small({32, 64});
  const std::vector<UOp> values{g.sum(0).uop(), (g * y).softmax(1).uop()};
  const Array expected = interpret(values[0], bindings_of(values[0]));
  const Program p = beside_rows(values);
  ASSERT_TRUE(
      std::ranges::any_of(p.kernels, [](const Kernel& k) { return step_axis(k.ast) >= 0; }));
  for (const char* device : {"INTERP", "CPU"}) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    EXPECT_EQ(difference(expected, run_kernels(p.kernels, p.program, {})), "") << device;
  }
}

}  // namespace koine::test
