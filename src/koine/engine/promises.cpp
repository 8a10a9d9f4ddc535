#include "koine/engine/promises.hpp"

#include <algorithm>
#include <cstring>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/runtime/device.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// Whether a value is the same whenever it is computed: memory may change, Variables are bound anew.
bool is_lasting(const UOp& value) {
  const NodeList below = toposort(value);
  return std::none_of(below.begin(), below.end(),
                      [](const UOp& u) { return u.is(Op::Param) || u.is(Op::Buffer); });
}

// One uint8: whether any position leaves its range.
UOp is_broken(const UOp& promise) {
  const UOp &position = promise.src(0), &low = promise.src(1), &high = promise.src(2);
  UOp bad = cast(bit_or(lt(position, low), lt(high, position)), DType::UInt8);
  Ints axes;
  for (size_t i = 0; i < bad.rank(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (!axes.empty()) bad = reshape(reduce(Op::Max, bad, axes), shape_of({}));
  return bad;
}

template <class Element>
std::vector<Element> elements(const UOp& buffer) {
  const auto memory = memory_of(buffer);
  size_t count = 1;
  for (const int64_t size : present_sizes(buffer)) count *= static_cast<size_t>(size);
  std::vector<Element> out(count);
  if (!out.empty()) std::memcpy(out.data(), memory->data(), out.size() * sizeof(Element));
  return out;
}

[[noreturn]] void report(const UOp& promise, const VariableValues& variables) {
  const std::string* named = std::get_if<std::string>(&promise.arg());
  const std::string what = named != nullptr ? *named : "Assume: value";
  // Positions that count from the end when negative are where(asked < 0, asked + size, asked).
  const bool wraps = what.ends_with("position") && promise.src(0).is(Op::Where);
  const UOp asked = cast(wraps ? promise.src(0).src(2) : promise.src(0), DType::Int64);
  const std::vector<int64_t> values =
      elements<int64_t>(realize({asked.is(Op::Buffer) ? asked : contiguous(asked)}, variables)[0]);
  auto number = [&](const UOp& bound) {  // the end of an axis may be a Variable's
    if (bound.is(Op::Const)) return const_int(bound);
    return elements<int64_t>(realize({cast(bound, DType::Int64)}, variables)[0])[0];
  };
  const int64_t low = number(promise.src(1)), high = number(promise.src(2));
  const int64_t first = wraps ? low - (high + 1) : low;
  const auto at =
      std::find_if(values.begin(), values.end(), [&](int64_t v) { return v < first || v > high; });
  KOINE_INVARIANT(at != values.end(), "a broken promise has no position out of range");
  KOINE_REQUIRE(high >= first, Index,
                "{} {} (element {} of shape {}) is asked of size 0, which has none", what, *at,
                at - values.begin(), shape_text(asked));
  raise(ErrorKind::Index,
        "{} {} (element {} of shape {}) is out of range for size {}: use {} to {}, or "
        "KOINE_INDEX=clamp or fill",
        what, *at, at - values.begin(), shape_text(asked), high + 1, first, high);
}

}  // namespace

void check_promises(const std::vector<UOp>& values, const VariableValues& variables) {
  static const uint32_t kept = fresh_normal_bit();
  auto find = [](const UOp& root) {
    std::vector<UOp> found;
    for (const UOp& u : toposort(root))
      if (u.is(Op::Assume) && !is_normal(u.node(), kept)) found.push_back(u);
    return found;
  };
  const UOp root = sink(values);
  std::vector<UOp> promises = find(root);
  if (promises.empty()) return;
  // Inside of a Function a promise speaks of Params: look at it with the arguments in their place.
  if (const NodeList order = toposort(root);
      std::any_of(order.begin(), order.end(), [](const UOp& u) { return u.is(Op::Function); }))
    promises = find(inline_functions(root));
  std::vector<UOp> broken;
  for (const UOp& p : promises) broken.push_back(is_broken(p));
  const std::vector<UOp> flags = realize(broken, variables);
  for (size_t i = 0; i < promises.size(); ++i) {
    if (!device_runtime(flags[i].device().name()).computes()) continue;
    if (elements<uint8_t>(flags[i])[0] != 0) report(promises[i], variables);
    if (is_lasting(promises[i])) mark_normal(promises[i].node(), kept);
  }
}

}  // namespace koine
