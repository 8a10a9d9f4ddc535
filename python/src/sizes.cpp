// Symbolic sizes and Variables.
#include <nanobind/operators.h>

#include "bind.hpp"

namespace koine::python {

void bind_sizes(nb::module_& m) {
  nb::class_<Size> size(
      m, "Size",
      "A size that is an expression over bound Variables. One program serves every value of them.");
  size.def("__repr__", &Size::text)
      .def("__index__", [](const Size& s) { return int64_t{s}; })
      .def_prop_ro("present", &Size::present, "The number for this run.")
      .def_prop_ro("smallest", &Size::smallest, "The least it may be.")
      .def_prop_ro("largest", &Size::largest, "The most it may be.")
      .def(
          "__eq__",
          [](const Size& a, nb::handle b) {
            if (!nb::isinstance<Size>(b) && (!PyIndex_Check(b.ptr()) || PyBool_Check(b.ptr())))
              return false;
            return a == as_size(b, "Size");
          },
          "other"_a.none())
      .def("__hash__", [](const Size& s) { return std::hash<std::string>()(s.text()); });
  using Operation = Size (*)(const Size&, const Size&);
  auto both = [&](const char* name, const char* reflected, Operation f) {
    size.def(
        name, [f](const Size& a, const SizeLike& b) { return f(a, as_size(b, "Size")); },
        nb::is_operator());
    size.def(
        reflected, [f](const Size& b, const SizeLike& a) { return f(as_size(a, "Size"), b); },
        nb::is_operator());
  };
  both("__add__", "__radd__", [](const Size& a, const Size& b) { return a + b; });
  both("__sub__", "__rsub__", [](const Size& a, const Size& b) { return a - b; });
  both("__mul__", "__rmul__", [](const Size& a, const Size& b) { return a * b; });
  both("__floordiv__", "__rfloordiv__", [](const Size& a, const Size& b) { return a / b; });
  both("__mod__", "__rmod__", [](const Size& a, const Size& b) { return a % b; });

  nb::class_<Variable>(
      m, "Variable",
      "A whole number that has another value in each run, such as the length of a sequence.\n\n"
      ">>> n = koine.Variable('n', 1, 128)\n"
      ">>> int(koine.Tensor.arange(100)[:n.bind(4)].sum().item())\n6")
      .def(
          "__init__",
          [](Variable* self, const std::string& name, int64_t low, int64_t high) {
            new (self) Variable(name, low, high);
          },
          "name"_a, "low"_a, "high"_a)
      .def("bind", &Variable::bind, "value"_a,
           "The size with its value for this run. ValueError outside of low..high.");
}

}  // namespace koine::python
