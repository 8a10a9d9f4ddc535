#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 4. UPCAST, UNROLL and GROUP_REDUCE ranges become axes of shape; the last axis is the
/// vector lanes. Reduces become loops over a REG accumulator: stored with the identity before the
/// loop, updated inside, read after its End; GROUP_REDUCE lanes fold after the loop, UNROLL axes
/// inside it.
UOp expand(const UOp& ast);

/// A REDUCE range that stands outside a LOOP range leaves its Reduce: each of its iterations folds
/// one block, the partial result stays in the output buffer, and the last applies the epilogue
/// (amendment C24). `in_order`: each block's fold goes on from the partial result, so the order is
/// that of one fold (C32); else it starts afresh, and the block's result is added.
UOp block_reduces(const UOp& ast, bool in_order);

}  // namespace koine
