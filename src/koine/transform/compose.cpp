#include "koine/transform/compose.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "koine/ir/symbolic.hpp"

namespace koine {

UOp sum_to(const UOp& value, const UOp& shape) {
  if (value.shape() == shape) return value;
  const size_t extra = value.rank() - shape.src().size();
  Ints axes;
  for (size_t i = 0; i < value.rank(); ++i)
    if (i < extra || !(value.dim(i) == shape.src(i - extra)))
      axes.push_back(static_cast<int64_t>(i));
  return in_shape(reduce(Op::Add, value, axes), shape);
}

UOp iota(int64_t n, DType dtype) {
  if (n == 0)
    return shrink(reshape(constant_int(dtype, 0), shape_of({1})), shape_of({0}), shape_of({0}));
  constexpr int64_t row = int64_t{1} << 30;  // whose windows have fewer than 2^63 elements
  if (n > row) {
    const int64_t rows = (n + row - 1) / row;
    const UOp start =
                  mul(reshape(iota(rows, dtype), shape_of({rows, 1})), constant_int(dtype, row)),
              along = reshape(iota(row, dtype), shape_of({1, row}));
    const UOp whole =
        add(expand(start, shape_of({rows, row})), expand(along, shape_of({rows, row})));
    return shrink(reshape(whole, shape_of({rows * row})), shape_of({0}), shape_of({n}));
  }
  // prefix_sum(ones) - 1: windows of a padded, tiled row of ones.
  UOp x = expand(reshape(constant_int(dtype, 1), shape_of({1})), shape_of({n}));
  x = pad(x, shape_of({n - 1}), shape_of({2 * n - 1}), constant_int(dtype, 0));
  x = expand(reshape(x, shape_of({1, 2 * n - 1})), shape_of({n + 1, 2 * n - 1}));
  x = shrink(reshape(x, shape_of({(n + 1) * (2 * n - 1)})), shape_of({0}), shape_of({2 * n * n}));
  x = shrink(reshape(x, shape_of({n, 2 * n})), shape_of({0, 0}), shape_of({n, n}));
  x = reshape(reduce(Op::Add, x, {1}), shape_of({n}));
  return add(x, constant_int(dtype, -1));
}

UOp iota(const UOp& size, DType dtype) {
  if (size.is(Op::Const)) return iota(const_int(size), dtype);
  // The first of the longest sequence.
  const UOp most = iota(static_cast<int64_t>(size.bounds().high), dtype);
  return shrink(most, shape_of({0}), stack(std::vector<UOp>{size}));
}

Ints all_axes(const UOp& x) {
  Ints axes(x.rank());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  return axes;
}

UOp spread(const UOp& scalar, const UOp& shape) {
  return expand(reshape(scalar, shape_of(Ints(shape.src().size(), 1))), shape);
}

UOp broadcast_to(const UOp& x, const UOp& shape) {
  if (x.shape() == shape) return x;
  std::vector<UOp> wide(shape.src().size() - x.rank(), index_const(1));
  for (size_t k = 0; k < x.rank(); ++k) wide.push_back(x.dim(k));
  return expand(in_shape(x, stack(wide)), shape);
}

UOp filled_like(const UOp& value, double number) {
  return broadcast_to(like(value, number), value.shape());
}

UOp moved_axis(const UOp& value, size_t from, size_t to) {
  if (from == to) return value;
  Ints order;
  for (size_t k = 0; k < value.rank(); ++k)
    if (k != from) order.push_back(static_cast<int64_t>(k));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), static_cast<int64_t>(from));
  return permute(value, order);
}

UOp times(const UOp& g, const UOp& x) {
  UOp base = g;
  while (base.is(Op::Expand) || base.is(Op::Reshape)) base = UOp(base.src(0));
  return is_const(base, 1) ? broadcast_to(x, g.shape()) : mul(g, x);
}

// Of each pair of neighbouring blocks of 1, 2, 4, ... elements the product of the other one.
UOp product_of_others(const UOp& x, const Ints& axes) {
  Ints order, back(x.rank());
  UOp rows = index_const(1), count = index_const(1);
  for (size_t k = 0; k < x.rank(); ++k)
    if (std::ranges::count(axes, static_cast<int64_t>(k)) == 0) {
      order.push_back(static_cast<int64_t>(k));
      rows = simplify_index(mul(rows, x.dim(k)));
    }
  for (const int64_t axis : axes) {
    order.push_back(axis);
    count = simplify_index(mul(count, x.dim(static_cast<size_t>(axis))));
  }
  for (size_t k = 0; k < order.size(); ++k)
    back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  const UOp turned = permute(x, order);
  auto shape = [](std::initializer_list<UOp> dims) { return stack(std::vector<UOp>(dims)); };
  const UOp one = like(x, 1), row = shape({rows, count}), start = shape_of({0, 0});
  // A power of two that holds every size that `count` may have.
  const auto most = static_cast<uint64_t>(std::max<int64_t>(1, int64_t(count.bounds().high)));
  const auto total = static_cast<int64_t>(std::bit_ceil(most));
  const UOp whole = shape({rows, index_const(total)});
  const UOp padded = pad(reshape(turned, row), start, whole, one);
  UOp others = spread(one, whole);
  for (int64_t size = 1; size < total; size *= 2) {
    const UOp blocks = reshape(
        padded, shape({rows, index_const(total / size / 2), index_const(2), index_const(size)}));
    const UOp other = flip(reduce(Op::Mul, blocks, {3}), {0, 0, 1, 0});
    others = mul(others, reshape(expand(other, blocks.shape()), whole));
  }
  return permute(reshape(shrink(others, start, row), turned.shape()), back);
}

UOp where_condition(const UOp& n) {
  const UOp &condition = n.src(0), &x = n.src(1), &rest = n.src(2);
  const bool relu = condition.is(Op::CmpLt) && condition.src(1) == x && rest.is(Op::Max) &&
                    rest.src(0).is(Op::Detach) && rest.src(0).src(0) == x &&
                    rest.src(1) == condition.src(0);
  return relu ? lt(condition.src(0), n) : condition;
}

}  // namespace koine
