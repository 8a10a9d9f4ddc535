// Movement, reduce, call, load and store: rows B of the specification.
#include <algorithm>
#include <cmath>
#include <random>
#include "check.hpp"

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {

TEST(movement, spec_B1_permute) {
  const UOp x = leaf({2, 3, 4, 5});
  std::vector<int64_t> order{0, 1, 2, 3};
  do {
    const UOp y = permute(x, order);
    expect_same_everywhere(y);
    std::vector<int64_t> back(4);
    for (size_t i = 0; i < 4; ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    EXPECT_EQ(rewrite(permute(y, back), movement_rules()), x);
  } while (std::next_permutation(order.begin(), order.end()));
  expect_error([&] { (void)permute(x, {0, 0, 1, 2}); },
               {"Permute", "(0, 0, 1, 2)", "not a permutation"});
}

TEST(movement, spec_B2_flip) {
  const UOp x = leaf({3, 4});
  expect_same_everywhere(flip(x, {1, 1}));
  EXPECT_EQ(rewrite(flip(flip(x, {0, 1}), {0, 1}), movement_rules()), x);
}

TEST(movement, spec_B3_reshape) {
  const UOp x = leaf({4, 6});
  expect_same_everywhere(reshape(x, shape_of({3, 8})));
  EXPECT_EQ(rewrite(reshape(reshape(x, shape_of({24})), shape_of({4, 6})), movement_rules()), x);
  expect_error([&] { (void)reshape(x, shape_of({5, 5})); }, {"Reshape", "24", "25"});
}

TEST(movement, spec_B4_expand) {
  const UOp x = leaf({3, 1});
  expect_same_everywhere(expand(x, shape_of({3, 5})));
  expect_error([&] { (void)expand(x, shape_of({4, 1})); }, {"Expand", "axis 0", "size 3"});
  const UOp y = expand(x, shape_of({3, 5}));
  const UOp seed = leaf({3, 5}, DType::Float32, 1);
  const std::vector<UOp> outputs{y}, seeds{seed}, targets{x};
  EXPECT_EQ(gradient(outputs, seeds, targets)[0], sum_to(seed, x.shape()));
}

// In a tuple and through a Function too.
TEST(movement, spec_amend_27_what_was_made_before_a_look_stays_invalid) {
  const auto twice = function([](const Tensor& t) { return t * 2; });
  for (int form = 0; form < 3; ++form) {
    const Tensor x = Tensor::from<float>({1, 2}).realize();
    const Tensor padded(pad(x.uop(), shape_of({1}), shape_of({4})));
    const UOp pair = UOp::make(Op::Tuple, {x.uop(), (padded * 2).uop()});
    const Tensor y = form == 0   ? padded * 2
                     : form == 1 ? twice(padded)
                                 : Tensor(get_tuple(pair, 1));
    const Tensor z = y + 1;
    EXPECT_EQ(y.tolist<float>(), (std::vector<float>{0, 2, 4, 0}));
    EXPECT_EQ(z.tolist<float>(), (std::vector<float>{0, 3, 5, 0})) << form;
    EXPECT_EQ((Tensor(get_tuple(pair, 0)) + 1).tolist<float>(), (std::vector<float>{2, 3}));
  }
}

TEST(movement, spec_B5_spec_amend_27_pad_is_invalid_outside) {
  const UOp x = Tensor::from<float>({-3, -1, -2}).uop();
  const UOp padded = pad(x, shape_of({1}), shape_of({6}));
  const UOp top = reduce(Op::Max, padded, {0});
  EXPECT_EQ(Tensor(top).item(), -1) << "the padding is never seen by a reduce";
  expect_same_everywhere(top);
  EXPECT_EQ(
      Tensor(pad(x, shape_of({1}), shape_of({5}), constant(DType::Float32, 9))).tolist<float>(),
      (std::vector<float>{9, -3, -1, -2, 9}));
  EXPECT_EQ(Tensor(padded).tolist<float>(), (std::vector<float>{0, -3, -1, -2, 0, 0}))
      << "fresh memory holds 0 there";
  // A store into existing memory leaves the invalid places alone.
  const UOp buffer = Tensor::from<float>({7, 7, 7, 7, 7, 7}).uop();
  EXPECT_EQ(Tensor(after(buffer, {store(buffer, padded)})).tolist<float>(),
            (std::vector<float>{7, -3, -1, -2, 7, 7}));
}

TEST(movement, spec_B6_shrink) {
  const UOp x = leaf({5, 6});
  expect_same_everywhere(shrink(x, shape_of({1, 2}), shape_of({3, 2})));
  EXPECT_EQ(rewrite(shrink(pad(x, shape_of({1, 2}), shape_of({9, 9})), shape_of({1, 2}),
                           shape_of({5, 6})),
                    movement_rules()),
            x);
  expect_error([&] { (void)shrink(x, shape_of({3, 0}), shape_of({3, 6})); }, {"Shrink", "axis 0"});
}

TEST(movement, spec_B7_spec_amend_28_index) {
  const UOp x = leaf({4, 5, 6});
  const UOp i = Tensor::from<int32_t>({3, 0, 3, 1}).uop(), j = Tensor::from<int64_t>({5, 2}).uop();
  expect_same_everywhere(index(x, {i}));
  expect_same_everywhere(index(x, {constant_int(DType::Int32, 2), i}));
  expect_same_everywhere(index(x, {i, i, j}));
  expect_same_everywhere(index(x, {index_const(1), index_const(2), index_const(3)}));
  // Out of range reads 0 and touches nothing: the interpreter checks every access.
  const UOp far = Tensor::from<int32_t>({-1, 4, 1000000, 2}).uop();
  expect_same_everywhere(index(x, {far}));
  // Out of range of a Pad without fill: the 0 counts, unlike the invalid elements inside.
  const UOp padded = pad(leaf({3}), shape_of({1}), shape_of({5}));
  expect_same_everywhere(reduce(Op::Mul, index(padded, {far}), {0}));
  // NumPy's meaning, at the Tensor's level: negative positions, slices, points.
  const Tensor t = Tensor::arange(24).reshape({4, 6});
  EXPECT_EQ(t[-1].tolist<int>(), (std::vector<int>{18, 19, 20, 21, 22, 23}));
  EXPECT_EQ((t[{Slice{1, {}, 2}, Slice{{}, {}, -3}}].tolist<int>()),
            (std::vector<int>{11, 8, 23, 20}));
  EXPECT_EQ((t[{Tensor::from<int>({0, -1}), Tensor::from<int>({1, -2})}].tolist<int>()),
            (std::vector<int>{1, 22}));
  EXPECT_EQ((t[{Ellipsis{}, NewAxis{}, 2}].shape()), (Shape{4, 1}));
}

// A user's position out of range is an error when the value is looked at, and nothing has run by
// then; KOINE_INDEX=clamp and fill give a value instead.
TEST(movement, spec_amend_28_positions_out_of_range) {
  const Tensor t = Tensor::arange(12).reshape({4, 3}).realize();
  const Tensor far = Tensor::from<int32_t>({3, -4, 4});
  const Tensor lazy = t.index_select(0, far);  // describing it is fine
  const auto raised = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.kind() == ErrorKind::Index;
    }
    return false;
  };
  EXPECT_TRUE(raised([&] { (void)lazy.tolist<int>(); }));
  expect_error([&] { (void)lazy.tolist<int>(); },
               {"position 4", "element 2", "(3,)", "size 4", "-4 to 3", "KOINE_INDEX"});
  expect_error([&] { (void)(t[{Tensor::from<int>({0}), Tensor::from<int>({-4})}]).realize(); },
               {"position -4", "size 3"});
  EXPECT_TRUE(raised([&] { (void)interpret(lazy.uop(), bindings_of(lazy.uop())); }));
  const Tensor logits = Tensor::zeros({2, 3});
  expect_error([&] { (void)logits.nll_loss(Tensor::from<int>({0, 3})).item(); }, {"class 3"});
  // In a sum whose other part is fine, under a gradient, and in a Function.
  Tensor w = Tensor::ones({4}).requires_grad();
  (w.index_select(0, far) * Tensor(2.0)).sum().backward();
  expect_error([&] { (void)w.grad().tolist<float>(); }, {"position 4"});
  const UOp call = make_function(
      [&](const std::vector<UOp>& in) {
        return std::vector<UOp>{Tensor(in[0]).index_select(0, Tensor(in[1])).uop()};
      },
      {t.uop(), far.uop()});
  expect_error([&] { (void)Tensor(get_tuple(call, 0)).tolist<int>(); }, {"position 4"});
  {  // a device that computes nothing has nothing to look at
    Options o = options();
    o.device = "NULL";
    const OptionScope scope(o);
    (void)Tensor::arange(4).index_select(0, Tensor::from<int32_t>({7})).realize();
  }
  // Good positions and proven ones are not affected; negative ones count from the end.
  const Tensor near = Tensor::from<int32_t>({3, -4, 2});
  EXPECT_EQ(t.index_select(0, near).sum({1}).tolist<int>(), (std::vector<int>{30, 3, 21}));
  expect_same_everywhere(t.index_select(1, Tensor::arange(3)).uop());
  expect_same_everywhere(t.index_select(0, near).uop());
  for (const IndexMode mode : {IndexMode::Clamp, IndexMode::Fill}) {
    Options o = options();
    o.index = mode;
    const OptionScope scope(o);
    const int last = mode == IndexMode::Clamp ? 11 : 0;
    EXPECT_EQ((t[{far, Tensor(2)}]).tolist<int>(), (std::vector<int>{11, 2, last}));
    EXPECT_EQ((t[{far, Tensor(-9)}]).tolist<int>(),
              mode == IndexMode::Clamp ? (std::vector<int>{9, 0, 9}) : (std::vector<int>{0, 0, 0}));
    expect_same_everywhere(t.index_select(0, far).uop());
  }
}

// A value that depends on a Variable is computed anew for each binding.
TEST(movement, values_of_variables_are_never_stale) {
  const UOp x = Tensor::arange(5).realize().uop(), v = variable("at", 0, 4);
  const UOp row = add(index(x, {v}), constant_int(DType::Int32, 10));
  for (const int64_t at : {1, 4, 1})
    EXPECT_EQ(Tensor(realize({row}, {{"at", at}})[0]).item<int>(), 10 + at);
}

TEST(movement, spec_B8_stack) {
  const Tensor a(leaf({3, 4})), b(leaf({3, 4}, DType::Float32, 1)),
      c(leaf({3, 4}, DType::Float32, 2));
  const Tensor s = Tensor::stack({a + b, b * c, a - c});
  EXPECT_EQ(kernel_count({s}), 1);
  expect_same_everywhere(s);
  expect_error([&] { (void)stack(std::vector<UOp>{a.uop(), a.reshape({4, 3}).uop()}); },
               {"Stack", "(3, 4)", "(4, 3)"});
}

TEST(movement, spec_B9_spec_amend_9_bitcast) {
  const UOp x = leaf({3, 8});
  expect_same_everywhere(bitcast(x, DType::UInt32));
  EXPECT_EQ(rewrite(bitcast(bitcast(x, DType::Int32), DType::Float32), symbolic_rules()), x);
  const std::vector<float> values{1.5f, -2.25f};
  const Tensor bytes = Tensor::from_bytes(values.data(), {8}, DType::UInt8);
  EXPECT_EQ(bytes.bitcast(DType::Float32).tolist<float>(), values);
  expect_same_everywhere(bytes.bitcast(DType::Float32));
  expect_same_everywhere(bitcast(x, DType::UInt8));
  const UOp wide = leaf({2}, DType::UInt64);  // one kernel reads it with two dtypes
  expect_same_everywhere(
      index(bitcast(wide, DType::Int32), {bit_and(wide, constant_int(DType::UInt64, 3))}));
  expect_same_everywhere(add(bitcast(wide, DType::Float32),
                             pad(cast(wide, DType::Float32), shape_of({1}), shape_of({4}))));
  expect_same_everywhere(  // what a Pad does not show is not read
      pad(bitcast(wide, DType::Int32), shape_of({3}), shape_of({9}),
          constant_int(DType::Int32, 5)));
  expect_error([&] { (void)bitcast(leaf({3}, DType::UInt8), DType::Float32); },
               {"Bitcast", "3 bytes"});
}

namespace {

// Six random movement ops on a small tensor, in plain loops on the side: `elements` holds, for each
// element of `view`, which element of the base it shows (-1: the fill of a Pad).
struct Chain {
  UOp view;
  std::vector<int64_t> sizes, elements;
};

class ChainMaker {
 public:
  explicit ChainMaker(uint64_t seed) : random_(seed) {}

  Chain run(const UOp& base) {
    Chain c{base, base.sizes(), {}};
    for (int64_t i = 0; i < base.numel(); ++i) c.elements.push_back(i);
    for (int step = 0; step < 6; ++step) apply(c);
    return c;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // New sizes, and for each new place the place before it (empty: outside).
  template <class Source>
  static void gather(Chain& c, const std::vector<int64_t>& sizes, Source&& source) {
    std::vector<int64_t> at(sizes.size(), 0), out;
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i;
      for (size_t k = sizes.size(); k-- > 0;) {
        at[k] = rest % sizes[k];
        rest /= sizes[k];
      }
      const std::vector<int64_t> from = source(at);
      int64_t flat = 0;
      for (size_t k = 0; k < from.size(); ++k) flat = flat * c.sizes[k] + from[k];
      out.push_back(from.empty() ? -1 : c.elements[static_cast<size_t>(flat)]);
    }
    c.sizes = sizes;
    c.elements = std::move(out);
  }

  void apply(Chain& c) {
    using Sizes = std::vector<int64_t>;
    const size_t rank = c.sizes.size();
    switch (below(6)) {
      case 0: {
        Sizes order(rank), sizes;
        for (size_t k = 0; k < rank; ++k) order[k] = static_cast<int64_t>(k);
        std::shuffle(order.begin(), order.end(), random_);
        for (const int64_t o : order) sizes.push_back(c.sizes[static_cast<size_t>(o)]);
        c.view = permute(c.view, order);
        return gather(c, sizes, [&](const Sizes& at) {
          Sizes from(rank);
          for (size_t k = 0; k < rank; ++k) from[static_cast<size_t>(order[k])] = at[k];
          return from;
        });
      }
      case 1: {
        Sizes flags;
        for (size_t k = 0; k < rank; ++k) flags.push_back(below(2));
        c.view = flip(c.view, flags);
        return gather(c, c.sizes, [&, old = c.sizes](const Sizes& at) {
          Sizes from = at;
          for (size_t k = 0; k < rank; ++k)
            if (flags[k] != 0) from[k] = old[k] - 1 - at[k];
          return from;
        });
      }
      case 2: {  // two axes become one, or one of an even size two
        Sizes sizes = c.sizes;
        const auto k = static_cast<size_t>(below(static_cast<int64_t>(rank)));
        if (k + 1 < rank && below(2) == 0) {
          sizes[k] *= sizes[k + 1];
          sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(k) + 1);
        } else if (sizes[k] % 2 == 0) {
          sizes[k] /= 2;
          sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(k), 2);
        }
        c.view = reshape(c.view, shape_of(sizes));
        c.sizes = sizes;  // row-major order stays
        return;
      }
      case 3: {
        Sizes offset, sizes;
        for (const int64_t s : c.sizes) {
          offset.push_back(below(s));
          sizes.push_back(1 + below(s - offset.back()));
        }
        c.view = shrink(c.view, shape_of(offset), shape_of(sizes));
        return gather(c, sizes, [&](const Sizes& at) {
          Sizes from = at;
          for (size_t k = 0; k < rank; ++k) from[k] += offset[k];
          return from;
        });
      }
      case 4: {
        Sizes offset, sizes;
        for (const int64_t s : c.sizes) {
          offset.push_back(below(3));
          sizes.push_back(s + offset.back() + below(2));
        }
        int64_t n = 1;
        for (const int64_t s : sizes) n *= s;
        if (n > 2000) return;
        c.view = pad(c.view, shape_of(offset), shape_of(sizes), constant(DType::Float32, -1));
        return gather(c, sizes, [&, old = c.sizes](const Sizes& at) {
          Sizes from = at;
          for (size_t k = 0; k < rank; ++k) {
            from[k] -= offset[k];
            if (from[k] < 0 || from[k] >= old[k]) return Sizes();
          }
          return from;
        });
      }
      default: {
        Sizes sizes = c.sizes;
        for (int64_t& s : sizes)
          if (s == 1) s = 1 + below(3);
        c.view = expand(c.view, shape_of(sizes));
        return gather(c, sizes, [&, old = c.sizes](const Sizes& at) {
          Sizes from = at;
          for (size_t k = 0; k < rank; ++k)
            if (old[k] == 1) from[k] = 0;
          return from;
        });
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST(movement, spec_B10_random_chains_show_the_right_elements) {
  std::vector<float> data(60);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const UOp base = Tensor::from(data, {3, 4, 5}).uop();
  const int64_t cases = test_cases(10000);
  for (int64_t i = 0; i < cases; ++i) {
    const Chain c = ChainMaker(test_seed() + static_cast<uint64_t>(i)).run(base);
    ASSERT_EQ(c.view.sizes(), c.sizes);
    std::vector<float> expected;
    for (const int64_t e : c.elements) expected.push_back(static_cast<float>(e));
    // One kernel, no copy of what is between; compiled in a part of the cases.
    const UOp value = add(c.view, constant(DType::Float32, 0));
    ASSERT_EQ(schedule({value}).size(), 1u);
    const Array got = run_on(value, i % 50 == 0 ? "CPU" : "INTERP");
    for (size_t k = 0; k < expected.size(); ++k)
      ASSERT_EQ(bits_to_double(DType::Float32, got.data[k]), static_cast<double>(expected[k]))
          << "KOINE_TEST_SEED=" << test_seed() + static_cast<uint64_t>(i) << " element " << k
          << "\n"
          << to_text(c.view);
  }
}

TEST(movement, spec_B10_views_copy_nothing) {
  const Tensor x(leaf({4, 6}));
  const Tensor y =
      x.permute({1, 0}).flip({0}).shrink({{1, 5}, {0, 4}}).reshape({8, 2}) + Tensor(1.0);
  EXPECT_EQ(kernel_count({y}), 1);
  expect_same_everywhere(y);
}

TEST(movement, spec_B11_spec_amend_4_reduce) {
  for (const DType d : stored_dtypes()) {
    if (is_small_float(d)) continue;  // summed in float32, below
    const UOp x = leaf({2, 3, 2, 3}, d);
    for (int mask = 1; mask < 16; ++mask) {
      std::vector<int64_t> axes;
      for (int k = 0; k < 4; ++k)
        if (mask >> k & 1) axes.push_back(k);
      for (const Op op : {Op::Add, Op::Max, Op::Mul}) expect_same_everywhere(reduce(op, x, axes));
    }
  }
  const double nan = std::nan("");
  for (const auto& values : {std::vector<double>{1, nan}, std::vector<double>{nan, 1},
                             std::vector<double>{1, 2, nan, 3}})
    EXPECT_TRUE(
        std::isnan(Tensor::from(values, {static_cast<int64_t>(values.size())}).max().item()));
  EXPECT_EQ(Tensor::zeros({0}).sum().item(), 0);
  // The op has an identity; Tensor::max refuses (refusals.reductions_of_nothing).
  EXPECT_EQ(Tensor(reduce(Op::Max, Tensor::zeros({0}).uop(), {0})).item(),
            -std::numeric_limits<double>::infinity());
  EXPECT_EQ(Tensor::zeros({0}).prod().item(), 1);
  // Sums of float16 accumulate in float32: 4096 ones and a half would stop at 2048 otherwise.
  EXPECT_EQ(Tensor::ones({4096}, DType::Float16).sum().item(), 4096);
}

TEST(movement, spec_B12_functions_are_differentiable) {
  const UOp x = leaf({3}), w = leaf({3}, DType::Float32, 1);
  const UOp call = make_function(
      [](const std::vector<UOp>& in) { return std::vector<UOp>{mul(mul(in[0], in[0]), in[1])}; },
      {x, w});
  const UOp y = get_tuple(call, 0);
  const UOp seed = Tensor::ones({3}).uop();
  const std::vector<UOp> outputs{y}, seeds{seed}, targets{x, w};
  const std::vector<UOp> grads = gradient(outputs, seeds, targets);
  ASSERT_TRUE(grads[0].is(Op::GetTuple));
  EXPECT_TRUE(grads[0].src(0).is(Op::Function)) << "the gradient is a second Function";
  EXPECT_EQ(difference(interpret(mul(mul(x, x), constant(DType::Float32, 1)), bindings_of(x)),
                       interpret(grads[1], bindings_of(grads[1]))),
            "");
  expect_same_everywhere(grads[0]);
}

TEST(movement, spec_B14_tuples) {
  const UOp x = leaf({3}), i = leaf({2, 2}, DType::Int32);
  const UOp t = tuple(std::vector<UOp>{x, i, constant_bool(true)});
  EXPECT_EQ(get_tuple(t, 1).dtype(), DType::Int32);
  expect_same_everywhere(add(get_tuple(t, 1), get_tuple(t, 1)));
  expect_error([&] { (void)get_tuple(t, 3); }, {"GetTuple", "index 3", "Tuple of 3"});
  const std::vector<UOp> outputs{mul(get_tuple(t, 0), get_tuple(t, 0))},
      seeds{Tensor::ones({3}).uop()}, targets{x, get_tuple(t, 0)};
  const std::vector<UOp> grads = gradient(outputs, seeds, targets);
  for (const UOp& g : grads)
    EXPECT_EQ(difference(interpret(add(x, x), bindings_of(x)), interpret(g, bindings_of(g))), "");
}

TEST(movement, spec_B15_load_moves_between_devices) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  const Tensor there = x.to("CPU:1");
  EXPECT_EQ(there.device(), "CPU:1");
  EXPECT_EQ((there * Tensor(2.0)).to("CPU").tolist<float>(), (std::vector<float>{2, 4, 6}));
  expect_error([&] { (void)x.to("TPU"); }, {"unknown device 'TPU'", "CPU"});
}

TEST(movement, spec_B16_stores) {
  const UOp b = Tensor::from<int32_t>({0, 1, 2, 3, 4, 5}).uop();
  const UOp part = shrink(b, shape_of({2}), shape_of({3}));
  const UOp v = Tensor::from<int32_t>({20, 30, 40}).uop();
  EXPECT_EQ(Tensor(after(b, {store(part, v)})).tolist<int>(),
            (std::vector<int>{0, 1, 20, 30, 40, 5}));
  expect_error([&] { (void)store(part, b); }, {"Store", "(3,)", "(6,)"});
  expect_error([&] { (void)store(b, cast(b, DType::Float32)); }, {"Store", "int32", "float32"});
}

TEST(movement, spec_B18_after_orders_reads_and_writes) {
  // Old state, first write, second write: each reader sees the version it names.
  const UOp b = Tensor::from<int32_t>({1, 2, 3, 4}).uop();
  const UOp once = after(
      b, {store(shrink(b, shape_of({0}), shape_of({2})), Tensor::from<int32_t>({10, 20}).uop())});
  const UOp twice = after(once, {store(shrink(once, shape_of({1}), shape_of({2})),
                                       Tensor::from<int32_t>({7, 8}).uop())});
  const UOp old_sum = reduce(Op::Add, b, {0}), new_sum = reduce(Op::Add, twice, {0});
  const UOp both = add(old_sum, mul(new_sum, constant_int(DType::Int32, 100)));
  EXPECT_EQ(interpret(both, bindings_of(both)).data[0], 10u + 100u * (10 + 7 + 8 + 4));
  EXPECT_EQ(Tensor(both).tolist<int>(), (std::vector<int>{2910}));
}

// Writes and reads of one buffer, recorded in any order and asked for in any order: each reader
// sees the version that it names. Simulated on a plain vector.
TEST(movement, spec_B18_random_writes_and_reads) {
  const int64_t cases = test_cases(300);
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
    std::mt19937_64 random(seed);
    constexpr size_t size = 6;
    std::vector<std::vector<int64_t>> states(1);
    for (size_t k = 0; k < size; ++k) states[0].push_back(static_cast<int64_t>(random() % 100));
    std::vector<UOp> versions{Tensor::from(states[0], {size}).uop()};
    std::vector<UOp> reads;
    std::vector<int64_t> expected;
    for (int step = 0; step < 8; ++step) {
      const size_t old = random() % versions.size();
      if (random() % 2 == 0) {  // a write, of something read from this or an older version
        const size_t n = 1 + random() % size, to = random() % (size - n + 1),
                     from = random() % (size - n + 1);
        const auto s = [](size_t v) { return shape_of({static_cast<int64_t>(v)}); };
        const UOp value =
            add(shrink(versions[old], s(from), s(n)), constant_int(DType::Int64, step));
        std::vector<int64_t> next = states.back();
        for (size_t k = 0; k < n; ++k) next[to + k] = states[old][from + k] + step;
        versions.push_back(
            after(versions.back(), {store(shrink(versions.back(), s(to), s(n)), value)}));
        states.push_back(next);
      } else {  // a read of two versions
        const size_t other = random() % versions.size();
        reads.push_back(reduce(Op::Add, mul(versions[old], versions[other]), {0}));
        int64_t sum = 0;
        for (size_t k = 0; k < size; ++k) sum += states[old][k] * states[other][k];
        expected.push_back(sum);
      }
    }
    reads.push_back(reduce(Op::Max, versions.back(), {0}));
    expected.push_back(*std::max_element(states.back().begin(), states.back().end()));
    std::vector<size_t> order(reads.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<UOp> asked;
    for (const size_t k : order) asked.push_back(reads[k]);
    const UOp all = stack(asked);
    const Array want = interpret(all, bindings_of(all));
    const std::vector<int64_t> got = Tensor(all).tolist<int64_t>();
    for (size_t k = 0; k < order.size(); ++k) {
      ASSERT_EQ(bits_to_int(DType::Int64, want.data[k]), expected[order[k]])
          << "seed " << seed << to_text(all);
      ASSERT_EQ(got[k], expected[order[k]]) << "seed " << seed << "\n" << to_text(all);
    }
  }
}

TEST(movement, spec_B19_groups_and_sinks) {
  const UOp b = Tensor::from<int32_t>({0, 0, 0, 0}).uop();
  auto half = [&](int64_t from, int v) {
    return store(shrink(b, shape_of({from}), shape_of({2})),
                 Tensor::full({2}, v, DType::Int32).uop());
  };
  EXPECT_EQ(Tensor(after(b, {half(0, 5), half(2, 6)})).tolist<int>(),
            (std::vector<int>{5, 5, 6, 6}));
  EXPECT_EQ(sink(std::vector<UOp>{half(0, 5)}).dtype(), DType::Void);
}

TEST(movement, spec_B20_spec_amend_29_assignment) {
  Tensor x = Tensor::from<int32_t>({1, 2, 3, 4});
  for (int i = 0; i < 100; ++i) x += Tensor(1);
  EXPECT_EQ(x.tolist<int>(), (std::vector<int>{101, 102, 103, 104}));
  // The right side is read before anything is written.
  x = Tensor::from<int32_t>({1, 2, 3, 4});
  x.setitem({Slice{1, {}}}, x[{Slice{{}, -1}}]);
  EXPECT_EQ(x.tolist<int>(), (std::vector<int>{1, 1, 2, 3}));
  // Two live views see a write; a value computed before keeps the old state.
  Tensor base = Tensor::zeros({4}).clone();
  const Tensor view = base[{Slice{1, 3}}], other = base.reshape({2, 2}),
               before = base + Tensor(10.0);
  base.setitem({Slice{2, 3}}, Tensor(5.0));
  EXPECT_EQ(view.tolist<float>(), (std::vector<float>{0, 5}));
  EXPECT_EQ(other.tolist<float>(), (std::vector<float>{0, 0, 5, 0}));
  EXPECT_EQ(before.tolist<float>(), (std::vector<float>{10, 10, 10, 10}));
  const Tensor z = base + Tensor(1.0);
  base += Tensor(1.0);
  EXPECT_EQ(z.tolist<float>(), (std::vector<float>{1, 1, 6, 1}));
  EXPECT_EQ(base.tolist<float>(), (std::vector<float>{1, 1, 6, 1}));
}

// x[a, b, c] against plain loops, as NumPy defines it: every mix of slices and tensors on each
// axis.
TEST(movement, spec_B7_every_mix_of_slices_and_tensors) {
  using Positions = std::vector<int64_t>;
  const Shape sizes{3, 4, 5};
  const Tensor x = Tensor::arange(60).reshape(sizes);
  struct Item {
    IndexItem item;
    bool tensor;
    Positions at;  // of a tensor: broadcast to (2, 2), row by row
  };
  const Tensor row = Tensor::from<int32_t>({2, 0}), column = Tensor::from<int64_t>({-1, 1}, {2, 1});
  auto items_of = [&](int64_t n) {
    Positions all, back;
    for (int64_t i = 0; i < n; ++i) all.push_back(i);
    for (int64_t i = n - 1; i >= 0; i -= 2) back.push_back(i);
    return std::vector<Item>{{Slice{}, false, all},
                             {Slice{1, 3}, false, {1, 2}},
                             {Slice{{}, {}, -2}, false, back},
                             {row, true, {2, 0, 2, 0}},
                             {column, true, {n - 1, n - 1, 1, 1}}};
  };
  const std::vector<Item> kinds[3] = {items_of(3), items_of(4), items_of(5)};
  for (size_t code = 0; code < 125; ++code) {
    const Item* items[3] = {&kinds[0][code / 25], &kinds[1][code / 5 % 5], &kinds[2][code % 5]};
    std::vector<size_t> tensors;
    Shape shape, points;
    bool rows = false, columns = false;
    for (size_t axis = 0; axis < 3; ++axis) {
      if (items[axis]->tensor)
        tensors.push_back(axis);
      else
        shape.push_back(static_cast<int64_t>(items[axis]->at.size()));
      rows = rows || items[axis] == &kinds[axis][3];
      columns = columns || items[axis] == &kinds[axis][4];
    }
    // The points stand where the first tensor stands if tensors are neighbours, else in front.
    const bool together = tensors.empty() || tensors.back() - tensors[0] + 1 == tensors.size();
    const size_t place = together && !tensors.empty() ? tensors[0] : 0;
    if (columns) points.push_back(2);
    if (rows || columns) points.push_back(rows ? 2 : 1);
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(place), points.begin(), points.end());
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Positions expected;
    for (int64_t i = 0; i < count; ++i) {
      Positions at(shape.size());  // of this element in the result
      for (size_t k = shape.size(), rest = static_cast<size_t>(i); k-- > 0;) {
        at[k] = static_cast<int64_t>(rest) % shape[k];
        rest /= static_cast<size_t>(shape[k]);
      }
      const int64_t p = columns ? at[place] : 0;
      const int64_t q = points.empty() ? 0 : at[place + points.size() - 1];
      int64_t flat = 0;
      for (size_t axis = 0, k = 0; axis < 3; ++axis) {
        auto which = static_cast<size_t>(2 * p + q);
        if (!items[axis]->tensor) {
          which = static_cast<size_t>(at[k < place ? k : k + points.size()]);
          ++k;
        }
        flat = flat * sizes[axis] + items[axis]->at[which];
      }
      expected.push_back(flat);
    }
    const Tensor got = x[{items[0]->item, items[1]->item, items[2]->item}];
    EXPECT_EQ(got.shape(), shape) << code;
    EXPECT_EQ(got.tolist<int64_t>(), expected) << code;
    Tensor copy = x.clone();
    copy.setitem({items[0]->item, items[1]->item, items[2]->item}, got);
    EXPECT_EQ(copy.tolist<int64_t>(), x.tolist<int64_t>()) << code;
  }
}

// x[index] = value against plain loops: every kind of index, duplicates, negative positions.
TEST(movement, spec_B20_spec_amend_28_setitem_by_any_index) {
  const Tensor x = Tensor::arange(24).reshape({4, 6});
  auto written = [&](const std::vector<IndexItem>& items, const Tensor& value) {
    Tensor copy = x.clone();
    copy.setitem(items, value);
    expect_same_everywhere(copy);
    return copy.tolist<int>();
  };
  auto expected = [&](const std::vector<std::pair<int, int>>& writes) {
    auto out = x.tolist<int>();
    for (const auto& [place, value] : writes) out[static_cast<size_t>(place)] = value;
    return out;
  };
  const Tensor rows = Tensor::from<int32_t>({2, -1, 2}),
               columns = Tensor::from<int64_t>({5, 0, -1});
  // Points: (2,5), (3,0), (2,5) again; the last value stays.
  EXPECT_EQ(written({rows, columns}, Tensor::from<int32_t>({70, 71, 72})),
            expected({{17, 72}, {18, 71}}));
  std::vector<std::pair<int, int>> all;
  for (int j = 0; j < 6; ++j) all.insert(all.end(), {{12 + j, 90 + j}, {18 + j, 90 + j}});
  EXPECT_EQ(written({rows}, Tensor::arange(90, 96)), expected(all)) << "whole rows, broadcast";
  EXPECT_EQ(written({Slice{1, 3}, columns}, Tensor(5)),
            expected({{6, 5}, {11, 5}, {12, 5}, {17, 5}}));
  EXPECT_EQ(written({IndexItem(1), Slice{0, 6, 4}}, Tensor::from<float>({8.9F, -7.2F})),
            expected({{6, 8}, {10, -7}}))
      << "an uneven step, a cast";
  EXPECT_EQ(written({Slice{{}, {}, -3}, IndexItem(0)}, Tensor::from<int32_t>({50, 51})),
            expected({{18, 50}, {0, 51}}));
  EXPECT_EQ(written({Tensor::zeros({0}, DType::Int32)}, Tensor(1)), expected({}));
  // A write through a view reaches its base; the value may read what it overwrites.
  Tensor base = x.clone();
  Tensor view = base.reshape({24});
  view.setitem({Tensor::arange(23, -1, -1)}, view);
  EXPECT_EQ(base.tolist<int>(), x.flip({0, 1}).tolist<int>());
  expect_error([&] { written({rows}, Tensor::arange(5)); }, {"expand", "(5,)", "(3, 6)"});
  expect_error([&] { written({Tensor::from<int32_t>({4})}, Tensor(1)); },
               {"4 is out of range", "0 to 3"});
}

// What stands around a value without elements is all there is, however that value is computed.
TEST(movement, nothing_is_read_of_what_has_no_elements) {
  const UOp nothing = leaf({5, 0}), sums = reduce(Op::Add, reduce(Op::Add, nothing, {0}), {0}),
            none = reshape(sums, shape_of({0, 3}));
  const UOp wide = pad(none, shape_of({1, 2}), shape_of({2, 6}));
  for (const UOp& value :
       {wide, UOp::make(Op::Contiguous, {wide}), add(wide, leaf({2, 6}, DType::Float32, 1)),
        pad(leaf({0, 3}), shape_of({1, 2}), shape_of({2, 6}))})
    for (const bool noopt : {false, true}) {
      Options o = options();
      o.noopt = noopt;
      const OptionScope scope(o);
      expect_same_everywhere(value);
    }
}

}  // namespace koine::test
