// koine::Error as Python has it (koine/errors.py).
#include <koine/base/error.hpp>
#include <koine/base/interrupt.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

// By ErrorKind, and the one of InternalError. They live as long as the process.
struct Exceptions {
  PyObject *value, *type, *index, *key, *memory, *device, *file, *internal;
};
Exceptions exceptions;

PyObject* exception_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Value:
      return exceptions.value;
    case ErrorKind::Type:
      return exceptions.type;
    case ErrorKind::Index:
      return exceptions.index;
    case ErrorKind::Key:
      return exceptions.key;
    case ErrorKind::Memory:
      return exceptions.memory;
    case ErrorKind::Device:
      return exceptions.device;
    case ErrorKind::File:
      return exceptions.file;
  }
  return exceptions.internal;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    PyErr_SetString(exception_of(e.kind()), e.what());
  } catch (const InternalError& e) {
    PyErr_SetString(exceptions.internal, e.what());
  } catch (const std::bad_cast&) {
    PyErr_SetString(exceptions.type,
                    "an argument is of another kind than this needs, or was made by __new__ alone");
  } catch (const std::bad_alloc&) {
    PyErr_SetString(exceptions.memory, "there is not enough memory for this");
  } catch (const Interrupted&) {  // in what Python computes as a function is described
    if (PyErr_CheckSignals() == 0) PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
}

}  // namespace

void bind_errors(nb::module_&) {
  const nb::module_ errors = nb::module_::import_("koine.errors");
  auto get = [&](const char* name) {
    return errors.attr(name).operator nb::object().release().ptr();
  };
  exceptions = {get("ValueError"),  get("TypeError"),   get("IndexError"), get("KeyError"),
                get("MemoryError"), get("DeviceError"), get("FileError"),  get("InternalError")};
  nb::register_exception_translator(translate);
}

}  // namespace koine::python
