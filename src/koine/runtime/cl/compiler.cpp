#include "koine/runtime/cl/compiler.hpp"

#include <algorithm>
#include <atomic>
#include <memory>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/cl/events.hpp"

namespace koine::cl {
namespace {

BuiltProgram owned(cl_program program, cl_int status) {
  check(status, "making a program");
  return {program, [](cl_program p) { api().clReleaseProgram(p); }};
}

std::atomic<uint64_t> programs_made = 0;

std::string options_for(const Hardware& on) {
  return fmt::format("-cl-std=CL1.2{}",
                     on.rounds_right ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
}

std::string build_log(const Hardware& on, cl_program program) {
  size_t bytes = 0;
  api().clGetProgramBuildInfo(program, on.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
  std::string out(bytes, '\0');
  api().clGetProgramBuildInfo(program, on.id, CL_PROGRAM_BUILD_LOG, bytes, out.data(), nullptr);
  return out.substr(0, out.find('\0'));
}

void build(const Hardware& on, cl_program program, const std::string& names) {
  const cl_int status =
      api().clBuildProgram(program, 1, &on.id, options_for(on).c_str(), nullptr, nullptr);
  KOINE_REQUIRE(status != CL_BUILD_PROGRAM_FAILURE, Device,
                "device CL: the compiler of '{}' refuses {} (KOINE_DEBUG=5 prints texts):\n{}",
                on.name, names, build_log(on, program));
  check(status, fmt::format("compiling {}", names));
}

BuiltProgram build_text(const Hardware& on, const std::string& text, const std::string& names) {
  const char* begin = text.data();
  const size_t length = text.size();
  cl_int status = CL_SUCCESS;
  const cl_program made = api().clCreateProgramWithSource(on.context, 1, &begin, &length, &status);
  BuiltProgram out = owned(made, status);
  build(on, out.get(), names);
  return out;
}

std::string binary_of(cl_program program) {
  size_t bytes = 0;
  check(api().clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr),
        "asking how large a program is");
  std::string out(bytes, '\0');
  auto* place = reinterpret_cast<unsigned char*>(out.data());
  check(api().clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof place, &place, nullptr),
        "reading a compiled program");
  return out;
}

void require_computes(const Hardware& on, const LoweredKernel& kernel) {
  for (const UOp& u : kernel.linear.src()) {
    KOINE_REQUIRE(on.has_double || u.dtype() != DType::Float64, Device,
                  "device CL: '{}' does not compute float64, which kernel '{}' needs: cast to "
                  "float32 before",
                  on.name, kernel.name);
    KOINE_REQUIRE(on.adds_64_bits || !u.is(Op::AtomicAdd) || item_size(u.src(1).dtype()) != 8,
                  Device,
                  "device CL: '{}' does not add numbers of 64 bits at once, as kernel '{}' does "
                  "with {}: take 32 bits",
                  on.name, kernel.name, dtype_name(u.src(1).dtype()));
  }
}

}  // namespace

bool WorkSize::is_empty() const { return std::ranges::find(global, 0) != global.end(); }

WorkSize work_size(const Signature& signature, std::span<const int64_t> values) {
  WorkSize out{{static_cast<size_t>(signature.threads), 1, 1}, {1, 1, 1}};
  std::unordered_map<std::string, int64_t> variables;
  for (size_t i = 0; i < signature.variables.size(); ++i)
    variables[signature.variables[i]] = values[i];
  const auto size = [&](const UOp& bound) {
    return bound ? static_cast<size_t>(evaluate_index(bound, variables)) : 1;
  };
  for (size_t axis = 0; axis < 3; ++axis) {
    if (!signature.grid[axis] && !signature.group[axis]) continue;
    out.local[axis] = size(signature.group[axis]);
    out.global[axis] = size(signature.grid[axis]) * out.local[axis];
  }
  return out;
}

ClProgram::ClProgram(LoweredKernel kernel, const Hardware& on, BuiltProgram program,
                     std::string function)
    : Program(std::move(kernel)),
      on_(on),
      signature_(signature_of(kernel_.linear)),
      program_(std::move(program)),
      function_(std::move(function)),
      number_(++programs_made),
      for_launches_(make_kernel()) {}

OwnedKernel ClProgram::make_kernel() const {
  cl_int status = CL_SUCCESS;
  OwnedKernel out(api().clCreateKernel(program_.get(), function_.c_str(), &status),
                  api().clReleaseKernel);
  check(status, fmt::format("finding kernel '{}' in its program", function_));
  return out;
}

std::array<UOp, 3> ClProgram::grid() const {
  std::array<UOp, 3> out = Program::grid();
  if (signature_.threads > 1) out[0] = index_const(signature_.threads);  // each a group of its own
  return out;
}

void ClProgram::set_arguments(cl_kernel kernel, const Launch& launch) const {
  cl_uint number = 0;
  const auto given = [&](cl_int status) {
    check(status, fmt::format("argument {} of kernel '{}'", number, name()));
    ++number;
  };
  for (const int64_t slot : signature_.slots)
    given(
        api().clSetKernelArgSVMPointer(kernel, number, launch.buffers[static_cast<size_t>(slot)]));
  for (const cl_long value : launch.variables)
    given(api().clSetKernelArg(kernel, number, sizeof value, &value));
}

cl_event ClProgram::enqueue(cl_command_queue queue, const Launch& launch) {
  const WorkSize size = work_size(signature_, launch.variables);
  if (size.is_empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  set_arguments(for_launches_.get(), launch);
  cl_event out = nullptr;
  check(api().clEnqueueNDRangeKernel(queue, for_launches_.get(), 3, nullptr, size.global.data(),
                                     size.local.data(), 0, nullptr, &out),
        fmt::format("launching kernel '{}'", name()));
  return out;
}

OwnedKernel ClProgram::record(const CommandBuffers& with, cl_command_buffer_khr to,
                              const Launch& launch) {
  OwnedKernel out = make_kernel();
  set_arguments(out.get(), launch);
  const WorkSize size = work_size(signature_, launch.variables);
  if (!size.is_empty() && with.add(to, nullptr, nullptr, out.get(), 3, nullptr, size.global.data(),
                                   size.local.data(), 0, nullptr, nullptr, nullptr) != CL_SUCCESS)
    out.reset();
  return out;
}

void ClProgram::run(const Launch& launch) {
  on_.require_usable();
  Events events;
  if (const cl_event e = enqueue(on_.service, launch)) events.add(e);
  events.wait();
}

std::string ClProgram::source() const {
  return render("opencl", kernel_.name, kernel_.linear, false);
}

ClCompiler::ClCompiler(const Hardware& on) : on_(on), plain_(on.target(false)) {
  if (on.rounds_right) strict_ = on.target(true);
}

const Target& ClCompiler::target(const CompileOptions& how) const {
  if (!how.strict) return plain_;
  if (!strict_) (void)on_.target(true);  // says why there is none
  return *strict_;
}

Blob ClCompiler::compile(LoweredKernel kernel) {
  on_.require_usable();
  require_computes(on_, kernel);
  const BuiltProgram program =
      build_text(on_, render("opencl", kernel.name, kernel.linear), kernel.name);
  std::string made_for = blob_target(target(kernel.how));
  return {std::move(kernel), std::move(made_for), binary_of(program.get())};
}

std::shared_ptr<Program> ClCompiler::load(Blob blob) {
  on_.require_usable();
  require_target(blob, target(blob.kernel.how));
  const std::string name = blob.kernel.name;
  const auto* code = reinterpret_cast<const unsigned char*>(blob.code.data());
  const size_t length = blob.code.size();
  cl_int of_code = CL_SUCCESS, status = CL_SUCCESS;
  const cl_program made =
      api().clCreateProgramWithBinary(on_.context, 1, &on_.id, &length, &code, &of_code, &status);
  BuiltProgram program = owned(made, status);
  build(on_, program.get(), name);
  return std::make_shared<ClProgram>(std::move(blob.kernel), on_, std::move(program), name);
}

std::vector<std::shared_ptr<Program>> ClCompiler::make(std::vector<LoweredKernel> kernels) {
  on_.require_usable();
  std::string text;
  std::vector<std::string> functions;
  for (const LoweredKernel& k : kernels) {
    require_computes(on_, k);
    functions.push_back(fmt::format("{}_{}", k.name, functions.size()));
    text += render("opencl", functions.back(), k.linear, text.empty());
  }
  const BuiltProgram program = build_text(on_, text, fmt::format("{}", fmt::join(functions, ", ")));
  std::vector<std::shared_ptr<Program>> out;
  for (size_t i = 0; i < kernels.size(); ++i)
    out.push_back(std::make_shared<ClProgram>(std::move(kernels[i]), on_, program, functions[i]));
  return out;
}

}  // namespace koine::cl
