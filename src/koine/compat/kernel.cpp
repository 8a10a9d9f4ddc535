#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "koine/base/error.hpp"
#include "koine/compat/alu.hpp"
#include "koine/compat/uops.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/grid.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/render/cstyle.hpp"

namespace koine::compat {
namespace {

// A list of rows runs in its order; a graph runs as its edges say. So each access of memory that is
// stored into names what must have run before, and the loops that it stands in.
class KernelBuilder {
 public:
  /// `groups`: of the machine; where it has none, the threads of a SPECIAL are steps of a loop.
  KernelBuilder(const UOpGraph& graph, const Groups& groups)
      : graph_(graph), groups_(groups), scopes_(scopes_of(graph)) {}

  UOp run() {
    number_memory();
    number_threads();
    for (const RowRef r : graph_.rows()) find_index(r);
    for (const RowRef r : graph_.rows())
      if (r->uop == UOps::DEFINE_GLOBAL) define_global(r);
    open_.emplace_back();
    for (const RowRef r : graph_.rows()) {
      require_visible(r);
      add(r);
    }
    while (open_.size() > 1) close();  // threads
    return sink(open_[0].effects);
  }

 private:
  // A loop, or the kernel; a condition stands in one.
  struct Scope {
    UOp range;
    std::vector<UOp> effects;
    std::set<RowRef> written, read;
  };
  struct Memory {
    UOp base;
    bool stored = false;
    std::vector<UOp> before;  // effects that an access comes after
    std::vector<UOp> reads;   // Loads, and loops that hold some, that a Store comes after
  };

  [[noreturn]] void refuse(RowRef row, const std::string& what) const {
    raise(ErrorKind::Value, "{}: {}", row_text(graph_, row), what);
  }

  static RowRef accumulator(RowRef row) {
    while (row->uop == UOps::PHI) row = row->vin[0];
    return row;
  }

  void number_memory() {
    for (const RowRef r : graph_.rows()) {
      if (r->uop == UOps::STORE) memory_[r->vin[0]].stored = true;
      if (r->uop == UOps::DEFINE_ACC) memory_[r].stored = true;
    }
  }

  // Loops in their order; a grid numbers its axes from the innermost: gidx0 is the last Range.
  void number_threads() {
    std::vector<RowRef> threads;
    int64_t in_group = 1;
    for (const RowRef r : graph_.rows())
      if (r->uop == UOps::SPECIAL) {
        threads.push_back(r);
        const auto& thread = std::get<Thread>(r->arg.value);
        if (axis_type(thread) != AxisType::Local) continue;
        in_group *= std::min(thread.limit, INT32_MAX / in_group);
        if (in_group > groups_.most_threads)
          refuse(r, fmt::format("a group would have {} threads, the most are {}", in_group,
                                groups_.most_threads));
      }
    std::stable_sort(threads.begin(), threads.end(), [&](RowRef a, RowRef b) {
      return groups_ &&
             std::get<Thread>(a->arg.value).number > std::get<Thread>(b->arg.value).number;
    });
    for (const RowRef r : threads) {
      const auto& thread = std::get<Thread>(r->arg.value);
      index_.emplace(r, loop(r, index_const(thread.limit), axis_type(thread)));
    }
  }

  AxisType axis_type(const Thread& thread) const {
    if (!groups_) return AxisType::Loop;
    return thread.name[0] == 'l' ? AxisType::Local : AxisType::Global;
  }

  // Integers that are known before anything is loaded, as unbounded indices.
  void find_index(RowRef r) {
    UOp index;
    switch (r->uop) {
      case UOps::CONST:
        if (is_integer(r->dtype)) index = index_const(const_int(constant_of(*r)));
        break;
      case UOps::DEFINE_VAR: {
        const auto& v = std::get<Bounded>(r->arg.value);
        index = variable(v.name, v.low, v.high);
        break;
      }
      case UOps::LOOP: {
        const UOp start = index_.at(r->vin[0]);
        const UOp bound = simplify_index(sub(index_.at(r->vin[1]), start));
        const UOp least = simplify_index(maximum(bound, index_const(0)));
        index = simplify_index(koine::add(loop(r, least, AxisType::Reduce), start));
        break;
      }
      case UOps::ALU: {
        if (!is_integer(r->dtype) || !is_index_arithmetic(r->arg)) return;
        std::vector<UOp> operands;
        for (const RowRef v : r->vin) {
          if (!index_.contains(v)) return;
          operands.push_back(index_.at(v));
        }
        index = simplify_index(applied(r->arg, operands));
        break;
      }
      default:
        break;
    }
    if (index) index_.emplace(r, index);
  }

  // The counter of a loop. Of a single step it is none, as rules take its Range for 0.
  UOp loop(RowRef r, const UOp& bound, AxisType type) {
    if (is_const(bound, 1)) return index_const(0);
    return ranges_[r] = range(next_range_++, bound, type);
  }

  // As many elements as its accesses ask for, where their places are known.
  void define_global(RowRef global) {
    const Global& arg = std::get<Global>(global->arg.value);
    __int128 size = arg.size > 0 ? arg.size : 1;
    for (const RowRef r : graph_.rows()) {
      if ((r->uop != UOps::LOAD && r->uop != UOps::STORE) || r->vin[0] != global || arg.size > 0)
        continue;
      const auto index = index_.find(r->vin[1]);
      if (index == index_.end())
        refuse(r, fmt::format("where it accesses {0} is computed at run time: say the size of {0} "
                              "as the fourth element of the arg of its DEFINE_GLOBAL",
                              arg.name));
      const Interval& bounds = index->second.bounds();
      if (bounds.low < 0)
        refuse(r, fmt::format("accesses {} at {}", arg.name, static_cast<int64_t>(bounds.low)));
      if (bounds.high > INT32_MAX && bounds.high > (__int128{1} << 40))
        refuse(r, fmt::format("{} has no bound: say its size as the fourth element of the arg of "
                              "its DEFINE_GLOBAL",
                              arg.name));
      size = std::max(size, bounds.high + 1);
    }
    if (!slots_.emplace(arg.index, global).second && slots_.at(arg.index) != global)
      refuse(global, fmt::format("two parameters have the index {}", arg.index));
    memory_[global].base = param(arg.index, shape_of({static_cast<int64_t>(size)}), global->dtype);
  }

  // A row sees those of the scopes that it stands in; an accumulator is seen where it is defined.
  void require_visible(RowRef r) const {
    const auto& here = scopes_[graph_.index(r)];
    for (const RowRef v : r->vin) {
      const RowRef seen = v->uop == UOps::PHI ? accumulator(v) : v;
      const auto& there = scopes_[graph_.index(seen)];
      const bool opens = v->uop == UOps::LOOP || v->uop == UOps::SPECIAL;
      bool visible =
          there.size() <= here.size() && std::equal(there.begin(), there.end(), here.begin());
      if (opens && std::find(here.begin(), here.end(), v) == here.end()) visible = false;
      if (!visible)
        refuse(r, fmt::format("{} is computed in a loop or condition that is closed: carry it out "
                              "with a DEFINE_ACC and a PHI",
                              row_text(graph_, v)));
    }
  }

  // --- order

  // A place is reached once what stored there has, in each step of the loops around.
  UOp reached(const Memory& m, std::vector<UOp> before) const {
    if (!m.stored) return m.base;
    for (const Scope& scope : open_) {
      if (!scope.range) continue;
      const bool known = std::any_of(before.begin(), before.end(), [&](const UOp& effect) {
        return !effect.is(Op::Range) && depends_on(effect, scope.range);
      });
      if (!known) before.push_back(scope.range);
    }
    return before.empty() ? m.base : after(m.base, before);
  }

  void note_effect(RowRef memory, const UOp& effect) {
    Memory& m = memory_[memory];
    m.before = {effect};
    m.reads.clear();
    open_.back().effects.push_back(effect);
    open_.back().written.insert(memory);
  }

  // A Load whose value the Store does not take must have run all the same.
  std::vector<UOp> before_store(Memory& m, const std::vector<UOp>& taken) {
    std::vector<UOp> out = m.before;
    std::set<uint64_t> below;
    for (const UOp& t : taken)
      for (const UOp& u : toposort(t)) below.insert(u.id());
    for (const UOp& read : m.reads) {
      if (below.contains(read.id())) continue;
      if (!read.is(Op::Load)) {
        out.push_back(read);
        continue;
      }
      const UOp kept = UOp::make(Op::Buffer, {shape_of({})},
                                 BufferArg{next_register_++, read.dtype(), {}, AddrSpace::Reg});
      std::vector<UOp> loops;
      for (const Scope& scope : open_)
        if (scope.range) loops.push_back(scope.range);
      out.push_back(store(loops.empty() ? kept : after(kept, loops), read));
    }
    return out;
  }

  UOp read(RowRef memory, const std::function<UOp(const UOp&)>& access) {
    Memory& m = memory_[memory];
    const UOp loaded = access(reached(m, m.before));
    if (m.stored) {
      m.reads.push_back(loaded);
      open_.back().read.insert(memory);
    }
    return loaded;
  }

  void close() {
    const Scope scope = std::move(open_.back());
    open_.pop_back();
    if (!scope.range) return merge_into_outer(scope);
    const std::vector<UOp>& effects = scope.effects;
    const UOp ended = end(effects.size() == 1 ? effects[0] : group(effects), {scope.range});
    Scope& outer = open_.back();
    outer.effects.push_back(ended);
    for (const RowRef memory : scope.written) {
      Memory& m = memory_[memory];
      m.before = {ended};
      m.reads.clear();
      outer.written.insert(memory);
    }
    for (const RowRef memory : scope.read) {
      if (scope.written.contains(memory)) continue;
      std::vector<UOp>& reads = memory_[memory].reads;
      std::erase_if(reads, [&](const UOp& u) { return depends_on(u, scope.range); });
      reads.push_back(ended);
      outer.read.insert(memory);
    }
  }

  void merge_into_outer(const Scope& scope) {
    Scope& outer = open_.back();
    outer.effects.insert(outer.effects.end(), scope.effects.begin(), scope.effects.end());
    outer.written.insert(scope.written.begin(), scope.written.end());
    outer.read.insert(scope.read.begin(), scope.read.end());
  }

  // --- values

  UOp value(RowRef r) {
    if (r->uop == UOps::DEFINE_ACC || r->uop == UOps::PHI)
      return read(accumulator(r), [](const UOp& place) { return load(place); });
    const auto known = values_.find(r);
    if (known != values_.end()) return known->second;
    return cast(index_.at(r), r->dtype);
  }

  // The place, and where it is one at all, unless that is certain.
  struct Place {
    UOp at, inside;
  };
  Place place(RowRef r) {
    const RowRef at = r->vin[1];
    const auto known = index_.find(at);
    const UOp index = known != index_.end() ? known->second : cast(value(at), DType::Index);
    const int64_t size = memory_.at(r->vin[0]).base.numel();
    const Interval& bounds = index.bounds();
    UOp inside;
    if (bounds.low < 0 || bounds.high >= size)
      inside = bit_and(logical_not(lt(index, index_const(0))), lt(index, index_const(size)));
    return {index, inside};
  }

  // Both, each of which may be missing.
  static UOp both(const UOp& a, const UOp& b) { return !a ? b : !b ? a : bit_and(a, b); }

  UOp gate_here() const { return gates_.empty() ? UOp() : gates_.back(); }

  // Threads that do not tell their places apart race.
  void require_no_race(RowRef r, const UOp& place, const UOp& gate) const {
    for (const RowRef around : scopes_[graph_.index(r)]) {
      if (around->uop != UOps::SPECIAL) continue;
      const auto& thread = std::get<Thread>(around->arg.value);
      if (thread.limit == 1) continue;
      const UOp& number = ranges_.at(around);
      if (depends_on(place, number) || (gate && depends_on(gate, number))) continue;
      refuse(r, fmt::format("the {} threads of {} all store to one place of {}, a race: let the "
                            "position depend on {}",
                            thread.limit, thread.name, std::get<Global>(r->vin[0]->arg.value).name,
                            thread.name));
    }
  }

  void store_row(RowRef r) {
    const Place p = place(r);
    const UOp stored = value(r->vin[2]);
    const UOp own = r->vin.size() == 4 ? value(r->vin[3]) : UOp();
    const UOp gate = both(gate_here(), both(own, p.inside));
    require_no_race(r, p.at, both(gate_here(), own));
    Memory& m = memory_[r->vin[0]];
    std::vector<UOp> taken{stored, p.at};
    if (gate) taken.push_back(gate);
    const UOp target = reached(m, before_store(m, taken));
    note_effect(r->vin[0], store(index({target, p.at}), stored, gate));
  }

  static UOp index(const std::array<UOp, 2>& of) { return koine::index(of[0], {of[1]}); }

  UOp load_row(RowRef r) {
    const Place p = place(r);
    const UOp own = r->vin.size() == 4 ? value(r->vin[2]) : UOp();
    const UOp gate = both(gate_here(), both(own, p.inside));
    const UOp other = r->vin.size() == 4 ? value(r->vin[3]) : constant(r->dtype, 0);
    return read(r->vin[0], [&](const UOp& memory) {
      const UOp at = index({memory, p.at});
      return gate ? load(at, other, gate) : load(at);
    });
  }

  void keep(RowRef accumulator, const UOp& kept) {
    Memory& m = memory_[accumulator];
    note_effect(accumulator, store(reached(m, before_store(m, {kept})), kept));
  }

  UOp alu(RowRef r) {
    const bool compares = is_comparison(r->arg);
    std::vector<UOp> operands;
    // Places are compared as such: bounds are known of these.
    if (compares && index_.contains(r->vin[0]) && index_.contains(r->vin[1])) {
      for (const RowRef v : r->vin) operands.push_back(index_.at(v));
      return simplify_index(applied(r->arg, operands));
    }
    if (index_.contains(r)) return cast(index_.at(r), r->dtype);
    for (const RowRef v : r->vin) operands.push_back(value(v));
    return applied(r->arg, operands);
  }

  void add(RowRef r) {
    switch (r->uop) {
      case UOps::CONST:
        values_[r] = constant_of(*r);
        return;
      case UOps::DEFINE_ACC: {
        Memory& m = memory_[r];
        m.base = UOp::make(Op::Buffer, {shape_of({})},
                           BufferArg{next_register_++, r->dtype, {}, AddrSpace::Reg});
        return keep(r, constant_of(*r));
      }
      case UOps::SPECIAL:
      case UOps::LOOP:
        open_.push_back({ranges_[r], {}, {}, {}});  // null: a single step
        return;
      case UOps::ENDLOOP:
        return close();
      case UOps::IF:
        gates_.push_back(both(gate_here(), value(r->vin[0])));
        return;
      case UOps::ENDIF:
        gates_.pop_back();
        return;
      case UOps::LOAD:
        values_[r] = load_row(r);
        return;
      case UOps::STORE:
        return store_row(r);
      case UOps::ALU:
        values_[r] = alu(r);
        return;
      case UOps::PHI: {
        UOp next = value(r->vin[1]);
        if (const UOp gate = gate_here()) next = where(gate, next, value(r->vin[0]));
        return keep(accumulator(r), next);
      }
      case UOps::CAST:
        values_[r] = cast(value(r->vin[0]), r->dtype);
        return;
      case UOps::BITCAST:
        values_[r] = bitcast(value(r->vin[0]), r->dtype);
        return;
      case UOps::DEFINE_GLOBAL:
      case UOps::DEFINE_VAR:
        return;
    }
  }

  const UOpGraph& graph_;
  const Groups& groups_;
  std::vector<std::vector<RowRef>> scopes_;
  std::map<RowRef, UOp> index_, values_, ranges_;
  std::map<RowRef, Memory> memory_;
  std::map<int64_t, RowRef> slots_;
  std::vector<Scope> open_;
  std::vector<UOp> gates_;
  int64_t next_range_ = 0, next_register_ = 0;
};

}  // namespace

UOp kernel(const UOpGraph& graph, const Groups& groups) {
  const UOp ast = KernelBuilder(graph, groups).run();
  return groups ? to_grid(ast, groups) : ast;
}

LoweredKernel lower(const UOpGraph& graph, const std::string& name, const Target& target) {
  const UOp ast = kernel(graph, target.groups);
  if (const auto violation = find_violation(ast, level_after("expand"), &target))
    raise(ErrorKind::Value, "the graph is no kernel: {}", violation_text(*violation));
  LoweredKernel out = lower_kernel(ast, target, {}, nullptr, {}, "expand");
  out.name = name;
  return out;
}

LoweredKernel lower_plainly(const UOp& ast, const Target& target, CompileOptions how) {
  how.noopt = true;
  std::vector<Opt> opts;
  UOp edited = ast;
  for (int axis = 0; target.groups && axis < static_cast<int>(kernel_ranges(edited).size());
       ++axis) {
    const UOp range = kernel_ranges(edited)[static_cast<size_t>(axis)];
    if (range.as<RangeArg>().type != AxisType::Loop || !range.src(0).is(Op::Const)) continue;
    const Opt opt{OptOp::Split, axis, 0, AxisType::Global};
    if (const UOp next = apply_if_legal(edited, opt, target)) {
      edited = next;
      opts.push_back(opt);
    }
  }
  return lower_kernel(ast, target, {}, &opts, {}, "rangeify", how);
}

std::string uops_to_cstyle(std::string_view language, const std::string& name,
                           const UOpGraph& graph) {
  std::string dialect(language);
  for (char& c : dialect) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return render(dialect, name, lower(graph, name, text_target(dialect, true)).linear, false);
}

std::shared_ptr<Program> compile(const UOpGraph& graph, const std::string& name,
                                 const std::string& device) {
  DeviceRuntime& runtime = device_runtime(device);
  return runtime.compile(lower(graph, name, runtime.target()));
}

}  // namespace koine::compat
