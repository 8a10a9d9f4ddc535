#include "koine/lower/fragments.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/tensor_core.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/wmma.hpp"

namespace koine {
namespace {

int64_t id_of(const UOp& range) { return range.as<RangeArg>().id; }

class Fragments {
 public:
  /// `next_id`: of a range, no other has it or a later one.
  Fragments(CoreSum sum, int64_t next_id)
      : sum_(std::move(sum)),
        core_(*sum_.core),
        threads_(sum_.ranges.threads),
        elements_(sum_.ranges.elements),
        next_id_(next_id) {}

  UOp reduction(const UOp& reduce) {
    std::vector<UOp> loops;
    for (const UOp& r : reduced_ranges(reduce))
      if (!(r == sum_.ranges.step)) loops.push_back(r);
    const auto& [a, b, counts] = sum_.factors;
    WmmaArg arg{std::string(core_.name)};
    // What does not count adds nothing, whatever the other factor is there.
    const UOp held_a = held(counted(a, core_.a.dtype, counts, -0.0), core_.a, 'm', arg.a),
              held_b = held(counted(b, core_.b.dtype, counts, 0.0), core_.b, 'n', arg.b);
    for (const UOp& r : elements_) arg.accumulator.push_back(id_of(r));
    const UOp nothing = constant_int(reduce.dtype(), 0), start = start_of(reduce);
    return reduce_ranges(
        Op::Add, UOp::make(Op::Wmma, {held_a, held_b, nothing}, arg), loops,
        start ? start : fold_start(Op::Add, reduce.dtype(), reduced_ranges(reduce)));
  }

 private:
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
    Substitution places{{sum_.ranges.step, simplify_index(at_step)}};
    for (const auto* list : {&threads_, &elements_})
      for (const UOp& r : *list)
        if (const CoreAxis& axis = *sum_.ranges.axis_of(core_, r); axis.along == side)
          places.emplace(r, simplify_index(mod(idiv(at_side, index_const(axis.step)),
                                               index_const(axis.size))));
    return rewrite(substitute(factor, places), symbolic_rules());
  }

  CoreSum sum_;
  const TensorCore& core_;
  const std::vector<UOp>&threads_, &elements_;
  std::vector<std::pair<CoreAxis, UOp>> own_;
  int64_t next_id_;
};

}  // namespace

UOp in_fragments(const UOp& ast) {
  if (!is_on_core(ast)) return ast;
  const std::vector<UOp> ranges = kernel_ranges(ast);
  return transform_graph(ast, [&](const UOp&, const UOp& node) {
    if (!node.is(Op::Reduce) || node.as<ReduceArg>().core.empty()) return node;
    auto sum = sum_on_core(node, ranges);
    KOINE_INVARIANT(sum, "a kernel on {} has other axes or factors", node.as<ReduceArg>().core);
    return Fragments(std::move(*sum), id_of(ranges.back()) + 1).reduction(node);
  });
}

}  // namespace koine
