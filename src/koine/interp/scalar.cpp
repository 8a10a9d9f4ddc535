#include "koine/interp/scalar.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/rules/decompose.hpp"

namespace koine {

// Values in a row: three operands, a 0 for those that an op does not have, constants, and one value
// a step. A step names values before its own.
struct ScalarOp::Recipe {
  struct Step {
    ScalarOp compute;
    uint32_t operand[3];
  };
  std::vector<Bits> constants;
  std::vector<Step> steps;
  size_t result = 0;
};

namespace {
constexpr uint32_t no_operand = 3, first_constant = 4;
}

ScalarOp::Recipe ScalarOp::make_recipe(Op op, DType dtype, const Arg& arg) {
  std::vector<UOp> operands;
  for (int i = 0; i < op_info(op).fewest; ++i)
    operands.push_back(UOp::make(Op::Param, {}, BufferArg{i, dtype, {}, AddrSpace::Global}));
  const UOp root = decompose(op, operands, arg);
  KOINE_INVARIANT(root, "{} of {} has no definition", op_name(op), dtype_name(dtype));
  Recipe recipe;
  absl::flat_hash_map<const Node*, uint32_t> place;
  const NodeList order = toposort(root);
  for (const UOp& u : order) {
    if (u.is(Op::Param)) place.emplace(u.node(), static_cast<uint32_t>(u.as<BufferArg>().slot));
    if (!u.is(Op::Const)) continue;
    place.emplace(u.node(), first_constant + static_cast<uint32_t>(recipe.constants.size()));
    recipe.constants.push_back(u.as<ConstArg>().bits);
  }
  const size_t first_step = first_constant + recipe.constants.size();
  for (const UOp& u : order) {
    if (u.src().empty()) continue;
    Recipe::Step step{ScalarOp(u.op(), u.dtype(), u.src(u.is(Op::Where) ? 1 : 0).dtype(), u.arg()),
                      {no_operand, no_operand, no_operand}};
    for (size_t i = 0; i < u.src().size(); ++i) step.operand[i] = place.at(u.src(i).node());
    place.emplace(u.node(), static_cast<uint32_t>(first_step + recipe.steps.size()));
    recipe.steps.push_back(step);
  }
  recipe.result = place.at(root.node());
  return recipe;
}

const ScalarOp::Recipe& ScalarOp::recipe_of(Op op, DType dtype, const Arg& arg) {
  static std::recursive_mutex mutex;  // a step may be a decomposed op
  static auto& recipes = *new std::unordered_map<int, std::unique_ptr<Recipe>>;
  const std::lock_guard lock(mutex);
  const int64_t* variant = std::get_if<int64_t>(&arg);  // 0 to 3: quarter turns, bases
  auto& slot = recipes[(static_cast<int>(op) * dtype_count + static_cast<int>(dtype)) * 4 +
                       static_cast<int>(variant != nullptr ? *variant : 0)];
  if (!slot) slot = std::make_unique<Recipe>(make_recipe(op, dtype, arg));
  return *slot;
}

ScalarOp::ScalarOp(Op op, DType out, DType in, const Arg& arg) : evaluate_(op, out, in) {
  if (op != Op::Bitcast && !can_evaluate(op, in)) recipe_ = &recipe_of(op, in, arg);
}

Bits ScalarOp::decomposed(Bits x, Bits y, Bits z) const {
  std::vector<Bits> values = {x, y, z, 0};
  values.reserve(first_constant + recipe_->constants.size() + recipe_->steps.size());
  values.insert(values.end(), recipe_->constants.begin(), recipe_->constants.end());
  for (const Recipe::Step& s : recipe_->steps)
    values.push_back(s.compute(values[s.operand[0]], values[s.operand[1]], values[s.operand[2]]));
  return values[recipe_->result];
}

Bits interpret_scalar(Op op, DType out, DType in, std::span<const Bits> operands, const Arg& arg) {
  return ScalarOp(op, out, in, arg)(operands[0], operands.size() > 1 ? operands[1] : 0,
                                    operands.size() > 2 ? operands[2] : 0);
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
