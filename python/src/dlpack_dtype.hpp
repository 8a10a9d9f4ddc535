#pragma once
#include <nanobind/ndarray.h>

#include <koine/ir/dtype.hpp>
#include <optional>

namespace koine::python {

namespace nb = nanobind;

/// How DLPack names a dtype.
inline nb::dlpack::dtype dlpack_dtype(DType d) {
  const DTypeInfo& info = dtype_info(d);
  constexpr uint8_t float8_e4m3fn = 10, float8_e5m2 = 12;  // of DLPack 1.1
  auto code = static_cast<uint8_t>(nb::dlpack::dtype_code::UInt);
  if (d == DType::BFloat16)
    code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat);
  else if (d == DType::Float8E4M3)
    code = float8_e4m3fn;
  else if (d == DType::Float8E5M2)
    code = float8_e5m2;
  else if (info.kind == DTypeKind::Float)
    code = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
  else if (info.kind == DTypeKind::Bool)
    code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bool);
  else if (info.kind == DTypeKind::Signed)
    code = static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
  return {code, static_cast<uint8_t>(info.bits), 1};
}

/// The dtype that DLPack names; nothing where there is none.
inline std::optional<DType> dtype_of(nb::dlpack::dtype d) {
  for (int k = 0; k < dtype_count; ++k) {
    const auto own = static_cast<DType>(k);
    if (own != DType::Void && own != DType::Index && dlpack_dtype(own) == d) return own;
  }
  return {};
}

}  // namespace koine::python
