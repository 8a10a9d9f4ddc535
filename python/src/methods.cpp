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
        "The elements, row by row, in another shape, in which one size may be -1. ValueError where "
        "their number differs.\n\n"
        ">>> koine.Tensor.arange(6).reshape(2, -1).shape\n"
        "(2, 3)");
  sizes("view", &Tensor::view,
        "The same as reshape().\n\n"
        ">>> koine.Tensor.arange(6).view(2, 3).tolist()\n"
        "[[0, 1, 2], [3, 4, 5]]");
  sizes("expand", &Tensor::expand,
        "Axes of size 1, or new ones in front, repeated to these sizes; -1 keeps one. No memory is "
        "taken.\n\n"
        ">>> koine.Tensor([[1], [2]]).expand(2, 3).tolist()\n"
        "[[1, 1, 1], [2, 2, 2]]");
  sizes("repeat", &Tensor::repeat,
        "The whole tensor again, so many times along each axis.\n\n"
        ">>> koine.Tensor([1, 2]).repeat(2).tolist()\n"
        "[1, 2, 1, 2]");
  axes("permute", &Tensor::permute,
       "The axes in another order, which names each of them once.\n\n"
       ">>> koine.Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape\n"
       "(4, 2, 3)");
  axes("flip", &Tensor::flip,
       "Some axes backwards.\n\n"
       ">>> koine.Tensor([[1, 2], [3, 4]]).flip(1).tolist()\n"
       "[[2, 1], [4, 3]]");
  method(c, "transpose", &Tensor::transpose, "a"_a = 0, "b"_a = 1,
         "Two axes in each other's place.\n\n"
         ">>> koine.Tensor.zeros(2, 3, 4).transpose(1, 2).shape\n"
         "(2, 4, 3)");
  method(c, "shrink", &Tensor::shrink, "bounds"_a,
         "Of each axis the part from one place to another, as (begin, end).\n\n"
         ">>> koine.Tensor([[1, 2, 3], [4, 5, 6]]).shrink([(0, 2), (1, 3)]).tolist()\n"
         "[[2, 3], [5, 6]]");
  method(c, "pad", &Tensor::pad, "padding"_a, "value"_a = 0,
         "So many elements before and behind each axis, as (before, behind), of a value that the "
         "dtype holds.\n\n"
         ">>> koine.Tensor([1, 2]).pad([(1, 2)]).tolist()\n"
         "[0, 1, 2, 0, 0]");
  method(c, "squeeze", &Tensor::squeeze, "axis"_a = nb::none(),
         "Without axes of size 1, or without one of them.\n\n"
         ">>> koine.Tensor.zeros(1, 3, 1).squeeze().shape\n"
         "(3,)");
  method(c, "unsqueeze", &Tensor::unsqueeze, "axis"_a,
         "With a new axis of size 1.\n\n"
         ">>> koine.Tensor.zeros(2, 3).unsqueeze(1).shape\n"
         "(2, 1, 3)");
  method(c, "flatten", &Tensor::flatten, "start"_a = 0, "end"_a = -1,
         "The axes from start to end as one.\n\n"
         ">>> koine.Tensor.zeros(2, 3, 4).flatten(1).shape\n"
         "(2, 12)");
  c.def(
      "roll",
      [](const Tensor& t, const AxesLike& shift, const AxesLike& axis) {
        IntList shifts = as_axes(shift, "roll"), along = as_axes(axis, "roll");
        if (axis.is_none() && shifts.size() == 1) return t.roll(shifts[0]);
        if (shifts.size() == 1) shifts.resize(along.size(), shifts[0]);
        return t.roll(shifts, along);
      },
      "shift"_a, "axis"_a = nb::none(),
      "Elements moved along axes, each by its shift or all by one; those beyond the end come "
      "first. "
      "With None all elements, row by row.\n\n"
      ">>> koine.Tensor([1, 2, 3]).roll(1, 0).tolist()\n"
      "[3, 1, 2]\n"
      ">>> koine.Tensor([[1, 2], [3, 4]]).roll((1, 1), (0, 1)).tolist()\n"
      "[[4, 3], [2, 1]]");
  c.def(
      "split",
      [](const Tensor& t, const AxesLike& size, int64_t axis) {
        return is_list(size) ? t.split(as_axes(size, "split"), axis)
                             : t.split(as_int(size, "split", "a size"), axis);
      },
      "size"_a, "axis"_a = 0,
      "Parts of a size along an axis, as a list; the last may be smaller. Of several sizes parts "
      "of these.\n\n"
      ">>> [part.tolist() for part in koine.Tensor.arange(5).split(2)]\n"
      "[[0, 1], [2, 3], [4]]\n"
      ">>> [part.tolist() for part in koine.Tensor.arange(5).split([1, 4])]\n"
      "[[0], [1, 2, 3, 4]]");
  method(c, "chunk", &Tensor::chunk, "count"_a, "axis"_a = 0,
         "So many parts along an axis, as a list, of equal sizes but for the last.\n\n"
         ">>> [part.tolist() for part in koine.Tensor.arange(5).chunk(2)]\n"
         "[[0, 1, 2], [3, 4]]");
  static_method(c, "cat", &Tensor::cat, "tensors"_a, "axis"_a = 0,
                "Tensors behind each other along an axis. Other axes are equal; dtypes promote.\n\n"
                ">>> koine.cat([koine.Tensor([1]), koine.Tensor([2, 3])]).tolist()\n"
                "[1, 2, 3]");
  static_method(c, "stack", &Tensor::stack, "tensors"_a, "axis"_a = 0,
                "Tensors of one shape along a new axis; dtypes promote.\n\n"
                ">>> koine.stack([koine.Tensor([1, 2]), koine.Tensor([3, 4])], 1).tolist()\n"
                "[[1, 3], [2, 4]]");
}

void bind_positions(TensorClass& c) {
  method(c, "gather", &Tensor::gather, "axis"_a, "index"_a,
         "Elements along an axis by positions: the result has the shape of index. IndexError at "
         "the look where one is out of range.\n\n"
         ">>> koine.Tensor([[1, 2], [3, 4]]).gather(1, koine.Tensor([[1], [0]])).tolist()\n"
         "[[2], [3]]");
  method(c, "scatter", &Tensor::scatter, "axis"_a, "index"_a, "src"_a,
         "A copy in which src stands at positions along an axis; of positions that occur twice the "
         "last stays.\n\n"
         ">>> koine.Tensor([0, 0, 0]).scatter(0, koine.Tensor([2, 0]), koine.Tensor([5, "
         "6])).tolist()\n"
         "[6, 0, 5]");
  method(c, "scatter_add", &Tensor::scatter_add, "axis"_a, "index"_a, "src"_a,
         "A copy in which src is added at positions along an axis.\n\n"
         ">>> koine.Tensor([1, 1]).scatter_add(0, koine.Tensor([0, 0]), koine.Tensor([5, "
         "6])).tolist()\n"
         "[12, 1]");
  method(c, "index_select", &Tensor::index_select, "axis"_a, "index"_a,
         "Rows along an axis; negative positions count from the end. IndexError at the look where "
         "one is out of range.\n\n"
         ">>> koine.Tensor([[1, 2], [3, 4]]).index_select(0, koine.Tensor([1, -2])).tolist()\n"
         "[[3, 4], [1, 2]]");
  method(c, "one_hot", &Tensor::one_hot, "classes"_a,
         "float32 of shape (..., classes), 1 at the class. IndexError at the look where there is "
         "no such class.\n\n"
         ">>> koine.Tensor([0, 2]).one_hot(3).tolist()\n"
         "[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]");
  method(c, "tril", &Tensor::tril, "diagonal"_a = 0,
         "Zeros above a diagonal of the last two axes.\n\n"
         ">>> koine.Tensor.ones(2, 2).tril().tolist()\n"
         "[[1.0, 0.0], [1.0, 1.0]]");
  method(c, "triu", &Tensor::triu, "diagonal"_a = 0,
         "Zeros below a diagonal of the last two axes.\n\n"
         ">>> koine.Tensor.ones(2, 2).triu(1).tolist()\n"
         "[[0.0, 1.0], [0.0, 0.0]]");
  method(c, "masked_fill", &Tensor::masked_fill, "mask"_a, "value"_a,
         "A number where the mask holds; the dtype stays, and has to hold the number.\n\n"
         ">>> koine.Tensor([1, 2, 3]).masked_fill([True, False, True], 0).tolist()\n"
         "[0, 2, 0]");
}

Tensor optional(const Tensor& self, const std::optional<TensorLike>& given, const char* name) {
  return given ? as_tensor_beside(self, *given, name) : Tensor();
}

void bind_elementwise(TensorClass& c) {
  method(c, "cast", &Tensor::cast, "dtype"_a,
         "In another dtype: floats to integers truncate and saturate, NaN is 0.\n\n"
         ">>> koine.Tensor([2.7, 3e9]).cast('int32').tolist()\n"
         "[2, 2147483647]");
  method(c, "astype", &Tensor::cast, "dtype"_a,
         "The same as cast(), by NumPy's name.\n\n"
         ">>> koine.Tensor([1.5, -2.5]).astype('int32').tolist()\n"
         "[1, -2]");
  method(c, "bitcast", &Tensor::bitcast, "dtype"_a,
         "The same bits, read as another dtype; the last axis has more or fewer elements where "
         "sizes differ.\n\n"
         ">>> koine.Tensor([1.0]).bitcast('int32').tolist()\n"
         "[1065353216]");
  method(c, "float", &Tensor::to_float,
         "As float32.\n\n"
         ">>> koine.Tensor([1, 2]).float().dtype\n"
         "koine.float32");
  method(c, "neg", &Tensor::neg,
         "-x.\n\n"
         ">>> koine.Tensor([1, -2]).neg().tolist()\n"
         "[-1, 2]");
  method(c, "logical_not", &Tensor::logical_not,
         "Whether x is 0.\n\n"
         ">>> koine.Tensor([0, 2]).logical_not().tolist()\n"
         "[True, False]");
  method(c, "bitwise_not", &Tensor::bitwise_not,
         "~x.\n\n"
         ">>> koine.Tensor([0, 5]).bitwise_not().tolist()\n"
         "[-1, -6]");
  method(c, "reciprocal", &Tensor::reciprocal,
         "1 / x.\n\n"
         ">>> koine.Tensor([4.0, 0.5]).reciprocal().tolist()\n"
         "[0.25, 2.0]");
  method(c, "sqrt", &Tensor::sqrt,
         "The square root.\n\n"
         ">>> koine.Tensor([9.0, 0.25]).sqrt().tolist()\n"
         "[3.0, 0.5]");
  method(c, "rsqrt", &Tensor::rsqrt,
         "1 / sqrt(x).\n\n"
         ">>> koine.Tensor([4.0, 0.25]).rsqrt().tolist()\n"
         "[0.5, 2.0]");
  method(c, "exp", &Tensor::exp,
         "e to the power x; integers give float32.\n\n"
         ">>> koine.Tensor([0, 1]).exp().dtype\n"
         "koine.float32");
  method(c, "exp2", &Tensor::exp2,
         "2 to the power x.\n\n"
         ">>> koine.Tensor([3.0, -1.0]).exp2().tolist()\n"
         "[8.0, 0.5]");
  method(c, "log", &Tensor::log,
         "The natural logarithm.\n\n"
         ">>> koine.Tensor([1.0, 0.0, -1.0]).log().tolist()\n"
         "[0.0, -inf, nan]");
  method(c, "log2", &Tensor::log2,
         "The logarithm to base 2.\n\n"
         ">>> koine.Tensor([8.0, 0.25]).log2().tolist()\n"
         "[3.0, -2.0]");
  method(c, "sin", &Tensor::sin,
         "The sine.\n\n"
         ">>> print(koine.Tensor([0.0, 0.5]).sin().numpy().round(3))\n"
         "[0.    0.479]");
  method(c, "cos", &Tensor::cos,
         "The cosine.\n\n"
         ">>> print(koine.Tensor([0.0, 0.5]).cos().numpy().round(3))\n"
         "[1.    0.878]");
  method(c, "tan", &Tensor::tan,
         "The tangent.\n\n"
         ">>> print(koine.Tensor([0.0, 0.5]).tan().numpy().round(3))\n"
         "[0.    0.546]");
  method(c, "trunc", &Tensor::trunc,
         "Rounded toward 0.\n\n"
         ">>> koine.Tensor([1.7, -1.7]).trunc().tolist()\n"
         "[1.0, -1.0]");
  method(c, "floor", &Tensor::floor,
         "Rounded down.\n\n"
         ">>> koine.Tensor([1.2, -1.2]).floor().tolist()\n"
         "[1.0, -2.0]");
  method(c, "ceil", &Tensor::ceil,
         "Rounded up.\n\n"
         ">>> koine.Tensor([1.2, -1.2]).ceil().tolist()\n"
         "[2.0, -1.0]");
  method(c, "round", &Tensor::round,
         "Rounded to whole numbers, halves to even.\n\n"
         ">>> koine.Tensor([0.5, 1.5, -2.7]).round().tolist()\n"
         "[0.0, 2.0, -3.0]");
  method(c, "abs", &Tensor::abs,
         "The absolute value; its slope at 0 is 0.\n\n"
         ">>> koine.Tensor([-2, 3]).abs().tolist()\n"
         "[2, 3]");
  method(c, "sign", &Tensor::sign,
         "-1, 0 or 1; NaN of NaN.\n\n"
         ">>> koine.Tensor([-2.5, 0.0, 3.0]).sign().tolist()\n"
         "[-1.0, 0.0, 1.0]");
  method(c, "square", &Tensor::square,
         "x * x.\n\n"
         ">>> koine.Tensor([3, -4]).square().tolist()\n"
         "[9, 16]");
  method(c, "isnan", &Tensor::isnan,
         "Whether it is NaN.\n\n"
         ">>> koine.Tensor([1.0, float('nan')]).isnan().tolist()\n"
         "[False, True]");
  method(c, "isinf", &Tensor::isinf,
         "Whether it is infinite.\n\n"
         ">>> koine.Tensor([1.0, float('-inf')]).isinf().tolist()\n"
         "[False, True]");
  method(c, "isfinite", &Tensor::isfinite,
         "Whether it is neither NaN nor infinite.\n\n"
         ">>> koine.Tensor([1.0, float('inf'), float('nan')]).isfinite().tolist()\n"
         "[True, False, False]");
  method(c, "relu", &Tensor::relu,
         "max(x, 0); its slope at 0 is 0.\n\n"
         ">>> koine.Tensor([-1.0, 2.0]).relu().tolist()\n"
         "[0.0, 2.0]");
  method(c, "leaky_relu", &Tensor::leaky_relu, "slope"_a = 0.01,
         "x, below 0 times the slope.\n\n"
         ">>> koine.Tensor([-2.0, 2.0]).leaky_relu(0.25).tolist()\n"
         "[-0.5, 2.0]");
  method(c, "sigmoid", &Tensor::sigmoid,
         "1 / (1 + exp(-x)); integers give float32.\n\n"
         ">>> koine.Tensor(0).sigmoid().item()\n"
         "0.5");
  method(c, "tanh", &Tensor::tanh,
         "The hyperbolic tangent.\n\n"
         ">>> print(koine.Tensor([0.0, 0.5]).tanh().numpy().round(3))\n"
         "[0.    0.462]");
  method(c, "erf", &Tensor::erf,
         "The error function.\n\n"
         ">>> print(koine.Tensor([0.0, 0.5]).erf().numpy().round(3))\n"
         "[0.   0.52]");
  method(c, "erfc", &Tensor::erfc,
         "1 - erf(x), with all its digits.\n\n"
         ">>> print(f\"{koine.Tensor(9.0).erfc().item():.3g}\")\n"
         "4.14e-37");
  method(
      c, "gelu", &Tensor::gelu, "approximate"_a = "tanh",
      "The Gaussian error linear unit, by tanh; with \"none\" x * (1 + erf(x / sqrt(2))) / 2.\n\n"
      ">>> print(koine.Tensor([2.0, -1.0]).gelu().numpy().round(4))\n"
      "[ 1.9546 -0.1588]\n"
      ">>> print(koine.Tensor([2.0, -1.0]).gelu(\"none\").numpy().round(4))\n"
      "[ 1.9545 -0.1587]");
  method(c, "silu", &Tensor::silu,
         "x * sigmoid(x).\n\n"
         ">>> print(koine.Tensor([2.0, -1.0]).silu().numpy().round(3))\n"
         "[ 1.762 -0.269]");
  method(c, "softplus", &Tensor::softplus,
         "log(1 + exp(x)).\n\n"
         ">>> print(koine.Tensor([2.0, -1.0]).softplus().numpy().round(3))\n"
         "[2.127 0.313]");
  method(c, "elu", &Tensor::elu, "alpha"_a = 1.0,
         "x, below 0 alpha * (exp(x) - 1).\n\n"
         ">>> print(koine.Tensor([2.0, -1.0]).elu().numpy().round(3))\n"
         "[ 2.    -0.632]");
  method(c, "hardtanh", &Tensor::hardtanh, "low"_a = -1.0, "high"_a = 1.0,
         "Between two numbers.\n\n"
         ">>> koine.Tensor([2.0, -0.5]).hardtanh().tolist()\n"
         "[1.0, -0.5]");
  c.def(
      "clip",
      [](const Tensor& t, const std::optional<TensorLike>& low,
         const std::optional<TensorLike>& high) {
        return t.clip(optional(t, low, "clip"), optional(t, high, "clip"));
      },
      "low"_a = nb::none(), "high"_a = nb::none(),
      "Between bounds, numbers or tensors; one of them may be None.\n\n"
      ">>> koine.Tensor([1, 5, 9]).clip(2, 6).tolist()\n"
      "[2, 5, 6]\n"
      ">>> koine.Tensor([1, 5, 9]).clip(high=6).tolist()\n"
      "[1, 5, 6]");
  method(c, "maximum", &Tensor::maximum, "b"_a,
         "The larger of both; NaN where one is.\n\n"
         ">>> koine.Tensor([1, 5]).maximum(3).tolist()\n"
         "[3, 5]");
  method(c, "minimum", &Tensor::minimum, "b"_a,
         "The smaller of both; NaN where one is.\n\n"
         ">>> koine.Tensor([1, 5]).minimum(3).tolist()\n"
         "[1, 3]");
  method(c, "pow", &Tensor::pow, "b"_a,
         "x to the power b; of integers the whole part.\n\n"
         ">>> koine.Tensor([2, 3]).pow(2).tolist()\n"
         "[4, 9]");
  method(c, "idiv", &Tensor::idiv, "b"_a,
         "Floor division; integers by 0 give 0.\n\n"
         ">>> koine.Tensor([7, -7]).idiv(2).tolist()\n"
         "[3, -4]");
  method(c, "mod", &Tensor::mod, "b"_a,
         "The rest of floor division, with the sign of b.\n\n"
         ">>> koine.Tensor([7, -7]).mod(3).tolist()\n"
         "[1, 2]");
  method(c, "bitwise_and", &Tensor::bitwise_and, "b"_a,
         "x & b.\n\n"
         ">>> koine.Tensor([6, 5]).bitwise_and(3).tolist()\n"
         "[2, 1]");
  method(c, "bitwise_or", &Tensor::bitwise_or, "b"_a,
         "x | b.\n\n"
         ">>> koine.Tensor([6, 5]).bitwise_or(3).tolist()\n"
         "[7, 7]");
  method(c, "bitwise_xor", &Tensor::bitwise_xor, "b"_a,
         "x ^ b.\n\n"
         ">>> koine.Tensor([6, 5]).bitwise_xor(3).tolist()\n"
         "[5, 6]");
  method(c, "lshift", &Tensor::lshift, "b"_a,
         "x << b.\n\n"
         ">>> koine.Tensor([1, 3]).lshift(2).tolist()\n"
         "[4, 12]");
  method(c, "rshift", &Tensor::rshift, "b"_a,
         "x >> b.\n\n"
         ">>> koine.Tensor([8, -8]).rshift(2).tolist()\n"
         "[2, -2]");
  method(c, "lerp", &Tensor::lerp, "end"_a, "weight"_a,
         "x + (end - x) * weight.\n\n"
         ">>> koine.Tensor([0.0, 10.0]).lerp(20.0, 0.5).tolist()\n"
         "[10.0, 15.0]");
  method(c, "dropout", &Tensor::dropout, "p"_a = 0.5, "training"_a = true,
         "Zeros with probability p, the rest divided by 1 - p, by the global seed; x where not "
         "training.\n\n"
         ">>> koine.Tensor([1.0, 2.0]).dropout(0.5, training=False).tolist()\n"
         "[1.0, 2.0]");
  c.def(
      "where",
      [](const TensorLike& condition, const TensorLike& a, const TensorLike& b) {
        const std::vector<Tensor> all = as_tensors(nb::make_tuple(condition, a, b), "where");
        return Tensor::where(all[0], all[1], all[2]);
      },
      "a"_a, "b"_a,
      "a where this holds (a bool), else b; all three broadcast. As a function, "
      "koine.where(condition, a, b).\n\n"
      ">>> (koine.Tensor([1, -2]) > 0).where(10, 20).tolist()\n"
      "[10, 20]");
}

// A fold along axes, of all with None. Along none of them, (), each element is folded by itself.
template <class... A>
Tensor folded(const Tensor& t, Tensor (Tensor::*f)(const IntList&, bool, A...) const,
              const char* name, const AxesLike& axis, bool keepdim, A... more) {
  const bool none = is_list(axis) && nb::len(axis) == 0;
  return none ? (t.unsqueeze(0).*f)({0}, false, more...)
              : (t.*f)(as_axes(axis, name), keepdim, more...);
}

void bind_reductions(TensorClass& c) {
  auto fold = [&](const char* name, Tensor (Tensor::*f)(const IntList&, bool) const,
                  const char* doc) {
    c.def(
        name,
        [f, name](const Tensor& t, const AxesLike& axis, bool keepdim) {
          return folded(t, f, name, axis, keepdim);
        },
        "axis"_a = nb::none(), "keepdim"_a = false, doc);
  };
  auto spread = [&](const char* name, Tensor (Tensor::*f)(const IntList&, bool, int64_t) const,
                    const char* doc) {
    c.def(
        name,
        [f, name](const Tensor& t, const AxesLike& axis, bool keepdim, int64_t correction) {
          return folded(t, f, name, axis, keepdim, correction);
        },
        "axis"_a = nb::none(), "keepdim"_a = false, "correction"_a = 1, doc);
  };
  fold("sum", &Tensor::sum,
       "The sum along axes, of all with None. Narrow integers and bools add up in 32 bits.\n\n"
       ">>> koine.Tensor([[1, 2], [3, 4]]).sum(0).tolist()\n"
       "[4, 6]");
  fold("prod", &Tensor::prod,
       "The product along axes, of all with None.\n\n"
       ">>> koine.Tensor([2, 3, 4]).prod().item()\n"
       "24");
  fold(
      "max", &Tensor::max,
      "The largest element along axes; NaN where there is one. ValueError where there are none.\n\n"
      ">>> koine.Tensor([[1, 5], [3, 2]]).max(1).tolist()\n"
      "[5, 3]");
  fold("min", &Tensor::min,
       "The smallest element along axes; NaN where there is one. ValueError where there are "
       "none.\n\n"
       ">>> koine.Tensor([[1, 5], [3, 2]]).min(1).tolist()\n"
       "[1, 2]");
  fold("mean", &Tensor::mean,
       "The mean along axes; of integers in float32.\n\n"
       ">>> koine.Tensor([1, 2]).mean().item()\n"
       "1.5");
  fold("any", &Tensor::any,
       "Whether one is not 0, as bool.\n\n"
       ">>> koine.Tensor([0, 1]).any().item()\n"
       "True");
  fold("all", &Tensor::all,
       "Whether none is 0, as bool.\n\n"
       ">>> koine.Tensor([0, 1]).all().item()\n"
       "False");
  fold("logsumexp", &Tensor::logsumexp,
       "log(sum(exp(x))), without overflow.\n\n"
       ">>> koine.Tensor([1000.0, -1000.0]).logsumexp().item()\n"
       "1000.0");
  fold("norm", &Tensor::norm,
       "The root of the sum of squares.\n\n"
       ">>> koine.Tensor([3.0, 4.0]).norm().item()\n"
       "5.0");
  spread("var", &Tensor::var,
         "The variance, divided by n - correction.\n\n"
         ">>> koine.Tensor([1.0, 3.0]).var().item()\n"
         "2.0");
  spread("std", &Tensor::std,
         "The root of the variance, divided by n - correction.\n\n"
         ">>> koine.Tensor([1.0, 3.0]).std(correction=0).item()\n"
         "1.0");
  method(c, "argmax", &Tensor::argmax, "axis"_a = nb::none(), "keepdim"_a = false,
         "The int32 position of the first largest along an axis; without one, among all elements, "
         "row by row.\n\n"
         ">>> koine.Tensor([[1, 5], [3, 2]]).argmax(1).tolist()\n"
         "[1, 0]");
  method(c, "argmin", &Tensor::argmin, "axis"_a = nb::none(), "keepdim"_a = false,
         "The int32 position of the first smallest along an axis; without one, among all elements, "
         "row by row.\n\n"
         ">>> koine.Tensor([3, 1, 2]).argmin().item()\n"
         "1");
  method(c, "cumsum", &Tensor::cumsum, "axis"_a = 0,
         "Sums up to each element along an axis.\n\n"
         ">>> koine.Tensor([1, 2, 3]).cumsum().tolist()\n"
         "[1, 3, 6]");
  method(c, "cumprod", &Tensor::cumprod, "axis"_a = 0,
         "Products up to each element.\n\n"
         ">>> koine.Tensor([2, 3, 4]).cumprod().tolist()\n"
         "[2, 6, 24]");
  method(c, "cummax", &Tensor::cummax, "axis"_a = 0,
         "The largest up to each element.\n\n"
         ">>> koine.Tensor([1, 3, 2]).cummax().tolist()\n"
         "[1, 3, 3]");
  method(c, "cummin", &Tensor::cummin, "axis"_a = 0,
         "The smallest up to each element.\n\n"
         ">>> koine.Tensor([3, 1, 2]).cummin().tolist()\n"
         "[3, 1, 1]");
  method(c, "sort", &Tensor::sort, "axis"_a = -1, "descending"_a = false,
         "(values in order, the int32 positions they had); equal ones keep their order.\n\n"
         ">>> [t.tolist() for t in koine.Tensor([3, 1, 2]).sort()]\n"
         "[[1, 2, 3], [1, 2, 0]]");
  method(c, "argsort", &Tensor::argsort, "axis"_a = -1, "descending"_a = false,
         "The int32 positions that would put them in order.\n\n"
         ">>> koine.Tensor([3, 1, 2]).argsort(descending=True).tolist()\n"
         "[0, 2, 1]");
  method(c, "topk", &Tensor::topk, "k"_a, "axis"_a = -1, "largest"_a = true,
         "(the k largest in order, their int32 positions).\n\n"
         ">>> [t.tolist() for t in koine.Tensor([3, 1, 2]).topk(2)]\n"
         "[[3, 2], [0, 2]]");
  c.def(
      "unique", [](const Tensor& t) { return unlocked_making([&] { return t.unique(); }); },
      "The different elements in order, of shape (n,). Computes them.\n\n"
      ">>> koine.Tensor([3, 1, 3]).unique().tolist()\n"
      "[1, 3]");
  method(c, "softmax", &Tensor::softmax, "axis"_a = -1,
         "exp(x) divided by its sum along an axis, without overflow.\n\n"
         ">>> koine.Tensor([7.0, 7.0]).softmax().tolist()\n"
         "[0.5, 0.5]");
  method(c, "log_softmax", &Tensor::log_softmax, "axis"_a = -1,
         "The logarithm of softmax, without underflow.\n\n"
         ">>> koine.Tensor([0.0, -1000.0]).log_softmax().tolist()\n"
         "[0.0, -1000.0]");
  method(c, "layernorm", &Tensor::layernorm, "last_axes"_a = 1, "eps"_a = 1e-5,
         "With mean 0 and variance 1 over the last axes; eps is added to the variance.\n\n"
         ">>> koine.Tensor([1.0, 3.0]).layernorm(eps=0).tolist()\n"
         "[-1.0, 1.0]");
}

void bind_products(TensorClass& c) {
  method(c, "dot", &Tensor::dot, "b"_a,
         "The same as matmul().\n\n"
         ">>> koine.Tensor([1, 2]).dot([3, 4]).item()\n"
         "11");
  method(c, "matmul", &Tensor::matmul, "b"_a,
         "The matrix product, x @ b, over the last axis of x and the last but one of b; axes "
         "before them broadcast. ValueError where sizes differ.\n\n"
         ">>> koine.Tensor([[1, 2], [3, 4]]).matmul([1, 1]).tolist()\n"
         "[3, 7]");
  c.def_static(
      "einsum",
      [](const std::string& formula, const nb::args& operands) {
        return Tensor::einsum(formula, as_tensors(each_of(operands), "einsum"));
      },
      "formula"_a, "operands"_a,
      "A sum of products by its formula; the axes of '...' broadcast.\n\n"
      ">>> koine.einsum('ij,jk->ik', [[1, 2]], [[3], [4]]).tolist()\n"
      "[[11]]");
  c.def(
      "linear",
      [](const Tensor& t, const TensorLike& weight, const std::optional<TensorLike>& bias) {
        return t.linear(as_tensor_beside(t, weight, "linear"), optional(t, bias, "linear"));
      },
      "weight"_a, "bias"_a = nb::none(),
      "x @ weight.T + bias; weight is (out, in).\n\n"
      ">>> koine.Tensor([1.0, 2.0]).linear([[1.0, 1.0], [0.0, 2.0]], [10.0, 0.0]).tolist()\n"
      "[13.0, 4.0]");
  c.def(
      "conv2d",
      [](const Tensor& t, const TensorLike& weight, const std::optional<TensorLike>& bias,
         int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
        return t.conv2d(as_tensor_beside(t, weight, "conv2d"), optional(t, bias, "conv2d"),
                        {stride, padding, dilation}, groups);
      },
      "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1,
      "groups"_a = 1,
      "A convolution of (N, C, H, W) with (O, C / groups, kh, kw).\n\n"
      ">>> koine.Tensor.ones(1, 3, 8, 8).conv2d(koine.Tensor.ones(4, 3, 3, 3), stride=2, "
      "padding=1).shape\n"
      "(1, 4, 4, 4)");
  method(c, "max_pool2d", &Tensor::max_pool2d, "kernel"_a = 2, "stride"_a = nb::none(),
         "padding"_a = 0,
         "The largest of each window of (N, C, H, W); the stride is the kernel unless given.\n\n"
         ">>> koine.Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()\n"
         "[[[[5, 7], [13, 15]]]]");
  method(c, "avg_pool2d", &Tensor::avg_pool2d, "kernel"_a = 2, "stride"_a = nb::none(),
         "padding"_a = 0,
         "The mean of each window of (N, C, H, W); the stride is the kernel unless given.\n\n"
         ">>> koine.Tensor.ones(1, 1, 4, 4).avg_pool2d(2).shape\n"
         "(1, 1, 2, 2)");
  c.def(
      "scaled_dot_product_attention",
      [](const Tensor& t, const TensorLike& key, const TensorLike& value,
         const std::optional<TensorLike>& mask) {
        const char* const name = "scaled_dot_product_attention";
        return t.scaled_dot_product_attention(as_tensor_beside(t, key, name),
                                              as_tensor_beside(t, value, name),
                                              optional(t, mask, name));
      },
      "key"_a, "value"_a, "mask"_a = nb::none(),
      "softmax(x @ key.T / sqrt(width)) @ value, for queries x of shape (..., n, width). A mask is "
      "added to the scores, or, a bool, says which count.\n\n"
      ">>> koine.Tensor.ones(2, 5, 8).scaled_dot_product_attention(koine.Tensor.ones(2, 7, 8), "
      "koine.Tensor.ones(2, 7, 4)).shape\n"
      "(2, 5, 4)");
}

void bind_losses(TensorClass& c) {
  method(c, "sparse_categorical_crossentropy", &Tensor::sparse_categorical_crossentropy, "target"_a,
         "label_smoothing"_a = 0.0, "ignore_index"_a = nb::none(),
         "The mean of -log softmax at the target class, of logits (..., classes) and integers "
         "(...).\n\n"
         ">>> koine.Tensor([[9.0, 0.0]]).sparse_categorical_crossentropy([0]).item() < 0.001\n"
         "True");
  method(c, "cross_entropy", &Tensor::cross_entropy, "target"_a, "ignore_index"_a = nb::none(),
         "The mean of -log softmax at the target class, of logits (..., classes) and integers "
         "(...). IndexError at the look where there is no such class.\n\n"
         ">>> koine.Tensor([[9.0, 0.0]]).cross_entropy([0]).item() < 0.001\n"
         "True");
  method(c, "binary_crossentropy_logits", &Tensor::binary_crossentropy_logits, "target"_a,
         "The mean cross entropy of logits and 0 or 1.\n\n"
         ">>> print(koine.Tensor([0.0, 3.0]).binary_crossentropy_logits([1.0, "
         "1.0]).numpy().round(3))\n"
         "0.371");
  method(c, "mse_loss", &Tensor::mse_loss, "target"_a,
         "The mean of squared differences.\n\n"
         ">>> koine.Tensor([1.0, 2.0]).mse_loss([1.0, 4.0]).item()\n"
         "2.0");
  method(c, "nll_loss", &Tensor::nll_loss, "target"_a, "ignore_index"_a = nb::none(),
         "The mean of -x at the target class.\n\n"
         ">>> print(koine.Tensor([[0.25, 0.75]]).log().nll_loss([1]).numpy().round(3))\n"
         "0.288");
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
