#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/engine/executable.hpp"

namespace koine {

/// What a compiled program is given or gives under a name.
struct ProgramPort {
  std::string name;
  std::vector<int64_t> sizes;
  DType dtype;
  std::string device;
};

/// The memory that holds a value whole, in its order, under whatever shape; null: there is none.
UOp memory_behind(UOp value);

/// Values that were compiled ahead: the host program, machine code for its kernels, and what memory
/// it reads besides its inputs, such as weights. As bytes it goes to another process, which runs it
/// without compiling anything. For one thread at a time.
class CompiledProgram {
 public:
  /// Compiles values by name. `inputs` are values in memory that the others are computed from;
  /// what else these read is kept as it is now. Throws Error (Value) where no value reads an input,
  /// since it was computed before, or where a size is symbolic.
  CompiledProgram(const std::map<std::string, UOp>& outputs,
                  const std::map<std::string, UOp>& inputs);
  /// Throws Error (Value) for bytes that are damaged or of another version, and Error (Device)
  /// where they were compiled for another processor or device than there is here.
  explicit CompiledProgram(std::string_view bytes);

  /// Machine code is in it: load only what you trust.
  std::string to_bytes() const;

  const std::vector<ProgramPort>& inputs() const { return inputs_; }
  const std::vector<ProgramPort>& outputs() const { return outputs_; }
  /// Outputs by name, new Buffers each time, for inputs in memory. Throws Error (Key) naming inputs
  /// that are missing or unknown, Error (Value) where one has another shape, dtype or device, Error
  /// (Index) where a position that an input holds is out of range.
  std::map<std::string, UOp> run(const std::map<std::string, UOp>& inputs,
                                 const VariableValues& variables = {});
  /// The host program, and the source of each kernel.
  const UOp& schedule() const;
  std::string source() const;

 private:
  // Where the memory of a slot comes from: a port, or what the program holds itself.
  struct Slot {
    enum class Kind : uint8_t { Input, Output, Own } kind = Kind::Own;
    size_t port = 0;
    UOp buffer;
  };

  CompileOptions how_;
  std::string device_;
  std::shared_ptr<const Executable> executable_;
  VariableValues literals_;
  std::vector<ProgramPort> inputs_, outputs_;
  std::vector<Slot> slots_;    // of the executable's arguments
  std::vector<Slot> results_;  // where each output lies
  std::optional<Submission> submission_;
};

}  // namespace koine
