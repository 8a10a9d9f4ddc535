#include "writer.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "koine/ir/build.hpp"

namespace koine::test {

UOp special(const char* name, int64_t bound) {
  return UOp::make(Op::Special, {index_const(bound)}, std::string(name));
}

UOp local(int64_t elements) {
  return UOp::make(Op::Buffer, {shape_of({elements})},
                   BufferArg{0, DType::Float32, {}, AddrSpace::Local});
}

UOp Writer::operator()(const UOp& u) {
  if (std::find(list_.begin(), list_.end(), u) == list_.end()) list_.push_back(u);
  return u;
}

UOp Writer::all(const UOp& u) {
  for (const UOp& s : u.src())
    if (!u.is(Op::Param) && !u.is(Op::Buffer)) all(s);
  return u.is(Op::After) ? u : (*this)(u);
}

void Writer::barrier(int64_t tag) {
  list_.push_back(UOp::make(Op::Barrier, std::span<const UOp>(), {}, tag));
}

void Writer::endif(const UOp& opened) { list_.push_back(UOp::make(Op::Endif, {opened})); }

UOp reversal(int64_t threads, int64_t groups, bool with_barrier) {
  Writer w;
  const UOp out = param(0, shape_of({threads * groups}), DType::Float32),
            in = param(1, shape_of({threads * groups}), DType::Float32);
  const UOp g = special("gidx0", groups), l = special("lidx0", threads), shared = local(threads);
  const UOp at = add(mul(g, index_const(threads)), l);
  w.all(store(index(shared, {l}), load(index(in, {at}))));
  if (with_barrier) w.barrier();
  w.all(store(index(out, {at}),
              load(index(shared, {add(index_const(threads - 1), mul(l, index_const(-1)))}))));
  return w.linear();
}

UOp tree_of_64() {
  Writer w;
  const UOp out = param(0, shape_of({1}), DType::Float32),
            in = param(1, shape_of({64}), DType::Float32);
  const UOp i = special("lidx0", 8), j = special("lidx1", 8), shared = local(64);
  const UOp at = add(mul(i, index_const(8)), j);
  w.all(store(index(shared, {at}), load(index(in, {at}))));
  int64_t tag = 0;
  for (const int64_t half : {4, 2, 1}) {
    w.barrier(tag++);
    const UOp open = w.all(UOp::make(Op::If, {lt(j, index_const(half))}, {}, half));
    const UOp mine = load(index(after(shared, {open}), {at})),
              other = load(index(after(shared, {open}), {add(at, index_const(half))}));
    w.all(store(index(shared, {at}), add(mine, other)));
    w.endif(open);
  }
  w.barrier(tag);
  const UOp first = w.all(UOp::make(Op::If, {lt(at, index_const(1))}, {}, 9));
  UOp sum = constant(DType::Float32, 0);
  for (int64_t k = 0; k < 8; ++k)
    sum = add(sum, load(index(after(shared, {first}), {index_const(8 * k)})));
  w.all(store(index(out, {index_const(0)}), sum));
  w.endif(first);
  return w.linear();
}

UOp seven_of_ten() {
  Writer w;
  const UOp out = param(0, shape_of({20}), DType::Float32), l = special("lidx0", 10);
  const UOp open = w.all(UOp::make(Op::If, {lt(l, index_const(7))}));
  w.all(store(index(out, {l}), constant(DType::Float32, 5)));
  w.endif(open);
  w.all(store(index(out, {add(l, index_const(10))}), constant(DType::Float32, 1)));
  return w.linear();
}

std::vector<float> what_seven_of_ten_leave() {
  std::vector<float> out(20, 1);
  std::fill(out.begin(), out.begin() + 7, 5.0f);
  std::fill(out.begin() + 7, out.begin() + 10, -1.0f);
  return out;
}

std::vector<float> counting_up(int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0.0f);
  return out;
}

}  // namespace koine::test
