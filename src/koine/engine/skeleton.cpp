#include "koine/engine/skeleton.hpp"

#include <absl/container/inlined_vector.h>
#include <absl/hash/hash.h>
#include <absl/types/span.h>

#include <string>

#include "koine/base/hash.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"

namespace koine {
namespace {

// The last bits of a word that something begins with: what follows them there, and behind it.
enum Form : uint64_t {
  Constant = 1,  // an id
  Typed,         // the number of a Buffer; if it is a new one, what it is
  Raw,           // the same
  Inner,         // op, tag, argument, the positions of the sources
  Roots          // how many; their positions
};
constexpr unsigned form_bits = 3;

class Builder {
 public:
  explicit Builder(const std::string& device) : device_(device) {
    out_.words.reserve(128);  // more than a few small ops have
    out_.buffers.reserve(4);
  }

  Skeleton build(std::span<const UOp> values) {
    absl::InlinedVector<uint32_t, 8> roots;
    for (const UOp& v : values) {
      walk(v.node());
      roots.push_back(known_.back());
      known_.clear();
    }
    word(Roots | uint64_t{roots.size()} << form_bits);
    positions(roots);
    out_.hash = absl::HashOf(absl::MakeConstSpan(out_.words));
    return std::move(out_);
  }

 private:
  struct Open {
    const Node* node;
    uint32_t next;
  };

  void word(uint64_t w) { out_.words.push_back(w); }
  void positions(std::span<const uint32_t> list) {
    for (size_t i = 0; i < list.size(); i += 2)
      word(list[i] | (i + 1 < list.size() ? uint64_t{list[i + 1]} << 32 : 0));
  }

  // A position is found again where a second user has the node too.
  uint32_t number(const Node* n) {
    if (n->references.load(std::memory_order_relaxed) > 1) positions_[n] = next_;
    return next_++;
  }
  const uint32_t* position(const Node* n) const {
    return n->references.load(std::memory_order_relaxed) > 1 ? positions_.find(n) : nullptr;
  }

  // Sources first; the position of each that is known, or has become so, waits in `known_` for the
  // node that it is a source of.
  void walk(const Node* root) {
    enter(root);
    while (!open_.empty()) {
      Open& top = open_.back();
      const Node* n = top.node;
      if (top.next < n->source_count) {
        const Node* source = n->sources()[top.next++].node();
        if (top.next == 1 && has_body(n))
          body(n->op, source);
        else
          enter(source);
        continue;
      }
      open_.pop_back();
      inner(n);
    }
  }

  void enter(const Node* n) {
    if (const uint32_t* known = position(n)) {
      known_.push_back(*known);
    } else if (is_constant(n)) {
      itself(n);
    } else if (const UOp buffer = may_have_buffer(n) ? buffer_for(Borrowed(n), device_) : UOp()) {
      known_.push_back(number(n));
      out_.reads_results = out_.reads_results || !is_memory(n);
      memory(buffer, n->op == Op::Binary ? Raw : Typed);
    } else {
      open_.push_back({n, 0});
      // The graph was made before the last kernels ran, and these have pushed it out of the caches.
      fetch_ahead(n->src());
    }
  }

  static bool is_memory(const Node* n) { return n->op == Op::Buffer || n->op == Op::Binary; }
  static bool may_have_buffer(const Node* n) { return is_memory(n) || is_watched(Borrowed(n)); }

  static bool has_body(const Node* n) { return n->op == Op::Function || n->op == Op::Call; }

  // A body says what it does of its Params; memory that a Function captured is part of what it is.
  void body(Op of, const Node* n) {
    if (of == Op::Function && !is_constant(n)) out_.reusable = false;
    if (const uint32_t* known = position(n))
      known_.push_back(*known);
    else
      itself(n);
  }

  void itself(const Node* n) {
    known_.push_back(number(n));
    word(Constant | n->id << form_bits);
  }

  void memory(const UOp& buffer, Form form) {
    const auto [number, fresh] = buffers_.add(buffer.node());
    word(form | uint64_t{number} << form_bits);
    if (!fresh) return;
    const BufferArg& arg = buffer.as<BufferArg>();
    word(static_cast<uint64_t>(arg.dtype) * 4 + static_cast<uint64_t>(arg.space));
    word(arg.device ? hash_of(arg.device) : 0);
    word(arg.axes.bits());
    word(buffer.src(0).id());
    out_.buffers.push_back(buffer);
  }

  // Devices are interned: equal ones have one name.
  static uint64_t hash_of(Device d) { return reinterpret_cast<uintptr_t>(&d.name()); }

  void inner(const Node* n) {
    const int64_t tag = n->tag;
    word(Inner | uint64_t{tag != 0} << form_bits | uint64_t{n->arg.index()} << 8 |
         static_cast<uint64_t>(n->op) << 16 | uint64_t{n->source_count} << 32);
    if (tag != 0) word(static_cast<uint64_t>(tag));
    std::visit([this](const auto& arg) { argument(arg); }, n->arg);
    const size_t first = known_.size() - n->source_count;
    positions({known_.data() + first, n->source_count});
    known_.resize(first);
    known_.push_back(number(n));
  }

  void argument(std::monostate) {}
  void argument(int64_t v) { word(static_cast<uint64_t>(v)); }
  void argument(DType v) { word(static_cast<uint64_t>(v)); }
  void argument(const ConstArg&) {}  // a Const is itself
  void argument(const BufferArg& v) {
    word(static_cast<uint64_t>(v.slot));
    word(static_cast<uint64_t>(v.dtype) * 4 + static_cast<uint64_t>(v.space));
    word(static_cast<uint64_t>(v.kind));
    word(v.device ? hash_of(v.device) : 0);
    word(v.axes.bits());
    text(v.name);
  }
  void argument(const RangeArg& v) {
    word(static_cast<uint64_t>(v.id));
    word(static_cast<uint64_t>(v.type));
  }
  void argument(const Ints& v) {
    word(v.size());
    for (const int64_t i : v) word(static_cast<uint64_t>(i));
  }
  void argument(const ReduceArg& v) {
    word(static_cast<uint64_t>(v.op) * 2 + (v.goes_on ? 1 : 0));
    argument(v.axes);
    text(v.core);
  }
  void argument(const WmmaArg& v) {
    text(v.core);
    argument(v.a);
    argument(v.b);
    argument(v.accumulator);
  }
  void argument(const LoadArg& v) {
    word(v.device ? hash_of(v.device) : 0);
    word(static_cast<uint64_t>(v.space));
    argument(v.axes);
    text(v.reason);
  }
  void argument(const std::string& v) { text(v); }
  void argument(const CodeArg& v) {
    text(v.text);
    word(static_cast<uint64_t>(v.dtype));
  }
  // The number makes it a node of its own, which its position says.
  void argument(const MarkArg& v) { word(static_cast<uint64_t>(v.mark)); }
  void text(std::string_view v) {
    word(v.size());
    for (size_t i = 0; i < v.size(); i += 8) {
      uint64_t part = 0;
      std::memcpy(&part, v.data() + i, std::min<size_t>(8, v.size() - i));
      word(part);
    }
  }

  const std::string& device_;
  Skeleton out_;
  uint32_t next_ = 0;  // position
  NodeMap<uint32_t> positions_;
  NodeNumbers buffers_;
  absl::InlinedVector<Open, 16> open_;
  absl::InlinedVector<uint32_t, 16> known_;
};

}  // namespace

UOp buffer_for(const UOp& node, const std::string& device) {
  if (node.is(Op::Buffer)) return node;
  UOp buffer = storage::result(node);
  if (node.is(Op::Binary) && !(buffer && buffer.device().name() == device)) {
    buffer =
        buffer_from_host(node.shape(), DType::UInt8, device, node.as<std::string>().data(), -1);
    storage::set_result(node, buffer);
  }
  return buffer;
}

Skeleton skeleton_of(std::span<const UOp> values, const std::string& device) {
  return Builder(device).build(values);
}

}  // namespace koine
