#include "koine/lower/reasons.hpp"

#include <algorithm>

#include "koine/lower/cost.hpp"
#include "koine/lower/joins.hpp"
#include "koine/lower/repeated_work.hpp"
#include "koine/lower/scattered.hpp"

namespace koine {

std::string_view Reasons::of(const UOp& u, const std::vector<Use>& uses) {
  if (const auto wanted = wanted_.find(u.node()); wanted != wanted_.end()) return wanted->second;
  if (!uses.empty() && is_join_of_many(u)) return join_of_many;
  if (!is_elementwise(u.op()) && !u.is(Op::Reduce)) return {};
  if (u.is(Op::Reduce))
    for (const Use& use : uses)
      if (!use.stored && is_scattered(facts_, u, use, next_range_)) return "a fold by index";
  if (uses.empty() || !facts_.reads_memory(u)) return {};  // a shape, or a constant
  if (u.is(Op::Reduce))
    if (const std::string_view reason = broken_fold(u, uses[0]); !reason.empty()) return reason;
  if (facts_.picks(u) || (tensor_cores_ && is_factor_of_core(u))) return {};
  const bool several = std::any_of(uses.begin(), uses.end(),
                                   [&](const Use& use) { return use.kernel != uses[0].kernel; });
  if (several && (u.is(Op::Reduce) || cost_between_folds(facts_, u) >= cost_of_load))
    return "several kernels read it";
  // What is folded twice may be rounded in two ways.
  if (u.is(Op::Reduce) && uses.size() > 1) return "a reduce read at several places";
  for (const Use& use : uses) {
    if (is_large_product(u, use) && !is_its_product(u, held_[use.kernel]))
      return "a product beside another";
    if (data_decides(use) && (u.is(Op::Reduce) || is_read_more_often_than_held(u, use, uses)))
      return "read at places that data decides";
    if (const std::string_view reason = repeated(facts_, u, use); !reason.empty()) return reason;
  }
  if (several) return {};
  Held& kernel = held_[uses[0].kernel];
  if (row(u, uses)) {
    if (kernel.rows == most_rows_of_a_kernel) return "its kernel holds rows enough";
  } else if (is_computed_too_often(facts_, u, uses)) {
    return "computed for more elements than it has";
  } else if (is_computed_too_often_below(facts_, u, uses)) {
    return "computed from a fold, for more elements than it has";
  }
  return grown(u, kernel);
}

// A narrow float in memory as float32: a tensor core converts it.
bool Reasons::is_factor_of_core(const UOp& u) const {
  if (!u.is(Op::Cast) || u.dtype() != DType::Float32) return false;
  UOp source = u.src(0);
  if (source.dtype() != DType::Float16 && source.dtype() != DType::BFloat16) return false;
  while (is_movement(source.op()) && !source.is(Op::Stack)) source = UOp(source.src(0));
  return facts_.in_memory(source) || source.is(Op::Param);
}

// What puts values together is looked at where it ends, not at each step of it.
bool Reasons::is_join_of_many(const UOp& u) {
  const bool goes_on = joining_.contains(u.node());
  const bool joins = u.is(Op::Stack) || (u.is(Op::Where) && u.src(2).is(Op::Pad)) ||
                     (u.is(Op::Add) && (u.src(0).is(Op::Pad) || u.src(1).is(Op::Pad)));
  if (!joins || !facts_.reads_memory(u)) return false;
  if (u.is(Op::Where)) joining_.insert(u.src(1).node());
  if (u.is(Op::Add)) joining_.insert({u.src(0).node(), u.src(1).node()});
  if (goes_on && facts_.consumers(u) == 1) return false;
  const auto join = join_of(u);
  return join && has_many_parts(*join) &&
         std::none_of(join->parts.begin(), join->parts.end(), [&](const Join::Part& part) {
           return part.shown && facts_.reads_memory(part.shown);
         });
}

Reasons::Held Reasons::held(const Node* kernel) const {
  const auto it = held_.find(kernel);
  return it != held_.end() ? it->second : Held{};
}

void Reasons::holds(const Row& row, const Node* kernel) {
  Held& by = held_[kernel];
  ++by.rows;
  by.row_bytes += row.bytes;
}

std::optional<Row> Reasons::row(const UOp& u, const std::vector<Use>& uses) const {
  if (uses.empty()) return std::nullopt;
  const Held kernel = held(uses[0].kernel);
  if (kernel.running) return std::nullopt;
  return row_of(facts_, u, uses, most_row_bytes_ - kernel.row_bytes);
}

std::optional<Scan> Reasons::scan(const UOp& u, const Use& use) const {
  return held(use.kernel).assigns ? std::nullopt : scan_at(facts_, u, use);
}

// A running fold goes on along the loop of its kernel, and of no second one.
std::string_view Reasons::broken_fold(const UOp& u, const Use& use) {
  if (use.folded_on) return "read by a running fold";
  const auto running = scan(u, use);
  if (!running)
    return running_axis(facts_, u) ? "a running fold read elsewhere" : std::string_view();
  const Dependence place(use);
  for (const UOp& loop : use.loops)
    if (!place.on(loop)) return "a running fold under a loop it does not depend on";
  Held& kernel = held_[use.kernel];
  if (kernel.rows > 0) return "a running fold beside a row";
  const auto along = std::make_pair(running->loop.node(), running->down);
  if (!kernel.running) kernel.running = along;
  return *kernel.running == along ? std::string_view() : "a running fold beside another";
}

bool Reasons::is_its_product(const UOp& u, Held& kernel) {
  if (kernel.product == nullptr) kernel.product = u.node();
  return kernel.product == u.node();
}

// What is large goes on in another kernel: at values with much below them, so that few are cut off.
// Room is left for what costs no more than a load, below what is there already.
std::string_view Reasons::grown(const UOp& u, Held& kernel) const {
  constexpr std::string_view large = "its kernel is large enough";
  if (cuts_.contains(u.node())) return large;
  const size_t own = operations_of(u), now = kernel.operations + own;
  if (now > most_fused_operations) {
    const double cost = cost_between_folds(facts_, u);
    const size_t room = cost > cost_of_load ? most_fused_operations / 8 : 0;
    if (now + room > 2 * most_fused_operations || cost > most_fused_operations / 4.0) return large;
  }
  kernel.operations += own;
  return {};
}

}  // namespace koine
