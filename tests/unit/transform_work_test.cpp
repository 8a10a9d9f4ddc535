// What compositions of transforms cost, counted as they run: no more than 1.1 times the same
// written by hand for all examples, for the way back, or with the slopes that a rule gives.
#include <cmath>
#include <functional>

#include "check.hpp"
#include "koine/tensor/loops.hpp"
#include "koine/tensor/transforms.hpp"

namespace koine::test {
namespace {

using Pair = std::pair<Tensor, Tensor>;

struct Work {
  double operations, bytes;
};
Work work_of(const std::vector<Tensor>& values) {
  reset_counters();
  Tensor::realize(values);
  return {counters().operations, counters().bytes};
}

using Tensors = std::vector<Tensor>;
using Make = std::function<Tensors(const Tensors& inputs)>;
// What is computed of memory that nobody has computed with: equal nodes would be computed already.
Tensors of_copies(const Make& make, const Tensors& inputs) {
  Tensors own;
  for (const Tensor& t : inputs) own.push_back(t.clone().realize());
  return make(own);
}

// Values and counted work of what a transform makes, and of the same by hand.
void expect_as_by_hand(const char* name, const Tensors& inputs, const Make& made,
                       const Make& by_hand, double factor = 1.1) {
  SCOPED_TRACE(name);
  const Tensors values = of_copies(made, inputs), wanted = of_copies(by_hand, inputs);
  const Work own = work_of(values), least = work_of(wanted);
  EXPECT_GT(least.operations, 0);
  EXPECT_LE(own.operations, factor * least.operations);
  EXPECT_LE(own.bytes, factor * least.bytes);
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t k = 0; k < values.size(); ++k) {
    ASSERT_EQ(values[k].shape(), wanted[k].shape()) << k;
    const auto got = values[k].tolist<float>(), right = wanted[k].tolist<float>();
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], right[i], 1e-4 * (1 + std::abs(right[i]))) << k << " at " << i;
  }
}

Tensor memory(const Shape& shape, uint64_t salt, double scale = 1) {
  return (small(shape, salt) * scale).realize();
}

// A recurrent net of n numbers over t rows. What it bends by costs little, so that what is counted
// are its products.
constexpr int64_t n = 24, t = 12, examples = 8;
Tensor bent(const Tensor& z) { return z * z * 0.25f + z; }
Tensor slope(const Tensor& z) { return z * 0.5f + 1; }
Tensor next_of(const Tensor& h, const Tensor& x, const Tensor& w) { return bent(h.matmul(w) + x); }
Tensor last_of(const Tensor& h, const Tensor& xs, const Tensor& w) {
  return scan(
             [&](const Tensor& c, const Tensor& x) {
               const Tensor next = next_of(c, x, w);
               return Pair(next, next);
             },
             h, xs)
      .first;
}
Tensor half_square(const Tensor& x) { return x.square().sum() * 0.5f; }

// The gradient of half_square(last_of(h, xs, w)) by w and h, as one writes it.
Tensors way_back(const Tensor& h, const Tensor& xs, const Tensor& w) {
  const auto [last, all] = scan(
      [&](const Tensor& c, const Tensor& x) {
        const Tensor z = c.matmul(w) + x;
        return std::pair(bent(z), Pair(c, z));
      },
      h, xs);
  const auto [moved, none] = scan(
      [&](const Pair& carried, const Pair& states) {
        const Tensor by_z = carried.first * slope(states.second);
        const Tensor by_w = h.ndim() == 1 ? states.first.unsqueeze(-1) * by_z.unsqueeze(-2)
                                          : states.first.T().matmul(by_z);
        return std::pair(Pair(by_z.matmul(w.T()), carried.second + by_w), std::tuple<>());
      },
      Pair(last, Tensor::zeros({n, n})), all, {.reversed = true});
  return {moved.second, moved.first};
}

}  // namespace

TEST(transform_work, spec_amend_43_scan_of_vmap_and_vmap_of_scan_are_a_scan_of_the_batch) {
  const Tensor w = memory({n, n}, 1, 0.1), hs = memory({examples, n}, 2),
               rows = memory({t, examples, n}, 3), xs = memory({t, n}, 4);
  const Make by_hand = [&](const Tensors& in) { return Tensors{last_of(in[0], in[1], w)}; };
  expect_as_by_hand(
      "scan of vmap", {hs, rows},
      [&](const Tensors& in) {
        return Tensors{scan(
                           [&](const Tensor& c, const Tensor& x) {
                             const Tensor next = vmap([&](const Tensor& h, const Tensor& r) {
                               return next_of(h, r, w);
                             })(c, x);
                             return Pair(next, next);
                           },
                           in[0], in[1])
                           .first};
      },
      by_hand);
  const auto last = [&](const Tensor& h, const Tensor& given) { return last_of(h, given, w); };
  expect_as_by_hand(
      "vmap of scan", {hs, rows},
      [&](const Tensors& in) { return Tensors{vmap(last, {0, 1})(in[0], in[1])}; }, by_hand);
  expect_as_by_hand(
      "vmap of scan over equal rows", {hs, xs},
      [&](const Tensors& in) { return Tensors{vmap(last, {0, std::nullopt})(in[0], in[1])}; },
      by_hand);
}

TEST(transform_work, spec_amend_43_the_gradient_of_a_scan_is_one_scan_back) {
  const Tensor w = memory({n, n}, 1, 0.1), hs = memory({examples, n}, 2),
               rows = memory({t, examples, n}, 3), h = memory({n}, 4), xs = memory({t, n}, 5);
  const auto loss = [](const Tensor& own, const Tensor& first, const Tensor& given) {
    return half_square(last_of(first, given, own));
  };
  const auto both = [](const auto& gradients) {
    return Tensors{std::get<0>(gradients), std::get<1>(gradients)};
  };
  const Make made = [&](const Tensors& in) { return both(grad<0, 1>(loss)(in[2], in[0], in[1])); };
  const Make by_hand = [&](const Tensors& in) { return way_back(in[0], in[1], in[2]); };
  expect_as_by_hand("grad of scan", {h, xs, w}, made, by_hand);
  expect_as_by_hand("grad of scan of a batch", {hs, rows, w}, made, by_hand);
  const auto mapped = [&](const Tensor& own, const Tensor& first, const Tensor& given) {
    const auto one = [&](const Tensor& a, const Tensor& b) { return loss(own, a, b); };
    return vmap(one, {0, 1})(first, given).sum();
  };
  expect_as_by_hand(
      "grad of vmap of scan", {hs, rows, w},
      [&](const Tensors& in) { return both(grad<0, 1>(mapped)(in[2], in[0], in[1])); }, by_hand);
  expect_as_by_hand(
      "vmap of grad of scan", {hs, rows, w},
      [&](const Tensors& in) {
        return Tensors{vmap(grad<1>(loss), {std::nullopt, 0, 1})(in[2], in[0], in[1])};
      },
      [&](const Tensors& in) { return Tensors{way_back(in[0], in[1], in[2])[1]}; });
}

// Computed again: what the way there costs comes once more, and nothing else.
TEST(transform_work, checkpoints_of_scans_and_scans_of_checkpoints_cost_one_more_way_there) {
  const Tensor w = memory({n, n}, 1, 0.1), hs = memory({examples, n}, 2),
               rows = memory({t, examples, n}, 3);
  using Loss = std::function<Tensor(const Tensor& w, const Tensors& in)>;
  const Loss whole = [](const Tensor& own, const Tensors& in) {
    return half_square(last_of(in[0], in[1], own));
  };
  const Loss again = [](const Tensor& own, const Tensors& in) {
    return half_square(checkpoint([&](const Tensor& v) { return last_of(in[0], in[1], v); })(own));
  };
  const Loss each = [](const Tensor& own, const Tensors& in) {
    const auto step = checkpoint(next_of);
    return half_square(scan(
                           [&](const Tensor& c, const Tensor& x) {
                             const Tensor next = step(c, x, own);
                             return Pair(next, next);
                           },
                           in[0], in[1])
                           .first);
  };
  const auto gradient = [](const Loss& loss) {
    return [&loss](const Tensors& in) {
      return Tensors{grad([&](const Tensor& own) { return loss(own, in); })(in[2])};
    };
  };
  const auto value = [](const Loss& loss) {
    return [&loss](const Tensors& in) { return Tensors{loss(in[2], in)}; };
  };
  const Tensors inputs{hs, rows, w}, wanted = of_copies(gradient(whole), inputs);
  const double there = work_of(of_copies(value(whole), inputs)).operations;
  const double most = 1.1 * (there + work_of(wanted).operations);
  for (const Loss* loss : {&again, &each}) {
    SCOPED_TRACE(loss == &again ? "checkpoint of scan" : "scan of checkpoint");
    const Tensors made = of_copies(gradient(*loss), inputs);
    EXPECT_LE(work_of(made).operations, most);
    const auto got = made[0].tolist<float>(), right = wanted[0].tolist<float>();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], right[i], 1e-3) << i;
    expect_as_by_hand("the value computes nothing again", inputs, value(*loss), value(whole));
  }
}

TEST(transform_work, derivatives_of_examples_in_any_order_are_those_of_the_batch) {
  const Tensor w = memory({n, n}, 1, 0.2), xs = memory({examples * 4, n}, 2),
               ts = memory({examples * 4, n}, 3), x = memory({n}, 4);
  const auto f = [&](const Tensor& v) { return bent(v.matmul(w)); };
  const auto loss = [&](const Tensor& v) { return half_square(f(v)); };
  const Make by_x = [&](const Tensors& in) {
    const Tensor z = in[0].matmul(w);
    return Tensors{(bent(z) * slope(z)).matmul(w.T())};
  };
  const Make tangent = [&](const Tensors& in) {
    return Tensors{slope(in[0].matmul(w)) * in[1].matmul(w)};
  };
  expect_as_by_hand(
      "vmap of grad", {xs}, [&](const Tensors& in) { return Tensors{vmap(grad(loss))(in[0])}; },
      by_x);
  expect_as_by_hand(
      "grad of vmap", {xs},
      [&](const Tensors& in) {
        return Tensors{grad([&](const Tensor& v) { return vmap(loss)(v).sum(); })(in[0])};
      },
      by_x);
  expect_as_by_hand(
      "jvp of vmap", {xs, ts},
      [&](const Tensors& in) {
        return Tensors{jvp([&](const Tensor& v) { return vmap(f)(v); }, in[0], in[1]).second};
      },
      tangent);
  expect_as_by_hand(
      "vmap of jvp", {xs, ts},
      [&](const Tensors& in) {
        return Tensors{vmap([&](const Tensor& v, const Tensor& d) { return jvp(f, v, d).second; })(
            in[0], in[1])};
      },
      tangent);
  // Of each unit vector the product with it, as it is.
  const Tensor eye = Tensor::eye(n).contiguous().realize();
  expect_as_by_hand(
      "jacfwd", {x}, [&](const Tensors& in) { return Tensors{jacfwd(f)(in[0])}; },
      [&](const Tensors& in) { return Tensors{(eye.matmul(w) * slope(in[0].matmul(w))).T()}; });
  expect_as_by_hand(
      "jacrev", {x}, [&](const Tensors& in) { return Tensors{jacrev(f)(in[0])}; },
      [&](const Tensors& in) { return Tensors{(eye * slope(in[0].matmul(w))).matmul(w.T())}; });
}

// What bends by a formula of dozens of operations has a slope of two, a formula of its value.
TEST(transform_work, tanh_and_sigmoid_have_slopes_of_their_values) {
  const Tensor w = memory({n, n}, 1, 0.2), xs = memory({examples * 4, n}, 2),
               ts = memory({examples * 4, n}, 3), x = memory({n}, 4), hs = memory({examples, n}, 5),
               rows = memory({t, examples, n}, 6);
  const auto check = [&](const char* bend, const auto& f, const auto& slope_of) {
    SCOPED_TRACE(bend);
    const auto layer = [&](const Tensor& v) { return f(v.matmul(w)); };
    const auto loss = [&](const Tensor& v) { return half_square(layer(v)); };
    const Make by_x = [&](const Tensors& in) {
      const Tensor y = layer(in[0]);
      return Tensors{(y * slope_of(y)).matmul(w.T())};
    };
    const Make tangent = [&](const Tensors& in) {
      return Tensors{slope_of(layer(in[0])) * in[1].matmul(w)};
    };
    const auto sum_of_all = [&](const Tensor& v) { return vmap(loss)(v).sum(); };
    const auto of_all = [&](const Tensor& v) { return vmap(layer)(v); };
    const auto of_one = [&](const Tensor& v, const Tensor& d) { return jvp(layer, v, d).second; };
    expect_as_by_hand(
        "grad", {x}, [&](const Tensors& in) { return Tensors{grad(loss)(in[0])}; }, by_x);
    expect_as_by_hand(
        "vmap of grad", {xs}, [&](const Tensors& in) { return Tensors{vmap(grad(loss))(in[0])}; },
        by_x);
    expect_as_by_hand(
        "grad of vmap", {xs}, [&](const Tensors& in) { return Tensors{grad(sum_of_all)(in[0])}; },
        by_x);
    expect_as_by_hand(
        "jvp of vmap", {xs, ts},
        [&](const Tensors& in) { return Tensors{jvp(of_all, in[0], in[1]).second}; }, tangent);
    expect_as_by_hand(
        "vmap of jvp", {xs, ts},
        [&](const Tensors& in) { return Tensors{vmap(of_one)(in[0], in[1])}; }, tangent);
    const Tensor eye = Tensor::eye(n).contiguous().realize();
    expect_as_by_hand(
        "jacfwd", {x}, [&](const Tensors& in) { return Tensors{jacfwd(layer)(in[0])}; },
        [&](const Tensors& in) { return Tensors{(eye.matmul(w) * slope_of(layer(in[0]))).T()}; });
    expect_as_by_hand(
        "jacrev", {x}, [&](const Tensors& in) { return Tensors{jacrev(layer)(in[0])}; },
        [&](const Tensors& in) { return Tensors{(eye * slope_of(layer(in[0]))).matmul(w.T())}; });

    const auto next = [&](const Tensor& h, const Tensor& r, const Tensor& own) {
      return f(h.matmul(own) + r);
    };
    const auto last = [&](const Tensor& h, const Tensor& given, const Tensor& own) {
      return scan([&](const Tensor& c,
                      const Tensor& r) { return std::pair(next(c, r, own), std::tuple<>()); },
                  h, given)
          .first;
    };
    const Make there = [&](const Tensors& in) { return Tensors{last(in[0], in[1], in[2])}; };
    // By h and w: of each step what it began with, which the value of the one before it is.
    const auto back = [&](const Tensor& first, const Tensor& end, const Tensor& values,
                          const Tensor& own) {
      const Tensor begins = Tensor::cat({first.unsqueeze(0), values[Slice{{}, t - 1}]}, 0);
      const auto [moved, none] = scan(
          [&](const Pair& carried, const Pair& of_step) {
            const Tensor by_z = carried.first * slope_of(of_step.second);
            const Tensor by_w = of_step.first.T().matmul(by_z);
            return std::pair(Pair(by_z.matmul(own.T()), carried.second + by_w), std::tuple<>());
          },
          Pair(end, Tensor::zeros({n, n})), Pair(begins, values), {.reversed = true});
      return Tensors{moved.first, moved.second};
    };
    const Make way_back = [&](const Tensors& in) {
      const auto [end, values] = scan(
          [&](const Tensor& c, const Tensor& r) {
            const Tensor y = next(c, r, in[2]);
            return Pair(y, y);
          },
          in[0], in[1]);
      return back(in[0], end, values, in[2]);
    };
    const auto of_scan = [&](const Tensor& h, const Tensor& own, const Tensor& given) {
      return half_square(last(h, given, own));
    };
    const auto of_examples = [&](const Tensor& h, const Tensor& own, const Tensor& given) {
      const auto one = [&](const Tensor& a, const Tensor& b) { return of_scan(a, own, b); };
      return vmap(one, {0, 1})(h, given).sum();
    };
    const auto again = [&](const Tensor& h, const Tensor& own, const Tensor& given) {
      return half_square(checkpoint(last)(h, given, own));
    };
    const auto by_both = [](const auto& of, const Tensors& in) {
      const auto [h, own] = grad<0, 1>(of)(in[0], in[2], in[1]);
      return Tensors{h, own};
    };
    const Tensors inputs{hs, rows, w};
    expect_as_by_hand(
        "scan of vmap", inputs,
        [&](const Tensors& in) {
          const auto one = [&](const Tensor& h, const Tensor& r) { return next(h, r, in[2]); };
          return Tensors{
              scan([&](const Tensor& c,
                       const Tensor& r) { return std::pair(vmap(one)(c, r), std::tuple<>()); },
                   in[0], in[1])
                  .first};
        },
        there);
    expect_as_by_hand(
        "grad of scan", inputs, [&](const Tensors& in) { return by_both(of_scan, in); }, way_back);
    expect_as_by_hand(
        "grad of vmap of scan", inputs, [&](const Tensors& in) { return by_both(of_examples, in); },
        way_back);
    Tensors of_copies_too = inputs;  // what is computed again reads memory of its own
    of_copies_too.insert(of_copies_too.end(), inputs.begin(), inputs.end());
    expect_as_by_hand(
        "grad of a checkpoint of scan", of_copies_too,
        [&](const Tensors& in) { return by_both(again, in); },
        [&](const Tensors& in) {
          const Tensor end = last(in[0], in[1], in[2]);
          const Tensor values = scan(
                                    [&](const Tensor& c, const Tensor& r) {
                                      const Tensor y = next(c, r, in[5]);
                                      return Pair(y, y);
                                    },
                                    in[3], in[4])
                                    .second;
          return back(in[3], end, values, in[5]);
        });
  };
  check(
      "tanh", [](const Tensor& z) { return z.tanh(); },
      [](const Tensor& y) { return 1.0f - y * y; });
  check(
      "sigmoid", [](const Tensor& z) { return z.sigmoid(); },
      [](const Tensor& y) { return y * (1.0f - y); });
}

// Rules of the user's are what is computed, under each transform.
TEST(transform_work, rules_of_the_users_cost_what_they_compute) {
  const Tensor w = memory({n, n}, 1, 0.1), xs = memory({examples, n}, 2),
               ts = memory({examples, n}, 3), x = memory({n}, 4), d = memory({n}, 5);
  // Twice the true slopes, so that the rule is seen; they read the result, as no other rule does.
  const auto from_result = [](const Tensor& y) { return y * 0.5f + 2; };
  const auto f = [&](const Tensor& v) { return bent(v.matmul(w)); };
  const auto of_both = [](const Tensor& v, const Tensor& own) { return bent(v.matmul(own)); };
  const auto by_vjp = custom_vjp("work.reverse", of_both, [&](const CallGradient& c) -> Tensors {
    return {(c.gradients[0] * from_result(c.results[0])).matmul(c.arguments[1].T()), Tensor()};
  });
  const auto by_jvp = custom_jvp("work.forward", of_both, [&](const CallTangent& c) -> Tensors {
    return {c.tangents[0].matmul(c.arguments[1]) * from_result(c.results[0])};
  });
  const auto check = [&](const char* name, const auto& rule) {
    SCOPED_TRACE(name);
    const auto ruled = [&](const Tensor& v) { return rule(v, w); };
    const auto loss = [&](const Tensor& v) { return half_square(ruled(v)); };
    const Make value = [&](const Tensors& in) { return Tensors{f(in[0])}; };
    const Make gradient = [&](const Tensors& in) {
      const Tensor y = f(in[0]);
      return Tensors{(y * from_result(y)).matmul(w.T())};
    };
    const Make tangent = [&](const Tensors& in) {
      return Tensors{in[1].matmul(w) * from_result(f(in[0]))};
    };
    const auto of_all = [&](const Tensor& v) { return vmap(ruled)(v); };
    expect_as_by_hand(
        "vmap", {xs}, [&](const Tensors& in) { return Tensors{of_all(in[0])}; }, value);
    expect_as_by_hand(
        "grad", {x}, [&](const Tensors& in) { return Tensors{grad(loss)(in[0])}; }, gradient);
    expect_as_by_hand(
        "vmap of grad", {xs}, [&](const Tensors& in) { return Tensors{vmap(grad(loss))(in[0])}; },
        gradient);
    expect_as_by_hand(
        "grad of vmap", {xs},
        [&](const Tensors& in) {
          return Tensors{grad([&](const Tensor& v) { return vmap(loss)(v).sum(); })(in[0])};
        },
        gradient);
    expect_as_by_hand(
        "jvp", {x, d}, [&](const Tensors& in) { return Tensors{jvp(ruled, in[0], in[1]).second}; },
        tangent);
    expect_as_by_hand(
        "jvp of vmap", {xs, ts},
        [&](const Tensors& in) { return Tensors{jvp(of_all, in[0], in[1]).second}; }, tangent);
    expect_as_by_hand(
        "vmap of jvp", {xs, ts},
        [&](const Tensors& in) {
          return Tensors{vmap([&](const Tensor& v, const Tensor& u) {
            return jvp(ruled, v, u).second;
          })(in[0], in[1])};
        },
        tangent);
    expect_as_by_hand(
        "grad of a checkpoint", {xs, xs},
        [&](const Tensors& in) {
          return Tensors{
              grad([&](const Tensor& v) { return half_square(checkpoint(ruled)(v)); })(in[0])};
        },
        [&](const Tensors& in) {  // computed again for its slopes, of memory of its own
          const Tensor y = f(in[0]), again = f(in[1]);
          return Tensors{(y * from_result(again)).matmul(w.T())};
        });
    expect_as_by_hand(
        "grad of a loop", {xs},
        [&](const Tensors& in) {
          const auto step = [&](const Tensor&, const Tensor& c) { return ruled(c); };
          return Tensors{
              grad([&](const Tensor& v) { return half_square(fori_loop(0, t, step, v)); })(in[0])};
        },
        [&](const Tensors& in) {
          const auto [last, all] = scan(
              [&](const Tensor& c, const Tensor&) {
                const Tensor y = f(c);
                return Pair(y, y);
              },
              in[0], Tensor::arange(t));
          return Tensors{scan(
                             [&](const Tensor& g, const Tensor& y) {
                               return std::pair((g * from_result(y)).matmul(w.T()), std::tuple<>());
                             },
                             last, all, {.reversed = true})
                             .first};
        });
  };
  check("a rule of reverse mode", by_vjp);
  check("a rule of forward mode", by_jvp);
}

// A condition of each example is a choice between both branches, each for all examples once.
TEST(transform_work, spec_amend_43_vmap_of_branches_and_while_loops) {
  const Tensor w = memory({n, n}, 1, 0.2), u = memory({n, n}, 2, 0.2),
               xs = memory({examples, n}, 3);
  const auto yes = [&](const Tensor& x) { return x.matmul(w); };
  const auto no = [&](const Tensor& x) { return bent(x.matmul(u)); };
  const Tensor holds = (xs.sum({1}) > 0).contiguous().realize();
  const Tensor one = Tensor(true).clone().realize();
  expect_as_by_hand(
      "vmap of cond", {xs},
      [&](const Tensors& in) {
        const auto pick = [&](const Tensor& p, const Tensor& x) { return cond(p, yes, no, x); };
        return Tensors{vmap(pick)(holds, in[0])};
      },
      [&](const Tensors& in) {
        return Tensors{Tensor::where(holds.unsqueeze(1), yes(in[0]), no(in[0]))};
      });
  expect_as_by_hand(
      "vmap of cond with one condition", {xs},
      [&](const Tensors& in) {
        return Tensors{vmap([&](const Tensor& x) { return cond(one, yes, no, x); })(in[0])};
      },
      [&](const Tensors& in) { return Tensors{cond(one, yes, no, in[0])}; });
  const auto goes_on = [](const Tensor& x) { return x.square().sum({-1}) > 1e-3f; };
  const auto halved = [&](const Tensor& x) { return x.matmul(w) * 0.5f; };
  expect_as_by_hand(
      "vmap of while_loop", {xs},
      [&](const Tensors& in) {
        return Tensors{
            vmap([&](const Tensor& x) { return while_loop(goes_on, halved, x); })(in[0])};
      },
      [&](const Tensors& in) {
        return Tensors{while_loop([&](const Tensor& x) { return goes_on(x).any(); },
                                  [&](const Tensor& x) {
                                    const Tensor own = goes_on(x).unsqueeze(1);
                                    return Tensor::where(own, halved(x), x);
                                  },
                                  in[0])};
      });
}

}  // namespace koine::test
