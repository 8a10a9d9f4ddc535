#include "koine/rules/flat_kernel.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

bool is_slot(const UOp& u) { return u.is(Op::Param) && !is_variable(u); }
// The place of an element: an Index into memory, or memory of shape ().
bool is_element(const UOp& u) {
  if (is_address(u)) return true;
  return u.is_scalar() && (u.is(Op::Param) || u.is(Op::After)) && is_slot(strip_after(u));
}

// Whether an index goes through 0, 1, ... up to a size, each once, while the loops that it names
// run: i, or 8 i + j with j below 8. Notes the loops.
bool counts_through(const UOp& index, const UOp& size, std::set<const Node*>& used) {
  if (index.is(Op::Range)) return index.src(0) == size && used.insert(index.node()).second;
  if (index.dtype() != DType::Index) return false;
  std::vector<std::pair<int64_t, const Node*>> steps;
  UOp rest = simplify_index(index);
  for (const Node* n : index.ranges()) {
    const UOp loop = UOp::share(n);
    int64_t step = 0;
    UOp left;
    if (!loop.src(0).is(Op::Const) || !linear_coefficient(rest, loop, step, left)) return false;
    if (!used.insert(n).second) return false;
    steps.emplace_back(step, n);
    rest = left;
  }
  std::sort(steps.begin(), steps.end());
  int64_t places = 1;
  for (const auto& [step, loop] : steps) {
    if (step != places) return false;
    places *= const_int(loop->sources()[0]);
  }
  return is_const(rest, 0) && is_const(size, places);
}

// Whether the loops of a nest visit each element of a Store's target once.
bool visits_each_element(const UOp& store, std::span<const UOp> loops) {
  const UOp& place = store.src(0);
  const UOp& memory = buffer_at(place);
  std::set<const Node*> used;
  for (size_t k = 0; k < memory.rank(); ++k)
    if (!place.is(Op::Index) || k + 1 >= place.src().size() ||
        !counts_through(place.src(k + 1), memory.dim(k), used))
      return false;
  return used.size() == loops.size() && std::all_of(loops.begin(), loops.end(), [&](const UOp& r) {
           return used.contains(r.node());
         });
}

// Equal bounds are one node, as rules make them of what is computed.
UOp with_plain_bounds(const UOp& kernel) {
  return transform_graph(kernel, [](const UOp&, const UOp& u) {
    return u.is(Op::Range) ? with_source(u, 0, simplify_index(u.src(0))) : u;
  });
}

// Loops of one step are none: rules take their Ranges for 0, which closes nothing.
UOp without_single_steps(const UOp& kernel) {
  Substitution single;
  for (const UOp& u : toposort(kernel))
    if (u.is(Op::Range) && is_const(u.src(0), 1)) single.emplace(u, index_const(0));
  if (single.empty()) return kernel;
  const UOp open = transform_graph(kernel, [&](const UOp&, const UOp& u) {
    if (!u.is(Op::End) && !u.is(Op::Reduce) && !u.is(Op::After)) return u;
    std::vector<UOp> left{u.src(0)};
    for (const UOp& s : u.src().subspan(1))
      if (!single.contains(s)) left.push_back(s);
    return left.size() == 1 ? left[0] : with_sources(u, left);
  });
  return substitute(open, single);
}

class Flattener {
 public:
  explicit Flattener(const UOp& kernel) : kernel_(kernel), results_(results_of(kernel)) {
    out_.whole.resize(results_.size());
  }

  FlatKernel run() {
    for (const UOp& u : toposort(kernel_))
      KOINE_REQUIRE(op_info(u.op()).group != GroupOp::Call && !u.is(Op::Linear), Value,
                    "kernel '{}' holds {}, which belongs to graphs of values", name(),
                    op_name(u.op()));
    require_stored_before_read();
    for (UOp before; !(before == kernel_);) {
      before = kernel_;
      kernel_ = without_single_steps(with_plain_bounds(kernel_));
    }
    require_loops();
    const bool in_order = !may_run_in_any_order();
    out_.ast = rebuild_graph(
        kernel_, [this](const UOp& u, std::vector<UOp>& made) { return flat(u, made); });
    if (in_order)
      out_.ast = transform_graph(out_.ast, [](const UOp&, const UOp& u) {
        return u.is(Op::End) ? UOp::make(Op::End, u.src(), MarkArg{Mark::InOrder}) : u;
      });
    out_.ast = without_promises(out_.ast);
    return std::move(out_);
  }

 private:
  bool is_result(const UOp& memory) const {
    return is_slot(memory) && memory.as<BufferArg>().slot < static_cast<int64_t>(results_.size());
  }

  void require_stored_before_read() const {
    for (const UOp& u : toposort(kernel_))
      for (size_t i = 0; i < u.src().size(); ++i) {
        const UOp& s = u.src(i);
        const bool names = i == 0 && (u.is(Op::Store) || u.is(Op::Index) || u.is(Op::After));
        if (names || !is_element(s) || !is_result(buffer_at(s))) continue;
        const UOp& memory = s.is(Op::Index) ? s.src(0) : s;
        KOINE_REQUIRE(
            memory.is(Op::After), Value,
            "kernel '{}' reads an element of slot {}, its result: say by an After which "
            "stores come before, as in index(after(p, {{end(store(...), {{i}})}}), {{j}})",
            name(), buffer_at(s).as<BufferArg>().slot);
      }
  }

  // What later stages take for granted of loops, in words of who writes them.
  void require_loops() const {
    std::map<const Node*, std::vector<UOp>> folds;  // by the loop that they go over
    for (const UOp& u : toposort(kernel_)) {
      if (u.is(Op::After))
        for (const UOp& s : u.src().subspan(1))
          KOINE_REQUIRE(
              !s.is(Op::Range) || s.as<RangeArg>().type == AxisType::Loop, Value,
              "kernel '{}': an After waits for the steps of loop {}, which is of type {}: "
              "only those of type LOOP come one behind the other",
              name(), s.as<RangeArg>().id, axis_type_name(s.as<RangeArg>().type));
      if (!u.is(Op::Reduce)) continue;
      for (const UOp& r : reduced_ranges(u)) {
        folds[r.node()].push_back(u);
        for (const Node* around : r.src(0).ranges())
          KOINE_REQUIRE(
              !is_reduction(UOp::share(around).as<RangeArg>().type), Value,
              "kernel '{}': the bound of loop {} depends on loop {}, and both are folded: "
              "let it go on to the end, and where() leave out what is behind the bound",
              name(), r.as<RangeArg>().id, UOp::share(around).as<RangeArg>().id);
      }
    }
    for (const auto& [loop, all] : folds)
      for (const UOp& fold : all.size() > 1 ? all : std::vector<UOp>())
        for (const UOp& inner : toposort(fold.src(0)))
          KOINE_REQUIRE(std::find(all.begin(), all.end(), inner) == all.end(), Value,
                        "kernel '{}': loop {} is folded within a fold of it: give the inner one a "
                        "loop of its own number",
                        name(), UOp::share(loop).as<RangeArg>().id);
  }

  std::string name() const {
    const auto* text = std::get_if<std::string>(&kernel_.arg());
    return text != nullptr ? spoken_name(*text) : "";
  }

  // Plain nests of loops, each over all elements of what it stores. Notes which results are whole.
  bool may_run_in_any_order() {
    bool any_order = true;
    for (const UOp& u : toposort(kernel_)) {
      const bool plain = !u.is(Op::Range) || u.as<RangeArg>().type == AxisType::Loop ||
                         u.as<RangeArg>().type == AxisType::Reduce;
      any_order = any_order && plain && !u.is(Op::After);
    }
    for (const UOp& effect : kernel_.src()) {
      const bool nest = effect.is(Op::End);
      const UOp& body = nest ? effect.src(0) : effect;
      const std::span<const UOp> loops = nest ? effect.src().subspan(1) : std::span<const UOp>();
      const std::span<const UOp> stores =
          body.is(Op::Group) ? body.src() : std::span<const UOp>(&body, 1);
      for (const UOp& s : stores) {
        const bool each = s.is(Op::Store) && visits_each_element(s, loops);
        any_order = any_order && each;
        if (each && s.src().size() == 2 && is_result(buffer_at(s.src(0))))
          out_.whole[static_cast<size_t>(buffer_at(s.src(0)).as<BufferArg>().slot)] = true;
      }
    }
    return any_order;
  }

  // --- over flat memory ------------------------------------------------------------------------

  // `made`: the sources of a node, flat already.
  UOp flat(const UOp& u, const std::vector<UOp>& made) {
    if (is_slot(u))
      return param(u.as<BufferArg>().slot, stack(std::vector<UOp>{product(u.shape())}), u.dtype());
    if (is_address(u)) return address(u, made);
    if (u.is(Op::Load) && is_element(u.src(0))) return loaded(u, made);
    std::vector<UOp> src = made;
    for (size_t i = 0; i < src.size(); ++i) {
      const UOp& s = u.src(i);
      const bool names = i == 0 && (u.is(Op::Store) || u.is(Op::After));
      if (!names) src[i] = value_of(s, made[i]);
      if (i == 0 && u.is(Op::Store) && is_element(s)) src[i] = place_of(s, made[i]);
    }
    if (u.is(Op::Store) && is_element(u.src(0))) {
      const UOp gate = conjunction(src.size() == 3 ? src[2] : UOp(), inside(u.src(0)));
      return is_true(gate) ? store(src[0], src[1]) : store(src[0], src[1], gate);
    }
    return with_sources(u, src);
  }

  // The flat place; under which condition it exists is kept beside it.
  UOp address(const UOp& u, const std::vector<UOp>& made) {
    const UOp shape = buffer_at(u).shape();
    KOINE_REQUIRE(u.src().size() == shape.src().size() + 1, Value,
                  "kernel '{}' indexes memory of shape {} with {} indices: give one for each axis",
                  name(), stack_text(shape), u.src().size() - 1);
    UOp exists;
    Indices at;
    for (size_t k = 0; k < shape.src().size(); ++k) {
      UOp index = simplify(cast(value_of(u.src(k + 1), made[k + 1]), DType::Index));
      keep_within(index, shape.src(k), exists);
      at.push_back(index);
    }
    inside_.set(u.node(), exists);
    return index(made[0], {flat_index(shape, at)});
  }

  // Memory of shape () has its element at place 0.
  static UOp place_of(const UOp& element, const UOp& made) {
    return element.is(Op::Index) ? made : index(made, {index_const(0)});
  }
  UOp inside(const UOp& element) const {
    const UOp* exists = inside_.find(element.node());
    return exists != nullptr ? *exists : UOp();
  }
  // A source as a value: of an element what is read there.
  UOp value_of(const UOp& source, const UOp& made) const {
    if (!is_element(source)) return made;
    const UOp exists = inside(source), place = place_of(source, made);
    return is_true(exists) ? load(place) : load(place, constant_int(source.dtype(), 0), exists);
  }
  UOp loaded(const UOp& u, const std::vector<UOp>& made) const {
    if (u.src().size() == 1) return value_of(u.src(0), made[0]);
    return load(place_of(u.src(0), made[0]), value_of(u.src(1), made[1]),
                conjunction(value_of(u.src(2), made[2]), inside(u.src(0))));
  }

  UOp kernel_;
  std::vector<UOp> results_;
  NodeMap<UOp> inside_;  // of an Index that may be out of bounds
  FlatKernel out_;
};

}  // namespace

FlatKernel flat_kernel(const UOp& kernel) { return Flattener(kernel).run(); }

}  // namespace koine
