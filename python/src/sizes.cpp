// Symbolic sizes and Variables.
#include <koine/base/error.hpp>
#include <koine/ir/binding.hpp>
#include <koine/ir/build.hpp>
#include <koine/transform/function.hpp>

#include "bind.hpp"

namespace koine::python {

bool is_open(const Size& size) { return !size.is_number() && !has_present_value(size.uop()); }

namespace {

bool is_whole(nb::handle given) {
  return nb::isinstance<Size>(given) || nb::isinstance<Variable>(given) ||
         (PyIndex_Check(given.ptr()) != 0 && PyBool_Check(given.ptr()) == 0 &&
          !nb::isinstance<Tensor>(given));
}

// What its range leaves open nobody may ask: the answer would be that of one size.
[[noreturn]] void refuse(const Size& size, std::string_view asked) {
  raise(ErrorKind::Value,
        "{} of the size {} has no answer that holds for all numbers from {} to {}, which one "
        "program serves",
        asked, size, size.smallest(), size.largest());
}

// In a function that is traced an open size may be one that the user takes for a number; elsewhere
// it is what he made of his Variables.
void require_own(const Size& size, std::string_view asked) {
  if (is_open(size) && is_tracing()) refuse(size, asked);
}
void require_own(const Variable&, std::string_view) {}

bool is_less(const Size& a, const Size& b) {
  const Size more = b - a;
  if (more.smallest() > 0) return true;
  if (more.largest() <= 0) return false;
  refuse(a.is_number() ? b : a, "a comparison");
}

bool is_equal(const Size& a, nb::handle given) {
  if (nb::isinstance<Tensor>(given)) throw nb::next_overload();
  if (!is_whole(given)) {
    const bool number = PyNumber_Check(given.ptr()) != 0;  // 3 == 3.0
    if (number && is_open(a)) refuse(a, "a comparison");
    return false;
  }
  const Size b = as_size(given, "Size");
  if (a == b) return true;
  if (!is_open(a) && !is_open(b)) return false;
  const Size more = b - a;
  if (more.smallest() > 0 || more.largest() < 0) return false;
  refuse(a, "a comparison");
}

// Python rounds down for both signs, and raises an exception for 0.
void require_positive(const Size& divisor, const Size& a) {
  const bool open = is_open(divisor) || is_open(a);
  KOINE_REQUIRE(divisor.smallest() > 0 || !open, Value,
                "a quotient of {} by {}, from {} to {}: it has to be positive", a, divisor,
                divisor.smallest(), divisor.largest());
}

// An operand; of what is no size the other side's operator may know more.
Size operand(const SizeLike& given) {
  if (!is_whole(given)) throw nb::next_overload();
  return as_size(given, "Size");
}

using Operation = Size (*)(const Size&, const Size&);
template <class C>
void operation(nb::class_<C>& c, const std::string& name, Operation f) {
  c.def(("__" + name + "__").c_str(),
        [f](const C& a, const SizeLike& b) { return f(a, operand(b)); }, nb::is_operator());
  c.def(("__r" + name + "__").c_str(),
        [f](const C& b, const SizeLike& a) { return f(operand(a), b); }, nb::is_operator());
}

using Relation = bool (*)(const Size&, const Size&);
template <class C>
void relation(nb::class_<C>& c, const char* name, Relation f) {
  c.def(name, [f](const C& a, const SizeLike& b) { return f(a, operand(b)); }, nb::is_operator());
}

// Of sizes and of Variables, which are sizes without a value.
template <class C>
void arithmetic(nb::class_<C>& c) {
  operation(c, "add", [](const Size& a, const Size& b) { return a + b; });
  operation(c, "sub", [](const Size& a, const Size& b) { return a - b; });
  operation(c, "mul", [](const Size& a, const Size& b) { return a * b; });
  operation(c, "floordiv", [](const Size& a, const Size& b) {
    require_positive(b, a);
    return a / b;
  });
  operation(c, "mod", [](const Size& a, const Size& b) {
    require_positive(b, a);
    return a % b;
  });
  operation(c, "truediv", [](const Size& a, const Size& b) -> Size {
    raise(ErrorKind::Type,
          "{} / {} is no size: // rounds down, and a tensor can be divided by a size", a, b);
  });
  c.def("__neg__", [](const C& a) { return Size(0) - Size(a); });
  relation(c, "__lt__", [](const Size& a, const Size& b) { return is_less(a, b); });
  relation(c, "__gt__", [](const Size& a, const Size& b) { return is_less(b, a); });
  relation(c, "__le__", [](const Size& a, const Size& b) { return !is_less(b, a); });
  relation(c, "__ge__", [](const Size& a, const Size& b) { return !is_less(a, b); });
}

bool truth_of_size(const Size& size) {
  if (size.smallest() > 0 || size.largest() < 0) return true;
  refuse(size, "the truth");
}

// Like a number, whose text names what is chosen by it.
template <class C>
std::string text_of(const C& given) {
  require_own(given, "the text");
  return Size(given).text();
}

// `x.render(ops, ctx)` of old: a table of functions by class, of which it calls its own.
template <class C>
nb::object rendered(nb::handle self, nb::handle ops, nb::handle ctx) {
  if (!ops.is_none()) return ops[self.type()](self, ops, ctx);
  return nb::cast(text_of(nb::cast<const C&>(self)));
}

// What an integer of old has: its bounds and its text.
template <class C>
void bounds_and_text(nb::class_<C>& c) {
  c.def_prop_ro(
       "min",
       [](const C& given) {
         require_own(given, "the least");
         return given.smallest();
       },
       "The least that it may be.")
      .def_prop_ro(
          "max",
          [](const C& given) {
            require_own(given, "the most");
            return given.largest();
          },
          "The most that it may be.")
      .def("render", &text_of<C>, "Its text.")
      .def("render", &rendered<C>, "ops"_a, "ctx"_a = nb::none(),
           "What the function of its class in a table makes of (self, ops, ctx).")
      .def("__hash__", [](const C& given) { return std::hash<std::string>()(text_of(given)); });
}

// isinstance() asks for it: each of the sizes that an open one stands for is an int.
PyObject* class_of(PyObject* self, void*) {
  const bool open = is_open(*nb::inst_ptr<Size>(self));
  return Py_NewRef(reinterpret_cast<PyObject*>(open ? &PyLong_Type : Py_TYPE(self)));
}
PyGetSetDef members[] = {{"__class__", &class_of, nullptr, nullptr, nullptr}, {}};
PyType_Slot slots[] = {{Py_tp_getset, members}, {}};

}  // namespace

void bind_sizes(nb::module_& m) {
  nb::class_<Size> size(
      m, "Size", nb::type_slots(slots),
      "A size that is an expression over bound Variables. One program serves every value of "
      "them.\n\n"
      "Comparisons answer where the ranges of the Variables decide, and are errors where they do "
      "not;\n"
      "two sizes are equal where their expressions are.\n\n"
      ">>> n = koine.Variable('n', 1, 128)\n"
      ">>> size = koine.Tensor.arange(128)[:n.bind(4)].size(0) * 2\n"
      ">>> size.present, size.largest, size < 300\n"
      "(8, 256, True)");
  size.def("__init__", refuse_making("Size", "Variable.bind() gives one"));
  size.def("__repr__", &text_of<Size>)
      .def("__index__", [](const Size& s) { return int64_t{s}; })
      .def("__bool__", &truth_of_size)
      .def_prop_ro("present", &Size::present, "The number for this run.")
      .def_prop_ro("smallest", &Size::smallest, "The least it may be.")
      .def_prop_ro("largest", &Size::largest, "The most it may be.")
      .def("__eq__", &is_equal, "other"_a.none(), nb::is_operator());
  arithmetic(size);
  bounds_and_text(size);

  nb::class_<Variable> variable(
      m, "Variable",
      "A whole number that has another value in each run, such as the length of a sequence. "
      "Without a\nvalue it is a Size, of which bounds are known.\n\n"
      ">>> n = koine.Variable('n', 1, 128)\n"
      ">>> int(koine.Tensor.arange(100)[:n.bind(4)].sum().item())\n6\n"
      ">>> (n * 4 + 3) // 4 == n, (n * 2).max, (n * 2 + 1).render()\n"
      "(True, 256, 'n*2+1')");
  variable
      .def(
          "__init__",
          [](Variable* self, const std::string& name, int64_t low, int64_t high) {
            new (self) Variable(name, low, high);
          },
          "name"_a, "low"_a, "high"_a)
      .def("bind", &Variable::bind, "value"_a,
           "The size with its value for this run. ValueError outside of low..high.")
      .def_prop_ro("name", &Variable::name, "Its name.")
      .def_prop_ro("expr", &Variable::name, "Its name, as an expression.")
      .def(
          "__eq__",
          [](const Variable& a, nb::handle b) {
            if (nb::isinstance<Variable>(b)) return a.uop() == nb::cast<const Variable&>(b).uop();
            return is_equal(a, b);
          },
          "other"_a.none(), nb::is_operator())
      .def("__repr__",
           [](const Variable& v) {
             const UOp& u = v.uop();
             return fmt::format("Variable('{}', {}, {})", v.name(), const_int(u.src(1)),
                                const_int(u.src(2)));
           })
      .def("__reduce__", [](nb::handle self) {  // equal arguments give the same Variable
        const UOp& u = nb::cast<const Variable&>(self).uop();
        return nb::make_tuple(
            self.type(),
            nb::make_tuple(u.as<BufferArg>().name, const_int(u.src(1)), const_int(u.src(2))));
      });
  arithmetic(variable);
  bounds_and_text(variable);
}

}  // namespace koine::python
