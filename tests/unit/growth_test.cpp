// What large programs cost, counted: kernels and loads of those that run, nodes visited and edits
// tried while they are made.
#include "check.hpp"
#include "digits_net.hpp"
#include "kernels.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/lower/pipeline.hpp"

namespace koine::test {
namespace {

// Default mode, whatever the environment says.
void in_default_mode(const std::function<void()>& action) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  action();
}

// --- what runs -----------------------------------------------------------------------------------

TEST(growth, spec_L2_the_step_of_the_demo_is_45_kernels) {
  in_default_mode([] {
    app::DigitsNet net;
    nn::AdamW optimizer(nn::get_parameters(net), 4e-3, 0.9, 0.999, 1e-8, 0.02);
    const Tensor images = Tensor::rand({64, 1, 8, 8}).realize(),
                 labels = Tensor::randint({64}, 0, 10).realize();
    for (int step = 0; step < 3; ++step) {
      reset_counters();
      optimizer.set_learning_rate(1e-3 * (step + 1));
      (void)app::train_step(net, optimizer, images, labels);
      EXPECT_LE(counters().kernels, 45);
    }
  });
}

std::vector<Tensor> parts(int64_t count, int64_t size) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(Tensor(leaf({size}, DType::Float32, static_cast<uint64_t>(i))));
  return out;
}

// Loads an element, and kernels.
std::pair<double, int64_t> cost_of(const Tensor& value) {
  const std::vector<Kernel> kernels = schedule({value.uop()});
  return {loads_of(kernels) / static_cast<double>(value.numel()),
          static_cast<int64_t>(kernels.size())};
}

TEST(growth, spec_C38_a_join_of_many_parts_reads_each_once) {
  in_default_mode([] {
    const auto [loads, kernels] = cost_of(Tensor::cat(parts(512, 1000)));
    EXPECT_LE(loads, 1);
    EXPECT_LE(kernels, 17);
    clear_compile_cache();
    reset_counters();
    const auto got = Tensor::cat(parts(512, 1000)).tolist<float>();
    EXPECT_EQ(counters().compiled, 2) << "31 parts at any offset, and the 16 that are left";
    EXPECT_EQ(counters().bytes, 2 * 512 * 1000 * 4.0);
    for (const int64_t k : {0, 16, 511}) {
      const std::vector<float> part = parts(512, 1000)[static_cast<size_t>(k)].tolist<float>();
      EXPECT_TRUE(std::equal(part.begin(), part.end(), got.begin() + 1000 * k,
                             [](float a, float b) { return a == b || (a != a && b != b); }));
    }
  });
}

TEST(growth, spec_C38_what_is_made_of_a_stack_of_many_parts_reads_each_twice) {
  in_default_mode([] {
    const auto [loads, kernels] = cost_of(Tensor::stack(parts(128, 1000)) + 0.5);
    EXPECT_LE(loads, 2);
    EXPECT_LE(kernels, 6);
  });
}

// Rows by index cost what is written alone, however long the array is.
TEST(growth, spec_C38_setitem_by_a_tensor_index_costs_what_it_writes) {
  in_both_modes([] {
    constexpr int64_t rows = 64, width = 4;
    auto bytes = [](int64_t n) {
      Tensor x = Tensor(leaf({n, width})).contiguous().realize();
      const Tensor at = (Tensor::arange(rows) * 3).contiguous().realize(),
                   v = Tensor(leaf({rows, width})).contiguous().realize();
      reset_counters();
      x.setitem({at}, v);
      (void)x.realize();
      return counters().bytes;
    };
    constexpr double read_and_written = rows * width * (4 + 4);
    for (const int64_t n : {1000, 100000}) {
      EXPECT_GE(bytes(n), read_and_written);
      EXPECT_LE(bytes(n), 4 * read_and_written);
    }
  });
}

// A loop of writes without a look runs in parts, each in place: as many bytes as the elements that
// are written, and kernels of one part serve all others.
TEST(growth, spec_C38_a_loop_of_element_writes_moves_each_element_once) {
  in_both_modes([] {
    const auto cost = [](int64_t n) {
      clear_compile_cache();
      Tensor x = Tensor::randn({n}).realize(), y = Tensor::zeros({n}).realize(),
             z = Tensor::zeros({n}).realize();
      reset_counters();
      for (int64_t i = 0; i < n; ++i) {
        y.setitem({i}, x[n - 1 - i] * (static_cast<double>(i) + 0.5));
        z[i].assign(i == 0 ? x[0] : z[i - 1] * 0.5 + x[i]);
      }
      Tensor::realize({y, z});
      const Counters c = counters();
      const auto in = x.tolist<float>(), out = y.tolist<float>(), running = z.tolist<float>();
      for (size_t i = 1; i < in.size(); i += 37) {
        EXPECT_EQ(out[i], in[in.size() - 1 - i] * (static_cast<float>(i) + 0.5F)) << i;
        EXPECT_NEAR(running[i], running[i - 1] * 0.5F + in[i], 1e-5) << i;
      }
      return c;
    };
    const Counters few = cost(512), many = cost(2048);
    constexpr double apart = 2 + 5;  // with the state before the last write, which is held
    EXPECT_LE(few.bytes, 512 * 4 * apart);
    EXPECT_LE(many.bytes, 2048 * 4 * apart);
    EXPECT_LE(many.compiled, few.compiled);
    EXPECT_LE(few.compiled, 24);
  });
}

// --- what is compiled
// -----------------------------------------------------------------------------

// Nodes that all walks of scheduling and lowering meet, and those that rules and passes visit.
struct Visits {
  double scheduled = 0, lowered = 0;
};

Visits visits_of(const std::vector<UOp>& values) {
  auto now = [] { return static_cast<double>(walked_nodes() + rewrite_counters().visits); };
  const Target target = generic_target(false);
  const double start = now();
  const std::vector<Kernel> kernels = schedule(values);
  const double scheduled = now();
  for (const Kernel& k : kernels)
    if (k.ast.is(Op::Sink)) (void)lower_kernel(k.ast, target);
  return {scheduled - start, now() - scheduled};
}

struct Chain {
  const char* what;
  int64_t n;
  std::function<std::vector<Tensor>(int64_t)> values;
};

std::vector<Chain> chains() {
  auto data = [](const Shape& shape) { return Tensor(leaf(shape)).contiguous().realize(); };
  return {
      {"layers", 24,
       [=](int64_t n) {
         Tensor h = data({8, 16});
         std::vector<Tensor> weights;
         for (int64_t i = 0; i < n; ++i) {
           weights.push_back(data({16, 16}).requires_grad());
           h = h + h.layernorm().matmul(weights.back()).relu();
         }
         std::vector<Tensor> out = h.square().sum().gradient(weights);
         out.push_back(h);
         return out;
       }},
      {"elementwise", 25000,
       [=](int64_t n) {
         Tensor z = data({64});
         const Tensor c = data({64});
         for (int64_t i = 0; i < n; ++i) z = i % 2 == 0 ? z + c : z * c;
         return std::vector<Tensor>{z};
       }},
      {"sums", 250,
       [=](int64_t n) {
         Tensor z = data({64});
         const Tensor c = data({64});
         for (int64_t i = 0; i < n; ++i) z = z + z.sum() * c;
         return std::vector<Tensor>{z};
       }},
      {"sines", 200,
       [=](int64_t n) {
         const Tensor x = data({64});
         Tensor z = x;
         for (int64_t i = 0; i < n; ++i)
           z = z +
               (x * (static_cast<double>(i) + 0.5)).sin() * (1.0 / (static_cast<double>(i) + 1));
         return std::vector<Tensor>{z};
       }},
      {"joined scalars", 500,
       [=](int64_t n) {
         const Tensor x = data({64});
         std::vector<Tensor> scalars;
         for (int64_t i = 0; i < n; ++i)
           scalars.push_back(x[i % 64] * (static_cast<double>(i) + 0.5));
         return std::vector<Tensor>{Tensor::stack(scalars)};
       }},
      {"joined scalars in memory", 500,
       [=](int64_t n) {
         std::vector<Tensor> scalars;
         for (int64_t i = 0; i < n; ++i) scalars.push_back(data({1}));
         return std::vector<Tensor>{Tensor::cat(scalars)};
       }},
      {"a chain of sines and its gradient", 400,
       [=](int64_t n) {
         Tensor x = data({64}).requires_grad(), z = x;
         for (int64_t i = 0; i < n; ++i) z = z.sin();
         return std::vector<Tensor>{z.sum().gradient({x})[0]};
       }},
      {"fused steps", 2000,
       [=](int64_t n) {
         Tensor z = data({64});
         for (int64_t i = 0; i < n; ++i)
           z = (z * 1.01 + static_cast<double>(i)).maximum(z) - z * 0.5;
         return std::vector<Tensor>{z};
       }},
      {"parameters", 100,
       [=](int64_t n) {
         std::vector<Tensor> out;
         for (int64_t i = 0; i < n; ++i) {
           const Tensor m = data({64}), g = data({64}), p = data({64});
           out.push_back(m * 0.9 + g * 0.1);
           out.push_back(p - out.back() * 0.01);
         }
         return out;
       }},
      {"outputs of a chain", 200,
       [=](int64_t n) {
         Tensor z = data({64});
         std::vector<Tensor> out;
         for (int64_t i = 0; i < n; ++i) out.push_back((z = z * z + 1).sum());
         return out;
       }},
  };
}

TEST(growth, spec_C38_what_is_compiled_is_looked_at_in_proportion) {
  in_default_mode([] {
    for (const Chain& c : chains()) {
      SCOPED_TRACE(c.what);
      auto visits = [&](int64_t n) {
        std::vector<UOp> values;
        for (const Tensor& t : c.values(n)) values.push_back(t.uop());
        return visits_of(values);
      };
      const Visits one = visits(c.n), four = visits(4 * c.n);
      EXPECT_LE(four.scheduled, 4.4 * one.scheduled);
      EXPECT_LE(four.lowered, 4.4 * one.lowered);
    }
  });
}

// What a layer takes does not depend on how many there are.
TEST(growth, spec_C38_kernels_a_layer_do_not_grow_with_depth) {
  auto data = [](const Shape& shape) { return Tensor(leaf(shape)).contiguous().realize(); };
  auto parameter = [=](const Shape& shape) { return data(shape).clone().requires_grad(); };
  const auto transformer = [=](int64_t n) {
    Tensor h = data({8, 16});
    std::vector<Tensor> all;
    auto weight = [&](const Shape& shape) {
      all.push_back(parameter(shape));
      return all.back();
    };
    for (int64_t i = 0; i < n; ++i) {
      const Tensor g = weight({16}), b = weight({16});
      const Tensor y = h.layernorm() * g + b;
      const Tensor q = y.matmul(weight({16, 16})), k = y.matmul(weight({16, 16})),
                   v = y.matmul(weight({16, 16}));
      h = h + q.matmul(k.transpose(0, 1)).softmax(-1).matmul(v).matmul(weight({16, 16}));
      h = h + h.layernorm().matmul(weight({16, 16})).gelu().matmul(weight({16, 16}));
    }
    return h.square().sum().gradient(all);
  };
  const auto lstm = [=](int64_t n) {
    const Tensor x = data({n, 4, 8}), w = parameter({8, 32}), u = parameter({8, 32});
    Tensor h = data({4, 8}), c = data({4, 8});
    auto gate = [](const Tensor& z, int64_t k) { return z[{Slice{}, Slice{8 * k, 8 * k + 8}}]; };
    for (int64_t i = 0; i < n; ++i) {
      const Tensor z = x[i].matmul(w) + h.matmul(u);
      c = gate(z, 0).sigmoid() * c + gate(z, 1).sigmoid() * gate(z, 2).tanh();
      h = gate(z, 3).sigmoid() * c.tanh();
    }
    return h.square().sum().gradient({w, u});
  };
  for (const auto& [what, values] :
       {std::pair<const char*, std::function<std::vector<Tensor>(int64_t)>>{"transformer",
                                                                            transformer},
        {"lstm", lstm}}) {
    auto kernels = [&, made = values](int64_t n) {
      std::vector<UOp> requested;
      for (const Tensor& t : made(n)) requested.push_back(t.uop());
      return static_cast<int64_t>(schedule(requested).size());
    };
    const int64_t few = kernels(6), twice = kernels(12);
    EXPECT_LE(few, 6 * 31) << what;
    EXPECT_EQ(kernels(48), twice + 6 * (twice - few)) << what;
  }
}

// A sine becomes a page of code, for which a kernel counts it as so many operations.
TEST(growth, a_chain_of_what_becomes_much_code_is_cut_sooner) {
  auto kernels = [](auto step) {
    Tensor z = Tensor(leaf({64})).contiguous().realize();
    for (int i = 0; i < 100; ++i) z = step(z);
    reset_counters();
    z.realize();
    return counters().kernels;
  };
  EXPECT_EQ(kernels([](const Tensor& z) { return z.sin(); }), 10);
  EXPECT_EQ(kernels([](const Tensor& z) { return z.sqrt(); }), 1);
}

// --- what is looked at
// ----------------------------------------------------------------------------

// Nodes that walks meet while a request is made that looks like an earlier one.
double warm_walk(const std::function<std::vector<Tensor>()>& request) {
  Tensor::realize(request());
  const std::vector<Tensor> values = request();
  const int64_t before = walked_nodes();
  reset_counters();
  Tensor::realize(values);
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_GT(counters().kernels, 0);
  return static_cast<double>(walked_nodes() - before);
}

TEST(growth, spec_C38_a_warm_realize_walks_the_graph_of_all_outputs_a_fixed_number_of_times) {
  auto data = [] { return Tensor(leaf({8})).contiguous().realize(); };
  const Tensor c = data();
  std::vector<Tensor> weights;  // leaves as long as they live
  struct Case {
    const char* what;
    std::function<std::vector<Tensor>(int64_t)> request;
    double nodes;  // met for an output, at most
  };
  const std::vector<Case> cases{
      {"sums along a chain",
       [&](int64_t n) {
         Tensor z = c;
         std::vector<Tensor> out;
         for (int64_t i = 0; i < n; ++i) out.push_back((z = z * z + c).sum());
         return out;
       },
       6},
      {"Functions along a chain, whose Params are no Variables",
       [&](int64_t n) {
         Tensor z = c;
         std::vector<Tensor> out;
         for (int64_t i = 0; i < n; ++i) out.push_back((z = z.gelu() * c).sum());
         return out;
       },
       4},
      {"gradients",
       [&](int64_t n) {
         Tensor z = c;
         weights.clear();
         for (int64_t i = 0; i < n; ++i) {
           weights.push_back(data().requires_grad());
           z = z * weights.back() + c;
         }
         return z.sum().gradient(weights);
       },
       30},
      {"parameters that are assigned",
       [&](int64_t n) {
         std::vector<Tensor> out;
         Tensor loss = c;
         for (int64_t i = 0; i < n; ++i) loss = loss + data();
         for (int64_t i = 0; i < n; ++i) {
           Tensor p = data();
           p.assign(p - loss * 0.5);
           out.push_back(p);
         }
         return out;
       },
       20},
      {"views that are written",
       [&](int64_t n) {
         std::vector<Tensor> out;
         Tensor z = c;
         for (int64_t i = 0; i < n; ++i) {
           Tensor cache = data();
           z = z * z + c;
           cache.setitem({Slice{0, 4}}, z.shrink({{0, 4}}));
           out.push_back(cache);
         }
         return out;
       },
       130},
  };
  for (const Case& k : cases) {
    SCOPED_TRACE(k.what);
    const double few = warm_walk([&] { return k.request(50); }),
                 many = warm_walk([&] { return k.request(800); });
    EXPECT_LE(many, 16 * 1.05 * few);
    EXPECT_LE(many, 800 * k.nodes);
  }
}

// What an optimiser assigns is numbered to be a leaf of its own; the numbers are no part of what
// the step looks like, so it is prepared once.
TEST(growth, spec_L9_a_warm_step_of_an_optimiser_is_prepared_already) {
  in_default_mode([] {
    Tensor w = Tensor(leaf({8, 8})).clone();
    w.requires_grad();
    const Tensor x = Tensor(leaf({4, 8})).contiguous().realize();
    nn::SGD optimizer({w}, 1e-3);
    double seconds = 0;
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      x.matmul(w).square().mean().backward();
      reset_counters();
      optimizer.step();
      EXPECT_GT(counters().kernels, 0);
      seconds = counters().schedule_seconds;
    }
    EXPECT_EQ(seconds, 0);
  });
}

// --- what is new each time
// -------------------------------------------------------------------------

// Clones, zero-filled buffers and random numbers, whose state is another at each call.
TEST(growth, spec_L9_new_memory_and_new_random_state_compile_nothing) {
  in_both_modes([] {
    const Tensor x = Tensor(leaf({8, 16})).contiguous().realize();
    struct Case {
      const char* what;
      std::function<Tensor()> value;
      bool differs;  // from call to call
    };
    const std::vector<Case> cases{
        {"zeros cloned", [] { return Tensor::zeros({128}).clone(); }, false},
        {"cloned", [&] { return x.clone(); }, false},
        {"zeros written",
         [] {
           Tensor out = Tensor::zeros({16});
           out.setitem({Slice{0, 4}}, Tensor(2.0));
           return out;
         },
         false},
        {"rand", [] { return Tensor::rand({128}); }, true},
        {"randn", [] { return Tensor::randn({8, 16}) * 2.0 + 1.0; }, true},
        {"randint", [] { return Tensor::randint({128}, 0, 1000000); }, true},
        {"randperm", [] { return Tensor::randperm(64); }, true},
        {"dropout", [&] { return x.dropout(0.5); }, true},
    };
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      std::vector<std::vector<std::byte>> seen;
      for (uint64_t call = 0; call < 6; ++call) {
        if (call == 4) Tensor::manual_seed(test_seed() + call);
        reset_counters();
        seen.push_back(c.value().bytes());
        if (call < 2) continue;
        EXPECT_EQ(counters().compiled, 0) << "call " << call;
        EXPECT_EQ(seen[call] != seen[call - 1], c.differs) << "call " << call;
      }
    }
  });
}

}  // namespace
}  // namespace koine::test
