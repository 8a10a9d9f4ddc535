// Which line of the user's made a node (amendment C39), and what makes NaN first (KOINE_NAN=1, row
// D6).
#include <fmt/format.h>

#include <cmath>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/koine.hpp"

namespace koine::test {
namespace {

Tensor numbers(const std::vector<float>& values) {
  return Tensor::from<float>(values, {static_cast<int64_t>(values.size())}).realize();
}

std::string line(int64_t number) { return fmt::format("origin_test.cpp:{}", number); }

Options finding_nan() {
  Options o = options();
  o.nan = true;
  return o;
}

// What KOINE_NAN=1 says of a value; empty where nothing is wrong.
std::string said_of(const Tensor& value) {
  const OptionScope scope(finding_nan());
  try {
    (void)value.realize();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Value);
    return e.what();
  }
  return "";
}

void expect_said(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

}  // namespace

TEST(origins, spec_amend_39_a_node_knows_the_lines_that_made_it) {
  const Tensor x = numbers({1, 2, 3});
  EXPECT_EQ(origin_text((x * 3.5).uop()), "");
  int64_t first = 0;
  auto twice = [&] {
    first = __LINE__ + 1;
    const Here here;
    return x * 2.25;
  };
  const Tensor one = twice();
  EXPECT_EQ(origin_text(one.uop()), line(first));
  EXPECT_EQ(origin_text(twice().uop()), line(first));
  // Interning makes one node of several lines, of which four are kept.
  auto at = [&](int64_t number) {
    const OriginScope scope(
        origin_at("/some/where/model.py", number, number == 7 ? "forward" : ""));
    const Tensor same = x * 2.25;
    ASSERT_EQ(same.uop(), one.uop());
  };
  const std::string both = "one of " + line(first) + ", model.py:7 in forward";
  at(7);
  EXPECT_EQ(origin_text(one.uop()), both);
  at(7);
  EXPECT_EQ(origin_text(one.uop()), both);
  at(3);
  at(2);
  EXPECT_EQ(origin_text(one.uop()), both + ", model.py:3, model.py:2");
  for (const int64_t number : {1, 9, 1}) at(number);
  EXPECT_EQ(origin_text(one.uop()), both + ", model.py:3, model.py:2 and others");
  // A scope within another is that of its line; behind it the outer goes on.
  const OriginScope outer(origin_at("/some/where/model.py", 7, "forward"));
  const Tensor inner = [&] {
    const OriginScope scope(origin_at("/some/where/model.py", 3, ""));
    return x * 1.125;
  }();
  EXPECT_EQ(origin_text(inner.uop()), "model.py:3");
  EXPECT_EQ(origin_text((x * 1.0625).uop()), "model.py:7 in forward");
}

TEST(origins, spec_amend_39_lines_stay_through_rewriting_and_derivatives) {
  const Tensor x = numbers({1, 2, 3}).requires_grad();
  auto at = [](int64_t number) { return origin_at("net.py", number, ""); };
  auto make = [&](int64_t number, const std::function<Tensor()>& f) {
    const OriginScope scope(at(number));
    return f();
  };
  const Tensor a = make(1, [&] { return (x * 1.5).exp(); });
  const Tensor b = make(2, [&] { return (a + 0.25).sum(); });
  // Cotangents come from the line of the value, not from the one that asks.
  const Tensor g = make(9, [&] { return b.gradient({x})[0]; });
  const std::string lines = origins_below(g.uop());
  EXPECT_NE(lines.find("net.py:1"), std::string::npos) << lines;
  EXPECT_EQ(lines.find('9'), std::string::npos) << lines;
  // So do kernels, through every stage.
  Options o = options();
  o.debug = 2;
  const OptionScope scope(o);
  clear_compile_cache();
  testing::internal::CaptureStderr();
  (void)b.realize();
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("(net.py:1, 2)"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("run     "), printed.rfind("run     ")) << printed;
  EXPECT_NE(printed.find("GB/s  (net.py:1, 2)"), std::string::npos) << printed;
}

TEST(origins, spec_amend_39_an_index_out_of_range_names_its_line) {
  const Tensor x = numbers({1, 2, 3}), at = Tensor::from<int32_t>({0, 7}).realize();
  const OriginScope scope(origin_at("net.py", 17, "lookup"));
  const Tensor picked = x.index_select(0, at);
  expect_error([&] { (void)picked.tolist<float>(); },
               {"7", "out of range for size 3", "the index was made at net.py:17 in lookup"});
}

TEST(origins, at_most_some_lines_are_named) {
  Tensor x = numbers({1, 2, 3});
  for (int i = 1; i <= 7; ++i) {
    const OriginScope scope(origin_at("net.py", 10 * i, ""));
    x = x * (1.0 + i);
  }
  EXPECT_EQ(origins_below(x.uop()), "net.py:10, 20, 30, 40 and 3 more");
  EXPECT_EQ(origins_below(x.uop(), 7), "net.py:10, 20, 30, 40, 50, 60, 70");
}

// --- The first NaN -------------------------------------------------------------------------------

namespace {

struct Planted {
  const char* name;
  std::function<Tensor()> make;  // under the line 5 of net.py
  std::vector<std::string> says;
};

Tensor weights(const std::vector<float>& values) { return numbers(values).requires_grad(); }

// The loss is made on line 5 as well: what goes wrong backward comes from there.
Tensor gradient_of(const Tensor& x, const std::function<Tensor(const Tensor&)>& f) {
  return f(x).sum().gradient({x})[0];
}

std::vector<Planted> planted() {
  return {
      {"log of a negative number",
       [] { return numbers({1, -2, 3}).log() + 1.0; },
       {"Log2 gives nan at [1]", "of shape (3,)", "from -2", "1 of 3"}},
      {"log of zero",
       [] { return numbers({1, 2, 0}).log(); },
       {"Log2 gives -inf at [2]", "from 0"}},
      {"a division by zero", [] { return numbers({1, 4}) / numbers({2, 0}); }, {"inf at [1]", "0"}},
      {"zero by zero", [] { return numbers({0, 4}) / numbers({0, 2}); }, {"nan at [0]"}},
      {"a root of a negative number",
       [] { return numbers({4, -1}).sqrt(); },
       {"Sqrt gives nan at [1]", "from -1"}},
      {"exp beyond the range",
       [] { return numbers({1, 200, 3}).exp(); },
       {"Exp2 gives inf at [1]"}},
      {"the difference of two infinities: where they come from",
       [] {
         const Tensor big = numbers({100, 1}).exp();
         return big - big * 2.0;
       },
       {"gives inf at [0]"}},
      {"zero times infinity, which the user has put there",
       [] { return numbers({0, 1}) * Tensor(inf); },
       {"Mul gives nan at [0]", "0 and inf"}},
      {"a power of a negative number",
       [] { return numbers({2, -8}).pow(numbers({0.5, 0.5})); },
       {"nan at [1]"}},
      {"a row of a softmax that is all masked",
       [] {
         const Tensor mask = Tensor::from<int32_t>({1, 0, 0, 0}).reshape({2, 2}).realize() == 0;
         return numbers({1, 2, 3, 4}).reshape({2, 2}).masked_fill(mask, -inf).softmax(1);
       },
       {"gives nan at [1, 0] of a float32 of shape (2, 2)"}},
      {"a sum of half precision that is too large",
       [] {
         return Tensor::full({4}, Size(60000), DType::Float16)
             .realize()
             .cast(DType::Float32)
             .sum()
             .cast(DType::Float16);
       },
       {"Cast gives inf", "of a float16 of shape ()", "from 240000"}},
      {"backward: the root at zero",
       [] { return gradient_of(weights({4, 0}), [](const Tensor& x) { return x.sqrt(); }); },
       {"inf at [1]"}},
      {"backward: a log that a where hides",
       [] {
         return gradient_of(weights({4, 0}), [](const Tensor& x) {
           return Tensor::where(x > 0.0, x.log(), Tensor(0.0));
         });
       },
       {"at [1]"}},
      {"backward: a norm with a division by itself",
       [] {
         return gradient_of(weights({0, 0}),
                            [](const Tensor& x) { return x / x.square().sum().sqrt(); });
       },
       {"net.py:5"}},
      {"backward: a power of zero",
       [] { return gradient_of(weights({0, 2}), [](const Tensor& x) { return x.pow(0.5); }); },
       {"at [0]"}},
      {"what was in memory before",
       [] { return numbers({1, NAN}) * 2.0; },
       {"a tensor in memory holds nan at [1]"}},
      {"an assigned value",
       [] {
         Tensor w = numbers({1, 2});
         w.assign(w / numbers({0, 1}));
         return w;
       },
       {"inf at [0]"}},
  };
}

}  // namespace

TEST(first_nan, spec_D6_is_named_with_its_op_element_inputs_and_line) {
  for (const Planted& p : planted()) {
    SCOPED_TRACE(p.name);
    const OriginScope scope(origin_at("net.py", 5, "loss"));
    const std::string text = said_of(p.make());
    expect_said(text, {"KOINE_NAN=1: ", "unset KOINE_NAN"});
    expect_said(text, p.says);
    if (text.find("a tensor in memory") == std::string::npos)
      expect_said(text, {"made at net.py:5 in loss"});
  }
}

// The op that is named is the first: what comes before and behind it are on other lines.
TEST(first_nan, spec_D6_is_the_first_of_a_chain) {
  Tensor x = numbers({0.5, 3, 0.25});
  auto at = [](int64_t number) { return origin_at("chain.py", number, ""); };
  for (int64_t i = 1; i <= 9; ++i) {
    const OriginScope scope(at(i));
    x = i == 4 ? (1.0 - x * 0.5).log() : x * 1.0009765625 + 1.0;
    if (i == 3) x = x - 3.0;
  }
  expect_said(said_of(x.sum()), {"Log2 gives nan at [1]", "made at chain.py:4"});
}

TEST(first_nan, nothing_is_said_of_finite_values_and_of_infinities_that_vanish) {
  const Tensor x = numbers({1, 0, 3});
  EXPECT_EQ(said_of(x.log().exp()), "");  // -inf on the way
  EXPECT_EQ(said_of(Tensor::where(x > 0.0, x.log(), Tensor(0.0))), "");
  const Tensor mask = Tensor::from<int32_t>({1, 0, 1}).realize() == 0;
  EXPECT_EQ(said_of(x.masked_fill(mask, -inf).softmax(0)), "");
  EXPECT_EQ(said_of(Tensor::zeros({0})), "");
  EXPECT_EQ(said_of(Tensor(2.0)), "");
  EXPECT_EQ(said_of(Tensor::arange(5)), "");
  // Without the switch nobody looks.
  EXPECT_NO_THROW((void)numbers({-1}).log().realize());
}

// Nothing has happened where an Error was thrown.
TEST(first_nan, a_refused_assignment_keeps_the_old_value) {
  Tensor w = numbers({1, 2});
  const Tensor seen = w * 1.0;
  w.assign(w / numbers({0, 1}));
  expect_said(said_of(w), {"inf at [0]"});
  EXPECT_EQ(seen.tolist<float>(), (std::vector<float>{1, 2}));
}

TEST(first_nan, functions_are_looked_into_and_loops_are_one_op) {
  const Tensor x = numbers({1, -1});
  const auto f = checkpoint([](const Tensor& in) { return (in * 2.0).sqrt() + 1.0; });
  expect_said(said_of(f(x)), {"Sqrt gives nan at [1]", "from -2"});
  const auto last =
      scan([](const Tensor& c, const Tensor& r) { return std::pair(c / r, std::tuple<>()); },
           Tensor(1.0), numbers({2, 0, 1}))
          .first;
  expect_said(said_of(last), {"Scan gives inf of a float32 of shape ()"});
}
}  // namespace koine::test
