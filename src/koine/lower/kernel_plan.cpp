#include "koine/lower/kernel_plan.hpp"

#include <absl/container/flat_hash_set.h>

#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"

namespace koine {
int64_t size_of(const UOp& range) {
  constexpr int64_t most_planned = int64_t{1} << 31;
  const Interval& bound = range.src(0).bounds();
  const bool planned = range.src(0).ranges().empty() && bound.high < most_planned;
  return planned ? static_cast<int64_t>(bound.high) : 0;
}
bool is_symbolic(const UOp& range) { return !range.src(0).is(Op::Const); }
bool divides(int64_t factor, const UOp& range) {
  return simplify_index(mod(range.src(0), index_const(factor))) == index_const(0);
}

std::optional<int64_t> stride(const UOp& address, const UOp& range) {
  if (!is_address(address) || address.src().size() != 2) return std::nullopt;
  int64_t coefficient = 0;
  UOp rest;
  if (!linear_coefficient(address.src(1), range, coefficient, rest)) return std::nullopt;
  return coefficient;
}

Accesses survey(const UOp& ast) {
  Accesses out;
  out.fills = row_fills(ast);
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Load) || u.is(Op::Store))
      (accessed_buffer(u).is(Op::Buffer) ? out.in_rows
       : u.is(Op::Load)                  ? out.loads
                                         : out.stores)
          .push_back(u.src(0));
    if (u.is(Op::Reduce)) out.reduces.push_back(u);
  }
  return out;
}

bool Plan::try_all(const std::vector<Opt>& opts) {
  UOp edited = ast_;
  for (const Opt& opt : opts) {
    edited = apply_if_legal(edited, opt, target_);
    if (!edited) return false;
  }
  ast_ = std::move(edited);
  opts_.insert(opts_.end(), opts.begin(), opts.end());
  return true;
}

int64_t widest_item(const UOp& ast) {
  int64_t bytes = 1;
  for (const UOp& u : toposort(ast)) {
    if (u.dtype() == DType::Void || u.dtype() == DType::Index || u.dtype() == DType::Bool) continue;
    if (u.is(Op::Param) || u.is(Op::Const)) continue;
    bytes = std::max(bytes, is_small_float(u.dtype()) ? 4 : item_size(u.dtype()));
  }
  return std::min<int64_t>(bytes, 8);
}

UOp lane_axis(const Accesses& accesses, const std::vector<UOp>& axes,
              const std::function<bool(const UOp&)>& allowed) {
  UOp best;
  int best_score = 1;
  for (const UOp& axis : axes) {
    if (!allowed(axis) || size_of(axis) < 2) continue;
    int score = 0;
    for (const UOp& address : accesses.loads)
      if (const auto s = stride(address, axis)) score += *s == 1 ? 2 : *s == 0 ? 0 : -1;
    for (const UOp& address : accesses.stores)
      if (const auto s = stride(address, axis)) score += *s == 1 ? 3 : *s == 0 ? 0 : -1;
    if (score >= best_score) {
      best_score = score;
      best = axis;
    }
  }
  return best;
}

namespace {

// How many loop nests stand inside of each other, with effects of their own around the inner one;
// 0: some stand side by side.
int nests_inside(const UOp& ast) {
  int nests = 0;
  for (UOp scope = ast; scope;) {
    const bool lists = scope.is(Op::Sink) || scope.is(Op::Group);
    UOp inner;
    for (const UOp& effect : lists ? scope.src() : std::span<const UOp>(&scope, 1)) {
      if (!effect.is(Op::End) && !effect.is(Op::Group)) continue;
      if (inner) return 0;
      inner = effect;
    }
    if (inner && inner.is(Op::End)) {
      ++nests;
      inner = UOp(inner.src(0));
    }
    scope = inner;
  }
  return nests;
}

// Whether one memory is stored into at two depths.
bool stores_at_two_depths(const std::vector<UOp>& stores) {
  for (const UOp& a : stores)
    for (const UOp& b : stores)
      if (buffer_at(a) == buffer_at(b) && a.ranges().size() != b.ranges().size()) return true;
  return false;
}

}  // namespace

bool keeps_its_order(const UOp& ast, const Accesses& accesses) {
  for (const UOp& load : accesses.loads)
    for (const UOp& st : accesses.stores)
      if (buffer_at(load) == buffer_at(st) && !(load == st)) return true;
  const NodeList order = toposort(ast);
  absl::flat_hash_set<const Node*> filled, stored;  // LOCAL buffers
  for (const UOp& fill : accesses.fills) filled.insert(fill.src(0).node());
  int nests = 0;
  for (const UOp& u : order) {
    if (u.is(Op::Barrier)) return true;
    if (u.is(Mark::InOrder)) return true;
    if (u.is(Op::End) && !filled.contains(u.src(0).node())) ++nests;
    // What goes on changing is no row.
    if (u.is(Op::Store) && accessed_buffer(u).is(Op::Buffer) &&
        (!filled.contains(u.node()) || !stored.insert(accessed_buffer(u).node()).second))
      return true;
  }
  return nests > 1 && (nests != nests_inside(ast) || stores_at_two_depths(accesses.stores));
}

void side_by_side(Plan& plan, int position, int64_t factor, AxisType type) {
  if (factor < 2) return;
  std::vector<Opt> edits{{OptOp::Split, position, factor, type, false}};
  if (!divides(factor, plan.axes()[static_cast<size_t>(position)]))
    edits.insert(edits.begin(), {OptOp::Padto, position, factor});
  plan.try_all(edits);  // unless indices of the values might leave 64 bits
}

namespace {

UOp skip_casts(UOp u) {
  while (u.is(Op::Cast)) u = u.src(0);
  return u;
}

// A value down to its loads: what their addresses are read from, such as which row, says nothing of
// how the rows lie.
NodeList down_to_loads(const UOp& value) {
  return toposort(value, [](const UOp& u) { return !is_address(u); });
}

}  // namespace

bool runs_along(const UOp& value, const UOp& axis) {
  for (const UOp& u : down_to_loads(value))
    if (u.is(Op::Load) && stride(u.src(0), axis) == 1) return true;
  return false;
}

namespace {

// The columns that loads of y run along, and stores where there is a choice; without any, the
// reduction axis that both x and y run along. Columns too few for lanes are none where there is
// one.
Contraction contraction_of(const UOp& x, const UOp& y, const Accesses& a, const Plan& plan) {
  Contraction out;
  const std::vector<UOp> axes = plan.axes();
  for (const UOp& axis : axes)
    if (type_of(axis) == AxisType::Reduce && runs_along(x, axis) && runs_along(y, axis) &&
        !plan.target().strict && may_fold_lanes(plan.ast(), axis))
      out.folded = axis;
  constexpr int64_t some_lanes = 4, some_rows = 8;
  const bool folds = out.folded && size_of(out.folded) >= some_lanes;
  for (const UOp& axis : axes) {
    if (type_of(axis) != AxisType::Loop || size_of(axis) < 2) continue;
    // The last axis with rows enough for a tile, or with the most.
    if (depends_on(x, axis) && !depends_on(y, axis) &&
        (!out.rows || size_of(axis) >= std::min(some_rows, size_of(out.rows))))
      out.rows = axis;
    if (depends_on(x, axis) || !depends_on(y, axis)) continue;
    const bool enough = size_of(axis) >= some_lanes;
    int score = enough ? 1 : 0;
    if (enough || !folds) {
      if (runs_along(y, axis)) score += 4;
      for (const UOp& st : a.stores)
        if (stride(st, axis) == 1) score += 2;
    }
    if (score < out.score) continue;
    out.score = score;
    out.columns = axis;
  }
  if (!out.has_lanes()) return out;
  out.folded = {};
  for (const UOp& u : down_to_loads(y))
    for (const UOp& axis : axes)
      if (u.is(Op::Load) && type_of(axis) == AxisType::Reduce)
        out.pitch = std::max(out.pitch, stride(u.src(0), axis).value_or(1));
  return out;
}

}  // namespace

std::vector<Contraction> contractions_of(const Plan& plan, const Accesses& a) {
  if (a.reduces.size() != 1 || !a.fills.empty()) return {};
  const UOp& r = a.reduces[0];
  if (r.as<ReduceArg>().op != Op::Add || !is_float(r.dtype())) return {};
  UOp body = skip_casts(r.src(0));
  if (body.is(Op::Where) && body.src(2).is(Op::Const)) body = skip_casts(body.src(1));
  if (!body.is(Op::Mul)) return {};
  std::vector<Contraction> out;
  for (const size_t side : {0, 1}) {
    Contraction c = contraction_of(body.src(side), body.src(1 - side), a, plan);
    if (c.rows && c.columns && (c.has_lanes() || c.folded)) out.push_back(std::move(c));
  }
  return out;
}

std::optional<Contraction> most_run_along(const std::vector<Contraction>& contractions) {
  const auto most = std::ranges::max_element(contractions, {}, &Contraction::score);
  return most == contractions.end() ? std::nullopt : std::optional(*most);
}

int64_t divisor(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

}  // namespace koine
