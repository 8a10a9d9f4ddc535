#pragma once
#include <fmt/core.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Whole numbers for a size or an axis: any integer type but bool.
template <class T>
concept Whole = std::integral<T> && !std::same_as<T, bool>;

/// A size of a tensor: a number, or an expression over bound Variables ("symbolic"). Tensors with
/// equal expressions fit together, and one program serves every value of the Variables; memory is
/// as large as the largest. Where a symbolic size is used as an int64_t, it throws Error (Value).
class Size {
 public:
  Size() = default;
  Size(Whole auto number) : number_(static_cast<int64_t>(number)) {}  // NOLINT: 3 is a size
  explicit Size(const UOp& index);                                    ///< an index scalar

  bool is_number() const { return !expression_; }
  operator int64_t() const { return expression_ ? refuse() : number_; }  // NOLINT
  UOp uop() const;
  /// For this run: what the Variables are bound to says.
  int64_t present() const;
  int64_t smallest() const;
  int64_t largest() const;
  std::string text() const;

  friend Size operator+(const Size& a, const Size& b);
  friend Size operator-(const Size& a, const Size& b);
  friend Size operator*(const Size& a, const Size& b);
  /// Rounded down, and what is left of it. Throws Error (Value) where b is 0.
  friend Size operator/(const Size& a, const Size& b);
  friend Size operator%(const Size& a, const Size& b);
  friend bool operator==(const Size& a, const Size& b) {
    return a.number_ == b.number_ && a.expression_ == b.expression_;
  }
  Size& operator+=(const Size& b) { return *this = *this + b; }
  Size& operator*=(const Size& b) { return *this = *this * b; }

 private:
  int64_t refuse() const;  // throws
  int64_t number_ = 0;
  UOp expression_;  // in normal form; null: a number
};

// Of what is a Size by conversion as well, on both sides.
Size operator+(const Size& a, const Size& b);
Size operator-(const Size& a, const Size& b);
Size operator*(const Size& a, const Size& b);
Size operator/(const Size& a, const Size& b);
Size operator%(const Size& a, const Size& b);

// With numbers of any type: without these, `size * 2` would be a product of int64_t as well.
template <Whole T>
Size operator+(const Size& a, T b) {
  return a + Size(b);
}
template <Whole T>
Size operator+(T a, const Size& b) {
  return Size(a) + b;
}
template <Whole T>
Size operator-(const Size& a, T b) {
  return a - Size(b);
}
template <Whole T>
Size operator-(T a, const Size& b) {
  return Size(a) - b;
}
template <Whole T>
Size operator*(const Size& a, T b) {
  return a * Size(b);
}
template <Whole T>
Size operator*(T a, const Size& b) {
  return Size(a) * b;
}
template <Whole T>
Size operator/(const Size& a, T b) {
  return a / Size(b);
}
template <Whole T>
Size operator/(T a, const Size& b) {
  return Size(a) / b;
}
template <Whole T>
Size operator%(const Size& a, T b) {
  return a % Size(b);
}
template <Whole T>
Size operator%(T a, const Size& b) {
  return Size(a) % b;
}
template <Whole T>
bool operator==(const Size& a, T b) {
  return a == Size(b);
}
/// The smaller and the larger one; an expression where the ranges of the Variables leave it open.
Size smaller(const Size& a, const Size& b);
Size larger(const Size& a, const Size& b);
/// Whether a <= b, whatever the Variables are.
bool never_exceeds(const Size& a, const Size& b);
std::ostream& operator<<(std::ostream& out, const Size& size);

/// An integer that has another value in each run, such as the length of a sequence.
///
///     Variable n("n", 1, 128);
///     Tensor y = model(tokens[Slice{{}, n.bind(length)}]);  // compiled once for all lengths
///
/// Without a value it is a Size of which bounds are known: `(n * 4 + 3) / 4 == n`.
class Variable {
 public:
  /// Equal arguments give the same Variable. Throws Error (Value) where the name is none or
  /// low > high.
  Variable(std::string_view name, int64_t low, int64_t high);
  /// The Variable with its value for this run. Throws Error (Value) outside of low..high.
  Size bind(int64_t value) const;
  operator Size() const { return Size(variable_); }  // NOLINT(google-explicit-constructor)
  const std::string& name() const { return variable_.as<BufferArg>().name; }
  int64_t smallest() const { return Size(*this).smallest(); }
  int64_t largest() const { return Size(*this).largest(); }
  const UOp& uop() const { return variable_; }

 private:
  UOp variable_;
};

/// Sizes. A single one needs no braces: `Tensor::randn(3)`.
class Shape : public std::vector<Size> {
 public:
  using std::vector<Size>::vector;
  Shape(std::vector<Size> sizes) : vector(std::move(sizes)) {}                      // NOLINT
  Shape(const std::vector<int64_t>& sizes) : vector(sizes.begin(), sizes.end()) {}  // NOLINT
  Shape(Whole auto only) : vector(size_t{1}, Size(only)) {}                         // NOLINT
  Shape(size_t only) : vector(size_t{1}, Size(only)) {}                             // NOLINT
  Shape(const Size& only) : vector(size_t{1}, only) {}                              // NOLINT
  Shape(bool) = delete;
  static Shape of(const UOp& value);
  UOp uop() const;        ///< a Stack of index scalars
  bool is_known() const;  ///< whether all sizes are numbers
  /// Throws Error (Value) where a size is symbolic.
  operator std::vector<int64_t>() const { return {begin(), end()}; }  // NOLINT
  /// For this run.
  std::vector<int64_t> present() const;
  friend bool operator==(const Shape& a, const Shape& b) {
    return static_cast<const std::vector<Size>&>(a) == static_cast<const std::vector<Size>&>(b);
  }
};

/// A shape operand.
UOp shape_of(const std::same_as<Shape> auto& shape) { return shape.uop(); }
/// For each axis two sizes: where to begin and end, or what to add before and behind.
class SizePairs : public std::vector<std::pair<Size, Size>> {
 public:
  using std::vector<std::pair<Size, Size>>::vector;
  SizePairs(const std::vector<std::pair<int64_t, int64_t>>& pairs)  // NOLINT
      : vector(pairs.begin(), pairs.end()) {}
};

}  // namespace koine

template <>
struct fmt::formatter<koine::Size> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const koine::Size& size, Context& context) const {
    return fmt::formatter<std::string_view>::format(size.text(), context);
  }
};
