#pragma once
#include <mutex>
#include <vector>

#include "koine/tensor/tensor.hpp"

namespace koine {

/// What views share: the current value of the base, and its gradient.
struct Tensor::Storage {
  std::mutex mutex;
  UOp current;
  bool requires_grad = false;
  UOp grad;  ///< null: none yet
};

/// A handle's target: a storage and a view of it.
struct Tensor::Impl {
  std::shared_ptr<Storage> storage;
  UOp view;     ///< movement over `placeholder(current)`; null: the base itself
  UOp literal;  ///< of a C++ literal, which takes the dtype of what it meets: all its digits
  // The view of the state it was last asked for.
  mutable std::mutex mutex;
  mutable UOp seen_base, seen_value;
};

namespace tensor {

/// Stands for the base of a view.
UOp placeholder(const UOp& base);
std::string text_of(const Shape& shape);
/// Both operands in the dtype they meet in; the literals are null for what is no C++ literal.
std::pair<UOp, UOp> meet(const Tensor& a, const Tensor& b, const UOp& literal_a,
                         const UOp& literal_b);
/// A user's positions along an axis of size n as int64: negative ones count from the end, and
/// KOINE_INDEX says what becomes of those out of range (amendment C28).
Tensor positions(const Tensor& index, int64_t n);
UOp broadcast_scalar(const UOp& value, const Shape& shape);

}  // namespace tensor
}  // namespace koine
