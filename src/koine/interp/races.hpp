#pragma once
#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Whose turn it is: a thread of a group, behind so many barriers.
struct Moment {
  int64_t group = 0, thread = 0, barriers = 0;
};
enum class Touch : uint8_t { Read, Write, Atomic };

/// Who touched which element of memory. Two threads race for one where one of them writes and
/// nothing orders them: they are of two groups, or stand between the same barriers.
class Races {
 public:
  /// Throws InternalError naming both threads where this touch races with an earlier one.
  void note(const UOp& buffer, int64_t element, const Moment& now, Touch touch, const UOp& access) {
    Past& past = touched_[{buffer.node(), element}];
    for (const Touch earlier : {Touch::Write, Touch::Read, Touch::Atomic}) {
      const Touched& by = past.by[static_cast<size_t>(earlier)];
      const bool harmless = earlier == touch && touch != Touch::Write;
      if (harmless || by.count == 0) continue;
      const bool meets =
          by.groups || by.first.group != now.group ||
          (by.first.barriers == now.barriers && (by.count > 1 || by.first.thread != now.thread));
      KOINE_INVARIANT(!meets,
                      "a race for element {} of memory: thread {} of group {} and thread {} of "
                      "group {}, one of which writes; no barrier is between them:\n{}",
                      element, by.first.thread, by.first.group, now.thread, now.group,
                      to_text(access));
    }
    Touched& mine = past.by[static_cast<size_t>(touch)];
    if (mine.count == 0 ||
        (!mine.groups && mine.first.group == now.group && mine.first.barriers < now.barriers)) {
      mine = {now, 1, false};
    } else {
      mine.groups = mine.groups || mine.first.group != now.group;
      if (mine.first.thread != now.thread || mine.first.group != now.group) mine.count = 2;
    }
  }

 private:
  struct Touched {
    Moment first;         // between the latest barriers
    int count = 0;        // of threads; 2: several
    bool groups = false;  // several
  };
  struct Past {
    Touched by[3];
  };
  absl::flat_hash_map<std::pair<const Node*, int64_t>, Past> touched_;
};

}  // namespace koine
