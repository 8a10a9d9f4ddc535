#include "koine/nn/optim.hpp"

#include <cmath>
#include <map>
#include <numbers>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine::nn {
namespace {

Tensor owned(const Tensor& t) { return t.clone().realize(); }
std::vector<Tensor> zeros_for(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> out;
  for (const Tensor& p : parameters) out.push_back(owned(p.zeros_like().shard_like(p)));
  return out;
}

void visit_all(std::vector<Tensor>& tensors, const std::string& name, const StateVisitor& visit) {
  for (size_t i = 0; i < tensors.size(); ++i)
    visit(fmt::format("{}.{}", name, i), tensors[i], false);
}

// A number as memory of each device that a tensor lies on.
Tensor number_beside(double value, const Tensor& p) {
  return Tensor(buffer_from_host(shape_of({}), DType::Float64, p.device(), &value, -1));
}

// A float64 scalar as an update of `p` takes it.
Tensor beside(const Tensor& scalar, const Tensor& p) {
  return scalar.shard(p.device())
      .cast(p.dtype() == DType::Float64 ? DType::Float64 : DType::Float32);
}

void require_from_zero(std::string_view what, double value) {
  KOINE_REQUIRE(value >= 0 && std::isfinite(value), Value,
                "optimizer: the {} {} must be a finite number from 0 on", what, value);
}
void require_beta(std::string_view what, double value) {
  KOINE_REQUIRE(value >= 0 && value < 1, Value, "optimizer: {} = {} must be in [0, 1)", what,
                value);
}

}  // namespace

Optimizer::Optimizer(std::vector<Tensor> parameters, double learning_rate)
    : parameters_(std::move(parameters)) {
  KOINE_REQUIRE(!parameters_.empty(), Value, "optimizer: no parameters");
  std::map<const void*, size_t> seen;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    KOINE_REQUIRE(is_float(parameters_[i].dtype()), Type,
                  "optimizer: parameter {} of shape {} is {}, which has no gradient", i,
                  shape_text(parameters_[i].uop()), dtype_name(parameters_[i].dtype()));
    const auto [first, fresh] = seen.emplace(parameters_[i].storage_id(), i);
    KOINE_REQUIRE(fresh, Value,
                  "optimizer: parameters {} and {}, of shape {}, are one tensor: name it once",
                  first->second, i, shape_text(parameters_[i].uop()));
  }
  set_learning_rate(learning_rate);
}
void Optimizer::set_learning_rate(double rate) {
  require_from_zero("learning rate", rate);
  rate_ = rate;
  rate_tensor_ = number_beside(rate, parameters_[0]);  // broadcasts to any parameter
}
void Optimizer::zero_grad() {
  for (Tensor& p : parameters_) p.zero_grad();
}

Tensor Optimizer::clip_grad_norm(double norm) {
  KOINE_REQUIRE(norm > 0, Value, "clip_grad_norm: the norm {} must be positive", norm);
  Tensor total;
  for (Tensor& p : parameters_) {
    if (!p.has_grad()) continue;
    const Tensor g = p.grad();  // narrow floats do not hold the squares
    const Tensor part = (is_small_float(g.dtype()) ? g.to_float() : g).square().sum();
    total = total.defined() ? total + part.shard(total.device()) : part;
  }
  if (!total.defined()) return Tensor::zeros({});
  total = total.sqrt();
  const Tensor scale = (Tensor(norm) / (total + Tensor(1e-6))).minimum(Tensor(1.0));
  for (Tensor& p : parameters_) {
    if (!p.has_grad()) continue;
    const Tensor clipped = p.grad() * scale.shard(p.device());
    p.set_grad(clipped.cast(p.dtype()));
  }
  return total;
}

void Optimizer::step(const std::vector<Tensor>& also) {
  changed_.clear();
  changes_.clear();
  KOINE_REQUIRE(std::any_of(parameters_.begin(), parameters_.end(),
                            [](const Tensor& p) { return p.has_grad(); }),
                Value,
                "step: none of the {} parameters has a gradient: call backward() first, of what is "
                "computed from them",
                parameters_.size());
  begin_step();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& p = parameters_[i];
    if (!p.has_grad()) continue;  // of a branch that was not taken
    set(p, update(i, p.detach(), p.grad().detach(), beside(rate_tensor_, p)));
  }
  Tensor::assign_all(std::exchange(changed_, {}), std::exchange(changes_, {}), also);
}
std::vector<Tensor> Optimizer::tensors() {
  std::vector<Tensor> out = parameters_;
  state("", [&](const std::string&, Tensor& t, bool) { out.push_back(t); });
  out.push_back(rate_tensor_);
  return out;
}
Tensor Optimizer::set(const Tensor& state, const Tensor& value) {
  changed_.push_back(state);
  changes_.push_back(value.cast(state.dtype()));
  return changes_.back();
}

SGD::SGD(std::vector<Tensor> parameters, double learning_rate, double momentum, double weight_decay,
         bool nesterov)
    : Optimizer(std::move(parameters), learning_rate),
      momentum_(momentum),
      decay_(weight_decay),
      nesterov_(nesterov) {
  require_from_zero("momentum", momentum);
  require_from_zero("weight decay", weight_decay);
  KOINE_REQUIRE(!nesterov || momentum > 0, Value,
                "optimizer: Nesterov's form needs a momentum above 0");
  if (momentum_ != 0) velocity_ = zeros_for(parameters_);
}
void SGD::state(const std::string& prefix, const StateVisitor& visit) {
  visit_all(velocity_, prefix + "velocity", visit);
}
Tensor SGD::update(size_t i, const Tensor& p, const Tensor& gradient, const Tensor& rate) {
  Tensor g = decay_ != 0 ? gradient + p * Tensor(decay_) : gradient;
  if (momentum_ != 0) {
    const Tensor velocity = set(velocity_[i], velocity_[i] * Tensor(momentum_) + g);
    g = nesterov_ ? g + velocity * Tensor(momentum_) : velocity;
  }
  return p - g * rate;
}

Adam::Adam(std::vector<Tensor> parameters, double learning_rate, double beta1, double beta2,
           double eps, double weight_decay)
    : Optimizer(std::move(parameters), learning_rate),
      beta1_(beta1),
      beta2_(beta2),
      eps_(eps),
      decay_(weight_decay),
      power1_(number_beside(1, parameters_[0])),
      power2_(number_beside(1, parameters_[0])),
      m_(zeros_for(parameters_)),
      v_(zeros_for(parameters_)) {
  require_beta("beta1", beta1);
  require_beta("beta2", beta2);
  require_from_zero("eps", eps);
  require_from_zero("weight decay", weight_decay);
}

void Adam::begin_step() {
  next_power1_ = set(power1_, power1_ * Tensor(beta1_));
  next_power2_ = set(power2_, power2_ * Tensor(beta2_));
}
Tensor Adam::update(size_t i, const Tensor& p, const Tensor& gradient, const Tensor& rate) {
  const Tensor g = decay_ != 0 && !decoupled_ ? gradient + p * Tensor(decay_) : gradient;
  const Tensor m = set(m_[i], m_[i] * Tensor(beta1_) + g * Tensor(1 - beta1_));
  const Tensor v = set(v_[i], v_[i] * Tensor(beta2_) + g * g * Tensor(1 - beta2_));
  const Tensor m_hat = m / beside(Tensor(1.0) - next_power1_, p);
  const Tensor v_hat = v / beside(Tensor(1.0) - next_power2_, p);
  Tensor change = m_hat / (v_hat.sqrt() + Tensor(eps_));
  if (decay_ != 0 && decoupled_) change = change + p * Tensor(decay_);
  return p - change * rate;
}

void Adam::state(const std::string& prefix, const StateVisitor& visit) {
  visit(prefix + "power1", power1_, false);
  visit(prefix + "power2", power2_, false);
  visit_all(m_, prefix + "m", visit);
  visit_all(v_, prefix + "v", visit);
}

double cosine_schedule(int64_t step, int64_t total, double peak, double floor, int64_t warmup) {
  KOINE_REQUIRE(step >= 0 && total >= 0 && warmup >= 0, Value,
                "cosine_schedule: step {}, total {} and warmup {} must not be negative", step,
                total, warmup);
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double t = static_cast<double>(step - warmup) /
                   static_cast<double>(std::max<int64_t>(1, total - warmup));
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, t)));
}
double step_schedule(int64_t step, int64_t every, double start, double factor) {
  KOINE_REQUIRE(step >= 0 && every >= 1, Value,
                "step_schedule: step {} must not be negative, every {} must be positive", step,
                every);
  const int64_t steps = step / every;
  return start * std::pow(factor, static_cast<double>(steps));
}

void load_state_into(const StateDict& model, const StateDict& state) {
  std::string missing;
  for (const auto& [name, tensor] : model)
    if (!state.contains(name)) missing += (missing.empty() ? "" : ", ") + name;
  KOINE_REQUIRE(missing.empty(), Key,
                "load_state: the state lacks {}: was it saved from another model?", missing);
  for (const auto& [name, tensor] : model) {
    const Tensor& value = state.at(name);
    KOINE_REQUIRE(value.shape() == tensor.shape(), Value,
                  "load_state: '{}' has shape {} in the model and {} in the state", name,
                  shape_text(tensor.uop()), shape_text(value.uop()));
  }
  std::vector<Tensor> targets, values;
  for (const auto& [name, tensor] : model) {
    targets.push_back(tensor);
    values.push_back(state.at(name));
  }
  Tensor::assign_all(targets, values);
}

}  // namespace koine::nn
