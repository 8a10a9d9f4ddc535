// Random numbers under explicit keys, and the global stream (amendment C36). The oracle is Threefry
// in plain C++, which has the published answers.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

#include "check.hpp"
#include "plain.hpp"
#include "threefry.hpp"

namespace koine::test {
namespace {

using enum DType;
using random::Key;

std::vector<uint64_t> some_seeds() {
  std::mt19937_64 random(test_seed());
  return {0, 1, ~uint64_t{0}, uint64_t{1} << 62, random(), random()};
}

}  // namespace

TEST(random, spec_C36_the_oracle_has_the_published_answers) {
  EXPECT_EQ(threefry(0, 0), 0x99ba4efe6b200159U);
  EXPECT_EQ(threefry(~uint64_t{0}, ~uint64_t{0}), 0xbb002be71cb996fcU);
  EXPECT_EQ(threefry(0x85a308d3243f6a88U, 0x0370734413198a2eU), 0x483df7a0c4923a9cU);
}

TEST(random, spec_C36_draws_are_threefry_of_their_key) {
  on_both(true, [] {
    for (const uint64_t seed : some_seeds())
      for (const Key& key : {Key(seed), computed_key(seed)}) {
        SCOPED_TRACE(seed);
        EXPECT_EQ(bits_of(key), seed);
        const auto words = random::bits(key, {3, 5}).tolist<uint64_t>();
        const auto floats = random::rand(key, {3, 5}).tolist<float>();
        const auto whole = random::randint(key, {3, 5}, -7, 12).tolist<int>();
        const auto chosen = random::bernoulli(key, {3, 5}, 0.3).tolist<int>();
        const auto some = random::uniform(key, {3, 5}, -2, 6).tolist<float>();
        const auto left = random::dropout(key, Tensor::full({3, 5}, 3.0), 0.25).tolist<float>();
        for (size_t i = 0; i < 15; ++i) {
          const uint64_t word = word_of(seed, i);
          EXPECT_EQ(words[i], word);
          EXPECT_EQ(floats[i], fraction_of(word));
          EXPECT_EQ(whole[i], static_cast<int>(word % 19) - 7);
          EXPECT_EQ(chosen[i], fraction_of(word) < 0.3);
          EXPECT_EQ(some[i], fraction_of(word) * 8 - 2) << "exact";
          EXPECT_EQ(left[i], fraction_of(word) < 0.25F ? 0 : 4.0F);
        }
        std::vector<int> order(15);
        for (int i = 0; i < 15; ++i) order[static_cast<size_t>(i)] = i;
        std::sort(order.begin(), order.end(), [&](int a, int b) {
          return words[static_cast<size_t>(a)] < words[static_cast<size_t>(b)];
        });
        EXPECT_EQ(random::permutation(key, 15).tolist<int>(), order);
      }
  });
}

// A fraction that is the probability itself is not below it.
TEST(random, spec_C36_a_fraction_of_exactly_one_half) {
  constexpr uint64_t seed = 1506083;
  ASSERT_EQ(fraction_of(word_of(seed, 7)), 0.5F);
  in_both_modes([] {
    EXPECT_EQ(random::dropout(Key(seed), Tensor::ones({8}), 0.5).tolist<float>()[7], 2);
    EXPECT_EQ(random::bernoulli(Key(seed), {8}, 0.5).tolist<int>()[7], 0);
  });
}

TEST(random, spec_C36_normal_numbers_are_box_and_mullers) {
  on_both(true, [] {
    std::vector<uint64_t> seeds = some_seeds();
    seeds.push_back(27365025);  // its first distance is the smallest, 2^-32
    ASSERT_EQ(word_of(seeds.back(), 0), 0x51674a5400000000U);
    for (const uint64_t seed : seeds) {
      const auto got = random::randn(Key(seed), {200}).tolist<double>();
      for (size_t i = 0; i < got.size(); ++i) {
        const uint64_t word = word_of(seed, i);
        // Of 32 bits float32 keeps 24.
        const float distance = (static_cast<float>(static_cast<uint32_t>(word)) + 1) * 0x1p-32F;
        const double radius = std::sqrt(-2 * std::log(double{distance})),
                     turn = 2 * M_PI * double{fraction_of(word >> 32)};
        EXPECT_NEAR(got[i], radius * std::cos(turn), 5e-6) << "seed " << seed << ", element " << i;
      }
    }
  });
}

TEST(random, spec_C36_derived_keys_are_the_same_wherever_they_are_computed) {
  on_both(true, [] {
    for (const uint64_t seed : some_seeds()) {
      const Key known(seed), computed = computed_key(seed);
      for (const Key& key : {known, computed}) {
        SCOPED_TRACE(seed);
        const auto children = key.split(3);
        ASSERT_EQ(children.size(), 3u);
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(bits_of(children[i]), child_of(seed, i));
        const auto [first, second] = key.split();
        EXPECT_EQ(bits_of(first), child_of(seed, 0)) << "of two as of three";
        EXPECT_EQ(bits_of(second), child_of(seed, 1));
        EXPECT_EQ(bits_of(second.split(2)[1].fold_in(5)),
                  folded(child_of(child_of(seed, 1), 1), 5));
        constexpr int64_t end = int64_t{1} << 61;
        for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{-1}, end - 1, -end}) {
          EXPECT_EQ(bits_of(key.fold_in(number)), folded(seed, number)) << number;
          EXPECT_EQ(bits_of(key.fold_in(Tensor(number))), folded(seed, number)) << number;
        }
        for (const DType dtype : {Int8, Int16, Int32, Int64})
          EXPECT_EQ(bits_of(key.fold_in(Tensor(-3).cast(dtype))), folded(seed, -3));
        for (const DType dtype : {UInt8, UInt16, UInt32, UInt64})
          EXPECT_EQ(bits_of(key.fold_in(Tensor(200).cast(dtype))), folded(seed, 200));
        EXPECT_EQ(bits_of(key.fold_in(uint8_t{200})), folded(seed, 200));
      }
      EXPECT_TRUE(known.split(0).empty());
      EXPECT_TRUE(computed.split(0).empty());
      EXPECT_EQ(bits_of(computed.split(1)[0]), child_of(seed, 0));
    }
  });
}

// Keys in one value are those of `split`, and each example of a vmap draws under its own.
TEST(random, spec_C36_a_function_is_mapped_over_keys) {
  on_both(true, [] {
    for (const Key& key : {Key(7), computed_key(7)}) {
      const Key keys = random::split(key, 3);
      EXPECT_EQ(keys.bits().shape(), (Shape{3}));
      const auto noisy = [](const Key& k, const Tensor& x) {
        const auto [now, later] = k.split();
        return random::dropout(now, x, 0.5) + random::rand(later.fold_in(4), {20});
      };
      const Tensor x = Tensor::arange(20).cast(Float32) + 1;
      const std::vector<float> all = vmap(noisy, {0, std::nullopt})(keys, x).tolist<float>();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(bits_of(keys[static_cast<int64_t>(i)]), child_of(7, i));
        const auto one = noisy(key.split(3)[i], x).tolist<float>();
        EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + static_cast<long>(20 * i)));
      }
    }
    EXPECT_EQ(random::split(Key(1), 0).bits().shape(), (Shape{0}));
  });
}

// A constant is no argument of a program, memory is.
TEST(random, spec_C36_a_key_of_a_constant_lies_in_memory) {
  const Key key(Tensor(uint64_t{77}));
  EXPECT_TRUE(key.bits().uop().is(Op::Buffer));
  EXPECT_EQ(bits_of(key), 77u);
  // Once somebody assigns to its bits, what is derived follows them.
  Key changed(5);
  Tensor inside = changed.bits();
  inside.assign(Tensor(uint64_t{6}));
  EXPECT_EQ(bits_of(changed), 6u);
  EXPECT_EQ(bits_of(changed.fold_in(1)), folded(6, 1));
  EXPECT_EQ(bits_of(changed.split(2)[1]), child_of(6, 1));
  EXPECT_EQ(bits_of(changed.to("INTERP")), 6u);
  EXPECT_EQ(random::bits(changed, {2}).tolist<uint64_t>()[1], word_of(6, 1));
}

TEST(random, spec_C36_two_million_derived_words_never_meet) {
  // All that follows from one key are values of one permutation; of different keys they may meet,
  // with a chance of 10^-7 among these.
  std::mt19937_64 random(test_seed());
  std::vector<uint64_t> all;
  const uint64_t root = random();
  constexpr uint64_t each = 250000;
  for (uint64_t i = 0; i < each; ++i) {
    all.push_back(threefry(i, root));  // the global stream under that seed
    all.push_back(word_of(root, i));
    all.push_back(child_of(root, i));
    all.push_back(folded(root, static_cast<int64_t>(i) - 1000));
  }
  for (uint64_t parent = 0; parent < 1000; ++parent)
    for (uint64_t i = 0; i < 500; ++i) {
      all.push_back(child_of(child_of(root, parent), i));
      all.push_back(folded(folded(root, static_cast<int64_t>(parent)), static_cast<int64_t>(i)));
    }
  const size_t count = all.size();
  // Each bit of a derived key is set in half of them.
  for (int bit = 0; bit < 64; ++bit) {
    int64_t set = 0;
    for (const uint64_t w : all) set += static_cast<int64_t>(w >> bit & 1);
    EXPECT_NEAR(static_cast<double>(set), static_cast<double>(count) / 2,
                6 * std::sqrt(static_cast<double>(count) / 4))
        << "bit " << bit;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "seed " << test_seed();
}

TEST(random, spec_C36_keys_of_the_library_never_meet) {
  std::unordered_set<uint64_t> seen;
  size_t count = 0;
  auto add = [&](const std::vector<uint64_t>& words) {
    seen.insert(words.begin(), words.end());
    count += words.size();
  };
  const Key root(test_seed());
  add(random::bits(root, {20000}).tolist<uint64_t>());
  for (const Key& key : root.split(20)) {
    add({bits_of(key)});
    add(random::bits(key, {20000}).tolist<uint64_t>());
    for (const Key& below : key.split(20)) add({bits_of(below)});
    for (int64_t i = 0; i < 20; ++i) add({bits_of(key.fold_in(i))});
  }
  for (int64_t i = 0; i < 200; ++i) add({bits_of(root.fold_in(i)), bits_of(root.fold_in(-1 - i))});
  Tensor::manual_seed(test_seed());
  const auto stream = Tensor::rand({1000}).tolist<float>();
  EXPECT_NE(random::rand(root, {1000}).tolist<float>(), stream) << "the global stream is another";
  EXPECT_EQ(seen.size(), count);
}

// --- distributions -------------------------------------------------------------------------------

namespace {

struct Moments {
  double mean = 0, variance = 0, third = 0, fourth = 0;
};
Moments moments_of(const std::vector<double>& x) {
  Moments m;
  const auto n = static_cast<double>(x.size());
  for (const double v : x) m.mean += v / n;
  for (const double v : x) {
    const double d = v - m.mean;
    m.variance += d * d / n, m.third += d * d * d / n, m.fourth += d * d * d * d / n;
  }
  return m;
}
// Six standard deviations of chi-square with bins - 1 degrees of freedom.
void expect_even(const std::vector<int64_t>& counts, int64_t total) {
  const auto bins = static_cast<double>(counts.size());
  const double expected = static_cast<double>(total) / bins;
  double chi = 0;
  for (const int64_t c : counts) {
    const double d = static_cast<double>(c) - expected;
    chi += d * d / expected;
  }
  EXPECT_NEAR(chi, bins - 1, 6 * std::sqrt(2 * (bins - 1))) << "seed " << test_seed();
}

}  // namespace

TEST(random, spec_C36_numbers_are_distributed_as_they_say) {
  constexpr int64_t n = 200000;
  const auto count = static_cast<double>(n);
  for (const Key& key : Key(test_seed()).split(3)) {
    const auto x = random::rand(key, {n}).tolist<double>();
    std::vector<int64_t> bins(256);
    for (const double v : x) {
      ASSERT_TRUE(v >= 0 && v < 1);
      ++bins[static_cast<size_t>(v * 256)];
    }
    expect_even(bins, n);
    EXPECT_NEAR(moments_of(x).mean, 0.5, 6 * std::sqrt(1 / 12.0 / count));
    EXPECT_NEAR(moments_of(x).variance, 1 / 12.0, 6 * std::sqrt(1 / 180.0 / count));

    const auto normal = random::randn(key, {n}).tolist<double>();
    const Moments m = moments_of(normal);
    EXPECT_NEAR(m.mean, 0, 6 / std::sqrt(count));
    EXPECT_NEAR(m.variance, 1, 6 * std::sqrt(2 / count));
    EXPECT_NEAR(m.third, 0, 6 * std::sqrt(15 / count));
    EXPECT_NEAR(m.fourth, 3, 6 * std::sqrt(96 / count));
    std::vector<int64_t> quantiles(64);
    for (const double v : normal)
      ++quantiles[static_cast<size_t>(std::min(63.0, 32 * std::erfc(-v / std::sqrt(2.0))))];
    expect_even(quantiles, n);

    std::vector<int64_t> faces(37);
    for (const int v : random::randint(key, {n}, -18, 19).tolist<int>())
      ++faces.at(static_cast<size_t>(v + 18));
    expect_even(faces, n);

    for (const double p : {0.0, 0.1, 0.5, 0.99, 1.0}) {
      double taken = 0;
      for (const int v : random::bernoulli(key, {n}, p).tolist<int>()) taken += v;
      EXPECT_NEAR(taken, count * p, 6 * std::sqrt(count * p * (1 - p))) << p;
    }
    // All orders of four things.
    std::map<std::vector<int>, int64_t> orders;
    for (const Key& k : key.split(2400)) ++orders[random::permutation(k, 4).tolist<int>()];
    std::vector<int64_t> seen;
    for (const auto& [order, times] : orders) seen.push_back(times);
    EXPECT_EQ(seen.size(), 24u);
    expect_even(seen, 2400);
  }
}

// Siblings, parent and child, neighbours by number: no pair goes together.
TEST(random, spec_C36_streams_of_related_keys_are_independent) {
  constexpr int64_t n = 50000;
  const Key root(test_seed());
  std::vector<Key> keys = root.split(3);
  keys.push_back(root);
  keys.push_back(root.fold_in(0));
  keys.push_back(root.fold_in(1));
  keys.push_back(keys[0].split(1)[0]);
  keys.emplace_back(test_seed() + 1);
  std::vector<std::vector<double>> draws;
  for (const Key& key : keys) draws.push_back((random::rand(key, {n}) - 0.5).tolist<double>());
  for (size_t a = 0; a < draws.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      for (const size_t lag : {0, 1}) {
        double product = 0;
        for (size_t i = lag; i < draws[a].size(); ++i) product += draws[a][i] * draws[b][i - lag];
        EXPECT_NEAR(product, 0, 6 * std::sqrt(static_cast<double>(n)) / 12) << a << " and " << b;
      }
}

TEST(random, spec_C36_a_draw_begins_as_a_longer_one_does) {
  const Key key(test_seed());
  const auto longer = random::randn(key, {100}).tolist<float>();
  auto shorter = random::randn(key, {7, 3}).tolist<float>();
  EXPECT_EQ(shorter, std::vector<float>(longer.begin(), longer.begin() + 21));
  EXPECT_EQ(random::randn(key, {}).item<float>(), longer[0]);
  for (const Shape& none : {Shape{0}, Shape{3, 0, 2}}) {
    EXPECT_EQ(random::rand(key, none).shape(), none);
    EXPECT_TRUE(random::rand(key, none).tolist<float>().empty());
    EXPECT_TRUE(random::dropout(key, Tensor::zeros(none)).tolist<float>().empty());
  }
  EXPECT_TRUE(random::permutation(key, 0).tolist<int>().empty());
  // Of a size that differs from run to run too.
  const Variable n("n", 1, 50);
  for (const int64_t k : {9, 50}) {
    const auto drawn = random::randn(key, {n.bind(k)}).tolist<float>();
    EXPECT_EQ(drawn, std::vector<float>(longer.begin(), longer.begin() + k));
  }
}

// The largest fraction, 1 - 2^-24, and the smallest: 1 + (1 - 2^-24) is 2 in float32.
TEST(random, spec_C36_uniform_never_reaches_its_end) {
  struct At {
    uint64_t seed;
    size_t element;
  };
  constexpr At end_under_key{2362773, 2}, start_under_key{571685, 1};
  constexpr At end_of_stream{228028, 5}, start_of_stream{1683351, 6};
  const auto word_in_stream = [](const At& p) { return threefry(p.element, p.seed); };
  ASSERT_EQ(fraction_of(word_of(end_under_key.seed, end_under_key.element)), 1 - 0x1p-24F);
  ASSERT_EQ(fraction_of(word_of(start_under_key.seed, start_under_key.element)), 0);
  ASSERT_EQ(fraction_of(word_in_stream(end_of_stream)), 1 - 0x1p-24F);
  ASSERT_EQ(fraction_of(word_in_stream(start_of_stream)), 0);
  struct Bounds {
    double low, high;
  };
  in_both_modes([&] {
    for (const auto& [low, high] : {Bounds{1, 2}, Bounds{-3, 5}, Bounds{0, 1}, Bounds{0.1, 0.7},
                                    Bounds{1, 1 + 0x1p-23}, Bounds{1000, 1000.5}, Bounds{-2, -1},
                                    Bounds{1e30, 3e30}, Bounds{0, 1e-45}, Bounds{-1e-40, 1e-40}}) {
      SCOPED_TRACE(testing::Message() << low << " to " << high);
      const auto first = static_cast<float>(low), end = static_cast<float>(high),
                 span = static_cast<float>(high - low);
      const auto expect = [&](const std::vector<float>& got, size_t element, uint64_t word) {
        EXPECT_GE(got[element], first);
        EXPECT_LT(got[element], end);
        if (!options().strict) return;
        const float rounded = fraction_of(word) * span + first;
        EXPECT_EQ(got[element], rounded < end ? rounded : std::nextafter(end, first));
      };
      for (const At& at : {end_under_key, start_under_key}) {
        const auto got = random::uniform(Key(at.seed), {8}, low, high).tolist<float>();
        for (size_t i = 0; i < 8; ++i) expect(got, i, word_of(at.seed, i));
      }
      for (const At& at : {end_of_stream, start_of_stream}) {
        Tensor::manual_seed(at.seed);
        const auto got = Tensor::uniform({8}, low, high).tolist<float>();
        for (size_t i = 0; i < 8; ++i) expect(got, i, threefry(i, at.seed));
      }
    }
    Tensor::manual_seed(end_of_stream.seed);
    EXPECT_EQ(Tensor::uniform({8}, 1, 2).tolist<float>()[end_of_stream.element], 2 - 0x1p-23F);
    // Between equal numbers, and numbers that are equal in float32, there is the one.
    for (const double high : {1.0, 1 + 1e-10})
      for (const float v : random::uniform(Key(7), {100}, 1, high).tolist<float>()) EXPECT_EQ(v, 1);
  });
}

// --- many elements -------------------------------------------------------------------------------

TEST(random, spec_C36_counters_beyond_32_bits) {
  const uint64_t seed = test_seed();
  on_both(true, [&] {
    for (const Key& key : {Key(seed), computed_key(seed)})
      for (const int64_t n : {int64_t{1} << 33, int64_t{1} << 45}) {
        const Tensor words = random::bits(key, {n}), floats = random::rand(key, {n / 8, 8});
        for (const int64_t first : {(int64_t{1} << 32) - 3, n / 2 - 3, n - 6}) {
          SCOPED_TRACE(testing::Message() << n << ", " << first);
          const auto some = words.shrink({{first, first + 6}}).contiguous().tolist<uint64_t>();
          for (size_t i = 0; i < 6; ++i)
            EXPECT_EQ(some[i], word_of(seed, static_cast<uint64_t>(first) + i));
          const int64_t row = first / 8;
          const auto line = floats[row].contiguous().tolist<float>();
          for (size_t i = 0; i < 8; ++i)
            EXPECT_EQ(line[i], fraction_of(word_of(seed, static_cast<uint64_t>(row) * 8 + i)));
        }
      }
  });
}

TEST(random, spec_C36_the_global_stream_counts_beyond_32_bits) {
  on_both(true, [] {
    Tensor::manual_seed(3);
    (void)Tensor::rand({(int64_t{1} << 32) - 2});
    const auto next = Tensor::rand({4}).tolist<float>();
    const auto whole = Tensor::randint({4}, 0, 1000).tolist<int>();
    for (uint64_t i = 0; i < 4; ++i) {
      const uint64_t number = (uint64_t{1} << 32) - 2 + i;
      EXPECT_EQ(next[i], fraction_of(threefry(number, 3)));
      EXPECT_EQ(whole[i], static_cast<int>(threefry(number + 4, 3) % 1000));
    }
  });
}

// --- the global stream ---------------------------------------------------------------------------

TEST(random, spec_C36_the_global_stream_counts_elements_under_its_seed) {
  on_both(true, [] {
    for (const uint64_t seed : some_seeds()) {
      Tensor::manual_seed(seed);
      uint64_t next = 0;
      for (const float v : Tensor::rand({3, 4}).tolist<float>())
        EXPECT_EQ(v, fraction_of(threefry(next++, seed)));
      for (const int v : Tensor::randint({5}, 10, 20).tolist<int>())
        EXPECT_EQ(v, 10 + static_cast<int>(threefry(next++, seed) % 10));
      const auto normal = Tensor::randn({6}).tolist<double>();
      for (size_t i = 0; i < 6; ++i) {
        const double radius =
            std::sqrt(-2 * std::log1p(-double{fraction_of(threefry(next + i, seed))}));
        const double turn = 2 * M_PI * double{fraction_of(threefry(next + 6 + i, seed))};
        EXPECT_NEAR(normal[i], radius * std::cos(turn), 2e-6);
      }
      next += 12;
      for (const float v : Tensor::uniform({5}, -4, 4).tolist<float>())
        EXPECT_EQ(v, fraction_of(threefry(next++, seed)) * 8 - 4);
      const auto kept = Tensor::ones({9}).dropout(0.5).tolist<float>();
      for (size_t i = 0; i < 9; ++i)
        EXPECT_EQ(kept[i], fraction_of(threefry(next + i, seed)) >= 0.5F ? 2 : 0);
      next += 9;
      std::vector<uint64_t> words;
      for (int i = 0; i < 8; ++i) words.push_back(threefry(next++, seed));
      const auto order = Tensor::randperm(8).tolist<size_t>();
      for (size_t i = 1; i < 8; ++i) EXPECT_LT(words[order[i - 1]], words[order[i]]);
    }
  });
}

// --- what is refused -----------------------------------------------------------------------------

TEST(random, spec_C36_refusals) {
  const Key key(1);
  expect_error([] { (void)Key(Tensor(1.5)); }, {"Key", "uint64", "float32", "Key(seed)"});
  expect_error([] { (void)Key(Tensor::zeros({}, Int64)); }, {"Key", "uint64", "int64"});
  const Key keys = random::split(key, 2);
  const std::string mend = "needs one key, got keys of shape (2,): take one, keys[i], or";
  expect_error([&] { (void)random::rand(keys, {3}); }, {"rand: " + mend});
  expect_error([&] { (void)random::permutation(keys, 3); }, {"permutation: " + mend});
  expect_error([&] { (void)random::dropout(keys, Tensor::ones({3})); }, {"dropout: " + mend});
  expect_error([&] { (void)keys.split(); }, {"split: " + mend});
  expect_error([&] { (void)random::split(keys, 2); }, {"split: " + mend});
  expect_error([&] { (void)keys.fold_in(1); }, {"fold_in: " + mend});
  expect_error([&] { (void)keys[2]; }, {"position 2 is out of range", "(2,)"});
  expect_error([&] { (void)key[0]; }, {"Key: this is one key", "split gives several"});
  expect_error([&] { (void)random::split(key, -1); }, {"split", "-1"});
  expect_error([&] { (void)key.split(-1); }, {"split", "-1"});
  expect_error([&] { (void)key.split(int64_t{1} << 31); }, {"split", "2147483648"});
  expect_error([&] { (void)key.fold_in(int64_t{1} << 61); }, {"fold_in", "2305843009213693952"});
  expect_error([&] { (void)key.fold_in(-(int64_t{1} << 61) - 1); },
               {"fold_in", "-2305843009213693953"});
  expect_error([&] { (void)key.fold_in(~uint64_t{0}); }, {"fold_in", "18446744073709551615"});
  expect_error([&] { (void)key.fold_in(Tensor(0.5)); }, {"fold_in", "whole number", "float32"});
  expect_error([&] { (void)key.fold_in(Tensor(true)); }, {"fold_in", "whole number", "bool"});
  expect_error([&] { (void)key.fold_in(Tensor::zeros({1}, Int32)); }, {"fold_in", "(1,)"});
  expect_error([&] { (void)key.to("TPU"); }, {"TPU"});
  expect_error([&] { (void)random::rand(key, {2}, "TPU"); }, {"TPU"});
  expect_error([&] { (void)random::rand(key, {3}, "CPU,CPU:1"); }, {"3", "2"});
  for (const Shape& shape : {Shape{2, -1}, Shape{int64_t{1} << 40, int64_t{1} << 40}}) {
    const std::string why = "has a negative size or is too large";
    expect_error([&] { (void)random::bits(key, shape); }, {"bits: shape", why});
    expect_error([&] { (void)random::rand(key, shape); }, {"rand: shape", why});
    expect_error([&] { (void)random::randn(key, shape); }, {"randn: shape", why});
    expect_error([&] { (void)random::randint(key, shape, 0, 2); }, {"randint: shape", why});
    expect_error([&] { (void)random::uniform(key, shape, 0, 2); }, {"uniform: shape", why});
    expect_error([&] { (void)random::bernoulli(key, shape, 0.5); }, {"bernoulli: shape", why});
  }
  expect_error([&] { (void)random::rand(key, {(int64_t{1} << 62) + 1}); }, {"rand", "2^62"});
  EXPECT_EQ(random::rand(key, {(int64_t{1} << 62) - 1}).ndim(), 1);
  for (const double p : {-0.1, 1.5, std::nan("")}) {
    expect_error([&] { (void)random::bernoulli(key, {2}, p); }, {"bernoulli", "probability"});
    expect_error([&] { (void)random::dropout(key, Tensor::ones({2}), p); },
                 {"dropout", "probability"});
    expect_error([&] { (void)Tensor::ones({2}).dropout(p, false); }, {"dropout", "probability"});
  }
  for (const auto& [low, high] : {std::pair<int64_t, int64_t>{3, 3},
                                  {4, 3},
                                  {INT32_MIN - int64_t{1}, 0},
                                  {0, INT32_MAX + int64_t{2}}}) {
    expect_error([&] { (void)Tensor::randint({2}, low, high); },
                 {"randint", std::to_string(low), std::to_string(high)});
    expect_error([&] { (void)random::randint(key, {2}, low, high); },
                 {"randint", std::to_string(low), std::to_string(high)});
  }
  EXPECT_EQ(random::randint(key, {2}, INT32_MAX, int64_t{INT32_MAX} + 1).tolist<int>(),
            (std::vector<int>{INT32_MAX, INT32_MAX}));
  for (const auto& [low, high] :
       {std::pair<double, double>{2, 1}, {0, INFINITY}, {std::nan(""), 1}})
    expect_error([&] { (void)random::uniform(key, {2}, low, high); }, {"uniform", "finite"});
  for (const auto& [low, high] : {std::pair<double, double>{0, 1e300}, {-3e38, 3e38}}) {
    expect_error([&] { (void)random::uniform(key, {2}, low, high); }, {"uniform", "float32"});
    expect_error([&] { (void)Tensor::uniform({2}, low, high); }, {"uniform", "float32"});
  }
  expect_error([&] { (void)random::permutation(key, -1); }, {"permutation", "-1"});
  expect_error([&] { (void)random::permutation(key, int64_t{1} << 31); }, {"permutation", "2^31"});
  const Tensor wild = Tensor::from<float>({NAN, INFINITY, 2});
  EXPECT_EQ(random::dropout(key, wild, 1).tolist<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(random::dropout(key, wild, 0)[2].item<float>(), 2);
  Tensor x = Tensor::from<float>({1, 2}).requires_grad();
  for (const Tensor& none : {random::dropout(key, x, 1), x.dropout(1)})
    EXPECT_EQ(none.sum().gradient({x})[0].tolist<float>(), (std::vector<float>{0, 0}));
}

}  // namespace koine::test
