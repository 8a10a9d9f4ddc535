#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <memory>

#include "koine/base/error.hpp"
#include "koine/interp/interp.hpp"
#include "koine/interp/races.hpp"
#include "koine/interp/value.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/target/tensor_core.hpp"

namespace koine {
namespace {

constexpr uint32_t nowhere = UINT32_MAX;

// Where the elements of a Load or Store lie: element i at index[i], at index + i, or at i.
struct Access {
  UOp buffer;
  uint32_t index = nowhere;
  DType index_dtype = DType::Index;
  bool consecutive = false;
};

struct Instruction {
  UOp node;
  ValueOp value;
  std::vector<uint32_t> operands;  // where the values of its sources stand
  size_t jump = 0;                 // Range and If: past their end; End: the loop's first
  Access access;
};

// A Linear with its names resolved; shared by all threads.
class LinearProgram {
 public:
  explicit LinearProgram(const UOp& linear) : linear_(linear) {
    for (const UOp& u : linear.src()) {
      number_.emplace(u.node(), static_cast<uint32_t>(code_.size()));
      code_.push_back({u, {}, {}, 0, {}});
    }
    for (size_t i = 0; i < code_.size(); ++i) resolve(i);
  }
  const std::vector<Instruction>& code() const { return code_; }
  /// The Specials: indices of threads and groups.
  std::vector<UOp> specials() const {
    std::vector<UOp> out;
    for (const Instruction& i : code_)
      if (i.node.is(Op::Special)) out.push_back(i.node);
    return out;
  }

 private:
  static bool computes(const UOp& u) {
    return is_elementwise(u.op()) || u.is(Op::Stack) || u.is(Op::Expand) || u.is(Op::Bitcast) ||
           u.is(Op::Reshape) || u.is(Op::Shrink) || (u.is(Op::Index) && !is_address(u));
  }

  // What is not in the program, constants aside, is found undefined when somebody reads it.
  uint32_t number_of(const UOp& u) {
    const UOp& s = strip_after(u);
    const auto [it, fresh] = number_.try_emplace(s.node(), static_cast<uint32_t>(number_.size()));
    if (fresh) extra_.push_back(s);
    return it->second;
  }

  void resolve(size_t i) {
    Instruction& at = code_[i];
    const UOp u = at.node;
    if (computes(u)) {
      at.value = ValueOp(u);
      for (size_t k = 0; k < ValueOp::value_sources(u); ++k)
        at.operands.push_back(number_of(u.src(k)));
    } else if (u.is(Op::Load) || u.is(Op::Store) || u.is(Op::AtomicAdd)) {
      at.access = access_of(strip_after(u.src(0)));
      for (const UOp& s : u.src().subspan(1)) at.operands.push_back(number_of(s));
    } else if (u.is(Op::Wmma)) {
      for (const UOp& s : u.src()) at.operands.push_back(number_of(s));
    } else if (u.is(Op::Range) || u.is(Op::If)) {
      at.operands.push_back(number_of(u.src(0)));
    } else if (u.is(Op::End) || u.is(Op::Endif)) {
      const UOp& opened = u.is(Op::End) ? u.src(u.src().size() - 1) : u.src(0);
      const size_t begin = number_of(opened);
      KOINE_INVARIANT(begin < i, "a loop or block ends that did not begin:\n{}", to_text(u));
      at.jump = begin + 1;
      code_[begin].jump = i + 1;
      if (u.is(Op::End)) at.operands = {static_cast<uint32_t>(begin), number_of(opened.src(0))};
    }
  }

  Access access_of(const UOp& address) {
    if (!address.is(Op::Index)) return {address};
    const UOp& buffer = strip_after(address.src(0));
    const DType dtype = address.src(1).dtype();
    if (const Contiguous c = contiguous_access(address); c.yes)
      return {buffer, c.base ? number_of(c.base) : nowhere, dtype, true};
    return {buffer, number_of(address.src(1)), dtype, false};
  }

  friend class LinearThread;
  UOp linear_;
  std::vector<Instruction> code_;
  std::vector<UOp> extra_;  // named in the program, but not part of it; numbered behind it
  absl::flat_hash_map<const Node*, uint32_t> number_;
};

// Which thread of which group this is.
struct Position {
  absl::flat_hash_map<const Node*, int64_t> specials;
};

// What the threads of a group share.
struct Group {
  KernelMemory memory;
  Races& races;        // of all groups
  Races local;         // of its LOCAL memory
  Moment now = {};     // whose turn it is
  bool alone = false;  // one thread in all
};

// accumulator += A * B of a tensor core, whose threads hold these elements.
void multiply(const TensorCore& core, std::span<const Lanes* const> a,
              std::span<const Lanes* const> b, std::span<Lanes> accumulator) {
  const DType wide = core.accumulator.dtype;
  std::vector<Bits> left(static_cast<size_t>(core.m * core.k)),
      right(static_cast<size_t>(core.k * core.n));
  // All elements of a matrix, row-major, in the dtype of the sum.
  auto gather = [&](const CoreMatrix& matrix, std::span<const Lanes* const> held, char row,
                    char column, std::vector<Bits>& out) {
    for (int t = 0; t < core.threads(); ++t)
      for (int e = 0; e < matrix.element_count(); ++e) {
        const int at = matrix.place(row, t, e) * core.size(column) + matrix.place(column, t, e);
        const Bits element[] = {(*held[static_cast<size_t>(t)])[static_cast<size_t>(e)]};
        out[static_cast<size_t>(at)] = interpret_scalar(Op::Cast, wide, matrix.dtype, element);
      }
  };
  gather(core.a, a, 'm', 'k', left);
  gather(core.b, b, 'k', 'n', right);
  for (int t = 0; t < core.threads(); ++t)
    for (int e = 0; e < core.accumulator.element_count(); ++e) {
      const int m = core.accumulator.place('m', t, e), n = core.accumulator.place('n', t, e);
      Bits& sum = accumulator[static_cast<size_t>(t)][static_cast<size_t>(e)];
      for (int k = 0; k < core.k; ++k) {
        const Bits factors[] = {left[static_cast<size_t>(m * core.k + k)],
                                right[static_cast<size_t>(k * core.n + n)]};
        const Bits terms[] = {sum, interpret_scalar(Op::Mul, wide, wide, factors)};
        sum = interpret_scalar(Op::Add, wide, wide, terms);
      }
    }
}

// Why a thread stops: it waits for the others, or for what they hold of a Wmma, or has ended.
enum class Stop : uint8_t { Barrier, Wmma, End };

// One thread: its values, its registers, and how far it has come.
class LinearThread {
 public:
  LinearThread(const LinearProgram& program, const KernelArguments& arguments, Group& group,
               Position position)
      : program_(program),
        arguments_(arguments),
        group_(group),
        registers_(arguments),
        position_(std::move(position)),
        values_(program.number_.size()) {
    for (const UOp& u : program.extra_)
      if (u.is(Op::Const)) values_[program.number_.at(u.node())] = {u.as<ConstArg>().bits};
  }

  /// Runs up to and past the next Barrier, or up to a Wmma of several threads.
  Stop run() {
    const auto& code = program_.code();
    while (pc_ < code.size()) {
      const UOp& u = code[pc_].node;
      if (u.is(Op::Wmma) && core_of(u).threads() > 1) return Stop::Wmma;
      pc_ = step(code[pc_]);
      if (u.is(Op::Barrier)) return Stop::Barrier;
    }
    return Stop::End;
  }
  size_t pc() const { return pc_; }
  /// What it holds of A, B or the accumulator of the Wmma at which it stands, and what becomes of
  /// the accumulator.
  const Lanes& held(size_t source) const { return lanes(program_.code()[pc_].operands[source]); }
  void pass(Lanes result) { values_[pc_++] = std::move(result); }
  const UOp& standing_at() const { return program_.code()[pc_].node; }
  static const TensorCore& core_of(const UOp& wmma) {
    return tensor_core_named(wmma.as<WmmaArg>().core);
  }
  /// Its number in the group, lidx0 counting fastest.
  int64_t number() const {
    int64_t out = 0, stride = 1;
    for (size_t axis = 0; axis < 3; ++axis)
      for (const auto& [node, at] : position_.specials)
        if (std::get<std::string>(node->arg) == index_in_group_name(axis)) {
          out += at * stride;
          stride *= const_int(UOp::share(node).src(0));
        }
    return out;
  }
  /// The iterations of the loops around `pc`.
  std::vector<Bits> iterations() const {
    std::vector<Bits> out;
    for (size_t i = 0; i < program_.code().size(); ++i)
      if (const Instruction& r = program_.code()[i];
          r.node.is(Op::Range) && i < pc_ && pc_ < r.jump)
        out.push_back(values_[i][0]);
    return out;
  }

 private:
  // Executes one instruction; returns the position of the next.
  size_t step(const Instruction& at) {
    const UOp& u = at.node;
    const size_t next = pc_ + 1;
    switch (u.op()) {
      case Op::Range:
        if (integer(at.operands[0], u.src(0)) <= 0) return at.jump;
        values_[pc_] = {0};
        return next;
      case Op::End: {
        const UOp& bound = program_.code()[at.operands[0]].node.src(0);
        Bits& counter = values_[at.operands[0]][0];
        return static_cast<int64_t>(++counter) < integer(at.operands[1], bound) ? at.jump : next;
      }
      case Op::If:
        return (lanes(at.operands[0])[0] & 1) != 0 ? next : at.jump;
      case Op::Store:
        store(at);
        return next;
      case Op::AtomicAdd:
        add_atomically(at);
        return next;
      case Op::Load:
        values_[pc_] = load(at);
        return next;
      case Op::Const:
        values_[pc_] = {u.as<ConstArg>().bits};
        return next;
      case Op::Special:
        values_[pc_] = {static_cast<Bits>(position_.specials.at(u.node()))};
        return next;
      case Op::Param:
        if (!u.as<BufferArg>().name.empty()) values_[pc_] = {variable(u.as<BufferArg>().name)};
        return next;
      case Op::Endif:
      case Op::Group:
      case Op::Barrier:
      case Op::Buffer:
        return next;
      default:
        break;
    }
    if (is_address(u)) return next;  // its users look at it
    if (u.is(Op::Wmma)) {
      const Lanes* a[] = {&lanes(at.operands[0])};
      const Lanes* b[] = {&lanes(at.operands[1])};
      Lanes accumulator[] = {lanes(at.operands[2])};
      multiply(core_of(u), a, b, accumulator);
      values_[pc_] = accumulator[0];
      return next;
    }
    KOINE_REQUIRE(!u.is(Op::Ins) && !u.is(Op::Custom), Value,
                  "{} \"{}\": the interpreter runs no code of machines", op_name(u.op()),
                  u.as<CodeArg>().text);
    if (at.operands.empty()) internal_error("interpreter: {} in a linear program", op_name(u.op()));
    operands_.clear();
    for (const uint32_t k : at.operands) operands_.push_back(&lanes(k));
    values_[pc_] = at.value.compute(operands_);
    return next;
  }

  Bits variable(const std::string& name) const {
    const auto it = arguments_.variables.find(name);
    KOINE_REQUIRE(it != arguments_.variables.end(), Key, "Variable '{}' has no value", name);
    return static_cast<Bits>(it->second);
  }

  const Lanes& lanes(uint32_t number) const {
    const Lanes& value = values_[number];
    KOINE_INVARIANT(!value.empty(), "use before definition in a linear program:\n{}",
                    to_text(number < program_.code().size()
                                ? program_.code()[number].node
                                : program_.extra_[number - program_.code().size()]));
    return value;
  }
  int64_t integer(uint32_t number, const UOp& u) const {
    return bits_to_int(u.dtype(), lanes(number)[0]);
  }
  static Bits lane(const Lanes& value, size_t i) { return value[value.size() == 1 ? 0 : i]; }

  // LOCAL memory is the group's, registers are the thread's.
  KernelMemory& memory_behind(const UOp& buffer) {
    return is_register(buffer) ? registers_ : group_.memory;
  }
  void note(const UOp& buffer, int64_t element, Touch touch, const UOp& access) {
    if (is_register(buffer) || group_.alone) return;
    (buffer.is(Op::Buffer) ? group_.local : group_.races)
        .note(buffer, element, group_.now, touch, access);
  }
  int64_t element(const Instruction& at, size_t i) const {
    const Access& a = at.access;
    const auto offset = static_cast<int64_t>(i);
    if (a.index == nowhere) return offset;
    const Bits bits = a.consecutive ? lanes(a.index)[0] : lane(lanes(a.index), i);
    return bits_to_int(a.index_dtype, bits) + (a.consecutive ? offset : 0);
  }
  bool open(const Instruction& at, size_t i) const {
    return at.operands.size() < 2 || (lane(lanes(at.operands[1]), i) & 1) != 0;
  }

  Lanes load(const Instruction& at) {
    const UOp &u = at.node, &buffer = at.access.buffer;
    Lanes out(static_cast<size_t>(lane_count(u)));
    for (size_t i = 0; i < out.size(); ++i) {
      if (!open(at, i)) {
        out[i] = lane(lanes(at.operands[0]), i);
        continue;
      }
      note(buffer, element(at, i), Touch::Read, u);
      out[i] = memory_behind(buffer).read(buffer, u.dtype(), element(at, i), u);
    }
    return out;
  }

  void store(const Instruction& at) {
    const UOp &u = at.node, &buffer = at.access.buffer;
    const auto count = static_cast<size_t>(lane_count(u.src(0)));
    const Lanes value = lanes(at.operands[0]);
    for (size_t i = 0; i < count; ++i) {
      if (!open(at, i)) continue;
      note(buffer, element(at, i), Touch::Write, u);
      memory_behind(buffer).write(buffer, u.src(1).dtype(), element(at, i), lane(value, i), u);
    }
  }

  void add_atomically(const Instruction& at) {
    const UOp &u = at.node, &buffer = at.access.buffer;
    const DType dtype = u.src(1).dtype();
    const int64_t place = element(at, 0);
    note(buffer, place, Touch::Atomic, u);
    const Bits operands[] = {memory_behind(buffer).read(buffer, dtype, place, u),
                             lanes(at.operands[0])[0]};
    memory_behind(buffer).write(buffer, dtype, place,
                                interpret_scalar(Op::Add, dtype, dtype, operands), u);
  }

  const LinearProgram& program_;
  const KernelArguments& arguments_;
  Group& group_;
  KernelMemory registers_;
  Position position_;
  std::vector<Lanes> values_;  // empty: not defined yet
  std::vector<const Lanes*> operands_;
  size_t pc_ = 0;
};

using Threads = std::vector<std::unique_ptr<LinearThread>>;

// The Wmma at which all threads stand, by as many of them at a time as its core has.
void multiply_together(Threads& group) {
  const TensorCore& core = LinearThread::core_of(group[0]->standing_at());
  const auto count = static_cast<size_t>(core.threads());
  KOINE_INVARIANT(group.size() % count == 0, "{} has {} threads, the group {}", core.name, count,
                  group.size());
  std::vector<LinearThread*> by_number(group.size());
  for (const auto& thread : group) by_number[static_cast<size_t>(thread->number())] = thread.get();
  for (size_t first = 0; first < by_number.size(); first += count) {
    std::vector<const Lanes*> a, b;
    std::vector<Lanes> accumulator;
    for (size_t i = first; i < first + count; ++i) {
      a.push_back(&by_number[i]->held(0));
      b.push_back(&by_number[i]->held(1));
      accumulator.push_back(by_number[i]->held(2));
    }
    multiply(core, a, b, accumulator);
    for (size_t i = 0; i < count; ++i) by_number[first + i]->pass(accumulator[i]);
  }
}

// All threads of one group, from Barrier to Barrier.
void run_group(const LinearProgram& program, const KernelArguments& arguments, Group& shared,
               std::vector<Position> threads) {
  Threads group;
  for (Position& p : threads)
    group.push_back(std::make_unique<LinearThread>(program, arguments, shared, std::move(p)));
  auto goes_on = [&](size_t i) {
    shared.now.thread = static_cast<int64_t>(i);
    return group[i]->run();
  };
  for (Stop stop = Stop::Barrier; stop != Stop::End;) {
    stop = goes_on(0);
    for (size_t i = 1; i < group.size(); ++i) {
      const bool ends = goes_on(i) == Stop::End;
      KOINE_INVARIANT(
          ends == (stop == Stop::End) && group[i]->pc() == group[0]->pc() &&
              group[i]->iterations() == group[0]->iterations(),
          "a divergent Barrier or Wmma: thread 0 {} instruction {}, thread {} {} instruction {}",
          stop == Stop::End ? "ended at" : "waits at", group[0]->pc(), i,
          ends ? "ended at" : "waits at", group[i]->pc());
    }
    if (stop == Stop::Wmma) multiply_together(group);
    if (stop == Stop::Barrier) ++shared.now.barriers;
  }
}

bool is_in_group(const UOp& special) { return special.as<std::string>().starts_with("lidx"); }

// How many there are along an axis of the grid.
int64_t bound_of(const UOp& special, const KernelArguments& arguments) {
  Bindings bindings;
  for (const UOp& u : toposort(special))
    if (const auto it = u.is(Op::Param) ? arguments.variables.find(u.as<BufferArg>().name)
                                        : arguments.variables.end();
        it != arguments.variables.end())
      bindings[u] = {DType::Index, {}, {static_cast<Bits>(it->second)}, {}};
  return interpret_index(special.src(0), bindings);
}

// Every combination of indices of `specials`, the first outermost, on top of `base`.
std::vector<Position> positions_of(const std::vector<UOp>& specials, const Position& base,
                                   const KernelArguments& arguments) {
  std::vector<Position> out{base};
  for (const UOp& s : specials) {
    const int64_t bound = bound_of(s, arguments);
    std::vector<Position> wider;
    for (const Position& p : out)
      for (int64_t i = 0; i < bound; ++i) {
        wider.push_back(p);
        wider.back().specials[s.node()] = i;
      }
    out = std::move(wider);
  }
  return out;
}

}  // namespace

void interpret_linear(const UOp& linear, const KernelArguments& arguments) {
  const LinearProgram program(linear);
  Position base;
  std::vector<UOp> groups, threads;
  for (const UOp& s : program.specials())
    if (s.as<std::string>() == "thread")
      base.specials[s.node()] = arguments.thread;
    else
      (is_in_group(s) ? threads : groups).push_back(s);
  Races races;
  const std::vector<Position> all = positions_of(groups, base, arguments);
  for (size_t i = 0; i < all.size(); ++i) {
    Group group{KernelMemory(arguments), races, {}};
    group.now.group = static_cast<int64_t>(i);
    group.alone = groups.empty() && threads.empty();
    run_group(program, arguments, group, positions_of(threads, all[i], arguments));
  }
}

}  // namespace koine
