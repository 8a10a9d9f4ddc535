// Capsules of DLPack, which any code may make: looked at before anything reads by them.
#include "capsules.hpp"

#include <nanobind/ndarray.h>

#include <cstring>
#include <koine/base/error.hpp>

namespace koine::python {

using nb::literals::operator""_a;

namespace {

// DLManagedTensor of version 0, and of version 1.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct VersionedManaged {
  uint32_t major, minor;
  void* context;
  void (*deleter)(VersionedManaged*);
  uint64_t flags;
  nb::dlpack::dltensor tensor;
};
constexpr const char *plain = "dltensor", *versioned = "dltensor_versioned";
constexpr int32_t most_axes = 64;

const nb::dlpack::dltensor& tensor_in(nb::handle capsule) {
  const char* const name = PyCapsule_GetName(capsule.ptr());
  if (name != nullptr && std::strcmp(name, plain) == 0)
    return static_cast<const Managed*>(PyCapsule_GetPointer(capsule.ptr(), name))->tensor;
  KOINE_REQUIRE(
      name != nullptr && std::strcmp(name, versioned) == 0, Value,
      "from_dlpack: the capsule is named '{}', and one that may be taken is '{}' or '{}': "
      "each is taken once, so ask the array for another one",
      name == nullptr ? "" : name, plain, versioned);
  const auto* const held =
      static_cast<const VersionedManaged*>(PyCapsule_GetPointer(capsule.ptr(), name));
  KOINE_REQUIRE(held->major == 1, Value,
                "from_dlpack: the capsule is of version {}.{} of DLPack, and Koine reads version 1",
                held->major, held->minor);
  return held->tensor;
}

// The sizes of a shape are none below 0, and the memory from the first to the last element has a
// size that a number holds.
void require_readable(const nb::dlpack::dltensor& t) {
  KOINE_REQUIRE(t.ndim >= 0 && t.ndim <= most_axes, Value,
                "from_dlpack: the capsule has {} axes, and Koine takes up to {}", t.ndim,
                most_axes);
  KOINE_REQUIRE(t.ndim == 0 || t.shape != nullptr, Value,
                "from_dlpack: the capsule has {} axes, and no shape (NULL)", t.ndim);
  bool empty = false, fits = true;
  int64_t first = 0, last = 0;  // in elements
  for (int32_t axis = 0; axis < t.ndim; ++axis) {
    KOINE_REQUIRE(t.shape[axis] >= 0, Value, "from_dlpack: the capsule's axis {} has the size {}",
                  axis, t.shape[axis]);
    empty = empty || t.shape[axis] == 0;
    if (t.strides == nullptr || t.shape[axis] == 0) continue;
    int64_t way = 0;
    int64_t& end = t.strides[axis] < 0 ? first : last;
    fits = !__builtin_mul_overflow(t.shape[axis] - 1, t.strides[axis], &way) && fits;
    fits = !__builtin_add_overflow(end, way, &end) && fits;
  }
  constexpr int64_t most =
      INT64_MAX / 32;  // no element of Koine's is larger, and lanes are refused
  KOINE_REQUIRE(empty || (fits && -most < first && last < most), Value,
                "from_dlpack: the strides of the capsule lead out of any memory");
  KOINE_REQUIRE(empty || t.data != nullptr, Value,
                "from_dlpack: the capsule has elements, and an array of its shape without the "
                "memory for it (NULL)");
}

}  // namespace

nb::object memory_of(nb::handle array) {
  nb::object capsule;
  if (PyCapsule_CheckExact(array.ptr())) {
    capsule = nb::borrow(array);
  } else {
    try {
      capsule = array.attr("__dlpack__")();
    } catch (nb::python_error& e) {
      // Read-only memory is said by version 1 alone.
      if (!e.matches(PyExc_BufferError) && !e.matches(PyExc_TypeError)) throw;
      try {
        capsule = array.attr("__dlpack__")("max_version"_a = nb::make_tuple(1, 0));
      } catch (nb::python_error& again) {
        const bool refuses = again.matches(PyExc_BufferError) || again.matches(PyExc_TypeError);
        if (!refuses || PyObject_CheckBuffer(array.ptr()) == 0) throw;
        return nb::steal(PyMemoryView_FromObject(array.ptr()));
      }
    }
  }
  KOINE_REQUIRE(PyCapsule_CheckExact(capsule.ptr()), Type,
                "from_dlpack: __dlpack__ gives a '{}', not a capsule", name_of_type(capsule));
  require_readable(tensor_in(capsule));
  return capsule;
}

}  // namespace koine::python
