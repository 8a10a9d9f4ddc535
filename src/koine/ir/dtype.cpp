#include "koine/ir/dtype.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "koine/base/error.hpp"
#include "koine/ir/float_layout.hpp"

namespace koine {
namespace {

constexpr std::array<DTypeInfo, dtype_count> dtype_infos = {{
    {"void", 0, DTypeKind::Void},
    {"bool", 8, DTypeKind::Bool},
    {"int8", 8, DTypeKind::Signed},
    {"int16", 16, DTypeKind::Signed},
    {"int32", 32, DTypeKind::Signed},
    {"int64", 64, DTypeKind::Signed},
    {"uint8", 8, DTypeKind::Unsigned},
    {"uint16", 16, DTypeKind::Unsigned},
    {"uint32", 32, DTypeKind::Unsigned},
    {"uint64", 64, DTypeKind::Unsigned},
    {"float8e4m3", 8, DTypeKind::Float},
    {"float8e5m2", 8, DTypeKind::Float},
    {"float16", 16, DTypeKind::Float},
    {"bfloat16", 16, DTypeKind::Float},
    {"float32", 32, DTypeKind::Float},
    {"float64", 64, DTypeKind::Float},
    {"index", 64, DTypeKind::Signed},
}};

// Encodes a finite or special double with one rounding; `value` may be any double.
uint32_t encode_narrow(DType dtype, double value) {
  const FloatLayout f = layout_of(dtype);
  const uint64_t raw = std::bit_cast<uint64_t>(value);
  const int total = dtype_infos[static_cast<size_t>(dtype)].bits;
  const uint32_t sign = static_cast<uint32_t>(raw >> 63) << (total - 1);
  const uint32_t infinity = static_cast<uint32_t>(f.exponent_mask) << f.mantissa;
  const uint32_t quiet_nan =
      f.has_infinity ? infinity | (1u << (f.mantissa - 1)) : infinity | ((1u << f.mantissa) - 1);
  if (std::isnan(value)) return sign | quiet_nan;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  const int unbiased = std::max(exponent - 1, 1 - f.bias);
  // Scale so that the unit in the last place is 1, then round to nearest even. Exact: a power of 2.
  const double scaled =
      std::isinf(value) ? magnitude : std::ldexp(magnitude, f.mantissa - unbiased);
  const double rounded = std::nearbyint(scaled);
  const double limit = std::ldexp(1.0, f.mantissa + 1);
  int64_t biased = unbiased + f.bias;
  double digits = rounded;
  if (!std::isinf(value) && digits >= limit) {
    digits /= 2;
    biased += 1;
  }
  const bool overflow = std::isinf(value) || biased > f.exponent_max() ||
                        (!f.has_infinity && biased == f.exponent_max() && digits >= limit - 1);
  if (overflow) return sign | (f.has_infinity ? infinity : quiet_nan);
  const auto mantissa = static_cast<uint32_t>(digits);
  const uint32_t hidden = 1u << f.mantissa;
  if (mantissa < hidden) return sign | mantissa;  // subnormal
  return sign | (static_cast<uint32_t>(biased) << f.mantissa) | (mantissa - hidden);
}

}  // namespace

const DTypeInfo& dtype_info(DType dtype) { return dtype_infos[static_cast<size_t>(dtype)]; }
std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i)
    if (dtype_infos[static_cast<size_t>(i)].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

int64_t item_size(DType dtype) { return dtype_info(dtype).bits / 8; }
bool is_float(DType dtype) { return dtype_info(dtype).kind == DTypeKind::Float; }
bool is_signed(DType dtype) { return dtype_info(dtype).kind == DTypeKind::Signed; }
bool is_unsigned(DType dtype) { return dtype_info(dtype).kind == DTypeKind::Unsigned; }
bool is_integer(DType dtype) { return is_signed(dtype) || is_unsigned(dtype); }
bool is_small_float(DType dtype) { return is_float(dtype) && dtype_info(dtype).bits < 32; }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::Index) return is_float(b) ? b : promote(DType::Int64, b);
  if (b == DType::Index) return promote(b, a);
  if (a == DType::Bool) return b;
  if (b == DType::Bool) return a;
  const DTypeInfo &x = dtype_info(a), &y = dtype_info(b);
  if (is_float(a) != is_float(b)) {
    // An integer meets a float in a float that holds its range, as in NumPy.
    const DType f = is_float(a) ? a : b;
    const int bits = is_float(a) ? y.bits : x.bits;
    const DType needed = bits <= 8 ? DType::Float16 : bits <= 16 ? DType::Float32 : DType::Float64;
    if (is_small_float(f) && f != DType::Float16) return f;  // ml_dtypes keeps its own floats
    return dtype_info(f).bits >= dtype_info(needed).bits ? f : needed;
  }
  if (is_float(a)) {
    if (x.bits != y.bits) return x.bits > y.bits ? a : b;
    return x.bits == 16 ? DType::Float32 : DType::Float16;  // float16 with bfloat16; two fp8 kinds
  }
  if (x.kind == y.kind) return x.bits > y.bits ? a : b;
  const DTypeInfo& s = is_signed(a) ? x : y;
  const DTypeInfo& u = is_signed(a) ? y : x;
  if (s.bits > u.bits) return is_signed(a) ? a : b;
  switch (u.bits) {
    case 8:
      return DType::Int16;
    case 16:
      return DType::Int32;
    case 32:
      return DType::Int64;
    default:
      return DType::Float64;
  }
}

FloatLayout layout_of(DType narrow) {
  switch (narrow) {
    case DType::Float16:
      return {10, 15, 31, true};
    case DType::BFloat16:
      return {7, 127, 255, true};
    case DType::Float8E5M2:
      return {2, 15, 31, true};
    case DType::Float8E4M3:
      return {3, 7, 15, false};
    default:
      internal_error("{} is not a narrow float", dtype_name(narrow));
  }
}

double FloatLayout::largest() const {
  const int last = has_infinity ? 1 : 2;  // units below a power of 2: one mantissa is the NaN
  return std::ldexp(2 - last * std::ldexp(1.0, -mantissa), exponent_max() - bias);
}

double largest_float(DType dtype) {
  if (dtype == DType::Float64) return std::numeric_limits<double>::max();
  return dtype == DType::Float32 ? std::numeric_limits<float>::max() : layout_of(dtype).largest();
}

int significant_bits(DType real) {
  if (real == DType::Float64) return 53;
  return real == DType::Float32 ? 24 : layout_of(real).mantissa + 1;
}

DType storage_uint(DType dtype) {
  switch (dtype_info(dtype).bits) {
    case 8:
      return DType::UInt8;
    case 16:
      return DType::UInt16;
    case 32:
      return DType::UInt32;
    case 64:
      return DType::UInt64;
    default:
      internal_error("{} has no storage", dtype_name(dtype));
  }
}

float small_float_decode(DType dtype, uint32_t bits) {
  const FloatLayout f = layout_of(dtype);
  const int total = dtype_info(dtype).bits;
  const float sign = (bits >> (total - 1)) & 1u ? -1.0f : 1.0f;
  const int exponent = static_cast<int>(bits >> f.mantissa) & f.exponent_mask;
  const uint32_t mantissa = bits & ((1u << f.mantissa) - 1);
  if (exponent == f.exponent_mask) {
    if (f.has_infinity && mantissa == 0) return sign * std::numeric_limits<float>::infinity();
    if (f.has_infinity || mantissa == (1u << f.mantissa) - 1) {
      const uint32_t payload = mantissa << (23 - f.mantissa);
      const uint32_t raw = (std::signbit(sign) ? 0x80000000u : 0u) | 0x7fc00000u | payload;
      return std::bit_cast<float>(raw);
    }
  }
  const int power = (exponent == 0 ? 1 : exponent) - f.bias - f.mantissa;
  const auto digits = static_cast<float>(mantissa | (exponent == 0 ? 0u : 1u << f.mantissa));
  return sign * std::ldexp(digits, power);
}

uint32_t small_float_encode(DType dtype, float value) { return encode_narrow(dtype, value); }

double bits_to_double(DType dtype, Bits bits) {
  switch (dtype) {
    case DType::Float64:
      return std::bit_cast<double>(bits);
    case DType::Float32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case DType::UInt64:
      return static_cast<double>(bits);
    default:
      break;
  }
  if (is_float(dtype)) return small_float_decode(dtype, static_cast<uint32_t>(bits));
  return static_cast<double>(bits_to_int(dtype, bits));
}

Bits double_to_bits(DType dtype, double value) {
  switch (dtype) {
    case DType::Float64:
      return std::bit_cast<uint64_t>(value);
    case DType::Float32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::Bool:
      return value != 0;
    default:
      break;
  }
  if (is_float(dtype)) return encode_narrow(dtype, value);
  if (std::isnan(value)) return 0;
  const IntegerRange range = integer_range(dtype);
  const double cut = std::trunc(value);
  if (cut <= static_cast<double>(range.low))
    return int_to_bits(dtype, static_cast<int64_t>(range.low));
  if (cut >= static_cast<double>(range.high))
    return int_to_bits(dtype, static_cast<int64_t>(static_cast<uint64_t>(range.high)));
  return dtype == DType::UInt64 ? static_cast<uint64_t>(cut)
                                : int_to_bits(dtype, static_cast<int64_t>(cut));
}

int64_t bits_to_int(DType dtype, Bits bits) {
  if (is_float(dtype))
    return static_cast<int64_t>(double_to_bits(DType::Int64, bits_to_double(dtype, bits)));
  switch (dtype) {
    case DType::Int8:
      return static_cast<int8_t>(bits);
    case DType::Int16:
      return static_cast<int16_t>(bits);
    case DType::Int32:
      return static_cast<int32_t>(bits);
    default:
      return static_cast<int64_t>(bits);
  }
}

Bits int_to_bits(DType dtype, int64_t value) {
  if (dtype == DType::Bool) return value != 0;
  if (is_float(dtype)) {
    // One rounding for float32 and float64; narrower floats go through float32 (NumPy's way).
    if (dtype == DType::Float64) return std::bit_cast<uint64_t>(static_cast<double>(value));
    const auto single = static_cast<float>(value);
    if (dtype == DType::Float32) return std::bit_cast<uint32_t>(single);
    return encode_narrow(dtype, single);
  }
  const int bits = dtype_info(dtype).bits;
  const auto raw = static_cast<uint64_t>(value);
  return bits == 64 ? raw : raw & ((uint64_t{1} << bits) - 1);
}

IntegerRange integer_range(DType dtype) {
  const int bits = dtype_info(dtype).bits;
  if (dtype == DType::Bool) return {0, 1};
  if (is_unsigned(dtype)) return {0, (static_cast<__int128>(1) << bits) - 1};
  return {-(static_cast<__int128>(1) << (bits - 1)), (static_cast<__int128>(1) << (bits - 1)) - 1};
}

}  // namespace koine
