#include "koine/transform/written.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

UOp memory_of_view(UOp view) {
  while (is_movement(view.op()) && !view.is(Op::Index)) view = view.src(0);
  return view;
}

// A value of the view's shape, put back to where the view took it from; elsewhere `around`.
UOp put_back(UOp view, UOp value, const UOp& around) {
  for (; is_movement(view.op()); view = view.src(0)) {
    const UOp& u = view;
    const UOp shape = u.src(0).shape();
    switch (u.op()) {
      case Op::Permute:
        value = permute_back(value, u.as<Ints>());
        break;
      case Op::Flip:
        value = flip(value, u.as<Ints>());
        break;
      case Op::Shrink:
        value = pad(value, u.src(1), shape, around);
        break;
      case Op::Pad:
        value = shrink(value, u.src(1), shape);
        break;
      default:  // Reshape, and an Expand that repeats nothing
        value = reshape(value, shape);
    }
  }
  return value;
}

// Whether an element of the memory is one that the view shows.
UOp inside(const UOp& view) {
  const Ints ones(view.rank(), 1);
  const UOp yes = expand(reshape(constant_bool(true), shape_of(ones)), view.shape());
  return put_back(view, yes, constant_bool(false));
}

// Where an effect of an After stores: into a view of its memory, or at places along one whose only
// axis they count (null: into all of it).
struct Target {
  UOp view, places;
};
Target target_of(const UOp& store) {
  const UOp& target = store.src(0);
  const bool at_places = target.is(Op::Index) && target.src().size() == 2 &&
                         target.src(0).rank() == 1 && target.src(1).rank() == 1;
  return at_places ? Target{target.src(0), target.src(1)} : Target{target, {}};
}
Target target_of(const UOp& after, size_t k, std::string_view transform) {
  const UOp& effect = after.src(k);
  if (effect.is(Op::Store) && effect.src().size() == 2)
    if (Target target = target_of(effect); memory_of_view(target.view) == after.src(0))
      return target;
  raise(ErrorKind::Type,
        "{0}: After has a {0} rule for plain Stores into views of the memory that it holds, not "
        "for this {1}{2}; detach() what is stored",
        transform, op_name(effect.op()),
        effect.is(Op::Group) ? fmt::format(": {}", of_groups) : "");
}

// Of each place along an axis of n, which of the values is the last that is stored there, counted
// from 1; 0: none is.
UOp last_stored(const Target& target) {
  const UOp &n = target.view.dim(0), &count = target.places.dim(0), one = index_const(1);
  const UOp at = reshape(cast(target.places, DType::Int64), stack(std::vector<UOp>{count, one}));
  const UOp all = reshape(iota(n, DType::Int64), stack(std::vector<UOp>{one, n}));
  const UOp order = add(reshape(iota(count, DType::Int64), stack(std::vector<UOp>{count, one})),
                        constant_int(DType::Int64, 1));
  const UOp none = constant_int(DType::Int64, 0);
  return reshape(reduce(Op::Max, where(eq(at, all), order, none), {0}), stack(std::vector<UOp>{n}));
}

// Whether an element of the memory is one that a Store writes.
UOp written(const Target& target) {
  if (!target.places) return inside(target.view);
  const UOp hit = ne(last_stored(target), constant_int(DType::Int64, 0));
  return put_back(target.view, hit, constant_bool(false));
}

// What a Store of `value` writes where it does, as a value of the memory's shape.
UOp put_there(const Target& target, UOp value, DType dtype) {
  if (target.places) {
    const UOp zero = constant_int(DType::Int64, 0);
    const UOp last = sub(last_stored(target), constant_int(DType::Int64, 1));
    value = index(value, {maximum(last, zero)});
  }
  return put_back(target.view, value, constant(dtype, 0));
}

}  // namespace

UOp after_value(const UOp& after, const UOp& memory, std::span<const UOp> stored) {
  UOp out = memory;
  for (size_t k = 1; k < after.src().size(); ++k) {
    const Target target = target_of(after, k, "transform");
    out = where(written(target), put_there(target, stored[k - 1], memory.dtype()), out);
  }
  return out;
}

std::vector<UOp> after_vjp(const UOp& after, const UOp& cotangent) {
  std::vector<UOp> out(after.src().size());
  UOp left = cotangent;
  for (size_t k = after.src().size(); k-- > 1;) {
    const Target target = target_of(after, k, "gradient");
    out[k] = left;
    left = where(written(target), constant(left.dtype(), 0), left);
  }
  out[0] = left;
  return out;
}

std::vector<UOp> stored_vjp(const UOp& store, const UOp& cotangent) {
  std::vector<UOp> out(store.src().size());
  const Target target = target_of(store);
  out[1] = substitute(target.view, {{memory_of_view(target.view), cotangent}});
  if (!target.places) return out;
  // Of several values for one place the last one stays.
  const UOp own = add(iota(target.places.dim(0), DType::Int64), constant_int(DType::Int64, 1));
  const UOp stays = eq(index(last_stored(target), {target.places}), own);
  out[1] = where(stays, index(out[1], {target.places}), constant(cotangent.dtype(), 0));
  return out;
}

}  // namespace koine
