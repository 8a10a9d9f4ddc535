// Making random programs.
#include "programs.hpp"

#include <algorithm>
#include <utility>

#include "check.hpp"
#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/validity.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {
namespace {

class Maker {
 public:
  Maker(std::mt19937_64& random, const ProgramFeatures& features)
      : random_(random), features_(features) {}

  Program run() {
    dtype_ = pick(stored_dtypes());
    for (int64_t steps = 1 + below(6); steps > 0; --steps) {
      if (chance(3)) dtype_ = pick(stored_dtypes());
      step();
    }
    std::vector<int> rest;
    for (const auto& [id, info] : live_) rest.push_back(id);
    if (!rest.empty()) add({Step::Kind::Look, -1, rest, {}, {}, {}});
    return std::move(program_);
  }

 private:
  struct Info {
    int base;  // the value whose storage it shows
  };

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <class T>
  T pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  void add(Step s) { program_.steps.push_back(std::move(s)); }

  int new_value(const UOp& shape, DType dtype, int base = -1) {
    const int id = next_++;
    program_.placeholders.emplace(id, new_buffer(shape, dtype, Device()));
    live_.emplace(id, Info{base < 0 ? id : base});
    return id;
  }
  const UOp& place(int id) const { return program_.placeholders.at(id); }

  // A value of the pool that fits, or a new leaf.
  UOp leaf(const std::vector<int64_t>& sizes, DType dtype) {
    std::vector<int> fitting;
    for (const auto& [id, info] : live_)
      if (place(id).dtype() == dtype && place(id).sizes() == sizes) fitting.push_back(id);
    if (!fitting.empty() && !chance(3)) return place(pick(fitting));
    return place(new_leaf(sizes, dtype));
  }
  int new_leaf(const std::vector<int64_t>& sizes, DType dtype) {
    const int id = new_value(shape_of(sizes), dtype);
    add({Step::Kind::Leaf, id, {}, {}, random_array(random_, sizes, dtype), {}});
    return id;
  }

  GraphGenerator generator() {
    return GraphGenerator(
        random_, [this](const std::vector<int64_t>& s, DType d) { return leaf(s, d); },
        features_.graphs);
  }
  UOp expression() { return generator().graph(dtype_, 7); }
  // An expression of a given shape and dtype.
  UOp expression_like(const UOp& like) {
    if (chance(3)) return leaf(like.sizes(), like.dtype());
    const UOp from = leaf(like.sizes(), like.dtype());
    const UOp other = chance(2) ? from : leaf(like.sizes(), like.dtype());
    switch (below(4)) {
      case 0:
        return binary(Op::Add, from, other);
      case 1:
        return binary(Op::Max, flip(from, std::vector<int64_t>(from.rank(), 1)), other);
      case 2:
        if (!is_float(like.dtype()) && !features_.graphs.whole_mulacc) return other;
        return mulacc(from, other, from);
      default:
        return where(lt(from, other), other, constant_int(like.dtype(), 1));
    }
  }

  void make(const UOp& graph, bool is_gradient = false) {
    const int id = new_value(graph.shape(), graph.dtype());
    Step s{Step::Kind::Make, id, {}, {graph}, {}, {}};
    s.is_gradient = is_gradient;
    add(std::move(s));
  }

  int any_live() {
    std::vector<int> all;
    for (const auto& [id, info] : live_) all.push_back(id);
    return all.empty() ? -1 : pick(all);
  }

  void step() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        return make(expression());
      case 3:
        return features_.assignments ? view() : make(expression());
      case 4:
      case 5:
        return features_.assignments ? assign() : make(expression());
      case 6:
        return realize_or_drop();
      case 7:
        return features_.gradients ? gradients() : make(expression());
      case 8:
        return features_.symbolic ? symbolic() : make(expression());
      case 9:
        return features_.positions ? picked() : make(expression());
      case 10:
        return features_.backward ? backward() : make(expression());
      default:
        return features_.stores ? effects() : make(expression());
    }
  }

  // A chain of movement that shows each element once.
  UOp view_of(UOp x) {
    for (int64_t n = 1 + below(3); n > 0; --n) {
      const std::vector<int64_t> sizes = x.sizes();
      const auto rank = static_cast<int64_t>(sizes.size());
      std::vector<int64_t> list, more;
      switch (below(4)) {
        case 0:
          for (int64_t i = 0; i < rank; ++i) list.push_back(i);
          std::shuffle(list.begin(), list.end(), random_);
          x = permute(x, list);
          break;
        case 1:
          for (int64_t i = 0; i < rank; ++i) list.push_back(below(2));
          x = flip(x, list);
          break;
        case 2:
          for (const int64_t s : sizes) {
            list.push_back(s == 0 ? 0 : below(s));
            more.push_back(s == 0 ? 0 : 1 + below(s - list.back()));
          }
          x = shrink(x, shape_of(list), shape_of(more));
          break;
        default:
          x = reshape(x, shape_of({x.numel()}));
      }
    }
    return x;
  }

  void view() {
    const int of = any_live();
    if (of < 0 || place(of).rank() == 0) return make(expression());
    const UOp chain = view_of(place(of));
    const int id = new_value(chain.shape(), chain.dtype(), live_.at(of).base);
    add({Step::Kind::View, id, {of}, {chain}, {}, {}});
  }

  void assign() {
    const int target = any_live();
    if (target < 0) return make(expression());
    const std::vector<int64_t> sizes = place(target).sizes();
    if (!sizes.empty() && place(target).numel() > 0 && chance(3)) return set_rows(target);
    const UOp value = expression_like(place(target));
    add({Step::Kind::Assign, target, {}, {value}, {}, {}});
  }

  // Positions along an axis of n, counted from the end too; where `any`, out of range as well.
  Array positions(int64_t n, DType dtype, bool any) {
    Array out{dtype, {1 + below(5)}, {}, {}};
    const int64_t low = is_unsigned(dtype) ? 0 : -n, more = any ? 2 : 0;
    for (int64_t i = 0; i < out.sizes[0]; ++i)
      out.data.push_back(int_to_bits(
          dtype, low - (low < 0 ? more : 0) + below(n - low + (low < 0 ? 2 * more : more))));
    return out;
  }
  IndexMode index_mode() {
    return features_.positions
               ? pick<IndexMode>({IndexMode::Raise, IndexMode::Clamp, IndexMode::Fill})
               : IndexMode::Raise;
  }

  void set_rows(int target) {
    std::vector<int64_t> sizes = place(target).sizes();
    Step s{Step::Kind::SetRows, target, {}, {}, {}, {}, index_mode()};
    s.data = positions(sizes[0], DType::Int64, features_.positions && chance(3));
    sizes[0] = s.data.sizes[0];
    s.graphs = {leaf(sizes, place(target).dtype())};
    add(std::move(s));
  }

  // Along any axis, by given positions or by computed ones.
  void picked() {
    const int of = any_live();
    if (of < 0 || place(of).rank() == 0 || place(of).numel() == 0) return make(expression());
    std::vector<int64_t> sizes = place(of).sizes();
    const int64_t axis = below(static_cast<int64_t>(sizes.size()));
    int64_t& n = sizes[static_cast<size_t>(axis)];
    const DType dtype =
        pick<DType>({DType::Int8, DType::Int32, DType::Int64, DType::UInt8, DType::UInt64});
    const int at = new_value(shape_of({1}), dtype);
    live_.erase(at);
    Array given = positions(n, dtype, chance(3));
    program_.placeholders[at] = new_buffer(shape_of(given.sizes), dtype, Device());
    add({Step::Kind::Leaf, at, {}, {}, given, {}});
    UOp graph = place(at);
    if (chance(3)) graph = mod(leaf({1 + below(5)}, dtype), constant_int(dtype, n));
    n = graph.sizes()[0];
    const int id = new_value(shape_of(sizes), place(of).dtype());
    add({Step::Kind::Pick, id, {of}, {graph}, {}, {}, index_mode(), axis});
  }

  void realize_or_drop() {
    std::vector<int> some;
    for (const auto& [id, info] : live_)
      if (chance(2)) some.push_back(id);
    if (some.empty()) return;
    if (chance(3)) {
      for (const int id : some) live_.erase(id);
      add({Step::Kind::Drop, -1, some, {}, {}, {}});
    } else {
      add({chance(3) ? Step::Kind::Look : Step::Kind::Realize, -1, some, {}, {}, {}});
    }
  }

  // Whether no part of a gradient takes long: that of a product of many is a scan of all of them.
  static bool is_small(const UOp& found) {
    constexpr int64_t most_elements = 3000;
    if (!found) return false;
    const NodeList below = toposort(found);
    return std::none_of(below.begin(), below.end(), [](const UOp& u) {
      return u.dtype() != DType::Void && u.has_concrete_shape() && u.numel() > most_elements;
    });
  }

  // A value as memory has it, where some elements of it might be invalid.
  static UOp whole(const UOp& value) { return may_be_invalid(value) ? contiguous(value) : value; }

  // The gradient of a sum with respect to a value below it; where some op has none there is none.
  void gradients() {
    const DType was = std::exchange(dtype_, chance(4) ? DType::Float64 : DType::Float32);
    const UOp y = expression();
    dtype_ = was;
    if (!is_float(y.dtype())) return make(y);
    std::vector<UOp> targets;
    for (const UOp& u : toposort(y))
      if (u.is(Op::Buffer) && is_float(u.dtype())) targets.push_back(u);
    if (targets.empty()) return make(y);
    const UOp found = gradient_of(y, pick(targets));
    const bool small = is_small(found);
    make(small ? whole(found) : y, small);
  }

  // backward() to a value of the pool, through another one that may be looked at before.
  void backward() {
    const DType was = std::exchange(dtype_, chance(4) ? DType::Float64 : DType::Float32);
    const UOp between = generator().graph(dtype_, 4);
    dtype_ = was;
    const int inner = new_value(between.shape(), between.dtype());
    live_.erase(inner);
    const UOp end = contiguous(generator().grow(place(inner), 1 + below(4)));
    std::vector<int> targets;
    for (const UOp& u : toposort(between))
      for (const auto& [id, info] : live_)
        if (place(id) == u && is_float(u.dtype())) targets.push_back(id);
    if (targets.empty() || !is_float(end.dtype()) || is_small_float(end.dtype()))
      return make(between);
    const int target = pick(targets);
    const UOp found = gradient_of(substitute(end, {{place(inner), between}}), place(target));
    if (!is_small(found) || may_be_invalid(found)) return make(between);
    Step s{Step::Kind::Backward,
           new_value(found.shape(), found.dtype()),
           {target, inner},
           {between, end},
           {},
           {}};
    s.looked = chance(2);
    add(std::move(s));
  }

  // Values whose sizes, offsets or numbers are Variables, bound several times.
  void symbolic() {
    const int64_t high = 2 + below(6), width = 1 + below(5);
    const UOp n = variable("n", 1, high), k = variable("k", 0, 3);
    const DType d = is_small_float(dtype_) ? DType::Float32 : dtype_;
    const UOp x = leaf({high + 3, width}, d);
    const UOp from = stack(std::vector<UOp>{chance(2) ? k : index_const(below(3)), index_const(0)});
    const bool sized = !chance(3);
    const UOp rows = sized ? n : index_const(1 + below(high));
    UOp part = shrink(x, from, stack(std::vector<UOp>{rows, index_const(width)}));
    if (chance(2)) part = binary(pick<Op>({Op::Add, Op::Mul, Op::Max}), part, leaf({1, width}, d));
    std::vector<UOp> graphs;
    if (features_.symbolic_stores && chance(3)) {  // and stores of that size, at that offset
      const UOp base = place(new_leaf({high + 3, width}, d));
      const UOp target = shrink(base, from, stack(std::vector<UOp>{rows, index_const(width)}));
      graphs.push_back(after(base, {store(target, part)}));
      if (chance(2)) graphs.push_back(binary(Op::Max, graphs.back(), base));
    }
    if (chance(3)) part = permute(flip(part, {1, 0}), {1, 0});
    if (chance(3) && d != DType::Bool) part = binary(Op::Add, part, cast(chance(2) ? n : k, d));
    if (part.has_concrete_shape() && chance(2)) {
      graphs.push_back(generator().grow(part, below(3)));
      graphs.back() = contiguous(graphs.back());
    } else if (part.has_concrete_shape() || chance(2)) {
      std::vector<int64_t> axes;
      for (size_t i = 0; i < part.rank(); ++i)
        if (!part.dim(i).is(Op::Const) || chance(2)) axes.push_back(static_cast<int64_t>(i));
      graphs.push_back(reduce(pick<Op>({Op::Add, Op::Max, Op::Mul}), part, axes));
    } else {  // back into a size that all fit in, with or without a fill
      std::vector<UOp> target, zero(part.rank(), index_const(0));
      for (size_t i = 0; i < part.rank(); ++i)
        target.push_back(part.dim(i).is(Op::Const) ? part.dim(i) : index_const(high + 3));
      const UOp wide =
          pad(part, stack(zero), stack(target), chance(2) ? constant_int(d, 1) : UOp());
      graphs.push_back(chance(2) ? contiguous(wide) : reduce(Op::Max, wide, {below(2)}));
    }
    if (chance(2)) graphs.push_back(index(x, {k}));
    Step s{Step::Kind::Run, -1, {}, graphs, {}, {}};
    for (int64_t i = 1 + below(3); i > 0; --i)
      s.bindings.push_back({{"n", 1 + below(high)}, {"k", below(4)}});
    if (chance(2))  // what was larger before leaves its memory to what is smaller
      std::sort(s.bindings.begin(), s.bindings.end(),
                [](const auto& a, const auto& b) { return a.at("n") > b.at("n"); });
    add(std::move(s));
  }

  // Part of a buffer's last version, and a value for it.
  UOp random_store(const UOp& version, const UOp& view) {
    const UOp base = base_of(version);
    UOp value = leaf(view.sizes(), view.dtype());
    if (chance(3)) {  // it reads what it writes to, here in the same place
      value = binary(pick<Op>({Op::Add, Op::Max}), value, view);
    } else if (features_.self_overlap && chance(3)) {
      value = flip(view, std::vector<int64_t>(view.rank(), 1));
    }
    if (!features_.gated_stores || !chance(3)) return store(view, value);
    return store(view, value, ne(leaf(view.sizes(), DType::Int8), constant_int(DType::Int8, 0)));
  }
  static UOp base_of(UOp u) {
    while (u.is(Op::After)) u = UOp(u.src(0));
    return u;
  }

  // Stores to a buffer: a few versions, some of two stores side by side, some that wait for the
  // effects on another buffer, and values that read them.
  void effects() {
    const int64_t rows = 2 + below(5);
    const int stored = new_leaf({rows, 1 + below(4)}, dtype_);
    if (!features_.self_overlap) live_.erase(stored);  // nothing else reads it
    UOp version = place(stored);
    Step s{Step::Kind::Run, -1, {}, {}, {}, {{}}};
    for (int64_t n = 1 + below(3); n > 0; --n) {
      const std::vector<int64_t> sizes = version.sizes();
      std::vector<UOp> effects;
      if (features_.groups && chance(3)) {
        const int64_t cut = 1 + below(rows - 1);
        const UOp top = shrink(version, shape_of({0, 0}), shape_of({cut, sizes[1]})),
                  rest = shrink(version, shape_of({cut, 0}), shape_of({rows - cut, sizes[1]}));
        const std::vector<UOp> both{random_store(version, top),
                                    store(rest, leaf(rest.sizes(), dtype_))};
        effects.push_back(group(both));
      } else {
        effects.push_back(random_store(version, chance(3) ? version : view_of(version)));
      }
      if (features_.nested_afters && chance(3)) {
        const UOp other = place(new_leaf({1 + below(3)}, dtype_));
        effects.push_back(after(other, {store(other, leaf(other.sizes(), dtype_))}));
        s.graphs.push_back(effects.back());
      }
      version = after(version, effects);
      if (chance(3)) s.graphs.push_back(binary(Op::Max, version, leaf(version.sizes(), dtype_)));
    }
    s.graphs.push_back(version);
    if (chance(3)) std::reverse(s.graphs.begin(), s.graphs.end());
    add(std::move(s));
  }

  std::mt19937_64& random_;
  ProgramFeatures features_;
  Program program_;
  std::map<int, Info> live_;
  DType dtype_ = DType::Float32;
  int next_ = 0;
};

}  // namespace

const std::vector<FeatureOff>& features_off() {
  static const std::vector<FeatureOff> off = {};
  return off;
}

ProgramFeatures features_on() {
  ProgramFeatures f;
  const std::map<std::string, bool*> by_name = {{"functions", &f.graphs.functions},
                                                {"gated_loads", &f.graphs.gated_loads},
                                                {"wide_positions", &f.graphs.wide_positions},
                                                {"raw_bytes", &f.graphs.raw_bytes},
                                                {"resizing_bitcasts", &f.graphs.resizing_bitcasts},
                                                {"markers", &f.graphs.markers},
                                                {"threefry", &f.graphs.threefry},
                                                {"whole_mulacc", &f.graphs.whole_mulacc},
                                                {"gradients", &f.gradients},
                                                {"symbolic", &f.symbolic},
                                                {"stores", &f.stores},
                                                {"gated_stores", &f.gated_stores},
                                                {"groups", &f.groups},
                                                {"nested_afters", &f.nested_afters},
                                                {"self_overlap", &f.self_overlap},
                                                {"assignments", &f.assignments},
                                                {"positions", &f.positions},
                                                {"backward", &f.backward},
                                                {"symbolic_stores", &f.symbolic_stores}};
  for (const FeatureOff& off : features_off()) *by_name.at(off.name) = false;
  return f;
}

UOp gradient_of(const UOp& y, const UOp& target) {
  const UOp one = constant(y.dtype(), 1);
  const UOp seed =
      y.rank() == 0 ? one
                    : expand(reshape(one, shape_of(std::vector<int64_t>(y.rank(), 1))), y.shape());
  const std::vector<UOp> outputs{y}, seeds{seed}, targets{target};
  try {
    return gradient(outputs, seeds, targets)[0];
  } catch (const Error&) {  // an op below has no gradient
    return {};
  }
}

Program random_program(std::mt19937_64& random, const ProgramFeatures& features) {
  return Maker(random, features).run();
}

}  // namespace koine::test
