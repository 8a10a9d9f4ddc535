#include <absl/container/flat_hash_map.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/eval.hpp"
#include "koine/ir/graph.hpp"
#include "koine/rules/decompose.hpp"

namespace koine {
namespace {

// The decomposition of an op for one dtype, as a list of primitive steps.
struct Step {
  Op op;
  DType out, in;
  Bits constant;
  int operand[3];
};
struct Recipe {
  std::vector<Step> steps;
};

Recipe make_recipe(Op op, DType dtype, const Arg& arg) {
  std::vector<UOp> operands;
  for (int i = 0; i < op_info(op).fewest; ++i)
    operands.push_back(UOp::make(Op::Param, {}, BufferArg{i, dtype, {}, AddrSpace::Global}));
  const UOp root = decompose(op, operands, arg);
  KOINE_INVARIANT(root, "{} of {} has no definition", op_name(op), dtype_name(dtype));
  Recipe recipe;
  absl::flat_hash_map<const Node*, int> number;
  for (const UOp& u : toposort(root)) {
    Step s{u.op(), u.dtype(), u.dtype(), 0, {-1, -1, -1}};
    if (u.is(Op::Const)) s.constant = u.as<ConstArg>().bits;
    if (u.is(Op::Param)) s.operand[0] = static_cast<int>(u.as<BufferArg>().slot);
    for (size_t i = 0; i < u.src().size(); ++i) s.operand[i] = number.at(u.src(i).node());
    if (!u.src().empty()) s.in = u.src(u.is(Op::Where) ? 1 : 0).dtype();
    number.emplace(u.node(), static_cast<int>(recipe.steps.size()));
    recipe.steps.push_back(s);
  }
  return recipe;
}

const Recipe& recipe_of(Op op, DType dtype, const Arg& arg) {
  static std::mutex mutex;
  static auto& recipes = *new std::unordered_map<int, std::unique_ptr<Recipe>>;
  const std::lock_guard lock(mutex);
  const int64_t* variant = std::get_if<int64_t>(&arg);  // 0 to 3: quarter turns, bases
  auto& slot = recipes[(static_cast<int>(op) * dtype_count + static_cast<int>(dtype)) * 4 +
                       static_cast<int>(variant != nullptr ? *variant : 0)];
  if (!slot) slot = std::make_unique<Recipe>(make_recipe(op, dtype, arg));
  return *slot;
}

}  // namespace

Bits interpret_scalar(Op op, DType out, DType in, std::span<const Bits> operands, const Arg& arg) {
  if (op == Op::Bitcast) return out == DType::Bool ? operands[0] != 0 : operands[0];
  if (can_evaluate(op, in)) return evaluate(op, out, in, operands);
  std::vector<Bits> values;
  for (const Step& s : recipe_of(op, in, arg).steps) {
    if (s.op == Op::Const) {
      values.push_back(s.constant);
    } else if (s.op == Op::Param) {
      values.push_back(operands[static_cast<size_t>(s.operand[0])]);
    } else {
      Bits args[3] = {};
      size_t count = 0;
      for (; count < 3 && s.operand[count] >= 0; ++count)
        args[count] = values[static_cast<size_t>(s.operand[count])];
      values.push_back(interpret_scalar(s.op, s.out, s.in, std::span<const Bits>(args, count)));
    }
  }
  return values.back();
}

Bits read_element(const std::byte* data, DType dtype, int64_t index) {
  Bits bits = 0;
  const auto size = static_cast<size_t>(item_size(dtype));
  std::memcpy(&bits, data + static_cast<size_t>(index) * size, size);
  return dtype == DType::Bool ? bits != 0 : bits;
}

void write_element(std::byte* data, DType dtype, int64_t index, Bits bits) {
  const auto size = static_cast<size_t>(item_size(dtype));
  std::memcpy(data + static_cast<size_t>(index) * size, &bits, size);
}

}  // namespace koine
