#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/compat/alu.hpp"
#include "koine/compat/uops.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine::compat {
namespace {

class Lister {
 public:
  explicit Lister(const UOp& linear) : linear_(linear) {}

  UOpGraph run() {
    for (const UOp& u : linear_.src())
      if (u.is(Op::Store)) stored_.push_back(accessed_buffer(u));
    std::vector<UOp> params;
    for (const UOp& u : linear_.src())
      if (u.is(Op::Param)) params.push_back(u);
    std::stable_sort(params.begin(), params.end(), [](const UOp& a, const UOp& b) {
      return static_cast<uint64_t>(a.as<BufferArg>().slot) <
             static_cast<uint64_t>(b.as<BufferArg>().slot);  // Variables, of slot -1, last
    });
    for (const UOp& p : params) define(p);
    for (const UOp& u : linear_.src()) instruction(u);
    return std::move(graph_);
  }

 private:
  [[noreturn]] static void refuse(const UOp& u) {
    raise(
        ErrorKind::Value,
        "{} has no name among the old UOps: a program of scalars, as KOINE_NOOPT=1 gives one, can "
        "be listed",
        op_name(u.op()));
  }

  static DType old_dtype(const UOp& u) {
    if (lane_count(u) > 1) refuse(u);
    return u.dtype() == DType::Index ? DType::Int32 : u.dtype();
  }

  RowRef add(UOps uop, Fields fields) {
    fields.simplify = false;
    return graph_.add(uop, fields);
  }

  void define(const UOp& param) {
    const BufferArg& p = param.as<BufferArg>();
    if (!p.name.empty()) {
      const Interval& bounds = param.bounds();
      rows_[param] = add(UOps::DEFINE_VAR, {.dtype = DType::Int32,
                                            .arg = {p.name, static_cast<int64_t>(bounds.low),
                                                    static_cast<int64_t>(bounds.high)}});
      return;
    }
    const bool is_mutable = std::find(stored_.begin(), stored_.end(), param) != stored_.end();
    rows_[param] =
        add(UOps::DEFINE_GLOBAL,
            {.dtype = p.dtype, .arg = {p.slot, fmt::format("data{}", p.slot), is_mutable}});
  }

  RowRef row_of(const UOp& raw) {
    const UOp& u = strip_after(raw);
    if (u.is(Op::Const)) {
      const Arg arg = is_float(u.dtype()) ? Arg(const_double(u)) : Arg(const_int(u));
      return add(UOps::CONST, {.dtype = old_dtype(u), .arg = arg});
    }
    const auto it = rows_.find(u);
    if (it == rows_.end()) refuse(u);
    return it->second;
  }

  // A register becomes an accumulator with its first value, where that is a number.
  void keep(const UOp& u) {
    const UOp& buffer = accessed_buffer(u);
    const UOp& value = strip_after(u.src(1));
    if (!rows_.contains(buffer)) {
      const bool number = value.is(Op::Const);
      const Arg first = !number                   ? Arg(0)
                        : is_float(value.dtype()) ? Arg(const_double(value))
                                                  : Arg(const_int(value));
      rows_[buffer] = add(UOps::DEFINE_ACC, {.dtype = old_dtype(buffer), .arg = first});
      loops_at_[buffer] = loops_.size();
      if (number) return;
    }
    std::vector<RowRef> vin{rows_.at(buffer), row_of(value)};
    const size_t around = std::min(loops_at_.at(buffer), loops_.size());
    vin.insert(vin.end(), loops_.begin() + static_cast<std::ptrdiff_t>(around), loops_.end());
    rows_[buffer] = add(UOps::PHI, {.dtype = old_dtype(buffer), .vin = vin});
  }

  void instruction(const UOp& u) {
    switch (u.op()) {
      case Op::Const:
      case Op::Param:
      case Op::Group:
        return;
      case Op::Buffer:
        if (!is_register(u)) refuse(u);
        return;
      case Op::Index:
        if (!is_address(u)) refuse(u);
        return;
      case Op::Range: {
        const RowRef zero = add(UOps::CONST, {.dtype = DType::Int32, .arg = 0});
        rows_[u] = add(UOps::LOOP, {.dtype = DType::Int32, .vin = {zero, row_of(u.src(0))}});
        loops_.push_back(rows_[u]);
        return;
      }
      case Op::Special: {
        const auto& name = u.as<std::string>();
        if (!u.src(0).is(Op::Const) || name == "thread") refuse(u);
        rows_[u] = add(UOps::SPECIAL, {.dtype = DType::Int32,
                                       .arg = {name.back() - '0', name, const_int(u.src(0))}});
        return;
      }
      case Op::End:
        add(UOps::ENDLOOP, {.vin = {loops_.back()}});
        loops_.pop_back();
        return;
      case Op::Load: {
        const UOp& place = strip_after(u.src(0));
        if (!place.is(Op::Index)) {
          rows_[u] = row_of(accessed_buffer(u));
          return;
        }
        std::vector<RowRef> vin{row_of(place.src(0)), row_of(place.src(1))};
        if (u.src().size() == 3) vin.insert(vin.end(), {row_of(u.src(2)), row_of(u.src(1))});
        rows_[u] = add(UOps::LOAD, {.dtype = old_dtype(u), .vin = vin});
        return;
      }
      case Op::Store: {
        const UOp& place = strip_after(u.src(0));
        if (!place.is(Op::Index)) return keep(u);
        std::vector<RowRef> vin{row_of(place.src(0)), row_of(place.src(1)), row_of(u.src(1))};
        if (u.src().size() == 3) vin.push_back(row_of(u.src(2)));
        add(UOps::STORE, {.vin = vin});
        return;
      }
      case Op::Cast:
      case Op::Bitcast:
        if (u.is(Op::Cast) && old_dtype(u) == old_dtype(u.src(0))) {
          rows_[u] = row_of(u.src(0));
          return;
        }
        rows_[u] = add(u.is(Op::Cast) ? UOps::CAST : UOps::BITCAST,
                       {.dtype = old_dtype(u), .vin = {row_of(u.src(0))}});
        return;
      default:
        break;
    }
    const std::optional<Operation> operation = operation_of(u);
    if (!operation) refuse(u);
    std::vector<RowRef> vin;
    for (const UOp& s : u.src()) vin.push_back(row_of(s));
    // The old lists name what is added first, and the accumulator behind it.
    const bool accumulates = vin[0]->uop == UOps::DEFINE_ACC || vin[0]->uop == UOps::PHI;
    if (accumulates && vin.size() == 2 && is_commutative(u.op())) std::swap(vin[0], vin[1]);
    rows_[u] = add(UOps::ALU, {.dtype = old_dtype(u), .vin = vin, .arg = *operation});
  }

  const UOp& linear_;
  UOpGraph graph_;
  std::vector<UOp> stored_;
  absl::flat_hash_map<UOp, RowRef> rows_;
  absl::flat_hash_map<UOp, size_t> loops_at_;  // loops around an accumulator
  std::vector<RowRef> loops_;
};

}  // namespace

UOpGraph listing(const UOp& linear) { return Lister(linear).run(); }

std::string print_linear(const UOp& linear, Style style) {
  return style == Style::Plain ? linear_text(linear) : listing(linear).text();
}

}  // namespace koine::compat
