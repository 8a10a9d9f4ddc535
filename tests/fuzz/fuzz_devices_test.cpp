// Random graphs over leaves that several devices hold, split or whole: what a graph says about its
// placement may refuse it, and else it is computed on the devices as the interpreter has it.
#include "check.hpp"
#include "graphs.hpp"
#include "isolate.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

std::string draw_devices(std::mt19937_64& random) {
  const std::vector<std::string> some = {"CPU,CPU:1", "CPU,INTERP", "CPU:2,CPU,CPU:1",
                                         "INTERP,CPU:1", "CPU,CPU:1,CPU:2,CPU:3"};
  return some[random() % some.size()];
}

// A place for a value: one device, or several that have all of it or split an axis that allows it.
Placement draw_place(const UOp& value, Device devices, std::mt19937_64& random) {
  const auto n = static_cast<int64_t>(devices.count());
  std::vector<int32_t> axes{-1};
  for (size_t k = 0; k < value.rank(); ++k)
    if (value.sizes()[k] % n == 0) axes.push_back(static_cast<int32_t>(k));
  return {devices, axes[random() % axes.size()]};
}

// A value by way of some other places, with what a view may do to it on the way.
UOp carried(const UOp& value, std::mt19937_64& random) {
  UOp out = value;
  while (random() % 2 == 0) {
    const Device devices(random() % 3 == 0 ? "CPU:1" : draw_devices(random));
    out = copy_to(out, draw_place(out, devices, random));
    if (out.rank() == 2 && !out.axis() && random() % 3 == 0)
      out = permute(copy_to(permute(out, {1, 0}), Device("CPU:2")), {1, 0});
  }
  return out;
}

// The leaves of a graph on devices, each whole or split along an axis that its size allows.
Substitution placed(const UOp& graph, const std::string& where, std::mt19937_64& random) {
  Substitution out;
  for (const UOp& u : toposort(graph)) {
    if (!u.is(Op::Buffer) || !memory_of(u)) continue;
    const Array values = array_of(u);
    const Placement place = draw_place(u, Device(where), random);
    const UOp leaf =
        buffer_from_host(u.shape(), u.dtype(), where, bytes_of(values).data(), place.axes);
    out.emplace(u, random() % 3 == 0 ? copy_to(carried(leaf, random), place) : leaf);
  }
  return out;
}

// The same graph over devices; null where its ops would tear a value each time.
UOp over_devices(const UOp& graph, std::mt19937_64& random) {
  for (int attempt = 0; attempt < 30; ++attempt) {
    try {
      const UOp out = substitute(graph, placed(graph, draw_devices(random), random));
      for (const UOp& u : toposort(out))
        if (u.axis()) return random() % 3 == 0 ? carried(out, random) : out;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Value && e.kind() != ErrorKind::Index) throw;
    }
  }
  return {};
}

std::string difference_on(const UOp& graph, const UOp& value, bool strict) {
  Options o = options();
  o.strict = strict;
  const OptionScope scope(o);
  const Bindings bindings = bindings_of(graph);
  const BoundedArray expected =
      strict ? BoundedArray{interpret(graph, bindings), {}} : interpret_bounded(graph, bindings);
  try {
    const UOp out = value.is(Op::Buffer) ? contiguous(value) : value;
    const std::string d = difference(
        expected, array_of(realize({UOp::make(Op::Contiguous, {out}, MarkArg{Mark::Copies})})[0]));
    return d.empty() ? d : (strict ? "strict: " : "default: ") + d;
  } catch (const std::exception& e) {
    return std::string("exception: ") + e.what();
  }
}

// A graph of a seed, and the same over devices, where its ops allow some placement.
struct Case {
  UOp graph, value;
};
Case make_case(std::mt19937_64& random) {
  Features some;
  some.functions = some.markers = some.gated_loads = some.threefry = true;
  some.resizing_bitcasts = true;
  // Bodies of Functions were derived for one device.
  const UOp graph = inline_functions(random_graph(random, some));
  return {graph, over_devices(graph, random)};
}

}  // namespace

TEST(fuzz, graphs_on_several_devices_agree_with_the_interpreter) {
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      test_cases(600), 100,
      [&](int64_t i) -> std::string {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        const Case c = make_case(random);
        if (!c.value) return "";
        const std::string d = difference_on(c.graph, c.value, random() % 2 == 0);
        return d.empty() ? d : d + "\n" + to_text(c.value);
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                      << " KOINE_TEST_CASES=1: " << problem;
        return ++failures < 5;
      });
}

TEST(fuzz, graphs_on_several_devices_are_seldom_refused) {
  int64_t computed = 0, reduced = 0, copied = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    std::mt19937_64 random(test_seed() + i);
    const UOp value = make_case(random).value;
    if (!value) continue;
    ++computed;
    bool over_parts = false;
    for (const UOp& u : toposort(value))
      over_parts = over_parts || (u.is(Op::Reduce) && u.src(0).axis() && !u.axis());
    reduced += over_parts ? 1 : 0;
    copied += value.axis() ? 1 : 0;
  }
  EXPECT_GE(computed, 90);
  EXPECT_GE(reduced, 5) << "all-reduces";
  EXPECT_GE(copied, 30) << "results in parts";
}

}  // namespace koine::test
