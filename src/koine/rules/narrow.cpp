#include "koine/rules/narrow.hpp"

#include <cmath>
#include <map>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/float_layout.hpp"
#include "koine/ir/graph.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

UOp u32(int64_t v) { return constant_int(DType::UInt32, v); }
UOp f32(double v) { return constant(DType::Float32, v); }
UOp raw(const UOp& x) { return bitcast(x, DType::UInt32); }
UOp real(const UOp& bits) { return bitcast(bits, DType::Float32); }
UOp shr(const UOp& a, int n) { return binary(Op::Shr, a, u32(n)); }
UOp shl(const UOp& a, int n) { return binary(Op::Shl, a, u32(n)); }

// The smallest value of the format.
double quantum_of(const FloatLayout& f) { return std::ldexp(1.0, 1 - f.bias - f.mantissa); }

UOp is_subnormal(const FloatLayout& f, const UOp& magnitude) {
  return lt(magnitude, raw(f32(std::ldexp(1.0, 1 - f.bias))));
}

// How many quanta a subnormal is, to the nearest, ties to even: a sum with 2^23 of them has no room
// for smaller bits. The sum less 2^23 quanta would do as well, but compilers of WGSL may take that
// for what was added to.
UOp quanta(const FloatLayout& f, const UOp& magnitude) {
  const UOp sum = add(real(magnitude), f32(std::ldexp(quantum_of(f), 23)));
  return bit_and(raw(sum), u32((int64_t{1} << f.mantissa) * 2 - 1));
}

// The nearest value of the format, ties to even, as a float32.
UOp round_to(DType dtype, const UOp& x) {
  const FloatLayout f = layout_of(dtype);
  const int drop = 23 - f.mantissa;
  const UOp bits = raw(x);
  const UOp sign = bit_and(bits, u32(0x80000000)), magnitude = bit_and(bits, u32(0x7fffffff));
  // Normal: add half a unit (less one, plus the last kept bit) and cut; carries go to the exponent.
  const UOp odd = bit_and(shr(magnitude, drop), u32(1));
  const UOp up = add(magnitude, add(odd, u32((int64_t{1} << (drop - 1)) - 1)));
  UOp rounded = bit_and(up, u32(~((int64_t{1} << drop) - 1) & 0xffffffff));
  if (dtype != DType::BFloat16) {  // bfloat16's subnormals are float32's: the cut above is right
    const UOp small = mul(cast(quanta(f, magnitude), DType::Float32), f32(quantum_of(f)));
    rounded = where(is_subnormal(f, magnitude), raw(small), rounded);
  }
  const UOp largest = raw(f32(f.largest())), infinity = u32(0x7f800000), nan = u32(0x7fc00000);
  rounded = where(lt(largest, rounded), f.has_infinity ? infinity : nan, rounded);
  rounded = where(lt(infinity, magnitude), nan, rounded);
  return real(bit_or(rounded, sign));
}

// Bits of a float32 that is already a value of the format.
UOp encode(DType dtype, const UOp& x) {
  const FloatLayout f = layout_of(dtype);
  const int drop = 23 - f.mantissa, width = dtype_info(dtype).bits;
  const UOp bits = raw(x);
  const UOp magnitude = bit_and(bits, u32(0x7fffffff));
  const UOp sign = bit_and(shr(bits, 32 - width), u32(int64_t{1} << (width - 1)));
  UOp code = shr(magnitude, drop);
  if (dtype != DType::BFloat16) {
    code = add(code, u32(-(int64_t{127 - f.bias} << f.mantissa)));
    code = where(is_subnormal(f, magnitude), quanta(f, magnitude), code);
    // Infinity and NaN, with what the format has of its payload: computed NaNs are quiet.
    const int64_t fraction = (int64_t{1} << f.mantissa) - 1;
    const UOp special = f.has_infinity ? bit_or(bit_and(shr(magnitude, drop), u32(fraction)),
                                                u32(int64_t{f.exponent_max() + 1} << f.mantissa))
                                       : u32((int64_t{f.exponent_max()} << f.mantissa) | fraction);
    code = where(lt(magnitude, u32(0x7f800000)), code, special);
  }
  return cast(bit_or(code, sign), storage_uint(dtype));
}

UOp decode(DType dtype, const UOp& stored) {
  const FloatLayout f = layout_of(dtype);
  const int drop = 23 - f.mantissa, width = dtype_info(dtype).bits;
  const UOp bits = cast(stored, DType::UInt32);
  const UOp magnitude = bit_and(bits, u32((int64_t{1} << (width - 1)) - 1));
  const UOp sign = shl(bit_and(bits, u32(int64_t{1} << (width - 1))), 32 - width);
  if (dtype == DType::BFloat16) return real(shl(bits, 16));
  UOp wide = add(shl(magnitude, drop), u32(int64_t{127 - f.bias} << 23));
  const UOp subnormal = raw(mul(cast(magnitude, DType::Float32), f32(quantum_of(f))));
  wide = where(lt(magnitude, u32(int64_t{1} << f.mantissa)), subnormal, wide);
  if (f.has_infinity) {
    const UOp special = bit_or(shl(magnitude, drop), u32(0x7f800000));
    wide = where(lt(magnitude, u32(int64_t{f.exponent_max() + 1} << f.mantissa)), wide, special);
  } else {
    wide = where(eq(magnitude, u32((int64_t{1} << (width - 1)) - 1)), u32(0x7fc00000), wide);
  }
  return real(bit_or(wide, sign));
}

// float64 to float32 rounding to odd: a second rounding to a narrower format is then exact.
UOp to_odd_float32(const UOp& x) {
  const UOp nearest = cast(x, DType::Float32);
  const UOp back = cast(nearest, DType::Float64);
  const UOp bits = raw(nearest);
  const UOp magnitude = bit_and(bits, u32(0x7fffffff));
  auto absolute = [](const UOp& v) {
    return bitcast(bit_and(bitcast(v, DType::UInt64), constant_int(DType::UInt64, INT64_MAX)),
                   DType::Float64);
  };
  const UOp away = lt(absolute(x), absolute(back));
  const UOp truncated = where(away, add(magnitude, u32(-1)), magnitude);
  const UOp inexact = ne(back, x);
  const UOp odd = where(inexact, bit_or(truncated, u32(1)), magnitude);
  const UOp finite = lt(magnitude, u32(0x7f800001));
  return real(bit_or(where(finite, odd, magnitude), bit_and(bits, u32(0x80000000))));
}

// The bits of values of a narrow format, by the float32 that stands for each, where they are there
// already.
class KnownBits {
 public:
  void add(DType dtype, const UOp& value, const UOp& bits) { bits_[dtype].emplace(value, bits); }

  /// What is chosen of values, or spread, has its bits chosen or spread.
  void follow(DType dtype, const UOp& value) {
    const auto& known = bits_[dtype];
    std::vector<UOp> src(value.src().begin(), value.src().end());
    if (!value.is(Op::Where) && !value.is(Op::Expand) && !value.is(Op::Reshape)) return;
    for (size_t k = value.is(Op::Where) ? 1 : 0; k < (value.is(Op::Where) ? 3 : 1); ++k) {
      const auto it = known.find(src[k]);
      if (it == known.end()) return;
      src[k] = it->second;
    }
    add(dtype, value, with_sources(value, src));
  }

  UOp of(DType dtype, const UOp& value) {
    const auto it = bits_[dtype].find(value);
    return it != bits_[dtype].end() ? it->second : encode(dtype, value);
  }

 private:
  std::map<DType, std::unordered_map<UOp, UOp>> bits_;  // of one number each format has others
};

bool exact_in_any_format(Op op) { return op == Op::Max || op == Op::Where || op == Op::Trunc; }

}  // namespace

UOp emulate_narrow_floats(const UOp& kernel) {
  const NodeList order = toposort(kernel);
  bool any = false;
  for (const UOp& u : order) any = any || is_small_float(u.dtype());
  if (!any) return kernel;
  KnownBits known;
  return rebuild_graph(kernel, [&](const UOp& u, std::vector<UOp>& src) {
    const DType dtype = u.dtype();
    if (u.is(Op::Const) && is_small_float(dtype)) {
      const ConstArg& c = u.as<ConstArg>();
      if (c.invalid) return invalid(DType::Float32);
      const UOp bits = constant_bits(storage_uint(dtype), c.bits);
      const UOp value = simplify(decode(dtype, bits));
      known.add(dtype, value, bits);
      return value;
    }
    if (u.is(Op::Wmma)) {  // the machine takes the bits
      for (const size_t k : {0, 1})
        if (const DType narrow = u.src(k).dtype(); is_small_float(narrow))
          src[k] = known.of(narrow, src[k]);
      return with_sources(u, src);
    }
    if ((u.is(Op::Param) || u.is(Op::Buffer)) && is_small_float(dtype)) {
      BufferArg arg = u.as<BufferArg>();
      // Registers hold the float32; memory holds bits.
      arg.dtype = arg.space == AddrSpace::Reg ? DType::Float32 : storage_uint(dtype);
      return UOp::make(u.op(), src, arg);
    }
    if (u.is(Op::Load) && is_small_float(dtype) && u.src(0).addrspace() != AddrSpace::Reg) {
      if (src.size() == 3) src[1] = encode(dtype, src[1]);
      const UOp bits = UOp::make(Op::Load, src, u.arg());
      const UOp value = decode(dtype, bits);
      known.add(dtype, value, bits);
      return value;
    }
    if (u.is(Op::Store) && is_small_float(u.src(1).dtype()) &&
        u.src(0).addrspace() != AddrSpace::Reg) {
      src[1] = known.of(u.src(1).dtype(), src[1]);
      return with_sources(u, src);
    }
    if (u.is(Op::Cast) && is_small_float(dtype)) {
      const DType from = u.src(0).dtype();
      const UOp wide =
          from == DType::Float64 ? to_odd_float32(src[0]) : cast(src[0], DType::Float32);
      return round_to(dtype, wide);
    }
    if (u.is(Op::Cast) && is_small_float(u.src(0).dtype())) return cast(src[0], dtype);
    if (u.is(Op::Bitcast) && (is_small_float(dtype) || is_small_float(u.src(0).dtype()))) {
      const DType from = u.src(0).dtype();
      UOp bits = is_small_float(from) ? encode(from, src[0]) : bitcast(src[0], storage_uint(from));
      return is_small_float(dtype) ? decode(dtype, bits) : bitcast(bits, dtype);
    }
    if (u.is(Op::Mulacc) && is_small_float(dtype))
      return round_to(dtype, add(round_to(dtype, mul(src[0], src[1])), src[2]));
    if (is_elementwise(u.op()) && is_small_float(dtype)) {
      const UOp wide = UOp::make(u.op(), src, u.arg());
      known.follow(dtype, wide);
      return exact_in_any_format(u.op()) ? wide : round_to(dtype, wide);
    }
    if (u.is(Op::Reduce) && is_small_float(dtype))
      internal_error("a Reduce of {} reaches instruction selection", dtype_name(dtype));
    const UOp same = with_sources(u, src);
    if (is_small_float(dtype)) known.follow(dtype, same);
    return same;
  });
}

}  // namespace koine
