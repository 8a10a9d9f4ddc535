#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "koine/interp/interp.hpp"
#include "koine/koine.hpp"
#include "settings.hpp"

// What tests share: comparing a graph on the interpreter, on compiled kernels and as C text.
namespace koine::test {

inline constexpr float inf = std::numeric_limits<float>::infinity();

/// Options with strict floating point, for bit-for-bit comparisons.
Options strict_options();
/// Runs `action` in strict mode, then in default mode, whatever the environment says.
void in_both_modes(const std::function<void()>& action);

/// Random numbers between -2 and 2, by the test's seed.
Tensor small(const Shape& shape, uint64_t salt = 0);

/// A vector of float32 in memory.
Tensor vector_of(const std::vector<float>& values);
/// All elements of a tensor, by rows.
inline std::vector<double> values(const Tensor& t) { return t.tolist<double>(); }
inline std::vector<float> listed(const Tensor& t) { return t.tolist<float>(); }

/// Memory of a realized Buffer as an Array.
Array array_of(const UOp& buffer);
/// Float32 and int32 numbers in memory of a device.
UOp floats(const std::vector<float>& values, const std::string& device = "CPU");
UOp ints(const std::vector<int>& values, const std::string& device = "CPU");
/// What memory of float32, and of integers or bools, holds now.
std::vector<float> held(const UOp& buffer);
std::vector<int> held_ints(const UOp& buffer);
/// Buffers with memory below a graph, bound to their contents.
Bindings bindings_of(const UOp& graph);

/// Empty when equal bit for bit (NaNs equal as a class, signs of zero count); else the first
/// difference in words.
std::string difference(const Array& expected, const Array& got);

/// The value on a device whose name is given, through the whole compiler. The graph's buffers are
/// used where they are: all devices here live in this process's memory.
Array run_on(const UOp& value, const std::string& device);

/// The same under settings.
Array run_with(const UOp& value, const Settings& settings);

/// What gives a value under settings: `run_with`, or what a test puts in its place.
using Execute = std::function<Array(const UOp& value, const Settings& settings)>;

/// Computes a value in interpreted and compiled kernels, in strict mode, where all bits must be the
/// tensor interpreter's, and in default mode, where they must lie within the bound of bounded.hpp;
/// each time with feature level, optimiser, threads and caches drawn from `random`; one in
/// KOINE_TEST_CL values on the device CL as well. Empty, or the first settings that differ and how,
/// errors included.
std::string difference_anywhere(const UOp& value, std::mt19937_64& random,
                                const Execute& execute = run_with);

/// Expects no difference anywhere; the settings follow from test_seed() and the graph.
void expect_same_everywhere(const UOp& value);
inline void expect_same_everywhere(const Tensor& value) { expect_same_everywhere(value.uop()); }

/// Expects equal shapes, and equal values or such as differ by `tolerance` times the value, or
/// times 1.
void expect_near(const Tensor& got, const Tensor& want, const std::string& what,
                 double tolerance = 1e-9);

/// Expects `action` to throw koine::Error whose message holds every part.
void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts);

/// Kernels that would run for a tensor.
int64_t kernel_count(const std::vector<Tensor>& values);

/// Random contents: ordinary numbers mixed with NaN, infinities, zeros and limits.
Array random_array(std::mt19937_64& random, const std::vector<int64_t>& sizes, DType dtype);
/// As they lie in memory, with a few bytes to spare.
std::vector<std::byte> bytes_of(const Array& array);
/// A leaf with random contents.
UOp random_leaf(std::mt19937_64& random, const std::vector<int64_t>& sizes, DType dtype);
/// A leaf from test_seed() and `salt`: equal arguments give equal contents.
UOp leaf(const std::vector<int64_t>& sizes, DType dtype = DType::Float32, uint64_t salt = 0);

std::vector<DType> stored_dtypes();

/// Whether a sanitizer watches this process.
bool is_sanitized();
/// Bytes of memory that this process uses now: resident, or allocated where a sanitizer keeps freed
/// memory back.
int64_t memory_in_use();
/// The seed of a randomised test: KOINE_TEST_SEED, else a fixed one; printed with failures.
uint64_t test_seed();
/// How many cases a fuzz test runs: KOINE_TEST_CASES, else `usual`, fewer under a sanitizer and
/// where every stage of every program is run (KOINE_VERIFY=3).
int64_t test_cases(int64_t usual);

/// The modes of floats that a random case runs in, strict ones being true: both, or strict alone
/// where KOINE_TEST_FP=strict asks for long runs of it.
std::vector<bool> tested_modes();

/// The numbers of devices that programs over several run on; one where sanitizers or the check of
/// each stage make them dear.
std::vector<int64_t> device_counts();

}  // namespace koine::test
