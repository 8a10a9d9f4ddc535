#include "koine/lower/work_bound.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

constexpr double at_the_edges = 1.25;

struct Work {
  double operations = 0, folds = 0;
  double reduces = 0;
  double constants = 0;  // operations on what reads no memory, for one element
  double elements = 0;   // of values, and read at places that are values; of kernels: stored ones
};

// Operations for one element of a value: of a Stack that of choosing its source.
double of_an_element(const UOp& u) {
  if (u.is(Op::Reduce)) return reduced_size(u);
  if (u.is(Op::Stack)) return u.dtype() == DType::Index ? 0 : static_cast<double>(u.src().size());
  if (u.is(Op::Pad)) return 1;
  return is_operation(u) && !u.is(Op::Cast) ? 1 : 0;
}

// Every value of a program once.
Work work_of_values(const UOp& program) {
  constexpr OpMask memory = mask_of(Op::Param) | mask_of(Op::Buffer);
  Work out;
  for (const UOp& u : toposort(program)) {
    const double each = of_an_element(u);
    if (each == 0) {
      if (u.is(Op::Index) && !u.is_scalar()) out.elements += elements_of(u);
      continue;
    }
    out.operations += each * elements_of(u);
    out.elements += elements_of(u);
    if (u.is(Op::Reduce)) {
      out.folds += each * elements_of(u);
      ++out.reduces;
    }
    if ((u.node()->ops_below & memory) == 0) out.constants += each;
  }
  return out;
}

// The loops that the nodes of a kernel run in: those they depend on, and all around these.
class Loops {
 public:
  explicit Loops(const UOp& kernel) {
    for (const UOp& u : toposort(kernel)) {
      if (!u.is(Op::Reduce) && !u.is(Op::End)) continue;
      const std::span<const UOp> closed = u.is(Op::Reduce) ? reduced_ranges(u) : u.src().subspan(1);
      for (size_t i = 0; i < closed.size(); ++i)
        nests_.try_emplace(closed[i].node(), Nest{u, closed.first(i)});
    }
  }

  // How often a node is computed; of a Reduce, how often it folds. A loop whose length depends on
  // another is that of a running fold, which goes on with the one that it counts.
  double times(const UOp& u) const {
    absl::flat_hash_set<const Node*> around;
    std::vector<const Node*> pending;
    const auto add = [&](const Node* loop) {
      if (around.insert(loop).second) pending.push_back(loop);
    };
    for (const Node* loop : (u.is(Op::Reduce) ? u.src(0) : u).ranges()) add(loop);
    double out = 1;
    while (!pending.empty()) {
      const Node* loop = pending.back();
      pending.pop_back();
      if (const UOp& bound = loop->sources()[0]; bound.ranges().empty()) out *= largest(bound);
      const auto nest = nests_.find(loop);
      if (nest == nests_.end()) continue;
      for (const UOp& outer : nest->second.outer) add(outer.node());
      for (const Node* outer : nest->second.closes.ranges()) add(outer);
    }
    return out;
  }

 private:
  struct Nest {
    UOp closes;                  // the Reduce or End
    std::span<const UOp> outer;  // its loops around this one
  };
  absl::flat_hash_map<const Node*, Nest> nests_;
};

bool tests_places(const UOp& u, const absl::flat_hash_set<const Node*>& tests) {
  return u.dtype() == DType::Bool && is_elementwise(u.op()) &&
         std::all_of(u.src().begin(), u.src().end(), [&](const UOp& s) {
           return s.is(Op::Const) || s.dtype() == DType::Index || tests.contains(s.node());
         });
}

// The operation that is computed most often, in which kernel.
struct Most {
  UOp node;
  double times = 0;
  std::string kernel;
  void see(const UOp& u, double rounds, std::string_view reason) {
    if (rounds > times) *this = {u, rounds, std::string(reason)};
  }
};
struct Computed : Work {
  Most operation, fold;
};

Computed work_of_kernels(const UOp& schedule) {
  Computed out;
  for (const Kernel& kernel : kernels_of(schedule)) {
    const bool by_hand = kernel.ast.is(Op::CustomFunction) || kernel.ast.arg().index() != 0;
    if (by_hand) continue;
    const Loops loops(kernel.ast);
    absl::flat_hash_set<const Node*> tests;  // of places, for gates: no work on values
    for (const UOp& u : toposort(kernel.ast)) {
      if (tests_places(u, tests)) tests.insert(u.node());
      const bool counts = u.is(Op::Store) || u.is(Op::Reduce) || is_operation(u);
      if (!counts) continue;
      const double times = loops.times(u);
      if (u.is(Op::Store)) out.elements += times;
      if (!u.is(Op::Store) && !u.is(Op::Cast) && !tests.contains(u.node())) {
        out.operations += times;
        out.operation.see(u, times, kernel.reason);
      }
      if (!u.is(Op::Reduce)) continue;
      out.folds += times;
      out.fold.see(u, times, kernel.reason);
    }
  }
  return out;
}

}  // namespace

void check_work(const UOp& bufferized, const UOp& schedule) {
  const Work values = work_of_values(bufferized);
  const Computed made = work_of_kernels(schedule);
  const double folds = at_the_edges * values.folds + cost_of_memory * made.elements +
                       most_nested_steps * values.reduces,
               operations = at_the_edges * values.operations +
                            (cost_of_memory + values.constants) * (values.elements + made.elements);
  if (made.folds <= folds && made.operations <= operations) return;
  const bool folding = made.folds > folds;
  const Most& most = folding ? made.fold : made.operation;
  report_violation(
      "split",
      {most.node, -1,
       fmt::format("work is repeated: the kernels {} {:.0f} times, the values of the program once "
                   "each take {:.0f}, and fusion may make that {:.0f}; the most often, {:.0f} "
                   "times, in the kernel '{}'",
                   folding ? "fold" : "compute", folding ? made.folds : made.operations,
                   folding ? values.folds : values.operations, folding ? folds : operations,
                   most.times, most.kernel)});
}

}  // namespace koine
