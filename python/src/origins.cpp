// Which line of Python a node comes from: asked for each node that is made while the lock of the
// interpreter is held.
#include <array>
#include <utility>

#include "bind.hpp"

namespace koine::python {
namespace {

// Places in code that made nodes lately. What is in it is kept alive, so an address is one place.
struct Place {
  PyCodeObject* code = nullptr;
  int instruction = -1;
  Origin origin = 0;
  bool is_ours = false;  // of this package: whoever called it is asked for
};
constexpr size_t most_places = 1024;

// The folder of the package, with a slash behind it; without, no line is named.
std::string& own_folder() {
  static auto& folder = *new std::string;
  return folder;
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

Place place_of(PyFrameObject* frame) {
  static auto& places = *new std::array<Place, most_places>;
  PyCodeObject* code = PyFrame_GetCode(frame);
  const int instruction = instruction_of(frame);
  const size_t key =
      (reinterpret_cast<uintptr_t>(code) >> 5) * 31 + static_cast<size_t>(instruction);
  Place& place = places[key % most_places];
  if (place.code == code && place.instruction == instruction) {
    Py_DECREF(code);
    return place;
  }
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* function = PyUnicode_AsUTF8(code->co_name);
  if (file == nullptr || function == nullptr) PyErr_Clear();
  const std::string_view path = file == nullptr ? "" : file;
  const bool ours = path.starts_with(own_folder());
  const std::string_view name = function == nullptr || *function == '<' ? "" : function;
  const Origin origin =
      ours || path.empty() ? 0 : origin_at(path, PyFrame_GetLineNumber(frame), name);
  const Place made{code, instruction, origin, ours};
  PyCodeObject* old = std::exchange(place, made).code;
  Py_XDECREF(old);  // which may run code that makes nodes
  return made;
}

Origin line_of_caller() {
  if (own_folder().empty() || !Py_IsInitialized() || !PyGILState_Check()) return 0;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  Origin origin = 0;
  while (frame != nullptr) {
    const Place place = place_of(frame);
    PyFrameObject* caller = place.is_ours ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    origin = place.origin;
    frame = caller;
  }
  return origin;
}

}  // namespace

void bind_origins(nb::module_& m) {
  m.def(
      "_name_lines",
      [](const std::string& folder) {
        own_folder() = folder;
        set_origin_hook(line_of_caller);
      },
      "folder"_a,
      "From now on nodes know the line of Python that made them; not of code in `folder`.");
  m.def("_finds_nan", [] { return options().nan; });
}

}  // namespace koine::python
