#include "koine/target/target.hpp"

#include <algorithm>

namespace koine {

void Target::restrict(CompileOptions& how) const {
  const bool has_cores = std::ranges::any_of(tensor_cores, [](const TensorCore* c) {
    return is_small_float(c->a.dtype) && c->threads() > 1;
  });
  how.row_bytes = std::min(how.row_bytes, row_bytes);
  how.multiprocessors = std::min(how.multiprocessors, groups ? groups.multiprocessors : 0);
  how.atomic_bytes = std::min(how.atomic_bytes, atomic_bytes);
  how.tensor_cores = how.tensor_cores && has_cores && !strict;
}

bool is_native(const Target& target, Op op, DType operands) {
  const bool real = is_float(operands), integer = is_integer(operands);
  switch (op) {
    case Op::Add:
    case Op::Mul:
    case Op::Max:
    case Op::CmpLt:
    case Op::CmpNe:
    case Op::Where:
    case Op::Cast:
      return operands != DType::Void;
    case Op::Xor:
    case Op::Or:
    case Op::And:
      return integer || operands == DType::Bool;
    case Op::Idiv:
    case Op::Mod:
    case Op::Shl:
    case Op::Shr:
      return integer;
    case Op::Mulacc:
      return real && target.has_fma && !target.strict;
    default:
      return real && target.float_ops[static_cast<size_t>(op)];
  }
}

bool is_native(const Target& target, DType dtype) {
  return dtype != DType::Void && !is_small_float(dtype) &&
         std::find(target.lacks.begin(), target.lacks.end(), dtype) == target.lacks.end();
}

}  // namespace koine
