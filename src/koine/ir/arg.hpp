#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "koine/ir/axis_set.hpp"
#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"

namespace koine {

/// Where a buffer lives.
enum class AddrSpace : uint8_t { Global, Local, Reg };

/// What a Range of a kernel becomes (the spec's AxisTypes).
enum class AxisType : uint8_t {
  Global,
  Local,
  Warp,
  Thread,
  Loop,
  Reduce,
  GroupReduce,
  Upcast,
  Unroll,
  Lane  ///< the number of a lane, while Select takes vectors apart: in no kernel before or after
};
constexpr int axis_type_count = 10;

/// Whether a Reduce folds Ranges of this type.
bool is_reduction(AxisType type);
std::string_view addrspace_name(AddrSpace space);
std::string_view axis_type_name(AxisType type);
/// The spec's letter of an axis type: g l w t L R G u r, and v of a
/// lane.
char axis_letter(AxisType type);

/// An interned device such as "CPU" or "CPU:1", or several, such as "CPU,CPU:1". Number 0 is left
/// out: "CPU:0" is "CPU". Null means: no device.
class Device {
 public:
  Device() = default;
  explicit Device(std::string_view name);
  const std::string& name() const;
  /// How many devices: 1, or the length of the tuple.
  size_t count() const;
  Device part(size_t i) const;
  explicit operator bool() const { return entry_ != nullptr; }
  bool operator==(const Device&) const = default;

 private:
  struct Entry;
  const Entry* entry_ = nullptr;
};

struct ConstArg {
  DType dtype;
  Bits bits;
  bool invalid = false;  ///< the poison element of amendment C27
  bool operator==(const ConstArg&) const = default;
};
/// What a Param stands for. One with a name is a Variable.
enum class ParamKind : uint8_t {
  Argument,  ///< of a program, a kernel or a body: the one at its slot
  Traced,    ///< an argument of a function that is being traced; its slot no other one has
  ViewBase   ///< the memory below the movement ops of a view
};
constexpr int param_kind_count = 3;
std::string_view param_kind_name(ParamKind kind);

/// Param and Buffer.
struct BufferArg {
  static constexpr int64_t no_slot = -1;  ///< of a Variable, and of the base of a view
  int64_t slot;
  DType dtype;
  Device device;
  AddrSpace space = AddrSpace::Global;
  std::string name;     ///< of a Variable; empty otherwise
  int64_t offset = -1;  ///< bytes into its device's arena; -1: not placed
  AxisSet axes = 0;     ///< that several devices split; none: each of them holds all of it
  ParamKind kind = ParamKind::Argument;
  bool operator==(const BufferArg&) const = default;
};
struct RangeArg {
  int64_t id;
  AxisType type;
  bool operator==(const RangeArg&) const = default;
};
using Ints = std::vector<int64_t>;
struct ReduceArg {
  Op op;
  Ints axes;
  bool goes_on = false;   ///< inside of Expand: it holds the newest element of a running fold
  std::string core = {};  ///< of a kernel: the tensor core that computes it (target/tensor_core)
  bool staged = false;    ///< of a kernel: its factors go through LOCAL memory (lower/stage)
  bool operator==(const ReduceArg&) const = default;
};
/// A Wmma: its tensor core, and which axes of A, B and the accumulator are the elements that one
/// thread holds, in the core's order. Empty: all of a vector.
struct WmmaArg {
  std::string core;
  Ints a = {}, b = {}, accumulator = {};
  bool operator==(const WmmaArg&) const = default;
};
struct LoadArg {
  Device device;
  AddrSpace space;
  /// Of a value that goes to LOCAL memory: the axes that lie there at once, ascending, so that it
  /// holds one row at a time, for each place along the other axes. Empty: all of the value.
  Ints axes = {};
  std::string reason = {};  ///< why it goes there
  bool operator==(const LoadArg&) const = default;
};
/// Code text or a name, with the dtype of its value.
struct CodeArg {
  std::string text;
  DType dtype;
  bool operator==(const CodeArg&) const = default;
};

/// What a Contiguous, a Detach or an End is beyond what its op says.
enum class Mark : uint8_t {
  Copies,         ///< Contiguous: it copies, also what lies in memory
  Private,        ///< Contiguous: the same, and a node of its own, by its number (`private_copy`)
  UnlessInvalid,  ///< Contiguous: memory, unless the value has invalid elements, which memory could
                  ///< not hold
  Leaf,           ///< Detach: a leaf, by its number, that a gradient may be asked for
  InOrder         ///< End: its iterations may store to one place; the last of them stays
};
constexpr int mark_count = 5;
std::string_view mark_name(Mark mark);
/// The op that a mark is made for.
Op op_of(Mark mark);
/// Whether a mark has a number, which no other of the process has; that of the others is 0.
bool is_numbered(Mark mark);

struct MarkArg {
  Mark mark;
  int64_t number = 0;
  bool operator==(const MarkArg&) const = default;
};

/// The op-dependent argument of a node; compared by bits.
using Arg = std::variant<std::monostate, int64_t, DType, ConstArg, BufferArg, RangeArg, Ints,
                         ReduceArg, LoadArg, std::string, CodeArg, MarkArg, WmmaArg>;

/// Deterministic across runs and machines.
uint64_t arg_hash(const Arg& arg);

}  // namespace koine
