#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "commands.hpp"
#include "digits.hpp"
#include "digits_net.hpp"
#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/koine.hpp"
#include "progress.hpp"

namespace koine::app {
namespace {

constexpr int64_t batch = 64;
constexpr int64_t held_out = 397;

struct Batch {
  Tensor images, labels;
};
Batch gather_batch(const Digits& digits, const std::vector<int64_t>& order, int64_t from,
                   int64_t count) {
  std::vector<float> images;
  std::vector<int32_t> labels;
  for (int64_t i = from; i < from + count; ++i) {
    const auto at = static_cast<size_t>(order[static_cast<size_t>(i)]);
    images.insert(images.end(), digits.images.begin() + static_cast<std::ptrdiff_t>(at * 64),
                  digits.images.begin() + static_cast<std::ptrdiff_t>(at * 64 + 64));
    labels.push_back(digits.labels[at]);
  }
  return {Tensor::from(images, {count, 1, 8, 8}), Tensor::from(labels, {count})};
}

// A line that is drawn over where there is a terminal, and a line an epoch where there is none.
void show(const Progress& p) {
  const int columns = terminal_columns();
  const bool last = p.step == p.steps;
  if (columns == 0 && !last) return;
  constexpr int wide = 200;
  fmt::print("{}{}{}", columns > 0 ? "\r" : "", progress_line(p, columns > 0 ? columns - 1 : wide),
             last ? "\n" : "");
  std::fflush(stdout);
}

// Training for nothing would be a pity.
void require_writable(const std::string& path) {
  const bool existed = std::filesystem::exists(path);
  const bool opens = std::ofstream(path, std::ios::app).is_open();
  KOINE_REQUIRE(opens, File, "--save={}: cannot be written: is the folder there and writable?",
                path);
  if (!existed) std::filesystem::remove(path);
}

// The net on all devices, whole on each.
void place(DigitsNet& net, const std::string& devices) {
  net.state("", [&](const std::string&, Tensor& t, bool trainable) {
    t = t.shard(devices).clone();
    if (trainable) t.requires_grad();
  });
}

}  // namespace

int run_demo(const DemoOptions& o) {
  const double start = now_seconds();
  Options chosen = options();
  if (!o.device.empty()) chosen.device = o.device;
  const OptionScope scope(chosen);
  Tensor::manual_seed(o.seed);
  if (o.distributed) distributed::init();
  const bool first_rank = !o.distributed || distributed::rank() == 0;  // which reports and saves
  const int64_t ranks = o.distributed ? distributed::count() : 1;
  KOINE_REQUIRE(batch % ranks == 0, Value,
                "--distributed: {} processes cannot share out a batch of {}: use 1, 2, 4 or so",
                ranks, batch);
  if (first_rank) require_writable(o.save);
  const Digits digits = read_digits(o.data.empty() ? find_digits() : o.data);
  std::vector<int64_t> order(static_cast<size_t>(digits.count()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 random(o.seed);
  std::shuffle(order.begin(), order.end(), random);
  const std::vector<int64_t> test(order.begin(), order.begin() + held_out);
  std::vector<int64_t> train(order.begin() + held_out, order.end());
  KOINE_REQUIRE(static_cast<int64_t>(train.size()) >= batch, Value, "the data has too few digits");

  DigitsNet net;
  if (o.distributed) place(net, distributed::devices());
  nn::AdamW optimizer(nn::get_parameters(net), 4e-3, 0.9, 0.999, 1e-8, 0.02);
  const auto steps = static_cast<int64_t>(train.size()) / batch;
  const int64_t total = steps * o.epochs;
  Counters step_counters;
  double cold = 0, compile = 0, warm_total = 0;
  int64_t warm_steps = 0;
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    std::shuffle(train.begin(), train.end(), random);
    double loss_sum = 0;
    int64_t right = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const double begin = now_seconds();
      const bool first = epoch == 0 && step == 0;
      reset_counters();
      optimizer.set_learning_rate(
          nn::cosine_schedule(epoch * steps + step, total, 4e-3, 1e-5, steps));
      Batch b = gather_batch(digits, train, step * batch, batch);
      if (o.distributed)
        b = {b.images.shard(distributed::devices(), 0), b.labels.shard(distributed::devices(), 0)};
      const auto [loss, hits] = train_step(net, optimizer, b.images, b.labels);
      loss_sum += loss.item();
      right += hits.item<int64_t>();
      const double seconds = now_seconds() - begin;
      if (first) {
        cold = seconds;
        compile = counters().compile_seconds;
      } else {
        step_counters = counters();
        warm_total += seconds;
        ++warm_steps;
      }
      const auto done = static_cast<double>(step + 1);
      if (first_rank)
        show({epoch, o.epochs, step + 1, steps, loss_sum / done,
              static_cast<double>(right) / (done * static_cast<double>(batch))});
    }
  }
  Batch t = gather_batch(digits, test, 0, held_out);
  if (o.distributed)
    t = {t.images.shard(distributed::devices()), t.labels.shard(distributed::devices())};
  const double accuracy = (net(t.images, false).argmax(1) == t.labels).to_float().mean().item();
  if (!first_rank) return 0;
  safe_save(nn::get_state(net), o.save);
  fmt::print(
      "first step {:.0f} ms (of it {:.0f} ms compiling)  then {:.2f} ms a step, {} kernels a step  "
      "total {:.1f} s\n",
      cold * 1e3, compile * 1e3,
      warm_total / static_cast<double>(std::max<int64_t>(1, warm_steps)) * 1e3,
      step_counters.kernels, now_seconds() - start);
  fmt::print("model saved to {}\n", o.save);
  fmt::print("test accuracy: {:.1f} %\n", accuracy * 100);
  return 0;
}

}  // namespace koine::app
