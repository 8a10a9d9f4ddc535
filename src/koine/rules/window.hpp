#pragma once
#include <optional>

#include "koine/ir/uop.hpp"

namespace koine {

/// The values of a Range for which a condition may hold, where these are few neighbours:
/// last - count + 1 to last, those of them that lie in the Range and for which `rest` holds.
struct Window {
  UOp last;
  int64_t count;
  UOp rest;
};

/// Null where the condition may hold for as many values as the Range has, or for who knows which.
std::optional<Window> window_of(const UOp& condition, const UOp& range);

}  // namespace koine
