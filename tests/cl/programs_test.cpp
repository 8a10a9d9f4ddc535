// Programs of the device CL: what they say of themselves, and one as large as those of real
// programs.
#include "backends.hpp"
#include "by_hand.hpp"
#include "check.hpp"
#include "cl_text.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/cl/hardware.hpp"
#include "koine/runtime/device.hpp"
#include "products.hpp"

namespace koine::test {
namespace {

std::array<int64_t, 3> numbers(const std::array<UOp, 3>& axes) {
  return {const_int(axes[0]), const_int(axes[1]), const_int(axes[2])};
}

}  // namespace

TEST(cl_programs, spec_W8_say_their_grid) {
  using Sizes = std::array<int64_t, 3>;
  const auto program_on = [](const std::string& device) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    const Tensor x(new_buffer(shape_of({1 << 20}), DType::Float32, Device(device)));
    return program_of(schedule({(x * Tensor(2.0)).uop()}).at(0));
  };
  const auto in_groups = program_on(groups_device());
  EXPECT_EQ(in_groups->device(), "CL");
  EXPECT_EQ(in_groups->threads(), 1);
  const Sizes grid = numbers(in_groups->grid()), group = numbers(in_groups->group());
  EXPECT_GT(group[0], 1);
  EXPECT_EQ((1 << 20) % (grid[0] * group[0]), 0);
  EXPECT_EQ((Sizes{grid[1], grid[2], group[1]}), (Sizes{1, 1, 1}));
  if (!cl::hardware(0).is_cpu) return;
  // On a CPU each thread of the team is a group of its own.
  const auto on_cpu = program_on("CL");
  EXPECT_EQ(numbers(on_cpu->grid()), (Sizes{on_cpu->threads(), 1, 1}));
  EXPECT_EQ(numbers(on_cpu->group()), (Sizes{1, 1, 1}));
}

// Sums of 1024 products of two halves, on the tensor core that other instructions compute, at
// sampled elements beside sums of doubles.
TEST(cl_programs, spec_O6_spec_X2_a_product_of_1024_is_within_the_bound) {
  const Gemm g{1024, 1024, 1024, DType::Float16, DType::Float16, DType::Float32, FactorKind::Any};
  Options o = options();
  o.device = "CL";
  const OptionScope scope(o);
  const std::vector<Opt> opts{tc(2)};
  std::vector<std::byte> left = in_memory(g.left(), g.a), right = in_memory(g.right(), g.b),
                         out(static_cast<size_t>(g.m * g.n * 4));
  run_by_hand(g.ast(), "CL", {{out, left, right}}, &opts);
  EXPECT_EQ(problem_of(g, out, false, 4099), "");
}

}  // namespace koine::test
