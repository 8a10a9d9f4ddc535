// The graph behind a tensor.
#include <koine/ir/text.hpp>

#include "bind.hpp"

namespace koine::python {

void bind_graph(nb::module_& m) {
  nb::class_<UOp>(m, "UOp", "A node of the graph: immutable, and equal nodes are one.")
      .def("__str__", [](const UOp& u) { return to_text(u); })
      .def("__repr__", [](const UOp& u) { return "<UOp " + std::string(op_name(u.op())) + ">"; })
      .def(
          "__eq__",
          [](const UOp& a, nb::handle b) {
            return nb::isinstance<UOp>(b) && a == nb::cast<UOp>(b);
          },
          "other"_a.none())
      .def("__hash__", [](const UOp& u) { return u.hash(); })
      .def_prop_ro(
          "op", [](const UOp& u) { return std::string(op_name(u.op())); }, "The name of its op.")
      .def_prop_ro(
          "src", [](const UOp& u) { return std::vector<UOp>(u.src().begin(), u.src().end()); },
          "What it is computed from.")
      .def_prop_ro(
          "origin", [](const UOp& u) { return origin_text(u); },
          "The line that made it, 'model.py:12 in forward', or 'one of' those; empty where not "
          "known.");
  m.def(
      "schedule",
      [](const TensorsLike& given) {
        std::vector<UOp> values;
        for (const Tensor& t : as_tensors(given, "schedule")) values.push_back(t.uop());
        return unlocked([&] { return to_text(host_program(values)); });
      },
      "tensors"_a, "The kernels that would run for these tensors, as text; nothing runs.");
}

}  // namespace koine::python
