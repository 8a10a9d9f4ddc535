// Races in texts of languages with groups. Each kernel's text is run by as many threads of the host
// as a group has, watched by ThreadSanitizer: it has no race, and has one without any of its
// barriers. By the fibers of other tests a barrier that is missing shows in wrong values alone.
#include <algorithm>
#include <map>
#include <span>

#include "by_hand.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "koine/engine/engine.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "products.hpp"
#include "watched_text.hpp"

namespace koine::test {
namespace {

using Bytes = WatchedText::Bytes;

constexpr int64_t some = -1;

struct Sample {
  std::string name;
  UOp linear;
  std::vector<Bytes> memory;  // of its parameters; the first is stored to
  int64_t barriers;
};

template <class T>
Bytes counted(size_t count, int64_t below) {
  std::vector<T> numbers(count);
  for (size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<T>(static_cast<int64_t>(i * 7) % below);
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

// out[i] = in[63 - i] through LOCAL memory, in groups of 64 threads.
UOp reversal() {
  const UOp group = UOp::make(Op::Special, {index_const(2)}, std::string("gidx0")),
            thread = UOp::make(Op::Special, {index_const(64)}, std::string("lidx0"));
  const UOp out = param(0, shape_of({128}), DType::Int32),
            in = param(1, shape_of({128}), DType::Int32),
            local = UOp::make(Op::Buffer, {shape_of({64})},
                              BufferArg{0, DType::Int32, {}, AddrSpace::Local});
  const UOp at = add(mul(group, index_const(64)), thread),
            across = add(mul(thread, index_const(-1)), index_const(63));
  const UOp barrier = UOp::make(Op::Barrier, std::span<const UOp>());
  std::vector<UOp> list;
  const auto run = [&](const UOp& effect) {
    for (const UOp& u : toposort(effect))
      if (!u.is(Op::Stack) && std::ranges::find(list, u) == list.end()) list.push_back(u);
  };
  run(store(index(local, {thread}), load(index(in, {at}))));
  run(barrier);
  run(store(index(out, {at}), load(index(local, {across}))));
  return UOp::make(Op::Linear, list);
}

// Sums of rows of int32, by 16 threads that each fold a part of one.
UOp sums() {
  const UOp i = range(0, index_const(3), AxisType::Loop),
            l = range(1, index_const(64), AxisType::Reduce);
  const UOp at = add(mul(i, index_const(64)), l),
            value = load(index(param(1, shape_of({192}), DType::Int32), {at})),
            to = index(param(0, shape_of({3}), DType::Int32), {i});
  return sink({end(store(to, reduce_ranges(Op::Add, value, {l})), {i})});
}

// The first kernel of a value, as the heuristics shape it.
Sample shaped(const std::string& name, const Tensor& value, const Target& target) {
  Sample out{name, lower_kernel(schedule({value.uop()}).at(0).ast, target).linear, {}, some};
  std::map<int64_t, int64_t> bytes;
  for (const UOp& u : out.linear.src())
    if (u.is(Op::Param)) bytes[u.as<BufferArg>().slot] = u.numel() * item_size(u.dtype());
  for (const auto& [slot, size] : bytes)
    out.memory.push_back(slot == 0 ? Bytes(static_cast<size_t>(size))
                                   : counted<float>(static_cast<size_t>(size) / 4, 30));
  return out;
}

std::vector<Sample> samples(const std::string& language) {
  const Target target = text_target(language, true);
  const auto lowered = [&](const UOp& ast, const std::vector<Opt>& opts) {
    return lower_kernel(ast, target, {}, &opts).linear;
  };
  const Gemm product{8, 12, 16, DType::Float32, DType::Float32};
  const std::vector<Bytes> rows{Bytes(12), counted<int32_t>(192, 50)};
  std::vector<Sample> out{
      {"reversed", reversal(), {Bytes(512), counted<int32_t>(128, 1000)}, 1},
      // A group a row; and all rows by one group, where the parts of the row before have been read.
      {"sum", lowered(sums(), {split(1, 16, AxisType::GroupReduce), split(0, 0, AxisType::Global)}),
       rows, 1},
      {"sums", lowered(sums(), {split(1, 16, AxisType::GroupReduce)}), rows, 2},
      // Tiles that are filled together, and not again before all have read them.
      {"product",
       lowered(product.ast(), {split(1, 4, AxisType::Local),
                               split(0, 4, AxisType::Local),
                               split(4, 8, AxisType::Reduce),
                               {OptOp::Stage, 5},
                               split(0, 0, AxisType::Global)}),
       {Bytes(8 * 12 * 4), in_memory(product.left(), DType::Float32),
        in_memory(product.right(), DType::Float32)},
       2},
      {"counts",
       lower_kernel(histogram(96, 5, DType::Int32, AxisType::Local), target).linear,
       {Bytes(20), counted<int32_t>(96, 5)},
       0}};
  if (language == "cuda") {
    const Target any = text_target(language, false);  // in which threads fold floats together
    const auto input = [](std::initializer_list<int64_t> sizes) {
      return Tensor(new_buffer(shape_of(sizes), DType::Float32, Device("CPU")));
    };
    out.push_back(shaped("long_sum", input({2, 3000}).sum({1}), any));
    const Tensor rows_of = input({4, 700});
    out.push_back(shaped("parts", rows_of / (rows_of.sum({1}, true) + 1), any));
    out.push_back(shaped("norm", input({3, 600}).layernorm(), any));
    out.push_back(shaped("matmul", input({64, 48}).matmul(input({48, 64})), any));
    const Gemm halves{32, 16, 32};
    const auto core = std::ranges::find(any.tensor_cores, "cuda_m16n8k16_f16", &TensorCore::name);
    const std::vector<Opt> opts{tc(2, static_cast<int>(core - any.tensor_cores.begin()))};
    out.push_back({"core",
                   lower_kernel(halves.ast(), any, {}, &opts).linear,
                   {Bytes(32 * 16 * 4), in_memory(halves.left(), DType::Float16),
                    in_memory(halves.right(), DType::Float16)},
                   0});
  }
  return out;
}

Bytes interpreted(const Sample& s) {
  std::vector<Bytes> memory = s.memory;
  KernelArguments arguments;
  for (Bytes& m : memory) {
    arguments.buffers.push_back(m.data());
    arguments.buffer_bytes.push_back(static_cast<int64_t>(m.size()));
  }
  interpret_linear(s.linear, arguments);
  return memory[0];
}

int64_t count_of(const std::string& word, const std::string& text) {
  int64_t out = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++out;
  return out;
}
// The text with one of the places of a word said otherwise.
std::string changed(std::string text, const std::string& word, int64_t number,
                    const std::string& to) {
  size_t at = text.find(word);
  for (; number > 0; --number) at = text.find(word, at + 1);
  return text.replace(at, word.size(), to);
}

// A text whose kernels, k0 and so on, have no race in any run.
class WatchedLibrary : public TextLibrary {
 public:
  WatchedLibrary(const std::string& language, const std::string& source)
      : program_(language, with_launches(source)) {}
  void run(const std::string& name, const std::vector<Given>& parameters,
           const Signature& signature, const std::vector<int64_t>& variables) const override {
    ASSERT_TRUE(variables.empty()) << name;
    std::vector<Bytes> memory;
    for (const Given& p : parameters) {
      const auto* first = static_cast<const std::byte*>(p.data);
      memory.emplace_back(first, first + p.bytes);
    }
    EXPECT_EQ(program_.run(name, memory, signature), "") << name;
    for (size_t i = 0; i < memory.size(); ++i)
      std::ranges::copy(memory[i], static_cast<std::byte*>(parameters[i].data));
  }

 private:
  static std::string with_launches(std::string source) {
    for (int k = 0; source.find(fmt::format(" k{}(", k)) != source.npos; ++k)
      source += fmt::format("KOINE_RUN(k{})\n", k);
    return source;
  }
  WatchedText program_;
};

// All of them need a compiler with ThreadSanitizer, and say so where there is none.
class races : public testing::Test {
 protected:
  void SetUp() override {
    if (!WatchedText::missing().empty()) GTEST_SKIP() << WatchedText::missing();
  }
};

void expect_races_without_barriers_alone(const std::string& language) {
  const std::string barrier(dialect_named(language).barrier), atomic = "atomic_add_i32(";
  struct Run {
    std::string name;
    Sample of;
    bool races;
  };
  std::vector<Run> runs;
  std::string source;
  const auto add = [&](const std::string& name, const Sample& of, const std::string& text,
                       bool races) {
    source += changed(text, " " + of.name + "(", 0, " " + name + "(") +
              fmt::format("\nKOINE_RUN({})\n", name);
    runs.push_back({name, of, races});
  };
  for (const Sample& s : samples(language)) {
    const std::string text = render(language, s.name, s.linear, false);
    if (source.empty())
      source = prelude_of(dialect_named(language)) +
               "\ntemplate <class T>\nvoid add_alone(T* place, T value) { *place += value; }\n";
    add(s.name, s, text, false);
    const int64_t barriers = count_of(barrier, text), atomics = count_of(atomic, text);
    if (s.barriers == some) {
      EXPECT_GT(barriers, 0) << text;
    } else {
      EXPECT_EQ(barriers, s.barriers) << text;
    }
    EXPECT_EQ(atomics, s.name == "counts" ? 1 : 0) << text;
    for (int64_t i = 0; i < barriers; ++i)
      add(fmt::format("{}_without_{}", s.name, i), s, changed(text, barrier, i, ""), true);
    for (int64_t i = 0; i < atomics; ++i)
      add(fmt::format("{}_alone_{}", s.name, i), s, changed(text, atomic, i, "add_alone("), true);
  }
  const WatchedText program(language, source);
  for (const Run& r : runs) {
    std::vector<Bytes> memory = r.of.memory;
    const std::string report = program.run(r.name, memory, signature_of(r.of.linear));
    if (r.races) {
      EXPECT_NE(report.find("data race"), std::string::npos)
          << r.name << " has no race: " << report << source;
    } else {
      EXPECT_EQ(report, "") << r.name << source;
      EXPECT_EQ(memory[0], interpreted(r.of)) << r.name;
    }
  }
}
}  // namespace

TEST_F(races, spec_X1_cuda_has_them_without_a_barrier_alone) {
  expect_races_without_barriers_alone("cuda");
}
TEST_F(races, spec_X1_hip_has_them_without_a_barrier_alone) {
  expect_races_without_barriers_alone("hip");
}
TEST_F(races, spec_X1_metal_has_them_without_a_barrier_alone) {
  expect_races_without_barriers_alone("metal");
}

TEST_F(races, spec_O7_random_edits_bring_none) {
  CText text("cuda", [](const std::string& source) {
    return std::make_unique<WatchedLibrary>("cuda", source);
  });
  const int64_t cases = test_cases(24);
  int64_t edited = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 877 + static_cast<uint64_t>(i));
    edited += text.add_edited(random_graph(random), random) ? 1 : 0;
  }
  EXPECT_GE(edited, cases / 4) << "of " << cases;
  text.check();
}

TEST_F(races, a_barrier_that_some_threads_reach_ends_the_program) {
  const WatchedText program(
      "cuda",
      "__global__ void k(int* data0) { if (threadIdx.x < 3) __syncthreads(); }\nKOINE_RUN(k)\n");
  Signature signature;
  signature.group[0] = index_const(8);
  std::vector<Bytes> memory{Bytes(4)};
  EXPECT_NE(program.run("k", memory, signature).find("a divergent barrier: 5 of 8 threads"),
            std::string::npos);
}

}  // namespace koine::test
