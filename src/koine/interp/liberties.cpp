#include "koine/interp/liberties.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "koine/ir/float_layout.hpp"

namespace koine {

double Precision::unit() const { return std::ldexp(1.0, -digits); }

Precision precision_of(DType dtype) {
  if (dtype == DType::Float64) return {53, 0x1.fffffffffffffp1023, 0x1p-1074};
  if (!is_small_float(dtype)) return {24, 0x1.fffffep127, 0x1p-149};
  const FloatLayout f = layout_of(dtype);
  return {f.mantissa + 1, f.largest(), std::ldexp(1.0, 1 - f.bias - f.mantissa)};
}

bool may_contract(DType dtype) { return dtype == DType::Float32 || dtype == DType::Float64; }

DType fold_dtype(DType dtype) { return is_small_float(dtype) ? DType::Float32 : dtype; }

double stated_ulps(Op op, DType dtype) {
  const bool wide = dtype == DType::Float64;
  switch (op) {
    case Op::Exp2:
      return 2;
    case Op::Log2:
      return wide ? 2 : 3;
    case Op::Sin:
    case Op::Pow:
      return wide ? 4 : 1;
    default:
      return 0;
  }
}

double exponential_base(const UOp& function) {
  return std::holds_alternative<int64_t>(function.arg()) ? std::numbers::e : 2;
}

double reorder_bound(Op op, DType dtype, int64_t n, bool of_products) {
  if (op == Op::Max || n < 2) return 0;
  const auto count = static_cast<double>(n);
  if (op == Op::Mul) {
    const double nu = count * precision_of(dtype).unit();
    return nu < 1 ? nu / (1 - nu) : undetermined;
  }
  const DType folded = fold_dtype(dtype);
  const double u = precision_of(folded).unit();
  const double rounded = folded == dtype ? 0 : 3 * precision_of(dtype).unit();
  const double depth = 4 * std::log2(count);
  return (of_products ? std::min(count, 450 + depth) : depth) * u + rounded;
}

}  // namespace koine
