#include "koine/lower/heuristic.hpp"

#include <algorithm>
#include <optional>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/scan.hpp"

namespace koine {
namespace {

// 0: not planned for, because it is symbolic, or because nobody waits for so many steps; products
// of two sizes fit into 63 bits.
int64_t size_of(const UOp& range) {
  constexpr int64_t most_planned = int64_t{1} << 31;
  const UOp& bound = range.src(0);
  return bound.is(Op::Const) && const_int(bound) < most_planned ? const_int(bound) : 0;
}
AxisType type_of(const UOp& range) { return range.as<RangeArg>().type; }

// Elements that a step of `range` moves an access; nullopt where it is not linear.
std::optional<int64_t> stride(const UOp& address, const UOp& range) {
  if (!is_address(address) || address.src().size() != 2) return std::nullopt;
  int64_t coefficient = 0;
  UOp rest;
  if (!linear_coefficient(address.src(1), range, coefficient, rest)) return std::nullopt;
  return coefficient;
}

struct Accesses {
  std::vector<UOp> loads, stores;  // addresses
  std::vector<UOp> reduces;
  double work = 0;  // scalar operations of the whole kernel, roughly
};

Accesses survey(const UOp& ast) {
  Accesses out;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Load)) out.loads.push_back(u.src(0));
    if (u.is(Op::Store)) out.stores.push_back(u.src(0));
    if (u.is(Op::Reduce)) out.reduces.push_back(u);
    if (is_elementwise(u.op()) || u.is(Op::Load) || u.is(Op::Store) || u.is(Op::Reduce)) {
      double times = 1;
      const UOp& inside = u.is(Op::Reduce) ? u.src(0) : u;
      for (const Node* r : inside.ranges())
        times *= static_cast<double>(std::max<int64_t>(size_of(UOp::share(r)), 1));
      if (u.dtype() != DType::Index) out.work += times;
    }
  }
  return out;
}

UOp skip_casts(UOp u) {
  while (u.is(Op::Cast)) u = u.src(0);
  return u;
}

// The axes of a kernel by position, kept up to date while opts are added.
class Plan {
 public:
  Plan(const UOp& ast, const Target& target) : original_(ast), ast_(ast), target_(target) {}

  std::vector<UOp> axes() const { return kernel_ranges(ast_); }
  int position(const UOp& range) const {
    const auto all = axes();
    return static_cast<int>(std::find(all.begin(), all.end(), range) - all.begin());
  }
  void add(const Opt& opt) {
    ast_ = apply_opt(ast_, opt);
    opts_.push_back(opt);
  }
  const UOp& ast() const { return ast_; }
  const Target& target() const { return target_; }
  Edited take() && { return {std::move(ast_), std::move(opts_)}; }
  const std::vector<Opt>& opts() const { return opts_; }
  void restart(const std::vector<Opt>& opts) {
    ast_ = original_;
    opts_.clear();
    for (const Opt& opt : opts) add(opt);
  }

 private:
  UOp original_;
  UOp ast_;
  const Target& target_;
  std::vector<Opt> opts_;
};

int64_t widest_item(const UOp& ast) {
  int64_t bytes = 1;
  for (const UOp& u : toposort(ast)) {
    if (u.dtype() == DType::Void || u.dtype() == DType::Index || u.dtype() == DType::Bool) continue;
    if (u.is(Op::Param) || u.is(Op::Const)) continue;
    bytes = std::max(bytes, is_small_float(u.dtype()) ? 4 : item_size(u.dtype()));
  }
  return std::min<int64_t>(bytes, 8);
}

// A matmul-like reduce: sum of a product of two loads, each with an output axis the other lacks.
struct Contraction {
  UOp rows, columns;  // output axes: A's own, and B's own with stride 1
};

std::optional<Contraction> find_contraction(const Accesses& a, const std::vector<UOp>& axes) {
  if (a.reduces.size() != 1) return std::nullopt;
  const UOp& r = a.reduces[0];
  if (r.as<ReduceArg>().op != Op::Add || !is_float(r.dtype())) return std::nullopt;
  UOp body = skip_casts(r.src(0));
  if (body.is(Op::Where) && body.src(2).is(Op::Const)) body = skip_casts(body.src(1));
  if (!body.is(Op::Mul)) return std::nullopt;
  std::optional<Contraction> best;
  for (int side = 0; side < 2; ++side) {
    const UOp &x = body.src(static_cast<size_t>(side)),
              &y = body.src(static_cast<size_t>(1 - side));
    UOp rows, columns;
    int64_t column_stride = 0;
    for (const UOp& axis : axes) {
      if (type_of(axis) != AxisType::Loop || size_of(axis) < 2) continue;
      if (depends_on(x, axis) && !depends_on(y, axis)) rows = axis;
      if (depends_on(y, axis) && !depends_on(x, axis)) {
        // Prefer a column axis that loads and stores run along.
        int64_t score = size_of(axis) >= 4 ? 1 : 0;
        for (const UOp& load : a.loads)
          if (depends_on(y, axis) && stride(load, axis) == 1) score += 4;
        for (const UOp& st : a.stores)
          if (stride(st, axis) == 1) score += 2;
        if (score >= column_stride) {
          column_stride = score;
          columns = axis;
        }
      }
    }
    if (rows && columns && column_stride >= 4) best = Contraction{rows, columns};
  }
  return best;
}

// Largest divisor of n that is at most `most`.
int64_t divisor(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

void register_tile(Plan& plan, const Contraction& c) {
  const int64_t lanes = plan.target().lanes(4);
  const int registers = plan.target().vector_registers;
  const int64_t m = size_of(c.rows), n = size_of(c.columns);
  // Accumulators + one row of B + one of A must fit; the best tile loads least for each FMA.
  int64_t best_rows = 1, best_vectors = 1;
  double best = 1e9;
  const bool whole = n % lanes == 0;
  for (int64_t vectors = 1; vectors <= 4; ++vectors) {
    if (whole ? n % (vectors * lanes) != 0 : vectors > 1) continue;
    for (int64_t rows = 1; rows <= 12; ++rows) {
      if (rows * vectors + vectors + 1 > registers) continue;
      const int64_t padded = (m + rows - 1) / rows * rows;
      if ((padded - m) * 32 > m) continue;  // at most 3 % of the rows are computed twice
      const double loads =
          static_cast<double>(rows + vectors) / static_cast<double>(rows * vectors);
      const double stalls = rows * vectors < 8 ? 8.0 / static_cast<double>(rows * vectors) - 1 : 0;
      if (loads + stalls < best) {
        best = loads + stalls;
        best_rows = rows;
        best_vectors = vectors;
      }
    }
  }
  int64_t width = best_vectors * lanes;
  bool pad = false;
  if (!whole) {
    width = n < lanes ? n : divisor(n, 2 * lanes);
    if (width < 4 && n > lanes) {
      width = lanes;
      pad = true;
    }
  }
  int rows_at = plan.position(c.rows), columns_at = plan.position(c.columns);
  if (columns_at < rows_at) {  // the lanes are the last axis
    plan.add({OptOp::Swap, columns_at, rows_at});
    std::swap(columns_at, rows_at);
  }
  // The later axis first: splitting it does not move the earlier one.
  if (pad) plan.add({OptOp::Padto, columns_at, width});
  plan.add({OptOp::Split, columns_at, width, AxisType::Upcast, false});
  if (m % best_rows != 0) plan.add({OptOp::Padto, rows_at, best_rows});
  if (best_rows > 1) plan.add({OptOp::Split, rows_at, best_rows, AxisType::Upcast, false});
}

// Blocks the reduction: KC rows of B stay in the second-level cache while all rows of A pass over
// them. The outer part of the reduction then stands outside of the output loops, with partial sums.
void block_reduction(Plan& plan, int64_t rows, int64_t columns) {
  constexpr int64_t block_elements = 1 << 16;  // 256 KiB of float32
  constexpr int64_t most_blocks = 128;
  const std::vector<UOp> axes = plan.axes();
  int at = -1;
  for (size_t i = 0; i < axes.size(); ++i)
    if (type_of(axes[i]) == AxisType::Reduce) {
      if (at >= 0) return;  // one reduction axis only
      at = static_cast<int>(i);
    }
  if (at < 0) return;
  const int64_t k = size_of(axes[static_cast<size_t>(at)]);
  // The partial sums are added one by one: few long blocks are more exact than many short ones.
  const int64_t least = std::max({int64_t{32}, std::min<int64_t>(k / 48, 400), k / most_blocks});
  const int64_t block = divisor(k, std::max(block_elements / columns, least));
  if (rows < 64 || k * columns <= 2 * block_elements || 3 * block < 2 * least || block == k) return;
  int first = 0;
  while (type_of(axes[static_cast<size_t>(first)]) == AxisType::Thread) ++first;
  const std::vector<Opt> before = plan.opts();
  plan.add({OptOp::Split, at, block, AxisType::Reduce, false});
  try {
    for (; at > first; --at) plan.add({OptOp::Swap, at, at - 1});
  } catch (const Error&) {  // the output cannot hold partial sums
    plan.restart(before);
  }
}

// Lanes along one axis: UPCAST of a loop, GROUP_REDUCE of a reduction.
void vector_lanes(Plan& plan, const UOp& axis, int64_t lanes, int64_t unrolled) {
  const bool reduces = type_of(axis) == AxisType::Reduce;
  const AxisType target = reduces ? AxisType::GroupReduce : AxisType::Upcast;
  const int64_t n = size_of(axis);
  if (n < 2) return;
  const int position = plan.position(axis);
  int64_t width = divisor(n, lanes * unrolled);
  while (width > lanes && width % lanes != 0) width = divisor(n, width - 1);
  if (width * 2 < lanes && n >= 2 * lanes) {
    width = lanes;
    plan.add({OptOp::Padto, position, width});
  }
  if (width > 1) plan.add({OptOp::Split, position, width, target, false});
}

// How many vectors of an elementwise body stand side by side. Four hide the latency of a short
// body; two are enough for the long ones, whose code takes longer to compile.
int64_t vectors_at_once(const UOp& ast) {
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Sin) || u.is(Op::Pow)) return 2;
  return 4;
}

// The axis that most accesses run along; null when there is none.
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

void lanes_everywhere(Plan& plan, const Accesses& accesses) {
  const int64_t lanes = plan.target().lanes(widest_item(plan.ast()));
  if (lanes < 2) return;
  const int64_t vectors = vectors_at_once(plan.ast());
  const std::vector<UOp> axes = plan.axes();
  const UOp loop = lane_axis(accesses, axes, [&](const UOp& a) {
    return type_of(a) == AxisType::Loop && !is_running_loop(plan.ast(), a);
  });
  // A loop that runs along memory inside the reduces serves them too.
  const bool reduces = !accesses.reduces.empty();
  bool loop_in_reduces = loop && reduces;
  for (const UOp& r : accesses.reduces)
    loop_in_reduces = loop_in_reduces && depends_on(r.src(0), loop);
  if (loop && (!reduces || loop_in_reduces)) {
    // Prefer a reduction axis when the inputs run along it and not along the loop.
    const UOp reduced =
        lane_axis(accesses, axes, [](const UOp& a) { return type_of(a) == AxisType::Reduce; });
    int along_loop = 0, along_reduce = 0;
    for (const UOp& address : accesses.loads) {
      along_loop += stride(address, loop) == 1;
      along_reduce += reduced && stride(address, reduced) == 1;
    }
    if (!reduced || along_loop >= along_reduce || plan.target().strict) {
      vector_lanes(plan, loop, lanes, vectors);
      return;
    }
  }
  if (loop && reduces && !loop_in_reduces) vector_lanes(plan, loop, lanes, 1);
  if (plan.target().strict) return;  // lanes would reorder the fold
  // One reduce axis each, found again after every edit by its place.
  for (size_t i = 0; i < plan.axes().size(); ++i) {
    const UOp axis = plan.axes()[i];
    if (type_of(axis) != AxisType::Reduce || size_of(axis) < lanes) continue;
    if (!may_fold_lanes(plan.ast(), axis)) continue;
    const Accesses now = survey(plan.ast());
    bool runs_along = false;
    for (const UOp& address : now.loads) runs_along |= stride(address, axis) == 1;
    if (!runs_along) continue;
    const size_t before = plan.axes().size();
    vector_lanes(plan, axis, lanes, loop && !loop_in_reduces ? 1 : vectors);
    i += plan.axes().size() - before;
  }
}

// The outermost loop is shared out in chunks that depend on the shape alone, never on the number
// of threads (amendment C32).
void threads(Plan& plan, double work) {
  constexpr double worth =
      1 << 17;  // operations; below it a second thread costs more than it gives
  constexpr int64_t most_chunks = 16;
  if (!plan.target().has_threads || work < worth) return;
  for (const UOp& axis : plan.axes()) {
    if (type_of(axis) != AxisType::Loop || size_of(axis) < 2) continue;
    if (is_running_loop(plan.ast(), axis)) continue;
    const int64_t chunks = divisor(size_of(axis), most_chunks);
    if (chunks < 2) continue;
    const int position = plan.position(axis);
    if (position != 0) {
      // Threads are outermost.
      plan.add({OptOp::Split, position, chunks, AxisType::Thread, true});
      for (int at = position; at > 0; --at) {
        if (type_of(plan.axes()[static_cast<size_t>(at - 1)]) == AxisType::Reduce) return;
        plan.add({OptOp::Swap, at, at - 1});
      }
    } else {
      plan.add({OptOp::Split, 0, chunks, AxisType::Thread, true});
    }
    return;
  }
}

// What runs in the written order only: loops after one another, a kernel that reads what it
// stores, and stores that may meet in one place, where the last one stays.
bool keeps_its_order(const UOp& ast, const Accesses& accesses) {
  for (const UOp& load : accesses.loads)
    for (const UOp& st : accesses.stores)
      if (buffer_at(load) == buffer_at(st)) return true;
  int nests = 0;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::End) && (u.tag() == runs_in_order || ++nests > 1)) return true;
  return false;
}

}  // namespace

Edited choose_opts(const UOp& ast, const Target& target) {
  Plan plan(ast, target);
  const Accesses accesses = survey(ast);
  if (keeps_its_order(ast, accesses)) return {ast, {}};
  if (const auto contraction = find_contraction(accesses, plan.axes())) {
    const int64_t rows = size_of(contraction->rows), columns = size_of(contraction->columns);
    register_tile(plan, *contraction);
    threads(plan, accesses.work);
    block_reduction(plan, rows, columns);
    return std::move(plan).take();
  }
  lanes_everywhere(plan, accesses);
  threads(plan, accesses.work);
  return std::move(plan).take();
}

}  // namespace koine
