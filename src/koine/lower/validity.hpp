#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, first of all: the validity of elements (amendment C27) becomes part of the values. Pads
/// are filled, Reduces skip by a Where, fresh memory holds 0 where an element is invalid, and
/// Stores into existing memory leave it out by their gate. Later passes know of values alone.
UOp make_validity_explicit(const UOp& program);

}  // namespace koine
