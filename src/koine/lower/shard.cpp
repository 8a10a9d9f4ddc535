// What each device computes of a value that several devices hold, by the table's column
// (transform/shard). Which ops keep the parts whole was decided when the graph was built
// (ir/placement.cpp), so nothing here has to refuse a shape.
#include "koine/lower/shard.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <numeric>

#include "koine/base/error.hpp"
#include "koine/interp/liberties.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/collectives.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/parts.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

// Whether all elements have to be folded in one order for the result that is asked for.
bool wants_one_fold(const UOp& reduce, bool strict) {
  const ReduceArg& arg = reduce.as<ReduceArg>();
  if (!strict || !is_float(reduce.dtype())) return false;
  if (arg.op != Op::Max) return true;
  // Of equal zeros the first one stays: parts come in order where theirs is the outermost axis.
  const auto split = static_cast<int64_t>(*reduce.src(0).axis());
  return std::any_of(arg.axes.begin(), arg.axes.end(), [&](int64_t axis) {
    return axis < split && !is_const(reduce.src(0).dim(static_cast<size_t>(axis)), 1);
  });
}

// --- copies of copies ----------------------------------------------------------------------------

bool is_copy_to_device(const UOp& u) {
  return u.is(Op::Load) && u.as<LoadArg>().device && u.src().size() == 1;
}

// What was copied to be copied on goes there at once: a value that is whole where it came from may
// be on the last device already, as in the gradient of an all-gather.
UOp without_stations(const UOp& program) {
  return transform_graph(program, [](const UOp&, const UOp& node) {
    if (!is_copy_to_device(node)) return node;
    std::vector<UOp> views;
    UOp base = node.src(0);
    for (; base.is(Op::Permute) || base.is(Op::Reshape); base = UOp(base.src(0)))
      views.push_back(base);
    if (!is_copy_to_device(base)) return node;
    const UOp& source = base.src(0);
    if (source.axis() && !views.empty()) return node;  // whose parts a view may tear
    UOp out = source;
    for (; !views.empty(); views.pop_back()) out = with_source(views.back(), 0, out);
    // It is there: what is invalid of it is 0 in a copy.
    if (node.device().count() == 1 && node.device() == out.device())
      return UOp::make(Op::Contiguous, {out});
    return with_source(node, 0, out);
  });
}

// --- the program ---------------------------------------------------------------------------------

class Sharder {
 public:
  Sharder(const UOp& program, bool strict) : strict_(strict) {
    const std::vector<Collective> found = collectives_of(program);
    reasons_ = reasons_of_copies(program, found);
    for (const Collective& c : found)
      if (c.kind == CollectiveKind::ReduceScatter) scattered_.insert(c.inside[0].node());
  }

  UOp run(const UOp& program) {
    for (const UOp& u : toposort_outside_bodies(program)) {
      invalid_.visit(u);
      parts_.set(u.node(), parts_of(u));
    }
    return parts_.at(program.node())[0];
  }

 private:
  const Parts& parts(const UOp& u) const { return parts_.at(u.node()); }
  UOp part(const UOp& u, size_t i) const {
    const Parts& all = parts(u);
    return i < all.size() ? all[i] : all[0];
  }

  Parts parts_of(const UOp& u) {
    const size_t n = u.device().count();
    if (u.is(Op::Tuple)) return {with_all_parts(u)};
    if (u.is(Op::Call) && is_loop(u.src(0)) && n > 1) return {loop_of_parts(u)};
    if (u.is(Op::Sink) || n == 1) return {on_one_device(u)};
    if (u.is(Op::Reduce) && u.src(0).axis() && !u.axis()) return reduced(u);
    Parts out;
    for (size_t i = 0; i < n; ++i) out.push_back(on_device(u, i));
    return out;
  }

  // Effects on several devices are one of each device; of values, a copy alone reads several.
  UOp on_one_device(const UOp& u) {
    if (u.is(Op::Load) && parts(u.src(0)).size() > 1 && u.src().size() == 1)
      return as_copy(u, fetched(u.src(0), u.device(), all_of_it, reason_of(u)));
    std::vector<UOp> sources;
    if (u.is(Op::Call)) sources.push_back(u.src(0));
    bool changed = false;
    for (const UOp& s : sources_outside_body(u)) {
      const Parts& all = parts(s);
      if (all.size() > 1 && s.dtype() != DType::Void && !u.is(Op::Sink) && !u.is(Op::Fence))
        refuse(u);
      changed = changed || all.size() > 1 || !(all[0] == s);
      sources.insert(sources.end(), all.begin(), all.end());
      if (u.is(Op::Call)) sources.back() = call_argument(sources.back());  // it was a copy
    }
    return changed ? with_sources(u, sources) : u;
  }

  [[noreturn]] static void refuse(const UOp& u) {
    const auto several = std::find_if(u.src().begin(), u.src().end(),
                                      [](const UOp& s) { return s.device().count() > 1; });
    KOINE_INVARIANT(several != u.src().end(), "{} lies on several devices, and no source of it",
                    op_name(u.op()));
    raise(ErrorKind::Value,
          "{}: its operand of shape {} lies on the devices {}, and it runs on one: copy that to "
          "one device first, such as {}",
          op_name(u.op()), shape_text(*several), several->device().name(),
          several->device().part(0).name());
  }

  // What the i-th device computes of a value on several: what moves between devices, or runs on
  // each, is done here, the rest by the table.
  UOp on_device(const UOp& u, size_t i) {
    if (u.is(Op::Load) && u.as<LoadArg>().device) return copied(u, i);
    if (u.is(Op::After) || u.is(Op::Group)) return effects(u, i);
    if (u.is(Op::GetTuple) && u.src(0).is(Op::Call) && is_loop(u.src(0).src(0)))
      return get_tuple(
          parts(u.src(0))[0],
          u.as<int64_t>() * static_cast<int64_t>(u.device().count()) + static_cast<int64_t>(i));
    const ShardCell cell = shard_cell(u.op());
    if (cell.rule() == nullptr) refuse(u);
    std::vector<UOp> sources;
    for (const UOp& s : u.src()) sources.push_back(part(s, i));
    return cell.rule()({u, i, sources});
  }

  // Each device's Stores are its own; those on other devices stand with the first.
  UOp effects(const UOp& u, size_t i) const {
    std::vector<UOp> sources;
    for (const UOp& s : u.src()) {
      const Parts& all = parts(s);
      if (s.device() == u.device())
        sources.push_back(all[i]);
      else if (i == 0)
        sources.insert(sources.end(), all.begin(), all.end());
    }
    return with_sources(u, sources);
  }

  // --- loops ---------------------------------------------------------------------------------

  // A part of what may lie nowhere, on its device.
  UOp lying(const UOp& value, size_t i, Device devices) const {
    const UOp own = part(value, i);
    return own.device() ? own : copy_to(own, devices.part(i));
  }

  // The part of an argument that stands for part i in a step: of one that lies nowhere, its slice.
  UOp part_inside(const UOp& given, LoopRole role, const UOp& inside, size_t i) const {
    if (given.device() || !inside.axis()) return part(given, i);
    const size_t axis = *inside.axis() + (role == LoopRole::Row ? 1 : 0);
    return sliced(part(given, 0), {axis, i, 1, inside.device().count()});
  }

  // What a function of a loop gives: all parts of each value.
  UOp with_all_parts(const UOp& values) const {
    std::vector<UOp> out;
    for (const UOp& v : values.src())
      for (size_t i = 0, n = v.device().count(); i < n; ++i)
        out.push_back(n == 1 ? part(v, 0) : lying(v, i, v.device()));
    return tuple(out);
  }

  // A loop on n devices is one of all parts: part i of argument k is its argument k n + i, and so
  // it is with results.
  UOp loop_of_parts(const UOp& call) const {
    const Loop loop(call);
    const Device devices = call.device();
    const std::vector<UOp> params = loop.params();
    std::vector<LoopArgument> arguments;
    for (size_t k = 0; k < params.size(); ++k) {
      const UOp& given = loop.arguments()[k];
      const LoopRole role = loop.roles[k];
      const Placement at = given.device() ? placement_inside(given, role) : Placement{devices};
      const UOp inside =
          params[k] ? params[k]
                    : new_buffer(shape_inside(given, role), given.dtype(), at.device, at.axes);
      for (size_t i = 0; i < devices.count(); ++i)
        arguments.push_back({role, call_argument(part_inside(given, role, inside, i)),
                             shard_cell(inside.op()).rule()({inside, i, {}})});
    }
    std::vector<std::vector<UOp>> functions;
    for (const UOp& f : loop.functions) {
      const UOp whole = without_stations(inline_functions(f));
      Sharder inner(whole, strict_);
      const UOp made = rewrite(inner.run(whole), movement_rules());
      functions.emplace_back(made.src().begin(), made.src().end());
    }
    if (loop.body.is(Op::Scan))
      return scan_call(arguments, functions[0], loop.count, loop.reversed);
    if (loop.body.is(Op::While)) return while_call(arguments, functions[0][0], functions[1]);
    const LoopArgument which = arguments[0];
    return switch_call(which.given, std::span(arguments).subspan(1), functions);
  }

  // --- between devices -----------------------------------------------------------------------

  UOp copied(const UOp& load, size_t i) {
    KOINE_REQUIRE(load.src().size() == 1, Value,
                  "Load: a gate and a copy to the devices {} are two steps: load first, then copy",
                  load.device().name());
    const Device devices = load.device();
    return as_copy(
        load, fetched(load.src(0), devices.part(i), {0, i, 1, devices.count()}, reason_of(load)));
  }

  // What is invalid of a value is 0 in a copy, also where nothing had to move.
  UOp as_copy(const UOp& load, const UOp& fetched) const {
    return invalid_.contains(load.src(0)) ? contiguous(fetched) : fetched;
  }

  // What a copy is for; empty: it is part of no collective.
  std::string reason_of(const UOp& u) const {
    const auto it = reasons_.find(u.node());
    return it == reasons_.end() ? std::string() : it->second;
  }

  // A cut of a value, on a device.
  UOp fetched(const UOp& value, Device device, const Cut& cut, const std::string& reason) {
    const Parts& all = parts(value);
    if (!value.axis()) {
      const UOp chunk = chunk_of_reduce(value, cut);
      return copies_.of(chunk ? chunk : sliced(nearest(all, device), cut), device, reason);
    }
    if (*value.axis() == cut.axis || cut.count == cut.pieces)
      return fetched_along(value, device, {*value.axis(), cut.first, cut.count, cut.pieces},
                           reason);
    Parts pieces;
    for (const UOp& p : all) pieces.push_back(copies_.of(sliced(p, cut), device, reason));
    return joined(pieces, *value.axis());
  }

  // Of a Reduce over n devices that is scattered, one n-th is folded without the rest; null: the
  // value is none, or the cut is another one.
  UOp chunk_of_reduce(const UOp& value, const Cut& cut) {
    UOp reduce = value;
    while (reduce.is(Op::Reshape)) reduce = UOp(reduce.src(0));
    const Parts* const partials = partials_.find(reduce.node());
    if (partials == nullptr || cut.axis != 0 || cut.count != 1 || cut.pieces != partials->size())
      return {};
    const UOp chunk = reduced_chunk(reduce.as<ReduceArg>().op, *partials, cut.first,
                                    reduce.device(), reduce.dtype(), reason_of(reduce), copies_);
    return chunk ? reshape(chunk, sliced(value, cut).shape()) : chunk;
  }

  // Along the axis that the value is split along: both it and the cut are whole units.
  UOp fetched_along(const UOp& value, Device device, const Cut& cut, const std::string& reason) {
    const Parts& all = parts(value);
    const size_t units = std::lcm(all.size(), cut.pieces), own = units / all.size();
    const size_t first = cut.first * (units / cut.pieces);
    const size_t end = first + cut.count * (units / cut.pieces);
    Parts pieces;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t from = std::max(first, i * own), to = std::min(end, (i + 1) * own);
      if (from >= to) continue;
      const UOp run =
          copies_.of(sliced(all[i], {cut.axis, from - i * own, to - from, own}), device, reason);
      for (size_t k = 0; k < to - from; ++k)
        pieces.push_back(sliced(run, {cut.axis, k, 1, to - from}));
    }
    return joined(pieces, cut.axis);
  }

  // Of equal copies, the one that lies there, else the first.
  static const UOp& nearest(const Parts& all, Device device) {
    const auto here =
        std::find_if(all.begin(), all.end(), [&](const UOp& p) { return p.device() == device; });
    return here == all.end() ? all[0] : *here;
  }

  Parts reduced(const UOp& u) {
    const Device devices = u.device();
    Parts partials;
    if (wants_one_fold(u, strict_)) {
      for (size_t i = 0; i < devices.count(); ++i)
        partials.push_back(with_sources(
            u, std::vector<UOp>{whole_on(u.src(0), i, reason_of(u) + " in one order")}));
      return partials;
    }
    const Op op = u.as<ReduceArg>().op;
    const bool sums = is_float(u.dtype()) && op != Op::Max;
    const DType wide = sums && !strict_ ? fold_dtype(u.dtype()) : u.dtype();
    for (const UOp& p : parts(u.src(0)))  // memory, so that all devices fold the same bits
      partials.push_back(UOp::make(Op::Contiguous,
                                   {with_sources(u, std::vector<UOp>{cast(p, wide)})},
                                   std::string("what one device has of a reduce over all")));
    if (scattered_.contains(u.node())) partials_.set(u.node(), partials);
    return all_reduced(op, partials, devices, u.dtype(), reason_of(u), copies_);
  }

  // The whole of a split value on the i-th device. What is elementwise or a view of other values is
  // computed there from the whole of those.
  UOp whole_on(const UOp& value, size_t i, const std::string& reason) {
    const Device devices = value.device();
    auto recomputed = [](const UOp& u) {
      return u.axis() && (is_elementwise(u.op()) || is_movement(u.op()));
    };
    NodeMap<UOp> whole;
    auto found = [&](const UOp& u) {
      if (const UOp* known = whole.find(u.node())) return *known;
      return u.axis() ? fetched(u, devices.part(i), all_of_it, reason) : part(u, i);
    };
    for (const UOp& u : toposort(value, recomputed)) {
      std::vector<UOp> sources;
      for (const UOp& s : u.src()) sources.push_back(found(s));
      whole.set(u.node(), with_sources(u, sources));
    }
    return found(value);
  }

  bool strict_;
  absl::flat_hash_map<const Node*, std::string> reasons_;  // of copies
  PartlyInvalid invalid_;
  absl::flat_hash_set<const Node*>
      scattered_;            // Reduces over the devices, of which each has a part
  NodeMap<Parts> partials_;  // and what each has of the whole
  NodeMap<Parts> parts_;
  Copies copies_;
};

}  // namespace

UOp on_each_device(const UOp& program, const CompileOptions& how) {
  const NodeList order = toposort(program);
  const bool spread =
      std::any_of(order.begin(), order.end(), [](const UOp& u) { return u.device().count() > 1; });
  if (!spread) return program;
  const UOp direct = without_stations(program);
  const UOp out = rewrite(Sharder(direct, how.strict).run(direct), movement_rules());
  if (how.verify >= 2) verify(out, VerifyLevel::Program, "shard");
  return out;
}

}  // namespace koine
