#pragma once
#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <string>
#include <string_view>

namespace koine::cl {

#define KOINE_CL_FUNCTIONS(X)           \
  X(clGetPlatformIDs)                   \
  X(clGetDeviceIDs)                     \
  X(clGetDeviceInfo)                    \
  X(clCreateContext)                    \
  X(clCreateCommandQueueWithProperties) \
  X(clSVMAlloc)                         \
  X(clSVMFree)                          \
  X(clEnqueueSVMMemcpy)                 \
  X(clEnqueueSVMMemFill)                \
  X(clCreateProgramWithSource)          \
  X(clCreateProgramWithBinary)          \
  X(clBuildProgram)                     \
  X(clGetProgramInfo)                   \
  X(clGetProgramBuildInfo)              \
  X(clReleaseProgram)                   \
  X(clCreateKernel)                     \
  X(clReleaseKernel)                    \
  X(clSetKernelArg)                     \
  X(clSetKernelArgSVMPointer)           \
  X(clEnqueueNDRangeKernel)             \
  X(clEnqueueBarrierWithWaitList)       \
  X(clWaitForEvents)                    \
  X(clGetEventInfo)                     \
  X(clRetainEvent)                      \
  X(clReleaseEvent)                     \
  X(clFlush)                            \
  X(clGetExtensionFunctionAddressForPlatform)

/// The functions of OpenCL's loader, by their own names.
struct Api {
#define KOINE_CL_MEMBER(name) decltype(&::name) name = nullptr;
  KOINE_CL_FUNCTIONS(KOINE_CL_MEMBER)
#undef KOINE_CL_MEMBER
};

/// Loads them. Throws Error (Device) that says what to install.
Api load_api(const std::string& library);
/// Those of libOpenCL.so.1, loaded once. Tests put functions that fail in the place of some.
Api& api();

/// The functions of the extension cl_khr_command_buffer.
struct CommandBuffers {
  clCreateCommandBufferKHR_fn create;
  clCommandNDRangeKernelKHR_fn add;
  clFinalizeCommandBufferKHR_fn finalize;
  clEnqueueCommandBufferKHR_fn enqueue;
  clReleaseCommandBufferKHR_fn release;
};

/// Throws Error for a status that is none of success, naming what was tried: Memory where there is
/// not enough, else Device.
void check(cl_int status, std::string_view what);

}  // namespace koine::cl
