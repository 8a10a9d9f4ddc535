// The stages: rows L and O of the specification.
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>

#include "c_text.hpp"
#include "check.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/heuristic.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/llvm.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/transform/gradient.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

// Runs a kernel's linear program in the interpreter on copies of its buffers.
Array run_linear(const UOp& linear, const UOp& out, const std::vector<UOp>& inputs) {
  KernelArguments arguments;
  std::vector<std::vector<std::byte>> storage;
  std::vector<UOp> all{out};
  all.insert(all.end(), inputs.begin(), inputs.end());
  for (const UOp& b : all) {
    const auto m = memory_of(b);
    storage.emplace_back(m->data(), m->data() + m->bytes());
    storage.back().resize(storage.back().size() + 1);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    arguments.buffers.push_back(storage[i].data());
    arguments.buffer_bytes.push_back(memory_of(all[i])->bytes());
  }
  const Signature s = signature_of(linear);
  for (arguments.thread = 0; arguments.thread < s.threads; ++arguments.thread)
    interpret_linear(linear, arguments);
  Array a{out.dtype(), out.sizes(), {}, {}};
  for (int64_t i = 0; i < out.numel(); ++i)
    a.data.push_back(read_element(storage[0].data(), out.dtype(), i));
  return a;
}

}  // namespace

TEST(stages, spec_L1_programs_are_stateless) {
  auto program = [](const Tensor& x) {
    const UOp v = (x * Tensor(2.0) + x).uop();
    return callify({v}, {new_buffer(v.shape(), v.dtype(), Device("CPU"))});
  };
  const Callified a = program(small({4, 3})), b = program(small({4, 3}, 1));
  EXPECT_EQ(a.body, b.body) << "the same work on other buffers is one node";
  EXPECT_EQ(a.arguments.size(), 2u);
}

TEST(stages, spec_L2_kernel_counts) {
  const Tensor x = small({32, 64});
  EXPECT_LE(kernel_count({x.softmax()}), 3);
  EXPECT_LE(kernel_count({x.layernorm()}), 3);
  EXPECT_LE(kernel_count({x.logsumexp({1})}), 2);
  EXPECT_LE(kernel_count({x.var({1})}), 2);
  const Tensor q = small({2, 16, 32}), k = small({2, 16, 32}, 1), v = small({2, 16, 32}, 2);
  EXPECT_LE(kernel_count({q.scaled_dot_product_attention(k, v)}), 4);
  EXPECT_EQ(
      kernel_count({small({2, 3, 8, 8}).conv2d(small({4, 3, 3, 3}, 1), {}, {1, 1, 1}).relu()}), 1);
  // What the gradient of a two-layer perceptron adds to its forward pass: one kernel for the hidden
  // layer's cotangent, and one for each weight.
  Tensor w1 = small({64, 32}, 3).requires_grad(), w2 = small({32, 8}, 4).requires_grad();
  const Tensor loss = x.matmul(w1).relu().matmul(w2).sum();
  std::vector<Tensor> all = loss.gradient({w1, w2});
  all.push_back(loss);
  EXPECT_LE(kernel_count(all) - kernel_count({loss}), 3);
  // A reduce of reduces is one kernel up to 4096 elements.
  EXPECT_EQ(kernel_count({small({64, 64}).max(1).sum()}), 1);
  EXPECT_EQ(kernel_count({small({64, 65}).max(1).sum()}), 2);
  for (const UOp& u : toposort(schedule({x.softmax().uop()})[0].ast))
    if (u.is(Op::Load) || is_elementwise(u.op())) {
      EXPECT_TRUE(u.is_scalar()) << "every value of a kernel is a scalar";
    }
}

TEST(stages, a_feature_level_names_its_machine) {
  for (const auto& [level, bytes] :
       {std::pair("x86-64-v2", 16), std::pair("x86-64-v3", 32), std::pair("x86-64-v4", 64)}) {
    const Target t = cpu_target(level, true);
    EXPECT_EQ(t.cpu, level);
    EXPECT_EQ(t.vector_bytes, bytes);
    EXPECT_EQ(t.name, fmt::format("cpu-{}-strict", level));
  }
  EXPECT_NE(cpu_target("", false).cpu, "") << "this host's";
}

TEST(stages, spec_amend_38_fusion_repeats_no_work) {
  const Tensor x = small({64, 64}), w = small({64, 64}, 1);
  EXPECT_EQ(kernel_count({x.exp().matmul(w)}), 2) << "exp is not computed once for every column";
}

TEST(stages, spec_L3_spec_O1_names_show_the_axes) {
  const auto kernels = schedule({small({64, 64}).matmul(small({64, 64}, 1)).uop()});
  Target t = generic_target(false);
  const LoweredKernel k = lower_kernel(kernels[0].ast, t);
  EXPECT_FALSE(k.opts.empty());
  EXPECT_NE(k.name.find("_u"), std::string::npos) << k.name;
  Options plain = options();
  plain.noopt = true;
  const OptionScope scope(plain);
  const LoweredKernel n = lower_kernel(kernels[0].ast, t);
  EXPECT_TRUE(n.opts.empty());
  EXPECT_EQ(n.name, "r_L64_L64_R64") << "without optimisation there are only L and R";
}

TEST(stages, spec_L4_spec_O1g_upcast_becomes_one_vector) {
  const UOp ast = schedule({(small({64}) + Tensor(1.0)).uop()})[0].ast;
  const std::vector<Opt> opts{{OptOp::Split, 0, 4, AxisType::Upcast, false}};
  const LoweredKernel k = lower_kernel(ast, generic_target(false), {}, &opts);
  EXPECT_EQ(k.name, "e_L16_u4");
  int loads = 0;
  for (const UOp& u : k.linear.src())
    if (u.is(Op::Load)) {
      ++loads;
      EXPECT_EQ(lane_count(u), 4);
      EXPECT_TRUE(contiguous_access(strip_after(u.src(0))).yes);
    }
  EXPECT_EQ(loads, 1) << "one vector load, not four";
}

TEST(stages, spec_O1e_spec_O1f_group_reduce_is_lanes_on_a_cpu) {
  const UOp value = small({1024}).sum().uop();
  const Kernel k = kernels_of(rangeify(
      callify({value}, {new_buffer(value.shape(), DType::Float32, Device("CPU"))}).body))[0];
  const std::vector<Opt> none, group{{OptOp::Split, 0, 8, AxisType::GroupReduce, false}};
  EXPECT_EQ(lower_kernel(k.ast, generic_target(false), {}, &none).name, "r_R1024");
  const LoweredKernel g = lower_kernel(k.ast, generic_target(false), {}, &group);
  EXPECT_EQ(g.name, "r_R128_G8");
  int accumulators = 0;
  for (const UOp& u : g.linear.src())
    if (u.is(Op::Buffer)) {
      ++accumulators;
      EXPECT_EQ(lane_count(u), 8);
      EXPECT_EQ(u.addrspace(), AddrSpace::Reg);
    }
  EXPECT_EQ(accumulators, 2) << "the leaves of the sum's tree and its root";
}

TEST(stages, spec_L5_only_what_the_target_runs_is_left) {
  const Tensor x = small({64}).cast(DType::Float16);
  const UOp ast = schedule({(x.exp2() + x.log2()).uop()})[0].ast;
  const LoweredKernel k = lower_kernel(ast, generic_target(true));
  for (const UOp& u : k.linear.src()) {
    EXPECT_FALSE(u.is(Op::Exp2) || u.is(Op::Log2) || u.is(Op::Mulacc));
    EXPECT_FALSE(is_small_float(u.dtype())) << op_name(u.op());
  }
}

TEST(stages, spec_L8_render_c_and_llvm) {
  const UOp ast = schedule({(small({16}) * Tensor(2.0)).uop()})[0].ast;
  const LoweredKernel k = lower_kernel(ast, generic_target(true));
  EXPECT_NE(render("c", "twice", k.linear).find("void twice(void** buffers"), std::string::npos);
  Target target = generic_target(true);
  target.cpu = "x86-64-v3";
  target.features = "+avx2";
  target.vector_bytes = 32;
  const std::string text = render_llvm_text(k.linear, "twice", target);
  // Vectors, and what the code generator must know of the processor to keep them whole.
  for (const char* part : {"fmul <16 x float>", "nounwind", "\"no-trapping-math\"=\"true\"",
                           "\"target-cpu\"=\"x86-64-v3\"", "\"target-features\"=\"+avx2\"",
                           "\"prefer-vector-width\"=\"256\"", "\"min-legal-vector-width\"=\"256\""})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(stages, spec_W4_each_level_of_debug_prints_what_the_docs_say) {
  auto output = [](int level) {
    Options o = options();
    o.debug = level;
    const OptionScope scope(o);
    clear_compile_cache();
    ::testing::internal::CaptureStderr();
    (void)(small({32, 32}) + Tensor(level)).sum({1}).tolist<float>();
    return ::testing::internal::GetCapturedStderr();
  };
  const std::vector<std::string> marks{"",         "run     ", "kernel  ", "━┳ ",
                                       "opts    ", "void r_",  "linear  ", "optimize  "};
  for (int level = 0; level <= 7; ++level) {
    const std::string text = output(level);
    if (level == 0) {
      EXPECT_EQ(text, "");
    }
    for (int mark = 1; mark <= 7; ++mark)
      EXPECT_EQ(text.find(marks[static_cast<size_t>(mark)]) != std::string::npos, mark <= level)
          << "level " << level << " and '" << marks[static_cast<size_t>(mark)] << "'";
  }
}

TEST(stages, a_report_of_a_run_divides_work_by_time) {
  const Tensor x = Tensor::zeros({1 << 20}).contiguous().realize();
  Options o = options();
  o.debug = 1;
  o.verify = 0;  // which reports as well
  const OptionScope scope(o);
  reset_counters();
  ::testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  (void)(x * x + 1).realize();
  const std::chrono::duration<double, std::micro> whole = std::chrono::steady_clock::now() - begin;
  const std::string text = ::testing::internal::GetCapturedStderr();
  double micros = 0, operations = 0, bytes = 0;
  ASSERT_EQ(std::sscanf(text.c_str(), "run %*s %lf us %lf GFLOP/s %lf GB/s", &micros, &operations,
                        &bytes),
            3)
      << text;
  EXPECT_GT(micros, 1);
  EXPECT_LT(micros, whole.count() + 1);
  // The time is printed to a tenth of a microsecond, rates to a hundredth.
  const double operations_now = counters().operations / micros * 1e-3,
               bytes_now = counters().bytes / micros * 1e-3;
  EXPECT_NEAR(operations, operations_now, 0.006 + operations_now * 0.051 / micros) << text;
  EXPECT_NEAR(bytes, bytes_now, 0.006 + bytes_now * 0.051 / micros) << text;
}

TEST(stages, each_stage_is_dumped_by_its_name) {
  for (const char* stage : {"callify", "decide", "bufferize", "index", "split", "rangeify",
                            "optimize", "expand", "select", "linearize", "plan", "render"}) {
    Options o = options();
    o.dump = stage;
    const OptionScope scope(o);
    clear_compile_cache();
    ::testing::internal::CaptureStderr();
    (void)small({8, 8}).sum({1}).tolist<float>();
    const std::string text = ::testing::internal::GetCapturedStderr();
    const std::string title = fmt::format("--- after {}\n", stage);
    EXPECT_EQ(text.find(title), 0u) << stage << ": " << text;
    EXPECT_EQ(text.find("--- after", title.size()), std::string::npos) << text;
    EXPECT_GT(text.size(), title.size() + 20) << text;
  }
}

TEST(stages, spec_L6_linear_text_is_deterministic) {
  const UOp ast = schedule({small({16, 16}).softmax().uop()})[0].ast;
  const std::string once = to_text(lower_kernel(ast, generic_target(true)).linear);
  EXPECT_EQ(to_text(lower_kernel(parse(to_text(ast)), generic_target(true)).linear), once);
}

TEST(stages, spec_L7_memory_is_reused) {
  Tensor h = small({64, 256});
  for (uint64_t i = 0; i < 10; ++i) h = h.matmul(small({256, 256}, i + 1)).relu();
  reset_counters();
  h.realize();
  EXPECT_LE(counters().temporary_bytes, 3 * 64 * 256 * 4);
}

TEST(stages, verifier_names_stage_rule_and_node) {
  const UOp x = param(0, shape_of({4}), DType::Float32);
  try {
    verify(sink(std::vector<UOp>{
               store(index(x, {index_const(0)}), load(index(permute(x, {0}), {index_const(0)})))}),
           VerifyLevel::Kernel, "rangeify");
    ADD_FAILURE() << "a Permute in a kernel was accepted";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("after rangeify: Permute: no tensor-level op"),
              std::string::npos)
        << e.what();
  }
  const UOp r = range(0, index_const(4), AxisType::Loop);
  EXPECT_THROW(verify(sink(std::vector<UOp>{store(index(x, {r}), constant(DType::Float32, 0))}),
                      VerifyLevel::Kernel, "test"),
               InternalError);
}

// Runs a kernel written by hand on the reference interpreter, on the CPU and as C text, over copies
// of the given buffers, and returns what all of them leave in the first buffer.
std::vector<float> run_kernel(const UOp& ast, const std::vector<std::vector<float>>& buffers,
                              const std::vector<int64_t>& variables = {}) {
  auto run = [&](const auto& kernel) {
    std::vector<std::vector<float>> data = buffers;
    std::vector<std::byte*> pointers;
    std::vector<int64_t> bytes;
    for (auto& b : data) {
      pointers.push_back(reinterpret_cast<std::byte*>(b.data()));
      bytes.push_back(static_cast<int64_t>(b.size() * sizeof(float)));
    }
    kernel(Launch{pointers, bytes, variables});
    return data[0];
  };
  auto on = [&](const char* name) {
    DeviceRuntime& device = device_runtime(name);
    return run(
        [&](const Launch& l) { device.compile(lower_kernel(ast, device.target()))->run(l); });
  };
  const UOp linear = lower_kernel(ast, generic_target(false)).linear;
  const CLibrary text(render("c", "kernel", linear, true));
  const std::vector<float> compiled = on("CPU");
  EXPECT_EQ(compiled, on("INTERP"));
  EXPECT_EQ(compiled, run([&](const Launch& l) {
              std::vector<void*> pointers(l.buffers.begin(), l.buffers.end());
              for (int64_t thread = 0; thread < signature_of(linear).threads; ++thread)
                text.function("kernel")(pointers.data(), l.variables.data(), thread);
            }))
      << render("c", "kernel", linear, false);
  return compiled;
}

UOp flat_param(int64_t slot, int64_t n) { return param(slot, shape_of({n}), DType::Float32); }

// Of four rows of in, each folded from twice an element of init.
UOp fold_from_values(Op op, int64_t n) {
  const UOp out = flat_param(0, 4), in = flat_param(1, 4 * n), init = flat_param(2, 4);
  const UOp i = range(0, index_const(4), AxisType::Loop),
            k = range(1, index_const(n), AxisType::Reduce);
  const UOp start = mul(load(index(init, {i})), constant(DType::Float32, 2));
  const UOp fold = reduce_ranges(op, load(index(in, {add(mul(i, index_const(n)), k)})), {k}, start);
  return sink({end(store(index(out, {i}), fold), {i})});
}

// What a fold starts from is its source, outside of its loops: in memory as in text, however the
// loops are edited. In strict mode the start is the first that the fold rounds.
TEST(stages, a_fold_starts_from_its_last_source) {
  const UOp ast = fold_from_values(Op::Add, 24);
  EXPECT_EQ(parse(to_text(ast)), ast);
  for (const UOp& u : toposort(ast)) {
    if (!u.is(Op::Reduce)) continue;
    EXPECT_EQ(u.ranges().size(), 1U);
    EXPECT_EQ(reduced_ranges(u).size(), 1U);
    EXPECT_NE(expression_text(u).find(", from "), std::string::npos) << expression_text(u);
  }
  std::vector<float> in(4 * 24), init{1, -0.5F, 1e8F, -0.0F};
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(static_cast<float>(7 * i));
  std::fill(in.begin() + 72, in.end(), -0.0F);  // from -0 a sum of -0 is -0
  const std::vector<std::vector<Opt>> edits{
      {},
      {{OptOp::Padto, 1, 32}},
      {{OptOp::Padto, 1, 32}, {OptOp::Split, 1, 8, AxisType::Unroll}},
      {{OptOp::Split, 1, 4, AxisType::Unroll}},
      {{OptOp::Split, 1, 24, AxisType::Unroll}},
      {{OptOp::Split, 1, 8, AxisType::GroupReduce}},
      {{OptOp::Split, 0, 4, AxisType::Upcast}, {OptOp::Split, 1, 3, AxisType::Unroll}},
      {{OptOp::Split, 1, 6, AxisType::Reduce}, {OptOp::Swap, 0, 1}},
      {{OptOp::Swap, 0, 1}}};
  for (const Op op : {Op::Add, Op::Max})
    for (const bool strict : {true, false})
      for (const std::vector<Opt>& opts : edits) {
        const UOp kernel = fold_from_values(op, 24);
        const bool lanes = !opts.empty() && opts.back().target == AxisType::GroupReduce;
        std::vector<float> expected(4), got(4, -1);
        for (size_t i = 0; i < 4; ++i) {
          float total = 2 * init[i];
          for (size_t k = 0; k < 24; ++k)
            total = op == Op::Add ? total + in[24 * i + k] : std::max(total, in[24 * i + k]);
          expected[i] = total;
        }
        Options o = options();
        o.verify = 3;
        const OptionScope scope(o);
        std::vector<std::byte*> memory;
        for (std::vector<float>* b : {&got, &in, &init})
          memory.push_back(reinterpret_cast<std::byte*>(b->data()));
        const std::vector<int64_t> bytes{16, 4 * 96, 16};
        device_runtime("INTERP")
            .compile(lower_kernel(kernel, generic_target(strict), {}, &opts))
            ->run(Launch{memory, bytes, {}});
        for (size_t i = 0; i < 4; ++i) {
          SCOPED_TRACE(i);
          if (op == Op::Max || (strict && !lanes))
            EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]));
          else
            EXPECT_NEAR(got[i], expected[i], i == 2 ? 64 : 1e-5);
        }
      }
}

TEST(stages, spec_A3_every_address_space_renders) {
  // Each row of in (4, 8) goes through a LOCAL buffer and comes out reversed; the sum of the row is
  // a REG buffer.
  const UOp out = flat_param(0, 32), in = flat_param(1, 32);
  const UOp row =
      UOp::make(Op::Buffer, {shape_of({8})}, BufferArg{0, DType::Float32, {}, AddrSpace::Local});
  const UOp i = range(0, index_const(4), AxisType::Loop),
            j = range(1, index_const(8), AxisType::Loop),
            k = range(3, index_const(8), AxisType::Reduce),
            l = range(2, index_const(8), AxisType::Loop);
  auto at = [&](const UOp& column) { return add(mul(i, index_const(8)), column); };
  const UOp fill = end(store(index(row, {j}), load(index(in, {at(j)}))), std::vector<UOp>{j});
  const UOp filled = after(row, {fill});
  const UOp total = reduce_ranges(Op::Add, load(index(filled, {k})), std::vector<UOp>{k});
  const UOp reversed = load(index(filled, {sub(index_const(7), l)}));
  const UOp ast = sink(std::vector<UOp>{
      end(store(index(out, {at(l)}), add(reversed, total)), std::vector<UOp>{i, l})});
  std::vector<float> data(32), expected(32);
  for (size_t n = 0; n < 32; ++n) data[n] = static_cast<float>(n * n % 11);
  for (size_t r = 0; r < 4; ++r) {
    float sum = 0;
    for (size_t c = 0; c < 8; ++c) sum += data[r * 8 + c];
    for (size_t c = 0; c < 8; ++c) expected[r * 8 + c] = data[r * 8 + 7 - c] + sum;
  }
  EXPECT_EQ(run_kernel(ast, {std::vector<float>(32, -1), data}), expected);
  const UOp linear = lower_kernel(ast, generic_target(true)).linear;  // a sum without lanes
  const std::string c = render("c", "reverse", linear, false);
  EXPECT_NE(c.find("float local0[8];"), std::string::npos) << c;
  EXPECT_NE(c.find("float acc"), std::string::npos) << c;
  EXPECT_NE(c.find("float* data1 = buffers[1];"), std::string::npos) << c;
  const UOp huge = UOp::make(Op::Buffer, {shape_of({1 << 20})},
                             BufferArg{0, DType::Float32, {}, AddrSpace::Local});
  const UOp bad =
      sink(std::vector<UOp>{store(index(huge, {index_const(0)}), constant(DType::Float32, 1))});
  EXPECT_THROW((void)lower_kernel(bad, generic_target(false)), InternalError);
}

TEST(stages, spec_B15_a_closed_gate_touches_no_memory) {
  // Element 0 exists; the others would lie a page and more behind the buffer's end.
  const UOp out = flat_param(0, 4), in = flat_param(1, 1);
  const UOp i = range(0, index_const(4), AxisType::Loop);
  const UOp far = mul(i, index_const(int64_t{1} << 40));
  const UOp value = load(index(in, {far}), constant(DType::Float32, 7), lt(i, index_const(1)));
  const UOp ast = sink(std::vector<UOp>{end(store(index(out, {i}), value), std::vector<UOp>{i})});
  EXPECT_EQ(run_kernel(ast, {std::vector<float>(4), {3}}), (std::vector<float>{3, 7, 7, 7}));
}

TEST(stages, spec_B16_a_closed_gate_leaves_memory) {
  const UOp out = flat_param(0, 4);
  const UOp i = range(0, index_const(4), AxisType::Loop);
  const UOp odd = ne(mod(i, index_const(2)), index_const(0));
  const UOp ast = sink(std::vector<UOp>{
      end(store(index(out, {i}), constant(DType::Float32, 5), odd), std::vector<UOp>{i})});
  EXPECT_EQ(run_kernel(ast, {{1, 2, 3, 4}}), (std::vector<float>{1, 5, 3, 5}));
}

TEST(stages, spec_B17_nested_symbolic_and_empty_ranges) {
  // out[i * 3 + j] += 1 for i < n, j < 3; n is bound at the launch, also to 0.
  const UOp out = flat_param(0, 12), n = variable("n", 0, 4);
  const UOp i = range(0, n, AxisType::Loop), j = range(1, index_const(3), AxisType::Loop);
  const UOp at = index(out, {add(mul(i, index_const(3)), j)});
  const UOp ast = sink(std::vector<UOp>{
      end(store(at, add(load(at), constant(DType::Float32, 1))), std::vector<UOp>{i, j})});
  for (const int64_t rows : {0, 1, 4}) {
    std::vector<float> expected(12, 2);
    for (int64_t k = 0; k < rows * 3; ++k) expected[static_cast<size_t>(k)] = 3;
    EXPECT_EQ(run_kernel(ast, {std::vector<float>(12, 2)}, {rows}), expected) << rows;
  }
}

// Names that a kernel in C has for itself, or C has; and each finds its own value.
TEST(stages, spec_B6_spec_B17_variables_of_any_name) {
  const UOp out = flat_param(0, 6), in = flat_param(1, 40);
  std::vector<float> data(40);
  for (size_t i = 0; i < 40; ++i) data[i] = static_cast<float>(i * i);
  for (const char* name :
       {"n", "l", "thread", "v0", "data0", "buffers", "int", "idx0", "n_a", "b"}) {
    const UOp first = variable(name, 0, 8), second = variable("a", 1, 6);
    const UOp i = range(0, second, AxisType::Loop);
    const UOp value = load(index(in, {add(mul(i, index_const(2)), first)}));
    const UOp ast = sink(std::vector<UOp>{end(store(index(out, {i}), value), std::vector<UOp>{i})});
    std::map<std::string, int64_t> bound{{name, 3}, {"a", 4}};
    std::vector<int64_t> variables;
    for (const std::string& v : signature_of(lower_kernel(ast, cpu_target()).linear).variables)
      variables.push_back(bound.at(v));
    EXPECT_EQ(run_kernel(ast, {std::vector<float>(6, -1), data}, variables),
              (std::vector<float>{9, 25, 49, 81, -1, -1}))
        << name;
  }
}

// Of several axes in vectors, the last is the lanes: what lies side by side is loaded at once.
TEST(stages, the_last_upcast_axis_is_the_lanes) {
  const UOp out = flat_param(0, 32), in = flat_param(1, 32);
  const UOp i = range(0, index_const(4), AxisType::Upcast),
            j = range(1, index_const(8), AxisType::Upcast);
  const UOp at = add(mul(i, index_const(8)), j);
  const UOp ast = sink(std::vector<UOp>{end(
      store(index(out, {at}), unary(Op::Sqrt, load(index(in, {at})))), std::vector<UOp>{i, j})});
  const std::vector<Opt> none;
  const UOp linear = lower_kernel(ast, cpu_target("x86-64-v3", false), {}, &none).linear;
  int loads = 0, stores = 0;
  for (const UOp& u : linear.src()) {
    if (!u.is(Op::Load) && !u.is(Op::Store)) continue;
    EXPECT_EQ(lane_count(strip_after(u.src(0)).src(1)), 8) << to_text(linear);
    EXPECT_TRUE(contiguous_access(strip_after(u.src(0))).yes);
    ++(u.is(Op::Load) ? loads : stores);
  }
  EXPECT_EQ(loads, 4);
  EXPECT_EQ(stores, 4);
}

TEST(stages, spec_B17_ranges) {
  // A bound of 0 runs no body; loops nest.
  const UOp out = Tensor::from<int32_t>({7, 7, 7, 7}).uop();
  const UOp p = param(0, shape_of({4}), DType::Int32);
  for (const int64_t n : {0, 3}) {
    const UOp r = range(0, index_const(n), AxisType::Loop);
    const UOp ast = sink(std::vector<UOp>{
        end(store(index(p, {r}), constant_int(DType::Int32, 1)), std::vector<UOp>{r})});
    const std::vector<Opt> none;
    const Array got =
        run_linear(lower_kernel(ast, generic_target(true), {}, &none).linear, out, {});
    EXPECT_EQ(got.data[0], n == 0 ? 7u : 1u);
    EXPECT_EQ(got.data[3], 7u);
  }
}

// --- optimisations -------------------------------------------------------------------------------

// A kernel of n accumulators, lowered: processor seconds.
static double seconds_for_registers(int64_t n) {
  const UOp i = range(0, index_const(n), AxisType::Unroll),
            k = range(1, index_const(7), AxisType::Reduce);
  const UOp in = param(1, shape_of({n * 7}), DType::Float32),
            out = param(0, shape_of({n}), DType::Float32);
  const UOp sum = reduce_ranges(Op::Add, load(index(in, {add(i, mul(k, index_const(n)))})),
                                std::vector<UOp>{k});
  const UOp kernel = sink(std::vector<UOp>{end(store(index(out, {i}), sum), std::vector<UOp>{i})});
  const std::clock_t start = std::clock();
  const LoweredKernel lowered = lower_kernel(kernel, cpu_target());
  EXPECT_GT(lowered.linear.src().size(), static_cast<size_t>(n / 8));
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Thousands of accumulators in one kernel: each waits for one joint, not for every store. Four
// times as many cost four times as much; 16 times where every load waits for every store.
TEST(linearize, many_registers_cost_in_line) {
  double few = 1e9, many = 1e9;
  for (int run = 0; run < 3; ++run) {
    few = std::min(few, seconds_for_registers(1024));
    many = std::min(many, seconds_for_registers(4096));
  }
  EXPECT_LT(many, 9 * few);
}

TEST(opts, spec_O2_split_errors_name_axis_and_reason) {
  const UOp ast = schedule({(small({6, 8}) + Tensor(1.0)).uop()})[0].ast;
  expect_error([&] { (void)apply_opt(ast, {OptOp::Split, 0, 4, AxisType::Upcast, false}); },
               {"Split", "axis 0", "size 6", "Padto"});
  expect_error([&] { (void)apply_opt(ast, {OptOp::Split, 0, 2, AxisType::Unroll, false}); },
               {"axis 0 is LOOP", "UNROLL", "it may become"});
  const UOp r = range(0, index_const(INT64_MAX - 3), AxisType::Loop);
  const UOp at = index(param(0, shape_of({INT64_MAX}), DType::Float32), {r});
  const UOp endless =
      sink(std::vector<UOp>{end(store(at, constant(DType::Float32, 1)), std::vector<UOp>{r})});
  expect_error([&] { (void)apply_opt(endless, {OptOp::Padto, 0, 8}); },
               {"Padto", "axis 0", "9223372036854775804", "no multiple of 8"});
  EXPECT_TRUE(choose_opts(endless, cpu_target()).opts.empty()) << "what nobody waits for";
  expect_error([&] { (void)apply_opt(ast, {OptOp::Split, 5, 2, AxisType::Loop, false}); },
               {"axis 5", "2 axes"});
}

// Found by random graphs: LLVM 19 drops part of a mask whose lanes are partly constant.
TEST(render, masks_of_uniform_and_constant_conditions) {
  const UOp x = leaf({4, 2, 4}, DType::UInt32, 1), y = leaf({8, 4, 4}, DType::UInt32, 2);
  const UOp padded = pad(x, shape_of({2, 2, 0}), y.shape(), constant_int(DType::UInt32, 1));
  expect_same_everywhere(idiv(y, padded));
  expect_same_everywhere(add(y, padded));
}

// Lanes that are 0/0 where the mask is closed: NaN that nobody picks, on every instruction set.
TEST(render, quotients_of_zeros_under_a_mask_stay_out_of_sight) {
  const std::vector<float> ones(8, 1);
  for (const std::string_view level : {"", "x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
    if (!host_runs(level)) continue;
    Options o = options();
    o.cpu = level;
    const OptionScope scope(o);
    const Tensor zeros = Tensor::zeros({3, 1}).clone().realize(),
                 some = Tensor::from(ones, {4, 2}).shrink({{1, 4}, {0, 1}});
    const Tensor padded = (some / (zeros * Tensor(2.0))).pad({{2, 0}, {1, 2}});
    std::vector<float> expected(20, 0);
    for (const size_t i : {9, 13, 17}) expected[i] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(padded.tolist<float>(), expected) << level;
  }
}

// A scalar that is chosen is loaded alone, in memory that ends behind it.
TEST(render, a_choice_of_scalars_reads_no_more_than_them) {
  for (const std::string_view level : {"", "x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
    if (!host_runs(level)) continue;
    for (const DType dtype : {DType::Float32, DType::Float64, DType::Float16}) {
      Options o = options();
      o.cpu = level;
      o.noopt = true;
      const OptionScope scope(o);
      const auto three = [&](float first) {
        const std::vector<float> data{first, first + 1, first + 2};
        return Tensor::from(data, {3}).cast(dtype).realize();
      };
      const Tensor x = three(0), y = three(5), z = three(8), zero(0.0), one(1.0);
      for (const Tensor& value : {Tensor::where(x != zero, y, x), Tensor::where(x != zero, x, y),
                                  Tensor::where(x < one, y, z)}) {
        const UOp out = buffer_from_host(value.uop().shape(), dtype, "CPU", nullptr);
        const Callified program = callify({value.uop()}, {out});
        const Array got = run_kernels(kernels_of(rangeify(program.body)), program, {0, {}});
        EXPECT_EQ(difference(interpret(value.uop(), bindings_of(value.uop())), got), "") << level;
      }
    }
  }
}

// Found by random sequences: each is a wrong value or an access out of bounds when it breaks.
TEST(opts, sequences_that_once_went_wrong) {
  const OptionScope scope(strict_options());
  auto check = [](const UOp& graph, const std::vector<Opt>& opts) {
    const UOp out = buffer_from_host(graph.shape(), graph.dtype(), "CPU", nullptr);
    const Callified program = callify({graph}, {out});
    const Kernel kernel = kernels_of(rangeify(program.body)).at(0);
    std::vector<UOp> inputs;
    for (size_t i = 1; i < kernel.buffers.size(); ++i)
      inputs.push_back(
          program.arguments[static_cast<size_t>(kernel.buffers[i].as<BufferArg>().slot)]);
    const Array got =
        run_linear(lower_kernel(kernel.ast, generic_target(true), {}, &opts).linear, out, inputs);
    EXPECT_EQ(difference(interpret(graph, bindings_of(graph)), got), "") << to_text(graph);
  };
  const UOp x = leaf({4, 6}, DType::Int32);
  // Two THREAD axes are one thread index.
  check(add(x, x), {{OptOp::Split, 0, 2, AxisType::Thread, true},
                    {OptOp::Split, 2, 3, AxisType::Thread, true}});
  // Beyond a padded axis the last element is read again, under the gate of the last element.
  const UOp gated = pad(flip(leaf({4, 5}, DType::Int32), {0, 1}), shape_of({0, 3}),
                        shape_of({4, 9}), constant_int(DType::Int32, 9));
  for (const int axis : {0, 1}) check(gated, {{OptOp::Padto, axis, 8}});
  const UOp late = pad(flip(leaf({9}, DType::Int32), {1}), shape_of({7}), shape_of({16}),
                       constant_int(DType::Int32, 9));
  check(reshape(late, shape_of({4, 4})), {{OptOp::Padto, 1, 8}});
  check(permute(gated, {1, 0}), {{OptOp::Padto, 0, 8}, {OptOp::Padto, 1, 3}});
}

TEST(opts, narrow_floats_fold_one_by_one) {
  const UOp x = leaf({6, 64}, DType::Float16);
  expect_same_everywhere(reduce(Op::Add, x, {1}));
  EXPECT_EQ(Tensor(reduce(Op::Max, x, {1})).tolist<float>().size(), 6u) << "in default mode";
  const OptionScope scope(strict_options());
  const Kernel k = schedule({reduce(Op::Add, x, {1})})[0];
  expect_error([&] { (void)apply_opt(k.ast, {OptOp::Split, 1, 4, AxisType::Unroll, false}); },
               {"Split", "axis 1", "float32"});
}

TEST(opts, spec_O4_swap_twice_is_identity) {
  const UOp ast = schedule({small({6, 8, 4}).permute({2, 0, 1}).contiguous().uop()})[0].ast;
  const Opt swap{OptOp::Swap, 0, 2, AxisType::Loop, false};
  EXPECT_EQ(apply_opt(apply_opt(ast, swap), swap),
            apply_opt(ast, {OptOp::Split, 0, 1, AxisType::Loop, false}));
}

TEST(opts, spec_O3_padto_masks_what_lies_beyond) {
  const Tensor x = small({127});
  const UOp value = x.sum().uop(),
            buffer = buffer_from_host(shape_of({}), DType::Float32, "CPU", nullptr);
  const Kernel k = kernels_of(rangeify(callify({value}, {buffer}).body))[0];
  const std::vector<Opt> opts{{OptOp::Padto, 0, 128, AxisType::Loop, false},
                              {OptOp::Split, 0, 8, AxisType::GroupReduce, false}};
  const Array got =
      run_linear(lower_kernel(k.ast, generic_target(false), {}, &opts).linear, buffer, {x.uop()});
  EXPECT_NEAR(bits_to_double(DType::Float32, got.data[0]), x.sum().item(), 1e-4)
      << "every access was checked by the interpreter";
}

// A REDUCE axis outside of the output's loops: partial sums live in the output, the fold keeps its
// order, and the epilogue runs once, in the last block.
TEST(opts, spec_amend_24_reduce_outside_loops_keeps_partial_sums) {
  const OptionScope scope(strict_options());
  const Tensor a = small({12, 24}), b = small({24, 16}, 1);
  for (const bool epilogue : {false, true}) {
    const UOp product = reduce(
        Op::Add,
        mul(reshape(a.uop(), shape_of({12, 24, 1})), reshape(b.uop(), shape_of({1, 24, 16}))), {1});
    const UOp value =
        epilogue ? maximum(add(product, constant(DType::Float32, 1)), constant(DType::Float32, 0))
                 : product;
    const UOp buffer = buffer_from_host(value.shape(), DType::Float32, "CPU", nullptr);
    const Callified program = callify({value}, {buffer});
    const Kernel k = kernels_of(rangeify(program.body))[0];
    const std::vector<Opt> opts{{OptOp::Split, 2, 6, AxisType::Reduce, false},
                                {OptOp::Split, 1, 8, AxisType::Upcast, false},
                                {OptOp::Swap, 3, 2, AxisType::Loop, false},
                                {OptOp::Swap, 2, 1, AxisType::Loop, false},
                                {OptOp::Swap, 1, 0, AxisType::Loop, false}};
    const LoweredKernel lowered = lower_kernel(k.ast, generic_target(true), {}, &opts);
    EXPECT_EQ(lowered.name.substr(0, 5), "r_R4_") << lowered.name;
    std::vector<UOp> inputs;
    for (size_t i = 1; i < k.buffers.size(); ++i)
      inputs.push_back(program.arguments[static_cast<size_t>(k.buffers[i].as<BufferArg>().slot)]);
    EXPECT_EQ(difference(interpret(value, bindings_of(value)),
                         run_linear(lowered.linear, buffer, inputs)),
              "");
  }
}

// A running fold is as long as its loop says: it stays inside, though its number is smaller.
TEST(opts, a_fold_whose_length_a_loop_decides_stays_in_that_loop) {
  const UOp out = UOp::make(Op::Param, {shape_of({10})},
                            BufferArg{0, DType::Int32, Device("CPU"), AddrSpace::Global, ""});
  const UOp i = range(5, index_const(10), AxisType::Loop);
  const UOp j = range(1, add(i, index_const(1)), AxisType::Reduce);
  const UOp sums = reduce_ranges(Op::Add, cast(j, DType::Int32), {j});
  const UOp kernel = sink(std::vector<UOp>{end(store(index(out, {i}), sums), {i})});
  const UOp buffer = buffer_from_host(out.shape(), DType::Int32, "CPU", nullptr);
  const Array got = run_linear(lower_kernel(kernel, generic_target(true)).linear, buffer, {});
  for (int64_t k = 0; k < 10; ++k)
    EXPECT_EQ(bits_to_int(DType::Int32, got.data[static_cast<size_t>(k)]), k * (k + 1) / 2);
}

TEST(opts, spec_O1d_spec_amend_32_thread_count_never_changes_a_bit) {
  const Tensor a = small({128, 96}), b = small({96, 160}, 1), long_one = small({1 << 18}, 2);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 8}) {
    Options o = options();
    o.threads = threads;
    const OptionScope scope(o);
    std::vector<float> r = (a.matmul(b) + Tensor(1.0)).tolist<float>();
    r.push_back(long_one.clone().sum().tolist<float>()[0]);
    results.push_back(r);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace koine::test
