#include "koine/lower/old_states.hpp"

#include <absl/container/flat_hash_map.h>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/bufferize.hpp"

namespace koine {
namespace {

// Whether a node shows elements of its first source, which are read where it is read.
bool is_view(const UOp& u) {
  return (is_movement(u.op()) && !u.is(Op::Stack)) || (shows_memory(u.op()) && !u.is(Op::After));
}

class OldStates {
 public:
  OldStates(const UOp& program, const std::vector<UOp>& versions, const Versions& known)
      : program_(program), known_(known), next_buffer_(next_temporary(program)) {
    for (const UOp& version : versions) copies_.emplace(version.node(), UOp());
  }

  UOp run() {
    UOp out = transform_graph(
        program_, [&](const UOp& original, const UOp& node) { return visit(original, node); });
    KOINE_INVARIANT(!(out == program_), "kernels depend on each other in a circle");
    return out;
  }

 private:
  UOp visit(const UOp& original, const UOp& node) {
    if (original.is(Op::Sink) || original.is(Op::Group) || original.is(Op::End)) return node;
    if (original.is(Op::Store) && copies_.contains(original.src(1).node()) &&
        original.src(0).is(Op::Buffer))
      return node;  // it makes a copy
    const bool writes = original.is(Op::Store) || is_view(original) ||
                        (original.is(Op::After) && memory_of_value(original));
    const size_t end = original.is(Op::After) ? 1 : node.src().size();  // what it waits for
    std::vector<UOp> src(node.src().begin(), node.src().end());
    for (size_t i = writes ? 1 : 0; i < end; ++i) src[i] = read(original.src(i), node.src(i));
    return with_sources(node, src);
  }

  // A source whose elements are read: the views of a version, over its copy.
  UOp read(const UOp& original, const UOp& node) {
    std::vector<UOp> views;
    UOp state = original, now = node;
    for (; is_view(state); state = UOp(state.src(0)), now = UOp(now.src(0))) views.push_back(now);
    if (!memory_of_value(state)) return node;
    const UOp version = known_.of(state);
    const auto copy = version ? copies_.find(version.node()) : copies_.end();
    if (copy == copies_.end()) return node;
    if (!copy->second) {
      for (; !(state == version); state = UOp(state.src(0))) now = UOp(now.src(0));
      copy->second =
          filled(temporary_for(now, next_buffer_++), now, "old state of an assigned buffer");
    }
    UOp out = copy->second;
    for (; !views.empty(); views.pop_back()) out = with_source(views.back(), 0, out);
    return out;
  }

  UOp program_;
  const Versions& known_;
  int64_t next_buffer_;
  absl::flat_hash_map<const Node*, UOp> copies_;  // version -> the After that fills its copy
};

}  // namespace

UOp with_copies_of(const UOp& program, const std::vector<UOp>& versions, const Versions& known) {
  return OldStates(program, versions, known).run();
}

}  // namespace koine
