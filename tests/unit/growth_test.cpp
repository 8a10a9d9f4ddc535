// What large programs cost, counted: kernels and loads of those that run, nodes visited and edits
// tried while they are made.
#include "check.hpp"
#include "digits_net.hpp"
#include "kernels.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/graph.hpp"

namespace koine::test {
namespace {

// Default mode, whatever the environment says.
void in_default_mode(const std::function<void()>& action) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  action();
}

// --- what runs -----------------------------------------------------------------------------------

TEST(growth, spec_L2_the_step_of_the_demo_is_45_kernels) {
  in_default_mode([] {
    app::DigitsNet net;
    nn::AdamW optimizer(nn::get_parameters(net), 4e-3, 0.9, 0.999, 1e-8, 0.02);
    const Tensor images = Tensor::rand({64, 1, 8, 8}).realize(),
                 labels = Tensor::randint({64}, 0, 10).realize();
    for (int step = 0; step < 3; ++step) {
      reset_counters();
      optimizer.set_learning_rate(1e-3 * (step + 1));
      (void)app::train_step(net, optimizer, images, labels);
      EXPECT_LE(counters().kernels, 45);
    }
  });
}

std::vector<Tensor> parts(int64_t count, int64_t size) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(Tensor(leaf({size}, DType::Float32, static_cast<uint64_t>(i))));
  return out;
}

// Loads an element, and kernels.
std::pair<double, int64_t> cost_of(const Tensor& value) {
  const std::vector<Kernel> kernels = schedule({value.uop()});
  return {loads_of(kernels) / static_cast<double>(value.numel()),
          static_cast<int64_t>(kernels.size())};
}

TEST(growth, spec_C38_a_join_of_many_parts_reads_each_once) {
  in_default_mode([] {
    const auto [loads, kernels] = cost_of(Tensor::cat(parts(512, 1000)));
    EXPECT_LE(loads, 1);
    EXPECT_LE(kernels, 17);
    clear_compile_cache();
    reset_counters();
    const auto got = Tensor::cat(parts(512, 1000)).tolist<float>();
    EXPECT_EQ(counters().compiled, 17);
    EXPECT_EQ(counters().bytes, 2 * 512 * 1000 * 4.0);
    for (const int64_t k : {0, 16, 511}) {
      const std::vector<float> part = parts(512, 1000)[static_cast<size_t>(k)].tolist<float>();
      EXPECT_TRUE(std::equal(part.begin(), part.end(), got.begin() + 1000 * k,
                             [](float a, float b) { return a == b || (a != a && b != b); }));
    }
  });
}

TEST(growth, spec_C38_what_is_made_of_a_stack_of_many_parts_reads_each_twice) {
  in_default_mode([] {
    const auto [loads, kernels] = cost_of(Tensor::stack(parts(128, 1000)) + 0.5);
    EXPECT_LE(loads, 2);
    EXPECT_LE(kernels, 6);
  });
}

}  // namespace
}  // namespace koine::test
