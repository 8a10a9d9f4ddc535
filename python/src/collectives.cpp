// What several devices do together, and several processes.
#include "bind.hpp"

namespace koine::python {
namespace {

collective::Fold fold_of(const std::string& name, const char* method) {
  KOINE_REQUIRE(name == "add" || name == "max", Value, "{}: fold='{}' is none of 'add' and 'max'",
                method, name);
  return name == "add" ? collective::Fold::Add : collective::Fold::Max;
}

collective::Uneven uneven_of(bool pad) {
  return pad ? collective::Uneven::Pad : collective::Uneven::Refuse;
}

void bind_collective(nb::module_& m) {
  nb::module_ c = m.def_submodule("collective", "The seven collectives.");
  c.def(
      "broadcast",
      [](const TensorLike& x, const std::string& devices) {
        return collective::broadcast(as_tensor(x, "broadcast"), devices);
      },
      "x"_a, "devices"_a,
      "What lies on one device, whole on each of several.\n\n"
      ">>> koine.collective.broadcast(koine.Tensor([1, 2]), 'CPU,CPU:1').device\n"
      "'CPU,CPU:1'");
  c.def(
      "scatter",
      [](const TensorLike& x, const std::string& devices, bool pad) {
        return collective::scatter(as_tensor(x, "scatter"), devices, uneven_of(pad));
      },
      "x"_a, "devices"_a, nb::kw_only(), "pad"_a = false,
      "What lies on one device, in parts of its rows on several. `pad`: rows of zeros at the end "
      "where the devices do not divide them, which is a ValueError otherwise.\n\n"
      ">>> koine.collective.scatter(koine.Tensor([1, 2, 3, 4]), 'CPU,CPU:1').shard_axis\n"
      "0");
  c.def(
      "gather",
      [](const TensorLike& x, const std::string& device) {
        return collective::gather(as_tensor(x, "gather"), device);
      },
      "x"_a, "device"_a = "",
      "What lies in parts, on one device: the first of its own, or another.\n\n"
      ">>> parts = koine.collective.scatter(koine.Tensor([1, 2, 3, 4]), 'CPU,CPU:1')\n"
      ">>> koine.collective.gather(parts).device\n"
      "'CPU'");
  c.def(
      "reduce",
      [](const TensorLike& x, const std::string& fold, const std::string& device) {
        return collective::reduce(as_tensor(x, "reduce"), fold_of(fold, "reduce"), device);
      },
      "x"_a, "fold"_a = "add", "device"_a = "",
      "The parts of x, which are of one shape, added on one device, in the dtype of sum(); 'max': "
      "the largest of each element.\n\n"
      ">>> parts = koine.collective.scatter(koine.Tensor([1, 2, 30, 40]), 'CPU,CPU:1')\n"
      ">>> koine.collective.reduce(parts).tolist()\n"
      "[31, 42]");
  c.def(
      "all_gather",
      [](const TensorLike& x) { return collective::all_gather(as_tensor(x, "all_gather")); }, "x"_a,
      "What lies in parts, whole on each of its devices.\n\n"
      ">>> parts = koine.collective.scatter(koine.Tensor([1, 2, 3, 4]), 'CPU,CPU:1')\n"
      ">>> koine.collective.all_gather(parts).shard_axis is None\n"
      "True");
  c.def(
      "reduce_scatter",
      [](const TensorLike& x, const std::string& fold, bool pad) {
        return collective::reduce_scatter(as_tensor(x, "reduce_scatter"),
                                          fold_of(fold, "reduce_scatter"), uneven_of(pad));
      },
      "x"_a, "fold"_a = "add", nb::kw_only(), "pad"_a = false,
      "As reduce, in parts: each device has its share of the rows. `pad` as of scatter.\n\n"
      ">>> parts = koine.collective.scatter(koine.Tensor([1, 2, 30, 40]), 'CPU,CPU:1')\n"
      ">>> sums = koine.collective.reduce_scatter(parts)\n"
      ">>> sums.shard_axis, sums.tolist()\n"
      "(0, [31, 42])");
  c.def(
      "all_reduce",
      [](const TensorLike& x, const std::string& fold, bool pad) {
        return collective::all_reduce(as_tensor(x, "all_reduce"), fold_of(fold, "all_reduce"),
                                      uneven_of(pad));
      },
      "x"_a, "fold"_a = "add", nb::kw_only(), "pad"_a = false,
      "As reduce, whole on each device. `pad`: rows that the devices do not divide are padded on "
      "the way.\n\n"
      ">>> parts = koine.collective.scatter(koine.Tensor([1, 2, 30, 40]), 'CPU,CPU:1')\n"
      ">>> koine.collective.all_reduce(parts, fold='max').tolist()\n"
      "[30, 40]");
}

void bind_distributed(nb::module_& m) {
  nb::module_ d = m.def_submodule("distributed", "One program in several processes.");
  d.def("init", &distributed::init, "devices_each"_a = 1,
        "Joins the processes that mpirun started with this one; without mpirun there is one. Each "
        "may have several devices. koine.errors.DeviceError where OpenMPI is not installed.\n\n"
        ">>> koine.distributed.init()  # doctest: +SKIP");
  d.def("rank", &distributed::rank,
        "The number of this process.\n\n"
        ">>> koine.distributed.rank()  # doctest: +SKIP\n"
        "0");
  d.def("count", &distributed::count,
        "How many processes there are.\n\n"
        ">>> koine.distributed.count()  # doctest: +SKIP\n"
        "1");
  d.def("devices", &distributed::devices,
        "The devices of all processes, for shard() and the collectives.\n\n"
        ">>> koine.distributed.devices()  # doctest: +SKIP\n"
        "'RANK'");
  d.def("own_devices", &distributed::own_devices,
        "Those of this process.\n\n"
        ">>> koine.distributed.own_devices()  # doctest: +SKIP\n"
        "'RANK'");
  d.def(
      "parts",
      [](const TensorLike& own) {
        const Tensor t = as_tensor(own, "parts");
        return unlocked([&] { return distributed::parts(t); });
      },
      "own"_a,
      "What each process has of its own, of one shape, as one value in parts on all devices: the "
      "rows of a batch that each has read. It is data, without a gradient.\n\n"
      ">>> koine.distributed.parts(koine.ones(2, 3)).shape  # doctest: +SKIP\n"
      "(2, 3)");
  d.def(
      "own_part",
      [](const TensorLike& value) {
        const Tensor t = as_tensor(value, "own_part");
        return unlocked([&] { return distributed::own_part(t); });
      },
      "value"_a,
      "What this process has of a value in parts, on CPU; data too.\n\n"
      ">>> koine.distributed.own_part(koine.distributed.parts(koine.ones(2, 3))).device  # "
      "doctest: +SKIP\n"
      "'CPU'");
}

}  // namespace

void bind_collectives(nb::module_& m) {
  bind_collective(m);
  bind_distributed(m);
}

}  // namespace koine::python
