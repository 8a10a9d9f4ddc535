#pragma once
#include "koine/ir/eval.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// One op on scalars, strict, with all that can be looked up once: an elementwise op with its arg,
/// a decomposed one or not, or Bitcast. Operands that the op does not have are 0.
class ScalarOp {
 public:
  ScalarOp(Op op, DType out, DType in, const Arg& arg = {});
  Bits operator()(Bits x, Bits y = 0, Bits z = 0) const {
    return recipe_ == nullptr ? evaluate_(x, y, z) : decomposed(x, y, z);
  }

 private:
  struct Recipe;  // what a decomposed op is made of
  static const Recipe& recipe_of(Op op, DType dtype, const Arg& arg);
  static Recipe make_recipe(Op op, DType dtype, const Arg& arg);
  Bits decomposed(Bits x, Bits y, Bits z) const;

  Evaluator evaluate_;
  const Recipe* recipe_ = nullptr;
};

}  // namespace koine
