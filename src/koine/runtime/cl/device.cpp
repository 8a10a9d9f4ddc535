#include "koine/runtime/cl/device.hpp"

#include <map>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/runtime/cl/compiler.hpp"
#include "koine/runtime/cl/memory.hpp"
#include "koine/runtime/cl/queue.hpp"

namespace koine {
namespace cl {
namespace {

Compiler& compiler_for(const Hardware& on) {
  static std::mutex mutex;
  static auto& all = *new std::map<size_t, std::unique_ptr<ClCompiler>>;
  const std::lock_guard lock(mutex);
  auto& slot = all[on.number];
  if (!slot) slot = std::make_unique<ClCompiler>(on);
  return *slot;
}

class ClDevice : public DeviceRuntime {
 public:
  ClDevice(std::string name, const Hardware& on)
      : name_(std::move(name)), on_(on), allocator_(on, name_), queue_(on) {}
  const std::string& name() const override { return name_; }
  Allocator& allocator() override { return allocator_; }
  Compiler& compiler() override { return compiler_for(on_); }
  Queue& queue() override { return queue_; }

 private:
  std::string name_;
  const Hardware& on_;
  ClAllocator allocator_;
  ClQueue queue_;
};

}  // namespace
}  // namespace cl

std::unique_ptr<DeviceRuntime> make_cl_device(const std::string& name) {
  const size_t colon = name.find(':');
  const size_t number = colon == name.npos ? 0 : std::stoul(name.substr(colon + 1));
  return make_cl_device(name, cl::hardware(number));
}

std::unique_ptr<DeviceRuntime> make_cl_device(const std::string& name, const cl::Hardware& on) {
  return std::make_unique<cl::ClDevice>(name, on);
}

}  // namespace koine
