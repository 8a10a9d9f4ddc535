// The net and the digits of `koine demo` on several devices (row P6). The oracle is the demo's own
// step on one device.
#include <map>

#include "check.hpp"
#include "digits.hpp"
#include "digits_net.hpp"

namespace koine::test {
namespace {

using app::DigitsNet;
using Axis = std::optional<int64_t>;
constexpr int64_t rows = 8, steps = 3;

// A few digits a step, the same wherever they go.
std::pair<Tensor, Tensor> batch(int64_t step) {
  static const app::Digits& all = *new const app::Digits(app::read_digits("data/digits.csv"));
  const auto image = all.images.begin() + step * rows * 64;
  const auto label = all.labels.begin() + step * rows;
  return {Tensor::from(std::vector<float>(image, image + rows * 64), {rows, 1, 8, 8}),
          Tensor::from(std::vector<int32_t>(label, label + rows), {rows})};
}

// Where a tensor of the net lies, and along which axis it is split.
struct Layout {
  std::string where;
  Axis axis;
};
using Layouts = std::function<Layout(const std::string& name)>;
using Loss = std::function<Tensor(DigitsNet&, const Tensor& images, const Tensor& labels)>;

Tensor loss_of(DigitsNet& net, const Tensor& images, const Tensor& labels) {
  return net(images, true).cross_entropy(labels);
}

// The same numbers to begin with everywhere; the losses of a few steps, and the net behind them.
struct Training {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> net;
};
Training train(const Layouts& layout_of, const Loss& loss_of) {
  Tensor::manual_seed(3);
  DigitsNet net;
  net.state("", [&](const std::string& name, Tensor& t, bool trainable) {
    const Layout p = layout_of(name);
    t = t.shard(p.where, p.axis).clone();
    if (trainable) t.requires_grad();
  });
  nn::AdamW optimizer(nn::get_parameters(net), 4e-3);
  Training out;
  for (int64_t step = 0; step < steps; ++step) {
    const auto [images, labels] = batch(step);
    const Tensor loss = loss_of(net, images, labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step({loss, net.norm.running_mean, net.norm.running_var});
    out.losses.push_back(loss.item<double>());
  }
  net.state("", [&](const std::string& name, Tensor& t, bool) {
    EXPECT_EQ(t.device(), Device(layout_of(name).where).name()) << name;
    EXPECT_EQ(t.shard_axis(), layout_of(name).axis) << name;
    out.net[name] = t.tolist<double>();
  });
  return out;
}

Training on_one_device() {
  return train([](auto&) { return Layout{"CPU", {}}; }, loss_of);
}

// Whether sums have the order of one device: to the bit then, and otherwise to rounding.
void expect_equal_training(const Training& one, const Training& many, bool same_order) {
  const bool exact = options().strict && same_order;
  for (size_t k = 0; k < one.losses.size(); ++k)
    EXPECT_NEAR(many.losses[k], one.losses[k], exact ? 0 : 1e-5 * one.losses[k]) << "step " << k;
  for (const auto& [name, values] : one.net)
    for (size_t k = 0; k < values.size(); ++k)
      if (exact) {
        ASSERT_EQ(many.net.at(name)[k], values[k]) << name << ", element " << k;
      }
}

void on_2_and_4(const std::function<void(const Training& one, const std::string& where)>& check) {
  in_both_modes([&] {
    const Training one = on_one_device();
    EXPECT_NE(one.losses[0], one.losses[1]);
    for (const char* where : {"CPU,CPU:1", "CPU,CPU:1,CPU:2,CPU:3"}) {
      SCOPED_TRACE(where);
      check(one, where);
    }
  });
}

}  // namespace

TEST(digits_training, spec_P6_parts_of_the_batch_give_the_losses_of_one_device) {
  on_2_and_4([](const Training& one, const std::string& where) {
    const Training many =
        train([&](auto&) { return Layout{where, {}}; },
              [&](DigitsNet& net, const Tensor& images, const Tensor& labels) {
                return loss_of(net, images.shard(where, 0), labels.shard(where, 0));
              });
    expect_equal_training(one, many, true);
  });
}

// The first dense layer by its columns and the second by its rows (weights are (out, in)): between
// them lies nothing whole, and behind them one sum over the devices.
TEST(digits_training, spec_P6_dense_layers_in_parts_give_the_losses_of_one_device) {
  on_2_and_4([](const Training& one, const std::string& where) {
    const auto layout_of = [&](const std::string& name) -> Layout {
      if (name == "hidden.weight" || name == "hidden.bias") return {where, 0};
      if (name == "out.weight") return {where, 1};
      return {where, {}};
    };
    const Training many =
        train(layout_of, [&](DigitsNet& net, const Tensor& images, const Tensor& labels) {
          return loss_of(net, images.shard(where), labels.shard(where));
        });
    expect_equal_training(one, many, true);
  });
}

// Convolutions on one device and dense layers on the other. As one batch the sums are those of one
// device. In parts that follow each other, behind the batchnorm that sees all rows, they add up in
// another order: to the bit equal to parts on one device, and near to one batch.
TEST(digits_training, spec_P6_a_pipeline_of_two_gives_the_losses_of_one_device) {
  auto pipeline = [](const std::string& first, const std::string& second, int64_t parts) {
    return train(
        [&](const std::string& name) -> Layout {
          return {name.starts_with("hidden") || name.starts_with("out") ? second : first, {}};
        },
        [&](DigitsNet& net, const Tensor& images, const Tensor& labels) {
          const Tensor normed = net.norm(net.first(images.to(first)), true).relu();
          const std::vector<Tensor> inputs = normed.chunk(parts, 0),
                                    wanted = labels.chunk(parts, 0);
          Tensor total(0.0);
          for (size_t k = 0; k < inputs.size(); ++k) {
            const Tensor h = net.second(inputs[k]).relu().max_pool2d(2).flatten(1).to(second);
            const Tensor logits = net.out(net.hidden(h).relu());
            total = total + logits.cross_entropy(wanted[k].to(second));
          }
          return total / static_cast<double>(parts);
        });
  };
  in_both_modes([&] {
    const Training one = on_one_device();
    expect_equal_training(one, pipeline("CPU", "CPU:1", 1), true);
    const Training parts = pipeline("CPU", "CPU:1", 2);
    expect_equal_training(pipeline("CPU", "CPU", 2), parts, true);
    expect_equal_training(one, parts, false);
  });
}

}  // namespace koine::test
