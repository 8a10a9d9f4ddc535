#pragma once
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "koine/ir/node_map.hpp"
#include "koine/ir/uop.hpp"

// Traversals. None recurses: graphs may be hundreds of thousands of nodes deep. A Call is opaque:
// its body, a kernel or the name of a function, is no part of the graph around it.
namespace koine {

/// Every node below `root`, sources before users, each once, in a deterministic order.
NodeList toposort(const UOp& root);
/// The same, entering only nodes for which `enter` holds; a node that is not entered is left out.
NodeList toposort(const UOp& root, const std::function<bool(const UOp&)>& enter);

/// The same with the bodies of Calls: all that a text of the graph says.
NodeList toposort_with_bodies(const UOp& root);
/// The sources of a node; of a Call its arguments alone.
std::span<const UOp> sources_outside_body(const UOp& u);

/// The same as `toposort` without the bodies of Functions and Calls, which are no part of the
/// values around them (amendment C33). Of a body given as the root itself: the values of that body.
NodeList toposort_outside_bodies(const UOp& root);

/// Whether a value still depends on a Range.
bool depends_on(const UOp& value, const UOp& range);
/// The parts of a conjunction, left to right; the condition itself when it is none.
std::vector<UOp> conjuncts(const UOp& condition);

using Substitution = std::unordered_map<UOp, UOp>;
/// Replaces nodes, outermost first; a replacement is not searched again. Nodes that see no
/// replacement stay the same node. Does not enter the bodies of Functions and Calls (C33).
UOp substitute(const UOp& root, const Substitution& replacements);

/// Rebuilds every node from rebuilt sources with `visit(original, with_new_sources)`; nodes marked
/// with `skip` stay as they are.
UOp transform_graph(const UOp& root, const std::function<UOp(const UOp&, const UOp&)>& visit,
                    uint32_t skip = 0);

/// The same where what is made of a source may be no source: `make(node, sources)` changes the
/// sources, made already, and builds the node.
UOp rebuild_graph(const UOp& root, const std::function<UOp(const UOp&, std::vector<UOp>&)>& make);

/// What rewriting has done in this thread since its start: by rules, and by node functions under
/// transform_graph.
struct RewriteCounters {
  int64_t visits = 0;
  int64_t fired = 0;   ///< visits that replaced the node
  double seconds = 0;  ///< inside of RewriteClocks
  int depth = 0;       ///< clocks that run now
};
RewriteCounters& rewrite_counters();

/// Counts the time of a rewriting driver, once where drivers nest.
class RewriteClock {
 public:
  RewriteClock();
  ~RewriteClock();
  RewriteClock(const RewriteClock&) = delete;
  RewriteClock& operator=(const RewriteClock&) = delete;

 private:
  double start_ = 0;
};

}  // namespace koine
