// Layers, optimisers and learning rates.
#include "bind.hpp"

namespace koine::python {
namespace {

// What names the tensors of a layer: (name, tensor, whether it is trained).
template <class Layer>
nb::list state_of(Layer& layer) {
  nb::list out;
  layer.state("", [&](const std::string& name, Tensor& t, bool trainable) {
    out.append(nb::make_tuple(name, t, trainable));
  });
  return out;
}

std::optional<Tensor> if_defined(const Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// A tensor of a layer as an attribute. Another one may be put in its place.
template <class Layer>
void part(nb::class_<Layer>& c, const char* name, Tensor Layer::* member, const char* doc) {
  const std::string layer_name = nb::cast<std::string>(nb::borrow(c.attr("__name__")));
  const bool may_miss = std::string_view(doc).ends_with("or None.");
  c.def_prop_rw(
      name, [member](const Layer& layer) { return if_defined(layer.*member); },
      [=](Layer& layer, const std::optional<TensorLike>& t) {
        KOINE_REQUIRE(t || may_miss, Type, "{}: there is always a {}, so it cannot be None",
                      layer_name, name);
        layer.*member =
            t ? as_tensor(*t, fmt::format("{}.{}", layer_name, name).c_str()) : Tensor();
      },
      nb::for_setter(nb::arg("value").none()), doc);
}

// What a layer computes beside its tensors.
nb::tuple config_of(const nn::Linear&) { return nb::make_tuple(); }
nb::tuple config_of(const nn::Conv2d& l) {
  return nb::make_tuple(l.window.stride, l.window.padding, l.window.dilation, l.groups);
}
nb::tuple config_of(const nn::BatchNorm& l) { return nb::make_tuple(l.eps, l.momentum); }
nb::tuple config_of(const nn::LayerNorm& l) { return nb::make_tuple(l.eps); }
nb::tuple config_of(const nn::Embedding&) { return nb::make_tuple(); }

// What it was made with, by the names of the parameters; '?' for a size that no tensor shows.
std::string size_text(const Tensor& t, int64_t axis) {
  return t.defined() && axis < t.ndim() ? t.size(axis).text() : "?";
}
const char* bool_text(bool b) { return b ? "True" : "False"; }
std::string text_of(const nn::Linear& l) {
  return fmt::format("inputs={}, outputs={}, bias={}", size_text(l.weight, 1),
                     size_text(l.weight, 0), bool_text(l.bias.defined()));
}
std::string text_of(const nn::Conv2d& l) {
  const std::string part = size_text(l.weight, 1);
  return fmt::format(
      "inputs={}, outputs={}, kernel={}, stride={}, padding={}, dilation={}, groups={}, bias={}",
      part == "?" ? part : fmt::format("{}", std::stoll(part) * l.groups), size_text(l.weight, 0),
      size_text(l.weight, 2), l.window.stride, l.window.padding, l.window.dilation, l.groups,
      bool_text(l.bias.defined()));
}
std::string text_of(const nn::BatchNorm& l) {
  return fmt::format("features={}, eps={}, momentum={}", size_text(l.weight, 0), l.eps, l.momentum);
}
std::string text_of(const nn::LayerNorm& l) {
  return fmt::format("features={}, eps={}", size_text(l.weight, 0), l.eps);
}
std::string text_of(const nn::Embedding& l) {
  return fmt::format("vocabulary={}, width={}", size_text(l.weight, 0), size_text(l.weight, 1));
}

// A layer of a configuration, whose tensors are still to come.
template <class Layer>
Layer of_config(const nb::tuple& config) {
  auto whole = [&](size_t k) { return nb::cast<int64_t>(config[k]); };
  auto real = [&](size_t k) { return nb::cast<double>(config[k]); };
  if constexpr (std::is_same_v<Layer, nn::Conv2d>) {
    Layer l(1, 1, 1, {whole(0), whole(1), whole(2)});
    l.groups = whole(3);
    return l;
  } else if constexpr (std::is_same_v<Layer, nn::BatchNorm>) {
    return Layer(1, real(0), real(1));
  } else if constexpr (std::is_same_v<Layer, nn::LayerNorm>) {
    return Layer(1, real(0));
  } else {
    return Layer(1, 1);
  }
}

// What a layer or an optimiser holds, by name; of a pickle a name that is missing is no tensor.
template <class T>
nb::dict tensors_of(T& holder) {
  nb::dict out;
  holder.state("", [&](const std::string& name, Tensor& t, bool) { out[name.c_str()] = t; });
  return out;
}
template <class T>
void put_tensors(T& holder, const nb::dict& tensors) {
  holder.state("", [&](const std::string& name, Tensor& t, bool) {
    t = tensors.contains(name.c_str()) ? nb::cast<Tensor>(tensors[name.c_str()]) : Tensor();
  });
}

// What Python put into an object, of a class of its own or not.
nb::object attributes_of(nb::handle self) {
  return nb::hasattr(self, "__dict__") ? nb::object(self.attr("__dict__")) : nb::dict();
}
void put_attributes(nb::handle self, nb::handle attributes) {
  if (nb::hasattr(self, "__dict__")) self.attr("__dict__").attr("update")(attributes);
}

// Pickles and deep copies: the configuration, the tensors, and what Python put into it.
template <class Layer>
nb::tuple pickled(nb::handle self) {
  auto& layer = nb::cast<Layer&>(self);
  return nb::make_tuple(config_of(layer), tensors_of(layer), attributes_of(self));
}
template <class Layer>
void unpickle(nb::pointer_and_handle<Layer> self, const nb::tuple& parts) {
  Layer layer = of_config<Layer>(nb::cast<nb::tuple>(parts[0]));
  put_tensors(layer, nb::cast<nb::dict>(parts[1]));
  new (self.p) Layer(std::move(layer));
  put_attributes(self.h, parts[2]);
}
nb::object shallow_copy(nb::handle self) {
  nb::object out = nb::inst_alloc(self.type());
  nb::inst_copy(out, self);
  put_attributes(out, attributes_of(self));
  return out;
}

template <class Layer>
nb::class_<Layer> layer(nb::module_& m, const char* name, const char* doc) {
  nb::class_<Layer> c(m, name, nb::dynamic_attr(), nb::is_weak_referenceable(), doc);
  c.def("_state", &state_of<Layer>);
  c.def("__getstate__", &pickled<Layer>).def("__setstate__", &unpickle<Layer>);
  c.def("__copy__", &shallow_copy);
  c.def("_config", [](const Layer& l) { return config_of(l); });
  c.def("__repr__", [name](const Layer& l) { return fmt::format("{}({})", name, text_of(l)); });
  return c;
}

double probability_of(double p) {
  KOINE_REQUIRE(p >= 0 && p <= 1, Value, "Dropout: p = {} is not a probability", p);
  return p;
}

void bind_layers(nb::module_& m) {
  auto linear = layer<nn::Linear>(
      m, "Linear",
      "x @ weight.T + bias, of x of shape (..., inputs); weight and bias are uniform in "
      "+-1/sqrt(inputs).\n\n"
      ">>> koine.nn.Linear(4, 2)(koine.Tensor.ones(3, 4)).shape\n"
      "(3, 2)");
  linear.def(nb::init<int64_t, int64_t, bool>(), "inputs"_a, "outputs"_a, "bias"_a = true)
      .def(
          "__call__",
          [](const nn::Linear& l, const TensorLike& x) { return l(as_tensor(x, "Linear")); },
          "x"_a);
  part(linear, "weight", &nn::Linear::weight, "float32 of shape (outputs, inputs).");
  part(linear, "bias", &nn::Linear::bias, "float32 of shape (outputs,), or None.");

  auto conv = layer<nn::Conv2d>(
      m, "Conv2d",
      "A convolution of x of shape (N, inputs, H, W).\n\n"
      ">>> koine.nn.Conv2d(3, 8, 3, padding=1)(koine.Tensor.ones(1, 3, 5, 5)).shape\n"
      "(1, 8, 5, 5)");
  conv.def(
          "__init__",
          [](nn::Conv2d* self, int64_t in, int64_t out, int64_t kernel, int64_t stride,
             int64_t padding, int64_t dilation, int64_t groups, bool bias) {
            new (self) nn::Conv2d(in, out, kernel, {stride, padding, dilation}, groups, bias);
          },
          "inputs"_a, "outputs"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1,
          "groups"_a = 1, "bias"_a = true)
      .def(
          "__call__",
          [](const nn::Conv2d& l, const TensorLike& x) { return l(as_tensor(x, "Conv2d")); },
          "x"_a);
  auto number = [&](const char* name, int64_t Tensor::Window::* member, const char* doc) {
    conv.def_prop_rw(
        name, [member](const nn::Conv2d& l) { return l.window.*member; },
        [member](nn::Conv2d& l, int64_t value) { l.window.*member = value; }, doc);
  };
  number("stride", &Tensor::Window::stride, "How far windows are apart.");
  number("padding", &Tensor::Window::padding, "Zeros around x.");
  number("dilation", &Tensor::Window::dilation, "How far the elements of a window are apart.");
  conv.def_rw("groups", &nn::Conv2d::groups, "How many parts of the inputs stay apart.");
  part(conv, "weight", &nn::Conv2d::weight,
       "float32 of shape (outputs, inputs / groups, kernel, kernel).");
  part(conv, "bias", &nn::Conv2d::bias, "float32 of shape (outputs,), or None.");

  auto batch = layer<nn::BatchNorm>(
      m, "BatchNorm",
      "Normalises axis 1 of x over all others. While training by the statistics of x, which move "
      "the running ones by `momentum`; else by the running ones.\n\n"
      ">>> koine.nn.BatchNorm(3)(koine.Tensor.ones(2, 3, 4, 4), training=False).shape\n"
      "(2, 3, 4, 4)");
  batch.def(nb::init<int64_t, double, double>(), "features"_a, "eps"_a = 1e-5, "momentum"_a = 0.1)
      .def(
          "__call__",
          [](nn::BatchNorm& l, const TensorLike& x, bool training) {
            return l(as_tensor(x, "BatchNorm"), training);
          },
          "x"_a, "training"_a = true);
  batch.def_rw("eps", &nn::BatchNorm::eps, "What is added to the variance.")
      .def_rw("momentum", &nn::BatchNorm::momentum, "The share of x in the running statistics.");
  part(batch, "weight", &nn::BatchNorm::weight,
       "What the result is scaled by, of shape (features,).");
  part(batch, "bias", &nn::BatchNorm::bias, "What is added, of shape (features,).");
  part(batch, "running_mean", &nn::BatchNorm::running_mean, "Of shape (features,); not trained.");
  part(batch, "running_var", &nn::BatchNorm::running_var, "Of shape (features,); not trained.");

  auto norm = layer<nn::LayerNorm>(
      m, "LayerNorm",
      "Normalises the last axis of x, which has `features` elements.\n\n"
      ">>> koine.nn.LayerNorm(2)(koine.Tensor([[1.0, 3.0]])).round().tolist()\n"
      "[[-1.0, 1.0]]");
  norm.def(nb::init<int64_t, double>(), "features"_a, "eps"_a = 1e-5)
      .def(
          "__call__",
          [](const nn::LayerNorm& l, const TensorLike& x) { return l(as_tensor(x, "LayerNorm")); },
          "x"_a);
  norm.def_rw("eps", &nn::LayerNorm::eps, "What is added to the variance.");
  part(norm, "weight", &nn::LayerNorm::weight,
       "What the result is scaled by, of shape (features,).");
  part(norm, "bias", &nn::LayerNorm::bias, "What is added, of shape (features,).");

  auto embedding = layer<nn::Embedding>(
      m, "Embedding",
      "Rows of a table by their numbers; negative ones count from the end. IndexError at the look "
      "for one that it lacks.\n\n"
      ">>> koine.nn.Embedding(10, 4)(koine.Tensor([[1, 9]])).shape\n"
      "(1, 2, 4)");
  embedding.def(nb::init<int64_t, int64_t>(), "vocabulary"_a, "width"_a)
      .def(
          "__call__",
          [](const nn::Embedding& l, const TensorLike& index) {
            return l(as_tensor(index, "Embedding"));
          },
          "index"_a);
  part(embedding, "weight", &nn::Embedding::weight, "float32 of shape (vocabulary, width).");

  nb::class_<nn::Dropout>(
      m, "Dropout",
      "Zeros with probability p while training, the rest divided by 1 - p.\n\n"
      ">>> koine.nn.Dropout(0.5)(koine.Tensor([1.0, 2.0]), training=False).tolist()\n"
      "[1.0, 2.0]")
      .def(
          "__init__",
          [](nn::Dropout* self, double p) { new (self) nn::Dropout(probability_of(p)); },
          "p"_a = 0.5)
      .def(
          "__call__",
          [](const nn::Dropout& l, const TensorLike& x, bool training) {
            return l(as_tensor(x, "Dropout"), training);
          },
          "x"_a, "training"_a = true)
      .def_prop_rw(
          "p", [](const nn::Dropout& l) { return l.p; },
          [](nn::Dropout& l, double p) { l.p = probability_of(p); }, nb::for_setter(nb::arg("arg")),
          "How likely an element is to become 0.")
      .def("__repr__", [](const nn::Dropout& l) { return fmt::format("Dropout(p={})", l.p); })
      .def("__getstate__",
           [](nb::handle self) {
             return nb::make_tuple(nb::cast<nn::Dropout&>(self).p, attributes_of(self));
           })
      .def("__setstate__",
           [](nb::pointer_and_handle<nn::Dropout> self, const nb::tuple& parts) {
             new (self.p) nn::Dropout(nb::cast<double>(parts[0]));
             put_attributes(self.h, parts[1]);
           })
      .def("_state", [](const nn::Dropout&) { return nb::list(); });
}

// What an optimiser was made with beside its parameters. The learning rate is that of now.
nb::dict settings_of(const nn::SGD& o) {
  nb::dict out;
  out["learning_rate"] = o.learning_rate();
  out["momentum"] = o.momentum();
  out["weight_decay"] = o.weight_decay();
  out["nesterov"] = o.nesterov();
  return out;
}
nb::dict settings_of(const nn::Adam& o) {
  nb::dict out;
  out["learning_rate"] = o.learning_rate();
  out["beta1"] = o.beta1();
  out["beta2"] = o.beta2();
  out["eps"] = o.eps();
  out["weight_decay"] = o.weight_decay();
  return out;
}

// Pickles and deep copies. One that is pickled with its model goes on with the model's parameters.
template <class Kind, class... Bases>
void pickle_by_settings(nb::class_<Kind, Bases...>& c) {
  c.def("__getstate__", [](nb::handle self) {
    Kind& o = nb::cast<Kind&>(self);
    return nb::make_tuple(o.parameters(), settings_of(o), tensors_of(o), attributes_of(self));
  });
  c.def("__setstate__", [](nb::handle self, const nb::tuple& parts) {
    nb::type<Kind>().attr("__init__")(self, parts[0], **nb::cast<nb::dict>(parts[1]));
    put_tensors(nb::cast<Kind&>(self), nb::cast<nb::dict>(parts[2]));
    put_attributes(self, parts[3]);
  });
}

std::vector<Tensor> parameters_of(const TensorsLike& given) {
  std::vector<Tensor> out = as_tensors(given, "optimizer");
  size_t k = 0;
  for (const nb::handle part : nb::borrow<nb::sequence>(given)) {
    KOINE_REQUIRE(nb::isinstance<Tensor>(part), Type,
                  "optimizer: parameter {} is a '{}', and only a Tensor can be trained", k,
                  name_of_type(part));
    ++k;
  }
  return out;
}

template <class Kind, class Base>
void bind_adam(nb::module_& m, const char* name, double default_decay, const char* doc) {
  nb::class_<Kind, Base> c(m, name, doc);
  pickle_by_settings(c);
  c.def(
      "__init__",
      [](Kind* self, const TensorsLike& p, double rate, double beta1, double beta2, double eps,
         double decay) { new (self) Kind(parameters_of(p), rate, beta1, beta2, eps, decay); },
      "parameters"_a, "learning_rate"_a = 1e-3, "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8,
      "weight_decay"_a = default_decay);
}

void bind_optimizers(nb::module_& m) {
  nb::class_<nn::Optimizer>(m, "Optimizer",
                            "Updates parameters from their gradients.\n\n"
                            ">>> issubclass(koine.nn.AdamW, koine.nn.Optimizer)\n"
                            "True")
      .def("__init__", refuse_making("Optimizer", "SGD, Adam and AdamW are some"))
      .def("zero_grad", &nn::Optimizer::zero_grad, "Forgets all gradients.")
      .def("__repr__",
           [](nb::handle self) {
             return fmt::format("<{} with learning_rate={}>", name_of_type(self),
                                nb::cast<nn::Optimizer&>(self).learning_rate());
           })
      .def(
          "step",
          [](nn::Optimizer& o, const TensorsLike& also) {
            const std::vector<Tensor> others = as_tensors(also, "step");
            unlocked_making([&] { o.step(others); });
          },
          "also"_a = nb::tuple(),
          "New parameters and state, and the tensors of `also`, computed together. A step that "
          "fails changes nothing.")
      .def_prop_rw("learning_rate", &nn::Optimizer::learning_rate,
                   &nn::Optimizer::set_learning_rate,
                   "May change from step to step: nothing is compiled again.")
      .def(
          "clip_grad_norm", &nn::Optimizer::clip_grad_norm, "norm"_a,
          "Scales all gradients so that their joint norm is at most this. Gives the norm before, a "
          "tensor.")
      .def("_tensors", &nn::Optimizer::tensors)
      .def("_state", &state_of<nn::Optimizer>);
  nb::class_<nn::SGD, nn::Optimizer> sgd(m, "SGD",
                                         "Stochastic gradient descent, with momentum.\n\n"
                                         ">>> w = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
                                         ">>> optimizer = koine.nn.SGD([w], learning_rate=0.5)\n"
                                         ">>> w.sum().backward()\n"
                                         ">>> optimizer.step()\n"
                                         ">>> w.tolist()\n"
                                         "[0.5, 1.5]");
  pickle_by_settings(sgd);
  sgd.def(
      "__init__",
      [](nn::SGD* self, const TensorsLike& p, double rate, double momentum, double decay,
         bool nesterov) { new (self) nn::SGD(parameters_of(p), rate, momentum, decay, nesterov); },
      "parameters"_a, "learning_rate"_a, "momentum"_a = 0.0, "weight_decay"_a = 0.0,
      "nesterov"_a = false);
  bind_adam<nn::Adam, nn::Optimizer>(
      m, "Adam", 0,
      "Adam (Kingma and Ba 2015), with weight decay in the gradient.\n\n"
      ">>> w = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
      ">>> optimizer = koine.nn.Adam([w], learning_rate=0.5)\n"
      ">>> w.square().sum().backward()\n"
      ">>> optimizer.step()\n"
      ">>> print(w.numpy().round(3))\n"
      "[0.5 1.5]");
  bind_adam<nn::AdamW, nn::Adam>(
      m, "AdamW", 0.01,
      "AdamW (Loshchilov and Hutter 2019): Adam, with weight decay apart.\n\n"
      ">>> w = koine.Tensor([1.0, 2.0], requires_grad=True)\n"
      ">>> optimizer = koine.nn.AdamW([w], learning_rate=0.5, weight_decay=0.1)\n"
      ">>> w.square().sum().backward()\n"
      ">>> optimizer.step()\n"
      ">>> print(w.numpy().round(3))\n"
      "[0.45 1.4 ]");
  m.def("cosine_schedule", &nn::cosine_schedule, "step"_a, "total"_a, "peak"_a, "floor"_a = 0.0,
        "warmup"_a = 0,
        "A learning rate by step: up to `peak` in `warmup` steps, then down to `floor` along a "
        "cosine.\n\n"
        ">>> koine.nn.cosine_schedule(100, 100, peak=1.0, floor=0.5)\n"
        "0.5");
  m.def("step_schedule", &nn::step_schedule, "step"_a, "every"_a, "start"_a, "factor"_a,
        "A learning rate by step: `start`, times `factor` after each `every` steps.\n\n"
        ">>> koine.nn.step_schedule(20, every=10, start=1.0, factor=0.5)\n"
        "0.25");
}

}  // namespace

void bind_nn(nb::module_& m) {
  nb::module_ own = m.def_submodule("nn", "Layers and optimisers.");
  bind_layers(own);
  bind_optimizers(own);
}

}  // namespace koine::python
