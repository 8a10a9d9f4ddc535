#include "koine/lower/sum_tree.hpp"

#include <algorithm>
#include <cmath>

#include "koine/interp/liberties.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/scan.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/target/tensor_core.hpp"

namespace koine {
namespace {

// A node that adds b values rounds b - 1 times, which stays within 4 log2(b) up to b = 17. Equal
// numbers err alike in all nodes of a level, so the levels above the leaves are narrower.
constexpr int64_t least_values_of_a_leaf = 16;
constexpr int64_t values_of_a_node = 8;
// Of a product in a register tile, where each level holds as many registers as the tile.
constexpr int64_t values_of_a_tile = 256, values_of_a_node_of_tiles = 64;

// How many elements the accumulators at the leaves add. Lanes fold in pairs, one rounding where
// four are allowed, and leave the rest to the leaves.
int64_t values_of_a_leaf(int64_t lanes) {
  const double spare = 3 * std::log2(static_cast<double>(lanes));
  int64_t values = least_values_of_a_leaf;
  while (static_cast<double>(2 * values - 1) <=
         4 * std::log2(2 * static_cast<double>(values)) + spare)
    values *= 2;
  return values;
}

// A product whose factors each have a tile axis that the other lacks.
bool is_tile_product(const UOp& reduction) {
  UOp body = reduction.src(0);
  while (body.is(Op::Cast) || (body.is(Op::Where) && body.src(2).is(Op::Const)))
    body = body.src(body.is(Op::Where) ? 1 : 0);
  if (!body.is(Op::Mul)) return false;
  auto has_own_axis = [](const UOp& x, const UOp& y) {
    return std::any_of(x.ranges().begin(), x.ranges().end(), [&](const Node* r) {
      const UOp range = UOp::share(r);
      return type_of(range) == AxisType::Upcast && !depends_on(y, range);
    });
  };
  return has_own_axis(body.src(0), body.src(1)) && has_own_axis(body.src(1), body.src(0));
}

// A part of `size` of at most `most`: a divisor, unless those are much smaller. 1: not worth it.
int64_t part_of(const UOp& size, int64_t most) {
  if (!size.is(Op::Const)) return most;
  const int64_t n = const_int(size);
  for (int64_t part = most; 2 * part > most; --part)
    if (n % part == 0) return part;
  return most >= values_of_a_node / 2 ? most : 1;
}

// A range taken apart into levels, the innermost first.
struct Levels {
  std::vector<UOp> counts;     // elements before each level; the last is the outermost level
  std::vector<int64_t> parts;  // of all but the outermost
  std::vector<size_t> nodes;   // the node of the tree that each level belongs to
};

class Builder {
 public:
  Builder(const UOp& reduction, int64_t next_range) : next_range_(next_range) {
    int64_t lanes = 1;
    for (const UOp& r : reduced_ranges(reduction)) {
      if (type_of(r) == AxisType::GroupReduce)
        lanes_.push_back(r), lanes *= const_int(r.src(0));
      else
        (type_of(r) == AxisType::Unroll ? unrolled_ : loops_).push_back(r);
    }
    const bool tile = is_tile_product(reduction);
    room_ = tile ? values_of_a_tile : values_of_a_leaf(lanes);
    if (tile) values_of_a_node_ = values_of_a_node_of_tiles;
    if (const std::string& core = reduction.as<ReduceArg>().core; !core.empty())
      room_ = values_of_a_tile / tensor_core_named(core).k;  // each step adds so many
  }

  // Null where one accumulator holds all.
  UOp run(const UOp& reduction) {
    for (size_t i = loops_.size(); i-- > 0;) take_apart(loops_[i]);
    if (node_ == 0) return {};
    std::vector<std::vector<UOp>> tree(node_ + 1);
    Substitution places;
    for (size_t i = 0; i < loops_.size(); ++i)
      places.emplace(loops_[i], rebuild(loops_[i], levels_[loops_.size() - 1 - i], tree));
    tree.front().insert(tree.front().end(), unrolled_.begin(), unrolled_.end());
    tree.back().insert(tree.back().end(), lanes_.begin(), lanes_.end());
    UOp value = in_parts(substitute(reduction.src(0), places));
    // Below a start, which says what becomes of the sign of a zero, nothing changes it.
    const UOp start = start_of(reduction), nothing = neutral_of(Op::Add, value.dtype());
    for (size_t k = 0; k < tree.size(); ++k) {
      const UOp from = !start || k + 1 == tree.size() ? start : nothing;
      value = k == 0 ? reduce_as(reduction, value, tree[k], from)
                     : reduce_ranges(Op::Add, value, tree[k], from);
    }
    return rewrite(value, symbolic_rules());
  }

  int64_t next_range() const { return next_range_; }

 private:
  // What waits in a loop waits in those that it has become.
  static UOp in_parts(const UOp& value) {
    if ((value.node()->ops_below & mask_of(Op::Barrier)) == 0) return value;
    return transform_graph(value, [](const UOp&, const UOp& node) {
      if (!node.is(Op::Barrier)) return node;
      std::vector<UOp> src{node.src(0)};
      for (const UOp& loop : node.src().subspan(1))
        for (const Node* part : loop.ranges()) src.push_back(UOp::share(part));
      return with_sources(node, src);
    });
  }

  // Fills the current node of the tree, then the next.
  void take_apart(const UOp& range) {
    Levels levels{{range.src(0)}, {}, {}};
    for (;;) {
      const UOp count = levels.counts.back();
      levels.nodes.push_back(node_);
      if (count.is(Op::Const) && const_int(count) <= room_) {
        room_ /= std::max<int64_t>(const_int(count), 1);
        break;
      }
      if (!count.is(Op::Const) && count.bounds().high <= room_) {
        room_ = 1;
        break;
      }
      if (const int64_t part = part_of(count, room_); part > 1) {
        levels.parts.push_back(part);
        levels.counts.push_back(
            simplify_index(idiv(add(count, index_const(part - 1)), index_const(part))));
      } else {
        levels.nodes.pop_back();
      }
      ++node_;
      room_ = values_of_a_node_;
    }
    levels_.push_back(std::move(levels));
  }

  // The ranges of the levels, added to their nodes; returns the place that they spell. The last
  // part may be shorter than the others.
  UOp rebuild(const UOp& range, const Levels& levels, std::vector<std::vector<UOp>>& tree) {
    UOp place;
    for (size_t k = levels.counts.size(); k-- > 0;) {
      UOp size = levels.counts[k], start;
      if (place) {
        const UOp part = index_const(levels.parts[k]);
        start = mul(place, part);
        const bool whole = simplify_index(mod(size, part)) == index_const(0);
        size = whole ? part : simplify_index(minimum(part, sub(size, start)));
      }
      const UOp level = koine::range(next_range_++, size, type_of(range));
      tree[levels.nodes[k]].push_back(level);
      place = start ? add(start, level) : level;
    }
    return simplify_index(place);
  }

  std::vector<UOp> loops_, unrolled_, lanes_;
  std::vector<Levels> levels_;  // of the loops, the innermost first
  size_t node_ = 0;             // of the tree, the leaf first
  int64_t room_;                // how many values the current node may still take
  int64_t values_of_a_node_ = values_of_a_node;
  int64_t next_range_;
};

}  // namespace

UOp sum_in_blocks(const UOp& ast) {
  int64_t next_range = next_range_of(ast);
  return transform_graph(ast, [&](const UOp&, const UOp& node) {
    if (!node.is(Op::Reduce) || node.as<ReduceArg>().op != Op::Add || !is_float(node.dtype()))
      return node;
    if (!running_levels(node).empty()) return node;
    Builder builder(node, next_range);
    const UOp tree = builder.run(node);
    next_range = builder.next_range();
    return tree ? tree : node;
  });
}

UOp fold_in_float32(const UOp& ast) {
  return transform_graph(ast, [](const UOp&, const UOp& node) {
    if (!node.is(Op::Reduce) || fold_dtype(node.dtype()) == node.dtype()) return node;
    const Op op = node.as<ReduceArg>().op;
    if (op == Op::Max) return node;
    std::vector<UOp> src(node.src().begin(), node.src().end());
    src[0] = cast(src[0], fold_dtype(node.dtype()));
    if (start_of(node)) src.back() = cast(src.back(), src[0].dtype());
    return cast(with_sources(node, src), node.dtype());
  });
}

}  // namespace koine
