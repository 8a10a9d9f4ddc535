#include "koine/lower/index.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

UOp load_under(const UOp& guard, const UOp& address, DType dtype) {
  return is_true(guard) ? load(address) : load(address, constant_int(dtype, 0), guard);
}

}  // namespace

UOp Leaves::param_of(const UOp& node, DType dtype, const UOp& elements) {
  const auto [it, fresh] =
      slots_.try_emplace({node.node(), dtype}, static_cast<int64_t>(slots_.size()));
  return param(it->second, stack(std::vector<UOp>{elements}), dtype);
}

Indices Indexer::open_loops(const UOp& value, std::vector<UOp>& loops) {
  return koine::open_loops(value, next_range_, loops);
}

// Explicit stack: chains of hundreds of thousands of nodes are legal.
UOp Indexer::element(const UOp& node, const Indices& at) {
  const Place root{node, at, {}};
  std::vector<Place> stack{root};
  while (!stack.empty()) {
    const Place place = stack.back();
    if (memo_.contains(place)) {
      stack.pop_back();
      continue;
    }
    missing_.clear();
    const OriginScope from(origin_of(place.node));
    const UOp made = build(place);
    if (missing_.empty()) {
      memo_.emplace(place, made);
      stack.pop_back();
      continue;
    }
    stack.insert(stack.end(), missing_.rbegin(), missing_.rend());  // the first is made first
  }
  return memo_.at(root);
}

// The element of a source, or a request for it.
UOp Indexer::need(Place place) {
  if (const auto it = memo_.find(place); it != memo_.end()) return it->second;
  missing_.push_back(std::move(place));
  return {};
}

UOp Indexer::build(const Place& place) {
  const UOp& node = place.node;
  if (node.is(Op::Const) || is_variable(node)) return node;
  // What has no elements is looked at under a guard alone that never holds.
  for (const UOp& size : node.shape().src())
    if (is_const(size, 0)) return constant_int(node.dtype(), 0);
  if (memory_.is_read(node)) return read(place, node);
  if (is_elementwise(node.op())) return elementwise(place);
  switch (node.op()) {
    case Op::Reduce:
      return reduction(place);
    case Op::Load:
      return goes_to_local(node) ? local(place) : gated(place);
    case Op::After:
      memory_.wait_for(node);
      return need({node.src(0), place.at, place.guard});
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Detach:
    case Op::Fence:  // of what reads no memory
      return need({node.src(0), place.at, place.guard});
    case Op::Assume: {
      const UOp value = need({node.src(0), place.at, place.guard});
      return value ? UOp::make(Op::Assume, {value, node.src(1), node.src(2)}) : UOp();
    }
    case Op::Stack:
      return stacked(place);
    case Op::Bitcast: {
      if (item_size(node.src(0).dtype()) != item_size(node.dtype()))
        return read(place, node.src(0));
      const UOp value = need({node.src(0), place.at, place.guard});
      return value ? bitcast(value, node.dtype()) : UOp();
    }
    case Op::Pad:
      return padded(place);
    case Op::Index:
      return indexed(place);
    default:
      break;
  }
  if (!is_movement(node.op()))
    internal_error("rangeify does not know {}:\n{}", op_name(node.op()), to_text(node));
  UOp inside;
  const Indices at = moved(node, place.at, inside);
  return need({node.src(0), at, place.guard});
}

// From the memory of a node; it may be seen with a dtype of another size.
UOp Indexer::read(const Place& place, const UOp& from) {
  const UOp& node = place.node;
  const UOp shape = node.shape();
  const UOp memory = memory_.param_of(from, node.dtype(), product(shape));
  return load_under(place.guard, index(memory, {flat_index(shape, place.at)}), node.dtype());
}

UOp Indexer::elementwise(const Place& place) {
  const UOp& node = place.node;
  std::vector<UOp> src;
  for (const UOp& s : node.src()) src.push_back(need({s, aligned(s, place.at), place.guard}));
  return missing_.empty() ? UOp::make(node.op(), src, node.arg()) : UOp();
}

UOp Indexer::reduction(const Place& place) {
  const UOp& node = place.node;
  // Folded once for all elements beside it, whichever of these are there.
  if (const UOp guard = guard_of(place.at, place.guard); !(guard == place.guard))
    return need({node, place.at, guard});
  const ReduceArg& arg = node.as<ReduceArg>();
  auto size_of = [&](int64_t axis) { return node.src(0).dim(static_cast<size_t>(axis)); };
  for (const int64_t axis : arg.axes)  // nothing to reduce
    if (is_const(size_of(axis), 0)) return identity_of(arg.op, node.dtype());
  const auto [it, fresh] = reduce_ranges_.try_emplace(place);
  if (fresh)
    for (const int64_t axis : arg.axes) {
      const UOp size = size_of(axis);
      it->second.push_back(is_const(size, 1) ? index_const(0)
                                             : range(next_range_++, size, AxisType::Reduce));
    }
  const Indices folded = it->second;  // need() may grow the map
  Indices at = place.at;
  std::vector<UOp> ranges;
  for (size_t k = 0; k < arg.axes.size(); ++k) {
    at[static_cast<size_t>(arg.axes[k])] = folded[k];
    if (folded[k].is(Op::Range)) ranges.push_back(folded[k]);
  }
  const UOp body = need({node.src(0), at, place.guard});
  if (!missing_.empty() || ranges.empty()) return body;
  return rewrite(reduce_ranges(arg.op, rewrite(body, kernel_rules(strict_)), ranges),
                 kernel_rules(strict_));
}

UOp Indexer::stacked(const Place& place) {
  const UOp& node = place.node;
  const Indices rest(place.at.begin() + 1, place.at.end());
  const std::vector<Choice> choices = choices_of(node, place.at[0]);
  if (choices.empty()) return constant_int(node.dtype(), 0);  // no place is in range
  UOp out;
  for (size_t k = choices.size(); k-- > 0;) {
    const auto& [source, here] = choices[k];
    const UOp part = need({source, rest, conjunction(place.guard, here)});
    if (missing_.empty()) out = out ? where(here, part, out) : part;
  }
  return out;
}

UOp Indexer::padded(const Place& place) {
  const UOp& node = place.node;
  UOp inside;
  const Indices at = moved(node, place.at, inside);
  const UOp fill = need({node.src(3), {}, place.guard});
  if (is_false(inside)) return fill;
  const UOp value = need({node.src(0), at, conjunction(place.guard, inside)});
  if (!missing_.empty() || is_true(inside)) return value;
  return where(inside, value, fill);
}

// A gated Load reads memory only where its gate is true, and gives the alt elsewhere.
UOp Indexer::gated(const Place& place) {
  const UOp& node = place.node;
  const UOp &alt = node.src(1), &gate = node.src(2);
  const UOp open = need({gate, aligned(gate, place.at), place.guard});
  if (!missing_.empty()) return {};
  const UOp inside = need({node.src(0), place.at, conjunction(place.guard, open)});
  const UOp outside = need({alt, aligned(alt, place.at), place.guard});
  return missing_.empty() ? where(open, inside, outside) : UOp();
}

Indexer::Local Indexer::open_local(const Place& row) {
  const UOp& node = row.node;
  Local out{row.at, {}, row_axes(node), {}, {}};
  int64_t size = 1;
  for (const int64_t axis : out.axes) {
    const auto i = static_cast<size_t>(axis);
    size = static_cast<int64_t>(
        std::min<__int128>(size * node.dim(i).bounds().high, most_local_bytes + 1));
    if (is_const(node.dim(i), 1)) continue;
    out.at[i] = range(next_range_++, node.dim(i), AxisType::Loop);
    out.loops.push_back(out.at[i]);
  }
  KOINE_REQUIRE(size * item_size(node.dtype()) <= most_local_bytes, Memory,
                "Load: {} of shape {} does not fit into LOCAL memory of {} bytes",
                dtype_name(node.dtype()), shape_text(node), most_local_bytes);
  out.buffer = UOp::make(
      Op::Buffer, {shape_of({size})},
      BufferArg{static_cast<int64_t>(locals_.size()) - 1, node.dtype(), {}, AddrSpace::Local});
  return out;
}

// A Load into LOCAL memory: a buffer of this kernel, which holds all of a value, behind a Barrier,
// or a row of it, which is the thread's own. It is filled before anything reads it.
UOp Indexer::local(const Place& place) {
  const UOp& node = place.node;
  const bool whole = node.as<LoadArg>().axes.empty();
  Place row{node, place.at, whole ? UOp() : place.guard};
  for (const int64_t axis : row_axes(node)) row.at[static_cast<size_t>(axis)] = index_const(0);
  auto [it, fresh] = locals_.try_emplace(row);
  if (fresh) it->second = open_local(row);
  if (!whole && it->second.loops.empty()) return need({node.src(0), place.at, place.guard});
  const Local known = it->second;  // need() may grow the map
  auto address = [&](const UOp& memory, const Indices& at) {
    std::vector<UOp> sizes;
    Indices inside;
    for (const int64_t axis : known.axes) {
      sizes.push_back(node.dim(static_cast<size_t>(axis)));
      inside.push_back(at[static_cast<size_t>(axis)]);
    }
    return index(memory, {flat_index(sizes.empty() ? shape_of({}) : stack(sizes), inside)});
  };
  if (!known.filled) {
    const Place from{node, known.at, row.guard};
    const UOp value =
        node.src().size() == 3 ? gated(from) : need({node.src(0), known.at, row.guard});
    if (!missing_.empty()) return {};
    // As it will be in the end, so that all that reads it waits for one node.
    const UOp filled = rewrite(end(store(address(known.buffer, known.at), value), known.loops),
                               kernel_rules(strict_));
    locals_[row].filled = after(known.buffer, {whole ? UOp::make(Op::Barrier, {filled}) : filled});
  }
  return load_under(place.guard, address(locals_.at(row).filled, place.at), node.dtype());
}

// Index by values: each index is bounds-checked; out of range reads 0 (amendment C28). It is read
// once for all elements beside it, whichever of these are there.
UOp Indexer::indexed(const Place& place) {
  UOp inside;
  const Indices at =
      koine::indexed(place.node, place.at, inside, [&](const UOp& which, const Indices& its) {
        return need({which, its, guard_of(its, place.guard)});
      });
  if (!missing_.empty()) return {};
  const UOp value = need({place.node.src(0), at, conjunction(place.guard, inside)});
  if (!missing_.empty() || is_true(inside)) return value;
  return where(inside, value, constant_int(value.dtype(), 0));
}

Indices Indexer::indexed_place(const UOp& node, const Indices& at, UOp& inside) {
  return koine::indexed(node, at, inside,
                        [&](const UOp& which, const Indices& its) { return element(which, its); });
}

}  // namespace koine
