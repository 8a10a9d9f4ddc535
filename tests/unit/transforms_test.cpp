// Functions from functions: vmap, jvp, vjp, linearize, Jacobians and rules of the user's (rows V1
// to V14, amendments C23, C33, C40). What they give is compared with loops over examples and with
// central differences in float64.
#include "koine/tensor/transforms.hpp"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <unordered_set>

#include "check.hpp"
#include "gradient_check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/table.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

using Unary = std::function<Tensor(const Tensor&)>;
using Binary = std::function<Tensor(const Tensor&, const Tensor&)>;
struct Named {
  const char* name;
  Unary f;
};

// Methods of one tensor of shape (3, 4), by what they are made of.
const std::vector<Named>& unary_methods() {
  static const Tensor& columns = *new const Tensor(Tensor::from<int>({3, 0, 0}));
  static const Tensor& places =
      *new const Tensor(Tensor::from<int64_t>({0, 1, 2, 3, 0, 1}).reshape({3, 2}));
  static const auto& list = *new const std::vector<Named>{
      {"neg", [](const Tensor& x) { return -x; }},
      {"reciprocal", [](const Tensor& x) { return x.reciprocal(); }},
      {"sqrt", [](const Tensor& x) { return x.abs().sqrt(); }},
      {"exp", [](const Tensor& x) { return x.exp(); }},
      {"log", [](const Tensor& x) { return (x * x + 1).log(); }},
      {"sin", [](const Tensor& x) { return x.sin() + x.cos() * x.tan(); }},
      {"trunc", [](const Tensor& x) { return x * x.trunc() + x.floor() - x.round(); }},
      {"abs", [](const Tensor& x) { return x.abs() + x.sign(); }},
      {"relu", [](const Tensor& x) { return x.relu() + x.leaky_relu() + x.elu(); }},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid() + x.tanh() + x.softplus(); }},
      {"gelu", [](const Tensor& x) { return x.gelu() + x.silu(); }},
      {"erf", [](const Tensor& x) { return x.erf() * x.erfc() + x.gelu("none"); }},
      {"clip", [](const Tensor& x) { return x.clip(-0.5, 0.5) + x.hardtanh(); }},
      {"pow", [](const Tensor& x) { return x.pow(3) + (x * x + 0.5).pow(x); }},
      {"mod", [](const Tensor& x) { return x.mod(0.3) + (x * x + 1).mod(x.abs() + 0.7); }},
      {"maximum", [](const Tensor& x) { return x.maximum(x * x) - x.minimum(0.25); }},
      {"where", [](const Tensor& x) { return Tensor::where(x > 0, x * x, x.sin()); }},
      {"lerp", [](const Tensor& x) { return x.lerp(x * x, 0.3); }},
      {"cast", [](const Tensor& x) { return x.cast(DType::Float32).cast(DType::Float64) * x; }},
      {"reshape", [](const Tensor& x) { return x.reshape({2, 6}) * 2; }},
      {"permute", [](const Tensor& x) { return x.permute({1, 0}).sin(); }},
      {"expand", [](const Tensor& x) { return x.reshape({1, 12}).expand({3, 12}) * 3; }},
      {"flip", [](const Tensor& x) { return x.flip({0}) * x; }},
      {"pad", [](const Tensor& x) { return x.pad({{1, 2}, {0, 1}}, 2).square(); }},
      {"pad by a value",
       [](const Tensor& x) {
         return x.pad({{1, 0}, {0, 2}}, 0) +
                Tensor(koine::pad(x.uop(), shape_of({1, 0}), shape_of({4, 6}), x.sum().uop()));
       }},
      {"shrink", [](const Tensor& x) { return x.shrink({{1, 3}, {0, 2}}).exp(); }},
      {"cat", [](const Tensor& x) { return Tensor::cat({x, x * x, x.sin()}, 1); }},
      {"stack", [](const Tensor& x) { return Tensor::stack({x, x * x}, 1); }},
      {"roll", [](const Tensor& x) { return x.roll(1, 1) * x; }},
      {"repeat", [](const Tensor& x) { return x.repeat({2, 1}).square(); }},
      {"strided", [](const Tensor& x) { return x[{Slice{0, 3, 2}, Slice{{}, {}, -1}}] * 2; }},
      {"tril", [](const Tensor& x) { return x.tril() + x.triu(1) * x; }},
      {"sum", [](const Tensor& x) { return x.sum({-1}) * x.sum() + x.mean({1}); }},
      {"prod", [](const Tensor& x) { return x.prod({0}) + x.prod(); }},
      {"max", [](const Tensor& x) { return x.max({1}) * x.min({1}, false) + x.max(); }},
      {"var", [](const Tensor& x) { return x.var({1}) + x.std() + x.norm({1}); }},
      {"cumsum", [](const Tensor& x) { return x.cumsum(1) * x.cumprod(0); }},
      {"cummax", [](const Tensor& x) { return x.cummax(1) + x.cummin(0); }},
      {"softmax", [](const Tensor& x) { return x.softmax() * x.log_softmax(0); }},
      {"logsumexp",
       [](const Tensor& x) { return x.logsumexp({0}).exp() + x.layernorm().sum({0}); }},
      {"sort", [](const Tensor& x) { return x.sort(1).first * 2 + x.topk(4, 1).first; }},
      {"matmul", [](const Tensor& x) { return x.matmul(x.T()); }},
      {"einsum", [](const Tensor& x) { return Tensor::einsum("ij,kj->ik", {x, x.exp()}); }},
      {"pool",
       [](const Tensor& x) {
         const Tensor image = x.reshape({1, 1, 3, 4}).pad({{0, 0}, {0, 0}, {1, 0}, {0, 0}}, 0.5);
         return image.max_pool2d(2) + image.avg_pool2d(2);
       }},
      {"conv2d",
       [](const Tensor& x) {
         const Tensor w = x.shrink({{0, 2}, {0, 2}}).reshape({1, 1, 2, 2});
         return x.reshape({1, 1, 3, 4}).conv2d(w);
       }},
      {"attention", [](const Tensor& x) { return x.scaled_dot_product_attention(x * 2, x.sin()); }},
      {"detach", [](const Tensor& x) { return x.detach() * x.contiguous(); }},
      {"index", [](const Tensor& x) { return x.index_select(1, columns) * x[{1, Slice{0, 3}}]; }},
      {"gather", [](const Tensor& x) { return x.gather(1, places); }},
      {"scatter",
       [](const Tensor& x) {
         return x.scatter_add(1, places, x.shrink({{0, 3}, {0, 2}})).square();
       }},
      {"assign",
       [](const Tensor& x) {
         Tensor y = x * 2;
         y.setitem({1}, x[0] * x[2]);
         Tensor row = y[2];
         row.assign(row.sin());
         return y * x;
       }},
  };
  return list;
}

Tensor examples_of(const Tensor& x, int64_t n, uint64_t salt) {
  Shape shape = x.shape();
  shape.insert(shape.begin(), n);
  return doubles(shape, salt, 0.2, 1.7);
}

// f of each example, stacked.
Tensor in_a_loop(const Unary& f, const Tensor& examples) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < int64_t{examples.size(0)}; ++i) out.push_back(f(examples[i]));
  return Tensor::stack(out);
}

struct Net {
  Tensor w, b;
  template <class V>
  void tensors(V&& visit) {
    visit(w);
    visit(b);
  }
};

size_t functions_in(const UOp& root) {
  size_t count = 0;
  for (const UOp& u : toposort_outside_bodies(root)) count += u.is(Op::Function) ? 1 : 0;
  return count;
}

}  // namespace

// --- vmap ----------------------------------------------------------------------------------------

TEST(vmap,
     spec_V5_spec_V6_spec_V7_spec_V8_spec_V9_spec_V14_spec_amend_17_every_method_equals_a_loop) {
  for (const Named& m : unary_methods()) {
    const Tensor xs = doubles({2, 3, 4}, 7, 0.2, 1.7);
    expect_near(vmap(m.f)(xs), in_a_loop(m.f, xs), m.name);
    // Along another axis, and with the examples last.
    const Tensor turned = xs.permute({1, 2, 0});
    const Tensor last = vmap(m.f, -1, -1)(turned), want = in_a_loop(m.f, xs);
    std::vector<int64_t> order;
    for (int64_t k = 1; k < want.ndim(); ++k) order.push_back(k);
    order.push_back(0);
    expect_near(last, want.permute(order), m.name);
  }
}

TEST(vmap, spec_V3_a_function_is_traced_once_and_gives_ops_of_the_graph) {
  int runs = 0;
  const auto f = [&](const Tensor& x, const Tensor& y) {
    ++runs;
    return (x * y).sum() + x.exp().max() + x[1];
  };
  const Tensor value = vmap(f, {0, std::nullopt})(doubles({4, 3}, 1), doubles({3}, 2));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(value.shape(), (Shape{4}));
  EXPECT_FALSE(find_violation(value.uop(), VerifyLevel::Tensor));
}

TEST(vmap, spec_V5_spec_amend_18_bitcast) {
  const Tensor xs = doubles({4, 3}, 1).cast(DType::Float32);
  const auto bits = [](const Tensor& x) { return x.bitcast(DType::Int32); };
  EXPECT_EQ(vmap(bits)(xs).tolist<int>(), xs.bitcast(DType::Int32).tolist<int>());
  const auto bytes = [](const Tensor& x) { return x.bitcast(DType::UInt8); };
  EXPECT_EQ(vmap(vmap(bytes))(xs.reshape({2, 2, 3})).tolist<int>(),
            xs.bitcast(DType::UInt8).tolist<int>());
}

TEST(vmap, spec_V7_no_example_and_one) {
  for (const Named& m : unary_methods()) {
    const Tensor one = doubles({1, 3, 4}, 8, 0.2, 1.7);
    expect_near(vmap(m.f)(one), in_a_loop(m.f, one), m.name);
    const Tensor none = Tensor::zeros({0, 3, 4}, DType::Float64), out = vmap(m.f)(none);
    EXPECT_EQ(int64_t{out.size(0)}, 0) << m.name;
    EXPECT_EQ(out.ndim(), in_a_loop(m.f, one).ndim()) << m.name;
    EXPECT_TRUE(out.tolist<double>().empty()) << m.name;
  }
}

TEST(vmap, spec_V11_spec_V14_nested_equals_two_loops) {
  for (const Named& m : unary_methods()) {
    const Tensor xs = doubles({2, 3, 4, 2}, 9, 0.2, 1.7);  // examples along axes 0 and 3
    const Tensor got = vmap(vmap(m.f, 2), 0)(xs);
    std::vector<Tensor> want;
    for (int64_t i = 0; i < 2; ++i) want.push_back(in_a_loop(m.f, xs[i].permute({2, 0, 1})));
    expect_near(got, Tensor::stack(want), m.name);
  }
}

// The same with the examples of both loops along any two axes of the argument, and of the result.
TEST(vmap, spec_V1_spec_V11_nested_along_every_pair_of_axes) {
  const auto computed = [](const Tensor& t) {
    return interpret(inline_functions(t.uop()), bindings_of(t.uop()));
  };
  const auto moved = [](const Tensor& t, int64_t from, int64_t to) {
    std::vector<int64_t> order;
    for (int64_t k = 0; k < t.ndim(); ++k)
      if (k != from) order.push_back(k);
    order.insert(order.begin() + to, from);
    return t.permute(order);
  };
  int64_t turn = 0;  // which of the axes of the result; and axes are counted from the end as well
  const auto counted = [&turn](int64_t axis, int64_t rank) {
    return static_cast<int>(++turn % 2 == 0 ? axis : axis - rank);
  };
  for (const Named& m : unary_methods()) {
    const Tensor xs = doubles({2, 3, 3, 4}, 9, 0.2, 1.7);
    std::vector<Tensor> rows;
    for (int64_t i = 0; i < 2; ++i) rows.push_back(in_a_loop(m.f, xs[i]));
    const Tensor all = Tensor::stack(rows);
    const Array want = computed(all);
    const int64_t rank = all.ndim();
    for (int64_t outer = 0; outer < 4; ++outer)
      for (int64_t inner = 0; inner < 3; ++inner) {
        const int64_t inner_out = turn++ % (rank - 1), outer_out = turn++ / 3 % rank;
        const Tensor given = moved(moved(xs, 1, inner + 1), 0, outer);
        const auto one = vmap(m.f, counted(inner, 3), counted(inner_out, rank - 1));
        const Tensor got = vmap(one, counted(outer, 4), counted(outer_out, rank))(given);
        const Array made = computed(moved(moved(got, outer_out, 0), inner_out + 1, 1));
        ASSERT_EQ(difference(want, made), "") << m.name << " by axes " << outer << ", " << inner
                                              << " to " << outer_out << ", " << inner_out;
      }
  }
}

// Every mixture of arguments with examples and without, in both positions (C23: operands of
// different rank).
TEST(vmap, spec_V1_spec_V6_spec_amend_23_mapped_and_unmapped_arguments) {
  const std::vector<std::pair<const char*, Binary>> methods = {
      {"+", [](const Tensor& a, const Tensor& b) { return a + b; }},
      {"/", [](const Tensor& a, const Tensor& b) { return a / b; }},
      {"<", [](const Tensor& a, const Tensor& b) { return (a < b).cast(DType::Float64); }},
      {"mod and pow", [](const Tensor& a, const Tensor& b) { return a.mod(b).pow(b); }},
      {"where", [](const Tensor& a, const Tensor& b) { return Tensor::where(a > b, a * b, b); }},
      {"maximum", [](const Tensor& a, const Tensor& b) { return a.maximum(b) - b; }},
      {"second alone", [](const Tensor&, const Tensor& b) { return b.sin(); }},
  };
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3}, {3}}, {{}, {3}}, {{3}, {}}, {{2, 3}, {3}}, {{3}, {2, 3}}, {{}, {}}, {{2, 1}, {3}}};
  for (const auto& [name, f] : methods)
    for (const auto& [left, right] : shapes) {
      const Tensor a = doubles(left, 1, 0.2, 1.7), b = doubles(right, 2, 0.2, 1.7);
      const Tensor as = examples_of(a, 4, 3), bs = examples_of(b, 4, 4);
      for (const auto& [one, two] : std::vector<std::pair<bool, bool>>{{1, 1}, {1, 0}, {0, 1}}) {
        std::vector<Tensor> want;
        for (int64_t i = 0; i < 4; ++i) want.push_back(f(one ? as[i] : a, two ? bs[i] : b));
        const MappedAxes in{one ? std::optional<int64_t>(0) : std::nullopt,
                            two ? std::optional<int64_t>(0) : std::nullopt};
        expect_near(vmap(f, in)(one ? as : a, two ? bs : b), Tensor::stack(want), name);
      }
    }
}

TEST(vmap, spec_V12_indices_and_tables_of_each_example_or_of_all) {
  const Tensor table = doubles({5, 3}, 1), tables = doubles({4, 5, 3}, 2);
  const Tensor at = Tensor::from<int>({4, 0, -2}),
               ats = Tensor::from<int>({0, 1, 2, 4, 4, 0, -1, -5, 3, 2, 2, 2}).reshape({4, 3});
  const std::vector<std::pair<const char*, Binary>> methods = {
      {"rows", [](const Tensor& t, const Tensor& i) { return t.index_select(0, i); }},
      {"columns", [](const Tensor& t, const Tensor& i) { return t.T().index_select(1, i); }},
      {"gather",
       [](const Tensor& t, const Tensor& i) {
         return t.gather(0, i.mod(5).cast(DType::Int64).reshape({1, 3}).expand({2, 3}));
       }},
      {"scatter_add",
       [](const Tensor& t, const Tensor& i) {
         const Tensor rows = i.mod(5).cast(DType::Int64).reshape({3, 1}).expand({3, 3});
         return t.scatter_add(0, rows, t.shrink({{0, 3}, {0, 3}}).exp());
       }},
      {"points", [](const Tensor& t, const Tensor& i) { return t[{i, i.mod(3)}]; }},
      {"outer",
       [](const Tensor& t, const Tensor& i) {
         return Tensor(koine::index(t.uop(), {i.mod(5).uop(), i.mod(3).uop()}));
       }},
      {"second index",
       [](const Tensor& t, const Tensor& i) {
         const UOp rows = Tensor::arange(2).uop();
         return Tensor(koine::index(t.uop(), {rows, i.mod(3).uop()}));
       }},
      {"written rows",
       [](const Tensor& t, const Tensor& i) {
         Tensor own = t * 1;
         own.setitem({i}, t.shrink({{0, 3}, {0, 3}}) * 2);
         return own;
       }},
  };
  for (const auto& [name, f] : methods)
    for (const auto& [one, two] : std::vector<std::pair<bool, bool>>{{1, 1}, {1, 0}, {0, 1}}) {
      std::vector<Tensor> want;
      for (int64_t i = 0; i < 4; ++i) want.push_back(f(one ? tables[i] : table, two ? ats[i] : at));
      const MappedAxes in{one ? std::optional<int64_t>(0) : std::nullopt,
                          two ? std::optional<int64_t>(0) : std::nullopt};
      expect_near(vmap(f, in)(one ? tables : table, two ? ats : at), Tensor::stack(want), name);
    }
  // An index out of range is refused for every example, and out of bounds of one is not the next's.
  const auto rows = vmap([](const Tensor& t, const Tensor& i) { return t.index_select(0, i); });
  const Tensor wrong = Tensor::from<int>({0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0}).reshape({4, 3});
  expect_error([&] { (void)rows(tables, wrong).tolist<double>(); }, {"5"});
  const auto raw = [](const Tensor& t, const Tensor& i) {
    return Tensor(koine::index(t.uop(), {i.uop()}));
  };
  const Tensor plain = vmap(raw)(tables, wrong);
  const Tensor outside = plain[std::vector<IndexItem>{1, 2}];
  EXPECT_EQ(outside.sum().item(), 0) << "an index of a graph out of bounds reads 0";
}

TEST(vmap, spec_V10_results_that_are_equal_in_all_examples_are_repeated) {
  const Tensor xs = doubles({4, 3}, 1), c = doubles({2}, 2);
  const auto both = vmap([&](const Tensor& x) { return std::pair{c * 2, x.sum()}; })(xs);
  expect_near(both.first, (c * 2).reshape({1, 2}).expand({4, 2}), "a captured value");
  expect_near(both.second, xs.sum({1}), "a value of the example");
  // Each result has an axis of its own, and none where all examples agree.
  const auto placed = vmap([&](const Tensor& x) { return std::tuple{c * 2, x, x.sum()}; }, 0,
                           {std::nullopt, 1, 0})(xs);
  expect_near(std::get<0>(placed), c * 2, "equal in all");
  expect_near(std::get<1>(placed), xs.T(), "examples last");
  EXPECT_TRUE(vmap([](const Tensor&) { return Tensor(3.0); })(xs).shape() == (Shape{4}));
}

TEST(vmap, spec_V13_functions_stay_functions) {
  const auto layer =
      koine::function([](const Tensor& x, const Tensor& w) { return (x * w).sin(); });
  const Tensor xs = doubles({4, 3}, 1), w = doubles({3}, 2);
  const auto twelve = [&](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 12; ++i) y = layer(y, w);
    return y;
  };
  const Tensor out = vmap(twelve)(xs);
  std::unordered_set<UOp> bodies;
  size_t calls = 0;
  const UOp whole = out.uop().src(0);
  for (const UOp& u : toposort_outside_bodies(whole.src(0)))
    if (u.is(Op::Function)) {
      ++calls;
      bodies.insert(u.src(0));
    }
  EXPECT_EQ(calls, 12u);
  EXPECT_EQ(bodies.size(), 1u) << "twelve equal layers stay one body";
  EXPECT_EQ(functions_in(out.uop()), 1u) << "vmap of a function is one function";
  expect_near(out, in_a_loop(twelve, xs), "twelve layers");
}

TEST(vmap, spec_V2_spec_V4_spec_V14_misuse_is_refused_in_words) {
  const Tensor xs = doubles({4, 3}, 1), ys = doubles({5, 3}, 2);
  const auto sum = [](const Tensor& a, const Tensor& b) { return a + b; };
  expect_error([&] { vmap(sum)(xs, ys); }, {"vmap", "argument 0 of shape (4, 3) has 4 along axis 0",
                                            "argument 1 of shape (5, 3) has 5 along axis 0"});
  using Pair = std::pair<Tensor, Tensor>;
  const auto of_pairs = [](const Tensor& a, const Pair& b) { return a + b.first + b.second; };
  expect_error([&] { vmap(of_pairs, {0, 1})(xs, Pair(xs, ys)); },
               {"argument 0 of shape (4, 3) has 4 along axis 0",
                "tensor 0 of argument 1 of shape (4, 3) has 3 along axis 1",
                "tensor 1 of argument 1 of shape (5, 3) has 3 along axis 1"});
  expect_error([&] { vmap(sum, {std::nullopt, std::nullopt})(xs, ys); }, {"vmap", "in_axes"});
  expect_error([&] { vmap(sum, {0, 0, 0})(xs, ys); }, {"in_axes", "3", "2"});
  expect_error([&] { vmap(sum, {0, 2})(xs, ys); },
               {"argument 1 of shape (5, 3)", "axis 2", "-2 to 1"});
  expect_error([&] { vmap(sum, 0)(Tensor(1.0), xs); }, {"()", "axis 0"});
  expect_error([&] { vmap(sum, 0, {0, 0})(xs, xs); }, {"out_axes", "2", "1"});
  expect_error([&] { vmap(sum, 0, 2)(xs, xs); }, {"result 0", "axis 2"});
  expect_error([&] { vmap(sum, 0, {std::nullopt})(xs, xs); }, {"result 0", "different"});
  expect_error([&] { vmap([](const Tensor& x) { return Tensor(x.sum().item()); })(xs); },
               {"transforms_test.cpp"});
  const auto by_value = [](const Tensor& x, const Tensor& n) {
    const UOp at = koine::cast(n.cast(DType::Int32).mod(2).uop(), DType::Index);
    return Tensor(koine::shrink(x.uop(), koine::stack(std::vector<UOp>{at}), shape_of({1})));
  };
  expect_error([&] { vmap(by_value)(xs, Tensor::from<double>({0, 1, 2, 0})); },
               {"vmap", "one shape"});
  const auto opaque = [](const Tensor& x) {
    return custom_kernel(
        "twice", CallResult{{3}, DType::Float64}, {x}, [](const std::vector<UOp>& p) {
          const UOp i = range(0, p[0].dim(0), AxisType::Loop);
          return sink({end(store(index(p[0], {i}), add(index(p[1], {i}), index(p[1], {i}))), {i})});
        });
  };
  expect_error([&] { vmap(opaque)(xs); }, {"vmap", "'twice'", "opaque"});
}

TEST(vmap, a_traced_function_changes_nothing_outside) {
  const Tensor xs = doubles({4, 3}, 1);
  Tensor sum = Tensor::zeros({3}, DType::Float64).clone().realize();
  const auto adds = [&](const Tensor& x) {
    sum += x;
    return x;
  };
  const auto writes = [&](const Tensor& x) {
    sum[0].assign(x[0]);
    return x;
  };
  const std::vector<std::string> words{"assign", "(3,)", "outside", "transforms_test.cpp",
                                       "return"};
  expect_error([&] { vmap(adds)(xs); }, words);
  expect_error([&] { koine::function(adds)(xs[0]); }, words);
  expect_error([&] { vmap(writes)(xs); }, {"assign", "()", "outside"});
  expect_error(
      [&] {
        grad([&](const Tensor& x) {
          const Tensor y = koine::function(adds)(x);
          return y.sum();
        })(xs[0]);
      },
      words);
  EXPECT_EQ(sum.tolist<double>(), (std::vector<double>{0, 0, 0})) << "it is as it was";
  Tensor leaf = doubles({3}, 2).requires_grad();
  expect_error(
      [&] {
        vmap([&](const Tensor& x) {
          (x * leaf).sum().backward();
          return x;
        })(xs);
      },
      {"backward", "outside"});
  EXPECT_FALSE(leaf.has_grad());
}

// Where devices split the examples, each computes its own.
TEST(vmap, examples_on_several_devices) {
  const Tensor xs = small({8, 4}, 1), w = small({4}, 2);
  const Tensor split = xs.shard("CPU,CPU:1,CPU:2,CPU:3", 0), all = w.shard("CPU,CPU:1,CPU:2,CPU:3");
  const auto f = [](const Tensor& x, const Tensor& v) { return (x * v).softmax() * x.sum(); };
  const Tensor got = vmap(f, {0, std::nullopt})(split, all);
  EXPECT_EQ(got.shard_axis(), 0);
  const Tensor want = vmap(f, {0, std::nullopt})(xs, w);
  expect_near(got.to("CPU").cast(DType::Float64), want.cast(DType::Float64), "split examples",
              1e-6);
  const auto loss = [&](const Tensor& x, const Tensor& v) { return f(x, v).square().sum(); };
  expect_near(vmap(grad(loss), {0, std::nullopt})(split, all).to("CPU").cast(DType::Float64),
              vmap(grad(loss), {0, std::nullopt})(xs, w).cast(DType::Float64), "gradients", 1e-5);
}

// A copy inside of the function splits what it split.
TEST(vmap, copies_to_several_devices_inside) {
  const Tensor xs = small({3, 4, 2}, 1);
  const auto f = [](const Tensor& x) { return x.shard("CPU,CPU:1", 0).sin(); };
  const Tensor got = vmap(f)(xs);
  EXPECT_EQ(got.shard_axis(), 1);
  expect_near(got.to("CPU").cast(DType::Float64), xs.sin().cast(DType::Float64), "split", 1e-6);
  const Tensor whole = vmap([](const Tensor& x) { return x.shard("CPU,CPU:1") * 2; })(xs);
  EXPECT_EQ(whole.shard_axis(), std::nullopt);
  expect_near(whole.to("CPU").cast(DType::Float64), (xs * 2).cast(DType::Float64), "whole", 1e-6);
}

// One body serves all devices.
TEST(vmap, spec_F3_bodies_do_not_name_their_device) {
  const auto inner = koine::function([](const Tensor& x) { return x.sin(); });
  const Tensor here = small({3, 4}, 1), there = here.to("CPU:1");
  const UOp a = vmap(inner)(here).uop().src(0), b = vmap(inner)(there).uop().src(0);
  EXPECT_EQ(a.src(0), b.src(0));
}

TEST(vmap, symbolic_numbers_of_examples) {
  const Tensor data = doubles({6, 3}, 1);
  const Variable n("examples", 1, 6);
  const auto f = [](const Tensor& x) { return x.softmax() * x.sum(); };
  for (const int64_t count : {4, 1, 6}) {
    const Tensor got = vmap(f)(data[Slice{{}, n.bind(count)}]);
    const Tensor want = in_a_loop(f, data[Slice{{}, count}]);
    EXPECT_EQ(got.shape().present(), want.shape().present());
    const auto a = got.tolist<double>(), b = want.tolist<double>();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12);
  }
}

TEST(vmap, spec_V13_spec_amend_36_random_numbers_are_those_of_each_example) {
  Tensor::manual_seed(7);
  const Tensor xs = Tensor::ones({4, 64});
  const auto noisy = [](const Tensor& x) {
    return std::pair{x + Tensor::rand({64}), x.dropout(0.5)};
  };
  const auto [drawn, dropped] = vmap(noisy)(xs);
  const auto a = drawn.tolist<double>(), b = dropped.tolist<double>();
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = i + 1; k < 4; ++k) {
      int equal = 0;
      for (size_t e = 0; e < 64; ++e) equal += a[64 * i + e] == a[64 * k + e] ? 1 : 0;
      EXPECT_LE(equal, 2) << "examples " << i << " and " << k;
      EXPECT_FALSE(std::equal(b.begin() + 64 * i, b.begin() + 64 * (i + 1), b.begin() + 64 * k));
    }
  double sum = 0;
  for (const double v : a) sum += v - 1;
  EXPECT_NEAR(sum / 256, 0.5, 0.1);
  // Nested: an example of the inner one is another in each of the outer one.
  const Tensor grid =
      vmap(vmap([](const Tensor& x) { return x + Tensor::rand({}); }))(Tensor::zeros({8, 8}));
  auto words = grid.tolist<double>();
  std::sort(words.begin(), words.end());
  EXPECT_GE(std::unique(words.begin(), words.end()) - words.begin(), 63);
  // A gradient sees the masks that the value has.
  const auto masked = [](const Tensor& x) {
    const Tensor y = x.dropout(0.5);
    return std::pair{y.sum(), y};
  };
  const auto [values, slopes] = vmap(value_and_grad(masked))(xs);
  expect_near(slopes, values.second, "of ones the slope is the value");
  // An explicit key is that of its example, and one key for all gives all the same numbers.
  const auto keyed = [](const Tensor& key) { return random::rand(random::Key(key), {8}); };
  const Tensor keys = Tensor::arange(0, 3, 1, DType::UInt64);
  expect_near(vmap(keyed)(keys), in_a_loop(keyed, keys), "keys");
  // The same seed gives the same numbers again.
  auto again = [&] {
    Tensor::manual_seed(11);
    return vmap([](const Tensor& x) { return x + Tensor::randn({3}); })(Tensor::zeros({5, 3}));
  };
  expect_near(again(), again(), "a seed");
}

// --- derivatives ---------------------------------------------------------------------------------

TEST(jvp, every_method_agrees_with_differences_and_with_vjp) {
  for (const Named& m : unary_methods()) {
    const Tensor x = doubles({3, 4}, 5, 0.2, 1.7), t = doubles({3, 4}, 6);
    const auto [value, tangent] = jvp(m.f, x, t);
    expect_near(value, m.f(x), m.name);
    // <w, J t> = <J' w, t>
    const auto [again, pullback] = vjp(m.f, x);
    const Tensor w = doubles(value.shape(), 7), back = pullback(w);
    const double forward = (w * tangent).sum().item(), reverse = (back * t).sum().item();
    const double error = m.name == std::string("cast") ? 1e-6 : 1e-9;
    EXPECT_NEAR(forward, reverse, error * std::max(1.0, std::fabs(forward))) << m.name;
    if (std::string(m.name) == "cast") continue;  // float32 is too coarse for differences
    constexpr double h = 1e-6;
    const Tensor slope = (m.f(x + t * h) - m.f(x - t * h)) / (2 * h);
    expect_near(tangent, m.name == std::string("detach") ? (x.detach() * t) : slope, m.name, 1e-5);
  }
}

// norm and std at 0 have the slope 0 in both directions, and in both orders.
TEST(jvp, spec_amend_40_norm_at_zero) {
  const Tensor zero = Tensor::zeros({3}, DType::Float64), t = doubles({3}, 1);
  const auto norm = [](const Tensor& x) { return x.norm(); };
  EXPECT_EQ(jvp(norm, zero, t).second.item(), 0);
  EXPECT_EQ(grad(norm)(zero).tolist<double>(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(hvp(norm, zero, t).tolist<double>(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(jvp([](const Tensor& x) { return x.std(); }, zero, t).second.item(), 0);
}

TEST(jvp, linearize_gives_the_linear_map_as_a_function) {
  const auto f = [](const Tensor& x, const Tensor& y) { return (x * y).sin().sum({1}); };
  const Tensor x = doubles({3, 4}, 1), y = doubles({3, 4}, 2), tx = doubles({3, 4}, 3),
               ty = doubles({3, 4}, 4);
  const auto [value, map] = linearize(f, x, y);
  expect_near(value, f(x, y), "value");
  const auto direct = jvp(f, std::tuple{x, y}, std::tuple{tx, ty});
  expect_near(map(tx, ty), direct.second, "tangent");
  expect_near(map(tx * 2, ty * 2), direct.second * 2, "it is linear");
  EXPECT_TRUE(map(tx, ty).uop().src(0).is(Op::Function));
  const auto [again, pullback] = vjp(f, x, y);
  const Tensor w = doubles({3}, 5);
  const auto [gx, gy] = pullback(w);
  EXPECT_NEAR((w * direct.second).sum().item(), (gx * tx + gy * ty).sum().item(), 1e-12);
}

// Whole numbers have no gradient, and stand in the way of none behind them.
TEST(jacobians, of_whole_numbers_beside_floats) {
  const Tensor i = Tensor::from<int32_t>({2, 3}), x = Tensor::from<float>({5, 7});
  const auto f = [](const Tensor& a, const Tensor& b) { return b * a.cast(DType::Float32); };
  const auto [value, pullback] = vjp(f, i, x);
  EXPECT_EQ(value.tolist<float>(), (std::vector<float>{10, 21}));
  const auto [gi, gx] = pullback(Tensor::from<float>({1, 10}));
  EXPECT_EQ(gx.tolist<float>(), (std::vector<float>{2, 30}));
  EXPECT_EQ(gi.tolist<float>(), (std::vector<float>{0, 0}));
}

TEST(jacobians, spec_V11_forward_equals_reverse_and_differences) {
  for (const Named& m : unary_methods()) {
    if (std::string(m.name) == "cast") continue;
    SCOPED_TRACE(m.name);
    const Tensor x = doubles({3, 4}, 5, 0.2, 1.7);
    const Tensor forward = jacfwd(m.f)(x), reverse = jacrev(m.f)(x);
    expect_near(forward, reverse, m.name);
    EXPECT_EQ(forward.ndim(), m.f(x).ndim() + 2) << m.name;
  }
}

TEST(jacobians, spec_amend_36_random_draws_are_those_of_one_call) {
  const Tensor x = doubles({3}, 1);
  int calls = 0;
  const auto f = [&](const Tensor& v) {
    ++calls;
    return v.square().sum() * Tensor::rand({4}).cast(DType::Float64);
  };
  const auto loss = [&](const Tensor& v) { return f(v).sum(); };
  for (const bool is_forward : {true, false}) {
    Tensor::manual_seed(7);
    calls = 0;
    const Tensor jacobian = (is_forward ? jacfwd(f)(x) : jacrev(f)(x)).contiguous().realize();
    EXPECT_EQ(calls, 1);
    Tensor::manual_seed(7);
    const Tensor drawn = Tensor::rand({4}).cast(DType::Float64);
    expect_near(jacobian, drawn.unsqueeze(1) * x * 2, is_forward ? "jacfwd" : "jacrev");
  }
  Tensor::manual_seed(7);
  const Tensor second = hessian(loss)(x).contiguous().realize();
  Tensor::manual_seed(7);
  expect_near(second,
              Tensor::eye(3, DType::Float64) * (Tensor::rand({4}).cast(DType::Float64).sum() * 2),
              "hessian");
}

TEST(jacobians, second_derivatives_in_all_four_orders) {
  for (const Named& m : unary_methods()) {
    const auto f = [&](const Tensor& x) {
      const Tensor y = m.f(x);
      return (y * y.sin()).sum();
    };
    const Tensor x = doubles({3, 4}, 5, 0.2, 1.7), v = doubles({3, 4}, 6);
    const Tensor h = hessian(f)(x);
    expect_near(jacrev(grad(f))(x), h, m.name, 1e-7);
    expect_near(jacrev(jacfwd(f))(x), h, m.name, 1e-7);
    expect_near(jacfwd(jacfwd(f))(x), h, m.name, 1e-7);
    const Tensor product = (h.reshape({12, 12}) * v.reshape({1, 12})).sum({1}).reshape({3, 4});
    expect_near(hvp(f, x, v), product, m.name, 1e-7);
  }
}

TEST(grads, values_arguments_and_what_comes_beside) {
  const auto loss = [](const Net& net, const Tensor& x) {
    const Tensor y = (x * net.w + net.b).square();
    return std::pair{y.sum(), y};
  };
  const Net net{doubles({3}, 1), doubles({3}, 2)};
  const Tensor x = doubles({2, 3}, 3);
  const auto [values, g] = value_and_grad(loss)(net, x);
  const Tensor y = x * net.w + net.b;
  expect_near(values.first, y.square().sum(), "loss");
  expect_near(values.second, y.square(), "what comes beside");
  expect_near(g.w, (y * x * 2).sum({0}), "w");
  expect_near(g.b, (y * 2).sum({0}), "b");
  const auto [of_net, of_x] = grad<0, 1>(loss)(net, x);
  expect_near(of_net.b, g.b, "b again");
  expect_near(of_x, y * net.w * 2, "x");
  // Two equal arguments are two.
  const auto product = [](const Tensor& a, const Tensor& b) { return (a * a * b).sum(); };
  const Tensor a = doubles({3}, 4);
  expect_near(grad(product)(a, a), a * a * 2, "the first alone");
  // Hygiene (C33): an inner derivative does not see the outer variable.
  const auto nested = grad([](const Tensor& u) {
    return u * grad([&](const Tensor& v) { return u + v; })(Tensor(2.0));
  })(Tensor(1.0));
  EXPECT_EQ(nested.item(), 1);
  expect_error([&] { grad([](const Tensor& u) { return u * 2; })(x); },
               {"grad", "(2, 3)", "scalar", "jacrev"});
  expect_error([&] { grad([](const Tensor& u) { return u.sum(); })(Tensor::arange(3)); },
               {"grad", "int32", "float"});
  expect_error([&] { jvp([](const Tensor& u) { return u; }, x, a); }, {"jvp", "(2, 3)", "(3,)"});
}

// As every kind of callable a user has writes them.
TEST(grads, results_may_be_constant_or_references) {
  const Tensor x = small({2, 3}, 1), y = small({2, 3}, 2);
  const auto squares = [](const Tensor& v) -> const Tensor { return (v * v).sum(); };
  const auto same = [](const Tensor& v) -> const Tensor& { return v; };
  EXPECT_EQ(values(grad(squares)(x)), values(x * 2));
  EXPECT_EQ(values(grad(checkpoint(squares))(x)), values(x * 2));
  EXPECT_EQ(values(grad(function(squares))(x)), values(x * 2));
  EXPECT_EQ(values(vjp(squares, x).second(Tensor(1.0f))), values(x * 2));
  EXPECT_EQ(values(vmap(same)(x)), values(x));
  EXPECT_EQ(values(jvp(same, x, y).second), values(y));
  EXPECT_EQ(values(linearize(same, x).second(y)), values(y));
  const std::function<const Tensor(Tensor&)> held_squares = squares;
  const std::function<const Tensor&(Tensor&)> held_same = same;
  EXPECT_EQ(values(grad(held_squares)(x)), values(x * 2));
  EXPECT_EQ(values(vmap(held_same)(x)), values(x));
  EXPECT_EQ(values(fori_loop(
                0, 2, [](const Tensor&, const Tensor& c) -> const Tensor { return -c; }, x)),
            values(x));
}

TEST(grads, layers_of_nn_are_arguments) {
  struct Mlp {
    nn::Linear first{4, 8}, last{8, 3, false};
    void state(const std::string& prefix, const nn::StateVisitor& visit) {
      first.state(prefix + "first.", visit);
      last.state(prefix + "last.", visit);
    }
    Tensor operator()(const Tensor& x) const { return last(first(x).tanh()); }
  };
  const Mlp net;
  const Tensor xs = small({5, 4}, 1), ys = Tensor::from<int>({0, 2, 1, 1, 0});
  const auto loss = [](const Mlp& m, const Tensor& x, const Tensor& y) {
    return m(x).cross_entropy(y);
  };
  const Mlp whole = grad(loss)(net, xs, ys);
  const auto of_one = [&](const Mlp& m, const Tensor& x, const Tensor& y) {
    return loss(m, x.unsqueeze(0), y.reshape({1}));
  };
  const Mlp each = vmap(grad(of_one), {std::nullopt, 0, 0})(net, xs, ys);
  EXPECT_FALSE(each.last.bias.defined());
  const auto near = [](const Tensor& a, const Tensor& b, const char* name) {
    expect_near(a.mean({0}).cast(DType::Float64), b.cast(DType::Float64), name, 1e-5);
  };
  near(each.first.weight, whole.first.weight, "weight");
  near(each.first.bias, whole.first.bias, "bias");
  near(each.last.weight, whole.last.weight, "last");
  Tensor leaf = net.first.bias;
  leaf.requires_grad();
  loss(net, xs, ys).backward();
  expect_near(leaf.grad().cast(DType::Float64), whole.first.bias.cast(DType::Float64),
              "as backward()", 1e-5);
}

TEST(grads, transforms_commute) {
  const auto f = [](const Tensor& x) { return (x.sin() * x.cumsum(0)).sum(); };
  const Tensor xs = doubles({5, 3}, 1), t = doubles({5, 3}, 2);
  const Tensor each = vmap(grad(f))(xs);
  expect_near(grad([&](const Tensor& x) { return vmap(f)(x).sum(); })(xs), each, "grad of vmap");
  const auto jitted = koine::function([&](const Tensor& x) { return vmap(grad(f))(x); });
  expect_near(jitted(xs), each, "function of vmap of grad");
  const Tensor pushed = jvp([&](const Tensor& x) { return vmap(f)(x); }, xs, t).second;
  const Tensor mapped =
      vmap([&](const Tensor& x, const Tensor& d) { return jvp(f, x, d).second; })(xs, t);
  expect_near(pushed, mapped, "jvp of vmap and vmap of jvp");
  expect_near(pushed, (each * t).sum({1}), "the gradient along the direction");
}

TEST(custom_rules, are_followed_by_every_transform) {
  // Ten times the true slope, so that the rule is seen.
  const auto root = custom_vjp(
      "root", [](const Tensor& x) { return x.sqrt(); },
      [](const CallGradient& c) -> std::vector<Tensor> {
        return {c.gradients[0] * 5.0 / c.results[0]};
      });
  const auto sine = custom_jvp(
      "sine", [](const Tensor& x) { return x.sin(); },
      [](const CallTangent& c) -> std::vector<Tensor> {
        return {c.tangents[0] * 10.0 * c.arguments[0].cos()};
      });
  const Tensor x = doubles({3}, 1, 0.2, 1.7), xs = doubles({4, 3}, 2, 0.2, 1.7),
               t = doubles({3}, 3);
  auto check = [&](const Unary& f, const Unary& slope, double again, const char* name) {
    expect_near(f(x), f(x) + 0, name);
    const auto sum = [&](const Tensor& v) { return f(v).sum(); };
    expect_near(grad(sum)(x), slope(x), name);
    expect_near(jvp(f, x, t).second, slope(x) * t, name);
    expect_near(vmap(f)(xs), f(xs), name);
    expect_near(vmap(grad(sum))(xs), slope(xs), name);
    expect_near(grad([&](const Tensor& v) { return vmap(f)(v).sum(); })(xs), slope(xs), name);
    expect_near(jvp([&](const Tensor& v) { return vmap(f)(v); }, xs, xs).second, slope(xs) * xs,
                name);
    expect_near(hessian(sum)(x).sum({0}),
                grad([&](const Tensor& v) { return slope(v).sum(); })(x) * again, name);
    Tensor leaf = x.clone().requires_grad();
    f(leaf).sum().backward();
    expect_near(leaf.grad(), slope(x), name);
  };
  check(
      root, [](const Tensor& v) { return Tensor(5.0) / v.sqrt(); }, 10,
      "root");  // the rule reads the result
  check(sine, [](const Tensor& v) { return v.cos() * 10; }, 1, "sine");
  // An argument without examples has the sum over all of them.
  const auto product = custom_vjp(
      "product", [](const Tensor& a, const Tensor& b) { return a * b; },
      [](const CallGradient& c) -> std::vector<Tensor> {
        return {c.gradients[0] * c.arguments[1], c.gradients[0] * c.arguments[0] * 3};
      });
  const Tensor g =
      grad([&](const Tensor& b) { return vmap(product, {0, std::nullopt})(xs, b).sum(); })(x);
  expect_near(g, xs.sum({0}) * 3, "summed over the examples");
  // Misuse.
  expect_error(
      [&] {
        (void)grad([&](const Tensor& v) {
          return custom_vjp(
                     "short", [](const Tensor& u) { return u * 2; },
                     [](const CallGradient&) { return std::vector<Tensor>{}; })(v)
              .sum();
        })(x);
      },
      {"'short", "0", "1"});
  expect_error(
      [&] {
        (void)grad([&](const Tensor& v) {
          return custom_vjp(
                     "wide", [](const Tensor& u) { return u * 2; },
                     [](const CallGradient& c) {
                       return std::vector<Tensor>{c.gradients[0].sum()};
                     })(v)
              .sum();
        })(x);
      },
      {"'wide", "()", "(3,)"});
  const Tensor outside = x.clone();
  expect_error(
      [&] {
        (void)custom_vjp(
            "closure", [&](const Tensor& u) { return u * outside; },
            [](const CallGradient& c) { return std::vector<Tensor>{c.gradients[0]}; })(x);
      },
      {"'closure'", "argument"});
  expect_error(
      [&] {
        (void)jvp(
            custom_vjp(
                "crooked", [](const Tensor& u) { return u * 2; },
                [](const CallGradient& c) { return std::vector<Tensor>{c.gradients[0].square()}; }),
            x, t);
      },
      {"'crooked", "not linear"});
}

// What a function captures has no gradient, and a rule is not told of it: it knows the arguments.
TEST(custom_rules, count_arguments_alone_and_not_what_is_captured) {
  const Tensor mask = doubles({3}, 1).clone().realize(), first = Tensor(int64_t{2}).clone();
  const Tensor x = doubles({3}, 2), xs = doubles({4, 3}, 3), t = doubles({3}, 4);
  const auto f = [&](const Tensor& v) { return v * mask.detach() * first; };
  const auto by_vjp = custom_vjp("masked", f, [&](const CallGradient& c) -> std::vector<Tensor> {
    EXPECT_EQ(c.arguments.size(), 1);
    return {c.gradients[0] * mask * 5};
  });
  const auto by_jvp = custom_jvp("masked", f, [&](const CallTangent& c) -> std::vector<Tensor> {
    EXPECT_EQ(c.arguments.size(), 1);
    EXPECT_EQ(c.tangents.size(), 1);
    return {c.tangents[0] * mask * 5};
  });
  const Tensor slope = mask * 5;
  const auto check = [&](const char* name, const auto& rule) {
    const auto sum = [&](const Tensor& v) { return rule(v).sum(); };
    expect_near(rule(x), f(x), name);
    expect_near(grad(sum)(x), slope, name);
    expect_near(jvp(rule, x, t).second, t * slope, name);
    expect_near(vmap(grad(sum))(xs), slope.expand({4, 3}), name);
    expect_near(grad([&](const Tensor& v) { return vmap(sum)(v).sum(); })(xs), slope.expand({4, 3}),
                name);
    expect_near(grad([&](const Tensor& v) { return checkpoint(rule)(v).sum(); })(x), slope, name);
  };
  check("by its gradient", by_vjp);
  check("by its tangent", by_jvp);
  expect_error(
      [&] {
        (void)grad([&](const Tensor& v) {
          return custom_vjp("long", f,
                            [](const CallGradient& c) {
                              return std::vector<Tensor>{c.gradients[0], Tensor()};
                            })(v)
              .sum();
        })(x);
      },
      {"'long", "2", "1"});
}

// The gradient of a kernel made by hand gives its tangent.
TEST(custom_rules, forward_mode_of_an_opaque_call_follows_from_its_gradient) {
  register_gradient("transforms.twice", [](const CallGradient& c) -> std::vector<Tensor> {
    return {c.gradients[0] * 2};
  });
  const auto twice = [](const Tensor& x) {
    return custom_kernel(
        "transforms.twice", CallResult{{3}, DType::Float64}, {x}, [](const std::vector<UOp>& p) {
          const UOp i = range(0, p[0].dim(0), AxisType::Loop);
          return sink({end(store(index(p[0], {i}), add(index(p[1], {i}), index(p[1], {i}))), {i})});
        });
  };
  const Tensor x = doubles({3}, 1), t = doubles({3}, 2);
  expect_near(jvp(twice, x, t).second, t * 2, "tangent");
  // And a rule for many examples says what vmap makes of it.
  const Tensor xs = doubles({4, 3}, 3);
  register_vmap("transforms.twice", [](const CallForExamples& c) -> std::vector<Tensor> {
    EXPECT_TRUE(c.mapped[0]);
    EXPECT_EQ(int64_t{c.examples}, 4);
    return {c.arguments[0] * 2};
  });
  expect_near(vmap(twice)(xs), xs * 2, "examples");
  register_vmap("transforms.twice", [](const CallForExamples& c) -> std::vector<Tensor> {
    return {c.arguments[0].sum()};
  });
  expect_error([&] { vmap(twice)(xs); }, {"'transforms.twice'", "()", "(3,)", "4"});
  expect_error([] { register_vmap("", [](const CallForExamples& c) { return c.arguments; }); },
               {"register_vmap", "name"});
}

// What a transform gives is computed the same on interpreted and compiled devices.
TEST(grads, results_are_equal_everywhere) {
  const Tensor xs = small({3, 4}, 1);
  for (const Named& m : unary_methods()) {
    if (std::string(m.name) == "cast" || std::string(m.name) == "pool" ||
        std::string(m.name) == "conv2d" || std::string(m.name) == "sort")
      continue;
    const auto f = [&](const Tensor& x) { return m.f(x.reshape({3, 4})).sum(); };
    expect_same_everywhere(vmap(grad(f))(Tensor::stack({xs, xs * 2})));
  }
}

// Counted work: examples cost what a batch written by hand does.
TEST(vmap, spec_V11_per_example_gradients_cost_no_loop) {
  const auto loss = [](const Tensor& w1, const Tensor& w2, const Tensor& x, const Tensor& y) {
    return ((x.matmul(w1)).relu().matmul(w2) - y).square().sum();
  };
  const Tensor w1 = small({16, 32}, 1).realize(), w2 = small({32, 8}, 2).realize(),
               x = small({24, 1, 16}, 3).realize(), y = small({24, 1, 8}, 4).realize();
  const auto per_example = vmap(grad<0, 1>(loss), {std::nullopt, std::nullopt, 0, 0})(w1, w2, x, y);
  const auto batch = grad<0, 1>(loss)(w1, w2, x.reshape({24, 16}), y.reshape({24, 8}));
  expect_near(std::get<0>(per_example).sum({0}).cast(DType::Float64),
              std::get<0>(batch).cast(DType::Float64), "w1", 1e-4);
  auto operations = [](const std::tuple<Tensor, Tensor>& g) {
    double total = 0;
    for (const auto& [own, moved] : counted_work({std::get<0>(g).uop(), std::get<1>(g).uop()}))
      total += own;
    return total;
  };
  const double one = operations(batch), each = operations(per_example);
  const double outputs = 24.0 * (16 * 32 + 32 * 8);
  EXPECT_LE(each, 1.3 * one + outputs);
}

namespace {

// Operations, and bytes between kernels and memory.
std::pair<double, double> predicted_work(const std::vector<Tensor>& values) {
  std::vector<UOp> nodes;
  for (const Tensor& t : values) nodes.push_back(t.uop());
  std::pair<double, double> sum;
  for (const auto& [operations, bytes] : counted_work(nodes)) {
    sum.first += operations;
    sum.second += bytes;
  }
  return sum;
}

void expect_work(const Tensor& made, const Tensor& by_hand, double factor, const char* name) {
  const auto [operations, bytes] = predicted_work({made});
  const auto [least, moved] = predicted_work({by_hand});
  EXPECT_LE(operations, factor * least) << name;
  EXPECT_LE(bytes, factor * moved) << name;
}

}  // namespace

TEST(vmap, spec_C38_costs_what_is_written_by_hand_for_all_examples) {
  const Tensor xs = small({8, 24, 32}, 1).realize(), ys = small({8, 32, 16}, 2).realize(),
               w = small({32, 16}, 3).realize(), rows = small({64, 32}, 4).realize(),
               images = small({8, 3, 12, 12}, 5).realize(),
               filters = small({4, 3, 3, 3}, 6).realize();
  const Tensor at = Tensor::randint({8, 10}, 0, 64).realize();
  const auto product = [](const Tensor& a, const Tensor& b) { return a.matmul(b); };
  expect_work(vmap(product)(xs, ys), xs.matmul(ys), 1.01, "products of matrices");
  expect_work(vmap(product, {0, std::nullopt})(xs, w), xs.matmul(w), 1.01, "with one matrix");
  expect_work(vmap(vmap(product, {0, std::nullopt}))(xs, ys), xs.matmul(ys), 1.01, "nested");
  const auto soft = [](const Tensor& x) { return x.softmax() * x.layernorm(); };
  expect_work(vmap(soft)(xs), soft(xs), 1.01, "softmax");
  const auto pick = [](const Tensor& table, const Tensor& i) { return table.index_select(0, i); };
  expect_work(vmap(pick, {std::nullopt, 0})(rows, at), rows.index_select(0, at), 1.01, "rows");
  const auto conv = [](const Tensor& x, const Tensor& f) {
    return x.unsqueeze(0).conv2d(f).relu().squeeze(0);
  };
  expect_work(vmap(conv, {0, std::nullopt})(images, filters), images.conv2d(filters).relu(), 1.01,
              "convolution");
  const auto loss = [](const Tensor& x, const Tensor& v) { return (x.matmul(v)).sin().sum(); };
  expect_work(vmap(grad(loss), {0, std::nullopt})(xs, w), ((xs.matmul(w)).cos().matmul(w.T())), 1.1,
              "gradients");
  expect_work(jvp(product, std::tuple{xs[0], w}, std::tuple{xs[1], w}).second,
              xs[0].matmul(w) + xs[1].matmul(w), 1.01, "the tangent of a product");
}

// The Hessian times a vector costs a few gradients, whatever the size.
TEST(jvp, spec_C38_hessian_vector_products_cost_at_most_four_gradients) {
  const Tensor w1 = small({32, 48}, 1).realize(), w2 = small({48, 8}, 2).realize(),
               x = small({16, 32}, 3).realize(), v = small({32, 48}, 4).realize();
  const auto loss = [&](const Tensor& w) { return (x.matmul(w)).tanh().matmul(w2).square().sum(); };
  const auto [one, moved] = predicted_work({grad(loss)(w1)});
  const auto [all, bytes] = predicted_work({hvp(loss, w1, v)});
  EXPECT_LE(all, 4 * one);
  EXPECT_LE(bytes, 4 * moved);
}

namespace {

template <class Cell>
std::string cell_text(const Cell& cell) {
  if (cell.rule() != nullptr) return "rule";
  return fmt::format("{}: {}", cell.is_refused() ? "refused" : "nothing", cell.words());
}

// Ops whose cells say the same share a row.
std::string table_of_cells() {
  std::vector<std::pair<std::string, std::string>> rows;  // cells, ops
  for (int i = 0; i < op_count; ++i) {
    const Op op = static_cast<Op>(i);
    const Row of = row_of(op);
    const std::string cells = fmt::format("{} | {} | {} | {}", cell_text(of.vjp), cell_text(of.jvp),
                                          cell_text(of.batch), cell_text(of.shard));
    auto row = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.first == cells; });
    if (row == rows.end()) row = rows.insert(rows.end(), {cells, ""});
    row->second += fmt::format("{}{}", row->second.empty() ? "" : ", ", op_name(op));
  }
  std::string out = "| ops | vjp | jvp | vmap | shard |\n|---|---|---|---|---|\n";
  for (const auto& [cells, ops] : rows) out += fmt::format("| {} | {} |\n", ops, cells);
  return out;
}

}  // namespace

TEST(grads, spec_amend_40_the_table_in_the_documents_is_that_of_the_code) {
  std::ifstream in("docs/transforms.md");
  std::stringstream read;
  read << in.rdbuf();
  const std::string text = read.str(), end = "<!-- end of cells -->";
  const size_t mark = text.find("<!-- cells"), from = text.find("-->\n", mark) + 4;
  const size_t to = text.find(end);
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  if (std::getenv("KOINE_TEST_FIX") != nullptr)
    std::ofstream("docs/transforms.md")
        << text.substr(0, from) << table_of_cells() << text.substr(to);
  else
    EXPECT_EQ(text.substr(from, to - from), table_of_cells());
}

}  // namespace koine::test
