// Random numbers in programs: on several devices and threads, compiled once, inside of functions
// (amendment C36).
#include <unordered_set>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/nn/nn.hpp"
#include "remote_device.hpp"
#include "threefry.hpp"

namespace koine::test {
namespace {

using enum DType;
using random::Key;

int64_t compiled_in(const std::function<void()>& action) {
  clear_compile_cache();
  const int64_t before = counters().compiled;
  action();
  return counters().compiled - before;
}

}  // namespace

TEST(random, spec_C36_the_same_on_any_device_and_in_any_mode) {
  for (const Key& key : {Key(test_seed()), computed_key(test_seed())}) {
    const auto [a, b] = key.split();
    const Tensor x(leaf({5, 7}));
    expect_same_everywhere(random::bits(a, {6, 7}));
    expect_same_everywhere(random::rand(a, {3, 70}));
    expect_same_everywhere(random::randn(b, {40}));
    expect_same_everywhere(random::randint(b.fold_in(9), {40}, -5, 1000));
    expect_same_everywhere(random::uniform(a, {40}, 1, 2));
    expect_same_everywhere(random::bernoulli(a, {41}, 0.37));
    expect_same_everywhere(random::permutation(b, 30));
    expect_same_everywhere(random::dropout(b.fold_in(Tensor(leaf({}, Int32))), x, 0.4));
    expect_same_everywhere(random::dropout(a, Tensor(leaf({4, 4}, Float64)), 0.4));
    expect_same_everywhere(random::dropout(a, Tensor::from<float>({NAN, INFINITY, -0.0F, 1}), 0.5));
  }
}

namespace {
std::string device_names(int64_t n) {
  register_remote_device();
  std::string out = "CPU";
  for (int64_t i = 1; i < n; ++i) out += ",CPU:" + std::to_string(i);
  return n == 3 ? "CPU,CPU:1,INTERP" : n == 4 ? "CPU,REMOTE,CPU:2,REMOTE:1" : out;
}
}  // namespace

TEST(random, spec_C36_the_same_on_any_number_of_devices) {
  const Tensor x = small({24, 8});
  in_both_modes([&] {
    for (const Key& key : {Key(test_seed()), computed_key(test_seed())}) {
      const auto words = random::bits(key, {24, 2}).tolist<uint64_t>();
      const auto floats = random::rand(key, {24, 2}).tolist<float>();
      const auto kept = random::dropout(key, x, 0.3).tolist<float>();
      for (const int64_t n : {2, 3, 4, 8}) {
        const std::string where = device_names(n);
        SCOPED_TRACE(where);
        const Tensor many = random::bits(key, {24, 2}, where);
        EXPECT_EQ(many.device(), where);
        EXPECT_EQ(many.shard_axis(), 0);
        EXPECT_EQ(many.tolist<uint64_t>(), words);
        EXPECT_EQ(random::rand(key, {24, 2}, where).tolist<float>(), floats);
        // The key itself on several: the draw is whole on each.
        const Key each = key.to(where);
        const Tensor whole = random::bits(each, {24, 2});
        EXPECT_EQ(whole.device(), where);
        EXPECT_EQ(whole.shard_axis(), std::nullopt);
        EXPECT_EQ(whole.tolist<uint64_t>(), words);
        EXPECT_EQ(bits_of(each.split(2)[1]), child_of(test_seed(), 1));
        EXPECT_EQ(bits_of(each.fold_in(3)), folded(test_seed(), 3));
        // A mask lies where its tensor does.
        for (const auto axis : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
          const Tensor y = random::dropout(key, x.shard(where, axis), 0.3);
          EXPECT_EQ(y.device(), where);
          EXPECT_EQ(y.shard_axis(), axis);
          EXPECT_EQ(y.tolist<float>(), kept);
        }
        if (8 % n == 0) {
          EXPECT_EQ(random::dropout(key, x.shard(where, 1), 0.3).tolist<float>(), kept);
        }
      }
      for (const char* where : {"CPU:1", "INTERP", "REMOTE"}) {
        EXPECT_EQ(random::bits(key, {24, 2}, where).device(), Device(where).name());
        EXPECT_EQ(random::bits(key, {24, 2}, where).tolist<uint64_t>(), words);
        EXPECT_EQ(random::dropout(key, x.to(where), 0.3).tolist<float>(), kept);
        EXPECT_EQ(random::bits(key.to(where), {24, 2}).device(), Device(where).name());
        EXPECT_EQ(key.fold_in(Tensor(4).clone().realize().to(where)).bits().item<uint64_t>(),
                  folded(test_seed(), 4));
      }
    }
  });
}

TEST(random, spec_C36_the_same_on_any_number_of_threads) {
  const Key key = Key(test_seed()).fold_in(1);
  const Shape large{300, 1001};
  for (const bool strict : {true, false})
    for (const Tensor& draw : {random::bits(key, large), random::randn(key, large),
                               random::dropout(key, Tensor::full(large, 1.5), 0.1)}) {
      Settings settings;
      settings.strict = strict;
      const Array one = run_with(draw.uop(), settings);
      for (const int threads : {2, 3, 8}) {
        settings.threads = threads;
        EXPECT_EQ(difference(one, run_with(draw.uop(), settings)), "") << threads;
      }
    }
  const auto words = random::bits(key, large).tolist<uint64_t>();
  const uint64_t bits = folded(test_seed(), 1);
  for (uint64_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], word_of(bits, i)) << i;
}

// --- programs ------------------------------------------------------------------------------------

TEST(random, spec_C36_other_keys_compile_nothing) {
  EXPECT_EQ(compiled_in([] {
              for (uint64_t seed = 0; seed < 10; ++seed) {
                const Key key(seed);
                for (const Key& k : {key, key.split(3)[2], key.fold_in(seed), key.split().first})
                  (void)random::randn(k, {100}).tolist<float>();
              }
            }),
            1);
  // Keys that are computed: of numbers that change the program is compiled twice.
  const Key computed = computed_key(8);
  EXPECT_EQ(compiled_in([&] {
              for (int64_t step = 0; step < 10; ++step)
                (void)random::randn(computed.fold_in(step), {100}).tolist<float>();
            }),
            1)
      << "the number of a step is memory";
  EXPECT_LE(compiled_in([&] {
              for (const Key& k : computed.split(10)) (void)random::randn(k, {100}).tolist<float>();
            }),
            2)
      << "the place among siblings is an argument";
  EXPECT_LE(compiled_in([&] {
              for (int64_t i = 0; i < 10; ++i)
                (void)random::dropout(Key(i), Tensor::ones({50}), 0.05 * static_cast<double>(i + 1))
                    .tolist<float>();
            }),
            2)
      << "the probability is an argument";
}

// A step splits the key of the step before: no graph grows.
TEST(random, spec_C36_a_chain_of_keys_costs_one_program) {
  Key key(test_seed());
  uint64_t expected = test_seed();
  EXPECT_EQ(compiled_in([&] {
              for (int step = 0; step < 300; ++step) {
                const auto [now, later] = key.split();
                EXPECT_EQ(random::bits(now, {1}).item<uint64_t>(),
                          word_of(child_of(expected, 0), 0));
                key = later;
                expected = child_of(expected, 1);
              }
            }),
            1);
  EXPECT_EQ(bits_of(key), expected);
  EXPECT_TRUE(key.bits().uop().is(Op::Buffer));
}

TEST(random, spec_C36_a_draw_is_one_kernel) {
  const auto [a, b] = computed_key(3).split();
  EXPECT_EQ(kernel_count({random::randn(a, {100})}), 1) << "its key is computed inside";
  EXPECT_EQ(kernel_count({random::dropout(b, Tensor(leaf({30})) * 2, 0.5).relu()}), 1);
}

// --- inside of functions -------------------------------------------------------------------------

namespace {

constexpr Resolve ways[] = {Resolve::Substitute, Resolve::Precompile};

// Which elements of what had no zeros were kept.
std::vector<bool> kept_in(const Tensor& dropped) {
  std::vector<bool> out;
  for (const float v : dropped.tolist<float>()) out.push_back(v != 0);
  return out;
}

}  // namespace

TEST(random, spec_C36_dropout_in_a_function_and_its_gradient_see_one_mask) {
  const Tensor values = small({20, 30}).abs() + 1;
  in_both_modes([&] {
    for (const Resolve how : ways)
      for (const bool with_key : {false, true}) {
        const auto layer = koine::function(
            [&](const Tensor& x, const Key& key) {
              return (with_key ? random::dropout(key, x, 0.4) : x.dropout(0.4)) * 2;
            },
            how);
        Tensor x = values.clone().realize();
        x.requires_grad();
        const Key key(test_seed());
        const Tensor y = layer(x, key);
        EXPECT_TRUE(y.uop().src(0).is(Op::Function));
        const Tensor g = y.sum().gradient({x})[0];
        const auto forward = y.tolist<float>(), backward = g.tolist<float>();
        const auto before = x.tolist<float>();
        int64_t dropped = 0;
        for (size_t i = 0; i < forward.size(); ++i) {
          EXPECT_EQ(forward[i] == 0, backward[i] == 0) << i;
          if (forward[i] != 0) {
            EXPECT_NEAR(forward[i] / backward[i], before[i], 1e-5);
          }
          dropped += forward[i] == 0;
          if (with_key) {
            EXPECT_EQ(forward[i] == 0, fraction_of(word_of(test_seed(), i)) < 0.4F);
          }
        }
        EXPECT_NEAR(static_cast<double>(dropped), 240, 6 * std::sqrt(600 * 0.24));
        // Asked for once more it is the same, also by backward().
        y.square().sum().backward();
        const auto twice = x.grad().tolist<float>();
        for (size_t i = 0; i < twice.size(); ++i) EXPECT_EQ(twice[i] == 0, forward[i] == 0);
      }
  });
}

TEST(random, spec_C36_draws_in_a_function_differ_and_so_do_its_calls) {
  for (const Resolve how : ways) {
    const auto two = koine::function(
        [](const Tensor& x) {
          const Tensor dropped = x.dropout(0.5);
          return std::make_pair(dropped, Tensor::rand({50}) + x * 0);
        },
        how);
    const auto both = koine::function(
        [](const Tensor& x) {
          const Tensor first = x.dropout(0.5);
          return std::make_pair(first, x.dropout(0.5));
        },
        how);
    const Tensor ones = Tensor::ones({50}).clone().realize();
    Tensor::manual_seed(test_seed());
    const auto [a, b] = both(ones);
    EXPECT_NE(kept_in(a), kept_in(b)) << "two draws";
    const auto [c, d] = both(ones);
    EXPECT_NE(kept_in(a), kept_in(c)) << "two calls";
    EXPECT_EQ(a.uop().src(0).src(0), c.uop().src(0).src(0)) << "of one body";
    // The stream goes on as it does outside.
    Tensor::manual_seed(test_seed());
    for (const Tensor& inside : {a, b, c, d})
      EXPECT_EQ(kept_in(ones.dropout(0.5)), kept_in(inside));
    Tensor::manual_seed(test_seed());
    const auto drawn = two(ones).second.tolist<float>();
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(drawn[i], fraction_of(threefry(50 + i, test_seed())));
  }
}

TEST(random, spec_C36_a_key_is_an_argument_and_a_result_of_functions) {
  for (const Resolve how : ways) {
    const auto step = koine::function(
        [](const Tensor& x, const Key& key) {
          auto [now, later] = key.split();
          return std::make_pair(x + random::rand(now, {4}), later);
        },
        how);
    const Tensor zero = Tensor::zeros({4}).clone().realize();
    for (const Key& start : {Key(9), computed_key(9)}) {
      Key key = start;
      uint64_t bits = 9;
      for (int k = 0; k < 3; ++k) {
        const auto [y, later] = step(zero, key);
        const auto got = y.tolist<float>();
        for (uint64_t i = 0; i < 4; ++i)
          EXPECT_EQ(got[i], fraction_of(word_of(child_of(bits, 0), i)));
        const auto again = step(zero, key).first.tolist<float>();
        EXPECT_EQ(again, got) << "of one key";
        bits = child_of(bits, 1);
        EXPECT_EQ(bits_of(later), bits);
        key = later;
        key.bits().realize();
      }
    }
    // Keys in structures, keys made and captured inside, numbers folded in.
    const Key outside(31);
    const auto nested = koine::function(
        [&](const std::vector<Key>& keys, const Tensor& number) {
          const Key inside(32);
          return std::vector<Tensor>{random::bits(keys[1].fold_in(number), {2}),
                                     random::bits(outside.split(2)[1], {2}),
                                     random::bits(inside.fold_in(7), {2}),
                                     random::bits(keys[0].fold_in(4), {2}, "CPU:1").to("CPU")};
        },
        how);
    const auto out = nested(std::vector<Key>{Key(1), Key(2)}, Tensor(5).clone());
    for (uint64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(out[0].tolist<uint64_t>()[i], word_of(folded(2, 5), i));
      EXPECT_EQ(out[1].tolist<uint64_t>()[i], word_of(child_of(31, 1), i));
      EXPECT_EQ(out[2].tolist<uint64_t>()[i], word_of(folded(32, 7), i));
      EXPECT_EQ(out[3].tolist<uint64_t>()[i], word_of(folded(1, 4), i));
    }
  }
}

TEST(random, spec_C36_functions_of_keys_are_one_body_compiled_once) {
  const auto layer =
      koine::function([](const Tensor& x, const Tensor& w,
                         const Key& key) { return random::dropout(key, x.matmul(w).relu(), 0.25); },
                      Resolve::Precompile);
  const Tensor w = (Tensor(leaf({16, 16})) * 0.2).clone().realize(), x = Tensor(leaf({8, 16}));
  auto layers = [&](int64_t n) {
    return compiled_in([&] {
      Tensor y = x;
      std::unordered_set<UOp> bodies;
      for (const Key& key : Key(4).split(n)) {
        y = layer(y, w, key);
        bodies.insert(y.uop().src(0).src(0));
      }
      EXPECT_EQ(bodies.size(), 1u);
      EXPECT_EQ(y.tolist<float>().size(), 128u);
    });
  };
  EXPECT_EQ(layers(12), layers(1));
}

// Functions in functions: the state is captured by the inner one, and by the outer one with it.
TEST(random, spec_C36_draws_in_nested_functions) {
  for (const Resolve how : ways) {
    const auto inner = koine::function([](const Tensor& x) { return x + Tensor::rand({3}); }, how);
    const auto outer =
        koine::function([&](const Tensor& x) { return inner(inner(x)) + Tensor::rand({3}); }, how);
    Tensor::manual_seed(77);
    const auto got = outer(Tensor::zeros({3}).clone()).tolist<float>();
    for (uint64_t i = 0; i < 3; ++i)
      EXPECT_EQ(got[i], fraction_of(threefry(i, 77)) + fraction_of(threefry(3 + i, 77)) +
                            fraction_of(threefry(6 + i, 77)));
  }
  // Other memory still may not be made there, also after a draw.
  const auto wrong = koine::function(
      [](const Tensor& x) { return x + Tensor::rand({2}) + Tensor::from<float>({1, 2}); });
  expect_error([&] { (void)wrong(Tensor::zeros({2}).clone()); },
               {"allocating", "random_programs_test.cpp:"});
}

TEST(random, spec_C36_layers_take_keys) {
  const Tensor x = Tensor::ones({40}).clone().realize();
  const nn::Dropout drop(0.3);
  EXPECT_EQ(drop(Key(3), x, true).tolist<float>(), random::dropout(Key(3), x, 0.3).tolist<float>());
  EXPECT_EQ(drop(Key(3), x, false).tolist<float>(), x.tolist<float>());
}

}  // namespace koine::test
