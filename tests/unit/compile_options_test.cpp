// The options of a program are those of the moment at which it began to be compiled.
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "check.hpp"
#include "koine/engine/executable.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"

namespace koine::test {
namespace {

Tensor numbers(const Shape& shape) { return Tensor::full(shape, 1.5).clone().realize(); }

// What the modes compile differently: long sums, products, running folds, selections, many kernels.
std::vector<Tensor> large_program() {
  const Tensor x = numbers({40, 64}), y = numbers({64, 48}), narrow = x.cast(DType::BFloat16);
  const Tensor at = Tensor::from<int32_t>({3, 1, 2});
  const Tensor product = x.matmul(y);
  return {numbers({1 << 18}).sum(),
          product.softmax(1),
          x.cumsum(1),
          x.flip({1}).cumsum(1).flip({1}),
          at.one_hot(64).cast(DType::Float32).matmul(y),
          narrow.sum(1),
          (product.sum(0) + Tensor(1.0)).exp()};
}

Callified callified(const CompileOptions& how) {
  std::vector<UOp> values, destinations;
  for (const Tensor& t : large_program()) {
    values.push_back(t.uop());
    destinations.push_back(new_buffer(t.uop().shape(), t.dtype(), Device("CPU")));
  }
  return callify(values, destinations, how);
}

Options other(bool strict, bool noopt, int verify, const std::string& cpu) {
  Options o = options();
  o.strict = strict;
  o.noopt = noopt;
  o.verify = verify;
  o.cpu = cpu;
  return o;
}

// What comes out of each stage of each kernel, and the host program. `meanwhile` is what another
// thread sets once the first kernel is there.
std::multiset<std::pair<std::string, std::string>> compiled(
    const std::optional<Options>& meanwhile) {
  const CompileOptions how = compile_options();
  const UOp program = callified(how).body;
  std::multiset<std::pair<std::string, std::string>> out;
  std::mutex mutex;
  std::optional<OptionScope> changed;
  const Executable made(
      program, "CPU",
      [&](std::string_view stage, const UOp& graph) {
        const std::lock_guard lock(mutex);
        if (meanwhile && !changed) std::thread([&] { changed.emplace(*meanwhile); }).join();
        out.emplace(stage, to_text(graph));
        return graph;
      },
      how);
  out.emplace("schedule", to_text(made.schedule()));
  return out;
}

TEST(compile_options, another_thread_changes_nothing_in_a_program_that_is_being_compiled) {
  const std::string cpu = options().cpu;
  const std::vector<Options> all{other(false, false, 2, cpu), other(true, false, 1, cpu),
                                 other(false, true, 0, cpu), other(true, true, 2, "x86-64-v2"),
                                 other(false, false, 1, "x86-64-v2")};
  for (size_t i = 0; i < all.size(); ++i) {
    const OptionScope scope(all[i]);
    const auto alone = compiled(std::nullopt);
    EXPECT_GT(alone.size(), 20u);
    EXPECT_TRUE(compiled(all[(i + 1) % all.size()]) == alone) << "options " << i;
  }
}

// What a pass is given counts, whatever the process says.
TEST(compile_options, passes_read_what_they_are_given) {
  const std::string cpu = options().cpu;
  const std::vector<Options> all{other(false, false, 1, cpu), other(true, false, 1, cpu),
                                 other(false, true, 1, cpu)};
  std::vector<std::string> of_scope;
  const UOp program = callified(compile_options()).body;
  for (const Options& o : all) {
    const OptionScope scope(o);
    of_scope.push_back(to_text(rangeify(split_large_reduces(on_each_device(program)))));
  }
  for (const Options& of_process : all) {
    const OptionScope scope(of_process);
    for (size_t k = 0; k < all.size(); ++k) {
      const CompileOptions how{all[k].strict, all[k].noopt, all[k].verify, all[k].cpu};
      const UOp split = split_large_reduces(on_each_device(program, how), how);
      EXPECT_EQ(to_text(rangeify(split, how)), of_scope[k]) << "options " << k;
    }
  }
  EXPECT_NE(of_scope[0], of_scope[1]);
  EXPECT_NE(of_scope[0], of_scope[2]);
}

}  // namespace
}  // namespace koine::test
