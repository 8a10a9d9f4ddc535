#include "koine/ir/linear.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"

namespace koine {

bool fits_32_bits(const UOp& value) {
  const Interval& b = value.bounds();
  return b.low >= INT32_MIN && b.high <= INT32_MAX;
}

const UOp& strip_after(const UOp& u) {
  const UOp* p = &u;
  while (p->is(Op::After)) p = &p->src(0);
  return *p;
}

bool is_address(const UOp& u) {
  if (!u.is(Op::Index)) return false;
  const UOp& base = strip_after(u.src(0));
  return base.is(Op::Buffer) || (base.is(Op::Param) && base.as<BufferArg>().name.empty());
}

const UOp& buffer_at(const UOp& address) {
  const UOp& at = strip_after(address);
  return at.is(Op::Index) ? strip_after(at.src(0)) : at;
}
const UOp& accessed_buffer(const UOp& access) { return buffer_at(access.src(0)); }

bool is_register(const UOp& buffer) {
  return buffer.is(Op::Buffer) && buffer.as<BufferArg>().space == AddrSpace::Reg;
}

bool is_memory(const UOp& u) {
  const UOp& base = strip_after(u);
  return base.is(Op::Param) || (base.is(Op::Buffer) && !is_register(base));
}

Contiguous contiguous_access(const UOp& address) {
  const UOp& index = address.src(1);
  if (index.is_scalar()) return {};
  auto counts_up = [](const UOp& u) {
    if (!u.is(Op::Stack)) return false;
    for (size_t i = 0; i < u.src().size(); ++i)
      if (!is_const(u.src(i), static_cast<int64_t>(i))) return false;
    return true;
  };
  if (counts_up(index)) return {true, {}};
  if (!index.is(Op::Add) || !counts_up(index.src(1)) || !index.src(0).is(Op::Expand)) return {};
  const UOp& one = index.src(0).src(0);
  if (one.is(Op::Reshape) && one.src(0).is_scalar()) return {true, one.src(0)};
  return {};
}

void for_each_operand(const UOp& u, const std::function<void(const UOp&)>& visit) {
  if (u.is(Op::Param) || u.is(Op::Buffer)) return;
  if (u.is(Op::Expand) || u.is(Op::Reshape) || u.is(Op::Shrink)) {
    visit(u.src(0));
    return;
  }
  if (is_address(u))
    if (const Contiguous c = contiguous_access(u); c.yes) {
      visit(u.src(0));
      if (c.base) visit(c.base);
      return;
    }
  for (const UOp& s : u.src()) visit(s);
}

std::pair<std::string, std::string> parts_of_instruction(const UOp& ins) {
  const std::string& text = ins.as<CodeArg>().text;
  const size_t bar = text.rfind('|');
  KOINE_REQUIRE(bar != text.npos && bar > 0 && bar + 1 < text.size(), Value,
                "Ins \"{}\": expected assembly | constraints, such as popcntq $1, $0|=r,r", text);
  return {text.substr(0, bar), text.substr(bar + 1)};
}

int64_t lane_count(const UOp& u) { return u.is_scalar() ? 1 : u.numel(); }

int index_bits(const UOp& value) {
  return lane_count(value) > 1 && !value.is(Op::Load) && fits_32_bits(value) ? 32 : 64;
}

int computing_bits(const UOp& op) {
  const bool divides = op.is(Op::Idiv) || op.is(Op::Mod);
  auto bits = [&](const UOp& u) {
    if (u.dtype() != DType::Index) return 32;
    return divides || u.is(Op::Const) ? (fits_32_bits(u) ? 32 : 64) : index_bits(u);
  };
  int most = bits(op);
  for (const UOp& s : op.src()) most = std::max(most, bits(s));
  return most;
}

std::string group_index_name(size_t axis) { return "gidx" + std::to_string(axis); }
std::string index_in_group_name(size_t axis) { return "lidx" + std::to_string(axis); }

Signature signature_of(const UOp& linear) {
  Signature out;
  auto special = [&](const std::string& name, const UOp& bound) {
    if (name == "thread") out.threads = const_int(bound);
    for (size_t axis = 0; axis < out.grid.size(); ++axis) {
      if (name == group_index_name(axis)) out.grid[axis] = bound;
      if (name == index_in_group_name(axis)) out.group[axis] = bound;
    }
  };
  for (const UOp& u : linear.src()) {
    if (u.is(Op::Special)) special(u.as<std::string>(), u.src(0));
    if (!u.is(Op::Param)) continue;
    const BufferArg& p = u.as<BufferArg>();
    if (p.name.empty())
      out.slots.push_back(p.slot);
    else
      out.variables.push_back(p.name);
  }
  std::sort(out.slots.begin(), out.slots.end());
  if (!out.slots.empty()) out.buffers = out.slots.back() + 1;
  std::sort(out.variables.begin(), out.variables.end());
  out.variables.erase(std::unique(out.variables.begin(), out.variables.end()), out.variables.end());
  return out;
}

}  // namespace koine
