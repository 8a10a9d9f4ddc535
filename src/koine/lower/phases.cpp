#include "koine/lower/phases.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

constexpr int64_t most_phases = 16;
constexpr double worth_it = 0.9;  // of the operations

// A loop, and by how many the sums of the kernel step along it.
struct Stride {
  UOp loop;
  int64_t size;
};

void add_strides(const UOp& condition, std::span<const UOp> loops, std::vector<Stride>& out) {
  for (const UOp& u : toposort(condition)) {
    const bool divides = (u.is(Op::Mod) || u.is(Op::Idiv)) && u.dtype() == DType::Index;
    if (!divides || !u.src(1).is(Op::Const)) continue;
    const auto loop =
        std::ranges::find_if(loops, [&](const UOp& r) { return depends_on(u.src(0), r); });
    if (loop == loops.end() || !loop->src(0).is(Op::Const)) continue;
    const int64_t size = const_int(u.src(1)), length = const_int(loop->src(0));
    const bool known = std::ranges::any_of(out, [&](const Stride& s) { return s.loop == *loop; });
    if (!known && size > 1 && length > size && length % size == 0) out.push_back({*loop, size});
  }
}

// Those that say which elements a sum of the value has.
std::vector<Stride> strides_of(const UOp& value, std::span<const UOp> loops) {
  std::vector<Stride> out;
  for (const UOp& u : toposort(value))
    if (u.is(Op::Reduce) && u.src(0).is(Op::Where)) add_strides(u.src(0).src(0), loops, out);
  return out;
}

// Whether a value is `other` wherever a condition does not hold: gates of Loads have chosen.
bool is_chosen(UOp value, const UOp& condition, const UOp& other) {
  while (value.is(Op::Where) && (value.src(1) == other || value.src(2) == other))
    value = UOp(value.src(value.src(1) == other ? 2 : 1));
  if (value == other) return true;
  if (!value.is(Op::Load) || value.src().size() != 3 || !(value.src(1) == other)) return false;
  const std::vector<UOp> known = conjuncts(value.src(2));
  return std::ranges::all_of(conjuncts(condition), [&](const UOp& c) {
    return std::ranges::find(known, c) != known.end();
  });
}
const RuleSet<>& gate_rules() {
  static const RuleSet<> rules{
      rule("where(c,x,y) where x is y unless c", pat_where(any(2), any(0), any(1)),
           [](const Match& m) { return is_chosen(m[0], m[2], m[1]) ? m[0] : UOp(); })};
  return rules;
}

// A Store whose folds go over loops that no other has.
UOp with_loops_of_its_own(const UOp& store, std::span<const UOp> shared, int64_t& next) {
  Substitution own;
  for (const UOp& r : kernel_ranges(store))
    if (std::ranges::find(shared, r) == shared.end())
      own.emplace(r, range(next++, r.src(0), r.as<RangeArg>().type));
  return substitute(store, own);
}

}  // namespace

UOp in_phases(const UOp& ast, bool strict) {
  const bool by_hand = ast.arg().index() != 0;  // it has a name
  if (by_hand || ast.src().size() != 1 || !ast.src(0).is(Op::End)) return ast;
  const UOp &closing = ast.src(0), &stored = closing.src(0);
  const bool plain = stored.is(Op::Store) && stored.src().size() == 2 &&
                     (stored.node()->ops_below & mask_of(Op::Buffer)) == 0;  // no rows
  if (!plain || (stored.node()->ops_below & mask_of(Op::Reduce)) == 0) return ast;
  std::vector<UOp> loops(closing.src().begin() + 1, closing.src().end());
  const std::vector<Stride> strides = strides_of(stored.src(1), loops);
  int64_t phases = 1;
  for (const Stride& s : strides) phases = std::min(phases * s.size, most_phases + 1);
  if (phases == 1 || phases > most_phases) return ast;
  std::vector<UOp> stores{stored};
  for (const auto& [loop, size] : strides) {
    const UOp turn = range(loop.as<RangeArg>().id, index_const(const_int(loop.src(0)) / size),
                           loop.as<RangeArg>().type);
    std::ranges::replace(loops, loop, turn);
    std::vector<UOp> split;
    for (const UOp& store : stores)
      for (int64_t phase = 0; phase < size; ++phase)
        split.push_back(
            substitute(store, {{loop, add(mul(turn, index_const(size)), index_const(phase))}}));
    stores = std::move(split);
  }
  int64_t next = kernel_ranges(ast).back().as<RangeArg>().id + 1;
  for (UOp& store : stores)
    store = with_loops_of_its_own(rewrite(rewrite(store, kernel_rules(strict)), gate_rules()),
                                  loops, next);
  const UOp out = sink({end(group(stores), loops)});
  return estimate_of(out).operations < worth_it * estimate_of(ast).operations ? out : ast;
}

}  // namespace koine
