#pragma once
#include <map>
#include <string>

#include "koine/engine/compiled_program.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine {

/// Compiles tensors by name and writes them to a file with all that they are computed from, but for
/// `inputs`, which whoever runs the file gives: tensors in memory that the outputs read. The file
/// holds machine code for this processor. Throws Error (Value) as CompiledProgram does, and Error
/// (File) where the file cannot be written.
void save_program(const std::map<std::string, Tensor>& outputs,
                  const std::map<std::string, Tensor>& inputs, const std::string& path);

/// A program from a file: it runs without compiling anything. For one thread at a time.
class SavedProgram {
 public:
  /// Throws Error (File) where there is no such file, Error (Value) where it is damaged or of
  /// another version, and Error (Device) where it is for another processor. Load only what you
  /// trust.
  explicit SavedProgram(const std::string& path);

  /// Outputs for inputs, by name. Errors are those of CompiledProgram::run.
  std::map<std::string, Tensor> operator()(const std::map<std::string, Tensor>& inputs,
                                           const VariableValues& variables = {});
  const CompiledProgram& compiled() const { return program_; }

 private:
  CompiledProgram program_;
};

}  // namespace koine
