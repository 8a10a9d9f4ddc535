#include "remote_device.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

class RemoteQueue : public Queue {
 public:
  uint64_t submit(std::span<const Command> commands) override {
    ++remote_counts().submissions;
    pending_.push_back({++last_, commands});
    return last_;
  }
  void wait(uint64_t submission) override {
    size_t done = 0;
    while (done < pending_.size() && pending_[done].number <= submission) {
      for (const Command& c : pending_[done].commands) {
        c.program->run(c.launch);
        ++remote_counts().launches;
      }
      ++done;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
  }

 private:
  struct Pending {
    uint64_t number;
    std::span<const Command> commands;
  };
  std::vector<Pending> pending_;
  uint64_t last_ = 0;
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

class RemoteDevice : public DeviceRuntime {
 public:
  explicit RemoteDevice(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const Target& target(const CompileOptions& how) const override { return behind().target(how); }
  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<RemoteMemory>(behind().allocate(bytes));
  }
  std::shared_ptr<Program> compile(LoweredKernel kernel) override {
    return behind().compile(std::move(kernel));
  }
  Queue& queue() override { return queue_; }
  int64_t bytes_in_use() const override { return behind().bytes_in_use(); }
  int64_t bytes_cached() const override { return behind().bytes_cached(); }

 private:
  static DeviceRuntime& behind() { return device_runtime("INTERP:7"); }
  std::string name_;
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
