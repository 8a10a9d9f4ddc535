#include "bind.hpp"

namespace koine::python {
namespace {

constexpr DType tensor_dtypes[] = {
    DType::Bool,       DType::Int8,    DType::Int16,    DType::Int32,   DType::Int64,
    DType::UInt8,      DType::UInt16,  DType::UInt32,   DType::UInt64,  DType::Float8E4M3,
    DType::Float8E5M2, DType::Float16, DType::BFloat16, DType::Float32, DType::Float64};

// Names that NumPy and ml_dtypes have beside ours.
std::optional<DType> dtype_named(std::string_view name) {
  if (name == "bool_") return DType::Bool;
  if (name == "float8_e4m3fn") return DType::Float8E4M3;
  if (name == "float8_e5m2") return DType::Float8E5M2;
  for (const DType d : tensor_dtypes)
    if (dtype_name(d) == name) return d;
  return {};
}

// What a number of this Python type becomes.
std::optional<DType> dtype_of_type(nb::handle type) {
  if (type.is(reinterpret_cast<PyObject*>(&PyBool_Type))) return DType::Bool;
  if (type.is(reinterpret_cast<PyObject*>(&PyLong_Type))) return DType::Int32;
  if (type.is(reinterpret_cast<PyObject*>(&PyFloat_Type))) return DType::Float32;
  return dtype_named(nb::cast<std::string>(nb::borrow(type.attr("__name__"))));
}

// The name that NumPy, or ml_dtypes beside it, has.
std::string numpy_name(DType d) {
  if (d == DType::Float8E4M3) return "float8_e4m3fn";
  if (d == DType::Float8E5M2) return "float8_e5m2";
  return std::string(dtype_name(d));
}

nb::object numpy_dtype(DType d) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const bool narrow = d == DType::BFloat16 || d == DType::Float8E4M3 || d == DType::Float8E5M2;
  if (!narrow) return numpy.attr("dtype")(numpy_name(d));
  return numpy.attr("dtype")(nb::module_::import_("ml_dtypes").attr(numpy_name(d).c_str()));
}

}  // namespace

DType as_dtype(nb::handle given, const std::string& method) {
  if (nb::isinstance<DType>(given)) return nb::cast<DType>(given);
  std::optional<DType> found;
  if (nb::isinstance<nb::str>(given))
    found = dtype_named(nb::cast<std::string>(given));
  else if (PyType_Check(given.ptr()))
    found = dtype_of_type(given);
  else if (nb::hasattr(given, "name") && nb::hasattr(given, "itemsize"))
    found = dtype_named(nb::cast<std::string>(nb::str(nb::borrow(given.attr("name")))));
  if (found) return *found;
  std::string names;
  for (const DType d : tensor_dtypes)
    names += (names.empty() ? "" : ", ") + std::string(dtype_name(d));
  raise(ErrorKind::Type, "{}: {} is no dtype of tensors: use koine.float32 or another of {}",
        method, nb::repr(given).c_str(), names);
}

void bind_dtypes(nb::module_& m) {
  m.def("_require_dtype",
        [](nb::handle given, const std::string& method) { (void)as_dtype(given, method); });
  nb::enum_<DType> e(
      m, "DType",
      "An element type: `koine.float32` and its like. Where a dtype is asked for, its name, "
      "NumPy's dtype or type, or Python's bool, int (int32) and float (float32) serve as well.\n\n"
      ">>> koine.Tensor([1, 2], dtype='float16').dtype is koine.float16\n"
      "True\n"
      ">>> koine.float16.itemsize, koine.float16.is_float\n"
      "(2, True)");
  for (const DType d : tensor_dtypes) e.value(dtype_info(d).name.data(), d);
  e.def_prop_ro("itemsize", [](DType d) { return item_size(d); }, "Bytes of one element.");
  e.def_prop_ro("is_float", [](DType d) { return is_float(d); }, "Whether it is a float.");
  e.def_prop_ro("numpy", &numpy_dtype,
                "NumPy's dtype of the same elements; ml_dtypes' for bfloat16 and the float8.");
  e.def("__str__", [](DType d) { return std::string(dtype_name(d)); });
  e.def("__repr__", [](DType d) { return "koine." + std::string(dtype_name(d)); });
  m.def(
      "promote",
      [](const DTypeLike& a, const DTypeLike& b) {
        return promote(as_dtype(a, "promote"), as_dtype(b, "promote"));
      },
      "a"_a, "b"_a,
      "The dtype in which two operands meet.\n\n>>> koine.promote('int64', "
      "'float32')\nkoine.float64");
}

}  // namespace koine::python
