#include "koine/lower/bufferize.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/joins.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/rules/flat_kernel.hpp"

namespace koine {
namespace {

UOp zeros(const UOp& like) {
  const UOp zero = constant_int(like.dtype(), 0);
  return like.is_scalar() ? zero
                          : expand(reshape(zero, shape_of(Ints(like.rank(), 1))), like.shape());
}

// Of each result of a Call, whether its body stores all of it. A function of the host gets memory
// that is cleared.
std::vector<bool> stored_whole(const UOp& call) {
  const UOp& body = call.src(0);
  return body.is(Op::Sink) ? flat_kernel(body).whole
                           : std::vector<bool>(results_of(body).size(), true);
}

std::string reason_of_mark(const UOp& marked) {
  const auto* reason = std::get_if<std::string>(&marked.arg());
  return reason != nullptr && marked.is(Op::Contiguous) ? *reason : std::string(asked_for);
}

// Whether a value is the result of a check.
bool is_checked(const UOp& value) { return is_call_result(value) && is_check(value.src(0).src(0)); }

class Bufferizer {
 public:
  explicit Bufferizer(const UOp& program) : program_(program) {
    const bool one_device =
        std::all_of(program.src().begin(), program.src().end(),
                    [&](const UOp& effect) { return effect.device() == program.device(); });
    absl::flat_hash_set<const Node*> checked;  // what a check reads
    for (const UOp& effect : program.src())
      if (effect.is(Op::Store) && is_checked(stored_value(effect)))
        for (const UOp& u : toposort_outside_bodies(stored_value(effect).src(0)))
          checked.insert(u.node());
    for (const UOp& u : toposort_outside_bodies(program))
      if (u.is(Op::Contiguous) && reason_of_mark(u) == join_of_many)
        of_many_.insert(u.src(0).node());
    for (const UOp& effect : program.src()) {
      if (!effect.is(Op::Store)) continue;
      const UOp value = stored_value(effect);
      if (checked.contains(value.node())) {  // outputs are written behind the check
        copied_.insert(value.node());
        continue;
      }
      // What lies on no device is made where it is read: this output serves those beside it.
      if (!memory_of_value(value) && !value.is(Op::After) && !value.is(Op::Const) &&
          (value.device() || one_device))
        outputs_.emplace(value.node(), effect.src(0));
    }
  }

  UOp run() {
    return transform_graph(
        program_, [&](const UOp& original, const UOp& node) { return visit(original, node); });
  }

 private:
  UOp visit(const UOp& original, const UOp& node) {
    if (of_many_.contains(original.node())) joins_of_many_.insert(node.node());
    if (original.is(Op::Sink)) return effects(original, node);
    if (original.is(Op::Store)) return with_source(node, 0, view_of(original.src(0), node.src(0)));
    if (original.is(Op::After))
      return settled_after(with_source(node, 0, view_of(original.src(0), node.src(0))));
    if (is_call_result(original)) return result_of_call(original, node);
    if (original.is(Op::Call)) return call(node);
    if (original.is(Op::Fence)) return fence(node);
    if (original.is(Op::Contiguous)) {
      if (is_marked_part(original)) return node;  // its join finds it
      if (memory_of_value(node.src(0))) return node.src(0);
      return asks_for_buffer(original) ? in_memory(node.src(0), reason_of_mark(original)) : node;
    }
    if (is_transfer(original)) {
      const std::string& reason = original.as<LoadArg>().reason;
      return put(original, with_memory(node), reason.empty() ? "copy between devices" : reason);
    }
    if (asks_for_buffer(original)) return put(original, node, asked_for);
    if (original.is(Op::Bitcast) &&
        item_size(original.src(0).dtype()) != item_size(original.dtype()))
      return with_memory(node);
    if (copied_.contains(original.node())) return in_memory(node, "a check reads it");
    return outputs_.contains(original.node()) ? put(original, node, "output") : node;
  }

  // What is written is the memory itself, also where an output holds a copy of the view.
  static UOp view_of(const UOp& original, const UOp& node) {
    if (!is_movement(original.op())) return node;
    const UOp& view = node.is(Op::After) ? node.src(1).src(1) : node;
    return with_source(view, 0, view_of(original.src(0), view.src(0)));
  }

  // --- values ----------------------------------------------------------------------------------

  UOp temporary(const UOp& value) { return temporary_for(value, next_buffer_++); }

  // A value in its output, or in memory of its own.
  UOp put(const UOp& original, const UOp& value, std::string_view reason) {
    if (const auto output = outputs_.find(original.node()); output != outputs_.end())
      return fill(output->second, value, reason);
    return in_memory(value, reason);
  }
  UOp in_memory(const UOp& value, std::string_view reason) {
    if (memory_of_value(value)) return value;
    UOp& known = in_memory_[value.node()];
    if (!known) known = fill(temporary(value), value, reason);
    return known;
  }
  // A view of memory, read once the memory that the others are computed from is filled. What is
  // made of constants alone waits for nothing.
  UOp fence(const UOp& node) {
    std::vector<UOp> views, state;
    UOp base = node.src(0);
    auto shows_another = [](const UOp& u) { return shows_memory(u.op()) && !u.is(Op::After); };
    for (; is_view(base.op()) || shows_another(base); base = UOp(base.src(0)))
      if (is_view(base.op())) views.push_back(base);
    if (!memory_of_value(base)) return node.src(0);
    state.push_back(base);
    for (const UOp& other : node.src().subspan(1))
      toposort(other, [&](const UOp& u) {
        if (u.is(Op::After) && std::find(state.begin(), state.end(), u) == state.end())
          state.push_back(u);
        return !u.is(Op::After) && !u.is(Op::Call);
      });
    UOp out = UOp::make(Op::After, state, std::string("computed again"));
    for (; !views.empty(); views.pop_back()) out = with_source(views.back(), 0, out);
    return out;
  }
  // Memory that holds a value.
  UOp fill(const UOp& memory, const UOp& value, std::string_view reason) {
    std::vector<UOp> filling{memory};
    if (!store_parts(memory, value, filling)) return filled(memory, value, reason);
    return UOp::make(Op::After, filling, std::string(reason));
  }
  // Of a join that was decided to be filled by its parts, a Store into the slice of each; false: it
  // is no such join.
  bool store_parts(const UOp& view, const UOp& value, std::vector<UOp>& out) {
    const auto join = join_of(value);
    auto is_marked = [](const Join::Part& part) { return is_marked_part(part.source); };
    if (!join || (!joins_of_many_.contains(value.node()) &&
                  std::none_of(join->parts.begin(), join->parts.end(), is_marked)))
      return false;
    for (const Join::Part& part : join->parts) {
      const UOp &source = part.source, slice = join->slice(view, part);
      const UOp stored =
          is_marked_part(source) ? substitute(part.stored, {{source, source.src(0)}}) : part.stored;
      if (!store_parts(slice, stored, out)) out.push_back(settled(store(slice, stored)));
    }
    return true;
  }
  // Its first source is read from memory.
  UOp with_memory(const UOp& node) {
    return with_source(node, 0, in_memory(node.src(0), asked_for));
  }

  UOp call(const UOp& node) {
    std::vector<UOp> src(node.src().begin(), node.src().end());
    for (size_t k = 1; k < src.size(); ++k) src[k] = in_memory(src[k], asked_for);
    return with_sources(node, src);
  }

  UOp result_of_call(const UOp& original, const UOp& node) {
    const UOp& called = original.src(0);
    auto [whole, fresh] = whole_.try_emplace(called.node());
    if (fresh) whole->second = stored_whole(called);
    const auto output = outputs_.find(original.node());
    UOp memory = output != outputs_.end() ? output->second : temporary(node);
    if (!whole->second[static_cast<size_t>(original.as<int64_t>())])
      memory = filled(memory, zeros(node), "what a kernel leaves out is 0");
    return filled(memory, node, fmt::format("a call of '{}'", call_name(called)));
  }

  // --- effects ---------------------------------------------------------------------------------

  UOp effects(const UOp& original, const UOp& node) {
    std::vector<UOp> out;
    for (size_t i = 0; i < node.src().size(); ++i) {
      const UOp& effect = node.src(i);
      if (!original.src(i).is(Op::Store)) {
        out.push_back(effect);
        continue;
      }
      const UOp value = stored_value(effect);
      const bool there = memory_of_value(value) == effect.src(0);
      out.push_back(there ? value : fill(effect.src(0), value, "output"));
    }
    return sink(out);
  }

  UOp settled_after(const UOp& after) {
    std::vector<UOp> src(after.src().begin(), after.src().end());
    for (size_t k = 1; k < src.size(); ++k) src[k] = settled(src[k]);
    return with_sources(after, src);
  }

  // A dependency, all of whose Stores read before one of them writes.
  UOp settled(const UOp& dependency) {
    std::vector<UOp> stores = stores_in(dependency);
    absl::flat_hash_set<const Node*> written;
    for (const UOp& s : stores) written.insert(written_memory(s).node());
    const bool alone = stores.size() == 1;
    bool changed = false;
    for (UOp& s : stores) {
      const UOp before = before_writing(s, written, alone);
      changed = changed || !(before == s);
      s = before;
    }
    if (!changed) return dependency;
    for (const UOp& after : afters_in(dependency)) stores.push_back(after);
    return stores.size() == 1 ? stores[0] : group(stores);
  }

  // Whether all that a value reads of what is written is, for each element, the one that it is
  // stored over, as in x[i] += y: no other element of the kernel can have been there before.
  static bool reads_its_place(const UOp& s, const absl::flat_hash_set<const Node*>& written) {
    absl::flat_hash_set<const Node*> reading, elsewhere;
    for (UOp view = s.src(0); is_movement(view.op()); view = view.src(0))
      if (view.is(Op::Index) || view.is(Op::Expand)) return false;  // elements may meet
    for (const UOp& u : toposort(s.src(1))) {
      const UOp held = memory_of_value(u);
      bool reads = held && written.contains(held.node()), same = u == s.src(0);
      bool moves = reads;
      for (const UOp& source : u.src()) {
        if (!reading.contains(source.node())) continue;
        reads = true;
        moves = moves || elsewhere.contains(source.node()) || !is_elementwise(u.op()) ||
                !(source.shape() == u.shape());
      }
      if (reads || same) reading.insert(u.node());
      if (moves && !same) elsewhere.insert(u.node());
    }
    return !elsewhere.contains(s.src(1).node());
  }

  // `alone`: no other Store is beside it.
  UOp before_writing(const UOp& s, const absl::flat_hash_set<const Node*>& written, bool alone) {
    auto reads = [&](const UOp& value) {
      if (const UOp held = memory_of_value(value)) return written.contains(held.node());
      bool found = false;
      toposort(value, [&](const UOp& u) {
        found = found || written.contains(u.node());
        return !found && !is_call_result(u);  // which is computed before
      });
      return found;
    };
    auto settled = [&](const UOp& value) { return reads(value) ? snapshot(value) : value; };
    std::vector<UOp> src(s.src().begin(), s.src().end());
    if (src.size() == 3) src[2] = settled(src[2]);
    if (!alone || !reads_its_place(s, written)) src[1] = settled(src[1]);
    std::vector<UOp> chain;  // the view, whose indices are settled
    for (UOp view = src[0]; is_movement(view.op()); view = view.src(0)) chain.push_back(view);
    if (!chain.empty()) src[0] = chain.back().src(0);
    for (; !chain.empty(); chain.pop_back()) {
      std::vector<UOp> its(chain.back().src().begin(), chain.back().src().end());
      its[0] = src[0];
      for (size_t k = 1; chain.back().is(Op::Index) && k < its.size(); ++k)
        its[k] = settled(its[k]);
      src[0] = with_sources(chain.back(), its);
    }
    return with_sources(s, src);
  }

  // The value as it is before this program writes what it reads.
  UOp snapshot(const UOp& value) {
    UOp& known = snapshots_[value.node()];
    if (!known) known = filled(temporary(value), value, "computed before it is overwritten");
    return known;
  }

  UOp program_;
  int64_t next_buffer_ = 0;
  absl::flat_hash_map<const Node*, UOp> outputs_;  // value of the given program -> Param
  absl::flat_hash_set<const Node*> copied_;        // values of outputs that a check reads
  absl::flat_hash_set<const Node*> of_many_, joins_of_many_;     // of the given program, and now
  absl::flat_hash_map<const Node*, UOp> in_memory_, snapshots_;  // value -> After
  absl::flat_hash_map<const Node*, std::vector<bool>> whole_;    // by Call
};

}  // namespace

UOp bufferize(const UOp& program) { return Bufferizer(program).run(); }

UOp temporary_for(const UOp& value, int64_t number) {
  return UOp::make(Op::Buffer, {value.shape()}, BufferArg{number, value.dtype(), value.device()});
}
UOp filled(const UOp& memory, const UOp& value, std::string_view reason) {
  return UOp::make(Op::After, {memory, store(memory, value)}, std::string(reason));
}
int64_t next_temporary(const UOp& program) {
  int64_t next = 0;
  for (const UOp& u : toposort_outside_bodies(program))
    if (u.is(Op::Buffer)) next = std::max(next, u.as<BufferArg>().slot + 1);
  return next;
}

UOp written_memory(const UOp& store) {
  UOp view = store.src(0);
  while (is_movement(view.op())) view = UOp(view.src(0));
  return memory_of_value(view);
}

bool share_loops(std::span<const UOp> stores) {
  absl::flat_hash_set<const Node*> written;
  return std::ranges::all_of(stores, [&](const UOp& s) {
    return s.src(1).shape() == stores[0].src(1).shape() &&
           written.insert(written_memory(s).node()).second;
  });
}

UOp memory_of_value(const UOp& value) {
  const Node* n = value.node();
  while (n->op != Op::Param && n->op != Op::Buffer) {
    if (!shows_memory(n->op)) return {};
    n = n->sources()[0].node();
  }
  return UOp::share(n);
}

}  // namespace koine
