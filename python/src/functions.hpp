#pragma once
#include <koine/tensor/transforms.hpp>

#include "bind.hpp"

namespace koine::python {

using transforms::Tensors;

/// A function of Python on lists of tensors; to be called from any thread.
transforms::Function function_of(const nb::callable& f);

/// What gives the name of the k-th tensor of a list, for messages; `name` lives longer.
transforms::NameOf name_of(const nb::callable& name);

/// A reference that any thread may let go, with the lock of the interpreter or without.
inline std::shared_ptr<PyObject> shared(const nb::callable& f) {
  return {nb::object(f).release().ptr(), [](PyObject* object) { let_go_later(object); }};
}

/// A rule of Python's: of lists of arguments, results and what comes with them, a tensor or None
/// each.
template <class Call, Tensors Call::* with>
std::function<Tensors(const Call&)> rule_of(const nb::callable& rule, const char* method) {
  return [object = shared(rule), method](const Call& call) {
    const nb::gil_scoped_acquire lock;
    Tensors out;
    const nb::object made = nb::handle(object.get())(call.arguments, call.results, call.*with);
    for (const nb::handle t : nb::borrow<nb::sequence>(made))
      out.push_back(t.is_none() ? Tensor() : as_tensor(t, method));
    return out;
  };
}

}  // namespace koine::python
