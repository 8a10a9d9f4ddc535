#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/lower/optimize.hpp"

namespace koine::test {

/// Runs a kernel written by hand on a device, over memory of its own, with the edits asked for
/// (null: those of the heuristics). The bytes of Param i are `buffers[i]`, which are read back.
void run_by_hand(const UOp& ast, const std::string& device,
                 std::span<const std::span<std::byte>> buffers,
                 const std::vector<Opt>* opts = nullptr);

/// What a kernel of (out, in) makes of `out`.
template <class T, class In>
std::vector<T> run_by_hand(const UOp& ast, const std::string& device, std::vector<T> out,
                           std::vector<In>& in) {
  const std::span<std::byte> buffers[] = {std::as_writable_bytes(std::span(out)),
                                          std::as_writable_bytes(std::span(in))};
  run_by_hand(ast, device, buffers);
  return out;
}

/// out[in[i]] += 1 for each i: Param 0 has `bins` numbers of `dtype`, Param 1 `count` int32.
UOp histogram(int64_t count, int64_t bins, DType dtype, AxisType type = AxisType::Loop);

}  // namespace koine::test
