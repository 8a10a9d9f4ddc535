#pragma once
#include <optional>
#include <span>
#include <string>

#include "koine/compat/uops.hpp"

// The operations of an ALU row, and what they are in the graph.
namespace koine::compat {

/// Operands of the operation that an arg names; 0 where it names none.
size_t operand_count(const Arg& arg);
bool names(const Arg& arg, Operation operation);
/// As "BinaryOps.ADD".
std::string operation_name(const Arg& arg);
bool is_comparison(const Arg& arg);
/// Whether places may be computed by it.
bool is_index_arithmetic(const Arg& arg);
UOp applied(const Arg& arg, std::span<const UOp> operands);
/// The value of a CONST or of the start of a DEFINE_ACC.
UOp constant_of(const Row& row);

/// The operation of a node; none where it has no old name.
std::optional<Operation> operation_of(const UOp& node);

}  // namespace koine::compat
