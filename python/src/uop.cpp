// Nodes of the graph: to look at, and to make kernels of by hand.
#include <koine/base/error.hpp>
#include <koine/ir/build.hpp>
#include <koine/ir/text.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

using NodeClass = nb::class_<UOp>;

std::string name_of_dtype(DType dtype) {
  return std::string(dtype == DType::Index ? "place" : dtype_name(dtype));
}

// A whole number of Python's; null where the dtype does not hold it.
UOp whole_number(nb::handle given, DType dtype) {
  if (is_float(dtype)) {
    const double real = PyLong_AsDouble(given.ptr());
    if (PyErr_Occurred() == nullptr) return constant(dtype, real);
    PyErr_Clear();
    return {};
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(given.ptr(), &overflow);
  if (overflow > 0 && dtype == DType::UInt64) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(given.ptr());
    if (PyErr_Occurred() == nullptr) return constant_int(dtype, static_cast<int64_t>(large));
    PyErr_Clear();
  }
  if (overflow != 0 || (value < 0 && is_unsigned(dtype))) return {};
  if (dtype == DType::Index) return index_const(value);
  const UOp made = constant_int(dtype, value);
  return const_int(made) == value ? made : UOp();
}

// A node, or a number in the dtype of the node beside it.
UOp node_of(nb::handle given, DType dtype, const char* method) {
  if (nb::isinstance<UOp>(given)) return nb::cast<UOp>(given);
  if (nb::isinstance<Size>(given)) return nb::cast<Size>(given).uop();
  KOINE_REQUIRE(!nb::isinstance<Tensor>(given), Type,
                "{}: a tensor is no part of a kernel: give it as an argument, whose node the "
                "kernel gets",
                method);
  if (nb::hasattr(given, "dtype") && nb::hasattr(given, "item"))  // a number of NumPy's
    return node_of(given.attr("item")(), dtype, method);
  if (PyBool_Check(given.ptr()) != 0) {
    if (dtype == DType::Bool) return constant_bool(nb::cast<bool>(given));
  } else if (PyLong_Check(given.ptr()) != 0 && dtype != DType::Bool) {
    const UOp made = whole_number(given, dtype);
    KOINE_REQUIRE(made, Value, "{}: a {} does not hold {}", method, name_of_dtype(dtype),
                  nb::str(given).c_str());
    return made;
  } else if (PyFloat_Check(given.ptr()) != 0 && is_float(dtype)) {
    return constant(dtype, nb::cast<double>(given));
  }
  raise(ErrorKind::Type, "{}: takes nodes, and numbers that a {} can be, not the '{}' {}", method,
        name_of_dtype(dtype), name_of_type(given), nb::str(given).c_str());
}

// What is stored or chosen: a bool of Python's is what == of two nodes gives, mostly.
UOp value_of(nb::handle given, DType dtype, const char* method) {
  KOINE_REQUIRE(PyBool_Check(given.ptr()) == 0, Type,
                "{}: a bool of Python's: == asks whether two nodes are one, and a.eq(b) compares "
                "values; UOp.const({}, 'bool') is a node",
                method, nb::str(given).c_str());
  return node_of(given, dtype, method);
}

using Two = UOp (*)(const UOp&, const UOp&);
UOp of_two(Two f, const UOp& a, const UOp& b, const char* method) {
  KOINE_REQUIRE(a.dtype() == b.dtype(), Type,
                "{}: of {} and {}: both have to be of one dtype, which cast() gives", method,
                dtype_name(a.dtype()), dtype_name(b.dtype()));
  return f(a, b);
}

void operation(NodeClass& c, const char* name, Two f, const char* doc) {
  c.def(
      name,
      [f, name](const UOp& a, nb::handle b) {
        return of_two(f, a, node_of(b, a.dtype(), name), name);
      },
      "other"_a, doc);
}
void reflected(NodeClass& c, const char* name, Two f) {
  c.def(
      name,
      [f, name](const UOp& b, nb::handle a) {
        return of_two(f, node_of(a, b.dtype(), name), b, name);
      },
      "other"_a);
}

template <Op op>
UOp two(const UOp& a, const UOp& b) {
  return binary(op, a, b);
}
UOp quotient(const UOp& a, const UOp& b) {
  KOINE_REQUIRE(is_float(a.dtype()), Type, "/: of floats, not of {}: // rounds down",
                dtype_name(a.dtype()));
  return fdiv(a, b);
}
UOp whole_quotient(const UOp& a, const UOp& b) {
  KOINE_REQUIRE(!is_float(a.dtype()), Type, "//: of whole numbers, not of {}",
                dtype_name(a.dtype()));
  return idiv(a, b);
}

void bind_operations(NodeClass& c) {
  operation(c, "__add__", add, "");
  operation(c, "__sub__", sub, "");
  operation(c, "__mul__", mul, "");
  operation(c, "__truediv__", quotient, "");
  operation(c, "__floordiv__", whole_quotient, "");
  operation(c, "__mod__", mod, "");
  operation(c, "__and__", bit_and, "");
  operation(c, "__or__", bit_or, "");
  operation(c, "__xor__", bit_xor, "");
  operation(c, "__lshift__", two<Op::Shl>, "");
  operation(c, "__rshift__", two<Op::Shr>, "");
  operation(c, "__lt__", lt, "");
  operation(c, "__le__", le, "");
  operation(c, "__gt__", gt, "");
  operation(c, "__ge__", ge, "");
  reflected(c, "__radd__", add);
  reflected(c, "__rsub__", sub);
  reflected(c, "__rmul__", mul);
  reflected(c, "__rtruediv__", quotient);
  reflected(c, "__rfloordiv__", whole_quotient);
  reflected(c, "__rmod__", mod);
  reflected(c, "__rand__", bit_and);
  reflected(c, "__ror__", bit_or);
  reflected(c, "__rxor__", bit_xor);
  operation(c, "eq", eq, "Whether values are equal; == asks whether two are one node.");
  operation(c, "ne", ne, "Whether values differ.");
  operation(c, "maximum", maximum, "The larger of two values.");
  operation(c, "minimum", minimum, "The smaller of two values.");
  c.def("__neg__", &neg);
  c.def("__invert__", [](const UOp& a) {
    return a.dtype() == DType::Bool ? logical_not(a) : bit_xor(a, constant_int(a.dtype(), -1));
  });
  c.def("__bool__", [](const UOp&) -> bool {
    raise(ErrorKind::Type, "bool: a node has no value yet: a.where(x, y) chooses while it runs");
  });
  auto of_one = [&](const char* name, auto f, const char* doc) {
    c.def(
        name,
        [f, name](const UOp& a) {
          KOINE_REQUIRE(is_float(a.dtype()), Type, "{}: of a {}: cast() makes it a float", name,
                        dtype_name(a.dtype()));
          return f(a);
        },
        doc);
  };
  of_one("exp", [](const UOp& a) { return exponential(a, Base::E); }, "e^x");
  of_one("exp2", [](const UOp& a) { return exponential(a, Base::Two); }, "2^x");
  of_one("log", [](const UOp& a) { return logarithm(a, Base::E); }, "The natural logarithm.");
  of_one("log2", [](const UOp& a) { return logarithm(a, Base::Two); }, "The one of base 2.");
  of_one("sin", [](const UOp& a) { return sine(a); }, "Of radians.");
  of_one("cos", [](const UOp& a) { return sine(a, 1); }, "Of radians.");
  of_one("sqrt", [](const UOp& a) { return unary(Op::Sqrt, a); }, "The square root.");
  of_one("reciprocal", [](const UOp& a) { return unary(Op::Recip, a); }, "1/x");
  c.def(
      "cast", [](const UOp& a, const DTypeLike& dtype) { return cast(a, as_dtype(dtype, "cast")); },
      "dtype"_a, "The value in another dtype. The number of a loop is a place before that.");
  c.def(
      "bitcast",
      [](const UOp& a, const DTypeLike& dtype) { return bitcast(a, as_dtype(dtype, "bitcast")); },
      "dtype"_a, "The same bits in another dtype.");
  c.def(
      "where",
      [](const UOp& condition, nb::handle a, nb::handle b) {
        const bool first = nb::isinstance<UOp>(a);
        KOINE_REQUIRE(first || nb::isinstance<UOp>(b), Type,
                      "where: one of both has to be a node, which says the dtype: UOp.const() "
                      "makes one");
        const DType dtype = nb::cast<UOp>(first ? a : b).dtype();
        return where(condition, value_of(a, dtype, "where"), value_of(b, dtype, "where"));
      },
      "a"_a, "b"_a, "a where it holds, else b.");
}

std::vector<UOp> nodes_of(const nb::args& given, const char* method) {
  std::vector<UOp> out;
  for (const nb::handle h : given) {
    KOINE_REQUIRE(nb::isinstance<UOp>(h), Type, "{}: takes nodes, not a '{}'", method,
                  name_of_type(h));
    out.push_back(nb::cast<UOp>(h));
  }
  return out;
}

std::vector<UOp> ranges_of(const nb::args& given, const char* method) {
  std::vector<UOp> out = nodes_of(given, method);
  for (const UOp& r : out)
    KOINE_REQUIRE(r.is(Op::Range), Type, "{}: takes loops, which UOp.range() gives, not a {}",
                  method, op_name(r.op()));
  return out;
}

AxisType axis_type_of(const std::string& name) {
  std::string known;
  for (const AxisType type : {AxisType::Loop, AxisType::Reduce, AxisType::Upcast, AxisType::Unroll,
                              AxisType::Thread, AxisType::Global, AxisType::Local}) {
    if (axis_type_name(type) == name) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", axis_type_name(type));
  }
  raise(ErrorKind::Value, "range: there is no type '{}'; there are {}", name, known);
}

void bind_kernels_by_hand(NodeClass& c) {
  c.def_static(
      "range",
      [](nb::handle end, int64_t number, const std::string& type) {
        constexpr int64_t most = 1 << 20;
        const UOp bound = node_of(end, DType::Index, "range");
        KOINE_REQUIRE(number >= 0 && number < most, Value,
                      "range: loops have numbers from 0 to {}, not {}", most - 1, number);
        KOINE_REQUIRE(bound.dtype() == DType::Index, Type,
                      "range: it ends at a place, which sizes and loops are made of, not at a {}",
                      dtype_name(bound.dtype()));
        return range(number, bound, axis_type_of(type));
      },
      "end"_a, "number"_a, "type"_a = "LOOP",
      "A loop from 0 up to an end, which is the place that it is at. Each of a kernel has a number "
      "of its own. `type`: LOOP, or REDUCE of one that sum() and its like fold.");
  c.def_static(
      "const",
      [](nb::handle value, const DTypeLike& dtype) {
        return node_of(value, as_dtype(dtype, "const"), "const");
      },
      "value"_a, "dtype"_a, "A number. Beside another node a number of Python's does.");
  c.def_prop_ro(
      "shape", [](const UOp& u) { return tuple_of(Shape::of(u)); },
      "Its sizes; those of a parameter of a kernel are those of the tensor.");
  c.def(
      "__getitem__",
      [](const UOp& u, nb::handle places) {
        std::vector<UOp> at;
        if (PyTuple_Check(places.ptr()) != 0)
          for (const nb::handle h : nb::borrow<nb::tuple>(places))
            at.push_back(node_of(h, DType::Index, "[]"));
        else
          at.push_back(node_of(places, DType::Index, "[]"));
        KOINE_REQUIRE(at.size() == u.rank(), Index,
                      "[]: {} places in a {} of shape {}: an element has one along each axis",
                      at.size(), op_name(u.op()), shape_text(u));
        return index(u, at);
      },
      "places"_a);
  c.def(
      "store",
      [](const UOp& element, nb::handle value, const std::optional<UOp>& gate) {
        const UOp stored = value_of(value, element.dtype(), "store");
        KOINE_REQUIRE(stored.dtype() == element.dtype(), Type,
                      "store: a {} into memory of {}: cast() it", dtype_name(stored.dtype()),
                      dtype_name(element.dtype()));
        return gate ? store(element, stored, *gate) : store(element, stored);
      },
      "value"_a, "gate"_a = nb::none(), "Puts a value there; with a gate only where that holds.");
  c.def(
      "end",
      [](const UOp& body, const nb::args& loops) { return end(body, ranges_of(loops, "end")); },
      "loops"_a, "The loops around it.");
  c.def(
      "after",
      [](const UOp& buffer, const nb::args& effects) {
        return after(buffer, nodes_of(effects, "after"));
      },
      "effects"_a,
      "The memory once these have run: an end(), or a loop, whose steps then come one behind the "
      "other, as a sum that goes on from what is stored wants.");
  c.def(
      "sink",
      [](const UOp& effect, const nb::args& more) {
        std::vector<UOp> all = nodes_of(more, "sink");
        all.insert(all.begin(), effect);
        return sink(all);
      },
      "more"_a, "The kernel of what it does, and of what others do.");
  auto fold = [&](const char* name, Op op, const char* doc) {
    c.def(
        name,
        [op, name](const UOp& value, const nb::args& loops) {
          const std::vector<UOp> ranges = ranges_of(loops, name);
          KOINE_REQUIRE(!ranges.empty(), Type, "{}: over which loops?", name);
          for (const UOp& r : ranges)
            KOINE_REQUIRE(is_reduction(r.as<RangeArg>().type), Value,
                          "{}: folds loops of type REDUCE, and {} is {}", name, r.as<RangeArg>().id,
                          axis_type_name(r.as<RangeArg>().type));
          return reduce_ranges(op, value, ranges);
        },
        "loops"_a, doc);
  };
  fold("sum", Op::Add, "The sum over loops of type REDUCE.");
  fold("prod", Op::Mul, "The product over them.");
  fold("max", Op::Max, "The largest over them.");
}

}  // namespace

void bind_uop(nb::module_& m) {
  NodeClass node(m, "UOp",
                 "A node of the graph: immutable, and equal nodes are one.\n\n"
                 ">>> x = koine.Tensor([1, 2])\n"
                 ">>> (x + 1).uop == (x + 1).uop, (x + 1).uop.op\n"
                 "(True, 'Add')");
  node.def("__init__", refuse_making("UOp", "x.uop is that of a tensor"));
  bind_operations(node);
  bind_kernels_by_hand(node);
  for (const char* name : {"__iter__", "__contains__"})  // else [] would be asked without end
    node.attr(name) = nb::none();
  node.def("__str__", [](const UOp& u) { return to_text(u); })
      .def("__repr__", [](const UOp& u) { return "<UOp " + std::string(op_name(u.op())) + ">"; })
      .def(
          "__eq__",
          [](const UOp& a, nb::handle b) {
            KOINE_REQUIRE(PyNumber_Check(b.ptr()) == 0 || nb::isinstance<UOp>(b), Type,
                          "==: asks whether two nodes are one: a.eq({}) compares values",
                          nb::str(b).c_str());
            return nb::isinstance<UOp>(b) && a == nb::cast<UOp>(b);
          },
          "other"_a.none())
      .def("__hash__", [](const UOp& u) { return u.hash(); })
      .def_prop_ro(
          "op", [](const UOp& u) { return std::string(op_name(u.op())); }, "The name of its op.")
      .def_prop_ro(
          "src", [](const UOp& u) { return list_of(u.src()); }, "What it is computed from.")
      .def_prop_ro(
          "origin", [](const UOp& u) { return origin_text(u); },
          "The line that made it, 'model.py:12 in forward', or 'one of' those; empty where not "
          "known.")
      .def_prop_ro(
          "arg", [](const UOp& u) { return arg_text(u.arg()); },
          "What it is beyond its op, as its text shows it.")
      .def_prop_ro(
          "dtype",
          [](const UOp& u) {
            const bool is_value = u.dtype() != DType::Void && u.dtype() != DType::Index;
            return is_value ? std::optional(u.dtype()) : std::nullopt;
          },
          "Its koine.DType; None of what is no value, and of indices.");
}

}  // namespace koine::python
