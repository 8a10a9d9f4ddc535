#include "koine/render/dialect.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "koine/base/error.hpp"

namespace koine {
namespace {

// The place of a dtype's storage among the types of a dialect.
size_t type_index(const Dialect& dialect, DType dtype) {
  switch (is_small_float(dtype) ? storage_uint(dtype) : dtype) {
    case DType::Int8:
      return 0;
    case DType::Int16:
      return 1;
    case DType::Int32:
      return 2;
    case DType::Index:
      return dialect.has_int64 ? 3 : 2;
    case DType::Int64:
      return 3;
    case DType::Bool:
    case DType::UInt8:
      return 4;
    case DType::UInt16:
      return 5;
    case DType::UInt32:
      return 6;
    case DType::UInt64:
      return 7;
    case DType::Float32:
      return 8;
    case DType::Float64:
      return 9;
    default:
      internal_error("no text has values of {}", dtype_name(dtype));
  }
}

}  // namespace

bool has_core(const Dialect& dialect, std::string_view core) {
  return std::ranges::find(dialect.cores, core) != dialect.cores.end();
}

std::string_view type_name(const Dialect& dialect, DType dtype) {
  if (dtype == DType::Bool && !dialect.bool_type.empty()) return dialect.bool_type;
  return dialect.types[type_index(dialect, dtype)];
}

std::string_view short_name(const Dialect& dialect, DType dtype) {
  static constexpr std::array<std::string_view, 10> names{"i8",  "i16", "i32", "i64", "u8",
                                                          "u16", "u32", "u64", "f32", "f64"};
  return names[type_index(dialect, dtype)];
}

const std::vector<const Dialect*>& dialects() {
  static const auto& all = *new const std::vector<const Dialect*>{
      &c_dialect, &opencl_dialect, &cuda_dialect, &hip_dialect, &metal_dialect, &wgsl_dialect};
  return all;
}

const Dialect& dialect_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Dialect* d : dialects()) {
    if (d->name == name) return *d;
    names.push_back(d->name);
  }
  raise(ErrorKind::Value, "no text of kernels is called '{}': there are {}", name,
        fmt::join(names, ", "));
}

}  // namespace koine
