#pragma once
#include <absl/container/inlined_vector.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "koine/interp/interp.hpp"
#include "koine/interp/scalar.hpp"

namespace koine {

/// The elements of a value inside of a kernel, row-major; one for a scalar.
using Lanes = absl::InlinedVector<Bits, 2>;

/// How an op computes a value from values: elementwise with broadcasting, Stack, Expand, Reshape,
/// Shrink, Bitcast, and an Index with constant or computed positions; and what belongs together in
/// a Load or Store of several elements. What depends on shapes alone is worked out once. Shapes are
/// concrete.
class ValueOp {
 public:
  ValueOp() = default;
  explicit ValueOp(const UOp& node);

  /// The sources whose values are read: shape operands are not.
  static size_t value_sources(const UOp& node);
  /// Elements of the result, or that are accessed.
  size_t count() const { return count_; }
  /// Which element of operand `k` the result's element `i` is made of.
  size_t from(size_t k, size_t i) const {
    return k < maps_.size() && !maps_[k].empty() ? maps_[k][i] : i;
  }
  Lanes compute(std::span<const Lanes* const> operands) const;

 private:
  void broadcast(size_t operand, const UOp& source, const UOp& whole);
  void movement();

  UOp node_;
  std::optional<ScalarOp> each_;  // of an op that computes each element by itself
  size_t count_ = 1;
  std::vector<std::vector<uint32_t>> maps_;  // of an operand; empty: element i
};

/// Bytes of a kernel's buffers, bounds checked. LOCAL and REG buffers are made on first use.
class KernelMemory {
 public:
  /// `arguments` outlive this. An empty `buffer_bytes` leaves Params unchecked.
  explicit KernelMemory(const KernelArguments& arguments) : arguments_(arguments) {}

  /// Element `index` of the buffer behind an access. Throws InternalError where it is out of
  /// bounds; `access` is named in the message.
  Bits read(const UOp& buffer, DType dtype, int64_t index, const UOp& access);
  void write(const UOp& buffer, DType dtype, int64_t index, Bits bits, const UOp& access);

 private:
  std::byte* place(const UOp& buffer, DType dtype, int64_t index, const UOp& access);

  const KernelArguments& arguments_;
  std::unordered_map<const Node*, std::vector<std::byte>> own_;
};

}  // namespace koine
