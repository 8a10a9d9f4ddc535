#include "guide.hpp"

#include "check.hpp"
#include "koine/ir/linear.hpp"
#include "koine/render/cstyle.hpp"

namespace koine::test {

using namespace compat;

namespace {

constexpr DType i32 = DType::Int32;

}  // namespace

UOpGraph loop_graph() {
  UOpGraph g;
  const auto c0 = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto c1 = g.add(UOps::CONST, {.dtype = i32, .arg = 10});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {c0, c1}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  return g;
}

UOpGraph store_graph() {
  UOpGraph g;
  const auto c1 = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .vin = {}, .arg = {0, "data0", true}});
  const auto c2 = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto c3 = g.add(UOps::CONST, {.dtype = i32, .arg = 10});
  g.add(UOps::STORE, {.vin = {c1, c2, c3}});
  return g;
}

UOpGraph addition_graph(bool threads) {
  UOpGraph g;
  const auto c1 = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .vin = {}, .arg = {0, "data0", true}});
  const auto x1 = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .vin = {}, .arg = {1, "data1", false}});
  const auto x2 = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .vin = {}, .arg = {2, "data2", false}});
  const auto pos_input = threads ? g.add(UOps::SPECIAL, {.dtype = i32, .arg = {0, "gidx0", 10}})
                                 : g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto x1_loaded = g.add(UOps::LOAD, {.dtype = i32, .vin = {x1, pos_input}});
  const auto x2_loaded = g.add(UOps::LOAD, {.dtype = i32, .vin = {x2, pos_input}});
  const auto c4 =
      g.add(UOps::ALU, {.dtype = i32, .vin = {x1_loaded, x2_loaded}, .arg = BinaryOps::ADD});
  g.add(UOps::STORE, {.vin = {c1, pos_input, c4}});
  return g;
}

UOpGraph dot_graph() {
  UOpGraph g;
  const auto out = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {0, "data0", true}});
  const auto a = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {1, "data1", false}});
  const auto b = g.add(UOps::DEFINE_GLOBAL, {.dtype = i32, .arg = {2, "data2", false}});
  const auto acc = g.add(UOps::DEFINE_ACC, {.dtype = i32, .arg = 0, .cachable = false});
  const auto zero = g.add(UOps::CONST, {.dtype = i32, .arg = 0});
  const auto two = g.add(UOps::CONST, {.dtype = i32, .arg = 2});
  const auto loop = g.add(UOps::LOOP, {.dtype = i32, .vin = {zero, two}, .cachable = false});
  const auto x = g.add(UOps::LOAD, {.dtype = i32, .vin = {a, loop}});
  const auto y = g.add(UOps::LOAD, {.dtype = i32, .vin = {b, loop}});
  const auto product = g.add(UOps::ALU, {.dtype = i32, .vin = {x, y}, .arg = BinaryOps::MUL});
  const auto sum = g.add(UOps::ALU, {.dtype = i32, .vin = {product, acc}, .arg = BinaryOps::ADD});
  const auto phi = g.add(UOps::PHI, {.dtype = i32, .vin = {acc, sum, loop}});
  g.add(UOps::ENDLOOP, {.vin = {loop}});
  g.add(UOps::STORE, {.vin = {out, zero, phi}});
  return g;
}

void expect_guide_computes(std::string_view language, const CText::Load& load) {
  const UOpGraph graphs[] = {loop_graph(), store_graph(), addition_graph(false),
                             addition_graph(true), dot_graph()};
  std::vector<UOp> linears;
  std::string source;
  for (const UOpGraph& g : graphs) {
    const std::string name = fmt::format("k{}", linears.size());
    linears.push_back(lower(g, name, text_target(language, true)).linear);
    source += render(language, name, linears.back(), source.empty());
    if (!load) source += fmt::format("KOINE_RUN({})\n", name);
  }
  const std::unique_ptr<TextLibrary> library = load ? load(source) : text_library(language, source);
  const auto run = [&](size_t number, std::vector<std::vector<int32_t>> data) {
    const Signature signature = signature_of(linears[number]);
    std::vector<TextLibrary::Given> given;
    for (const int64_t slot : signature.slots) {
      auto& d = data[static_cast<size_t>(slot)];
      given.push_back({d.data(), static_cast<int64_t>(d.size() * sizeof(int32_t))});
    }
    EXPECT_EQ(given.size(), data.size());
    library->run(fmt::format("k{}", number), given, signature, {});
    return data.empty() ? std::vector<int32_t>() : data[0];
  };
  std::vector<int32_t> a(10), b(10), sums(10), first(10, -1);
  for (size_t i = 0; i < 10; ++i) {
    a[i] = static_cast<int32_t>(i * i) - 7;
    b[i] = INT32_MAX - static_cast<int32_t>(9 * i);
    sums[i] = static_cast<int32_t>(static_cast<uint32_t>(a[i]) + static_cast<uint32_t>(b[i]));
  }
  const std::vector<int32_t> untouched = first;
  EXPECT_TRUE(run(0, {}).empty()) << language;
  first[0] = 10;
  EXPECT_EQ(run(1, {untouched}), first) << language;
  first[0] = sums[0];
  EXPECT_EQ(run(2, {untouched, a, b}), first) << language;
  EXPECT_EQ(run(3, {untouched, a, b}), sums) << language;
  EXPECT_EQ(run(4, {{0}, {3, 4}, {5, -6}}), std::vector<int32_t>{-9}) << language;
}

}  // namespace koine::test
