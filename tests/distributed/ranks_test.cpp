// Several processes run one program (issue of row N7, hosts): what is only true of processes. That
// their collectives, sharing and training are those of several devices in one process is shown by
// the tests of these, run with --cpu-is-ranks.
#include <cmath>

#include "check.hpp"
#include "digits_net.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

std::string simulated() {
  std::string out = "CPU:0";
  for (int64_t k = 1; k < distributed::count(); ++k) out += ",CPU:" + std::to_string(k);
  return out;
}

// By numbers of sender and receiver.
std::map<std::pair<int64_t, int64_t>, int64_t> copied() {
  std::map<std::pair<int64_t, int64_t>, int64_t> out;
  auto number = [](const std::string& name) {
    const size_t colon = name.find(':');
    return colon == name.npos ? int64_t{0} : std::stoll(name.substr(colon + 1));
  };
  for (const auto& [between, bytes] : counters().copied_bytes)
    out[{number(between.first), number(between.second)}] += bytes;
  return out;
}

}  // namespace

// Bit for bit in both modes, since sums are folded by the same kernels in the same order.
TEST(ranks, collectives_give_the_bits_and_bytes_of_devices_in_one_process) {
  std::mt19937_64 random(test_seed());
  const int64_t n = distributed::count();
  using collective::all_gather, collective::all_reduce, collective::broadcast, collective::gather,
      collective::reduce_scatter;
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> forms = {
      {"all_gather", [](auto& x) { return all_gather(x); }},
      {"reduce_scatter", [](auto& x) { return reduce_scatter(x); }},
      {"all_reduce", [](auto& x) { return all_reduce(x); }},
      {"all_reduce Max", [](auto& x) { return all_reduce(x, collective::Fold::Max); }},
      {"broadcast", [](auto& x) { return broadcast(gather(x) * 2, x.device()); }},
      {"a sum", [](auto& x) { return x.sum(0); }},
      {"a variance", [](auto& x) { return x.var({0}); }},
      {"an exchange", [](auto& x) { return x.shard(x.device(), 1); }}};
  in_both_modes([&] {
    for (const DType dtype : {DType::Float32, DType::Float16}) {
      const Array values = random_array(random, {2 * n * n, 8 * n}, dtype);
      for (const auto& [name, form] : forms) {
        SCOPED_TRACE(std::string(name) + " of " + std::string(dtype_name(dtype)));
        auto value_on = [&](const std::string& where) {
          const Tensor x(buffer_from_host(shape_of(values.sizes), dtype, where,
                                          bytes_of(values).data(), n > 1 ? 0 : -1));
          return form(x);
        };
        if (n == 1) continue;  // no parts
        reset_counters();
        const Array one = array_of(realize({contiguous(value_on(simulated()).uop())})[0]);
        const auto expected = copied();
        reset_counters();
        const Array many =
            array_of(realize({contiguous(value_on(distributed::devices()).uop())})[0]);
        EXPECT_EQ(difference(one, many), "");
        EXPECT_EQ(copied(), expected);
        EXPECT_FALSE(expected.empty());
      }
    }
  });
}

TEST(ranks, each_runs_the_kernels_of_its_own_device_and_has_its_memory_alone) {
  const Tensor x = Tensor::arange(64).shard(distributed::devices(), 0).clone().realize();
  const UOp buffer = realized_buffer(x.uop());
  for (int64_t r = 0; r < distributed::count(); ++r) {
    const std::string name = r == 0 ? "RANK" : "RANK:" + std::to_string(r);
    const bool here = r == distributed::rank();
    EXPECT_EQ(storage::memory_on(buffer, Device(name))->data() != nullptr, here);
    EXPECT_EQ(device_runtime(name).allocator().bytes_in_use() > 0, here);
    EXPECT_EQ(device_runtime(name).computes(), here);
  }
  expect_error([] { (void)Tensor::ones({1}).to("RANK:63"); }, {"RANK:63", "processes"});
}

// A rank may know what the others do not.
TEST(ranks, parts_are_what_each_has_of_its_own) {
  const int64_t n = distributed::count(), r = distributed::rank();
  const Tensor own = Tensor::full({2, 3}, static_cast<double>(10 * r + 1)).realize();
  const Tensor all = distributed::parts(own);
  EXPECT_EQ(all.shape(), (Shape{2 * n, 3}));
  EXPECT_EQ(all.shard_axis(), n > 1 ? std::optional<int64_t>(0) : std::nullopt);
  std::vector<double> expected;
  for (int64_t k = 0; k < n; ++k)
    expected.insert(expected.end(), 6, static_cast<double>(10 * k + 1));
  EXPECT_EQ(all.tolist<double>(), expected);
  EXPECT_EQ(distributed::own_part(all).tolist<double>(), own.tolist<double>());
  EXPECT_EQ(distributed::own_part(all + all).tolist<double>(), (own + own).tolist<double>());
  EXPECT_EQ(all.sum().item(), 6.0 * static_cast<double>(5 * n * (n - 1) + n));
  expect_error([] { (void)distributed::parts(Tensor(1.0)); }, {"parts of ()"});
  expect_error([&] { (void)distributed::own_part(own); }, {"own_part of (2, 3)", "not in parts"});
}

TEST(ranks, values_are_read_by_all_from_wherever_they_are) {
  register_remote_device();  // whose memory the host cannot see
  const int64_t n = distributed::count();
  const Tensor x = Tensor::arange(12 * n).reshape({3, 4 * n}).realize();
  const std::vector<int> plain = x.tolist<int>();
  const std::string last = Device(distributed::devices()).part(static_cast<size_t>(n - 1)).name();
  const Tensor made = (x.to(last) + 0).realize();  // where the host of the others sees nothing
  for (const Tensor& there : {made, made.to("REMOTE"), x.shard(distributed::devices(), 1),
                              x.shard(distributed::devices()), x.to(last), x.to(last).to("CPU"),
                              x.shard(distributed::devices(), 1).to("CPU"), x.to("REMOTE").to(last),
                              x.to(last).to("REMOTE")}) {
    EXPECT_EQ(there.tolist<int>(), plain);
    EXPECT_EQ((there * 2).sum().item<int>(), 2 * x.sum().item<int>());
  }
  // What is whole on each is read without the others.
  const Tensor whole = x.shard(distributed::devices()).clone().realize();
  if (distributed::rank() == 0) {
    EXPECT_EQ(whole.tolist<int>(), plain);
  }
}

TEST(ranks, a_position_out_of_range_is_an_error_on_all_and_they_go_on) {
  if (options().index != IndexMode::Raise) GTEST_SKIP() << "KOINE_INDEX";
  const int64_t n = distributed::count();
  const Tensor table = Tensor::arange(5).shard(distributed::devices()).clone().realize();
  std::vector<int64_t> at(static_cast<size_t>(2 * n), 4);
  at.back() = 5;  // of the last rank alone
  const Tensor index = Tensor::from(at, {2 * n}).shard(distributed::devices(), 0).realize();
  expect_error([&] { (void)table.index_select(0, index).sum().item(); }, {"5", "out of range"});
  const Tensor good = index.clip(0, 4).realize();
  EXPECT_EQ(table.index_select(0, good).sum().item<int>(), 8 * n);
}

TEST(ranks, a_function_of_the_host_runs_where_its_arguments_are) {
  int calls = 0;
  register_function("ranks.count",
                    [&](std::span<const HostResult> out, std::span<const HostArgument> in) {
                      ++calls;
                      out[0].as<float>()[0] = in[0].as<float>()[0] + 1;
                    });
  const int64_t n = distributed::count();
  const std::string last = Device(distributed::devices()).part(static_cast<size_t>(n - 1)).name();
  const Tensor x = Tensor::full({1}, 3.0).to(last);
  EXPECT_EQ(call_function("ranks.count", CallResult{{1}}, {x}).item(), 4.0);
  if (options().verify < 3) {  // where the interpreter calls it as well
    EXPECT_EQ(calls, distributed::rank() == n - 1 ? 1 : 0);
  }
}

// Whether they meet again in the same program, or afterwards where the result is read.
TEST(ranks, a_function_that_fails_on_one_is_an_error_on_all_and_they_go_on) {
  static bool fails = true;
  register_function("ranks.fails",
                    [](std::span<const HostResult> out, std::span<const HostArgument> in) {
                      if (fails) throw std::runtime_error("no disk");
                      out[0].as<float>()[0] = in[0].as<float>()[0] + 1;
                    });
  const int64_t n = distributed::count();
  for (int64_t r = 0; r < n; ++r) {
    const Device where = Device(distributed::devices()).part(static_cast<size_t>(r));
    const Tensor x = Tensor::full({1}, 3.0).to(where.name());
    auto called = [&](const Tensor& v) {
      return call_function("ranks.fails", CallResult{{1}}, {v});
    };
    const std::vector<std::function<Tensor()>> forms = {
        [&] { return called(x); }, [&] { return called(x).shard(distributed::devices()) * 1; },
        [&] {
          return cond(
              x.sum() > 0, [&](const Tensor& v) { return called(v); },
              [](const Tensor& v) { return v; }, x);
        }};
    for (size_t k = 0; k < forms.size(); ++k) {
      SCOPED_TRACE(where.name() + ", form " + std::to_string(k));
      fails = true;
      std::vector<std::string> words{"ranks.fails", "no disk"};
      if (distributed::rank() != r)
        words.push_back("rank " + std::to_string(r) + " failed in the middle of a program");
      expect_error([&] { (void)forms[k]().item(); }, words);
      fails = false;
      EXPECT_EQ(forms[k]().item(), 4.0);
    }
  }
}

// Its conditions are known there alone, and the others do not wait for them.
TEST(ranks, a_loop_runs_where_its_memory_is_and_its_results_go_to_all) {
  const auto n = static_cast<size_t>(distributed::count());
  const Tensor start = small({3}), rows = small({5, 3}, 1);
  auto results = [&](const std::string& where) {
    const Tensor x = start.to(where).realize(), xs = rows.to(where).realize();
    const auto [last, all] = scan(
        [](const Tensor& carry, const Tensor& row) {
          const Tensor next = carry * 0.5f + row;
          return std::pair(next, next.sum());
        },
        x, xs);
    const Tensor halved = while_loop([](const Tensor& v) { return v.abs().max() > 0.01f; },
                                     [](const Tensor& v) { return v * 0.5f; }, x);
    const Tensor nested = scan(
        [](const Tensor& carry, const Tensor& row) {
          return while_loop([](const Tensor& v) { return v.square().sum() > 0.5f; },
                            [](const Tensor& v) { return v * 0.25f; }, carry + row);
        },
        x, xs);
    const Tensor chosen = cond(
        x.sum() > 0, [](const Tensor& v) { return v * 2; }, [](const Tensor& v) { return v - 1; },
        halved);
    std::vector<std::vector<float>> out;
    for (const Tensor& t : {last, all, halved, nested, chosen}) out.push_back(t.tolist<float>());
    return out;
  };
  in_both_modes([&] {
    const auto expected = results("CPU");
    for (size_t r = 0; r < n; ++r) {
      const Device where = Device(distributed::devices()).part(r);
      SCOPED_TRACE(where.name() + ", KOINE_TEST_SEED=" + std::to_string(test_seed()));
      EXPECT_EQ(results(where.name()), expected);
    }
  });
}

TEST(ranks, a_position_out_of_range_in_a_loop_of_one_is_an_error_on_all) {
  if (options().index != IndexMode::Raise) GTEST_SKIP() << "KOINE_INDEX";
  const auto n = static_cast<size_t>(distributed::count());
  const std::string last = Device(distributed::devices()).part(n - 1).name();
  const Tensor table = Tensor::arange(5).cast(DType::Float32).to(last).realize();
  auto sum = [&](const std::vector<int64_t>& at) {
    const Tensor positions = Tensor::from(at, {4}).to(last).realize();
    return scan(
               [&](const Tensor& carry, const Tensor& k) {
                 return carry + table.index_select(0, k.reshape({1})).sum();
               },
               Tensor(0.f).to(last), positions)
        .item();
  };
  expect_error([&] { (void)sum({0, 4, 7, 1}); }, {"out of range", "step 2"});
  EXPECT_EQ(sum({0, 4, 2, 1}), 7.0);
}

TEST(ranks, a_loop_over_several_of_them_is_refused) {
  if (distributed::count() == 1) GTEST_SKIP() << "there is one";
  const Tensor x = Tensor::ones({4 * distributed::count()}).shard(distributed::devices(), 0);
  expect_error(
      [&] {
        (void)while_loop([](const Tensor& v) { return v.sum() > 1; },
                         [](const Tensor& v) { return v * 0.5f; }, x)
            .realize();
      },
      {"has all on one device"});
  const Tensor one = Tensor::full({3}, 5.f).to("RANK:1");
  for (const std::string other : {"RANK", "CPU"}) {
    auto halved = [&](const Tensor& v) { return v.to(other).square().sqrt() * 0.5f; };
    expect_error(
        [&] {
          (void)while_loop([](const Tensor& v) { return v.sum() > 0.1f; },
                           [&](const Tensor& v) { return halved(v).to("RANK:1"); }, one)
              .realize();
        },
        {"while_loop", other, "RANK:1", "one device", "to()"});
    EXPECT_EQ(cond(
                  one.sum() > 0, [](const Tensor& v) { return v * 2; },
                  [](const Tensor& v) { return v * 3; }, one)
                  .to(other)
                  .tolist<float>(),
              std::vector<float>(3, 10.f));
  }
}

// The net of `koine demo`, with the rows of each batch split: the losses of one process.
TEST(ranks, the_digits_net_trains_on_parts_of_the_batch_as_in_one_process) {
  auto losses = [](const std::string& where) {
    Tensor::manual_seed(3);
    app::DigitsNet net;
    net.state("", [&](const std::string&, Tensor& t, bool trainable) {
      t = t.shard(where).clone();
      if (trainable) t.requires_grad();
    });
    nn::AdamW optimizer(nn::get_parameters(net), 4e-3);
    std::vector<double> out;
    for (int step = 0; step < 3; ++step) {
      const Tensor images = Tensor::rand({16, 1, 8, 8}).realize();
      const Tensor labels = (Tensor::rand({16}) * 10).cast(DType::Int32).realize();
      const auto [loss, hits] =
          app::train_step(net, optimizer, images.shard(where, 0), labels.shard(where, 0));
      out.push_back(loss.item());
    }
    return out;
  };
  in_both_modes([&] {
    const std::vector<double> one = losses("CPU"), many = losses(distributed::devices());
    for (size_t k = 0; k < one.size(); ++k)
      if (options().strict)
        EXPECT_EQ(many[k], one[k]);
      else
        EXPECT_NEAR(many[k], one[k], 1e-5 * std::abs(one[k]));
  });
}

}  // namespace koine::test
