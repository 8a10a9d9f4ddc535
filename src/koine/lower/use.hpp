#pragma once
#include <optional>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/rules/places.hpp"

// Where values are read, while `decide` looks at a program.
namespace koine {

/// That a kernel reads a value: at which place, under which condition (null: always), inside of
/// which loops, outermost first.
struct Use {
  const Node* kernel;
  Indices at;
  UOp guard;
  std::vector<UOp> loops;
  bool stored = false;     ///< what it reads is what it stores, and all of that
  bool folded_on = false;  ///< by a running fold, which has one body
  bool in_window = false;  ///< by a sum over few places, which may go over what it sums as well

  /// The same kernel at another place.
  Use at_place(Indices place) const;
};

/// The loops that a place depends on.
class Dependence {
 public:
  explicit Dependence(const Use& use);
  bool on(const UOp& loop) const;

 private:
  void add(const UOp& index);
  std::vector<const Node*> used_;
};

/// The loops around what is computed at a place: those it depends on, and what these stand in.
std::vector<UOp> loops_around(const Use& use);
/// How often an element is computed at a place, there or not.
double times_computed(const Use& use);
/// What is read of a value at some places.
struct PartRead {
  bool much_less = false;  ///< of some axis at most three quarters
  UOp offset, shape;       ///< of a box that holds it, where it is much less
  double elements = 1;     ///< of that box, or of the value
};
/// `whole`: an axis that counts as read whole where more than one place of it is.
PartRead part_read(const UOp& value, const std::vector<Use>& uses,
                   std::optional<size_t> whole = {});
/// The order of axes in which a value lies best in memory for a place that it is read at: where
/// several follow one loop, as a pixel and the place in its window do, the places in windows stand
/// in front, so that what neighbouring steps of the loop read are neighbours. Empty: as they are.
Ints order_read(const UOp& value, const Use& use);
/// Whether a place follows from memory.
bool reads_data(const UOp& index);
/// Whether values of the program are in the place.
bool data_decides(const Use& use);

/// What a movement op is read at, as a place in its source.
Use moved_to_source(const UOp& movement, const Use& use);
/// The place where the row begins in which an element lies; a row goes along `axes`.
Use start_of_row(const Ints& axes, Use use);
/// The loops that a value is read along at a place, where each goes over a whole axis and nothing
/// else at this place depends on it; null for other axes.
std::vector<UOp> whole_axes(const UOp& value, const Use& use);

}  // namespace koine
