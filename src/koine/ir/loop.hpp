#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "koine/ir/build.hpp"

// Loops and branches (amendment C43): bodies of a Call that hold functions themselves.
//
//   Call(Scan["carry row constant"](step, count), first carry, rows, constant)
//   Call(While["carry constant"](condition, step), first carry, constant)
//   Call(Switch["constant constant"](branch 0, branch 1, ...), which, argument of all branches)
//
// In a graph of values the functions are Tuples over Params, whose slots are the positions of the
// arguments. A loop on several devices has all arguments and all results on them, until Shard makes
// arguments and results of their parts. In a host program they are Linears, over Params of the
// buffers of the launch: results, then arguments (`lower/loops`).
namespace koine {

/// What an argument is to the step of a loop: a carry is what the step before gave, and the
/// argument itself in the first step; of a row each step sees the element at its number along axis
/// 0; a constant is the same in all steps.
enum class LoopRole : uint8_t { Carry, Row, Constant };

/// An argument of a loop that is being made. `inside` stands for it in the values of a step: any
/// node of its own.
struct LoopArgument {
  LoopRole role;
  UOp given;
  UOp inside;
};

/// The shape that an argument has in a step: of a row without the axis of the steps.
UOp shape_inside(const UOp& given, LoopRole role);
/// Where it lies in a step. Throws Error (Value) for rows that several devices share out.
Placement placement_inside(const UOp& given, LoopRole role);
/// Whether values lie on different devices.
bool lie_apart(std::span<const UOp> values);
/// Whether a Call's body is a loop or branches.
bool is_loop(const UOp& body);
/// The number of a step, while it is an argument of a program: a Variable below `count`.
UOp step_variable(const UOp& count);
bool is_step_variable(const UOp& u);

/// A Call of a Scan, a While or a Switch, taken apart.
struct Loop {
  explicit Loop(const UOp& call);

  UOp call, body;
  bool reversed = false;           ///< of a Scan: from the last row to the first
  std::vector<LoopRole> roles;     ///< of the arguments; of a Switch all constants
  std::span<const UOp> functions;  ///< step; condition and step; branches
  UOp count;                       ///< of a Scan

  std::span<const UOp> arguments() const { return call.src().subspan(1); }
  /// The function that gives the carries, and what a Scan collects of each step behind them.
  const UOp& step() const { return functions.back(); }
  size_t carries() const;
  /// Positions of the arguments of a role.
  std::vector<size_t> positions(LoopRole role) const;
  /// The Params of one function by argument; null where it does not read it.
  std::vector<UOp> params(const UOp& function) const;
  /// The same of all functions: where several read an argument, they name it alike.
  std::vector<UOp> params() const;
};

/// Of loops that are made here: an argument that lies on no device lies on all that a loop is on;
/// a carry is there as the step gives it. Arguments on others are an Error (Device).
///
/// A Scan: `values` are the next carries, in the order of the carries among the arguments, then
/// what each step adds to a result. Results are the last carries, then these, stacked along a new
/// axis 0.
UOp scan_call(std::span<const LoopArgument> arguments, std::span<const UOp> values,
              const UOp& count, bool reversed);
/// A While: as long as `condition`, a bool scalar of the carries, holds. Results are the last
/// carries.
UOp while_call(std::span<const LoopArgument> arguments, const UOp& condition,
               std::span<const UOp> values);
/// A Switch: the results of branch number `which`, an int32 scalar that is clamped to what exists.
/// Each branch gives values of the same shapes and dtypes over what stands for the arguments.
UOp switch_call(const UOp& which, std::span<const LoopArgument> arguments,
                std::span<const std::vector<UOp>> branches);

/// Where result k of a loop lies, as its step says; nowhere: where the Call does.
Placement placement_of_result(const UOp& body, size_t k);
/// Params like the results of a loop, by slot.
std::vector<UOp> loop_results(const UOp& body);
/// How many results the launch of a loop fills, of its buffers.
size_t loop_result_count(const UOp& body, size_t buffers);
/// What a message calls it.
std::string_view loop_name(const UOp& body);
/// Throws Error (Value) or (Type) where functions and arguments of a loop do not fit.
void require_loop(const UOp& call);

}  // namespace koine
