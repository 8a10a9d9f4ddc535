#include "by_hand.hpp"

#include "backends.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/device.hpp"
#include "writer.hpp"

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

Texts::Texts(std::string_view language, std::vector<UOp> linears, const CText::Load& load)
    : linears_(std::move(linears)) {
  std::string source;
  for (size_t k = 0; k < linears_.size(); ++k) {
    source += render(language, fmt::format("k{}", k), linears_[k], k == 0);
    if (!load && language != "c") source += fmt::format("KOINE_RUN(k{})\n", k);
  }
  library_ = load ? load(source) : text_library(language, source);
}

void Texts::run(size_t number, std::span<std::byte> out, std::span<std::byte> in) const {
  const Signature signature = signature_of(linears_[number]);
  std::vector<TextLibrary::Given> named;
  for (const int64_t slot : signature.slots) {
    const std::span<std::byte> b = slot == 0 ? out : in;
    named.push_back({b.data(), static_cast<int64_t>(b.size())});
  }
  library_->run(fmt::format("k{}", number), named, signature, {});
}

std::vector<UOp> programs_by_hand() {
  return {reversal(256, 1), reversal(8, 2), tree_of_64(), seven_of_ten()};
}

void expect_threads_wait(const Texts& programs) {
  const auto result = [&](size_t number, size_t elements, const std::vector<float>& in) {
    return programs.run(number, std::vector<float>(elements, -1), in);
  };
  const std::vector<float> up = counting_up(256), down(up.rbegin(), up.rend());
  EXPECT_EQ(result(0, 256, up), down);
  EXPECT_EQ(result(1, 16, counting_up(16)),
            (std::vector<float>{7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8}));
  EXPECT_EQ(result(2, 1, counting_up(64)), std::vector<float>{2016});
  EXPECT_EQ(result(3, 20, {}), what_seven_of_ten_leave());
}

UOp histogram(int64_t count, int64_t bins, DType dtype, AxisType type) {
  const UOp i = range(0, index_const(count), type), out = param(0, shape_of({bins}), dtype),
            in = param(1, shape_of({count}), DType::Int32);
  const UOp bin = cast(load(index(in, {i})), DType::Index);
  return sink({end(UOp::make(Op::AtomicAdd, {index(out, {bin}), constant(dtype, 1)}), {i})});
}

UOp kernel_of_40(DType dtype, const std::function<UOp(const UOp&)>& of) {
  const UOp i = range(0, index_const(40), AxisType::Loop), out = param(0, shape_of({40}), dtype),
            in = param(1, shape_of({40}), dtype);
  return sink({end(store(index(out, {i}), of(load(index(in, {i})))), {i})});
}

UOp code(Op op, const char* text, DType dtype, std::vector<UOp> src) {
  return UOp::make(op, src, CodeArg{text, dtype});
}

}  // namespace koine::test
