// Rows C-gemm, L3, L4 and L6: what a product costs, what a dump shows, vectors, and texts that are
// the same in every process.
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "c_text.hpp"
#include "graphs.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/llvm.hpp"

namespace koine::test {
namespace {

// The specification's words for a matrix product.
Tensor document_gemm(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  return (a.reshape({m, k, 1}) * b.reshape({1, k, n})).sum({1});
}

Options with(bool strict, bool noopt) {
  Options o = options();
  o.strict = strict;
  o.noopt = noopt;
  return o;
}

}  // namespace

TEST(stages_rows, spec_C_gemm_is_one_tiled_kernel) {
  for (const bool strict : {true, false}) {
    const OptionScope scope(with(strict, false));
    for (const int64_t n : {64, 256}) {
      const int64_t m = n, k = n / 2;
      const Tensor a(leaf({m, k}, DType::Float32, 1)), b(leaf({k, n}, DType::Float32, 2));
      const Tensor c = document_gemm(a, b);
      const auto kernels = schedule({c.uop()});
      ASSERT_EQ(kernels.size(), 1u);
      ASSERT_EQ(kernels[0].buffers.size(), 3u);
      for (const UOp& buffer : kernels[0].buffers)
        EXPECT_LE(buffer.numel(), m * n) << "nothing of M x K x N elements";
      // Tiled: the accumulators are a block of the output, in registers, several rows of vectors.
      const LoweredKernel lowered = lower_kernel(kernels[0].ast, generic_target(strict));
      int accumulators = 0;
      int64_t lanes = 0;
      for (const UOp& u : lowered.linear.src())
        if (u.is(Op::Buffer) && u.addrspace() == AddrSpace::Reg) {
          ++accumulators;
          lanes = std::max(lanes, lane_count(u));
        }
      EXPECT_GE(accumulators, 4) << lowered.name;
      EXPECT_GE(lanes, 4) << lowered.name;
      // A tile reuses what it has loaded: fewer loads than one for each product.
      double loads = 0, products = 0, inside = 1;
      for (const UOp& u : lowered.linear.src()) {
        if (u.is(Op::Range)) inside *= static_cast<double>(const_int(u.src(0)));
        if (u.is(Op::End))
          inside /= static_cast<double>(const_int(u.src(u.src().size() - 1).src(0)));
        if (u.is(Op::Load) && !u.src(0).is(Op::Buffer) && !strip_after(u.src(0)).is(Op::Buffer))
          loads += inside * static_cast<double>(lane_count(u));
        if (u.is(Op::Mul) || u.is(Op::Mulacc))
          if (is_float(u.dtype())) products += inside * static_cast<double>(lane_count(u));
      }
      EXPECT_GE(products, static_cast<double>(m * n * k)) << lowered.name;
      EXPECT_LE(products, 1.05 * static_cast<double>(m * n * k)) << "with the rows of padding";
      EXPECT_LE(loads, 0.7 * products) << lowered.name;
      reset_counters();
      (void)realize({c.uop()});
      EXPECT_EQ(counters().kernels, 1);
      EXPECT_EQ(counters().temporary_bytes, 0);
      EXPECT_EQ(counters().bytes, static_cast<double>((m * k + k * n + m * n) * 4));
      EXPECT_EQ(counters().operations, static_cast<double>(2 * m * n * k));
    }
  }
  EveryBackend everywhere;
  for (const DType d : stored_dtypes()) {
    if (is_small_float(d)) continue;
    everywhere(document_gemm(Tensor(leaf({5, 7}, d, 1)), Tensor(leaf({7, 9}, d, 2))));
  }
  const Tensor h = Tensor(leaf({5, 7}, DType::Float16, 1)), g(leaf({7, 9}, DType::Float16, 2));
  everywhere(document_gemm(h, g));
}

TEST(stages_rows, spec_L3_a_dump_shows_the_applied_opts) {
  const Tensor a(leaf({64, 48}, DType::Float32, 1)), b(leaf({48, 80}, DType::Float32, 2));
  auto dump = [&](bool noopt) {
    Options o = with(false, noopt);
    o.debug = 4;
    o.device = "CPU";
    clear_compile_cache();
    const OptionScope scope(o);
    testing::internal::CaptureStderr();
    (void)realize({UOp::make(Op::Contiguous, {document_gemm(a, b).uop()}, MarkArg{Mark::Copies})});
    const std::string all = testing::internal::GetCapturedStderr();
    const size_t at = all.find("opts    ");
    return at == std::string::npos ? all : all.substr(at, all.find('\n', at) - at);
  };
  const OptionScope scope(with(false, false));
  const std::string line = dump(false);
  const LoweredKernel k =
      lower_kernel(schedule({document_gemm(a, b).uop()})[0].ast, device_runtime("CPU").target());
  ASSERT_FALSE(k.opts.empty());
  size_t at = line.find(k.name);
  ASSERT_NE(at, std::string::npos) << line;
  for (const Opt& o : k.opts) {  // each of them, in order
    at = line.find(opt_text(o), at);
    ASSERT_NE(at, std::string::npos) << opt_text(o) << " in " << line;
  }
  const std::string plain = dump(true);
  EXPECT_NE(plain.find("r_L64_L80_R48: none"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("Split"), std::string::npos) << plain;
  // NOOPT keeps the values: bit for bit in strict mode, within rounding in the default one.
  for (const bool strict : {true, false}) {
    std::vector<Array> results;
    for (const bool noopt : {true, false}) {
      const OptionScope inner(with(strict, noopt));
      clear_compile_cache();
      const Tensor x = Tensor::arange(64 * 48).reshape({64, 48}).cast(DType::Float32),
                   y = Tensor::arange(48 * 80).reshape({48, 80}).cast(DType::Float32);
      results.push_back(run_on(document_gemm(x * Tensor(0.01), y * Tensor(0.01)).uop(), "CPU"));
    }
    for (size_t i = 0; i < results[0].data.size(); ++i) {
      const double p = bits_to_double(DType::Float32, results[0].data[i]),
                   q = bits_to_double(DType::Float32, results[1].data[i]);
      if (strict)
        ASSERT_EQ(results[0].data[i], results[1].data[i]);
      else
        ASSERT_NEAR(p / q, 1, 48 * 0x1p-23);
    }
  }
}

TEST(stages_rows, spec_L4_an_upcast_is_one_vector_load_and_one_store) {
  for (const DType d : {DType::Float32, DType::Float64, DType::Int32, DType::UInt8}) {
    const UOp x = leaf({64}, d), y = leaf({64}, d, 1);
    const UOp ast = schedule({add(x, y)})[0].ast;
    for (const int64_t width : {2, 4, 8}) {
      const std::vector<Opt> opts{{OptOp::Split, 0, width, AxisType::Upcast, false}};
      const LoweredKernel k = lower_kernel(ast, generic_target(false), {}, &opts);
      int loads = 0, stores = 0, loops = 0;
      for (const UOp& u : k.linear.src()) {
        loops += u.is(Op::Range);
        if (!u.is(Op::Load) && !u.is(Op::Store)) continue;
        (u.is(Op::Load) ? loads : stores) += 1;
        const UOp& address = strip_after(u.src(0));
        EXPECT_TRUE(contiguous_access(address).yes);
        EXPECT_EQ(lane_count(u.is(Op::Load) ? u : u.src(1)), width);
      }
      EXPECT_EQ(loads, 2);
      EXPECT_EQ(stores, 1);
      EXPECT_EQ(loops, 1) << "no loop is left over the lanes";
      const std::string llvm = render_llvm_text(k.linear, "k", generic_target(false));
      const char* type = d == DType::Float32   ? "float"
                         : d == DType::Float64 ? "double"
                         : d == DType::Int32   ? "i32"
                                               : "i8";
      EXPECT_NE(llvm.find(fmt::format("load <{} x {}>", width, type)), std::string::npos) << llvm;
      EXPECT_NE(llvm.find(fmt::format("store <{} x {}>", width, type)), std::string::npos) << llvm;
    }
  }
  // Reversed it is no vector in memory, and still the right values.
  const UOp back = flip(leaf({64}), {1});
  const std::vector<Opt> opts{{OptOp::Split, 0, 4, AxisType::Upcast, false}};
  const LoweredKernel k =
      lower_kernel(schedule({add(back, back)})[0].ast, generic_target(false), {}, &opts);
  for (const UOp& u : k.linear.src())
    if (u.is(Op::Load)) {
      EXPECT_EQ(lane_count(u), 1);
    }
  expect_same_everywhere(add(back, back));
}

// --- L6: the same text in every process ----------------------------------------------------------

namespace {

std::string texts_of_some_kernels() {
  std::string out;
  std::vector<UOp> values;
  const Tensor x(leaf({8, 24}, DType::Float32, 3)), w(leaf({24, 12}, DType::Float32, 4));
  values.push_back(x.softmax().uop());
  values.push_back(x.matmul(w).relu().uop());
  values.push_back(document_gemm(x.cast(DType::Float16), w.cast(DType::Float16)).uop());
  values.push_back(x.layernorm().cumsum(1).uop());
  values.push_back(
      x.gather(1, Tensor::from<int32_t>({1, 2, 3, 4, 5, 6, 7, 8}).reshape({8, 1})).uop());
  std::mt19937_64 random(99);
  for (int i = 0; i < 40; ++i) values.push_back(random_graph(random));
  for (const UOp& v : values)
    for (const Kernel& k : schedule({v})) {
      const LoweredKernel lowered = lower_kernel(k.ast, generic_target(false));
      out += lowered.name + "\n" + to_text(k.ast) + to_text(lowered.linear) +
             render("c", "k", lowered.linear, false) +
             render_llvm_text(lowered.linear, "k", generic_target(false));
    }
  return out;
}

// This program again, in a process of its own, for the texts alone.
std::string texts_of_another_process(int noise) {
  const std::string command =
      fmt::format("KOINE_TEST_TEXTS={} /proc/{}/exe --gtest_filter=stages_rows.spec_L6_* 2>&1",
                  noise, getpid());
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string out;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  pclose(pipe);
  const size_t from = out.find("<<<\n"), to = out.find(">>>\n");
  return from == std::string::npos || to == std::string::npos ? out
                                                              : out.substr(from + 4, to - from - 4);
}

}  // namespace

TEST(stages_rows, spec_L6_texts_are_the_same_in_every_process) {
  if (const char* noise = std::getenv("KOINE_TEST_TEXTS")) {
    // Other nodes and other memory first: no text may depend on when a node was made, or where.
    std::vector<UOp> others;
    std::mt19937_64 random(static_cast<uint64_t>(std::atoi(noise)));
    for (int i = 0; i < 50 * std::atoi(noise); ++i) others.push_back(random_graph(random));
    std::printf("<<<\n%s>>>\n", texts_of_some_kernels().c_str());
    return;
  }
  const std::string here = texts_of_some_kernels();
  EXPECT_GT(here.size(), 10000u);
  EXPECT_EQ(texts_of_some_kernels(), here) << "twice in one process";
  for (const int noise : {0, 1, 3}) {
    const std::string there = texts_of_another_process(noise);
    const size_t n = std::min(here.size(), there.size());
    const size_t at = static_cast<size_t>(
        std::mismatch(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(n), there.begin())
            .first -
        here.begin());
    EXPECT_TRUE(here == there) << "noise " << noise << ", from byte " << at << ":\n"
                               << here.substr(at, 300) << "\nin another process\n"
                               << there.substr(at, 300);
  }
}

}  // namespace koine::test
