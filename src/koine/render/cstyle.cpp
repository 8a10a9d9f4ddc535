#include "koine/render/cstyle.hpp"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/render/dialect.hpp"

namespace koine {
namespace {

class CStyleRenderer {
 public:
  CStyleRenderer(const UOp& linear, const Dialect& dialect)
      : linear_(linear), dialect_(dialect), signature_(signature_of(linear)) {
    for (const UOp& u : linear.src())
      if (u.is(Op::Store) || u.is(Op::AtomicAdd)) stored_.insert(accessed_buffer(u).node());
    if (dialect_.loops_begin_with_barriers && has_barriers()) find_loops_to_begin();
  }

  std::string run(const std::string& name) {
    if (dialect_.arguments == Arguments::Declared) prefix_ = name + "_";
    const std::string head =
        dialect_.arguments == Arguments::Declared
            ? bindings(name)
            : fmt::format("{}{} {}({})", dialect_.kernel, bounds(), name, parameters());
    for (const UOp& u : linear_.src()) {
      require_fits(u);
      instruction(u);
    }
    return fmt::format("{}{} {{\n{}}}\n", outside_, head, out_);
  }

 private:
  std::string type(DType dtype) const {
    const std::string_view name = type_name(dialect_, dtype);
    KOINE_REQUIRE(!name.empty(), Value, "{} has no type for {}: cast before", dialect_.name,
                  dtype_name(dtype));
    return std::string(name);
  }

  // Whether the low bits of a value, or its place in memory, need no more than those of its
  // sources.
  static bool needs_low_bits(const UOp& u) {
    switch (u.op()) {
      case Op::Add:
      case Op::Mul:
      case Op::Where:
      case Op::Stack:
      case Op::Expand:
      case Op::Reshape:
      case Op::Index:
        return true;
      default:
        return false;
    }
  }

  // Where places are counted in 32 bits, a number beyond them wraps: only what needs its low bits
  // may read it, as the place of a gather that is checked does. Sizes of memory are numbers too.
  void require_fits(const UOp& u) const {
    if (dialect_.has_int64 || needs_low_bits(u)) return;
    const auto require = [&](const UOp& v) {
      const bool is_shape_of_scalar = v.is(Op::Stack) && v.src().empty();
      const bool is_number = v.dtype() == DType::Index && !is_shape_of_scalar;
      KOINE_REQUIRE(!is_number || fits_32_bits(v), Value,
                    "{} counts places in 32 bits, and those of {} lie beyond: split the tensor, or "
                    "bound its Variables and positions (clip) by less",
                    dialect_.name, op_name(v.op()));
    };
    require(u);
    for (const UOp& s : u.src()) require(s);
  }

  // Where a group is one thread, LOCAL memory is its own.
  bool has_barriers() const {
    return !dialect_.barrier.empty() &&
           std::any_of(signature_.group.begin(), signature_.group.end(),
                       [](const UOp& size) { return size && !is_const(size, 1); });
  }

  // Loops that hold a Barrier, and a loop or a store in front of it.
  void find_loops_to_begin() {
    std::vector<const Node*> around;
    const Node* bare = nullptr;  // the loop opened last, while it has neither
    for (const UOp& u : linear_.src()) {
      if (u.is(Op::Range)) around.push_back(bare = u.node());
      if (u.is(Op::End)) around.pop_back();
      if (u.is(Op::Barrier))
        for (const Node* loop : around)
          if (loop != bare) loops_to_begin_.insert(loop);
      const bool written_inline = u.is(Op::Const) || u.is(Op::Reshape) || u.is(Op::Expand);
      const bool stores = u.is(Op::Store) || u.is(Op::AtomicAdd) || u.is(Op::Barrier);
      if (stores || (!written_inline && lane_count(u) > 1)) bare = nullptr;
    }
  }

  // A part of the text, whose {names} are the arguments.
  template <class... A>
  std::string text(std::string_view form, A&&... arguments) const {
    return fmt::format(fmt::runtime(form), std::forward<A>(arguments)...);
  }
  std::string chosen(const std::string& condition, const std::string& yes,
                     const std::string& no) const {
    return text(dialect_.syntax.choice, fmt::arg("condition", condition), fmt::arg("yes", yes),
                fmt::arg("no", no));
  }
  std::string as_type(const std::string& type, const std::string& value) const {
    return text(dialect_.syntax.cast, fmt::arg("type", type), fmt::arg("value", value));
  }
  std::string guarded(const std::string& condition, const std::string& statement) const {
    return text(dialect_.syntax.guarded, fmt::arg("condition", condition),
                fmt::arg("statement", statement));
  }
  std::string each_lane(int64_t count, const std::string& statement) const {
    return text(dialect_.syntax.each_lane, fmt::arg("count", count),
                fmt::arg("statement", statement));
  }
  std::string named(std::string_view form, DType dtype, const std::string& name,
                    const std::string& value = "") const {
    return text(form, fmt::arg("type", type(dtype)), fmt::arg("name", name),
                fmt::arg("value", value));
  }

  // Pointers to memory that the kernel does not write are const.
  std::string pointer(const UOp& param) const {
    return fmt::format("{}{}{}*", dialect_.global, stored_.contains(param.node()) ? "" : "const ",
                       type(param.dtype()));
  }

  // Gives a name to each Param, Variable and Special.
  std::string parameters() {
    if (dialect_.arguments == Arguments::Arrays)
      return fmt::format("void** buffers, const {0}* variables, {0} thread", type(DType::Index));
    std::map<int64_t, std::string> buffers;
    for (const UOp& u : linear_.src())
      if (u.is(Op::Param) && u.as<BufferArg>().name.empty())
        buffers[u.as<BufferArg>().slot] =
            fmt::format("{} data{}", pointer(u), u.as<BufferArg>().slot);
    std::vector<std::string> all;
    for (auto& [slot, text] : buffers) all.push_back(std::move(text));
    const bool attributed = dialect_.arguments == Arguments::Attributed;
    for (const std::string& v : signature_.variables)
      all.push_back(fmt::format("{}{}{} n_{}", attributed ? "constant " : "", type(DType::Index),
                                attributed ? "&" : "", v));
    if (attributed) {
      for (size_t i = 0; i < all.size(); ++i) all[i] += fmt::format(" [[buffer({})]]", i);
      all.emplace_back("uint3 gid [[threadgroup_position_in_grid]]");
      all.emplace_back("uint3 lid [[thread_position_in_threadgroup]]");
    }
    return fmt::format("{}", fmt::join(all, ", "));
  }

  // What the compiler may know of groups of a known size. Two large ones on a processor hide each
  // other's waits; the partial sums of outer loops need no registers meanwhile.
  std::string bounds() const {
    constexpr int64_t large = 256;
    int64_t threads = 1;
    for (const UOp& size : signature_.group) {
      if (size && !size.is(Op::Const)) return {};
      threads *= size ? const_int(size) : 1;
    }
    if (dialect_.bounds.empty() || threads == 1) return {};
    return text(dialect_.bounds, fmt::arg("threads", threads),
                fmt::arg("groups", threads == large ? 2 : 1));
  }

  // What a kernel without parameters names, and its head.
  std::string bindings(const std::string& name) {
    std::map<int64_t, std::string> buffers;
    for (const UOp& u : linear_.src()) {
      if (!u.is(Op::Param) || !u.as<BufferArg>().name.empty()) continue;
      KOINE_REQUIRE(u.dtype() != DType::Bool || dialect_.bool_type.empty(), Value,
                    "{} has no bools in memory: cast data{} to int32", dialect_.name,
                    u.as<BufferArg>().slot);
      buffers[u.as<BufferArg>().slot] =
          fmt::format("var<storage, {}> {}data{}: array<{}>;",
                      stored_.contains(u.node()) ? "read_write" : "read", prefix_,
                      u.as<BufferArg>().slot, type(u.dtype()));
    }
    size_t number = 0;
    for (const auto& [slot, declaration] : buffers)
      outside_ += fmt::format("@group(0) @binding({}) {}\n", number++, declaration);
    for (const std::string& v : signature_.variables)
      outside_ += fmt::format("@group(0) @binding({}) var<uniform> {}n_{}: {};\n", number++,
                              prefix_, v, type(DType::Index));
    std::vector<int64_t> group;
    for (const UOp& size : signature_.group) {
      KOINE_REQUIRE(!size || size.is(Op::Const), Value,
                    "{} has groups of a known size alone, and that of '{}' is a Variable's",
                    dialect_.name, name);
      group.push_back(size ? const_int(size) : 1);
    }
    return fmt::format(
        "@compute @workgroup_size({})\nfn {}(@builtin(workgroup_id) gid: vec3<u32>, "
        "@builtin(local_invocation_id) lid: vec3<u32>)",
        fmt::join(group, ", "), name);
  }

  void line(const std::string& text) {
    out_ += std::string(static_cast<size_t>(indent_) * 2, ' ') + text + "\n";
  }

  std::string name_of(const UOp& u) {
    auto [it, fresh] = names_.try_emplace(u, "");
    if (fresh) it->second = fmt::format("v{}", counter_++);
    return it->second;
  }

  // An operand as it appears in an expression for lane `l`.
  std::string operand(const UOp& raw) {
    const UOp& u = strip_after(raw);
    if (u.is(Op::Const)) return literal(u);
    if (u.is(Op::Expand) || u.is(Op::Reshape)) return operand(u.src(0));
    return lane_count(u) > 1 ? name_of(u) + "[l]" : name_of(u);
  }

  void define(const UOp& u, const std::string& expression) {
    if (const int64_t n = lane_count(u); n > 1) {
      line(array(u.dtype(), name_of(u), n));
      if (const std::string vectors = vector_expression(u); !vectors.empty())
        line(fmt::format("{}{} = {};", each_vector(u), vector_of(u), vectors));
      else
        line(each_lane(n, fmt::format("{}[l] = {};", name_of(u), expression)));
    } else {
      line(named(dialect_.syntax.value, u.dtype(), name_of(u), expression));
    }
  }

  // A Load that may not read; what it gives instead is written first where a choice reads both.
  void gated_load(const UOp& u) {
    const std::string gate = operand(u.src(2)), other = operand(u.src(1)), from = place(u);
    if (dialect_.syntax.chooses_lazily) return define(u, chosen(gate, from, other));
    const int64_t n = lane_count(u);
    const std::string to = n > 1 ? name_of(u) + "[l]" : name_of(u);
    const std::string choice =
        fmt::format("{} = {}; {}", to, other, guarded(gate, fmt::format("{} = {};", to, from)));
    line(n > 1 ? array(u.dtype(), name_of(u), n)
               : named(dialect_.syntax.variable, u.dtype(), name_of(u)));
    line(n > 1 ? each_lane(n, choice) : choice);
  }

  // Lanes of the vectors that a value is written in; 0: lane by lane.
  int64_t vector_lanes(DType dtype, int64_t n) const {
    const bool real = dtype == DType::Float32 || dtype == DType::Float64;
    if (!dialect_.vectors || !real) return 0;
    return n % 16 == 0 ? 16 : n == 2 || n == 4 || n == 8 ? n : 0;
  }
  int64_t vector_lanes(const UOp& u) const { return vector_lanes(u.dtype(), lane_count(u)); }

  std::string array(DType dtype, const std::string& name, int64_t n) const {
    return text(dialect_.syntax.array, fmt::arg("type", type(dtype)), fmt::arg("name", name),
                fmt::arg("count", n), fmt::arg("alignment", alignment(dtype, n)));
  }
  std::string alignment(DType dtype, int64_t n) const {
    const int64_t lanes = vector_lanes(dtype, n);
    return lanes > 0 ? fmt::format(" __attribute__((aligned({})))", lanes * item_size(dtype)) : "";
  }

  // In front of a statement on vectors: h is the number of one.
  std::string each_vector(const UOp& u) const {
    return fmt::format("for (int h = 0; h < {}; ++h) ", lane_count(u) / vector_lanes(u));
  }
  std::string vector_of(const UOp& u) {
    return fmt::format("(({}{}*){})[h]", type(u.dtype()), vector_lanes(u), name_of(u));
  }

  // Whether all lanes are one scalar.
  static bool is_uniform(const UOp& raw) {
    const UOp& u = strip_after(raw);
    return u.is(Op::Expand) || u.is(Op::Reshape) ? is_uniform(u.src(0)) : lane_count(u) == 1;
  }

  // An operand of n lanes as a vector; empty where it has other lanes.
  std::string vector_operand(const UOp& raw, int64_t n) {
    const UOp& u = strip_after(raw);
    if (is_uniform(u))
      return fmt::format("({}{})({})", type(u.dtype()), vector_lanes(u.dtype(), n), operand(u));
    if (u.is(Op::Expand) || u.is(Op::Reshape)) return vector_operand(u.src(0), n);
    return lane_count(u) == n ? vector_of(u) : "";
  }

  // Where a vector of n lanes begins in memory, as an argument of vload and vstore; empty where its
  // lanes lie apart.
  std::string vector_place(const UOp& address) {
    const Contiguous c = contiguous_access(address);
    if (!c.yes) return "";
    return name_of(strip_after(address.src(0))) + (c.base ? " + " + operand(c.base) : "");
  }

  // The value of a statement in vectors; empty where it is written lane by lane.
  std::string vector_expression(const UOp& u) {
    const int64_t lanes = vector_lanes(u), n = lane_count(u);
    if (lanes == 0) return "";
    if (u.is(Op::Load)) return vector_load(u);
    if (!u.is(Op::Add) && !u.is(Op::Mul) && !u.is(Op::Mulacc) && !u.is(Op::Max)) return "";
    std::vector<std::string> operands;
    for (const UOp& s : u.src()) {
      operands.push_back(vector_operand(s, n));
      if (operands.back().empty()) return "";
    }
    if (u.is(Op::Max))  // as max_f32 of one lane
      return fmt::format("({1} > {0} || {1} != {1}) ? {1} : {0}", operands[0], operands[1]);
    if (u.is(Op::Mulacc))
      return fmt::format("{}({})", dialect_.fma[u.dtype() == DType::Float64 ? 1 : 0],
                         fmt::join(operands, ", "));
    return fmt::format("{}", fmt::join(operands, u.is(Op::Add) ? " + " : " * "));
  }

  std::string vector_load(const UOp& u) {
    const UOp& address = strip_after(u.src(0));
    const bool gated = u.src().size() == 3;
    if (!address.is(Op::Index)) {
      const UOp& buffer = accessed_buffer(u);
      return gated || lane_count(buffer) != lane_count(u) ? "" : vector_of(buffer);
    }
    const std::string from = vector_place(address);
    if (from.empty()) return "";
    const std::string load = fmt::format("vload{}(h, {})", vector_lanes(u), from);
    if (!gated) return load;
    const std::string other = vector_operand(u.src(1), lane_count(u));
    if (!is_uniform(u.src(2)) || other.empty()) return "";
    return fmt::format("{} ? {} : {}", operand(u.src(2)), load, other);
  }

  // A Store in vectors; false where it is written lane by lane.
  bool vector_store(const UOp& u, int64_t n) {
    const UOp& address = strip_after(u.src(0));
    const bool in_memory = address.is(Op::Index), gated = u.src().size() == 3;
    const UOp& buffer = accessed_buffer(u);
    const int64_t lanes = vector_lanes(buffer.dtype(), n);
    if (n == 1 || lanes == 0 || (gated && !is_uniform(u.src(2)))) return false;
    const std::string value = vector_operand(u.src(1), n);
    const std::string to = in_memory ? vector_place(address) : name_of(buffer);
    if (value.empty() || to.empty()) return false;
    const std::string begin = fmt::format("for (int h = 0; h < {}; ++h) {}", n / lanes,
                                          gated ? fmt::format("if ({}) ", operand(u.src(2))) : "");
    line(in_memory ? fmt::format("{}vstore{}({}, h, {});", begin, lanes, value, to)
                   : fmt::format("{}{} = {};", begin, vector_of(buffer), value));
    return true;
  }

  // Bytes that an access of lanes that are neighbours takes at once; 0: it goes lane by lane.
  int64_t wide_bytes(const UOp& access, int64_t n) const {
    const UOp& address = strip_after(access.src(0));
    if (!dialect_.wide || n == 1 || !address.is(Op::Index) || is_register(accessed_buffer(access)))
      return 0;
    const Contiguous c = contiguous_access(address);
    const int64_t item = item_size(accessed_buffer(access).dtype());
    for (const int64_t bytes : {16, 8, 4}) {
      const int64_t lanes = bytes / item;
      if (c.yes && lanes > 1 && n % lanes == 0 &&
          (!c.base || is_const(simplify_index(mod(c.base, index_const(lanes))), 0)))
        return bytes;
    }
    return 0;
  }
  std::string wide_array(DType dtype, const std::string& name, int64_t n, int64_t bytes) const {
    return text(dialect_.syntax.array, fmt::arg("type", type(dtype)), fmt::arg("name", name),
                fmt::arg("count", n),
                fmt::arg("alignment", fmt::format(" __attribute__((aligned({})))", bytes)));
  }
  std::string wide_access(std::string_view what, int64_t bytes, int64_t n, DType dtype,
                          const std::string& to, const std::string& from) const {
    const int64_t lanes = bytes / item_size(dtype);
    return fmt::format("for (int l = 0; l < {}; l += {}) {}_{}({} + l, {} + l);", n, lanes, what,
                       bytes, to, from);
  }
  bool wide_load(const UOp& u) {
    const int64_t n = lane_count(u), bytes = wide_bytes(u, n);
    if (bytes == 0 || u.src().size() == 3) return false;
    line(wide_array(u.dtype(), name_of(u), n, bytes));
    line(wide_access("load", bytes, n, u.dtype(), name_of(u), vector_place(strip_after(u.src(0)))));
    return true;
  }
  bool wide_store(const UOp& u, int64_t n) {
    const int64_t bytes = wide_bytes(u, n);
    const bool gated = u.src().size() == 3;
    if (bytes == 0 || (gated && !is_uniform(u.src(2)))) return false;
    const DType dtype = accessed_buffer(u).dtype();
    const std::string value = fmt::format("w{}", counter_++);
    line(wide_array(dtype, value, n, bytes));
    line(each_lane(n, fmt::format("{}[l] = {};", value, operand(u.src(1)))));
    const std::string stores =
        wide_access("store", bytes, n, dtype, vector_place(strip_after(u.src(0))), value);
    line(gated ? guarded(operand(u.src(2)), stores) : stores);
    return true;
  }

  std::string place(const UOp& access) {
    const UOp& address = strip_after(access.src(0));
    const UOp& buffer = accessed_buffer(access);
    if (!address.is(Op::Index))
      return lane_count(buffer) > 1 ? name_of(buffer) + "[l]" : name_of(buffer);
    if (const Contiguous c = contiguous_access(address); c.yes)
      return fmt::format("{}[{}l]", name_of(buffer), c.base ? operand(c.base) + " + " : "");
    return fmt::format("{}[{}]", name_of(buffer), operand(address.src(1)));
  }

  void instruction(const UOp& u) {
    switch (u.op()) {
      case Op::Const:
      case Op::Reshape:
      case Op::Expand:
      case Op::Group:
        return;
      case Op::Barrier:
        if (has_barriers()) line(std::string(dialect_.barrier));
        return;
      case Op::Param:
        parameter(u);
        return;
      case Op::Buffer:
        if (is_register(u)) {
          names_[u] = fmt::format("acc{}", u.as<BufferArg>().slot);
          const int64_t n = lane_count(u);
          line(n > 1 ? array(u.dtype(), names_[u], n)
                     : named(dialect_.syntax.variable, u.dtype(), names_[u]));
          return;
        }
        names_[u] = fmt::format("{}local{}", prefix_, u.as<BufferArg>().slot);
        if (dialect_.arguments == Arguments::Declared)
          outside_ += fmt::format("var<workgroup> {}: array<{}, {}>;\n", names_[u], type(u.dtype()),
                                  u.numel());
        else
          line(fmt::format("{}{} {}[{}]{};", dialect_.local, type(u.dtype()), names_[u], u.numel(),
                           dialect_.wide ? " __attribute__((aligned(16)))" : ""));
        return;
      case Op::Special:
        special(u);
        return;
      case Op::If:
        line(fmt::format("if ({}) {{", operand(u.src(0))));
        ++indent_;
        return;
      case Op::Endif:
        --indent_;
        line("}");
        return;
      case Op::Ins:
        assembly(u);
        return;
      case Op::Wmma:
        tensor_core(u);
        return;
      case Op::AtomicAdd:
        KOINE_REQUIRE(item_size(u.src(1).dtype()) <= dialect_.atomic_bytes, Value,
                      "{} has no AtomicAdd of {} on memory that is also read", dialect_.name,
                      dtype_name(u.src(1).dtype()));
        line(fmt::format("atomic_add_{}(&{}, {});", short_name(dialect_, u.src(1).dtype()),
                         place(u), operand(u.src(1))));
        return;
      case Op::Range: {
        const RangeArg& r = u.as<RangeArg>();
        names_[u] = fmt::format("{}idx{}", r.type == AxisType::Reduce ? "r" : "", r.id);
        line(text(dialect_.syntax.loop, fmt::arg("name", names_[u]),
                  fmt::arg("bound", operand(u.src(0))), fmt::arg("type", type(DType::Index))));
        ++indent_;
        if (loops_to_begin_.contains(u.node())) line(std::string(dialect_.barrier));
        return;
      }
      case Op::End:
        --indent_;
        line("}");
        return;
      case Op::Load:
        if (wide_load(u)) return;
        if (u.src().size() == 3)
          gated_load(u);
        else
          define(u, place(u));
        return;
      case Op::Store: {
        const UOp& target = strip_after(u.src(0));
        const int64_t n = target.is(Op::Index) ? lane_count(target.src(1)) : lane_count(target);
        if (wide_store(u, n)) return;
        if (vector_store(u, n)) return;
        std::string written = fmt::format("{} = {};", place(u), operand(u.src(1)));
        if (u.src().size() == 3) written = guarded(operand(u.src(2)), written);
        line(n > 1 ? each_lane(n, written) : written);
        return;
      }
      case Op::Stack: {
        std::string list;
        for (const UOp& s : u.src()) list += (list.empty() ? "" : ", ") + operand(s);
        const auto n = static_cast<int64_t>(u.src().size());
        line(text(dialect_.syntax.list, fmt::arg("type", type(u.dtype())),
                  fmt::arg("name", name_of(u)), fmt::arg("count", n),
                  fmt::arg("alignment", alignment(u.dtype(), n)), fmt::arg("value", list)));
        return;
      }
      case Op::Shrink: {
        const int64_t from = const_int(u.src(1).src(0));
        const UOp& v = strip_after(u.src(0));
        const std::string at =
            lane_count(v) > 1 ? fmt::format("{}[l + {}]", vector_name(v), from) : operand(v);
        define(u, lane_count(u) > 1 ? at : fmt::format("{}[{}]", vector_name(v), from));
        return;
      }
      case Op::Index:
        if (!is_address(u))
          define(u, fmt::format("{}[{}]", vector_name(u.src(0)), const_int(u.src(1))));
        return;
      default:
        break;
    }
    define(u, expression(u));
  }

  void parameter(const UOp& u) {
    const BufferArg& p = u.as<BufferArg>();
    const bool arrays = dialect_.arguments == Arguments::Arrays;
    if (p.name.empty()) {
      names_[u] = fmt::format("{}data{}", prefix_, p.slot);
      if (arrays) line(fmt::format("{} data{} = buffers[{}];", pointer(u), p.slot, p.slot));
      return;
    }
    names_[u] = prefix_ + "n_" + p.name;  // no word of the language, and no other name of this text
    const auto at = std::find(signature_.variables.begin(), signature_.variables.end(), p.name);
    if (arrays)
      line(named(dialect_.syntax.constant, DType::Index, names_[u],
                 fmt::format("variables[{}]", at - signature_.variables.begin())));
  }

  // The number of a thread, or of one or a group along an axis of the grid.
  void special(const UOp& u) {
    const std::string& name = u.as<std::string>();
    names_[u] = name;
    std::string_view value = dialect_.thread;
    if (name != "thread") {
      KOINE_REQUIRE(!dialect_.barrier.empty(), Value,
                    "{} has no groups of threads, and the kernel asks for {}", dialect_.name, name);
      value = (name[0] == 'g' ? dialect_.group_index
                              : dialect_.index_in_group)[static_cast<size_t>(name.back() - '0')];
    }
    if (value == name) return;
    line(named(dialect_.syntax.constant, DType::Index, name, std::string(value)));
  }

  std::string literal(const UOp& u) const {
    const DType d = u.dtype();
    if (has_bools() && d == DType::Bool) return const_int(u) != 0 ? "true" : "false";
    if (d == DType::Float32 || d == DType::Float64) {
      const double v = const_double(u);
      const std::string_view f = d == DType::Float32 ? "f" : "";
      if (!std::isfinite(v))
        return fmt::format("from_{}({:#x}u{})", short_name(dialect_, d), u.as<ConstArg>().bits,
                           d == DType::Float32 ? "" : dialect_.long_suffix);
      if (v == std::trunc(v) && std::fabs(v) < 1e6 && !(v == 0 && std::signbit(v)))
        return fmt::format("{:.1f}{}", v, f);
      return fmt::format("{:a}{}", v, f);
    }
    if (d == DType::UInt64)
      return fmt::format("{}u{}", u.as<ConstArg>().bits, dialect_.long_suffix);
    const int64_t v = const_int(u);
    if (d == DType::UInt32) return fmt::format("{}u", v);
    const bool wide = v > INT32_MAX || v < INT32_MIN;
    const std::string_view suffix = wide ? dialect_.long_suffix : "";
    if (v == INT64_MIN || v == INT32_MIN) return fmt::format("(-{}{} - 1)", -(v + 1), suffix);
    return fmt::format("{}{}", v, suffix);
  }

  // Vectors that are addressed by lane need a name even when operand() would inline them.
  std::string vector_name(const UOp& u) {
    if (!u.is(Op::Expand)) return name_of(u);
    if (!names_.contains(u)) define(u, operand(u.src(0)));
    return name_of(u);
  }

  std::string expression(const UOp& u) {
    const DType d = u.dtype();
    const auto a = [&] { return operand(u.src(0)); };
    const auto b = [&] { return operand(u.src(1)); };
    const DType in = u.src(0).dtype();
    const std::string_view name = short_name(dialect_, d);
    const size_t wide_float = d == DType::Float64 ? 1 : 0;
    const bool bools = has_bools() && in == DType::Bool;
    // Integers of C promote to int: compute unsigned and cut to the width, so that they wrap.
    auto wrapped = [&](std::string_view symbol) {
      const bool plain = is_float(d) || (d == DType::Index && fits_64_bits(u)) ||
                         (dialect_.integers_wrap && d != DType::Bool);
      if (plain) return fmt::format("{} {} {}", a(), symbol, b());
      if (d == DType::Bool) return fmt::format("{} {} {}", a(), symbol == "+" ? "|" : "&", b());
      const std::string wide = type(item_size(d) == 8 ? DType::UInt64 : DType::UInt32);
      return as_type(type(d),
                     fmt::format("({} {} {})", as_type(wide, a()), symbol, as_type(wide, b())));
    };
    switch (u.op()) {
      case Op::Add:
        if (const UOp x = rounded_by_sums(u); x && !dialect_.syntax.rounded.empty())
          return text(dialect_.syntax.rounded, fmt::arg("value", operand(x)));
        return wrapped("+");
      case Op::Mul:
        if (!dialect_.negated.empty() && is_integer(d) && d != DType::Index &&
            is_const(u.src(1), -1)) {
          const std::string bits =
              as_type(type(item_size(d) == 8 ? DType::UInt64 : DType::UInt32), a());
          return as_type(type(d), fmt::format("{}({})", dialect_.negated, bits));
        }
        return wrapped("*");
      case Op::Fdiv:
        return fmt::format("{} / {}", a(), b());
      case Op::Max:
        if (is_float(d)) return fmt::format("max_{}({}, {})", name, a(), b());
        if (bools) return fmt::format("{} | {}", a(), b());
        return chosen(fmt::format("{} > {}", b(), a()), b(), a());
      case Op::Idiv:
        return fmt::format("idiv_{}({}, {})", name, a(), b());
      case Op::Mod:
        return fmt::format("mod_{}({}, {})", name, a(), b());
      case Op::Shl:
        return fmt::format("shl_{}({}, {})", name, a(), b());
      case Op::Shr:
        return fmt::format("shr_{}({}, {})", name, a(), b());
      case Op::CmpLt:
        if (bools) return fmt::format("!{} & {}", a(), b());
        if (dialect_.below_negative_zero && is_float(in) && is_const(u.src(1), 0))
          return fmt::format("{} < -{}", a(), literal(u.src(1)));
        return fmt::format("{} < {}", a(), b());
      case Op::CmpNe:
        return text(dialect_.syntax.differs, fmt::arg("left", a()), fmt::arg("right", b()));
      case Op::Xor:
        return fmt::format("{} {} {}", a(), bools ? "!=" : "^", b());
      case Op::Or:
        return fmt::format("{} | {}", a(), b());
      case Op::And:
        return fmt::format("{} & {}", a(), b());
      case Op::Where:
        return chosen(a(), b(), operand(u.src(2)));
      case Op::Trunc:
        return fmt::format("{}({})", dialect_.trunc[wide_float], a());
      case Op::Sqrt:
        return fmt::format("{}({})", dialect_.sqrt[wide_float], a());
      case Op::Mulacc:
        return fmt::format("{}({}, {}, {})", dialect_.fma[wide_float], a(), b(), operand(u.src(2)));
      case Op::Bitcast:
        if (is_float(d) && !is_float(in))
          return fmt::format("from_{}({})", name, as_type(type(storage_uint(d)), a()));
        if (is_float(in) && !is_float(d))
          return as_type(type(d), fmt::format("to_{}({})", short_name(dialect_, in), a()));
        return as_type(type(d), a());
      case Op::Cast:
        if (d == DType::Bool)
          return text(dialect_.syntax.differs, fmt::arg("left", a()), fmt::arg("right", 0));
        if (is_float(in) && !is_float(d))
          return fmt::format("saturate_{}_{}({})", name, short_name(dialect_, in), a());
        return as_type(type(d), a());
      case Op::Custom:
        return with_operands(u.as<CodeArg>().text, u);
      default:
        internal_error("no text for {}", op_name(u.op()));
    }
  }

  // x of x + c - c, which is the integer nearest to a float32 x in the range that is used; else
  // null.
  static UOp rounded_by_sums(const UOp& u) {
    constexpr double magic = 0x1.8p23;
    const auto adds = [](const UOp& sum, double c) {
      if (!sum.is(Op::Add) || sum.dtype() != DType::Float32) return false;
      const UOp* added = &sum.src(1);
      while (added->is(Op::Expand) || added->is(Op::Reshape)) added = &added->src(0);
      return added->is(Op::Const) && const_double(*added) == c;
    };
    return adds(u, -magic) && adds(strip_after(u.src(0)), magic) ? strip_after(u.src(0)).src(0)
                                                                 : UOp();
  }

  bool has_bools() const { return !dialect_.bool_type.empty(); }

  static bool fits_64_bits(const UOp& index) {
    const Interval& b = index.bounds();
    return b.low > INT64_MIN && b.high < INT64_MAX;
  }

  // A call of what the dialect's header defines: the sum, A, B and what it goes on from.
  void tensor_core(const UOp& u) {
    const std::string& core = u.as<WmmaArg>().core;
    KOINE_REQUIRE(has_core(dialect_, core), Value, "{} has no tensor core {}", dialect_.name, core);
    std::string operands;
    for (const UOp& s : u.src()) operands += ", " + vector_name(strip_after(s));
    line(array(u.dtype(), name_of(u), lane_count(u)));
    line(fmt::format("{}({}{});", core, name_of(u), operands));
  }

  // One instruction in the syntax of GCC, whose operands are %0, %1, ...
  void assembly(const UOp& u) {
    KOINE_REQUIRE(dialect_.has_assembly, Value, "{} has no instructions of a machine: Ins \"{}\"",
                  dialect_.name, u.as<CodeArg>().text);
    auto [text, constraints] = parts_of_instruction(u);
    std::replace(text.begin(), text.end(), '$', '%');
    std::vector<std::string> operands;
    for (size_t begin = 0, k = 0; begin <= constraints.size(); ++k) {
      const size_t comma = std::min(constraints.find(',', begin), constraints.size());
      const std::string constraint = constraints.substr(begin, comma - begin);
      const bool result = constraint.starts_with("=");
      KOINE_REQUIRE(result == (k == 0) && k <= u.src().size(), Value,
                    "Ins \"{}\": it has one result, =, and {} operands", u.as<CodeArg>().text,
                    u.src().size());
      operands.push_back(
          fmt::format("\"{}\"({})", constraint, result ? name_of(u) : operand(u.src(k - 1))));
      begin = comma + 1;
    }
    const std::string result = operands[0];
    operands.erase(operands.begin());
    line(named(dialect_.syntax.variable, u.dtype(), name_of(u)));
    line(fmt::format("__asm__(\"{}\" : {} : {});", text, result, fmt::join(operands, ", ")));
  }

  // The code of a Custom, {0}, {1}, ... being its operands.
  std::string with_operands(const std::string& code, const UOp& u) {
    std::string out = code;
    for (size_t i = 0; i < u.src().size(); ++i) {
      const std::string name = fmt::format("{{{}}}", i), value = operand(u.src(i));
      for (size_t at = 0; (at = out.find(name, at)) != out.npos; at += value.size())
        out.replace(at, name.size(), value);
    }
    return out;
  }

  const UOp& linear_;
  const Dialect& dialect_;
  Signature signature_;
  absl::flat_hash_set<const Node*> stored_;          // memory that the kernel writes
  absl::flat_hash_set<const Node*> loops_to_begin_;  // with a Barrier of their own
  std::string prefix_, outside_;  // of names outside of the kernel, and what declares them
  std::string out_;
  int indent_ = 1;
  int counter_ = 0;
  std::unordered_map<UOp, std::string> names_;
};

}  // namespace

Target text_target(std::string_view language, bool strict) {
  return text_target(dialect_named(language), strict);
}

Target text_target(const Dialect& dialect, bool strict) {
  Target out = dialect.barrier.empty() ? generic_target(strict) : simt_target(strict);
  for (const DType d :
       {DType::Int8, DType::Int16, DType::Int32, DType::Int64, DType::UInt8, DType::UInt16,
        DType::UInt32, DType::UInt64, DType::Float32, DType::Float64, DType::Bool})
    if (type_name(dialect, d).empty()) out.lacks.push_back(d);
  if (out.groups) {
    out.groups = dialect.groups;
    out.row_bytes = std::min(out.row_bytes, out.groups.local_bytes);
  }
  give_cores(out, [&](const TensorCore& core) {  // those of CPUs are not of the language
    return core.feature.empty() && has_core(dialect, core.name);
  });
  out.has_fma = out.has_fma && !dialect.fma[0].empty();
  out.wide_bytes = dialect.wide ? 16 : 0;
  out.atomic_bytes = dialect.atomic_bytes;
  out.name = fmt::format("{}{}", dialect.name, strict ? "-strict" : "");
  return out;
}

std::string render(std::string_view target, const std::string& name, const UOp& linear,
                   bool with_prelude) {
  return render(dialect_named(target), name, linear, with_prelude);
}

std::string render(const Dialect& dialect, const std::string& name, const UOp& linear,
                   bool with_prelude) {
  return (with_prelude ? prelude_of(dialect) : std::string()) +
         CStyleRenderer(linear, dialect).run(name);
}

}  // namespace koine
