// Values on several devices, computed (row P6, amendments C8 and C22). The oracle is one device:
// the interpreter on the same graph over leaves that nothing splits.
#include <numeric>

#include "check.hpp"
#include "koine/engine/step.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/shard.hpp"
#include "koine/nn/nn.hpp"
#include "koine/nn/optim.hpp"
#include "koine/transform/gradient.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

constexpr int64_t size = 24;  // 2, 3, 4 and 8 divide it

UOp leaf_on(const Array& values, const std::string& where, int32_t axis) {
  return buffer_from_host(shape_of(values.sizes), values.dtype, where, bytes_of(values).data(),
                          axis);
}

// x has shape (24, 3, 4) or (3, 24, 4), and the axis of 24 is split; y of shape (3, 4) or (24, 4)
// aligns with it on the right and is whole.
using Build = std::function<UOp(const UOp& x, const UOp& y)>;
struct Row {
  const char* name;
  Build build;
};

int64_t axis_of(const UOp& x) { return is_const(x.dim(0), size) ? 0 : 1; }
UOp shape_like(const UOp& x, std::vector<int64_t> of_others) {
  of_others.insert(of_others.begin() + axis_of(x), size);
  return shape_of(of_others);
}
UOp number(const UOp& x, int64_t v) { return constant_int(x.dtype(), v); }

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"Add", [](auto& x, auto&) { return add(x, x); }},
      {"Mul by what is whole", [](auto& x, auto& y) { return mul(y, x); }},
      {"Max with a constant", [](auto& x, auto&) { return maximum(x, number(x, 2)); }},
      {"Where", [](auto& x, auto& y) { return where(lt(y, x), number(x, 0), x); }},
      {"Cast", [](auto& x, auto&) { return cast(x, DType::Float64); }},
      {"Bitcast", [](auto& x, auto&) { return bitcast(x, DType::Int16); }},
      {"Detach", [](auto& x, auto&) { return detach(add(x, x)); }},
      {"Contiguous", [](auto& x, auto& y) { return add(contiguous(mul(x, x)), y); }},
      {"ContiguousBackward",
       [](auto& x, auto&) { return UOp::make(Op::ContiguousBackward, {add(x, x)}); }},
      {"Permute", [](auto& x, auto&) { return permute(x, {2, 1, 0}); }},
      {"Permute, and back",
       [](auto& x, auto& y) {
         return add(permute(add(permute(x, {2, 0, 1}), number(x, 1)), {1, 2, 0}), y);
       }},
      {"Flip off the axis",
       [](auto& x, auto&) { return flip(x, axis_of(x) == 0 ? Ints{0, 1, 1} : Ints{1, 0, 1}); }},
      {"Reshape, joined behind",
       [](auto& x, auto&) {
         return reshape(x, axis_of(x) == 0 ? shape_of({size, 12}) : shape_of({3, size * 4}));
       }},
      {"Reshape, split",
       [](auto& x, auto&) {
         return reshape(x, axis_of(x) == 0 ? shape_of({size, 2, 6}) : shape_of({3, 1, size, 2, 2}));
       }},
      {"Expand",
       [](auto& x, auto&) {
         const UOp one = axis_of(x) == 0 ? shape_of({size, 1, 3, 4}) : shape_of({3, size, 1, 4});
         const UOp many = axis_of(x) == 0 ? shape_of({size, 5, 3, 4}) : shape_of({3, size, 5, 4});
         return add(expand(reshape(x, one), many), number(x, 3));
       }},
      {"Pad with a fill",
       [](auto& x, auto&) {
         return pad(x, axis_of(x) == 0 ? shape_of({0, 1, 2}) : shape_of({1, 0, 2}),
                    shape_like(x, {5, 7}), number(x, 9));
       }},
      {"Pad without one, reduced",
       [](auto& x, auto&) {
         return reduce(Op::Max,
                       pad(x, axis_of(x) == 0 ? shape_of({0, 1, 2}) : shape_of({1, 0, 2}),
                           shape_like(x, {5, 7})),
                       {1 - axis_of(x), 2});
       }},
      {"Shrink off the axis",
       [](auto& x, auto&) {
         return shrink(x, axis_of(x) == 0 ? shape_of({0, 1, 2}) : shape_of({1, 0, 2}),
                       shape_like(x, {2, 2}));
       }},
      {"Index before the axis",
       [](auto& x, auto&) {
         return index(axis_of(x) == 0 ? permute(x, {1, 0, 2}) : x, {index_const(2)});
       }},
      {"Index by a split tensor",
       [](auto& x, auto& y) {
         const UOp at = mod(cast(reduce(Op::Max, x, {1 - axis_of(x), 2}), DType::Int32),
                            constant_int(DType::Int32, 3));
         return index(y, {reshape(at, shape_of({size}))});
       }},
      {"Index by a whole tensor",
       [](auto& x, auto& y) {
         const UOp at = mod(cast(reshape(reduce(Op::Max, y, {0}), shape_of({4})), DType::Int32),
                            constant_int(DType::Int32, 3));
         return index(axis_of(x) == 0 ? permute(x, {1, 0, 2}) : x, {at});
       }},
      {"Stack",
       [](auto& x, auto& y) {
         return stack(std::vector<UOp>{
             x, mul(x, x),
             expand(reshape(y, axis_of(x) == 0 ? shape_of({1, 3, 4}) : shape_of({1, size, 4})),
                    x.shape())});
       }},
      {"Load", [](auto& x, auto&) { return load(add(x, x)); }},
      {"Load with a gate",
       [](auto& x, auto& y) { return load(x, mul(x, number(x, 2)), lt(y, number(x, 1))); }},
      {"After",
       [](auto& x, auto& y) {
         const UOp copy = contiguous(x), own = private_copy(x);
         return after(own, {store(own, add(mul(copy, copy), y))});
       }},
      {"Sum off the axis", [](auto& x, auto&) { return reduce(Op::Add, x, {1 - axis_of(x), 2}); }},
      {"Sum over the axis", [](auto& x, auto&) { return reduce(Op::Add, x, {axis_of(x)}); }},
      {"Sum of products over the axis",
       [](auto& x, auto& y) { return reduce(Op::Add, mul(mul(x, x), y), {axis_of(x)}); }},
      {"Sum over all", [](auto& x, auto&) { return reduce(Op::Add, x, {0, 1, 2}); }},
      {"Max over the axis", [](auto& x, auto&) { return reduce(Op::Max, x, {axis_of(x)}); }},
      {"Max over all", [](auto& x, auto&) { return reduce(Op::Max, x, {0, 1, 2}); }},
      {"Mul over the axis and another", [](auto& x, auto&) { return reduce(Op::Mul, x, {0, 1}); }},
      {"A sum that is read where it was made",
       [](auto& x, auto&) { return mul(x, reduce(Op::Add, x, {axis_of(x)})); }},
      {"GetTuple",
       [](auto& x, auto& y) { return get_tuple(tuple(std::vector<UOp>{x, mul(x, y)}), 1); }},
      {"Function",
       [](auto& x, auto& y) {
         const UOp a = argument_param(0, x), b = argument_param(1, y);
         return add(
             get_tuple(function(tuple(std::vector<UOp>{mul(a, b)}), std::vector<UOp>{x, y}), 0), x);
       }},
      {"a copy to one device",
       [](auto& x, auto&) { return add(copy_to(mul(x, x), Device("CPU:1")), number(x, 1)); }},
      {"a copy to other devices",
       [](auto& x, auto&) {
         return add(copy_to(add(permute(x, {0, 1, 2}), x), Device("CPU:5,CPU:2,CPU:1")),
                    number(x, 1));
       }},
      {"a copy to the same ones, split along axis 1",
       [](auto& x, auto&) {
         return mul(
             copy_to(x, Placement{x.device() ? x.device() : Device("CPU"),
                                  x.device().count() > 1 && is_const(x.dim(1), size) ? 1 : 0}),
             number(x, 3));
       }},
  };
  return table;
}

// The value of a row on devices against the interpreter's on one.
void check_row(const Row& row, const Array& x, const Array& y, int64_t n, int32_t axis) {
  const std::string where = mixed_devices(n);
  const UOp one_x = leaf_on(x, "CPU", 0), one_y = leaf_on(y, "CPU", 0);
  const UOp plain = row.build(one_x, one_y);
  const UOp value = row.build(leaf_on(x, where, axis), leaf_on(y, where, -1));
  SCOPED_TRACE(std::string(row.name) + " on " + where + ", axis " + std::to_string(axis) +
               ", KOINE_TEST_SEED=" + std::to_string(test_seed()));
  try {
    const Bindings bindings{{one_x, x}, {one_y, y}};
    const BoundedArray expected = options().strict ? BoundedArray{interpret(plain, bindings), {}}
                                                   : interpret_bounded(plain, bindings);
    // The graph of several devices means the same to the interpreter.
    EXPECT_EQ(difference(interpret(plain, bindings), interpret(value, bindings_of(value))), "");
    const UOp result = realize({value})[0];
    EXPECT_EQ(difference(expected, array_of(result)), "") << to_text(value);
    if (value.device().count() > 1) {
      EXPECT_EQ(result.device(), value.device());
      EXPECT_EQ(result.axis(), value.axis());
    }
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n" << to_text(value);
  }
}

int64_t copies(const UOp& value) {
  int64_t out = 0;
  for (const Kernel& k : schedule({value})) out += k.ast.is(Op::CustomFunction) ? 1 : 0;
  return out;
}

}  // namespace

TEST(shard, spec_P6_every_op_of_the_placement_table_equals_one_device) {
  in_both_modes([] {
    std::mt19937_64 random(test_seed());
    for (const Row& row : rows())
      for (const int64_t n : {2, 3, 4, 8}) {
        const DType dtype = random() % 3 == 0 ? DType::Int32 : DType::Float32;
        const bool first = random() % 2 == 0;
        const std::vector<int64_t> sizes =
            first ? std::vector<int64_t>{size, 3, 4} : std::vector<int64_t>{3, size, 4};
        check_row(row, random_array(random, sizes, dtype),
                  random_array(random, {sizes[1], sizes[2]}, dtype), n, first ? 0 : 1);
      }
  });
}

TEST(shard, spec_P6_elementwise_ops_run_where_the_parts_are) {
  for (const int64_t n : {2, 3, 4, 8}) {
    const Tensor x = Tensor::arange(size * 3).reshape({size, 3}).shard(mixed_devices(n), 0);
    const Tensor split = x.cast(DType::Float32).realize();
    const UOp value = (split * split + Tensor(1.0)).exp().uop();
    EXPECT_EQ(kernel_count({Tensor(value)}), n);
    EXPECT_EQ(copies(value), 0);
    // A sum over the parts: a partial result on each, all to all, and a fold on each.
    const UOp sum = split.sum(0).uop();
    EXPECT_EQ(copies(sum), n * (n - 1));
    EXPECT_LE(kernel_count({Tensor(sum)}) - copies(sum), 2 * n);
  }
}

TEST(shard, spec_amend_22_collectives_of_copies_come_back) {
  std::mt19937_64 random(test_seed());
  const Array values = random_array(random, {size, 5}, DType::Float32);
  const Tensor x(leaf_on(values, "CPU", 0));
  for (const int64_t n : {2, 3, 4, 8}) {
    const std::string where = mixed_devices(n);
    for (const std::optional<int64_t> axis :
         {std::optional<int64_t>(0), std::optional<int64_t>()}) {
      const Tensor there = x.shard(where, axis).realize();
      EXPECT_EQ(there.device(), where);
      EXPECT_EQ(there.shard_axis(), axis);
      EXPECT_EQ(difference(values, array_of(there.uop())), "") << "read where it is";
      const Tensor back = there.to("CPU").realize();
      EXPECT_EQ(back.device(), "CPU");
      EXPECT_EQ(difference(values, array_of(back.uop())), "");
      EXPECT_EQ(there.to(where).shard_axis(), 0);
      EXPECT_EQ(difference(values, array_of(there.to(where).realize().uop())), "");
    }
    // Device i holds the i-th part, and nothing else.
    const Tensor split = x.shard(where, 0).realize();
    EXPECT_EQ(memory_of(split.uop())->bytes(), size * 5 * 4);
    EXPECT_EQ(copies(split.shard(where, 0).uop()), 0) << "it lies so";
    EXPECT_EQ(copies((split + Tensor(1.0)).to("CPU").uop()), n - 1);
  }
  EXPECT_EQ(x.shard("CPU:1", 0).device(), "CPU:1");
  // Parts of two and parts of three have common units.
  const Tensor two = x.shard("CPU,CPU:1", 0).realize();
  EXPECT_EQ(difference(values, array_of(two.to("CPU:3,CPU:1,CPU").realize().uop())), "");
  EXPECT_EQ(copies(two.to("CPU:3,CPU:1,CPU").uop()), 3) << "two of the four runs are there";
}

TEST(shard, spec_amend_22_what_cannot_be_split_says_what_to_write) {
  const Tensor x = Tensor::zeros({6, 5});
  expect_error([&] { (void)x.shard("CPU,CPU:1", 1); },
               {"shard of (6, 5)", "axis 1 of size 5", "2 devices CPU,CPU:1", "pad() it"});
  expect_error([&] { (void)x.shard("CPU,CPU:1,CPU:2,CPU:3", 0); },
               {"axis 0 of size 6", "multiple of 4"});
  expect_error([&] { (void)x.shard("CPU,CPU:1", 2); }, {"shard", "axis 2"});
  expect_error([&] { (void)x.shard("CPU,TPU", 0); }, {"TPU", "known devices"});
  expect_error([&] { (void)x.shard("CPU,CPU:1,CPU:0", 0); }, {"name", "CPU", "twice"});
  expect_error([&] { (void)Tensor::zeros({}).to("CPU,CPU:1"); }, {"scalar", "shard()"});
  const Tensor split = x.shard("CPU,CPU:1", 0);
  expect_error([&] { (void)split.flip({0}); },
               {"flip: the devices", "axis 0", "copy it to one device", "shard()"});
  expect_error([&] { (void)split.shrink({{0, 3}, {0, 5}}); }, {"shrink: the devices", "shard()"});
  expect_error([&] { (void)(split + Tensor(leaf({6, 5}))); },
               {"+ of (6, 5) split along axis 0, (6, 5): operand", "CPU,CPU:1", "to()"});
}

TEST(shard, empty_and_scalar_values_have_parts_too) {
  for (const int64_t n : {2, 8}) {
    const Tensor none = Tensor::zeros({0, 3}).shard(mixed_devices(n), 0).realize();
    EXPECT_EQ((none + Tensor(1.0)).realize().numel(), 0);
    EXPECT_EQ(none.sum().item<float>(), 0);
    EXPECT_EQ(none.sum(0).realize().tolist<float>(), (std::vector<float>{0, 0, 0}));
    const Tensor one = Tensor(3.5).shard(mixed_devices(n));
    EXPECT_EQ((one * one).item<float>(), 12.25F);
    EXPECT_EQ(one.shard_axis(), std::nullopt);
    // One element on each device; of zeros the sum of several is +0, as on one device.
    const Tensor zeros = Tensor::from(std::vector<float>(static_cast<size_t>(n), -0.0F), {n});
    const Tensor sum = zeros.shard(mixed_devices(n), 0).sum();
    EXPECT_EQ(std::signbit(sum.item<float>()), std::signbit(zeros.sum().item<float>()));
  }
}

TEST(shard, random_numbers_are_those_of_one_device) {
  auto draw = [](const std::string& where) {
    Tensor::manual_seed(11);
    return std::vector<Tensor>{Tensor::rand({size, 2}, where), Tensor::randn({size, 3}, where),
                               Tensor::randint({size}, 0, 100, where)};
  };
  const std::vector<Tensor> one = draw("CPU");
  for (const int64_t n : {2, 3, 4, 8}) {
    const std::vector<Tensor> many = draw(mixed_devices(n));
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(many[i].shard_axis(), 0);
      EXPECT_EQ(copies(many[i].uop()), 0);
    }
    EXPECT_EQ(many[0].tolist<float>(), one[0].tolist<float>());
    EXPECT_EQ(many[2].tolist<int>(), one[2].tolist<int>());
  }
}

TEST(shard, spec_P6_a_data_parallel_step_copies_gradients_alone) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const int64_t n : {2, 4}) {
    const std::string where = mixed_devices(n);
    Tensor w = Tensor::ones({6, 3}).shard(where).clone().realize();
    w.requires_grad();
    nn::SGD sgd({w}, 0.5);
    const Tensor x = Tensor::rand({size, 6}, where).realize(),
                 y = Tensor::rand({size, 3}, where).realize();
    (x.matmul(w) - y).square().mean().backward();
    const UOp grad = w.grad().uop();
    EXPECT_EQ(grad.axis(), std::nullopt);
    EXPECT_EQ(copies(grad), n * (n - 1));
    const UOp next = (w.detach() - w.grad().detach() * Tensor(0.5)).uop();
    EXPECT_EQ(copies(next), n * (n - 1)) << "each device updates what it has";
    for (const Kernel& k : schedule({next}))
      if (k.ast.is(Op::CustomFunction)) {
        EXPECT_EQ(largest_bytes(k.buffers[0]), 6 * 3 * 4) << "a gradient";
      }
    sgd.step();
    EXPECT_EQ(w.device(), where);
  }
}

TEST(shard, spec_amend_8_replicas_hold_equal_bits) {
  std::mt19937_64 random(test_seed());
  in_both_modes([&] {
    for (const int64_t n : {2, 3, 8}) {
      const UOp x = leaf_on(random_array(random, {size, 64}, DType::Float32), mixed_devices(n), 0);
      const UOp sum = realize({reduce(Op::Add, mul(x, x), {0})})[0];
      ASSERT_EQ(sum.axis(), std::nullopt);
      const Array first = array_of(sum);
      for (int64_t i = 0; i < n; ++i) {  // each device's own copy
        const Device device = x.device().part(static_cast<size_t>(i));
        EXPECT_EQ(difference(first, array_of(realize({copy_to(sum, device)})[0])), "");
      }
    }
  });
}

// A maximum along the axis that is split is folded where its parts lie, in strict mode too.
TEST(shard, spec_P6_a_strict_maximum_moves_one_result_a_device) {
  std::map<bool, int64_t> kernels;
  const Tensor x = Tensor::randn({8, 6}).realize();
  for (const bool strict : {false, true}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    const Tensor parts = x.shard("CPU,CPU:1", 0).realize();
    kernels[strict] = kernel_count({parts.max({0})});
    EXPECT_EQ(parts.max({0}).to("CPU").tolist<float>(), x.max({0}).tolist<float>());
  }
  EXPECT_EQ(kernels[false], kernels[true]);
}

TEST(shard, spec_amend_8_replicated_is_checked_when_verifying) {
  Options o = options();
  o.verify = 2;
  const OptionScope scope(o);
  const Array unequal{DType::Float32, {2, 2}, {0, 0, 0, double_to_bits(DType::Float32, 1)}, {}};
  const UOp x = leaf_on(unequal, "CPU,CPU:1", 0);
  expect_error([&] { (void)realize({replicated(x, 0)}); },
               {"Replicated", "CPU,CPU:1", "differ", "axis 0"});
  const Array equal{DType::Float32, {2, 2}, {5, 7, 5, 7}, {}};
  const UOp y = leaf_on(equal, "CPU,CPU:1", 0);
  EXPECT_EQ(array_of(realize({replicated(y, 0)})[0]).data, (std::vector<Bits>{5, 7}));
  // Copies of one value are equal: that costs no look. Others are looked at, also where the same
  // was asked for before and not verified.
  const Device both("CPU,CPU:1");
  auto kernels = [&](const UOp& copies, int verify) {
    Options looked = options();
    looked.verify = verify;
    const OptionScope inner(looked);
    reset_counters();
    (void)realize({replicated(copies, 0)});
    return counters().kernels;
  };
  const UOp copies =
      copy_to(expand(leaf({1, 6}, DType::Float32), shape_of({2, 6})), Placement{both, 0});
  EXPECT_EQ(kernels(copies, 1), kernels(copies, 2));
  const UOp rows = leaf({2, 6}, DType::Float32), others = copy_to(rows, Placement{both, 0});
  EXPECT_EQ(kernels(others, 1), kernels(copies, 1));
  expect_error([&] { (void)kernels(others, 2); }, {"Replicated", "differ"});
}

TEST(shard, gradients_lie_where_their_targets_do) {
  in_both_modes([] {
    auto grads = [&](const std::string& where) {
      std::mt19937_64 same(test_seed());
      auto numbers = [&](const Shape& shape) {
        std::vector<double> v(
            static_cast<size_t>(shape.size() == 2 ? shape[0] * shape[1] : shape[0]));
        for (double& d : v) d = static_cast<double>(same() % 17) - 8;
        return Tensor::from(v, shape);
      };
      const Tensor a = numbers({size, 6}), b = numbers({size, 6}), w = numbers({6, 5}),
                   c = numbers({size, 5});
      const Tensor x = a.shard(where, 0).clone().realize(), z = b.shard(where, 1).clone().realize();
      const Tensor v = w.shard(where).clone().realize(), e = c.realize();
      // x stays in rows, z is in columns and comes to the rows, e lies on one device and goes to
      // all.
      // u is whole, and read in rows.
      const Tensor u = b.shard(where).clone().realize();
      const Tensor loss =
          ((x * z.shard(where, 0) * u).matmul(v) + e.shard(where, 0)).square().sum();
      return loss.gradient({x, z, v, e, u});
    };
    const std::vector<Tensor> one = grads("CPU");
    for (const int64_t n : {2, 3}) {
      const std::vector<Tensor> many = grads(mixed_devices(n));
      EXPECT_EQ(many[0].shard_axis(), 0);
      EXPECT_EQ(many[1].shard_axis(), 1);
      EXPECT_EQ(many[2].shard_axis(), std::nullopt);
      EXPECT_EQ(many[3].device(), "CPU");
      EXPECT_EQ(many[4].shard_axis(), std::nullopt);
      for (size_t i = 0; i < one.size(); ++i)  // whole numbers: exact in any order
        EXPECT_EQ(many[i].tolist<double>(), one[i].tolist<double>()) << i;
    }
  });
}

TEST(shard, a_broadcast_inside_of_a_step_has_the_gradient_of_its_source) {
  const Tensor w = Tensor::from<float>({1, 2, 3}).realize();
  const Tensor x = Tensor::arange(12).reshape({4, 3}).cast(DType::Float32);
  for (const int64_t n : {2, 4}) {
    const Tensor g =
        (x.shard(mixed_devices(n), 0) * w.shard(mixed_devices(n))).sum().gradient({w})[0];
    EXPECT_EQ(g.device(), "CPU");
    EXPECT_EQ(g.tolist<float>(), (std::vector<float>{18, 22, 26}));
  }
}

TEST(shard, assignments_go_to_each_part) {
  for (const int64_t n : {2, 3, 4, 8}) {
    SCOPED_TRACE(n);
    const std::string where = mixed_devices(n);
    Tensor x = Tensor::zeros({size, 3}, DType::Int32).shard(where, 0).clone().realize();
    const Tensor rows = Tensor::arange(size).reshape({size, 1});
    x.assign(rows.expand({size, 3}));
    EXPECT_EQ(x.device(), Device(where).name());
    EXPECT_EQ(x.sum().item<int>(), 3 * size * (size - 1) / 2);
    // Through a view off the axis, in place; of a value that lies otherwise.
    Tensor column = x.shrink({{0, size}, {1, 2}});
    column.assign((rows * Tensor(2)).shard(where));
    EXPECT_EQ(x.sum().item<int>(), 4 * size * (size - 1) / 2);
    EXPECT_EQ(x.shard_axis(), 0);
    x.assign(x + x);
    EXPECT_EQ(x.sum().item<int>(), 8 * size * (size - 1) / 2);
  }
}

TEST(shard, a_captured_step_runs_again_and_prepared_ones_are_found) {
  const UOp x = leaf({size, 3}, DType::Int32, 1), y = leaf({size, 3}, DType::Int32, 2);
  const std::string where = mixed_devices(4);
  const UOp a = realize({copy_to(x, Device(where))})[0],
            b = realize({copy_to(y, Device(where))})[0];
  const UOp product = mul(a, a);
  CapturedStep step({reduce(Op::Add, product, {0}), product});
  step.run();
  EXPECT_EQ(difference(interpret(mul(x, x), bindings_of(x)), array_of(step.outputs()[1])), "");
  step.replace(a, b);
  step.run();
  const UOp expected = reduce(Op::Add, mul(y, y), {0});
  EXPECT_EQ(difference(interpret(expected, bindings_of(y)), array_of(step.outputs()[0])), "");
  // The same request over other memory compiles nothing.
  (void)realize({mul(b, add(b, b))});
  const int64_t compiled = counters().compiled;
  (void)realize({mul(a, add(a, a))});
  EXPECT_EQ(counters().compiled, compiled);
}

TEST(shard, memory_of_all_parts_goes_with_the_tensor) {
  const std::string where = "CPU,CPU:1,CPU:2,CPU:3";
  auto in_use = [&] {
    int64_t out = 0;
    for (size_t i = 0; i < 4; ++i)
      out += device_runtime(Device(where).part(i)).allocator().bytes_in_use();
    return out;
  };
  clear_compile_cache();
  const int64_t before = in_use();
  {
    const Tensor split = Tensor::ones({1024, 256}).shard(where, 0).realize();
    const Tensor whole = Tensor::ones({1024, 256}).shard(where).realize();
    const int64_t bytes = 1024 * 256 * 4 * 5;  // one in parts, one on each device
    EXPECT_GE(in_use() - before, bytes);
    EXPECT_LE(in_use() - before, bytes * 5 / 4) << "blocks have some room";
  }
  clear_compile_cache();  // which keeps the numbers that tensors are filled with
  EXPECT_EQ(in_use(), before);
}

TEST(shard, numbers_that_change_are_arguments_on_each_device) {
  const Tensor x = Tensor::arange(size).cast(DType::Float32).shard(mixed_devices(4), 0).realize();
  EXPECT_EQ((x * Tensor(2.5)).sum().item<float>(), 690);
  EXPECT_EQ((x * Tensor(3.5)).sum().item<float>(), 966);
  const int64_t compiled = counters().compiled;
  EXPECT_EQ((x * Tensor(4.5)).sum().item<float>(), 1242);
  EXPECT_EQ(counters().compiled, compiled);
  // What moves between devices keeps its numbers: they would be needed on each.
  const Tensor y = Tensor::arange(size).cast(DType::Float32).realize();
  for (const double by : {2.0, 3.0, 4.0})
    EXPECT_EQ(((y.to("CPU:1") * Tensor(by)).to("CPU") + Tensor(by)).sum().item<float>(),
              by * size * (size - 1) / 2 + by * size);
}

namespace {

struct Method {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
  std::vector<const char*> rows, columns;  // what a refusal names; none: it is computed
};

const std::vector<Method>& methods() {
  auto classes = [](const Tensor& x) {
    return x.abs().cast(DType::Int32).mod(Tensor(6)).cast(DType::Int64);
  };
  auto labels = [](const Tensor& x) {
    const bool several = x.uop().device().count() > 1;
    return Tensor::arange(size).mod(Tensor(6)).shard(
        x.device(), several ? std::optional<int64_t>(0) : std::optional<int64_t>());
  };
  static const std::vector<Method> table = {
      {"softmax", [](auto& x) { return x.softmax(); }, {}, {}},
      {"erf", [](auto& x) { return x.erf() + x.gelu("none"); }, {}, {}},
      {"gradient of erf", [](auto& x) { return x.erf().sum().gradient({x})[0]; }, {}, {}},
      {"layernorm", [](auto& x) { return x.layernorm(1); }, {}, {}},
      {"var", [](auto& x) { return x.var(0); }, {}, {}},
      {"argmax", [](auto& x) { return x.argmax(0); }, {}, {}},
      {"cumsum", [](auto& x) { return x.cumsum(0); }, {}, {}},
      {"gram",
       [](auto& x) { return x.transpose(0, 1).matmul(x); },
       {},
       {"matmul of (6, 24) split along axis 0", "axis 0 and axis 1"}},
      {"sort", [](auto& x) { return x.sort(1).first; }, {"sort: the devices"}, {"sort of"}},
      {"roll", [](auto& x) { return x.roll(1, 1); }, {}, {"roll: the devices", "axis 1"}},
      {"cat", [](auto& x) { return Tensor::cat({x, x}, 1); }, {}, {"cat of", "axis 1"}},
      {"stack", [](auto& x) { return Tensor::stack({x, x}, 1); }, {}, {}},
      {"flatten", [](auto& x) { return x.flatten(); }, {}, {"flatten: the devices", "no axis"}},
      {"pad", [](auto& x) { return x.pad({{0, 0}, {1, 2}}); }, {}, {"pad: the devices", "axis 1"}},
      {"index_select",
       [](auto& x) { return x.index_select(1, Tensor::from<int>({0, 2, 1}).shard(x.device())); },
       {},
       {"index_select of", "axis 0"}},
      {"cross_entropy",
       [labels](auto& x) { return x.cross_entropy(labels(x)); },
       {},
       {"cross_entropy of", "axis 0 and axis 2"}},
      {"gather", [classes](auto& x) { return x.gather(1, classes(x)); }, {}, {"gather of"}},
      {"conv2d",
       [](auto& x) { return x.reshape({size, 1, 2, 3}).conv2d(Tensor::ones({2, 1, 1, 2})); },
       {},
       {"reshape: the devices"}},
      {"attention",
       [](auto& x) {
         const Tensor y = x.reshape({size, 3, 2});
         return y.matmul(y.transpose(1, 2)).softmax().matmul(y);
       },
       {},
       {"split along axis 1 and axis 2"}},
      {"gradient of softmax",
       [](auto& x) { return x.softmax().square().sum().gradient({x})[0]; },
       {},
       {}},
      {"gradient of var", [](auto& x) { return x.var(0).square().sum().gradient({x})[0]; }, {}, {}},
  };
  return table;
}

}  // namespace

TEST(shard, spec_P6_methods_give_the_values_of_one_device_or_refuse) {
  std::mt19937_64 random(test_seed());
  std::vector<float> numbers(size * 6);
  for (float& v : numbers) v = static_cast<float>(static_cast<int>(random() % 41) - 20) / 4;
  const Tensor one = Tensor::from(numbers, {size, 6});
  for (const Method& method : methods()) {
    const Tensor plain = method.run(one);
    const UOp graph = plain.uop();
    const BoundedArray expected = interpret_bounded(graph, bindings_of(graph));
    for (const int64_t axis : {-1, 0, 1}) {
      SCOPED_TRACE(std::string(method.name) + ", axis " + std::to_string(axis));
      const auto split = axis < 0 ? std::optional<int64_t>() : std::optional(axis);
      const Tensor x = one.shard(mixed_devices(3), split).realize();
      const auto compute = [&] { return array_of(realize({method.run(x).uop()})[0]); };
      const auto& refusal = axis == 0   ? method.rows
                            : axis == 1 ? method.columns
                                        : std::vector<const char*>();
      if (refusal.empty())
        EXPECT_EQ(difference(expected, compute()), "");
      else
        expect_error([&] { (void)compute(); }, {refusal.begin(), refusal.end()});
    }
  }
}

TEST(shard, functions_and_symbolic_sizes_know_of_parts) {
  const Tensor x = Tensor::arange(size * 6).reshape({6, size}).cast(DType::Float64).realize();
  const Tensor w = (Tensor::arange(6).cast(DType::Float64) - Tensor(2.0)).reshape({6, 1}).realize();
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto f =
        koine::function([](const Tensor& a, const Tensor& b) { return (a * b).square(); }, how);
    const Tensor y = f(x, w), g = y.sum().gradient({x, w})[1];
    for (const int64_t n : {2, 3}) {
      const Tensor parts = x.shard(mixed_devices(n), 1).clone().realize(),
                   whole = w.shard(mixed_devices(n)).clone().realize();
      const Tensor z = f(parts, whole);
      EXPECT_EQ(z.shard_axis(), 1);
      EXPECT_EQ(z.tolist<double>(), y.tolist<double>());
      const std::vector<Tensor> gradients = z.sum().gradient({parts, whole});
      EXPECT_EQ(gradients[0].shard_axis(), 1);
      EXPECT_EQ(gradients[1].shard_axis(), std::nullopt);
      EXPECT_EQ(gradients[1].tolist<double>(), g.tolist<double>());
      // The cotangent of what is whole comes in parts.
      const Tensor squares = (f(whole, whole) * parts).sum().gradient({whole})[0];
      EXPECT_EQ(squares.tolist<double>(), (f(w, w) * x).sum().gradient({w})[0].tolist<double>());
    }
  }
  // The part of a device has its present elements at the front, as memory of one device does.
  const Variable n("rows", 1, 6);
  for (const int64_t rows : {5, 2})
    for (const int64_t axis : {0, 1}) {
      const Tensor all = axis == 0 ? x.transpose(0, 1).realize() : x;
      const Size present = n.bind(rows);
      const auto cut = [&](const Tensor& t) {
        return (axis == 0 ? t.shrink({{0, size}, {0, present}})
                          : t.shrink({{0, present}, {0, size}})) *
               Tensor(2.0);
      };
      const Tensor split = cut(all.shard(mixed_devices(4), axis).realize());
      EXPECT_EQ(split.shard_axis(), axis);
      EXPECT_EQ(split.tolist<double>(), cut(all).tolist<double>());
      EXPECT_EQ(split.to("CPU").sum().item<double>(), cut(all).sum().item<double>());
    }
}

TEST(shard, what_runs_on_one_device_is_refused_on_several) {
  const UOp x = param(0, shape_of({4}), DType::Int32, Device("CPU,CPU:1"));
  const UOp custom = UOp::make(Op::CustomFunction, {}, std::string("f"));
  const UOp call = UOp::make(Op::Call, {custom, x});
  expect_error([&] { (void)on_each_device(sink(std::vector<UOp>{call})); },
               {"Call", "shape (4,)", "CPU,CPU:1", "copy that to one device first, such as CPU"});
  const UOp gated = UOp::make(Op::Load, {x, x, lt(x, x)}, LoadArg{x.device(), {}});
  expect_error([&] { (void)on_each_device(sink(std::vector<UOp>{store(x, gated)})); },
               {"Load", "gate", "copy"});
  const UOp plain = param(0, shape_of({4}), DType::Int32, Device("CPU"));
  const UOp program = sink(std::vector<UOp>{store(plain, add(plain, plain))});
  EXPECT_EQ(on_each_device(program), program) << "nothing to do";
  const UOp body = tuple(std::vector<UOp>{add(param(0, x.shape(), x.dtype()), x)});
  expect_error([&] { (void)function(body, std::vector<UOp>{x}); },
               {"Function", "argument 0", "CPU,CPU:1", "argument_param"});
}

TEST(shard, stores_on_one_device_and_on_others_run_in_one_program) {
  const Array numbers{DType::Int32, {4}, {1, 2, 3, 4}, {}};
  for (const bool first : {true, false}) {
    const UOp two = leaf_on(numbers, "CPU,CPU:1", 0),
              four = leaf_on(numbers, "CPU:1,CPU:2,CPU,CPU:3", 0),
              one = leaf_on(numbers, "CPU:1", 0);
    const UOp a = store(two, add(two, two)), b = store(four, mul(four, four)),
              c = store(one, add(one, one));
    const UOp result = after(first ? two : one, std::vector<UOp>{first ? a : c, b, first ? c : a});
    EXPECT_EQ(array_of(realize({result})[0]).data, (std::vector<Bits>{2, 4, 6, 8}));
    EXPECT_EQ(array_of(four).data, (std::vector<Bits>{1, 4, 9, 16}));
    EXPECT_EQ(array_of(first ? one : two).data, (std::vector<Bits>{2, 4, 6, 8}));
  }
}

// The specification writes its collectives in these ops: each is computed as it stands.
TEST(shard, spec_P6_collectives_in_the_form_of_the_specification_are_computed) {
  std::mt19937_64 random(test_seed());
  for (const int64_t n : {2, 3, 4, 8}) {
    const Device all(mixed_devices(n));
    const int64_t s = size;
    const UOp t = leaf_on(random_array(random, {n * s}, DType::Int32), all.name(), 0);
    const UOp one = leaf_on(random_array(random, {s}, DType::Int32), "CPU", 0);
    const auto to_each = [&](const UOp& x, int64_t length) {
      return replicated(
          copy_to(expand(reshape(x, shape_of({1, length})), shape_of({n, length})), all), 0);
    };
    const UOp scattered = permute(reshape(t, shape_of({n, n, s / n})), {1, 0, 2});
    const UOp reduced = reshape(reduce(Op::Add, copy_to(scattered, all), {1}), shape_of({s}));
    const std::vector<std::tuple<const char*, UOp, std::optional<size_t>>> forms = {
        {"broadcast", to_each(one, s), std::nullopt},
        {"scatter", copy_to(one, all), 0},
        {"gather", copy_to(t, all.part(0)), std::nullopt},
        {"reduce", reduce(Op::Add, reshape(copy_to(t, all.part(0)), shape_of({n, s})), {0}),
         std::nullopt},
        {"allgather", to_each(t, n * s), std::nullopt},
        {"reduce_scatter", reduced, 0},
        {"allreduce", to_each(reduced, s), std::nullopt}};
    for (const auto& [name, value, axis] : forms) {
      SCOPED_TRACE(std::string(name) + " on " + all.name());
      EXPECT_EQ(value.axis(), axis);
      EXPECT_EQ(difference(interpret(value, bindings_of(value)), array_of(realize({value})[0])),
                "");
    }
  }
}

}  // namespace koine::test
