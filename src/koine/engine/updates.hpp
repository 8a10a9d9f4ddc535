#pragma once
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <functional>
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

// Writes through views, as programs run them. In a graph of values After(copy, Store(view, value))
// stores into a private copy: whoever names the old contents has them. A program stores in place
// where nobody does.
namespace koine {

/// The values of one request over the memory that their writes go to.
///
/// A private copy becomes new memory; or it is left out and what it copies is written in place,
/// where nobody can ask for the old contents once the program has run. What somebody holds that was
/// computed from them is computed by this program too, if that is no more than the copy would be.
class Updates {
 public:
  /// `lasts`: whether a value stands for its result once it has been computed. `in_place` false:
  /// every private copy becomes new memory.
  Updates(const std::vector<UOp>& request, const std::function<bool(const UOp&)>& lasts,
          bool in_place = true);

  /// What to compute: the request, then what is held, and what is written and not asked for.
  const std::vector<UOp>& values() const { return values_; }
  /// Buffers that private copies became.
  std::vector<UOp> copies() const;
  /// What of a position in values() the caller asked for or holds.
  const UOp& original(size_t position) const { return originals_[position]; }

  /// Whether the program changes what somebody may see while it runs.
  bool write_in_place() const { return writes_in_place_; }
  /// The program has run. The last state of each memory is from now on the result of its After;
  /// memory that was written in place belongs to a new Buffer, which `results` then name.
  void commit(std::vector<UOp>& results) const;

 private:
  struct Root {
    const Node* node;  // the copy, or an After with a result that others go on from
    const Node* last;  // the After that nothing overwrites
    UOp memory = {};
    bool in_place = false;
  };

  void find_roots();
  void choose_memory(Root& root, bool in_place);
  bool stores_into_what_was_seen(const Root& root, const UOp& memory) const;
  bool nobody_wants(const UOp& memory);
  bool is_settled(const UOp& u);
  bool keep_held(const std::vector<const Node*>& held, const UOp& memory);
  void rewrite();

  std::function<bool(const UOp&)> lasts_;
  std::vector<UOp> originals_, graphs_, values_;      // graphs_: with bodies that store inlined
  NodeList order_;                                    // of what has no result yet
  absl::flat_hash_map<const Node*, uint32_t> uses_;   // edges from there
  absl::flat_hash_map<const Node*, size_t> root_of_;  // of a root and the Afters on it
  absl::flat_hash_set<const Node*> settled_;    // read by their results once the program has run
  absl::flat_hash_set<const Node*> requested_;  // of which that is not known yet
  std::vector<Root> roots_;
  bool writes_in_place_ = false;
};

}  // namespace koine
