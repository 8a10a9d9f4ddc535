#include "koine/lower/exchanges.hpp"

#include <algorithm>

namespace koine {

UOp with_copies_together(const UOp& schedule, const std::function<bool(const Kernel&)>& is_chosen) {
  const std::vector<Kernel> kernels = kernels_of(schedule);
  if (std::none_of(kernels.begin(), kernels.end(), is_chosen)) return schedule;
  const std::vector<std::vector<size_t>> needs = dependencies_of(kernels);
  std::vector<bool> done(kernels.size());
  std::vector<UOp> out;
  std::vector<size_t> waiting(kernels.size());
  for (size_t k = 0; k < waiting.size(); ++k) waiting[k] = k;
  auto is_ready = [&](size_t k) {
    return std::all_of(needs[k].begin(), needs[k].end(), [&](size_t n) { return done[n]; });
  };
  auto emit = [&](size_t k) {
    out.push_back(kernels[k].call);
    done[k] = true;
  };
  while (!waiting.empty()) {
    for (const size_t k : waiting)  // each needs earlier ones, so one walk is enough
      if (!is_chosen(kernels[k]) && is_ready(k)) emit(k);
    std::erase_if(waiting, [&](size_t k) { return done[k]; });
    std::vector<size_t> together;
    std::copy_if(waiting.begin(), waiting.end(), std::back_inserter(together), is_ready);
    for (const size_t k : together) emit(k);
    std::erase_if(waiting, [&](size_t k) { return done[k]; });
  }
  return UOp::make(Op::Linear, out);
}

}  // namespace koine
