#pragma once
#include <optional>
#include <span>
#include <vector>

#include "koine/lower/nest.hpp"

namespace koine {

/// A nest, and the memory of its slots.
struct Placed {
  const Nest& nest;
  std::span<const UOp> buffers;
};

/// Elements from one step of a loop to the next; 0: none, or no equal steps.
int64_t step_of(const UOp& place, const UOp& loop);

/// The loops of `wide` in the order in which the loops of `narrow`, which are no more, come first:
/// each walks over memory that both touch by the same steps. Empty where there is no such memory.
std::vector<UOp> loops_in_order_of(const Placed& narrow, const Placed& wide);

/// Whether the loops of a nest may stand in any order: all its Stores stand in all of them, and
/// nothing in some of them alone.
bool has_free_order(const Nest& nest);

/// The kernel of a nest with its loops in this order. The first ones become those of `narrow`.
UOp in_loop_order(const Nest& nest, std::span<const UOp> order, const Nest& narrow);

/// Whether a kernel that goes along rows or columns several times, inside of the first `outer` of
/// its loops, finds them in a cache again and leaves threads enough to do. Where columns lie beside
/// each other, each lane of some vectors has one.
bool rows_fit(const Nest& nest, size_t outer);

}  // namespace koine
