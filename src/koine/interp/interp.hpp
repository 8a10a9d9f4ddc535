#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "koine/ir/uop.hpp"

// The reference interpreter: slow, obvious, strict floating point. It defines what a graph means,
// for tensor graphs and for linear programs, and is the oracle of every test.
namespace koine {

/// A dense row-major array of scalars. `valid` is empty where all elements are valid; otherwise it
/// holds the validity bit of each element (amendment C27).
struct Array {
  DType dtype = DType::Void;
  std::vector<int64_t> sizes;
  std::vector<Bits> data;
  std::vector<uint8_t> valid;

  int64_t numel() const;
  bool is_valid(size_t i) const { return valid.empty() || valid[i] != 0; }
};

/// What Buffers, Params and Variables stand for.
using Bindings = std::unordered_map<UOp, Array>;

/// The value of a tensor graph. Throws Error for an unbound Buffer or Param, naming its slot.
Array interpret(const UOp& root, const Bindings& bindings);
/// The value of an index scalar with Variables bound.
int64_t interpret_index(const UOp& index, const Bindings& bindings);

/// Arguments of a kernel: one pointer a Param slot, Variables by name, and the thread's number.
struct KernelArguments {
  std::vector<std::byte*> buffers;
  std::vector<int64_t> buffer_bytes;  ///< for bounds checks; empty: unchecked
  std::unordered_map<std::string, int64_t> variables;
  int64_t thread = 0;
};

/// Runs a Linear. Every access is checked against `buffer_bytes`: an access out of bounds is an
/// InternalError, because kernels guard what user indices can reach. The Special "thread" is
/// `arguments.thread`; for the Specials "gidx..." and "lidx..." all groups run, one after the
/// other, and all threads of a group: each runs up to a Barrier before any goes on behind it. LOCAL
/// buffers are shared by a group, registers belong to a thread. A Barrier that only some threads
/// reach, or in different iterations, is an InternalError.
void interpret_linear(const UOp& linear, const KernelArguments& arguments);

/// One elementwise op with its arg, decomposed ones included.
Bits interpret_scalar(Op op, DType out, DType in, std::span<const Bits> operands,
                      const Arg& arg = {});

Bits read_element(const std::byte* data, DType dtype, int64_t index);
void write_element(std::byte* data, DType dtype, int64_t index, Bits bits);

}  // namespace koine
