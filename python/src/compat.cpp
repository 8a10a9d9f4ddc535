// Kernels by hand, with the old names of UOps (koine/compat.py).
#include <nanobind/stl/string_view.h>

#include <koine/base/error.hpp>
#include <koine/compat/alu.hpp>
#include <koine/runtime/device.hpp>

#include "bind.hpp"
#include "program.hpp"

namespace koine::python {
namespace {

using namespace compat;
using compat::Arg;

template <class E>
void names(nb::enum_<E>&& e, std::initializer_list<const char*> all) {
  int value = 0;
  for (const char* name : all) e.value(name, static_cast<E>(value++));
}

std::optional<Operation> operation_given(nb::handle given) {
  if (nb::isinstance<UnaryOps>(given)) return nb::cast<UnaryOps>(given);
  if (nb::isinstance<BinaryOps>(given)) return nb::cast<BinaryOps>(given);
  if (nb::isinstance<TernaryOps>(given)) return nb::cast<TernaryOps>(given);
  return {};
}

// The tuples of the guide: (0, "data0", True), (0, "gidx0", 10), ("n", 1, 10).
std::optional<Arg> tuple_given(const nb::tuple& t) {
  auto is_int = [&](size_t k) { return PyLong_Check(t[k].ptr()) && !PyBool_Check(t[k].ptr()); };
  auto number = [&](size_t k) { return as_int(t[k], "UOpGraph.add", "arg"); };
  auto text = [&](size_t k) { return nb::cast<std::string>(t[k]); };
  const size_t n = t.size();
  if (n < 3 || n > 4) return {};
  if (n == 3 && nb::isinstance<nb::str>(t[0]) && is_int(1) && is_int(2))
    return Arg(text(0), number(1), number(2));
  if (!is_int(0) || !nb::isinstance<nb::str>(t[1])) return {};
  if (PyBool_Check(t[2].ptr()) && (n == 3 || is_int(3)))
    return Arg(number(0), text(1), nb::cast<bool>(t[2]), n == 4 ? number(3) : 0);
  if (n == 3 && is_int(2)) return Arg(number(0), text(1), number(2));
  return {};
}

Arg arg_given(nb::handle given, DType dtype) {
  if (given.is_none()) return {};
  if (const auto operation = operation_given(given)) return {*operation};
  if (PyFloat_Check(given.ptr())) return {PyFloat_AS_DOUBLE(given.ptr())};
  if (PyLong_Check(given.ptr())) {
    if (dtype != DType::UInt64) return {as_int(given, "UOpGraph.add", "arg")};
    const unsigned long long bits = PyLong_AsUnsignedLongLong(given.ptr());
    if (PyErr_Occurred() == nullptr) return {static_cast<int64_t>(bits)};
    PyErr_Clear();
  }
  if (nb::isinstance<nb::tuple>(given))
    if (auto arg = tuple_given(nb::cast<nb::tuple>(given))) return *arg;
  raise(ErrorKind::Type,
        "UOpGraph.add: arg is a number, an operation such as BinaryOps.ADD, or a tuple as in "
        "(0, \"data0\", True), not {}",
        nb::repr(given).c_str());
}

nb::object arg_shown(const Row& row) {
  struct Visit {
    const Row& row;
    nb::object operator()(std::monostate) const { return nb::none(); }
    nb::object operator()(int64_t v) const {
      return row.dtype == DType::UInt64 ? nb::cast(static_cast<uint64_t>(v)) : nb::cast(v);
    }
    nb::object operator()(double v) const { return nb::cast(v); }
    nb::object operator()(const Global& g) const {
      if (g.size > 0) return nb::make_tuple(g.index, g.name, g.is_mutable, g.size);
      return nb::make_tuple(g.index, g.name, g.is_mutable);
    }
    nb::object operator()(const Thread& t) const {
      return nb::make_tuple(t.number, t.name, t.limit);
    }
    nb::object operator()(const Bounded& b) const { return nb::make_tuple(b.name, b.low, b.high); }
    nb::object operator()(const Operation& operation) const {
      return std::visit([](auto o) { return nb::cast(o); }, operation);
    }
  };
  return std::visit(Visit{row}, row.arg.value);
}

std::vector<RowRef> rows_given(nb::handle vin) {
  std::vector<RowRef> out;
  if (vin.is_none()) return out;
  KOINE_REQUIRE(nb::isinstance<nb::tuple>(vin) || nb::isinstance<nb::list>(vin), Type,
                "UOpGraph.add: vin is a tuple of rows, not '{}'", name_of_type(vin));
  for (const nb::handle h : vin) {
    KOINE_REQUIRE(nb::isinstance<Row>(h), Type,
                  "UOpGraph.add: vin holds rows that add() gave, not '{}'", name_of_type(h));
    out.push_back(nb::cast<RowRef>(h));
  }
  return out;
}

void bind_rows(nb::module_& m) {
  nb::class_<Row>(m, "UOp", "A row of a UOpGraph, which keeps it.")
      .def_ro("uop", &Row::uop)
      .def_prop_ro("dtype",
                   [](const Row& r) {
                     return r.dtype == DType::Void ? std::nullopt : std::optional(r.dtype);
                   })
      .def_prop_ro(
          "vin", [](const Row& r) { return r.vin; }, nb::rv_policy::reference_internal)
      .def_prop_ro("arg", &arg_shown)
      .def("__repr__", [](nb::handle self) {
        return nb::str("UOp({}, {}, {})")
            .format(nb::str(self.attr("uop")), self.attr("dtype"), self.attr("arg"));
      });
  nb::class_<UOpGraph>(
      m, "UOpGraph", "The rows of one kernel, in the order in which they run; `print` lists them.")
      .def(nb::init<>())
      .def(
          "add",
          [](UOpGraph& g, UOps uop, nb::handle dtype, nb::handle vin, nb::handle arg, bool cachable,
             std::optional<size_t> insert_before, bool simplify) {
            Fields fields;
            if (!dtype.is_none()) fields.dtype = as_dtype(dtype, "UOp");
            fields.vin = rows_given(vin);
            fields.arg = arg_given(arg, fields.dtype);
            fields.cachable = cachable;
            fields.insert_before = insert_before;
            fields.simplify = simplify;
            return g.add(uop, fields);
          },
          "uop"_a, "dtype"_a = nb::none(), "vin"_a = nb::tuple(), "arg"_a = nb::none(),
          "cachable"_a = true, "insert_before"_a = nb::none(), "simplify"_a = true,
          nb::rv_policy::reference_internal,
          "A new row, or an earlier one of the same value. ValueError, quoting the guide, where "
          "dtype, vin\nor arg are not what the op takes.")
      .def_prop_ro(
          "uops",
          [](const UOpGraph& g) { return std::vector<RowRef>(g.rows().begin(), g.rows().end()); },
          nb::rv_policy::reference_internal, "Its rows.")
      .def(
          "vars",
          [](const UOpGraph& g) {
            std::vector<RowRef> out;
            for (const RowRef r : g.rows())
              if (r->uop == UOps::DEFINE_VAR) out.push_back(r);
            return out;
          },
          nb::rv_policy::reference_internal, "Its DEFINE_VARs.")
      .def(
          "uoptimize", [](const UOpGraph&) {}, "Nothing: rules run at every later stage.")
      .def(
          "print", [](nb::handle self) { nb::print(self, nb::str("")); }, "Prints the list.")
      .def(
          "index", [](const UOpGraph& g, RowRef row) { return g.index(row); }, "row"_a,
          "The place of a row.")
      .def("__len__", [](const UOpGraph& g) { return g.rows().size(); })
      .def("__str__", &UOpGraph::text);
}

}  // namespace

void bind_compat(nb::module_& m) {
  nb::module_ own = m.def_submodule("compat", "The compiled part of koine.compat.");
  nb::enum_<UOps> uops(own, "UOps", "What a row is.");
  for (int k = 0; k < uops_count; ++k)
    uops.value(contract_of(static_cast<UOps>(k)).name.data(), static_cast<UOps>(k));
  names(nb::enum_<UnaryOps>(own, "UnaryOps", "Operations of an ALU row on one value."),
        {"EXP2", "LOG2", "SIN", "SQRT", "NEG", "RECIP", "TRUNC"});
  names(nb::enum_<BinaryOps>(own, "BinaryOps", "On two; DIV and MOD of integers round down."),
        {"ADD", "SUB", "MUL", "DIV", "MAX", "MOD", "CMPLT", "CMPEQ", "CMPNE", "XOR", "AND", "OR",
         "SHL", "SHR"});
  names(nb::enum_<TernaryOps>(own, "TernaryOps", "On three."), {"MULACC", "WHERE"});
  bind_rows(own);
  own.def("uops_to_cstyle", &uops_to_cstyle, "language"_a, "name"_a, "graph"_a);
  own.def(
      "compile",
      [](const UOpGraph& graph, const std::string& name, const std::string& device) {
        return unlocked(
            [&] { return LoadedProgram{compile(graph, name, device), &device_runtime(device)}; });
      },
      "graph"_a, "name"_a = "kernel", "device"_a = "CPU", "A koine.Program of the rows.");
  own.def(
      "plain_rows",
      [](const Kernel& kernel) {
        const Device device = kernel.device();
        DeviceRuntime& runtime = device_runtime(device ? device.name() : default_device());
        CompileOptions how = compile_options();
        how.noopt = true;
        LoweredKernel plain =
            unlocked([&] { return lower_plainly(kernel.ast, runtime.target(how), how); });
        return nb::make_tuple(plain.name, listing(plain.linear), plain.estimate.operations,
                              plain.estimate.bytes);
      },
      "kernel"_a,
      "The name of a launch's kernel as plain loops or a plain grid, its rows, and estimates.");
  own.def(
      "operation_of",
      [](const UOp& node) -> nb::object {
        const auto operation = operation_of(node);
        return operation ? std::visit([](auto o) { return nb::cast(o); }, *operation) : nb::none();
      },
      "node"_a);
}

}  // namespace koine::python
