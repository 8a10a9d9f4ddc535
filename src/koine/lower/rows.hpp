#pragma once
#include <optional>
#include <string>
#include <vector>

#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// A value of which LOCAL memory holds a row at a time: the row's axes, and why.
struct Row {
  Ints axes;
  double bytes;
  std::string reason;
};

/// Whether a value is computed once for each row of it, in LOCAL memory: several loops of one
/// kernel walk over whole rows, inside of the loops that all of these places agree on. Null where
/// it is not, or where a row takes more than `free_bytes`.
std::optional<Row> row_of(const ValueFacts& facts, const UOp& u, const std::vector<Use>& uses,
                          double free_bytes);

/// Where rows along `axes` are computed: once for all places that agree on where a row begins. By
/// loops of a fold: what is folded inside of them has no register tile there.
std::vector<Use> where_rows_are_filled(const UOp& u, const Ints& axes, const std::vector<Use>& uses,
                                       int64_t& next_range);

}  // namespace koine
