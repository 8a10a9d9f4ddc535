#pragma once
#include <optional>

#include "koine/ir/graph.hpp"
#include "koine/lower/nest.hpp"

namespace koine {

/// How a kernel takes as values what another one stores, where both become one.
struct Forwarding {
  Substitution values;              ///< Loads of the second kernel
  std::vector<PlacedStore> stores;  ///< of the first
  size_t common;                    ///< so many loops stand around all that is forwarded
  bool has_rows = false;            ///< some of it lies in new rows
};

/// An element that the second kernel reads at the place where the first stores it is the value that
/// is stored. Of what a loop of its own reads along a row, the row lies in LOCAL memory: it is
/// filled once, and both read it. Null where the second kernel reads other elements, or rows of
/// symbolic length.
std::optional<Forwarding> forward(const Nest& first, const Nest& second);

}  // namespace koine
