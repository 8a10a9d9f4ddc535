// Operators, reflected and in place.
#include <cmath>
#include <koine/base/error.hpp>
#include <koine/ir/float_layout.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

using Binary = Tensor (*)(const Tensor&, const Tensor&);

// What no tensor can be made of belongs to the other operand's operator, if it has one.
bool is_operand(nb::handle other) {
  if (nb::isinstance<Tensor>(other) || PyLong_Check(other.ptr()) || PyFloat_Check(other.ptr()))
    return true;
  return is_list(other) || nb::isinstance<Size>(other) || nb::hasattr(other, "__array__") ||
         nb::hasattr(other, "__dlpack__");
}
nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

// A text would be repeated by it.
void require_no_text(nb::handle other, const std::string& name) {
  KOINE_REQUIRE(!nb::isinstance<nb::str>(other) || (name != "__mul__" && name != "__rmul__"), Type,
                "*: takes tensors, arrays, lists and numbers, not a 'str'");
}

// A float holds all whole numbers up to this.
int64_t exact_up_to(DType dtype) {
  const int bits = dtype == DType::Float64   ? 53
                   : dtype == DType::Float32 ? 24
                                             : layout_of(dtype).mantissa + 1;
  return int64_t{1} << bits;
}

// A size that is any of its range, as each number of it would be beside a tensor of this dtype.
Tensor beside(DType dtype, const Size& size, const std::string& name) {
  const DType d = dtype == DType::Bool ? DType::Int32 : dtype;
  const IntegerRange holds =
      is_float(d) ? IntegerRange{-exact_up_to(d), exact_up_to(d)} : integer_range(d);
  KOINE_REQUIRE(holds.low <= size.smallest() && size.largest() <= holds.high, Value,
                "{}: {} does not hold all of the size {}, from {} to {}", name, dtype_name(d), size,
                size.smallest(), size.largest());
  return Tensor(size).cast(d);
}

// Whether a number is what its dtype makes of it: what powers are is told by how they are written.
enum class Numbers : uint8_t { Values, Written };

Tensor beside(const Tensor& self, nb::handle other, const std::string& name, Numbers are) {
  if (are == Numbers::Values && nb::isinstance<Size>(other))
    if (const Size size = nb::cast<Size>(other); is_open(size))
      return beside(self.dtype(), size, name);
  return as_tensor_beside(self, other, name.c_str());
}

void operation(TensorClass& c, const std::string& name, Binary f, Numbers are = Numbers::Values) {
  c.def(
      name.c_str(),
      [f, name, are](const Tensor& self, nb::handle other) -> nb::object {
        require_no_text(other, name);
        if (!is_operand(other)) return not_implemented();
        return nb::cast(f(self, beside(self, other, name, are)));
      },
      "other"_a.none(), nb::is_operator());
}
void reflected(TensorClass& c, const std::string& name, Binary f, Numbers are = Numbers::Values) {
  c.def(
      name.c_str(),
      [f, name, are](const Tensor& self, nb::handle other) -> nb::object {
        require_no_text(other, name);
        if (!is_operand(other)) return not_implemented();
        return nb::cast(f(beside(self, other, name, are), self));
      },
      "other"_a.none(), nb::is_operator());
}
// As in NumPy: the tensor stays, and all who have it see the new values.
void in_place(TensorClass& c, const std::string& name, Binary f, Numbers are) {
  c.def(
      name.c_str(),
      [f, name, are](nb::object self, nb::handle other) -> nb::object {
        if (!is_operand(other)) return not_implemented();
        Tensor& t = nb::cast<Tensor&>(self);
        const Tensor value = f(t, beside(t, other, name, are));
        unlocked_making([&] { t.in_place(name, value); });  // many writes in a row are computed
        return self;
      },
      "other"_a.none(), nb::is_operator());
}

void arithmetic(TensorClass& c, const std::string& name, Binary f, Numbers are = Numbers::Values) {
  operation(c, "__" + name + "__", f, are);
  reflected(c, "__r" + name + "__", f, are);
  in_place(c, "__i" + name + "__", f, are);
}

// To so many digits after the point, as NumPy's: of floats in their dtype, of integers exactly
// where none is dropped.
Tensor rounded(const Tensor& x, int64_t digits) {
  if (!is_float(x.dtype()) && digits >= 0) return x.round();
  const DType dtype = is_float(x.dtype()) ? x.dtype() : DType::Float64;
  const Tensor value = x.cast(dtype);
  const Tensor power = Tensor(std::pow(10.0, static_cast<double>(std::abs(digits)))).cast(dtype);
  const Tensor out =
      digits >= 0 ? (value * power).round() / power : (value / power).round() * power;
  return out.cast(x.dtype());
}

}  // namespace

void bind_operators(TensorClass& c) {
  arithmetic(c, "add", [](const Tensor& a, const Tensor& b) { return a + b; });
  arithmetic(c, "sub", [](const Tensor& a, const Tensor& b) { return a - b; });
  arithmetic(c, "mul", [](const Tensor& a, const Tensor& b) { return a * b; });
  arithmetic(c, "floordiv", [](const Tensor& a, const Tensor& b) { return a.idiv(b); });
  arithmetic(c, "mod", [](const Tensor& a, const Tensor& b) { return a.mod(b); });
  arithmetic(c, "pow", [](const Tensor& a, const Tensor& b) { return a.pow(b); }, Numbers::Written);
  arithmetic(c, "matmul", [](const Tensor& a, const Tensor& b) { return a.matmul(b); });
  arithmetic(c, "and", [](const Tensor& a, const Tensor& b) { return a.bitwise_and(b); });
  arithmetic(c, "or", [](const Tensor& a, const Tensor& b) { return a.bitwise_or(b); });
  arithmetic(c, "xor", [](const Tensor& a, const Tensor& b) { return a.bitwise_xor(b); });
  arithmetic(
      c, "lshift", [](const Tensor& a, const Tensor& b) { return a.lshift(b); }, Numbers::Written);
  arithmetic(
      c, "rshift", [](const Tensor& a, const Tensor& b) { return a.rshift(b); }, Numbers::Written);
  operation(c, "__truediv__", [](const Tensor& a, const Tensor& b) { return a / b; });
  reflected(c, "__rtruediv__", [](const Tensor& a, const Tensor& b) { return a / b; });
  c.def(
      "__itruediv__",
      [](nb::object self, nb::handle other) -> nb::object {
        if (!is_operand(other)) return not_implemented();
        Tensor& t = nb::cast<Tensor&>(self);
        t /= as_tensor_beside(t, other, "__itruediv__");  // refuses integers
        return self;
      },
      "other"_a.none(), nb::is_operator());
  operation(c, "__lt__", [](const Tensor& a, const Tensor& b) { return a < b; });
  operation(c, "__gt__", [](const Tensor& a, const Tensor& b) { return a > b; });
  operation(c, "__le__", [](const Tensor& a, const Tensor& b) { return a <= b; });
  operation(c, "__ge__", [](const Tensor& a, const Tensor& b) { return a >= b; });
  operation(c, "__eq__", [](const Tensor& a, const Tensor& b) { return a == b; });
  operation(c, "__ne__", [](const Tensor& a, const Tensor& b) { return a != b; });
  auto pair = [](const Tensor& a, const Tensor& b) { return nb::make_tuple(a.idiv(b), a.mod(b)); };
  c.def(
      "__divmod__",
      [pair](const Tensor& self, nb::handle other) -> nb::object {
        if (!is_operand(other)) return not_implemented();
        return pair(self, as_tensor_beside(self, other, "__divmod__"));
      },
      "other"_a.none(), nb::is_operator());
  c.def(
      "__rdivmod__",
      [pair](const Tensor& self, nb::handle other) -> nb::object {
        if (!is_operand(other)) return not_implemented();
        return pair(as_tensor_beside(self, other, "__rdivmod__"), self);
      },
      "other"_a.none(), nb::is_operator());
  c.def(
      "__round__",
      [](const Tensor& self, std::optional<int64_t> ndigits) {
        return ndigits ? rounded(self, *ndigits) : self.round();
      },
      "ndigits"_a = nb::none());
  c.def("__neg__", &Tensor::neg)
      .def("__pos__", [](const Tensor& t) { return t; })
      .def("__abs__", &Tensor::abs)
      .def("__invert__", [](const Tensor& t) {
        return t.dtype() == DType::Bool ? t.logical_not() : t.bitwise_not();
      });
}

}  // namespace koine::python
