#pragma once
#include <string>
#include <string_view>

#include "koine/ir/uop.hpp"

// Text of graphs. `to_text` prints one line a node, `%3 = Add(%1, %2)`; `parse` gives back the
// same interned nodes. Floats print as the shortest decimal that reads back to the same bits, NaNs
// with their payload.
namespace koine {

std::string to_text(const UOp& root);
/// The root (last line) of a text. Throws Error with the line number when it is malformed; the
/// text's first line has the number `lines_before` + 1.
UOp parse(std::string_view text, size_t lines_before = 0);

/// "(2, 3)" of a value; symbolic sizes by name.
std::string shape_text(const UOp& value);
/// The same of a shape operand.
std::string stack_text(const UOp& shape);
/// An index expression as a person writes it: "i0*4+3".
std::string dim_text(const UOp& dim);
/// A scalar kernel expression in infix form, for dumps; loads print as name[index].
std::string expression_text(const UOp& expression);
/// An arg as `to_text` prints it; empty when there is none.
std::string arg_text(const Arg& arg);
/// An indented tree of a kernel, for people: places of elements are written out.
std::string tree_text(const UOp& root);
/// The instructions of a linear program: step, op, dtype, inputs by their steps, and arg.
std::string linear_text(const UOp& linear);

}  // namespace koine
