#include "koine/lower/folds_apart.hpp"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/ranges.hpp"

namespace koine {
namespace {

// Whether folds share loops, and not the outer ones of both.
bool clash(const UOp& a, const UOp& b) {
  const std::span<const UOp> x = reduced_ranges(a), y = reduced_ranges(b);
  const auto [own, other] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  return std::any_of(own, x.end(), [&](const UOp& r) { return is_among({other, y.end()}, r); });
}

// A fold, and those below it that stand in its loops.
std::vector<UOp> folds_inside(const UOp& fold) {
  std::unordered_set<UOp> varies(reduced_ranges(fold).begin(), reduced_ranges(fold).end());
  std::vector<UOp> out{fold};
  for (const UOp& u : toposort(fold)) {
    const auto src = u.src();
    if (std::none_of(src.begin(), src.end(), [&](const UOp& s) { return varies.contains(s); }))
      continue;
    varies.insert(u);
    if (u.is(Op::Reduce) && !(u == fold)) out.push_back(u);
  }
  return out;
}

}  // namespace

UOp folds_apart(const UOp& kernel) {
  int64_t next = next_range_of(kernel);
  std::vector<UOp> folds;
  Substitution apart;
  for (const UOp& u : toposort(kernel)) {
    if (!u.is(Op::Reduce)) continue;
    const bool own = std::any_of(folds.begin(), folds.end(),
                                 [&](const UOp& earlier) { return clash(earlier, u); });
    folds.push_back(u);
    if (!own) continue;
    Substitution loops;
    for (const UOp& fold : folds_inside(u))
      for (const UOp& r : reduced_ranges(fold))
        if (!loops.contains(r)) loops.emplace(r, range(next++, r.src(0), r.as<RangeArg>().type));
    apart.emplace(u, substitute(u, loops));
  }
  return apart.empty() ? kernel : substitute(kernel, apart);
}

}  // namespace koine
