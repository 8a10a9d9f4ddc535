#include <fmt/format.h>

#include <algorithm>

#include "bench.hpp"
#include "koine/koine.hpp"

// Kernels whose sizes are no multiple of a vector, beside the same kernels with sizes that are.
namespace koine::bench {
namespace {

struct Contestant {
  std::string name;
  double operations;  // of one call
  std::function<Tensor()> make;
  double wanted = 1;  // of the first one's rate
  double seconds = 1e30;
};

// Turn by turn, so that all see the same machine.
void compete(Rows& rows, std::vector<Contestant> all, int rounds = 25) {
  for (Contestant& c : all) c.make().realize();
  for (int round = 0; round < rounds; ++round)
    for (Contestant& c : all)
      c.seconds = std::min(c.seconds, best_seconds([&] { c.make().realize(); }, 0));
  const auto rate = [](const Contestant& c) { return c.operations / c.seconds * 1e-9; };
  for (const Contestant& c : all)
    rows.push_back({c.name, rate(c), "GFLOP/s", rate(all[0]), all[0].name, true, c.wanted});
}

Tensor random_of(const Shape& shape) { return (Tensor::rand(shape) - 0.5).realize(); }

Contestant gemm(int64_t m, int64_t k, int64_t n, double wanted) {
  const Tensor a = random_of({m, k}), b = random_of({k, n});
  return {fmt::format("GEMM {}x{}x{}", m, k, n), 2.0 * static_cast<double>(m * k * n),
          [=] { return a.matmul(b); }, wanted};
}

Contestant conv(int64_t width, double wanted) {
  const Tensor image = random_of({4, 64, 34, width + 2}), weight = random_of({64, 64, 3, 3});
  return {fmt::format("conv3x3 width {}", width),
          2.0 * 9 * 64 * 64 * 4 * 32 * static_cast<double>(width),
          [=] { return image.conv2d(weight); }, wanted};
}

}  // namespace

void bench_widths(Rows& rows) {
  Options one = options();
  one.threads = 1;
  const OptionScope scope(one);
  compete(rows, {gemm(704, 704, 704, 1), gemm(720, 720, 720, .85), gemm(240, 240, 240, .85),
                 gemm(1000, 1003, 1005, .85)});
  std::vector<Contestant> widths{conv(64, 1)};
  for (const int64_t width : {20, 24, 28, 48, 54, 56}) widths.push_back(conv(width, .6));
  compete(rows, std::move(widths));
  const Tensor x = random_of({64, 768}), in_out = random_of({768, 2304}), bias = random_of({2304}),
               out_in = random_of({2304, 768});
  const double operations = 2.0 * 64 * 768 * 2304;
  compete(rows,
          {{"Linear (in,out)", operations, [=] { return x.matmul(in_out); }},
           {"Linear (in,out) + bias", operations, [=] { return x.matmul(in_out) + bias; }, .9},
           {"Linear (in,out) + bias, gelu", operations,
            [=] { return (x.matmul(in_out) + bias).gelu(); }, .85},
           {"Linear (out,in)", operations, [=] { return x.matmul(out_in.permute({1, 0})); }, .7},
           {"Linear (out,in) + bias", operations,
            [=] { return x.matmul(out_in.permute({1, 0})) + bias; }, .7}});
  const Tensor y = random_of({704, 704}), w = random_of({704, 704});
  compete(
      rows,
      {{"GEMM 704", 2.0 * 704 * 704 * 704, [=] { return y.matmul(w); }},
       {"gelu(GEMM 704)", 2.0 * 704 * 704 * 704, [=] { return y.matmul(w).gelu(); }, .85},
       {"GEMM 704 A.B^T", 2.0 * 704 * 704 * 704, [=] { return y.matmul(w.permute({1, 0})); }, .7},
       {"GEMM 704 A^T.B", 2.0 * 704 * 704 * 704, [=] { return y.permute({1, 0}).matmul(w); }, .7}});
  auto rows_of = [&](int64_t n, double wanted) -> std::vector<Contestant> {
    const Tensor t = random_of({4096, n});
    const double ops = 4096.0 * static_cast<double>(n);
    return {{fmt::format("softmax 4096x{}", n), ops, [=] { return t.softmax(); }, wanted},
            {fmt::format("sum(0) 4096x{}", n), ops, [=] { return t.sum(0); }, wanted},
            {fmt::format("sum(1) 4096x{}", n), ops, [=] { return t.sum(1); }, wanted},
            {fmt::format("max(1) 4096x{}", n), ops, [=] { return t.max(1); }, wanted},
            {fmt::format("bias 4096x{}", n), ops, [=] { return t + t[0]; }, wanted}};
  };
  std::vector<std::vector<Contestant>> all;
  for (const int64_t n : {1024, 1000, 1003, 720, 250})
    all.push_back(rows_of(n, n == 1024 ? 1 : .8));
  for (size_t what = 0; what < all[0].size(); ++what) {
    std::vector<Contestant> same;
    for (const auto& list : all) same.push_back(list[what]);
    compete(rows, std::move(same), 8);
  }
}

}  // namespace koine::bench
