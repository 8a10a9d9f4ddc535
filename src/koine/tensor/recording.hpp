#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "koine/engine/storage.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {

/// What a function that is traced does to tensors made outside of it: while one lives, the function
/// that this thread traces may assign to `tensors`, through views too, and change their gradients.
/// Its end gives each tensor what it had. Until then no other thread may use these tensors; one
/// recording lives at a time.
class Tensor::Recording {
 public:
  explicit Recording(const std::vector<Tensor>& tensors);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// The value that tensor k was given; null: it has its own still.
  UOp assigned(size_t k) const;
  /// What the function knows as the value that it had.
  const UOp& named(size_t k) const { return former_[k].named; }
  /// What stands for the gradient that it had, equal to nothing else; null: it had none.
  const UOp& given_gradient(size_t k) const { return former_[k].given; }
  /// Its gradient now; null: none.
  UOp gradient(size_t k) const;
  /// Whether that is another than before.
  bool changes_gradient(size_t k) const;
  /// Whether the function asked which tensors require a gradient or have one.
  bool asks_for_gradients() const { return asks_; }
  /// `values` where what the trace gave to leaves is no leaf, but a value without a gradient.
  std::vector<UOp> without_leaves(const std::vector<UOp>& values) const;

  /// Throws Error (Value) where this thread traces a function that may not change the storage: it
  /// was made outside, and is not recorded. `action` is what was asked for.
  static void require_allowed(const Storage& storage, std::string_view action);
  /// Throws Error (Value) where this thread traces a function that is not recorded.
  static void require_recorded(std::string_view action);
  /// Throws Error (Value) where a recorded function differentiates nodes among which is a gradient
  /// of before: what that was computed from is not known while the function is described.
  static void require_known_history(const NodeList& below);
  /// Notes that gradients are asked for.
  static void ask_for_gradients();

  static bool is_leaf(const Tensor& t) { return !is_view(t) && t.self().storage->requires_grad; }
  /// Whether a tensor is a view of another.
  static bool is_view(const Tensor& tensor) { return bool(tensor.self().view); }
  /// Whether a gradient to a tensor that requires one goes through a value.
  static bool reaches_leaf(const UOp& value) { return History::reaches_leaf({value}); }
  /// The same, or to what such a tensor was before it got another value.
  static bool reaches_former_leaf(const UOp& value);
  /// Whether a tensor is a lazy value, or one that was looked at, through which a gradient goes.
  static bool has_history(const Tensor& tensor) {
    const UOp value = tensor.uop();
    return !value.is(Op::Buffer) && is_float(value.dtype()) && reaches_leaf(value);
  }
  /// See `lent_memory`.
  static std::shared_ptr<std::byte> lend(const Tensor& tensor);
  /// The same numbers in memory of their own.
  static UOp copied(const UOp& memory);
  /// From now on a gradient through `memory` to what `value` was made of is an Error.
  static void forget(const UOp& memory, const UOp& value) { History::forget(memory, value); }
  /// `value` as a tensor that requires a gradient and has one where `like` does.
  static Tensor stand_in(const Tensor& like, const UOp& value);
  /// The gradient of a tensor; null: none.
  static UOp gradient_of(const Tensor& tensor) { return tensor.self().storage->grad; }
  /// What of tensors decides what such a function does, beside values: which are one storage, which
  /// require a gradient, which have one and which are computed from some that do.
  static std::string state_of(const std::vector<Tensor>& tensors);
  /// Computes what was assigned and nobody has looked at, among values and below them: once.
  static void compute_states(const std::vector<UOp>& values) { History::compute_states(values); }
  /// A tensor gets a value that was computed into `memory`. Where `value` is not null, a gradient
  /// that would lead on to what that was made of is an Error from now on.
  static void give(const Tensor& tensor, const UOp& memory, const UOp& value);
  /// Null: from now on it has none.
  static void give_gradient(const Tensor& tensor, UOp gradient);

 private:
  struct Former {
    std::shared_ptr<Storage> storage;
    UOp current, graph;
    Storage::Waiting waiting;
    UOp grad;
    Storage::Chain chain;
    int simple_writes;
    uint64_t computed_from;
    std::optional<storage::Past> past;  // of `current`
    UOp named = {}, given = {};         // what stands for `current` and `grad`
  };
  static Recording*& of_this_thread();

  std::unique_lock<std::mutex> alone_;
  uint64_t trace_, start_;
  bool asks_ = false;
  std::vector<Former> former_;  // by tensor
  std::unordered_set<const Storage*> held_;
};

}  // namespace koine
