// Functions that their gradient computes again: values are the same, bit for bit in strict mode,
// programs hold less at a time, and everything composes.
#include <cmath>

#include "check.hpp"
#include "gradient_check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/loops.hpp"
#include "koine/tensor/transforms.hpp"

namespace koine::test {
namespace {

struct Block {
  Tensor up, down;
  template <class V>
  void tensors(V&& visit) {
    visit(up);
    visit(down);
  }
};
using Blocks = std::vector<Block>;

Blocks random_blocks(int64_t count, int64_t width, int64_t inner) {
  Blocks out;
  for (int64_t k = 0; k < count; ++k) {
    const auto salt = static_cast<uint64_t>(10 * k);
    out.push_back({(small({width, inner}, salt + 1) * 0.2).realize(),
                   (small({inner, width}, salt + 2) * 0.2).realize()});
  }
  return out;
}

Tensor inside(const Block& b, const Tensor& x) {
  const Tensor wide = save_as("wide", x.matmul(b.up));
  return x + wide.tanh().exp().matmul(b.down);
}

// The loss of blocks one after the other, each as `wrap` makes it.
template <class Wrap>
auto loss_of(Wrap&& wrap) {
  return [=](const Blocks& blocks, const Tensor& x) {
    Tensor y = x;
    for (const Block& b : blocks) y = wrap(inside)(b, y);
    return y.square().mean();
  };
}
const auto plain = [](auto f) { return f; };
auto kept(const Keep& keep) {
  return [keep](auto f) { return checkpoint(f, keep); };
}

std::vector<Tensor> flat(std::pair<Tensor, Blocks> found) {
  std::vector<Tensor> out{found.first};
  for (const Block& b : found.second) {
    out.push_back(b.up);
    out.push_back(b.down);
  }
  return out;
}

std::vector<Array> realized(std::vector<Tensor> values) {
  Tensor::realize(values);
  std::vector<Array> out;
  for (const Tensor& t : values) out.push_back(array_of(t.uop()));
  return out;
}

void expect_equal_bits(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                       const std::string& what) {
  const std::vector<Array> a = realized(want), b = realized(got);
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t k = 0; k < a.size(); ++k) EXPECT_EQ(difference(a[k], b[k]), "") << what << " " << k;
}

// What one program for the loss and all gradients costs.
Counters cost_of(std::vector<Tensor> values) {
  reset_counters();
  Tensor::realize(values);
  return counters();
}

const std::vector<std::pair<const char*, Keep>>& policies() {
  static const auto& list = *new const std::vector<std::pair<const char*, Keep>>{
      {"nothing", Keep::nothing()},
      {"names", Keep::names({"other", "wide"})},
      {"products", Keep::products()},
      {"both", Keep::products() | Keep::names({"wide"})},
      {"everything", Keep::everything()},
      {"unbatched", Keep::unbatched_products()},
      {"other names", Keep::other_names({"other"})},
      {"no names", Keep::other_names({})},
      {"all but", Keep::all_but({"wide"})},
      {"all but or other", Keep::all_but({"wide", "x"}) | Keep::other_names({"wide"})},
  };
  return list;
}

}  // namespace

TEST(checkpoint, gradients_are_equal_bit_for_bit_in_strict_mode) {
  const OptionScope strict(strict_options());
  const Blocks blocks = random_blocks(3, 6, 10);
  const Tensor x = small({5, 6}, 3).realize();
  const std::vector<Tensor> want = flat(value_and_grad(loss_of(plain))(blocks, x));
  for (const auto& [name, keep] : policies())
    expect_equal_bits(flat(value_and_grad(loss_of(kept(keep)))(blocks, x)), want, name);
}

TEST(checkpoint, a_fence_around_what_reads_no_memory_has_its_value) {
  const UOp one = constant_int(DType::UInt64, 1), waits = leaf({2}, DType::Float32);
  for (const Op marked : {Op::ContiguousBackward, Op::Detach, Op::Contiguous}) {
    expect_same_everywhere(UOp::make(Op::Fence, {UOp::make(marked, {idiv(one, one)}), waits}));
    const UOp wide = koine::expand(reshape(one, shape_of({1})), shape_of({5}));
    expect_same_everywhere(UOp::make(Op::Fence, {UOp::make(marked, {wide}), waits}));
  }
}

// Also where deciding looks through it, at a sum that numbers pick from.
TEST(checkpoint, a_fence_among_what_is_added_by_numbers_has_its_value) {
  const Tensor ones(UOp::make(Op::Fence, {Tensor::ones({3}).uop()}));
  const Tensor sums = Tensor::zeros({5}).scatter_add(0, Tensor::from<int>({4, 1, 4}), ones);
  EXPECT_EQ(sums.tolist<float>(), (std::vector<float>{0, 1, 0, 0, 2}));
}

TEST(checkpoint, a_program_holds_less_at_a_time) {
  const int64_t rows = 64, width = 16, inner = 96;
  const auto arena = [&](const auto& wrap, int64_t count) {
    const Blocks blocks = random_blocks(count, width, inner);
    const Tensor x = small({rows, width}, 3).realize();
    return cost_of(flat(value_and_grad(loss_of(wrap))(blocks, x))).temporary_bytes;
  };
  const auto wrap = kept(Keep::nothing());
  // Each block more holds its argument alone, instead of what is inside of it too.
  const int64_t argument = rows * width * 4, wide = rows * inner * 4;
  const int64_t all = arena(plain, 8) - arena(plain, 4), little = arena(wrap, 8) - arena(wrap, 4);
  EXPECT_GE(all, 4 * wide);
  EXPECT_LE(little, 4 * (argument + 64 * 4));
  EXPECT_LE(arena(wrap, 8), arena(plain, 8) / 3);
  // A checkpoint of blocks that are checkpoints holds less again: an argument for each group, and
  // those of one group.
  const auto grouped = [&](const Blocks& blocks, const Tensor& x) {
    Tensor y = x;
    for (size_t g = 0; g < blocks.size(); g += 4)
      y = checkpoint([&, g](const Blocks& own, const Tensor& in) {
        Tensor out = in;
        for (size_t k = g; k < g + 4; ++k) out = checkpoint(inside)(own[k], out);
        return out;
      })(blocks, y);
    return y.square().mean();
  };
  const Blocks blocks = random_blocks(16, width, inner);
  const Tensor x = small({rows, width}, 3).realize();
  const Counters nested = cost_of(flat(value_and_grad(grouped)(blocks, x)));
  EXPECT_LT(nested.temporary_bytes, arena(wrap, 16) - 4 * argument);
}

TEST(checkpoint, a_part_of_memory_is_no_value_to_keep) {
  const Blocks blocks = random_blocks(3, 6, 10);
  const Tensor x = small({5, 6}, 3).realize(), all = small({9, 6}, 3).realize(),
               part = all.shrink({{2, 7}, {0, 6}});
  const auto cost = [&](const Tensor& in) {
    return cost_of(flat(value_and_grad(loss_of(kept(Keep::nothing())))(blocks, in)));
  };
  EXPECT_EQ(cost(part).temporary_bytes, cost(x).temporary_bytes);
  EXPECT_EQ(cost(part).kernels, cost(x).kernels);
}

// What is kept is not computed again: the work says so, and the memory.
// The gradient computes again with what it reads, and holds nothing else.
TEST(checkpoint, takes_no_argument_that_its_gradient_does_not_read) {
  const Tensor x = small({4, 8}, 1).realize(), w = small({8, 8}, 2).realize(),
               b = small({8}, 3).realize();
  const auto f = [](const Tensor& in, const Tensor& weights, const Tensor& bias) {
    return (in.matmul(weights).tanh() + bias).sum();
  };
  const auto [dx, dw] = grad<0, 1>(checkpoint(f, Keep::nothing()))(x, w, b);
  size_t functions = 0;
  for (const UOp& u : toposort(sink(std::vector<UOp>{dx.uop(), dw.uop()}))) {
    if (!u.is(Op::Function)) continue;
    ++functions;
    EXPECT_EQ(params_of(u.src(0)).size(), u.src().size() - 1) << to_text(u);
  }
  EXPECT_GT(functions, 0U);
}

TEST(checkpoint, policies_keep_names_or_products) {
  const Blocks blocks = random_blocks(6, 16, 64);
  const Tensor x = small({32, 16}, 3).realize();
  std::map<std::string, Counters> cost;
  for (const auto& [name, keep] : policies())
    cost[name] = cost_of(flat(value_and_grad(loss_of(kept(keep)))(blocks, x)));
  const double product = 2.0 * 32 * 16 * 64;  // of a block, either one
  const auto more = [&](const char* name) {
    return (cost[name].operations - cost["everything"].operations) / product / 6;
  };
  // The second product is the result, which nobody asks for; what is elementwise is cheap to keep.
  EXPECT_NEAR(more("nothing") - more("names"), 1, 0.05);
  EXPECT_NEAR(more("nothing") - more("products"), 1, 0.05);
  EXPECT_GT(more("names"), 0.5) << "tanh and exp are computed again";
  EXPECT_LT(cost["nothing"].temporary_bytes, cost["names"].temporary_bytes);
  EXPECT_LT(cost["names"].temporary_bytes, cost["everything"].temporary_bytes);
  EXPECT_EQ(cost["products"].temporary_bytes, cost["both"].temporary_bytes);
  // A name that nobody gives keeps nothing.
  const Counters other =
      cost_of(flat(value_and_grad(loss_of(kept(Keep::names({"other"}))))(blocks, x)));
  EXPECT_EQ(other.operations, cost["nothing"].operations);
  EXPECT_EQ(other.temporary_bytes, cost["nothing"].temporary_bytes);
}

// It costs what reading its factors does.
TEST(checkpoint, a_sum_of_elementwise_products_is_none_of_the_products) {
  const Tensor x = small({64, 256}, 1).realize(), w = small({64, 256}, 2).realize();
  const auto cost = [&](const Keep& keep) {
    const auto f = [](const Tensor& a, const Tensor& b) { return (a * b).sum(1).tanh().exp(); };
    const auto loss = [&](const Tensor& a, const Tensor& b) {
      return checkpoint(f, keep)(a, b).square().sum();
    };
    return cost_of({value_and_grad(loss)(x, w).second}).operations;
  };
  EXPECT_EQ(cost(Keep::products()), cost(Keep::nothing()));
  EXPECT_LT(cost(Keep::everything()), cost(Keep::nothing()));
}

TEST(checkpoint, what_functions_inside_compute_is_kept_too) {
  const Blocks blocks = random_blocks(4, 16, 64);
  const Tensor x = small({32, 16}, 3).realize();
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto in_function = [how](auto f) { return koine::function(f, how); };
    const auto both = [&](const Keep& keep) {
      return [keep, in_function](auto f) {
        return checkpoint([=](const Block& b, const Tensor& in) { return in_function(f)(b, in); },
                          keep);
      };
    };
    const double all = cost_of(flat(value_and_grad(loss_of(in_function))(blocks, x))).operations;
    const double product = 2.0 * 32 * 16 * 64 * 4;
    const auto again = [&](const Keep& keep) {
      const auto found = flat(value_and_grad(loss_of(both(keep)))(blocks, x));
      const double more = cost_of(found).operations - all;
      const OptionScope strict(strict_options());
      expect_equal_bits(flat(value_and_grad(loss_of(both(keep)))(blocks, x)),
                        flat(value_and_grad(loss_of(plain))(blocks, x)), "function");
      return more / product;
    };
    const double everything = again(Keep::nothing());
    EXPECT_NEAR(everything - again(Keep::names({"wide"})), 1, 0.05);
    EXPECT_NEAR(everything - again(Keep::products()), 1, 0.05);
    EXPECT_EQ(again(Keep::names({"other"})), everything);
  }
}

TEST(checkpoint, spec_amend_36_random_numbers_are_the_same_again) {
  const Tensor ones = Tensor::full({64}, 1.0).realize();
  const random::Key key(7);
  const auto expect_same_mask = [&](const auto& f, const char* name) {
    // Of x * mask the slope is the mask.
    const auto [value, slope] = value_and_grad([&](const Tensor& x) {
      const Tensor y = checkpoint(f)(x);
      return std::pair{y.sum(), y};
    })(ones);
    EXPECT_EQ(value.second.template tolist<float>(), slope.template tolist<float>()) << name;
    const float sum = value.first.template tolist<float>()[0];
    EXPECT_TRUE(sum > 0 && sum != 64) << name << ": nothing is dropped";
  };
  expect_same_mask([](const Tensor& x) { return x.dropout(0.5); }, "the global stream");
  expect_same_mask([&](const Tensor& x) { return random::dropout(key, x, 0.5); }, "a key");
  // Two calls draw different numbers.
  const auto drop = checkpoint([](const Tensor& x) { return x.dropout(0.5); });
  EXPECT_NE(drop(ones).tolist<float>(), drop(ones).tolist<float>());
}

TEST(checkpoint, composes_with_every_transform) {
  const Tensor w = doubles({4, 4}, 1), x = doubles({4}, 2), t = doubles({4}, 3),
               xs = doubles({3, 4}, 4);
  const auto body = [&](const Tensor& v) {
    return save_as("inner", (w.matmul(v)).sin()) * v + (v * 0.5).exp();
  };
  for (const auto& [name, keep] : policies()) {
    const auto again = checkpoint(body, keep);
    const auto twice = checkpoint([&](const Tensor& v) { return again(again(v)); }, keep);
    const auto nested = [&](const Tensor& v) { return body(body(v)); };
    const auto check = [&, name = name](const auto& f, const auto& g, const char* what) {
      const std::string where = std::string(name) + " " + what;
      const auto sum_f = [&](const Tensor& v) { return f(v).sum(); };
      const auto sum_g = [&](const Tensor& v) { return g(v).sum(); };
      expect_near(f(x), g(x), where);
      expect_near(grad(sum_f)(x), grad(sum_g)(x), where + " grad");
      expect_near(jvp(f, x, t).second, jvp(g, x, t).second, where + " jvp");
      expect_near(vjp(f, x).second(t), vjp(g, x).second(t), where + " vjp");
      expect_near(linearize(f, x).second(t), linearize(g, x).second(t), where + " linearize");
      expect_near(vmap(f)(xs), vmap(g)(xs), where + " vmap");
      expect_near(vmap(grad(sum_f))(xs), vmap(grad(sum_g))(xs), where + " vmap grad");
      const auto all_f = [&](const Tensor& v) { return vmap(f)(v).sum(); };
      const auto all_g = [&](const Tensor& v) { return vmap(g)(v).sum(); };
      expect_near(grad(all_f)(xs), grad(all_g)(xs), where + " grad vmap");
      expect_near(jacfwd(f)(x), jacrev(g)(x), where + " jacfwd");
      expect_near(jacrev(f)(x), jacrev(g)(x), where + " jacrev");
      expect_near(hessian(sum_f)(x), hessian(sum_g)(x), where + " hessian");
      expect_near(hvp(sum_f, x, t), hvp(sum_g, x, t), where + " hvp");
      const auto slope_f = [&](const Tensor& v) { return (grad(sum_f)(v) * t).sum(); };
      const auto slope_g = [&](const Tensor& v) { return (grad(sum_g)(v) * t).sum(); };
      expect_near(grad(slope_f)(x), grad(slope_g)(x), where + " reverse over reverse");
    };
    check(again, body, "once");
    check(twice, nested, "twice");
    if (std::string(name) != "nothing" && std::string(name) != "products") continue;
    const auto each = vmap([&](const Tensor& v) { return save_as("inner", v.sin() * t[0]) * v; });
    check(checkpoint(each, keep), each, "of vmap");
    for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
      check(koine::function(again, how), body, "in a function");
      check(checkpoint(koine::function(body, how), keep), body, "of a function");
    }
  }
  // The gradient of what is used from outside, and central differences.
  check_gradient(
      [&](const Tensor& v) {
        return checkpoint([&](const Tensor& u) { return (u * v).sin(); })(x);
      },
      doubles({4}, 5));
  check_second_gradient(checkpoint(body), x);
}

// In many examples what is equal in all of them waits for the cotangents of all.
TEST(checkpoint, spec_V10_shared_arguments_wait_for_every_example) {
  const Tensor w = doubles({4}, 1), xs = doubles({3, 4}, 2);
  const auto loss = [](const Tensor& v, const Tensor& x) {
    return (checkpoint([](const Tensor& u) { return u.sin().exp(); })(v) * x).square().sum();
  };
  const Tensor made = vmap(grad(loss), {std::nullopt, 0})(w, xs);
  size_t fences = 0;
  for (const UOp& u : toposort(made.uop())) {
    if (!u.is(Op::Fence)) continue;
    ++fences;
    EXPECT_EQ(u.rank(), 1u);
    EXPECT_EQ(u.src(1).rank(), 2u) << "the cotangents of all examples";
  }
  EXPECT_EQ(fences, 1u);
  const auto plain_loss = [](const Tensor& v, const Tensor& x) {
    return (v.sin().exp() * x).square().sum();
  };
  expect_near(made, vmap(grad(plain_loss), {std::nullopt, 0})(w, xs), "examples");
}

TEST(checkpoint, costs_a_forward_computation_more_and_none_without_a_gradient) {
  const Blocks blocks = random_blocks(4, 16, 64);
  const Tensor x = small({32, 16}, 3).realize();
  const auto wrap = kept(Keep::nothing());
  const auto forward = [&](const auto& w) { return cost_of({loss_of(w)(blocks, x)}).operations; };
  const auto both = [&](const auto& w) {
    return cost_of(flat(value_and_grad(loss_of(w))(blocks, x))).operations;
  };
  EXPECT_EQ(forward(wrap), forward(plain));
  EXPECT_LE(both(wrap), both(plain) + 1.02 * forward(plain));
  EXPECT_GE(both(wrap), both(plain) + 0.4 * forward(plain));
}

TEST(checkpoint, backward_and_captured_steps_see_it) {
  const OptionScope strict(strict_options());
  const Tensor x = small({8, 6}, 1).realize();
  const auto step = [&](bool again) {
    Tensor w = (small({6, 6}, 2) * 0.5).realize();
    w.requires_grad();
    const auto body = [&](const Tensor& v) { return v.matmul(w).tanh(); };
    for (int k = 0; k < 3; ++k) {
      const Tensor y = again ? checkpoint(body)(checkpoint(body)(x)) : body(body(x));
      w.zero_grad();
      y.square().mean().backward();
      w.assign(w - w.grad() * 0.1);
      w.realize();
    }
    return w.tolist<float>();
  };
  EXPECT_EQ(step(true), step(false));
  // A step that is captured runs again on other values.
  const Tensor w = (small({6, 6}, 2) * 0.5).realize(), other = small({8, 6}, 3).realize();
  const auto gradient_at = [&](const Tensor& v) {
    return grad([&](const Tensor& a) {
      return checkpoint([&](const Tensor& b) { return b.matmul(w).tanh(); })(a).square().sum();
    })(v);
  };
  const Tensor expected = gradient_at(other);
  CapturedStep captured({gradient_at(x).uop()});
  captured.run();
  captured.replace(x.uop(), other.uop());
  captured.run();
  EXPECT_EQ(Tensor(captured.outputs()[0]).tolist<float>(), expected.tolist<float>());
}

TEST(checkpoint, of_scans_and_in_their_steps) {
  const OptionScope strict(strict_options());
  const Tensor xs = small({4, 3}, 1).realize(), h = small({3}, 2).realize();
  const Tensor w = (small({3, 3}, 3) * 0.5).realize();
  const auto cell = [](const Tensor& weights, const Tensor& c, const Tensor& x) {
    return (c.matmul(weights) + x).tanh();
  };
  const auto loss = [&](bool around, bool inside) {
    return [=](const Tensor& weights) {
      const auto step = [=](const Tensor& c, const Tensor& x) {
        const Tensor next = inside ? checkpoint(cell)(weights, c, x) : cell(weights, c, x);
        return std::pair(next, next * next);
      };
      const auto all = [=](const Tensor& rows) { return scan(step, h, rows).second; };
      return (around ? checkpoint(all)(xs) : all(xs)).sum();
    };
  };
  const auto want = grad(loss(false, false))(w).tolist<float>();
  EXPECT_EQ(grad(loss(true, false))(w).tolist<float>(), want);
  EXPECT_EQ(grad(loss(false, true))(w).tolist<float>(), want);
  EXPECT_EQ(grad(loss(true, true))(w).tolist<float>(), want);
  EXPECT_EQ(vmap(grad(loss(true, true)))(Tensor::stack({w, w}))[1].tolist<float>(), want);
}

TEST(checkpoint, on_several_devices) {
  const OptionScope strict(strict_options());
  const Tensor w = small({6, 6}, 1).realize(), x = small({4, 6}, 2).realize();
  const auto loss = [](const auto& wrap) {
    return [=](const Tensor& v, const Tensor& in) {
      const auto body = [](const Tensor& a, const Tensor& b) { return b.matmul(a).tanh(); };
      return wrap(body)(v, wrap(body)(v, in)).square().sum();
    };
  };
  const Tensor want = grad(loss(plain))(w, x);
  const std::string two = "CPU,CPU:1";
  const auto on_two = [&](const auto& wrap) {
    const Tensor out = grad(loss(wrap))(w.shard(two), x.shard(two, 0)).to("CPU");
    return out.tolist<float>();
  };
  EXPECT_EQ(on_two(kept(Keep::nothing())), on_two(plain));
  EXPECT_EQ(on_two(kept(Keep::products())), on_two(plain));
  EXPECT_EQ(int64_t{want.size(0)}, 6);
}

TEST(checkpoint, results_are_equal_everywhere) {
  const Tensor w = small({4, 4}, 1), x = small({3, 4}, 2);
  const auto f = checkpoint([&](const Tensor& v) { return (v.matmul(w)).tanh().softmax(); });
  expect_same_everywhere(grad([&](const Tensor& v) { return f(f(v)).square().sum(); })(x));
  // Invalid elements, views, constants and whole numbers among the arguments.
  const Tensor padded(koine::pad(x.uop(), shape_of({1, 0}), shape_of({4, 4})));
  expect_same_everywhere(grad([&](const Tensor& v) {
    const Tensor invalid(koine::pad(v.uop(), shape_of({1, 0}), shape_of({4, 4})));
    return f(invalid).sum() + f(v.flip({0}) * 2).sum() + f(v * 0 + 1).sum();
  })(x));
  const Tensor at = Tensor::from<int>({2, 0, 1});
  expect_same_everywhere(grad([&](const Tensor& v) {
    return checkpoint([](const Tensor& u, const Tensor& i) { return u.index_select(0, i).exp(); })(
               v, at)
        .sum();
  })(x));
}

TEST(checkpoint, what_only_names_a_value_is_gone_when_it_runs) {
  const Tensor x = small({3}, 1).realize();
  EXPECT_EQ(kernel_count({save_as("a", x * 2) + 1}), 1);
  EXPECT_EQ(save_as("a", x).tolist<float>(), x.tolist<float>());
  EXPECT_EQ(jvp([](const Tensor& v) { return save_as("a", v); }, x, x).second.tolist<float>(),
            x.tolist<float>());
}

TEST(checkpoint, misuse_is_refused_in_words) {
  const Tensor x = small({3}, 1);
  expect_error([&] { (void)save_as("", x); }, {"save_as", "empty"});
  expect_error([&] { (void)save_as("a,b", x); }, {"save_as", "'a,b'", "comma"});
  expect_error([&] { (void)Keep::names({"fine", ""}); }, {"save_as", "empty"});
  expect_error([&] { checkpoint([](const Tensor& v) { return v * v.sum().item(); })(x); },
               {"traced", "checkpoint_test.cpp"});
  expect_error([&] { (void)function(tuple(std::vector<UOp>{}), {}, Arg(std::string("other"))); },
               {"Function", "checkpoint"});
}

}  // namespace koine::test
