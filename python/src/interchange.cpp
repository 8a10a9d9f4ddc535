// Tensors as arrays of others: NumPy, the buffer protocol, DLPack, copies and pickles.
#include <nanobind/ndarray.h>

#include <koine/ir/text.hpp>
#include <koine/runtime/device.hpp>
#include <koine/tensor/lent.hpp>

#include "bind.hpp"
#include "dlpack_dtype.hpp"
#include "strided.hpp"

namespace koine::python {
namespace {

// --- the buffer protocol -------------------------------------------------------------------------

const char* format_of(DType d) {
  switch (d) {
    case DType::Bool:
      return "?";
    case DType::Int8:
      return "b";
    case DType::Int16:
      return "h";
    case DType::Int32:
      return "i";
    case DType::Int64:
      return "q";
    case DType::UInt8:
      return "B";
    case DType::UInt16:
      return "H";
    case DType::UInt32:
      return "I";
    case DType::UInt64:
      return "Q";
    case DType::Float16:
      return "e";
    case DType::Float32:
      return "f";
    case DType::Float64:
      return "d";
    default:
      return nullptr;
  }
}

// The elements of a tensor while somebody reads them: of a view, where they lie in its base, or one
// after the other.
struct Elements {
  std::shared_ptr<const std::byte> data;
  std::vector<Py_ssize_t> shape, strides;  // in bytes
  DType dtype;

  Elements(const Tensor& t, bool as_they_lie) : dtype(t.dtype()) {
    const auto view = as_they_lie ? strided_view(t.uop()) : std::nullopt;
    if (view && borrow(*view)) return;
    data = unlocked([&] { return t.data(); });
    for (const int64_t n : t.shape().present()) shape.push_back(n);
    strides.resize(shape.size());
    Py_ssize_t step = item_size(dtype);
    for (size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = step;
      step *= std::max<Py_ssize_t>(shape[axis], 1);
    }
  }
  bool borrow(const StridedView& view) {
    const Tensor base(view.buffer);
    if (memory_of(view.buffer)->data() == nullptr) return false;  // not of the host
    data = base.data();
    data = {data, data.get() + view.offset * item_size(dtype)};
    for (size_t axis = 0; axis < view.shape.size(); ++axis) {
      shape.push_back(view.shape[axis]);
      strides.push_back(view.strides[axis] * item_size(dtype));
    }
    return true;
  }
  Py_ssize_t count() const {
    Py_ssize_t n = 1;
    for (const Py_ssize_t s : shape) n *= s;
    return n;
  }
};

// A class of its own for what the buffer protocol has no name for: bfloat16 as uint16.
struct Storage {
  Tensor tensor;
};

int fill_buffer(PyObject* exporter, const Tensor& tensor, bool as_storage, Py_buffer* view,
                int flags) {
  view->obj = nullptr;
  if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
    PyErr_SetString(PyExc_BufferError,
                    "the memory of a tensor is read-only to others: use x.numpy(copy=True), or "
                    "assign to the tensor");
    return -1;
  }
  try {
    const DType shown = as_storage ? storage_uint(tensor.dtype()) : tensor.dtype();
    if (format_of(shown) == nullptr) {
      PyErr_Format(PyExc_BufferError,
                   "the buffer protocol has no %s: use x.numpy() with ml_dtypes, or DLPack",
                   dtype_info(shown).name.data());
      return -1;
    }
    constexpr int orders =
        (PyBUF_C_CONTIGUOUS | PyBUF_F_CONTIGUOUS | PyBUF_ANY_CONTIGUOUS) & ~PyBUF_STRIDES;
    const bool wants_order = (flags & orders) != 0;
    auto elements = std::make_unique<Elements>(
        tensor, (flags & PyBUF_STRIDES) == PyBUF_STRIDES && !wants_order);
    view->buf = const_cast<std::byte*>(elements->data.get());
    view->itemsize = item_size(shown);
    view->len = elements->count() * view->itemsize;
    view->readonly = 1;
    view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format_of(shown)) : nullptr;
    view->ndim = static_cast<int>(elements->shape.size());
    view->shape = (flags & PyBUF_ND) != 0 ? elements->shape.data() : nullptr;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? elements->strides.data() : nullptr;
    view->suboffsets = nullptr;
    view->internal = elements.release();
    view->obj = Py_NewRef(exporter);
    return 0;
  } catch (nb::python_error& e) {  // Ctrl-C
    e.restore();
    return -1;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_BufferError, e.what());
    return -1;
  }
}

int get_tensor_buffer(PyObject* self, Py_buffer* view, int flags) {
  return fill_buffer(self, *nb::inst_ptr<Tensor>(self), false, view, flags);
}
int get_storage_buffer(PyObject* self, Py_buffer* view, int flags) {
  return fill_buffer(self, nb::inst_ptr<Storage>(self)->tensor, true, view, flags);
}
void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<Elements*>(view->internal); }

PyType_Slot storage_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_storage_buffer)},
                               {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                               {0, nullptr}};

// --- NumPy ---------------------------------------------------------------------------------------

// What of a tensor is memory in NumPy's sense: a view that has no two elements in one place.
StridedView writable_view(const Tensor& t) {
  const UOp value = t.uop();
  std::optional<StridedView> view = strided_view(value);
  if (!view && value.is(Op::Buffer)) {
    view = StridedView{value, 0, value.sizes(), std::vector<int64_t>(value.rank())};
    int64_t step = 1;
    for (size_t axis = value.rank(); axis-- > 0; step *= view->shape[axis])
      view->strides[axis] = step;
  }
  KOINE_REQUIRE(view, Value,
                "numpy: writable=True of a view of shape {} whose elements lie in no strides: "
                "clone() it",
                shape_text(value));
  for (size_t axis = 0; axis < view->shape.size(); ++axis)
    KOINE_REQUIRE(view->strides[axis] != 0 || view->shape[axis] == 1, Value,
                  "numpy: writable=True of a view of shape {} that repeats elements along axis {}: "
                  "clone() it",
                  shape_text(value), axis);
  return *view;
}

nb::object writable(const Tensor& t) {
  if (t.numel() == 0) return nb::cast(t).attr("numpy")(true);
  std::shared_ptr<std::byte> memory = unlocked([&] { return lent_memory(t); });
  const StridedView view = writable_view(t);
  const DType shown = format_of(t.dtype()) == nullptr ? storage_uint(t.dtype()) : t.dtype();
  std::vector<size_t> shape(view.shape.begin(), view.shape.end());
  std::byte* const first = memory.get() + view.offset * item_size(t.dtype());
  const nb::capsule owner(new std::shared_ptr<std::byte>(std::move(memory)), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(p);
  });
  const nb::ndarray<nb::numpy> array(first, shape.size(), shape.data(), owner, view.strides.data(),
                                     dlpack_dtype(shown));
  const nb::object out = nb::cast(array);
  return shown == t.dtype() ? out : out.attr("view")(nb::cast(t.dtype()).attr("numpy"));
}

nb::object numpy(nb::handle self, bool copy, bool writes) {
  KOINE_REQUIRE(!copy || !writes, Value,
                "numpy: copy=True is an array of its own, writable=True the tensor's memory: one "
                "of both");
  if (writes) return writable(nb::cast<const Tensor&>(self));
  const Tensor& t = nb::cast<const Tensor&>(self);
  const nb::module_ numpy = nb::module_::import_("numpy");
  nb::object array;
  if (format_of(t.dtype()) == nullptr) {
    const nb::object dtype = nb::cast(t.dtype()).attr("numpy");
    array = numpy.attr("asarray")(nb::cast(Storage{t})).attr("view")(dtype);
  } else {
    if (!strided_view(t.uop()))  // its errors as they are: those of a buffer are BufferErrors
      (void)unlocked([&] { return t.data(); });
    array = numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())));
  }
  return copy ? array.attr("copy")() : array;
}

nb::object array_for(nb::handle self, nb::handle dtype, std::optional<bool> copy) {
  nb::object array = numpy(self, false, false);
  const bool converts = !dtype.is_none() && !array.attr("dtype").equal(
                                                nb::module_::import_("numpy").attr("dtype")(dtype));
  KOINE_REQUIRE(!converts || copy != std::optional(false), Value,
                "__array__: another dtype needs a copy");
  if (converts) return array.attr("astype")(dtype);
  return copy.value_or(false) ? array.attr("copy")() : array;
}

// --- DLPack --------------------------------------------------------------------------------------

using Pair = std::pair<int64_t, int64_t>;
std::optional<Pair> pair_of(nb::handle given, const char* name) {
  Pair out;
  if (given.is_none()) return {};
  KOINE_REQUIRE(nb::try_cast(given, out), Type,
                "__dlpack__: {} is a pair of whole numbers, such as (1, 0), not {}", name,
                nb::repr(given).c_str());
  return out;
}

// Read-only memory as it lies to those who know the flag for it (version 1); others get a copy that
// they may write to.
nb::object dlpack(const Tensor& t, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  std::optional<bool> copy) {
  KOINE_REQUIRE(stream.is_none(), Value, "__dlpack__: the CPU has no streams");
  const std::optional<Pair> version = pair_of(max_version, "max_version"),
                            device = pair_of(dl_device, "dl_device");
  if (device && device->first != nb::device::cpu::value) {
    PyErr_SetString(PyExc_BufferError, "__dlpack__: a tensor is exported to the CPU alone");
    throw nb::python_error();
  }
  const bool versioned = version && version->first >= 1;
  const bool as_it_lies = versioned && !copy.value_or(false);
  if (!as_it_lies && copy == std::optional(false)) {
    PyErr_SetString(PyExc_BufferError,
                    "__dlpack__: without max_version=(1, 0) nobody would know that the memory is "
                    "read-only: a copy is needed");
    throw nb::python_error();
  }
  const auto own = std::make_unique<Elements>(t, false);
  std::vector<size_t> shape(own->shape.begin(), own->shape.end());
  nb::dict how;
  if (versioned) how["max_version"] = nb::make_tuple(version->first, version->second);
  if (as_it_lies) {
    auto* const held = new std::shared_ptr<const std::byte>(own->data);
    const nb::capsule owner(
        held, [](void* p) noexcept { delete static_cast<std::shared_ptr<const std::byte>*>(p); });
    const nb::ndarray<nb::array_api, nb::ro> array(own->data.get(), shape.size(), shape.data(),
                                                   owner, nullptr, dlpack_dtype(t.dtype()));
    return nb::cast(array).attr("__dlpack__")(**how);
  }
  auto* const bytes = new std::vector<std::byte>(
      own->data.get(), own->data.get() + own->count() * item_size(t.dtype()));
  const nb::capsule owner(bytes,
                          [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  const nb::ndarray<nb::array_api> array(bytes->data(), shape.size(), shape.data(), owner, nullptr,
                                         dlpack_dtype(t.dtype()));
  return nb::cast(array).attr("__dlpack__")(**how);
}

// --- copies and pickles --------------------------------------------------------------------------

Tensor unpickled(const nb::bytes& bytes, const std::vector<int64_t>& shape, DType dtype,
                 const std::string& devices, std::optional<int64_t> axis, bool leaf) {
  int64_t count = item_size(dtype);
  for (const int64_t n : shape) count *= n;
  KOINE_REQUIRE(static_cast<int64_t>(bytes.size()) == count, Value,
                "unpickle: {} bytes for a tensor of {}", bytes.size(), count);
  const std::string first = devices.substr(0, devices.find(','));
  Tensor t = Tensor::from_bytes(bytes.data(), shape, dtype, first);
  if (first != devices) t = t.shard(devices, axis).clone();
  return leaf ? t.requires_grad() : t;
}

Tensor own_copy(const Tensor& t) {
  return t.is_leaf() ? t.detach().clone().requires_grad() : t.clone();
}

// What tells tensors apart: memory, of which each view is one of its own, and the value that is in
// it now.
nb::tuple identity_of(const Tensor& t) {
  return nb::make_tuple("koine", reinterpret_cast<uintptr_t>(t.storage_id()), t.uop().id());
}

// Of what is one tensor under two names, such as tied weights, the copy is one as well. Memory that
// others write to is copied at once.
nb::object copied_once(const Tensor& t, nb::dict memo) {
  const nb::tuple key = identity_of(t);
  if (memo.contains(key)) return memo[key];
  Tensor copy = own_copy(t);
  if (t.uop().is(Op::Buffer)) unlocked([&] { copy.realize(); });
  memo[key] = copy;
  return memo[key];
}

}  // namespace

PyType_Slot tensor_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_tensor_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

void bind_interchange(nb::module_& m, TensorClass& c) {
  nb::class_<Storage>(m, "_Storage", nb::type_slots(storage_slots));
  c.def("numpy", &numpy, "copy"_a = false, "writable"_a = false,
        "The elements as a NumPy array. It is read-only and keeps what it shows, without a copy: "
        "what is\n"
        "assigned to the tensor later goes elsewhere. `copy=True` gives one to write to.\n\n"
        "`writable=True` gives the memory of the tensor itself, of a view where it lies in its "
        "base: the tensor sees\n"
        "what is written there, until something is assigned to it, and who had its value before "
        "keeps that. It is\n"
        "memory that others may write then, as that of Tensor(array): what is lazily computed of "
        "it reads what there\n"
        "is. ValueError where a gradient goes through the tensor, or a view repeats elements.\n\n"
        ">>> x = koine.Tensor([1, 2])\n"
        ">>> x.numpy(writable=True)[0] = 7\n"
        ">>> x.tolist()\n"
        "[7, 2]\n"
        ">>> koine.Tensor([1, 2]).numpy()\n"
        "array([1, 2], dtype=int32)");
  c.def("__array__", &array_for, "dtype"_a = nb::none(), "copy"_a = nb::none());
  c.def("__dlpack__", &dlpack, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(),
        "dl_device"_a = nb::none(), "copy"_a = nb::none());
  c.def("__dlpack_device__",
        [](const Tensor&) { return nb::make_tuple(nb::device::cpu::value, 0); });
  c.def("__copy__", &own_copy);
  c.def("__deepcopy__", &copied_once, "memo"_a);
  m.def("_unpickle", &unpickled);
  m.def("_identity", &identity_of);
  m.def("_pickled", [](const Tensor& t) {
    const Elements e(t, false);
    return nb::make_tuple(
        nb::bytes(e.data.get(), static_cast<size_t>(e.count() * item_size(e.dtype))),
        nb::cast(t.shape().present()), t.dtype(), t.device(), t.shard_axis(), t.is_leaf());
  });
  c.def("__reduce__", [](nb::handle self) {
    const nb::module_ pickle = nb::module_::import_("koine._pickle");
    return nb::make_tuple(pickle.attr("restored"), nb::make_tuple(pickle.attr("stored")(self)));
  });
  m.def(
      "from_dlpack",
      [](nb::handle array, std::optional<bool> copy) {
        KOINE_REQUIRE(PyCapsule_CheckExact(array.ptr()) || nb::hasattr(array, "__dlpack__"), Type,
                      "from_dlpack: a '{}' has no __dlpack__", name_of_type(array));
        const Borrow borrow = !copy ? Borrow::IfPossible : *copy ? Borrow::Never : Borrow::Always;
        return *tensor_of_array(array, "", borrow);
      },
      "array"_a, nb::kw_only(), "copy"_a = nb::none(),
      "A tensor over the memory of an array that speaks DLPack, as Tensor(array) gives, or of a\n"
      "capsule of DLPack, which is taken once.\n\n"
      ">>> import numpy\n"
      ">>> koine.from_dlpack(numpy.arange(3)).tolist()\n"
      "[0, 1, 2]");
}

}  // namespace koine::python
