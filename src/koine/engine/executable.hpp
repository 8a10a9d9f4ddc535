#pragma once
#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/engine/located.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/runtime/device.hpp"

namespace koine {

struct LoopProgram;
class LoopRun;

/// A host program whose temporaries have places, and that is made from no other one.
struct PlannedProgram {
  UOp schedule;
};

/// A planned host program (`lower/schedule`) with a compiled program for each distinct kernel, and
/// the flat list made from it that runs. Immutable; any number of Submissions share it.
class Executable {
 public:
  /// Stages 2 to 8 of a stateless program, verified by KOINE_VERIFY. What lies on no device runs on
  /// `device`. With `change`, kernels neither come from the cache nor go there. `how`: the options,
  /// as they were when the program began to be compiled.
  Executable(const UOp& program, const std::string& device, const StageChange& change = {},
             const CompileOptions& how = compile_options());
  /// Stages 3 to 8 of a host program.
  Executable(const PlannedProgram& program, const std::string& device, const StageChange& change,
             const CompileOptions& how);

  /// The host program: what is printed, inspected and exported.
  const UOp& schedule() const { return schedule_; }
  /// Calls `visit` for each kernel, also those of loops, with the device that runs it.
  void each_program(
      const std::function<void(const UOp& kernel, DeviceRuntime&, const Program&)>& visit) const;
  /// What so many runs count, but for the loops in it, which count their own.
  void add_work(int64_t runs, Counters& counters) const;

 private:
  friend class Submission;

  // What of an argument of the program lies on a device.
  struct Given {
    size_t slot;
    Device device;
    bool operator==(const Given&) const = default;
  };
  // Where an argument of a launch lies.
  struct Place {
    size_t memory;   // the number of what is given; of an arena behind these
    int64_t offset;  // in bytes
    int64_t bytes;   // of a temporary; -1: as many as the argument has
  };
  // One Call.
  struct Entry {
    DeviceRuntime* device = nullptr;
    UOp call;
    std::shared_ptr<Program> program;         // of a kernel
    std::shared_ptr<const LoopProgram> loop;  // of a loop; neither: a function of the host
    size_t first_place = 0, places = 0;
    size_t first_variable = 0, variables = 0;
    std::vector<size_t> stored;  // slots of the program that it stores into
    bool copies = false;         // on the queue of its device; from a rank the host does
    bool between_ranks = false;  // a copy that the host runs with those beside it
  };
  // Entries that are handed to a queue together: launches, or a copy. Or what the host runs: copies
  // that ranks exchange, or one entry.
  struct Segment {
    size_t first = 0, count = 0;
    std::vector<size_t> waits;  // earlier segments, of other queues
  };
  struct Arena {
    Device device;
    int64_t bytes;
  };

  void make(const StageChange& change, const CompileOptions& how);
  DeviceRuntime& runtime_of(Device device) const;
  bool is_between_ranks(const Kernel& kernel) const;
  void require_one_rank(const Kernel& loop) const;
  /// Numbers of the arguments, by Param.
  absl::flat_hash_map<const Node*, size_t> find_arguments(const std::vector<Kernel>& kernels);
  void lay_out(const std::vector<Kernel>& kernels);
  void note_ranks(const std::vector<Kernel>& kernels);
  void note_users_code();
  void add_segments(const std::vector<Kernel>& kernels);
  void compile(const std::vector<Kernel>& kernels, const StageChange& change,
               const CompileOptions& how);

  std::string device_;  // of what lies on no device, such as constants
  UOp schedule_;
  std::vector<UOp> variables_;
  std::vector<Given> given_;
  std::vector<std::vector<size_t>> given_of_slot_;
  size_t arguments_ = 0;
  std::vector<Arena> arenas_;
  std::vector<Entry> entries_;
  std::vector<Segment> segments_;
  std::vector<Place> places_;
  std::vector<int64_t> constants_;              // Variables that a Call binds
  std::vector<size_t> variable_numbers_;        // of the program's, then of constants
  std::vector<std::vector<size_t>> places_of_;  // by the number of what is given
  std::map<std::string, int64_t> launches_;     // by device: entries but for checks and loops
  double operations_ = 0, bytes_ = 0;
  std::optional<uint64_t> ranks_;  // what they do together; none: nothing
  bool one_may_fail_ = false;      // a rank runs what the user wrote
};

/// An executable with its arguments: a step that can run again and again (row L9). It holds its
/// memory; one thread uses it at a time.
class Submission {
 public:
  /// `arguments[k]` is the Buffer for Param slot k. Throws Error (Value) where a Variable is out of
  /// its range or a Buffer has no memory.
  Submission(std::shared_ptr<const Executable> executable, std::span<const UOp> arguments,
             const VariableValues& variables);
  /// Its arguments and Variables follow (`set_place`, `set_variable`).
  explicit Submission(std::shared_ptr<const Executable> executable);
  ~Submission();
  Submission(Submission&&) noexcept;
  Submission& operator=(Submission&&) noexcept;

  /// Runs to completion, or up to a check that finds its flag set: then it is false. Throws Error
  /// (Key) where a Variable that a kernel reads has no value.
  bool run();
  /// The same without a word to the counters.
  bool run_uncounted();
  /// How many arguments the program has; it uses none of those that were given behind them.
  size_t arguments() const { return executable_->arguments_; }
  /// Another Buffer in place of an argument, of a size that this may have.
  void set_argument(size_t slot, const UOp& buffer);
  /// The bytes of an argument of which one device has all; what the program does not use is
  /// nothing to it.
  void set_place(size_t slot, const Located& place);
  void set_variable(const std::string& name, int64_t value);
  /// From the first launch that stores into one of these arguments on, nothing stops a run.
  void finish_once_stored(const std::vector<bool>& arguments);
  /// The host program that runs.
  const UOp& schedule() const { return executable_->schedule(); }

 private:
  void make_ready();
  bool run_segments();
  bool submit(const Executable::Segment& segment, size_t number);
  uint64_t launch(const Executable::Segment& segment);
  uint64_t copy(const Executable::Entry& entry);
  bool run_on_host(const Executable::Entry& entry);
  void run_users_code(const Executable::Entry& entry);
  bool check(const Executable::Entry& entry);
  void call_on_host(const Executable::Entry& entry);
  void exchange_between_ranks(std::span<const Executable::Entry> entries);
  void read_from_rank(const Executable::Entry& entry);
  void count_copy(const Executable::Entry& entry, int64_t bytes) const;
  void run_loop(const Executable::Entry& entry);
  Located located(const Executable::Entry& entry, size_t slot) const;
  void wait_for_segments(size_t count);
  Launch launch_of(const Executable::Entry& entry) const;
  void run_with_report(const Executable::Entry& entry);

  std::shared_ptr<const Executable> executable_;
  absl::InlinedVector<Located, 4> memory_;  // of what is given, then arenas
  std::vector<std::byte*> addresses_;       // of the places
  std::vector<int64_t> sizes_;
  std::vector<int64_t> bound_;  // of the Variables, then constants
  std::vector<bool> is_bound_;
  std::vector<int64_t> values_;  // as the launches want them
  std::vector<Command> commands_;
  absl::InlinedVector<uint64_t, 4> submitted_;   // numbers that the queues gave, by segment
  std::vector<std::unique_ptr<LoopRun>> loops_;  // by entry
  size_t whole_from_ = SIZE_MAX;                 // the entry from which on nothing stops a run
  std::exception_ptr failure_;                   // of this rank, in the middle of a run
  bool ready_ = false;
};

}  // namespace koine
