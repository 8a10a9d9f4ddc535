#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "koine/ir/dtype.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// How arguments reach a kernel.
enum class Arguments : uint8_t {
  Arrays,      ///< `void** buffers, const int64_t* variables, int64_t thread`
  Named,       ///< one parameter a buffer and Variable, in slot order, then by name
  Attributed,  ///< the same with `[[buffer(n)]]`, Variables by reference, indices at the end
  Declared,    ///< none: what a kernel names is declared in front of it, as `kernel_data0`
};

/// How a language writes what a kernel consists of, with {names} for the parts. Those of C.
struct Syntax {
  std::string_view value = "{type} {name} = {value};";
  std::string_view constant = "const {type} {name} = {value};";
  std::string_view variable = "{type} {name};";
  std::string_view array = "{type} {name}[{count}]{alignment};";
  std::string_view list = "const {type} {name}[{count}]{alignment} = {{{value}}};";
  std::string_view loop = "for ({type} {name} = 0; {name} < {bound}; ++{name}) {{";
  std::string_view each_lane = "for (int l = 0; l < {count}; ++l) {statement}";
  std::string_view guarded = "if ({condition}) {statement}";
  std::string_view choice = "{condition} ? {yes} : {no}";
  std::string_view cast = "({type}){value}";
  std::string_view differs = "{left} != {right}";  ///< true where one is NaN
  /// The nearest integer, where compilers take x + 1.5 * 2^23 - 1.5 * 2^23 for x; empty: they do
  /// not.
  std::string_view rounded;
  bool chooses_lazily = true;  ///< what a choice does not take is not read
};

/// A language like C: what the texts of its kernels differ in from those of others. Data, one file
/// a language in `render/dialects`, one line in the list of `dialect.cpp`.
struct Dialect {
  std::string_view name;
  std::string_view includes;  ///< and pragmas, in front of a file
  std::string_view header;    ///< behind them: bit casts and atomics (see below)
  std::string_view function;  ///< in front of a helper function
  std::string_view kernel;    ///< in front of a kernel's name
  /// Behind `kernel`: groups have {threads}, and {groups} of them share a processor, so that the
  /// compiler gives each thread no more registers than that leaves.
  std::string_view bounds = {};
  std::string_view global, local;  ///< qualifiers of pointers to memory, and of LOCAL arrays
  Arguments arguments = Arguments::Named;
  Syntax syntax = {};
  std::array<std::string_view, 10> types;  ///< int8 to int64, uint8 to uint64, floats; empty: none
  /// Of bools that are no numbers, and not in memory; empty: they are uint8.
  std::string_view bool_type;
  bool has_int64 = true;       ///< else places are counted in 32 bits
  bool integers_wrap = false;  ///< also signed ones, and none is promoted
  bool has_macros = true;      ///< else the header has all helper functions
  int64_t atomic_bytes = 8;    ///< of the widest number that an AtomicAdd adds; 0: there is none
  bool has_assembly = true;
  std::string_view long_suffix;   ///< of a 64-bit literal
  std::string_view double_macro;  ///< defined where there are doubles; empty: always
  std::string_view thread;        ///< the number of a thread of a kernel without groups
  std::string_view barrier;       ///< empty: no groups of threads
  /// A loop with a Barrier begins with one. PoCL 3.1 cuts kernels at barriers, and ends the process
  /// where the head of such a loop became one with that of a loop of lanes, which LLVM does where
  /// nothing else is in it.
  bool loops_begin_with_barriers = false;
  Groups groups = {.most_threads = 1024};  ///< that kernels are shaped for
  std::array<std::string_view, 3> group_index, index_in_group;
  /// There are types such as float16, of 2, 4, 8 and 16 lanes, with vload16 and vstore16: sums,
  /// products and maxima of floats are statements on them. Lanes are elements of arrays all the
  /// same.
  bool vectors = false;
  /// The header has `load_N(to, from)` and `store_N(to, from)` for N = 4, 8 and 16 neighbouring
  /// bytes of memory at multiples of N; what kernels are given begins at multiples of 16.
  bool wide = false;
  /// What the helpers of the prelude are called for float32 and float64: `trunc`, `sqrt`, `fma`.
  std::array<std::string_view, 2> trunc, sqrt, fma;
  /// The header's function of unsigned 32 and 64-bit integers that is 0 - v, where compilers must
  /// not see that it is; empty: they may.
  std::string_view negated = {};
  /// `x < 0.0` is written `x < -0.0`, where compilers take `x < 0.0 ? x : 0.0` for min(x, 0.0),
  /// which is -0.0 of -0.0.
  bool below_negative_zero = false;
  /// Tensor cores that the header has, as functions of their names: `sum = c + A * B` of what a
  /// thread holds, by `core(sum, a, b, c)`.
  std::vector<std::string_view> cores = {};
};

bool has_core(const Dialect& dialect, std::string_view core);

/// What values of a dtype are stored as; empty where the language has no such type.
std::string_view type_name(const Dialect& dialect, DType dtype);
/// As names of helpers have it: i32, f64.
std::string_view short_name(const Dialect& dialect, DType dtype);

/// What stands in front of the kernels of a file: includes and helper functions.
std::string prelude_of(const Dialect& dialect);

/// All dialects, and one by name; throws Error (Value) that lists them.
const std::vector<const Dialect*>& dialects();
const Dialect& dialect_named(std::string_view name);

// The languages. A header of one defines
//   to_f32, to_f64, from_f32, from_f64: the bits of a float and back;
//   atomic_add_T for T in i32, u32, i64, u64, f32, f64: `*place += value` at once.
extern const Dialect c_dialect, opencl_dialect, cuda_dialect, hip_dialect, metal_dialect,
    wgsl_dialect;

}  // namespace koine
