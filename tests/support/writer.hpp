#pragma once
#include <cstdint>
#include <vector>

#include "koine/ir/uop.hpp"

// Linear programs written instruction by instruction, as Linearize makes them.
namespace koine::test {

/// The index of a thread or of its group: `name` is gidx0 to gidx2 or lidx0 to lidx2.
UOp special(const char* name, int64_t bound);
/// LOCAL memory of float32.
UOp local(int64_t elements);

/// A source that was not added yet stands before what is.
class Writer {
 public:
  UOp operator()(const UOp& u);
  /// The same with all that it is computed from in front of it.
  UOp all(const UOp& u);
  void barrier(int64_t tag = 0);
  void endif(const UOp& opened);
  UOp linear() const { return UOp::make(Op::Linear, list_); }

 private:
  std::vector<UOp> list_;
};

/// out[i] = shared[n - 1 - i] of each group, after every thread of it has written shared[i] =
/// in[i]; float32.
UOp reversal(int64_t threads, int64_t groups, bool with_barrier = true);
/// out[0] is the sum of the 64 elements of `in`: 8 times 8 threads fold halves onto halves, and one
/// of them adds what is left.
UOp tree_of_64();
/// Seven of ten threads store 5, and each stores 1 ten places further.
UOp seven_of_ten();
/// Of 20 elements that were -1.
std::vector<float> what_seven_of_ten_leave();

/// 0, 1, 2, ...
std::vector<float> counting_up(int64_t n);

}  // namespace koine::test
