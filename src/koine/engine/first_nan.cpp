#include "koine/engine/first_nan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/engine/elements.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// How far a value is from finite.
enum Level : uint8_t { Finite, Infinite, NotANumber };

bool has_elements_that_may_be_nan(const UOp& u) { return is_float(u.dtype()) && !u.is(Op::Param); }

// The largest Level of its elements, as one uint8.
UOp level_of(const UOp& value) {
  const double infinity = std::numeric_limits<double>::infinity();
  const UOp infinite =
      bit_or(eq(value, constant_like(value, infinity)), eq(value, constant_like(value, -infinity)));
  auto number = [](Level l) { return constant_int(DType::UInt8, l); };
  const UOp level = where(ne(value, value), number(NotANumber),
                          where(infinite, number(Infinite), number(Finite)));
  return largest_of(level);
}

class Finder {
 public:
  Finder(const std::vector<UOp>& values, const ComputeApart& compute)
      : compute_(compute), root_(inline_functions(sink(values))) {}

  // The op to name; null where all values are finite.
  UOp find() {
    if (most(measured({root_.src().begin(), root_.src().end()})) == Finite) return {};
    std::vector<UOp> below;
    for (const UOp& u : toposort(root_))
      if (has_elements_that_may_be_nan(u)) below.push_back(u);
    const std::vector<Level> levels = measured(below);
    for (size_t i = 0; i < below.size(); ++i) levels_[below[i]] = levels[i];
    const UOp first = born(NotANumber, root_);
    if (!first) return born(Infinite, root_);
    // The infinity that it came from, unless the user has put it there.
    if (const UOp before = born(Infinite, first); before && !before.is(Op::Buffer)) return before;
    return first;
  }

  std::string words(const UOp& op) {
    const std::vector<double> made = numbers(op);
    const auto bad = std::find_if(made.begin(), made.end(), [&](double v) {
      return levels_[op] == NotANumber ? std::isnan(v) : std::isinf(v);
    });
    KOINE_REQUIRE(bad != made.end(), Value,
                  "KOINE_NAN=1: {} gives another value each time it is computed: a function of the "
                  "host that it reads must not",
                  named(op));
    const auto at = static_cast<size_t>(bad - made.begin());
    const auto count =
        std::count_if(made.begin(), made.end(), [](double v) { return !std::isfinite(v); });
    std::string out = fmt::format("{} {} {}", named(op), op.is(Op::Buffer) ? "holds" : "gives",
                                  number_text(*bad));
    if (op.rank() > 0) out += " at " + place(op, at);
    out += fmt::format(" of a {} of shape {}", dtype_name(op.dtype()), shape_text(op));
    if (const std::string inputs = inputs_at(op, at); !inputs.empty()) out += ", from " + inputs;
    if (const std::string line = origin_text(op); !line.empty()) out += ", made at " + line;
    return out + fmt::format("; {} of {} elements are not finite", count, made.size());
  }

 private:
  std::vector<Level> measured(const std::vector<UOp>& values) const {
    std::vector<UOp> asked;
    std::vector<size_t> place;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!has_elements_that_may_be_nan(values[i])) continue;
      asked.push_back(contiguous(level_of(values[i])));
      place.push_back(i);
    }
    std::vector<Level> out(values.size(), Finite);
    constexpr size_t in_one_request = 512;
    for (size_t begin = 0; begin < asked.size(); begin += in_one_request) {
      const size_t end = std::min(asked.size(), begin + in_one_request);
      const std::vector<UOp> found = compute_({asked.begin() + static_cast<std::ptrdiff_t>(begin),
                                               asked.begin() + static_cast<std::ptrdiff_t>(end)});
      for (size_t i = begin; i < end; ++i)
        out[place[i]] = static_cast<Level>(flag_in(found[i - begin]));
    }
    return out;
  }
  static Level most(const std::vector<Level>& levels) {
    return levels.empty() ? Finite : *std::max_element(levels.begin(), levels.end());
  }

  Level level(const UOp& u) const {
    const auto it = levels_.find(u);
    return it == levels_.end() ? Finite : it->second;
  }
  // The first value below `root` of that level whose sources are all less.
  UOp born(Level asked, const UOp& root) const {
    for (const UOp& u : toposort(root)) {
      if (level(u) != asked || (u.is(Op::Const) && asked == Infinite)) continue;
      const bool from_below = std::any_of(u.src().begin(), u.src().end(),
                                          [&](const UOp& s) { return level(s) >= asked; });
      if (!from_below) return u;
    }
    return {};
  }

  std::vector<double> numbers(const UOp& u) const {
    UOp wide = contiguous(cast(u, DType::Float64));
    if (wide.device().count() > 1) wide = contiguous(copy_to(wide, wide.device().part(0)));
    return elements_of<double>(compute_({wide})[0]);
  }

  // The sign of a NaN means nothing.
  static std::string number_text(double v) { return std::isnan(v) ? "nan" : fmt::format("{}", v); }
  static std::string named(const UOp& u) {
    if (u.is(Op::Reduce)) return fmt::format("Reduce {}", op_name(u.as<ReduceArg>().op));
    if (u.is(Op::Buffer)) return "a tensor in memory";
    if (u.is(Op::GetTuple)) return fmt::format("{}", op_name(u.src(0).src(0).op()));
    return std::string(op_name(u.op()));
  }

  static std::string place(const UOp& u, size_t flat) {
    std::vector<int64_t> at;
    const std::vector<int64_t> all = present_sizes(u);
    for (size_t i = all.size(); i-- > 0;) {
      at.insert(at.begin(), static_cast<int64_t>(flat) % all[i]);
      flat /= static_cast<size_t>(all[i]);
    }
    return fmt::format("[{}]", fmt::join(at, ", "));
  }

  // Of an elementwise op its operands there; of others the range of what they read.
  std::string inputs_at(const UOp& op, size_t flat) const {
    std::vector<std::string> out;
    for (const UOp& s : op.src()) {
      if (!is_float(s.dtype())) continue;
      const std::vector<double> all = numbers(s);
      if (all.empty()) continue;
      if (is_elementwise(op.op())) {
        out.push_back(number_text(all[operand_at(op, s, flat)]));
      } else {
        const auto [low, high] = std::minmax_element(all.begin(), all.end());
        out.push_back(fmt::format("{} elements from {} to {}", all.size(), number_text(*low),
                                  number_text(*high)));
      }
    }
    return fmt::format("{}", fmt::join(out, " and "));
  }
  // Operands broadcast from the right.
  static size_t operand_at(const UOp& op, const UOp& operand, size_t flat) {
    const std::vector<int64_t> whole = present_sizes(op), own = present_sizes(operand);
    size_t at = 0, stride = 1;
    for (size_t i = whole.size(), j = own.size(); j-- > 0;) {
      --i;
      const auto index = flat % static_cast<size_t>(whole[i]);
      flat /= static_cast<size_t>(whole[i]);
      if (own[j] != 1) at += index * stride;
      stride *= static_cast<size_t>(own[j]);
    }
    return at;
  }

  const ComputeApart& compute_;
  UOp root_;
  std::unordered_map<UOp, Level> levels_;
};

}  // namespace

void require_finite(const std::vector<UOp>& values, const ComputeApart& compute) {
  Finder finder(values, compute);
  if (const UOp op = finder.find())
    raise(ErrorKind::Value,
          "KOINE_NAN=1: {}: keep what it reads in its domain (clip, an epsilon, where() around its "
          "input), or unset KOINE_NAN",
          finder.words(op));
}

}  // namespace koine
