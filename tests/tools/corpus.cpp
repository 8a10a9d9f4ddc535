#include "corpus.hpp"

#include "check.hpp"
#include "graphs.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "text.hpp"

namespace koine::test {
namespace {

Tensor numbers(const Shape& shape, DType dtype = DType::Float32) {
  return Tensor(leaf(shape, dtype));
}

// A scan, its gradient, a loop in a loop, a condition and a branch.
std::vector<UOp> loops() {
  const Tensor xs = numbers({5, 3}), h = numbers({4}), w = numbers({4, 4}), u = numbers({3, 4});
  const auto last = [&](const Tensor& weight) {
    const auto step = [&](const Tensor& c, const Tensor& x) {
      const Tensor next = (c.matmul(weight) + x.matmul(u)).tanh();
      return std::pair(next, next.sum());
    };
    return scan(step, h, xs);
  };
  const auto loss = [&](const Tensor& weight) { return last(weight).second.sum(); };
  const Tensor inner = fori_loop(
      0, 3,
      [&](const Tensor& i, const Tensor& c) {
        return while_loop([](const Tensor& a) { return a.sum() < 9; },
                          [&](const Tensor& a) { return a.abs() + i.cast(DType::Float32) + 1; }, c);
      },
      h);
  const Tensor picked = cond(
      h.sum() > 0, [](const Tensor& a) { return a.exp().sum(); },
      [&](const Tensor& a) { return a.matmul(w).sum(); }, h);
  const Tensor shared = numbers({4, 6, 3}).shard("CPU,CPU:1", 1);
  const Tensor sums =
      scan([](const Tensor& c, const Tensor& x) { return std::pair(c + x, c.sum()); },
           Tensor::zeros({6, 3}), shared)
          .second;
  return {last(w).second.uop(), grad(loss)(w).uop(), inner.uop(), picked.uop(), sums.uop()};
}

// What the random graphs do not make.
std::vector<UOp> programs() {
  const Tensor x = numbers({4, 64}), w = numbers({64, 8}), h = numbers({3, 5}, DType::Float16);
  const Tensor at = Tensor::from<int32_t>({2, 0, 1}), table = numbers({5, 6});
  const UOp n = variable("n", 1, 32);
  const UOp line = numbers({32}).uop();
  const UOp part = shrink(line, shape_of({0}), stack(std::vector<UOp>{n}));
  const UOp p = param(0, shape_of({4}), DType::Float32), b = leaf({4});
  const UOp body = tuple(std::vector<UOp>{add(p, p), mul(p, p)});
  const UOp two = get_tuple(function(body, std::vector<UOp>{b}), 1);
  const UOp zeros = Tensor::zeros({4}).clone().realize().uop();
  const UOp written =
      after(zeros, {store(shrink(zeros, shape_of({1}), shape_of({2})), Tensor::ones({2}).uop())});
  std::vector<UOp> out = loops();
  const std::vector<UOp> others{x.softmax().uop(),
                                x.matmul(w).relu().uop(),
                                x.sum().uop(),
                                numbers({2, 3, 8, 8}).max_pool2d(2).uop(),
                                h.exp2().uop(),
                                (h.cast(DType::Float64).sin() + h.cast(DType::Float64)).uop(),
                                table.gather(0, numbers({2, 6}, DType::Int32)).uop(),
                                index(table.uop(), {at.uop()}),
                                Tensor::zeros({5}).scatter_add(0, at, Tensor::ones({3})).uop(),
                                reduce(Op::Add, part, {0}),
                                add(part, part),
                                two,
                                written,
                                copy_to(x.uop(), Device("CPU:1")),
                                Tensor::arange(0, 100, 1).cumsum(0).uop(),
                                numbers({700, 3}).sum({0}).uop()};
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

std::vector<std::string> stages() {
  return {"callify",  "decide",   "bufferize", "index",  "split",
          "rangeify", "optimize", "expand",    "select", "linearize"};
}

}  // namespace

std::vector<std::string> value_texts() {
  std::vector<std::string> out;
  for (const UOp& value : programs()) out.push_back(to_text(value));
  for (uint64_t i = 0; i < 40; ++i) {
    std::mt19937_64 random(900 + i);
    out.push_back(to_text(random_graph(random)));
  }
  return out;
}

std::vector<std::string> stage_texts() {
  std::vector<std::string> out;
  for (const std::string& text : value_texts()) {
    out.push_back(text);
    for (const std::string& stage : stages()) {
      const std::string after = app::text_after(text, stage);
      constexpr size_t most = 20000;  // long texts are slow and say nothing new
      if (after.find('%') != std::string::npos && after.size() < most) out.push_back(after);
    }
  }
  return out;
}

}  // namespace koine::test
