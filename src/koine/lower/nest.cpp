#include "koine/lower/nest.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"

namespace koine {

bool is_in_row(const UOp& access) { return accessed_buffer(access).is(Op::Buffer); }
int64_t slot_of(const UOp& access) { return accessed_buffer(access).as<BufferArg>().slot; }

bool Places::are_apart(const UOp& a, const UOp& b) {
  const Remainders &x = of(a), &y = of(b);  // of a node-based map
  for (const auto& [divisor, left] : x)
    for (const auto& [other, right] : y)
      if (divisor == other && (left.high < right.low || right.high < left.low)) return true;
  return false;
}
bool Places::is_apart_from(const UOp& store, const std::vector<UOp>& others) {
  return std::all_of(others.begin(), others.end(),
                     [&](const UOp& other) { return are_apart(store, other); });
}

const Places::Remainders& Places::of(const UOp& store) {
  const UOp& place = store.src(0).src(1);
  const auto [it, fresh] = known_.try_emplace(place);
  if (!fresh) return it->second;
  it->second.emplace_back(0, place.bounds());
  for (const UOp& u : toposort(place)) {
    const bool scaled = u.is(Op::Mul) && u.dtype() == DType::Index && u.src(1).is(Op::Const);
    if (!scaled || const_int(u.src(1)) < 2) continue;
    const auto divisor = static_cast<Bits>(const_int(u.src(1)));
    it->second.emplace_back(divisor, simplify_index(mod(place, u.src(1))).bounds());
  }
  return it->second;
}

namespace {

// Whether a Reduce sums products of two values each of which has a loop that the other lacks.
bool is_contraction(const UOp& reduce) {
  for (const UOp& u : toposort(reduce.src(0))) {
    if (!u.is(Op::Mul) || !is_float(u.dtype())) continue;
    auto lacks = [](const UOp& a, const UOp& b) {
      return std::any_of(a.ranges().begin(), a.ranges().end(), [&](const Node* r) {
        return std::find(b.ranges().begin(), b.ranges().end(), r) == b.ranges().end();
      });
    };
    if (lacks(u.src(0), u.src(1)) && lacks(u.src(1), u.src(0))) return true;
  }
  return false;
}

// The loops of a nest, and its Stores; false: it holds other effects, or several nests side by
// side.
bool read_nest(const UOp& sink, Nest& out) {
  for (UOp scope = sink; scope;) {
    const bool lists = scope.is(Op::Sink) || scope.is(Op::Group);
    UOp inner;
    for (const UOp& effect : lists ? scope.src() : std::span<const UOp>(&scope, 1)) {
      if (effect.is(Op::Store)) {
        out.stores.push_back({effect, out.loops.size()});
        continue;
      }
      const bool is_nest =
          (effect.is(Op::End) && !effect.is(Mark::InOrder)) || effect.is(Op::Group);
      if (inner || !is_nest) return false;
      inner = effect;
    }
    if (inner && inner.is(Op::End)) {
      out.loops.insert(out.loops.end(), inner.src().begin() + 1, inner.src().end());
      inner = UOp(inner.src(0));
    }
    scope = inner;
  }
  return true;
}

}  // namespace

std::optional<Nest> nest_of(const UOp& ast, Places& places) {
  Nest out{ast, {}, {}, {}, {}, {}};
  if (!ast.is(Op::Sink) || !read_nest(ast, out)) return std::nullopt;
  absl::flat_hash_map<int64_t, std::vector<UOp>> stored;
  for (const auto& [s, depth] : out.stores) {
    if (s.src().size() != 2 || !is_address(s.src(0)) || is_in_row(s)) return std::nullopt;
    std::vector<UOp>& others = stored[slot_of(s)];
    if (!places.is_apart_from(s, others)) return std::nullopt;
    others.push_back(s);
  }
  for (const UOp& u : toposort(ast)) {
    out.operations += operations_of(u);
    if (u.is(Op::After) && !strip_after(u).is(Op::Buffer)) return std::nullopt;
    if (u.is(Op::Barrier)) return std::nullopt;
    if (u.is(Op::Range)) {
      out.is_running = out.is_running || !u.src(0).ranges().empty();
      out.next_range = std::max(out.next_range, u.as<RangeArg>().id + 1);
    }
    if (u.is(Op::Buffer)) {
      out.rows.push_back(u);
      out.next_row = std::max(out.next_row, u.as<BufferArg>().slot + 1);
    }
    if (u.is(Op::Param) && !is_variable(u)) out.slots.push_back(u);
    if (u.is(Op::Load) && !is_in_row(u)) {
      if (stored.contains(slot_of(u))) return std::nullopt;
      out.loads.push_back(u);
    }
    // A product has a register tile, which repeats many times what stands beside it.
    if (u.is(Op::Reduce) && is_contraction(u)) return std::nullopt;
  }
  std::sort(out.slots.begin(), out.slots.end(), [](const UOp& a, const UOp& b) {
    return a.as<BufferArg>().slot < b.as<BufferArg>().slot;
  });
  return out;
}

UOp nested(const std::vector<UOp>& loops, const std::vector<PlacedStore>& stores) {
  std::vector<UOp> effects;
  size_t around = 0;
  for (const auto& [store, depth] : stores) around = std::max(around, depth);
  for (size_t depth = around + 1; depth-- > 0;) {
    std::vector<UOp> here;
    for (const auto& [store, at] : stores)
      if (at == depth) here.push_back(store);
    if (here.empty()) continue;
    if (!effects.empty()) {
      const std::vector<UOp> inner(loops.begin() + static_cast<std::ptrdiff_t>(depth),
                                   loops.begin() + static_cast<std::ptrdiff_t>(around));
      here.push_back(end(effects.size() == 1 ? effects[0] : group(effects), inner));
    }
    effects = std::move(here);
    around = depth;
  }
  const std::vector<UOp> outer(loops.begin(), loops.begin() + static_cast<std::ptrdiff_t>(around));
  return sink(std::vector<UOp>{end(effects.size() == 1 ? effects[0] : group(effects), outer)});
}

}  // namespace koine
