#include "koine/runtime/cpu/code_memory.hpp"

#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/Support/Memory.h>
#include <llvm/Support/Process.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "koine/runtime/cpu/pages.hpp"

namespace koine {
namespace {

using llvm::jitlink::BasicLayout;
using llvm::jitlink::JITLinkMemoryManager;
using llvm::orc::MemProt;
using llvm::orc::shared::WrapperFunctionCall;

size_t page_size() {
  static const size_t size = llvm::sys::Process::getPageSizeEstimate();
  return size;
}

bool allows(MemProt protection, MemProt what) {
  return (static_cast<unsigned>(protection) & static_cast<unsigned>(what)) != 0;
}

// Addresses of code and constants that reach each other: the system gives pages when they are used.
class Region {
 public:
  static constexpr size_t bytes_of_each = size_t{1} << 28;

  static std::unique_ptr<Region> reserve() {
    void* at = mmap(nullptr, 2 * bytes_of_each, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    return std::unique_ptr<Region>(new Region(static_cast<char*>(at)));
  }

  Pages code, constants;

 private:
  explicit Region(char* begin)
      : code(begin, bytes_of_each / page_size(), page_size()),
        constants(begin + bytes_of_each, bytes_of_each / page_size(), page_size()) {}
};

struct Piece {
  Pages* from;
  char* at;
  size_t bytes;
  MemProt protection;
};

// What one object has.
struct Allocation {
  std::vector<Piece> pieces;
  std::vector<WrapperFunctionCall> at_end;
};

llvm::Error failed(const char* what) {
  return llvm::make_error<llvm::StringError>(llvm::Twine(what) + ": " + std::strerror(errno),
                                             std::error_code(errno, std::generic_category()));
}

class CodeMemory : public JITLinkMemoryManager {
 public:
  void allocate(const llvm::jitlink::JITLinkDylib*, llvm::jitlink::LinkGraph& graph,
                OnAllocatedFunction allocated) override {
    auto made = std::make_unique<Allocation>();
    if (llvm::Error error = lay_out(graph, *made)) {
      give_back(*made);
      return allocated(std::move(error));
    }
    allocated(std::make_unique<InFlight>(*this, graph, std::move(made)));
  }

  void deallocate(std::vector<FinalizedAlloc> given, OnDeallocatedFunction done) override {
    llvm::Error error = llvm::Error::success();
    for (FinalizedAlloc& one : given) {
      const std::unique_ptr<Allocation> allocation(one.release().toPtr<Allocation*>());
      error = llvm::joinErrors(std::move(error),
                               llvm::orc::shared::runDeallocActions(allocation->at_end));
      give_back(*allocation);
    }
    done(std::move(error));
  }

 private:
  class InFlight : public InFlightAlloc {
   public:
    InFlight(CodeMemory& memory, llvm::jitlink::LinkGraph& graph, std::unique_ptr<Allocation> made)
        : memory_(memory), graph_(graph), made_(std::move(made)) {}

    void abandon(OnAbandonedFunction done) override {
      memory_.give_back(*made_);
      done(llvm::Error::success());
    }

    void finalize(OnFinalizedFunction done) override {
      for (const Piece& piece : made_->pieces) {
        if (mprotect(piece.at, piece.bytes, protection_of(piece.protection)) != 0)
          return done(failed("protect code"));
        if (allows(piece.protection, MemProt::Exec))
          llvm::sys::Memory::InvalidateInstructionCache(piece.at, piece.bytes);
      }
      auto at_end = llvm::orc::shared::runFinalizeActions(graph_.allocActions());
      if (!at_end) return done(at_end.takeError());
      made_->at_end = std::move(*at_end);
      done(FinalizedAlloc(llvm::orc::ExecutorAddr::fromPtr(made_.release())));
    }

   private:
    static int protection_of(MemProt p) {
      int out = PROT_READ;
      if (allows(p, MemProt::Write)) out |= PROT_WRITE;
      if (allows(p, MemProt::Exec)) out |= PROT_EXEC;
      return out;
    }

    CodeMemory& memory_;
    llvm::jitlink::LinkGraph& graph_;
    std::unique_ptr<Allocation> made_;
  };

  // Takes writable pages for each segment, in one region.
  llvm::Error lay_out(llvm::jitlink::LinkGraph& graph, Allocation& out) {
    BasicLayout layout(graph);
    const std::lock_guard lock(mutex_);
    const bool found = std::any_of(regions_.begin(), regions_.end(), [&](const auto& region) {
      return take_all(layout, *region, out);
    });
    if (!found) {
      auto more = Region::reserve();
      if (!more) return failed("reserve addresses for code");
      regions_.push_back(std::move(more));
      if (!take_all(layout, *regions_.back(), out))
        return llvm::make_error<llvm::StringError>("code that fits no region",
                                                   llvm::inconvertibleErrorCode());
    }
    for (const Piece& piece : out.pieces) {
      if (mprotect(piece.at, piece.bytes, PROT_READ | PROT_WRITE) != 0)
        return failed("make pages for code");
      std::memset(piece.at, 0, piece.bytes);
    }
    return layout.apply();
  }

  static bool take_all(BasicLayout& layout, Region& region, Allocation& out) {
    for (auto& [group, segment] : layout.segments()) {
      const MemProt protection = group.getMemProt();
      const bool code = allows(protection, MemProt::Exec);
      Pages& from = code ? region.code : region.constants;
      const size_t bytes = segment.ContentSize + segment.ZeroFillSize;
      const size_t pages = std::max<size_t>(1, (bytes + page_size() - 1) / page_size());
      char* at = from.take(pages);
      if (at == nullptr) {
        give_back_locked(out);
        return false;
      }
      out.pieces.push_back({&from, at, pages * page_size(), protection});
      segment.WorkingMem = at;
      segment.Addr = llvm::orc::ExecutorAddr::fromPtr(at);
    }
    return true;
  }

  void give_back(Allocation& allocation) {
    const std::lock_guard lock(mutex_);
    give_back_locked(allocation);
  }
  // The pages keep their protection, so that their neighbours' mapping stays one.
  static void give_back_locked(Allocation& allocation) {
    for (const Piece& piece : allocation.pieces) {
      (void)madvise(piece.at, piece.bytes, MADV_DONTNEED);
      piece.from->give_back(piece.at, piece.bytes / page_size());
    }
    allocation.pieces.clear();
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace

std::unique_ptr<JITLinkMemoryManager> make_code_memory() { return std::make_unique<CodeMemory>(); }

}  // namespace koine
