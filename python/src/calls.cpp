// Calls whose arguments do not fit, in the user's words: nanobind says so in its own.
#include <koine/base/error.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

// What nanobind calls functions by: a few, by how many parameters they have and of which kind.
constexpr size_t most_callers = 8;
vectorcallfunc callers[most_callers];
size_t caller_count = 0;

// The error that is set, as koine.errors has it, where it is nanobind's.
void explain() {
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return;
  nb::python_error error;
  constexpr const char* mark = "(): incompatible function arguments.";
  const std::string text = nb::str(error.value()).c_str();
  if (text.find(mark) == std::string::npos) return error.restore();
  try {
    const nb::module_ errors = nb::module_::import_("koine.errors");
    const nb::object message = errors.attr("_misfit")(text);
    PyErr_SetObject(errors.attr("TypeError").ptr(), message.ptr());
  } catch (const nb::python_error&) {  // below is C
    error.restore();
  }
}

template <size_t number>
PyObject* call(PyObject* f, PyObject* const* args, size_t count, PyObject* names) {
  PyObject* const out = callers[number](f, args, count, names);
  if (out == nullptr) [[unlikely]]
    explain();
  return out;
}
template <size_t... numbers>
vectorcallfunc caller(size_t number, std::index_sequence<numbers...>) {
  constexpr vectorcallfunc all[] = {call<numbers>...};
  return all[number];
}

void explain_calls_of(nb::handle f) {
  const Py_ssize_t offset = Py_TYPE(f.ptr())->tp_vectorcall_offset;
  auto& own = *reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(f.ptr()) + offset);
  size_t number = 0;
  while (number < caller_count && callers[number] != own) ++number;
  KOINE_INVARIANT(number < most_callers, "nanobind calls functions in more than {} ways",
                  most_callers);
  callers[number] = own;
  caller_count = std::max(caller_count, number + 1);
  own = caller(number, std::make_index_sequence<most_callers>());
}

}  // namespace

void explain_calls(nb::handle holder) {
  for (const nb::handle value : nb::list(nb::borrow(holder.attr("__dict__")).attr("values")())) {
    const std::string type = name_of_type(value);
    if (type == "nb_func" || type == "nb_method") explain_calls_of(value);
    if (type == "property")
      for (const char* part : {"fget", "fset"})
        if (const nb::object f = value.attr(part); !f.is_none()) explain_calls_of(f);
    const bool is_own = nb::hasattr(value, "__module__") && PyType_Check(value.ptr()) != 0;
    if (PyModule_Check(value.ptr()) != 0 || (is_own && nb::type_check(value))) explain_calls(value);
  }
}

}  // namespace koine::python
