#include "bench.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/step.hpp"
#include "koine/ir/build.hpp"
#include "koine/koine.hpp"

// What it costs to run what was prepared (row L9): beyond the kernels themselves.
namespace koine::bench {
namespace {

UOp numbers(int64_t count) {
  const std::vector<float> data(static_cast<size_t>(count), 0.5F);
  return buffer_from_host(shape_of({count}), DType::Float32, "CPU", data.data());
}

// Three kernels, each of which needs all elements of the one before.
std::vector<UOp> three_kernels(const UOp& x, const UOp& y) {
  const UOp a = contiguous(mul(x, reduce(Op::Add, x, {0})));
  const UOp b = contiguous(add(y, reduce(Op::Max, a, {0})));
  return {contiguous(sub(b, reduce(Op::Add, b, {0})))};
}

// Seconds of one of many repetitions, the best of several rounds.
double seconds_each(int64_t repetitions, const std::function<void()>& action) {
  return best_seconds([&] {
           for (int64_t i = 0; i < repetitions; ++i) action();
         }) /
         static_cast<double>(repetitions);
}

// The weights of blocks of a transformer, twelve each.
constexpr int64_t width = 128, blocks = 48;
std::vector<Tensor> weights_of_blocks() {
  std::vector<Tensor> out;
  auto add = [&](const Shape& shape) {
    Tensor w = (Tensor::randn(shape) * 0.05).realize();
    out.push_back(w.requires_grad());
  };
  for (int64_t block = 0; block < blocks; ++block) {
    for (int i = 0; i < 4; ++i) add({width});
    for (int i = 0; i < 4; ++i) add({width, width});
    for (const Shape& shape : {Shape{width, 4 * width}, {4 * width}, {4 * width, width}, {width}})
      add(shape);
  }
  return out;
}

// What a warm step of training asks for: the blocks of x, and the gradients of all their weights.
std::vector<Tensor> blocks_and_gradients(const std::vector<Tensor>& w, const Tensor& x) {
  Tensor h = x;
  for (size_t k = 0; k < w.size(); k += 12) {
    const Tensor y = h.layernorm() * w[k] + w[k + 1];
    const Tensor seen =
        y.matmul(w[k + 4]).scaled_dot_product_attention(y.matmul(w[k + 5]), y.matmul(w[k + 6]));
    h = h + seen.matmul(w[k + 7]);
    const Tensor z = h.layernorm() * w[k + 2] + w[k + 3];
    h = h + (z.matmul(w[k + 8]) + w[k + 9]).gelu().matmul(w[k + 10]) + w[k + 11];
  }
  std::vector<Tensor> out = h.square().mean().gradient(w);
  out.push_back(h);
  return out;
}

}  // namespace

void bench_launches(Rows& rows) {
  // Kernels of four elements take some nanoseconds.
  CapturedStep step(three_kernels(numbers(4), numbers(4)));
  step.run();
  rows.push_back({"captured step of 3 kernels", seconds_each(1000, [&] { step.run(); }) * 1e6, "us",
                  1, "goal", false});

  const Tensor x = Tensor::rand({16}).realize(), y = Tensor::rand({16}).realize();
  rows.push_back({"three small ops, seen before",
                  seconds_each(1000, [&] { ((x + y) * x - y).realize(); }) * 1e6, "us", 3, "goal",
                  false});

  // A step of a scan, of one kernel of four elements, the number of the step among them.
  constexpr int64_t steps = 10000;
  const Tensor rows_of_scan = Tensor::rand({steps, 4}).realize();
  const auto last =
      scan([](const Tensor& c, const Tensor& r) { return std::pair(c * 0.5 + r, std::tuple<>()); },
           Tensor::zeros({4}).realize(), rows_of_scan)
          .first;
  CapturedStep loop({last.uop()});
  loop.run();
  rows.push_back({"step of a scan, one kernel", seconds_each(1, [&] { loop.run(); }) * 1e6 / steps,
                  "us", 1, "goal", false});

  const std::vector<Tensor> weights = weights_of_blocks();
  const Tensor input = Tensor::randn({128, width}).realize();
  Tensor::realize(blocks_and_gradients(weights, input));
  double whole = 1e9, kernels = 1e9;
  for (int i = 0; i < 30; ++i) {
    const std::vector<Tensor> values =
        blocks_and_gradients(weights, input);  // the graph is made outside
    reset_counters();
    const double start = now_seconds();
    Tensor::realize(values);
    whole = std::min(whole, now_seconds() - start);
    kernels = std::min(kernels, counters().run_seconds);
  }
  rows.push_back({"warm 48 blocks, 577 outputs", whole * 1e3, "ms", kernels * 1e3, "kernels", false,
                  1 / 1.05});
}

}  // namespace koine::bench
