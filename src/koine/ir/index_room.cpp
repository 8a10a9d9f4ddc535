#include "koine/ir/index_room.hpp"

#include <algorithm>
#include <cmath>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

// A number, a Range, a Variable, what memory holds. What may be almost anything stands in normal
// forms by its name alone, with a coefficient of 1.
double largest(const UOp& atom) {
  const auto low = static_cast<double>(atom.bounds().low),
             high = static_cast<double>(atom.bounds().high);
  if (high - low >= 0x1p62) return 1;
  return std::max({1.0, std::abs(low), std::abs(high)});
}

// Numbers that the normal form of a node holds, or meets on the way there.
double size_of_numbers(const UOp& u, const NodeMap<double>& sizes) {
  const auto of = [&](size_t i) { return sizes.at(u.src(i).node()); };
  const bool by_constant = u.src().size() == 2 && u.src(1).is(Op::Const);
  switch (u.op()) {
    case Op::Add:
    case Op::Max:  // the difference says which is larger
    case Op::CmpLt:
    case Op::CmpNe:
      return of(0) + of(1);
    case Op::Mul:
      return of(0) * of(1);
    case Op::Idiv:  // the quotient, and one for what is left on either side
      return by_constant ? of(0) / of(1) + 2 : of(0);
    case Op::Mod:  // k (a mod c) may join k c (a // c)
      return of(0) + of(1);
    default:
      return largest(u);
  }
}

}  // namespace

bool has_index_room(const UOp& graph, std::span<const GrownRange> grown) {
  constexpr double most = 0x1p62;  // half of what there is: doubles round
  NodeMap<double> sizes;
  NodeMap<char> depends;
  for (const UOp& u : toposort(graph)) {
    const auto it =
        std::find_if(grown.begin(), grown.end(), [&](const GrownRange& g) { return g.first == u; });
    bool below = it != grown.end();
    for (const UOp& s : sources_outside_body(u)) below = below || depends.at(s.node()) != 0;
    depends.set(u.node(), below ? 1 : 0);
    const bool compares = (u.is(Op::CmpLt) || u.is(Op::CmpNe)) && u.src(0).dtype() == DType::Index;
    if (!compares && (u.dtype() != DType::Index || !u.is_scalar())) continue;
    const double size = it != grown.end() ? it->second : size_of_numbers(u, sizes);
    if (below && !(size <= most)) return false;
    sizes.set(u.node(), size);
  }
  return true;
}

}  // namespace koine
