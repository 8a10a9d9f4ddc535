// Assignment: through views, of leaves, of what cannot be computed; and what a gradient still
// knows.
#include <cmath>
#include <numeric>

#include "check.hpp"
#include "gradient_check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/nn/optim.hpp"

namespace koine::test {
namespace {

// A view as plain loops see it: for each of its elements the place in the base.
struct Places {
  Shape sizes;
  std::vector<size_t> at;

  int64_t numel() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  size_t of(const Shape& index) const {
    int64_t flat = 0;
    for (size_t k = 0; k < sizes.size(); ++k) flat = flat * sizes[k] + index[k];
    return at[static_cast<size_t>(flat)];
  }
  // Of the given sizes, each element from where `source` says.
  Places moved(const Shape& to, const std::function<Shape(const Shape&)>& source) const {
    Places out{to, {}};
    const int64_t n = out.numel();
    for (int64_t flat = 0; flat < n; ++flat) {
      Shape index(to.size(), 0);
      int64_t left = flat;
      for (size_t k = to.size(); k-- > 0; left /= to[k]) index[k] = left % to[k];
      out.at.push_back(of(source(index)));
    }
    return out;
  }
};

struct Viewed {
  Tensor tensor;
  Places places;
};

// One random movement op.
Viewed step(const Viewed& v, std::mt19937_64& random) {
  const Shape& sizes = v.places.sizes;
  const size_t rank = sizes.size();
  const size_t axis = rank == 0 ? 0 : random() % rank;
  const auto signed_axis = static_cast<int64_t>(axis);
  switch (rank == 0 ? 2 : random() % 5) {
    case 0: {
      std::vector<int64_t> order(rank);
      std::iota(order.begin(), order.end(), int64_t{0});
      std::shuffle(order.begin(), order.end(), random);
      Shape to;
      for (const int64_t a : order) to.push_back(sizes[static_cast<size_t>(a)]);
      return {v.tensor.permute(order), v.places.moved(to, [&](const Shape& index) {
                Shape from(rank, 0);
                for (size_t k = 0; k < rank; ++k) from[static_cast<size_t>(order[k])] = index[k];
                return from;
              })};
    }
    case 1:
      return {v.tensor.flip({signed_axis}), v.places.moved(sizes, [&](Shape index) {
                index[axis] = sizes[axis] - 1 - index[axis];
                return index;
              })};
    case 2: {  // merge two axes, or add one of size 1
      Shape to = sizes;
      if (axis + 1 < rank && random() % 2 == 0) {
        to[axis] *= to[axis + 1];
        to.erase(to.begin() + signed_axis + 1);
      } else {
        to.insert(to.begin() + signed_axis, 1);
      }
      return {v.tensor.reshape(to), {to, v.places.at}};
    }
    case 3: {  // a position
      const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(sizes[axis]));
      std::vector<IndexItem> items(axis, Slice{});
      items.emplace_back(random() % 2 ? Size(at) : at - sizes[axis]);
      Shape to = sizes;
      to.erase(to.begin() + signed_axis);
      return {v.tensor[items], v.places.moved(to, [&](Shape index) {
                index.insert(index.begin() + signed_axis, at);
                return index;
              })};
    }
    default: {  // a slice with a step of either sign
      const int64_t n = sizes[axis], by = 1 + static_cast<int64_t>(random() % 4);
      const auto start = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
      const bool back = random() % 2 == 0;
      const int64_t count = back ? start / by + 1 : (n - start + by - 1) / by;
      std::vector<IndexItem> items(axis, Slice{});
      items.emplace_back(Slice{start, {}, back ? -by : by});
      Shape to = sizes;
      to[axis] = count;
      return {v.tensor[items], v.places.moved(to, [&](Shape index) {
                index[axis] = start + (back ? -by : by) * index[axis];
                return index;
              })};
    }
  }
}

Tensor ramp_of(int64_t n, DType dtype = DType::Float32) {
  return Tensor::arange(n).cast(dtype).clone().realize();
}

}  // namespace

// A write through any chain of movement ops, against plain loops; earlier readers keep the old
// state.
TEST(assignment, spec_B20_spec_amend_29_random_views_are_written) {
  std::mt19937_64 random(test_seed());
  const int64_t cases = test_cases(150);
  for (int64_t c = 0; c < cases; ++c) {
    Shape sizes;
    for (uint64_t k = 1 + random() % 3; k-- > 0;)
      sizes.push_back(1 + static_cast<int64_t>(random() % 7));
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    const DType dtype = random() % 2 ? DType::Float32 : DType::Int64;
    const Tensor base = ramp_of(n, dtype).reshape(sizes).clone().realize();
    std::vector<double> wanted = values(base);
    Viewed v{base, {sizes, {}}};
    for (size_t i = 0; i < wanted.size(); ++i) v.places.at.push_back(i);
    for (uint64_t k = random() % 4 + 1; k-- > 0;) v = step(v, random);
    const Tensor before = base + Tensor(1), other = base.flatten();
    ASSERT_EQ(v.tensor.shape(), v.places.sizes);
    const Tensor value = (Tensor::arange(v.places.numel()) + Tensor(100)).reshape(v.places.sizes);
    const auto old = wanted;
    for (size_t i = 0; i < v.places.at.size(); ++i)
      wanted[v.places.at[i]] = 100 + static_cast<double>(i);
    v.tensor.assign(value);
    ASSERT_EQ(values(base), wanted) << "case " << c << ", seed " << test_seed();
    ASSERT_EQ(values(other), wanted) << "another view, case " << c;
    ASSERT_EQ(values(v.tensor), values(value)) << "case " << c;
    const auto earlier = values(before);
    for (size_t i = 0; i < old.size(); ++i) ASSERT_EQ(earlier[i], old[i] + 1) << "case " << c;
  }
}

TEST(assignment, spec_B20_a_step_that_leaves_a_rest) {
  for (const int64_t n : {1, 4, 5, 6, 7})
    for (const int64_t by : {2, 3, 4, -2, -3}) {
      Tensor a = ramp_of(n), b = ramp_of(n);
      const std::vector<IndexItem> every{Slice{{}, {}, by}};
      Tensor view = a[every];
      view.assign(Tensor(-1.0));
      b.setitem(every, Tensor(-1.0));
      std::vector<double> wanted(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t from_start = by > 0 ? i : n - 1 - i;
        wanted[static_cast<size_t>(i)] =
            from_start % std::abs(by) == 0 ? -1 : static_cast<double>(i);
      }
      EXPECT_EQ(values(a), wanted) << n << " by " << by;
      EXPECT_EQ(values(b), wanted) << n << " by " << by;
    }
  Tensor x = ramp_of(5);
  Tensor wide = x.reshape({5, 1}).expand({5, 2});
  expect_error([&] { wide.assign(Tensor(1.0)); },
               {"assign", "repeats", "(5, 1)", "(5, 2)", "clone"});
  // A pad is no view: it has places that the tensor has not.
  Tensor padded = x.pad({{1, 1}});
  padded.assign(Tensor(7.0));
  EXPECT_EQ(values(padded), std::vector<double>(7, 7));
  EXPECT_EQ(values(x), (std::vector<double>{0, 1, 2, 3, 4}));
  // An expand that repeats nothing is one.
  x.reshape({1, 5}).expand({1, 5}).assign(Tensor(2.0));
  EXPECT_EQ(values(x), std::vector<double>(5, 2));
}

// Whoever reads a state lazily keeps it, whatever it is made of, and however it is written over.
TEST(assignment, spec_B20_a_lazy_reader_keeps_the_old_state) {
  const auto fresh = [] { return Tensor::from<float>({1, 2, 3, 4}); };
  for (const bool computed : {false, true}) {
    Tensor x = computed ? fresh() * Tensor(1.0) : fresh();
    const Tensor reader = x * Tensor(10.0), view = x.flip({0}), through = view + Tensor(0.5);
    x[{Slice{1, 3}}].assign(Tensor(-1.0));
    EXPECT_EQ(values(reader), (std::vector<double>{10, 20, 30, 40}));
    EXPECT_EQ(values(through), (std::vector<double>{4.5, 3.5, 2.5, 1.5}));
    EXPECT_EQ(values(view), (std::vector<double>{4, -1, -1, 1})) << "a view sees the write";
    const Tensor later = x + Tensor(1.0);
    x.assign(x * Tensor(2.0));
    x[{Slice{0, 1}}].assign(x[{Slice{3, 4}}]);
    EXPECT_EQ(values(later), (std::vector<double>{2, 0, 0, 5}));
    EXPECT_EQ(values(x), (std::vector<double>{8, -2, -2, 8}));
    // The value may read what it overwrites.
    x.flip({0}).assign(x + Tensor::from<float>({0, 1, 2, 3}));
    EXPECT_EQ(values(x), (std::vector<double>{11, 0, -1, 8}));
  }
  // Without a reader the memory is written in place.
  Tensor x = fresh();
  const auto memory = memory_of(x.uop());
  x[{Slice{0, 2}}].assign(Tensor(9.0));
  EXPECT_EQ(values(x), (std::vector<double>{9, 9, 3, 4}));
  EXPECT_EQ(memory_of(x.uop()), memory);
}

// A function that does not read an argument drops it, and what is written for that argument is
// written all the same: later readers find it.
TEST(assignment, spec_B20_what_is_written_for_an_argument_that_nobody_reads_is_written) {
  const Tensor old = Tensor::from<float>({1, 2, 3});
  Tensor state(old.uop());
  state.setitem({Tensor::from<int32_t>({0, 2})}, Tensor::from<float>({7, 9}));
  const UOp one = constant(DType::Float32, 1);
  const UOp call = UOp::make(Op::Function, {UOp::make(Op::Tuple, {one, one}), state.uop()});
  EXPECT_EQ(Tensor(UOp::make(Op::GetTuple, {call}, int64_t{1})).item<float>(), 1);
  EXPECT_EQ(state.tolist<float>(), (std::vector<float>{7, 2, 9}));
  EXPECT_EQ(old.tolist<float>(), (std::vector<float>{1, 2, 3}));
}

// A step of decoding writes a row of two caches by one launch, and reads both.
TEST(assignment, rows_of_two_caches_are_written_together) {
  constexpr int64_t heads = 4, length = 64, width = 32, before = 40;
  Tensor keys = Tensor::zeros({heads, length, width}).clone().realize(),
         values_of = Tensor::zeros({heads, length, width}).clone().realize();
  const auto row = [](int64_t i, int64_t by) {
    const Tensor all = (Tensor::arange(heads * width) * by + i) % 5 - 2;
    return all.cast(DType::Float32).reshape({heads, 1, width}).realize();
  };
  const Tensor nothing = Tensor::zeros({heads, before, width}).clone().realize();
  std::vector<Tensor> k{nothing}, v{nothing};
  for (int64_t i = before; i < before + 4; ++i) {
    k.push_back(row(i, 3));
    v.push_back(row(i, 7));
    const Tensor q = row(i, 2);
    const Slice at{i, i + 1}, known{0, i + 1};
    keys[{Slice{}, at}].assign(k.back());
    values_of[{Slice{}, at}].assign(v.back());
    const Tensor out =
        q.scaled_dot_product_attention(keys[{Slice{}, known}], values_of[{Slice{}, known}]);
    reset_counters();
    const std::vector<double> got = values(out);
    EXPECT_LE(counters().kernels, 4) << i;
    const std::vector<double> expected =
        values(q.scaled_dot_product_attention(Tensor::cat(k, 1), Tensor::cat(v, 1)));
    for (size_t j = 0; j < got.size(); ++j) EXPECT_NEAR(got[j], expected[j], 1e-6) << i;
  }
  EXPECT_EQ(values(keys[{Slice{}, Slice{0, before + 4}}]), values(Tensor::cat(k, 1)));
  EXPECT_EQ(values(values_of[{Slice{}, Slice{0, before + 4}}]), values(Tensor::cat(v, 1)));
}

TEST(assignment, what_cannot_be_computed_changes_nothing) {
  const Tensor far = Tensor::from<int32_t>({7});
  Tensor x = Tensor::from<float>({1, 2, 3});
  const std::vector<double> old{1, 2, 3};
  Tensor view = x[{Slice{0, 2}}];
  expect_error(
      [&] {
        x.setitem({far}, Tensor(5.0));
        (void)values(x);
      },
      {"7", "out of range"});
  EXPECT_EQ(values(x), old);
  EXPECT_EQ(values(view), (std::vector<double>{1, 2}));
  expect_error(
      [&] {
        view.assign(x.index_select(0, far));
        (void)values(x);
      },
      {"7", "out of range"});
  EXPECT_EQ(values(x), old);
  x.assign(x.index_select(0, far).expand({3}));
  x += Tensor(1.0);
  expect_error([&] { (void)values(view); }, {"7", "out of range"});
  EXPECT_EQ(values(x), old);
  expect_error([&] { x.assign(Tensor::ones({2})); }, {"assign", "(2,)", "(3,)"});
  expect_error([&] { x.setitem({5}, Tensor(1.0)); }, {"5", "out of range"});
  EXPECT_EQ(values(x), old);
  // What can be computed stays, whatever fails beside it.
  Tensor y = Tensor::from<float>({4, 5});
  y.assign(y * Tensor(2.0));
  x.assign(x.index_select(0, far).expand({3}));
  expect_error([&] { Tensor::realize({y, x}); }, {"7", "out of range"});
  EXPECT_EQ(values(y), (std::vector<double>{8, 10}));
  EXPECT_EQ(values(x), old);
  // Out of memory: the new value is large, its old one small.
  Options small = options();
  small.memory_limit = 1 << 20;
  {
    const OptionScope scope(small);
    x.assign(Tensor::ones({1 << 20}).contiguous().sum().expand({3}));
    expect_error([&] { (void)values(x); }, {"out of memory"});
  }
  EXPECT_EQ(values(x), old);
  // Looking inside of a trace is an error that takes nothing back.
  x.assign(x + Tensor(1.0));
  const auto peek = koine::function([&](const Tensor& t) { return t * x.sum().item(); });
  expect_error([&] { (void)peek(y); }, {"traced"});
  EXPECT_EQ(values(x), (std::vector<double>{2, 3, 4}));
  // What has been computed is the value that a later failure falls back to.
  x.assign(x.index_select(0, far).expand({3}));
  expect_error([&] { (void)values(x); }, {"7", "out of range"});
  EXPECT_EQ(values(x), (std::vector<double>{2, 3, 4}));
}

// Leaves with equal values have gradients of their own (A4).
TEST(assignment, spec_A4_spec_amend_34_equal_values_keep_leaves_apart) {
  auto check = [](Tensor& a, Tensor& b, const char* how) {
    a.zero_grad();
    b.zero_grad();
    (a * Tensor(2.0) + b * Tensor(3.0)).sum().backward();
    EXPECT_EQ(values(a.grad()), std::vector<double>(3, 2)) << how;
    EXPECT_EQ(values(b.grad()), std::vector<double>(3, 3)) << how;
  };
  Tensor a = Tensor::from<float>({1, 2, 3}).requires_grad();
  Tensor b = Tensor::from<float>({4, 5, 6}).requires_grad();
  check(a, b, "different");
  a.assign(Tensor::zeros({3}));
  b.assign(Tensor::zeros({3}));
  check(a, b, "zeros");
  a.assign(0.5);
  b.assign(0.5);
  check(a, b, "one number");
  Tensor::realize({a, b});
  check(a, b, "realized");
  b.assign(a);
  check(a, b, "one from the other");
  a.setitem({0}, 7.0);
  EXPECT_EQ(values(b), std::vector<double>(3, 0.5));
  const Tensor shared = Tensor::ones({3}) * Tensor(2.0);
  Tensor::assign_all({a, b}, {shared, shared});
  check(a, b, "all at once");
  Tensor::assign_all({a, b}, {b, b});
  check(a, b, "one buffer");
  Tensor c = Tensor::from<float>({1, 2, 3}), d = Tensor::zeros({3});
  d.assign(c);
  c.requires_grad();
  d.requires_grad();
  check(c, d, "required after the assignment");
  // backward() adds, over all leaves and calls.
  (a * b).sum().backward();
  EXPECT_EQ(values(a.grad()), std::vector<double>(3, 2 + 2));
  a.sum().backward();
  EXPECT_EQ(values(a.grad()), std::vector<double>(3, 5));
  // Without requires_grad: each full() is a tensor of its own.
  const Tensor e = Tensor::full({2}, 4.0), f = Tensor::full({2}, 4.0);
  const Tensor sum = (e * Tensor(3.0) + f * Tensor(5.0)).sum();
  const auto both = sum.gradient({e, f});
  EXPECT_EQ(values(both[0]), (std::vector<double>{3, 3}));
  EXPECT_EQ(values(both[1]), (std::vector<double>{5, 5}));
  EXPECT_EQ(values(sum.gradient({f})[0]), (std::vector<double>{5, 5}));
  const Tensor g = Tensor::full({}, 4.0);
  EXPECT_EQ(values((g * g + Tensor(4.0)).gradient({g})[0]), std::vector<double>{8});
  // What cannot be told apart is refused.
  const Tensor h = Tensor::arange(2).to_float(), k = Tensor::arange(2).to_float();
  expect_error([&] { (void)(h * Tensor(3.0) + k).sum().gradient({h, k}); },
               {"targets 0 and 1", "(2,)", "clone()"});
  const Tensor two(2.0);
  expect_error([&] { (void)(two * two).gradient({two}); }, {"target 0", "number 2", "full"});
}

// A write through a view is part of the graph where a gradient may be asked through it.
TEST(assignment, spec_B20_a_write_through_a_view_keeps_the_gradient) {
  Tensor w = Tensor::from<float>({1, 2, 3, 4}).requires_grad();
  Tensor x = w * Tensor(2.0);
  x.shrink({{0, 1}}).assign(Tensor(0.0));
  EXPECT_EQ(values(x), (std::vector<double>{0, 4, 6, 8}));
  (x.sum() + w.sum()).backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{1, 3, 3, 3}));
  // The value has a history too; steps, flips and positions.
  w.zero_grad();
  Tensor y = Tensor::zeros({2, 5});
  y[{Slice{}, Slice{{}, {}, -2}}].assign(w[{Slice{1, 4}}]);
  y.permute({1, 0})[1].assign(w[0] * Tensor(5.0));
  EXPECT_EQ(values(y), (std::vector<double>{4, 5, 3, 0, 2, 4, 5, 3, 0, 2}));
  (y * y).sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{4 * 5 * 5 * 1, 4 * 2, 4 * 3, 4 * 4}));
  check_gradient(
      [](const Tensor& t) {
        Tensor leaf = t.clone().requires_grad();
        Tensor out = leaf * leaf;
        out[{Slice{1, {}, 2}}].assign(leaf[{Slice{0, 2}}] * Tensor(3.0));
        Tensor z = out * leaf;
        z.sum().backward();
        const Tensor got = leaf.grad();
        // Of the cubes, and of 3 a_0 a_1 + 3 a_1 a_3.
        const auto a = t.tolist<double>();
        const std::vector<double> want{3 * a[0] * a[0] + 3 * a[1], 3 * a[0] + 3 * a[3],
                                       3 * a[2] * a[2], 3 * a[1], 3 * a[4] * a[4]};
        const auto have = got.tolist<double>();
        for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-12) << i;
        return t;
      },
      doubles({5}, 3));
}

TEST(assignment, looking_does_not_cut_a_gradient) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  const std::vector<double> slope{2, 4, 6};
  const Tensor y = (x * x).sum();
  EXPECT_EQ(y.item(), 14);
  EXPECT_EQ(values(y.gradient({x})[0]), slope);
  // Through several that were looked at, by value, by view, before and after what reads them.
  const Tensor h = x * x, part = h[{Slice{0, 2}}];
  const Tensor early = (h * Tensor(3.0)).sum();
  EXPECT_EQ(values(part), (std::vector<double>{1, 4}));
  const Tensor z = h + Tensor(1.0);
  EXPECT_EQ(values(z), (std::vector<double>{2, 5, 10}));
  EXPECT_EQ(values(z.sum().gradient({x})[0]), slope);
  EXPECT_EQ(values(part.sum().gradient({x})[0]), (std::vector<double>{2, 4, 0}));
  EXPECT_EQ(values(early.gradient({h})[0]), std::vector<double>(3, 3));
  EXPECT_EQ(values((h * h).sum().gradient({h})[0]), (std::vector<double>{2, 8, 18}));
  EXPECT_EQ(values((part * part).sum().gradient({part})[0]), (std::vector<double>{2, 8}));
  const Tensor first = y.gradient({x})[0];
  EXPECT_EQ(values(first), slope);
  EXPECT_EQ(values(first.sum().gradient({x})[0]), std::vector<double>(3, 2)) << "second order";
  // realize() makes data: what needs the way to it is refused, what does not is zero.
  const Tensor data = x * x * x;
  data.realize();
  const Tensor sum = (data * Tensor(2.0)).sum(), unrelated = Tensor::from<float>({5});
  expect_error([&] { (void)sum.gradient({x}); },
               {"gradient", "target 0", "(3,)", "realize()", "requires_grad()"});
  EXPECT_EQ(values(sum.gradient({unrelated})[0]), std::vector<double>{0});
  EXPECT_EQ(values(sum.gradient({data})[0]), std::vector<double>(3, 2));
  // So is what nobody keeps any more.
  const Tensor through = [&] {
    const Tensor inner = x * x * Tensor(0.5);
    (void)values(inner);
    return inner + Tensor(1.0);
  }();
  expect_error([&] { (void)through.sum().gradient({x}); }, {"target 0", "let go"});
  // A write through a view is a value like others, until it becomes data.
  Tensor target = Tensor::zeros({3});
  target[{Slice{0, 2}}].assign(x[{Slice{0, 2}}]);
  EXPECT_EQ(values(target.sum().gradient({x})[0]), (std::vector<double>{1, 1, 0}));
  EXPECT_EQ(values(target), (std::vector<double>{1, 2, 0}));
  EXPECT_EQ(values(target.sum().gradient({x})[0]), (std::vector<double>{1, 1, 0}));
  target.realize();
  expect_error([&] { (void)target.sum().gradient({x}); }, {"target 0", "let go"});
  // What was written over counts with its latest value, not with one that was looked at before.
  const Tensor b = Tensor::from<float>({1, 2, 3});
  Tensor twice = x * Tensor(7.0);
  EXPECT_EQ(values(twice), (std::vector<double>{7, 14, 21}));
  twice.assign(b * Tensor(11.0));
  twice[{Slice{0, 1}}].assign(Tensor(0.0));
  EXPECT_EQ(values(twice.sum().gradient({b})[0]), (std::vector<double>{0, 11, 11}));
  EXPECT_EQ(values(twice.sum().gradient({x})[0]), std::vector<double>(3, 0));
  // A number in an expression is none that a tensor had before.
  Tensor number(2.0);
  number.assign(Tensor::from<float>({4}).sum());
  EXPECT_EQ(values((x * Tensor(2.0)).sum().gradient({number})[0]), std::vector<double>{0});
  // A large graph too, of which not every node is remembered.
  Tensor large = x;
  for (int i = 0; i < 400; ++i) large = large * Tensor(1.0 + 1.0 / (i + 1));
  large.realize();
  const Tensor later = Tensor::from<float>({1});
  expect_error([&] { (void)large.sum().gradient({x}); }, {"target 0", "let go"});
  EXPECT_EQ(values(large.sum().gradient({later})[0]), std::vector<double>{0});
  // A leaf keeps all of it.
  Tensor w = Tensor::from<float>({1, 2, 3}).requires_grad();
  const Tensor kept = w * w;
  kept.realize();
  kept.sum().backward();
  EXPECT_EQ(values(w.grad()), slope);
  EXPECT_EQ(values(kept.sum().gradient({w})[0]), slope);
  // A value that was computed from a tensor that has another one now.
  Tensor v = Tensor::from<float>({1, 2, 3});
  const Tensor of_old = (v * v).sum();
  v.assign(Tensor::zeros({3}));
  expect_error([&] { (void)of_old.gradient({v}); }, {"target 0", "another value", "again"});
}

// Found by the fuzz of programs: what was written in place while t was looked at is a factor as
// well.
TEST(assignment, a_gradient_needs_a_state_that_was_computed_along) {
  for (const bool by_index : {true, false}) {
    const auto written = [&] {
      Tensor out = Tensor::from<float>({1, 5}, {2});
      if (by_index)
        out.setitem({Tensor::from<int64_t>({0, 0})}, Tensor::from<float>({3, 3}, {2}));
      else
        out.setitem({Slice{0, 1}}, Tensor(3.0));
      return out;
    };
    Tensor x = Tensor::from<float>({-1, 2}, {2}).requires_grad();
    const Tensor state = written(), t = Tensor::where(x < 0, state, x);
    EXPECT_EQ(t.tolist<float>(), (std::vector<float>{3, 2}));
    (t * state).sum().backward();
    EXPECT_EQ(x.grad().tolist<float>(), (std::vector<float>{0, 5}));
  }
}

// Memory of loops: a loop of inference, a running mean, a loop of training with sums that are read.
TEST(assignment, long_loops_do_not_grow_memory) {
  const int64_t n = 1 << 16;  // 256 KiB
  auto grown = [&](const std::function<void(int)>& body) {
    for (int i = 0; i < 20; ++i) body(i);
    const int64_t before = memory_in_use();
    for (int i = 20; i < 120; ++i) body(i);
    return memory_in_use() - before;
  };
  const int64_t allowed = 8 << 20;  // 100 steps that each keep one buffer would be 25 MiB
  const Tensor start = Tensor::rand({n}).realize(), weight = Tensor::rand({n}).realize();
  Tensor h = start;
  EXPECT_LT(grown([&](int) {
              h = h * weight + Tensor(1.0);
              (void)h[0].item();
            }),
            allowed)
      << "a recurrence";
  Tensor mean = Tensor(0.0).clone().realize();
  EXPECT_LT(grown([&](int) {
              mean = mean * Tensor(0.9) + (Tensor::rand({n}) * weight).sum();
              (void)mean.item();
            }),
            allowed)
      << "a running mean";
  Tensor state = Tensor::zeros({n});
  EXPECT_LT(grown([&](int i) {
              const Slice rest{i % 8, {}};  // code for each size is kept
              state[{rest}].assign(Tensor::rand({n})[{rest}]);
              state += Tensor(1.0);
            }),
            allowed)
      << "writes through views";
  Tensor carried = Tensor::zeros({n});
  EXPECT_LT(grown([&](int) {
              const Tensor before = carried.sum();
              carried.assign(carried * weight + Tensor(1.0));
              (void)before.item();
            }),
            allowed)
      << "a state whose former value is read";
  Tensor w = Tensor::rand({n}).requires_grad();
  nn::Adam adam({w}, 1e-3);
  Tensor total = Tensor(0.0);
  EXPECT_LT(grown([&](int) {
              adam.zero_grad();
              const Tensor loss = (w - Tensor::rand({n})).square().mean();
              loss.backward();
              total = total + loss;
              (void)total.item();
              adam.step({loss});
            }),
            allowed)
      << "training, with a running sum of losses";
}

TEST(optimisers, a_step_that_fails_changes_nothing) {
  auto make = [](int kind, const std::vector<Tensor>& p) -> std::unique_ptr<nn::Optimizer> {
    if (kind == 0) return std::make_unique<nn::SGD>(p, 0.1, 0.9);
    if (kind == 1) return std::make_unique<nn::Adam>(p, 0.1);
    return std::make_unique<nn::AdamW>(p, 0.1);
  };
  // Two good steps, with and without a bad one between them.
  std::vector<Tensor> losses;  // held
  auto run = [&](int kind, bool bad) {
    Tensor a = Tensor::from<float>({1, 2}).requires_grad();
    Tensor b = Tensor::from<float>({3}).requires_grad();
    auto optimizer = make(kind, {a, b});
    auto good = [&] {
      optimizer->zero_grad();
      (a.square().sum() + b.square().sum()).backward();
      optimizer->step();
    };
    good();
    const auto old = std::pair(values(a), values(b));
    if (bad) {
      optimizer->zero_grad();
      const Tensor far = Tensor::from<int32_t>({9});
      losses.push_back(a.square().sum() + (b * a.index_select(0, far)).sum());
      losses.back().backward();
      expect_error([&] { optimizer->step(); }, {"9", "out of range"});
      EXPECT_EQ(std::pair(values(a), values(b)), old);
      optimizer->zero_grad();
      expect_error([&] { optimizer->step(); }, {"none of the 2 parameters", "backward()"});
      EXPECT_EQ(std::pair(values(a), values(b)), old);
    }
    good();
    return std::pair(values(a), values(b));
  };
  for (const int kind : {0, 1, 2}) EXPECT_EQ(run(kind, true), run(kind, false)) << kind;
}

TEST(optimisers, a_step_computes_the_loss_and_what_stands_on_the_weights) {
  Tensor w = Tensor::from<float>({2, 3}).requires_grad(), other = Tensor::from<float>({1});
  nn::SGD sgd({w}, 0.5);
  const Tensor loss = (w * w).sum(), carried = (w * Tensor(2.0)).detach(),
               apart = other.exp().detach();
  Tensor beside = Tensor::from<float>({5});
  beside.assign(beside + w.detach().sum());
  beside.compute_with(w);
  loss.backward();
  sgd.step();
  reset_counters();
  EXPECT_EQ(values(loss), std::vector<double>{13});
  EXPECT_EQ(values(carried), (std::vector<double>{4, 6}));
  EXPECT_EQ(values(beside), std::vector<double>{10});
  EXPECT_EQ(counters().kernels, 0);
  EXPECT_EQ(values(w), (std::vector<double>{0, 0}));
  (void)values(apart);
  EXPECT_EQ(counters().kernels, 1) << "it reads no weight";
}

TEST(optimisers, what_is_assigned_to_a_gradient_is_the_gradient) {
  Tensor w = Tensor::from<float>({2, 3}).requires_grad();
  (w * w).sum().backward();
  Tensor held = w.grad();
  EXPECT_EQ(values(held), (std::vector<double>{4, 6}));
  held *= Tensor(0.5);
  w.grad().setitem({0}, Tensor(7.0));
  EXPECT_EQ(values(w.grad()), (std::vector<double>{7, 3}));
  expect_error([&] { held.assign(held * Tensor(2.0)); },
               {"gradient", "as it was before", "take grad again"});
  w.zero_grad();
  held.assign(held * Tensor(2.0));
  EXPECT_FALSE(w.has_grad());
  EXPECT_EQ(values(held), (std::vector<double>{4, 6}));
}

TEST(optimisers, a_detached_state_is_computed_once) {
  Tensor state = Tensor::from<float>({1, 2});
  for (int step = 0; step < 6; ++step) {
    state = (state * Tensor(2.0) + Tensor(1.0)).detach();
    reset_counters();
    EXPECT_GT(state.sum().item(), 0);
    EXPECT_LE(counters().operations, 6) << "those of one step";
  }
  EXPECT_EQ(values(state), (std::vector<double>{127, 191}));
}

// A state that only what is computed of it is looked at goes on from its memory: each step costs
// one step, and all are one program.
TEST(assignment, a_state_that_is_read_is_computed_once) {
  struct Case {
    const char* what;
    std::function<Tensor(Tensor& h, Tensor& c, const Tensor& x)> step;
  };
  const std::vector<Case> cases{
      {"read behind the assignment",
       [](Tensor& h, Tensor&, const Tensor& x) {
         h.assign((h * x).sin());
         return h.sum();
       }},
      {"read before the assignment",
       [](Tensor& h, Tensor&, const Tensor& x) {
         const Tensor out = h.sum();
         h.assign((h * x).sin());
         return out;
       }},
      {"assigned twice",
       [](Tensor& h, Tensor&, const Tensor& x) {
         h.assign(h * x);
         h.assign(h.sin());
         return h.sum();
       }},
      {"two that read each other, of which one is looked at",
       [](Tensor& h, Tensor& c, const Tensor& x) {
         h.assign((h + c).sin());
         c.assign((c * x + h).cos());
         return h.sum();
       }},
      {"written through a view",
       [](Tensor& h, Tensor&, const Tensor& x) {
         h.assign((h * x).sin());
         h[{Slice{0, 1}}].assign(Tensor(0.5));
         return h.sum();
       }},
  };
  const std::vector<float> start{0.5F, 0.25F, -1.5F}, factors{1.5F, -0.5F, 2};
  for (const Case& c : cases) {
    const Tensor x = Tensor::from(factors, {3});
    Tensor h = Tensor::from(start, {3}), g = Tensor::from(factors, {3});
    Tensor looked_at = Tensor::from(start, {3}), beside = Tensor::from(factors, {3});
    double first = 0;
    for (int step = 0; step < 12; ++step) {
      reset_counters();
      const double out = c.step(h, g, x).item();
      const Counters made = counters();
      const Tensor expected = c.step(looked_at, beside, x);
      Tensor::realize({looked_at, beside});
      EXPECT_EQ(out, expected.item()) << c.what << " " << step;
      if (step < 4) {  // until memory lies behind all of it
        first = std::max(first, made.operations);
        continue;
      }
      EXPECT_LE(made.operations, first) << c.what << " " << step;
      EXPECT_EQ(made.compiled, 0) << c.what << " " << step;
    }
    EXPECT_EQ(values(h), values(looked_at)) << c.what;
    EXPECT_EQ(values(g), values(beside)) << c.what;
  }
}

// What is computed along is no data that somebody asked for: a gradient through it is right, or
// refused; it stops nothing, and nothing of it is taken back.
TEST(assignment, a_state_that_is_computed_along_keeps_its_meaning) {
  const Tensor x = Tensor::from<float>({1, 2, 3}), far = Tensor::from<int32_t>({7});
  Tensor h = Tensor::from<float>({1, 1, 1});
  h.assign(h * x);
  EXPECT_EQ(h.sum().item(), 6);
  reset_counters();
  EXPECT_EQ(values(h), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(counters().kernels, 0);
  EXPECT_EQ(values(h.sum().gradient({x})[0]), std::vector<double>(3, 1));
  const Tensor early = (h * h).sum();
  h.assign(h * x);
  EXPECT_EQ(h.sum().item(), 14);
  // The way to x through the first step was let go with the state of then.
  expect_error([&] { (void)h.sum().gradient({x}); }, {"target 0", "(3,)", "let go"});
  EXPECT_EQ(values(early), std::vector<double>{14});
  // A leaf keeps all of it.
  Tensor w = Tensor::from<float>({1, 2, 3}).requires_grad(), s = Tensor::from<float>({1, 1, 1});
  for (int step = 0; step < 3; ++step) {
    s.assign(s * w);
    (void)s.sum().item();
  }
  s.sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{3, 12, 27}));
  // Memory that nobody asked for may lack.
  Tensor large = Tensor::ones({1 << 20}).clone().realize();
  large.assign(large * Tensor(2.0));
  {
    Options small = options();
    small.memory_limit = memory_in_use() + (1 << 20);
    const OptionScope scope(small);
    const Tensor part = large[{Slice{0, 2}}].sum();
    EXPECT_EQ(part.item(), 4);
  }
  EXPECT_EQ(large.sum().item(), 2 << 20);
  // Nor is it wrong that what comes behind a state that is memory since cannot be computed.
  Tensor t = Tensor::from<float>({1, 2, 3});
  t.assign(t + Tensor(1.0));
  const Tensor sum = t.sum();
  t.assign(t.index_select(0, far).expand({3}));
  EXPECT_EQ(sum.item(), 9);
  expect_error([&] { (void)values(t); }, {"7", "out of range"});
  EXPECT_EQ(values(t), (std::vector<double>{2, 3, 4}));
}

// A value that was stored, and is then assigned what reads that memory, stands on the memory once
// it has been computed, and not on the way there.
TEST(assignment, what_was_stored_may_be_assigned_what_reads_it) {
  for (const bool row : {false, true}) {
    Tensor x = Tensor::from<float>({1, 2, 4});
    Tensor y = row ? x[{Slice{0, 1}}].log2() : x.log2();
    if (row)
      x.setitem({Tensor::from<int32_t>({1})}, y);
    else
      x.assign(y + x);
    y.assign(x.sum().expand({row ? 1 : 3}) + y);
    Tensor::realize({x});
    const double sum = row ? 5 : 10;
    EXPECT_EQ(values(x), row ? (std::vector<double>{1, 0, 4}) : (std::vector<double>{1, 3, 6}));
    EXPECT_EQ(values(y), row ? std::vector<double>{sum} : (std::vector<double>{10, 11, 12}));
  }
}

TEST(optimisers, a_loss_from_before_a_step_is_refused_by_name) {
  Tensor w = Tensor::from<float>({2}).requires_grad();
  nn::SGD sgd({w}, 0.1);
  const Tensor first = (w * w).sum(), second = (w * Tensor(3.0)).sum();
  first.backward();
  sgd.step();
  sgd.zero_grad();
  expect_error([&] { second.backward(); }, {"backward", "new values", "step", "again"});
  expect_error([&] { (void)second.gradient({w}); }, {"target 0", "another value"});
  (w * Tensor(3.0)).sum().backward();
  EXPECT_EQ(values(w.grad()), std::vector<double>{3});
  const Tensor x = Tensor::from<float>({1});
  expect_error([&] { x.sum().backward(); },
               {"nothing here requires a gradient", "requires_grad()"});
}

// As PyTorch refuses what was changed in place: a step of some leaves makes the loss a former one
// for all, or a part of the model would train and the rest would not.
TEST(optimisers, a_loss_of_which_one_leaf_has_changed_is_refused) {
  auto leaf = [](float v) { return Tensor::from<float>({v}).requires_grad(); };
  Tensor a = leaf(2), b = leaf(3);
  const Tensor loss = (a * b * b).sum(), constant = (a.detach() * b).sum();
  const Tensor rounded = (a.cast(DType::Int32).cast(DType::Float32) * b).sum();
  nn::SGD sgd({a}, 0.5);
  (a * a).sum().backward();
  sgd.step();  // a is 2 - 0.5 * 4 now
  expect_error([&] { loss.backward(); }, {"backward", "(1,)", "new value", "compute this again"});
  EXPECT_FALSE(b.has_grad());
  // The value of then is a constant to the others, where they are named.
  EXPECT_EQ(loss.gradient({b})[0].item(), 2 * 2 * 3);
  expect_error([&] { (void)loss.gradient({a}); }, {"target 0", "another value"});
  // Where no gradient would have come through, nothing is missing.
  constant.backward();
  EXPECT_EQ(b.grad().item(), 2);
  rounded.backward();
  EXPECT_EQ(b.grad().item(), 2 + 2);
  (a * b * b).sum().backward();
  EXPECT_EQ(b.grad().item(), 2 + 2 + 0);
  // A value that is carried on from before a step, and one that was let go.
  Tensor state = (a + b).exp();
  b.assign(1);
  expect_error([&] { (state * a).sum().backward(); }, {"new value", "detach()"});
  (state.detach() * a).sum().backward();
  {
    Tensor c = leaf(5);
    state = c * a;
    c.assign(6);
    expect_error([&] { state.sum().backward(); }, {"new value"});
    c.requires_grad(false);
    state.sum().backward();
  }
  state.sum().backward();
  // A copy of a leaf passes gradients to it, one of its detached value does not.
  Tensor target = Tensor::zeros({1}), apart = Tensor::zeros({1});
  target.assign(a);
  apart.assign(a.detach());
  a.assign(3);
  expect_error([&] { (a - target).square().sum().backward(); }, {"new value", "detach()"});
  a.zero_grad();
  (a - apart).square().sum().backward();
  EXPECT_EQ(a.grad().item(), 2 * 3);
  // A lazy assignment is a leaf of its own; the value below it is none.
  b.assign(b * Tensor(2.0));
  b.zero_grad();
  (b * b).sum().backward();
  EXPECT_EQ(b.grad().item(), 4);
}

TEST(optimisers, schedules_follow_their_formulas) {
  EXPECT_EQ(nn::step_schedule(9, 10, 1, 0.5), 1);
  EXPECT_EQ(nn::step_schedule(10, 10, 1, 0.5), 0.5);
  EXPECT_EQ(nn::step_schedule(35, 10, 8, 0.5), 1);
  EXPECT_EQ(nn::cosine_schedule(0, 10, 2, 1, 4), 0.5);
  EXPECT_EQ(nn::cosine_schedule(3, 10, 2, 1, 4), 2);
  EXPECT_EQ(nn::cosine_schedule(4, 10, 2, 1, 4), 2);
  EXPECT_NEAR(nn::cosine_schedule(7, 10, 2, 1, 4), 1.5, 1e-15);
  EXPECT_EQ(nn::cosine_schedule(10, 10, 2, 1, 4), 1);
  EXPECT_EQ(nn::cosine_schedule(99, 10, 2, 1, 4), 1);
}

// What keeps leaves apart is no part of a program: equal work is compiled once.
TEST(optimisers, identities_do_not_compile_again) {
  Tensor w = Tensor::from<float>({1, 2, 3, 4}).requires_grad();
  Tensor copy = Tensor::zeros({4}).requires_grad(), written = Tensor::zeros({5});
  nn::Adam adam({w}, 0.1);
  auto round = [&] {
    adam.zero_grad();
    const Tensor loss = ((w - Tensor::full({4}, 0.25)).square() + Tensor::zeros({4})).sum();
    loss.backward();
    adam.step({loss});
    copy.assign(w * Tensor(2.0));
    written[{Slice{{}, {}, 2}}].assign(Tensor::ones({3}));
    Tensor::realize({copy, written});
  };
  for (int i = 0; i < 3; ++i) round();
  reset_counters();
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_GT(counters().kernels, 0);
}

// Values against the formulas of the papers, three steps.
TEST(optimisers, steps_follow_their_formulas) {
  auto three = [](auto make) {
    Tensor w = Tensor::from<double>({1.5}).requires_grad();
    auto optimizer = make(std::vector<Tensor>{w});
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      (w * w).sum().backward();
      optimizer.step();
    }
    return w.item();
  };
  double w = 1.5, v = 0;
  for (int i = 0; i < 3; ++i) {
    const double g = 2 * w + 0.01 * w;
    v = 0.9 * v + g;
    w -= 0.1 * (g + 0.9 * v);
  }
  EXPECT_NEAR(three([](auto p) { return nn::SGD(p, 0.1, 0.9, 0.01, true); }), w, 1e-6);
  double a = 1.5, m = 0, s = 0;
  for (int i = 1; i <= 3; ++i) {
    const double g = 2 * a;
    m = 0.9 * m + 0.1 * g;
    s = 0.999 * s + 0.001 * g * g;
    const double m_hat = m / (1 - std::pow(0.9, i)), s_hat = s / (1 - std::pow(0.999, i));
    a -= 0.1 * (m_hat / (std::sqrt(s_hat) + 1e-8) + 0.01 * a);
  }
  EXPECT_NEAR(three([](auto p) { return nn::AdamW(p, 0.1, 0.9, 0.999, 1e-8, 0.01); }), a, 1e-6);
}

// `x[{0}] = 3` would change a handle that nobody has: it does not compile.
template <class T>
concept StoresByIndex = requires(T x) { x[std::vector<IndexItem>{IndexItem(0)}] = 3; };
template <class T>
concept StoresByPosition = requires(T x) { x[int64_t{0}] = Tensor(3.0); };
static_assert(!StoresByIndex<Tensor> && !StoresByPosition<Tensor>);
static_assert(std::is_copy_assignable_v<Tensor> && std::is_move_assignable_v<Tensor>);

}  // namespace koine::test
