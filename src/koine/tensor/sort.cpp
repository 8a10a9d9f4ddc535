// Order: sort, argsort, topk, unique and random permutations. Elements of short rows are compared
// with each other, which vectors do well; long rows are ordered by the digits of keys, in a pass of
// some kernels for each byte. The first few of a long row are looked for where the first elements
// of its parts are.
#include <bit>
#include <cmath>
#include <optional>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

constexpr int64_t digits = 256;
// Elements of a row up to which each is compared with each: about where that costs as much as the
// passes over the bytes of the keys (measured: rows of float32 and int64, float16 and int8).
int64_t few(DType keys) { return 128 * item_size(keys); }

// Unsigned integers in the order of the elements: -0 is 0, and NaN comes last.
Tensor keys_of(const Tensor& x) {
  const DType d = x.dtype();
  if (d == DType::Bool) return x.cast(DType::UInt8);
  if (!is_float(d) && is_unsigned(d)) return x;
  const DType keys = storage_uint(d);
  const Tensor one(constant_int(keys, 1)), last = Tensor(constant_int(keys, 0)).bitwise_not();
  const Tensor sign = one.lshift(Tensor(constant_int(keys, 8 * item_size(d) - 1)));
  if (!is_float(d)) return x.bitcast(keys).bitwise_xor(sign);
  const Tensor zero = tensor::like(x, 0);
  const Tensor bits = Tensor::where(x == zero, zero, x).bitcast(keys);
  const Tensor key = Tensor::where(bits >= sign, bits.bitwise_not(), bits.bitwise_xor(sign));
  return Tensor::where(x.isnan(), last, key);
}

// How many rows a value has along its last axis.
Size row_count(const Tensor& x) {
  Size rows = 1;
  for (int64_t k = 0; k + 1 < x.ndim(); ++k) rows *= x.size(k);
  return rows;
}

// Elements of the rows of x at positions (rows, m) of each row, which are in bounds.
Tensor picked_in_rows(const Tensor& x, const Tensor& at) {
  const Size rows = x.size(0), n = x.size(1);
  const DType d = (rows * n).largest() > INT32_MAX ? DType::Int64 : DType::Int32;
  const Tensor start = Tensor::arange(0, rows, 1, d).reshape({rows, 1}) * Tensor(n).cast(d);
  return Tensor(index(x.reshape({rows * n}).uop(), {(start + at.cast(d)).uop()}));
}

// How many elements of a row of 0 and 1, or of sums, over the last axis: int32.
Tensor count(const Tensor& hits) {
  const Tensor ones = hits.cast(DType::Int32);
  return ones.sum({-1});
}

// (rows, n, m): which of the m elements (rows, m) of each row are which of the numbers 0 to n - 1.
Tensor hits(const Tensor& x, int64_t n) {
  return x.cast(DType::Int64).reshape({x.size(0), 1, x.size(1)}) ==
         Tensor::arange(0, n, 1, DType::Int64).reshape({1, n, 1});
}

// Of a permutation (rows, n) of each row's positions: the element that goes to each place.
Tensor inverse(const Tensor& place) {
  const int64_t n = place.size(1);
  const Tensor position = Tensor::arange(n).reshape({1, 1, n});
  return Tensor::where(hits(place, n), position, Tensor(int32_t{0})).sum({-1}).contiguous();
}

// Where each element of a row goes: behind all with a smaller key, and all before it with its own.
Tensor place_by_comparing(const Tensor& keys) {
  const int64_t n = keys.size(1);
  const Size rows = keys.size(0);
  const Tensor mine = keys.reshape({rows, n, 1}), other = keys.reshape({rows, 1, n});
  const Tensor earlier =
      Tensor::arange(n).reshape({1, 1, n}) < Tensor::arange(n).reshape({1, n, 1});
  return count((other < mine).bitwise_or((other == mine).bitwise_and(earlier))).contiguous();
}

// The same by the last byte of the keys alone.
Tensor place_by_digit(const Tensor& keys) {
  const int64_t n = keys.size(1);
  const Size rows = keys.size(0);
  const Tensor digit = keys.cast(DType::UInt8);
  const Tensor all = digit.reshape({rows, 1, n});
  const Tensor upto = Tensor::arange(n).reshape({1, 1, n}) <= Tensor::arange(n).reshape({1, n, 1});
  const Tensor same = all == digit.reshape({rows, n, 1});
  const Tensor rank = count(upto.bitwise_and(same)).contiguous();  // its own included
  const Tensor counts = count(hits(digit, digits)).contiguous();
  const Tensor smaller = (counts.cumsum(1) - counts).contiguous();
  return (picked_in_rows(smaller, digit) + rank - Tensor(1)).contiguous();
}

// The positions (rows, n) of each row's elements by ascending key; equal keys keep their order.
Tensor order_of(Tensor keys) {
  if (keys.size(1) <= few(keys.dtype())) return inverse(place_by_comparing(keys));
  Tensor order;
  const int64_t bytes = item_size(keys.dtype());
  for (int64_t byte = 0; byte < bytes; ++byte) {
    const Tensor from = inverse(place_by_digit(keys));
    order = order.defined() ? picked_in_rows(order, from).contiguous() : from;
    if (byte + 1 == bytes) break;
    const Tensor eight(constant_int(keys.dtype(), 8));
    keys = picked_in_rows(keys, from).rshift(eight).contiguous();
  }
  return order;
}

// The first k of these positions (rows, k). They lie in the k parts of the row whose smallest keys
// come first (of equal ones in the parts that do): a part that is none of these has k parts before
// it, each with an element that precedes all of its own. So a row costs its elements once, and the
// order of about sqrt(n k) of them, twice.
Tensor first_of(const Tensor& keys, int64_t k) {
  const Size rows = keys.size(0);
  const int64_t n = keys.size(1);
  const auto part = static_cast<int64_t>(std::bit_floor(
      static_cast<uint64_t>(std::sqrt(static_cast<double>(n) / static_cast<double>(k)))));
  if (part < 4) return order_of(keys).shrink({{0, rows}, {0, k}});
  const int64_t parts = (n + part - 1) / part;
  // What the last part lacks stands behind all that the row has.
  const Tensor last = Tensor(constant_int(keys.dtype(), 0)).bitwise_not();
  const Tensor whole = keys.pad({{0, 0}, {0, parts * part - n}}, last).contiguous();
  const Tensor smallest = whole.reshape({rows, parts, part}).min({-1}).contiguous();
  const Tensor chosen = first_of(smallest, k).cast(DType::UInt32).contiguous();
  const Tensor in_order = picked_in_rows(chosen, order_of(chosen)).cast(DType::Int32);
  const Tensor at = (in_order.reshape({rows, k, 1}) * Tensor(static_cast<int32_t>(part)) +
                     Tensor::arange(part).reshape({1, 1, part}))
                        .reshape({rows, k * part})
                        .contiguous();
  const Tensor found = first_of(picked_in_rows(whole, at).contiguous(), k);
  return picked_in_rows(at, found).contiguous();
}

}  // namespace

// Positions along an axis in the order of its elements, of each row the first `count`.
Tensor Tensor::order_along(int64_t axis, bool descending, std::optional<int64_t> count) const {
  const int64_t a = axis_of(axis, "argsort");
  const Size n = size(a);
  const int64_t most = n.largest();
  KOINE_REQUIRE(most <= INT32_MAX, Value,
                "argsort: axis {} of shape {} has more than 2^31 - 1 elements", axis,
                shape_text(uop()));
  Tensor keys = keys_of(detach().transpose(a, -1));
  if (descending) keys = keys.bitwise_not();
  Shape moved = keys.shape();
  moved.back() = count ? Size(*count) : n;
  if (numel() == 0 || count == 0) return zeros(moved, DType::Int32).transpose(a, -1);
  const Size rows = row_count(keys);
  keys = keys.reshape({rows, n});
  // What a symbolic axis lacks to its largest size stands behind all that it has.
  if (!n.is_number())
    keys = keys.pad({{0, 0}, {0, most - n}}, Tensor(constant_int(keys.dtype(), 0)).bitwise_not());
  keys = keys.contiguous();
  const Tensor order = count ? first_of(keys, *count) : order_of(keys).shrink({{0, rows}, {0, n}});
  return order.reshape(moved).transpose(a, -1);
}

Tensor Tensor::argsort(int64_t axis, bool descending) const {
  const tensor::Called called("argsort", this);
  return ndim() == 0 ? zeros({}, DType::Int32) : order_along(axis, descending);
}

std::pair<Tensor, Tensor> Tensor::sort(int64_t axis, bool descending) const {
  const tensor::Called called("sort", this);
  const Tensor order =
      tensor::as_method("sort", {*this}, [&] { return argsort(axis, descending); });
  return {along(axis, order), order};
}

std::pair<Tensor, Tensor> Tensor::topk(int64_t k, int64_t axis, bool largest) const {
  const tensor::Called called("topk", this);
  const Size n = ndim() == 0 ? Size(1) : size(axis_of(axis, "topk"));
  KOINE_REQUIRE(k >= 0 && never_exceeds(k, n), Value,
                "topk: {} of the {} elements of axis {} of shape {}", k, n, axis,
                shape_text(uop()));
  if (ndim() == 0) {
    const Tensor only = zeros({}, DType::Int32);
    return {*this, only};
  }
  const Tensor order =
      tensor::as_method("topk", {*this}, [&] { return order_along(axis, largest, k); });
  return {along(axis, order), order};
}

// Elements at positions along an axis, which are in bounds.
Tensor Tensor::along(int64_t axis, const Tensor& at) const {
  if (numel() == 0 || ndim() == 0) return *this;
  const int64_t a = axis_of(axis, "sort");
  const Tensor x = transpose(a, -1), wanted = at.transpose(a, -1);
  const Size rows = row_count(x);
  return picked_in_rows(x.reshape({rows, x.size(-1)}), wanted.reshape({rows, wanted.size(-1)}))
      .reshape(wanted.shape())
      .transpose(a, -1);
}

Tensor Tensor::unique() const {
  const tensor::Called called("unique", this);
  const int64_t n = numel();
  if (n == 0) return reshape({0});
  const Tensor sorted = flatten().sort(0).first.contiguous();
  const Tensor keys = keys_of(sorted).contiguous();
  const Tensor differs = keys.shrink({{1, n}}) != keys.shrink({{0, n - 1}});
  const Tensor first = differs.pad({{1, 0}}, true);
  const Tensor place = (first.cumsum(0) - Tensor(1)).contiguous();
  const auto found = static_cast<int64_t>(place.shrink({{n - 1, n}}).item()) + 1;
  // Of the elements that go to one place the first.
  const Tensor wanted = where(first, place, Tensor(-1)).reshape({1, n});
  const Tensor position = arange(n).reshape({1, 1, n});
  const Tensor from = where(hits(wanted, found), position, Tensor(int32_t{0})).sum({0, -1});
  return Tensor(index(sorted.uop(), {from.contiguous().uop()}));
}

}  // namespace koine
