// A second opinion: kernels as C text, compiled by the system's compiler, against the interpreter.
#include "c_text.hpp"
#include "graphs.hpp"

namespace koine::test {

// What makes a graph, and what it is compiled as: told where values differ.
std::mt19937_64 random_of_case(int64_t i, std::string& told) {
  const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
  told = fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1", seed);
  return std::mt19937_64(seed);
}

TEST(fuzz, c_text_spec_amend_32_agrees_with_the_interpreter) {
  const int64_t cases = test_cases(2000);
  // A compiler that optimises takes three times as long: one case in four sees it.
  CText optimised("c", 1), plain;
  std::string told;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random = random_of_case(i, told);
    Features features = Features::all();
    features.raw_bytes = false;  // bytes of the program's own are no buffer of a kernel
    const UOp graph = random_graph(random, features);
    CText& text = random() % 4 == 0 ? optimised : plain;
    text.seed = told;
    text.add(graph);
  }
  optimised.check();
  plain.check();
}

// So that a run of any length holds no more than some cases at a time.
TEST(fuzz, c_text_of_many_kernels_is_several_sources) {
  std::vector<size_t> kernels;  // of each source
  CText text("c", [&](const std::string& source) {
    kernels.push_back(0);
    for (size_t at = 0; (at = source.find("\nvoid k", at)) != source.npos; ++at) ++kernels.back();
    return std::make_unique<CLibrary>(source);
  });
  const OptionScope mode(strict_options());
  const UOp value = neg(leaf({3}, DType::Int32));
  const Array expected = interpret(value, bindings_of(value));
  for (size_t i = 0; i < CText::most_functions + 7; ++i) text.add(value, {expected, {}});
  EXPECT_EQ(kernels, std::vector<size_t>{CText::most_functions});
  text.check();
  EXPECT_EQ(kernels, (std::vector<size_t>{CText::most_functions, 7}));
}

// Kernels that are shaped for a GPU, as texts whose groups run on this machine.
TEST(fuzz, c_text_spec_amend_32_of_languages_with_groups_agrees_with_the_interpreter) {
  const int64_t cases = test_cases(600);
  CText texts[] = {CText("cuda"), CText("hip"), CText("metal")};
  int64_t without_double = 0;
  std::string told;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random = random_of_case(i, told);
    Features features = Features::all();
    features.raw_bytes = false;
    const UOp graph = random_graph(random, features);
    CText& text = texts[random() % 3];
    text.seed = told;
    try {
      text.add(graph);
    } catch (const Error& e) {  // Metal has no double, which sines and powers ask for as well
      ASSERT_NE(std::string(e.what()).find("has no type for float64"), std::string::npos)
          << e.what();
      ++without_double;
    }
  }
  EXPECT_TRUE(without_double <= cases / 6 || cases < 100) << without_double << " of " << cases;
  for (CText& text : texts) text.check();
}

// And with edits that no heuristic has chosen.
TEST(fuzz, c_text_spec_O7_of_edited_kernels_agrees_with_the_interpreter) {
  const int64_t cases = test_cases(400);
  CText texts[] = {CText("cuda"), CText("hip"), CText("metal")};
  int64_t edited = 0;
  std::string told;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random = random_of_case(i, told);
    const UOp graph = random_graph(random);
    const OptionScope mode(random() % 2 == 0 ? strict_options() : options());
    CText& text = texts[random() % 3];
    text.seed = told;
    try {
      if (text.add_edited(graph, random)) ++edited;
    } catch (const Error& e) {
      ASSERT_NE(std::string(e.what()).find("has no type for float64"), std::string::npos)
          << e.what() << " " << told;
    }
  }
  EXPECT_TRUE(edited >= cases / 4 || cases < 100) << edited << " of " << cases;
  for (CText& text : texts) text.check();
}

}  // namespace koine::test
