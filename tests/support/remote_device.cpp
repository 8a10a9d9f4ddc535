#include "remote_device.hpp"

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

class RemoteQueue : public Queue {
 public:
  uint64_t submit(std::span<const Command> commands) override { return add({commands, {}}); }
  uint64_t submit(const Transfer& transfer) override { return add({{}, transfer}); }
  bool follow(Queue& other, uint64_t submission) override {
    auto* remote = dynamic_cast<RemoteQueue*>(&other);
    if (remote == nullptr) return other.has_run(submission);
    if (remote != this) followed_.push_back({remote, submission});
    return true;
  }
  bool has_run(uint64_t submission) override { return submission <= ran_; }
  void wait(uint64_t submission) override {
    if (has_run(submission)) return;
    ++remote_counts().waits;
    waited_ = true;
    run_up_to(last_);
  }

 private:
  struct Work {
    std::span<const Command> commands;
    std::optional<Transfer> transfer;
    std::vector<std::pair<RemoteQueue*, uint64_t>> after = {};
  };

  uint64_t add(Work work) {
    RemoteCounts& counts = remote_counts();
    ++counts.submissions;
    if (std::exchange(waited_, false) && counts.waits > 0) ++counts.early;
    work.after = std::exchange(followed_, {});
    pending_.push_back(std::move(work));
    return ++last_;
  }
  void run_up_to(uint64_t submission) {
    while (ran_ < submission && !pending_.empty()) {
      const Work work = std::move(pending_.front());
      pending_.pop_front();
      ++ran_;
      for (const auto& [queue, event] : work.after) queue->run_up_to(event);
      if (work.transfer) {
        const Transfer& t = *work.transfer;
        copy_bytes(*t.to, t.to_offset, *t.from, t.from_offset, t.bytes);
      }
      for (const Command& c : work.commands) {
        c.program->run(c.launch);
        ++remote_counts().launches;
      }
    }
  }

  std::deque<Work> pending_;
  std::vector<std::pair<RemoteQueue*, uint64_t>> followed_;  // by what is submitted next
  uint64_t last_ = 0, ran_ = 0;
  static inline bool waited_ = false;  // since the last submission to any of them
};

class RemoteMemory : public Memory {
 public:
  explicit RemoteMemory(std::shared_ptr<Memory> block)
      : Memory(block->address(), block->bytes()), block_(std::move(block)) {}
  std::byte* data() override { return nullptr; }
  void copy_in(const void* from, int64_t offset, int64_t bytes) override {
    ++remote_counts().copies_in;
    block_->copy_in(from, offset, bytes);
  }
  void copy_out(void* to, int64_t offset, int64_t bytes) override {
    ++remote_counts().copies_out;
    block_->copy_out(to, offset, bytes);
  }

 private:
  std::shared_ptr<Memory> block_;
};

DeviceRuntime& behind() { return device_runtime("INTERP:7"); }

class RemoteAllocator : public Allocator {
 public:
  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<RemoteMemory>(behind().allocate(bytes));
  }
  int64_t bytes_in_use() const override { return behind().allocator().bytes_in_use(); }
  int64_t bytes_cached() const override { return behind().allocator().bytes_cached(); }
};

class RemoteDevice : public DeviceRuntime {
 public:
  explicit RemoteDevice(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  Allocator& allocator() override { return allocator_; }
  Compiler& compiler() override { return behind().compiler(); }
  Queue& queue() override { return queue_; }

 private:
  std::string name_;
  RemoteAllocator allocator_;
  RemoteQueue queue_;
};

}  // namespace

void register_remote_device() {
  register_device("REMOTE", "", [](const std::string& name) -> std::unique_ptr<DeviceRuntime> {
    return std::make_unique<RemoteDevice>(name);
  });
  (void)device_runtime("INTERP:7");
}

RemoteCounts& remote_counts() {
  static RemoteCounts counts;
  return counts;
}

std::string mixed_devices(int64_t n) {
  register_remote_device();
  std::string out = "CPU";
  for (int64_t i = 1; i < n; ++i) out += ",CPU:" + std::to_string(i);
  return n == 3 ? "CPU,CPU:1,INTERP" : n == 4 ? "CPU,REMOTE,CPU:2,REMOTE:1" : out;
}

}  // namespace koine::test
