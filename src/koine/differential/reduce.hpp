#pragma once
#include <functional>

#include "koine/ir/uop.hpp"

namespace koine {

/// Whether a graph still shows the failure that is being reduced. Called with well-typed graphs
/// only, of any root.
using Fails = std::function<bool(const UOp&)>;

struct Reducer {
  /// A small value in place of a node: the same dtype and shape; null where there is none. The
  /// default is a constant one, spread over the shape.
  std::function<UOp(const UOp& node)> leaf;
  bool sizes = true;  ///< sizes may become smaller, everywhere at once
  /// What a Buffer of a changed size becomes; null: itself.
  std::function<UOp(const UOp& buffer, const UOp& was)> resized;
  int64_t most_tries = 3000;
};

/// Nodes that a person reads: all but constants and shapes.
int64_t graph_size(const UOp& graph);

/// A graph of which `fails` still holds (it must hold of `graph`) and that no single step makes
/// smaller: a node becomes one of its sources, or of theirs, or another node of the same dtype and
/// shape, or a leaf; the root becomes one of its sources; an operand of a Sink, Group, Tuple, Stack
/// or After goes; a Range becomes 0; vectors become scalars; a gate goes; a constant becomes 0, 1
/// or half; a size becomes smaller everywhere at once. Tensor graphs, kernels and bodies of
/// Functions alike.
UOp reduce_failure(const UOp& graph, const Fails& fails, const Reducer& how = {});

}  // namespace koine
