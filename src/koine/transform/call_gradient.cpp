#include "koine/transform/call_gradient.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const CallGradientRule>> rules;
};
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

std::shared_ptr<const CallGradientRule> rule_of(const std::string& name) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const auto it = known.rules.find(name);
  return it == known.rules.end() ? nullptr : it->second;
}

std::string arguments_text(std::span<const UOp> arguments) {
  std::string out;
  for (const UOp& a : arguments)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", dtype_name(a.dtype()), shape_text(a));
  return out;
}

UOp zeros(const UOp& like) {
  const UOp zero = constant_int(like.dtype(), 0);
  const Ints ones(like.rank(), 1);
  return like.is_scalar() ? zero : expand(reshape(zero, shape_of(ones)), like.shape());
}

}  // namespace

void register_call_gradient(const std::string& name, CallGradientRule rule) {
  KOINE_REQUIRE(!name.empty(), Value,
                "register_gradient: a gradient needs the name of what it is of");
  KOINE_REQUIRE(rule, Value, "register_gradient: '{}' is given no rule", name);
  Registry& known = registry();
  auto made = std::make_shared<const CallGradientRule>(std::move(rule));
  const std::lock_guard lock(known.mutex);
  known.rules[name].swap(made);  // the old one goes without the lock
}

std::vector<UOp> call_vjp(const UOp& call, const std::vector<UOp>& cotangents) {
  const std::string name = call_name(call);
  const std::string_view what = call.src(0).is(Op::Sink) ? "kernel" : "function";
  const auto arguments = call.src().subspan(1);
  const auto rule = rule_of(name);
  KOINE_REQUIRE(rule, Type,
                "gradient: the {} '{}' of {} has no gradient: register_gradient(\"{}\", ...) says "
                "it, or detach() its arguments",
                what, name, arguments_text(arguments), name);
  CallCotangents given{{arguments.begin(), arguments.end()}, {}, {}};
  for (size_t k = 0; k < results_of(call.src(0)).size(); ++k) {
    given.results.push_back(get_tuple(call, static_cast<int64_t>(k)));
    const bool known = k < cotangents.size() && cotangents[k];
    given.cotangents.push_back(known ? cotangents[k] : zeros(given.results.back()));
  }
  std::vector<UOp> out = (*rule)(given);
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
