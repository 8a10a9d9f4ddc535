#include "koine/render/dialect.hpp"

namespace koine {

// The WebGPU shading language. It has numbers of 32 bits, no pointers to elements, and no literal
// of an infinity or NaN: these come from a function, which no compiler evaluates.
const Dialect wgsl_dialect{
    .name = "wgsl",
    .header = R"(fn from_f32(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn to_f32(v: f32) -> u32 { return bitcast<u32>(v); }
fn is_nan(v: f32) -> bool { return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u; }
fn max_f32(a: f32, b: f32) -> f32 { return select(a, b, b > a || is_nan(b)); }
// Floor division; 0 where b is 0.
fn idiv_i32(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return -a; }
  return a / b - select(0, 1, a % b != 0 && (a < 0) != (b < 0));
}
fn mod_i32(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  let r = a % b;
  return select(r, r + b, r != 0 && (a < 0) != (b < 0));
}
fn idiv_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}
fn mod_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}
fn shl_i32(a: i32, b: i32) -> i32 { return select(a << (u32(b) & 31u), 0, u32(b) >= 32u); }
fn shr_i32(a: i32, b: i32) -> i32 { return a >> min(u32(b), 31u); }
fn shl_u32(a: u32, b: u32) -> u32 { return select(a << (b & 31u), 0u, b >= 32u); }
fn shr_u32(a: u32, b: u32) -> u32 { return select(a >> (b & 31u), 0u, b >= 32u); }
// Truncates, saturates, NaN gives 0.
fn saturate_i32_f32(v: f32) -> i32 {
  if (is_nan(v)) { return 0; }
  if (v <= -2147483648.0) { return -2147483647 - 1; }
  if (v >= 2147483648.0) { return 2147483647; }
  return i32(v);
}
fn saturate_u32_f32(v: f32) -> u32 {
  if (is_nan(v) || v <= 0.0) { return 0u; }
  if (v >= 4294967296.0) { return 4294967295u; }
  return u32(v);
}
)",
    .arguments = Arguments::Declared,
    .syntax = {.value = "let {name}: {type} = {value};",
               .constant = "let {name}: {type} = {value};",
               .variable = "var {name}: {type};",
               .array = "var {name}: array<{type}, {count}>;",
               .list = "var {name} = array<{type}, {count}>({value});",
               .loop = "for (var {name}: {type} = 0; {name} < {bound}; {name}++) {{",
               .each_lane = "for (var l: i32 = 0; l < {count}; l++) {{ {statement} }}",
               .guarded = "if ({condition}) {{ {statement} }}",
               .choice = "select({no}, {yes}, {condition})",
               .cast = "{type}({value})",
               .differs = "!({left} == {right})",  // some compilers take != for false at NaN
               .rounded = "round({value})",
               .chooses_lazily = false},
    .types = {"", "", "i32", "", "", "", "u32", "", "f32", ""},
    .bool_type = "bool",
    .has_int64 = false,
    .integers_wrap = true,
    .has_macros = false,
    .atomic_bytes = 0,
    .has_assembly = false,
    .thread = "i32(gid.x)",
    .barrier = "workgroupBarrier(); storageBarrier();",
    .groups = {.most_threads = 256,
               .most_in_group = {256, 256, 64},
               .most_groups = {65535, 65535, 65535},
               .local_bytes = int64_t{16} << 10,
               .multiprocessors = 32},
    .group_index = {"i32(gid.x)", "i32(gid.y)", "i32(gid.z)"},
    .index_in_group = {"i32(lid.x)", "i32(lid.y)", "i32(lid.z)"},
    .trunc = {"trunc", ""},
    .sqrt = {"sqrt", ""},
    .fma = {"", ""},  // its fma may round twice
};

}  // namespace koine
