// The words of CUDA C++ that Koine's texts use, for a compiler of C++.
#pragma once
#include <cmath>
#include <cstring>

#include "groups.hpp"

#define __device__
#define __global__
#define __shared__ static thread_local
#define blockIdx shim::group
#define threadIdx shim::item

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

template <class T>
T atomicAdd(T* place, T value) {  // one thread of the host runs all
  const T before = *place;
  *place = before + value;
  return before;
}
