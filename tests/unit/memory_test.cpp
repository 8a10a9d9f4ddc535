// Memory and what stands for it: Params, Variables, devices, LOCAL memory, the arena, the
// allocator, caches (rows A2, B15, B17, B18, B20, L1, L7, P4, amendment C28). In both modes.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "check.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/executable.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/allocator.hpp"
#include "koine/runtime/cpu/pages.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

using Numbers = std::vector<int>;

Options with(const std::function<void(Options&)>& change) {
  Options o = options();
  change(o);
  return o;
}
UOp int32(int64_t v) { return constant_int(DType::Int32, v); }

// A scalar binding of a Variable.
Array bound(int64_t value) { return {DType::Index, {}, {static_cast<Bits>(value)}, {}}; }

}  // namespace

// --- Params and Variables --------------------------------------------------------------------

TEST(memory, spec_A2_a_param_without_a_value_is_named) {
  const UOp s = shape_of({3}), bare = param(7, s, DType::Int32);
  in_both_modes([&] {
    for (const UOp& value : {bare, add(bare, int32(1)), reduce(Op::Add, bare, {0})}) {
      expect_error([&] { (void)realize({value}); },
                   {"realize", "slot 7", "int32", "(3,)", "has no value", "Function"});
      expect_error([&] { (void)schedule({value}); }, {"slot 7", "has no value"});
      expect_error([&] { (void)interpret(value, {}); }, {"slot 7", "not bound"});
    }
  });
  // Too few arguments; unused slots; arguments in another order.
  const UOp a = ints({5, 6, 7}), b = ints({1, 2, 3}), c = ints({9, 9, 9});
  const UOp body =
      tuple(std::vector<UOp>{sub(param(0, s, DType::Int32), param(2, s, DType::Int32))});
  const UOp few = get_tuple(function(body, std::vector<UOp>{a, b}), 0);
  expect_error([&] { (void)realize({few}); }, {"Function", "slot 2", "2 arguments"});
  expect_error([&] { (void)interpret(few, bindings_of(few)); }, {"Function", "slot 2"});
  in_both_modes([&] {
    EXPECT_EQ(held_ints(realize({get_tuple(function(body, std::vector<UOp>{a, c, b}), 0)})[0]),
              (Numbers{4, 4, 4}));
    EXPECT_EQ(held_ints(realize({get_tuple(function(body, std::vector<UOp>{b, c, a}), 0)})[0]),
              (Numbers{-4, -4, -4}));
  });
  // What leaves a trace without its Function.
  UOp leaked;
  (void)make_function(
      [&](const std::vector<UOp>& in) {
        leaked = in[0];
        return std::vector<UOp>{in[0]};
      },
      {a});
  expect_error([&] { (void)realize({add(leaked, a)}); }, {"realize", "has no value"});
}

TEST(memory, spec_B6_spec_amend_28_a_variable_keeps_its_range) {
  const UOp x = ints({1, 2, 3, 4, 5, 6, 7, 8}), n = variable("n", 1, 8);
  const UOp front = shrink(x, shape_of({0}), stack(std::vector<UOp>{n}));
  const UOp total = reshape(reduce(Op::Add, front, {0}), shape_of({}));
  const UOp window = shrink(x, stack(std::vector<UOp>{variable("at", 0, 6)}), shape_of({2}));
  in_both_modes([&] {
    for (const int64_t size : {1, 5, 8}) {
      const Numbers sum{static_cast<int>(size * (size + 1) / 2)};
      EXPECT_EQ(held_ints(realize({total}, {{"n", size}})[0]), sum);
      Bindings bindings = bindings_of(total);
      bindings.emplace(n, bound(size));
      EXPECT_EQ(static_cast<int>(interpret(total, bindings).data[0]), sum[0]);
    }
    for (const int64_t size : {int64_t{0}, int64_t{9}, int64_t{-1}, int64_t{1} << 40}) {
      const std::string value = std::to_string(size);
      expect_error([&] { (void)realize({total}, {{"n", size}}); },
                   {"Variable 'n'", "bound to " + value, "1 to 8"});
      Bindings bindings = bindings_of(total);
      bindings.emplace(n, bound(size));
      expect_error([&] { (void)interpret(total, bindings); },
                   {"Variable 'n'", "bound to " + value, "1 to 8"});
    }
    EXPECT_EQ(held_ints(realize({window}, {{"at", 6}})[0]), (Numbers{7, 8}));
    expect_error([&] { (void)realize({window}, {{"at", 7}}); }, {"Variable 'at'", "0 to 6"});
    expect_error([&] { (void)realize({window}); }, {"Variable 'at'", "no value"});
    // One that the program no longer needs keeps its range all the same.
    const UOp folded = add(mul(cast(n, DType::Int32), int32(0)), int32(3));
    expect_error([&] { (void)realize({add(folded, x), total}, {{"n", 9}}); }, {"Variable 'n'"});
  });
}

// Temporaries of symbolic size hold the largest one.
TEST(memory, spec_B17_symbolic_temporaries_are_large_enough) {
  const int64_t most = 1000;
  const Tensor base = Tensor::arange(most).cast(DType::Float32).clone().realize();
  const UOp n = variable("n", 0, most), sizes = stack(std::vector<UOp>{n});
  auto front = [&](const UOp& x) { return shrink(x, shape_of({0}), sizes); };
  const UOp a = contiguous(add(front(base.uop()), constant(DType::Float32, 1))),
            b = contiguous(mul(front(base.uop()), constant(DType::Float32, 2))),
            c = contiguous(sub(a, b));
  const UOp total =
      reshape(reduce(Op::Add, add(mul(a, b), mul(c, flip(c, {1}))), {0}), shape_of({}));
  ASSERT_GE(schedule({total}).size(), 3u);
  in_both_modes([&] {
    for (const std::string device : {"CPU", "INTERP"})  // INTERP checks every access
      for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{37}, most}) {
        Substitution moved{{base.uop(), buffer_from_host(shape_of({most}), DType::Float32, device,
                                                         memory_of(base.uop())->data())}};
        const UOp result = realize({substitute(total, moved)}, {{"n", size}})[0];
        double expected = 0;
        for (int64_t i = 0; i < size; ++i) {
          const double x = static_cast<double>(i), y = static_cast<double>(size - 1 - i);
          expected += (x + 1) * 2 * x + (1 - x) * (1 - y);
        }
        EXPECT_NEAR(bits_to_double(DType::Float32, array_of(result).data[0]), expected,
                    1e-6 * std::abs(expected))
            << device << " " << size;
      }
  });
}

// --- promises about positions ------------------------------------------------------------------

TEST(memory, spec_amend_28_a_kept_promise_is_about_memory_not_about_a_node) {
  in_both_modes([] {
    const UOp idx = ints({1, 2, 3});
    const Tensor t = Tensor::arange(1000).clone().realize(), i(idx);
    const Tensor held = t.index_select(0, i);
    const UOp graph = held.uop();  // the checked node lives on
    EXPECT_EQ(held.tolist<int>(), (Numbers{1, 2, 3}));
    // The memory of the positions changes, from outside and by a Store; the node does not.
    const int32_t far[3] = {4, 500'000'000, 6}, near[3] = {999, 0, -1000};
    const Tensor fresh = (t + Tensor(1)).clone().realize();
    std::memcpy(memory_of(idx)->data(), far, sizeof far);
    expect_error([&] { (void)(fresh.index_select(0, i) * Tensor(2)).tolist<int>(); },
                 {"index", "position 500000000", "element 1", "size 1000"});
    std::memcpy(memory_of(idx)->data(), near, sizeof near);
    EXPECT_EQ((fresh.index_select(0, i) * Tensor(3)).tolist<int>(), (Numbers{3000, 3, 3}));
    (void)realize(
        {after(idx, {store(idx, expand(reshape(int32(1000), shape_of({1})), shape_of({3})))})});
    expect_error([&] { (void)(fresh.index_select(0, i) * Tensor(4)).tolist<int>(); },
                 {"position 1000", "element 0"});
    EXPECT_EQ(held.tolist<int>(), (Numbers{1, 2, 3})) << "what is computed stays";
  });
}

TEST(memory, spec_amend_28_a_promise_on_a_variable_is_looked_at_each_time) {
  const UOp x = ints({10, 20, 30, 40}), idx = ints({0, 1}), n = variable("n", 0, 20);
  const UOp at = add(idx, cast(n, DType::Int32));
  const UOp picked = index(x, {UOp::make(Op::Assume, {at, int32(0), int32(3)})});
  const UOp alone = reshape(cast(n, DType::Int32), shape_of({1}));  // no memory below
  const UOp one = index(x, {UOp::make(Op::Assume, {alone, int32(0), int32(3)})});
  in_both_modes([&] {
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(held_ints(realize({one}, {{"n", 2}})[0]), (Numbers{30}));
      expect_error([&] { (void)realize({one}, {{"n", 4}}); }, {"value 4", "size 4"});
      EXPECT_EQ(held_ints(realize({picked}, {{"n", 2}})[0]), (Numbers{30, 40}));
      expect_error([&] { (void)realize({picked}, {{"n", 3}}); },
                   {"value 4", "element 1", "size 4"});
      EXPECT_EQ(held_ints(realize({picked}, {{"n", 0}})[0]), (Numbers{10, 20}));
    }
  });
}

// A broken promise is found before anything is written or made.
TEST(memory, spec_amend_28_nothing_runs_before_the_promises_are_kept) {
  in_both_modes([] {
    const UOp b = ints({1, 2, 3}), x = ints({5, 6});
    const UOp bad = index(x, {UOp::make(Op::Assume, {ints({0, 2, 1}), int32(0), int32(1)})});
    expect_error([&] { (void)realize({after(b, {store(b, bad)})}); }, {"value 2", "element 1"});
    expect_error([&] { (void)realize({after(b, {store(b, add(b, b))}), bad}); }, {"value 2"});
    EXPECT_EQ(held_ints(b), (Numbers{1, 2, 3}));
  });
}

// --- every legal order ---------------------------------------------------------------------------

namespace {

// Runs the kernels of a program in the given order, on copies of its arguments; the first
// `outputs` arguments' memory afterwards.
std::vector<std::vector<std::byte>> run_in_order(const std::vector<Kernel>& kernels,
                                                 const std::vector<size_t>& order,
                                                 const Callified& program, DeviceRuntime& device) {
  std::vector<std::vector<std::byte>> arguments;
  for (const UOp& a : program.arguments) {
    const auto m = memory_of(a);
    arguments.emplace_back(m->data(), m->data() + m->bytes());
  }
  std::map<int64_t, std::vector<std::byte>> temporaries;
  for (const size_t k : order) {
    std::vector<std::byte*> pointers;
    std::vector<int64_t> bytes;
    for (const UOp& b : kernels[k].buffers) {
      auto& storage = b.is(Op::Param) ? arguments[static_cast<size_t>(b.as<BufferArg>().slot)]
                                      : temporaries[b.as<BufferArg>().slot];
      if (storage.empty())
        storage.assign(static_cast<size_t>(b.numel() * item_size(b.dtype())), std::byte{0x7b});
      pointers.push_back(storage.data());
      bytes.push_back(static_cast<int64_t>(storage.size()));
    }
    std::vector<int64_t> variables;
    for (const UOp& v : kernels[k].variables) variables.push_back(bound_value(v));
    device.compile(lower_kernel(kernels[k].ast, device.target()))
        ->run({pointers, bytes, variables});
  }
  return arguments;
}

// A random order that keeps to what each kernel needs.
std::vector<size_t> legal_order(const std::vector<Kernel>& kernels, std::mt19937_64& random) {
  const std::vector<std::vector<size_t>> needs = dependencies_of(kernels);
  std::vector<size_t> out;
  std::vector<bool> done(kernels.size());
  while (out.size() < kernels.size()) {
    std::vector<size_t> ready;
    for (size_t k = 0; k < kernels.size(); ++k)
      if (!done[k] &&
          std::all_of(needs[k].begin(), needs[k].end(), [&](size_t n) { return done[n]; }))
        ready.push_back(k);
    out.push_back(ready.at(random() % ready.size()));
    done[out.back()] = true;
  }
  return out;
}

}  // namespace

// The closed lanes of a last vector lie in memory that is there; some of these sizes fill a block.
// A computed value that is asked for again looks like memory that is: what is prepared for the one
// serves the other, whose Buffer is no result of itself.
TEST(memory, asking_for_memory_does_not_keep_it) {
  const UOp computed = add(Tensor::from<float>({1, 2, 3}).uop(), constant(DType::Float32, 1));
  (void)realize({computed});
  (void)realize({computed});
  std::weak_ptr<Memory> memory;
  {
    const Tensor other = Tensor::from<float>({4, 5, 6}).realize();
    memory = memory_of(other.uop());
  }
  EXPECT_TRUE(memory.expired());
}

TEST(memory, blocks_end_with_room_for_a_vector) {
  for (int64_t bytes = 64; bytes <= 4 << 20; bytes += bytes < 8192 ? 64 : 1 << 16) {
    const auto block = CachingAllocator("CPU").allocate(bytes);
    ASSERT_GE(malloc_usable_size(block->address()), static_cast<size_t>(bytes + 256));
  }
}

// Two buffers, written and read in any order, into each other too: whichever legal order the
// kernels run in, each reader sees the version it names, and memory ends as the last one.
TEST(memory, spec_B18_every_legal_topological_order) {
  const int64_t cases = test_cases(60);
  size_t different = 0;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={}", seed));
    std::mt19937_64 random(seed);
    struct Memory2 {
      std::vector<UOp> versions;
      std::vector<Numbers> states;
    } memory[2];
    constexpr size_t size = 5;
    for (auto& m : memory) {
      m.states.emplace_back();
      for (size_t k = 0; k < size; ++k) m.states[0].push_back(static_cast<int>(random() % 90));
      m.versions.push_back(ints(m.states[0]));
    }
    std::vector<UOp> reads;
    std::vector<int> expected;
    auto s = [](size_t v) { return shape_of({static_cast<int64_t>(v)}); };
    for (int step = 0; step < 7; ++step) {
      const auto &from = memory[random() % 2], &other = memory[random() % 2];
      auto& to = memory[random() % 2];
      const size_t old = random() % from.versions.size(), second = random() % other.versions.size();
      if (random() % 3 != 0) {
        const size_t n = 1 + random() % size, at = random() % (size - n + 1),
                     begin = random() % (size - n + 1);
        const UOp value = add(shrink(from.versions[old], s(begin), s(n)), int32(step));
        Numbers next = to.states.back();
        for (size_t k = 0; k < n; ++k) next[at + k] = from.states[old][begin + k] + step;
        const UOp target = shrink(to.versions.back(), s(at), s(n));
        to.versions.push_back(after(to.versions.back(), {store(target, value)}));
        to.states.push_back(next);
      } else {
        reads.push_back(reshape(
            reduce(Op::Add, mul(from.versions[old], other.versions[second]), {0}), shape_of({})));
        int sum = 0;
        for (size_t k = 0; k < size; ++k) sum += from.states[old][k] * other.states[second][k];
        expected.push_back(sum);
      }
    }
    reads.push_back(
        reshape(reduce(Op::Max, add(memory[0].versions.back(), memory[1].versions.back()), {0}),
                shape_of({})));
    int top = INT_MIN;
    for (size_t k = 0; k < size; ++k)
      top = std::max(top, memory[0].states.back()[k] + memory[1].states.back()[k]);
    expected.push_back(top);
    std::vector<UOp> values, destinations;
    for (const UOp& r : reads) {
      values.push_back(r);
      destinations.push_back(buffer_from_host(r.shape(), r.dtype(), "CPU", nullptr));
    }
    const Callified program = callify(values, destinations);
    const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
    DeviceRuntime& device = device_runtime(i % 3 == 0 ? "CPU" : "INTERP");
    std::vector<size_t> previous;
    for (int trial = 0; trial < 6; ++trial) {
      const std::vector<size_t> order = legal_order(kernels, random);
      different += !previous.empty() && order != previous;
      previous = order;
      const auto got = run_in_order(kernels, order, program, device);
      for (size_t r = 0; r < program.arguments.size(); ++r) {
        Numbers held(got[r].size() / 4);
        std::memcpy(held.data(), got[r].data(), got[r].size());
        for (size_t d = 0; d < destinations.size(); ++d)
          if (destinations[d] == program.arguments[r]) {
            ASSERT_EQ(held, (Numbers{expected[d]})) << d;
          }
        for (const auto& m : memory)
          if (m.versions[0] == program.arguments[r]) {
            ASSERT_EQ(held, m.states.back());
          }
      }
    }
  }
  EXPECT_GT(different, static_cast<size_t>(cases)) << "there was more than one order";
}

TEST(memory, spec_B20_views_and_lazy_readers_of_a_computed_base) {
  in_both_modes([] {
    // The base is computed, realized or not, when the write comes.
    for (const bool realized : {false, true}) {
      Tensor base = (Tensor::arange(6) * Tensor(3)).clone();
      if (realized) base.realize();
      const Tensor rows = base.reshape({2, 3}), tail = base[{Slice{3, {}}}],
                   before = base + Tensor(100), sum = base.sum();
      base.setitem({Slice{2, 5}}, Tensor::from<int32_t>({-1, -2, -3}));
      EXPECT_EQ(rows.tolist<int>(), (Numbers{0, 3, -1, -2, -3, 15}));
      EXPECT_EQ(tail.tolist<int>(), (Numbers{-2, -3, 15}));
      EXPECT_EQ(before.tolist<int>(), (Numbers{100, 103, 106, 109, 112, 115}));
      EXPECT_EQ(sum.item<int>(), 45);
      Tensor view = base.reshape({3, 2});
      view += Tensor(10);
      EXPECT_EQ(rows.tolist<int>(), (Numbers{10, 13, 9, 8, 7, 25}));
      EXPECT_EQ(base.tolist<int>(), (Numbers{10, 13, 9, 8, 7, 25}));
      EXPECT_EQ(before.tolist<int>(), (Numbers{100, 103, 106, 109, 112, 115}));
    }
  });
}

// What nobody else holds is computed where a view shows it; what others hold, or are made of, once.
TEST(memory, a_view_of_what_nobody_else_holds_computes_what_it_shows) {
  in_both_modes([] {
    constexpr int64_t n = 64;
    const Tensor x =
        Tensor::arange(n * n).mod(Tensor(3)).reshape({n, n}).cast(DType::Float32).realize();
    auto operations = [](const Tensor& t) {
      reset_counters();
      t.realize();
      return counters().operations;
    };
    auto product = [&] { return x.matmul(x * Tensor(0.5)); };
    auto row = [](const Tensor& t, int64_t i) { return t[{Slice{i, i + 1}}]; };
    auto row_alone = [&](int64_t i) { return row(product(), i); };
    const double of_all = operations(product()), of_row = operations(row_alone(5));
    EXPECT_LT(of_row, of_all / 16);

    // Who holds the base looks at all of it, once.
    const Tensor held = product();
    const Tensor some = row(held, 5), others = row(held, 6);
    EXPECT_EQ(operations(some), of_all);
    EXPECT_EQ(operations(others), 0);
    EXPECT_EQ(operations(held), 0);
    EXPECT_EQ(row_alone(5).tolist<float>(), some.tolist<float>());

    // So do two views of it.
    const Tensor first = row_alone(1);
    const Tensor both[] = {first, first[{0, Slice{0, 3}}]};
    EXPECT_EQ(operations(both[1]), of_all);
    EXPECT_EQ(operations(both[0]), 0);

    // A state that goes on is computed once by each step, whatever was shown of it.
    std::vector<Tensor> shown;
    Tensor state = x;
    for (int step = 0; step < 8; ++step) {
      state = state.matmul(x * Tensor(0.5));
      shown.push_back(row(state, 0));
    }
    double all = 0;
    for (const Tensor& t : shown) all += operations(t);
    EXPECT_LE(all + operations(state), 8 * of_all);

    // It is written and differentiated like any value.
    Tensor own = row_alone(5);
    own.realize();
    const float before = own.tolist<float>()[1];
    own.setitem({0, 0}, Tensor(-1.0));
    EXPECT_EQ(own.tolist<float>()[0], -1);
    EXPECT_EQ(own.tolist<float>()[1], before);
    Tensor leaf = (x * Tensor(0.5)).clone();
    leaf.requires_grad();
    auto trained = [&] { return row(x.matmul(leaf), 5); };
    const Tensor seen = trained(), unseen = trained();
    seen.realize();
    EXPECT_EQ(seen.sum().gradient({leaf})[0].tolist<float>(),
              unseen.sum().gradient({leaf})[0].tolist<float>());
  });
}

// --- address spaces ------------------------------------------------------------------------------

TEST(memory, spec_P4_stores_between_address_spaces_are_refused) {
  auto buffer = [](AddrSpace space, int64_t slot) {
    return UOp::make(Op::Buffer, {shape_of({8})}, BufferArg{slot, DType::Float32, {}, space});
  };
  const UOp local = buffer(AddrSpace::Local, 0), other = buffer(AddrSpace::Local, 1),
            acc = buffer(AddrSpace::Reg, 2), global = param(0, shape_of({8}), DType::Float32);
  const UOp one = index_const(1);
  expect_error([&] { (void)store(local, global); }, {"Store", "LOCAL", "GLOBAL", "load()"});
  expect_error([&] { (void)store(index(global, {one}), index(local, {one})); },
               {"Store", "GLOBAL", "LOCAL"});
  expect_error(
      [&] { (void)store(index(acc, {one}), index(after(local, {store(local, other)}), {one})); },
      {"Store", "REG", "LOCAL"});
  expect_error([&] { (void)store(flip(local, {1}), shrink(global, shape_of({0}), shape_of({8}))); },
               {"Store", "LOCAL", "GLOBAL"});
  // Through a Load, within one space, and of numbers it is fine.
  EXPECT_NO_THROW((void)store(index(local, {one}), load(index(global, {one}))));
  EXPECT_NO_THROW((void)store(local, other));
  EXPECT_NO_THROW((void)store(index(local, {one}), constant(DType::Float32, 2)));
  EXPECT_NO_THROW((void)store(reshape(buffer(AddrSpace::Reg, 3), shape_of({8})), acc));
  // A text cannot say it either.
  const std::string text = to_text(store(index(local, {one}), index(other, {one})));
  std::string mixed = text;
  mixed.replace(mixed.find("LOCAL"), 5, "GLOBAL");
  EXPECT_NO_THROW((void)parse(text));
  expect_error([&] { (void)parse(mixed); }, {"Store", "GLOBAL", "LOCAL"});
}

// --- programs and caches
// ---------------------------------------------------------------------------

TEST(memory, spec_L1_one_program_runs_on_other_buffers) {
  in_both_modes([] {
    auto result = [](const Tensor& x, const Tensor& y) {
      return (x.reshape({2, 2}).matmul(y.reshape({2, 2})) + Tensor(1.0)).sum({0});
    };
    const Tensor a = Tensor::from<float>({1, 2, 3, 4}), b = Tensor::from<float>({5, 6, 7, 8}),
                 c = Tensor::from<float>({-1, 0, 1, 2}), d = Tensor::from<float>({2, 2, 0, 1});
    const Tensor first = result(a, b), second = result(c, d), swapped = result(b, a);
    EXPECT_EQ(first.tolist<float>(), (std::vector<float>{64, 74}));
    reset_counters();
    EXPECT_EQ(second.tolist<float>(), (std::vector<float>{2, 4}));
    EXPECT_EQ(swapped.tolist<float>(), (std::vector<float>{56, 82}));
    EXPECT_EQ(counters().compiled, 0) << "the same program";
    EXPECT_EQ(first.tolist<float>(), (std::vector<float>{64, 74})) << "no state is left behind";
    // The executable itself, forth and back, with a Store into its argument.
    const UOp x = ints({1, 2, 3}), y = ints({10, 20, 30});
    const Callified program = callify({after(x, {store(x, add(flip(x, {1}), int32(1)))})}, {UOp()});
    const auto executable = std::make_shared<const Executable>(program.body, "CPU");
    Submission step(executable, std::vector{x}, {});
    step.run();
    step.set_argument(0, y);
    step.run();
    Submission(executable, std::vector{x}, {}).run();
    EXPECT_EQ(held_ints(x), (Numbers{3, 4, 5}));
    EXPECT_EQ(held_ints(y), (Numbers{31, 21, 11}));
  });
}

// Clones are numbered to be apart; the program that computes one is still the same program.
TEST(memory, spec_L1_clones_share_their_program) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  auto copy = [&] { return (x + Tensor(1.0)).clone().realize(); };
  const Tensor first = copy();
  reset_counters();
  const int64_t nodes = live_node_count();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(copy().tolist<float>(), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_LT(live_node_count(), nodes + 20) << "no program is kept for each clone";
  Tensor second = copy(), third = x.clone().realize();
  second.setitem({Slice{0, 1}}, Tensor(9.0));
  third.setitem({Slice{0, 1}}, Tensor(8.0));
  EXPECT_EQ(first.tolist<float>(), (std::vector<float>{2, 3, 4})) << "each has memory of its own";
  EXPECT_EQ(x.tolist<float>(), (std::vector<float>{1, 2, 3}));
}

// Strict and default code, optimised and plain code are different programs.
TEST(memory, caches_know_the_mode_that_code_was_made_for) {
  std::mt19937_64 random(test_seed());
  std::vector<float> data;
  for (int i = 0; i < 4096; ++i)
    data.push_back(
        std::ldexp(static_cast<float>(random() % 1000) - 500, static_cast<int>(random() % 20)));
  const UOp x = buffer_from_host(shape_of({4096}), DType::Float32, "CPU", data.data());
  auto total = [&] {
    return array_of(realize({UOp::make(Op::Contiguous, {reduce(Op::Add, x, {0})},
                                       MarkArg{Mark::Copies})})[0])
        .data[0];
  };
  float left = 0;
  for (const float v : data) left += v;  // the ascending fold
  Bits strict = 0, plain = 0;
  std::memcpy(&strict, &left, 4);
  for (const bool strict_first : {false, true}) {
    clear_compile_cache();
    for (int round = 0; round < 4; ++round) {
      if ((round % 2 == 0) == strict_first) {
        const OptionScope scope(strict_options());
        EXPECT_EQ(total(), strict) << "strict mode folds in ascending order";
      } else {
        const Bits got = total();
        EXPECT_NE(got, strict) << "the default mode folds lanes";
        if (plain != 0) {
          EXPECT_EQ(got, plain);
        }
        plain = got;
      }
    }
  }
  // The names of kernels show the axes; without optimisation there are only L and R.
  auto name = [&](bool noopt) {
    const OptionScope scope(with([&](Options& o) {
      o.noopt = noopt;
      o.debug = 1;
    }));
    ::testing::internal::CaptureStderr();
    (void)total();
    return ::testing::internal::GetCapturedStderr();
  };
  clear_compile_cache();
  for (int round = 0; round < 2; ++round) {
    EXPECT_NE(name(false).find("_G"), std::string::npos);
    EXPECT_EQ(name(true).find("_G"), std::string::npos);
  }
  clear_compile_cache();
  EXPECT_EQ(name(true).find("_G"), std::string::npos);
  EXPECT_NE(name(false).find("_G"), std::string::npos);
}

TEST(memory, a_cache_keeps_the_youngest_that_weigh_no_more_than_it_holds) {
  Cache<int, const int> cache(6);
  auto kept = [&] {
    std::vector<int> out;
    for (int key = 0; key < 20; ++key)
      if (cache.find(key)) out.push_back(key);
    return out;
  };
  for (int key = 0; key < 10; ++key) cache.add(key, std::make_shared<const int>(key), 2);
  EXPECT_EQ(kept(), (std::vector<int>{7, 8, 9}));
  cache.add(10, std::make_shared<const int>(10), 3);
  EXPECT_EQ(kept(), (std::vector<int>{9, 10}));
  cache.add(9, std::make_shared<const int>(90), 2);  // another for the same key: no more weight
  EXPECT_EQ(*cache.find(9), 90);
  cache.add(11, std::make_shared<const int>(11));
  EXPECT_EQ(kept(), (std::vector<int>{9, 10, 11}));
  cache.add(12, std::make_shared<const int>(12), 100);
  EXPECT_EQ(kept(), std::vector<int>{12}) << "the last one stays, whatever it weighs";
  cache.clear();
  EXPECT_TRUE(kept().empty());
  for (int key = 0; key < 3; ++key) cache.add(key, std::make_shared<const int>(key), 2);
  EXPECT_EQ(kept(), (std::vector<int>{0, 1, 2}));
}

// --- the arena and the allocator
// --------------------------------------------------------------------

TEST(memory, spec_L7_ten_layers_need_three_activations_also_when_freed_memory_is_poisoned) {
  const int64_t rows = 64, width = 256;
  auto leaf_of = [&](const std::vector<int64_t>& sizes, uint64_t salt) {
    std::mt19937_64 random(test_seed() + salt);
    std::vector<float> data;
    for (int64_t i = 0; i < sizes[0] * sizes[1]; ++i)
      data.push_back(static_cast<float>(static_cast<int64_t>(random() % 200) - 100) / 800);
    return Tensor::from(data, sizes);
  };
  const Tensor x = leaf_of({rows, width}, 0);
  std::vector<Tensor> weights;
  for (uint64_t i = 1; i <= 10; ++i) weights.push_back(leaf_of({width, width}, i));
  auto run = [&](bool poison) {
    const OptionScope scope(with([&](Options& o) { o.poison = poison; }));
    Tensor h = x;
    for (const Tensor& w : weights) h = h.matmul(w).relu();
    reset_counters();
    const std::vector<float> out = h.tolist<float>();
    EXPECT_LE(counters().temporary_bytes, 3 * rows * width * 4);
    EXPECT_GE(counters().temporary_bytes, rows * width * 4) << "there are temporaries";
    return out;
  };
  in_both_modes([&] {
    const std::vector<float> once = run(false);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(true), once);
    EXPECT_EQ(run(false), once);
    // Against plain loops in float64.
    std::vector<double> h = x.tolist<double>();
    for (const Tensor& t : weights) {
      const auto w = t.tolist<double>();
      std::vector<double> next(h.size());
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < width; ++k)
          for (int64_t j = 0; j < width; ++j)
            next[static_cast<size_t>(i * width + j)] +=
                h[static_cast<size_t>(i * width + k)] * w[static_cast<size_t>(k * width + j)];
      for (double& v : next) v = std::max(v, 0.0);
      h = std::move(next);
    }
    double largest = 0;
    for (const double v : h) largest = std::max(largest, v);
    for (size_t i = 0; i < h.size(); ++i) ASSERT_NEAR(once[i], h[i], 1e-4 * largest) << i;
  });
}

// Plans of random host programs: what lives at once lies apart, in no more than the sum of all, an
// arena for each device.
TEST(memory, spec_L7_random_plans_keep_the_living_apart) {
  std::mt19937_64 random(test_seed());
  const UOp touch = UOp::make(Op::CustomFunction, {}, std::string("touch"));
  for (int round = 0; round < 200; ++round) {
    struct Life {
      UOp buffer;
      int64_t bytes;
      size_t first, last;
    };
    std::vector<Life> lives;
    std::vector<std::vector<UOp>> launches(30);
    for (int64_t slot = 0; slot < static_cast<int64_t>(random() % 20); ++slot) {
      const auto bytes = static_cast<int64_t>(random() % 1000);
      const Device device(random() % 3 == 0 ? "CPU:1" : "CPU");
      const size_t first = random() % 20, last = first + random() % 8;
      lives.push_back(
          {UOp::make(Op::Buffer, {shape_of({bytes})}, BufferArg{slot, DType::UInt8, device}), bytes,
           first, last});
      launches[first].push_back(lives.back().buffer);
      launches[last].push_back(lives.back().buffer);
    }
    std::vector<UOp> calls;
    for (const auto& buffers : launches) calls.push_back(kernel_call(touch, buffers, ""));
    const UOp planned = plan_memory(UOp::make(Op::Linear, calls));
    auto offset = [&](const Life& l) {
      for (const UOp& b : planned.src(l.first).src())
        if (b.is(Op::Buffer) && b.as<BufferArg>().slot == l.buffer.as<BufferArg>().slot)
          return b.as<BufferArg>().offset;
      return int64_t{-1};
    };
    for (const Device device : {Device("CPU"), Device("CPU:1")}) {
      int64_t sum = 0;
      std::vector<int64_t> alive(30);
      for (const Life& l : lives) {
        if (!(l.buffer.device() == device)) continue;
        sum += (l.bytes + 63) / 64 * 64;
        for (size_t t = l.first; t <= l.last; ++t) alive[t] += l.bytes;
        EXPECT_GE(offset(l), 0);
        EXPECT_EQ(offset(l) % 64, 0);
        EXPECT_LE(offset(l) + l.bytes, arena_bytes(planned, device));
        for (const Life& k : lives) {
          const bool other = k.buffer == l.buffer || !(k.buffer.device() == device);
          const bool meet = l.first <= k.last && k.first <= l.last;
          const bool apart = offset(l) + l.bytes <= offset(k) || offset(k) + k.bytes <= offset(l);
          EXPECT_TRUE(other || !meet || apart || l.bytes == 0 || k.bytes == 0);
        }
      }
      EXPECT_LE(arena_bytes(planned, device), sum);
      EXPECT_GE(arena_bytes(planned, device), *std::max_element(alive.begin(), alive.end()));
    }
  }
}

TEST(memory, fresh_and_freed_blocks_are_poisoned_when_asked) {
  CachingAllocator allocator("CPU:9");
  for (const int64_t bytes : {1, 64, 1000, 3 << 20}) {
    auto all = [&](const std::byte* data, uint8_t pattern) {
      return std::all_of(data, data + bytes, [&](std::byte b) { return b == std::byte{pattern}; });
    };
    const OptionScope scope(with([](Options& o) { o.poison = true; }));
    auto block = allocator.allocate(bytes);
    std::byte* data = block->data();
    EXPECT_TRUE(all(data, 0xA5)) << "fresh memory of " << bytes;
    std::memset(data, 1, static_cast<size_t>(bytes));
    block.reset();
    EXPECT_TRUE(all(data, 0x5A)) << "freed memory of " << bytes << ", which the pool holds";
    block = allocator.allocate(bytes);
    EXPECT_EQ(block->data(), data) << "it is given out again";
    EXPECT_TRUE(all(data, 0xA5));
  }
  // Without the switch nothing is written.
  const OptionScope scope(with([](Options& o) { o.poison = false; }));
  auto block = allocator.allocate(512);
  std::memset(block->data(), 7, 512);
  const std::byte* data = block->data();
  block.reset();
  EXPECT_EQ(data[0], std::byte{7});
  EXPECT_EQ(data[511], std::byte{7});
}

TEST(memory, the_limit_is_on_all_blocks_together) {
  CachingAllocator allocator("CPU:9");
  const int64_t kib = 1024, limit = 1000 * kib;
  const OptionScope scope(with([&](Options& o) { o.memory_limit = limit; }));
  expect_error([&] { (void)allocator.allocate(limit + 1); },
               {"out of memory on CPU:9", std::to_string(limit + 1), "0 are in use",
                std::to_string(limit), "KOINE_MEMORY_LIMIT"});
  expect_error([&] { (void)allocator.allocate(-1); }, {"out of memory"});
  auto first = allocator.allocate(600 * kib);
  const int64_t used = allocator.bytes_in_use();
  EXPECT_GE(used, 600 * kib);
  EXPECT_LE(used, 600 * kib * 5 / 4) << "at most a fifth of a block is unused";
  expect_error([&] { (void)allocator.allocate(600 * kib); },
               {"a buffer of 614400 bytes", std::to_string(used) + " are in use", "1024000"});
  EXPECT_EQ(allocator.bytes_in_use(), used) << "a refusal takes nothing";
  auto second = allocator.allocate(100 * kib);
  first.reset();
  EXPECT_GE(allocator.bytes_cached(), 600 * kib);
  auto third = allocator.allocate(600 * kib);
  EXPECT_EQ(allocator.bytes_cached(), 0) << "the cached block is used again";
  third.reset();
  // What is cached gives way to what is needed.
  auto large = allocator.allocate(850 * kib);
  EXPECT_EQ(allocator.bytes_cached(), 0);
  large.reset();
  second.reset();
  EXPECT_EQ(allocator.bytes_in_use(), 0);
  // Tensors obey it, and everything is as before once the switch is back.
  expect_error([] { (void)Tensor::zeros({1 << 20}).clone().realize(); },
               {"out of memory", "4194304"});
}

TEST(memory, blocks_come_in_classes_that_double_in_four_steps) {
  constexpr int64_t mib = int64_t{1} << 20;
  const std::map<int64_t, int64_t> class_of{{0, 64},
                                            {1, 64},
                                            {64, 64},
                                            {65, 128},
                                            {320, 320},
                                            {321, 448},
                                            {400, 448},
                                            {401, 512},
                                            {560, 576},
                                            {561, 640},
                                            {640, 640},
                                            {641, 832},
                                            {65536, 71680},
                                            {71680, 71680},
                                            {71681, 81920},
                                            {mib, 1146880},
                                            {1966080, 1966080},
                                            {1966081, 4 * mib},
                                            {4 * mib, 6 * mib},
                                            {20 * mib, 20 * mib}};
  CachingAllocator allocator("CPU:9");
  for (const auto& [bytes, size] : class_of) {
    const auto block = allocator.allocate(bytes);
    EXPECT_EQ(block->bytes(), bytes);
    EXPECT_EQ(allocator.bytes_in_use(), size) << bytes << " bytes";
  }
}

TEST(memory, what_is_too_much_to_keep_goes_back_to_the_system) {
  const int64_t gib = int64_t{1} << 30;
  const OptionScope scope(with([&](Options& o) {
    o.poison = false;
    o.memory_limit = 8 * gib;
  }));
  auto mapped = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  CachingAllocator allocator("CPU:9");
  const int64_t before = mapped();
  for (int i = 0; i < 3; ++i) allocator.allocate(3 * gib).reset();  // never touched
  EXPECT_EQ(allocator.bytes_cached(), 0);
  EXPECT_LT(mapped() - before, gib);
}

// Pages are taken and given back at random beside a table of which are free.
TEST(memory, pages_given_back_join_their_neighbours) {
  constexpr size_t count = 64, bytes = 16;
  std::vector<char> memory(count * bytes);
  Pages pages(memory.data(), count, bytes);
  std::vector<bool> taken(count);
  std::vector<std::pair<size_t, size_t>> held;
  std::mt19937_64 random(test_seed());
  auto lowest = [&](size_t n) {
    for (size_t at = 0; at + n <= count; ++at)
      if (std::none_of(taken.begin() + static_cast<long>(at),
                       taken.begin() + static_cast<long>(at + n), [](bool t) { return t; }))
        return at;
    return count;
  };
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0) {
      const size_t n = 1 + random() % 9, expected = lowest(n);
      char* at = pages.take(n);
      ASSERT_EQ(at, expected == count ? nullptr : memory.data() + expected * bytes) << step;
      if (at == nullptr) continue;
      held.emplace_back(expected, n);
      std::fill_n(taken.begin() + static_cast<long>(expected), n, true);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto [at, n] = held.back();
      held.pop_back();
      pages.give_back(memory.data() + at * bytes, n);
      std::fill_n(taken.begin() + static_cast<long>(at), n, false);
    }
  }
}

// The system limits how many mappings a process has: 65,530, with four of them a kernel once.
TEST(memory, code_of_many_kernels_shares_mappings) {
  auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int64_t count = 0;
    for (std::string line; std::getline(maps, line);) ++count;
    return count;
  };
  constexpr int64_t kernels = 120;
  std::vector<std::unique_ptr<Executable>> kept;
  int64_t before = 0;
  for (int64_t n = 0; n < kernels; ++n) {
    if (n == 8) before = mappings();
    const UOp a = param(1, shape_of({n + 3}), DType::Float32, Device("CPU"));
    const UOp out = param(0, shape_of({n + 3}), DType::Float32, Device("CPU"));
    kept.push_back(std::make_unique<Executable>(
        sink(std::vector<UOp>{store(out, add(a, constant(DType::Float32, 0.5 + n)))}), "CPU"));
  }
  EXPECT_LT(mappings() - before, kernels / 2);
  // Freed code makes room for what comes next.
  const int64_t full = mappings();
  for (auto& one : kept)
    one = std::make_unique<Executable>(
        sink(std::vector<UOp>{store(param(0, shape_of({2}), DType::Int32, Device("CPU")),
                                    add(param(1, shape_of({2}), DType::Int32, Device("CPU")),
                                        int32(static_cast<int>(&one - kept.data()) + 77)))}),
        "CPU");
  EXPECT_LT(mappings() - full, kernels / 2);
}

TEST(memory, what_was_computed_is_not_computed_again) {
  const UOp x = ints({1, 2, 3}), sum = add(x, int32(1));
  EXPECT_FALSE(realized_buffer(sum));
  const UOp first = realize({sum})[0];
  const int64_t kernels = counters().kernels;
  EXPECT_EQ(realize({sum})[0], first);
  EXPECT_EQ(realized_buffer(sum), first);
  EXPECT_EQ(counters().kernels, kernels);
  const std::vector<Kernel> next = schedule({mul(sum, int32(2))});
  ASSERT_EQ(next.size(), 1u) << "what uses it reads its memory";
  for (const UOp& u : toposort(next[0].ast)) EXPECT_FALSE(u.is(Op::Add)) << to_text(next[0].ast);
  EXPECT_EQ(held_ints(realize({mul(sum, int32(2))})[0]), (Numbers{4, 6, 8}));
}

}  // namespace koine::test
