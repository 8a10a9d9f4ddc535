#include "koine/lower/scattered.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/lower/index.hpp"
#include "koine/lower/scatter.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Whether two integers that are equal choose the elements of a value. Looks at its top alone.
class PickedByEquality {
 public:
  bool operator()(const UOp& value) {
    if (left_-- == 0) return false;
    if (value.dtype() == DType::Bool) return tests_equality(value);
    if (value.is(Op::Where))
      return tests_equality(value.src(0)) || (*this)(value.src(1)) || (*this)(value.src(2));
    return passes(value) && (*this)(value.src(0));
  }

 private:
  static bool passes(const UOp& u) {
    return u.is(Op::Cast) || (is_movement(u.op()) && !u.is(Op::Stack));
  }
  bool tests_equality(const UOp& condition) {
    if (left_-- == 0) return false;
    if (passes(condition) && condition.src(0).dtype() == DType::Bool)
      return tests_equality(condition.src(0));
    if (condition.is(Op::CmpNe) && condition.src(0).dtype() != DType::Bool)
      return !is_float(condition.src(0).dtype());
    if (!is_elementwise(condition.op()) || condition.is(Op::CmpLt)) return false;
    return std::any_of(condition.src().begin(), condition.src().end(),
                       [&](const UOp& s) { return s.dtype() == DType::Bool && tests_equality(s); });
  }

  int left_ = 64;
};

}  // namespace

bool is_scattered(const ValueFacts& facts, const UOp& reduce, const Use& use, int64_t first_range) {
  if (use.loops.empty() || !PickedByEquality()(reduce.src(0))) return false;
  Leaves leaves([&](const UOp& n) {
    return !(n == reduce) && !is_elementwise(n.op()) && !is_movement(n.op()) &&
           facts.reads_memory(n);
  });
  const UOp value = Indexer(leaves, facts.strict(), first_range).element(reduce, use.at);
  return find_scatter(rewrite(value, kernel_rules(facts.strict())), use.loops).has_value();
}

}  // namespace koine
