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
        const bool behind = shape.size() == 2 && !dtype && is_list(shape[0]);
        if (behind) return f(as_shape(shape[0], name), as_dtype(shape[1], name));
        return f(shape_of_all(shape, name), dtype ? as_dtype(*dtype, name) : DType::Float32);
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

bool is_real(nb::handle given) {
  return PyFloat_Check(given.ptr()) || PyObject_HasAttrString(given.ptr(), "__float__") != 0;
}
bool has_fraction(nb::handle given) { return is_real(given) && !PyIndex_Check(given.ptr()); }

double as_real(nb::handle given, const char* what) {
  KOINE_REQUIRE(is_real(given) && !nb::isinstance<Tensor>(given), Type,
                "arange: {} is a number, not a '{}'", what, name_of_type(given));
  const double value = PyFloat_AsDouble(given.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

// Whole numbers may be symbolic sizes; where one has a fraction, all are float64.
Tensor arange(const NumberLike& start, const std::optional<NumberLike>& stop,
              const NumberLike& step, const std::optional<DTypeLike>& dtype) {
  const nb::handle first = start, from = stop ? first : nb::handle(),
                   to = stop ? nb::handle(*stop) : first;
  if ((from && has_fraction(from)) || has_fraction(to) || has_fraction(step))
    return Tensor::arange(from ? as_real(from, "the start") : 0.0, as_real(to, "the stop"),
                          as_real(step, "the step"),
                          dtype ? as_dtype(*dtype, "arange") : DType::Float32);
  return Tensor::arange(from ? as_size(from, "arange") : Size(0), as_size(to, "arange"),
                        as_int(step, "arange", "the step"),
                        dtype ? as_dtype(*dtype, "arange") : DType::Int32);
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
  c.def_static(
      "full",
      [](const ShapeLike& shape, const TensorLike& value, const std::optional<DTypeLike>& dtype) {
        return Tensor::full(as_shape(shape, "full"), as_tensor(value, "full"),
                            dtype ? std::optional(as_dtype(*dtype, "full")) : std::nullopt);
      },
      "shape"_a, "value"_a, "dtype"_a = nb::none(),
      "A number in every place, in its dtype or another, which has to hold it.\n\n"
      ">>> koine.full((2,), 7).tolist()\n"
      "[7, 7]");
  method(c, "full_like", &Tensor::full_like, "value"_a,
         "A number in this shape and dtype.\n\n"
         ">>> koine.Tensor([1, 2]).full_like(7).tolist()\n"
         "[7, 7]");
  method(c, "zeros_like", &Tensor::zeros_like,
         "Zeros in this shape and dtype.\n\n"
         ">>> koine.Tensor([1, 2]).zeros_like().tolist()\n"
         "[0, 0]");
  method(c, "ones_like", &Tensor::ones_like,
         "Ones in this shape and dtype.\n\n"
         ">>> koine.Tensor([1.0, 2.0]).ones_like().tolist()\n"
         "[1.0, 1.0]");
  c.def_static("arange", &arange, "start"_a, "stop"_a = nb::none(), "step"_a = 1,
               "dtype"_a = nb::none(),
               "Numbers from start (0) below stop: int32, or float32 where one of the three is a "
               "float.\n\n>>> koine.arange(2, 8, 2).tolist()\n[2, 4, 6]\n"
               ">>> koine.arange(0, 1, 0.25).tolist()\n[0.0, 0.25, 0.5, 0.75]");
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
        "Uniform, scaled by what goes into a unit.\n\n"
        ">>> w = koine.Tensor.kaiming_uniform(2, 6)\n"
        ">>> (w.abs() <= 1).all().item()\n"
        "True");
  drawn(c, "glorot_uniform", &Tensor::glorot_uniform,
        "Uniform, scaled by what goes into a unit and out of it.\n\n"
        ">>> w = koine.Tensor.glorot_uniform(3, 3)\n"
        ">>> (w.abs() <= 1).all().item()\n"
        "True");
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
  range("uniform", &Tensor::uniform, 0.0, 1.0,
        "float32 in [low, high).\n\n"
        ">>> u = koine.Tensor.uniform(100, low=2.0, high=3.0)\n"
        ">>> ((u >= 2) & (u < 3)).all().item()\n"
        "True");
  static_method(c, "randperm", &Tensor::randperm, "n"_a, "device"_a = "",
                "The int32 numbers 0 to n - 1 in random order.\n\n"
                ">>> sorted(koine.Tensor.randperm(4).tolist())\n"
                "[0, 1, 2, 3]");
}

}  // namespace koine::python
