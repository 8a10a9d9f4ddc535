#include "koine/ir/symbolic.hpp"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <numeric>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

using Factors = absl::InlinedVector<UOp, 2>;
struct Term {
  int64_t coefficient;
  Factors factors;  // sorted by atom_less; empty: the constant term
};
// Sorted by compare_factors, no zero coefficients. Few and short: they live on the stack.
using Polynomial = absl::InlinedVector<Term, 4>;

// Deterministic order of atoms: Ranges by axis id first, the number of a lane after the loops
// around it, then everything else by content.
bool atom_less(const UOp& a, const UOp& b) {
  if (a == b) return false;
  const bool x = a.is(Op::Range), y = b.is(Op::Range);
  if (x != y) return x;
  if (x) {
    const RangeArg &p = a.as<RangeArg>(), &q = b.as<RangeArg>();
    const bool s = p.type == AxisType::Lane, t = q.type == AxisType::Lane;
    if (s != t) return t;
    if (p.id != q.id) return p.id < q.id;
  }
  return a.hash() != b.hash() ? a.hash() < b.hash() : a.id() < b.id();
}

int compare_factors(const Factors& a, const Factors& b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.empty()) - static_cast<int>(b.empty());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    return atom_less(a[i], b[i]) ? -1 : 1;
  }
  return static_cast<int>(a.size()) - static_cast<int>(b.size());
}

int64_t checked_add(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_add_overflow(a, b, &out))
    raise(ErrorKind::Value, "index arithmetic: {} + {} leaves 64 bits: the shapes are too large", a,
          b);
  return out;
}
int64_t checked_mul(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out))
    raise(ErrorKind::Value, "index arithmetic: {} * {} leaves 64 bits: the shapes are too large", a,
          b);
  return out;
}

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

void normalise(Polynomial& p) {
  if (p.size() < 2) {
    if (!p.empty() && p[0].coefficient == 0) p.clear();
    return;
  }
  std::sort(p.begin(), p.end(),
            [](const Term& a, const Term& b) { return compare_factors(a.factors, b.factors) < 0; });
  Polynomial merged;
  for (Term& term : p) {
    if (!merged.empty() && compare_factors(merged.back().factors, term.factors) == 0)
      merged.back().coefficient = checked_add(merged.back().coefficient, term.coefficient);
    else
      merged.push_back(std::move(term));
    if (merged.back().coefficient == 0) merged.pop_back();
  }
  p = std::move(merged);
}

constexpr size_t most_terms = 64;  // larger products stay factored

Polynomial to_polynomial(const UOp& u);

Polynomial multiply(const Polynomial& a, const Polynomial& b) {
  Polynomial out;
  for (const Term& x : a)
    for (const Term& y : b) {
      Term term{checked_mul(x.coefficient, y.coefficient), x.factors};
      term.factors.insert(term.factors.end(), y.factors.begin(), y.factors.end());
      std::sort(term.factors.begin(), term.factors.end(), atom_less);
      out.push_back(std::move(term));
    }
  normalise(out);
  return out;
}

Polynomial sum(Polynomial a, const Polynomial& b) {
  a.insert(a.end(), b.begin(), b.end());
  normalise(a);
  return a;
}

// Sums and products of normal-form sources; walks Add chains with a loop.
Polynomial to_polynomial(const UOp& u) {
  Polynomial out;
  absl::InlinedVector<const UOp*, 8> pending{&u}, factors;
  while (!pending.empty()) {
    const UOp& node = *pending.back();
    pending.pop_back();
    if (node.is(Op::Add)) {
      pending.push_back(&node.src(1));
      pending.push_back(&node.src(0));
    } else if (node.is(Op::Const) && !is_invalid(node)) {
      if (const int64_t value = const_int(node); value != 0) out.push_back({value, {}});
    } else if (node.is(Op::Mul)) {
      // A normal-form product is ((atom * atom) * constant): peel it without recursion.
      Term term{1, {}};
      Polynomial sum;
      bool plain = true;
      factors.assign(1, &node);
      while (!factors.empty()) {
        const UOp& f = *factors.back();
        factors.pop_back();
        if (f.is(Op::Mul)) {
          factors.push_back(&f.src(1));
          factors.push_back(&f.src(0));
        } else if (f.is(Op::Const) && !is_invalid(f)) {
          term.coefficient = checked_mul(term.coefficient, const_int(f));
        } else if (f.is(Op::Add)) {
          Polynomial inner = to_polynomial(f);
          if ((plain ? 1 : sum.size()) * inner.size() > most_terms) {
            term.factors.push_back(f);
          } else {
            sum = plain ? std::move(inner) : multiply(sum, inner);
            plain = false;
          }
        } else {
          term.factors.push_back(f);
        }
      }
      if (term.coefficient == 0) continue;
      std::sort(term.factors.begin(), term.factors.end(), atom_less);
      if (plain) {
        out.push_back(std::move(term));
      } else {
        for (Term& t : multiply(sum, {term})) out.push_back(std::move(t));
      }
    } else {
      out.push_back({1, {node}});
    }
  }
  normalise(out);
  return out;
}

UOp from_term(const Term& term) {
  if (term.factors.empty()) return index_const(term.coefficient);
  UOp result = term.factors[0];
  for (size_t i = 1; i < term.factors.size(); ++i) result = mul(result, term.factors[i]);
  return term.coefficient == 1 ? result : mul(result, index_const(term.coefficient));
}

UOp from_polynomial(const Polynomial& p) {
  if (p.empty()) return index_const(0);
  UOp result = from_term(p[0]);
  for (size_t i = 1; i < p.size(); ++i) result = add(result, from_term(p[i]));
  return result;
}

// Whether a node already is what from_term or from_polynomial would make; without making it.
bool spells(const UOp& node, const Term& term) {
  UOp rest = node;
  if (term.factors.empty()) return is_const(rest, term.coefficient);
  if (term.coefficient != 1) {
    if (!rest.is(Op::Mul) || !is_const(rest.src(1), term.coefficient)) return false;
    rest = rest.src(0);
  }
  for (size_t i = term.factors.size(); i-- > 1;) {
    if (!rest.is(Op::Mul) || !(rest.src(1) == term.factors[i])) return false;
    rest = rest.src(0);
  }
  return rest == term.factors[0];
}
bool spells(const UOp& node, const Polynomial& p) {
  UOp rest = node;
  if (p.empty()) return is_const(rest, 0);
  for (size_t i = p.size(); i-- > 1;) {
    if (!rest.is(Op::Add) || !spells(rest.src(1), p[i])) return false;
    rest = rest.src(0);
  }
  return spells(rest, p[0]);
}

using Span = IndexSpan;

Span term_span(const Term& term) {
  Span s{1, 1};
  for (const UOp& factor : term.factors) {
    const Interval& b = factor.bounds();
    const __int128 c[] = {s.low * b.low, s.low * b.high, s.high * b.low, s.high * b.high};
    s = {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
    const __int128 limit = static_cast<__int128>(1) << 62;  // keep products far from overflow
    s.low = std::clamp(s.low, -limit, limit);
    s.high = std::clamp(s.high, -limit, limit);
  }
  const __int128 a = s.low * term.coefficient, b = s.high * term.coefficient;
  return {std::min(a, b), std::max(a, b)};
}

Span sum_of_spans(const Polynomial& p) {
  Span s{0, 0};
  for (const Term& term : p) {
    const Span t = term_span(term);
    s.low += t.low;
    s.high += t.high;
  }
  return s;
}

__int128 floor_div(__int128 a, int64_t b) {
  const __int128 q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

Polynomial scale_down(const Polynomial& p, int64_t divisor) {
  Polynomial out = p;
  for (Term& term : out) term.coefficient = floor_div(term.coefficient, divisor);
  return out;
}
Polynomial scale_up(const Polynomial& p, int64_t factor) {
  Polynomial out = p;
  for (Term& term : out) term.coefficient = checked_mul(term.coefficient, factor);
  return out;
}
// The n of a Range, or of something mod n, that goes from 0 to n - 1 for a symbolic n; null for
// others.
const UOp* symbolic_bound(const UOp& atom) {
  const bool is_mod = atom.is(Op::Mod);
  if (!is_mod && !atom.is(Op::Range)) return nullptr;
  const UOp& bound = atom.src(is_mod ? 1 : 0);
  return bound.is(Op::Const) || (is_mod && bound.bounds().low < 1) ? nullptr : &bound;
}

// The innermost atom with a symbolic bound among the factors; null when there is none.
UOp symbolic_range(const Polynomial& p) {
  UOp found;
  for (const Term& term : p)
    for (const UOp& factor : term.factors)
      if (symbolic_bound(factor) != nullptr && (!found || atom_less(found, factor))) found = factor;
  return found;
}

// Takes the atoms with symbolic bounds out of a sum, each at the end where the sum is largest (or
// smallest), so that i < n is known to be below n whatever n is. What is left has the extreme in
// its own interval.
Polynomial at_extreme(Polynomial p, bool largest) {
  while (const UOp range = symbolic_range(p)) {
    Polynomial slope, rest;
    for (const Term& term : p) {
      const auto at = std::find(term.factors.begin(), term.factors.end(), range);
      if (at == term.factors.end()) {
        rest.push_back(term);
        continue;
      }
      slope.push_back(term);
      slope.back().factors.erase(slope.back().factors.begin() + (at - term.factors.begin()));
    }
    const Span s = sum_of_spans(slope);
    if (s.low < 0 && s.high > 0) break;
    p = std::move(rest);
    if ((s.high > 0) != largest) continue;  // at 0
    const UOp last = simplify_index(sub(*symbolic_bound(range), index_const(1)));
    p = sum(std::move(p), multiply(slope, to_polynomial(last)));
  }
  return p;
}

Span span_of(const Polynomial& p) {
  const Span plain = sum_of_spans(p);
  if (!symbolic_range(p)) return plain;
  return {std::max(plain.low, sum_of_spans(at_extreme(p, false)).low),
          std::min(plain.high, sum_of_spans(at_extreme(p, true)).high)};
}

struct DivMod {
  Polynomial quotient, remainder;
};

// Splits p = c * quotient + remainder with the remainder proven in [0, c); the parts of p that
// cannot be split are returned in `stuck` as one floordiv and one mod node.
DivMod divide(const Polynomial& p, int64_t c) {
  Polynomial exact, rest;
  for (const Term& term : p) {
    // Whole multiples of c leave at once; of the constant only its whole part.
    if (term.factors.empty()) {
      const int64_t q = floor_div(term.coefficient, c), r = floor_mod(term.coefficient, c);
      if (q != 0) exact.push_back({q, {}});
      if (r != 0) rest.push_back({r, {}});
    } else {
      const int64_t q = term.coefficient / c, r = term.coefficient % c;
      if (q != 0) exact.push_back({q, term.factors});
      if (r != 0) rest.push_back({r, term.factors});
    }
  }
  normalise(exact);
  normalise(rest);
  const Span span = span_of(rest);
  if (const __int128 q = floor_div(span.low, c); q == floor_div(span.high, c)) {
    const auto whole = static_cast<int64_t>(q);
    if (whole != 0) {
      exact = sum(exact, {{whole, {}}});
      rest = sum(rest, {{checked_mul(-whole, c), {}}});
    }
    return {exact, rest};
  }
  // Large and small: coefficients that share g with c, and a small part proven in [0, g).
  // floor((gX + s) / (g c')) = floor(X / c'),  (gX + s) mod (g c') = g (X mod c') + s.
  std::vector<int64_t> gcds;
  for (const Term& term : rest)
    if (!term.factors.empty()) {
      const int64_t g = std::gcd(term.coefficient, c);
      if (g > 1 && std::find(gcds.begin(), gcds.end(), g) == gcds.end()) gcds.push_back(g);
    }
  std::sort(gcds.rbegin(), gcds.rend());
  for (const int64_t g : gcds) {
    Polynomial large, small;
    for (const Term& term : rest) {
      if (term.factors.empty()) {
        const int64_t r = floor_mod(term.coefficient, g);
        if (term.coefficient != r) large.push_back({term.coefficient - r, {}});
        if (r != 0) small.push_back({r, {}});
      } else {
        (term.coefficient % g == 0 ? large : small).push_back(term);
      }
    }
    const Span s = span_of(small);
    if (s.low < 0 || s.high >= g) continue;
    normalise(large);
    DivMod inner = divide(scale_down(large, g), c / g);
    return {sum(exact, inner.quotient), sum(scale_up(inner.remainder, g), small)};
  }
  // One atom that is itself a floordiv or mod.
  if (rest.size() == 1 && rest[0].coefficient == 1 && rest[0].factors.size() == 1) {
    const UOp& atom = rest[0].factors[0];
    const bool by_constant = (atom.is(Op::Idiv) || atom.is(Op::Mod)) && atom.src(1).is(Op::Const);
    const int64_t k = by_constant ? const_int(atom.src(1)) : 0;
    int64_t both = 0;
    if (k > 0 && atom.is(Op::Idiv) && !__builtin_mul_overflow(k, c, &both)) {
      // (a // k) // c = a // (k c)
      const UOp divided = simplify_index_node(idiv(atom.src(0), index_const(both)));
      const UOp remainder = UOp::make(Op::Mod, {atom, index_const(c)});
      return {sum(exact, to_polynomial(divided)), {{1, {remainder}}}};
    }
    if (k > 0 && atom.is(Op::Mod) && k % c == 0) {
      // (a mod k) mod c = a mod c;  (a mod k) // c stays
      const UOp remainder = simplify_index_node(mod(atom.src(0), index_const(c)));
      const UOp quotient = UOp::make(Op::Idiv, {atom, index_const(c)});
      return {sum(exact, {{1, {quotient}}}), to_polynomial(remainder)};
    }
  }
  const UOp stuck = from_polynomial(rest);
  const UOp divisor = index_const(c);
  return {sum(exact, {{1, {UOp::make(Op::Idiv, {stuck, divisor})}}}),
          {{1, {UOp::make(Op::Mod, {stuck, divisor})}}}};
}

// The factors of a product without those of another; false where one is missing.
bool without_factors(Factors& product, const Factors& divisor) {
  for (const UOp& f : divisor) {
    const auto at = std::find(product.begin(), product.end(), f);
    if (at == product.end()) return false;
    product.erase(at);
  }
  return true;
}

// p = b * quotient + remainder for a symbolic b, with the remainder proven in [0, b), so that b is
// not 0: long division by the term of b with the most factors. False where nothing is proven.
bool divide(const Polynomial& p, const Polynomial& b, DivMod& out) {
  const auto most = std::max_element(b.begin(), b.end(), [](const Term& x, const Term& y) {
    return x.factors.size() < y.factors.size();
  });
  const Term lead = *most;
  out = {{}, p};
  auto proven = [&] {
    const Polynomial room = sum(b, scale_up(out.remainder, -1));
    return span_of(out.remainder).low >= 0 && span_of(room).low >= 1;
  };
  for (size_t step = 0; !proven(); ++step) {
    Term q{0, {}};
    for (const Term& term : out.remainder) {
      q = {term.coefficient / lead.coefficient, term.factors};
      if (q.coefficient != 0 && without_factors(q.factors, lead.factors)) break;
      q.coefficient = 0;
    }
    if (q.coefficient == 0 || step == most_terms) return false;  // steps may go in a circle
    out.remainder = sum(std::move(out.remainder), scale_up(multiply(b, {q}), -1));
    out.quotient = sum(std::move(out.quotient), {q});
  }
  return true;
}

bool is_by_constant(const UOp& atom, Op op) {
  return atom.is(op) && atom.src(1).is(Op::Const) && const_int(atom.src(1)) > 0;
}

// Exchanges term i of p and the terms of `wanted` for `replacement`; false where one is missing.
bool exchange(Polynomial& p, size_t i, const Polynomial& wanted, const Polynomial& replacement) {
  Polynomial rest = p;
  rest[i].coefficient = 0;
  for (const Term& w : wanted) {
    const auto found = std::find_if(rest.begin(), rest.end(), [&](const Term& t) {
      return t.coefficient == w.coefficient && compare_factors(t.factors, w.factors) == 0;
    });
    if (found == rest.end()) return false;
    found->coefficient = 0;
  }
  if (wanted.empty()) return false;
  rest.erase(
      std::remove_if(rest.begin(), rest.end(), [](const Term& t) { return t.coefficient == 0; }),
      rest.end());
  p = sum(rest, replacement);
  return true;
}

// k (a mod c) + k c (a // c) = k a, for a term that is the remainder;
// k a - k c (a // c) = k (a mod c), for a term that is the quotient.
bool recombine(Polynomial& p, size_t i, size_t f) {
  const UOp atom = p[i].factors[f];
  const bool remainder = is_by_constant(atom, Op::Mod), quotient = is_by_constant(atom, Op::Idiv);
  if (!remainder && !quotient) return false;
  const int64_t c = const_int(atom.src(1)), k = p[i].coefficient;
  Factors others = p[i].factors;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(f));
  const auto times = [&](const UOp& value, int64_t by) {
    return multiply(to_polynomial(value), {{by, others}});
  };
  // Each in normal form, which may be several terms.
  if (remainder)
    return exchange(
        p, i, times(simplify_index_node(idiv(atom.src(0), index_const(c))), checked_mul(k, c)),
        times(atom.src(0), k));
  if (k % c != 0) return false;
  return exchange(p, i, times(atom.src(0), -(k / c)),
                  times(simplify_index_node(mod(atom.src(0), index_const(c))), -(k / c)));
}

// The same with a - a mod c for each c (a // c): how far a sum is from a multiple of c.
Polynomial without_quotients(const Polynomial& p) {
  Polynomial out;
  for (const Term& term : p) {
    const UOp quotient = term.factors.size() == 1 ? term.factors[0] : UOp();
    if (quotient && is_by_constant(quotient, Op::Idiv) &&
        term.coefficient % const_int(quotient.src(1)) == 0) {
      const int64_t k = term.coefficient / const_int(quotient.src(1));
      const UOp rest = simplify_index_node(mod(quotient.src(0), quotient.src(1)));
      out = sum(std::move(out), scale_up(to_polynomial(quotient.src(0)), k));
      out = sum(std::move(out), scale_up(to_polynomial(rest), -k));
    } else {
      out = sum(std::move(out), {term});
    }
  }
  return out;
}

void recombine(Polynomial& p) {
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; !again && i < p.size(); ++i)
      for (size_t f = 0; !again && f < p[i].factors.size(); ++f) again = recombine(p, i, f);
  }
}

}  // namespace

namespace {

// An atom that stands in a sum as it is: no product, no constant, no mod that a quotient may join.
bool is_plain_atom(const UOp& u) {
  return !u.is(Op::Add) && !u.is(Op::Mul) && !u.is(Op::Const) && !u.is(Op::Mod);
}
// The one atom of `atom` or `atom * constant`; null for every other term.
const UOp* atom_of(const UOp& term) {
  if (is_plain_atom(term)) return &term;
  if (!term.is(Op::Mul) || !is_plain_atom(term.src(0)) || !term.src(1).is(Op::Const) ||
      is_invalid(term.src(1)))
    return nullptr;
  const int64_t coefficient = const_int(term.src(1));
  const UOp& atom = term.src(0);
  const bool may_recombine =
      is_by_constant(atom, Op::Idiv) && coefficient % const_int(atom.src(1)) == 0;
  return coefficient == 0 || coefficient == 1 || may_recombine ? nullptr : &atom;
}
// Most sums that are asked about are in normal form already, and this plain: terms of one atom
// each, in order, and a constant last.
bool is_plain_sum(const UOp& node) {
  const UOp* sum = &node;
  if (sum->is(Op::Add) && sum->src(1).is(Op::Const)) {
    if (is_invalid(sum->src(1)) || const_int(sum->src(1)) == 0) return false;
    sum = &sum->src(0);
  }
  const UOp* later = nullptr;
  while (true) {
    const UOp* atom = atom_of(sum->is(Op::Add) ? sum->src(1) : *sum);
    if (atom == nullptr || (later != nullptr && !atom_less(*atom, *later))) return false;
    if (!sum->is(Op::Add)) return true;
    later = atom;
    sum = &sum->src(0);
  }
}

UOp normal_form(const UOp& node) {
  switch (node.op()) {
    case Op::Add:
    case Op::Mul: {
      if (is_plain_sum(node)) return node;
      if (is_invalid(node.src(0)) || is_invalid(node.src(1))) return node;
      Polynomial p = to_polynomial(node);
      recombine(p);
      return spells(node, p) ? node : from_polynomial(p);
    }
    case Op::Idiv:
    case Op::Mod: {
      if (is_invalid(node.src(0)) || is_invalid(node.src(1))) return node;
      const UOp &a = node.src(0), &b = node.src(1);
      if (b.is(Op::Const)) {
        const int64_t c = const_int(b);
        if (c == 0) return index_const(0);
        if (c > 0) {
          DivMod r = divide(to_polynomial(a), c);
          Polynomial& wanted = node.is(Op::Idiv) ? r.quotient : r.remainder;
          recombine(wanted);
          return from_polynomial(wanted);
        }
        if (a.is(Op::Const))
          return index_const(node.is(Op::Idiv) ? floor_div(const_int(a), c)
                                               : floor_mod(const_int(a), c));
        return node;
      }
      if (a == b && (b.bounds().low > 0 || b.bounds().high < 0))
        return index_const(node.is(Op::Idiv) ? 1 : 0);
      if (a.bounds().low >= 0 && b.bounds().low > a.bounds().high)
        return node.is(Op::Idiv) ? index_const(0) : a;
      DivMod r;
      if (!divide(to_polynomial(a), to_polynomial(b), r)) return node;
      return from_polynomial(node.is(Op::Idiv) ? r.quotient : r.remainder);
    }
    case Op::Max: {
      const UOp &a = node.src(0), &b = node.src(1);
      if (a == b || is_invalid(a) || is_invalid(b)) return a == b ? a : node;
      const Span difference = span_of(sum(to_polynomial(a), scale_up(to_polynomial(b), -1)));
      if (difference.low >= 0) return a;
      if (difference.high <= 0) return b;
      return node;
    }
    default:
      return node;
  }
}

// Marks of nodes that are in normal form themselves, and with all that is below them.
const uint32_t node_is_normal = fresh_normal_bit(), all_is_normal = fresh_normal_bit();
}  // namespace

UOp simplify_index_node(const UOp& node) {
  if (node.dtype() != DType::Index || !node.is_scalar()) return node;
  if (is_normal(node.node(), node_is_normal)) return node;
  UOp out = normal_form(node);
  if (out == node) mark_normal(node.node(), node_is_normal);
  return out;
}

UOp simplify_index(const UOp& expression) {
  return transform_graph(
      expression,
      [](const UOp& node, const UOp& rebuilt) {
        UOp out = simplify_index_node(rebuilt);
        if (out == node) mark_normal(node.node(), all_is_normal);
        return out;
      },
      all_is_normal);
}

IndexSpan index_span(const UOp& expression) {
  const Interval& b = expression.bounds();
  const auto& ranges = expression.ranges();
  const OpMask ops = expression.node()->ops_below;
  const bool symbolic =
      (ops & mask_of(Op::Param)) != 0 && (ops & (mask_of(Op::Idiv) | mask_of(Op::Mod))) != 0;
  if (!symbolic && std::none_of(ranges.begin(), ranges.end(), [](const Node* r) {
        return symbolic_bound(UOp::share(r)) != nullptr;
      }))
    return {b.low, b.high};
  const Polynomial p = to_polynomial(expression);
  const Span s = span_of(p), t = span_of(without_quotients(p));
  return {std::max<__int128>({s.low, t.low, b.low}), std::min<__int128>({s.high, t.high, b.high})};
}

UOp product(const UOp& shape) {
  int64_t concrete = 1;
  UOp symbolic;
  for (const UOp& dim : shape.src()) {
    if (dim.is(Op::Const))
      concrete = checked_mul(concrete, const_int(dim));
    else
      symbolic = symbolic ? simplify_index(mul(symbolic, dim)) : simplify_index(dim);
  }
  const UOp factor = index_const(concrete);
  return symbolic ? simplify_index(mul(symbolic, factor)) : factor;
}

bool linear_coefficient(const UOp& expression, const UOp& atom, int64_t& coefficient, UOp& rest) {
  Polynomial p = to_polynomial(expression), others;
  coefficient = 0;
  for (Term& term : p) {
    if (term.factors.size() == 1 && term.factors[0] == atom) {
      coefficient = term.coefficient;
      continue;
    }
    for (const UOp& factor : term.factors)
      for (const Node* r : factor.ranges())
        if (r == atom.node()) return false;
    others.push_back(std::move(term));
  }
  rest = from_polynomial(others);
  return true;
}

UOp equal_to(const UOp& condition, const UOp& range) {
  const bool negation = condition.is(Op::CmpNe) && condition.src(0).dtype() == DType::Bool &&
                        is_const(condition.src(1), 1);
  if (!negation) return {};
  const UOp& unequal = condition.src(0);
  if (!unequal.is(Op::CmpNe) || unequal.src(0).dtype() != DType::Index) return {};
  int64_t coefficient = 0;
  UOp rest;
  const UOp difference = simplify_index(sub(unequal.src(0), unequal.src(1)));
  if (!linear_coefficient(difference, range, coefficient, rest)) return {};
  if (coefficient == 1) return simplify_index(neg(rest));
  return coefficient == -1 ? rest : UOp();
}

}  // namespace koine
