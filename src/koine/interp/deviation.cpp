#include "koine/interp/deviation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "koine/ir/build.hpp"

namespace koine {
namespace {

// What a further rounding of a result that deviates by `deviation` adds; nothing is promised past
// the largest number.
double rounded(DType dtype, double result, double deviation, double units = 2) {
  if (deviation == 0) return 0;
  const Precision f = precision_of(dtype);
  const double reach = std::abs(result) + deviation;
  if (!(reach <= f.largest)) return undetermined;
  return deviation + units * f.unit() * reach + f.tiny;
}

// The exponent of the last bit of a finite number other than 0, and how many bits there are.
std::pair<int, int> significant(double x) {
  int exponent = 0;
  const double fraction = std::frexp(std::abs(x), &exponent);  // in [0.5, 1)
  auto digits = static_cast<uint64_t>(std::ldexp(fraction, 53));
  int zeros = 0;
  for (; (digits & 1) == 0; digits >>= 1) ++zeros;
  return {exponent - 53 + zeros, 53 - zeros};
}

double function(const UOp& node, double x) {
  if (node.is(Op::Sqrt)) return std::sqrt(x);
  const double base = exponential_base(node);
  return node.is(Op::Exp2) ? std::pow(base, x) : std::log(x) / std::log(base);
}

bool decomposed(Op op) { return stated_ulps(op, DType::Float32) > 0; }

// The deviation that operands hand down to a float result, before it is rounded.
double inherited(const UOp& node, double r, const double* x, const double* d) {
  switch (node.op()) {
    case Op::Add:
      return d[0] + d[1];
    case Op::Mul: {
      // What may be of either sign gives it to a product with 0.
      const bool turns =
          (d[0] > 0 && std::abs(x[0]) <= d[0]) || (d[1] > 0 && std::abs(x[1]) <= d[1]);
      return std::abs(x[0]) * d[1] + std::abs(x[1]) * d[0] + d[0] * d[1] +
             (turns ? std::numeric_limits<double>::denorm_min() : 0);
    }
    case Op::Mulacc:
      return std::abs(x[0]) * d[1] + std::abs(x[1]) * d[0] + d[0] * d[1] + d[2];
    case Op::Max:
      return std::max(d[0], d[1]);
    case Op::Recip:
      return std::abs(x[0]) > d[0] ? std::abs(r) * d[0] / (std::abs(x[0]) - d[0]) : undetermined;
    case Op::Fdiv:
      return std::abs(x[1]) > d[1] ? (d[0] + std::abs(r) * d[1]) / (std::abs(x[1]) - d[1])
                                   : undetermined;
    case Op::Trunc:
      return std::trunc(x[0] - d[0]) == std::trunc(x[0] + d[0]) ? 0 : d[0] + 1;
    case Op::Cast:
      return d[0];
    case Op::Sin:
      return std::min(d[0], 2.0);
    case Op::Exp2:
    case Op::Log2:
    case Op::Sqrt: {  // monotonic
      const double low = function(node, x[0] - d[0]), high = function(node, x[0] + d[0]);
      const double spread = std::max(r - low, high - r);
      return std::isfinite(low) && std::isfinite(high) ? std::max(spread, 0.0) : undetermined;
    }
    case Op::Pow: {
      if (!(x[0] - d[0] > 0)) return undetermined;
      double spread = 0;
      for (const double base : {x[0] - d[0], x[0] + d[0]})
        for (const double power : {x[1] - d[1], x[1] + d[1]})
          spread = std::max(spread, std::abs(std::pow(base, power) - r));
      return spread;
    }
    default:
      return undetermined;
  }
}

// A Cast to what is no float is exact where the whole interval lands on one value.
double cast_deviation(DType out, double x, double d) {
  const double low = x - d, high = x + d;
  if (out == DType::Bool) return low > 0 || high < 0 ? 0 : undetermined;
  return std::trunc(low) == std::trunc(high) ? 0 : undetermined;
}

// Of a result that is no float, or comes from what is none.
double discrete_deviation(Op op, DType out, DType in, const double* x, const double* d) {
  if (!is_float(in) || is_float(out)) return undetermined;
  if (op == Op::Cast) return cast_deviation(out, x[0], d[0]);
  const bool compares = op == Op::CmpLt || op == Op::CmpNe;
  return compares && std::abs(x[0] - x[1]) > d[0] + d[1] ? 0 : undetermined;
}

// Of the side that is chosen, if it is clear which one that is.
double chosen_deviation(std::span<const Deviating> operands) {
  const bool yes = (operands[0].bits & 1) != 0;
  const Deviating &chosen = operands[yes ? 1 : 2], &other = operands[yes ? 2 : 1];
  const bool same = chosen.bits == other.bits && other.deviation == 0;
  return operands[0].deviation != 0 && !same ? undetermined : chosen.deviation;
}

// What rounding takes from a product; a product that overflows may not do so unrounded.
double lost_by_rounding(DType dtype, const double* x) {
  const double rounded_product = bits_to_double(dtype, double_to_bits(dtype, x[0] * x[1]));
  if (std::isfinite(rounded_product)) return std::abs(std::fma(x[0], x[1], -rounded_product));
  return std::isfinite(x[0]) && std::isfinite(x[1]) ? undetermined : 0;
}

}  // namespace

Deviating deviate(const UOp& node, Bits result, std::span<const Deviating> operands,
                  const Liberties& liberties) {
  const Op op = node.op();
  const DType out = node.dtype(), in = node.src(op == Op::Where ? 1 : 0).dtype();
  Deviating made{result, 0, 0};
  if (op == Op::Where) {
    made.deviation = chosen_deviation(operands);
    return made;
  }
  double x[3] = {}, d[3] = {}, contraction = 0;
  bool exact = true, determined = true;
  for (size_t k = 0; k < operands.size(); ++k) {
    x[k] = is_float(in) ? bits_to_double(in, operands[k].bits) : 0;
    d[k] = operands[k].deviation;
    exact = exact && d[k] == 0;
    determined = determined && std::isfinite(d[k]);
    contraction += operands[k].residual;
  }
  const bool floats = is_float(in) && is_float(out);
  if (!floats || !determined) {
    made.deviation = exact ? 0 : determined ? discrete_deviation(op, out, in, x, d) : undetermined;
    return made;
  }
  const bool fusable = liberties.contract && may_contract(out);
  double fused = 0;
  if (fusable && op == Op::Mul) made.residual = lost_by_rounding(out, x);
  if (fusable && op == Op::Mulacc) fused = lost_by_rounding(out, x);
  if (fusable && op == Op::Add) fused = contraction;
  const double r = bits_to_double(out, result);
  if (!std::isfinite(r) || fused == undetermined) {  // from what was certain it is certain
    made.deviation = exact && fused != undetermined ? 0 : undetermined;
    return made;
  }
  made.deviation = rounded(out, r, fused + (exact ? 0 : inherited(node, r, x, d)));
  if (liberties.contract && decomposed(op))
    made.deviation += 16 * precision_of(out).unit() * std::abs(r) + precision_of(out).tiny;
  return made;
}

Fold::Fold(Op op, DType dtype, Liberties liberties)
    : op_(op), dtype_(dtype), fold_(op, dtype, dtype), liberties_(liberties) {
  from_identity_ = identity_of(op, dtype).as<ConstArg>().bits;
}

void Fold::start_from(const Deviating& value) {
  add(value);
  from_identity_ = from_first_ = value.bits;
}

void Fold::add(const Deviating& value) {
  if (count_ == 0) {
    first_ = from_first_ = value.bits;
    first_deviation_ = value.deviation;
  } else {
    from_first_ = fold_(from_first_, value.bits);
  }
  from_identity_ = fold_(from_identity_, value.bits);
  ++count_;
  if (!liberties_.any()) return;
  deviations_ += value.deviation;
  largest_deviation_ = std::max(largest_deviation_, value.deviation);
  residuals_ += value.residual;
  if (is_float(dtype_)) add_float(value, bits_to_double(dtype_, value.bits));
}

void Fold::add_float(const Deviating& value, double x) {
  nan_ = nan_ || std::isnan(x);
  if (std::isinf(x)) (x > 0 ? positive_infinity_ : negative_infinity_) = true;
  if (!std::isfinite(x)) return;
  if (x == 0) {
    zero_ = true;
    return;
  }
  magnitude_ += std::abs(x);
  if (op_ == Op::Max) return;
  const auto [last, digits] = significant(x);
  lowest_bit_ = std::min(lowest_bit_, last);
  if (op_ == Op::Add) return;
  digits_ += digits;
  const double logarithm = std::log2(std::abs(x));
  (logarithm > 0 ? grows_ : shrinks_) += logarithm;
  relative_ += value.deviation < std::abs(x) / 2 ? 2 * value.deviation / std::abs(x) : undetermined;
}

double Fold::sum_deviation(double result) const {
  const Precision f = precision_of(dtype_);
  const bool determined = std::isfinite(deviations_) && std::isfinite(residuals_);
  if (nan_ || (positive_infinity_ && negative_infinity_)) return determined ? 0 : undetermined;
  if (positive_infinity_ || negative_infinity_)
    return determined && magnitude_ + deviations_ <= f.largest ? 0 : undetermined;
  const bool exact = deviations_ == 0 && residuals_ == 0;
  if (exact && (magnitude_ == 0 || magnitude_ < std::ldexp(1.0, lowest_bit_ + f.digits))) return 0;
  const double roundings = 2.0 * static_cast<double>(count_ + 1) * f.unit();
  const double reach = magnitude_ + deviations_ + residuals_;
  const double deviation =
      deviations_ + residuals_ + roundings * reach + static_cast<double>(count_) * f.tiny;
  return reach + deviation <= f.largest && std::isfinite(result) ? deviation : undetermined;
}

double Fold::product_deviation(double result) const {
  const Precision f = precision_of(dtype_);
  if (nan_) return std::isfinite(deviations_) ? 0 : undetermined;
  if (positive_infinity_ || negative_infinity_ || deviations_ == undetermined) return undetermined;
  const double top = std::log2(f.largest) - 1, bottom = std::log2(f.tiny) + f.digits;
  if (grows_ > top || shrinks_ < bottom) return undetermined;
  if (zero_) return deviations_ == 0 ? 0 : undetermined;
  if (deviations_ == 0 && digits_ <= f.digits) return 0;
  const double relative = std::expm1(relative_) + 4.0 * static_cast<double>(count_) * f.unit();
  return std::abs(result) * relative;
}

Deviating Fold::result(bool from_identity) const {
  Deviating out{count_ == 1                    ? first_
                : from_identity || count_ == 0 ? from_identity_
                                               : from_first_,
                0, 0};
  if (!liberties_.any() || count_ == 0) return out;
  if (count_ == 1 && from_identity) {
    out.deviation = first_deviation_ + residuals_;
    return out;
  }
  if (!is_float(dtype_)) {
    out.deviation = deviations_ == 0 ? 0 : undetermined;
    return out;
  }
  const double result = bits_to_double(dtype_, out.bits);
  if (op_ == Op::Max) {
    out.deviation = largest_deviation_;
    if (result == 0) out.deviation = std::max(out.deviation, precision_of(dtype_).tiny);
  } else {
    out.deviation = op_ == Op::Add ? sum_deviation(result) : product_deviation(result);
  }
  return out;
}

}  // namespace koine
