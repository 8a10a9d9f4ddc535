#include "koine/lower/split.hpp"

#include <vector>

#include "koine/ir/build.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/scatter.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/sum_tree.hpp"

namespace koine {
namespace {

UOp with_folds_in_steps(const UOp& ast, bool strict) {
  if (!ast.is(Op::Sink)) return ast;  // a copy, a function of the host, a loop
  const UOp out = scan_kernel(scatter_kernel(ast, strict), strict);
  return strict ? out : fold_in_float32(out);
}

}  // namespace

UOp split(const UOp& kernels, bool strict) {
  std::vector<UOp> calls;
  for (const UOp& call : kernels.src()) {
    std::vector<UOp> src(call.src().begin(), call.src().end());
    src[0] = with_folds_in_steps(src[0], strict);
    calls.push_back(with_sources(call, src));
  }
  return on_devices(without_unread(UOp::make(Op::Linear, calls)));
}

}  // namespace koine
