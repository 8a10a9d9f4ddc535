// Texts in OpenCL C, beside the interpreter: as the device CL lowers kernels for a CPU ("CL") and
// for groups of work items ("GROUPS"), and as `koine render --target=opencl` does for any hardware
// ("").
#include <bit>

#include "by_hand.hpp"
#include "cl_text.hpp"
#include "graphs.hpp"
#include "guide.hpp"
#include "koine/runtime/device.hpp"
#include "random_edits.hpp"

namespace koine::test {
namespace {

std::unique_ptr<TextLibrary> load(const std::string& source) {
  return std::make_unique<ClLibrary>(source);
}

CText on_cl(const std::string& device) {
  CText::For target;
  if (!device.empty()) target = [device] { return device_runtime(device).target(); };
  return CText("opencl", load, target);
}

std::vector<CText> on_each() { return {on_cl("CL"), on_cl(groups_device()), on_cl("")}; }

}  // namespace

TEST(cl, launches_tell_a_text_its_numbers_and_offsets) {
  for (CText& text : on_each()) {
    text.add(told_by_arguments());
    text.check();
  }
}

TEST(cl, spec_amend_32_random_graphs_as_text_agree_with_the_interpreter) {
  Features features = Features::all();
  features.raw_bytes = false;  // bytes of the program's own are no buffer of a kernel
  CText text = on_cl("");
  for (int64_t i = 0; i < test_cases(60); ++i) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(i));
    text.seed = fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1",
                            test_seed() + static_cast<uint64_t>(i));
    text.add(random_graph(random, features));
  }
  text.check();
}

// Each split, and some of the pairs of them, in strict mode where no sum is reordered.
TEST(cl, spec_O2_splits_of_gemm_reduce_and_softmax_keep_the_values) {
  const Tensor a = small({8, 24}, 1), b = small({24, 8}, 2);
  std::mt19937_64 random(test_seed());
  for (const std::string& device : {std::string("CL"), groups_device()}) {
    CText text = on_cl(device);
    for (const UOp& value : {a.matmul(b).uop(), a.sum(1).uop(), a.softmax(1).uop()}) {
      const Bindings bindings = bindings_of(value);
      const BoundedArray exact{interpret(value, bindings), {}},
          bounded = interpret_bounded(value, bindings);
      const auto add = [&](const std::vector<Opt>& opts) {
        const bool same = std::none_of(opts.begin(), opts.end(), reorders);
        const OptionScope mode(same ? strict_options() : options());
        text.add(value, same ? exact : bounded, KernelEdits{0, opts});
      };
      const std::vector<Kernel> kernels = text.kernels(value);
      ASSERT_EQ(kernels.size(), 1u);
      const std::vector<Opt> splits = legal_splits(kernels[0].ast, {4}, text.target());
      EXPECT_GE(splits.size(), 12u) << to_text(value);
      for (const Opt& first : splits) {
        add({first});
        if (random() % 3 > 0) continue;
        const UOp ast = apply_opt(kernels[0].ast, first, text.target());
        const std::vector<Opt> others = legal_splits(ast, {2}, text.target());
        add({first, others[random() % others.size()]});
      }
    }
    text.check();
  }
}

// LLVM 14 and 15 lose bools of vectors that live across a branch (AVX-512), and PoCL's trunc has
// branches: where it stands for the test of a whole exponent, a power that is NaN was infinite.
TEST(cl, lanes_of_powers_of_negative_numbers_are_nan) {
  const auto buffer = [](const std::vector<float>& values, Shape shape) {
    return Tensor::from(values, shape).realize();
  };
  const Tensor base = buffer({-238, 15.59375f}, {2, 1}),
               exponent = buffer({3413.1963f, -10.167969f, 481.1875f, -578.6328f, -1212.7969f, 2171,
                                  -566.3164f, 481.1875f, -22.484375f, 29.399414f},
                                 {2, 5});
  const UOp value = (base.pow(exponent) - 1).uop();
  const OptionScope mode(strict_options());
  CText text = on_cl("CL");
  text.add(value, {interpret(value, bindings_of(value)), {}},
           KernelEdits{0,
                       {{OptOp::Split, 0, 2, AxisType::Upcast, true},
                        {OptOp::Split, 1, 5, AxisType::Upcast, true}}});
  text.check();
}

// Each row's sum begins with lanes that are filled with zeros, in a loop with barriers.
TEST(cl, spec_O1f_groups_sum_row_after_row_from_lanes_of_zeros) {
  const UOp value = reduce(Op::Add, leaf({5, 4, 3}, DType::Int32, 1), {1});
  CText text = on_cl(groups_device());
  text.add(value, {interpret(value, bindings_of(value)), {}},
           KernelEdits{0,
                       {{OptOp::Split, 2, 2, AxisType::GroupReduce, false},
                        {OptOp::Split, 1, 3, AxisType::Upcast, true}}});
  text.check();
}

// KOINE_TEST_CASES=20000 by hand.
TEST(cl, spec_O7_random_edits_keep_values) {
  const int64_t cases = test_cases(240);
  std::vector<CText> texts = on_each();
  int64_t edited = 0;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
    std::mt19937_64 random(seed);
    const UOp graph = random_graph(random);
    CText& text = texts[random() % texts.size()];
    text.seed = fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1", seed);
    const OptionScope mode(random() % 2 == 0 ? strict_options() : options());
    edited += text.add_edited(graph, random) ? 1 : 0;
  }
  EXPECT_TRUE(edited >= cases / 4 || cases < 100) << edited << " of " << cases;
  for (CText& text : texts) text.check();
}

// The programs by hand of interp_test.
TEST(cl, spec_X1_work_items_wait_for_each_other) {
  expect_threads_wait(Texts("opencl", programs_by_hand(), load));
}

TEST(cl, spec_H2_spec_H3_spec_H4_spec_H8_the_kernels_of_the_guide_run) {
  expect_guide_computes("opencl", load);
}

TEST(cl, spec_X3_an_instruction_and_code_stand_inside_of_a_kernel) {
  std::vector<int64_t> words(40), bits(40);
  std::mt19937_64 random(test_seed());
  for (size_t i = 0; i < 40; ++i)
    bits[i] = std::popcount(static_cast<uint64_t>(words[i] = static_cast<int64_t>(random())));
  const auto counted_by = [&](Op op, const char* text, const std::string& device) {
    const UOp ast =
        kernel_of_40(DType::Int64, [&](const UOp& v) { return code(op, text, DType::Int64, {v}); });
    return run_by_hand(ast, device, std::vector<int64_t>(40), words);
  };
  for (const std::string& device : {std::string("CL"), groups_device()}) {
    EXPECT_EQ(counted_by(Op::Custom, "popcount({0})", device), bits);
#if defined(__x86_64__)
    EXPECT_EQ(counted_by(Op::Ins, "popcntq $1, $0|=r,r", device), bits);
#endif
  }
  // What the compiler does not know is an error with its words.
  expect_error([&] { (void)counted_by(Op::Custom, "no_such({0})", "CL"); },
               {"device CL: the compiler of", "no_such"});
}

}  // namespace koine::test
