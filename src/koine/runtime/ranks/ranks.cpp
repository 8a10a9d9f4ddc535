#include "koine/runtime/ranks/ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "koine/base/error.hpp"
#include "koine/runtime/cpu/cpu.hpp"

namespace koine {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "what was thrown is no std::exception";
  }
}

// What a rank says before it does something that all take part in.
struct Word {
  uint64_t detail = 0;
  char what[120] = {};
  bool operator==(const Word& other) const {
    return detail == other.detail && std::strcmp(what, other.what) == 0;
  }
};

std::unique_ptr<Ranks>& slot() {
  static auto& instance = *new std::unique_ptr<Ranks>;
  return instance;
}

// Memory of a rank: the rank itself has it, the others know how large it is. What goes in is what
// all ranks have; what comes out goes to all of them.
class RankMemory : public Memory {
 public:
  RankMemory(std::shared_ptr<Memory> block, int64_t bytes, size_t owner, std::string device)
      : Memory(block ? block->address() : nullptr, bytes),
        block_(std::move(block)),
        owner_(owner),
        device_(std::move(device)) {}
  std::byte* data() override { return block_ ? block_->data() : nullptr; }
  void copy_in(const void* from, int64_t offset, int64_t bytes) override {
    if (block_) block_->copy_in(from, offset, bytes);
  }
  void copy_out(void* to, int64_t offset, int64_t bytes) override {
    constexpr int64_t most = int64_t{1} << 30;  // of one message
    Ranks& ranks = Ranks::joined();
    ranks.together(fmt::format("reads {} bytes of {}", bytes, device_), 0, [&] {
      if (block_) block_->copy_out(to, offset, bytes);
      for (int64_t at = 0; at < bytes; at += most)
        ranks.transport().broadcast(
            {static_cast<std::byte*>(to) + at, static_cast<size_t>(std::min(most, bytes - at))},
            owner_);
    });
  }

 private:
  std::shared_ptr<Memory> block_;  // null on the other ranks
  size_t owner_;
  std::string device_;
};

// A rank's memory of the blocks of its CPU device; elsewhere there are none.
class RankAllocator : public Allocator {
 public:
  RankAllocator(DeviceRuntime& cpu, size_t rank, bool here) : cpu_(cpu), rank_(rank), here_(here) {}
  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<RankMemory>(here_ ? cpu_.allocate(bytes) : nullptr, bytes, rank_,
                                        cpu_.name());
  }
  int64_t bytes_in_use() const override { return cpu_.allocator().bytes_in_use(); }
  int64_t bytes_cached() const override { return cpu_.allocator().bytes_cached(); }

 private:
  DeviceRuntime& cpu_;
  size_t rank_;
  bool here_;
};

// What it is handed, the rank itself does.
class IdleQueue : public HostQueue {
 public:
  uint64_t submit(std::span<const Command>) override { return 0; }
  uint64_t submit(const Transfer&) override { return 0; }
};

class RankDevice : public DeviceRuntime {
 public:
  RankDevice(const std::string& name, size_t rank, bool here)
      : cpu_(make_cpu_device(name)), allocator_(*cpu_, rank, here), rank_(rank), here_(here) {}
  const std::string& name() const override { return cpu_->name(); }
  Allocator& allocator() override { return allocator_; }
  // Programs of other ranks are the own ones mostly, so nothing is won by leaving them out.
  Compiler& compiler() override { return cpu_->compiler(); }
  Queue& queue() override { return here_ ? cpu_->queue() : idle_; }
  bool computes() const override { return here_; }
  std::optional<size_t> rank() const override { return rank_; }

 private:
  std::unique_ptr<DeviceRuntime> cpu_;
  RankAllocator allocator_;
  IdleQueue idle_;
  size_t rank_;
  bool here_;
};

}  // namespace

Ranks::Ranks(std::unique_ptr<Transport> transport, size_t devices_each)
    : transport_(std::move(transport)), devices_each_(devices_each), process_(getpid()) {}

Ranks& Ranks::join(size_t devices_each) {
  if (!slot()) {
    slot().reset(new Ranks(join_mpi(), 0));
    on_exit(at_exit, slot().get());
  }
  Ranks& ranks = *slot();
  KOINE_REQUIRE(ranks.count() * devices_each <= most_devices, Device,
                "distributed: {} processes of {} devices each are too many: a program has at most "
                "{} devices of a kind",
                ranks.count(), devices_each, most_devices);
  KOINE_REQUIRE(ranks.devices_each_ == 0 || ranks.devices_each_ == devices_each, Value,
                "distributed: init({}) comes behind init({}): there is one number of devices",
                devices_each, ranks.devices_each_);
  ranks.devices_each_ = devices_each;
  return ranks;
}

Ranks& Ranks::joined() {
  KOINE_REQUIRE(slot() && slot()->devices_each_ > 0, Device,
                "this process has joined no others: call init() of koine's distributed first, in a "
                "program that mpirun started");
  KOINE_REQUIRE(getpid() == slot()->process_, Device,
                "the ranks were joined before this process was forked, and are not here: use "
                "devices RANK in the process that has called init()");
  return *slot();
}

void Ranks::agree(std::string_view what, uint64_t detail) {
  KOINE_REQUIRE(parted_.empty(), Device, "{}", parted_);
  Word mine;
  mine.detail = detail;
  std::memcpy(mine.what, what.data(), std::min(what.size(), sizeof mine.what - 1));
  std::vector<Word> all(count());
  transport_->all_gather(std::as_bytes(std::span(&mine, 1)),
                         std::as_writable_bytes(std::span(all)));
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const Word& w) { return !(w == all[0]); });
  if (other == all.end()) return;
  parted_ = fmt::format(
      "distributed: the ranks do not run the same program: rank 0 {}, rank {} {}{}. What one rank "
      "computes on devices RANK, or reads from them, all have to",
      all[0].what, other - all.begin(), other->what,
      std::strcmp(all[0].what, other->what) == 0 ? " in other messages" : "");
  raise(ErrorKind::Device, "{}", parted_);
}

void Ranks::together(std::string_view what, uint64_t detail, const std::function<void()>& action) {
  const std::lock_guard lock(mutex_);
  agree(what, detail);
  ++depth_;
  try {
    action();
  } catch (const std::exception& e) {
    if (parted_.empty())
      parted_ = fmt::format(
          "distributed: rank {} failed in the middle of a program, and the others may wait for it "
          "there: {}",
          rank(), e.what());
    --depth_;
    throw;
  }
  --depth_;
}

void Ranks::require_none_failed(const std::exception_ptr& own) {
  struct Ending {
    bool failed = false;
    char why[503] = {};
  };
  const std::lock_guard lock(mutex_);
  Ending mine;
  if (own) {
    mine.failed = true;
    const std::string why = message_of(own);
    std::memcpy(mine.why, why.data(), std::min(why.size(), sizeof mine.why - 1));
  }
  std::vector<Ending> all(count());
  transport_->all_gather(std::as_bytes(std::span(&mine, 1)),
                         std::as_writable_bytes(std::span(all)));
  if (own) std::rethrow_exception(own);
  for (size_t r = 0; r < all.size(); ++r)
    KOINE_REQUIRE(!all[r].failed, Device,
                  "distributed: rank {} failed in the middle of a program: {}", r, all[r].why);
}

// A rank that fails would be waited for, so it ends the others.
void Ranks::at_exit(int status, void* joined) {
  Ranks& ranks = *static_cast<Ranks*>(joined);
  if (getpid() != ranks.process_) return;
  std::string why = fmt::format("it ends with status {}", status);
  if (status == 0 && ranks.depth_ == 0) {
    try {
      ranks.agree("has ended", 0);
      return ranks.transport().finish();
    } catch (const Error& e) {
      why = e.what();
    }
  }
  fmt::print(stderr, "koine: rank {} of {} ends all: {}\n", ranks.rank(), ranks.count(), why);
  std::fflush(nullptr);
  ranks.transport().abort(status == 0 ? 1 : status);
}

std::unique_ptr<DeviceRuntime> device_of_rank(const std::string& name, size_t rank) {
  return std::make_unique<RankDevice>(name, rank, rank == Ranks::joined().rank());
}

std::unique_ptr<DeviceRuntime> make_rank_device(const std::string& name) {
  const Ranks& ranks = Ranks::joined();
  const size_t colon = name.find(':');
  const size_t number = colon == name.npos ? 0 : std::stoul(name.substr(colon + 1));
  const size_t rank = number / ranks.devices_each();
  KOINE_REQUIRE(rank < ranks.count(), Device,
                "device '{}': {} processes have {} devices each: mpirun -n says how many processes "
                "there are",
                name, ranks.count(), ranks.devices_each());
  return device_of_rank(name, rank);
}

}  // namespace koine
