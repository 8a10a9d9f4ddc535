#include "koine/lower/group_limits.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/stage.hpp"

namespace koine {
namespace {

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

// Whether some value depends on both.
bool meet(const NodeList& nodes, const UOp& a, const UOp& b) {
  return std::ranges::any_of(nodes,
                             [&](const UOp& u) { return depends_on(u, a) && depends_on(u, b); });
}

bool has_warps(const UOp& ast) {
  return std::ranges::any_of(kernel_ranges(ast),
                             [](const UOp& r) { return type_of(r) == AxisType::Warp; });
}

double threads_of(const UOp& ast) {
  double out = size_of_all(ast, {AxisType::Warp});
  for (const std::vector<UOp>& axes : thread_axes(ast))
    out *= static_cast<double>(axes[0].src(0).bounds().high);
  return out;
}

// Bytes of LOCAL memory: the rows, and a partial result a thread of each fold along each axis.
double local_bytes(const UOp& ast) {
  double rows = 0, partial = 0;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Buffer)) rows += static_cast<double>(u.numel() * item_size(u.dtype()));
    if (u.is(Op::Reduce)) partial += static_cast<double>(item_size(u.dtype()));
    if (u.is(Op::Reduce) && u.as<ReduceArg>().staged) rows += static_cast<double>(staged_bytes(u));
  }
  const auto folds = std::ranges::count_if(
      kernel_ranges(ast), [](const UOp& r) { return type_of(r) == AxisType::GroupReduce; });
  return rows + static_cast<double>(folds) * partial * threads_of(ast) *
                    size_of_all(ast, {AxisType::Upcast, AxisType::Unroll});
}

// What a barrier cannot stand in.
std::string refusal_of_barriers(const std::vector<UOp>& axes) {
  for (const UOp& r : axes)
    if (!r.src(0).ranges().empty())
      return "one of its loops ends where another stands, so that threads would wait at different "
             "barriers";
  return {};
}

// What factors in LOCAL memory that threads fill together cannot stand in.
std::string refusal_of_staging(const UOp& after) {
  UOp staged;
  std::vector<const Node*> stored;
  const NodeList nodes = toposort(after);
  for (const UOp& u : nodes) {
    if (u.is(Op::Reduce) && u.as<ReduceArg>().staged) staged = u;
    if (u.is(Op::Store) && is_address(u.src(0))) stored.push_back(accessed_buffer(u).node());
  }
  if (!staged) return {};
  if (std::string no = refusal_of_barriers(kernel_ranges(after)); !no.empty()) return no;
  if (folds_together(after)) return "threads fold a sum together";
  const std::vector<UOp> loads = staged_loads(staged);
  if (loads.empty()) return "no factor is read along the axis where it lies";
  for (const UOp& l : loads)
    if (std::ranges::find(stored, accessed_buffer(l).node()) != stored.end())
      return "it reads what it stores";
  return {};
}

std::string refusal_of_sizes(const UOp& after, const Opt& opt, const Groups& groups) {
  const double threads = threads_of(after), all = size_of_all(after, {AxisType::Global}),
               bytes = local_bytes(after);
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

bool shares_rows(const UOp& ast) {
  const auto numbers = thread_axes(ast);
  return std::ranges::any_of(row_fills(ast),
                             [&](const UOp& fill) { return is_filled_together(fill, numbers); });
}

bool fills_along(const UOp& fill, const std::vector<UOp>& axes) {
  return std::ranges::any_of(axes, [&](const UOp& a) {
    return depends_on(fill, a) || is_among(fill.src().subspan(1), a);
  });
}

// Threads along axes of loops and folds: each has rows of LOCAL memory of its own, or fills a part
// of one that the group shares.
std::string refusal_of_threads(const UOp& after) {
  for (const UOp& fill : row_fills(after))
    for (const std::vector<UOp>& axes : thread_axes(after))
      if (!fills_along(fill, axes))
        return "the threads would fill one row of LOCAL memory, each all of it";
  return {};
}

// A row that the group shares is filled once: no loop stands around it.
std::string refusal_of_shared_rows(const UOp& after) {
  const auto numbers = thread_axes(after);
  for (const UOp& fill : row_fills(after)) {
    if (!is_filled_together(fill, numbers)) continue;
    for (const Node* r : fill.ranges()) {
      const AxisType type = std::get<RangeArg>(r->arg).type;
      if (type != AxisType::Global && type != AxisType::Local)
        return "the threads fill a row of LOCAL memory together, and a loop stands around it";
    }
  }
  return {};
}

// What threads that fold together cannot stand in.
std::string refusal_of_folding(const UOp& after) {
  const std::vector<UOp> axes = kernel_ranges(after);
  if (std::string no = refusal_of_barriers(axes); !no.empty()) return no;
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
      if (st.is(Op::Store) && l.is(Op::Load) && accessed_buffer(st) == accessed_buffer(l) &&
          !accessed_buffer(st).is(Op::Buffer))
        return "it reads what it stores";
  return {};
}

}  // namespace

bool is_filled_together(const UOp& fill, const std::vector<std::vector<UOp>>& numbers) {
  return std::ranges::any_of(numbers, [&](const std::vector<UOp>& axes) {
    return std::ranges::none_of(axes, [&](const UOp& a) { return depends_on(fill, a); });
  });
}

std::vector<std::vector<UOp>> thread_axes(const UOp& ast) {
  std::vector<std::vector<UOp>> out;
  const NodeList nodes = toposort(ast);
  for (const AxisType type : {AxisType::Local, AxisType::GroupReduce})
    for (const UOp& r : kernel_ranges(ast)) {
      if (type_of(r) != type) continue;
      const auto shared = std::ranges::find_if(out, [&](const std::vector<UOp>& axes) {
        return axes[0].src(0) == r.src(0) &&
               std::ranges::none_of(axes, [&](const UOp& a) { return meet(nodes, a, r); });
      });
      if (shared == out.end())
        out.push_back({r});
      else
        shared->push_back(r);
    }
  const auto runs_along_memory = [&](const std::vector<UOp>& axes) {
    return std::ranges::any_of(nodes, [&](const UOp& u) {
      return u.is(Op::Load) && accessed_buffer(u).is(Op::Param) &&
             std::ranges::any_of(axes, [&](const UOp& a) { return stride(u.src(0), a) == 1; });
    });
  };
  std::ranges::stable_partition(
      out, [&](const std::vector<UOp>& axes) { return !runs_along_memory(axes); });
  return out;
}

std::string refusal_in_groups(const UOp& ast, const UOp& axis, const Opt& opt, const UOp& after,
                              const Groups& groups) {
  if (opt.op == OptOp::Nolocals)
    return folds_together(ast) ? "Nolocals: threads of a group fold together along GROUP_REDUCE"
           : shares_rows(ast)  ? "Nolocals: threads of a group share rows of LOCAL memory"
           : has_warps(ast)    ? "Nolocals: the threads of a tensor core are a group"
                               : std::string();
  const bool splits = opt.op == OptOp::Split;
  if (splits && opt.target == AxisType::Thread)
    return fmt::format("{}: this device has groups of threads: use GLOBAL and LOCAL",
                       opt_text(opt));
  const bool adds_threads = opt.target == AxisType::Local || opt.target == AxisType::GroupReduce;
  // Threads along a row are the first to come, and those along others follow.
  if (splits && adds_threads && !is_listed(row_fills(ast), axis))
    if (const std::string no = refusal_of_threads(after); !no.empty())
      return fmt::format("{}: {}", opt_text(opt), no);
  if (const std::string no = refusal_of_shared_rows(after); !no.empty())
    return fmt::format("{}: {}", opt_text(opt), no);
  if (const std::string no = refusal_of_staging(after); !no.empty())
    return fmt::format("{}: factors go through LOCAL memory, and {}", opt_text(opt), no);
  if (std::string no = refusal_of_sizes(after, opt, groups); !no.empty()) return no;
  if (!folds_together(after)) return {};
  const std::string no = refusal_of_folding(after);
  return no.empty() ? no : fmt::format("{}: threads fold together, and {}", opt_text(opt), no);
}

}  // namespace koine
