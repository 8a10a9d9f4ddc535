#pragma once
#include <span>
#include <vector>

#include "koine/ir/build.hpp"

// Transforms that go from sources to results: tangents and values for many examples. One driver
// walks the graph and asks the column of the table (`transform/table`) at each node; the body of a
// Function is walked once and stays a Function.
namespace koine {

/// Tangents of `outputs` for those of `inputs`, which are nodes below them; null: 0. A tangent has
/// the dtype and shape of its value.
std::vector<UOp> tangents(std::span<const UOp> outputs, std::span<const UOp> inputs,
                          std::span<const UOp> of_inputs);

/// The values of `outputs` for many examples, where `of_inputs` holds those of `inputs`: of the
/// same shape behind an axis of size `examples`, an index. Null: equal in all examples.
std::vector<UOp> batched(std::span<const UOp> outputs, std::span<const UOp> inputs,
                         std::span<const UOp> of_inputs, const UOp& examples);

/// The shape of the values of all examples, where `value` is that of one.
UOp shape_for_each(const UOp& value, const UOp& examples);
/// A value that is equal in all examples, once for each.
UOp for_each_example(const UOp& value, const UOp& examples);

/// A value that names inputs of one example and does not depend on them, as a call does whose
/// result needs none of these arguments, with zeros in their place.
UOp without_examples(const UOp& value, std::span<const UOp> inputs);

/// A Function of results that read arguments by Params of their positions; those that none reads
/// are left out. `kind`: its arg.
UOp function_of_used(std::span<const UOp> results, std::span<const UOp> arguments,
                     const Arg& kind = {});

}  // namespace koine
