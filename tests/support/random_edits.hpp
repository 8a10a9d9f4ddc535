#pragma once
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "koine/lower/optimize.hpp"

namespace koine::test {

/// Edits of a kernel, each legal after those before it.
struct Edits {
  std::vector<Opt> list;
  bool reorders = false;  ///< a sum takes its elements in another order
  std::string text() const;
};

/// Up to six, drawn at random from what a target allows.
Edits random_edits(UOp ast, std::mt19937_64& random, const Target& target);

/// All splits of one axis by some amount.
std::vector<Opt> legal_splits(const UOp& ast, std::initializer_list<int64_t> amounts,
                              const Target& target = {});

/// Whether a sum takes its elements in another order after a split.
bool reorders(const Opt& opt);

/// Whether the order of a sum can be seen in its value.
bool folds_floats(const UOp& graph);

}  // namespace koine::test
