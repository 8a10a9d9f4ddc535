#pragma once
#include <cstdint>

/// What the tag of a node says, op by op; 0 says nothing. A tag tells nodes of equal sources and
/// argument apart, and is part of a graph's text.
namespace koine::tag {

/// Contiguous: it copies, also what lies in memory. A greater number: a copy of its own, see
/// `private_copy`.
inline constexpr int64_t copies = 1;
/// Contiguous: memory, unless the value has invalid elements, which memory could not hold.
inline constexpr int64_t unless_invalid = -1;
/// Detach: any but 0 is the number of a leaf that a gradient may be asked for.
/// CustomFunction: how many functions have had its name before the one that it was made for.
/// End: its iterations may store to one place; the last of them stays.
inline constexpr int64_t runs_in_order = 1;
/// Reduce: it holds the newest element of a running fold.
inline constexpr int64_t goes_on = 1;

}  // namespace koine::tag
