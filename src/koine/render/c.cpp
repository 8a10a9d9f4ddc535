#include "koine/render/c.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <bit>
#include <cmath>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"

namespace koine {
namespace {

constexpr std::string_view prelude = R"(#include <stdint.h>
#include <string.h>

#define KOINE_FLOAT(T, U, name)                                              \
  static inline T max_##name(T a, T b) { return b > a || b != b ? b : a; }   \
  static inline T from_##name(U bits) { T v; memcpy(&v, &bits, sizeof v); return v; } \
  static inline U to_##name(T v) { U bits; memcpy(&bits, &v, sizeof v); return bits; }
KOINE_FLOAT(float, uint32_t, f32)
KOINE_FLOAT(double, uint64_t, f64)
static inline float trunc_f32(float v) { return __builtin_truncf(v); }
static inline double trunc_f64(double v) { return __builtin_trunc(v); }
static inline float sqrt_f32(float v) { return __builtin_sqrtf(v); }
static inline double sqrt_f64(double v) { return __builtin_sqrt(v); }

// Floor division; 0 where b is 0; no overflow trap.
#define KOINE_SIGNED(T, U, name)                                             \
  static inline T idiv_##name(T a, T b) {                                    \
    if (b == 0) return 0;                                                    \
    if (b == -1) return (T)(0 - (U)a);                                       \
    return (T)(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));               \
  }                                                                          \
  static inline T mod_##name(T a, T b) {                                     \
    if (b == 0 || b == -1) return 0;                                         \
    T r = (T)(a % b);                                                        \
    return (T)(r != 0 && (a < 0) != (b < 0) ? r + b : r);                    \
  }                                                                          \
  static inline T shl_##name(T a, T b) { return (U)b >= sizeof(T) * 8 ? 0 : (T)((U)a << b); } \
  static inline T shr_##name(T a, T b) { return (T)(a >> ((U)b >= sizeof(T) * 8 ? sizeof(T) * 8 - 1 : (U)b)); }
#define KOINE_UNSIGNED(T, name)                                              \
  static inline T idiv_##name(T a, T b) { return b == 0 ? 0 : (T)(a / b); }  \
  static inline T mod_##name(T a, T b) { return b == 0 ? 0 : (T)(a % b); }   \
  static inline T shl_##name(T a, T b) { return b >= sizeof(T) * 8 ? 0 : (T)(a << b); } \
  static inline T shr_##name(T a, T b) { return b >= sizeof(T) * 8 ? 0 : (T)(a >> b); }
KOINE_SIGNED(int8_t, uint8_t, i8)
KOINE_SIGNED(int16_t, uint16_t, i16)
KOINE_SIGNED(int32_t, uint32_t, i32)
KOINE_SIGNED(int64_t, uint64_t, i64)
KOINE_UNSIGNED(uint8_t, u8)
KOINE_UNSIGNED(uint16_t, u16)
KOINE_UNSIGNED(uint32_t, u32)
KOINE_UNSIGNED(uint64_t, u64)

// Float to integer: truncates, saturates, NaN gives 0.
#define KOINE_SATURATE(T, name, low, high)                                   \
  static inline T saturate_##name(double v) {                                \
    if (v != v) return 0;                                                    \
    if (v <= (double)(low)) return (low);                                    \
    if (v >= (double)(high)) return (high);                                  \
    return (T)v;                                                             \
  }
KOINE_SATURATE(int8_t, i8, INT8_MIN, INT8_MAX)
KOINE_SATURATE(int16_t, i16, INT16_MIN, INT16_MAX)
KOINE_SATURATE(int32_t, i32, INT32_MIN, INT32_MAX)
KOINE_SATURATE(int64_t, i64, INT64_MIN, INT64_MAX)
KOINE_SATURATE(uint8_t, u8, 0, UINT8_MAX)
KOINE_SATURATE(uint16_t, u16, 0, UINT16_MAX)
KOINE_SATURATE(uint32_t, u32, 0, UINT32_MAX)
KOINE_SATURATE(uint64_t, u64, 0, UINT64_MAX)

)";

std::string_view suffix(DType dtype) {
  switch (dtype) {
    case DType::Int8:
      return "i8";
    case DType::Int16:
      return "i16";
    case DType::Int32:
      return "i32";
    case DType::Int64:
    case DType::Index:
      return "i64";
    case DType::Bool:
    case DType::UInt8:
      return "u8";
    case DType::UInt16:
      return "u16";
    case DType::UInt32:
      return "u32";
    case DType::UInt64:
      return "u64";
    case DType::Float32:
      return "f32";
    case DType::Float64:
      return "f64";
    default:
      internal_error("the C renderer has no {}", dtype_name(dtype));
  }
}

std::string literal(const UOp& u) {
  const DType d = u.dtype();
  if (d == DType::Float32 || d == DType::Float64) {
    const double v = const_double(u);
    if (!std::isfinite(v)) return fmt::format("from_{}({:#x}u)", suffix(d), u.as<ConstArg>().bits);
    if (v == std::trunc(v) && std::fabs(v) < 1e6 && !(v == 0 && std::signbit(v)))
      return fmt::format("{:.1f}{}", v, d == DType::Float32 ? "f" : "");
    return fmt::format("{:a}{}", v, d == DType::Float32 ? "f" : "");
  }
  if (d == DType::UInt64) return fmt::format("{}ull", u.as<ConstArg>().bits);
  const int64_t v = const_int(u);
  if (v == INT64_MIN) return "INT64_MIN";
  if (d == DType::Int32 && v == INT32_MIN) return "INT32_MIN";
  if (d == DType::UInt32) return fmt::format("{}u", v);
  return v > INT32_MAX || v < INT32_MIN ? fmt::format("{}ll", v) : fmt::format("{}", v);
}

class CRenderer {
 public:
  explicit CRenderer(const UOp& linear) : linear_(linear), signature_(signature_of(linear)) {}

  std::string run(const std::string& name) {
    out_ =
        fmt::format("void {}(void** buffers, const int64_t* variables, int64_t thread) {{\n", name);
    for (const UOp& u : linear_.src()) instruction(u);
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  void line(const std::string& text) {
    out_ += std::string(static_cast<size_t>(indent_) * 2, ' ') + text + "\n";
  }

  std::string name_of(const UOp& u) {
    auto [it, fresh] = names_.try_emplace(u, "");
    if (fresh) it->second = fmt::format("v{}", counter_++);
    return it->second;
  }

  // An operand as it appears in an expression for lane `l`.
  std::string operand(const UOp& raw) {
    const UOp& u = strip_after(raw);
    if (u.is(Op::Const)) return literal(u);
    if (u.is(Op::Expand) || u.is(Op::Reshape)) return operand(u.src(0));
    return lane_count(u) > 1 ? name_of(u) + "[l]" : name_of(u);
  }

  void define(const UOp& u, const std::string& expression) {
    const std::string_view type = dtype_info(u.dtype()).c_name;
    if (const int64_t n = lane_count(u); n > 1) {
      line(fmt::format("{} {}[{}];", type, name_of(u), n));
      line(fmt::format("for (int l = 0; l < {}; ++l) {}[l] = {};", n, name_of(u), expression));
    } else {
      line(fmt::format("{} {} = {};", type, name_of(u), expression));
    }
  }

  std::string place(const UOp& access) {
    const UOp& address = strip_after(access.src(0));
    const UOp& buffer = accessed_buffer(access);
    if (!address.is(Op::Index))
      return lane_count(buffer) > 1 ? name_of(buffer) + "[l]" : name_of(buffer);
    if (const Contiguous c = contiguous_access(address); c.yes)
      return fmt::format("{}[{}l]", name_of(buffer), c.base ? operand(c.base) + " + " : "");
    return fmt::format("{}[{}]", name_of(buffer), operand(address.src(1)));
  }

  void instruction(const UOp& u) {
    switch (u.op()) {
      case Op::Const:
      case Op::Reshape:
      case Op::Expand:
      case Op::Group:
      case Op::Barrier:  // LOCAL memory is the thread's own
        return;
      case Op::Param: {
        const BufferArg& p = u.as<BufferArg>();
        if (!p.name.empty()) {
          const auto at =
              std::find(signature_.variables.begin(), signature_.variables.end(), p.name);
          const auto k = at - signature_.variables.begin();
          names_[u] = "n_" + p.name;  // no word of C, and no other name of this text
          line(fmt::format("const int64_t {} = variables[{}];", names_[u], k));
        } else {
          names_[u] = fmt::format("data{}", p.slot);
          line(fmt::format("{}* data{} = buffers[{}];", dtype_info(u.dtype()).c_name, p.slot,
                           p.slot));
        }
        return;
      }
      case Op::Buffer:
        if (!is_register(u)) {
          names_[u] = fmt::format("local{}", u.as<BufferArg>().slot);
          line(fmt::format("{} {}[{}];", dtype_info(u.dtype()).c_name, names_[u], u.numel()));
          return;
        }
        names_[u] = fmt::format("acc{}", u.as<BufferArg>().slot);
        line(lane_count(u) > 1
                 ? fmt::format("{} {}[{}];", dtype_info(u.dtype()).c_name, names_[u], lane_count(u))
                 : fmt::format("{} {};", dtype_info(u.dtype()).c_name, names_[u]));
        return;
      case Op::Special:
        names_[u] = "thread";
        return;
      case Op::Range: {
        const RangeArg& r = u.as<RangeArg>();
        names_[u] = fmt::format("{}idx{}", r.type == AxisType::Reduce ? "r" : "", r.id);
        line(fmt::format("for (int64_t {0} = 0; {0} < {1}; ++{0}) {{", names_[u],
                         operand(u.src(0))));
        ++indent_;
        return;
      }
      case Op::End:
        --indent_;
        line("}");
        return;
      case Op::Load:
        if (u.src().size() == 3)
          define(u, fmt::format("{} ? {} : {}", operand(u.src(2)), place(u), operand(u.src(1))));
        else
          define(u, place(u));
        return;
      case Op::Store: {
        const UOp& target = strip_after(u.src(0));
        const int64_t n = target.is(Op::Index) ? lane_count(target.src(1)) : lane_count(target);
        std::string text = n > 1 ? fmt::format("for (int l = 0; l < {}; ++l) ", n) : "";
        if (u.src().size() == 3) text += fmt::format("if ({}) ", operand(u.src(2)));
        line(fmt::format("{}{} = {};", text, place(u), operand(u.src(1))));
        return;
      }
      case Op::Stack: {
        std::string list;
        for (const UOp& s : u.src()) list += (list.empty() ? "" : ", ") + operand(s);
        line(fmt::format("const {} {}[{}] = {{{}}};", dtype_info(u.dtype()).c_name, name_of(u),
                         u.src().size(), list));
        return;
      }
      case Op::Shrink: {
        const int64_t from = const_int(u.src(1).src(0));
        const UOp& v = strip_after(u.src(0));
        const std::string at =
            lane_count(v) > 1 ? fmt::format("{}[l + {}]", vector_name(v), from) : operand(v);
        define(u, lane_count(u) > 1 ? at : fmt::format("{}[{}]", vector_name(v), from));
        return;
      }
      case Op::Index:
        if (!is_address(u))
          define(u, fmt::format("{}[{}]", vector_name(u.src(0)), const_int(u.src(1))));
        return;
      default:
        break;
    }
    define(u, expression(u));
  }

  // Vectors that are addressed by lane need a name even when operand() would inline them.
  std::string vector_name(const UOp& u) {
    if (!u.is(Op::Expand)) return name_of(u);
    if (!names_.contains(u)) define(u, operand(u.src(0)));
    return name_of(u);
  }

  std::string expression(const UOp& u) {
    const DType d = u.dtype();
    const auto a = [&] { return operand(u.src(0)); };
    const auto b = [&] { return operand(u.src(1)); };
    const DType in = u.src(0).dtype();
    // Integers of C promote to int: compute unsigned and cut to the width, so that they wrap.
    auto wrapped = [&](std::string_view symbol) {
      if (is_float(d)) return fmt::format("{} {} {}", a(), symbol, b());
      if (d == DType::Bool) return fmt::format("{} {} {}", a(), symbol == "+" ? "|" : "&", b());
      const std::string_view wide = item_size(d) == 8 ? "uint64_t" : "uint32_t";
      return fmt::format("({})(({}){} {} ({}){})", dtype_info(d).c_name, wide, a(), symbol, wide,
                         b());
    };
    switch (u.op()) {
      case Op::Add:
        return wrapped("+");
      case Op::Mul:
        return wrapped("*");
      case Op::Fdiv:
        return fmt::format("{} / {}", a(), b());
      case Op::Max:
        if (is_float(d)) return fmt::format("max_{}({}, {})", suffix(d), a(), b());
        return fmt::format("{1} > {0} ? {1} : {0}", a(), b());
      case Op::Idiv:
        return fmt::format("idiv_{}({}, {})", suffix(d), a(), b());
      case Op::Mod:
        return fmt::format("mod_{}({}, {})", suffix(d), a(), b());
      case Op::Shl:
        return fmt::format("shl_{}({}, {})", suffix(d), a(), b());
      case Op::Shr:
        return fmt::format("shr_{}({}, {})", suffix(d), a(), b());
      case Op::CmpLt:
        return fmt::format("{} < {}", a(), b());
      case Op::CmpNe:
        return fmt::format("{} != {}", a(), b());
      case Op::Xor:
        return fmt::format("{} ^ {}", a(), b());
      case Op::Or:
        return fmt::format("{} | {}", a(), b());
      case Op::And:
        return fmt::format("{} & {}", a(), b());
      case Op::Where:
        return fmt::format("{} ? {} : {}", a(), b(), operand(u.src(2)));
      case Op::Trunc:
        return fmt::format("trunc_{}({})", suffix(d), a());
      case Op::Sqrt:
        return fmt::format("sqrt_{}({})", suffix(d), a());
      case Op::Mulacc:
        return fmt::format("__builtin_fma{}({}, {}, {})", d == DType::Float32 ? "f" : "", a(), b(),
                           operand(u.src(2)));
      case Op::Bitcast:
        if (is_float(d) && !is_float(in))
          return fmt::format("from_{}(({}){})", suffix(d), dtype_info(storage_uint(d)).c_name, a());
        if (is_float(in) && !is_float(d))
          return fmt::format("({})to_{}({})", dtype_info(d).c_name, suffix(in), a());
        return fmt::format("({}){}", dtype_info(d).c_name, a());
      case Op::Cast:
        if (d == DType::Bool) return fmt::format("{} != 0", a());
        if (is_float(in) && !is_float(d)) return fmt::format("saturate_{}({})", suffix(d), a());
        return fmt::format("({}){}", dtype_info(d).c_name, a());
      default:
        internal_error("the C renderer does not know {}", op_name(u.op()));
    }
  }

  const UOp& linear_;
  Signature signature_;
  std::string out_;
  int indent_ = 1;
  int counter_ = 0;
  std::unordered_map<UOp, std::string> names_;
};

}  // namespace

std::string render_c(const UOp& linear, const std::string& name, bool with_prelude) {
  return (with_prelude ? std::string(prelude) : std::string()) + CRenderer(linear).run(name);
}

}  // namespace koine
