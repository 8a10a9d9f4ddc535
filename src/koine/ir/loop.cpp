#include "koine/ir/loop.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

constexpr std::string_view step_name = "koine_step";
constexpr std::string_view backwards = "reversed";
constexpr std::array<std::string_view, 3> role_names = {"carry", "row", "constant"};

// The words of a loop's arg: `reversed`, then a role for each argument.
struct Form {
  bool reversed = false;
  std::vector<LoopRole> roles;
};
std::optional<Form> form_of(const UOp& body) {
  const auto* text = std::get_if<std::string>(&body.arg());
  if (text == nullptr) return std::nullopt;
  Form out;
  for (size_t at = 0; at < text->size();) {
    const size_t stop = std::min(text->find(' ', at), text->size());
    const std::string_view word = std::string_view(*text).substr(at, stop - at);
    const auto role = std::find(role_names.begin(), role_names.end(), word);
    if (role != role_names.end())
      out.roles.push_back(static_cast<LoopRole>(role - role_names.begin()));
    else if (word == backwards && out.roles.empty() && body.is(Op::Scan))
      out.reversed = true;
    else
      return std::nullopt;
    at = stop + 1;
  }
  return out;
}
std::string form_text(const Form& form) {
  std::string out(form.reversed ? backwards : "");
  for (const LoopRole r : form.roles)
    out += (out.empty() ? "" : " ") + std::string(role_names[static_cast<size_t>(r)]);
  return out;
}

std::span<const UOp> functions_of(const UOp& body) {
  return body.is(Op::Scan) ? body.src().first(1) : body.src();
}

// A row's shape, with the axis of the steps before it.
UOp stacked_shape(const UOp& value, const UOp& count) {
  std::vector<UOp> dims{count};
  for (size_t k = 0; k < value.rank(); ++k) dims.push_back(value.dim(k));
  return stack(dims);
}

std::string described(const UOp& value) {
  return fmt::format("{} of shape {}", dtype_name(value.dtype()), shape_text(value));
}

bool same_shape(const UOp& a, const UOp& b) {
  return a == b || without_values(a) == without_values(b);
}
bool alike(const UOp& a, const UOp& b) {
  return a.dtype() == b.dtype() && same_shape(a.shape(), b.shape());
}

// The several devices that a loop is on; null: it is on one or none.
Device devices_of(std::span<const LoopArgument> arguments) {
  for (const LoopArgument& a : arguments)
    for (const UOp& u : {a.given, a.inside})
      if (u.device().count() > 1) return u.device();
  return {};
}

// Whether they lie on different devices, where or inside of which they are given.
bool are_apart(std::span<const LoopArgument> arguments) {
  std::vector<UOp> all;
  for (const LoopArgument& a : arguments) all.insert(all.end(), {a.given, a.inside});
  return lie_apart(all);
}

// The functions of a loop over Params of the positions of its arguments, which say where these lie
// where that is not one device for all.
class Closing {
 public:
  explicit Closing(std::span<const LoopArgument> arguments)
      : arguments_(arguments.begin(), arguments.end()),
        devices_(devices_of(arguments)),
        apart_(devices_ || are_apart(arguments)) {
    for (size_t k = 0; k < arguments_.size(); ++k) {
      const LoopArgument& a = arguments_[k];
      const Device there = a.given.device();
      KOINE_REQUIRE(!devices_ || !there || there == devices_, Device,
                    "a loop has an argument of shape {} on {}, and another one on {}: all lie on "
                    "the same devices; place it there with shard()",
                    shape_text(a.given), there.name(), devices_.name());
      free_.push_back(devices_ && !there);
      places_.push_back(there ? placement_inside(a.given, a.role) : a.inside.node()->placement);
      add_param(k);
    }
  }

  /// What a condition gives, wherever that lies.
  UOp function(std::span<const UOp> values) const { return substitute(tuple(values), params_); }

  /// What a step gives: carries lie where they did before it, or, where they lay nowhere, as it
  /// gives them; the rest lies on all devices.
  UOp step(std::span<const UOp> values) {
    const std::vector<size_t> carries = settle_carries(values);
    std::vector<UOp> placed;
    for (const UOp& v : values_of(function(values))) {
      const size_t i = placed.size();
      Placement place = i < carries.size() ? places_[carries[i]] : v.node()->placement;
      if (devices_ && !(place.device == devices_)) place = {devices_};
      const bool moves =
          place.device && (devices_ || (v.device() && !(v.device() == place.device)));
      placed.push_back(moves ? copy_to(v, place) : v);
    }
    return tuple(placed);
  }

  UOp call(const UOp& body) const {
    std::vector<UOp> src{body};
    for (const LoopArgument& a : arguments_) src.push_back(a.given);
    return UOp::make(Op::Call, src);
  }
  Device devices() const { return devices_; }

 private:
  static std::vector<UOp> values_of(const UOp& function) {
    return {function.src().begin(), function.src().end()};
  }

  void add_param(size_t k) {
    const LoopArgument& a = arguments_[k];
    const auto slot = static_cast<int64_t>(k);
    const Placement& at = places_[k];
    params_.insert_or_assign(
        a.inside,
        apart_ ? param_for(slot, new_buffer(a.inside.shape(), a.inside.dtype(), at.device, at.axes))
               : argument_param(slot, a.inside));
  }

  // The positions of the carries, once each has its place. What nothing says where it lies is whole
  // on all devices.
  std::vector<size_t> settle_carries(std::span<const UOp> values) {
    std::vector<size_t> carries;
    for (size_t k = 0; k < arguments_.size(); ++k)
      if (arguments_[k].role == LoopRole::Carry) carries.push_back(k);
    for (bool again = bool(devices_); again;) {
      again = false;
      const UOp given = function(values);
      for (size_t i = 0; i < std::min(carries.size(), values.size()); ++i) {
        const size_t k = carries[i];
        const Placement found = given.src(i).node()->placement;
        if (!free_[k] || !(found.device == devices_)) continue;
        free_[k] = found.axes.empty();  // another round may split it
        again = again || !(found == places_[k]);
        places_[k] = found;
        add_param(k);
      }
    }
    for (size_t k = 0; k < arguments_.size(); ++k) {
      if (!free_[k] || places_[k].device == devices_) continue;
      places_[k] = {devices_};
      add_param(k);
    }
    return carries;
  }

  std::vector<LoopArgument> arguments_;
  Device devices_;
  bool apart_;
  std::vector<bool> free_;         // to lie where the step gives it
  std::vector<Placement> places_;  // in a step
  Substitution params_;
};

std::string roles_text(std::span<const LoopArgument> arguments, bool reversed = false) {
  Form form{reversed, {}};
  for (const LoopArgument& a : arguments) form.roles.push_back(a.role);
  return form_text(form);
}

// --- what fits -----------------------------------------------------------------------------------

void require_params(const Loop& loop, const UOp& function) {
  const std::string_view name = loop_name(loop.body);
  for (const auto& [slot, param] : params_of(function)) {
    const auto k = static_cast<size_t>(slot);
    KOINE_REQUIRE(slot >= 0 && k < loop.arguments().size(), Value,
                  "{}: a function reads slot {}, of {} arguments", name, slot,
                  loop.arguments().size());
    const UOp& given = loop.arguments()[k];
    const bool row = loop.roles[k] == LoopRole::Row;
    const bool fits = same_shape(param.shape(), shape_inside(given, loop.roles[k]));
    KOINE_REQUIRE(fits && param.dtype() == given.dtype(), Value,
                  "{}: the step takes {} for argument {}, {}, and that is {}", name,
                  described(param), k, row ? "of which it gets a row" : "as it is",
                  described(given));
  }
}

// Of arguments on several devices the Params say where they lie.
void require_places(const Loop& loop, const UOp& function) {
  const std::vector<UOp> params = loop.params(function);
  for (size_t k = 0; k < params.size(); ++k) {
    if (!params[k] || !loop.arguments()[k].device()) continue;
    const Placement at = placement_inside(loop.arguments()[k], loop.roles[k]),
                    said = params[k].node()->placement;
    KOINE_REQUIRE(said.device == at.device && (said.axes == at.axes || at.device.count() < 2),
                  Device, "{}: argument {} of shape {} lies on {}, and the step takes one on {}",
                  loop_name(loop.body), k, shape_text(loop.arguments()[k]), at.device.name(),
                  said.device.name());
  }
}

void require_carries(const Loop& loop) {
  const std::string_view name = loop_name(loop.body);
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  const std::span<const UOp> values = loop.step().src();
  KOINE_REQUIRE(values.size() >= carries.size(), Value,
                "{}: the step gives {} values, for {} carries", name, values.size(),
                carries.size());
  for (size_t i = 0; i < carries.size(); ++i) {
    const UOp& first = loop.arguments()[carries[i]];
    KOINE_REQUIRE(alike(values[i], first), Value,
                  "{}: carry {} is {} before the first step and {} behind it: both must be equal; "
                  "cast() or reshape() one of them",
                  name, i, described(first), described(values[i]));
  }
}

void require_scan(const Loop& loop) {
  require_carries(loop);
  KOINE_REQUIRE(loop.count.dtype() == DType::Index && loop.count.is_scalar(), Type,
                "scan: how often is an index scalar, got {}", described(loop.count));
  for (const size_t k : loop.positions(LoopRole::Row)) {
    const UOp& rows = loop.arguments()[k];
    KOINE_REQUIRE(rows.rank() > 0 && (rows.dim(0) == loop.count ||
                                      without_values(rows.dim(0)) == without_values(loop.count)),
                  Value, "scan: argument {} of shape {} has no row for each of {} steps", k,
                  shape_text(rows), dim_text(loop.count));
  }
}

void require_while(const Loop& loop) {
  require_carries(loop);
  KOINE_REQUIRE(loop.positions(LoopRole::Row).empty(), Value, "while_loop: it has no rows");
  KOINE_REQUIRE(loop.step().src().size() == loop.carries(), Value,
                "while_loop: the step gives {} values, for {} carries", loop.step().src().size(),
                loop.carries());
  const UOp& condition = loop.functions[0];
  KOINE_REQUIRE(condition.src().size() == 1 && condition.src(0).dtype() == DType::Bool &&
                    condition.src(0).is_scalar(),
                Value, "while_loop: the condition gives one bool of shape (), got {}",
                condition.src().empty() ? "nothing" : described(condition.src(0)));
}

void require_switch(const Loop& loop) {
  KOINE_REQUIRE(
      loop.positions(LoopRole::Constant).size() == loop.roles.size() && !loop.roles.empty(), Value,
      "switch: its arguments are a number and constants");
  const UOp& which = loop.arguments()[0];
  KOINE_REQUIRE(which.dtype() == DType::Int32 && which.is_scalar(), Value,
                "switch: the number of the branch is an int32 of shape (), got {}",
                described(which));
  const std::span<const UOp> first = loop.functions[0].src();
  for (size_t b = 1; b < loop.functions.size(); ++b) {
    const std::span<const UOp> other = loop.functions[b].src();
    KOINE_REQUIRE(other.size() == first.size(), Value,
                  "switch: branch 0 gives {} values, and branch {} gives {}", first.size(), b,
                  other.size());
    for (size_t k = 0; k < first.size(); ++k)
      KOINE_REQUIRE(alike(first[k], other[k]), Value,
                    "switch: value {} is {} in branch 0 and {} in branch {}: both must be equal; "
                    "cast() or reshape() one of them",
                    k, described(first[k]), described(other[k]), b);
  }
}

}  // namespace

UOp shape_inside(const UOp& given, LoopRole role) {
  if (role != LoopRole::Row) return given.shape();
  std::vector<UOp> dims;
  for (size_t k = 1; k < given.rank(); ++k) dims.push_back(given.dim(k));
  return stack(dims);
}

bool lie_apart(std::span<const UOp> values) {
  Device first;
  for (const UOp& v : values) {
    if (!first) first = v.device();
    if (v.device() && !(v.device() == first)) return true;
  }
  return false;
}

Placement placement_inside(const UOp& given, LoopRole role) {
  Placement out = given.node()->placement;
  if (role != LoopRole::Row || out.device.count() < 2) return out;
  KOINE_REQUIRE(!out.axes.contains(0), Value,
                "scan: rows of shape {} are split along axis 0 over the devices {}, and that axis "
                "is the steps': shard() them along another one",
                shape_text(given), out.device.name());
  out.axes = out.axes.shifted(-1);
  return out;
}

bool is_loop(const UOp& body) {
  return body.is(Op::Scan) || body.is(Op::While) || body.is(Op::Switch);
}

UOp step_variable(const UOp& count) {
  const auto most = static_cast<int64_t>(count.bounds().high);
  return variable(step_name, 0, std::max<int64_t>(most - 1, 0));
}
bool is_step_variable(const UOp& u) {
  return is_variable(u) && u.as<BufferArg>().name == step_name;
}

Loop::Loop(const UOp& made) : call(made), body(made.src(0)), functions(functions_of(body)) {
  const std::optional<Form> form = form_of(body);
  KOINE_REQUIRE(form, Value, "{}: its arg names carry, row or constant for each argument, got {}",
                op_name(body.op()), arg_text(body.arg()));
  reversed = form->reversed;
  roles = form->roles;
  if (body.is(Op::Scan)) count = body.src(1);
}

size_t Loop::carries() const {
  return static_cast<size_t>(std::count(roles.begin(), roles.end(), LoopRole::Carry));
}
std::vector<size_t> Loop::positions(LoopRole role) const {
  std::vector<size_t> out;
  for (size_t k = 0; k < roles.size(); ++k)
    if (roles[k] == role) out.push_back(k);
  return out;
}
std::vector<UOp> Loop::params(const UOp& function) const {
  std::vector<UOp> out(arguments().size());
  for (const auto& [slot, param] : params_of(function)) out[static_cast<size_t>(slot)] = param;
  return out;
}

std::vector<UOp> Loop::params() const {
  std::vector<UOp> out(arguments().size());
  for (const UOp& f : functions) {
    const std::vector<UOp> own = params(f);
    for (size_t k = 0; k < own.size(); ++k)
      if (own[k]) out[k] = own[k];
  }
  return out;
}

UOp scan_call(std::span<const LoopArgument> arguments, std::span<const UOp> values,
              const UOp& count, bool reversed) {
  Closing closed(arguments);
  const UOp step = closed.step(values);
  return closed.call(UOp::make(Op::Scan, {step, count}, roles_text(arguments, reversed)));
}

UOp while_call(std::span<const LoopArgument> arguments, const UOp& condition,
               std::span<const UOp> values) {
  Closing closed(arguments);
  const UOp step = closed.step(values);
  const std::vector<UOp> src{closed.function(std::vector<UOp>{condition}), step};
  return closed.call(UOp::make(Op::While, src, roles_text(arguments)));
}

UOp switch_call(const UOp& which, std::span<const LoopArgument> arguments,
                std::span<const std::vector<UOp>> branches) {
  std::vector<LoopArgument> all{
      {LoopRole::Constant, which, new_buffer(which.shape(), which.dtype(), {})}};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Closing closed(all);
  std::vector<UOp> src;
  for (const std::vector<UOp>& values : branches) {
    const UOp branch = closed.step(values);
    std::vector<UOp> placed;
    for (const UOp& v : branch.src())
      placed.push_back(src.empty() || !closed.devices()
                           ? v
                           : copy_to(v, src[0].src(placed.size()).node()->placement));
    src.push_back(tuple(placed));
  }
  return closed.call(UOp::make(Op::Switch, src, roles_text(all)));
}

Placement placement_of_result(const UOp& body, size_t k) {
  const UOp& step = functions_of(body).back();
  if (!step.is(Op::Tuple) || k >= step.src().size()) return {};
  Placement out = step.src(k).node()->placement;
  if (!body.is(Op::Scan)) return out;
  const std::optional<Form> form = form_of(body);
  const auto carries =
      form ? std::count(form->roles.begin(), form->roles.end(), LoopRole::Carry) : 0;
  if (static_cast<std::ptrdiff_t>(k) >= carries)
    out.axes = out.axes.shifted(1);  // behind that of the steps
  return out;
}

std::vector<UOp> loop_results(const UOp& body) {
  const std::span<const UOp> functions = functions_of(body);
  KOINE_REQUIRE(functions.back().is(Op::Tuple), Type,
                "{}: in a graph of values its functions are Tuples, got {}", op_name(body.op()),
                op_name(functions.back().op()));
  const std::optional<Form> form = form_of(body);
  const auto carries =
      form ? std::count(form->roles.begin(), form->roles.end(), LoopRole::Carry) : 0;
  std::vector<UOp> out;
  for (const UOp& v : functions.back().src()) {
    const auto slot = static_cast<int64_t>(out.size());
    const bool collected = body.is(Op::Scan) && slot >= carries;
    out.push_back(param(slot, collected ? stacked_shape(v, body.src(1)) : v.shape(), v.dtype()));
  }
  return out;
}

size_t loop_result_count(const UOp& body, size_t buffers) {
  const std::optional<Form> form = form_of(body);
  return form && form->roles.size() <= buffers ? buffers - form->roles.size() : 0;
}

std::string_view loop_name(const UOp& body) {
  return body.is(Op::Scan) ? "scan" : body.is(Op::While) ? "while_loop" : "switch";
}

void require_loop(const UOp& call) {
  const Loop loop(call);
  const bool spread = call.device().count() > 1 || lie_apart(loop.arguments());
  KOINE_REQUIRE(loop.roles.size() == loop.arguments().size(), Value,
                "{}: it says what {} arguments are, and is called with {}", loop_name(loop.body),
                loop.roles.size(), loop.arguments().size());
  for (const UOp& function : loop.functions) {
    KOINE_REQUIRE(function.is(Op::Tuple), Type,
                  "{}: in a graph of values its functions are Tuples, got {}", loop_name(loop.body),
                  op_name(function.op()));
    require_params(loop, function);
    if (spread) require_places(loop, function);
  }
  if (loop.body.is(Op::Scan))
    require_scan(loop);
  else if (loop.body.is(Op::While))
    require_while(loop);
  else
    require_switch(loop);
}

}  // namespace koine
