#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

using Wide = __int128;  // bounds, and what differs from a limit of 64 bits

Wide ceil_div(Wide a, Wide b) { return a / b + (a % b != 0 && (a > 0) == (b > 0) ? 1 : 0); }
int64_t narrow(Wide v) { return static_cast<int64_t>(v); }

// Splits a normal-form sum into its constant and the rest, with the common divisor of the rest.
struct Split {
  std::vector<UOp> terms;
  int64_t constant = 0;
  int64_t divisor = 0;
};

int64_t coefficient_of(const UOp& term) {
  return term.is(Op::Mul) && term.src(1).is(Op::Const) ? const_int(term.src(1)) : 1;
}

Split split_sum(UOp sum) {
  Split out;
  auto take = [&](const UOp& term) {
    if (term.is(Op::Const)) {
      out.constant += const_int(term);
    } else {
      out.terms.push_back(term);
      out.divisor = std::gcd(out.divisor, coefficient_of(term));
    }
  };
  while (sum.is(Op::Add)) {
    take(sum.src(1));
    sum = sum.src(0);
  }
  take(sum);
  return out;
}

UOp scaled_sum(const Split& s, int64_t divisor) {
  UOp out;
  for (size_t i = s.terms.size(); i-- > 0;) {
    const UOp& term = s.terms[i];
    UOp scaled = term;
    if (divisor != 1)
      scaled =
          simplify_index(mul(term.is(Op::Mul) && term.src(1).is(Op::Const) ? term.src(0) : term,
                             index_const(coefficient_of(term) / divisor)));
    out = out ? add(out, scaled) : scaled;
  }
  return simplify_index(out);
}

// Drops the terms that cannot decide sum < limit: what is no multiple of some coefficient, where
// all that it can be leaves the multiple below the same bound. The limit becomes one of the rest.
void drop_undecisive(Split& s, Wide& limit) {
  std::vector<int64_t> coefficients;
  for (const UOp& term : s.terms) coefficients.push_back(std::abs(coefficient_of(term)));
  std::sort(coefficients.rbegin(), coefficients.rend());
  for (const int64_t c : coefficients) {
    if (c == s.divisor) return;
    Split multiple{{}, 0, 0}, rest{{}, 0, 0};
    for (const UOp& term : s.terms) {
      Split& part = coefficient_of(term) % c == 0 ? multiple : rest;
      part.terms.push_back(term);
      part.divisor = std::gcd(part.divisor, coefficient_of(term));
    }
    const Interval bounds = scaled_sum(rest, 1).bounds();
    const Wide below = ceil_div(limit - bounds.low, c) * c;
    if (below != ceil_div(limit - bounds.high, c) * c) continue;
    s = std::move(multiple);
    limit = below;
    return;
  }
}

// a < b  ->  sum < constant, divided by the common divisor.
UOp normal_less(const Match& m) {
  const UOp &a = m[0], &b = m[1];
  if (a.dtype() != DType::Index || !a.is_scalar() || !b.is_scalar() || is_invalid(a) ||
      is_invalid(b))
    return {};
  const UOp difference = simplify_index(sub(a, b));
  if (difference.is(Op::Const)) return constant_bool(const_int(difference) < 0);
  Split s = split_sum(difference);
  Wide wide = -static_cast<Wide>(s.constant);
  drop_undecisive(s, wide);
  const int64_t limit = narrow(ceil_div(wide, s.divisor));
  UOp left = scaled_sum(s, s.divisor);
  // x // c < k  is  x < k c
  int64_t product = 0;
  if (left.is(Op::Idiv) && left.src(1).is(Op::Const) && const_int(left.src(1)) > 0 &&
      !__builtin_mul_overflow(limit, const_int(left.src(1)), &product))
    return lt(left.src(0), index_const(product));
  // -x < k  is  not (x < 1 - k)
  if (s.terms.size() == 1 && left.is(Op::Mul) && is_const(left.src(1), -1))
    return logical_not(lt(left.src(0), index_const(1 - limit)));
  return lt(left, index_const(limit));
}

UOp normal_unequal(const Match& m) {
  const UOp &a = m[0], &b = m[1];
  if (a.dtype() != DType::Index || !a.is_scalar() || !b.is_scalar() || is_invalid(a) ||
      is_invalid(b))
    return {};
  const UOp difference = simplify_index(sub(a, b));
  if (difference.is(Op::Const)) return constant_bool(const_int(difference) != 0);
  const Split s = split_sum(difference);
  if (s.constant % s.divisor != 0) return constant_bool(true);
  int64_t divisor = s.divisor;
  // The first term has a positive coefficient, so that a != b and b != a are one node.
  if (coefficient_of(s.terms.back()) < 0) divisor = -divisor;
  const UOp left = scaled_sum(s, divisor);
  return ne(left, index_const(-s.constant / divisor));
}

}  // namespace

const RuleSet<>& index_rules() {
  static const auto& rules = *new const RuleSet<>{
      rule("index-normal-form",
           node(ops({Op::Add, Op::Mul, Op::Idiv, Op::Mod, Op::Max})).of(DTypeClass::Index),
           [](const Match& m) { return simplify_index_node(m.root()); }),
      rule("index-less", any(0) < any(1), normal_less),
      rule("index-unequal", any(0) != any(1), normal_unequal),
  };
  return rules;
}

}  // namespace koine
