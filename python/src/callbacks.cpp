// Functions and kernels of the user's that a graph calls. koine/callbacks.py makes the functions of
// those of trees of NumPy arrays.
#include "functions.hpp"

namespace koine::python {
namespace {

// The memory of a result or an argument as a NumPy array, which lives no longer than the call.
template <class Byte>
nb::object array_over(const BasicHostArray<Byte>& memory) {
  const auto bytes = memory.numel() * item_size(memory.dtype);
  static char nothing = 0;
  char* const data =
      bytes == 0 ? &nothing : reinterpret_cast<char*>(const_cast<std::byte*>(memory.data));
  const nb::object view = nb::steal(
      PyMemoryView_FromMemory(data, bytes, std::is_const_v<Byte> ? PyBUF_READ : PyBUF_WRITE));
  if (!view.is_valid()) throw nb::python_error();
  return nb::module_::import_("numpy").attr("ndarray")(nb::tuple(nb::cast(memory.sizes)),
                                                       nb::cast(memory.dtype).attr("numpy"), view);
}
template <class Byte>
nb::list arrays_over(std::span<const BasicHostArray<Byte>> all) {
  nb::list out;
  for (const auto& memory : all) out.append(array_over(memory));
  return out;
}

void register_python_function(const std::string& name, const nb::callable& f) {
  register_function(name, [object = shared(f)](std::span<const HostResult> results,
                                               std::span<const HostArgument> arguments) {
    const nb::gil_scoped_acquire lock;
    try {
      const nb::handle known(object.get());
      known(arrays_over(arguments), arrays_over(results));
    } catch (nb::python_error& e) {
      const nb::object described = nb::module_::import_("koine.callbacks").attr("_described");
      raise(ErrorKind::Value, "{}", nb::str(described(e.value())).c_str());
    }
  });
}

using Wanted = std::vector<std::pair<ShapeLike, DTypeLike>>;
std::vector<CallResult> results_of(const Wanted& wanted, const char* method) {
  std::vector<CallResult> out;
  for (const auto& [shape, dtype] : wanted)
    out.push_back({as_shape(shape, method), as_dtype(dtype, method)});
  return out;
}

}  // namespace

void bind_callbacks(nb::module_& m) {
  m.def("_register_function", &register_python_function);
  m.def("_register_rules", [](const std::string& name, const nb::callable& gradient,
                              const nb::callable& over_examples) {
    keep_while_used(name);
    register_gradient(name, rule_of<CallGradient, &CallGradient::gradients>(gradient, "gradient"));
    register_vmap(name, [object = shared(over_examples)](const CallForExamples& call) {
      const nb::gil_scoped_acquire lock;
      const nb::object examples = tuple_of({call.examples})[0];
      return nb::cast<Tensors>(nb::handle(object.get())(call.arguments, call.mapped, examples));
    });
  });
  m.def("_let_go", &let_go);
  m.def("_call_function",
        [](const std::string& name, const Wanted& results, const Tensors& arguments) {
          return call_function(name, results_of(results, "pure_callback"), arguments);
        });
  m.def("_custom_kernel", [](const std::string& name, const Wanted& results,
                             const Tensors& arguments, const nb::callable& kernel) {
    return custom_kernel(name, results_of(results, "custom_kernel"), arguments,
                         [&](const std::vector<UOp>& params) {
                           return nb::cast<UOp>(kernel(*nb::tuple(nb::cast(params))));
                         });
  });
}

}  // namespace koine::python
