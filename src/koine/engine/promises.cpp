#include "koine/engine/promises.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/runtime/device.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

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
  memory->copy_out(out.data(), 0, static_cast<int64_t>(out.size() * sizeof(Element)));
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

std::vector<UOp> promises_of(const std::vector<UOp>& values) {
  if ((sink(values).node()->ops_below & mask_of(Op::Assume)) == 0) return {};
  std::vector<UOp> out;
  for (const UOp& u : toposort(inline_functions(sink(values)))) {
    if (!u.is(Op::Assume)) continue;
    const Interval &is = u.src(0).bounds(), &low = u.src(1).bounds(), &high = u.src(2).bounds();
    const bool holds = is.low >= low.high && is.high <= high.low;
    if (!holds) out.push_back(u);
  }
  return out;
}

UOp any_broken(const std::vector<UOp>& promises) {
  UOp out;
  for (const UOp& p : promises) {
    UOp flag = is_broken(p);
    if (out && out.device() && flag.device() && !(flag.device() == out.device()))
      flag = copy_to(flag, out.device());
    out = out ? bit_or(out, flag) : flag;
  }
  return out;
}

bool is_set(const UOp& flag) {
  return device_runtime(flag.device().name()).computes() && elements<uint8_t>(flag)[0] != 0;
}

void check_promises(const std::vector<UOp>& values, const VariableValues& variables) {
  const std::vector<UOp> promises = promises_of(values);
  if (promises.empty()) return;
  const UOp flag = realize({contiguous(any_broken(promises))}, variables)[0];
  if (is_set(flag)) report_broken(promises, variables);
}

void report_broken(const std::vector<UOp>& promises, const VariableValues& variables) {
  for (const UOp& p : promises)
    if (is_set(realize({contiguous(is_broken(p))}, variables)[0])) report(p, variables);
  KOINE_INVARIANT(false, "a promise is broken, and none is");
}

}  // namespace koine
