// What each rule of scalar algebra makes of an expression, and where it must hold back. That rules
// keep values is the matter of the random tests; here they are seen to fire.
#include <limits>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/rules/simplify.hpp"
#include "rule_table.hpp"

namespace koine::test {
namespace {

UOp integer(int64_t value, DType dtype = DType::Int32) { return constant_int(dtype, value); }
UOp real(double value, DType dtype = DType::Float32) { return constant(dtype, value); }

struct Tables {
  const UOp i = leaf({}, DType::Int32, 1), j = leaf({}, DType::Int32, 2);
  const UOp f = leaf({}, DType::Float32, 3), g = leaf({}, DType::Float32, 4);
  const UOp p = leaf({}, DType::Bool, 5), q = leaf({}, DType::Bool, 6);
  const UOp u = leaf({}, DType::UInt64, 7), b = leaf({}, DType::UInt8, 8);
  const UOp row = leaf({3}, DType::Int32, 9), mask = leaf({3}, DType::Bool, 10);
  const UOp n = variable("n", 0, 9), m = variable("m", 0, 9), wide = variable("w", 0, 300),
            bytes = variable("bytes", 0, 255), k = variable("k", -5, 5);
  const UOp yes = constant_bool(true), no = constant_bool(false), one = index_const(1);
  const UOp memory = param(0, shape_of({9}), DType::Float32),
            at = cast(load(index(param(1, shape_of({9}), DType::Int32), {n})), DType::Index);
  UOp element(const UOp& place, const UOp& gate) const {
    return load(index(memory, {place}), real(0), gate);
  }

  std::vector<RuleRow> algebra() const {
    return {
        {"const-right", add(integer(3), i), add(i, integer(3))},
        {"const-right", bit_xor(integer(3), i), bit_xor(i, integer(3))},
        {"const-right", maximum(integer(3), i), maximum(i, integer(3))},
        {"const-right", add(real(3), f), add(f, real(3))},
        {nullptr, maximum(real(0), f), {}},
        {nullptr, lt(integer(3), i), {}},
        {"x+0", add(i, integer(0)), i},
        {"x+0", add(f, real(-0.0)), f},
        {nullptr, add(f, real(0.0)), {}},
        {nullptr, add(i, integer(1)), {}},
        {"(x+c1)+c2", add(add(i, integer(3)), integer(4)), add(i, integer(7))},
        {nullptr, add(add(f, real(3)), real(4)), {}},
        {"(x+c1)+y", add(add(i, integer(3)), j), add(add(i, j), integer(3))},
        {"(x+c1)+y", add(j, add(i, integer(3))), add(add(i, j), integer(3))},
        {nullptr, add(add(f, real(3)), g), {}},
        {"x+(-x)", add(i, mul(i, integer(-1))), integer(0)},
        {nullptr, add(f, mul(f, real(-1))), {}},
        {nullptr, add(i, mul(j, integer(-1))), {}},
        {nullptr, add(row, mul(row, integer(-1))), {}},
        {"x*1", mul(i, integer(1)), i},
        {"x*1", mul(f, real(1)), f},
        {"x*0", mul(i, integer(0)), integer(0)},
        {nullptr, mul(f, real(0)), {}},
        {nullptr, mul(row, integer(0)), {}},
        {"(x*-1)*-1", mul(mul(f, real(-1)), real(-1)), f},
        {"(x*c1)*c2", mul(mul(i, integer(3)), integer(4)), mul(i, integer(12))},
        {nullptr, mul(mul(f, real(3)), real(4)), {}},
        {"int x*mask", mul(i, cast(p, DType::Int32)), where(p, i, integer(0))},
        {nullptr, mul(f, cast(p, DType::Float32)), {}},
        {nullptr, mul(i, cast(f, DType::Int32)), {}},
        {nullptr, mul(row, cast(mask, DType::Int32)), {}},
        {"x//-1", idiv(i, integer(-1)), mul(i, integer(-1))},
        {nullptr, idiv(u, integer(-1, DType::UInt64)), {}},
        {"x/1", UOp::make(Op::Fdiv, {f, real(1)}), f},
        {nullptr, UOp::make(Op::Fdiv, {real(1), f}), {}},
        {"max(x,x)", maximum(f, f), f},
        {nullptr, maximum(f, g), {}},
        {"x&x", bit_and(i, i), i},
        {"x&x", bit_or(i, i), i},
        {nullptr, bit_and(i, j), {}},
        {"x^0 x|0", bit_xor(i, integer(0)), i},
        {"x^0 x|0", bit_or(p, no), p},
        {"x&0", bit_and(i, integer(0)), integer(0)},
        {nullptr, bit_and(row, integer(0)), {}},
        {"x&true", bit_and(p, yes), p},
        {nullptr, bit_and(i, integer(1)), {}},
        {"x|true", bit_or(p, yes), yes},
        {nullptr, bit_or(i, integer(1)), {}},
        {nullptr, bit_or(mask, yes), {}},
        {"(x&y)&y", bit_and(bit_and(p, q), q), bit_and(p, q)},
        {"(x&y)&x", bit_and(p, bit_and(p, q)), bit_and(p, q)},
        {"x^x", bit_xor(i, i), integer(0)},
        {nullptr, bit_xor(row, row), {}},
        {"shift 0", UOp::make(Op::Shl, {i, integer(0)}), i},
        {"shift 0", UOp::make(Op::Shr, {i, integer(0)}), i},
        {nullptr, UOp::make(Op::Shr, {i, integer(1)}), {}},
        {nullptr, UOp::make(Op::Shr, {i, integer(31)}), {}},
        {"-1>>x", binary(Op::Shr, integer(-1), i), integer(-1)},
        {nullptr, binary(Op::Shr, integer(255, DType::UInt8), b), {}},
        {"shift all out", UOp::make(Op::Shl, {i, integer(32)}), integer(0)},
        {"shift all out", UOp::make(Op::Shl, {i, integer(-1)}), integer(0)},
        {"shift all out", UOp::make(Op::Shr, {i, integer(-1)}),
         UOp::make(Op::Shr, {i, integer(31)})},
        {"shift all out", UOp::make(Op::Shr, {b, integer(8, DType::UInt8)}),
         integer(0, DType::UInt8)},
        {nullptr, UOp::make(Op::Shr, {b, integer(7, DType::UInt8)}), {}},
        {nullptr, UOp::make(Op::Shl, {row, integer(40)}), {}},
        {"x!=x", ne(i, i), no},
        {nullptr, ne(f, f), {}},
        {nullptr, ne(row, row), {}},
        {"x<x", lt(f, f), no},
        {nullptr, lt(row, row), {}},
        {"not not x", ne(ne(p, yes), yes), p},
        {nullptr, ne(ne(i, integer(1)), yes), {}},
        {"bool x != false", ne(p, no), p},
        {nullptr, ne(i, integer(0)), {}},
        {"cast(bool) != 0", ne(cast(p, DType::Float32), real(0)), p},
        {nullptr, ne(cast(b, DType::Float32), real(0)), {}},
        {"cast(bool) != 1", ne(cast(p, DType::Int32), integer(1)), logical_not(p)},
        {nullptr, ne(cast(b, DType::Float32), real(1)), {}},
        {"where(c,x,x)", where(p, f, f), f},
        {nullptr, where(mask, i, i), {}},
        {"where(const)", where(yes, f, g), f},
        {"where(const)", where(no, f, g), g},
        {nullptr, where(yes, i, row), {}},
        {"where(not c)", where(logical_not(p), f, g), where(p, g, f)},
        {nullptr, where(ne(i, integer(1)), f, g), {}},
        {"where(c, where(c,x,_), y)", where(p, where(p, f, real(1)), g), where(p, f, g)},
        {"where(c, where(c,x,_), y)", where(p, where(p, f, integer(1, DType::Float32)), g),
         where(p, f, g)},
        {"where(c, x, where(c,_,y))", where(p, f, where(p, real(1), g)), where(p, f, g)},
        {"where(a, where(b,x,y), y)", where(p, where(q, f, g), g), where(bit_and(p, q), f, g)},
        {nullptr, where(p, where(q, g, f), g), {}},
        {"where(c,true,false)", where(p, yes, no), p},
        {nullptr, where(p, integer(1), integer(0)), {}},
        {"where(c,false,true)", where(p, no, yes), logical_not(p)},
        {"where(c,f(x),f(y))", where(p, add(f, real(1)), add(g, real(1))),
         add(where(p, f, g), real(1))},
        {"where(c,f(x),f(y))", where(p, unary(Op::Sqrt, f), unary(Op::Sqrt, g)),
         unary(Op::Sqrt, where(p, f, g))},
        {nullptr, where(p, add(f, real(1)), add(g, real(2))), {}},
        {nullptr, where(p, mul(f, real(3)), mul(g, real(3))), {}},  // products are rounded
        {"where(c,load,load)", where(p, element(at, p), element(add(at, one), logical_not(p))),
         load(index(memory, {where(p, at, add(at, one))}))},
        {nullptr, where(p, element(index_const(1), p), element(one, logical_not(p))), {}},
        {nullptr, where(p, element(at, q), element(add(at, one), logical_not(p))), {}},
        {"cast to itself", UOp::make(Op::Cast, {i}, DType::Int32), i},
        {"cast(cast(x))", cast(cast(b, DType::Int32), DType::Float32), cast(b, DType::Float32)},
        {"cast(cast(x))", cast(cast(p, DType::Float16), DType::Int64), cast(p, DType::Int64)},
        {"cast(cast(x))", cast(cast(u, DType::Int32), DType::Int8), cast(u, DType::Int8)},
        {"cast(cast(x))", cast(cast(b, DType::Float32), DType::Int64), cast(b, DType::Int64)},
        {nullptr, cast(cast(i, DType::Float32), DType::Float64), {}},
        {nullptr, cast(cast(i, DType::Float64), DType::Int8), {}},
        {nullptr, cast(cast(b, DType::Bool), DType::Int32), {}},
        {nullptr, cast(cast(f, DType::Int32), DType::Int8), {}},
        {nullptr, cast(cast(f, DType::Float16), DType::Float32), {}},
        {nullptr, cast(cast(u, DType::Int32), DType::Int64), {}},
        {"trunc(int)", UOp::make(Op::Trunc, {i}), i},
        {nullptr, UOp::make(Op::Trunc, {f}), {}},
        {"bitcast(bitcast(x))", bitcast(bitcast(f, DType::UInt32), DType::Int32),
         bitcast(f, DType::Int32)},
        {"cast(index)+c", add(cast(n, DType::UInt8), integer(5, DType::UInt8)),
         cast(add(n, index_const(5)), DType::UInt8)},
        {"cast(index)+c", mul(cast(n, DType::UInt8), integer(28, DType::UInt8)),
         cast(mul(n, index_const(28)), DType::UInt8)},
        {nullptr, add(cast(n, DType::UInt8), integer(247, DType::UInt8)), {}},
        {nullptr, add(cast(n, DType::Int8), integer(119, DType::Int8)), {}},
        {nullptr, add(cast(k, DType::Int8), integer(-124, DType::Int8)), {}},
        {nullptr, add(cast(k, DType::UInt8), integer(5, DType::UInt8)), {}},
        {nullptr, add(cast(wide, DType::UInt8), integer(0x10, DType::UInt8)), {}},
        {nullptr, add(cast(n, DType::UInt64), integer(5, DType::UInt64)), {}},
        {nullptr, add(cast(n, DType::Float32), real(5)), {}},
        {nullptr, add(cast(b, DType::Int32), integer(5)), {}},
        {"cast(index)*cast(index)", mul(cast(n, DType::Int8), cast(m, DType::Int8)),
         cast(mul(n, m), DType::Int8)},
        {"cast(index)*cast(index)", add(cast(n, DType::Int8), cast(m, DType::Int8)),
         cast(add(n, m), DType::Int8)},
        {nullptr, mul(cast(wide, DType::Int16), cast(wide, DType::Int16)), {}},
        {nullptr, add(cast(wide, DType::UInt8), cast(n, DType::UInt8)), {}},
        {nullptr, mul(cast(n, DType::UInt64), cast(m, DType::UInt64)), {}},
        {nullptr, mul(cast(n, DType::Int32), cast(b, DType::Int32)), {}},
        {"cast(index) < y", lt(cast(n, DType::Int32), i), lt(n, cast(i, DType::Index))},
        {"cast(index) < y", ne(cast(n, DType::Int32), i), ne(n, cast(i, DType::Index))},
        {nullptr, lt(cast(wide, DType::UInt8), b), {}},
        {nullptr, lt(cast(n, DType::UInt64), u), {}},
        {nullptr, lt(cast(n, DType::Float32), f), {}},
        {"y < cast(index)", lt(i, cast(n, DType::Int32)), lt(cast(i, DType::Index), n)},
        {"y < cast(index)", ne(i, cast(n, DType::Int32)), ne(cast(i, DType::Index), n)},
        {nullptr, lt(b, cast(wide, DType::UInt8)), {}},
        {nullptr, lt(u, cast(n, DType::UInt64)), {}},
        {"cast(cast(index))", cast(cast(n, DType::Int8), DType::Index), n},
        {"cast(cast(index))", cast(cast(n, DType::Int8), DType::Float32), cast(n, DType::Float32)},
        {nullptr, cast(cast(wide, DType::UInt8), DType::Index), {}},
        {"cast(cast(index))", cast(cast(bytes, DType::UInt8), DType::Index), bytes},
        {nullptr, cast(cast(add(bytes, index_const(1)), DType::UInt8), DType::Index), {}},
        {nullptr, cast(cast(add(bytes, index_const(-1)), DType::UInt8), DType::Index), {}},
        {"cast(cast(index))", cast(cast(add(bytes, index_const(-128)), DType::Int8), DType::Index),
         add(bytes, index_const(-128))},
        {nullptr, cast(cast(n, DType::Bool), DType::Int32), {}},
    };
  }

  std::vector<RuleRow> fold() const {
    return {
        {"fold", add(integer(3), integer(4)), integer(7)},
        {"fold", add(integer(127, DType::Int8), integer(1, DType::Int8)),
         integer(-128, DType::Int8)},
        {"fold", UOp::make(Op::Fdiv, {real(1), real(0)}),
         real(std::numeric_limits<double>::infinity())},
        {"fold", where(yes, integer(3), integer(4)), integer(3)},
        {"fold", cast(real(2.5), DType::Int8), integer(2, DType::Int8)},
        {nullptr, add(integer(3), invalid(DType::Int32)), {}},
        {nullptr, add(index_const(3), index_const(4)), {}},  // index arithmetic is unbounded
        {"fold", lt(index_const(3), index_const(4)), yes},
        {"fold", where(yes, index_const(3), index_const(4)), index_const(3)},
        {"fold-bitcast", bitcast(real(1), DType::UInt32), integer(0x3f800000, DType::UInt32)},
        {nullptr, bitcast(i, DType::UInt32), {}},
        {"by-bounds", lt(n, index_const(10)), yes},
        {"by-bounds", lt(index_const(9), n), no},
        {nullptr, lt(n, index_const(9)), {}},
        {"by-bounds", ne(n, index_const(10)), yes},
        {"by-bounds", idiv(n, index_const(10)), index_const(0)},
        {"by-bounds", maximum(n, index_const(9)), index_const(9)},
        {nullptr, maximum(n, index_const(8)), {}},
        {"range-of-one", range(0, index_const(1), AxisType::Loop), index_const(0)},
        {nullptr, range(0, index_const(2), AxisType::Loop), {}},
    };
  }

  std::vector<RuleRow> forward() const {
    return {
        {"detach", UOp::make(Op::Detach, {f}), f},
        {"relu", where(lt(real(0), f), f, maximum(f, real(0))), maximum(f, real(0))},
        {nullptr, where(lt(real(0), f), f, maximum(f, real(1))), {}},
        {nullptr, where(lt(real(0), g), f, maximum(f, real(0))), {}},
        {"abs", where(lt(real(0), f), f, add(f, real(0))), add(f, real(0))},
        {nullptr, where(lt(real(0), f), f, add(f, real(1))), {}},
        {nullptr, where(lt(real(1), f), f, add(f, real(0))), {}},
    };
  }
};

TEST(algebra, every_rule_fires_where_it_may_and_nowhere_else) {
  check_rules(algebra_rules(), fold_rules(), Tables().algebra());
}
TEST(algebra, constants_and_bounds_fold) { check_rules(fold_rules(), {}, Tables().fold()); }
TEST(algebra, what_gradients_need_goes_away_before_kernels) {
  check_rules(forward_rules(), {}, Tables().forward());
}

}  // namespace
}  // namespace koine::test
