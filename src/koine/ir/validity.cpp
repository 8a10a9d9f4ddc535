#include "koine/ir/validity.hpp"

#include <numeric>

#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"

namespace koine {

bool goes_to_local(const UOp& u) {
  return u.is(Op::Load) && u.as<LoadArg>().space == AddrSpace::Local;
}

Ints row_axes(const UOp& load) {
  const LoadArg& arg = load.as<LoadArg>();
  if (!arg.axes.empty()) return arg.axes;
  Ints all(load.rank());
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

bool asks_for_buffer(const UOp& u) {
  if (u.is(Op::Contiguous)) {
    const UOp& of = u.src(0);
    const bool memory =
        of.is(Op::Param) || of.is(Op::Buffer) || of.is(Op::After) || is_call_result(of);
    return !memory || u.is_marked();
  }
  return is_call_result(u) || (u.is(Op::Load) && !goes_to_local(u));
}

bool lies_in_memory(const UOp& u) {
  return u.is(Op::Contiguous) || u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::After) ||
         asks_for_buffer(u);
}

bool is_whole(const UOp& u) {
  return u.is(Op::Reduce) || u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::After) ||
         u.is(Op::Load) || u.dtype() == DType::Void || asks_for_buffer(u);
}

bool brings_invalid(const UOp& u) {
  return (u.is(Op::Pad) && u.src().size() == 3) || (u.is(Op::Const) && is_invalid(u));
}

void PartlyInvalid::visit(const UOp& u) {
  const bool holds_values = u.is(Op::Tuple) || u.is(Op::Function);
  if (is_whole(u) && !holds_values) return;
  bool partly = brings_invalid(u);
  if (u.is(Op::GetTuple) && u.src(0).is(Op::Tuple))
    partly = contains(u.src(0).src(static_cast<size_t>(u.as<int64_t>())));
  else
    for (const UOp& s : u.src()) partly = partly || contains(s);
  if (partly) nodes_.insert(u.node());
}

bool may_be_invalid(const UOp& value) {
  PartlyInvalid found;
  for (const UOp& u : toposort(value)) found.visit(u);
  return found.contains(value);
}

namespace {

UOp broadcast_to(const UOp& value, const UOp& shape) {
  std::vector<UOp> sizes(shape.src().size() - value.rank(), index_const(1));
  for (size_t i = 0; i < value.rank(); ++i) sizes.push_back(value.dim(i));
  return sizes.empty() ? value : expand(reshape(value, stack(sizes)), shape);
}

// Whether each element of a node is invalid, from what is known of its sources; null: none is.
class OneNode {
 public:
  // `same`: the node, or what stands for it where values are wanted.
  OneNode(const InvalidElements& known, const UOp& same) : known_(known), same_(same) {}

  UOp compute(const UOp& u) const {
    if (u.is(Op::Const)) return is_invalid(u) ? constant_bool(true) : UOp();
    if (is_whole(u) || u.src().empty()) return {};
    if (is_elementwise(u.op())) return elementwise(u);
    if (u.is(Op::Pad)) return padded(u);
    if (u.is(Op::Stack)) return stacked(u);
    const UOp bad = of(u.src(0));
    if (!bad) return {};
    if (u.is(Op::Bitcast)) return bitcasted(u, bad);
    if (!is_movement(u.op())) return bad;  // a marker
    return with_source(same_, 0, bad);
  }

 private:
  UOp of(const UOp& u) const { return known_.of(u); }
  // The same with false in place of null.
  UOp bits_of(const UOp& u) const {
    const UOp bad = of(u);
    return bad ? bad : broadcast_to(constant_bool(false), u.shape());
  }

  UOp elementwise(const UOp& u) const {
    UOp bad;
    auto also = [&](const UOp& more) { bad = bad && more ? bit_or(bad, more) : more ? more : bad; };
    if (u.is(Op::Where)) {  // only the chosen side counts
      if (of(u.src(1)) || of(u.src(2))) {
        const bool open = of(u.src(0)) && same_ == u;
        const UOp condition = open ? contiguous(u.src(0)) : same_.src(0);
        also(where(condition, bits_of(u.src(1)), bits_of(u.src(2))));
      }
      also(of(u.src(0)));
    } else {
      for (const UOp& s : u.src()) also(of(s));
    }
    return bad ? broadcast_to(bad, u.shape()) : UOp();
  }

  UOp padded(const UOp& u) const {
    const bool filled = u.src().size() == 4;
    if (filled && !of(u.src(0)) && !of(u.src(3))) return {};
    return pad(bits_of(u.src(0)), u.src(1), u.src(2),
               filled ? bits_of(u.src(3)) : constant_bool(true));
  }

  UOp stacked(const UOp& u) const {
    bool any = false;
    std::vector<UOp> parts;
    for (const UOp& s : u.src()) {
      any = any || of(s);
      parts.push_back(bits_of(s));
    }
    return any ? stack(parts) : UOp();
  }

  // An element is invalid where one of those that share its bytes is.
  static UOp bitcasted(const UOp& u, const UOp& bad) {
    const int64_t from = item_size(u.src(0).dtype()), to = item_size(u.dtype());
    if (from == to) return bad;
    std::vector<UOp> sizes;  // with an axis for those that share
    for (size_t i = 0; i + 1 < u.rank(); ++i) sizes.push_back(u.dim(i));
    const bool narrower = to < from;
    sizes.push_back(narrower ? bad.dim(bad.rank() - 1) : u.dim(u.rank() - 1));
    sizes.push_back(index_const(narrower ? 1 : to / from));
    UOp shared = reshape(bad, stack(sizes));
    if (narrower) {
      sizes.back() = index_const(from / to);
      shared = expand(shared, stack(sizes));
    } else {
      shared = reduce(Op::Max, shared, {static_cast<int64_t>(sizes.size()) - 1});
    }
    return reshape(shared, u.shape());
  }

  const InvalidElements& known_;
  const UOp& same_;
};

}  // namespace

UOp InvalidElements::of(const UOp& node) const {
  const UOp* known = known_.find(node.node());
  return known != nullptr ? *known : UOp();
}
void InvalidElements::visit(const UOp& node) { visit(node, node); }
void InvalidElements::visit(const UOp& node, const UOp& same) {
  if (const UOp bad = OneNode(*this, same).compute(node)) known_.set(node.node(), bad);
}

}  // namespace koine
