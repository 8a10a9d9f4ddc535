// Scalars and vectors, as Select leaves them, and linear programs of them.
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/verify/program.hpp"

namespace koine {
namespace {

constexpr int64_t most_lanes = 256;

OpSet arithmetic() { return group_ops({GroupOp::Unary, GroupOp::Binary, GroupOp::Ternary}); }

OpSet instruction_ops() {
  return arithmetic() | group_ops({GroupOp::Memory}) |
         ops({Op::Const, Op::Param, Op::Buffer, Op::Stack, Op::Index, Op::Bitcast, Op::Reshape,
              Op::Expand, Op::Shrink, Op::Range, Op::End, Op::Group, Op::Barrier, Op::Special,
              Op::AtomicAdd, Op::Ins, Op::Custom, Op::Wmma});
}

// Instructions that give no value.
OpSet effect_ops() {
  return ops({Op::Group, Op::Barrier, Op::End, Op::Store, Op::AtomicAdd, Op::If, Op::Endif});
}

int64_t width(const UOp& u) { return u.is_scalar() ? 1 : u.sizes()[0]; }

bool is_vector(const UOp& u) {
  return u.is_scalar() ||
         (u.rank() == 1 && u.has_concrete_shape() && width(u) >= 1 && width(u) <= most_lanes);
}

// A Stack of constant indices is a shape as well: nobody computes it.
int check_vector(const UOp& u, const Facts& facts) {
  if (u.is(Op::Stack) && u.src().empty()) return fine;
  if (u.is(Op::Stack) && u.src().size() > most_lanes) return itself;
  if (u.is(Op::Buffer) && !is_register(u)) return fine;
  if (!is_vector(u)) return itself;
  const int64_t most = facts.target != nullptr ? facts.target->most_lanes : most_lanes;
  return unless(width(u) <= most);
}

int check_operands(const UOp& u, const Facts&) {
  return first_source(u, 0, [&](const UOp& s) { return !is_vector(s) || width(s) != width(u); });
}

int check_native(const UOp& u, const Facts& facts) {
  if (facts.target == nullptr) return fine;
  const int operands = u.is(Op::Where) ? 1 : 0;
  if (!is_native(*facts.target, u.op(), u.src(static_cast<size_t>(operands)).dtype()))
    return operands;
  return fine;
}

int check_dtype(const UOp& u, const Facts& facts) {
  return unless(facts.target == nullptr || is_native(*facts.target, u.dtype()));
}

int check_place(const UOp& u, const Facts&) {
  const UOp& place = strip_after(u.src(0));
  if (!place.is(Op::Index)) return unless(is_vector(place), 0);
  if (place.src().size() != 2) return 0;
  const UOp& at = place.src(1);
  if (!is_vector(at)) return 0;
  return unless(at.is_scalar() || (width(at) > 1 && contiguous_access(place).yes), 0);
}

int check_gate(const UOp& u, const Facts&) {
  const size_t gate = 2;
  if (u.src().size() <= gate) return fine;
  if (u.is(Op::Load) && width(u.src(1)) != width(u)) return 1;
  const int64_t lanes = width(u.is(Op::Load) ? u : u.src(1));
  return unless(is_vector(u.src(gate)) && (u.src(gate).is_scalar() || width(u.src(gate)) == lanes),
                static_cast<int>(gate));
}

int check_spread(const UOp& u, const Facts&) {
  const bool one = u.src(0).is(Op::Reshape) && u.src(0).src(0).is_scalar();
  return unless(one && is_vector(u) && width(u) > 1, 0);
}

int check_lane(const UOp& u, const Facts&) {
  if (is_address(u)) return check_address(u);
  if (u.src().size() != 2 || !is_vector(u.src(0)) || width(u.src(0)) < 2) return 0;
  const UOp& lane = u.src(1);
  return unless(lane.is(Op::Const) && const_int(lane) >= 0 && const_int(lane) < width(u.src(0)), 1);
}

int check_part(const UOp& u, const Facts&) {
  if (!is_vector(u.src(0)) || width(u.src(0)) < 2) return 0;
  return unless(u.src(1).src(0).is(Op::Const), 1);
}

// What a thread holds of A, B and the accumulator.
int check_core(const UOp& u, const Facts& facts) {
  const WmmaArg& arg = u.as<WmmaArg>();
  const TensorCore* core = find_tensor_core(arg.core);
  if (core == nullptr || core->software || !arg.a.empty() || !arg.b.empty() ||
      !arg.accumulator.empty())
    return itself;
  if (facts.target != nullptr &&
      std::ranges::find(facts.target->tensor_cores, core) == facts.target->tensor_cores.end())
    return itself;
  int at = 0;
  for (const CoreMatrix* matrix : {&core->a, &core->b, &core->accumulator}) {
    const DType dtype = is_small_float(matrix->dtype) ? storage_uint(matrix->dtype) : matrix->dtype;
    const UOp& source = u.src(static_cast<size_t>(at));
    if (source.dtype() != dtype || !is_vector(source) || width(source) != matrix->element_count())
      return at;
    ++at;
  }
  return fine;
}

const std::vector<Demand>& vector_part() {
  static const auto& part = *new const std::vector<Demand>{
      {instruction_ops() & ~(effect_ops() | ops({Op::Param})),
       "a value is a scalar or a vector of at most 256 lanes", check_vector},
      {arithmetic() | ops({Op::Bitcast}), "operands have as many lanes as the result",
       check_operands},
      {arithmetic(), "the target computes the op of these operands", check_native},
      {instruction_ops() & ~effect_ops(), "the target has the dtype", check_dtype},
      {ops({Op::AtomicAdd}), "an AtomicAdd adds a scalar to one element",
       [](const UOp& u, const Facts&) {
         return first_source(u, 0, [](const UOp& s) { return width(s) != 1; });
       }},
      {ops({Op::Wmma}),
       "a Wmma is of a tensor core of the target, and of as many elements of its dtypes as a "
       "thread "
       "holds",
       check_core},
      {ops({Op::Load, Op::Store}), "a vector access is contiguous", check_place},
      {ops({Op::Load, Op::Store}), "gate and alternative have as many lanes as the access",
       check_gate},
      {ops({Op::Expand}), "an Expand spreads a scalar over lanes", check_spread},
      {ops({Op::Reshape}), "a Reshape makes a scalar ready to spread",
       [](const UOp& u, const Facts&) { return unless(u.src(0).is_scalar() && width(u) == 1, 0); }},
      {ops({Op::Index}), "an Index is one place in memory, or takes one lane of a vector",
       check_lane},
      {ops({Op::Shrink}), "a Shrink takes lanes of a vector from a constant on", check_part},
  };
  return part;
}

std::vector<Demand> without_index(const std::vector<Demand>& part) {
  std::vector<Demand> out = part;
  std::erase_if(out, [](const Demand& d) { return d.ops == ops({Op::Index}); });
  return out;
}

// Walks a linear program: what is defined, which loops are open, which registers hold something.
class Walk {
 public:
  std::optional<Violation> run(const UOp& linear) {
    for (const UOp& u : linear.src())
      if (auto violation = step(u)) return violation;
    if (!open_.empty()) return Violation{open_.back().range, -1, "every loop is closed"};
    return std::nullopt;
  }

 private:
  struct Loop {
    UOp range;                                 // or If
    std::vector<const Node*> defined, stored;  // what goes out of scope with it
  };

  std::optional<Violation> step(const UOp& u) {
    if (u.is(Op::End) || u.is(Op::Endif)) return close(u);
    if (!seen_.insert(u.node()).second) return Violation{u, -1, "an instruction stands once"};
    if (u.is(Op::Barrier)) return std::nullopt;  // what it waits for is effects, no values
    if (auto violation = operands(u)) return violation;
    if (u.is(Op::Range) || u.is(Op::If)) open_.push_back({u, {}, {}});
    if (u.is(Op::Load) && is_register(accessed_buffer(u)) &&
        !stored_.contains(accessed_buffer(u).node()))
      return Violation{u, 0, "a register is stored before it is read"};
    if (u.is(Op::Store) && is_register(accessed_buffer(u)))
      if (const Node* buffer = accessed_buffer(u).node(); stored_.insert(buffer).second)
        if (!open_.empty()) open_.back().stored.push_back(buffer);
    defined_.insert(u.node());
    if (!open_.empty()) open_.back().defined.push_back(u.node());
    return std::nullopt;
  }

  std::optional<Violation> operands(const UOp& u) {
    std::optional<Violation> out;
    for_each_operand(u, [&](const UOp& source) {
      const UOp& s = strip_after(source);
      if (out || s.is(Op::Const) || defined_.contains(s.node())) return;
      const auto at = std::find(u.src().begin(), u.src().end(), source) - u.src().begin();
      const bool direct = at < static_cast<std::ptrdiff_t>(u.src().size());
      out =
          Violation{u, direct ? static_cast<int>(at) : -1,
                    fmt::format("definitions stand before uses, in the same loop or one around it; "
                                "here of a {}",
                                op_name(s.op()))};
    });
    return out;
  }

  std::optional<Violation> close(const UOp& u) {
    const bool ends = u.src().size() == (u.is(Op::End) ? 2 : 1) && !open_.empty() &&
                      open_.back().range == u.src(u.src().size() - 1);
    if (!ends)
      return Violation{u, -1, "loops and blocks nest: what was opened last is closed first"};
    for (const Node* node : open_.back().defined) defined_.erase(node);
    // A loop that may run no times stores nothing for sure, nor does what is guarded.
    const bool runs = u.is(Op::End) && u.src(1).src(0).bounds().low >= 1;
    for (const Node* buffer : open_.back().stored) {
      if (!runs)
        stored_.erase(buffer);
      else if (open_.size() > 1)
        open_[open_.size() - 2].stored.push_back(buffer);
    }
    open_.pop_back();
    return std::nullopt;
  }

  absl::flat_hash_set<const Node*> seen_, defined_, stored_;
  std::vector<Loop> open_;
};

}  // namespace

const Demands& selected_demands() {
  static const auto& demands =
      *new const Demands{{{~(instruction_ops() | ops({Op::After, Op::Sink})),
                           "only instructions and their order are left", refuse}},
                         memory_part(),
                         without_index(effect_part()),
                         vector_part()};
  return demands;
}

const Demands& linear_demands() {
  static const auto& demands = *new const Demands{
      {{~(instruction_ops() | ops({Op::If, Op::Endif})),
        "only instructions stand in a linear program", refuse},
       {ops({Op::If}), "an If asks a bool",
        [](const UOp& u, const Facts&) {
          return unless(
              u.src().size() == 1 && u.src(0).is_scalar() && u.src(0).dtype() == DType::Bool, 0);
        }}},
      memory_part(),
      vector_part()};
  return demands;
}

std::optional<Violation> check_linear(const UOp& linear) {
  std::vector<UOp> instructions;
  for (const UOp& u : linear.src()) {
    if (u.is(Op::Stack) && u.src().empty())
      return Violation{u, -1, "a vector of a linear program has lanes"};
    if (!u.is(Op::End) && !u.is(Op::Endif)) instructions.push_back(u);
  }
  if (auto violation = check_names(instructions, VerifyLevel::Linear)) return violation;
  return Walk().run(linear);
}

}  // namespace koine
