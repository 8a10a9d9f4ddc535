// The reference interpreter of linear programs: bounds, Barriers, threads and groups (row X1).
#include "backends.hpp"
#include "check.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/ir/build.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"
#include "koine/verify/verify.hpp"
#include "writer.hpp"

namespace koine::test {
namespace {

std::vector<float> run(const UOp& linear, std::vector<std::vector<float>> buffers) {
  KernelArguments arguments;
  for (auto& b : buffers) {
    arguments.buffers.push_back(reinterpret_cast<std::byte*>(b.data()));
    arguments.buffer_bytes.push_back(static_cast<int64_t>(b.size() * sizeof(float)));
  }
  interpret_linear(linear, arguments);
  test::ran_on("INTERP");
  return buffers[0];
}

void expect_internal_error(const std::function<void()>& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

}  // namespace

TEST(interp, spec_X1_barrier_reverses_256_elements_in_shared_memory) {
  std::vector<float> expected = counting_up(256);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(run(reversal(256, 1, true), {std::vector<float>(256), counting_up(256)}), expected);
  // Without the Barrier, thread 0 reads what thread 255 has not written yet.
  expect_internal_error(
      [] { (void)run(reversal(256, 1, false), {std::vector<float>(256), counting_up(256)}); },
      "a race for element");
}

TEST(interp, spec_X1_groups_have_local_memory_of_their_own) {
  std::vector<float> expected;
  for (int g = 0; g < 3; ++g)
    for (int i = 7; i >= 0; --i) expected.push_back(static_cast<float>(g * 8 + i));
  EXPECT_EQ(run(reversal(8, 3, true), {std::vector<float>(24), counting_up(24)}), expected);
}

// 64 threads in groups of 8 and 8: partial sums of 8 lanes, then one thread adds 8 partials.
TEST(interp, spec_X1_tree_reduction_in_two_stages) {
  EXPECT_EQ(run(tree_of_64(), {{0}, counting_up(64)}), std::vector<float>{2016});
}

TEST(interp, spec_X1_if_around_a_store_of_7_in_10_threads) {
  EXPECT_EQ(run(seven_of_ten(), {std::vector<float>(20, -1)}), what_seven_of_ten_leave());
}

TEST(interp, spec_X1_divergent_barriers_are_reported) {
  {  // only some threads reach it
    Writer w;
    const UOp l = special("lidx0", 4);
    const UOp open = w.all(UOp::make(Op::If, {lt(l, index_const(2))}));
    w.barrier();
    w.endif(open);
    expect_internal_error([&] { run(w.linear(), {{0}}); }, "divergent Barrier");
  }
  {  // the threads reach it in different iterations of a loop
    Writer w;
    const UOp l = special("lidx0", 2);
    const UOp r = w.all(range(0, add(l, index_const(1)), AxisType::Loop));
    w.barrier();
    w(end(group(std::vector<UOp>{}), std::vector<UOp>{r}));
    expect_internal_error([&] { run(w.linear(), {{0}}); }, "divergent Barrier");
  }
}

TEST(interp, accesses_out_of_bounds_are_internal_errors) {
  const UOp p = param(0, shape_of({4}), DType::Float32);
  const UOp in = param(1, shape_of({4}), DType::Float32), seven = constant(DType::Float32, 7);
  auto stores_at = [&](int64_t at) {
    Writer w;
    w.all(store(index(p, {index_const(at)}), seven));
    return run(w.linear(), {std::vector<float>(4), counting_up(4)})[3];
  };
  EXPECT_EQ(stores_at(3), 7);
  expect_internal_error([&] { stores_at(4); }, "Store at element 4 of a buffer with 4");
  expect_internal_error([&] { stores_at(-1); }, "Store at element -1 of a buffer with 4");
  auto loads_from = [&](const UOp& buffer, int64_t at) {
    Writer w;
    w.all(store(index(p, {index_const(0)}), load(index(buffer, {index_const(at)}))));
    return run(w.linear(), {std::vector<float>(4, 9), counting_up(4)})[0];
  };
  EXPECT_EQ(loads_from(in, 3), 3);
  EXPECT_EQ(loads_from(local(4), 3), 0);
  for (const UOp& buffer : {in, local(4)}) {
    expect_internal_error([&] { loads_from(buffer, 4); }, "Load at element 4 of a buffer with 4");
    expect_internal_error([&] { loads_from(buffer, -1); }, "Load at element -1");
  }
}

TEST(interp, vector_accesses_are_checked_lane_by_lane) {
  const UOp p = param(0, shape_of({6}), DType::Float32);
  auto stores_from = [&](int64_t from) {
    Writer w;
    std::vector<UOp> lanes;
    for (int64_t i = 0; i < 4; ++i) lanes.push_back(index_const(i));
    const UOp base = w.all(index_const(from));
    const UOp wide = expand(reshape(base, shape_of({1})), shape_of({4}));
    const UOp value =
        w(expand(w(reshape(w(constant(DType::Float32, 7)), shape_of({1}))), shape_of({4})));
    w(store(index(p, {add(wide, stack(lanes))}), value));
    return run(w.linear(), {std::vector<float>(6)});
  };
  EXPECT_EQ(stores_from(2), (std::vector<float>{0, 0, 7, 7, 7, 7}));
  expect_internal_error([&] { stores_from(3); }, "Store at element 6 of a buffer with 6");
}

// A gate or an alternative has the axes it needs: a row's gate is one for all of its columns.
TEST(interp, gates_and_alternatives_broadcast_to_the_access) {
  auto counted_along = [](int64_t n, const std::vector<int64_t>& sizes) {
    std::vector<UOp> numbers;
    for (int64_t i = 0; i < n; ++i) numbers.push_back(index_const(i));
    return reshape(stack(numbers), shape_of(sizes));
  };
  const UOp row = counted_along(3, {3, 1}), column = counted_along(4, {1, 4});
  const UOp at = add(mul(row, index_const(4)), column);
  const UOp in = param(1, shape_of({12}), DType::Float32),
            out = param(0, shape_of({12}), DType::Float32);
  const UOp by_row = load(index(in, {at}), cast(column, DType::Float32), ne(row, index_const(1)));
  const UOp kernel =
      sink(std::vector<UOp>{store(index(out, {at}), by_row, lt(column, index_const(3)))});
  verify(kernel, VerifyLevel::Shaped, "test");
  const std::vector<float> expected{0, 1, 2, -1, 0, 1, 2, -1, 8, 9, 10, -1};
  auto run_kernel = [&](const auto& interpreted) {
    std::vector<float> from = counting_up(12), to(12, -1);
    KernelArguments arguments;
    for (std::vector<float>* b : {&to, &from}) {
      arguments.buffers.push_back(reinterpret_cast<std::byte*>(b->data()));
      arguments.buffer_bytes.push_back(48);
    }
    interpreted(arguments);
    return to;
  };
  EXPECT_EQ(run_kernel([&](const KernelArguments& a) { interpret_kernel(kernel, a); }), expected);
  // What Select makes of it.
  for (const bool strict : {false, true}) {
    Options o = strict ? strict_options() : options();
    o.verify = 3;
    const OptionScope scope(o);
    const LoweredKernel lowered =
        lower_kernel(kernel, generic_target(strict), {}, nullptr, {}, "expand");
    EXPECT_EQ(run_kernel([&](const KernelArguments& a) { interpret_linear(lowered.linear, a); }),
              expected);
    EXPECT_EQ(lowered.checks.unchecked, 0);
  }
}

TEST(interp, use_before_definition_is_an_internal_error) {
  Writer w;
  const UOp p = param(0, shape_of({4}), DType::Float32);
  const UOp sum = add(load(index(p, {index_const(0)})), constant(DType::Float32, 1));
  w(index(p, {index_const(1)}));
  w(store(index(p, {index_const(1)}), sum));
  w(sum);
  expect_internal_error([&] { run(w.linear(), {{1, 2, 3, 4}}); }, "use before definition");
}

// The device knows how large each buffer is, so a kernel that leaves one is caught.
TEST(interp, the_device_reports_accesses_out_of_bounds) {
  const UOp ast = schedule({(Tensor(leaf({8})) + Tensor(1.0)).uop()})[0].ast;
  DeviceRuntime& device = device_runtime("INTERP");
  const auto program = device.compile(lower_kernel(ast, device.target()));
  std::vector<float> out(8), in = {0, 1, 2, 3, 4, 5, 6, 7};
  std::byte* const buffers[] = {reinterpret_cast<std::byte*>(out.data()),
                                reinterpret_cast<std::byte*>(in.data())};
  for (const int64_t bytes : {32, 28}) {
    const int64_t sizes[] = {32, bytes};
    auto run = [&] { program->run({buffers, sizes, {}}); };
    if (bytes == 32) {
      run();
      EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
    } else {
      EXPECT_THROW(run(), InternalError);
    }
  }
}

}  // namespace koine::test
