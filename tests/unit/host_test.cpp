// The host program: one node that says what is launched, on which device; the steps made from it;
// devices whose memory the host cannot see.
#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "check.hpp"
#include "koine/engine/skeleton.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/verify/verify.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

using Floats = std::vector<float>;

UOp one() { return constant(DType::Float32, 1); }

// The devices of the launches, with the copies marked.
std::vector<std::string> devices_of(const UOp& program) {
  std::vector<std::string> out;
  for (const Kernel& k : kernels_of(program))
    out.push_back((k.ast.is(Op::CustomFunction) ? "to " : "") +
                  (k.device() ? k.device().name() : std::string("nowhere")));
  return out;
}

// Three kernels, each of which needs all elements of the one before.
std::vector<UOp> three_kernels(const UOp& x, const UOp& y) {
  const UOp a = contiguous(mul(x, reduce(Op::Add, x, {0})));
  const UOp b = contiguous(add(y, reduce(Op::Max, a, {0})));
  return {contiguous(sub(b, reduce(Op::Add, b, {0})))};
}

// --- checks of positions -------------------------------------------------------------------------

// The launches of a step: names of functions of the host, and "kernel".
std::vector<std::string> launches(const UOp& program) {
  std::vector<std::string> out;
  for (const Kernel& k : kernels_of(program))
    out.push_back(k.ast.is(Op::CustomFunction) ? k.ast.as<std::string>() : "kernel");
  return out;
}

TEST(host, spec_C28_positions_are_checked_by_the_program_that_uses_them) {
  in_both_modes([] {
    constexpr int64_t rows = 48, columns = 96, inner = 64;
    const Tensor a = Tensor::randn({rows, inner}).realize(),
                 b = Tensor::randn({inner, columns}).realize(),
                 table = Tensor::randn({columns, 3}).realize();
    auto picked = [&](const Tensor& at) { return table.index_select(0, at); };
    reset_counters();
    const Tensor at = a.matmul(b).argmax(1);
    const std::vector<float> got = picked(at).tolist<float>();
    EXPECT_LT(counters().operations, 2.0 * rows * columns * inner * 1.4) << "one product";
    EXPECT_EQ(got, picked(Tensor::from(at.tolist<int32_t>(), {rows})).tolist<float>());

    const Tensor x = Tensor::from<float>({1, 2, 3}).realize(),
                 two = Tensor::from<int32_t>({2, 0}).realize();
    CapturedStep step({x.index_select(0, two).uop()});
    EXPECT_EQ(launches(step.host_program()),
              (std::vector<std::string>{"kernel", std::string(check_function), "kernel"}));
    EXPECT_EQ(parse(to_text(step.host_program())), step.host_program());
    reset_counters();
    step.run();
    EXPECT_EQ(counters().kernels, 2) << "a look is no kernel";
  });
}

// What bounds prove is not looked at: uint8 is never beyond the last of 256 places.
TEST(host, spec_C28_positions_in_range_by_their_dtype_are_not_checked) {
  const Tensor at = Tensor::from<uint8_t>({0, 255}).realize();
  auto launched = [&](int64_t size) {
    const UOp table = Tensor::zeros({size}).contiguous().realize().uop();
    const UOp position =
        UOp::make(Op::Assume, {at.uop(), constant_int(DType::UInt8, 0),
                               constant_int(DType::UInt8, static_cast<Bits>(size - 1))});
    return launches(CapturedStep({index(table, {position})}).host_program());
  };
  EXPECT_EQ(launched(256), std::vector<std::string>{"kernel"});
  EXPECT_EQ(launched(255).size(), 3u);
}

TEST(host, spec_C28_what_follows_a_broken_position_does_not_run) {
  in_both_modes([] {
    const UOp x = floats({1, 2, 3});
    const int32_t good[2] = {2, 0}, bad[2] = {1, 3}, other[2] = {0, 1};
    const UOp at = buffer_from_host(shape_of({2}), DType::Int32, "CPU", good);
    // Writes to what is indexed; the positions and what is made of them are outputs as well.
    const Tensor places = Tensor(at) * Tensor(1);
    const UOp rows = Tensor(x).index_select(0, places).uop();
    CapturedStep step(
        {after(x, {store(x, mul(x, expand(reshape(reduce(Op::Add, rows, {0}), shape_of({1})),
                                          shape_of({3}))))}),
         places.uop()});
    step.run();
    EXPECT_EQ(held(x), (Floats{4, 8, 12}));
    auto outputs = [&] {
      std::vector<int32_t> out(2);
      memory_of(step.outputs()[1])->copy_out(out.data(), 0, 8);
      return out;
    };
    EXPECT_EQ(outputs(), (std::vector<int32_t>{2, 0}));
    memory_of(at)->copy_in(bad, 0, sizeof bad);
    for (int i = 0; i < 2; ++i)
      expect_error([&] { step.run(); }, {"position 3", "element 1", "size 3"});
    EXPECT_EQ(held(x), (Floats{4, 8, 12}));
    EXPECT_EQ(outputs(), (std::vector<int32_t>{2, 0})) << "no output is written before the look";
    memory_of(at)->copy_in(other, 0, sizeof other);
    step.run();
    EXPECT_EQ(held(x), (Floats{48, 96, 144}));
    EXPECT_EQ(outputs(), (std::vector<int32_t>{0, 1}));
  });
}

// A look reads nothing at positions that are not known to be in range either.
TEST(host, spec_C28_positions_found_at_positions) {
  in_both_modes([] {
    const Tensor far = Tensor::from<int64_t>({3, 1, 2, 0}).realize(),
                 near = Tensor::from<int32_t>({2, 0, 1}).realize(),
                 x = Tensor::from<float>({1, 2, 3, 4}).realize();
    for (const int64_t bad : {int64_t{3}, int64_t{1000000000000}, INT64_MIN}) {
      const Tensor at = Tensor::from<int64_t>({1, bad}).realize();
      expect_error(
          [&] { x.index_select(0, far.index_select(0, near.index_select(0, at))).realize(); },
          {fmt::format("position {}", bad), "element 1", "size 3"});
    }
    const Tensor at = Tensor::from<int64_t>({1, -1}).realize();
    EXPECT_EQ(x.index_select(0, far.index_select(0, near.index_select(0, at))).tolist<float>(),
              (Floats{4, 2}));
    const Tensor wrong = Tensor::from<int64_t>({3, 4000000000, 2, 1}).realize();
    expect_error([&] { x.index_select(0, wrong.index_select(0, near)).realize(); },
                 {"position 4000000000", "element 2", "size 4"});
  });
}

TEST(host, spec_C28_a_broken_position_leaves_what_is_assigned_on_two_devices) {
  in_both_modes([] {
    Tensor x = Tensor::from<float>({1, 2, 3, 4}).to("CPU:1").realize();
    Tensor y = Tensor::from<float>({5, 6, 7, 8}).realize();
    const Tensor near = Tensor::from<int32_t>({3, 1}).realize(),
                 far = Tensor::from<int32_t>({0, 4}).to("CPU:1").realize();
    expect_error(
        [&] {
          Tensor::realize({y.index_select(0, near) + Tensor(1),
                           (x.index_select(0, far) * Tensor(2)).to("CPU")});
        },
        {"position 4", "element 1", "size 4"});
    EXPECT_EQ(Tensor(y.index_select(0, near)).tolist<float>(), (Floats{8, 6}));
    CapturedStep step({y.index_select(0, near).uop(), x.index_select(0, near.to("CPU:1")).uop()});
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{8, 6}));
    EXPECT_EQ(held(step.outputs()[1]), (Floats{4, 2}));
    const int32_t bad[2] = {9, 0}, good[2] = {0, 2};
    memory_of(near.uop())->copy_in(bad, 0, sizeof bad);
    expect_error([&] { step.run(); }, {"position 9", "element 0", "size 4"});
    memory_of(near.uop())->copy_in(good, 0, sizeof good);
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{5, 7}));
    EXPECT_EQ(held(step.outputs()[1]), (Floats{1, 3}));
  });
}

}  // namespace

// --- the node ------------------------------------------------------------------------------------

TEST(host, spec_L9_the_step_is_a_linear_of_calls_that_is_verified_printed_and_read_again) {
  const UOp x = floats({1, 2, 3}), y = floats({4, 5, 6});
  const UOp n = variable("n", 1, 3);
  std::vector<UOp> values = three_kernels(x, y);
  values.push_back(mul(x, cast(n, DType::Float32)));
  const UOp program = host_program(values), planned = plan_memory(program);
  for (const UOp& p : {program, planned}) {
    EXPECT_FALSE(find_violation(p, VerifyLevel::Schedule));
    EXPECT_EQ(parse(to_text(p)), p);
  }
  bool reads_n = false;
  for (const Kernel& k : kernels_of(planned)) {
    EXPECT_EQ(k.device().name(), "CPU");
    EXPECT_FALSE(k.reason.empty());
    for (const UOp& b : k.buffers)
      EXPECT_EQ(b.is(Op::Buffer), b.as<BufferArg>().offset >= 0) << to_text(b);
    for (const UOp& v : k.variables) reads_n = reads_n || v == n;
  }
  EXPECT_TRUE(reads_n) << "a launch names the Variables that it reads";
}

// Kernels that differ in where their slices begin are one, which each Call tells where.
TEST(host, spec_L9_the_offset_of_a_slice_is_an_argument_of_its_kernel) {
  auto products = [] {  // which share no kernel
    const Tensor x(floats({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})),
        w = Tensor(floats({1, 2, 3, 4})).reshape({2, 2});
    std::vector<UOp> out;
    for (int64_t k = 0; k < 4; ++k)
      out.push_back(x.shrink({{4 * k, 4 * k + 4}}).reshape({2, 2}).matmul(w).uop());
    return out;
  };
  const UOp program = plan_memory(host_program(products()));
  EXPECT_FALSE(find_violation(program, VerifyLevel::Schedule));
  EXPECT_EQ(parse(to_text(program)), program);
  std::set<const Node*> kernels;
  std::set<int64_t> offsets;
  for (const Kernel& k : kernels_of(program)) {
    kernels.insert(k.ast.node());
    ASSERT_EQ(k.variables.size(), 1U);
    EXPECT_TRUE(is_bound(k.variables[0]));
    EXPECT_EQ(const_int(k.variables[0].src(1)), 0);
    EXPECT_EQ(const_int(k.variables[0].src(2)), 12);
    offsets.insert(bound_value(k.variables[0]));
  }
  EXPECT_EQ(kernels.size(), 1U);
  EXPECT_EQ(offsets, (std::set<int64_t>{0, 4, 8, 12}));
  in_both_modes([&] {
    clear_compile_cache();
    reset_counters();
    const std::vector<UOp> out = realize(products());
    EXPECT_EQ(counters().compiled, 1);
    EXPECT_EQ(counters().kernels, 4);
    EXPECT_EQ(held(out[0]), (Floats{7, 10, 15, 22}));
    EXPECT_EQ(held(out[3]), (Floats{55, 82, 63, 94}));
    clear_compile_cache();
  });
  // A value out of the range of its Variable is refused as a rule is.
  const UOp& call = program.src(1);
  std::vector<UOp> src(call.src().begin(), call.src().end());
  const UOp& v = src.back();
  src.back() = UOp::make(Op::Param, {v.src(0), v.src(1), v.src(2), index_const(13)}, v.arg());
  const auto violation = find_violation(
      UOp::make(Op::Linear, {UOp::make(Op::Call, src, call.arg())}), VerifyLevel::Schedule);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->rule, "a Call takes Params and Buffers, then Variables");
}

// What differs in more than that, or in nothing, stays as it is: also where places are multiplied,
// cut or chosen by data.
TEST(host, kernels_that_share_an_offset_compute_what_they_did) {
  const Tensor x = Tensor(leaf({6, 40}, DType::Float32, 3)).contiguous().realize(),
               at = Tensor::from<int32_t>({3, 0, 2}).realize();
  std::vector<Tensor> rows, columns, picked, folded, uneven;
  for (int64_t k = 0; k < 5; ++k) {
    rows.push_back(x.shrink({{k, k + 1}, {0, 40}}).cumsum(1));
    columns.push_back((x.shrink({{0, 6}, {7 * k, 7 * k + 7}}).softmax(1)).contiguous());
    picked.push_back(x.shrink({{k, k + 2}, {4 * k, 4 * k + 4}}).index_select(1, at).exp());
    folded.push_back(x.shrink({{0, 6}, {k, k + 30}}).reshape({4, 45}).max(1).contiguous());
    uneven.push_back(x.shrink({{0, 6}, {k, 40}}).sum(1));
  }
  for (const auto& parts : {rows, columns, picked, folded, uneven}) {
    expect_same_everywhere(Tensor::cat(parts, 0));
    std::vector<UOp> values;
    for (const Tensor& t : parts) values.push_back(t.uop());
    expect_same_everywhere(Tensor::stack({parts[0].sum(), parts[4].sum(), parts[2].max()}, 0));
    Tensor::realize(parts);
    for (size_t k = 0; k < parts.size(); ++k) {
      const std::vector<float> together = parts[k].tolist<float>(),
                               alone = Tensor(values[k]).clone().tolist<float>();
      for (size_t i = 0; i < alone.size(); ++i)
        EXPECT_TRUE(together[i] == alone[i] || (std::isnan(together[i]) && std::isnan(alone[i])))
            << k << " " << i;
    }
  }
}

TEST(host, a_malformed_host_program_is_refused_by_rule) {
  const UOp x = floats({1, 2}), y = floats({1, 2}, "CPU:1");
  const Kernel good = schedule({add(x, one())})[0];
  auto rule = [](const UOp& program) {
    const auto violation = find_violation(program, VerifyLevel::Schedule);
    return violation ? violation->rule : std::string();
  };
  auto linear = [](const UOp& call) { return UOp::make(Op::Linear, {call}); };
  EXPECT_EQ(rule(linear(good.call)), "");
  EXPECT_EQ(rule(good.ast), "a host program is a Linear");
  EXPECT_EQ(rule(linear(good.ast)), "a host program holds Calls");
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, good.buffers[0], add(x, one())}))),
            "a Call takes Params and Buffers, then Variables");
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, good.buffers[0]}))),
            "each slot of a kernel has a buffer of its size");
  // Another size, and the size of other elements.
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, good.buffers[0], floats({1, 2, 3})}))),
            "each slot of a kernel has a buffer of its size");
  const UOp bytes =
      UOp::make(Op::Buffer, {shape_of({8})}, BufferArg{7, DType::UInt8, Device("CPU")});
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, good.buffers[0], bytes}))), "");
  const UOp n = variable("n", 1, 4), stored = good.ast.src(0);
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, n, stored, good.buffers[0]}))),
            "a Call takes Params and Buffers, then Variables");
  EXPECT_EQ(rule(linear(UOp::make(Op::Call, {good.ast, good.buffers[0], y}))),
            "the buffers of a kernel lie on one device");
  const UOp copy = UOp::make(Op::CustomFunction, {}, std::string(copy_function));
  EXPECT_EQ(rule(linear(kernel_call(copy, std::vector<UOp>{good.buffers[0]}, ""))),
            "a copy has two buffers");
}

// Two temporaries that are alive at once lie apart, and each has a place.
TEST(host, spec_L7_a_plan_that_overlaps_is_refused) {
  auto program = [](int64_t first, int64_t second) {
    auto at = [](int64_t slot, int64_t offset) {
      BufferArg arg{slot, DType::UInt8, Device("CPU")};
      arg.offset = offset;
      return UOp::make(Op::Buffer, {shape_of({64})}, arg);
    };
    const UOp copy = UOp::make(Op::CustomFunction, {}, std::string(copy_function));
    const UOp a = at(0, first), b = at(1, second);
    return UOp::make(Op::Linear, {kernel_call(copy, std::vector<UOp>{a, a}, ""),
                                  kernel_call(copy, std::vector<UOp>{b, a}, ""),
                                  kernel_call(copy, std::vector<UOp>{b, b}, "")});
  };
  EXPECT_THROW(check_plan(program(0, 32)), InternalError);
  EXPECT_THROW(check_plan(program(0, -1)), InternalError);
  EXPECT_NO_THROW(check_plan(program(0, 64)));
  EXPECT_NO_THROW(check_plan(plan_memory(program(-1, -1))));
}

// Where rules fold the only loads of a temporary away, what makes it goes too.
TEST(host, counters_begin_at_zero_and_add_what_ran) {
  const UOp x = floats(Floats(1000, 2));
  const auto begin = std::chrono::steady_clock::now();
  clear_compile_cache();
  reset_counters();
  const Counters none = counters();
  EXPECT_EQ(none.kernels + none.compiled + none.temporary_bytes, 0);
  EXPECT_EQ(none.checked_stages + none.unchecked_stages, 0);
  EXPECT_EQ(none.operations + none.bytes, 0);
  EXPECT_EQ(none.run_seconds + none.schedule_seconds + none.compile_seconds, 0);
  for (int runs = 1; runs <= 2; ++runs) {
    (void)realize({UOp::make(Op::Contiguous, {mul(x, x)}, MarkArg{Mark::Copies})});
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const Counters c = counters();
    EXPECT_EQ(c.kernels, runs);
    EXPECT_EQ(c.compiled, 1);
    EXPECT_EQ(c.operations, runs * 1000);
    EXPECT_EQ(c.bytes, runs * 8000);
    for (const double seconds : {c.run_seconds, c.schedule_seconds, c.compile_seconds}) {
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, passed.count());
    }
  }
}

TEST(host, nothing_is_computed_that_nobody_reads) {
  const Tensor x(floats({1, 2, 3})), dear = x.exp2().contiguous();
  const UOp chosen = Tensor::where(Tensor::arange(3) < Tensor(10), x, dear).uop();
  EXPECT_EQ(schedule({chosen}).size(), 1u);
  EXPECT_EQ(held(realize({chosen})[0]), (Floats{1, 2, 3}));
}

// --- devices -------------------------------------------------------------------------------------

TEST(host, each_call_runs_on_its_own_device) {
  in_both_modes([] {
    const UOp a = floats({1, 2, 3}), b = floats({10, 20, 30}, "CPU:1"),
              c = floats({100, 200, 300}, "INTERP");
    const UOp on_one = add(b, copy_to(mul(a, a), Device("CPU:1")));
    const UOp on_interp = add(c, copy_to(on_one, Device("INTERP")));
    const UOp back = add(a, copy_to(on_interp, Device("CPU")));
    const std::vector<UOp> values{back, on_one, on_interp};
    const std::vector<UOp> got = realize(values);
    EXPECT_EQ(held(got[0]), (Floats{112, 226, 342}));
    EXPECT_EQ(held(got[1]), (Floats{11, 24, 39}));
    EXPECT_EQ(held(got[2]), (Floats{111, 224, 339}));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i].device(), values[i].device());
    EXPECT_EQ(devices_of(host_program({add(a, copy_to(mul(c, c), Device("CPU")))})),
              (std::vector<std::string>{"INTERP", "to CPU", "CPU"}));
  });
}

TEST(host, positions_are_checked_on_each_device) {
  register_remote_device();
  in_both_modes([] {
    auto at = [](const std::vector<int32_t>& places, const std::string& device) {
      return Tensor(buffer_from_host(shape_of({2}), DType::Int32, device, places.data()));
    };
    auto picked = [](const Tensor& places) -> UOp {
      const Tensor table(floats({1, 2, 3}, places.device()));
      return table.index_select(0, places).uop();
    };
    const std::vector<int32_t> good{2, 0}, bad{0, 5};
    const std::vector<UOp> got = realize({picked(at(good, "REMOTE")), picked(at(good, "INTERP"))});
    EXPECT_EQ(held(got[0]), (Floats{3, 1}));
    EXPECT_EQ(held(got[1]), (Floats{3, 1}));
    expect_error([&] { (void)realize({picked(at(good, "CPU")), picked(at(bad, "REMOTE"))}); },
                 {"position 5", "element 1", "size 3"});
    expect_error([&] { (void)realize({picked(at(bad, "REMOTE:1")), picked(at(good, "CPU"))}); },
                 {"position 5"});
  });
}

// What is computed from constants alone is made where it is read.
TEST(host, constants_are_made_on_each_device_that_reads_them) {
  const UOp a = floats({1, 2, 3}), b = floats({10, 20, 30}, "INTERP");
  const UOp table = contiguous(Tensor::arange(5, 8).cast(DType::Float32).uop());
  const std::vector<UOp> values{add(a, table), add(b, table)};
  std::vector<std::string> devices = devices_of(host_program(values));
  std::sort(devices.begin(), devices.end());
  EXPECT_EQ(devices, (std::vector<std::string>{"CPU", "CPU", "INTERP", "INTERP"}));
  const std::vector<UOp> got = realize(values);
  EXPECT_EQ(held(got[0]), (Floats{6, 8, 10}));
  EXPECT_EQ(held(got[1]), (Floats{15, 26, 37}));
}

TEST(host, raw_bytes_follow_the_device_that_reads_them) {
  const uint8_t bytes[8] = {0, 0, 128, 63, 0, 0, 0, 64};  // 1, 2
  const UOp raw =
      UOp::make(Op::Binary, {}, std::string(reinterpret_cast<const char*>(bytes), sizeof bytes));
  const UOp twice = add(bitcast(raw, DType::Float32), bitcast(raw, DType::Float32));
  for (const char* device : {"INTERP", "CPU", "INTERP"}) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    const UOp got = realize({twice})[0];
    EXPECT_EQ(got.device().name(), device);
    EXPECT_EQ(held(got), (Floats{2, 4}));
    EXPECT_EQ(held(realize({add(floats({1, 1}, device), twice)})[0]), (Floats{3, 5}));
  }
}

// No host pointer is assumed, and everything is waited for that is read.
TEST(host, a_device_whose_memory_the_host_cannot_see) {
  register_remote_device();
  in_both_modes([] {
    const UOp r = floats({1, 2, 3}, "REMOTE"), other = floats({7, 8, 9}, "REMOTE:1"),
              c = floats({10, 20, 30});
    ASSERT_EQ(memory_of(r)->data(), nullptr);
    EXPECT_EQ(held(r), (Floats{1, 2, 3}));
    remote_counts() = {};
    EXPECT_EQ(held(realize(three_kernels(r, r))[0]), (Floats{-41, -40, -39}));
    EXPECT_EQ(remote_counts().submissions, 1) << "one list for all its launches";
    EXPECT_EQ(remote_counts().launches, 3);
    // From device to device by way of the host, there and back.
    const UOp sum = add(other, copy_to(mul(r, r), Device("REMOTE:1")));
    const std::vector<UOp> got =
        realize({add(c, copy_to(sum, Device("CPU"))), add(r, copy_to(c, Device("REMOTE"))), sum});
    EXPECT_EQ(held(got[0]), (Floats{18, 32, 48}));
    EXPECT_EQ(held(got[1]), (Floats{11, 22, 33}));
    EXPECT_EQ(held(got[2]), (Floats{8, 12, 18}));
    // Through Tensor: values, prints, assignments, positions that are checked.
    Tensor t(r);
    EXPECT_EQ(t[1].item(), 2);
    EXPECT_NE(t.repr().find("2."), std::string::npos) << t.repr();
    const Tensor at = Tensor::from<int32_t>({2, 0}).to("REMOTE");
    EXPECT_EQ(t.index_select(0, at).tolist<float>(), (Floats{3, 1}));
    expect_error([&] { (void)t.index_select(0, at + Tensor(1)).tolist<float>(); },
                 {"position 3", "size 3"});
  });
}

// --- captured steps ------------------------------------------------------------------------------

TEST(host, spec_L9_a_captured_step_replays_on_other_buffers_and_variables) {
  in_both_modes([] {
    const UOp x = floats({1, 2, 3}), y = floats({1, 1, 1}), n = variable("n", 1, 9);
    std::vector<UOp> values = three_kernels(x, y);
    values.push_back(mul(y, cast(n, DType::Float32)));
    CapturedStep step(values, {{"n", 2}});
    EXPECT_EQ(kernels_of(step.host_program()).size(), 4u);
    reset_counters();
    step.run();
    EXPECT_EQ(counters().kernels, 4);
    EXPECT_EQ(held(step.outputs()[0]), (Floats{-38, -38, -38}));
    EXPECT_EQ(held(step.outputs()[1]), (Floats{2, 2, 2}));
    // What the buffers hold now, another Variable.
    const float next[3] = {0, 1, 5};
    memory_of(y)->copy_in(next, 0, sizeof next);
    step.bind("n", 3);
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{-42, -41, -37}));
    EXPECT_EQ(held(step.outputs()[1]), (Floats{0, 3, 15}));
    // Other buffers to read and to write.
    const UOp z = floats({2, 0, 0}), to = floats({0, 0, 0}), was = step.outputs()[1];
    step.replace(x, z);
    step.replace(was, to);
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{-14, -13, -9}));
    EXPECT_EQ(step.outputs()[1], to);
    EXPECT_EQ(held(to), (Floats{0, 3, 15}));
    EXPECT_EQ(counters().compiled, 0);
    expect_error([&] { step.bind("n", 10); }, {"n", "10", "9"});
    expect_error([&] { step.replace(z, floats({1, 2})); }, {"captured step", "(2,)", "(3,)"});
    expect_error([&] { step.replace(x, z); }, {"does not use the buffer"});
    // A value that was computed by realize is not that of the step.
    EXPECT_EQ(held(realize(values, {{"n", 1}})[1]), (Floats{0, 1, 5}));
  });
}

TEST(host, spec_L9_a_captured_step_writes_in_place_and_checks_positions_each_time) {
  in_both_modes([] {
    const UOp w = floats({1, 2, 3}), g = floats({1, 1, 2});
    CapturedStep train({after(w, {store(w, sub(w, g))})});
    for (int i = 0; i < 3; ++i) train.run();
    EXPECT_EQ(held(w), (Floats{-2, -1, -3}));
    EXPECT_EQ(train.outputs()[0], w);
    const int32_t places[2] = {0, 2}, far[2] = {1, 3};
    const UOp at = buffer_from_host(shape_of({2}), DType::Int32, "CPU", places);
    const Tensor picked = Tensor(g).index_select(0, Tensor(at));
    CapturedStep step({picked.uop()});
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{1, 2}));
    memory_of(at)->copy_in(far, 0, sizeof far);
    expect_error([&] { step.run(); }, {"position 3", "element 1", "size 3"});
    const UOp near = buffer_from_host(shape_of({2}), DType::Int32, "CPU", places);
    step.replace(at, near);
    step.run();
    EXPECT_EQ(held(step.outputs()[0]), (Floats{1, 2}));
    const int32_t beyond[2] = {7, 0};
    memory_of(near)->copy_in(beyond, 0, sizeof beyond);
    expect_error([&] { step.run(); }, {"position 7", "element 0", "size 3"});
    EXPECT_TRUE(CapturedStep({}).outputs().empty());
    EXPECT_EQ(CapturedStep({w}).outputs()[0], w) << "nothing to run";
    expect_error([&] { CapturedStep({mul(w, cast(variable("n", 1, 9), DType::Float32))}).run(); },
                 {"Variable 'n'", "no value"});
  });
}

// --- what looks alike shares its program
// -----------------------------------------------------------

// A step of training makes the numbers and positions of its graph anew, after those of the step
// before are gone.
TEST(host, constants_that_are_made_again_are_recognised) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}),
               labels = Tensor::from<int>({2, 0});
  Tensor w = Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3}).requires_grad();
  const auto step = [&] {
    w.zero_grad();
    x.matmul(w).cross_entropy(labels).backward();
    (void)w.grad().realize();
  };
  step();
  reset_counters();
  step();
  EXPECT_EQ(counters().schedule_seconds, 0);
}

TEST(host, requests_that_look_alike_are_prepared_once_and_others_apart) {
  const UOp x = floats({1, 2, 3}), y = floats({4, 5, 6});
  auto result = [](const UOp& a, const UOp& b) { return held(realize({sub(a, mul(b, b))})[0]); };
  EXPECT_EQ(result(x, y), (Floats{-15, -23, -33}));
  EXPECT_EQ(result(y, x), (Floats{3, 1, -3}));
  EXPECT_EQ(result(x, x), (Floats{0, -2, -6})) << "one buffer twice is another program";
  // A computed value reads as memory from then on, also below others.
  const UOp product = mul(x, y), more = add(product, one());
  EXPECT_EQ(held(realize({product})[0]), (Floats{4, 10, 18}));
  reset_counters();
  EXPECT_EQ(held(realize({more})[0]), (Floats{5, 11, 19}));
  EXPECT_EQ(held(realize({more})[0]), (Floats{5, 11, 19}));
  EXPECT_EQ(counters().kernels, 1) << "computed once";
  // Equal values, asked for several times in one request.
  const std::vector<UOp> twice = realize({neg(x), x, neg(x)});
  EXPECT_EQ(twice[0], twice[2]);
  EXPECT_EQ(twice[1], x);
}

// The numbers of copies and leaves make them nodes of their own, and no request a new one.
TEST(host, copies_and_leaves_of_other_numbers_look_alike) {
  const UOp x = floats({1, 2, 3}), y = floats({4, 5, 6});
  auto leaf_of = [](const UOp& u) {
    return UOp::make(Op::Detach, {u}, MarkArg{Mark::Leaf, fresh_slot()});
  };
  auto alike = [](const UOp& a, const UOp& b) {
    const std::vector<UOp> first{a}, second{b};
    return skeleton_of(first, "CPU").words == skeleton_of(second, "CPU").words;
  };
  EXPECT_TRUE(alike(private_copy(neg(x)), private_copy(neg(y))));
  EXPECT_TRUE(alike(leaf_of(neg(x)), leaf_of(neg(y))));
  EXPECT_FALSE(alike(leaf_of(neg(x)), detach(neg(y))));
  EXPECT_FALSE(alike(private_copy(neg(x)), contiguous(neg(y))));
  EXPECT_FALSE(
      alike(private_copy(neg(x)), UOp::make(Op::Contiguous, {neg(y)}, MarkArg{Mark::Copies})));
  const UOp copy = private_copy(neg(x));
  EXPECT_FALSE(alike(sub(copy, copy), sub(private_copy(neg(y)), private_copy(neg(y)))));
}

// A request as text: each node where it is first met, sources inside, Buffers and nodes by number.
class RequestText {
 public:
  static std::string of(const std::vector<UOp>& values) {
    RequestText made;
    for (const UOp& v : values) made.add(v);
    return made.out_;
  }

 private:
  void add(const UOp& u) {
    const auto [known, fresh] = nodes_.emplace(u, nodes_.size());
    if (!fresh) {
      out_ += fmt::format("#{} ", known->second);
    } else if (u.is(Op::Buffer)) {
      out_ += "buffer ";
    } else {
      out_ += fmt::format("{}{}(", op_name(u.op()), u.arg().index());
      for (const UOp& s : u.src()) add(s);
      out_ += ") ";
    }
  }
  std::map<UOp, size_t, bool (*)(const UOp&, const UOp&)> nodes_{
      [](const UOp& a, const UOp& b) { return a.id() < b.id(); }};
  std::string out_;
};

TEST(host, requests_look_alike_exactly_where_they_read_alike) {
  std::mt19937_64 random(test_seed());
  int alike = 0, apart = 0;
  auto request = [&] {
    std::vector<UOp> pool{floats({1}), floats({2})};
    const auto any = [&]() -> const UOp& { return pool[random() % pool.size()]; };
    for (auto count = 1 + random() % 4; count > 0; --count) {
      const UOp &a = any(), &b = any();
      switch (random() % 4) {
        case 0:
          pool.push_back(neg(a));
          break;
        case 1:
          pool.push_back(private_copy(a));
          break;
        case 2:
          pool.push_back(sub(a, b));
          break;
        default:
          pool.push_back(where(gt(a, b), b, a));
      }
    }
    std::vector<UOp> values;
    for (auto count = 1 + random() % 3; count > 0; --count)
      if (const UOp& v = any(); std::find(values.begin(), values.end(), v) == values.end())
        values.push_back(v);
    return values;
  };
  std::map<std::string, std::vector<uint64_t>> known;
  std::map<std::vector<uint64_t>, std::string> texts;
  for (int k = 0; k < 3000; ++k) {
    const std::vector<UOp> values = request();
    const std::string text = RequestText::of(values);
    const std::vector<uint64_t> words = skeleton_of(values, "CPU").words;
    const auto [of_text, fresh] = known.emplace(text, words);
    EXPECT_EQ(of_text->second, words) << text;
    EXPECT_EQ(texts.emplace(words, text).first->second, text);
    ++(fresh ? apart : alike);
  }
  EXPECT_GT(std::min(alike, apart), 300);
}

// All that a node says besides its sources tells two requests apart.
TEST(host, each_part_of_an_argument_tells_requests_apart) {
  const UOp x = leaf({4, 6});
  const auto fold = [&](ReduceArg arg) { return UOp::make(Op::Reduce, {x}, std::move(arg)); };
  const auto load_to = [&](LoadArg arg) { return UOp::make(Op::Load, {x}, std::move(arg)); };
  const UOp steps = cast(leaf({}, DType::Int32), DType::Index);  // that memory says
  const auto loop = [&](int64_t id, AxisType type) { return range(id, steps, type); };
  const auto marked = [&](Mark mark) { return UOp::make(Op::Contiguous, {x}, MarkArg{mark}); };
  const auto named = [&](std::string why) {
    return UOp::make(Op::Contiguous, {x}, std::move(why));
  };
  const AddrSpace local = AddrSpace::Local;
  const std::vector<std::vector<UOp>> kinds{
      {fold({Op::Add, {0}}), fold({Op::Max, {0}}), fold({Op::Add, {1}}), fold({Op::Add, {0, 1}})},
      {load_to({{}, local, {0}, "why"}), load_to({{}, local, {1}, "why"}),
       load_to({{}, local, {0}, "for what"}), load_to({{}, local, {}, "why"}),
       load_to({{}, AddrSpace::Global, {}, "why"}),
       load_to({Device("CPU:1"), AddrSpace::Global, {}, "why"})},
      {loop(0, AxisType::Loop), loop(1, AxisType::Loop), loop(0, AxisType::Global)},
      {cast(x, DType::Int32), cast(x, DType::Int64)},
      {permute(x, {1, 0}), permute(x, {0, 1}), flip(x, {0, 1}), flip(x, {1, 0})},
      {marked(Mark::Copies), marked(Mark::UnlessInvalid)},
      {named("why"), named("for what"), named("for what, and with what else")},
  };
  for (const std::vector<UOp>& kind : kinds) {
    std::set<std::vector<uint64_t>> words;
    for (const UOp& u : kind) words.insert(skeleton_of(std::vector<UOp>{u}, "CPU").words);
    EXPECT_EQ(words.size(), kind.size()) << op_name(kind[0].op());
  }
}

// A fold along one axis twice: what KOINE_VERIFY=1 says of a request, and 0 does not look for.
TEST(host, a_request_is_verified_where_that_is_asked_for) {
  for (const int level : {1, 0}) {
    const UOp twice = UOp::make(Op::Reduce, {leaf({4, 6})}, ReduceArg{Op::Add, {0, 0}});
    Options o = options();
    o.verify = level;
    const OptionScope scope(o);
    std::string said;
    try {
      (void)realize({twice});
    } catch (const std::exception& e) {
      said = e.what();
    }
    EXPECT_EQ(said.find("the request") != std::string::npos, level == 1) << said;
  }
}

// Who looks at a request before it runs is told whether anything below it has run before.
TEST(host, what_looks_before_a_request_is_told_of_results) {
  const UOp x = floats({1, 2, 3}), doubled = add(x, x);
  std::vector<bool> told;
  const BeforeRun note = [&](bool reads_results) { told.push_back(reads_results); };
  (void)realize({doubled}, {}, note);
  (void)realize({mul(doubled, x)}, {}, note);
  EXPECT_EQ(told, (std::vector<bool>{false, true}));
}

// What is known of one request is not taken for one of more values that begins like it.
TEST(host, a_request_for_more_values_is_another_one) {
  const UOp x = floats({1, 2, 3}), y = floats({4, 5, 6});
  EXPECT_EQ(held(realize({add(x, x)})[0]), (Floats{2, 4, 6}));
  const std::vector<UOp> both = realize({add(y, y), y});
  EXPECT_EQ(held(both[0]), (Floats{8, 10, 12}));
  EXPECT_EQ(both[1], y);
}

TEST(host, equal_kernels_of_different_programs_are_compiled_once) {
  clear_compile_cache();
  const UOp x = floats({1, 2, 3}), y = floats({4, 5, 6}), row = floats({1, 2, 3, 4, 5});
  auto compiled = [](const std::vector<UOp>& values) {
    reset_counters();
    (void)realize(values);
    return counters().compiled;
  };
  EXPECT_EQ(compiled({sub(x, mul(x, x))}), 1);
  EXPECT_EQ(compiled({sub(y, mul(y, y)), reduce(Op::Add, row, {0})}), 1) << "the sum alone";
  EXPECT_EQ(compiled({reduce(Op::Add, row, {0}), add(row, row), sub(x, mul(x, x))}), 1);
}

TEST(host, spec_C38_looking_at_many_outputs_walks_their_graph_once) {
  auto visits = [](int64_t count) {
    UOp h = floats({1, 2, 3});
    std::vector<UOp> values;
    for (int64_t i = 0; i < count; ++i) {
      h = add(mul(h, h), floats({1, 1, 1}));
      values.push_back(contiguous(reduce(Op::Add, h, {0})));
    }
    (void)skeleton_of(values, "CPU");
    return skeleton_of(values, "CPU").words.size();
  };
  const auto few = static_cast<double>(visits(50)), many = static_cast<double>(visits(800));
  EXPECT_LT(many / few, 16 * 1.05);
}

TEST(host, kernels_are_counted_by_device) {
  reset_counters();
  const Tensor a = Tensor::from<float>({1, 2, 3}, {3}, "CPU") + Tensor(1.0),
               b = Tensor::from<float>({1, 2}, {2}, "CPU:1") * Tensor(2.0);
  Tensor::realize({a, b, Tensor::from<float>({1, 2}, {2}, "CPU:1") - Tensor(2.0)});
  EXPECT_EQ(counters().kernels_on, (std::map<std::string, int64_t>{{"CPU", 1}, {"CPU:1", 2}}));
  EXPECT_EQ(counters().kernels, 3);
}

}  // namespace koine::test
