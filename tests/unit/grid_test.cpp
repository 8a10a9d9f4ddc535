// The grid: every op x {vjp, jvp, vmap, shard} x {alone, under grad, jvp, vmap, jit} x dtypes, from
// one list. What a cell gives is compared with what was not made by the transform: central
// differences in float64, a loop over examples, one device; derivatives of narrower floats with
// those of the same numbers in float64. docs/transforms.md shows what the grid found.
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

#include "gradient_check.hpp"
#include "koine/engine/step.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/tensor/loops.hpp"
#include "koine/tensor/transforms.hpp"
#include "koine/transform/checkpoint.hpp"
#include "koine/transform/table.hpp"

namespace koine::test {
namespace {

using Unary = std::function<Tensor(const Tensor&)>;

struct Sample {
  Op op;
  Unary f;  ///< of a tensor with two even axes, numbers in 0.375..1.75; holds a node of the op
  bool stops = false;  ///< what it means has no slope, whatever its differences are
  double step = 1e-5;  ///< of differences
};

UOp whole(const Tensor& x) { return (x * 8).cast(DType::Int64).uop(); }
// As numbers of the dtype of x.
Tensor like(const Tensor& x, const UOp& u) { return Tensor(u).cast(x.dtype()); }
DType bits_of(DType d) {  // whole numbers of the same size
  const int64_t size = item_size(d);
  return size == 1   ? DType::UInt8
         : size == 2 ? DType::Int16
         : size == 4 ? DType::Int32
                     : DType::Int64;
}
Tensor made(Op op, const Tensor& x) {  // of two whole numbers
  return like(x, UOp::make(op, {whole(x), whole(x.flip({1}))}));
}
UOp view(const UOp& x, int64_t from) {
  return shrink(x, shape_of({0, from}), stack(std::vector<UOp>{x.dim(0), index_const(1)}));
}
// Two Stores that are one effect.
Tensor grouped(const Tensor& x) {
  const UOp copy = private_copy((x * 2).uop());
  const UOp first = view(x.sin().uop(), 0);
  return Tensor(after(copy, {group({store(view(copy, 0), first), store(view(copy, 1), first)})}));
}
Tensor written(const Tensor& x) {
  const UOp copy = private_copy((x * 2).uop());
  return Tensor(after(copy, {store(view(copy, 1), view(x.sin().uop(), 0))}));
}
Tensor called(const Tensor& x) {
  return call_function("grid.square", CallResult{x.shape(), x.dtype()}, {x});
}

void know_square() {
  register_function("grid.square",
                    [](std::span<const HostResult> out, std::span<const HostArgument> in) {
                      const DType d = in[0].dtype;
                      const auto item = static_cast<size_t>(item_size(d));
                      for (int64_t i = 0; i < in[0].numel(); ++i) {
                        Bits bits = 0;
                        std::memcpy(&bits, in[0].data + i * item_size(d), item);
                        const double x = bits_to_double(d, bits);
                        bits = double_to_bits(d, x * x);
                        std::memcpy(out[0].data + i * item_size(d), &bits, item);
                      }
                    });
  register_gradient("grid.square", [](const CallGradient& c) -> std::vector<Tensor> {
    return {c.gradients[0] * c.arguments[0] * 2};
  });
  register_vmap("grid.square", [](const CallForExamples& c) -> std::vector<Tensor> {
    return {c.arguments[0].square()};
  });
}

// One on each device, each a copy of the others.
Tensor copies(const Tensor& x) {
  const auto devices = static_cast<int64_t>(x.uop().device().count());
  const Tensor all = x.square().sum({0}, true).expand({devices, x.size(1)});
  return Tensor(replicated((devices > 1 ? all.shard(x.device(), 0) : all).uop(), 0));
}
Tensor with_bytes(const Tensor& x) {
  const UOp byte = index(UOp::make(Op::Binary, {}, std::string("\3\5")), {index_const(1)});
  const bool several = x.uop().device().count() > 1;
  return x * (several ? like(x, byte).shard(x.device()) : like(x, byte));
}
Tensor picked(const Tensor& x) {
  const UOp rows = whole(x.T().sum({1})), two = constant_int(DType::Int64, 2);
  return Tensor(index(x.T().square().uop(), {binary(Op::Mod, rows, two)}));
}
Tensor in_tuple(const Tensor& x) {
  const std::vector<UOp> one{x.sin().uop()};
  return Tensor(get_tuple(tuple(one), 0));
}
Tensor random_bits(const Tensor& x) {
  auto word = [](int64_t n) { return constant_int(DType::UInt64, n); };
  const UOp bits = binary(Op::Threefry, cast(whole(x), DType::UInt64), word(7));
  return like(x, binary(Op::Shr, bits, word(56)));
}
Tensor promised(const Tensor& x) {
  auto end = [](int64_t n) { return constant_int(DType::Int64, n); };
  return x * like(x, UOp::make(Op::Assume, {whole(x), end(0), end(99)}));
}
Tensor unary_of(Op op, const Tensor& x) { return Tensor(unary(op, x.uop())); }
Tensor turned(const Tensor& x) { return x.reshape({x.size(0), 1, x.size(1)}).permute({0, 2, 1}); }
Tensor sum_of_product(const Tensor& x) {
  return Tensor(UOp::make(Op::Mulacc, {x.uop(), x.sin().uop(), x.flip({1}).uop()}));
}
Tensor scanned(const Tensor& x) {
  const auto step = [](const Tensor& c, const Tensor& row) {
    return std::pair(c * row.sin() + 0.5, c * row);
  };
  const auto [last, all] = scan(step, x.sum({1}).cos(), x.transpose());  // devices split axis 0
  return (all + last).transpose();
}
Tensor repeated(const Tensor& x) {
  using State = std::pair<Tensor, Tensor>;
  return while_loop([](const State& s) { return s.second < 3; },
                    [](const State& s) {
                      return State(s.first.sin().cast(s.first.dtype()) + 1, s.second + 1);
                    },
                    State(x, Tensor(0)))
      .first;
}
Tensor branched(const Tensor& x) {
  return cond(
      x.sum() > 2.5, [](const Tensor& y) { return y.square(); },
      [](const Tensor& y) { return y.sin().cast(y.dtype()); }, x);
}
Tensor behind(const Tensor& x) { return Tensor(fenced(x.square().uop(), {x.exp().uop()})).sin(); }

// clang-format off
// One line an op.
const std::vector<Sample>& samples() {
  using T = const Tensor&;
  static const auto& list = *new const std::vector<Sample>{
      {Op::Param, [](T x) { return x; }},
      {Op::Buffer, [](T x) { return x; }},
      {Op::Const, [](T x) { return x * 0 + 2; }},
      {Op::Binary, with_bytes},
      {Op::Permute, [](T x) { return turned(x * 2); }},
      {Op::Flip, [](T x) { return (x * 2).flip({1}); }},
      {Op::Reshape, [](T x) { return (x * 2).reshape({x.size(0), x.size(1), 1}); }},
      {Op::Expand, [](T x) { return x.sum({1}, true).expand({x.size(0), 3}); }},
      {Op::Pad, [](T x) { return x.pad({{0, 0}, {1, 2}}, 0.5).square(); }},
      {Op::Shrink, [](T x) { return x.square().shrink({{0, x.size(0)}, {0, 1}}); }},
      {Op::Index, picked},
      {Op::Stack, [](T x) { return Tensor::stack({x, x * x}); }},
      {Op::Replicated, copies},
      {Op::Bitcast, [](T x) { return x.bitcast(bits_of(x.dtype())).bitcast(x.dtype()); }, true},
      {Op::Reduce, [](T x) { return x.square().sum({1}) + x.max({1}) * x.prod({1}); }},
      {Op::Function, koine::function([](T x) { return x.sin() * x; })},
      {Op::Call, called},
      {Op::Scan, scanned},
      {Op::While, repeated},
      {Op::Switch, branched},
      {Op::Tuple, in_tuple},
      {Op::GetTuple, koine::function([](T x) { return x.exp(); })},
      {Op::Load, [](T x) { return x.square().to("INTERP:2").sin().to("INTERP"); }},
      {Op::Store, written},
      {Op::After, written},
      {Op::Group, grouped},
      {Op::Recip, [](T x) { return unary_of(Op::Recip, x); }},
      {Op::Trunc, [](T x) { return (x * 3).trunc(); }},
      {Op::Cast, [](T x) { return x.square().cast(x.dtype() == DType::Float32 ? DType::Float64 : DType::Float32).cast(x.dtype()); }, false, 0x1p-7},
      {Op::Exp2, [](T x) { return unary_of(Op::Exp2, x) * x.exp(); }},
      {Op::Log2, [](T x) { return unary_of(Op::Log2, x) * x.log(); }},
      {Op::Sin, [](T x) { return x.sin() * x.cos(); }},
      {Op::Sqrt, [](T x) { return x.sqrt(); }},
      {Op::Add, [](T x) { return x + x.square(); }},
      {Op::Mul, [](T x) { return x * x.flip({1}); }},
      {Op::Max, [](T x) { return x.square().maximum(x.flip({1})); }},
      {Op::Mod, [](T x) { return (x * 5).mod(x.flip({1}) + 0.375); }},
      {Op::Idiv, [](T x) { return made(Op::Idiv, x); }},
      {Op::CmpLt, [](T x) { return (x < x.flip({1})).cast(x.dtype()); }},
      {Op::CmpNe, [](T x) { return (x != x.flip({1})).cast(x.dtype()); }},
      {Op::Xor, [](T x) { return made(Op::Xor, x); }},
      {Op::Or, [](T x) { return made(Op::Or, x); }},
      {Op::And, [](T x) { return made(Op::And, x); }},
      {Op::Shr, [](T x) { return like(x, binary(Op::Shr, mul(whole(x), constant_int(DType::Int64, 1 << 6)), whole(x.flip({1})))); }},
      {Op::Shl, [](T x) { return made(Op::Shl, x); }},
      {Op::Fdiv, [](T x) { return x / x.flip({1}); }},
      {Op::Pow, [](T x) { return x.pow(x.flip({1})); }},
      {Op::Threefry, random_bits},
      {Op::Where, [](T x) { return Tensor::where(x > 1, x.square(), x.sin()); }},
      {Op::Mulacc, sum_of_product},
      {Op::Contiguous, [](T x) { return x.square().contiguous().sin(); }},
      {Op::ContiguousBackward, [](T x) { return x.square().contiguous_backward().sin(); }},
      {Op::Assume, promised},
      {Op::Fence, behind},
      {Op::Detach, [](T x) { return x.square().detach(); }, true},
  };
  return list;
}
// clang-format on

// Whether a function is made of a node of the op: of what it says, or of what it is called with.
bool holds(const Unary& f, const Tensor& x, Op op) {
  const UOp out = f(x).uop();
  for (const UOp& u : toposort_with_bodies(out))
    if (u.is(op)) return true;
  return op == Op::Param;  // x itself, in a body
}

// --- columns and contexts ------------------------------------------------------------------------

// A transform of f as a function of one tensor, and that without the transform.
struct Column {
  const char* name;
  Unary made, oracle;
  Tensor at;
  bool by_slope = false;  ///< the oracle takes differences, or float64
  Unary wide = {};        ///< of narrower floats `made` in float64
};

// What a column is given besides f.
struct Given {
  Tensor x, tangent, cotangent, examples;
  Given cast(DType d) const {
    return {x.cast(d).realize(), tangent.cast(d).realize(), cotangent.cast(d).realize(),
            examples.cast(d).realize()};
  }
};

const std::vector<DType>& narrow_floats() {
  static const auto& list =
      *new const std::vector<DType>{DType::Float32, DType::Float16, DType::BFloat16};
  return list;
}
const std::vector<DType>& integers() {
  static const auto& list = *new const std::vector<DType>{DType::Int32, DType::UInt8};
  return list;
}
// Of each element, relative above 1: roundings of some intermediate values, or of differences.
double tolerance_of(DType d) {
  if (d == DType::Float64) return 2e-5;
  return 16 * std::ldexp(1.0, d == DType::Float32 ? -23 : d == DType::Float16 ? -10 : -7);
}

Tensor loop(const Unary& f, const Tensor& xs) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < int64_t{xs.size(0)}; ++i) out.push_back(f(xs[i]));
  return Tensor::stack(out);
}

double product(const Tensor& a, const Tensor& b) {
  const auto x = a.tolist<double>(), y = b.tolist<double>();
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// A function in a step that was captured over other memory.
Tensor compiled_once(const Unary& f, const Tensor& x) {
  const Tensor other = (x * 0.9 + 0.1).realize();
  CapturedStep step({koine::function(f)(other).contiguous().uop()});
  step.run();
  for (const size_t place : step.places_of(realized_buffer(other.uop())))
    step.put(place, realized_buffer(x.uop()));
  step.run();
  return Tensor(step.outputs()[0]);
}

// (f(x + h t) - f(x - h t)) / 2h.
Tensor differences(const Unary& f, const Tensor& x, const Tensor& t, double h) {
  const Tensor up = (x + t * h).realize(), down = (x - t * h).realize();
  return ((f(up) - f(down)) / (2 * h)).realize();
}
// Of each place of x the slope of f's results, weighed with w.
Tensor slopes(const Unary& f, const Tensor& x, const Tensor& w, double h) {
  std::vector<double> out;
  for (int64_t i = 0; i < x.numel(); ++i) {
    std::vector<double> unit(static_cast<size_t>(x.numel()));
    unit[static_cast<size_t>(i)] = 1;
    out.push_back(product(differences(f, x, Tensor::from(unit, x.shape()), h), w));
  }
  return Tensor::from(out, x.shape());
}

std::string unequal(const Tensor& got, const Tensor& want, double tolerance) {
  if (!(got.shape() == want.shape()) || got.dtype() != want.dtype())
    return fmt::format("shape {} and {}", got.ndim(), want.ndim());
  const auto a = got.tolist<double>(), b = want.tolist<double>();
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::fabs(a[i] - b[i]) <= tolerance * std::max(1.0, std::fabs(b[i]))))
      return fmt::format("element {} is {} instead of {}", i, a[i], b[i]);
  return {};
}

bool is_zero(const Tensor& x) {
  for (const double v : x.tolist<double>())
    if (v != 0) return false;
  return true;
}

constexpr double exact = 1e-10;

class Grid {
 public:
  explicit Grid(uint64_t seed) : random_(seed) {}

  int of_integers = 0;  ///< how many pairs of an op and a dtype had a value

  // What the cells of an op are, column by column.
  std::vector<std::string> row(const Sample& sample) {
    std::vector<std::string> out;
    op_ = sample.op;
    stops_ = sample.stops;
    step_ = sample.step;
    const Shape shape{2 * draw(1, 2), 2 * draw(1, 2)};
    const Unary& f = sample.f;
    const Given given{numbers(shape), doubles(shape, random_), like_result(f, numbers(shape)),
                      numbers({2, shape[0], shape[1]})};
    EXPECT_TRUE(holds(f, given.x, op_)) << op_name(op_);
    for (const Column& c : columns(f, given)) out.push_back(cell(c));
    // One of the narrower floats, drawn: all of them take five times as long.
    const DType d = narrow_floats()[static_cast<size_t>(draw(0, 2))];
    const Given exact_in_all = Given{sixteenths(shape), given.tangent, given.cotangent,
                                     sixteenths({2, shape[0], shape[1]})}
                                   .cast(d);
    const std::vector<Column> narrow = columns(f, exact_in_all);
    const std::vector<Column> wide = columns(f, exact_in_all.cast(DType::Float64));
    for (size_t k = 0; k < narrow.size(); ++k) {
      Column c = narrow[k];
      c.wide = wide[k].made;
      EXPECT_EQ(cell(c), out[k]) << op_name(op_) << " " << c.name << " of " << dtype_name(d);
    }
    for (const DType whole : integers()) whole_numbers(f, shape, whole);
    return out;
  }

 private:
  int64_t draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  // In 0.375..1.75, none near a multiple of 1/8, where whole numbers made of them jump.
  Tensor numbers(const Shape& shape) {
    const Tensor eighths = (doubles(shape, random_, 3, 14)).floor();
    return ((eighths + doubles(shape, random_, 0.25, 0.75)) / 8).realize();
  }

  // Such as every float holds, as their sums and products by 8 are, so that what jumps does in all.
  Tensor sixteenths(const Shape& shape) {
    return ((doubles(shape, random_, 3, 14).floor() * 2 + 1) / 16).realize();
  }
  Tensor like_result(const Unary& f, const Tensor& x) { return doubles(f(x).shape(), random_); }

  std::vector<Column> columns(const Unary& f, const Given& given) {
    const auto& [x, t, c, xs] = given;
    const double h = step_;
    const Unary sloped = with_slope(f);
    return {
        {"vjp", [f, c = c](const Tensor& v) { return vjp(f, v).second(c); },
         [sloped, c = c, h](const Tensor& v) { return slopes(sloped, v, c, h); }, x, true},
        {"jvp", [f, t = t](const Tensor& v) { return jvp(f, v, t).second; },
         [sloped, t = t, h](const Tensor& v) { return differences(sloped, v, t, h); }, x, true},
        {"vmap", [f](const Tensor& v) { return vmap(f)(v); },
         [f](const Tensor& v) { return loop(f, v); }, xs},
        {"shard", [f](const Tensor& v) { return f(v.shard("INTERP,INTERP:1", 0)).to("INTERP"); }, f,
         x},
    };
  }

  // vmap and shard of whole numbers: where there is a value of them at all.
  void whole_numbers(const Unary& f, const Shape& shape, DType d) {
    auto some = [&](const Shape& s) { return doubles(s, random_, 1, 9).cast(d).realize(); };
    const Tensor x = some(shape), xs = some({2, shape[0], shape[1]});
    try {
      f(x).realize();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Type) << op_name(op_) << ": " << e.what();
      return;
    }
    ++of_integers;
    EXPECT_EQ(unequal(vmap(f)(xs), loop(f, xs), 0), "") << op_name(op_) << " of " << dtype_name(d);
    const Tensor all = Tensor::stack({xs, xs.flip({0})}).realize();
    const Unary mapped = vmap(f);
    EXPECT_EQ(unequal(vmap(mapped)(all), loop(mapped, all), 0), "") << op_name(op_);
    if (!row_of(op_).shard.is_refused()) {
      EXPECT_EQ(unequal(f(x.shard("INTERP,INTERP:1", 0)).to("INTERP"), f(x), 0), "")
          << op_name(op_) << " of " << dtype_name(d);
    }
  }

  // What differences are taken of.
  Unary with_slope(const Unary& f) const {
    return stops_ ? Unary([f](const Tensor& v) { return f(v) * 0; }) : f;
  }

  // The kinds of the contexts, those that are equal together.
  std::string cell(const Column& c) {
    std::vector<std::pair<std::string, std::string>> kinds;  // kind, contexts
    auto in = [&](const char* context, const std::function<Tensor()>& got,
                  const std::function<Tensor()>& want, double tolerance) {
      const std::string kind = found(c, context, got, want, tolerance);
      auto same =
          std::find_if(kinds.begin(), kinds.end(), [&](auto& k) { return k.first == kind; });
      if (same == kinds.end()) same = kinds.insert(kinds.end(), {kind, ""});
      same->second += (same->second.empty() ? "" : ", ") + std::string(context);
    };
    const Unary& f = c.made;
    const Tensor& x = c.at;
    const DType d = x.dtype();
    const Unary sloped = with_slope(f);
    // Numbers that both f and f in float64 are given.
    auto shared = [&](const Tensor& t) { return t.cast(d).realize(); };
    auto wide = [](const Tensor& t) { return t.cast(DType::Float64); };
    const Tensor u = shared(doubles(x.shape(), random_)), w = shared(weights(f, x));
    auto pulled = [&](const Unary& g, const Tensor& v) {
      return grad([&](const Tensor& y) { return (g(y) * w.cast(v.dtype())).sum(); })(v);
    };
    in(
        "alone", [&] { return f(x); },
        [&] { return c.wide && c.by_slope ? c.wide(wide(x)) : c.oracle(x); },
        c.by_slope ? tolerance_of(d) : exact);
    in(
        "under grad", [&] { return pulled(f, x); },
        [&] { return c.wide ? pulled(c.wide, wide(x)) : slopes(sloped, x, w, step_); },
        tolerance_of(d));
    in(
        "under jvp", [&] { return jvp(f, x, u).second; },
        [&] {
          return c.wide ? jvp(c.wide, wide(x), wide(u)).second : differences(sloped, x, u, step_);
        },
        tolerance_of(d));
    const Tensor all = Tensor::stack({x, x * 0.9 + 0.1}).realize();
    in("under vmap", [&] { return vmap(f)(all); }, [&] { return loop(f, all); }, exact);
    in("under jit", [&] { return compiled_once(f, x); }, [&] { return f(x); }, exact);
    std::string text;
    for (const auto& [kind, contexts] : kinds)
      text += (text.empty() ? "" : "; ") +
              (kinds.size() == 1 ? kind : fmt::format("{} {}", contexts, kind));
    return text;
  }

  Tensor weights(const Unary& f, const Tensor& x) {
    try {
      return doubles(f(x).shape(), random_);
    } catch (const Error&) {
      return x;
    }
  }

  std::string found(const Column& c, const char* context, const std::function<Tensor()>& got,
                    const std::function<Tensor()>& want, double tolerance) {
    Tensor value;
    try {
      value = got();
      value.realize();
    } catch (const Error& e) {
      const std::string message = e.what();
      const std::string words = reason_in(message);
      EXPECT_NE(words, "") << op_name(op_) << " " << c.name << " " << context << ": " << message;
      return "refused: " + words;
    }
    Tensor expected = want();
    if (c.wide) expected = expected.cast(value.dtype());
    EXPECT_EQ(unequal(value, expected, tolerance), "")
        << op_name(op_) << " " << c.name << " " << context;
    return is_zero(value) ? "0" : "equal";
  }

  // What refused: the words of a cell of the table.
  std::string reason_in(const std::string& message) const {
    const Row row = row_of(op_);
    for (const std::string_view words :
         {row.vjp.words(), row.jvp.words(), row.batch.words(), row.shard.words()})
      if (!words.empty() && message.find(words) != std::string::npos) return std::string(words);
    return {};
  }
  std::mt19937_64 random_;
  Op op_{};  // of the sample
  bool stops_ = false;
  double step_ = 0;
};

void replace_in_document(const std::string& name, const std::string& table) {
  std::ifstream in("docs/transforms.md");
  std::stringstream read;
  read << in.rdbuf();
  const std::string text = read.str(), end = "<!-- end of " + name + " -->";
  const size_t mark = text.find("<!-- " + name), from = text.find("-->\n", mark) + 4;
  const size_t to = text.find(end);
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  if (std::getenv("KOINE_TEST_FIX") != nullptr)
    std::ofstream("docs/transforms.md") << text.substr(0, from) << table << text.substr(to);
  else
    EXPECT_EQ(text.substr(from, to - from), table);
}

}  // namespace

TEST(grid, spec_amend_40_every_op_has_a_cell_in_every_column_and_context) {
  know_square();
  Options options = strict_options();
  options.device = "INTERP";
  const OptionScope scope(options);
  SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", test_seed()));
  Grid grid(test_seed());
  std::vector<std::pair<std::vector<std::string>, std::string>> rows;  // cells, ops
  std::set<Op> sampled;
  for (const Sample& s : samples()) {
    EXPECT_TRUE(sampled.insert(s.op).second) << op_name(s.op);
    const std::vector<std::string> cells = grid.row(s);
    auto row = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.first == cells; });
    if (row == rows.end()) row = rows.insert(rows.end(), {cells, ""});
    row->second += (row->second.empty() ? "" : ", ") + std::string(op_name(s.op));
  }
  // Of what stands in kernels alone there is no value.
  for (int i = 0; i < op_count; ++i) {
    const Op op = static_cast<Op>(i);
    if (sampled.contains(op)) continue;
    const Row row = row_of(op);
    EXPECT_TRUE(row.vjp.is_refused() && row.jvp.is_refused() && row.batch.is_refused())
        << op_name(op) << " needs a sample";
  }
  std::string table = "| ops | vjp | jvp | vmap | shard |\n|---|---|---|---|---|\n";
  for (const auto& [cells, ops] : rows)
    table += fmt::format("| {} | {} |\n", ops, fmt::join(cells, " | "));
  EXPECT_GT(grid.of_integers, 80) << "of " << 2 * samples().size()
                                  << " pairs of an op and integers";
  if (!::testing::Test::HasFailure()) replace_in_document("grid", table);
}

}  // namespace koine::test
