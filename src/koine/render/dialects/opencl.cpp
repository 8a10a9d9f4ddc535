#include "koine/render/dialect.hpp"

namespace koine {

// OpenCL C 1.2 and later. Double and 64-bit atomics are extensions that a device may lack.
const Dialect opencl_dialect{
    .name = "opencl",
    .includes = "#pragma OPENCL FP_CONTRACT OFF\n",
    .header = R"(static inline float from_f32(uint bits) { return as_float(bits); }
static inline uint to_f32(float v) { return as_uint(v); }
// PoCL's own has branches on a CPU; there is an instruction.
#if defined(__clang__) && defined(__SSE4_1__)
static inline float trunc_f32(float v) { return __builtin_truncf(v); }
#else
static inline float trunc_f32(float v) { return trunc(v); }
#endif
static inline void atomic_add_i32(volatile __global int* place, int value) { atomic_add(place, value); }
static inline void atomic_add_u32(volatile __global uint* place, uint value) { atomic_add(place, value); }
static inline void atomic_add_f32(volatile __global float* place, float value) {
  uint before, now;
  do {
    before = as_uint(*place);
    now = as_uint(as_float(before) + value);
  } while (atomic_cmpxchg((volatile __global uint*)place, before, now) != before);
}
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
static inline void atomic_add_i64(volatile __global long* place, long value) { atom_add(place, value); }
static inline void atomic_add_u64(volatile __global ulong* place, ulong value) { atom_add(place, value); }
#endif
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
static inline double from_f64(ulong bits) { return as_double(bits); }
static inline ulong to_f64(double v) { return as_ulong(v); }
#if defined(__clang__) && defined(__SSE4_1__)
static inline double trunc_f64(double v) { return __builtin_trunc(v); }
#else
static inline double trunc_f64(double v) { return trunc(v); }
#endif
#ifdef cl_khr_int64_base_atomics
static inline void atomic_add_f64(volatile __global double* place, double value) {
  ulong before, now;
  do {
    before = as_ulong(*place);
    now = as_ulong(as_double(before) + value);
  } while (atom_cmpxchg((volatile __global ulong*)place, before, now) != before);
}
#endif
#endif
)",
    .function = "static inline",
    .kernel = "__kernel void",
    .global = "__global ",
    .local = "__local ",
    .types = {"char", "short", "int", "long", "uchar", "ushort", "uint", "ulong", "float",
              "double"},
    .long_suffix = "l",
    .double_macro = "cl_khr_fp64",
    .thread = "get_global_id(0)",
    .barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    .loops_begin_with_barriers = true,
    .group_index = {"get_group_id(0)", "get_group_id(1)", "get_group_id(2)"},
    .index_in_group = {"get_local_id(0)", "get_local_id(1)", "get_local_id(2)"},
    .vectors = true,
    .trunc = {"trunc_f32", "trunc_f64"},
    .sqrt = {"sqrt", "sqrt"},
    .fma = {"fma", "fma"},
};

}  // namespace koine
