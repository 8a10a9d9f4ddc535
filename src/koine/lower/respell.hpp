#pragma once
#include <unordered_map>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// What becomes of a range: a value, and in the lists of Reduce, End and After, which hold no other
/// index, no, one or more ranges.
struct Respelled {
  UOp value;
  std::vector<UOp> ranges;
};
using Respelling = std::unordered_map<UOp, Respelled>;

/// Replaces ranges, all at once, in one pass.
UOp respell(const UOp& ast, Respelling changes);

/// The lists of End and Reduce name ranges outermost first.
UOp with_lists_in_order(const UOp& ast);

}  // namespace koine
