// Methods of Tensor that move, join, cut and pick elements, each against the places it reads from.
#include <algorithm>

#include "koine/ir/text.hpp"
#include "plain.hpp"

namespace koine::test {
namespace {

using enum DType;

// Any of them, with what only floats hold.
template <class Run>
void for_dtypes(const Run& run) {
  std::mt19937_64 random(test_seed());
  for (const DType d : number_dtypes) run(random, d);
}

void expect_rows(const char* name, const Plain& want, const std::function<Tensor()>& method,
                 bool quick = false, bool signs = true) {
  on_both(quick, [&] {
    EXPECT_EQ(difference(want, method(), {.signs = signs}), "")
        << name << " " << dtype_name(want.dtype) << ", seed " << test_seed();
  });
}

// --- moves: each element of the result is one of the operand, or 0 -------------------------------

constexpr Real zero = 0;
using Element = std::function<Real(const Plain& x, const Place& at)>;
struct Move {
  const char* name;
  Shape from, to;
  Tensor (*method)(const Tensor&);
  Element element;
};

// The element that stands at the same place in row-major order.
Element in_order(const Shape& to) {
  return [to](const Plain& x, const Place& at) {
    int64_t place = 0;
    for (size_t i = 0; i < at.size(); ++i) place = place * to[i] + at[i];
    return x.at[static_cast<size_t>(place)];
  };
}
Move reordered(const char* name, const Shape& from, const Shape& to,
               Tensor (*method)(const Tensor&)) {
  return {name, from, to, method, in_order(to)};
}
int64_t modulo(int64_t a, int64_t n) { return ((a % n) + n) % n; }

std::vector<Move> shape_moves() {
  return {
      reordered("reshape", {2, 6}, {3, 4}, [](const Tensor& x) { return x.reshape({3, 4}); }),
      reordered("reshape to none", {1, 1}, {}, [](const Tensor& x) { return x.reshape({}); }),
      reordered("reshape with -1", {2, 3, 2}, {2, 6},
                [](const Tensor& x) { return x.reshape({2, -1}); }),
      reordered("reshape of nothing", {0, 3}, {5, 0},
                [](const Tensor& x) { return x.reshape({5, 0}); }),
      reordered("view", {4, 3}, {2, 2, 3}, [](const Tensor& x) { return x.view({2, -1, 3}); }),
      reordered("squeeze", {1, 3, 1, 2}, {3, 2}, [](const Tensor& x) { return x.squeeze(); }),
      reordered("squeeze of one axis", {1, 3, 1}, {1, 3},
                [](const Tensor& x) { return x.squeeze(-1); }),
      reordered("squeeze of a long axis", {1, 3}, {1, 3},
                [](const Tensor& x) { return x.squeeze(1); }),
      reordered("unsqueeze", {2, 3}, {2, 1, 3}, [](const Tensor& x) { return x.unsqueeze(1); }),
      reordered("unsqueeze at the end", {2, 3}, {2, 3, 1},
                [](const Tensor& x) { return x.unsqueeze(-1); }),
      reordered("unsqueeze of a scalar", {}, {1}, [](const Tensor& x) { return x.unsqueeze(0); }),
      reordered("flatten", {2, 3, 2}, {12}, [](const Tensor& x) { return x.flatten(); }),
      reordered("flatten of a scalar", {}, {1}, [](const Tensor& x) { return x.flatten(); }),
      reordered("flatten between", {2, 3, 2, 1}, {2, 6, 1},
                [](const Tensor& x) { return x.flatten(1, -2); }),
      reordered("flatten of nothing", {2, 0, 3}, {2, 0},
                [](const Tensor& x) { return x.flatten(1); }),
      reordered("contiguous", {3, 2}, {3, 2}, [](const Tensor& x) { return x.contiguous(); }),
      reordered("contiguous_backward", {3, 2}, {3, 2},
                [](const Tensor& x) { return x.contiguous_backward(); }),
      reordered("detach", {3, 2}, {3, 2}, [](const Tensor& x) { return x.detach(); }),
      reordered("clone", {3, 2}, {3, 2}, [](const Tensor& x) { return x.clone(); }),
      reordered("to", {3, 2}, {3, 2}, [](const Tensor& x) { return x.to("CPU:1"); }),
  };
}

const std::vector<Move> moves = {
    {"expand",
     {3, 1},
     {2, 3, 4},
     [](const Tensor& x) { return x.expand({2, -1, 4}); },
     [](const Plain& x, const Place& at) { return x({at[1], 0}); }},
    {"expand to nothing", {1, 2}, {0, 2}, [](const Tensor& x) { return x.expand({0, 2}); }, {}},
    {"permute",
     {2, 3, 4},
     {4, 2, 3},
     [](const Tensor& x) { return x.permute({2, 0, -2}); },
     [](const Plain& x, const Place& at) { return x({at[1], at[2], at[0]}); }},
    {"transpose",
     {2, 3, 4},
     {3, 2, 4},
     [](const Tensor& x) { return x.transpose(); },
     [](const Plain& x, const Place& at) { return x({at[1], at[0], at[2]}); }},
    {"transpose of two",
     {2, 3, 4},
     {4, 3, 2},
     [](const Tensor& x) { return x.transpose(-1, 0); },
     [](const Plain& x, const Place& at) { return x({at[2], at[1], at[0]}); }},
    {"T",
     {2, 5},
     {5, 2},
     [](const Tensor& x) { return x.T(); },
     [](const Plain& x, const Place& at) { return x({at[1], at[0]}); }},
    {"flip",
     {2, 3, 4},
     {2, 3, 4},
     [](const Tensor& x) { return x.flip({0, -1}); },
     [](const Plain& x, const Place& at) { return x({1 - at[0], at[1], 3 - at[2]}); }},
    {"shrink",
     {4, 5},
     {2, 2},
     [](const Tensor& x) { return x.shrink({{1, 3}, {3, 5}}); },
     [](const Plain& x, const Place& at) { return x({at[0] + 1, at[1] + 3}); }},
    {"shrink to nothing",
     {4, 5},
     {0, 5},
     [](const Tensor& x) { return x.shrink({{2, 2}, {0, 5}}); },
     {}},
    {"pad",
     {2, 3},
     {5, 3},
     [](const Tensor& x) { return x.pad({{1, 2}, {0, 0}}); },
     [](const Plain& x, const Place& at) {
       return at[0] < 1 || at[0] > 2 ? zero : x({at[0] - 1, at[1]});
     }},
    {"pad with a value",
     {2, 3},
     {2, 7},
     [](const Tensor& x) { return x.pad({{0, 0}, {3, 1}}, 1); },
     [](const Plain& x, const Place& at) {
       return at[1] < 3 || at[1] > 5 ? Real(1) : x({at[0], at[1] - 3});
     }},
    {"pad of nothing",
     {0, 2},
     {2, 3},
     [](const Tensor& x) { return x.pad({{1, 1}, {0, 1}}, true); },
     [](const Plain&, const Place&) { return Real(1); }},
    {"repeat",
     {2, 3},
     {2, 4, 9},
     [](const Tensor& x) { return x.repeat({2, 2, 3}); },
     [](const Plain& x, const Place& at) { return x({at[1] % 2, at[2] % 3}); }},
    {"repeat never", {2, 3}, {2, 0}, [](const Tensor& x) { return x.repeat({1, 0}); }, {}},
    {"roll",
     {5, 2},
     {5, 2},
     [](const Tensor& x) { return x.roll(2, 0); },
     [](const Plain& x, const Place& at) { return x({modulo(at[0] - 2, 5), at[1]}); }},
    {"roll back, more than once around",
     {2, 5},
     {2, 5},
     [](const Tensor& x) { return x.roll(-13, -1); },
     [](const Plain& x, const Place& at) { return x({at[0], modulo(at[1] + 13, 5)}); }},
    {"roll of nothing", {0, 5}, {0, 5}, [](const Tensor& x) { return x.roll(1, 0); }, {}},
    {"tril",
     {2, 3, 4},
     {2, 3, 4},
     [](const Tensor& x) { return x.tril(); },
     [](const Plain& x, const Place& at) { return at[2] <= at[1] ? x(at) : zero; }},
    {"tril above",
     {3, 4},
     {3, 4},
     [](const Tensor& x) { return x.tril(1); },
     [](const Plain& x, const Place& at) { return at[1] <= at[0] + 1 ? x(at) : zero; }},
    {"tril of none",
     {3, 4},
     {3, 4},
     [](const Tensor& x) { return x.tril(-3); },
     [](const Plain&, const Place&) { return zero; }},
    {"triu",
     {2, 4, 3},
     {2, 4, 3},
     [](const Tensor& x) { return x.triu(); },
     [](const Plain& x, const Place& at) { return at[2] >= at[1] ? x(at) : zero; }},
    {"triu below",
     {4, 3},
     {4, 3},
     [](const Tensor& x) { return x.triu(-2); },
     [](const Plain& x, const Place& at) { return at[1] >= at[0] - 2 ? x(at) : zero; }},
    {"triu of all",
     {4, 3},
     {4, 3},
     [](const Tensor& x) { return x.triu(-9); },
     [](const Plain& x, const Place& at) { return x(at); }},
    {"x[1]",
     {3, 2},
     {2},
     [](const Tensor& x) { return x[-2]; },
     [](const Plain& x, const Place& at) { return x({1, at[0]}); }},
    {"x[::2, newaxis]",
     {5, 2},
     {3, 1, 2},
     [](const Tensor& x) { return x[{Slice{{}, {}, 2}, NewAxis{}}]; },
     [](const Plain& x, const Place& at) { return x({2 * at[0], at[2]}); }},
    {"x[..., 3:0:-2]",
     {2, 5},
     {2, 2},
     [](const Tensor& x) { return x[{Ellipsis{}, Slice{3, 0, -2}}]; },
     [](const Plain& x, const Place& at) { return x({at[0], 3 - 2 * at[1]}); }},
};

// --- joins and parts -----------------------------------------------------------------------------

// Each tensor where those before it along the axis end.
Plain joined(const std::vector<Plain>& parts, size_t axis, DType dtype) {
  Shape shape = parts[0].shape;
  shape[axis] = 0;
  for (const Plain& p : parts) shape[axis] += p.shape[axis];
  return plain(dtype, shape, [&](const Place& at) {
    Place inside = at;
    size_t k = 0;
    for (; inside[axis] >= parts[k].shape[axis]; ++k) inside[axis] -= parts[k].shape[axis];
    return parts[k](inside);
  });
}
std::vector<Tensor> tensors_of(const std::vector<Plain>& parts) {
  std::vector<Tensor> out;
  for (const Plain& p : parts) out.push_back(tensor_of(p));
  return out;
}

}  // namespace

TEST(positions, moves) {
  std::vector<Move> rows = shape_moves();
  rows.insert(rows.end(), moves.begin(), moves.end());
  for_dtypes([&](std::mt19937_64& random, DType d) {
    for (const Move& row : rows) {
      const Plain x = special_numbers(random, d, row.from);
      const Plain want = plain(d, row.to, [&](const Place& at) { return row.element(x, at); });
      expect_rows(row.name, want, [&] { return row.method(tensor_of(x)); }, d != Float32);
    }
  });
}

TEST(positions, joins) {
  for_dtypes([](std::mt19937_64& random, DType d) {
    for (const int64_t axis : {0, 1, 2}) {
      std::vector<Plain> parts, equal;
      for (const int64_t size : {2, 1, 0, 3}) {
        Shape shape{2, 3, 2};
        shape[static_cast<size_t>(axis)] = size;
        parts.push_back(special_numbers(random, d, shape));
        equal.push_back(special_numbers(random, d, {2, 3}));
      }
      expect_rows("cat", joined(parts, static_cast<size_t>(axis), d),
                  [&] { return Tensor::cat(tensors_of(parts), axis); });
      expect_rows(
          "cat, from the end", joined(parts, static_cast<size_t>(axis), d),
          [&] { return Tensor::cat(tensors_of(parts), axis - 3); }, true);
      Shape wide{2, 3};
      wide.insert(wide.begin() + axis, 4);
      const Plain stacked = plain(d, wide, [&](const Place& at) {
        Place inside = at;
        inside.erase(inside.begin() + axis);
        return equal[static_cast<size_t>(at[static_cast<size_t>(axis)])](inside);
      });
      expect_rows("stack", stacked, [&] { return Tensor::stack(tensors_of(equal), axis); });
      expect_rows(
          "stack, from the end", stacked,
          [&] { return Tensor::stack(tensors_of(equal), axis - 3); }, true);
    }
  });
  std::mt19937_64 random(test_seed());
  const std::vector<Plain> mixed = {exact_numbers(random, UInt8, {2}),
                                    exact_numbers(random, Bool, {2}),
                                    exact_numbers(random, Float32, {2})};
  expect_rows("cat of dtypes", joined(mixed, 0, Float32),
              [&] { return Tensor::cat(tensors_of(mixed)); });
  Plain stacked = joined(mixed, 0, Float32);
  stacked.shape = {3, 2};
  expect_rows("stack of dtypes", stacked, [&] { return Tensor::stack(tensors_of(mixed)); });
}

TEST(positions, parts) {
  for_dtypes([](std::mt19937_64& random, DType d) {
    const Plain x = special_numbers(random, d, {7, 2, 5});
    // Of `size` along an axis, the last with what is left.
    auto expect_parts = [&](const char* name, size_t axis, int64_t size,
                            const std::function<std::vector<Tensor>()>& method) {
      on_both(true, [&] {
        const std::vector<Tensor> got = method();
        ASSERT_EQ(static_cast<int64_t>(got.size()), (x.size(axis) + size - 1) / size) << name;
        for (size_t k = 0; k < got.size(); ++k) {
          const int64_t from = static_cast<int64_t>(k) * size;
          Shape shape = x.shape;
          shape[axis] = std::min(size, x.size(axis) - from);
          const Plain want = plain(d, shape, [&](const Place& at) {
            Place inside = at;
            inside[axis] += from;
            return x(inside);
          });
          EXPECT_EQ(difference(want, got[k], {.signs = true}), "") << name << " " << k;
        }
      });
    };
    expect_parts("split", 0, 3, [&] { return tensor_of(x).split(3); });
    expect_parts("split", 2, 5, [&] { return tensor_of(x).split(5, -1); });
    expect_parts("split", 2, 1, [&] { return tensor_of(x).split(1, 2); });
    expect_parts("chunk", 0, 3, [&] { return tensor_of(x).chunk(3); });
    expect_parts("chunk", 2, 2, [&] { return tensor_of(x).chunk(4, -1); });
    expect_parts("chunk", 1, 1, [&] { return tensor_of(x).chunk(9, 1); });
  });
}

namespace {

// Positions along an axis of n, some counted from its end.
Plain some_positions(std::mt19937_64& random, const Shape& shape, int64_t n, DType dtype) {
  return plain(dtype, shape, [&](const Place&) {
    const auto v = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    return static_cast<Real>(is_unsigned(dtype) || random() % 2 == 0 ? v : v - n);
  });
}

struct Axis {
  Shape shape, index;
  int64_t axis;
};
const std::vector<Axis> axes = {{{5}, {9}, 0},
                                {{4, 3}, {6, 3}, 0},
                                {{4, 3}, {2, 7}, 1},
                                {{4, 3}, {1, 2}, -2},
                                {{2, 3, 4}, {2, 2, 4}, 1},
                                {{2, 3, 4}, {1, 3, 5}, -1},
                                {{3, 4}, {0, 4}, 0},
                                {{2, 1, 2, 3}, {2, 1, 3, 2}, 2}};

}  // namespace

TEST(positions, gather_and_scatter) {
  int turn = 0;
  for_dtypes([&](std::mt19937_64& random, DType d) {
    for (const Axis& row : axes) {
      const auto rank = static_cast<int64_t>(row.shape.size());
      const auto axis = static_cast<size_t>(modulo(row.axis, rank));
      const int64_t n = row.shape[axis];
      const DType counted = turn++ % 3 == 0 ? Int32 : turn % 3 == 1 ? Int64 : UInt8;
      const Plain index = some_positions(random, row.index, n, counted);
      // Where the position in the index leads to.
      auto target = [&](const Place& at) {
        Place out = at;
        out[axis] = modulo(static_cast<int64_t>(index(at)), n);
        return out;
      };
      const Plain x = special_numbers(random, d, row.shape);
      expect_rows(
          "gather", plain(d, row.index, [&](const Place& at) { return x(target(at)); }),
          [&] { return tensor_of(x).gather(row.axis, tensor_of(index)); }, turn % 4 != 0,
          false);  // a sum, in which zeros lose their signs
      // Writes in order, so that the last one stays.
      const Plain src = special_numbers(random, d, row.index);
      auto written = [&](const Plain& start, const Plain& values, bool add) {
        Plain out = start;
        for (int64_t i = 0; i < count_of(row.index); ++i) {
          const Place at = place_of(row.index, i), to = target(at);
          int64_t place = 0;
          for (size_t k = 0; k < to.size(); ++k) place = place * row.shape[k] + to[k];
          Real& v = out.at[static_cast<size_t>(place)];
          v = add ? v + values(at) : values(at);
          if (d == Bool) v = v != 0 ? 1 : 0;
        }
        return out;
      };
      expect_rows(
          "scatter", written(x, src, false),
          [&] { return tensor_of(x).scatter(row.axis, tensor_of(index), tensor_of(src)); },
          turn % 4 != 0);
      const Plain start = exact_numbers(random, d, row.shape),
                  added = exact_numbers(random, d, row.index);
      expect_rows(
          "scatter_add", written(start, added, true),
          [&] {
            return tensor_of(start).scatter_add(row.axis, tensor_of(index), tensor_of(added));
          },
          turn % 4 != 0);
    }
  });
}

TEST(positions, rows_and_classes) {
  for_dtypes([](std::mt19937_64& random, DType d) {
    for (const int64_t axis : {0, 1, 2})
      for (const Shape& places : {Shape{}, {4}, {2, 3}, {0}}) {
        const Plain x = special_numbers(random, d, {3, 4, 2});
        const auto a = static_cast<size_t>(axis);
        const Plain index = some_positions(random, places, x.size(a), Int32);
        Shape shape = x.shape;
        shape.erase(shape.begin() + axis);
        shape.insert(shape.begin() + axis, places.begin(), places.end());
        const auto width = static_cast<std::ptrdiff_t>(places.size());
        const Plain want = plain(d, shape, [&](const Place& at) {
          const Place inside(at.begin() + axis, at.begin() + axis + width);
          Place from = at;
          from.erase(from.begin() + axis, from.begin() + axis + width);
          from.insert(from.begin() + axis, modulo(static_cast<int64_t>(index(inside)), x.size(a)));
          return x(from);
        });
        expect_rows(
            "index_select", want, [&] { return tensor_of(x).index_select(axis, tensor_of(index)); },
            axis != 1);
      }
  });
  std::mt19937_64 random(test_seed());
  for (const DType d : {Int32, Int64, UInt8})
    for (const Shape& shape : {Shape{}, {5}, {2, 3}, {0, 2}}) {
      const Plain classes = plain(d, shape, [&](const Place&) { return Real(random() % 4); });
      Shape wide = shape;
      wide.push_back(4);
      const Plain want = plain(Float32, wide, [&](const Place& at) {
        return Real(classes({at.begin(), at.end() - 1}) == static_cast<Real>(at.back()));
      });
      expect_rows("one_hot", want, [&] { return tensor_of(classes).one_hot(4); });
    }
}

}  // namespace koine::test
