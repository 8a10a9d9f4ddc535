#pragma once
#include <string>

#include "koine/ir/uop.hpp"

// Pictures of graphs, laid out by Graphviz.
namespace koine::app {

/// The graph as Graphviz reads it: a box a node, with op, arg, dtype and shape.
std::string dot_text(const UOp& graph);
/// A picture of `dot` text: "svg", or "html", one page without references to others, which pans
/// and zooms. Throws Error (File) where Graphviz is missing or fails.
std::string picture_of(const std::string& dot, const std::string& form);

}  // namespace koine::app
