#pragma once
#include <mpfr.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

namespace koine::test {

/// A real number of 320 bits, correctly rounded in every operation (MPFR): the reference that
/// decides where long double does not.
class Real {
 public:
  Real(long double value = 0) {  // NOLINT: numbers are numbers
    mpfr_init2(value_, bits);
    mpfr_set_ld(value_, value, MPFR_RNDN);
  }
  Real(const Real& other) {
    mpfr_init2(value_, bits);
    mpfr_set(value_, other.value_, MPFR_RNDN);
  }
  Real& operator=(const Real& other) {
    if (this != &other) mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~Real() { mpfr_clear(value_); }
  explicit operator double() const { return mpfr_get_d(value_, MPFR_RNDN); }
  explicit operator float() const { return mpfr_get_flt(value_, MPFR_RNDN); }
  explicit operator long double() const { return mpfr_get_ld(value_, MPFR_RNDN); }

#define KOINE_REAL_UNARY(name)                    \
  friend Real name(const Real& x) {               \
    Real out;                                     \
    mpfr_##name(out.value_, x.value_, MPFR_RNDN); \
    return out;                                   \
  }
  KOINE_REAL_UNARY(erf)
  KOINE_REAL_UNARY(erfc)
  KOINE_REAL_UNARY(exp)
  KOINE_REAL_UNARY(exp2)
  KOINE_REAL_UNARY(expm1)
  KOINE_REAL_UNARY(log)
  KOINE_REAL_UNARY(log2)
  KOINE_REAL_UNARY(log1p)
  KOINE_REAL_UNARY(sin)
  KOINE_REAL_UNARY(cos)
  KOINE_REAL_UNARY(tan)
  KOINE_REAL_UNARY(tanh)
  KOINE_REAL_UNARY(sqrt)
  KOINE_REAL_UNARY(abs)
#undef KOINE_REAL_UNARY
#define KOINE_REAL_WHOLE(name)         \
  friend Real name(const Real& x) {    \
    Real out;                          \
    mpfr_##name(out.value_, x.value_); \
    return out;                        \
  }
  KOINE_REAL_WHOLE(trunc)
  KOINE_REAL_WHOLE(floor)
  KOINE_REAL_WHOLE(ceil)
#undef KOINE_REAL_WHOLE
  friend Real rint(const Real& x) {  // half to even
    Real out;
    mpfr_roundeven(out.value_, x.value_);
    return out;
  }
#define KOINE_REAL_BINARY(name, function)                       \
  friend Real name(const Real& a, const Real& b) {              \
    Real out;                                                   \
    mpfr_##function(out.value_, a.value_, b.value_, MPFR_RNDN); \
    return out;                                                 \
  }
  KOINE_REAL_BINARY(operator+, add)
  KOINE_REAL_BINARY(operator-, sub)
  KOINE_REAL_BINARY(operator*, mul)
  KOINE_REAL_BINARY(operator/, div)
  KOINE_REAL_BINARY(pow, pow)
  KOINE_REAL_BINARY(fmod, fmod)
#undef KOINE_REAL_BINARY
  friend bool isnan(const Real& x) { return mpfr_nan_p(x.value_); }
  friend bool isinf(const Real& x) { return mpfr_inf_p(x.value_); }
  friend bool isfinite(const Real& x) { return mpfr_number_p(x.value_); }
  friend bool operator<(const Real& a, const Real& b) { return mpfr_less_p(a.value_, b.value_); }

 private:
  static constexpr mpfr_prec_t bits = 320;
  mpfr_t value_;
};

}  // namespace koine::test
