#pragma once
#include <nanobind/nanobind.h>

#include <koine/tensor/tensor.hpp>
#include <optional>
#include <vector>

// What Python gives for a parameter of C++: anything, and read where it is known which method asks,
// so that what does not fit is refused in that method's name.
namespace koine::python {

namespace nb = nanobind;

inline bool is_anything(PyObject*) { return true; }

// The names stand in signatures and stubs (koine/typing.py).
class TensorLike : public nb::object {
  NB_OBJECT_DEFAULT(TensorLike, nb::object, "koine.typing.TensorLike", is_anything)
};
class TensorsLike : public nb::object {
  NB_OBJECT_DEFAULT(TensorsLike, nb::object, "koine.typing.TensorsLike", is_anything)
};
class ShapeLike : public nb::object {
  NB_OBJECT_DEFAULT(ShapeLike, nb::object, "koine.typing.ShapeLike", is_anything)
};
class AxesLike : public nb::object {
  NB_OBJECT_DEFAULT(AxesLike, nb::object, "koine.typing.AxesLike", is_anything)
};
class PairsLike : public nb::object {
  NB_OBJECT_DEFAULT(PairsLike, nb::object, "koine.typing.PairsLike", is_anything)
};
class SizeLike : public nb::object {
  NB_OBJECT_DEFAULT(SizeLike, nb::object, "koine.typing.SizeLike", is_anything)
};
class NumberLike : public nb::object {
  NB_OBJECT_DEFAULT(NumberLike, nb::object, "koine.typing.NumberLike", is_anything)
};
class DTypeLike : public nb::object {
  NB_OBJECT_DEFAULT(DTypeLike, nb::object, "koine.typing.DTypeLike", is_anything)
};

/// Whether memory of an array is borrowed: where it can be, always (or it is an error), never. One
/// without axes is a constant as an operand, which is wherever the others are.
enum class Borrow { IfPossible, Always, Never, Operand };

/// A Tensor, a number (which takes the dtype of what it meets), nested lists, or an array, of which
/// operands get a copy.
Tensor as_tensor(nb::handle given, const char* method);
/// The same beside a tensor: arrays and lists, which lie nowhere of themselves, on its device.
Tensor as_tensor_beside(const Tensor& self, nb::handle given, const char* method);
/// Arguments, which may be given as one list of them.
nb::handle each_of(const nb::args& given);
/// Each of several; arrays and lists beside the first tensor among them.
std::vector<Tensor> as_tensors(nb::handle given, const char* method);
/// The tensor of `Tensor(given, dtype, device)`.
Tensor make_tensor(nb::handle given, std::optional<DType> dtype, const std::string& device,
                   Borrow borrow);
/// The tensor of whatever holds an array (buffer protocol, DLPack, `__array__`); nothing where it
/// does not.
std::optional<Tensor> tensor_of_array(nb::handle given, const std::string& device, Borrow borrow);

/// Whether it is a list or a tuple.
inline bool is_list(nb::handle given) {
  return PyList_Check(given.ptr()) || PyTuple_Check(given.ptr());
}
/// A size: a whole number or a symbolic one.
Size as_size(nb::handle given, const char* method);
/// Whether it is any size of its range: in a function that is described for all of them.
bool is_open(const Size& size);
/// A size, or sizes.
Shape as_shape(nb::handle given, const char* method);
/// Shapes given as `f(2, 3)` or as `f((2, 3))`.
Shape shape_of_all(const nb::args& given, const char* method);
/// An axis or several; None: all.
IntList as_axes(nb::handle given, const char* method);
IntList axes_of_all(const nb::args& given, const char* method);
SizePairs as_pairs(nb::handle given, const char* method);
/// A koine dtype, its name, bool, int or float, or what NumPy has for one.
DType as_dtype(nb::handle given, const std::string& method);
int64_t as_int(nb::handle given, const char* method, const char* what);

/// Sizes as Python has them: numbers, and Sizes that are symbolic.
nb::tuple tuple_of(const Shape& shape);

/// What Python calls its type, for messages.
std::string name_of_type(nb::handle given);

/// Lets a reference go where nobody may run Python now: when Python runs next.
void let_go_later(PyObject* object);
void let_go_now();

}  // namespace koine::python
