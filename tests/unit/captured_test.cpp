// Functions that are captured as steps, and memory that is shared with others.
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/step.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/device.hpp"
#include "koine/tensor/captured.hpp"
#include "koine/tensor/random.hpp"

namespace koine::test {
namespace {

using transforms::Tensors;

Tensor rows(int64_t count, int64_t width = 3) {
  std::vector<float> values;
  for (int64_t i = 0; i < count * width; ++i)
    values.push_back(static_cast<float>(i * 7 % 11) - 4.5F);
  return Tensor::from(values, {count, width});
}

}  // namespace

TEST(captured, spec_L9_a_call_is_one_submission_of_what_was_compiled_once) {
  CapturedFunction f([](const Tensors& x) { return Tensors{(x[0] * 2 + x[1]).sum(), x[0] - x[1]}; },
                     {vector_of({1, 2}), vector_of({3, 4})});
  const Tensor a = vector_of({5, 6}), b = vector_of({7, 8});
  (void)f({a, b});
  reset_counters();
  const Tensors out = f({b, a});
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_EQ(out[0].item(), 41);
  EXPECT_EQ(listed(out[1]), (std::vector<float>{2, 2}));
  EXPECT_EQ(listed(f({a, b})[1]), (std::vector<float>{-2, -2}));
}

TEST(captured, results_belong_to_whoever_has_them) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] + 1}; }, {vector_of({1})});
  Tensor first = f({vector_of({1})})[0];
  const auto shown = first.data();
  const Tensor second = f({vector_of({2})})[0];
  first += 100;
  EXPECT_EQ(listed(first), (std::vector<float>{102}));
  EXPECT_EQ(listed(second), (std::vector<float>{3}));
  EXPECT_EQ(*reinterpret_cast<const float*>(shown.get()), 2);
}

// Neither of arguments that are computed with nor of one that is not.
TEST(captured, what_a_function_writes_into_is_memory_of_each_call) {
  CapturedFunction f(
      [](const Tensors& x) {
        Tensor t = x[0] * 1;
        t.setitem({0}, x[0][1]);
        return Tensors{t};
      },
      {vector_of({1, 2})});
  const Tensor first = f({vector_of({1, 2})})[0], second = f({vector_of({3, 4})})[0];
  EXPECT_EQ(listed(first), (std::vector<float>{2, 2}));
  EXPECT_EQ(listed(second), (std::vector<float>{4, 4}));
}

TEST(captured, the_memory_of_the_examples_is_let_go) {
  std::vector<std::weak_ptr<Memory>> memory;
  std::optional<CapturedFunction> f;
  {
    const Tensors examples{vector_of({1, 2}).realize(), vector_of({3}).realize()};
    for (const Tensor& t : examples) memory.push_back(memory_of(t.uop()));
    f.emplace([](const Tensors& x) { return Tensors{x[0] * 2}; }, examples);
  }
  EXPECT_EQ(listed((*f)({vector_of({5, 6}), vector_of({7})})[0]), (std::vector<float>{10, 12}));
  for (const auto& m : memory) EXPECT_TRUE(m.expired());
}

TEST(captured, gradients_go_through_a_result) {
  Tensor w = vector_of({2, 3}).requires_grad();
  CapturedFunction f([](const Tensors& x) { return Tensors{(x[0] * x[0] * x[1]).sum()}; },
                     {w, vector_of({1, 1})});
  f({w, vector_of({5, 7})})[0].backward();
  EXPECT_EQ(listed(w.grad()), (std::vector<float>{20, 42}));
}

TEST(captured, surroundings_are_read_anew_whatever_is_computed_of_them) {
  Tensor w = vector_of({1, 2});
  w.realize();
  CapturedFunction f([&](const Tensors& x) { return Tensors{x[0] * w.exp2() + (w + 1) * 10}; },
                     {vector_of({1, 1})}, {w});
  EXPECT_EQ(listed(f({vector_of({1, 1}), w})[0]), (std::vector<float>{22, 34}));
  w.assign(vector_of({3, 0}));
  EXPECT_EQ(listed(f({vector_of({1, 1}), w})[0]), (std::vector<float>{48, 11}));
  EXPECT_EQ(listed(f({vector_of({1, 1}), vector_of({0, 0})})[0]), (std::vector<float>{11, 11}));
}

// What was computed before from the same memory by an equal function is no answer for other memory.
TEST(captured, an_equal_function_that_ran_before_changes_nothing) {
  const Tensor a = vector_of({1, 2}), b = vector_of({3, 4});
  auto twice = [](const Tensors& x) { return Tensors{x[0] * 2}; };
  CapturedFunction first(twice, {a});
  EXPECT_EQ(listed(first({a})[0]), (std::vector<float>{2, 4}));
  const Tensors kept = first({a});
  CapturedFunction second(twice, {a});
  EXPECT_EQ(listed(second({b})[0]), (std::vector<float>{6, 8}));
  EXPECT_EQ(listed(second({a})[0]), (std::vector<float>{2, 4}));
}

TEST(captured, what_is_no_description_is_refused) {
  const Tensor a = vector_of({1, 2}), other = vector_of({5, 5});
  auto capture = [&](const transforms::Function& f) { CapturedFunction made(f, {a}); };
  expect_error([&] { capture([&](const Tensors& x) { return Tensors{x[0] + other}; }); },
               {"neither an argument", "(2,)"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0] * x[0].sum().item()}; }); },
               {"inside of the function traced"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0]}; }); },
               {"result 0", "clone()"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0] + 1, x[0][0]}; }); },
               {"result 1"});
  expect_error(
      [&] {
        capture([&](const Tensors& x) {
          CapturedFunction inner([](const Tensors& y) { return Tensors{y[0] + 1}; }, {a});
          return Tensors{x[0] + 1};
        });
      },
      {"capturing a function", "inside of the function traced"});
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] + x[1]}; }, {a, other});
  expect_error([&] { (void)f({a, vector_of({1, 2, 3})}); }, {"argument 1", "(3,)"});
  expect_error([&] { (void)f({a, a}); }, {"one value"});
  expect_error([&] { (void)f({a}); }, {"2 arguments"});
  EXPECT_EQ(listed(f({a, other})[0]), (std::vector<float>{6, 7}));
}

TEST(captured, a_position_out_of_range_is_an_error_and_the_next_call_works) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0].index_select(0, x[1])}; },
                     {vector_of({1, 2}), Tensor::from<int>({0})});
  expect_error([&] { (void)f({vector_of({5, 6}), Tensor::from<int>({7})}); }, {"position", "7"});
  EXPECT_EQ(listed(f({vector_of({5, 6}), Tensor::from<int>({1})})[0]), (std::vector<float>{6}));
}

TEST(captured, empty_arguments_and_results) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0] * 2, x[0].sum()}; },
                     {Tensor::zeros({0, 3})});
  const Tensors out = f({Tensor::zeros({0, 3})});
  EXPECT_EQ(out[0].shape(), (Shape{0, 3}));
  EXPECT_EQ(out[1].item(), 0);
}

// --- dynamic axes --------------------------------------------------------------------------------

TEST(captured, one_program_serves_all_sizes_of_a_dynamic_axis) {
  const auto compute = [](const Tensors& x) {
    return Tensors{(x[0] * 2 + x[1]).softmax(0), x[0].sum(0), x[0].matmul(x[0].transpose())};
  };
  in_both_modes([&] {
    CapturedFunction f(compute, {rows(5), vector_of({1, 2, 3})}, {},
                       {{0, 0, Variable("n", 1, 400)}});
    for (const int64_t k : {5, 2, 7, 399, 33, 400}) {
      SCOPED_TRACE(k);
      const Tensor x = rows(k).realize(), y = vector_of({1, 2, 3}).realize();
      reset_counters();
      const Tensors got = f({x, y}), want = compute({x, y});
      EXPECT_EQ(counters().compiled, 0);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].shape(), want[i].shape());
        EXPECT_EQ(memory_of(realized_buffer(got[i].uop()))->bytes(), int64_t{want[i].numel()} * 4);
        const auto a = listed(got[i]), b = listed(want[i]);
        for (size_t j = 0; j < b.size(); ++j)
          ASSERT_NEAR(a[j], b[j], options().strict ? 0 : 1e-4) << i << ", " << j;
      }
    }
  });
}

TEST(captured, several_dynamic_axes_and_values_given_twice) {
  const Variable n("n", 2, 50), m("m", 2, 50);
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0].matmul(x[1]), x[1] + x[2]}; },
                     {rows(5, 4), rows(4, 6), rows(4, 6)}, {},
                     {{0, 0, n}, {0, 1, m}, {1, 0, m}, {2, 0, m}});
  const Tensor a = rows(3, 7), b = rows(7, 6), c = b + 1;
  const Tensors out = f({a, b, c});
  EXPECT_EQ(listed(out[0]), listed(a.matmul(b)));
  EXPECT_EQ(listed(out[1]), listed(b + c));
  expect_error([&] { (void)f({a, b, rows(8, 6)}); }, {"'m'", "7", "8"});
  expect_error([&] { (void)f({a, b, b}); }, {"one value"});
  expect_error([&] { (void)f({rows(51, 7), b, c}); }, {"'n'", "51", "2 to 50"});
  expect_error([&] { (void)f({rows(1, 7), b, c}); }, {"'n'", "1", "2 to 50"});
  expect_error([&] { (void)f({a, rows(7, 5), c}); }, {"other shapes", "argument 1"});
  expect_error([&] { (void)f({vector_of({1, 2, 3}), b, c}); }, {"axis 1", "(3,)"});
  EXPECT_EQ(listed(f({a, b, c})[0]), listed(a.matmul(b)));
}

TEST(captured, gradients_go_through_results_of_a_dynamic_size) {
  const auto compute = [](const Tensors& x) {
    return Tensors{(x[0] * x[1]).tanh(), x[0].softmax(0).sum(1)};
  };
  Tensor w = vector_of({1, 2, 3}).requires_grad();
  CapturedFunction f(compute, {rows(5), w}, {}, {{0, 0, Variable("n", 1, 100)}});
  for (const int64_t k : {5, 9, 2}) {
    const Tensor x = rows(k).realize();
    const auto loss = [&](const Tensors& y) { return y[0].square().sum() + y[1][0]; };
    const auto got = loss(f({x, w})).gradient({x, w}),
               want = loss(compute({x, w})).gradient({x, w});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got[i].shape(), want[i].shape());
      const auto a = listed(got[i]), b = listed(want[i]);
      for (size_t j = 0; j < b.size(); ++j) ASSERT_NEAR(a[j], b[j], 1e-5);
    }
  }
}

// Nobody may decide by a size that one program serves: the answer would be that of some.
TEST(captured, what_a_dynamic_size_leaves_open_is_refused) {
  const Variable n("n", 1, 100);
  const Tensor twelve = rows(12).realize();
  auto capture = [&](const transforms::Function& f) {
    CapturedFunction made(f, {rows(5)}, {twelve}, {{0, 0, n}});
  };
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0].split(2)[0]}; }); },
               {"split", "any number from 2 to 100"});
  expect_error([&] { capture([](const Tensors& x) { return Tensors{x[0][2] + 1}; }); },
               {"position 2", "(n, 3)"});
  expect_error(
      [&] {
        capture(
            [](const Tensors& x) { return Tensors{x[0][{Slice{1, {}}, Slice{0, 1}}].squeeze()}; });
      },
      {"n+-1", "any number from 1 to 99"});
  expect_error([&] { capture([&](const Tensors& x) { return Tensors{x[0] + twelve}; }); },
               {"broadcast", "(n, 3)"});
  expect_error(
      [&] {
        capture([](const Tensors& x) { return Tensors{x[0].argmax(0) + x[0].size(0).present()}; });
      },
      {"any number from 2 to 100"});
  // The function's own Variable would meet the size of each call.
  expect_error(
      [&] {
        capture([](const Tensors& x) {
          return Tensors{x[0] + Tensor::arange(Variable("n", 2, 100).bind(5)).sum()};
        });
      },
      {"'n'", "another name"});
  expect_error(
      [&] { capture([](const Tensors& x) { return Tensors{Tensor::arange(x[0].size(0))}; }); },
      {"'n'", "reads nothing"});
  expect_error([&] { CapturedFunction({}, {rows(5)}, {}, {{0, 2, n}}); }, {"axis 2"});
  expect_error([&] { CapturedFunction({}, {rows(5)}, {}, {{1, 0, n}}); }, {"argument 1"});
  expect_error([&] { CapturedFunction({}, {rows(1)}, {}, {{0, 0, Variable("n", 0, 1)}}); },
               {"'n'", "at most 1"});
}

// Sizes inside may be 0 or 1 where those of arguments are not; sums of one element keep its sign.
TEST(captured, sizes_that_follow_and_are_none_or_one_want_a_function_of_their_own) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0][Slice{1, -1}].sum(0)}; }, {rows(5)},
                     {}, {{0, 0, Variable("n", 1, 100)}});
  EXPECT_TRUE(f.serves({rows(4)}));
  EXPECT_FALSE(f.serves({rows(3)}));
  EXPECT_FALSE(f.serves({rows(2)}));
  CapturedFunction g([](const Tensors& x) { return Tensors{x[0].sum(0)}; }, {rows(5)}, {},
                     {{0, 0, Variable("n", 1, 100)}});
  EXPECT_TRUE(g.serves({rows(2)}));
}

TEST(captured, a_position_beyond_a_dynamic_size_is_an_error_and_the_next_call_works) {
  CapturedFunction f([](const Tensors& x) { return Tensors{x[0].index_select(0, x[1])}; },
                     {rows(5), Tensor::from<int>({0})}, {}, {{0, 0, Variable("n", 1, 100)}});
  const Tensor at = Tensor::from<int>({6});
  expect_error([&] { (void)f({rows(6), at}); }, {"position 6", "size 6"});
  EXPECT_EQ(listed(f({rows(7), at})[0]), listed(rows(7)[Slice{6, 7}]));
}

namespace {

// Memory that ends where a page begins that nobody may touch.
UOp guarded(const UOp& shape, const UOp& like) {
  const DType dtype = like.dtype();
  const UOp buffer = new_buffer(shape, dtype, like.device());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<size_t>(buffer.numel() * item_size(dtype));
  const size_t used = (bytes + page - 1) / page * page, all = used + page;
  void* const begin =
      mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(begin, MAP_FAILED);
  auto* const end = static_cast<std::byte*>(begin) + used;
  EXPECT_EQ(mprotect(end, page, PROT_NONE), 0);
  storage::set_memory(buffer, borrowed_memory(end - bytes, static_cast<int64_t>(bytes),
                                              {begin, [all](void* m) { munmap(m, all); }}));
  return buffer;
}

}  // namespace

// Memory of a dynamic size ends with the last element of this call.
TEST(captured, nothing_beyond_a_dynamic_size_is_touched) {
  const Variable n("n", 2, 300);
  const Tensor w = rows(9, 5).realize();
  using Compute = std::function<Tensor(const Tensor&)>;
  const std::map<std::string, Compute> computations = {
      {"elementwise", [](const Tensor& x) { return (x * 2 + 1).relu(); }},
      {"narrow", [](const Tensor& x) { return x.cast(DType::Int8); }},
      {"rows", [](const Tensor& x) { return x.softmax(1); }},
      {"columns", [](const Tensor& x) { return x.softmax(0); }},
      {"sum", [](const Tensor& x) { return x.sum(0); }},
      {"sums", [](const Tensor& x) { return x.sum(1); }},
      {"all", [](const Tensor& x) { return x.max(); }},
      {"product", [&](const Tensor& x) { return x.matmul(w); }},
      {"square", [](const Tensor& x) { return x.matmul(x.transpose()); }},
      {"inner", [](const Tensor& x) { return x.transpose().matmul(x); }},
      {"transposed", [](const Tensor& x) { return x.transpose().contiguous(); }},
      {"flipped", [](const Tensor& x) { return x.flip({0, 1}) + x; }},
      {"joined", [](const Tensor& x) { return Tensor::cat({x, x * 2}, 0); }},
      {"joined columns", [](const Tensor& x) { return Tensor::cat({x.exp(), x}, 1); }},
      {"padded", [](const Tensor& x) { return x.pad({{1, 2}, {0, 3}}); }},
      {"running", [](const Tensor& x) { return x.cumsum(0); }},
      {"picked",
       [](const Tensor& x) {
         return x.index_select(0, x.size(0) - 1 - Tensor::arange(x.size(0)).cast(DType::Int64));
       }},
      {"two kernels", [](const Tensor& x) { return (x * 2).contiguous().flip({0}).contiguous(); }},
      {"elsewhere", [](const Tensor& x) { return (x + 1).to("CPU:1") * 2; }}};
  in_both_modes([&] {
    for (const auto& [name, compute] : computations) {
      SCOPED_TRACE(name);
      UOp x = new_buffer(stack(std::vector<UOp>{n.uop(), index_const(9)}), DType::Float32,
                         Device("CPU"));
      storage::set_memory(x, memory_of(rows(300, 9).realize().uop()));
      CapturedStep step({compute(Tensor(x)).uop()}, {{"n", 300}});
      for (const int64_t k : {2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 300}) {
        SCOPED_TRACE(k);
        step.bind("n", k);
        const Tensor given = rows(k, 9).realize();
        const UOp input = guarded(shape_of({k, 9}), x), output = step.outputs()[0];
        memory_of(given.uop())->copy_out(memory_of(input)->data(), 0, k * 9 * 4);
        step.replace(x, input);
        x = input;
        const Tensor expected = compute(given);
        step.replace(output, guarded(expected.uop().shape(), output));
        step.run();
        const auto got = Tensor(step.outputs()[0]).tolist<double>(),
                   want = expected.tolist<double>();
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], options().strict ? 0 : 1e-4) << i;
      }
    }
  });
}

// --- memory of others ----------------------------------------------------------------------------

TEST(borrowed, memory_is_read_where_it_lies_and_let_go_with_its_last_reader) {
  auto owner = std::make_shared<std::vector<float>>(1000);
  std::iota(owner->begin(), owner->end(), 0.0F);
  const float* const data = owner->data();
  std::weak_ptr<std::vector<float>> alive = owner;
  Tensor x = Tensor::borrow(data, {10, 100}, DType::Float32, std::move(owner));
  EXPECT_EQ(reinterpret_cast<const float*>(x.data().get()), data);
  EXPECT_EQ(memory_of(x.uop())->bytes(), 4000);
  Tensor y = x.sum(0);
  x = Tensor();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(y.tolist<float>()[1], 4510);
  y = Tensor();
  EXPECT_TRUE(alive.expired());
}

// Each is held while the next is made, which is an equal expression.
TEST(borrowed, what_was_computed_stays_and_an_equal_expression_reads_what_there_is) {
  std::vector<float> values{1, 2, 3, 4};
  const Tensor x = Tensor::borrow(values.data(), {4}, DType::Float32, nullptr);
  Tensor w = vector_of({1, 2, 3, 4});
  w.requires_grad();
  const std::vector<std::function<Tensor()>> makes{[&] { return x + 1; },
                                                   [&] { return (x + 1) * 2; },
                                                   [&] { return x.sum(); },
                                                   [&] { return x.clone(); },
                                                   [&] { return w * x; },
                                                   [&] { return (w * x).sum(); },
                                                   [&] { return x.to("CPU:1").to("CPU"); }};
  for (const auto& make : makes) {
    std::fill(values.begin(), values.end(), 1.0F);
    const Tensor first = make(), realized = make().realize();
    const std::vector<float> was = listed(first);
    EXPECT_EQ(listed(make()), was);
    std::fill(values.begin(), values.end(), 5.0F);
    const Tensor second = make();
    const std::vector<float> is = listed(second);
    EXPECT_NE(is, was);
    EXPECT_EQ(is, listed(make()));
    values = {7, 7, 7, 7};
    EXPECT_EQ(listed(first), was);
    EXPECT_EQ(listed(realized), was);
    EXPECT_EQ(listed(second), is);
    EXPECT_NE(listed(make()), is);
  }
  EXPECT_EQ(listed(w * x), (std::vector<float>{7, 14, 21, 28}));
}

TEST(borrowed, what_is_assigned_and_a_gradient_are_values_of_their_own) {
  std::vector<float> values{1, 2, 3, 4};
  const Tensor x = Tensor::borrow(values.data(), {4}, DType::Float32, nullptr);
  Tensor w = vector_of({1, 2, 3, 4}), state = vector_of({0, 0, 0, 0}),
         other = vector_of({0, 0, 0, 0});
  w.requires_grad();
  other.requires_grad();
  state.assign(x);
  other.set_grad(x);
  const Tensor loss = (w * x).sum(), slope = loss.gradient({w})[0];
  loss.backward();
  const std::vector<Tensor> kept{state, other.grad(), slope, w.grad()};
  for (const Tensor& t : kept) EXPECT_EQ(listed(t), (std::vector<float>{1, 2, 3, 4}));
  values = {5, 6, 7, 8};
  for (const Tensor& t : kept) EXPECT_EQ(listed(t), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(listed(x), values);
}

TEST(borrowed, a_view_shows_what_there_is_whoever_has_looked) {
  std::vector<float> values{1, 2, 3, 4};
  const Tensor x = Tensor::borrow(values.data(), {4}, DType::Float32, nullptr);
  const Tensor view = x.flip({0}), part = x.shrink({{1, 3}});
  EXPECT_EQ(listed(view), (std::vector<float>{4, 3, 2, 1}));
  EXPECT_EQ(listed(part), (std::vector<float>{2, 3}));
  const Tensor twice = view * 2;
  EXPECT_EQ(listed(twice), (std::vector<float>{8, 6, 4, 2}));
  values = {5, 6, 7, 8};
  EXPECT_EQ(listed(view), (std::vector<float>{8, 7, 6, 5}));
  EXPECT_EQ(listed(part), (std::vector<float>{6, 7}));
  EXPECT_EQ(listed(twice), (std::vector<float>{8, 6, 4, 2}));
  EXPECT_EQ(listed(view * 2), (std::vector<float>{16, 14, 12, 10}));
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

TEST(borrowed, a_captured_function_reads_what_there_is_now) {
  std::vector<float> values{1, 2, 3, 4};
  const Tensor x = Tensor::borrow(values.data(), {4}, DType::Float32, nullptr);
  const Tensor lazy = x + 1;
  Tensor state = vector_of({0, 0, 0, 0});
  state.assign(x * 3);
  const Tensor of_state = state + x;
  CapturedFunction f([](const Tensors& a) { return Tensors{a[0] + a[1] + a[2]}; },
                     {lazy, x, of_state});
  EXPECT_EQ(listed(f({lazy, x, of_state})[0]), (std::vector<float>{7, 13, 19, 25}));
  std::fill(values.begin(), values.end(), 10.0F);
  // What was assigned has been computed with what read it.
  EXPECT_EQ(listed(f({lazy, x, of_state})[0]), (std::vector<float>{34, 37, 40, 43}));
  EXPECT_EQ(listed(state), (std::vector<float>{3, 6, 9, 12}));
}

TEST(borrowed, what_data_shows_stays_while_somebody_looks) {
  Tensor x = vector_of({1, 2, 3});
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
