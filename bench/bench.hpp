#pragma once
#include <functional>
#include <string>
#include <vector>

// A benchmark is a row of one table: what was measured, the limit or goal measured or stated in the
// same run, and their ratio. Times are the best of many, because the machine is shared.
namespace koine::bench {

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;  ///< of this run, or a stated goal
  std::string limit_name;
  bool higher_is_better = true;
  double wanted = 1;  ///< the ratio that is asked for
  /// value/limit, or limit/value for times: above `wanted` is good.
  double ratio() const { return higher_is_better ? value / limit : limit / value; }
  bool reached() const { return ratio() >= wanted; }
};

using Rows = std::vector<Row>;

/// Seconds of one call: the best of as many as fit into `budget` seconds, at least three.
double best_seconds(const std::function<void()>& action, double budget = 0.5);

struct Limits {
  double fma_one_thread;  ///< float32 operations a second
  double fma_all_threads;
  double read_bandwidth;  ///< bytes a second, all threads
  double copy_bandwidth;  ///< bytes read plus written a second, all threads
};
Limits measure_limits();

void bench_compile(Rows& rows, const char* self);
void bench_kernels(Rows& rows, const Limits& limits);
/// On the device CL, whose OpenCL is that of a CPU.
void bench_opencl(Rows& rows, const Limits& limits);
/// Running what was prepared.
void bench_launches(Rows& rows);
/// Sizes that are no multiple of a vector, as shares of sizes that are.
void bench_widths(Rows& rows);
/// What a child process does for the first-operation row.
int run_first_operation();

}  // namespace koine::bench
