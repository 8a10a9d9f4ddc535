#include "koine/lower/validity.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/validity.hpp"

namespace koine {
namespace {

class Resolver {
 public:
  UOp run(const UOp& program) {
    return rebuild_graph(program, [this](const UOp& u, std::vector<UOp>& values) {
      const UOp same = with_sources(u, values);
      invalid_.visit(u, same);
      return resolved(u, same);
    });
  }

 private:
  // What a node is when its sources are values: `same` is the node over these.
  UOp resolved(const UOp& u, const UOp& same) const {
    if (u.is(Op::Const)) return is_invalid(u) ? constant_int(u.dtype(), 0) : u;
    if (u.is(Op::Pad) && u.src().size() == 3)
      return pad(same.src(0), u.src(1), u.src(2), constant_int(u.dtype(), 0));
    if (u.is(Op::Sink)) return outputs(u, same);
    if (u.is(Op::After) || u.is(Op::Group) || u.is(Op::End)) return same;
    if (u.is(Op::Store)) return assignment(u, same);
    if (!is_whole(u)) return same;
    // Memory holds 0 for what is invalid, and a Reduce skips it.
    std::vector<UOp> src(same.src().begin(), same.src().end());
    for (size_t i = u.is(Op::Call) ? 1 : 0; i < src.size(); ++i)
      src[i] = instead(u.src(i), src[i],
                       u.is(Op::Reduce) ? identity_of(u.as<ReduceArg>().op, u.dtype()) : UOp());
    const UOp out = with_sources(same, src);
    return u.is(Op::Load) && src.size() == 3 ? instead(u.src(2), out, {}) : out;
  }

  UOp outputs(const UOp& u, const UOp& same) const {
    std::vector<UOp> effects(same.src().begin(), same.src().end());
    for (size_t i = 0; i < effects.size(); ++i)
      if (const UOp& effect = u.src(i); effect.is(Op::Store))
        effects[i] = store(effects[i].src(0), instead(effect.src(1), effects[i].src(1), {}));
    return sink(effects);
  }

  UOp assignment(const UOp& u, const UOp& same) const {
    UOp gate = same.src().size() == 3 ? instead(u.src(2), same.src(2), {}) : UOp();
    if (const UOp bad = invalid_.of(u.src(1)))
      gate = gate ? bit_and(gate, logical_not(bad)) : logical_not(bad);
    return gate ? store(same.src(0), same.src(1), gate) : same;
  }

  // A value with `other` (null: 0) for the elements that are invalid.
  UOp instead(const UOp& original, const UOp& value, const UOp& other) const {
    const UOp bad = invalid_.of(original);
    return bad ? where(bad, other ? other : constant_int(value.dtype(), 0), value) : value;
  }

  InvalidElements invalid_;
};

}  // namespace

UOp make_validity_explicit(const UOp& program) {
  const NodeList order = toposort(program);
  return std::any_of(order.begin(), order.end(), brings_invalid) ? Resolver().run(program)
                                                                 : program;
}

}  // namespace koine
