#pragma once
#include <string>

#include "koine/koine.hpp"

// The net of `koine demo` and a step of its training: the tool, tests and benchmarks have the same.
namespace koine::app {

/// Two convolutions, pooling, two dense layers: about 20,000 parameters.
struct DigitsNet {
  nn::Conv2d first{1, 16, 3, {1, 1, 1}};
  nn::BatchNorm norm{16};
  nn::Conv2d second{16, 32, 3, {1, 1, 1}};
  nn::Linear hidden{32 * 4 * 4, 32};
  nn::Linear out{32, 10};

  /// Images (n, 1, 8, 8) to logits (n, 10).
  Tensor operator()(const Tensor& x, bool training) {
    Tensor h = norm(first(x), training).relu();
    h = second(h).relu().max_pool2d(2);
    return out(hidden(h.flatten(1)).relu());
  }
  void state(const std::string& prefix, const nn::StateVisitor& visit) {
    first.state(prefix + "first.", visit);
    norm.state(prefix + "norm.", visit);
    second.state(prefix + "second.", visit);
    hidden.state(prefix + "hidden.", visit);
    out.state(prefix + "out.", visit);
  }
};

/// Scalars of a step, computed with it.
struct StepResult {
  Tensor loss;
  Tensor hits;  ///< how many images were recognised
};

/// One step on images (n, 1, 8, 8) with labels (n,): forward, backward, the optimiser's step.
inline StepResult train_step(DigitsNet& net, nn::AdamW& optimizer, const Tensor& images,
                             const Tensor& labels) {
  const Tensor logits = net(images, true);
  Tensor loss = logits.cross_entropy(labels);
  Tensor hits = (logits.argmax(1) == labels).sum();
  optimizer.zero_grad();
  loss.backward();
  optimizer.step({loss, hits, net.norm.running_mean, net.norm.running_var});
  return {loss, hits};
}

}  // namespace koine::app
