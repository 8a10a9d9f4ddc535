// Cases for compare.py, which computes each again with PyTorch: a line of JSON for every method,
// shape, view and corner, with inputs, value, vjp, jvp and the gradient of the vjp. KOINE_TEST_SEED
// draws the numbers.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "gradient_check.hpp"

namespace koine::test {
namespace {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;
using One = Tensor (*)(const Tensor&);
using Two = Tensor (*)(const Tensor&, const Tensor&);

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// What Python's json reads: also NaN and Infinity.
std::string number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{:.17g}", v);
}
template <class T>
std::string list(const std::vector<T>& items, const std::function<std::string(const T&)>& text) {
  std::string out;
  for (const T& item : items) out += (out.empty() ? "" : ",") + text(item);
  return "[" + out + "]";
}
std::string list(const std::vector<int64_t>& items) {
  return list<int64_t>(items, [](const int64_t& v) { return std::to_string(v); });
}
std::string text_of(const Tensor& t) {
  std::vector<int64_t> sizes;
  for (const Size& s : t.shape()) sizes.push_back(int64_t{s});
  return fmt::format(R"({{"dtype":"{}","shape":{},"data":{}}})", dtype_name(t.dtype()), list(sizes),
                     list<double>(t.tolist<double>(), number));
}
std::string text_of(const Tensors& all) {
  return list<Tensor>(all, [](const Tensor& t) { return text_of(t); });
}

// The method reads its first argument through this, compare.py's too.
Tensor viewed(const std::string& view, const Tensor& x) {
  if (view == "transpose") return x.transpose(-1, -2);
  if (view == "step") return x[{Ellipsis{}, Slice{{}, {}, 2}}];
  if (view == "flip") return x.flip({-1});
  if (view == "expand") {
    Shape shape = x.shape();
    shape[0] = 3;
    return x.expand(shape);
  }
  return x;
}

struct Method {
  std::string name;
  Function f;
  std::string arguments = "";  // of the method, as the inside of a JSON object
};

class Cases {
 public:
  /// `what`: generic, or the corner that the inputs stand at; compare.py has a list of choices by
  /// it.
  void add(const Method& m, const std::string& what, const Tensors& given,
           const std::string& view = "") {
    const std::string head =
        fmt::format(R"({{"method":"{}","what":"{}","view":"{}","arguments":{{{}}})", m.name, what,
                    view, m.arguments);
    try {
      std::printf("%s,%s}\n", head.c_str(), results(m, given, view).c_str());
    } catch (const Error& e) {
      std::string words;
      for (const char c : std::string(e.what()))
        words += c == '"' || c == '\\' || c < ' ' ? ' ' : c;
      std::printf("%s,\"error\":\"%s\"}\n", head.c_str(), words.c_str());
    }
  }
  /// In float64, and the same numbers rounded to each narrower dtype.
  void each(const Method& m, const std::string& what, const Tensors& given) {
    add(m, what, given);
    for (const DType d : {DType::Float32, DType::Float16, DType::BFloat16}) {
      Tensors narrow;
      for (const Tensor& t : given) narrow.push_back(t.cast(d).realize());
      add(m, what, narrow);
    }
  }
  Tensor draw(const Shape& shape, double low = -2, double high = 2) {
    return doubles(shape, random_, low, high);
  }
  /// Numbers that differ from each other, and from the corners, in narrow dtypes as well.
  Tensor apart(const Shape& shape, double low = -2, double high = 2,
               const std::vector<double>& corners = {}) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    std::vector<double> out(static_cast<size_t>(n));
    std::uniform_real_distribution<double> within(0.25, 0.75);
    for (;;) {
      for (size_t k = 0; k < out.size(); ++k)
        out[k] = low + (high - low) * (static_cast<double>(k) + within(random_)) /
                           static_cast<double>(out.size());
      std::shuffle(out.begin(), out.end(), random_);
      bool touches = false;
      for (const DType d : {DType::Float16, DType::BFloat16})
        for (const double v : out)
          for (const double at : corners) touches |= bits_to_double(d, double_to_bits(d, v)) == at;
      if (!touches) return Tensor::from(out, shape).realize();
    }
  }
  /// A number from low to high.
  int64_t count(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  Shape shape(int64_t least_rank, int64_t least_size) {
    Shape out;
    for (int64_t k = count(least_rank, 4); k > 0; --k) out.push_back(count(least_size, 4));
    return out;
  }
  /// One that broadcasts to it.
  Shape narrower(const Shape& shape) {
    Shape out(shape.begin() + count(0, static_cast<int64_t>(shape.size())), shape.end());
    for (Size& size : out)
      if (count(0, 2) == 0) size = 1;
    return out;
  }

 private:
  Tensor draw_like(const Tensor& t) { return draw(t.shape(), -1, 1).cast(t.dtype()).realize(); }

  std::string results(const Method& m, const Tensors& given, const std::string& view) {
    const Function f = [&](const Tensors& x) {
      Tensors seen = x;
      seen[0] = viewed(view, x[0]);
      return m.f(seen);
    };
    const auto reverse = vjp(f, given);
    const Tensor& value = reverse.first;
    const Tensor cotangent = draw_like(value);
    Tensors tangents, weights;
    for (const Tensor& x : given) {
      tangents.push_back(draw_like(x));
      weights.push_back(draw_like(x));
    }
    const Tensors pulled = reverse.second(cotangent);
    const Tensor pushed = jvp(f, given, tangents).second;
    // The second derivative by `weights`, in each order of the modes.
    auto slopes = [&](const Tensors& x) { return vjp(f, x).second(cotangent); };
    const Tensors second = grad([&](const Tensors& x) {
      const Tensors all = slopes(x);
      Tensor sum = (all[0] * weights[0]).sum();
      for (size_t k = 1; k < all.size(); ++k) sum = sum + (all[k] * weights[k]).sum();
      return sum;
    })(given);
    const Tensors forward_over_reverse = jvp(slopes, given, weights).second;
    const Tensors reverse_over_forward = grad(
        [&](const Tensors& x) { return (jvp(f, x, weights).second * cotangent).sum(); })(given);
    Tensors all{value, pushed};
    all.insert(all.end(), pulled.begin(), pulled.end());
    for (const Tensors& more : {second, forward_over_reverse, reverse_over_forward})
      all.insert(all.end(), more.begin(), more.end());
    Tensor::realize(all);
    std::string out =
        fmt::format(R"("inputs":{},"cotangent":{})", text_of(given), text_of(cotangent));
    auto field = [&](const char* name, const auto& what) {
      out += fmt::format(R"(,"{}":{})", name, text_of(what));
    };
    field("tangents", tangents);
    field("weights", weights);
    field("value", value);
    field("vjp", pulled);
    field("jvp", pushed);
    field("second", second);
    field("forward_over_reverse", forward_over_reverse);
    field("reverse_over_forward", reverse_over_forward);
    return out;
  }

  std::mt19937_64 random_{test_seed()};
};

Tensor row(const std::vector<double>& at) {
  return Tensor::from(at, {static_cast<int64_t>(at.size())});
}

// --- elementwise ---------------------------------------------------------------------------------

struct Unary {
  const char* name;
  One f;
  double low = -2, high = 2;
  std::vector<double> corner = {};
};

const std::vector<Unary>& unaries() {
  static const auto& rows = *new const std::vector<Unary>{
      {"neg", [](const Tensor& x) { return x.neg(); }},
      {"reciprocal", [](const Tensor& x) { return x.reciprocal(); }, 0.3, 2, {0}},
      {"sqrt", [](const Tensor& x) { return x.sqrt(); }, 0.3, 2, {0}},
      {"rsqrt", [](const Tensor& x) { return x.rsqrt(); }, 0.3, 2, {0}},
      {"exp", [](const Tensor& x) { return x.exp(); }, -2, 2, {-800}},
      {"exp2", [](const Tensor& x) { return x.exp2(); }},
      {"log", [](const Tensor& x) { return x.log(); }, 0.3, 2, {0}},
      {"log2", [](const Tensor& x) { return x.log2(); }, 0.3, 2, {0}},
      {"sin", [](const Tensor& x) { return x.sin(); }, -9, 9},
      {"cos", [](const Tensor& x) { return x.cos(); }, -9, 9},
      {"tan", [](const Tensor& x) { return x.tan(); }, -1.2, 1.2},
      {"trunc", [](const Tensor& x) { return x.trunc(); }, -3, 3, {-1, 0, 2}},
      {"floor", [](const Tensor& x) { return x.floor(); }, -3, 3, {-1, 0, 2}},
      {"ceil", [](const Tensor& x) { return x.ceil(); }, -3, 3, {-1, 0, 2}},
      {"round", [](const Tensor& x) { return x.round(); }, -3, 3, {-0.5, 0.5, 1.5, 2.5}},
      {"abs", [](const Tensor& x) { return x.abs(); }, -2, 2, {0, -0.0}},
      {"sign", [](const Tensor& x) { return x.sign(); }, -2, 2, {0, -0.0}},
      {"square", [](const Tensor& x) { return x.square(); }, -2, 2, {0}},
      {"relu", [](const Tensor& x) { return x.relu(); }, -2, 2, {0, -0.0}},
      {"leaky_relu", [](const Tensor& x) { return x.leaky_relu(0.1); }, -2, 2, {0, -0.0}},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }, -5, 5, {0, -50, 50, -800, 800}},
      {"tanh", [](const Tensor& x) { return x.tanh(); }, -3, 3, {0, 0.625, -0.625, 30, -400}},
      {"erf", [](const Tensor& x) { return x.erf(); }, -3, 3, {0, 0.8125, -0.8125, 20, -20}},
      {"erfc", [](const Tensor& x) { return x.erfc(); }, -3, 3, {0, 0.8125, -0.8125, 9, -9}},
      {"gelu", [](const Tensor& x) { return x.gelu(); }, -3, 3, {0, 20, -20, 64, -64}},
      {"gelu_by_erf", [](const Tensor& x) { return x.gelu("none"); }, -3, 3, {0, 20, -20, 64, -64}},
      {"silu", [](const Tensor& x) { return x.silu(); }, -5, 5, {0, 50, -50, 800, -800}},
      {"softplus", [](const Tensor& x) { return x.softplus(); }, -5, 5, {0, 50, -50, 800, -800}},
      {"elu", [](const Tensor& x) { return x.elu(0.7); }, -3, 3, {0, -0.0, -50, -800}},
      {"hardtanh", [](const Tensor& x) { return x.hardtanh(-0.5, 1.5); }, -2, 2, {-0.5, 1.5}},
      {"clip", [](const Tensor& x) { return x.clip(-0.5, 1.5); }, -2, 2, {-0.5, 1.5}},
      {"maximum_0", [](const Tensor& x) { return x.maximum(0.0); }, -2, 2, {0, -0.0}},
      {"pow_3", [](const Tensor& x) { return x.pow(3); }, -2, 2, {0}},
      {"pow_2", [](const Tensor& x) { return x.pow(2); }, -2, 2, {0}},
      {"pow_1", [](const Tensor& x) { return x.pow(1); }, -2, 2, {0}},
      {"pow_0", [](const Tensor& x) { return x.pow(0); }, -2, 2, {0}},
      {"pow_half", [](const Tensor& x) { return x.pow(0.5); }, 0.3, 2, {0}},
      {"pow_three_halves", [](const Tensor& x) { return x.pow(1.5); }, 0.3, 2, {0}},
      {"pow_minus_1", [](const Tensor& x) { return x.pow(-1); }, 0.3, 2, {0}},
      {"mod_1", [](const Tensor& x) { return x.mod(1.0); }, 0.1, 0.9, {-2, 0, 3}},
      {"cast", [](const Tensor& x) { return x.cast(DType::Float32) * 3; }},
      {"contiguous", [](const Tensor& x) { return x.contiguous() * x; }},
      {"detach", [](const Tensor& x) { return x.detach() * x; }},
      {"masked_fill", [](const Tensor& x) { return x.masked_fill(x > 0.5, 2) * x; }},
  };
  return rows;
}

void add_unaries(Cases& cases) {
  for (const Unary& u : unaries()) {
    const Method m{u.name, [&](const Tensors& x) { return u.f(x[0]); }};
    auto draw = [&](const Shape& shape) { return cases.draw(shape, u.low, u.high); };
    cases.each(m, "generic", {cases.apart({3, 4}, u.low, u.high, u.corner)});
    cases.add(m, "0-d", {draw({})});
    cases.add(m, "empty", {draw({0, 3})});
    cases.add(m, "generic", {draw({4, 3})}, "transpose");
    cases.add(m, "generic", {draw({2, 5})}, "step");
    cases.add(m, "generic", {draw({1, 3})}, "expand");
    for (int k = 0; k < 3; ++k) cases.add(m, "generic", {draw(cases.shape(0, 0))});
    std::vector<double> corner = u.corner;
    corner.insert(corner.end(), {inf, -inf, nan_value});
    for (const double at : corner) {
      const std::string where = at == 0 ? (std::signbit(at) ? "-0" : "0") : fmt::format("{}", at);
      cases.each(m, "at " + where, {row({at})});
    }
  }
}

struct Binary {
  const char* name;
  Two f;
  double low = -2, high = 2, second_low = -2, second_high = 2;
  std::vector<std::pair<double, double>> corner = {};
};

const std::vector<Binary>& binaries() {
  static const auto& rows = *new const std::vector<Binary>{
      {"add", [](const Tensor& a, const Tensor& b) { return a + b; }},
      {"sub", [](const Tensor& a, const Tensor& b) { return a - b; }},
      {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }, -2, 2, -2, 2, {{0, 0}}},
      {"div",
       [](const Tensor& a, const Tensor& b) { return a / b; },
       -2,
       2,
       0.4,
       2,
       {{0, 2}, {1, 0}, {0, 0}}},
      {"maximum",
       [](const Tensor& a, const Tensor& b) { return a.maximum(b); },
       -2,
       2,
       -2,
       2,
       {{1, 1}, {0, -0.0}}},
      {"minimum",
       [](const Tensor& a, const Tensor& b) { return a.minimum(b); },
       -2,
       2,
       -2,
       2,
       {{1, 1}, {0, -0.0}}},
      {"pow",
       [](const Tensor& a, const Tensor& b) { return a.pow(b); },
       0.3,
       2,
       -2,
       2,
       {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 0.5}, {0, 1.5}, {0, -1}, {-2, 3}, {-2, 0}, {1, 0}}},
      {"mod",
       [](const Tensor& a, const Tensor& b) { return a.mod(b); },
       2.1,
       2.9,
       1.05,
       1.35,
       {{4, 2}, {-4, 2}, {4, -2}, {0, 2}, {1.5, -2}, {-1.5, 2}, {7.3, 2}}},
      {"where",
       [](const Tensor& a, const Tensor& b) { return Tensor::where(a > b, a * b, b.sin()); }},
  };
  return rows;
}

void add_binaries(Cases& cases) {
  for (const Binary& b : binaries()) {
    const Method m{b.name, [&](const Tensors& x) { return b.f(x[0], x[1]); }};
    auto first = [&](const Shape& shape) { return cases.draw(shape, b.low, b.high); };
    auto second = [&](const Shape& shape) {
      return cases.draw(shape, b.second_low, b.second_high);
    };
    const std::vector<std::pair<Shape, Shape>> shapes = {
        {{3, 4}, {3, 4}}, {{3, 1}, {1, 4}}, {{}, {3}},           {{2, 3}, {3}},
        {{}, {}},         {{0, 3}, {3}},    {{3, 1, 2}, {4, 1}}, {{2, 1}, {2, 0}}};
    for (const auto& [left, right] : shapes) cases.add(m, "generic", {first(left), second(right)});
    for (int k = 0; k < 4; ++k) {
      const Shape both = cases.shape(0, 0);
      cases.add(m, "generic", {first(cases.narrower(both)), second(cases.narrower(both))});
    }
    cases.each(m, "generic", {first({2, 3}), second({3})});
    cases.add(m, "generic", {first({4, 3}), second({3, 4})}, "transpose");
    cases.add(m, "generic", {first({2, 5}), second({3})}, "step");
    cases.add(m, "generic", {first({1, 3}), second({3, 3})}, "expand");
    for (const auto& [l, r] : b.corner)
      cases.each(m, fmt::format("at {}, {}", l, r), {row({l}), row({r})});
  }
  const Method clip{"clip_tensors", [](const Tensors& x) { return x[0].clip(x[1], x[2]); }};
  cases.each(clip, "generic",
             {cases.apart({3, 4}), cases.draw({4}, -1, 0), cases.draw({3, 1}, 0, 1)});
  cases.each(clip, "at low", {row({-1}), row({-1}), row({1})});
  cases.each(clip, "at high", {row({1}), row({-1}), row({1})});
  cases.each(clip, "low is high", {row({1}), row({1}), row({1})});
  const Method lerp{"lerp", [](const Tensors& x) { return x[0].lerp(x[1], x[2]); }};
  cases.each(lerp, "generic", {cases.draw({3, 4}), cases.draw({3, 4}), cases.draw({4}, 0, 1)});
  cases.add(lerp, "at 0, 1", {row({1, 2}), row({3, 4}), row({0, 1})});
}

// --- along axes ----------------------------------------------------------------------------------

using Axes = Tensor::Axes;
struct Reduction {
  const char* name;
  std::function<Tensor(const Tensor&, const Axes&, bool)> f;
  bool of_none = true;  // whether it has a value of no elements
};

const std::vector<Reduction>& reductions() {
  static const auto& rows = *new const std::vector<Reduction>{
      {"sum", [](const Tensor& x, const Axes& a, bool k) { return x.sum(a, k); }},
      {"prod", [](const Tensor& x, const Axes& a, bool k) { return x.prod(a, k); }},
      {"max", [](const Tensor& x, const Axes& a, bool k) { return x.max(a, k); }, false},
      {"min", [](const Tensor& x, const Axes& a, bool k) { return x.min(a, k); }, false},
      {"mean", [](const Tensor& x, const Axes& a, bool k) { return x.mean(a, k); }},
      {"var", [](const Tensor& x, const Axes& a, bool k) { return x.var(a, k); }},
      {"var_0", [](const Tensor& x, const Axes& a, bool k) { return x.var(a, k, 0); }},
      {"std", [](const Tensor& x, const Axes& a, bool k) { return x.std(a, k); }},
      {"logsumexp", [](const Tensor& x, const Axes& a, bool k) { return x.logsumexp(a, k); },
       false},
      {"norm", [](const Tensor& x, const Axes& a, bool k) { return x.norm(a, k); }},
  };
  return rows;
}

void add_reductions(Cases& cases) {
  for (const Reduction& r : reductions()) {
    auto method = [&](const std::vector<int64_t>& axes, bool keepdim) {
      return Method{r.name,
                    [&r, axes, keepdim](const Tensors& x) { return r.f(x[0], axes, keepdim); },
                    fmt::format(R"("axes":{},"keepdim":{})", list(axes), keepdim)};
    };
    const Method all = method({}, false), rows = method({-1}, false), kept = method({0, 2}, true);
    cases.each(all, "generic", {cases.draw({3, 4})});
    cases.each(rows, "generic", {cases.draw({3, 4})});
    cases.add(kept, "generic", {cases.draw({2, 3, 4})});
    cases.add(all, "generic", {cases.draw({40})});
    for (int k = 0; k < 4; ++k) {
      const Shape shape = cases.shape(1, 2);
      std::vector<int64_t> axes;
      for (int64_t a = 0; a < static_cast<int64_t>(shape.size()); ++a)
        if (cases.count(0, 1)) axes.push_back(a);
      if (axes.empty()) axes.push_back(-1);
      cases.add(method(axes, cases.count(0, 1)), "generic", {cases.draw(shape)});
    }
    cases.add(rows, "generic", {cases.draw({4, 3})}, "transpose");
    cases.add(rows, "generic", {cases.draw({2, 5})}, "step");
    cases.add(method({1}, false), "equal rows", {cases.draw({1, 3})}, "expand");
    cases.add(rows, "empty", {cases.draw({0, 3})});
    if (r.of_none) cases.add(rows, "of none", {cases.draw({3, 0})});
    cases.add(all, "0-d", {cases.draw({})});
    cases.add(rows, "of one", {cases.draw({3, 1})});
    cases.each(rows, "equal elements", {row({1, 1, 1, 2, 2, 0, -1, -3, -1}).reshape({3, 3})});
    cases.each(rows, "at 0", {row({0, 0, 0, 0, -0.0, 0}).reshape({2, 3})});
    cases.add(rows, "one 0", {row({0, 2, 3, 4, 0, -1.5}).reshape({2, 3})});
    cases.add(rows, "two 0", {row({0, 2, 0, 0, 0, -1.5}).reshape({2, 3})});
    cases.add(rows, "-inf", {row({-inf, -inf, 1, 2}).reshape({2, 2})});
    cases.add(rows, "all -inf", {row({-inf, -inf})});
  }
}

struct Along {
  const char* name;
  Tensor (*f)(const Tensor&, int64_t);
};

void add_along(Cases& cases) {
  static const auto& methods = *new const std::vector<Along>{
      {"softmax", [](const Tensor& x, int64_t a) { return x.softmax(a); }},
      {"log_softmax", [](const Tensor& x, int64_t a) { return x.log_softmax(a); }},
      {"cumsum", [](const Tensor& x, int64_t a) { return x.cumsum(a); }},
      {"cumprod", [](const Tensor& x, int64_t a) { return x.cumprod(a); }},
      {"cummax", [](const Tensor& x, int64_t a) { return x.cummax(a); }},
      {"cummin", [](const Tensor& x, int64_t a) { return x.cummin(a); }},
      {"sort", [](const Tensor& x, int64_t a) { return x.sort(a).first; }},
      {"sort_descending", [](const Tensor& x, int64_t a) { return x.sort(a, true).first; }},
      {"topk", [](const Tensor& x, int64_t a) { return x.topk(2, a).first; }},
      {"topk_smallest", [](const Tensor& x, int64_t a) { return x.topk(2, a, false).first; }},
  };
  for (const Along& l : methods)
    for (const int64_t axis : {0, -1}) {
      const Method m{l.name, [&l, axis](const Tensors& x) { return l.f(x[0], axis); },
                     fmt::format(R"("axis":{})", axis)};
      const bool top = std::string(l.name).starts_with("topk");
      cases.each(m, "generic", {cases.apart({3, 4})});
      cases.add(m, "generic", {cases.draw({2, 3, 4})});
      cases.add(m, "generic", {cases.draw({4, 3})}, "transpose");
      cases.add(m, "generic", {cases.draw({3, 5})}, "step");
      for (int k = 0; k < 2; ++k) cases.add(m, "generic", {cases.draw(cases.shape(1, 2))});
      cases.each(m, "equal elements", {row({1, 1, 1, 2, 2, 0, 2, -3, 2}).reshape({3, 3})});
      if (top) continue;
      cases.add(m, "0-d", {cases.draw({})});
      cases.add(m, "empty", {cases.draw({0, 3})});
      cases.add(m, "of one", {cases.draw({1, 1})});
      if (axis == 0) {
        cases.add(m, "generic", {cases.draw({40}, 0.5, 1.5)});
        cases.add(m, "at 0", {row({0, 0, 0})});
        cases.add(m, "one 0", {row({1.5, 0, 2, 3})});
        cases.add(m, "two 0", {row({1.5, 0, 2, 0, 3})});
        Tensor zeros = cases.draw({40}, 0.5, 1.5).clone();
        zeros.setitem({3}, 0);
        cases.add(m, "one 0", {zeros.clone().realize()});
        zeros.setitem({20}, 0);
        cases.add(m, "two 0", {zeros.realize()});
        cases.add(m, "far apart", {row({-1000, 0, 1000})});
        cases.add(m, "-inf", {row({-inf, 0, 1})});
      }
    }
  for (const int64_t last : {1, 2}) {
    const Method m{"layernorm", [last](const Tensors& x) { return x[0].layernorm(last); },
                   fmt::format(R"("last":{})", last)};
    cases.each(m, "generic", {cases.draw({3, 4})});
    cases.add(m, "generic", {cases.draw({4, 3})}, "transpose");
    cases.add(m, "empty", {cases.draw({0, 3, 4})});
    cases.each(m, "equal elements", {Tensor::full({2, 3}, 1.5, DType::Float64).clone().realize()});
  }
}

// --- moves and positions -------------------------------------------------------------------------

void add_moves(Cases& cases) {
  static const Tensor& at = *new const Tensor(Tensor::from<int>({3, 0, 0}));
  static const Tensor& places =
      *new const Tensor(Tensor::from<int64_t>({0, 1, 2, 3, 0, 0}).reshape({3, 2}));
  static const Tensor& rows = *new const Tensor(Tensor::from<int>({2, 0, 2}));
  static const Tensor& two = *new const Tensor(Tensor::from<int>({2, 0}));
  static const auto& methods = *new const std::vector<std::pair<const char*, One>>{
      {"reshape", [](const Tensor& x) { return x.reshape({2, 6}); }},
      {"flatten", [](const Tensor& x) { return x.flatten(); }},
      {"permute", [](const Tensor& x) { return x.permute({1, 0}); }},
      {"expand", [](const Tensor& x) { return x.unsqueeze(1).expand({3, 5, 4}); }},
      {"squeeze", [](const Tensor& x) { return x.unsqueeze(0).squeeze(0); }},
      {"flip", [](const Tensor& x) { return x.flip({0, 1}); }},
      {"shrink", [](const Tensor& x) { return x.shrink({{1, 3}, {0, 2}}); }},
      {"pad", [](const Tensor& x) { return x.pad({{1, 0}, {2, 1}}, 1.5); }},
      {"cat", [](const Tensor& x) { return Tensor::cat({x, x * x, x.sin()}, 1); }},
      {"stack", [](const Tensor& x) { return Tensor::stack({x, x * x}, 1); }},
      {"roll", [](const Tensor& x) { return x.roll(1, 1); }},
      {"repeat", [](const Tensor& x) { return x.repeat({2, 3}); }},
      {"split", [](const Tensor& x) { return x.split(2, 1)[1]; }},
      {"chunk", [](const Tensor& x) { return x.chunk(2, 1)[0]; }},
      {"slice", [](const Tensor& x) { return x[{Slice{0, 3, 2}, Slice{{}, {}, -1}}]; }},
      {"position", [](const Tensor& x) { return x[-1]; }},
      {"tril", [](const Tensor& x) { return x.tril(); }},
      {"triu", [](const Tensor& x) { return x.triu(1); }},
      {"index_select", [](const Tensor& x) { return x.index_select(1, at); }},
      {"index", [](const Tensor& x) { return x[{Tensor(rows), Tensor(at)}]; }},
      {"gather", [](const Tensor& x) { return x.gather(1, places); }},
      {"setitem",
       [](const Tensor& x) {
         Tensor y = x * 2;
         y.setitem({1}, x[0] * x[2]);
         y.setitem({Slice{}, 3}, 1);
         return y;
       }},
      {"setitem_rows",
       [](const Tensor& x) {
         Tensor y = x * 2;
         y.setitem({Tensor(two)}, x.shrink({{0, 2}, {0, 4}}).sin());
         return y;
       }},
  };
  for (const auto& [name, f] : methods) {
    const Method m{name, [f = f](const Tensors& x) { return f(x[0]); }};
    // Once more under a curve, so that it has a second derivative.
    const Method curved{name, [f = f](const Tensors& x) { return f(x[0].sin()).exp(); },
                        R"("curved":true)"};
    cases.each(m, "generic", {cases.draw({3, 4})});
    cases.each(curved, "generic", {cases.draw({3, 4})});
    cases.add(curved, "generic", {cases.draw({4, 3})}, "transpose");
    cases.add(curved, "generic", {cases.draw({3, 7})}, "step");
    cases.add(curved, "generic", {cases.draw({3, 4})}, "flip");
    cases.add(curved, "generic", {cases.draw({1, 4})}, "expand");
  }
  const Method add{"scatter_add",
                   [](const Tensors& x) { return x[0].scatter_add(1, places, x[1]).exp(); }};
  cases.each(add, "generic", {cases.draw({3, 4}), cases.draw({3, 2})});
  static const Tensor& different =
      *new const Tensor(Tensor::from<int64_t>({0, 1, 2, 3, 0, 2}).reshape({3, 2}));
  const Method scatter{"scatter",
                       [](const Tensors& x) { return x[0].scatter(1, different, x[1]).exp(); }};
  cases.each(scatter, "generic", {cases.draw({3, 4}), cases.draw({3, 2})});
}

// --- products, windows, losses -------------------------------------------------------------------

void add_products(Cases& cases) {
  const Method matmul{"matmul", [](const Tensors& x) { return x[0].matmul(x[1]); }};
  cases.each(matmul, "generic", {cases.draw({3, 4}), cases.draw({4, 2})});
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{4}, {4}},       {{4}, {4, 2}},    {{3, 4}, {4}},       {{2, 1, 3, 4}, {5, 4, 2}},
      {{0, 4}, {4, 2}}, {{3, 0}, {0, 2}}, {{2, 3, 4}, {4, 2}}, {{20, 30}, {30, 10}}};
  for (const auto& [a, b] : shapes) cases.add(matmul, "generic", {cases.draw(a), cases.draw(b)});
  for (int k = 0; k < 6; ++k) {
    const Shape batch = cases.shape(0, 1);
    Shape a = cases.narrower(batch), b = cases.narrower(batch);
    const int64_t inner = cases.count(0, 4);
    a.insert(a.end(), {cases.count(1, 4), inner});
    b.insert(b.end(), {inner, cases.count(1, 4)});
    cases.add(matmul, "generic", {cases.draw(a), cases.draw(b)});
  }
  cases.add(matmul, "generic", {cases.draw({4, 3}), cases.draw({4, 2})}, "transpose");
  cases.add(matmul, "generic", {cases.draw({3, 7}), cases.draw({4, 2})}, "step");
  cases.each({"dot", [](const Tensors& x) { return x[0].dot(x[1]); }}, "generic",
             {cases.draw({5}), cases.draw({5})});
  cases.each({"linear", [](const Tensors& x) { return x[0].linear(x[1], x[2]); }}, "generic",
             {cases.draw({3, 4}), cases.draw({2, 4}), cases.draw({2})});
  for (const std::string formula : {"ij,kj->ik", "ij,jk,k->i", "ii->i", "ij->ji", "bij,bjk->bik"}) {
    Tensors operands;
    if (formula == "ii->i")
      operands = {cases.draw({3, 3})};
    else if (formula == "ij->ji")
      operands = {cases.draw({3, 2})};
    else if (formula == "bij,bjk->bik")
      operands = {cases.draw({2, 3, 4}), cases.draw({2, 4, 2})};
    else if (formula == "ij,kj->ik")
      operands = {cases.draw({3, 4}), cases.draw({2, 4})};
    else
      operands = {cases.draw({3, 4}), cases.draw({4, 2}), cases.draw({2})};
    cases.each({"einsum", [formula](const Tensors& x) { return Tensor::einsum(formula, x); },
                fmt::format(R"("formula":"{}")", formula)},
               "generic", operands);
  }
  struct Convolution {
    Tensor::Window window;
    int64_t groups;
  };
  for (const auto& [w, groups] :
       std::vector<Convolution>{{{1, 0, 1}, 1}, {{2, 1, 1}, 1}, {{1, 2, 2}, 1}, {{1, 1, 1}, 2}}) {
    const Method conv{
        "conv2d",
        [w = w, groups = groups](const Tensors& x) { return x[0].conv2d(x[1], x[2], w, groups); },
        fmt::format(R"("stride":{},"padding":{},"dilation":{},"groups":{})", w.stride, w.padding,
                    w.dilation, groups)};
    cases.each(conv, "generic",
               {cases.draw({2, 4, 5, 5}), cases.draw({2, 4 / groups, 3, 2}), cases.draw({2})});
    for (int k = 0; k < 2; ++k)
      cases.add(
          conv, "generic",
          {cases.draw({cases.count(1, 3), 4, cases.count(5, 8), cases.count(5, 8)}),
           cases.draw({2, 4 / groups, cases.count(1, 3), cases.count(1, 3)}), cases.draw({2})});
  }
  struct Pool {
    int64_t kernel, stride, padding;
  };
  for (const auto& [kernel, stride, padding] :
       std::vector<Pool>{{2, 2, 0}, {3, 1, 1}, {2, 1, 0}, {3, 2, 0}}) {
    const std::string arguments =
        fmt::format(R"("kernel":{},"stride":{},"padding":{})", kernel, stride, padding);
    const Method largest{"max_pool2d",
                         [=, k = kernel, s = stride, p = padding](const Tensors& x) {
                           return x[0].max_pool2d(k, s, p);
                         },
                         arguments};
    const Method average{"avg_pool2d",
                         [=, k = kernel, s = stride, p = padding](const Tensors& x) {
                           return x[0].avg_pool2d(k, s, p);
                         },
                         arguments};
    for (const Method& m : {largest, average}) {
      cases.each(m, "generic", {cases.apart({1, 2, 6, 6})});
      cases.add(m, "generic", {cases.draw({2, 1, 4, 6})}, "transpose");
      cases.add(m, "generic", {cases.draw({1, 1, cases.count(3, 8), cases.count(3, 8)})});
    }
    cases.each(largest, "equal elements",
               {Tensor::ones({1, 1, 4, 4}, DType::Float64).clone().realize()});
  }
  const Method attention{
      "attention", [](const Tensors& x) { return x[0].scaled_dot_product_attention(x[1], x[2]); }};
  cases.each(attention, "generic",
             {cases.draw({2, 3, 4}), cases.draw({2, 5, 4}), cases.draw({2, 5, 4})});
  const Method masked{"attention_masked", [](const Tensors& x) {
                        return x[0].scaled_dot_product_attention(
                            x[1], x[2], Tensor::ones({3, 3}, DType::Bool).tril());
                      }};
  cases.each(masked, "generic",
             {cases.draw({2, 3, 4}), cases.draw({2, 3, 4}), cases.draw({2, 3, 4})});
}

void add_losses(Cases& cases) {
  static const Tensor& target = *new const Tensor(Tensor::from<int>({2, 0, 3}));
  using Loss = std::pair<const char*, One>;
  for (const auto& [name, f] : std::vector<Loss>{
           {"cross_entropy", [](const Tensor& x) { return x.cross_entropy(target); }},
           {"cross_entropy_ignored", [](const Tensor& x) { return x.cross_entropy(target, 0); }},
           {"cross_entropy_smoothed",
            [](const Tensor& x) { return x.sparse_categorical_crossentropy(target, 0.1); }},
           {"nll_loss", [](const Tensor& x) { return x.log_softmax().nll_loss(target); }}}) {
    const Method m{name, [f = f](const Tensors& x) { return f(x[0]); }};
    cases.each(m, "generic", {cases.draw({3, 4})});
    cases.add(m, "generic", {cases.draw({4, 3})}, "transpose");
    cases.each(m, "equal elements", {Tensor::ones({3, 4}, DType::Float64).clone().realize()});
    cases.add(m, "far apart",
              {row({-1000, 0, 1000, 0, 1, 2, 3, 4, 50, 50, 0, -50}).reshape({3, 4})});
  }
  const Method mse{"mse_loss", [](const Tensors& x) { return x[0].mse_loss(x[1]); }};
  cases.each(mse, "generic", {cases.draw({3, 4}), cases.draw({3, 4})});
  cases.add(mse, "at 0", {row({1, 2}), row({1, 2})});
  cases.add(mse, "empty", {cases.draw({0}), cases.draw({0})});
  const Method logits{"binary_crossentropy_logits",
                      [](const Tensors& x) { return x[0].binary_crossentropy_logits(x[1]); }};
  cases.each(logits, "generic", {cases.draw({3, 4}), cases.draw({3, 4}, 0, 1)});
  cases.each(logits, "at 0", {row({0, 0, 0}), row({0, 0.5, 1})});
  cases.add(logits, "far apart", {row({-800, 800, -50, 50}), row({0, 1, 1, 0})});
}

// --- layers with state ---------------------------------------------------------------------------

void add_layers(Cases& cases) {
  // x, weight, bias, running mean, running variance. A layer is made outside of what is traced.
  const auto layer = [made = nn::BatchNorm(3, 1e-3, 0.3)](const Tensors& x) {
    nn::BatchNorm norm = made;
    norm.weight = x[1];
    norm.bias = x[2];
    norm.running_mean = x[3] + 0;
    norm.running_var = x[4] + 0;
    return norm;
  };
  const Method training{"batchnorm_training",
                        [&](const Tensors& x) { return layer(x)(x[0], true); }};
  const Method evaluation{"batchnorm_evaluation",
                          [&](const Tensors& x) { return layer(x)(x[0], false); }};
  const Method running{"batchnorm_running", [&](const Tensors& x) {
                         nn::BatchNorm norm = layer(x);
                         (void)norm(x[0], true);
                         return Tensor::stack({norm.running_mean, norm.running_var});
                       }};
  for (const Method& m : {training, evaluation, running})
    for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 4}, Shape{2, 3, 3, 2}})
      cases.each(m, "generic",
                 {cases.draw(shape), cases.draw({3}), cases.draw({3}), cases.draw({3}),
                  cases.draw({3}, 0.5, 2)});
  for (const double p : {0.0, 0.4, 1.0}) {
    const random::Key key(7);
    const Tensor kept = random::dropout(key, Tensor::ones({3, 4}), p) != 0.0;
    cases.each({"dropout", [=](const Tensors& x) { return random::dropout(key, x[0], p); },
                fmt::format(R"("p":{},"kept":{})", p, list(kept.tolist<int64_t>()))},
               "generic", {cases.draw({3, 4})});
  }
  static const Tensor& words = *new const Tensor(Tensor::from<int>({3, 0, 3, 1}).reshape({2, 2}));
  cases.each({"embedding",
              [made = nn::Embedding(4, 3)](const Tensors& x) {
                nn::Embedding table = made;
                table.weight = x[0];
                return table(words).exp();
              }},
             "generic", {cases.draw({4, 3})});
}

void write_all() {
  std::printf("{\"seed\":%llu}\n", static_cast<unsigned long long>(test_seed()));
  Cases cases;
  add_unaries(cases);
  add_binaries(cases);
  add_reductions(cases);
  add_along(cases);
  add_moves(cases);
  add_products(cases);
  add_losses(cases);
  add_layers(cases);
}

}  // namespace
}  // namespace koine::test

int main() {
  koine::test::write_all();
  return 0;
}
