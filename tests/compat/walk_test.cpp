// The walk of a dot product from its Tensors to its program, as the third document goes.
#include <fstream>
#include <sstream>

#include "check.hpp"
#include "koine/compat/uops.hpp"
#include "koine/differential/run.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

Options plain_loops() {
  Options o = options();
  o.noopt = true;
  return o;
}

Tensor dot() { return (Tensor::from<int32_t>({3, 4}) * Tensor::from<int32_t>({5, 6})).sum(); }

TEST(walk, spec_W1_the_tree_of_a_kernel) {
  const std::vector<Kernel> items = schedule({dot().uop()});
  ASSERT_EQ(items.size(), 1u);
  const std::string tree =
      "  0 ━┳ Store int32 data0[0] of (1,)\n"
      "  1  ┗━┳ Reduce Add R0:2\n"
      "  2    ┗━┳ Mul\n"
      "  3      ┣━━ Load int32 data1[R0] of (2,)\n"
      "  4      ┗━━ Load int32 data2[R0] of (2,)\n";
  EXPECT_EQ(tree_text(items[0].ast), tree);
  // KOINE_DEBUG=3 prints it.
  Options o = options();
  o.debug = 3;
  const OptionScope scope(o);
  clear_compile_cache();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(dot().item(), 39);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(tree), std::string::npos);
}

TEST(walk, spec_W2_the_linear_program_has_the_14_rows_of_the_document) {
  const OptionScope scope(plain_loops());
  const UOp linear = program_of(schedule({dot().uop()})[0])->kernel().linear;
  EXPECT_EQ(
      compat::print_linear(linear, compat::Style::Legacy),
      "step  Op_name               type                      input                           arg\n"
      "   0 UOps.DEFINE_GLOBAL  : ptr.dtypes.int            []                               (0, "
      "'data0', True)\n"
      "   1 UOps.DEFINE_GLOBAL  : ptr.dtypes.int            []                               (1, "
      "'data1', False)\n"
      "   2 UOps.DEFINE_GLOBAL  : ptr.dtypes.int            []                               (2, "
      "'data2', False)\n"
      "   3 UOps.DEFINE_ACC     : dtypes.int                []                               0\n"
      "   4 UOps.CONST          : dtypes.int                []                               0\n"
      "   5 UOps.CONST          : dtypes.int                []                               2\n"
      "   6 UOps.LOOP           : dtypes.int                [4, 5]                           None\n"
      "   7 UOps.LOAD           : dtypes.int                [1, 6]                           None\n"
      "   8 UOps.LOAD           : dtypes.int                [2, 6]                           None\n"
      "   9 UOps.ALU            : dtypes.int                [7, 8]                           "
      "BinaryOps.MUL\n"
      "  10 UOps.ALU            : dtypes.int                [9, 3]                           "
      "BinaryOps.ADD\n"
      "  11 UOps.PHI            : dtypes.int                [3, 10, 6]                       None\n"
      "  12 UOps.ENDLOOP        :                           [6]                              None\n"
      "  13 UOps.STORE          :                           [0, 4, 11]                       "
      "None\n");
  // What a list says is what it was made from: the rows compute the same again.
  int32_t out = 0;
  std::vector<int32_t> a{3, 4}, b{5, 6};
  std::vector<std::byte*> addresses;
  for (int32_t* p : {&out, a.data(), b.data()})
    addresses.push_back(reinterpret_cast<std::byte*>(p));
  std::vector<int64_t> bytes{4, 8, 8};
  compat::compile(compat::listing(linear), "again")->run({addresses, bytes, {}});
  EXPECT_EQ(out, 39);
  // Vectors have no old names.
  Options fast = options();
  fast.noopt = false;
  const OptionScope again(fast);
  const Tensor wide = Tensor::zeros({4096}).contiguous().realize() + 1;
  test::expect_error(
      [&] {
        (void)compat::print_linear(program_of(schedule({wide.uop()})[0])->kernel().linear,
                                   compat::Style::Legacy);
      },
      {"no name among the old UOps", "KOINE_NOOPT=1"});
}

TEST(walk, spec_W3_a_schedule_is_looked_at_before_anything_runs) {
  const Tensor a = Tensor::from<int32_t>({3, 4}).realize(),
               b = Tensor::from<int32_t>({5, 6}).realize();
  const Tensor value = (a * b).sum();
  reset_counters();
  const std::vector<Kernel> items = schedule({value.uop()});
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].reason, "output");
  EXPECT_EQ(items[0].buffers.size(), 3u);
  EXPECT_TRUE(items[0].ast.is(Op::Sink));
  EXPECT_EQ(counters().kernels, 0);
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_FALSE(realized_buffer(value.uop()));
  EXPECT_EQ(value.item(), 39);
}

TEST(walk, spec_W4_plain_loops_compute_the_same) {
  const Tensor x = test::small({37, 19});
  const auto fast = (x * x).sum({1}).tolist<float>();
  const OptionScope scope(plain_loops());
  clear_compile_cache();
  const Tensor value = (x * x).sum({1});
  const auto program = program_of(schedule({value.uop()})[0]);
  EXPECT_TRUE(program->kernel().opts.empty());
  const auto plain = value.tolist<float>();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain[i], fast[i], 1e-3);
}

TEST(walk, spec_W6_the_output_comes_first_and_equal_inputs_are_one) {
  const Tensor x = Tensor::from<int32_t>({3, 4}).realize();
  const Kernel item = schedule({(x * x).uop()})[0];
  ASSERT_EQ(item.buffers.size(), 2u);
  EXPECT_TRUE(item.stores(0));
  EXPECT_FALSE(item.stores(1));
}

// The accumulator is exact in int32, and what is computed of the sum stands behind its loop.
TEST(walk, spec_W7_what_follows_a_reduce_stands_behind_its_loop) {
  const OptionScope scope(plain_loops());
  const Tensor a = Tensor::from<int32_t>({INT32_MAX, 3, 1 << 20}),
               b = Tensor::from<int32_t>({1, INT32_MAX, 1 << 11});
  const Tensor value = (a * b).sum() * Tensor(7);
  int64_t sum = 0;
  for (const int64_t product : {int64_t{INT32_MAX}, 3 * int64_t{INT32_MAX}, int64_t{1} << 31})
    sum += product;
  EXPECT_EQ(value.item<int32_t>(), static_cast<int32_t>(7 * sum));
  const Tensor again = (a * b).sum() * Tensor(7);
  const std::string rows = compat::print_linear(
      program_of(schedule({again.uop()})[0])->kernel().linear, compat::Style::Legacy);
  const size_t start = rows.find("DEFINE_ACC"), loop = rows.find("UOps.LOOP"),
               end = rows.find("ENDLOOP"), after = rows.rfind("BinaryOps.MUL"),
               inside = rows.find("BinaryOps.MUL");
  EXPECT_LT(start, loop);
  EXPECT_LT(loop, inside);
  EXPECT_LT(inside, end);
  EXPECT_LT(end, after) << rows;
}

TEST(walk, spec_W10_the_page_names_what_stands_for_the_optimised_path) {
  std::stringstream read;
  read << std::ifstream("docs/linear-walk.md").rdbuf();
  const std::string page = read.str();
  for (const char* word : {"`global_load`, `global_store`, `load_cache` |",
                           "`group_for_reduces`, `upcasted`, `local_idxs` |",
                           "GROUP_REDUCE, UPCAST and LOCAL", "ImageDType |", "out of scope"})
    EXPECT_NE(page.find(word), std::string::npos) << word;
}

TEST(walk, spec_W8_a_program_says_what_it_is) {
  const int64_t m = 32, n = 48, k = 64;
  const Tensor c = test::small({m, k}, 1).matmul(test::small({k, n}, 2));
  const std::vector<Kernel> items = schedule({c.uop()});
  ASSERT_EQ(items.size(), 1u);
  const auto program = program_of(items[0]);
  EXPECT_EQ(program->name(), program->kernel().name);
  EXPECT_EQ(program->name().substr(0, 2), "r_");
  EXPECT_NE(program->source().find("void " + program->name() + "("), std::string::npos);
  EXPECT_EQ(program->device(), "CPU");
  EXPECT_GE(program->threads(), 1);
  EXPECT_TRUE(program->variables().empty());
  EXPECT_EQ(program->operations(), 2.0 * m * n * k);
  EXPECT_EQ(program->bytes(), 4.0 * (m * k + k * n + m * n));
}

TEST(walk, spec_W8_a_program_names_its_variables) {
  const Tensor x = test::small({20}).realize();
  const Variable n("n", 1, 20);
  const Tensor part = x[Slice{{}, n.bind(5)}] + 1;
  const auto items = schedule({part.uop()});
  ASSERT_FALSE(items.empty());
  EXPECT_EQ(program_of(items[0])->variables(), std::vector<std::string>{"n"});
}

TEST(walk, spec_W8_a_program_for_groups_of_threads_has_a_grid) {
  using Sizes = std::array<int64_t, 3>;
  const auto numbers = [](const std::array<UOp, 3>& axes) {
    return Sizes{const_int(axes[0]), const_int(axes[1]), const_int(axes[2])};
  };
  const auto program_on = [](const std::string& device) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    const Tensor x(new_buffer(shape_of({4096}), DType::Float32, Device(device)));
    return program_of(schedule({(x * Tensor(2.0)).uop()}).at(0));
  };
  const auto simt = program_on("SIMT"), cpu = program_on("CPU");
  EXPECT_EQ(numbers(simt->grid()), (Sizes{32, 1, 1}));
  EXPECT_EQ(numbers(simt->group()), (Sizes{128, 1, 1}));
  EXPECT_EQ(numbers(cpu->grid()), (Sizes{1, 1, 1}));
  EXPECT_EQ(numbers(cpu->group()), (Sizes{1, 1, 1}));
}

// As the note's Linearizer with NOOPT: what is no sum is a SPECIAL.
TEST(walk, spec_W8_the_plain_rows_of_a_device_with_groups_are_a_grid) {
  const Tensor x(new_buffer(shape_of({4, 6}), DType::Int32, Device("SIMT")));
  const UOp scaled = schedule({(x * 3).uop()}).at(0).ast, sum = schedule({x.sum({1}).uop()})[0].ast;
  const auto rows = [](const UOp& ast, const std::string& device) {
    return compat::print_linear(compat::lower_plainly(ast, device_runtime(device).target()).linear,
                                compat::Style::Legacy);
  };
  for (const char* special : {"(0, 'gidx0', 6)", "(1, 'gidx1', 4)"})
    EXPECT_NE(rows(scaled, "SIMT").find(special), std::string::npos) << rows(scaled, "SIMT");
  EXPECT_EQ(rows(scaled, "SIMT").find("LOOP"), std::string::npos);
  EXPECT_NE(rows(sum, "SIMT").find("(0, 'gidx0', 4)"), std::string::npos) << rows(sum, "SIMT");
  EXPECT_NE(rows(sum, "SIMT").find("LOOP"), std::string::npos);
  EXPECT_EQ(rows(scaled, "CPU").find("SPECIAL"), std::string::npos);
  EXPECT_TRUE(compat::lower_plainly(scaled, device_runtime("CPU").target()).opts.empty());
  // The limit of a SPECIAL is a number: an axis of another size stays a loop.
  const Variable n("n", 1, 4);
  const UOp part = schedule({(x[Slice{{}, n.bind(2)}] * 3).uop()}).at(0).ast;
  const std::string open = rows(part, "SIMT");
  for (const char* row : {"(0, 'gidx0', 6)", "DEFINE_VAR", "('n', 1, 4)", "LOOP"})
    EXPECT_NE(open.find(row), std::string::npos) << row << " in\n" << open;
  EXPECT_EQ(open.find("gidx1"), std::string::npos) << open;
}

TEST(walk, what_is_no_special_of_the_note_is_refused) {
  const UOp i = range(0, variable("n", 1, 100), AxisType::Global),
            out = param(0, shape_of({100}), DType::Int32);
  const UOp grid =
      lower_kernel(sink({end(store(index(out, {i}), constant_int(DType::Int32, 1)), {i})}),
                   device_runtime("SIMT").target())
          .linear;
  const UOp team =
      UOp::make(Op::Linear, {UOp::make(Op::Special, {index_const(4)}, std::string("thread"))});
  for (const UOp& linear : {grid, team})
    test::expect_error([&] { (void)compat::print_linear(linear, compat::Style::Legacy); },
                       {"Special has no name among the old UOps"});
}

TEST(walk, spec_W9_arithmetic_on_a_variable_is_that_of_integers) {
  const Variable i("i", 0, 9), n("n", 1, 128);
  EXPECT_EQ(i.name(), "i");
  EXPECT_EQ((std::pair{i.smallest(), i.largest()}), (std::pair<int64_t, int64_t>{0, 9}));
  EXPECT_TRUE((i * 4 + 3) / 4 == i);
  EXPECT_TRUE((i * 4 + 3) % 4 == 3);
  EXPECT_TRUE(i * 0 == 0 && (i * 0).is_number());  // the note's fake_reduce_idxs
  EXPECT_TRUE(i + n == n + i && 2 * i == i + i);
  const Size made = i * 2 + 1;
  EXPECT_EQ(made.text(), "i*2+1");
  EXPECT_EQ((std::pair{made.smallest(), made.largest()}), (std::pair<int64_t, int64_t>{1, 19}));
  // A shape, of which one program serves each value.
  EXPECT_EQ(Shape::of(Tensor::zeros({n * 2, 3}).uop()), (Shape{n * 2, 3}));
  const Tensor x = test::small({20}).realize();
  const Variable k("k", 1, 20);
  for (const int64_t value : {3, 17})
    EXPECT_EQ(
        (Tensor::ones({k.bind(value) * 2}).sum() + x[Slice{{}, k.bind(value)}].sum() * 0).item(),
        2 * value);
}

// Random expressions, at all values of their Variables, beside the same on plain integers.
TEST(walk, spec_W9_bounds_of_expressions_are_sound_and_their_values_those_of_integers) {
  std::mt19937_64 random(test::test_seed());
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const Variable i("i", -3, 4), j("j", 0, 6);
  const auto floored = [](int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
  for (int64_t round = 0; round < test::test_cases(200); ++round) {
    Size made = i;
    std::vector<int64_t> values;  // at each (i, j)
    for (int64_t at = 0; at < 56; ++at) values.push_back(at / 7 - 3);
    const auto step = [&](const Size& next, auto&& of) {
      made = next;
      for (int64_t at = 0; at < 56; ++at) {
        int64_t& v = values[static_cast<size_t>(at)];
        v = of(v, at % 7);
      }
    };
    for (int64_t left = 1 + below(5); left > 0; --left) {
      const int64_t c = 1 + below(6);
      switch (below(6)) {
        case 0:
          step(made * j + c, [&](int64_t v, int64_t y) { return v * y + c; });
          break;
        case 1:
          step(c - made, [&](int64_t v, int64_t) { return c - v; });
          break;
        case 2:
          step(made / c, [&](int64_t v, int64_t) { return floored(v, c); });
          break;
        case 3:
          step(made % c, [&](int64_t v, int64_t) { return v - floored(v, c) * c; });
          break;
        case 4:
          step(made + j, [&](int64_t v, int64_t y) { return v + y; });
          break;
        default:
          step(made * c, [&](int64_t v, int64_t) { return v * c; });
          break;
      }
    }
    for (int64_t at = 0; at < 56; ++at) {
      const int64_t v = values[static_cast<size_t>(at)];
      ASSERT_EQ(evaluate_index(made.uop(), {{"i", at / 7 - 3}, {"j", at % 7}}), v)
          << made << " at i=" << at / 7 - 3 << ", j=" << at % 7;
      ASSERT_LE(made.smallest(), v) << made;
      ASSERT_GE(made.largest(), v) << made;
    }
  }
}

TEST(walk, spec_W11_a_kernel_with_two_outputs_stores_both) {
  const Tensor x = test::small({64}).realize();
  const std::vector<Kernel> items = schedule({(x + 1).uop(), (x * 2).uop()});
  ASSERT_EQ(items.size(), 1u);
  ASSERT_EQ(items[0].buffers.size(), 3u);
  int stored = 0;
  for (size_t slot = 0; slot < 3; ++slot) stored += items[0].stores(slot) ? 1 : 0;
  EXPECT_EQ(stored, 2);
  const OptionScope scope(plain_loops());
  const std::string rows =
      compat::print_linear(program_of(items[0])->kernel().linear, compat::Style::Legacy);
  for (size_t slot = 0; slot < 3; ++slot) {
    const std::string row =
        fmt::format("({0}, 'data{0}', {1})", slot, items[0].stores(slot) ? "True" : "False");
    EXPECT_NE(rows.find(row), std::string::npos) << row << " in\n" << rows;
  }
}

}  // namespace
}  // namespace koine
