#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, first pass: which values of a stateless program get memory of their own, so that no
/// work is repeated (amendment C38). Each of them comes back inside a Contiguous whose arg says
/// why; all else is computed where it is read. One walk from consumers to producers: when a node is
/// reached, all places it is read at are known, so neither the order of operands nor that of visits
/// matters.
UOp decide(const UOp& program);

}  // namespace koine
