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
nb::bytes signature_of(const Tensors& arguments, const Tensors& surroundings) {
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
  return nb::bytes(out.data(), out.size());
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
  m.def("_signature", &signature_of);
  m.def("_is_tracing", &is_tracing);
}

}  // namespace koine::python
