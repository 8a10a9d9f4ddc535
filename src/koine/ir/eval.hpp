#pragma once
#include <span>

#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"

namespace koine {

/// The meaning of one elementwise op on scalars, strict floating point: the single definition that
/// constant folding, the interpreter and the tests share. `in` is the dtype of the operands (of
/// operand 1 for Where), `out` of the result. Bitcast is known too. Narrow floats compute in
/// float32 and round once. Exp2, Log2, Sin, Pow and Threefry are not here: they mean their
/// decomposition (rules/decompose.hpp).
Bits evaluate(Op op, DType out, DType in, std::span<const Bits> operands);
bool can_evaluate(Op op, DType in);

/// `evaluate` with the op and its dtypes looked up once, for what computes it many times. Operands
/// that the op does not have are 0.
class Evaluator {
 public:
  Evaluator(Op op, DType out, DType in);
  Bits operator()(Bits x, Bits y, Bits z) const { return function_(*this, x, y, z); }

 private:
  using Function = Bits (*)(const Evaluator&, Bits, Bits, Bits);
  template <Op... ops>
  Function known() const;

  Op op_;
  DType out_, in_;
  Function function_;
};

/// Conversion by amendment C30: integers wrap, floats to integers truncate and saturate (NaN is 0),
/// floats round to nearest even.
Bits evaluate_cast(DType to, DType from, Bits bits);

}  // namespace koine
