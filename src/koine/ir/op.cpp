#include "koine/ir/op.hpp"

#include <array>

namespace koine {
namespace {

constexpr std::array<OpInfo, op_count> op_infos = {{
#define OP(name, group, low, high, dtype_rule, meaning) \
  {#name, GroupOp::group, low, high, DTypeRule::dtype_rule, meaning},
#include "koine/ir/ops.def"
#undef OP
}};

constexpr std::array<std::string_view, 11> group_names = {"Source",  "Movement", "Reduce", "Call",
                                                          "Memory",  "Order",    "Unary",  "Binary",
                                                          "Ternary", "Marker",   "Codegen"};

}  // namespace

const OpInfo& op_info(Op op) { return op_infos[static_cast<size_t>(op)]; }
std::string_view op_name(Op op) { return op_info(op).name; }
std::string_view group_name(GroupOp group) { return group_names[static_cast<size_t>(group)]; }

std::optional<Op> op_from_name(std::string_view name) {
  for (int i = 0; i < op_count; ++i)
    if (op_infos[static_cast<size_t>(i)].name == name) return static_cast<Op>(i);
  return std::nullopt;
}

bool is_elementwise(Op op) { return is_elementwise(op_info(op).group); }
bool is_movement(Op op) { return op_info(op).group == GroupOp::Movement; }

bool is_commutative(Op op) {
  return op == Op::Add || op == Op::Mul || op == Op::Max || op == Op::CmpNe || op == Op::Xor ||
         op == Op::Or || op == Op::And;
}

OpSet ops(std::initializer_list<Op> list) {
  OpSet set;
  for (const Op op : list) set.set(static_cast<size_t>(op));
  return set;
}

}  // namespace koine
