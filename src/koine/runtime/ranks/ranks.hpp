#pragma once
#include <sys/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "koine/runtime/device.hpp"
#include "koine/runtime/ranks/transport.hpp"

// Processes that run one program together. Their devices are named "RANK", "RANK:1" and so on: to
// the program they are several devices like any others, and a copy between those of two processes
// is what MPI moves. Every process makes all graphs and runs all host programs; of the kernels it
// runs those of its own devices, whose memory it has alone.
namespace koine {

/// The processes that this one has joined.
class Ranks {
 public:
  /// Joins those that were started with this one, each with that many devices. Throws Error
  /// (Device) where there is no MPI, or more devices than there are numbers; (Value) where a later
  /// call asks for another number of them.
  static Ranks& join(size_t devices_each);
  /// Throws Error (Device) where none have been joined.
  static Ranks& joined();

  Transport& transport() { return *transport_; }
  size_t rank() const { return transport_->rank(); }
  size_t count() const { return transport_->count(); }
  size_t devices_each() const { return devices_each_; }

  /// Runs what all ranks run at once, and may use the transport in, after they have told each other
  /// what it is. Throws Error (Device) where they are about to do different things, naming two; and
  /// ever after, also where `action` has thrown: ranks that parted would wait for each other.
  /// `detail`: what has to be equal beside the words.
  void together(std::string_view what, uint64_t detail, const std::function<void()>& action);
  /// Behind what one of them may have failed in: throws on all where one has. A rank throws what it
  /// failed with, the others an Error (Device) that says who did, and why. They go on as before.
  void require_none_failed(const std::exception_ptr& own);

 private:
  Ranks(std::unique_ptr<Transport> transport, size_t devices_each);
  void agree(std::string_view what, uint64_t detail);
  static void at_exit(int status, void* ranks);

  std::unique_ptr<Transport> transport_;
  size_t devices_each_;  // 0: not said yet
  std::recursive_mutex mutex_;
  pid_t process_;       // a forked one is no rank
  int depth_ = 0;       // of actions that run
  std::string parted_;  // why
};

/// A device of this name that a rank has.
std::unique_ptr<DeviceRuntime> device_of_rank(const std::string& name, size_t rank);
/// "RANK:k": the first ranks have the first devices.
std::unique_ptr<DeviceRuntime> make_rank_device(const std::string& name);

}  // namespace koine
