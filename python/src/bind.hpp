#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <koine/base/interrupt.hpp>
#include <koine/ir/origin.hpp>
#include <koine/koine.hpp>
#include <string_view>
#include <type_traits>

#include "convert.hpp"

// One function for each subject of the module, in a file of its name; and how a function of C++
// becomes one of Python in one line.
namespace koine::python {

namespace nb = nanobind;
using nb::literals::operator""_a;
using TensorClass = nb::class_<Tensor>;

void bind_ends_and_forks(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_dtypes(nb::module_& m);
void bind_sizes(nb::module_& m);
void bind_devices(nb::module_& m);
void bind_uop(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_tensor(nb::module_& m, TensorClass& c);
void bind_creation(TensorClass& c);
void bind_operators(TensorClass& c);
void bind_methods(TensorClass& c);
void bind_indexing(TensorClass& c);
void bind_interchange(nb::module_& m, TensorClass& c);
void bind_nn(nb::module_& m);
void bind_random(nb::module_& m);
void bind_files(nb::module_& m);
void bind_transforms(nb::module_& m);
void bind_loops(nb::module_& m);
void bind_callbacks(nb::module_& m);
void bind_captured(nb::module_& m);
void bind_collectives(nb::module_& m);
void bind_origins(nb::module_& m);
void bind_compat(nb::module_& m);

/// Nodes as Python has them.
inline std::vector<UOp> list_of(std::span<const UOp> nodes) { return {nodes.begin(), nodes.end()}; }

/// Of the functions of a module and of its classes: says what does not fit in a call in Koine's
/// words, as a koine.errors.TypeError.
void explain_calls(nb::handle holder);

/// How Python gives a parameter of a C++ type, and what becomes of it.
template <class T>
struct Port {
  using type = T;
  static const T& from(const T& given, const char*) { return given; }
};
template <>
struct Port<Tensor> {
  using type = TensorLike;
  static Tensor from(const TensorLike& given, const char* method) {
    return as_tensor(given, method);
  }
};
template <>
struct Port<std::vector<Tensor>> {
  using type = TensorsLike;
  static std::vector<Tensor> from(const TensorsLike& given, const char* method) {
    return as_tensors(given, method);
  }
};
template <>
struct Port<Shape> {
  using type = ShapeLike;
  static Shape from(const ShapeLike& given, const char* method) { return as_shape(given, method); }
};
template <>
struct Port<IntList> {
  using type = AxesLike;
  static IntList from(const AxesLike& given, const char* method) { return as_axes(given, method); }
};
template <>
struct Port<std::vector<int64_t>> {
  using type = AxesLike;
  static std::vector<int64_t> from(const AxesLike& given, const char* method) {
    return as_axes(given, method);
  }
};
template <>
struct Port<SizePairs> {
  using type = PairsLike;
  static SizePairs from(const PairsLike& given, const char* method) {
    return as_pairs(given, method);
  }
};
template <>
struct Port<Size> {
  using type = SizeLike;
  static Size from(const SizeLike& given, const char* method) { return as_size(given, method); }
};
template <>
struct Port<DType> {
  using type = DTypeLike;
  static DType from(const DTypeLike& given, const char* method) { return as_dtype(given, method); }
};
/// The __init__ of a class whose objects come from elsewhere.
inline auto refuse_making(const char* name, const char* from) {
  return [name, from](nb::handle, const nb::args&, const nb::kwargs&) {
    raise(ErrorKind::Type, "{}: it is not made by calling the class: {}", name, from);
  };
}

template <class A>
using PortOf = Port<std::remove_cvref_t<A>>;

/// An argument of a method: arrays and lists, which lie nowhere of themselves, are beside the
/// tensor.
template <class A>
decltype(auto) argument_of(const Tensor& self, const typename PortOf<A>::type& given,
                           const char* method) {
  if constexpr (std::same_as<std::remove_cvref_t<A>, Tensor>)
    return as_tensor_beside(self, given, method);
  else
    return PortOf<A>::from(given, method);
}

/// A method of the C++ Tensor under a name, with the names and defaults of its parameters.
template <class R, class... A, class... Extra>
void method(TensorClass& c, const char* name, R (Tensor::*f)(A...) const, const Extra&... extra) {
  c.def(
      name,
      [f, name](const Tensor& self, const typename PortOf<A>::type&... given) {
        return (self.*f)(argument_of<A>(self, given, name)...);
      },
      extra...);
}
/// A static function of it, or a free one.
template <class R, class... A, class... Extra>
void static_method(TensorClass& c, const char* name, R (*f)(A...), const Extra&... extra) {
  c.def_static(
      name,
      [f, name](const typename PortOf<A>::type&... given) {
        return f(PortOf<A>::from(given, name)...);
      },
      extra...);
}

/// While one lives, this thread does not hold the lock of the interpreter. When that ends or is
/// forked, whoever is without it is waited for, and later ones keep it: a thread that waits for a
/// lock that is no more would end the process, and a child would wait for what is no thread there.
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// Whether Ctrl-C was pressed and its handler has not run yet. Only the main thread is told.
bool is_ctrl_c_waiting();
/// Runs the handlers of signals that wait, and throws what one of them raises.
void run_signal_handlers();

/// Runs what computes without the lock of the interpreter. Ctrl-C stops it where it can be begun
/// again, and then its handler runs; where that raises nothing, the work is done from the start.
template <class F>
auto unlocked(F&& f) {
  try {
    const Unlocked scope;
    const Interruption asks(&is_ctrl_c_waiting);
    return f();
  } catch (const Interrupted&) {
    run_signal_handlers();
  }
  const Unlocked scope;
  return f();
}
/// The same of what makes nodes: they come from the line that runs now.
template <class F>
auto unlocked_making(F&& f) {
  const OriginScope line(detail::present_origin());
  return unlocked(std::forward<F>(f));
}

}  // namespace koine::python
