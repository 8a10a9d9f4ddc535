#pragma once
#include <array>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "koine/base/error.hpp"
#include "koine/ir/method.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine {

/// What views share: the current value of the base, and its gradient.
struct Tensor::Storage {
  /// Writes through views that have not run are a chain of Afters on a copy of the value before
  /// them, which this storage alone makes longer. `Kept`: a gradient may ask for what it was made
  /// of.
  enum class Chain : uint8_t { None, Plain, Kept };

  std::mutex mutex;
  UOp current;
  Chain chain = Chain::None;
  int simple_writes = 0;  ///< that have not run, of the chain or as a whole; -1: one is not simple
  UOp graph;              ///< how `current` was computed, where a look made it memory
  uint64_t computed_from = 0;  ///< id of the node that `current` is the memory of; 0: none
  /// Assignments that have not run.
  struct Waiting {
    UOp before;                 ///< the value before them; null: none, or below the chain
    std::vector<uint64_t> ids;  ///< of the value before each of them
    /// Values that the next one does not read, since the last that cannot fail.
    std::vector<UOp> unread;
  };
  Waiting waiting;
  uint64_t trace = 0;  ///< the function that was traced when this was made; 0: none
  bool requires_grad = false;
  uint64_t required_since = 0;  ///< nodes with a larger id were made later
  UOp grad;                     ///< null: none yet
  /// What is computed with the next value that `assign_all` gives this: what backward() was called
  /// on since, of which `grad` is a part, and statistics beside it.
  std::vector<std::weak_ptr<Storage>> along;
  /// Of a handle that grad() gave: whose gradient it is, and the id of the node that this was. What
  /// is assigned to it becomes the gradient.
  std::weak_ptr<Storage> gradient_of;
  uint64_t gradient_id = 0;
  std::weak_ptr<Memory> lent;  ///< memory of a value that others write to (Recording::lend)
  bool listed = false;         ///< among the states (History::add_state)
  std::unordered_set<const Impl*> seen;  ///< views that hold their part of `current`
};

/// A handle's target: a storage and a view of it.
struct Tensor::Impl {
  std::shared_ptr<Storage> storage;
  /// Movement over `view_base(current)`; null: the base itself. Under the storage's mutex.
  mutable UOp view;
  UOp number;        ///< the value, where that stands for a number as it is written
  UOp literal;       ///< of a C++ literal, which takes the dtype of what it meets: all its digits
  mutable UOp seen;  ///< the view of the current value, where that is memory; null: not asked for

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
};

/// How values were computed, for as long as a gradient may be asked through them.
///
/// A value that depends on a leaf (requires_grad) stays a graph; the engine remembers its memory.
/// Any other becomes its memory when somebody looks at it, and its tensor keeps the graph of that
/// one step; after realize() it is data. A gradient that needs what was let go is an Error.
struct Tensor::History {
  using Storages = std::vector<std::shared_ptr<Storage>>;
  enum class Graphs { Keep, Drop };

  /// Computes tensors. After a failure each keeps the value it had before the first assignment that
  /// cannot be computed.
  static void compute(const std::vector<Tensor>& tensors, Graphs graphs);
  /// A view that alone holds its base, which no other value is made of, becomes a value of its own
  /// where it is smaller: nobody can look at what it leaves out. Not for what was written, computed
  /// or asked a gradient for.
  static void leave_base(const Tensor& view);
  /// Stores a value into a view, or at places, over `placeholder` of a storage's value.
  static void write(const std::shared_ptr<Storage>& storage, const UOp& target, const UOp& value);
  /// Stores values at places along all elements of a tensor, counted row-major; the last one for a
  /// place stays. False where that is not possible, and nothing is stored: the tensor is written as
  /// a value of its own.
  static bool write_at(const Tensor& target, const Tensor& places, const Tensor& values);
  /// What of the graphs of values leads to leaves, and what beside it is memory once they are
  /// computed. The values must stay.
  class Leading {
   public:
    Leading(std::span<const UOp> values, const Storages& leaves);
    /// Walks the graphs; it takes no lock. Only where the values read results of earlier requests,
    /// or memory that leads to no leaf, has it all to look at.
    void walk(bool reads_results);
    /// Whether one of the values does.
    bool contains(const UOp& value) const;
    /// Of graphs that are kept for their leaves: the parts that lead to none become the memory they
    /// were computed into. A running sum of losses does not hold on to all the steps before.
    std::vector<UOp> without_old_parts(const std::vector<UOp>& graphs) const;

   private:
    enum class State : uint8_t { New, Plain, Leads, Seen };
    using States = NodeMap<State>;
    void look_beside();
    void follow(const UOp& root, States& states, std::vector<const Node*>* beside) const;
    void find_parts(States& states, std::vector<const Node*> pending);

    std::span<const UOp> values_;
    NodeNumbers leaves_;
    States states_;
    std::vector<const Node*> parts_;
  };

  /// Puts computed `buffers` in the place of `values`, where these are still current.
  static void settle(const Storages& storages, std::span<const UOp> values,
                     std::span<const UOp> buffers, Graphs graphs, const Leading& leading);
  /// A storage gets another value; the caller holds its mutex.
  static void replace(const std::shared_ptr<Storage>& storage, UOp value);
  /// The same for what is no assignment: nobody can tell it from the old value.
  static void set_current(Storage& storage, UOp value);
  /// The value before the assignments that have not run; null: none. The caller holds the mutex.
  static UOp former(const Storage& storage);
  /// Of a storage whose value cannot be computed: the last one before assignments that have not run
  /// that can, of those that the value reads; else `former`. The caller holds the mutex.
  static UOp before_failure(const Storage& storage);
  /// A storage whose value was computed beside something else gets the memory of it.
  static void settle_computed(const std::shared_ptr<Storage>& storage);
  /// `storage` is computed along with the next value of `leaf`.
  static void compute_along(Storage& leaf, const std::shared_ptr<Storage>& storage);
  /// Adds what nobody has looked at yet of what is computed along with targets, and of detached
  /// tensors that read them: their values of now are gone afterwards.
  static void add_along(const std::vector<Tensor>& targets, Storages& storages);
  /// After a failure: what cannot be computed by itself does not stop the next step as well.
  static void drop_failing_along(const std::vector<Tensor>& targets, const Storages& storages,
                                 const std::vector<UOp>& values);
  /// Notes a state: a tensor that detach() gave, or that was assigned. The caller holds the mutex.
  static void add_state(const std::shared_ptr<Storage>& storage);
  /// States that no memory holds yet. One that goes from step to step is computed once, and not by
  /// each later step again.
  static Storages states();
  /// States below values, which compute them on their way: those of now, or, where only the one
  /// before the last assignment lies there, that.
  struct States {
    Storages storages;
    std::vector<UOp> values;
  };
  static States states_below(const std::vector<UOp>& values, const Storages& but);
  /// Computes values, of `storages`, and the states below them, and hands the buffers of the values
  /// to `settled`. The first `targets` values are what leaves get: nothing leads to them. A state
  /// that cannot be computed stops nothing.
  static void compute_with_states(
      const std::vector<UOp>& values, const Storages& storages, const Storages& leaves,
      size_t targets,
      const std::function<void(std::span<const UOp> buffers, const Leading&)>& settled);
  static void settle_states(const States& states, std::span<const UOp> buffers,
                            const Leading& leading);
  static void settle_former(Storage& s, const UOp& former, const UOp& buffer);
  /// Computes the states among values and below them, as a look at the values does.
  static void compute_states(const std::vector<UOp>& values);
  /// The value as a node that no other tensor has, without a gradient to what is below.
  static UOp leaf_of(const UOp& value);
  /// A leaf owns memory of its own, so that equal values stay apart (amendment C34).
  static void own_memory(const std::shared_ptr<Storage>& storage);
  /// Leaves: storages that require a gradient.
  static Storages leaves();
  static void add_leaf(const std::shared_ptr<Storage>& storage);
  /// The nodes that a gradient of `root` may be asked through, in order.
  static NodeList below(const UOp& root);
  /// The same, as many targets ask for it.
  struct Below;
  /// Whether a gradient to a leaf may be asked through these values.
  static bool reaches_leaf(const std::vector<UOp>& values);
  /// Notes that `buffer` holds a value that nothing keeps the graph of.
  static void forget(const UOp& buffer, const UOp& value);
  /// The value with the graphs that tensors kept in the place of their memory, but for `targets`.
  static UOp with_graphs(const UOp& value, const std::unordered_set<UOp>& targets);
  /// The nodes below a value that are a target's: its value now, and what that was computed from.
  static std::vector<UOp> nodes_of(const Tensor& target, const Below& below);
  /// Throws where `root` depends on a former value of a leaf: a gradient to the leaves that have
  /// kept theirs, `nodes`, would train a part of a model and be silent about the rest.
  static void require_current(const UOp& root, const std::unordered_set<UOp>& nodes);
  /// Throws where a target that was not found may lie in what was let go below. One that was may
  /// still lie in a state that was computed along: nobody has asked that this become data.
  static void require_known(const Tensor& target, size_t position, const Below& below, bool found);
};

namespace tensor {

std::string text_of(const Shape& shape);
/// Elements of a shape; null where a size may be negative or the product may leave 63 bits.
std::optional<Size> count_of(const Shape& shape);
/// The same; where there is no such number it is refused in the name of `method`.
Size count_for(std::string_view method, const Shape& shape);
/// Both operands of `method` in the dtype they meet in; the literals are null for what is no C++
/// literal.
std::pair<UOp, UOp> meet(std::string_view method, const Tensor& a, const Tensor& b,
                         const UOp& literal_a, const UOp& literal_b);
/// A user's positions along an axis of size n as int64: negative ones count from the end, and
/// KOINE_INDEX says what becomes of those out of range (amendment C28). `method` is what the user
/// called.
Tensor positions(std::string_view method, const Tensor& index, const Size& n);
/// The same for class numbers, 0 to n - 1.
Tensor class_numbers(std::string_view method, const Tensor& target, const Size& n);
UOp broadcast_scalar(const UOp& value, const Shape& shape);
/// A number in the shape and dtype of x: a constant, where full_like() gives a tensor of its own.
Tensor like(const Tensor& x, double value);
/// |x|, whose slope at 0 is 1.
Tensor magnitude(const Tensor& x);
/// A function of floats on any dtype: narrow floats are computed in float32 and rounded once,
/// integers and bool give float32.
template <class F>
Tensor in_floats(const Tensor& x, F&& compute) {
  if (is_small_float(x.dtype())) return compute(x.cast(DType::Float32)).cast(x.dtype());
  const Tensor made = compute(is_float(x.dtype()) ? x : x.cast(DType::Float32));
  return x.stands_for_number() ? made.standing_for_number() : made;
}

/// The device or devices of that name. An unknown one is an Error here, in the user's line.
Device known_device(const std::string& name);
/// The size of an axis as a number, for a `method` that has no use for a symbolic one.
int64_t known_size(std::string_view method, const Tensor& x, int64_t axis);

using Operands = std::span<const std::reference_wrapper<const Tensor>>;

/// A method of tensors that is being called: what cuts across the parts of several devices is
/// refused in its name, with how the operands lie.
class Called : public Method {
 public:
  explicit Called(std::string_view name, const Tensor* a = nullptr, const Tensor* b = nullptr,
                  const Tensor* c = nullptr)
      : name_(name), operands_{a, b, c} {}
  template <class Tensors>  // a list of them, or of references to them
  Called(std::string_view name, const Tensors& operands) : name_(name), operands_{} {
    for (size_t k = 0; k < std::min(operands.size(), operands_.size()); ++k) {
      const Tensor& operand = operands[k];
      operands_[k] = &operand;
    }
  }
  std::string text(bool with_operands) const override;

 private:
  std::string_view name_;
  std::array<const Tensor*, 3> operands_;
};

[[noreturn]] void refuse_as(std::string_view method, Operands operands, const Error& reason);
/// Runs the body of a method that is made of others. What they refuse is refused in its name, with
/// the shapes of its own operands.
template <class Body>
auto as_method(std::string_view method,
               std::initializer_list<std::reference_wrapper<const Tensor>> given, Body&& body) {
  const Operands operands(given.begin(), given.size());
  const Called called(method, operands);
  try {
    return body();
  } catch (const Error& e) {
    refuse_as(method, operands, e);
  }
}

}  // namespace tensor
}  // namespace koine
