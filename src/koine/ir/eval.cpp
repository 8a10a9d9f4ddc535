#include "koine/ir/eval.hpp"

#include <bit>
#include <cmath>

#include "koine/base/error.hpp"

namespace koine {
namespace {

template <class F>
F max_of(F a, F b) {
  // NaN wins; of two zeros the left one, so that one compare and select is enough.
  return b > a || std::isnan(b) ? b : a;
}

template <class F>
F float_op(Op op, F a, F b, F c) {
  switch (op) {
    case Op::Recip:
      return F(1) / a;
    case Op::Trunc:
      return std::trunc(a);
    case Op::Sqrt:
      return std::sqrt(a);
    case Op::Add:
      return a + b;
    case Op::Mul:
      return a * b;
    case Op::Max:
      return max_of(a, b);
    case Op::Fdiv:
      return a / b;
    case Op::Mulacc: {
      const volatile F product = a * b;  // two roundings
      return product + c;
    }
    default:
      internal_error("{} is not defined on floats", op_name(op));
  }
}

// Integers of any width as 64-bit two's complement; the caller wraps the result.
int64_t integer_op(Op op, DType dtype, int64_t a, int64_t b, int64_t c) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const bool unsigned_dtype = !is_signed(dtype);
  const uint64_t width = static_cast<uint64_t>(dtype_info(dtype).bits);
  switch (op) {
    case Op::Trunc:
      return a;
    case Op::Add:
      return static_cast<int64_t>(ua + ub);
    case Op::Mul:
      return static_cast<int64_t>(ua * ub);
    case Op::Mulacc:
      return static_cast<int64_t>(ua * ub + static_cast<uint64_t>(c));
    case Op::Max:
      if (unsigned_dtype) return ub > ua ? b : a;
      return b > a ? b : a;
    case Op::Idiv:
      if (b == 0) return 0;
      if (unsigned_dtype) return static_cast<int64_t>(ua / ub);
      if (b == -1) return static_cast<int64_t>(0 - ua);
      return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    case Op::Mod:
      if (b == 0) return 0;
      if (unsigned_dtype) return static_cast<int64_t>(ua % ub);
      if (b == -1) return 0;
      return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    case Op::Xor:
      return a ^ b;
    case Op::Or:
      return a | b;
    case Op::And:
      return a & b;
    case Op::Shl:
      return ub >= width ? 0 : static_cast<int64_t>(ua << ub);
    case Op::Shr:
      if (unsigned_dtype) return ub >= width ? 0 : static_cast<int64_t>(ua >> ub);
      return a >> (ub >= width ? 63 : ub);
    default:
      internal_error("{} is not defined on integers", op_name(op));
  }
}

template <class F>
Bits compare(Op op, F a, F b) {
  return op == Op::CmpLt ? a < b : a != b;
}

}  // namespace

bool can_evaluate(Op op, DType in) {
  if (op == Op::Mod && is_float(in)) return false;
  return is_elementwise(op) && op != Op::Exp2 && op != Op::Log2 && op != Op::Sin && op != Op::Pow &&
         op != Op::Threefry;
}

Bits evaluate_cast(DType to, DType from, Bits bits) {
  if (to == from) return bits;
  if (is_float(from)) return double_to_bits(to, bits_to_double(from, bits));
  if (is_float(to)) {
    if (from != DType::UInt64) return int_to_bits(to, bits_to_int(from, bits));
    if (to == DType::Float64) return std::bit_cast<uint64_t>(static_cast<double>(bits));
    return double_to_bits(to, static_cast<double>(static_cast<float>(bits)));
  }
  return int_to_bits(to, bits_to_int(from, bits));
}

Bits evaluate(Op op, DType out, DType in, std::span<const Bits> operands) {
  const Bits zero = 0;
  const Bits& x = operands[0];
  const Bits& y = operands.size() > 1 ? operands[1] : zero;
  const Bits& z = operands.size() > 2 ? operands[2] : zero;
  if (op == Op::Cast) return evaluate_cast(out, in, x);
  if (op == Op::Where) return (x & 1) != 0 ? y : z;
  if (op == Op::CmpLt || op == Op::CmpNe) {
    if (in == DType::Float64) return compare(op, bits_to_double(in, x), bits_to_double(in, y));
    if (is_float(in)) return compare(op, bits_to_double(in, x), bits_to_double(in, y));
    if (is_signed(in)) return compare(op, bits_to_int(in, x), bits_to_int(in, y));
    return compare(op, x, y);
  }
  if (in == DType::Bool) {
    switch (op) {
      case Op::Add:
      case Op::Max:
      case Op::Or:
        return x | y;
      case Op::Mul:
      case Op::And:
        return x & y;
      case Op::Xor:
        return x ^ y;
      case Op::Mulacc:
        return (x & y) | z;
      case Op::Trunc:
        return x;
      default:
        internal_error("{} is not defined on bool", op_name(op));
    }
  }
  if (in == DType::Float64)
    return std::bit_cast<uint64_t>(
        float_op(op, std::bit_cast<double>(x), std::bit_cast<double>(y), std::bit_cast<double>(z)));
  if (is_float(in)) {
    auto narrow = [&](Bits bits) { return static_cast<float>(bits_to_double(in, bits)); };
    if (op == Op::Mulacc && in != DType::Float32) {  // the product rounds to the dtype
      const Bits product[] = {double_to_bits(in, narrow(x) * narrow(y)), z};
      return evaluate(Op::Add, out, in, product);
    }
    return double_to_bits(in, float_op(op, narrow(x), narrow(y), narrow(z)));
  }
  return int_to_bits(
      in, integer_op(op, in, bits_to_int(in, x), bits_to_int(in, y), bits_to_int(in, z)));
}

}  // namespace koine
