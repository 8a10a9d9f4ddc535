#include "koine/interp/bounded.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "koine/base/options.hpp"
#include "koine/interp/call.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/selection.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

constexpr double unknown = undetermined;

bool is_function(Op op) { return stated_ulps(op, DType::Float32) > 0; }

// What is known of a node: `error` bounds how far its value may be off; `slack` how much further it
// may be inside of a sum that takes a product before its rounding. Empty: all 0.
struct Entry {
  Array value;
  std::vector<double> error, slack;
  bool exact() const { return error.empty() && slack.empty(); }
  double number(size_t i) const { return bits_to_double(value.dtype, value.data[i]); }
};

// One operand of an elementwise op at one element.
struct Operand {
  double v, error, slack;
  Bits bits;
  bool is_exact() const { return error == 0; }
  bool is_exact_nan() const { return error == 0 && std::isnan(v); }
};

struct Outcome {
  double error = 0, slack = 0;
};

// A rounded result v whose exact operands were off by t.
Outcome rounded(double v, double t, DType dtype) {
  if (t == 0) return {};
  const Precision p = precision_of(dtype);
  if (!std::isfinite(v) || !(std::abs(v) + t < p.largest)) return {unknown};
  return {t + 2 * p.unit() * (std::abs(v) + t) + p.tiny};
}

Outcome of_add(double v, const Operand& a, const Operand& b, DType dtype) {
  const double t = a.error + b.error + a.slack + b.slack;
  if (t == 0) return {};
  for (const Operand* o : {&a, &b})  // what is infinite or NaN stays so beside any finite number
    if (o->is_exact() && o->slack == 0 && !std::isfinite(o->v) && t < unknown) return {};
  return rounded(v, t, dtype);
}

// What rounding took from a product.
double residue(double v, const Operand& a, const Operand& b, DType dtype) {
  if (!may_contract(dtype) || !std::isfinite(a.v) || !std::isfinite(b.v)) return 0;
  if (!std::isfinite(v)) return unknown;
  const double exact = dtype == DType::Float64 ? std::fma(a.v, b.v, -v) : a.v * b.v - v;
  return std::abs(exact);
}

// What gets smaller than the smallest number is an error still: the sign of a zero.
constexpr double least_error = std::numeric_limits<double>::denorm_min();

double scaled_error(double error, double by) {
  return error == 0 ? 0 : std::max(error * std::abs(by), least_error);
}

double product_error(const Operand& a, const Operand& b) {
  return scaled_error(b.error, a.v) + scaled_error(a.error, b.v) +
         (a.error == 0 ? 0 : scaled_error(b.error, a.error));
}

Outcome of_mul(double v, const Operand& a, const Operand& b, DType dtype) {
  Outcome out;
  if (a.error + b.error > 0) {
    if (a.is_exact_nan() || b.is_exact_nan()) return {};
    out = rounded(v, product_error(a, b), dtype);
  }
  auto times = [](double x, double s) { return s == 0 ? 0 : std::abs(x) * s; };
  out.slack = residue(v, a, b, dtype) + times(a.v, b.slack) + times(b.v, a.slack);
  if (std::isnan(out.slack)) out.slack = unknown;
  return out;
}

Outcome of_mulacc(double v, const Operand& a, const Operand& b, const Operand& c, DType dtype) {
  const double product = a.v * b.v;
  double t = c.error + c.slack + product_error(a, b);
  if (may_contract(dtype)) {
    const double stored = dtype == DType::Float32 ? static_cast<float>(product) : product;
    t += residue(stored, a, b, dtype);
  } else if (t > 0) {
    t += 2 * precision_of(dtype).unit() * (std::abs(product) + t) + precision_of(dtype).tiny;
  }
  for (const Operand* o : {&a, &b, &c})
    if (o->is_exact_nan()) return {};
  if (c.is_exact() && c.slack == 0 && std::isinf(c.v) && std::isfinite(product) && t < unknown)
    return {};
  if (a.is_exact() && b.is_exact() && !(std::isfinite(a.v) && std::isfinite(b.v)) && t < unknown)
    return {};
  return rounded(v, t, dtype);
}

Outcome of_quotient(double v, const Operand& a, const Operand& b, DType dtype) {
  if (a.error + b.error == 0 || a.is_exact_nan() || b.is_exact_nan()) return {};
  const double low = std::abs(b.v) - b.error;
  if (!(low > 0) || !std::isfinite(b.v)) return {unknown};
  return rounded(v, std::max((a.error + std::abs(v) * b.error) / low, least_error), dtype);
}

// Exp2, Log2, Sin, Pow: off by what the operands are, and by what both executions may err.
Outcome of_function(const UOp& node, double v, std::span<const Operand> in, DType dtype) {
  const Op op = node.op();
  const double logarithm = std::log(exponential_base(node));
  const Operand& a = in[0];
  const bool power = op == Op::Pow;
  const double input = a.error + (power ? in[1].error : 0);
  if (input == unknown) return {unknown};
  if (input == 0 && std::isnan(v)) return {};
  double t = 0;
  if (input > 0) {
    if (a.is_exact_nan() && !power) return {};
    const double low = a.v - a.error, high = a.v + a.error;
    if (op == Op::Exp2)
      t = std::abs(v) * std::expm1(a.error * logarithm);
    else if (op == Op::Sin)
      t = std::min(a.error, 2.0);
    else if (!(low > 0))
      return {unknown};
    else if (op == Op::Log2)
      t = std::log(a.v / low) / logarithm;  // steepest below
    else
      for (const double base : {low, high})
        for (const double e : {in[1].v - in[1].error, in[1].v + in[1].error})
          t = std::max(t, std::abs(std::pow(base, e) - v));
  }
  const Precision p = precision_of(dtype);
  if (input == 0 && (v == 0 || std::isinf(v))) {
    // The very end of the range may be on the other side of it.
    const double exponent = a.v * logarithm / std::numbers::ln2;
    const bool far =
        op == Op::Exp2 ? !(exponent > std::log2(p.tiny) - 2 && exponent < std::log2(p.largest) + 1)
                       : !power || a.v == 0 || !std::isfinite(a.v) || !std::isfinite(in[1].v);
    return {far ? 0 : unknown};
  }
  if (!std::isfinite(v) || !(std::abs(v) + t < p.largest / 2)) return {unknown};
  const double ulps = may_contract(dtype) ? 2 * stated_ulps(op, dtype) : 1;
  return {t + 2 * ulps * (p.unit() * (std::abs(v) + t) + p.tiny)};
}

Outcome of_comparison(Op op, const Operand& a, const Operand& b) {
  if (a.error + b.error == 0 || a.is_exact_nan() || b.is_exact_nan()) return {};
  const double gap = std::abs(a.v - b.v) - a.error - b.error;
  return {gap > 0 || (op == Op::CmpLt && gap == 0 && a.v > b.v) ? 0 : unknown};
}

Outcome of_where(const Operand& p, const Operand& a, const Operand& b, DType dtype) {
  const Operand& chosen = (p.bits & 1) != 0 ? a : b;
  if (p.is_exact()) return {chosen.error, chosen.slack};
  if (a.bits == b.bits && a.error + b.error + a.slack + b.slack == 0) return {};
  if (!is_float(dtype) || !std::isfinite(a.v) || !std::isfinite(b.v)) return {unknown};
  return {std::abs(a.v - b.v) + std::max(a.error, b.error), std::max(a.slack, b.slack)};
}

Outcome of_cast(double v, const Operand& a, DType from, DType to) {
  const bool widens =
      is_float(to) && is_float(from) && item_size(to) > item_size(from) && !is_small_float(from);
  if (a.error == 0) return {0, widens ? a.slack : 0};
  if (a.error == unknown || !is_float(from)) return {unknown};
  if (is_float(to)) return widens ? Outcome{a.error, a.slack} : rounded(v, a.error, to);
  const double low = a.v - a.error, high = a.v + a.error;
  const bool same = std::trunc(low) == std::trunc(high);
  return {same && (to != DType::Bool || low > 0 || high < 0) ? 0 : unknown};
}

Outcome of_floats(const UOp& node, double v, std::span<const Operand> in, DType dtype) {
  const Operand& a = in[0];
  switch (node.op()) {
    case Op::Add:
      return of_add(v, a, in[1], dtype);
    case Op::Mul:
      return of_mul(v, a, in[1], dtype);
    case Op::Mulacc:
      return of_mulacc(v, a, in[1], in[2], dtype);
    case Op::Fdiv:
      return of_quotient(v, a, in[1], dtype);
    case Op::Recip:
      return of_quotient(v, {1, 0, 0, 0}, a, dtype);
    case Op::Max: {
      if (a.is_exact_nan() || in[1].is_exact_nan()) return {};
      if (a.error + in[1].error == 0) return {};
      const double gap = a.v - in[1].v, both = a.error + in[1].error;
      return {gap > both ? a.error : -gap > both ? in[1].error : std::max(a.error, in[1].error)};
    }
    case Op::Sqrt: {
      if (a.error == 0 || a.is_exact_nan()) return {};
      if (!(a.v - a.error >= 0)) return {unknown};
      return rounded(v, std::sqrt(a.v) - std::sqrt(a.v - a.error), dtype);  // steepest below
    }
    case Op::Trunc: {
      if (a.error == 0) return {};
      if (!std::isfinite(a.v)) return {unknown};
      const double low = std::trunc(a.v - a.error), high = std::trunc(a.v + a.error);
      return {high > low ? high - low : v == 0 ? precision_of(dtype).tiny : 0};
    }
    default:
      return is_function(node.op()) ? of_function(node, v, in, dtype) : Outcome{unknown};
  }
}

// Integers and bools are exact or unknown.
Outcome of_integers(Op op, std::span<const Operand> in, DType dtype) {
  bool exact = true;
  for (const Operand& o : in) exact = exact && o.is_exact();
  if (exact) return {};
  for (const Operand& o : in)  // one side may decide alone
    if (dtype == DType::Bool && o.is_exact() && in.size() == 2 &&
        (((op == Op::And || op == Op::Mul) && o.bits == 0) ||
         ((op == Op::Or || op == Op::Add || op == Op::Max) && o.bits == 1)))
      return {};
  return {unknown};
}

bool is_masked_product(const UOp& value) {
  auto below_movement = [](UOp u) {
    while (u.is(Op::Cast) || (is_movement(u.op()) && !u.is(Op::Stack))) {
      if (u.is(Op::Cast) && u.src(0).dtype() == DType::Bool) break;
      u = UOp(u.src(0));
    }
    return u;
  };
  const UOp product = below_movement(value);
  if (!product.is(Op::Mul)) return false;
  for (const UOp& side : product.src())
    if (const UOp s = below_movement(side); s.is(Op::Cast) && s.src(0).dtype() == DType::Bool)
      return true;
  return false;
}

class BoundedInterpreter {
 public:
  explicit BoundedInterpreter(const BoundedBindings& bindings) {
    for (const auto& [node, given] : bindings) {
      bindings_.emplace(node, given.value);
      entries_.emplace(node, Entry{given.value, given.error, given.slack});
      if (is_variable(node)) variables_.emplace(node, given.value);
    }
  }

  BoundedArray run(const UOp& root) {
    for (const UOp& u : toposort(root)) {
      if (u.dtype() == DType::Void || u.is(Op::Const) ||
          (u.is(Op::Stack) && u.dtype() == DType::Index))
        continue;
      if (entries_.contains(u)) continue;
      if (is_call_result(u)) {
        called(u);
        continue;
      }
      Entry e{interpret(u, bindings_), {}, {}};
      bound(u, e);
      drop_zeros(e.error);
      drop_zeros(e.slack);
      bindings_.emplace(u, e.value);
      entries_.emplace(u, std::move(e));
    }
    const Entry e = entry(root);
    return {e.value, e.error, e.slack};
  }

 private:
  static void drop_zeros(std::vector<double>& list) {
    for (const double v : list)
      if (v != 0) return;
    list.clear();
  }

  Entry entry(const UOp& u) const {
    const auto it = entries_.find(u);
    return it != entries_.end() ? it->second : Entry{interpret(u, bindings_), {}, {}};
  }

  // All results of a Call, whose kernel takes the liberties of default mode.
  void called(const UOp& result) {
    const UOp& call = result.src(0);
    std::vector<BoundedArray> arguments;
    for (const UOp& a : sources_outside_body(call)) {
      const Entry e = entry(a);
      arguments.push_back({e.value, e.error});
    }
    std::vector<BoundedArray> made;
    try {
      made = interpret_call(call, arguments, bindings_, {true, true});
    } catch (const Undetermined&) {
      made = interpret_call(call, arguments, bindings_, {});
      for (BoundedArray& m : made) m.error.assign(m.value.data.size(), unknown);
    }
    for (size_t k = 0; k < made.size(); ++k) {
      const UOp node = get_tuple(call, static_cast<int64_t>(k));
      if (entries_.contains(node)) continue;
      drop_zeros(made[k].error);
      bindings_.emplace(node, made[k].value);
      entries_.emplace(node, Entry{std::move(made[k].value), std::move(made[k].error), {}});
    }
  }

  void bound(const UOp& u, Entry& out) {
    std::vector<Entry> in;
    bool exact = true;
    for (const UOp& s : u.src()) {
      if (s.dtype() == DType::Void ||
          (s.is(Op::Stack) && s.dtype() == DType::Index && !u.is(Op::Index))) {
        in.emplace_back();
        if (s.dtype() == DType::Void) exact = exact && effects_are_exact(s);
        continue;
      }
      in.push_back(entry(s));
      exact = exact && in.back().exact();
    }
    if (is_elementwise(u.op())) return elementwise(u, in, exact, out);
    if (u.is(Op::Reduce)) return reduced(u, in[0], out);
    if (exact) return;
    if (u.is(Op::Bitcast)) return bitcast_errors(u, in[0], out);
    if (is_movement(u.op()) && !u.is(Op::Replicated)) return moved(u, in, out);
    const bool passes = u.is(Op::Contiguous) || u.is(Op::ContiguousBackward) || u.is(Op::Detach) ||
                        u.is(Op::Fence) || (u.is(Op::Load) && u.src().size() == 1);
    if (!passes) {
      out.error.assign(out.value.data.size(), unknown);
      return;
    }
    out.error = in[0].error;
    out.slack = in[0].slack;
    for (std::vector<double>* list : {&out.error, &out.slack})
      for (size_t i = 0; i < list->size(); ++i)
        if (!in[0].value.is_valid(i)) (*list)[i] = 0;
  }

  // Of an After or a Function's call: whether everything that flows in is known to the bit.
  bool effects_are_exact(const UOp& effect) const {
    for (const UOp& u : toposort(effect))
      if (const auto it = entries_.find(u); it != entries_.end() && !it->second.exact())
        return false;
    return true;
  }

  static std::vector<size_t> positions(const Array& in, const Array& out) {
    std::vector<size_t> at(out.data.size(), 0);
    std::vector<int64_t> stride(out.sizes.size(), 0), index(out.sizes.size(), 0);
    int64_t step = 1;
    for (size_t i = in.sizes.size(); i-- > 0;) {
      stride[i + out.sizes.size() - in.sizes.size()] = in.sizes[i] == 1 ? 0 : step;
      step *= in.sizes[i];
    }
    int64_t offset = 0;
    for (size_t k = 0; k < at.size(); ++k) {
      at[k] = static_cast<size_t>(offset);
      for (size_t i = index.size(); i-- > 0;) {
        offset += stride[i];
        if (++index[i] < out.sizes[i]) break;
        offset -= stride[i] * index[i];
        index[i] = 0;
      }
    }
    return at;
  }

  static void elementwise(const UOp& u, const std::vector<Entry>& in, bool exact, Entry& out) {
    const DType from = in[u.is(Op::Where) ? 1 : 0].value.dtype, to = u.dtype();
    const bool takes = u.is(Op::Mul) || u.is(Op::Mulacc) || is_function(u.op());
    if (exact && !(takes && is_float(to))) return;
    // A value beside itself, whatever it is, is so twice: it is not less, and it differs if NaN.
    const bool compares = u.is(Op::CmpLt) || u.is(Op::CmpNe);
    const bool itself = compares && u.src(0) == u.src(1);
    if (itself && (u.is(Op::CmpLt) || !is_float(from))) return;
    std::vector<std::vector<size_t>> at;
    for (const Entry& e : in) at.push_back(positions(e.value, out.value));
    out.error.assign(out.value.data.size(), 0);
    out.slack.assign(out.value.data.size(), 0);
    Operand operands[3];
    for (size_t i = 0; i < out.value.data.size(); ++i) {
      for (size_t k = 0; k < in.size(); ++k) {
        const size_t j = at[k][i];
        operands[k] = {in[k].number(j), in[k].error.empty() ? 0 : in[k].error[j],
                       in[k].slack.empty() ? 0 : in[k].slack[j], in[k].value.data[j]};
      }
      const std::span<const Operand> list(operands, in.size());
      const double v = out.number(i);
      const Outcome o = itself            ? Outcome{list[0].error == unknown ? unknown : 0}
                        : compares        ? of_comparison(u.op(), list[0], list[1])
                        : u.is(Op::Where) ? of_where(list[0], list[1], list[2], to)
                        : u.is(Op::Cast)  ? of_cast(v, list[0], from, to)
                        : is_float(from)  ? of_floats(u, v, list, from)
                                          : of_integers(u.op(), list, from);
      out.error[i] = std::isnan(o.error) ? unknown : o.error;
      out.slack[i] = o.slack;
    }
  }

  // What a node is computed from: its sources, and the Variables of shapes.
  Bindings operands_of(const UOp& u) const {
    Bindings out = variables_;
    toposort(u, [&](const UOp& below) {
      const auto it = below == u ? bindings_.end() : bindings_.find(below);
      if (it != bindings_.end()) out.emplace(*it);
      return it == bindings_.end();
    });
    return out;
  }

  // The errors move as the values do.
  void moved(const UOp& u, const std::vector<Entry>& in, Entry& out) {
    for (size_t i = 1; u.is(Op::Index) && i < in.size(); ++i)
      if (!in[i].error.empty()) {
        out.error.assign(out.value.data.size(), unknown);
        return;
      }
    for (const bool slack : {false, true}) {
      std::vector<UOp> src(u.src().begin(), u.src().end());
      Bindings bindings = operands_of(u);
      for (size_t i = 0; i < src.size(); ++i) {
        const bool carries = i == 0 || u.is(Op::Stack) || (u.is(Op::Pad) && i == 3);
        if (!carries) continue;
        const std::vector<double>& list = slack ? in[i].slack : in[i].error;
        Array errors{DType::Float64, in[i].value.sizes, {}, {}};
        for (size_t k = 0; k < in[i].value.data.size(); ++k)
          errors.data.push_back(double_to_bits(DType::Float64, list.empty() ? 0 : list[k]));
        src[i] = param(static_cast<int64_t>(i), u.src(i).shape(), DType::Float64);
        bindings.insert_or_assign(src[i], std::move(errors));
      }
      const Array result = interpret(with_sources(u, src), bindings);
      for (const Bits b : result.data)
        (slack ? out.slack : out.error).push_back(bits_to_double(DType::Float64, b));
    }
  }

  // Bits of what is not known to the bit are unknown.
  void bitcast_errors(const UOp& u, const Entry& in, Entry& out) {
    const DType bits = storage_uint(in.value.dtype);
    const UOp flags = param(0, u.src(0).shape(), bits);
    Array flag{bits, in.value.sizes, {}, {}};
    for (size_t k = 0; k < in.value.data.size(); ++k)
      flag.data.push_back(!in.error.empty() && in.error[k] != 0 ? int_to_bits(bits, -1) : 0);
    Bindings bindings = operands_of(u);
    bindings.insert_or_assign(flags, std::move(flag));
    const UOp moved = flags.dtype() == storage_uint(u.dtype())
                          ? flags
                          : UOp::make(Op::Bitcast, {flags}, storage_uint(u.dtype()));
    for (const Bits b : interpret(moved, bindings).data) out.error.push_back(b != 0 ? unknown : 0);
  }

  // Everything that one output element of a reduce is made of.
  struct Fold {
    int64_t count = 0;
    long double sum = 0, rest = 0;  // compensated
    double magnitude = 0, inherited = 0, largest = 0, up = 0, down = 0, relative = 0, slack = 0;
    bool special = false, zero = false;
    void take(double v, double error, double extra) {
      ++count;
      inherited += error + extra;
      largest = std::max(largest, error);
      slack = extra;
      if (!std::isfinite(v)) {
        special = true;
        return;
      }
      const long double next = sum + v;
      rest += std::abs(sum) >= std::abs(static_cast<long double>(v)) ? (sum - next) + v
                                                                     : (v - next) + sum;
      sum = next;
      magnitude += std::abs(v) + error + extra;
      zero = zero || v == 0;
      if (v == 0) return;
      const double power = std::log2(std::abs(v));
      (power > 0 ? up : down) += std::abs(power) + 0x1p-20;
      relative += error / std::max(std::abs(v) - error, 0.0);
    }
  };

  void reduced(const UOp& u, const Entry& in, Entry& out) {
    const ReduceArg& arg = u.as<ReduceArg>();
    if (!is_float(u.dtype()) && in.error.empty()) return;
    std::vector<Fold> folds(out.value.data.size());
    const std::vector<size_t> to = positions(out.value, in.value);
    for (size_t i = 0; i < to.size(); ++i)
      if (in.value.is_valid(i))
        folds[to[i]].take(in.number(i), in.error.empty() ? 0 : in.error[i],
                          in.slack.empty() ? 0 : in.slack[i]);
    const bool masked = arg.op == Op::Add && is_masked_product(u.src(0));
    const auto each = static_cast<int64_t>(to.size() / std::max<size_t>(folds.size(), 1));
    const double bound =
        is_float(u.dtype()) ? reorder_bound(arg.op, u.dtype(), each, adds_products(u.src(0))) : 0;
    out.error.assign(folds.size(), 0);
    out.slack.assign(folds.size(), 0);
    for (size_t k = 0; k < folds.size(); ++k) {
      const Fold& f = folds[k];
      const double v = out.number(k);
      if (!is_float(u.dtype())) {
        out.error[k] = f.inherited > 0 ? unknown : 0;
      } else if (f.count == 1) {
        out.error[k] = f.inherited - f.slack;
        out.slack[k] = f.slack;
      } else if (f.count > 1) {
        out.error[k] = f.inherited == unknown ? unknown : of_fold(arg.op, f, bound, v, u.dtype());
      }
      // By default, what a mask hides counts for nothing, infinities too (amendment C31).
      if (masked && !std::isfinite(v)) out.error[k] = unknown;
      // Zeros may meet in another order, and their signs with them.
      if (is_float(u.dtype()) && v == 0)
        out.error[k] = std::max(out.error[k], precision_of(u.dtype()).tiny);
    }
  }

  // `bound`: of the reordering, relative.
  static double of_fold(Op op, const Fold& f, double bound, double v, DType dtype) {
    const Precision p = precision_of(dtype);
    if (op == Op::Max) return f.special && f.inherited > 0 ? unknown : f.largest;
    if (op == Op::Add) {
      if (!(f.magnitude < p.largest / 2)) return unknown;
      if (f.special) return 0;
      const auto real = static_cast<double>(std::abs(static_cast<long double>(v) - f.sum - f.rest));
      return real + f.inherited + bound * f.magnitude + std::abs(v) * 0x1p-60;
    }
    // Any part of a product may leave the range before the rest brings it back.
    if (f.up > std::log2(p.largest) - 2 || f.down > -std::log2(p.tiny / p.unit()) - 4)
      return unknown;
    if (f.special) return f.inherited > 0 ? unknown : 0;
    if (f.zero) return f.inherited > 0 ? unknown : 0;
    if (bound == unknown) return unknown;
    return std::abs(v) * (2 * bound + f.relative * (1 + f.relative) * (1 + 2 * bound)) + p.tiny;
  }

  Bindings bindings_;
  Bindings variables_;  // those of them that shapes are made of
  std::unordered_map<UOp, Entry> entries_;
};

}  // namespace

bool adds_products(const UOp& value) {
  std::vector<UOp> pending{value};
  while (!pending.empty()) {
    const UOp v = pending.back();
    pending.pop_back();
    if (v.is(Op::Mul) || v.is(Op::Mulacc)) return true;
    if (v.is(Op::Where) || v.is(Op::Stack))
      for (size_t i = v.is(Op::Where) ? 1 : 0; i < v.src().size(); ++i) pending.push_back(v.src(i));
    else if (v.is(Op::Cast) || v.is(Op::Contiguous) || v.is(Op::Detach) || v.is(Op::Fence) ||
             is_movement(v.op()))
      pending.push_back(v.src(0));
  }
  return false;
}

bool has_liberties(const UOp& root) {
  for (const UOp& u : toposort(root)) {
    if (u.is(Op::Call) && u.src(0).is(Op::Sink)) return true;
    if (u.is(Op::Call) && is_loop(u.src(0)) && has_liberties(sink(Loop(u).functions))) return true;
    if (!is_float(u.dtype())) continue;
    if (u.is(Op::Reduce) || u.is(Op::Mulacc) || is_function(u.op())) return true;
    if (u.is(Op::Add) && (u.node()->ops_below & mask_of(Op::Mul)) != 0) return true;
  }
  return false;
}

BoundedArray interpret_bounded(const UOp& root, const BoundedBindings& bindings) {
  bool exact = !has_liberties(root);
  Bindings values;
  for (const auto& [node, given] : bindings) {
    exact = exact && given.error.empty() && given.slack.empty();
    values.emplace(node, given.value);
  }
  // Where no liberty is taken, products alone are of interest: what they lose goes on to later
  // sums.
  const bool has_product = (root.node()->ops_below & mask_of(Op::Mul)) != 0;
  if (exact && (options().strict || !has_product)) return {interpret(root, values), {}};
  const UOp meant = exact || options().strict ? root : rewrite(root, selection_rules());
  return BoundedInterpreter(bindings).run(inline_functions(meant));
}

BoundedArray interpret_bounded(const UOp& root, const Bindings& bindings) {
  BoundedBindings exact;
  for (const auto& [node, value] : bindings) exact.emplace(node, BoundedArray{value, {}});
  return interpret_bounded(root, exact);
}

std::string difference(const BoundedArray& expected, const Array& got) {
  const Array& value = expected.value;
  if (value.dtype != got.dtype)
    return fmt::format("dtype {} is not {}", dtype_name(got.dtype), dtype_name(value.dtype));
  if (value.sizes != got.sizes) return "the shapes differ";
  for (size_t i = 0; i < value.data.size(); ++i) {
    if (!value.is_valid(i)) continue;  // invalid elements hold anything
    const Bits a = value.data[i], b = got.data[i];
    const double error = expected.error.empty() ? 0 : expected.error[i];
    if (a == b || error == unknown) continue;
    const double x = bits_to_double(value.dtype, a), y = bits_to_double(value.dtype, b);
    if (is_float(value.dtype) && std::isnan(x) && std::isnan(y)) continue;
    if (error > 0 && (x == y || std::abs(x - y) <= error * (1 + 1e-9))) continue;
    return fmt::format("element {}: {} ({:#x}) instead of {} ({:#x}){}", i, y, b, x, a,
                       error > 0 ? fmt::format(", more than {} away", error) : "");
  }
  return "";
}

}  // namespace koine
