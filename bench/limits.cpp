#include <immintrin.h>

#include <cstring>
#include <thread>

#include "bench.hpp"
#include "koine/base/timer.hpp"

namespace koine::bench {
namespace {

// Twelve independent chains: two operations a cycle at a latency of four or five.
__attribute__((target("avx2,fma"))) double fma_avx2(int64_t rounds) {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int k = 0; k < 12; ++k) acc[k] = _mm256_fmadd_ps(acc[k], x, y);
  __m256 sum = acc[0];
  for (int k = 1; k < 12; ++k) sum = _mm256_add_ps(sum, acc[k]);
  return static_cast<double>(_mm256_cvtss_f32(sum));
}
__attribute__((target("avx512f"))) double fma_avx512(int64_t rounds) {
  __m512 acc[12];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int k = 0; k < 12; ++k) acc[k] = _mm512_fmadd_ps(acc[k], x, y);
  __m512 sum = acc[0];
  for (int k = 1; k < 12; ++k) sum = _mm512_add_ps(sum, acc[k]);
  return static_cast<double>(_mm512_cvtss_f32(sum));
}
__attribute__((target("avx2"))) float read_avx2(const float* data, int64_t n) {
  __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 32 <= n; i += 32) {
    a = _mm256_add_ps(a, _mm256_loadu_ps(data + i));
    b = _mm256_add_ps(b, _mm256_loadu_ps(data + i + 8));
    c = _mm256_add_ps(c, _mm256_loadu_ps(data + i + 16));
    d = _mm256_add_ps(d, _mm256_loadu_ps(data + i + 24));
  }
  return _mm256_cvtss_f32(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
}
// Plain stores, as our kernels use them.
__attribute__((target("avx2"))) void copy_avx2(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i + 16 <= n; i += 16) {
    _mm256_storeu_ps(to + i, _mm256_loadu_ps(from + i));
    _mm256_storeu_ps(to + i + 8, _mm256_loadu_ps(from + i + 8));
  }
}

volatile double sink_value;

template <class F>
void on_all_threads(F&& work) {
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < count; ++t) threads.emplace_back([&, t] { work(t, count); });
  work(0, count);
  for (auto& t : threads) t.join();
}

}  // namespace

double best_seconds(const std::function<void()>& action, double budget) {
  double best = 1e30;
  const double end = now_seconds() + budget;
  for (int i = 0; i < 3 || now_seconds() < end; ++i) {
    const double start = now_seconds();
    action();
    best = std::min(best, now_seconds() - start);
  }
  return best;
}

Limits measure_limits() {
  Limits out{};
  constexpr int64_t rounds = 2'000'000;
  const bool wide = __builtin_cpu_supports("avx512f");
  const auto fma = [&](unsigned, unsigned) {
    sink_value = wide ? fma_avx512(rounds) : fma_avx2(rounds);
  };
  const double operations = 2.0 * 12 * (wide ? 16 : 8) * static_cast<double>(rounds);
  out.fma_one_thread = operations / best_seconds([&] { fma(0, 1); }, 0.6);
  out.fma_all_threads = operations * std::max(1u, std::thread::hardware_concurrency()) /
                        best_seconds([&] { on_all_threads(fma); }, 0.6);
  constexpr int64_t n = int64_t{64} << 20;
  std::vector<float> a(n, 1.0f), b(n, 2.0f);
  const double read = best_seconds([&] {
    on_all_threads([&](unsigned t, unsigned count) {
      const int64_t part = n / count;
      sink_value = read_avx2(a.data() + t * part, part);
    });
  });
  out.read_bandwidth = 4.0 * n / read;
  const double copy = best_seconds([&] {
    on_all_threads([&](unsigned t, unsigned count) {
      const int64_t part = n / count;
      copy_avx2(b.data() + t * part, a.data() + t * part, part);
    });
  });
  out.copy_bandwidth = 8.0 * n / copy;
  return out;
}

}  // namespace koine::bench
