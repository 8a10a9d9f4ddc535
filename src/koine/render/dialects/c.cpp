#include "koine/render/dialect.hpp"

namespace koine {

const Dialect c_dialect{
    .name = "c",
    .includes = "#include <stdint.h>\n#include <string.h>\n",
    .header =
        R"(#define KOINE_BITS(T, U, name)                                                                      \
  static inline T from_##name(U bits) { T v; memcpy(&v, &bits, sizeof v); return v; }               \
  static inline U to_##name(T v) { U bits; memcpy(&bits, &v, sizeof v); return bits; }              \
  static inline void atomic_add_##name(T* place, T value) {                                         \
    U before, now;                                                                                  \
    do {                                                                                            \
      before = __atomic_load_n((U*)place, __ATOMIC_RELAXED);                                        \
      now = to_##name(from_##name(before) + value);                                                 \
    } while (!__atomic_compare_exchange_n((U*)place, &before, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
  }
KOINE_BITS(float, uint32_t, f32)
KOINE_BITS(double, uint64_t, f64)
#define KOINE_ATOMIC(T, name) \
  static inline void atomic_add_##name(T* place, T value) { __atomic_fetch_add(place, value, __ATOMIC_RELAXED); }
KOINE_ATOMIC(int32_t, i32)
KOINE_ATOMIC(uint32_t, u32)
KOINE_ATOMIC(int64_t, i64)
KOINE_ATOMIC(uint64_t, u64)
#define KOINE_CORE(name, T, A, B, k_count, of)                                                      \
  static inline void name(T* sum, const A* a, const B* b, const T* c) {                             \
    for (int n = 0; n < 16; ++n) {                                                                  \
      sum[n] = c[n];                                                                                \
      for (int k = 0; k < k_count; ++k) sum[n] += of(a[k]) * of(b[n * k_count + k]);                \
    }                                                                                               \
  }
#define KOINE_BF16(bits) from_f32((uint32_t)(bits) << 16)
KOINE_CORE(x86_vdpbf16ps, float, uint16_t, uint16_t, 2, KOINE_BF16)
KOINE_CORE(x86_vpdpbusd, int32_t, uint8_t, int8_t, 4, (uint32_t))
KOINE_CORE(x86_vpdpwssd, int32_t, int16_t, int16_t, 2, (uint32_t))
)",
    .function = "static inline",
    .kernel = "void",
    .arguments = Arguments::Arrays,
    .types = {"int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t",
              "uint64_t", "float", "double"},
    .long_suffix = "ll",
    .thread = "thread",
    .trunc = {"__builtin_truncf", "__builtin_trunc"},
    .sqrt = {"__builtin_sqrtf", "__builtin_sqrt"},
    .fma = {"__builtin_fmaf", "__builtin_fma"},
    .cores = {"x86_vdpbf16ps", "x86_vpdpbusd", "x86_vpdpwssd"},
};

}  // namespace koine
