// The class Tensor: making one, what it is, running, gradients.
#include "bind.hpp"

namespace koine::python {
namespace {

// The elements as nested lists of Python's numbers.
nb::object listed(const std::byte*& at, DType dtype, std::span<const int64_t> sizes) {
  if (!sizes.empty()) {
    nb::list out;
    for (int64_t i = 0; i < sizes[0]; ++i) out.append(listed(at, dtype, sizes.subspan(1)));
    return out;
  }
  Bits bits = 0;
  const auto item = static_cast<size_t>(item_size(dtype));
  __builtin_memcpy(&bits, at, item);
  at += item;
  if (dtype == DType::Bool) return nb::cast(bits != 0);
  if (is_float(dtype)) return nb::cast(bits_to_double(dtype, bits));
  return dtype == DType::UInt64 ? nb::cast(bits) : nb::cast(bits_to_int(dtype, bits));
}

nb::object tolist(const Tensor& self) {
  const std::vector<std::byte> bytes = unlocked([&] { return self.bytes(); });
  const std::vector<int64_t> sizes = self.shape().present();
  const std::byte* at = bytes.data();
  return listed(at, self.dtype(), sizes);
}

nb::object item(const Tensor& self) {
  const int64_t count = self.numel().present();
  KOINE_REQUIRE(count == 1, Value,
                "item: a tensor of {} elements, not one: use tolist() or numpy()", count);
  const std::vector<std::byte> bytes = unlocked([&] { return self.bytes(); });
  const std::byte* at = bytes.data();
  return listed(at, self.dtype(), {});
}

bool truth(const Tensor& self) {
  const int64_t count = self.numel().present();
  KOINE_REQUIRE(count == 1, Value,
                "the truth of a tensor of {} elements is ambiguous: use any() or all()", count);
  return nb::cast<bool>(nb::bool_(item(self)));
}

void bind_making(TensorClass& c) {
  c.def(
      "__init__",
      [](Tensor* self, nb::handle data, const std::optional<DTypeLike>& dtype,
         const std::string& device, bool requires_grad, std::optional<bool> copy) {
        const Borrow borrow = !copy ? Borrow::IfPossible : *copy ? Borrow::Never : Borrow::Always;
        const auto d = dtype ? std::optional(as_dtype(*dtype, "Tensor")) : std::nullopt;
        Tensor made = make_tensor(data, d, device, borrow);
        // A handle of its own: requires_grad() would change the tensor that was given.
        if (requires_grad)
          made = (nb::isinstance<Tensor>(data) ? made.clone() : made).requires_grad();
        new (self) Tensor(std::move(made));
      },
      "data"_a, "dtype"_a = nb::none(), nb::kw_only(), "device"_a = "", "requires_grad"_a = false,
      "copy"_a = nb::none(),
      "A tensor of numbers, nested lists, or an array (NumPy, DLPack, the buffer protocol).\n\n"
      "Python's floats become float32 and ints int32 (int64 where they need it); arrays keep their "
      "dtype.\n"
      "An array's memory is borrowed where it is row-major and aligned: nothing is copied, Koine "
      "never\n"
      "writes to it. The tensor and its views show what it holds now; what was computed of it "
      "stays\n"
      "what it was.\n"
      "`copy=True` takes a copy; `copy=False` is a ValueError where there would be one.\n\n"
      ">>> koine.Tensor([[1, 2], [3, 4]]).sum(0).tolist()\n[4, 6]");
}

void bind_facts(TensorClass& c) {
  c.def_prop_ro(
       "shape", [](const Tensor& t) { return tuple_of(t.shape()); },
       "Its sizes, as a tuple.\n\n"
       ">>> koine.Tensor([[1, 2, 3]]).shape\n"
       "(1, 3)")
      .def_prop_ro("dtype", &Tensor::dtype,
                   "Its koine.DType.\n\n"
                   ">>> koine.Tensor([1.0]).dtype\n"
                   "koine.float32")
      .def_prop_ro("device", &Tensor::device,
                   "The device, or devices, that hold it.\n\n"
                   ">>> koine.Tensor([1], device='CPU').device\n"
                   "'CPU'")
      .def_prop_ro("ndim", &Tensor::ndim,
                   "The number of its axes.\n\n"
                   ">>> koine.Tensor([[1, 2, 3]]).ndim\n"
                   "2")
      .def_prop_ro("T", &Tensor::T,
                   "The first two axes in each other's place, as transpose().\n\n"
                   ">>> koine.Tensor([[1, 2, 3], [4, 5, 6]]).T.tolist()\n"
                   "[[1, 4], [2, 5], [3, 6]]")
      .def_prop_ro("uop", &Tensor::uop,
                   "The lazy value, with all assignments so far.\n\n"
                   ">>> koine.Tensor([1, 2]).relu().uop.op\n"
                   "'Where'")
      .def_prop_ro("is_leaf", &Tensor::is_leaf,
                   "Whether it requires a gradient.\n\n"
                   ">>> koine.Tensor([1.0], requires_grad=True).is_leaf\n"
                   "True")
      .def_prop_ro(
          "nbytes", [](const Tensor& t) { return t.numel().present() * item_size(t.dtype()); },
          "Bytes of its elements.\n\n"
          ">>> koine.Tensor([1.0, 2.0]).nbytes\n"
          "8")
      .def(
          "numel",
          [](const Tensor& t) -> nb::object {
            const Size n = t.numel();
            return n.is_number() ? nb::cast(int64_t{n}) : nb::cast(n);
          },
          "The number of its elements: an int, or a Size.\n\n"
          ">>> koine.Tensor.zeros(2, 3).numel()\n"
          "6")
      .def(
          "size",
          [](const Tensor& t, std::optional<int64_t> axis) -> nb::object {
            if (!axis) return tuple_of(t.shape());
            const Size n = t.size(*axis);
            return n.is_number() ? nb::cast(int64_t{n}) : nb::cast(n);
          },
          "axis"_a = nb::none(),
          "The size of an axis, or all of them.\n\n"
          ">>> koine.Tensor([[1, 2, 3]]).size()\n"
          "(1, 3)\n"
          ">>> koine.Tensor([[1, 2, 3]]).size(1)\n"
          "3")
      .def("__repr__", [](const Tensor& t) { return unlocked([&] { return t.repr(); }); })
      .def("__format__",
           [](nb::handle self, nb::handle spec) {
             const bool one = nb::len(spec) > 0;  // how to write a number
             return nb::steal(PyObject_Format(
                 (one ? item(nb::cast<const Tensor&>(self)) : nb::object(nb::str(self))).ptr(),
                 spec.ptr()));
           })
      .def("__len__",
           [](const Tensor& t) {
             KOINE_REQUIRE(t.ndim() > 0, Type, "len: a tensor without axes has no length");
             return t.size(0).present();
           })
      .def("__hash__", [](nb::handle self) { return reinterpret_cast<uintptr_t>(self.ptr()) >> 4; })
      .def("__bool__", &truth)
      .def("__float__", [](const Tensor& t) { return nb::float_(item(t)); })
      .def("__int__", [](const Tensor& t) { return nb::int_(item(t)); })
      .def("__index__", [](const Tensor& t) {
        KOINE_REQUIRE(is_integer(t.dtype()) && t.ndim() == 0, Type,
                      "only a whole number without axes is an index, not {} of shape {}",
                      dtype_name(t.dtype()), nb::repr(tuple_of(t.shape())).c_str());
        return nb::int_(item(t));
      });
}

void bind_running(TensorClass& c) {
  c.def(
       "realize",
       [](nb::object self) {
         const Tensor& t = nb::cast<const Tensor&>(self);
         unlocked([&] { t.realize(); });
         return self;
       },
       "Computes it now, and gives it back; it is data from then on.\n\n"
       ">>> koine.Tensor([1, 2]).sum().realize().item()\n"
       "3")
      .def("to", &Tensor::to, "device"_a,
           "The values on another device, such as 'CL' or 'CPU:1'. DeviceError where there is "
           "none.\n\n"
           ">>> koine.Tensor([1]).to('CPU:1').device\n"
           "'CPU:1'")
      .def("shard", &Tensor::shard, "devices"_a, "axis"_a = nb::none(),
           "The values on several devices, such as 'CPU,CPU:1': split along an axis in equal "
           "parts, or whole on each. ValueError where parts would not be equal.\n\n"
           ">>> koine.Tensor.zeros(4, 2).shard('CPU,CPU:1', 0).shard_axis\n"
           "0")
      .def("shard_like", &Tensor::shard_like, "other"_a,
           "The values placed as those of another tensor.\n\n"
           ">>> x = koine.Tensor.zeros(4).shard('CPU,CPU:1', 0)\n"
           ">>> koine.Tensor.arange(4).shard_like(x).device\n"
           "'CPU,CPU:1'")
      .def_prop_ro("shard_axis", &Tensor::shard_axis,
                   "The axis that several devices split; None: each has all.\n\n"
                   ">>> koine.Tensor.zeros(4).shard('CPU,CPU:1', 0).shard_axis\n"
                   "0")
      .def("contiguous", &Tensor::contiguous,
           "The value as memory of its own.\n\n"
           ">>> koine.Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()\n"
           "[[1, 3], [2, 4]]")
      .def("contiguous_backward", &Tensor::contiguous_backward,
           "The value; its gradient is memory of its own.\n\n"
           ">>> x = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
           ">>> (x.contiguous_backward() * 3).sum().backward()\n"
           ">>> x.grad.tolist()\n"
           "[3.0, 3.0]")
      .def("detach", &Tensor::detach,
           "The value, without a gradient to what it is computed from.\n\n"
           ">>> x = koine.Tensor([2.0], requires_grad=True)\n"
           ">>> (x * x.detach()).sum().backward()\n"
           ">>> x.grad.tolist()\n"
           "[2.0]")
      .def("clone", &Tensor::clone,
           "A copy: what is assigned to one does not change the other.\n\n"
           ">>> x = koine.Tensor([1, 2])\n"
           ">>> y = x.clone()\n"
           ">>> y[0] = 9\n"
           ">>> x.tolist()\n"
           "[1, 2]")
      .def("tolist", &tolist,
           "The elements as nested lists of Python numbers.\n\n"
           ">>> koine.Tensor([[1, 2], [3, 4]]).tolist()\n"
           "[[1, 2], [3, 4]]")
      .def("item", &item,
           "The only element, as a Python number. ValueError where there are others.\n\n"
           ">>> koine.Tensor([[2.5]]).item()\n"
           "2.5")
      .def(
          "assign",
          [](nb::object self, const TensorLike& value) {
            Tensor& t = nb::cast<Tensor&>(self);
            const Tensor given = as_tensor_beside(t, value, "assign");
            unlocked_making([&] { t.assign(given); });
            return self;
          },
          "value"_a,
          "Replaces the values (broadcast, cast), as every view of the same tensor sees. Gives the "
          "tensor back.\n\n"
          ">>> x = koine.Tensor([1, 2, 3])\n"
          ">>> x.assign(0).tolist()\n"
          "[0, 0, 0]");
  c.def("history_bytes", &Tensor::history_bytes,
        "Bytes of other values that it holds on to for gradients.\n\n"
        ">>> x = koine.Tensor([1.0, 2.0], requires_grad=True).realize()\n"
        ">>> x.exp().realize().history_bytes() >= 0\n"
        "True");
}

void bind_gradients(TensorClass& c) {
  c.def(
       "requires_grad",
       [](nb::object self, bool on) {
         Tensor& t = nb::cast<Tensor&>(self);
         unlocked([&] { t.requires_grad(on); });
         return self;
       },
       "on"_a = true,
       "From now on backward() adds to grad. Gives the tensor back. TypeError for integers.\n\n"
       ">>> koine.Tensor([1.0]).requires_grad().is_leaf\n"
       "True")
      .def_prop_rw(
          "grad",
          [](const Tensor& t) { return t.has_grad() ? std::optional(t.grad()) : std::nullopt; },
          [](Tensor& t, const std::optional<TensorLike>& g) {
            if (g)
              t.set_grad(as_tensor(*g, "grad"));
            else
              t.zero_grad();
          },
          nb::for_setter(nb::arg("value").none()),
          "What backward() has added up; None before, and after it is set to None.\n\n"
          ">>> x = koine.Tensor([3.0], requires_grad=True)\n"
          ">>> x.square().sum().backward()\n"
          ">>> x.grad.tolist()\n"
          "[6.0]")
      .def("zero_grad", &Tensor::zero_grad,
           "Sets grad to None.\n\n"
           ">>> x = koine.Tensor([3.0], requires_grad=True)\n"
           ">>> x.square().sum().backward()\n"
           ">>> x.zero_grad()\n"
           ">>> x.grad is None\n"
           "True")
      .def("backward", &Tensor::backward,
           "Adds to grad of every tensor that requires one and that this scalar depends on. "
           "ValueError for what is no scalar.\n\n"
           ">>> w = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
           ">>> (w * w).sum().backward()\n"
           ">>> w.grad.tolist()\n"
           "[2.0, 4.0]")
      .def(
          "gradient",
          [](const Tensor& t, const nb::args& targets) {
            std::vector<Tensor> all;
            for (const nb::handle one : nb::borrow<nb::sequence>(each_of(targets))) {
              KOINE_REQUIRE(nb::isinstance<Tensor>(one), Type,
                            "gradient: takes tensors that this one is computed from, not a '{}'",
                            name_of_type(one));
              all.push_back(nb::cast<Tensor>(one));
            }
            return nb::tuple(nb::cast(t.gradient(all)));
          },
          "targets"_a,
          "The gradients of this scalar by some tensors that it is computed from, as a tuple; no "
          "grad changes.\n\n"
          ">>> w = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
          ">>> (w * w).sum().gradient(w)[0].tolist()\n"
          "[2.0, 4.0]");
}

}  // namespace

void bind_tensor(nb::module_& m, TensorClass& c) {
  bind_making(c);
  bind_facts(c);
  bind_running(c);
  bind_gradients(c);
  m.def("_storage_id", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.storage_id()); });
  m.def(
      "realize",
      [](const nb::args& given) {
        const std::vector<Tensor> all = as_tensors(each_of(given), "realize");
        unlocked([&] { Tensor::realize(all); });
      },
      "tensors"_a,
      "Computes several tensors together.\n\n"
      ">>> x, y = koine.Tensor([1, 2]) + 1, koine.Tensor([3]) * 2\n"
      ">>> koine.realize(x, y)");
}

}  // namespace koine::python
