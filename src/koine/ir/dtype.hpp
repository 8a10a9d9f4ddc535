#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace koine {

/// Element types. `Index` is an unbounded integer until a backend picks a width (amendment C35).
enum class DType : uint8_t {
  Void,
  Bool,
  Int8,
  Int16,
  Int32,
  Int64,
  UInt8,
  UInt16,
  UInt32,
  UInt64,
  Float8E4M3,
  Float8E5M2,
  Float16,
  BFloat16,
  Float32,
  Float64,
  Index
};
inline constexpr int dtype_count = 17;

enum class DTypeKind : uint8_t { Void, Bool, Signed, Unsigned, Float };

struct DTypeInfo {
  std::string_view name;
  int bits;  ///< of one stored element; Bool is stored in 8
  DTypeKind kind;
};

const DTypeInfo& dtype_info(DType dtype);
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
/// Bytes of one stored element.
int64_t item_size(DType dtype);

bool is_float(DType dtype);
bool is_signed(DType dtype);
bool is_unsigned(DType dtype);
/// Signed, unsigned and index.
bool is_integer(DType dtype);
/// Floats narrower than 32 bits: computed in float32 and rounded after each operation.
bool is_small_float(DType dtype);

/// The dtype two operands meet in, as NumPy's table extended by the ml_dtypes floats:
/// bool < unsigned < signed < fp8 < float16/bfloat16 < float32 < float64; signed with a wider or
/// equal unsigned takes the next wider signed; int64 with uint64 gives float64.
DType promote(DType a, DType b);
/// Binary digits of a float: whole numbers up to 2 to this power are exact in it.
int significant_bits(DType real);
/// The unsigned integer with the same item size.
DType storage_uint(DType dtype);

/// A scalar is the bits of one element, zero-extended to 64 (signed integers included).
using Bits = uint64_t;

/// Exact conversions to and from C++ values. Float conversions round to nearest, ties to even;
/// float8e4m3 has no infinity: overflow gives NaN, as in the OCP specification's e4m3fn.
double bits_to_double(DType dtype, Bits bits);
Bits double_to_bits(DType dtype, double value);
/// Floats truncate toward zero, saturate, and NaN gives 0 (amendment C30).
int64_t bits_to_int(DType dtype, Bits bits);
/// Integers wrap to the dtype's width.
Bits int_to_bits(DType dtype, int64_t value);

float small_float_decode(DType dtype, uint32_t bits);
uint32_t small_float_encode(DType dtype, float value);

/// Smallest and largest value of an integer or bool dtype; Index has the int64 range.
struct IntegerRange {
  __int128 low;
  __int128 high;
};
IntegerRange integer_range(DType dtype);

/// The dtype of a C++ type.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<bool>() {
  return DType::Bool;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::Int8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::Int16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::Int32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::Int64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::UInt8;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::UInt16;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::UInt32;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::UInt64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::Float32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::Float64;
}

}  // namespace koine
