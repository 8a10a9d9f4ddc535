#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace koine {

/// What moves bytes between processes that run the same program: MPI here; another library takes
/// its place by these functions. All processes call the same ones in the same order, and each
/// returns once its own part is done. One thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual size_t rank() const = 0;
  virtual size_t count() const = 0;

  /// `data` of one rank becomes that of all.
  virtual void broadcast(std::span<std::byte> data, size_t from) = 0;
  /// `all` is what the ranks gave, in their order.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Of `count()` equal blocks, block k goes to rank k, and block k of `got` is from rank k.
  virtual void all_to_all(std::span<const std::byte> given, std::span<std::byte> got) = 0;
  /// The same with blocks of these bytes, one behind the other.
  virtual void all_to_all(std::span<const std::byte> given, std::span<const size_t> given_bytes,
                          std::span<std::byte> got, std::span<const size_t> got_bytes) = 0;

  /// Leaves the others in order. Waits for all.
  virtual void finish() = 0;
  /// Ends all processes, this one too.
  [[noreturn]] virtual void abort(int status) = 0;
};

/// OpenMPI's, found at run time. Throws Error (Device) where there is none, saying what to install.
std::unique_ptr<Transport> join_mpi(const std::string& library = "libmpi.so.40");

}  // namespace koine
