#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

// What the interpreter, the verifier and every renderer ask of a linear program.
namespace koine {

/// The value or buffer behind Afters.
const UOp& strip_after(const UOp& u);
/// An Index into a buffer (an address), as opposed to one into a vector value.
bool is_address(const UOp& u);
/// Whether an integer lies in 32 bits with a sign, by its bounds.
bool fits_32_bits(const UOp& value);
/// The memory that an address lies in: the address itself where it is no Index.
const UOp& buffer_at(const UOp& address);
/// The Param or Buffer that an access goes to.
const UOp& accessed_buffer(const UOp& access);

/// Bytes that a LOCAL buffer has at most.
inline constexpr int64_t most_local_bytes = 256 << 10;

/// A Buffer of the kernel that lives in registers: whole values go in and out. Other Buffers of a
/// kernel are LOCAL memory, read and written by element.
bool is_register(const UOp& buffer);

/// A Param or Buffer of memory, or an After of one: flat, and not a value with lanes.
bool is_memory(const UOp& u);

/// For a vector access to consecutive elements: the scalar index of the first; null otherwise.
/// A base of null with `at_zero` set means element 0.
struct Contiguous {
  bool yes = false;
  UOp base;  ///< null: 0
};
Contiguous contiguous_access(const UOp& address);

/// Calls `visit` for each source whose value an instruction reads: sizes in Expand, Reshape and
/// Shrink are not values, and of a contiguous vector address only the base is computed.
void for_each_operand(const UOp& u, const std::function<void(const UOp&)>& visit);

/// The assembly and the constraints of an Ins. Throws Error (Value) where its text has not both.
std::pair<std::string, std::string> parts_of_instruction(const UOp& ins);

/// Lanes of a value: 1 for a scalar.
int64_t lane_count(const UOp& u);

/// Bits that a machine keeps an index value in: 32 for lanes that fit by their bounds, twice as
/// many to a register; 64 for a scalar, which becomes part of an address.
int index_bits(const UOp& value);
/// Bits that an elementwise op computes its indices in: enough for its result and all operands; 32
/// also for a division of scalars that fit, which is much faster than one in 64.
int computing_bits(const UOp& op);

/// What a kernel is launched with.
struct Signature {
  int64_t buffers = 0;                 ///< slots
  std::vector<int64_t> slots;          ///< that it names, ascending
  std::vector<std::string> variables;  ///< sorted by name
  int64_t threads = 1;                 ///< its Special "thread"
  /// Groups, and threads of a group, along each axis: bounds of gidx0 to 2 and lidx0 to 2, or null
  /// for 1.
  std::array<UOp, 3> grid, group;
};
/// Names of the Specials along an axis of the grid, 0 to 2.
std::string group_index_name(size_t axis);
std::string index_in_group_name(size_t axis);
Signature signature_of(const UOp& linear);

}  // namespace koine
