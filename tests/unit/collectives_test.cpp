// The seven collectives (rows N1 to N7): what each device holds afterwards against plain loops, the
// bytes that each sends against the formula, and how a program says which collective its copies
// are.
#include "koine/tensor/collectives.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "check.hpp"
#include "gradient_check.hpp"
#include "koine/engine/storage.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/collectives.hpp"
#include "koine/lower/schedule.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

using collective::Fold;
using collective::Uneven;
constexpr int64_t width = 3;

std::string devices(int64_t n, const std::string& kind = "CPU") {
  std::string out = kind;
  for (int64_t i = 1; i < n; ++i) out += "," + kind + ":" + std::to_string(i);
  return out;
}

struct Case {
  int64_t n;
  std::string where;
  DType dtype;
  std::mt19937_64& random;
  std::string first() const { return Device(where).part(0).name(); }
};

// On 2, 3, 4 and 8 devices that compile and that interpret, for floats and integers, in both modes.
void on_all(const std::function<void(const Case&)>& check) {
  std::mt19937_64 random(test_seed());
  in_both_modes([&] {
    for (const int64_t n : device_counts())
      for (const char* kind : {"CPU", "INTERP"})
        for (const DType dtype : {DType::Float32, DType::Int32}) {
          const Case c{n, devices(n, kind), dtype, random};
          SCOPED_TRACE(c.where + " " + std::string(dtype_name(dtype)) +
                       ", KOINE_TEST_SEED=" + std::to_string(test_seed()));
          check(c);
        }
  });
}

// --- plain loops ---------------------------------------------------------------------------------

// Strict mode folds in order, so any numbers will do; sums of whole ones are equal in any order.
Array numbers(const Case& c, std::vector<int64_t> sizes) {
  if (options().strict || c.dtype != DType::Float32) return random_array(c.random, sizes, c.dtype);
  const double special[] = {0.0, -0.0, inf, -inf, std::nan("")};
  Array out{c.dtype, std::move(sizes), {}, {}};
  for (int64_t i = 0; i < out.numel(); ++i) {
    const double whole = static_cast<double>(c.random() % 2001) - 1000;
    out.data.push_back(
        double_to_bits(c.dtype, c.random() % 8 == 0 ? special[c.random() % 5] : whole));
  }
  return out;
}

Bits plain_fold(Fold fold, DType dtype, Bits a, Bits b) {
  if (dtype == DType::Int32) {
    const int64_t x = bits_to_int(dtype, a), y = bits_to_int(dtype, b);
    return int_to_bits(dtype, fold == Fold::Add ? x + y : std::max(x, y));
  }
  const auto x = static_cast<float>(bits_to_double(dtype, a)),
             y = static_cast<float>(bits_to_double(dtype, b));
  const float larger = std::isnan(x) || std::isnan(y) ? std::nanf("") : x < y ? y : x;
  return double_to_bits(dtype, fold == Fold::Add ? x + y : larger);
}

// The parts of n devices, folded in their order; a sum starts from 0.
Array plain_folded(Fold fold, const Array& x, int64_t n) {
  Array out{x.dtype, x.sizes, {}, {}};
  out.sizes[0] /= n;
  const auto part = static_cast<size_t>(out.numel());
  for (size_t k = 0; k < part; ++k) {
    Bits folded = fold == Fold::Add ? 0 : x.data[k];
    for (size_t i = fold == Fold::Add ? 0 : 1; i < static_cast<size_t>(n); ++i)
      folded = plain_fold(fold, x.dtype, folded, x.data[i * part + k]);
    out.data.push_back(folded);
  }
  return out;
}

Array plain_part(const Array& x, int64_t i, int64_t n) {
  Array out{x.dtype, x.sizes, {}, {}};
  out.sizes[0] /= n;
  const int64_t part = out.numel();
  out.data.assign(x.data.begin() + i * part, x.data.begin() + (i + 1) * part);
  return out;
}

// --- devices -------------------------------------------------------------------------------------

Tensor placed(const Array& x, const std::string& where, int32_t axis = 0) {
  return Tensor(buffer_from_host(shape_of(x.sizes), x.dtype, where, bytes_of(x).data(), axis));
}

// What lies in the memory of one device.
Array held(const UOp& buffer, Device device) {
  const auto memory = storage::memory_on(buffer, device);
  Array out{buffer.dtype(), buffer.sizes(), {}, {}};
  const auto n = static_cast<int64_t>(buffer.device().count());
  if (buffer.axis()) out.sizes[*buffer.axis()] /= n;
  EXPECT_EQ(memory->bytes(), out.numel() * item_size(out.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(memory->bytes()) + 8);
  memory->copy_out(bytes.data(), 0, memory->bytes());
  for (int64_t i = 0; i < out.numel(); ++i)
    out.data.push_back(read_element(bytes.data(), out.dtype, i));
  return out;
}

// Bytes by sender and receiver, of what was not 0.
using Traffic = std::map<std::pair<std::string, std::string>, int64_t>;
Traffic traffic(const std::string& where, const std::function<int64_t(int64_t, int64_t)>& bytes) {
  Traffic out;
  const Device all(where);
  const auto n = static_cast<int64_t>(all.count());
  auto name = [&](int64_t i) { return all.part(static_cast<size_t>(i)).name(); };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < n; ++k)
      if (i != k && bytes(i, k) > 0) out[{name(i), name(k)}] = bytes(i, k);
  return out;
}
Traffic traffic_of(const std::vector<UOp>& values, std::vector<UOp>* out = nullptr) {
  reset_counters();
  const std::vector<UOp> computed = realize(values);
  if (out != nullptr) *out = computed;
  return counters().copied_bytes;
}
int64_t sent_by(const Traffic& all, const std::string& device) {
  int64_t out = 0;
  for (const auto& [between, bytes] : all) out += between.first == device ? bytes : 0;
  return out;
}

std::vector<Collective> found_in(const std::vector<UOp>& values) {
  std::vector<UOp> to;
  for (const UOp& v : values) {
    const Placement& at = v.node()->placement;
    to.push_back(new_buffer(v.shape(), v.dtype(), at.device, at.axes));
  }
  return collectives_of(callify(values, to).body);
}
std::vector<std::string> names_in(const std::vector<UOp>& values) {
  std::vector<std::string> out;
  for (const Collective& c : found_in(values))
    out.push_back(std::string(collective_name(c.kind)) +
                  (c.fold ? " " + std::string(op_name(*c.fold)) : ""));
  return out;
}
std::set<std::string> reasons_of_copies_in(const std::vector<UOp>& values) {
  std::set<std::string> out;
  for (const Kernel& k : schedule(values))
    if (is_copy(k.ast)) out.emplace(k.reason);
  return out;
}

// `value` is whole on its devices, or in parts of `axis` 0, is one collective of this name, and
// sends these bytes.
struct Expected {
  Array value;
  std::optional<int64_t> axis;
  std::string name;
  Traffic sent;
};
void check(const Tensor& got, const Expected& want) {
  SCOPED_TRACE(want.name);
  const UOp value = got.uop();
  EXPECT_EQ(got.shard_axis(), want.axis);
  EXPECT_EQ(difference(want.value, interpret(value, bindings_of(value))), "") << "what it means";
  EXPECT_EQ(names_in({value}), std::vector<std::string>{want.name});
  for (const std::string& reason : reasons_of_copies_in({value}))
    EXPECT_TRUE(reason.starts_with(want.name.substr(0, want.name.find(' ')))) << reason;
  std::vector<UOp> computed;
  EXPECT_EQ(traffic_of({value}, &computed), want.sent);
  const Device all = value.device();
  const auto n = static_cast<int64_t>(all.count());
  for (int64_t i = 0; i < n; ++i) {
    const Array there = held(computed[0], all.part(static_cast<size_t>(i)));
    EXPECT_EQ(difference(want.axis ? plain_part(want.value, i, n) : want.value, there), "")
        << "on device " << i;
  }
}

std::string named(const char* name, Fold fold) {
  return std::string(name) + (fold == Fold::Add ? " Add" : " Max");
}

}  // namespace

TEST(collectives, spec_N1_a_copy_to_several_devices_splits_axis_0) {
  const Tensor x = Tensor::arange(8).cast(DType::Float32).realize();
  for (const char* kind : {"CPU", "INTERP"}) {
    const std::string where = devices(4, kind);
    const Tensor there = x.to(where);
    EXPECT_EQ(there.shape(), x.shape());
    EXPECT_EQ(there.shard_axis(), 0);
    std::vector<UOp> computed;
    const Traffic sent = traffic_of({there.uop()}, &computed);
    for (int64_t i = 0; i < 4; ++i) {
      const Array part = held(computed[0], Device(where).part(static_cast<size_t>(i)));
      EXPECT_EQ(part.sizes, std::vector<int64_t>{2});
      for (int64_t k = 0; k < 2; ++k)
        EXPECT_EQ(bits_to_double(DType::Float32, part.data[static_cast<size_t>(k)]),
                  static_cast<double>(2 * i + k));
      // Two numbers of four bytes to each device that is not the one they come from.
      const std::string to = Device(where).part(static_cast<size_t>(i)).name();
      EXPECT_EQ(sent.contains({"CPU", to}), to != "CPU");
    }
    for (const auto& [between, bytes] : sent) EXPECT_EQ(bytes, 8);
  }
}

TEST(collectives, spec_N2_a_broadcast_is_equal_on_each_device) {
  on_all([](const Case& c) {
    const Array x = numbers(c, {5, width});
    check(collective::broadcast(placed(x, c.first()), c.where),
          {x, std::nullopt, "broadcast",
           traffic(c.where, [](int64_t i, int64_t) { return i == 0 ? 5 * width * 4 : 0; })});
  });
  const Tensor one = Tensor::from<float>({2.5F}, {}).realize();
  EXPECT_EQ(collective::broadcast(one, devices(3)).item<float>(), 2.5F) << "a scalar";
  EXPECT_EQ(collective::broadcast(Tensor::zeros({0, 2}), devices(2)).realize().numel(), 0);
}

TEST(collectives, spec_N3_scatter_and_gather_go_there_and_back) {
  on_all([](const Case& c) {
    const Array x = numbers(c, {2 * c.n, width});
    const int64_t part = 2 * width * 4;
    const Tensor parts = collective::scatter(placed(x, c.first()), c.where);
    check(parts, {x, 0, "scatter",
                  traffic(c.where, [&](int64_t i, int64_t) { return i == 0 ? part : 0; })});
    // To the first of the devices, and to the last one.
    const std::string last = Device(c.where).part(static_cast<size_t>(c.n - 1)).name();
    for (const auto& [to, name] : {std::pair<int64_t, std::string>{0, ""}, {c.n - 1, last}}) {
      const Tensor whole = collective::gather(placed(x, c.where), name);
      EXPECT_EQ(whole.device(), name.empty() ? c.first() : last);
      const int64_t target = to;
      check(whole, {x, std::nullopt, "gather",
                    traffic(c.where, [&](int64_t, int64_t k) { return k == target ? part : 0; })});
    }
    EXPECT_EQ(difference(x, array_of(realize({collective::gather(parts).uop()})[0])), "");
  });
}

TEST(collectives, spec_N3_uneven_sizes_are_refused_or_padded) {
  const Tensor x = Tensor::arange(10).reshape({5, 2}).realize();
  expect_error([&] { (void)collective::scatter(x, devices(4)); },
               {"scatter of (5, 2)", "5 rows", "4 devices", "multiple of 4", "Uneven::Pad"});
  const Tensor parts = collective::scatter(x, devices(4), Uneven::Pad);
  EXPECT_EQ(parts.shape(), (Shape{8, 2}));
  EXPECT_EQ(parts.shard_axis(), 0);
  const Tensor back = collective::gather(parts);
  EXPECT_EQ(back.shrink({{0, 5}, {0, 2}}).tolist<int>(), x.tolist<int>());
  EXPECT_EQ(back.shrink({{5, 8}, {0, 2}}).tolist<int>(), std::vector<int>(6, 0));
  EXPECT_EQ(collective::scatter(x, devices(5), Uneven::Pad).shape(), x.shape()) << "it splits";
}

TEST(collectives, spec_N4_a_reduce_is_that_of_one_device) {
  on_all([](const Case& c) {
    for (const Fold fold : {Fold::Add, Fold::Max}) {
      const Array x = numbers(c, {4 * c.n, width});
      const Tensor value = collective::reduce(placed(x, c.where), fold);
      EXPECT_EQ(value.device(), c.first());
      check(value,
            {plain_folded(fold, x, c.n), std::nullopt, named("reduce", fold),
             traffic(c.where, [](int64_t, int64_t k) { return k == 0 ? 4 * width * 4 : 0; })});
    }
  });
}

TEST(collectives, spec_N5_after_an_all_gather_each_device_holds_all) {
  on_all([](const Case& c) {
    const Array x = numbers(c, {2 * c.n, width});
    check(collective::all_gather(placed(x, c.where)),
          {x, std::nullopt, "all-gather",
           traffic(c.where, [](int64_t, int64_t) { return 2 * width * 4; })});
  });
}

TEST(collectives, spec_N6_a_reduce_scatter_leaves_the_ith_chunk_on_device_i) {
  on_all([](const Case& c) {
    for (const Fold fold : {Fold::Add, Fold::Max}) {
      const Array x = numbers(c, {2 * c.n * c.n, width});  // 2n rows a device
      check(collective::reduce_scatter(placed(x, c.where), fold),
            {plain_folded(fold, x, c.n), 0, named("reduce-scatter", fold),
             traffic(c.where, [](int64_t, int64_t) { return 2 * width * 4; })});
    }
  });
}

TEST(collectives, spec_N7_an_all_reduce_sends_no_more_than_twice_its_size) {
  on_all([](const Case& c) {
    for (const Fold fold : {Fold::Add, Fold::Max}) {
      const Array x = numbers(c, {2 * c.n * c.n, width});
      const Tensor value = collective::all_reduce(placed(x, c.where), fold);
      const int64_t bytes = 2 * c.n * width * 4;  // of a partial value
      check(value, {plain_folded(fold, x, c.n), std::nullopt, named("all-reduce", fold),
                    traffic(c.where, [&](int64_t, int64_t) { return 2 * bytes / c.n; })});
      const Traffic sent = counters().copied_bytes;
      for (size_t i = 0; i < static_cast<size_t>(c.n); ++i)
        EXPECT_EQ(sent_by(sent, Device(c.where).part(i).name()) * c.n, 2 * (c.n - 1) * bytes);
    }
  });
}

TEST(collectives, spec_N7_uneven_partial_values_are_refused_or_padded) {
  std::mt19937_64 random(test_seed());
  for (const int64_t n : {2, 3, 4}) {
    const Case c{n, devices(n), DType::Int32, random};
    const Array x = numbers(c, {n * (n + 1), width});  // n + 1 rows a device
    const Tensor parts = placed(x, c.where);
    expect_error([&] { (void)collective::all_reduce(parts); },
                 {"all_reduce of (" + std::to_string(n) + ", " + std::to_string(n + 1),
                  std::to_string(n + 1) + " rows", "multiple of " + std::to_string(n)});
    expect_error([&] { (void)collective::reduce_scatter(parts, Fold::Max); },
                 {"reduce_scatter of", "do not split evenly", "Uneven::Pad"});
    for (const Fold fold : {Fold::Add, Fold::Max}) {
      const Array sum = plain_folded(fold, x, n);
      const Tensor all = collective::all_reduce(parts, fold, Uneven::Pad);
      EXPECT_EQ(all.shard_axis(), std::nullopt);
      EXPECT_EQ(difference(sum, array_of(realize({all.uop()})[0])), "");
      const Tensor scattered = collective::reduce_scatter(parts, fold, Uneven::Pad);
      EXPECT_EQ(scattered.shard_axis(), 0);
      const Array rows = array_of(realize({scattered.uop()})[0]);
      ASSERT_EQ(rows.sizes, (std::vector<int64_t>{2 * n, width}));
      for (size_t k = 0; k < rows.data.size(); ++k)
        EXPECT_EQ(rows.data[k], k < sum.data.size() ? sum.data[k] : 0) << k;
    }
  }
}

// --- a Reduce over the axis that is split --------------------------------------------------------

namespace {

// Bytes that each of n devices sends for a sum over them: of m elements, in chunks where these are
// less.
int64_t bytes_of_a_sum(int64_t n, int64_t m, int64_t in, int64_t out) {
  const int64_t chunk = (m + n - 1) / n;
  const bool in_chunks = m * in >= 1024 && 2 * chunk < m;
  return in_chunks ? (n - 1) * chunk * (in + out) : (n - 1) * m * in;
}

}  // namespace

TEST(collectives, spec_N7_a_reduce_over_the_split_axis_is_an_all_reduce) {
  std::mt19937_64 random(test_seed());
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const char* kind : {"CPU", "INTERP"})
    for (const int64_t n : device_counts())
      for (const int64_t m : {int64_t{5}, int64_t{24 * 20}, int64_t{24 * 20 + 1}})
        for (const Fold fold : {Fold::Add, Fold::Max}) {
          const Case c{n, devices(n, kind), DType::Float32, random};
          SCOPED_TRACE(c.where + ", " + std::to_string(m) + named(" elements,", fold));
          const Array x = numbers(c, {2 * n, m});
          const Tensor parts = placed(x, c.where);
          const UOp value = (fold == Fold::Add ? parts.sum(0) : parts.max({0})).uop();
          EXPECT_EQ(names_in({value}), std::vector<std::string>{named("all-reduce", fold)});
          for (const std::string& reason : reasons_of_copies_in({value}))
            EXPECT_TRUE(reason.starts_with("all-reduce (")) << reason;
          std::vector<UOp> computed;
          const Traffic sent = traffic_of({value}, &computed);
          Array want = plain_folded(fold, x, 2 * n);
          want.sizes = {m};
          for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            const Device device = Device(c.where).part(i);
            EXPECT_EQ(difference(want, held(computed[0], device)), "") << device.name();
            EXPECT_EQ(sent_by(sent, device.name()), bytes_of_a_sum(n, m, 4, 4));
            if (m % n == 0 && m >= 256) {
              EXPECT_LE(sent_by(sent, device.name()) * n, 2 * (n - 1) * m * 4);
            }
          }
        }
}

TEST(collectives, narrow_partial_values_travel_wide_and_come_back_narrow) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  const int64_t n = 4, m = 1000;
  const Tensor x = Tensor::arange(2 * n * m).mod(Tensor(7)).cast(DType::Float16);
  const Tensor parts = x.reshape({2 * n, m}).shard(devices(n), 0).realize();
  // What is asked of the Reduce itself is Float16: it is added in Float32 and rounded once.
  const UOp value = reduce(Op::Add, parts.uop(), {0});
  const Traffic sent = traffic_of({value});
  EXPECT_EQ(sent_by(sent, "CPU:2"), bytes_of_a_sum(n, m, 4, 2));
  const Tensor one = x.reshape({2 * n, m}).realize();
  EXPECT_EQ(Tensor(value).tolist<float>(), Tensor(reduce(Op::Add, one.uop(), {0})).tolist<float>());
}

// Of a sum of which each device wants its rows no device folds more than these.
TEST(collectives, spec_N6_a_sum_that_is_scattered_again_is_a_reduce_scatter) {
  std::mt19937_64 random(test_seed());
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const int64_t n : device_counts())
    for (const int64_t m : {n, 50 * n})
      for (const Fold fold : {Fold::Add, Fold::Max}) {
        const Case c{n, devices(n), DType::Float32, random};
        SCOPED_TRACE(c.where + ", " + std::to_string(m));
        const Array x = numbers(c, {n, m, width});
        const Tensor parts = placed(x, c.where);
        const Tensor whole = fold == Fold::Add ? parts.sum(0) : parts.max({0});
        const Tensor rows = whole.shard(c.where, 0);
        Array want = plain_folded(fold, x, n);
        want.sizes = {m, width};
        check(rows, {want, 0, named("reduce-scatter", fold),
                     traffic(c.where, [&](auto, auto) { return m / n * width * 4; })});
        // To other devices the chunks go from where they were folded.
        const Tensor elsewhere = whole.shard(devices(n, "INTERP"), 0);
        EXPECT_EQ(difference(want, array_of(realize({elsewhere.uop()})[0])), "");
        // Split along another axis each device takes its columns of the whole; to one goes all.
        if (width % n == 0) {
          const Tensor columns = whole.shard(c.where, 1);
          EXPECT_EQ(difference(want, array_of(realize({columns.uop()})[0])), "");
        }
        const Tensor one = whole.to("CPU:9");
        EXPECT_EQ(difference(want, array_of(realize({one.uop()})[0])), "");
        EXPECT_EQ(names_in({one.uop()}), std::vector<std::string>{named("reduce", fold)});
        for (const std::string& reason : reasons_of_copies_in({one.uop()}))
          EXPECT_TRUE(reason.starts_with("reduce (")) << reason;
        // Read as a whole too, it is an all-reduce, of which each device keeps its rows.
        std::vector<UOp> both;
        const Traffic sent = traffic_of({whole.uop(), rows.uop()}, &both);
        EXPECT_EQ(sent_by(sent, "CPU"), bytes_of_a_sum(n, m * width, 4, 4));
        EXPECT_EQ(difference(want, array_of(both[0])), "");
        EXPECT_EQ(difference(want, array_of(both[1])), "");
      }
}

// Partial results that go in chunks, of any shape, dtype and op, are those of one device.
TEST(collectives, folds_of_many_shapes_go_in_chunks) {
  std::mt19937_64 random(test_seed());
  in_both_modes([&] {
    for (int64_t i = 0; i < test_cases(16); ++i) {
      const int64_t n = 3 + static_cast<int64_t>(random() % 3);
      std::vector<int64_t> sizes;
      for (int64_t k = 0; k < 3; ++k) sizes.push_back(7 + static_cast<int64_t>(random() % 12));
      const auto split = static_cast<int32_t>(random() % 3);
      sizes.insert(sizes.begin() + split, n * (1 + static_cast<int64_t>(random() % 3)));
      Ints axes{split};
      if (random() % 3 == 0) axes.push_back((split + 1) % 4);
      std::sort(axes.begin(), axes.end());
      const DType dtype = std::array{DType::Float32, DType::Int32, DType::Float16, DType::UInt8,
                                     DType::Float64}[random() % 5];
      const Op op = std::array{Op::Add, Op::Max, Op::Mul}[random() % 3];
      const Array x = random_array(random, sizes, dtype);
      const UOp one = placed(x, "CPU").uop(), many = placed(x, devices(n), split).uop();
      const UOp plain = reduce(op, one, axes), value = reduce(op, many, axes);
      const Bindings bindings{{one, x}};
      const BoundedArray want = options().strict ? BoundedArray{interpret(plain, bindings), {}}
                                                 : interpret_bounded(plain, bindings);
      EXPECT_EQ(difference(want, array_of(realize({value})[0])), "")
          << to_text(value) << "KOINE_TEST_SEED=" << test_seed();
    }
  });
}

// Strict mode folds in one order, so each device has the operand as a whole: as many bytes as an
// all-gather of it, and the bits of one device.
TEST(collectives, spec_N7_a_strict_sum_gathers_its_operand) {
  const OptionScope scope(strict_options());
  std::mt19937_64 random(test_seed());
  for (const int64_t n : device_counts()) {
    const Case c{n, devices(n), DType::Float32, random};
    const Array x = numbers(c, {2 * n, 300});
    const Tensor parts = placed(x, c.where), one = placed(x, "CPU");
    const UOp value = parts.sum(0).uop();
    EXPECT_EQ(reasons_of_copies_in({value}),
              std::set<std::string>{"all-reduce (Add) in one order"});
    std::vector<UOp> computed;
    const Traffic sent = traffic_of({value}, &computed);
    EXPECT_EQ(sent, traffic(c.where, [](int64_t, int64_t) { return 2 * 300 * 4; }));
    EXPECT_EQ(difference(array_of(realize({one.sum(0).uop()})[0]), array_of(computed[0])), "");
    // A maximum is one in any order.
    const Traffic of_max = traffic_of({parts.max({0}).uop()});
    EXPECT_EQ(sent_by(of_max, "CPU"), bytes_of_a_sum(n, 300, 4, 4));
  }
}

// --- how they are found --------------------------------------------------------------------------

TEST(collectives, spec_N7_forms_written_by_hand_are_found) {
  std::mt19937_64 random(test_seed());
  for (const int64_t n : device_counts()) {
    const Device all(devices(n));
    const int64_t s = 2 * n;
    const auto leaf_on = [&](int64_t size, const std::string& where) {
      return placed(random_array(random, {size}, DType::Int32), where).uop();
    };
    const UOp t = leaf_on(n * s, all.name()), one = leaf_on(s, "CPU");
    const auto to_each = [&](const UOp& x, int64_t length) {
      return replicated(
          copy_to(expand(reshape(x, shape_of({1, length})), shape_of({n, length})), all), 0);
    };
    const UOp chunks = permute(reshape(t, shape_of({n, n, s / n})), {1, 0, 2});
    const UOp scattered = reshape(reduce(Op::Add, copy_to(chunks, all), {1}), shape_of({s}));
    const UOp gathered = copy_to(t, all.part(0));
    const UOp rows = reshape(t, shape_of({n, s}));
    const std::vector<std::pair<std::vector<UOp>, std::vector<std::string>>> forms = {
        {{to_each(one, s)}, {"broadcast"}},
        {{copy_to(one, all)}, {"scatter"}},
        {{gathered}, {"gather"}},
        {{reduce(Op::Max, reshape(gathered, shape_of({n, s})), {0})}, {"reduce Max"}},
        {{reduce(Op::Mul, copy_to(rows, all.part(0)), {0})}, {"reduce Mul"}},
        {{to_each(t, n * s)}, {"all-gather"}},
        {{scattered}, {"reduce-scatter Add"}},
        {{to_each(scattered, s)}, {"all-reduce Add"}},
        {{reduce(Op::Max, rows, {0})}, {"all-reduce Max"}},
        {{reduce(Op::Add, rows, {0, 1})}, {"all-reduce Add"}},
        {{copy_to(reshape(reduce(Op::Max, rows, {0}), shape_of({s})), all)},
         {"reduce-scatter Max"}},
        {{copy_to(reduce(Op::Max, rows, {0}), all.part(0))}, {"reduce Max"}},
        // What others read as well stays a step of its own.
        {{reduce(Op::Max, rows, {0}), copy_to(reduce(Op::Max, rows, {0}), all.part(0))},
         {"all-reduce Max"}},
        {{scattered, to_each(scattered, s)}, {"reduce-scatter Add", "all-gather"}},
        {{gathered, reduce(Op::Add, reshape(gathered, shape_of({n, s})), {0})}, {"gather"}},
        // A sum of something else than what each device has of it.
        {{reduce(Op::Add, reshape(gathered, shape_of({s, n})), {0})}, {"gather"}},
        {{reduce(Op::Add, reshape(gathered, shape_of({n, s})), {1})}, {"gather"}},
        {{reduce(Op::Add, copy_to(chunks, all), {2})}, {}},
        // Nothing moves.
        {{copy_to(constant(DType::Float32, 1), all.part(0))}, {}},
        {{add(t, t)}, {}},
        {{copy_to(one, Device("CPU:5"))}, {}}};
    for (size_t k = 0; k < forms.size(); ++k) {
      const auto& [values, names] = forms[k];
      SCOPED_TRACE("form " + std::to_string(k) + " on " + all.name());
      EXPECT_EQ(names_in(values), names);
    }
  }
}

TEST(collectives, what_is_found_names_its_operand_its_result_and_its_copies) {
  const Tensor x = Tensor::arange(16).cast(DType::Float16).shard(devices(2), 0).realize();
  // The sum of narrow floats is a Cast, a Reduce and a Cast.
  const Tensor sum = collective::all_reduce(x);
  const std::vector<Collective> found = found_in({sum.uop()});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, CollectiveKind::AllReduce);
  EXPECT_EQ(found[0].value.op(), Op::Replicated);
  EXPECT_EQ(found[0].value.sizes(), std::vector<int64_t>{8});
  EXPECT_EQ(found[0].operand.axis(), 1u) << "the chunks by device, which the devices hold";
  ASSERT_EQ(found[0].inside.size(), 2u);
  for (const UOp& copy : found[0].inside) EXPECT_EQ(copy.op(), Op::Load);
  EXPECT_EQ(
      reasons_of_copies_in({sum.uop()}),
      (std::set<std::string>{"all-reduce (Add): reduce-scatter", "all-reduce (Add): all-gather"}));
  // An exchange that nobody sums is none of the seven, and says what it is.
  const Tensor turned = x.reshape({2, 8}).transpose(0, 1).to(devices(2));
  EXPECT_EQ(names_in({turned.uop()}), std::vector<std::string>{});
  EXPECT_EQ(reasons_of_copies_in({turned.uop()}), std::set<std::string>{"all-to-all"});
  const Tensor moved = Tensor::arange(4).realize().to("CPU:1");
  EXPECT_EQ(reasons_of_copies_in({moved.uop()}), std::set<std::string>{"copy between devices"});
}

TEST(collectives, the_host_need_not_see_their_memory) {
  register_remote_device();
  std::mt19937_64 random(test_seed());
  const Case c{4, "CPU,REMOTE,CPU:2,REMOTE:1", DType::Int32, random};
  const Array x = numbers(c, {16, width});
  for (const Fold fold : {Fold::Add, Fold::Max})
    check(collective::all_reduce(placed(x, c.where), fold),
          {plain_folded(fold, x, 4), std::nullopt, named("all-reduce", fold),
           traffic(c.where, [](int64_t, int64_t) { return 2 * width * 4; })});
}

// What comes back, or is there already, does not travel.
TEST(collectives, copies_of_copies_go_straight) {
  const Tensor x = Tensor::arange(12).cast(DType::Float32).realize();
  const std::string where = devices(3);
  const Tensor back = collective::gather(collective::scatter(x, where)) + Tensor(1.0);
  EXPECT_EQ(traffic_of({back.uop()}), Traffic());
  EXPECT_EQ(back.tolist<float>(), (x + Tensor(1.0)).tolist<float>());
  const Tensor on = collective::scatter(x, where).to("CPU:3,CPU:1");
  EXPECT_EQ(traffic_of({on.uop()}), (Traffic{{{"CPU", "CPU:3"}, 24}, {{"CPU", "CPU:1"}, 24}}));
  EXPECT_EQ(on.tolist<float>(), x.tolist<float>());
  // Each device has the whole cotangent of what was gathered, and keeps its part.
  Tensor parts = x.shard(where, 0).clone().realize();
  parts.requires_grad();
  const Tensor weights = (x * x).shard(where).realize();
  const Tensor gradient = (collective::all_gather(parts) * weights).sum().gradient({parts})[0];
  EXPECT_EQ(gradient.shard_axis(), 0);
  EXPECT_EQ(traffic_of({gradient.uop()}), Traffic());
  EXPECT_EQ(gradient.tolist<float>(), (x * x).tolist<float>());
}

TEST(collectives, what_is_invalid_is_0_in_a_copy_also_where_nothing_moves) {
  const std::vector<float> numbers{-1, -2};
  const UOp leaf = buffer_from_host(shape_of({2}), DType::Float32, "CPU", numbers.data());
  const UOp padded = pad(leaf, shape_of({1}), shape_of({6}));
  for (const char* where : {"CPU,CPU:1", "CPU:1,CPU:2"})
    for (const UOp& copy :
         {copy_to(padded, Device(where)), copy_to(copy_to(padded, Device(where)), Device("CPU"))}) {
      const UOp rows = reduce(Op::Max, reshape(copy, shape_of({2, 3})), {1});
      EXPECT_EQ(difference(interpret(rows, bindings_of(rows)), array_of(realize({rows})[0])), "")
          << where;
    }
}

// Of a layer split by columns and one split by rows only the result is summed over the devices, and
// on the way back the cotangent of what came in.
TEST(collectives, spec_N7_layers_in_parts_sum_once_there_and_once_back) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const int64_t n : device_counts()) {
    const std::string where = devices(n);
    const Tensor x = small({16, 6}, 1).shard(where).clone().realize();
    const Tensor a = small({6, 24}, 2).shard(where, 1).clone().realize();
    const Tensor b = small({24, 48}, 3).shard(where, 0).clone().realize();
    const Tensor y = x.matmul(a).relu().matmul(b);
    EXPECT_EQ(y.shard_axis(), std::nullopt);
    EXPECT_EQ(names_in({y.uop()}), std::vector<std::string>{"all-reduce Add"});
    EXPECT_EQ(sent_by(traffic_of({y.uop()}), "CPU") * n, 2 * (n - 1) * 16 * 48 * 4);
    const std::vector<Tensor> gradients = y.square().sum().gradient({x, a, b});
    EXPECT_EQ(names_in({gradients[1].uop(), gradients[2].uop()}),
              std::vector<std::string>{"all-reduce Add"})
        << "that of y";
    EXPECT_EQ(names_in({gradients[0].uop()}),
              (std::vector<std::string>{"all-reduce Add", "all-reduce Add"}));
  }
}

// One value that is wanted on one device for two reasons goes there once.
TEST(collectives, copies_of_one_value_are_made_once) {
  const Tensor x = Tensor::arange(12).cast(DType::Float32).shard(devices(3), 0).realize();
  const Tensor gathered = collective::gather(x), all = collective::all_gather(x);
  const Traffic sent = traffic_of({gathered.uop(), all.uop()});
  EXPECT_EQ(sent, traffic(devices(3), [](int64_t, int64_t) { return 4 * 4; }));
}

// --- transforms ----------------------------------------------------------------------------------

namespace {

// A collective on one device's x, and the same without devices.
struct Form {
  const char* name;
  std::function<Tensor(const Tensor& x, const std::string& where)> spread, plain;
};
std::vector<Form> differentiable(int64_t n) {
  using namespace collective;
  auto parts = [](const Tensor& x, const std::string& where) { return x.shard(where, 0); };
  auto same = [](const Tensor& x, const std::string&) { return x; };
  auto folded = [n](Fold fold) {
    return [n, fold](const Tensor& x, const std::string&) {
      const Tensor rows = x.reshape({n, x.size(0) / n, x.size(1)});
      return fold == Fold::Add ? rows.sum(0) : rows.max({0});
    };
  };
  std::vector<Form> out = {
      {"broadcast", [](auto& x, auto& where) { return broadcast(x, where); }, same},
      {"scatter", [](auto& x, auto& where) { return scatter(x, where); }, same},
      {"gather", [=](auto& x, auto& where) { return gather(parts(x, where)); }, same},
      {"all_gather", [=](auto& x, auto& where) { return all_gather(parts(x, where)); }, same}};
  for (const Fold fold : {Fold::Add, Fold::Max}) {
    out.push_back({"reduce", [=](auto& x, auto& where) { return reduce(parts(x, where), fold); },
                   folded(fold)});
    out.push_back({"reduce_scatter",
                   [=](auto& x, auto& where) { return reduce_scatter(parts(x, where), fold); },
                   folded(fold)});
    out.push_back({"all_reduce",
                   [=](auto& x, auto& where) { return all_reduce(parts(x, where), fold); },
                   folded(fold)});
  }
  return out;
}

}  // namespace

TEST(collectives, spec_N7_gradients_go_through_all_seven) {
  for (const int64_t n : options().verify < 3 ? std::vector<int64_t>{2, 3} : device_counts())
    for (const Form& form : differentiable(n)) {
      SCOPED_TRACE(std::string(form.name) + " on " + devices(n));
      check_gradient([&](const Tensor& x) { return form.spread(x, devices(n)).square().to("CPU"); },
                     doubles({n * n, 1}, 1));
    }
}

TEST(collectives, spec_N7_gradients_are_those_of_one_device) {
  in_both_modes([] {
    for (const char* kind : {"CPU", "INTERP"})
      for (const int64_t n : device_counts())
        for (const Form& form : differentiable(n)) {
          SCOPED_TRACE(std::string(form.name) + " on " + devices(n, kind));
          std::vector<double> values;  // small whole numbers: exact in any order, with ties
          for (int64_t i = 0; i < n * n * 2; ++i)
            values.push_back(static_cast<double>(i * 7 % 11) - 5);
          const Tensor x = Tensor::from(values, {n * n, 2}).to(kind).realize();
          auto gradients = [&](const auto& f) {
            const Tensor y = f(x, devices(n, kind));
            const Tensor first = (y * y * y).sum().gradient({x})[0];
            return std::pair(first.tolist<double>(),
                             first.square().sum().gradient({x})[0].tolist<double>());
          };
          const auto many = gradients(form.spread), one = gradients(form.plain);
          // Ties of a maximum share by division: the same numbers, in any order.
          EXPECT_EQ(many.first, one.first);
          EXPECT_EQ(many.second, one.second) << "the second derivative";
        }
  });
}

// The seven are compositions, so every transform goes through them; the oracle is the same function
// without devices, an example at a time.
TEST(collectives, spec_V13_jvp_and_vmap_go_through_all_seven) {
  using Unary = std::function<Tensor(const Tensor&)>;
  const auto each = [](const Unary& f, const Tensor& xs) {
    std::vector<Tensor> out;
    for (int64_t i = 0; i < int64_t{xs.size(0)}; ++i) out.push_back(f(xs[i]));
    return Tensor::stack(out);
  };
  auto check = [&](const Form& form, int64_t n, const char* kind) {
    SCOPED_TRACE(std::string(form.name) + " on " + devices(n, kind));
    std::vector<double> values;  // whole numbers, all different
    for (int64_t i = 0; i < 6 * n * n; ++i) values.push_back(static_cast<double>(i * 37 % 389));
    const Tensor xs = Tensor::from(values, {3, n * n, 2}).to(kind).realize();
    const Tensor ts = (xs.flip({0}) - 190).realize(), x = xs[0], t = ts[0];
    const Unary spread = [&](const Tensor& v) { return form.spread(v, devices(n, kind)); };
    const Unary plain = [&](const Tensor& v) { return form.plain(v, kind); };
    const auto slope = [](const Unary& f) {
      return Unary(grad([f](const Tensor& v) {
        const Tensor y = f(v);
        return (y * y).sum();
      }));
    };
    const auto tangent = [&](const Unary& f) {
      return Unary([f, t](const Tensor& v) { return jvp(f, v, t).second; });
    };
    const std::vector<std::pair<Tensor, Tensor>> pairs = {
        {vmap(spread)(xs), each(plain, xs)},
        {tangent(spread)(x), tangent(plain)(x)},
        {vmap(tangent(spread))(xs), each(tangent(plain), xs)},
        {jvp(vmap(spread), xs, ts).second,
         Tensor::stack({jvp(plain, xs[0], ts[0]).second, jvp(plain, xs[1], ts[1]).second,
                        jvp(plain, xs[2], ts[2]).second})},
        {vmap(slope(spread))(xs), each(slope(plain), xs)},
        {tangent(slope(spread))(x), tangent(slope(plain))(x)}};
    std::vector<Tensor> all;
    for (const auto& [got, want] : pairs) all.insert(all.end(), {got, want});
    Tensor::realize(all);
    for (size_t k = 0; k < pairs.size(); ++k) {
      EXPECT_EQ(pairs[k].first.shape(), pairs[k].second.shape()) << k;
      EXPECT_EQ(pairs[k].first.tolist<double>(), pairs[k].second.tolist<double>()) << k;
    }
  };
  in_both_modes([&] {
    for (const int64_t n : device_counts())
      for (const Form& form : differentiable(n))
        for (const char* kind : {"CPU", "INTERP"})
          if (n < 8 || kind == std::string("CPU")) check(form, n, kind);
  });
}

// --- refusals ------------------------------------------------------------------------------------

TEST(collectives, what_is_placed_otherwise_is_refused) {
  using namespace collective;
  const std::string where = devices(2);
  const Tensor one = Tensor::zeros({4, 2}).realize(), parts = one.shard(where, 0).realize(),
               columns = one.shard(where, 1).realize(), whole = one.shard(where).realize();
  for (const auto& act : std::vector<std::function<void()>>{[&] { (void)broadcast(parts, where); },
                                                            [&] { (void)scatter(whole, where); }})
    expect_error(act, {"of (4, 2)", "lies on the devices CPU,CPU:1", "gather() it first"});
  expect_error([&] { (void)broadcast(one, "CPU:1"); },
               {"broadcast of (4, 2)", "'CPU:1' is one device", "to()"});
  expect_error([&] { (void)scatter(one, "CPU"); }, {"scatter of (4, 2)", "one device"});
  expect_error([&] { (void)scatter(Tensor::from<float>({1}, {}), where); },
               {"scatter of a scalar", "broadcast()"});
  expect_error([&] { (void)broadcast(one, "CPU,TPU"); }, {"TPU", "known devices"});
  const std::vector<std::pair<std::string, std::function<void(const Tensor&)>>> of_parts = {
      {"gather", [](auto& x) { (void)gather(x); }},
      {"reduce", [](auto& x) { (void)reduce(x); }},
      {"all_gather", [](auto& x) { (void)all_gather(x); }},
      {"reduce_scatter", [](auto& x) { (void)reduce_scatter(x); }},
      {"all_reduce", [](auto& x) { (void)all_reduce(x); }}};
  for (const auto& form : of_parts) {
    const std::string& name = form.first;
    expect_error([&] { form.second(one); },
                 {name + " of (4, 2)", "the one device CPU", "scatter()"});
    expect_error([&] { form.second(whole); },
                 {name + " of (4, 2)", "each of the devices CPU,CPU:1", "shard(devices, 0)"});
    expect_error([&] { form.second(columns); },
                 {name + " of (4, 2)", "split axis 1", "along axis 0", "permute()"});
  }
  expect_error([&] { (void)gather(parts, where); },
               {"gather of (4, 2)", "several devices", "all_gather()"});
}

}  // namespace koine::test
