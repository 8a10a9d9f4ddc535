#include "koine/engine/step.hpp"

#include <algorithm>
#include <functional>

#include "koine/base/error.hpp"
#include "koine/engine/promises.hpp"
#include "koine/engine/storage.hpp"
#include "koine/engine/updates.hpp"
#include "koine/engine/variables.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/function.hpp"

namespace koine {

namespace {

// What a step writes that nobody named is memory of its own, filled anew each time.
std::pair<std::vector<UOp>, std::vector<UOp>> with_own_memory(const std::vector<UOp>& values) {
  if (std::none_of(values.begin(), values.end(), has_effects)) return {values, {}};
  Lasting lasts;
  const Updates updates(values, std::ref(lasts), false);
  return {updates.values(), updates.copies()};
}

}  // namespace

CapturedStep::CapturedStep(const std::vector<UOp>& values, const VariableValues& variables)
    : CapturedStep(with_own_memory(values), values.size(), variables) {}

CapturedStep::CapturedStep(std::pair<std::vector<UOp>, std::vector<UOp>> values_and_copies,
                           size_t outputs, const VariableValues& variables)
    : CapturedStep(values_and_copies.first, variables, Checks::EachRun) {
  outputs_.resize(outputs);
  copies_ = written_ = std::move(values_and_copies.second);
  named_ = arguments_;
  // Of an output only what it is like counts: memory of the largest size is not held for that.
  for (UOp& n : named_)
    if (!n.has_concrete_shape() && std::find(made_.begin(), made_.end(), n) != made_.end())
      n = new_buffer(n.shape(), n.dtype(), n.device(), n.node()->placement.axes);
}

CapturedStep::CapturedStep(const std::vector<UOp>& values, const VariableValues& variables,
                           Checks checks)
    : variables_(variables) {
  if (values.empty()) return;
  if (is_tracing())
    require_no_trace(fmt::format("realizing a tensor of shape {}", shape_text(values[0])));
  NodeNumbers numbers;
  absl::InlinedVector<size_t, 8> position;
  values_.reserve(values.size());
  for (const UOp& v : values) {
    const auto [number, fresh] = numbers.add(v.node());
    if (fresh) values_.push_back(v);
    position.push_back(number);
  }
  const bool symbolic =
      std::any_of(values_.begin(), values_.end(), [](const UOp& v) { return v.node()->varies; });
  if (symbolic) variables_ = values_of_variables(values_, variables);
  skeleton_ = skeleton_of(values_, device_of(values_[0]));
  prepared_ = prepare(values_, skeleton_, checks == Checks::EachRun);
  made_.reserve(prepared_->outputs.size());
  for (const Prepared::Output& o : prepared_->outputs) {
    const bool made = o.kind == Prepared::Output::Kind::Made;
    made_.push_back(made ? storage::make_buffer(o.shape, o.dtype, o.place)
                         : skeleton_.buffers[o.buffer]);
    KOINE_REQUIRE(made || storage::memory(made_.back()), Value,
                  "buffer {} has no memory: it was never computed",
                  made_.back().as<BufferArg>().slot);
  }
  outputs_.reserve(position.size());
  for (const size_t p : position) outputs_.push_back(made_[p]);
  arguments_ = arguments_of(prepared_->program);
  submission_ = submission_of(prepared_->program);
}

CapturedStep::Nodes CapturedStep::arguments_of(const Prepared::Program& program) const {
  using Kind = Prepared::Argument::Kind;
  Nodes out;
  out.reserve(program.arguments.size());
  for (const Prepared::Argument& a : program.arguments)
    out.push_back(a.kind == Kind::Given    ? skeleton_.buffers[a.number]
                  : a.kind == Kind::Output ? made_[a.number]
                                           : a.literal);
  return out;
}

std::optional<Submission> CapturedStep::submission_of(const Prepared::Program& program) const {
  if (!program.executable) return std::nullopt;
  if (program.literals.empty())
    return std::optional<Submission>(std::in_place, program.executable, arguments_, variables_);
  VariableValues bound = program.literals;
  bound.insert(variables_.begin(), variables_.end());
  return std::optional<Submission>(std::in_place, program.executable, arguments_, bound);
}

void CapturedStep::finish_what_is_begun() {
  if (!submission_) return;
  std::vector<bool> given;
  for (const Prepared::Argument& a : prepared_->program.arguments)
    given.push_back(a.kind == Prepared::Argument::Kind::Given);
  submission_->finish_once_stored(given);
}

bool CapturedStep::try_run() { return !submission_ || submission_->run(); }

void CapturedStep::run() {
  if (try_run()) return;
  Substitution now;
  for (size_t k = 0; k < named_.size(); ++k)
    if (!(named_[k] == arguments_[k])) now.emplace(named_[k], arguments_[k]);
  const UOp all = substitute(sink(values_), now);
  report_broken(
      promises_of(with_results({all.src().begin(), all.src().end()}, device_of(values_[0]))),
      variables_);
}

std::vector<size_t> CapturedStep::places_of(const UOp& buffer) const {
  std::vector<size_t> out;
  for (size_t k = 0; k < arguments_.size(); ++k)
    if (arguments_[k] == buffer) out.push_back(k);
  return out;
}

// With the Variables of now as numbers.
UOp CapturedStep::present_size(const UOp& size) const {
  if (size.is(Op::Const)) return size;
  if (is_variable(size)) return index_const(variables_.at(size.as<BufferArg>().name));
  Substitution numbers;
  for (const UOp& v : variables_below(size)) numbers.emplace(v, present_size(v));
  return simplify_index(substitute(size, numbers));
}
UOp CapturedStep::present_shape(const UOp& shape) const {
  const auto is_known = [](const UOp& size) { return size.is(Op::Const); };
  if (std::all_of(shape.src().begin(), shape.src().end(), is_known)) return shape;
  std::vector<UOp> sizes;
  for (const UOp& size : shape.src()) sizes.push_back(present_size(size));
  return stack(sizes);
}

void CapturedStep::put(size_t place, const UOp& by) {
  const UOp& buffer = named_[place];
  const auto fits = [&] {
    return by.shape() == buffer.shape() ||
           (!buffer.has_concrete_shape() && by.shape() == present_shape(buffer.shape()));
  };
  KOINE_REQUIRE(
      by.is(Op::Buffer) && by.dtype() == buffer.dtype() && by.device() == buffer.device() && fits(),
      Value, "a captured step cannot use {} of shape {} in place of {} of shape {}",
      dtype_name(by.dtype()), shape_text(by), dtype_name(buffer.dtype()), shape_text(buffer));
  arguments_[place] = by;
  if (submission_ && place < submission_->arguments()) submission_->set_argument(place, by);
}

void CapturedStep::replace(const UOp& buffer, const UOp& by) {
  const std::vector<size_t> places = places_of(buffer);
  KOINE_REQUIRE(!places.empty(), Value, "a captured step does not use the buffer of slot {}",
                buffer.as<BufferArg>().slot);
  for (const size_t place : places) put(place, by);
  for (UOp& o : outputs_)
    if (o == buffer) o = by;
}

void CapturedStep::renew_outputs() {
  for (size_t k = 0; k < values_.size(); ++k) {
    if (prepared_->outputs[k].kind != Prepared::Output::Kind::Made) continue;
    const Prepared::Output& o = prepared_->outputs[k];
    renew(made_[k], storage::make_buffer(present_shape(o.shape), o.dtype, o.place));
  }
  for (size_t k = 0; k < copies_.size(); ++k) {
    const UOp& copy = copies_[k];
    renew(written_[k],
          storage::make_buffer(present_shape(copy.shape()), copy.dtype(), copy.node()->placement));
  }
}

void CapturedStep::renew(UOp& buffer, const UOp& fresh) {
  for (size_t place = 0; place < arguments_.size(); ++place)
    if (arguments_[place] == buffer) put(place, fresh);
  for (UOp& output : outputs_)
    if (output == buffer) output = fresh;
  buffer = fresh;
}

void CapturedStep::bind(const std::string& variable, int64_t value) {
  variables_[variable] = value;
  if (submission_) submission_->set_variable(variable, value);
}

UOp CapturedStep::host_program() const {
  return submission_ ? submission_->schedule() : UOp::make(Op::Linear, {});
}

}  // namespace koine
