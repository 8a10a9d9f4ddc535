// Transforms of functions of lists of tensors. koine/transforms.py makes them of functions of
// trees.
#include "functions.hpp"

#include <nanobind/stl/variant.h>

namespace koine::python {

transforms::Function function_of(const nb::callable& f) {
  auto* const object = nb::object(f).release().ptr();
  const std::shared_ptr<PyObject> held(object, [](PyObject* o) {
    const nb::gil_scoped_acquire lock;
    Py_DECREF(o);
  });
  return [held](const Tensors& given) {
    const nb::gil_scoped_acquire lock;
    return nb::cast<Tensors>(nb::handle(held.get())(given));
  };
}

transforms::NameOf name_of(const nb::callable& name) {
  return [&name](size_t k) {
    const nb::gil_scoped_acquire lock;
    return nb::cast<std::string>(name(k));
  };
}

namespace {

using Axes = std::vector<std::optional<int64_t>>;

MappedAxes mapped(const std::variant<int64_t, Axes>& axes) {
  if (const auto* one = std::get_if<int64_t>(&axes)) return MappedAxes(static_cast<int>(*one));
  return MappedAxes(std::get<Axes>(axes));
}

void bind_rules(nb::module_& m) {
  m.def("_known_vjp", [](const std::string& name, const nb::callable& rule) {
    return transforms::known_vjp(
        name, rule_of<CallGradient, &CallGradient::gradients>(rule, "custom_vjp"));
  });
  m.def("_known_jvp", [](const std::string& name, const nb::callable& rule) {
    return transforms::known_jvp(name,
                                 rule_of<CallTangent, &CallTangent::tangents>(rule, "custom_jvp"));
  });
  m.def("_let_go_rule", &transforms::let_go);
  m.def("_with_rule", [](const std::string& rule, const nb::callable& f, const Tensors& inputs) {
    return transforms::with_rule(rule, function_of(f), inputs, std::source_location::current());
  });
}

}  // namespace

void bind_transforms(nb::module_& m) {
  // A derivative that is a function.
  nb::class_<transforms::Function>(m, "_Linear")
      .def("__call__",
           [](const transforms::Function& f, const Tensors& given) { return f(given); });
  m.def("_vmap", [](const nb::callable& f, const Tensors& inputs, const Axes& in,
                    const nb::callable& out, const nb::callable& input_name,
                    const nb::callable& result_name) {
    const auto of_results = [&] { return mapped(nb::cast<std::variant<int64_t, Axes>>(out())); };
    return transforms::over_examples(function_of(f), inputs,
                                     {in, of_results, name_of(input_name), name_of(result_name)},
                                     std::source_location::current());
  });
  m.def("_jvp", [](const nb::callable& f, const Tensors& inputs, const Tensors& tangents) {
    return transforms::forward(function_of(f), inputs, tangents, std::source_location::current());
  });
  m.def("_vjp", [](const nb::callable& f, const Tensors& inputs) {
    return transforms::reverse(function_of(f), inputs, std::source_location::current());
  });
  m.def("_linearize", [](const nb::callable& f, const Tensors& inputs) {
    return transforms::linear(function_of(f), inputs, std::source_location::current());
  });
  m.def("_value_and_grad", [](const nb::callable& f, const Tensors& inputs,
                              const std::vector<size_t>& by, const std::string& method) {
    return transforms::value_and_gradients(function_of(f), inputs, by, method,
                                           std::source_location::current());
  });
  m.def("_jacobian", [](const nb::callable& f, const Tensors& inputs, bool forward) {
    return transforms::jacobian(function_of(f), inputs, forward, std::source_location::current());
  });
  nb::class_<Keep>(m, "_Keep")
      .def_static("nothing", &Keep::nothing)
      .def_static("everything", &Keep::everything)
      .def_static("products", &Keep::products)
      .def_static("unbatched_products", &Keep::unbatched_products)
      .def_static("names", &Keep::names)
      .def_static("other_names", &Keep::other_names)
      .def_static("all_but", &Keep::all_but)
      .def("__or__", [](const Keep& a, const Keep& b) { return a | b; });
  m.def("_checkpoint", [](const nb::callable& f, const Tensors& inputs, const Keep& keep) {
    return transforms::computed_again(keep, function_of(f), inputs,
                                      std::source_location::current());
  });
  m.def("_standing_for_number", &Tensor::standing_for_number);
  m.def("_is_number", &Tensor::is_number);
  m.def(
      "_operand",
      [](nb::handle given, const std::string& method) { return as_tensor(given, method.c_str()); },
      "given"_a.none(), "method"_a);
  m.def(
      "save_as",
      [](const std::string& name, const TensorLike& value) {
        return save_as(name, as_tensor(value, "save_as"));
      },
      "name"_a, "value"_a,
      "The value, which checkpoint(f, keep=[name]) keeps.\n\n"
      ">>> wave = koine.checkpoint(lambda x: koine.save_as('power', x.exp()).sin(), "
      "keep=['power'])\n"
      ">>> print(koine.grad(lambda x: wave(x).sum())(koine.Tensor([0.0])).numpy().round(3))\n"
      "[0.54]");
  m.def(
      "stop_gradient",
      [](const TensorLike& x) { return stop_gradient(as_tensor(x, "stop_gradient")); }, "x"_a,
      "The value, a constant to all derivatives.\n\n"
      ">>> koine.grad(lambda x: x * koine.stop_gradient(x))(3.0).item()\n"
      "3.0");
  bind_rules(m);
}

}  // namespace koine::python
