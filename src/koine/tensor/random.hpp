#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "koine/tensor/tensor.hpp"

// Random numbers under explicit keys (amendment C36): pure functions of a key and a shape. The
// numbers of the global seed are `Tensor::rand` and its like.
namespace koine::random {

/// What random numbers follow from: 64 bits. Equal keys give equal numbers on any device, any
/// number of devices and any number of threads, so a key is used for one draw and then split.
/// A draw does not depend on its device or on what was drawn before.
///
/// A key is a value like a tensor: lazy where it was computed from one, and passed through
/// `koine::function` as an argument or a result.
class Key {
 public:
  /// The key of a seed. It lies in memory, so that programs are the same for every seed.
  explicit Key(Whole auto seed) { hold(static_cast<uint64_t>(seed), {}); }
  /// The key whose bits are a uint64 of shape (), which may be lazy; of another shape, as many keys
  /// as it has elements (`random::split`). Throws Error (Type).
  explicit Key(const Tensor& bits);

  /// `n` keys that are independent of each other and of this one. The first k of them do not
  /// depend on n. Throws Error (Value) where n is negative.
  std::vector<Key> split(int64_t n) const;
  /// Two of them: `auto [now, later] = key.split();`
  std::pair<Key, Key> split() const;
  /// The key for a number, such as that of a step. Different numbers in -2^61..2^61 - 1 give
  /// different keys, none of them one of `split`. Throws Error (Value) beyond that.
  Key fold_in(Whole auto number) const {
    const auto signed_number = static_cast<int64_t>(number);
    return fold_number(signed_number, std::is_signed_v<decltype(number)> || signed_number >= 0);
  }
  /// The same for a whole number of shape () that is computed; of its bits the low 62 count.
  Key fold_in(const Tensor& number) const;
  /// This key on another device; on several it is whole on each.
  Key to(const std::string& device) const;
  /// Of several keys, those of a row along axis 0. Throws Error (Index, Value).
  Key operator[](int64_t i) const;
  /// uint64: shape () of one key.
  const Tensor& bits() const { return bits_; }

  template <class V>
  void tensors(V&& visit) {
    visit(bits_);
  }

 private:
  void hold(uint64_t bits, const std::string& device);
  Key fold_number(int64_t number, bool fits) const;
  std::optional<uint64_t> known() const;

  Tensor bits_;
  // What is derived from known bits is known too: steps that each split the key of the step before
  // make no graph that grows.
  uint64_t number_ = 0;
  UOp memory_;  // that holds `number_`; null where bits are computed
};

/// n keys as one value, along an axis 0 of its bits: `key.split(n)` for a function that `vmap` runs
/// under each of them. Throws Error (Value) where n is negative.
Key split(const Key& key, int64_t n);

// A draw lies where its key does (on several devices whole on each), or on `device`, which splits
// it along axis 0 where that names several. Elements are numbered in row-major order, and each
// follows from its number alone: rand(key, {m}) begins as rand(key, {n}) does. Two draws from one
// key are not independent of each other. All throw Error (Value) where a size is negative.

/// 64 random bits an element, as uint64.
Tensor bits(const Key& key, const Shape& shape, const std::string& device = "");
/// Uniform in [0, 1): float32, each multiple of 2^-24 equally likely.
Tensor rand(const Key& key, const Shape& shape, const std::string& device = "");
/// Normal, mean 0, variance 1: float32.
Tensor randn(const Key& key, const Shape& shape, const std::string& device = "");
/// int32 in [low, high). Throws Error (Value) where that is empty or leaves int32.
Tensor randint(const Key& key, const Shape& shape, int64_t low, int64_t high,
               const std::string& device = "");
/// float32 in [low, high), both rounded to float32; where they are equal, that number. Throws Error
/// (Value) where one is not finite or low > high.
Tensor uniform(const Key& key, const Shape& shape, double low, double high,
               const std::string& device = "");
/// Bool, true with probability p, which is rounded up to a multiple of 2^-24: rand(key, shape) < p.
/// Throws Error (Value) where p is none.
Tensor bernoulli(const Key& key, const Shape& shape, double p = 0.5,
                 const std::string& device = "");
/// The int32 numbers 0 to n - 1 in random order. Throws Error (Value) outside of 0..2^31 - 1.
Tensor permutation(const Key& key, int64_t n, const std::string& device = "");
/// Elements of x, each 0 with probability p and divided by 1 - p otherwise; where x lies. Throws
/// Error (Value) where p is no probability.
Tensor dropout(const Key& key, const Tensor& x, double p = 0.5);

/// While one lives, draws of the global stream in this thread are different in each example of a
/// vmap whose function is traced: `number` is that of the example, a uint64 of shape ().
class ExampleScope {
 public:
  explicit ExampleScope(const UOp& number);
  ~ExampleScope();
  ExampleScope(const ExampleScope&) = delete;
  ExampleScope& operator=(const ExampleScope&) = delete;
};

/// A draw of the global stream by a function that is captured: it follows from two words in memory,
/// the seed and how many numbers were drawn before.
struct Draw {
  UOp memory;
  int64_t count;

  /// Memory for such a draw of the stream as it is now, which moves on.
  UOp next() const;
};

/// While one lives, what this thread draws of the global stream is written down, and the stream
/// stays where it is. How many numbers a draw takes must be known.
class RecordedDraws {
 public:
  RecordedDraws();
  ~RecordedDraws();
  RecordedDraws(const RecordedDraws&) = delete;
  RecordedDraws& operator=(const RecordedDraws&) = delete;

  const std::vector<Draw>& draws() const { return draws_; }
  /// Memory for a draw of `count` numbers.
  UOp add(int64_t count, const Device& devices);

 private:
  std::vector<Draw> draws_;
  RecordedDraws* before_;
};

}  // namespace koine::random
