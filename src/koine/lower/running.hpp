#pragma once
#include <optional>

#include "koine/lower/scan.hpp"
#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// How a Reduce that is read at a place is a running fold there (`lower/scan`); null: it is none.
std::optional<Scan> scan_at(const ValueFacts& facts, const UOp& reduce, const Use& use);
/// Whether a Reduce is a running fold where nothing but itself is computed.
bool is_running_alone(const ValueFacts& facts, const UOp& reduce);
/// The axis along which a running fold goes.
size_t folded_axis(const UOp& reduce);

}  // namespace koine
