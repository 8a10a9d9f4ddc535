#pragma once
#include <cstdint>

#include "koine/tensor/random.hpp"

// Random numbers in plain C++: the oracle of draws and of keys.
namespace koine::test {

/// Threefry2x32-20.
uint64_t threefry(uint64_t counter, uint64_t key);

// What follows from a key (tensor/random.cpp): the two highest bits of the counter say what it
// counts. Those of the global stream are 0.

/// The bits of an element of a draw.
uint64_t word_of(uint64_t key, uint64_t element);
/// The i-th key that it is split into.
uint64_t child_of(uint64_t key, uint64_t i);
/// The key for a number.
uint64_t folded(uint64_t key, int64_t number);

/// What `rand` makes of a word.
float fraction_of(uint64_t word);

uint64_t bits_of(const random::Key& key);
/// A key that only the device knows: what follows from it is computed there.
random::Key computed_key(uint64_t bits);

}  // namespace koine::test
