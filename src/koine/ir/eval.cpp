#include "koine/ir/eval.hpp"

#include <bit>
#include <cmath>
#include <type_traits>

#include "koine/base/error.hpp"

namespace koine {
namespace {

template <class F>
F max_of(F a, F b) {
  // NaN wins; of two zeros the left one, so that one compare and select is enough.
  return b > a || std::isnan(b) ? b : a;
}

// A switch over ops is inlined everywhere: where the op is known at compile time, one case is left.
#define KOINE_FOLDS [[gnu::always_inline]] inline

template <class F>
KOINE_FOLDS F float_op(Op op, F a, F b, F c) {
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
template <class T>
KOINE_FOLDS int64_t integer_op(Op op, int64_t a, int64_t b, int64_t c) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  constexpr bool unsigned_dtype = std::is_unsigned_v<T>;
  constexpr uint64_t width = 8 * sizeof(T);
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

KOINE_FOLDS Bits bool_op(Op op, Bits x, Bits y, Bits z) {
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

template <class T>
KOINE_FOLDS T element(Bits bits) {
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(bits);
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return static_cast<T>(bits);
}

// All ops whose operands have one dtype: T.
template <class T>
KOINE_FOLDS Bits same_dtype_op(Op op, Bits x, Bits y, Bits z) {
  const T a = element<T>(x), b = element<T>(y), c = element<T>(z);
  if (op == Op::CmpLt) return a < b;
  if (op == Op::CmpNe) return a != b;
  if constexpr (std::is_same_v<T, bool>) return bool_op(op, a, b, c);
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<uint64_t>(float_op(op, a, b, c));
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<uint32_t>(float_op(op, a, b, c));
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
    return static_cast<std::make_unsigned_t<T>>(integer_op<T>(
        op, static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c)));
}

// Narrow floats compute in float32 and round once.
Bits narrow_float_op(Op op, DType in, Bits x, Bits y, Bits z) {
  const float a = small_float_decode(in, static_cast<uint32_t>(x)),
              b = small_float_decode(in, static_cast<uint32_t>(y)),
              c = small_float_decode(in, static_cast<uint32_t>(z));
  if (op == Op::CmpLt) return a < b;
  if (op == Op::CmpNe) return a != b;
  if (op != Op::Mulacc) return small_float_encode(in, float_op(op, a, b, c));
  const float product = small_float_decode(in, small_float_encode(in, a * b));
  return small_float_encode(in, product + c);
}

// Calls f(T()) with the type of the elements of `in`; false for narrow floats, which have none.
template <class F>
bool with_element_type(DType in, const F& f) {
  switch (in) {
    case DType::Bool:
      return f(bool()), true;
    case DType::Int8:
      return f(int8_t()), true;
    case DType::Int16:
      return f(int16_t()), true;
    case DType::Int32:
      return f(int32_t()), true;
    case DType::Int64:
    case DType::Index:
      return f(int64_t()), true;
    case DType::UInt8:
      return f(uint8_t()), true;
    case DType::UInt16:
      return f(uint16_t()), true;
    case DType::UInt32:
      return f(uint32_t()), true;
    case DType::UInt64:
      return f(uint64_t()), true;
    case DType::Float32:
      return f(float()), true;
    case DType::Float64:
      return f(double()), true;
    default:
      return false;
  }
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
  const Bits x = operands[0];
  const Bits y = operands.size() > 1 ? operands[1] : 0;
  const Bits z = operands.size() > 2 ? operands[2] : 0;
  if (op == Op::Cast) return evaluate_cast(out, in, x);
  if (op == Op::Where) return (x & 1) != 0 ? y : z;
  if (op == Op::Bitcast) return out == DType::Bool ? x != 0 : x;
  Bits result = 0;
  const bool whole = with_element_type(
      in, [&](auto element) { result = same_dtype_op<decltype(element)>(op, x, y, z); });
  return whole ? result : narrow_float_op(op, in, x, y, z);
}

namespace {

// The meaning of an op that is known at compile time.
template <Op op, class T>
Bits meaning(const Evaluator&, Bits x, Bits y, Bits z) {
  return same_dtype_op<T>(op, x, y, z);
}
Bits choice(const Evaluator&, Bits x, Bits y, Bits z) { return (x & 1) != 0 ? y : z; }

}  // namespace

// Ops that dominate what is interpreted have functions of their own.
template <Op... ops>
Evaluator::Function Evaluator::known() const {
  Function found = nullptr;
  with_element_type(in_, [&](auto element) {
    ((op_ == ops ? void(found = meaning<ops, decltype(element)>) : void()), ...);
  });
  return found;
}

Evaluator::Evaluator(Op op, DType out, DType in) : op_(op), out_(out), in_(in) {
  if (op == Op::Where)
    function_ = choice;
  else if (const Function f = known<Op::Add, Op::Mul, Op::Max, Op::Idiv, Op::Mod, Op::CmpLt,
                                    Op::CmpNe, Op::Xor, Op::Or, Op::And, Op::Shl, Op::Shr, Op::Fdiv,
                                    Op::Recip, Op::Trunc, Op::Sqrt, Op::Mulacc>())
    function_ = f;
  else
    function_ = [](const Evaluator& of, Bits x, Bits y, Bits z) {
      const Bits operands[] = {x, y, z};
      return evaluate(of.op_, of.out_, of.in_, operands);
    };
}

}  // namespace koine
