#pragma once
#include <optional>
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

// Running folds: cumsum, cumprod, cummax, the prefix sum of the specification, and their gradients.
// As a graph says it, each result folds a part of a row again, n^2 for n of them. A kernel says it
// as Reduce(f(t), t in 0..k) for its innermost loop k, which Expand computes with one accumulator
// that goes on from one k to the next.
namespace koine {

/// How a Reduce over one Range j is a running fold along a loop of its kernel.
struct Scan {
  UOp loop;      ///< moves the fold on by one element a step
  bool down;     ///< the fold grows where the loop's number falls
  UOp entering;  ///< the j of the element that a step of the loop adds
  UOp counter;   ///< the Range t that counts the folded elements
  UOp value;     ///< element t
  UOp key;  ///< of what a step of the loop adds: only elements with an equal key are folded; null:
            ///< all
  int64_t keys = 1;  ///< its values are 0 to keys - 1
};

/// Null where a Reduce is none along any of these loops.
std::optional<Scan> find_scan(const UOp& reduce, std::span<const UOp> loops, bool strict);

/// The kernel with its running folds as Reduce(f(t), t in 0..k) along its innermost loop k. The
/// same kernel where it has none; folds along a second loop, or in the other direction, stay as
/// they are.
UOp scan_kernel(const UOp& ast, bool strict);

/// The loops that count the elements of a running fold, outermost first: k = (k2 * n1 + k1) * n0 +
/// k0 in Reduce(f(t), t in 0..k), where f does not depend on them. Empty: the Reduce is none.
std::vector<UOp> running_levels(const UOp& reduce);

/// Whether a kernel's loop is one of the levels of a running fold: these go on in order.
bool is_running_loop(const UOp& ast, const UOp& loop);

/// The loop of running float sums taken apart into levels of at most eight steps, so that a result
/// has as few roundings as that of a tree (default mode).
UOp running_sums_in_levels(const UOp& ast);

}  // namespace koine
