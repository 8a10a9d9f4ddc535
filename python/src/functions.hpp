#pragma once
#include <koine/tensor/transforms.hpp>

#include "bind.hpp"

namespace koine::python {

using transforms::Tensors;

/// A function of Python on lists of tensors; to be called from any thread.
transforms::Function function_of(const nb::callable& f);

/// Where a function that is traced was written, as Python says it.
struct Line {
  std::string text;
  std::source_location here = std::source_location::current();

  /// Runs what traces a function. Errors that name this line of C++ name the user's instead.
  template <class F>
  auto run(F&& f) const {
    try {
      return f();
    } catch (const Error& e) {
      std::string message = e.what();
      const std::string own = fmt::format("{}:{}", here.file_name(), here.line());
      for (size_t at = message.find(own); at != std::string::npos; at = message.find(own, at + text.size()))
        message.replace(at, own.size(), text);
      throw Error(e.kind(), message);
    }
  }
};

}  // namespace koine::python
