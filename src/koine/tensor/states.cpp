// Values that go from step to step: they are computed with what reads them, once.
#include <algorithm>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "koine/base/interrupt.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

// One mutex; it is taken within that of a storage.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<void>> storages;
  size_t most = 64;  // before those that are gone are looked for
};
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

bool is_spread_number(UOp value) {
  while (is_view(value.op())) value = UOp(value.src(0));
  return value.is(Op::Const);
}

}  // namespace

void Tensor::History::add_state(const std::shared_ptr<Storage>& storage) {
  if (storage->listed) return;
  storage->listed = true;
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  if (known.storages.size() >= known.most) {
    std::erase_if(known.storages, [](const std::weak_ptr<void>& weak) { return weak.expired(); });
    known.most = std::max(size_t{64}, 2 * known.storages.size());
  }
  known.storages.push_back(storage);
}

Tensor::History::Storages Tensor::History::states() {
  std::vector<std::weak_ptr<void>> listed;
  {
    const std::lock_guard lock(registry().mutex);
    listed = registry().storages;
  }
  Storages out, gone;
  for (const auto& weak : listed) {
    auto s = std::static_pointer_cast<Storage>(weak.lock());
    if (!s) continue;
    const std::lock_guard lock(s->mutex);
    // A chain of writes is computed as one in any case.
    const bool waits = s->waiting.before && s->chain == Storage::Chain::None;
    const bool state = (s->current.is(Op::Detach) || waits) && !s->current.is(Op::Buffer) &&
                       !realized_buffer(s->current);
    s->listed = state;
    (state ? out : gone).push_back(std::move(s));
  }
  if (out.size() < listed.size()) {
    const std::lock_guard lock(registry().mutex);
    std::unordered_map<const void*, int> left;  // one that is listed again since stays
    for (const auto& s : gone) ++left[s.get()];
    std::erase_if(registry().storages, [&](const std::weak_ptr<void>& weak) {
      const auto s = weak.lock();
      const auto it = left.find(s.get());
      return !s || (it != left.end() && it->second-- > 0);
    });
  }
  return out;
}

Tensor::History::States Tensor::History::states_below(const std::vector<UOp>& values,
                                                      const Storages& but) {
  States out;
  const Storages held = states();
  if (held.empty()) return out;
  std::unordered_map<uint64_t, std::shared_ptr<Storage>> now, before;  // by id of the value
  for (const auto& s : held) {
    if (std::find(but.begin(), but.end(), s) != but.end()) continue;
    const std::lock_guard lock(s->mutex);
    now.emplace(s->current.id(), s);
    if (!s->waiting.ids.empty()) before.emplace(s->waiting.ids.back(), s);
  }
  if (now.empty()) return out;
  const NodeList order =
      toposort(sink(values), [](const UOp& u) { return !u.is(Op::Buffer) && !storage::result(u); });
  const auto add = [&](const std::shared_ptr<Storage>& s, const UOp& value) {
    if (is_spread_number(value) || !value.has_concrete_shape()) return;
    if (std::find(values.begin(), values.end(), value) != values.end()) return;
    out.storages.push_back(s);
    out.values.push_back(value);
  };
  std::unordered_set<const Storage*> known;
  for (const UOp& u : order)
    if (const auto it = now.find(u.id()); it != now.end()) {
      known.insert(it->second.get());
      add(it->second, u);
    }
  for (const UOp& u : order)
    if (const auto it = before.find(u.id());
        it != before.end() && !now.contains(u.id()) && !known.contains(it->second.get()))
      add(it->second, u);
  return out;
}

// What was assigned last stands on the memory of what was before it, as if somebody had looked at
// that.
void Tensor::History::settle_former(Storage& s, const UOp& former, const UOp& buffer) {
  const std::lock_guard lock(s.mutex);
  if (s.chain != Storage::Chain::None || s.waiting.ids.empty() ||
      s.waiting.ids.back() != former.id())
    return;
  const int writes = s.simple_writes;
  // What has a result stays the node that has it, whatever it was computed from.
  Substitution known{{former, buffer}};
  toposort(s.current, [&](const UOp& u) {
    const bool has = bool(storage::result(u));
    if (has) known.emplace(u, u);
    return !has;
  });
  set_current(s, substitute(s.current, known));
  s.simple_writes = writes;
  s.waiting = {buffer, {buffer.id()}, {}};
  forget(buffer, former);
}

void Tensor::History::compute_with_states(
    const std::vector<UOp>& values, const Storages& storages, const Storages& leaves,
    size_t targets,
    const std::function<void(std::span<const UOp> buffers, const Leading&)>& settled) {
  States states = states_below(values, storages);
  while (true) {
    std::vector<UOp> all = values;
    all.insert(all.end(), states.values.begin(), states.values.end());
    Leading leading{std::span(all).subspan(targets), leaves};
    const auto before_run = [&](bool reads_results) { leading.walk(reads_results); };
    std::vector<UOp> made;
    try {
      made = koine::realize(all, {}, std::ref(before_run));
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (states.values.empty()) throw;
      states = {};  // one may fail in a part that nobody asked for, or take too much memory
      continue;
    }
    settled(std::span(made).first(values.size()), leading);
    settle_states(states, std::span(made).subspan(values.size()), leading);
    return;
  }
}

void Tensor::History::settle_states(const States& states, std::span<const UOp> buffers,
                                    const Leading& leading) {
  settle(states.storages, states.values, buffers, Graphs::Keep, leading);
  for (size_t k = 0; k < buffers.size(); ++k) {
    if (!leading.contains(states.values[k]))
      settle_former(*states.storages[k], states.values[k], buffers[k]);
    if (storage::has_past(buffers[k]))
      storage::change_past(buffers[k], [](storage::Past& past) { past.computed_along = true; });
  }
}

void Tensor::History::compute_states(const std::vector<UOp>& values) {
  const States states = states_below({sink(values)}, {});
  if (states.values.empty()) return;
  compute_with_states(states.values, states.storages, leaves(), 0,
                      [&](std::span<const UOp> buffers, const Leading& leading) {
                        settle_states(states, buffers, leading);
                      });
}

}  // namespace koine
