#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/rangeify.hpp"

namespace koine::test {

/// Kernels that were compiled from text. Loaded while this lives.
class TextLibrary {
 public:
  /// The memory of a parameter.
  struct Given {
    void* data;
    int64_t bytes;
  };
  virtual ~TextLibrary() = default;
  /// Runs a kernel on its parameters, in order, and the values of its Variables, by name, in a grid
  /// of groups.
  virtual void run(const std::string& name, const std::vector<Given>& parameters,
                   const Signature& signature, const std::vector<int64_t>& variables) const = 0;
};

/// Text that went through the system's compiler of C, or of C++ with a header in front that knows
/// the words of CUDA, HIP or Metal (`support/shim`). Loaded while this lives.
class CLibrary : public TextLibrary {
 public:
  /// Of C.
  using Function = void (*)(void** buffers, const int64_t* variables, int64_t thread);
  /// Of a grid of groups.
  using Launch = void (*)(void** buffers, const int64_t* variables, const uint32_t* grid,
                          const uint32_t* group);
  /// `optimise` is the compiler's level.
  explicit CLibrary(const std::string& source, int optimise = 0, std::string_view language = "c");
  CLibrary(const CLibrary&) = delete;
  CLibrary& operator=(const CLibrary&) = delete;
  ~CLibrary() override;
  void run(const std::string& name, const std::vector<Given>& parameters,
           const Signature& signature, const std::vector<int64_t>& variables) const override;
  Function function(const std::string& name) const;

 private:
  Launch launch(const std::string& name) const;
  void* find(const std::string& name) const;
  std::string language_;
  void* library_ = nullptr;
};

/// A library of a text. That of CUDA is run on a GPU where there is one (cuda_text.hpp).
std::unique_ptr<TextLibrary> text_library(std::string_view language, const std::string& source,
                                          int optimise = 0);

/// The numbers of groups, or of threads in one, along each axis; they are constants.
std::array<uint32_t, 3> counts_of(const std::array<UOp, 3>& axes);

/// Values whose kernels, as text of a language, go through the system's compiler: many of them at
/// once, as starting a compiler is what costs, the last when `check` is called. Sizes must be
/// known. Kernels in C are shaped for threads, all others for groups of them.
class CText {
 public:
  /// So many kernels are one source: what a long run holds is bounded.
  static constexpr size_t most_functions = 1000;
  /// What makes a library of a text; the default is text_library.
  using Load = std::function<std::unique_ptr<TextLibrary>(const std::string& source)>;
  /// What kernels are lowered for, in the mode of the options; the default is the language's.
  using For = std::function<Target()>;
  /// `optimise` is the compiler's level.
  explicit CText(std::string language = "c", int optimise = 0)
      : language_(std::move(language)), optimise_(optimise) {}
  CText(std::string language, Load load, For target = nullptr)
      : language_(std::move(language)), load_(std::move(load)), target_(std::move(target)) {}
  /// What kernels are lowered for, in the mode of the options, and those of a value.
  Target target() const;
  std::vector<Kernel> kernels(const UOp& value) const { return case_of(value).kernels; }
  /// Takes a value in strict mode, and in default mode where that may differ; the interpreter says
  /// what it must be.
  void add(const UOp& value);
  /// In the mode of the options.
  void add(const UOp& value, BoundedArray expected, const std::optional<KernelEdits>& edits = {});
  /// In the mode of the options, with random edits of one of its kernels; false where none are
  /// legal, or where they change the bits of a sum that strict mode promises.
  bool add_edited(const UOp& value, std::mt19937_64& random);
  /// Compiles, runs and compares what was added since.
  void check();

  std::string seed;  ///< what makes the values that are added now, said where they differ

 private:
  struct Case {
    UOp value;
    BoundedArray expected;
    Callified program;
    std::vector<Kernel> kernels;
    size_t first;                       ///< number of its first function
    std::vector<Signature> signatures;  ///< of each
    std::string what;                   ///< mode, edits and seed
  };
  Case case_of(const UOp& value) const;
  void run(const Case& c, const TextLibrary& library) const;
  std::string language_;
  int optimise_ = 0;
  Load load_;
  For target_;
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
