#include "koine/interp/host_function.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/ir/call.hpp"

namespace koine {
namespace {

struct Registered {
  std::shared_ptr<const HostFunction> function;
  int64_t generation = 0;  // how many there were of this name before
};
struct Registry {
  std::mutex mutex;
  std::map<std::string, Registered> functions;
};
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

Registered find(const std::string& name) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  if (const auto it = known.functions.find(name); it != known.functions.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [other, registered] : known.functions) names.push_back(other);
  raise(ErrorKind::Key, "function '{}' is not registered: call register_function() first; {}", name,
        names.empty() ? "none is registered" : fmt::format("known are {}", fmt::join(names, ", ")));
}

}  // namespace

template <class Byte>
void BasicHostArray<Byte>::require_dtype(DType wanted) const {
  KOINE_REQUIRE(wanted == dtype, Type, "the array holds {}, it cannot be read as {}",
                dtype_name(dtype), dtype_name(wanted));
}
template struct BasicHostArray<std::byte>;
template struct BasicHostArray<const std::byte>;

void register_function(const std::string& name, HostFunction function) {
  KOINE_REQUIRE(!name.empty() && name != copy_function && name != check_function, Value,
                "register_function: '{}' is no name for a function of yours", name);
  KOINE_REQUIRE(function, Value, "register_function: '{}' is registered without a function", name);
  Registry& known = registry();
  auto made = std::make_shared<const HostFunction>(std::move(function));
  const std::lock_guard lock(known.mutex);
  const auto [it, fresh] = known.functions.try_emplace(name);
  it->second.function.swap(made);  // the old one goes without the lock
  if (!fresh) ++it->second.generation;
}

void unregister_function(const std::string& name) {
  Registered last;  // which goes without the lock
  const std::lock_guard lock(registry().mutex);
  if (const auto it = registry().functions.find(name); it != registry().functions.end()) {
    last = std::move(it->second);
    registry().functions.erase(it);
  }
}

UOp host_function(const std::string& name, std::span<const UOp> results) {
  return UOp::make(Op::CustomFunction, results, name, find(name).generation);
}

void run_host_function(const UOp& function, std::span<const HostResult> results,
                       std::span<const HostArgument> arguments) {
  const auto& name = function.as<std::string>();
  if (name == check_function) {
    results[0].data[0] = arguments[0].data[0];
    return;
  }
  const Registered registered = find(name);
  for (const HostResult& r : results)
    std::fill_n(r.data, r.numel() * item_size(r.dtype), std::byte{0});
  const Uninterruptible whole;  // it may change what is its user's
  try {
    (*registered.function)(results, arguments);
  } catch (const Error& e) {
    raise(e.kind(), "function '{}' failed: {}", spoken_name(name), e.what());
  } catch (const std::exception& e) {
    raise(ErrorKind::Value, "function '{}' failed: {}", spoken_name(name), e.what());
  } catch (...) {
    raise(ErrorKind::Value, "function '{}' failed: it threw no std::exception", spoken_name(name));
  }
}

}  // namespace koine
