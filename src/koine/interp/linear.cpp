#include <absl/container/flat_hash_map.h>

#include <memory>

#include "koine/base/error.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

using Lanes = std::vector<Bits>;  // one element for a scalar

class LinearInterpreter {
 public:
  LinearInterpreter(const UOp& linear, const KernelArguments& arguments) : arguments_(arguments) {
    for (const UOp& u : linear.src()) program_.push_back(u);
    for (size_t i = 0; i < program_.size(); ++i) {
      position_[program_[i].node()] = i;
      if (program_[i].is(Op::End))
        end_of_[program_[i].src(program_[i].src().size() - 1).node()] = i;
      if (program_[i].is(Op::Endif)) end_of_[program_[i].src(0).node()] = i;
    }
  }

  void run() {
    for (size_t pc = 0; pc < program_.size();) pc = step(pc);
  }

 private:
  // Executes one instruction; returns the position of the next.
  size_t step(size_t pc) {
    const UOp& u = program_[pc];
    switch (u.op()) {
      case Op::Range: {
        counters_[u.node()] = 0;
        if (scalar(u.src(0)) <= 0) return end_of_.at(u.node()) + 1;
        set(u, {0});
        return pc + 1;
      }
      case Op::End: {
        const UOp& range = u.src(u.src().size() - 1);
        int64_t& counter = counters_.at(range.node());
        if (++counter >= scalar(range.src(0))) return pc + 1;
        set(range, {static_cast<Bits>(counter)});
        return position_.at(range.node()) + 1;
      }
      case Op::If:
        return (lanes(u.src(0))[0] & 1) != 0 ? pc + 1 : end_of_.at(u.node()) + 1;
      case Op::Endif:
      case Op::Group:
      case Op::Barrier:
        return pc + 1;
      case Op::Store:
        store_lanes(u);
        return pc + 1;
      case Op::Index:
        if (is_address(u)) return pc + 1;  // an address; its users look at it
        break;
      case Op::Buffer:
        allocate(u);
        return pc + 1;
      case Op::Param:
        if (u.as<BufferArg>().name.empty()) return pc + 1;
        break;
      default:
        break;
    }
    set(u, evaluate_node(u));
    return pc + 1;
  }

  void set(const UOp& u, Lanes value) { values_[u.node()] = std::move(value); }
  const Lanes& lanes(const UOp& u) {
    const UOp& s = strip_after(u);
    const auto it = values_.find(s.node());
    KOINE_INVARIANT(it != values_.end(), "use before definition in a linear program:\n{}",
                    to_text(s));
    return it->second;
  }
  int64_t scalar(const UOp& u) {
    if (u.is(Op::Const)) return const_int(u);
    return bits_to_int(u.dtype(), lanes(u)[0]);
  }

  static size_t width(const UOp& u) { return u.is_scalar() ? 1 : static_cast<size_t>(u.numel()); }

  void allocate(const UOp& u) {
    auto& storage = storage_[u.node()];
    if (!storage) storage = std::make_unique<Lanes>(width(u), 0);
  }

  Lanes evaluate_node(const UOp& u) {
    if (is_elementwise(u.op())) {
      Lanes out(width(u));
      std::vector<const Lanes*> in;
      for (const UOp& s : u.src()) in.push_back(&lanes(s));
      const DType dtype = u.src(u.is(Op::Where) ? 1 : 0).dtype();
      Bits operands[3] = {};
      for (size_t i = 0; i < out.size(); ++i) {
        for (size_t k = 0; k < in.size(); ++k) operands[k] = (*in[k])[in[k]->size() == 1 ? 0 : i];
        out[i] = interpret_scalar(u.op(), u.dtype(), dtype,
                                  std::span<const Bits>(operands, in.size()), u.arg());
      }
      return out;
    }
    switch (u.op()) {
      case Op::Const:
        return {u.as<ConstArg>().bits};
      case Op::Param: {
        const auto it = arguments_.variables.find(u.as<BufferArg>().name);
        KOINE_REQUIRE(it != arguments_.variables.end(), Key, "Variable '{}' has no value",
                      u.as<BufferArg>().name);
        return {static_cast<Bits>(it->second)};
      }
      case Op::Special:
        return {static_cast<Bits>(arguments_.thread)};
      case Op::Stack: {
        Lanes out;
        for (const UOp& s : u.src()) out.push_back(lanes(s)[0]);
        return out;
      }
      case Op::Expand:
        return Lanes(width(u), lanes(u.src(0))[0]);
      case Op::Bitcast:
      case Op::Reshape:
        return lanes(u.src(0));
      case Op::Shrink: {
        const Lanes& in = lanes(u.src(0));
        const auto from = static_cast<size_t>(const_int(u.src(1).src(0)));
        return Lanes(in.begin() + static_cast<std::ptrdiff_t>(from),
                     in.begin() + static_cast<std::ptrdiff_t>(from + width(u)));
      }
      case Op::Index:
        return {lanes(u.src(0))[static_cast<size_t>(scalar(u.src(1)))]};
      case Op::Load:
        return load_lanes(u);
      default:
        internal_error("the linear interpreter does not know {}", op_name(u.op()));
    }
  }

  // Where lane i of an access lives.
  struct Place {
    Lanes* local = nullptr;
    std::byte* data = nullptr;
    int64_t elements = 0;
  };
  Place place_of(const UOp& address) {
    const UOp& base = strip_after(address.is(Op::Index) ? address.src(0) : address);
    if (base.is(Op::Buffer)) return {storage_.at(base.node()).get(), nullptr, 0};
    const auto slot = static_cast<size_t>(base.as<BufferArg>().slot);
    KOINE_REQUIRE(slot < arguments_.buffers.size(), Value, "kernel: slot {} has no buffer", slot);
    const int64_t bytes =
        arguments_.buffer_bytes.empty() ? INT64_MAX : arguments_.buffer_bytes[slot];
    return {nullptr, arguments_.buffers[slot], bytes / item_size(base.dtype())};
  }
  int64_t index_of(const UOp& address, size_t lane) {
    if (!address.is(Op::Index)) return static_cast<int64_t>(lane);
    if (const Contiguous c = contiguous_access(address); c.yes)
      return (c.base ? scalar(c.base) : 0) + static_cast<int64_t>(lane);
    const Lanes& index = lanes(address.src(1));
    return bits_to_int(address.src(1).dtype(), index[index.size() == 1 ? 0 : lane]);
  }
  void check(const UOp& u, const Place& place, int64_t index) {
    const int64_t limit = place.local ? static_cast<int64_t>(place.local->size()) : place.elements;
    KOINE_INVARIANT(index >= 0 && index < limit, "{} at element {} of a buffer with {}:\n{}",
                    op_name(u.op()), index, limit, to_text(u));
  }
  bool open(const UOp& gate, size_t lane) {
    const Lanes& g = lanes(gate);
    return (g[g.size() == 1 ? 0 : lane] & 1) != 0;
  }

  Lanes load_lanes(const UOp& u) {
    const UOp& address = strip_after(u.src(0));
    const Place place = place_of(address);
    Lanes out(width(u));
    for (size_t i = 0; i < out.size(); ++i) {
      if (u.src().size() == 3 && !open(u.src(2), i)) {
        const Lanes& alt = lanes(u.src(1));
        out[i] = alt[alt.size() == 1 ? 0 : i];
        continue;
      }
      const int64_t at = index_of(address, i);
      check(u, place, at);
      out[i] = place.local ? (*place.local)[static_cast<size_t>(at)]
                           : read_element(place.data, u.dtype(), at);
    }
    return out;
  }

  void store_lanes(const UOp& u) {
    const UOp& address = strip_after(u.src(0));
    const Place place = place_of(address);
    const Lanes value = lanes(u.src(1));
    const size_t count = width(u.src(0));
    for (size_t i = 0; i < count; ++i) {
      if (u.src().size() == 3 && !open(u.src(2), i)) continue;
      const int64_t at = index_of(address, i);
      check(u, place, at);
      const Bits bits = value[value.size() == 1 ? 0 : i];
      if (place.local)
        (*place.local)[static_cast<size_t>(at)] = bits;
      else
        write_element(place.data, u.src(1).dtype(), at, bits);
    }
  }

  const KernelArguments& arguments_;
  std::vector<UOp> program_;
  absl::flat_hash_map<const Node*, size_t> position_, end_of_;
  absl::flat_hash_map<const Node*, int64_t> counters_;
  absl::flat_hash_map<const Node*, Lanes> values_;
  absl::flat_hash_map<const Node*, std::unique_ptr<Lanes>> storage_;
};

}  // namespace

void interpret_linear(const UOp& linear, const KernelArguments& arguments) {
  LinearInterpreter(linear, arguments).run();
}

}  // namespace koine
