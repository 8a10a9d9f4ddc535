#include "koine/ir/axis_set.hpp"

#include <fmt/ranges.h>

#include <vector>

#include "koine/base/error.hpp"

namespace koine {

void AxisSet::refuse(int64_t axis) {
  raise(ErrorKind::Index, "axis {} cannot be split over devices: those before axis {} can", axis,
        limit);
}

std::string axes_text(AxisSet axes) {
  std::vector<size_t> all;
  axes.each([&](size_t axis) { all.push_back(axis); });
  return fmt::format("{} {}", all.size() == 1 ? "axis" : "axes", fmt::join(all, " and "));
}

}  // namespace koine
