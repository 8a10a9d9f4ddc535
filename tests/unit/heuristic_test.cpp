// The schedule that is chosen for typical kernels, on a CPU with 8 lanes of float32, 16 registers
// and a team of threads.
#include "koine/lower/heuristic.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/split_reduce.hpp"
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

// The chosen edits of the last kernel of a value.
std::string chosen(const Tensor& value, const Target& target) {
  Options o = options();
  o.noopt = false;
  o.strict = target.strict;
  const OptionScope scope(o);
  const LoweredKernel k = lower_kernel(schedule({value.uop()}).back().ast, target);
  std::string out = k.name + ":";
  for (const Opt& opt : k.opts) out += " " + opt_text(opt);
  return out;
}

Tensor f32(std::initializer_list<int64_t> sizes, uint64_t salt = 0) {
  return Tensor(leaf(sizes, DType::Float32, salt));
}
Tensor of(DType dtype, std::initializer_list<int64_t> sizes) { return Tensor(leaf(sizes, dtype)); }

// A change of the heuristic changes this table: measure the kernels it names before and after.
TEST(heuristic, schedules_of_typical_kernels) {
  const Target machine = machine_with(32), narrow = machine_with(16);
  Target strict = machine, alone = machine;
  strict.strict = true;
  alone.has_threads = false;
  struct Row {
    const char* what;
    Tensor value;
    const Target& target;
    const char* schedule;
  };
  const std::vector<Row> table{
      {"x+1 1024", f32({1024}) + 1.0, machine, "e_L32_u32: Split(0, 32, UPCAST)"},
      {"x+1 100000", f32({100000}) + 1.0, machine,
       "e_t5_L625_u32: Split(0, 32, UPCAST) Split(0, 5, THREAD, top)"},
      {"x+1 1048576", f32({1048576}) + 1.0, machine,
       "e_t16_L2048_u32: Split(0, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"x+1 1048576 alone", f32({1048576}) + 1.0, alone, "e_L32768_u32: Split(0, 32, UPCAST)"},
      {"x+1 1048576 narrow", f32({1048576}) + 1.0, narrow,
       "e_t16_L4096_u16: Split(0, 16, UPCAST) Split(0, 16, THREAD, top)"},
      {"x+1 7", f32({7}) + 1.0, machine, "e_u7: Split(0, 7, UPCAST)"},
      {"x+1 1009", f32({1009}) + 1.0, machine, "e_L127_u8: Padto(0, 8) Split(0, 8, UPCAST)"},
      {"x+1 3", f32({3}) + 1.0, machine, "e_u3: Split(0, 3, UPCAST)"},
      {"sin 1024", f32({1024}).sin(), machine, "e_L64_u16: Split(0, 16, UPCAST)"},
      {"f64 1024", of(DType::Float64, {1024}) + 1.0, machine, "e_L64_u16: Split(0, 16, UPCAST)"},
      {"u8 1024", of(DType::UInt8, {1024}) + 1, machine, "e_L8_u128: Split(0, 128, UPCAST)"},
      {"x.T contiguous", f32({64, 96}).permute({1, 0}).contiguous(), machine,
       "e_L96_L2_u32: Split(1, 32, UPCAST)"},
      {"x.T + y", f32({64, 96}).permute({1, 0}) + f32({96, 64}, 1), machine,
       "e_L96_L2_u32: Split(1, 32, UPCAST)"},
      {"bias 64x100", f32({64, 100}) + f32({100}, 1), machine, "e_L64_L20_u5: Split(1, 5, UPCAST)"},
      {"bias 64x7", f32({64, 7}) + f32({7}, 1), machine, "e_L64_u7: Split(1, 7, UPCAST)"},
      {"sum all 1e6", f32({1048576}).sum(), machine, "r_R2_G32: Split(0, 32, GROUP_REDUCE)"},
      {"sum all strict", f32({1048576}).sum(), strict, "r_R1048576:"},
      {"rows 64x1000", f32({64, 1000}).sum(1), machine, "r_L64_R125_G8: Split(1, 8, GROUP_REDUCE)"},
      {"rows 64x1000 strict", f32({64, 1000}).sum(1), strict,
       "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x64", f32({1000, 64}).sum(0), machine, "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x64 strict", f32({1000, 64}).sum(0), strict,
       "r_L2_u32_R1000: Split(0, 32, UPCAST)"},
      {"cols 1000x7", f32({1000, 7}).sum(0), machine, "r_u7_R1000: Split(0, 7, UPCAST)"},
      {"rows 64x7", f32({64, 7}).sum(1), machine, "r_L64_R7:"},
      {"max rows", f32({64, 1000}).max(1), machine, "r_L64_R125_G8: Split(1, 8, GROUP_REDUCE)"},
      {"gemm 64", f32({64, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"gemm 512", f32({512, 512}).matmul(f32({512, 512}, 1)), machine,
       "r_t2_R4_L43_u6_L32_u16_R128: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "2, THREAD, top) Split(5, 128, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm 512 strict", f32({512, 512}).matmul(f32({512, 512}, 1)), strict,
       "r_t2_R4_L43_u6_L32_u16_R128: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "2, THREAD, top) Split(5, 128, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm 512 narrow", f32({512, 512}).matmul(f32({512, 512}, 1)), narrow,
       "r_t2_R4_L43_u6_L64_u8_R128: Split(1, 8, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "2, THREAD, top) Split(5, 128, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm 37x50x100", f32({37, 50}).matmul(f32({50, 100}, 1)), machine,
       "r_t10_L19_u2_u10_R50: Split(1, 10, UPCAST) Padto(0, 2) Split(0, 2, UPCAST) Split(2, 10, "
       "THREAD, top) Swap(2, 1) Swap(1, 0)"},
      {"gemm 64x64x3", f32({64, 64}).matmul(f32({64, 3}, 1)), machine,
       "r_L6_u11_u3_R64: Split(1, 3, UPCAST) Padto(0, 11) Split(0, 11, UPCAST)"},
      {"gemm 64x64x1009", f32({64, 64}).matmul(f32({64, 1009}, 1)), machine,
       "r_t6_u11_L127_u8_R64: Padto(1, 8) Split(1, 8, UPCAST) Padto(0, 11) Split(0, 11, UPCAST) "
       "Split(0, 6, THREAD, top)"},
      {"gemm 1024x4096x64", f32({1024, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t9_R4_L19_u6_L4_u16_R1024: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "9, THREAD, top) Split(5, 1024, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm a b.T", f32({64, 48}).matmul(f32({80, 48}, 1).permute({1, 0})), machine,
       "r_t16_L4_L80_R2_G24: Split(2, 24, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"gemm a.T b", f32({48, 64}).permute({1, 0}).matmul(f32({48, 80}, 1)), machine,
       "r_t16_u5_L4_u16_R48: Swap(0, 1) Split(1, 16, UPCAST) Split(0, 5, UPCAST) Split(0, 16, "
       "THREAD, top)"},
      {"gemv", f32({512, 512}).matmul(f32({512}, 1)), machine,
       "r_t16_L32_R16_G32: Split(1, 32, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"outer", f32({64, 1}) * f32({1, 64}, 1), machine, "e_L64_L2_u32: Split(1, 32, UPCAST)"},
      {"conv", f32({2, 3, 16, 16}).conv2d(f32({8, 3, 3, 3}, 1)), machine,
       "r_t2_u8_L14_u14_R3_R3_R3: Split(3, 14, UPCAST) Split(1, 8, UPCAST) Split(0, 2, THREAD, "
       "top)"},
      {"int gemm", of(DType::Int32, {64, 64}).matmul(of(DType::Int32, {64, 64})), machine,
       "r_t16_L4_L2_u32_R64: Split(1, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"softmax", f32({64, 100}).softmax(), machine,
       "r_L64_L20_u5_R20_G5_R20_G5: Split(1, 5, UPCAST) Split(3, 5, GROUP_REDUCE) Split(5, 5, "
       "GROUP_REDUCE)"},
      {"products of a last axis",
       Tensor::einsum("mkb,knb->mnb", {f32({32, 40, 64}), f32({40, 16, 64}, 1)}), machine,
       "r_t16_L2_L16_L2_u32_R40: Split(2, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"batch gemm", f32({4, 64, 64}).matmul(f32({4, 64, 64}, 1)), machine,
       "r_t4_L11_u6_L4_u16_R64: Split(2, 16, UPCAST) Padto(1, 6) Split(1, 6, UPCAST) Split(0, 4, "
       "THREAD, top)"},
      {"gemm 63 rows", f32({63, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t16_u4_L4_u16_R4096: Split(1, 16, UPCAST) Padto(0, 4) Split(0, 4, UPCAST) Split(0, 16, "
       "THREAD, top)"},
      {"gemm 64 rows", f32({64, 4096}).matmul(f32({4096, 64}, 1)), machine,
       "r_t11_R4_u6_L4_u16_R1024: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "11, THREAD, top) Split(4, 1024, REDUCE) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm k 2048", f32({128, 2048}).matmul(f32({2048, 64}, 1)), machine,
       "r_t11_L2_u6_L4_u16_R2048: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "11, THREAD, top)"},
      {"gemm k 2049", f32({128, 2049}).matmul(f32({2049, 64}, 1)), machine,
       "r_t11_R3_L2_u6_L4_u16_R683: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "11, THREAD, top) Split(5, 683, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm k 2064", f32({128, 2064}).matmul(f32({2064, 64}, 1)), machine,
       "r_t11_R3_L2_u6_L4_u16_R688: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, "
       "11, THREAD, top) Split(5, 688, REDUCE) Swap(5, 4) Swap(4, 3) Swap(3, 2) Swap(2, 1)"},
      {"gemm k 100000", f32({64, 100000}).matmul(f32({100000, 16}, 1)), machine,
       "r_t11_R25_u6_u16_R4000: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top) Split(3, 4000, REDUCE) Swap(3, 2) Swap(2, 1)"},
      {"gemm k prime", f32({256, 4099}).matmul(f32({4099, 256}, 1)), machine,
       "r_t16_L43_u6_u16_R4099: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(2, 16, "
       "THREAD, top) Swap(2, 1) Swap(1, 0)"},
      {"gemm 5 columns", f32({64, 64}).matmul(f32({64, 5}, 1)), machine,
       "r_L6_u11_u5_R64: Split(1, 5, UPCAST) Padto(0, 11) Split(0, 11, UPCAST)"},
      {"gemm 4 columns", f32({64, 64}).matmul(f32({64, 4}, 1)), machine,
       "r_L6_u11_u4_R64: Split(1, 4, UPCAST) Padto(0, 11) Split(0, 11, UPCAST)"},
      {"gemm 22 columns", f32({64, 64}).matmul(f32({64, 22}, 1)), machine,
       "r_t6_u11_L2_u11_R64: Split(1, 11, UPCAST) Padto(0, 11) Split(0, 11, UPCAST) Split(0, 6, "
       "THREAD, top)"},
      {"gemm 13 rows", f32({13, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_L13_L2_u32_R64: Split(1, 32, UPCAST)"},
      {"gemm 2 rows", f32({2, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_u2_L2_u32_R64: Split(1, 32, UPCAST) Split(0, 2, UPCAST)"},
      {"gemm f64", of(DType::Float64, {64, 64}).matmul(of(DType::Float64, {64, 64})), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"gemm f16", of(DType::Float16, {64, 64}).matmul(of(DType::Float16, {64, 64})), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"gemm masked",
       Tensor::where(f32({64, 64}) > 0.0, f32({64, 64}), 0.0).matmul(f32({64, 64}, 1)), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"gemm + bias, relu", (f32({64, 64}).matmul(f32({64, 64}, 1)) + f32({64}, 2)).relu(), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"gemm of sums", (f32({64, 64}) + 1.0).matmul(f32({64, 64}, 1) * 2.0), machine,
       "r_t11_u6_L4_u16_R64: Split(1, 16, UPCAST) Padto(0, 6) Split(0, 6, UPCAST) Split(0, 11, "
       "THREAD, top)"},
      {"product of maxima", (f32({64, 64}).unsqueeze(-1) * f32({64, 64}, 1)).max(1), machine,
       "r_t16_L4_L2_u32_R64: Split(1, 32, UPCAST) Split(0, 16, THREAD, top)"},
      {"threads at 2^17", f32({43696}) + 1.0, machine, "e_L2731_u16: Split(0, 16, UPCAST)"},
      {"threads below", f32({43680}) + 1.0, machine, "e_L1365_u32: Split(0, 32, UPCAST)"},
      {"threads of a second axis", f32({1, 17, 10000}) + f32({17, 1}, 1), machine,
       "e_t5_L17_L125_u16: Split(1, 16, UPCAST) Split(1, 5, THREAD, top) Swap(1, 0)"},
      {"threads of a prime", f32({100003}) + 1.0, machine,
       "e_t9_L1389_u8: Padto(0, 8) Split(0, 8, UPCAST) Split(0, 9, THREAD, top)"},
      {"rows of 15", f32({64, 15}).sum(1), machine, "r_L64_R3_G5: Split(1, 5, GROUP_REDUCE)"},
      {"rows of 8", f32({64, 8}).sum(1), machine, "r_L64_G8: Split(1, 8, GROUP_REDUCE)"},
      {"rows of 1009", f32({64, 1009}).sum(1), machine,
       "r_L64_R127_G8: Padto(1, 8) Split(1, 8, GROUP_REDUCE)"},
      {"rows of halves", of(DType::Float16, {64, 1000}).sum(1), machine,
       "r_t16_L4_R125_G8: Split(1, 8, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
      {"rows of bytes", of(DType::UInt8, {64, 1000}).sum(1), machine,
       "r_t16_L4_R125_G8: Split(1, 8, GROUP_REDUCE) Split(0, 16, THREAD, top)"},
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
       "r_L64_L20_u5_R20_G5: Split(1, 5, UPCAST) Split(3, 5, GROUP_REDUCE)"},
      {"layernorm", f32({64, 128}).layernorm(), machine,
       "r_L64_L16_u8_R16_G8_R16_G8: Split(1, 8, UPCAST) Split(3, 8, GROUP_REDUCE) Split(5, 8, "
       "GROUP_REDUCE)"},
      {"max pool", f32({1, 4, 16, 16}).max_pool2d(2), machine, "r_L32_L8_R2_R2:"},
      {"one row", f32({1, 64}).matmul(f32({64, 64}, 1)), machine,
       "r_L2_u32_R64: Split(0, 32, UPCAST)"},
      {"one column", f32({64, 64}).matmul(f32({64, 1}, 1)), machine,
       "r_L64_R2_G32: Split(1, 32, GROUP_REDUCE)"},
  };
  for (const Row& row : table) {
    EXPECT_EQ(chosen(row.value, row.target), row.schedule) << row.what;
    // With the schedule of this machine: inside of its memory, to the last element.
    SCOPED_TRACE(row.what);
    const UOp out = buffer_from_host(row.value.uop().shape(), row.value.dtype(), "CPU", nullptr);
    const Callified program = callify({row.value.uop()}, {out});
    const std::vector<Kernel> kernels = rangeify(split_large_reduces(program.body));
    const Array guarded = run_kernels(kernels, program, {kernels.size(), {}});
    EXPECT_EQ(difference(array_of(row.value.clone().realize().uop()), guarded), "");
  }
}

}  // namespace
}  // namespace koine::test
