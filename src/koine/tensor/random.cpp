#include "koine/tensor/random.hpp"

#include <bit>
#include <cmath>
#include <mutex>
#include <numbers>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// Threefry of a counter under a key. For one key it is a permutation of the 64-bit words, so
// different counters never give the same word. The two highest bits of a counter say what it
// counts: what follows from one key in different ways, and the words of the global stream under a
// seed that is the same number, are all different words. Words that follow from different keys may
// meet, as random ones of 64 bits do.
enum class Use : uint64_t { GlobalStream = 0, Draw = 1, Split = 2, FoldIn = 3 };
constexpr int number_bits = 62;
constexpr uint64_t number_mask = (uint64_t{1} << number_bits) - 1;

constexpr uint64_t counter_of(Use use, uint64_t number) {
  return static_cast<uint64_t>(use) << number_bits | (number & number_mask);
}
UOp constant_word(uint64_t word) { return constant_int(DType::UInt64, static_cast<int64_t>(word)); }

// What Op::Threefry computes, of numbers that are known here.
uint64_t threefry(uint64_t counter, uint64_t key) {
  const auto low = [](uint64_t v) { return static_cast<uint32_t>(v); };
  const auto high = [](uint64_t v) { return static_cast<uint32_t>(v >> 32); };
  const uint32_t keys[3] = {low(key), high(key), low(key) ^ high(key) ^ 0x1BD11BDA};
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t x = low(counter) + keys[0], y = high(counter) + keys[1];
  for (uint32_t group = 0; group < 5; ++group) {
    for (const int r : rotations[group % 2]) {
      x += y;
      y = std::rotl(y, r) ^ x;
    }
    x += keys[(group + 1) % 3];
    y += keys[(group + 2) % 3] + group + 1;
  }
  return uint64_t{y} << 32 | x;
}

// Numbers in memory, whole on each device, so that the compiled code is the same for all of them.
template <size_t count>
UOp in_memory(const uint64_t (&words)[count], const UOp& shape, const Device& devices) {
  const OutsideOfTraces captured;
  return buffer_from_host(shape, DType::UInt64, devices.name(), words, AxisSet());
}

Placement named_place(const std::string& device) {
  return {tensor::known_device(device.empty() ? default_device() : device), 0};
}
Placement place_of(const Tensor& x) { return x.uop().node()->placement; }

// The number of each element. On several devices each counts those that it holds.
UOp element_numbers(const Size& count, const Shape& shape, const Placement& place) {
  const UOp numbers = reshape(iota(count.uop(), DType::UInt64), shape_of(shape));
  const bool split = place.device && place.device.count() > 1 && !place.axes.empty();
  return split ? copy_to(numbers, place) : numbers;
}

// The global seed, and how many numbers were drawn.
struct GlobalStream {
  std::mutex mutex;
  uint64_t seed = 0, drawn = 0;
};
GlobalStream& global_stream() {
  static auto& stream = *new GlobalStream;
  return stream;
}

// The examples that are traced in this thread, outermost first.
std::vector<UOp>& traced_examples() {
  static thread_local std::vector<UOp> numbers;
  return numbers;
}

// Where this thread writes down what it draws; null: nowhere.
random::RecordedDraws*& recorded_draws() {
  static thread_local random::RecordedDraws* recorded = nullptr;
  return recorded;
}

// The seed and how many numbers were drawn, as memory; `count` more are drawn now.
UOp stream_in_memory(int64_t count, const Device& devices) {
  uint64_t state[2];
  {
    GlobalStream& stream = global_stream();
    const std::lock_guard lock(stream.mutex);
    state[0] = stream.seed;
    state[1] = stream.drawn;
    stream.drawn += static_cast<uint64_t>(count);
  }
  return in_memory(state, shape_of({2}), devices);
}

// The next words of the global stream; of an example under a key that follows from the seed and
// its number.
Tensor next_words(std::string_view method, const Shape& shape, const Placement& place) {
  const Size count = tensor::count_for(method, shape);
  random::RecordedDraws* const recorded = recorded_draws();
  KOINE_REQUIRE(recorded == nullptr || count.is_number(), Value,
                "{}: a function that is captured draws numbers of shape {}: of a size that differs "
                "from call to call they would have to be drawn before, or under a key",
                method, tensor::text_of(shape));
  const Tensor memory(recorded != nullptr ? recorded->add(int64_t{count}, place.device)
                                          : stream_in_memory(count.present(), place.device));
  const Tensor seed = memory.shrink({{0, 1}}).reshape({}),
               first = memory.shrink({{1, 2}}).reshape({});
  const UOp counters = add(element_numbers(count, shape, place), first.uop());
  UOp key = seed.uop();
  for (const UOp& number : traced_examples())
    key = binary(Op::Threefry, bit_or(number, constant_word(counter_of(Use::FoldIn, 0))), key);
  return Tensor(binary(Op::Threefry, counters, key));
}

// The words of a draw under a key.
void require_one(std::string_view method, const random::Key& key) {
  KOINE_REQUIRE(
      key.bits().ndim() == 0, Value,
      "{}: needs one key, got keys of shape {}: take one, keys[i], or run the function under "
      "each of them with vmap",
      method, tensor::text_of(key.bits().shape()));
}

Tensor words_at(std::string_view method, const random::Key& key, const Shape& shape,
                const Placement& place) {
  require_one(method, key);
  const Size count = tensor::count_for(method, shape);
  KOINE_REQUIRE(static_cast<uint64_t>(count.largest()) <= number_mask, Value,
                "{}: shape {} has more than 2^62 elements", method, tensor::text_of(shape));
  const random::Key there = place.device ? key.to(place.device.name()) : key;
  const UOp counters =
      add(element_numbers(count, shape, place), constant_word(counter_of(Use::Draw, 0)));
  return Tensor(binary(Op::Threefry, counters, there.bits().uop()));
}
Tensor words_of(std::string_view method, const random::Key& key, const Shape& shape,
                const std::string& device) {
  return words_at(method, key, shape, device.empty() ? place_of(key.bits()) : named_place(device));
}

// --- what numbers are made of words --------------------------------------------------------------

// Of 32 bits the 24 high ones: every float32 multiple of 2^-24 in [0, 1) is equally likely.
Tensor fractions_of(const Tensor& words32) {
  const Tensor high = words32.rshift(Tensor(constant_int(DType::UInt32, 8)));
  return high.cast(DType::Float32) * Tensor(0x1p-24);
}
Tensor fractions(const Tensor& words) { return fractions_of(words.cast(DType::UInt32)); }

// Box and Muller's transform of a number in (0, 1] and one in [0, 1).
Tensor normals(const Tensor& distance, const Tensor& turn) {
  const Tensor radius = (distance.log() * Tensor(-2.0)).sqrt();
  return radius * (turn * Tensor(2 * std::numbers::pi)).cos();
}
// Both from one word: a distance of 32 bits reaches 6.6 deviations.
Tensor normals_of(const Tensor& words) {
  const Tensor low = words.cast(DType::UInt32),
               high = words.rshift(Tensor(constant_word(32))).cast(DType::UInt32);
  return normals((low.cast(DType::Float32) + Tensor(1.0)) * Tensor(0x1p-32), fractions_of(high));
}

void require_range(int64_t low, int64_t high) {
  KOINE_REQUIRE(low < high && low >= INT32_MIN && high - 1 <= INT32_MAX, Value,
                "randint: the range [{}, {}) is empty or leaves int32", low, high);
}
// 64 random bits modulo the range: the bias is below 2^-32.
Tensor integers(const Tensor& words, int64_t low, int64_t high) {
  const Tensor offset =
      words.mod(Tensor(constant_int(DType::UInt64, high - low))).cast(DType::Int64);
  return (offset + Tensor(low)).cast(DType::Int32);
}

void require_bounds(double low, double high) {
  KOINE_REQUIRE(low <= high && std::isfinite(low) && std::isfinite(high), Value,
                "uniform: from {} to {}: both must be finite, and the first not above the second",
                low, high);
  const auto narrow = [](double v) { return std::isfinite(static_cast<float>(v)); };
  KOINE_REQUIRE(narrow(low) && narrow(high) && narrow(high - low), Value,
                "uniform: from {} to {}: float32 does not hold both and their difference", low,
                high);
}
// Products and sums are rounded, so that they may reach `high`: there the number below it stands.
Tensor between(const Tensor& fraction, double low, double high) {
  const auto first = static_cast<float>(low), end = static_cast<float>(high);
  const float last = first < end ? std::nextafter(end, first) : first;
  return (fraction * Tensor(high - low) + Tensor(low)).minimum(Tensor(double{last}));
}

void require_probability(std::string_view method, double p) {
  KOINE_REQUIRE(p >= 0 && p <= 1, Value, "{}: p = {} is not a probability", method, p);
}
template <class Fractions>
Tensor dropped(const Tensor& x, double p, Fractions&& fractions_where_x_lies) {
  require_probability("dropout", p);
  if (p == 0) return x;
  if (p == 1) return tensor::like(x, 0);  // 1 / (1 - p) would make its gradient NaN
  const Tensor keep = fractions_where_x_lies() >= Tensor(p);
  return Tensor::where(keep, x * Tensor(1 / (1 - p)), tensor::like(x, 0));
}

void require_length(std::string_view method, int64_t n) {
  KOINE_REQUIRE(n >= 0 && n <= INT32_MAX, Value, "{}: {} is not in 0..2^31 - 1", method, n);
}

}  // namespace

// --- keys ----------------------------------------------------------------------------------------

namespace random {

RecordedDraws::RecordedDraws() : before_(std::exchange(recorded_draws(), this)) {}
RecordedDraws::~RecordedDraws() { recorded_draws() = before_; }

UOp RecordedDraws::add(int64_t count, const Device& devices) {
  constexpr uint64_t nothing[2] = {};
  draws_.push_back({in_memory(nothing, shape_of({2}), devices), count});
  return draws_.back().memory;
}
UOp Draw::next() const { return stream_in_memory(count, memory.device()); }

ExampleScope::ExampleScope(const UOp& number) { traced_examples().push_back(number); }
ExampleScope::~ExampleScope() { traced_examples().pop_back(); }

void Key::hold(uint64_t bits, const std::string& device) {
  const uint64_t words[1] = {bits};
  number_ = bits;
  memory_ = in_memory(words, shape_of({}), named_place(device).device);
  bits_ = Tensor(memory_);
}
std::optional<uint64_t> Key::known() const {
  // In the trace of a function, and where somebody assigned to bits(), they are others.
  return memory_ && bits_.uop() == memory_ ? std::optional(number_) : std::nullopt;
}

Key::Key(const Tensor& bits) : bits_(bits) {
  KOINE_REQUIRE(bits.dtype() == DType::UInt64, Type,
                "Key: the bits of a key are uint64, got {}: Key(seed) takes a number",
                dtype_name(bits.dtype()));
  if (bits.uop().is(Op::Const)) hold(bits.uop().as<ConstArg>().bits, {});
}

Key Key::operator[](int64_t i) const {
  KOINE_REQUIRE(bits_.ndim() > 0, Value,
                "Key: this is one key, of which there is no [i]: random's split gives several");
  return Key(bits_[i]);
}

std::vector<Key> Key::split(int64_t n) const {
  require_length("split", n);
  std::vector<Key> out;
  out.reserve(static_cast<size_t>(n));
  if (const auto parent = known()) {
    for (int64_t i = 0; i < n; ++i) {
      out.push_back(*this);
      out.back().hold(threefry(counter_of(Use::Split, static_cast<uint64_t>(i)), *parent),
                      bits_.device());
    }
    return out;
  }
  // Keys are slices of one row, so that a program is the same for each of them.
  const Key row = random::split(*this, n);
  for (int64_t i = 0; i < n; ++i) out.push_back(row[i]);
  return out;
}
std::pair<Key, Key> Key::split() const {
  std::vector<Key> two = split(2);
  return {std::move(two[0]), std::move(two[1])};
}

Key Key::fold_number(int64_t number, bool fits) const {
  constexpr int64_t end = int64_t{1} << (number_bits - 1);
  KOINE_REQUIRE(
      fits && number >= -end && number < end, Value,
      "fold_in: {} is not in -2^61..2^61 - 1: fold in its parts one after the other",
      fits ? fmt::format("{}", number) : fmt::format("{}", static_cast<uint64_t>(number)));
  if (const auto parent = known()) {
    Key out = *this;
    out.hold(threefry(counter_of(Use::FoldIn, static_cast<uint64_t>(number)), *parent),
             bits_.device());
    return out;
  }
  const uint64_t words[1] = {static_cast<uint64_t>(number)};
  const Tensor here = bits_;
  const Device devices = here.uop().device() ? here.uop().device() : named_place("").device;
  return fold_in(Tensor(in_memory(words, shape_of({}), devices)));
}
Key Key::fold_in(const Tensor& number) const {
  KOINE_REQUIRE(is_integer(number.dtype()), Type, "fold_in: needs a whole number, got {}",
                dtype_name(number.dtype()));
  KOINE_REQUIRE(number.ndim() == 0, Value, "fold_in: needs one number, got shape {}",
                tensor::text_of(number.shape()));
  require_one("fold_in", *this);
  const UOp value = number.uop(), parent = bits_.uop();
  const bool elsewhere = value.device() && parent.device() && !(value.device() == parent.device());
  const UOp here = elsewhere ? number.shard(parent.device().name()).uop() : value;
  const UOp low = bit_and(cast(here, DType::UInt64), constant_word(number_mask));
  return Key(
      Tensor(binary(Op::Threefry, bit_or(low, constant_word(counter_of(Use::FoldIn, 0))), parent)));
}

Key Key::to(const std::string& device) const {
  const Device target = tensor::known_device(device);
  if (bits_.uop().device() == target) return *this;
  if (const auto number = known()) {
    Key out = *this;
    out.hold(*number, device);
    return out;
  }
  return Key(bits_.shard(device));
}

Key split(const Key& key, int64_t n) {
  require_length("split", n);
  require_one("split", key);
  const UOp counters = add(iota(n, DType::UInt64), constant_word(counter_of(Use::Split, 0)));
  return Key(Tensor(binary(Op::Threefry, counters, key.bits().uop())));
}

// --- draws under a key ---------------------------------------------------------------------------

Tensor bits(const Key& key, const Shape& shape, const std::string& device) {
  return words_of("bits", key, shape, device);
}
Tensor rand(const Key& key, const Shape& shape, const std::string& device) {
  return fractions(words_of("rand", key, shape, device));
}
Tensor randn(const Key& key, const Shape& shape, const std::string& device) {
  return normals_of(words_of("randn", key, shape, device));
}
Tensor randint(const Key& key, const Shape& shape, int64_t low, int64_t high,
               const std::string& device) {
  require_range(low, high);
  return integers(words_of("randint", key, shape, device), low, high);
}
Tensor uniform(const Key& key, const Shape& shape, double low, double high,
               const std::string& device) {
  require_bounds(low, high);
  return between(fractions(words_of("uniform", key, shape, device)), low, high);
}
Tensor bernoulli(const Key& key, const Shape& shape, double p, const std::string& device) {
  require_probability("bernoulli", p);
  return fractions(words_of("bernoulli", key, shape, device)) < Tensor(p);
}
Tensor permutation(const Key& key, int64_t n, const std::string& device) {
  require_length("permutation", n);
  return words_of("permutation", key, {n}, device).argsort(0);
}
Tensor dropout(const Key& key, const Tensor& x, double p) {
  return dropped(x, p, [&] {
    const Placement place = place_of(x.uop().device() ? x : key.bits());
    return fractions(words_at("dropout", key, x.shape(), place));
  });
}

}  // namespace random

// --- draws of the global stream ------------------------------------------------------------------

namespace {
Tensor next_fractions(std::string_view method, const Shape& shape, const Placement& place) {
  return fractions(next_words(method, shape, place));
}
}  // namespace

void Tensor::manual_seed(uint64_t seed) {
  GlobalStream& stream = global_stream();
  const std::lock_guard lock(stream.mutex);
  stream.seed = seed;
  stream.drawn = 0;
}

Tensor Tensor::rand(const Shape& shape, const std::string& device) {
  return next_fractions("rand", shape, named_place(device));
}
Tensor Tensor::randn(const Shape& shape, const std::string& device) {
  const Placement place = named_place(device);
  const Tensor distance = Tensor(1.0) - next_fractions("randn", shape, place);
  return normals(distance, next_fractions("randn", shape, place));
}
Tensor Tensor::randint(const Shape& shape, int64_t low, int64_t high, const std::string& device) {
  require_range(low, high);
  return integers(next_words("randint", shape, named_place(device)), low, high);
}
Tensor Tensor::uniform(const Shape& shape, double low, double high, const std::string& device) {
  require_bounds(low, high);
  return between(next_fractions("uniform", shape, named_place(device)), low, high);
}
namespace {
int64_t fan_in(std::string_view method, const Shape& shape) {
  KOINE_REQUIRE(!shape.empty(), Value, "{}: needs a shape with at least one axis", method);
  int64_t n = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    KOINE_REQUIRE(shape[i].smallest() >= 0, Value, "{}: the size {} of axis {} is negative", method,
                  shape[i], i);
    if (i > 0) n *= shape[i];
  }
  return shape.size() == 1 ? int64_t{shape[0]} : n;
}
}  // namespace
Tensor Tensor::kaiming_uniform(const Shape& shape, const std::string& device) {
  const double bound = std::sqrt(3.0) * std::sqrt(2.0 / (1 + 0.01 * 0.01)) /
                       std::sqrt(static_cast<double>(fan_in("kaiming_uniform", shape)));
  return uniform(shape, -bound, bound, device);
}
Tensor Tensor::glorot_uniform(const Shape& shape, const std::string& device) {
  const int64_t in = fan_in("glorot_uniform", shape);
  const double fans = static_cast<double>(int64_t{shape[0]}) + static_cast<double>(in);
  const double bound = std::sqrt(6.0 / fans);
  return uniform(shape, -bound, bound, device);
}
Tensor Tensor::randperm(int64_t n, const std::string& device) {
  require_length("randperm", n);
  return next_words("randperm", {n}, named_place(device)).argsort(0);
}
Tensor Tensor::dropout(double p, bool training) const {
  if (!training) {
    require_probability("dropout", p);
    return *this;
  }
  return dropped(*this, p, [&] {
    return next_fractions("dropout", shape(), uop().device() ? place_of(*this) : named_place(""));
  });
}

}  // namespace koine
