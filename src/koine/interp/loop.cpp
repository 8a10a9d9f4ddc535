#include "koine/interp/loop.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/interp/kernel.hpp"
#include "koine/ir/loop.hpp"

namespace koine {
namespace {

// What lies in memory is rounded and has no invalid elements: they are 0 there (amendment C27).
BoundedArray settled(BoundedArray a) {
  for (size_t i = 0; i < a.value.data.size(); ++i)
    if (!a.value.is_valid(i)) a.value.data[i] = 0;
  a.value.valid.clear();
  a.slack.clear();
  return a;
}

BoundedArray row_of(const BoundedArray& rows, int64_t number) {
  BoundedArray out{
      {rows.value.dtype, {rows.value.sizes.begin() + 1, rows.value.sizes.end()}, {}, {}}, {}};
  const auto size = static_cast<std::ptrdiff_t>(out.value.numel()), first = number * size;
  out.value.data.assign(rows.value.data.begin() + first, rows.value.data.begin() + first + size);
  if (!rows.error.empty())
    out.error.assign(rows.error.begin() + first, rows.error.begin() + first + size);
  return out;
}

class LoopInterpreter {
 public:
  LoopInterpreter(const UOp& call, std::span<const BoundedArray> arguments,
                  const Bindings& bindings, const Liberties& liberties)
      : loop_(call), liberties_(liberties) {
    for (const auto& [node, value] : bindings)
      if (is_variable(node)) variables_.emplace(node, BoundedArray{value, {}});
    for (const BoundedArray& a : arguments) given_.push_back(settled(a));
  }

  std::vector<BoundedArray> run() {
    if (loop_.body.is(Op::Switch)) return branch();
    return loop_.body.is(Op::Scan) ? scan() : repeat();
  }

 private:
  std::vector<BoundedArray> values_of(const UOp& function,
                                      const std::vector<BoundedArray>& arguments) const {
    BoundedBindings bound = variables_;
    const std::vector<UOp> params = loop_.params(function);
    for (size_t k = 0; k < params.size(); ++k)
      if (params[k]) bound.insert_or_assign(params[k], arguments[k]);
    std::vector<BoundedArray> out;
    if (liberties_.any()) {
      for (const UOp& v : function.src()) out.push_back(settled(interpret_bounded(v, bound)));
      return out;
    }
    Bindings plain;
    for (const auto& [node, a] : bound) plain.emplace(node, a.value);
    for (const UOp& v : function.src()) out.push_back(settled({interpret(v, plain), {}}));
    return out;
  }

  int64_t sized(const UOp& size) const {
    Bindings plain;
    for (const auto& [node, a] : variables_) plain.emplace(node, a.value);
    return interpret_index(size, plain);
  }

  // A number that decides what runs; known to the bit.
  static Bits decided(const BoundedArray& a) {
    if (!a.error.empty() && a.error[0] != 0) throw Undetermined("a condition is not decided");
    return a.value.data.at(0);
  }

  std::vector<BoundedArray> scan() {
    const std::vector<size_t> carries = loop_.positions(LoopRole::Carry);
    const int64_t count = sized(loop_.count);
    std::vector<BoundedArray> now = given_, out;
    for (const UOp& r : loop_results(loop_.body)) {
      out.push_back({{r.dtype(), {}, {}, {}}, {}});
      for (const UOp& d : r.shape().src()) out.back().value.sizes.push_back(sized(d));
      out.back().value.data.resize(static_cast<size_t>(out.back().value.numel()));
    }
    for (int64_t step = 0; step < count; ++step) {
      const int64_t number = loop_.reversed ? count - 1 - step : step;
      for (const size_t k : loop_.positions(LoopRole::Row)) now[k] = row_of(given_[k], number);
      std::vector<BoundedArray> made = values_of(loop_.step(), now);
      for (size_t k = carries.size(); k < made.size(); ++k) collect(made[k], number, out[k]);
      for (size_t i = 0; i < carries.size(); ++i) now[carries[i]] = std::move(made[i]);
    }
    for (size_t i = 0; i < carries.size(); ++i) out[i] = now[carries[i]];
    return out;
  }

  static void collect(const BoundedArray& made, int64_t number, BoundedArray& out) {
    const auto first = number * static_cast<std::ptrdiff_t>(made.value.data.size());
    std::copy(made.value.data.begin(), made.value.data.end(), out.value.data.begin() + first);
    if (made.error.empty()) return;
    out.error.resize(out.value.data.size());
    std::copy(made.error.begin(), made.error.end(), out.error.begin() + first);
  }

  std::vector<BoundedArray> repeat() {
    std::vector<BoundedArray> now = given_;
    const std::vector<size_t> carries = loop_.positions(LoopRole::Carry);
    int64_t steps = 0;
    while ((decided(values_of(loop_.functions[0], now)[0]) & 1) != 0) {
      std::vector<BoundedArray> made = values_of(loop_.step(), now);
      for (size_t i = 0; i < carries.size(); ++i) now[carries[i]] = std::move(made[i]);
      if (++steps == most_interpreted_steps) throw Undetermined("a condition that holds on");
    }
    std::vector<BoundedArray> out;
    for (const size_t k : carries) out.push_back(now[k]);
    return out;
  }

  std::vector<BoundedArray> branch() {
    const int64_t asked = bits_to_int(DType::Int32, decided(given_[0]));
    const auto last = static_cast<int64_t>(loop_.functions.size()) - 1;
    return values_of(loop_.functions[static_cast<size_t>(std::clamp<int64_t>(asked, 0, last))],
                     given_);
  }

  Loop loop_;
  Liberties liberties_;
  BoundedBindings variables_;
  std::vector<BoundedArray> given_;
};

}  // namespace

std::vector<BoundedArray> interpret_loop(const UOp& call, std::span<const BoundedArray> arguments,
                                         const Bindings& bindings, const Liberties& liberties) {
  return LoopInterpreter(call, arguments, bindings, liberties).run();
}

}  // namespace koine
