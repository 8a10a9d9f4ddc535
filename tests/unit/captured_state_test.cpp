// Captured functions that assign, leave gradients and draw random numbers: whole steps of training.
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/nn/optim.hpp"
#include "koine/runtime/device.hpp"
#include "koine/tensor/captured.hpp"
#include "koine/tensor/random.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

using transforms::Function;
using transforms::Tensors;

Tensor whole(int32_t value) { return Tensor::from(std::vector<int32_t>{value}, {1}); }
using Floats = std::vector<float>;

// A captured function that is given its surroundings of now with each call.
struct Step {
  Tensors surroundings;
  CapturedFunction captured;

  Step(const Function& f, const Tensors& examples, Tensors around)
      : surroundings(std::move(around)), captured(f, examples, surroundings) {}
  Tensors operator()(Tensors arguments) {
    arguments.insert(arguments.end(), surroundings.begin(), surroundings.end());
    return captured(arguments);
  }
};

// A small regression, with what an optimizer has.
struct Regression {
  Tensor w = vector_of({.5F, -1, 2}).requires_grad(), b = Tensor::zeros({1}).requires_grad();
  nn::AdamW optimizer{{w, b}, .1};
  Tensor seen = Tensor::zeros({}).clone().realize();

  Tensor train(const Tensor& x, const Tensor& y) {
    const Tensor loss = (x.matmul(w) + b - y).square().mean();
    seen.assign(seen + loss.detach());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss;
  }
  Tensors state() {
    Tensors out = optimizer.tensors();
    out.push_back(seen);
    return out;
  }
};

Tensor inputs(float shift) {
  return Tensor::from(Floats{1, 2, 3, 4, 5, shift, 7, 1, 2, 0, shift, 1}, {4, 3});
}

}  // namespace

TEST(captured_state, spec_L9_a_step_of_training_is_one_submission) {
  Regression written, compiled;
  const Tensor y = vector_of({1, 0, 2, -1});
  std::optional<Step> steps[2];  // the first finds no gradients
  for (int k = 0; k < 6; ++k) {
    const Tensor x = inputs(static_cast<float>(k));
    const double rate = .1 / (k + 1);
    written.optimizer.set_learning_rate(rate);
    compiled.optimizer.set_learning_rate(rate);
    auto& step = steps[k > 0];
    if (!step)
      step.emplace([&](const Tensors& t) { return Tensors{compiled.train(t[0], t[1])}; },
                   Tensors{x, y}, compiled.state());
    step->surroundings = compiled.state();
    EXPECT_TRUE(step->captured.has_state());
    reset_counters();
    const Tensor loss = (*step)({x, y})[0];
    EXPECT_EQ(counters().compiled, 0);
    EXPECT_EQ(counters().schedule_seconds, 0);
    EXPECT_EQ(listed(loss), listed(written.train(x, y)));
    EXPECT_EQ(listed(compiled.w), listed(written.w));
    EXPECT_EQ(listed(compiled.b), listed(written.b));
    EXPECT_EQ(listed(compiled.seen), listed(written.seen));
    EXPECT_TRUE(compiled.w.is_leaf());
  }
  EXPECT_EQ(listed(compiled.w.grad()), listed(written.w.grad()));
  EXPECT_EQ(listed(compiled.b.grad()), listed(written.b.grad()));
}

TEST(captured_state, describing_changes_nothing) {
  Regression r;
  const Tensor x = inputs(1), y = vector_of({1, 0, 2, -1});
  const Floats w = listed(r.w);
  Step step([&](const Tensors& t) { return Tensors{r.train(t[0], t[1])}; }, {x, y}, r.state());
  EXPECT_EQ(listed(r.w), w);
  EXPECT_EQ(listed(r.seen), Floats{0});
  EXPECT_FALSE(r.w.has_grad());
  // The old value is no former one: gradients by it work.
  (r.w * 2).sum().backward();
  EXPECT_EQ(listed(r.w.grad()), (Floats{2, 2, 2}));
}

TEST(captured_state, gradients_without_a_step_are_computed_with_the_results_and_add_up) {
  Tensor w = vector_of({1, 2}).requires_grad();
  const Function f = [&](const Tensors& x) {
    const Tensor loss = (x[0] * w * w).sum();
    loss.backward();
    return Tensors{loss};
  };
  Step first(f, {vector_of({1, 1})}, {w});
  EXPECT_EQ(listed(first({vector_of({1, 3})})[0]), Floats{13});
  EXPECT_EQ(listed(w.grad()), (Floats{2, 12}));
  EXPECT_THROW((void)first({vector_of({1, 3})}), Error);  // there is a gradient now
  Step more(f, {vector_of({1, 1})}, {w});
  EXPECT_EQ(listed(w.grad()), (Floats{2, 12}));
  for (int k = 0; k < 3; ++k) {
    (void)more({vector_of({1, 0})});
    reset_counters();
    EXPECT_EQ(listed(w.grad()), (Floats{4 + 2.F * static_cast<float>(k), 12}));
    EXPECT_EQ(counters().kernels, 0);  // they were there already
  }
}

TEST(captured_state, arguments_may_be_assigned_and_have_gradients) {
  const Function f = [](const Tensors& x) {
    Tensor count = x[0], w = x[1];
    count.assign(count + 1);
    (w * count.cast(DType::Float32)).sum().backward();
    return Tensors{count * 10};
  };
  Tensor a = whole(3), b = whole(7);
  Tensor v = vector_of({1}).requires_grad(), w = vector_of({2}).requires_grad();
  CapturedFunction g(f, {a, v});
  EXPECT_EQ(g({a, v})[0].tolist<int32_t>(), std::vector<int32_t>{40});
  EXPECT_EQ(g({b, w})[0].tolist<int32_t>(), std::vector<int32_t>{80});
  EXPECT_EQ(a.tolist<int32_t>(), std::vector<int32_t>{4});
  EXPECT_EQ(b.tolist<int32_t>(), std::vector<int32_t>{8});
  EXPECT_EQ(listed(v.grad()), Floats{4});
  EXPECT_EQ(listed(w.grad()), Floats{8});
}

TEST(captured_state, views_are_written_and_old_values_stay_with_whoever_has_them) {
  Tensor cache = Tensor::zeros({4, 2}).clone().realize();
  const Tensor before = cache[0] + 0.F;
  Step f(
      [&](const Tensors& x) {
        cache.setitem({x[1]}, x[0]);
        cache[Slice{0, 1}].assign(x[0].reshape({1, 2}) * 2);
        return Tensors{cache.sum(0)};
      },
      {vector_of({1, 1}), whole(1).reshape({})}, {cache});
  const Tensor held = cache.clone();
  Tensors states;
  for (int k = 1; k < 4; ++k) {
    const auto v = static_cast<float>(k);
    (void)f({vector_of({v, -v}), whole(k).reshape({})});
    states.push_back(cache.detach());
  }
  EXPECT_EQ(listed(states[0].flatten()), (Floats{2, -2, 1, -1, 0, 0, 0, 0}));
  EXPECT_EQ(listed(states[1].flatten()), (Floats{4, -4, 1, -1, 2, -2, 0, 0}));
  EXPECT_EQ(listed(cache.flatten()), (Floats{6, -6, 1, -1, 2, -2, 3, -3}));
  EXPECT_EQ(listed(held.flatten()), Floats(8, 0));
  EXPECT_EQ(listed(before), Floats(2, 0));
}

TEST(captured_state, random_numbers_are_those_of_the_function_itself) {
  const Function f = [](const Tensors& x) {
    return Tensors{x[0] + Tensor::rand({3}), x[0].dropout(.5), Tensor::randperm(5)};
  };
  const Tensor x = vector_of({1, 2, 3});
  CapturedFunction g(f, {x});
  Tensor::manual_seed(3);
  std::vector<Tensors> written, compiled;
  for (int k = 0; k < 3; ++k) written.push_back(f({x}));
  const Tensor after = Tensor::rand({2});
  Tensor::manual_seed(3);
  for (int k = 0; k < 3; ++k) compiled.push_back(g({x}));
  EXPECT_EQ(listed(Tensor::rand({2})), listed(after));
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(listed(compiled[k][0]), listed(written[k][0]));
    EXPECT_EQ(listed(compiled[k][1]), listed(written[k][1]));
    EXPECT_EQ(compiled[k][2].tolist<int32_t>(), written[k][2].tolist<int32_t>());
  }
}

TEST(captured_state, a_call_that_fails_assigns_nothing) {
  Tensor total = Tensor::zeros({}).clone().realize();
  const Tensor table = vector_of({1, 2, 3});
  Step f(
      [&](const Tensors& x) {
        total.assign(total + table.index_select(0, x[0]).sum());
        return Tensors{total * 2};
      },
      {whole(0)}, {total, table});
  (void)f({whole(2)});
  expect_error([&] { (void)f({whole(3)}); }, {"3"});
  EXPECT_EQ(listed(total), Floats{3});
  EXPECT_EQ(listed(f({whole(1)})[0]), Floats{10});
}

// Found by random functions: a copy that was looked at keeps how it was computed, of memory that
// then is another tensor's. The function follows the value alone.
TEST(captured_state, a_copy_that_was_looked_at_does_not_follow_its_origin) {
  Tensor p = vector_of({1, 2}).requires_grad(), origin = vector_of({3, 4}).realize();
  const Tensor copy = origin * 1;
  EXPECT_EQ(listed(copy), (Floats{3, 4}));
  Step step(
      [&](const Tensors&) {
        p.zero_grad();
        (copy * p).sum().backward();
        return Tensors{};
      },
      {}, {p, origin, copy});
  (void)step({});
  EXPECT_EQ(listed(p.grad()), (Floats{3, 4}));
  origin.assign(vector_of({100, 200}));
  p.zero_grad();
  (void)step({});
  EXPECT_EQ(listed(p.grad()), (Floats{3, 4}));
}

// A value that is an argument as it is has the memory of that, not of what stood for it.
TEST(captured_state, a_gradient_that_is_a_surrounding) {
  Tensor p = vector_of({1, 2}).requires_grad(), t = vector_of({3, 4}).realize(),
         other = vector_of({0, 0}).realize();
  Step step(
      [&](const Tensors& x) {
        other.assign(other + x[0]);
        (t * p).sum().backward();
        return Tensors{};
      },
      {vector_of({1, 1})}, {p, t, other});
  (void)step({vector_of({5, 6})});
  EXPECT_EQ(listed(p.grad()), (Floats{3, 4}));
  EXPECT_EQ(listed(other), (Floats{5, 6}));
  t.assign(t + 1);
  EXPECT_EQ(listed(p.grad()), (Floats{3, 4}));
  p.zero_grad();
  (void)step({vector_of({5, 6})});
  EXPECT_EQ(listed(p.grad()), (Floats{4, 5}));
}

TEST(captured_state, tensors_that_it_makes_of_numbers_are_constants) {
  const auto constant = [](const Floats& values) {
    const OutsideOfTraces outside;
    return vector_of(values);
  };
  CapturedFunction f(
      [&](const Tensors& x) {
        return Tensors{constant({10, 20}) + x[0], x[0] * constant({2, 3}), constant({7, 8})};
      },
      {vector_of({1, 2})});
  for (const float v : {1.F, 5.F}) {
    Tensors out = f({vector_of({v, 2})});
    EXPECT_EQ(listed(out[0]), (Floats{10 + v, 22}));
    EXPECT_EQ(listed(out[1]), (Floats{2 * v, 6}));
    EXPECT_EQ(listed(out[2]), (Floats{7, 8}));
    out[2].assign(out[2] + 100);
    EXPECT_EQ(listed(out[2]), (Floats{107, 108}));
  }
}

TEST(captured_state, what_cannot_be_described_is_refused_and_leaves_everything_as_it_was) {
  Tensor a = vector_of({1, 2}), other = vector_of({5, 5}), w = vector_of({1, 1}).requires_grad();
  auto refuse = [&](const Function& f, const Tensors& examples, const Tensors& around,
                    const std::vector<std::string>& words) {
    expect_error([&] { CapturedFunction made(f, examples, around); }, words);
    EXPECT_EQ(listed(a), (Floats{1, 2}));
    EXPECT_EQ(listed(other), (Floats{5, 5}));
    EXPECT_FALSE(w.has_grad());
  };
  const auto assign_other = [&](const Tensors& x) {
    other.assign(x[0]);
    return Tensors{x[0] + 1};
  };
  refuse(assign_other, {a}, {}, {"assign", "made outside"});
  const Tensor view = other[0];
  refuse(assign_other, {a}, {other, view}, {"a tensor of shape (2,)", "a view"});
  refuse(assign_other, {other}, {other}, {"a tensor", "another name"});
  refuse(
      [&](const Tensors& x) {
        other.assign(x[0] * w);
        return Tensors{x[0] + 1};
      },
      {a}, {other, w}, {"a gradient goes through", "detach()"});
  refuse(
      [&](const Tensors& x) {
        (x[0] * w).sum().backward();
        return Tensors{x[0] + 1};
      },
      {a}, {}, {"backward", "made outside"});
  refuse(
      [&](const Tensors& x) {
        other.assign(x[0]);
        (void)other.sum().item();
        return Tensors{x[0] + 1};
      },
      {a}, {other}, {"inside of the function traced"});
  refuse([&](const Tensors&) { return Tensors{other}; }, {a}, {other}, {"result 0", "clone()"});
  refuse(
      [&](const Tensors& x) {
        Tensor(other).requires_grad();
        return Tensors{x[0] + 1};
      },
      {a}, {other}, {"requires_grad"});
  Tensor part = a[Slice{0, 1}];
  refuse(
      [&](const Tensors& x) {
        Tensor t = x[0];
        t.assign(t + 1);
        return Tensors{t * 2};
      },
      {part}, {}, {"an argument of shape (1,)"});
}

TEST(captured_state, what_leads_to_a_parameter_of_before_is_not_assigned_or_differentiated) {
  Tensor p = vector_of({1, 2}).requires_grad(), t = vector_of({0, 0}).realize();
  nn::SGD optimizer({p}, .1);
  auto capture = [&](const Function& f) { Step made(f, {vector_of({1, 3})}, {p, t}); };
  expect_error(
      [&] {
        capture([&](const Tensors& x) {
          const Tensor old = p * x[0];
          (p * x[0]).sum().backward();
          optimizer.step();
          t.assign(old);
          return Tensors{};
        });
      },
      {"assigns to a tensor of shape (2,)", "what a gradient goes through"});
  (p * p).sum().backward();
  expect_error(
      [&] {
        capture([&](const Tensors& x) {
          (p.grad() * p * x[0]).sum().backward();
          return Tensors{};
        });
      },
      {"differentiates a gradient of shape (2,)", "detach()"});
  expect_error(
      [&] { capture([&](const Tensors& x) { return (p.grad() * p * x[0]).sum().gradient({p}); }); },
      {"differentiates a gradient of shape (2,)", "detach()"});
  EXPECT_EQ(listed(p), (Floats{1, 2}));
  EXPECT_EQ(listed(p.grad()), (Floats{2, 4}));
}

TEST(captured_state, tensors_of_another_state_are_refused) {
  Tensor a = vector_of({1, 2}), b = vector_of({3, 4});
  CapturedFunction f(
      [](const Tensors& x) {
        Tensor t = x[0];
        t.assign(t + x[1]);
        return Tensors{t * 2};
      },
      {a, b});
  expect_error([&] { (void)f({a, a[Slice{0, 2}]}); }, {"views or handles of one"});
  expect_error([&] { (void)f({a, vector_of({1, 2}).requires_grad()}); }, {"require a gradient"});
  EXPECT_EQ(listed(a), (Floats{1, 2}));
  EXPECT_EQ(listed(f({a, b})[0]), (Floats{8, 12}));
  EXPECT_EQ(listed(a), (Floats{4, 6}));
}

TEST(captured_state, a_gradient_through_what_was_assigned_is_refused_and_a_new_one_works) {
  Tensor w = vector_of({1, 2}).requires_grad(), s = vector_of({1, 1});
  Step f(
      [&](const Tensors& x) {
        s.assign(s * x[0]);
        w.assign(w * 2);
        return Tensors{(w * s).sum()};
      },
      {vector_of({3, 3})}, {w, s});
  const Tensor x = vector_of({3, 3}), old = (w * 5).sum();
  const Tensor loss = f({x})[0];
  EXPECT_EQ(listed(loss), Floats{18});
  expect_error([&] { (void)s.sum().gradient({x}); }, {"gradient"});
  expect_error([&] { old.backward(); }, {"new value"});
  (w * 3).sum().backward();
  EXPECT_EQ(listed(w.grad()), (Floats{3, 3}));
}

TEST(captured_state, results_that_are_kept_hold_no_state_of_the_optimizer) {
  const int64_t n = 1 << 16;
  Tensor w = Tensor::ones({n}).clone().requires_grad();
  nn::AdamW optimizer({w}, .1);
  std::optional<Step> step;
  const Tensor x = Tensor::ones({n}).clone().realize();
  Tensors kept;
  int64_t before = 0;
  for (int k = 0; k < 10; ++k) {
    if (k < 2)
      step.emplace(
          [&](const Tensors& t) {
            const Tensor loss = (t[0] * w).sum();
            optimizer.zero_grad();
            loss.backward();
            optimizer.step();
            return Tensors{loss};
          },
          Tensors{x}, optimizer.tensors());
    kept.push_back((*step)({x})[0]);
    if (k == 4) before = device_runtime("CPU").allocator().bytes_in_use();
  }
  // The loss has a gradient by the parameter that there was.
  EXPECT_LE(device_runtime("CPU").allocator().bytes_in_use() - before, 6 * n * 4);
}

}  // namespace koine::test
