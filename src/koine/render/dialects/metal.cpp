#include "koine/render/dialect.hpp"

namespace koine {

// The Metal shading language, 3.0. It has no double, and no atomics of 64 bits.
const Dialect metal_dialect{
    .name = "metal",
    .includes = "#include <metal_stdlib>\nusing namespace metal;\n#pragma METAL fp contract(off)\n",
    .header = R"(static inline float from_f32(uint bits) { return as_type<float>(bits); }
static inline uint to_f32(float v) { return as_type<uint>(v); }
static inline void atomic_add_i32(device int* place, int value) {
  atomic_fetch_add_explicit((device atomic_int*)place, value, memory_order_relaxed);
}
static inline void atomic_add_u32(device uint* place, uint value) {
  atomic_fetch_add_explicit((device atomic_uint*)place, value, memory_order_relaxed);
}
static inline void atomic_add_f32(device float* place, float value) {
  atomic_fetch_add_explicit((device atomic_float*)place, value, memory_order_relaxed);
}
)",
    .function = "static inline",
    .kernel = "kernel void",
    .global = "device ",
    .local = "threadgroup ",
    .arguments = Arguments::Attributed,
    .types = {"char", "short", "int", "long", "uchar", "ushort", "uint", "ulong", "float", ""},
    .atomic_bytes = 4,
    .has_assembly = false,
    .long_suffix = "l",
    .thread = "gid.x",
    .barrier = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
    .group_index = {"gid.x", "gid.y", "gid.z"},
    .index_in_group = {"lid.x", "lid.y", "lid.z"},
    .trunc = {"trunc", ""},
    .sqrt = {"precise::sqrt", ""},
    .fma = {"fma", ""},
};

}  // namespace koine
