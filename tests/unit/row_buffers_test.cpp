// Values of which a kernel holds a row at a time in LOCAL memory, computed once for all loops that
// walk over it (rows W11, B15 and C38): what is decided, and that values stay what they are.
#include <algorithm>
#include <cmath>

#include "check.hpp"
#include "gradient_check.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/decide.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/validity.hpp"
#include "settings.hpp"

namespace koine::test {
namespace {

Tensor numbers(const Shape& shape, DType dtype = DType::Float32, uint64_t salt = 0) {
  std::mt19937_64 random(test_seed() + salt);
  int64_t count = 1;
  for (const int64_t s : shape) count *= s;
  std::vector<float> data;
  for (int64_t i = 0; i < count; ++i) data.push_back(static_cast<float>(random() % 4001) / 512 - 4);
  return Tensor::from(data, shape).cast(dtype).realize();
}

UOp decided(const std::vector<Tensor>& values, int64_t row_bytes = Target{}.row_bytes) {
  std::vector<UOp> what, destinations;
  for (const Tensor& v : values) {
    what.push_back(v.uop());
    destinations.push_back(new_buffer(v.uop().shape(), v.dtype(), Device("CPU")));
  }
  return decide(make_validity_explicit(callify(what, destinations).body), row_bytes);
}

// The op of each value that goes through rows, with their axes.
using Rows = std::multimap<std::string, Ints>;
Rows rows_of(const UOp& program) {
  Rows out;
  for (const UOp& u : toposort(program))
    if (goes_to_local(u)) out.emplace(op_name(u.src(0).op()), u.as<LoadArg>().axes);
  return out;
}
Rows rows_of(const Tensor& value) { return rows_of(decided({value})); }

// Buffers of LOCAL memory in the kernels for a value, by their number of elements.
std::vector<int64_t> local_buffers(const Tensor& value) {
  std::vector<int64_t> out;
  for (const Kernel& k : schedule({value.uop()}))
    for (const UOp& u : toposort(k.ast))
      if (u.is(Op::Buffer)) out.push_back(u.numel());
  std::sort(out.begin(), out.end());
  return out;
}

// Compositions whose kernels have row buffers.
using Compute = std::function<Tensor(const Tensor&)>;
const std::vector<std::pair<const char*, Compute>>& compositions() {
  static const auto& list = *new const std::vector<std::pair<const char*, Compute>>{
      {"softmax", [](const Tensor& x) { return x.softmax(-1); }},
      {"log_softmax", [](const Tensor& x) { return x.log_softmax(-1); }},
      {"layernorm of relu", [](const Tensor& x) { return x.relu().layernorm(); }},
      {"var of squares", [](const Tensor& x) { return x.square().var(-1); }},
      {"argmax of a chain", [](const Tensor& x) { return (x * x - x).argmax(-1); }},
      {"between min and max",
       [](const Tensor& x) {
         const Tensor h = x * 3.0 + 1.0, low = h.min(-1, true);
         return (h - low) / (h.max(-1, true) - low + 1.0);
       }},
  };
  return list;
}

TEST(row_buffers, spec_C38_decide_says_which_values_go_through_rows_and_why) {
  const Tensor x = numbers({64, 48});
  const UOp program = decided({x.softmax(1)});
  EXPECT_EQ(rows_of(program), (Rows{{"Exp2", {1}}}));
  const std::string text = to_text(program);
  EXPECT_NE(text.find("= Load[LOCAL (1) \"a row is read by 2 loops\"]("), std::string::npos)
      << text;
  EXPECT_EQ(parse(text), program);
  EXPECT_EQ(decide(program), program) << "what is decided stays";
  EXPECT_EQ(rows_of(x.log_softmax(1)), (Rows{{"Add", {1}}}));
  EXPECT_EQ(rows_of(x.layernorm()), (Rows{{"Add", {1}}}));
  EXPECT_EQ(rows_of(x.reshape({16, 4, 48}).layernorm(2)), (Rows{{"Add", {1, 2}}}));
  // What is walked over once, or costs nothing, or what is read along other axes too, has none.
  EXPECT_EQ(rows_of(x.exp().sum(1)), Rows{});
  EXPECT_EQ(rows_of(x.argmax(1)), Rows{});
  EXPECT_EQ(rows_of(x.softmax(0)), Rows{});
  const Tensor h = x.exp();
  EXPECT_EQ(rows_of(h / h.sum(1, true) / h.sum(0, true)), Rows{});
  EXPECT_EQ(rows_of(h.sum(1, true) + h.flip({1})), Rows{});
}

TEST(row_buffers, spec_C38_neither_operands_nor_outputs_have_an_order) {
  const Tensor x = numbers({32, 24}), h = x.exp() + x, m = h.max(1, true);
  EXPECT_EQ(rows_of(h - m), rows_of((-m) + h));
  EXPECT_EQ(local_buffers(h - m), local_buffers((-m) + h));
  const Tensor a = h - m, b = (h * m).sum(1);
  EXPECT_EQ(rows_of(decided({a, b})), rows_of(decided({b, a})));
}

TEST(row_buffers, spec_C38_rows_that_do_not_fit_are_computed_again_or_kept_in_memory) {
  const int64_t fits = Target{}.row_bytes / 4;
  EXPECT_EQ(local_buffers(numbers({16, fits}).softmax(1)), std::vector<int64_t>{fits});
  EXPECT_EQ(local_buffers(numbers({16, fits + 1}).softmax(1)), std::vector<int64_t>{});
  // All rows of a kernel share the room.
  const Tensor x = numbers({16, 1000});
  EXPECT_EQ(rows_of(decided({x.softmax(1)}, 4000)).size(), 1u);
  EXPECT_EQ(rows_of(decided({x.softmax(1)}, 3999)).size(), 0u);
  const Tensor chain = (x * x + x).softmax(1);
  EXPECT_EQ(rows_of(decided({chain}, 8000)).size(), 2u);
  EXPECT_EQ(rows_of(decided({chain}, 7999)).size(), 1u);
}

// The threads of a group have less memory than a core of a CPU, and a program on both has what fits
// on each.
TEST(row_buffers, rows_fit_on_each_device_of_the_program) {
  const int64_t fits = simt_target(false).row_bytes / 4;
  const Tensor x = numbers({16, fits + 1});
  EXPECT_EQ(local_buffers(x.softmax(1)), std::vector<int64_t>{fits + 1});
  EXPECT_EQ(local_buffers(x.softmax(1).to("SIMT")), std::vector<int64_t>{});
  EXPECT_EQ(local_buffers(x.to("SIMT").softmax(1)), std::vector<int64_t>{});
  EXPECT_EQ(local_buffers(numbers({16, fits}).to("SIMT").softmax(1)), std::vector<int64_t>{fits});
}

// A core goes along a column again that its cache keeps; a GPU has a thread for each element.
TEST(row_buffers, columns_are_gone_along_again_where_a_cache_keeps_them) {
  const Tensor x = numbers({16, 24}), y = x.to("SIMT");
  EXPECT_EQ(schedule({(x - x.max(0, true)).uop()}).size(), 1u);
  const auto on_simt = [](const Tensor& value) {
    const std::vector<Kernel> all = schedule({value.uop()});
    return std::count_if(all.begin(), all.end(),
                         [](const Kernel& k) { return is_kernel_body(k.ast); });
  };
  EXPECT_EQ(on_simt(y - y.max(0, true)), 2);
  EXPECT_EQ(on_simt(y - y.max(1, true)), 1);
}

TEST(row_buffers, spec_C38_a_kernel_holds_few_rows_however_long_the_program) {
  Tensor z = numbers({16, 16});
  const Tensor x = numbers({16, 16}, DType::Float32, 1);
  for (int k = 0; k < 30; ++k) z = z.exp().softmax(1) + x;
  const std::vector<Kernel> kernels = schedule({z.uop()});
  EXPECT_GE(kernels.size(), 5u);
  for (const Kernel& k : kernels) {
    const NodeList nodes = toposort(k.ast);
    EXPECT_LE(
        std::count_if(nodes.begin(), nodes.end(), [](const UOp& u) { return u.is(Op::Buffer); }),
        8);
  }
}

TEST(row_buffers, spec_W11_kernels_with_rows_merge_as_others_do) {
  const Tensor x = numbers({12, 20}), a = x.softmax(1), b = x.layernorm();
  const std::vector<Kernel> kernels = schedule({a.uop(), b.uop()});
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(lower_kernel(kernels[0].ast, generic_target(true)).estimate.bytes, 3.0 * 12 * 20 * 4);
  std::vector<int64_t> slots;
  for (const UOp& u : toposort(kernels[0].ast))
    if (u.is(Op::Buffer)) slots.push_back(u.as<BufferArg>().slot);
  std::sort(slots.begin(), slots.end());
  EXPECT_EQ(slots, (std::vector<int64_t>{0, 1})) << "each has memory of its own";
  in_both_modes([&] {
    const Tensor both = Tensor::stack({x.softmax(1), x.layernorm()}, 0);
    const Tensor p = x.softmax(1), q = x.layernorm();
    Tensor::realize({p, q});
    const auto expected = both.tolist<double>(), first = p.tolist<double>(),
               second = q.tolist<double>();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(first[i], expected[i], 1e-6);
      EXPECT_NEAR(second[i], expected[first.size() + i], 1e-5);
    }
  });
  // Where both kernels' rows do not fit together they stay two.
  const Tensor wide = numbers({16, 40000});
  EXPECT_EQ(schedule({wide.softmax(1).uop(), wide.layernorm().uop()}).size(), 2u);
}

// What a kernel stores at several depths of its loops is what kernels of their own would store.
TEST(row_buffers, spec_W11_rows_and_what_is_folded_of_them_are_stored_by_one_kernel) {
  using Values = std::vector<Tensor>;
  const std::vector<std::pair<const char*, Values (*)(const Tensor&)>> programs{
      {"x - max, max", [](const Tensor& x) { return Values{x - x.max(1, true), x.max(1)}; }},
      {"softmax, max", [](const Tensor& x) { return Values{x.softmax(1), x.max(1, true)}; }},
      {"exp, sum", [](const Tensor& x) { return Values{x.exp(), x.exp().sum(1)}; }},
      {"exp, quotient, sum",
       [](const Tensor& x) {
         const Tensor e = x.exp(), s = e.sum(1, true);
         return Values{e, e / s, s};
       }},
      {"softmax, log_softmax",
       [](const Tensor& x) { return Values{x.softmax(1), x.log_softmax(1)}; }},
      {"layernorm, mean, rstd",
       [](const Tensor& x) {
         const Tensor mean = x.mean(1, true), centred = x - mean,
                      rstd = (centred.square().mean(1, true) + 1e-5).rsqrt();
         return Values{centred * rstd, mean, rstd};
       }},
      {"sums of what is stored twice",
       [](const Tensor& x) {
         const Tensor a = x * 2.0 + 1.0, b = a.sin();
         return Values{a, b, a.sum(1), (a * b).sum(1)};
       }},
      {"a scalar a matrix", [](const Tensor& x) {
         const Tensor cube = x.reshape({x.size(0), 1, -1}).expand({x.size(0), 3, x.size(1)}) +
                             x.sum(1).reshape({-1, 1, 1}),
                      e = (cube * 0.01).exp();
         return Values{e, e.sum(std::vector<int64_t>{1, 2}), e.max(2)};
       }}};
  std::mt19937_64 random(test_seed());
  for (const auto& [name, values] : programs)
    for (const Shape& shape : std::vector<Shape>{
             {9, 1}, {9, 33}, {12, 16}, {3, 40}, {48, 501}, {15, 1702}, {17, 1602}}) {
      SCOPED_TRACE(name);
      std::vector<UOp> uops;
      for (const Tensor& t : values(numbers(shape))) uops.push_back(t.uop());
      for (const bool strict : {true, false})
        for (int draws = is_sanitized() ? 1 : 2; draws-- > 0;) {
          const Settings settings = draw_settings(random, "CPU", strict);
          SCOPED_TRACE(text_of(settings));
          const OptionScope scope(options_of(settings));
          const std::vector<UOp> buffers = realize(uops);
          for (size_t i = 0; i < uops.size(); ++i) {
            const Bindings memory = bindings_of(uops[i]);
            const BoundedArray expected = strict ? BoundedArray{interpret(uops[i], memory), {}}
                                                 : interpret_bounded(uops[i], memory);
            EXPECT_EQ(difference(expected, array_of(buffers[i])), "") << i;
          }
        }
    }
}

TEST(row_buffers, spec_W11_values_of_any_size_are_those_of_the_formula) {
  in_both_modes([] {
    for (const int64_t columns : {1, 2, 3, 16, 33, 100, 1000, 8193, 65536, 65537})
      for (const int64_t rows : {1, 5}) {
        SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
        const Tensor x = numbers({rows, columns});
        const auto in = x.tolist<double>(), out = x.softmax(1).tolist<double>();
        const auto normal = (x * 2.0).layernorm().tolist<double>();
        for (int64_t i = 0; i < rows; ++i) {
          const auto at = [&](int64_t j) { return static_cast<size_t>(i * columns + j); };
          double sum = 0, mean = 0, variance = 0;
          for (int64_t j = 0; j < columns; ++j) sum += std::exp(in[at(j)]);
          for (int64_t j = 0; j < columns; ++j)
            mean += 2 * in[at(j)] / static_cast<double>(columns);
          for (int64_t j = 0; j < columns; ++j)
            variance += std::pow(2 * in[at(j)] - mean, 2) / static_cast<double>(columns);
          for (int64_t j = 0; j < columns; ++j) {
            const double share = std::exp(in[at(j)]) / sum;
            ASSERT_NEAR(out[at(j)], share, 1e-5 * share);
            ASSERT_NEAR(normal[at(j)], (2 * in[at(j)] - mean) / std::sqrt(variance + 1e-5), 2e-4);
          }
        }
      }
  });
}

TEST(row_buffers, spec_W11_every_dtype_and_shape_on_every_backend) {
  for (const auto& [name, compute] : compositions()) {
    SCOPED_TRACE(name);
    for (const Shape& shape : std::vector<Shape>{{0, 5}, {5, 0}, {1, 40}, {7, 33}, {2, 3, 17}})
      if (shape[shape.size() - 1].present() > 0 || std::string_view(name) == "softmax")
        expect_same_everywhere(compute(numbers(shape)));
    for (const DType d : {DType::Float64, DType::Float16, DType::BFloat16, DType::Int32,
                          DType::Int8, DType::UInt64})
      expect_same_everywhere(compute(numbers({3, 21}, d)));
  }
  // NaN, infinities and zeros of both signs.
  for (const auto& [name, compute] : compositions())
    expect_same_everywhere(compute(Tensor(leaf({6, 19}))));
}

TEST(row_buffers, spec_W11_symbolic_rows_are_sized_at_the_maximum) {
  const Variable n("n", 1, 40);
  const Tensor x = numbers({8, 40});
  in_both_modes([&] {
    for (const int64_t k : {1, 2, 15, 16, 39, 40}) {
      const Size bound = n.bind(k);
      const Tensor part = x[{Slice{}, Slice{{}, bound}}];
      EXPECT_EQ(local_buffers(part.softmax(1)), std::vector<int64_t>{40});
      const auto got = part.softmax(1).tolist<double>(),
                 normal = (part * part).layernorm().tolist<double>();
      const Tensor cut = x.shrink({{0, 8}, {0, k}}).clone().realize();
      const auto expected = cut.softmax(1).tolist<double>(),
                 expected_normal = (cut * cut).layernorm().tolist<double>();
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 1e-6) << k;
        ASSERT_NEAR(normal[i], expected_normal[i], 1e-4) << k;
      }
    }
    // Symbolic numbers of rows.
    for (const int64_t k : {1, 2, 7, 8}) {
      const Tensor part = x[Slice{{}, Variable("m", 1, 8).bind(k)}];
      const auto got = part.softmax(1).tolist<double>(),
                 expected = x.shrink({{0, k}, {0, 40}}).clone().softmax(1).tolist<double>();
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-6) << k;
    }
  });
}

TEST(row_buffers, spec_W11_gradients) {
  for (const auto& [name, compute] : compositions()) {
    if (std::string_view(name).starts_with("argmax")) continue;
    SCOPED_TRACE(name);
    check_gradient(compute, numbers({4, 9}, DType::Float64));
  }
}

// Elements of a row lie beside each other, or those of many rows.
TEST(row_buffers, spec_O7_lanes_along_rows_and_across_them) {
  const Tensor x = numbers({48, 64});
  for (const Tensor& value : {x.softmax(1), x.transpose().softmax(1), (x * x).var(1)}) {
    expect_same_everywhere(value);
    Target target = generic_target(false);
    const std::vector<Kernel> kernels = schedule({value.uop()});
    ASSERT_EQ(kernels.size(), 1u);
    bool vectors = false;
    const LoweredKernel lowered = lower_kernel(kernels[0].ast, target);
    for (const UOp& u : lowered.linear.src())
      vectors = vectors || (u.is(Op::Load) && !u.is_scalar() && is_address(u.src(0)) &&
                            accessed_buffer(u).is(Op::Buffer));
    EXPECT_TRUE(vectors) << "rows are read by vectors";
  }
}

TEST(row_buffers, spec_O7_each_thread_and_each_lane_has_rows_of_its_own) {
  const Tensor x = numbers({16, 32});
  const Callified program = callify(
      {x.softmax(1).uop()}, {buffer_from_host(shape_of({16, 32}), DType::Float32, "CPU", nullptr)});
  const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
  ASSERT_EQ(kernels.size(), 1u);
  const UOp& ast = kernels[0].ast;
  const std::vector<UOp> fills = row_fills(ast), axes = kernel_ranges(ast);
  ASSERT_EQ(fills.size(), 1u);
  int fill = 0;
  while (!is_listed(fills, axes[static_cast<size_t>(fill)])) ++fill;
  for (const AxisType shared : {AxisType::Thread, AxisType::Global, AxisType::Local})
    expect_error([&] { (void)apply_opt(ast, {OptOp::Split, fill, 4, shared, false}); },
                 {"Split", fmt::format("axis {}", fill), "LOCAL memory",
                  std::string(axis_type_name(shared))});
  // Four rows at once take four times the memory.
  const UOp lanes = apply_opt(ast, {OptOp::Split, 0, 4, AxisType::Upcast, false});
  EXPECT_EQ(accessed_buffer(row_fills(lanes)[0].src(0)).numel(), 4 * 32);
  const OptionScope strict(strict_options());
  const Array expected = run_kernels(kernels, program, {});
  for (const std::vector<Opt>& opts :
       std::vector<std::vector<Opt>>{{{OptOp::Split, 0, 4, AxisType::Upcast, false}},
                                     {{OptOp::Split, 0, 4, AxisType::Thread, true}},
                                     {{OptOp::Split, 1, 4, AxisType::Thread, true}},
                                     {{OptOp::Split, fill, 8, AxisType::Upcast, false},
                                      {OptOp::Split, 0, 2, AxisType::Upcast, false}},
                                     {{OptOp::Padto, fill, 5}, {OptOp::Padto, 0, 7}}})
    for (const char* device : {"INTERP", "CPU"}) {
      Options o = strict_options();
      o.device = device;
      const OptionScope scope(o);
      EXPECT_EQ(difference(expected, run_kernels(kernels, program, {0, opts})), "") << device;
    }
  const Tensor wide = numbers({512, 8192});
  const std::vector<Kernel> large = schedule({wide.softmax(1).uop()});
  expect_error(
      [&] { (void)apply_opt(large[0].ast, {OptOp::Split, 0, 16, AxisType::Upcast, false}); },
      {"Split", "axis 0", "8192 float32", "16 lanes", "LOCAL memory"});
}

TEST(row_buffers, spec_B15_a_row_is_local_and_names_axes_of_its_value) {
  auto row_of = [](const UOp& value, Ints axes, AddrSpace space = AddrSpace::Local) {
    return UOp::make(Op::Load, {value}, LoadArg{{}, space, std::move(axes), "asked for"});
  };
  const UOp x = leaf({4, 6});
  auto row = [&](Ints axes, AddrSpace space = AddrSpace::Local) {
    return row_of(x, std::move(axes), space);
  };
  expect_error([&] { (void)row({2}); }, {"Load", "0 to 1", "(2)"});
  expect_error([&] { (void)row({1, 0}); }, {"Load", "ascend", "(1, 0)"});
  expect_error([&] { (void)row({1}, AddrSpace::Global); }, {"Load", "LOCAL", "GLOBAL"});
  // Whatever reads it, and wherever.
  expect_same_everywhere(
      add(flip(row({1}), {1, 1}), expand(reduce(Op::Add, row({0}), {0}), x.shape())));
  expect_same_everywhere(pad(shrink(row({1}), shape_of({1, 1}), shape_of({3, 5})), shape_of({1, 0}),
                             shape_of({4, 6})));
  expect_same_everywhere(pad(row({1}), shape_of({3, 0}), shape_of({9, 6})));
  expect_same_everywhere(permute(mul(row({1}), row({0, 1})), {1, 0}));
  expect_same_everywhere(reduce(Op::Add, reduce(Op::Add, mul(row({1}), row({0})), {1}), {0}));
  // An axis of one element has no loop.
  for (const auto& sizes : {Ints{1, 6}, Ints{6, 1}}) {
    const UOp one = leaf(sizes);
    expect_same_everywhere(add(row_of(one, {0, 1}), flip(row_of(one, {0, 1}), {1, 1})));
    expect_same_everywhere(reduce(Op::Add, row_of(one, {}), {0, 1}));
  }
}

// A sum over a padded axis becomes one over what is not padded; whether an element counts is told
// by the row, which is filled once for both.
TEST(row_buffers, a_window_of_a_sum_fills_the_row_that_says_what_counts_once) {
  const UOp x = leaf({21, 1}), at = leaf({2}, DType::Int16, 1);
  const UOp row = UOp::make(Op::Load, {UOp::make(Op::Mod, {at, constant_int(DType::Int16, 30)})},
                            LoadArg{{}, AddrSpace::Local, {0}, "asked for"});
  const UOp picked = pad(index(x, {row}), shape_of({2, 2}), shape_of({5, 3}));
  expect_same_everywhere(reduce(Op::Add, make_validity_explicit(picked), {0}));
}

}  // namespace
}  // namespace koine::test
