// The schedule that is chosen for typical kernels, on a CPU with 8 lanes of float32, 16 registers
// and a team of threads.
#include "koine/lower/heuristic.hpp"

#include <numeric>
#include <regex>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/render/llvm.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine::test {
namespace {

Target machine_with(int vector_bytes) {
  Target t;
  t.name = "table";
  t.vector_bytes = vector_bytes;
  t.vector_registers = 16;
  t.has_fma = t.has_threads = true;
  return t;
}

// The last kernel of a value, as programs for such a machine have it.
UOp last_kernel(const Tensor& value, const Target& target) {
  if (!target.groups) return schedule({value.uop()}).back().ast;
  CompileOptions how = compile_options();
  how.multiprocessors = std::max<int64_t>(target.groups.multiprocessors, 1);
  const UOp out = new_buffer(value.uop().shape(), value.dtype(), Device("CPU"));
  return kernels_of(rangeify(callify({value.uop()}, {out}).body, how)).back().ast;
}

// The chosen edits of the last kernel of a value.
std::string chosen(const Tensor& value, const Target& target) {
  Options o = options();
  o.noopt = false;
  o.strict = target.strict;
  const OptionScope scope(o);
  const LoweredKernel k = lower_kernel(last_kernel(value, target), target);
  std::string out = k.name + ":";
  for (const Opt& opt : k.opts) out += " " + opt_text(opt);
  return out;
}

Tensor f32(std::initializer_list<int64_t> sizes, uint64_t salt = 0) {
  return Tensor(leaf(sizes, DType::Float32, salt));
}
Tensor of(DType dtype, std::initializer_list<int64_t> sizes) { return Tensor(leaf(sizes, dtype)); }

// d rows of columns, each added to that of k rows which its number says.
Tensor by_index(int64_t rows, int64_t d, int64_t k, int64_t columns) {
  const Tensor at(leaf({rows, d, 1}, DType::Int32, 1));
  const Tensor hit = at.reshape({rows, 1, d, 1}) == Tensor::arange(k).reshape({1, k, 1, 1});
  return Tensor::where(hit, f32({rows, d, columns}).reshape({rows, 1, d, columns}), 0.0).sum({2});
}

struct Typical {
  const char* what;
  Tensor value;
  const Target& target;
  const char* schedule;
};

// A change of the heuristic changes this table: measure the kernels it names before and after.
TEST(heuristic, schedules_of_typical_kernels) {
  const Target machine = machine_with(32), narrow = machine_with(16);
  Target strict = machine, alone = machine;
  strict.strict = true;
  alone.has_threads = false;
  const auto gradient_of = [](const Tensor& weights, const Tensor& images, int64_t stride) {
    const Tensor seen = images.conv2d(weights, {}, {stride, 0, 1});
    return (seen * Tensor(leaf(seen.uop().sizes(), DType::Float32, 2)))
        .sum()
        .gradient({weights})[0];
  };
  const std::vector<Typical> table{
      {"x+1 1024", f32({1024}) + 1.0, machine, "e_L32_u32: Split(0, 32, UPCAST)"},
      {"x+1 100000", f32({100000}) + 1.0, machine,
       "e_t5_L625_u32: Split(0, 32, UPCAST) Split(0, 5, THREAD, top)"},
      {"x+1 1048576", f32({1048576}) + 1.0, machine,
       "e_t16_L2048_u32: Split(0, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"x+1 1048576 alone", f32({1048576}) + 1.0, alone, "e_L32768_u32: Split(0, 32, UPCAST)"},
      {"x+1 1048576 narrow", f32({1048576}) + 1.0, narrow,
       "e_t16_L4096_u16: Split(0, 16, UPCAST) Split(0, 16, THREAD, top)"},
      {"x+1 7", f32({7}) + 1.0, machine, "e_L2_u4: Padto(0, 4) Split(0, 4, UPCAST)"},
      {"x+1 1009", f32({1009}) + 1.0, machine, "e_L32_u32: Padto(0, 32) Split(0, 32, UPCAST)"},
      {"x+1 3", f32({3}) + 1.0, machine, "e_L2_u2: Padto(0, 2) Split(0, 2, UPCAST)"},
      {"sin 1024", f32({1024}).sin(), machine, "e_L64_u16: Split(0, 16, UPCAST)"},
      {"f64 1024", of(DType::Float64, {1024}) + 1.0, machine, "e_L64_u16: Split(0, 16, UPCAST)"},
      {"u8 1024", of(DType::UInt8, {1024}) + 1, machine, "e_L8_u128: Split(0, 128, UPCAST)"},
      {"batches innermost", (f32({64, 1, 48, 16}) * f32({1, 32, 48, 16}, 1)).sum({2}), machine,
       "r_t16_L4_L32_u16_R48: Split(2, 16, UPCAST) Split(0, 16, THREAD, top)"},
      {"x.T contiguous", f32({64, 96}).permute({1, 0}).contiguous(), machine,
       "e_L2_L96_u32: Split(1, 32, UPCAST) Swap(0, 1)"},
      {"x.T + y", f32({64, 96}).permute({1, 0}) + f32({96, 64}, 1), machine,
       "e_L2_L96_u32: Split(1, 32, UPCAST) Swap(0, 1)"},
      {"bias 64x100", f32({64, 100}) + f32({100}, 1), machine,
       "e_L64_L13_u8: Padto(1, 8) Split(1, 8, UPCAST)"},
      {"bias 64x7", f32({64, 7}) + f32({7}, 1), machine,
       "e_L64_L2_u4: Padto(1, 4) Split(1, 4, UPCAST)"},
      {"sum all 1e6", f32({1048576}).sum(), machine, "r_G64: Split(0, 64, GROUP_REDUCE)"},
      {"sum all strict", f32({1048576}).sum(), strict, "r_R1048576:"},
      {"rows 64x1000", f32({64, 1000}).sum(1), machine,
       "r_L64_R16_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE)"},
      {"fold by index, columns", by_index(1, 5000, 400, 64), machine,
       "e_t2_u32_L400_L5000: Split(0, 32, UPCAST) Split(0, 2, THREAD, top)"},
      {"fold by index, rows", by_index(300, 500, 400, 1), machine,
       "e_t15_g20_L400_L500: Split(0, 15, THREAD, top)"},
      {"fold by index, few columns", by_index(1, 5000, 400, 3), machine, "e_L1200_L5000_L3:"},
      {"rows 64x1000 strict", f32({64, 1000}).sum(1), strict,
       "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x64", f32({1000, 64}).sum(0), machine, "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x64 strict", f32({1000, 64}).sum(0), strict,
       "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x7", f32({1000, 7}).sum(0), machine,
       "r_L2_u4_R1000: Padto(0, 4) Split(0, 4, UPCAST)"},
      {"rows 64x7", f32({64, 7}).sum(1), machine, "r_L8_u8_R7: Split(0, 8, UPCAST)"},
      // Rows shorter than a vector: as many side by side as it has lanes.
      {"softmax of short rows", f32({64, 5}).softmax(1), machine,
       "r_L8_u8_L5_L5_R5_R5: Split(0, 8, UPCAST)"},
      {"short rows less their maximum", f32({64, 5}) - f32({64, 5}, 1).max(1, true), machine,
       "r_L8_u8_L5_R5: Split(0, 8, UPCAST)"},
      {"max rows", f32({64, 1000}).max(1), machine,
       "r_L64_R16_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE)"},
      // Lanes along both axes would be multiplied: such a kernel took LLVM a minute.
      {"max of x * x.T", (f32({64, 64}) * f32({64, 64}, 1).permute({1, 0})).max(), machine,
       "r_G64_R64: Split(0, 64, GROUP_REDUCE)"},
      {"gemm 64", f32({64, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_t11_u6_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemm 512", f32({512, 512}).matmul(f32({512, 512}, 1)), machine,
       "r_t8_L86_u6_L4_u2_u8_R512: Split(1, 64, LOOP) Swap(1, 0) Split(2, 8, UPCAST) Split(2, 2, "
       "UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(0, 8, THREAD, top)"},
      {"gemm 512 strict", f32({512, 512}).matmul(f32({512, 512}, 1)), strict,
       "r_t8_L86_u6_L4_u2_u8_R512: Split(1, 64, LOOP) Swap(1, 0) Split(2, 8, UPCAST) Split(2, 2, "
       "UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(0, 8, THREAD, top)"},
      {"gemm 512 narrow", f32({512, 512}).matmul(f32({512, 512}, 1)), narrow,
       "r_t8_L86_u6_L8_u2_u4_R512: Split(1, 64, LOOP) Swap(1, 0) Split(2, 4, UPCAST) Split(2, 2, "
       "UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(0, 8, THREAD, top)"},
      {"gemm 37x50x100", f32({37, 50}).matmul(f32({50, 100}, 1)), machine,
       "r_t7_u6_L7_u2_u8_R50: Padto(1, 8) Split(1, 8, UPCAST) Padto(1, 2) Split(1, 2, UPCAST) "
       "Padto(0, 6) Split(0, 6, UPCAST) Split(0, 7, THREAD, top)"},
      {"gemm 64x64x3", f32({64, 64}).matmul(f32({64, 3}, 1)), machine,
       "r_L11_u6_u2_u2_R64: Padto(1, 2) Split(1, 2, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST)"},
      {"gemm 64x64x1009", f32({64, 64}).matmul(f32({64, 1009}, 1)), machine,
       "r_t16_L43_u4_u3_u8_R64: Padto(1, 8) Split(1, 8, UPCAST) Padto(1, 3) Split(1, 3, UPCAST) "
       "Split(0, 4, UPCAST) Swap(2, 1) Swap(1, 0) Split(1, 16, THREAD, top) Swap(1, 0)"},
      {"gemm 1024x4096x64", f32({1024, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t2_t3_R2_L57_u6_L2_u2_u8_R2048: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top) "
       "Split(1, 3, THREAD, top) Split(7, 2048, REDUCE) Swap(7, 6) Swap(6, 5) Swap(5, 4) Swap(4, "
       "3) Swap(3, 2)"},
      {"gemm a b.T", f32({64, 48}).matmul(f32({80, 48}, 1).permute({1, 0})), machine,
       "r_t16_u4_L27_u3_R6_G8: Split(2, 8, GROUP_REDUCE) Padto(1, 3) Split(1, 3, UPCAST) Split(0, "
       "4, UPCAST) Split(0, 16, THREAD, top)"},
      {"gemm a.T b", f32({48, 64}).permute({1, 0}).matmul(f32({48, 80}, 1)), machine,
       "r_t11_u6_L5_u2_u8_R48: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemv", f32({512, 512}).matmul(f32({512}, 1)), machine,
       "r_t16_L32_R8_G64: Split(1, 64, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"outer", f32({64, 1}) * f32({1, 64}, 1), machine, "e_L64_L2_u32: Split(1, 32, UPCAST)"},
      {"conv", f32({2, 3, 16, 16}).conv2d(f32({8, 3, 3, 3}, 1)), machine,
       "r_t2_t2_u4_L14_u2_u8_R3_R3_R3: Padto(3, 8) Split(3, 8, UPCAST) Split(3, 2, UPCAST) "
       "Split(1, 4, UPCAST) Split(0, 2, THREAD, top) Split(1, 2, THREAD, top)"},
      {"padded conv", f32({2, 3, 16, 16}).conv2d(f32({8, 3, 3, 3}, 1), {}, {1, 1, 1}), machine,
       "r_t2_t2_u4_L16_u2_u8_R3_R3_R3: Swap(5, 4) Swap(6, 5) Split(3, 8, UPCAST) Split(3, 2, "
       "UPCAST) "
       "Split(1, 4, UPCAST) Split(0, 2, THREAD, top) Split(1, 2, THREAD, top)"},
      {"conv, its columns two apart",
       f32({4, 16, 32, 32}).conv2d(f32({32, 16, 3, 3}, 1), {}, {2, 1, 1}), machine,
       "r_t4_t3_u6_L16_L2_u2_u8_R3_R3_R16: Swap(5, 4) Swap(6, 5) Swap(1, 3) Split(3, 8, UPCAST) "
       "Split(3, 2, UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(0, 4, THREAD, top) Split(1, 3, "
       "THREAD, top)"},
      {"conv, few columns", f32({6, 32, 7, 7}).conv2d(f32({64, 32, 3, 3}, 1), {}, {1, 1, 1}),
       machine,
       "r_t6_t2_u4_L7_L3_u3_u8_R3_R3_R32: Swap(5, 4) Swap(6, 5) Swap(1, 3) Split(3, 8, UPCAST) "
       "Padto(3, 3) Split(3, 3, UPCAST) Padto(1, 4) Split(1, 4, UPCAST) Split(0, 6, THREAD, top) "
       "Split(1, 2, THREAD, top)"},
      {"conv, one image of one channel", f32({1, 1, 80, 81}).conv2d(f32({40, 1, 5, 5}, 1)), machine,
       "r_t7_u6_L76_L5_u2_u8_R5_R5: Padto(2, 8) Split(2, 8, UPCAST) Split(2, 2, UPCAST) "
       "Padto(0, 6) Split(0, 6, UPCAST) Split(0, 7, THREAD, top)"},
      {"conv, many columns", f32({2, 16, 34, 34}).conv2d(f32({32, 16, 3, 3}, 1)), machine,
       "r_t2_t3_u11_L32_L4_u8_R16_R3_R3: Split(3, 8, UPCAST) Padto(1, 11) Split(1, 11, UPCAST) "
       "Split(0, 2, THREAD, top) Split(1, 3, THREAD, top)"},
      {"conv of many channels, its weight's gradient",
       gradient_of(f32({32, 16, 3, 3}, 1), f32({4, 16, 33, 33}), 2), machine,
       "r_t3_u6_L2_u2_u8_L3_L3_R4_R16_R16: Swap(0, 1) Split(1, 8, UPCAST) Split(1, 2, UPCAST) "
       "Padto(0, 6) Split(0, 6, UPCAST) Split(0, 3, THREAD, top)"},
      {"conv of large images, its weight's gradient",
       gradient_of(f32({64, 16, 3, 3}, 1), f32({8, 16, 66, 66}), 1), machine,
       "r_t8_L11_u6_u2_L3_L3_R8_R64_R8_G8: Split(6, 8, GROUP_REDUCE) Split(1, 2, UPCAST) Padto(0, "
       "6) Split(0, 6, UPCAST) Swap(2, 1) Swap(1, 0) Split(0, 8, THREAD, top)"},
      {"conv of large images, two apart, its weight's gradient",
       gradient_of(f32({64, 16, 3, 3}, 1), f32({8, 16, 129, 129}), 2), machine,
       "r_t4_u4_L3_u3_u8_L3_L3_R8_R64_R64: Swap(0, 1) Split(1, 8, UPCAST) Padto(1, 3) Split(1, 3, "
       "UPCAST) Split(0, 4, UPCAST) Split(0, 4, THREAD, top)"},
      {"conv, its weight's gradient", gradient_of(f32({8, 16, 3, 3}, 1), f32({2, 16, 18, 18}), 1),
       machine,
       "r_t2_u4_L6_u3_L3_L3_R2_R16_R2_G8: Split(6, 8, GROUP_REDUCE) Padto(1, 3) Split(1, 3, "
       "UPCAST) "
       "Split(0, 4, UPCAST) Split(0, 2, THREAD, top)"},
      {"sum that begins before a row", f32({4, 30, 50}).pad({{0, 0}, {0, 0}, {5, 0}}).sum({1, 2}),
       machine, "r_L4_R24_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE)"},
      {"int gemm", of(DType::Int32, {64, 64}).matmul(of(DType::Int32, {64, 64})), machine,
       "r_t16_L4_L2_u32_R64: Split(1, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"softmax", f32({64, 100}).softmax(), machine,
       "r_L64_L13_u8_L13_u8_R13_G8_R13_G8: Padto(1, 8) Split(1, 8, UPCAST) Padto(3, 8) Split(3, 8, "
       "UPCAST) Padto(5, 8) Split(5, 8, GROUP_REDUCE) Padto(7, 8) Split(7, 8, GROUP_REDUCE)"},
      {"products of a last axis",
       Tensor::einsum("mkb,knb->mnb", {f32({32, 40, 64}), f32({40, 16, 64}, 1)}), machine,
       "r_t16_L2_L16_L2_u32_R40: Split(2, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"batch gemm", f32({4, 64, 64}).matmul(f32({4, 64, 64}, 1)), machine,
       "r_t4_L11_u6_L4_u2_u8_R64: Split(2, 8, UPCAST) Split(2, 2, UPCAST) Padto(1, 6) Split(1, 6, "
       "UPCAST) Split(0, 4, THREAD, top)"},
      {"gemm 63 rows", f32({63, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t2_L11_u6_L2_u2_u8_R4096: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, "
       "6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top)"},
      {"gemm 64 rows", f32({64, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t2_R2_L11_u6_L2_u2_u8_R2048: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top) "
       "Split(6, 2048, REDUCE) Swap(6, 5) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm k 2048", f32({128, 2048}).matmul(f32({2048, 64}, 1)), machine,
       "r_t2_t2_L11_u6_L2_u2_u8_R2048: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top) "
       "Split(1, 2, THREAD, top)"},
      {"gemm k 2049", f32({128, 2049}).matmul(f32({2049, 64}, 1)), machine,
       "r_t2_t2_R3_L11_u6_L2_u2_u8_R683: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top) "
       "Split(1, 2, THREAD, top) Split(7, 683, REDUCE) Swap(7, 6) Swap(6, 5) Swap(5, 4) Swap(4, 3) "
       "Swap(3, 2)"},
      {"gemm k 2064", f32({128, 2064}).matmul(f32({2064, 64}, 1)), machine,
       "r_t2_t2_R2_L11_u6_L2_u2_u8_R1032: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST) Split(2, 2, LOOP) Swap(2, 1) Swap(1, 0) Split(0, 2, THREAD, top) "
       "Split(1, 2, THREAD, top) Split(7, 1032, REDUCE) Swap(7, 6) Swap(6, 5) Swap(5, 4) Swap(4, "
       "3) Swap(3, 2)"},
      {"gemm k 100000", f32({64, 100000}).matmul(f32({100000, 16}, 1)), machine,
       "r_t11_R25_u6_u2_u8_R4000: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top) Split(4, 4000, REDUCE) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm k prime", f32({256, 4099}).matmul(f32({4099, 256}, 1)), machine,
       "r_t4_t2_L43_u6_L2_u2_u8_R4099: Split(1, 64, LOOP) Swap(1, 0) Split(2, 8, UPCAST) Split(2, "
       "2, UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(3, 2, LOOP) Swap(3, 2) Swap(2, 1) "
       "Split(0, 4, THREAD, top) Split(1, 2, THREAD, top)"},
      {"gemm 5 columns", f32({64, 64}).matmul(f32({64, 5}, 1)), machine,
       "r_L11_u6_u2_u4_R64: Padto(1, 4) Split(1, 4, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) "
       "Split(0, 6, UPCAST)"},
      {"gemm 4 columns", f32({64, 64}).matmul(f32({64, 4}, 1)), machine,
       "r_L6_u11_u4_R64: Split(1, 4, UPCAST) Padto(0, 11) Split(0, 11, UPCAST)"},
      {"gemm 22 columns", f32({64, 64}).matmul(f32({64, 22}, 1)), machine,
       "r_t16_u4_u3_u8_R64: Padto(1, 8) Split(1, 8, UPCAST) Split(1, 3, UPCAST) Split(0, 4, "
       "UPCAST) Split(0, 16, THREAD, top)"},
      {"gemm 13 rows", f32({13, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_L3_u5_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 5) Split(0, 5, "
       "UPCAST)"},
      {"gemm 2 rows", f32({2, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_u2_L2_u4_u8_R64: Split(1, 8, UPCAST) Split(1, 4, UPCAST) Split(0, 2, UPCAST)"},
      {"gemm f64", of(DType::Float64, {64, 64}).matmul(of(DType::Float64, {64, 64})), machine,
       "r_t11_u6_L8_u2_u4_R64: Split(1, 4, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemm f16", of(DType::Float16, {64, 64}).matmul(of(DType::Float16, {64, 64})), machine,
       "r_t11_u6_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemm masked",
       Tensor::where(f32({64, 64}) > 0.0, f32({64, 64}), 0.0).matmul(f32({64, 64}, 1)), machine,
       "r_t11_u6_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemm + bias, relu", (f32({64, 64}).matmul(f32({64, 64}, 1)) + f32({64}, 2)).relu(), machine,
       "r_t11_u6_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"gemm of sums", (f32({64, 64}) + 1.0).matmul(f32({64, 64}, 1) * 2.0), machine,
       "r_t11_u6_L4_u2_u8_R64: Split(1, 8, UPCAST) Split(1, 2, UPCAST) Padto(0, 6) Split(0, 6, "
       "UPCAST) Split(0, 11, THREAD, top)"},
      {"product of maxima", (f32({64, 64}).unsqueeze(-1) * f32({64, 64}, 1)).max(1), machine,
       "r_t16_L4_L2_u32_R64: Split(1, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"threads at 2^17", f32({43696}) + 1.0, machine, "e_L2731_u16: Split(0, 16, UPCAST)"},
      {"threads below", f32({43680}) + 1.0, machine, "e_L1365_u32: Split(0, 32, UPCAST)"},
      {"threads of a second axis", f32({1, 17, 10000}) + f32({17, 1}, 1), machine,
       "e_t5_L17_L125_u16: Split(1, 16, UPCAST) Split(1, 5, THREAD, top) Swap(1, 0)"},
      {"threads of a prime", f32({100003}) + 1.0, machine,
       "e_t6_L521_u32: Padto(0, 32) Split(0, 32, UPCAST) Split(0, 6, THREAD, top)"},
      {"rows of 15", f32({64, 15}).sum(1), machine,
       "r_L64_R2_G8: Padto(1, 8) Split(1, 8, GROUP_REDUCE)"},
      {"rows of 8", f32({64, 8}).sum(1), machine, "r_L64_G8: Split(1, 8, GROUP_REDUCE)"},
      {"rows of 1009", f32({64, 1009}).sum(1), machine,
       "r_L64_R16_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE)"},
      {"rows of halves", of(DType::Float16, {64, 1000}).sum(1), machine,
       "r_t16_L4_R16_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"rows of bytes", of(DType::UInt8, {64, 1000}).sum(1), machine,
       "r_t16_L4_R16_G64: Padto(1, 64) Split(1, 64, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"middle axis", f32({8, 50, 32}).sum(1), machine, "r_L8_u32_R50: Split(1, 32, UPCAST)"},
      {"outer and inner axis", f32({16, 50, 32}).sum({0, 2}), machine,
       "r_L50_R16_G32: Split(2, 32, GROUP_REDUCE)"},
      {"sum of x.T by rows", f32({100, 64}).permute({1, 0}).sum(1), machine,
       "r_L2_u32_R100: Split(0, 32, UPCAST)"},
      {"sum of a row and a column", (f32({64, 100}) * f32({100, 64}, 1).permute({1, 0})).sum(1),
       machine, "r_L2_u32_R100: Split(0, 32, UPCAST)"},
      {"pow", f32({1024}).pow(f32({1024}, 1)), machine, "e_L64_u16: Split(0, 16, UPCAST)"},
      {"every second", f32({2048})[{Slice{{}, {}, 2}}] + 1.0, machine,
       "e_L32_u32: Split(0, 32, UPCAST)"},
      {"flipped", f32({1024}).flip({0}) + 1.0, machine, "e_L32_u32: Split(0, 32, UPCAST)"},
      {"cumsum", f32({64}).cumsum(0), machine, "r_L64_Rn:"},
      {"cumsum of columns", f32({100, 64}).cumsum(0), machine,
       "r_L2_u32_L100_Rn: Split(0, 32, UPCAST)"},
      {"mean and deviation", f32({64, 100}) - f32({64, 100}).mean(1, true), machine,
       "r_L64_L13_u8_R13_G8: Padto(1, 8) Split(1, 8, UPCAST) Padto(3, 8) Split(3, 8, "
       "GROUP_REDUCE)"},
      {"layernorm", f32({64, 128}).layernorm(), machine,
       "r_L64_L4_u32_L4_u32_R4_G32_R4_G32: Split(1, 32, UPCAST) Split(3, 32, UPCAST) Split(5, 32, "
       "GROUP_REDUCE) Split(7, 32, GROUP_REDUCE)"},
      // As many columns side by side as LOCAL memory has columns for.
      {"variance of sines of long columns", f32({4096, 32}).sin().var(0), machine,
       "r_t2_u16_R4096_L4096_R4096: Split(0, 16, UPCAST) Split(0, 2, THREAD, top)"},
      // What is read once for a whole fold does not say where its lanes are.
      {"folds of scaled channels",
       ((f32({4, 64, 8, 8}) + f32({1, 64, 1, 1}, 1)) * f32({1, 64, 1, 1}, 2))
           .square()
           .sum({0, 2, 3}),
       machine, "r_L64_R4_G64: Split(2, 64, GROUP_REDUCE)"},
      {"max pool", f32({1, 4, 16, 16}).max_pool2d(2), machine,
       "r_L32_u8_R2_R2: Split(1, 8, UPCAST)"},
      {"one row", f32({1, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_L2_u32_R64: Split(0, 32, UPCAST)"},
      {"one column", f32({64, 64}).matmul(f32({64, 1}, 1)), machine,
       "r_L64_G64: Split(1, 64, GROUP_REDUCE)"},
  };
  for (const Typical& row : table) {
    EXPECT_EQ(chosen(row.value, row.target), row.schedule) << row.what;
    // With the schedule of this machine: inside of its memory, to the last element.
    SCOPED_TRACE(row.what);
    const UOp out = buffer_from_host(row.value.uop().shape(), row.value.dtype(), "CPU", nullptr);
    const Callified program = callify({row.value.uop()}, {out});
    const std::vector<Kernel> kernels = kernels_of(rangeify(split_large_reduces(program.body)));
    const Array guarded = run_kernels(kernels, program, {kernels.size(), {}});
    EXPECT_EQ(difference(array_of(row.value.clone().realize().uop()), guarded), "");
  }
}

// The same on a device with groups of threads, in warps of 32.
TEST(heuristic, schedules_of_typical_kernels_in_groups) {
  const Target device = simt_target(false), strict = simt_target(true);
  const std::vector<Typical> table{
      {"x+1 1", f32({1}) + 1.0, device, "e:"},
      {"x+1 2", f32({2}) + 1.0, device, "e_l2: Split(0, 2, LOCAL)"},
      {"x+1 31", f32({31}) + 1.0, device, "e_l31: Split(0, 31, LOCAL)"},
      {"x+1 100", f32({100}) + 1.0, device, "e_l100: Split(0, 100, LOCAL)"},
      {"x+1 127", f32({127}) + 1.0, device, "e_l127: Split(0, 127, LOCAL)"},
      {"x+1 130", f32({130}) + 1.0, device, "e_g2_l65: Split(0, 65, LOCAL) Split(0, 0, GLOBAL)"},
      {"x+1 1048576", f32({1048576}) + 1.0, device,
       "e_g8192_l128: Split(0, 128, LOCAL) Split(0, 0, GLOBAL)"},
      {"x.T + y", f32({64, 96}).permute({1, 0}) + f32({96, 64}, 1), device,
       "e_g96_l64: Split(1, 64, LOCAL) Split(0, 0, GLOBAL)"},
      {"bias", f32({64, 100}) + f32({100}, 1), device,
       "e_g64_l100: Split(1, 100, LOCAL) Split(0, 0, GLOBAL)"},
      {"sum of 63", f32({63}).sum(), device, "r_R63:"},
      {"sum of 64", f32({64}).sum(), device, "r_R2_G32: Split(0, 32, GROUP_REDUCE)"},
      {"sum of 5000", f32({5000}).sum(), device,
       "r_R20_G16_G16: Padto(0, 256) Split(0, 16, GROUP_REDUCE) Split(0, 16, GROUP_REDUCE)"},
      {"rows 3x5000", f32({3, 5000}).sum(1), device,
       "r_g3_R20_G16_G16: Split(0, 0, GLOBAL) Padto(1, 256) Split(1, 16, GROUP_REDUCE) Split(1, "
       "16, GROUP_REDUCE)"},
      {"rows 4095x128", f32({4095, 128}).sum(1), device,
       "r_g585_l7_R4_G32: Split(0, 0, GLOBAL) Split(1, 32, GROUP_REDUCE) Split(0, 7, LOCAL)"},
      {"rows 4096x128", f32({4096, 128}).sum(1), device,
       "r_g512_l8_R4_G32: Split(0, 0, GLOBAL) Split(1, 32, GROUP_REDUCE) Split(0, 8, LOCAL)"},
      {"rows 64x8x128", f32({64, 8, 128}).sum(2), device,
       "r_g64_l8_R4_G32: Split(0, 0, GLOBAL) Split(1, 32, GROUP_REDUCE) Split(0, 8, LOCAL)"},
      {"columns 1000x64", f32({1000, 64}).sum(0), device,
       "r_g2_l32_R125_G8: Split(1, 8, GROUP_REDUCE) Split(0, 32, LOCAL) Split(0, 0, GLOBAL)"},
      {"largest of rows", f32({64, 1000}).max(1), device,
       "r_g8_l8_R32_G32: Split(0, 0, GLOBAL) Padto(1, 32) Split(1, 32, GROUP_REDUCE) Split(0, 8, "
       "LOCAL)"},
      {"gemm 8", f32({8, 8}).matmul(f32({8, 8}, 1)), device,
       "r_l8_l8_R2_R4: Split(1, 8, LOCAL) Split(0, 8, LOCAL) Split(2, 4, REDUCE) Stage(3)"},
      {"gemm 31", f32({31, 31}).matmul(f32({31, 31}, 1)), device,
       "r_g2_l16_g2_l16_R31: Padto(1, 16) Split(1, 16, LOCAL) Padto(0, 16) Split(0, 16, LOCAL) "
       "Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"gemm 32x48x64", f32({32, 48}).matmul(f32({48, 64}, 1)), device,
       "r_g2_l16_g4_l16_R3_R16: Split(1, 16, LOCAL) Split(0, 16, LOCAL) Split(4, 16, REDUCE) "
       "Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"gemm 31x48x63", f32({31, 48}).matmul(f32({48, 63}, 1)), device,
       "r_g2_l16_g4_l16_R3_R16: Padto(1, 16) Split(1, 16, LOCAL) Padto(0, 16) Split(0, 16, LOCAL) "
       "Split(4, 16, REDUCE) Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"gemm 512", f32({512, 512}).matmul(f32({512, 512}, 1)), device,
       "r_g16_u2_l16_g16_u2_l16_R32_R16: Split(1, 16, LOCAL) Split(1, 2, UPCAST) Split(0, 16, "
       "LOCAL) Split(0, 2, UPCAST) Split(6, 16, REDUCE) Stage(7) Split(0, 0, GLOBAL) Split(3, 0, "
       "GLOBAL)"},
      {"gemm 100x64x132", f32({100, 64}).matmul(f32({64, 132}, 1)), device,
       "r_g7_l16_g9_l16_R4_R16: Padto(1, 16) Split(1, 16, LOCAL) Padto(0, 16) Split(0, 16, LOCAL) "
       "Split(4, 16, REDUCE) Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"gemm a b.T", f32({64, 48}).matmul(f32({80, 48}, 1).permute({1, 0})), device,
       "r_g4_l16_g5_l16_R3_R16: Split(1, 16, LOCAL) Split(0, 16, LOCAL) Split(4, 16, REDUCE) "
       "Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"gemm a.T b", f32({48, 64}).permute({1, 0}).matmul(f32({48, 80}, 1)), device,
       "r_g4_l16_g5_l16_R3_R16: Split(1, 16, LOCAL) Split(0, 16, LOCAL) Split(4, 16, REDUCE) "
       "Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"transposed", f32({64, 48}).matmul(f32({48, 80}, 1)).permute({1, 0}).contiguous(), device,
       "r_g4_l16_g5_l16_R3_R16: Swap(0, 1) Split(1, 16, LOCAL) Split(0, 16, LOCAL) Split(4, 16, "
       "REDUCE) Stage(5) Split(0, 0, GLOBAL) Split(2, 0, GLOBAL)"},
      {"batch gemm", f32({4, 64, 64}).matmul(f32({4, 64, 64}, 1)), device,
       "r_g4_g4_l16_g4_l16_R4_R16: Split(2, 16, LOCAL) Split(1, 16, LOCAL) Split(5, 16, REDUCE) "
       "Stage(6) Split(0, 0, GLOBAL) Split(1, 0, GLOBAL) Split(3, 0, GLOBAL)"},
      {"gemv", f32({512, 512}).matmul(f32({512}, 1)), device,
       "r_g64_l8_R16_G32: Split(0, 0, GLOBAL) Split(1, 32, GROUP_REDUCE) Split(0, 8, LOCAL)"},
      {"conv", f32({2, 3, 16, 16}).conv2d(f32({8, 3, 3, 3}, 1)), device,
       "r_g2_l8_g14_l14_R3_R3_R3: Split(3, 14, LOCAL) Split(1, 8, LOCAL) Split(0, 0, GLOBAL) "
       "Split(2, 0, GLOBAL)"},
      {"softmax", f32({64, 100}).softmax(), device,
       "r_g8_l8_L4_l32_L4_l32_R4_G32_R4_G32: Split(0, 0, GLOBAL) Padto(2, 32) Split(2, 32, LOCAL) "
       "Padto(1, 32) Split(1, 32, LOCAL) Padto(5, 32) Split(5, 32, GROUP_REDUCE) Padto(7, 32) "
       "Split(7, 32, GROUP_REDUCE) Split(0, 8, LOCAL)"},
      {"layernorm", f32({64, 128}).layernorm(), device,
       "r_g8_l8_L4_l32_L4_l32_R4_G32_R4_G32: Split(0, 0, GLOBAL) Split(2, 32, LOCAL) Split(1, 32, "
       "LOCAL) Split(5, 32, GROUP_REDUCE) Split(7, 32, GROUP_REDUCE) Split(0, 8, LOCAL)"},
      {"cumsum", f32({64}).cumsum(0), device, "r_L64_Rn:"},
      {"cumsum of columns", f32({100, 64}).cumsum(0), device, "r_l64_L100_Rn: Split(0, 64, LOCAL)"},
      {"sum of 5000 strict", f32({5000}).sum(), strict, "r_R5000:"},
      {"fold by index, columns", by_index(1, 5000, 400, 64), device,
       "e_l64_L400_L5000: Split(0, 64, LOCAL)"},
      {"fold by index, rows", by_index(300, 500, 400, 1), device,
       "e_g3_l100_L400_L500: Split(0, 100, LOCAL)"},
      {"rows 64x1000 strict", f32({64, 1000}).sum(1), strict, "r_l64_R1000: Split(0, 64, LOCAL)"},
      {"gemm 512 strict", f32({512, 512}).matmul(f32({512, 512}, 1)), strict,
       "r_g16_u2_l16_g16_u2_l16_R32_R16: Split(1, 16, LOCAL) Split(1, 2, UPCAST) Split(0, 16, "
       "LOCAL) Split(0, 2, UPCAST) Split(6, 16, REDUCE) Stage(7) Split(0, 0, GLOBAL) Split(3, 0, "
       "GLOBAL)"},
  };
  for (const Typical& row : table)
    EXPECT_EQ(chosen(row.value, row.target), row.schedule) << row.what;
}

// The instructions of the last kernel of a value.
std::vector<UOp> instructions_of(const Tensor& value, const Target& target) {
  Options o = options();
  o.noopt = false;
  o.strict = target.strict;
  const OptionScope scope(o);
  const UOp linear = lower_kernel(schedule({value.uop()}).back().ast, target).linear;
  return {linear.src().begin(), linear.src().end()};
}

bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

// What runs along n elements: products, windows, rows, columns, elementwise.
std::vector<std::pair<std::string, Tensor>> along(int64_t n, DType dtype) {
  const Tensor x = of(dtype, {5, n}), w = Tensor(leaf({7, n}, dtype, 1)),
               image = of(dtype, {1, 2, 4, n + 2}), filter = Tensor(leaf({3, 2, 3, 3}, dtype, 1)),
               bias = Tensor(leaf({n}, dtype, 2));
  return {{"product", of(dtype, {6, 5}).matmul(x)},
          {"product and bias", (of(dtype, {6, 5}).matmul(x) + bias).relu()},
          {"transposed right", x.matmul(w.permute({1, 0}))},
          {"transposed left", x.permute({1, 0}).matmul(of(dtype, {5, 9}))},
          {"window", image.conv2d(filter)},
          {"padded window", image.conv2d(filter, Tensor(), {1, 1, 1})},
          {"rows", x.sum(1)},
          {"largest", x.max(1)},
          {"columns", x.sum(0)},
          {"softmax", x.softmax()},
          {"elementwise", x * bias}};
}

constexpr int64_t odd_sizes[] = {1, 2, 3, 5, 7, 15, 17, 20, 24, 28, 48, 54, 56, 63, 65, 240, 720};
// All of them; where each stage is checked, every third.
std::vector<int64_t> sizes_to_try() {
  std::vector<int64_t> out;
  size_t k = 0;
  for (const int64_t n : odd_sizes)
    if (k++ % 3 == 0 || (options().verify < 3 && !is_sanitized())) out.push_back(n);
  return out;
}

// A width that is none is taken apart into scalars.
TEST(heuristic, vectors_have_powers_of_two_lanes_at_any_size) {
  for (const int vector_bytes : {16, 32, 64})
    for (const DType dtype : {DType::Float32, DType::Float64})
      for (const int64_t n : sizes_to_try())
        for (const auto& [what, value] : along(n, dtype))
          for (const UOp& u : instructions_of(value, machine_with(vector_bytes))) {
            if (u.dtype() == DType::Void || is_memory(u)) continue;
            ASSERT_TRUE(is_power_of_two(lane_count(u)))
                << what << " of " << n << ": " << lane_count(u) << " lanes in " << op_name(u.op());
          }
}

// What each lane loads for itself, from places that data or a remainder decides, is little: LLVM
// takes minutes for some hundreds of it.
TEST(heuristic, few_lanes_load_each_for_itself) {
  const auto picked = [](size_t tables) {
    const Tensor at(leaf({4096}, DType::Int32, 20));
    Tensor out = f32({1000}, 0)[at];
    for (size_t k = 1; k < tables; ++k) out = out + f32({1000}, k)[at];
    return out;
  };
  const auto schedule_of = [&](size_t tables) { return chosen(picked(tables), machine_with(64)); };
  EXPECT_EQ(schedule_of(1), "e_L128_u32: Split(0, 32, UPCAST)");
  EXPECT_EQ(schedule_of(4), "e_L128_u32: Split(0, 32, UPCAST)");
  EXPECT_EQ(schedule_of(6), "e_L256_u16: Split(0, 16, UPCAST)");
  EXPECT_EQ(schedule_of(12), "e_L512_u8: Split(0, 8, UPCAST)");
}

// The tile of a product is made of vectors as wide as the registers, and reads each of them whole:
// no gate stands in its loop.
TEST(heuristic, tiles_read_whole_registers_without_gates) {
  for (const int vector_bytes : {16, 32, 64})
    for (const int64_t n : {20, 24, 28, 48, 54, 56, 100, 240, 720, 1005}) {
      const Tensor gemm = f32({48, 64}).matmul(f32({64, n}, 1)),
                   conv = f32({1, 4, 6, n + 2}).conv2d(f32({8, 4, 3, 3}, 1));
      for (const Tensor& value : {gemm, conv}) {
        int64_t vectors = 0;
        for (const UOp& u : instructions_of(value, machine_with(vector_bytes))) {
          if (!u.is(Op::Load) || is_register(accessed_buffer(u))) continue;
          EXPECT_EQ(u.src().size(), 1u) << n << ": " << to_text(u);
          if (lane_count(u) == 1) continue;
          EXPECT_EQ(lane_count(u) * 4, vector_bytes) << n;
          ++vectors;
        }
        EXPECT_GT(vectors, 0) << n;
      }
    }
}

// Where a window reaches over the edge is the same for all channels: it is tested outside of the
// loop over these, but for where sums keep their order.
TEST(heuristic, gates_of_a_window_are_tested_once_for_all_channels) {
  const Tensor value = f32({2, 32, 16, 16}).conv2d(f32({8, 32, 3, 3}, 1), Tensor(), {1, 1, 1});
  for (const bool strict : {false, true}) {
    Target target = machine_with(32);
    target.strict = strict;
    double tests = 0, products = 0, turns = 1;
    std::vector<double> open;
    for (const UOp& u : instructions_of(value, target)) {
      if (u.is(Op::Range)) open.push_back(static_cast<double>(u.src(0).bounds().high));
      if (u.is(Op::End)) open.pop_back();
      turns = std::accumulate(open.begin(), open.end(), 1.0, std::multiplies<>());
      if (u.dtype() == DType::Bool && is_elementwise(u.op())) tests += turns;
      if (is_float(u.dtype()) && (u.is(Op::Mul) || u.is(Op::Mulacc))) products += turns;
    }
    EXPECT_GT(products, 0);
    if (!strict) {
      EXPECT_LE(16 * tests, products);
    }
  }
}

// Which row is read follows from the row alone, not from where a window stands on it, and says
// nothing of how the rows lie.
TEST(heuristic, rows_that_data_picks_have_the_schedule_of_rows_in_memory) {
  const Tensor rows(leaf({32}, DType::UInt8, 1)),
      images = f32({100, 1, 8, 8}), weights = f32({16, 1, 3, 3}, 2), seen = f32({32, 16, 8, 8}, 3),
      table = f32({100, 64}, 4);
  const auto windows = [&](const Tensor& x) { return x.conv2d(weights, Tensor(), {1, 1, 1}); };
  const auto slopes = [&](const Tensor& x) {
    const Tensor w = weights.detach().requires_grad();
    return (x.conv2d(w, Tensor(), {1, 1, 1}) * seen).sum().gradient({w})[0];
  };
  const auto products = [](const Tensor& x) { return x.matmul(x.transpose()); };
  const auto schedule_of = [](const Tensor& value) {
    const std::string all = chosen(value, machine_with(32));
    return all.substr(all.find(':'));
  };
  EXPECT_EQ(schedule_of(windows(images[rows])), schedule_of(windows(f32({32, 1, 8, 8}, 5))));
  EXPECT_EQ(schedule_of(slopes(images[rows])), schedule_of(slopes(f32({32, 1, 8, 8}, 5))));
  EXPECT_EQ(schedule_of(products(table[rows])), schedule_of(products(f32({32, 64}, 5))));
}

// An epilogue that would run in every block of a reduction runs in a loop that turns once, after
// the last.
TEST(heuristic, epilogues_run_after_the_last_block) {
  const Tensor product = f32({96, 4096}).matmul(f32({4096, 64}, 1)), side = f32({96, 64}, 2);
  for (const bool strict : {false, true}) {
    Target target = machine_with(32);
    target.strict = strict;
    int64_t roots = 0, blocks = 0;
    std::vector<UOp> open;
    for (const UOp& u : instructions_of((product + side.sqrt()).sqrt() * side, target)) {
      if (u.is(Op::Range)) open.push_back(u);
      if (u.is(Op::End)) open.pop_back();
      for (const UOp& r : open) blocks += r.as<RangeArg>().type == AxisType::Reduce;
      if (!u.is(Op::Sqrt)) continue;
      ++roots;
      const Interval turns = open.back().src(0).bounds();
      EXPECT_TRUE(turns.low == 0 && turns.high == 1) << to_text(u);
    }
    EXPECT_GT(roots, 0);
    EXPECT_GT(blocks, 0);
  }
}

// What is made of the results of a tile stands there once, in a loop over it with lanes along the
// output, whichever way the lanes of the product run.
TEST(heuristic, much_that_is_made_of_products_is_computed_in_a_loop_over_the_tile) {
  const Tensor a = f32({64, 96}), b = f32({96, 80}, 1), c = f32({80, 96}, 2), bias = f32({80}, 3);
  const auto silu = [](const Tensor& x) { return x / ((-x).exp() + 1.0); };
  const std::vector<Tensor> values{silu(a.matmul(b)), silu(a.matmul(b) + bias),
                                   silu(a.matmul(c.transpose())),
                                   silu(a.matmul(c.transpose()) + bias) * bias,
                                   silu(a.matmul(c.transpose())).cast(DType::Float16)};
  for (const int bytes : {16, 32, 64})
    for (size_t i = 0; i < values.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} bytes, value {}", bytes, i));
      int64_t divisions = 0, products = 0;
      for (const UOp& u : instructions_of(values[i], machine_with(bytes))) {
        products += u.is(Op::Mulacc) && lane_count(u) * 4 == bytes ? 1 : 0;
        if (!u.is(Op::Fdiv) && !u.is(Op::Recip)) continue;
        ++divisions;
        EXPECT_EQ(lane_count(u) * 4, bytes);
      }
      EXPECT_EQ(divisions, 1);
      EXPECT_GT(products, 8);
    }
  const auto uses_memory = [](const Tensor& value) {
    const auto all = instructions_of(value, machine_with(32));
    return std::any_of(all.begin(), all.end(), [](const UOp& u) {
      return u.is(Op::Buffer) && u.as<BufferArg>().space == AddrSpace::Local;
    });
  };
  EXPECT_TRUE(uses_memory(values[0]));
  EXPECT_FALSE(uses_memory(a.matmul(b).relu())) << "a few operations stay in registers";
  EXPECT_FALSE(uses_memory(a.exp().matmul(b))) << "what is folded is no epilogue";
}

// Rows, columns and steps that are no multiples of a tile, and what else such a value may read.
TEST(heuristic, what_is_made_of_products_is_right_at_all_sizes) {
  for (const auto& [m, k, n] : {std::tuple{1, 33, 16},
                                {7, 64, 48},
                                {70, 40, 64},
                                {33, 129, 50},
                                {12, 16, 4},
                                {5, 300, 33},
                                {64, 96, 16}}) {
    if (is_sanitized() && m > 7) continue;  // the same code is watched
    SCOPED_TRACE(fmt::format("{} {} {}", m, k, n));
    const Tensor a = f32({m, k}) * 0.1, b = f32({k, n}, 1) * 0.1, c = f32({n, k}, 2) * 0.1;
    const Tensor bias = f32({n}, 3), side = f32({m, n}, 4), row = f32({m, 1}, 5);
    expect_same_everywhere((a.matmul(b) + bias).sigmoid() * side);
    expect_same_everywhere((a.matmul(c.transpose()) + bias).sigmoid() * side + row);
    expect_same_everywhere(a.matmul(c.transpose()).exp().cast(DType::Float16));
    expect_same_everywhere(a.matmul(c.transpose()).tanh() < bias);
    expect_same_everywhere(a.matmul(c.transpose()).sigmoid().transpose().contiguous());
    expect_same_everywhere((a.matmul(b).sigmoid() + row).pad({{1, 2}, {3, 0}}));
  }
}

// The address of a closed lane may be a fault that the machine has to look into: a vector without
// an open lane starts at most its length outside of the buffer.
TEST(heuristic, closed_lanes_stay_at_their_buffer) {
  struct Row {
    const char* what;
    Tensor value;
    std::ptrdiff_t loads, not_before, not_behind;
  };
  const Tensor x = f32({37}), y = f32({41}, 1);
  const std::vector<Row> table{
      {"joined", Tensor::cat({x, y}, 0) * 2.0, 2, 1, 1},
      {"padded", x.pad({{100, 100}}) * 2.0, 1, 1, 1},
      {"padded behind", x.pad({{0, 100}}) * 2.0, 1, 0, 1},
      {"moved by one", x.pad({{1, 0}})[{Slice{0, 37, 1}}] * 2.0, 1, 0, 0},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.what);
    const LoweredKernel k = lower_kernel(schedule({row.value.uop()}).back().ast, machine_with(32));
    const std::string text = render_llvm_text(k.linear, "k", machine_with(32));
    const auto calls = [&](const std::string& name) {
      const std::regex call("call [^@\\n]*@llvm\\." + name);
      return std::distance(std::sregex_iterator(text.begin(), text.end(), call), {});
    };
    EXPECT_EQ(calls("masked\\.load"), row.loads) << text;
    EXPECT_EQ(calls("smax"), row.not_before) << text;
    EXPECT_EQ(calls("smin"), row.not_behind) << text;
    expect_same_everywhere(row.value);
  }
}

// Sums of multiples of 1/4 are exact in any order.
TEST(heuristic, products_in_blocks_have_the_values_of_the_formula) {
  constexpr int64_t m = 70, k = 2100, n = 52;
  auto quarters = [](int64_t rows, int64_t columns, int64_t step) {
    std::vector<float> data;
    for (int64_t i = 0; i < rows * columns; ++i)
      data.push_back(static_cast<float>(i * step % 17 - 8) / 4);
    return data;
  };
  const std::vector<float> a = quarters(m, k, 5), b = quarters(k, n, 3), c = quarters(1, n, 7);
  in_both_modes([&] {
    const Tensor bias = Tensor::from(c, {n}), x = Tensor::from(a, {m, k});
    const std::vector<float> got =
        (x.matmul(Tensor::from(b, {k, n})) + bias).maximum(bias.neg()).tolist<float>();
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = c[static_cast<size_t>(j)];
        for (int64_t l = 0; l < k; ++l)
          sum += static_cast<double>(a[static_cast<size_t>(i * k + l)]) *
                 b[static_cast<size_t>(l * n + j)];
        ASSERT_EQ(got[static_cast<size_t>(i * n + j)],
                  std::max(sum, -static_cast<double>(c[static_cast<size_t>(j)])))
            << i << " " << j;
      }
  });
}

TEST(heuristic, odd_sizes_give_the_values_of_the_interpreter) {
  constexpr DType dtypes[] = {DType::Float32, DType::Float64, DType::Float16};
  size_t turn = 0;
  for (const int64_t n : sizes_to_try())
    for (const auto& [what, value] : along(n, dtypes[turn++ % 3])) {
      SCOPED_TRACE(what + " of " + std::to_string(n));
      expect_same_everywhere(value);
    }
}

// Many rows side by side, a row in each lane.
TEST(heuristic, rows_shorter_than_a_vector_give_the_values_of_the_interpreter) {
  constexpr DType dtypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::Int32};
  size_t turn = 0;
  for (const int64_t n : {1, 2, 3, 5, 8, 15, 17})
    for (const int64_t rows : {1, 33, 64}) {
      const DType dtype = dtypes[turn++ % 4];
      SCOPED_TRACE(fmt::format("{} rows of {} {}", rows, n, dtype_name(dtype)));
      const Tensor x(leaf({rows, n}, dtype)), soft = small({rows, n});
      for (const Tensor& value : {x - x.max({1}, true), x.max({1}), x.sum({1}), x.cumsum(1),
                                  soft.softmax(1), soft.layernorm(), soft.argmax(1)})
        expect_same_everywhere(value);
    }
}

}  // namespace
}  // namespace koine::test
