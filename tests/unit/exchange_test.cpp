// What goes between processes: copies of a host program that stand together, and the functions of a
// Transport that they become. The ranks are threads here; tests/distributed has processes.
#include "koine/runtime/ranks/exchange.hpp"

#include <barrier>
#include <cstring>
#include <map>
#include <thread>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/lower/exchanges.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/runtime/ranks/ranks.hpp"

namespace koine::test {
namespace {

// --- ranks that are threads ----------------------------------------------------------------------

struct Room {
  explicit Room(size_t ranks) : given(ranks), sizes(ranks), together(static_cast<long>(ranks)) {}
  std::vector<std::span<const std::byte>> given;
  std::vector<std::vector<size_t>> sizes;
  std::map<std::string, int> calls;  // of rank 0
  std::barrier<> together;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(Room& room, size_t rank) : room_(room), rank_(rank) {}
  size_t rank() const override { return rank_; }
  size_t count() const override { return room_.given.size(); }

  void broadcast(std::span<std::byte> data, size_t from) override {
    meet("broadcast", data, {}, [&] {
      EXPECT_EQ(room_.given[from].size(), data.size());
      if (from != rank_) put(data.data(), room_.given[from]);
    });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    meet("all-gather", mine, {}, [&] {
      for (size_t r = 0; r < count(); ++r) put(all.data() + r * mine.size(), room_.given[r]);
    });
  }
  void all_to_all(std::span<const std::byte> given, std::span<std::byte> got) override {
    const size_t block = given.size() / count();
    meet("all-to-all", given, {}, [&] {
      for (size_t r = 0; r < count(); ++r)
        put(got.data() + r * block, room_.given[r].subspan(rank_ * block, block));
    });
  }
  void all_to_all(std::span<const std::byte> given, std::span<const size_t> given_bytes,
                  std::span<std::byte> got, std::span<const size_t> got_bytes) override {
    meet("mixed", given, {given_bytes.begin(), given_bytes.end()}, [&] {
      size_t at = 0;
      for (size_t r = 0; r < count(); ++r) {
        size_t begin = 0;
        for (size_t k = 0; k < rank_; ++k) begin += room_.sizes[r][k];
        EXPECT_EQ(room_.sizes[r][rank_], got_bytes[r]);
        put(got.data() + at, room_.given[r].subspan(begin, got_bytes[r]));
        at += got_bytes[r];
      }
    });
  }
  void finish() override {}
  [[noreturn]] void abort(int) override { std::abort(); }

 private:
  static void put(std::byte* to, std::span<const std::byte> from) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void meet(const char* name, std::span<const std::byte> given, std::vector<size_t> sizes,
            const std::function<void()>& take) {
    room_.given[rank_] = given;
    room_.sizes[rank_] = std::move(sizes);
    if (rank_ == 0) ++room_.calls[name];
    room_.together.arrive_and_wait();
    take();
    room_.together.arrive_and_wait();
  }

  Room& room_;
  size_t rank_;
};

// A rank's memory as a rank sees it: others cannot look in.
class SeenMemory : public Memory {
 public:
  SeenMemory(std::vector<std::byte>& bytes, bool here)
      : Memory(bytes.data(), static_cast<int64_t>(bytes.size())), here_(here) {}
  std::byte* data() override { return here_ ? address() : nullptr; }

 private:
  bool here_;
};

struct Letter {
  size_t from, to;
  int64_t at, place, bytes;
};

// Of n ranks with 256 bytes each the lower half sends, and the upper half gets. Which calls there
// were.
std::map<std::string, int> deliver_in_threads(std::vector<std::vector<std::byte>>& memory,
                                              const std::vector<Letter>& letters, int64_t most) {
  Room room(memory.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < memory.size(); ++r)
    ranks.emplace_back([&, r] {
      std::vector<std::unique_ptr<SeenMemory>> seen;
      for (size_t k = 0; k < memory.size(); ++k)
        seen.push_back(std::make_unique<SeenMemory>(memory[k], k == r));
      std::vector<Message> messages;
      for (const Letter& l : letters)
        messages.push_back(
            {l.from, l.to, seen[l.from].get(), l.at, seen[l.to].get(), l.place, l.bytes});
      ThreadTransport transport(room, r);
      deliver(transport, messages, most);
    });
  for (std::thread& t : ranks) t.join();
  return room.calls;
}

std::vector<std::vector<std::byte>> random_memory(std::mt19937_64& random, size_t ranks) {
  std::vector<std::vector<std::byte>> out(ranks, std::vector<std::byte>(256));
  for (auto& bytes : out)
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return out;
}

std::vector<std::vector<std::byte>> delivered(std::vector<std::vector<std::byte>> memory,
                                              const std::vector<Letter>& letters) {
  const auto before = memory;
  for (const Letter& l : letters)
    std::copy_n(before[l.from].begin() + l.at, l.bytes, memory[l.to].begin() + l.place);
  return memory;
}

// --- host programs -------------------------------------------------------------------------------

std::string devices(int64_t n) {
  std::string out = "CPU";
  for (int64_t i = 1; i < n; ++i) out += ",CPU:" + std::to_string(i);
  return out;
}
Tensor parts(const Shape& shape, int64_t n) {
  int64_t count = 1;
  for (const Size& size : shape) count *= size.present();
  return Tensor::arange(count).cast(DType::Float32).reshape(shape).shard(devices(n), 0).realize();
}

}  // namespace

TEST(exchange, random_messages_arrive_by_whatever_function_they_go) {
  std::mt19937_64 random(test_seed());
  for (int64_t i = 0; i < test_cases(300); ++i) {
    const size_t n = 2 + random() % 4;
    const auto memory = random_memory(random, n);
    std::vector<Letter> letters;
    std::vector<int64_t> end(n, 128);
    const bool equal = random() % 2 == 0, few = random() % 3 == 0;
    const auto usual = static_cast<int64_t>(random() % 20);
    for (size_t from = 0; from < n; ++from)
      for (size_t to = 0; to < n; ++to)
        for (uint64_t k = equal ? 1 : random() % 3; k > 0; --k) {
          if (few && random() % 3 != 0) continue;
          const int64_t bytes = equal ? usual : static_cast<int64_t>(random() % 12);
          if (end[to] + bytes > 256) continue;
          letters.push_back({from, to, static_cast<int64_t>(random() % 100), end[to], bytes});
          end[to] += bytes;
        }
    auto got = memory;
    const int64_t most = std::array<int64_t, 3>{1, 7, 1000}[random() % 3];
    (void)deliver_in_threads(got, letters, most);
    EXPECT_EQ(got, delivered(memory, letters))
        << "case " << i << ", KOINE_TEST_SEED=" << test_seed();
  }
}

TEST(exchange, collectives_go_by_the_functions_that_mpi_has_for_them) {
  std::mt19937_64 random(test_seed());
  for (const size_t n : {2u, 3u, 4u}) {
    std::vector<Letter> gathered, exchanged, broadcast, scattered, both;
    for (size_t from = 0; from < n; ++from)
      for (size_t to = 0; to < n; ++to) {
        if (from == to) continue;
        const auto f = static_cast<int64_t>(from), t = static_cast<int64_t>(to);
        gathered.push_back({from, to, 8, 128 + 12 * f, 12});
        exchanged.push_back({from, to, 12 * t, 128 + 12 * f, 12});
        if (from == n - 1) broadcast.push_back({from, to, 4, 130, 20});
        if (from == 0) scattered.push_back({from, to, 16 * t, 128, 16});
        both.push_back(gathered.back());
        both.push_back({from, to, 40, 200 + 12 * f, 12});
      }
    const std::vector<std::pair<std::vector<Letter>, std::string>> rows = {
        {gathered, "all-gather"},
        {exchanged, n == 2 ? "all-gather" : "all-to-all"},  // to one other rank they are the same
        {broadcast, "broadcast"},
        {scattered, n == 2 ? "broadcast" : "mixed"},
        {both, "all-gather"}};
    for (const auto& [letters, name] : rows) {
      SCOPED_TRACE(name + " of " + std::to_string(n));
      const auto memory = random_memory(random, n);
      auto got = memory;
      EXPECT_EQ(deliver_in_threads(got, letters, 1000), (std::map<std::string, int>{{name, 1}}));
      EXPECT_EQ(got, delivered(memory, letters));
    }
  }
}

TEST(exchange, large_messages_go_in_several_rounds) {
  std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(256));
  std::vector<Letter> letters{{0, 1, 0, 128, 100}};
  EXPECT_EQ(deliver_in_threads(memory, letters, 33),
            (std::map<std::string, int>{{"broadcast", 4}}));
  EXPECT_EQ(deliver_in_threads(memory, letters, 50),
            (std::map<std::string, int>{{"broadcast", 2}}));
  letters = {{0, 1, 0, 128, 0}};
  EXPECT_EQ(deliver_in_threads(memory, letters, 50), (std::map<std::string, int>{}))
      << "nothing to send";
}

// --- copies that stand together ------------------------------------------------------------------

namespace {

// Copies that stand behind each other and do not wait for each other, by their numbers.
std::vector<size_t> steps_of(const UOp& schedule) {
  const std::vector<Kernel> kernels = kernels_of(schedule);
  const auto needs = dependencies_of(kernels);
  std::vector<size_t> out;
  size_t begin = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (!is_copy(kernels[k].ast)) continue;
    const bool goes_on =
        k > 0 && is_copy(kernels[k - 1].ast) &&
        std::none_of(needs[k].begin(), needs[k].end(), [&](size_t n) { return n >= begin; });
    if (!goes_on) begin = k;
    if (!goes_on) out.push_back(0);
    ++out.back();
  }
  return out;
}

UOp together(const std::vector<Tensor>& values) {
  std::vector<UOp> nodes;
  for (const Tensor& t : values) nodes.push_back(t.uop());
  return with_copies_together(host_program(nodes), [](const Kernel& k) { return is_copy(k.ast); });
}

}  // namespace

TEST(exchange, the_copies_of_a_collective_stand_together) {
  Options o = options();
  o.strict = false;
  const OptionScope scope(o);
  for (const size_t n : {2u, 3u, 4u}) {
    const auto count = static_cast<int64_t>(n);
    const size_t all = n * (n - 1);
    const Tensor x = parts({count * count, 300}, count), y = parts({count, 5}, count);
    const Tensor z = parts({count, 7}, count);
    using Steps = std::vector<size_t>;
    EXPECT_EQ(steps_of(together({collective::all_gather(x)})), Steps{all});
    EXPECT_EQ(steps_of(together({collective::reduce_scatter(x)})), Steps{all});
    EXPECT_EQ(steps_of(together({collective::all_reduce(x)})), (Steps{all, all}));
    EXPECT_EQ(steps_of(together({y.sum(0)})), Steps{all});
    // What does not wait for each other goes at once, such as the gradients of all parameters.
    EXPECT_EQ(steps_of(together({y.sum(0), z.sum(0), collective::all_gather(x)})), Steps{3 * all});
    const Tensor twice = (y - y.mean(0)).square().sum(0);
    EXPECT_EQ(steps_of(together({twice})), (Steps{all, all}));
  }
}

TEST(exchange, the_order_changes_and_nothing_else) {
  const Tensor x = parts({16, 300}, 4), y = parts({16, 300}, 4);
  const Tensor value = ((x - x.mean(0)) * y).sum(0) + collective::gather(y).to(devices(4)).sum(0);
  const UOp before = host_program({value.uop()});
  const UOp after = together({value});
  EXPECT_FALSE(before == after);
  std::vector<UOp> was(before.src().begin(), before.src().end());
  std::vector<UOp> is(after.src().begin(), after.src().end());
  EXPECT_TRUE(std::is_permutation(was.begin(), was.end(), is.begin(), is.end()));
  // Each stands behind what it needed before.
  auto position = [&](const UOp& call) {
    return std::find(is.begin(), is.end(), call) - is.begin();
  };
  const auto needs = dependencies_of(kernels_of(before));
  for (size_t k = 0; k < was.size(); ++k)
    for (const size_t n : needs[k]) EXPECT_LT(position(was[n]), position(was[k]));
  EXPECT_TRUE(with_copies_together(before, [](const Kernel&) { return false; }) == before);
}

// What is still to be sent lies nowhere that what comes in is put.
TEST(exchange, copies_of_one_step_share_no_memory) {
  const Tensor x = parts({16, 300}, 4);
  Tensor value = x;
  for (int k = 0; k < 4; ++k) value = (value - value.mean(0)) * collective::all_reduce(value).sum();
  const UOp planned = plan_memory(together({value}));
  const std::vector<Kernel> kernels = kernels_of(planned);
  auto place = [](const UOp& b) {
    const int64_t begin = b.as<BufferArg>().offset;
    return std::pair(begin, begin + largest_bytes(b));
  };
  int64_t compared = 0;
  for (size_t k = 0; k < kernels.size(); ++k)
    for (size_t j = k + 1; j < kernels.size() && is_copy(kernels[j - 1].ast); ++j) {
      if (!is_copy(kernels[k].ast) || !is_copy(kernels[j].ast)) break;
      const UOp &source = kernels[k].buffers[1], &target = kernels[j].buffers[0];
      if (!source.is(Op::Buffer) || !target.is(Op::Buffer) || !(source.device() == target.device()))
        continue;
      const auto [begin, end] = place(source);
      const auto [first, last] = place(target);
      EXPECT_TRUE(last <= begin || end <= first) << "launches " << k << " and " << j;
      ++compared;
    }
  EXPECT_GT(compared, 10);
}

// --- what a user gets wrong ----------------------------------------------------------------------

TEST(exchange, without_mpi_it_is_said_what_to_install) {
  expect_error([] { (void)join_mpi("libno-such-mpi.so.40"); },
               {"OpenMPI is not installed", "apt-get install openmpi-bin", "libno-such-mpi.so.40"});
  expect_error([] { (void)join_mpi("libm.so.6"); }, {"MPI_Init_thread", "not OpenMPI 4"});
}

TEST(exchange, devices_of_ranks_need_ranks) {
  for (const auto& action : std::vector<std::function<void()>>{
           [] { (void)Tensor::ones({2}).to("RANK:1"); }, [] { (void)distributed::rank(); },
           [] { (void)distributed::devices(); },
           [] { (void)distributed::parts(Tensor::ones({2})); }})
    expect_error(action, {"joined no others", "init()", "mpirun"});
  expect_error([] { distributed::init(0); }, {"init(0)"});
}

}  // namespace koine::test
