// Rows O1 to O3: every split and padding of a matrix product, a reduce and a softmax, on every
// backend and in both modes; what is refused; when threads are worth it.
#include <algorithm>
#include <cmath>

#include "c_text.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/render/llvm.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/runtime/device.hpp"
#include "random_edits.hpp"

namespace koine::test {
namespace {

constexpr AxisType all_types[] = {
    AxisType::Global, AxisType::Local,       AxisType::Warp,   AxisType::Thread, AxisType::Loop,
    AxisType::Reduce, AxisType::GroupReduce, AxisType::Upcast, AxisType::Unroll, AxisType::Lane};

Tensor numbers(const Shape& shape, uint64_t salt) {
  std::mt19937_64 random(test_seed() + salt);
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  std::vector<float> data;
  for (int64_t i = 0; i < n; ++i) data.push_back(static_cast<float>(random() % 4001) / 1024 - 2);
  return Tensor::from(data, shape);
}

// The kernels that the rows name, with this many elements along each axis.
std::vector<std::pair<std::string, UOp>> subjects(int64_t rows, int64_t inner, int64_t columns) {
  const Tensor x = numbers({rows, inner}, 1), y = numbers({inner, columns}, 2);
  return {
      {"gemm", x.matmul(y).uop()}, {"reduce", x.sum({1}).uop()}, {"softmax", x.softmax().uop()}};
}

// Runs a kernel with each list of edits in interpreted and compiled kernels and as C text. Strict
// results have the graph's bits unless the sum is reordered; default ones lie within the bound.
void check_edits(const std::string& name, const UOp& graph, const std::vector<KernelEdits>& all) {
  const Bindings bindings = bindings_of(graph);
  const BoundedArray exact{interpret(graph, bindings), {}},
      bounded = interpret_bounded(graph, bindings);
  CText text;
  for (const bool strict : {true, false}) {
    const OptionScope mode(strict ? strict_options() : options());
    const Callified program =
        callify({graph}, {buffer_from_host(graph.shape(), graph.dtype(), "CPU", nullptr)});
    const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
    for (const KernelEdits& edits : all) {
      const bool same = strict && std::none_of(edits.opts.begin(), edits.opts.end(), reorders);
      text.add(graph, same ? exact : bounded, edits);
      for (const char* device : {"INTERP", "CPU"}) {
        Options o = options();
        o.device = device;
        const OptionScope scope(o);
        std::string what = fmt::format("{} {} on {}", name, strict ? "strict" : "default", device);
        for (const Opt& opt : edits.opts) what += " " + opt_text(opt);
        EXPECT_EQ(difference(same ? exact : bounded, run_kernels(kernels, program, edits)), "")
            << what;
      }
    }
  }
  text.check();
}

UOp kernel_of(const Tensor& value) { return schedule({value.uop()}).at(0).ast; }

// A kernel whose only axis has this type.
UOp kernel_with(AxisType type) {
  const UOp axis = range(0, index_const(8), type), out = param(0, shape_of({8}), DType::Float32),
            in = param(1, shape_of({8}), DType::Float32);
  const bool folds =
      type == AxisType::Reduce || type == AxisType::GroupReduce || type == AxisType::Unroll;
  const UOp value = load(index(in, {axis}));
  if (folds)
    return sink(std::vector<UOp>{store(index(out, {index_const(0)}),
                                       reduce_ranges(Op::Add, value, std::vector<UOp>{axis}))});
  return sink(std::vector<UOp>{end(store(index(out, {axis}), value), std::vector<UOp>{axis})});
}

// The specification's table, widened by amendment C24 for CPUs: what each type may become.
constexpr std::pair<std::string_view, std::string_view> allowed_targets[] = {
    {"GLOBAL", "LOCAL THREAD UPCAST LOOP"},
    {"LOCAL", "UPCAST"},
    {"WARP", ""},
    {"THREAD", "LOOP UPCAST"},
    {"LOOP", "LOOP UPCAST THREAD GLOBAL LOCAL"},
    {"REDUCE", "REDUCE GROUP_REDUCE UNROLL"},
    {"GROUP_REDUCE", "UNROLL"},
    {"UPCAST", ""},
    {"UNROLL", ""},
    {"LANE", ""}};

std::string targets_of(AxisType from) {
  for (const auto& [type, targets] : allowed_targets)
    if (type == axis_type_name(from)) return std::string(targets);
  return {};
}

bool has_thread(const LoweredKernel& k) {
  return std::any_of(k.linear.src().begin(), k.linear.src().end(),
                     [](const UOp& u) { return u.is(Op::Special); });
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST(opts, spec_O2_every_split_of_gemm_reduce_and_softmax) {
  for (const auto& [name, graph] : subjects(8, 24, 8)) {
    std::vector<KernelEdits> all;
    const std::vector<Kernel> kernels = schedule({graph});
    for (size_t k = 0; k < kernels.size(); ++k)
      for (const Opt& opt : legal_splits(kernels[k].ast, {2, 8})) all.push_back({k, {opt}});
    EXPECT_GT(all.size(), 25u) << name;
    check_edits(name, graph, all);
  }
}

// Loops along which memory goes on changing keep their order: nothing shares them out.
TEST(opts, spec_O2_every_split_of_a_fold_by_index) {
  const Tensor x = numbers({12, 4}, 1), at = Tensor::randint({12, 4}, 0, 6).realize();
  const UOp graph = Tensor::zeros({6, 4}).scatter_add(0, at, x).uop();
  const std::vector<Kernel> kernels = schedule({graph});
  std::vector<KernelEdits> all;
  for (size_t k = 0; k < kernels.size(); ++k)
    for (const Opt& opt : legal_splits(kernels[k].ast, {2, 4})) all.push_back({k, {opt}});
  EXPECT_GE(all.size(), 4u);
  check_edits("fold by index", graph, all);
  std::string refusals;  // of threads: for the loop that fills, and for that of what is added
  for (const Kernel& k : kernels)
    for (size_t axis = 0; axis < kernel_ranges(k.ast).size(); ++axis) try {
        (void)apply_opt(k.ast, {OptOp::Split, static_cast<int>(axis), 2, AxisType::Thread});
      } catch (const Error& e) {
        refusals += e.what();
      }
  EXPECT_NE(
      refusals.find("memory that goes on changing is stored into outside of it, by each of its "
                    "threads"),
      std::string::npos)
      << refusals;
  EXPECT_NE(refusals.find("what lies in memory goes on along it"), std::string::npos) << refusals;
}

// Sizes that nothing divides: each axis alone, and padded axes as lanes.
TEST(opts, spec_O3_padto_127_of_gemm_reduce_and_softmax) {
  for (const auto& [name, graph] : subjects(5, 127, 7)) {
    std::vector<KernelEdits> all;
    const std::vector<Kernel> kernels = schedule({graph});
    for (size_t k = 0; k < kernels.size(); ++k) {
      const std::vector<UOp> axes = kernel_ranges(kernels[k].ast);
      for (int axis = 0; axis < static_cast<int>(axes.size()); ++axis) {
        const UOp& loop = axes[static_cast<size_t>(axis)];
        const bool folds = loop.as<RangeArg>().type == AxisType::Reduce;
        const std::vector<UOp> fills = row_fills(kernels[k].ast);
        const bool fills_a_row = std::any_of(fills.begin(), fills.end(), [&](const UOp& fill) {
          return std::count(fill.src().begin() + 1, fill.src().end(), loop) > 0;
        });
        const AxisType lanes = folds ? AxisType::GroupReduce : AxisType::Upcast,
                       parts = folds         ? AxisType::Unroll
                               : fills_a_row ? AxisType::Upcast
                                             : AxisType::Thread;
        all.push_back({k, {{OptOp::Padto, axis, 128}}});
        all.push_back({k, {{OptOp::Padto, axis, 8}, {OptOp::Split, axis, 8, lanes}}});
        all.push_back({k, {{OptOp::Padto, axis, 8}, {OptOp::Split, axis, 4, parts, true}}});
      }
    }
    check_edits(name, graph, all);
  }
}

TEST(opts, spec_O1d_small_work_has_no_thread_and_large_work_has_one) {
  const Target target = device_runtime("CPU").target();
  auto lowered = [&](const Tensor& t) { return lower_kernel(kernel_of(t), target); };
  const Tensor x = numbers({512, 512}, 1), small = numbers({32, 32}, 2);
  for (const Tensor& t : {small + Tensor(1.0), small.sum({1}), small.matmul(small)})
    EXPECT_FALSE(has_thread(lowered(t))) << lowered(t).name;
  for (const Tensor& t : {x + Tensor(1.0), x.sum({1}), x.matmul(x)}) {
    const LoweredKernel k = lowered(t);
    EXPECT_TRUE(has_thread(k)) << k.name;
    EXPECT_NE(k.name.find("_t"), std::string::npos) << k.name;
    EXPECT_GT(signature_of(k.linear).threads, 1);
  }
}

// 2^20 elements through 256 lanes, interpreted and compiled.
TEST(opts, spec_O1f_group_reduce_of_2_to_the_20) {
  constexpr int64_t n = 1 << 20;
  const Tensor x = numbers({n}, 3);
  const std::vector<float> values = x.tolist<float>();
  double right = 0, size = 0;
  for (const float v : values) right += v, size += std::fabs(v);
  const UOp sum = reduce(Op::Add, x.uop(), {0});
  const Callified program =
      callify({sum}, {buffer_from_host(sum.shape(), sum.dtype(), "CPU", nullptr)});
  const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));  // not split in two
  const std::vector<Opt> opts{{OptOp::Split, 0, 256, AxisType::GroupReduce, false}};
  const LoweredKernel k =
      lower_kernel(kernels.at(0).ast, device_runtime("CPU").target(), {}, &opts);
  EXPECT_EQ(k.name, "r_R4096_G256");
  size_t accumulators = 0;
  for (const UOp& u : k.linear.src())
    if (u.is(Op::Buffer)) {
      ++accumulators;
      EXPECT_EQ(lane_count(u), 256);
    }
  EXPECT_GE(accumulators, 2u) << "a tree of sums";
  EXPECT_NE(
      render_llvm_text(k.linear, "sum", device_runtime("CPU").target()).find("fadd <256 x float>"),
      std::string::npos);
  for (const char* device : {"INTERP", "CPU"}) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    const Array got = run_kernels(kernels, program, {0, opts});
    EXPECT_NEAR(bits_to_double(DType::Float32, got.data[0]), right, 80 * 0x1p-24 * size) << device;
  }
}

TEST(opts, spec_O1g_upcast_is_vectors_and_unroll_leaves_no_loop) {
  const Target target = generic_target(false);
  const UOp copy = kernel_of(numbers({4}, 1) * Tensor(2.0));
  const std::vector<Opt> upcast{{OptOp::Split, 0, 4, AxisType::Upcast, false}};
  const LoweredKernel vector = lower_kernel(copy, target, {}, &upcast);
  EXPECT_EQ(vector.name, "e_u4");
  const std::string text = render_llvm_text(vector.linear, "twice", target);
  EXPECT_EQ(count_of(text, "load <4 x float>"), 1u) << text;
  EXPECT_EQ(count_of(text, "store <4 x float>"), 1u) << text;
  EXPECT_EQ(count_of(text, "load float"), 0u) << text;
  EXPECT_EQ(count_of(text, "br "), 0u) << "no loop is left:\n" << text;

  const UOp sum = kernel_of(numbers({6}, 1).sum());
  const std::vector<Opt> unroll{{OptOp::Split, 0, 6, AxisType::Unroll, false}};
  const LoweredKernel flat = lower_kernel(sum, target, {}, &unroll);
  EXPECT_EQ(flat.name, "r_r6");
  EXPECT_TRUE(std::none_of(flat.linear.src().begin(), flat.linear.src().end(),
                           [](const UOp& u) { return u.is(Op::Range); }));
  EXPECT_EQ(count_of(render_llvm_text(flat.linear, "sum", target), "load float"), 6u);
}

// Every split that the table does not list is refused, with the list of those that are legal.
TEST(opts, spec_O1c_spec_O1g_spec_amend_24_illegal_splits_name_the_legal_ones) {
  for (const AxisType from : all_types) {
    const UOp ast = kernel_with(from);
    EXPECT_EQ(parse(to_text(ast)), ast);
    const std::string targets = targets_of(from);
    for (const AxisType to : all_types) {
      const Opt opt{OptOp::Split, 0, 2, to, false};
      const std::string name(axis_type_name(to));
      if ((" " + targets + " ").find(" " + name + " ") == std::string::npos)
        expect_error(
            [&] { (void)apply_opt(ast, opt); },
            {fmt::format("axis 0 is {}, which may not become {}; it may become: {}",
                         axis_type_name(from), name, targets.empty() ? "nothing" : targets)});
      else
        EXPECT_NO_THROW((void)apply_opt(ast, opt)) << axis_type_name(from) << name;
    }
  }
}

// An edit is refused where `can_apply` says so, and nowhere else.
TEST(opts, spec_O2_can_apply_knows_what_is_refused) {
  std::vector<UOp> kernels;
  for (const AxisType from : all_types) kernels.push_back(kernel_with(from));
  const Tensor x = Tensor::ones({6, 8}), half = Tensor::ones({6, 8}, DType::Float16);
  for (const Tensor& t : {x.exp() + Tensor(1.0), x.sum(1), x.matmul(x.transpose()), half.max(1)})
    for (const Kernel& k : schedule({t.contiguous().uop()})) kernels.push_back(k.ast);
  int refused = 0, applied = 0;
  for (const UOp& ast : kernels)
    for (const OptOp op : {OptOp::Split, OptOp::Padto, OptOp::Swap, OptOp::Nolocals})
      for (const int axis : {-1, 0, 1, 2, 7})
        for (const int64_t amount : {-1, 0, 1, 2, 3, 512})
          for (const AxisType target : all_types) {
            const Opt opt{op, axis, amount, target};
            bool thrown = false;
            try {
              (void)apply_opt(ast, opt);
            } catch (const Error&) {
              thrown = true;
            }
            ++(thrown ? refused : applied);
            EXPECT_EQ(can_apply(ast, opt), !thrown) << opt_text(opt) << " of\n" << to_text(ast);
          }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(applied, 1000);
}

// An index over two axes, with numbers up to 2^60.
UOp random_index(std::mt19937_64& random, const std::vector<UOp>& axes, int depth) {
  const auto number = [&] {
    const int64_t power = int64_t{1} << random() % 60;
    return index_const(random() % 3 == 0 ? power
                                         : power / 3 + static_cast<int64_t>(random() % 5) + 1);
  };
  if (depth == 0) return random() % 4 == 0 ? number() : axes[random() % axes.size()];
  const UOp value = random_index(random, axes, depth - 1);
  switch (random() % 6) {
    case 0:
      return mul(value, number());
    case 1:
      return idiv(value, number());
    case 2:
      return mod(value, number());
    case 3:
      return maximum(value, random_index(random, axes, depth - 1));
    default:
      return add(value, random_index(random, axes, depth - 1));
  }
}

// A kernel that stores an index of the loops of an output of these sizes.
UOp kernel_of_index(std::mt19937_64& random, int64_t rows, int64_t columns) {
  const std::vector<UOp> axes{range(0, index_const(rows), AxisType::Loop),
                              range(1, index_const(columns), AxisType::Loop)};
  const UOp out = param(0, shape_of({rows * columns}), DType::Int64),
            value =
                cast(random_index(random, axes, 1 + static_cast<int>(random() % 4)), DType::Int64),
            place = add(mul(axes[0], index_const(columns)), axes[1]);
  return simplify(sink(std::vector<UOp>{end(store(index(out, {place}), value), axes)}));
}

// Where indices might leave 64 bits, an edit is refused; what is not refused does not throw, and
// long axes alone are no reason.
TEST(opts, spec_O2_can_apply_knows_huge_axes) {
  std::mt19937_64 random(test_seed());
  const auto expect_known = [](const UOp& ast, const Opt& opt) {
    std::string reason;
    try {
      (void)apply_opt(ast, opt);
    } catch (const Error& e) {
      reason = e.what();
    }
    EXPECT_EQ(can_apply(ast, opt), reason.empty()) << opt_text(opt) << " of\n" << to_text(ast);
    EXPECT_EQ(reason.find("index arithmetic"), std::string::npos) << reason << to_text(ast);
    return reason;
  };
  int refused = 0, applied = 0, merged = 0;
  for (int i = 0; i < 3000; ++i) {
    UOp ast;
    const int64_t rows = int64_t{4} << random() % 38, columns = int64_t{24} << random() % 16;
    try {
      ast = kernel_of_index(random, rows, columns);
    } catch (const Error&) {
      continue;  // there is no such index
    }
    if (kernel_ranges(ast).size() < 2) continue;
    for (const Opt& opt :
         {Opt{OptOp::Split, 0, 4, AxisType::Upcast}, Opt{OptOp::Padto, 1, 64},
          Opt{OptOp::Split, 1, 8, AxisType::Thread, true}, Opt{OptOp::Padto, 0, 7}}) {
      const std::string reason = expect_known(ast, opt);
      refused += reason.find("leave 64 bits") != std::string::npos;
      applied += reason.empty();
    }
    EXPECT_NO_THROW((void)optimize(ast, generic_target(false))) << to_text(ast);
    merged += kernel_ranges(merge_ranges(ast)).size() == 1;
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(applied, 5000);
  EXPECT_GT(merged, 100);
  // The places of 2^56 elements.
  const UOp axis = range(0, index_const(int64_t{1} << 56), AxisType::Loop),
            out = param(0, shape_of({int64_t{1} << 56}), DType::Int8);
  const UOp filled = sink(std::vector<UOp>{
      end(store(index(out, {axis}), constant_int(DType::Int8, 1)), std::vector<UOp>{axis})});
  EXPECT_EQ(expect_known(filled, {OptOp::Split, 0, 256, AxisType::Upcast}), "");
  EXPECT_EQ(expect_known(filled, {OptOp::Padto, 0, 3}), "");
}

// A row of symbolic length in LOCAL memory, which holds the longest and nothing behind it.
TEST(opts, spec_O3_rows_of_symbolic_length_are_filled_within_their_memory) {
  const Variable n("n", 1, 37);
  const Tensor x = small({8, 37}, 1);
  int padded = 0;
  for (const int64_t length : {1, 5, 37}) {
    const Tensor row = x[{Slice{}, Slice{{}, n.bind(length)}}].softmax(1);
    const UOp value = (row * row).sum({1}).uop();
    const BoundedArray expected = interpret_bounded(value, bindings_of(value));
    const Callified program =
        callify({value}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
    const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
    ASSERT_GT(count_ops(kernels[0].ast, Op::Buffer), 0) << "no row buffer";
    const auto axes = static_cast<int>(kernel_ranges(kernels[0].ast).size());
    for (int axis = 0; axis < axes; ++axis) {
      const Opt pad{OptOp::Padto, axis, 8};
      if (!can_apply(kernels[0].ast, pad)) continue;
      ++padded;
      for (const char* device : {"INTERP", "CPU"}) {
        Options o = options();
        o.device = device;
        const OptionScope scope(o);
        EXPECT_EQ(difference(expected, run_kernels(kernels, program, {0, {pad}}, {{"n", length}})),
                  "")
            << device << " axis " << axis << " length " << length;
      }
    }
  }
  EXPECT_GE(padded, 6);
}

// Behind the last element of an axis that may be shorter than a part the last one is read again,
// and only where it is there.
TEST(opts, spec_O3_a_gate_along_a_symbolic_axis_speaks_of_the_element_that_is_read) {
  const Variable m("m", 1, 10);
  const Tensor x = small({5, 30}, 1), even = x[{Slice{}, Slice{{}, {}, 2}}];
  const Tensor late = even.pad({{0, 0}, {3, 0}});
  for (const int64_t length : {1, 2, 4, 9}) {
    const UOp value = late[{Slice{}, Slice{{}, m.bind(length)}}].sum({1}).uop();
    const BoundedArray expected = interpret_bounded(value, bindings_of(value));
    const Callified program =
        callify({value}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
    const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
    for (const char* device : {"INTERP", "CPU"})
      for (const Opt& next : {Opt{OptOp::Padto, 1, 8}, Opt{OptOp::Split, 1, 8, AxisType::Unroll}}) {
        Options o = options();
        o.device = device;
        const OptionScope scope(o);
        const std::vector<Opt> opts{{OptOp::Padto, 1, 8}, next};
        EXPECT_EQ(difference(expected, run_kernels(kernels, program, {0, opts}, {{"m", length}})),
                  "")
            << device << " length " << length;
      }
  }
}

// Split(axis, k, target): (n/k, k) with the new type inside, or outside where `top` says so.
TEST(opts, spec_O2_what_a_split_makes) {
  for (const AxisType from : {AxisType::Loop, AxisType::Reduce}) {
    const AxisType to = from == AxisType::Loop ? AxisType::Upcast : AxisType::GroupReduce;
    for (const bool top : {false, true}) {
      const std::vector<UOp> axes =
          kernel_ranges(apply_opt(kernel_with(from), {OptOp::Split, 0, 2, to, top}));
      ASSERT_EQ(axes.size(), 2u);
      const UOp &made = axes[top ? 0 : 1], &rest = axes[top ? 1 : 0];
      EXPECT_EQ(made.as<RangeArg>().type, to);
      EXPECT_EQ(const_int(made.src(0)), 2);
      EXPECT_EQ(rest.as<RangeArg>().type, from);
      EXPECT_EQ(const_int(rest.src(0)), 4);
    }
  }
}

// Plain loops, numbered in nesting order: equal work is one kernel and one name.
TEST(opts, spec_O1e_noopt_leaves_loops_and_reduces) {
  Options o = options();
  o.noopt = true;
  const OptionScope scope(o);
  const Target target = device_runtime("CPU").target();
  for (const auto& [name, graph] : subjects(6, 24, 8)) {
    const UOp ast = schedule({graph}).at(0).ast;
    std::vector<Opt> applied;
    const UOp plain = optimize(ast, target, &applied);
    EXPECT_TRUE(applied.empty()) << name;
    int64_t id = 0;
    for (const UOp& r : kernel_ranges(plain)) {
      EXPECT_EQ(r.as<RangeArg>().id, id++) << name;
      const AxisType t = r.as<RangeArg>().type;
      EXPECT_TRUE(t == AxisType::Loop || t == AxisType::Reduce) << name;
    }
    if (name != "softmax") {
      EXPECT_EQ(lower_kernel(ast, target).name, name == "gemm" ? "r_L6_L8_R24" : "r_L6_R24");
    }
  }
  // The ids of what is lowered do not depend on where the kernel came from.
  const UOp spaced = kernel_with(AxisType::Loop);
  const UOp axis = kernel_ranges(spaced)[0];
  const UOp far = substitute(spaced, {{axis, range(7, axis.src(0), AxisType::Loop)}});
  EXPECT_EQ(optimize(far, target), spaced);
}

}  // namespace koine::test
