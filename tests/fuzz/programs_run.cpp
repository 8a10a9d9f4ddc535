// Running programs beside an oracle that computes each step at once, on arrays of its own.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "check.hpp"
#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "programs.hpp"

namespace koine::test {
namespace {

// One list of what elements may be off by beside another, of which some elements go to places.
void move_errors(std::vector<double>& to, size_t size, const std::vector<double>& from, size_t i,
                 size_t place) {
  if (to.empty() && from.empty()) return;
  to.resize(size);
  to[place] = from.empty() ? 0 : from[i];
}

// What each value is, known at once; views look at the storage of their base.
class Oracle {
 public:
  Oracle(const Program& program, bool strict) : program_(program), strict_(strict) {}

  BoundedArray value(int id) const {
    const auto view = views_.find(id);
    if (view == views_.end()) return storages_.at(id);
    return moved(view->second.second, view->second.first);
  }
  BoundedArray evaluate(const UOp& graph,
                        const std::map<std::string, int64_t>& variables = {}) const {
    BoundedBindings bindings;
    for (const auto& [id, place] : places_of(graph)) bindings.emplace(place, value(id));
    for (const UOp& u : toposort(graph))
      if (u.is(Op::Param) && variables.contains(u.as<BufferArg>().name))
        bindings.emplace(
            u, BoundedArray{{DType::Index,
                             {},
                             {int_to_bits(DType::Index, variables.at(u.as<BufferArg>().name))},
                             {}},
                            {}});
    return cleared(interpret_bounded(graph, bindings));
  }
  void set(int id, BoundedArray a) {
    // Memory holds 0 where an element is invalid.
    for (size_t i = 0; i < a.value.valid.size(); ++i)
      if (a.value.valid[i] == 0) a.value.data[i] = 0;
    a.value.valid.clear();
    storages_.insert_or_assign(id, std::move(a));
  }
  void set_view(int id, int of, const UOp& chain) {
    views_.insert_or_assign(id, std::pair(of, chain));
  }

  // Through views to the base: where each element of the target lies there.
  void assign(int id, const BoundedArray& a) {
    int base = id;
    UOp chain = program_.placeholders.at(id);
    while (views_.contains(base)) {
      const auto& [of, step] = views_.at(base);
      chain = substitute(chain, {{program_.placeholders.at(base), step}});
      base = of;
    }
    BoundedArray& storage = storages_.at(base);
    const UOp places = param(0, program_.placeholders.at(base).shape(), DType::Int64);
    Array numbers{DType::Int64, storage.value.sizes, {}, {}};
    for (int64_t i = 0; i < numbers.numel(); ++i) numbers.data.push_back(static_cast<Bits>(i));
    const Array at =
        interpret(retyped(chain, program_.placeholders.at(base), places), {{places, numbers}});
    const size_t size = storage.value.data.size();
    for (size_t i = 0; i < at.data.size(); ++i) {
      storage.value.data[at.data[i]] = a.value.data[i];
      move_errors(storage.error, size, a.error, i, at.data[i]);
      move_errors(storage.slack, size, a.slack, i, at.data[i]);
    }
  }

  // What is in memory is rounded.
  void store(const std::vector<int>& ids) {
    for (const int id : ids)
      if (const auto it = storages_.find(id); it != storages_.end()) it->second.slack.clear();
  }

  std::map<int, UOp> places_of(const UOp& graph) const {
    std::map<int, UOp> out;
    std::set<uint64_t> below;
    for (const UOp& u : toposort(graph)) below.insert(u.id());
    for (const auto& [id, place] : program_.placeholders)
      if (below.contains(place.id())) out.emplace(id, place);
    return out;
  }

 private:
  BoundedArray cleared(BoundedArray a) const {
    if (strict_) {
      a.error.clear();
      a.slack.clear();
    }
    return a;
  }
  BoundedArray moved(const UOp& chain, int of) const {
    return interpret_bounded(chain, {{program_.placeholders.at(of), value(of)}});
  }
  // The same movement of another dtype.
  static UOp retyped(const UOp& chain, const UOp& from, const UOp& to) {
    return transform_graph(chain, [&](const UOp& original, const UOp& rebuilt) {
      return original == from ? to : rebuilt;
    });
  }

  const Program& program_;
  bool strict_;
  std::map<int, BoundedArray> storages_;
  std::map<int, std::pair<int, UOp>> views_;
};

// A chain of movement as calls on a Tensor, which make views.
Tensor view_on(const Tensor& base, const UOp& chain) {
  std::vector<UOp> steps;
  for (UOp u = chain; !u.is(Op::Buffer); u = UOp(u.src(0))) steps.push_back(u);
  Tensor out = base;
  for (; !steps.empty(); steps.pop_back()) {
    const UOp& u = steps.back();
    if (u.is(Op::Permute)) {
      out = out.permute(u.as<Ints>());
    } else if (u.is(Op::Flip)) {
      std::vector<int64_t> axes;
      for (size_t i = 0; i < u.rank(); ++i)
        if (u.as<Ints>()[i] != 0) axes.push_back(static_cast<int64_t>(i));
      if (!axes.empty()) out = out.flip(axes);
    } else if (u.is(Op::Shrink)) {
      std::vector<std::pair<int64_t, int64_t>> bounds;
      for (size_t i = 0; i < u.rank(); ++i) {
        const int64_t from = const_int(u.src(1).src(i));
        bounds.emplace_back(from, from + const_int(u.src(2).src(i)));
      }
      out = out.shrink(bounds);
    } else {
      KOINE_INVARIANT(u.is(Op::Reshape), "a view by {}", op_name(u.op()));
      out = out.reshape(u.sizes());
    }
  }
  return out;
}

// Where a user's position along an axis of n lies; null: nowhere, in Raise mode an error.
std::optional<size_t> place_of(int64_t asked, int64_t n, IndexMode mode) {
  const int64_t at = asked < 0 ? asked + n : asked;
  if (at >= 0 && at < n) return static_cast<size_t>(at);
  if (mode != IndexMode::Clamp) return {};
  return static_cast<size_t>(std::clamp<int64_t>(at, 0, n - 1));
}

// A position as a number; what is larger than int64 is the largest.
int64_t position_of(const Array& positions, size_t i) {
  const Bits bits = positions.data[i];
  if (positions.dtype == DType::UInt64 && static_cast<int64_t>(bits) < 0) return INT64_MAX;
  return bits_to_int(positions.dtype, bits);
}

bool all_exist(const Array& positions, int64_t n) {
  for (size_t i = 0; i < positions.data.size(); ++i)
    if (!place_of(position_of(positions, i), n, IndexMode::Raise)) return false;
  return true;
}

// What stands along an axis at each position; 0 where nothing does.
BoundedArray rows_of(const BoundedArray& x, int64_t axis, const Array& positions, IndexMode mode) {
  std::vector<int64_t> sizes = x.value.sizes;
  int64_t inner = 1;
  for (auto k = static_cast<size_t>(axis) + 1; k < sizes.size(); ++k) inner *= sizes[k];
  const int64_t n = std::exchange(sizes[static_cast<size_t>(axis)], positions.numel());
  BoundedArray out{{x.value.dtype, sizes, {}, {}}, {}};
  for (int64_t i = 0; i < out.value.numel(); ++i) {
    const int64_t row = i / inner % positions.numel(), before = i / inner / positions.numel();
    const auto at = place_of(position_of(positions, static_cast<size_t>(row)), n, mode);
    const auto from = static_cast<size_t>(
        (before * n + static_cast<int64_t>(at.value_or(0))) * inner + i % inner);
    out.value.data.push_back(at ? x.value.data[from] : 0);
    if (!x.error.empty()) out.error.push_back(at ? x.error[from] : 0);
    if (!x.slack.empty()) out.slack.push_back(at ? x.slack[from] : 0);
  }
  return out;
}

Options with_index(IndexMode mode) {
  Options o = options();
  o.index = mode;
  return o;
}

// Empty where an Index error is thrown.
std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.kind() == ErrorKind::Index ? "" : std::string("another error: ") + e.what();
  }
  return "a position out of range is no error";
}

class Runner {
 public:
  Runner(const Program& program, const Settings& settings)
      : program_(program), settings_(settings), oracle_(program, settings.strict) {}

  std::string run() {
    for (size_t i = 0; i < program_.steps.size(); ++i)
      if (const std::string p = step(program_.steps[i]); !p.empty())
        return fmt::format("step {}: {}", i, p);
    return "";
  }

 private:
  std::string step(const Step& s) {
    switch (s.kind) {
      case Step::Kind::Leaf:
        oracle_.set(s.value, {s.data, {}});
        held_[s.value] = Tensor::from_bytes(bytes_of(s.data).data(), s.data.sizes, s.data.dtype);
        return "";
      case Step::Kind::Make:
        oracle_.set(s.value, oracle_.evaluate(s.graphs[0]));
        held_[s.value] = Tensor(actual(s.graphs[0]));
        return "";
      case Step::Kind::View:
        oracle_.set_view(s.value, s.values[0], s.graphs[0]);
        held_[s.value] = view_on(held_.at(s.values[0]), s.graphs[0]);
        return "";
      case Step::Kind::Assign:
        oracle_.assign(s.value, oracle_.evaluate(s.graphs[0]));
        held_.at(s.value).assign(Tensor(actual(s.graphs[0])));
        return "";
      case Step::Kind::SetRows:
        return set_rows(s);
      case Step::Kind::Pick:
        return pick(s);
      case Step::Kind::Backward:
        backward(s);
        return "";
      case Step::Kind::Realize:
        Tensor::realize(tensors(s.values));
        oracle_.store(s.values);
        return "";
      case Step::Kind::Drop:
        for (const int id : s.values) held_.erase(id);
        return "";
      case Step::Kind::Look:
        return look(s);
      case Step::Kind::Run:
        break;
    }
    for (const auto& variables : s.bindings)
      if (const std::string p = run_graphs(s, variables); !p.empty()) return p;
    return "";
  }

  std::vector<Tensor> tensors(const std::vector<int>& ids) const {
    std::vector<Tensor> out;
    for (const int id : ids) out.push_back(held_.at(id));
    return out;
  }

  // A graph with what its placeholders are now.
  UOp actual(const UOp& graph, const Substitution& others = {}) const {
    Substitution known = others;
    for (const auto& [id, place] : oracle_.places_of(graph))
      if (!known.contains(place)) known.emplace(place, held_.at(id).uop());
    return substitute(graph, known);
  }

  std::string set_rows(const Step& s) {
    BoundedArray now = oracle_.value(s.value);
    Tensor& held = held_.at(s.value);
    const Tensor at = Tensor::from_bytes(bytes_of(s.data).data(), s.data.sizes, DType::Int64);
    const Tensor value(actual(s.graphs[0]));
    const OptionScope scope(with_index(s.index));
    if (s.index == IndexMode::Raise && !all_exist(s.data, now.value.sizes[0])) {
      Tensor::realize({held});  // the value that stays
      return refused([&] {
        held.setitem({at}, value);
        Tensor::realize({held});
      });
    }
    const BoundedArray rows = oracle_.evaluate(s.graphs[0]);
    const auto row = now.value.data.size() / static_cast<size_t>(now.value.sizes[0]);
    const size_t size = now.value.data.size();
    for (size_t i = 0; i < s.data.data.size(); ++i) {
      const auto place = place_of(position_of(s.data, i), now.value.sizes[0], s.index);
      for (size_t k = 0; place && k < row; ++k) {
        now.value.data[*place * row + k] = rows.value.data[i * row + k];
        move_errors(now.error, size, rows.error, i * row + k, *place * row + k);
        move_errors(now.slack, size, rows.slack, i * row + k, *place * row + k);
      }
    }
    oracle_.assign(s.value, now);
    held.setitem({at}, value);
    return "";
  }

  std::string pick(const Step& s) {
    const BoundedArray x = oracle_.value(s.values[0]), at = oracle_.evaluate(s.graphs[0]);
    const bool sure =
        std::all_of(at.error.begin(), at.error.end(), [](double e) { return e == 0; });
    const Tensor positions =
        sure ? Tensor(actual(s.graphs[0]))
             : Tensor::from_bytes(bytes_of(at.value).data(), at.value.sizes, at.value.dtype);
    const auto picked = [&](IndexMode mode) {
      const OptionScope scope(with_index(mode));
      return held_.at(s.values[0]).index_select(s.axis, positions);
    };
    IndexMode mode = s.index;
    if (mode == IndexMode::Raise &&
        !all_exist(at.value, x.value.sizes[static_cast<size_t>(s.axis)])) {
      const Tensor bad = picked(mode);
      if (const std::string p = refused([&] { Tensor::realize({bad}); }); !p.empty()) return p;
      mode = IndexMode::Clamp;
    }
    held_[s.value] = picked(mode);
    oracle_.set(s.value, rows_of(x, s.axis, at.value, mode));
    return "";
  }

  void backward(const Step& s) {
    const UOp &target = program_.placeholders.at(s.values[0]),
              &inner = program_.placeholders.at(s.values[1]);
    const UOp whole = substitute(s.graphs[1], {{inner, s.graphs[0]}});
    oracle_.set(s.value, oracle_.evaluate(gradient_of(whole, target)));
    Tensor leaf = held_.at(s.values[0]).clone();
    leaf.requires_grad();
    const Tensor between(actual(s.graphs[0], {{target, leaf.uop()}}));
    if (s.looked) (void)between.bytes();
    Tensor(actual(s.graphs[1], {{target, leaf.uop()}, {inner, between.uop()}})).sum().backward();
    held_[s.value] = leaf.grad();
  }

  std::string look(const Step& s) {
    Tensor::realize(tensors(s.values));
    oracle_.store(s.values);
    for (const int id : s.values) {
      const Tensor& t = held_.at(id);
      const std::vector<std::byte> bytes = t.bytes();
      Array got{t.dtype(), t.shape(), {}, {}};
      for (int64_t i = 0; i < t.numel(); ++i)
        got.data.push_back(read_element(bytes.data(), t.dtype(), i));
      if (const std::string d = difference(oracle_.value(id), got); !d.empty())
        return fmt::format("value {}: {}", id, d);
    }
    return "";
  }

  // Stores go to fresh copies: the pool's own values change by assignment only.
  std::string run_graphs(const Step& s, const std::map<std::string, int64_t>& variables) {
    Substitution copies;
    for (const UOp& u : toposort(sink(s.graphs)))
      if (u.is(Op::Store)) {
        UOp base = u.src(0);
        while (!base.is(Op::Buffer)) base = UOp(base.src(0));
        for (const auto& [id, place] : oracle_.places_of(base))
          if (!copies.contains(place))
            copies.emplace(place, buffer_from_host(place.shape(), place.dtype(), default_device(),
                                                   held_.at(id).bytes().data()));
      }
    std::vector<UOp> graphs;
    for (const UOp& g : s.graphs) graphs.push_back(actual(g, copies));
    const std::vector<UOp> results = realize(graphs, variables);
    for (size_t i = 0; i < results.size(); ++i) {
      BoundedArray expected = oracle_.evaluate(s.graphs[i], variables);
      if (const std::string d = difference(expected, array_of(results[i])); !d.empty())
        return fmt::format("graph {}: {}", i, d);
    }
    return "";
  }

  const Program& program_;
  const Settings& settings_;
  Oracle oracle_;
  std::map<int, Tensor> held_;
};

}  // namespace

std::string problem_of(const Program& program, const Settings& settings) {
  const OptionScope scope(options_of(settings));
  if (!settings.warm) clear_compile_cache();
  try {
    if (settings.warm) (void)Runner(program, settings).run();
    return Runner(program, settings).run();
  } catch (const std::exception& e) {
    return std::string("exception: ") + e.what();
  }
}

}  // namespace koine::test
