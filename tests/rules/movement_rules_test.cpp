// What each rule of movement ops makes of a chain, and where it must hold back.
#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/rules/simplify.hpp"
#include "rule_table.hpp"

namespace koine::test {
namespace {

UOp shape(std::initializer_list<int64_t> sizes) { return shape_of(sizes); }

TEST(movement_rules, every_rule_fires_where_it_may_and_nowhere_else) {
  const UOp x = leaf({2, 3}), one = leaf({1, 1}), cube = leaf({2, 3, 4}),
            y = leaf({2, 3}, DType::Float32, 1);
  const std::vector<UOp> offsets{variable("n", 0, 0), variable("m", 0, 1)};
  const UOp zeros = shape({0, 0}), all = x.shape();
  auto inside = [&](const UOp& a, std::initializer_list<int64_t> offset,
                    std::initializer_list<int64_t> sizes) {
    return UOp::make(Op::Shrink, {a, shape(offset), shape(sizes)});
  };
  auto padded = [&](std::initializer_list<int64_t> offset, std::initializer_list<int64_t> sizes) {
    return pad(x, shape(offset), shape(sizes), constant_int(DType::Float32, 0));
  };
  check_rules(
      movement_rules(), {},
      {
          {"reshape to itself", UOp::make(Op::Reshape, {x, all}), x},
          {nullptr, UOp::make(Op::Reshape, {x, shape({3, 2})}), {}},
          {"expand to itself", UOp::make(Op::Expand, {x, all}), x},
          {nullptr, UOp::make(Op::Expand, {one, all}), {}},
          {"reshape(reshape)",
           UOp::make(Op::Reshape, {UOp::make(Op::Reshape, {x, shape({6})}), shape({3, 2})}),
           UOp::make(Op::Reshape, {x, shape({3, 2})})},
          {"reshape(reshape)",
           UOp::make(Op::Reshape, {UOp::make(Op::Reshape, {x, shape({6})}), all}), x},
          {"expand(expand)",
           UOp::make(Op::Expand, {UOp::make(Op::Expand, {one, shape({2, 1})}), all}),
           UOp::make(Op::Expand, {one, all})},
          {"permute identity", UOp::make(Op::Permute, {x}, Ints{0, 1}), x},
          {nullptr, UOp::make(Op::Permute, {x}, Ints{1, 0}), {}},
          {nullptr, UOp::make(Op::Permute, {cube}, Ints{0, 2, 1}), {}},
          {"permute(permute)",
           UOp::make(Op::Permute, {UOp::make(Op::Permute, {cube}, Ints{1, 2, 0})}, Ints{1, 0, 2}),
           UOp::make(Op::Permute, {cube}, Ints{2, 1, 0})},
          {"permute(permute)",
           UOp::make(Op::Permute, {UOp::make(Op::Permute, {cube}, Ints{1, 2, 0})}, Ints{2, 0, 1}),
           cube},
          {"flip nothing", UOp::make(Op::Flip, {x}, Ints{0, 0}), x},
          {nullptr, UOp::make(Op::Flip, {x}, Ints{0, 1}), {}},
          {"flip(flip)", UOp::make(Op::Flip, {UOp::make(Op::Flip, {x}, Ints{1, 1})}, Ints{0, 1}),
           UOp::make(Op::Flip, {x}, Ints{1, 0})},
          {"flip(flip)", UOp::make(Op::Flip, {UOp::make(Op::Flip, {x}, Ints{1, 0})}, Ints{1, 0}),
           x},
          {"shrink to itself", inside(x, {0, 0}, {2, 3}), x},
          {nullptr, inside(x, {0, 0}, {2, 2}), {}},
          {nullptr, inside(x, {0, 1}, {2, 2}), {}},
          {nullptr, UOp::make(Op::Shrink, {x, stack(offsets), shape({2, 2})}), {}},
          {"shrink(shrink)", inside(inside(cube, {0, 1, 1}, {2, 2, 3}), {1, 0, 1}, {1, 2, 2}),
           inside(cube, {1, 1, 2}, {1, 2, 2})},
          {"pad to itself", padded({0, 0}, {2, 3}), x},
          {nullptr, padded({0, 0}, {2, 4}), {}},
          {nullptr, padded({1, 0}, {3, 3}), {}},
          {"shrink(pad)", inside(padded({1, 2}, {5, 6}), {1, 2}, {2, 3}), x},
          {nullptr, inside(padded({1, 2}, {5, 6}), {1, 1}, {2, 3}), {}},
          {nullptr, inside(padded({1, 2}, {5, 6}), {1, 2}, {2, 2}), {}},
          {"contiguous(contiguous)", contiguous(contiguous(y)), contiguous(y)},
          {nullptr, UOp::make(Op::Contiguous, {contiguous(y)}, MarkArg{Mark::Copies}), {}},
      });
}

}  // namespace
}  // namespace koine::test
