// OpenMPI without its headers, so that neither building nor running Koine needs it. Its handles are
// addresses of objects that the library exports, and its counts are ints.
#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "koine/base/error.hpp"
#include "koine/runtime/ranks/transport.hpp"

namespace koine {
namespace {

using Handle = void*;
constexpr int serialized = 2;  // MPI_THREAD_SERIALIZED

struct Mpi {
  int (*init)(int*, char***, int, int*);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*bcast)(void*, int, Handle, int, Handle);
  int (*all_gather)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*all_to_all)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*all_to_all_v)(const void*, const int*, const int*, Handle, void*, const int*, const int*,
                      Handle, Handle);
  int (*finalize)();
  int (*abort)(Handle, int);
  Handle world, byte;
};

template <class Symbol>
void find(void* library, const char* name, Symbol& symbol) {
  void* const address = dlsym(library, name);
  KOINE_REQUIRE(address != nullptr, Device,
                "distributed: the MPI library has no '{}': it is not OpenMPI 4, which is needed "
                "(Debian: apt-get install openmpi-bin)",
                name);
  symbol = reinterpret_cast<Symbol>(address);
}

Mpi load(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);  // its plugins look there
  KOINE_REQUIRE(library != nullptr, Device,
                "distributed: OpenMPI is not installed (Debian: apt-get install openmpi-bin): {}",
                dlerror());
  Mpi out;
  find(library, "MPI_Init_thread", out.init);
  find(library, "MPI_Comm_rank", out.comm_rank);
  find(library, "MPI_Comm_size", out.comm_size);
  find(library, "MPI_Bcast", out.bcast);
  find(library, "MPI_Allgather", out.all_gather);
  find(library, "MPI_Alltoall", out.all_to_all);
  find(library, "MPI_Alltoallv", out.all_to_all_v);
  find(library, "MPI_Finalize", out.finalize);
  find(library, "MPI_Abort", out.abort);
  find(library, "ompi_mpi_comm_world", out.world);
  find(library, "ompi_mpi_byte", out.byte);
  return out;
}

// Of blocks that lie behind each other: their sizes, and where they begin.
struct Blocks {
  std::vector<int> bytes, begins;
  explicit Blocks(std::span<const size_t> sizes) {
    size_t begin = 0;
    for (const size_t size : sizes) {
      bytes.push_back(static_cast<int>(size));
      begins.push_back(static_cast<int>(begin));
      begin += size;
    }
  }
};

// What goes wrong inside of MPI ends all processes with its message: that is its default.
class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const Mpi& mpi) : mpi_(mpi) {
    int provided = 0;
    mpi_.init(nullptr, nullptr, serialized, &provided);
    mpi_.comm_rank(mpi_.world, &rank_);
    mpi_.comm_size(mpi_.world, &count_);
  }
  size_t rank() const override { return static_cast<size_t>(rank_); }
  size_t count() const override { return static_cast<size_t>(count_); }

  void broadcast(std::span<std::byte> data, size_t from) override {
    mpi_.bcast(data.data(), static_cast<int>(data.size()), mpi_.byte, static_cast<int>(from),
               mpi_.world);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const auto bytes = static_cast<int>(mine.size());
    mpi_.all_gather(mine.data(), bytes, mpi_.byte, all.data(), bytes, mpi_.byte, mpi_.world);
  }
  void all_to_all(std::span<const std::byte> given, std::span<std::byte> got) override {
    const int bytes = static_cast<int>(given.size()) / count_;
    mpi_.all_to_all(given.data(), bytes, mpi_.byte, got.data(), bytes, mpi_.byte, mpi_.world);
  }
  void all_to_all(std::span<const std::byte> given, std::span<const size_t> given_bytes,
                  std::span<std::byte> got, std::span<const size_t> got_bytes) override {
    const Blocks out(given_bytes), in(got_bytes);
    mpi_.all_to_all_v(given.data(), out.bytes.data(), out.begins.data(), mpi_.byte, got.data(),
                      in.bytes.data(), in.begins.data(), mpi_.byte, mpi_.world);
  }
  void finish() override { mpi_.finalize(); }
  [[noreturn]] void abort(int status) override {
    mpi_.abort(mpi_.world, status);
    std::_Exit(status);
  }

 private:
  Mpi mpi_;
  int rank_ = 0, count_ = 1;
};

}  // namespace

std::unique_ptr<Transport> join_mpi(const std::string& library) {
  return std::make_unique<MpiTransport>(load(library));
}

}  // namespace koine
