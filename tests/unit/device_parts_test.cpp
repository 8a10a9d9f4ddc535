// The parts of a device: blobs that its compiler makes and loads again, and queues whose
// submissions follow those of others.
#include <thread>

#include "check.hpp"
#include "koine/engine/compile.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/runtime/blob.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

// Values whose kernels have threads, rows in LOCAL memory, registers, narrow floats, wrapping
// integers, decomposed functions, Variables and lengths that do not divide.
std::vector<UOp> samples() {
  const Tensor x(leaf({7, 33})), wide(leaf({1 << 16})), half(leaf({40}, DType::Float16, 1)),
      whole(leaf({5, 19}, DType::Int64, 2));
  const UOp n = variable("n", 1, 8);
  return {x.softmax(1).uop(),
          (wide.exp2().sin() * wide).sum().uop(),
          x.matmul(x.transpose(0, 1)).uop(),
          (half * half + Tensor(0.5)).uop(),
          (whole * whole / Tensor(3)).cumsum(1).uop(),
          x.log().sqrt().uop(),
          mul(leaf({8}), cast(n, DType::Float32))};
}

// What a program leaves in buffers that begin as the same random bytes.
std::vector<Bytes> left_by(Program& program, const Kernel& kernel) {
  std::mt19937_64 random(test_seed());
  std::vector<Bytes> memory;
  for (const UOp& b : kernel.buffers)
    memory.push_back(bytes_of(random_array(random, {b.numel()}, b.dtype())));
  std::vector<std::byte*> pointers;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < memory.size(); ++i) {
    pointers.push_back(memory[i].data());
    sizes.push_back(kernel.buffers[i].numel() * item_size(kernel.buffers[i].dtype()));
  }
  const std::vector<int64_t> variables(kernel.variables.size(), 5);
  program.run({pointers, sizes, variables});
  return memory;
}

template <class F>
void for_each_kernel(DeviceRuntime& device, F&& visit) {
  for (const UOp& value : samples())
    for (const Kernel& k : schedule({value})) {
      if (k.ast.is(Op::CustomFunction)) continue;
      visit(k, lower_kernel(k.ast, device.target()));
    }
}

LoweredKernel some_kernel(DeviceRuntime& device) {
  return lower_kernel(schedule({samples()[0]})[0].ast, device.target());
}

}  // namespace

TEST(device_parts, a_program_loaded_from_the_bytes_of_a_blob_computes_the_same) {
  in_both_modes([] {
    for (const std::string name : {"CPU", "INTERP"}) {
      DeviceRuntime &device = device_runtime(name), &other = device_runtime(name + ":1");
      for_each_kernel(device, [&](const Kernel& kernel, const LoweredKernel& lowered) {
        const auto compiled = device.compile(lowered);
        const std::string bytes = to_bytes(device.compiler().compile(lowered));
        const auto loaded = other.compiler().load(blob_from(bytes));
        EXPECT_EQ(left_by(*loaded, kernel), left_by(*compiled, kernel)) << name << lowered.name;
        EXPECT_EQ(loaded->name(), compiled->name());
        EXPECT_EQ(loaded->kernel().linear, compiled->kernel().linear);
        EXPECT_EQ(loaded->source(), compiled->source());
        const KernelEstimate &a = loaded->kernel().estimate, &b = compiled->kernel().estimate;
        EXPECT_TRUE(a.operations == b.operations && a.steps == b.steps && a.bytes == b.bytes);
        EXPECT_EQ(loaded->kernel().how.strict, lowered.how.strict);
        EXPECT_EQ(to_bytes(blob_from(bytes)), bytes);
      });
    }
  });
}

// So a store of them may be looked up by what was compiled, whichever process did.
TEST(device_parts, equal_kernels_make_equal_blobs_on_any_thread) {
  DeviceRuntime& cpu = device_runtime("CPU");
  for_each_kernel(cpu, [&](const Kernel&, const LoweredKernel& lowered) {
    const Blob here = cpu.compiler().compile(lowered);
    EXPECT_FALSE(here.code.empty());
    EXPECT_NE(here.target, "");
    Blob there;
    std::thread([&] { there = cpu.compiler().compile(lowered); }).join();
    EXPECT_EQ(to_bytes(here), to_bytes(there)) << lowered.name;
  });
}

TEST(device_parts, bytes_that_are_no_blob_of_this_version_are_refused) {
  DeviceRuntime& cpu = device_runtime("CPU");
  const std::string bytes = to_bytes(cpu.compiler().compile(some_kernel(cpu)));
  std::mt19937_64 random(test_seed());
  auto refused = [](const std::string& what) {
    expect_error([&] { (void)blob_from(what); }, {"compiled kernel", "bytes"});
  };
  for (const size_t size : {size_t{0}, size_t{5}, size_t{15}, size_t{16}, size_t{22}, size_t{23},
                            size_t{24}, bytes.size() - 1})
    refused(bytes.substr(0, size));
  refused(bytes + "x");
  for (int i = 0; i < 200; ++i) {
    std::string other = bytes;
    const size_t at = i < 32 ? static_cast<size_t>(i) : random() % bytes.size();
    other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
    refused(other);
  }
}

TEST(device_parts, a_blob_is_loaded_for_the_target_it_was_made_for) {
  DeviceRuntime &cpu = device_runtime("CPU"), &interp = device_runtime("INTERP");
  expect_error([&] { (void)cpu.compiler().load(interp.compiler().compile(some_kernel(interp))); },
               {"made for generic", "loaded for cpu-", "compile it again"});
  Blob blob = cpu.compiler().compile(some_kernel(cpu));
  blob.target += ",+something";
  expect_error([&] { (void)cpu.compiler().load(blob_from(to_bytes(blob))); },
               {blob.kernel.name, "+something", "compile it again"});
  Target plain = interp.target(), more = plain;
  more.features = "+avx2";
  EXPECT_NE(blob_target(plain), blob_target(more)) << "machines of one name differ in features";
}

TEST(device_parts, a_blob_says_how_its_kernel_was_made) {
  DeviceRuntime& cpu = device_runtime("CPU");
  Blob blob = cpu.compiler().compile(some_kernel(cpu));
  for (const bool strict : {false, true})
    for (const bool noopt : {false, true}) {
      blob.kernel.how.strict = strict;
      blob.kernel.how.noopt = noopt;
      blob.kernel.how.cpu = "x86-64-v3";
      const CompileOptions read = blob_from(to_bytes(blob)).kernel.how;
      EXPECT_EQ(read.strict, strict);
      EXPECT_EQ(read.noopt, noopt);
      EXPECT_EQ(read.cpu, "x86-64-v3");
    }
}

// --- queues --------------------------------------------------------------------------------------

namespace {

UOp on(const char* device, const UOp& value) { return copy_to(value, Device(device)); }

// Runs a step twice; the host waits only after everything has been handed out.
Floats without_early_waits(CapturedStep& step, int64_t submissions) {
  for (int i = 0; i < 2; ++i) {
    remote_counts() = {};
    step.run();
    EXPECT_EQ(remote_counts().submissions, submissions);
    EXPECT_EQ(remote_counts().early, 0) << "the host waited in between";
    EXPECT_GT(remote_counts().waits, 0);
  }
  return held(step.outputs()[0]);
}

}  // namespace

TEST(device_parts, a_queue_follows_another_while_the_host_goes_on) {
  register_remote_device();
  const UOp r = floats({1, 2, 3}, "REMOTE"), other = floats({10, 20, 30}, "REMOTE:1");
  const UOp there = add(other, on("REMOTE:1", mul(r, r)));
  CapturedStep step({sub(on("REMOTE", there), r)});
  // Three kernels and two copies; what the second queue has waits for the first, and back.
  EXPECT_EQ(without_early_waits(step, 5), (Floats{10, 22, 36}));
}

// A copy reads from the arena of another device, where the next kernel puts something else.
TEST(device_parts, a_place_is_filled_again_once_the_copy_of_another_queue_has_read_it) {
  register_remote_device();
  const UOp r = floats({1, 2, 3, 4}, "REMOTE"), s = floats({2, 3, 4, 5}, "REMOTE");
  CapturedStep step({sub(on("REMOTE:1", mul(r, r)), on("REMOTE:1", add(s, s)))});
  std::vector<int64_t> places;
  for (const Kernel& k : kernels_of(step.host_program()))
    if (k.device().name() == "REMOTE") places.push_back(k.buffers[0].as<BufferArg>().offset);
  ASSERT_EQ(places, (std::vector<int64_t>{0, 0}))
      << "one place for both: " << to_text(step.host_program());
  EXPECT_EQ(without_early_waits(step, 5), (Floats{-3, -2, 1, 6}));
}

// An argument is overwritten once the copy of another queue has read it.
TEST(device_parts, a_state_is_overwritten_once_the_copy_of_another_queue_has_read_it) {
  register_remote_device();
  const UOp r = floats({1, 2, 3}, "REMOTE"), other = floats({10, 20, 30}, "REMOTE:1");
  const UOp sum = add(other, on("REMOTE:1", r)), next = after(r, {store(r, mul(r, r))});
  remote_counts() = {};
  const std::vector<UOp> got = realize({sum, next});
  EXPECT_EQ(held(got[0]), (Floats{11, 22, 33}));
  EXPECT_EQ(held(got[1]), (Floats{1, 4, 9}));
  EXPECT_EQ(remote_counts().early, 0);
}

// The queues of the host have run what they were handed, and cannot wait for one that has not.
TEST(device_parts, the_host_waits_for_a_queue_that_its_own_cannot_follow) {
  register_remote_device();
  Queue &cpu = device_runtime("CPU").queue(), &interp = device_runtime("INTERP").queue(),
        &remote = device_runtime("REMOTE").queue();
  EXPECT_TRUE(cpu.follow(interp, interp.submit(std::span<const Command>())));
  const uint64_t late = remote.submit(std::span<const Command>());
  EXPECT_FALSE(remote.has_run(late));
  EXPECT_FALSE(cpu.follow(remote, late));
  EXPECT_TRUE(remote.follow(cpu, cpu.submit(std::span<const Command>())));
  remote.wait(late);
  EXPECT_TRUE(cpu.follow(remote, late));
  in_both_modes([] {
    const UOp r = floats({1, 2, 3}, "REMOTE"), c = floats({10, 20, 30}, "CPU");
    const UOp here = add(c, on("CPU", mul(r, r)));
    EXPECT_EQ(held(realize({mul(on("REMOTE", here), r)})[0]), (Floats{11, 48, 117}));
    // What the copy to the other device reads is overwritten on the host's.
    const UOp next = after(c, {store(c, mul(c, c))});
    const std::vector<UOp> got = realize({add(on("REMOTE", c), r), next});
    EXPECT_EQ(held(got[0]), (Floats{11, 22, 33}));
    EXPECT_EQ(held(got[1]), (Floats{100, 400, 900}));
  });
}

}  // namespace koine::test
