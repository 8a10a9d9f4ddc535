#include <cstdio>
#include "koine/koine.hpp"
#include "koine/ir/text.hpp"
using namespace koine;
template<class V> void show(const char* n, const V& v) { printf("%s:", n); for (size_t i = 0; i < v.size() && i < 16; ++i) printf(" %g", (double)v[i]); printf("\n"); }
int main() {
  Tensor a = Tensor::arange(10);
  show("arange", a.tolist<int>());
  Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  show("sum1", x.sum({1}).tolist<float>());
  show("softmax", x.softmax().tolist<float>());
  show("matmul", x.matmul(x.T()).tolist<float>());
  show("exp", x.exp().tolist<float>());
  show("log", x.log().tolist<float>());
  show("sin", x.sin().tolist<float>());
  show("rand", Tensor::rand({4}).tolist<float>());
  show("randn", Tensor::randn({4}).tolist<float>());
  show("gather", x.gather(1, Tensor::from<int>({2, 0}).reshape({2, 1})).tolist<float>());
  Tensor img = Tensor::arange(16).cast(DType::Float32).reshape({1, 1, 4, 4});
  show("conv", img.conv2d(Tensor::ones({1, 1, 3, 3}), {}, {1, 1, 1}).tolist<float>());
  Tensor w = Tensor::ones({1, 1, 3, 3}).requires_grad();
  Tensor loss = img.conv2d(w, {}, {1, 1, 1}).square().sum();
  loss.backward();
  show("wgrad", w.grad().tolist<float>());
  show("xgrad", loss.gradient({img})[0].tolist<float>());
}
