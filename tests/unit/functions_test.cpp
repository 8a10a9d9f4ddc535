// Functions: tracing, captured values, equal bodies, calls that are inlined or compiled once (rows
// F1 to F4, amendment C33).
#include <map>
#include <unordered_set>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {

TEST(functions, spec_F1_inputs_are_deduplicated) {
  const UOp x = leaf({2});
  const UOp f = make_function(
      [](const std::vector<UOp>& in) { return std::vector<UOp>{add(in[0], in[1])}; }, {x, x});
  EXPECT_EQ(f.src().size(), 2u) << "one body, one argument";
}

namespace {
struct Layer {
  Tensor weight;
  std::map<std::string, std::vector<Tensor>> extras;
  int power = 1;
  template <class V>
  void tensors(V&& visit) {
    visit(weight);
    visit(extras);
  }
};
}  // namespace

TEST(functions, spec_F1_tensors_are_found_in_nested_arguments) {
  const auto square_sum = koine::function([](const Tensor& x, const Layer& layer) {
    Tensor y = x * layer.weight + layer.extras.at("bias")[1];
    for (int i = 1; i < layer.power; ++i) y = y * y;
    return std::make_pair(y, std::vector<Tensor>{y.sum(), x});
  });
  Tensor x = Tensor::from<float>({1, 2, 3}).requires_grad();
  const Tensor b = Tensor::from<float>({1, 1, 1}), w = Tensor::from<float>({2, 2, 2});
  const Layer layer{w, {{"bias", {w, b}}}, 2};
  const auto [y, parts] = square_sum(x, layer);
  EXPECT_EQ(y.tolist<int>(), (std::vector<int>{9, 25, 49}));
  EXPECT_EQ(parts[0].item(), 83);
  EXPECT_EQ(parts[1].tolist<int>(), (std::vector<int>{1, 2, 3}));
  const UOp call = y.uop().src(0);
  EXPECT_TRUE(call.is(Op::Function));
  EXPECT_EQ(call.src().size(), 4u) << "w is found twice and is one argument: body, x, w, b";
  parts[0].backward();
  EXPECT_EQ(x.grad().tolist<int>(), (std::vector<int>{12, 20, 28}));
  // The same body over other tensors is the same node, and is not compiled again.
  const auto [z, other] = square_sum(Tensor::from<float>({1, 1, 1}), layer);
  EXPECT_EQ(z.uop().src(0).src(0), call.src(0));
  EXPECT_EQ(z.tolist<int>(), (std::vector<int>{9, 9, 9}));
}

TEST(functions, spec_F2_a_trace_runs_nothing) {
  const Tensor x = Tensor::arange(4).cast(DType::Float32).realize();
  auto tracing = [&](const std::function<void(const Tensor&)>& body) {
    return [&x, body] {
      (void)make_function(
          [&](const std::vector<UOp>& in) {
            body(Tensor(in[0]));
            return std::vector<UOp>{in[0]};
          },
          {x.uop()});
    };
  };
  expect_error(tracing([](const Tensor& t) { (void)(t + t).item(); }), {"item", "(4,)"});
  expect_error(tracing([](const Tensor& t) { (void)(t + t).realize(); }),
               {"realizing", "(4,)", "functions_test.cpp:", "argument"});
  expect_error(tracing([](const Tensor&) { (void)Tensor::from<float>({1, 2}); }),
               {"allocating", "functions_test.cpp:"});
  // Nothing ran while tracing, and afterwards all is as before.
  const int64_t before = counters().kernels;
  const UOp call = make_function(
      [](const std::vector<UOp>& in) { return std::vector<UOp>{mul(in[0], in[0])}; }, {x.uop()});
  EXPECT_EQ(counters().kernels, before);
  EXPECT_EQ(Tensor(get_tuple(call, 0)).tolist<int>(), (std::vector<int>{0, 1, 4, 9}));
}

TEST(functions, spec_F3_bodies_are_closed_and_equal) {
  const UOp x = leaf({2}), y = leaf({2}, DType::Float32, 1),
            captured = leaf({2}, DType::Float32, 2);
  auto trace = [&](const std::vector<UOp>& in) { return std::vector<UOp>{mul(in[0], captured)}; };
  const UOp f = make_function(trace, {x}), g = make_function(trace, {y});
  EXPECT_EQ(f.src(0), g.src(0)) << "the same body twice is one node";
  for (const UOp& u : toposort(f.src(0))) EXPECT_FALSE(u.is(Op::Buffer));
  EXPECT_EQ(f.src().size(), 3u) << "the captured buffer became an argument";
  expect_same_everywhere(get_tuple(f, 0));
}

// An effect and an index are no arguments: they stay in the body, what they read comes from
// outside.
TEST(functions, spec_F3_effects_and_indices_of_captured_memory_stay_in_the_body) {
  const Tensor memory = Tensor::zeros({2}).clone().realize(), x = Tensor::from<float>({3, 4}),
               other = Tensor::zeros({3}).clone().realize(), seven = Tensor(7.0).clone().realize();
  const UOp view = shrink(other.uop(), shape_of({1}), shape_of({2})),
            sevens = expand(reshape(seven.uop(), shape_of({1})), shape_of({2}));
  const UOp call = make_function(
      [&](const std::vector<UOp>& in) {
        return std::vector<UOp>{
            after(memory.uop(), {store(memory.uop(), in[0]), store(view, sevens)})};
      },
      {x.uop()});
  // What is stored to stays a view of its memory; what is stored is one value.
  const std::unordered_set<UOp> arguments(call.src().begin() + 1, call.src().end());
  EXPECT_EQ(arguments, (std::unordered_set<UOp>{x.uop(), memory.uop(), other.uop(), sevens}));
  EXPECT_EQ(Tensor(get_tuple(call, 0)).tolist<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(other.tolist<float>(), (std::vector<float>{0, 7, 7}));

  const UOp places = Tensor::from<int>({1, -1, 0}).uop();
  const UOp picked = make_function(
      [&](const std::vector<UOp>& in) {
        return std::vector<UOp>{
            index(in[0], {mul(cast(places, DType::Index), cast(places, DType::Index))})};
      },
      {x.uop()});
  EXPECT_EQ(Tensor(get_tuple(picked, 0)).tolist<float>(), (std::vector<float>{4, 4, 3}));
  expect_same_everywhere(get_tuple(picked, 0));
}

TEST(functions, spec_amend_33_hygiene) {
  // f(x) = x + 1 traced at 1: the literal is not the input.
  const UOp one = constant(DType::Float32, 1);
  const UOp f = make_function(
      [&](const std::vector<UOp>& in) { return std::vector<UOp>{add(in[0], one)}; }, {one});
  const UOp at_two =
      get_tuple(function(f.src(0), std::vector<UOp>{constant(DType::Float32, 2)}), 0);
  EXPECT_EQ(Tensor(at_two).item(), 3);
  const UOp x = Tensor(2.0).clone().realize().uop();
  const UOp call = get_tuple(
      make_function([&](const std::vector<UOp>& in) { return std::vector<UOp>{add(in[0], one)}; },
                    {x}),
      0);
  const std::vector<UOp> outputs{call}, seeds{one}, targets{x};
  EXPECT_EQ(Tensor(gradient(outputs, seeds, targets)[0]).item(), 1);
}

TEST(functions, a_tensor_that_leaves_its_trace_says_so_where_it_is_looked_at) {
  const Tensor x = Tensor::from<float>({1, 2});
  Tensor left;
  const auto f = koine::function([&](const Tensor& t) {
    left = t * 2;
    return t + 1;
  });
  EXPECT_EQ(f(x).tolist<int>(), (std::vector<int>{2, 3}));
  expect_error([&] { (void)left.tolist<float>(); },
               {"was traced", "float32 of shape (2,)", "let the function return it"});
  // Nor is it an argument of another function, whatever slots that has.
  const auto g = koine::function([&](const Tensor& t) { return t + left; });
  expect_error([&] { (void)g(x).tolist<float>(); },
               {"was traced", "float32 of shape (2,)", "let the function return it"});
}

TEST(functions, bodies_name_arguments_alone) {
  const UOp x = leaf({2}), open = traced_param(x);
  const std::vector<UOp> body{add(param_for(0, x), open)}, arguments{x};
  const UOp call = function(tuple(body), arguments);
  expect_error([&] { (void)realize({get_tuple(call, 0)}); }, {"Function", "no argument", "traced"});
  expect_error([&] { (void)interpret(get_tuple(call, 0), bindings_of(x)); },
               {"Function", "no argument", "traced"});
  const UOp i = range(0, index_const(2), AxisType::Loop);
  const UOp stored = store(index(param_for(0, x), {i}), load(index(open, {i})));
  const std::vector<UOp> loops{i};
  const UOp kernel = UOp::make(Op::Sink, {end(stored, loops)}, std::string("own"));
  expect_error([&] { (void)get_tuple(UOp::make(Op::Call, {kernel, x}), 0); },
               {"own", "no argument", "traced"});
}

TEST(functions, spec_F4_calls_are_inlined) {
  const UOp x = leaf({4});
  const UOp inner = get_tuple(
      make_function([](const std::vector<UOp>& in) { return std::vector<UOp>{mul(in[0], in[0])}; },
                    {x}),
      0);
  const UOp outer = get_tuple(
      make_function([](const std::vector<UOp>& in) { return std::vector<UOp>{add(in[0], in[0])}; },
                    {inner}),
      0);
  expect_same_everywhere(outer);
  EXPECT_EQ(inline_functions(outer), add(mul(x, x), mul(x, x)));
}

TEST(functions, spec_F4_a_precompiled_body_is_compiled_once_for_twelve_layers) {
  const OptionScope scope(strict_options());
  std::vector<Tensor> weights;
  for (uint64_t i = 0; i < 12; ++i)
    weights.push_back(Tensor(leaf({24, 24}, DType::Float32, 100 + i)).realize());
  const Tensor x(leaf({8, 24}));
  auto run = [&](Resolve how, size_t layers) {
    const auto layer = koine::function(
        [](const Tensor& h, const Tensor& w) { return (h + Tensor(1.0)).matmul(w).relu().exp2(); },
        how);
    Tensor h = x;
    for (size_t i = 0; i < layers; ++i) h = layer(h, weights[i]);
    clear_compile_cache();
    reset_counters();
    const Array out = array_of(h.realize().uop());
    return std::pair(out, counters().compiled);
  };
  const auto [inlined, inlined_kernels] = run(Resolve::Substitute, 12);
  const auto [once, one_kernel] = run(Resolve::Precompile, 1);
  const auto [called, kernels] = run(Resolve::Precompile, 12);
  EXPECT_EQ(difference(inlined, called), "");
  EXPECT_EQ(kernels, one_kernel) << "eleven layers more, no program more";
  // Its gradient is precompiled too.
  const auto square =
      koine::function([](const Tensor& v) { return v * v * v; }, Resolve::Precompile);
  Tensor v = Tensor::from<float>({1, 2, 3}).requires_grad();
  const Tensor g = square(v).sum().gradient({v})[0];
  EXPECT_EQ(g.tolist<float>(), (std::vector<float>{3, 12, 27}));
  const UOp call =
      get_tuple(function(tuple(std::vector<UOp>{param(0, shape_of({3}), DType::Float32)}),
                         std::vector<UOp>{v.uop()}, Resolve::Precompile),
                0);
  EXPECT_EQ(parse(to_text(call)), call);
  expect_same_everywhere(add(call, call));
}

TEST(functions, spec_F4_a_precompiled_body_holds_writes_to_what_it_captures) {
  auto run = [](Resolve how) {
    Tensor x = Tensor::from<float>({1, -2, 3}).requires_grad();
    Tensor y = x * Tensor(1.5);
    y[{Slice{{}, {}, 2}}].assign(x[{Slice{{}, {}, 2}}] * Tensor(4.0));
    const auto f = koine::function([&](const Tensor& t) { return t * y.sum(); }, how);
    const Tensor loss = f(x).sum() + y.sum();  // the same state inside and outside
    const float value = loss.item<float>();
    return std::pair(value, loss.gradient({x})[0].tolist<float>());
  };
  // y is 4, -3, 12 and its sum 13; that of x is 2.
  const std::pair want(39.0F, std::vector<float>{25, 17.5, 25});
  EXPECT_EQ(run(Resolve::Substitute), want);
  EXPECT_EQ(run(Resolve::Precompile), want);
  // Memory that the user named is written where it is.
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const UOp memory = Tensor::zeros({3}).clone().realize().uop();
    const UOp call = make_function(
        [&](const std::vector<UOp>& in) {
          return std::vector<UOp>{after(memory, {store(memory, in[0])})};
        },
        {Tensor::from<float>({4, 5, 6}).uop()}, how);
    EXPECT_EQ(Tensor(get_tuple(call, 0)).tolist<float>(), (std::vector<float>{4, 5, 6}));
    EXPECT_EQ(Tensor(memory).tolist<float>(), (std::vector<float>{4, 5, 6}));
  }
}

}  // namespace koine::test
