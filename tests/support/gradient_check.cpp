#include "gradient_check.hpp"

#include <cmath>

namespace koine::test {

Tensor doubles(const Shape& shape, uint64_t salt, double low, double high) {
  std::mt19937_64 random(test_seed() + salt);
  return doubles(shape, random, low, high);
}

Tensor doubles(const Shape& shape, std::mt19937_64& random, double low, double high) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  std::vector<double> data;
  for (int64_t i = 0; i < n; ++i)
    data.push_back(low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53);
  return Tensor::from(data, shape);
}

std::string gradient_difference(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                double tolerance, double step) {
  const Tensor seed = doubles(f(x).shape(), 99);
  auto loss = [&](const Tensor& v) { return (f(v) * seed).sum(); };
  const auto got = loss(x).gradient({x})[0].tolist<double>();
  const auto data = x.tolist<double>();
  for (size_t i = 0; i < data.size(); ++i) {
    auto at = [&](double v) {
      auto moved = data;
      moved[i] = v;
      return loss(Tensor::from(moved, x.shape())).item();
    };
    const double want = (at(data[i] + step) - at(data[i] - step)) / (2 * step);
    if (!(std::fabs(got[i] - want) <= tolerance * std::max(1.0, std::fabs(want))))
      return fmt::format("element {}: {} instead of {}", i, got[i], want);
  }
  return "";
}

void check_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                    double tolerance) {
  EXPECT_EQ(gradient_difference(f, x, tolerance), "");
}

void check_second_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                           double tolerance) {
  const Tensor seed = doubles(f(x).shape(), 98);
  check_gradient([&](const Tensor& v) { return (f(v) * seed).sum().gradient({v})[0]; }, x,
                 tolerance);
}

}  // namespace koine::test
