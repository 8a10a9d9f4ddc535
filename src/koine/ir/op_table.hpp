#pragma once
#include <string>

namespace koine {

/// Every op as JSON, a line each: name, group, number of sources (-1: any), meaning, and for
/// elementwise ops the dtype of the result for each dtype of the operands; a dtype that is missing
/// there is refused. docs/ops.json is this text.
std::string op_table_json();

}  // namespace koine
