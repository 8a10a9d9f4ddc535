#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace koine {

/// Mixes `value` into `seed`. Deterministic across runs and machines: node hashes order texts
/// and name cached kernels. (Multiply-xorshift; constants from MurmurHash3's finaliser.)
constexpr uint64_t hash_mix(uint64_t seed, uint64_t value) {
  seed ^= value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2);
  seed ^= seed >> 33;
  seed *= 0xff51afd7ed558ccdull;
  seed ^= seed >> 33;
  return seed;
}

inline uint64_t hash_text(std::string_view text) {
  uint64_t hash = text.size();
  while (text.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    hash = hash_mix(hash, word);
    text.remove_prefix(8);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, text.data(), text.size());
  return hash_mix(hash, tail);
}

}  // namespace koine
