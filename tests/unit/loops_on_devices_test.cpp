// Loops and branches on several devices (amendments C22 and C43): values, derivatives and traffic
// are those of the same loop on one device, and of what its steps are without a loop.
#include "check.hpp"
#include "koine/tensor/loops.hpp"
#include "koine/tensor/transforms.hpp"

namespace koine::test {
namespace {

constexpr int64_t rows = 8, width = 8, steps = 5;

// How an argument lies on several devices: split along an axis, or whole.
constexpr int64_t whole = -1;
struct Argument {
  Shape shape;
  int64_t axis;
};
using Arguments = std::vector<Argument>;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors&)>;
struct Case {
  const char* name;
  Arguments arguments;
  Function program;
};

const Argument batch{{rows, width}, 0}, sequence{{steps, rows, width}, 1};
const Argument weight{{width, width}, whole};

Tensor near(const Tensor& x) { return x * 0.3; }

Tensors recurrent(const Tensor& xs, const Tensor& w, const Tensor& first) {
  const auto [last, all] = scan(
      [&](const Tensor& h, const Tensor& x) {
        const Tensor next = (x + h.matmul(near(w))).tanh();
        return std::pair(next, next.sum(0));
      },
      first, xs);
  return {last, all};
}

Tensor scalar_of(const Tensors& values) {
  Tensor out = Tensor(0.f);
  for (const Tensor& v : values) out = out + v.square().sum();
  return out;
}

std::vector<Case> cases() {
  return {
      {"examples are shared out",
       {sequence, weight, batch},
       [](const Tensors& t) { return recurrent(t[0], t[1], t[2]); }},
      {"a first carry that lies nowhere",
       {sequence, weight},
       [](const Tensors& t) { return recurrent(t[0], t[1], Tensor::zeros({rows, width})); }},
      {"all is whole",
       {{{steps, rows, width}, whole}, weight, {{rows, width}, whole}},
       [](const Tensors& t) { return recurrent(t[0], t[1], t[2]); }},
      {"weights are shared out",
       {{{rows, width}, whole}, {{width, width}, 1}, {{width, width}, 0}},
       [](const Tensors& t) {
         return Tensors{fori_loop(
             0, 3,
             [&](const Tensor&, const Tensor& h) {
               return h + near(h.matmul(near(t[1])).relu().matmul(near(t[2])));
             },
             t[0])};
       }},
      {"a condition of all parts",
       {batch},
       [](const Tensors& t) {
         return Tensors{while_loop([](const Tensor& x) { return x.square().sum() > 0.5f; },
                                   [](const Tensor& x) { return x * 0.5f; }, t[0])};
       }},
      {"branches",
       {batch, batch},
       [](const Tensors& t) {
         auto twice = [](const Tensor& a, const Tensor& b) { return a * 2 + b; };
         auto apart = [](const Tensor& a, const Tensor& b) { return (a - b).sin(); };
         return Tensors{cond(t[0].sum() > 0, twice, apart, t[0], t[1]),
                        cond(t[0].sum() < 0, twice, apart, t[0], t[1])};
       }},
      {"a branch of constants",
       {batch},
       [](const Tensors& t) {
         return Tensors{switch_case(Tensor(1),
                                    std::vector<std::function<Tensor(Tensor)>>{
                                        [](const Tensor& x) { return x * 2; },
                                        [](const Tensor&) { return Tensor::ones({rows, width}); }},
                                    t[0])};
       }},
      {"a loop in a loop, from the last row",
       {sequence},
       [](const Tensors& t) {
         const auto [last, all] = scan(
             [](const Tensor& c, const Tensor& x) {
               const Tensor next =
                   fori_loop(0, 3, [&](const Tensor&, const Tensor& d) { return d * 0.9 + x; }, c);
               return std::pair(next, std::tuple(c.max(), Tensor::ones({3})));
             },
             Tensor::zeros({rows, width}), t[0], {.reversed = true});
         return Tensors{last, std::get<0>(all), std::get<1>(all)};
       }},
      {"steps of training",
       {batch, batch, weight},
       [](const Tensors& t) {
         return Tensors{fori_loop(
             0, 4,
             [&](const Tensor&, const Tensor& w) {
               auto loss = [&](const Tensor& v) {
                 return (t[0].matmul(v).tanh() - t[1]).square().mean();
               };
               return w - grad(loss)(w) * 0.5;
             },
             t[2])};
       }},
  };
}

std::vector<std::string> several() {
  return {"CPU,CPU:1", "INTERP,INTERP:1,INTERP:2,INTERP:3", "CPU,CPU:1,CPU:2,CPU:3"};
}

Tensor placed(const Tensor& value, const std::string& devices, int64_t axis) {
  return axis == whole ? value.shard(devices) : value.shard(devices, axis);
}

void expect_near(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) {
    const auto found = got[k].tolist<float>(), wanted = want[k].tolist<float>();
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], wanted[i], 1e-4 * std::max(1.f, std::abs(wanted[i]))) << k << " " << i;
  }
}

// The program, its gradients by all arguments, and its tangents.
Tensors with_derivatives(const Case& c, const Tensors& given, bool reverse) {
  Tensors out = c.program(given);
  const Tensors moved = jvp(c.program, given, given).second;
  out.insert(out.end(), moved.begin(), moved.end());
  if (!reverse) return out;
  const Tensors slopes = grad([&](const Tensors& t) { return scalar_of(c.program(t)); })(given);
  out.insert(out.end(), slopes.begin(), slopes.end());
  return out;
}

}  // namespace

TEST(loops_on_devices, spec_amend_22_spec_amend_43_values_and_derivatives_are_those_of_one_device) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Tensors given;
    for (const Argument& a : c.arguments) given.push_back(Tensor::randn(a.shape).realize());
    const bool reverse = std::string_view(c.name) != "a condition of all parts";
    const Tensors want = with_derivatives(c, given, reverse);
    for (const std::string& devices : several()) {
      SCOPED_TRACE(devices);
      Tensors there;
      for (size_t k = 0; k < given.size(); ++k)
        there.push_back(placed(given[k], devices, c.arguments[k].axis));
      expect_near(with_derivatives(c, there, reverse), want);
      for (const Tensor& t : c.program(there)) EXPECT_EQ(t.device(), devices);
    }
  }
}

// Equal parts of constants are one value, and lie on all devices.
TEST(loops_on_devices, constants_that_were_shared_out_have_places) {
  for (const std::string& devices : several()) {
    const Tensor x = Tensor::ones({rows}).shard(devices, 0);
    const Tensor halved = while_loop([](const Tensor& v) { return v.sum() > 1; },
                                     [](const Tensor& v) { return v * 0.5f; }, x);
    EXPECT_EQ(halved.tolist<float>(), std::vector<float>(rows, 0.125f));
    const Tensor doubled = fori_loop(0, 3, [](const Tensor&, const Tensor& v) { return v * 2; }, x);
    EXPECT_EQ(doubled.tolist<float>(), std::vector<float>(rows, 8));
  }
}

// A sum of each example folds as it does alone; strict mode folds all others in one order.
TEST(loops_on_devices, strict_values_have_the_bits_of_one_device) {
  Options o = options();
  o.strict = true;
  const OptionScope scope(o);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Tensors given, there;
    for (const Argument& a : c.arguments) {
      given.push_back(Tensor::randn(a.shape).realize());
      there.push_back(placed(given.back(), "CPU,CPU:1", a.axis));
    }
    const Tensors want = c.program(given), got = c.program(there);
    for (size_t k = 0; k < want.size(); ++k)
      EXPECT_EQ(got[k].tolist<float>(), want[k].tolist<float>()) << k;
  }
}

TEST(loops_on_devices, examples_have_loops_of_their_own_axis) {
  const Tensor xs = Tensor::randn({steps, rows, 3, 4}).realize();
  auto sums = [](const Tensor& x) {
    return scan([](const Tensor& c, const Tensor& r) { return std::pair(c + r, c.sin()); },
                Tensor::zeros({3, 4}), x);
  };
  auto mapped = [&](const Tensor& x) {
    const auto [last, all] = vmap(sums, 1)(x);
    return Tensors{last, all};
  };
  const Tensors got = mapped(xs.shard("CPU,CPU:1", 1));
  expect_near(got, mapped(xs));
  EXPECT_EQ(got[0].shard_axis(), 0);
}

// What a step sends is what it sends without a loop, once a step: nothing for examples of their
// own, and an all-reduce for the gradient of weights.
TEST(loops_on_devices, spec_N7_a_step_sends_what_it_sends_without_a_loop) {
  const std::string devices = "CPU,CPU:1";
  const Tensor xs = Tensor::randn({steps, rows, width}).realize().shard(devices, 1).realize();
  const Tensor w = Tensor::randn({width, width}).realize().shard(devices).realize();
  auto sent = [](const std::function<Tensor()>& program) {
    (void)program().realize();
    reset_counters();
    (void)program().realize();
    int64_t bytes = 0;
    for (const auto& [way, moved] : counters().copied_bytes) bytes += moved;
    return bytes;
  };
  auto own = [&](const Tensor& h, const Tensor& x) { return (x + h.matmul(near(w))).tanh(); };
  EXPECT_EQ(sent([&] {
              return scan([&](const Tensor& h,
                              const Tensor& x) { return std::pair(own(h, x), std::tuple<>()); },
                          Tensor::zeros({rows, width}), xs)
                  .first;
            }),
            0);
  auto all = [&](const Tensor& v) { return v.transpose().matmul(v); };  // a sum over all examples
  const int64_t once =
      sent([&] { return all(xs.shrink({{0, 1}, {0, rows}, {0, width}}).reshape({rows, width})); });
  EXPECT_EQ(once, 2 * 4 * width * width) << "each of two devices sends its sum";
  EXPECT_EQ(sent([&] {
              return scan([&](const Tensor& c,
                              const Tensor& x) { return std::pair(c + all(x), std::tuple<>()); },
                          Tensor::zeros({width, width}), xs)
                  .first;
            }),
            steps * once);
}

TEST(loops_on_devices, what_lies_elsewhere_is_refused) {
  const std::string devices = "CPU,CPU:1";
  const Tensor xs = Tensor::ones({4, 8, 2}), first = Tensor::ones({8, 2});
  auto sum = [](const Tensor& c, const Tensor& r) { return std::pair(c + r, std::tuple<>()); };
  expect_error([&] { (void)scan(sum, first, xs.shard(devices, 0)); },
               {"split along axis 0", "CPU,CPU:1", "the steps'", "shard() them along another one"});
  expect_error([&] { (void)scan(sum, first.shard(devices), xs.shard(devices, 1)); },
               {"tensor 0 of the carry", "CPU,CPU:1, whole before the first step",
                "CPU,CPU:1, split along axis 0 behind it", "shard()"});
  auto apart = [](const Tensor& c, const Tensor& r) { return std::pair(c * 2, r.sum()); };
  expect_error(
      [&] { (void)scan(apart, first.realize(), xs.shard(devices, 1)); },
      {"'scan' has an argument of shape (4, 8, 2) on CPU,CPU:1", "another one on CPU:", "shard()"});
}

}  // namespace koine::test
