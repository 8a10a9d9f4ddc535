#include "koine/tensor/size.hpp"

#include <algorithm>
#include <ostream>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {

Size::Size(const UOp& index) {
  const UOp normal = simplify_index(index);
  if (normal.is(Op::Const))
    number_ = const_int(normal);
  else
    expression_ = normal;
}
int64_t Size::refuse() const {
  KOINE_REQUIRE(has_present_value(expression_), Value,
                "the size {} is any number from {} to {}: one program serves all of them, and here "
                "one is needed",
                text(), smallest(), largest());
  raise(ErrorKind::Value,
        "the size {} is symbolic where a number is needed: `present` gives its value for this "
        "run, for which alone the program would then be made",
        text());
}
UOp Size::uop() const { return expression_ ? expression_ : index_const(number_); }
int64_t Size::present() const {
  if (!expression_) return number_;
  return has_present_value(expression_) ? present_value(expression_) : refuse();
}
int64_t Size::smallest() const {
  return expression_ ? static_cast<int64_t>(index_span(expression_).low) : number_;
}
int64_t Size::largest() const {
  return expression_ ? static_cast<int64_t>(index_span(expression_).high) : number_;
}
std::string Size::text() const {
  return expression_ ? dim_text(expression_) : std::to_string(number_);
}

Size operator+(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return a.number_ + b.number_;
  return Size(add(a.uop(), b.uop()));
}
Size operator-(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return a.number_ - b.number_;
  return Size(sub(a.uop(), b.uop()));
}
Size operator*(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return a.number_ * b.number_;
  return Size(mul(a.uop(), b.uop()));
}
Size operator/(const Size& a, const Size& b) {
  KOINE_REQUIRE(!(b == 0), Value, "the size {} is divided by 0", a);
  if (!a.is_number() || !b.is_number()) return Size(idiv(a.uop(), b.uop()));
  const int64_t rest = a.number_ % b.number_;
  return a.number_ / b.number_ - (rest != 0 && (rest < 0) != (b.number_ < 0));
}
Size operator%(const Size& a, const Size& b) {
  KOINE_REQUIRE(!(b == 0), Value, "the size {} is divided by 0", a);
  if (!a.is_number() || !b.is_number()) return Size(mod(a.uop(), b.uop()));
  const int64_t rest = a.number_ % b.number_;
  return rest != 0 && (rest < 0) != (b.number_ < 0) ? rest + b.number_ : rest;
}
Size smaller(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return std::min(a.present(), b.present());
  return Size(minimum(a.uop(), b.uop()));
}
Size larger(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return std::max(a.present(), b.present());
  return Size(maximum(a.uop(), b.uop()));
}
bool never_exceeds(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return a.present() <= b.present();
  return (b - a).smallest() >= 0;
}
std::ostream& operator<<(std::ostream& out, const Size& size) { return out << size.text(); }

Variable::Variable(std::string_view name, int64_t low, int64_t high)
    : variable_(variable(name, low, high)) {
  require_name_of_user(variable_);
}
Size Variable::bind(int64_t value) const { return Size(koine::bind(variable_, value)); }

bool Shape::is_known() const {
  return std::all_of(begin(), end(), [](const Size& s) { return s.is_number(); });
}
std::vector<int64_t> Shape::present() const {
  std::vector<int64_t> out;
  for (const Size& s : *this) out.push_back(s.present());
  return out;
}

Shape Shape::of(const UOp& value) {
  Shape out;
  for (size_t axis = 0; axis < value.rank(); ++axis) out.emplace_back(value.dim(axis));
  return out;
}
UOp Shape::uop() const {
  std::vector<UOp> sizes;
  for (const Size& s : *this) sizes.push_back(s.uop());
  return stack(sizes);
}

}  // namespace koine
