#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 4. UPCAST, UNROLL and GROUP_REDUCE ranges become axes of shape; the last axis is the
/// vector lanes. Reduces become loops over a REG accumulator: stored with the identity before the
/// loop, updated inside, read after its End; GROUP_REDUCE lanes fold after the loop, UNROLL axes
/// inside it.
UOp expand(const UOp& ast);

/// The THREAD range of a kernel becomes the Special "thread": its loop is run by a worker team.
UOp threads_to_special(const UOp& ast);

}  // namespace koine
