// Methods of Tensor that go along axes, against loops written from their definition.
#include <algorithm>
#include <set>

#include "koine/ir/text.hpp"
#include "plain.hpp"

namespace koine::test {
namespace {

using enum DType;

using Values = std::vector<Real>;

Real total(const Values& v) {
  Real out = 0;
  for (const Real x : v) out += x;
  return out;
}
Real mean(const Values& v) { return total(v) / static_cast<Real>(v.size()); }
template <int correction>
Real variance(const Values& v) {
  Real out = 0;
  for (const Real x : v) out += (x - mean(v)) * (x - mean(v));
  return out / std::max<Real>(0, static_cast<Real>(v.size()) - correction);
}
Real product(const Values& v) {
  Real out = 1;
  for (const Real x : v) out *= x;
  return out;
}
Real largest(const Values& v) {
  Real out = -inf;
  for (const Real x : v) out = larger(out, x);
  return out;
}
Real smallest(const Values& v) {
  Real out = inf;
  for (const Real x : v) out = smaller(out, x);
  return out;
}
Real log_of_exponentials(const Values& v) {
  Real out = 0;
  for (const Real x : v) out += std::exp(x);
  return std::log(out);
}
Real euclidean(const Values& v) {
  Real out = 0;
  for (const Real x : v) out += x * x;
  return std::sqrt(out);
}

enum class Result { Same, Wide, Float, Truth };  // Wide: small integers and bool in 32 bits
struct Reduction {
  const char* name;
  Tensor (*method)(const Tensor&, const IntList&, bool);
  Real (*fold)(const Values&);
  Result result = Result::Same;
  Within within = {};
  bool of_none = true;  // whether there is a value for no elements
};

const std::vector<Reduction> reductions = {
    {"sum", [](const Tensor& x, const IntList& a, bool k) { return x.sum(a, k); }, total,
     Result::Wide},
    {"prod",
     [](const Tensor& x, const IntList& a, bool k) { return x.prod(a, k); },
     product,
     Result::Wide,
     {24}},
    {"max",
     [](const Tensor& x, const IntList& a, bool k) { return x.max(a, k); },
     largest,
     Result::Same,
     {},
     false},
    {"min",
     [](const Tensor& x, const IntList& a, bool k) { return x.min(a, k); },
     smallest,
     Result::Same,
     {},
     false},
    {"mean",
     [](const Tensor& x, const IntList& a, bool k) { return x.mean(a, k); },
     mean,
     Result::Float,
     {2}},
    {"var",
     [](const Tensor& x, const IntList& a, bool k) { return x.var(a, k); },
     variance<1>,
     Result::Float,
     {8, 16}},
    {"var, of a population",
     [](const Tensor& x, const IntList& a, bool k) { return x.var(a, k, 0); },
     variance<0>,
     Result::Float,
     {8, 16}},
    {"var, with 3 degrees less",
     [](const Tensor& x, const IntList& a, bool k) { return x.var(a, k, 3); },
     variance<3>,
     Result::Float,
     {8, 64}},
    {"std",
     [](const Tensor& x, const IntList& a, bool k) { return x.std(a, k); },
     [](const Values& v) { return std::sqrt(variance<1>(v)); },
     Result::Float,
     {8, 4}},
    {"std, of a population",
     [](const Tensor& x, const IntList& a, bool k) { return x.std(a, k, 0); },
     [](const Values& v) { return std::sqrt(variance<0>(v)); },
     Result::Float,
     {8, 4}},
    {"any", [](const Tensor& x, const IntList& a, bool k) { return x.any(a, k); },
     [](const Values& v) {
       return Real(std::any_of(v.begin(), v.end(), [](Real x) { return x != 0; }));
     },
     Result::Truth},
    {"all", [](const Tensor& x, const IntList& a, bool k) { return x.all(a, k); },
     [](const Values& v) {
       return Real(std::all_of(v.begin(), v.end(), [](Real x) { return x != 0; }));
     },
     Result::Truth},
    {"logsumexp",
     [](const Tensor& x, const IntList& a, bool k) { return x.logsumexp(a, k); },
     log_of_exponentials,
     Result::Float,
     {4, 4}},
    {"norm",
     [](const Tensor& x, const IntList& a, bool k) { return x.norm(a, k); },
     euclidean,
     Result::Float,
     {0.501}},
};

DType result_of(Result result, DType d) {
  const bool small = d == Bool || (is_integer(d) && item_size(d) < 4);
  switch (result) {
    case Result::Wide:
      return !small ? d : is_unsigned(d) && d != Bool ? UInt32 : Int32;
    case Result::Float:
      return is_float(d) ? d : Float32;
    case Result::Truth:
      return Bool;
    case Result::Same:
      break;
  }
  return d;
}

// The elements that are reduced to one of the result, which has size 1 on the axes.
Values grouped(const Plain& x, const std::set<int64_t>& axes, const Place& kept) {
  Values out;
  for (int64_t i = 0; i < count_of(x.shape); ++i) {
    Place at = place_of(x.shape, i);
    bool in = true;
    for (size_t k = 0; k < at.size(); ++k)
      in = in && (axes.contains(static_cast<int64_t>(k)) || at[k] == kept[k]);
    if (in) out.push_back(x.at[static_cast<size_t>(i)]);
  }
  return out;
}

Shape without(const Shape& shape, const std::set<int64_t>& axes, bool keepdim) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool reduced = axes.contains(static_cast<int64_t>(i));
    if (!reduced) out.push_back(shape[i]);
    if (reduced && keepdim) out.push_back(1);
  }
  return out;
}

Plain reduced(const Plain& x, const std::set<int64_t>& axes, bool keepdim, DType dtype,
              const std::function<Real(const Values&)>& fold) {
  Plain out = plain(dtype, without(x.shape, axes, true),
                    [&](const Place& kept) { return fold(grouped(x, axes, kept)); });
  out.shape = without(x.shape, axes, keepdim);
  return out;
}

const std::vector<Shape> reduced_shapes = {{},     {1},    {7},       {0},
                                           {3, 5}, {4, 1}, {2, 0, 3}, {2, 1, 3, 2}};

// Every set of axes of a shape, as a user may write it: none for all, and negative ones.
void for_axes(const Shape& shape,
              const std::function<void(const IntList&, const std::set<int64_t>&)>& f) {
  const auto rank = static_cast<int64_t>(shape.size());
  std::set<int64_t> all;
  for (int64_t a = 0; a < rank; ++a) all.insert(a);
  f({}, all);
  for (int64_t mask = 1; mask < int64_t{1} << rank; ++mask) {
    IntList written;
    std::set<int64_t> axes;
    for (int64_t a = 0; a < rank; ++a)
      if ((mask >> a & 1) != 0) axes.insert(a), written.push_back(mask % 2 == 0 ? a - rank : a);
    f(written, axes);
  }
}

}  // namespace

TEST(methods, reductions_along_axes) {
  std::mt19937_64 random(test_seed());
  int turn = 0;
  for (const Reduction& row : reductions)
    for (const Shape& shape : reduced_shapes)
      for_axes(shape, [&](const IntList& written, const std::set<int64_t>& axes) {
        const DType d = number_dtypes[static_cast<size_t>(turn++ % 5)];
        const bool keepdim = random() % 2 == 0, special = random() % 3 == 0;
        if (!row.of_none && count_of(shape) == 0) return;  // an Error: refusals_test
        Plain x = special ? special_numbers(random, d, shape) : exact_numbers(random, d, shape);
        // Products of few integers, or they leave what the definition's numbers hold.
        if (!is_float(d) && count_of(shape) > 12 && std::string(row.name) == "prod")
          for (Real& v : x.at) v = v == 0 ? 1 : std::fmod(v, 4);
        const Plain want = reduced(x, axes, keepdim, result_of(row.result, d), row.fold);
        on_both(turn % 8 != 0, [&] {
          EXPECT_EQ(difference(want, row.method(tensor_of(x), written, keepdim), row.within), "")
              << row.name << " " << dtype_name(d) << " of " << shape_text(tensor_of(x).uop())
              << " over " << fmt::format("{}", fmt::join(axes, " ")) << ", seed " << test_seed();
        });
      });
}

namespace {

// What goes along one axis: the elements of each line give a line, or one value.
struct Along {
  const char* name;
  Tensor (*method)(const Tensor&, int64_t axis);
  Values (*definition)(const Values&);
  Result result = Result::Same;
  Within within = {};
};

// The first of equals; a NaN before all numbers.
template <class Before>
Values first_place(const Values& v, Before before) {
  size_t best = 0;
  for (size_t i = 1; i < v.size(); ++i)
    if (!std::isnan(v[best]) && (std::isnan(v[i]) || before(v[i], v[best]))) best = i;
  return {static_cast<Real>(best)};
}
Values each_less(const Values& v, Real what) {
  Values out;
  for (const Real x : v) out.push_back(x - what);
  return out;
}

const std::vector<Along> alongs = {
    {"argmax", [](const Tensor& x, int64_t a) { return x.argmax(a, true); },
     [](const Values& v) { return first_place(v, std::greater<>()); }},
    {"argmin", [](const Tensor& x, int64_t a) { return x.argmin(a, true); },
     [](const Values& v) { return first_place(v, std::less<>()); }},
    {"cumsum", [](const Tensor& x, int64_t a) { return x.cumsum(a); },
     [](const Values& v) {
       Values out;
       Real sum = 0;
       for (const Real x : v) out.push_back(sum += x);
       return out;
     },
     Result::Wide},
    {"softmax",
     [](const Tensor& x, int64_t a) { return x.softmax(a); },
     [](const Values& v) {
       Values out = each_less(v, largest(v));
       for (Real& x : out) x = std::exp(x);
       const Real sum = total(out);
       for (Real& x : out) x /= sum;
       return out;
     },
     Result::Float,
     {16}},
    {"log_softmax",
     [](const Tensor& x, int64_t a) { return x.log_softmax(a); },
     [](const Values& v) {
       const Values less = each_less(v, largest(v));
       return each_less(less, log_of_exponentials(less));
     },
     Result::Float,
     {4, 8}},
};

}  // namespace

TEST(methods, along_one_axis) {
  std::mt19937_64 random(test_seed());
  int turn = 0;
  for (const Along& row : alongs) {
    const bool position = std::string(row.name).starts_with("arg");
    for (const Shape& shape : {Shape{1}, {11}, {3, 7}, {5, 1}, {2, 3, 4}, {2, 2, 3, 2}, {0, 3}})
      for (int64_t axis = 0; axis < static_cast<int64_t>(shape.size()); ++axis) {
        if (position && shape[static_cast<size_t>(axis)] == 0) continue;  // an Error
        for (const DType d : number_dtypes) {
          const Plain x = special_numbers(random, d, shape, 9);
          Plain want{position ? Int32 : result_of(row.result, d), without(shape, {axis}, true), {}};
          if (!position) want.shape = shape;
          want.at.resize(static_cast<size_t>(count_of(want.shape)));
          want = plain(want.dtype, want.shape, [&](const Place& i) {
            Place line = i;
            line[static_cast<size_t>(axis)] = 0;
            return row.definition(
                grouped(x, {axis}, line))[static_cast<size_t>(i[static_cast<size_t>(axis)])];
          });
          const int64_t written = turn % 2 == 0 ? axis : axis - static_cast<int64_t>(shape.size());
          on_both(++turn % 8 != 0, [&] {
            EXPECT_EQ(difference(want, row.method(tensor_of(x), written), row.within), "")
                << row.name << " " << dtype_name(d) << " axis " << axis << " of "
                << shape_text(tensor_of(x).uop()) << ", seed " << test_seed();
          });
        }
      }
  }
  const Tensor x = Tensor::from<int>({3, 9, 1, 9, 0, 0}, {2, 3});
  EXPECT_EQ(x.argmax(1).shape(), (Shape{2}));
  EXPECT_EQ(x.argmin(0, true).shape(), (Shape{1, 3}));
  // Without an axis among all elements, row by row.
  EXPECT_EQ(x.argmax().item<int>(), 1);
  EXPECT_EQ(x.argmin().item<int>(), 4);
  EXPECT_EQ(x.argmax().shape(), (Shape{}));
  EXPECT_EQ(x.argmin({}, true).shape(), (Shape{1, 1}));
  EXPECT_EQ(x.permute({1, 0}).argmin().item<int>(), 3);
  EXPECT_EQ(Tensor(5).argmax().item<int>(), 0) << "of no axes";
  expect_error([&] { (void)Tensor::zeros({0, 3}).argmax(); }, {"argmax", "empty"});
}

// The ends of each integer's range, where a negative number has no positive one.
TEST(methods, extremes_of_whole_numbers) {
  for (const DType d : {Int8, Int16, Int32, UInt8, UInt16, UInt32}) {
    const IntegerRange range = integer_range(d);
    const auto low = static_cast<Real>(range.low), high = static_cast<Real>(range.high);
    for (const Values& v : {Values{5, low, high, low, high}, {high, 3, low}, {low, low}, {high}}) {
      const Plain x = row_of(d, v);
      on_both(v.size() != 5, [&] {
        const Tensor t = tensor_of(x);
        EXPECT_EQ(difference({d, {}, {largest(v)}}, t.max()), "") << dtype_name(d);
        EXPECT_EQ(difference({d, {}, {smallest(v)}}, t.min()), "") << dtype_name(d);
        EXPECT_EQ(difference({Int32, {}, first_place(v, std::greater<>())}, t.argmax()), "")
            << dtype_name(d);
        EXPECT_EQ(difference({Int32, {}, first_place(v, std::less<>())}, t.argmin()), "")
            << dtype_name(d);
      });
    }
  }
  on_both(false, [] {
    const Tensor x = Tensor::from<int64_t>({7, INT64_MIN, INT64_MAX, INT64_MIN + 1}),
                 y = Tensor::from<uint64_t>({7, UINT64_MAX - 1, UINT64_MAX, 1});
    EXPECT_EQ(x.max().item<int64_t>(), INT64_MAX);
    EXPECT_EQ(x.min().item<int64_t>(), INT64_MIN);
    EXPECT_EQ(x.argmin().item<int>(), 1);
    EXPECT_EQ(y.max().item<uint64_t>(), UINT64_MAX);
    EXPECT_EQ(y.min().item<uint64_t>(), 1u);
    EXPECT_EQ(y.argmax().item<int>(), 2);
  });
}

TEST(methods, layernorm) {
  std::mt19937_64 random(test_seed());
  for (const DType d : number_dtypes)
    for (const auto& [last, eps] : {std::pair<int64_t, Real>{1, 1e-5L}, {2, 0.5L}, {3, 0.25L}}) {
      const Plain x = exact_numbers(random, d, {3, 2, 9});
      std::set<int64_t> axes;
      for (int64_t a = 3 - last; a < 3; ++a) axes.insert(a);
      const Plain centre = reduced(x, axes, true, Float64, mean),
                  spread = reduced(x, axes, true, Float64, variance<0>);
      const Plain want = plain(result_of(Result::Float, d), x.shape, [&](const Place& i) {
        return (x(i) - broadcast(centre, i)) / std::sqrt(broadcast(spread, i) + eps);
      });
      on_both(false, [&] {
        const Tensor got = tensor_of(x).layernorm(last, static_cast<double>(eps));
        EXPECT_EQ(difference(want, got, {8, 4}), "")
            << dtype_name(d) << " over " << last << ", seed " << test_seed();
      });
    }
}

}  // namespace koine::test
