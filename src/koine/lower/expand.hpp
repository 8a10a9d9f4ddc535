#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 4. UPCAST, UNROLL and GROUP_REDUCE ranges become axes of shape; the last axis is the
/// vector lanes. Reduces become loops over a REG accumulator: stored with the identity before the
/// loop, updated inside, read after its End; GROUP_REDUCE lanes fold after the loop, UNROLL axes
/// inside it.
UOp expand(const UOp& ast);

/// A REDUCE range that stands outside a LOOP range leaves its Reduce: each of its iterations folds
/// one block into the partial result in the output buffer, the first starts from the identity, and
/// the last applies the epilogue (amendment C24; the fold keeps its order, C32).
UOp block_reduces(const UOp& ast);

/// The THREAD ranges of a kernel become parts of the Special "thread": their loops are run by a
/// worker team.
UOp threads_to_special(const UOp& ast);

}  // namespace koine
