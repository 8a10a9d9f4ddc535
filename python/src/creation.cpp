// Tensors of nothing but shapes and numbers; random ones of the global seed.
#include "bind.hpp"

namespace koine::python {
namespace {

using Made = Tensor (*)(const Shape&, DType);

// zeros(2, 3), zeros((2, 3)), zeros((2, 3), "int32").
void filled(TensorClass& c, const char* name, Made f, const char* doc) {
  c.def_static(
      name,
      [f, name](const nb::args& shape, const std::optional<DTypeLike>& dtype) {
        const bool behind = shape.size() == 2 && !dtype &&
                            (PyTuple_Check(shape[0].ptr()) || PyList_Check(shape[0].ptr()));
        if (behind) return f(as_shape(shape[0], name), as_dtype(shape[1]));
        return f(shape_of_all(shape, name), dtype ? as_dtype(*dtype) : DType::Float32);
      },
      "shape"_a, "dtype"_a = nb::none(), doc);
}

using Drawn = Tensor (*)(const Shape&, const std::string&);
void drawn(TensorClass& c, const char* name, Drawn f, const char* doc) {
  c.def_static(
      name,
      [f, name](const nb::args& shape, const std::string& device) {
        return f(shape_of_all(shape, name), device);
      },
      "shape"_a, "device"_a = "", doc);
}

Tensor arange(const SizeLike& start, const std::optional<SizeLike>& stop, int64_t step,
              const DTypeLike& dtype) {
  const Size first = as_size(start, "arange");
  return stop ? Tensor::arange(first, as_size(*stop, "arange"), step, as_dtype(dtype))
              : Tensor::arange(0, first, step, as_dtype(dtype));
}

}  // namespace

void bind_creation(TensorClass& c) {
  const nb::object float32 = nb::cast(DType::Float32), int32 = nb::cast(DType::Int32);
  filled(c, "zeros", &Tensor::zeros,
         "Zeros: zeros(2, 3), zeros((2, 3)); float32, or dtype='int32'.\n\n"
         ">>> koine.zeros(2, 2, dtype='int32').tolist()\n"
         "[[0, 0], [0, 0]]");
  filled(c, "ones", &Tensor::ones,
         "Ones, as zeros().\n\n"
         ">>> koine.ones(3).tolist()\n"
         "[1.0, 1.0, 1.0]");
  static_method(c, "full", &Tensor::full, "shape"_a, "value"_a, "dtype"_a = float32,
                "A number in every place; float32, or another dtype, which has to hold it.\n\n"
                ">>> koine.full((2,), 7, 'int32').tolist()\n"
                "[7, 7]");
  method(c, "full_like", &Tensor::full_like, "value"_a, "A number in this shape and dtype.");
  method(c, "zeros_like", &Tensor::zeros_like, "Zeros in this shape and dtype.");
  method(c, "ones_like", &Tensor::ones_like, "Ones in this shape and dtype.");
  c.def_static("arange", &arange, "start"_a, "stop"_a = nb::none(), "step"_a = 1, "dtype"_a = int32,
               "Whole numbers from start (0) below stop.\n\n>>> koine.Tensor.arange(2, 8, "
               "2).tolist()\n[2, 4, 6]");
  static_method(c, "linspace", &Tensor::linspace, "start"_a, "stop"_a, "steps"_a,
                "float32 numbers, evenly spaced, both ends included.\n\n"
                ">>> koine.linspace(0, 1, 5).tolist()\n"
                "[0.0, 0.25, 0.5, 0.75, 1.0]");
  static_method(c, "eye", &Tensor::eye, "n"_a, "dtype"_a = float32,
                "The identity matrix.\n\n"
                ">>> koine.eye(2).tolist()\n"
                "[[1.0, 0.0], [0.0, 1.0]]");
  c.def_static("manual_seed", &Tensor::manual_seed, "seed"_a,
               "The draws that follow are those of this seed: of rand and its like, dropout, and "
               "new layers.\n\n"
               ">>> koine.manual_seed(1); a = koine.Tensor.rand(2).tolist()\n"
               ">>> koine.manual_seed(1); a == koine.Tensor.rand(2).tolist()\n"
               "True");
  drawn(c, "rand", &Tensor::rand,
        "float32, uniform in [0, 1), by the global seed.\n\n"
        ">>> koine.Tensor.rand(2, 3).shape\n"
        "(2, 3)");
  drawn(c, "randn", &Tensor::randn,
        "float32, normal, mean 0, variance 1, by the global seed.\n\n"
        ">>> koine.Tensor.randn(2, 3).shape\n"
        "(2, 3)");
  drawn(c, "kaiming_uniform", &Tensor::kaiming_uniform,
        "Uniform, scaled by what goes into a unit.");
  drawn(c, "glorot_uniform", &Tensor::glorot_uniform,
        "Uniform, scaled by what goes into a unit and out of it.");
  auto range = [&](const char* name, auto f, auto low, auto high, const char* doc) {
    c.def_static(
        name,
        [f, name](const nb::args& shape, decltype(low) from, decltype(high) to,
                  const std::string& device) {
          return f(shape_of_all(shape, name), from, to, device);
        },
        "shape"_a, "low"_a = low, "high"_a = high, "device"_a = "", doc);
  };
  range("randint", &Tensor::randint, int64_t{0}, int64_t{10},
        "int32 in [low, high), by the global seed.\n\n"
        ">>> koine.Tensor.randint(4, low=7, high=8).tolist()\n"
        "[7, 7, 7, 7]");
  range("uniform", &Tensor::uniform, 0.0, 1.0, "float32 in [low, high).");
  static_method(c, "randperm", &Tensor::randperm, "n"_a, "device"_a = "",
                "The int32 numbers 0 to n - 1 in random order.\n\n"
                ">>> sorted(koine.Tensor.randperm(4).tolist())\n"
                "[0, 1, 2, 3]");
}

}  // namespace koine::python
