#include <string>

#include "koine/render/dialect.hpp"

namespace koine {
namespace {

// HIP has CUDA's language, and files that begin otherwise.
Dialect like_cuda(std::string_view name, std::string_view includes) {
  return {
      .name = name,
      .includes = includes,
      .header =
          R"(__device__ static inline float from_f32(unsigned int bits) { return __uint_as_float(bits); }
__device__ static inline unsigned int to_f32(float v) { return __float_as_uint(v); }
__device__ static inline double from_f64(unsigned long long bits) { return __longlong_as_double((long long)bits); }
__device__ static inline unsigned long long to_f64(double v) { return (unsigned long long)__double_as_longlong(v); }
__device__ static inline void atomic_add_i32(int* place, int value) { atomicAdd(place, value); }
__device__ static inline void atomic_add_u32(unsigned int* place, unsigned int value) { atomicAdd(place, value); }
__device__ static inline void atomic_add_i64(long long* place, long long value) {
  atomicAdd((unsigned long long*)place, (unsigned long long)value);
}
__device__ static inline void atomic_add_u64(unsigned long long* place, unsigned long long value) { atomicAdd(place, value); }
__device__ static inline void atomic_add_f32(float* place, float value) { atomicAdd(place, value); }
__device__ static inline void atomic_add_f64(double* place, double value) { atomicAdd(place, value); }
// Of memory that begins at multiples of 16 bytes.
#ifndef KOINE_WIDE
#define KOINE_WIDE(bytes, type)                                                                    \
  __device__ static inline void load_##bytes(void* to, const void* from) {                         \
    *(type*)to = *(const type*)from;                                                               \
  }                                                                                                \
  __device__ static inline void store_##bytes(void* to, const void* from) {                        \
    *(type*)to = *(const type*)from;                                                               \
  }
#endif
KOINE_WIDE(4, unsigned int)
KOINE_WIDE(8, uint2)
KOINE_WIDE(16, uint4)
)",
      .function = "__device__ static inline",
      .kernel = "extern \"C\" __global__ void",
      .bounds = " __launch_bounds__({threads})",
      .local = "__shared__ ",
      .types = {"signed char", "short", "int", "long long", "unsigned char", "unsigned short",
                "unsigned int", "unsigned long long", "float", "double"},
      .long_suffix = "ll",
      .thread = "blockIdx.x",
      .barrier = "__syncthreads();",
      .group_index = {"blockIdx.x", "blockIdx.y", "blockIdx.z"},
      .index_in_group = {"threadIdx.x", "threadIdx.y", "threadIdx.z"},
      .wide = true,
      .trunc = {"truncf", "trunc"},
      .sqrt = {"sqrtf", "sqrt"},
      .fma = {"fmaf", "fma"},
  };
}

// What NVIDIA's compilers alone have, and what they get wrong (NVRTC 13.0 and 13.5, run on sm_90).
Dialect of_nvidia(Dialect cuda) {
  static const auto& header =
      *new const std::string(std::string(cuda.header) +
                             R"(// The assembler takes it that a negative does not overflow.
#ifdef __CUDA_ARCH__
#define KOINE_NEGATE(v, bits, register) \
  asm("{ .reg .b" bits " t; not.b" bits " t, %1; add.s" bits " %0, t, 1; }" : "=" register(v) : register(v))
#else
#define KOINE_NEGATE(v, bits, register) v = 0 - v
#endif
__device__ static inline unsigned int negated(unsigned int v) {
  KOINE_NEGATE(v, "32", "r");
  return v;
}
__device__ static inline unsigned long long negated(unsigned long long v) {
  KOINE_NEGATE(v, "64", "l");
  return v;
}
// Of compute capability 8.0 and later.
#ifndef KOINE_MMA
#define KOINE_MMA(name, type)                                                                       \
  __device__ static inline void name(float* sum, const unsigned short* a, const unsigned short* b,  \
                                     const float* c) {                                              \
    unsigned int x[4], y[2];                                                                        \
    for (int i = 0; i < 4; ++i) x[i] = a[2 * i] | (unsigned int)a[2 * i + 1] << 16;                 \
    for (int i = 0; i < 2; ++i) y[i] = b[2 * i] | (unsigned int)b[2 * i + 1] << 16;                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                     \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"              \
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])                           \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]),                \
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));                                     \
  }
#endif
KOINE_MMA(cuda_m16n8k16_f16, "f16")
KOINE_MMA(cuda_m16n8k16_bf16, "bf16")
)");
  cuda.header = header;
  cuda.bounds = " __launch_bounds__({threads}, {groups})";
  cuda.groups.local_bytes = int64_t{48} << 10;
  cuda.negated = "negated";
  cuda.below_negative_zero = true;
  cuda.cores = {"cuda_m16n8k16_f16", "cuda_m16n8k16_bf16"};
  return cuda;
}

}  // namespace

// Strict programs are compiled without contraction (nvcc and NVRTC: --fmad=false).
const Dialect cuda_dialect = of_nvidia(like_cuda("cuda", ""));
const Dialect hip_dialect =
    like_cuda("hip", "#include <hip/hip_runtime.h>\n#pragma clang fp contract(off)\n");

}  // namespace koine
