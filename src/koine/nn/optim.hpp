#pragma once
#include <map>
#include <string>
#include <vector>

#include "koine/nn/nn.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine::nn {

/// Updates parameters from their gradients. `step()` computes everything that is pending in one
/// realize: new parameters, optimiser state, the loss that backward() was called on, running
/// statistics, detached tensors that read the parameters, and `also`. A step that
/// fails changes nothing.
class Optimizer {
 public:
  Optimizer(std::vector<Tensor> parameters, double learning_rate);
  virtual ~Optimizer() = default;
  void zero_grad();
  /// A parameter without a gradient stays as it is. Throws Error (Value) where none has one.
  void step(const std::vector<Tensor>& also = {});
  const std::vector<Tensor>& parameters() const { return parameters_; }
  double learning_rate() const { return rate_; }
  void set_learning_rate(double rate);
  /// Scales all gradients so that their joint norm is at most `norm`. Gives the norm before, a
  /// float32 scalar.
  Tensor clip_grad_norm(double norm);
  /// What it remembers from step to step, by name, without the parameters and the learning rate:
  /// get_state and load_state save it and go on from it.
  virtual void state(const std::string& prefix, const StateVisitor& visit) = 0;
  /// All tensors that a step reads or changes: parameters, state and the learning rate of now.
  std::vector<Tensor> tensors();

 protected:
  /// The new value of parameter `i`; new state goes through `set`.
  virtual Tensor update(size_t i, const Tensor& parameter, const Tensor& gradient,
                        const Tensor& rate) = 0;
  /// Called once a step, before the updates.
  virtual void begin_step() {}
  /// A state tensor gets a new value when the whole step has been computed; gives that value.
  Tensor set(const Tensor& state, const Tensor& value);
  std::vector<Tensor> parameters_;

 private:
  double rate_;
  std::vector<Tensor> changed_, changes_;  // of the step that is being described
  Tensor rate_tensor_;  // a buffer: a schedule must not change the compiled kernels
};

class SGD : public Optimizer {
 public:
  SGD(std::vector<Tensor> parameters, double learning_rate, double momentum = 0,
      double weight_decay = 0, bool nesterov = false);
  void state(const std::string& prefix, const StateVisitor& visit) override;
  double momentum() const { return momentum_; }
  double weight_decay() const { return decay_; }
  bool nesterov() const { return nesterov_; }

 protected:
  Tensor update(size_t i, const Tensor& p, const Tensor& g, const Tensor& rate) override;

 private:
  double momentum_, decay_;
  bool nesterov_;
  std::vector<Tensor> velocity_;
};

/// Adam (Kingma and Ba 2015) with weight decay in the gradient; AdamW (Loshchilov and Hutter 2019)
/// with it apart.
class Adam : public Optimizer {
 public:
  Adam(std::vector<Tensor> parameters, double learning_rate = 1e-3, double beta1 = 0.9,
       double beta2 = 0.999, double eps = 1e-8, double weight_decay = 0);
  void state(const std::string& prefix, const StateVisitor& visit) override;
  double beta1() const { return beta1_; }
  double beta2() const { return beta2_; }
  double eps() const { return eps_; }
  double weight_decay() const { return decay_; }

 protected:
  Tensor update(size_t i, const Tensor& p, const Tensor& g, const Tensor& rate) override;
  void begin_step() override;
  bool decoupled_ = false;

 private:
  double beta1_, beta2_, eps_, decay_;
  Tensor power1_, power2_;            // beta^t
  Tensor next_power1_, next_power2_;  // after this step
  std::vector<Tensor> m_, v_;
};

class AdamW : public Adam {
 public:
  AdamW(std::vector<Tensor> parameters, double learning_rate = 1e-3, double beta1 = 0.9,
        double beta2 = 0.999, double eps = 1e-8, double weight_decay = 0.01)
      : Adam(std::move(parameters), learning_rate, beta1, beta2, eps, weight_decay) {
    decoupled_ = true;
  }
};

/// Learning rates by step.
double cosine_schedule(int64_t step, int64_t total, double peak, double floor = 0,
                       int64_t warmup = 0);
double step_schedule(int64_t step, int64_t every, double start, double factor);

/// All named tensors of a model: `model.state("", visitor)`.
using StateDict = std::map<std::string, Tensor>;
template <class Model>
StateDict get_state(Model& model) {
  StateDict out;
  model.state("", [&](const std::string& name, Tensor& t, bool) { out.emplace(name, t); });
  return out;
}
template <class Model>
std::vector<Tensor> get_parameters(Model& model) {
  std::vector<Tensor> out;
  model.state("", [&](const std::string&, Tensor& t, bool trainable) {
    if (trainable) out.push_back(t);
  });
  return out;
}
/// Copies `state` into a model's tensors. Throws Error (Key) listing names that are missing, and
/// Error (Value) for a shape that differs.
void load_state_into(const StateDict& model, const StateDict& state);
template <class Model>
void load_state(Model& model, const StateDict& state) {
  load_state_into(get_state(model), state);
}

}  // namespace koine::nn
