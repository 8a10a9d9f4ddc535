// What a reduced failure is printed as: C++ that builds the very node.
#include "to_cpp.hpp"

#include <unistd.h>

#include "check.hpp"
#include "isolate.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {

TEST(to_cpp, the_text_builds_the_same_node) {
  const UOp b7 =
      UOp::make(Op::Buffer, {shape_of({2, 3})}, BufferArg{7, DType::Float32, Device("CPU")});
  const UOp v = variable("n", 1, 4);
  const UOp graph =
      add(reduce(Op::Max, permute(mul(b7, constant(DType::Float32, 2.5)), {1, 0}), {0}),
          cast(cast(v, DType::Int32), DType::Float32));
  ASSERT_EQ(to_cpp(graph),
            "const UOp n0 = UOp::make(Op::Mul, {b7, constant_bits(DType::Float32, 0x40200000)});\n"
            "const UOp n1 = UOp::make(Op::Permute, {n0}, Ints{1, 0});\n"
            "const UOp n2 = UOp::make(Op::Reduce, {n1}, ReduceArg{Op::Max, {0}});\n"
            "const UOp n3 = variable(\"n\", 1, 4);\n"
            "const UOp n4 = UOp::make(Op::Cast, {n3}, DType::Int32);\n"
            "const UOp n5 = UOp::make(Op::Cast, {n4}, DType::Float32);\n"
            "const UOp root = UOp::make(Op::Add, {n2, n5});\n");
  const UOp n0 = UOp::make(Op::Mul, {b7, constant_bits(DType::Float32, 0x40200000)});
  const UOp n1 = UOp::make(Op::Permute, {n0}, Ints{1, 0});
  const UOp n2 = UOp::make(Op::Reduce, {n1}, ReduceArg{Op::Max, {0}});
  const UOp n3 = variable("n", 1, 4);
  const UOp n4 = UOp::make(Op::Cast, {n3}, DType::Int32);
  const UOp n5 = UOp::make(Op::Cast, {n4}, DType::Float32);
  const UOp root = UOp::make(Op::Add, {n2, n5});
  EXPECT_EQ(root, graph);
}

TEST(isolate, a_crash_is_one_case) {
  std::vector<std::pair<int64_t, std::string>> seen;
  check_isolated(
      20, 8,
      [](int64_t i) -> std::string {
        if (i == 3) std::abort();
        if (i == 5) throw std::runtime_error("five");
        return i == 17 ? "seventeen" : "";
      },
      [&](int64_t i, const std::string& problem) {
        seen.emplace_back(i, problem);
        return true;
      });
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].first, 3);
  EXPECT_EQ(seen[0].second.substr(0, 14), "crash: Aborted");
  EXPECT_EQ(seen[1], (std::pair<int64_t, std::string>(5, "exception: five")));
  EXPECT_EQ(seen[2], (std::pair<int64_t, std::string>(17, "seventeen")));
  EXPECT_EQ(in_child([] { return std::string("said"); }), "said");
  const auto waits = []() -> std::string {
    for (;;) pause();
  };
  const auto computes = []() -> std::string {
    for (volatile bool ends = false; !ends;) {
    }
    return "";
  };
  EXPECT_NE(in_child(waits, 0.05).find("too long"), std::string::npos);
  EXPECT_NE(in_child(computes, 0.05).find("too long"), std::string::npos);
}

}  // namespace koine::test
