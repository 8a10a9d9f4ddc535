// The surface of Tensor, one line a function: names and defaults are those of C++.
#include "bind.hpp"

namespace koine::python {
namespace {

void bind_movement(TensorClass& c) {
  auto sizes = [&](const char* name, Tensor (Tensor::*f)(const Shape&) const, const char* doc) {
    c.def(
        name,
        [f, name](const Tensor& t, const nb::args& shape) {
          return (t.*f)(shape_of_all(shape, name));
        },
        "shape"_a, doc);
  };
  auto axes = [&](const char* name, Tensor (Tensor::*f)(const std::vector<int64_t>&) const,
                  const char* doc) {
    c.def(
        name,
        [f, name](const Tensor& t, const nb::args& given) {
          return (t.*f)(axes_of_all(given, name));
        },
        "axes"_a, doc);
  };
  sizes("reshape", &Tensor::reshape,
        "The elements in another shape, in which one size may be -1.\n\n>>> "
        "koine.Tensor.arange(6).reshape(2, -1).shape\n(2, 3)");
  sizes("view", &Tensor::view, "The same as reshape().");
  sizes("expand", &Tensor::expand, "Axes of size 1 repeated to these sizes; -1 keeps one.");
  sizes("repeat", &Tensor::repeat, "The whole tensor again, so many times along each axis.");
  axes("permute", &Tensor::permute, "The axes in another order.");
  axes("flip", &Tensor::flip, "Some axes backwards.");
  method(c, "transpose", &Tensor::transpose, "a"_a = 0, "b"_a = 1,
         "Two axes in each other's place.");
  method(c, "shrink", &Tensor::shrink, "bounds"_a,
         "Of each axis the part from one place to another.");
  method(c, "pad", &Tensor::pad, "padding"_a, "value"_a = 0,
         "So many elements before and behind each axis.");
  method(c, "squeeze", &Tensor::squeeze, "axis"_a = nb::none(),
         "Without axes of size 1, or without one of them.");
  method(c, "unsqueeze", &Tensor::unsqueeze, "axis"_a, "With a new axis of size 1.");
  method(c, "flatten", &Tensor::flatten, "start"_a = 0, "end"_a = -1, "Some axes as one.");
  method(c, "roll", &Tensor::roll, "shift"_a, "axis"_a,
         "Elements moved along an axis; those beyond the end come first.");
  method(c, "split", &Tensor::split, "size"_a, "axis"_a = 0,
         "Parts of a size along an axis; the last may be smaller.");
  method(c, "chunk", &Tensor::chunk, "count"_a, "axis"_a = 0, "So many parts along an axis.");
  static_method(c, "cat", &Tensor::cat, "tensors"_a, "axis"_a = 0,
                "Tensors behind each other along an axis.");
  static_method(c, "stack", &Tensor::stack, "tensors"_a, "axis"_a = 0, "Tensors along a new axis.");
}

void bind_positions(TensorClass& c) {
  method(c, "gather", &Tensor::gather, "axis"_a, "index"_a, "Elements along an axis by positions.");
  method(c, "scatter", &Tensor::scatter, "axis"_a, "index"_a, "src"_a,
         "A copy in which src stands at positions along an axis.");
  method(c, "scatter_add", &Tensor::scatter_add, "axis"_a, "index"_a, "src"_a,
         "A copy in which src is added at positions.");
  method(c, "index_select", &Tensor::index_select, "axis"_a, "index"_a,
         "Rows along an axis; negative positions count from the end. IndexError at the look where "
         "one is out of range.");
  method(c, "one_hot", &Tensor::one_hot, "classes"_a,
         "float32 of shape (..., classes), 1 at the class.");
  method(c, "tril", &Tensor::tril, "diagonal"_a = 0, "Zeros above a diagonal.");
  method(c, "triu", &Tensor::triu, "diagonal"_a = 0, "Zeros below a diagonal.");
  method(c, "masked_fill", &Tensor::masked_fill, "mask"_a, "value"_a,
         "A number where the mask holds.");
}

void bind_elementwise(TensorClass& c) {
  method(c, "cast", &Tensor::cast, "dtype"_a,
         "In another dtype: floats to integers truncate and saturate.");
  method(c, "astype", &Tensor::cast, "dtype"_a, "The same as cast(), by NumPy's name.");
  method(c, "bitcast", &Tensor::bitcast, "dtype"_a, "The same bits, read as another dtype.");
  method(c, "float", &Tensor::to_float, "As float32.");
  method(c, "neg", &Tensor::neg, "-x.");
  method(c, "logical_not", &Tensor::logical_not, "Whether x is 0.");
  method(c, "bitwise_not", &Tensor::bitwise_not, "~x.");
  method(c, "reciprocal", &Tensor::reciprocal, "1 / x.");
  method(c, "sqrt", &Tensor::sqrt, "The square root.");
  method(c, "rsqrt", &Tensor::rsqrt, "1 / sqrt(x).");
  method(c, "exp", &Tensor::exp, "e to the power x.");
  method(c, "exp2", &Tensor::exp2, "2 to the power x.");
  method(c, "log", &Tensor::log, "The natural logarithm.");
  method(c, "log2", &Tensor::log2, "The logarithm to base 2.");
  method(c, "sin", &Tensor::sin, "The sine.");
  method(c, "cos", &Tensor::cos, "The cosine.");
  method(c, "tan", &Tensor::tan, "The tangent.");
  method(c, "trunc", &Tensor::trunc, "Rounded toward 0.");
  method(c, "floor", &Tensor::floor, "Rounded down.");
  method(c, "ceil", &Tensor::ceil, "Rounded up.");
  method(c, "round", &Tensor::round, "Rounded, halves to even.");
  method(c, "abs", &Tensor::abs, "The absolute value.");
  method(c, "sign", &Tensor::sign, "-1, 0 or 1.");
  method(c, "square", &Tensor::square, "x * x.");
  method(c, "isnan", &Tensor::isnan, "Whether it is NaN.");
  method(c, "isinf", &Tensor::isinf, "Whether it is infinite.");
  method(c, "isfinite", &Tensor::isfinite, "Whether it is neither NaN nor infinite.");
  method(c, "relu", &Tensor::relu, "max(x, 0).");
  method(c, "leaky_relu", &Tensor::leaky_relu, "slope"_a = 0.01, "x, below 0 times the slope.");
  method(c, "sigmoid", &Tensor::sigmoid, "1 / (1 + exp(-x)).");
  method(c, "tanh", &Tensor::tanh, "The hyperbolic tangent.");
  method(c, "gelu", &Tensor::gelu, "The Gaussian error linear unit, by tanh.");
  method(c, "silu", &Tensor::silu, "x * sigmoid(x).");
  method(c, "softplus", &Tensor::softplus, "log(1 + exp(x)).");
  method(c, "elu", &Tensor::elu, "alpha"_a = 1.0, "x, below 0 alpha * (exp(x) - 1).");
  method(c, "hardtanh", &Tensor::hardtanh, "low"_a = -1.0, "high"_a = 1.0, "Between two numbers.");
  method(c, "clip", &Tensor::clip, "low"_a, "high"_a, "Between bounds.");
  method(c, "maximum", &Tensor::maximum, "b"_a, "The larger of both; NaN where one is.");
  method(c, "minimum", &Tensor::minimum, "b"_a, "The smaller of both; NaN where one is.");
  method(c, "pow", &Tensor::pow, "b"_a, "x to the power b.");
  method(c, "idiv", &Tensor::idiv, "b"_a, "Floor division.");
  method(c, "mod", &Tensor::mod, "b"_a, "The rest of floor division, with the sign of b.");
  method(c, "bitwise_and", &Tensor::bitwise_and, "b"_a, "x & b.");
  method(c, "bitwise_or", &Tensor::bitwise_or, "b"_a, "x | b.");
  method(c, "bitwise_xor", &Tensor::bitwise_xor, "b"_a, "x ^ b.");
  method(c, "lshift", &Tensor::lshift, "b"_a, "x << b.");
  method(c, "rshift", &Tensor::rshift, "b"_a, "x >> b.");
  method(c, "lerp", &Tensor::lerp, "end"_a, "weight"_a, "x + (end - x) * weight.");
  method(c, "dropout", &Tensor::dropout, "p"_a = 0.5, "training"_a = true,
         "Zeros with probability p, the rest divided by 1 - p.");
  c.def(
      "where",
      [](const TensorLike& condition, const TensorLike& a, const TensorLike& b) {
        return Tensor::where(as_tensor(condition, "where"), as_tensor(a, "where"),
                             as_tensor(b, "where"));
      },
      "a"_a, "b"_a, "a where this holds, else b. As a function, Tensor.where(condition, a, b).");
}

void bind_reductions(TensorClass& c) {
  auto fold = [&](const char* name, Tensor (Tensor::*f)(const IntList&, bool) const,
                  const char* doc) {
    method(c, name, f, "axis"_a = nb::none(), "keepdim"_a = false, doc);
  };
  fold("sum", &Tensor::sum, "The sum along axes, of all without any.");
  fold("prod", &Tensor::prod, "The product.");
  fold("max", &Tensor::max, "The largest element; NaN where there is one.");
  fold("min", &Tensor::min, "The smallest element; NaN where there is one.");
  fold("mean", &Tensor::mean, "The mean.");
  fold("any", &Tensor::any, "Whether one is not 0.");
  fold("all", &Tensor::all, "Whether none is 0.");
  fold("logsumexp", &Tensor::logsumexp, "log(sum(exp(x))), without overflow.");
  fold("norm", &Tensor::norm, "The root of the sum of squares.");
  method(c, "var", &Tensor::var, "axis"_a = nb::none(), "keepdim"_a = false, "correction"_a = 1,
         "The variance, divided by n - correction.");
  method(c, "std", &Tensor::std, "axis"_a = nb::none(), "keepdim"_a = false, "correction"_a = 1,
         "The root of the variance.");
  method(c, "argmax", &Tensor::argmax, "axis"_a = -1, "keepdim"_a = false,
         "The int32 position of the largest along an axis.");
  method(c, "argmin", &Tensor::argmin, "axis"_a = -1, "keepdim"_a = false,
         "The int32 position of the smallest.");
  method(c, "cumsum", &Tensor::cumsum, "axis"_a = 0, "Sums up to each element.");
  method(c, "cumprod", &Tensor::cumprod, "axis"_a = 0, "Products up to each element.");
  method(c, "cummax", &Tensor::cummax, "axis"_a = 0, "The largest up to each element.");
  method(c, "cummin", &Tensor::cummin, "axis"_a = 0, "The smallest up to each element.");
  method(c, "sort", &Tensor::sort, "axis"_a = -1, "descending"_a = false,
         "The elements in order, and the int32 positions they had.");
  method(c, "argsort", &Tensor::argsort, "axis"_a = -1, "descending"_a = false,
         "The positions that would put them in order.");
  method(c, "topk", &Tensor::topk, "k"_a, "axis"_a = -1, "largest"_a = true,
         "The k largest in order, and their positions.");
  c.def(
      "unique", [](const Tensor& t) { return unlocked([&] { return t.unique(); }); },
      "The different elements in order. Computes them.");
  method(c, "softmax", &Tensor::softmax, "axis"_a = -1, "exp(x) divided by its sum.");
  method(c, "log_softmax", &Tensor::log_softmax, "axis"_a = -1, "The logarithm of softmax.");
  method(c, "layernorm", &Tensor::layernorm, "last_axes"_a = 1, "eps"_a = 1e-5,
         "With mean 0 and variance 1 over the last axes.");
}

Tensor optional(const std::optional<TensorLike>& given, const char* name) {
  return given ? as_tensor(*given, name) : Tensor();
}

void bind_products(TensorClass& c) {
  method(c, "dot", &Tensor::dot, "b"_a, "The same as matmul().");
  method(c, "matmul", &Tensor::matmul, "b"_a, "The matrix product, x @ b.");
  c.def_static(
      "einsum",
      [](const std::string& formula, const nb::args& operands) {
        const bool listed = operands.size() == 1 &&
                            (PyList_Check(operands[0].ptr()) || PyTuple_Check(operands[0].ptr()));
        return Tensor::einsum(
            formula, as_tensors(listed ? nb::handle(operands[0]) : nb::handle(operands), "einsum"));
      },
      "formula"_a, "operands"_a,
      "A sum of products by its formula.\n\n>>> koine.Tensor.einsum('i,i->', [1, 2], [3, "
      "4]).item()\n11");
  c.def(
      "linear",
      [](const Tensor& t, const TensorLike& weight, const std::optional<TensorLike>& bias) {
        return t.linear(as_tensor(weight, "linear"), optional(bias, "linear"));
      },
      "weight"_a, "bias"_a = nb::none(), "x @ weight.T + bias; weight is (out, in).");
  c.def(
      "conv2d",
      [](const Tensor& t, const TensorLike& weight, const std::optional<TensorLike>& bias,
         int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
        return t.conv2d(as_tensor(weight, "conv2d"), optional(bias, "conv2d"),
                        {stride, padding, dilation}, groups);
      },
      "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1,
      "groups"_a = 1, "A convolution of (N, C, H, W) with (O, C / groups, kh, kw).");
  method(c, "max_pool2d", &Tensor::max_pool2d, "kernel"_a = 2, "stride"_a = nb::none(),
         "padding"_a = 0, "The largest of each window.");
  method(c, "avg_pool2d", &Tensor::avg_pool2d, "kernel"_a = 2, "stride"_a = nb::none(),
         "padding"_a = 0, "The mean of each window.");
  c.def(
      "scaled_dot_product_attention",
      [](const Tensor& t, const TensorLike& key, const TensorLike& value,
         const std::optional<TensorLike>& mask) {
        const char* const name = "scaled_dot_product_attention";
        return t.scaled_dot_product_attention(as_tensor(key, name), as_tensor(value, name),
                                              optional(mask, name));
      },
      "key"_a, "value"_a, "mask"_a = nb::none(), "Attention of these queries.");
}

void bind_losses(TensorClass& c) {
  method(c, "sparse_categorical_crossentropy", &Tensor::sparse_categorical_crossentropy, "target"_a,
         "label_smoothing"_a = 0.0, "ignore_index"_a = nb::none(),
         "The mean of -log softmax at the target class.");
  method(c, "cross_entropy", &Tensor::cross_entropy, "target"_a, "ignore_index"_a = nb::none(),
         "The same without smoothing.");
  method(c, "binary_crossentropy_logits", &Tensor::binary_crossentropy_logits, "target"_a,
         "The mean cross entropy of logits and 0 or 1.");
  method(c, "mse_loss", &Tensor::mse_loss, "target"_a, "The mean of squared differences.");
  method(c, "nll_loss", &Tensor::nll_loss, "target"_a, "ignore_index"_a = nb::none(),
         "The mean of -x at the target class.");
}

}  // namespace

void bind_methods(TensorClass& c) {
  bind_movement(c);
  bind_positions(c);
  bind_elementwise(c);
  bind_reductions(c);
  bind_products(c);
  bind_losses(c);
}

}  // namespace koine::python
