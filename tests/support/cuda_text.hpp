#pragma once
#include <map>

#include "c_text.hpp"

// Kernels in CUDA C++ and in PTX on a GPU, by NVIDIA's driver (libcuda) and its compiler (NVRTC),
// which are loaded when they are first asked for: nothing of CUDA is needed to build this.
namespace koine::test {

/// What is missing to run such text; empty where a GPU, the driver and NVRTC are.
const std::string& cuda_missing();

/// Text on the first GPU. Throws std::runtime_error with the compiler's log, and the text, where it
/// is refused, and with the driver's words where a kernel fails.
class CudaLibrary : public TextLibrary {
 public:
  /// `language` is cuda or ptx, of which one file is a module each time it begins with a version;
  /// `fused` lets the compiler contract products and sums, as its users' default is.
  explicit CudaLibrary(const std::string& source, std::string_view language = "cuda",
                       bool fused = false);
  ~CudaLibrary() override;
  CudaLibrary(const CudaLibrary&) = delete;
  CudaLibrary& operator=(const CudaLibrary&) = delete;
  void run(const std::string& name, const std::vector<Given>& parameters,
           const Signature& signature, const std::vector<int64_t>& variables) const override;

 private:
  void add_module(const std::string& image);
  std::string language_;
  std::vector<void*> modules_;
};

}  // namespace koine::test
