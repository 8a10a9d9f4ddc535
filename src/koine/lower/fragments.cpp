#include "koine/lower/fragments.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/tensor_core.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

int64_t id_of(const UOp& range) { return range.as<RangeArg>().id; }

std::vector<UOp> of_type(const UOp& ast, AxisType type) {
  std::vector<UOp> out;
  for (const UOp& r : kernel_ranges(ast))
    if (r.as<RangeArg>().type == type) out.push_back(r);
  return out;
}

class Fragments {
 public:
  Fragments(const UOp& ast, const TensorCore& core)
      : core_(core),
        threads_(of_type(ast, AxisType::Warp)),
        elements_(of_type(ast, AxisType::Upcast)),
        next_id_(id_of(kernel_ranges(ast).back()) + 1) {
    const size_t wanted = core.accumulator.elements.size();
    KOINE_INVARIANT(
        threads_.size() == core.accumulator.threads.size() && elements_.size() >= wanted,
        "the axes of {} are not those of its kernel", core.name);
    elements_.erase(elements_.begin(), elements_.end() - static_cast<std::ptrdiff_t>(wanted));
  }

  UOp reduction(const UOp& reduce) {
    std::vector<UOp> loops;
    for (const UOp& r : reduced_ranges(reduce)) {
      if (r.as<RangeArg>().type == AxisType::Unroll) {
        if (step_) loops.push_back(step_);  // the innermost is the core's
        step_ = r;
      } else {
        loops.push_back(r);
      }
    }
    const Factors factors = factors_of(reduce);
    KOINE_INVARIANT(step_ && const_int(step_.src(0)) == core_.k && factors.x, "{} has another sum",
                    core_.name);
    const bool swapped = is_a(factors.y) && !is_a(factors.x);
    // What does not count adds nothing, whatever the other factor is there.
    const UOp a = counted(swapped ? factors.y : factors.x, core_.a.dtype, factors.counts, -0.0),
              b = counted(swapped ? factors.x : factors.y, core_.b.dtype, factors.counts, 0.0);
    WmmaArg arg{std::string(core_.name)};
    const UOp held_a = held(a, core_.a, 'm', arg.a), held_b = held(b, core_.b, 'n', arg.b);
    for (const UOp& r : elements_) arg.accumulator.push_back(id_of(r));
    const UOp nothing = constant_int(reduce.dtype(), 0);
    const UOp start = start_of(reduce);
    return reduce_ranges(
        Op::Add, UOp::make(Op::Wmma, {held_a, held_b, nothing}, arg), loops,
        start ? start : fold_start(Op::Add, reduce.dtype(), reduced_ranges(reduce)));
  }

 private:
  // The axis of the accumulator that a range counts along.
  const CoreAxis* axis_of(const UOp& range) const {
    for (size_t i = 0; i < threads_.size(); ++i)
      if (threads_[i] == range) return &core_.accumulator.threads[i];
    for (size_t i = 0; i < elements_.size(); ++i)
      if (elements_[i] == range) return &core_.accumulator.elements[i];
    return nullptr;
  }

  // A knows no columns.
  bool is_a(const UOp& factor) const {
    return std::ranges::none_of(factor.ranges(), [&](const Node* n) {
      const CoreAxis* axis = axis_of(UOp::share(n));
      return axis != nullptr && axis->along == 'n';
    });
  }

  static UOp counted(const UOp& factor, DType dtype, const UOp& counts, double nothing) {
    const UOp value = factor.dtype() == dtype ? factor : cast(factor, dtype);
    if (!counts) return value;
    return where(counts, value,
                 is_float(dtype) ? constant(dtype, nothing) : constant_int(dtype, 0));
  }

  // A range for the elements along an axis of A or B: the accumulator's where it has the same.
  UOp element_range(const CoreAxis& axis) {
    for (size_t i = 0; i < elements_.size(); ++i)
      if (core_.accumulator.elements[i] == axis) return elements_[i];
    for (const auto& [known, r] : own_)
      if (known == axis) return r;
    own_.emplace_back(axis, range(next_id_++, index_const(axis.size), AxisType::Unroll));
    return own_.back().second;
  }

  // A factor as the core holds it; `side`: along which it and the accumulator run.
  UOp held(const UOp& factor, const CoreMatrix& matrix, char side, Ints& ids) {
    UOp at_side = index_const(0), at_step = index_const(0);
    auto count_along = [&](const CoreAxis& axis, const UOp& r) {
      UOp& place = axis.along == 'k' ? at_step : at_side;
      place = add(place, mul(r, index_const(axis.step)));
    };
    for (size_t i = 0; i < threads_.size(); ++i) count_along(matrix.threads[i], threads_[i]);
    for (const CoreAxis& axis : matrix.elements) {
      const UOp r = element_range(axis);
      count_along(axis, r);
      ids.push_back(id_of(r));
    }
    Substitution places{{step_, simplify_index(at_step)}};
    for (const auto* list : {&threads_, &elements_})
      for (const UOp& r : *list)
        if (const CoreAxis& axis = *axis_of(r); axis.along == side)
          places.emplace(r, simplify_index(mod(idiv(at_side, index_const(axis.step)),
                                               index_const(axis.size))));
    return rewrite(substitute(factor, places), symbolic_rules());
  }

  const TensorCore& core_;
  std::vector<UOp> threads_, elements_;
  UOp step_;
  std::vector<std::pair<CoreAxis, UOp>> own_;
  int64_t next_id_;
};

}  // namespace

UOp in_fragments(const UOp& ast) {
  if (!is_on_core(ast)) return ast;
  return transform_graph(ast, [&](const UOp&, const UOp& node) {
    if (!node.is(Op::Reduce) || node.as<ReduceArg>().core.empty()) return node;
    return Fragments(ast, tensor_core_named(node.as<ReduceArg>().core)).reduction(node);
  });
}

}  // namespace koine
