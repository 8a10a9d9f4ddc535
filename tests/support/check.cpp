#include "check.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "backends.hpp"
#include "koine/engine/engine.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/runtime/device.hpp"

// GCC has no header for it. Null where no sanitizer is linked: tests themselves are compiled
// without.
extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace koine::test {

Options strict_options() {
  Options o = options();
  o.strict = true;
  return o;
}

void in_both_modes(const std::function<void()>& action) {
  for (const bool strict : {true, false}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    SCOPED_TRACE(strict ? "strict" : "default");
    action();
  }
}

Tensor small(const Shape& shape, uint64_t salt) {
  std::mt19937_64 random(test_seed() + salt);
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  std::vector<float> data;
  for (int64_t i = 0; i < n; ++i)
    data.push_back(static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000) / 500.0f);
  return Tensor::from(data, shape);
}

Tensor vector_of(const std::vector<float>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

Array array_of(const UOp& buffer) {
  const auto memory = memory_of(buffer);
  Array a{buffer.dtype(), present_sizes(buffer), {}, {}};
  std::vector<std::byte> bytes(static_cast<size_t>(memory->bytes()) + 8);
  memory->copy_out(bytes.data(), 0, memory->bytes());
  for (int64_t i = 0; i < a.numel(); ++i)
    a.data.push_back(read_element(bytes.data(), buffer.dtype(), i));
  return a;
}

namespace {
UOp in_memory(DType dtype, const void* data, size_t count, const std::string& device) {
  return buffer_from_host(shape_of({static_cast<int64_t>(count)}), dtype, device, data);
}
}  // namespace

UOp floats(const std::vector<float>& values, const std::string& device) {
  return in_memory(DType::Float32, values.data(), values.size(), device);
}
UOp ints(const std::vector<int>& values, const std::string& device) {
  return in_memory(DType::Int32, values.data(), values.size(), device);
}
std::vector<float> held(const UOp& buffer) {
  std::vector<float> out(static_cast<size_t>(buffer.numel()));
  const auto memory = memory_of(buffer);
  memory->copy_out(out.data(), 0, memory->bytes());
  return out;
}
std::vector<int> held_ints(const UOp& buffer) {
  std::vector<int> out;
  for (const Bits b : array_of(buffer).data)
    out.push_back(static_cast<int>(bits_to_int(buffer.dtype(), b)));
  return out;
}

Bindings bindings_of(const UOp& graph) {
  Bindings out;
  for (const UOp& u : toposort(graph))
    if (u.is(Op::Buffer) && memory_of(u)) out.emplace(u, array_of(u));
  return out;
}

std::string difference(const Array& expected, const Array& got) {
  return koine::difference(BoundedArray{expected, {}}, got);
}

Array run_on(const UOp& value, const std::string& device) {
  ran_on(device);
  Options o = options();
  o.device = device;
  const OptionScope scope(o);
  // Leaves stay where they are; the result goes to the device, and so do the kernels.
  Substitution moved;
  for (const UOp& u : toposort(value))
    if (u.is(Op::Buffer) && memory_of(u)) {
      const auto memory = memory_of(u);
      moved.emplace(u, buffer_from_host(u.shape(), u.dtype(), device, memory->data()));
    }
  const UOp local = moved.empty() ? value : substitute(value, moved);
  const UOp root = local.is(Op::Buffer) ? contiguous(local) : local;
  return array_of(realize({UOp::make(Op::Contiguous, {root}, MarkArg{Mark::Copies})})[0]);
}

Array run_with(const UOp& value, const Settings& settings) {
  const OptionScope scope(options_of(settings));
  if (!settings.warm) clear_compile_cache();
  if (settings.warm) (void)run_on(value, settings.device);
  return run_on(value, settings.device);
}

namespace {

// Whether the device CL has its turn: in one of KOINE_TEST_CL cases; never without that. A kernel
// costs its driver 50 ms and more.
bool turn_of_cl(std::mt19937_64 random) {
  static const char* const text = std::getenv("KOINE_TEST_CL");
  if (text == nullptr || random() % std::max(1ULL, std::strtoull(text, nullptr, 10)) != 0)
    return false;
  static const bool here = [] {
    try {
      (void)device_runtime("CL");
      return true;
    } catch (const Error& e) {
      fmt::print("KOINE_TEST_CL: {}\n", e.what());
      return false;
    }
  }();
  return here;
}

}  // namespace

std::string difference_anywhere(const UOp& value, std::mt19937_64& random, const Execute& execute) {
  const bool with_cl = turn_of_cl(random);
  const Bindings bindings = bindings_of(value);
  for (const bool strict : tested_modes()) {
    Options mode = options();  // what a sum of one-hot products means depends on it
    mode.strict = strict;
    const OptionScope scope(mode);
    const Array expected = interpret(value, bindings);
    const BoundedArray bounded =
        strict ? BoundedArray{expected, {}} : interpret_bounded(value, bindings);
    // Where Functions are replaced by their bodies nothing changes.
    if (const std::string d = difference(expected, bounded.value); !d.empty())
      return "inlined, in the interpreter: " + d;
    // Where default mode takes no liberty one device, drawn at random, will do.
    const bool both = strict || has_liberties(value);
    const bool first = random() % 2 == 0;
    std::vector<std::string> devices;
    if (both || first) devices.emplace_back("INTERP");
    if (both || !first) devices.emplace_back("CPU");
    if (with_cl) devices.emplace_back("CL");
    for (const std::string& device : devices) {
      const Settings settings = draw_settings(random, device, strict);
      std::string problem;
      try {
        problem = difference(bounded, execute(value, settings));
      } catch (const std::exception& e) {
        problem = "exception: " + std::string(e.what()).substr(0, 600);
      }
      if (!problem.empty()) return text_of(settings) + ": " + problem;
    }
  }
  return "";
}

void expect_same_everywhere(const UOp& value) {
  std::mt19937_64 random = settings_random(value);
  const std::string d = difference_anywhere(value, random);
  EXPECT_EQ(d, "") << "KOINE_TEST_SEED=" << test_seed() << ", of\n" << to_text(value);
}

void expect_near(const Tensor& got, const Tensor& want, const std::string& what, double tolerance) {
  ASSERT_TRUE(got.shape() == want.shape()) << what << ": " << got << " and " << want;
  const auto a = got.tolist<double>(), b = want.tolist<double>();
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::fabs(a[i] - b[i]), tolerance * std::max(1.0, std::fabs(b[i])))
        << what << ": element " << i << " is " << a[i] << " instead of " << b[i];
}

void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& e) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << "the message is: " << e.what();
  }
}

int64_t kernel_count(const std::vector<Tensor>& values) {
  std::vector<UOp> nodes;
  for (const Tensor& t : values) nodes.push_back(t.uop());
  return static_cast<int64_t>(schedule(nodes).size());
}

Array random_array(std::mt19937_64& random, const std::vector<int64_t>& sizes, DType dtype) {
  Array out{dtype, sizes, {}, {}};
  for (int64_t i = out.numel(); i > 0; --i) {
    Bits bits;
    const uint64_t kind = random() % 8;
    if (is_float(dtype)) {
      const double special[] = {0.0, -0.0, inf, -inf, std::nan(""), 1.0, -1.0, 1e-40};
      double v = std::ldexp(static_cast<double>(static_cast<int64_t>(random() % 4001) - 2000),
                            static_cast<int>(random() % 12) - 10);
      if (kind == 0) v = special[random() % 8];
      bits = double_to_bits(dtype, v);
    } else if (dtype == DType::Bool) {
      bits = random() % 2;
    } else {
      const IntegerRange r = integer_range(dtype);
      bits = kind == 0   ? int_to_bits(dtype, static_cast<int64_t>(random() % 2 ? r.low : r.high))
             : kind == 1 ? int_to_bits(dtype, static_cast<int64_t>(random()))
                         : int_to_bits(dtype, static_cast<int64_t>(random() % 21) -
                                                  (is_signed(dtype) ? 10 : 0));
    }
    out.data.push_back(bits);
  }
  return out;
}

std::vector<std::byte> bytes_of(const Array& array) {
  const auto item = static_cast<size_t>(item_size(array.dtype));
  std::vector<std::byte> out(array.data.size() * item + 8);
  for (size_t i = 0; i < array.data.size(); ++i)
    write_element(out.data(), array.dtype, static_cast<int64_t>(i), array.data[i]);
  return out;
}

UOp random_leaf(std::mt19937_64& random, const std::vector<int64_t>& sizes, DType dtype) {
  const std::vector<std::byte> data = bytes_of(random_array(random, sizes, dtype));
  return buffer_from_host(shape_of(sizes), dtype, "CPU", data.data());
}

UOp leaf(const std::vector<int64_t>& sizes, DType dtype, uint64_t salt) {
  std::mt19937_64 random(test_seed() + salt * 7919 + static_cast<uint64_t>(dtype));
  return random_leaf(random, sizes, dtype);
}

bool is_sanitized() { return &__sanitizer_get_current_allocated_bytes != nullptr; }

int64_t memory_in_use() {
  if (is_sanitized()) return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * 4096;
}

std::vector<DType> stored_dtypes() {
  std::vector<DType> out;
  for (int i = 1; i < dtype_count; ++i)
    if (static_cast<DType>(i) != DType::Index) out.push_back(static_cast<DType>(i));
  return out;
}

uint64_t test_seed() {
  const char* text = std::getenv("KOINE_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
}
int64_t test_cases(int64_t usual) {
  const char* text = std::getenv("KOINE_TEST_CASES");
  if (text != nullptr) return std::strtoll(text, nullptr, 10);
  const int64_t part = is_sanitized() ? 20 : options().verify < 3 ? 1 : 5;
  return std::min(usual, std::max<int64_t>(usual / part, 20));
}

std::vector<bool> tested_modes() {
  const char* text = std::getenv("KOINE_TEST_FP");
  if (text != nullptr && std::string_view(text) == "strict") return {true};
  return {true, false};
}

std::vector<int64_t> device_counts() {
  if (const char* text = std::getenv("KOINE_TEST_DEVICES"))
    return {std::strtoll(text, nullptr, 10)};
  if (is_sanitized() || options().verify >= 3) return {3};
  return {2, 3, 4, 8};
}

}  // namespace koine::test
