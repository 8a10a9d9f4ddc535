// Devices, counters and how tensors print.
#include <nanobind/stl/map.h>
#include <koine/runtime/device.hpp>

#include "bind.hpp"

namespace koine::python {

void bind_devices(nb::module_& m) {
  m.def("devices", &device_list,
        "Kinds of devices, each as (name, description).\n\n"
        ">>> 'CPU' in dict(koine.devices())\n"
        "True");
  m.def("default_device", &default_device,
        "The device of tensors that name none: KOINE_DEVICE, else 'CPU'.\n\n"
        ">>> koine.default_device()\n"
        "'CPU'");
  m.def(
      "memory_in_use",
      [](const std::string& device) { return device_runtime(device).allocator().bytes_in_use(); },
      "device"_a = "CPU",
      "Bytes of a device that live tensors and compiled steps hold; borrowed memory does not "
      "count.\n\n"
      ">>> before = koine.memory_in_use()\n"
      ">>> x = koine.Tensor.zeros(1000).contiguous().realize()\n"
      ">>> koine.memory_in_use() - before >= 4000\n"
      "True");
  m.def(
      "counters",
      [] {
        const Counters c = counters();
        nb::dict out;
        out["kernels"] = c.kernels;
        out["compiled"] = c.compiled;
        out["operations"] = c.operations;
        out["bytes"] = c.bytes;
        out["temporary_bytes"] = c.temporary_bytes;
        out["run_seconds"] = c.run_seconds;
        out["schedule_seconds"] = c.schedule_seconds;
        out["compile_seconds"] = c.compile_seconds;
        return out;
      },
      "What ran since the process began or reset_counters(): kernels launched, programs compiled, "
      "estimated "
      "operations, bytes moved, the most bytes that a program held for its temporaries, and "
      "seconds.\n\n"
      ">>> koine.reset_counters()\n"
      ">>> x = (koine.Tensor([1, 2]) + 1).realize()\n"
      ">>> koine.counters()['kernels']\n"
      "1");
  m.def("reset_counters", &reset_counters,
        "Sets all counters to 0.\n\n"
        ">>> koine.reset_counters()\n"
        ">>> koine.counters()['kernels']\n"
        "0");
  m.def("clear_compile_cache", &clear_compile_cache,
        "Forgets compiled programs: the next look compiles again.\n\n"
        ">>> koine.clear_compile_cache()");
  m.def(
      "set_printoptions",
      [](std::optional<int> precision, std::optional<int64_t> threshold,
         std::optional<int64_t> edgeitems, std::optional<int> linewidth) {
        PrintOptions o = print_options();
        o.precision = precision.value_or(o.precision);
        o.threshold = threshold.value_or(o.threshold);
        o.edge_items = edgeitems.value_or(o.edge_items);
        o.line_width = linewidth.value_or(o.line_width);
        KOINE_REQUIRE(
            o.precision >= 0 && o.threshold >= 0 && o.edge_items >= 1 && o.line_width >= 1, Value,
            "set_printoptions: precision {} and threshold {} must not be negative, "
            "edgeitems {} and linewidth {} must be positive",
            o.precision, o.threshold, o.edge_items, o.line_width);
        set_print_options(o);
      },
      "precision"_a = nb::none(), "threshold"_a = nb::none(), "edgeitems"_a = nb::none(),
      "linewidth"_a = nb::none(),
      "How tensors print, with NumPy's names; what is not given stays.\n\n"
      ">>> koine.set_printoptions(precision=2)\n"
      ">>> koine.Tensor([3.14159])\n"
      "Tensor([3.14], dtype=float32, device=CPU)\n"
      ">>> koine.set_printoptions(precision=8)");
}

}  // namespace koine::python
