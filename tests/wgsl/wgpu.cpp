#include "wgpu.hpp"

#include <wgpu.h>

#include <cstring>
#include <stdexcept>

#include "backends.hpp"

namespace koine::test {
namespace {

std::string text_of(WGPUStringView view) {
  if (view.data == nullptr) return "";
  return view.length == WGPU_STRLEN ? view.data : std::string(view.data, view.length);
}
WGPUStringView view_of(const std::string& text) { return {text.data(), text.size()}; }

// What the device has complained of since this was last asked.
std::string& complaints() {
  static auto& text = *new std::string;
  return text;
}
void require_content(const std::string& doing, const std::string& source) {
  wgpuDevicePoll(wgpu_device(), 0, nullptr);
  const std::string found = std::exchange(complaints(), "");
  if (!found.empty()) throw std::runtime_error(doing + ": " + found + "\n" + source);
}

struct Waiting {
  WGPUAdapter adapter = nullptr;
  WGPUDevice device = nullptr;
  std::string message;
};

WGPUDevice start() {
  Waiting found;
  const WGPUInstance instance = wgpuCreateInstance(nullptr);
  WGPURequestAdapterCallbackInfo adapter{};
  adapter.mode = WGPUCallbackMode_AllowSpontaneous;
  adapter.userdata1 = &found;
  adapter.callback = [](WGPURequestAdapterStatus, WGPUAdapter given, WGPUStringView message,
                        void* to, void*) {
    static_cast<Waiting*>(to)->adapter = given;
    static_cast<Waiting*>(to)->message = text_of(message);
  };
  wgpuInstanceRequestAdapter(instance, nullptr, adapter);
  if (found.adapter == nullptr)
    throw std::runtime_error(
        "no device of Vulkan (Debian's mesa-vulkan-drivers has one for the CPU): " + found.message);
  WGPULimits limits = WGPU_LIMITS_INIT;
  wgpuAdapterGetLimits(found.adapter, &limits);
  WGPUDeviceDescriptor wanted{};
  wanted.requiredLimits = &limits;
  wanted.uncapturedErrorCallbackInfo.callback = [](const WGPUDevice*, WGPUErrorType,
                                                   WGPUStringView message, void*,
                                                   void*) { complaints() += text_of(message); };
  WGPURequestDeviceCallbackInfo device{};
  device.mode = WGPUCallbackMode_AllowSpontaneous;
  device.userdata1 = &found;
  device.callback = [](WGPURequestDeviceStatus, WGPUDevice given, WGPUStringView message, void* to,
                       void*) {
    static_cast<Waiting*>(to)->device = given;
    static_cast<Waiting*>(to)->message = text_of(message);
  };
  wgpuAdapterRequestDevice(found.adapter, &wanted, device);
  if (found.device == nullptr) throw std::runtime_error("no device: " + found.message);
  return found.device;
}

WGPUBuffer buffer_of(uint64_t bytes, WGPUBufferUsage usage) {
  WGPUBufferDescriptor wanted{};
  wanted.size = std::max<uint64_t>((bytes + 3) / 4 * 4, 4);
  wanted.usage = usage;
  return wgpuDeviceCreateBuffer(wgpu_device(), &wanted);
}

// What the device has in a buffer that the host may read.
void read(WGPUBuffer from, void* to, size_t bytes) {
  bool done = false;
  WGPUBufferMapCallbackInfo info{};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = &done;
  info.callback = [](WGPUMapAsyncStatus, WGPUStringView, void* flag, void*) {
    *static_cast<bool*>(flag) = true;
  };
  const size_t whole = (bytes + 3) / 4 * 4;
  wgpuBufferMapAsync(from, WGPUMapMode_Read, 0, whole, info);
  while (!done) wgpuDevicePoll(wgpu_device(), 1, nullptr);
  std::memcpy(to, wgpuBufferGetConstMappedRange(from, 0, whole), bytes);
  wgpuBufferUnmap(from);
}

}  // namespace

WGPUDevice wgpu_device() {
  static const WGPUDevice device = start();
  return device;
}

WgslLibrary::WgslLibrary(std::string source) : source_(std::move(source)) {
  WGPUShaderSourceWGSL code{};
  code.chain.sType = WGPUSType_ShaderSourceWGSL;
  code.code = view_of(source_);
  WGPUShaderModuleDescriptor wanted{};
  wanted.nextInChain = &code.chain;
  module_ = wgpuDeviceCreateShaderModule(wgpu_device(), &wanted);
  require_content("WGSL", source_);
}

WgslLibrary::~WgslLibrary() { wgpuShaderModuleRelease(module_); }

WGPUComputePipeline WgslLibrary::pipeline(const std::string& name) const {
  WGPUComputePipelineDescriptor wanted{};
  wanted.compute.module = module_;
  wanted.compute.entryPoint = view_of(name);
  const WGPUComputePipeline out = wgpuDeviceCreateComputePipeline(wgpu_device(), &wanted);
  require_content(name, source_);
  return out;
}

void WgslLibrary::run(const std::string& name, const std::vector<Given>& parameters,
                      const Signature& signature, const std::vector<int64_t>& variables) const {
  std::array<uint32_t, 3> grid = counts_of(signature.grid);
  grid[0] *= static_cast<uint32_t>(signature.threads);
  run(name, parameters, {variables.begin(), variables.end()}, grid);
}

void WgslLibrary::run(const std::string& name, const std::vector<Given>& parameters,
                      const std::vector<int32_t>& variables,
                      const std::array<uint32_t, 3>& grid) const {
  const WGPUQueue queue = wgpuDeviceGetQueue(wgpu_device());
  const WGPUComputePipeline program = pipeline(name);
  std::vector<WGPUBuffer> buffers, copies;
  std::vector<WGPUBindGroupEntry> entries;
  // A layout that follows from the kernel has what the kernel reads or writes, and no more.
  auto bind = [&](WGPUBuffer buffer, uint64_t bytes, const void* data) {
    std::vector<std::byte> whole(std::max<uint64_t>((bytes + 3) / 4 * 4, 4));
    std::memcpy(whole.data(), data, bytes);
    wgpuQueueWriteBuffer(queue, buffer, 0, whole.data(), whole.size());
    buffers.push_back(buffer);
    WGPUBindGroupEntry entry{};
    entry.binding = static_cast<uint32_t>(entries.size());
    entry.buffer = buffer;
    entry.size = whole.size();
    entries.push_back(entry);
  };
  const WGPUBufferUsage copied = WGPUBufferUsage_CopyDst | WGPUBufferUsage_CopySrc;
  for (const Given& p : parameters) {
    const auto bytes = static_cast<uint64_t>(p.bytes);
    bind(buffer_of(bytes, copied | WGPUBufferUsage_Storage), bytes, p.data);
    copies.push_back(buffer_of(bytes, WGPUBufferUsage_CopyDst | WGPUBufferUsage_MapRead));
  }
  for (const int32_t& v : variables)
    bind(buffer_of(4, copied | WGPUBufferUsage_Uniform), sizeof v, &v);
  WGPUBindGroupDescriptor bound{};
  bound.layout = wgpuComputePipelineGetBindGroupLayout(program, 0);
  bound.entryCount = entries.size();
  bound.entries = entries.data();
  const WGPUBindGroup group = wgpuDeviceCreateBindGroup(wgpu_device(), &bound);
  require_content(name, source_);
  const WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(wgpu_device(), nullptr);
  const WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, nullptr);
  wgpuComputePassEncoderSetPipeline(pass, program);
  wgpuComputePassEncoderSetBindGroup(pass, 0, group, 0, nullptr);
  wgpuComputePassEncoderDispatchWorkgroups(pass, grid[0], grid[1], grid[2]);
  wgpuComputePassEncoderEnd(pass);
  for (size_t i = 0; i < copies.size(); ++i)
    wgpuCommandEncoderCopyBufferToBuffer(encoder, buffers[i], 0, copies[i], 0, entries[i].size);
  const WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
  wgpuQueueSubmit(queue, 1, &commands);
  require_content(name, source_);
  for (size_t i = 0; i < copies.size(); ++i)
    read(copies[i], parameters[i].data, static_cast<size_t>(parameters[i].bytes));
  for (const auto& all : {buffers, copies})
    for (const WGPUBuffer b : all) wgpuBufferRelease(b);
  wgpuCommandBufferRelease(commands);
  wgpuComputePassEncoderRelease(pass);
  wgpuCommandEncoderRelease(encoder);
  wgpuBindGroupRelease(group);
  wgpuBindGroupLayoutRelease(bound.layout);
  wgpuComputePipelineRelease(program);
  wgpuQueueRelease(queue);
  ran_on("wgsl");
}

}  // namespace koine::test
