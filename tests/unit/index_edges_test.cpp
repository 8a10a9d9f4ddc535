// Index by what is out of range, in every index dtype: it reads 0 and touches nothing (B7, C28).
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {

// A Stack of nothing has no place in range, known or not.
TEST(index_edges, an_empty_stack_gives_0_everywhere) {
  const UOp nothing = stack(std::vector<UOp>{}), places = leaf({3}, DType::UInt16);
  expect_same_everywhere(cast(index(nothing, {places}), DType::Int32));
  expect_same_everywhere(cast(index(nothing, {index_const(0)}), DType::Int32));
}

TEST(index_edges, spec_B7_spec_amend_28_every_index_dtype_reads_0_out_of_range) {
  const UOp x = Tensor::from<float>({1, 2, 3, 4}).uop();
  for (const DType d : stored_dtypes()) {
    if (!is_integer(d)) continue;
    const IntegerRange range = integer_range(d);
    std::vector<Bits> at{0,
                         3,
                         4,
                         int_to_bits(d, static_cast<int64_t>(range.high)),
                         int_to_bits(d, static_cast<int64_t>(range.low)),
                         int_to_bits(d, -1),
                         int_to_bits(d, INT64_MIN),
                         int_to_bits(d, INT64_MIN + 1)};
    std::vector<std::byte> bytes(at.size() * 8);
    std::vector<float> want;
    for (size_t i = 0; i < at.size(); ++i) {
      write_element(bytes.data(), d, static_cast<int64_t>(i), at[i]);
      const bool inside = at[i] < 4;  // a negative one has its high bits set
      want.push_back(inside ? static_cast<float>(at[i] + 1) : 0.0F);
    }
    const UOp places =
        buffer_from_host(shape_of({static_cast<int64_t>(at.size())}), d, "CPU", bytes.data());
    const UOp read = index(x, {places});
    EXPECT_EQ(Tensor(read).tolist<float>(), want) << dtype_name(d);
    expect_same_everywhere(read);
    // One that is computed in the kernel, two on one tensor, and a lone position of shape ().
    expect_same_everywhere(index(x, {add(places, constant_int(d, 1))}));
    expect_same_everywhere(index(reshape(x, shape_of({2, 2})), {places, places}));
    for (int64_t i = 0; i < static_cast<int64_t>(at.size()); ++i)
      EXPECT_EQ(Tensor(index(x, {index(places, {index_const(i)})})).item(),
                want[static_cast<size_t>(i)]);
  }
}

TEST(index_edges, spec_P5_an_index_of_uint64_may_be_negative) {
  const UOp u = param(0, shape_of({}), DType::UInt64);
  EXPECT_LT(static_cast<int64_t>(cast(u, DType::Index).bounds().low), 0);
  const UOp small = bit_and(u, constant_int(DType::UInt64, 7));
  EXPECT_EQ(static_cast<int64_t>(cast(small, DType::Index).bounds().low), 0);
  EXPECT_EQ(static_cast<int64_t>(cast(small, DType::Index).bounds().high), 7);
}

// KOINE_INDEX says what becomes of a position that is out of range, on either side: nothing is
// written, the nearest place is, or an error leaves all as it was.
TEST(index_edges, spec_amend_28_a_store_out_of_range_follows_the_mode) {
  const Tensor at = Tensor::from<int64_t>({4, -5, 1, 9}),
               rows = Tensor::from<float>({10, 20, 30, 40});
  auto written = [&](IndexMode mode, bool strict) {
    Options o = strict ? strict_options() : options();
    o.index = mode;
    const OptionScope scope(o);
    Tensor x = Tensor::from<float>({1, 2, 3, 4});
    x.setitem({at}, rows);
    return x.tolist<float>();
  };
  for (const bool strict : {false, true}) {
    EXPECT_EQ(written(IndexMode::Fill, strict), (std::vector<float>{1, 30, 3, 4}));
    EXPECT_EQ(written(IndexMode::Clamp, strict), (std::vector<float>{20, 30, 3, 40}));
    expect_error([&] { (void)written(IndexMode::Raise, strict); }, {"position 4", "size 4"});
    Options o = strict ? strict_options() : options();
    o.index = IndexMode::Fill;
    const OptionScope scope(o);
    Tensor m = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
    m.setitem({Tensor::from<int64_t>({2, 0, -3}), Tensor::from<int64_t>({0, 1, 1})}, Tensor(9.0));
    EXPECT_EQ(m.tolist<float>(), (std::vector<float>{1, 9, 3, 4}));
  }
}

TEST(index_edges, spec_amend_28_positions_of_uint64_lie_beyond_the_end) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}),
               at = Tensor::from<uint64_t>({~uint64_t{0}, uint64_t{1} << 63, 3, 0, 4});
  expect_error([&] { (void)x.index_select(0, at).tolist<float>(); },
               {"position 9223372036854775807", "element 0", "size 4"});
  for (const IndexMode mode : {IndexMode::Clamp, IndexMode::Fill}) {
    Options o = options();
    o.index = mode;
    const OptionScope scope(o);
    const float far = mode == IndexMode::Clamp ? 4 : 0;
    EXPECT_EQ(x.index_select(0, at).tolist<float>(), (std::vector<float>{far, far, 4, 1, far}));
    expect_same_everywhere(x.index_select(0, at).uop());
  }
  const Tensor near = Tensor::from<uint64_t>({3, 0});
  EXPECT_EQ(x.index_select(0, near).tolist<float>(), (std::vector<float>{4, 1}));
}

}  // namespace koine::test
