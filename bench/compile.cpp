#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include "bench.hpp"
#include "digits_net.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/koine.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/cpu/jit.hpp"

extern char** environ;

namespace koine::bench {
namespace {

double node_nanoseconds() {
  constexpr int count = 200'000;
  std::vector<UOp> keep;
  keep.reserve(count);
  const double seconds = best_seconds([&] {
    keep.clear();
    UOp x = param(0, shape_of({16}), DType::Float32);
    const UOp one = constant(DType::Float32, 1);
    for (int i = 0; i < count; ++i) keep.push_back(x = UOp::make(Op::Add, {x, one}));
  });
  return seconds / count * 1e9;
}

// The training step of `koine demo`, on random images.
struct Step {
  app::DigitsNet net;
  nn::AdamW optimizer{nn::get_parameters(net), 1e-3};
  Tensor images = Tensor::rand({64, 1, 8, 8}).realize(),
         labels = Tensor::randint({64}, 0, 10).realize();

  Tensor loss() { return net(images, true).cross_entropy(labels); }
  void run() { (void)app::train_step(net, optimizer, images, labels); }
};

void machine_code(Rows& rows, const std::string& name, const Tensor& value, double goal_ms) {
  const Target target = cpu_target();
  const UOp linear = lower_kernel(schedule({value.uop()}).back().ast, target).linear;
  const double seconds = best_seconds([&] { (void)jit_compile(linear, target); }, 0.3);
  rows.push_back({name, seconds * 1e3, "ms", goal_ms, "goal", false});
}

}  // namespace

int run_first_operation() {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4});
  return (x + x).tolist<float>()[3] == 8 ? 0 : 1;
}

void bench_compile(Rows& rows, const char* self) {
  rows.push_back({"node construction", node_nanoseconds(), "ns", 250, "goal", false});

  Step step;
  step.run();
  clear_compile_cache();
  // Every kernel of the step through the pipeline, in this thread.
  const Tensor loss = step.loss();
  const std::vector<Tensor> grads = loss.gradient(nn::get_parameters(step.net));
  std::vector<UOp> wanted{loss.uop()};
  for (const Tensor& g : grads) wanted.push_back(g.uop());
  const Target target = cpu_target();
  RewriteCounters step_counts;  // of the fastest run
  step_counts.seconds = 1e9;
  size_t kernels = 0;
  const double pipeline = best_seconds(
      [&] {
        const RewriteCounters before = rewrite_counters();
        const std::vector<Kernel> scheduled = schedule(wanted);
        for (const Kernel& k : scheduled) (void)lower_kernel(k.ast, target);
        kernels = scheduled.size();
        const RewriteCounters after = rewrite_counters();
        if (after.seconds - before.seconds >= step_counts.seconds) return;
        step_counts = {after.visits - before.visits, after.fired - before.fired,
                       after.seconds - before.seconds};
      },
      1.0);
  const double rate = 1e-6 / step_counts.seconds;
  rows.push_back(
      {"rewriting: node visits", static_cast<double>(step_counts.visits) * rate, "M/s", 2, "goal"});
  rows.push_back({"rewriting: nodes replaced", static_cast<double>(step_counts.fired) * rate, "M/s",
                  0.5, "goal"});
  rows.push_back({fmt::format("schedule and lower {} kernels", kernels), pipeline * 1e3, "ms",
                  static_cast<double>(kernels) * 150 / 80, "goal", false});

  double cold = 1e9;
  for (int i = 0; i < 5; ++i) {
    clear_compile_cache();
    const double start = now_seconds();
    step.run();
    cold = std::min(cold, now_seconds() - start);
  }
  rows.push_back({"train step, cold", cold * 1e3, "ms", 250, "goal", false});
  const double warm = best_seconds([&] { step.run(); }, 0.5);
  rows.push_back({"train step, warm", warm * 1e3, "ms", cold * 1e3, "cold", false, 5});

  const Tensor x = Tensor::rand({4096}).realize(), a = Tensor::rand({512, 512}).realize();
  machine_code(rows, "machine code, elementwise", (x * Tensor(2.0) + Tensor(1.0)).relu(), 2);
  machine_code(rows, "machine code, GEMM tile", a.matmul(a.contiguous().realize()), 5);

  const double first = best_seconds(
      [&] {
        const char* arguments[] = {self, "--first-operation", nullptr};
        pid_t child = 0;
        int status = 0;
        KOINE_REQUIRE(posix_spawn(&child, self, nullptr, nullptr, const_cast<char**>(arguments),
                                  environ) == 0 &&
                          waitpid(child, &status, 0) == child && status == 0,
                      Value, "the child process of the first-operation benchmark failed");
      },
      0.5);
  rows.push_back({"process start to first result", first * 1e3, "ms", 30, "goal", false});
}

}  // namespace koine::bench
