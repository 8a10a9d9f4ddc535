// Transforms of random graphs, in the interpreter: many examples at once are what each is alone,
// bit for bit, and forward and reverse mode are transposes of each other. Seeds are test_seed() and
// up.
#include <fmt/ranges.h>

#include <cmath>

#include "check.hpp"
#include "graphs.hpp"
#include "isolate.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {
namespace {

Features of_values() {
  Features f = Features::all();
  f.gated_loads = false;  // a part of kernels
  f.raw_bytes = false;
  return f;
}

std::vector<UOp> leaves_of(const UOp& graph) {
  std::vector<UOp> out;
  for (const UOp& u : toposort_outside_bodies(graph))
    if (u.is(Op::Buffer)) out.push_back(u);
  return out;
}

// The same elements in another order: as good a leaf as the one it is made of.
Array shuffled(Array a, std::mt19937_64& random) {
  std::shuffle(a.data.begin(), a.data.end(), random);
  return a;
}

UOp buffer_like(const UOp& leaf, int64_t examples) {
  std::vector<UOp> dims{index_const(examples)};
  for (size_t k = 0; k < leaf.rank(); ++k) dims.push_back(leaf.dim(k));
  return new_buffer(stack(dims), leaf.dtype(), leaf.device());
}

// Empty, or what is wrong with a graph over examples of some of its leaves.
std::string examples_problem(const UOp& graph, std::mt19937_64& random) {
  const Bindings plain = bindings_of(graph);
  const auto count = static_cast<int64_t>(random() % 4);
  const UOp examples = index_const(count);
  std::vector<UOp> single, of_all;
  Bindings whole = plain;
  std::vector<Bindings> each(static_cast<size_t>(count), plain);
  for (const UOp& leaf : leaves_of(graph)) {
    if (random() % 3 == 0) continue;
    single.push_back(leaf);
    of_all.push_back(buffer_like(leaf, count));
    Array all = plain.at(leaf);
    all.sizes.insert(all.sizes.begin(), count);
    all.data.clear();
    for (Bindings& own : each) {
      own[leaf] = shuffled(plain.at(leaf), random);
      all.data.insert(all.data.end(), own[leaf].data.begin(), own[leaf].data.end());
    }
    whole[of_all.back()] = all;
  }
  const std::vector<UOp> outputs{graph};
  UOp made = batched(outputs, single, of_all, examples)[0];
  if (!made) made = for_each_example(graph, examples);
  const Array got = interpret(inline_functions(made), whole);
  Array want = got;
  want.data.clear();
  want.valid.clear();
  for (const Bindings& own : each) {
    const Array one = interpret(inline_functions(graph), own);
    want.data.insert(want.data.end(), one.data.begin(), one.data.end());
  }
  const std::string wrong = difference(want, got);
  return wrong.empty() ? wrong : wrong + "\n" + to_text(graph) + "\nas\n" + to_text(made);
}

bool is_plain_float(DType d) { return d == DType::Float64 || d == DType::Float32; }

Array random_like(const UOp& value, std::mt19937_64& random) {
  Array out{value.dtype(), value.sizes(), {}, {}};
  for (int64_t i = 0; i < value.numel(); ++i)
    out.data.push_back(
        double_to_bits(value.dtype(), static_cast<double>(random() % 4001) / 2000 - 1));
  return out;
}

// Empty, or how far <w, J t> is from <J' w, t>.
std::string transpose_problem(const UOp& graph, std::mt19937_64& random) {
  if (!is_plain_float(graph.dtype())) return {};
  for (const UOp& u : toposort_with_bodies(graph))
    if (is_float(u.dtype()) && !is_plain_float(u.dtype())) return {};  // too coarse to compare
  Bindings known = bindings_of(graph);
  std::vector<UOp> inputs, moved;
  for (const UOp& leaf : leaves_of(graph)) {
    if (!is_float(leaf.dtype())) continue;
    inputs.push_back(leaf);
    moved.push_back(new_buffer(leaf.shape(), leaf.dtype(), leaf.device()));
    known[moved.back()] = random_like(leaf, random);
  }
  const UOp weight = new_buffer(graph.shape(), graph.dtype(), graph.device());
  known[weight] = random_like(graph, random);
  const std::vector<UOp> outputs{graph}, seeds{weight};
  const UOp tangent = tangents(outputs, inputs, moved)[0];
  const std::vector<UOp> back = gradient(outputs, seeds, inputs);
  double size = 0;
  auto product = [&](const UOp& a, const UOp& b) {
    if (!a) return 0.0;
    const Array x = interpret(inline_functions(a), known),
                y = interpret(inline_functions(b), known);
    double sum = 0;
    for (size_t i = 0; i < x.data.size(); ++i) {
      if (!x.is_valid(i)) return std::nan("");
      const double term = bits_to_double(x.dtype, x.data[i]) * bits_to_double(y.dtype, y.data[i]);
      sum += term;
      size += std::fabs(term);
    }
    return sum;
  };
  const double forward = product(tangent, weight);
  double reverse = 0;
  for (size_t k = 0; k < inputs.size(); ++k) reverse += product(back[k], moved[k]);
  if (!std::isfinite(size) || size > 1e15) return {};  // a slope without a bound
  if (std::fabs(forward - reverse) <= 2e-4 * std::max(size, 1e-3)) return {};
  return fmt::format("forward {}, reverse {}, terms {}\n{}", forward, reverse, size,
                     to_text(graph));
}

void check_cases(int64_t cases, const std::function<std::string(std::mt19937_64&)>& problem_of) {
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      cases, 500,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        return problem_of(random);
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                      << " KOINE_TEST_CASES=1: " << problem;
        return ++failures < 3;
      });
}

// A scan whose step computes a random graph, over rows, carries and constants that are its leaves;
// and the same written out.
struct RandomScan {
  UOp value, written_out;  // null: this graph makes none
};

UOp reduced_to_one(const UOp& value) {
  const UOp folded = value.is_scalar() ? value : reduce(Op::Max, value, all_axes(value));
  return reshape(folded, shape_of({}));
}

RandomScan random_scan(std::mt19937_64& random) {
  const UOp graph = random_graph(random, of_values());
  InvalidElements invalid;  // memory holds 0 for them, which steps written out do not
  for (const UOp& u : toposort_outside_bodies(graph)) invalid.visit(u);
  if (has_effects(graph) || invalid.of(graph) || !graph.has_concrete_shape()) return {};
  const auto count = static_cast<int64_t>(random() % 4);
  const bool reversed = random() % 2 == 0;
  std::vector<LoopArgument> arguments;
  std::vector<UOp> values;
  for (const UOp& leaf : leaves_of(graph)) {
    const auto role = static_cast<LoopRole>(random() % 3);
    std::vector<int64_t> rows = leaf.sizes();
    rows.insert(rows.begin(), count);
    arguments.push_back(
        {role, role == LoopRole::Row ? random_leaf(random, rows, leaf.dtype()) : leaf, leaf});
    if (role != LoopRole::Carry) continue;
    const UOp one = cast(reduced_to_one(graph), leaf.dtype());
    values.push_back(leaf.dtype() == DType::Bool ? bit_xor(leaf, one) : add(leaf, one));
  }
  const size_t carries = values.size();
  values.push_back(graph);
  const UOp call = scan_call(arguments, values, index_const(count), reversed);
  // One of the results, and what it is step by step.
  const size_t which = random() % values.size();
  Substitution now;
  for (const LoopArgument& a : arguments) now[a.inside] = a.given;
  std::vector<UOp> collected(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    const int64_t number = reversed ? count - 1 - k : k;
    for (const LoopArgument& a : arguments)
      if (a.role == LoopRole::Row)
        now[a.inside] =
            reshape(slice(a.given, 0, index_const(number), index_const(1)), a.inside.shape());
    Substitution next = now;
    size_t carry = 0;
    for (const LoopArgument& a : arguments)
      if (a.role == LoopRole::Carry) next[a.inside] = substitute(values[carry++], now);
    collected[static_cast<size_t>(number)] = substitute(graph, now);
    now = next;
  }
  RandomScan out{get_tuple(call, static_cast<int64_t>(which)), {}};
  if (which == carries) {
    out.written_out = count > 0 ? stack(collected) : out.value;
  } else {
    size_t carry = 0;
    for (const LoopArgument& a : arguments)
      if (a.role == LoopRole::Carry && carry++ == which) out.written_out = now.at(a.inside);
  }
  return out;
}

std::string scan_problem(std::mt19937_64& random) {
  const RandomScan scan = random_scan(random);
  if (!scan.value) return {};
  const Bindings known = bindings_of(sink({contiguous(scan.value), contiguous(scan.written_out)}));
  std::string wrong = difference(interpret(scan.written_out, known), interpret(scan.value, known));
  if (wrong.empty() && random() % 16 == 0) wrong = difference_anywhere(scan.value, random);
  if (wrong.empty()) wrong = examples_problem(scan.value, random);
  if (wrong.empty()) wrong = transpose_problem(scan.value, random);
  return wrong.empty() ? wrong : wrong + "\n" + to_text(scan.value);
}

}  // namespace

TEST(fuzz, transforms_of_many_examples_equal_each_alone) {
  check_cases(test_cases(20000), [](std::mt19937_64& random) {
    return examples_problem(random_graph(random, of_values()), random);
  });
}

TEST(fuzz, transforms_forward_and_reverse_are_transposes) {
  check_cases(test_cases(4000), [](std::mt19937_64& random) {
    return transpose_problem(random_graph(random, of_values()), random);
  });
}

TEST(fuzz, transforms_of_scans_are_those_of_their_steps) {
  check_cases(test_cases(1500), scan_problem);
}

}  // namespace koine::test
