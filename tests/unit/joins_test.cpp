// Values put together from others (cat, stack, sums of pads): parts that fold are computed straight
// into their slices of memory.
#include "check.hpp"

namespace koine::test {
namespace {

// Of shape (rows, columns).
Tensor product(int64_t rows, int64_t columns, uint64_t salt, int64_t depth = 2) {
  return small({rows, depth}, salt).matmul(small({depth, columns}, salt + 1));
}
// Largest values of rows, some of them NaN, some -0.
Tensor largest(int64_t rows, int64_t columns, uint64_t salt) {
  std::mt19937_64 random(test_seed() + salt);
  const float special[] = {-0.0F, -0.0F, -1.0F, NAN, -INFINITY};
  std::vector<float> data;
  for (int64_t i = 0; i < rows * columns * 3; ++i) data.push_back(special[random() % 5]);
  return Tensor::from(data, {rows, columns, 3}).realize().max(2).reshape({rows, columns});
}

size_t kernels_of_value(const Tensor& value) { return schedule({value.uop()}).size(); }

struct Case {
  const char* what;
  Tensor value;
  size_t kernels;
};
void expect_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(kernels_of_value(c.value), c.kernels);
    expect_same_everywhere(c.value);
  }
}

TEST(joins, products_are_computed_into_their_slices) {
  const Tensor a = product(16, 20, 1), b = product(16, 20, 3), c = product(8, 40, 5);
  expect_cases({
      {"cat of rows", Tensor::cat({a, b}, 0), 2},
      {"cat of columns", Tensor::cat({a, b}, 1), 2},
      {"unequal parts", Tensor::cat({c, product(7, 40, 7), c.exp()}, 0), 3},
      {"stack", Tensor::stack({a, b}, 0), 2},
      {"stack in the middle", Tensor::stack({a, b}, 1), 2},
      {"stack at the end", Tensor::stack({a, b}, 2), 2},
      {"what is made of products", Tensor::cat({a.relu(), (b + 1).tanh()}, 0), 2},
      {"asked for", Tensor::cat({a, b}, 0).contiguous(), 2},
  });
}

// Each part has the loops of its own shape.
TEST(joins, parts_beside_one_that_folds_have_kernels) {
  const Tensor a = product(16, 20, 11), x = small({16, 20}, 13), y = small({16, 3}, 15);
  expect_cases({
      {"one product", Tensor::cat({a, x + 1}, 1), 2},
      {"several others", Tensor::cat({x + 1, a, y.exp(), y * 2}, 1), 3},
      {"no product", Tensor::cat({x + 1, y * 2}, 1), 1},
  });
}

TEST(joins, the_sum_of_the_gradients_of_parts_is_their_join) {
  const Tensor a = product(16, 20, 21), b = product(16, 20, 23), c = product(16, 20, 25);
  auto at = [](const Tensor& x, int64_t from) { return x.pad({{0, 0}, {from, 40 - from}}); };
  expect_cases({
      {"two and one", at(a, 0) + at(b, 20) + at(c, 40), 3},
      {"one and two", at(a, 40) + (at(b, 20) + at(c, 0)), 3},
      {"with a gap", at(a, 0) + at(c, 40), 3},
  });
}

// -0 put into zeros is 0, also where it is stored straight into its slice. (One kernel fills both
// slices.)
TEST(joins, a_sum_of_pads_rounds_as_it_did) {
  const Tensor a = largest(16, 20, 31), b = largest(16, 20, 33);
  const Tensor sum = a.pad({{0, 16}, {0, 0}}) + b.pad({{16, 0}, {0, 0}});
  expect_cases({{"sum", sum, 1}, {"cat", Tensor::cat({a, b}, 0), 1}});
  const std::vector<float> summed = sum.tolist<float>(),
                           put = Tensor::cat({a, b}, 0).tolist<float>();
  size_t negative = 0;
  for (size_t i = 0; i < summed.size(); ++i) {
    EXPECT_FALSE(summed[i] == 0 && std::signbit(summed[i])) << i;
    if (put[i] == 0 && std::signbit(put[i])) ++negative;
  }
  EXPECT_GT(negative, 20U);
}

TEST(joins, a_part_that_others_read_keeps_its_memory) {
  const Tensor a = product(16, 20, 41, 8), b = product(16, 20, 43, 8);
  const Tensor both = Tensor::cat({a, b}, 0);
  EXPECT_EQ(schedule(std::vector<UOp>{both.uop(), (a * 2).uop()}).size(), 3U);
  expect_cases({{"twice in one", Tensor::cat({a, b, a}, 0), 4},
                {"beside itself", both * a.sum(), 3},
                {"rows that are read again", (both + 1).sum(1), 3}});
}

TEST(joins, joins_of_joins_are_filled_part_by_part) {
  const Tensor x = small({16, 20}, 71);
  auto both = [](uint64_t salt) {
    return Tensor::cat({product(16, 20, salt), product(16, 20, salt + 2)}, 1);
  };
  const Tensor wide = x.pad({{0, 0}, {20, 0}}) + product(16, 20, 73).pad({{0, 0}, {0, 20}});
  expect_cases(
      {{"cat of cats", Tensor::cat({both(75), both(79)}, 0), 4},
       {"stack of cats", Tensor::stack({both(75), both(79)}, 1), 5},
       {"cat of sums", Tensor::cat({wide, both(75)}, 1), 4},
       {"sum of cats", both(75).pad({{0, 16}, {0, 0}}) + both(79).pad({{16, 0}, {0, 0}}), 5}});
}

// What folds has a kernel wherever it is put, which small folds and others share.
TEST(joins, any_number_of_parts_that_fold_and_few_others_have_slices) {
  std::vector<Tensor> products, maxima, one;
  for (uint64_t k = 0; k < 24; ++k) {
    products.push_back(product(16, 20, 100 + 2 * k));
    maxima.push_back(largest(16, 20, 200 + k));
    one.push_back(k == 7 ? products[k] : small({16, 20}, 300 + k) + 1);
  }
  expect_cases({{"products", Tensor::cat(products, 0), 24},
                {"maxima", Tensor::stack(maxima, 1), 1},
                {"one product", Tensor::cat(one, 1), 3}});
}

// An element in place would look at each of many parts. Parts of equal loops share kernels.
TEST(joins, many_parts_have_slices) {
  std::vector<Tensor> rows, uneven;
  for (uint64_t k = 0; k < 40; ++k) {
    rows.push_back(small({6, 5}, 400 + k));
    uneven.push_back(small({k < 30 ? 6 : 3, 5}, 450 + k).exp());
  }
  Tensor sum;
  for (int64_t k = 0; k < 40; ++k) {
    const Tensor at = rows[static_cast<size_t>(k)].pad({{6 * k, 6 * (39 - k)}, {0, 0}});
    sum = sum.defined() ? sum + at : at;
  }
  std::vector<Tensor> few(rows.begin(), rows.begin() + 16), alternating, ragged;
  std::vector<Tensor> most(few), more(few);
  most.back() = more.back() = small({3, 5}, 440);
  more.push_back(rows[16]);
  for (size_t k = 0; k < 40; ++k) {
    alternating.push_back(k % 2 == 0 ? rows[k] : uneven[39]);
    ragged.push_back(small({1 + static_cast<int64_t>(7 * k % 20), 5}, 500 + k));
  }
  expect_cases({
      {"few", Tensor::cat(few, 0), 1},
      {"as many as are looked at", Tensor::cat(most, 0), 1},
      {"one more, of two sizes", Tensor::cat(more, 0), 2},
      {"rows", Tensor::cat(rows, 0), 2},
      {"columns", Tensor::cat(rows, 1), 2},
      {"uneven", Tensor::cat(uneven, 0), 2},
      {"alternating", Tensor::cat(alternating, 0), 2},
      {"a kernel for each size", Tensor::cat(ragged, 0), 20},
      {"stack", Tensor::stack(rows, 0), 2},
      {"stack in the middle", Tensor::stack(rows, 1), 2},
      {"stack at the end", Tensor::stack(rows, 2), 2},
      {"sum of pads", sum, 2},
      {"what is read on", Tensor::cat(rows, 0).exp(), 3},
      {"summed", Tensor::stack(rows, 1).sum(0), 3},
      {"asked for", Tensor::cat(rows, 1).contiguous() + 1, 3},
      {"of joins", Tensor::stack({Tensor::cat(rows, 0), Tensor::cat(rows, 0).exp()}, 0), 3},
      {"of one value", Tensor::stack(std::vector<Tensor>(40, rows[0].exp()), 1), 1},
      {"scalars", Tensor::stack(std::vector<Tensor>(40, rows[0].sum()), 0), 1},
  });
}

// A slice is made of the parts that it meets, or of the joined value where these are many.
TEST(joins, a_slice_of_many_parts_looks_at_those_that_it_meets) {
  std::vector<Tensor> rows;
  for (uint64_t k = 0; k < 40; ++k) rows.push_back(small({6, 5}, 600 + k));
  for (const int64_t axis : {0, 1}) {
    const Tensor all = Tensor::cat(rows, axis);
    auto slice = [&](int64_t from, int64_t to) {
      return (axis == 0 ? all[Slice{{from}, {to}}] : all.shrink({{0, 6}, {from, to}})) * 2;
    };
    const int64_t part = axis == 0 ? 6 : 5;
    const std::vector<std::pair<int64_t, int64_t>> slices{
        {3 * part, 4 * part}, {31, 68}, {39 * part + 1, 40 * part}, {0, 1}};
    for (const auto& [from, to] : slices) {
      SCOPED_TRACE(fmt::format("axis {}: {} to {}", axis, from, to));
      const std::vector<Kernel> kernels = schedule({slice(from, to).uop()});
      ASSERT_EQ(kernels.size(), 1U);
      EXPECT_LE(kernels[0].buffers.size(), static_cast<size_t>((to - 1) / part - from / part + 2));
      expect_same_everywhere(slice(from, to));
    }
    EXPECT_EQ(kernels_of_value(slice(1, 40 * part - 1)), 3U);
    expect_same_everywhere(slice(1, 40 * part - 1));
  }
}

TEST(joins, small_parts_are_copied) {
  const Tensor a = product(4, 20, 51, 8), b = product(4, 20, 53, 8);
  expect_cases({{"rows", Tensor::cat({a, b}, 0), 3}});
}

TEST(joins, a_join_may_be_assigned_to_what_it_reads) {
  Tensor x = small({32, 20}, 61);
  const Tensor w = small({20, 20}, 63);
  auto half = [&](int64_t from) { return x.shrink({{from, from + 16}, {0, 20}}); };
  const Tensor expected = Tensor::cat({half(16).matmul(w), half(0) + 1}, 0).realize();
  x.assign(Tensor::cat({half(16).matmul(w), half(0) + 1}, 0));
  EXPECT_EQ(x.tolist<float>(), expected.tolist<float>());
}

// Forms that are nearly a join, and joins: places overlap, leave gaps, or are chosen otherwise.
TEST(joins, any_choice_of_two_pads_is_what_it_says) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 16; ++i) {
    auto draw = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    };
    const int64_t axis = draw(2), at = draw(3) == 0 ? 15 + draw(3) : 16;
    const int64_t from = draw(3) == 0 ? 15 + draw(2) : 16;
    auto put = [&](const Tensor& x, int64_t before, int64_t behind) {
      SizePairs room{{0, 0}, {0, 0}};
      room[static_cast<size_t>(axis)] = {before, behind};
      return x.pad(room);
    };
    const Tensor a = put(product(16, 16, random()), 0, 16),
                 b = put(product(16, 16, random()), from, 16 - from);
    Shape wide{1, 1};
    wide[static_cast<size_t>(axis)] = 32;
    const Tensor place = Tensor::arange(32).reshape(wide);
    const Tensor test = draw(4) == 0 ? place >= at : place < at;
    const Tensor value = draw(2) == 0 ? Tensor::where(test, a, b) : a + b;
    SCOPED_TRACE(fmt::format("case {}: axis {}, at {}, from {}", i, axis, at, from));
    expect_same_everywhere(draw(2) == 0 ? value : value + 1);
  }
}

}  // namespace
}  // namespace koine::test
