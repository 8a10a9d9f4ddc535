#include "koine/compat/uops.hpp"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/compat/alu.hpp"
#include "koine/ir/build.hpp"
#include "koine/rules/simplify.hpp"

namespace koine::compat {
namespace {

constexpr size_t any = SIZE_MAX;

constexpr std::array<Contract, uops_count> contracts{{
    {UOps::CONST, "CONST", Class::Movement, 0, 0, true,
     "declares a constant variable; there are two required parameters: dtype and arg"},
    {UOps::DEFINE_GLOBAL, "DEFINE_GLOBAL", Class::Movement, 0, 0, true,
     "arg is a three element tuple: the index of the parameter in the parameter list, the name of "
     "the parameter, whether the parameter is mutable; vin: omitted or an empty tuple"},
    {UOps::DEFINE_VAR, "DEFINE_VAR", Class::Movement, 0, 0, true,
     "arg: the name of an integer, its smallest and its largest value"},
    {UOps::DEFINE_ACC, "DEFINE_ACC", Class::Movement, 0, 0, true,
     "arg: the number that the accumulator starts from"},
    {UOps::SPECIAL, "SPECIAL", Class::Directive, 0, 0, true,
     "arg: incremental index among all the special uop, name of the index, upper limit "
     "(exclusive)"},
    {UOps::LOOP, "LOOP", Class::Directive, 2, 2, true,
     "vin: the start value of the loop, end value (each a CONST, or a symbolic index: integers, "
     "DEFINE_VARs and outer LOOPs)"},
    {UOps::ENDLOOP, "ENDLOOP", Class::Directive, 1, 1, false, "vin: the loop UOp"},
    {UOps::IF, "IF", Class::Directive, 1, 1, false, "vin: the condition, a bool"},
    {UOps::ENDIF, "ENDIF", Class::Directive, 1, 1, false, "vin: the IF"},
    {UOps::LOAD, "LOAD", Class::Movement, 2, 4, true,
     "vin: the input value (a DEFINE_GLOBAL), the offset; with a gate and what is read where it is "
     "false, or neither"},
    {UOps::STORE, "STORE", Class::Movement, 3, 4, false,
     "vin: the UOp for the output (a mutable DEFINE_GLOBAL), the index position in the output to "
     "store the value in, the value to store; maybe a gate"},
    {UOps::ALU, "ALU", Class::Alu, 1, 3, true, "vin: the operands; arg: the operation type"},
    {UOps::PHI, "PHI", Class::Movement, 2, any, true,
     "vin: the DEFINE_ACC, its new value, the loops around"},
    {UOps::CAST, "CAST", Class::Alu, 1, 1, true, "vin: the value; dtype: what it becomes"},
    {UOps::BITCAST, "BITCAST", Class::Alu, 1, 1, true,
     "vin: the value; dtype: another one of its size"},
}};

template <class... A>
[[noreturn]] void refuse(UOps uop, fmt::format_string<A...> format, A&&... args) {
  const Contract& contract = contract_of(uop);
  raise(ErrorKind::Value, "UOps.{}: {} ({}: {})", contract.name,
        fmt::format(format, std::forward<A>(args)...), contract.name, contract.meaning);
}

template <class T>
const T* arg_of(const Row& row) {
  return std::get_if<T>(&row.arg.value);
}

bool is_number(const Row& row) {
  return arg_of<int64_t>(row) != nullptr || arg_of<double>(row) != nullptr;
}

bool reads_back(RowRef row) { return row->uop == UOps::DEFINE_ACC || row->uop == UOps::PHI; }

// Each has the dtype, the sources and the arg that its rule asks for.
void check_sources(const Row& row) {
  const Contract& contract = contract_of(row.uop);
  const auto count = row.vin.size();
  if (count < contract.fewest || count > contract.most)
    refuse(row.uop, "takes {} sources in vin, got {}",
           contract.most == any ? fmt::format("{} or more", contract.fewest)
           : contract.fewest == contract.most
               ? fmt::format("{}", contract.most)
               : fmt::format("{} to {}", contract.fewest, contract.most),
           count);
  if (contract.has_dtype && (row.dtype == DType::Void || row.dtype == DType::Index))
    refuse(row.uop, "needs a dtype, such as int32");
  if (!contract.has_dtype && row.dtype != DType::Void)
    refuse(row.uop, "has no dtype, got {}", dtype_name(row.dtype));
}

void require_source(const Row& row, size_t i, bool holds, std::string_view what) {
  if (!holds)
    refuse(row.uop, "vin {} is to be {}, got {} of dtype {}", i, what,
           contract_of(row.vin[i]->uop).name, dtype_name(row.vin[i]->dtype));
}

void require_value(const Row& row, size_t i, DType dtype) {
  const RowRef v = row.vin[i];
  const bool is_value = v->uop != UOps::DEFINE_GLOBAL && v->dtype == dtype;
  require_source(row, i, is_value, fmt::format("a value of dtype {}", dtype_name(dtype)));
}

void require_integer(const Row& row, size_t i) {
  const RowRef v = row.vin[i];
  require_source(row, i, v->uop != UOps::DEFINE_GLOBAL && is_integer(v->dtype), "an integer");
}

// What a loop may end at: known before anything is loaded.
bool is_symbolic(RowRef row) {
  std::vector<RowRef> stack{row};
  absl::flat_hash_map<RowRef, bool> seen;
  while (!stack.empty()) {
    const RowRef r = stack.back();
    stack.pop_back();
    if (!is_integer(r->dtype)) return false;
    if (!seen.emplace(r, true).second) continue;
    switch (r->uop) {
      case UOps::CONST:
      case UOps::DEFINE_VAR:
      case UOps::LOOP:
      case UOps::SPECIAL:
        break;
      case UOps::ALU:
        if (!is_index_arithmetic(r->arg)) return false;
        stack.insert(stack.end(), r->vin.begin(), r->vin.end());
        break;
      default:
        return false;
    }
  }
  return true;
}

void check_alu(const Row& row) {
  const size_t operands = operand_count(row.arg);
  if (operands == 0) refuse(row.uop, "arg is missing: an operation such as BinaryOps.ADD");
  if (row.vin.size() != operands)
    refuse(row.uop, "{} takes {} operands in vin, got {}", operation_name(row.arg), operands,
           row.vin.size());
  const bool chooses = names(row.arg, TernaryOps::WHERE);
  if (chooses) require_value(row, 0, DType::Bool);
  const size_t first = chooses ? 1 : 0;
  require_source(row, first, row.vin[first]->uop != UOps::DEFINE_GLOBAL, "a value: LOAD it first");
  const DType dtype = row.vin[first]->dtype;
  for (size_t i = first; i < operands; ++i) require_value(row, i, dtype);
  const DType out = is_comparison(row.arg) ? DType::Bool : dtype;
  if (row.dtype != out)
    refuse(row.uop, "{} of {} gives {}, the row says {}", operation_name(row.arg),
           dtype_name(dtype), dtype_name(out), dtype_name(row.dtype));
}

void check_row(const Row& row) {
  check_sources(row);
  for (size_t i = 0; i < row.vin.size(); ++i) {
    const bool opener = row.uop == UOps::ENDLOOP || row.uop == UOps::ENDIF;
    require_source(row, i, opener || contract_of(row.vin[i]->uop).has_dtype,
                   "a value, and no effect");
  }
  switch (row.uop) {
    case UOps::CONST:
    case UOps::DEFINE_ACC:
      if (!is_number(row)) refuse(row.uop, "arg is missing: a number");
      if (const auto* v = arg_of<double>(row); v != nullptr && !is_float(row.dtype))
        refuse(row.uop, "arg {} is no {}", *v, dtype_name(row.dtype));
      if (const auto* v = arg_of<int64_t>(row); v != nullptr && !is_float(row.dtype)) {
        const IntegerRange range = integer_range(row.dtype);
        const bool unsigned64 = row.dtype == DType::UInt64;  // its bits
        if (!unsigned64 && (*v < range.low || *v > range.high))
          refuse(row.uop, "arg {} is beyond {}", *v, dtype_name(row.dtype));
      }
      return;
    case UOps::DEFINE_GLOBAL: {
      const auto* arg = arg_of<Global>(row);
      if (arg == nullptr) refuse(row.uop, "arg is missing, as in (0, \"data0\", True)");
      if (arg->index < 0) refuse(row.uop, "the index is {}, and begins at 0", arg->index);
      if (arg->size < 0) refuse(row.uop, "the size is {}", arg->size);
      return;
    }
    case UOps::DEFINE_VAR: {
      const auto* arg = arg_of<Bounded>(row);
      if (arg == nullptr) refuse(row.uop, "arg is missing, as in (\"n\", 1, 10)");
      if (!is_integer(row.dtype)) refuse(row.uop, "dtype {} is no integer", dtype_name(row.dtype));
      if (!is_variable_name(arg->name) || arg->low > arg->high)
        refuse(row.uop, "\"{}\" from {} to {} is no Variable", arg->name, arg->low, arg->high);
      return;
    }
    case UOps::SPECIAL: {
      const auto* arg = arg_of<Thread>(row);
      if (arg == nullptr) refuse(row.uop, "arg is missing, as in (0, \"gidx0\", 10)");
      if (arg->limit < 1) refuse(row.uop, "the upper limit is {}", arg->limit);
      if (!is_integer(row.dtype)) refuse(row.uop, "dtype {} is no integer", dtype_name(row.dtype));
      return;
    }
    case UOps::LOOP:
      if (!is_integer(row.dtype)) refuse(row.uop, "dtype {} is no integer", dtype_name(row.dtype));
      for (size_t i = 0; i < 2; ++i)
        require_source(row, i, is_symbolic(row.vin[i]), "a CONST or a symbolic index");
      return;
    case UOps::ENDLOOP:
      return require_source(row, 0, row.vin[0]->uop == UOps::LOOP, "the LOOP");
    case UOps::IF:
      return require_value(row, 0, DType::Bool);
    case UOps::ENDIF:
      return require_source(row, 0, row.vin[0]->uop == UOps::IF, "the IF");
    case UOps::LOAD:
      require_source(row, 0,
                     row.vin[0]->uop == UOps::DEFINE_GLOBAL && row.vin[0]->dtype == row.dtype,
                     fmt::format("a DEFINE_GLOBAL of dtype {}", dtype_name(row.dtype)));
      require_integer(row, 1);
      if (row.vin.size() == 3) refuse(row.uop, "a gate comes with what is read where it is false");
      if (row.vin.size() < 4) return;
      require_value(row, 2, DType::Bool);
      return require_value(row, 3, row.dtype);
    case UOps::STORE: {
      const auto* global = arg_of<Global>(*row.vin[0]);
      require_source(row, 0, global != nullptr, "a DEFINE_GLOBAL");
      if (!global->is_mutable) refuse(row.uop, "{} is not mutable", global->name);
      require_integer(row, 1);
      require_value(row, 2, row.vin[0]->dtype);
      if (row.vin.size() == 4) require_value(row, 3, DType::Bool);
      return;
    }
    case UOps::ALU:
      return check_alu(row);
    case UOps::PHI:
      require_source(row, 0, reads_back(row.vin[0]) && row.vin[0]->dtype == row.dtype,
                     fmt::format("a DEFINE_ACC of dtype {}", dtype_name(row.dtype)));
      require_value(row, 1, row.dtype);
      for (size_t i = 2; i < row.vin.size(); ++i)
        require_source(row, i, row.vin[i]->uop == UOps::LOOP, "a LOOP");
      return;
    case UOps::CAST:
    case UOps::BITCAST:
      require_source(row, 0, row.vin[0]->uop != UOps::DEFINE_GLOBAL, "a value: LOAD it first");
      if (row.uop == UOps::BITCAST && item_size(row.dtype) != item_size(row.vin[0]->dtype))
        refuse(row.uop, "{} and {} differ in size", dtype_name(row.vin[0]->dtype),
               dtype_name(row.dtype));
      return;
  }
}

// The accumulator behind PHIs.
RowRef accumulator_of(RowRef row) {
  while (row->uop == UOps::PHI) row = row->vin[0];
  return row;
}

bool is_cachable(UOps uop) {
  switch (uop) {
    case UOps::DEFINE_ACC:
    case UOps::LOOP:
    case UOps::ENDLOOP:
    case UOps::IF:
    case UOps::ENDIF:
    case UOps::STORE:
    case UOps::PHI:
      return false;
    default:
      return true;
  }
}

size_t hash_of(const Row& row) {
  uint64_t h = hash_mix(static_cast<uint64_t>(row.uop), static_cast<uint64_t>(row.dtype));
  for (const RowRef v : row.vin) h = hash_mix(h, reinterpret_cast<uintptr_t>(v));
  return static_cast<size_t>(hash_mix(h, row.arg.value.index()));
}

// Numbers by their bits: 0 and -0 are two constants.
bool same_arg(const Arg& a, const Arg& b) {
  const auto *x = std::get_if<double>(&a.value), *y = std::get_if<double>(&b.value);
  if (x != nullptr && y != nullptr)
    return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
  return a.value == b.value;
}

// What a row reads that others may write.
bool reads(const Row& row, RowRef memory) {
  if (row.uop == UOps::LOAD) return row.vin[0] == memory;
  return std::any_of(row.vin.begin(), row.vin.end(),
                     [&](RowRef v) { return reads_back(v) && accumulator_of(v) == memory; });
}

bool reads_what_may_change(const Row& row) {
  if (row.uop == UOps::LOAD) return std::get<Global>(row.vin[0]->arg.value).is_mutable;
  return std::any_of(row.vin.begin(), row.vin.end(), reads_back);
}

RowRef written_by(RowRef row) {
  if (row->uop == UOps::STORE) return row->vin[0];
  return row->uop == UOps::PHI ? accumulator_of(row) : nullptr;
}

std::string arg_text(const Row& row) {
  struct Visit {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(const Global& g) const {
      return fmt::format("({}, '{}', {}{})", g.index, g.name, g.is_mutable ? "True" : "False",
                         g.size > 0 ? fmt::format(", {}", g.size) : "");
    }
    std::string operator()(const Thread& t) const {
      return fmt::format("({}, '{}', {})", t.number, t.name, t.limit);
    }
    std::string operator()(const Bounded& b) const {
      return fmt::format("('{}', {}, {})", b.name, b.low, b.high);
    }
    std::string operator()(Operation op) const { return operation_name(op); }
  };
  return std::visit(Visit{}, row.arg.value);
}

std::string_view old_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::Int8:
      return "char";
    case DType::UInt8:
      return "uchar";
    case DType::Int16:
      return "short";
    case DType::UInt16:
      return "ushort";
    case DType::Int32:
      return "int";
    case DType::UInt32:
      return "uint";
    case DType::Int64:
      return "long";
    case DType::UInt64:
      return "ulong";
    case DType::Float16:
      return "half";
    case DType::Float32:
      return "float";
    case DType::Float64:
      return "double";
    default:
      return dtype_name(dtype);
  }
}

}  // namespace

Arg::Arg() = default;
Arg::Arg(const Arg&) = default;
Arg::Arg(Arg&&) noexcept = default;
Arg& Arg::operator=(const Arg&) = default;
Arg& Arg::operator=(Arg&&) noexcept = default;
Arg::~Arg() = default;

const Contract& contract_of(UOps uop) { return contracts[static_cast<size_t>(uop)]; }

std::string row_text(const UOpGraph& graph, RowRef row) {
  return fmt::format("row {} ({})", graph.index(row), contract_of(row->uop).name);
}

size_t UOpGraph::index(RowRef row) const {
  const auto it = position_.find(row);
  KOINE_REQUIRE(it != position_.end(), Value, "the row is none of this graph");
  return it->second;
}

RowRef UOpGraph::add(UOps uop, const Fields& fields) {
  for (size_t i = 0; i < fields.vin.size(); ++i)
    if (!position_.contains(fields.vin[i])) refuse(uop, "vin {} is no row of this graph", i);
  Row row{uop, fields.dtype, fields.vin, fields.arg};
  check_row(row);
  const size_t before = fields.insert_before.value_or(order_.size());
  if (before > order_.size())
    refuse(uop, "insert_before is {}, and there are {} rows", before, order_.size());
  for (size_t i = 0; i < row.vin.size(); ++i)
    if (index(row.vin[i]) >= before)
      refuse(uop, "vin {} is {}, which does not stand before {}", i, row_text(*this, row.vin[i]),
             before);
  if (fields.simplify && uop == UOps::ALU)
    if (const RowRef simpler = simplified(row, fields)) return simpler;
  if (fields.cachable && is_cachable(uop))
    if (const RowRef equal = equal_row(row, before)) return equal;
  storage_.push_back(std::move(row));
  const RowRef added = &storage_.back();
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(before), added);
  for (size_t i = before; i < order_.size(); ++i) position_[order_[i]] = i;
  by_hash_[hash_of(*added)].push_back(added);
  return added;
}

// Koine's rules on the row alone, its operands being constants and numbered placeholders.
RowRef UOpGraph::simplified(const Row& row, const Fields& fields) {
  std::vector<UOp> operands;
  std::vector<RowRef> distinct = row.vin;
  for (const RowRef v : row.vin) {
    const auto slot = std::find(distinct.begin(), distinct.end(), v) - distinct.begin();
    operands.push_back(v->uop == UOps::CONST ? constant_of(*v)
                                             : param(slot, shape_of({}), v->dtype));
  }
  const UOp simple = simplify(applied(row.arg, operands));
  for (size_t i = 0; i < operands.size(); ++i)
    // What is read back may have changed when somebody looks at the row.
    if (simple == operands[i] && !reads_back(row.vin[i])) return row.vin[i];
  if (!simple.is(Op::Const) || is_invalid(simple)) return nullptr;
  Fields folded{
      .dtype = row.dtype, .cachable = fields.cachable, .insert_before = fields.insert_before};
  folded.arg = is_float(row.dtype) ? Arg(const_double(simple)) : Arg(const_int(simple));
  return add(UOps::CONST, folded);
}

// An earlier row of the same value, seen from the place before which one is to stand.
RowRef UOpGraph::equal_row(const Row& row, size_t before) const {
  const auto bucket = by_hash_.find(hash_of(row));
  if (bucket == by_hash_.end()) return nullptr;
  for (const RowRef r : bucket->second) {
    if (r->uop != row.uop || r->dtype != row.dtype || r->vin != row.vin ||
        !same_arg(r->arg, row.arg))
      continue;
    const size_t at = index(r);
    if (at > before) continue;
    bool same = true;
    int depth = 0;  // of what begins behind it
    for (size_t i = at; i < before && same; ++i) {
      const UOps uop = order_[i]->uop;
      depth += uop == UOps::LOOP || uop == UOps::IF ? 1 : 0;
      depth -= uop == UOps::ENDLOOP || uop == UOps::ENDIF ? 1 : 0;
      const RowRef written = written_by(order_[i]);
      same = depth >= 0 && (written == nullptr || !reads(row, written));
    }
    // A loop may store, further down, what each of its steps reads.
    if (same && (depth == 0 || !reads_what_may_change(row))) return r;
  }
  return nullptr;
}

std::string UOpGraph::text() const {
  std::string out =
      "step  Op_name               type                      input                           arg\n";
  for (size_t i = 0; i < order_.size(); ++i) {
    const Row& r = *order_[i];
    std::vector<size_t> inputs;
    for (const RowRef v : r.vin) inputs.push_back(index(v));
    const std::string type =
        r.dtype == DType::Void
            ? ""
            : fmt::format("{}dtypes.{}", r.uop == UOps::DEFINE_GLOBAL ? "ptr." : "",
                          old_dtype_name(r.dtype));
    out += fmt::format("{:4} {:20}: {:25} {:32} {}\n", i,
                       fmt::format("UOps.{}", contract_of(r.uop).name), type,
                       fmt::format("{}", inputs), arg_text(r));
  }
  return out;
}

std::vector<std::vector<RowRef>> scopes_of(const UOpGraph& graph) {
  std::vector<std::vector<RowRef>> out;
  std::vector<RowRef> open;
  for (const RowRef r : graph.rows()) {
    out.push_back(open);
    if (r->uop == UOps::LOOP || r->uop == UOps::IF || r->uop == UOps::SPECIAL) open.push_back(r);
    if (r->uop != UOps::ENDLOOP && r->uop != UOps::ENDIF) continue;
    // Threads end where the kernel does: one that begins inside of a loop closes with it.
    while (!open.empty() && open.back()->uop == UOps::SPECIAL && open.back() != r->vin[0])
      refuse(UOps::SPECIAL, "{} stands inside of {}: put it before", row_text(graph, open.back()),
             row_text(graph, r->vin[0]));
    if (open.empty() || open.back() != r->vin[0])
      refuse(r->uop, "{} closes {}, and open is {}", row_text(graph, r), row_text(graph, r->vin[0]),
             open.empty() ? "none" : row_text(graph, open.back()));
    open.pop_back();
  }
  for (const RowRef r : open)
    if (r->uop != UOps::SPECIAL)
      refuse(r->uop == UOps::LOOP ? UOps::ENDLOOP : UOps::ENDIF, "{} is never closed",
             row_text(graph, r));
  out.push_back(open);
  return out;
}

}  // namespace koine::compat
