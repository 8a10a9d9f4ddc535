#include "koine/io/program.hpp"

#include <fstream>
#include <iterator>

#include "koine/base/error.hpp"

namespace koine {
namespace {

std::map<std::string, UOp> values_of(const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, UOp> out;
  for (const auto& [name, tensor] : tensors) out.emplace(name, tensor.uop());
  return out;
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  KOINE_REQUIRE(in, File, "{}: cannot be opened", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

void save_program(const std::map<std::string, Tensor>& outputs,
                  const std::map<std::string, Tensor>& inputs, const std::string& path) {
  const std::string bytes = CompiledProgram(values_of(outputs), values_of(inputs)).to_bytes();
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  KOINE_REQUIRE(out.flush(), File, "{}: cannot be written", path);
}

SavedProgram::SavedProgram(const std::string& path)
    : program_(std::string_view(bytes_of_file(path))) {}

std::map<std::string, Tensor> SavedProgram::operator()(const std::map<std::string, Tensor>& inputs,
                                                       const VariableValues& variables) {
  std::map<std::string, UOp> given;  // views and what is not computed yet get memory
  for (const auto& [name, tensor] : inputs)
    given.emplace(name,
                  memory_behind(tensor.uop()) ? tensor.uop() : tensor.contiguous().realize().uop());
  std::map<std::string, Tensor> out;
  for (const auto& [name, buffer] : program_.run(given, variables))
    out.emplace(name, Tensor(buffer));
  return out;
}

}  // namespace koine
