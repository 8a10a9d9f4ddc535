#pragma once
#include <absl/container/flat_hash_map.h>

#include <functional>
#include <utility>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/rules/places.hpp"

namespace koine {

/// What a kernel knows of memory while its values are indexed.
class KernelReads {
 public:
  virtual ~KernelReads() = default;
  /// Whether a node is read from memory here, and not computed.
  virtual bool is_read(const UOp& node) = 0;
  /// The Param of this kernel that stands for the memory of a node, seen with a dtype and a number
  /// of elements.
  virtual UOp param_of(const UOp& node, DType dtype, const UOp& elements) = 0;
  /// The stores of an After around a value that is not in memory must run before this kernel.
  virtual void wait_for(const UOp& after) = 0;
};

/// For a look at how a value follows from positions: what is a leaf stands for itself.
class Leaves : public KernelReads {
 public:
  explicit Leaves(std::function<bool(const UOp&)> is_leaf) : is_leaf_(std::move(is_leaf)) {}
  bool is_read(const UOp& node) override { return is_leaf_(node); }
  UOp param_of(const UOp& node, DType dtype, const UOp& elements) override;
  void wait_for(const UOp&) override {}

 private:
  std::function<bool(const UOp&)> is_leaf_;
  absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots_;
};

/// The elements of values in one kernel: indices are pushed from a value down to the memory it is
/// read from. Nothing is decided here; what reads equal elements is one node.
class Indexer {
 public:
  /// Ranges are numbered from `first_range` on.
  Indexer(KernelReads& memory, bool strict, int64_t first_range = 0)
      : memory_(memory), strict_(strict), next_range_(first_range) {}

  /// A scalar: the element of a node at a place.
  UOp element(const UOp& node, const Indices& at);
  /// New loops over all elements of a value, outermost first, and the place they stand at.
  Indices open_loops(const UOp& value, std::vector<UOp>& loops);
  /// The place in the source of an Index op, and the condition under which it exists.
  Indices indexed_place(const UOp& node, const Indices& at, UOp& inside);

 private:
  // A node, the place it is read at, and the condition under which the place exists (null: always).
  struct Place {
    UOp node;
    Indices at;
    UOp guard;
    bool operator==(const Place&) const = default;
    template <class H>
    friend H AbslHashValue(H state, const Place& p) {
      state = H::combine(std::move(state), p.node.node(), p.guard.node());
      for (const UOp& i : p.at) state = H::combine(std::move(state), i.node());
      return state;
    }
  };
  // A buffer in LOCAL memory of this kernel, the place that its loops fill, and the axes of the
  // value that lie in it.
  struct Local {
    Indices at;
    std::vector<UOp> loops;
    Ints axes;
    UOp buffer;
    UOp filled;  // null: not yet
  };

  UOp need(Place place);
  UOp build(const Place& place);
  UOp read(const Place& place, const UOp& from);
  UOp elementwise(const Place& place);
  UOp reduction(const Place& place);
  UOp stacked(const Place& place);
  UOp padded(const Place& place);
  UOp gated(const Place& place);
  UOp local(const Place& place);
  Local open_local(const Place& row);
  UOp indexed(const Place& place);

  KernelReads& memory_;
  bool strict_;
  absl::flat_hash_map<Place, UOp> memo_;
  absl::flat_hash_map<Place, Indices> reduce_ranges_;
  absl::flat_hash_map<Place, Local> locals_;  // by where a row begins
  std::vector<Place> missing_;  // asked for and not known yet: the result at hand is thrown away
  int64_t next_range_ = 0;
};

}  // namespace koine
