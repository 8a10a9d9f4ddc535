#include "koine/interp/call.hpp"

#include "koine/interp/host_function.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/interp/loop.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/loop.hpp"
#include "koine/rules/flat_kernel.hpp"

namespace koine {
namespace {

// An array as it lies in memory, where invalid elements are 0 (amendment C27).
std::vector<std::byte> in_bytes(const Array& a) {
  std::vector<std::byte> out(a.data.size() * static_cast<size_t>(item_size(a.dtype)));
  for (size_t i = 0; i < a.data.size(); ++i)
    write_element(out.data(), a.dtype, static_cast<int64_t>(i), a.is_valid(i) ? a.data[i] : 0);
  return out;
}

class CallInterpreter {
 public:
  CallInterpreter(const UOp& call, std::span<const BoundedArray> arguments,
                  const Bindings& bindings)
      : call_(call), arguments_(arguments), bindings_(bindings) {
    for (const UOp& r : results_of(call.src(0))) {
      BoundedArray made{{r.dtype(), {}, {}, {}}, {}};
      for (const UOp& d : r.shape().src()) made.value.sizes.push_back(interpret_index(d, bindings));
      made.value.data.resize(static_cast<size_t>(made.value.numel()));
      memory_.push_back(in_bytes(made.value));
      results_.push_back(std::move(made));
    }
    for (const BoundedArray& a : arguments) memory_.push_back(in_bytes(a.value));
  }

  std::vector<BoundedArray> run(const Liberties& liberties) {
    if (call_.src(0).is(Op::CustomFunction))
      run_function();
    else
      run_kernel(liberties);
    for (size_t k = 0; k < results_.size(); ++k) {
      Array& out = results_[k].value;
      for (size_t i = 0; i < out.data.size(); ++i)
        out.data[i] = read_element(memory_[k].data(), out.dtype, static_cast<int64_t>(i));
    }
    return std::move(results_);
  }

 private:
  void run_function() {
    std::vector<HostResult> results;
    std::vector<HostArgument> arguments;
    bool exact = true;
    for (size_t k = 0; k < results_.size(); ++k)
      results.push_back({results_[k].value.dtype, results_[k].value.sizes, memory_[k].data()});
    for (size_t k = 0; k < arguments_.size(); ++k) {
      const BoundedArray& a = arguments_[k];
      exact = exact && a.error.empty();
      arguments.push_back({a.value.dtype, a.value.sizes, memory_[results_.size() + k].data()});
    }
    run_host_function(call_.src(0), results, arguments);
    for (BoundedArray& r : results_)
      if (!exact) r.error.assign(r.value.data.size(), undetermined);
  }

  void run_kernel(const Liberties& liberties) {
    KernelArguments run;
    Deviations deviations{liberties, {}};
    for (size_t k = 0; k < memory_.size(); ++k) {
      run.buffers.push_back(memory_[k].data());
      run.buffer_bytes.push_back(static_cast<int64_t>(memory_[k].size()));
      deviations.buffers.push_back(k < results_.size() ? std::vector<double>()
                                                       : arguments_[k - results_.size()].error);
    }
    for (const UOp& v : variables_below(call_))
      run.variables[v.as<BufferArg>().name] = interpret_index(v, bindings_);
    interpret_kernel(flat_kernel(without_values(call_.src(0))).ast, run, &deviations);
    for (size_t k = 0; k < results_.size(); ++k) results_[k].error = deviations.buffers[k];
  }

  const UOp& call_;
  std::span<const BoundedArray> arguments_;
  const Bindings& bindings_;
  std::vector<BoundedArray> results_;
  std::vector<std::vector<std::byte>> memory_;  // of results, then arguments
};

}  // namespace

std::vector<BoundedArray> interpret_call(const UOp& call, std::span<const BoundedArray> arguments,
                                         const Bindings& bindings, const Liberties& liberties) {
  if (is_loop(call.src(0))) return interpret_loop(call, arguments, bindings, liberties);
  return CallInterpreter(call, arguments, bindings).run(liberties);
}

}  // namespace koine
