#include "koine/lower/running.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/lower/index.hpp"

namespace koine {
namespace {

// Whether an op moves values, or chooses between them.
bool only_chooses(const UOp& u) { return is_movement(u.op()) || u.is(Op::Where) || u.is(Op::Cast); }

// Whether a Reduce folds along one axis, elements that a condition on places chooses.
bool may_be_scan(const ValueFacts& facts, const UOp& u) {
  int folded = 0;
  for (const int64_t axis : u.as<ReduceArg>().axes)
    folded += is_const(u.src(0).dim(static_cast<size_t>(axis)), 1) ? 0 : 1;
  if (folded != 1) return false;
  UOp value = u.src(0);
  for (int depth = 0; depth < 32; ++depth) {
    if (value.is(Op::Pad)) return true;
    if (value.is(Op::Where)) return !facts.reads_memory(value.src(0));
    if (!only_chooses(value) || value.is(Op::Stack)) return false;
    value = UOp(value.src(0));
  }
  return false;
}

}  // namespace

std::optional<Scan> scan_at(const ValueFacts& facts, const UOp& reduce, const Use& use) {
  if (use.folded_on || !may_be_scan(facts, reduce)) return std::nullopt;
  for (const UOp& loop : use.loops)
    if (loop.as<RangeArg>().type != AxisType::Loop) return std::nullopt;
  Leaves leaves(
      [&](const UOp& n) { return !(n == reduce) && !only_chooses(n) && facts.reads_memory(n); });
  return find_scan(Indexer(leaves, facts.strict()).element(reduce, use.at), use.loops,
                   facts.strict());
}

std::optional<size_t> running_axis(const ValueFacts& facts, const UOp& reduce) {
  if (!may_be_scan(facts, reduce)) return std::nullopt;
  int64_t first_range = 0;
  Use alone{reduce.node(), {}, {}, {}};
  alone.at = open_loops(reduce, first_range, alone.loops);
  const auto scan = scan_at(facts, reduce, alone);
  if (!scan) return std::nullopt;
  const auto along = std::find(alone.at.begin(), alone.at.end(), scan->loop);
  return static_cast<size_t>(along - alone.at.begin());
}

size_t folded_axis(const UOp& reduce) {
  for (const int64_t axis : reduce.as<ReduceArg>().axes)
    if (!is_const(reduce.src(0).dim(static_cast<size_t>(axis)), 1))
      return static_cast<size_t>(axis);
  return 0;
}

}  // namespace koine
