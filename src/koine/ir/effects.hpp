#pragma once
#include <span>
#include <unordered_map>
#include <vector>

#include "koine/ir/node_map.hpp"
#include "koine/ir/uop.hpp"

// Stores and what they make of memory in a graph of values. A Buffer, Param or copy is the first
// version of its memory, and an After that stores into it is the next; whoever names a version
// reads that state (rows B18 to B20).
namespace koine {

/// The Stores of a dependency, through Groups and Ends, in the order they are listed: where two
/// write one place, the later one stays. One that is listed twice is here once, the last time.
std::vector<UOp> stores_in(const UOp& effect);

/// The Afters that a dependency waits for: through Groups and Ends, and those below a value.
std::vector<UOp> afters_in(const UOp& dependency);

/// Whether an op shows the memory of its first source: an After, or a marker.
bool shows_memory(Op op);
/// Whether an op shows all of its first source, or a part, in another order or shape.
bool is_view(Op op);
/// What the Store of an output stores, without markers around it.
UOp stored_value(const UOp& store);

/// A copy that is a node of its own, as clone() makes it. Stores may go to its memory: an After on
/// one is a value like others, and nothing that somebody else can name is written over.
bool is_private_copy(const UOp& u);
/// A new one of `value`.
UOp private_copy(const UOp& value);
/// What somebody keeps of a value: of memory that others write a private copy.
UOp kept_value(const UOp& value);

/// False where nothing below can store.
bool has_effects(const UOp& root);

/// Whether the body of a Function below stores into memory.
bool bodies_store(const UOp& root);

/// The versions of all memory below a root, outside of the bodies of Functions.
class Versions {
 public:
  /// Throws Error (Value) where a Store fills no view of memory, and where two Afters store into
  /// one version: neither comes first.
  explicit Versions(const UOp& root);

  /// The version that a buffer, an After, or a view of one shows: a Buffer, a Param, a private copy
  /// or the After that stored it. Null for a value that is not in memory.
  UOp of(const UOp& view) const;
  /// The After whose stores overwrite a version; null: none.
  UOp overwritten_by(const UOp& version) const;

 private:
  void add(const UOp& after);

  NodeMap<UOp> passed_;       // After -> the version it shows
  NodeMap<UOp> overwritten_;  // version -> After
};

/// An AtomicAdd adds in each turn of all loops that close behind it, also of those that it does not
/// depend on: these loops, of each AtomicAdd of a kernel and of the Groups and Ends that hold one.
/// `order`: the nodes of the kernel, sources first.
std::unordered_map<UOp, std::vector<UOp>> loops_of_atomic_adds(std::span<const UOp> order);

}  // namespace koine
