#include "koine/runtime/ranks/exchange.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "koine/base/error.hpp"

namespace koine {
namespace {

using Block = std::vector<const Message*>;  // one behind the other

bool sends_the_same(const Block& a, const Block& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Message* x, const Message* y) {
    return x->source == y->source && x->source_offset == y->source_offset && x->bytes == y->bytes;
  });
}

// Messages by sender and receiver.
class Traffic {
 public:
  Traffic(std::span<const Message> messages, size_t ranks)
      : ranks_(ranks), blocks_(ranks * ranks), bytes_(ranks * ranks) {
    for (const Message& m : messages) {
      if (m.from == m.to) continue;
      blocks_[m.from * ranks + m.to].push_back(&m);
      bytes_[m.from * ranks + m.to] += m.bytes;
    }
  }
  size_t ranks() const { return ranks_; }
  const Block& block(size_t from, size_t to) const { return blocks_[from * ranks_ + to]; }
  int64_t bytes(size_t from, size_t to) const { return bytes_[from * ranks_ + to]; }
  int64_t longest() const { return *std::max_element(bytes_.begin(), bytes_.end()); }
  /// Any of those that a rank sends to.
  size_t other(size_t rank) const { return rank == 0 ? 1 : 0; }

  bool sends(size_t from) const {
    for (size_t to = 0; to < ranks_; ++to)
      if (bytes(from, to) > 0) return true;
    return false;
  }
  /// Whether a rank sends the same to all others.
  bool repeats(size_t from) const {
    for (size_t to = 0; to < ranks_; ++to)
      if (to != from && !sends_the_same(block(from, to), block(from, other(from)))) return false;
    return true;
  }
  bool all_equal() const {
    for (size_t from = 0; from < ranks_; ++from)
      for (size_t to = 0; to < ranks_; ++to)
        if (from != to && bytes(from, to) != longest()) return false;
    return true;
  }

 private:
  size_t ranks_;
  std::vector<Block> blocks_;
  std::vector<int64_t> bytes_;
};

Exchange kind_of(const Traffic& traffic) {
  if (traffic.ranks() < 2) return Exchange::Mixed;
  size_t senders = 0, repeating = 0;
  for (size_t r = 0; r < traffic.ranks(); ++r) {
    if (!traffic.sends(r)) continue;
    ++senders;
    repeating += traffic.repeats(r) ? 1 : 0;
  }
  if (senders == 1 && repeating == 1) return Exchange::Broadcast;
  if (!traffic.all_equal()) return Exchange::Mixed;
  return repeating == traffic.ranks() ? Exchange::AllGather : Exchange::AllToAll;
}

// Calls `move(message, where in it, where in the cut, bytes)` for bytes [from, from + bytes) of a
// block.
template <class Move>
void for_each_piece(const Block& block, int64_t from, int64_t bytes, Move&& move) {
  int64_t begin = 0;  // of a message in the block
  for (const Message* m : block) {
    const int64_t first = std::max(from, begin), end = std::min(from + bytes, begin + m->bytes);
    if (first < end) move(*m, first - begin, first - from, end - first);
    begin += m->bytes;
  }
}

// Bytes [at, at + most) of each block.
class Round {
 public:
  Round(Transport& transport, const Traffic& traffic, int64_t at, int64_t most)
      : transport_(transport), traffic_(traffic), at_(at), most_(most), me_(transport.rank()) {}

  void run(Exchange kind) {
    if (kind == Exchange::Broadcast) return broadcast();
    if (kind == Exchange::AllGather) return all_gather();
    std::vector<size_t> given_bytes, got_bytes;
    for (size_t r = 0; r < traffic_.ranks(); ++r) {
      // Of equal blocks the own one is sent along.
      const bool own = kind == Exchange::AllToAll && r == me_;
      given_bytes.push_back(own ? cut(me_, traffic_.other(me_)) : cut(me_, r));
      got_bytes.push_back(own ? given_bytes.back() : cut(r, me_));
    }
    std::vector<std::byte> given = buffer(given_bytes), got = buffer(got_bytes);
    for (size_t r = 0, begin = 0; r < traffic_.ranks(); begin += given_bytes[r++])
      pack(traffic_.block(me_, r), given.data() + begin, cut(me_, r));
    if (kind == Exchange::AllToAll)
      transport_.all_to_all(given, got);
    else
      transport_.all_to_all(given, given_bytes, got, got_bytes);
    for (size_t r = 0, begin = 0; r < traffic_.ranks(); begin += got_bytes[r++])
      unpack(traffic_.block(r, me_), got.data() + begin, cut(r, me_));
  }

 private:
  void broadcast() {
    size_t from = 0;
    while (!traffic_.sends(from)) ++from;
    const size_t to = from == me_ ? traffic_.other(from) : me_;
    std::vector<std::byte> data(cut(from, to));
    if (from == me_) pack(traffic_.block(from, to), data.data(), data.size());
    transport_.broadcast(data, from);
    if (from != me_) unpack(traffic_.block(from, to), data.data(), data.size());
  }

  void all_gather() {
    const size_t to = traffic_.other(me_), bytes = cut(me_, to);
    std::vector<std::byte> mine(bytes), all(bytes * traffic_.ranks());
    pack(traffic_.block(me_, to), mine.data(), bytes);
    transport_.all_gather(mine, all);
    for (size_t r = 0; r < traffic_.ranks(); ++r)
      if (r != me_) unpack(traffic_.block(r, me_), all.data() + r * bytes, bytes);
  }

  // The bytes of a block that this round sends.
  size_t cut(size_t from, size_t to) const {
    return static_cast<size_t>(std::clamp(traffic_.bytes(from, to) - at_, int64_t{0}, most_));
  }
  static std::vector<std::byte> buffer(const std::vector<size_t>& sizes) {
    size_t bytes = 0;
    for (const size_t s : sizes) bytes += s;
    return std::vector<std::byte>(bytes);
  }
  void pack(const Block& block, std::byte* to, size_t bytes) const {
    for_each_piece(block, at_, static_cast<int64_t>(bytes),
                   [&](const Message& m, int64_t inside, int64_t at, int64_t length) {
                     std::memcpy(to + at, m.source->data() + m.source_offset + inside,
                                 static_cast<size_t>(length));
                   });
  }
  void unpack(const Block& block, const std::byte* from, size_t bytes) const {
    for_each_piece(block, at_, static_cast<int64_t>(bytes),
                   [&](const Message& m, int64_t inside, int64_t at, int64_t length) {
                     std::memcpy(m.target->data() + m.target_offset + inside, from + at,
                                 static_cast<size_t>(length));
                   });
  }

  Transport& transport_;
  const Traffic& traffic_;
  int64_t at_, most_;
  size_t me_;
};

}  // namespace

Exchange exchange_of(std::span<const Message> messages, size_t ranks) {
  return kind_of(Traffic(messages, ranks));
}

void deliver(Transport& transport, std::span<const Message> messages, int64_t most) {
  for (const Message& m : messages)
    if (m.from == transport.rank() && m.to == m.from && m.bytes > 0)
      std::memcpy(m.target->data() + m.target_offset, m.source->data() + m.source_offset,
                  static_cast<size_t>(m.bytes));
  const Traffic traffic(messages, transport.count());
  const Exchange kind = kind_of(traffic);
  for (int64_t at = 0; at < traffic.longest(); at += most)
    Round(transport, traffic, at, most).run(kind);
}

}  // namespace koine
