#pragma once
#include <webgpu.h>

#include "c_text.hpp"

// Kernels in WGSL, through the C library of the package wgpu, whose functions are WebGPU's.
namespace koine::test {

/// The first device that Vulkan offers. Throws std::runtime_error with what is missing.
WGPUDevice wgpu_device();

/// A text that the device has taken. Throws std::runtime_error with its log, and the text, where it
/// is refused.
class WgslLibrary : public TextLibrary {
 public:
  explicit WgslLibrary(std::string source);
  ~WgslLibrary() override;
  WgslLibrary(const WgslLibrary&) = delete;
  WgslLibrary& operator=(const WgslLibrary&) = delete;
  void run(const std::string& name, const std::vector<Given>& parameters,
           const Signature& signature, const std::vector<int64_t>& variables) const override;
  /// In a grid of so many groups.
  void run(const std::string& name, const std::vector<Given>& parameters,
           const std::vector<int32_t>& variables, const std::array<uint32_t, 3>& grid) const;

 private:
  WGPUComputePipeline pipeline(const std::string& name) const;
  std::string source_;
  WGPUShaderModule module_;
};

}  // namespace koine::test
