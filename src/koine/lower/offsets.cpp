#include "koine/lower/offsets.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
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
using Numbers = std::vector<UOp>;            // Consts, in the order of a walk
// By slot, and by place among the numbers.
struct StandIns {
  std::map<int64_t, UOp> offsets;
  std::map<size_t, UOp> numbers;
};

// A place in memory that was given; rows are the kernel's own.
bool is_place_in_slot(const UOp& u) {
  return u.is(Op::Index) && is_address(u) && buffer_at(u).is(Op::Param);
}
int64_t slot_at(const UOp& address) { return buffer_at(address).as<BufferArg>().slot; }

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
    const auto [it, fresh] = out.try_emplace(slot_at(u), constant);
    if (!fresh) it->second = std::min(it->second, constant);
  }
  return out;
}

// Whether a node costs the same with any number there: an exponent and a divisor are known to who
// expands the op.
bool takes_numbers(const UOp& user) {
  return is_elementwise(user.op()) && !user.is(Op::Pow) && !user.is(Op::Mod);
}

// Floats that values are computed with.
Numbers numbers_of(const UOp& ast) {
  const NodeList order = toposort(ast);
  absl::flat_hash_set<const Node*> others;  // that an identity or an alternative is
  auto is_number = [](const UOp& u) { return u.is(Op::Const) && is_float(u.dtype()); };
  for (const UOp& u : order)
    if (!takes_numbers(u))
      for (const UOp& s : u.src())
        if (is_number(s)) others.insert(s.node());
  Numbers out;
  for (const UOp& u : order)
    if (is_number(u) && !is_invalid(u) && !others.contains(u.node())) out.push_back(u);
  return out;
}

// The kernel with others in place of some of its offsets and numbers.
UOp with(const UOp& ast, const Offsets& own, const Numbers& numbers, const StandIns& by) {
  absl::flat_hash_map<const Node*, UOp> known;
  for (const auto& [k, number] : by.numbers) known.emplace(numbers[k].node(), number);
  return transform_graph(ast, [&](const UOp& original, const UOp& node) {
    if (const auto number = known.find(original.node()); number != known.end())
      return number->second;
    if (!is_place_in_slot(original)) return node;
    const int64_t slot = slot_at(original);
    const auto it = by.offsets.find(slot);
    if (it == by.offsets.end()) return node;
    const UOp moved = add(add(node.src(1), index_const(-own.at(slot))), it->second);
    return with_source(node, 1, simplify_index(moved));
  });
}

UOp variable_for(int64_t slot, int64_t low, int64_t high) {
  return variable(fmt::format("koine_offset_{}", slot), low, high);
}
// The bits of a number: of up to 32 as a signed integer of 32, which a language has that counts no
// further.
UOp variable_for(size_t k, DType dtype) {
  const IntegerRange range = integer_range(item_size(dtype) > 4 ? DType::Int64 : DType::Int32);
  return variable(fmt::format("koine_number_{:06}", k), static_cast<int64_t>(range.low),
                  static_cast<int64_t>(range.high));
}
UOp number_of(const UOp& bits, DType dtype) {
  return bitcast(cast(bits, storage_uint(dtype)), dtype);
}
int64_t bits_of(const UOp& number) {
  const auto bits = static_cast<int64_t>(number.as<ConstArg>().bits);
  return item_size(number.dtype()) > 4 ? bits : static_cast<int32_t>(bits);
}

// Equal for kernels that may differ in offsets and numbers alone: what is found without a walk.
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

// A kernel that others share, and what differs in each.
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
    Numbers numbers;
  };

  void share(const std::vector<UOp>& kernels) {
    std::map<uint64_t, std::vector<Member>> groups;  // by the kernel without either
    std::vector<UOp> held;
    for (const UOp& ast : kernels) {
      Member m{ast, offsets_of(ast), numbers_of(ast)};
      StandIns any;
      for (const auto& [slot, offset] : m.offsets)
        any.offsets.emplace(slot, variable_for(slot, 0, 1));
      for (size_t k = 0; k < m.numbers.size(); ++k) {
        const DType dtype = m.numbers[k].dtype();
        any.numbers.emplace(k, number_of(variable_for(k, dtype), dtype));
      }
      held.push_back(with(ast, m.offsets, m.numbers, any));
      groups[held.back().id()].push_back(std::move(m));
    }
    for (const auto& [id, members] : groups)
      if (members.size() > 1) share(members);
  }

  void share(const std::vector<Member>& members) {
    const Member& first = members[0];
    StandIns varying;
    std::map<int64_t, UOp> offsets;  // the Variables
    std::map<size_t, UOp> numbers;
    for (const auto& [slot, offset] : first.offsets) {
      int64_t low = offset, high = offset;
      for (const Member& m : members) {
        low = std::min(low, m.offsets.at(slot));
        high = std::max(high, m.offsets.at(slot));
      }
      if (low < high) offsets.emplace(slot, variable_for(slot, low, high));
    }
    for (size_t k = 0; k < first.numbers.size(); ++k)
      if (std::any_of(members.begin(), members.end(),
                      [&](const Member& m) { return m.numbers[k] != first.numbers[k]; }))
        numbers.emplace(k, variable_for(k, first.numbers[k].dtype()));
    varying.offsets = offsets;
    for (const auto& [k, v] : numbers)
      varying.numbers.emplace(k, number_of(v, first.numbers[k].dtype()));
    const UOp ast = with(first.ast, first.offsets, first.numbers, varying);
    for (const Member& m : members) {
      Shared& shared = shared_[m.ast.node()];
      shared.ast = ast;
      for (const auto& [slot, v] : offsets) shared.values.push_back(bind(v, m.offsets.at(slot)));
      for (const auto& [k, v] : numbers) shared.values.push_back(bind(v, bits_of(m.numbers[k])));
    }
  }

  UOp schedule_;
  absl::flat_hash_map<const Node*, Shared> shared_;  // without an ast: it stays as it is
};

}  // namespace

UOp with_differences_as_arguments(const UOp& schedule) { return Sharing(schedule).run(); }

}  // namespace koine
