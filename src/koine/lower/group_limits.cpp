#include "koine/lower/group_limits.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"

namespace koine {
namespace {

AxisType type_of(const UOp& range) { return range.as<RangeArg>().type; }

// The product of the sizes of all axes of some types; of a symbolic one its largest.
double size_of_all(const UOp& ast, std::initializer_list<AxisType> types) {
  double out = 1;
  for (const UOp& r : kernel_ranges(ast))
    if (std::find(types.begin(), types.end(), type_of(r)) != types.end())
      out *= static_cast<double>(r.src(0).bounds().high);
  return out;
}

bool folds_together(const UOp& ast) {
  const std::vector<UOp> axes = kernel_ranges(ast);
  return std::any_of(axes.begin(), axes.end(),
                     [](const UOp& r) { return type_of(r) == AxisType::GroupReduce; });
}

bool has_warps(const UOp& ast) {
  return std::ranges::any_of(kernel_ranges(ast),
                             [](const UOp& r) { return type_of(r) == AxisType::Warp; });
}

// Bytes of LOCAL memory: the rows, and a partial result a thread of each fold.
double local_bytes(const UOp& ast) {
  double rows = 0, partial = 0;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Buffer)) rows += static_cast<double>(u.numel() * item_size(u.dtype()));
    if (u.is(Op::Reduce)) partial += static_cast<double>(item_size(u.dtype()));
  }
  if (!folds_together(ast)) return rows;
  return rows + partial * size_of_all(ast, {AxisType::Local, AxisType::GroupReduce,
                                            AxisType::Upcast, AxisType::Unroll});
}

std::string refusal_of_sizes(const UOp& after, const Opt& opt, const Groups& groups) {
  const double threads =
                   size_of_all(after, {AxisType::Local, AxisType::GroupReduce, AxisType::Warp}),
               all = size_of_all(after, {AxisType::Global}), bytes = local_bytes(after);
  if (threads > static_cast<double>(groups.most_threads))
    return fmt::format("{}: a group would have {:.0f} threads, and the device allows {}",
                       opt_text(opt), threads, groups.most_threads);
  if (all > static_cast<double>(groups.most_groups[0]))
    return fmt::format("{}: there would be {:.0f} groups, and the device allows {}", opt_text(opt),
                       all, groups.most_groups[0]);
  if (bytes > static_cast<double>(groups.local_bytes))
    return fmt::format("{}: a group would use {:.0f} bytes of LOCAL memory, and the device has {}",
                       opt_text(opt), bytes, groups.local_bytes);
  return {};
}

// What threads that fold together cannot stand in.
std::string refusal_of_folding(const UOp& after) {
  const std::vector<UOp> axes = kernel_ranges(after);
  if (!row_fills(after).empty()) return "its rows in LOCAL memory are of one thread each";
  for (const UOp& r : axes)
    if (!r.src(0).ranges().empty())
      return "one of its loops ends where another stands, so that threads would wait at different "
             "barriers";
  int64_t last_parallel = -1;
  for (const UOp& r : axes)
    if (!is_reduction(type_of(r))) last_parallel = std::max(last_parallel, r.as<RangeArg>().id);
  for (const UOp& r : axes)
    if (is_reduction(type_of(r)) && !becomes_shape(type_of(r)) &&
        r.as<RangeArg>().id < last_parallel)
      return "a reduction axis stands outside, with its partial results in the output";
  const NodeList nodes = toposort(after);
  for (const UOp& st : nodes)
    for (const UOp& l : nodes)
      if (st.is(Op::Store) && l.is(Op::Load) && accessed_buffer(st) == accessed_buffer(l))
        return "it reads what it stores";
  return {};
}

}  // namespace

std::vector<UOp> thread_axes(const UOp& ast) {
  std::vector<UOp> out;
  for (const AxisType type : {AxisType::Local, AxisType::GroupReduce})
    for (const UOp& r : kernel_ranges(ast))
      if (type_of(r) == type) out.push_back(r);
  return out;
}

std::string refusal_in_groups(const UOp& ast, const UOp& axis, const Opt& opt, const UOp& after,
                              const Groups& groups) {
  if (opt.op == OptOp::Nolocals)
    return folds_together(ast) ? "Nolocals: threads of a group fold together along GROUP_REDUCE"
           : has_warps(ast)    ? "Nolocals: the threads of a tensor core are a group"
                               : std::string();
  const bool splits = opt.op == OptOp::Split;
  if (splits && opt.target == AxisType::Thread)
    return fmt::format("{}: this device has groups of threads: use GLOBAL and LOCAL",
                       opt_text(opt));
  if (splits && opt.target == AxisType::Local) {
    for (const UOp& fill : row_fills(ast))
      if (!depends_on(fill, axis))
        return fmt::format("{}: the threads would fill one row of LOCAL memory, each all of it",
                           opt_text(opt));
  }
  if (std::string no = refusal_of_sizes(after, opt, groups); !no.empty()) return no;
  if (!folds_together(after)) return {};
  const std::string no = refusal_of_folding(after);
  return no.empty() ? no : fmt::format("{}: threads fold together, and {}", opt_text(opt), no);
}

}  // namespace koine
