#include "koine/engine/skeleton.hpp"

#include <string>

#include "koine/base/hash.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"

namespace koine {
namespace {

// What a word sequence begins with.
enum Form : uint64_t { Constant = 1, Memory, Raw, Inner, Roots };

class Builder {
 public:
  explicit Builder(const std::string& device) : device_(device) {}

  Skeleton build(std::span<const UOp> values) {
    for (const UOp& v : values) walk(v.node());
    word(Roots);
    for (const UOp& v : values) word(positions_.find(v.node()));
    uint64_t hash = out_.words.size();
    for (const uint64_t w : out_.words) hash = hash_mix(hash, w);
    out_.hash = hash;
    return std::move(out_);
  }

 private:
  void word(uint64_t w) { out_.words.push_back(w); }

  // Without memory below, a node is what it is: ids are never given twice.
  static bool is_constant(const Node* n) {
    return (n->ops_below & (mask_of(Op::Buffer) | mask_of(Op::Binary))) == 0;
  }

  void walk(const Node* root) {
    struct Open {
      const Node* node;
      uint32_t next;
    };
    std::vector<Open> stack;
    auto enter = [&](const Node* n) {
      if (positions_.contains(n)) return;
      if (is_constant(n)) {
        itself(n);
      } else if (const UOp buffer = buffer_for(Borrowed(n), device_)) {
        positions_.add(n);
        memory(buffer, n->op == Op::Binary ? Raw : Memory);
      } else {
        stack.push_back({n, 0});
      }
    };
    enter(root);
    while (!stack.empty()) {
      Open& top = stack.back();
      if (top.next < top.node->source_count) {
        const Node* source = top.node->sources()[top.next++].node();
        if (top.next == 1 && has_body(top.node))
          body(top.node->op, source);
        else
          enter(source);
        continue;
      }
      const Node* n = top.node;
      stack.pop_back();
      if (!positions_.contains(n)) inner(n);
    }
  }

  static bool has_body(const Node* n) { return n->op == Op::Function || n->op == Op::Call; }

  // A body says what it does of its Params; memory that a Function captured is part of what it is.
  void body(Op of, const Node* n) {
    if (of == Op::Function && !is_constant(n)) out_.reusable = false;
    if (!positions_.contains(n)) itself(n);
  }

  void itself(const Node* n) {
    positions_.add(n);
    word(Constant);
    word(n->id);
  }

  void memory(const UOp& buffer, Form form) {
    const auto [number, fresh] = numbers_.add(buffer.node());
    word(form);
    word(number);
    if (!fresh) return;
    const BufferArg& arg = buffer.as<BufferArg>();
    word(static_cast<uint64_t>(arg.dtype) * 4 + static_cast<uint64_t>(arg.space));
    word(arg.device ? hash_of(arg.device) : 0);
    word(static_cast<uint64_t>(arg.axis));
    word(buffer.src(0).id());
    out_.buffers.push_back(buffer);
  }

  // Devices are interned: equal ones have one name.
  static uint64_t hash_of(Device d) { return reinterpret_cast<uintptr_t>(&d.name()); }

  void inner(const Node* n) {
    positions_.add(n);
    word(Inner);
    word(static_cast<uint64_t>(n->op) | static_cast<uint64_t>(n->source_count) << 16 |
         static_cast<uint64_t>(n->arg.index()) << 48);
    word(static_cast<uint64_t>(n->tag));
    std::visit([this](const auto& arg) { argument(arg); }, n->arg);
    for (const UOp& s : n->src()) word(positions_.find(s.node()));
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
    word(static_cast<uint64_t>(v.axis));
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
  NodeNumbers positions_;
  NodeNumbers numbers_;  // of Buffers
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
