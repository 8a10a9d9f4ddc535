#include "koine/lower/select.hpp"

#include <algorithm>
#include <map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/wide.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/decompose.hpp"
#include "koine/rules/narrow.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/wmma.hpp"

namespace koine {
namespace {

// Takes shaped values apart. A value of shape (a, b, ..., n) becomes a*b*... pieces, each a scalar
// (the same in all lanes) or a vector of n lanes. Index expressions stay scalar as long as they
// can: the lane number is a Range symbol in them until a vector is really needed.
class Devectorizer {
 public:
  /// `in_order`: UNROLL axes fold into their accumulator one by one.
  explicit Devectorizer(bool in_order) : in_order_(in_order) {}

  UOp run(const UOp& ast) {
    const NodeList order = toposort(ast);
    // Buffers in memory are flat and shape operands are not values: neither has lanes.
    auto is_value = [](const UOp& u) {
      return !u.is(Op::Stack) && !is_memory(u) && u.dtype() != DType::Void;
    };
    for (const UOp& u : order)
      if (is_value(u)) rank_ = std::max(rank_, u.rank());
    for (const UOp& u : order)
      if (is_value(u) && rank_ > 0 && u.rank() == rank_)
        lanes_ = std::max(lanes_, const_int(u.dim(rank_ - 1)));
    lane_ = range(0, index_const(lanes_), AxisType::Lane);
    for (const UOp& u : order) {
      // Shape operands are not values.
      if (u.is(Op::Stack)) continue;
      pieces_.set(u.node(), split(u));
    }
    return pieces_.at(ast.node())[0];
  }

 private:
  using Pieces = std::vector<UOp>;

  // --- shapes ----------------------------------------------------------------------------------
  std::vector<int64_t> sizes_of(const UOp& u) const {
    return u.rank() == 0 ? std::vector<int64_t>(std::max<size_t>(rank_, 1), 1) : u.sizes();
  }
  static size_t lead_count(const std::vector<int64_t>& sizes) {
    size_t n = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) n *= static_cast<size_t>(sizes[i]);
    return n;
  }
  // The piece of `u` that the `lead`-th piece of a value of shape `sizes` sees.
  const UOp& piece(const UOp& u, const std::vector<int64_t>& sizes, size_t lead) const {
    const Pieces& p = pieces_.at(u.node());
    if (p.size() == 1) return p[0];
    const std::vector<int64_t> own = sizes_of(u);
    size_t index = 0, stride = 1, rest = lead;
    for (size_t i = sizes.size() - 1; i-- > 0;) {
      const auto at = rest % static_cast<size_t>(sizes[i]);
      rest /= static_cast<size_t>(sizes[i]);
      index += (own[i] == 1 ? 0 : at) * stride;
      stride *= static_cast<size_t>(own[i]);
    }
    return p[index];
  }

  // --- lanes -----------------------------------------------------------------------------------
  bool symbolic(const UOp& u) const {
    const auto& ranges = u.ranges();
    return std::find(ranges.begin(), ranges.end(), lane_.node()) != ranges.end();
  }
  UOp lane_shape() const { return shape_of({lanes_}); }
  UOp splat(const UOp& u) const {
    if (!u.is_scalar()) return u;
    return expand(reshape(u, shape_of({1})), lane_shape());
  }
  UOp lane_constants(int64_t step) const {
    std::vector<UOp> values;
    for (int64_t i = 0; i < lanes_; ++i)  // wraps where the integers that the lanes number do
      values.push_back(index_const(
          static_cast<int64_t>(static_cast<uint64_t>(i) * static_cast<uint64_t>(step))));
    return stack(values);
  }
  UOp at_lane(const UOp& u, int64_t lane) const {
    if (symbolic(u)) return simplify(substitute(u, {{lane_, index_const(lane)}}));
    if (u.is_scalar()) return u;
    if (u.is(Op::Stack)) return u.src(static_cast<size_t>(lane));
    return index(u, {index_const(lane)});
  }
  // A real vector (or scalar) in place of an index expression with the lane symbol.
  UOp materialize(const UOp& u) const {
    if (!u.is_scalar() || !symbolic(u)) return u;
    int64_t step = 0;
    UOp rest;
    if (u.dtype() == DType::Index && linear_coefficient(u, lane_, step, rest))
      return is_const(rest, 0) ? lane_constants(step) : add(splat(rest), lane_constants(step));
    std::vector<UOp> values;
    for (int64_t i = 0; i < lanes_; ++i) values.push_back(at_lane(u, i));
    return stack(values);
  }

  // --- nodes -----------------------------------------------------------------------------------
  Pieces split(const UOp& u) {
    if (u.is(Op::Reshape) && u.src(0).is(Op::Stack)) return iota(u);
    if (is_elementwise(u.op()) || u.is(Op::Bitcast)) return elementwise(u);
    switch (u.op()) {
      case Op::Reshape:
      case Op::Expand:
        return broadcast(u);
      case Op::Reduce:
        return fold(u);
      case Op::Wmma:
        return wmma_pieces(u);
      case Op::Load:
        return load_pieces(u);
      case Op::Store:
        return store_pieces(u);
      case Op::AtomicAdd:
        return atomic_pieces(u);
      case Op::Index:
        return {};  // addresses are built by their users
      case Op::Buffer:
        return accumulators(u);
      case Op::After:
        return after_pieces(u);
      default:
        break;
    }
    if (u.src().empty()) return {u};
    std::vector<UOp> src;
    for (const UOp& s : u.src()) src.push_back(s.is(Op::Stack) ? s : pieces_.at(s.node())[0]);
    return {with_sources(u, src)};
  }

  // Reshape(Stack(0, 1, ..., n-1)) along one axis.
  Pieces iota(const UOp& u) {
    const std::vector<int64_t> sizes = sizes_of(u);
    if (lead_count(sizes) == 1) {
      if (sizes.back() == 1) return {u.src(0).src(0)};
      return {lane_};
    }
    return Pieces(u.src(0).src().begin(), u.src(0).src().end());
  }

  Pieces broadcast(const UOp& u) {
    if (u.is(Op::Reshape)) return pieces_.at(u.src(0).node());
    const std::vector<int64_t> sizes = sizes_of(u);
    Pieces out;
    for (size_t i = 0; i < lead_count(sizes); ++i) out.push_back(piece(u.src(0), sizes, i));
    return out;
  }

  // What depends on nothing but the lane number is known: a vector literal, or one constant.
  UOp literal(const UOp& u, const std::vector<UOp>& src) const {
    std::vector<UOp> values;
    for (int64_t i = 0; i < lanes_; ++i) {
      std::vector<UOp> operands;
      for (const UOp& s : src) {
        const bool known = s.is(Op::Const) || (s.is(Op::Stack) && s.src(0).is(Op::Const));
        if (!known) return {};
        operands.push_back(at_lane(s, i));
        if (!operands.back().is(Op::Const)) return {};
      }
      values.push_back(simplify(UOp::make(u.op(), operands, u.arg())));
      if (!values.back().is(Op::Const)) return {};
    }
    const bool same =
        std::all_of(values.begin(), values.end(), [&](const UOp& v) { return v == values[0]; });
    return same ? values[0] : stack(values);
  }

  UOp combine(const UOp& u, std::vector<UOp> src) const {
    if (u.dtype() == DType::Index &&
        std::all_of(src.begin(), src.end(), [](const UOp& s) { return s.is_scalar(); }))
      return simplify_index_node(UOp::make(u.op(), src, u.arg()));
    // Past index arithmetic the lane number is a vector like any other.
    bool vector = false;
    for (UOp& s : src) {
      s = materialize(s);
      vector = vector || !s.is_scalar();
    }
    if (!vector) {
      const UOp value = UOp::make(u.op(), src, u.arg());
      const auto known = [](const UOp& s) { return s.is(Op::Const); };
      return std::all_of(src.begin(), src.end(), known) ? simplify(value) : value;
    }
    if (const UOp known = literal(u, src)) return known;
    for (UOp& s : src) s = splat(s);
    return UOp::make(u.op(), src, u.arg());
  }

  Pieces elementwise(const UOp& u) {
    const std::vector<int64_t> sizes = sizes_of(u);
    Pieces out;
    for (size_t i = 0; i < lead_count(sizes); ++i) {
      std::vector<UOp> src;
      for (const UOp& s : u.src()) src.push_back(piece(s, sizes, i));
      out.push_back(combine(u, src));
    }
    return out;
  }

  bool reduces_lanes(const UOp& reduction) const {
    const Ints& axes = reduction.as<ReduceArg>().axes;
    return std::find(axes.begin(), axes.end(), static_cast<int64_t>(rank_) - 1) != axes.end();
  }

  // The values that a reduction over leading axes folds into its `lead`-th piece, ascending.
  std::vector<UOp> unrolled(const UOp& reduction, const std::vector<int64_t>& sizes,
                            size_t lead) const {
    const UOp& value = reduction.src(0);
    const std::vector<int64_t> full = sizes_of(value);
    const Ints& axes = reduction.as<ReduceArg>().axes;
    std::vector<int64_t> at(full.size(), 0);
    size_t rest = lead;
    for (size_t k = sizes.size() - 1; k-- > 0;) {
      at[k] = static_cast<int64_t>(rest % static_cast<size_t>(sizes[k]));
      rest /= static_cast<size_t>(sizes[k]);
      if (full[k] == 1) at[k] = 0;
    }
    std::vector<int64_t> folded;
    for (const int64_t a : axes)
      if (a != static_cast<int64_t>(rank_) - 1) folded.push_back(a);
    std::sort(folded.begin(), folded.end());
    std::vector<UOp> out;
    size_t count = 1;
    for (const int64_t a : folded) count *= static_cast<size_t>(full[static_cast<size_t>(a)]);
    for (size_t n = 0; n < count; ++n) {
      size_t r = n;
      for (size_t j = folded.size(); j-- > 0;) {
        const auto axis = static_cast<size_t>(folded[j]);
        at[axis] = static_cast<int64_t>(r % static_cast<size_t>(full[axis]));
        r /= static_cast<size_t>(full[axis]);
      }
      size_t index = 0;
      for (size_t k = 0; k + 1 < full.size(); ++k)
        index = index * static_cast<size_t>(full[k]) + static_cast<size_t>(at[k]);
      out.push_back(pieces_.at(value.node())[index]);
    }
    return out;
  }

  Pieces fold(const UOp& u) {
    const Op op = u.as<ReduceArg>().op;
    const std::vector<int64_t> sizes = sizes_of(u);
    const UOp like = binary(op, constant_int(u.dtype(), 0), constant_int(u.dtype(), 0));
    auto both = [&](const UOp& a, const UOp& b) { return combine(like, {a, b}); };
    const UOp start = start_of(u);
    Pieces out;
    for (size_t i = 0; i < lead_count(sizes); ++i) {
      const std::vector<UOp> values = unrolled(u, sizes, i);
      UOp total = start ? piece(start, sizes, i) : UOp();
      if (start && in_order_ && !reduces_lanes(u)) {
        for (const UOp& value : values) total = both(total, value);
      } else {
        UOp sum = in_pairs(values, both);
        if (reduces_lanes(u)) sum = across_lanes(op, splat(materialize(sum)));
        total = start ? both(total, sum) : sum;
      }
      out.push_back(total);
    }
    return out;
  }

  // Neighbours, then neighbours of those: each value is rounded once a level.
  template <class Combine>
  static UOp in_pairs(std::vector<UOp> values, Combine&& both) {
    while (values.size() > 1) {
      std::vector<UOp> next;
      for (size_t k = 0; k + 1 < values.size(); k += 2)
        next.push_back(both(values[k], values[k + 1]));
      if (values.size() % 2 != 0) next.push_back(values.back());
      values = std::move(next);
    }
    return values[0];
  }

  // A tree over the lanes, fixed by their number: halves until an odd count is left, then pairs.
  UOp across_lanes(Op op, UOp v) const {
    int64_t n = lanes_;
    while (n % 2 == 0 && n > 2) {
      n /= 2;
      const UOp low = shrink(v, shape_of({0}), shape_of({n})),
                high = shrink(v, shape_of({n}), shape_of({n}));
      v = binary(op, low, high);
    }
    std::vector<UOp> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(index(v, {index_const(i)}));
    return in_pairs(values, [&](const UOp& a, const UOp& b) { return binary(op, a, b); });
  }

  // --- tensor cores ----------------------------------------------------------------------------
  // All places along some axes, the last one fastest, on top of `base`.
  static std::vector<std::vector<int64_t>> places_along(const Ints& axes,
                                                        const std::vector<int64_t>& sizes,
                                                        const std::vector<int64_t>& base) {
    std::vector<std::vector<int64_t>> out{base};
    for (const int64_t axis : axes) {
      std::vector<std::vector<int64_t>> further;
      for (const auto& place : out)
        for (int64_t i = 0; i < sizes[static_cast<size_t>(axis)]; ++i) {
          further.push_back(place);
          further.back()[static_cast<size_t>(axis)] = i;
        }
      out = std::move(further);
    }
    return out;
  }

  // The element of a value at a place; its axes of size 1 are the same everywhere.
  UOp element(const UOp& u, const std::vector<int64_t>& place) const {
    const std::vector<int64_t> sizes = sizes_of(u);
    size_t lead = 0;
    for (size_t k = 0; k + 1 < sizes.size(); ++k)
      lead = lead * static_cast<size_t>(sizes[k]) +
             (sizes[k] == 1 ? 0 : static_cast<size_t>(place[k]));
    const Pieces& pieces = pieces_.at(u.node());
    return at_lane(pieces.size() == 1 ? pieces[0] : pieces[lead], place.back());
  }

  // Elements as one vector; all lanes of a vector are that vector.
  static UOp joined(const std::vector<UOp>& elements) {
    const UOp& first = elements[0];
    const UOp whole = first.is(Op::Index) && !is_address(first) ? first.src(0) : UOp();
    bool same = whole && lane_count(whole) == static_cast<int64_t>(elements.size());
    for (size_t i = 0; same && i < elements.size(); ++i)
      same = elements[i].is(Op::Index) && elements[i].src(0) == whole &&
             is_const(elements[i].src(1), static_cast<int64_t>(i));
    return same ? whole : stack(elements);
  }

  // The elements that a thread holds of a matrix as one vector.
  UOp fragment(const UOp& u, const Ints& axes, const std::vector<int64_t>& place) const {
    const std::vector<int64_t> sizes = sizes_of(u);
    std::vector<UOp> elements;
    for (const auto& at : places_along(axes, sizes, place)) elements.push_back(element(u, at));
    return joined(elements);
  }

  // One Wmma of vectors for each place along the other axes, onto what those before it along what
  // is summed have made.
  Pieces wmma_pieces(const UOp& u) {
    const WmmaArg& arg = u.as<WmmaArg>();
    const WmmaArg flat{arg.core};
    const std::vector<int64_t> sizes = sizes_of(u), a = sizes_of(u.src(0)), b = sizes_of(u.src(1));
    Ints outer, summed;
    std::vector<int64_t> steps(sizes.size(), 1);
    auto is_element = [](const Ints& axes, int64_t k) {
      return std::find(axes.begin(), axes.end(), k) != axes.end();
    };
    for (size_t n = 0; n < sizes.size(); ++n) {
      const auto k = static_cast<int64_t>(n);
      if (is_element(arg.accumulator, k)) continue;
      if (sizes[n] > 1) outer.push_back(k);
      steps[n] = std::max(a[n], b[n]);
      if (sizes[n] == 1 && steps[n] > 1 && !is_element(arg.a, k) && !is_element(arg.b, k))
        summed.push_back(k);
    }
    std::map<std::vector<int64_t>, UOp> made;  // element by element
    for (const auto& place : places_along(outer, sizes, std::vector<int64_t>(sizes.size()))) {
      UOp value = fragment(u.src(2), arg.accumulator, place);
      for (const auto& at : places_along(summed, steps, place))
        value = UOp::make(
            Op::Wmma, {fragment(u.src(0), arg.a, at), fragment(u.src(1), arg.b, at), value}, flat);
      int64_t i = 0;
      for (const auto& at : places_along(arg.accumulator, sizes, place))
        made.emplace(at, index(value, {index_const(i++)}));
    }
    Pieces out;
    std::vector<UOp> lanes;
    for (const auto& [place, value] : made) {  // row-major
      lanes.push_back(value);
      if (static_cast<int64_t>(lanes.size()) < sizes.back()) continue;
      out.push_back(sizes.back() == 1 ? lanes[0] : joined(lanes));
      lanes.clear();
    }
    return out;
  }

  // --- memory ----------------------------------------------------------------------------------
  UOp buffer_of(const UOp& address) const {
    const UOp& b = address.src(0);
    return b.is(Op::After) ? pieces_.at(b.node())[0] : b;
  }

  Pieces accumulators(const UOp& u) {
    const BufferArg& arg = u.as<BufferArg>();
    if (arg.space != AddrSpace::Reg) return {u};
    const std::vector<int64_t> sizes = sizes_of(u);
    const UOp shape = sizes.back() == 1 ? shape_of({}) : lane_shape();
    Pieces out;
    for (size_t i = lead_count(sizes); i > 0; --i) {
      BufferArg one = arg;
      one.slot = next_register_++;
      out.push_back(UOp::make(Op::Buffer, {shape}, one));
    }
    return out;
  }

  Pieces after_pieces(const UOp& u) {
    std::vector<UOp> deps;
    for (const UOp& d : u.src().subspan(1)) deps.push_back(pieces_.at(d.node())[0]);
    Pieces out;
    for (const UOp& p : pieces_.at(u.src(0).node())) out.push_back(after(p, deps));
    return out;
  }

  Pieces load_pieces(const UOp& u) {
    if (!u.src(0).is(Op::Index)) {  // an accumulator
      Pieces out;
      for (const UOp& p : pieces_.at(u.src(0).node())) out.push_back(load(p));
      return out;
    }
    const std::vector<int64_t> sizes = sizes_of(u);
    Pieces out;
    for (size_t i = 0; i < lead_count(sizes); ++i) {
      const UOp at = piece(u.src(0).src(1), sizes, i);
      const bool gated = u.src().size() == 3;
      UOp gate = gated ? piece(u.src(2), sizes, i) : UOp();
      const UOp alt = gated ? piece(u.src(1), sizes, i) : UOp();
      if (gate && symbolic(gate)) gate = materialize(gate);
      out.push_back(load_piece(buffer_of(u.src(0)), at, alt, gate));
    }
    return out;
  }

  UOp load_piece(const UOp& buffer, const UOp& at, const UOp& alt, const UOp& gate) const {
    const bool vector_gate = gate && !gate.is_scalar();
    if (at.is_scalar() && !symbolic(at) && !vector_gate)
      return gate ? load(index(buffer, {at}), materialize(alt), gate) : load(index(buffer, {at}));
    int64_t step = 0;
    UOp rest;
    if (at.is_scalar() && symbolic(at) && linear_coefficient(at, lane_, step, rest) && step == 1) {
      const UOp address = index(buffer, {add(splat(rest), lane_constants(1))});
      if (!gate) return load(address);
      return load(address, splat(materialize(alt)), splat(gate));
    }
    std::vector<UOp> values;
    for (int64_t i = 0; i < lanes_; ++i) {
      const UOp address = index(buffer, {at_lane(at, i)});
      values.push_back(gate ? load(address, at_lane(alt, i), at_lane(gate, i)) : load(address));
    }
    return stack(values);
  }

  Pieces store_pieces(const UOp& u) {
    std::vector<UOp> effects;
    if (!u.src(0).is(Op::Index)) {
      const Pieces& targets = pieces_.at(u.src(0).node());
      const std::vector<int64_t> sizes = sizes_of(u.src(0));
      for (size_t i = 0; i < targets.size(); ++i) {
        UOp value = materialize(piece(u.src(1), sizes, i));
        if (!targets[i].is_scalar()) value = splat(value);
        effects.push_back(store(targets[i], value));
      }
    } else {
      const std::vector<int64_t> sizes = sizes_of(u.src(0));
      const UOp buffer = buffer_of(u.src(0));
      for (size_t i = 0; i < lead_count(sizes); ++i) {
        const UOp at = piece(u.src(0).src(1), sizes, i);
        const UOp value = materialize(piece(u.src(1), sizes, i));
        UOp gate = u.src().size() == 3 ? piece(u.src(2), sizes, i) : UOp();
        if (gate) gate = materialize(gate);
        store_piece(effects, buffer, at, value, gate, sizes.back());
      }
    }
    return {effects.size() == 1 ? effects[0] : group(effects)};
  }

  // One by one: no machine adds lanes at once.
  Pieces atomic_pieces(const UOp& u) {
    std::vector<UOp> effects;
    const std::vector<int64_t> sizes = sizes_of(u.src(0));
    for (size_t i = 0; i < lead_count(sizes); ++i)
      for (int64_t lane = 0; lane < sizes.back(); ++lane) {
        const UOp at = at_lane(piece(u.src(0).src(1), sizes, i), lane);
        effects.push_back(UOp::make(Op::AtomicAdd, {index(buffer_of(u.src(0)), {at}),
                                                    at_lane(piece(u.src(1), sizes, i), lane)}));
      }
    return {effects.size() == 1 ? effects[0] : group(effects)};
  }

  void store_piece(std::vector<UOp>& effects, const UOp& buffer, const UOp& at, const UOp& value,
                   const UOp& gate, int64_t width) const {
    if (at.is_scalar() && !symbolic(at) && value.is_scalar() && (!gate || gate.is_scalar())) {
      effects.push_back(store(index(buffer, {at}), value, gate));
      return;
    }
    int64_t step = 0;
    UOp rest;
    if (at.is_scalar() && symbolic(at) && linear_coefficient(at, lane_, step, rest) && step == 1) {
      const UOp address = index(buffer, {add(splat(rest), lane_constants(1))});
      effects.push_back(store(address, splat(value), gate ? splat(gate) : UOp()));
      return;
    }
    for (int64_t i = 0; i < std::max<int64_t>(width, 1); ++i)
      effects.push_back(store(index(buffer, {at_lane(at, i)}), at_lane(value, i),
                              gate ? at_lane(gate, i) : UOp()));
  }

  bool in_order_;
  size_t rank_ = 0;
  int64_t lanes_ = 1;
  UOp lane_;
  NodeMap<Pieces> pieces_;
  int64_t next_register_ = 0;
};

// A product by the bits of a power of two is the end of an exponential: where that overflows, its
// value is infinite, and no product that a sum may take unrounded.
const RuleSet<DecomposeContext>& contraction_rules() {
  static const auto& rules = *new const RuleSet<DecomposeContext>{
      rule<DecomposeContext>("mulacc", (any(0) * any(1)).as(3) + any(2),
                             [](const Match& m, DecomposeContext& c) -> UOp {
                               if (m[0].is(Op::Bitcast) || m[1].is(Op::Bitcast)) return {};
                               if (is_rounded_product(m[3])) return {};
                               if (c.lacks(Op::Mulacc, m.root())) return {};
                               return mulacc(m[0], m[1], m[2]);
                             }),
  };
  return rules;
}

// One element of something known: keeps lane arithmetic from leaving traces.
const RuleSet<>& vector_rules() {
  static const auto& rules = *new const RuleSet<>{
      rule("lane of stack", node(Op::Index, {node(Op::Stack).as(0), any_const(1)}),
           [](const Match& m) { return m[0].src(static_cast<size_t>(const_int(m[1]))); }),
      rule("lane of splat", node(Op::Index, {node_with(Op::Expand, {any(0)}), any_const(1)}),
           [](const Match& m) { return m[0].is(Op::Reshape) ? m[0].src(0) : UOp(); }),
      rule("gate that is always open", node(ops({Op::Load, Op::Store}), {any(0), any(1), any(2)}),
           [](const Match& m) -> UOp {
             const UOp* gate = &m[2];
             while (gate->is(Op::Expand) || gate->is(Op::Reshape)) gate = &gate->src(0);
             if (!is_const(*gate, 1)) return {};
             return m.root().is(Op::Load) ? load(m[0]) : store(m[0], m[1]);
           }),
      rule("gated load under its gate",
           pat_where(any(0), node(Op::Load, {any(1), any(2), any(0)}).as(3), any(4)),
           [](const Match& m) {
             return m[4].shape() == m[3].shape() ? load(m[1], m[4], m[0]) : UOp();
           }),
  };
  return rules;
}

// What a language lacks a type for is the caller's to avoid; decompositions may ask for it as well.
UOp require_dtypes(const UOp& ast, const Target& target) {
  for (const UOp& u : toposort(ast))
    for (const DType d : target.lacks)
      KOINE_REQUIRE(u.dtype() != d, Value,
                    "{} has no type for {}, which {} needs: cast before, or avoid what is computed "
                    "in it",
                    target.name, dtype_name(d), op_name(u.op()));
  return ast;
}

}  // namespace

std::vector<StageStep> select_steps(const Target& target) {
  static const auto& decompositions =
      *new const RuleSet<DecomposeContext>(transcendental_rules() + fallback_rules());
  static const auto& vectors =
      *new const RuleSet<>((symbolic_rules() + vector_rules()).remembered());
  auto for_target = [&](const RuleSet<DecomposeContext>& rules) {
    return [target, &rules](const UOp& u) {
      DecomposeContext context{target};
      return rewrite(u, rules, context);
    };
  };
  std::vector<StageStep> steps{
      {"tensor cores", without_software_cores},
      {"decompositions", for_target(decompositions)},
      {"narrow floats", emulate_narrow_floats},
      {"vectors", [in_order = target.strict](
                      const UOp& u) { return rewrite(Devectorizer(in_order).run(u), vectors); }},
  };
  if (target.wide_bytes > 0)
    steps.push_back({"wide accesses", [bytes = target.wide_bytes](const UOp& u) {
                       return in_wide_accesses(u, bytes);
                     }});
  if (is_native(target, Op::Mulacc, DType::Float32))
    steps.push_back({"contraction", for_target(contraction_rules())});
  if (!target.lacks.empty())
    steps.push_back({"dtypes", [target](const UOp& u) { return require_dtypes(u, target); }});
  return steps;
}

UOp select(const UOp& ast, const Target& target) {
  UOp out = ast;
  for (const StageStep& step : select_steps(target)) out = step.apply(out);
  return out;
}

}  // namespace koine
