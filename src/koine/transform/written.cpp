#include "koine/transform/written.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
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
      case Op::Permute: {
        const Ints& order = u.as<Ints>();
        Ints back(order.size());
        for (size_t i = 0; i < order.size(); ++i)
          back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
        value = permute(value, back);
        break;
      }
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

// The view that an effect of an After stores into.
UOp stored_view(const UOp& after, size_t k, std::string_view transform) {
  const UOp& effect = after.src(k);
  const bool plain = effect.is(Op::Store) && effect.src().size() == 2 &&
                     memory_of_view(effect.src(0)) == after.src(0);
  KOINE_REQUIRE(plain, Type,
                "{0}: After has a {0} rule for plain Stores into views of the memory that it "
                "holds, not for this {1}{2}; detach() what is stored",
                transform, op_name(effect.op()),
                effect.is(Op::Group) ? fmt::format(": {}", of_groups) : "");
  return effect.src(0);
}

}  // namespace

UOp after_value(const UOp& after, const UOp& memory, std::span<const UOp> stored) {
  UOp out = memory;
  for (size_t k = 1; k < after.src().size(); ++k) {
    const UOp view = stored_view(after, k, "transform");
    const UOp there = put_back(view, stored[k - 1], constant(memory.dtype(), 0));
    out = where(inside(view), there, out);
  }
  return out;
}

std::vector<UOp> after_vjp(const UOp& after, const UOp& cotangent) {
  std::vector<UOp> out(after.src().size());
  UOp left = cotangent;
  for (size_t k = after.src().size(); k-- > 1;) {
    const UOp view = stored_view(after, k, "gradient");
    out[k] = left;
    left = where(inside(view), constant(left.dtype(), 0), left);
  }
  out[0] = left;
  return out;
}

std::vector<UOp> stored_vjp(const UOp& store, const UOp& cotangent) {
  std::vector<UOp> out(store.src().size());
  const UOp& view = store.src(0);
  out[1] = substitute(view, {{memory_of_view(view), cotangent}});
  return out;
}

}  // namespace koine
