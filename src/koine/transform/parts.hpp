#pragma once
#include <absl/container/flat_hash_map.h>

#include <string>
#include <utility>
#include <vector>

#include "koine/ir/uop.hpp"

// What several devices hold of a value, how it is cut and joined, and how it goes to another one.
namespace koine {

/// By device; one for a value that lies on one device or on none.
using Parts = std::vector<UOp>;

/// The shape of what one device holds of a value.
UOp part_shape(const UOp& value);
/// The value's shape with another size of one axis.
UOp shape_with(const UOp& value, size_t axis, const UOp& size);

/// Of an axis cut into equal pieces, `count` of them.
struct Cut {
  size_t axis, first, count, pieces;
};
constexpr Cut all_of_it{0, 0, 1, 1};

UOp sliced(const UOp& value, const Cut& cut);
/// Values of equal shapes, one behind the other along an axis.
UOp joined(const Parts& pieces, size_t axis);

/// Copies between devices, each of which is made once: whoever wants the same value on the same
/// device reads it.
class Copies {
 public:
  /// The value on a device; itself where it lies there or nowhere. What only repeats or counts its
  /// axes otherwise does so behind the copy. `reason`: what a copy that is made now is for.
  UOp of(const UOp& value, Device device, const std::string& reason);

 private:
  absl::flat_hash_map<std::pair<const Node*, const std::string*>, UOp> made_;  // by value, device
};

}  // namespace koine
