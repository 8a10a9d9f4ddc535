// Texts in OpenCL C, beside the interpreter: as the device CL lowers kernels for a CPU ("CL") and for
// groups of work items ("GROUPS"), and as `koine render --target=opencl` does for any hardware ("").
#include "cl_text.hpp"
#include "graphs.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

CText on_cl(const std::string& device) {
  CText::For target;
  if (!device.empty()) target = [device] { return device_runtime(device).target(); };
  return CText(
      "opencl", [](const std::string& source) { return std::make_unique<ClLibrary>(source); },
      target);
}

std::vector<CText> on_each() { return {on_cl("CL"), on_cl(groups_device()), on_cl("")}; }

}  // namespace

TEST(cl, spec_amend_32_random_graphs_as_text_agree_with_the_interpreter) {
  Features features = Features::all();
  features.raw_bytes = false;  // bytes of the program's own are no buffer of a kernel
  CText text = on_cl("");
  for (int64_t i = 0; i < test_cases(60); ++i) {
    std::mt19937_64 random(test_seed() + 777 + static_cast<uint64_t>(i));
    text.add(random_graph(random, features));
  }
  text.check();
}

// KOINE_TEST_CASES=20000 by hand.
TEST(cl, spec_O7_random_edits_keep_values) {
  const int64_t cases = test_cases(240);
  std::vector<CText> texts = on_each();
  int64_t edited = 0;
  for (int64_t i = 0; i < cases; ++i) {
    const auto which = static_cast<size_t>(i);
    std::mt19937_64 random(test_seed() + 877 + which);
    const UOp graph = random_graph(random);
    const OptionScope mode(i / 3 % 2 == 0 ? strict_options() : options());
    edited += texts[which % texts.size()].add_edited(graph, random) ? 1 : 0;
  }
  EXPECT_GE(edited, cases / 4) << "of " << cases;
  for (CText& text : texts) text.check();
}

}  // namespace koine::test
