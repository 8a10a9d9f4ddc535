#pragma once
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace koine {

enum class Op : uint8_t {
#define OP(name, group, low, high, dtype_rule, meaning) name,
#include "koine/ir/ops.def"
#undef OP
};

inline constexpr int op_count = 0
#define OP(name, group, low, high, dtype_rule, meaning) +1  // NOLINT(bugprone-macro-parentheses)
#include "koine/ir/ops.def"
#undef OP
    ;

enum class GroupOp : uint8_t {
  Source,
  Movement,
  Reduce,
  Call,
  Memory,
  Order,
  Unary,
  Binary,
  Ternary,
  Marker,
  Codegen
};

enum class DTypeRule : uint8_t { Arg, Src0, Src1, Src2, Bool, Index, Void, UInt8 };

struct OpInfo {
  std::string_view name;
  GroupOp group;
  int fewest;
  int most;  ///< -1: any number
  DTypeRule dtype_rule;
  std::string_view meaning;
};

const OpInfo& op_info(Op op);
std::string_view op_name(Op op);
std::string_view group_name(GroupOp group);
std::optional<Op> op_from_name(std::string_view name);

constexpr bool is_elementwise(GroupOp group) {
  return group == GroupOp::Unary || group == GroupOp::Binary || group == GroupOp::Ternary;
}
/// Applied per element on values of one (broadcast) shape.
bool is_elementwise(Op op);
/// Changes only which element is read. Index, Stack and Bitcast included, as in the spec.
bool is_movement(Op op);
bool is_commutative(Op op);

using OpSet = std::bitset<static_cast<size_t>(op_count)>;
OpSet ops(std::initializer_list<Op> list);

/// A set of ops, folded to 64 bits: a clear bit proves that an op is absent, a set one is a hint.
using OpMask = uint64_t;
constexpr OpMask mask_of(Op op) { return OpMask{1} << (static_cast<unsigned>(op) % 64); }

}  // namespace koine
