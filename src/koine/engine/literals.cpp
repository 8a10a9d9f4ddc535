#include "koine/engine/literals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"

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

// The body with some literals taken out; `stand_in(k)` is what stands for the k-th.
UOp without(const UOp& body, const std::vector<Literal>& literals, const std::vector<bool>& taken,
            const std::function<UOp(size_t)>& stand_in) {
  std::unordered_map<UOp, std::vector<size_t>> of;
  for (size_t k = 0; k < literals.size(); ++k)
    if (taken[k]) of[literals[k].node].push_back(k);
  return transform_graph(body, [&](const UOp& original, const UOp& node) {
    const auto it = of.find(original);
    if (it == of.end()) return node;
    if (original.is(Op::Const)) return stand_in(it->second[0]);
    std::vector<UOp> offsets(node.src(1).src().begin(), node.src(1).src().end());
    for (const size_t k : it->second) offsets[*literals[k].axis] = stand_in(k);
    return with_sources(node, std::vector<UOp>{node.src(0), stack(offsets), node.src(2)});
  });
}

UOp offset_variable(const Literal& literal, size_t k) {
  const int64_t size = const_int(literal.node.src(2).src(*literal.axis));
  return variable(fmt::format("koine_offset_{}", k), 0,
                  const_int(literal.node.src(0).dim(*literal.axis)) - size);
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

// Which literals of a program have had other values; empty: none.
std::vector<bool> varying(const UOp& skeleton, const std::vector<Literal>& literals) {
  Programs& known = programs();
  const std::lock_guard lock(known.mutex);
  if (known.seen.size() >= most_programs) known.seen.clear();
  const auto [it, fresh] = known.seen.try_emplace(skeleton);
  Seen& seen = it->second;
  for (size_t k = 0; k < literals.size(); ++k) {
    const int64_t value = literals[k].value();
    if (fresh) {
      seen.first.push_back(value);
      seen.varies.push_back(false);
    }
    if (seen.first[k] != value) seen.varies[k] = true;
  }
  return seen.varies;
}

// Whether values move between devices: they would need the numbers on each.
bool is_spread(const UOp& body, Device device) {
  const NodeList order = toposort(body);
  return std::any_of(order.begin(), order.end(),
                     [&](const UOp& u) { return u.device() && !(u.device() == device); });
}

}  // namespace

Callified take_out_literals(const Callified& program, const std::string& device,
                            VariableValues& variables) {
  const std::vector<Literal> literals = literals_of(program.body);
  if (literals.empty() || is_spread(program.body, Device(device))) return program;
  auto placeholder = [&](size_t k) {
    const UOp& node = literals[k].node;
    return literals[k].axis ? offset_variable(literals[k], k)
                            : param(-2 - static_cast<int64_t>(k), node.shape(), node.dtype());
  };
  const std::vector<bool> all(literals.size(), true);
  const std::vector<bool> taken =
      varying(without(program.body, literals, all, placeholder), literals);
  if (std::find(taken.begin(), taken.end(), true) == taken.end()) return program;
  Callified out = program;
  std::vector<UOp> stand_ins(literals.size());
  for (size_t k = 0; k < literals.size(); ++k) {
    if (!taken[k]) continue;
    const Literal& literal = literals[k];
    if (literal.axis) {
      stand_ins[k] = offset_variable(literal, k);
      variables[stand_ins[k].as<BufferArg>().name] = literal.value();
      continue;
    }
    const auto slot = static_cast<int64_t>(out.arguments.size());
    const UOp& number = literal.node;
    const Bits bits = number.as<ConstArg>().bits;
    out.arguments.push_back(buffer_from_host(number.shape(), number.dtype(), device, &bits, -1));
    stand_ins[k] = param_for(slot, out.arguments.back());
  }
  out.body = without(program.body, literals, taken, [&](size_t k) { return stand_ins[k]; });
  return out;
}

void forget_literals() {
  Programs& known = programs();
  const std::lock_guard lock(known.mutex);
  known.seen.clear();
}

}  // namespace koine
