#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "koine/interp/kernel.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// What a graph is, and so how it runs in the interpreter.
enum class Level : uint8_t {
  Program,   ///< a Sink of Stores to leaves and of Afters: values of tensors
  Schedule,  ///< a Linear of Calls of kernels on Params and Buffers
  Kernel,    ///< a kernel between Rangeify and Linearize
  Linear,    ///< a linear program
};

/// Memory behind a leaf: a Buffer or a Param of a program, the Param of a slot of a kernel.
struct Storage {
  UOp leaf;
  DType dtype;
  std::vector<int64_t> sizes;
  std::vector<std::byte> bytes;
  std::vector<double> deviations;  ///< of the elements; missing ones are 0
};

/// The dtypes of a kernel's slots, for graphs that hold narrow floats as integers of their size.
using SlotTypes = std::unordered_map<int64_t, DType>;
SlotTypes slot_types_of(const UOp& kernel);

/// Inputs of one run, or what memory holds after it.
struct Setting {
  std::string name;
  bool last_resort = false;  ///< for graphs that other positions than 0 lead out of bounds
  std::vector<Storage> memory;
  std::unordered_map<std::string, int64_t> variables;
};

/// Scalar operations of a run; saturates.
double operations_of(const UOp& graph, Level level,
                     const std::unordered_map<std::string, int64_t>& variables);

/// Several inputs for a graph of at most `most_operations`: numbers whose sums are exact, ordinary
/// ones, and limits, NaN, infinities and signs of zero; each with the smallest, the largest and a
/// middle value of its Variables. Equal graphs get equal inputs. Empty where the graph, or
/// its memory, is too large.
std::vector<Setting> settings_of(const UOp& graph, Level level, double most_operations,
                                 const SlotTypes& types = {});

/// Elements of a shape operand, or one index scalar, with Variables bound.
int64_t evaluate_index(const UOp& index, const std::unordered_map<std::string, int64_t>& variables);

struct Outcome {
  enum class State { Ran, Failed, Undetermined } state = State::Ran;
  std::string failure;
  Setting after;
};

/// Runs a kernel that was compiled for a machine.
using CompiledKernel = std::function<void(const KernelArguments&)>;

/// Runs a graph in the interpreter. Temporaries of a schedule lie where they are planned, or apart
/// from each other before that.
Outcome run_graph(const UOp& graph, Level level, const Setting& setting,
                  const Liberties& liberties);
/// The same of compiled code; accesses are not checked.
Outcome run_compiled(const CompiledKernel& kernel, const Setting& setting);

/// How two outcomes of the same setting differ, in words; empty where they do not. An element may
/// deviate by what either outcome says; without deviation the bits are equal, NaNs as a class.
std::string difference_of(const Outcome& expected, const Outcome& got);

/// The setting as text: one line a leaf and a Variable.
std::string setting_text(const Setting& setting);

}  // namespace koine
