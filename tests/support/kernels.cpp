#include "kernels.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "backends.hpp"
#include "check.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {

GuardedMemory::GuardedMemory(int64_t bytes) : bytes_(bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t pages = (static_cast<size_t>(bytes) + page - 1) / page;
  mapped_ = (pages + 1) * page;
  void* start = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::runtime_error("no memory");
  end_ = static_cast<std::byte*>(start) + pages * page;
  (void)mprotect(end_, page, PROT_NONE);
}
GuardedMemory::~GuardedMemory() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(end_ + page - mapped_, mapped_);
}

Array run_kernels(const std::vector<Kernel>& kernels, const Callified& program,
                  const KernelEdits& edits, const std::unordered_map<std::string, int64_t>& bound) {
  DeviceRuntime& device = device_runtime(default_device());
  ran_on(default_device());
  std::unordered_map<UOp, GuardedMemory> memory;
  auto given = [&](const UOp& b) {
    return memory_of(program.arguments[static_cast<size_t>(b.as<BufferArg>().slot)])->data();
  };
  for (size_t k = 0; k < kernels.size(); ++k) {
    std::vector<std::byte*> pointers;
    std::vector<int64_t> sizes;
    for (const UOp& b : kernels[k].buffers) {
      sizes.push_back(b.numel() * item_size(b.dtype()));
      const auto [place, fresh] = memory.try_emplace(b, sizes.back());
      pointers.push_back(place->second.data());
      if (fresh && b.is(Op::Param)) std::copy_n(given(b), sizes.back(), pointers.back());
    }
    const auto compiled = device.compile(lower_kernel(kernels[k].ast, device.target(), {},
                                                      k == edits.kernel ? &edits.opts : nullptr));
    std::vector<int64_t> variables;
    for (const UOp& v : kernels[k].variables)
      variables.push_back(is_bound(v) ? bound_value(v) : bound.at(v.as<BufferArg>().name));
    compiled->run({pointers, sizes, variables});
  }
  for (const auto& [b, guarded] : memory)
    if (b.is(Op::Param)) std::copy_n(guarded.data(), b.numel() * item_size(b.dtype()), given(b));
  return array_of(program.arguments[0]);  // the destination of the first value
}

int count_ops(const UOp& graph, Op op) {
  int n = 0;
  for (const UOp& u : toposort(graph)) n += u.is(op);
  return n;
}

double loads_of(const std::vector<Kernel>& kernels) {
  double out = 0;
  for (const Kernel& k : kernels)
    for (const UOp& u : toposort(k.ast)) {
      if (!u.is(Op::Load) || !accessed_buffer(u).is(Op::Param)) continue;
      double rounds = 1;
      for (const Node* loop : u.ranges()) rounds *= largest(UOp::share(loop).src(0));
      out += rounds;
    }
  return out;
}

UOp with_swapped_operands(const UOp& value, std::mt19937_64& random) {
  return transform_graph(value, [&](const UOp&, const UOp& node) {
    const bool commutes = node.is(Op::Add) || node.is(Op::Mul) || node.is(Op::And) ||
                          node.is(Op::Or) || node.is(Op::Xor) || node.is(Op::CmpNe);
    if (!commutes || node.dtype() == DType::Index || node.src(0).dtype() == DType::Index)
      return node;
    return random() % 2 == 0 ? node : UOp::make(node.op(), {node.src(1), node.src(0)}, node.arg());
  });
}

UOp told_by_arguments(DType dtype) {
  const Tensor x(leaf({8}, dtype, 1));
  const auto part = [&](int64_t begin, double added) {
    return (x.shrink({{begin, begin + 4}}) + Tensor(added)).contiguous();
  };
  return (part(0, 1.5) * part(4, -0.375).sum()).uop();
}

std::vector<std::pair<double, double>> counted_work(const std::vector<UOp>& values) {
  std::vector<std::pair<double, double>> out;
  for (const Kernel& k : schedule(values)) {
    if (!k.ast.is(Op::Sink)) continue;  // a copy between devices
    const KernelEstimate e = lower_kernel(k.ast, generic_target(true)).estimate;
    out.emplace_back(e.operations, e.bytes);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Counters counters_of(const std::vector<Tensor>& values) {
  std::vector<UOp> wanted;
  for (const Tensor& v : values)
    wanted.push_back(UOp::make(Op::Contiguous, {v.uop()}, MarkArg{Mark::Copies}));
  reset_counters();
  (void)realize(wanted);
  return counters();
}

}  // namespace koine::test
