// From a program of values to kernels: validity, what gets memory of its own and why, which kernels
// become one (rows W11, C38 and amendment C27).
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/decide.hpp"
#include "koine/lower/merge.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/validity.hpp"

namespace koine::test {
namespace {

Tensor filled(const Shape& shape) { return Tensor::full(shape, 1.5).clone().realize(); }

UOp program_of(const std::vector<Tensor>& values) {
  std::vector<UOp> what, destinations;
  for (const Tensor& v : values) {
    what.push_back(v.uop());
    destinations.push_back(new_buffer(v.uop().shape(), v.dtype(), Device("CPU")));
  }
  return make_validity_explicit(callify(what, destinations).body);
}

using Decisions = std::multimap<std::string, std::string>;

// What gets memory of its own: the op, and why.
Decisions decisions(const std::vector<Tensor>& values) {
  Decisions out;
  for (const UOp& u : toposort(decide(program_of(values))))
    if (u.is(Op::Contiguous) && std::holds_alternative<std::string>(u.arg()))
      out.emplace(op_name(u.src(0).op()), u.as<std::string>());
  return out;
}
// The memory that a program fills, and why: "output 0", "temporary 1", with what is stored there.
Decisions memory_in(const UOp& program) {
  Decisions out;
  for (const UOp& u : toposort(bufferize(decide(program)))) {
    if (!u.is(Op::After) || !std::holds_alternative<std::string>(u.arg())) continue;
    const UOp memory = memory_of_value(u);
    const int64_t slot = memory.as<BufferArg>().slot;
    out.emplace(fmt::format("{} {}", memory.is(Op::Buffer) ? "temporary" : "output", slot),
                fmt::format("{}: {}", op_name(u.src(1).src(1).op()), u.as<std::string>()));
  }
  return out;
}

TEST(schedule, spec_B20_every_value_in_memory_has_a_buffer_and_a_reason) {
  const Tensor x = filled({64, 48}), w = filled({48, 32});
  const Tensor scores = x.matmul(w);
  EXPECT_EQ(memory_in(program_of({scores.softmax(1)})),
            (Decisions{{"output 0", "Fdiv: output"},
                       {"temporary 0", "Reduce: a reduce read at several places"}}));
  // An output serves those who read the same value; what it is asked for twice is copied.
  EXPECT_EQ(memory_in(program_of({scores, scores.relu(), scores.contiguous()})),
            (Decisions{{"output 0", "Reshape: output"},
                       {"output 3", "Max: output"},
                       {"output 4", "After: output"}}));
  // What a Store reads of its own memory elsewhere is computed before.
  const UOp b = x.uop();
  const UOp turned = after(b, {store(b, flip(b, {0, 1}))});
  EXPECT_EQ(memory_in(make_validity_explicit(callify({turned}, {UOp()}).body)),
            (Decisions{{"temporary 0", "Flip: computed before it is overwritten"}}));
  const UOp doubled = after(b, {store(b, add(b, b))});
  EXPECT_EQ(memory_in(make_validity_explicit(callify({doubled}, {UOp()}).body)), Decisions{});
}

TEST(schedule, spec_C38_what_is_used_in_place_gets_no_memory) {
  const Tensor x = filled({64, 48}), w = filled({48, 32});
  EXPECT_EQ(decisions({(x + 1.0).exp().sin()}), Decisions{});
  EXPECT_EQ(decisions({x.softmax(1)}), Decisions{});
  EXPECT_EQ(decisions({x.log_softmax(1)}), Decisions{});
  EXPECT_EQ(decisions({x.layernorm()}), Decisions{});
  EXPECT_EQ(decisions({x.matmul(w).relu()}), Decisions{});
  EXPECT_EQ(decisions({x.transpose().exp()}), Decisions{});
}

TEST(schedule, spec_C38_what_would_be_repeated_gets_memory) {
  const Tensor x = filled({64, 48}), w = filled({48, 32}), v = filled({48, 32});
  const Decisions repeated{{"Exp2", "read under a loop it does not depend on"}};
  EXPECT_EQ(decisions({x.exp().matmul(w)}), repeated);
  EXPECT_EQ(decisions({x + filled({48}).exp()}), repeated);
  EXPECT_EQ(decisions({(x.matmul(w).exp() * 2.0).sum(0), x.matmul(w).exp().sum(1)}),
            (Decisions{{"Exp2", "several kernels read it"}}));
  const Tensor product = x.matmul(w);
  for (const Tensor& centred : {product - product.max(1, true), (-product.max(1, true)) + product})
    EXPECT_EQ(decisions({centred}).size(), 1u) << "the product is computed once";
}

// Elementwise work is computed again where that costs no more than its way through memory.
TEST(schedule, spec_C38_what_costs_less_than_memory_is_computed_again) {
  const Tensor x = filled({64, 48}), y = filled({64, 48});
  const auto stored = [&](int operations) {
    Tensor chain = x;
    for (int k = 0; k < operations; ++k) chain = k % 2 == 0 ? chain * y : chain + y;
    return decisions({chain + chain.flip({0})}).size();
  };
  EXPECT_EQ(stored(16), 0u);
  EXPECT_EQ(stored(64), 1u);
  EXPECT_EQ(stored(static_cast<int>(cost_of_memory)), 0u);
  EXPECT_EQ(stored(static_cast<int>(cost_of_memory) + 1), 1u);
}

// What most of the work of several values lies in gets memory, and the rest is computed again.
TEST(schedule, spec_C38_what_several_values_share_gets_memory_and_not_each_of_them) {
  const Tensor x = filled({64, 48}), y = filled({64, 48}), dear = x.sin().sin().sin().sin();
  auto blurred = [](const Tensor& t) { return t[Slice{1, 64}] + t[Slice{0, 63}]; };
  const std::string why = "computed for more elements than it has";
  EXPECT_EQ(decisions({blurred(dear * y)}), (Decisions{{"Mul", why}}));
  EXPECT_EQ(decisions({blurred(dear * y) * blurred(dear + y)}), (Decisions{{"Sin", why}}));
  EXPECT_EQ(decisions({blurred((y + dear * y) * y) * blurred(dear + y)}),
            (Decisions{{"Sin", why}}));
}

// The Stores of a Group on one device are one kernel, also where their shapes differ.
TEST(schedule, spec_B19_stores_of_a_group_are_one_reader) {
  const UOp x = filled({4}).uop(), narrow = filled({4}).uop(), wide = filled({2, 4}).uop();
  const UOp dear = UOp::make(Op::Sin, {x});
  const UOp both = group(std::vector<UOp>{
      store(narrow, dear), store(wide, expand(reshape(dear, shape_of({1, 4})), shape_of({2, 4})))});
  Decisions out;
  for (const UOp& u :
       toposort(decide(make_validity_explicit(callify({after(narrow, {both})}, {UOp()}).body))))
    if (u.is(Op::Contiguous)) out.emplace(op_name(u.src(0).op()), u.as<std::string>());
  EXPECT_EQ(out, (Decisions{{"Sin", "read under a loop it does not depend on"}}));
}

TEST(schedule, spec_C38_a_value_has_one_rounding) {
  const Tensor x = filled({8, 16}), w = filled({16, 8}), table = filled({8, 8});
  const Tensor c = x.matmul(w);
  const Decisions once{{"Reduce", "a reduce read at several places"}};
  EXPECT_EQ(decisions({c == c.max(1, true)}), once);
  EXPECT_EQ(decisions({c + c.transpose()}), once);
  const Decisions picked = decisions({table.index_select(0, c.argmax(1))});
  EXPECT_EQ(std::count(picked.begin(), picked.end(), *once.begin()), 1);
  in_both_modes([] {
    const Tensor a = Tensor::randn({64, 96}), b = Tensor::randn({96, 64});
    const Tensor product = a.matmul(b);
    EXPECT_EQ((product == product.max(1, true)).cast(DType::Int32).sum().item(), 64);
    const Tensor rows = Tensor::randn({64, 5}), best = rows.index_select(0, product.argmax(1));
    const auto values = product.tolist<float>(), from = rows.tolist<float>();
    const auto got = best.tolist<float>();
    for (size_t i = 0; i < 64; ++i) {
      const auto row = values.begin() + static_cast<std::ptrdiff_t>(i * 64);
      const auto k = static_cast<size_t>(std::max_element(row, row + 64) - row);
      for (size_t j = 0; j < 5; ++j) EXPECT_EQ(got[i * 5 + j], from[k * 5 + j]) << "row " << i;
    }
  });
}

// A product that kernels compute again, in a sum and elsewhere, is the same in all of them.
TEST(schedule, spec_C38_a_product_has_one_rounding) {
  in_both_modes([] {
    const Tensor a = Tensor::randn({64, 64}).realize(), b = Tensor::randn({64, 64}).realize();
    const Tensor c = a * b, below = c - c.max(0, true);
    EXPECT_EQ((below == 0).cast(DType::Int32).sum().item(), 64);
    EXPECT_EQ(below.max().item(), 0);
    const auto gaps = below.tolist<float>();
    EXPECT_EQ(std::count_if(gaps.begin(), gaps.end(), [](float g) { return g > 0; }), 0);
    // Where a product beside itself is read at several places, too, and through a view.
    const Tensor ones = Tensor::ones({4, 1}).realize();
    const Tensor same = (ones.expand({4, 3}) * 0.1).reshape({12});
    EXPECT_EQ((same.shrink({{1, 12}}) - same.shrink({{0, 11}})).abs().max().item(), 0);
    expect_same_everywhere(below);
  });
  // What is read once goes into a sum as it is.
  const Tensor x = filled({8, 16}), y = filled({8, 16}), z = filled({8, 16});
  auto rounded = [](const Tensor& t) {
    const NodeList order = toposort(decided_program(program_of({t}), {}));
    return std::count_if(order.begin(), order.end(), is_rounded_product);
  };
  EXPECT_EQ(rounded(x * y + z), 0);
  EXPECT_EQ(rounded(x.matmul(y.T())), 0);
  EXPECT_EQ(rounded((x * y).exp() + x * y), 1);
  // Nor does picking an element by a sum of one make another value of it.
  const Tensor here = Tensor::arange(0, 16, 1) == filled({8, 1}).cast(DType::Int32);
  const Tensor picked = Tensor::where(here, x * y, Tensor(0.0)).sum({1});
  EXPECT_EQ(rounded(picked.exp() + picked), 1);
  EXPECT_EQ(rounded(picked.exp()), 0);
}

// Operands that were exchanged make no second value.
TEST(schedule, spec_C38_a_value_has_one_order_of_operands) {
  const Tensor a = filled({8, 16}), b = filled({8, 16});
  auto stored = [&](const Tensor& t) {
    std::map<Op, int> count;
    for (const UOp& u : toposort(program_of({t}))) ++count[u.op()];
    return count;
  };
  EXPECT_EQ(stored((a * b).sin() + (b * a).cos())[Op::Mul],
            stored((a * b).sin() + (a * b).cos())[Op::Mul]);
  EXPECT_EQ(stored((a * b + b).sin() * (b + b * a))[Op::Add], 1);
  EXPECT_EQ(stored(a.maximum(b).sin() - b.maximum(a))[Op::Max], 2) << "of two zeros the left one";
  const Tensor i = a.cast(DType::Int32), j = b.cast(DType::Int32);
  EXPECT_EQ(stored(i.maximum(j) * j.maximum(i))[Op::Max], 1);
  in_both_modes([&] { expect_same_everywhere((a * b).sin() + (b * a).cos() + (a + b) * (b + a)); });
}

TEST(schedule, spec_C38_a_kernel_holds_one_product) {
  const Tensor y = filled({64, 48}), a = filled({48, 32}), b = filled({48, 32});
  const Decisions second{{"Reduce", "a product beside another"}};
  EXPECT_EQ(decisions({y.matmul(a) + y.matmul(b)}), second);
  EXPECT_EQ(decisions({(y.matmul(a) + y.matmul(b)).relu() * 2.0}), second);
  EXPECT_EQ(decisions({y.matmul(a) + y.matmul(a)}), Decisions{}) << "one product, twice";
  EXPECT_EQ(decisions({y.matmul(a) + y.sum(1, true)}), Decisions{}) << "a sum is no product";
}

// A fold over n elements into k places costs n + k where it is all that a kernel stores.
TEST(schedule, spec_C38_a_fold_by_index_is_alone_in_its_kernel) {
  const Tensor at = Tensor::from<int32_t>({3, 1, 1, 0, 2, 3}).realize(), x = filled({6}),
               one_hot = Tensor::arange(4).reshape({4, 1}) == at;
  const Tensor hist = Tensor::where(one_hot, x, Tensor(0.0)).sum(1);
  const Decisions alone{{"Reduce", "a fold by index"}};
  EXPECT_EQ(decisions({hist}), Decisions{}) << "an output";
  EXPECT_EQ(decisions({hist.contiguous()}), Decisions{});
  EXPECT_EQ(decisions({hist.reshape({2, 2}).transpose()}), Decisions{}) << "stored elsewhere";
  EXPECT_EQ(decisions({hist + 1.0}), alone);
  EXPECT_EQ(decisions({Tensor(1.0) + hist.flip({0})}), alone);
  EXPECT_EQ(decisions({(hist * hist).sum(0)}), alone);
  EXPECT_EQ(decisions({hist.pad({{1, 0}})}).size(), 1u);
  EXPECT_EQ(decisions({one_hot.max(1).logical_not()}), alone) << "which places are hit";
  const auto largest = [&](const Tensor& values) {
    return Tensor::where(one_hot, values, Tensor::zeros({}, values.dtype())).max(1) + 1;
  };
  EXPECT_EQ(decisions({largest(at.cast(DType::UInt8).realize())}), alone) << "none is below 0";
  EXPECT_EQ(decisions({largest(at)}), Decisions{}) << "0 counts where all are below it";
  EXPECT_EQ(decisions({hist.shrink({{1, 2}}) + 1.0}), Decisions{}) << "one place costs n";
  // Places that the program makes itself, and what is no test of equality.
  const Tensor back = Tensor::arange(6).flip({0}), place = Tensor::arange(6).reshape({6, 1});
  EXPECT_EQ(decisions({Tensor::where(place == back, x, Tensor(0.0)).sum(1) + 1.0}), Decisions{})
      << "each is read where it belongs";
  EXPECT_EQ(decisions({Tensor::where(place < at, x, Tensor(0.0)).sum(1) + 1.0}), Decisions{});
  // Two Stores of one kernel: each would fill and fold in loops of its own.
  const UOp p = filled({4}).uop(), q = filled({4}).uop();
  const UOp both = group(std::vector<UOp>{store(p, hist.uop()), store(q, (hist + 1.0).uop())});
  size_t folds = 0;
  for (const UOp& u :
       toposort(decide(make_validity_explicit(callify({after(p, {both})}, {UOp()}).body))))
    folds += u.is(Op::Contiguous) && u.as<std::string>() == "a fold by index" ? 1 : 0;
  EXPECT_EQ(folds, 1u);
}

// A place among rows decides its row, too, wherever the loop of the rows stands.
TEST(schedule, a_fold_by_index_into_rows_of_batches) {
  const Tensor at(leaf({3, 1, 20}, DType::UInt8)), x(leaf({3, 1, 20}, DType::Float32, 1));
  const Tensor hit = Tensor::arange(6).reshape({6, 1}) == at.mod(7);
  const Tensor sums = Tensor::where(hit, x, 0.0).sum(2), most = hit.max(2);
  for (const Shape& shape : {Shape{3, 2, 3}, Shape{3, 3, 2}, Shape{3, 3, 1, 2}}) {
    expect_same_everywhere(sums.reshape(shape));
    expect_same_everywhere(most.reshape(shape));
    expect_same_everywhere(sums.reshape(shape).transpose(1, 2));
  }
}

// What else a condition says of the place is asked at each place.
TEST(schedule, a_fold_by_index_under_a_further_condition) {
  const Tensor at = Tensor::from<int32_t>({3, 1, 1, 0, 2, 3}).realize(), x = filled({6}),
               place = Tensor::arange(4).reshape({4, 1}), w = Tensor(leaf({4, 6})),
               row = Tensor(leaf({4, 1}, DType::Float32, 1)), none(0.0);
  const std::vector<Tensor> further{
      w > 0.0, row > 0.0, place < 3, (place + at).mod(2) == 0, place < Tensor::arange(6), x > 0.0};
  for (const Tensor& condition : further)
    for (const Tensor& sum :
         {Tensor::where((place == at).bitwise_and(condition), x, none).sum(1),
          Tensor::where(condition.bitwise_and(at == place), x, none).sum(1),
          Tensor::where((place == at).bitwise_and(condition), x, none).max(1)}) {
      expect_same_everywhere(sum);
      expect_same_everywhere(sum + 1.0);
    }
}

TEST(schedule, spec_C38_a_kernel_does_not_grow_without_bound) {
  in_both_modes([] {
    const Tensor x = Tensor::from<float>({1, -2, 0.5F}).realize();
    Tensor chain = x;
    for (int i = 0; i < 1000; ++i) chain = chain * Tensor(0.5) + x;
    EXPECT_EQ(decisions({chain}).size(), 4u);
    EXPECT_EQ(kernel_count({chain}), 5);
    EXPECT_EQ(chain.tolist<float>(), (std::vector<float>{2, -4, 1}));
    // As many terms side by side.
    Tensor sum = x * Tensor(0.0);
    for (int i = 1; i <= 600; ++i) sum = sum + x * Tensor(static_cast<double>(i));
    EXPECT_LE(kernel_count({sum}), 6);
    EXPECT_EQ(sum.tolist<float>(), (std::vector<float>{180300, -360600, 90150}));
  });
}

// Each becomes much code, and the compiler's time grows faster than one kernel.
TEST(schedule, spec_C38_a_sum_of_many_sines_is_several_kernels) {
  const Tensor x = filled({30}).realize();
  auto kernels_of_sum = [&](int64_t terms) {
    Tensor sum = x;
    for (int64_t i = 0; i < terms; ++i) sum = sum + (x * (0.5 * i)).sin() * (1.0 / (i + 1));
    const std::vector<Kernel> kernels = schedule({sum.uop()});
    int64_t all = 0;
    for (const Kernel& k : kernels) {
      size_t held = 0;
      for (const UOp& u : toposort(k.ast)) {
        held += operations_of(u);
        all += u.is(Op::Sin) ? 1 : 0;
      }
      EXPECT_LE(held, 2 * most_fused_operations);
    }
    EXPECT_EQ(all, terms) << "each is computed once";
    return kernels.size();
  };
  const size_t few = kernels_of_sum(100), many = kernels_of_sum(400);
  EXPECT_GE(few, 5U);
  EXPECT_LE(many, 4 * few + 2);
}

// A term of its own in memory each would be as many buffers as terms.
TEST(schedule, spec_C38_a_large_sum_goes_on_from_kernel_to_kernel_in_one_buffer) {
  const Tensor x = filled({500}).realize();
  for (const int order : {0, 1, 2}) {
    Tensor sum = x;
    for (int i = 0; i < 200; ++i) {
      const Tensor term = (x * (0.37 + i)).sin();
      sum = order == 0 || (order == 2 && i % 2 == 0) ? sum + term : term + sum;
    }
    const std::vector<Kernel> kernels = schedule({sum.uop()});
    EXPECT_LE(kernels.size(), 25U);
    for (const Kernel& k : kernels) EXPECT_LE(k.buffers.size(), 3U) << k.reason;
    reset_counters();
    sum.realize();
    EXPECT_LE(counters().temporary_bytes, 2 * 500 * 4 + 256);
    EXPECT_LE(counters().compiled, 5) << "most differ in numbers alone";
  }
}

// What several read is in a kernel once, so doubling it adds one operation.
TEST(schedule, spec_C38_what_is_shared_counts_once_towards_the_size_of_a_kernel) {
  Tensor z = filled({30}).realize();
  for (int i = 0; i < 100; ++i) z = z * 0.5 + z;
  EXPECT_EQ(kernel_count({z}), 1);
}

// The parts of a large value that are cut off are no larger than what is read of it.
TEST(schedule, spec_C38_a_large_value_of_which_a_part_is_read_is_computed_for_that_part) {
  Tensor large = filled({1000, 8}).realize();
  for (int i = 0; i < 30; ++i) large = (large * 0.5).sin();
  reset_counters();
  (large.shrink({{10, 12}, {0, 8}}) + 1.0).realize();
  EXPECT_LE(counters().operations, 16 * 30 * 100);
}

// A row of positions that all columns share is made and looked at as that row.
TEST(schedule, spec_C38_positions_that_are_repeated_are_looked_at_once) {
  const Tensor at = Tensor::from<int32_t>({3, 1, 1, -1}).realize(), x = filled({4, 64});
  const Tensor all = at.reshape({4, 1}).expand({4, 64});
  for (const Tensor& value :
       {Tensor::zeros({8, 64}).scatter_add(0, all, x), filled({8, 64}).gather(0, all)})
    for (const Kernel& k : schedule({value.uop()}))
      for (size_t slot = 0; slot < k.buffers.size(); ++slot)
        if (k.stores(slot) && k.buffers[slot].dtype() == DType::Int64) {
          EXPECT_LE(k.buffers[slot].numel(), 4) << k.reason;
        }
}

TEST(schedule, spec_C38_what_data_decides_the_place_of_is_computed_before) {
  const Tensor at = Tensor::from<int32_t>({3, 1, 1, 0, 2, 3}).realize(), x = filled({4, 50});
  const Decisions before{{"Reduce", "read at places that data decides"}};
  EXPECT_EQ(decisions({x.sum(1).index_select(0, at)}), before);
  EXPECT_EQ(decisions({x.sin().index_select(0, at)}),
            (Decisions{{"Sin", "read at places that data decides"}}));
  const Tensor few = Tensor::from<int32_t>({3}).realize();
  EXPECT_EQ(decisions({x.sin().index_select(0, few)}), Decisions{}) << "less work than all of x";
}

// --- the order of operands ---------------------------------------------------------------------

TEST(schedule, spec_C38_the_order_of_operands_changes_no_work) {
  std::mt19937_64 random(test_seed());
  const Tensor x = filled({24, 16}), w = filled({16, 12}), y = filled({24, 16});
  const Tensor h = x.matmul(w), s = h.softmax(1);
  const Tensor z = (x * y + x.exp()) * (y.sin() + x.sum(1, true));
  const std::vector<std::vector<Tensor>> programs{
      {h - h.max(1, true)},
      {s, s * s.log()},
      {x.layernorm() + y.layernorm() * x},
      {h.gelu() + h.silu()},
      {z, z.sum(0), z * x},
      {(x + y.exp()).matmul(w) + (x.exp() + y).matmul(w)},
      {x.matmul(w).matmul(w.transpose()).softmax(1).matmul(y.transpose())},
      {(h + 1.0) * (h.transpose().sum(0).reshape({24, 1}) + h)},
  };
  for (size_t i = 0; i < programs.size(); ++i) {
    std::vector<UOp> values;
    for (const Tensor& t : programs[i]) values.push_back(t.uop());
    const auto expected = counted_work(values);
    for (int k = 0; k < 6; ++k) {
      const UOp other = with_swapped_operands(tuple(values), random);
      const std::vector<UOp> swapped(other.src().begin(), other.src().end());
      EXPECT_EQ(counted_work(swapped), expected)
          << "program " << i << ", KOINE_TEST_SEED=" << test_seed();
    }
  }
}

// A value that a fold reads, and what reads the fold, costs what the fold makes of it.
TEST(schedule, spec_C38_the_order_of_operands_changes_no_cost) {
  const UOp x = filled({36}).sin().uop(), most = expand(reduce(Op::Max, x, {0}), x.shape());
  const double cost = element_cost(binary(Op::CmpNe, x, most), nullptr);
  EXPECT_EQ(element_cost(binary(Op::CmpNe, most, x), nullptr), cost);
  EXPECT_GT(cost, 36 * element_cost(x, nullptr));
}

// --- kernels that become one -------------------------------------------------------------------

TEST(schedule, spec_W11_kernels_over_the_same_loops_are_one) {
  const Tensor x = filled({40, 30}), y = filled({40, 30});
  const Tensor m = x * 0.9 + y * 0.1, v = x * 0.99 + y * y * 0.01, p = x - m / (v.sqrt() + 1e-8);
  const std::vector<Kernel> step = schedule({m.uop(), v.uop(), p.uop()});
  ASSERT_EQ(step.size(), 1u) << "moments and parameter of Adam";
  int stores = 0, loads = 0;
  for (const UOp& u : toposort(step[0].ast)) {
    stores += u.is(Op::Store);
    loads += u.is(Op::Load);
  }
  EXPECT_EQ(stores, 3);
  EXPECT_EQ(loads, 2) << "each input is read once";
  EXPECT_EQ(kernel_count({x.mean(1), x.max(1)}), 1) << "reduces over the same rows";
  EXPECT_EQ(kernel_count({x.exp(), x.exp() + y}), 1);
  // A temporary that two read is a value where they are one kernel.
  const Tensor dear = x.sin().exp();
  EXPECT_EQ(kernel_count({dear + y, dear * y}), 1);
  EXPECT_EQ(schedule({(dear + y).uop(), (dear * y).uop()})[0].buffers.size(), 4u);
}

// What is kept for the backward pass beside what is made of it: one kernel, which reads x once.
TEST(schedule, spec_W11_a_value_and_the_folds_of_its_rows_are_one_kernel) {
  const Tensor x = filled({40, 30});
  const Tensor most = x.max(1, true), mean = x.mean(1, true), centred = x - mean,
               rstd = (centred.square().mean(1, true) + 1e-5).sqrt().reciprocal();
  const std::vector<std::pair<const char*, std::vector<Tensor>>> programs{
      {"x - max", {x - most, most}},
      {"softmax, max", {x.softmax(1), most}},
      {"exp, sum", {x.exp(), x.exp().sum(1)}},
      {"softmax, exp, sum", {x.softmax(1), (x - most).exp(), (x - most).exp().sum(1)}},
      {"layernorm", {centred * rstd, mean, rstd}},
      {"softmax, log_softmax", {x.softmax(1), x.log_softmax(1)}},
  };
  for (const auto& [name, values] : programs) {
    std::vector<UOp> uops;
    for (const Tensor& t : values) uops.push_back(t.uop());
    const std::vector<Kernel> kernels = schedule(uops);
    EXPECT_EQ(kernels.size(), 1u) << name;
    if (kernels.size() != 1) continue;
    EXPECT_EQ(kernels[0].buffers.size(), values.size() + 1) << name;
    EXPECT_EQ(count_ops(kernels[0].ast, Op::Store) - ssize(row_fills(kernels[0].ast)),
              ssize(values))
        << name << to_text(kernels[0].ast);
  }
  // Few rows leave threads nothing to do, and a row that does not fit is read from memory.
  const Tensor few = filled({4, 3000}), wide = filled({16, 90000});
  EXPECT_EQ(kernel_count({few - few.max(1, true), few.max(1)}), 2);
  EXPECT_EQ(kernel_count({wide.exp(), wide.exp().sum(1)}), 2);
  EXPECT_EQ(kernel_count({wide - wide.max(1, true), wide.max(1)}), 1) << "which needs no row";
  // Loops that are just as long are not the same: shapes decide nothing by chance.
  const Tensor v = filled({8, 9, 8}), e = filled({8, 9}).exp(), v8 = filled({8, 8, 8}),
               e8 = filled({8, 8}).exp();
  EXPECT_EQ(kernel_count({e, (e.reshape({8, 9, 1}) * v).sum(1)}), 2);
  EXPECT_EQ(kernel_count({e8, (e8.reshape({8, 8, 1}) * v8).sum(1)}), 2);
  EXPECT_EQ(kernel_count({x.flip({1}).exp(), x.sum(1)}), 1) << "each row is read once";
  EXPECT_EQ(kernel_count({x.flip({0}).exp(), x.sum(1)}), 2) << "rows from the last to the first";
  // Forward and backward together.
  Tensor p = filled({40, 30});
  p.requires_grad();
  const Tensor w = filled({40, 30}), s = p.softmax(1), n = p.layernorm();
  EXPECT_EQ(kernel_count({s, (s * w).sum().gradient({p})[0]}), 1);
  EXPECT_EQ(kernel_count({n, (n * w).sum().gradient({p})[0]}), 1);
}

TEST(schedule, spec_W11_what_stays_apart) {
  const Tensor x = filled({40, 30}), w = filled({30, 40}), v = filled({30, 40});
  EXPECT_EQ(kernel_count({x.exp(), x.transpose().exp()}), 2) << "other loops";
  EXPECT_EQ(kernel_count({x.matmul(w), x.matmul(v)}), 2) << "two products";
  EXPECT_EQ(kernel_count({x.exp(), w.exp()}), 2) << "nothing in common";
  EXPECT_EQ(kernel_count({x.exp().contiguous() + x}), 2) << "asked for";
  // The sum lies on the way from the first to the last.
  const Tensor a = x + 1.0, last = a + (a * 2.0).sum(0).sum(0);
  EXPECT_EQ(kernel_count({a, last}), kernel_count({last}) + 1);
  // It does so from kernels that `beside` shares an input with, to `beside`.
  const Tensor wide = filled({200, 100}), y = filled({200, 100});
  const Tensor first = wide + 1.0, beside = y + (first * 2.0).sum();
  std::vector<Tensor> all{first, beside, first * 2.0, first * y};
  std::vector<int> order{0, 1, 2, 3};
  do {
    std::vector<UOp> values;
    for (const int i : order) values.push_back(all[static_cast<size_t>(i)].uop());
    EXPECT_EQ(schedule(values).size(), 3u) << "the first and what reads it, the sum, and beside";
  } while (std::next_permutation(order.begin(), order.end()));
  Tensor::realize(all);
  EXPECT_EQ(beside.tolist<float>()[7], 1.5F + 200 * 100 * 5.0F);
  // Parts of one memory that overlap: the later write stays, wherever it begins.
  const Tensor some = Tensor::from<int>({1, 2, 3, 4, 5, 6}), others = some * Tensor(10);
  for (const auto& [one, two] : {std::pair(0, 3), {3, 0}}) {
    Tensor parts = Tensor::zeros({9}, DType::Int32).clone().realize();
    parts[{Slice{one, one + 6}}].assign(some);
    parts[{Slice{two, two + 6}}].assign(others);
    EXPECT_EQ(parts.tolist<int>(), two == 3 ? (std::vector<int>{1, 2, 3, 10, 20, 30, 40, 50, 60})
                                            : (std::vector<int>{10, 20, 30, 40, 50, 60, 4, 5, 6}));
  }
}

// Two devices that send to each other: what goes there is not computed behind what comes.
TEST(schedule, what_is_sent_does_not_wait_for_what_is_received) {
  const Tensor x = filled({40, 30}), there = (filled({40, 30}) + 1.0).to("CPU:1").realize();
  const std::vector<Tensor> all{x + (there * 2.0).to("CPU"), x * 3.0,
                                (x + 4.0).to("CPU:1") * there};
  std::vector<size_t> order{0, 1, 2};
  do {
    std::vector<UOp> values;
    for (const size_t k : order) values.push_back(all[k].uop());
    const std::vector<Kernel> kernels = schedule(values);
    std::set<const Node*> sent, received;
    for (const Kernel& k : kernels) {
      if (!is_copy(k.ast)) continue;
      received.insert(k.buffers[0].node());
      sent.insert(k.buffers[1].node());
    }
    EXPECT_EQ(sent.size(), 2u);
    int on_first = 0;
    for (const Kernel& k : kernels) {
      if (is_copy(k.ast)) continue;
      on_first += k.device() == Device("CPU") ? 1 : 0;
      bool sends = false, waits = false;
      for (size_t slot = 0; slot < k.buffers.size(); ++slot) {
        sends = sends || (k.stores(slot) && sent.contains(k.buffers[slot].node()));
        waits = waits || (!k.stores(slot) && received.contains(k.buffers[slot].node()));
      }
      EXPECT_FALSE(sends && waits) << to_text(k.call);
    }
    EXPECT_EQ(on_first, 2) << "what needs nothing from there goes with one of the others";
  } while (std::next_permutation(order.begin(), order.end()));
}

// What is read byte by byte is in memory before: no value stands for it.
TEST(schedule, spec_W11_memory_seen_with_two_dtypes_is_no_value) {
  in_both_modes([] {
    const Tensor x = Tensor::from<float>({1, -2, 0.5F, 3}).realize();
    const UOp t = (x * 3.0).uop();
    const UOp bytes = reshape(bitcast(t, DType::UInt8), shape_of({4, 4}));
    const UOp sums = reshape(reduce(Op::Add, cast(bytes, DType::Float32), {1}), shape_of({4}));
    const UOp both = add(t, sums);
    EXPECT_EQ(schedule({t, both}).size(), 2u);
    const std::vector<UOp> got = realize({t, both});
    EXPECT_EQ(array_of(got[0]).data, interpret(t, bindings_of(t)).data);
    EXPECT_EQ(array_of(got[1]).data, interpret(both, bindings_of(both)).data);
  });
}

// A host program by hand may hand over one memory twice: what is stored into it is no value of what
// is read from it.
TEST(schedule, one_memory_in_two_slots_merges_with_nothing) {
  const UOp shape = shape_of({8}), i = range(0, index_const(8), AxisType::Loop);
  auto at = [&](int64_t slot) { return index(param(slot, shape, DType::Float32), {i}); };
  const UOp twice = sink({end(store(at(0), add(load(at(1)), load(at(1)))), {i})}),
            product = sink({end(store(at(0), mul(load(at(1)), load(at(2)))), {i})});
  const Device cpu("CPU");
  const UOp out = param(0, shape, DType::Float32, cpu), in = param(1, shape, DType::Float32, cpu),
            between = UOp::make(Op::Buffer, {shape}, BufferArg{0, DType::Float32, cpu});
  const UOp program =
      UOp::make(Op::Linear, {kernel_call(twice, std::vector<UOp>{between, in}, "output"),
                             kernel_call(product, std::vector<UOp>{out, out, between}, "output")});
  EXPECT_EQ(merge_kernels(program, compile_options()).src().size(), 2u);
}

// Values of one shape with sums between them, all asked for at once: merged kernels keep the order
// that the sums demand.
TEST(schedule, spec_W11_merged_kernels_compute_what_single_ones_do) {
  for (uint64_t seed = test_seed(); seed < test_seed() + 60; ++seed) {
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", seed));
    std::mt19937_64 random(seed);
    std::vector<UOp> pool{random_leaf(random, {6, 5}, DType::Int32),
                          random_leaf(random, {6, 5}, DType::Int32)};
    auto any = [&] { return pool[random() % pool.size()]; };
    for (int step = 0; step < 14; ++step) {
      const UOp a = any(), b = any();
      const UOp sum = reduce(Op::Add, b, {static_cast<int64_t>(random() % 2)});
      switch (random() % 6) {
        case 0:
        case 1:
        case 2:
          pool.push_back(add(a, b));
          break;
        case 3:
          pool.push_back(maximum(a, neg(b)));
          break;
        case 4:
          pool.push_back(add(a, expand(sum, b.shape())));
          break;
        default:
          pool.push_back(flip(bit_xor(a, b), {1, 0}));
      }
    }
    std::vector<UOp> values, expected;
    for (size_t i = 2; i < pool.size(); ++i)
      if (random() % 3 != 0) values.push_back(pool[i]);
    const Bindings bindings = bindings_of(tuple(pool));
    const std::vector<UOp> got = realize(values);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(difference(interpret(values[i], bindings), array_of(got[i])), "") << "value " << i;
  }
}

// What is made of constants alone folds away, and is computed where it is read; not a long chain,
// which would be computed again for each element of each fold.
TEST(schedule, a_chain_of_folds_over_constants_grows_with_its_length) {
  const auto chain = [](int64_t length, bool stacked) {
    Tensor z = stacked ? Tensor::zeros({2}) + 0.25 : Tensor::arange(2).cast(DType::Float32);
    for (int64_t i = 0; i < length; ++i)
      z = ((stacked ? z * 0.5 + Tensor::stack({z, z}).sum() : z + z.sum()) * 0.25).sin();
    return z;
  };
  for (const bool stacked : {false, true}) {
    const auto nodes = [&](int64_t length) {
      size_t most = 0;
      for (const Kernel& k : schedule({chain(length, stacked).uop()}))
        most = std::max(most, toposort(k.ast).size());
      return most;
    };
    EXPECT_EQ(nodes(40), nodes(20));
    EXPECT_LE(kernel_count({chain(40, stacked)}), 2 * 40);
    expect_same_everywhere(chain(6, stacked));
  }
  EXPECT_EQ(kernel_count({Tensor::arange(64).reshape({8, 8}).sum(0).max() +
                          Tensor::zeros({8}).contiguous()}),
            2)
      << "a few of them have no memory";
}

// --- validity ------------------------------------------------------------------------------------

// The factor with the columns is copied where the product has rows enough to pay for that: into
// panels where it is large, and where it lies along the sum, as B in A.B^T. Only for CPUs.
TEST(schedule, factors_of_products_with_many_rows_are_copied_into_panels) {
  CompileOptions how = compile_options();
  auto panels = [&](const Tensor& value) {  // shapes of the copies
    std::vector<std::string> out;
    for (const UOp& u : toposort(decided_program(program_of({value}), how)))
      if (u.is(Op::Contiguous) && u.arg() == Arg(std::string("panels of a factor")))
        out.push_back(shape_text(u));
    return fmt::format("{}", fmt::join(out, " "));
  };
  auto lying = [](const Shape& a, const Shape& b) {
    return filled(a).matmul(filled(b).transpose(-1, -2));
  };
  EXPECT_EQ(panels(filled({256, 512}).matmul(filled({512, 128}))), "(1, 2, 512, 64)");
  EXPECT_EQ(panels(filled({4, 64, 512}).matmul(filled({512, 240}))), "(1, 3, 512, 80)");
  EXPECT_EQ(panels(filled({2, 256, 1000}).matmul(filled({2, 1000, 144}))), "(2, 1, 3, 1000, 48)");
  EXPECT_EQ(panels(filled({256, 512}).matmul(filled({512, 352}))), "(1, 11, 512, 32)");
  EXPECT_EQ(panels(filled({255, 512}).matmul(filled({512, 128}))), "") << "few rows";
  EXPECT_EQ(panels(filled({256, 511}).matmul(filled({511, 128}))), "") << "it fits a cache";
  EXPECT_EQ(panels(filled({256, 2000}).matmul(filled({2000, 100}))), "") << "odd columns";
  EXPECT_EQ(panels(filled({256, 2000}).matmul(filled({2000, 96}))), "") << "one panel already";
  EXPECT_EQ(panels(lying({256, 32}, {40, 32})), "(1, 1, 32, 40)");
  EXPECT_EQ(panels(lying({256, 32}, {128, 32})), "(1, 2, 32, 64)");
  EXPECT_EQ(panels(lying({256, 16}, {16, 16})), "(1, 1, 16, 16)");
  EXPECT_EQ(panels(lying({255, 32}, {40, 32})), "") << "few rows";
  EXPECT_EQ(panels(lying({256, 32}, {15, 32})), "") << "few columns";
  EXPECT_EQ(panels(lying({256, 15}, {40, 15})), "") << "few steps";
  EXPECT_EQ(panels(lying({3, 256, 32}, {3, 40, 32})), "(3, 1, 1, 32, 40)");
  EXPECT_EQ(panels(lying({300, 16, 32}, {300, 40, 32})), "") << "a batch is no rows";
  EXPECT_EQ(panels(lying({16, 16, 32}, {40, 32})), "(1, 1, 32, 40)") << "the factor has no batch";
  EXPECT_EQ(panels(filled({256, 32}).matmul(filled({32, 40}))), "") << "it lies along columns";
  EXPECT_EQ(panels(filled({32, 256}).transpose().matmul(filled({32, 40}))), "");
  EXPECT_EQ(panels(filled({256, 32})
                       .cast(DType::Int32)
                       .matmul(filled({40, 32}).cast(DType::Int32).transpose())),
            "")
      << "no floats";
  // Where panels stand outside of the rows these lie along the sum, or are copied to.
  auto kernels = [&](const Tensor& value) {
    return kernels_of(rangeify(program_of({value}), how)).size();
  };
  EXPECT_EQ(kernels(filled({1024, 256}).transpose().matmul(filled({1024, 256}))), 3);
  EXPECT_EQ(kernels(filled({256, 1024}).matmul(filled({1024, 256}))), 2) << "they do";
  EXPECT_EQ(kernels(filled({512, 256}).transpose().matmul(filled({512, 256}))), 2) << "inside";
  // What another product makes is made as it is, and then copied.
  const Tensor made = filled({40, 48}).matmul(filled({48, 32}));
  EXPECT_EQ(
      kernels_of(rangeify(program_of({filled({256, 32}).matmul(made.transpose())}), how)).size(),
      3);
  // So is what is made of one, in the kernel of that.
  EXPECT_EQ(
      kernels_of(rangeify(program_of({filled({256, 32}).matmul(made.exp().transpose())}), how))
          .size(),
      3);
  // The other factor has no axis to sum over, or fewer axes.
  const Tensor outer = filled({512, 1}) * filled({300, 1, 512});
  EXPECT_EQ(panels(outer.sum(0)), "(1, 8, 300, 64)");
  how.multiprocessors = 80;
  EXPECT_EQ(panels(lying({256, 32}, {40, 32})), "") << "groups share the factors of a product";
}

// Products whose factor is copied into panels are what they are without: whole numbers, of which
// float32 has all sums, in every place of the factor and of what is made of the product.
TEST(schedule, products_over_panels_are_those_without) {
  in_both_modes([] {
    const auto numbers = [](const Shape& shape, int64_t mod) {
      const Tensor n =
          Tensor::arange(shape[0] * shape[1] * (shape.size() > 2 ? int64_t{shape[2]} : 1));
      return (n % Tensor(mod) - Tensor(mod / 2)).cast(DType::Float32).reshape(shape).contiguous();
    };
    struct Case {
      int64_t batch, rows, columns, steps;
    };
    for (const auto& [batch, rows, columns, steps] :
         {Case{1, 256, 128, 512}, {1, 300, 240, 300}, {2, 257, 144, 470}, {1, 258, 17, 16}}) {
      const Tensor a = numbers({batch, rows, steps}, 13), b = numbers({batch, steps, columns}, 11);
      const auto x = a.tolist<float>(), y = b.tolist<float>();
      std::vector<float> want(static_cast<size_t>(batch * rows * columns));
      for (int64_t n = 0; n < batch * rows; ++n)
        for (int64_t k = 0; k < steps; ++k)
          for (int64_t c = 0; c < columns; ++c)
            want[static_cast<size_t>(n * columns + c)] +=
                x[static_cast<size_t>(n * steps + k)] *
                y[static_cast<size_t>((n / rows * steps + k) * columns + c)];
      SCOPED_TRACE(fmt::format("{} {} {} {}", batch, rows, columns, steps));
      const Tensor turned = b.transpose(1, 2).contiguous();
      EXPECT_EQ(a.matmul(b).tolist<float>(), want);
      EXPECT_EQ(a.matmul(turned.transpose(1, 2)).tolist<float>(), want);
      EXPECT_EQ(
          (a.matmul(turned.transpose(1, 2)) * Tensor(2.0) + Tensor(1.0)).sum().item(),
          2 * std::accumulate(want.begin(), want.end(), 0.0) + static_cast<double>(want.size()));
    }
    expect_same_everywhere(
        Tensor(leaf({256, 16})).matmul(Tensor(leaf({17, 16}, DType::Float32, 1)).transpose()));
  });
}

TEST(schedule, spec_amend_27_validity_becomes_part_of_the_values) {
  const UOp x = Tensor::from<int>({3, 1, 2}).realize().uop();
  const UOp padded = pad(x, shape_of({1}), shape_of({5}));
  const UOp program = callify({reduce(Op::Max, padded, {0}), contiguous(padded)},
                              {new_buffer(shape_of({1}), DType::Int32, Device("CPU")),
                               new_buffer(shape_of({5}), DType::Int32, Device("CPU"))})
                          .body;
  const UOp made = make_validity_explicit(program);
  for (const UOp& u : toposort(made)) {
    EXPECT_FALSE(u.is(Op::Pad) && u.src().size() == 3) << to_text(made);
    EXPECT_FALSE(u.is(Op::Const) && is_invalid(u)) << to_text(made);
  }
  EXPECT_FALSE(may_be_invalid(made));
  EXPECT_EQ(make_validity_explicit(made), made) << "there is nothing more to do";
}

}  // namespace
}  // namespace koine::test
