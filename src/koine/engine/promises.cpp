#include "koine/engine/promises.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/elements.hpp"
#include "koine/interp/host_function.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/places.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// Whether copies of one value were asked for: these are equal.
bool has_equal_copies(const UOp& replicated) {
  const UOp& copies = replicated.src(0);
  if (!copies.is(Op::Load) || !copies.src(0).is(Op::Expand)) return false;
  return is_const(copies.src(0).src(0).dim(*copies.axis()), 1);
}

// Where the copies that Replicated asks for are not those of the first device, bit for bit.
UOp differing(const UOp& replicated) {
  const UOp all = copy_to(replicated.src(0), replicated.device().part(0));
  const UOp bits = is_float(all.dtype()) ? bitcast(all, storage_uint(all.dtype())) : all;
  const auto axis = static_cast<size_t>(replicated.as<int64_t>());
  const UOp first = slice(bits, axis, index_const(0), index_const(1));
  return ne(bits, expand(first, all.shape()));
}

// One uint8: whether any position leaves its range, or copies differ.
UOp is_broken(const UOp& promise) {
  UOp bad;
  if (promise.is(Op::Replicated)) {
    bad = cast(differing(promise), DType::UInt8);
  } else {
    // What it reads at positions of the user's is read before these are known to be in range.
    const UOp position = without_promises(promise.src(0));
    const UOp &low = promise.src(1), &high = promise.src(2);
    bad = cast(bit_or(lt(position, low), lt(high, position)), DType::UInt8);
  }
  return largest_of(bad);
}

std::string made_at(const UOp& u) {
  const std::string line = origin_text(u);
  return line.empty() ? "" : "; the index was made at " + line;
}

[[noreturn]] void report(const UOp& promise, const VariableValues& variables) {
  if (promise.is(Op::Replicated))
    raise(ErrorKind::Value,
          "Replicated: the devices {} hold copies of shape {} that differ: reduce along axis {} "
          "instead, or copy one value to all of them with shard()",
          promise.device().name(), shape_text(promise), promise.as<int64_t>());
  const std::string* named = std::get_if<std::string>(&promise.arg());
  const std::string what = named != nullptr ? *named : "Assume: value";
  if (what.starts_with("inside of "))
    raise(ErrorKind::Index,
          "{}: a position is out of range, in step {}, counted from 0: clip() it, or set "
          "KOINE_INDEX=clamp or fill{}",
          what, elements_of<int64_t>(realize({contiguous(promise.src(0))}, variables)[0])[0] - 1,
          made_at(promise));
  // Positions that count from the end when negative are where(asked < 0, asked + size, asked).
  const bool wraps = what.ends_with("position") && promise.src(0).is(Op::Where);
  const UOp asked = cast(wraps ? promise.src(0).src(2) : promise.src(0), DType::Int64);
  const std::vector<int64_t> values = elements_of<int64_t>(
      realize({asked.is(Op::Buffer) ? asked : contiguous(asked)}, variables)[0]);
  auto number = [&](const UOp& bound) {  // the end of an axis may be a Variable's
    if (bound.is(Op::Const)) return const_int(bound);
    return elements_of<int64_t>(realize({cast(bound, DType::Int64)}, variables)[0])[0];
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
        "KOINE_INDEX=clamp or fill{}",
        what, *at, at - values.begin(), shape_text(asked), high + 1, first, high, made_at(promise));
}

}  // namespace

std::vector<UOp> promises_of(const std::vector<UOp>& values) {
  const bool debugs = options().verify >= 2;  // what a kernel does not read goes unseen otherwise
  const OpMask checked = mask_of(Op::Assume) | (debugs ? mask_of(Op::Replicated) : OpMask());
  if ((sink(values).node()->ops_below & checked) == 0) return {};
  std::vector<UOp> out;
  for (const UOp& u : toposort(inline_functions(sink(values)))) {
    if (debugs && u.is(Op::Replicated) && u.device().count() > 1 && !has_effects(u) &&
        !has_equal_copies(u))
      out.push_back(u);
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

UOp checked(const UOp& flag) {
  const UOp result = param(0, flag.shape(), flag.dtype());
  const UOp body =
      UOp::make(Op::CustomFunction, std::vector<UOp>{result}, std::string(check_function));
  return get_tuple(UOp::make(Op::Call, std::vector<UOp>{body, flag}), 0);
}

bool is_set(const UOp& flag) { return flag_in(flag) != 0; }

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
