#include "koine/tensor/recording.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// Recordings change tensors that others may know, so they follow one another.
std::mutex& recordings() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

Tensor::Recording*& Tensor::Recording::of_this_thread() {
  static thread_local Recording* recording = nullptr;
  return recording;
}

Tensor::Recording::Recording(const std::vector<Tensor>& tensors)
    : alone_(recordings()), trace_(trace_number()), start_(storage::now()) {
  for (const Tensor& t : tensors) {
    const auto& s = t.self().storage;
    const std::lock_guard lock(s->mutex);
    former_.push_back({s, s->current, s->graph, s->waiting, s->grad, s->chain, s->simple_writes,
                       s->computed_from, storage::past(s->current)});
    held_.insert(s.get());
  }
  // Equal expressions are one node: what f computes itself would be taken for a lazy value.
  const auto like = [](const UOp& value, const Placement& place) {
    return new_buffer(value.shape(), value.dtype(), place.device, place.axes);
  };
  constexpr OpMask memory = mask_of(Op::Buffer) | mask_of(Op::Binary) | mask_of(Op::Detach);
  std::unordered_map<const Storage*, const Former*> first;
  for (Former& f : former_) {
    const auto [known, fresh] = first.emplace(f.storage.get(), &f);
    if (!fresh) {
      f.named = known->second->named;
      f.given = known->second->given;
      continue;
    }
    const std::lock_guard lock(f.storage->mutex);
    const Placement& place = f.current.node()->placement;
    f.named = f.current;
    f.storage->graph = {};  // a call may find it computed from other values than these
    if (!f.storage->requires_grad && !f.current.is(Op::Buffer) &&
        (f.current.node()->ops_below & memory) != 0 && f.current.has_concrete_shape()) {
      f.named = like(f.current, place);
      History::set_current(*f.storage, f.named);
      f.storage->waiting = {};
      f.storage->computed_from = 0;
    }
    if (f.grad) f.storage->grad = f.given = like(f.grad, place);
  }
  of_this_thread() = this;
}

Tensor::Recording::~Recording() {
  of_this_thread() = nullptr;
  for (Former& f : former_) {
    Storage& s = *f.storage;
    const std::lock_guard lock(s.mutex);
    if (!(s.current == f.current)) {
      History::set_current(s, f.current);
      if (const auto now = storage::past(f.current); now && !now->successor.expired())
        storage::change_past(f.current,
                             [&](storage::Past& past) { past = f.past.value_or(storage::Past()); });
    }
    s.graph = std::move(f.graph);
    s.waiting = std::move(f.waiting);
    s.grad = std::move(f.grad);
    s.chain = f.chain;
    s.simple_writes = f.simple_writes;
    s.computed_from = f.computed_from;
  }
}

UOp Tensor::Recording::assigned(size_t k) const {
  const UOp& now = former_[k].storage->current;
  return now == former_[k].named ? UOp() : now;
}
UOp Tensor::Recording::gradient(size_t k) const { return former_[k].storage->grad; }
bool Tensor::Recording::changes_gradient(size_t k) const {
  return !(former_[k].storage->grad == former_[k].given);
}

bool Tensor::Recording::reaches_former_leaf(const UOp& value) {
  if (reaches_leaf(value)) return true;
  const NodeList below = History::below(value);
  return std::any_of(below.begin(), below.end(), [](const UOp& u) {
    const auto past = storage::past(u);
    return past && past->was_leaf;
  });
}

std::vector<UOp> Tensor::Recording::without_leaves(const std::vector<UOp>& values) const {
  const UOp all = transform_graph(sink(values), [&](const UOp& old, const UOp& node) {
    return old.is(Mark::Leaf) && old.id() > start_ ? koine::detach(node.src(0)) : node;
  });
  return {all.src().begin(), all.src().end()};
}

void Tensor::Recording::require_allowed(const Storage& storage, std::string_view action) {
  const Recording* now = of_this_thread();
  if (now != nullptr && now->trace_ == trace_number() && now->held_.contains(&storage)) return;
  require_made_in(storage.trace, action);
}
void Tensor::Recording::require_recorded(std::string_view action) {
  const Recording* now = of_this_thread();
  if (now == nullptr || now->trace_ != trace_number()) require_made_in(0, action);
}
void Tensor::Recording::require_known_history(const NodeList& below) {
  const Recording* now = of_this_thread();
  if (now == nullptr) return;
  for (const UOp& u : below)
    KOINE_REQUIRE(!u.is(Op::Buffer) || std::none_of(now->former_.begin(), now->former_.end(),
                                                    [&](const Former& f) { return f.given == u; }),
                  Value,
                  "a captured function differentiates a gradient of shape {} that was there "
                  "before: detach() it, or zero_grad() first",
                  shape_text(u));
}
void Tensor::Recording::ask_for_gradients() {
  if (Recording* now = of_this_thread()) now->asks_ = true;
}

Tensor Tensor::Recording::stand_in(const Tensor& like, const UOp& value) {
  Tensor out(value);
  const Impl& i = like.self();
  const auto& own = out.self().storage;
  if (i.view || !i.storage->requires_grad) return out;
  own->requires_grad = true;
  own->grad = i.storage->grad;
  History::add_leaf(own);
  return out;
}

std::string Tensor::Recording::state_of(const std::vector<Tensor>& tensors) {
  std::string out;
  std::unordered_map<const Storage*, uint32_t> first;
  for (const Tensor& t : tensors) {
    const Impl& i = t.self();
    const auto number = first.emplace(i.storage.get(), static_cast<uint32_t>(first.size()));
    char bytes[sizeof(uint32_t)];
    std::memcpy(bytes, &number.first->second, sizeof bytes);
    out.append(bytes, sizeof bytes);
    const bool computed = !i.storage->requires_grad && has_history(t);
    out += static_cast<char>((i.view ? 1 : 0) | (i.storage->requires_grad ? 2 : 0) |
                             (i.storage->grad ? 4 : 0) | (computed ? 8 : 0));
  }
  return out;
}

UOp Tensor::Recording::copied(const UOp& memory) {
  return koine::realize({History::leaf_of(memory)})[0];
}
void Tensor::Recording::give(const Tensor& tensor, const UOp& memory, const UOp& value) {
  const auto& s = tensor.self().storage;
  if (value) History::forget(memory, value);
  const std::lock_guard lock(s->mutex);
  History::replace(s, memory);
  s->waiting = {};
}
void Tensor::Recording::give_gradient(const Tensor& tensor, UOp gradient) {
  tensor.self().storage->grad = std::move(gradient);
}

}  // namespace koine
