// Writes through views: recorded, run in place where nobody can tell, and differentiated.
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "check.hpp"
#include "gradient_check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/device.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

Tensor ramp(const Shape& sizes, DType dtype = DType::Float32) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return Tensor::arange(n).cast(dtype).reshape(sizes).clone().realize();
}

std::vector<double> numbers(int64_t n, double first = 0) {
  std::vector<double> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

Counters counted(const std::function<void()>& work) {
  work();
  reset_counters();
  work();
  return counters();
}

}  // namespace

TEST(writes, spec_B20_nothing_runs_before_somebody_looks) {
  Tensor x = ramp({100, 8});
  const Tensor rows = ramp({100, 8});
  reset_counters();
  for (int64_t i = 0; i < 100; ++i) x[i].assign(rows[99 - i] * Tensor(2.0));
  EXPECT_EQ(counters().kernels, 0);
  std::vector<double> wanted;
  for (int64_t i = 0; i < 100; ++i)
    for (int64_t k = 0; k < 8; ++k) wanted.push_back(2.0 * static_cast<double>((99 - i) * 8 + k));
  EXPECT_EQ(values(x), wanted);
  // Each element is read, multiplied and written once, in the memory that is there.
  const auto memory = memory_of(x.uop());
  const Counters work = counted([&] {
    for (int64_t i = 0; i < 100; ++i) x[i].assign(rows[99 - i] * Tensor(2.0));
    x.realize();
  });
  EXPECT_EQ(memory_of(x.uop()), memory);
  EXPECT_EQ(work.bytes, 2 * 4 * 800);
  EXPECT_EQ(work.operations, 800);
  EXPECT_LE(work.kernels, 2);
}

// Each element is read and written where it is; nothing is computed elsewhere first.
TEST(writes, spec_B20_an_update_of_a_part_runs_in_place) {
  Tensor x = ramp({100, 8});
  const Tensor y = ramp({8});
  auto loop = [&] {
    for (int64_t i = 0; i < 100; ++i) {
      Tensor row = x[i];
      row.assign(row * Tensor(0.5) + y);
    }
    x.realize();
  };
  const Counters work = counted(loop);
  EXPECT_EQ(work.kernels, 100);
  EXPECT_EQ(work.bytes, 100 * 4 * (8 + 8 + 8));
  std::vector<double> wanted;
  for (int i = 0; i < 800; ++i) {
    const double add = i % 8;
    wanted.push_back((i * 0.5 + add) * 0.5 + add);
  }
  EXPECT_EQ(values(x), wanted);
  // A long product that is added to what is there, with partial sums on the way.
  const int64_t k = 4096;
  const Tensor a = Tensor::ones({96, k}).realize(), b = Tensor::ones({k, 96}).realize();
  Tensor c = ramp({2, 96, 96});
  c[1].assign(c[1] + a.matmul(b));
  std::vector<double> product = numbers(2 * 96 * 96);
  for (size_t i = 96 * 96; i < product.size(); ++i) product[i] += k;
  EXPECT_EQ(values(c), product);
  // Threads and lanes, and other places of the same memory, which must be read before.
  const int64_t n = 1 << 18;
  Tensor z = ramp({n});
  z[{Slice{3, {}}}] += Tensor(1.0);
  z[{Slice{0, n / 2}}] += z[{Slice{n / 2, {}}}];
  Tensor shifted = z[{Slice{1, {}}}];
  shifted.assign(shifted + z[{Slice{0, -1}}]);
  shifted.assign(shifted.flip({0}) - shifted);
  std::vector<double> w = numbers(n);
  const auto size = static_cast<size_t>(n);
  for (size_t i = 3; i < size; ++i) w[i] += 1;
  for (size_t i = 0; i < size / 2; ++i) w[i] += w[i + size / 2];
  for (size_t i = size; i-- > 1;) w[i] += w[i - 1];
  const auto old = w;
  for (size_t i = 1; i < size; ++i) w[i] = old[size - i] - old[i];
  EXPECT_EQ(values(z), w);
}

// A loop that never looks makes no program without bound: 128 writes are one, which serves the
// next.
TEST(writes, a_long_loop_without_a_look_runs_in_parts) {
  const int64_t n = 512;
  Tensor x = ramp({n + 1, 2});
  const Tensor added = ramp({n});
  auto loop = [&] {
    reset_counters();
    for (int64_t i = 0; i < n; ++i) x[i + 1].assign(x[i] + added[i]);
    x.realize();
    return counters();
  };
  const Counters first = loop();
  EXPECT_GE(first.kernels, n);
  EXPECT_LE(first.compiled, 24) << "with its offsets, and once for all others";
  EXPECT_LE(first.bytes, static_cast<double>(n) * 2 * 4 * 7) << "no part copies what is there";
  EXPECT_EQ(loop().compiled, 0);
  double low = 0, high = 1;
  std::vector<double> wanted{low, high};
  for (int64_t i = 0; i < n; ++i)
    for (double* v : {&low, &high}) wanted.push_back(*v += static_cast<double>(i));
  EXPECT_EQ(values(x), wanted);
}

TEST(writes, a_long_loop_of_whole_assignments_runs_in_parts) {
  Tensor x = ramp({4});
  reset_counters();
  for (int i = 0; i < 1000; ++i) x += Tensor(1.0);
  EXPECT_EQ(counters().kernels, 7);
  EXPECT_EQ(values(x), (std::vector<double>{1000, 1001, 1002, 1003}));
  EXPECT_LE(counters().compiled, 2) << "128 additions, and the rest of them";
  Tensor leaf = ramp({2}).requires_grad();
  for (int i = 0; i < 300; ++i) leaf += Tensor(1.0);
  (leaf * leaf).sum().backward();
  EXPECT_EQ(values(leaf.grad()), (std::vector<double>{600, 602}));
}

TEST(writes, a_long_loop_of_whole_assignments_and_writes_runs_in_parts) {
  Tensor x = ramp({4}), whole = ramp({6}), rows = whole.reshape({2, 3});
  reset_counters();
  for (int64_t i = 0; i < 500; ++i) {
    x = x.assign(x * Tensor(1.0));
    x[i % 4].assign(x[i % 4] + Tensor(1.0));
    whole += Tensor(1.0);
    rows[i % 2].assign(rows[i % 2] + Tensor(1.0));
  }
  EXPECT_GE(counters().kernels, 2 * 7) << "each in parts of 128";
  EXPECT_EQ(values(x), (std::vector<double>{125, 126, 127, 128}));
  EXPECT_EQ(values(whole), (std::vector<double>{750, 751, 752, 753, 754, 755}));
}

// A view that somebody has looked at is a node with a buffer of its own: what is stored there goes
// to the memory all the same.
TEST(writes, a_view_that_was_looked_at_is_written) {
  auto expect_written = [](const std::function<Tensor(const Tensor&)>& base,
                           const std::function<Tensor(const Tensor&)>& target,
                           const std::function<Tensor(const Tensor&)>& other, bool look) {
    const Tensor x = ramp({3, 3}).realize();
    const Tensor m = base(x);
    Tensor r = target(m);
    std::vector<double> seen;
    if (look) seen = values(r);
    r.assign(r * Tensor(2.0) - other(m));
    const std::vector<double> all = values(m);
    if (!look) return std::pair{all, values(r)};
    std::vector<double> wanted = values(target(m));
    EXPECT_EQ(values(r), wanted);
    return std::pair{all, wanted};
  };
  using View = std::function<Tensor(const Tensor&)>;
  const std::vector<View> bases{[](const Tensor& t) { return t; },
                                [](const Tensor& t) { return t.reshape({9}).reshape({3, 3}); },
                                [](const Tensor& t) { return t.T(); },
                                [](const Tensor& t) { return t.flip({1, 0}); }};
  const std::vector<View> targets{[](const Tensor& t) { return t[1]; },
                                  [](const Tensor& t) { return t.T()[2]; },
                                  [](const Tensor& t) { return t.flip({0, 1})[0]; }};
  const std::vector<View> others{[](const Tensor& t) { return t[0]; },
                                 [](const Tensor& t) { return t.T()[1]; },
                                 [](const Tensor& t) { return t[1]; }};
  for (const View& base : bases)
    for (const View& target : targets)
      for (const View& other : others)
        EXPECT_EQ(expect_written(base, target, other, true),
                  expect_written(base, target, other, false));
}

// A value that wants the view in memory of its own reads a copy; what is stored goes to the memory.
TEST(writes, a_view_that_others_read_from_a_copy_is_written) {
  using Map = std::function<Tensor(const Tensor&)>;
  const std::vector<Map> views{[](const Tensor& t) { return t.T(); },
                               [](const Tensor& t) { return t.flip({0, 1}); },
                               [](const Tensor& t) { return t.T().reshape({2, 6})[Slice{1, 2}]; }};
  const std::vector<Map> readers{[](const Tensor& t) { return t.bitcast(DType::UInt16); },
                                 [](const Tensor& t) { return t.contiguous(); },
                                 [](const Tensor& t) { return t.to("CPU:1"); },
                                 [](const Tensor& t) { return t.bitcast(DType::UInt8).sum(0); }};
  for (const Map& view : views)
    for (const Map& reader : readers) {
      const Tensor x = ramp({3, 4}, DType::UInt32), before = x.clone().realize();
      const Tensor old = reader(view(x));
      Tensor target = view(x);
      const int64_t rows = target.shape()[0];
      const Tensor ones = Tensor::ones({rows, target.shape()[1]}, DType::UInt32);
      target.setitem({Tensor::arange(rows).realize()}, ones);
      Tensor::realize({x, old});
      Tensor wanted = before.clone();
      view(wanted).assign(ones);
      EXPECT_EQ(values(x), values(wanted));
      EXPECT_EQ(values(old), values(reader(view(before))));
    }
}

// A write of nothing stands between what is read and what is written over it.
TEST(writes, an_old_state_below_an_empty_write) {
  const Tensor x = ramp({2, 7}).realize();
  Tensor t = x.clone();
  Tensor row = t[0];
  row += Tensor(3.0);
  const Tensor sum = row.sum();  // 42
  t[Slice{2, 2}].assign(Tensor(1.0));
  Tensor column = t.T()[6];
  column *= Tensor(2.0);
  t *= sum;
  EXPECT_EQ(values(sum), (std::vector<double>{42}));
  EXPECT_EQ(values(t), (std::vector<double>{126, 168, 210, 252, 294, 336, 756, 294, 336, 378, 420,
                                            462, 504, 1092}));
}

TEST(writes, a_view_without_elements_repeats_none) {
  const Tensor x = ramp({2, 3}).realize();
  Tensor nothing = x[Slice{1, 1}].unsqueeze(0).expand({4, 0, 3});
  nothing.assign(Tensor(1.0));
  EXPECT_EQ(values(x), (std::vector<double>{0, 1, 2, 3, 4, 5}));
}

TEST(writes, places_that_are_read_from_tensors) {
  const Tensor at = Tensor::from<int64_t>({1, 2});
  const Tensor i = at[0], j = at[1];
  Tensor q = Tensor::zeros({3, 4});
  q.setitem({i, j}, Tensor(1.0));
  q.setitem({j, i}, Tensor(2.0));
  q.setitem({0, 0}, Tensor(5.0));
  EXPECT_EQ(values(q), (std::vector<double>{5, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0}));
}

// What may be shared with a value that comes later is not computed before somebody looks.
TEST(writes, values_of_many_ops_wait_for_the_look) {
  Tensor dear = ramp({}) + Tensor(1.0), x = ramp({4});
  for (int k = 0; k < 30; ++k) dear = (dear * Tensor(0.5)).sin();
  reset_counters();
  for (int64_t i = 0; i < 200; ++i) x[i % 4].assign(dear);
  EXPECT_EQ(counters().kernels, 0);
  EXPECT_EQ(values(x), std::vector<double>(4, values(dear)[0]));
}

// One token of a decoder: keys and values of the earlier ones lie in a cache.
TEST(writes, spec_L2_a_decode_step_has_no_more_kernels_than_by_cat) {
  const int64_t layers = 3, heads = 2, most = 8, dim = 4, width = heads * dim;
  std::mt19937_64 random(test_seed());
  auto weight = [&](int64_t n, int64_t m) {
    return doubles({n, m}, random).cast(DType::Float32).contiguous().realize();
  };
  std::vector<Tensor> query, key, value, out;
  for (int64_t l = 0; l < layers; ++l)
    for (auto* list : {&query, &key, &value, &out}) list->push_back(weight(width, width));
  Tensor cache = Tensor::zeros({layers, 2, heads, most, dim}).realize();
  std::vector<Tensor> keys(3), rows(3);
  auto step = [&](int64_t at, bool by_view) {
    Tensor x = Tensor::full({1, width}, 0.1 * static_cast<double>(at + 1)).realize();
    for (int64_t l = 0; l < layers; ++l) {
      const auto i = static_cast<size_t>(l);
      const Tensor h = x.layernorm(), q = h.matmul(query[i]).reshape({heads, 1, dim});
      const Tensor k = h.matmul(key[i]).reshape({heads, 1, dim});
      const Tensor v = h.matmul(value[i]).reshape({heads, 1, dim});
      const Slice past{0, at + 1}, now{at, at + 1};
      if (by_view) {
        cache[{l, 0, Slice{}, now}].assign(k);
        cache[{l, 1, Slice{}, now}].assign(v);
      } else {
        keys[i] = at == 0 ? k : Tensor::cat({keys[i], k}, 1);
        rows[i] = at == 0 ? v : Tensor::cat({rows[i], v}, 1);
      }
      const Tensor ks = by_view ? cache[{l, 0, Slice{}, past}] : keys[i];
      const Tensor vs = by_view ? cache[{l, 1, Slice{}, past}] : rows[i];
      const Tensor weights = (q * ks).sum(2).softmax(-1).reshape({heads, at + 1, 1});
      x = x + (weights * vs).sum(1).reshape({1, width}).matmul(out[i]);
    }
    std::vector<Tensor> asked{x};
    if (!by_view) {
      asked.insert(asked.end(), keys.begin(), keys.end());
      asked.insert(asked.end(), rows.begin(), rows.end());
    }
    reset_counters();
    Tensor::realize(asked);
    return std::pair(counters().kernels, values(x));
  };
  for (int64_t at = 0; at < most; ++at) {
    const auto by_view = step(at, true), by_cat = step(at, false);
    EXPECT_EQ(by_view.second.size(), by_cat.second.size());
    for (size_t i = 0; i < by_cat.second.size(); ++i)
      EXPECT_NEAR(by_view.second[i], by_cat.second[i], 1e-4) << at;
    if (at > 0) {
      EXPECT_LE(by_view.first, by_cat.first) << at;
    }
  }
  const auto memory = memory_of(cache.realize().uop());
  (void)step(3, true);
  EXPECT_EQ(memory_of(cache.realize().uop()), memory) << "the cache stays where it is";
}

TEST(writes, setitem_of_a_mask) {
  Tensor x = ramp({3, 4}, DType::Int32);
  x.setitem({x > Tensor(8)}, Tensor(-1));
  EXPECT_EQ(values(x), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1}));
  x.setitem({Tensor::from<bool>({true, false, true})}, Tensor::from<double>({1.5, 2, 3, 4}));
  EXPECT_EQ(values(x), (std::vector<double>{1, 2, 3, 4, 4, 5, 6, 7, 1, 2, 3, 4}));
  Tensor row = x[1];
  row.setitem({row == Tensor(5)}, Tensor(16777217));
  EXPECT_EQ(values(x), (std::vector<double>{1, 2, 3, 4, 4, 16777217, 6, 7, 1, 2, 3, 4}));
  x.setitem({x == Tensor(3)}, Tensor(0.0));
  EXPECT_EQ(values(row), (std::vector<double>{4, 16777217, 6, 7}));
  Tensor w = Tensor::from<float>({1, 2, 3}).requires_grad(), v = Tensor::from<float>({4});
  v.requires_grad();
  Tensor y = w * w;
  y.setitem({Tensor::from<bool>({false, true, true})}, v[0]);
  y.sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{2, 0, 0}));
  EXPECT_EQ(values(v.grad()), std::vector<double>{2});
  expect_error([&] { x.setitem({Tensor::from<bool>({true, false})}, Tensor(1)); },
               {"setitem", "mask", "(2,)", "(3, 4)"});
  expect_error([&] { x.setitem({x > Tensor(1)}, Tensor::from<int32_t>({1, 2})); },
               {"setitem", "(2,)", "mask", "where()"});
}

// Later writes win; each value is what it reads at its time.
TEST(writes, spec_B20_overlapping_writes_and_values_that_read_what_they_overwrite) {
  Tensor x = ramp({10});
  x[{Slice{0, 6}}].assign(Tensor(-1.0));
  x[{Slice{4, 8}}].assign(Tensor(-2.0));
  EXPECT_EQ(values(x), (std::vector<double>{-1, -1, -1, -1, -2, -2, -2, -2, 8, 9}));
  x.assign(ramp({10}));
  for (int i = 0; i < 3; ++i) x[{Slice{1, {}}}].assign(x[{Slice{0, -1}}]);
  EXPECT_EQ(values(x), (std::vector<double>{0, 0, 0, 0, 1, 2, 3, 4, 5, 6}));
  x.flip({0}).assign(x);
  EXPECT_EQ(values(x), (std::vector<double>{6, 5, 4, 3, 2, 1, 0, 0, 0, 0}));
  for (int i = 0; i < 5; ++i) {
    Tensor part = x[{Slice{i, i + 3}}];
    part.assign(part * Tensor(2.0) + x[9 - i]);
  }
  std::vector<double> wanted{6, 5, 4, 3, 2, 1, 0, 0, 0, 0};
  for (size_t i = 0; i < 5; ++i) {
    const double add = wanted[9 - i];
    for (size_t k = i; k < i + 3; ++k) wanted[k] = wanted[k] * 2 + add;
  }
  EXPECT_EQ(values(x), wanted);
}

// Base and views name one memory, whichever of them is written.
TEST(writes, spec_B20_views_and_base_see_each_other) {
  Tensor x = ramp({2, 3});
  Tensor row = x[1], column = x.permute({1, 0})[0], flat = x.flatten();
  row.assign(Tensor(7.0));
  column.assign(Tensor::from<float>({8, 9}));
  EXPECT_EQ(values(flat), (std::vector<double>{8, 1, 2, 9, 7, 7}));
  flat[{Slice{{}, {}, 2}}].assign(Tensor(0.0));
  EXPECT_EQ(values(row), (std::vector<double>{9, 0, 7}));
  x.assign(x * Tensor(10.0));
  EXPECT_EQ(values(column), (std::vector<double>{0, 90}));
  row.setitem({0}, column[0] + Tensor(1.0));
  EXPECT_EQ(values(x), (std::vector<double>{0, 10, 0, 1, 0, 70}));
  // Another tensor that was assigned the value is another tensor.
  Tensor y = Tensor::zeros({2, 3});
  x[0].assign(Tensor(3.0));
  y.assign(x);
  y[0].assign(Tensor(4.0));
  x[1].assign(Tensor(5.0));
  EXPECT_EQ(values(y), (std::vector<double>{4, 4, 4, 1, 0, 70}));
  EXPECT_EQ(values(x), (std::vector<double>{3, 3, 3, 5, 5, 5}));
}

TEST(writes, spec_amend_29_readers_between_writes_keep_their_state) {
  Tensor x = ramp({6});
  std::vector<Tensor> readers;
  for (int64_t i = 0; i < 6; ++i) {
    readers.push_back(x + Tensor(100.0));
    x[i].assign(Tensor(-1.0));
  }
  // Looked at in an order that has nothing to do with the writes.
  for (const size_t k : {3U, 0U, 5U, 1U, 4U, 2U}) {
    std::vector<double> wanted = numbers(6, 100);
    for (size_t i = 0; i < k; ++i) wanted[i] = 99;
    EXPECT_EQ(values(readers[k]), wanted) << k;
    if (k == 5) {
      EXPECT_EQ(values(x), std::vector<double>(6, -1));
    }
  }
  EXPECT_EQ(values(x), std::vector<double>(6, -1));
  // Beside each other in one program.
  Tensor y = ramp({4});
  const Tensor before = y * Tensor(2.0);
  y[{Slice{1, 3}}].assign(Tensor(9.0));
  const Tensor between = y * Tensor(3.0);
  y[0].assign(between.sum());
  Tensor::realize({y, before, between});
  EXPECT_EQ(values(before), (std::vector<double>{0, 2, 4, 6}));
  EXPECT_EQ(values(between), (std::vector<double>{0, 27, 27, 9}));
  EXPECT_EQ(values(y), (std::vector<double>{63, 9, 9, 3}));
}

// What a program computes from the old contents and somebody holds is kept by that program; only
// where it is larger than the memory, the memory is copied.
TEST(writes, spec_amend_29_a_small_value_that_is_held_costs_no_copy) {
  const int64_t n = 1 << 14;
  for (const bool large : {false, true}) {
    Tensor x = ramp({n}), held;
    const Counters c = counted([&] {
      held = (large ? Tensor::cat({x, x}) : x[{Slice{0, 8}}]) + Tensor(1.0);
      x[{Slice{0, 4}}].assign(held[{Slice{4, 8}}]);
      x.realize();
    });
    EXPECT_LE(c.bytes, large ? 4 * (2 * n + 8) : 4 * (8 + 8 + 4 + 4)) << large;
    EXPECT_EQ(values(held)[7], 8);
    EXPECT_EQ(values(x)[3], 8);
    EXPECT_EQ(values(x)[5], 5);
    // What the program does not see it cannot keep: the contents stay.
    held = x[{Slice{0, 8}}] * Tensor(2.0);
    x[3].assign(Tensor(1.0));
    EXPECT_EQ(values(x)[3], 1);
    EXPECT_EQ(values(held)[3], 16);
  }
}

// A value that is held reads what was there, whether its program writes over that or not.
TEST(writes, spec_amend_29_a_value_that_is_held_reads_the_old_contents) {
  for (const char* x_is : {"a buffer", "computed", "computed when it has a reader"})
    for (const bool viewed : {false, true})
      for (const bool large : {false, true}) {
        SCOPED_TRACE(fmt::format("x is {}, viewed {}, large {}", x_is, viewed, large));
        const std::string_view how(x_is);
        Tensor x = how == "a buffer" ? ramp({16}) : ramp({16}) * Tensor(3.0);
        const double step = how == "a buffer" ? 1 : 3;
        if (how == "computed") x.realize();
        const Tensor from = viewed ? x.reshape({4, 4}).permute({1, 0}).flatten() : x;
        const Tensor held = (large ? Tensor::cat({from, from}) : from[{Slice{0, 8}}]) + Tensor(1.0);
        x.realize();
        x[{Slice{0, 4}}].assign(held[{Slice{4, 8}}]);
        x.realize();
        for (size_t i = 0; i < 8; ++i) {
          const auto at = [&](size_t k) {
            return static_cast<double>(viewed ? k % 4 * 4 + k / 4 : k);
          };
          EXPECT_EQ(values(held)[i], at(i) * step + 1) << i;
          EXPECT_EQ(values(x)[i], i < 4 ? at(i + 4) * step + 1 : static_cast<double>(i) * step)
              << i;
        }
      }
}

// The bounds of memory that has been stored into are those of its dtype.
TEST(writes, spec_P5_what_is_written_may_leave_the_bounds_of_the_base) {
  Tensor at = Tensor::zeros({3}, DType::Int32);
  at[1].assign(Tensor(2));
  EXPECT_EQ((at < Tensor(1)).tolist<int>(), (std::vector<int>{1, 0, 1}));
  EXPECT_EQ(values(Tensor::from<float>({10, 20, 30}).index_select(0, at)),
            (std::vector<double>{10, 30, 10}));
  at[2].assign(Tensor(7));
  const Tensor picked = Tensor::from<float>({10, 20, 30}).index_select(0, at);
  expect_error([&] { (void)values(picked); }, {"index_select", "7", "out of range"});
}

TEST(writes, what_fails_leaves_every_tensor_as_it_was) {
  const Tensor far = Tensor::from<int32_t>({7});
  Tensor x = ramp({4}), y = ramp({4}), z = ramp({4});
  x[0].assign(Tensor(5.0));
  y[0].assign(x.index_select(0, far)[0]);
  z[1].assign(x[0] + Tensor(1.0));
  expect_error([&] { Tensor::realize({x, y, z}); }, {"7", "out of range"});
  EXPECT_EQ(values(y), numbers(4)) << "what cannot be computed never was assigned";
  EXPECT_EQ(values(x), (std::vector<double>{5, 1, 2, 3}));
  EXPECT_EQ(values(z), (std::vector<double>{0, 6, 2, 3}));
  // What was written before a bad one stays, whether it ran or not; what is written behind goes.
  y[3].assign(Tensor(8.0));
  y.realize();
  y[2].assign(Tensor(9.0));
  y[0].assign(y.index_select(0, far)[0]);
  y[1].assign(Tensor(7.0));
  expect_error([&] { y.realize(); }, {"7", "out of range"});
  EXPECT_EQ(values(y), (std::vector<double>{0, 1, 9, 8}));
  y[2].assign(Tensor(2.0));
  // Through a reader: the tensor itself is as it was, and so is what waits in it.
  const Tensor reader = [&] {
    y[1].assign(Tensor(6.0));
    return y.index_select(0, far) + y[1];
  }();
  expect_error([&] { (void)values(reader); }, {"7", "out of range"});
  EXPECT_EQ(values(y), (std::vector<double>{0, 6, 2, 8}));
  // Out of memory.
  Options small = options();
  small.memory_limit = 1 << 20;
  {
    const OptionScope scope(small);
    z[0].assign(Tensor::ones({1 << 20}).contiguous().sum());
    expect_error([&] { (void)values(z); }, {"out of memory"});
  }
  EXPECT_EQ(values(z), (std::vector<double>{0, 6, 2, 3}));
  z[0].assign(Tensor(1.0));
  EXPECT_EQ(values(z), (std::vector<double>{1, 6, 2, 3}));
}

// As in NumPy, where each write runs at once: valid writes before the bad one are there, the error
// is seen once, through whichever view, and everything goes on from there.
TEST(writes, a_failed_write_undoes_none_before_it) {
  const Tensor far = Tensor::from<int32_t>({7}), near = Tensor::from<int32_t>({2});
  for (const bool gradient : {false, true})
    for (const int64_t writes : {0, 1, 2, 5, 40})
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(fmt::format("{} writes{}{}", writes, whole ? " to a new value" : "",
                                 gradient ? " of what leads to a leaf" : ""));
        Tensor leaf = ramp({4});
        if (gradient) leaf.requires_grad();
        Tensor x = gradient ? leaf * Tensor(1.0) : ramp({4});
        if (whole) x.assign(x + Tensor(10.0));
        std::vector<double> expected = whole ? std::vector<double>{10, 11, 12, 13} : numbers(4);
        for (int64_t k = 0; k < writes; ++k) {
          x[k % 3].assign(Tensor(static_cast<double>(100 + k)));
          expected[static_cast<size_t>(k % 3)] = static_cast<double>(100 + k);
        }
        const Tensor view = x[{Slice{1, 4}}];
        x.setitem({far}, Tensor(5.0));
        expect_error([&] { (void)values(view); }, {"setitem", "7", "out of range"});
        EXPECT_EQ(values(view), std::vector<double>(expected.begin() + 1, expected.end()));
        EXPECT_EQ(values(x), expected);
        x.setitem({near}, Tensor(6.0));
        expected[2] = 6;
        EXPECT_EQ(values(x), expected);
        EXPECT_EQ(values(view), std::vector<double>(expected.begin() + 1, expected.end()));
      }
}

// The same where the bad value, or those behind it, read nothing of what was written before.
TEST(writes, a_failed_value_undoes_none_before_it) {
  std::mt19937_64 random(test_seed());
  const Tensor near = Tensor::from<int32_t>({2, 0, 1, 1}),
               far = Tensor::from<int32_t>({0, 1, 7, 2});
  for (int64_t c = 0; c < test_cases(200); ++c) {
    SCOPED_TRACE(fmt::format("case {}, seed {}", c, test_seed()));
    Tensor x = ramp({4});
    const Tensor other = ramp({4}).realize(), before = x * Tensor(2.0);
    std::vector<double> now = numbers(4), expected = now;
    std::string program;
    bool bad = false;  // a value that is read, or the last one
    for (uint64_t steps = 1 + random() % 9, k = 0; k < steps; ++k) {
      const auto number = static_cast<double>(10 * (k + 1));
      const uint64_t kind = random() % 7;
      program += std::to_string(kind);
      std::vector<double> next = now;
      const bool keeps = kind >= 4;
      bool fails = keeps && bad;
      switch (kind) {
        case 0:  // whole values that read nothing of x: sure ones, and by an index
          x.assign(other + Tensor(number));
          for (size_t i = 0; i < 4; ++i) next[i] = static_cast<double>(i) + number;
          break;
        case 1:
          x.assign((other + Tensor(number)).index_select(0, near));
          next = {2 + number, number, 1 + number, 1 + number};
          break;
        case 2:
          x.assign((other + Tensor(number)).index_select(0, far));
          fails = true;
          break;
        case 3:  // what x was at first
          x.assign(before);
          next = {0, 2, 4, 6};
          break;
        case 4:
          x[1].assign(Tensor(number));
          next[1] = number;
          break;
        case 5:
          x.assign(x + Tensor(number));
          for (double& v : next) v += number;
          break;
        default:
          x.setitem({far}, Tensor(number));
          fails = true;
      }
      bad = fails;
      now = next;
      if (!fails) expected = now;
    }
    SCOPED_TRACE("steps " + program);
    if (bad) expect_error([&] { (void)values(x); }, {"7", "out of range"});
    EXPECT_EQ(values(x), expected);
    x[3].assign(Tensor(-1.0));
    expected[3] = -1;
    EXPECT_EQ(values(x), expected);
  }
}

// What may be gone back to is bounded: a loop that writes values by an index and never looks.
TEST(writes, values_that_may_fail_are_held_to_a_bound) {
  const Tensor rows = ramp({4, 1000}).realize();
  Tensor x = Tensor::zeros({1000}).contiguous().realize();
  const Allocator& allocator = device_runtime("CPU").allocator();
  const int64_t before = allocator.bytes_in_use();
  int64_t most = 0;
  for (int32_t k = 0; k < 200; ++k) {
    const Tensor fresh = Tensor::full({4, 1000}, k).contiguous().realize();
    x.assign((fresh + rows).index_select(0, Tensor::from<int32_t>({k % 4}))[0]);
    most = std::max(most, allocator.bytes_in_use() - before);
  }
  EXPECT_EQ(x[1].item<double>(), 3000 + 1 + 199);
  EXPECT_LT(most, 20 * 4 * 1000 * 4) << "bytes";
}

// --- gradients -----------------------------------------------------------------------------------

namespace {

// A random view of a (3, 4, 5) tensor, as movement ops on any tensor of that shape.
using View = std::function<Tensor(const Tensor&)>;
View random_view(std::mt19937_64& random) {
  auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int64_t a = below(3), b = below(4), c = below(5), kind = below(6);
  const int64_t step = 2 + below(2);
  return [=](const Tensor& t) {
    switch (kind) {
      case 0:
        return t[a];
      case 1:
        return t[{Slice{}, Slice{b, {}}, Slice{0, c + 1}}];
      case 2:
        return t.permute({2, 0, 1})[c].flip({1});
      case 3:
        return t[{Slice{}, Slice{{}, {}, -step}}];
      case 4:
        return t.flatten()[{Slice{a * 20 + b * 5 + c, {}, step}}];
      default:
        return t[{a, b, c}];
    }
  };
}

// The base with `value` in the places of a view, without any assignment.
Tensor functional(const View& view, const Tensor& base, const Tensor& value) {
  const Tensor numbers = Tensor::arange(60).reshape({3, 4, 5});
  const std::vector<int64_t> places = view(numbers).flatten().tolist<int64_t>();
  std::vector<int64_t> from(60, -1);
  for (size_t i = 0; i < places.size(); ++i)
    from[static_cast<size_t>(places[i])] = static_cast<int64_t>(i);
  std::vector<bool> inside;
  for (int64_t& f : from) {
    inside.push_back(f >= 0);
    f = std::max<int64_t>(f, 0);
  }
  const Tensor spread = value.expand(view(numbers).shape())
                            .flatten()
                            .index_select(0, Tensor::from<int64_t>(from, {60}));
  return Tensor::where(Tensor::from<bool>(inside, {3, 4, 5}), spread.reshape({3, 4, 5}), base);
}

}  // namespace

TEST(writes, gradients_are_those_of_the_functional_form) {
  std::mt19937_64 random(test_seed());
  for (int64_t c = 0; c < test_cases(60); ++c) {
    const Tensor a0 = doubles({3, 4, 5}, random), b0 = doubles({}, random);
    const View views[] = {random_view(random), random_view(random), random_view(random)};
    const bool looks = random() % 2 == 0;
    auto run = [&](bool writes) {
      Tensor a = a0.clone(), b = b0.clone();
      a.requires_grad();
      b.requires_grad();
      Tensor x = a * a;
      for (int k = 0; k < 3; ++k) {
        // Of the leaf, of a constant, and of what is written to.
        const Tensor value = k == 0   ? b * b * b
                             : k == 1 ? Tensor(0.5)
                                      : x.square().sum() * Tensor(0.01) + b;
        const View& view = views[k];
        if (writes)
          view(x).assign(value);
        else
          x = functional(view, x, value.cast(DType::Float64));
        if (looks && writes && k == 1) (void)values(x);
      }
      (x * x * a).sum().backward();
      auto out = values(x);
      for (const Tensor& leaf : {a, b})
        for (const double g : values(leaf.grad())) out.push_back(g);
      return out;
    };
    const auto got = run(true), want = run(false);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-11 * (1 + std::abs(want[i])))
          << "element " << i << ", case " << c << ", seed " << test_seed();
  }
}

TEST(writes, gradients_to_the_value_and_the_old_contents) {
  Tensor w = Tensor::from<float>({1, 2, 3, 4}).requires_grad();
  Tensor v = Tensor::from<float>({5, 6}).requires_grad();
  Tensor x = w * Tensor(3.0);
  x[{Slice{1, 3}}].assign(v * v);
  x.sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{3, 0, 0, 3}));
  EXPECT_EQ(values(v.grad()), (std::vector<double>{10, 12}));
  // What a later write covers has no gradient; a value that is broadcast has the sum.
  w.zero_grad();
  v.zero_grad();
  x = w * Tensor(3.0);
  x[{Slice{0, 3}}].assign(v[0]);
  x[0].assign(Tensor(0.0));
  x.sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{0, 0, 0, 3}));
  EXPECT_EQ(values(v.grad()), (std::vector<double>{2, 0}));
  // Tensor indices, where the last one counts.
  w.zero_grad();
  v.zero_grad();
  x = w * Tensor(3.0);
  x.setitem({Tensor::from<int32_t>({2, 2})}, v);
  EXPECT_EQ(values(x), (std::vector<double>{3, 6, 6, 12}));
  x.sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{3, 3, 0, 3}));
  EXPECT_EQ(values(v.grad()), (std::vector<double>{0, 1}));
  // Where nothing is a leaf the write is a Store at places, and has the same gradient.
  const Tensor m = Tensor::from<double>({1, 2, 3, 4}), b = Tensor::from<double>({5, 6});
  Tensor y = m * Tensor(3.0);
  y.setitem({Tensor::from<int32_t>({2, 2})}, b * b);
  const std::vector<Tensor> slopes = y.square().sum().gradient({m, b});
  EXPECT_EQ(values(slopes[0]), (std::vector<double>{18, 36, 0, 72}));
  EXPECT_EQ(values(slopes[1]), (std::vector<double>{0, 4.0 * 6 * 6 * 6}));
  EXPECT_EQ(values(y), (std::vector<double>{3, 6, 36, 12}));
  // Of second order: x is (w0^3, w1, ...) with x0 from x1.
  const Tensor p = Tensor::from<double>({2, 3});
  Tensor q = p * p;
  q[0].assign(q[1] * p[0]);
  const Tensor slope = q.sum().gradient({p})[0];  // (p1^2, 2 p1 p0 + 2 p1)
  EXPECT_EQ(values(slope), (std::vector<double>{9, 12 + 6}));
  EXPECT_EQ(values(slope.sum().gradient({p})[0]), (std::vector<double>{6, 6 + 4 + 2}));
}

// As an assignment of the whole: the leaf stays a leaf with what it has now, and what was computed
// from its old contents is refused by name.
TEST(writes, a_leaf_that_is_written_stays_a_leaf) {
  Tensor w = Tensor::from<float>({1, 2, 3}).requires_grad();
  Tensor other = Tensor::from<float>({4}).requires_grad();
  const Tensor old = (w * w).sum();
  w[0].assign(other[0] * Tensor(10.0));
  expect_error([&] { old.backward(); }, {"backward", "new value", "compute"});
  EXPECT_EQ(old.item(), 14);
  (w * w).sum().backward();
  EXPECT_EQ(values(w.grad()), (std::vector<double>{80, 4, 6}));
  EXPECT_FALSE(other.has_grad());
  // Two leaves that are written the same are two leaves (amendment C34).
  Tensor a = Tensor::zeros({2}).requires_grad(), b = Tensor::zeros({2}).requires_grad();
  for (Tensor* t : {&a, &b}) (*t)[{Slice{0, 1}}].assign(Tensor(1.0));
  for (const bool realized : {false, true}) {
    if (realized) Tensor::realize({a, b});
    a.zero_grad();
    b.zero_grad();
    (a * Tensor(2.0) + b * Tensor(3.0)).sum().backward();
    EXPECT_EQ(values(a.grad()), std::vector<double>(2, 2)) << realized;
    EXPECT_EQ(values(b.grad()), std::vector<double>(2, 3)) << realized;
  }
}

// No history is lost in silence.
TEST(writes, a_gradient_that_needs_what_was_written_over_is_refused) {
  Tensor x = Tensor::from<float>({1, 2, 3, 4}), s = Tensor::from<float>({3});
  x[{Slice{0, 2}}].assign(x[{Slice{2, 4}}] * s);
  EXPECT_EQ(values(x), (std::vector<double>{9, 12, 3, 4}));
  expect_error([&] { (void)x.sum().gradient({s}); },
               {"gradient", "(4,)", "written over", "requires_grad()"});
  // With a leaf the old contents are kept.
  Tensor y = Tensor::from<float>({1, 2, 3, 4}), w = Tensor::from<float>({3}).requires_grad();
  y[{Slice{0, 2}}].assign(y[{Slice{2, 4}}] * w);
  EXPECT_EQ(values(y), (std::vector<double>{9, 12, 3, 4}));
  y[3].assign(Tensor(0.0));
  EXPECT_EQ(values(y), (std::vector<double>{9, 12, 3, 0}));
  y.sum().backward();
  EXPECT_EQ(values(w.grad()), std::vector<double>{7});
}

TEST(writes, a_traced_function_writes_to_its_own_tensors) {
  const auto f = function([](const Tensor& t) {
    Tensor out = t * Tensor(2.0);
    out[{Slice{0, 2}}].assign(t[{Slice{1, 3}}] * t[0]);
    return out;
  });
  Tensor x = Tensor::from<float>({3, 4, 5}).requires_grad();
  const Tensor y = f(x), z = f(x + Tensor(1.0));
  EXPECT_EQ(values(y), (std::vector<double>{12, 15, 10}));
  EXPECT_EQ(values(z), (std::vector<double>{20, 24, 12}));
  y.sum().backward();  // x0 x1 + x0 x2 + 2 x2
  EXPECT_EQ(values(x.grad()), (std::vector<double>{9, 3, 3 + 2}));
}

// Looking is reading, whoever does it.
TEST(writes, two_threads_look_at_what_waits) {
  for (int round = 0; round < 20; ++round) {
    Tensor x = ramp({1000});
    for (int64_t i = 0; i < 4; ++i) x[{Slice{i, i + 500}}].assign(x[{Slice{500 - i, 1000 - i}}]);
    std::vector<double> wanted = numbers(1000);
    for (size_t i = 0; i < 4; ++i) {
      const auto old = wanted;
      for (size_t k = 0; k < 500; ++k) wanted[i + k] = old[500 - i + k];
    }
    std::vector<double> seen[2];
    std::vector<std::thread> threads;
    for (auto& out : seen) threads.emplace_back([&] { out = values(x * Tensor(1.0)); });
    for (auto& t : threads) t.join();
    EXPECT_EQ(seen[0], wanted);
    EXPECT_EQ(seen[1], wanted);
    EXPECT_EQ(values(x), wanted);
  }
}

// A request that fails looks for what of it can be computed, while others write.
TEST(writes, one_thread_fails_with_a_leaf_while_another_writes) {
  std::atomic<bool> done = false;
  std::thread other([&] {
    for (int64_t n = 8; !done; ++n) {
      Tensor y = ramp({n});
      y[{Slice{0, 2}}].assign(y[{Slice{2, 4}}]);
      EXPECT_EQ(values(y)[1], 3);
    }
  });
  for (int round = 0; round < 1000; ++round) {
    Tensor w = ramp({4}).requires_grad();
    w[{Slice{0, 2}}].assign(Tensor::from<float>({7, 8}));
    const Tensor bad = ramp({6}).gather(0, Tensor::from<int64_t>({9}));
    EXPECT_THROW(Tensor::realize({w, bad}), Error);
    EXPECT_EQ(values(w), (std::vector<double>{7, 8, 2, 3}));
  }
  done = true;
  other.join();
}

}  // namespace koine::test
