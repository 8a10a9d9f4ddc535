// What is launched for kernels of typical shapes on a GPU: groups, threads, loads, and that threads
// beside each other read what lies beside each other. The values come from the interpreter of
// linear programs, which reports races, and from CUDA's text.
#include <algorithm>
#include <cmath>
#include <set>

#include "backends.hpp"
#include "c_text.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/device.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine::test {
namespace {

Tensor input(std::vector<int64_t> sizes, DType dtype = DType::Float32) {
  return Tensor(new_buffer(shape_of(sizes), dtype, Device("CPU")));
}

struct Launch {
  int64_t groups, threads;
  bool operator==(const Launch&) const = default;
};
[[maybe_unused]] std::ostream& operator<<(std::ostream& out, const Launch& l) {
  return out << l.groups << " groups of " << l.threads;
}

std::vector<UOp> linears_of(const Tensor& value, const Target& target) {
  Options o = options();
  o.noopt = false;
  o.strict = target.strict;
  const OptionScope scope(o);
  std::vector<UOp> out;
  for (const Kernel& k : kernels_of(host_program({value.uop()}, options_for(target))))
    out.push_back(lower_kernel(k.ast, target).linear);
  return out;
}

int64_t product_of(const std::array<UOp, 3>& sizes) {
  int64_t out = 1;
  for (const UOp& n : sizes) out *= n ? const_int(n) : 1;
  return out;
}

std::vector<Launch> launches(const Tensor& value, bool strict = false) {
  std::vector<Launch> out;
  for (const UOp& linear : linears_of(value, text_target("cuda", strict))) {
    const Signature s = signature_of(linear);
    out.push_back({product_of(s.grid), product_of(s.group)});
  }
  return out;
}

// How often the elements of inputs are loaded, by all threads: each once is 1.
double loads_an_element(const UOp& linear, int64_t elements) {
  const Signature s = signature_of(linear);
  const auto threads = static_cast<double>(product_of(s.grid) * product_of(s.group));
  double rounds = 1, loads = 0;
  for (const UOp& u : linear.src()) {
    if (u.is(Op::Range)) rounds *= static_cast<double>(const_int(u.src(0)));
    if (u.is(Op::End))
      for (const UOp& r : u.src().subspan(1))
        if (r.is(Op::Range)) rounds /= static_cast<double>(const_int(r.src(0)));
    if (u.is(Op::Load) && accessed_buffer(u).is(Op::Param))
      loads += rounds * threads * static_cast<double>(lane_count(u));
  }
  return loads / static_cast<double>(elements);
}

// Elements of a buffer that one Load, or one Store, takes.
int64_t widest(Op access, const UOp& linear) {
  int64_t out = 0;
  for (const UOp& u : linear.src())
    if (u.is(access) && accessed_buffer(u).is(Op::Param))
      out = std::max(out, lane_count(access == Op::Store ? u.src(1) : u));
  return out;
}
int64_t widest_load(const UOp& linear) { return widest(Op::Load, linear); }

// Whether what a warp's threads load at once fills all of the 32-byte sectors of memory that it
// lies in, or is one element.
bool is_coalesced(const UOp& linear) {
  constexpr int64_t warp = 32, sector = 32;
  const Signature s = signature_of(linear);
  const int64_t beside = const_int(s.group[0]);
  return std::ranges::all_of(linear.src(), [&](const UOp& u) {
    if (!u.is(Op::Load) || !accessed_buffer(u).is(Op::Param)) return true;
    const UOp& address = strip_after(u.src(0));
    const Contiguous run =
        lane_count(u) == 1 ? Contiguous{true, address.src(1)} : contiguous_access(address);
    std::set<int64_t> elements, sectors;
    for (int64_t t = 0; run.yes && t < warp; ++t) {
      Substitution numbers;
      for (const UOp& n : toposort(run.base)) {
        const std::string name = n.is(Op::Special) ? n.as<std::string>() : "";
        const int64_t at = name == "lidx0" ? t % beside : name == "lidx1" ? t / beside : 0;
        if (n.is(Op::Special) || n.is(Op::Range)) numbers.emplace(n, index_const(at));
      }
      const UOp begin = simplify_index(substitute(run.base, numbers));
      if (!begin.is(Op::Const)) return false;
      for (int64_t k = 0; k < lane_count(u); ++k) {
        elements.insert(const_int(begin) + k);
        sectors.insert((const_int(begin) + k) * item_size(u.dtype()) / sector);
      }
    }
    const auto count = [](const auto& set) { return static_cast<int64_t>(set.size()); };
    return count(elements) == 1 ||
           count(elements) * item_size(u.dtype()) == count(sectors) * sector;
  });
}

}  // namespace

TEST(group_shapes, a_sum_of_all_keeps_the_machine_busy) {
  const Tensor all = input({1 << 26}).sum();
  EXPECT_EQ(launches(all), (std::vector<Launch>{{1024, 256}, {1, 32}}));
  const std::vector<UOp> linears = linears_of(all, text_target("cuda", false));
  EXPECT_EQ(loads_an_element(linears[0], 1 << 26), 1);
  EXPECT_TRUE(is_coalesced(linears[0]));
  EXPECT_TRUE(is_coalesced(linears[1]));
  // A short one is one group's, and a strict one goes on in order.
  EXPECT_EQ(launches(input({4096}).sum()), (std::vector<Launch>{{1, 256}}));
  EXPECT_EQ(launches(input({1 << 26}).sum(), true), (std::vector<Launch>{{1, 1}}));
}

TEST(group_shapes, elements_are_taken_four_at_once) {
  const Tensor x = input({1 << 24}), y = input({1 << 24});
  const UOp linear = linears_of(x + y, text_target("cuda", false))[0];
  EXPECT_EQ(launches(x + y), (std::vector<Launch>{{1 << 15, 128}}));
  EXPECT_EQ(widest_load(linear), 4);
  EXPECT_TRUE(is_coalesced(linear));
  const std::string text = render("cuda", "k", linear, false);
  EXPECT_NE(text.find("load_16("), std::string::npos) << text;
  EXPECT_NE(text.find("store_16("), std::string::npos) << text;
  // Fewer leave processors idle, and languages without such accesses take them one by one.
  EXPECT_EQ(launches(input({1 << 16}) * Tensor(2.0)), (std::vector<Launch>{{512, 128}}));
  EXPECT_EQ(widest_load(linears_of(x + y, text_target("metal", false))[0]), 1);
  // A place that is no multiple is read element by element.
  const UOp odd = linears_of(input({(1 << 24) + 1}).shrink({{1, (1 << 24) + 1}}) * Tensor(2.0),
                             text_target("cuda", false))[0];
  EXPECT_EQ(render("cuda", "k", odd, false).find("load_16("), std::string::npos);
}

TEST(group_shapes, what_is_read_backwards_is_read_four_at_once) {
  const Target target = text_target("cuda", false);
  const Tensor value = input({4096}).flip({0}) * Tensor(2.0);
  const UOp ast = kernels_of(host_program({value.uop()}, options_for(target)))[0].ast;
  const std::vector<Opt> four{{OptOp::Split, 0, 4, AxisType::Upcast}};
  const UOp linear = lower_kernel(ast, target, {}, &four).linear;
  EXPECT_EQ(widest_load(linear), 4);
  EXPECT_EQ(widest(Op::Store, linear), 4);
}

TEST(group_shapes, rows_are_folded_by_groups_or_by_warps) {
  for (const auto& [rows, columns, launch] :
       {std::tuple<int64_t, int64_t, Launch>{16384, 4096, {16384, 256}},
        {1 << 18, 256, {1 << 15, 256}}}) {
    const Tensor x = input({rows, columns});
    for (const Tensor& value : {x.sum({1}), x.max({1}), x.softmax(1), x.layernorm()}) {
      EXPECT_EQ(launches(value), (std::vector<Launch>{launch}));
      EXPECT_TRUE(is_coalesced(linears_of(value, text_target("cuda", false))[0]));
    }
    EXPECT_EQ(
        loads_an_element(linears_of(x.sum({1}), text_target("cuda", false))[0], rows * columns), 1);
    // Once for the maximum, and once for the row of exponentials that all threads share.
    EXPECT_EQ(
        loads_an_element(linears_of(x.softmax(1), text_target("cuda", false))[0], rows * columns),
        2);
  }
}

TEST(group_shapes, columns_are_folded_in_blocks_of_rows) {
  const Tensor sums = input({16384, 4096}).sum({0});
  EXPECT_EQ(launches(sums), (std::vector<Launch>{{1024, 256}, {32, 128}}));
  for (const UOp& linear : linears_of(sums, text_target("cuda", false)))
    EXPECT_TRUE(is_coalesced(linear));
  EXPECT_EQ(loads_an_element(linears_of(sums, text_target("cuda", false))[0], 16384 * 4096), 1);
}

TEST(group_shapes, products_have_tiles_in_registers) {
  // Each element of A is loaded once for 128 columns, and each of B for 128 rows: threads take them
  // from LOCAL memory.
  const Tensor large = input({4096, 4096}).matmul(input({4096, 4096}));
  EXPECT_EQ(launches(large), (std::vector<Launch>{{1024, 256}}));
  const UOp linear = linears_of(large, text_target("cuda", false))[0];
  EXPECT_EQ(loads_an_element(linear, 4096 * 4096), 2 * 4096 / 128);
  // Four neighbours of A and of B at once, and of what is stored.
  EXPECT_EQ(widest_load(linear), 4);
  EXPECT_EQ(widest(Op::Store, linear), 4);
  EXPECT_TRUE(is_coalesced(linear));
  // Where nothing lies beside each other along columns, threads have each a sixteenth of them.
  const Tensor rows_of_both = input({4096, 4096}).matmul(input({4096, 4096}).permute({1, 0}));
  EXPECT_EQ(widest(Op::Store, linears_of(rows_of_both, text_target("cuda", false))[0]), 1);
  // Smaller tiles where large ones would leave multiprocessors idle.
  EXPECT_EQ(launches(input({1024, 1024}).matmul(input({1024, 1024}))),
            (std::vector<Launch>{{256, 256}}));
}

TEST(group_shapes, products_of_narrow_floats_are_on_tensor_cores) {
  for (const DType d : {DType::Float16, DType::BFloat16}) {
    const Tensor product = input({512, 256}, d).matmul(input({256, 1024}, d));
    const std::vector<UOp> linears = linears_of(product, text_target("cuda", false));
    ASSERT_EQ(linears.size(), 1U);
    const auto cores = [](const UOp& linear) {
      return std::ranges::count_if(linear.src(), [](const UOp& u) { return u.is(Op::Wmma); });
    };
    EXPECT_GT(cores(linears[0]), 0);
    EXPECT_EQ(product_of(signature_of(linears[0]).group), 128);
    EXPECT_EQ(widest_load(linears[0]), 8);
    EXPECT_TRUE(is_coalesced(linears[0]));
    // Tiles of 64 x 64; the second factor is twice as large.
    EXPECT_EQ(loads_an_element(linears[0], 512 * 256), 1024 / 64 + 512 / 64 * 2);
    // Strict programs round as the interpreter does, and HIP's text has no tensor cores.
    for (const Target& other : {text_target("cuda", true), text_target("hip", false)})
      for (const UOp& linear : linears_of(product, other)) EXPECT_EQ(cores(linear), 0);
    // Nor has a product of few rows.
    for (const UOp& linear :
         linears_of(input({8, 256}, d).matmul(input({256, 1024}, d)), text_target("cuda", false)))
      EXPECT_EQ(cores(linear), 0);
  }
}

TEST(group_shapes, values_are_the_interpreters) {
  CText text("cuda"), hip("hip"), metal("metal");
  Options o = options();
  o.device = "SIMT";
  uint64_t salt = 0;
  const auto some = [&](std::initializer_list<int64_t> sizes, DType d = DType::Float32) {
    return Tensor(leaf(sizes, d, ++salt));
  };
  for (const Tensor& value :
       {some({70000}).sum(),
        some({3, 40000}).sum({1}),
        some({3000, 40}).sum({0}),
        some({2, 3000, 33}).sum({1}),
        some({5, 4096}).sum({1}),
        some({5, 2500}).max({1}),
        some({24, 100}).sum({1}),
        some({24, 64}).softmax(1),
        some({7, 100}).softmax(1),
        some({3, 2048}).softmax(1),
        some({2, 2300}).layernorm(),
        some({16, 96}).layernorm(),
        some({6, 130}).var({1}),
        some({6, 130}) - some({6, 130}).mean({1}, true),
        some({64, 48}).matmul(some({48, 128})),
        some({33, 48}).matmul(some({48, 70})),
        some({64, 64}).matmul(some({64, 48}).softmax(1)),
        some({5, 130}).argmax(1),
        some({64, 48}).matmul(some({80, 48}).permute({1, 0})),
        some({32, 32}, DType::Float16).matmul(some({32, 32}, DType::Float16)),
        some({64, 48}, DType::BFloat16).matmul(some({48, 72}, DType::BFloat16)),
        some({50, 40}, DType::Float16).matmul(some({40, 70}, DType::Float16))}) {
    const UOp graph = value.uop();
    text.add(graph);
    for (CText* t : {&hip, &metal})
      if (!is_sanitized()) t->add(graph);  // the same compiler
    const BoundedArray expected = interpret_bounded(graph, bindings_of(graph));
    const OptionScope scope(o);
    EXPECT_EQ(difference(expected, run_on(graph, "SIMT")), "") << shape_text(graph);
  }
  for (CText* t : {&text, &hip, &metal}) t->check();
}

// NaN, infinities and -0 in rows that threads share, and in parts that they fold.
TEST(group_shapes, special_values_are_kept) {
  Options o = options();
  o.device = "SIMT";
  const OptionScope scope(o);
  for (const double special : {std::nan(""), HUGE_VAL, -HUGE_VAL, -0.0}) {
    const Tensor row = Tensor::full({4, 96}, -0.0),
                 x = Tensor::where(Tensor::arange(96) == 77, Tensor(special), row).realize();
    for (const Tensor& value : {x.sum({1}), x.max({1}), x.softmax(1), x.sum({0})}) {
      const UOp graph = value.uop();
      EXPECT_EQ(difference(interpret_bounded(graph, bindings_of(graph)), run_on(graph, "SIMT")), "")
          << special;
    }
  }
}

}  // namespace koine::test
