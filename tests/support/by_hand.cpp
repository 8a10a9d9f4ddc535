#include "by_hand.hpp"

#include "backends.hpp"
#include "koine/ir/build.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {

void run_by_hand(const UOp& ast, const std::string& device,
                 std::span<const std::span<std::byte>> buffers, const std::vector<Opt>* opts) {
  DeviceRuntime& runtime = device_runtime(device);
  const auto program = runtime.compile(lower_kernel(ast, runtime.target(), {}, opts));
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<std::byte*> addresses;
  std::vector<int64_t> bytes;
  for (const std::span<std::byte> b : buffers) {
    bytes.push_back(static_cast<int64_t>(b.size()));
    memory.push_back(runtime.allocate(bytes.back()));
    memory.back()->copy_in(b.data(), 0, bytes.back());
    addresses.push_back(memory.back()->address());
  }
  program->run({addresses, bytes, {}});
  for (size_t i = 0; i < buffers.size(); ++i) memory[i]->copy_out(buffers[i].data(), 0, bytes[i]);
  ran_on(device);
}

UOp histogram(int64_t count, int64_t bins, DType dtype, AxisType type) {
  const UOp i = range(0, index_const(count), type), out = param(0, shape_of({bins}), dtype),
            in = param(1, shape_of({count}), DType::Int32);
  const UOp bin = cast(load(index(in, {i})), DType::Index);
  return sink({end(UOp::make(Op::AtomicAdd, {index(out, {bin}), constant(dtype, 1)}), {i})});
}

}  // namespace koine::test
