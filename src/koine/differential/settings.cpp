// Inputs for runs of the interpreter, and how much work a run is.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "koine/differential/run.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/symbolic.hpp"

namespace koine {
namespace {

using Variables = std::unordered_map<std::string, int64_t>;

enum class Kind : uint8_t { Exact, Ordinary, Edges, Zeros };

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::Exact:
      return "small whole numbers";
    case Kind::Ordinary:
      return "ordinary numbers";
    case Kind::Edges:
      return "limits and special values";
    default:
      return "positions 0";
  }
}

class Numbers {
 public:
  Numbers(Kind kind, uint64_t seed) : kind_(kind), random_(seed) {}

  Bits operator()(DType dtype) {
    if (dtype == DType::Bool) return random_() % 2;
    return is_float(dtype) ? real(dtype) : whole(dtype);
  }

 private:
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  // Small and not negative in the first place: they may be positions.
  Bits whole(DType dtype) {
    const int64_t low = is_signed(dtype) ? -10 : 0;
    switch (kind_) {
      case Kind::Exact:
        return int_to_bits(dtype, between(0, 3));
      case Kind::Ordinary:
        return int_to_bits(dtype, between(low, 20));
      case Kind::Edges: {
        const IntegerRange r = integer_range(dtype);
        const int64_t any[] = {static_cast<int64_t>(r.low), static_cast<int64_t>(r.high),
                               between(low, 10), static_cast<int64_t>(random_())};
        return int_to_bits(dtype, any[random_() % 4]);
      }
      default:
        return 0;
    }
  }
  Bits real(DType dtype) {
    if (kind_ == Kind::Exact || kind_ == Kind::Zeros)
      return double_to_bits(dtype, static_cast<double>(between(-3, 3)));
    const double ordinary =
        std::ldexp(static_cast<double>(between(-4000, 4000)), static_cast<int>(between(-12, -9)));
    if (kind_ == Kind::Ordinary || random_() % 2 == 0) return double_to_bits(dtype, ordinary);
    const double infinity = std::numeric_limits<double>::infinity();
    const double finite[] = {0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e4, 0.5};
    const double special[] = {infinity, -infinity, std::nan(""), 1e38, -1e38, 1e300, 448, 65504};
    return double_to_bits(dtype, (random_() % 2 == 0 ? finite : special)[random_() % 8]);
  }

  Kind kind_;
  std::mt19937_64 random_;
};

std::vector<UOp> variables_of(const UOp& graph) {
  std::map<std::string, UOp> found;
  for (const UOp& u : variables_below(graph))
    if (!is_bound(u)) found.emplace(u.as<BufferArg>().name, u);
  std::vector<UOp> out;
  for (const auto& [name, u] : found) out.push_back(u);
  return out;
}

// Smallest, largest, middle.
std::vector<Variables> bindings_of(const UOp& graph) {
  const std::vector<UOp> variables = variables_of(graph);
  std::vector<Variables> out;
  for (int choice = 0; choice < (variables.empty() ? 1 : 3); ++choice) {
    Variables values;
    for (const UOp& v : variables) {
      const auto low = static_cast<int64_t>(v.bounds().low),
                 high = static_cast<int64_t>(v.bounds().high);
      values[v.as<BufferArg>().name] = choice == 0   ? low
                                       : choice == 1 ? high
                                                     : low + (high - low) / 2;
    }
    if (std::find(out.begin(), out.end(), values) == out.end()) out.push_back(values);
  }
  return out;
}

double size_of(const UOp& shape, const Variables& variables) {
  double n = 1;
  for (const UOp& d : shape.src()) n *= static_cast<double>(evaluate_index(d, variables));
  return n;
}

// Where a loop is as long as another one or a thread's number says: as long as it may be.
double bound_of(const Node* range, const Variables& variables) {
  const UOp& bound = range->sources()[0];
  const bool moves =
      !bound.ranges().empty() || (bound.node()->ops_below & mask_of(Op::Special)) != 0;
  return moves ? static_cast<double>(bound.bounds().high)
               : static_cast<double>(evaluate_index(bound, variables));
}

std::vector<int64_t> resolved(const UOp& shape, const Variables& variables) {
  std::vector<int64_t> out;
  for (const UOp& d : shape.src()) out.push_back(evaluate_index(d, variables));
  return out;
}

// The leaves of a graph with memory for them. A kernel's slot may be seen with several dtypes.
std::vector<Storage> memory_of_leaves(const UOp& graph, Level level, const Variables& variables) {
  std::vector<Storage> out;
  const NodeList order = toposort(graph);
  const bool calls =
      std::any_of(order.begin(), order.end(), [](const UOp& u) { return u.is(Op::Function); });
  for (const UOp& u : order) {
    const bool param = u.is(Op::Param) && !is_variable(u), buffer = u.is(Op::Buffer);
    if (level == Level::Program ? !buffer && !(param && !calls) : !param) continue;
    Storage s{u, u.dtype(), resolved(u.shape(), variables), {}, {}};
    int64_t bytes = item_size(u.dtype());
    for (const int64_t d : s.sizes) bytes *= d;
    s.bytes.resize(static_cast<size_t>(bytes));
    auto same = [&](const Storage& o) {
      return level == Level::Kernel && o.leaf.as<BufferArg>().slot == u.as<BufferArg>().slot;
    };
    const auto known = std::find_if(out.begin(), out.end(), same);
    if (known == out.end())
      out.push_back(std::move(s));
    else if (known->bytes.size() < s.bytes.size())
      *known = std::move(s);
  }
  std::sort(out.begin(), out.end(), [](const Storage& a, const Storage& b) {
    return a.leaf.as<BufferArg>().slot < b.leaf.as<BufferArg>().slot;
  });
  return out;
}

// Memory of the leaves of a graph that is run: each of its runs has its own.
constexpr double most_bytes = 1 << 26;

double bytes_of_leaves(const UOp& graph, const Variables& variables) {
  double total = 0;
  for (const UOp& u : toposort(graph))
    if (u.is(Op::Buffer) || (u.is(Op::Param) && !is_variable(u)))
      total += static_cast<double>(item_size(u.dtype())) * size_of(u.shape(), variables);
  return total;
}

// Numbers that are drawn for one buffer; in a larger one, of which a program that is checked reads
// little, they come again.
constexpr int64_t most_drawn = 1 << 18;

}  // namespace

SlotTypes slot_types_of(const UOp& kernel) {
  SlotTypes out;
  for (const UOp& u : toposort(kernel))
    if (u.is(Op::Param) && !is_variable(u)) out.emplace(u.as<BufferArg>().slot, u.dtype());
  return out;
}

int64_t evaluate_index(const UOp& index, const Variables& variables) {
  if (index.is(Op::Const)) return const_int(index);
  Bindings bindings;
  for (const UOp& u : variables_below(index))
    if (!is_bound(u))
      bindings.emplace(
          u, Array{u.dtype(), {}, {static_cast<Bits>(variables.at(u.as<BufferArg>().name))}, {}});
  return interpret_index(index, bindings);
}

// Of a loop in a graph of values; how often a condition holds is not known.
double operations_of_loop(const UOp& call, const Variables& variables) {
  const Loop loop(call);
  const double steps = loop.count ? static_cast<double>(evaluate_index(loop.count, variables)) : 8;
  double step = 0;
  for (const UOp& f : loop.functions) step += operations_of(f, Level::Program, variables);
  return (loop.body.is(Op::Switch) ? 1 : steps) * step;
}

double operations_of(const UOp& graph, Level level, const Variables& variables) {
  double total = 0, threads = 1;
  for (const UOp& u : toposort(graph)) {
    if (u.src().empty() || u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::Range)) continue;
    const UOp& inside = u.is(Op::Reduce) ? u.src(0) : u;
    double times = 1;
    if (u.is(Op::Call) && is_loop(u.src(0))) total += operations_of_loop(u, variables);
    if (level == Level::Program) {
      if (u.dtype() != DType::Void) times = size_of(inside.shape(), variables);
    } else {
      if (u.is(Op::Special)) threads *= static_cast<double>(u.src(0).bounds().high);
      for (const Node* r : inside.ranges()) times *= bound_of(r, variables);
      if (u.dtype() != DType::Void && inside.has_concrete_shape())
        times *= static_cast<double>(lane_count(inside));
    }
    total += times;
  }
  return total * threads;
}

std::vector<Setting> settings_of(const UOp& graph, Level level, double most_operations,
                                 const SlotTypes& types) {
  std::vector<Setting> out;
  for (const Variables& variables : bindings_of(graph)) {
    if (operations_of(graph, level, variables) > most_operations) continue;
    if (bytes_of_leaves(graph, variables) > most_bytes) continue;
    std::vector<Storage> memory = memory_of_leaves(graph, level, variables);
    for (Storage& m : memory)
      if (const auto it = types.find(m.leaf.as<BufferArg>().slot);
          it != types.end() && item_size(it->second) == item_size(m.dtype))
        m.dtype = it->second;
    for (const Kind kind : {Kind::Exact, Kind::Ordinary, Kind::Edges, Kind::Zeros}) {
      Setting s{std::string(kind_name(kind)), kind == Kind::Zeros, memory, variables};
      uint64_t salt = 1;
      for (Storage& m : s.memory) {
        Numbers next(kind, 7919 * salt++ + static_cast<uint64_t>(kind));
        const auto count = static_cast<int64_t>(m.bytes.size()) / item_size(m.dtype);
        const int64_t drawn = std::min(count, most_drawn);
        for (int64_t i = 0; i < drawn; ++i)
          write_element(m.bytes.data(), m.dtype, i, next(m.dtype));
        const auto period = static_cast<size_t>(drawn * item_size(m.dtype));
        for (size_t at = period; at < m.bytes.size(); at += period)
          std::memcpy(m.bytes.data() + at, m.bytes.data(), std::min(period, m.bytes.size() - at));
      }
      out.push_back(std::move(s));
    }
  }
  return out;
}

}  // namespace koine
