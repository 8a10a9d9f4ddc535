// Functions that are captured as steps, and memory that is shared with others.
#include <numeric>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/tensor/captured.hpp"
#include "koine/tensor/random.hpp"

namespace koine::test {
namespace {

using transforms::Tensors;

Tensor numbers(const std::vector<float>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}
std::vector<float> listed(const Tensor& t) { return t.tolist<float>(); }

}  // namespace

TEST(captured, spec_L9_a_call_is_one_submission_of_what_was_compiled_once) {
  CapturedFunction f([](const Tensors& x) { return Tensors{(x[0] * 2 + x[1]).sum(), x[0] - x[1]}; },
                     {numbers({1, 2}), numbers({3, 4})});
  const Tensor a = numbers({5, 6}), b = numbers({7, 8});
  (void)f({a, b});
  reset_counters();
  const Tensors out = f({b, a});
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_EQ(out[0].item(), 41);
  EXPECT_EQ(listed(out[1]), (std::vector<float>{2, 2}));
  EXPECT_EQ(listed(f({a, b})[1]), (std::vector<float>{-2, -2}));
}

TEST(captured, results_belong_to_whoever_has_them) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] + 1}; }, {numbers({1})});
  Tensor first = f({numbers({1})})[0];
  const auto shown = first.data();
  const Tensor second = f({numbers({2})})[0];
  first += 100;
  EXPECT_EQ(listed(first), (std::vector<float>{102}));
  EXPECT_EQ(listed(second), (std::vector<float>{3}));
  EXPECT_EQ(*reinterpret_cast<const float*>(shown.get()), 2);
}

TEST(captured, gradients_go_through_a_result) {
  Tensor w = numbers({2, 3}).requires_grad();
  CapturedFunction f([](const Tensors& x) { return Tensors{(x[0] * x[0] * x[1]).sum()}; },
                     {w, numbers({1, 1})});
  f({w, numbers({5, 7})})[0].backward();
  EXPECT_EQ(listed(w.grad()), (std::vector<float>{20, 42}));
}

TEST(captured, surroundings_are_read_anew_whatever_is_computed_of_them) {
  Tensor w = numbers({1, 2});
  w.realize();
  CapturedFunction f([&](const Tensors& x) { return Tensors{x[0] * w.exp2() + (w + 1) * 10}; },
                     {numbers({1, 1})}, {w});
  EXPECT_EQ(listed(f({numbers({1, 1}), w})[0]), (std::vector<float>{22, 34}));
  w.assign(numbers({3, 0}));
  EXPECT_EQ(listed(f({numbers({1, 1}), w})[0]), (std::vector<float>{48, 11}));
  EXPECT_EQ(listed(f({numbers({1, 1}), numbers({0, 0})})[0]), (std::vector<float>{11, 11}));
}

// What was computed before from the same memory by an equal function is no answer for other memory.
TEST(captured, an_equal_function_that_ran_before_changes_nothing) {
  const Tensor a = numbers({1, 2}), b = numbers({3, 4});
  auto twice = [](const Tensors& x) { return Tensors{x[0] * 2}; };
  CapturedFunction first(twice, {a});
  EXPECT_EQ(listed(first({a})[0]), (std::vector<float>{2, 4}));
  const Tensors kept = first({a});
  CapturedFunction second(twice, {a});
  EXPECT_EQ(listed(second({b})[0]), (std::vector<float>{6, 8}));
  EXPECT_EQ(listed(second({a})[0]), (std::vector<float>{2, 4}));
}

TEST(captured, what_is_no_description_is_refused) {
  const Tensor a = numbers({1, 2}), other = numbers({5, 5});
  auto capture = [&](const transforms::Function& f) { CapturedFunction made(f, {a}); };
  expect_error([&] { capture([&](const Tensors& x) { return Tensors{x[0] + other}; }); },
               {"neither an argument", "(2,)"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0] + Tensor::rand({2})}; }); },
               {"rand", "captured", "under a key"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0] * x[0].sum().item()}; }); },
               {"inside of the function traced"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0]}; }); },
               {"result 0", "clone()"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0] + 1, x[0][0]}; }); },
               {"result 1"});
  expect_error(
      [&] {
        capture([](const Tensors& x) {
          Tensor t = x[0];
          t.setitem({0}, 3);
          return Tensors{t + 1};
        });
      },
      {"assigns to an argument"});
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] + x[1]}; }, {a, other});
  expect_error([&] { (void)f({a, numbers({1, 2, 3})}); }, {"argument 1", "(3,)"});
  expect_error([&] { (void)f({a, a}); }, {"one value"});
  expect_error([&] { (void)f({a}); }, {"2 arguments"});
  EXPECT_EQ(listed(f({a, other})[0]), (std::vector<float>{6, 7}));
}

TEST(captured, a_position_out_of_range_is_an_error_and_the_next_call_works) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0].index_select(0, x[1])}; },
                     {numbers({1, 2}), Tensor::from<int>({0})});
  expect_error([&] { (void)f({numbers({5, 6}), Tensor::from<int>({7})}); }, {"position", "7"});
  EXPECT_EQ(listed(f({numbers({5, 6}), Tensor::from<int>({1})})[0]), (std::vector<float>{6}));
}

TEST(captured, empty_arguments_and_results) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] * 2, x[0].sum()}; },
                     {Tensor::zeros({0, 3})});
  const Tensors out = f({Tensor::zeros({0, 3})});
  EXPECT_EQ(out[0].shape(), (Shape{0, 3}));
  EXPECT_EQ(out[1].item(), 0);
}

// --- memory of others ----------------------------------------------------------------------------

TEST(borrowed, memory_is_read_where_it_lies_and_let_go_with_its_last_reader) {
  auto owner = std::make_shared<std::vector<float>>(1000);
  std::iota(owner->begin(), owner->end(), 0.0F);
  const float* const data = owner->data();
  std::weak_ptr<std::vector<float>> alive = owner;
  Tensor x = Tensor::borrow(data, {10, 100}, DType::Float32, std::move(owner));
  EXPECT_EQ(reinterpret_cast<const float*>(x.data().get()), data);
  Tensor y = x.sum(0);
  x = Tensor();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(y.tolist<float>()[1], 4510);
  y = Tensor();
  EXPECT_TRUE(alive.expired());
}

TEST(borrowed, no_assignment_writes_there) {
  std::vector<float> values{1, 2, 3, 4};
  Tensor x = Tensor::borrow(values.data(), {4}, DType::Float32, nullptr);
  x.setitem({0}, 9);
  x.realize();
  x.setitem({Slice{1, 3}}, 8);
  x.realize();
  EXPECT_EQ(listed(x), (std::vector<float>{9, 8, 8, 4}));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
  expect_error(
      [&] {
        (void)Tensor::borrow(reinterpret_cast<char*>(values.data()) + 1, {2}, DType::Float32,
                             nullptr);
      },
      {"borrow", "aligned"});
}

TEST(borrowed, what_data_shows_stays_while_somebody_looks) {
  Tensor x = numbers({1, 2, 3});
  x.realize();
  auto shown = x.data();
  const auto* const at = reinterpret_cast<const float*>(shown.get());
  x.setitem({1}, 50);
  x.realize();
  EXPECT_EQ(at[1], 2);
  EXPECT_EQ(listed(x), (std::vector<float>{1, 50, 3}));
  shown.reset();
  const auto before = reinterpret_cast<const float*>(x.data().get());
  x.setitem({1}, 60);
  x.realize();
  EXPECT_EQ(reinterpret_cast<const float*>(x.data().get()), before);  // in place again
}

}  // namespace koine::test
