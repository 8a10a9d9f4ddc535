#pragma once
#include <map>
#include <optional>
#include <vector>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/rangeify.hpp"

namespace koine::test {

/// C text that went through the system's compiler and is loaded while this lives.
class CLibrary {
 public:
  using Function = void (*)(void** buffers, const int64_t* variables, int64_t thread);
  /// `optimise` is the compiler's level.
  explicit CLibrary(const std::string& source, int optimise = 0);
  CLibrary(const CLibrary&) = delete;
  CLibrary& operator=(const CLibrary&) = delete;
  ~CLibrary();
  Function function(const std::string& name) const;

 private:
  void* library_ = nullptr;
};

/// Values whose kernels, as C text, go through the system's compiler: all of them at once, when
/// `check` is called, as starting a compiler is what costs. Sizes must be known.
class CText {
 public:
  /// Takes a value in strict mode, and in default mode where that may differ; the interpreter says
  /// what it must be.
  void add(const UOp& value);
  /// In the mode of the options.
  void add(const UOp& value, BoundedArray expected, const std::optional<KernelEdits>& edits = {});
  /// Compiles, runs and compares; `optimise` is the compiler's level.
  void check(int optimise = 0);

 private:
  struct Case {
    UOp value;
    BoundedArray expected;
    Callified program;
    std::vector<Kernel> kernels;
    size_t first;                  ///< number of its first function
    std::vector<int64_t> threads;  ///< of each
  };
  static void run(const Case& c, const CLibrary& library);
  std::vector<Case> cases_;
  std::string source_;
  size_t functions_ = 0;
};

/// What a row of the specification asks of a value: equal on the tensor interpreter, interpreted
/// kernels, compiled kernels (in both modes) and C text. The texts are checked at the end of scope.
class EveryBackend {
 public:
  EveryBackend() = default;
  EveryBackend(const EveryBackend&) = delete;
  EveryBackend& operator=(const EveryBackend&) = delete;
  ~EveryBackend() { text_.check(); }
  void operator()(const UOp& value) {
    expect_same_everywhere(value);
    text_.add(value);
  }
  void operator()(const Tensor& value) { (*this)(value.uop()); }

 private:
  CText text_;
};

}  // namespace koine::test
