#pragma once
#include <functional>

#include "check.hpp"

// Gradients against central differences in float64.
namespace koine::test {

/// Random numbers in [low, high), float64; the second from test_seed() and `salt`.
Tensor doubles(const Shape& shape, std::mt19937_64& random, double low = -1, double high = 1);
Tensor doubles(const Shape& shape, uint64_t salt, double low = -1, double high = 1);

/// Empty when the gradient of sum(f(x) * seed), with a random seed, agrees at every element of x
/// within `tolerance` (relative above 1); else the first difference in words. x is float64.
std::string gradient_difference(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                double tolerance = 1e-5, double step = 1e-5);

/// Expects gradient_difference() to be empty.
void check_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                    double tolerance = 1e-5);
/// The same for the second derivative: the gradient of sum(gradient of f * seed).
void check_second_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                           double tolerance = 1e-5);

}  // namespace koine::test
