#include "koine/lower/blocks.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

// The bool that decides for all lanes of a gate; null where they have their own.
UOp scalar_of(UOp gate) {
  while (gate.is(Op::Expand) || gate.is(Op::Reshape)) gate = gate.src(0);
  return gate.is_scalar() ? gate : UOp();
}

// What computes a value of others alone may come before a block that it stands behind.
bool is_movable(const UOp& u) {
  return is_elementwise(u.op()) || u.is(Op::Index) || u.is(Op::Const) || u.is(Op::Stack) ||
         u.is(Op::Reshape) || u.is(Op::Expand);
}

// Puts instructions down, those under one gate together.
class Blocks {
 public:
  void add(const UOp& instruction, const UOp& gate) {
    if (is_movable(instruction)) return out_.push_back(instruction);
    if (gate_ != gate) close();
    gate_ = gate;
    (gate ? inside_ : out_).push_back(instruction);
  }

  UOp linear() {
    close();
    return UOp::make(Op::Linear, out_);
  }

 private:
  void close() {
    if (inside_.empty()) return;
    const UOp open = UOp::make(Op::If, {gate_}, {}, blocks_++);  // numbered: a gate may come again
    out_.push_back(open);
    out_.insert(out_.end(), inside_.begin(), inside_.end());
    out_.push_back(UOp::make(Op::Endif, {open}));
    inside_.clear();
  }

  std::vector<UOp> out_, inside_;
  UOp gate_;
  int64_t blocks_ = 0;
};

}  // namespace

UOp in_blocks(const UOp& linear) {
  absl::flat_hash_map<const Node*, UOp> gates;
  const UOp open = transform_graph(linear, [&](const UOp& original, const UOp& node) {
    if (!node.is(Op::Store) || node.src().size() != 3) return node;
    const UOp gate = scalar_of(node.src(2));
    if (!gate) return node;
    gates.emplace(original.node(), gate);
    return store(node.src(0), node.src(1));
  });
  if (gates.empty()) return linear;
  Blocks blocks;
  absl::flat_hash_set<const Node*> stand;
  for (size_t i = 0; i < linear.src().size(); ++i) {
    const auto gate = gates.find(linear.src(i).node());
    blocks.add(open.src(i), gate == gates.end() ? UOp() : gate->second);
    if (!stand.insert(open.src(i).node()).second)
      return linear;  // Stores that differ in gates alone
  }
  return blocks.linear();
}

}  // namespace koine
