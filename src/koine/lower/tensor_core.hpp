#pragma once
#include <string>
#include <variant>

#include "koine/lower/optimize.hpp"

// The edit TC. It splits the axes of a sum of products into those of a tensor core, WARP, UPCAST
// and UNROLL, and writes the core's name into the Reduce, whose meaning stays; Expand makes a Wmma
// of it (`lower/fragments`). The axes of a core stay the innermost of their types.
namespace koine {

/// A tensor core for a sum along `folded`, and the axes that its rows and columns go along. A core
/// of one row may have no rows.
struct CoreFit {
  const TensorCore* core;
  UOp folded, rows, columns;
};
/// Or why none fits, core by core.
std::variant<CoreFit, std::string> find_core(const UOp& ast, const UOp& folded,
                                             const CoreChoice& choice, const Target& target);

/// What TC does to a kernel whose axes are multiples of the core's.
UOp with_core(const UOp& ast, const CoreFit& fit, int mode);

/// Whether a kernel has a Reduce on a tensor core.
bool is_on_core(const UOp& ast);
/// Whether the axes of such cores are where a core's are.
bool has_axes_of_core(const UOp& ast);

}  // namespace koine
