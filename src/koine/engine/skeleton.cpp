#include "koine/engine/skeleton.hpp"

#include <absl/container/inlined_vector.h>
#include <absl/hash/hash.h>
#include <absl/types/span.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"

namespace koine {
namespace {

// The last bits of a word that a node begins with: what follows them there, and behind it.
enum Form : uint64_t {
  Constant = 1,  // an id
  Typed,         // the number of a Buffer; if it is a new one, what it is
  Raw,           // the same
  Inner          // op, tag, argument, the positions of the sources
};
constexpr unsigned form_bits = 3;

// Values first, then sources in the order they are met. So there are always nodes known that wait:
// the graph was made before the last kernels ran, and these have pushed it out of the caches.
class Builder {
 public:
  Builder(const std::string& device, size_t values)
      : device_(device), positions_(shared_per_value * values) {
    // More than a few small ops have; most nodes have three words or four.
    out_.words.reserve(std::max<size_t>(128, 4 * nodes_per_value * values));
    order_.reserve(nodes_per_value * values);
    out_.buffers.reserve(4);
  }

  Skeleton build(std::span<const UOp> values) {
    word(values.size());
    for (const UOp& v : values) position(v.node());
    KOINE_INVARIANT(order_.size() == values.size(), "a request names a value twice");
    for (size_t next = 0; next < order_.size(); ++next) {
      if (next + 2 * ahead < order_.size()) fetch_whole(order_[next + 2 * ahead]);
      if (next + ahead < order_.size()) fetch_below(order_[next + ahead]);
      add(order_[next]);
    }
    out_.hash = absl::HashOf(absl::MakeConstSpan(out_.words));
    return std::move(out_);
  }

 private:
  static constexpr size_t ahead = 6;  // the time that memory takes, in nodes

  // Asks for a node with its argument, which lies before the rest.
  static void fetch_whole(const Node* n) {
    fetch_ahead(n);
    __builtin_prefetch(&n->arg);
  }
  // Asks for what a node points to.
  void fetch_below(const Node* n) const {
    if (const auto* axes = std::get_if<Ints>(&n->arg)) __builtin_prefetch(axes->data());
    if (const auto* r = std::get_if<ReduceArg>(&n->arg)) __builtin_prefetch(r->axes.data());
    for (const UOp& s : n->src()) {
      fetch_ahead(s.node());
      positions_.fetch_ahead(s.node());
    }
  }

  void word(uint64_t w) { out_.words.push_back(w); }

  // Who has one user alone is not met again.
  uint32_t position(const Node* n) {
    const auto next = static_cast<uint32_t>(order_.size());
    if (n->references.load(std::memory_order_relaxed) > 1) {
      const auto [known, fresh] = positions_.add(n, next);
      if (!fresh) return known;
    }
    order_.push_back(n);
    return next;
  }

  void add(const Node* n) {
    if (is_constant(n)) {
      word(Constant | n->id << form_bits);
    } else if (const UOp buffer = may_have_buffer(n) ? buffer_for(Borrowed(n), device_) : UOp()) {
      out_.reads_results = out_.reads_results || !is_memory(n);
      memory(buffer, n->op == Op::Binary ? Raw : Typed);
    } else {
      inner(n);
    }
  }

  static bool is_memory(const Node* n) { return n->op == Op::Buffer || n->op == Op::Binary; }
  static bool may_have_buffer(const Node* n) { return is_memory(n) || is_watched(Borrowed(n)); }

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
    std::span<const UOp> sources = n->src();
    if (n->op == Op::Function || n->op == Op::Call) {
      body(n->op, sources[0].node());
      sources = sources.subspan(1);
    }
    for (size_t i = 0; i < sources.size(); i += 2) {
      const uint64_t first = position(sources[i].node());
      word(i + 1 < sources.size() ? first | uint64_t{position(sources[i + 1].node())} << 32
                                  : first);
    }
  }

  // A body says what it does of its Params; memory that a Function captured is part of what it is.
  void body(Op of, const Node* n) {
    if (of == Op::Function && !is_constant(n)) out_.reusable = false;
    word(n->id);
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
  NodeMap<uint32_t> positions_;
  NodeNumbers buffers_;
  absl::InlinedVector<const Node*, 16> order_;  // by position
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
  return Builder(device, values.size()).build(values);
}

}  // namespace koine
