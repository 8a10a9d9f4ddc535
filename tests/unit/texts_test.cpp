// The whole texts of small kernels, a file a language: a gate, a sum of a group's threads, vectors.
// KOINE_TEST_FIX=1 writes the files.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../data/texts/added.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"

namespace koine::test {
namespace {

struct Sample {
  const char* name;
  UOp value;
  std::vector<Opt> opts;  // of a machine with groups; others do what of it they can
};

std::vector<Sample> samples() {
  const auto split = [](int axis, int64_t by, AxisType to) {
    return Opt{OptOp::Split, axis, by, to, false};
  };
  const auto floats = [](std::vector<int64_t> sizes, uint64_t salt) {
    return leaf(sizes, DType::Float32, salt);
  };
  const UOp x = floats({64}, 1), y = floats({64}, 2);
  const UOp filled = pad(floats({5}, 3), shape_of({1}), shape_of({8}), constant(DType::Float32, 7));
  return {{"gate", mul(filled, constant(DType::Float32, 0.1)), {split(0, 0, AxisType::Global)}},
          {"sum",
           reduce(Op::Add, floats({3, 64}, 4), {1}),
           {split(1, 16, AxisType::GroupReduce), split(0, 0, AxisType::Global)}},
          {"vectors",
           add(mul(x, y), constant(DType::Float32, 1)),
           {split(0, 4, AxisType::Upcast), split(0, 8, AxisType::Local),
            split(0, 0, AxisType::Global)}}};
}

std::string text_of(std::string_view language) {
  const bool ptx = language == "ptx";
  const Target target = ptx ? ptx_target(true) : text_target(language, true);
  std::string out;
  for (const Sample& s : samples()) {
    std::vector<Opt> opts = s.opts;
    if (!target.groups)
      std::erase_if(opts, [](const Opt& o) {
        return o.target == AxisType::Global || o.target == AxisType::Local;
      });
    const UOp linear = lower_kernel(schedule({s.value})[0].ast, target, {}, &opts).linear;
    out +=
        (ptx ? render_ptx(linear, s.name, target) : render(language, s.name, linear, out.empty())) +
        "\n";
  }
  return out;
}

}  // namespace

TEST(texts, launches_tell_a_kernel_their_numbers_and_offsets) {
  const auto has_both = [](const Kernel& k) { return k.variables.size() == 2; };
  for (const char* language : {"c", "cuda", "hip", "metal"}) {
    CText text(language);
    for (const DType d : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
      if (d == DType::Float64 && std::string_view(language) == "metal") continue;
      const UOp value = told_by_arguments(d);
      EXPECT_EQ(std::ranges::count_if(text.kernels(value), has_both), 2) << language;
      text.add(value);
    }
    text.check();
  }
}

// Each has the bounds of its own dtype.
TEST(texts, launches_tell_a_kernel_numbers_of_two_dtypes) {
  const Tensor x(leaf({8}, DType::Float32, 1));
  const auto part = [&](double added) {
    return ((x + Tensor(added)).cast(DType::Float64) * Tensor(added / 3)).contiguous();
  };
  const UOp value = (part(1.5) + part(-0.375).flip({0})).uop();
  for (const char* language : {"c", "cuda", "hip"}) {
    CText text(language);
    EXPECT_EQ(text.kernels(value)[1].variables.size(), 2u);
    text.add(value);
    text.check();
  }
}

TEST(texts, spec_L8_of_every_language_are_those_in_their_files) {
  std::vector<std::string_view> languages{"ptx"};
  for (const Dialect* dialect : dialects()) languages.push_back(dialect->name);
  for (const std::string_view language : languages) {
    const std::string file = fmt::format("tests/data/texts/{}.txt", language);
    const std::string text = text_of(language);
    if (std::getenv("KOINE_TEST_FIX") != nullptr) {
      std::ofstream(file) << text;
      continue;
    }
    std::stringstream read;
    read << std::ifstream(file).rdbuf();
    EXPECT_EQ(read.str(), text) << "KOINE_TEST_FIX=1 writes " << file;
  }
}

// NVIDIA's own compilers take them, where they are.
TEST(texts, spec_L8_nvidias_compilers_take_cuda_and_ptx) {
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("koine_nvidia_{}", getpid());
  std::filesystem::create_directories(folder);
  const auto found = [](const char* program) {
    return std::system(fmt::format("command -v {} >/dev/null", program).c_str()) == 0;
  };
  const auto compile = [&](const std::string& command, const char* file, const std::string& text) {
    std::ofstream(folder / file) << text;
    EXPECT_EQ(std::system(fmt::format("cd {} && {} {}", folder.string(), command, file).c_str()), 0)
        << text;
  };
  const bool has_nvcc = found("nvcc"), has_ptxas = found("ptxas");
  if (has_nvcc) compile("nvcc -w -cubin -arch=sm_80 --fmad=false", "kernels.cu", text_of("cuda"));
  const Target target = ptx_target(true);
  if (has_ptxas)
    for (const Sample& s : samples()) {
      const UOp linear = lower_kernel(schedule({s.value})[0].ast, target, {}, &s.opts).linear;
      compile("ptxas -arch=sm_80 -o kernel.cubin", "kernel.ptx",
              render_ptx(linear, s.name, target));
    }
  // Variables are parameters too, narrow floats and bools are memory, and threads add at once.
  const UOp n = variable("n", 1, 40), i = range(0, n, AxisType::Global);
  const UOp out = param(0, shape_of({40}), DType::Float32),
            in = param(1, shape_of({40}), DType::Bool);
  const UOp sum = end(
      UOp::make(Op::AtomicAdd, {index(out, {i}), cast(load(index(in, {i})), DType::Float32)}), {i});
  const std::string text = render_ptx(lower_kernel(sink({sum}), target).linear, "add", target);
  for (const char* part : {".param .u64 add_param_2", "atom.global.add.f32", "ld.global.u8"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  if (has_ptxas) compile("ptxas -arch=sm_80 -o kernel.cubin", "kernel.ptx", text);
  std::filesystem::remove_all(folder);
  if (!has_nvcc || !has_ptxas)
    GTEST_SKIP() << (has_nvcc ? "" : "no nvcc: CUDA is not compiled. ")
                 << (has_ptxas ? "" : "no ptxas: PTX is not assembled");
}

// Lanes that are all one number have no name until one of them is asked for.
TEST(texts, a_lane_of_a_number_that_is_spread) {
  const UOp zero = index_const(0), two = index_const(2),
            out = param(0, shape_of({1}), DType::Float32),
            in = param(1, shape_of({1}), DType::Float32);
  const UOp to = index(out, {zero}), from = index(in, {zero}), number = load(from),
            lanes = UOp::make(Op::Expand, {reshape(number, shape_of({1})), shape_of({4})}),
            lane = index(lanes, {two}), pair = shrink(lanes, shape_of({1}), shape_of({2})),
            other = index(pair, {zero}), sum = add(lane, other), stored = store(to, sum);
  const UOp linear = UOp::make(Op::Linear, std::vector<UOp>{zero, two, out, in, to, from, number,
                                                            lanes, lane, pair, other, sum, stored});
  float got = 0, given = 3;
  const CLibrary library(render("c", "k", linear));
  void* memory[] = {&got, &given};
  library.function("k")(memory, nullptr, 0);
  EXPECT_EQ(got, 6);
}

// cuda_test runs them, where there is a GPU.
TEST(texts, what_nvidias_compilers_get_wrong_is_said_otherwise) {
  const UOp i = leaf({8}, DType::Int32), f = leaf({8}, DType::Float32),
            zero = constant(DType::Float32, 0);
  const auto linear_of = [](const UOp& value, const Target& target) {
    return lower_kernel(schedule({value})[0].ast, target).linear;
  };
  const Target cuda = text_target("cuda", false), ptx = ptx_target(false);
  for (const UOp& value : {neg(i), idiv(i, constant_int(DType::Int32, -1))}) {
    EXPECT_NE(render("cuda", "k", linear_of(value, cuda)).find("= (int)negated((unsigned int)v"),
              std::string::npos);
    EXPECT_EQ(render("hip", "k", linear_of(value, text_target("hip", false))).find("negated"),
              std::string::npos);
  }
  for (const DType d : stored_dtypes())
    if (is_integer(d)) {
      const UOp negative = neg(leaf({8}, d));
      EXPECT_NE(render("cuda", "k", linear_of(negative, cuda)).find(")negated((unsigned "),
                std::string::npos);
      const std::string assembly = render_ptx(linear_of(negative, ptx), "k", ptx);
      EXPECT_EQ(assembly.find("neg."), std::string::npos) << assembly;
      EXPECT_NE(assembly.find("not.b"), std::string::npos) << assembly;
      const UOp a = leaf({8}, d), b = leaf({8}, d, 1);
      for (const UOp& greater : {maximum(a, b), where(lt(a, b), b, a), where(lt(a, b), a, b)}) {
        const std::string text = render_ptx(linear_of(greater, ptx), "k", ptx);
        for (const char* narrow : {"max.s16", "max.u16", "min.s16", "min.u16"})
          EXPECT_EQ(text.find(narrow), std::string::npos) << dtype_name(d) << "\n" << text;
      }
    }
  EXPECT_NE(render("cuda", "k", linear_of(where(lt(f, zero), f, zero), cuda)).find(" < -0.0f;"),
            std::string::npos);
  EXPECT_EQ(render("cuda", "k", linear_of(where(lt(zero, f), f, zero), cuda)).find("-0.0f"),
            std::string::npos);
  EXPECT_NE(render_ptx(linear_of(where(lt(f, zero), f, zero), ptx), "k", ptx).find("0f80000000"),
            std::string::npos);
}

// OpenCL has vectors of 2, 4, 8 and 16 elements, and longer ones are several of these.
TEST(texts, lanes_are_vectors_of_the_language) {
  const Target target = text_target("opencl", false);
  for (const auto& [lanes, vector] : {std::pair<int64_t, const char*>{4, "float4"},
                                      {8, "float8"},
                                      {16, "float16"},
                                      {32, "float16"}}) {
    const std::vector<Opt> opts{{OptOp::Split, 0, lanes, AxisType::Upcast, false}};
    const UOp value = add(leaf({256}), leaf({256}, DType::Float32, 1));
    const std::string text = render(
        "opencl", "k", lower_kernel(schedule({value})[0].ast, target, {}, &opts).linear, false);
    EXPECT_NE(text.find(vector), std::string::npos) << lanes << " lanes:\n" << text;
  }
}

// PoCL 3.1 ends the process at some of the barriers that a group of one thread has no need of.
TEST(texts, spec_X1_a_group_of_one_thread_has_no_barriers) {
  const UOp x = leaf({6}), square = UOp::make(Op::Load, {mul(x, x)}, LoadArg{{}, AddrSpace::Local});
  const UOp linear =
      lower_kernel(schedule({flip(square, {1})})[0].ast, text_target("opencl", false)).linear;
  EXPECT_TRUE(std::any_of(linear.src().begin(), linear.src().end(),
                          [](const UOp& u) { return u.is(Op::Barrier); }));
  const std::string text = render("opencl", "k", linear, false);
  EXPECT_NE(text.find("__local float local0[6]"), std::string::npos) << text;
  EXPECT_EQ(text.find("barrier("), std::string::npos) << text;
}

// docs/dialects.md adds a language: each line of it is compiled, and kernels in it compute.
TEST(texts, the_language_of_the_page_runs) {
  const auto read = [](const char* file) {
    std::stringstream out;
    out << std::ifstream(file).rdbuf();
    return out.str();
  };
  const std::string added = "```cpp\n" + read("tests/data/texts/added.hpp") + "```";
  EXPECT_NE(read("docs/dialects.md").find(added), std::string::npos)
      << "docs/dialects.md has another text than tests/data/texts/added.hpp";
  for (const DType d : {DType::Float32, DType::Float64}) {
    const UOp x = leaf({40}, d, 1), y = leaf({40}, d, 2);
    const UOp small = cast(x, DType::Int8), wide = cast(y, DType::Int64),
              filled = pad(x, shape_of({2}), shape_of({45}), constant(d, -inf));
    const std::vector<UOp> values{
        add(mul(x, y), unary(Op::Trunc, y)),
        unary(Op::Sqrt, x),
        fdiv(x, y),
        filled,
        reduce(Op::Max, reshape(x, shape_of({4, 10})), {1}),
        cast(
            add(mul(wide, constant_int(DType::Int64, int64_t{1} << 40)), cast(small, DType::Int64)),
            d),
        bitcast(bit_xor(bitcast(x, storage_uint(d)), bitcast(y, storage_uint(d))), d),
        cast(lt(x, y), d),
        cast(idiv(cast(x, DType::UInt16), cast(y, DType::UInt16)), d)};
    Target fused = text_target(added_dialect, false);
    fused.has_fma = true;
    std::string source;
    std::vector<Callified> programs;
    for (const UOp& v : values) {
      programs.push_back(callify({v}, {buffer_from_host(v.shape(), d, "CPU", nullptr)}));
      const UOp ast = kernels_of(rangeify(programs.back().body)).at(0).ast;
      for (const Target& target : {text_target(added_dialect, true), fused})
        source += render(added_dialect,
                         fmt::format("k{}{}", programs.size() - 1, target.strict ? "" : "_fused"),
                         lower_kernel(ast, target).linear, source.empty());
    }
    EXPECT_NE(source.find("std::fma("), std::string::npos);
    EXPECT_EQ(source.find("(int64_t)"), std::string::npos) << "a cast of C";
    const CLibrary library(source, 0, "c++");
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<void*> memory;
      for (const UOp& b : programs[i].arguments) memory.push_back(memory_of(b)->data());
      memory.resize(3);
      for (const char* mode : {"_fused", ""})
        reinterpret_cast<void (*)(void*, void*, void*)>(reinterpret_cast<void*>(
            library.function(fmt::format("k{}{}", i, mode))))(memory[0], memory[1], memory[2]);
      EXPECT_EQ(difference(interpret(values[i], bindings_of(values[i])),
                           array_of(programs[i].arguments[0])),
                "")
          << to_text(values[i]) << source;
    }
  }
}

}  // namespace koine::test
