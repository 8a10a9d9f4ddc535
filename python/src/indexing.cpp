// x[...] and x[...] = value, with NumPy's meaning.
#include <koine/base/options.hpp>
#include <koine/ir/text.hpp>
#include <koine/transform/function.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

// A part of an index, with the first of the axes that it takes.
struct Part {
  enum class Kind : uint8_t { Position, Slice, NewAxis, Ellipsis, Positions, Mask } kind;
  Size position = 0;
  Slice slice = {};
  Tensor tensor = {};
  bool is_tensor = false;  // of the user's, where it lies
  int64_t axis = 0;

  int64_t takes() const {
    if (kind == Kind::NewAxis || kind == Kind::Ellipsis) return 0;
    return kind == Kind::Mask ? tensor.ndim() : 1;
  }
  /// Whether it is one of those that NumPy calls advanced where one of them is an array.
  bool is_advanced() const {
    return kind == Kind::Position || kind == Kind::Positions || kind == Kind::Mask;
  }
};

// A whole number that is no more than that: None where it does not fit. What all else may be is
// asked of Python, which takes a microsecond.
std::optional<int64_t> plain_number(nb::handle given) {
  if (!PyLong_CheckExact(given.ptr())) return {};
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(given.ptr(), &overflow);
  return overflow == 0 ? std::optional(value) : std::nullopt;
}

std::optional<Size> bound_of(nb::handle given) {
  if (given.is_none()) return {};
  if (const auto number = plain_number(given)) return Size(*number);
  if (nb::isinstance<Size>(given)) return nb::cast<Size>(given);
  KOINE_REQUIRE(PyIndex_Check(given.ptr()), Type,
                "index: the bounds of a slice are whole numbers, not a '{}'", name_of_type(given));
  const Py_ssize_t value = PyNumber_AsSsize_t(given.ptr(), nullptr);  // clamps
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return Size(int64_t{value});
}

Slice slice_of(nb::handle given) {
  const auto& slice = *reinterpret_cast<const PySliceObject*>(given.ptr());
  Slice out{bound_of(slice.start), bound_of(slice.stop)};
  if (const auto step = bound_of(slice.step)) out.step = int64_t{*step};
  return out;
}

Part part_of(nb::handle given) {
  using Kind = Part::Kind;
  if (given.is_none()) return {Kind::NewAxis};
  if (given.is(Py_Ellipsis)) return {Kind::Ellipsis};
  if (PySlice_Check(given.ptr())) return {Kind::Slice, 0, slice_of(given)};
  if (const auto number = plain_number(given)) return {Kind::Position, *number};
  if (nb::isinstance<Size>(given)) return {Kind::Position, nb::cast<Size>(given)};
  KOINE_REQUIRE(
      !PyBool_Check(given.ptr()), Index,
      "index: True and False are no positions: use None for a new axis, or a mask of an axis");
  // NumPy's arrays say that they are indices; those without axes are.
  const bool axes = nb::hasattr(given, "ndim") && !given.attr("ndim").equal(nb::int_(0));
  const bool array = axes || nb::isinstance<Tensor>(given) || is_list(given);
  const bool numpy_bool = !PyLong_Check(given.ptr()) && nb::hasattr(given, "dtype") &&
                          nb::hasattr(given, "__array__") &&
                          nb::str(given.attr("dtype")).equal(nb::str("bool"));
  if (!array && !numpy_bool && PyIndex_Check(given.ptr())) {
    const auto number = nb::steal(PyNumber_Index(given.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    KOINE_REQUIRE(overflow == 0, Index, "index: position {} is out of range for any axis",
                  nb::str(number).c_str());
    return {Kind::Position, value};
  }
  KOINE_REQUIRE(array || nb::hasattr(given, "__array__") || nb::hasattr(given, "__dlpack__"), Index,
                "index: a '{}' is no index: use whole numbers, slices, None, ..., masks and arrays "
                "of whole numbers",
                name_of_type(given));
  Tensor t = [&] {
    try {
      return as_tensor(given, "index");
    } catch (const Error& e) {  // as for all that is no index
      if (e.kind() != ErrorKind::Type) throw;
      raise(ErrorKind::Index,
            "index: what is in a '{}' is no index: use arrays of whole numbers, and masks",
            name_of_type(given));
    }
  }();
  if (t.numel() == 0 && !is_integer(t.dtype()) && t.dtype() != DType::Bool &&
      !nb::isinstance<Tensor>(given))
    t = t.cast(DType::Int64);  // []
  KOINE_REQUIRE(
      t.dtype() != DType::Bool || t.ndim() > 0, Index,
      "index: a bool without axes is no position: use None for a new axis, or a mask of an axis");
  if (t.dtype() == DType::Bool) return {Kind::Mask, 0, {}, t};
  KOINE_REQUIRE(is_integer(t.dtype()), Index,
                "index: positions are whole numbers or bool, not {}: cast() them",
                dtype_name(t.dtype()));
  return {Kind::Positions, 0, {}, t, nb::isinstance<Tensor>(given)};
}

// The places where a mask holds, for each of its axes.
std::vector<Tensor> places_of(const Tensor& mask) {
  const std::vector<int64_t> sizes = mask.shape().present();
  const std::vector<std::byte> bytes = unlocked([&] { return mask.bytes(); });
  std::vector<std::vector<int64_t>> places(sizes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == std::byte{0}) continue;
    auto rest = static_cast<int64_t>(i);
    for (size_t axis = sizes.size(); axis-- > 0;) {
      places[axis].push_back(rest % sizes[axis]);
      rest /= sizes[axis];
    }
  }
  std::vector<Tensor> out;
  for (const auto& p : places) out.push_back(Tensor::from(p, {static_cast<int64_t>(p.size())}));
  return out;
}

class Index {
 public:
  Index(const Tensor& self, nb::handle key) : shape_(self.shape()), device_(self.device()) {
    if (PyTuple_Check(key.ptr()))
      for (const nb::handle item : nb::borrow<nb::tuple>(key)) parts_.push_back(part_of(item));
    else
      parts_.push_back(part_of(key));
    find_axes();
  }

  /// The only part, where that is a mask of the leading axes.
  const Tensor* only_mask() const {
    return parts_.size() == 1 && parts_[0].kind == Part::Kind::Mask ? &parts_[0].tensor : nullptr;
  }

  std::vector<IndexItem> items() const {
    const bool arrays = std::any_of(parts_.begin(), parts_.end(), [](const Part& p) {
      return p.kind == Part::Kind::Positions || p.kind == Part::Kind::Mask;
    });
    const bool apart = arrays && !advanced_are_adjacent();
    std::vector<IndexItem> out;
    for (const Part& p : parts_) {
      switch (p.kind) {
        case Part::Kind::NewAxis:
          out.emplace_back(NewAxis{});
          break;
        case Part::Kind::Ellipsis:
          out.emplace_back(Ellipsis{});
          break;
        case Part::Kind::Slice:
          out.emplace_back(p.slice);
          break;
        case Part::Kind::Position:
          require_inside(p);
          // Beside arrays a number is an array without axes; where all are adjacent, it is the same
          // as a view.
          if (apart)
            out.emplace_back(Tensor(p.position));
          else
            out.emplace_back(p.position);
          break;
        case Part::Kind::Positions:
          if (!p.is_tensor) require_all_inside(p);
          out.emplace_back(p.is_tensor ? p.tensor : beside(p.tensor));
          break;
        case Part::Kind::Mask:
          require_fits(p);
          for (const Tensor& t : places_of(p.tensor)) out.emplace_back(beside(t));
          break;
      }
    }
    return out;
  }

 private:
  // Positions that are made here, where the indexed tensor lies.
  Tensor beside(const Tensor& t) const {
    return device_.find(',') != device_.npos || t.device() == device_ ? t : t.to(device_);
  }

  void find_axes() {
    int64_t taken = 0, ellipses = 0;
    for (const Part& p : parts_) {
      taken += p.takes();
      ellipses += p.kind == Part::Kind::Ellipsis ? 1 : 0;
    }
    const auto rank = static_cast<int64_t>(shape_.size());
    KOINE_REQUIRE(ellipses <= 1, Index, "index: more than one '...'");
    KOINE_REQUIRE(taken <= rank, Index, "index: {} axes are indexed, and the tensor has {}", taken,
                  rank);
    int64_t axis = 0;
    for (Part& p : parts_) {
      p.axis = axis;
      axis += p.kind == Part::Kind::Ellipsis ? rank - taken : p.takes();
    }
  }

  bool advanced_are_adjacent() const {
    size_t runs = 0;
    bool inside = false;
    for (const Part& p : parts_) {
      runs += p.is_advanced() && !inside ? 1 : 0;
      inside = p.is_advanced();
    }
    return runs <= 1;
  }

  void require_inside(const Part& p) const {
    const Size& n = shape_[static_cast<size_t>(p.axis)];
    if (!p.position.is_number() || !n.is_number()) return;
    const int64_t at = p.position, size = n;
    KOINE_REQUIRE(at >= -size && at < size, Index,
                  "index: position {} is out of range for axis {} of size {}", at, p.axis, size);
  }

  // Of a list or an array, whose positions are known now: those of a tensor are looked at with it.
  void require_all_inside(const Part& p) const {
    const Size& n = shape_[static_cast<size_t>(p.axis)];
    const bool some = std::all_of(parts_.begin(), parts_.end(), [](const Part& other) {
      return other.kind != Part::Kind::Positions || !(other.tensor.numel() == 0);
    });
    if (!n.is_number() || !some || options().index != IndexMode::Raise ||
        p.tensor.dtype() == DType::UInt64 || !p.tensor.uop().is(Op::Buffer))  // a list of tensors
      return;
    const int64_t size = n;
    const OutsideOfTraces constant;  // of a function that is traced
    for (const int64_t at : p.tensor.tolist<int64_t>())
      KOINE_REQUIRE(at >= -size && at < size, Index,
                    "index: position {} is out of range for axis {} of size {}", at, p.axis, size);
  }

  void require_fits(const Part& p) const {
    const Shape mask = p.tensor.shape();
    for (size_t k = 0; k < mask.size(); ++k)
      KOINE_REQUIRE(mask[k] == shape_[static_cast<size_t>(p.axis) + k], Index,
                    "index: axis {} of a mask has size {}, and axis {} of the tensor {}", k,
                    mask[k], p.axis + static_cast<int64_t>(k),
                    shape_[static_cast<size_t>(p.axis) + k]);
  }

  Shape shape_;
  std::string device_;
  std::vector<Part> parts_;
};

// In an assignment leading axes of size 1 stand for nothing.
Tensor without_leading_ones(Tensor value) {
  const Shape shape = value.shape();
  size_t first = 0;
  while (first < shape.size() && shape[first] == 1) ++first;
  if (first == 0) return value;
  return value.reshape(
      Shape(std::vector<Size>(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end())));
}

// What an index is refused for, in the name of who asked, with the shape.
template <class Body>
auto in_words_of(std::string_view method, const Tensor& self, Body&& body) {
  constexpr std::string_view prefix = "index: ";
  try {
    return body();
  } catch (const Error& e) {
    const std::string_view what = e.what();
    if (!what.starts_with(prefix)) throw;
    koine::raise(e.kind(), "{} of shape {}: {}", method, shape_text(self.uop()),
                 what.substr(prefix.size()));
  }
}

void set_item(Tensor& self, nb::handle key, nb::handle given) {
  const Tensor value = without_leading_ones(as_tensor_beside(self, given, "setitem"));
  const Index index = in_words_of("setitem", self, [&] { return Index(self, key); });
  const Tensor* mask = index.only_mask();
  // How many elements a mask chooses need not be known for one value for all of them.
  const bool whole =
      mask != nullptr && mask->ndim() > 0 && value.ndim() <= self.ndim() - mask->ndim();
  const std::vector<IndexItem> items = in_words_of("setitem", self, [&] {
    return whole ? std::vector<IndexItem>{IndexItem(*mask)} : index.items();
  });
  unlocked_making([&] { self.setitem(items, value); });
}

}  // namespace

void bind_indexing(TensorClass& c) {
  c.def(
      "__getitem__",
      [](const Tensor& self, nb::handle key) {
        return in_words_of("index", self, [&] { return self[Index(self, key).items()]; });
      },
      "key"_a.none(),
      "NumPy's indexing. Numbers, slices and new axes give a view, masks and arrays of positions a "
      "copy.\n"
      "A position that is computed, or stands in an array, is checked at the first look: an "
      "IndexError.");
  c.def("__setitem__", &set_item, "key"_a.none(), "value"_a,
        "Replaces a part, as all views of the tensor see. Of positions that occur twice the last "
        "value stays.");
  c.def("__iter__", [](const Tensor& self) {
    KOINE_REQUIRE(self.ndim() > 0, Type, "a tensor without axes cannot be iterated over");
    nb::list rows;
    const int64_t n = self.size(0).present();
    for (int64_t i = 0; i < n; ++i) rows.append(self[i]);
    return nb::steal(PyObject_GetIter(rows.ptr()));
  });
  c.def(
      "__contains__",
      [](const Tensor& self, const TensorLike& value) {
        const Tensor found = (self == as_tensor_beside(self, value, "in")).any();
        return unlocked([&] { return found.item<bool>(); });
      },
      "value"_a);
}

}  // namespace koine::python
