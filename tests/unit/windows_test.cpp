// Matrix products, windows over images, attention and losses, each against loops written from its
// definition. Operands are such that sums of products are exact.
#include <algorithm>
#include <map>
#include <set>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/schedule.hpp"
#include "plain.hpp"

namespace koine::test {
namespace {

using enum DType;
constexpr DType product_dtypes[] = {Float32, Float64, Int32};

void expect_value(const std::string& name, const Plain& want, const std::function<Tensor()>& method,
                  const Within& within = {}, bool quick = false) {
  on_both(quick, [&] {
    EXPECT_EQ(difference(want, method(), within), "")
        << name << " " << dtype_name(want.dtype) << ", seed " << test_seed();
  });
}
Plain scalar(DType dtype, Real value) { return {dtype, {}, {value}}; }

// The sum over all values of the summed letters of the product of the operands, each read at its
// letters: what einsum means.
struct Formula {
  std::vector<std::string> terms;
  std::string output;
};
Plain contraction(const Formula& formula, const std::vector<Plain>& operands) {
  std::map<char, int64_t> sizes;
  for (size_t k = 0; k < operands.size(); ++k)
    for (size_t i = 0; i < formula.terms[k].size(); ++i)
      sizes[formula.terms[k][i]] = operands[k].shape[i];
  std::string summed;
  Shape shape, inner;
  for (const char c : formula.output) shape.push_back(sizes[c]);
  for (const auto& [c, n] : sizes)
    if (formula.output.find(c) == std::string::npos) summed += c, inner.push_back(n);
  return plain(operands[0].dtype, shape, [&](const Place& at) {
    Real sum = 0;
    for (int64_t i = 0; i < count_of(inner); ++i) {
      const Place inside = place_of(inner, i);
      std::map<char, int64_t> now;
      for (size_t k = 0; k < at.size(); ++k) now[formula.output[k]] = at[k];
      for (size_t k = 0; k < inside.size(); ++k) now[summed[k]] = inside[k];
      Real product = 1;
      for (size_t k = 0; k < operands.size(); ++k) {
        Place own;
        for (const char c : formula.terms[k]) own.push_back(now[c]);
        product *= operands[k](own);
      }
      sum += product;
    }
    return sum;
  });
}

}  // namespace

TEST(products, einsum) {
  struct Row {
    const char* text;
    Formula formula;
    std::vector<Shape> shapes;
  };
  const std::vector<Row> rows = {
      {"ij,jk->ik", {{"ij", "jk"}, "ik"}, {{3, 4}, {4, 5}}},
      {"ij,jk", {{"ij", "jk"}, "ik"}, {{3, 4}, {4, 5}}},
      {"kj,ji", {{"kj", "ji"}, "ik"}, {{3, 4}, {4, 5}}},  // alphabetical
      {"bB , Bc", {{"bB", "Bc"}, "bc"}, {{3, 2}, {2, 4}}},
      {"bA", {{"bA"}, "Ab"}, {{3, 2}}},  // capitals first
      {"ij->j", {{"ij"}, "j"}, {{3, 4}}},
      {"ij->", {{"ij"}, ""}, {{3, 4}}},
      {"ij->ji", {{"ij"}, "ji"}, {{3, 4}}},
      {"ii", {{"ii"}, ""}, {{4, 4}}},
      {"ii->i", {{"ii"}, "i"}, {{4, 4}}},
      {"iij->ji", {{"iij"}, "ji"}, {{3, 3, 2}}},
      {"iii->i", {{"iii"}, "i"}, {{3, 3, 3}}},
      {"i,j->ij", {{"i", "j"}, "ij"}, {{3}, {2}}},
      {"i,i", {{"i", "i"}, ""}, {{7}, {7}}},
      {",i->i", {{"", "i"}, "i"}, {{}, {3}}},
      {"bij,bjk->bik", {{"bij", "bjk"}, "bik"}, {{2, 3, 4}, {2, 4, 2}}},
      {"bhqd,bhkd->bhqk", {{"bhqd", "bhkd"}, "bhqk"}, {{2, 2, 3, 4}, {2, 2, 1, 4}}},
      {"ij,jk,kl->il", {{"ij", "jk", "kl"}, "il"}, {{2, 3}, {3, 2}, {2, 4}}},
      {"ij,kj->k", {{"ij", "kj"}, "k"}, {{2, 3}, {4, 3}}},
      {"ij,jk->ik", {{"ij", "jk"}, "ik"}, {{2, 0}, {0, 3}}},
      {"...ij,...jk->...ik", {{"bij", "bjk"}, "bik"}, {{2, 3, 4}, {2, 4, 2}}},
      {"...ij,...jk->i...k", {{"cij", "bcjk"}, "ibck"}, {{2, 3, 4}, {3, 2, 4, 2}}},
      {"i...j,j...", {{"ibj", "jb"}, "bi"}, {{3, 2, 4}, {4, 2}}},  // those of '...' first
      {"i...,j", {{"iab", "j"}, "abij"}, {{2, 3, 2}, {2}}},
      {"...i,ij->...j", {{"i", "ij"}, "j"}, {{4}, {4, 2}}},
      {"...ij,...jk->...ik", {{"zij", "bjk"}, "bik"}, {{1, 3, 4}, {2, 4, 2}}},  // broadcast
      {"...i,...i->...", {{"azi", "wbi"}, "ab"}, {{2, 1, 4}, {1, 3, 4}}},
      {"...,...->...", {{"ab", "zb"}, "ab"}, {{3, 2}, {1, 2}}},
      {"...ii->...i", {{"bii"}, "bi"}, {{2, 3, 3}}},
  };
  std::mt19937_64 random(test_seed());
  for (const Row& row : rows)
    for (const DType d : product_dtypes) {
      std::vector<Plain> operands;
      for (const Shape& shape : row.shapes) operands.push_back(exact_numbers(random, d, shape));
      expect_value(
          row.text, contraction(row.formula, operands),
          [&] {
            std::vector<Tensor> tensors;
            for (const Plain& x : operands) tensors.push_back(tensor_of(x));
            return Tensor::einsum(row.text, tensors);
          },
          {}, d != Float32);
    }
}

TEST(products, matrices) {
  struct Row {
    const char* name;
    Shape a, b;
    Formula formula;
  };
  const std::vector<Row> rows = {
      {"matrices", {3, 5}, {5, 2}, {{"ij", "jk"}, "ik"}},
      {"vectors", {5}, {5}, {{"j", "j"}, ""}},
      {"a vector and a matrix", {5}, {5, 2}, {{"j", "jk"}, "k"}},
      {"a matrix and a vector", {3, 5}, {5}, {{"ij", "j"}, "i"}},
      {"a batch", {2, 3, 5}, {2, 5, 4}, {{"bij", "bjk"}, "bik"}},
      {"a batch with one matrix", {2, 3, 5}, {5, 4}, {{"bij", "jk"}, "bik"}},
      {"one matrix with a batch", {3, 5}, {2, 5, 4}, {{"ij", "bjk"}, "bik"}},
      {"a batch and a vector", {2, 3, 5}, {5}, {{"bij", "j"}, "bi"}},
      {"a vector and a batch", {5}, {2, 5, 4}, {{"j", "bjk"}, "bk"}},
      {"one row and a vector", {1, 5}, {5}, {{"ij", "j"}, "i"}},
      {"a vector and one column", {5}, {5, 1}, {{"j", "jk"}, "k"}},
      {"a batch of one and a vector", {1, 3, 5}, {5}, {{"bij", "j"}, "bi"}},
      {"a vector and a batch of one", {5}, {1, 5, 4}, {{"j", "bjk"}, "bk"}},
      {"nothing to add", {3, 0}, {0, 2}, {{"ij", "jk"}, "ik"}},
      {"no rows", {0, 5}, {5, 2}, {{"ij", "jk"}, "ik"}},
      {"size 1", {1, 1}, {1, 1}, {{"ij", "jk"}, "ik"}},
  };
  std::mt19937_64 random(test_seed());
  for (const Row& row : rows)
    for (const DType d : product_dtypes) {
      const Plain a = exact_numbers(random, d, row.a), b = exact_numbers(random, d, row.b);
      const Plain want = contraction(row.formula, {a, b});
      expect_value(row.name, want, [&] { return tensor_of(a).matmul(tensor_of(b)); });
      expect_value(row.name, want, [&] { return tensor_of(a).dot(tensor_of(b)); }, {}, true);
    }
  // Batches that broadcast: (2, 1) with (3,).
  const Plain a = exact_numbers(random, Float32, {2, 1, 3, 4}),
              b = exact_numbers(random, Float32, {3, 4, 2});
  const Plain want = plain(Float32, {2, 3, 3, 2}, [&](const Place& at) {
    Real sum = 0;
    for (int64_t j = 0; j < 4; ++j) sum += a({at[0], 0, at[2], j}) * b({at[1], j, at[3]});
    return sum;
  });
  expect_value("broadcast", want, [&] { return tensor_of(a).matmul(tensor_of(b)); });
}

TEST(products, linear) {
  std::mt19937_64 random(test_seed());
  for (const DType d : product_dtypes)
    for (const Shape& batch : {Shape{}, {4}, {2, 3}}) {
      Shape in = batch, out = batch;
      in.push_back(5), out.push_back(3);
      const Plain x = exact_numbers(random, d, in), w = exact_numbers(random, d, {3, 5}),
                  b = exact_numbers(random, d, {3}), scale = exact_numbers(random, d, {5});
      auto applied = [&](bool bias) {
        return plain(d, out, [&](const Place& at) {
          Real sum = bias ? b({at.back()}) : 0;
          Place from = at;
          for (int64_t j = 0; j < 5; ++j) {
            from.back() = j;
            sum += x(from) * w({at.back(), j});
          }
          return sum;
        });
      };
      expect_value("linear", applied(false), [&] { return tensor_of(x).linear(tensor_of(w)); });
      expect_value("linear with bias", applied(true),
                   [&] { return tensor_of(x).linear(tensor_of(w), tensor_of(b)); });
      // A weight with one axis scales, as tinygrad's does.
      expect_value("linear with one axis",
                   plain(d, in, [&](const Place& at) { return x(at) * scale({at.back()}); }),
                   [&] { return tensor_of(x).linear(tensor_of(scale)); });
    }
}

namespace {

// Of an image (N, C, H, W) as it stands in a border: `fill` outside.
Real padded(const Plain& x, int64_t n, int64_t c, int64_t y, int64_t z, Real fill) {
  return y < 0 || y >= x.size(2) || z < 0 || z >= x.size(3) ? fill : x({n, c, y, z});
}
int64_t outputs(int64_t size, int64_t kernel, const Tensor::Window& w) {
  return (size + 2 * w.padding - w.dilation * (kernel - 1) - 1) / w.stride + 1;
}

Plain convolved(const Plain& x, const Plain& k, const Plain* bias, const Tensor::Window& w,
                int64_t groups) {
  const Shape shape{x.size(0), k.size(0), outputs(x.size(2), k.size(2), w),
                    outputs(x.size(3), k.size(3), w)};
  return plain(x.dtype, shape, [&](const Place& at) {
    const int64_t group = at[1] / (k.size(0) / groups);
    Real sum = bias != nullptr ? (*bias)({at[1]}) : 0;
    for (int64_t c = 0; c < k.size(1); ++c)
      for (int64_t i = 0; i < k.size(2); ++i)
        for (int64_t j = 0; j < k.size(3); ++j)
          sum += k({at[1], c, i, j}) * padded(x, at[0], group * k.size(1) + c,
                                              at[2] * w.stride - w.padding + i * w.dilation,
                                              at[3] * w.stride - w.padding + j * w.dilation, 0);
    return sum;
  });
}

// What each output pixel sends back to the pixels that it was computed from, and to no other: a
// weight that is infinite shows in them alone.
Plain sent_back(const Plain& d, const Plain& k, const Shape& shape, const Tensor::Window& w) {
  return plain(d.dtype, shape, [&](const Place& at) {
    Real sum = 0;
    for (int64_t o = 0; o < k.size(0); ++o)
      for (int64_t y = 0; y < d.size(2); ++y)
        for (int64_t x = 0; x < d.size(3); ++x) {
          const int64_t i = at[2] + w.padding - y * w.stride, j = at[3] + w.padding - x * w.stride;
          if (i < 0 || j < 0 || i % w.dilation != 0 || j % w.dilation != 0) continue;
          if (i / w.dilation >= k.size(2) || j / w.dilation >= k.size(3)) continue;
          sum += d({at[0], o, y, x}) * k({o, at[1], i / w.dilation, j / w.dilation});
        }
    return sum;
  });
}

struct Convolution {
  Shape x, k;
  Tensor::Window window;
  int64_t groups;
};

// What each weight meets: the pixels that it is multiplied by, times what their windows send back.
Plain met(const Plain& x, const Plain& d, const Shape& shape, const Tensor::Window& w) {
  return plain(d.dtype, shape, [&](const Place& at) {
    Real sum = 0;
    for (int64_t n = 0; n < d.size(0); ++n)
      for (int64_t i = 0; i < d.size(2); ++i)
        for (int64_t j = 0; j < d.size(3); ++j)
          sum += d({n, at[0], i, j}) * padded(x, n, at[1],
                                              i * w.stride - w.padding + at[2] * w.dilation,
                                              j * w.stride - w.padding + at[3] * w.dilation, 0);
    return sum;
  });
}

// The elements that each window shows, folded.
Plain pooled(const Plain& x, int64_t kernel, const Tensor::Window& w, Real fill,
             const std::function<Real(const std::vector<Real>&)>& fold, DType dtype) {
  const Shape shape{x.size(0), x.size(1), outputs(x.size(2), kernel, w),
                    outputs(x.size(3), kernel, w)};
  return plain(dtype, shape, [&](const Place& at) {
    std::vector<Real> shown;
    for (int64_t i = 0; i < kernel; ++i)
      for (int64_t j = 0; j < kernel; ++j)
        shown.push_back(padded(x, at[0], at[1], at[2] * w.stride - w.padding + i,
                               at[3] * w.stride - w.padding + j, fill));
    return fold(shown);
  });
}

}  // namespace

TEST(windows, conv2d) {
  const std::vector<Convolution> rows = {
      {{2, 3, 5, 6}, {4, 3, 3, 2}, {1, 0, 1}, 1}, {{1, 2, 7, 5}, {3, 2, 3, 3}, {2, 1, 1}, 1},
      {{1, 2, 7, 8}, {2, 2, 2, 3}, {1, 2, 2}, 1}, {{2, 4, 5, 5}, {6, 2, 3, 3}, {1, 1, 1}, 2},
      {{1, 3, 6, 4}, {3, 1, 2, 2}, {3, 1, 2}, 3}, {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 0, 1}, 1},
      {{2, 2, 3, 3}, {2, 2, 3, 3}, {1, 0, 1}, 1}, {{1, 4, 4, 4}, {4, 2, 1, 1}, {2, 0, 1}, 2},
      {{0, 2, 3, 3}, {2, 2, 2, 2}, {1, 0, 1}, 1}, {{1, 1, 2, 2}, {1, 1, 2, 2}, {1, 3, 1}, 1},
  };
  std::mt19937_64 random(test_seed());
  for (const Convolution& row : rows)
    for (const DType d : product_dtypes) {
      const Plain x = exact_numbers(random, d, row.x), k = exact_numbers(random, d, row.k),
                  bias = exact_numbers(random, d, {row.k[0]});
      const std::string name =
          fmt::format("conv2d, stride {} padding {} dilation {} groups {}", row.window.stride,
                      row.window.padding, row.window.dilation, row.groups);
      expect_value(
          name, convolved(x, k, nullptr, row.window, row.groups),
          [&] { return tensor_of(x).conv2d(tensor_of(k), {}, row.window, row.groups); }, {},
          d == Float64);
      expect_value(
          name + ", bias", convolved(x, k, &bias, row.window, row.groups),
          [&] {
            return tensor_of(x).conv2d(tensor_of(k), tensor_of(bias), row.window, row.groups);
          },
          {}, d != Float64);
    }
  const Plain x = exact_numbers(random, Float32, {1, 2, 4, 4}),
              k = exact_numbers(random, Float32, {2, 2, 3, 3});
  expect_value("conv2d", convolved(x, k, nullptr, {}, 1),
               [&] { return tensor_of(x).conv2d(tensor_of(k)); });
}

TEST(windows, gradients_of_conv2d) {
  const std::vector<Tensor::Window> windows{{1, 0, 1}, {1, 1, 1}, {2, 1, 1}, {1, 2, 2}, {3, 0, 1}};
  std::mt19937_64 random(test_seed());
  for (const Tensor::Window& w : windows)
    for (const int64_t size : {7, 18}) {
      const Plain x = exact_numbers(random, Float32, {2, 3, size, size + 1});
      Plain k = exact_numbers(random, Float32, {5, 3, 3, 3});
      k.at[random() % k.at.size()] = inf;
      const Plain d =
          exact_numbers(random, Float32, {2, 5, outputs(size, 3, w), outputs(size + 1, 3, w)});
      const std::string name = fmt::format("gradient of conv2d, stride {} padding {} dilation {}",
                                           w.stride, w.padding, w.dilation);
      expect_value(name, sent_back(d, k, x.shape, w), [&] {
        const Tensor image = tensor_of(x);
        return (image.conv2d(tensor_of(k), {}, w) * tensor_of(d)).sum().gradient({image})[0];
      });
    }
  for (const Tensor::Window& w : windows) {
    const Plain x = exact_numbers(random, Float32, {2, 3, 9, 10}),
                k = exact_numbers(random, Float32, {5, 3, 3, 3}),
                d = exact_numbers(random, Float32, {2, 5, outputs(9, 3, w), outputs(10, 3, w)});
    const std::string name =
        fmt::format("gradient of conv2d's weights, stride {} padding {} dilation {}", w.stride,
                    w.padding, w.dilation);
    expect_value(name, met(x, d, k.shape, w), [&] {
      const Tensor weights = tensor_of(k);
      return (tensor_of(x).conv2d(weights, {}, w) * tensor_of(d)).sum().gradient({weights})[0];
    });
  }
}

// Where a product beside windows is large, the other factor is copied to lie along the channels,
// which have the lanes unless more of memory lies along the windows. Of few channels it is not.
TEST(windows, of_many_channels) {
  const std::vector<Convolution> rows = {
      {{4, 16, 32, 33}, {32, 16, 3, 3}, {2, 1, 1}, 1},
      {{6, 32, 7, 7}, {64, 32, 3, 3}, {1, 1, 1}, 1},
      {{2, 8, 40, 41}, {34, 4, 5, 5}, {1, 2, 2}, 2},
  };
  std::mt19937_64 random(test_seed());
  for (const Convolution& row : rows) {
    const Tensor image = tensor_of(exact_numbers(random, Float32, row.x)),
                 weights = tensor_of(exact_numbers(random, Float32, row.k)),
                 value = image.conv2d(weights, {}, row.window, row.groups);
    const Tensor sent = tensor_of(exact_numbers(random, Float32, value.shape()));
    const auto slopes = [&](const Tensor& convolved, const Tensor& back, const Tensor& to) {
      return (convolved * back).sum().gradient({to})[0];
    };
    std::vector<Tensor> few, few_slopes;
    const int64_t each = row.k[0] / row.groups, inner = row.k[1];
    for (int64_t first = 0; first < row.k[0];) {
      const int64_t last = std::min(first + 8, (first / each + 1) * each),
                    group = first / each * inner;
      const Tensor part = weights[{Slice{first, last}}].contiguous(),
                   seen = image[{Slice{}, Slice{group, group + inner}}].contiguous();
      few.push_back(seen.conv2d(part, {}, row.window));
      few_slopes.push_back(
          slopes(few.back(), sent[{Slice{}, Slice{first, last}}].contiguous(), part));
      first = last;
    }
    const auto largest = [](const Tensor& a, const Tensor& b) {
      return (a - b).abs().max().item();
    };
    EXPECT_EQ(kernel_count({value}), 2) << fmt::format("{}", fmt::join(row.k, " "));
    EXPECT_EQ(largest(value, Tensor::cat(few, 1)), 0) << "seed " << test_seed();
    EXPECT_EQ(largest(slopes(value, sent, weights), Tensor::cat(few_slopes, 0)), 0);
  }
}

TEST(windows, pools) {
  struct Row {
    Shape x;
    int64_t kernel;
    std::optional<int64_t> stride;
    int64_t padding;
  };
  const std::vector<Row> rows = {
      {{2, 3, 6, 4}, 2, {}, 0},
      {{1, 2, 7, 5}, 2, {}, 0},
      {{1, 2, 7, 5}, 3, 2, 1},
      {{1, 1, 5, 6}, 3, 1, 0},
      {{2, 1, 4, 4}, 2, {}, 1},
      {{1, 1, 6, 6}, 3, {}, 1},
      {{1, 2, 3, 3}, 1, {}, 0},
      {{1, 2, 5, 5}, 1, 2, 0},
      {{1, 1, 8, 7}, 4, 3, 2},
      {{0, 2, 4, 4}, 2, {}, 0},
      {{1, 1, 1, 1}, 3, {}, 1},
      // sums of long rows of neighbours go on from one window to the next
      {{2, 1, 37, 20}, 17, 1, 0},
      {{1, 2, 16, 33}, 16, 1, 8},
      {{0, 2, 18, 18}, 16, 1, 0}};
  std::mt19937_64 random(test_seed());
  for (const Row& row : rows)
    for (const DType d : {Float32, Float64, Int32, UInt8}) {
      if (is_sanitized() && (d == Float64 || d == Int32)) continue;
      const Tensor::Window w{row.stride.value_or(row.kernel), row.padding, 1};
      const std::string name =
          fmt::format("pool of {}, stride {} padding {}", row.kernel, w.stride, w.padding);
      const Plain x = special_numbers(random, d, row.x, 12);
      auto largest = [](const std::vector<Real>& v) {
        Real out = -inf;
        for (const Real e : v) out = larger(out, e);
        return out;
      };
      auto mean = [](const std::vector<Real>& v) {  // a border of zeros counts, as PyTorch's does
        Real sum = 0;
        for (const Real e : v) sum += e;
        return sum / static_cast<Real>(v.size());
      };
      expect_value(
          "max " + name, pooled(x, row.kernel, w, -inf, largest, d),
          [&] { return tensor_of(x).max_pool2d(row.kernel, row.stride, row.padding); }, {},
          d != Float32);
      expect_value(
          "average " + name, pooled(x, row.kernel, w, 0, mean, is_float(d) ? d : Float32),
          [&] { return tensor_of(x).avg_pool2d(row.kernel, row.stride, row.padding); }, {2},
          d != Float32);
    }
}

namespace {

// softmax(q k^T / sqrt(width) + mask) v. A row that sees nothing is 0 / 0 (PyTorch makes it 0).
Plain attended(const Plain& q, const Plain& k, const Plain& v,
               const std::function<Real(const Place& at, Real score)>& masked) {
  Shape shape = q.shape;
  shape.back() = v.shape.back();
  return plain(q.dtype, shape, [&](const Place& at) {
    const size_t r = at.size();
    const int64_t keys = k.shape[r - 2], width = k.shape[r - 1];
    auto read = [&](const Plain& x, int64_t row, int64_t column) {
      Place from = at;
      from[r - 2] = row, from[r - 1] = column;
      return x(from);
    };
    std::vector<Real> scores;
    for (int64_t j = 0; j < keys; ++j) {
      Real score = 0;
      for (int64_t c = 0; c < width; ++c) score += read(q, at[r - 2], c) * read(k, j, c);
      Place where = at;
      where.back() = j;
      scores.push_back(masked(where, score / std::sqrt(static_cast<Real>(width))));
    }
    Real top = -inf, sum = 0, out = 0;
    for (const Real s : scores) top = std::max(top, s);
    for (int64_t j = 0; j < keys; ++j) {
      const Real e = std::exp(scores[static_cast<size_t>(j)] - top);
      sum += e;
      out += e * read(v, j, at.back());
    }
    return out / sum;
  });
}

}  // namespace

TEST(windows, attention) {
  std::mt19937_64 random(test_seed());
  const Within near{64, 4};
  for (const DType d : {Float32, Float64})
    for (const Shape& batch : {Shape{}, {2}, {2, 3}}) {
      auto shaped = [&](int64_t rows, int64_t width) {
        Shape out = batch;
        out.push_back(rows), out.push_back(width);
        return exact_numbers(random, d, out);
      };
      const Plain q = shaped(5, 4), k = shaped(7, 4), v = shaped(7, 3);
      const Plain bias = exact_numbers(random, d, {5, 7});
      Plain seen = exact_numbers(random, Bool, {5, 7});
      for (int64_t i = 0; i < 5; ++i) seen.at[static_cast<size_t>(7 * i + i)] = 1;
      auto pair_of = [](const Place& at) { return Place(at.end() - 2, at.end()); };
      auto attend = [&](const Tensor& mask) {
        return tensor_of(q).scaled_dot_product_attention(tensor_of(k), tensor_of(v), mask);
      };
      expect_value(
          "attention", attended(q, k, v, [](const Place&, Real s) { return s; }),
          [&] { return attend({}); }, near);
      expect_value(
          "attention with weights",
          attended(q, k, v, [&](const Place& at, Real s) { return s + bias(pair_of(at)); }),
          [&] { return attend(tensor_of(bias)); }, near);
      expect_value(
          "masked attention",
          attended(q, k, v,
                   [&](const Place& at, Real s) { return seen(pair_of(at)) != 0 ? s : -inf; }),
          [&] { return attend(tensor_of(seen)); }, near);
      for (int64_t j = 0; j < 7; ++j) seen.at[static_cast<size_t>(14 + j)] = 0;
      expect_value(
          "attention that sees nothing",
          attended(q, k, v,
                   [&](const Place& at, Real s) { return seen(pair_of(at)) != 0 ? s : -inf; }),
          [&] { return attend(tensor_of(seen)); }, near);
    }
}

// --- losses --------------------------------------------------------------------------------------

namespace {

// Of a row of scores: -log softmax at a class, and the mean of that over all classes.
struct RowLoss {
  Real hard, even;
};
RowLoss row_loss(const Plain& x, int64_t row, int64_t target) {
  Real top = -inf, sum = 0, all = 0;
  for (int64_t c = 0; c < x.size(1); ++c) top = std::max(top, x({row, c}));
  for (int64_t c = 0; c < x.size(1); ++c) {
    sum += std::exp(x({row, c}) - top);
    all += x({row, c}) - top;
  }
  return {std::log(sum) - (x({row, target}) - top),
          std::log(sum) - all / static_cast<Real>(x.size(1))};
}

// The mean over the rows whose target is not `ignored`.
template <class Loss>
Real mean_of_rows(const Plain& target, std::optional<int64_t> ignored, Loss loss) {
  Real sum = 0, rows = 0;
  for (int64_t i = 0; i < target.size(0); ++i) {
    const auto t = static_cast<int64_t>(target({i}));
    if (ignored && t == *ignored) continue;
    sum += loss(i, t);
    rows += 1;
  }
  return sum / rows;
}

}  // namespace

TEST(losses, of_classes) {
  std::mt19937_64 random(test_seed());
  const Within near{8, 8};
  for (const DType d : {Float32, Float64})
    for (const DType counted : {Int32, Int64})
      for (const std::optional<int64_t> ignored : {std::optional<int64_t>{}, {-100}, {2}, {0}}) {
        const Plain x = exact_numbers(random, d, {9, 5});
        Plain target = plain(counted, {9}, [&](const Place&) { return Real(random() % 5); });
        if (ignored) target.at[3] = target.at[7] = static_cast<Real>(*ignored);
        auto loss = [&](Real smoothing) {
          return scalar(d, mean_of_rows(target, ignored, [&](int64_t i, int64_t t) {
                          const RowLoss of = row_loss(x, i, t);
                          return (1 - smoothing) * of.hard + smoothing * of.even;
                        }));
        };
        auto t = [&] { return tensor_of(target); };
        expect_value(
            "cross_entropy", loss(0), [&] { return tensor_of(x).cross_entropy(t(), ignored); },
            near);
        for (const double smoothing : {0.0, 0.125, 1.0})
          expect_value(
              "sparse_categorical_crossentropy", loss(smoothing),
              [&] { return tensor_of(x).sparse_categorical_crossentropy(t(), smoothing, ignored); },
              near, smoothing != 0.125);
        const Plain picked = scalar(
            d, mean_of_rows(target, ignored, [&](int64_t i, int64_t c) { return -x({i, c}); }));
        expect_value("nll_loss", picked, [&] { return tensor_of(x).nll_loss(t(), ignored); }, near);
      }
  // Where no row counts there is no mean.
  const Tensor x = Tensor::ones({2, 3}), none = Tensor::from<int>({1, 1});
  EXPECT_TRUE(std::isnan(x.cross_entropy(none, 1).item()));
  EXPECT_TRUE(std::isnan(x.nll_loss(none, 1).item()));
}

TEST(losses, of_differences) {
  std::mt19937_64 random(test_seed());
  for (const DType d : {Float32, Float64, Int32, UInt8})
    for (const Shape& shape : {Shape{}, {7}, {3, 4}}) {
      const Plain a = exact_numbers(random, d, shape), b = exact_numbers(random, d, shape);
      Real sum = 0;
      for (size_t i = 0; i < a.at.size(); ++i) sum += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
      expect_value("mse_loss",
                   scalar(is_float(d) ? d : Float32, sum / static_cast<Real>(a.at.size())),
                   [&] { return tensor_of(a).mse_loss(tensor_of(b)); }, {2});
    }
}

// -(t log s(x) + (1 - t) log(1 - s(x))) for a logistic s. Certain and right answers cost little,
// and keep their digits.
TEST(losses, binary_crossentropy_of_logits_keeps_small_losses) {
  const Real points[] = {-100, -30, -12.5L, -4, -1, -0.25L, 0, 0.25L, 1, 4, 12.5L, 30, 100};
  for (const DType d : {Float32, Float64})
    for (const Real x : points)
      for (const Real t : {0.0L, 0.25L, 1.0L}) {
        // log(1 + exp(-x)) and log(1 + exp(x)), each without cancellation.
        auto cost = [](Real v) {
          return std::max<Real>(v, 0) + std::log1p(std::exp(-std::fabs(v)));
        };
        const Real want = t * cost(-x) + (1 - t) * cost(x);
        expect_value(
            fmt::format("logits {} {}", static_cast<double>(x), static_cast<double>(t)),
            scalar(d, want),
            [&] {
              return tensor_of(row_of(d, {x}))
                  .binary_crossentropy_logits(tensor_of(row_of(d, {t})));
            },
            {8}, x != 12.5L);
      }
  std::mt19937_64 random(test_seed());
  const Plain x = exact_numbers(random, Float32, {5, 3}), t = exact_numbers(random, Bool, {5, 3});
  Real sum = 0;
  for (size_t i = 0; i < x.at.size(); ++i)
    sum += std::log1p(std::exp(t.at[i] != 0 ? -x.at[i] : x.at[i]));
  expect_value("logits", scalar(Float32, sum / 15),
               [&] { return tensor_of(x).binary_crossentropy_logits(tensor_of(t).cast(Float32)); },
               {8});
}

// Each pixel goes over the windows that hold it, one remainder of the stride at a time.
TEST(windows, spec_C38_gradients_of_strided_windows) {
  for (const int64_t stride : {2, 3})
    for (const int64_t kernel : {1, 2, 3, 5})
      for (const int64_t size : {stride, 2 * stride, 2 * stride + 1, 3 * stride}) {
        if (size < kernel) continue;
        SCOPED_TRACE(fmt::format("stride {} kernel {} size {}", stride, kernel, size));
        const Tensor x = small({1, 2, size, size}).requires_grad(),
                     k = small({3, 2, kernel, kernel}, 1);
        const Tensor convolved = x.conv2d(k, {}, Tensor::Window{stride});
        for (const Tensor& y : {convolved, x.max_pool2d(kernel, stride)})
          expect_same_everywhere((y * small(y.shape(), 2)).sum().gradient({x})[0]);
      }
}

// What a strided convolution sends back lies in memory as its sum reads it: the pixels last, so
// that neighbours are read and stored as vectors.
TEST(windows, what_windows_send_back_lies_as_it_is_read) {
  const Tensor x = small({1, 8, 24, 24}).requires_grad(), k = small({8, 8, 3, 3}, 1),
               y = x.conv2d(k, {}, Tensor::Window{2});
  const std::vector<Kernel> kernels =
      schedule({(y * small(y.shape(), 2)).sum().gradient({x})[0].uop()});
  ASSERT_EQ(kernels.size(), 2);
  const UOp& sent = kernels[0].buffers[0];
  EXPECT_EQ(const_int(sent.dim(sent.rank() - 1)), 11);
  EXPECT_EQ(const_int(sent.dim(sent.rank() - 2)), 11);
  EXPECT_EQ(const_int(sent.dim(sent.rank() - 3)), 3);
  EXPECT_EQ(const_int(sent.dim(sent.rank() - 4)), 3);
  int stores = 0;  // one for each remainder of both axes
  for (const UOp& u : toposort(kernels[1].ast)) stores += u.is(Op::Store) ? 1 : 0;
  EXPECT_EQ(stores, 4);
}

}  // namespace koine::test
