#include "koine/engine/literals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// A constant that values are computed with, or the offset of a Shrink along one axis.
struct Literal {
  UOp node;
  std::optional<size_t> axis;  // of a Shrink
  int64_t value() const {
    return axis ? const_int(node.src(1).src(*axis))
                : static_cast<int64_t>(node.as<ConstArg>().bits);
  }
};

// Ops that are compiled in another way for a number that is known.
bool wants_constant(Op op) {
  return op == Op::Pow || op == Op::Idiv || op == Op::Mod || op == Op::Shl || op == Op::Shr ||
         op == Op::Pad || op == Op::Threefry;
}

bool is_number(const UOp& u) {
  return u.is(Op::Const) && !is_invalid(u) && u.dtype() != DType::Index && u.dtype() != DType::Bool;
}

bool slides(const UOp& shrink, size_t axis) {
  const UOp &offset = shrink.src(1).src(axis), &size = shrink.src(2).src(axis);
  return offset.is(Op::Const) && size.is(Op::Const) && shrink.src(0).dim(axis).is(Op::Const) &&
         const_int(size) < const_int(shrink.src(0).dim(axis));
}

// In an order that depends on the program's shape alone.
std::vector<Literal> literals_of(const UOp& body) {
  std::vector<Literal> out;
  std::unordered_map<UOp, bool> numbers;  // and whether it may become an argument
  const NodeList order = toposort(body);
  for (const UOp& u : order) {
    const bool values =
        is_elementwise(u.op()) || u.is(Op::Reshape) || u.is(Op::Store) || u.is(Op::Contiguous);
    for (const UOp& s : u.src())
      if (is_number(s)) {
        const auto it = numbers.try_emplace(s, true).first;
        it->second = it->second && values && !wants_constant(u.op());
      }
  }
  for (const UOp& u : order) {
    if (const auto it = numbers.find(u); it != numbers.end() && it->second) out.push_back({u, {}});
    for (size_t axis = 0; u.is(Op::Shrink) && axis < u.rank(); ++axis)
      if (slides(u, axis)) out.push_back({u, axis});
  }
  return out;
}

// The body with some literals taken out.
UOp without(const UOp& body, const std::vector<Literal>& literals, const std::vector<bool>& taken,
            const std::vector<UOp>& stand_ins) {
  std::unordered_map<UOp, std::vector<size_t>> of;
  for (size_t k = 0; k < literals.size(); ++k)
    if (taken[k]) of[literals[k].node].push_back(k);
  return transform_graph(body, [&](const UOp& original, const UOp& node) {
    const auto it = of.find(original);
    if (it == of.end()) return node;
    if (original.is(Op::Const)) return stand_ins[it->second[0]];
    std::vector<UOp> offsets(node.src(1).src().begin(), node.src(1).src().end());
    for (const size_t k : it->second) offsets[*literals[k].axis] = stand_ins[k];
    return with_sources(node, std::vector<UOp>{node.src(0), stack(offsets), node.src(2)});
  });
}

std::string name_of(size_t k) { return fmt::format("koine_literal_{}", k); }

// What stands for the k-th literal: the offset of a slice is a Variable, a number the bits of one.
UOp variable_for(const Literal& literal, size_t k) {
  if (literal.axis) {
    const int64_t size = const_int(literal.node.src(2).src(*literal.axis));
    return variable(name_of(k), 0, const_int(literal.node.src(0).dim(*literal.axis)) - size);
  }
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
    return fmt::print(
        stderr,
        "literal: the offset {} of a slice along axis {} became a Variable: it was {} "
        "in an earlier program that is equal otherwise\n",
        literal.value(), *literal.axis, first);
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

void forget_literals() {
  Programs& known = programs();
  const std::lock_guard lock(known.mutex);
  known.seen.clear();
}

}  // namespace koine
