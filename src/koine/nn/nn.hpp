#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "koine/tensor/random.hpp"
#include "koine/tensor/tensor.hpp"

// Layers. Each has a forward call and `parameters(prefix, visit)`, which names its tensors; names
// are PyTorch's, so that state dicts match.
namespace koine::nn {

using StateVisitor = std::function<void(const std::string& name, Tensor& tensor, bool trainable)>;

struct Linear {
  /// weight (out, in) and bias uniform in +-1/sqrt(in).
  Linear(int64_t in, int64_t out, bool bias = true);
  Tensor operator()(const Tensor& x) const { return x.linear(weight, bias); }
  void state(const std::string& prefix, const StateVisitor& visit);
  Tensor weight, bias;
};

struct Conv2d {
  Conv2d(int64_t in, int64_t out, int64_t kernel, Tensor::Window window = {}, int64_t groups = 1,
         bool bias = true);
  Tensor operator()(const Tensor& x) const { return x.conv2d(weight, bias, window, groups); }
  void state(const std::string& prefix, const StateVisitor& visit);
  Tensor weight, bias;
  Tensor::Window window;
  int64_t groups;
};

/// Normalises axis 1 over all others; keeps running statistics while training.
struct BatchNorm {
  explicit BatchNorm(int64_t features, double eps = 1e-5, double momentum = 0.1);
  Tensor operator()(const Tensor& x, bool training);
  void state(const std::string& prefix, const StateVisitor& visit);
  Tensor weight, bias, running_mean, running_var;
  double eps, momentum;
};

/// Normalises the last axis.
struct LayerNorm {
  explicit LayerNorm(int64_t features, double eps = 1e-5);
  /// x has `features` along its last axis; else Error (Value).
  Tensor operator()(const Tensor& x) const;
  void state(const std::string& prefix, const StateVisitor& visit);
  Tensor weight, bias;
  double eps;
};

struct Embedding {
  Embedding(int64_t vocabulary, int64_t width);
  /// A row for each integer of `index`, of any shape; another dtype is Error (Type).
  Tensor operator()(const Tensor& index) const;
  void state(const std::string& prefix, const StateVisitor& visit);
  Tensor weight;
};

struct Dropout {
  explicit Dropout(double probability = 0.5) : p(probability) {}
  Tensor operator()(const Tensor& x, bool training) const { return x.dropout(p, training); }
  /// What is dropped follows from the key.
  Tensor operator()(const random::Key& key, const Tensor& x, bool training) const {
    return training ? random::dropout(key, x, p) : x;
  }
  double p;
};

}  // namespace koine::nn
