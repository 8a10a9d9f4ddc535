#include "koine/tensor/recurrence.hpp"

#include "koine/tensor/custom.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

constexpr const char* forward = "koine.recurrence";
constexpr const char* backward = "koine.recurrence_back";

// Rows of the result, factors and terms; a step reads what the one before has stored.
UOp kernel(const std::vector<UOp>& p, bool back) {
  const UOp row = range(0, p[0].dim(0), AxisType::Loop),
            step = range(1, p[0].dim(1), AxisType::Loop);
  const UOp one = index_const(1), last = sub(p[0].dim(1), one);
  const UOp at = back ? sub(last, step) : step, before = back ? add(at, one) : sub(at, one);
  const UOp made = load(index(after(p[0], std::vector<UOp>{step}), {row, before}));
  const UOp factor = load(index(p[1], {row, back ? before : at})),
            term = load(index(p[2], {row, at}));
  const UOp value = where(lt(index_const(0), step), add(term, mul(factor, made)), term);
  return sink(std::vector<UOp>{end(store(index(p[0], {row, at}), value), {row, step})});
}

Tensor rows_of(const Tensor& x) {
  const Shape shape = x.shape();
  Size rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return x.reshape({rows, shape.back()});
}

Tensor run(const char* name, const Tensor& factors, const Tensor& terms) {
  const Tensor a = rows_of(factors), b = rows_of(terms);
  const bool back = name == backward;
  return custom_kernel(name, CallResult{b.shape(), b.dtype()}, {a, b},
                       [&](const std::vector<UOp>& p) { return kernel(p, back); })
      .reshape(terms.shape());
}

// The terms have the transposed recurrence of the cotangent, the factors that times what they were
// multiplied with.
std::vector<Tensor> forward_gradient(const CallGradient& of) {
  const Tensor g = tensor::recurrence_back(of.arguments[0], of.gradients[0]);
  return {g * tensor::shifted(of.results[0], 0), g};
}
std::vector<Tensor> backward_gradient(const CallGradient& of) {
  const Tensor g = tensor::recurrence(of.arguments[0], of.gradients[0]);
  return {tensor::shifted(g, 0) * of.results[0], g};
}

// Examples are further rows.
std::function<std::vector<Tensor>(const CallForExamples&)> for_examples(const char* name) {
  return [name](const CallForExamples& of) {
    std::vector<Tensor> all;
    for (size_t k = 0; k < of.arguments.size(); ++k) {
      const Tensor& t = of.arguments[k];
      Shape wide = t.shape();
      if (!of.mapped[k]) wide.insert(wide.begin(), of.examples);
      all.push_back(t.expand(wide));
    }
    return std::vector<Tensor>{run(name, all[0], all[1])};
  };
}

void make_known() {
  static const bool known = [] {
    register_gradient(forward, forward_gradient);
    register_gradient(backward, backward_gradient);
    for (const char* name : {forward, backward}) register_vmap(name, for_examples(name));
    return true;
  }();
  (void)known;
}

}  // namespace

Tensor tensor::recurrence(const Tensor& factors, const Tensor& terms) {
  make_known();
  return run(forward, factors, terms);
}
Tensor tensor::recurrence_back(const Tensor& factors, const Tensor& terms) {
  make_known();
  return run(backward, factors, terms);
}

Tensor tensor::shifted(const Tensor& x, double first) {
  SizePairs padding(static_cast<size_t>(x.ndim()), {0, 0}), kept;
  for (const Size& s : x.shape()) kept.emplace_back(0, s);
  padding.back() = {1, 0};
  return x.pad(padding, Tensor(first)).shrink(kept);
}

}  // namespace koine
