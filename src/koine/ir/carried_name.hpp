#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "koine/ir/arg.hpp"

// Names of functions and rules of the user's, which nodes carry as their arg: what is known by such
// a name is needed as long as a node carries it.
namespace koine {

/// Has `gone` called once nobody wants a name any more (`let_go_name`) and no node carries it.
/// Before any node does; no two names are equal.
void keep_name(const std::string& name, std::function<void()> gone);
void let_go_name(const std::string& name);

namespace detail {
extern std::atomic<int64_t> kept_names;
void add_carrier(const std::string& name);
void drop_carrier(const std::string& name);

/// The name that an arg may be, where any name is kept.
inline const std::string* name_in(const Arg& arg) {
  return kept_names.load(std::memory_order_relaxed) == 0 ? nullptr : std::get_if<std::string>(&arg);
}
}  // namespace detail

}  // namespace koine
