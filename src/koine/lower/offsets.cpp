#include "koine/lower/offsets.hpp"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include "koine/base/hash.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/schedule.hpp"

namespace koine {
namespace {

using Offsets = std::map<int64_t, int64_t>;  // by slot
using StandIns = std::map<int64_t, UOp>;

// A place in memory that was given; rows are the kernel's own.
bool is_place_in_slot(const UOp& u) {
  return u.is(Op::Index) && is_address(u) && buffer_at(u).is(Op::Param);
}
int64_t slot_of(const UOp& address) { return buffer_at(address).as<BufferArg>().slot; }

// The constant of a place in normal form.
int64_t constant_of(const UOp& place) {
  const UOp& last = place.is(Op::Add) ? place.src(1) : place;
  return last.is(Op::Const) ? const_int(last) : 0;
}

// The first place of each slot, loops at 0: what all places in it have in common.
Offsets offsets_of(const UOp& ast) {
  Offsets out;
  for (const UOp& u : toposort(ast)) {
    if (!is_place_in_slot(u)) continue;
    const int64_t constant = constant_of(u.src(1));
    const auto [it, fresh] = out.try_emplace(slot_of(u), constant);
    if (!fresh) it->second = std::min(it->second, constant);
  }
  return out;
}

// The kernel with others in place of some of its offsets.
UOp with_offsets(const UOp& ast, const Offsets& own, const StandIns& by) {
  return transform_graph(ast, [&](const UOp& original, const UOp& node) {
    if (!is_place_in_slot(original)) return node;
    const int64_t slot = slot_of(original);
    const auto it = by.find(slot);
    if (it == by.end()) return node;
    const UOp moved = add(add(node.src(1), index_const(-own.at(slot))), it->second);
    return with_source(node, 1, simplify_index(moved));
  });
}

UOp variable_for(int64_t slot, int64_t low, int64_t high) {
  return variable(fmt::format("koine_offset_{}", slot), low, high);
}

// Equal for kernels that may differ in offsets alone: what is found without a walk.
uint64_t look_of(const UOp& ast, size_t buffers) {
  constexpr OpMask of_offsets = mask_of(Op::Add) | mask_of(Op::Const);
  uint64_t out = hash_mix(ast.node()->ops_below & ~of_offsets, buffers);
  for (const UOp& nest : ast.src()) {
    const UOp& body = nest.is(Op::End) ? nest.src(0) : nest;
    out = hash_mix(out, body.src().size());
    if (nest.is(Op::End))
      for (const UOp& loop : nest.src().subspan(1)) out = hash_mix(out, loop.id());
  }
  return out;
}

// A kernel that others share, and what their offsets are.
struct Shared {
  UOp ast;
  std::vector<UOp> values;  // bound Variables
};

class Sharing {
 public:
  explicit Sharing(const UOp& schedule) : schedule_(schedule) {
    absl::flat_hash_map<uint64_t, std::vector<UOp>> alike;
    for (const UOp& call : schedule.src()) {
      const UOp& ast = call.src(0);
      const bool by_hand = !ast.is(Op::Sink) || ast.arg().index() != 0;
      if (!by_hand && shared_.try_emplace(ast.node()).second)
        alike[look_of(ast, call.src().size())].push_back(ast);
    }
    for (const auto& [look, kernels] : alike)
      if (kernels.size() > 1) share(kernels);
  }

  UOp run() const {
    std::vector<UOp> calls;
    for (const UOp& call : schedule_.src()) {
      const auto it = shared_.find(call.src(0).node());
      if (it == shared_.end() || !it->second.ast) {
        calls.push_back(call);
        continue;
      }
      const Kernel kernel(call);
      calls.push_back(
          kernel_call(it->second.ast, kernel.buffers, kernel.reason, it->second.values));
    }
    return UOp::make(Op::Linear, calls);
  }

 private:
  struct Member {
    UOp ast;
    Offsets offsets;
  };

  void share(const std::vector<UOp>& kernels) {
    std::map<uint64_t, std::vector<Member>> groups;  // by the kernel without offsets
    std::vector<UOp> held;
    for (const UOp& ast : kernels) {
      Offsets own = offsets_of(ast);
      StandIns any;
      for (const auto& [slot, offset] : own) any.emplace(slot, variable_for(slot, 0, 1));
      held.push_back(with_offsets(ast, own, any));
      groups[held.back().id()].push_back({ast, std::move(own)});
    }
    for (const auto& [id, members] : groups)
      if (members.size() > 1) share(members);
  }

  void share(const std::vector<Member>& members) {
    StandIns varying;
    for (const auto& [slot, first] : members[0].offsets) {
      int64_t low = first, high = first;
      for (const Member& m : members) {
        low = std::min(low, m.offsets.at(slot));
        high = std::max(high, m.offsets.at(slot));
      }
      if (low < high) varying.emplace(slot, variable_for(slot, low, high));
    }
    const UOp ast = with_offsets(members[0].ast, members[0].offsets, varying);
    for (const Member& m : members) {
      Shared& shared = shared_[m.ast.node()];
      shared.ast = ast;
      for (const auto& [slot, v] : varying) shared.values.push_back(bind(v, m.offsets.at(slot)));
    }
  }

  UOp schedule_;
  absl::flat_hash_map<const Node*, Shared> shared_;  // without an ast: it stays as it is
};

}  // namespace

UOp with_offsets_as_arguments(const UOp& schedule) { return Sharing(schedule).run(); }

}  // namespace koine
