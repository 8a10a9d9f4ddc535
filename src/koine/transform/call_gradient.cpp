#include "koine/transform/call_gradient.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// Rules of one kind by the names of Calls.
template <class Rule>
class Registry {
 public:
  static Registry& instance() {
    static auto& only = *new Registry;
    return only;
  }
  void put(const std::string& name, Rule rule) {
    auto made = std::make_shared<const Rule>(std::move(rule));
    const std::lock_guard lock(mutex_);
    rules_[name].swap(made);  // the old one goes without the lock
  }
  void drop(const std::string& name) {
    std::shared_ptr<const Rule> last;  // which goes without the lock
    const std::lock_guard lock(mutex_);
    if (const auto it = rules_.find(name); it != rules_.end()) {
      last = std::move(it->second);
      rules_.erase(it);
    }
  }
  std::shared_ptr<const Rule> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto it = rules_.find(name);
    return it == rules_.end() ? nullptr : it->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Rule>> rules_;
};

std::string arguments_text(std::span<const UOp> arguments) {
  std::string out;
  for (const UOp& a : arguments)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", dtype_name(a.dtype()), shape_text(a));
  return out;
}

}  // namespace

void register_call_gradient(const std::string& name, CallGradientRule rule) {
  KOINE_REQUIRE(!name.empty(), Value,
                "register_gradient: a gradient needs the name of what it is of");
  KOINE_REQUIRE(rule, Value, "register_gradient: '{}' is given no rule", name);
  Registry<CallGradientRule>::instance().put(name, std::move(rule));
}

void register_call_examples(const std::string& name, CallExamplesRule rule) {
  KOINE_REQUIRE(!name.empty(), Value, "register_vmap: a rule needs the name of what it is of");
  KOINE_REQUIRE(rule, Value, "register_vmap: '{}' is given no rule", name);
  Registry<CallExamplesRule>::instance().put(name, std::move(rule));
}

void unregister_call_rules(const std::string& name) {
  Registry<CallGradientRule>::instance().drop(name);
  Registry<CallExamplesRule>::instance().drop(name);
}

std::vector<UOp> call_for_examples(const UOp& call, const std::vector<UOp>& carried,
                                   const UOp& examples) {
  const std::string name = call_name(call);
  const auto rule = Registry<CallExamplesRule>::instance().find(registered_name(call));
  KOINE_REQUIRE(rule, Type,
                "vmap: '{}' is opaque, so it cannot be run for many examples at once: "
                "register_vmap(\"{}\", ...) says how",
                name, name);
  CallExamples given{{}, {}, examples};
  for (size_t k = 0; k < carried.size(); ++k) {
    given.arguments.push_back(carried[k] ? carried[k] : call.src(k + 1));
    given.mapped.push_back(bool(carried[k]));
  }
  std::vector<UOp> out = with_stand_ins(given.arguments, [&](const std::vector<UOp>& all) {
    return (*rule)({all, given.mapped, given.examples});
  });
  const size_t results = results_of(call.src(0)).size();
  KOINE_REQUIRE(out.size() == results, Value, "vmap: the rule of '{}' gives {} values, for {}",
                name, out.size(), results);
  for (size_t k = 0; k < results; ++k) {
    const UOp one = get_tuple(call, static_cast<int64_t>(k));
    KOINE_REQUIRE(
        out[k] && out[k].dtype() == one.dtype() && out[k].shape() == shape_for_each(one, examples),
        Value,
        "vmap: the rule of '{}' gives {} of shape {} for result {}, which is {} of shape "
        "{} in each of {} examples",
        name, out[k] ? dtype_name(out[k].dtype()) : "nothing", out[k] ? shape_text(out[k]) : "()",
        k, dtype_name(one.dtype()), shape_text(one), dim_text(examples));
  }
  return out;
}

std::vector<UOp> call_vjp(const UOp& call, const std::vector<UOp>& cotangents) {
  const std::string name = call_name(call);
  const std::string_view what = call.src(0).is(Op::Sink) ? "kernel" : "function";
  const auto arguments = call.src().subspan(1);
  const auto rule = Registry<CallGradientRule>::instance().find(registered_name(call));
  KOINE_REQUIRE(rule, Type,
                "gradient: the {} '{}' of {} has no gradient: register_gradient(\"{}\", ...) says "
                "it, or detach() its arguments",
                what, name, arguments_text(arguments), name);
  CallCotangents given{{arguments.begin(), arguments.end()}, {}, {}};
  for (size_t k = 0; k < results_of(call.src(0)).size(); ++k) {
    given.results.push_back(get_tuple(call, static_cast<int64_t>(k)));
    const bool known = k < cotangents.size() && cotangents[k];
    given.cotangents.push_back(known ? cotangents[k] : filled_like(given.results.back(), 0));
  }
  std::vector<UOp> out = with_stand_ins(
      given.arguments, given.results, given.cotangents, [&](auto all, auto results, auto moved) {
        return (*rule)({std::move(all), std::move(results), std::move(moved)});
      });
  KOINE_REQUIRE(out.size() == arguments.size(), Value,
                "gradient: the gradient of the {} '{}' gives {} values, for {} arguments", what,
                name, out.size(), arguments.size());
  for (size_t k = 0; k < out.size(); ++k)
    KOINE_REQUIRE(
        !out[k] ||
            (out[k].dtype() == arguments[k].dtype() && out[k].shape() == arguments[k].shape()),
        Value,
        "gradient: the gradient of the {} '{}' gives {} of shape {} for argument {}, {} of "
        "shape {}",
        what, name, dtype_name(out[k].dtype()), shape_text(out[k]), k,
        dtype_name(arguments[k].dtype()), shape_text(arguments[k]));
  return out;
}

}  // namespace koine
