// What kernels in WGSL compute, beside the interpreter.
#include <cmath>
#include <limits>
#include <numeric>

#include "check.hpp"
#include "graphs.hpp"
#include "koine/compat/alu.hpp"
#include "koine/compat/uops.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "wgpu.hpp"

namespace koine::test {
namespace {

CText wgsl_text() {
  return CText("wgsl",
               [](const std::string& source) { return std::make_unique<WgslLibrary>(source); });
}

// A compiler of WGSL may take it that no number is NaN or infinite and that 0 has no sign (Mesa's
// makes 0 of 0 x): an element that is one of these by the interpreter is not compared, all others
// are, bit for bit in strict mode.
void add_finite(CText& text, const UOp& value) {
  const Bindings bindings = bindings_of(value);
  for (const bool strict : {true, false}) {
    Options mode = options();
    mode.strict = strict;
    const OptionScope scope(mode);
    BoundedArray expected =
        strict ? BoundedArray{interpret(value, bindings), {}} : interpret_bounded(value, bindings);
    Array& exact = expected.value;
    expected.error.resize(exact.data.size());
    for (size_t i = 0; i < exact.data.size(); ++i) {
      if (!exact.is_valid(i)) exact.data[i] = 0;  // as in fresh memory
      if (!is_float(exact.dtype)) continue;
      const double x = bits_to_double(exact.dtype, exact.data[i]);
      if (!std::isfinite(x)) expected.error[i] = std::numeric_limits<double>::infinity();
      if (x == 0) expected.error[i] = std::max(expected.error[i], 0x1p-1074);
    }
    exact.valid.clear();
    text.add(value, std::move(expected));
  }
}

bool folds(const UOp& u, Op op) {
  return u.is(op) || u.is(Op::Mulacc) || (u.is(Op::Reduce) && u.as<ReduceArg>().op == op);
}

// It may also take 1/(1/x) for x, and products of square roots for roots of products.
bool has_other_forms(const UOp& graph) {
  const auto divides = [](const UOp& u) { return u.is(Op::Recip) || u.is(Op::Fdiv); };
  for (const UOp& u : toposort(graph)) {
    if (!divides(u) && !folds(u, Op::Mul)) continue;
    for (const UOp& s : u.src())
      for (const UOp& below : toposort(s))
        if (divides(u) ? divides(below) : below.is(Op::Sqrt)) return true;
  }
  return false;
}

// And two constants of one sum or product for one, as in (x + 1) - 3, among them what a Pad gives
// to a loop that is unrolled.
bool joins_constants(const UOp& graph) {
  for (const UOp& u : toposort(graph))
    for (const Op op : {Op::Add, Op::Mul}) {
      if (!folds(u, op) || !is_float(u.dtype())) continue;
      size_t steps = u.is(Op::Reduce) ? 1 : 0, constants = 0;
      for (const UOp& below : toposort(u)) {
        if (!is_float(below.dtype())) continue;
        if (folds(below, op)) ++steps;
        if (below.is(Op::Const) || below.is(Op::Pad)) ++constants;
      }
      if (steps > 1 && constants > 1) return true;
    }
  return false;
}

// Nor is what is made of such numbers, but of other floats: a comparison, their bits, an integer.
bool shows_what_is_open(const UOp& graph) {
  const Bindings bindings = bindings_of(graph);
  for (const UOp& u : toposort(graph)) {
    if (u.src().empty() || is_float(u.dtype()) || !is_float(u.src(0).dtype())) continue;
    for (const UOp& s : u.src()) {
      if (!is_float(s.dtype())) continue;
      const Array values = interpret(s, bindings);
      for (size_t i = 0; i < values.data.size(); ++i) {
        const double x = bits_to_double(s.dtype(), values.data[i]);
        if (!std::isfinite(x) || (u.is(Op::Bitcast) && x == 0)) return true;
      }
    }
  }
  return false;
}

constexpr std::array carried{DType::Int32, DType::UInt32, DType::Float32};

}  // namespace

TEST(wgsl, spec_L8_kernels_compute_what_they_say) {
  CText text = wgsl_text();
  for (const DType d : carried) {
    const UOp x = leaf({37}, d, 1), y = leaf({37}, d, 2);
    for (const UOp& v : {add(x, y), mul(x, y), maximum(x, y), where(lt(x, y), x, y), neg(x),
                         sub(x, y), cast(ne(x, y), d), cast(x, DType::Int32),
                         cast(x, DType::UInt32), cast(x, DType::Float32)})
      text.add(v);
    if (is_float(d)) continue;
    for (const UOp& v : {idiv(x, y), mod(x, y), bit_and(x, y), bit_or(x, y), bit_xor(x, y),
                         binary(Op::Shl, x, y), binary(Op::Shr, x, y)})
      text.add(v);
  }
  const UOp f = leaf({37}, DType::Float32, 3), bits = leaf({37}, DType::UInt32, 4);
  for (const UOp& v :
       {unary(Op::Trunc, f), bitcast(f, DType::Int32), bitcast(bits, DType::Float32)})
    text.add(v);
  const UOp low = lt(f, constant(DType::Float32, 0)), odd = ne(f, f);
  for (const UOp& v : {bit_and(low, odd), bit_or(low, odd), bit_xor(low, odd), lt(low, odd),
                       maximum(low, odd), logical_not(low)})
    text.add(cast(v, DType::Int32));
  text.check();
}

// A compiler may take (x + c) - c for x, so no number is rounded in this way.
TEST(wgsl, spec_amend_41_subnormals_of_narrow_floats_are_rounded) {
  CText text = wgsl_text();
  const Tensor x = Tensor(leaf({300}, DType::Float32, 5));
  for (const auto& [d, quantum] : {std::pair{DType::Float16, 0x1p-24},
                                   {DType::BFloat16, 0x1p-120},
                                   {DType::Float8E4M3, 0x1p-9},
                                   {DType::Float8E5M2, 0x1p-16}})
    add_finite(text, (x * (quantum / 3)).cast(d).cast(DType::Float32).uop());
  text.check();
}

TEST(wgsl, spec_O1b_spec_O1f_groups_meet_at_barriers) {
  CText text = wgsl_text();
  const Tensor rows = Tensor(leaf({9, 300}, DType::Int32, 1));
  text.add(rows.sum({1}).uop());
  text.add(rows.max({0}).uop());
  text.add(small({48, 40}, 3).matmul(small({40, 56}, 4)).uop());
  text.add(small({9, 33}, 5).softmax(1).uop());
  text.add(small({8, 6}, 6).pad({{1, 2}, {0, 3}}, 7.0).uop());
  text.add(small({1, 2, 7, 7}, 7).conv2d(small({3, 2, 3, 3}, 8)).uop());
  text.check();
}

TEST(wgsl, launches_tell_a_kernel_their_numbers_and_offsets) {
  CText text = wgsl_text();
  text.add(told_by_arguments());
  text.check();
}

// Of rows whose numbers are data: they may be any of 32 bits, and the places lie beyond.
TEST(wgsl, rows_that_data_chooses) {
  CText text = wgsl_text();
  const UOp table = leaf({5, 6}, DType::Float32, 1), words = leaf({5, 6}, DType::Int32, 2);
  const Tensor at = Tensor::from<int32_t>({2, 0, 4, 4, 1, 3});
  text.add(index(table, {at.uop()}));
  text.add(index(words, {at.uop(), at.uop()}));
  text.add(small({17, 9}, 3).sort(1).first.uop());
  text.add(Tensor(table).gather(0, Tensor(leaf({4, 6}, DType::Int32, 4)).abs() % 5).uop());
  text.check();
}

// Strict and default mode, as far as the language goes.
TEST(wgsl, spec_amend_32_random_graphs_agree_with_the_interpreter) {
  const int64_t cases = test_cases(400);
  CText text = wgsl_text();
  int64_t taken = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 991 + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    if (has_other_forms(graph) || joins_constants(graph) || shows_what_is_open(graph)) continue;
    try {
      add_finite(text, graph);
      ++taken;
    } catch (const Error& e) {
      const std::string said = e.what();
      bool known = false;
      for (const char* why : {"wgsl has no", "has no type for", "counts places in 32 bits"})
        known = known || said.find(why) != said.npos;
      ASSERT_TRUE(known) << said;
    }
  }
  EXPECT_GE(taken, cases / 10) << "of " << cases;
  RecordProperty("compared", static_cast<int>(taken));
  text.check();
}

TEST(wgsl, spec_H2_spec_H8_a_kernel_by_hand_and_a_variable) {
  using namespace compat;
  constexpr DType i32 = DType::Int32;
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto in = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {1, "data1", false}});
  const auto n = g.add(UOps::DEFINE_VAR, {.dtype = i32, .arg = {"n", -5, 5}});
  const auto at = g.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 10}});
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {in, at}});
  g.add(UOps::STORE,
        {.vin = {out, at, g.add(UOps::ALU, {.dtype = i32, .vin = {x, n}, .arg = BinaryOps::MUL})}});
  const UOp linear = lower(g, "tester", text_target("wgsl", true)).linear;
  const WgslLibrary library(render("wgsl", "tester", linear));
  std::vector<int32_t> got(10), given(10);
  std::iota(given.begin(), given.end(), 100);
  library.run("tester", {{got.data(), 40}, {given.data(), 40}}, {-3},
              counts_of(signature_of(linear).grid));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(got[i], -3 * given[i]);
}

TEST(wgsl, a_text_that_is_refused_comes_with_the_log) {
  try {
    const WgslLibrary library("fn broken( {");
    ADD_FAILURE() << "it was taken";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("expected"), std::string::npos) << e.what();
  }
}

}  // namespace koine::test
