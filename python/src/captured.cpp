// Functions that are compiled once: what koine/jit.py is made of.
#include <cstring>
#include <koine/base/error.hpp>
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
    Axes out;
    bool alone = false;
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (numbers[k] == none) continue;
      const auto& [name, axes] = arguments_[numbers[k]];
      const UOp value = tensors[k].uop();
      for (const auto& [given, variable] : axes) {
        const size_t axis = axis_of(given, value, name);
        const UOp size = value.dim(axis);
        alone = alone || !size.is(Op::Const) || const_int(size) < 2;
        if (!size.is(Op::Const)) continue;
        require_fits(size, variable.uop(), name, axis);
        for (const DynamicAxis& known : out)
          require_goes_with(known, tensors, numbers, k, axis, size, variable);
        out.push_back({k, axis, variable});
      }
    }
    if (alone) return {};
    std::erase_if(out, [](const DynamicAxis& d) { return const_int(d.size.uop().src(2)) <= 2; });
    return out;
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

  static void require_fits(const UOp& size, const UOp& variable, const std::string& name,
                           size_t axis) {
    const int64_t low = const_int(variable.src(1)), high = const_int(variable.src(2));
    KOINE_REQUIRE(
        const_int(size) >= low && const_int(size) <= high, Value,
        "jit: argument '{}' has size {} along axis {}, and Variable '{}' is from {} to {}", name,
        const_int(size), axis, variable.as<BufferArg>().name, low, high);
  }

  void require_goes_with(const DynamicAxis& known, const Tensors& tensors,
                         const std::vector<size_t>& numbers, size_t k, size_t axis, const UOp& size,
                         const Variable& variable) const {
    KOINE_REQUIRE(known.argument != k || known.axis != axis, Value,
                  "jit: dynamic names axis {} of argument '{}' twice", axis,
                  arguments_[numbers[k]].first);
    const UOp other = tensors[known.argument].uop().dim(known.axis);
    KOINE_REQUIRE(!(known.size.uop() == variable.uop()) || other == size, Value,
                  "jit: Variable '{}' is {} along axis {} of argument '{}' and {} along axis {} of "
                  "argument '{}'",
                  variable.uop().as<BufferArg>().name, const_int(other), known.axis,
                  arguments_[numbers[known.argument]].first, const_int(size), axis,
                  arguments_[numbers[k]].first);
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
    append(out, value.node()->placement.axis);
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
      .def("serves", &CapturedFunction::serves);
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
  m.def("_is_tracing", &is_tracing);
}

}  // namespace koine::python
