// What the device CL computes, beside the interpreter and the CPU. A driver takes 50 ms and more
// for a kernel, so the values of a test are computed in one request, whose kernels are one program.
#include "backends.hpp"
#include "by_hand.hpp"
#include "check.hpp"
#include "cl_text.hpp"
#include "graphs.hpp"
#include "guide.hpp"
#include "koine/engine/engine.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/runtime/cl/hardware.hpp"
#include "koine/runtime/device.hpp"
#include "products.hpp"

namespace koine::test {
namespace {

Options on_cl(bool strict, const std::string& device = "CL") {
  Options o = options();
  o.device = device;
  o.strict = strict;
  return o;
}

// What a value asks to be computed on a device, its leaves included.
UOp moved(const UOp& value, const std::string& device) {
  Substitution leaves;
  for (const UOp& u : toposort(value))
    if (u.is(Op::Buffer) && memory_of(u))
      leaves.emplace(u,
                     buffer_from_host(u.shape(), u.dtype(), device, bytes_of(array_of(u)).data()));
  const UOp local = leaves.empty() ? value : substitute(value, leaves);
  const UOp root = local.is(Op::Buffer) ? contiguous(local) : local;
  return UOp::make(Op::Contiguous, {root}, MarkArg{Mark::Copies});
}

// Computes the values in one request, in one mode; says what differs from the interpreter.
std::vector<std::string> differences(const std::vector<UOp>& values, bool strict,
                                     const std::string& device = "CL") {
  const OptionScope scope(on_cl(strict, device));
  std::vector<BoundedArray> expected;
  std::vector<UOp> roots;
  for (const UOp& v : values) {
    const Bindings bindings = bindings_of(v);
    expected.push_back(strict ? BoundedArray{interpret(v, bindings), {}}
                              : interpret_bounded(v, bindings));
    roots.push_back(moved(v, device));
  }
  const std::vector<UOp> got = realize(roots);
  std::vector<std::string> out;
  for (size_t i = 0; i < values.size(); ++i)
    out.push_back(difference(expected[i], array_of(got[i])));
  return out;
}

void expect_same_on_cl(const std::vector<Tensor>& tensors) {
  std::vector<UOp> values;
  for (const Tensor& t : tensors) values.push_back(t.uop());
  for (const bool strict : {true, false}) {
    const auto found = differences(values, strict);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(found[i], "") << (strict ? "strict" : "default")
                              << ", KOINE_TEST_SEED=" << test_seed() << ", of\n"
                              << to_text(values[i]);
  }
}

}  // namespace

TEST(cl, spec_B15_copies_there_and_back_keep_every_bit) {
  const OptionScope scope(on_cl(true));
  const Tensor t = Tensor::arange(6).reshape({2, 3}).clone();
  EXPECT_EQ(t.device(), "CL");
  EXPECT_EQ(t.tolist<int32_t>(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Tensor::full({3}, 2.5).clone().tolist<float>(), std::vector<float>(3, 2.5f));
  const Tensor host = Tensor::from(std::vector<float>{1, -0.0f, 3}, {3}, "CPU");
  std::vector<uint32_t> bits;
  for (uint32_t i = 0; i < 257; ++i) bits.push_back(i * 0x01010193u ^ (i % 3 ? 0x7f800001u : 0));
  const Tensor any = Tensor::from_bytes(bits.data(), {257}, DType::Float32);
  EXPECT_EQ(any.to("CL").to("CPU").bytes(), any.bytes());
  EXPECT_EQ(host.to("CL").to("CPU").to("CL:1").to("CL").tolist<float>(), host.tolist<float>());
  EXPECT_EQ(Tensor::zeros({0, 3}).clone().tolist<float>().size(), 0u);
}

TEST(cl, spec_B2_elementwise_reduce_matmul_softmax_and_convolution) {
  const Tensor a = small({9, 17}, 1), b = small({9, 17}, 2), w = small({17, 5}, 3);
  const Tensor image = small({1, 2, 7, 7}, 4), filter = small({3, 2, 3, 3}, 5);
  expect_same_on_cl({a * b + a / (b * b + 1), Tensor::where(a < b, a, -b), a.sqrt(), a.exp(),
                     a.sin(), a.sum(1), a.max(0), a.sum(), a.matmul(w), a.softmax(1),
                     image.conv2d(filter), a.permute({1, 0}).reshape({153}).flip({0}), a.cumsum(1),
                     a.argmax(1)});
}

TEST(cl, spec_D2_spec_amend_41_every_dtype_is_loaded_computed_and_stored) {
  std::vector<UOp> values;
  for (const DType d : stored_dtypes()) {
    const UOp x = leaf({37}, d, 1), y = leaf({37}, d, 2);
    values.push_back(maximum(x, y));
    values.push_back(cast(x, DType::Float32));
    values.push_back(cast(leaf({37}, DType::Float32, 3), d));
    if (d == DType::Bool) continue;
    values.push_back(mul(add(x, y), y));
    if (is_integer(d)) values.push_back(add(idiv(x, y), mod(x, y)));
    if (is_float(d)) values.push_back(fdiv(x, y));
  }
  for (const bool strict : {true, false}) {
    const auto found = differences(values, strict);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(found[i], "") << "strict " << strict << ", of\n" << to_text(values[i]);
  }
}

TEST(cl, gather_scatter_and_random_numbers) {
  const Tensor x = small({6, 5}, 1);
  const Tensor rows = Tensor::from(std::vector<int64_t>{5, 0, 3, 3}, {4});
  const Tensor at = Tensor::from(std::vector<int64_t>{1, 0, 4, 2}, {4, 1});
  expect_same_on_cl(
      {x[rows], x[rows].gather(1, at), Tensor::zeros({4, 5}).scatter(1, at, small({4, 1}, 2))});
  const auto drawn = [&](const std::string& device) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    Tensor::manual_seed(3);
    return Tensor::rand({100}).tolist<float>();
  };
  EXPECT_EQ(drawn("CL"), drawn("CPU"));
}

// The position out of range is found on the device, and named on the host.
TEST(cl, a_position_out_of_range_is_an_error) {
  const OptionScope scope(on_cl(false));
  const Tensor x = small({6, 5}, 1).to("CL");
  const Tensor rows = Tensor::from(std::vector<int64_t>{5, 6}, {2}, "CL");
  expect_error([&] { (void)x[rows].tolist<float>(); }, {"6", "out of range"});
}

TEST(cl, symbolic_sizes_are_arguments_of_a_launch) {
  const OptionScope scope(on_cl(true));
  const Variable n("n", 1, 40);
  const Tensor x = Tensor::arange(40).to_float().clone();
  for (const int64_t k : {1, 7, 40})
    EXPECT_EQ((x[Slice{{}, n.bind(k)}].sum().item()), static_cast<double>(k * (k - 1) / 2));
}

// Rows of a matrix are enough work for threads, which are work items.
TEST(cl, threads_are_work_items) {
  const Tensor a = small({256, 256}, 1), b = small({256, 256}, 2);
  const OptionScope scope(on_cl(false));
  const Tensor product = a.to("CL").matmul(b.to("CL")).clone();
  const auto got = product.tolist<float>(), x = a.tolist<float>(), y = b.tolist<float>();
  for (size_t i = 0; i < 256; i += 51)
    for (size_t j = 0; j < 256; j += 37) {
      double sum = 0;
      for (size_t k = 0; k < 256; ++k) sum += double{x[i * 256 + k]} * y[k * 256 + j];
      EXPECT_NEAR(got[i * 256 + j], sum, 1e-3);
    }
}

TEST(cl, a_graph_over_cpu_and_cl) {
  const Tensor a = small({8, 8}, 1), b = small({8, 8}, 2);
  const auto expected = ((a.matmul(b) + 1).exp() * a).tolist<float>();
  const Tensor there = a.to("CL").matmul(b.to("CL")) + 1;
  const auto got = (there.to("CPU").exp() * a).tolist<float>();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-3f * std::fabs(expected[i]) + 1e-6f);
}

TEST(cl, a_tensor_split_over_cpu_and_cl) {
  const Tensor x = small({8, 6}, 1);
  const auto whole = x.tolist<float>();
  for (const char* devices : {"CPU,CL", "CL,CL:1", "CL,CPU,CL:1,CPU:1"}) {
    SCOPED_TRACE(devices);
    const Tensor parts = x.shard(devices, 0);
    EXPECT_EQ(parts.tolist<float>(), whole);
    EXPECT_EQ((parts * 2).tolist<float>(), (x * 2).tolist<float>());
    const auto sum = parts.sum(0).tolist<float>(), expected = x.sum(0).tolist<float>();
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-4);
  }
}

// Training steps on CL give the losses of the CPU.
TEST(cl, a_captured_training_step) {
  const auto losses = [](const std::string& device) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    const Tensor x = small({16, 6}, 1).to(device), y = small({16, 1}, 2).to(device);
    Tensor w = small({6, 1}, 3).to(device).clone().requires_grad();
    nn::SGD optimizer({w}, 0.05);
    std::vector<double> out;
    for (int step = 0; step < 5; ++step) {
      const Tensor error = x.matmul(w) - y;
      const Tensor loss = (error * error).mean();
      loss.backward();
      optimizer.step();
      out.push_back(loss.item());
      optimizer.zero_grad();
    }
    return out;
  };
  const auto cl = losses("CL"), cpu = losses("CPU");
  for (size_t i = 0; i < cl.size(); ++i) EXPECT_NEAR(cl[i], cpu[i], 1e-5);
  EXPECT_LT(cl.back(), cl.front());
}

// Random graphs, many in one request; strict and default mode in turn.
void expect_random_graphs(int64_t cases, const std::string& device) {
  const int64_t batch = std::min<int64_t>(cases, 40);
  for (int64_t begin = 0; begin < cases; begin += batch) {
    std::vector<UOp> values;
    for (int64_t i = begin; i < std::min(cases, begin + batch); ++i) {
      std::mt19937_64 random(test_seed() + static_cast<uint64_t>(i));
      values.push_back(random_graph(random));
    }
    std::vector<std::string> found;
    const bool strict = begin / batch % 2 == 0;
    try {
      found = differences(values, strict, device);
    } catch (const std::exception&) {  // which of them?
      for (const UOp& v : values) try {
          found.push_back(differences({v}, strict, device)[0]);
        } catch (const std::exception& e) {
          found.emplace_back(e.what());
        }
    }
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(found[i], "") << (strict ? "strict" : "default") << ", KOINE_TEST_SEED="
                              << test_seed() + static_cast<uint64_t>(begin) + i
                              << " KOINE_TEST_CASES=1, of\n"
                              << to_text(values[i]);
  }
}

// KOINE_TEST_CASES=10000 by hand.
TEST(cl, random_graphs_agree_with_the_interpreter) { expect_random_graphs(test_cases(200), "CL"); }

TEST(cl, groups_of_work_items_agree_with_the_interpreter) {
  const std::string device = groups_device();
  EXPECT_TRUE(device_runtime(device).target().groups);
  const UOp rows = small({256, 64}, 1).sum(1).uop();
  const OptionScope scope(on_cl(false, device));
  EXPECT_NE(device_runtime(device)
                .compile(lower_kernel(schedule({rows})[0].ast, device_runtime(device).target()))
                ->source()
                .find("get_local_id"),
            std::string::npos);
  std::vector<UOp> values{rows, small({70, 33}, 2).softmax(1).uop(),
                          small({48, 40}, 3).matmul(small({40, 56}, 4)).uop()};
  for (const bool strict : {true, false})
    for (const std::string& found : differences(values, strict, device)) EXPECT_EQ(found, "");
  expect_random_graphs(test_cases(40), device);
}

// A value as one kernel, also where a request would take a long sum apart.
Callified as_one_program(const UOp& value) {
  return callify({value}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
}
Kernel one_kernel(const Callified& program) {
  const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
  EXPECT_EQ(kernels.size(), 1u);
  return kernels.at(0);
}

// What the only kernel of a value gives with each list of opts, on a device; all are one program.
std::vector<Array> with_opts(const UOp& value, const std::vector<std::vector<Opt>>& lists,
                             const std::string& name) {
  DeviceRuntime& device = device_runtime(name);
  const Callified program = as_one_program(value);
  const Kernel kernel = one_kernel(program);
  std::vector<LoweredKernel> lowered;
  for (const std::vector<Opt>& opts : lists)
    lowered.push_back(lower_kernel(kernel.ast, device.target(), {}, &opts));
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<std::byte*> addresses;
  std::vector<int64_t> sizes;
  for (const UOp& b : kernel.buffers) {
    const UOp& argument = program.arguments[static_cast<size_t>(b.as<BufferArg>().slot)];
    const Array contents = array_of(argument);
    const auto bytes = static_cast<int64_t>(contents.data.size()) * item_size(contents.dtype);
    memory.push_back(device.allocate(bytes));
    memory.back()->copy_in(bytes_of(contents).data(), 0, bytes);
    addresses.push_back(memory.back()->address());
    sizes.push_back(bytes);
  }
  std::vector<Array> out;
  for (const auto& compiled : device.compiler().make(lowered)) {
    compiled->run({addresses, sizes, {}});
    Array result{value.dtype(), value.sizes(), {}, {}};
    std::vector<std::byte> bytes(static_cast<size_t>(sizes[0]) + 8);
    memory[0]->copy_out(bytes.data(), 0, sizes[0]);
    for (int64_t i = 0; i < result.numel(); ++i)
      result.data.push_back(read_element(bytes.data(), value.dtype(), i));
    out.push_back(result);
  }
  ran_on("CL");
  return out;
}

// 2^20 elements, 256 threads of a group: they meet at one barrier, in LOCAL memory.
TEST(cl, spec_O1f_a_group_of_256_sums_2_to_the_20) {
  const std::string device = groups_device();
  const UOp x = leaf({1 << 20}, DType::Int32, 3), sum = reduce(Op::Add, x, {0});
  const std::vector<Opt> opts{{OptOp::Split, 0, 256, AxisType::GroupReduce, false}};
  const LoweredKernel k =
      lower_kernel(one_kernel(as_one_program(sum)).ast, device_runtime(device).target(), {}, &opts);
  const std::string text = device_runtime(device).compile(k)->source();
  const size_t barrier = text.rfind("barrier(");
  EXPECT_NE(text.rfind("__local int local0[256]"), std::string::npos) << text;
  EXPECT_EQ(text.find("barrier("), barrier) << text;
  EXPECT_EQ(difference(interpret(sum, bindings_of(sum)), with_opts(sum, {opts}, device)[0]), "");
}

// The guide's kernel of ten threads, by hand.
TEST(cl, spec_H2_spec_H8_a_kernel_by_hand_has_threads) {
  for (const std::string& device : {std::string("CL"), groups_device()}) {
    const auto program = compat::compile(addition_graph(true), "tester", device);
    EXPECT_EQ(program->source().find("get_group_id(0)") != std::string::npos, device != "CL");
    std::vector<std::shared_ptr<Memory>> memory;
    std::vector<std::byte*> addresses;
    for (int32_t k = 0; k < 3; ++k) {
      std::vector<int32_t> data(10);
      for (int32_t i = 0; i < 10; ++i) data[static_cast<size_t>(i)] = k * i * i - i;
      memory.push_back(device_runtime(device).allocate(40));
      memory.back()->copy_in(data.data(), 0, 40);
      addresses.push_back(memory.back()->address());
    }
    const std::vector<int64_t> sizes(3, 40);
    program->run({addresses, sizes, {}});
    std::vector<int32_t> got(10);
    memory[0]->copy_out(got.data(), 0, 40);
    for (int32_t i = 0; i < 10; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], 3 * i * i - 2 * i);
  }
  ran_on("CL");
}

// A tensor core that other instructions compute, one work item alone and in groups.
TEST(cl, spec_O6_spec_X2_tensor_cores_in_opencl) {
  const Gemm g{32, 48, 32, DType::Float16, DType::Float16, DType::Float32, FactorKind::Any};
  for (const auto& [device, strict] :
       {std::pair(std::string("CL"), true), std::pair(groups_device(), false)}) {
    const OptionScope scope(on_cl(strict, device));
    const std::vector<Opt> opts{tc(2)};
    std::vector<std::byte> left = in_memory(g.left(), g.a), right = in_memory(g.right(), g.b),
                           out(static_cast<size_t>(g.m * g.n * 4));
    run_by_hand(g.ast(), device, {{out, left, right}}, &opts);
    EXPECT_EQ(problem_of(g, out, strict), "") << device;
  }
}

template <class T>
void expect_bincount(DType dtype, const std::string& device, int64_t count) {
  const size_t bins = 97;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> in(static_cast<size_t>(count));
  std::vector<T> expected(bins);
  for (int32_t& v : in) ++expected[static_cast<size_t>(v = static_cast<int32_t>(random() % bins))];
  const UOp ast = histogram(count, bins, dtype, AxisType::Global);
  EXPECT_EQ(run_by_hand(ast, device, std::vector<T>(bins), in), expected) << dtype_name(dtype);
}

// The work items of all groups add at once.
TEST(cl, spec_X3_a_histogram_by_atomic_adds_is_bincount) {
  expect_bincount<int32_t>(DType::Int32, "CL", 1'000'000);
  expect_bincount<int32_t>(DType::Int32, groups_device(), 1'000'000);
  expect_bincount<uint32_t>(DType::UInt32, "CL", 10'000);
  expect_bincount<float>(DType::Float32, "CL", 10'000);
  if (!cl::hardware(0).adds_64_bits) return;
  expect_bincount<int64_t>(DType::Int64, "CL", 10'000);
  expect_bincount<uint64_t>(DType::UInt64, "CL", 10'000);
  expect_bincount<double>(DType::Float64, "CL", 10'000);
}

}  // namespace koine::test
