#include "koine/transform/parts.hpp"

#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"

namespace koine {
namespace {

UOp times(const UOp& size, size_t count) {
  return simplify_index(mul(size, index_const(static_cast<int64_t>(count))));
}
UOp divided(const UOp& size, size_t pieces) {
  return simplify_index(idiv(size, index_const(static_cast<int64_t>(pieces))));
}

// Whether elements [from, from + count) of an axis lie beside what a Pad places there.
bool is_beside(const UOp& pad, size_t axis, const UOp& from, const UOp& count) {
  const UOp &begin = pad.src(1).src(axis), &size = pad.src(0).dim(axis);
  for (const UOp& u : {from, count, begin, size})
    if (!u.is(Op::Const)) return false;
  return const_int(from) + const_int(count) <= const_int(begin) ||
         const_int(from) >= const_int(begin) + const_int(size);
}

}  // namespace

UOp shape_with(const UOp& value, size_t axis, const UOp& size) {
  std::vector<UOp> dims;
  for (size_t k = 0; k < value.rank(); ++k) dims.push_back(k == axis ? size : value.dim(k));
  return stack(dims);
}

UOp part_shape(const UOp& value) {
  const auto axis = value.axis();
  if (!axis) return value.shape();
  return shape_with(value, *axis, divided(value.dim(*axis), value.device().count()));
}

UOp sliced(const UOp& value, const Cut& cut) {
  if (cut.count == cut.pieces) return value;
  const UOp unit = divided(value.dim(cut.axis), cut.pieces);
  const UOp from = times(unit, cut.first), count = times(unit, cut.count);
  const UOp shape = shape_with(value, cut.axis, count);
  if (value.is(Op::Pad) && value.src().size() == 4 && is_beside(value, cut.axis, from, count))
    return expand(reshape(value.src(3), shape_of(Ints(value.rank(), 1))), shape);
  // What only repeats, repeats less.
  if (value.is(Op::Expand) && is_const(value.src(0).dim(cut.axis), 1))
    return expand(value.src(0), shape);
  return slice(value, cut.axis, from, count);
}

UOp joined(const Parts& pieces, size_t axis) {
  if (pieces.size() == 1) return pieces[0];
  const UOp size = times(pieces[0].dim(axis), pieces.size());
  Ints order;
  for (size_t k = 0; k < axis; ++k) order.push_back(static_cast<int64_t>(k) + 1);
  order.push_back(0);
  for (size_t k = axis; k < pieces[0].rank(); ++k) order.push_back(static_cast<int64_t>(k) + 1);
  return reshape(permute(stack(pieces), order), shape_with(pieces[0], axis, size));
}

UOp Copies::of(const UOp& value, Device device, const std::string& reason) {
  if (!value.device() || value.device() == device) return value;
  std::vector<UOp> views;
  UOp base = value;
  for (; base.is(Op::Reshape) || base.is(Op::Expand); base = UOp(base.src(0)))
    views.push_back(base);
  UOp& copy = made_[{base.node(), &device.name()}];  // which keeps the value alive
  if (!copy) copy = UOp::make(Op::Load, {base}, LoadArg{device, AddrSpace::Global, {}, reason});
  UOp out = copy;
  for (; !views.empty(); views.pop_back()) out = with_source(views.back(), 0, out);
  return out;
}

}  // namespace koine
