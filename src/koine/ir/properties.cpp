// Shape accessors and the properties that are derived on demand: bounds, ranges, addrspace.
#include <algorithm>
#include <cmath>
#include <limits>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {

UOp UOp::shape() const {
  if (node_->scalar_stack)
    return UOp::make(Op::Stack, {index_const(static_cast<int64_t>(node_->source_count))});
  if (node_->shape) return node_->shape;
  return UOp::make(Op::Stack, {});
}
size_t UOp::rank() const {
  return node_->scalar_stack ? 1 : node_->shape ? node_->shape.src().size() : 0;
}
UOp UOp::dim(size_t axis) const {
  return node_->scalar_stack ? index_const(static_cast<int64_t>(node_->source_count))
                             : node_->shape.src(axis);
}
bool UOp::has_concrete_shape() const {
  if (node_->scalar_stack || !node_->shape) return true;
  const auto dims = node_->shape.src();
  return std::all_of(dims.begin(), dims.end(), [](const UOp& d) { return d.is(Op::Const); });
}
std::vector<int64_t> UOp::sizes() const {
  std::vector<int64_t> out;
  for (size_t i = 0; i < rank(); ++i) {
    const UOp d = dim(i);
    KOINE_REQUIRE(
        d.is(Op::Const), Value,
        "{}: shape {} is symbolic where sizes must be known: give a number instead of the Variable",
        op_name(op()), shape_text(*this));
    out.push_back(const_int(d));
  }
  return out;
}
int64_t UOp::numel() const {
  int64_t n = 1;
  for (const int64_t size : sizes()) {
    KOINE_REQUIRE(!__builtin_mul_overflow(n, size, &n), Memory,
                  "{}: a value of shape {} has too many elements", op_name(op()),
                  shape_text(*this));
  }
  return n;
}

namespace {

// Fills a cached property for everything below `root` that lacks it, sources first.
template <class Has, class Compute>
void fill(const Node* root, Has&& has, Compute&& compute) {
  if (has(root)) return;
  std::vector<const Node*> stack{root};
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (has(node)) {
      stack.pop_back();
      continue;
    }
    bool ready = true;
    for (const UOp& source : node->src())
      if (!has(source.node())) {
        stack.push_back(source.node());
        ready = false;
      }
    if (!ready) continue;
    compute(node);
    stack.pop_back();
  }
}

using i128 = __int128;

Interval dtype_interval(DType dtype) {
  Interval i;
  if (is_float(dtype)) {
    i.float_low = -std::numeric_limits<double>::infinity();
    i.float_high = std::numeric_limits<double>::infinity();
    i.may_be_nan = true;
    i.low = 0;
    i.high = 1;  // never constant
  } else if (dtype == DType::Void) {
    i.high = 1;
  } else {
    const IntegerRange range = integer_range(dtype);
    i.low = range.low;
    i.high = range.high;
  }
  return i;
}

Interval integer_interval(DType dtype, i128 low, i128 high) {
  // Wrapping is possible outside the dtype's range: then nothing is known (C25). Index saturates.
  Interval whole = dtype_interval(dtype);
  if (dtype == DType::Index) {
    whole.low = std::clamp(low, whole.low, whole.high);
    whole.high = std::clamp(high, whole.low, whole.high);
    return whole;
  }
  if (low < whole.low || high > whole.high) return whole;
  whole.low = low;
  whole.high = high;
  return whole;
}

Interval float_interval(double low, double high, bool may_be_nan) {
  Interval i;
  i.float_low = low;
  i.float_high = high;
  i.may_be_nan = may_be_nan || std::isnan(low) || std::isnan(high);
  if (std::isnan(low) || std::isnan(high)) return dtype_interval(DType::Float64);
  i.low = 0;
  i.high = low == high && !i.may_be_nan && low != 0 ? 0 : 1;
  return i;
}

i128 floor_divide(i128 a, i128 b) {
  const i128 q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

Interval compare_bounds(Op op, const UOp& a, const UOp& b) {
  const Interval &x = a.bounds(), &y = b.bounds();
  Interval out;
  out.low = 0;
  out.high = 1;
  if (is_float(a.dtype())) {
    if (x.may_be_nan || y.may_be_nan) return out;
    if (op == Op::CmpLt) {
      if (x.float_high < y.float_low) out.low = 1;
      if (x.float_low >= y.float_high) out.high = 0;
    } else if (x.float_high < y.float_low || y.float_high < x.float_low) {
      out.low = 1;
    }
    return out;
  }
  if (op == Op::CmpLt) {
    if (x.high < y.low) out.low = 1;
    if (x.low >= y.high) out.high = 0;
    // Index arithmetic is exact: the sign of the difference decides.
    if (a.dtype() == DType::Index && a.is_scalar() && b.is_scalar() && out.low != out.high) {
      const IndexSpan d = index_span(simplify_index(sub(a, b)));
      if (d.high < 0) out.low = 1;
      if (d.low >= 0) out.high = 0;
    }
  } else {
    if (x.high < y.low || y.high < x.low) out.low = 1;
    if (a == b || (x.is_constant() && y.is_constant() && x.low == y.low)) out.high = 0;
  }
  return out;
}

Interval cast_bounds(const UOp& u) {
  const Interval& s = u.src(0).bounds();
  const DType from = u.src(0).dtype(), to = u.dtype();
  if (to == DType::Bool) {
    Interval i = dtype_interval(to);
    const bool zero_free =
        is_float(from) ? (s.float_low > 0 || s.float_high < 0) : (s.low > 0 || s.high < 0);
    if (zero_free) i.low = 1;
    if (!is_float(from) && s.low == 0 && s.high == 0) i.high = 0;
    return i;
  }
  if (is_float(from) && is_float(to)) {
    const double low = bits_to_double(to, double_to_bits(to, s.float_low));
    const double high = bits_to_double(to, double_to_bits(to, s.float_high));
    return float_interval(low, high, s.may_be_nan);
  }
  if (is_float(to)) {
    const double low = bits_to_double(to, double_to_bits(to, static_cast<double>(s.low)));
    const double high = bits_to_double(to, double_to_bits(to, static_cast<double>(s.high)));
    return float_interval(low, high, false);
  }
  if (is_float(from)) {  // saturates, NaN gives 0
    Interval whole = dtype_interval(to);
    auto clamp = [&](double v) {
      if (v <= static_cast<double>(whole.low)) return whole.low;
      if (v >= static_cast<double>(whole.high)) return whole.high;
      return static_cast<i128>(v);
    };
    const i128 low = clamp(s.float_low), high = clamp(s.float_high);
    whole.low = s.may_be_nan ? std::min<i128>(low, 0) : low;
    whole.high = s.may_be_nan ? std::max<i128>(high, 0) : high;
    return whole;
  }
  // As everywhere, 2^63 and above become negative when they turn into an index.
  if (s.high > std::numeric_limits<int64_t>::max()) return dtype_interval(to);
  return integer_interval(to, s.low, s.high);
}

Interval float_arithmetic(const UOp& u) {
  const Interval &a = u.src(0).bounds(), &b = u.src(1).bounds();
  auto round = [&](double v) { return bits_to_double(u.dtype(), double_to_bits(u.dtype(), v)); };
  if (u.op() == Op::Max)
    return float_interval(std::max(a.float_low, b.float_low), std::max(a.float_high, b.float_high),
                          a.may_be_nan || b.may_be_nan);
  if (u.op() == Op::Add)
    return float_interval(round(a.float_low + b.float_low), round(a.float_high + b.float_high),
                          a.may_be_nan || b.may_be_nan ||
                              (std::isinf(a.float_low) && std::isinf(b.float_high)) ||
                              (std::isinf(a.float_high) && std::isinf(b.float_low)));
  const double c[] = {a.float_low * b.float_low, a.float_low * b.float_high,
                      a.float_high * b.float_low, a.float_high * b.float_high};
  if (std::any_of(c, c + 4, [](double v) { return std::isnan(v); }))
    return dtype_interval(u.dtype());
  const bool unbounded = std::isinf(a.float_low) || std::isinf(a.float_high) ||
                         std::isinf(b.float_low) || std::isinf(b.float_high);
  return float_interval(round(*std::min_element(c, c + 4)), round(*std::max_element(c, c + 4)),
                        a.may_be_nan || b.may_be_nan || unbounded);
}

Interval integer_arithmetic(const UOp& u) {
  const Interval &a = u.src(0).bounds(), &b = u.src(1).bounds();
  const DType dtype = u.dtype();
  switch (u.op()) {
    case Op::Add:
      return integer_interval(dtype, a.low + b.low, a.high + b.high);
    case Op::Max:
      return integer_interval(dtype, std::max(a.low, b.low), std::max(a.high, b.high));
    case Op::Mul: {
      const i128 limit = static_cast<i128>(1) << 63;
      if (std::max({a.high, -a.low, b.high, -b.low}) > limit) return dtype_interval(dtype);
      const i128 c[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
      return integer_interval(dtype, *std::min_element(c, c + 4), *std::max_element(c, c + 4));
    }
    case Op::Idiv: {
      if (b.low <= 0 && b.high >= 0) return dtype_interval(dtype);
      const i128 c[] = {floor_divide(a.low, b.low), floor_divide(a.low, b.high),
                        floor_divide(a.high, b.low), floor_divide(a.high, b.high)};
      return integer_interval(dtype, *std::min_element(c, c + 4), *std::max_element(c, c + 4));
    }
    case Op::Mod:
      if (b.low > 0) {
        if (a.low >= 0 && a.high < b.low) return integer_interval(dtype, a.low, a.high);
        return integer_interval(dtype, 0, b.high - 1);
      }
      return dtype_interval(dtype);
    case Op::And:
      if (dtype == DType::Bool)
        return integer_interval(dtype, std::min(a.low, b.low) & 1, std::min(a.high, b.high));
      if (a.low >= 0 && b.low >= 0) return integer_interval(dtype, 0, std::min(a.high, b.high));
      return dtype_interval(dtype);
    case Op::Or:
      if (dtype == DType::Bool)
        return integer_interval(dtype, std::max(a.low, b.low), std::max(a.high, b.high));
      return dtype_interval(dtype);
    default:
      return dtype_interval(dtype);
  }
}

Interval join(const Interval& a, const Interval& b, DType dtype) {
  if (is_float(dtype))
    return float_interval(std::min(a.float_low, b.float_low), std::max(a.float_high, b.float_high),
                          a.may_be_nan || b.may_be_nan);
  Interval out = a;
  out.low = std::min(a.low, b.low);
  out.high = std::max(a.high, b.high);
  return out;
}

Interval compute_interval(const UOp& u) {
  const DType dtype = u.dtype();
  switch (u.op()) {
    case Op::Const: {
      if (is_invalid(u)) return dtype_interval(dtype);
      if (is_float(dtype)) {
        const double v = const_double(u);
        if (std::isnan(v)) return dtype_interval(dtype);
        return float_interval(v, v, false);
      }
      const ConstArg& c = u.as<ConstArg>();
      const i128 v =
          dtype == DType::UInt64 ? static_cast<i128>(c.bits) : bits_to_int(dtype, c.bits);
      Interval i = dtype_interval(dtype);
      i.low = i.high = v;
      return i;
    }
    case Op::Param:
      if (u.src().size() >= 3)  // also of a bound Variable: programs serve the whole range
        return integer_interval(dtype, u.src(1).bounds().low, u.src(2).bounds().high);
      return dtype_interval(dtype);
    case Op::Range:
    case Op::Special:
      return integer_interval(DType::Index, 0, std::max<i128>(0, u.src(0).bounds().high - 1));
    case Op::Assume: {
      const Interval& b = u.src(0).bounds();
      const i128 low = std::max(b.low, u.src(1).bounds().low),
                 high = std::min(b.high, u.src(2).bounds().high);
      return integer_interval(dtype, std::min(low, high), high);
    }
    case Op::CmpLt:
    case Op::CmpNe:
      return compare_bounds(u.op(), u.src(0), u.src(1));
    case Op::Where: {
      const Interval& p = u.src(0).bounds();
      if (p.low == 1) return u.src(1).bounds();
      if (p.high == 0) return u.src(2).bounds();
      return join(u.src(1).bounds(), u.src(2).bounds(), dtype);
    }
    case Op::Cast:
      return cast_bounds(u);
    case Op::Pad: {
      // The fill is part of the value (amendment C6); without one the invalid elements are
      // resolved by whoever reads them, to anything.
      if (u.src().size() == 4) return join(u.src(0).bounds(), u.src(3).bounds(), dtype);
      return dtype_interval(dtype);
    }
    case Op::Stack: {
      if (u.src().empty()) return dtype_interval(dtype);
      Interval out = u.src(0).bounds();
      for (const UOp& s : u.src().subspan(1)) out = join(out, s.bounds(), dtype);
      return out;
    }
    case Op::Permute:
    case Op::Flip:
    case Op::Reshape:
    case Op::Expand:
    case Op::Shrink:
    case Op::Index:
    case Op::Load:
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Fence:
    case Op::Detach: {
      if (u.is(Op::Load) && u.src().size() == 3)
        return join(u.src(0).bounds(), u.src(1).bounds(), dtype);
      return u.src(0).bounds();
    }
    case Op::After:  // what is stored may be anything
      for (const UOp& dependency : u.src().subspan(1))
        if (!stores_in(dependency).empty()) return dtype_interval(dtype);
      return u.src(0).bounds();
    case Op::Add:
    case Op::Mul:
    case Op::Max:
      if (is_float(dtype)) return float_arithmetic(u);
      return integer_arithmetic(u);
    case Op::Idiv:
    case Op::Mod:
    case Op::And:
    case Op::Or:
      return is_float(dtype) ? dtype_interval(dtype) : integer_arithmetic(u);
    default:
      return dtype_interval(dtype);
  }
}

using RangeSet = std::vector<const Node*>;

bool range_less(const Node* a, const Node* b) {
  const auto &x = std::get<RangeArg>(a->arg), &y = std::get<RangeArg>(b->arg);
  return x.id != y.id ? x.id < y.id : a->id < b->id;
}

const RangeSet* ranges_of(const UOp& u) {
  return u.node()->range_set.load(std::memory_order_acquire);
}

// The ranges of a node: a new set only where they are not those of one of its sources, or none
// (`owns_ranges` decides by that who deletes it).
const RangeSet* compute_ranges(const Node* node) {
  static const auto* nothing = new RangeSet;  // shared by all that have none
  const bool ends = node->op == Op::End || node->op == Op::Reduce;
  const auto open = node->src().first(ends ? 1 : node->source_count);
  const RangeSet* largest = nothing;
  for (const UOp& source : open)
    if (ranges_of(source)->size() > largest->size()) largest = ranges_of(source);
  // The effects an After waits for are closed loops: it depends on them, not on their ranges.
  const bool all_there = std::all_of(open.begin(), open.end(), [&](const UOp& source) {
    const RangeSet* set = ranges_of(source);
    return set == largest ||
           std::includes(largest->begin(), largest->end(), set->begin(), set->end(), range_less);
  });
  if (all_there && node->op != Op::Range && (!ends || node->source_count == 1)) return largest;
  RangeSet out;
  for (const UOp& source : node->src())  // a closed loop too has a length that may vary with others
    out.insert(out.end(), ranges_of(source)->begin(), ranges_of(source)->end());
  std::sort(out.begin(), out.end(), range_less);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  for (const UOp& source : node->src().subspan(open.size())) std::erase(out, source.node());
  if (node->op == Op::Range) out.push_back(node);
  return out.empty() ? nothing : new RangeSet(std::move(out));
}

}  // namespace

const Interval& UOp::bounds() const {
  fill(
      node_, [](const Node* n) { return n->interval.load(std::memory_order_acquire) != nullptr; },
      [](const Node* n) {
        const auto* made = new Interval(compute_interval(UOp::share(n)));
        const Interval* expected = nullptr;
        if (!n->interval.compare_exchange_strong(expected, made)) delete made;
      });
  return *node_->interval.load(std::memory_order_acquire);
}

bool owns_ranges(const Node* node, const std::vector<const Node*>* set) {
  return set != nullptr && !set->empty() &&
         std::none_of(node->src().begin(), node->src().end(),
                      [&](const UOp& source) { return ranges_of(source) == set; });
}

const std::vector<const Node*>& UOp::ranges() const {
  fill(
      node_, [](const Node* n) { return n->range_set.load(std::memory_order_acquire) != nullptr; },
      [](const Node* n) {
        const RangeSet* made = compute_ranges(n);
        const RangeSet* expected = nullptr;
        if (!n->range_set.compare_exchange_strong(expected, made) && owns_ranges(n, made))
          delete made;
      });
  return *node_->range_set.load(std::memory_order_acquire);
}

AddrSpace UOp::addrspace() const {
  const Node* node = node_;
  while (node->op == Op::Index || node->op == Op::After) node = node->sources()[0].node();
  if (const auto* buffer = std::get_if<BufferArg>(&node->arg)) return buffer->space;
  return AddrSpace::Global;
}

}  // namespace koine
