#include "graphs.hpp"

#include <algorithm>
#include <utility>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

// Bits of a NaN are not specified, so they stay out of sight of a Bitcast.
UOp without_nans(const UOp& x) {
  return is_float(x.dtype()) ? where(ne(x, x), constant(x.dtype(), 1), x) : x;
}

DType random_dtype(std::mt19937_64& random) {
  const std::vector<DType> dtypes = stored_dtypes();
  return dtypes[random() % dtypes.size()];
}
// A graph over leaves that get their memory at the end: nothing is allocated while a Function is
// traced.
UOp with_memory(std::mt19937_64& random,
                const std::function<UOp(const GraphGenerator::Leaf& leaf)>& make) {
  std::vector<UOp> leaves;
  const UOp graph = make([&](const std::vector<int64_t>& sizes, DType dtype) {
    leaves.push_back(new_buffer(shape_of(sizes), dtype, Device("CPU")));
    return leaves.back();
  });
  Substitution filled;
  for (const UOp& l : leaves) filled.emplace(l, random_leaf(random, l.sizes(), l.dtype()));
  return substitute(graph, filled);
}

UOp as_number(const UOp& x) { return x.dtype() == DType::Bool ? cast(x, DType::UInt8) : x; }

UOp any_large_graph(std::mt19937_64& random) {
  // Mostly at the lower end: the interpreter takes long over each element.
  const uint64_t fewest = 100000, most = random() % 4 == 0 ? 500000 : 200000;
  const DType dtype = random_dtype(random);
  const uint64_t elements = fewest + random() % (most - fewest);
  // Axes before the last one: odd, short or about as long as the last.
  std::vector<int64_t> sizes;
  uint64_t rest = elements;
  for (uint64_t rank = 1 + random() % 3; rank > 1; --rank) {
    const uint64_t size = (random() % 2 == 0 ? 3 + random() % 40 : 100 + random() % 300) | 1;
    sizes.push_back(static_cast<int64_t>(size));
    rest = std::max<uint64_t>(rest / size, 1);
  }
  sizes.push_back(static_cast<int64_t>(rest));
  std::shuffle(sizes.begin(), sizes.end(), random);
  const auto steps = static_cast<int64_t>(3 + random() % 2);
  const UOp root = with_memory(random, [&](const GraphGenerator::Leaf& leaf) {
    return GraphGenerator(random, leaf, {}, static_cast<int64_t>(most))
        .graph_over(leaf(sizes, dtype), steps);
  });
  if (root.rank() == 0 || random() % 2 == 0) return root;
  return reduce(random() % 3 == 0 ? Op::Max : Op::Add, root,
                {static_cast<int64_t>(random() % root.rank())});
}

}  // namespace

std::vector<int64_t> GraphGenerator::sizes() {
  std::vector<int64_t> out;
  for (int64_t rank = below(4); rank > 0; --rank)
    out.push_back(chance(30) ? 0 : chance(3) ? 1 : chance(6) ? 8 + below(30) : 1 + below(6));
  return out;
}

UOp GraphGenerator::graph(DType dtype, int64_t most_steps) {
  const int64_t steps = 1 + below(most_steps);
  return graph_over(make_leaf_(sizes(), dtype), steps);
}

UOp GraphGenerator::graph_over(const UOp& leaf, int64_t steps) {
  padded_ = false;
  const UOp root = grow(leaf, steps);
  // A Pad without fill leaves invalid elements: a sum resolves them, or memory.
  if (padded_ && root.rank() > 0 && !is_small_float(root.dtype()) && !chance(4))
    return reduce(Op::Add, root, {below(static_cast<int64_t>(root.rank()))});
  return padded_ ? contiguous(root) : root;
}

UOp GraphGenerator::grow(const UOp& from, int64_t steps) {
  std::vector<UOp> pool{from};
  for (int64_t i = 0; i < steps; ++i) {
    const auto recent = std::min<int64_t>(2, static_cast<int64_t>(pool.size()));
    const UOp next = step(pool[pool.size() - 1 - static_cast<size_t>(below(recent))]);
    if (next && next.numel() <= most_elements_) pool.push_back(next);
  }
  return pool.back();
}

// A leaf or constant that broadcasts with `x`.
UOp GraphGenerator::partner(const UOp& x) {
  if (chance(3))
    return constant_int(x.dtype(),
                        below(7) - (is_unsigned(x.dtype()) || x.dtype() == DType::Bool ? 0 : 3));
  std::vector<int64_t> sizes = x.sizes();
  for (int64_t& s : sizes)
    if (chance(4)) s = 1;
  if (!sizes.empty() && chance(4)) sizes.erase(sizes.begin());
  return make_leaf_(sizes, x.dtype());
}

UOp GraphGenerator::elementwise(const UOp& x) {
  const DType d = x.dtype();
  std::vector<Op> ops{Op::Add, Op::Mul, Op::Max, Op::CmpLt, Op::CmpNe, Op::Where};
  if (is_float(d) || features_.whole_mulacc) ops.insert(ops.end(), {Op::Mulacc, Op::Trunc});
  if (is_float(d))
    ops.insert(ops.end(),
               {Op::Fdiv, Op::Mod, Op::Sqrt, Op::Recip, Op::Exp2, Op::Log2, Op::Sin, Op::Pow});
  if (is_integer(d))
    ops.insert(ops.end(), {Op::Idiv, Op::Mod, Op::Xor, Op::Or, Op::And, Op::Shl, Op::Shr});
  if (d == DType::Bool) ops.insert(ops.end(), {Op::Xor, Op::Or, Op::And});
  const Op op = pick(ops);
  if (op == Op::Sin) return sine(x, below(4));
  const bool natural = (op == Op::Exp2 || op == Op::Log2) && chance(2);  // base e
  if (natural) return UOp::make(op, {x}, int64_t{1});
  if (op_info(op).fewest == 1) return unary(op, x);
  if (op == Op::Where) {
    const UOp condition = chance(2) ? lt(x, partner(x)) : ne(x, constant_int(d, 0));
    return chance(2) ? where(condition, x, partner(x)) : where(condition, partner(x), x);
  }
  if (op == Op::Mulacc) return mulacc(x, partner(x), partner(x));
  return chance(2) ? binary(op, x, partner(x)) : binary(op, partner(x), x);
}

UOp GraphGenerator::padded(const UOp& x) {
  std::vector<int64_t> offset, size;
  for (const int64_t s : x.sizes()) {
    offset.push_back(below(3));
    size.push_back(s + offset.back() + below(3));
  }
  const bool filled = !chance(3);
  padded_ = padded_ || !filled;
  return pad(x, shape_of(offset), shape_of(size),
             filled ? constant_int(x.dtype(), below(2)) : UOp());
}

// A random factorisation of the number of elements.
UOp GraphGenerator::reshaped(const UOp& x) {
  int64_t n = x.numel();
  if (n == 0) return reshape(x, shape_of({0, 1 + below(3)}));
  std::vector<int64_t> out;
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

UOp GraphGenerator::stacked(const UOp& x) {
  const UOp other =
      chance(2) ? flip(x, std::vector<int64_t>(x.rank(), 1)) : make_leaf_(x.sizes(), x.dtype());
  std::vector<UOp> parts{x, other};
  if (chance(2)) parts.push_back(binary(Op::Max, x, other));
  return stack(parts);
}

UOp GraphGenerator::movement(const UOp& x) {
  const std::vector<int64_t> sizes = x.sizes();
  const auto rank = static_cast<int64_t>(sizes.size());
  if (rank == 0) return chance(2) ? stacked(x) : reshape(x, shape_of({1}));
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
    case 3:
      return padded(x);
    case 4: {
      std::vector<int64_t> wide = sizes;
      for (int64_t& s : wide)
        if (s == 1) s = 1 + below(4);
      return expand(x, shape_of(wide));
    }
    case 5:
      return reshaped(x);
    default:
      return stacked(x);
  }
}

// Positions along an axis of size n, of any integer dtype, some of them out of range: those read 0.
UOp GraphGenerator::positions(int64_t n) {
  const std::vector<DType> dtypes{DType::Int8,  DType::Int16,  DType::Int32,  DType::Int64,
                                  DType::UInt8, DType::UInt16, DType::UInt32, DType::UInt64};
  const DType dtype = pick(dtypes);
  std::vector<int64_t> sizes;
  for (int64_t rank = chance(4) ? 2 : chance(8) ? 0 : 1; rank > 0; --rank)
    sizes.push_back(below(6));
  if (chance(3)) {  // computed: a leaf, wrapped into the range or near it
    const UOp at = make_leaf_(sizes, dtype);
    return mod(at, constant_int(dtype, std::min<int64_t>(n + 1, 100)));
  }
  int64_t count = 1;
  for (const int64_t s : sizes) count *= s;
  std::vector<UOp> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(constant_int(
        dtype, chance(6) ? (features_.wide_positions || dtype != DType::UInt64 ? below(1000) - 500
                                                                               : below(1000))
                         : below(n + 1)));
  if (sizes.empty()) return values[0];
  return count == 0 ? make_leaf_(sizes, dtype) : reshape(stack(values), shape_of(sizes));
}

UOp GraphGenerator::indexed(const UOp& x) {
  const std::vector<int64_t> sizes = x.sizes();
  if (sizes.empty()) return {};
  const UOp first = positions(sizes[0]);
  if (sizes.size() < 2 || chance(2)) return index(x, {first});
  return index(x, {first, chance(2) ? index_const(below(sizes[1] + 1)) : positions(sizes[1])});
}

UOp GraphGenerator::bitcasted(const UOp& x) {
  if (x.dtype() == DType::Bool) return {};
  const bool resizes = features_.resizing_bitcasts && x.rank() > 0;
  std::vector<DType> fitting;
  for (const DType d : stored_dtypes()) {
    const bool same = item_size(d) == item_size(x.dtype());
    const int64_t bytes = resizes ? x.sizes().back() * item_size(x.dtype()) : 1;
    if (d != DType::Bool && (same || (resizes && bytes % item_size(d) == 0))) fitting.push_back(d);
  }
  const UOp out = bitcast(without_nans(x), pick(fitting));
  return without_nans(out);
}

UOp GraphGenerator::reduced(const UOp& x) {
  if (x.rank() == 0) return {};
  // Tensor sums narrow floats as float32.
  const UOp wide = is_small_float(x.dtype()) && chance(2) ? cast(x, DType::Float32) : x;
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < static_cast<int64_t>(x.rank()); ++i)
    if (chance(2)) axes.push_back(i);
  if (axes.empty()) axes.push_back(0);
  return reduce(pick<Op>({Op::Add, Op::Max, Op::Mul}), wide, axes);
}

UOp GraphGenerator::marked(const UOp& x) {
  switch (below(5)) {
    case 0:
      return detach(x);
    case 1:
      return UOp::make(Op::ContiguousBackward, {x});
    case 2:
      for (size_t i = 0; i < x.rank(); ++i)
        if (x.sizes()[i] == 1) return replicated(x, static_cast<int64_t>(i));
      return {};
    case 3:
      return UOp::make(Op::Fence, {x, make_leaf_({2}, DType::Float32)});
    default:
      return chance(2) ? load(contiguous(x))
                       : UOp::make(Op::Load, {x}, LoadArg{{}, AddrSpace::Local});
  }
}

UOp GraphGenerator::gated_load(const UOp& x) {
  const UOp gate = ne(make_leaf_(x.sizes(), DType::Int8), constant_int(DType::Int8, 0));
  return load(contiguous(x),
              chance(2) ? constant_int(x.dtype(), 1) : make_leaf_(x.sizes(), x.dtype()), gate);
}

// A call of a Function of one to three values. Its body is a random graph over its parameters and
// over anything around it, which it captures; it may call another Function.
UOp GraphGenerator::called(const UOp& x) {
  if (depth_ == 3) return {};
  std::vector<UOp> arguments{x};
  while (chance(2) && arguments.size() < 3)
    arguments.push_back(chance(3) ? x : make_leaf_(sizes(), x.dtype()));
  const Leaf outer = make_leaf_;
  const bool was_padded = std::exchange(padded_, false);
  ++depth_;
  const UOp call = make_function(
      [&](const std::vector<UOp>& parameters) {
        make_leaf_ = [&](const std::vector<int64_t>& sizes, DType dtype) {
          for (const UOp& p : parameters)
            if (p.dtype() == dtype && p.sizes() == sizes && chance(2)) return p;
          return outer(sizes, dtype);
        };
        std::vector<UOp> results;
        for (size_t i = 0; i < 2; ++i) {
          const UOp result = grow(pick(parameters), 1 + below(4));
          results.push_back(padded_ ? contiguous(result) : result);
        }
        // It may capture a lazy value from around it: here the very argument.
        if (chance(3)) results.push_back(binary(Op::Max, x, parameters[0]));
        return results;
      },
      arguments, chance(4) ? Resolve::Precompile : Resolve::Substitute);
  --depth_;
  make_leaf_ = outer;
  padded_ = was_padded;
  return get_tuple(call, below(static_cast<int64_t>(call.src(0).src().size())));
}

// What needs a value of its own kind.
UOp GraphGenerator::special(const UOp& x) {
  switch (below(5)) {
    case 0:
      return features_.functions ? called(x) : UOp();
    case 1:
      return features_.gated_loads ? gated_load(x) : UOp();
    case 2: {
      if (!features_.threefry) return {};
      const UOp counter = cast(as_number(x), DType::UInt64);
      return binary(Op::Threefry, counter, partner(counter));
    }
    case 3: {
      if (!features_.raw_bytes) return {};
      std::string bytes;
      for (int64_t i = item_size(x.dtype()) * (1 + below(3)); i > 0; --i)
        bytes.push_back(static_cast<char>(below(256)));
      const UOp blob = UOp::make(Op::Binary, {}, bytes);
      if (x.dtype() == DType::Bool) return ne(blob, constant_int(DType::UInt8, 0));
      return without_nans(bitcast(blob, x.dtype()));
    }
    default:
      return features_.markers ? marked(x) : UOp();
  }
}

UOp GraphGenerator::step(const UOp& x) {
  switch (below(12)) {
    case 0:
      return reduced(x);
    case 1:
      return cast(x, pick(stored_dtypes()));
    case 2:
      return chance(2) ? contiguous(x) : chance(2) ? indexed(x) : bitcasted(x);
    case 3:
    case 4:
    case 5:
    case 6:
      return movement(x);
    case 7:
      return special(x);
    default:
      return elementwise(x);
  }
}

UOp random_graph(std::mt19937_64& random, Features features) {
  const DType dtype = random_dtype(random);
  return with_memory(random, [&](const GraphGenerator::Leaf& leaf) {
    return GraphGenerator(random, leaf, features).graph(dtype);
  });
}

UOp large_random_graph(std::mt19937_64& random) {
  // Elements of all values: a million take the interpreters about a second.
  constexpr int64_t most_work = 2500000;
  for (;;) {
    const UOp graph = any_large_graph(random);
    int64_t work = 0;
    for (const UOp& u : toposort(graph)) work += u.dtype() == DType::Index ? 0 : u.numel();
    if (work <= most_work) return graph;
  }
}

}  // namespace koine::test
