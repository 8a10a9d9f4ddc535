#pragma once
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

/// A smaller program that fails in the same way under the same settings. Runs candidates in
/// children.
Program reduce_program(const Program& program, const Settings& settings);

/// The program of a seed that failed, made small: settings, text, C++.
std::string reduced_report(uint64_t seed, const ProgramFeatures& features);

}  // namespace koine::test
