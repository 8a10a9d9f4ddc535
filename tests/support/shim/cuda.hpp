// The words of CUDA C++ that Koine's texts use, for a compiler of C++.
#pragma once
#include <cmath>
#include <cstring>

#include "groups.hpp"

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ KOINE_SHIM_SHARED
#define blockIdx shim::group
#define threadIdx shim::item

#define KOINE_WIDE(bytes, type)                                                          \
  inline void load_##bytes(void* to, const void* from) { std::memcpy(to, from, bytes); } \
  inline void store_##bytes(void* to, const void* from) { std::memcpy(to, from, bytes); }

inline void __syncthreads() { shim::barrier(); }

template <class To, class From>
To shim_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned v) { return shim_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return shim_bits<unsigned>(v); }
inline double __longlong_as_double(long long v) { return shim_bits<double>(v); }
inline long long __double_as_longlong(double v) { return shim_bits<long long>(v); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }

// mma.sync.m16n8k16 by the formulas of the PTX manual: the threads of a warp show each other what
// they hold.
inline float shim_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                               : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25));
}
inline float shim_bfloat(unsigned short bits) {
  return shim_bits<float>(static_cast<unsigned>(bits) << 16);
}
template <class Of>
void shim_mma(float* sum, const unsigned short* a, const unsigned short* b, const float* c, Of of) {
  // A warp, which lies along x, has its own.
  KOINE_SHIM_SHARED float all_rows[32][32][16][16], all_columns[32][32][16][8];
  auto& rows = all_rows[threadIdx.z % 32][threadIdx.y % 32];
  auto& columns = all_columns[threadIdx.z % 32][threadIdx.y % 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, in_group = lane % 4;
  for (int i = 0; i < 8; ++i) {
    const int row = i % 4 < 2 ? group : group + 8;
    rows[row][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] = of(a[i]);
  }
  for (int i = 0; i < 4; ++i) columns[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = of(b[i]);
  shim::barrier();
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
    float total = c[i];
    for (int k = 0; k < 16; ++k) total += rows[row][k] * columns[k][column];
    sum[i] = total;
  }
  shim::barrier();
}
#define KOINE_MMA(name, type)                                                                      \
  inline void name(float* sum, const unsigned short* a, const unsigned short* b, const float* c) { \
    shim_mma(sum, a, b, c, type[0] == 'b' ? shim_bfloat : shim_half);                              \
  }

template <class T>
T atomicAdd(T* place, T value) {
  return shim::add_at_once(place, value);
}
