#pragma once
#include "convert.hpp"

namespace koine::python {

/// What an array that speaks DLPack gives of itself: a capsule that may be read, else an Error;
/// where it refuses and speaks the buffer protocol, a memoryview (nothing if it refuses that too).
nb::object memory_of(nb::handle array);

}  // namespace koine::python
