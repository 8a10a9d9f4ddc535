#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "koine/ir/dtype.hpp"
#include "koine/ir/uop.hpp"
#include "koine/tensor/size.hpp"

namespace koine {

/// Axes, or sizes that are numbers. A single one needs no braces: `x.sum(1)`.
class IntList : public std::vector<int64_t> {
 public:
  using std::vector<int64_t>::vector;
  IntList(std::vector<int64_t> list) : vector(std::move(list)) {}              // NOLINT
  IntList(Whole auto only) : vector(size_t{1}, static_cast<int64_t>(only)) {}  // NOLINT
  IntList(size_t only) : vector(size_t{1}, static_cast<int64_t>(only)) {}      // NOLINT
  IntList(bool) = delete;
};

/// One part of an index: a position, a slice, a new axis, all of an axis, or a tensor of positions.
class IndexItem;
class Memory;
struct Slice;
struct NewAxis;
struct Ellipsis;

/// A lazy n-dimensional array: a handle on a UOp. Nothing runs before somebody looks at a value.
/// Copies of a handle are the same tensor; views (reshape, slices, ...) alias their base, so that
/// an assignment through one is seen by all (amendment C29). dtypes promote and floats behave as
/// NumPy's. Method names are tinygrad's. Every misuse throws koine::Error.
class Tensor {
 public:
  // --- creation -------------------------------------------------------------------------------
  Tensor();              ///< no tensor; every use but assignment is an Error
  Tensor(double value);  // NOLINT: a scalar is a tensor; float32
  Tensor(bool value);    // NOLINT
  /// int32 or int64, by the size of the C++ type; unsigned types uint32 or uint64.
  template <Whole Number>
  Tensor(Number value)  // NOLINT
      : Tensor(integer_scalar(sizeof(Number) <= 4, std::is_signed_v<Number>,
                              static_cast<uint64_t>(value))) {}
  /// int64; a symbolic size has its value in each run.
  Tensor(const Size& size);  // NOLINT
  explicit Tensor(UOp value);
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  ~Tensor() = default;
  /// The handle becomes one of another tensor; assign() and setitem() change values.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  /// `x[{0}] = 3` would change a handle that nobody has: write x.setitem({0}, 3) or x[0].assign(3).
  Tensor& operator=(const Tensor&) && = delete;
  /// Copies `data` (row-major, numel elements) to a device.
  template <class Element>
  static Tensor from(const std::vector<Element>& data, const Shape& shape,
                     const std::string& device = "");
  template <class Element>
  static Tensor from(std::initializer_list<Element> data) {
    return from(std::vector<Element>(data), {static_cast<int64_t>(data.size())});
  }
  static Tensor from_bytes(const void* data, const Shape& shape, DType dtype,
                           const std::string& device = "");
  /// A tensor over row-major elements in memory of somebody else, on CPU: nothing is copied, and no
  /// assignment writes there; what was computed of them stays where others do. `owner` is let go
  /// once nothing that is lazy reads them any more. Throws Error (Value) where they are not
  /// aligned.
  static Tensor borrow(const void* data, const Shape& shape, DType dtype,
                       std::shared_ptr<const void> owner);
  /// Each call of full, zeros and ones gives a tensor of its own, with gradients of its own.
  /// The value as exactly as the dtype holds it; an integer that it does not hold is an Error (also
  /// in pad, clip and masked_fill). Of full without a dtype the value's.
  static Tensor full(const Shape& shape, const Tensor& value, std::optional<DType> dtype = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::Float32);
  static Tensor ones(const Shape& shape, DType dtype = DType::Float32);
  Tensor full_like(const Tensor& value) const;
  Tensor zeros_like() const { return full_like(0); }
  Tensor ones_like() const { return full_like(1); }
  static Tensor arange(const Size& stop) { return arange(0, stop); }
  /// Of symbolic ends the length must not be negative, whatever the Variables are.
  static Tensor arange(const Size& start, const Size& stop, int64_t step = 1,
                       DType dtype = DType::Int32);
  /// The same of numbers with fractions: start + i * step, in float64 and rounded once.
  template <class A, class B, class C = int>
    requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && std::is_arithmetic_v<C> &&
             (std::floating_point<A> || std::floating_point<B> || std::floating_point<C>))
  static Tensor arange(A start, B stop, C step = 1, DType dtype = DType::Float32) {
    return evenly_spaced(static_cast<double>(start), static_cast<double>(stop),
                         static_cast<double>(step), dtype);
  }
  /// float32: `steps` numbers from start to stop, evenly spaced, both ends included.
  static Tensor linspace(double start, double stop, int64_t steps);
  static Tensor eye(const Size& n, DType dtype = DType::Float32);

  // --- random: threefry under a global seed (amendment C36); under keys: tensor/random.hpp
  // --------
  /// The numbers of the draws that follow are those of this seed. A draw inside of a traced
  /// function is captured: the function has other numbers at each call.
  static void manual_seed(uint64_t seed);
  /// Uniform in [0, 1).
  static Tensor rand(const Shape& shape, const std::string& device = "");
  /// Normal, mean 0, variance 1.
  static Tensor randn(const Shape& shape, const std::string& device = "");
  /// int32 in [low, high).
  static Tensor randint(const Shape& shape, int64_t low, int64_t high,
                        const std::string& device = "");
  /// float32 in [low, high), both rounded to float32; where they are equal, that number.
  static Tensor uniform(const Shape& shape, double low, double high,
                        const std::string& device = "");
  static Tensor kaiming_uniform(const Shape& shape, const std::string& device = "");
  static Tensor glorot_uniform(const Shape& shape, const std::string& device = "");
  /// The int32 numbers 0 to n - 1 in random order.
  static Tensor randperm(int64_t n, const std::string& device = "");
  Tensor dropout(double p = 0.5, bool training = true) const;

  // --- what it is -----------------------------------------------------------------------------
  bool defined() const { return impl_ != nullptr; }
  Shape shape() const;
  Size size(int64_t axis) const;
  int64_t ndim() const;
  Size numel() const;
  DType dtype() const;
  std::string device() const;
  /// The lazy value, with all assignments so far.
  UOp uop() const;
  /// The values with dtype and device, as operator<< prints them. Computes them; of a placeholder
  /// inside a traced function only shape and dtype are known.
  std::string repr() const;

  // --- running --------------------------------------------------------------------------------
  const Tensor& realize() const;
  static void realize(const std::vector<Tensor>& tensors);
  Tensor to(const std::string& device) const;
  /// The values on several devices, such as "CPU,CPU:1": split along `axis` in equal parts, or
  /// whole on each without one (on one device: to()). What follows is computed where its operands
  /// are. Throws Error (Value) where the axis does not split evenly.
  Tensor shard(const std::string& devices, std::optional<int64_t> axis = {}) const;
  /// The values placed as those of another tensor.
  Tensor shard_like(const Tensor& other) const;
  /// The axis along which several devices split the values; none: each device has all of them.
  std::optional<int64_t> shard_axis() const;
  Tensor contiguous() const;
  Tensor contiguous_backward() const;
  Tensor detach() const;
  Tensor clone() const;
  /// Computes and copies out, converted to the C++ type asked for.
  template <class Element>
  std::vector<Element> tolist() const;
  /// The only element.
  template <class Element = double>
  Element item() const;
  std::vector<std::byte> bytes() const;
  /// Computes; the elements, row-major, where they lie if the host can read that. They stay as they
  /// are for as long as the pointer lives: an assignment goes elsewhere meanwhile.
  std::shared_ptr<const std::byte> data() const;

  // --- assignment -----------------------------------------------------------------------------
  /// Replaces the value (shape broadcast, dtype cast), seen by every view of the same storage.
  /// Nothing runs before somebody looks; through a view the memory is then written in place where
  /// nobody has kept the old contents. What cannot be computed changes nothing: an Error at the
  /// next look, and the value before the first such assignment stays (where that reads nothing of
  /// it, the value before all that have not run). Gradients go to the value and to what is left of
  /// the old contents; but a tensor that requires a gradient stays a leaf: none goes to what it was
  /// assigned.
  Tensor& assign(const Tensor& value);
  /// x[index] = value, broadcast and cast. For tensor indices each place keeps the last value that
  /// is written to it; work is linear in the sizes of this and of the index.
  void setitem(const std::vector<IndexItem>& index, const Tensor& value);
  /// Assigns values[k] to targets[k], which are no views, all or none: everything is computed
  /// first, together with `also`, in one realize. So is what nobody has looked at yet of what
  /// backward() was called on, of detached tensors that read a target, and of `compute_with`.
  static void assign_all(const std::vector<Tensor>& targets, const std::vector<Tensor>& values,
                         const std::vector<Tensor>& also = {});
  /// Computes this too when `assign_all` next gives `leaf` a value, unless somebody looks before.
  void compute_with(const Tensor& leaf) const;
  /// Assigns the value of an operator, which stands in the Error. Throws Error (Type) where it is a
  /// float and this is none, or a number and this is bool.
  Tensor& in_place(std::string_view op, const Tensor& value);
  Tensor& operator+=(const Tensor& b) { return in_place("+=", *this + b); }
  Tensor& operator-=(const Tensor& b) { return in_place("-=", *this - b); }
  Tensor& operator*=(const Tensor& b) { return in_place("*=", *this * b); }
  /// Refused for integers: their quotient is a float. See idiv().
  Tensor& operator/=(const Tensor& b);

  // --- gradients ------------------------------------------------------------------------------
  Tensor& requires_grad(bool on = true);
  /// Whether it requires one.
  bool is_leaf() const;
  bool has_grad() const;
  Tensor grad() const;
  void zero_grad();
  /// Of the shape, dtype and device of the tensor; an Error if it is not.
  void set_grad(const Tensor& gradient);
  /// Adds to grad() of every tensor that requires one and that this scalar depends on. An Error if
  /// there is none, or if one of them has another value since.
  void backward() const;
  /// Gradients of this scalar; zeros where it does not depend on a target. What was looked at keeps
  /// how it was computed for as long as its tensor lives; a gradient through what realize() made
  /// data is an Error, unless the target requires one.
  std::vector<Tensor> gradient(const std::vector<Tensor>& targets) const;
  /// Bytes in memory of other values that this one holds on to, with what others hold as well: of
  /// those that it is computed from, while it is lazy or a gradient may be asked through it. 0 once
  /// it is data, as after realize() of what depends on no tensor that requires a gradient.
  int64_t history_bytes() const;

  // --- movement -------------------------------------------------------------------------------
  Tensor reshape(const Shape& shape) const;  ///< one size may be -1
  Tensor view(const Shape& shape) const;
  Tensor expand(const Shape& shape) const;  ///< -1 keeps a size
  Tensor permute(const std::vector<int64_t>& order) const;
  Tensor transpose(int64_t a = 0, int64_t b = 1) const;
  Tensor T() const;
  Tensor flip(const std::vector<int64_t>& axes) const;
  Tensor shrink(const SizePairs& bounds) const;
  Tensor pad(const SizePairs& padding, const Tensor& value = 0) const;
  Tensor squeeze(std::optional<int64_t> axis = {}) const;
  Tensor unsqueeze(int64_t axis) const;
  Tensor flatten(int64_t from = 0, int64_t to = -1) const;
  Tensor repeat(const Shape& times) const;
  Tensor roll(int64_t shift, int64_t axis) const;
  Tensor roll(int64_t shift) const;  ///< all elements, row by row
  Tensor roll(const IntList& shifts, const IntList& axes) const;
  static Tensor cat(const std::vector<Tensor>& tensors, int64_t axis = 0);
  static Tensor stack(const std::vector<Tensor>& tensors, int64_t axis = 0);
  /// Parts of a size, the last one of what is left.
  std::vector<Tensor> split(int64_t size, int64_t axis = 0) const;
  /// Parts of these sizes, which add up to the axis.
  std::vector<Tensor> split(const std::vector<int64_t>& sizes, int64_t axis = 0) const;
  std::vector<Tensor> chunk(int64_t count, int64_t axis = 0) const;
  Tensor operator[](int64_t position) const;
  Tensor operator[](const Size& position) const;
  Tensor operator[](const std::vector<IndexItem>& index) const;
  template <class Item>
    requires std::same_as<Item, Slice> || std::same_as<Item, NewAxis> ||
             std::same_as<Item, Ellipsis> || std::same_as<Item, Tensor>
  Tensor operator[](const Item& item) const;
#ifdef __cpp_multidimensional_subscript
  /// x[0, 1], from C++23 on. In C++20 that is a comma expression, and refused by the compiler
  /// option that comes with koine's CMake target; write x[{0, 1}].
  template <class... Items>
    requires(sizeof...(Items) > 1)
  Tensor operator[](const Items&... items) const;
#endif

  // --- indexing -------------------------------------------------------------------------------
  Tensor gather(int64_t axis, const Tensor& index) const;
  Tensor scatter(int64_t axis, const Tensor& index, const Tensor& src) const;
  Tensor scatter_add(int64_t axis, const Tensor& index, const Tensor& src) const;
  /// Rows along an axis by positions; negative ones count from the end. KOINE_INDEX says what
  /// becomes of those out of range: by default an Error at realize.
  Tensor index_select(int64_t axis, const Tensor& index) const;
  /// float32 of shape (..., classes). KOINE_INDEX says what becomes of a class out of range.
  Tensor one_hot(int64_t classes) const;
  Tensor tril(int64_t diagonal = 0) const;
  Tensor triu(int64_t diagonal = 0) const;
  Tensor masked_fill(const Tensor& mask, const Tensor& value) const;

  // --- elementwise ----------------------------------------------------------------------------
  Tensor cast(DType dtype) const;
  Tensor bitcast(DType dtype) const;
  Tensor to_float() const { return cast(DType::Float32); }
  Tensor neg() const;
  Tensor logical_not() const;
  Tensor bitwise_not() const;
  Tensor reciprocal() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor exp() const;
  Tensor exp2() const;
  Tensor log() const;
  Tensor log2() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor tan() const;
  Tensor trunc() const;
  Tensor floor() const;
  Tensor ceil() const;
  Tensor round() const;  ///< half to even
  Tensor abs() const;
  Tensor sign() const;
  Tensor square() const;
  Tensor isnan() const;
  Tensor isinf() const;
  Tensor isfinite() const;
  Tensor relu() const;
  Tensor leaky_relu(double slope = 0.01) const;
  Tensor sigmoid() const;
  Tensor tanh() const;
  Tensor erf() const;
  Tensor erfc() const;  ///< 1 - erf(x), with all its digits
  /// By tanh, or with "none" x (1 + erf(x / sqrt(2))) / 2.
  Tensor gelu(const std::string& approximate = "tanh") const;
  Tensor silu() const;
  Tensor softplus() const;
  Tensor elu(double alpha = 1) const;
  Tensor hardtanh(double low = -1, double high = 1) const;
  /// Between bounds, which promote as operands do; one of them may be Tensor(), which is none.
  Tensor clip(const Tensor& low, const Tensor& high) const;
  Tensor maximum(const Tensor& b) const;
  Tensor minimum(const Tensor& b) const;
  Tensor pow(const Tensor& b) const;
  Tensor idiv(const Tensor& b) const;  ///< floor division
  Tensor mod(const Tensor& b) const;
  Tensor bitwise_and(const Tensor& b) const;
  Tensor bitwise_or(const Tensor& b) const;
  Tensor bitwise_xor(const Tensor& b) const;
  Tensor lshift(const Tensor& b) const;
  Tensor rshift(const Tensor& b) const;
  Tensor lerp(const Tensor& end, const Tensor& weight) const;
  /// this where the condition holds, else b
  static Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
  friend Tensor operator+(const Tensor& a, const Tensor& b);
  friend Tensor operator-(const Tensor& a, const Tensor& b);
  friend Tensor operator*(const Tensor& a, const Tensor& b);
  friend Tensor operator/(const Tensor& a, const Tensor& b);
  friend Tensor operator<(const Tensor& a, const Tensor& b);
  friend Tensor operator>(const Tensor& a, const Tensor& b);
  friend Tensor operator<=(const Tensor& a, const Tensor& b);
  friend Tensor operator>=(const Tensor& a, const Tensor& b);
  friend Tensor operator==(const Tensor& a, const Tensor& b);
  friend Tensor operator!=(const Tensor& a, const Tensor& b);
  Tensor operator-() const { return neg(); }
  Tensor operator~() const { return bitwise_not(); }
  /// As in NumPy: the sign is that of the divisor.
  friend Tensor operator%(const Tensor& a, const Tensor& b) { return a.mod(b); }
  friend Tensor operator&(const Tensor& a, const Tensor& b) { return a.bitwise_and(b); }
  friend Tensor operator|(const Tensor& a, const Tensor& b) { return a.bitwise_or(b); }
  friend Tensor operator^(const Tensor& a, const Tensor& b) { return a.bitwise_xor(b); }

  // --- reductions: no axes means all ----------------------------------------------------------
  using Axes = IntList;
  Tensor sum(const Axes& axes = {}, bool keepdim = false) const;
  Tensor prod(const Axes& axes = {}, bool keepdim = false) const;
  Tensor max(const Axes& axes = {}, bool keepdim = false) const;
  Tensor min(const Axes& axes = {}, bool keepdim = false) const;
  Tensor mean(const Axes& axes = {}, bool keepdim = false) const;
  Tensor var(const Axes& axes = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor std(const Axes& axes = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor any(const Axes& axes = {}, bool keepdim = false) const;
  Tensor all(const Axes& axes = {}, bool keepdim = false) const;
  /// int32: the first position of the largest along an axis; without one, among all elements row by
  /// row. NaN counts as the largest (the smallest).
  Tensor argmax(std::optional<int64_t> axis = {}, bool keepdim = false) const;
  Tensor argmin(std::optional<int64_t> axis = {}, bool keepdim = false) const;
  /// Sums of all elements up to each along an axis; narrow integers add in 32 bits.
  Tensor cumsum(int64_t axis = 0) const;
  Tensor cumprod(int64_t axis = 0) const;
  /// The largest (smallest) element up to each; NaN from the first NaN on. A gradient goes to the
  /// last of several that are equal.
  Tensor cummax(int64_t axis = 0) const;
  Tensor cummin(int64_t axis = 0) const;
  /// The elements along an axis in ascending order, and the int32 positions they had. Equal
  /// elements keep their order, also where it is descending; NaN counts as the largest.
  std::pair<Tensor, Tensor> sort(int64_t axis = -1, bool descending = false) const;
  Tensor argsort(int64_t axis = -1, bool descending = false) const;
  /// The k largest (smallest) elements along an axis, in order, and their int32 positions.
  std::pair<Tensor, Tensor> topk(int64_t k, int64_t axis = -1, bool largest = true) const;
  /// The different elements of the whole tensor in ascending order; -0 is 0, and all NaN are one.
  /// Computes them: the shape of the result depends on the values.
  Tensor unique() const;
  Tensor softmax(int64_t axis = -1) const;
  Tensor log_softmax(int64_t axis = -1) const;
  Tensor logsumexp(const Axes& axes = {}, bool keepdim = false) const;
  Tensor norm(const Axes& axes = {}, bool keepdim = false) const;
  Tensor layernorm(int64_t last_axes = 1, double eps = 1e-5) const;

  // --- linear algebra and neural nets -----------------------------------------------------------
  Tensor dot(const Tensor& b) const;
  Tensor matmul(const Tensor& b) const;
  /// A sum of products by its formula, such as "...ij,jk->...ik": the axes of "..." broadcast.
  static Tensor einsum(const std::string& formula, const std::vector<Tensor>& operands);
  Tensor linear(const Tensor& weight, const Tensor& bias = {}) const;  ///< weight: (out, in)
  struct Window {
    int64_t stride = 1, padding = 0, dilation = 1;
  };
  /// this (N, C, H, W), weight (O, C/groups, kh, kw)
  Tensor conv2d(const Tensor& weight, const Tensor& bias, Window window, int64_t groups = 1) const;
  Tensor conv2d(const Tensor& weight, const Tensor& bias = {}) const {
    return conv2d(weight, bias, Window());
  }
  Tensor max_pool2d(int64_t kernel = 2, std::optional<int64_t> stride = {},
                    int64_t padding = 0) const;
  Tensor avg_pool2d(int64_t kernel = 2, std::optional<int64_t> stride = {},
                    int64_t padding = 0) const;
  Tensor scaled_dot_product_attention(const Tensor& key, const Tensor& value,
                                      const Tensor& mask = {}) const;
  /// Mean over all rows of -log softmax at the target class; this (..., classes), target (...) of
  /// integers from 0 to classes - 1. Rows whose target is `ignore_index` do not count.
  Tensor sparse_categorical_crossentropy(const Tensor& target, double label_smoothing = 0,
                                         std::optional<int64_t> ignore_index = {}) const;
  Tensor cross_entropy(const Tensor& target, std::optional<int64_t> ignore_index = {}) const;
  Tensor binary_crossentropy_logits(const Tensor& target) const;
  Tensor mse_loss(const Tensor& target) const;
  /// Mean of -this at the target class: this holds log-probabilities.
  Tensor nll_loss(const Tensor& target, std::optional<int64_t> ignore_index = {}) const;

  /// Identity of the storage: equal for all handles and views of one tensor.
  const void* storage_id() const;

  class Recording;  // what a traced function assigns (tensor/recording)

  /// The value as one that stands for a number as it is written: it takes the dtype of what it
  /// meets, as a literal does, and so does what is computed of such alone. For the arguments of
  /// functions that are traced.
  Tensor standing_for_number() const;
  bool stands_for_number() const;
  /// Whether it stands for a number, or is a literal.
  bool is_number() const;

 private:
  struct Storage;
  struct Impl;
  struct History;
  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  /// this[items] for `method`.
  Tensor indexed(std::string_view method, const std::vector<IndexItem>& items) const;
  Tensor every(int64_t step, size_t axis) const;
  Tensor points(std::string_view method, const std::vector<std::pair<int64_t, Tensor>>& tensors,
                bool apart) const;
  Tensor along(int64_t axis, const Tensor& at) const;
  Tensor order_along(int64_t axis, bool descending, std::optional<int64_t> count = {}) const;
  static Tensor evenly_spaced(double start, double stop, double step, DType dtype);
  /// Throws unless a shape has `count` elements.
  static void require_count(int64_t count, const Shape& shape);
  static Tensor integer_scalar(bool narrow, bool is_signed, uint64_t bits);
  template <class F>
  Tensor moved(F&& move) const;
  const Impl& self() const;
  /// Of what was written as a C++ literal its value in full; null otherwise.
  UOp as_literal() const;
  /// This scalar in the dtype, for `method`.
  UOp in_dtype(std::string_view method, DType dtype) const;
  /// The value, a C++ literal in the dtype of what it is stored into.
  UOp stored_as(std::string_view method, DType dtype) const;
  enum class Relation : uint8_t;
  static Tensor compare(Relation relation, const Tensor& a, const Tensor& b);
  template <class Build>
  Tensor met(std::string_view method, const Tensor& b, Build&& build) const;
  int64_t axis_of(int64_t axis, std::string_view method, int64_t extra = 0) const;
  Axes axes_of(const Axes& axes, std::string_view method) const;
  Tensor reduced(Op op, const Axes& axes, bool keepdim, std::string_view method) const;
  Tensor accumulate(Op op, const Axes& axes, bool keepdim, std::string_view method) const;
  Tensor padded_view(const SizePairs& padding) const;
  void write_through(const UOp& value) const;
  /// The elements, row-major; how they were computed stays known.
  std::shared_ptr<Memory> look() const;
  void require_elements(const Axes& axes, std::string_view method) const;
  Tensor largest(const Axes& axes, bool keepdim, std::string_view method) const;
  Tensor windows(int64_t kh, int64_t kw, Window window) const;

  std::shared_ptr<Impl> impl_;
};

/// Prints as NumPy does: nested brackets, long axes shortened to their edges.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// How tensors print; NumPy's defaults.
struct PrintOptions {
  int precision = 8;         ///< most digits after the point of a float
  int64_t threshold = 1000;  ///< tensors with more elements are shortened
  int64_t edge_items = 3;    ///< elements kept at each end of a shortened axis
  int line_width = 75;       ///< rows are broken before this column
};
/// Of the whole process.
PrintOptions print_options();
void set_print_options(const PrintOptions& options);

struct Slice {
  std::optional<Size> start, stop;
  int64_t step = 1;
};
struct NewAxis {};
struct Ellipsis {};

class IndexItem {
 public:
  IndexItem(Whole auto position) : position_(position) {}                        // NOLINT
  IndexItem(const Size& position) : position_(position) {}                       // NOLINT
  IndexItem(Slice slice) : kind_(Kind::Slice), slice_(slice) {}                  // NOLINT
  IndexItem(NewAxis) : kind_(Kind::NewAxis) {}                                   // NOLINT
  IndexItem(Ellipsis) : kind_(Kind::Ellipsis) {}                                 // NOLINT
  IndexItem(Tensor tensor) : kind_(Kind::Tensor), tensor_(std::move(tensor)) {}  // NOLINT
  enum class Kind : uint8_t { Position, Slice, NewAxis, Ellipsis, Tensor };
  Kind kind() const { return kind_; }
  const Size& position() const { return position_; }
  const Slice& slice() const { return slice_; }
  const Tensor& tensor() const { return tensor_; }

 private:
  Kind kind_ = Kind::Position;
  Size position_;
  Slice slice_;
  Tensor tensor_;
};

template <class Item>
  requires std::same_as<Item, Slice> || std::same_as<Item, NewAxis> ||
           std::same_as<Item, Ellipsis> || std::same_as<Item, Tensor>
Tensor Tensor::operator[](const Item& item) const {
  return (*this)[std::vector<IndexItem>{IndexItem(item)}];
}
#ifdef __cpp_multidimensional_subscript
template <class... Items>
  requires(sizeof...(Items) > 1)
Tensor Tensor::operator[](const Items&... items) const {
  return (*this)[std::vector<IndexItem>{IndexItem(items)...}];
}
#endif

template <class Element>
Tensor Tensor::from(const std::vector<Element>& data, const Shape& shape,
                    const std::string& device) {
  if constexpr (std::is_same_v<Element, bool>) {
    require_count(static_cast<int64_t>(data.size()), shape);
    const std::vector<uint8_t> bytes(data.begin(), data.end());
    return from_bytes(bytes.data(), shape, DType::Bool, device);
  } else {
    require_count(static_cast<int64_t>(data.size()), shape);
    return from_bytes(data.data(), shape, dtype_of<Element>(), device);
  }
}

template <class Element>
std::vector<Element> Tensor::tolist() const {
  const std::vector<std::byte> raw = bytes();
  const DType d = dtype();
  const auto item = static_cast<size_t>(item_size(d));
  std::vector<Element> out;
  out.reserve(raw.size() / item);
  for (size_t i = 0; i < raw.size(); i += item) {
    Bits bits = 0;
    __builtin_memcpy(&bits, raw.data() + i, item);
    if (is_float(d))
      out.push_back(static_cast<Element>(bits_to_double(d, bits)));
    else
      out.push_back(d == DType::UInt64 ? static_cast<Element>(bits)
                                       : static_cast<Element>(bits_to_int(d, bits)));
  }
  return out;
}

}  // namespace koine
