// Kernels on a GPU of NVIDIA's, beside the interpreter. Other tests of CUDA's text (groups.*,
// tensor_cores.*, builder.*, fuzz.c_text_*) run there too where there is one; these are of what has
// no other way to run.
#include <cmath>
#include <cstdint>

#include "by_hand.hpp"
#include "cuda_text.hpp"
#include "graphs.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"

namespace koine::test {
namespace {

class cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_missing().empty()) GTEST_SKIP() << cuda_missing();
  }
};

CText on_gpu(const std::string& language, bool fused = false) {
  return CText(language, [=](const std::string& source) {
    return std::make_unique<CudaLibrary>(source, language, fused);
  });
}

// In strict and in default mode.
void expect_random_graphs_agree(const std::string& language, uint64_t salt) {
  Features features = Features::all();
  features.raw_bytes = false;  // bytes of the program's own are no buffer of a kernel
  const int64_t cases = test_cases(200);
  CText text = on_gpu(language);
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + salt + static_cast<uint64_t>(i));
    text.add(random_graph(random, features));
  }
  text.check();
}

}  // namespace

TEST_F(cuda, spec_L8_ptx_of_groups_computes_the_same) {
  CText text = on_gpu("ptx");
  text.add((small({300}, 1) * Tensor(2.0)).uop());
  text.add(small({3, 500}, 2).sum({1}).uop());
  text.add(small({9, 33}, 3).softmax(1).uop());
  text.add(small({20, 30}, 4).matmul(small({30, 25}, 5)).uop());
  text.add(small({8, 6}, 6).pad({{1, 2}, {0, 3}}, 7.0).uop());
  text.add(small({1, 2, 7, 7}, 7).conv2d(small({3, 2, 3, 3}, 8)).uop());
  for (const DType d : stored_dtypes()) {
    const UOp x = leaf({60}, d), y = leaf({60}, d, 1);
    text.add(add(x, y));
    if (d != DType::Bool) text.add(mod(x, y));
  }
  text.check();
}

TEST_F(cuda, spec_amend_32_random_graphs_in_cuda_agree_with_the_interpreter) {
  expect_random_graphs_agree("cuda", 377);
}

TEST_F(cuda, spec_amend_32_random_graphs_in_ptx_agree_with_the_interpreter) {
  expect_random_graphs_agree("ptx", 477);
}

// Whoever compiles a text of default mode himself has a compiler that contracts.
TEST_F(cuda, random_graphs_that_the_compiler_fuses_stay_within_the_bound) {
  const int64_t cases = test_cases(200);
  CText text = on_gpu("cuda", true);
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 577 + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    text.add(graph, interpret_bounded(graph, bindings_of(graph)));
  }
  text.check();
}

TEST_F(cuda, spec_O7_random_edits_keep_values) {
  const int64_t cases = test_cases(200);
  CText texts[] = {on_gpu("cuda"), on_gpu("ptx")};
  int64_t edited = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 677 + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    const OptionScope mode(i / 2 % 2 == 0 ? strict_options() : options());
    edited += texts[i % 2].add_edited(graph, random) ? 1 : 0;
  }
  EXPECT_GE(edited, cases / 4) << "of " << cases;
  for (CText& text : texts) text.check();
}

// What NVIDIA's compilers make of some programs is wrong: texts say these in other words.
TEST_F(cuda, what_compilers_get_wrong_is_said_otherwise) {
  constexpr DType i32 = DType::Int32;
  const std::vector<int32_t> ends{INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX};
  std::vector<int32_t> columns[3];
  for (const int32_t a : ends)
    for (const int32_t b : ends)
      for (const int32_t c : ends) {
        columns[0].push_back(a);
        columns[1].push_back(b);
        columns[2].push_back(c);
      }
  const auto buffer = [](const auto& values, DType d) {
    return buffer_from_host(shape_of({static_cast<int64_t>(values.size())}), d, "CPU",
                            values.data());
  };
  const UOp a = buffer(columns[0], i32), b = buffer(columns[1], i32), c = buffer(columns[2], i32),
            minus = constant_int(i32, -1);
  const std::vector<double> zeros{-0.0, 0.0, -1.0, 1.0, std::nan(""), -HUGE_VAL};
  for (const std::string language : {"cuda", "ptx"}) {
    CText text = on_gpu(language);
    text.add(maximum(maximum(neg(a), b), c));
    text.add(maximum(maximum(idiv(a, minus), neg(b)), neg(c)));
    text.add(reduce(Op::Max, neg(a), {0}));
    text.add(reduce(Op::Max, reshape(neg(b), shape_of({6, 36})), {1}));
    for (const DType d : {DType::Int8, DType::Int16, DType::Int32, DType::Int64}) {
      const UOp lowest = binary(Op::Shl, cast(b, d), constant_int(d, item_size(d) * 8 - 1)),
                n = neg(bit_or(lowest, cast(lt(a, c), d)));
      text.add(idiv(n, cast(maximum(c, constant_int(i32, -8)), d)));
      text.add(cast(n, DType::Float64));
      text.add(lt(n, constant_int(d, 0)));
      const UOp greatest = reduce(Op::Max, cast(bit_and(b, constant_int(i32, 85)), d), {0}),
                ten = constant_int(d, 10);
      text.add(mod(ten, maximum(greatest, constant_int(d, 0))));
      text.add(where(eq(maximum(greatest, constant_int(d, 0)), constant_int(d, 0)), ten, greatest));
    }
    for (const DType d : {DType::Float64, DType::Float32, DType::Float16}) {
      const UOp x = cast(buffer(zeros, DType::Float64), d), zero = constant(d, 0);
      for (const UOp& below : {lt(x, zero), lt(zero, x)})
        for (const UOp& value : {where(below, x, zero), where(below, zero, x)}) text.add(value);
    }
    text.check();
  }
}

TEST_F(cuda, spec_X3_threads_add_to_one_place_at_once) {
  constexpr int64_t numbers = 1000000, bins = 1000;
  const UOp ast = histogram(numbers, bins, DType::Int32);
  std::vector<int32_t> values(numbers), expected(bins);
  std::mt19937_64 random(test_seed());
  for (int32_t& v : values) {
    v = static_cast<int32_t>(random() % bins);
    ++expected[static_cast<size_t>(v)];
  }
  for (const std::string language : {"cuda", "ptx"}) {
    const bool ptx = language == "ptx";
    const Target target = ptx ? ptx_target(false) : text_target("cuda", false);
    const UOp linear = lower_kernel(ast, target).linear;
    const CudaLibrary library(ptx ? render_ptx(linear, "k", target) : render("cuda", "k", linear),
                              language);
    std::vector<int32_t> out(bins);
    library.run("k", {{out.data(), bins * 4}, {values.data(), numbers * 4}}, signature_of(linear),
                {});
    EXPECT_EQ(out, expected) << language;
  }
}

TEST_F(cuda, a_text_that_is_refused_comes_with_the_log) {
  for (const auto& [language, text, part] :
       {std::tuple{"cuda", "__global__ void broken( {", "error"},
        std::tuple{"ptx", ".version 7.0\n.target sm_80\nbroken", "cuModuleLoadData"}})
    try {
      const CudaLibrary library(text, language);
      ADD_FAILURE() << "it was taken";
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
}

}  // namespace koine::test
