#include "koine/interp/value.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

std::vector<int64_t> sizes_of(const UOp& u) {
  return u.is_scalar() ? std::vector<int64_t>{} : u.sizes();
}

size_t product_of(const std::vector<int64_t>& sizes) {
  size_t n = 1;
  for (const int64_t s : sizes) n *= static_cast<size_t>(s);
  return n;
}

}  // namespace

size_t ValueOp::value_sources(const UOp& node) {
  if (node.is(Op::Expand) || node.is(Op::Reshape) || node.is(Op::Shrink)) return 1;
  return node.src().size();
}

ValueOp::ValueOp(const UOp& node) : node_(node) {
  const bool accesses = node.is(Op::Load) || node.is(Op::Store);
  count_ = product_of(sizes_of(accesses ? node.src(0) : node));
  if (is_elementwise(node.op()) || node.is(Op::Bitcast)) {
    each_.emplace(node.op(), node.dtype(), node.src(node.is(Op::Where) ? 1 : 0).dtype(),
                  node.arg());
    for (size_t k = 0; k < node.src().size(); ++k) broadcast(k, node.src(k), node);
  } else if (accesses) {
    for (size_t k = 1; k < node.src().size(); ++k) broadcast(k, node.src(k), node.src(0));
  } else if (node.is(Op::Expand)) {
    broadcast(0, node.src(0), node);
  } else if (node.is(Op::Shrink)) {
    movement();
  }
}

// A scalar stands for every element; else all axes are there, and a size of 1 stands for any.
void ValueOp::broadcast(size_t operand, const UOp& source, const UOp& whole) {
  const std::vector<int64_t> to = sizes_of(whole), own = sizes_of(source);
  maps_.resize(std::max(maps_.size(), operand + 1));
  if (to == own) return;
  std::vector<uint32_t>& map = maps_[operand];
  map.assign(count_, 0);
  for (size_t i = 0; i < count_ && !own.empty(); ++i) {
    size_t rest = i, stride = 1;
    for (size_t k = to.size(); k-- > 0;) {
      const auto size = static_cast<size_t>(own[k]), whole_size = static_cast<size_t>(to[k]);
      map[i] += static_cast<uint32_t>((size == 1 ? 0 : rest % whole_size) * stride);
      rest /= whole_size;
      stride *= size;
    }
  }
}

void ValueOp::movement() {
  const std::vector<int64_t> to = sizes_of(node_), own = sizes_of(node_.src(0));
  maps_.resize(1);
  maps_[0].resize(count_);
  for (size_t i = 0; i < count_; ++i) {
    size_t rest = i, at = 0, stride = 1;
    for (size_t k = to.size(); k-- > 0;) {
      const size_t c = rest % static_cast<size_t>(to[k]);
      rest /= static_cast<size_t>(to[k]);
      at += (c + static_cast<size_t>(const_int(node_.src(1).src(k)))) * stride;
      stride *= static_cast<size_t>(own[k]);
    }
    maps_[0][i] = static_cast<uint32_t>(at);
  }
}

Lanes ValueOp::compute(std::span<const Lanes* const> operands) const {
  Lanes out(count_);
  if (each_) {
    Bits values[3] = {};
    for (size_t i = 0; i < count_; ++i) {
      for (size_t k = 0; k < operands.size(); ++k) values[k] = (*operands[k])[from(k, i)];
      out[i] = (*each_)(values[0], values[1], values[2]);
    }
    return out;
  }
  switch (node_.op()) {
    case Op::Expand:
    case Op::Reshape:
    case Op::Shrink:
      for (size_t i = 0; i < count_; ++i) out[i] = (*operands[0])[from(0, i)];
      return out;
    case Op::Stack:
      out.clear();
      for (const Lanes* part : operands) out.insert(out.end(), part->begin(), part->end());
      return out;
    case Op::Index: {  // an element of a vector; outside of it reads 0
      const int64_t at = bits_to_int(node_.src(1).dtype(), (*operands[1])[0]);
      const bool inside = at >= 0 && at < static_cast<int64_t>(operands[0]->size());
      return {inside ? (*operands[0])[static_cast<size_t>(at)] : 0};
    }
    default:
      internal_error("the interpreter of kernels does not know {}", op_name(node_.op()));
  }
}

std::byte* KernelMemory::place(const UOp& buffer, DType dtype, int64_t index, const UOp& access) {
  int64_t bytes = INT64_MAX;
  std::byte* data = nullptr;
  if (buffer.is(Op::Buffer)) {
    auto [it, fresh] = own_.try_emplace(buffer.node());
    if (fresh)
      it->second.resize(static_cast<size_t>(lane_count(buffer) * item_size(buffer.dtype())));
    data = it->second.data();
    bytes = static_cast<int64_t>(it->second.size());
  } else {
    const auto slot = static_cast<size_t>(buffer.as<BufferArg>().slot);
    KOINE_REQUIRE(slot < arguments_.buffers.size(), Value, "kernel: slot {} has no buffer", slot);
    data = arguments_.buffers[slot];
    if (!arguments_.buffer_bytes.empty()) bytes = arguments_.buffer_bytes[slot];
  }
  const int64_t limit = bytes / item_size(dtype);
  KOINE_INVARIANT(index >= 0 && index < limit, "{} at element {} of a buffer with {}:\n{}",
                  op_name(access.op()), index, limit, to_text(access));
  return data;
}

Bits KernelMemory::read(const UOp& buffer, DType dtype, int64_t index, const UOp& access) {
  return read_element(place(buffer, dtype, index, access), dtype, index);
}

void KernelMemory::write(const UOp& buffer, DType dtype, int64_t index, Bits bits,
                         const UOp& access) {
  write_element(place(buffer, dtype, index, access), dtype, index, bits);
}

}  // namespace koine
