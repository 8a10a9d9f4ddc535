#include "koine/verify/demand.hpp"

#include <algorithm>

#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"

namespace koine {

Demands::Demands(std::initializer_list<std::vector<Demand>> parts) {
  for (const auto& part : parts)
    for (const Demand& d : part) {
      for (size_t op = 0; op < by_op_.size(); ++op)
        if (d.ops[op]) by_op_[op].push_back(static_cast<uint32_t>(all_.size()));
      all_.push_back(d);
    }
}

std::optional<Violation> Demands::check(const UOp& node, const Facts& facts) const {
  for (const uint32_t i : by_op_[static_cast<size_t>(node.op())])
    if (const int at = all_[i].broken(node, facts); at != fine)
      return Violation{node, at, all_[i].rule};
  return std::nullopt;
}

bool is_bounded_variable(const UOp& param) {
  if (!param.is(Op::Param)) return false;
  const BufferArg& p = param.as<BufferArg>();
  const auto src = param.src();
  if (!is_variable_name(p.name) || p.dtype != DType::Index || p.space != AddrSpace::Global ||
      !param.is_scalar() || src.size() < 3 ||
      !std::ranges::all_of(src.subspan(1), [](const UOp& u) { return u.is(Op::Const); }))
    return false;
  const int64_t low = const_int(src[1]), high = const_int(src[2]);
  const int64_t value = is_bound(param) ? const_int(src[3]) : low;
  return low <= value && value <= high;
}

OpSet all_ops() { return ~OpSet(); }

OpSet group_ops(std::initializer_list<GroupOp> groups) {
  OpSet set;
  for (int i = 0; i < op_count; ++i)
    for (const GroupOp g : groups)
      if (op_info(static_cast<Op>(i)).group == g) set.set(static_cast<size_t>(i));
  return set;
}

}  // namespace koine
