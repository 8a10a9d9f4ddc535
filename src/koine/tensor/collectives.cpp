#include "koine/tensor/collectives.hpp"

#include <string_view>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/distributed.hpp"
#include "koine/tensor/impl.hpp"

namespace koine::collective {
namespace {

// Of a program in one process: what others share out among ranks lies on one device, all there is.
bool is_only_rank(const std::string& device) {
  return device == "RANK" && distributed::devices() == device;
}

// Several devices that an operand on one goes to.
int64_t count_of_targets(std::string_view name, const Tensor& x, const std::string& devices) {
  const std::string shape = tensor::text_of(x.shape());
  KOINE_REQUIRE(x.uop().device().count() == 1, Value,
                "{} of {}: it lies on the devices {}, and goes out from one: gather() it first, or "
                "place it with shard()",
                name, shape, x.device());
  const auto n = static_cast<int64_t>(Device(devices).count());
  KOINE_REQUIRE(n > 1 || is_only_rank(devices), Value,
                "{} of {}: '{}' is one device: name several, such as CPU,CPU:1, or use to()", name,
                shape, devices);
  return n;
}

// The devices that an operand in parts lies on.
int64_t count_of_parts(std::string_view name, const Tensor& x) {
  const std::string shape = tensor::text_of(x.shape());
  const auto n = static_cast<int64_t>(x.uop().device().count());
  if (n == 1 && is_only_rank(x.device())) return n;
  KOINE_REQUIRE(n > 1, Value,
                "{} of {}: it lies on the one device {}, and its parts have to lie on several: "
                "scatter() it first",
                name, shape, x.device());
  const auto axis = x.shard_axis();
  KOINE_REQUIRE(axis, Value,
                "{} of {}: each of the devices {} holds all of it, no part: split it with "
                "shard(devices, 0), or take it from one with to()",
                name, shape, x.device());
  KOINE_REQUIRE(*axis == 0, Value,
                "{} of {}: the devices {} split axis {}, and parts lie along axis 0: place it with "
                "shard(devices, 0), or permute() axis {} to the front",
                name, shape, x.device(), *axis, *axis);
  return n;
}

// A shape with other sizes in the place of the first axis.
Shape behind(const Shape& shape, std::initializer_list<Size> first) {
  Shape out(first);
  out.insert(out.end(), shape.begin() + 1, shape.end());
  return out;
}

// Zeros behind the rows of `axis`, up to a multiple of n.
Tensor padded(std::string_view name, const Tensor& x, int64_t axis, int64_t n, Uneven uneven) {
  const Size rows = x.size(axis), over = rows % n;
  if (over == 0) return x;
  KOINE_REQUIRE(uneven == Uneven::Pad, Value,
                "{} of {}: {} rows do not split evenly over {} devices: pad() them to a multiple "
                "of {}, or say Uneven::Pad (Python: pad=True)",
                name, tensor::text_of(x.shape()), rows, n, n);
  SizePairs around(static_cast<size_t>(x.ndim()), {0, 0});
  around[static_cast<size_t>(axis)].second = (n - over) % n;
  return x.pad(around);
}

// Equal copies of x along a new axis 0, one a device, and of these the one.
Tensor on_each(const Tensor& x, const std::string& devices, int64_t n) {
  if (n == 1) return x.to(devices);
  Shape one = x.shape(), many = x.shape();
  one.insert(one.begin(), 1);
  many.insert(many.begin(), n);
  return Tensor(replicated(x.reshape(one).expand(many).to(devices).uop(), 0));
}

Tensor folded(const Tensor& x, Fold fold, int64_t axis) {
  return fold == Fold::Add ? x.sum(axis) : x.max(axis);
}

// The partial values by device: (n, m, ...).
Tensor by_device(const Tensor& x, int64_t n) {
  return x.reshape(behind(x.shape(), {n, x.size(0) / n}));
}

Tensor scattered_sum(std::string_view name, const Tensor& x, Fold fold, Uneven uneven) {
  const int64_t n = count_of_parts(name, x);
  const Tensor partials = padded(name, by_device(x, n), 1, n, uneven);
  const Size rows = partials.size(1);
  const Shape chunks = behind(x.shape(), {n, n, rows / n});
  std::vector<int64_t> order{1, 0};
  for (int64_t axis = 2; axis <= partials.ndim(); ++axis) order.push_back(axis);
  const Tensor sent = partials.reshape(chunks).permute(order).to(x.device());
  return folded(sent, fold, 1).reshape(behind(x.shape(), {rows}));
}

}  // namespace

Tensor broadcast(const Tensor& x, const std::string& devices) {
  return on_each(x, devices, count_of_targets("broadcast", x, devices));
}

Tensor scatter(const Tensor& x, const std::string& devices, Uneven uneven) {
  const int64_t n = count_of_targets("scatter", x, devices);
  KOINE_REQUIRE(x.ndim() > 0, Value,
                "scatter of a scalar: it has no axis to split: broadcast() it, or reshape it");
  return padded("scatter", x, 0, n, uneven).to(devices);
}

Tensor gather(const Tensor& x, const std::string& device) {
  (void)count_of_parts("gather", x);
  const std::string target = device.empty() ? x.uop().device().part(0).name() : device;
  KOINE_REQUIRE(Device(target).count() == 1, Value,
                "gather of {}: '{}' are several devices, and it goes to one: all_gather() goes to "
                "each",
                tensor::text_of(x.shape()), target);
  return x.to(target);
}

Tensor reduce(const Tensor& x, Fold fold, const std::string& device) {
  const int64_t n = count_of_parts("reduce", x);
  return folded(by_device(gather(x, device), n), fold, 0);
}

Tensor all_gather(const Tensor& x) {
  return on_each(x, x.device(), count_of_parts("all_gather", x));
}

Tensor reduce_scatter(const Tensor& x, Fold fold, Uneven uneven) {
  return scattered_sum("reduce_scatter", x, fold, uneven);
}

Tensor all_reduce(const Tensor& x, Fold fold, Uneven uneven) {
  const Tensor all = all_gather(scattered_sum("all_reduce", x, fold, uneven));
  const Size rows = x.size(0) / static_cast<int64_t>(x.uop().device().count());
  if (all.size(0) == rows) return all;
  SizePairs bounds;
  for (const Size& size : all.shape()) bounds.push_back({0, size});
  bounds[0].second = rows;
  return all.shrink(bounds);
}

}  // namespace koine::collective
