// Tensor cores: rows O6, X2 and O1c. The oracle is a plain loop over doubles, which is exact for
// small whole numbers; for others the interpreter of graphs with its bounds.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/base/compile_options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/cpu/jit.hpp"
#include "koine/runtime/device.hpp"
#include "products.hpp"

namespace koine::test {
namespace {

// The place of a core among a target's; -1: it has none of that name.
int core_of(const Target& target, std::string_view name) {
  const auto& all = target.tensor_cores;
  const auto it = std::ranges::find(all, name, &TensorCore::name);
  return it == all.end() ? -1 : static_cast<int>(it - all.begin());
}

Options on(const std::string& device, bool strict) {
  Options o = options();
  o.device = device;
  o.strict = strict;
  return o;
}

// With edits, on a device.
std::vector<std::byte> computed(const Gemm& g, const std::vector<Opt>& opts,
                                const std::string& device, bool strict) {
  const OptionScope scope(on(device, strict));
  DeviceRuntime& runtime = device_runtime(device);
  const auto program = runtime.compile(lower_kernel(g.ast(), runtime.target(), {}, &opts));
  const std::vector<std::byte> left = in_memory(g.left(), g.a), right = in_memory(g.right(), g.b);
  GuardedMemory out(g.m * g.n * item_size(g.sum)), x(g.m * g.k * item_size(g.a)),
      y(g.k * g.n * item_size(g.b));
  const std::array<int64_t, 3> bytes{g.m * g.n * item_size(g.sum), g.m * g.k * item_size(g.a),
                                     g.k * g.n * item_size(g.b)};
  std::copy_n(left.data(), bytes[1], x.data());
  std::copy_n(right.data(), bytes[2], y.data());
  const std::array<std::byte*, 3> buffers{out.data(), x.data(), y.data()};
  program->run({buffers, bytes, {}});
  ran_on(device);
  return {out.data(), out.data() + bytes[0]};
}

// Interpreted and compiled, for loops and for groups.
void expect_product(const Gemm& g, const std::vector<Opt>& opts,
                    const std::vector<std::string>& devices = {"INTERP", "CPU", "SIMT"},
                    const std::vector<bool>& modes = {true, false}) {
  for (const bool strict : modes)
    for (const std::string& device : devices)
      EXPECT_EQ(problem_of(g, computed(g, opts, device, strict), strict), "")
          << device << (strict ? " strict " : " default ");
}

// A product of `size` by `size` elements for each of some batches, which are its first axis.
UOp product_of_batches(int64_t batches, int64_t size) {
  const auto axis = [](int id, int64_t n, AxisType type) {
    return range(id, index_const(n), type);
  };
  const UOp batch = axis(0, batches, AxisType::Loop), i = axis(1, size, AxisType::Loop),
            j = axis(2, size, AxisType::Loop), l = axis(3, size, AxisType::Reduce);
  const auto place = [&](const UOp& row, const UOp& column) {
    const UOp rows = add(mul(batch, index_const(size)), row);
    return std::vector<UOp>{add(mul(rows, index_const(size)), column)};
  };
  const UOp all = shape_of({batches * size * size});
  const auto factor = [&](int slot, const UOp& row, const UOp& column) {
    return cast(load(index(param(slot, all, DType::Float16), place(row, column))), DType::Float32);
  };
  const UOp sum = reduce_ranges(Op::Add, mul(factor(1, i, l), factor(2, l, j)), {l});
  return sink({end(store(index(param(0, all, DType::Float32), place(i, j)), sum), {batch, i, j})});
}

// As text of a language with groups, through its shim, or of C.
void expect_product_in_text(const std::string& language, const Gemm& g,
                            const std::vector<Opt>& opts, bool strict = false) {
  const OptionScope scope(on("CPU", strict));
  const bool c = language == "c";
  const Target target = text_target(language, strict);
  const UOp linear = lower_kernel(g.ast(), target, {}, &opts).linear;
  std::vector<std::byte> out =
                             in_memory(std::vector<double>(static_cast<size_t>(g.m * g.n)), g.sum),
                         left = in_memory(g.left(), g.a), right = in_memory(g.right(), g.b);
  const auto given = [](std::vector<std::byte>& memory) {
    return TextLibrary::Given{memory.data(), static_cast<int64_t>(memory.size())};
  };
  text_library(language, render(language, "k", linear) + (c ? "" : "KOINE_RUN(k)\n"))
      ->run("k", {given(out), given(left), given(right)}, signature_of(linear), {});
  EXPECT_EQ(problem_of(g, out, strict), "") << language << (strict ? " strict" : " default");
}

std::string name_of(const Gemm& g, const Target& target, const std::vector<Opt>& opts) {
  return lower_kernel(g.ast(), target, {}, &opts).name;
}

const Gemm square{32, 32, 32};

}  // namespace

TEST(tensor_cores, spec_O6_the_axes_after_TC_show_w_u_r) {
  const Target any = generic_target(false), gpu = simt_target(false);
  EXPECT_EQ(name_of(square, any, {tc(2)}), "r_L2_L2_u16_u16_R2_r16");
  const int mma = core_of(gpu, "cuda_m16n8k16_f16");
  EXPECT_EQ(name_of(square, gpu, {tc(2, mma)}), "r_L2_L4_w8_w4_u2_u2_R2_r16");
  EXPECT_EQ(name_of(square, gpu, {tc(2, mma, 0, 2)}), "r_L2_L4_l8_l4_u2_u2_R2_r16");
  EXPECT_EQ(opt_text(tc(2, 1, 2)), "TC(2, (1, 2, 1))");
  // All of an axis is no loop.
  EXPECT_EQ(name_of(Gemm{16, 16, 16}, any, {tc(2)}), "r_u16_u16_r16");
  // They come behind the loop over batches too.
  const std::vector<Opt> on_core{tc(3)};
  EXPECT_EQ(lower_kernel(product_of_batches(3, 32), any, {}, &on_core).name,
            "r_L3_L2_L2_u16_u16_R2_r16");
}

TEST(tensor_cores, spec_X2_this_cpu_has_those_whose_instructions_it_has) {
  const Target target = cpu_target("", false);
  const bool v4 = host_runs("x86-64-v4");
  const auto has = [&](std::string_view feature) {
    return std::ranges::any_of(target.tensor_cores,
                               [&](const TensorCore* c) { return c->feature == feature; });
  };
  EXPECT_EQ(has("avx512vnni"), v4 && __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(has("avx512bf16"), v4 && __builtin_cpu_supports("avx512bf16") != 0);
}

TEST(tensor_cores, spec_O6_TC_comes_first) {
  const UOp ast = square.ast();
  const Target any = generic_target(false);
  const std::vector<Opt> late{split(0, 2, AxisType::Loop), tc(3)},
      later{split(0, 2, AxisType::Upcast), tc(3)}, twice{tc(2), tc(6)};
  for (const auto& opts : {late, later, twice})
    expect_error([&] { (void)lower_kernel(ast, any, {}, &opts); }, {"TC(", "must be the first"});
  expect_error([&] { (void)apply_opt(apply_opt(ast, later[0], any), later[1], any); },
               {"TC(3, (-1, 0, 1))", "must be the first edit", "UPCAST already"});
}

TEST(tensor_cores, spec_O6_what_no_core_computes_is_refused_core_by_core) {
  const Target any = generic_target(false), gpu = simt_target(false);
  auto refused = [&](const UOp& ast, const Opt& opt, const std::vector<std::string>& parts,
                     const Target& target) {
    EXPECT_FALSE(can_apply(ast, opt, target));
    expect_error([&] { (void)apply_opt(ast, opt, target); }, parts);
  };
  refused(Gemm{20, 32, 32}.ast(), tc(2),
          {"software_16x16x16_f16: the size 20 of axis 0 is no multiple of 16 (opt 2 pads it)"},
          any);
  refused(square.ast(), tc(0), {"takes a REDUCE axis, and this one is LOOP"}, any);
  refused(square.ast(), tc(7), {"axis 7 is out of range"}, any);
  refused(square.ast(), tc(2, 5), {"there is no tensor core 5: the target has 1"}, any);
  refused(square.ast(), tc(2, -1, 0, 3), {"mode 3", "expected 1"}, any);
  refused(square.ast(), tc(2), {"the target has no tensor cores"}, Target{});
  refused(Gemm{32, 32, 32, DType::Float32, DType::Float32}.ast(), tc(2),
          {"no product of two narrower factors", "converted to float32"}, any);
  refused(Gemm{32, 32, 32, DType::Float16, DType::Float32}.ast(), tc(2),
          {"no product of two narrower factors"}, any);
  refused(Gemm{32, 32, 32, DType::Float32, DType::Float16}.ast(), tc(2),
          {"no product of two narrower factors"}, any);
  refused(Gemm{32, 32, 32, DType::Int8, DType::Int8, DType::Int32}.ast(), tc(2),
          {"software_16x16x16_f16: it sums in float32"}, any);
  refused(Gemm{32, 32, 32, DType::BFloat16, DType::BFloat16}.ast(), tc(2, 1),
          {"cuda_m16n8k16_f16: it multiplies float16 and float16, these are bfloat16"}, gpu);
  const Tensor half = Tensor::arange(32 * 32).reshape({32, 32}).cast(DType::Float16).realize();
  refused(schedule({half.max({1}).uop()})[0].ast, tc(1), {"a tensor core computes one sum"}, any);
  Gemm with_max = square;
  with_max.around = true;
  refused(with_max.ast(), tc(2), {"a factor is computed (opt 1 takes that too)"}, any);
  EXPECT_TRUE(can_apply(with_max.ast(), tc(2, -1, 1), any));
  // A sum of squares has no loop of its own for each factor.
  const UOp i = range(0, index_const(32), AxisType::Loop),
            l = range(1, index_const(32), AxisType::Reduce);
  const UOp x = cast(
      load(index(param(1, shape_of({1024}), DType::Float16), {add(mul(i, index_const(32)), l)})),
      DType::Float32);
  refused(sink({end(store(index(param(0, shape_of({32}), DType::Float32), {i}),
                          reduce_ranges(Op::Add, mul(x, x), {l})),
                    {i})}),
          tc(1), {"each factor needs a loop"}, any);
  // Its axes stay where they are.
  const UOp on_core = apply_opt(square.ast(), tc(2), any);
  expect_error([&] { (void)apply_opt(on_core, split(2, 2, AxisType::Upcast), any); }, {"UPCAST"});
  expect_error([&] { (void)apply_opt(on_core, {OptOp::Swap, 2, 3}, any); },
               {"on a tensor core the axes of the core stay where they are"});
  expect_error([&] { (void)apply_opt(on_core, split(4, 2, AxisType::GroupReduce), any); },
               {"on a tensor core threads do not fold a sum together"});
  expect_error([&] { (void)apply_opt(on_core, {OptOp::Padto, 4, 3}, any); }, {"on a tensor core"});
  const UOp warps = apply_opt(square.ast(), tc(2, core_of(gpu, "cuda_m16n8k16_f16")), gpu);
  expect_error([&] { (void)apply_opt(warps, {OptOp::Nolocals}, gpu); },
               {"Nolocals: the threads of a tensor core are a group"});
  expect_error([&] { (void)apply_opt(warps, split(0, 2, AxisType::Thread), gpu); },
               {"groups of threads"});
}

TEST(tensor_cores, spec_O6_spec_X2_whole_numbers_are_exact_everywhere) {
  expect_product(square, {tc(2)});
  expect_product({48, 16, 64}, {tc(2)});
  for (const char* language : {"c", "cuda", "hip", "metal"})
    expect_product_in_text(language, square, {tc(2)}, true);
  expect_product_in_text("cuda", square, {tc(2)});
  // Without a loop the core goes on from zeros.
  const int mma = core_of(simt_target(false), "cuda_m16n8k16_f16");
  expect_product_in_text("cuda", {16, 8, 16}, {tc(2, mma)});
  for (const char* language : {"c", "cuda"})
    expect_product_in_text(language, {16, 16, 16}, {tc(2)});
}

TEST(tensor_cores, spec_O6_any_numbers_are_within_the_bound_and_strict_ones_exact) {
  expect_product({32, 48, 64, DType::Float16, DType::Float16, DType::Float32, FactorKind::Any},
                 {tc(2)});
}

// A product as large as those of real programs, on each core that this CPU executes: sums of 1024
// products, at sampled elements beside sums of doubles. Whole numbers are exact.
TEST(tensor_cores, spec_O6_spec_X2_a_product_of_1024_is_within_the_bound) {
  const Target host = cpu_target(options().cpu, false);
  std::vector<std::string_view> ran;
  for (int number = 0; number < static_cast<int>(host.tensor_cores.size()); ++number) {
    const TensorCore& core = *host.tensor_cores[static_cast<size_t>(number)];
    // Rows for the threads, and tiles of which a register holds a row.
    const std::vector<Opt> opts{tc(2, number), split(0, 4, AxisType::Upcast),
                                split(0, 2, AxisType::Thread, true)};
    for (const FactorKind kind : {FactorKind::Any, FactorKind::Whole}) {
      if (kind == FactorKind::Any && is_integer(core.accumulator.dtype)) continue;
      const Gemm g{1024, 1024, 1024, core.a.dtype, core.b.dtype, core.accumulator.dtype, kind};
      EXPECT_EQ(problem_of(g, computed(g, opts, "CPU", false), false, 4099), "") << core.name;
    }
    ran.push_back(core.name);
  }
  EXPECT_NE(std::ranges::find(ran, "software_16x16x16_f16"), ran.end());
}

TEST(tensor_cores, spec_O6_further_edits_follow) {
  const std::vector<Opt> loops{tc(2), split(0, 2, AxisType::Upcast), split(5, 2, AxisType::Unroll)};
  expect_product({64, 32, 64}, loops, {"INTERP", "CPU"});
  const std::vector<Opt> threads{tc(2), split(0, 2, AxisType::Thread, true)};
  expect_product({64, 32, 32}, threads, {"INTERP", "CPU"});
  const std::vector<Opt> grid{tc(2), split(0, 2, AxisType::Local), split(0, 0, AxisType::Global)};
  expect_product({64, 32, 32}, grid, {"SIMT"});
  // The outer part of the sum outside, with partial sums in the output.
  expect_product({32, 32, 64}, {tc(2), {OptOp::Swap, 0, 4}}, {"INTERP", "CPU"});
}

// Factors through LOCAL memory, along rows of it that a core reads; of every core that threads
// share.
TEST(tensor_cores, spec_O6_factors_go_through_local_memory) {
  const Target gpu = simt_target(false);
  for (size_t i = 0; i < gpu.tensor_cores.size(); ++i) {
    const TensorCore& core = *gpu.tensor_cores[i];
    const auto number = static_cast<int>(i);
    for (const bool transposed : {false, true}) {
      const Gemm g{core.m * 4,        core.n * 8,   core.k * 4,
                   core.a.dtype,      core.b.dtype, core.accumulator.dtype,
                   FactorKind::Whole, transposed};
      std::vector<Opt> opts{tc(2, number), split(1, 2, AxisType::Upcast),
                            split(1, 2, AxisType::Local), split(0, 2, AxisType::Local)};
      const std::vector<UOp> axes = kernel_ranges(apply_opts(g.ast(), opts, gpu));
      const auto sum = static_cast<int>(
          std::ranges::find_if(
              axes, [](const UOp& r) { return r.as<RangeArg>().type == AxisType::Reduce; }) -
          axes.begin());
      opts.insert(opts.end(), {split(sum, 2, AxisType::Reduce), {OptOp::Stage, sum + 1}});
      opts.push_back(split(0, 0, AxisType::Global));
      expect_product(g, opts, {"SIMT"}, {false});
    }
    const Gemm odd{core.m + 3,   core.n * 2 + 1, core.k * 2 + 5,
                   core.a.dtype, core.b.dtype,   core.accumulator.dtype};
    const auto sum =
        static_cast<int>(2 + core.accumulator.threads.size() + core.accumulator.elements.size());
    expect_product(odd, {tc(2, number, 2), {OptOp::Stage, sum}}, {"SIMT"}, {false});
  }
  // Where an axis of a core would no longer be the innermost of its type.
  const Gemm g{20, 18, 40, DType::BFloat16, DType::BFloat16};
  const UOp swapped = apply_opts(g.ast(), std::vector<Opt>{tc(2, 2, 2), {OptOp::Swap, 1, 6}}, gpu);
  expect_error([&] { (void)apply_opt(swapped, split(6, 3, AxisType::Upcast, true), gpu); },
               {"the axes of the core stay the innermost"});
}

TEST(tensor_cores, spec_O6_opt_2_pads) {
  for (const Gemm& g : {Gemm{20, 32, 32}, Gemm{32, 9, 32}, Gemm{32, 32, 37}, Gemm{5, 7, 3},
                        Gemm{33, 1 + 16, 50}, Gemm{17, 31, 2}})
    expect_product(g, {tc(2, -1, 2)});
  // What does not count adds nothing, also where it is infinite or NaN.
  for (const Gemm& g : {Gemm{20, 19, 21}, Gemm{3, 18, 2}, Gemm{18, 17, 30}}) {
    Gemm wild = g;
    wild.kind = FactorKind::Wild;
    expect_product(wild, {tc(2, -1, 2)}, {"INTERP", "CPU", "SIMT"}, {true});
  }
}

TEST(tensor_cores, spec_O6_factors_and_results_may_be_computed_and_transposed) {
  for (const bool transposed : {false, true})
    expect_product({32, 48, 32, DType::Float16, DType::Float16, DType::Float32, FactorKind::Any,
                    transposed, true},
                   {tc(2, -1, 1)});
}

// A product in float16 that is rounded before it is added, which no core does.
TEST(tensor_cores, spec_O6_rounded_products_are_refused) {
  const Tensor a = small({32, 48}, 1).cast(DType::Float16).realize(),
               b = small({48, 32}, 2).cast(DType::Float16).realize();
  const Target any = generic_target(false);
  const Tensor rounded = (a.unsqueeze(1) * b.transpose().unsqueeze(0)).sum({2});
  expect_error([&] { (void)apply_opt(schedule({rounded.uop()})[0].ast, tc(2), any); },
               {"a product of narrow floats is rounded before it is added"});
}

// What is only moved is not computed with: its bits go where they are wanted.
TEST(tensor_cores, narrow_floats_that_are_moved_stay_bits) {
  for (const DType d : {DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2}) {
    const Tensor x(new_buffer(shape_of({64, 48}), d, Device("CPU")));
    const UOp moved = schedule({(x.transpose().contiguous()).uop()})[0].ast;
    for (const Target& target : {generic_target(false), simt_target(true)}) {
      const UOp linear = lower_kernel(moved, target).linear;
      for (const UOp& u : linear.src())
        EXPECT_FALSE(is_float(u.dtype())) << dtype_name(d) << " " << op_name(u.op());
    }
  }
}

// One number has other bits in each narrow format.
TEST(tensor_cores, narrow_factors_of_several_formats_keep_apart) {
  const UOp i = range(0, index_const(16), AxisType::Loop),
            j = range(1, index_const(16), AxisType::Loop),
            l = range(2, index_const(16), AxisType::Reduce);
  const UOp at = add(mul(i, index_const(16)), l), to = add(mul(j, index_const(16)), l);
  auto positive = [](const UOp& v) {  // or 1
    return where(lt(constant_int(v.dtype(), 0), v), v, constant_int(v.dtype(), 1));
  };
  auto memory = [](int64_t slot, DType d) { return param(slot, shape_of({256}), d); };
  const UOp x = positive(load(index(memory(1, DType::BFloat16), {at}))),
            y = positive(load(index(memory(2, DType::BFloat16), {to}))),
            z = positive(load(index(memory(3, DType::Float16), {add(mul(i, index_const(16)), j)})));
  const UOp sum =
      reduce_ranges(Op::Add, mul(cast(x, DType::Float32), cast(y, DType::Float32)), {l});
  const UOp ast =
      sink({end(store(index(memory(0, DType::Float32), {add(mul(i, index_const(16)), j)}),
                      add(cast(z, DType::Float32), sum)),
                {i, j})});
  const OptionScope scope(on("SIMT", false));
  DeviceRuntime& runtime = device_runtime("SIMT");
  const std::vector<Opt> opts{tc(2, core_of(runtime.target(), "cuda_m16n8k16_bf16"), 1)};
  const auto program = runtime.compile(lower_kernel(ast, runtime.target(), {}, &opts));
  std::vector<float> out(256);
  std::vector<uint16_t> zeros(256);
  std::array<std::byte*, 4> buffers{reinterpret_cast<std::byte*>(out.data())};
  for (size_t k = 1; k < 4; ++k) buffers[k] = reinterpret_cast<std::byte*>(zeros.data());
  program->run({buffers, std::array<int64_t, 4>{1024, 512, 512, 512}, {}});
  for (const float v : out) EXPECT_EQ(v, 17);
}

// A warp in the interpreter, step by step, and as text of CUDA through a reference of mma.sync.
TEST(tensor_cores, spec_X2_warps_hold_fragments_as_mma_says) {
  const Target gpu = simt_target(false);
  for (const DType d : {DType::Float16, DType::BFloat16}) {
    const int mma = core_of(gpu, d == DType::Float16 ? "cuda_m16n8k16_f16" : "cuda_m16n8k16_bf16");
    const Gemm any{32, 24, 48, d, d, DType::Float32, FactorKind::Any}, ragged{37, 21, 70, d, d},
        deep{16, 8, 64, d, d},
        around{32, 16, 32, d, d, DType::Float32, FactorKind::Any, true, true};
    // Several warps a group; tiles of several fragments, with axes that are padded; a sum that is
    // unrolled, and one whose parts stand outside.
    const std::vector<std::pair<Gemm, std::vector<Opt>>> cases{
        {any, {tc(2, mma), split(0, 0, AxisType::Global), split(1, 3, AxisType::Local)}},
        {ragged, {tc(2, mma, 2), split(0, 3, AxisType::Upcast), split(1, 3, AxisType::Upcast)}},
        {deep, {tc(2, mma), split(4, 2, AxisType::Unroll)}},
        {around, {tc(2, mma, 1)}}};
    for (const auto& [g, opts] : cases) {
      expect_product(g, opts, {"SIMT"}, {false});
      if (d == DType::Float16 || &opts == &cases[0].second) expect_product_in_text("cuda", g, opts);
    }
    // The axes of the core without the core, on any device with groups.
    expect_product(any, {tc(2, mma, 0, 2)}, {"SIMT"}, {false});
  }
  expect_product_in_text("metal", square, {tc(2, core_of(gpu, "software_16x16x16_f16"), 0, 2)});
}

TEST(tensor_cores, spec_X2_cuda_text_is_the_instruction) {
  const Target gpu = simt_target(false);
  const std::vector<Opt> opts{tc(2, core_of(gpu, "cuda_m16n8k16_f16"))};
  const UOp linear = lower_kernel(square.ast(), gpu, {}, &opts).linear;
  const auto count =
      std::ranges::count_if(linear.src(), [](const UOp& u) { return u.is(Op::Wmma); });
  EXPECT_EQ(count, 1);
  EXPECT_EQ(parse(to_text(linear)), linear);
  // So is a long sum, which is a tree of such, and one in blocks, with partial sums in the output.
  const Gemm tall{32, 32, 2048};
  for (const auto& edits :
       {std::vector<Opt>{tc(2, opts[0].tc.core)},
        {tc(2, opts[0].tc.core), split(6, 8, AxisType::Reduce), {OptOp::Swap, 0, 6}}})
    EXPECT_GE(std::ranges::count_if(lower_kernel(tall.ast(), gpu, {}, &edits).linear.src(),
                                    [](const UOp& u) { return u.is(Op::Wmma); }),
              1);
  const std::string text = render("cuda", "k", linear);
  EXPECT_NE(text.find("mma.sync.aligned.m16n8k16.row.col.f32."), std::string::npos);
  EXPECT_NE(text.find("cuda_m16n8k16_f16(v"), std::string::npos);
  for (const char* other : {"hip", "metal", "opencl"})
    expect_error([&] { (void)render(other, "k", linear); }, {"cuda_m16n8k16_f16"});
  // Those that lack it are not offered it.
  for (const char* other : {"hip", "metal", "opencl"})
    EXPECT_EQ(core_of(text_target(other, false), "cuda_m16n8k16_f16"), -1);
  EXPECT_GE(core_of(text_target("cuda", false), "cuda_m16n8k16_f16"), 0);
}

TEST(tensor_cores, spec_X2_nvidias_compiler_takes_the_instruction) {
  if (std::system("command -v nvcc >/dev/null") != 0) GTEST_SKIP() << "no nvcc: not compiled";
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("koine_mma_{}", getpid());
  std::filesystem::create_directories(folder);
  const Target gpu = text_target("cuda", false);
  std::string text;
  for (const DType d : {DType::Float16, DType::BFloat16}) {
    const std::vector<Opt> opts{
        tc(2, core_of(gpu, d == DType::Float16 ? "cuda_m16n8k16_f16" : "cuda_m16n8k16_bf16"))};
    text += render("cuda", std::string("k_") + std::string(dtype_name(d)),
                   lower_kernel(Gemm{32, 32, 32, d, d}.ast(), gpu, {}, &opts).linear, text.empty());
  }
  std::ofstream(folder / "kernels.cu") << text;
  EXPECT_EQ(std::system(fmt::format("cd {} && nvcc -w -cubin -arch=sm_80 -o k.cubin kernels.cu",
                                    folder.string())
                            .c_str()),
            0)
      << text;
  std::filesystem::remove_all(folder);
}

TEST(tensor_cores, spec_X2_strict_mode_has_cores_that_fold_in_order_alone) {
  for (const Target& t : {simt_target(true), generic_target(true), cpu_target("", true)})
    for (const TensorCore* core : t.tensor_cores) EXPECT_TRUE(core->ordered) << core->name;
  EXPECT_EQ(core_of(simt_target(true), "cuda_m16n8k16_f16"), -1);
}

TEST(tensor_cores, spec_X2_instructions_of_this_cpu) {
  struct Case {
    const char* core;
    DType a, b, sum;
  };
  const Case cases[] = {{"x86_vdpbf16ps", DType::BFloat16, DType::BFloat16, DType::Float32},
                        {"x86_vpdpbusd", DType::UInt8, DType::Int8, DType::Int32},
                        {"x86_vpdpwssd", DType::Int16, DType::Int16, DType::Int32},
                        {"x86_vpdpwssd", DType::Int8, DType::UInt8, DType::Int32}};
  const Target host = cpu_target(options().cpu, false),
               strict_host = cpu_target(options().cpu, true);
  std::string missing;
  for (const Case& c : cases) {
    const TensorCore& core = tensor_core_named(c.core);
    const Gemm g{6, 32, 24, c.a, c.b, c.sum};
    // As code for a machine that has it, and as text of C, wherever this runs.
    Target named = cpu_target("x86-64-v4", false);
    named.features = fmt::format("+{}", core.feature);
    give_cores(named, [](const TensorCore& t) { return !t.feature.empty(); });
    const std::vector<Opt> opts{tc(2, core_of(named, c.core)), split(0, 3, AxisType::Upcast)};
    const UOp linear = lower_kernel(g.ast(), named, {}, &opts).linear;
    EXPECT_GE(std::ranges::count_if(linear.src(), [](const UOp& u) { return u.is(Op::Wmma); }), 3);
    const std::string instruction(core.name.substr(core.name.find('_') + 1));
    EXPECT_NE(render_llvm_text(linear, "k", named).find(instruction.substr(1, 4)),
              std::string::npos);
    EXPECT_FALSE(compile_object(linear, named).empty());
    const CLibrary text(render("c", "k", linear), 1);
    std::vector<std::byte> left = in_memory(g.left(), g.a), right = in_memory(g.right(), g.b),
                           out(static_cast<size_t>(g.m * g.n * 4));
    void* buffers[] = {out.data(), left.data(), right.data()};
    text.function("k")(buffers, nullptr, 0);
    EXPECT_EQ(problem_of(g, out, false), "") << c.core;
    const int here = core_of(host, c.core);
    if (here < 0) {
      missing += fmt::format(" {} ({})", c.core, core.feature);
      continue;
    }
    const bool exact = is_integer(c.sum);
    for (const Gemm& on_host :
         {g, Gemm{7, 37, 29, c.a, c.b, c.sum}, Gemm{1, 16, 4, c.a, c.b, c.sum},
          Gemm{13, 50, 31, c.a, c.b, c.sum, exact ? FactorKind::Whole : FactorKind::Any}}) {
      expect_product(on_host, {tc(on_host.m == 1 ? 1 : 2, here, 2)}, {"CPU"}, {false});
    }
    expect_product(g, {tc(2, here), split(0, 3, AxisType::Upcast), split(2, 2, AxisType::Upcast)},
                   {"CPU"}, {false});
    if (exact) {
      expect_product(g, {tc(2, core_of(strict_host, c.core))}, {"CPU"}, {true});
    }
  }
  if (!missing.empty())
    GTEST_SKIP() << "compiled, not run: this CPU, or KOINE_CPU, lacks" << missing;
}

TEST(tensor_cores, spec_X2_a_wmma_that_is_none_is_refused) {
  const Target gpu = simt_target(false);
  auto vector = [](int64_t lanes, DType d) {
    return stack(std::vector<UOp>(static_cast<size_t>(lanes), constant_int(d, 0)));
  };
  auto linear = [&](const std::string& core, int64_t a, int64_t b, int64_t c, DType d) {
    const UOp x = vector(a, d), y = vector(b, d), z = vector(c, DType::Float32);
    return UOp::make(Op::Linear,
                     std::vector<UOp>{x, y, z, UOp::make(Op::Wmma, {x, y, z}, WmmaArg{core})});
  };
  auto broken = [&](const UOp& graph, const Target& target) {
    const auto violation = find_violation(graph, VerifyLevel::Linear, &target);
    return violation ? violation->source : -3;
  };
  const std::string mma = "cuda_m16n8k16_f16";
  EXPECT_EQ(broken(linear(mma, 8, 4, 4, DType::UInt16), gpu), -3);
  EXPECT_EQ(broken(linear(mma, 4, 4, 4, DType::UInt16), gpu), 0);
  EXPECT_EQ(broken(linear(mma, 8, 8, 4, DType::UInt16), gpu), 1);
  EXPECT_EQ(broken(linear(mma, 8, 4, 8, DType::UInt16), gpu), 2);
  EXPECT_EQ(broken(linear(mma, 8, 4, 4, DType::Int16), gpu), 0);
  EXPECT_EQ(broken(linear("nobody", 8, 4, 4, DType::UInt16), gpu), -1);
  EXPECT_EQ(broken(linear(mma, 8, 4, 4, DType::UInt16), generic_target(false)), -1);
  expect_error(
      [&] {
        (void)UOp::make(Op::Wmma, {vector(8, DType::UInt16), vector(4, DType::UInt16),
                                   vector(4, DType::Float32)});
      },
      {"Wmma: needs a tensor core"});
}

TEST(tensor_cores, spec_O1c_warps_are_of_a_tensor_core) {
  const UOp w = range(0, index_const(32), AxisType::Warp),
            out = param(0, shape_of({32}), DType::Int32);
  const UOp ast = sink({end(store(index(out, {w}), constant_int(DType::Int32, 1)), {w})});
  const auto violation = find_violation(ast, VerifyLevel::Kernel, nullptr);
  ASSERT_TRUE(violation);
  EXPECT_NE(violation->rule.find("a WARP range is of the threads of a tensor core"),
            std::string::npos);
  const Target gpu = simt_target(false);
  const UOp fine = apply_opt(square.ast(), tc(2, 1), gpu);
  EXPECT_FALSE(find_violation(fine, VerifyLevel::Kernel, &gpu));
  EXPECT_EQ(parse(to_text(fine)), fine);
}

// Every place of a matrix is held, and by the accumulator once.
TEST(tensor_cores, layouts_hold_all_of_a_matrix) {
  for (const TensorCore& core : tensor_cores()) {
    auto held = [&](const CoreMatrix& matrix, char row, char column) {
      std::vector<int> times(static_cast<size_t>(core.size(row) * core.size(column)));
      for (int t = 0; t < core.threads(); ++t)
        for (int e = 0; e < matrix.element_count(); ++e)
          ++times.at(static_cast<size_t>(matrix.place(row, t, e) * core.size(column) +
                                         matrix.place(column, t, e)));
      return std::pair{*std::ranges::min_element(times), *std::ranges::max_element(times)};
    };
    EXPECT_EQ(held(core.a, 'm', 'k'), (std::pair{1, 1})) << core.name;
    EXPECT_EQ(held(core.b, 'k', 'n'), (std::pair{1, 1})) << core.name;
    EXPECT_EQ(held(core.accumulator, 'm', 'n'), (std::pair{1, 1})) << core.name;
    for (const CoreMatrix* matrix : {&core.a, &core.b}) {
      ASSERT_EQ(matrix->threads.size(), core.accumulator.threads.size()) << core.name;
      for (size_t i = 0; i < matrix->threads.size(); ++i)
        EXPECT_EQ(matrix->threads[i].size, core.accumulator.threads[i].size) << core.name;
    }
  }
}

// Row O7 behind TC: any further legal edits.
TEST(tensor_cores, spec_O7_random_sequences_behind_TC_keep_values) {
  const int64_t cases = test_cases(12);
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
    std::mt19937_64 random(seed);
    auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const char* device = std::array{"INTERP", "CPU", "SIMT"}[seed % 3];
    const DType d = random() % 2 == 0 ? DType::Float16 : DType::BFloat16;
    const Gemm g{2 + below(40), 2 + below(40), 2 + below(50), d, d};
    const OptionScope scope(on(device, false));
    const Target& target = device_runtime(device).target();
    std::vector<Opt> opts;
    for (int core = static_cast<int>(target.tensor_cores.size()); core-- > 0 && opts.empty();)
      if (const Opt opt = tc(2, core, 2); can_apply(g.ast(), opt, target)) opts = {opt};
    if (opts.empty()) continue;
    UOp ast = apply_opts(g.ast(), opts, target);
    for (int step = 0; step < 8; ++step) {
      const auto axes = static_cast<int64_t>(kernel_ranges(ast).size());
      Opt opt{static_cast<OptOp>(random() % 3), static_cast<int>(below(axes)), 1 + below(4),
              static_cast<AxisType>(random() % 9), random() % 2 == 0};
      if (target.groups && random() % 4 == 0) opt.op = OptOp::Stage;
      if (opt.op == OptOp::Swap) opt.amount = below(axes);
      const bool grid = opt.target == AxisType::Global || opt.target == AxisType::Local;
      if (!target.groups && grid) continue;
      if (const UOp edited = apply_if_legal(ast, opt, target)) {
        ast = edited;
        opts.push_back(opt);
      }
    }
    std::string text;
    for (const Opt& opt : opts) text += " " + opt_text(opt);
    text = fmt::format("{}:{} KOINE_TEST_SEED={}", device, text, seed);
    try {
      EXPECT_EQ(problem_of(g, computed(g, opts, device, false), false), "") << text;
    } catch (const std::exception& e) {
      ADD_FAILURE() << text << ": " << e.what();
    }
  }
}

TEST(tensor_cores, spec_O6_random_products) {
  std::mt19937_64 random(test_seed());
  const int64_t cases = test_cases(8);
  for (int64_t i = 0; i < cases; ++i) {
    auto size = [&](uint64_t most) { return 2 + static_cast<int64_t>(random() % most); };
    const bool half = random() % 2 == 0;
    const DType d = half ? DType::Float16 : DType::BFloat16;
    const FactorKind kind = random() % 2 == 0 ? FactorKind::Whole : FactorKind::Any;
    const Gemm g{size(40), size(40), size(50), d, d, DType::Float32, kind};
    for (const char* device : {"INTERP", "CPU", "SIMT"}) {
      const OptionScope scope(on(device, false));
      const Target& target = device_runtime(device).target();
      for (int core = -1; core < static_cast<int>(target.tensor_cores.size()); ++core) {
        const Opt opt = tc(2, core, 2);
        if (!can_apply(g.ast(), opt, target)) continue;
        EXPECT_EQ(problem_of(g, computed(g, {opt}, device, false), false), "")
            << device << " " << opt_text(opt);
      }
    }
  }
}

}  // namespace koine::test
