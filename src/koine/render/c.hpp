#pragma once
#include <string>

#include "koine/ir/uop.hpp"

namespace koine {

/// A linear program as readable C11: `void name(void** buffers, const int64_t* variables, int64_t
/// thread)`. Vectors are arrays with one loop a statement. `with_prelude` puts the includes and the
/// small helper functions in front; leave it out for all but the first kernel of a file.
std::string render_c(const UOp& linear, const std::string& name, bool with_prelude = true);

}  // namespace koine
