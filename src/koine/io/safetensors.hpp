#pragma once
#include <map>
#include <string>

#include "koine/tensor/tensor.hpp"

namespace koine {

/// Reads a safetensors file. Throws Error (File) saying what is wrong and where for anything that
/// is not exactly the format; sizes are checked against the file before memory is allocated.
std::map<std::string, Tensor> safe_load(const std::string& path, const std::string& device = "");
/// Writes tensors by name. Throws Error (File) when the file cannot be written.
void safe_save(const std::map<std::string, Tensor>& tensors, const std::string& path);

}  // namespace koine
