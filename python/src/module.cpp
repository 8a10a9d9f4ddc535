// The module koine._koine: what the package is made of.
#include "bind.hpp"

namespace koine::python {
extern PyType_Slot tensor_slots[];
}

NB_MODULE(_koine, m) {
  using namespace koine::python;
  m.doc() = "The compiled part of koine.";
  nb::set_leak_warnings(false);  // functions with rules of their own live as long as the process
  bind_ends_and_forks(m);
  bind_errors(m);
  bind_dtypes(m);
  bind_sizes(m);
  bind_devices(m);
  bind_uop(m);
  bind_graph(m);
  TensorClass tensor(
      m, "Tensor", nb::type_slots(tensor_slots), nb::is_weak_referenceable(),
      "A lazy n-dimensional array. Nothing runs before somebody looks at a value. dtypes promote "
      "and\n"
      "floats behave as NumPy's; method names are tinygrad's. Every misuse raises a "
      "koine.Error.\n\n"
      ">>> x = koine.Tensor([[1.0, 2.0], [3.0, 4.0]])\n"
      ">>> (x @ x.T + 1).tolist()\n"
      "[[6.0, 12.0], [12.0, 26.0]]");
  bind_tensor(m, tensor);
  bind_creation(tensor);
  bind_operators(tensor);
  bind_methods(tensor);
  bind_indexing(tensor);
  bind_interchange(m, tensor);
  bind_nn(m);
  bind_random(m);
  bind_files(m);
  bind_transforms(m);
  bind_loops(m);
  bind_callbacks(m);
  bind_captured(m);
  bind_collectives(m);
  bind_origins(m);
  bind_compat(m);
  explain_calls(m);
}
