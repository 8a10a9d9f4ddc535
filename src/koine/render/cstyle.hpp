#pragma once
#include <string>
#include <string_view>

#include "koine/ir/uop.hpp"

namespace koine {

/// A linear program as the text of a kernel in a language like C (`render/dialect.hpp`): c, opencl,
/// cuda, hip, metal. Vectors are arrays with one loop a statement. `with_prelude` puts the includes
/// and the small helper functions in front; leave it out for all but the first kernel of a file.
/// Throws Error (Value) where the language lacks a type of the program, or groups of threads.
///
/// In C a kernel is `void name(void** buffers, const int64_t* variables, int64_t thread)`, with
/// buffers by slot and Variables sorted by name. Elsewhere it has a parameter for each buffer that
/// it names, in slot order, then one for each Variable, a 64-bit integer.
std::string render(std::string_view target, const std::string& name, const UOp& linear,
                   bool with_prelude = true);

}  // namespace koine
