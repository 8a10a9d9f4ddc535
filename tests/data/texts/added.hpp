#include <koine/koine.hpp>
#include <koine/render/dialect.hpp>

namespace koine {

inline const Dialect added_dialect{
    .name = "c++",
    .includes = "#include <bit>\n#include <cmath>\n#include <cstdint>\n",
    .header = R"(inline float from_f32(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t to_f32(float v) { return std::bit_cast<uint32_t>(v); }
inline double from_f64(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t to_f64(double v) { return std::bit_cast<uint64_t>(v); }
)",
    .function = "inline",
    .kernel = "extern \"C\" void",
    .arguments = Arguments::Named,
    .syntax = {.loop = "for ({type} {name} = 0; {name} != {bound}; ++{name}) {{",
               .cast = "static_cast<{type}>({value})"},
    .types = {"int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t",
              "uint64_t", "float", "double"},
    .atomic_bytes = 0,
    .has_assembly = false,
    .long_suffix = "ll",
    .trunc = {"std::trunc", "std::trunc"},
    .sqrt = {"std::sqrt", "std::sqrt"},
    .fma = {"std::fma", "std::fma"},
};

}  // namespace koine
