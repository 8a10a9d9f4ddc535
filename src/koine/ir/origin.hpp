#pragma once
#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace koine {

class UOp;

/// The lines of the user's program that a node comes from, as the number of a small set of them; 0
/// where none is known. Equal sets have one number for the life of the process.
using Origin = uint32_t;

/// The set of one line; `function` is what the line is in, and may be empty.
Origin origin_at(std::string_view file, int64_t line, std::string_view function);

/// Nodes that this thread makes while it lives come from there; 0 leaves it to the scope around. A
/// node that several lines ask for is one node (nodes are interned) with all their lines, up to
/// four: behind these it is only known that there are others (amendment C39).
class OriginScope {
 public:
  explicit OriginScope(Origin origin);
  ~OriginScope();
  OriginScope(const OriginScope&) = delete;
  OriginScope& operator=(const OriginScope&) = delete;

 private:
  Origin saved_;
};

/// Marks the line it stands in as that of the nodes that are made while it lives:
///
///     const Here here;
///     const Tensor y = x.log();   // messages about its nodes name this line
class Here : public OriginScope {
 public:
  explicit Here(const std::source_location& place = std::source_location::current());
};

/// The lines that have made a node; 0 where none is known.
Origin origin_of(const UOp& node);

/// Asked for the line of a node that no scope speaks for; 0 where there is none. One a process:
/// that of the language whose calls make nodes.
using OriginHook = Origin (*)();
void set_origin_hook(OriginHook hook);

/// "model.py:12 in forward", "one of model.py:12 in forward, model.py:15 and others"; empty where
/// nothing is known.
std::string origin_text(const UOp& node);

/// The lines of all values below, by file: "model.py:12, 13, 17"; at most `most` lines are named.
std::string origins_below(const UOp& root, size_t most = 4);

namespace detail {
/// Where a node that is made now comes from.
Origin present_origin();
/// The lines of both. What holds the mark of others already stays as it is.
Origin joined(Origin known, Origin added);
}  // namespace detail

}  // namespace koine
