#include "koine/lower/loops.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// The row of a step in the memory of all.
UOp row_in(const UOp& memory, const UOp& number, const UOp& shape) {
  return reshape(slice(memory, 0, number, index_const(1)), shape);
}

// One function of a loop as a program over the memory of the launch.
class Function {
 public:
  // `buffers`: of the launch, results and then arguments.
  Function(const Loop& loop, const UOp& function, std::span<const UOp> buffers)
      : loop_(loop), function_(function), apart_(lie_apart(buffers)) {
    const std::vector<UOp> results = loop_results(loop.body);
    for (size_t k = 0; k < results.size(); ++k)
      add(results[k], buffers[k].device(), loop.count && k >= loop.carries());
    for (size_t k = 0; k < loop.roles.size(); ++k)
      add(loop.arguments()[k], loop.arguments()[k].device(), loop.roles[k] == LoopRole::Row);
    if (loop.count) number_ = step_variable(loop.count);
  }

  UOp host_program(const CompileOptions& how) {
    const bool condition = loop_.body.is(Op::While) && function_ == loop_.functions[0];
    const size_t results = memory_.size() - loop_.arguments().size();
    if (loop_.body.is(Op::While))
      memory_.push_back(memory(shape_of({}), DType::Bool, memory_[0].device()));
    const UOp flag = memory_.back();
    const UOp over_memory = substitute(function_, inside_of_arguments(results));
    const UOp inside =
        with_memory_for_copies(inline_storing_functions(over_memory), condition ? 0 : results);
    std::vector<UOp> values, places;
    for (size_t k = 0; k < inside.src().size(); ++k) {
      const UOp &value = inside.src(k), &memory = condition ? flag : memory_[k];
      const bool there = strip_after(value) == memory;
      values.push_back(is_row(k)
                           ? after(memory, {store(row_in(memory, number_, value.shape()), value)})
                           : value);
      places.push_back(is_row(k) || there ? UOp() : memory);
    }
    const Callified made = callify(values, places, how);
    Substitution slots;
    for (size_t k = 0; k < made.arguments.size(); ++k) {
      const UOp& b = made.arguments[k];
      const auto slot = std::find(memory_.begin(), memory_.end(), b) - memory_.begin();
      slots.emplace(param_for(static_cast<int64_t>(k), b), param_for(slot, b));
    }
    const UOp program = on_each_device(substitute(made.body, slots), how);
    return rangeify(split_large_reduces(program, how), how);
  }

 private:
  // Rows lie one behind the other, however many there are in this run: the step's own is among as
  // many as there may be.
  void add(const UOp& value, Device device, bool rows) {
    std::vector<UOp> dims(value.shape().src().begin(), value.shape().src().end());
    if (rows)
      dims[0] = index_const(std::max<int64_t>(static_cast<int64_t>(dims[0].bounds().high), 1));
    memory_.push_back(memory(stack(dims), value.dtype(), device));
  }

  // Of a loop on one device it is nowhere: its kernels are those of the same loop on another one.
  UOp memory(const UOp& shape, DType dtype, Device device) const {
    return new_buffer(shape, dtype, apart_ ? device : Device());
  }

  // Whether value k is a row of what the steps collect.
  bool is_row(size_t k) const { return loop_.body.is(Op::Scan) && k >= loop_.carries(); }

  // Copies that are written to lie in memory of their own; in that of a result, where the last
  // state of one is all that this result is.
  UOp with_memory_for_copies(const UOp& values, size_t results) {
    const Versions versions(sink(values.src()));
    Substitution memory_of;
    for (size_t k = 0; k < results; ++k) {
      const UOp& copy = strip_after(values.src(k));
      if (values.src(k).is(Op::After) && is_private_copy(copy) && !is_row(k) &&
          !versions.overwritten_by(versions.of(values.src(k))))
        memory_of.emplace(copy, memory_[k]);
    }
    for (const UOp& u : toposort_outside_bodies(values)) {
      if (!u.is(Op::After) || !is_private_copy(strip_after(u))) continue;
      const auto [it, fresh] = memory_of.try_emplace(strip_after(u));
      if (!fresh) continue;
      it->second = memory(it->first.shape(), it->first.dtype(), it->first.device());
      memory_.push_back(it->second);
    }
    return transform_graph(values, [&](const UOp& original, const UOp& node) {
      const auto it = memory_of.find(original);
      return it == memory_of.end() ? node : after(it->second, {store(it->second, node.src(0))});
    });
  }

  Substitution inside_of_arguments(size_t results) const {
    Substitution out;
    const std::vector<UOp> params = loop_.params(function_);
    for (size_t k = 0; k < params.size(); ++k) {
      if (!params[k]) continue;
      const UOp& memory = memory_[results + k];
      out.emplace(params[k], loop_.roles[k] == LoopRole::Row
                                 ? row_in(memory, number_, params[k].shape())
                                 : memory);
    }
    return out;
  }

  const Loop& loop_;
  const UOp& function_;
  const bool apart_;         // memory lies on several devices
  std::vector<UOp> memory_;  // by slot
  UOp number_;               // of the step
};

}  // namespace

UOp lower_loops(const UOp& schedule, const CompileOptions& how) {
  std::vector<UOp> calls;
  for (const UOp& call : schedule.src()) {
    const UOp& body = call.src(0);
    if (!is_loop(body) || !body.src(0).is(Op::Tuple)) {
      calls.push_back(call);
      continue;
    }
    const Kernel launch(call);
    const size_t results = loop_results(body).size();
    KOINE_REQUIRE(launch.buffers.size() >= results, Value,
                  "{}: a launch of it names {} buffers, and it has {} results", op_name(body.op()),
                  launch.buffers.size(), results);
    std::vector<UOp> src{body};
    src.insert(src.end(), launch.buffers.begin() + static_cast<std::ptrdiff_t>(results),
               launch.buffers.end());
    const UOp over_memory = UOp::make(Op::Call, src);
    require_loop(over_memory);  // a text may name other buffers than its functions take
    const Loop loop(over_memory);
    std::vector<UOp> lowered;
    for (const UOp& f : loop.functions)
      lowered.push_back(Function(loop, f, launch.buffers).host_program(how));
    if (loop.count) lowered.push_back(loop.count);
    calls.push_back(with_source(call, 0, with_sources(body, lowered)));
  }
  return with_sources(schedule, calls);
}

}  // namespace koine
