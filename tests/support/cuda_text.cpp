#include "cuda_text.hpp"

#include <dlfcn.h>

#include <stdexcept>

#include "backends.hpp"

namespace koine::test {
namespace {

// The functions of the CUDA driver and of NVRTC that are used, by the manuals of CUDA 12 and 13.
struct Api {
  // Of the driver; 0 is success.
  int (*init)(unsigned flags);
  int (*device)(int* device, int ordinal);
  int (*attribute)(int* value, int attribute, int device);
  int (*retain)(void** context, int device);
  int (*use)(void* context);
  int (*error_text)(int error, const char** text);
  int (*load)(void** module, const void* image);
  int (*unload)(void* module);
  int (*find)(void** function, void* module, const char* name);
  int (*allocate)(uint64_t* address, size_t bytes);
  int (*release)(uint64_t address);
  int (*to_device)(uint64_t to, const void* from, size_t bytes);
  int (*to_host)(void* to, uint64_t from, size_t bytes);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned group_x,
                unsigned group_y, unsigned group_z, unsigned shared_bytes, void* stream,
                void** parameters, void** extra);
  int (*finish)();
  // Of NVRTC.
  int (*create)(void** program, const char* source, const char* name, int headers,
                const char* const* header_texts, const char* const* header_names);
  int (*compile)(void* program, int options, const char* const* texts);
  int (*log_size)(void* program, size_t* bytes);
  int (*log)(void* program, char* text);
  int (*code_size)(void* program, size_t* bytes);
  int (*code)(void* program, char* bytes);
  int (*destroy)(void** program);

  std::string missing;       // why nothing runs
  std::string architecture;  // such as sm_90
};

void* library_of(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (void* found = dlopen(name.c_str(), RTLD_NOW)) return found;
  return nullptr;
}

template <class F>
void take(F& function, void* library, const char* name, std::string& missing) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) missing = fmt::format("{} is missing", name);
}

Api load_api() {
  Api a{};
  void* const driver = library_of({"libcuda.so.1"});
  if (driver == nullptr) return a.missing = "no libcuda.so.1, the driver of an NVIDIA GPU", a;
  void* const compiler = library_of({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  if (compiler == nullptr) return a.missing = "no libnvrtc.so, NVIDIA's compiler of CUDA C++", a;
  take(a.init, driver, "cuInit", a.missing);
  take(a.device, driver, "cuDeviceGet", a.missing);
  take(a.attribute, driver, "cuDeviceGetAttribute", a.missing);
  take(a.retain, driver, "cuDevicePrimaryCtxRetain", a.missing);
  take(a.use, driver, "cuCtxSetCurrent", a.missing);
  take(a.error_text, driver, "cuGetErrorString", a.missing);
  take(a.load, driver, "cuModuleLoadData", a.missing);
  take(a.unload, driver, "cuModuleUnload", a.missing);
  take(a.find, driver, "cuModuleGetFunction", a.missing);
  take(a.allocate, driver, "cuMemAlloc_v2", a.missing);
  take(a.release, driver, "cuMemFree_v2", a.missing);
  take(a.to_device, driver, "cuMemcpyHtoD_v2", a.missing);
  take(a.to_host, driver, "cuMemcpyDtoH_v2", a.missing);
  take(a.launch, driver, "cuLaunchKernel", a.missing);
  take(a.finish, driver, "cuCtxSynchronize", a.missing);
  take(a.create, compiler, "nvrtcCreateProgram", a.missing);
  take(a.compile, compiler, "nvrtcCompileProgram", a.missing);
  take(a.log_size, compiler, "nvrtcGetProgramLogSize", a.missing);
  take(a.log, compiler, "nvrtcGetProgramLog", a.missing);
  take(a.code_size, compiler, "nvrtcGetCUBINSize", a.missing);
  take(a.code, compiler, "nvrtcGetCUBIN", a.missing);
  take(a.destroy, compiler, "nvrtcDestroyProgram", a.missing);
  if (!a.missing.empty()) return a;
  constexpr int major = 75, minor = 76;  // of the compute capability
  int device = 0, version[2] = {};
  void* context = nullptr;
  if (a.init(0) != 0 || a.device(&device, 0) != 0 || a.retain(&context, device) != 0 ||
      a.use(context) != 0 || a.attribute(&version[0], major, device) != 0 ||
      a.attribute(&version[1], minor, device) != 0)
    return a.missing = "the driver has no GPU to give", a;
  a.architecture = fmt::format("sm_{}{}", version[0], version[1]);
  return a;
}

const Api& api() {
  static const auto& loaded = *new const Api(load_api());
  return loaded;
}

void require(int error, const std::string& doing) {
  if (error == 0) return;
  const char* text = nullptr;
  (void)api().error_text(error, &text);
  throw std::runtime_error(
      fmt::format("{}: {} ({})", doing, text != nullptr ? text : "unknown error", error));
}

// Machine code of a text.
std::string compiled(const std::string& source, bool fused) {
  const Api& a = api();
  void* program = nullptr;
  if (a.create(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) != 0)
    throw std::runtime_error("NVRTC takes no program");
  const std::string architecture = "--gpu-architecture=" + a.architecture,
                    contraction = fmt::format("--fmad={}", fused);
  const char* options[] = {architecture.c_str(), contraction.c_str(), "--disable-warnings"};
  const bool failed = a.compile(program, 3, options) != 0;
  size_t bytes = 0;
  (void)(failed ? a.log_size : a.code_size)(program, &bytes);
  std::string out(bytes, '\0');
  (void)(failed ? a.log : a.code)(program, out.data());
  (void)a.destroy(&program);
  if (failed) throw std::runtime_error("NVRTC refuses: " + out + "\n" + source);
  return out;
}

// Memory of the GPU, for as long as this lives.
struct Memory {
  explicit Memory(size_t bytes) { require(api().allocate(&address, bytes + 16), "cuMemAlloc"); }
  ~Memory() { (void)api().release(address); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint64_t address = 0;
};

}  // namespace

const std::string& cuda_missing() { return api().missing; }

CudaLibrary::CudaLibrary(const std::string& source, std::string_view language, bool fused)
    : language_(language) {
  if (!cuda_missing().empty()) throw std::runtime_error(cuda_missing());
  if (language == "cuda") add_module(compiled("#define KOINE_RUN(kernel)\n" + source, fused));
  constexpr std::string_view begin = ".version ";
  const size_t first = language == "ptx" ? source.find(begin) : source.npos;
  for (size_t at = first, next = 0; at != source.npos; at = next) {
    next = source.find(begin, at + 1);
    add_module(source.substr(at, next == source.npos ? next : next - at));
  }
}

void CudaLibrary::add_module(const std::string& image) {
  void* module = nullptr;
  require(api().load(&module, image.c_str()), "cuModuleLoadData");
  modules_.push_back(module);
}

CudaLibrary::~CudaLibrary() {
  for (void* module : modules_) (void)api().unload(module);
}

void CudaLibrary::run(const std::string& name, const std::vector<Given>& parameters,
                      const Signature& signature, const std::vector<int64_t>& variables) const {
  const Api& a = api();
  void* function = nullptr;
  for (void* module : modules_)
    if (a.find(&function, module, name.c_str()) == 0) break;
  if (function == nullptr) throw std::runtime_error("no kernel " + name);
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<void*> addresses;
  for (const Given& p : parameters) {
    const auto bytes = static_cast<size_t>(p.bytes);
    memory.push_back(std::make_unique<Memory>(bytes));
    require(a.to_device(memory.back()->address, p.data, bytes), "to the GPU");
    addresses.push_back(&memory.back()->address);
  }
  std::vector<int64_t> values = variables;
  for (int64_t& v : values) addresses.push_back(&v);
  const auto grid = counts_of(signature.grid), group = counts_of(signature.group);
  require(a.launch(function, grid[0], grid[1], grid[2], group[0], group[1], group[2], 0, nullptr,
                   addresses.data(), nullptr),
          "the launch of " + name);
  require(a.finish(), name);
  for (size_t i = 0; i < memory.size(); ++i)
    require(
        a.to_host(parameters[i].data, memory[i]->address, static_cast<size_t>(parameters[i].bytes)),
        "from the GPU");
  ran_on("gpu");
}

}  // namespace koine::test
