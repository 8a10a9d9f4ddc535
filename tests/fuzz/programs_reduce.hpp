#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "programs.hpp"

namespace koine::test {

/// The settings that a program runs under, drawn after it: interpreted kernels in both modes, and
/// for one program in four compiled ones in either mode, which cost seven times as much.
std::vector<Settings> settings_of(std::mt19937_64& random);

/// The kind of a problem, which reducing keeps: a crash by its signal, an exception by how its
/// message begins, a difference.
std::string kind_of(const std::string& problem);

/// What is wrong with a program under settings; empty where nothing is. `problem_of`, or a fault
/// that a test plants.
using Judge = std::function<std::string(const Program&, const Settings&)>;

/// A smaller program that fails in the same way under the same settings. Runs candidates in
/// children.
Program reduce_program(const Program& program, const Settings& settings,
                       const Judge& judge = problem_of);

/// A failure made small, and the plainest settings that still show it.
struct ReducedFailure {
  Program program;
  Settings settings;
  std::string problem;
};
/// Of the program of a seed; none where it does not fail.
std::optional<ReducedFailure> reduced_failure(uint64_t seed, const ProgramFeatures& features,
                                              const Judge& judge = problem_of);

/// What a person is told of a seed that failed: the command that runs it again, settings, text,
/// C++.
std::string report_of(uint64_t seed, const std::optional<ReducedFailure>& failure);

}  // namespace koine::test
