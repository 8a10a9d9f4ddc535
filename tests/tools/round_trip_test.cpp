// The output of every stage is a text that the tool takes again, and goes on from there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "c_text.hpp"
#include "check.hpp"
#include "corpus.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "text.hpp"

namespace koine::test {
namespace {

// Where the name of a kernel begins that ends before this '(' and stands behind "void " or "@".
size_t name_before(const std::string& line, size_t end) {
  size_t at = end;
  if (at > 0 && line[at - 1] == '"') --at;
  while (at > 0 &&
         (std::isalnum(static_cast<unsigned char>(line[at - 1])) != 0 || line[at - 1] == '_'))
    --at;
  const std::string_view before = std::string_view(line).substr(0, at);
  const bool named = before.ends_with("void ") || before.ends_with('@') || before.ends_with("@\"");
  return named && at < end ? at : end;
}

// Without comments, and without the names of kernels, which tell of axes that are shape by then.
std::string bare(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line = text.substr(at, end - at);
    at = end;
    if (line[0] == ';' || line.starts_with("//") || line.starts_with("source_filename")) continue;
    for (size_t open = line.find('('); open != line.npos; open = line.find('(', open + 1)) {
      const size_t name = name_before(line, open);
      line.replace(name, open - name, name == open ? "" : "kernel");
      if (name != open) open = name + 6;
    }
    out += line;
  }
  return out;
}

}  // namespace

TEST(texts, the_output_of_every_stage_can_be_given_again) {
  const std::vector<std::string> stages{"callify", "decide",    "bufferize", "index",
                                        "split",   "rangeify",  "optimize",  "expand",
                                        "select",  "linearize", "render"};
  for (const std::string& value : value_texts()) {
    std::vector<std::string> outputs;
    for (const std::string& stage : stages) outputs.push_back(app::text_after(value, stage));
    const std::string c = app::sources_of(value, "c"), llvm = app::sources_of(value, "llvm");
    for (size_t given = 0; given + 1 < stages.size(); ++given) {
      // A value that needs no kernel, or nothing but copies, has no graph to give.
      if (outputs[given].find('%') == std::string::npos) continue;
      for (size_t until = given; until < stages.size(); ++until)
        ASSERT_EQ(bare(app::text_after(outputs[given], stages[until])), bare(outputs[until]))
            << "from " << stages[given] << " to " << stages[until] << " of\n"
            << value;
      ASSERT_EQ(bare(app::sources_of(outputs[given], "c")), bare(c)) << stages[given] << "\n"
                                                                     << value;
      ASSERT_EQ(bare(app::sources_of(outputs[given], "llvm")), bare(llvm)) << stages[given] << "\n"
                                                                           << value;
    }
    const std::string plan = app::text_after(value, "plan");
    if (plan.find('%') == std::string::npos) continue;
    for (size_t until = 5; until < stages.size(); ++until)
      ASSERT_EQ(bare(app::text_after(plan, stages[until])), bare(outputs[until]))
          << "from plan to " << stages[until] << " of\n"
          << value;
    ASSERT_EQ(bare(app::text_after(plan, "plan")), bare(plan));
  }
}

TEST(texts, a_graph_that_is_past_the_stage_is_refused) {
  const std::string value = value_texts()[0];
  expect_error([&] { (void)app::text_after(app::text_after(value, "select"), "optimize"); },
               {"--until=optimize", "past", "select"});
  expect_error([&] { (void)app::text_after(app::text_after(value, "plan"), "split"); },
               {"--until=split", "past", "plan"});
  expect_error([&] { (void)app::text_after(value, "seelct"); }, {"seelct", "callify", "linearize"});
  expect_error([&] { (void)app::sources_of(value, "fortran"); },
               {"--target=fortran", "c, opencl, cuda, hip, metal, wgsl, ptx, or llvm"});
  expect_error([&] { (void)app::sources_of("; nothing\n", "c"); }, {"holds no graph"});
}

// Also where kernels are equal, or have one name.
TEST(texts, the_sources_of_many_graphs_are_one_that_compiles) {
  std::string all = to_text(told_by_arguments());
  for (const std::string& value : value_texts()) all += value;
  for (const char* language : {"c", "cuda", "hip"}) {
    const std::string source = app::sources_of(all, language);
    EXPECT_NE(source.find(" again, koine_number_000000 = "), source.npos);
    EXPECT_NE(source.find("_1("), source.npos);
    EXPECT_NO_THROW(CLibrary(source, 0, language));
  }
}

// Whoever wrote a kernel by hand is told what is wrong with it, and of no mistake of the compiler.
// Here one Range is the loop of two Reduces, of which one waits for the other.
TEST(texts, a_kernel_by_hand_that_cannot_be_lowered_is_an_error_of_its_text) {
  const std::string kernel = R"(%0 = Const[index 6]()
%1 = Stack(%0)
%2 = Param[0 float32 GLOBAL](%1)
%3 = Const[index 2]()
%4 = Range[0 LOOP](%3)
%5 = Const[index 3]()
%6 = Mul(%4, %5)
%7 = Range[1 LOOP](%5)
%8 = Add(%6, %7)
%9 = Index(%2, %8)
%10 = Stack(%5)
%11 = Buffer[0 float32 LOCAL](%10)
%12 = Range[2 LOOP](%5)
%13 = Index(%11, %12)
%14 = Param[1 float32 GLOBAL](%1)
%15 = Add(%6, %12)
%16 = Index(%14, %15)
%17 = Load[REG](%16)
%18 = Range[3 REDUCE](%5)
%19 = Add(%6, %18)
%20 = Index(%14, %19)
%21 = Load[REG](%20)
%22 = Reduce[Max ()](%21, %18)
%23 = Const[float32 -1]()
%24 = Mul(%22, %23)
%25 = Add(%17, %24)
%26 = Exp2[1](%25)
%27 = Store(%13, %26)
%28 = End(%27, %12)
%29 = After(%11, %28)
%30 = Index(%29, %7)
%31 = Load[REG](%30)
%32 = Range[3 REDUCE](%5)
%33 = Index(%29, %32)
%34 = Load[REG](%33)
%35 = Reduce[Add ()](%34, %32)
%36 = Fdiv(%31, %35)
%37 = Store(%9, %36)
%38 = End(%37, %4, %7)
%39 = Sink(%38)
)";
  // Threads of a CPU, on a device whose threads fold together; the kernel stands in a program.
  const std::string program = R"(; after split
%0 = Const[index 4]()
%1 = Stack(%0)
%2 = Param[0 float32 GLOBAL](%1)
%3 = Range[0 THREAD](%0)
%4 = Index(%2, %3)
%5 = Const[index 256]()
%6 = Stack(%5)
%7 = Param[1 float32 GLOBAL](%6)
%8 = Const[index 64]()
%9 = Mul(%3, %8)
%10 = Range[1 REDUCE](%8)
%11 = Add(%9, %10)
%12 = Index(%7, %11)
%13 = Load[REG](%12)
%14 = Reduce[Add ()](%13, %10)
%15 = Store(%4, %14)
%16 = End(%15, %3)
%17 = Sink(%16)
%18 = Param[0 float32 GLOBAL @"CPU"](%1)
%19 = Param[1 float32 GLOBAL @"CPU"](%6)
%20 = Call["output"](%17, %18, %19)
%21 = Linear(%20)
)";
  const auto said = [](const std::function<void()>& lower) -> std::string {
    try {
      lower();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  for (const char* stage : {"linearize", "render"})
    EXPECT_TRUE(said([&] {
                  (void)app::text_after(kernel, stage);
                }).starts_with("the kernel cannot be lowered: after select: Sink: instructions"));
  for (const char* stage : {"index", "split", "plan"}) {
    std::string given = program;
    given.replace(given.find("split"), 5, stage);
    EXPECT_TRUE(said([&] {
                  (void)app::sources_of(given, "cuda");
                }).starts_with("the kernel cannot be lowered: after select: Barrier, source 1"))
        << stage;
  }
  EXPECT_NE(app::sources_of(program, "c"), "");
}

// The library's own Variables would meet them in the program.
TEST(texts, names_of_the_librarys_variables_are_refused) {
  auto named = [](const std::string& name) {
    const UOp n = variable(name, 1, 4);
    const UOp x = new_buffer(shape_of({4, 3}), DType::Float32, Device("CPU"));
    const UOp two = stack(std::vector<UOp>{n, index_const(3)});
    return unary(Op::Sqrt, shrink(x, shape_of({0, 0}), two));
  };
  for (const char* name : {"koine_step", "koine_offset_1", "koine_literal_0"}) {
    const std::string text = to_text(named(name));
    expect_error([&] { (void)app::text_after(text, "plan"); },
                 {std::string("Variable('") + name + "', 1, 4)", "library"});
    expect_error([&] { (void)realize({cast(variable(name, 1, 4), DType::Int64)}, {{name, 2}}); },
                 {std::string("Variable('") + name + "', 1, 4)", "library"});
  }
  const std::string called = app::text_after(to_text(named("n")), "callify");
  std::string renamed = called;
  for (size_t at = renamed.find("\"n\""); at != renamed.npos; at = renamed.find("\"n\"", at + 1))
    renamed.replace(at, 3, "\"koine_step\"");
  ASSERT_NE(renamed, called);
  EXPECT_NE(app::text_after(called, "plan"), "");
  expect_error([&] { (void)app::text_after(renamed, "plan"); }, {"koine_step", "library"});
}

}  // namespace koine::test
