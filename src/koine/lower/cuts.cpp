#include "koine/lower/cuts.hpp"

#include <algorithm>

#include "koine/ir/validity.hpp"
#include "koine/lower/cost.hpp"

namespace koine {
namespace {

// Sources first: each value knows how many operations of its kernel it stands for.
class Cutter {
 public:
  explicit Cutter(const ValueFacts& facts) : facts_(facts), operations_(facts.order().size()) {}

  absl::flat_hash_set<const Node*> run() {
    for (const UOp& u : facts_.order())
      if (!ends_kernel(u)) operations_[facts_.number(u)] = fitting(u);
    return std::move(cuts_);
  }

 private:
  static constexpr size_t most = most_fused_operations;

  // Joins have kernels of their own, and what is read at places that data decides may be a small
  // part.
  bool ends_kernel(const UOp& u) const {
    const bool moves =
        is_movement(u.op()) && !u.is(Op::Stack) && !u.is(Op::Pad) && !u.is(Op::Index);
    return !(is_elementwise(u.op()) || moves) || facts_.in_memory(u) || asks_for_buffer(u) ||
           cuts_.contains(u.node());
  }

  // What a value holds once it is small enough.
  size_t fitting(const UOp& u) {
    size_t sum = operations_of(u);  // what several sources share is counted for each
    for (const UOp& s : sources_outside_body(u)) sum += operations_[facts_.number(s)];
    if (sum <= most) return sum;
    while ((sum = counted(u)) > most && cut_largest(u)) {
    }
    return sum;
  }

  // Each node once; more than `most` is as good as any number.
  size_t counted(const UOp& root) const {
    NodeNumbers seen;
    std::vector<const Node*> stack{root.node()};
    size_t sum = 0;
    while (!stack.empty() && sum <= most) {
      const Borrowed borrowed(stack.back());
      const UOp& u = borrowed;
      stack.pop_back();
      if (!seen.add(u.node()).second || (u != root && ends_kernel(u))) continue;
      sum += operations_of(u);
      for (const UOp& s : sources_outside_body(u)) stack.push_back(s.node());
    }
    return sum;
  }

  // False: no source holds so much that memory for it is worth it.
  bool cut_largest(const UOp& u) {
    size_t largest = 0;
    for (const UOp& s : sources_outside_body(u))
      if (can_be_cut(u, s)) largest = std::max(largest, operations_[facts_.number(s)]);
    if (largest < most / 4) return false;
    for (const UOp& s : sources_outside_body(u))
      if (can_be_cut(u, s) && operations_[facts_.number(s)] == largest) cut(s);
    return true;
  }
  // Of what shows a part alone, more would be computed than is wanted.
  bool can_be_cut(const UOp& u, const UOp& source) const {
    const UOp value = below_views(source);
    return operations_[facts_.number(value)] > 0 && facts_.reads_memory(value) &&
           elements_of(value) <= elements_of(u);
  }
  void cut(const UOp& u) {
    const UOp value = below_views(u);
    for (UOp view = u; !(view == value); view = UOp(view.src(0)))
      operations_[facts_.number(view)] = 0;
    operations_[facts_.number(value)] = 0;
    cuts_.insert(value.node());
  }

  const ValueFacts& facts_;
  std::vector<size_t> operations_;  // by number; none of what lies in memory
  absl::flat_hash_set<const Node*> cuts_;
};

}  // namespace

absl::flat_hash_set<const Node*> cuts_of(const ValueFacts& facts) { return Cutter(facts).run(); }

}  // namespace koine
