// The parts of the device CL: memory, compiler, queues, and what becomes of failures. A function of
// OpenCL is made to fail by putting another in its place in the table.
#include <thread>

#include "by_hand.hpp"
#include "check.hpp"
#include "isolate.hpp"
#include "koine/engine/compile.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/blob.hpp"
#include "koine/runtime/cl/compiler.hpp"
#include "koine/runtime/cl/memory.hpp"
#include "koine/runtime/cl/queue.hpp"

namespace koine::test {
namespace {

using Floats = std::vector<float>;

DeviceRuntime& cl_device() { return device_runtime("CL"); }

/// Another function in the place of one of OpenCL's, while it lives.
template <class F>
class InPlaceOf {
 public:
  template <class Other>
  InPlaceOf(F& function, Other other) : function_(function), saved_(function) {
    function = other;
  }
  ~InPlaceOf() { function_ = saved_; }

 private:
  F &function_, saved_;
};

std::shared_ptr<Memory> filled(DeviceRuntime& device, const Floats& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  auto out = device.allocate(bytes);
  out->copy_in(values.data(), 0, bytes);
  return out;
}

Floats read(Memory& memory) {
  Floats out(static_cast<size_t>(memory.bytes()) / sizeof(float));
  memory.copy_out(out.data(), 0, memory.bytes());
  return out;
}

/// out = 2 x + 1 of n floats: slot 0 and 1.
LoweredKernel double_and_one(int64_t n) {
  const UOp value =
      add(mul(leaf({n}), constant(DType::Float32, 2.0)), constant(DType::Float32, 1.0));
  return lower_kernel(schedule({value})[0].ast, cl_device().target());
}

struct Call {
  std::vector<std::byte*> buffers;
  std::vector<int64_t> bytes;
  Call(Memory& to, Memory& from)
      : buffers{to.address(), from.address()}, bytes{to.bytes(), from.bytes()} {}
  Command of(Program& program) const { return {&program, {buffers, bytes, {}}}; }
};

Tensor on_cl(const Floats& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())}, "CL");
}

}  // namespace

TEST(cl, the_loader_is_missing_or_old) {
  expect_error([] { (void)cl::load_api("libabsent.so.7"); },
               {"OpenCL's loader is not installed", "ocl-icd-libopencl1", "libabsent.so.7"});
  expect_error([] { (void)cl::load_api("libm.so.6"); },
               {"libm.so.6 has no 'clGetPlatformIDs'", "older than OpenCL 2.0"});
}

TEST(cl, work_sizes_of_threads_and_of_groups) {
  Signature s;
  s.threads = 7;
  EXPECT_EQ(cl::work_size(s, {}).global, (std::array<size_t, 3>{7, 1, 1}));
  EXPECT_EQ(cl::work_size(s, {}).local, (std::array<size_t, 3>{1, 1, 1}));
  s.threads = 1;
  s.variables = {"m", "n"};
  s.grid[0] = variable("n", 1, 9);
  s.group[0] = index_const(32);
  s.group[2] = index_const(4);
  const std::vector<int64_t> values{3, 5};
  EXPECT_EQ(cl::work_size(s, values).global, (std::array<size_t, 3>{160, 1, 4}));
  EXPECT_EQ(cl::work_size(s, values).local, (std::array<size_t, 3>{32, 1, 4}));
}

TEST(cl, a_process_that_was_forked_later_is_told_so) {
  EXPECT_NE(in_child([]() -> std::string {
              try {
                (void)cl_device().allocate(64);
              } catch (const Error& e) {
                return e.what();
              }
              return "";
            }).find("before this process was forked"),
            std::string::npos);
}

// --- Memory --------------------------------------------------------------------------------------

TEST(cl, memory_is_seen_by_copies_alone_and_kept_for_reuse) {
  auto memory = filled(cl_device(), {1, 2, 3, 4});
  EXPECT_EQ(memory->data(), nullptr);
  EXPECT_EQ(read(*memory), (Floats{1, 2, 3, 4}));
  float two[2];
  memory->copy_out(two, 4, 8);
  EXPECT_EQ(two[1], 3);
  memory->copy_out(two, 16, 0);
  const float nine = 9;
  memory->copy_in(&nine, 8, 4);
  EXPECT_EQ(read(*memory), (Floats{1, 2, 9, 4}));
  const std::byte* const place = memory->address();
  const int64_t in_use = cl_device().allocator().bytes_in_use();
  memory.reset();
  EXPECT_LT(cl_device().allocator().bytes_in_use(), in_use);
  EXPECT_EQ(cl_device().allocate(16)->address(), place);
  EXPECT_NE(cl_device().allocate(0)->address(), nullptr);
}

TEST(cl, poison_fills_fresh_and_freed_memory) {
  Options o = options();
  o.poison = true;
  const OptionScope scope(o);
  auto memory = cl_device().allocate(4);
  uint32_t word = 0;
  memory->copy_out(&word, 0, 4);
  EXPECT_EQ(word, 0xA5A5A5A5u);
}

TEST(cl, too_much_memory_is_an_error_with_sizes) {
  const cl::Hardware& on = cl::hardware(0);
  expect_error([&] { (void)cl_device().allocate(on.bytes + 1); },
               {"out of memory on CL", std::to_string(on.bytes + 1)});
  if (on.block_bytes < on.bytes)
    expect_error([&] { (void)cl_device().allocate(on.block_bytes + 1); },
                 {"out of memory on CL", std::to_string(on.block_bytes + 1), "one block",
                  std::to_string(on.block_bytes)});
  const int64_t in_use = cl_device().allocator().bytes_in_use();
  {
    const InPlaceOf none(cl::api().clSVMAlloc, [](auto...) -> void* { return nullptr; });
    expect_error([] { (void)cl_device().allocate(77 << 20); }, {"out of memory on CL", "refused"});
  }
  EXPECT_EQ(cl_device().allocator().bytes_in_use(), in_use);
}

// --- Compiler ------------------------------------------------------------------------------------

TEST(cl, a_blob_is_the_binary_and_runs_when_loaded_again) {
  Compiler& compiler = cl_device().compiler();
  const std::string bytes = to_bytes(compiler.compile(double_and_one(100)));
  Blob blob = blob_from(bytes);
  EXPECT_FALSE(blob.code.empty());
  const auto program = compiler.load(blob);
  EXPECT_NE(program->source().find("__kernel"), std::string::npos);
  const auto from = filled(cl_device(), Floats(100, 3)), to = filled(cl_device(), Floats(100));
  const Call call(*to, *from);
  program->run(call.of(*program).launch);
  EXPECT_EQ(read(*to), Floats(100, 7));
  Blob other = blob;
  other.target = "another";
  expect_error([&] { (void)compiler.load(other); }, {"it was made for another"});
  blob.code = "these are no machine instructions";
  expect_error([&] { (void)compiler.load(blob); }, {"device CL"});
}

TEST(cl, what_the_compiler_refuses_comes_with_its_log) {
  LoweredKernel kernel = double_and_one(8);
  kernel.name = "no name";
  for (const bool blob : {true, false})
    expect_error(
        [&] {
          if (blob)
            (void)cl_device().compiler().compile(kernel);
          else
            (void)cl_device().compile(kernel);
        },
        {"refuses no name", "error:"});
}

int builds = 0;

TEST(cl, all_kernels_of_a_request_are_one_program) {
  [[maybe_unused]] static const auto build = cl::api().clBuildProgram;
  const InPlaceOf counted(cl::api().clBuildProgram, [](auto... a) {
    ++builds;
    return build(a...);
  });
  clear_compile_cache();
  builds = 0;
  const Tensor x = on_cl(Floats(35, 2)).reshape({5, 7});
  const Tensor a = x.max(0).clone(), b = x.softmax(1).clone(), c = x.sum().clone();
  const int64_t compiled = counters().compiled;
  Tensor::realize({a, b, c});
  EXPECT_EQ(counters().compiled - compiled, 3);
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(c.item(), 70);
  EXPECT_EQ((on_cl(Floats(35, 3)).reshape({5, 7}).sum().clone().item()), 105);  // from the cache
  EXPECT_EQ(builds, 1);
}

TEST(cl, what_a_device_does_not_compute_is_refused_in_words) {
  cl::Hardware weak = cl::hardware(0);
  weak.rounds_right = weak.has_double = false;
  const cl::ClCompiler plain(weak);
  CompileOptions how = compile_options();
  how.strict = true;
  expect_error([&] { (void)plain.target(how); },
               {"KOINE_FP=strict", "correctly rounded", weak.name});
  const UOp wide = add(leaf({8}, DType::Float64), leaf({8}, DType::Float64, 1));
  const LoweredKernel kernel = lower_kernel(schedule({wide})[0].ast, weak.target(false));
  expect_error([&] { (void)cl::ClCompiler(weak).compile(kernel); },
               {"does not compute float64", kernel.name});
  expect_error([&] { (void)cl::ClCompiler(weak).make({kernel}); },
               {"does not compute float64", kernel.name});
  weak.adds_64_bits = false;
  const LoweredKernel adds = lower_kernel(histogram(8, 4, DType::Int64), weak.target(false));
  expect_error([&] { (void)cl::ClCompiler(weak).compile(adds); },
               {"does not add numbers of 64 bits at once", adds.name, "int64"});
}

// --- Queues --------------------------------------------------------------------------------------

TEST(cl, a_queue_runs_in_order_and_others_follow_it) {
  DeviceRuntime &one = cl_device(), &other = device_runtime("CL:1");
  const int64_t n = 1 << 12;
  const auto program = one.compile(double_and_one(n));
  [[maybe_unused]] static const auto barrier = cl::api().clEnqueueBarrierWithWaitList;
  static int barriers = 0;
  const InPlaceOf counted(cl::api().clEnqueueBarrierWithWaitList, [](auto... a) {
    ++barriers;
    return barrier(a...);
  });
  auto a = filled(one, Floats(n, 0)), b = filled(one, Floats(n)), c = filled(other, Floats(n)),
       d = filled(other, Floats(n));
  const Call here(*b, *a), there(*d, *c);
  uint64_t last = 0;
  for (int i = 0; i < 8; ++i) {  // a -> b, to c, -> d, to a
    EXPECT_TRUE(one.queue().follow(other.queue(), last));
    const Command first = here.of(*program), second = there.of(*program);
    const uint64_t computed = one.queue().submit({&first, 1});
    EXPECT_TRUE(other.queue().follow(one.queue(), computed));
    other.queue().submit(Transfer{c.get(), 0, b.get(), 0, n * 4});
    last = other.queue().submit({&second, 1});
    EXPECT_TRUE(one.queue().follow(other.queue(), last));
    last = one.queue().submit(Transfer{a.get(), 0, d.get(), 0, n * 4});
    other.queue().follow(one.queue(), last);
    last = other.queue().submit(std::span<const Command>());
  }
  one.queue().wait(one.queue().submit(std::span<const Command>()));
  other.queue().wait(last);
  EXPECT_TRUE(other.queue().has_run(last));
  EXPECT_EQ(read(*a), Floats(n, 65535));  // sixteen times 2 x + 1
  EXPECT_GT(barriers, 8);
}

constexpr const char* no_command_buffers =
    "the first device of OpenCL records no launches: its driver lacks cl_khr_command_buffer";
int launched = 0, recorded = 0, replayed = 0;
using Counts = std::array<int, 3>;
Counts counts() { return {launched, recorded, replayed}; }

/// The hardware, with what its command buffers do counted.
cl::Hardware with_counted_command_buffers() {
  cl::Hardware out = cl::hardware(0);
  static const cl::CommandBuffers real = *out.command_buffers;
  out.command_buffers->create = [](auto... a) {
    ++recorded;
    return real.create(a...);
  };
  out.command_buffers->enqueue = [](auto... a) {
    ++replayed;
    return real.enqueue(a...);
  };
  return out;
}

TEST(cl, what_comes_again_is_one_command_buffer) {
  if (!cl::hardware(0).command_buffers) GTEST_SKIP() << no_command_buffers;
  [[maybe_unused]] static const auto launch = cl::api().clEnqueueNDRangeKernel;
  const InPlaceOf counted(cl::api().clEnqueueNDRangeKernel, [](auto... a) {
    ++launched;
    return launch(a...);
  });
  const cl::Hardware on = with_counted_command_buffers();
  cl::ClQueue queue(on);
  launched = recorded = replayed = 0;
  const int64_t n = 1 << 12;
  auto program = cl_device().compile(double_and_one(n));
  auto a = filled(cl_device(), Floats(n, 0)), b = filled(cl_device(), Floats(n)),
       c = filled(cl_device(), Floats(n));
  const Call to_b(*b, *a), to_a(*a, *b), to_c(*c, *b);
  const auto submit = [&](const Call& first, const Call& second, Program& with) {
    const Command both[]{first.of(with), second.of(with)};
    return queue.submit(both);
  };
  // The first time one by one, then as one, without a wait between.
  uint64_t last = 0;
  for (int i = 0; i < 5; ++i) last = submit(to_b, to_a, *program);
  queue.wait(last);
  EXPECT_TRUE(queue.has_run(last));
  EXPECT_EQ(read(*a), Floats(n, 1023));  // ten times 2 x + 1
  EXPECT_EQ(counts(), (Counts{2, 1, 4}));
  // Other memory, another program and a single launch are something else.
  queue.wait(submit(to_b, to_c, *program));
  EXPECT_EQ(read(*c), Floats(n, 4095));
  program = cl_device().compile(double_and_one(n));
  queue.wait(submit(to_b, to_a, *program));
  EXPECT_EQ(read(*a), Floats(n, 4095));
  const Command alone = to_b.of(*program);
  for (int i = 0; i < 3; ++i) queue.wait(queue.submit({&alone, 1}));
  EXPECT_EQ(counts(), (Counts{9, 1, 4}));
  // Sixteen are kept: each that came once more than they is new again.
  std::vector<std::shared_ptr<Memory>> places;
  for (int i = 0; i < 17; ++i) places.push_back(cl_device().allocate(n * 4));
  for (int round = 0; round < 2; ++round)
    for (auto& place : places) queue.wait(submit(to_b, Call(*place, *b), *program));
  EXPECT_EQ(recorded, 1);
  for (int i = 0; i < 2; ++i) queue.wait(submit(to_b, Call(*places[16], *b), *program));
  EXPECT_EQ(recorded, 2);
  EXPECT_EQ(read(*places[16]), Floats(n, 16383));
}

TEST(cl, a_driver_that_refuses_to_record_launches_one_by_one) {
  if (!cl::hardware(0).command_buffers) GTEST_SKIP() << no_command_buffers;
  const auto program = cl_device().compile(double_and_one(64));
  for (int which = 0; which < 3; ++which) {
    cl::Hardware on = with_counted_command_buffers();
    if (which == 0)
      on.command_buffers->create = [](auto, auto, auto, cl_int* status) -> cl_command_buffer_khr {
        *status = CL_INVALID_OPERATION;
        return nullptr;
      };
    if (which == 1) on.command_buffers->add = [](auto...) { return CL_INVALID_OPERATION; };
    if (which == 2) on.command_buffers->finalize = [](auto...) { return CL_INVALID_OPERATION; };
    cl::ClQueue queue(on);
    replayed = 0;
    auto a = filled(cl_device(), Floats(64, 0)), b = filled(cl_device(), Floats(64));
    const Call to_b(*b, *a), to_a(*a, *b);
    const Command both[]{to_b.of(*program), to_a.of(*program)};
    for (int i = 0; i < 3; ++i) queue.wait(queue.submit(both));
    EXPECT_EQ(read(*a), Floats(64, 63));
    EXPECT_EQ(replayed, 0);
  }
}

TEST(cl, copies_between_queues_and_the_host) {
  DeviceRuntime &cl = cl_device(), &cpu = device_runtime("CPU");
  auto host = filled(cpu, {1, 2, 3, 4}), there = filled(cl, Floats(4));
  cl.queue().wait(cl.queue().submit(Transfer{there.get(), 4, host.get(), 0, 12}));
  EXPECT_EQ(read(*there), (Floats{0, 1, 2, 3}));
  cpu.queue().submit(Transfer{host.get(), 0, there.get(), 8, 8});
  EXPECT_EQ(read(*host), (Floats{2, 3, 3, 4}));
  cl.queue().wait(cl.queue().submit(Transfer{there.get(), 0, host.get(), 0, 0}));
}

TEST(cl, a_lost_device_is_an_error_and_the_process_goes_on) {
  const Tensor x = on_cl({1, 2, 3});
  EXPECT_EQ((x + 4).tolist<float>(), (Floats{5, 6, 7}));
  {
    const InPlaceOf lost(cl::api().clEnqueueNDRangeKernel,
                         [](auto...) -> cl_int { return CL_OUT_OF_RESOURCES; });
    expect_error([&] { (void)(x + 4).tolist<float>(); },
                 {"device CL: launching kernel", "the device is lost", "CL_OUT_OF_RESOURCES (-5)"});
  }
  {  // found out when it is waited for
    [[maybe_unused]] static const auto wait = cl::api().clWaitForEvents;
    const InPlaceOf failed(cl::api().clWaitForEvents, [](auto... a) -> cl_int {
      (void)wait(a...);
      return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    });
    expect_error([&] { (void)(x + 4).tolist<float>(); }, {"device CL", "the device is lost"});
  }
  {
    const InPlaceOf refused(cl::api().clEnqueueSVMMemcpy,
                            [](auto...) -> cl_int { return CL_MEM_OBJECT_ALLOCATION_FAILURE; });
    expect_error([&] { (void)on_cl({1, 2}).tolist<float>(); },
                 {"copying", "not enough memory", "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)"});
  }
  EXPECT_EQ((x + 4).tolist<float>(), (Floats{5, 6, 7}));
}

TEST(cl, several_threads_compile_and_run) {
  std::vector<std::thread> threads;
  std::vector<double> sums(4);
  for (size_t t = 0; t < sums.size(); ++t)
    threads.emplace_back([&, t] {
      const std::string device = t % 2 == 0 ? "CL" : "CL:1";
      Tensor x = Tensor::full({64}, 1).to(device).clone();
      for (int i = 0; i < 5; ++i) x = (x * static_cast<double>(t + 2) + 1.0).clone().realize();
      sums[t] = x.sum().item();
    });
  for (std::thread& t : threads) t.join();
  for (size_t t = 0; t < sums.size(); ++t) {
    double x = 1;
    for (int i = 0; i < 5; ++i) x = x * static_cast<double>(t + 2) + 1;
    EXPECT_EQ(sums[t], 64 * x);
  }
}

// Two LLVMs in one process: that of PoCL and Koine's own. As a test of ctest it runs alone.
TEST(cl, opencl_then_llvm_then_opencl) {
  const Floats values{1, 2, 3, 4};
  EXPECT_EQ((on_cl(values) * 2 + 7).tolist<float>(), (Floats{9, 11, 13, 15}));
  const Tensor host = Tensor::from(values, {4}, "CPU");
  EXPECT_EQ((host * 2 + 7).tolist<float>(), (Floats{9, 11, 13, 15}));
  EXPECT_EQ((on_cl(values) * 3 - 7).tolist<float>(), (Floats{-4, -1, 2, 5}));
}

}  // namespace koine::test
