// Random numbers under keys.
#include "bind.hpp"

namespace koine::python {

void bind_random(nb::module_& m) {
  nb::module_ r =
      m.def_submodule("random", "Random numbers that follow from a key and a shape alone.");
  nb::class_<random::Key>(
      r, "Key",
      "64 bits that random numbers follow from: use one for one draw, then split it.\n\n"
      ">>> key, sub = koine.random.Key(0).split()\n"
      ">>> koine.random.randn(sub, (2, 3)).shape\n"
      "(2, 3)")
      .def(
          "__init__",
          [](random::Key* self, nb::handle seed) {
            if (nb::isinstance<Tensor>(seed))
              new (self) random::Key(nb::cast<const Tensor&>(seed));
            else
              new (self) random::Key(as_int(seed, "Key", "a seed"));
          },
          "seed"_a)
      .def(
          "split", [](const random::Key& k, int64_t n) { return nb::tuple(nb::cast(k.split(n))); },
          "n"_a = 2, "Keys that are independent of each other and of this one.")
      .def(
          "fold_in",
          [](const random::Key& k, nb::handle number) {
            return nb::isinstance<Tensor>(number)
                       ? k.fold_in(nb::cast<const Tensor&>(number))
                       : k.fold_in(as_int(number, "fold_in", "a number"));
          },
          "number"_a, "The key for a number, such as that of a step.")
      .def(
          "__getitem__",
          [](const random::Key& k, nb::handle i) {
            if (!PySlice_Check(i.ptr())) return k[as_int(i, "Key", "a position")];
            return random::Key(nb::cast<Tensor>(nb::cast(k.bits())[i]));
          },
          "i"_a, nb::sig("def __getitem__(self, i: int | slice, /) -> Key"),
          "One of several keys, or some of them.")
      .def("__repr__",
           [](const random::Key& k) {
             return k.bits().ndim() == 0
                        ? "<koine.random.Key>"
                        : fmt::format("<koine.random.Key of shape {}>",
                                      nb::repr(tuple_of(k.bits().shape())).c_str());
           })
      .def("__len__",
           [](const random::Key& k) {
             KOINE_REQUIRE(k.bits().ndim() > 0, Type, "len: this is one key; split gives several");
             return k.bits().shape()[0].largest();
           })
      .def("to", &random::Key::to, "device"_a, "The key on another device.")
      .def_prop_ro("bits", &random::Key::bits, "uint64: shape () of one key.")
      .def("__getstate__", &random::Key::bits)
      .def("__setstate__",
           [](random::Key* self, const Tensor& bits) { new (self) random::Key(bits); });
  r.def("split", &random::split, "key"_a, "n"_a = 2,
        "n keys as one value, for a function that vmap runs under each of them; key.split(n) gives "
        "a tuple.\n\n"
        ">>> keys = koine.random.split(koine.random.Key(0), 3)\n"
        ">>> koine.vmap(lambda key: koine.random.randn(key, (2,)))(keys).shape\n"
        "(3, 2)");
  const auto device = "device"_a = "";
  r.def(
      "bits",
      [](const random::Key& k, const ShapeLike& s, const std::string& d) {
        return random::bits(k, as_shape(s, "bits"), d);
      },
      "key"_a, "shape"_a, device, "64 random bits an element, as uint64.");
  r.def(
      "rand",
      [](const random::Key& k, const ShapeLike& s, const std::string& d) {
        return random::rand(k, as_shape(s, "rand"), d);
      },
      "key"_a, "shape"_a, device, "Uniform in [0, 1).");
  r.def(
      "randn",
      [](const random::Key& k, const ShapeLike& s, const std::string& d) {
        return random::randn(k, as_shape(s, "randn"), d);
      },
      "key"_a, "shape"_a, device, "Normal, mean 0, variance 1.");
  r.def(
      "randint",
      [](const random::Key& k, const ShapeLike& s, int64_t low, int64_t high,
         const std::string& d) { return random::randint(k, as_shape(s, "randint"), low, high, d); },
      "key"_a, "shape"_a, "low"_a, "high"_a, device,
      "int32 in [low, high).\n\n"
      ">>> koine.random.randint(koine.random.Key(0), (2,), 7, 8).tolist()\n"
      "[7, 7]");
  r.def(
      "uniform",
      [](const random::Key& k, const ShapeLike& s, double low, double high, const std::string& d) {
        return random::uniform(k, as_shape(s, "uniform"), low, high, d);
      },
      "key"_a, "shape"_a, "low"_a = 0.0, "high"_a = 1.0, device, "float32 in [low, high).");
  r.def(
      "bernoulli",
      [](const random::Key& k, const ShapeLike& s, double p, const std::string& d) {
        return random::bernoulli(k, as_shape(s, "bernoulli"), p, d);
      },
      "key"_a, "shape"_a, "p"_a = 0.5, device, "bool, true with probability p.");
  r.def("permutation", &random::permutation, "key"_a, "n"_a, device,
        "The int32 numbers 0 to n - 1 in random order.\n\n"
        ">>> sorted(koine.random.permutation(koine.random.Key(0), 3).tolist())\n"
        "[0, 1, 2]");
  r.def(
      "dropout",
      [](const random::Key& k, const TensorLike& x, double p) {
        return random::dropout(k, as_tensor(x, "dropout"), p);
      },
      "key"_a, "x"_a, "p"_a = 0.5,
      "Elements of x, each 0 with probability p and divided by 1 - p otherwise.");
}

}  // namespace koine::python
