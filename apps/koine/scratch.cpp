#include <cstdio>
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/interp/interp.hpp"
using namespace koine;
int main() {
  float a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
  UOp s = shape_of({4});
  UOp x = buffer_from_host(s, DType::Float32, "CPU", a), y = buffer_from_host(s, DType::Float32, "CPU", b);
  UOp z = add(x, y);
  printf("%s", to_text(z).c_str());
  auto r = realize({z, reduce(Op::Add, mul(x, y), {0})});
  float* o = (float*)memory_of(r[0])->data();
  printf("%g %g %g %g | %g\n", o[0], o[1], o[2], o[3], *(float*)memory_of(r[1])->data());
}
