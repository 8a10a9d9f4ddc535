// KOINE_VERIFY=3: stages that are broken on purpose are found, named and shown on a small graph;
// stages that are not broken are left alone.
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <span>

#include "broken_stages.hpp"
#include "check.hpp"
#include "graphs.hpp"
#include "koine/differential/reduce.hpp"
#include "koine/differential/run.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/executable.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/expand.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/runtime/cpu/cpu.hpp"

namespace koine::test {
namespace {

using Values = std::vector<UOp>;

// --- programs ------------------------------------------------------------------------------------

UOp f32(double v) { return constant(DType::Float32, v); }

UOp matmul(const UOp& a, const UOp& b) {
  const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[1];
  const UOp left = expand(reshape(a, shape_of({m, k, 1})), shape_of({m, k, n})),
            right = expand(reshape(b, shape_of({1, k, n})), shape_of({m, k, n}));
  return reshape(reduce(Op::Add, mul(left, right), {1}), shape_of({m, n}));
}

UOp row_sums(const UOp& x) { return reduce(Op::Add, x, {static_cast<int64_t>(x.rank()) - 1}); }

// Every kind of work that a stage has a case for, on small tensors.
std::vector<Values> programs() {
  const UOp x = leaf({6, 8}), y = leaf({6, 8}, DType::Float32, 1), square = leaf({8, 8});
  const UOp i = leaf({24}, DType::Int32), u = leaf({24}, DType::UInt8), cube = leaf({3, 4, 5});
  const UOp half = leaf({16}, DType::BFloat16), quarter = leaf({16}, DType::Float8E4M3);
  std::vector<Values> out;
  out.push_back({add(mul(x, f32(2)), y)});
  out.push_back({maximum(x, f32(0)), where(lt(x, y), x, y)});
  out.push_back({add(contiguous(mul(i, i)), contiguous(flip(i, {1})))});  // two temporaries
  out.push_back({maximum(x, y)});
  out.push_back({idiv(i, constant_int(DType::Int32, 3)), mod(i, constant_int(DType::Int32, 5))});
  out.push_back(
      {add(cast(u, DType::Int32), bit_xor(i, binary(Op::Shl, i, constant_int(DType::Int32, 2))))});
  out.push_back({add(permute(cube, {2, 0, 1}), f32(1))});
  out.push_back({mul(flip(x, {0, 1}), y)});
  out.push_back({pad(x, shape_of({1, 2}), shape_of({9, 11}), f32(7))});
  out.push_back({reduce(Op::Add, pad(x, shape_of({1, 2}), shape_of({9, 11})), {0})});
  out.push_back({add(reshape(shrink(x, shape_of({1, 0}), shape_of({4, 6})), shape_of({3, 8})),
                     leaf({8}, DType::Float32, 2))});
  out.push_back({row_sums(x), reduce(Op::Max, x, {0}), reduce(Op::Mul, y, {1})});
  out.push_back({reduce(Op::Add, leaf({4, 24}, DType::Int32, 3), {1})});
  out.push_back({matmul(square, leaf({8, 8}, DType::Float32, 4))});
  const UOp e = unary(Op::Exp2, x);
  out.push_back({fdiv(e, expand(row_sums(e), x.shape()))});
  out.push_back({unary(Op::Exp2, leaf({9})), unary(Op::Log2, leaf({9})), sine(leaf({9}))});
  out.push_back({add(half, half), mul(half, leaf({16}, DType::BFloat16, 5))});
  out.push_back({add(quarter, quarter)});
  // Loops that may not run at all.
  const UOp few = variable("few", 0, 4);
  const UOp none = shrink(leaf({4}), stack(Values{index_const(0)}), stack(Values{few}));
  out.push_back({reduce(Op::Max, none, {0}), reduce(Op::Add, mul(none, none), {0})});
  // Products of narrow floats that no bound holds for.
  out.push_back({reduce(Op::Mul, leaf({2, 3, 2}, DType::Float8E5M2), {0, 1})});
  // Sums of narrow floats and of equal numbers, and what a mask hides.
  out.push_back({reduce(Op::Add, half, {0}), reduce(Op::Mul, quarter, {0}),
                 reduce(Op::Add, leaf({3, 40}, DType::Float16), {1})});
  out.push_back({reduce(Op::Add, expand(reshape(f32(0.1), shape_of({1})), shape_of({7})), {0}),
                 reduce(Op::Add, expand(leaf({1}, DType::BFloat16), shape_of({14})), {0})});
  out.push_back({reduce(Op::Add, mul(x, cast(lt(y, f32(0)), DType::Float32)), {1})});
  const std::vector<int32_t> at{0, 2, 5, 1};
  const UOp where_to = buffer_from_host(shape_of({4}), DType::Int32, "CPU", at.data());
  out.push_back({index(x, {where_to})});
  out.push_back(
      {Tensor::zeros({6})
           .scatter_add(0, Tensor::from<int32_t>({0, 2, 5, 1}), Tensor::from<float>({1, 2, 3, 4}))
           .uop()});
  out.push_back({stack(Values{x, y})});
  const UOp first = contiguous(add(x, f32(1))), second = contiguous(mul(y, f32(3)));
  out.push_back({add(contiguous(mul(first, first)), contiguous(add(second, first)))});
  out.push_back({add(square, permute(square, {1, 0}))});
  out.push_back({(Tensor::arange(100) * Tensor(2)).uop()});
  // Sizes with several bindings.
  const UOp n = variable("n", 1, 6);
  const UOp rows =
      shrink(x, stack(Values{index_const(0), index_const(0)}), stack(Values{n, index_const(8)}));
  out.push_back({add(rows, f32(1)), reduce(Op::Add, rows, {0})});
  // A Function, an assignment that reads what it overwrites, and threads.
  const UOp p = param(0, x.shape(), DType::Float32);
  out.push_back({get_tuple(function(tuple(Values{mul(p, p)}), Values{add(x, y)}), 0)});
  const UOp old = leaf({6, 8}, DType::Float32, 6);
  out.push_back({after(old, {store(old, add(flip(old, {1, 0}), y))}), mul(y, f32(2))});
  out.push_back({mul(leaf({128, 128}), f32(3))});
  // A loop, whose functions are split into kernels later than the program around it.
  const Tensor looped = fori_loop(
      0, 3, [](const Tensor&, const Tensor& t) { return t * Tensor(2.0) + Tensor(1.0); },
      Tensor(add(x, f32(1))));
  out.push_back({mul(looped.uop(), y)});
  // Two buffers that one After stores into, and LOCAL memory.
  const UOp one = leaf({5}, DType::Int32, 7), other = leaf({5}, DType::Int32, 8);
  out.push_back({after(one, {group(Values{store(one, other), store(other, one)})})});
  out.push_back(
      {reshape(UOp::make(Op::Load, {leaf({6}, DType::Int32)}, LoadArg{{}, AddrSpace::Local}),
               shape_of({2, 3}))});
  return out;
}

// --- checking ------------------------------------------------------------------------------------

// What KOINE_VERIFY=3 says of a program; empty: nothing.
std::string verdict(const Values& values, const StageChange& changes) {
  Values destinations;
  for (const UOp& v : values)
    destinations.push_back(v.is(Op::After) ? UOp()
                                           : new_buffer(v.shape(), v.dtype(), Device("CPU")));
  try {
    const Callified made = callify(values, destinations);
    (void)check_callified(values, destinations, made, changes);
    (void)Executable(made.body, "CPU", changes);
  } catch (const InternalError& e) {
    const std::string text = e.what();
    if (text.find("KOINE_VERIFY=3") != text.npos) return text;  // others are for other tests
  }
  return "";
}

Options verified(bool strict) {
  Options o = options();
  o.strict = strict;
  o.verify = 3;
  return o;
}

int64_t reduced_nodes(const std::string& text) {
  const std::string mark = "reduced to ";
  const size_t at = text.find(mark);
  return at == text.npos ? -1 : std::stoll(text.substr(at + mark.size()));
}

// The graph of a message.
std::string reduced_text(const std::string& message) {
  const size_t mark = message.find("reduced to ");
  if (mark == message.npos) return "%0 = Sink()\n";
  const size_t from = message.find('\n', mark) + 1;
  return message.substr(from, message.find("its output:", from) - from);
}

}  // namespace

// Missing deviations are 0.
TEST(differential, numbers_without_deviations_are_equal_or_differ) {
  const auto outcome = [](float v, const std::vector<double>& deviations) {
    Storage s{param(0, shape_of({1}), DType::Float32), DType::Float32, {1}, {}, deviations};
    s.bytes.resize(4);
    std::memcpy(s.bytes.data(), &v, 4);
    Outcome out;
    out.after.memory.push_back(s);
    return out;
  };
  EXPECT_EQ(difference_of(outcome(1, {}), outcome(1, {})), "");
  EXPECT_NE(difference_of(outcome(1, {}), outcome(1.5, {})), "");
  EXPECT_NE(difference_of(outcome(0, {}), outcome(-0.0f, {})), "");
  EXPECT_EQ(difference_of(outcome(1, {0.5}), outcome(1.5, {})), "");
  EXPECT_EQ(difference_of(outcome(1, {}), outcome(1.5, {0.5})), "");
  EXPECT_NE(difference_of(outcome(1, {0.25}), outcome(1.5, {0.125})), "");
}

TEST(differential, stages_that_are_right_raise_no_alarm) {
  for (const bool strict : {true, false}) {
    const OptionScope scope(verified(strict));
    reset_counters();
    for (const Values& p : programs()) EXPECT_EQ(verdict(p, {}), "") << to_text(p[0]);
    EXPECT_GT(counters().checked_stages, 100);
    EXPECT_EQ(counters().unchecked_stages, 0);
  }
}

// A size that is bound is that number on both sides of every stage, and two sizes are two.
TEST(differential, a_program_of_bound_sizes_is_checked_with_their_values) {
  const Variable n("n", 1, 8), m("m", 1, 8);
  const Tensor x = Tensor::arange(64).cast(DType::Float32).reshape({8, 8}).realize();
  for (const bool strict : {true, false}) {
    const OptionScope scope(verified(strict));
    for (const int64_t rows : {3, 8}) {
      const int64_t columns = 9 - rows;
      clear_compile_cache();
      reset_counters();
      const Tensor part = x.shrink({{0, n.bind(rows)}, {0, m.bind(columns)}});
      const std::vector<float> sums = (part * 2).sum({1}).tolist<float>();
      ASSERT_EQ(sums.size(), static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i)
        EXPECT_EQ(sums[static_cast<size_t>(i)],
                  static_cast<float>(16 * i * columns + columns * (columns - 1)));
      EXPECT_GE(counters().checked_stages, 10);
      EXPECT_EQ(counters().unchecked_stages, 0);
    }
  }
}

// A hand-made kernel adds up what none of its lanes, or only some of its axes, counts.
TEST(differential, a_value_without_the_lanes_it_is_folded_over_is_folded_over_all_of_them) {
  const UOp rows = range(0, index_const(3), AxisType::Loop),
            lanes = range(1, index_const(4), AxisType::Unroll),
            threads = range(2, index_const(2), AxisType::GroupReduce);
  const auto memory = [](int64_t slot) { return param(slot, shape_of({12}), DType::Float32); };
  const UOp alone = load(index(memory(1), {rows})),
            beside = load(index(memory(1), {add(mul(rows, index_const(4)), lanes)}));
  for (const UOp& value : {alone, beside})
    for (const std::vector<UOp>& folded :
         {std::vector<UOp>{lanes}, {lanes, threads}, {threads, lanes}}) {
      std::vector<UOp> src = folded;
      src.insert(src.begin(), value);
      const UOp sum = UOp::make(Op::Reduce, src, ReduceArg{Op::Add, {}});
      const UOp kernel = sink({end(store(index(memory(0), {rows}), sum), {rows})});
      const auto stage = [](const UOp& k) { return expand(k); };
      EXPECT_TRUE(
          check_stage({"expand", kernel, expand(kernel), Level::Kernel, Level::Kernel, stage}))
          << to_text(kernel);
    }
}

TEST(differential, memory_that_is_too_large_is_not_made) {
  for (const int64_t size : {int64_t{1} << 10, int64_t{1} << 32}) {
    const UOp i = range(0, index_const(4), AxisType::Loop),
              table = param(1, shape_of({size}), DType::Float32),
              out = param(0, shape_of({4}), DType::Float32);
    const UOp ast = sink({end(store(index(out, {i}), load(index(table, {i}))), {i})});
    EXPECT_EQ(settings_of(ast, Level::Kernel, 1e5).empty(), size > 1 << 10);
  }
}

// A program with memory in it is run as well: what was never stored is no value.
TEST(differential, a_part_of_rangeify_that_is_wrong_is_found) {
  const UOp x = leaf({6, 8}), w = leaf({8, 8}, DType::Float32, 1);
  const UOp product = matmul(x, w), value = add(product, row_sums(product));
  const UOp out = UOp::make(Op::Buffer, {value.shape()}, BufferArg{77, DType::Float32, {}});
  const UOp decided = decided_program(sink({store(out, value)}));
  using Part = std::function<UOp(const UOp&)>;
  const auto check = [&](const Part& part) {
    StageCheck c{"bufferize", decided, part(decided), Level::Program, Level::Program, part};
    return check_stage(c);
  };
  const Part right = [](const UOp& p) { return bufferized_program(p); };
  const Part unwritten = [&](const UOp& p) {
    return transform_graph(right(p), [&](const UOp& original, const UOp& u) {
      const bool filled = original.is(Op::After) && u.src(0).is(Op::Buffer);
      return filled && u.src(0).as<BufferArg>().slot != 77 ? UOp(u.src(0)) : u;
    });
  };
  EXPECT_TRUE(check(right));
  try {
    check(unwritten);
    FAIL() << "nothing was noticed";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("bufferize"), std::string::npos) << e.what();
  }
}

// Edits that the heuristic does not choose for work of this size.
TEST(differential, broken_edits_are_found_named_and_reduced) {
  const OptionScope scope(verified(false));
  const Values sum{reduce(Op::Add, leaf({14}), {0})};
  const Values product{mul(leaf({16, 8}), f32(3))}, row{add(leaf({14}), f32(1))};
  auto thread_0 = [](const UOp& u) { return u.is(Op::Special) ? index_const(0) : UOp(); };
  auto unmasked = [](const UOp& u) {
    if (u.is(Op::Load) && u.src().size() == 3) return load(u.src(0));
    return u.is(Op::Where) && u.dtype() != DType::Index ? u.src(1) : UOp();
  };
  // Without its gate the store would repeat what the last element has.
  auto padding = [](const UOp& u) {
    const bool gated = u.is(Op::Store) && u.src().size() == 3;
    return gated ? store(u.src(0), u.src(1), logical_not(u.src(2))) : UOp();
  };
  struct Edit {
    Values values;
    std::vector<Opt> opts;
    Broken broken;
  };
  const std::vector<Edit> edits{
      {product,
       {{OptOp::Split, 0, 4, AxisType::Thread, true}},
       {"threads: all do the part of the first", "expand", thread_0}},
      {sum, {{OptOp::Padto, 0, 16}}, {"padto: what is padded is folded in", "optimize", unmasked}},
      {row, {{OptOp::Padto, 0, 16}}, {"padto: only what is padded is stored", "optimize", padding}},
  };
  for (const Edit& e : edits) {
    const UOp ast = schedule(e.values)[0].ast;
    EXPECT_EQ(lower_kernel(ast, generic_target(false), {}, &e.opts).checks.unchecked, 0);
    const StageChange changes = changes_of(e.broken);
    try {
      (void)lower_kernel(ast, generic_target(false), {}, &e.opts, changes);
      ADD_FAILURE() << e.broken.name << ": nothing was found";
    } catch (const InternalError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::string("stage ") + e.broken.stage), text.npos) << text;
      EXPECT_LE(reduced_nodes(text), 10) << e.broken.name << ":\n" << text;
    }
  }
}

TEST(differential, realize_checks_what_it_compiles_and_nothing_twice) {
  const OptionScope scope(verified(false));
  const Tensor x = Tensor::arange(64).cast(DType::Float32).realize();
  clear_compile_cache();
  reset_counters();
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  const int64_t checked = counters().checked_stages;
  EXPECT_GE(checked, 9);  // callify, decide, bufferize, rangeify, plan, kernel stages, render
  EXPECT_EQ(counters().unchecked_stages, 0);
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  EXPECT_EQ(counters().checked_stages, checked);
  // At level 2 nothing is run.
  Options watched = options();
  watched.verify = 2;
  const OptionScope inner(watched);
  clear_compile_cache();
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  EXPECT_EQ(counters().checked_stages, checked);
}

TEST(differential, large_kernels_are_counted_and_not_run) {
  const OptionScope scope(verified(false));
  reset_counters();
  EXPECT_EQ(verdict({add(leaf({600, 600}), f32(1))}, {}), "");
  EXPECT_EQ(counters().checked_stages, 0);
  EXPECT_GT(counters().unchecked_stages, 5);
}

TEST(differential, random_graphs_raise_no_alarm) {
  const uint64_t seed = test_seed();
  reset_counters();
  for (int64_t i = 0; i < test_cases(200); ++i) {
    const OptionScope scope(verified(i % 2 == 0));
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    EXPECT_EQ(verdict({graph}, {}), "") << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i);
  }
  EXPECT_GT(counters().checked_stages, 20 * counters().unchecked_stages);
}

// Every broken stage is found by some program, in the mode it belongs to, named, and shown on at
// most ten nodes.
TEST(differential, broken_stages_are_found_named_and_reduced) {
  const std::vector<Values> all = programs();
  const std::vector<Broken> broken = broken_graphs();
  EXPECT_GE(broken.size(), 30u);
  // Of every stage, and of every part of Rangeify.
  std::set<std::string_view> stages;
  for (const Broken& b : broken) stages.insert(b.stage);
  for (const char* stage : {"callify", "decide", "bufferize", "index", "split", "merge", "rangeify",
                            "optimize", "expand", "select", "linearize", "plan", "render"})
    EXPECT_TRUE(stages.contains(stage)) << stage;
  for (const Broken& b : broken) {
    const StageChange changes = changes_of(b);
    std::string found;
    for (const bool strict : {true, false}) {
      Options how = verified(strict);
      if (host_runs("x86-64-v3")) how.cpu = "x86-64-v3";  // one width, whatever machine this is
      const OptionScope scope(how);
      for (size_t k = 0; k < all.size() && found.empty(); ++k) found = verdict(all[k], changes);
    }
    EXPECT_NE(found.find(std::string("stage ") + b.stage), std::string::npos) << b.name << ":\n"
                                                                              << found;
    EXPECT_LE(reduced_nodes(found), 10) << b.name << ":\n" << found;
    EXPECT_GE(reduced_nodes(found), 1) << b.name << ":\n" << found;
    EXPECT_EQ(graph_size(parse(reduced_text(found))), reduced_nodes(found)) << b.name;
    const bool has_inputs = found.find(" Param[") != found.npos;
    EXPECT_TRUE(!has_inputs || found.find("\n  slot ") != found.npos) << found;
    if (std::getenv("KOINE_TEST_SHOW") != nullptr)
      fmt::print("{}: {} nodes\n{}\n", b.name, reduced_nodes(found), found);
  }
}

// A report shows the inputs with which a stage differs.
TEST(differential, settings_as_text) {
  auto storage_of = [](int64_t slot, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 1.5F);
    const auto bytes = std::as_bytes(std::span(values));
    return Storage{param(slot, shape_of({count}), DType::Float32),
                   DType::Float32,
                   {count},
                   {bytes.begin(), bytes.end()},
                   {}};
  };
  Setting setting;
  setting.variables = {{"n", 3}};
  setting.memory = {storage_of(2, 3), storage_of(0, 65)};
  std::string many;
  for (int i = 0; i < 64; ++i) many += fmt::format(" {}", 1.5 + i);
  EXPECT_EQ(setting_text(setting), "  n = 3\n  slot 2: float32 1.5 2.5 3.5\n  slot 0: float32" +
                                       many + " ... (65 elements)\n");
}

TEST(differential, outcomes_differ_beyond_their_deviation) {
  auto outcome = [](float value, double deviation) {
    Outcome out;
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out.after.memory = {{param(0, shape_of({1}), DType::Float32),
                         DType::Float32,
                         {1},
                         {bytes.begin(), bytes.end()},
                         {deviation}}};
    return out;
  };
  auto differ = [&](float a, float b, double deviation) {
    const bool either = !difference_of(outcome(a, deviation), outcome(b, 0)).empty();
    EXPECT_EQ(either, !difference_of(outcome(b, 0), outcome(a, deviation)).empty());
    return either;
  };
  EXPECT_FALSE(differ(1, 1, 0));
  EXPECT_TRUE(differ(1, 1.5, 0.25));
  EXPECT_FALSE(differ(1, 1.5, 0.5));
  EXPECT_TRUE(differ(NAN, 1, 8));
  EXPECT_FALSE(differ(NAN, -NAN, 0));
  EXPECT_TRUE(differ(0.0F, -0.0F, 0));
  EXPECT_FALSE(differ(0.0F, -0.0F, 1e-30));
  EXPECT_TRUE(differ(INFINITY, -INFINITY, 8));
  EXPECT_FALSE(differ(NAN, 1, INFINITY)) << "nothing is known of it";
  Outcome failed = outcome(1, 0);
  failed.state = Outcome::State::Failed;
  failed.failure = "it reads out of bounds";
  EXPECT_EQ(difference_of(outcome(1, 0), failed), failed.failure);
}

}  // namespace koine::test
