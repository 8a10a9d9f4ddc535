#pragma once
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine::test {

/// What random graphs may hold beyond elementwise ops, casts, movement, reduces and positions in
/// range or not.
struct Features {
  bool functions = false;       ///< Functions over Functions, which capture what stands around them
  bool gated_loads = false;     ///< Load(buffer, alt, gate)
  bool wide_positions = false;  ///< uint64 positions above 2^63
  bool raw_bytes = false;       ///< Binary
  bool resizing_bitcasts = false;
  bool markers = false;  ///< Detach, ContiguousBackward, Replicated
  bool threefry = false;
  bool whole_mulacc = true;  ///< Mulacc and Trunc of integers and bools

  static Features all() { return {true, true, true, true, true, true, true, true}; }
};

/// Grows a random well-typed tensor graph from leaves that its maker gives. No value has more than
/// `most_elements`, so that the interpreter is quick.
class GraphGenerator {
 public:
  using Leaf = std::function<UOp(const std::vector<int64_t>& sizes, DType dtype)>;
  GraphGenerator(std::mt19937_64& random, Leaf leaf, Features features = {},
                 int64_t most_elements = 3000)
      : random_(random),
        make_leaf_(std::move(leaf)),
        features_(features),
        most_elements_(most_elements) {}

  /// A few steps from a leaf of random shape, empty and size-1 axes among them. No element of it is
  /// invalid.
  UOp graph(DType dtype, int64_t most_steps = 10);
  /// The same from a given leaf, in so many steps.
  UOp graph_over(const UOp& leaf, int64_t steps);
  /// A few steps from a value.
  UOp grow(const UOp& from, int64_t steps);
  /// Sizes of a leaf: rank 0 to 3.
  std::vector<int64_t> sizes();

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <class T>
  T pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

  UOp partner(const UOp& x);
  UOp step(const UOp& x);
  UOp elementwise(const UOp& x);
  UOp movement(const UOp& x);
  UOp padded(const UOp& x);
  UOp reshaped(const UOp& x);
  UOp stacked(const UOp& x);
  UOp positions(int64_t n);
  UOp indexed(const UOp& x);
  UOp bitcasted(const UOp& x);
  UOp reduced(const UOp& x);
  UOp marked(const UOp& x);
  UOp gated_load(const UOp& x);
  UOp called(const UOp& x);
  UOp special(const UOp& x);

  std::mt19937_64& random_;
  Leaf make_leaf_;
  Features features_;
  int64_t most_elements_;
  bool padded_ = false;
  int depth_ = 0;  // of Functions
};

/// A graph over fresh leaves with memory; of the plain features if none are named.
UOp random_graph(std::mt19937_64& random, Features features = {});
/// The same from a leaf of some hundred thousand elements, in few steps: large enough for threads.
UOp large_random_graph(std::mt19937_64& random);

}  // namespace koine::test
