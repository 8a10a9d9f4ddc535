// Functions that are compiled once: what koine/jit.py is made of.
#include <cstring>
#include <koine/base/error.hpp>
#include <koine/engine/engine.hpp>
#include <koine/ir/build.hpp>
#include <koine/ir/text.hpp>
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

using Axes = std::vector<DynamicAxis>;

// Which axes of which arguments of a function have Variables as their sizes.
class DynamicArguments {
 public:
  // What the function calls an argument, and its axes.
  using Argument = std::pair<std::string, std::vector<std::pair<int64_t, Variable>>>;
  static constexpr size_t none = SIZE_MAX;

  // Arguments by name; those that are given by place, and what names the places behind them or
  // other names.
  DynamicArguments(std::vector<Argument> arguments, std::vector<std::string> places,
                   std::string other_places, std::string other_names)
      : arguments_(std::move(arguments)),
        other_places_(number_of(other_places)),
        other_names_(number_of(other_names)) {
    for (const std::string& name : places) places_.push_back(number_of(name));
  }

  // The number of an argument; none: it has no such axes.
  size_t at(size_t place) const { return place < places_.size() ? places_[place] : other_places_; }
  size_t at(std::string_view name) const {
    const size_t known = number_of(name);
    return known == none ? other_names_ : known;
  }

  // Of tensors that belong to arguments of these numbers. None where one of the sizes is 0 or 1, or
  // symbolic: that call wants a program of its own.
  Axes axes_of(const Tensors& tensors, const std::vector<size_t>& numbers) const {
    const auto size_of = [&](const DynamicAxis& d) {
      return tensors[d.argument].uop().dim(d.axis);
    };
    const auto text = [&](const DynamicAxis& d) {
      return fmt::format("axis {} of argument '{}'", d.axis, arguments_[numbers[d.argument]].first);
    };
    Axes all;
    bool alone = false;
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (numbers[k] == none) continue;
      const auto& [name, axes] = arguments_[numbers[k]];
      for (const auto& [axis, variable] : axes) {
        const DynamicAxis own{k, axis_of(axis, tensors[k].uop(), name), variable};
        const UOp size = size_of(own);
        alone = alone || !size.is(Op::Const) || const_int(size) < 2;
        if (!size.is(Op::Const)) continue;
        const auto [low, high] = range_of(variable);
        KOINE_REQUIRE(const_int(size) >= low && const_int(size) <= high, Value,
                      "jit: {} has size {}, and Variable '{}' is from {} to {}", text(own),
                      const_int(size), name_of(variable), low, high);
        for (const DynamicAxis& other : all) {
          KOINE_REQUIRE(other.argument != k || other.axis != own.axis, Value,
                        "jit: dynamic names {} twice", text(own));
          KOINE_REQUIRE(!(other.size.uop() == variable.uop()) || size_of(other) == size, Value,
                        "jit: Variable '{}' is {} along {} and {} along {}", name_of(variable),
                        const_int(size_of(other)), text(other), const_int(size), text(own));
        }
        all.push_back(own);
      }
    }
    if (alone) return {};
    std::erase_if(all, [](const DynamicAxis& d) {
      const auto [low, high] = range_of(d.size);
      return high <= std::max<int64_t>(low, 2);  // one size alone is a constant
    });
    return all;
  }

 private:
  size_t number_of(std::string_view name) const {
    for (size_t k = 0; k < arguments_.size(); ++k)
      if (arguments_[k].first == name) return k;
    return none;
  }

  static size_t axis_of(int64_t axis, const UOp& value, const std::string& name) {
    const auto rank = static_cast<int64_t>(value.rank());
    KOINE_REQUIRE(axis >= -rank && axis < rank, Index,
                  "jit: dynamic names axis {} of argument '{}', which holds a tensor of shape {}",
                  axis, name, shape_text(value));
    return static_cast<size_t>(axis < 0 ? axis + rank : axis);
  }

  static const std::string& name_of(const Variable& v) { return v.uop().as<BufferArg>().name; }
  static std::pair<int64_t, int64_t> range_of(const Variable& v) {
    return {const_int(v.uop().src(1)), const_int(v.uop().src(2))};
  }

  std::vector<Argument> arguments_;
  std::vector<size_t> places_;
  size_t other_places_, other_names_;
};

// What a captured function fits: dtypes, shapes and devices of its arguments, and which of them are
// one value. Surroundings that are no memory are constants of the program: they are told apart by
// what they are. The sizes of dynamic axes are left out.
std::string signature_of(const Tensors& arguments, const Tensors& surroundings, const Axes& axes) {
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
    append(out, value.node()->placement.axes.bits());
    append(out, value.device() ? &value.device().name() : nullptr);
    append(out, value.rank());
    std::vector<int64_t> sizes = value.sizes();
    for (const DynamicAxis& d : axes)
      if (d.argument == k) sizes[d.axis] = -1;
    for (const int64_t n : sizes) append(out, n);
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

  // What holds the tensors that follow (DynamicArguments).
  void begin(size_t argument) { argument_ = argument; }

  std::string bytes;
  Tensors tensors;
  std::vector<size_t> numbers;  // of what holds each of them

 private:
  bool add_tensor(PyObject* object) {
    const auto at = std::find(objects_.begin(), objects_.end(), object);
    bytes += 'T';
    append(bytes, at - objects_.begin());  // whether it was given before
    objects_.push_back(object);
    tensors.push_back(*nb::inst_ptr<Tensor>(object));
    numbers.push_back(argument_);
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
  size_t argument_ = DynamicArguments::none;
  int depth_ = 0;
};

// The arguments of a call, one after the other.
bool add_call(Key& key, const nb::tuple& args, const nb::dict& kwargs,
              const DynamicArguments* dynamic) {
  if (dynamic == nullptr) return key.add(args) && key.add(kwargs);
  append(key.bytes, args.size());
  for (size_t k = 0; k < args.size(); ++k) {
    key.begin(dynamic->at(k));
    if (!key.add(args[k])) return false;
  }
  for (const auto& [name, value] : kwargs) {
    key.begin(dynamic->at(std::string_view(nb::cast<const char*>(name))));
    if (!key.add(name) || !key.add(value)) return false;
  }
  return true;
}

// The key of a call and its tensors, with those around it; nothing where Python has to look.
std::optional<std::pair<nb::bytes, Tensors>> key_of(const nb::tuple& args, const nb::dict& kwargs,
                                                    const Tensors& around,
                                                    const DynamicArguments* dynamic) {
  if (is_tracing()) return {};
  Key key;
  if (!add_call(key, args, kwargs, dynamic)) return {};
  const Axes axes = dynamic != nullptr ? dynamic->axes_of(key.tensors, key.numbers) : Axes();
  const std::string all = key.bytes + signature_of(key.tensors, around, axes);
  key.tensors.insert(key.tensors.end(), around.begin(), around.end());
  return std::pair(nb::bytes(all.data(), all.size()), std::move(key.tensors));
}

}  // namespace

void bind_captured(nb::module_& m) {
  nb::class_<CapturedFunction>(m, "_Captured")
      .def("__init__",
           [](CapturedFunction* self, const nb::callable& f, const Tensors& examples,
              const Tensors& surroundings, const Axes& axes) {
             const transforms::Function function = function_of(f);
             CapturedFunction made =
                 unlocked([&] { return CapturedFunction(function, examples, surroundings, axes); });
             new (self) CapturedFunction(std::move(made));
           })
      .def("__call__",
           [](CapturedFunction& f, const Tensors& arguments) {
             return unlocked([&] { return f(arguments); });
           })
      .def("serves", &CapturedFunction::serves)
      .def("has_state", &CapturedFunction::has_state);
  nb::class_<DynamicAxis>(m, "_DynamicAxis");
  nb::class_<DynamicArguments>(m, "_DynamicArguments")
      .def(nb::init<std::vector<DynamicArguments::Argument>, std::vector<std::string>, std::string,
                    std::string>())
      .def("at", [](const DynamicArguments& d, size_t place) { return d.at(place); })
      .def("at", [](const DynamicArguments& d, const std::string& name) { return d.at(name); })
      .def("axes_of", &DynamicArguments::axes_of);
  m.def("_signature", [](const Tensors& arguments, const Tensors& around, const Axes& axes) {
    const std::string all = signature_of(arguments, around, axes);
    return nb::bytes(all.data(), all.size());
  });
  m.def("_key", &key_of, "args"_a, "kwargs"_a, "around"_a, "dynamic"_a.none());
  m.def("_state_of", [](const Tensors& arguments) {
    const std::string state = CapturedFunction::state_of(arguments);
    return nb::bytes(state.data(), state.size());
  });
  m.def("_reads_borrowed", [](const Tensor& t) { return reads_borrowed(t.uop()); });
  m.def("_is_tracing", &is_tracing);
}

}  // namespace koine::python
