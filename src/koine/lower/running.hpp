#pragma once
#include <optional>

#include "koine/lower/scan.hpp"
#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// How a Reduce that is read at a place is a running fold there (`lower/scan`); null: it is none.
std::optional<Scan> scan_at(const ValueFacts& facts, const UOp& reduce, const Use& use);
/// Where nothing but a Reduce is computed: the axis of its value that it goes on along, if it is a
/// running fold there.
std::optional<size_t> running_axis(const ValueFacts& facts, const UOp& reduce);
/// The axis along which a running fold goes.
size_t folded_axis(const UOp& reduce);

}  // namespace koine
