#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/interp/deviation.hpp"
#include "koine/interp/interp.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/interp/value.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/wmma.hpp"

namespace koine {
namespace {

using Values = absl::InlinedVector<double, 2>;

// A node of the kernel, its value, and when that was computed.
struct Item {
  UOp node;
  ValueOp value;
  std::vector<uint32_t> needs;   // computed before it
  std::vector<uint32_t> loops;   // of an End, or of a Reduce over ranges
  std::vector<uint32_t> bounds;  // of these loops
  std::vector<uint32_t> ranges;  // what its value depends on
  Lanes bits;
  Values deviations, residuals;  // empty: all 0
  uint64_t stamp = 0;            // of the clock; 0: never computed
  std::vector<uint32_t> again;   // of loops: what a further round computes, in order
  bool is_range = false;
  bool active = false;    // a Range inside of its loop
  bool computes = false;  // its value from those it needs alone
  bool exact = false;     // it deviates only where what it needs does

  Deviating lane(size_t i) const {
    const size_t at = bits.size() == 1 ? 0 : i;
    return {bits[at], deviations.empty() ? 0 : deviations[at],
            residuals.empty() ? 0 : residuals[at]};
  }
  // To the bit, and rounded.
  bool known() const { return deviations.empty() && residuals.empty(); }
  bool determined() const {
    return std::all_of(deviations.begin(), deviations.end(), [](double d) { return d == 0; });
  }
};

// Executes a kernel as the graph says: an End and a Reduce run their loops, in the order listed; a
// node is computed when somebody needs it, and again when a Range that it depends on, or that an
// AtomicAdd stands in, has moved on; an effect behind an After has then run before.
class KernelInterpreter {
 public:
  KernelInterpreter(const UOp& ast, const KernelArguments& arguments, Deviations* deviations)
      : arguments_(arguments), memory_(arguments), deviations_(deviations) {
    if (deviations != nullptr) liberties_ = deviations->liberties;
    const NodeList order = toposort(ast);
    for (const UOp& u : order) add(u);
    for (const auto& [u, loops] : loops_of_atomic_adds({order.begin(), order.end()}))
      for (const UOp& r : loops)
        items_[number_.at(u.node())].ranges.push_back(number_.at(r.node()));
  }

  void run() { evaluate(static_cast<uint32_t>(items_.size() - 1)); }

 private:
  // --- reading the graph -----------------------------------------------------------------------

  static bool loops_over_ranges(const UOp& u) {
    return u.is(Op::End) || (u.is(Op::Reduce) && u.as<ReduceArg>().axes.empty());
  }

  void add(const UOp& u) {
    const auto number = static_cast<uint32_t>(items_.size());
    number_.emplace(u.node(), number);
    Item item;
    item.node = u;
    for (const Node* r : u.ranges()) item.ranges.push_back(number_.at(r));
    auto need = [&](const UOp& s) { item.needs.push_back(number_.at(s.node())); };
    if (loops_over_ranges(u)) {
      for (const UOp& r : u.is(Op::Reduce) ? reduced_ranges(u) : u.src().subspan(1)) {
        item.loops.push_back(number_.at(r.node()));
        item.bounds.push_back(number_.at(r.src(0).node()));
      }
      if (u.is(Op::End))
        for (const UOp& effect : outside_of(u)) need(effect);
    } else if (u.is(Op::Reduce) || u.is(Op::Shrink) || u.is(Op::Expand) || u.is(Op::Reshape)) {
      need(u.src(0));
    } else if (!u.is(Op::Range) && !u.is(Op::Param) && !u.is(Op::Buffer) && !u.is(Op::Special)) {
      for (const UOp& s : u.src()) need(s);
    }
    if (u.is(Op::Reduce) && start_of(u)) need(start_of(u));
    item.is_range = u.is(Op::Range);
    item.computes = computes(u);
    item.exact = !is_elementwise(u.op()) || !is_float(u.dtype()) || !is_float(u.src(0).dtype());
    if (item.computes || u.is(Op::Load) || u.is(Op::Store)) item.value = ValueOp(u);
    items_.push_back(std::move(item));
  }

  // Effects below an End that depend on no more than it does: they run also where its loops do not.
  static std::vector<UOp> outside_of(const UOp& loops) {
    std::vector<UOp> out;
    const auto around = loops.ranges();
    for (const UOp& u : toposort(loops.src(0))) {
      const auto ranges = u.ranges();
      const bool outside = std::all_of(ranges.begin(), ranges.end(), [&](const Node* r) {
        return std::find(around.begin(), around.end(), r) != around.end();
      });
      const bool adds = (u.node()->ops_below & mask_of(Op::AtomicAdd)) != 0;
      if ((u.is(Op::Store) || (u.is(Op::End) && !adds)) && outside) out.push_back(u);
    }
    return out;
  }

  static bool computes(const UOp& u) {
    return is_elementwise(u.op()) || u.is(Op::Stack) || u.is(Op::Expand) || u.is(Op::Bitcast) ||
           u.is(Op::Reshape) || u.is(Op::Shrink) || (u.is(Op::Index) && !is_address(u));
  }

  // --- when to compute -------------------------------------------------------------------------

  bool fresh(const Item& item) const {
    if (item.is_range) return item.active;
    if (item.stamp == clock_) return true;
    return item.stamp != 0 && std::all_of(item.ranges.begin(), item.ranges.end(), [&](uint32_t r) {
             return items_[r].stamp <= item.stamp;
           });
  }

  // Recursion is as deep as loops nest, never as deep as the graph. `computed`: the items, if
  // asked.
  void evaluate(uint32_t root, std::vector<uint32_t>* computed = nullptr) {
    const size_t base = stack_.size();
    stack_.push_back(root);
    while (stack_.size() > base) {
      const uint32_t at = stack_.back();
      Item& item = items_[at];
      bool ready = true;
      if (!fresh(item))
        for (size_t i = item.needs.size(); i-- > 0;)
          if (!fresh(items_[item.needs[i]])) {
            stack_.push_back(item.needs[i]);
            ready = false;
          }
      if (!ready) continue;
      if (!fresh(item)) {
        compute(item);
        item.stamp = clock_;
        if (computed != nullptr) computed->push_back(at);
      }
      stack_.pop_back();
    }
  }

  // Runs the loops of an item around its first source, with `then` behind each round.
  void each(Item& owner, const std::function<void()>& then) {
    each(owner, 0, true, number_.at(owner.node.src(0).node()), then);
  }
  // `first`: the innermost loop has just begun.
  void each(Item& owner, size_t depth, bool first, uint32_t body,
            const std::function<void()>& then) {
    if (depth == owner.loops.size()) {
      round(owner, first, body);
      return then();
    }
    Item& range = items_[owner.loops[depth]];
    evaluate(owner.bounds[depth]);  // it may depend on the loops around
    const Item& bound = items_[owner.bounds[depth]];
    require_determined(bound, "a loop's bound");
    const int64_t count = integer(bound);
    const bool outer = range.active;
    const Lanes saved = range.bits;
    range.active = true;
    for (int64_t i = 0; i < count; ++i) {
      range.bits = {static_cast<Bits>(i)};
      range.stamp = ++clock_;
      each(owner, depth + 1, i == 0, body, then);
    }
    range.active = outer;
    range.bits = saved;
    range.stamp = ++clock_;
  }
  // All rounds but the first of the innermost loop compute the same items in the same order.
  void round(Item& owner, bool first, uint32_t body) {
    if (first) return evaluate(body);
    if (owner.again.empty()) return evaluate(body, &owner.again);
    for (const uint32_t k : owner.again) {
      compute(items_[k]);
      items_[k].stamp = clock_;
    }
  }

  static int64_t integer(const Item& item) { return bits_to_int(item.node.dtype(), item.bits[0]); }
  static void require_determined(const Item& item, const char* what) {
    if (!item.determined()) throw Undetermined(what);
  }

  // --- computing -------------------------------------------------------------------------------

  void compute(Item& item) {
    const UOp& u = item.node;
    if (item.computes) return compute_value(item);
    switch (u.op()) {
      case Op::Const:
        item.bits = {u.as<ConstArg>().bits};
        return;
      case Op::Param:
        item.bits = {u.as<BufferArg>().name.empty() ? 0 : variable(u.as<BufferArg>().name)};
        return;
      case Op::Special:
        item.bits = {static_cast<Bits>(arguments_.thread)};
        return;
      case Op::Range:
        internal_error("a Range is used outside of its loop:\n{}", to_text(u));
      case Op::Reduce:
        return u.as<ReduceArg>().axes.empty() ? fold_ranges(item) : fold_axes(item);
      case Op::End:
        each(item, [] {});
        break;
      case Op::Load:
        return load(item);
      case Op::Store:
        store(item);
        break;
      case Op::AtomicAdd:
        add_atomically(item);
        break;
      case Op::Buffer:
      case Op::Index:
      case Op::After:
      case Op::Group:
      case Op::Barrier:  // threads run one after the other, and share no memory that it guards
      case Op::Sink:
        break;
      case Op::Ins:
      case Op::Custom:
        raise(ErrorKind::Value, "{} \"{}\": the interpreter runs no code of machines",
              op_name(u.op()), u.as<CodeArg>().text);
      default:
        internal_error("the interpreter of kernels does not know {}", op_name(u.op()));
    }
    item.bits = {0};
  }

  Bits variable(const std::string& name) const {
    const auto it = arguments_.variables.find(name);
    KOINE_REQUIRE(it != arguments_.variables.end(), Key, "Variable '{}' has no value", name);
    return static_cast<Bits>(it->second);
  }

  void set(Item& item, size_t i, const Deviating& value) {
    item.bits[i] = value.bits;
    if (value.deviation != 0 && item.deviations.empty()) item.deviations.resize(item.bits.size());
    if (!item.deviations.empty()) item.deviations[i] = value.deviation;
    if (value.residual != 0 && item.residuals.empty()) item.residuals.resize(item.bits.size());
    if (!item.residuals.empty()) item.residuals[i] = value.residual;
  }
  static void clear(Item& item, size_t count) {
    item.bits.resize(count);
    item.deviations.clear();
    item.residuals.clear();
  }

  void compute_value(Item& item) {
    const UOp& u = item.node;
    operands_.clear();
    for (const uint32_t k : item.needs) operands_.push_back(&items_[k].bits);
    Lanes made = item.value.compute(operands_);
    clear(item, made.size());
    item.bits = std::move(made);
    if (!liberties_.any() ||
        (item.exact && std::all_of(item.needs.begin(), item.needs.end(),
                                   [&](uint32_t k) { return items_[k].known(); })))
      return;
    if (is_elementwise(u.op())) {
      Deviating operands[3];
      for (size_t i = 0; i < item.bits.size(); ++i) {
        for (size_t k = 0; k < item.needs.size(); ++k)
          operands[k] = items_[item.needs[k]].lane(item.value.from(k, i));
        set(item, i,
            deviate(u, item.bits[i], std::span<const Deviating>(operands, item.needs.size()),
                    liberties_));
      }
    } else if (u.is(Op::Stack)) {
      for (size_t i = 0; i < item.bits.size(); ++i) set(item, i, items_[item.needs[i]].lane(0));
    } else if (u.is(Op::Index)) {
      const Item& vector = items_[item.needs[0]];
      const auto at = static_cast<size_t>(integer(items_[item.needs[1]]));
      if (at < vector.bits.size()) set(item, 0, vector.lane(at));
    } else {
      for (size_t i = 0; i < item.bits.size(); ++i) {
        Deviating from = items_[item.needs[0]].lane(item.value.from(0, i));
        if (u.is(Op::Bitcast) && from.deviation != 0) from.deviation = undetermined;
        set(item, i, {item.bits[i], from.deviation, from.residual});
      }
    }
  }

  // A fold for each lane, from the value that the node starts from, if it does.
  std::vector<Fold> begun(const Item& item) const {
    const UOp& u = item.node;
    const auto count = static_cast<size_t>(lane_count(u));
    std::vector<Fold> folds(count, Fold(u.as<ReduceArg>().op, u.dtype(), liberties_));
    if (const UOp start = start_of(u))
      for (size_t i = 0; i < count; ++i)
        folds[i].start_from(items_[number_.at(start.node())].lane(i));
    return folds;
  }

  void fold_ranges(Item& item) {
    const uint32_t body = number_.at(item.node.src(0).node());
    std::vector<Fold> folds = begun(item);
    const size_t count = folds.size();
    each(item, [&] {
      for (size_t i = 0; i < count; ++i) folds[i].add(items_[body].lane(i));
    });
    clear(item, count);
    const bool from_identity = !start_of(item.node);
    for (size_t i = 0; i < count; ++i) set(item, i, folds[i].result(from_identity));
  }

  // Over axes of a value: ascending, onto its start or from the first.
  void fold_axes(Item& item) {
    const UOp& u = item.node;
    const Item& value = items_[item.needs[0]];
    const ReduceArg& arg = u.as<ReduceArg>();
    const std::vector<int64_t> sizes = u.src(0).sizes();
    std::vector<Fold> folds = begun(item);
    for (size_t i = 0; i < value.bits.size(); ++i) {
      size_t rest = i, at = 0, stride = 1;
      for (size_t k = sizes.size(); k-- > 0;) {
        const auto size = static_cast<size_t>(sizes[k]);
        const bool folded =
            std::find(arg.axes.begin(), arg.axes.end(), static_cast<int64_t>(k)) != arg.axes.end();
        if (!folded) {
          at += rest % size * stride;
          stride *= size;
        }
        rest /= size;
      }
      folds[at].add(value.lane(i));
    }
    clear(item, folds.size());
    for (size_t i = 0; i < folds.size(); ++i) set(item, i, folds[i].result(false));
  }

  // --- memory ----------------------------------------------------------------------------------

  struct Access {
    const Item* index = nullptr;  // null: element i at i
    UOp buffer;
  };
  Access access_of(const UOp& access) {
    const UOp& address = strip_after(access.src(0));
    if (!address.is(Op::Index)) return {nullptr, address};
    const Item& index = items_[number_.at(address.src(1).node())];
    require_determined(index, "an address");
    return {&index, strip_after(address.src(0))};
  }
  static int64_t element(const Access& a, size_t i) {
    if (a.index == nullptr) return static_cast<int64_t>(i);
    return bits_to_int(a.index->node.dtype(), a.index->bits[a.index->bits.size() == 1 ? 0 : i]);
  }
  // Whether lane i of an access happens; its gate is its third source.
  bool open(const Item& item, size_t i) {
    if (item.needs.size() < 3) return true;
    const Item& gate = items_[item.needs[2]];
    require_determined(gate, "a gate");
    return (gate.lane(item.value.from(2, i)).bits & 1) != 0;
  }

  void load(Item& item) {
    const UOp& u = item.node;
    const Access a = access_of(u);
    clear(item, item.value.count());
    const std::vector<double>* known = deviations_behind(a.buffer);
    for (size_t i = 0; i < item.bits.size(); ++i) {
      if (!open(item, i)) {
        set(item, i, items_[item.needs[1]].lane(item.value.from(1, i)));
        continue;
      }
      const int64_t at = element(a, i);
      const Bits bits = memory_.read(a.buffer, u.dtype(), at, u);
      const auto place = static_cast<size_t>(at);
      set(item, i, {bits, known != nullptr && place < known->size() ? (*known)[place] : 0, 0});
    }
  }

  void store(Item& item) {
    const UOp& u = item.node;
    const Access a = access_of(u);
    const Item& value = items_[item.needs[1]];
    std::vector<double>* known = deviations_behind(a.buffer);
    for (size_t i = 0; i < item.value.count(); ++i) {
      if (!open(item, i)) continue;
      const Deviating v = value.lane(i);
      const int64_t at = element(a, i);
      memory_.write(a.buffer, u.src(1).dtype(), at, v.bits, u);
      const auto place = static_cast<size_t>(at);
      if (known == nullptr || (v.deviation == 0 && place >= known->size())) continue;
      if (place >= known->size()) known->resize(place + 1);
      (*known)[place] = v.deviation;
    }
  }

  // Threads add in any order.
  void add_atomically(const Item& item) {
    const UOp& u = item.node;
    const Access a = access_of(u);
    const DType dtype = u.src(1).dtype();
    for (size_t i = 0; i < a.index->bits.size(); ++i) {
      const int64_t at = element(a, i);
      const Bits operands[] = {memory_.read(a.buffer, dtype, at, u),
                               items_[item.needs[1]].lane(i).bits};
      memory_.write(a.buffer, dtype, at, interpret_scalar(Op::Add, dtype, dtype, operands), u);
      std::vector<double>* known = is_float(dtype) ? deviations_behind(a.buffer) : nullptr;
      if (known == nullptr) continue;
      known->resize(std::max(known->size(), static_cast<size_t>(at) + 1));
      (*known)[static_cast<size_t>(at)] = undetermined;
    }
  }

  // Of the elements of a buffer; null where none are kept.
  std::vector<double>* deviations_behind(const UOp& buffer) {
    if (!liberties_.any()) return nullptr;
    if (buffer.is(Op::Buffer)) return &own_deviations_[buffer.node()];
    const auto slot = static_cast<size_t>(buffer.as<BufferArg>().slot);
    if (slot >= deviations_->buffers.size()) deviations_->buffers.resize(slot + 1);
    return &deviations_->buffers[slot];
  }

  const KernelArguments& arguments_;
  KernelMemory memory_;
  Deviations* deviations_;
  Liberties liberties_;
  std::vector<Item> items_;
  absl::flat_hash_map<const Node*, uint32_t> number_;
  std::unordered_map<const Node*, std::vector<double>> own_deviations_;
  std::vector<uint32_t> stack_;
  std::vector<const Lanes*> operands_;
  uint64_t clock_ = 1;
};

int64_t thread_count(const UOp& ast) {
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Special)) return const_int(u.src(0));
  return 1;
}

}  // namespace

void interpret_kernel(const UOp& ast, const KernelArguments& arguments, Deviations* deviations) {
  KernelArguments mine = arguments;
  const int64_t threads = thread_count(ast);
  const UOp sums = transform_graph(
      ast, [](const UOp&, const UOp& u) { return u.is(Op::Wmma) && !is_flat(u) ? as_sum(u) : u; });
  for (mine.thread = 0; mine.thread < threads; ++mine.thread)
    KernelInterpreter(sums, mine, deviations).run();
}

}  // namespace koine
