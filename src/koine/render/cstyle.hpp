#pragma once
#include <string>
#include <string_view>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

struct Dialect;

/// The machine that texts of a language are written for, as kernels are lowered for it before.
Target text_target(const Dialect& dialect, bool strict);
Target text_target(std::string_view language, bool strict);

/// A linear program as the text of a kernel in a language like C (`render/dialect.hpp`): c, opencl,
/// cuda, hip, metal, wgsl. Vectors are arrays with one loop a statement. `with_prelude` puts the
/// includes and the small helper functions in front; leave it out for all but the first kernel of a
/// file. Throws Error (Value) where the language lacks a type of the program, or groups of threads.
///
/// In C a kernel is `void name(void** buffers, const int64_t* variables, int64_t thread)`, with
/// buffers by slot and Variables sorted by name. Elsewhere it has a parameter for each buffer that
/// it names, in slot order, then one for each Variable, a 64-bit integer; in WGSL these are
/// bindings of group 0, numbered in that order, Variables 32-bit integers in uniform memory.
std::string render(std::string_view target, const std::string& name, const UOp& linear,
                   bool with_prelude = true);
/// The same in a language that is not in the list.
std::string render(const Dialect& dialect, const std::string& name, const UOp& linear,
                   bool with_prelude = true);

}  // namespace koine
