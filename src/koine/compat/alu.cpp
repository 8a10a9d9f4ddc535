#include "koine/compat/alu.hpp"

#include <fmt/format.h>

#include <array>
#include <variant>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"

namespace koine::compat {
namespace {

struct Named {
  Operation old;
  std::string_view name;
  size_t operands;
};

// One row an operation.
const std::vector<Named>& table() {
  static const auto& rows = *new const std::vector<Named>{
      {UnaryOps::EXP2, "UnaryOps.EXP2", 1},      {UnaryOps::LOG2, "UnaryOps.LOG2", 1},
      {UnaryOps::SIN, "UnaryOps.SIN", 1},        {UnaryOps::SQRT, "UnaryOps.SQRT", 1},
      {UnaryOps::NEG, "UnaryOps.NEG", 1},        {UnaryOps::RECIP, "UnaryOps.RECIP", 1},
      {UnaryOps::TRUNC, "UnaryOps.TRUNC", 1},    {BinaryOps::ADD, "BinaryOps.ADD", 2},
      {BinaryOps::SUB, "BinaryOps.SUB", 2},      {BinaryOps::MUL, "BinaryOps.MUL", 2},
      {BinaryOps::DIV, "BinaryOps.DIV", 2},      {BinaryOps::MAX, "BinaryOps.MAX", 2},
      {BinaryOps::MOD, "BinaryOps.MOD", 2},      {BinaryOps::CMPLT, "BinaryOps.CMPLT", 2},
      {BinaryOps::CMPEQ, "BinaryOps.CMPEQ", 2},  {BinaryOps::CMPNE, "BinaryOps.CMPNE", 2},
      {BinaryOps::XOR, "BinaryOps.XOR", 2},      {BinaryOps::AND, "BinaryOps.AND", 2},
      {BinaryOps::OR, "BinaryOps.OR", 2},        {BinaryOps::SHL, "BinaryOps.SHL", 2},
      {BinaryOps::SHR, "BinaryOps.SHR", 2},      {TernaryOps::MULACC, "TernaryOps.MULACC", 3},
      {TernaryOps::WHERE, "TernaryOps.WHERE", 3}};
  return rows;
}

const Named* find(const Arg& arg) {
  const auto* operation = std::get_if<Operation>(&arg.value);
  if (operation == nullptr) return nullptr;
  for (const Named& o : table())
    if (o.old == *operation) return &o;
  return nullptr;
}

UOp value_of(UnaryOps op, std::span<const UOp> x) {
  switch (op) {
    case UnaryOps::EXP2:
      return unary(Op::Exp2, x[0]);
    case UnaryOps::LOG2:
      return unary(Op::Log2, x[0]);
    case UnaryOps::SIN:
      return unary(Op::Sin, x[0]);
    case UnaryOps::SQRT:
      return unary(Op::Sqrt, x[0]);
    case UnaryOps::NEG:
      return neg(x[0]);
    case UnaryOps::RECIP:
      return unary(Op::Recip, x[0]);
    case UnaryOps::TRUNC:
      return unary(Op::Trunc, x[0]);
  }
  internal_error("no operation");
}

UOp value_of(BinaryOps op, std::span<const UOp> x) {
  const UOp &a = x[0], &b = x[1];
  switch (op) {
    case BinaryOps::ADD:
      return add(a, b);
    case BinaryOps::SUB:
      return sub(a, b);
    case BinaryOps::MUL:
      return mul(a, b);
    case BinaryOps::DIV:
      return is_float(a.dtype()) ? fdiv(a, b) : idiv(a, b);
    case BinaryOps::MAX:
      return maximum(a, b);
    case BinaryOps::MOD:
      return mod(a, b);
    case BinaryOps::CMPLT:
      return lt(a, b);
    case BinaryOps::CMPEQ:
      return eq(a, b);
    case BinaryOps::CMPNE:
      return ne(a, b);
    case BinaryOps::XOR:
      return bit_xor(a, b);
    case BinaryOps::AND:
      return bit_and(a, b);
    case BinaryOps::OR:
      return bit_or(a, b);
    case BinaryOps::SHL:
      return binary(Op::Shl, a, b);
    case BinaryOps::SHR:
      return binary(Op::Shr, a, b);
  }
  internal_error("no operation");
}
UOp value_of(TernaryOps op, std::span<const UOp> x) {
  return op == TernaryOps::MULACC ? mulacc(x[0], x[1], x[2]) : where(x[0], x[1], x[2]);
}

}  // namespace

size_t operand_count(const Arg& arg) {
  const Named* o = find(arg);
  return o != nullptr ? o->operands : 0;
}

bool names(const Arg& arg, Operation operation) {
  const auto* own = std::get_if<Operation>(&arg.value);
  return own != nullptr && *own == operation;
}

std::string operation_name(const Arg& arg) {
  const Named* o = find(arg);
  return o != nullptr ? std::string(o->name) : "none";
}

bool is_comparison(const Arg& arg) {
  return names(arg, BinaryOps::CMPLT) || names(arg, BinaryOps::CMPEQ) ||
         names(arg, BinaryOps::CMPNE);
}

bool is_index_arithmetic(const Arg& arg) {
  for (const Operation op :
       {Operation(UnaryOps::NEG), Operation(BinaryOps::ADD), Operation(BinaryOps::SUB),
        Operation(BinaryOps::MUL), Operation(BinaryOps::DIV), Operation(BinaryOps::MOD),
        Operation(BinaryOps::MAX)})
    if (names(arg, op)) return true;
  return false;
}

UOp applied(const Arg& arg, std::span<const UOp> x) {
  return std::visit([&](auto operation) { return value_of(operation, x); },
                    std::get<Operation>(arg.value));
}

UOp constant_of(const Row& row) {
  if (const auto* v = std::get_if<int64_t>(&row.arg.value)) return constant_int(row.dtype, *v);
  return constant(row.dtype, std::get<double>(row.arg.value));
}

std::optional<Operation> operation_of(const UOp& node) {
  switch (node.op()) {
    case Op::Exp2:
    case Op::Log2:
    case Op::Sin:
      if (node.arg().index() != 0) return std::nullopt;  // of base e, and cosines
      return node.is(Op::Exp2)   ? UnaryOps::EXP2
             : node.is(Op::Log2) ? UnaryOps::LOG2
                                 : UnaryOps::SIN;
    case Op::Sqrt:
      return UnaryOps::SQRT;
    case Op::Recip:
      return UnaryOps::RECIP;
    case Op::Trunc:
      return UnaryOps::TRUNC;
    case Op::Add:
      return BinaryOps::ADD;
    case Op::Mul:
      return BinaryOps::MUL;
    case Op::Fdiv:
    case Op::Idiv:
      return BinaryOps::DIV;
    case Op::Max:
      return BinaryOps::MAX;
    case Op::Mod:
      return BinaryOps::MOD;
    case Op::CmpLt:
      return BinaryOps::CMPLT;
    case Op::CmpNe:
      return BinaryOps::CMPNE;
    case Op::Xor:
      return BinaryOps::XOR;
    case Op::And:
      return BinaryOps::AND;
    case Op::Or:
      return BinaryOps::OR;
    case Op::Shl:
      return BinaryOps::SHL;
    case Op::Shr:
      return BinaryOps::SHR;
    case Op::Mulacc:
      return TernaryOps::MULACC;
    case Op::Where:
      return TernaryOps::WHERE;
    default:
      return std::nullopt;
  }
}

}  // namespace koine::compat
