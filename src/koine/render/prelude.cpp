#include <fmt/format.h>

#include <limits>
#include <string>

#include "koine/render/dialect.hpp"

namespace koine {
namespace {

constexpr std::string_view integers = R"(
// Floor division; 0 where b is 0; no overflow trap.
#define KOINE_SIGNED(T, U, name)                                                                \
  KOINE_FN T idiv_##name(T a, T b) {                                                            \
    if (b == 0) return 0;                                                                       \
    if (b == -1) return (T)(0 - (U)a);                                                          \
    return (T)(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));                                  \
  }                                                                                             \
  KOINE_FN T mod_##name(T a, T b) {                                                             \
    if (b == 0 || b == -1) return 0;                                                            \
    T r = (T)(a % b);                                                                           \
    return (T)(r != 0 && (a < 0) != (b < 0) ? r + b : r);                                       \
  }                                                                                             \
  KOINE_FN T shl_##name(T a, T b) { return (U)b >= sizeof(T) * 8 ? 0 : (T)((U)a << b); }        \
  KOINE_FN T shr_##name(T a, T b) { return (T)(a >> ((U)b >= sizeof(T) * 8 ? (T)(sizeof(T) * 8 - 1) : b)); }
#define KOINE_UNSIGNED(T, name)                                                                 \
  KOINE_FN T idiv_##name(T a, T b) { return b == 0 ? 0 : (T)(a / b); }                          \
  KOINE_FN T mod_##name(T a, T b) { return b == 0 ? 0 : (T)(a % b); }                           \
  KOINE_FN T shl_##name(T a, T b) { return b >= sizeof(T) * 8 ? 0 : (T)(a << b); }              \
  KOINE_FN T shr_##name(T a, T b) { return b >= sizeof(T) * 8 ? 0 : (T)(a >> b); }
)";

// Float to integer: truncates, saturates, NaN gives 0.
constexpr std::string_view floats = R"(
#define KOINE_MAX(T, name)                                                                      \
  KOINE_FN T max_##name(T a, T b) { return b > a || b != b ? b : a; }
#define KOINE_SATURATE(F, T, name, low, high)                                                   \
  KOINE_FN T saturate_##name(F v) {                                                             \
    if (v != v) return 0;                                                                       \
    if (v <= (F)(low)) return (low);                                                            \
    if (v >= (F)(high)) return (high);                                                          \
    return (T)v;                                                                                \
  }
)";

constexpr std::array signed_types{DType::Int8, DType::Int16, DType::Int32, DType::Int64},
    unsigned_types{DType::UInt8, DType::UInt16, DType::UInt32, DType::UInt64};

template <class T>
std::string limits(const Dialect& d) {
  using Limits = std::numeric_limits<T>;
  const std::string_view s = sizeof(T) == 8 ? d.long_suffix : "";
  if (!Limits::is_signed) return fmt::format("0, {}u{}", Limits::max(), s);
  return fmt::format("(-{0}{1} - 1), {0}{1}", Limits::max(), s);
}

std::string limits_of(const Dialect& d, DType dtype) {
  switch (dtype) {
    case DType::Int8:
      return limits<int8_t>(d);
    case DType::Int16:
      return limits<int16_t>(d);
    case DType::Int32:
      return limits<int32_t>(d);
    case DType::Int64:
      return limits<int64_t>(d);
    case DType::UInt8:
      return limits<uint8_t>(d);
    case DType::UInt16:
      return limits<uint16_t>(d);
    case DType::UInt32:
      return limits<uint32_t>(d);
    default:
      return limits<uint64_t>(d);
  }
}

std::string helpers_of_float(const Dialect& d, DType real) {
  std::string out = fmt::format("KOINE_MAX({}, {})\n", type_name(d, real), short_name(d, real));
  for (const auto& types : {signed_types, unsigned_types})
    for (const DType t : types)
      out += fmt::format("KOINE_SATURATE({}, {}, {}_{}, {})\n", type_name(d, real), type_name(d, t),
                         short_name(d, t), short_name(d, real), limits_of(d, t));
  return out;
}

}  // namespace

std::string prelude_of(const Dialect& d) {
  if (!d.has_macros) return fmt::format("{}\n", d.header);
  std::string out =
      fmt::format("{}\n{}\n#define KOINE_FN {}\n{}", d.includes, d.header, d.function, integers);
  for (size_t i = 0; i < signed_types.size(); ++i)
    out += fmt::format("KOINE_SIGNED({}, {}, {})\nKOINE_UNSIGNED({}, {})\n",
                       type_name(d, signed_types[i]), type_name(d, unsigned_types[i]),
                       short_name(d, signed_types[i]), type_name(d, unsigned_types[i]),
                       short_name(d, unsigned_types[i]));
  out += floats;
  out += helpers_of_float(d, DType::Float32);
  if (!type_name(d, DType::Float64).empty()) {
    const std::string helpers = helpers_of_float(d, DType::Float64);
    out += d.double_macro.empty() ? helpers
                                  : fmt::format("#ifdef {}\n{}#endif\n", d.double_macro, helpers);
  }
  return out + "\n";
}

}  // namespace koine
