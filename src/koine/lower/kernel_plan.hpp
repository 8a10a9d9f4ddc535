#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/lower/heuristic.hpp"

// What the heuristics of all machines ask of a kernel, and the edits they collect.
namespace koine {

/// The size of a range that is planned for: of one over Variables the largest. 0: a loop that ends
/// where another one stands, or so many steps that nobody waits for them; products of two sizes fit
/// into 63 bits.
int64_t size_of(const UOp& range);
bool is_symbolic(const UOp& range);
/// Whether each value of a size is a multiple of `factor`.
bool divides(int64_t factor, const UOp& range);

/// Elements that a step of `range` moves an access; nullopt where it is not linear.
std::optional<int64_t> stride(const UOp& address, const UOp& range);

/// What a kernel reads, writes and folds.
struct Accesses {
  std::vector<UOp> loads, stores;  ///< addresses in memory
  std::vector<UOp> in_rows;        ///< addresses in LOCAL memory
  std::vector<UOp> reduces;
  std::vector<UOp> fills;  ///< of rows
};
Accesses survey(const UOp& ast);

/// What runs in the written order only: loops after one another, a kernel that stores over what
/// other elements read, and stores that may meet in one place, where the last one stays.
bool keeps_its_order(const UOp& ast, const Accesses& accesses);

/// The axis that most accesses run along; null when there is none.
UOp lane_axis(const Accesses& accesses, const std::vector<UOp>& axes,
              const std::function<bool(const UOp&)>& allowed);

/// Bytes of the widest item that a kernel computes with, at most 8.
int64_t widest_item(const UOp& ast);

/// The axes of a kernel by position, kept up to date while opts are added.
class Plan {
 public:
  Plan(const UOp& ast, const Target& target) : ast_(ast), target_(target) {}

  std::vector<UOp> axes() const { return kernel_ranges(ast_); }
  int position(const UOp& range) const {
    const auto all = axes();
    return static_cast<int>(std::find(all.begin(), all.end(), range) - all.begin());
  }
  const UOp& ast() const { return ast_; }
  const Target& target() const { return target_; }
  Edited take() && { return {std::move(ast_), std::move(opts_)}; }
  /// All of them or, where one is not legal, none. False: none.
  bool try_all(const std::vector<Opt>& opts);
  /// Takes over what a copy has tried further. True.
  bool become(Plan other) {
    ast_ = std::move(other.ast_);
    opts_ = std::move(other.opts_);
    return true;
  }

 private:
  UOp ast_;
  const Target& target_;
  std::vector<Opt> opts_;
};

/// `factor` elements of an axis side by side; the last of them overlap the ones before where the
/// axis is no multiple of them. Nothing happens where that is not legal.
void side_by_side(Plan& plan, int position, int64_t factor, AxisType type);

/// Whether a load of a value runs along `axis`.
bool runs_along(const UOp& value, const UOp& axis);

/// A matmul-like reduce: sum of a product of two values, each with an output axis the other lacks.
struct Contraction {
  UOp rows, columns;  ///< output axes: A's own, and B's own
  UOp folded;         ///< the reduction axis that both run along, where nothing runs along columns
  int64_t pitch = 1;  ///< elements from a row of B to the next
  int score = -1;     ///< how much runs along the columns
  bool has_lanes() const { return score >= 4; }  ///< B does
};
/// With either factor as B: those that have lanes, or fold them.
std::vector<Contraction> contractions_of(const Plan& plan, const Accesses& a);
/// The one whose columns most runs along.
std::optional<Contraction> most_run_along(const std::vector<Contraction>& contractions);

/// Largest divisor of n that is at most `most`.
int64_t divisor(int64_t n, int64_t most);

}  // namespace koine
