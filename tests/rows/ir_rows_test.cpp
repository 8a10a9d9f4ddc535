// Rows A and P on every backend: sizes, address spaces, bit patterns, shapes; and what derivation
// refuses.
#include <numeric>
#include <unordered_map>

#include "c_text.hpp"
#include "graphs.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

// Bit for bit, NaN payloads included.
void expect_equal_bits(const std::vector<Bits>& expected, const std::vector<Bits>& got,
                       const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(expected[i], got[i]) << what << ", element " << i;
}

UOp leaf_of_bits(DType d, const std::vector<Bits>& bits) {
  std::vector<std::byte> data(bits.size() * 8);
  for (size_t i = 0; i < bits.size(); ++i)
    write_element(data.data(), d, static_cast<int64_t>(i), bits[i]);
  return buffer_from_host(shape_of({static_cast<int64_t>(bits.size())}), d, "CPU", data.data());
}

std::vector<Bits> telling_bits(DType d) {
  const int bits = dtype_info(d).bits;
  std::vector<Bits> out;
  if (d == DType::Bool) return {0, 1};
  if (bits <= 16) {
    for (Bits b = 0; b < Bits{1} << bits; ++b) out.push_back(b);
    return out;
  }
  const Bits ones = bits == 64 ? ~Bits{0} : (Bits{1} << bits) - 1, sign = Bits{1} << (bits - 1);
  const Bits nan = d == DType::Float64 ? 0x7ff8000000001234 : 0x7fc01234;
  for (const Bits b : {Bits{0}, Bits{1}, ones, ones - 1, sign, sign + 1, sign - 1, nan, nan | sign,
                       Bits{0x3f800000}, Bits{0x3ff0000000000000}})
    out.push_back(b & ones);
  return out;
}

}  // namespace

TEST(rows, spec_A3_bytes_of_buffers) {
  for (const DType d : stored_dtypes()) {
    EXPECT_EQ(memory_of(Tensor::full({0, 5}, 0, d).realize().uop())->bytes(), 0);
    EXPECT_EQ(memory_of(Tensor::full({3, 5}, 0, d).realize().uop())->bytes(), 15 * item_size(d));
    EXPECT_EQ(memory_of(Tensor::full({}, 0, d).realize().uop())->bytes(), item_size(d));
    Options o = options();
    o.device = "NULL";  // its memory is described, not there
    const OptionScope scope(o);
    const int64_t many = (int64_t{1} << 31) + 3;
    const UOp b = new_buffer(shape_of({many}), d, Device("NULL"));
    EXPECT_EQ(b.numel() * item_size(b.dtype()), many * item_size(d));
  }
  const UOp huge = new_buffer(shape_of({1LL << 40, 1LL << 40}), DType::Int8, Device("CPU"));
  expect_error([&] { (void)huge.numel(); }, {"too many elements"});
  expect_error([&] { (void)largest_numel(huge); }, {"too many elements"});
}

// Asked for, and never touched.
TEST(rows, spec_A3_bytes_beyond_2_to_the_32) {
  Options o = options();
  o.poison = false;
  o.memory_limit = int64_t{1} << 36;
  const OptionScope scope(o);
  const int64_t many = (int64_t{1} << 31) + 3;
  const UOp b = buffer_from_host(shape_of({many}), DType::Int32, "CPU", nullptr);
  EXPECT_EQ(memory_of(b)->bytes(), many * 4);
}

// Element 2^31 + 5 of a buffer is a place of its own.
TEST(rows, spec_A3_more_than_2_to_the_31_elements) {
  if (options().poison) GTEST_SKIP() << "filling two gigabytes takes long";
  const int64_t many = (int64_t{1} << 31) + 64;
  const UOp big = buffer_from_host(shape_of({many}), DType::UInt8, "CPU", nullptr);
  ASSERT_EQ(memory_of(big)->bytes(), many);
  memory_of(big)->data()[5] = std::byte{7};
  const UOp part = shrink(big, shape_of({many - 59}), shape_of({3}));
  const UOp written = after(big, {store(part, Tensor::from<uint8_t>({1, 2, 3}).uop())});
  EXPECT_EQ(Tensor(shrink(written, shape_of({many - 58}), shape_of({2}))).tolist<int>(),
            (std::vector<int>{2, 3}));
  EXPECT_EQ(Tensor(index(written, {Tensor::from<int64_t>({many - 59, 5}).uop()})).tolist<int>(),
            (std::vector<int>{1, 7}));
}

// Every bit pattern of every dtype up to 16 bits, and the telling ones of the wider, read and
// written by kernels: as a copy, flipped, under a gate, and behind a Pad.
TEST(rows, spec_A4_bits_pass_through_kernels) {
  CText text;
  for (const bool strict : {true, false}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    for (const DType d : stored_dtypes()) {
      const std::vector<Bits> bits = telling_bits(d);
      const auto n = static_cast<int64_t>(bits.size());
      const UOp x = leaf_of_bits(d, bits);
      std::vector<Bits> reversed(bits.rbegin(), bits.rend()), padded(bits.begin(), bits.end());
      padded.insert(padded.begin(), bits[1]);
      const std::string name(dtype_name(d));
      const UOp back = flip(x, {1}),
                wide = pad(x, shape_of({1}), shape_of({n + 1}), constant_bits(d, bits[1]));
      expect_equal_bits(bits, interpret(contiguous(x), bindings_of(x)).data, name);
      if (d != DType::Bool) text.add(bitcast(back, storage_uint(d)));  // so that NaNs are compared
      for (const char* device : {"CPU", "INTERP"}) {
        expect_equal_bits(bits, run_on(x, device).data, name + " on " + device);
        expect_equal_bits(reversed, run_on(back, device).data, name + " flipped on " + device);
        expect_equal_bits(padded, run_on(wide, device).data, name + " padded on " + device);
      }
    }
  }
  text.check();
}

TEST(rows, spec_A4_constants_keep_their_bits_in_kernels) {
  for (const DType d : stored_dtypes()) {
    std::vector<Bits> bits = telling_bits(d);
    if (dtype_info(d).bits == 16) {  // the corners, and a sample
      std::vector<Bits> some;
      for (const Bits b : {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0x7f80, 0xff80, 0x7fc3, 0xffff,
                           0x0001, 0x8001, 0x3c00, 0x7bff})
        some.push_back(b);
      for (size_t i = 0; i < bits.size(); i += 3001) some.push_back(bits[i]);
      bits = some;
    }
    std::vector<UOp> constants;
    for (const Bits b : bits) constants.push_back(constant_bits(d, b));
    const UOp all = stack(constants);
    const std::string name(dtype_name(d));
    CText text;
    for (const char* device : {"CPU", "INTERP"})
      expect_equal_bits(bits, run_on(all, device).data, name + " on " + device);
    text.add(all);
    text.check();
    // One for all elements.
    for (size_t i = 0; i < bits.size(); i += 1 + bits.size() / 20)
      expect_equal_bits(
          {bits[i], bits[i], bits[i]},
          run_on(expand(reshape(constants[i], shape_of({1})), shape_of({3})), "CPU").data, name);
  }
}

// --- P2: shapes, by rules written down anew ------------------------------------------------------

namespace {

using Sizes = std::vector<int64_t>;

Sizes broadcast_of(const std::vector<Sizes>& shapes) {
  Sizes out;
  for (const Sizes& s : shapes) out.resize(std::max(out.size(), s.size()), 1);
  for (const Sizes& s : shapes)
    for (size_t k = 0; k < s.size(); ++k) {
      int64_t& o = out[out.size() - 1 - k];
      if (s[s.size() - 1 - k] != 1) o = s[s.size() - 1 - k];
    }
  return out;
}

Sizes constants_of(const UOp& shape) {
  Sizes out;
  for (const UOp& d : shape.src()) out.push_back(const_int(d));
  return out;
}

Sizes shape_by_rule(const UOp& u, const std::vector<Sizes>& src) {
  if (is_elementwise(u.op())) return broadcast_of(src);
  switch (u.op()) {
    case Op::Param:
    case Op::Buffer:
      return constants_of(u.src(0));
    case Op::Const:
      return {};
    case Op::Reshape:
    case Op::Expand:
      return constants_of(u.src(1));
    case Op::Pad:
    case Op::Shrink:
      return constants_of(u.src(2));
    case Op::Permute: {
      Sizes out;
      for (const int64_t k : u.as<Ints>()) out.push_back(src[0][static_cast<size_t>(k)]);
      return out;
    }
    case Op::Reduce: {
      Sizes out = src[0];
      for (const int64_t k : u.as<ReduceArg>().axes) out[static_cast<size_t>(k)] = 1;
      return out;
    }
    case Op::Stack: {
      Sizes out = src.empty() ? Sizes() : src[0];
      out.insert(out.begin(), static_cast<int64_t>(src.size()));
      return out;
    }
    case Op::Index: {
      Sizes out;
      for (size_t k = 1; k < src.size(); ++k) out.insert(out.end(), src[k].begin(), src[k].end());
      out.insert(out.end(), src[0].begin() + static_cast<std::ptrdiff_t>(src.size()) - 1,
                 src[0].end());
      return out;
    }
    case Op::Replicated: {
      Sizes out = src[0];
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(u.as<int64_t>()));
      return out;
    }
    case Op::GetTuple: {  // of a call: what the body says, whose parameters are the arguments' like
      const UOp& body = u.src(0).src(0);
      return body.src(static_cast<size_t>(u.as<int64_t>())).sizes();
    }
    case Op::Bitcast: {
      Sizes out = src[0];
      const int64_t from = item_size(u.src(0).dtype()), to = item_size(u.dtype());
      if (from != to) out.back() = out.back() * from / to;
      return out;
    }
    case Op::Flip:
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Detach:
    case Op::Fence:
    case Op::Assume:
    case Op::Load:
    case Op::After:
      return src[0];
    default:
      ADD_FAILURE() << "no rule for " << op_name(u.op());
      return {};
  }
}

}  // namespace

TEST(rows, spec_P2_shapes_of_random_graphs) {
  const int64_t cases = test_cases(100000);
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 500 + static_cast<uint64_t>(i));
    Features features = Features::all();
    features.raw_bytes = false;
    const UOp graph = random_graph(random, features);
    std::unordered_map<UOp, Sizes> shapes;
    for (const UOp& u : toposort(graph)) {
      if (u.dtype() == DType::Void || u.is(Op::Function) ||
          (u.is(Op::Stack) && u.dtype() == DType::Index))
        continue;
      std::vector<Sizes> src;
      for (const UOp& s : u.src())
        if (const auto it = shapes.find(s); it != shapes.end()) src.push_back(it->second);
      const Sizes wanted = shape_by_rule(u, src);
      ASSERT_EQ(u.sizes(), wanted)
          << "KOINE_TEST_SEED=" << test_seed() + 500 << " case " << i << "\n"
          << to_text(u);
      shapes.emplace(u, wanted);
    }
    const Array real = interpret(graph, bindings_of(graph));
    ASSERT_EQ(real.sizes, graph.sizes());
    ASSERT_EQ(static_cast<int64_t>(real.data.size()), graph.numel())
        << "as many elements as the shape says\n"
        << to_text(graph);
  }
}

// --- what derivation refuses -----------------------------------------------------------------

TEST(rows, spec_B6_spec_B15_spec_B16_ill_typed_memory_and_movement) {
  const UOp f = param(0, shape_of({4}), DType::Float32), i = param(1, shape_of({4}), DType::Int32),
            b = param(2, shape_of({4}), DType::Bool);
  expect_error([&] { (void)shrink(f, shape_of({-1}), shape_of({2})); },
               {"Shrink", "axis 0", "offset -1"});
  expect_error([&] { (void)shrink(f, shape_of({3}), shape_of({2})); }, {"Shrink", "axis 0"});
  expect_error([&] { (void)shrink(f, shape_of({1}), shape_of({-1})); }, {"Shrink", "axis 0"});
  expect_error([&] { (void)pad(f, shape_of({-1}), shape_of({6})); }, {"Pad", "axis 0"});
  expect_error([&] { (void)pad(f, shape_of({3}), shape_of({6})); }, {"Pad", "axis 0"});
  EXPECT_EQ(shrink(f, shape_of({4}), shape_of({0})).numel(), 0) << "nothing, from the end";
  expect_error([&] { (void)load(f, i, b); }, {"Load", "alt", "int32", "float32"});
  expect_error([&] { (void)load(f, f, i); }, {"Load", "gate", "int32", "bool"});
  expect_error([&] { (void)store(f, f, i); }, {"Store", "gate", "int32", "bool"});
  expect_error([&] { (void)store(f, f, f); }, {"Store", "gate", "float32", "bool"});
  EXPECT_EQ(load(f, f, b).dtype(), DType::Float32);
  EXPECT_EQ(store(f, f, b).dtype(), DType::Void);
}

TEST(rows, spec_B11_spec_F3_ill_formed_reduces_and_functions) {
  const UOp x = param(0, shape_of({2, 3}), DType::Float32);
  auto reduced = [&](const Ints& axes) {
    return UOp::make(Op::Reduce, {x}, ReduceArg{Op::Add, axes});
  };
  expect_error([&] { (void)reduced({2}); }, {"Reduce", "axis 2", "(2, 3)"});
  expect_error([&] { (void)reduced({-1}); }, {"Reduce", "axis -1", "(2, 3)"});
  expect_error([&] { (void)UOp::make(Op::Reduce, {x}, ReduceArg{Op::Xor, {0}}); },
               {"Reduce", "Add, Max or Mul"});
  expect_error([&] { (void)UOp::make(Op::Reduce, {x, x}, ReduceArg{Op::Add, {0}}); },
               {"Reduce", "shape (2, 3)"});
  expect_error([&] { (void)reduce(Op::Add, x, {1}, index_const(1)); },
               {"Reduce", "Range", "float32", "index"});
  const UOp r = range(0, index_const(4), AxisType::Reduce);
  expect_error([&] { (void)reduce_ranges(Op::Add, r, {r}, index_const(1)); }, {"Reduce", "index"});
  EXPECT_EQ(reduced({1}).sizes(), (Sizes{2, 1}));
  EXPECT_EQ(reduce(Op::Add, x, {1}, reduced({1})).sizes(), (Sizes{2, 1}));
  expect_error([&] { (void)function(x, std::vector<UOp>{x}); }, {"Function", "Tuple", "Param"});
  expect_error([&] { (void)function(add(x, x), std::vector<UOp>{x}); },
               {"Function", "Tuple", "Add"});
}

TEST(rows, spec_B5_no_store_writes_invalid) {
  const UOp out = param(0, shape_of({4}), DType::Float32);
  const UOp i = range(0, index_const(4), AxisType::Loop);
  auto kernel = [&](const UOp& value) {
    return sink(std::vector<UOp>{end(store(index(out, {i}), value), std::vector<UOp>{i})});
  };
  EXPECT_NO_THROW(verify(kernel(constant(DType::Float32, 1)), VerifyLevel::Kernel, "test"));
  try {
    verify(kernel(invalid(DType::Float32)), VerifyLevel::Kernel, "test");
    ADD_FAILURE() << "a Store of Invalid passed";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("no store writes Invalid"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("after test"), std::string::npos) << e.what();
  }
  // Nor does any kernel of a padded value, whatever is done with it.
  const UOp x = leaf({3}), padded = pad(x, shape_of({1}), shape_of({6}));
  for (const UOp& v :
       {padded, add(padded, padded), maximum(padded, constant(DType::Float32, 0)),
        where(lt(padded, constant(DType::Float32, 0)), padded, neg(padded)), flip(padded, {1}),
        reshape(padded, shape_of({2, 3})), stack(std::vector<UOp>{padded, padded})})
    for (const Kernel& k : schedule({v}))
      for (const UOp& u : toposort(k.ast)) EXPECT_FALSE(is_invalid(u)) << to_text(k.ast);
}

}  // namespace koine::test
