#pragma once
#include <concepts>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

// Kernels written down by hand with the names of the specification's guide to UOps: a list of rows
// in the order in which they run. `kernel` makes a graph of them as Expand leaves one, which every
// later stage takes: a LOOP is a Range, an accumulator a register.
namespace koine::compat {

enum class UOps : uint8_t {
  CONST,
  DEFINE_GLOBAL,
  DEFINE_VAR,
  DEFINE_ACC,
  SPECIAL,
  LOOP,
  ENDLOOP,
  IF,
  ENDIF,
  LOAD,
  STORE,
  ALU,
  PHI,
  CAST,
  BITCAST
};
inline constexpr int uops_count = 15;
enum class UnaryOps : uint8_t { EXP2, LOG2, SIN, SQRT, NEG, RECIP, TRUNC };
/// DIV and MOD of integers round down, as everywhere in Koine.
enum class BinaryOps : uint8_t {
  ADD,
  SUB,
  MUL,
  DIV,
  MAX,
  MOD,
  CMPLT,
  CMPEQ,
  CMPNE,
  XOR,
  AND,
  OR,
  SHL,
  SHR
};
enum class TernaryOps : uint8_t { MULACC, WHERE };
using Operation = std::variant<UnaryOps, BinaryOps, TernaryOps>;

/// The guide's three classes. Its Movement shares data; that of `koine::GroupOp` changes which
/// element is read.
enum class Class : uint8_t { Alu, Movement, Directive };

/// What `add` asks of a row.
struct Contract {
  UOps uop;
  std::string_view name;
  Class group;
  size_t fewest, most;  ///< sources
  bool has_dtype;
  std::string_view meaning;  ///< in the words of the guide
};
const Contract& contract_of(UOps uop);

/// DEFINE_GLOBAL: index in the list of parameters, name, whether it is mutable. `size`: elements;
/// 0: as many as the places that are accessed ask for.
struct Global {
  int64_t index;
  std::string name;
  bool is_mutable;
  int64_t size = 0;
  bool operator==(const Global&) const = default;
};
/// SPECIAL: number, name and upper limit (exclusive).
struct Thread {
  int64_t number;
  std::string name;
  int64_t limit;
  bool operator==(const Thread&) const = default;
};
/// DEFINE_VAR: name, smallest and largest value.
struct Bounded {
  std::string name;
  int64_t low, high;
  bool operator==(const Bounded&) const = default;
};

/// The arg of a row: a number, an operation, or one of the tuples above: `{0, "data0", true}`.
class Arg {
 public:
  using Value = std::variant<std::monostate, int64_t, double, Operation, Global, Thread, Bounded>;
  Arg();
  Arg(const Arg& other);  // out of line: inlined, GCC 12 takes the strings for uninitialized
  Arg(Arg&& other) noexcept;
  Arg& operator=(const Arg& other);
  Arg& operator=(Arg&& other) noexcept;
  ~Arg();
  template <std::integral T>
  Arg(T number) : value(static_cast<int64_t>(number)) {}  // NOLINT(google-explicit-constructor)
  Arg(double number) : value(number) {}                   // NOLINT(google-explicit-constructor)
  template <class O>
    requires(std::same_as<O, UnaryOps> || std::same_as<O, BinaryOps> ||
             std::same_as<O, TernaryOps> || std::same_as<O, Operation>)
  Arg(O operation) : value(Operation(operation)) {}  // NOLINT(google-explicit-constructor)
  template <std::same_as<bool> B>
  Arg(int64_t index, std::string name, B is_mutable, int64_t size = 0)
      : value(Global{index, std::move(name), is_mutable, size}) {}
  Arg(int64_t number, std::string name, int64_t limit)
      : value(Thread{number, std::move(name), limit}) {}
  Arg(std::string name, int64_t low, int64_t high) : value(Bounded{std::move(name), low, high}) {}

  Value value;
};

struct Row;
/// A row of a graph, which keeps it.
using RowRef = const Row*;
struct Row {
  UOps uop;
  DType dtype;  ///< Void: none; of a DEFINE_GLOBAL that of its elements
  std::vector<RowRef> vin;
  Arg arg;
};

/// What `add` takes beyond the op.
struct Fields {
  DType dtype = DType::Void;
  std::vector<RowRef> vin = {};
  Arg arg = {};
  bool cachable = true;                      ///< an equal row serves instead
  std::optional<size_t> insert_before = {};  ///< none: at the end
  bool simplify = true;                      ///< constants fold, and what an operand is already
};

/// The rows of one kernel. Rows stay valid as long as their graph.
class UOpGraph {
 public:
  UOpGraph() = default;
  UOpGraph(UOpGraph&&) = default;
  UOpGraph& operator=(UOpGraph&&) = default;

  /// The new row, or an earlier one of the same value. A DEFINE_ACC, a LOOP and what has an effect
  /// are new at each call; so is what reads memory that was stored into since. Throws Error quoting
  /// the guide where sources, dtype or arg are not what the op takes.
  RowRef add(UOps uop, const Fields& fields = {});
  std::span<const RowRef> rows() const { return order_; }
  size_t index(RowRef row) const;
  /// The listing: step, op, type, inputs and arg.
  std::string text() const;

 private:
  RowRef simplified(const Row& row, const Fields& fields);
  RowRef equal_row(const Row& row, size_t before) const;

  std::deque<Row> storage_;
  std::vector<RowRef> order_;
  std::unordered_map<RowRef, size_t> position_;
  std::unordered_map<size_t, std::vector<RowRef>> by_hash_;
};

/// The loops, threads and conditions that are open before each row, and behind the last; an entry a
/// row and one. Throws Error where they do not nest.
std::vector<std::vector<RowRef>> scopes_of(const UOpGraph& graph);
/// "row 3 (LOOP)", for messages.
std::string row_text(const UOpGraph& graph, RowRef row);

/// The kernel, as Expand leaves one. On a machine with groups of threads a SPECIAL whose name
/// begins with l is the number of a thread in its group, any other that of a group; elsewhere its
/// threads are the steps of a loop. Throws Error where rows are used out of their scope, where
/// threads would race for one place, or where the size of a parameter is not known.
UOp kernel(const UOpGraph& graph, const Groups& groups = {});
/// The same lowered for a target.
LoweredKernel lower(const UOpGraph& graph, const std::string& name, const Target& target);
/// The source text: "C", "OpenCL", "CUDA", "HIP", "Metal" or "WGSL". In languages with groups of
/// threads a SPECIAL is the language's own index.
std::string uops_to_cstyle(std::string_view language, const std::string& name,
                           const UOpGraph& graph);
/// A program that runs it on a device.
std::shared_ptr<Program> compile(const UOpGraph& graph, const std::string& name,
                                 const std::string& device = "CPU");

/// A kernel of a schedule as it is before all optimisation: its loops; on a machine with groups of
/// threads those of known sizes that are none of a sum are its grid.
LoweredKernel lower_plainly(const UOp& ast, const Target& target,
                            CompileOptions how = compile_options());
/// The rows of a linear program of scalars, such as KOINE_NOOPT=1 gives one. Throws Error for what
/// has no old name.
UOpGraph listing(const UOp& linear);
/// The text of a linear program: as it is, or with the old names.
enum class Style : uint8_t { Plain, Legacy };
std::string print_linear(const UOp& linear, Style style = Style::Plain);

}  // namespace koine::compat
