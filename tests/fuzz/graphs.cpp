#include "graphs.hpp"

#include <algorithm>

#include "check.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  UOp graph() {
    dtype_ = pick(stored_dtypes());
    std::vector<UOp> pool{leaf()};
    const int64_t steps = below(10) + 1;
    for (int64_t i = 0; i < steps; ++i) {
      const UOp next = step(pool[pool.size() - 1 -
                                 static_cast<size_t>(below(
                                     std::min<int64_t>(2, static_cast<int64_t>(pool.size()))))]);
      if (next && (!next.has_concrete_shape() || next.numel() <= 3000)) pool.push_back(next);
    }
    UOp root = pool.back();
    // A Pad without fill leaves invalid elements: a sum resolves them.
    if (padded_ && root.rank() > 0)
      root = reduce(Op::Add, root, {below(static_cast<int64_t>(root.rank()))});
    return root;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <class T>
  T pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

  UOp leaf() {
    const int64_t rank = below(4);
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < rank; ++i)
      sizes.push_back(chance(30) ? 0 : chance(3) ? 1 : chance(6) ? 8 + below(30) : 1 + below(6));
    return random_leaf(random_, sizes, dtype_);
  }

  // A leaf or constant that broadcasts with `x`.
  UOp partner(const UOp& x) {
    if (chance(3))
      return constant_int(x.dtype(),
                          below(7) - (is_unsigned(x.dtype()) || x.dtype() == DType::Bool ? 0 : 3));
    std::vector<int64_t> sizes = x.sizes();
    for (int64_t& s : sizes)
      if (chance(4)) s = 1;
    if (!sizes.empty() && chance(4)) sizes.erase(sizes.begin());
    return random_leaf(random_, sizes, x.dtype());
  }

  UOp elementwise(const UOp& x) {
    const DType d = x.dtype();
    std::vector<Op> ops{Op::Add, Op::Mul, Op::Max, Op::CmpLt, Op::CmpNe, Op::Where};
    if (is_float(d))
      ops.insert(ops.end(), {Op::Fdiv, Op::Sqrt, Op::Trunc, Op::Recip, Op::Mulacc, Op::Exp2,
                             Op::Log2, Op::Sin, Op::Pow});
    if (is_integer(d))
      ops.insert(ops.end(),
                 {Op::Idiv, Op::Mod, Op::Xor, Op::Or, Op::And, Op::Shl, Op::Shr, Op::Mulacc});
    if (d == DType::Bool) ops.insert(ops.end(), {Op::Xor, Op::Or, Op::And});
    const Op op = pick(ops);
    if (op_info(op).fewest == 1) return unary(op, x);
    if (op == Op::Where) return where(ne(x, constant_int(d, 0)), x, partner(x));
    if (op == Op::Mulacc) return mulacc(x, partner(x), partner(x));
    return chance(2) ? binary(op, x, partner(x)) : binary(op, partner(x), x);
  }

  UOp movement(const UOp& x) {
    const std::vector<int64_t> sizes = x.sizes();
    const auto rank = static_cast<int64_t>(sizes.size());
    if (rank == 0) return reshape(x, shape_of({1}));
    switch (below(7)) {
      case 0: {
        std::vector<int64_t> order;
        for (int64_t i = 0; i < rank; ++i) order.push_back(i);
        std::shuffle(order.begin(), order.end(), random_);
        return permute(x, order);
      }
      case 1: {
        std::vector<int64_t> flags;
        for (int64_t i = 0; i < rank; ++i) flags.push_back(below(2));
        return flip(x, flags);
      }
      case 2: {
        std::vector<int64_t> offset, size;
        for (const int64_t s : sizes) {
          const int64_t from = s == 0 ? 0 : below(s);
          offset.push_back(from);
          size.push_back(s == 0 ? 0 : 1 + below(s - from));
        }
        return shrink(x, shape_of(offset), shape_of(size));
      }
      case 3: {
        std::vector<int64_t> offset, size;
        for (const int64_t s : sizes) {
          offset.push_back(below(3));
          size.push_back(s + offset.back() + below(3));
        }
        const bool filled = !chance(3);
        padded_ = padded_ || !filled;
        return pad(x, shape_of(offset), shape_of(size),
                   filled ? constant_int(x.dtype(), below(2)) : UOp());
      }
      case 4: {
        std::vector<int64_t> wide = sizes;
        for (int64_t& s : wide)
          if (s == 1) s = 1 + below(4);
        return expand(x, shape_of(wide));
      }
      case 5: {  // a random factorisation of the number of elements
        int64_t n = x.numel();
        std::vector<int64_t> out;
        if (n == 0) return reshape(x, shape_of({0, 1 + below(3)}));
        for (int64_t i = 0; i < 2 && n > 1; ++i) {
          std::vector<int64_t> divisors;
          for (int64_t d = 1; d <= n; ++d)
            if (n % d == 0) divisors.push_back(d);
          out.push_back(pick(divisors));
          n /= out.back();
        }
        out.push_back(n);
        return reshape(x, shape_of(out));
      }
      default:
        return stack(std::vector<UOp>{x, flip(x, std::vector<int64_t>(sizes.size(), 1))});
    }
  }

  // Positions along the first axis (or the first two), some of them out of range: those read 0.
  UOp indexed(const UOp& x) {
    const std::vector<int64_t> sizes = x.sizes();
    if (sizes.empty()) return {};
    auto positions = [&](int64_t n) {
      std::vector<int32_t> at;
      const int64_t count = below(6);
      for (int64_t i = 0; i < count; ++i)
        at.push_back(static_cast<int32_t>(chance(6) ? below(1000) - 500 : below(n + 1)));
      return buffer_from_host(shape_of({count}), DType::Int32, "CPU", at.data());
    };
    const UOp first = positions(sizes[0]);
    if (sizes.size() < 2 || chance(2)) return index(x, {first});
    return index(x, {first, chance(2) ? index_const(below(sizes[1] + 1)) : positions(sizes[1])});
  }

  UOp same_size_bitcast(const UOp& x) {
    if (x.dtype() == DType::Bool) return {};
    std::vector<DType> fitting;
    for (const DType d : stored_dtypes())
      if (d != DType::Bool && item_size(d) == item_size(x.dtype())) fitting.push_back(d);
    // Bits of a NaN are not specified, so they stay out of sight.
    const UOp clean = is_float(x.dtype()) ? where(ne(x, x), constant(x.dtype(), 1), x) : x;
    return bitcast(clean, pick(fitting));
  }

  UOp step(const UOp& x) {
    switch (below(10)) {
      case 0:
        if (x.rank() == 0) return {};
        {
          // Floats narrower than 32 bits are summed in float32 by Tensor; kernels refuse them.
          const UOp wide = is_small_float(x.dtype()) ? cast(x, DType::Float32) : x;
          std::vector<int64_t> axes;
          for (int64_t i = 0; i < static_cast<int64_t>(x.rank()); ++i)
            if (chance(2)) axes.push_back(i);
          if (axes.empty()) axes.push_back(0);
          const Op op = pick<Op>({Op::Add, Op::Max, Op::Mul});
          return reduce(op, wide, axes);
        }
      case 1:
        return cast(x, pick(stored_dtypes()));
      case 2:
        return chance(2) ? contiguous(x) : chance(2) ? indexed(x) : same_size_bitcast(x);
      case 3:
      case 4:
      case 5:
      case 6:
        return movement(x);
      default:
        return elementwise(x);
    }
  }

  std::mt19937_64& random_;
  DType dtype_ = DType::Float32;
  bool padded_ = false;
};

}  // namespace

UOp random_graph(std::mt19937_64& random) { return Generator(random).graph(); }

}  // namespace koine::test
