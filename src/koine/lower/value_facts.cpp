#include "koine/lower/value_facts.hpp"

#include <algorithm>
#include <numeric>

#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/contents.hpp"

namespace koine {

UOp below_views(UOp value) {
  while (is_movement(value.op()) && !value.is(Op::Stack)) value = UOp(value.src(0));
  return value;
}

namespace {

// Positions, and what is chosen by them, are few folds over constants: rules compute these away.
constexpr uint32_t most_constant_folds = 3;

// A Fence waits for the others.
std::span<const UOp> read_sources(const UOp& u) {
  return u.is(Op::Fence) ? u.src().first(1) : sources_outside_body(u);
}

}  // namespace

ValueFacts::ValueFacts(const UOp& program, bool strict)
    : strict_(strict), order_(toposort(program)) {
  for (const UOp& u : order_) numbers_.add(u.node());
  consumers_.resize(order_.size());
  constant_folds_.resize(order_.size());
  reads_memory_.resize(order_.size());
  folds_.resize(order_.size());
  picks_.resize(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    for (const UOp& source : read_sources(order_[i])) ++consumers_[number(source)];
    reads_memory_[i] = sees_memory(order_[i]);
    if (!reads_memory_[i]) constant_folds_[i] = constant_folds(order_[i]);
    reads_memory_[i] = reads_memory_[i] || constant_folds_[i] > most_constant_folds;
    picks_[i] = tests_a_position(order_[i]);
  }
  for (size_t i = 0; i < order_.size(); ++i) folds_[i] = has_fold(order_[i]);
  for (const UOp& effect : program.src()) {
    if (!effect.is(Op::Store)) continue;
    const UOp value = stored_value(effect);
    if (!value.is(Op::After) && !in_memory(value)) outputs_.emplace(value.node(), effect.node());
  }
}

// By height; equal heights by content.
std::vector<uint32_t> ValueFacts::consumers_first() const {
  const std::vector<uint64_t> content = contents_of(order_);
  std::vector<uint32_t> height(order_.size()), out(order_.size());
  for (uint32_t i = 0; i < order_.size(); ++i)
    for (const UOp& s : sources_outside_body(order_[i]))
      height[i] = std::max(height[i], height[number(s)] + 1);
  std::iota(out.begin(), out.end(), 0u);
  std::sort(out.begin(), out.end(), [&](uint32_t a, uint32_t b) {
    if (height[a] != height[b]) return height[a] > height[b];
    return content[a] != content[b] ? content[a] < content[b] : order_[a].hash() < order_[b].hash();
  });
  return out;
}

bool ValueFacts::sees_memory(const UOp& u) const {
  if (u.is(Op::Param)) return !is_variable(u);
  if (u.is(Op::Buffer) || u.is(Op::After) || u.is(Op::Load) || u.is(Op::Call)) return true;
  return std::any_of(u.src().begin(), u.src().end(), [&](const UOp& s) { return reads_memory(s); });
}

uint32_t ValueFacts::constant_folds(const UOp& u) const {
  uint32_t most = 0;
  for (const UOp& s : u.src()) most = std::max(most, constant_folds_[number(s)]);
  return u.is(Op::Reduce) ? most + 1 : most;
}

bool ValueFacts::has_fold(const UOp& u) const {
  const bool lies_in_memory = asks_for_buffer(u) || shows_memory(u.op()) || u.is(Op::Call);
  if (!reads_memory(u) || lies_in_memory) return false;
  return u.is(Op::Reduce) || std::any_of(u.src().begin(), u.src().end(), [&](const UOp& s) {
           return consumers(s) == 1 && folds(s);
         });
}

bool ValueFacts::tests_a_position(const UOp& u) const {
  if (u.dtype() != DType::Bool || !is_elementwise(u.op()) || u.src().size() != 2) return false;
  auto known = [&](const UOp& s) { return !reads_memory(s); };
  auto is_position = [&](UOp s) {
    s = below_views(std::move(s));
    return known(s) && !s.is_scalar();
  };
  const UOp &a = u.src(0), &b = u.src(1);
  return picks(a) || picks(b) ||
         (u.is(Op::CmpNe) && known(a) != known(b) && (is_position(a) || is_position(b)));
}

bool ValueFacts::is_chosen_by_place(const UOp& value) const {
  if (!value.is(Op::Where) || !(is_const(value.src(1), 0) || is_const(value.src(2), 0)))
    return false;
  return picks(value.src(0)) || !reads_memory(value.src(0));
}

const Node* ValueFacts::output_of(const UOp& u) const {
  const auto it = outputs_.find(u.node());
  return it == outputs_.end() ? nullptr : it->second;
}

std::string_view ValueFacts::reason_of(const UOp& u) const {
  const auto it = decided_.find(u.node());
  return it == decided_.end() ? std::string_view() : it->second;
}

bool ValueFacts::in_memory(const UOp& node) const {
  for (const UOp* u = &node;; u = &u->src(0)) {
    if (u->is(Op::Param) || u->is(Op::Buffer) || is_call_result(*u) || outputs_.contains(u->node()))
      return true;
    if (decided_.contains(u->node()) || !shows_memory(u->op())) return decided_.contains(u->node());
  }
}

}  // namespace koine
