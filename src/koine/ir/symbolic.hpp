#pragma once
#include "koine/ir/uop.hpp"

// Index arithmetic in normal form. An index expression is a polynomial with integer coefficients
// over atoms: Ranges, Variables, and floordiv, mod, max and other nodes that do not expand.
// Equal polynomials become the same node, so `==` on nodes decides most equalities of sizes.
// `index` integers are unbounded (amendment C35): none of this is used for wrapping dtypes.
namespace koine {

/// Normal form of an index expression and everything below it.
UOp simplify_index(const UOp& expression);
/// Normal form of one index node whose sources are in normal form. Returns the node itself when
/// nothing is gained.
UOp simplify_index_node(const UOp& node);

/// Smallest and largest value of an index expression in normal form, at least as tight as its
/// bounds: a Range with a symbolic bound n counts as 0 to n - 1, not to the largest n, and so does
/// what is taken mod n.
struct IndexSpan {
  __int128 low, high;
};
IndexSpan index_span(const UOp& expression);

/// Product of the sizes of a shape operand.
UOp product(const UOp& shape);

/// For a sum: coefficient of `atom` where it occurs linearly; false when it occurs otherwise.
bool linear_coefficient(const UOp& expression, const UOp& atom, int64_t& coefficient, UOp& rest);

/// For a condition `range == e` (Not of CmpNe on index scalars) with e free of the range: e. Null
/// for every other condition.
UOp equal_to(const UOp& condition, const UOp& range);

}  // namespace koine
