// Kernels for machines with groups of threads: rows O1, O1b, O1f, O5, X1 and X3. The oracle is the
// interpreter of graphs; the device SIMT runs each group from barrier to barrier and reports races.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "backends.hpp"
#include "by_hand.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/blocks.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/device.hpp"
#include "koine/tensor/tensor.hpp"
#include "writer.hpp"

namespace koine::test {
namespace {

const Target& groups() {
  static const Target g = simt_target(false);
  return g;
}

UOp kernel_of(const Tensor& value) { return schedule({value.uop()}).at(0).ast; }

Tensor counted(std::vector<int64_t> sizes) {
  return Tensor::arange(
             std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()))
      .cast(DType::Float32)
      .reshape({sizes.begin(), sizes.end()})
      .realize();
}

UOp lowered(const UOp& ast, const std::vector<Opt>& opts, bool strict = false) {
  return lower_kernel(ast, simt_target(strict), {}, &opts).linear;
}

bool names(const UOp& linear, std::string_view special) {
  return std::any_of(linear.src().begin(), linear.src().end(), [&](const UOp& u) {
    return u.is(Op::Special) && u.as<std::string>() == special;
  });
}

// Edits on the one kernel of a value, on SIMT and, at the end of scope, as CUDA text.
class Kept {
 public:
  ~Kept() { text_.check(); }
  void operator()(const Tensor& value, const std::vector<Opt>& opts) {
    const UOp graph = value.uop();
    for (const bool strict : {true, false}) {
      const Bindings bindings = bindings_of(graph);
      const OptionScope mode(strict ? strict_options() : options());
      const BoundedArray expected = interpret_bounded(graph, bindings);
      text_.add(graph, expected, KernelEdits{0, opts});
      Options o = options();
      o.device = "SIMT";
      const OptionScope scope(o);
      const Callified program =
          callify({graph}, {buffer_from_host(graph.shape(), graph.dtype(), "CPU", nullptr)});
      const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
      EXPECT_EQ(difference(expected, run_kernels(kernels, program, {0, opts})), "");
    }
  }

 private:
  CText text_{"cuda"};
};

}  // namespace

TEST(groups, spec_O1_global_axes_are_numbers_of_groups) {
  Kept expect_kept;
  const Tensor twice = counted({30}) * Tensor(2.0);
  const UOp linear = lowered(kernel_of(twice), {split(0, 0, AxisType::Global)});
  EXPECT_TRUE(names(linear, "gidx0"));
  const Signature signature = signature_of(linear);
  EXPECT_EQ(const_int(signature.grid[0]), 30);
  EXPECT_FALSE(signature.group[0]);
  EXPECT_NE(render("cuda", "k", linear, false).find("gidx0 = blockIdx.x;"), std::string::npos);
  expect_kept(twice, {split(0, 0, AxisType::Global)});
  // The innermost axis is the first of the grid.
  expect_kept(counted({6, 5}).permute({1, 0}) * Tensor(2.0),
              {split(0, 0, AxisType::Global), split(1, 0, AxisType::Global)});
}

TEST(groups, spec_O1_more_than_three_axes_share_a_number) {
  const UOp axes[] = {
      range(0, index_const(3), AxisType::Global), range(1, index_const(4), AxisType::Global),
      range(2, index_const(5), AxisType::Global), range(3, index_const(2), AxisType::Global)};
  UOp at = index_const(0);
  for (const UOp& r : axes) at = add(mul(at, r.src(0)), r);
  const UOp out = param(0, shape_of({120}), DType::Int32),
            in = param(1, shape_of({120}), DType::Int32);
  const UOp ast = sink({end(store(index(out, {at}), neg(load(index(in, {at})))),
                            {axes[0], axes[1], axes[2], axes[3]})});
  const UOp linear = lower_kernel(ast, simt_target(false)).linear;
  EXPECT_EQ(const_int(signature_of(linear).grid[0]), 120);
  EXPECT_FALSE(names(linear, "gidx1"));
  std::vector<int32_t> numbers(120), negative(120);
  std::iota(numbers.begin(), numbers.end(), 7);
  std::transform(numbers.begin(), numbers.end(), negative.begin(), std::negate<>());
  EXPECT_EQ(run_by_hand<int32_t>(ast, "SIMT", std::vector<int32_t>(120), numbers), negative);
}

// Of a kernel made by hand: row r has r + 1 elements.
TEST(groups, spec_O1_an_axis_whose_length_depends_on_another_is_no_grid) {
  const UOp r = range(0, index_const(4), AxisType::Loop),
            s = range(1, add(r, index_const(1)), AxisType::Loop),
            at = add(mul(r, index_const(4)), s);
  const UOp value = load(index(param(1, shape_of({16}), DType::Float32), {at}));
  const UOp place = index(param(0, shape_of({16}), DType::Float32), {at});
  const UOp ast = sink(std::vector<UOp>{end(store(place, value), std::vector<UOp>{r, s})});
  expect_error([&] { (void)apply_opt(ast, split(1, 0, AxisType::Global)); },
               {"Split: axis 1", "depends on other axes"});
  EXPECT_FALSE(can_apply(ast, split(1, 0, AxisType::Global)));
  UOp linear;
  EXPECT_NO_THROW(linear = lower_kernel(ast, groups()).linear) << "by the heuristic";
  ASSERT_TRUE(linear);
  EXPECT_NE(to_text(linear).find("Range"), std::string::npos) << "a loop over the elements";
}

// Of a text: a loop of one turn beside a long sum. No kernel of ours has one.
TEST(groups, spec_O1_a_loop_of_one_turn_is_no_axis) {
  const UOp once = range(0, index_const(1), AxisType::Loop),
            r = range(1, index_const(700), AxisType::Reduce);
  const UOp from = index(param(1, shape_of({700}), DType::Int32), {add(once, r)}),
            to = index(param(0, shape_of({1}), DType::Int32), {once});
  const UOp sum = reduce_ranges(Op::Add, load(from), std::vector<UOp>{r}),
            ast = sink(std::vector<UOp>{end(store(to, sum), std::vector<UOp>{once})});
  for (const Target& target : {groups(), text_target("cuda", false), Target{}})
    for (const UOp& u : toposort(lower_kernel(ast, target).linear))
      EXPECT_FALSE(u.is(Op::Range) && u.src(0) == index_const(1));
}

TEST(groups, spec_O1b_threads_of_a_group_are_at_most_what_the_device_has) {
  Kept expect_kept;
  const UOp ast = kernel_of(counted({4096}) * Tensor(2.0));
  const UOp fits = apply_opt(ast, split(0, 1024, AxisType::Local), groups());
  EXPECT_TRUE(names(lowered(ast, {split(0, 1024, AxisType::Local)}), "lidx0"));
  expect_error([&] { (void)apply_opt(ast, split(0, 2048, AxisType::Local), groups()); },
               {"a group would have 2048 threads", "1024"});
  expect_error([&] { (void)apply_opt(fits, split(0, 2, AxisType::Local), groups()); },
               {"a group would have 2048 threads", "1024"});
  expect_error([&] { (void)apply_opt(ast, split(0, 2, AxisType::Thread), groups()); },
               {"groups of threads", "GLOBAL and LOCAL"});
  expect_kept(counted({96}) * Tensor(2.0),
              {split(0, 32, AxisType::Local), split(0, 0, AxisType::Global)});
}

// The last part of a padded axis lies over the one before: it reads nothing that this one stores.
TEST(groups, spec_O1_parts_of_a_padded_axis_change_memory_in_place) {
  for (const AxisType parts : {AxisType::Global, AxisType::Local}) {
    const UOp at = range(0, index_const(13), AxisType::Loop);
    const UOp place = index(param(0, shape_of({13}), DType::Int32), {at});
    const UOp ast = sink({end(store(place, mul(load(place), load(place))), {at})});
    const std::vector<Opt> opts{{OptOp::Padto, 0, 8}, split(0, 2, parts, true)};
    std::vector<int32_t> numbers(13), squares(13);
    std::iota(numbers.begin(), numbers.end(), -4);
    std::transform(numbers.begin(), numbers.end(), squares.begin(),
                   [](int32_t v) { return v * v; });
    const std::span<std::byte> memory = std::as_writable_bytes(std::span(numbers));
    run_by_hand(ast, "SIMT", {&memory, 1}, &opts);
    EXPECT_EQ(numbers, squares);
  }
}

TEST(groups, spec_O1f_threads_fold_together_through_local_memory) {
  Kept expect_kept;
  const Tensor sums = counted({3, 64}).sum({1});
  const std::vector<Opt> opts{split(1, 16, AxisType::GroupReduce), split(0, 0, AxisType::Global)};
  const UOp linear = lowered(kernel_of(sums), opts);
  EXPECT_EQ(const_int(signature_of(linear).group[0]), 16);
  const auto barriers = std::count_if(linear.src().begin(), linear.src().end(),
                                      [](const UOp& u) { return u.is(Op::Barrier); });
  EXPECT_EQ(barriers, 1);
  expect_kept(sums, opts);
  // In a loop that stays, all have read the parts of the step before: one barrier more.
  expect_kept(sums, {split(1, 16, AxisType::GroupReduce)});
  // Beside elements of one thread, on top of each other, as the outer part, and in whole.
  expect_kept(counted({8, 64}).sum({1}),
              {split(0, 4, AxisType::Upcast), split(2, 8, AxisType::GroupReduce),
               split(0, 2, AxisType::Local)});
  expect_kept(sums, {split(1, 4, AxisType::GroupReduce), split(1, 4, AxisType::GroupReduce)});
  expect_kept(sums, {split(1, 8, AxisType::GroupReduce, true)});
  expect_kept(sums, {split(1, 64, AxisType::GroupReduce)});
  expect_kept(counted({3, 60}).max({1}),
              {{OptOp::Padto, 1, 16}, split(1, 16, AxisType::GroupReduce)});
}

TEST(groups, spec_O1f_what_cannot_fold_together_is_refused) {
  const UOp long_rows = kernel_of(counted({4, 4096}).sum({1}));
  expect_error([&] { (void)apply_opt(long_rows, split(1, 2048, AxisType::GroupReduce), groups()); },
               {"2048 threads"});
  Target little = groups();
  little.groups.local_bytes = 100;
  expect_error([&] { (void)apply_opt(long_rows, split(1, 64, AxisType::GroupReduce), little); },
               {"256 bytes of LOCAL memory", "100"});
  // A softmax keeps its rows in LOCAL memory, of each thread.
  const UOp rows = kernel_of(counted({4, 64}).softmax(1));
  bool refused = false;
  for (int axis = 0; axis < static_cast<int>(kernel_ranges(rows).size()); ++axis)
    refused = refused || !can_apply(rows, split(axis, 8, AxisType::GroupReduce), groups());
  EXPECT_TRUE(refused);
}

// Products through tiles of LOCAL memory, which the threads of a group fill together.
TEST(groups, spec_O1_factors_go_through_local_memory) {
  Kept expect_kept;
  const auto local = [](int axis, int64_t n) { return split(axis, n, AxisType::Local); };
  const auto steps = [](int axis, int64_t n) { return split(axis, n, AxisType::Reduce); };
  const auto lanes = [](int axis, int64_t n) { return split(axis, n, AxisType::Upcast); };
  const auto grid = [](int axis) { return split(axis, 0, AxisType::Global); };
  const auto stage = [](int axis) { return Opt{OptOp::Stage, axis}; };
  uint64_t salt = 0;
  const auto some = [&](std::initializer_list<int64_t> sizes, DType d = DType::Float32) {
    return Tensor(leaf(sizes, d, ++salt));
  };
  // Tiles of rows and of columns: two Barriers a step of the loop around them.
  const std::vector<Opt> tiles{local(1, 8), local(0, 4), steps(4, 8), stage(5), grid(0), grid(2)};
  const Tensor product = some({16, 32}).matmul(some({32, 24}));
  const UOp linear = lowered(kernel_of(product), tiles);
  const auto count = [&](Op op) {
    return std::ranges::count_if(linear.src(), [&](const UOp& u) { return u.is(op); });
  };
  EXPECT_EQ(count(Op::Barrier), 2);
  // Both tiles, of 4 x 8 and 8 x 8 elements, are multiples of the 32 threads: no store has a gate.
  EXPECT_EQ(std::ranges::count_if(
                linear.src(), [](const UOp& u) { return u.is(Op::Store) && u.src().size() > 2; }),
            0);
  expect_kept(product, tiles);
  // Each thread has elements of the result, and what it reads of a factor lies together.
  const std::vector<Opt> more{lanes(1, 4), local(1, 3), lanes(0, 2), local(0, 4),
                              steps(6, 4), stage(7),    grid(0),     grid(3)};
  expect_kept(product, more);
  for (const DType d : {DType::Float64, DType::Int8})
    expect_kept(some({16, 32}, d).matmul(some({32, 24}, d)), more);
  expect_kept(some({32, 16}).permute({1, 0}).matmul(some({24, 32}).permute({1, 0})), more);
  const Tensor square = some({24, 24}).realize();
  expect_kept(square.matmul(square.permute({1, 0})), {local(1, 8), local(0, 8), stage(4)});
  // Loops that stay around a group's work; one step that takes all; a part of a group without one.
  expect_kept(product, {local(1, 8), local(0, 4), steps(4, 8), stage(5)});
  expect_kept(product, {local(1, 8), stage(3)});
  expect_kept(product, {local(1, 6), local(0, 4), steps(4, 2), stage(5)});
  // Axes that are no multiples, of columns, of rows and of the sum.
  const Tensor odd = some({13, 21}).matmul(some({21, 19}));
  expect_kept(odd, {{OptOp::Padto, 1, 8},
                    local(1, 8),
                    {OptOp::Padto, 0, 4},
                    local(0, 4),
                    {OptOp::Padto, 4, 4},
                    steps(4, 4),
                    stage(5)});
  // Tiles that are no multiple of the threads: 3 x 5 threads and 7 steps.
  expect_kept(some({9, 21}).matmul(some({21, 10})),
              {local(1, 5), local(0, 3), steps(4, 7), stage(5), grid(0), grid(2)});
  // A batch, windows, and sums of no product.
  expect_kept(some({2, 8, 12}).matmul(some({2, 12, 8})),
              {local(2, 4), local(1, 4), steps(5, 4), stage(6), grid(0)});
  expect_kept(some({1, 4, 8, 8}).conv2d(some({4, 4, 3, 3})), {local(0, 4), stage(3)});
  expect_kept((some({8, 32}) * Tensor(2.0)).sum({1}), {local(0, 4), steps(2, 8), stage(3)});
  // Two axes of the sum, of which memory has the elements of one beside each other.
  const auto windows = [&](int64_t rows) {
    return some({rows, 4, 16}).shrink({{0, rows}, {0, 4}, {0, 8}});
  };
  expect_kept((windows(16).reshape({16, 1, 4, 8}) * windows(12).reshape({1, 12, 4, 8})).sum({2, 3}),
              {local(1, 4), local(0, 4), split(4, 2, AxisType::Unroll), stage(6)});
}

TEST(groups, what_cannot_go_through_local_memory_is_refused) {
  const auto input = [](std::initializer_list<int64_t> sizes) {
    return Tensor(new_buffer(shape_of(sizes), DType::Float32, Device("CPU")));
  };
  const UOp product = kernel_of(input({64, 64}).matmul(input({64, 64})));
  const Opt stage{OptOp::Stage, 2};
  const auto refused = [&](const UOp& ast, const Opt& opt, const Target& target,
                           const std::vector<std::string>& words) {
    EXPECT_FALSE(can_apply(ast, opt, target));
    expect_error([&] { (void)apply_opt(ast, opt, target); }, words);
  };
  refused(product, stage, generic_target(false), {"Stage(2)", "no groups of threads"});
  refused(product, {OptOp::Stage, 0}, groups(), {"axis 0 is LOOP", "REDUCE"});
  refused(product, {OptOp::Stage, 9}, groups(), {"axis 9 is out of range"});
  refused(kernel_of(input({4, 64}).softmax(1)), {OptOp::Stage, 3}, groups(), {"one reduce"});
  const UOp staged = apply_opt(product, stage, groups());
  refused(staged, stage, groups(), {"already"});
  refused(staged, split(2, 8, AxisType::GroupReduce), groups(), {"threads fold a sum together"});
  refused(kernel_of(input({64, 8192}).matmul(input({8192, 64}))), stage, groups(),
          {"65536 bytes of LOCAL memory", "32768"});
  // A tile grows with the elements of a thread.
  const UOp nearly = apply_opts(kernel_of(input({64, 2048}).matmul(input({2048, 64}))),
                                std::vector<Opt>{stage}, groups());
  refused(nearly, split(1, 16, AxisType::Upcast), groups(), {"bytes of LOCAL memory"});
  EXPECT_EQ(opt_text(stage), "Stage(2)");
}

TEST(groups, spec_O5_nolocals_leaves_no_index_in_a_group) {
  Kept expect_kept;
  const UOp ast = kernel_of(counted({96}) * Tensor(2.0));
  const std::vector<Opt> local{split(0, 32, AxisType::Local), split(0, 0, AxisType::Global)};
  std::vector<Opt> none = local;
  none.push_back({OptOp::Nolocals});
  EXPECT_NE(render("opencl", "k", lowered(ast, local), false).find("get_local_id"),
            std::string::npos);
  EXPECT_EQ(render("opencl", "k", lowered(ast, none), false).find("get_local_id"),
            std::string::npos);
  expect_kept(counted({96}) * Tensor(2.0), none);
}

TEST(groups, the_heuristic_gives_work_to_threads) {
  const auto shape_of_launch = [](const Tensor& value) {
    const Signature s = signature_of(lower_kernel(kernel_of(value), simt_target(false)).linear);
    auto size = [](const UOp& n) { return n ? const_int(n) : 1; };
    return std::pair{size(s.grid[0]) * size(s.grid[1]) * size(s.grid[2]),
                     size(s.group[0]) * size(s.group[1]) * size(s.group[2])};
  };
  using Launch = std::pair<int64_t, int64_t>;
  EXPECT_EQ(shape_of_launch(counted({4096}) * Tensor(2.0)), (Launch{32, 128}));
  EXPECT_EQ(shape_of_launch(counted({3, 5000}).sum({1})), (Launch{3, 256}));
  EXPECT_EQ(shape_of_launch(counted({128, 96}).matmul(counted({96, 128}))), (Launch{64, 256}));
}

TEST(groups, values_on_simt_are_the_interpreters) {
  Options o = options();
  o.device = "SIMT";
  const OptionScope scope(o);
  for (const Tensor& value :
       {counted({5000}).sum(), counted({37, 29}).matmul(counted({29, 53})),
        counted({9, 300}).softmax(-1), counted({9, 300}).layernorm(), counted({700}).cumsum(0),
        counted({3, 700}).argmax(1), counted({2, 3, 12, 12}).conv2d(counted({4, 3, 3, 3})),
        counted({5, 1000}).var({1}), counted({20, 26, 6}).max({1, 2}).sum(),
        counted({20, 26, 6}).cast(DType::Float64).max({1, 2}).sum()}) {
    const UOp graph = value.uop();
    EXPECT_EQ(difference(interpret_bounded(graph, bindings_of(graph)), run_on(graph, "SIMT")), "");
  }
}

TEST(groups, symbolic_sizes_are_grids) {
  const UOp n = variable("n", 1, 100);
  const UOp i = range(0, n, AxisType::Global), out = param(0, shape_of({100}), DType::Int32),
            in = param(1, shape_of({100}), DType::Int32);
  const UOp linear =
      lower_kernel(sink({end(store(index(out, {i}), neg(load(index(in, {i})))), {i})}),
                   simt_target(false))
          .linear;
  EXPECT_EQ(signature_of(linear).variables, std::vector<std::string>{"n"});
  const UOp twice = UOp::make(Op::Linear, {n, variable("n", 1, 50), variable("m", 1, 2)});
  EXPECT_EQ(signature_of(twice).variables, (std::vector<std::string>{"m", "n"}));
  EXPECT_EQ(signature_of(linear).grid[0], n);
  std::vector<int32_t> to(100), from(100, 3);
  KernelArguments arguments;
  arguments.buffers = {reinterpret_cast<std::byte*>(to.data()),
                       reinterpret_cast<std::byte*>(from.data())};
  arguments.buffer_bytes = {400, 400};
  arguments.variables["n"] = 7;
  interpret_linear(linear, arguments);
  EXPECT_EQ(std::count(to.begin(), to.end(), -3), 7);
}

TEST(groups, spec_X1_races_are_reported) {
  const UOp l = UOp::make(Op::Special, {index_const(8)}, std::string("lidx0")),
            g = UOp::make(Op::Special, {index_const(2)}, std::string("gidx0"));
  const UOp out = param(0, shape_of({16}), DType::Int32), zero = index_const(0),
            one = constant_int(DType::Int32, 1);
  auto linear = [](std::vector<UOp> list) { return UOp::make(Op::Linear, list); };
  auto run = [&](const UOp& program) {
    std::vector<int32_t> memory(16);
    KernelArguments arguments;
    arguments.buffers = {reinterpret_cast<std::byte*>(memory.data())};
    arguments.buffer_bytes = {64};
    interpret_linear(program, arguments);
    return memory[0];
  };
  auto expect_race = [&](const UOp& program) {
    try {
      (void)run(program);
      ADD_FAILURE() << "no race was reported";
    } catch (const InternalError& e) {
      EXPECT_NE(std::string(e.what()).find("a race for element"), std::string::npos) << e.what();
    }
  };
  const UOp first = index(out, {zero}), next = index(out, {add(l, index_const(1))}),
            own = index(out, {l});
  const UOp barrier = UOp::make(Op::Barrier, std::span<const UOp>());
  expect_race(linear({l, out, first, store(first, one)}));  // all write
  expect_race(linear({g, out, first, store(first, one)}));  // two groups
  expect_race(linear({l, out, own, store(own, one), add(l, index_const(1)), next, load(next)}));
  expect_race(linear({l, out, add(l, index_const(1)), next, load(next), own, store(own, one)}));
  expect_race(
      linear({g, out, first, load(first), barrier, index(out, {g}), store(index(out, {g}), one)}));
  // A barrier stands between, an If lets one of them write, or they add.
  EXPECT_EQ(run(linear(
                {l, out, own, store(own, one), barrier, add(l, index_const(1)), next, load(next)})),
            1);
  const UOp is_first = lt(l, index_const(1)), only = UOp::make(Op::If, {is_first});
  EXPECT_EQ(
      run(linear({l, out, first, is_first, only, store(first, one), UOp::make(Op::Endif, {only})})),
      1);
  EXPECT_EQ(run(linear({l, g, out, first, UOp::make(Op::AtomicAdd, {first, one})})), 16);
}

int64_t gated_stores(const UOp& linear) {
  return std::ranges::count_if(linear.src(),
                               [](const UOp& u) { return u.is(Op::Store) && u.src().size() == 3; });
}

TEST(groups, spec_X1_what_one_thread_stores_stands_in_a_block) {
  Kept expect_kept;
  const Tensor sums = counted({8, 64}).sum({1});
  const std::vector<Opt> opts{split(0, 4, AxisType::Upcast), split(2, 8, AxisType::GroupReduce),
                              split(0, 0, AxisType::Global)};
  const UOp linear = lowered(kernel_of(sums), opts);
  EXPECT_EQ(count_ops(linear, Op::If), 1);
  EXPECT_EQ(count_ops(linear, Op::Endif), 1);
  EXPECT_EQ(gated_stores(linear), 0);
  EXPECT_EQ(render("cuda", "k", linear, false).find(") data0"), std::string::npos);
  expect_kept(sums, opts);
  // Where memory ends in a tile: all that one thread stores of it.
  const Tensor product = counted({7, 5}).matmul(counted({5, 10}));
  const std::vector<Opt> tile{{OptOp::Padto, 0, 4},
                              split(1, 2, AxisType::Local),
                              split(0, 4, AxisType::Upcast),
                              split(0, 0, AxisType::Global)};
  EXPECT_GT(count_ops(lowered(kernel_of(product), tile), Op::If), 0);
  EXPECT_EQ(gated_stores(lowered(kernel_of(product), tile)), 0);
  expect_kept(product, tile);
}

TEST(groups, a_block_has_the_stores_of_one_gate_that_nothing_parts) {
  const UOp l = special("lidx0", 8), out = param(0, shape_of({32}), DType::Int32),
            value = add(cast(l, DType::Int32), constant_int(DType::Int32, 5)),
            some = lt(l, index_const(7)), first = lt(l, index_const(1));
  const auto linear = [](const std::vector<UOp>& effects) {
    std::vector<UOp> list;
    for (const UOp& u : toposort(sink(effects)))
      if (!u.is(Op::Sink)) list.push_back(u);
    return UOp::make(Op::Linear, list);
  };
  const auto run = [](const UOp& program) {
    std::vector<int32_t> memory(32);
    KernelArguments arguments;
    arguments.buffers = {reinterpret_cast<std::byte*>(memory.data())};
    arguments.buffer_bytes = {128};
    interpret_linear(program, arguments);
    return memory;
  };
  // How many blocks there are; what they compute is what it was, and no gate of a thread is left.
  const auto blocks = [&](const std::vector<UOp>& effects) {
    const UOp before = linear(effects), after = in_blocks(before);
    EXPECT_NO_THROW(verify(after, VerifyLevel::Linear, "linearize"));
    EXPECT_EQ(run(after), run(before));
    EXPECT_EQ(gated_stores(after), 0);
    return count_ops(after, Op::If);
  };
  const UOp base = mul(l, index_const(4));
  const auto at = [&](int64_t k) { return index(out, {add(base, index_const(k))}); };
  EXPECT_EQ(blocks({store(at(0), value)}), 0);
  // Places are computed before the block, other gates and loads close it.
  EXPECT_EQ(blocks({store(at(0), value, some), store(at(1), value, some)}), 1);
  EXPECT_EQ(blocks({store(at(0), value, some), store(at(1), value, first)}), 2);
  EXPECT_EQ(
      blocks({store(at(0), value, some), store(at(1), value, first), store(at(2), value, some)}),
      3);
  EXPECT_EQ(blocks({store(at(0), value, some), store(at(1), load(at(0)), some)}), 2);
  EXPECT_EQ(blocks({store(at(0), value, some), store(at(1), value)}), 1);
  // Lanes with gates of their own, and Stores that would be one without theirs.
  const UOp two = shape_of({2}), lanes = stack(std::vector<UOp>{base, add(base, index_const(1))});
  const UOp wide = store(index(out, {lanes}), expand(reshape(value, shape_of({1})), two),
                         lt(lanes, expand(reshape(index_const(9), shape_of({1})), two)));
  EXPECT_EQ(in_blocks(linear({wide})), linear({wide}));
  const std::vector<UOp> twice{store(at(0), value, some), store(at(0), value, first)};
  EXPECT_EQ(in_blocks(linear(twice)), linear(twice));
}

TEST(groups, spec_X3_a_histogram_by_atomic_adds_is_bincount) {
  std::mt19937_64 random(test_seed());
  const int64_t count = 1'000'000, bins = 97;
  std::vector<int32_t> in(count), expected(bins);
  for (int32_t& v : in) ++expected[static_cast<size_t>(v = static_cast<int32_t>(random() % bins))];
  const UOp ast = histogram(count, bins, DType::Int32);
  EXPECT_EQ(run_by_hand<int32_t>(ast, "CPU", std::vector<int32_t>(bins), in), expected);
  // Shared out among threads of the team, and of groups.
  const UOp threads = apply_opt(ast, split(0, 8, AxisType::Thread, true));
  EXPECT_EQ(run_by_hand<int32_t>(threads, "CPU", std::vector<int32_t>(bins), in), expected);
  std::vector<int32_t> some(in.begin(), in.begin() + 4000), some_expected(bins);
  for (const int32_t v : some) ++some_expected[static_cast<size_t>(v)];
  const UOp grid = histogram(4000, bins, DType::Int32, AxisType::Global);
  for (const char* device : {"INTERP", "SIMT"})
    EXPECT_EQ(run_by_hand<int32_t>(grid, device, std::vector<int32_t>(bins), some), some_expected)
        << device;
  const UOp loop = histogram(4000, bins, DType::Int32);
  EXPECT_EQ(run_by_hand<int32_t>(loop, "INTERP", std::vector<int32_t>(bins), some), some_expected);
  std::vector<int32_t> numbers(1000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i % 10);
  const std::vector<float> sums(10), sums_expected(10, 100);
  const UOp floats =
      apply_opt(histogram(1000, 10, DType::Float32), split(0, 8, AxisType::Thread, true));
  EXPECT_EQ(run_by_hand<float>(floats, "CPU", sums, numbers), sums_expected);
  // In each turn of a loop that it does not depend on, which no edit makes fewer or more.
  const UOp turns = sink(
      {end(UOp::make(Op::AtomicAdd, {index(param(0, shape_of({4}), DType::Int32), {index_const(0)}),
                                     constant_int(DType::Int32, 1)}),
           {range(0, index_const(8), AxisType::Loop), range(1, index_const(3), AxisType::Loop)})});
  for (const char* device : {"CPU", "INTERP", "SIMT"}) {
    std::vector<int32_t> turned(4);
    const std::span<std::byte> memory[] = {std::as_writable_bytes(std::span(turned))};
    run_by_hand(turns, device, memory);
    EXPECT_EQ(turned, (std::vector{24, 0, 0, 0})) << device;
  }
  expect_error([&] { (void)apply_opt(turns, split(0, 2, AxisType::Upcast)); },
               {"an AtomicAdd adds in each turn of it"});
  expect_error([&] { (void)apply_opt(turns, {OptOp::Padto, 0, 5}); },
               {"an AtomicAdd would add some elements twice"});
  expect_error([&] { (void)apply_opt(turns, split(0, 2, AxisType::Thread)); },
               {"each thread along it would do the same AtomicAdd"});
}

// Its graph says the same, and promises nothing of floats, which threads add in any order.
TEST(groups, spec_X3_a_histogram_is_bincount_by_its_graph) {
  std::vector<int32_t> in{3, 0, 3, 2, 3, 0};
  const auto interpreted = [&](DType dtype, auto bins, Deviations* known) {
    const int64_t count = std::ssize(in);
    const UOp ast = histogram(count, std::ssize(bins), dtype);
    const std::vector<std::byte*> addresses{reinterpret_cast<std::byte*>(bins.data()),
                                            reinterpret_cast<std::byte*>(in.data())};
    interpret_kernel(ast, {addresses, std::vector<int64_t>{16, 4 * count}, {}}, known);
    return bins;
  };
  EXPECT_EQ(interpreted(DType::Int32, std::vector<int32_t>{5, 0, 0, 0}, nullptr),
            (std::vector<int32_t>{7, 0, 1, 3}));
  Deviations of_floats{{.reorder = true, .contract = true}, {}}, of_integers = of_floats;
  EXPECT_EQ(interpreted(DType::Float32, std::vector<float>{0.5F, 1, 0, 0}, &of_floats),
            (std::vector<float>{2.5F, 1, 1, 3}));
  EXPECT_EQ(of_floats.buffers.at(0), (std::vector<double>{INFINITY, 0, INFINITY, INFINITY}));
  (void)interpreted(DType::Int32, std::vector<int32_t>(4), &of_integers);
  for (const std::vector<double>& d : of_integers.buffers)
    EXPECT_TRUE(std::ranges::all_of(d, [](double v) { return v == 0; }));
}

// All threads of a grid add at once; each dtype that the language adds. In C one thread does.
TEST(groups, spec_X3_a_histogram_in_texts_is_bincount) {
  const size_t count = 1'000'000, bins = 97, few = 1000;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> in(count);
  for (int32_t& v : in) v = static_cast<int32_t>(random() % bins);
  const std::vector<int32_t> first(in.begin(), in.begin() + few);
  for (const char* language : {"c", "cuda", "hip", "metal"}) {
    SCOPED_TRACE(language);
    std::vector<UOp> linears;
    const auto add = [&](size_t n, DType d) {
      const UOp ast = histogram(static_cast<int64_t>(n), bins, d);
      linears.push_back(lower_kernel(ast, text_target(language, false)).linear);
      EXPECT_NE(render(language, "k", linears.back(), false).find("atomic_add_"),
                std::string::npos);
    };
    add(count, DType::Int32);
    for (const DType d : {DType::UInt32, DType::Float32}) add(few, d);
    const bool has_64_bits = std::string_view(language) != "metal";
    if (has_64_bits)
      for (const DType d : {DType::Int64, DType::UInt64, DType::Float64}) add(few, d);
    const Texts texts(language, linears);
    const auto expect_bincount = [&](size_t number, auto zero, const std::vector<int32_t>& of) {
      std::vector<decltype(zero)> expected(bins);
      for (const int32_t v : of) ++expected[static_cast<size_t>(v)];
      EXPECT_EQ(texts.run(number, std::vector<decltype(zero)>(bins), of), expected) << number;
    };
    expect_bincount(0, int32_t{}, in);
    expect_bincount(1, uint32_t{}, first);
    expect_bincount(2, float{}, first);
    if (!has_64_bits) continue;
    expect_bincount(3, int64_t{}, first);
    expect_bincount(4, uint64_t{}, first);
    expect_bincount(5, double{}, first);
  }
}

// The programs by hand of interp_test, with the words of each language.
TEST(groups, spec_X1_threads_of_texts_wait_for_each_other) {
  for (const char* language : {"cuda", "hip", "metal"}) {
    SCOPED_TRACE(language);
    expect_threads_wait(Texts(language, programs_by_hand()));
  }
}

TEST(groups, spec_X3_an_instruction_and_code_stand_inside_of_a_kernel) {
  std::mt19937_64 random(test_seed());
  std::vector<int64_t> words(40), bits(40);
  std::vector<float> numbers(40), fused(40);
  for (size_t i = 0; i < 40; ++i) {
    bits[i] = std::popcount(static_cast<uint64_t>(words[i] = static_cast<int64_t>(random())));
    numbers[i] = static_cast<float>(i) * 0.37f;
    fused[i] = std::fma(numbers[i], 3.0f, numbers[i]);
  }
  const UOp count = kernel_of_40(DType::Int64, [&](const UOp& v) {
    return code(Op::Ins, "popcntq $1, $0|=r,r", DType::Int64, {v});
  });
  const UOp fma = kernel_of_40(DType::Float32, [&](const UOp& v) {
    return code(Op::Ins, "vfmadd231ss $2, $1, $0|=x,x,x,0", DType::Float32,
                {v, constant(DType::Float32, 3), v});
  });
  const UOp builtin = kernel_of_40(DType::Int64, [&](const UOp& v) {
    return code(Op::Custom, "__builtin_popcountll({0})", DType::Int64, {v});
  });
  EXPECT_EQ(parse(to_text(fma)), fma);
#if defined(__x86_64__)
  EXPECT_EQ(run_by_hand<int64_t>(count, "CPU", std::vector<int64_t>(40), words), bits);
  if (host_runs("x86-64-v3")) {
    EXPECT_EQ(run_by_hand<float>(fma, "CPU", std::vector<float>(40), numbers), fused);
  }
  for (const UOp& ast : {count, builtin}) {
    const CLibrary text(render("c", "k", lower_kernel(ast, generic_target(false)).linear), 1);
    std::vector<int64_t> out(40);
    void* buffers[] = {out.data(), words.data()};
    text.function("k")(buffers, nullptr, 0);
    EXPECT_EQ(out, bits);
  }
#endif
  expect_error([&] { (void)run_by_hand<int64_t>(builtin, "CPU", bits, words); },
               {"Custom \"__builtin_popcountll({0})\"", "use Ins"});
  expect_error([&] { (void)run_by_hand<int64_t>(count, "INTERP", bits, words); },
               {"Ins \"popcntq", "the interpreter runs no code of machines"});
  expect_error([&] { (void)apply_opt(count, split(0, 4, AxisType::Upcast)); },
               {"Ins is of one element at a time"});
  for (const char* wrong :
       {"popcntq $1, $0", "|=r,r", "popcntq $1, $0|=r,r,r", "nosuch $1, $0|=r,r"})
    expect_error(
        [&] {
          (void)run_by_hand<int64_t>(
              kernel_of_40(DType::Int64,
                           [&](const UOp& v) { return code(Op::Ins, wrong, DType::Int64, {v}); }),
              "CPU", bits, words);
        },
        {"Ins", wrong[0] == 'n' ? "nosuch" : wrong});
}

// What every language has under its own name; the shims know these too.
TEST(groups, spec_X3_code_of_a_language_runs_in_its_texts) {
  std::vector<int32_t> words(40), bits(40);
  std::mt19937_64 random(test_seed());
  for (size_t i = 0; i < 40; ++i)
    bits[i] = std::popcount(static_cast<uint32_t>(words[i] = static_cast<int32_t>(random())));
  for (const auto& [language, text] :
       {std::pair("cuda", "__popc({0})"), {"hip", "__popc({0})"}, {"metal", "popcount({0})"}}) {
    const UOp ast = kernel_of_40(DType::Int32, [text = text](const UOp& v) {
      return code(Op::Custom, text, DType::Int32, {v});
    });
    const Texts texts(language, {lower_kernel(ast, text_target(language, false)).linear});
    EXPECT_EQ(texts.run(0, std::vector<int32_t>(40), words), bits) << language;
  }
}

TEST(groups, spec_L8_texts_of_languages_with_groups_compute_the_same) {
  for (const char* language : {"cuda", "hip", "metal"}) {
    CText text(language, 1);
    text.add((counted({300}) * Tensor(2.0)).uop());
    text.add(counted({3, 500}).sum({1}).uop());
    text.add(counted({9, 33}).softmax(1).uop());
    text.add(counted({20, 30}).matmul(counted({30, 25})).uop());
    text.add(mod(leaf({60}), leaf({60}, DType::Float32, 1)));
    for (const DType d : stored_dtypes())
      if (std::string(language) != "metal" || d != DType::Float64)
        text.add(add(leaf({60}, d), leaf({60}, d, 1)));
    text.check();
  }
}

TEST(groups, a_language_refuses_what_it_lacks) {
  const UOp groups_of =
      lowered(kernel_of(counted({64}) * Tensor(2.0)), {split(0, 0, AxisType::Global)});
  expect_error([&] { (void)render("c", "k", groups_of); }, {"c has no groups of threads", "gidx0"});
  const UOp wide = lowered(kernel_of(counted({64}).cast(DType::Float64) * Tensor(2.0)), {});
  expect_error(
      [&] {
        (void)lower_kernel(kernel_of(counted({64}).cast(DType::Float64) * Tensor(2.0)),
                           text_target("metal", true));
      },
      {"metal-strict has no type for float64, which "});
  expect_error([&] { (void)render("metal", "k", wide); }, {"metal has no type for float64"});
  expect_error([&] { (void)render("fortran", "k", wide); },
               {"fortran", "c, opencl, cuda, hip, metal, wgsl"});
}

TEST(groups, metal_refuses_atomics_of_64_bits) {
  auto text = [](DType d) {
    return render("metal", "k",
                  lower_kernel(histogram(100, 10, d), text_target("metal", true)).linear);
  };
  EXPECT_NE(text(DType::UInt32).find("atomic_add_u32"), std::string::npos);
  expect_error([&] { (void)text(DType::Int64); }, {"metal has no AtomicAdd of int64"});
}

TEST(groups, wgsl_refuses_what_it_lacks) {
  const Target target = text_target("wgsl", true);
  const std::array<int64_t, 3> promised{65535, 65535, 65535};  // by WebGPU, on every device
  EXPECT_EQ(target.groups.most_groups, promised);
  auto refused = [&](const UOp& ast, const std::vector<std::string>& parts) {
    expect_error([&] { (void)render("wgsl", "k", lower_kernel(ast, target).linear); }, parts);
  };
  for (const DType d : stored_dtypes()) {
    if (d == DType::Int32 || d == DType::UInt32 || d == DType::Float32 || d == DType::Bool)
      continue;
    refused(schedule({maximum(leaf({8}, d), leaf({8}, d, 1))})[0].ast,
            {"wgsl-strict has no type for"});
  }
  const UOp chosen = where(leaf({8}, DType::Bool), leaf({8}), leaf({8}, DType::Float32, 1));
  refused(schedule({chosen})[0].ast, {"wgsl has no bools in memory", "data1"});
  refused(histogram(100, 10, DType::Int32), {"wgsl has no AtomicAdd"});
  const UOp n = index_const(int64_t{1} << 33), i = range(0, n, AxisType::Loop),
            out = param(0, stack(std::vector<UOp>{n}), DType::Float32);
  refused(sink({end(store(index(out, {i}), constant(DType::Float32, 1)), {i})}),
          {"wgsl counts places in 32 bits", "split the tensor", "clip"});
}

// A place beyond 32 bits wraps to the one that is meant, if memory has no more; nothing else may
// read such a number.
TEST(groups, wgsl_takes_places_that_wrap) {
  const Target target = text_target("wgsl", true);
  const UOp i = range(0, index_const(8), AxisType::Loop), seven = index_const(7);
  const auto kernel = [&](int64_t size, const std::function<UOp(const UOp&)>& place_of) {
    const UOp memory = param(1, shape_of({size}), DType::Float32),
              given = param(2, shape_of({8}), DType::Int32),
              out = param(0, shape_of({8}), DType::Float32),
              row = mul(cast(load(index(given, {i})), DType::Index), index_const(3));
    const UOp value = load(index(memory, {place_of(row)}));
    return render("wgsl", "k",
                  lower_kernel(sink({end(store(index(out, {i}), value), {i})}), target).linear);
  };
  const auto moved = [](const UOp& row) { return add(row, index_const(1)); };
  EXPECT_NE(kernel(100, moved), "");
  const int64_t most = INT32_MAX;
  EXPECT_NE(kernel(most, moved), "");
  const std::vector<std::string> words{"wgsl counts places in 32 bits"};
  expect_error([&] { (void)kernel(most + 1, moved); }, words);
  for (const auto& place : std::vector<std::function<UOp(const UOp&)>>{
           [&](const UOp& row) { return idiv(row, seven); },
           [&](const UOp& row) { return mod(row, seven); },
           [&](const UOp& row) { return maximum(row, seven); },
           [&](const UOp& row) { return where(lt(row, i), seven, index_const(9)); },
           [&](const UOp& row) { return cast(cast(row, DType::Int32), DType::Index); },
           // What a float saturates to has other bits.
           [&](const UOp&) {
             const UOp real = mul(cast(i, DType::Float32), constant(DType::Float32, 1e9));
             return add(cast(real, DType::Index), seven);
           }})
    expect_error([&] { (void)kernel(100, place); }, words);
}

// CUDA's and HIP's take GCC's form of a statement, and so do compilers of OpenCL that are built on
// Clang.
TEST(groups, spec_X3_languages_without_assembly_refuse_an_instruction) {
  const UOp ast = kernel_of_40(
      DType::Int32, [](const UOp& v) { return code(Op::Ins, "neg $0|=r,0", DType::Int32, {v}); });
  const auto text = [&](const char* language) {
    return render(language, "k", lower_kernel(ast, text_target(language, false)).linear, false);
  };
  for (const std::string language : {"metal", "wgsl"})
    expect_error([&] { (void)text(language.c_str()); },
                 {language + " has no instructions of a machine: Ins \"neg $0|=r,0\""});
  for (const char* language : {"c", "opencl", "cuda", "hip"})
    EXPECT_NE(text(language).find("__asm__(\"neg %0\" : \"=r\"("), std::string::npos) << language;
}

}  // namespace koine::test
