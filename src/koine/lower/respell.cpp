#include "koine/lower/respell.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

// What becomes of a range whose bound depends on others, which are respelled already.
void respell_bounds(Respelled& to, const Substitution& others) {
  for (UOp& r : to.ranges) {
    if (r.src(0).ranges().empty()) continue;
    const RangeArg& arg = r.as<RangeArg>();
    const UOp fresh = range(arg.id, substitute(r.src(0), others), arg.type);
    to.value = substitute(to.value, {{r, fresh}});
    r = fresh;
  }
}

}  // namespace

UOp respell(const UOp& ast, Respelling changes) {
  Substitution values;
  return rebuild_graph(ast, [&](const UOp& node, std::vector<UOp>& src) {
    if (const auto it = changes.find(node); it != changes.end()) {
      respell_bounds(it->second, values);
      return values.emplace(node, it->second.value).first->second;
    }
    if (node.is(Op::Reduce) || node.is(Op::End) || node.is(Op::After))
      for (size_t i = node.src().size(); --i > 0;) {
        const auto it = changes.find(node.src(i));
        if (it == changes.end()) continue;
        const auto at = src.erase(src.begin() + static_cast<std::ptrdiff_t>(i));
        src.insert(at, it->second.ranges.begin(), it->second.ranges.end());
      }
    return with_sources(node, src);
  });
}

UOp with_lists_in_order(const UOp& ast) {
  return transform_graph(ast, [](const UOp&, const UOp& node) -> UOp {
    if (!node.is(Op::End) && !node.is(Op::Reduce)) return node;
    std::vector<UOp> src(node.src().begin(), node.src().end());
    const bool starts = node.is(Op::Reduce) && start_of(node);  // its last source
    std::stable_sort(src.begin() + 1, src.end() - (starts ? 1 : 0), [](const UOp& p, const UOp& q) {
      return p.as<RangeArg>().id < q.as<RangeArg>().id;
    });
    return with_sources(node, src);
  });
}

}  // namespace koine
