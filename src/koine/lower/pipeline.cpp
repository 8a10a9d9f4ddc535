#include "koine/lower/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/expand.hpp"
#include "koine/lower/linearize.hpp"
#include "koine/lower/select.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

double size_of(const UOp& bound) {
  return bound.is(Op::Const) ? static_cast<double>(const_int(bound))
                             : static_cast<double>(bound.bounds().high);
}

std::string kernel_name(const UOp& ast) {
  bool reduces = false;
  std::string axes;
  for (const UOp& u : toposort(ast)) reduces = reduces || u.is(Op::Reduce);
  for (const UOp& r : kernel_ranges(ast))
    axes += fmt::format("_{}{}", axis_letter(r.as<RangeArg>().type),
                        r.src(0).is(Op::Const) ? std::to_string(const_int(r.src(0))) : "n");
  return (reduces ? "r" : "e") + axes;
}

KernelEstimate estimate_of(const UOp& ast) {
  KernelEstimate out;
  std::unordered_map<UOp, double> accessed, whole;
  for (const UOp& u : toposort(ast)) {
    double times = 1;
    const UOp& inside = u.is(Op::Reduce) ? u.src(0) : u;
    for (const Node* r : inside.ranges()) times *= size_of(r->sources()[0]);
    if ((is_elementwise(u.op()) || u.is(Op::Reduce)) && u.dtype() != DType::Index &&
        !u.is(Op::Cast))
      out.operations += times;
    if (u.is(Op::Load) || u.is(Op::Store)) {
      const UOp& buffer = u.src(0).is(Op::Index) ? u.src(0).src(0) : u.src(0);
      const auto bytes = static_cast<double>(item_size(buffer.dtype()));
      accessed[buffer] += times * bytes;
      whole[buffer] = buffer.src().empty() ? 0 : size_of(product(buffer.src(0))) * bytes;
    }
  }
  for (const auto& [buffer, bytes] : accessed) out.bytes += std::min(bytes, whole[buffer]);
  return out;
}

// Runs one stage: time, dump, verify. The only place that knows how stages are observed.
template <class Stage>
UOp run_stage(std::string_view name, const UOp& in, VerifyLevel level, bool edge,
              const StageSink& sink, Stage&& stage) {
  const double start = now_seconds();
  UOp out = stage(in);
  const double seconds = now_seconds() - start;
  if (options().debug >= 7) fmt::print(stderr, "  {:10} {:8.3f} ms\n", name, seconds * 1e3);
  if (options().dump == name) fmt::print(stderr, "--- after {}\n{}", name, to_text(out));
  if (sink) sink(name, out);
  if (options().verify >= 2 || (options().verify == 1 && edge)) verify(out, level, name);
  return out;
}

}  // namespace

const std::vector<std::string_view>& stage_names() {
  static const std::vector<std::string_view> names = {"callify", "rangeify",  "optimize", "expand",
                                                      "select",  "linearize", "plan",     "render"};
  return names;
}

LoweredKernel lower_kernel(const UOp& ast, const Target& target, const StageSink& sink,
                           const std::vector<Opt>* opts) {
  LoweredKernel out;
  UOp k =
      run_stage("rangeify", ast, VerifyLevel::Kernel, true, sink, [](const UOp& u) { return u; });
  k = run_stage("optimize", k, VerifyLevel::Kernel, false, sink, [&](const UOp& u) {
    if (opts == nullptr) return optimize(u, target, &out.opts);
    UOp edited = u;
    for (const Opt& opt : *opts) edited = apply_opt(edited, opt);
    out.opts = *opts;
    return edited;
  });
  out.name = kernel_name(k);
  out.estimate = estimate_of(ast);
  k = run_stage("expand", k, VerifyLevel::Kernel, false, sink,
                [](const UOp& u) { return expand(threads_to_special(block_reduces(u))); });
  k = run_stage("select", k, VerifyLevel::Kernel, false, sink,
                [&](const UOp& u) { return select(u, target); });
  out.linear = run_stage("linearize", k, VerifyLevel::Linear, true, sink,
                         [](const UOp& u) { return linearize(u); });
  return out;
}

}  // namespace koine
