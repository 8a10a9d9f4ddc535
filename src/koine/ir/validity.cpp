#include "koine/ir/validity.hpp"

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {

bool goes_to_local(const UOp& u) {
  return u.is(Op::Load) && u.as<LoadArg>().space == AddrSpace::Local;
}

bool asks_for_buffer(const UOp& u) {
  if (u.is(Op::Contiguous)) {
    const UOp& of = u.src(0);
    return !(of.is(Op::Param) || of.is(Op::Buffer) || of.is(Op::After)) || u.tag() != 0;
  }
  return u.is(Op::Load) && !goes_to_local(u);
}

bool is_whole(const UOp& u) {
  return u.is(Op::Reduce) || u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::After) ||
         u.is(Op::Load) || u.dtype() == DType::Void || asks_for_buffer(u);
}

void PartlyInvalid::visit(const UOp& u) {
  if (is_whole(u)) return;
  bool partly = (u.is(Op::Pad) && u.src().size() == 3) || (u.is(Op::Const) && is_invalid(u));
  for (const UOp& s : u.src()) partly = partly || contains(s);
  if (partly) nodes_.insert(u.node());
}

bool may_be_invalid(const UOp& value) {
  PartlyInvalid found;
  for (const UOp& u : toposort(value)) found.visit(u);
  return found.contains(value);
}

}  // namespace koine
