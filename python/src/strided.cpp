#include "strided.hpp"

#include <algorithm>
#include <koine/ir/build.hpp>

namespace koine::python {
namespace {

using Sizes = std::vector<int64_t>;

// A number for each place of a view: `offset` and a step along each axis. One of them is where the
// element lies; others say where along a padded axis a place is, and must stay within `low` and
// `high`.
struct Linear {
  int64_t offset = 0;
  Sizes steps;
  int64_t low = 0, high = 0;
};

struct View {
  Sizes shape;
  std::vector<Linear> numbers;  // the first is where it lies
};

std::optional<Sizes> numbers_of(const UOp& stack) {
  Sizes out;
  for (const UOp& u : stack.src()) {
    if (!u.is(Op::Const)) return {};
    out.push_back(const_int(u));
  }
  return out;
}

void move(View& view, const Sizes& by) {
  for (Linear& n : view.numbers)
    for (size_t k = 0; k < by.size(); ++k) n.offset += by[k] * n.steps[k];
}

// The steps of `shape` where the axes [first, last) of a view become the axes [begin, end) of it.
bool regroup(const View& view, size_t first, size_t last, const Sizes& shape, size_t begin,
             size_t end, std::vector<Sizes>& steps) {
  for (size_t i = 0; i < view.numbers.size(); ++i) {
    const Sizes& own = view.numbers[i].steps;
    int64_t inner = 0, next = 0;
    bool any = false;
    for (size_t k = last; k-- > first;) {
      if (view.shape[k] == 1) continue;
      if (any && own[k] != next) return false;
      if (!any) inner = own[k];
      any = true;
      next = own[k] * view.shape[k];
    }
    for (size_t k = end; k-- > begin;) {
      steps[i][k] = inner;
      inner *= shape[k];
    }
  }
  return true;
}

bool reshape(View& view, const Sizes& shape) {
  std::vector<Sizes> steps(view.numbers.size(), Sizes(shape.size(), 0));
  size_t first = 0, begin = 0;
  while (first < view.shape.size() || begin < shape.size()) {
    size_t last = first, end = begin;
    int64_t old_count = 1, count = 1;
    if (last < view.shape.size()) old_count = view.shape[last++];
    if (end < shape.size()) count = shape[end++];
    while (old_count != count) {
      if (old_count < count && last < view.shape.size())
        old_count *= view.shape[last++];
      else if (end < shape.size())
        count *= shape[end++];
      else if (last < view.shape.size())
        old_count *= view.shape[last++];
      else
        return false;
    }
    if (!regroup(view, first, last, shape, begin, end, steps)) return false;
    first = last;
    begin = end;
  }
  for (size_t i = 0; i < steps.size(); ++i) view.numbers[i].steps = steps[i];
  view.shape = shape;
  return true;
}

void pad(View& view, const Sizes& before, const Sizes& shape) {
  const Sizes inside = view.shape;
  move(view, [&] {
    Sizes back = before;
    for (int64_t& n : back) n = -n;
    return back;
  }());
  for (size_t k = 0; k < shape.size(); ++k) {
    if (shape[k] == inside[k]) continue;
    Linear place{-before[k], Sizes(shape.size(), 0), 0, inside[k]};
    place.steps[k] = 1;
    view.numbers.push_back(std::move(place));
  }
  view.shape = shape;
}

// What one op of movement does to a view; false: it lies in no such way then.
bool apply(const UOp& u, View& view) {
  const Sizes shape = u.sizes();
  switch (u.op()) {
    case Op::Detach:
      return true;
    case Op::Reshape:
      return reshape(view, shape);
    case Op::Permute: {
      const Ints& order = u.as<Ints>();
      for (Linear& n : view.numbers) {
        Sizes steps;
        for (const int64_t axis : order) steps.push_back(n.steps[static_cast<size_t>(axis)]);
        n.steps = std::move(steps);
      }
      break;
    }
    case Op::Flip: {
      const Ints& flags = u.as<Ints>();
      for (size_t k = 0; k < shape.size(); ++k) {
        if (flags[k] == 0) continue;
        for (Linear& n : view.numbers) {
          n.offset += (shape[k] - 1) * n.steps[k];
          n.steps[k] = -n.steps[k];
        }
      }
      break;
    }
    case Op::Expand: {
      const size_t missing = shape.size() - view.shape.size();
      for (Linear& n : view.numbers) n.steps.insert(n.steps.begin(), missing, 0);
      for (size_t k = missing; k < shape.size(); ++k)
        if (view.shape[k - missing] != shape[k])
          for (Linear& n : view.numbers) n.steps[k] = 0;
      break;
    }
    case Op::Shrink:
    case Op::Pad: {
      const std::optional<Sizes> before = numbers_of(u.src(1));
      if (!before || before->size() != shape.size()) return false;
      if (u.is(Op::Pad)) {
        pad(view, *before, shape);
        return true;
      }
      move(view, *before);
      break;
    }
    default:
      return false;
  }
  view.shape = shape;
  return true;
}

bool is_within(const View& view, const Linear& number) {
  int64_t least = number.offset, most = number.offset;
  for (size_t k = 0; k < view.shape.size(); ++k) {
    const int64_t last = (view.shape[k] - 1) * number.steps[k];
    (last < 0 ? least : most) += last;
  }
  return least >= number.low && most < number.high;
}

bool has_known_elements(const UOp& u) {
  for (size_t k = 0; k < u.rank(); ++k)
    if (!u.dim(k).is(Op::Const) || const_int(u.dim(k)) == 0) return false;
  return true;
}

}  // namespace

std::optional<StridedView> strided_view(const UOp& value) {
  std::vector<UOp> chain;
  UOp base = value;
  for (; !base.is(Op::Buffer); base = UOp(base.src(0))) {
    if ((!is_movement(base.op()) && !base.is(Op::Detach)) || !has_known_elements(base)) return {};
    chain.push_back(base);
  }
  if (chain.empty() || !has_known_elements(base) || base.device().count() != 1) return {};
  View view{base.sizes(), {Linear{}}};
  view.numbers[0].steps.assign(view.shape.size(), 0);
  int64_t step = 1;
  for (size_t k = view.shape.size(); k-- > 0;) {
    view.numbers[0].steps[k] = step;
    step *= view.shape[k];
  }
  view.numbers[0].high = step;
  for (size_t k = chain.size(); k-- > 0;)
    if (!apply(chain[k], view)) return {};
  for (const Linear& number : view.numbers)
    if (!is_within(view, number)) return {};
  return StridedView{base, view.numbers[0].offset, view.shape, view.numbers[0].steps};
}

}  // namespace koine::python
