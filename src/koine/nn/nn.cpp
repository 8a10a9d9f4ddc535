#include "koine/nn/nn.hpp"

#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/select.hpp"

namespace koine::nn {
namespace {

Tensor parameter(Tensor value) { return value.requires_grad(); }

// `rate` times what makes a mean of squares one over as many as remain beside their mean; 1 where
// none does.
Tensor unbiased(double rate, const Size& count) {
  if (!count.is_number())
    return Tensor(rate) * Tensor(count).cast(DType::Float32) /
           Tensor(larger(count - 1, 1)).cast(DType::Float32);
  const auto n = static_cast<double>(int64_t{count});
  return n > 1 ? rate * (n / (n - 1)) : rate;
}

// Of the member initialisers: runs before anything divides by it.
int64_t checked_groups(int64_t in, int64_t out, int64_t kernel, const Tensor::Window& w,
                       int64_t groups) {
  KOINE_REQUIRE(in >= 1 && out >= 1 && kernel >= 1, Value,
                "Conv2d: {} channels in, {} out and kernel {} must be positive", in, out, kernel);
  KOINE_REQUIRE(w.stride >= 1 && w.dilation >= 1 && w.padding >= 0, Value,
                "Conv2d: stride {} and dilation {} must be positive, padding {} not negative",
                w.stride, w.dilation, w.padding);
  KOINE_REQUIRE(groups >= 1 && in % groups == 0 && out % groups == 0, Value,
                "Conv2d: {} groups do not divide {} channels in and {} out", groups, in, out);
  return groups;
}

int64_t checked_size(const char* layer, const char* what, int64_t size) {
  KOINE_REQUIRE(size >= 1, Value, "{}: {} is {}, and must be positive", layer, what, size);
  return size;
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  KOINE_REQUIRE(in >= 1 && out >= 0, Value, "Linear: {} features in, {} out", in, out);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  weight = parameter(Tensor::uniform({out, in}, -bound, bound));
  if (with_bias) bias = parameter(Tensor::uniform({out}, -bound, bound));
}
void Linear::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "weight", weight, true);
  if (bias.defined()) visit(prefix + "bias", bias, true);
}

Conv2d::Conv2d(int64_t in, int64_t out, int64_t kernel, Tensor::Window w, int64_t group_count,
               bool with_bias)
    : window(w), groups(checked_groups(in, out, kernel, w, group_count)) {
  const int64_t fan_in = in / groups * kernel * kernel;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  weight = parameter(Tensor::uniform({out, in / groups, kernel, kernel}, -bound, bound));
  if (with_bias) bias = parameter(Tensor::uniform({out}, -bound, bound));
}
void Conv2d::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "weight", weight, true);
  if (bias.defined()) visit(prefix + "bias", bias, true);
}

BatchNorm::BatchNorm(int64_t features, double epsilon, double rate)
    : weight(parameter(Tensor::ones({checked_size("BatchNorm", "features", features)}))),
      bias(parameter(Tensor::zeros({features}))),
      running_mean(Tensor::zeros({features}).clone().realize()),
      running_var(Tensor::ones({features}).clone().realize()),
      eps(epsilon),
      momentum(rate) {}

Tensor BatchNorm::operator()(const Tensor& x, bool training) {
  KOINE_REQUIRE(x.ndim() >= 2 && x.size(1) == weight.size(0), Value,
                "BatchNorm: axis 1 of shape {} should have {} features", shape_text(x.uop()),
                weight.size(0));
  KOINE_REQUIRE(!training || x.numel().largest() > 0, Value,
                "BatchNorm: shape {} has no elements, and so no statistics to train with",
                shape_text(x.uop()));
  if (is_small_float(x.dtype()))  // squares would leave the range
    return (*this)(x.cast(DType::Float32), training).cast(x.dtype());
  Shape wide(static_cast<size_t>(x.ndim()), 1);
  wide[1] = x.size(1);
  Tensor::Axes others;
  for (int64_t i = 0; i < x.ndim(); ++i)
    if (i != 1) others.push_back(i);
  Tensor mean = running_mean.reshape(wide), var = running_var.reshape(wide);
  if (training) {
    mean = x.mean(others, true);
    var = (x - mean).square().mean(others, true);
    const Tensor share = unbiased(momentum, x.numel() / x.size(1));
    running_mean.assign(running_mean * Tensor(1 - momentum) +
                        mean.detach().reshape({-1}) * Tensor(momentum));
    running_var.assign(running_var * Tensor(1 - momentum) + var.detach().reshape({-1}) * share);
    running_mean.compute_with(weight);  // or each step would stand on all the steps before
    running_var.compute_with(weight);
  }
  const Tensor scale = (var + Tensor(eps)).rsqrt() * weight.reshape(wide);
  return (x - mean) * scale + bias.reshape(wide);
}
void BatchNorm::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "weight", weight, true);
  visit(prefix + "bias", bias, true);
  visit(prefix + "running_mean", running_mean, false);
  visit(prefix + "running_var", running_var, false);
}

LayerNorm::LayerNorm(int64_t features, double epsilon)
    : weight(parameter(Tensor::ones({checked_size("LayerNorm", "features", features)}))),
      bias(parameter(Tensor::zeros({features}))),
      eps(epsilon) {}
Tensor LayerNorm::operator()(const Tensor& x) const {
  if (weight.defined() && weight.ndim() == 1)
    KOINE_REQUIRE(x.ndim() > 0 && x.size(-1) == weight.size(0), Value,
                  "LayerNorm of {} features: x of shape {} has others along its last axis",
                  weight.size(0), shape_text(x.uop()));
  return x.layernorm(1, eps) * weight + bias;
}
void LayerNorm::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "weight", weight, true);
  visit(prefix + "bias", bias, true);
}

Embedding::Embedding(int64_t vocabulary, int64_t width)
    : weight(parameter(Tensor::randn({checked_size("Embedding", "vocabulary", vocabulary),
                                      checked_size("Embedding", "width", width)}))) {}
Tensor Embedding::operator()(const Tensor& index) const {
  KOINE_REQUIRE(is_integer(index.dtype()), Type,
                "Embedding: the numbers of rows are integers, got {} of shape {}: cast() them",
                dtype_name(index.dtype()), shape_text(index.uop()));
  return tensor::selected("Embedding", weight, 0, index);
}
void Embedding::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "weight", weight, true);
}

}  // namespace koine::nn
