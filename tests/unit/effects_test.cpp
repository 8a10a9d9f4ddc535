// Stores and their order: gates, Groups, Afters, snapshots, invalid elements (rows B15 to B20,
// amendments C27 to C29). The interpreter defines the state each reader sees; both modes follow it.
#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

using Numbers = std::vector<int>;

UOp flags(const Numbers& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())})
      .cast(DType::Bool)
      .realize()
      .uop();
}
UOp part(const UOp& b, int64_t from, int64_t n) {
  return shrink(b, shape_of({from}), shape_of({n}));
}
UOp number(int64_t v) { return constant_int(DType::Int32, v); }
UOp fill(int64_t v, int64_t n) { return expand(reshape(number(v), shape_of({1})), shape_of({n})); }

Numbers interpreted(const UOp& value) {
  Numbers out;
  for (const Bits b : interpret(value, bindings_of(value)).data)
    out.push_back(static_cast<int>(bits_to_int(value.dtype(), b)));
  return out;
}

// The graph over fresh copies of its buffers, which it may write.
UOp renewed(const UOp& graph) {
  Substitution fresh;
  for (const UOp& u : toposort(graph))
    if (u.is(Op::Buffer) && memory_of(u))
      fresh.emplace(
          u, buffer_from_host(u.shape(), u.dtype(), u.device().name(), memory_of(u)->data()));
  return fresh.empty() ? graph : substitute(graph, fresh);
}

// The value on the interpreter, and compiled in both modes, each over buffers of its own.
void expect_value(const UOp& value, const Numbers& expected) {
  EXPECT_EQ(interpreted(value), expected) << to_text(value);
  in_both_modes(
      [&] { EXPECT_EQ(held_ints(realize({renewed(value)})[0]), expected) << to_text(value); });
}

}  // namespace

TEST(effects, spec_B16_a_gate_on_tensors_decides_each_element) {
  const UOp b = ints({1, 2, 3, 4}), v = ints({10, 20, 30, 40}), odd = flags({0, 1, 0, 1});
  expect_value(after(b, {store(b, v, odd)}), {1, 20, 3, 40});
  expect_value(after(b, {store(b, v, logical_not(odd))}), {10, 2, 30, 4});
  // A gate broadcasts: one for all, and one for each row.
  expect_value(after(b, {store(b, v, constant_bool(false))}), {1, 2, 3, 4});
  expect_value(after(b, {store(b, v, ne(reshape(part(b, 0, 1), shape_of({})), number(1)))}),
               {1, 2, 3, 4});
  const UOp square = reshape(b, shape_of({2, 2}));
  expect_value(after(b, {store(square, reshape(v, shape_of({2, 2})),
                               reshape(part(odd, 0, 2), shape_of({2, 1})))}),
               {1, 2, 30, 40});
  // Into a view, where the gate reads what is written.
  expect_value(after(b, {store(flip(b, {1}), v, lt(b, number(3)))}), {1, 2, 20, 10});
  // Invalid places and elements are left alone, and so is what an invalid gate says.
  const UOp padded = pad(part(v, 0, 2), shape_of({1}), shape_of({4}));
  expect_value(after(b, {store(b, padded, logical_not(odd))}), {1, 2, 20, 4});
  expect_value(after(b, {store(b, v, pad(part(odd, 1, 1), shape_of({2}), shape_of({4})))}),
               {1, 2, 30, 4});
  expect_value(
      after(b, {store(b, v, logical_not(pad(part(odd, 0, 1), shape_of({2}), shape_of({4}))))}),
      {1, 2, 30, 4});
  expect_error([&] { (void)store(b, v, b); }, {"Store", "gate is int32", "bool"});
  expect_error([&] { (void)store(b, v, flags({1, 0, 1})); },
               {"Store", "gate", "(3,)", "does not broadcast", "(4,)"});
}

TEST(effects, spec_B16_other_bytes_stay) {
  // Every byte around a partial store is what it was, also in the same word.
  std::vector<uint8_t> bytes(37);
  std::iota(bytes.begin(), bytes.end(), uint8_t{100});
  in_both_modes([&] {
    for (const int64_t from : {0, 1, 7, 30}) {
      const UOp b = buffer_from_host(shape_of({37}), DType::UInt8, "CPU", bytes.data());
      const UOp seven =
          expand(reshape(constant_int(DType::UInt8, 7), shape_of({1})), shape_of({5}));
      (void)realize({after(b, {store(part(b, from, 5), seven)})});
      Numbers expected(bytes.begin(), bytes.end());
      std::fill_n(expected.begin() + from, 5, 7);
      EXPECT_EQ(held_ints(b), expected) << from;
    }
  });
}

TEST(effects, spec_B15_a_gated_load_on_tensors_gives_its_alt) {
  const UOp b = ints({1, 2, 3, 4}), open = flags({1, 0, 1, 0});
  expect_value(load(b, fill(7, 4), open), {1, 7, 3, 7});
  expect_value(load(b, number(7), open), {1, 7, 3, 7});
  expect_value(load(b, number(7), constant_bool(false)), {7, 7, 7, 7});
  expect_value(add(load(add(b, b), mul(b, b), open), number(1)), {3, 5, 7, 17});
  // It is memory: what is invalid is 0 there, and only what is chosen counts.
  const UOp padded = pad(part(b, 0, 2), shape_of({2}), shape_of({4}));
  expect_value(load(padded, number(7), open), {0, 7, 1, 7});
  expect_value(reduce(Op::Max, load(sub(padded, number(9)), number(-7), open), {0}), {0});
  // A closed gate reads no memory: the compiled load is gated, not chosen from afterwards.
  int gated = 0, plain = 0;
  for (const Kernel& k : schedule({load(b, number(7), open)}))
    for (const UOp& u : toposort(k.ast))
      if (u.is(Op::Load) && u.dtype() == DType::Int32) ++(u.src().size() == 3 ? gated : plain);
  EXPECT_EQ(gated, 1);
  EXPECT_EQ(plain, 0);
  expect_error([&] { (void)load(b, floats({1, 2, 3, 4}), open); }, {"Load", "alt", "int32"});
  expect_error([&] { (void)load(b, fill(7, 3), open); }, {"Load", "alt", "(3,)", "(4,)"});
}

TEST(effects, spec_B15_a_load_into_local_memory_is_a_buffer_of_the_kernel_and_a_barrier) {
  auto local = [](const UOp& x) { return UOp::make(Op::Load, {x}, LoadArg{{}, AddrSpace::Local}); };
  const UOp b = ints({1, 2, 3, 4, 5, 6});
  const UOp square = reshape(local(mul(b, b)), shape_of({2, 3}));
  // Each element is read in another place than it was written in, some of them twice.
  const UOp value =
      add(flip(square, {1, 1}), expand(reduce(Op::Add, square, {1}), shape_of({2, 3})));
  expect_value(value, {36 + 14, 25 + 14, 16 + 14, 9 + 77, 4 + 77, 1 + 77});
  const std::vector<Kernel> kernels = schedule({value});
  ASSERT_EQ(kernels.size(), 1u);
  const NodeList nodes = toposort(kernels[0].ast);
  EXPECT_EQ(
      std::count_if(nodes.begin(), nodes.end(), [](const UOp& u) { return u.is(Op::Barrier); }), 1);
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                          [](const UOp& u) {
                            return u.is(Op::Buffer) && u.addrspace() == AddrSpace::Local &&
                                   u.numel() == 6;
                          }),
            1);
  const UOp linear = lower_kernel(kernels[0].ast, generic_target(true)).linear;
  EXPECT_NE(render("c", "reverse", linear, false).find("int32_t local0[6];"), std::string::npos)
      << render("c", "reverse", linear, false);
  // Asked for itself, of a number, gated, padded, one read through another, in two kernels.
  expect_value(local(b), {1, 2, 3, 4, 5, 6});
  expect_value(add(local(reshape(reduce(Op::Add, b, {0}), shape_of({}))), number(1)), {22});
  const UOp odd = flags({1, 0, 1, 0, 1, 0});
  // Of nothing there is no buffer.
  const UOp none = local(reshape(shrink(b, shape_of({0}), shape_of({0})), shape_of({0, 3})));
  expect_value(pad(none, shape_of({1, 0}), shape_of({2, 3}), number(5)), {5, 5, 5, 5, 5, 5});
  expect_value(flip(UOp::make(Op::Load, {b, number(7), odd}, LoadArg{{}, AddrSpace::Local}), {1}),
               {7, 5, 7, 3, 7, 1});
  const UOp padded = pad(part(b, 0, 2), shape_of({2}), shape_of({6}));
  expect_value(reduce(Op::Max, neg(local(padded)), {0}), {0});
  expect_value(flip(add(local(flip(local(b), {1})), b), {1}), {7, 7, 7, 7, 7, 7});
  expect_value(pad(flip(local(b), {1}), shape_of({1}), shape_of({8}), number(-1)),
               {-1, 6, 5, 4, 3, 2, 1, -1});
  const UOp both = local(b);
  expect_value(add(contiguous(flip(both, {1})), contiguous(both)), {7, 7, 7, 7, 7, 7});
  for (const DType d : stored_dtypes()) expect_same_everywhere(flip(local(leaf({7}, d)), {1}));
  const Tensor large = Tensor::zeros({1 << 17}, DType::Int32);
  expect_error([&] { (void)realize({flip(local(large.uop()), {1})}); },
               {"Load", "int32", "(131072,)", "LOCAL memory", "262144"});
}

TEST(effects, spec_B15_copies_between_devices_keep_every_bit) {
  std::vector<uint32_t> bits;
  for (uint32_t i = 0; i < 257; ++i) bits.push_back(i * 0x01010193u ^ (i % 3 ? 0x7f800001u : 0));
  const auto n = static_cast<int64_t>(bits.size());
  in_both_modes([&] {
    for (const std::string there : {"CPU:1", "INTERP", "INTERP:2"}) {
      const Tensor x = Tensor::from_bytes(bits.data(), {n}, DType::Float32);
      const std::vector<std::byte> back = x.to(there).to("CPU").bytes();
      ASSERT_EQ(back.size(), bits.size() * 4);
      EXPECT_EQ(std::memcmp(back.data(), bits.data(), back.size()), 0) << there;
      // Each device computes what lies on it.
      const Tensor sum = ((x.bitcast(DType::Int32) + Tensor(1)).to(there) * Tensor(3)).to("CPU");
      const std::vector<int> got = sum.tolist<int>();
      for (size_t i = 0; i < bits.size(); ++i)
        ASSERT_EQ(static_cast<uint32_t>(got[i]), (bits[i] + 1) * 3) << there << " " << i;
    }
  });
  // What the CPU computes is there although another device was asked first, and the copy moves it.
  const Tensor a = Tensor::from<float>({1, 2, 3}, {3}, "NULL") + Tensor(1.0),
               b = Tensor::from<float>({1, 2, 3}) + Tensor(1.0);
  Tensor::realize({a, b});
  EXPECT_EQ(b.tolist<float>(), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ((Tensor::from<float>({1, 2, 3}) * Tensor(2.0)).to("NULL").tolist<float>(),
            (std::vector<float>{2, 4, 6}));
}

TEST(effects, spec_B19_the_stores_of_a_group_are_one_kernel) {
  auto halves = [](const UOp& b) {
    return after(b, {group(std::vector<UOp>{store(part(b, 0, 2), fill(5, 2)),
                                            store(part(b, 2, 2), fill(6, 2))})});
  };
  const UOp b = ints({0, 0, 0, 0});
  EXPECT_EQ(schedule({halves(b)}).size(), 1u);
  expect_value(halves(b), {5, 5, 6, 6});
  // Of other shapes, one of them a number, nested, gated, computed from each other.
  const UOp c = ints({1, 2, 3, 4, 5, 6});
  const UOp mixed = after(
      c, {group(std::vector<UOp>{
             store(part(c, 0, 3), add(part(c, 3, 3), number(10))),
             group(std::vector<UOp>{store(part(c, 3, 2), part(c, 0, 2)),
                                    store(reshape(part(c, 5, 1), shape_of({})),
                                          reshape(reduce(Op::Add, c, {0}), shape_of({})))})})});
  expect_value(mixed, {14, 15, 16, 1, 2, 21});
  // Where two write one place, the later one stays.
  const UOp both =
      after(b, {group(std::vector<UOp>{store(b, fill(5, 4)), store(part(b, 1, 2), fill(6, 2)),
                                       store(part(b, 2, 2), fill(7, 2))})});
  expect_value(both, {5, 6, 7, 7});
  EXPECT_EQ(schedule({both}).size(), 1u);
  // Two buffers in one kernel, and an exchange of two buffers, which reads both before it writes.
  in_both_modes([] {
    const UOp x = ints({1, 2, 3}), y = ints({4, 5, 6});
    const UOp two = after(x, {group(std::vector<UOp>{store(x, fill(8, 3)), store(y, fill(9, 3))})});
    const std::vector<Kernel> kernels = schedule({two});
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(kernels[0].buffers.size(), 2u);
    (void)realize({two});
    EXPECT_EQ(held_ints(x), (Numbers{8, 8, 8}));
    EXPECT_EQ(held_ints(y), (Numbers{9, 9, 9}));
    const UOp p = ints({1, 2, 3}), q = ints({4, 5, 6});
    (void)realize({after(p, {group(std::vector<UOp>{store(p, q), store(q, p)})})});
    EXPECT_EQ(held_ints(p), (Numbers{4, 5, 6}));
    EXPECT_EQ(held_ints(q), (Numbers{1, 2, 3}));
    // What both need is part of that kernel, however dear it is.
    const UOp dear = Tensor(ints({1, 2, 3})).cast(DType::Float32).sin().exp().log().cos().uop();
    const UOp u = leaf({3}), v = leaf({3}, DType::Float32, 1);
    auto sum_of = [](const UOp& a) { return reshape(reduce(Op::Add, a, {0}), shape_of({})); };
    EXPECT_EQ(
        schedule({after(u, {group(std::vector<UOp>{store(u, dear), store(v, neg(dear))})})}).size(),
        1u);
    EXPECT_EQ(schedule({after(u, {store(u, dear)}), after(v, {store(v, neg(dear))})}).size(), 1u)
        << "and kernels over the same loops are one";
    EXPECT_EQ(schedule({after(u, {store(u, dear)}), sum_of(dear)}).size(), 2u)
        << "two kernels share it through memory";
    // So do a store to places that are sums, and who reads these sums.
    const UOp table = ints({0, 1, 1, 1, 1, 0});
    const UOp places =
        reshape(reduce(Op::Add, reshape(table, shape_of({3, 2})), {1}), shape_of({3}));
    const UOp to = ints({0, 0, 0});
    EXPECT_EQ(schedule({after(to, {store(index(to, {cast(places, DType::Index)}), fill(5, 3))}),
                        neg(places)})
                  .size(),
              2u);
  });
  // Large enough for threads and lanes.
  const int64_t n = 1 << 18;
  in_both_modes([&] {
    const Tensor x = Tensor::arange(n).clone().realize(), y = Tensor::arange(n).clone().realize();
    const UOp u = x.uop(), w = y.uop();
    (void)realize({after(
        u, {group(std::vector<UOp>{store(u, add(w, number(1))), store(w, mul(u, number(2)))})})});
    const Numbers left = held_ints(u), right = held_ints(w);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(left[static_cast<size_t>(i)], i + 1);
      ASSERT_EQ(right[static_cast<size_t>(i)], 2 * i);
    }
  });
}

TEST(effects, spec_B20_old_states_of_two_buffers_in_one_chain) {
  in_both_modes([] {
    const UOp a = ints({1, 2, 3, 4, 5, 6, 7, 8}), b = ints({9});
    const UOp n0 = part(a, 0, 6), n3 = after(b, {store(b, b)}), n4 = after(a, {store(n0, n0), n3});
    const UOp n9 = after(n4, {store(flip(n4, {1}), n4)});
    const UOp n13 = after(n9, {store(part(n9, 7, 1), b)});
    expect_value(UOp::make(Op::Max, {n13, a}), {8, 7, 6, 5, 5, 6, 7, 9});
  });
}

TEST(effects, spec_B20_an_after_holds_memory_and_no_view_of_it) {
  const UOp b = ints({1, 2, 3, 4}), all = store(b, fill(7, 4));
  expect_error([&] { (void)after(part(b, 1, 2), {all}); }, {"After", "Shrink", "(2,)", "view"});
  expect_error([&] { (void)after(flip(after(b, {all}), {1}), {all}); }, {"After", "Flip", "view"});
  expect_value(part(after(b, {all}), 1, 2), {7, 7});
}

// Found by the fuzz of programs.
TEST(effects, spec_B19_what_several_stores_of_a_group_read_is_computed_once) {
  const UOp b = ints({0, 0, 0, 0}), columns = leaf({100, 2}, DType::Int32), two = part(b, 0, 2),
            product = reshape(reduce(Op::Mul, columns, {0}), shape_of({2})),
            again = store(two, product), other = store(part(b, 0, 3), fill(7, 3)),
            change = store(two, add(two, product)), elsewhere = store(part(b, 2, 2), product),
            one = store(part(b, 3, 1), part(product, 0, 1));
  const std::vector<std::vector<UOp>> groups{
      {again, again},      {again, group(std::vector<UOp>{other}), again},
      {change, again},     {again, elsewhere},
      {again, one, other}, {again, store(part(ints({1, 2}), 0, 2), product)}};
  for (const std::vector<UOp>& stores : groups) {
    const UOp value = after(b, {group(stores)});
    int products = 0;
    for (const Kernel& k : schedule({value})) products += count_ops(k.ast, Op::Reduce);
    EXPECT_EQ(products, 1) << to_text(value);
    expect_value(value, interpreted(renewed(value)));
  }
}

TEST(effects, spec_B19_a_use_before_its_definition_is_refused) {
  const UOp x = param(0, shape_of({4}), DType::Int32), at = index_const(1);
  const UOp address = index(x, {at}), value = load(address), sum = add(value, value),
            out = store(address, sum);
  auto check = [](const std::vector<UOp>& order) {
    verify(UOp::make(Op::Linear, order), VerifyLevel::Linear, "test");
  };
  EXPECT_NO_THROW(check({x, at, address, value, sum, out}));
  try {
    check({x, at, address, sum, value, out});
    ADD_FAILURE() << "an Add before its Load was accepted";
  } catch (const InternalError& e) {
    EXPECT_NE(
        std::string(e.what()).find("after test: Add, source 0: definitions stand before uses"),
        std::string::npos)
        << e.what();
  }
  EXPECT_THROW(check({x, at, address, sum, out}), InternalError) << "never defined";
}

TEST(effects, spec_B20_spec_amend_29_a_store_reads_before_it_writes) {
  const UOp b = ints({1, 2, 3, 4});
  expect_value(after(b, {store(flip(b, {1}), b)}), {4, 3, 2, 1});
  expect_value(after(b, {store(b, flip(b, {1}))}), {4, 3, 2, 1});
  const UOp square = reshape(b, shape_of({2, 2}));
  expect_value(after(b, {store(permute(square, {1, 0}), square)}), {1, 3, 2, 4});
  expect_value(after(b, {store(part(b, 1, 3), part(b, 0, 3))}), {1, 1, 2, 3});
  expect_value(after(b, {store(part(b, 0, 3), part(b, 1, 3))}), {2, 3, 4, 4});
  expect_value(after(b, {store(b, expand(reduce(Op::Add, b, {0}), shape_of({4})))}),
               {10, 10, 10, 10});
  // Two Stores of one After: both read the old state.
  expect_value(after(b, {store(part(b, 0, 2), part(b, 2, 2)), store(part(b, 2, 2), part(b, 0, 2))}),
               {3, 4, 1, 2});
  // Invalid elements of what reads the buffer are not stored.
  expect_value(after(b, {store(b, pad(part(b, 0, 2), shape_of({2}), shape_of({4})))}),
               {1, 2, 1, 2});
  const UOp shifted = pad(part(b, 0, 3), shape_of({1}), shape_of({4}));
  const UOp chosen = where(lt(b, number(3)), shifted, mul(flip(b, {1}), number(10)));
  expect_value(after(b, {store(b, chosen)}), {1, 1, 20, 10});
  // The places may be read from the buffer too; those out of range are dropped, the last one stays.
  const UOp places = ints({3, 0, 3, 9, -1});
  expect_value(after(b, {store(index(b, {places}), ints({10, 20, 30, 40, 50}))}), {20, 2, 3, 30});
  expect_value(after(b, {store(index(b, {sub(b, number(1))}), flip(b, {1}))}), {4, 3, 2, 1});
}

TEST(effects, spec_B20_a_hundred_increments_in_one_program_and_one_by_one) {
  in_both_modes([] {
    const UOp b = ints({1, 2, 3, 4});
    UOp state = b;
    for (int i = 0; i < 100; ++i) state = after(state, {store(state, add(state, number(1)))});
    (void)realize({state});
    EXPECT_EQ(held_ints(b), (Numbers{101, 102, 103, 104}));
    for (int i = 0; i < 100; ++i) (void)realize({after(b, {store(b, add(b, number(i)))})});
    EXPECT_EQ(held_ints(b), (Numbers{5051, 5052, 5053, 5054}));
  });
}

TEST(effects, spec_B20_duplicate_places_keep_their_order_on_many_threads) {
  const int64_t n = 1 << 18, k = 1000;
  Numbers cycle;
  for (int64_t i = 0; i < n; ++i) cycle.push_back(static_cast<int>(i % k));
  Options o = options();
  o.threads = 8;
  const OptionScope scope(o);
  in_both_modes([&] {
    const UOp b = Tensor::zeros({k}, DType::Int32).clone().realize().uop(),
              values = Tensor::arange(n).clone().realize().uop(), places = ints(cycle);
    const UOp written = after(b, {store(index(b, {places}), values)});
    const Kernel kernel = schedule({written}).back();
    EXPECT_TRUE(lower_kernel(kernel.ast, device_runtime("CPU").target()).opts.empty())
        << "neither threads nor lanes";
    (void)realize({written});
    const Numbers got = held_ints(b);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t last = (n - 1 - i) / k * k + i;
      ASSERT_EQ(got[static_cast<size_t>(i)], last);
    }
  });
}

TEST(effects, spec_B18_an_after_waits_for_the_afters_it_names) {
  in_both_modes([] {
    const UOp b = ints({1, 2}), c = ints({3, 4}), d = ints({5, 6});
    const UOp written = after(c, {store(c, fill(5, 2))});
    const UOp waits = after(b, {written});
    EXPECT_EQ(interpreted(waits), (Numbers{1, 2})) << "b passes through";
    EXPECT_EQ(held_ints(realize({waits})[0]), (Numbers{1, 2}));
    EXPECT_EQ(held_ints(c), (Numbers{5, 5}));
    // In a Group, below a value, over a value, and as a store into another buffer.
    (void)realize({after(b, {group(std::vector<UOp>{after(c, {store(c, fill(6, 2))})})})});
    EXPECT_EQ(held_ints(c), (Numbers{6, 6}));
    const UOp seventh = after(c, {store(c, fill(7, 2))});
    (void)realize({after(b, {add(seventh, number(1))})});
    EXPECT_EQ(held_ints(c), (Numbers{7, 7}));
    const UOp eighth = after(add(b, number(10)), {store(c, add(c, number(1)))});
    EXPECT_EQ(interpreted(eighth), (Numbers{11, 12}));
    EXPECT_EQ(held_ints(realize({eighth})[0]), (Numbers{11, 12}));
    EXPECT_EQ(held_ints(c), (Numbers{8, 8}));
    // The store that waits and the one it waits for, read by a third.
    const UOp first = after(c, {store(c, add(b, number(1)))}),
              second = after(d, {store(d, mul(first, number(2))), first}),
              sum = add(add(b, c), add(first, second));
    EXPECT_EQ(interpreted(sum), (Numbers{1 + 8 + 2 + 4, 2 + 8 + 3 + 6}));
    EXPECT_EQ(held_ints(realize({sum})[0]), (Numbers{15, 19}));
    EXPECT_EQ(held_ints(c), (Numbers{2, 3}));
    EXPECT_EQ(held_ints(d), (Numbers{4, 6}));
    // A store runs although arithmetic forgets its value.
    (void)realize({mul(after(b, {store(b, fill(9, 2))}), number(0))});
    EXPECT_EQ(held_ints(b), (Numbers{9, 9}));
  });
}

// Nothing but the After says that the kernel which fills c runs before the one that reads b.
TEST(effects, spec_B18_a_reader_runs_behind_what_its_state_waits_for) {
  const UOp b = ints({1, 2}), c = ints({3, 4}), d = ints({5, 6});
  UOp dear = c;  // by more kernels than the reader needs
  for (int k = 0; k < 4; ++k) dear = contiguous(add(flip(dear, {1}), dear));
  const UOp written = after(c, {store(c, dear)});
  const UOp read_and_written = after(d, {group(std::vector<UOp>{store(d, flip(d, {1})), written})});
  for (const UOp& state :
       {after(b, {written}), after(b, {group(std::vector<UOp>{written})}),
        after(b, {add(written, number(1))}), after(after(b, {written}), {store(b, fill(7, 2))}),
        read_and_written, after(b, {read_and_written})}) {
    const std::vector<Kernel> kernels = schedule({reduce(Op::Add, state, {0})});
    ASSERT_GE(kernels.size(), 2u) << to_text(state);
    EXPECT_EQ(kernels.back().reason, "output") << to_text(state);
  }
}

TEST(effects, spec_B18_spec_amend_29_two_afters_on_one_state_are_refused) {
  const UOp b = ints({1, 2, 3, 4});
  const UOp left = after(b, {store(part(b, 0, 2), fill(5, 2))}),
            right = after(b, {store(part(b, 2, 2), fill(6, 2))});
  for (const UOp& both : {add(left, right), stack(std::vector<UOp>{left, right})}) {
    expect_error([&] { (void)interpret(both, bindings_of(both)); },
                 {"After", "one state", "int32 (4,)", "build the second on the first"});
    in_both_modes([&] {
      expect_error([&] { (void)realize({both}); },
                   {"After", "one state", "int32 (4,)", "build the second on the first"});
    });
  }
  expect_error([&] { (void)realize({left, right}); }, {"After", "one state"});
  EXPECT_EQ(held_ints(b), (Numbers{1, 2, 3, 4})) << "nothing was written";
  // One after the other, and beside Afters that write elsewhere, all is well.
  expect_value(after(left, {store(part(left, 2, 2), fill(6, 2))}), {5, 5, 6, 6});
  const UOp c = ints({7, 7, 7, 7});
  expect_value(add(after(b, {after(c, {store(c, b)})}), left), {6, 7, 6, 8});
}

// Old states that are read after they are overwritten are copied: no order would do without.
TEST(effects, spec_B18_a_variable_is_no_memory) {
  const UOp n = variable("n", 1, 8), x = ints({1, 2, 3});
  expect_error([&] { (void)after(n, {store(n, index_const(2))}); }, {"After", "n is a Variable"});
  expect_error([&] { (void)UOp::make(Op::After, {n}); }, {"After", "n is a Variable"});
  const UOp changed =
      after(x, {store(reshape(n, shape_of({1})), reshape(index_const(2), shape_of({1})))});
  expect_error([&] { realize({changed}, {{"n", 3}}); }, {"Store", "view of a buffer", "Reshape"});
}

TEST(effects, spec_B18_a_value_of_several_parts_is_no_memory) {
  const UOp x = ints({1, 2, 3});
  const UOp both = stack(std::vector<UOp>{x, flip(x, {true})});
  const UOp program = callify({after(x, {store(both, both)})}, {UOp()}).body;
  expect_error([&] { (void)decided_program(program); }, {"Store", "view of a buffer", "Stack"});
}

TEST(effects, spec_B18_old_states_outlive_their_memory) {
  const UOp b = ints({1, 2, 3, 4}), c = ints({10, 20, 30, 40});
  const UOp next = after(b, {store(b, mul(b, number(2)))});
  expect_value(add(b, next), {3, 6, 9, 12});
  expect_value(add(reduce(Op::Add, b, {0}), reduce(Op::Max, next, {0})), {18});
  // b and c exchange their values by two Afters, and both old states are read as well.
  const UOp b2 = after(b, {store(b, c)}), c2 = after(c, {store(c, b)});
  const UOp all = add(add(b, mul(c, number(10))), add(mul(b2, number(100)), mul(c2, number(1000))));
  expect_value(all, {1 + 100 + 1000 + 1000, 2 + 200 + 2000 + 2000, 3 + 300 + 3000 + 3000,
                     4 + 400 + 4000 + 4000});
  in_both_modes([] {
    const UOp p = ints({1, 2}), q = ints({3, 4});
    (void)realize({after(p, {store(p, q)}), after(q, {store(q, p)})});
    EXPECT_EQ(held_ints(p), (Numbers{3, 4}));
    EXPECT_EQ(held_ints(q), (Numbers{1, 2}));
    // A view that is asked for and written in one program.
    const UOp r = ints({1, 2, 3, 4});
    const std::vector<UOp> out =
        realize({part(r, 0, 2), after(r, {store(part(r, 0, 2), fill(9, 2))})});
    EXPECT_EQ(held_ints(out[0]), (Numbers{1, 2}));
    EXPECT_EQ(held_ints(r), (Numbers{9, 9, 3, 4}));
  });
}

// The copy that a Store makes of the state it writes over, the one that others read, and a clone
// are one node: it is filled from memory whoever asks for it first.
TEST(effects, spec_B18_the_copy_of_an_old_state_is_filled_from_memory) {
  const UOp b = ints({1, 2, 3, 4});
  expect_value(add(b, after(b, {store(b, b)})), {2, 4, 6, 8});
  const UOp turned = after(b, {store(flip(b, {1}), b)});
  expect_value(binary(Op::Max, turned, b), {4, 3, 3, 4});
  const UOp cloned = UOp::make(Op::Contiguous, {b}, MarkArg{Mark::Copies});
  expect_value(add(cloned, add(b, after(b, {store(b, mul(b, number(3)))}))), {5, 10, 15, 20});
  const UOp next = after(b, {store(b, add(b, number(1)))});
  expect_value(add(next, after(next, {store(flip(next, {1}), next)})), {7, 7, 7, 7});
}

// A value that waits for an effect is one of the program's effects, and may have memory of its own.
TEST(effects, spec_B18_a_value_behind_an_effect_is_copied_to_another_device) {
  for (const int verify : {0, 2}) {
    Options checked = options();
    checked.verify = verify;
    const OptionScope scope(checked);
    const UOp b = ints({1, 2, 3, 4}), c = ints({5, 6, 7, 8});
    const UOp moved = copy_to(after(add(c, c), {store(b, c)}), Device("CPU:1"));
    EXPECT_EQ(held_ints(realize({moved})[0]), (Numbers{10, 12, 14, 16}));
    EXPECT_EQ(held_ints(b), (Numbers{5, 6, 7, 8}));
  }
}

// Each state that one request names is what it was, also where another overwrites its memory.
TEST(effects, spec_B18_a_state_asked_for_beside_the_next_is_a_copy) {
  in_both_modes([] {
    const UOp b = ints({1, 2}), second = after(b, {store(b, add(b, number(10)))}),
              third = after(second, {store(part(second, 0, 1), fill(7, 1))});
    for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 0, 3}, {3, 2, 1, 0, 0}}) {
      const UOp fresh = renewed(b);
      std::vector<UOp> asked;
      for (const size_t k : order)
        asked.push_back(
            substitute(std::vector<UOp>{b, second, third, mul(third, number(2))}[k], {{b, fresh}}));
      const std::vector<UOp> got = realize(asked);
      const Numbers expected[] = {{1, 2}, {11, 12}, {7, 12}, {14, 24}};
      for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(held_ints(got[i]), expected[order[i]]);
      EXPECT_EQ(held_ints(fresh), expected[2]) << "the last state is what memory holds";
      EXPECT_EQ(realize({fresh})[0], fresh) << "and the buffer is itself again";
    }
  });
}

TEST(effects, spec_B5_spec_amend_27_a_padded_value_and_its_maximum_together) {
  for (const DType dtype : {DType::Float32, DType::Int32, DType::Float16}) {
    in_both_modes([&] {
      const UOp x = Tensor::from<float>({-3, -1, -2}).cast(dtype).realize().uop();
      const UOp p = pad(x, shape_of({1}), shape_of({6})), top = reduce(Op::Max, p, {0});
      for (const bool first : {false, true}) {
        const std::vector<UOp> out =
            first ? realize({p, top}) : realize({top, p, mul(p, p), contiguous(p)});
        EXPECT_EQ(Tensor(out[first ? 1 : 0]).tolist<int>(), (Numbers{-1}));
        EXPECT_EQ(Tensor(out[first ? 0 : 1]).tolist<int>(), (Numbers{0, -3, -1, -2, 0, 0}));
      }
      // Behind a marker that asks for memory the surroundings are 0, for whoever reads that.
      const UOp stored = contiguous(p);
      EXPECT_EQ(Tensor(realize({reduce(Op::Max, stored, {0}), stored, top})[0]).tolist<int>(),
                (Numbers{0}));
      EXPECT_EQ(Tensor(realize({stored, top})[1]).tolist<int>(), (Numbers{-1}));
      EXPECT_EQ(interpreted(reduce(Op::Max, stored, {0})), (Numbers{0}));
    });
  }
}

// What becomes of invalid elements in a Stack, a Bitcast to another size, and a value that several
// kernels want.
TEST(effects, spec_amend_27_validity_survives_every_way_through_a_program) {
  const UOp x = ints({-5, -7}), p = pad(x, shape_of({1}), shape_of({4}));
  auto top = [](const UOp& v) {
    Ints axes(v.rank());
    std::iota(axes.begin(), axes.end(), 0);
    return reshape(reduce(Op::Max, v, axes), shape_of({}));
  };
  const UOp whole = ints({-9, -8, -6, -9});
  expect_value(top(stack(std::vector<UOp>{p, whole})), {-5});
  expect_value(top(stack(std::vector<UOp>{whole, p})), {-5});
  expect_value(top(flip(stack(std::vector<UOp>{p, p, whole}), {1, 1})), {-5});
  expect_value(top(permute(stack(std::vector<UOp>{whole, p}), {1, 0})), {-5});
  expect_value(reshape(reduce(Op::Add, stack(std::vector<UOp>{whole, p}), {0, 1}), shape_of({})),
               {-44});
  expect_value(reshape(reduce(Op::Add, stack(std::vector<UOp>{p, whole}), {0, 1}), shape_of({})),
               {-44});
  // Dear enough to be kept for two kernels, or for the rows of one; but memory knows no validity.
  const UOp dear = idiv(idiv(p, number(2)), number(1));
  in_both_modes([&] {
    const std::vector<UOp> out = realize({top(dear), reduce(Op::Add, dear, {0})});
    EXPECT_EQ(held_ints(out[0]), (Numbers{-3}));
    EXPECT_EQ(held_ints(out[1]), (Numbers{-7}));
  });
  Numbers steps(1000), highest(1000);
  std::iota(steps.begin(), steps.end(), 0);
  std::iota(highest.begin(), highest.end(), -3);
  const UOp spread = expand(reshape(dear, shape_of({1, 4})), shape_of({1000, 4}));
  expect_value(reduce(Op::Max, add(spread, reshape(ints(steps), shape_of({1000, 1}))), {1}),
               highest);
  // A fill is valid, whatever it lies around.
  expect_value(top(pad(p, shape_of({1}), shape_of({6}), number(-3))), {-3});
  expect_value(reduce(Op::Add, pad(p, shape_of({1}), shape_of({6}), number(-3)), {0}), {-18});
  // Bytes of invalid elements are invalid, and so is what is made of one such byte.
  const UOp bytes = bitcast(p, DType::Int8);  // -5 is fb ff ff ff, -7 is f9 ff ff ff
  EXPECT_EQ(bytes.numel(), 16);
  expect_value(top(bytes), {-1});
  expect_value(reduce(Op::Add,
                      where(lt(bytes, constant_int(DType::Int8, 0)), constant_int(DType::Int8, 1),
                            constant_int(DType::Int8, 0)),
                      {0}),
               {8});
  const UOp small = Tensor::from<int>({-1, -2, -3, -4, -5}).cast(DType::Int8).realize().uop();
  const UOp wide = bitcast(pad(small, shape_of({0}), shape_of({8})), DType::Int32);
  expect_value(top(wide), {static_cast<int>(0xfcfdfeffu)});
  EXPECT_EQ(interpret(wide, bindings_of(wide)).valid, (std::vector<uint8_t>{1, 0}));
  const UOp square = pad(ints({-1, -2, -3, -4, -5, -6}), shape_of({0}), shape_of({8})),
            table = bitcast(reshape(square, shape_of({2, 4})), DType::Int64);
  expect_same_everywhere(top(table));
  expect_same_everywhere(top(bitcast(reshape(square, shape_of({2, 2, 2})), DType::Int16)));
  // Costly, padded, and wanted by two kernels: memory could not hold it.
  const UOp costly =
      pad(bitcast(reduce(Op::Add, expand(reshape(x, shape_of({2, 1})), shape_of({2, 9})), {1}),
                  DType::Int32),
          shape_of({1, 0}), shape_of({4, 1}));
  const UOp low = top(costly), sum = reduce(Op::Add, costly, {0});
  in_both_modes([&] {
    const std::vector<UOp> out = realize({low, contiguous(sum), contiguous(costly)});
    EXPECT_EQ(held_ints(out[0]), (Numbers{-45}));
    EXPECT_EQ(held_ints(out[1]), (Numbers{-108}));
    EXPECT_EQ(held_ints(out[2]), (Numbers{0, -45, -63, 0}));
  });
  // Moved to another device it lies in memory there; here it stays invalid.
  in_both_modes([&] {
    const std::vector<UOp> out = realize({top(p), top(copy_to(p, Device("CPU:1")))});
    EXPECT_EQ(held_ints(out[0]), (Numbers{-5}));
    EXPECT_EQ(held_ints(out[1]), (Numbers{0}));
  });
}

}  // namespace koine::test
