#include "koine/lower/split.hpp"

#include <vector>

#include "koine/ir/build.hpp"
#include "koine/lower/phases.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/scatter.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/sum_tree.hpp"

namespace koine {
namespace {

std::vector<UOp> with_folds_in_steps(const UOp& ast, const CompileOptions& how) {
  if (!ast.is(Op::Sink)) return {ast};  // a copy, a function of the host, a loop
  std::vector<UOp> out = scatter_kernels(ast, how);
  for (UOp& kernel : out) {
    kernel = scan_kernel(kernel, how.strict);
    if (!how.strict) kernel = fold_in_float32(kernel);
    kernel = in_phases(kernel, how.strict);
  }
  return out;
}

}  // namespace

UOp split(const UOp& kernels, const CompileOptions& how) {
  std::vector<UOp> calls;
  for (const Kernel& kernel : kernels_of(kernels)) {
    const std::vector<UOp> parts = with_folds_in_steps(kernel.ast, how);
    for (const UOp& part : parts)
      calls.push_back(parts.size() == 1 ? with_source(kernel.call, 0, part)
                                        : kernel_call(part, kernel.buffers, kernel.reason,
                                                      kernel.variables, kernel.waits));
  }
  return on_devices(without_unread(UOp::make(Op::Linear, calls)));
}

}  // namespace koine
