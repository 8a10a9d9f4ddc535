#include "koine/engine/literals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "koine/base/options.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// A constant that values are computed with, or where a Shrink or a Pad begins along one axis.
struct Literal {
  UOp node;
  std::optional<size_t> axis;  // of a Shrink or a Pad
  int64_t value() const {
    return axis ? const_int(node.src(1).src(*axis))
                : static_cast<int64_t>(node.as<ConstArg>().bits);
  }
};

bool is_number(const UOp& u) {
  return u.is(Op::Const) && !is_invalid(u) && u.dtype() != DType::Index && u.dtype() != DType::Bool;
}

// Whether a node means for any number what it means for the one that it reads there.
bool takes_numbers(const UOp& user, size_t source) {
  return is_elementwise(user.op()) || user.is(Op::Reshape) || user.is(Op::Store) ||
         user.is(Op::Contiguous) || user.is(Op::Tuple) || (user.is(Op::Pad) && source == 3);
}

// By how much what a Shrink keeps, or what a Pad puts somewhere, is smaller along an axis than what
// it lies in: the last place where it may begin. Null where a size is no number.
std::optional<int64_t> slack_of(const UOp& u, size_t axis) {
  const UOp &inner = u.is(Op::Pad) ? u.src(0) : u, &outer = u.is(Op::Pad) ? u : u.src(0);
  if (!inner.dim(axis).is(Op::Const) || !outer.dim(axis).is(Op::Const)) return std::nullopt;
  return const_int(outer.dim(axis)) - const_int(inner.dim(axis));
}

bool slides(const UOp& u, size_t axis) {
  return u.src(1).src(axis).is(Op::Const) && slack_of(u, axis).value_or(0) > 0;
}

bool runs_loop(const UOp& u) { return u.is(Op::Call) && is_loop(u.src(0)); }

// Each node of a program and of its loops, once, in an order that depends on the shape of these
// alone. A kernel that was made by hand has its own constants.
class Nodes {
 public:
  explicit Nodes(const UOp& program) { add(program); }
  const std::vector<UOp>& all() const { return all_; }

 private:
  void add(const UOp& graph) {
    for (const UOp& u : toposort(graph)) {
      if (!met_.add(u.node()).second) continue;
      if (runs_loop(u)) add(u.src(0));
      all_.push_back(u);
    }
  }

  NodeNumbers met_;
  std::vector<UOp> all_;
};

std::vector<Literal> literals_of(const UOp& body) {
  std::vector<Literal> out;
  std::unordered_map<UOp, bool> numbers;  // and whether it may become an argument
  const Nodes nodes(body);
  for (const UOp& u : nodes.all())
    for (size_t i = 0; i < u.src().size(); ++i)
      if (is_number(u.src(i))) {
        const auto it = numbers.try_emplace(u.src(i), true).first;
        it->second = it->second && takes_numbers(u, i);
      }
  for (const UOp& u : nodes.all()) {
    if (const auto it = numbers.find(u); it != numbers.end() && it->second) out.push_back({u, {}});
    if (!u.is(Op::Shrink) && !u.is(Op::Pad)) continue;
    for (size_t axis = 0; axis < u.rank(); ++axis)
      if (slides(u, axis)) out.push_back({u, axis});
  }
  return out;
}

using LiteralsOfNodes = std::unordered_map<UOp, std::vector<size_t>>;

// The body with some literals taken out.
UOp without(const UOp& body, const std::vector<Literal>& literals, const LiteralsOfNodes& taken,
            const std::vector<UOp>& stand_ins) {
  return transform_graph(body, [&](const UOp& original, const UOp& node) {
    if (runs_loop(node))
      return with_source(node, 0, without(node.src(0), literals, taken, stand_ins));
    const auto it = taken.find(original);
    if (it == taken.end()) return node;
    if (original.is(Op::Const)) return stand_ins[it->second[0]];
    std::vector<UOp> offsets(node.src(1).src().begin(), node.src(1).src().end());
    for (const size_t k : it->second) offsets[*literals[k].axis] = stand_ins[k];
    return with_source(node, 1, stack(offsets));
  });
}
UOp without(const UOp& body, const std::vector<Literal>& literals, const std::vector<bool>& taken,
            const std::vector<UOp>& stand_ins) {
  LiteralsOfNodes of;
  for (size_t k = 0; k < literals.size(); ++k)
    if (taken[k]) of[literals[k].node].push_back(k);
  return without(body, literals, of, stand_ins);
}

constexpr std::string_view prefix = "koine_literal_";

// Sorted by name they stand in the order of their numbers.
std::string name_of(size_t k) { return fmt::format("{}{:06}", prefix, k); }

// What stands for the k-th literal: where something begins is a Variable, a number the bits of one.
UOp variable_for(const Literal& literal, size_t k) {
  if (literal.axis) return variable(name_of(k), 0, *slack_of(literal.node, *literal.axis));
  const DType number = literal.node.dtype();
  return bitcast(cast(variable(name_of(k), INT64_MIN, INT64_MAX), storage_uint(number)), number);
}

// What is known of the programs of one shape.
struct Seen {
  std::vector<int64_t> first;  // values of the literals
  std::vector<bool> varies;
};
struct Programs {
  std::mutex mutex;
  std::unordered_map<UOp, Seen> seen;
};
Programs& programs() {
  static auto& instance = *new Programs;
  return instance;
}
constexpr size_t most_programs = 1024;

// Says that a literal is a Variable from now on.
void note(const Literal& literal, int64_t first) {
  if (options().debug < 2) return;
  if (literal.axis)
    return fmt::print(stderr,
                      "literal: the offset {} of a {} along axis {} became a Variable: it was {} "
                      "in an earlier program that is equal otherwise\n",
                      literal.value(), literal.node.is(Op::Pad) ? "pad" : "slice", *literal.axis,
                      first);
  const DType number = literal.node.dtype();
  fmt::print(stderr,
             "literal: the {} number {} became a Variable: it was {} in an earlier program that is "
             "equal otherwise\n",
             dtype_name(number), expression_text(literal.node),
             expression_text(constant_bits(number, static_cast<Bits>(first))));
}

// Which literals of a program have had other values; empty: none.
std::vector<bool> varying(const UOp& skeleton, const std::vector<Literal>& literals,
                          const std::vector<int64_t>& values) {
  Programs& known = programs();
  const std::lock_guard lock(known.mutex);
  if (known.seen.size() >= most_programs) known.seen.clear();
  const auto [it, fresh] = known.seen.try_emplace(skeleton);
  Seen& seen = it->second;
  if (fresh) {
    seen.first = values;
    seen.varies.resize(values.size());
  }
  for (size_t k = 0; k < values.size(); ++k) {
    if (seen.varies[k] || seen.first[k] == values[k]) continue;
    seen.varies[k] = true;
    note(literals[k], seen.first[k]);
  }
  return seen.varies;
}

}  // namespace

Callified take_out_literals(const Callified& program, VariableValues& variables) {
  const std::vector<Literal> literals = literals_of(program.body);
  if (literals.empty()) return program;
  std::vector<UOp> stand_ins;
  std::vector<int64_t> values;
  for (size_t k = 0; k < literals.size(); ++k) {
    stand_ins.push_back(variable_for(literals[k], k));
    values.push_back(literals[k].value());
  }
  const auto without_those = [&](const std::vector<bool>& taken) {
    return without(program.body, literals, taken, stand_ins);
  };
  const std::vector<bool> taken =
      varying(without_those(std::vector<bool>(literals.size(), true)), literals, values);
  if (std::find(taken.begin(), taken.end(), true) == taken.end()) return program;
  for (size_t k = 0; k < literals.size(); ++k)
    if (taken[k]) variables[name_of(k)] = values[k];
  Callified out = program;
  out.body = without_those(taken);
  return out;
}

UOp with_literals_by_position(const UOp& kernel) {
  std::vector<UOp> literals;
  for (const UOp& v : variables_below(kernel))
    if (v.as<BufferArg>().name.starts_with(prefix)) literals.push_back(v);
  std::sort(literals.begin(), literals.end(), [](const UOp& a, const UOp& b) {
    return a.as<BufferArg>().name < b.as<BufferArg>().name;
  });
  Substitution renamed;
  for (size_t k = 0; k < literals.size(); ++k)
    renamed.emplace(literals[k], variable(name_of(k), const_int(literals[k].src(1)),
                                          const_int(literals[k].src(2))));
  return substitute(kernel, renamed);
}

void forget_literals() {
  Programs& known = programs();
  const std::lock_guard lock(known.mutex);
  known.seen.clear();
}

}  // namespace koine
