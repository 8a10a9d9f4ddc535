#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// A value that is put together from others, which lie side by side along one axis and fill it: a
/// cat, a stack, a sum of pads. A kernel may store a part straight into its slice of memory.
struct Join {
  struct Part {
    UOp source;  ///< the value that is put there
    UOp stored;  ///< how it is put there, in the shape of the slice
    UOp from;    ///< where the slice begins along the axis
    UOp size;
    UOp shown;  ///< of a cat: false there, and true before it; null: nothing decides
  };
  UOp value;
  int64_t axis = 0;
  std::vector<Part> parts;  ///< those of equal size together: their kernels may share loops
  std::vector<UOp> inner;   ///< the nodes that put them together, the value among them

  /// The slice of memory of the value's shape that a part fills.
  UOp slice(const UOp& memory, const Part& part) const;
};

/// How a value is put together, by its form alone; null: it is not.
std::optional<Join> join_of(const UOp& value);
/// Whether the conditions of a cat, which are made of positions alone, show each part in its slice.
bool shows_its_parts(const Join& join);

/// Whether a value has so many parts that an element in place would take longer to look at each
/// than memory does.
bool has_many_parts(const Join& join);
/// Why `decide` gives memory to such a value: a kernel stores each part into its slice.
inline constexpr std::string_view join_of_many = "a join of many parts";

/// Why `decide` gives memory to a part that a kernel of its own computes: its slice.
inline constexpr std::string_view part_of_a_join = "a part of a join";
/// Whether a value has that mark.
bool is_marked_part(const UOp& source);

}  // namespace koine
