#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace koine {

/// The axes of a value that several devices split among them; none: each device holds all of it.
/// A leaf splits one axis at most (ir/placement): which device holds which part of two is for a
/// mesh of devices to say.
class AxisSet {
 public:
  static constexpr int64_t limit = 32;  ///< axes from this one on cannot be split

  constexpr AxisSet() = default;
  /// Of one axis; of none where it is negative. Throws Error from `limit` on.
  constexpr AxisSet(int64_t axis) { insert(axis); }  // NOLINT: an axis is the set of it

  /// Nothing where it is negative. Throws Error from `limit` on.
  constexpr void insert(int64_t axis) {
    if (axis >= limit) refuse(axis);
    if (axis >= 0) bits_ |= uint32_t{1} << axis;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr size_t size() const { return static_cast<size_t>(std::popcount(bits_)); }
  constexpr bool contains(int64_t axis) const {
    return axis >= 0 && axis < limit && (bits_ >> axis & 1) != 0;
  }
  /// The least of them.
  constexpr std::optional<size_t> first() const {
    return empty() ? std::nullopt : std::optional(static_cast<size_t>(std::countr_zero(bits_)));
  }
  /// Calls visit(axis), the least first.
  template <class Visit>
  constexpr void each(Visit&& visit) const {
    for (uint32_t left = bits_; left != 0; left &= left - 1)
      visit(static_cast<size_t>(std::countr_zero(left)));
  }
  /// Each of them at `to(axis)`, where another value has it; negative: nowhere.
  template <class To>
  constexpr AxisSet moved(To&& to) const {
    AxisSet out;
    each([&](size_t axis) { out.insert(static_cast<int64_t>(to(axis))); });
    return out;
  }
  /// Behind `by` more axes, or before as many fewer.
  constexpr AxisSet shifted(int64_t by) const {
    return moved([by](size_t axis) { return static_cast<int64_t>(axis) + by; });
  }
  constexpr uint32_t bits() const { return bits_; }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  [[noreturn]] static void refuse(int64_t axis);
  uint32_t bits_ = 0;
};

/// As messages name them: "axis 1", "axes 0 and 2".
std::string axes_text(AxisSet axes);

}  // namespace koine
