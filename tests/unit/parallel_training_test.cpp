// Nets that several devices train: they share out the batch, layers, heads of attention, or lie
// behind each other (row P6). The oracle is the same net on one device.
#include <memory>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/nn/optim.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

constexpr int64_t examples = 24;  // 2, 3, 4 and 8 divide it

// A net that is to lie on some devices, and its loss. Each parameter has the device and the axis
// that it is to keep.
struct Model {
  struct Place {
    std::string where;
    std::optional<int64_t> axis;
  };
  std::vector<Tensor> parameters;
  std::vector<Place> places;
  std::function<Tensor(const std::vector<Tensor>&)> loss;

  void add(const Shape& shape, const std::string& where, std::optional<int64_t> axis = {}) {
    Tensor p = Tensor::uniform(shape, -0.5, 0.5).cast(DType::Float64).shard(where, axis).clone();
    p.realize();
    parameters.push_back(p.requires_grad());
    places.push_back({where, Device(where).count() > 1 ? axis : std::nullopt});
  }
};

// A batch and what is wanted of it, the same wherever it goes.
std::pair<Tensor, Tensor> batch(const Shape& wanted) {
  Tensor::manual_seed(5);
  const Tensor x = Tensor::uniform({examples, 6}, -1, 1).cast(DType::Float64).realize();
  return {x, Tensor::uniform(wanted, -1, 1).cast(DType::Float64).realize()};
}

// How a perceptron lies on devices. Data: whole parameters, and the rows of the batch are split.
// Tensor: the first layer is split by columns and the second by rows, so that the hidden units of a
// device are its own; the batch is whole.
enum class Parallel { Data, Tensor };
Model perceptron(const std::string& where, Parallel parallel) {
  using Axis = std::optional<int64_t>;
  const auto [inputs, wanted] = batch({examples, 2});
  const bool data = parallel == Parallel::Data;
  Model out;
  out.add({6, examples}, where, data ? Axis() : 1);
  out.add({examples}, where, data ? Axis() : 0);
  out.add({examples, 2}, where, data ? Axis() : 0);
  out.add({2}, where);
  const Axis rows = data ? Axis(0) : Axis();
  const Tensor x = inputs.shard(where, rows).realize(), y = wanted.shard(where, rows).realize();
  out.loss = [x, y](const std::vector<Tensor>& p) {
    const Tensor hidden = (x.matmul(p[0]) + p[1]).tanh();
    return (hidden.matmul(p[2]) + p[3] - y).square().mean();
  };
  return out;
}

// Attention whose heads are split: each device has the projections of its own heads, and what all
// heads say of a row is summed over the devices.
Model attention(const std::string& where) {
  constexpr int64_t heads = examples, width = 6, head = 2;
  const auto [inputs, wanted] = batch({examples, width});
  Model out;
  for (int k = 0; k < 3; ++k) out.add({heads, width, head}, where, 0);
  out.add({heads, head, width}, where, 0);
  const Tensor x = inputs.shard(where).realize(), y = wanted.shard(where).realize();
  out.loss = [x, y](const std::vector<Tensor>& p) {
    const Tensor q = x.matmul(p[0]), k = x.matmul(p[1]), v = x.matmul(p[2]);
    const Tensor weights = q.matmul(k.transpose(1, 2)).softmax(-1);
    return (x + weights.matmul(v).matmul(p[3]).sum({0}) - y).square().mean();
  };
  return out;
}

// A pipeline of two: each layer lies on a device of its own, and the batch goes through them in
// parts, whose losses add up.
Model pipeline(const std::string& first, const std::string& second) {
  const auto [inputs, wanted] = batch({examples, 2});
  Model out;
  out.add({6, examples}, first);
  out.add({examples}, first);
  out.add({examples, 2}, second);
  out.add({2}, second);
  const Tensor x = inputs.to(first).realize(), y = wanted.to(second).realize();
  out.loss = [x, y, second](const std::vector<Tensor>& p) {
    const std::vector<Tensor> rows = x.chunk(2, 0), results = y.chunk(2, 0);
    Tensor total;
    for (size_t k = 0; k < rows.size(); ++k) {
      const Tensor hidden = (rows[k].matmul(p[0]) + p[1]).tanh().to(second);
      const Tensor part = (hidden.matmul(p[2]) + p[3] - results[k]).square().mean();
      total = k == 0 ? part : total + part;
    }
    return total / 2;
  };
  return out;
}

struct Training {
  std::vector<double> losses;
  std::vector<Array> parameters;
};
Training train(Model model, bool adam, int steps = 4) {
  std::unique_ptr<nn::Optimizer> optimizer;
  if (adam)
    optimizer = std::make_unique<nn::Adam>(model.parameters, 0.01);
  else
    optimizer = std::make_unique<nn::SGD>(model.parameters, 0.1, 0.9);
  Training out;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    const Tensor loss = model.loss(model.parameters);
    loss.backward();
    optimizer->clip_grad_norm(5);
    optimizer->step({loss});
    out.losses.push_back(loss.item<double>());
  }
  for (size_t k = 0; k < model.parameters.size(); ++k) {
    const Tensor& p = model.parameters[k];
    EXPECT_EQ(p.shard_axis(), model.places[k].axis);
    EXPECT_EQ(p.device(), Device(model.places[k].where).name());
    out.parameters.push_back(array_of(p.realize().uop()));
  }
  return out;
}

void expect_equal_training(const Training& one, const Training& many) {
  for (size_t i = 0; i < one.losses.size(); ++i) {
    if (options().strict)
      EXPECT_EQ(many.losses[i], one.losses[i]);
    else
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-12);
  }
  for (size_t i = 0; i < one.parameters.size(); ++i)
    for (size_t k = 0; k < one.parameters[i].data.size(); ++k) {
      const double a = bits_to_double(DType::Float64, one.parameters[i].data[k]);
      const double b = bits_to_double(DType::Float64, many.parameters[i].data[k]);
      if (options().strict)
        EXPECT_EQ(a, b);
      else
        EXPECT_NEAR(a, b, 1e-10);
    }
}

void expect_training_of_one_device(Parallel parallel) {
  in_both_modes([&] {
    for (const bool adam : {false, true}) {
      const Training one = train(perceptron("CPU", parallel), adam);
      for (const int64_t n : device_counts()) {
        SCOPED_TRACE(mixed_devices(n) + (adam ? ", Adam" : ", SGD"));
        expect_equal_training(one, train(perceptron(mixed_devices(n), parallel), adam));
      }
    }
  });
}

}  // namespace

TEST(parallel_training, spec_P6_a_model_trains_on_parts_of_the_batch_as_on_all_of_it) {
  expect_training_of_one_device(Parallel::Data);
}

TEST(parallel_training, spec_P6_a_model_trains_on_parts_of_its_layers_as_on_all_of_them) {
  expect_training_of_one_device(Parallel::Tensor);
}

TEST(parallel_training, spec_P6_attention_trains_on_parts_of_its_heads_as_on_all_of_them) {
  in_both_modes([] {
    const Training one = train(attention("CPU"), true, 2);
    EXPECT_NE(one.losses[0], one.losses[1]);
    for (const int64_t n : device_counts()) {
      SCOPED_TRACE(mixed_devices(n));
      expect_equal_training(one, train(attention(mixed_devices(n)), true, 2));
    }
  });
}

TEST(parallel_training, spec_P6_a_pipeline_of_two_trains_as_one_device) {
  in_both_modes([] {
    for (const bool adam : {false, true}) {
      const Training one = train(pipeline("CPU", "CPU"), adam, 2);
      EXPECT_NE(one.losses[0], one.losses[1]);
      expect_equal_training(one, train(pipeline("CPU", "CPU:1"), adam, 2));
    }
  });
}

// What goes from one layer to the next is all that travels, and what its gradient is on the way
// back.
TEST(parallel_training, spec_P6_a_pipeline_copies_what_goes_between_its_layers) {
  const Model model = pipeline("CPU", "CPU:1");
  const Tensor loss = model.loss(model.parameters);
  std::vector<Tensor> wanted = loss.gradient(model.parameters);
  wanted.push_back(loss);
  reset_counters();
  Tensor::realize(wanted);
  const int64_t bytes = examples * examples * 8;
  EXPECT_EQ((counters().copied_bytes[{"CPU", "CPU:1"}]), bytes);
  EXPECT_EQ((counters().copied_bytes[{"CPU:1", "CPU"}]), bytes);
}

}  // namespace koine::test
