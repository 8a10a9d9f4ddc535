#include <algorithm>
#include <cmath>
#include <random>

#include "bench.hpp"
#include "koine/koine.hpp"

namespace koine::bench {
namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  std::vector<float> data(static_cast<size_t>(n));
  for (float& v : data) v = static_cast<float>(random()) / 4294967296.0f - 0.5f;
  return Tensor::from(data, shape);
}

// Runs the same lazy expression again and again: only the first time compiles.
double seconds_of(const std::function<Tensor()>& make, double budget = 1.0) {
  make().realize();
  return best_seconds([&] { make().realize(); }, budget);
}

// On the default device, with the threads that it has.
void gemm(Rows& rows, std::string name, double limit, int64_t n, DType dtype, double goal) {
  const Tensor a = random_tensor({n, n}, 1).cast(dtype).realize(),
               b = random_tensor({n, n}, 2).cast(dtype).realize();
  const double seconds = seconds_of([&] { return a.matmul(b); });
  const double flops =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  // The result is checked in the same run.
  const auto x = a.tolist<double>(), y = b.tolist<double>(), z = a.matmul(b).tolist<double>();
  double worst = 0;
  for (int64_t t = 0; t < 200; ++t) {
    const int64_t i = (t * 7919) % n, j = (t * 104729) % n;
    double sum = 0;
    for (int64_t k = 0; k < n; ++k)
      sum += x[static_cast<size_t>(i * n + k)] * y[static_cast<size_t>(k * n + j)];
    worst = std::max(worst, std::fabs(sum - z[static_cast<size_t>(i * n + j)]));
  }
  // The sums are below 8, and a narrow float is rounded once.
  const double most = dtype == DType::Float32 ? 1e-3 : dtype == DType::Float16 ? 0x1p-8 : 0x1p-5;
  KOINE_REQUIRE(worst < most, Value, "gemm {} of {} is wrong by {}", n, dtype_name(dtype), worst);
  rows.push_back(
      {std::move(name), flops / seconds * 1e-9, "GFLOP/s", limit * 1e-9, "FMA peak", true, goal});
}

void gemm_on_one_thread(Rows& rows, const Limits& limits, int64_t n, DType dtype, double goal) {
  Options one = options();
  one.threads = 1;
  const OptionScope scope(one);
  gemm(rows, fmt::format("GEMM {} {}, 1 thread", dtype_name(dtype), n), limits.fma_one_thread, n,
       dtype, goal);
}

// The gradients of a norm with weights, of rows of 1024, by what it moves if it goes over its input
// and the gradient of its result once.
void norm_gradients(Rows& rows, const Limits& limits, const Tensor& x) {
  const Tensor g = random_tensor(x.shape(), 4).realize(), weight = random_tensor({1024}, 5),
               bias = random_tensor({1024}, 6);
  auto run = [&] {
    Tensor::realize(((x.layernorm() * weight + bias) * g).sum().gradient({x, weight, bias}));
  };
  run();
  const double seconds = best_seconds(run, 1.0);
  rows.push_back({"layernorm gradients, rows of 1024 f32",
                  12.0 * static_cast<double>(int64_t{x.numel()}) / seconds * 1e-9, "GB/s",
                  limits.copy_bandwidth * 1e-9, "copy", true, 0.3});
}

void elementwise(Rows& rows, std::string name, const Limits& limits, const Tensor& x, double goal) {
  const double chain = seconds_of([&] {
    Tensor t = (x * Tensor(1.5) + Tensor(0.25)) * x;
    t = (t.relu() - Tensor(0.5)) * Tensor(0.125);
    return (t * t + x) * Tensor(0.5) + Tensor(1.0);
  });
  rows.push_back({std::move(name), 8.0 * static_cast<double>(x.numel()) / chain * 1e-9, "GB/s",
                  limits.copy_bandwidth * 1e-9, "copy", true, goal});
}

// What has to be done in order, or in passes.
void scan_and_sort(Rows& rows) {
  constexpr int64_t n = 1000000;
  const Tensor x = random_tensor({n}, 4);
  const double scan = seconds_of([&] { return x.cumsum(0); });
  rows.push_back({"cumsum of 1e6 f32", scan * 1e3, "ms", 20, "goal", false, 1});
  std::vector<float> data = x.tolist<float>();
  const double other = best_seconds([&] {
    std::vector<float> copy = data;
    std::stable_sort(copy.begin(), copy.end());
  });
  const double sort = seconds_of([&] { return x.sort().first; });
  rows.push_back(
      {"sort of 1e6 f32", sort * 1e3, "ms", other * 1e3, "std::stable_sort", false, 0.3});
}

}  // namespace

void bench_kernels(Rows& rows, const Limits& limits) {
  gemm_on_one_thread(rows, limits, 512, DType::Float32, 0.6);
  gemm_on_one_thread(rows, limits, 1024, DType::Float32, 0.5);
  gemm_on_one_thread(rows, limits, 512, DType::Float16, 0.5);
  gemm_on_one_thread(rows, limits, 512, DType::BFloat16, 0.5);
  scan_and_sort(rows);
  constexpr int64_t n = int64_t{64} << 20;
  const Tensor x = random_tensor({n}, 3);
  elementwise(rows, "elementwise chain, 64M f32", limits, x, 0.7);
  const double sum = seconds_of([&] { return x.sum(); });
  rows.push_back({"sum of 64M f32", 4.0 * n / sum * 1e-9, "GB/s", limits.read_bandwidth * 1e-9,
                  "read", true, 0.7});
  const Tensor rows_of = x.reshape({65536, 1024});
  const double softmax = seconds_of([&] { return rows_of.softmax(); });
  rows.push_back({"softmax 65536x1024 f32", 8.0 * n / softmax * 1e-9, "GB/s",
                  limits.copy_bandwidth * 1e-9, "copy", true, 0.3});
  norm_gradients(rows, limits, rows_of);
}

void bench_opencl(Rows& rows, const Limits& limits) {
  Options on = options();
  on.device = "CL";
  const OptionScope scope(on);
  gemm(rows, "OpenCL: GEMM float32 1024", limits.fma_all_threads, 1024, DType::Float32, 0.5);
  elementwise(rows, "OpenCL: elementwise chain, 64M", limits, random_tensor({int64_t{64} << 20}, 3),
              0.6);
}

}  // namespace koine::bench
