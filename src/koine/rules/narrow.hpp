#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Computes float16, bfloat16 and the float8 kinds in float32 (amendment C41): memory holds their
/// bits as unsigned integers, each operation rounds its float32 result to the narrow format. Works
/// on kernels; afterwards no value has a narrow float dtype.
UOp emulate_narrow_floats(const UOp& kernel);

}  // namespace koine
