#pragma once
#include "c_text.hpp"
#include "koine/runtime/cl/compiler.hpp"

namespace koine::test {

/// Text in OpenCL C on a device of OpenCL, the first that is offered. Throws std::runtime_error
/// with the compiler's log, and the text, where it is refused.
class ClLibrary : public TextLibrary {
 public:
  explicit ClLibrary(const std::string& source);
  void run(const std::string& name, const std::vector<Given>& parameters,
           const Signature& signature, const std::vector<int64_t>& variables) const override;

 private:
  cl::BuiltProgram program_;
};

/// "GROUPS" is the same hardware taken for one that is no CPU: kernels are shaped for groups of
/// work items, which share LOCAL memory and wait for each other.
std::string groups_device();

}  // namespace koine::test
