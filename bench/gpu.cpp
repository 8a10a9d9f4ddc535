// Kernels in CUDA C++ on a GPU of NVIDIA's, beside what the machine can do. `--only NAME` takes
// those whose names begin so; `--tiles` adds products with other tiles than the chosen ones;
// `--texts FOLDER` writes the texts instead, with how each is launched, and needs no GPU. The
// driver (libcuda) and NVRTC are loaded at run time: nothing of CUDA is needed to build this.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/device.hpp"
#include "koine/tensor/tensor.hpp"

namespace {

using namespace koine;

// Of an H100 SXM, by its data sheet.
constexpr double most_bytes = 3350e9, most_flops = 67e12, most_half_flops = 990e12;

void* library_of(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* found = dlopen(name, RTLD_NOW)) return found;
  throw std::runtime_error(fmt::format("there is no {}", *names.begin()));
}

void require(int error, const std::string& doing) {
  if (error != 0) throw std::runtime_error(fmt::format("{}: error {}", doing, error));
}

// Calls a function of a library by its name; 0 is success.
template <class... A>
void call(void* library, const char* name, A... arguments) {
  const auto f = reinterpret_cast<int (*)(A...)>(dlsym(library, name));
  if (f == nullptr) throw std::runtime_error(fmt::format("{} is missing", name));
  require(f(arguments...), name);
}

class Gpu {
 public:
  Gpu()
      : driver_(library_of({"libcuda.so.1"})),
        compiler_(library_of({"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"})) {
    int device = 0, major = 0, minor = 0;
    void* context = nullptr;
    call(driver_, "cuInit", 0U);
    call(driver_, "cuDeviceGet", &device, 0);
    call(driver_, "cuDeviceGetAttribute", &major, 75, device);
    call(driver_, "cuDeviceGetAttribute", &minor, 76, device);
    call(driver_, "cuDevicePrimaryCtxRetain", &context, device);
    call(driver_, "cuCtxSetCurrent", context);
    call(driver_, "cuDeviceGetName", name, 100, device);
    architecture_ = fmt::format("--gpu-architecture=sm_{}{}", major, minor);
    for (void*& e : events_) call(driver_, "cuEventCreate", &e, 0U);
  }

  uint64_t allocate(size_t bytes) const {
    uint64_t out = 0;
    call(driver_, "cuMemAlloc_v2", &out, bytes + 16);
    return out;
  }
  void release(uint64_t memory) const { call(driver_, "cuMemFree_v2", memory); }
  void to_device(uint64_t to, const void* from, size_t bytes) const {
    call(driver_, "cuMemcpyHtoD_v2", to, from, bytes);
  }
  void to_host(void* to, uint64_t from, size_t bytes) const {
    call(driver_, "cuMemcpyDtoH_v2", to, from, bytes);
  }

  void* function(const std::string& text, const std::string& kernel) const {
    void *program = nullptr, *module = nullptr, *out = nullptr;
    const char* const none = nullptr;
    call(compiler_, "nvrtcCreateProgram", &program, text.c_str(), "k.cu", 0, &none, &none);
    const char* options[] = {architecture_.c_str(), "--fmad=false", "--disable-warnings"};
    call(compiler_, "nvrtcCompileProgram", program, 3, static_cast<const char* const*>(options));
    size_t bytes = 0;
    call(compiler_, "nvrtcGetCUBINSize", program, &bytes);
    std::string image(bytes, '\0');
    call(compiler_, "nvrtcGetCUBIN", program, image.data());
    call(driver_, "cuModuleLoadData", &module, static_cast<const void*>(image.data()));
    call(driver_, "cuModuleGetFunction", &out, module, kernel.c_str());
    return out;
  }
  // Registers of a thread, and bytes that it spills.
  std::pair<int, int> registers(void* function) const {
    int count = 0, spilled = 0;
    call(driver_, "cuFuncGetAttribute", &count, 4, function);
    call(driver_, "cuFuncGetAttribute", &spilled, 3, function);
    return {count, spilled};
  }

  void launch(void* function, const std::array<unsigned, 3>& grid,
              const std::array<unsigned, 3>& group, std::vector<uint64_t>& buffers) const {
    std::vector<void*> parameters;
    for (uint64_t& b : buffers) parameters.push_back(&b);
    void** const extra = nullptr;
    void* const stream = nullptr;
    call(driver_, "cuLaunchKernel", function, grid[0], grid[1], grid[2], group[0], group[1],
         group[2], 0U, stream, parameters.data(), extra);
  }
  // Seconds of the fastest of some runs.
  double best_of(int runs, const std::function<void()>& run) const {
    float best = INFINITY, now = 0;
    void* const stream = nullptr;
    for (int i = 0; i < runs; ++i) {
      call(driver_, "cuEventRecord", events_[0], stream);
      run();
      call(driver_, "cuEventRecord", events_[1], stream);
      call(driver_, "cuEventSynchronize", events_[1]);
      call(driver_, "cuEventElapsedTime", &now, events_[0], events_[1]);
      best = std::min(best, now);
    }
    return static_cast<double>(best) * 1e-3;
  }

  char name[100] = {};

 private:
  void *driver_, *compiler_;
  std::string architecture_;
  std::array<void*, 2> events_{};
};

// Numbers that float16 and bfloat16 hold, and whose products' sums are exact.
constexpr float numbers[] = {-1, -0.5, 0, 0.5, 1, 0.5, -1, 0.25};
float number_at(size_t input, size_t i) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u + input * 0xD1B54A32D192ED03u;
  x ^= x >> 29;
  return numbers[(x * 0xBF58476D1CE4E5B9u) >> 61];
}

uint16_t half_of(float v) {  // of these numbers
  uint32_t bits = 0;
  std::memcpy(&bits, &v, 4);
  if (v == 0) return 0;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
                               (bits >> 13 & 0x3ff));
}
double value_of(const std::byte* at, DType d) {
  if (d == DType::Float32) {
    float v = 0;
    std::memcpy(&v, at, 4);
    return v;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  if (d == DType::BFloat16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float v = 0;
    std::memcpy(&v, &wide, 4);
    return v;
  }
  const int exponent = bits >> 10 & 31;
  const double m =
      exponent == 0 ? (bits & 1023) * 0x1p-24 : std::ldexp(1024 + (bits & 1023), exponent - 25);
  return (bits & 0x8000) != 0 ? -m : m;
}

// What is measured: a value of some inputs, the element of it that a plain loop gives, and the work
// there is at least.
struct Case {
  std::string name;
  std::vector<Tensor> inputs;
  Tensor value;
  std::function<double(size_t)> expected;
  double work, most;
  std::string_view unit;
  std::vector<Opt> edits = {};  // of its kernel; empty: those that are chosen
};

Tensor input(std::vector<int64_t> sizes, DType dtype = DType::Float32) {
  return Tensor(new_buffer(shape_of(sizes), dtype, Device("CPU")));
}

// Products with other tiles than the chosen ones, and other steps through LOCAL memory.
std::vector<Case> tiles_of(const Case& product, bool on_core) {
  struct Tile {
    int64_t row_threads, rows, column_threads, columns, steps;
  };
  constexpr Tile tiles[] = {{16, 8, 16, 8, 16},
                            {16, 8, 16, 8, 32},
                            {8, 16, 16, 8, 16},
                            {16, 8, 8, 16, 16},
                            {16, 8, 16, 4, 32}},
                 of_cores[] = {{2, 4, 2, 8, 2}, {2, 4, 2, 8, 4}, {2, 4, 4, 4, 4},
                               {4, 2, 2, 8, 4}, {2, 2, 2, 8, 4}, {2, 4, 2, 4, 4}};
  std::vector<Case> out;
  for (const Tile& t : on_core ? std::span<const Tile>(of_cores) : std::span<const Tile>(tiles)) {
    Case c = product;
    c.name +=
        fmt::format(" {}x{} {}x{} {}", t.row_threads, t.column_threads, t.rows, t.columns, t.steps);
    if (on_core) c.edits.push_back({OptOp::TC, 2, 0, AxisType::Loop, false, {1, 0, 1}});
    for (const auto& [at, threads, each] :
         {std::tuple{1, t.column_threads, t.columns}, {0, t.row_threads, t.rows}}) {
      const Opt parts[] = {{OptOp::Split, at, each, AxisType::Upcast},
                           {OptOp::Split, at, threads, AxisType::Local}};
      for (const Opt& part : {parts[on_core ? 0 : 1], parts[on_core ? 1 : 0]})
        if (part.amount > 1) c.edits.push_back(part);
    }
    // The loop of the sum stands behind all others, those of a core too.
    const int sum = static_cast<int>(c.edits.size()) + (on_core ? 5 : 2);
    if (t.steps > 1) c.edits.push_back({OptOp::Split, sum, t.steps, AxisType::Reduce});
    if (t.steps > 0) c.edits.push_back({OptOp::Stage, sum});
    const int columns = 1 + (t.row_threads > 1 ? 1 : 0) + (t.rows > 1 ? 1 : 0);
    for (const int at : {0, columns}) c.edits.push_back({OptOp::Split, at, 0, AxisType::Global});
    out.push_back(std::move(c));
  }
  return out;
}

std::vector<Case> shapes() {
  std::vector<Case> out;
  auto moves = [&](std::string name, std::vector<Tensor> inputs, const Tensor& value,
                   std::function<double(size_t)> expected) {
    double bytes = static_cast<double>(value.uop().numel()) * 4;
    for (const Tensor& t : inputs) bytes += static_cast<double>(t.uop().numel()) * 4;
    out.push_back({std::move(name), std::move(inputs), value, std::move(expected), bytes,
                   most_bytes, "GB/s"});
  };
  const auto x = [](size_t i) { return static_cast<double>(number_at(0, i)); };
  {
    const Tensor a = input({1 << 26}), b = input({1 << 26});
    moves("a + b", {a, b}, a + b, [=](size_t i) { return x(i) + number_at(1, i); });
    moves("gelu", {a}, a.gelu(), [=](size_t i) {
      return 0.5 * x(i) *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x(i) + 0.044715 * x(i) * x(i) * x(i))));
    });
  }
  for (const auto& [rows, columns] : {std::pair<size_t, size_t>{16384, 4096}, {1 << 18, 256}}) {
    const Tensor a = input({static_cast<int64_t>(rows), static_cast<int64_t>(columns)});
    const std::string size = fmt::format(" {}x{}", rows, columns);
    const auto row = [=, n = columns](size_t r, const std::function<double(double)>& f) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += f(x(r * n + i));
      return sum;
    };
    const size_t n = columns, m = rows;
    moves("sums of rows" + size, {a}, a.sum({1}),
          [=](size_t r) { return row(r, [](double v) { return v; }); });
    moves("sums of columns" + size, {a}, a.sum({0}), [=](size_t c) {
      double sum = 0;
      for (size_t i = 0; i < m; ++i) sum += x(i * n + c);
      return sum;
    });
    moves("softmax" + size, {a}, a.softmax(1), [=](size_t i) {
      return std::exp(x(i)) / row(i / n, [](double v) { return std::exp(v); });
    });
    moves("layernorm" + size, {a}, a.layernorm(), [=](size_t i) {
      const double mean = row(i / n, [](double v) { return v; }) / static_cast<double>(n),
                   square = row(i / n, [](double v) { return v * v; }) / static_cast<double>(n);
      return (x(i) - mean) / std::sqrt(square - mean * mean + 1e-5);
    });
  }
  {
    const Tensor a = input({1 << 27});
    moves("sum of all", {a}, a.sum(), [=](size_t) {
      double sum = 0;
      for (size_t i = 0; i < size_t{1} << 27; ++i) sum += x(i);
      return sum;
    });
  }
  for (const auto& [n, dtype] : {std::pair<int64_t, DType>{4096, DType::Float32},
                                 {1024, DType::Float32},
                                 {4096, DType::Float16},
                                 {4096, DType::BFloat16},
                                 {1024, DType::Float16}}) {
    const Tensor a = input({n, n}, dtype), b = input({n, n}, dtype);
    const auto size = static_cast<size_t>(n);
    const auto products = [=](size_t i) {
      double sum = 0;
      for (size_t k = 0; k < size; ++k)
        sum += x(i / size * size + k) * number_at(1, k * size + i % size);
      return sum;
    };
    out.push_back({fmt::format("gemm {} {}", n, dtype_name(dtype)),
                   {a, b},
                   a.matmul(b),
                   products,
                   2 * std::pow(static_cast<double>(n), 3),
                   dtype == DType::Float32 ? most_flops : most_half_flops,
                   "TFLOP/s"});
  }
  return out;
}

// A kernel as text, and how it is launched.
struct Launch {
  LoweredKernel kernel;
  std::vector<UOp> buffers;  // by slot
  UOp result;                // the last that it stores
  std::string text;
  Signature signature;
  std::array<unsigned, 3> grid{1, 1, 1}, group{1, 1, 1};
};

std::vector<Launch> launches_of(const Case& shape) {
  const Target target = text_target("cuda", false);
  const CompileOptions how = options_for(target);
  std::vector<Launch> out;
  const UOp value = shape.value.uop();
  const UOp memory = new_buffer(value.shape(), value.dtype(), Device("CPU"));
  const Callified program = callify({value}, {memory}, how);
  for (const Kernel& k : kernels_of(rangeify(split_large_reduces(program.body, how), how))) {
    const std::vector<Opt>* edits = shape.edits.empty() ? nullptr : &shape.edits;
    Launch l{lower_kernel(k.ast, target, {}, edits), {}, {}, "", {}};
    for (const UOp& b : k.buffers)
      l.buffers.push_back(
          b.is(Op::Param) ? program.arguments[static_cast<size_t>(b.as<BufferArg>().slot)] : b);
    for (size_t slot = 0; slot < k.buffers.size(); ++slot)
      if (k.stores(slot)) l.result = l.buffers[slot];
    l.text = render("cuda", l.kernel.name, l.kernel.linear);
    l.signature = signature_of(l.kernel.linear);
    for (size_t axis = 0; axis < 3; ++axis) {
      const auto count = [](const UOp& n) { return n ? static_cast<unsigned>(const_int(n)) : 1U; };
      l.grid[axis] = count(l.signature.grid[axis]);
      l.group[axis] = count(l.signature.group[axis]);
    }
    out.push_back(std::move(l));
  }
  return out;
}

std::string launch_text(const Launch& l) {
  std::string edits;
  for (const Opt& opt : l.kernel.opts) edits += " " + opt_text(opt);
  return fmt::format("{} in {} groups of {}:{}", l.kernel.name, fmt::join(l.grid, "x"),
                     fmt::join(l.group, "x"), edits);
}

void write_texts(const std::string& folder, const Case& shape) {
  int number = 0;
  for (const Launch& l : launches_of(shape)) {
    std::string file = fmt::format("{} {}", shape.name, number++);
    std::replace(file.begin(), file.end(), ' ', '_');
    std::ofstream(fmt::format("{}/{}.cu", folder, file))
        << fmt::format("// {}: {}\n{}", shape.name, launch_text(l), l.text);
    fmt::print("{:32} {}\n", shape.name, launch_text(l));
  }
}

void measure(const Gpu& gpu, const Case& shape) try {
  std::map<const Node*, uint64_t> memory;
  std::vector<Launch> launches = launches_of(shape);
  std::vector<void*> functions;
  std::vector<std::vector<uint64_t>> parameters;
  std::string registers;
  UOp result;
  for (size_t k = 0; k < shape.inputs.size(); ++k) {
    const UOp& u = shape.inputs[k].uop();
    const auto n = static_cast<size_t>(u.numel()), item = static_cast<size_t>(item_size(u.dtype()));
    std::vector<std::byte> host(n * item);
    for (size_t i = 0; i < n; ++i) {
      const float v = number_at(k, i);
      const uint16_t half = half_of(v);
      const std::byte* from = reinterpret_cast<const std::byte*>(&v);
      if (u.dtype() == DType::Float16) from = reinterpret_cast<const std::byte*>(&half);
      if (u.dtype() == DType::BFloat16) from += 2;
      std::memcpy(host.data() + i * item, from, item);
    }
    memory[u.node()] = gpu.allocate(host.size());
    gpu.to_device(memory[u.node()], host.data(), host.size());
  }
  for (const Launch& l : launches) {
    functions.push_back(gpu.function(l.text, l.kernel.name));
    const auto [count, spilled] = gpu.registers(functions.back());
    registers += fmt::format(" {}r{}", count, spilled > 0 ? fmt::format("+{}B", spilled) : "");
    parameters.emplace_back();
    for (const int64_t slot : l.signature.slots) {
      const UOp& u = l.buffers[static_cast<size_t>(slot)];
      if (!memory.contains(u.node()))
        memory[u.node()] = gpu.allocate(static_cast<size_t>(u.numel() * item_size(u.dtype())));
      parameters.back().push_back(memory[u.node()]);
    }
    result = l.result;
  }
  for (const Tensor& t : shape.inputs)
    if (std::none_of(launches.begin(), launches.end(), [&](const Launch& l) {
          return std::find(l.buffers.begin(), l.buffers.end(), t.uop()) != l.buffers.end();
        }))
      throw std::runtime_error("an input is read by no kernel");
  const auto run = [&] {
    for (size_t i = 0; i < launches.size(); ++i)
      gpu.launch(functions[i], launches[i].grid, launches[i].group, parameters[i]);
  };
  run();
  const double seconds = gpu.best_of(10, run);
  const DType dtype = result.dtype();
  const auto n = static_cast<size_t>(result.numel()), item = static_cast<size_t>(item_size(dtype));
  std::vector<std::byte> host(n * item);
  gpu.to_host(host.data(), memory.at(result.node()), host.size());
  double worst = 0;
  for (size_t i = 0; i < n; i += std::max<size_t>(n / 37, 1)) {
    const double expected = shape.expected(i), got = value_of(host.data() + i * item, dtype);
    worst = std::max(worst, std::fabs(got - expected) / std::max(1.0, std::fabs(expected)));
    if (std::isnan(got)) worst = INFINITY;
  }
  const double scale = shape.unit == "GB/s" ? 1e9 : 1e12, speed = shape.work / seconds;
  fmt::print("{:28} {:9.3f} ms {:9.1f} of {:5.0f} {:8} {:5.1f} %  error {:8.1e}{} {}\n", shape.name,
             seconds * 1e3, speed / scale, shape.most / scale, shape.unit, 100 * speed / shape.most,
             worst, worst < (dtype == DType::BFloat16 ? 4e-3 : 2e-3) ? "" : " WRONG", registers);
  for (const Launch& l : launches) fmt::print("    {}\n", launch_text(l));
  std::fflush(stdout);
  for (const auto& [node, address] : memory) gpu.release(address);
} catch (const std::exception& e) {
  fmt::print("{:28} {}\n", shape.name, e.what());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    bool tiles = false;
    std::string folder, only;
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--tiles") {
        tiles = true;
      } else if (word == "--texts" && i + 1 < argc) {
        folder = argv[++i];
      } else if (word == "--only" && i + 1 < argc) {
        only = argv[++i];
      } else {
        fmt::print(stderr, "usage: {} [--only NAME] [--tiles] [--texts FOLDER]\n", argv[0]);
        return 2;
      }
    }
    std::vector<Case> cases;
    for (Case& c : shapes()) {
      if (!c.name.starts_with(only)) continue;
      cases.push_back(c);
      if (!tiles || !c.name.starts_with("gemm 4096") || c.name.ends_with("bfloat16")) continue;
      for (Case& t : tiles_of(c, c.name.ends_with("float16"))) cases.push_back(std::move(t));
    }
    if (!folder.empty()) {
      for (const Case& c : cases) write_texts(folder, c);
      return 0;
    }
    const Gpu gpu;
    fmt::print("{}\n", gpu.name);
    for (const Case& c : cases) measure(gpu, c);
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
