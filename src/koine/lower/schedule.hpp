#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "koine/interp/host_function.hpp"
#include "koine/ir/uop.hpp"

// The host program: Linear(Call(kernel, buffers..., Variables...)...), the device of each Call
// being that of its buffers. Arguments of the program are Params, temporaries are Buffers.
namespace koine {

/// The reason of a kernel that the user wants apart: it is not merged with others.
constexpr std::string_view asked_for = "asked for by contiguous()";
/// The reason of a kernel that stores into memory that was there before.
constexpr std::string_view assignment = "assignment";
/// Whether a value is that of another place in memory, on another device.
bool is_transfer(const UOp& value);
/// Whether a body is the CustomFunction that moves the bytes of its second buffer to its first.
bool is_copy(const UOp& ast);
/// Whether a body is the CustomFunction that looks at a flag: what stands behind it in a host
/// program runs where the flag is 0.
bool is_check(const UOp& ast);
/// Whether a launch is of a kernel, which is compiled; the host does what any other says.
bool is_kernel_body(const UOp& ast);

/// One launch, as its Call shows it. `ast` is a Sink of Ends over Stores in which every value has
/// shape () and slot k of its Params is buffers[k], a CustomFunction that names what the host does,
/// or a loop (`lower/loops`).
struct Kernel {
  explicit Kernel(UOp shown);
  UOp call;  ///< keeps the rest alive
  UOp ast;
  std::span<const UOp> buffers;
  std::span<const UOp> waits;  ///< buffers that must be filled before, and that it does not read
  std::span<const UOp> variables;  ///< that the kernel reads, sorted by name; bound: of this launch
  std::string_view reason;         ///< why this is a kernel of its own

  Device device() const { return call.device(); }
  /// Whether it stores into buffers[slot].
  bool stores(size_t slot) const;

 private:
  std::vector<bool> stored_;  // by slot
};

/// The Params of a kernel that stand for buffers, by slot.
std::vector<UOp> slots_of(const UOp& ast);
/// The same Param for another slot.
UOp with_slot(const UOp& param, int64_t slot);

/// The launches of a host program, in order.
std::vector<Kernel> kernels_of(const UOp& schedule);
/// A launch of `ast` on those of the buffers that it uses, and the Variables that it reads. Bound
/// ones among `values` are those of this launch alone; the others are arguments of the program. Of
/// a kernel that waits for others, with the buffers of these behind.
UOp kernel_call(const UOp& ast, std::span<const UOp> buffers, std::string_view reason,
                std::span<const UOp> values = {}, std::span<const UOp> waits = {});

/// For each launch the earlier ones that must have run: those that make what it reads, those
/// that read or stored what it overwrites, and a check.
std::vector<std::vector<size_t>> dependencies_of(const std::vector<Kernel>& kernels);

/// Leaves out launches that make temporaries nobody reads: rules may have folded the loads away.
UOp without_unread(const UOp& schedule);

/// What lies on no device (it is computed from constants alone) goes where it is read, on each such
/// device once.
UOp on_devices(const UOp& schedule);

/// Bytes of a temporary; symbolic sizes take their largest value. INT64_MAX stands for more.
int64_t largest_bytes(const UOp& buffer);

}  // namespace koine
