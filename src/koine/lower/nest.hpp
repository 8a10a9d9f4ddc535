#pragma once
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "koine/base/hash.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A Store of a nest, and how many of its loops it stands in.
struct PlacedStore {
  UOp store;
  size_t depth;
};

/// A kernel of one loop nest whose Stores go to places that nothing else in it touches, but for the
/// rows that it fills for itself. A Store may stand in the outer loops alone: the maximum of a row
/// beside what is made of it.
struct Nest {
  UOp kernel;              ///< all of it
  std::vector<UOp> loops;  ///< outermost first
  std::vector<PlacedStore> stores;
  std::vector<UOp> loads;
  std::vector<UOp> rows;                 ///< LOCAL buffers
  std::vector<UOp> slots;                ///< Params that stand for buffers, by slot
  size_t operations = 0;                 ///< on values
  int64_t next_range = 0, next_row = 0;  ///< numbers that no Range has, and no row
  bool is_running = false;               ///< a fold goes on along one of the loops
};

/// Whether an access is of a row; the slot of any other.
bool is_in_row(const UOp& access);
int64_t slot_of(const UOp& access);

/// Where Stores go: all places that a Store may write, and what is left of them by each number that
/// they are multiples of, as columns are by the length of a row.
class Places {
 public:
  /// Whether two Stores into one buffer never meet, wherever their loops are.
  bool are_apart(const UOp& a, const UOp& b);
  bool is_apart_from(const UOp& store, const std::vector<UOp>& others);

 private:
  using Remainders = std::vector<std::pair<uint64_t, Interval>>;  // divisor 0: the place itself
  const Remainders& of(const UOp& store);
  std::unordered_map<UOp, Remainders> known_;
};

/// Null where a kernel has another form, or a product whose register tile would repeat many times
/// what stands beside it.
std::optional<Nest> nest_of(const UOp& ast, Places& places);
/// The kernel of these Stores: a Group a depth, the next loops around what is inside of it.
UOp nested(const std::vector<UOp>& loops, const std::vector<PlacedStore>& stores);

}  // namespace koine
