// The graph behind a tensor, and what becomes of it: launches, kernels and programs, by hand.
#include <nanobind/stl/map.h>

#include <algorithm>
#include <koine/base/error.hpp>
#include <koine/ir/build.hpp>
#include <koine/ir/linear.hpp>
#include <koine/ir/text.hpp>
#include <koine/lower/pipeline.hpp>

#include "bind.hpp"
#include "program.hpp"

namespace koine::python {
namespace {

// Tensors and nodes, one or several.
std::vector<UOp> as_values(nb::handle given, const char* function) {
  if (nb::isinstance<UOp>(given)) return {nb::cast<UOp>(given)};
  if (nb::isinstance<Tensor>(given)) return {nb::cast<const Tensor&>(given).uop()};
  KOINE_REQUIRE(is_list(given), Type, "{}: takes tensors or nodes, one or a list of them, not '{}'",
                function, name_of_type(given));
  std::vector<UOp> out;
  for (const nb::handle h : given)
    out.push_back(nb::isinstance<UOp>(h) ? nb::cast<UOp>(h) : as_tensor(h, function).uop());
  return out;
}

// What a buffer of Python's lends while a program runs; let go with it.
class Lent {
 public:
  Lent(nb::handle given, bool writable, const std::string& what) {
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(given.ptr(), &view_, flags) == 0) return;
    bool refuses = false;
    for (PyObject* kind : {PyExc_BufferError, PyExc_TypeError, PyExc_ValueError})
      refuses = refuses || PyErr_ExceptionMatches(kind) != 0;
    if (!refuses) throw nb::python_error();
    PyErr_Clear();
    raise(ErrorKind::Type, "{}: takes a {}row-major buffer, such as a NumPy array{}, not a '{}'",
          what, writable ? "writable " : "", writable ? "" : " or a tensor", name_of_type(given));
  }
  ~Lent() { PyBuffer_Release(&view_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  void* data() const { return view_.buf; }
  int64_t bytes() const { return view_.len; }
  // Raw bytes, or elements of this dtype.
  bool fits(DType dtype) const {
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    const bool is_raw = format == "B" || format == "b" || format == "c";
    const std::string_view whole = is_unsigned(dtype) ? "BHILQ" : "bhilq", real = "efd";
    const std::string_view letters = dtype == DType::Bool ? "?" : is_float(dtype) ? real : whole;
    return is_raw || (view_.itemsize == item_size(dtype) && letters.find(format) < letters.size());
  }

 private:
  Py_buffer view_{};
};

// A parameter of a program: as many bytes as its largest size needs.
struct Parameter {
  UOp param;
  bool is_stored;
  int64_t bytes() const { return largest_bytes(param); }
};

std::map<int64_t, Parameter> parameters_of(const UOp& linear) {
  std::map<int64_t, Parameter> out;
  for (const UOp& u : linear.src())
    if (u.is(Op::Param) && u.as<BufferArg>().name.empty())
      out.emplace(u.as<BufferArg>().slot, Parameter{u, false});
  for (const UOp& u : linear.src()) {
    if (!u.is(Op::Store)) continue;
    const UOp& buffer = accessed_buffer(u);
    if (buffer.is(Op::Param)) out.at(buffer.as<BufferArg>().slot).is_stored = true;
  }
  return out;
}

std::vector<int64_t> values_of(const LoadedProgram& p, const nb::kwargs& given) {
  const std::vector<std::string> names = p.program->variables();
  std::vector<int64_t> out;
  for (const std::string& name : names) {
    KOINE_REQUIRE(given.contains(name.c_str()), Key, "{}: the variable '{}' has no value",
                  p.program->name(), name);
    out.push_back(as_int(given[name.c_str()], p.program->name().c_str(), name.c_str()));
    for (const UOp& u : p.program->kernel().linear.src())
      if (u.is(Op::Param) && u.as<BufferArg>().name == name) require_in_range(u, out.back());
  }
  for (const auto& [name, value] : given)
    KOINE_REQUIRE(std::find(names.begin(), names.end(), nb::cast<std::string>(name)) != names.end(),
                  Type, "{}: it has no variable '{}'", p.program->name(),
                  nb::cast<std::string>(name));
  return out;
}

// Runs on copies of what is given, on any device; what it stores comes back.
void run_program(const LoadedProgram& p, const nb::args& given, const nb::kwargs& variables) {
  const UOp& linear = p.program->kernel().linear;
  const std::string& name = p.program->name();
  const auto count = static_cast<size_t>(signature_of(linear).buffers);
  KOINE_REQUIRE(given.size() == count, Type, "{}: takes {} buffers, got {}", name, count,
                given.size());
  const std::map<int64_t, Parameter> parameters = parameters_of(linear);
  const std::vector<int64_t> values = values_of(p, variables);
  std::vector<std::unique_ptr<Lent>> lent;
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<std::byte*> addresses(count);
  std::vector<int64_t> bytes(count);
  for (const auto& [slot, parameter] : parameters) {
    const auto k = static_cast<size_t>(slot);
    const DType dtype = parameter.param.dtype();
    const std::string what = fmt::format("{}: buffer {}", name, slot);
    lent.push_back(std::make_unique<Lent>(given[k], parameter.is_stored, what));
    KOINE_REQUIRE(lent.back()->fits(dtype), Type, "{}: takes elements of {}", what,
                  dtype_name(dtype));
    bytes[k] = parameter.bytes();
    KOINE_REQUIRE(lent.back()->bytes() >= bytes[k], Value, "{}: has {} bytes, of which {} are used",
                  what, lent.back()->bytes(), bytes[k]);
    memory.push_back(p.device->allocate(bytes[k]));
    addresses[k] = memory.back()->address();
  }
  unlocked([&] {
    size_t k = 0;
    for (const auto& [slot, parameter] : parameters)
      memory[k]->copy_in(lent[k]->data(), 0, parameter.bytes()), ++k;
    const Command command{p.program.get(), {addresses, bytes, values}};
    Queue& queue = p.device->queue();
    queue.wait(queue.submit({&command, 1}));
    k = 0;
    for (const auto& [slot, parameter] : parameters) {
      if (parameter.is_stored) memory[k]->copy_out(lent[k]->data(), 0, parameter.bytes());
      ++k;
    }
  });
}

DeviceRuntime& runtime_of(const Kernel& kernel) {
  const Device device = kernel.device();
  return device_runtime(device ? device.name() : default_device());
}

void bind_kernel(nb::module_& m) {
  nb::class_<Kernel>(m, "Kernel",
                     "One launch of a schedule. Nothing has run.\n\n"
                     ">>> k = koine.schedule(koine.Tensor([1, 2]).sum())[0]\n"
                     ">>> k.reason, len(k.buffers), k.stores(0)\n('output', 2, True)")
      .def("__init__", refuse_making("Kernel", "koine.schedule(x) lists those of a tensor"))
      .def_prop_ro(
          "ast", [](const Kernel& k) { return k.ast; }, "What it does, as a node.")
      .def_prop_ro(
          "buffers", [](const Kernel& k) { return list_of(k.buffers); },
          "What it reads and stores, by slot.")
      .def_prop_ro(
          "variables", [](const Kernel& k) { return list_of(k.variables); },
          "The Variables that it reads.")
      .def_prop_ro(
          "reason", [](const Kernel& k) { return std::string(k.reason); },
          "Why it is a kernel of its own.")
      .def_prop_ro(
          "device", [](const Kernel& k) { return runtime_of(k).name(); }, "Where it runs.")
      .def(
          "stores",
          [](const Kernel& k, size_t slot) {
            KOINE_REQUIRE(slot < k.buffers.size(), Index, "stores: there is no buffer {} of {}",
                          slot, k.buffers.size());
            return k.stores(slot);
          },
          "slot"_a, "Whether it stores into a buffer.")
      .def("__str__", [](const Kernel& k) { return tree_text(k.ast); })
      .def("__repr__", [](const Kernel& k) {
        return fmt::format("<Kernel '{}' of {} buffers>", k.reason, k.buffers.size());
      });
}

nb::tuple sizes_of(const std::array<UOp, 3>& axes) {
  Shape out;
  for (const UOp& size : axes) out.emplace_back(size);
  return tuple_of(out);
}

void bind_program(nb::module_& m) {
  nb::class_<LoadedProgram>(
      m, "Program",
      "A compiled kernel. It is called with a buffer for each of its parameters, NumPy arrays or "
      "others\nthat hold their elements row by row, and with its Variables by name; what it stores "
      "is in these\nbuffers then.\n\n"
      ">>> p = koine.program_of(koine.schedule(koine.Tensor([3, 4]).sum())[0])\n"
      ">>> out = bytearray(4); p(out, koine.Tensor([3, 4])); out[0]\n7")
      .def("__init__", refuse_making("Program", "koine.program_of(kernel) compiles one"))
      .def_prop_ro(
          "name", [](const LoadedProgram& p) { return p.program->name(); },
          "Letters and sizes of its axes.")
      .def_prop_ro(
          "source", [](const LoadedProgram& p) { return p.program->source(); },
          "Its text, to read.")
      .def_prop_ro(
          "device", [](const LoadedProgram& p) { return p.device->name(); }, "What it runs on.")
      .def_prop_ro(
          "threads", [](const LoadedProgram& p) { return p.program->threads(); },
          "Threads that share a launch; 1 of a kernel that is shaped for groups of them.")
      .def_prop_ro(
          "grid", [](const LoadedProgram& p) { return sizes_of(p.program->grid()); },
          "Groups of a launch along each axis; (1, 1, 1) where the device has none.")
      .def_prop_ro(
          "group", [](const LoadedProgram& p) { return sizes_of(p.program->group()); },
          "Threads of a group along each axis; (1, 1, 1) where the device has no groups.")
      .def_prop_ro(
          "variables", [](const LoadedProgram& p) { return p.program->variables(); },
          "The Variables that a launch gives values of, by name.")
      .def_prop_ro(
          "operations", [](const LoadedProgram& p) { return p.program->operations(); },
          "Operations on values, estimated.")
      .def_prop_ro(
          "bytes", [](const LoadedProgram& p) { return p.program->bytes(); },
          "Bytes moved to and from memory, estimated.")
      .def_prop_ro(
          "opts",
          [](const LoadedProgram& p) {
            std::vector<std::string> out;
            for (const Opt& o : p.program->kernel().opts) out.push_back(opt_text(o));
            return out;
          },
          "What Optimize has done.")
      .def_prop_ro(
          "linear", [](const LoadedProgram& p) { return p.program->kernel().linear; },
          "Its instructions, as a node.")
      .def("__call__", &run_program, "buffers"_a, "variables"_a)
      .def("__repr__", [](const LoadedProgram& p) {
        return fmt::format("<Program {} on {}>", p.program->name(), p.device->name());
      });
}

}  // namespace

void bind_graph(nb::module_& m) {
  bind_kernel(m);
  bind_program(m);
  m.def(
      "host_program",
      [](nb::handle given) {
        const std::vector<UOp> values = as_values(given, "host_program");
        return unlocked([&] { return host_program(values); });
      },
      "tensors"_a,
      "What would run for these tensors, as one node; nothing runs.\n\n"
      ">>> koine.host_program(koine.Tensor([1.0, 2.0]).exp()).op\n"
      "'Linear'");
  m.def(
      "schedule",
      [](nb::handle given) {
        const std::vector<UOp> values = as_values(given, "schedule");
        return unlocked([&] { return schedule(values); });
      },
      "tensors"_a,
      "The same, launch by launch, as Kernels to look at; `print` shows the tree of one.\n\n"
      ">>> len(koine.schedule([koine.Tensor([1.0, 2.0]).exp().sum()]))\n"
      "1");
  m.def(
      "program_of",
      [](const Kernel& kernel) {
        return unlocked([&] { return LoadedProgram{program_of(kernel), &runtime_of(kernel)}; });
      },
      "kernel"_a,
      "The Program of a launch, compiled for its device.\n\n"
      ">>> koine.program_of(koine.schedule(koine.Tensor([3, 4]).sum())[0]).device\n"
      "'CPU'");
  m.def(
      "lower_kernel",
      [](const Kernel& kernel, std::optional<bool> noopt) {
        KOINE_REQUIRE(is_kernel_body(kernel.ast), Value, "the host runs '{}': it is no kernel",
                      kernel.reason);
        CompileOptions how = compile_options();
        how.noopt = noopt.value_or(how.noopt);
        nb::dict out;
        std::vector<std::pair<std::string, UOp>> stages;
        unlocked([&] {
          const StageSink sink = [&](std::string_view stage, const UOp& graph) {
            stages.emplace_back(stage, graph);
          };
          return lower_kernel(kernel.ast, runtime_of(kernel).target(how), sink, nullptr, {},
                              "rangeify", how);
        });
        for (const auto& [stage, graph] : stages) out[stage.c_str()] = graph;
        return out;
      },
      "kernel"_a, "noopt"_a = nb::none(),
      "What each stage makes of a kernel, by the name of the stage, in order. `noopt`: plain "
      "loops.\n\n"
      ">>> list(koine.lower_kernel(koine.schedule(koine.Tensor([1, 2]).sum())[0]))\n"
      "['rangeify', 'optimize', 'expand', 'select', 'linearize']");
  m.def(
      "print_linear",
      [](const UOp& linear, bool legacy) {
        return compat::print_linear(linear, legacy ? compat::Style::Legacy : compat::Style::Plain);
      },
      "linear"_a, "legacy"_a = false,
      "The text of a linear program: as it is, or of plain loops with the old names of UOps.\n\n"
      ">>> kernel = koine.schedule(koine.Tensor([1, 2]) + 1)[0]\n"
      ">>> print(koine.print_linear(koine.lower_kernel(kernel, noopt=True)['linearize']))\n"
      "step  op           dtype     input                arg\n"
      "   0  Const        index     []                   index 2\n"
      "   1  Param        int32     []                   0 int32 GLOBAL\n"
      "   2  Param        int32     []                   1 int32 GLOBAL\n"
      "   3  Const        int32     []                   int32 1\n"
      "   4  Range        index     [0]                  0 LOOP\n"
      "   5  Index        int32     [1, 4]\n"
      "   6  Index        int32     [2, 4]\n"
      "   7  Load         int32     [6]                  REG\n"
      "   8  Add          int32     [7, 3]\n"
      "   9  Store        void      [5, 8]\n"
      "  10  End          void      [4]");
  m.def(
      "_realize", [](const std::vector<UOp>& values) { unlocked([&] { realize(values); }); },
      "values"_a);
}

}  // namespace koine::python
