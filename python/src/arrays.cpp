// Tensors from what Python has: numbers, nested lists, arrays of others.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <koine/base/error.hpp>
#include <koine/ir/build.hpp>
#include <koine/ir/text.hpp>
#include <koine/runtime/device.hpp>
#include <koine/transform/function.hpp>

#include "capsules.hpp"
#include "convert.hpp"
#include "dlpack_dtype.hpp"

namespace koine::python {
namespace {

using Array = nb::ndarray<nb::ro>;

[[noreturn]] void raise_overflow(const std::string& message) {
  const nb::object type = nb::module_::import_("koine.errors").attr("OverflowError");
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

// --- numbers -------------------------------------------------------------------------------------

bool is_exact_number(nb::handle given) {
  return PyBool_Check(given.ptr()) || PyLong_CheckExact(given.ptr()) ||
         PyFloat_CheckExact(given.ptr());
}

// A Python integer: negative ones as int64, others as uint64.
struct Whole64 {
  bool negative;
  uint64_t bits;
};
Whole64 whole_of(nb::handle number) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0) return {value < 0, static_cast<uint64_t>(value)};
  if (overflow > 0) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() == nullptr) return {false, large};
    PyErr_Clear();
  }
  raise_overflow(std::string("the integer ") + nb::repr(number).c_str() +
                 " does not fit into 64 bits: make it a float");
}

// It takes the dtype of what it meets, as a literal of C++ does.
Tensor tensor_of_number(nb::handle given) {
  if (PyBool_Check(given.ptr())) return {given.is(Py_True)};
  if (PyFloat_Check(given.ptr())) return {PyFloat_AS_DOUBLE(given.ptr())};
  const Whole64 whole = whole_of(given);
  const auto value = static_cast<int64_t>(whole.bits);
  if (!whole.negative && whole.bits > static_cast<uint64_t>(INT64_MAX)) return {whole.bits};
  if (value >= INT32_MIN && value <= INT32_MAX) return {static_cast<int32_t>(value)};
  return {value};
}

// --- nested lists --------------------------------------------------------------------------------

class NestedList {
 public:
  NestedList(nb::handle given, const char* method) : method_(method) { collect(given, 0); }

  // Whether it holds arrays or tensors: then it is a stack of its parts.
  bool holds_arrays() const { return holds_arrays_; }

  Tensor tensor(std::optional<DType> asked, const std::string& device) const {
    const DType dtype = asked.value_or(own_dtype());
    const auto item = static_cast<size_t>(item_size(dtype));
    std::vector<std::byte> bytes(leaves_.size() * item);
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const Bits bits = bits_of(leaves_[i], dtype);
      std::memcpy(bytes.data() + i * item, &bits, item);
    }
    const OutsideOfTraces constant;  // of a function that is traced
    return Tensor::from_bytes(bytes.data(), shape_, dtype, device);
  }

 private:
  static constexpr size_t most_axes = 64;

  void collect(nb::handle given, size_t depth) {
    if (!is_list(given)) {
      add_leaf(given, depth);
      return;
    }
    KOINE_REQUIRE(depth < most_axes, Value, "{}: lists are nested more than {} deep", method_,
                  most_axes);
    const size_t length = nb::len(given);
    if (shape_.size() == depth && !closed_)
      shape_.push_back(static_cast<int64_t>(length));
    else
      require_even(depth < shape_.size() && shape_[depth] == static_cast<int64_t>(length), depth,
                   length);
    for (const nb::handle part : nb::borrow<nb::sequence>(given)) {
      collect(part, depth + 1);
      if (holds_arrays_) return;
    }
    if (length == 0) closed_ = true;
  }

  void require_even(bool fits, size_t depth, size_t length) const {
    KOINE_REQUIRE(fits, Value,
                  "{}: the lists along axis {} have different lengths ({} where there were {})",
                  method_, depth, length, depth < shape_.size() ? shape_[depth].text() : "numbers");
  }

  void add_leaf(nb::handle leaf, size_t depth) {
    const bool number =
        PyBool_Check(leaf.ptr()) || PyLong_Check(leaf.ptr()) || PyFloat_CheckExact(leaf.ptr());
    if (!number) {
      const bool array = nb::isinstance<Tensor>(leaf) || nb::hasattr(leaf, "__array__") ||
                         nb::hasattr(leaf, "__dlpack__");
      KOINE_REQUIRE(array, Type, "{}: an element is a '{}', neither a number nor an array", method_,
                    name_of_type(leaf));
      holds_arrays_ = true;
      return;
    }
    KOINE_REQUIRE(depth == shape_.size(), Value,
                  "{}: a number stands where axis {} has lists of length {}", method_, depth,
                  shape_[depth]);
    closed_ = true;
    any_float_ = any_float_ || PyFloat_Check(leaf.ptr());
    all_bool_ = all_bool_ && PyBool_Check(leaf.ptr());
    if (PyLong_Check(leaf.ptr())) note(whole_of(leaf));
    leaves_.push_back(leaf);
  }

  void note(Whole64 whole) {
    const auto value = static_cast<int64_t>(whole.bits);
    unsigned64_ = unsigned64_ || (!whole.negative && value < 0);
    negative_ = negative_ || whole.negative;
    wide_ = wide_ || value > INT32_MAX || value < INT32_MIN;
  }

  DType own_dtype() const {
    if (leaves_.empty() || any_float_) return DType::Float32;
    if (all_bool_) return DType::Bool;
    if (unsigned64_ && negative_)
      raise_overflow(fmt::format("{}: no integer dtype holds all of these: give a dtype", method_));
    return unsigned64_ ? DType::UInt64 : wide_ ? DType::Int64 : DType::Int32;
  }

  Bits bits_of(nb::handle leaf, DType dtype) const {
    if (PyFloat_Check(leaf.ptr())) return bits_of(PyFloat_AS_DOUBLE(leaf.ptr()), dtype);
    const Whole64 whole = whole_of(leaf);
    if (dtype == DType::Bool) return whole.bits != 0 ? 1 : 0;
    if (is_float(dtype))
      return double_to_bits(dtype, whole.negative
                                       ? static_cast<double>(static_cast<int64_t>(whole.bits))
                                       : static_cast<double>(whole.bits));
    const __int128 value = whole.negative ? static_cast<__int128>(static_cast<int64_t>(whole.bits))
                                          : static_cast<__int128>(whole.bits);
    const IntegerRange range = integer_range(dtype);
    if (value < range.low || value > range.high)
      raise_overflow(
          fmt::format("{}: {} is not in {}", method_, nb::repr(leaf).c_str(), dtype_name(dtype)));
    return dtype == DType::UInt64 ? whole.bits
                                  : int_to_bits(dtype, static_cast<int64_t>(whole.bits));
  }
  Bits bits_of(double value, DType dtype) const {
    if (is_float(dtype)) return double_to_bits(dtype, value);
    if (dtype == DType::Bool) return value != 0 ? 1 : 0;
    const IntegerRange range = integer_range(dtype);
    const double whole = std::trunc(value);
    const bool fits =
        whole >= static_cast<double>(range.low) && whole < static_cast<double>(range.high) + 1;
    KOINE_REQUIRE(fits, Value, "{}: {} has no whole part in {}", method_, value, dtype_name(dtype));
    return dtype == DType::UInt64 ? static_cast<uint64_t>(whole)
                                  : int_to_bits(dtype, static_cast<int64_t>(whole));
  }

  const char* method_;
  Shape shape_;
  std::vector<nb::handle> leaves_;
  bool closed_ = false;  // the number of axes is known
  bool holds_arrays_ = false, any_float_ = false, all_bool_ = true;
  bool unsigned64_ = false, negative_ = false, wide_ = false;
};

Tensor tensor_of_list(nb::handle given, const char* method, std::optional<DType> dtype,
                      const std::string& device) {
  const NestedList list(given, method);
  if (!list.holds_arrays()) return list.tensor(dtype, device);
  std::vector<Tensor> parts;
  for (const nb::handle part : nb::borrow<nb::sequence>(given)) {
    const Tensor t =
        is_list(part) ? tensor_of_list(part, method, dtype, device) : as_tensor(part, method);
    parts.push_back(dtype && t.dtype() != *dtype ? t.cast(*dtype) : t);
    KOINE_REQUIRE(parts.back().shape() == parts[0].shape(), Value,
                  "{}: element 0 of a list has shape {}, and element {} shape {}", method,
                  shape_text(parts[0].uop()), parts.size() - 1, shape_text(parts.back().uop()));
  }
  return Tensor::stack(parts);
}

// --- arrays --------------------------------------------------------------------------------------

// What the buffer protocol has no name for, and its storage has.
std::optional<DType> narrow_float(nb::handle given) {
  if (!nb::hasattr(given, "dtype")) return {};
  const nb::object dtype = given.attr("dtype");
  if (!nb::hasattr(dtype, "name") || !nb::hasattr(given, "view")) return {};
  const std::string name = nb::cast<std::string>(nb::str(dtype.attr("name")));
  if (name == "bfloat16") return DType::BFloat16;
  if (name == "float8_e4m3fn") return DType::Float8E4M3;
  if (name == "float8_e5m2") return DType::Float8E5M2;
  return {};
}

std::string dtype_text(nb::handle given) {
  if (!nb::hasattr(given, "dtype")) return name_of_type(given);
  return nb::cast<std::string>(nb::str(nb::borrow(given.attr("dtype"))));
}

// Copies elements that lie apart into rows.
void gather(const Array& array, size_t axis, const std::byte* from, size_t item, std::byte*& to) {
  if (axis == array.ndim()) {
    std::memcpy(to, from, item);
    to += item;
    return;
  }
  const int64_t step = array.stride(axis) * static_cast<int64_t>(item);
  if (axis + 1 == array.ndim() && step == static_cast<int64_t>(item)) {
    std::memcpy(to, from, item * array.shape(axis));
    to += item * array.shape(axis);
    return;
  }
  for (size_t i = 0; i < array.shape(axis); ++i)
    gather(array, axis + 1, from + static_cast<int64_t>(i) * step, item, to);
}

bool is_row_major(const Array& array) {
  int64_t step = 1;
  for (size_t axis = array.ndim(); axis-- > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != step) return false;
    step *= static_cast<int64_t>(array.shape(axis));
  }
  return true;
}

// What lends memory, let go in this order.
struct Lender {
  nb::object source;
  Array array;
};
// Lives as long as somebody reads the memory; it is let go with the interpreter's lock.
std::shared_ptr<const void> owner_of(const Array& array, nb::handle source) {
  auto* const held = new Lender{nb::borrow(source), array};
  const nb::capsule capsule(held, [](void* p) noexcept { delete static_cast<Lender*>(p); });
  PyObject* const object = nb::object(capsule).release().ptr();
  return {held, [object](const void*) { let_go_later(object); }};
}

Tensor tensor_of(const Array& array, nb::handle source, DType dtype, const std::string& device,
                 Borrow borrow) {
  KOINE_REQUIRE(array.device_type() == nb::device::cpu::value, Device,
                "Tensor: the array lies on a device of DLPack type {}: copy it to the CPU first",
                array.device_type());
  Shape shape;
  const auto item = static_cast<size_t>(item_size(dtype));
  size_t held = item;
  bool fits = true, empty = false;
  for (size_t axis = 0; axis < array.ndim(); ++axis) {
    shape.push_back(static_cast<int64_t>(array.shape(axis)));
    fits = !__builtin_mul_overflow(held, array.shape(axis), &held) && held <= INT64_MAX && fits;
    empty = empty || array.shape(axis) == 0;
  }
  KOINE_REQUIRE(empty || (fits && array.data() != nullptr), Value,
                "Tensor: an array of {} of shape ({}) without the memory for it", dtype_name(dtype),
                fmt::join(shape, ", "));
  const auto* const data = static_cast<const std::byte*>(array.data());
  const bool aligned = reinterpret_cast<uintptr_t>(data) % item == 0;
  const std::string place = device.empty() ? default_device() : device;
  const bool rows = is_row_major(array);
  let_go_now();
  if (borrow == Borrow::Operand && array.ndim() == 0) {
    Bits bits = 0;
    std::memcpy(&bits, data, item);
    return Tensor(constant_bits(dtype, bits));
  }
  const OutsideOfTraces constant;  // of a function that is traced
  const bool may_borrow = borrow == Borrow::IfPossible || borrow == Borrow::Always;
  if (may_borrow && rows && aligned && place == "CPU" && array.size() > 0)
    return Tensor::borrow(data, shape, dtype, owner_of(array, source));
  KOINE_REQUIRE(
      borrow != Borrow::Always || array.size() == 0, Value,
      "Tensor: copy=False, and memory can be borrowed only where it is aligned, row-major "
      "and stays on CPU: give copy=None");
  if (rows) return Tensor::from_bytes(data, shape, dtype, device);
  std::vector<std::byte> bytes(array.size() * item);
  std::byte* to = bytes.data();
  if (!bytes.empty()) gather(array, 0, data, item, to);
  return Tensor::from_bytes(bytes.data(), shape, dtype, device);
}

}  // namespace

std::optional<Tensor> tensor_of_array(nb::handle given, const std::string& device, Borrow borrow) {
  if (PyType_Check(given.ptr()) != 0) return {};  // it has what its objects have
  const bool buffer = PyObject_CheckBuffer(given.ptr()) != 0;
  const bool capsule = PyCapsule_CheckExact(given.ptr());
  const bool dlpack = capsule || nb::hasattr(given, "__dlpack__");
  if (!buffer && !dlpack && !nb::hasattr(given, "__array__")) return {};
  nb::object source = nb::borrow(given);
  // NumPy's scalars are arrays without axes; others give arrays when they are asked.
  if (nb::hasattr(given, "__array__") && !nb::hasattr(given, "__array_function__") && !dlpack)
    source = given.attr("__array__")();
  KOINE_REQUIRE(!nb::hasattr(source, "filled") || !nb::hasattr(source, "mask"), Type,
                "Tensor: a masked array has elements without a value: give its filled()");
  // A memoryview knows strides, also of what gives none with its memory, as the arrays of ctypes
  // do.
  const bool view = buffer && !dlpack && !nb::hasattr(source, "__array__");
  if (view && !PyMemoryView_Check(source.ptr()))
    source = nb::steal(PyMemoryView_FromObject(source.ptr()));
  const std::optional<DType> narrow = narrow_float(source);
  if (narrow) source = source.attr("view")(*narrow == DType::BFloat16 ? "uint16" : "uint8");
  nb::object memory = source;
  if (capsule || nb::hasattr(source, "__dlpack__")) memory = memory_of(source);
  Array array;
  if (!memory.is_valid() || !nb::try_cast<Array>(memory, array) || !array.is_valid()) {
    PyErr_Clear();
    raise(ErrorKind::Type,
          "Tensor: an array of {} is none of numbers that Koine has: convert it with astype() to a "
          "native dtype of whole numbers, bool or floats",
          dtype_text(view ? given : source));
  }
  const std::optional<DType> dtype = narrow ? narrow : dtype_of(array.dtype());
  KOINE_REQUIRE(dtype, Type, "Tensor: {} is no dtype that Koine has: convert it with astype()",
                dtype_text(source));
  return tensor_of(array, source, *dtype, device, borrow);
}

namespace {

// A number takes the dtype of what it meets, which is known to operators alone.
Tensor tensor_of_size(const Size& size, const char* method) {
  KOINE_REQUIRE(
      !is_open(size), Value,
      "{}: the size {}, from {} to {}, would be a number of another dtype than for one of "
      "these",
      method, size, size.smallest(), size.largest());
  return Tensor(size);
}

}  // namespace

Tensor make_tensor(nb::handle given, std::optional<DType> dtype, const std::string& device,
                   Borrow borrow) {
  const auto require_copy = [&](const std::string& why) {
    KOINE_REQUIRE(borrow != Borrow::Always, Value, "Tensor: copy=False, and {}: give copy=None",
                  why);
  };
  auto placed = [&](Tensor t) {
    if (dtype && t.dtype() != *dtype) {
      require_copy(fmt::format("{} from {} is a copy", dtype_name(*dtype), dtype_name(t.dtype())));
      t = t.cast(*dtype);
    }
    if (device.empty() || t.device() == device) return t;
    require_copy(fmt::format("to {} from {} is a copy", device, t.device()));
    return t.to(device);
  };
  if (nb::isinstance<Tensor>(given)) {
    const Tensor& t = nb::cast<const Tensor&>(given);
    return placed(borrow == Borrow::Never ? t.clone() : t);
  }
  if (is_list(given) || PyRange_Check(given.ptr()) || is_exact_number(given))
    require_copy(fmt::format("a '{}' has no memory to borrow", name_of_type(given)));
  if (is_list(given)) return tensor_of_list(given, "Tensor", dtype, device);
  if (PyRange_Check(given.ptr())) return tensor_of_list(nb::list(given), "Tensor", dtype, device);
  // A tensor as others are: only a number beside one takes its dtype.
  if (is_exact_number(given) && !dtype && device.empty())
    return Tensor::full({}, tensor_of_number(given));
  if (is_exact_number(given)) {
    nb::list one;
    one.append(given);
    return tensor_of_list(one, "Tensor", dtype, device).reshape(Shape{});
  }
  if (nb::isinstance<Size>(given)) return placed(tensor_of_size(nb::cast<Size>(given), "Tensor"));
  if (const std::optional<Tensor> t = tensor_of_array(given, device, borrow)) return placed(*t);
  if (PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr()))
    return placed(tensor_of_number(given));
  raise(ErrorKind::Type, "Tensor: a '{}' is neither a number nor a list or an array of numbers",
        name_of_type(given));
}

Tensor as_tensor(nb::handle given, const char* method) {
  if (nb::isinstance<Tensor>(given)) return nb::cast<const Tensor&>(given);
  if (is_exact_number(given)) return tensor_of_number(given);
  if (is_list(given)) return tensor_of_list(given, method, {}, "");
  if (nb::isinstance<Size>(given)) return tensor_of_size(nb::cast<Size>(given), method);
  if (std::optional<Tensor> t = tensor_of_array(given, "", Borrow::Operand)) return *t;
  if (PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr())) return tensor_of_number(given);
  raise(ErrorKind::Type, "{}: takes tensors, arrays, lists and numbers, not a '{}'", method,
        name_of_type(given));
}

Tensor as_tensor_beside(const Tensor& self, nb::handle given, const char* method) {
  const Tensor t = as_tensor(given, method);
  if (nb::isinstance<Tensor>(given) || !t.uop().device()) return t;
  const std::string device = self.device();
  return device.find(',') != device.npos || t.device() == device ? t : t.to(device);
}

nb::handle each_of(const nb::args& given) {
  const bool listed = given.size() == 1 && is_list(given[0]);
  return listed ? nb::handle(given[0]) : nb::handle(given);
}

std::vector<Tensor> as_tensors(nb::handle given, const char* method) {
  std::vector<Tensor> out;
  if (nb::isinstance<Tensor>(given) || PySequence_Check(given.ptr()) == 0)
    raise(ErrorKind::Type, "{}: takes a list of tensors, not a '{}'", method, name_of_type(given));
  const nb::sequence parts = nb::borrow<nb::sequence>(given);
  nb::object first;
  for (const nb::handle part : parts)
    if (!first.is_valid() && nb::isinstance<Tensor>(part)) first = nb::borrow(part);
  for (const nb::handle part : parts)
    out.push_back(first.is_valid() ? as_tensor_beside(nb::cast<const Tensor&>(first), part, method)
                                   : as_tensor(part, method));
  return out;
}

}  // namespace koine::python
