// Functions that are compiled once: what koine/jit.py is made of.
#include <cstring>
#include <koine/transform/function.hpp>

#include "functions.hpp"

namespace koine::python {
namespace {

template <class T>
void append(std::string& out, const T& value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// What a captured function fits: dtypes, shapes and devices of its arguments, and which of them are
// one value. Surroundings that are no memory are constants of the program: they are told apart by
// what they are.
std::string signature_of(const Tensors& arguments, const Tensors& surroundings) {
  constexpr OpMask memory =
      mask_of(Op::Buffer) | mask_of(Op::Binary) | mask_of(Op::Param) | mask_of(Op::Detach);
  std::string out;
  std::vector<UOp> values;
  for (size_t k = 0; k < arguments.size() + surroundings.size(); ++k) {
    UOp value =
        k < arguments.size() ? arguments[k].uop() : surroundings[k - arguments.size()].uop();
    if (k >= arguments.size())
      append(out, (value.node()->ops_below & memory) == 0 ? value.id() : uint64_t{0});
    append(out, std::find(values.begin(), values.end(), value) - values.begin());
    append(out, value.dtype());
    append(out, value.node()->placement.axis);
    append(out, value.device() ? &value.device().name() : nullptr);
    append(out, value.rank());
    for (const int64_t n : value.sizes()) append(out, n);
    values.push_back(std::move(value));
  }
  return out;
}

// Arguments as bytes: all that tells one kind of call from another. Tensors are listed on the way.
class Key {
 public:
  // False where it holds what this does not know.
  bool add(nb::handle given) {
    PyObject* const object = given.ptr();
    if (nb::isinstance<Tensor>(given)) return add_tensor(object);
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) return add_sequence(object);
    if (PyDict_CheckExact(object)) return add_dict(object);
    if (given.is_none()) {
      bytes += 'N';
      return true;
    }
    return add_constant(object);
  }

  std::string bytes;
  Tensors tensors;

 private:
  bool add_tensor(PyObject* object) {
    const auto at = std::find(objects_.begin(), objects_.end(), object);
    bytes += 'T';
    append(bytes, at - objects_.begin());  // whether it was given before
    objects_.push_back(object);
    tensors.push_back(*nb::inst_ptr<Tensor>(object));
    return true;
  }

  bool add_sequence(PyObject* object) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    bytes += PyTuple_CheckExact(object) ? '(' : '[';
    append(bytes, size);
    if (++depth_ > most_deep) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!add(PySequence_Fast_GET_ITEM(object, i))) return false;
    --depth_;
    return true;
  }

  bool add_dict(PyObject* object) {
    bytes += '{';
    append(bytes, PyDict_Size(object));
    if (++depth_ > most_deep) return false;
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &name, &value) != 0;)
      if (!PyUnicode_CheckExact(name) || !add_text(name) || !add(value)) return false;
    --depth_;
    return true;
  }

  bool add_text(PyObject* text) {
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) {
      PyErr_Clear();  // a lone surrogate
      return false;
    }
    bytes += 's';
    append(bytes, size);
    bytes.append(data, static_cast<size_t>(size));
    return true;
  }

  bool add_constant(PyObject* object) {
    if (PyBool_Check(object)) {
      bytes += object == Py_True ? 'y' : 'n';
      return true;
    }
    if (PyUnicode_CheckExact(object)) return add_text(object);
    if (PyFloat_CheckExact(object)) {
      bytes += 'f';
      append(bytes, PyFloat_AS_DOUBLE(object));
      return true;
    }
    if (!PyLong_CheckExact(object)) return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    bytes += 'i';
    append(bytes, value);
    return overflow == 0;
  }

  static constexpr int most_deep = 100;
  std::vector<PyObject*> objects_;
  int depth_ = 0;
};

// The key of a call and its tensors, with those around it; nothing where Python has to look.
std::optional<std::pair<nb::bytes, Tensors>> key_of(const nb::tuple& args, const nb::dict& kwargs,
                                                    const Tensors& around) {
  if (is_tracing()) return {};
  Key key;
  if (!key.add(args) || !key.add(kwargs)) return {};
  const std::string all = key.bytes + signature_of(key.tensors, around);
  key.tensors.insert(key.tensors.end(), around.begin(), around.end());
  return std::pair(nb::bytes(all.data(), all.size()), std::move(key.tensors));
}

}  // namespace

void bind_captured(nb::module_& m) {
  nb::class_<CapturedFunction>(m, "_Captured")
      .def("__init__",
           [](CapturedFunction* self, const nb::callable& f, const Tensors& examples,
              const Tensors& surroundings) {
             const transforms::Function function = function_of(f);
             CapturedFunction made =
                 unlocked([&] { return CapturedFunction(function, examples, surroundings); });
             new (self) CapturedFunction(std::move(made));
           })
      .def("__call__", [](CapturedFunction& f, const Tensors& arguments) {
        return unlocked([&] { return f(arguments); });
      });
  m.def("_signature", [](const Tensors& arguments, const Tensors& around) {
    const std::string all = signature_of(arguments, around);
    return nb::bytes(all.data(), all.size());
  });
  m.def("_key", &key_of);
  m.def("_is_tracing", &is_tracing);
}

}  // namespace koine::python
