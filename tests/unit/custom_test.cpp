// Kernels made by hand and functions of the host in tensor graphs (rows B13 and X4).
#include <atomic>
#include <cmath>
#include <thread>

#include "check.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/step.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/schedule.hpp"
#include "remote_device.hpp"
#include "to_cpp.hpp"

namespace koine::test {
namespace {

using Params = std::vector<UOp>;
using Floats = std::vector<float>;

UOp loop(int64_t id, const UOp& size) { return range(id, size, AxisType::Loop); }
UOp real(double v) { return constant(DType::Float32, v); }

// 2 x + y, elements of any shape.
Tensor axpy(const Tensor& x, const Tensor& y) {
  return custom_kernel("test.axpy", CallResult{x.shape()}, {x, y}, [](const Params& p) {
    std::vector<UOp> at;
    for (size_t k = 0; k < p[0].rank(); ++k)
      at.push_back(loop(static_cast<int64_t>(k), p[0].dim(k)));
    const UOp sum = add(mul(real(2), index(p[1], at)), index(p[2], at));
    return sink({end(store(index(p[0], at), sum), at)});
  });
}

Tensor product(const Tensor& a, const Tensor& b) {
  return custom_kernel(
      "test.product", CallResult{{a.size(0), b.size(1)}}, {a, b}, [](const Params& p) {
        const UOp i = loop(0, p[0].dim(0)), j = loop(1, p[0].dim(1));
        const UOp k = range(2, p[1].dim(1), AxisType::Reduce);
        const UOp sum = reduce_ranges(Op::Add, mul(index(p[1], {i, k}), index(p[2], {k, j})), {k});
        return sink({end(store(index(p[0], {i, j}), sum), {i, j})});
      });
}

Floats list(const Tensor& t) { return t.tolist<float>(); }
Tensor ramp(int64_t n) { return Tensor::arange(n).cast(DType::Float32); }

// Squares; counts how often it runs.
std::atomic<int>& square_runs() {
  static std::atomic<int> runs = 0;
  return runs;
}
Tensor square(const Tensor& x) {
  static const bool known = [] {
    register_function("test.square",
                      [](std::span<const HostResult> out, std::span<const HostArgument> in) {
                        ++square_runs();
                        const auto from = in[0].as<float>();
                        const auto to = out[0].as<float>();
                        for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] * from[i];
                      });
    return true;
  }();
  (void)known;
  return call_function("test.square", CallResult{x.shape()}, {x});
}

}  // namespace

TEST(custom, spec_B13_a_kernel_made_by_hand_is_called_with_three_buffers) {
  in_both_modes([] {
    const Tensor x = Tensor::from<float>({1, 2, 3}), y = Tensor::from<float>({10, 20, 30});
    const Tensor c = axpy(x, y);
    const std::vector<Kernel> kernels = schedule({c.uop()});
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(kernels[0].buffers.size(), 3u);
    EXPECT_EQ(list(c), (Floats{12, 24, 36}));
    // Its arguments are lazy, and its result goes on.
    EXPECT_EQ(list(axpy(x + 1, x * y) * 10 + x), (Floats{141, 462, 983}));
    // NaN, infinities and -0 go through.
    const Floats odd =
        list(axpy(Tensor::from<float>({inf, -0.0f, NAN}), Tensor::from<float>({-inf, -0.0f, 1})));
    EXPECT_TRUE(std::isnan(odd[0]) && std::signbit(odd[1]) && odd[1] == 0 && std::isnan(odd[2]));
    EXPECT_EQ(axpy(Tensor::zeros({0, 3}), Tensor::zeros({0, 3})).tolist<float>().size(), 0u);
    EXPECT_EQ(axpy(Tensor(2.0), Tensor(3.0)).item(), 7);
  });
}

TEST(custom, spec_B13_equals_the_interpreter_everywhere) {
  const Tensor a(leaf({6, 5})), b(leaf({5, 7}, DType::Float32, 1));
  expect_same_everywhere(product(a, b));
  expect_same_everywhere(product(a.exp(), b).softmax());
  expect_same_everywhere(axpy(product(a, b), product(a, b).flip({0})).sum(0));
  expect_same_everywhere(axpy(a.pad({{0, 1}, {0, 0}}), Tensor::ones({7, 5})));
  expect_same_everywhere(axpy(a.T(), a[Slice{0, 5}].T().contiguous().pad({{0, 0}, {0, 1}})));
}

TEST(custom, spec_B13_views_are_copied_and_results_are_viewed) {
  in_both_modes([] {
    const Tensor x = ramp(6).reshape({2, 3}).realize(), y = Tensor::ones({3, 2}).realize();
    const Tensor c = axpy(x.T(), y);
    EXPECT_EQ(list(c), (Floats{1, 7, 3, 9, 5, 11}));
    EXPECT_EQ(list(c.T()[1]), (Floats{7, 9, 11}));
    EXPECT_EQ(list(axpy(x[1], x[0].flip({0}))), (Floats{8, 9, 10}));
    EXPECT_EQ(list(axpy(Tensor::ones({3}), x[1][Slice{0, 1}].expand({3}))), (Floats{5, 5, 5}));
    // Memory holds 0 for what a Pad without fill leaves open.
    const Tensor open(pad((y * 3).uop(), shape_of({1, 0}), shape_of({5, 2})));
    EXPECT_EQ(list(axpy(open, Tensor::ones({5, 2}))), (Floats{1, 1, 7, 7, 7, 7, 7, 7, 1, 1}));
    expect_same_everywhere(axpy(open, Tensor::ones({5, 2})));
  });
}

TEST(custom, spec_B13_a_call_runs_once_for_all_its_readers) {
  const Tensor x = Tensor::rand({64}).realize(), y = Tensor::rand({64}).realize();
  const Tensor c = axpy(x, y), d = axpy(x, y);
  EXPECT_EQ(c.uop(), d.uop()) << "equal calls are one node";
  const std::vector<UOp> wanted{c.uop(), (c.sum() + d.max()).uop(), (c + 1).uop()};
  int64_t calls = 0;
  for (const Kernel& k : schedule(wanted)) calls += k.ast.arg().index() != 0 ? 1 : 0;
  EXPECT_EQ(calls, 1);
  const Floats got = list(c), plus = list(c + 1), xs = list(x), ys = list(y);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], 2 * xs[i] + ys[i]);
    EXPECT_EQ(plus[i], got[i] + 1);
  }
  // Two calls that share an argument: it is computed once.
  const Tensor shared = (x.exp() + y.exp()).sqrt();
  EXPECT_EQ(kernel_count({axpy(shared, x) + axpy(y, shared)}), 4) << "the argument, calls, the sum";
}

TEST(custom, spec_B13_its_registered_gradient_is_used) {
  register_gradient("test.product", [](const CallGradient& c) -> std::vector<Tensor> {
    return {c.gradients[0].matmul(c.arguments[1].T()), c.arguments[0].T().matmul(c.gradients[0])};
  });
  in_both_modes([] {
    const Tensor a0 = ramp(6).reshape({2, 3}), b0 = (ramp(12) - 5).reshape({3, 4});
    auto gradients = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& multiply) {
      Tensor a = a0.clone().requires_grad(), b = b0.clone().requires_grad();
      const Tensor c = multiply(a * 2, b);
      (c.square().sum() + c[0].sum()).backward();
      return std::pair(list(a.grad()), list(b.grad()));
    };
    const auto by_hand = gradients(product);
    const auto plain = gradients([](const Tensor& a, const Tensor& b) { return a.matmul(b); });
    EXPECT_EQ(by_hand.first, plain.first);
    EXPECT_EQ(by_hand.second, plain.second);
    EXPECT_EQ(plain.first.size(), 6u);
    // Where only one argument is asked for.
    const Tensor a = a0.realize(), b = b0.realize();
    EXPECT_EQ(list(product(a, b).sum().gradient({b})[0]), list(a.matmul(b).sum().gradient({b})[0]));
    // Of the gradient: d/db of the square of d(sum(a b))/da.
    auto second = [&](const Tensor& c) {
      const Tensor da = c.square().sum().gradient({a})[0];
      return list(da.square().sum().gradient({b})[0]);
    };
    EXPECT_EQ(second(product(a, b)), second(a.matmul(b)));
  });
}

TEST(custom, spec_B13_without_a_gradient_the_error_names_it) {
  Tensor x = Tensor::from<float>({1, 2, 3}).requires_grad();
  const Tensor c = axpy(x, Tensor::ones({3}));
  expect_error([&] { c.sum().backward(); }, {"kernel 'test.axpy'", "float32 (3,)", "no gradient",
                                             "register_gradient", "detach()"});
  EXPECT_EQ(list(c), (Floats{3, 5, 7})) << "the value is there all the same";
  expect_error([&] { square(x).sum().backward(); }, {"function 'test.square'", "no gradient"});
  const Tensor positions = (x * 2).cast(DType::Int32).cast(DType::Float32);
  (x.sum() + axpy(x.detach(), positions).sum()).backward();
  EXPECT_EQ(list(x.grad()), (Floats{1, 1, 1}));
}

TEST(custom, spec_B13_a_gradient_that_does_not_fit_is_an_error) {
  Tensor x = Tensor::from<float>({1, 2, 3}).requires_grad();
  auto named = [&](const std::string& name) {
    return custom_kernel(name, CallResult{{3}}, {x}, [](const Params& p) {
      const UOp i = loop(0, p[0].dim(0));
      return sink({end(store(index(p[0], {i}), index(p[1], {i})), {i})});
    });
  };
  register_gradient("test.two", [](const CallGradient& c) {
    return std::vector<Tensor>{c.gradients[0], c.gradients[0]};
  });
  register_gradient("test.scalar", [](const CallGradient& c) {
    return std::vector<Tensor>{c.gradients[0].sum()};
  });
  register_gradient("test.none", [](const CallGradient&) { return std::vector<Tensor>{Tensor()}; });
  expect_error([&] { named("test.two").sum().backward(); },
               {"'test.two'", "2 values", "1 arguments"});
  expect_error([&] { named("test.scalar").sum().backward(); }, {"'test.scalar'", "()", "(3,)"});
  EXPECT_EQ(list(named("test.none").sum().gradient({x})[0]), (Floats{0, 0, 0}));
  expect_error([] { register_gradient("x", nullptr); }, {"register_gradient", "no rule"});
  expect_error(
      [] { register_gradient("", [](const CallGradient&) { return std::vector<Tensor>(); }); },
      {"register_gradient", "name"});
}

TEST(custom, spec_B13_a_kernel_may_have_several_results) {
  auto quotients = [](const Tensor& x) {
    return custom_kernel(
        "test.parts", {{x.shape(), DType::Float32}, {x.shape(), DType::Int32}}, {x},
        [](const Params& p) {
          const UOp i = loop(0, p[0].dim(0)), v = load(index(p[2], {i}));
          const UOp whole = unary(Op::Trunc, v);
          return sink({end(group({store(index(p[0], {i}), sub(v, whole)),
                                  store(index(p[1], {i}), cast(whole, DType::Int32))}),
                           {i})});
        });
  };
  register_gradient("test.parts",
                    [](const CallGradient& c) { return std::vector<Tensor>{c.gradients[0]}; });
  in_both_modes([&] {
    Tensor x = Tensor::from<float>({1.5f, -2.25f, 3}).requires_grad();
    const std::vector<Tensor> parts = quotients(x);
    EXPECT_EQ(list(parts[0] + parts[1]), (Floats{1.5f, -2.25f, 3}));
    EXPECT_EQ(parts[1].tolist<int>(), (std::vector<int>{1, -2, 3})) << "one alone";
    (parts[0] * 3 + parts[1]).sum().backward();
    EXPECT_EQ(list(x.grad()), (Floats{3, 3, 3}));
    expect_same_everywhere(parts[0].detach() * 2 + parts[1]);
  });
}

TEST(custom, spec_B13_what_is_not_stored_is_0_and_what_is_out_of_bounds_reads_0) {
  in_both_modes([] {
    const Tensor x = (ramp(8) + 1).realize();
    // Memory that was used before is found by whoever gets it.
    for (int i = 0; i < 3; ++i) (void)(x * 1000).realize().tolist<float>();
    const Tensor even = custom_kernel("test.even", CallResult{{8}}, {x}, [](const Params& p) {
      const UOp i = loop(0, index_const(4)), at = mul(i, index_const(2));
      return sink({end(store(index(p[0], {at}), index(p[1], {at})), {i})});
    });
    EXPECT_EQ(list(even), (Floats{1, 0, 3, 0, 5, 0, 7, 0}));
    EXPECT_EQ(list(even + even.flip({0})), (Floats{1, 7, 3, 5, 5, 3, 7, 1}));
    const Tensor shifted = custom_kernel("test.shifted", CallResult{{8}}, {x}, [](const Params& p) {
      const UOp i = loop(0, p[0].dim(0)), next = add(i, index_const(3));
      return sink({end(store(index(p[0], {i}), index(p[1], {next})), {i})});
    });
    EXPECT_EQ(list(shifted), (Floats{4, 5, 6, 7, 8, 0, 0, 0}));
    const Tensor moved = custom_kernel("test.moved", CallResult{{8}}, {x}, [](const Params& p) {
      const UOp i = loop(0, p[0].dim(0)), next = sub(i, index_const(6));
      return sink({end(store(index(p[0], {next}), index(p[1], {i})), {i})});
    });
    EXPECT_EQ(list(moved), (Floats{7, 8, 0, 0, 0, 0, 0, 0}));
    const Tensor at = Tensor::from<int>({7, -1, 100, 0});
    const Tensor picked =
        custom_kernel("test.picked", CallResult{{4}}, {x, at}, [](const Params& p) {
          const UOp i = loop(0, p[0].dim(0));
          return sink({end(store(index(p[0], {i}), index(p[1], {index(p[2], {i})})), {i})});
        });
    EXPECT_EQ(list(picked), (Floats{8, 0, 0, 1}));
    for (const Tensor& t : {even, shifted, moved, picked}) expect_same_everywhere(t * 2);
  });
}

TEST(custom, spec_B13_loops_that_meet_run_in_their_order) {
  in_both_modes([] {
    const Tensor x = (ramp(1000) + 1).realize();
    const Tensor last = custom_kernel("test.last", CallResult{{1}}, {x}, [](const Params& p) {
      const UOp i = loop(0, p[1].dim(0));
      return sink({end(store(index(p[0], {index_const(0)}), index(p[1], {i})), {i})});
    });
    EXPECT_EQ(list(last), (Floats{1000}));
    // Two nests, the second of which reads what the first has stored.
    const Tensor twice = custom_kernel("test.twice", CallResult{{1000}}, {x}, [](const Params& p) {
      const UOp i = loop(0, p[0].dim(0)), j = loop(1, p[0].dim(0));
      const UOp first = end(store(index(p[0], {i}), mul(real(2), index(p[1], {i}))), {i});
      const UOp filled = after(p[0], {first});
      return sink({end(store(index(filled, {j}), add(index(filled, {j}), real(1))), {j})});
    });
    EXPECT_EQ(list(twice), list(x * 2 + 1));
  });
}

TEST(custom, spec_B13_loops_of_one_step) {
  in_both_modes([] {
    for (const int64_t n : {1, 5}) {
      const Tensor x = (ramp(n) + 1).reshape({1, n});
      // Sums that go on from the one before, in rows and over an axis of one.
      const Tensor y = custom_kernel("test.single", CallResult{{1, n}}, {x}, [](const Params& p) {
        const UOp i = loop(0, p[0].dim(0)), j = loop(1, p[0].dim(1));
        const UOp k = range(2, p[0].dim(0), AxisType::Reduce);
        const UOp before = index(after(p[0], {i, j}), {i, sub(j, index_const(1))});
        const UOp own = reduce_ranges(Op::Add, load(index(p[1], {k, j})), std::vector<UOp>{k});
        return sink({end(store(index(p[0], {i, j}), add(load(before), own)), {i, j})});
      });
      EXPECT_EQ(list(y), list(x.cumsum(1)));
    }
  });
}

// Folds over as many elements as an outer loop has come to: by what they read they are products of
// triangles, or sums that go on.
TEST(custom, spec_B13_loops_as_long_as_others_have_come_to) {
  in_both_modes([] {
    for (const int64_t n : {1, 2, 3, 9, 32}) {
      const Tensor a = (small({n, n}, 7) * 8).round().realize();  // whole, so that sums are exact
      const Tensor b = (small({n, n}, 8) * 8).round().realize();
      // `bound`: the end of the fold for row i.
      auto rows = [&](const std::function<UOp(const UOp&, int64_t)>& bound,
                      const std::function<UOp(const Params&, const UOp&, const UOp&)>& element) {
        return custom_kernel("test.triangle", CallResult{{n}}, {a, b}, [&](const Params& p) {
          const UOp i = loop(0, p[0].dim(0));
          const UOp k = range(1, bound(i, n), AxisType::Reduce);
          const UOp sum = reduce_ranges(Op::Add, element(p, i, k), {k});
          return sink({end(store(index(p[0], {i}), sum), {i})});
        });
      };
      auto upto = [](const UOp& i, int64_t) { return add(i, index_const(1)); };
      auto again = [](const UOp& i, int64_t) { return add(index_const(1), i); };
      auto from = [](const UOp& i, int64_t size) { return sub(index_const(size), i); };
      auto of_both = [](const Params& p, const UOp& i, const UOp& k) {
        return index(p[1], {i, k});
      };
      auto of_one = [](const Params& p, const UOp&, const UOp& k) {
        return index(p[1], {index_const(0), k});
      };
      auto turned = [](const Params& p, const UOp& i, const UOp& k) {
        return mul(index(p[1], {index_const(0), k}), index(p[2], {index_const(0), sub(i, k)}));
      };
      const Floats x = list(a), y = list(b);
      auto expect = [&](const Tensor& got, auto value, auto steps) {
        Floats want;
        for (int64_t i = 0; i < n; ++i) {
          float sum = 0;
          for (int64_t k = 0; k < steps(i); ++k) sum += value(i, k);
          want.push_back(sum);
        }
        EXPECT_EQ(list(got), want) << n;
        expect_same_everywhere(got);
      };
      auto at = [n](const Floats& v, int64_t i, int64_t k) {
        return v[static_cast<size_t>(i * n + k)];
      };
      auto both = [&](int64_t i, int64_t k) { return at(x, i, k); };
      auto one = [&](int64_t, int64_t k) { return at(x, 0, k); };
      expect(rows(upto, of_both), both, [](int64_t i) { return i + 1; });
      expect(rows(again, of_both), both, [](int64_t i) { return i + 1; });
      expect(rows(from, of_both), both, [n](int64_t i) { return n - i; });
      expect(rows(upto, of_one), one, [](int64_t i) { return i + 1; });
      expect(
          rows(upto, turned), [&](int64_t i, int64_t k) { return at(x, 0, k) * at(y, 0, i - k); },
          [](int64_t i) { return i + 1; });
      const Tensor product =
          custom_kernel("test.lower", CallResult{{n, n}}, {a, b}, [](const Params& p) {
            const UOp i = loop(0, p[0].dim(0)), j = loop(1, p[0].dim(1));
            const UOp k = range(2, add(i, index_const(1)), AxisType::Reduce);
            const UOp sum =
                reduce_ranges(Op::Add, mul(index(p[1], {i, k}), index(p[2], {k, j})), {k});
            return sink({end(store(index(p[0], {i, j}), sum), {i, j})});
          });
      EXPECT_EQ(list(product), list(a.tril().matmul(b))) << n;
      // A loop that is not folded.
      const Tensor corner =
          custom_kernel("test.corner", CallResult{{n, n}}, {a}, [](const Params& p) {
            const UOp i = loop(0, p[0].dim(0)), j = loop(1, sub(p[0].dim(1), i));
            return sink({end(store(index(p[0], {i, j}), index(p[1], {i, j})), {i, j})});
          });
      Floats kept = x;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = n - i; j < n; ++j) kept[static_cast<size_t>(i * n + j)] = 0;
      EXPECT_EQ(list(corner), kept) << n;
    }
  });
}

TEST(custom, spec_B13_local_memory) {
  in_both_modes([] {
    const Tensor x = ramp(8).realize();
    auto turned = [](const Tensor& of) {
      return custom_kernel("test.local", CallResult{{8}}, {of}, [](const Params& p) {
        const UOp i = loop(0, p[0].dim(0)), j = loop(1, p[0].dim(0));
        const UOp local = UOp::make(Op::Buffer, {shape_of({8})},
                                    BufferArg{0, DType::Float32, {}, AddrSpace::Local});
        const UOp filled = end(store(index(local, {i}), load(index(p[1], {i}))), {i});
        const UOp ready = after(local, {UOp::make(Op::Barrier, {filled})});
        const UOp back = sub(index_const(7), j);
        return sink({end(store(index(p[0], {j}), load(index(ready, {back}))), {j})});
      });
    };
    EXPECT_EQ(list(turned(x)), list(x.flip({0})));
    expect_same_everywhere(turned(x + 1) * 2);
    const Tensor other = (x + 1).realize();
    (void)list(turned(x) * 2);
    const int64_t compiled = counters().compiled;
    const Floats back = list(turned(other) * 2);
    EXPECT_EQ(counters().compiled, compiled);
    EXPECT_EQ(back, list(other.flip({0}) * 2));
  });
}

TEST(custom, spec_B13_a_number_that_changes_is_an_argument) {
  const Tensor x = ramp(4).realize();
  int64_t compiled = 0;
  for (int k = 1; k <= 6; ++k) {
    const Tensor y =
        custom_kernel("test.scale", CallResult{{4}}, {x, Tensor(0.5 * k)}, [](const Params& p) {
          const UOp i = loop(0, p[0].dim(0));
          return sink({end(store(index(p[0], {i}), mul(index(p[1], {i}), p[2])), {i})});
        });
    EXPECT_EQ(list(y), list(x * (0.5 * k)));
    if (k == 2) compiled = counters().compiled;
  }
  EXPECT_EQ(counters().compiled, compiled);
}

TEST(custom, spec_B13_loops_of_chosen_types_stay_as_they_are_written) {
  in_both_modes([] {
    const Tensor x = ramp(64).realize();
    const Tensor y = custom_kernel("test.vector", CallResult{{64}}, {x}, [](const Params& p) {
      const UOp i = loop(0, index_const(8)), lane = range(1, index_const(8), AxisType::Upcast);
      const UOp at = add(mul(i, index_const(8)), lane);
      return sink({end(store(index(p[0], {at}), mul(index(p[1], {at}), real(3))), {i, lane})});
    });
    EXPECT_EQ(kernel_count({y}), 1) << "each element is stored: nothing is cleared before";
    EXPECT_NE(to_text(schedule({y.uop()})[0].ast).find("UPCAST"), std::string::npos);
    EXPECT_EQ(list(y), list(x * 3));
    // The same with an element too few.
    const Tensor z = custom_kernel("test.vector", CallResult{{65}}, {x}, [](const Params& p) {
      const UOp i = loop(0, index_const(8)), j = loop(1, index_const(8));
      const UOp at = add(mul(j, index_const(8)), i);
      return sink({end(store(index(p[0], {at}), index(p[1], {at})), {i, j})});
    });
    EXPECT_EQ(kernel_count({z}), 2);
    EXPECT_EQ(list(z), list(x.pad({{0, 1}})));
  });
}

TEST(custom, spec_B13_in_functions_and_captured_steps) {
  const auto f =
      koine::function([](const Tensor& a, const Tensor& b) { return axpy(a, b * 2) + 1; });
  const Tensor x = Tensor::from<float>({1, 2}).realize(), y = Tensor::from<float>({5, 7}).realize();
  EXPECT_EQ(list(f(x, y)), (Floats{13, 19}));
  const auto again = koine::function([&](const Tensor& a) { return a + axpy(x, y); });
  EXPECT_EQ(list(again(y)), (Floats{12, 18})) << "memory of its own, captured";
  CapturedStep step({(axpy(x, y) * 10).uop()});
  step.run();
  EXPECT_EQ(list(Tensor(step.outputs()[0])), (Floats{70, 110}));
  const Tensor z = Tensor::from<float>({0, 1});
  step.replace(x.uop(), z.uop());
  step.run();
  EXPECT_EQ(list(Tensor(step.outputs()[0])), (Floats{50, 90}));
  // A request that looks the same is prepared already.
  const int64_t compiled = counters().compiled;
  EXPECT_EQ(list(axpy(y, z) * 10), (Floats{100, 150}));
  EXPECT_EQ(counters().compiled, compiled);
}

TEST(custom, spec_B13_among_assignments) {
  in_both_modes([] {
    Tensor x = Tensor::from<float>({1, 2, 3, 4}), log = Tensor::zeros({3, 4});
    Floats expected{1, 2, 3, 4};
    std::vector<Floats> rows;
    for (int64_t step = 0; step < 3; ++step) {
      log.setitem({step}, axpy(x, log[step]));
      x.assign(axpy(x, x) - 1);
      x[Slice{0, 2}].assign(axpy(x[Slice{2, 4}], x[Slice{0, 2}]));
      rows.emplace_back();
      for (const float v : expected) rows.back().push_back(2 * v);
      for (float& v : expected) v = 3 * v - 1;
      for (size_t i = 0; i < 2; ++i) expected[i] += 2 * expected[i + 2];
    }
    EXPECT_EQ(list(x), expected);
    for (int64_t step = 0; step < 3; ++step)
      EXPECT_EQ(list(log[step]), rows[static_cast<size_t>(step)]);
  });
}

TEST(custom, spec_B13_symbolic_sizes) {
  const Variable n("custom_n", 1, 16);
  const Tensor x = ramp(16).realize(), y = Tensor::ones({16}).realize();
  const int64_t before = counters().compiled;
  int64_t first = -1;
  for (const int64_t k : {3, 16, 1, 7}) {
    const Size now = n.bind(k);
    const Tensor part = axpy(x[Slice{{}, now}], y[Slice{{}, now}] * 5) + 1;
    Floats expected;
    for (int64_t i = 0; i < k; ++i) expected.push_back(2 * static_cast<float>(i) + 6);
    EXPECT_EQ(list(part), expected);
    EXPECT_EQ(list(square(x[Slice{{}, now}]) + 0), list(x[Slice{{}, now}].square()));
    if (first < 0) first = counters().compiled - before;
  }
  EXPECT_EQ(counters().compiled - before, first) << "one program for all lengths";
}

TEST(custom, spec_B13_text_and_back) {
  const Tensor c = axpy(Tensor::from<float>({1, 2}), Tensor::from<float>({3, 4}) + 1) * 2;
  const std::string text = to_text(c.uop());
  EXPECT_NE(text.find("Sink[\"test.axpy\"]"), std::string::npos) << text;
  EXPECT_EQ(parse(text), c.uop());
  EXPECT_NE(to_cpp(c.uop()).find("Op::Call"), std::string::npos);
  EXPECT_EQ(parse(to_text(host_program({c.uop()}))), host_program({c.uop()}));
  const Tensor s = square(Tensor::from<float>({1, 2}));
  EXPECT_EQ(parse(to_text(s.uop())), s.uop());
}

TEST(custom, spec_B13_what_is_no_kernel_is_refused) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  auto make = [&](const KernelBuilder& kernel) {
    return [&x, kernel] { (void)custom_kernel("test.bad", CallResult{{3}}, {x}, kernel); };
  };
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0));
                 return sink({end(store(index(p[1], {i}), index(p[0], {i})), {i})});
               }),
               {"'test.bad'", "slot 1", "not into slot 0", "only read"});
  expect_error(
      make([](const Params& p) {
        const UOp i = loop(0, p[0].dim(0));
        return sink({end(
            group({store(index(p[0], {i}), real(1)), store(index(p[1], {i}), real(1))}), {i})});
      }),
      {"'test.bad'", "2 of its Params", "1 results"});
  expect_error(make([](const Params& p) { return p[0]; }), {"'test.bad'", "sink", "Param"});
  expect_error(make([](const Params&) { return UOp(); }), {"'test.bad'", "nothing"});
  expect_error(make(nullptr), {"'test.bad'", "no function"});
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0));
                 return sink({store(index(p[0], {i}), real(1))});
               }),
               {"'test.bad'", "Range is closed"});
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0));
                 return sink({end(store(index(p[0], {i, i}), real(1)), {i})});
               }),
               {"Index", "2 indices"});
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0));
                 return sink({end(store(index(p[0], {i}), add(index(p[0], {i}), real(1))), {i})});
               }),
               {"'test.bad'", "reads an element of slot 0", "After"});
  auto fold = [](int64_t id, const UOp& end) { return range(id, end, AxisType::Reduce); };
  expect_error(
      make([&](const Params& p) {
        const UOp i = loop(0, p[0].dim(0)), k = fold(1, p[1].dim(0));
        const UOp v = index(p[1], {k});
        const UOp centred = sub(v, reduce_ranges(Op::Add, v, {k}));
        return sink({end(store(index(p[0], {i}), reduce_ranges(Op::Add, centred, {k})), {i})});
      }),
      {"'test.bad'", "loop 1 is folded within a fold of it", "own number"});
  expect_error(
      make([&](const Params& p) {
        const UOp i = loop(0, p[0].dim(0)), k = fold(1, p[1].dim(0));
        const UOp l = fold(2, add(k, index_const(1)));
        const UOp inner = reduce_ranges(Op::Add, index(p[1], {l}), {l});
        return sink({end(store(index(p[0], {i}), reduce_ranges(Op::Add, inner, {k})), {i})});
      }),
      {"'test.bad'", "the bound of loop 2 depends on loop 1", "where()"});
  expect_error(
      make([&](const Params& p) {
        const UOp i = range(0, p[0].dim(0), AxisType::Upcast);
        const UOp before = index(after(p[0], {i}), {index_const(0)});
        return sink({end(store(index(p[0], {index_const(0)}), add(load(before), real(1))), {i})});
      }),
      {"'test.bad'", "steps of loop 0", "UPCAST", "LOOP"});
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0)), again = loop(0, index_const(2));
                 return sink({end(store(index(p[0], {i}), real(1)), {i}),
                              end(store(index(p[0], {again}), real(1)), {again})});
               }),
               {"'test.bad'", "two nodes are Range 0"});
  expect_error(make([](const Params& p) {
                 const UOp i = loop(0, p[0].dim(0));
                 const UOp other = param(2, p[1].shape(), DType::Float32);
                 return sink({end(store(index(p[0], {i}), index(other, {i})), {i})});
               }),
               {"'test.bad'", "slot 2", "1 results", "1 arguments"});
  expect_error(
      make([](const Params& p) {
        const UOp i = loop(0, p[0].dim(0));
        const UOp other = param(1, p[1].shape(), DType::Int32);
        return sink({end(store(index(p[0], {i}), cast(index(other, {i}), DType::Float32)), {i})});
      }),
      {"'test.bad'", "argument 0", "int32", "float32"});
  expect_error(make([&](const Params& p) {
                 return sink({store(index(p[0], {index_const(0)}), square(Tensor(1.0)).uop())});
               }),
               {"'test.bad'", "graphs of values"});
  expect_error(
      [&] { (void)custom_kernel("", CallResult{{3}}, {x}, [](const Params& p) { return p[0]; }); },
      {"custom_kernel", "name"});
  expect_error(
      [&] {
        (void)custom_kernel("test.bad", std::vector<CallResult>{}, {x},
                            [](const Params& p) { return p[0]; });
      },
      {"test.bad", "no result"});
  expect_error(
      [&] {
        (void)custom_kernel("test.bad", CallResult{{-3}}, {x},
                            [](const Params& p) { return p[0]; });
      },
      {"test.bad", "(-3,)"});
  const Tensor two = Tensor(copy_to(Tensor::zeros({4}).uop(), Device("CPU,CPU:1")));
  expect_error([&] { (void)square(two); }, {"'test.square'", "one device", "CPU,CPU:1"});
  expect_error([&] { (void)axpy(x, Tensor::zeros({3}).to("CPU:1")).realize(); },
               {"one device", "CPU:1", "to()"});
}

TEST(custom, spec_X4_a_registered_function_is_called_by_name) {
  in_both_modes([] {
    const Tensor x = Tensor::from<float>({1, 2, 3});
    EXPECT_EQ(list(square(x)), (Floats{1, 4, 9}));
    EXPECT_EQ(list(square(x + 1).flip({0}) * 2 + x), (Floats{33, 20, 11})) << "lazy on both sides";
    EXPECT_EQ(list(square(square(x)[Slice{1, 3}])), (Floats{16, 81})) << "a view";
    EXPECT_EQ(list(square(x.reshape({3, 1}).expand({3, 2}))), (Floats{1, 1, 4, 4, 9, 9}));
    EXPECT_EQ(square(Tensor(3.0)).item(), 9);
    EXPECT_EQ(square(Tensor::zeros({2, 0})).tolist<float>().size(), 0u);
    expect_same_everywhere(square(Tensor(leaf({5, 3}))).sum(0) + 1);
    expect_same_everywhere(square(Tensor(leaf({5, 3})).pad({{0, 1}, {0, 0}})));
    expect_same_everywhere(axpy(square(x), square(x + 1)));
  });
}

TEST(custom, spec_X4_it_runs_once_for_all_readers_and_never_for_none) {
  Options unchecked = options();
  unchecked.verify = 1;  // at level 3 the interpreter calls it too
  const OptionScope scope(unchecked);
  const Tensor x = Tensor::from<float>({1, 2, 3}).realize();
  const Tensor y = square(x), z = square(x);
  square_runs() = 0;
  Tensor::realize({y.sum() + z.max(), y + 1, z});
  EXPECT_EQ(square_runs(), 1);
  EXPECT_EQ(list(y), (Floats{1, 4, 9}));
  EXPECT_EQ(square_runs(), 1) << "what was computed stays";
  EXPECT_EQ(schedule({square(x + 3).uop()}).size(), 2u) << "it fills its results itself";
  (void)list(square(x + 2) * 0 + x);
  (void)list(x + 1);
  EXPECT_LE(square_runs(), 2);
}

TEST(custom, spec_X4_several_results_of_other_dtypes) {
  register_function(
      "test.divmod", [](std::span<const HostResult> out, std::span<const HostArgument> in) {
        ASSERT_EQ(in[0].sizes, (std::vector<int64_t>{2, 2}));
        ASSERT_EQ(out[1].sizes, (std::vector<int64_t>{2}));
        const auto x = in[0].as<int64_t>();
        for (size_t i = 0; i < x.size(); ++i)
          out[0].as<uint8_t>()[i] = static_cast<uint8_t>(x[i] % 10);
        out[1].as<double>()[0] = static_cast<double>(x[0] / 10);  // the other one is 0
      });
  const Tensor x = Tensor::from<int64_t>({12, 34, 56, 78}, {2, 2});
  const auto parts =
      call_function("test.divmod", {{{2, 2}, DType::UInt8}, {{2}, DType::Float64}}, {x});
  EXPECT_EQ(parts[0].tolist<int>(), (std::vector<int>{2, 4, 6, 8}));
  EXPECT_EQ(parts[1].tolist<double>(), (std::vector<double>{1, 0}));
}

// At this level what runs a stage's output calls it with results and arguments of its own.
TEST(custom, spec_X4_results_and_arguments_of_other_kinds_are_checked_at_every_stage) {
  Options all = options();
  all.verify = 3;
  const OptionScope scope(all);
  register_function("test.count",
                    [](std::span<const HostResult> out, std::span<const HostArgument> in) {
                      ASSERT_EQ(in[0].dtype, DType::Float32);
                      ASSERT_EQ(in[0].sizes, (std::vector<int64_t>{2, 3}));
                      ASSERT_EQ(in[1].dtype, DType::Int32);
                      ASSERT_EQ(in[1].sizes, std::vector<int64_t>{5});
                      ASSERT_EQ(out[0].dtype, DType::UInt8);
                      ASSERT_EQ(out[0].sizes, std::vector<int64_t>{4});
                      int64_t positive = 0;
                      for (const float x : in[0].as<float>()) positive += x > 0;
                      out[0].as<uint8_t>()[3] = static_cast<uint8_t>(positive);
                    });
  clear_compile_cache();
  reset_counters();
  const Tensor x = Tensor::from<float>({1, -2, 3, -4, 5, 6}, {2, 3}),
               n = Tensor::arange(5).cast(DType::Int32);
  const Tensor out = call_function("test.count", {{{4}, DType::UInt8}}, {x * 2, n + 1})[0];
  EXPECT_EQ((out.cast(DType::Int32) + 1).tolist<int>(), (std::vector<int>{1, 1, 1, 5}));
  EXPECT_GE(counters().checked_stages, 5);
}

TEST(custom, spec_X4_a_function_that_is_registered_again_is_never_stale) {
  auto constant_function = [](float value) {
    register_function("test.again", [value](std::span<const HostResult> out, auto) {
      for (float& v : out[0].as<float>()) v = value;
    });
  };
  const Tensor x = Tensor::from<float>({1, 2}).realize();
  auto call = [&] { return call_function("test.again", CallResult{{2}}, {x}); };
  constant_function(1);
  const Tensor first = call();
  CapturedStep step({(call() * 2).uop()});
  step.run();
  EXPECT_EQ(list(Tensor(step.outputs()[0])), (Floats{2, 2}));
  EXPECT_EQ(list(first), (Floats{1, 1}));
  constant_function(5);
  EXPECT_EQ(list(first), (Floats{1, 1})) << "what was computed stays";
  EXPECT_EQ(list(call()), (Floats{5, 5})) << "an equal call is another one";
  EXPECT_EQ(list(call() + 1), (Floats{6, 6}));
  step.run();
  EXPECT_EQ(list(Tensor(step.outputs()[0])), (Floats{10, 10})) << "a later run runs the new one";
}

// A name of its own, as Python gives each callback one.
TEST(custom, spec_X4_what_is_known_while_it_is_used_is_forgotten_with_its_last_value) {
  const std::string name = "test.used";
  const auto held = std::make_shared<int>(0);
  keep_while_used(name);
  register_function(name, [held](std::span<const HostResult> out, auto) {
    for (float& v : out[0].as<float>()) v = 3;
  });
  register_gradient(
      name, [held](const CallGradient& c) { return std::vector<Tensor>{c.gradients[0] * 7}; });
  register_vmap(name, [held](const CallForExamples& c) { return c.arguments; });
  EXPECT_EQ(held.use_count(), 4);
  const Tensor x = Tensor::from<float>({1, 2}).requires_grad();
  Tensor value = call_function(name, CallResult{{2}}, {x});
  let_go(name);
  EXPECT_EQ(list(value.sum().gradient({x})[0]), (Floats{7, 7})) << "a value that is held uses it";
  value = Tensor();
  clear_compile_cache();
  EXPECT_EQ(held.use_count(), 1);
  expect_error([&] { (void)list(call_function(name, CallResult{{2}}, {x})); }, {name});
}

TEST(custom, spec_X4_its_gradient) {
  register_gradient("test.square", [](const CallGradient& c) {
    return std::vector<Tensor>{c.gradients[0] * c.arguments[0] * 2};
  });
  in_both_modes([] {
    Tensor x = Tensor::from<float>({1, -2, 3}).requires_grad();
    (square(x * 2) * Tensor::from<float>({1, 2, 3})).sum().backward();
    EXPECT_EQ(list(x.grad()), (Floats{8, -32, 72}));
  });
}

TEST(custom, spec_X4_what_fails_changes_nothing) {
  static std::atomic<bool> fails = true;
  register_function("test.fails",
                    [](std::span<const HostResult> out, std::span<const HostArgument> in) {
                      if (fails) throw std::runtime_error("no luck");
                      std::copy_n(in[0].data, in[0].numel() * 4, out[0].data);
                    });
  const Tensor one = Tensor::from<float>({1, 2}).realize();
  auto call = [](const Tensor& t) {
    return call_function("test.fails", CallResult{t.shape()}, {t});
  };
  Tensor x = Tensor::from<float>({1, 2, 3}), y = Tensor::from<float>({4, 5, 6});
  x.realize();
  y.realize();
  x[Slice{0, 2}].assign(x[Slice{0, 2}] * 100);
  y[Slice{0, 2}].assign(call(x[Slice{1, 3}]));
  expect_error([&] { Tensor::realize({x, y}); }, {"function 'test.fails' failed", "no luck"});
  EXPECT_EQ(list(y), (Floats{4, 5, 6}));
  EXPECT_EQ(list(x), (Floats{100, 200, 3})) << "which does not depend on it";
  Tensor z = Tensor::from<float>({7, 8});
  z.assign(call(z));
  expect_error([&] { (void)z.tolist<float>(); }, {"test.fails", "no luck"});
  EXPECT_EQ(list(z), (Floats{7, 8}));
  Tensor p = Tensor::from<float>({1, 1}).realize(), q = Tensor::from<float>({2, 2}).realize();
  expect_error([&] { Tensor::assign_all({p, q}, {p + 1, call(q)}); }, {"test.fails"});
  EXPECT_EQ(list(p), (Floats{1, 1}));
  fails = false;
  EXPECT_EQ(list(call(one)), (Floats{1, 2})) << "it is asked again";
}

TEST(custom, spec_X4_errors) {
  const Tensor x = Tensor::from<float>({1, 2});
  (void)square(x);
  expect_error([&] { (void)call_function("test.unknown", CallResult{{2}}, {x}); },
               {"'test.unknown'", "not registered", "register_function", "test.square"});
  const UOp foreign =
      UOp::make(Op::Call, {UOp::make(Op::CustomFunction, {param(0, shape_of({2}), DType::Float32)},
                                     std::string("test.foreign")),
                           x.uop()});
  expect_error([&] { (void)list(Tensor(get_tuple(foreign, 0))); },
               {"'test.foreign'", "not registered", "test.square"});
  expect_error([&] { (void)get_tuple(foreign, 1); }, {"test.foreign", "1 results"});
  register_function("test.dtype",
                    [](std::span<const HostResult> out, auto) { (void)out[0].as<double>(); });
  expect_error([&] { (void)list(call_function("test.dtype", CallResult{{2}}, {x})); },
               {"'test.dtype' failed", "float32", "float64"});
  register_function("test.odd", [](auto, auto) { throw 3; });
  expect_error([&] { (void)list(call_function("test.odd", CallResult{{2}}, {x})); },
               {"'test.odd' failed"});
  expect_error([] { register_function("copy", [](auto, auto) {}); },
               {"register_function", "'copy'"});
  expect_error([] { register_function("", [](auto, auto) {}); }, {"register_function", "name"});
  expect_error([] { register_function("test.null", nullptr); },
               {"test.null", "without a function"});
  expect_error([&] { (void)call_function("test.odd", CallResult{{2}, DType::Void}, {x}); },
               {"test.odd", "void"});
}

TEST(custom, spec_X4_devices) {
  register_remote_device();
  const Tensor x = Tensor::from<float>({1, 2, 3});
  EXPECT_EQ(list(square(x.to("CPU:1")).to("CPU") + x), (Floats{2, 6, 12}));
  EXPECT_EQ(list(axpy(x.to("INTERP"), x.to("INTERP")) + 1), (Floats{4, 7, 10}));
  EXPECT_EQ(list(square(x.to("INTERP"))), (Floats{1, 4, 9}));
  EXPECT_EQ(list(axpy(x.to("REMOTE"), x.to("REMOTE") * 2) + 1), (Floats{5, 9, 13}));
  expect_error([&] { (void)list(square(x.to("REMOTE") + 1)); },
               {"function 'test.square'", "cannot see the memory of REMOTE", "to()"});
  EXPECT_EQ(list(square((x.to("REMOTE") + 1).to("CPU"))), (Floats{4, 9, 16}));
}

TEST(custom, spec_X4_threads) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto n = static_cast<size_t>(8 + t * 20 + i);
        const Tensor x = Tensor::from(Floats(n, static_cast<float>(i)), {static_cast<int64_t>(n)});
        for (const float v : list(axpy(square(x), x) + 1))
          if (v != static_cast<float>(2 * i * i + i + 1)) ++wrong;
        if (t == 0) register_function("test.thread", [](std::span<const HostResult>, auto) {});
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(custom, spec_X4_a_function_may_compute_tensors) {
  register_function(
      "test.inner", [](std::span<const HostResult> out, std::span<const HostArgument> in) {
        const auto from = in[0].as<float>();
        const Tensor t = Tensor::from(Floats(from.begin(), from.end()), {in[0].numel()});
        const Floats sums = list(t.cumsum());
        std::copy(sums.begin(), sums.end(), out[0].as<float>().begin());
      });
  const Tensor x = Tensor::from<float>({1, 2, 3});
  EXPECT_EQ(list(call_function("test.inner", CallResult{{3}}, {x + 1}) * 2), (Floats{4, 10, 18}));
}

}  // namespace koine::test
