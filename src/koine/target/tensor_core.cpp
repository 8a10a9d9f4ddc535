#include "koine/target/tensor_core.hpp"

#include "koine/base/error.hpp"

namespace koine {
namespace {

using enum DType;

// Any machine: rows of B and of the accumulator are vectors.
constexpr CoreAxis n16[] = {{'n', 16, 1}};
constexpr CoreAxis mk16[] = {{'m', 16, 1}, {'k', 16, 1}}, kn16[] = {{'k', 16, 1}, {'n', 16, 1}},
                   mn16[] = {{'m', 16, 1}, {'n', 16, 1}};

// Registers of 64 bytes of a CPU: 16 columns, each with the 2 or 4 numbers that it sums at once. A
// has one row, which all columns see.
constexpr CoreAxis k2[] = {{'k', 2, 1}}, k4[] = {{'k', 4, 1}};
constexpr CoreAxis n16k2[] = {{'n', 16, 1}, {'k', 2, 1}}, n16k4[] = {{'n', 16, 1}, {'k', 4, 1}};

// mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). It sums over k in no order that
// anybody knows, so A and B may have k where they like, if they agree: the four of a thread, which
// the manual numbers 2t, 2t + 1, 2t + 8 and 2t + 9, are neighbours here.
constexpr CoreAxis mma_m_k[] = {{'m', 8, 1}, {'k', 4, 4}}, mma_n_k[] = {{'n', 8, 1}, {'k', 4, 4}},
                   mma_m_n[] = {{'m', 8, 1}, {'n', 4, 2}};
constexpr CoreAxis mma_a[] = {{'k', 2, 2}, {'m', 2, 8}, {'k', 2, 1}},
                   mma_b[] = {{'k', 2, 2}, {'k', 2, 1}}, mma_d[] = {{'m', 2, 8}, {'n', 2, 1}};

constexpr TensorCore mma(std::string_view name, DType in) {
  return {name, 16, 8, 16, {in, mma_m_k, mma_a}, {in, mma_n_k, mma_b}, {Float32, mma_m_n, mma_d}};
}

constexpr TensorCore all[] = {
    {.name = "software_16x16x16_f16",
     .m = 16,
     .n = 16,
     .k = 16,
     .a = {Float16, {}, mk16},
     .b = {Float16, {}, kn16},
     .accumulator = {Float32, {}, mn16},
     .ordered = true,
     .software = true},
    {.name = "x86_vdpbf16ps",
     .m = 1,
     .n = 16,
     .k = 2,
     .a = {BFloat16, {}, k2},
     .b = {BFloat16, {}, n16k2},
     .accumulator = {Float32, {}, n16},
     .feature = "avx512bf16"},
    {.name = "x86_vpdpbusd",
     .m = 1,
     .n = 16,
     .k = 4,
     .a = {UInt8, {}, k4},
     .b = {Int8, {}, n16k4},
     .accumulator = {Int32, {}, n16},
     .feature = "avx512vnni",
     .ordered = true},
    {.name = "x86_vpdpwssd",
     .m = 1,
     .n = 16,
     .k = 2,
     .a = {Int16, {}, k2},
     .b = {Int16, {}, n16k2},
     .accumulator = {Int32, {}, n16},
     .feature = "avx512vnni",
     .ordered = true},
    mma("cuda_m16n8k16_f16", Float16),
    mma("cuda_m16n8k16_bf16", BFloat16),
};

int count(std::span<const CoreAxis> axes) {
  int out = 1;
  for (const CoreAxis& axis : axes) out *= axis.size;
  return out;
}

int along_axes(std::span<const CoreAxis> axes, char along, int number) {
  int out = 0;
  for (size_t i = axes.size(); i-- > 0; number /= axes[i].size)
    if (axes[i].along == along) out += number % axes[i].size * axes[i].step;
  return out;
}

}  // namespace

int CoreMatrix::element_count() const { return count(elements); }
int CoreMatrix::place(char along, int thread, int element) const {
  return along_axes(threads, along, thread) + along_axes(elements, along, element);
}
int TensorCore::threads() const { return count(accumulator.threads); }

std::span<const TensorCore> tensor_cores() { return all; }

const TensorCore* find_tensor_core(std::string_view name) {
  for (const TensorCore& core : all)
    if (core.name == name) return &core;
  return nullptr;
}

const TensorCore& tensor_core_named(std::string_view name) {
  const TensorCore* core = find_tensor_core(name);
  KOINE_INVARIANT(core != nullptr, "there is no tensor core {}", name);
  return *core;
}

}  // namespace koine
