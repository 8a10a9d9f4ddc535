#pragma once
#include <span>

#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"

namespace koine {

/// The meaning of one elementwise op on scalars, strict floating point: the single definition that
/// constant folding, the interpreter and the tests share. `in` is the dtype of the operands (of
/// operand 1 for Where), `out` of the result. Narrow floats compute in float32 and round once.
/// Exp2, Log2, Sin, Pow and Threefry are not here: they mean their decomposition
/// (rules/decompose.hpp).
Bits evaluate(Op op, DType out, DType in, std::span<const Bits> operands);
bool can_evaluate(Op op, DType in);

/// Conversion by amendment C30: integers wrap, floats to integers truncate and saturate (NaN is 0),
/// floats round to nearest even.
Bits evaluate_cast(DType to, DType from, Bits bits);

}  // namespace koine
