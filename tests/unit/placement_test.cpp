// Where a value lives: device, and the axis that several devices split (amendments C7, C8, C22).
// The table below is checked against a simulation: an op on whole values, cut along `axis`, is the
// op on each device's part.
#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

const Device both("CPU,CPU:1");

UOp split_leaf(std::vector<int64_t> sizes, DType dtype = DType::Int32) {
  return new_buffer(shape_of(sizes), dtype, both);
}

// The i-th of n parts along an axis.
Array part_of(const Array& whole, size_t axis, size_t i, size_t n) {
  Array part = whole;
  part.sizes[axis] /= static_cast<int64_t>(n);
  part.data.clear();
  size_t inner = 1;
  for (size_t k = axis; k < part.sizes.size(); ++k) inner *= static_cast<size_t>(part.sizes[k]);
  for (size_t at = i * inner; at < whole.data.size(); at += n * inner)
    part.data.insert(part.data.end(), whole.data.begin() + static_cast<std::ptrdiff_t>(at),
                     whole.data.begin() + static_cast<std::ptrdiff_t>(at + inner));
  return part;
}

Array random_array(std::mt19937_64& random, std::vector<int64_t> sizes) {
  Array a{DType::Int32, std::move(sizes), {}, {}};
  for (int64_t i = 0; i < a.numel(); ++i)
    a.data.push_back(int_to_bits(DType::Int32, static_cast<int64_t>(random() % 2000) - 1000));
  return a;
}

// `build` makes the op over x of shape (2p, 3, 4), which the devices split, and y of shape (3, 4),
// which each of them has; p is 2 for whole values and 1 for the part of one device.
struct Row {
  const char* name;
  std::optional<size_t> axis;
  std::function<UOp(const UOp& x, const UOp& y, int64_t p)> build;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"leaf", 0, [](auto& x, auto&, auto) { return x; }},
      {"Permute", 2, [](auto& x, auto&, auto) { return permute(x, {1, 2, 0}); }},
      {"Flip", 0, [](auto& x, auto&, auto) { return flip(x, {0, 1, 1}); }},
      {"Reshape, joined behind", 0,
       [](auto& x, auto&, auto p) { return reshape(x, shape_of({2 * p, 12})); }},
      {"Reshape, all joined", 0,
       [](auto& x, auto&, auto p) { return reshape(x, shape_of({24 * p})); }},
      {"Reshape, split", 0,
       [](auto& x, auto&, auto p) { return reshape(x, shape_of({p, 2, 12})); }},
      {"Reshape, ones before", 2,
       [](auto& x, auto&, auto p) { return reshape(x, shape_of({1, 1, 2 * p, 3, 4})); }},
      {"Reshape of a middle axis", 2,
       [](auto& x, auto&, auto p) {
         return reshape(permute(x, {1, 0, 2}), shape_of({3, 1, p, 2, 4}));
       }},
      {"Expand", 0,
       [](auto& x, auto&, auto p) {
         return expand(reshape(x, shape_of({2 * p, 1, 12})), shape_of({2 * p, 5, 12}));
       }},
      {"Pad off the axis", 0,
       [](auto& x, auto&, auto p) {
         return pad(x, shape_of({0, 1, 0}), shape_of({2 * p, 5, 4}), constant_int(DType::Int32, 7));
       }},
      {"Shrink off the axis", 0,
       [](auto& x, auto&, auto p) {
         return shrink(x, shape_of({0, 1, 0}), shape_of({2 * p, 2, 3}));
       }},
      {"Index before the axis", 0,
       [](auto& x, auto&, auto) { return index(permute(x, {1, 0, 2}), {index_const(2)}); }},
      {"Index by a tensor before the axis", 1,
       [](auto& x, auto& y, auto) {
         const UOp where_at = mod(reshape(y, shape_of({12})), constant_int(DType::Int32, 3));
         return index(permute(x, {1, 0, 2}), {where_at});
       }},
      {"Index by a split tensor", 0,
       [](auto& x, auto& y, auto p) {
         const UOp where_at = mod(reshape(x, shape_of({24 * p})), constant_int(DType::Int32, 3));
         return index(y, {where_at});
       }},
      {"Stack", 1, [](auto& x, auto&, auto) { return stack(std::vector<UOp>{x, add(x, x)}); }},
      {"Bitcast", 0, [](auto& x, auto&, auto) { return bitcast(x, DType::Int64); }},
      {"Reduce off the axis", 0, [](auto& x, auto&, auto) { return reduce(Op::Max, x, {1, 2}); }},
      {"Add", 0, [](auto& x, auto&, auto) { return add(x, x); }},
      {"Add to what each device has", 0, [](auto& x, auto& y, auto) { return mul(y, x); }},
      {"Add, aligned on the right", 1,
       [](auto& x, auto&, auto p) {
         return add(stack(std::vector<UOp>{x, x}), reshape(x, shape_of({2 * p, 3, 4})));
       }},
      {"Add to a constant", 0,
       [](auto& x, auto&, auto) { return add(constant_int(DType::Int32, 1), x); }},
      {"Where", 0,
       [](auto& x, auto& y, auto) { return where(lt(y, x), constant_int(DType::Int32, 0), x); }},
      {"Cast", 0, [](auto& x, auto&, auto) { return cast(x, DType::Float64); }},
      {"markers", 0, [](auto& x, auto&, auto) { return contiguous(detach(x)); }},
      {"Load without a device", 0, [](auto& x, auto&, auto) { return load(x); }},
      {"After", 0,
       [](auto& x, auto&, auto) { return after(x, std::vector<UOp>{store(x, add(x, x))}); }},
      {"GetTuple", 1,
       [](auto& x, auto&, auto) {
         return get_tuple(tuple(std::vector<UOp>{x, permute(x, {1, 0, 2})}), 1);
       }},
  };
  return table;
}

}  // namespace

TEST(placement, spec_amend_22_the_axis_of_every_op_against_a_simulation) {
  std::mt19937_64 random(test_seed());
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const UOp x = split_leaf({4, 3, 4}), y = new_buffer(shape_of({3, 4}), DType::Int32, Device());
    const Array all = random_array(random, {4, 3, 4}), each = random_array(random, {3, 4});
    const UOp value = row.build(x, y, 2);
    ASSERT_EQ(value.axis(), row.axis);
    const Array whole = interpret(value, {{x, all}, {y, each}});
    for (size_t device = 0; device < 2; ++device) {
      const UOp part = new_buffer(shape_of({2, 3, 4}), DType::Int32, both.part(device));
      const UOp of_part = row.build(part, y, 1);
      EXPECT_EQ(of_part.axis(), std::nullopt);
      EXPECT_EQ(of_part.device(), both.part(device));
      EXPECT_EQ(difference(part_of(whole, *row.axis, device, 2),
                           interpret(of_part, {{part, part_of(all, 0, device, 2)}, {y, each}})),
                "")
          << "device " << device << ", seed " << test_seed();
    }
  }
}

TEST(placement, spec_amend_22_what_is_whole_on_every_device) {
  const UOp x = split_leaf({4, 3}, DType::Int32);
  EXPECT_EQ(reduce(Op::Add, x, {0}).axis(), std::nullopt) << "a sum over the devices";
  EXPECT_EQ(reduce(Op::Add, x, {0}).device(), both);
  const UOp gathered = copy_to(permute(x, {1, 0}), Device("CPU:1"));
  EXPECT_EQ(gathered.axis(), std::nullopt);
  EXPECT_EQ(gathered.device().name(), "CPU:1");
  EXPECT_EQ(copy_to(permute(gathered, {1, 0}), both).axis(), 0u)
      << "a copy to several devices splits axis 0";
  EXPECT_EQ(copy_to(x, Device("CPU:2,CPU:0")).device().name(), "CPU:2,CPU");
  EXPECT_EQ(constant(DType::Float32, 1).axis(), std::nullopt);
  // A leaf says how it lies.
  const UOp shape = shape_of({4, 4});
  EXPECT_EQ(new_buffer(shape, DType::Int8, both, 1).axis(), 1u);
  EXPECT_EQ(new_buffer(shape, DType::Int8, both, -1).axis(), std::nullopt);
  EXPECT_EQ(new_buffer(shape, DType::Int8, Device("CPU"), 1).as<BufferArg>().axes, AxisSet(0));
  for (const int32_t axis : {-1, 1}) {
    const UOp leaf = new_buffer(shape, DType::Int8, both, axis);
    EXPECT_EQ(parse(to_text(leaf)), leaf);
    EXPECT_EQ(param_for(3, leaf).axis(), leaf.axis());
    EXPECT_EQ(copy_to(leaf, leaf.node()->placement), leaf);
    EXPECT_EQ(copy_to(permute(leaf, {1, 0}), leaf.node()->placement).axis(), leaf.axis());
  }
  expect_error([&] { (void)new_buffer(shape, DType::Int8, both, 2); }, {"Buffer", "axis 2 of 2"});
  EXPECT_EQ(parse(to_text(permute(x, {1, 0}))).axis(), 1u);
}

// What devices split is a set of axes, though a leaf names one: of two the parts would need a mesh.
TEST(placement, spec_amend_20_the_axes_that_devices_split_are_a_set) {
  const AxisSet none, third = 2;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(AxisSet(-1).empty());
  EXPECT_EQ(none.first(), std::nullopt);
  EXPECT_FALSE(third.empty());
  AxisSet two = third;
  two.insert(0);
  two.insert(2);
  two.insert(-1);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_EQ(two.bits(), 5u);
  EXPECT_EQ(two.first(), 0u);
  EXPECT_FALSE(two == third);
  EXPECT_TRUE(two.contains(0) && two.contains(2));
  EXPECT_FALSE(two.contains(1) || two.contains(-1) || two.contains(AxisSet::limit));
  std::vector<size_t> seen;
  two.each([&](size_t axis) { seen.push_back(axis); });
  EXPECT_EQ(seen, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(two.shifted(1).bits(), 10u);
  EXPECT_EQ(two.shifted(-1).bits(), 2u) << "what lies before the first axis is none";
  EXPECT_EQ(two.moved([](size_t axis) { return axis == 0 ? 7 : -1; }), AxisSet(7));
  EXPECT_EQ(axes_text(third), "axis 2");
  EXPECT_EQ(axes_text(two), "axes 0 and 2");
  EXPECT_EQ(AxisSet(31).first(), 31u);
  expect_error([] { (void)AxisSet(32); }, {"axis 32 cannot be split", "before axis 32"});
  // Placements and leaves hold such a set, and a leaf of two is refused, from a text as well.
  const UOp shape = shape_of({4, 4, 4}), leaf = new_buffer(shape, DType::Int8, both, third);
  EXPECT_EQ(leaf.node()->placement.axes, third);
  EXPECT_EQ(leaf.as<BufferArg>().axes, third);
  EXPECT_EQ(permute(leaf, {2, 0, 1}).node()->placement.axes, AxisSet(0));
  expect_error([&] { (void)new_buffer(shape, DType::Int8, both, two); },
               {"Buffer: the devices CPU,CPU:1 cannot split axes 0 and 2", "along one axis"});
  std::string text = to_text(leaf);
  EXPECT_EQ(parse(text), leaf);
  text.replace(text.find("axis 2"), 6, "axis 0 axis 2");
  expect_error([&] { (void)parse(text); }, {"cannot split axes 0 and 2"});
  expect_error([&] { (void)Tensor::ones({2, 2}).shard("CPU,CPU:1", 2); }, {"axis 2"});
}

TEST(placement, operands_of_one_op_lie_on_one_device) {
  const Tensor a = Tensor::ones({2, 3}).to("CPU:1"), b = Tensor(leaf({3}));
  expect_error([&] { (void)(a + b); },
               {"+ of (2, 3), (3,): operand 1 of", "(3,) is on CPU,", "CPU:1", "to()"});
  expect_error([&] { (void)Tensor::cat({b, b.to("CPU:1")}); }, {"CPU", "CPU:1", "to()"});
  EXPECT_EQ((a + b.to("CPU:1")).device(), "CPU:1");
  EXPECT_EQ((a + Tensor(1.0)).device(), "CPU:1") << "constants lie everywhere";
  EXPECT_EQ(b.to("CPU:0").device(), "CPU");
  expect_error([] { (void)device_runtime("CPU,CPU:1"); },
               {"CPU,CPU:1", "several devices", "one is needed here, such as CPU"});
  // An assignment keeps the target where it is.
  Tensor target = Tensor::zeros({3}).to("CPU:1").realize();
  target.assign(b);
  EXPECT_EQ(target.device(), "CPU:1");
  EXPECT_EQ(difference(array_of(target.realize().uop()), array_of(b.uop())), "");
}

TEST(placement, a_model_trains_alike_on_another_device) {
  auto train = [](const std::string& device) {
    Tensor::manual_seed(7);
    const Tensor x = Tensor::randn({8, 5}, device), y = Tensor::rand({8, 2}, device);
    Tensor w = Tensor::uniform({5, 2}, -1, 1, device).realize();
    w.requires_grad();
    nn::Adam adam({w}, 0.05);
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      (x.dropout(0.5).matmul(w) - y).square().mean().backward();
      adam.clip_grad_norm(1);
      adam.step();
    }
    EXPECT_EQ(w.device(), device);
    return array_of(w.uop());
  };
  EXPECT_EQ(difference(train("CPU"), train("CPU:1")), "");
}

TEST(placement, spec_amend_8_replicated_drops_the_axis_of_equal_copies) {
  std::mt19937_64 random(test_seed());
  const UOp y = new_buffer(shape_of({3, 4}), DType::Int32, Device("CPU"));
  auto rows_of = [&](int64_t n) {
    return expand(reshape(y, shape_of({1, 3, 4})), shape_of({n, 3, 4}));
  };
  const UOp everywhere = replicated(copy_to(rows_of(2), both), 0);
  EXPECT_EQ(everywhere.axis(), std::nullopt);
  EXPECT_EQ(everywhere.device(), both);
  EXPECT_EQ(everywhere.sizes(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(parse(to_text(everywhere)), everywhere);
  const Array values = random_array(random, {3, 4});
  EXPECT_EQ(difference(values, interpret(everywhere, {{y, values}})), "");
  // On one device it is the axis of size 1 that goes.
  const UOp x = leaf({1, 5}, DType::Float32);
  expect_same_everywhere(replicated(add(x, x), 0));
  EXPECT_TRUE(interpret(everywhere, {{y, values}}).valid.empty());
  const UOp padded = pad(x, shape_of({0, 2}), shape_of({1, 9}));  // what is invalid stays so
  expect_same_everywhere(reduce(Op::Mul, replicated(padded, 0), {0}));
  const UOp unequal = split_leaf({2, 3});
  expect_error(
      [&] {
        (void)interpret(replicated(unequal, 0),
                        {{unequal, {DType::Int32, {2, 3}, {1, 2, 3, 1, 2, 4}, {}}}});
      },
      {"Replicated", "copy 1 differs from copy 0 at element 2"});
  expect_error([&] { (void)replicated(copy_to(rows_of(4), both), 0); },
               {"Replicated", "axis 0", "(4, 3, 4)", "must have size 2"});
  expect_error([&] { (void)replicated(permute(copy_to(rows_of(2), both), {1, 2, 0}), 3); },
               {"Replicated", "axes"});
  expect_error([&] { (void)replicated(split_leaf({4, 2}), 1); },
               {"Replicated", "axis 1", "is not the one", "CPU,CPU:1"});
}

TEST(placement, spec_amend_22_what_would_tear_a_split_value_is_refused) {
  const UOp x = split_leaf({4, 6});
  const UOp turned = permute(x, {1, 0});
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"Flip", [&] { (void)flip(x, {1, 0}); }},
      {"Shrink", [&] { (void)shrink(x, shape_of({0, 0}), shape_of({2, 6})); }},
      {"Shrink", [&] { (void)shrink(x, shape_of({2, 0}), shape_of({2, 6})); }},
      {"Pad", [&] { (void)pad(x, shape_of({0, 0}), shape_of({6, 6})); }},
      {"Index", [&] { (void)index(x, {index_const(1)}); }},
      {"Reshape", [&] { (void)reshape(turned, shape_of({3, 8})); }},
      {"Reshape", [&] { (void)reshape(turned, shape_of({24})); }},
      {"Bitcast", [&] { (void)bitcast(split_leaf({2}), DType::Int64); }},
      {"Stack",
       [&] {
         (void)stack(std::vector<UOp>{split_leaf({4, 4}), permute(split_leaf({4, 4}), {1, 0})});
       }},
      {"Add", [&] { (void)add(split_leaf({4, 4}), permute(split_leaf({4, 4}), {1, 0})); }},
      {"Store", [&] { (void)store(split_leaf({6, 4}), turned); }},
  };
  for (const auto& [op, act] : cases)
    expect_error(act, {op + ":", "split", "copy it to one device first, such as CPU"});
  expect_error([&] { (void)split_leaf({3, 2}); },
               {"Buffer", "axis 0 of size 3", "2 devices CPU,CPU:1", "pad it to a multiple of 2"});
  expect_error([&] { (void)split_leaf({}); }, {"Buffer", "scalar", "(2,)", "Replicated"});
}

}  // namespace koine::test
