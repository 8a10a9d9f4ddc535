// The guide to UOps as a reader would type it in, mended as amendments C12 to C16 say.
#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "backends.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "gradient_check.hpp"
#include "guide.hpp"
#include "koine/compat/alu.hpp"
#include "koine/compat/uops.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

using namespace compat;
using test::addition_graph;
using test::dot_graph;
using test::expect_error;
using test::loop_graph;
using test::store_graph;

constexpr DType i32 = DType::Int32;
constexpr DType f32 = DType::Float32;

// What a kernel of int32 parameters leaves in them: equal on the interpreter, as machine code and
// as C text that the system's compiler takes, each in memory that ends at a page nobody may touch.
std::vector<std::vector<int32_t>> run(
    const UOpGraph& g, std::vector<std::vector<int32_t>> data,
    const std::unordered_map<std::string, int64_t>& variables = {}) {
  std::vector<int64_t> values;  // by name, of the one or two Variables of a test
  for (const auto& [name, value] :
       std::map<std::string, int64_t>(variables.begin(), variables.end()))
    values.push_back(value);
  auto with = [&](auto&& launch) {
    std::vector<std::unique_ptr<test::GuardedMemory>> memory;
    std::vector<std::byte*> addresses;
    std::vector<int64_t> bytes;
    for (const auto& d : data) {
      bytes.push_back(static_cast<int64_t>(d.size() * sizeof(int32_t)));
      memory.push_back(std::make_unique<test::GuardedMemory>(bytes.back()));
      std::memcpy(memory.back()->data(), d.data(), d.size() * sizeof(int32_t));
      addresses.push_back(memory.back()->data());
    }
    launch(addresses, bytes);
    std::vector<std::vector<int32_t>> out = data;
    for (size_t i = 0; i < out.size(); ++i)
      std::memcpy(out[i].data(), addresses[i], out[i].size() * sizeof(int32_t));
    return out;
  };
  const auto interpreted = with([&](auto& addresses, auto& bytes) {
    interpret_linear(lower(g, "k", generic_target(true)).linear, {addresses, bytes, variables});
  });
  const auto compiled =
      with([&](auto& addresses, auto& bytes) { compile(g, "k")->run({addresses, bytes, values}); });
  const auto as_c = with([&](auto& addresses, auto&) {
    const test::CLibrary library(render("c", "k", lower(g, "k", generic_target(true)).linear));
    std::vector<void*> pointers(addresses.begin(), addresses.end());
    library.function("k")(pointers.data(), values.data(), 0);
  });
  for (const char* backend : {"INTERP", "CPU"}) test::ran_on(backend);
  EXPECT_EQ(interpreted, compiled) << g.text();
  EXPECT_EQ(interpreted, as_c) << g.text();
  return interpreted;
}

// --- the snippets

// `c0 = g.add(UOps.CONST, dtypes.int, arg=10)`
TEST(builder, spec_H1_a_constant_has_a_dtype_and_a_number) {
  UOpGraph g;
  const auto c0 = g.add(UOps::CONST, {.dtype = i32, .arg = 10});
  EXPECT_EQ(c0->dtype, i32);
  EXPECT_EQ(std::get<int64_t>(c0->arg.value), 10);
  EXPECT_EQ(g.rows().size(), 1u);
}

// A kernel as text of each language that the guide names, without what all kernels begin with.
// Languages differ in what int32 is called, and Metal in what it says of parameters.
struct Texts {
  std::string c, opencl, cuda, metal;
};
void expect_texts(const UOpGraph& g, const Texts& texts) {
  EXPECT_EQ(uops_to_cstyle("C", "tester", g),
            "void tester(void** buffers, const int64_t* variables, int64_t thread) {\n" + texts.c);
  EXPECT_EQ(uops_to_cstyle("OpenCL", "tester", g), "__kernel void tester(" + texts.opencl);
  for (const char* language : {"CUDA", "HIP"})
    EXPECT_EQ(uops_to_cstyle(language, "tester", g),
              "extern \"C\" __global__ void tester(" + texts.cuda);
  EXPECT_EQ(uops_to_cstyle("Metal", "tester", g), "kernel void tester(" + texts.metal);
}
const std::string metal_indices =
    "uint3 gid [[threadgroup_position_in_grid]], uint3 lid [[thread_position_in_threadgroup]]) {\n";

TEST(builder, spec_H2_spec_H3_the_text_of_a_loop) {
  const auto loop = [](const std::string& type) {
    return fmt::format("  for ({} ridx0 = 0; ridx0 < 10; ++ridx0) {{\n  }}\n}}\n", type);
  };
  expect_texts(loop_graph(), {.c = loop("int64_t"),
                              .opencl = ") {\n" + loop("long"),
                              .cuda = ") {\n" + loop("long long"),
                              .metal = metal_indices + loop("long")});
  EXPECT_TRUE(run(loop_graph(), {}).empty());
}

TEST(builder, spec_H2_spec_H4_spec_amend_12_a_constant_is_stored) {
  EXPECT_EQ(run(store_graph(), {{-1}}), (std::vector<std::vector<int32_t>>{{10}}));
  expect_texts(store_graph(), {.c = "  int32_t* data0 = buffers[0];\n"
                                    "  data0[0] = 10;\n}\n",
                               .opencl = "__global int* data0) {\n  data0[0] = 10;\n}\n",
                               .cuda = "int* data0) {\n  data0[0] = 10;\n}\n",
                               .metal = "device int* data0 [[buffer(0)]], " + metal_indices +
                                        "  data0[0] = 10;\n}\n"});
}

TEST(builder, spec_H2_spec_H4_spec_amend_15_the_first_elements_are_added) {
  EXPECT_EQ(run(addition_graph(false), {{0}, {3}, {INT32_MAX}})[0],
            (std::vector<int32_t>{INT32_MIN + 2}));
  const auto sum = [](const std::string& word) {
    return fmt::format(
        "  int v0 = data1[0];\n  int v1 = data2[0];\n  int v2 = (int)(({0})v0 + ({0})v1);\n"
        "  data0[0] = v2;\n}}\n",
        word);
  };
  expect_texts(
      addition_graph(false),
      {.c = "  int32_t* data0 = buffers[0];\n"
            "  const int32_t* data1 = buffers[1];\n"
            "  int32_t v0 = data1[0];\n"
            "  const int32_t* data2 = buffers[2];\n"
            "  int32_t v1 = data2[0];\n"
            "  int32_t v2 = (int32_t)((uint32_t)v0 + (uint32_t)v1);\n"
            "  data0[0] = v2;\n"
            "}\n",
       .opencl = "__global int* data0, __global const int* data1, __global const int* data2) {\n" +
                 sum("uint"),
       .cuda = "int* data0, const int* data1, const int* data2) {\n" + sum("unsigned int"),
       .metal = "device int* data0 [[buffer(0)]], device const int* data1 [[buffer(1)]], "
                "device const int* data2 [[buffer(2)]], " +
                metal_indices + sum("uint")});
}

// The threads of a SPECIAL are steps of a loop on a CPU: each index once.
TEST(builder, spec_H4_spec_H8_spec_amend_13_each_thread_adds_its_elements) {
  std::vector<int32_t> a(10), b(10), sum(10);
  for (int i = 0; i < 10; ++i) {
    a[static_cast<size_t>(i)] = i * i;
    b[static_cast<size_t>(i)] = 100 - i;
    sum[static_cast<size_t>(i)] = i * i + 100 - i;
  }
  EXPECT_EQ(run(addition_graph(true), {std::vector<int32_t>(10), a, b})[0], sum);
}

// The guide's last example stores to data0+0 from ten threads (C13).
TEST(builder, spec_H2_spec_H8_spec_amend_14_a_thread_is_the_index_of_the_language) {
  const auto sum = [](const std::string& index, const std::string& word) {
    return fmt::format(
        "  const {0};\n  int v0 = data1[gidx0];\n  int v1 = data2[gidx0];\n"
        "  int v2 = (int)(({1})v0 + ({1})v1);\n  data0[gidx0] = v2;\n}}\n",
        index, word);
  };
  expect_texts(
      addition_graph(true),
      {.c = "  int32_t* data0 = buffers[0];\n"
            "  const int32_t* data1 = buffers[1];\n"
            "  const int32_t* data2 = buffers[2];\n"
            "  for (int64_t idx0 = 0; idx0 < 10; ++idx0) {\n"
            "    int32_t v0 = data1[idx0];\n"
            "    int32_t v1 = data2[idx0];\n"
            "    int32_t v2 = (int32_t)((uint32_t)v0 + (uint32_t)v1);\n"
            "    data0[idx0] = v2;\n"
            "  }\n"
            "}\n",
       .opencl = "__global int* data0, __global const int* data1, __global const int* data2) {\n" +
                 sum("long gidx0 = get_group_id(0)", "uint"),
       .cuda = "int* data0, const int* data1, const int* data2) {\n" +
               sum("long long gidx0 = blockIdx.x", "unsigned int"),
       .metal = "device int* data0 [[buffer(0)]], device const int* data1 [[buffer(1)]], "
                "device const int* data2 [[buffer(2)]], " +
                metal_indices + sum("long gidx0 = gid.x", "uint")});
}

// Run with the words of each language (tests/support/shim); OpenCL in tests/cl.
TEST(builder,
     spec_H2_spec_H3_spec_H4_spec_H8_spec_amend_14_the_kernels_of_the_guide_run_in_each_language) {
  for (const char* language : {"cuda", "hip", "metal"}) test::expect_guide_computes(language);
}

// gidx0 and lidx0 are what they are called, in whatever order they were added; a group has an end.
TEST(builder, spec_H8_groups_have_threads) {
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto first = g.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 3}});
  const auto second = g.add(UOps::SPECIAL, {.dtype = i32, .arg = {1, "gidx1", 5}});
  const auto thread = g.add(UOps::SPECIAL, {.dtype = i32, .arg = {2, "lidx0", 4}});
  const auto four = g.add(UOps::CONST, {.dtype = i32, .arg = 4});
  const auto five = g.add(UOps::CONST, {.dtype = i32, .arg = 5});
  auto alu = [&](auto op, auto a, auto b) {
    return g.add(UOps::ALU, {.dtype = i32, .vin = {a, b}, .arg = op});
  };
  const auto row = alu(BinaryOps::ADD, alu(BinaryOps::MUL, first, five), second);
  const auto at = alu(BinaryOps::ADD, alu(BinaryOps::MUL, row, four), thread);
  g.add(UOps::STORE, {.vin = {out, at, at}});
  std::vector<int32_t> expected(60);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(run(g, {std::vector<int32_t>(60, -1)})[0], expected);
  const UOp linear = lower(g, "k", text_target("cuda", true)).linear;
  const Signature signature = signature_of(linear);
  EXPECT_EQ(const_int(signature.grid[0]), 3);
  EXPECT_EQ(const_int(signature.grid[1]), 5);
  EXPECT_EQ(const_int(signature.group[0]), 4);
  for (const char* device : {"SIMT"}) {
    std::vector<int32_t> got(60, -1);
    std::vector<std::byte*> addresses{reinterpret_cast<std::byte*>(got.data())};
    std::vector<int64_t> bytes{240};
    compile(g, "k", device)->run({addresses, bytes, {}});
    EXPECT_EQ(got, expected) << device;
  }
  UOpGraph many;
  (void)many.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "lidx0", 64}});
  (void)many.add(UOps::SPECIAL, {.dtype = i32, .arg = {1, "lidx1", 32}});
  expect_error([&] { (void)uops_to_cstyle("CUDA", "tester", many); },
               {"row 1 (SPECIAL)", "a group would have 2048 threads, the most are 1024"});
}

TEST(builder, spec_H8_spec_amend_13_threads_that_store_to_one_place_are_refused) {
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto gidx = g.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 10}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  g.add(UOps::STORE, {.vin = {out, zero, gidx}});
  expect_error([&] { (void)kernel(g); },
               {"row 3 (STORE)", "the 10 threads of gidx0 all store to one place of data0"});
}

TEST(builder, spec_W2_an_accumulator_is_a_register_of_the_kernel) {
  EXPECT_EQ(run(dot_graph(), {{0}, {3, 4}, {5, -6}})[0], (std::vector<int32_t>{-9}));
  // The linear program, listed, has the rows that it is of.
  const UOp linear = lower(dot_graph(), "dot", generic_target(true)).linear;
  EXPECT_EQ(listing(linear).text(), dot_graph().text());
}

TEST(builder, spec_C16_a_loop_begins_at_its_start) {
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto n = g.add(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"n", 1, 8}});
  const auto two = g.add(UOps::CONST, {.dtype = i32, .arg = 2});
  const auto stop = g.add(UOps::ALU, {.dtype = i32, .vin = {n, two}, .arg = BinaryOps::ADD});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {two, stop}});
  const auto square = g.add(UOps::ALU, {.dtype = i32, .vin = {loop, loop}, .arg = BinaryOps::MUL});
  g.add(UOps::STORE, {.vin = {out, loop, square}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  for (const int64_t count : {1, 3, 8}) {
    std::vector<int32_t> expected(10, -1);
    for (int64_t i = 2; i < count + 2; ++i)
      expected[static_cast<size_t>(i)] = static_cast<int32_t>(i * i);
    EXPECT_EQ(run(g, {std::vector<int32_t>(10, -1)}, {{"n", count}})[0], expected);
  }
  // One that ends before it begins turns not once.
  UOpGraph none;
  const auto data = none.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true, 4}});
  const auto five = none.add(UOps::CONST, {.dtype = i32, .arg = 5});
  const auto three = none.add(UOps::CONST, {.dtype = i32, .arg = 3});
  const auto empty = none.add(UOps::LOOP, {.dtype = i32, .vin = {five, three}});
  none.add(UOps::STORE, {.vin = {data, three, five}});
  none.add(UOps::ENDLOOP, {.vin = {empty}});
  EXPECT_EQ(run(none, {{1, 2, 3, 4}})[0], (std::vector<int32_t>{1, 2, 3, 4}));
}

// out[i] = an operation of x[i], y[i] and z[i], or of the first of them, for each of `count`.
UOpGraph each_by(const Operation& operation, DType dtype, int64_t count) {
  UOpGraph g;
  std::vector<RowRef> memory, values;
  for (const char* name : {"data0", "data1", "data2", "data3"})
    memory.push_back(g.add(
        UOps::DEFINE_GLOBAL,
        {.dtype = dtype, .arg = {static_cast<int64_t>(memory.size()), name, memory.empty()}}));
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto end = g.add(UOps::CONST, {.dtype = i32, .arg = count});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, end}});
  const compat::Arg arg = operation;
  for (size_t i = 0; i < operand_count(arg); ++i)
    values.push_back(g.add(UOps::LOAD, {.dtype = dtype, .vin = {memory[i + 1], loop}}));
  if (names(arg, TernaryOps::WHERE)) {
    const auto none = g.add(UOps::CONST, {.dtype = dtype, .arg = 0});
    values[0] =
        g.add(UOps::ALU, {.dtype = DType::Bool, .vin = {values[0], none}, .arg = BinaryOps::CMPNE});
  }
  const DType type = is_comparison(arg) ? DType::Bool : dtype;
  RowRef result = g.add(UOps::ALU, {.dtype = type, .vin = values, .arg = arg});
  if (type != dtype) result = g.add(UOps::CAST, {.dtype = dtype, .vin = {result}});
  g.add(UOps::STORE, {.vin = {memory[0], loop, result}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  return g;
}

TEST(builder, spec_H5_operations_of_integers) {
  using Of = int32_t (*)(int32_t, int32_t, int32_t);
  const std::vector<std::pair<Operation, Of>> table{
      {UnaryOps::NEG, [](auto a, auto, auto) { return -a; }},
      {BinaryOps::ADD, [](auto a, auto b, auto) { return a + b; }},
      {BinaryOps::SUB, [](auto a, auto b, auto) { return a - b; }},
      {BinaryOps::MUL, [](auto a, auto b, auto) { return a * b; }},
      {BinaryOps::DIV, [](auto a, auto b, auto) { return (a - ((a % b) + b) % b) / b; }},
      {BinaryOps::MOD, [](auto a, auto b, auto) { return ((a % b) + b) % b; }},
      {BinaryOps::MAX, [](auto a, auto b, auto) { return a > b ? a : b; }},
      {BinaryOps::CMPLT, [](auto a, auto b, auto) { return int32_t{a < b}; }},
      {BinaryOps::CMPEQ, [](auto a, auto b, auto) { return int32_t{a == b}; }},
      {BinaryOps::CMPNE, [](auto a, auto b, auto) { return int32_t{a != b}; }},
      {BinaryOps::XOR, [](auto a, auto b, auto) { return a ^ b; }},
      {BinaryOps::AND, [](auto a, auto b, auto) { return a & b; }},
      {BinaryOps::OR, [](auto a, auto b, auto) { return a | b; }},
      {BinaryOps::SHL, [](auto a, auto b, auto) { return a << b; }},
      {BinaryOps::SHR, [](auto a, auto b, auto) { return a >> b; }},
      {TernaryOps::MULACC, [](auto a, auto b, auto c) { return a * b + c; }},
      {TernaryOps::WHERE, [](auto a, auto b, auto c) { return a != 0 ? b : c; }},
  };
  const std::vector<int32_t> x{-7, 0, 5, 12, -1, 1000, 3, -12}, y{3, 2, 5, 1, 4, 7, 2, 5},
      z{1, -1, 0, 9, 8, -30, 3, 2};
  for (const auto& [operation, function] : table) {
    std::vector<int32_t> expected;
    for (size_t i = 0; i < x.size(); ++i) expected.push_back(function(x[i], y[i], z[i]));
    const UOpGraph g = each_by(operation, i32, 8);
    EXPECT_EQ(run(g, {std::vector<int32_t>(8, -5), x, y, z})[0], expected) << g.text();
  }
}

TEST(builder, spec_H5_operations_of_floats) {
  using Of = double (*)(double, double, double);
  const std::vector<std::pair<Operation, Of>> table{
      {UnaryOps::EXP2, [](auto a, auto, auto) { return std::exp2(a); }},
      {UnaryOps::LOG2, [](auto a, auto, auto) { return std::log2(a); }},
      {UnaryOps::SIN, [](auto a, auto, auto) { return std::sin(a); }},
      {UnaryOps::SQRT, [](auto a, auto, auto) { return std::sqrt(a); }},
      {UnaryOps::NEG, [](auto a, auto, auto) { return -a; }},
      {UnaryOps::RECIP, [](auto a, auto, auto) { return 1 / a; }},
      {UnaryOps::TRUNC, [](auto a, auto, auto) { return std::trunc(a); }},
      {BinaryOps::ADD, [](auto a, auto b, auto) { return a + b; }},
      {BinaryOps::SUB, [](auto a, auto b, auto) { return a - b; }},
      {BinaryOps::MUL, [](auto a, auto b, auto) { return a * b; }},
      {BinaryOps::DIV, [](auto a, auto b, auto) { return a / b; }},
      {BinaryOps::MAX, [](auto a, auto b, auto) { return std::max(a, b); }},
      {BinaryOps::CMPLT, [](auto a, auto b, auto) { return a < b ? 1.0 : 0.0; }},
      {TernaryOps::MULACC, [](auto a, auto b, auto c) { return a * b + c; }},
      {TernaryOps::WHERE, [](auto a, auto b, auto c) { return a != 0 ? b : c; }},
  };
  std::vector<float> x{-2.5F, 0, 0.75F, 3.5F, INFINITY}, y{4, -3, 0.5F, 3.5F, 2},
      z{1, 2, -8, 0.25F, 3};
  for (const auto& [operation, function] : table) {
    const UOpGraph g = each_by(operation, f32, 5);
    std::vector<float> out(5, -5);
    std::vector<std::byte*> addresses;
    for (auto* v : {&out, &x, &y, &z}) addresses.push_back(reinterpret_cast<std::byte*>(v->data()));
    compile(g, "k")->run({addresses, std::vector<int64_t>(4, 20), {}});
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = function(x[i], y[i], z[i]);
      if (std::isnan(expected) || std::isinf(expected))
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(out[i]) : out[i] == expected)
            << g.text() << x[i] << " gives " << out[i];
      else
        EXPECT_NEAR(out[i], expected, 1e-6 * (1 + std::abs(expected))) << g.text() << x[i];
    }
  }
}

// sigmoid from the primitives, and a value that is no integer.
TEST(builder, spec_H5_sigmoid_of_primitives) {
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = f32, .arg = {0, "data0", true}});
  const auto in = g.add(UOps::DEFINE_GLOBAL, {.dtype = f32, .arg = {1, "data1", false}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto count = g.add(UOps::CONST, {.dtype = i32, .arg = 7});
  const auto one = g.add(UOps::CONST, {.dtype = f32, .arg = 1});
  const auto scale = g.add(UOps::CONST, {.dtype = f32, .arg = -1.4426950408889634});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, count}});
  const auto x = g.add(UOps::LOAD, {.dtype = f32, .vin = {in, loop}});
  const auto scaled = g.add(UOps::ALU, {.dtype = f32, .vin = {x, scale}, .arg = BinaryOps::MUL});
  const auto power = g.add(UOps::ALU, {.dtype = f32, .vin = {scaled}, .arg = UnaryOps::EXP2});
  const auto sum = g.add(UOps::ALU, {.dtype = f32, .vin = {power, one}, .arg = BinaryOps::ADD});
  const auto y = g.add(UOps::ALU, {.dtype = f32, .vin = {sum}, .arg = UnaryOps::RECIP});
  g.add(UOps::STORE, {.vin = {out, loop, y}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  std::vector<float> values{0, 1, -2, 30, INFINITY, -INFINITY, NAN}, result(7);
  std::vector<std::byte*> addresses{reinterpret_cast<std::byte*>(result.data()),
                                    reinterpret_cast<std::byte*>(values.data())};
  std::vector<int64_t> bytes{28, 28};
  compile(g, "sigmoid")->run({addresses, bytes, {}});
  for (size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(result[i], 1 / (1 + std::exp(-static_cast<double>(values[i]))), 1e-6) << values[i];
  EXPECT_TRUE(std::isnan(result[6]));
}

// The same as nodes: op by op its gradient is that of differences, and so is that one's.
TEST(builder, spec_H5_sigmoid_of_primitives_has_the_gradient_of_differences) {
  const auto sigmoid = [](const Tensor& x) {
    const UOp power = unary(Op::Exp2, mul(x.uop(), constant(DType::Float64, -1.4426950408889634)));
    return Tensor(unary(Op::Recip, add(power, constant(DType::Float64, 1))));
  };
  const Tensor x = test::doubles({40}, 5, -6, 6);
  test::check_gradient(sigmoid, x);
  test::check_second_gradient(sigmoid, x);
}

// --- folding and common rows

TEST(builder, spec_W5_constants_fold_unless_told_not_to) {
  UOpGraph g;
  const auto three = g.add(UOps::CONST, {.dtype = i32, .arg = 3});
  const auto four = g.add(UOps::CONST, {.dtype = i32, .arg = 4});
  const auto seven = g.add(UOps::ALU, {.dtype = i32, .vin = {three, four}, .arg = BinaryOps::ADD});
  EXPECT_EQ(seven->uop, UOps::CONST);
  EXPECT_EQ(std::get<int64_t>(seven->arg.value), 7);
  EXPECT_EQ(g.rows().size(), 3u);
  const auto kept = g.add(
      UOps::ALU, {.dtype = i32, .vin = {three, four}, .arg = BinaryOps::ADD, .simplify = false});
  EXPECT_EQ(kept->uop, UOps::ALU);
  // x + 0 is x; a product with 0 is 0 for integers, and not for floats.
  const auto n = g.add(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"n", 0, 9}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  EXPECT_EQ(g.add(UOps::ALU, {.dtype = i32, .vin = {n, zero}, .arg = BinaryOps::ADD}), n);
  EXPECT_EQ(g.add(UOps::ALU, {.dtype = i32, .vin = {n, zero}, .arg = BinaryOps::MUL}), zero);
  const auto real = g.add(UOps::CAST, {.dtype = f32, .vin = {n}});
  const auto none = g.add(UOps::CONST, {.dtype = f32, .arg = 0});
  EXPECT_EQ(g.add(UOps::ALU, {.dtype = f32, .vin = {real, none}, .arg = BinaryOps::MUL})->uop,
            UOps::ALU);
  // 0 and -0 are two constants.
  EXPECT_NE(g.add(UOps::CONST, {.dtype = f32, .arg = -0.0}),
            g.add(UOps::CONST, {.dtype = f32, .arg = 0.0}));
}

TEST(builder, spec_W5_equal_expressions_are_one_row) {
  UOpGraph g;
  const auto in = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", false}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  EXPECT_EQ(g.add(UOps::CONST, {.dtype = i32, .arg = 0}), zero);
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {in, zero}});
  EXPECT_EQ(g.add(UOps::LOAD, {.dtype = i32, .vin = {in, zero}}), x);
  const Fields square{.dtype = i32, .vin = {x, x}, .arg = BinaryOps::MUL};
  const auto y = g.add(UOps::ALU, square);
  EXPECT_EQ(g.add(UOps::ALU, square), y);
  Fields again = square;
  again.cachable = false;
  EXPECT_NE(g.add(UOps::ALU, again), y);
  EXPECT_EQ(g.rows().size(), 5u);
}

TEST(builder, spec_W5_accumulators_and_loops_are_never_merged) {
  UOpGraph g;
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto ten = g.add(UOps::CONST, {.dtype = i32, .arg = 10});
  const auto a = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, ten}});
  g.add(UOps::ENDLOOP, {.vin = {a}});
  const auto b = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, ten}});
  g.add(UOps::ENDLOOP, {.vin = {b}});
  EXPECT_NE(a, b);
  EXPECT_NE(g.add(UOps::DEFINE_ACC, {.dtype = i32, .arg = 0}),
            g.add(UOps::DEFINE_ACC, {.dtype = i32, .arg = 0}));
}

TEST(builder, spec_W5_a_row_before_another_takes_what_stands_before_it) {
  UOpGraph g;
  const auto three = g.add(UOps::CONST, {.dtype = i32, .arg = 3});
  const auto n = g.add(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"n", 0, 9}});
  const auto sum = g.add(UOps::ALU, {.dtype = i32, .vin = {n, three}, .arg = BinaryOps::ADD});
  const auto five = g.add(UOps::CONST, {.dtype = i32, .arg = 5, .insert_before = 1});
  EXPECT_EQ(g.index(five), 1u);
  EXPECT_EQ(g.index(n), 2u);
  EXPECT_EQ(g.index(sum), 3u);
  // An equal row serves where it stands at or before the place, and no other.
  EXPECT_EQ(g.add(UOps::CONST, {.dtype = i32, .arg = 5, .insert_before = 1}), five);
  const auto early = g.add(UOps::CONST, {.dtype = i32, .arg = 5, .insert_before = 0});
  EXPECT_NE(early, five);
  EXPECT_EQ(g.index(early), 0u);
  expect_error(
      [&] {
        g.add(UOps::ALU,
              {.dtype = i32, .vin = {n, five}, .arg = BinaryOps::ADD, .insert_before = 1});
      },
      {"ALU", "row 3 (DEFINE_VAR)", "does not stand before 1"});
  expect_error([&] { g.add(UOps::CONST, {.dtype = i32, .arg = 1, .insert_before = 99}); },
               {"insert_before is 99", "5 rows"});
}

// What was stored into since is loaded anew.
TEST(builder, a_load_behind_a_store_is_a_row_of_its_own) {
  UOpGraph g;
  const auto data = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto one = g.add(UOps::CONST, {.dtype = i32, .arg = 1});
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {data, zero}});
  EXPECT_EQ(g.add(UOps::LOAD, {.dtype = i32, .vin = {data, zero}}), x) << "nothing was stored";
  g.add(UOps::STORE, {.vin = {data, zero, one}});
  const auto y = g.add(UOps::LOAD, {.dtype = i32, .vin = {data, zero}});
  EXPECT_NE(x, y);
  const auto sum = g.add(UOps::ALU, {.dtype = i32, .vin = {x, y}, .arg = BinaryOps::SUB});
  g.add(UOps::STORE, {.vin = {data, one, sum}});
  EXPECT_EQ(run(g, {{40, 0}})[0], (std::vector<int32_t>{1, 39}));
}

// A loop has read all of its elements before one of them is stored behind it.
TEST(builder, what_a_loop_reads_may_be_stored_into_behind_it) {
  UOpGraph g;
  const auto from = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto to = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {1, "data1", true}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto two = g.add(UOps::CONST, {.dtype = i32, .arg = 2});
  const auto four = g.add(UOps::CONST, {.dtype = i32, .arg = 4});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, four}});
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {from, loop}});
  g.add(UOps::STORE, {.vin = {to, loop, x}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  g.add(UOps::STORE, {.vin = {from, two, zero}});
  EXPECT_EQ(run(g, {{5, 6, 7, 8}, {0, 0, 0, 0}}),
            (std::vector<std::vector<int32_t>>{{5, 6, 0, 8}, {5, 6, 7, 8}}));
}

// To another dtype by value, towards 0, and by bits.
TEST(builder, a_value_is_cast_and_its_bits_are_read) {
  UOpGraph g;
  const auto data = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto one = g.add(UOps::CONST, {.dtype = i32, .arg = 1});
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {data, zero}});
  const auto real = g.add(UOps::CAST, {.dtype = f32, .vin = {x}});
  const auto half = g.add(UOps::CONST, {.dtype = f32, .arg = 0.5});
  const auto less = g.add(UOps::ALU, {.dtype = f32, .vin = {real, half}, .arg = BinaryOps::MUL});
  const auto whole = g.add(UOps::CAST, {.dtype = i32, .vin = {less}});
  const auto bits = g.add(UOps::BITCAST, {.dtype = i32, .vin = {real}});
  g.add(UOps::STORE, {.vin = {data, zero, whole}});
  g.add(UOps::STORE, {.vin = {data, one, bits}});
  EXPECT_EQ(run(g, {{-7, 0}})[0], (std::vector<int32_t>{-3, std::bit_cast<int32_t>(-7.0F)}));
}

// Each operation of two integers, with its operands in their order.
TEST(builder, spec_H4_operations_take_their_operands_in_order) {
  const std::vector<std::pair<BinaryOps, int32_t>> of_seven_and_two{
      {BinaryOps::ADD, 9}, {BinaryOps::SUB, 5},  {BinaryOps::MUL, 14}, {BinaryOps::DIV, 3},
      {BinaryOps::MAX, 7}, {BinaryOps::MOD, 1},  {BinaryOps::XOR, 5},  {BinaryOps::AND, 2},
      {BinaryOps::OR, 7},  {BinaryOps::SHL, 28}, {BinaryOps::SHR, 1}};
  for (const auto& [op, expected] : of_seven_and_two) {
    UOpGraph g;
    const auto data = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
    const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
    const auto one = g.add(UOps::CONST, {.dtype = i32, .arg = 1});
    const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {data, zero}});
    const auto y = g.add(UOps::LOAD, {.dtype = i32, .vin = {data, one}});
    const auto both = g.add(UOps::ALU, {.dtype = i32, .vin = {x, y}, .arg = op});
    g.add(UOps::STORE, {.vin = {data, zero, both}});
    EXPECT_EQ(run(g, {{7, 2}})[0], (std::vector<int32_t>{expected, 2})) << "of " << expected;
  }
}

// --- what is refused

TEST(builder, spec_H7_what_a_row_lacks_is_said_with_the_rule) {
  UOpGraph g;
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto in = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {1, "data1", false}});
  const auto real = g.add(UOps::CONST, {.dtype = f32, .arg = 1.5});
  const auto truth = g.add(UOps::CONST, {.dtype = DType::Bool, .arg = 1});
  const auto loaded = g.add(UOps::LOAD, {.dtype = i32, .vin = {in, zero}});
  const auto refuses = [&](UOps uop, const Fields& fields, const std::vector<std::string>& parts) {
    const size_t rows = g.rows().size();
    expect_error([&] { g.add(uop, fields); }, parts);
    EXPECT_EQ(g.rows().size(), rows);
  };
  const std::string constant = "there are two required parameters: dtype and arg";
  refuses(UOps::CONST, {.dtype = i32}, {"UOps.CONST", "arg is missing", constant});
  refuses(UOps::CONST, {.arg = 1}, {"needs a dtype", constant});
  refuses(UOps::CONST, {.dtype = i32, .vin = {zero}, .arg = 1}, {"takes 0 sources", "got 1"});
  refuses(UOps::CONST, {.dtype = i32, .arg = 1.5}, {"1.5 is no int32"});
  refuses(UOps::CONST, {.dtype = DType::UInt8, .arg = 256}, {"256 is beyond uint8"});
  refuses(UOps::DEFINE_GLOBAL, {.dtype = i32},
          {"arg is missing", "arg is a three element tuple: the index of the parameter"});
  refuses(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {-1, "data0", true}}, {"index is -1"});
  refuses(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true, -1}}, {"the size is -1"});
  refuses(UOps::LOOP, {.dtype = i32, .vin = {zero}},
          {"takes 2 sources", "got 1", "the start value of the loop, end value"});
  refuses(UOps::LOOP, {.dtype = i32, .vin = {zero, loaded}},
          {"vin 1 is to be a CONST or a symbolic index, got LOAD", "the start value of the loop"});
  refuses(UOps::LOOP, {.dtype = i32, .vin = {real, zero}}, {"vin 0", "symbolic", "float32"});
  refuses(UOps::LOOP, {.dtype = f32, .vin = {zero, zero}}, {"dtype float32 is no integer"});
  refuses(UOps::ENDIF, {.vin = {zero}}, {"vin 0 is to be the IF, got CONST"});
  refuses(UOps::ENDLOOP, {.vin = {zero}}, {"vin 0 is to be the LOOP, got CONST", "the loop UOp"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in}}, {"takes 2 to 4 sources", "the input value"});
  refuses(UOps::LOAD, {.dtype = f32, .vin = {in, zero}}, {"DEFINE_GLOBAL of dtype float32"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {zero, zero}}, {"DEFINE_GLOBAL", "got CONST"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, real}}, {"vin 1 is to be an integer"});
  refuses(UOps::STORE, {.vin = {out, zero}}, {"takes 3 to 4 sources", "the UOp for the output"});
  refuses(UOps::STORE, {.dtype = i32, .vin = {out, zero, zero}}, {"has no dtype, got int32"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, zero, truth}}, {"a gate comes with"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, zero, zero, zero}}, {"vin 2", "dtype bool"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, zero, truth, real}}, {"vin 3", "dtype int32"});
  refuses(UOps::STORE, {.vin = {zero, zero, zero}}, {"vin 0 is to be a DEFINE_GLOBAL"});
  refuses(UOps::STORE, {.vin = {in, zero, zero}}, {"data1 is not mutable"});
  refuses(UOps::STORE, {.vin = {out, real, zero}}, {"vin 1 is to be an integer"});
  refuses(UOps::STORE, {.vin = {out, zero, zero, zero}}, {"vin 3", "dtype bool"});
  refuses(UOps::STORE, {.vin = {out, zero, real}}, {"vin 2 is to be a value of dtype int32"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {zero, zero}}, {"arg is missing", "the operation type"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {zero}, .arg = BinaryOps::ADD},
          {"BinaryOps.ADD takes 2 operands in vin, got 1"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {zero, zero}, .arg = TernaryOps::MULACC},
          {"TernaryOps.MULACC takes 3 operands in vin, got 2"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {zero, real}, .arg = BinaryOps::ADD}, {"vin 1"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {in, zero}, .arg = BinaryOps::ADD}, {"LOAD it first"});
  refuses(UOps::ALU, {.dtype = f32, .vin = {zero, zero}, .arg = BinaryOps::ADD},
          {"BinaryOps.ADD of int32 gives int32, the row says float32"});
  refuses(UOps::ALU, {.dtype = i32, .vin = {zero, loaded}, .arg = BinaryOps::CMPLT},
          {"gives bool"});
  refuses(UOps::SPECIAL, {.dtype = i32}, {"arg is missing", "upper limit (exclusive)"});
  refuses(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 0}}, {"upper limit is 0"});
  g.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 1}});
  refuses(UOps::SPECIAL, {.dtype = f32, .arg = {0, "gidx0", 4}}, {"float32 is no integer"});
  refuses(UOps::DEFINE_VAR, {.dtype = i32}, {"arg is missing, as in (\"n\", 1, 10)"});
  refuses(UOps::DEFINE_VAR, {.dtype = f32, .arg = {"n", 1, 10}}, {"float32 is no integer"});
  refuses(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"n", 2, 1}}, {"from 2 to 1 is no Variable"});
  refuses(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"2n", 1, 2}}, {"\"2n\" from 1 to 2"});
  refuses(UOps::DEFINE_VAR, {.dtype = i32, .vin = {zero}, .arg = {"n", 1, 10}},
          {"takes 0 sources", "got 1"});
  const auto acc = g.add(UOps::DEFINE_ACC, {.dtype = i32, .arg = 0, .cachable = false});
  refuses(UOps::PHI, {.dtype = i32, .vin = {zero, zero}}, {"DEFINE_ACC of dtype int32"});
  refuses(UOps::PHI, {.dtype = f32, .vin = {acc, real}}, {"DEFINE_ACC of dtype float32"});
  refuses(UOps::PHI, {.dtype = i32, .vin = {acc, real}}, {"vin 1", "dtype int32"});
  refuses(UOps::PHI, {.dtype = i32, .vin = {acc, zero, zero}}, {"vin 2 is to be a LOOP"});
  refuses(UOps::CAST, {.dtype = f32, .vin = {in}}, {"a value: LOAD it first"});
  refuses(UOps::IF, {.vin = {zero}}, {"a value of dtype bool"});
  refuses(UOps::BITCAST, {.dtype = DType::Int64, .vin = {real}}, {"differ in size"});
  const auto stored = g.add(UOps::STORE, {.vin = {out, zero, zero}});
  refuses(UOps::CAST, {.dtype = f32, .vin = {stored}}, {"a value, and no effect", "got STORE"});
  UOpGraph other;
  const auto foreign = other.add(UOps::CONST, {.dtype = i32, .arg = 0});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, foreign}}, {"vin 1 is no row of this graph"});
  refuses(UOps::LOAD, {.dtype = i32, .vin = {in, nullptr}}, {"vin 1 is no row of this graph"});
  expect_error([&] { (void)uops_to_cstyle("Pascal", "tester", g); },
               {"'pascal'", "c, opencl, cuda, hip, metal, wgsl"});
}

TEST(builder, spec_H7_loops_and_conditions_nest) {
  UOpGraph g;
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto ten = g.add(UOps::CONST, {.dtype = i32, .arg = 10});
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, ten}});
  expect_error([&] { (void)kernel(g); }, {"ENDLOOP", "row 3 (LOOP) is never closed"});
  const auto twice = g.add(UOps::ALU, {.dtype = i32, .vin = {loop, loop}, .arg = BinaryOps::ADD});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  g.add(UOps::STORE, {.vin = {out, zero, twice}});
  expect_error([&] { (void)kernel(g); },
               {"row 6 (STORE)", "row 4 (ALU) is computed in a loop", "DEFINE_ACC and a PHI"});
  // What ends a loop stands in it; nothing behind names it.
  UOpGraph h;
  const auto from = h.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto to = h.add(UOps::CONST, {.dtype = i32, .arg = 10});
  const auto data = h.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true, 10}});
  const auto closed = h.add(UOps::LOOP, {.dtype = i32, .vin = {from, to}});
  h.add(UOps::STORE, {.vin = {data, closed, closed}});
  h.add(UOps::ENDLOOP, {.vin = {closed}});
  EXPECT_EQ(run(h, {std::vector<int32_t>(10)})[0][9], 9);
  h.add(UOps::STORE, {.vin = {data, from, closed}});
  expect_error([&] { (void)kernel(h); }, {"row 6 (STORE)", "row 3 (LOOP)", "closed"});
}

TEST(builder, sizes_follow_from_the_places_or_are_said) {
  const auto graph = [](int64_t size, int64_t first) {
    UOpGraph g;
    const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true, size}});
    const auto in = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {1, "data1", false}});
    const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = first});
    const auto three = g.add(UOps::CONST, {.dtype = i32, .arg = 3});
    const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, three}});
    const auto place = g.add(UOps::LOAD, {.dtype = i32, .vin = {in, loop}});
    g.add(UOps::STORE, {.vin = {out, place, loop}});
    g.add(UOps::ENDLOOP, {.vin = {loop}});
    return g;
  };
  // Where a place does not exist nothing is stored.
  EXPECT_EQ(run(graph(2, 0), {{7, 7}, {1, -1, 2}})[0], (std::vector<int32_t>{7, 0}));
  expect_error([&] { (void)kernel(graph(0, 0)); }, {"row 6 (STORE)", "say the size of data0"});
  expect_error([&] { (void)kernel(graph(2, -1)); }, {"row 5 (LOAD)", "accesses data1 at -1"});
}

// The guide's Movement shares data, that of the IR changes which element is read.
TEST(builder, spec_H6_every_op_is_of_one_class) {
  std::map<Class, int> count;
  for (int i = 0; i < uops_count; ++i) {
    const Contract& contract = contract_of(static_cast<UOps>(i));
    EXPECT_EQ(static_cast<int>(contract.uop), i);
    EXPECT_FALSE(contract.meaning.empty());
    ++count[contract.group];
  }
  EXPECT_EQ(count.size(), 3u);
  EXPECT_EQ(contract_of(UOps::ALU).group, Class::Alu);
  EXPECT_EQ(contract_of(UOps::LOAD).group, Class::Movement);
  EXPECT_EQ(contract_of(UOps::LOOP).group, Class::Directive);
}

// --- random lists

int32_t wrap(int64_t v) { return static_cast<int32_t>(static_cast<uint32_t>(v)); }

// Runs rows in their order, one after the other: what a list means.
class RowByRow {
 public:
  RowByRow(const UOpGraph& graph, std::vector<std::vector<int32_t>>& data)
      : g_(graph), data_(data) {}
  void run() { block(0, g_.rows().size()); }

 private:
  static RowRef accumulator(RowRef r) {
    while (r->uop == UOps::PHI) r = r->vin[0];
    return r;
  }
  int64_t of(RowRef r) {
    const bool back = r->uop == UOps::DEFINE_ACC || r->uop == UOps::PHI;
    return value_.at(back ? accumulator(r) : r);
  }
  size_t end_of(size_t begin) {
    for (size_t i = begin + 1;; ++i) {
      const RowRef r = g_.rows()[i];
      if ((r->uop == UOps::ENDLOOP || r->uop == UOps::ENDIF) && r->vin[0] == g_.rows()[begin])
        return i;
    }
  }
  int32_t* element(RowRef r) {
    auto& d = data_[static_cast<size_t>(std::get<Global>(r->vin[0]->arg.value).index)];
    const int64_t at = of(r->vin[1]);
    return at >= 0 && at < static_cast<int64_t>(d.size()) ? &d[static_cast<size_t>(at)] : nullptr;
  }
  int64_t computed(RowRef r) {
    const auto op = std::get<BinaryOps>(std::get<Operation>(r->arg.value));
    const int64_t a = of(r->vin[0]), b = of(r->vin[1]);
    switch (op) {
      case BinaryOps::ADD:
        return wrap(a + b);
      case BinaryOps::SUB:
        return wrap(a - b);
      case BinaryOps::MUL:
        return wrap(a * b);
      case BinaryOps::MAX:
        return std::max(a, b);
      case BinaryOps::XOR:
        return a ^ b;
      case BinaryOps::AND:
        return a & b;
      case BinaryOps::CMPLT:
        return a < b ? 1 : 0;
      default:
        throw std::logic_error("not generated");
    }
  }
  void block(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const RowRef r = g_.rows()[i];
      switch (r->uop) {
        case UOps::CONST:
        case UOps::DEFINE_ACC:
          value_[r] = std::get<int64_t>(r->arg.value);
          break;
        case UOps::LOOP: {
          const size_t stop = end_of(i);
          for (int64_t k = of(r->vin[0]); k < of(r->vin[1]); ++k) {
            value_[r] = k;
            block(i + 1, stop);
          }
          i = stop;
          break;
        }
        case UOps::IF: {
          const size_t stop = end_of(i);
          if (of(r->vin[0]) != 0) block(i + 1, stop);
          i = stop;
          break;
        }
        case UOps::LOAD: {
          const int32_t* e = element(r);
          value_[r] = e != nullptr ? *e : 0;
          break;
        }
        case UOps::STORE:
          if (int32_t* e = element(r)) *e = static_cast<int32_t>(of(r->vin[2]));
          break;
        case UOps::ALU:
          value_[r] = computed(r);
          break;
        case UOps::PHI:
          value_[accumulator(r)] = of(r->vin[1]);
          break;
        default:
          break;
      }
    }
  }
  const UOpGraph& g_;
  std::vector<std::vector<int32_t>>& data_;
  std::map<RowRef, int64_t> value_;
};

// A list of some dozens of rows over memory that is read and written, in nested loops and
// conditions. The same seed gives the same one with and without folding and common rows.
class RandomRows {
 public:
  RandomRows(uint64_t seed, bool plain) : random_(seed), plain_(plain) {
    for (int i = 0; i < 3; ++i)
      globals_.push_back(
          add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {i, fmt::format("data{}", i), i < 2, 4}}));
    for (const int v : {0, 1, 2, 3}) values_.push_back(add(UOps::CONST, {.dtype = i32, .arg = v}));
    block(0, 5);
  }
  UOpGraph graph;

 private:
  RowRef add(UOps uop, Fields f) {
    f.simplify = f.cachable = !plain_;
    return graph.add(uop, f);
  }
  size_t below(size_t n) { return random_() % n; }
  RowRef any() { return values_[below(values_.size())]; }
  void block(int depth, size_t statements) {
    const size_t seen = values_.size(), accumulators = accumulators_.size();
    for (size_t k = 0; k < statements; ++k) statement(depth);
    values_.resize(seen);
    accumulators_.resize(accumulators);
  }
  void statement(int depth) {
    static const std::array operations{BinaryOps::ADD, BinaryOps::SUB, BinaryOps::MUL,
                                       BinaryOps::MAX, BinaryOps::XOR, BinaryOps::AND};
    switch (below(depth < 3 ? 9 : 7)) {
      case 0:
      case 1: {
        const RowRef from = globals_[below(3)], at = any();
        values_.push_back(add(UOps::LOAD, {.dtype = i32, .vin = {from, at}}));
        return;
      }
      case 2:
      case 3: {
        const RowRef to = globals_[below(2)], at = any(), what = any();
        add(UOps::STORE, {.vin = {to, at, what}});
        return;
      }
      case 4: {
        const RowRef a = any(), b = any();
        values_.push_back(
            add(UOps::ALU, {.dtype = i32, .vin = {a, b}, .arg = operations[below(6)]}));
        return;
      }
      case 5:
        accumulators_.push_back(add(UOps::DEFINE_ACC, {.dtype = i32, .arg = below(5)}));
        values_.push_back(accumulators_.back());
        return;
      case 6:
        if (!accumulators_.empty()) {
          const RowRef acc = accumulators_[below(accumulators_.size())], what = any();
          add(UOps::PHI, {.dtype = i32, .vin = {acc, what}});
        }
        return;
      case 7: {
        const RowRef begin = add(UOps::CONST, {.dtype = i32, .arg = below(2)});
        const RowRef end = add(UOps::CONST, {.dtype = i32, .arg = below(5)});
        const RowRef loop = add(UOps::LOOP, {.dtype = i32, .vin = {begin, end}});
        values_.push_back(loop);
        block(depth + 1, 1 + below(6));
        values_.pop_back();
        add(UOps::ENDLOOP, {.vin = {loop}});
        return;
      }
      default: {
        const RowRef a = any(), b = any();
        const RowRef test =
            add(UOps::ALU, {.dtype = DType::Bool, .vin = {a, b}, .arg = BinaryOps::CMPLT});
        const RowRef condition = add(UOps::IF, {.vin = {test}});
        block(depth + 1, 1 + below(4));
        add(UOps::ENDIF, {.vin = {condition}});
        return;
      }
    }
  }
  std::mt19937_64 random_;
  bool plain_;
  std::vector<RowRef> globals_, values_, accumulators_;
};

TEST(builder, random_lists_compute_what_their_rows_say_in_order) {
  const uint64_t seed = test::test_seed();
  for (uint64_t k = 0; k < 300; ++k) {
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", seed + k));
    const std::vector<std::vector<int32_t>> start{{1, 2, 3, 4}, {5, 0, -7, 2}, {3, 1, 0, 2}};
    const RandomRows rows(seed + k, false), plain(seed + k, true);
    std::vector<std::vector<int32_t>> expected = start, same = start;
    RowByRow(rows.graph, expected).run();
    RowByRow(plain.graph, same).run();
    ASSERT_EQ(expected, same) << rows.graph.text() << plain.graph.text();
    for (const UOpGraph* g : {&rows.graph, &plain.graph}) {
      std::vector<std::vector<int32_t>> data = start;
      std::vector<std::byte*> addresses;
      std::vector<int64_t> bytes;
      for (auto& d : data) {
        addresses.push_back(reinterpret_cast<std::byte*>(d.data()));
        bytes.push_back(static_cast<int64_t>(d.size() * sizeof(int32_t)));
      }
      interpret_linear(lower(*g, "k", generic_target(true)).linear, {addresses, bytes, {}});
      ASSERT_EQ(data, expected) << g->text() << to_text(kernel(*g));
      if (k % 20 != 0) continue;
      ASSERT_EQ(run(*g, start), expected) << g->text();
    }
  }
}

}  // namespace
}  // namespace koine
