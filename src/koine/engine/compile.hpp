#pragma once
#include <memory>
#include <vector>

#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

namespace koine {

/// A kernel and the device that is to run it.
struct CompileRequest {
  UOp ast;
  DeviceRuntime* device;
};

/// Stages 3 to 8: a program for each request, equal kernels sharing one. Those that the cache lacks
/// are compiled in parallel. With `change`, they neither come from the cache nor go there.
std::vector<std::shared_ptr<Program>> compile_kernels(const std::vector<CompileRequest>& requests,
                                                      const StageChange& change,
                                                      const CompileOptions& how);

/// A program that was compiled elsewhere serves equal kernels from now on.
void add_program(const CompileRequest& request, const CompileOptions& how,
                 std::shared_ptr<Program> program);

void clear_program_cache();

}  // namespace koine
