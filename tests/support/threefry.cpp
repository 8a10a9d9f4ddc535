#include "threefry.hpp"

#include <bit>

#include "koine/ir/build.hpp"

namespace koine::test {

// Round by round, as in Salmon et al. 2011.
uint64_t threefry(uint64_t counter, uint64_t key) {
  constexpr int turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  uint32_t word[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), 0x1BD11BDA};
  word[2] ^= word[0] ^ word[1];
  uint32_t a = static_cast<uint32_t>(counter) + word[0];
  uint32_t b = static_cast<uint32_t>(counter >> 32) + word[1];
  for (uint32_t round = 1; round <= 20; ++round) {
    a += b;
    b = std::rotl(b, turns[(round - 1) % 8]) ^ a;
    if (round % 4 != 0) continue;
    a += word[round / 4 % 3];
    b += word[(round / 4 + 1) % 3] + round / 4;
  }
  return uint64_t{b} << 32 | a;
}

uint64_t word_of(uint64_t key, uint64_t element) {
  return threefry(uint64_t{1} << 62 | element, key);
}
uint64_t child_of(uint64_t key, uint64_t i) { return threefry(uint64_t{2} << 62 | i, key); }
uint64_t folded(uint64_t key, int64_t number) {
  constexpr uint64_t low = (uint64_t{1} << 62) - 1;
  return threefry(uint64_t{3} << 62 | (static_cast<uint64_t>(number) & low), key);
}

float fraction_of(uint64_t word) {
  return static_cast<float>(static_cast<uint32_t>(word) >> 8) * 0x1p-24F;
}

uint64_t bits_of(const random::Key& key) { return key.bits().item<uint64_t>(); }
random::Key computed_key(uint64_t bits) {
  return random::Key(Tensor::from<uint64_t>({bits - 1}).reshape({}) +
                     Tensor(constant_int(DType::UInt64, 1)));
}

}  // namespace koine::test
