// Matrix products, convolution, pooling, gather and scatter, losses.
#include <algorithm>
#include <cmath>
#include <map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {

Tensor Tensor::matmul(const Tensor& b) const {
  const tensor::Called called("matmul", this, &b);
  const Shape x = shape(), y = b.shape();
  KOINE_REQUIRE(!x.empty() && !y.empty(), Value,
                "matmul: shapes {} and {}: both need at least one axis", tensor::text_of(x),
                tensor::text_of(y));
  const Size inner = y.size() == 1 ? y[0] : y[y.size() - 2];
  KOINE_REQUIRE(x.back() == inner, Value,
                "matmul: shapes {} and {}: the last axis of the first ({}) must equal the {} of "
                "the second ({})",
                tensor::text_of(x), tensor::text_of(y), x.back(),
                y.size() == 1 ? "only axis" : "second-last axis", inner);
  for (size_t i = 3; i <= std::min(x.size(), y.size()); ++i) {
    const Size p = x[x.size() - i], q = y[y.size() - i];
    KOINE_REQUIRE(p == q || p == 1 || q == 1, Value,
                  "matmul: shapes {} and {} do not broadcast at axis -{}: {} and {} must be equal "
                  "or 1",
                  tensor::text_of(x), tensor::text_of(y), i, p, q);
  }
  if (const DType d = promote(dtype(), b.dtype()); is_small_float(d))  // rounded once
    return cast(DType::Float32).matmul(b.cast(DType::Float32)).cast(d);
  // (..., m, 1, k) * (..., 1, n, k) summed over k
  const Tensor left = x.size() == 1 ? reshape({1, 1, x[0]}) : unsqueeze(-2);
  const Tensor right = y.size() == 1 ? b.reshape({1, 1, y[0]}) : b.transpose(-1, -2).unsqueeze(-3);
  Tensor out = (left * right).sum({-1});
  if (x.size() == 1) out = out.squeeze(-2);
  if (y.size() == 1) out = out.squeeze(-1);
  return out;
}

Tensor Tensor::dot(const Tensor& b) const {
  return tensor::as_method("dot", {*this, b}, [&] { return matmul(b); });
}

Tensor Tensor::linear(const Tensor& weight, const Tensor& bias) const {
  const tensor::Called called("linear", this, &weight, &bias);
  return tensor::as_method("linear", {*this, weight, bias}, [&] {
    const Tensor out = weight.ndim() == 1 ? *this * weight : matmul(weight.transpose());
    return bias.defined() ? out + bias : out;
  });
}

namespace {

// What an einsum says: the axes of each operand and of the result, a character each; '.' stands for
// those of '...'.
struct Formula {
  std::vector<std::string> terms;
  std::string output;
  bool explicit_output = false;
};

Formula parse_formula(const std::string& formula) {
  std::string text;
  for (const char c : formula)
    if (c != ' ') text += c;
  Formula out{{""}, "", false};
  for (size_t i = 0; i < text.size(); ++i) {
    if (!out.explicit_output && text.compare(i, 2, "->") == 0) {
      out.explicit_output = true;
      ++i;
    } else if (text[i] == ',') {
      KOINE_REQUIRE(!out.explicit_output, Value, "einsum '{}': it has one output", formula);
      out.terms.emplace_back();
    } else {
      std::string& term = out.explicit_output ? out.output : out.terms.back();
      const bool dots = text.compare(i, 3, "...") == 0;
      KOINE_REQUIRE(dots || std::isalpha(static_cast<unsigned char>(text[i])), Value,
                    "einsum '{}': '{}' is not a letter", formula, text[i]);
      KOINE_REQUIRE(!dots || term.find('.') == std::string::npos, Value,
                    "einsum '{}': a term has '...' once", formula);
      term += text[i];
      if (dots) i += 2;
    }
  }
  return out;
}

// Gives the axes of '...' digits for names, the last axis of each operand the same one. They
// broadcast: an axis of size 1 goes from its operand where another's is longer.
void name_ellipses(const std::string& formula, Formula& f, std::vector<Tensor>& operands) {
  constexpr size_t most = 10;
  std::string names;
  std::map<char, Size> sizes;
  auto axes_of = [&](size_t k) { return operands[k].shape().size() - (f.terms[k].size() - 1); };
  for (size_t k = 0; k < f.terms.size(); ++k) {
    if (f.terms[k].find('.') == std::string::npos) continue;
    KOINE_REQUIRE(f.terms[k].size() <= operands[k].shape().size() + 1, Value,
                  "einsum '{}': term {} names {} axes beside '...', operand {} has shape {}",
                  formula, k, f.terms[k].size() - 1, k, tensor::text_of(operands[k].shape()));
    KOINE_REQUIRE(axes_of(k) <= most, Value,
                  "einsum '{}': '...' stands for {} axes, and may for {}", formula, axes_of(k),
                  most);
    while (names.size() < axes_of(k)) names += static_cast<char>('0' + names.size());
  }
  for (size_t k = 0; k < f.terms.size(); ++k) {
    const size_t dots = f.terms[k].find('.');
    if (dots == std::string::npos) continue;
    const std::string own = names.substr(names.size() - axes_of(k));
    f.terms[k].replace(dots, 1, own);
    for (size_t i = 0; i < own.size(); ++i) {
      const Size size = operands[k].shape()[dots + i];
      Size& common = sizes.emplace(own[i], size).first->second;
      if (common == 1) common = size;
    }
  }
  for (size_t k = 0; k < f.terms.size(); ++k)
    for (size_t i = f.terms[k].size(); i-- > 0;)
      if (const auto it = sizes.find(f.terms[k][i]);
          it != sizes.end() && it->second != 1 && operands[k].shape()[i] == 1) {
        operands[k] = operands[k].squeeze(static_cast<int64_t>(i));
        f.terms[k].erase(i, 1);
      }
  const size_t dots = f.output.find('.');
  if (dots != std::string::npos)
    f.output.replace(dots, 1, names);
  else if (f.explicit_output)
    KOINE_REQUIRE(names.empty(), Value,
                  "einsum '{}': the output has to say where the axes of '...' are", formula);
  else
    f.output = names;
}

}  // namespace

Tensor Tensor::einsum(const std::string& formula, const std::vector<Tensor>& given) {
  const tensor::Called called("einsum", given);
  Formula parsed = parse_formula(formula);
  std::vector<std::string>& terms = parsed.terms;
  std::vector<Tensor> operands = given;
  KOINE_REQUIRE(terms.size() == operands.size(), Value, "einsum '{}': {} terms for {} operands",
                formula, terms.size(), operands.size());
  name_ellipses(formula, parsed, operands);
  std::map<char, Size> sizes;
  std::map<char, int> uses;
  for (size_t k = 0; k < terms.size(); ++k) {
    const Shape s = operands[k].shape();
    KOINE_REQUIRE(terms[k].size() == s.size(), Value,
                  "einsum '{}': term '{}' names {} axes, operand {} has shape {}", formula,
                  terms[k], terms[k].size(), k, tensor::text_of(s));
    for (size_t i = 0; i < s.size(); ++i) {
      const auto [it, fresh] = sizes.emplace(terms[k][i], s[i]);
      KOINE_REQUIRE(fresh || it->second == s[i], Value, "einsum '{}': axis '{}' has size {} and {}",
                    formula, terms[k][i], it->second, s[i]);
      ++uses[terms[k][i]];
    }
  }
  std::string output = parsed.output;
  if (!parsed.explicit_output)
    for (const auto& [c, n] : uses)
      if (n == 1 && output.find(c) == std::string::npos) output += c;
  for (size_t i = 0; i < output.size(); ++i)
    KOINE_REQUIRE(sizes.contains(output[i]) && output.find(output[i], i + 1) == std::string::npos,
                  Value, "einsum '{}': output axis '{}' is unknown or named twice", formula,
                  output[i]);
  // Axes of the product: the output's, then the summed ones.
  std::string order = output;
  for (const auto& [c, n] : uses)
    if (output.find(c) == std::string::npos) order += c;
  DType dtype = operands[0].dtype();
  for (const Tensor& t : operands) dtype = promote(dtype, t.dtype());
  const bool rounded_once = is_small_float(dtype) && order.size() > output.size();
  Tensor product;
  for (size_t k = 0; k < terms.size(); ++k) {
    Tensor t = operands[k];
    std::string term = terms[k];
    // A letter twice in one term is a diagonal.
    for (size_t i = 0; i < term.size(); ++i) {
      const size_t again = term.find(term[i], i + 1);
      if (again == std::string::npos) continue;
      Shape mask(term.size(), 1);
      mask[i] = mask[again] = sizes[term[i]];
      t = where(eye(sizes[term[i]], DType::Bool).reshape(mask), t, tensor::like(t, 0))
              .sum({static_cast<int64_t>(again)});
      term.erase(again, 1);
      --i;
    }
    std::vector<int64_t> axes;
    Shape wide;
    for (const char c : order) {
      const size_t at = term.find(c);
      wide.push_back(at == std::string::npos ? Size(1) : sizes[c]);
      if (at != std::string::npos) axes.push_back(static_cast<int64_t>(at));
    }
    t = t.permute(axes).reshape(wide);
    if (rounded_once) t = t.cast(DType::Float32);
    product = product.defined() ? product * t : t;
  }
  if (order.size() == output.size()) return product;
  Axes summed;
  for (size_t i = output.size(); i < order.size(); ++i) summed.push_back(static_cast<int64_t>(i));
  const Tensor out = product.sum(summed);
  return rounded_once ? out.cast(dtype) : out;
}

// (N, C, H, W) -> (N, C, oh, ow, kh, kw): both image axes indexed by position + tap. The compiler
// folds the index tensors to arithmetic, forwards and in the gradient.
Tensor Tensor::windows(int64_t kh, int64_t kw, Window w) const {
  const Shape s = shape();
  auto positions = [&](const Size& size, const Size& kernel) {
    const Size out = (size - w.dilation * (kernel - 1) - 1) / w.stride + 1;
    const Tensor start = arange(out).reshape({out, 1}), tap = arange(kernel).reshape({1, kernel});
    return (w.stride == 1 ? start : start * Tensor(static_cast<int>(w.stride))) +
           (w.dilation == 1 ? tap : tap * Tensor(static_cast<int>(w.dilation)));
  };
  const Tensor ys = positions(s[2], kh), xs = positions(s[3], kw);
  const Tensor picked(
      koine::index(permute({2, 3, 0, 1}).uop(), {ys.uop(), xs.uop()}));  // oh kh ow kw N C
  return picked.permute({4, 5, 0, 2, 1, 3});
}

Tensor Tensor::conv2d(const Tensor& weight, const Tensor& bias, Window w, int64_t groups) const {
  const tensor::Called called("conv2d", this, &weight, &bias);
  const Shape x = shape(), k = weight.shape();
  KOINE_REQUIRE(x.size() == 4 && k.size() == 4, Value,
                "conv2d: needs (N, C, H, W) and (O, C/groups, kh, kw), got {} and {}",
                tensor::text_of(x), tensor::text_of(k));
  KOINE_REQUIRE(groups >= 1, Value, "conv2d: {} groups: there must be at least one", groups);
  KOINE_REQUIRE(x[1] == k[1] * groups, Value,
                "conv2d: input {} has {} channels, weight {} with {} groups wants {}",
                tensor::text_of(x), x[1], tensor::text_of(k), groups, k[1] * groups);
  KOINE_REQUIRE(k[0] % groups == 0, Value,
                "conv2d: {} groups do not divide the {} output channels of weight {}", groups, k[0],
                tensor::text_of(k));
  KOINE_REQUIRE(!bias.defined() || bias.shape() == Shape{k[0]}, Value,
                "conv2d: the bias has shape {}, weight {} wants ({},)", shape_text(bias.uop()),
                tensor::text_of(k), k[0]);
  KOINE_REQUIRE(w.stride >= 1 && w.dilation >= 1 && w.padding >= 0, Value,
                "conv2d: stride {} and dilation {} must be positive, padding {} not negative",
                w.stride, w.dilation, w.padding);
  KOINE_REQUIRE(std::max({w.stride, w.dilation, w.padding}) <= INT32_MAX, Value,
                "conv2d: stride {}, dilation {} and padding {} must be below 2^31", w.stride,
                w.dilation, w.padding);
  const int64_t reach = w.dilation * (std::max(k[2], k[3]) - 1) + 1;
  KOINE_REQUIRE(x[2] + 2 * w.padding >= w.dilation * (k[2] - 1) + 1 &&
                    x[3] + 2 * w.padding >= w.dilation * (k[3] - 1) + 1,
                Value,
                "conv2d: the kernel reaches over {} elements, the padded input {} is smaller",
                reach, tensor::text_of(x));
  const DType d = promote(dtype(), weight.dtype());
  if (is_small_float(d)) {  // rounded once
    const Tensor out =
        cast(DType::Float32).conv2d(weight.cast(DType::Float32), {}, w, groups).cast(d);
    return bias.defined() ? out + bias.reshape({1, k[0], 1, 1}) : out;
  }
  const Tensor padded = w.padding == 0
                            ? *this
                            : pad({{0, 0}, {0, 0}, {w.padding, w.padding}, {w.padding, w.padding}});
  const Tensor win = padded.windows(k[2], k[3], w);  // N C oh ow kh kw
  const Shape ws = win.shape();
  const int64_t g = groups, o = k[0] / groups;
  // N g 1 c oh ow kh kw  *  1 g o c 1 1 kh kw
  const Tensor left = win.reshape({x[0], g, 1, k[1], ws[2], ws[3], k[2], k[3]});
  const Tensor right = weight.reshape({1, g, o, k[1], 1, 1, k[2], k[3]});
  Tensor out = (left * right).sum({3, 6, 7}).reshape({x[0], k[0], ws[2], ws[3]});
  if (bias.defined()) out = out + bias.reshape({1, k[0], 1, 1});
  return out;
}

namespace {

void require_pool(std::string_view method, const Tensor& x, int64_t kernel, int64_t stride,
                  int64_t padding) {
  KOINE_REQUIRE(x.ndim() == 4, Value, "{}: needs (N, C, H, W), got {}", method,
                shape_text(x.uop()));
  KOINE_REQUIRE(kernel >= 1 && stride >= 1, Value, "{}: kernel {} and stride {} must be positive",
                method, kernel, stride);
  KOINE_REQUIRE(padding >= 0 && padding <= kernel / 2, Value,
                "{}: the padding {} must be from 0 to half the kernel, {}", method, padding,
                kernel / 2);
  KOINE_REQUIRE(kernel <= std::min(x.size(2), x.size(3)) + 2 * padding, Value,
                "{}: the kernel {} is larger than the input {} with padding {}", method, kernel,
                shape_text(x.uop()), padding);
}

}  // namespace

Tensor Tensor::max_pool2d(int64_t kernel, std::optional<int64_t> stride, int64_t padding) const {
  const tensor::Called called("max_pool2d", this);
  require_pool("max_pool2d", *this, kernel, stride.value_or(kernel), padding);
  const Tensor lowest(identity_of(Op::Max, dtype()));
  const Tensor x =
      padding == 0 ? *this : pad({{0, 0}, {0, 0}, {padding, padding}, {padding, padding}}, lowest);
  if (stride.value_or(kernel) == kernel && x.size(2) % kernel == 0 && x.size(3) % kernel == 0) {
    const Shape s = x.shape();
    return x.reshape({s[0], s[1], s[2] / kernel, kernel, s[3] / kernel, kernel}).max({3, 5});
  }
  return x.windows(kernel, kernel, {stride.value_or(kernel), 0, 1}).max({4, 5});
}

namespace {

// A window of so many neighbours costs more than two running sums.
constexpr int64_t least_width_of_running_sums = 16;

// The sums of `width` neighbours along an axis, by a number of operations an element that does not
// grow with the width. Between blocks of so many, a window is the end of one and the beginning of
// the next: all of its elements and no others, so nothing is subtracted again.
Tensor sums_of_neighbours(const Tensor& x, int64_t axis, int64_t width) {
  const auto a = static_cast<size_t>(axis);
  const Shape shape = x.shape();
  const int64_t n = shape[a], blocks = (n + width - 1) / width;
  Shape in_blocks = shape, whole = shape;
  whole[a] = blocks * width;
  in_blocks[a] = blocks;
  in_blocks.insert(in_blocks.begin() + axis + 1, width);
  auto along = [](const Shape& of, size_t at, const Size& from, const Size& to) {
    SizePairs out;
    for (size_t i = 0; i < of.size(); ++i)
      out.emplace_back(i == at ? from : Size(0), i == at ? to : of[i]);
    return out;
  };
  SizePairs after(shape.size(), {0, 0}), next(in_blocks.size(), {0, 0});
  after[a] = {0, blocks * width - n};
  next[a] = {0, 1};
  next[a + 1] = {1, 0};
  const Tensor parts = x.pad(after).reshape(in_blocks);
  const Tensor ends = parts.flip({axis + 1}).cumsum(axis + 1).flip({axis + 1});
  SizePairs begun = along(in_blocks, a, 1, blocks);
  begun[a + 1] = {0, width - 1};
  const Tensor beginnings = parts.cumsum(axis + 1).shrink(begun).pad(next);
  return (ends + beginnings).reshape(whole).shrink(along(shape, a, 0, n - width + 1));
}

}  // namespace

Tensor Tensor::avg_pool2d(int64_t kernel, std::optional<int64_t> stride, int64_t padding) const {
  const tensor::Called called("avg_pool2d", this);
  require_pool("avg_pool2d", *this, kernel, stride.value_or(kernel), padding);
  const Tensor x =
      padding == 0 ? *this : pad({{0, 0}, {0, 0}, {padding, padding}, {padding, padding}});
  const bool known = x.size(2).is_number() && x.size(3).is_number();
  if (stride.value_or(kernel) == 1 && kernel >= least_width_of_running_sums && known &&
      uop().device().count() <= 1) {
    const DType out = is_float(dtype()) ? dtype() : DType::Float32;
    const Tensor wide = x.cast(is_small_float(out) ? DType::Float32 : out);
    const Tensor sums = sums_of_neighbours(sums_of_neighbours(wide, 3, kernel), 2, kernel);
    return (sums * Tensor(1.0 / static_cast<double>(kernel * kernel))).cast(out);
  }
  return x.windows(kernel, kernel, {stride.value_or(kernel), 0, 1}).mean({4, 5});
}

Tensor Tensor::scaled_dot_product_attention(const Tensor& key, const Tensor& value,
                                            const Tensor& mask) const {
  return tensor::as_method("scaled_dot_product_attention", {*this, key, value, mask}, [&] {
    const DType out = promote(promote(dtype(), key.dtype()), value.dtype());
    if (is_small_float(out))  // scores would leave the range
      return cast(DType::Float32)
          .scaled_dot_product_attention(key.cast(DType::Float32), value.cast(DType::Float32), mask)
          .cast(out);
    Tensor scores = matmul(key.transpose(-1, -2)) *
                    Tensor(1 / std::sqrt(static_cast<double>(int64_t{size(-1)})));
    if (mask.defined())
      scores = mask.dtype() == DType::Bool
                   ? where(mask, scores, Tensor(-std::numeric_limits<double>::infinity()))
                   : scores + mask;
    return scores.softmax(-1).matmul(value);
  });
}

// --- gather and scatter
// ------------------------------------------------------------------------------

namespace {

// (index.shape..., n): where each position stands among the n of the axis.
Tensor hits(const Tensor& index, const Size& n) {
  Shape wide(static_cast<size_t>(index.ndim()) + 1, 1);
  wide.back() = n;
  const DType d = index.dtype();
  return Tensor::arange(0, n, 1, is_unsigned(d) || item_size(d) < 4 ? DType::Int64 : d)
             .reshape(wide) == index.unsqueeze(-1);
}

// Off the axis an index is no larger than what it looks into.
void require_inside(std::string_view method, const Shape& index, const Shape& shape, size_t axis) {
  for (size_t i = 0; i < shape.size(); ++i)
    KOINE_REQUIRE(i == axis || never_exceeds(index[i], shape[i]), Value,
                  "{}: index {} is larger than shape {} at axis {}", method, tensor::text_of(index),
                  tensor::text_of(shape), i);
}

}  // namespace

Tensor Tensor::one_hot(int64_t classes) const {
  const tensor::Called called("one_hot", this);
  KOINE_REQUIRE(is_integer(dtype()), Type, "one_hot: needs integers, got {}", dtype_name(dtype()));
  KOINE_REQUIRE(classes >= 0, Value, "one_hot: {} classes", classes);
  return hits(tensor::class_numbers("one_hot", *this, classes), classes).cast(DType::Float32);
}

// out[i][j] = this[index[i][j]][j] for axis 0: one-hot along the axis, selected and summed.
Tensor Tensor::gather(int64_t axis, const Tensor& index) const {
  const tensor::Called called("gather", this, &index);
  const int64_t a = axis_of(axis, "gather");
  const Shape s = shape(), t = index.shape();
  KOINE_REQUIRE(s.size() == t.size(), Value, "gather: shape {} and index {} must have as many axes",
                tensor::text_of(s), tensor::text_of(t));
  require_inside("gather", t, s, static_cast<size_t>(a));
  SizePairs bounds;
  for (size_t i = 0; i < s.size(); ++i)
    bounds.emplace_back(0, static_cast<int64_t>(i) == a ? s[i] : t[i]);
  const Size n = s[static_cast<size_t>(a)];
  const Tensor at = tensor::positions("gather", index, n);
  const Tensor x = shrink(bounds).unsqueeze(-1).transpose(a, -1);  // the axis goes last
  return where(hits(at, n), x, Tensor(constant_int(dtype(), 0)))
      .reduced(Op::Add, {-1}, false, "gather");
}

Tensor Tensor::scatter_add(int64_t axis, const Tensor& index, const Tensor& src) const {
  const tensor::Called called("scatter_add", this, &index, &src);
  const int64_t a = axis_of(axis, "scatter_add");
  const Shape s = shape(), t = index.shape();
  KOINE_REQUIRE(s.size() == t.size() && src.shape() == t, Value,
                "scatter_add: index {} and src {} must have one shape, with as many axes as {}",
                tensor::text_of(t), tensor::text_of(src.shape()), tensor::text_of(s));
  require_inside("scatter_add", t, s, static_cast<size_t>(a));
  const Size n = s[static_cast<size_t>(a)];
  const Tensor values = src.cast(dtype()).unsqueeze(-1);
  const Tensor at = tensor::positions("scatter_add", index, n);
  Tensor spread = where(hits(at, n), values, Tensor(constant_int(dtype(), 0))).transpose(a, -1);
  spread = spread.reduced(Op::Add, {-1}, false, "scatter_add");
  SizePairs padding;
  const Shape now = spread.shape();
  for (size_t i = 0; i < s.size(); ++i) padding.emplace_back(0, s[i] - now[i]);
  return *this + spread.pad(padding);
}

// The last write to a place wins: the position of the last one, which is a maximum by index, then
// its value.
Tensor Tensor::scatter(int64_t axis, const Tensor& index, const Tensor& src) const {
  const tensor::Called called("scatter", this, &index, &src);
  const auto a = static_cast<size_t>(axis_of(axis, "scatter"));
  const Shape s = shape(), t = index.shape();
  KOINE_REQUIRE(s.size() == t.size() && src.shape() == t, Value,
                "scatter: index {} and src {} must have one shape, with as many axes as {}",
                tensor::text_of(t), tensor::text_of(src.shape()), tensor::text_of(s));
  require_inside("scatter", t, s, a);
  const Tensor at = tensor::positions("scatter", index, s[a]);
  if (index.numel() == 0) return *this;
  Shape wide(s.size() + 1, 1);
  wide[a] = t[a];
  const Tensor order = arange(1, t[a] + 1, 1, DType::Int64).reshape(wide), none(int64_t{0});
  const Tensor last = where(hits(at, s[a]), order, none)
                          .max(static_cast<int64_t>(a), true)
                          .transpose(static_cast<int64_t>(a), -1)
                          .squeeze(-1);  // index's shape, but s[a] along the axis; 0: no write
  Tensor from(int64_t{0});               // where the written values lie in src
  for (size_t i = 0; i < t.size(); ++i) {
    Shape along(t.size(), 1);
    along[i] = t[i];
    from = from * Tensor(t[i]) + (i == a ? (last - Tensor(int64_t{1})).maximum(none)
                                         : arange(0, t[i], 1, DType::Int64).reshape(along));
  }
  const Tensor value(koine::index(src.cast(dtype()).flatten().uop(), {from.uop()}));
  SizePairs padding;
  for (size_t i = 0; i < s.size(); ++i) padding.emplace_back(0, i == a ? Size(0) : s[i] - t[i]);
  return where((last != none).pad(padding), value.pad(padding), *this);
}

namespace {

// The diagonal of a matrix at which triangles are cut; those outside keep all or nothing.
Tensor diagonal_of(std::string_view method, const Tensor& x, int64_t diagonal) {
  KOINE_REQUIRE(x.ndim() >= 2, Value, "{}: shape {} has no matrix", method, shape_text(x.uop()));
  const Size r = x.size(-2);
  return Tensor::arange(r).reshape({r, 1}) +
         Tensor(std::clamp(diagonal, -r.largest(), x.size(-1).largest()));
}

}  // namespace

Tensor Tensor::tril(int64_t diagonal) const {
  const tensor::Called called("tril", this);
  const Tensor cut = diagonal_of("tril", *this, diagonal);
  return where(arange(size(-1)).reshape({1, -1}) <= cut, *this, tensor::like(*this, 0));
}
Tensor Tensor::triu(int64_t diagonal) const {
  const tensor::Called called("triu", this);
  const Tensor cut = diagonal_of("triu", *this, diagonal);
  return where(arange(size(-1)).reshape({1, -1}) >= cut, *this, tensor::like(*this, 0));
}

// --- losses
// ------------------------------------------------------------------------------------------

namespace {

// The mean over the rows whose target is not the one to ignore.
Tensor mean_of_counted(const Tensor& rows, const Tensor& target, std::optional<int64_t> ignored) {
  if (!ignored) return rows.mean();
  const Tensor counts = target != Tensor(*ignored);
  return Tensor::where(counts, rows, tensor::like(rows, 0)).sum() / counts.cast(rows.dtype()).sum();
}

void require_classes(std::string_view method, const Tensor& x, const Tensor& target) {
  const Shape all = x.shape();
  KOINE_REQUIRE(
      x.ndim() > 0 && target.shape() == Shape(std::vector<Size>(all.begin(), all.end() - 1)), Value,
      "{}: needs (..., classes) and (...), got {} and {}", method, shape_text(x.uop()),
      shape_text(target.uop()));
}

// -this at each row's target class.
Tensor picked_classes(std::string_view method, const Tensor& x, const Tensor& target,
                      std::optional<int64_t> ignored) {
  require_classes(method, x, target);
  const Tensor wanted =
      ignored ? Tensor::where(target == Tensor(*ignored), tensor::like(target, 0), target) : target;
  const Tensor at = tensor::class_numbers(method, wanted, x.size(-1));
  return x.gather(-1, at.unsqueeze(-1)).squeeze(-1).neg();
}

Tensor class_loss(std::string_view method, const Tensor& x, const Tensor& target, double smoothing,
                  std::optional<int64_t> ignored) {
  KOINE_REQUIRE(smoothing >= 0 && smoothing <= 1, Value,
                "{}: the label smoothing {} is not from 0 to 1", method, smoothing);
  require_classes(method, x, target);
  const Tensor logs = x.log_softmax(-1);
  const Tensor hard = picked_classes(method, logs, target, ignored);
  if (smoothing == 0) return mean_of_counted(hard, target, ignored);
  const Tensor rows = hard * Tensor(1 - smoothing) - logs.mean({-1}) * Tensor(smoothing);
  return mean_of_counted(rows, target, ignored);
}

}  // namespace

Tensor Tensor::nll_loss(const Tensor& target, std::optional<int64_t> ignore_index) const {
  const tensor::Called called("nll_loss", this, &target);
  const Tensor rows = picked_classes("nll_loss", *this, target, ignore_index);
  return mean_of_counted(rows, target, ignore_index);
}
Tensor Tensor::sparse_categorical_crossentropy(const Tensor& target, double label_smoothing,
                                               std::optional<int64_t> ignore_index) const {
  const tensor::Called called("sparse_categorical_crossentropy", this, &target);
  return class_loss("sparse_categorical_crossentropy", *this, target, label_smoothing,
                    ignore_index);
}
Tensor Tensor::cross_entropy(const Tensor& target, std::optional<int64_t> ignore_index) const {
  const tensor::Called called("cross_entropy", this, &target);
  return class_loss("cross_entropy", *this, target, 0, ignore_index);
}
namespace {

// A target of another rank, as (n,) for (n, 1), would meet each prediction with each of its
// elements.
void require_target(std::string_view method, const Tensor& x, const Tensor& target) {
  const Tensor met = x + target.detach().cast(x.dtype());
  KOINE_REQUIRE(met.shape() == x.shape(), Value,
                "{}: a target of shape {} makes a loss of shape {} of predictions of shape {}: "
                "reshape one of them",
                method, tensor::text_of(target.shape()), tensor::text_of(met.shape()),
                tensor::text_of(x.shape()));
}

}  // namespace

Tensor Tensor::binary_crossentropy_logits(const Tensor& target) const {
  // max(x, 0) - t x + log(1 + exp(-|x|)): the difference is exact where x is certain and right, and
  // the logarithm, which is then all of the loss, keeps its digits. At 0 both take the side x.
  return tensor::as_method("binary_crossentropy_logits", {*this, target}, [&] {
    require_target("binary_crossentropy_logits", *this, target);
    const Tensor x = is_float(dtype()) ? *this : to_float();
    const Tensor left = x < 0.0;
    return (where(left, 0.0, x) - x * target + where(left, x, x.neg()).softplus()).mean();
  });
}
Tensor Tensor::mse_loss(const Tensor& target) const {
  return tensor::as_method("mse_loss", {*this, target}, [&] {
    require_target("mse_loss", *this, target);
    const Tensor difference = *this - target;
    const DType d = difference.dtype();
    if (d == DType::Float32 || d == DType::Float64) return difference.square().mean();
    // Squares would leave the range, and differences of unsigned integers wrap.
    const Tensor wide = cast(DType::Float32) - target.cast(DType::Float32);
    return is_float(d) ? wide.square().mean().cast(d) : wide.square().mean();
  });
}

}  // namespace koine
