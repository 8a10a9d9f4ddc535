// What a NumPy user writes, and what they see.
#include <sstream>

#include "check.hpp"

namespace koine::test {
namespace {

std::string printed(const Tensor& t) {
  std::ostringstream out;
  out << t;
  return out.str();
}

// Restores the process's options.
struct Printing {
  explicit Printing(const PrintOptions& options) { set_print_options(options); }
  ~Printing() { set_print_options({}); }
};

}  // namespace

TEST(surface, one_size_or_axis_needs_no_braces) {
  const Tensor x = Tensor::arange(6).reshape({2, 3});
  EXPECT_EQ(x.sum(1).tolist<int>(), (std::vector<int>{3, 12}));
  EXPECT_EQ(x.sum(-1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(x.sum({0, 1}).item<int>(), 15);
  EXPECT_EQ(x.sum().item<int>(), 15);
  EXPECT_EQ(x.max(0).tolist<int>(), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(x.reshape(6).shape(), Shape{6});
  EXPECT_EQ(x.reshape(-1).shape(), Shape{6});
  EXPECT_EQ(Tensor::randn(3).shape(), Shape{3});
  EXPECT_EQ(Tensor::zeros(2).shape(), Shape{2});
  EXPECT_EQ(Tensor::ones({2, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(Shape(size_t{3}).size(), 1u);  // a size of 3, not three sizes
  static_assert(!std::is_convertible_v<bool, Shape>, "x.sum(true) would be x.sum(1)");
}

TEST(surface, one_index_needs_no_braces) {
  const Tensor x = Tensor::arange(6).reshape({3, 2});
  EXPECT_EQ((x[Slice{0, 1}].tolist<int>()), (std::vector<int>{0, 1}));
  EXPECT_EQ((x[Slice{0, 1}].shape()), (Shape{1, 2}));
  EXPECT_EQ((x[Slice{{}, {}, -1}].tolist<int>()), (std::vector<int>{4, 5, 2, 3, 0, 1}));
  EXPECT_EQ(x[NewAxis{}].shape(), (Shape{1, 3, 2}));
  EXPECT_EQ(x[Ellipsis{}].shape(), (Shape{3, 2}));
  // Tensors with an ellipsis between them are apart, be it of no axis: their axes come first.
  const Tensor at = Tensor::from<int>({0, 1, 1});
  EXPECT_EQ((x[{NewAxis{}, at, at}].shape()), (Shape{1, 3}));
  EXPECT_EQ((x[{NewAxis{}, at, Ellipsis{}, at}].shape()), (Shape{3, 1}));
  EXPECT_EQ((x[Tensor::from<int>({2, 0})].tolist<int>()), (std::vector<int>{4, 5, 0, 1}));
  EXPECT_EQ(x[1].tolist<int>(), (std::vector<int>{2, 3}));
  EXPECT_EQ(x[1u].tolist<int>(), (std::vector<int>{2, 3}));
  EXPECT_EQ((x[{1, 1}].item<int>()), 3);
  EXPECT_EQ((x[{Slice{1, 3}, 0}].tolist<int>()), (std::vector<int>{2, 4}));
}

TEST(surface, scalars_of_every_cpp_type) {
  EXPECT_EQ(Tensor(5u).dtype(), DType::UInt32);
  EXPECT_EQ(Tensor(uint64_t{1} << 63).dtype(), DType::UInt64);
  EXPECT_EQ(Tensor(~uint64_t{0}).tolist<uint64_t>()[0], ~uint64_t{0});
  EXPECT_EQ(Tensor(5LL).dtype(), DType::Int64);
  EXPECT_EQ(Tensor(5UL).dtype(), DType::UInt64);
  EXPECT_EQ(Tensor(-5).item<int>(), -5);
  EXPECT_EQ(Tensor(int8_t{-3}).item<int>(), -3);
  EXPECT_EQ(Tensor(true).dtype(), DType::Bool);
  EXPECT_EQ(Tensor(1.5f).dtype(), DType::Float32);
  // Like other literals they take the dtype of what they meet.
  EXPECT_EQ((Tensor::ones({2}) * 3u).dtype(), DType::Float32);
  EXPECT_EQ((Tensor::from<uint8_t>({1, 2}) + 3u).dtype(), DType::UInt8);
  EXPECT_EQ((Tensor::from<int>({1, 2}) + 3u).dtype(), DType::Int32);
}

TEST(surface, integers_have_the_operators_of_cpp) {
  const Tensor a = Tensor::from<int>({-7, 6, 12}), b = Tensor::from<int>({3, -4, 10});
  EXPECT_EQ((a % b).tolist<int>(), (std::vector<int>{2, -2, 2}));  // of the divisor's sign
  EXPECT_EQ((a & b).tolist<int>(), (std::vector<int>{-7 & 3, 6 & -4, 12 & 10}));
  EXPECT_EQ((a | b).tolist<int>(), (std::vector<int>{-7 | 3, 6 | -4, 12 | 10}));
  EXPECT_EQ((a ^ 5).tolist<int>(), (std::vector<int>{-7 ^ 5, 6 ^ 5, 12 ^ 5}));
  EXPECT_EQ((~a).tolist<int>(), (std::vector<int>{6, -7, -13}));
  EXPECT_EQ((((a > 0) & ~(b > 0)) | (a == -7)).tolist<bool>(),
            (std::vector<bool>{true, true, false}));
  expect_error([&] { (void)(a.cast(DType::Float32) & b); }, {"bitwise_and", "needs an integer"});
}

TEST(surface, divides_in_place) {
  Tensor x = Tensor::from<float>({2, 3});
  const Tensor view = x[0];
  x /= 4;
  EXPECT_EQ(x.tolist<float>(), (std::vector<float>{.5f, .75f}));
  EXPECT_EQ(view.item<float>(), .5f);
  x /= Tensor::from<float>({0.5f, 0});
  EXPECT_EQ(x.tolist<float>(), (std::vector<float>{1, INFINITY}));
  expect_error([] { Tensor::from<int>({2, 4}) /= 2; }, {"/=", "int32", "idiv"});
}

// The texts are NumPy's (numpy 1.26 and 2.1 agree), but for the closing dtype and device.
TEST(print, as_numpy_does) {
  EXPECT_EQ(printed(Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2})),
            "Tensor([[1., 2.],\n        [3., 4.]], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<float>({1, 2.5f, -3.25f})),
            "Tensor([ 1.  ,  2.5 , -3.25], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<float>({.1f, 1.0f / 3, 1e-3f})),
            "Tensor([0.1       , 0.33333334, 0.001     ], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<float>({1e10f, 1})),
            "Tensor([1.e+10, 1.e+00], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<double>({1.5e-10, 2e-9})),
            "Tensor([1.5e-10, 2.0e-09], dtype=float64, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<double>({0.1 + 0.2, 0.0940123, 5})),
            "Tensor([0.3      , 0.0940123, 5.       ], dtype=float64, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<double>({(0.1 + 0.2) * 1e-9, 2})),
            "Tensor([3.e-10, 2.e+00], dtype=float64, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<float>({NAN, INFINITY, -INFINITY, -0.0f, 1})),
            "Tensor([ nan,  inf, -inf,  -0.,   1.], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<int>({1, -20, 300})),
            "Tensor([  1, -20, 300], dtype=int32, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<bool>({true, false})),
            "Tensor([ True, False], dtype=bool, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<uint64_t>({~uint64_t{0}})),
            "Tensor([18446744073709551615], dtype=uint64, device=CPU)");
  EXPECT_EQ(printed(Tensor::from<float>({.1f}).cast(DType::Float16)),
            "Tensor([0.1], dtype=float16, device=CPU)");
  EXPECT_EQ(printed(Tensor(1.5)), "Tensor(1.5, dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::zeros({0})), "Tensor([], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::zeros({0, 3})), "Tensor([], shape=(0, 3), dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor::zeros({2, 0})), "Tensor([], shape=(2, 0), dtype=float32, device=CPU)");
  EXPECT_EQ(printed(Tensor()), "Tensor(undefined)");
}

TEST(print, long_axes_show_their_edges) {
  EXPECT_EQ(printed(Tensor::arange(2000)),
            "Tensor([   0,    1,    2, ..., 1997, 1998, 1999], dtype=int32, device=CPU)");
  EXPECT_EQ(printed(Tensor::arange(2000).reshape({1000, 2})),
            "Tensor([[   0,    1],\n        [   2,    3],\n        [   4,    5],\n        ...,\n"
            "        [1994, 1995],\n        [1996, 1997],\n        [1998, 1999]], dtype=int32, "
            "device=CPU)");
  EXPECT_EQ(
      printed(Tensor::arange(8).reshape({2, 2, 2})),
      "Tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]], dtype=int32, "
      "device=CPU)");
  EXPECT_EQ(
      printed(Tensor::arange(30)),
      "Tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16,\n"
      "        17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29], dtype=int32, device=CPU)");
  EXPECT_EQ(printed(Tensor::arange(12).reshape({2, 6}) + 1000000),
            "Tensor([[1000000, 1000001, 1000002, 1000003, 1000004, 1000005],\n"
            "        [1000006, 1000007, 1000008, 1000009, 1000010, 1000011]], dtype=int32, "
            "device=CPU)");
  // Each line of many is broken, in the second row as in the first.
  EXPECT_EQ(printed((Tensor::arange(36) + 1000000).reshape({2, 18})),
            "Tensor([[1000000, 1000001, 1000002, 1000003, 1000004, 1000005, 1000006,\n"
            "         1000007, 1000008, 1000009, 1000010, 1000011, 1000012, 1000013,\n"
            "         1000014, 1000015, 1000016, 1000017],\n"
            "        [1000018, 1000019, 1000020, 1000021, 1000022, 1000023, 1000024,\n"
            "         1000025, 1000026, 1000027, 1000028, 1000029, 1000030, 1000031,\n"
            "         1000032, 1000033, 1000034, 1000035]], dtype=int32, device=CPU)");
}

TEST(print, options) {
  const Tensor third = Tensor::from<double>({1.0 / 3, 2});
  {
    const Printing scope({.precision = 3});
    EXPECT_EQ(printed(third), "Tensor([0.333, 2.   ], dtype=float64, device=CPU)");
  }
  {
    const Printing scope({.threshold = 5, .edge_items = 1});
    EXPECT_EQ(printed(Tensor::arange(6)), "Tensor([0, ..., 5], dtype=int32, device=CPU)");
  }
  expect_error([] { set_print_options({.edge_items = 0}); }, {"set_print_options", "edge items 0"});
  EXPECT_EQ(print_options().precision, 8);
}

TEST(print, looks_at_the_current_value) {
  Tensor x = Tensor::from<float>({1, 2});
  const Tensor view = x[Slice{1, 2}], lazy = x + 1;
  x.assign(Tensor::from<float>({3, 4}));
  EXPECT_EQ(printed(view), "Tensor([4.], dtype=float32, device=CPU)");
  EXPECT_EQ(printed(lazy), "Tensor([2., 3.], dtype=float32, device=CPU)");
  std::string inside;
  const auto f = function([&](const Tensor& t) {
    inside = t.repr();
    return t + 1;
  });
  EXPECT_EQ(f(x).tolist<float>(), (std::vector<float>{4, 5}));
  EXPECT_EQ(inside, "Tensor(shape=(2,), dtype=float32, device=CPU, traced)");
}

}  // namespace koine::test
