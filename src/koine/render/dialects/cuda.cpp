#include "koine/render/dialect.hpp"

namespace koine {
namespace {

// HIP has CUDA's language, and files that begin otherwise.
constexpr Dialect like_cuda(std::string_view name, std::string_view includes) {
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
)",
      .function = "__device__ static inline",
      .kernel = "extern \"C\" __global__ void",
      .local = "__shared__ ",
      .types = {"signed char", "short", "int", "long long", "unsigned char", "unsigned short",
                "unsigned int", "unsigned long long", "float", "double"},
      .long_suffix = "ll",
      .thread = "blockIdx.x",
      .barrier = "__syncthreads();",
      .group_index = {"blockIdx.x", "blockIdx.y", "blockIdx.z"},
      .index_in_group = {"threadIdx.x", "threadIdx.y", "threadIdx.z"},
      .trunc = {"truncf", "trunc"},
      .sqrt = {"sqrtf", "sqrt"},
      .fma = {"fmaf", "fma"},
  };
}

}  // namespace

// Strict programs are compiled without contraction (nvcc and NVRTC: --fmad=false).
const Dialect cuda_dialect = like_cuda("cuda", "");
const Dialect hip_dialect =
    like_cuda("hip", "#include <hip/hip_runtime.h>\n#pragma clang fp contract(off)\n");

}  // namespace koine
