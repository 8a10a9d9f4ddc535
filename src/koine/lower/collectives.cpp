#include "koine/lower/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"

namespace koine {
namespace {

// --- which there are -----------------------------------------------------------------------------

bool is_copy_between(const UOp& u) {
  return u.is(Op::Load) && u.as<LoadArg>().device && u.src().size() == 1 && u.src(0).device();
}

// A copy to the devices that hold the value, split along another axis now: each sends to each.
bool is_exchange(const UOp& copy) {
  const UOp& from = copy.src(0);
  return copy.device().count() > 1 && from.device() == copy.device() && from.axis() &&
         from.axis() != copy.axis();
}

// Whether each device gets all of what repeats along axis 0.
bool goes_to_each(const UOp& copy) {
  const UOp& from = copy.src(0);
  return copy.device().count() > 1 && from.is(Op::Expand) && is_const(from.src(0).dim(0), 1) &&
         is_const(copy.dim(0), static_cast<int64_t>(copy.device().count()));
}

UOp without_reshapes(UOp value) {
  while (value.is(Op::Reshape)) value = UOp(value.src(0));
  return value;
}

bool folds_axis(const UOp& reduce, size_t axis) {
  const Ints& axes = reduce.as<ReduceArg>().axes;
  return std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end();
}

class Finder {
 public:
  explicit Finder(const UOp& program) : order_(toposort(program)) {
    for (const UOp& u : order_)
      for (const UOp& s : u.src()) ++readers_[s.node()];
  }

  std::vector<Collective> run() {
    for (const UOp& u : order_) {
      if (is_copy_between(u))
        copy(u);
      else if (u.is(Op::Reduce))
        reduction(u);
      else if (u.is(Op::Replicated))
        replicated(u);
    }
    std::erase_if(found_, [](const Collective& c) { return !c.value; });
    return std::move(found_);
  }

 private:
  void copy(const UOp& u) {
    const UOp& from = u.src(0);
    const bool one = from.device().count() == 1, split = from.axis().has_value();
    if (add_part_of_all_reduce(u)) return;
    if (u.device().count() == 1) {
      if (split) add({CollectiveKind::Gather, u, from, {u}, {}});
    } else if (goes_to_each(u)) {
      const UOp operand = without_reshapes(from.src(0));
      if (one)
        add({CollectiveKind::Broadcast, u, operand, {u}, {}});
      else if (is_exchange(u) && !add_all_reduce(u))
        add({CollectiveKind::AllGather, u, operand, {u}, {}});
    } else if (one) {
      add({CollectiveKind::Scatter, u, from, {u}, {}});
    }
  }

  // Of what a Reduce over the devices gives, which nobody else reads, only one device wants it, or
  // each its chunk.
  bool add_part_of_all_reduce(const UOp& copied) {
    UOp value = copied.src(0);
    while (value.is(Op::Reshape) && is_read_once(value)) value = UOp(value.src(0));
    const size_t* const number = number_.find(value.node());
    if (number == nullptr || !value.is(Op::Reduce) || !is_read_once(value)) return false;
    Collective& before = found_[*number];
    const bool one = copied.device().count() == 1;
    if (before.kind != CollectiveKind::AllReduce || !(one || copied.device() == value.device()))
      return false;
    Collective part = before;
    before.value = {};
    part.kind = one ? CollectiveKind::Reduce : CollectiveKind::ReduceScatter;
    part.value = copied;
    part.inside.push_back(copied);
    add(std::move(part));
    return true;
  }

  // Of a gathered value that a reduce-scatter alone makes.
  bool add_all_reduce(const UOp& gathering) {
    UOp value = gathering.src(0);
    while ((value.is(Op::Expand) || value.is(Op::Reshape) || passes(value)) && is_read_once(value))
      value = UOp(value.src(0));
    const auto scattered = number_.find(value.node());
    if (scattered == nullptr || !is_read_once(value)) return false;
    Collective& before = found_[*scattered];
    if (before.kind != CollectiveKind::ReduceScatter) return false;
    Collective both = before;
    before.value = {};
    both.kind = CollectiveKind::AllReduce;
    both.value = gathering;
    both.inside.push_back(gathering);
    add(std::move(both));
    return true;
  }

  void replicated(const UOp& u) {
    const size_t* const number = number_.find(u.src(0).node());
    if (number == nullptr || !is_read_once(u.src(0)) || !goes_to_each(u.src(0))) return;
    found_[*number].value = u;
  }

  void reduction(const UOp& u) {
    const Op fold = u.as<ReduceArg>().op;
    if (u.src(0).axis() && !u.axis())
      return add({CollectiveKind::AllReduce, u, u.src(0), {u}, fold});
    UOp value = u.src(0), leading;  // the axis in front of all, as the Reduce sees it
    while (is_read_once(value) && (passes(value) || (value.is(Op::Reshape) && !leading))) {
      if (value.is(Op::Reshape)) leading = value.dim(0);
      value = UOp(value.src(0));
    }
    if (!is_copy_between(value) || !is_read_once(value) || !value.src(0).axis()) return;
    const UOp& from = value.src(0);
    const size_t axis = *from.axis();
    const auto n = static_cast<int64_t>(from.device().count());
    if (is_exchange(value) && !leading && is_const(from.dim(axis), n) && folds_axis(u, axis)) {
      add({CollectiveKind::ReduceScatter, u, from, {value}, fold});
    } else if (value.device().count() == 1 && axis == 0 && folds_axis(u, 0) &&
               is_const(leading ? leading : from.dim(0), n)) {
      found_[number_.at(value.node())].value = {};
      add({CollectiveKind::Reduce, u, from, {value}, fold});
    }
  }

  static bool passes(const UOp& u) { return u.is(Op::Cast) || u.is(Op::Contiguous); }
  bool is_read_once(const UOp& u) const { return readers_.at(u.node()) == 1; }
  void add(Collective found) {
    number_.set(found.value.node(), found_.size());
    found_.push_back(std::move(found));
  }

  NodeList order_;
  NodeMap<size_t> readers_;
  std::vector<Collective> found_;  // without a value: part of another one
  NodeMap<size_t> number_;         // of the one that gives a value
};

std::string name_with_fold(CollectiveKind kind, Op fold) {
  return fmt::format("{} ({})", collective_name(kind), op_name(fold));
}

// --- how an all-reduce is computed ---------------------------------------------------------------

constexpr int64_t fewest_bytes_in_chunks = 1024;  // of fewer a second round costs more than bytes

// A fixed tree over values in their order. A float sum of several starts from 0: it is never -0.
UOp folded(Op op, Parts values) {
  while (values.size() > 1) {
    Parts halved;
    for (size_t k = 0; k + 1 < values.size(); k += 2)
      halved.push_back(binary(op, values[k], values[k + 1]));
    if (values.size() % 2 == 1) halved.push_back(values.back());
    values = std::move(halved);
  }
  const bool starts = op == Op::Add && is_float(values[0].dtype());
  return starts ? add(values[0], constant_int(values[0].dtype(), 0)) : values[0];
}

std::optional<int64_t> known_elements(const UOp& value) {
  int64_t out = 1;
  for (const UOp& size : value.shape().src()) {
    if (!size.is(Op::Const)) return std::nullopt;
    out *= const_int(size);
  }
  return out;
}

// Whether two rounds of chunks send less than all to all.
bool goes_in_chunks(const UOp& partial, int64_t n) {
  const auto elements = known_elements(partial);
  if (!elements || *elements * item_size(partial.dtype()) < fewest_bytes_in_chunks) return false;
  return 2 * ((*elements + n - 1) / n) < *elements;
}

// What the i-th device folds: that chunk of all partial results, the last one filled up.
UOp folded_chunk(Op fold, const Parts& partials, size_t i, Device devices, DType total,
                 const std::string& name, Copies& copies) {
  const auto n = static_cast<int64_t>(partials.size());
  const int64_t elements = *known_elements(partials[0]), chunk = (elements + n - 1) / n;
  Parts here;
  for (const UOp& partial : partials) {
    UOp flat = reshape(partial, shape_of({elements}));
    if (elements < n * chunk)
      flat = pad(flat, shape_of({0}), shape_of({n * chunk}), constant_int(partial.dtype(), 0));
    here.push_back(copies.of(sliced(flat, {0, i, 1, partials.size()}), devices.part(i), name));
  }
  return UOp::make(Op::Contiguous, {cast(folded(fold, here), total)},
                   std::string("the chunk that one device folds"));
}

// Each device folds one chunk, and has the others from those that did.
Parts in_chunks(Op fold, const Parts& partials, Device devices, DType total,
                const std::string& name, Copies& copies) {
  Parts chunks, out;
  for (size_t i = 0; i < partials.size(); ++i)
    chunks.push_back(
        folded_chunk(fold, partials, i, devices, total, name + ": reduce-scatter", copies));
  const int64_t elements = *known_elements(partials[0]);
  for (size_t i = 0; i < partials.size(); ++i) {
    Parts here;
    for (const UOp& c : chunks)
      here.push_back(copies.of(c, devices.part(i), name + ": all-gather"));
    const UOp all = slice(joined(here, 0), 0, index_const(0), index_const(elements));
    out.push_back(reshape(all, partials[0].shape()));
  }
  return out;
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::string_view names[] = {"broadcast",  "scatter",        "gather",    "reduce",
                                        "all-gather", "reduce-scatter", "all-reduce"};
  return names[static_cast<size_t>(kind)];
}

std::vector<Collective> collectives_of(const UOp& program) { return Finder(program).run(); }

absl::flat_hash_map<const Node*, std::string> reasons_of_copies(
    const UOp& program, const std::vector<Collective>& found) {
  absl::flat_hash_map<const Node*, std::string> out;
  for (const UOp& u : toposort(program))
    if (is_copy_between(u) && is_exchange(u)) out[u.node()] = "all-to-all";
  for (const Collective& c : found) {
    const std::string name =
        c.fold ? name_with_fold(c.kind, *c.fold) : std::string(collective_name(c.kind));
    const bool rounds = c.kind == CollectiveKind::AllReduce && c.inside.size() == 2;
    for (const UOp& u : c.inside)
      out[u.node()] = !rounds            ? name
                      : u == c.inside[0] ? name + ": reduce-scatter"
                                         : name + ": all-gather";
  }
  return out;
}

Parts all_reduced(Op fold, const Parts& partials, Device devices, DType total,
                  const std::string& name, Copies& copies) {
  if (goes_in_chunks(partials[0], static_cast<int64_t>(partials.size())))
    return in_chunks(fold, partials, devices, total, name, copies);
  Parts out;
  for (size_t i = 0; i < partials.size(); ++i) {
    Parts here;
    for (const UOp& partial : partials)
      here.push_back(copies.of(partial, devices.part(i), name + ": all to all"));
    out.push_back(cast(folded(fold, here), total));
  }
  return out;
}

UOp reduced_chunk(Op fold, const Parts& partials, size_t i, Device devices, DType total,
                  const std::string& name, Copies& copies) {
  const auto elements = known_elements(partials[0]);
  if (!elements || *elements % static_cast<int64_t>(partials.size()) != 0) return {};
  return folded_chunk(fold, partials, i, devices, total, name, copies);
}

}  // namespace koine
