#pragma once
#include <string_view>

#include "c_text.hpp"
#include "koine/compat/alu.hpp"
#include "koine/compat/uops.hpp"

// The graphs that the guide to UOps builds, mended as amendments C12 to C16 say; of int32.
namespace koine::test {

/// Ten times nothing.
compat::UOpGraph loop_graph();
/// data0[0] = 10.
compat::UOpGraph store_graph();
/// data0[0] = data1[0] + data2[0]; `threads`: the same of the elements of ten threads, stored at
/// the own position of each (C13).
compat::UOpGraph addition_graph(bool threads);
/// The dot product of two elements, in an accumulator.
compat::UOpGraph dot_graph();

/// That all of them, as one text of a language with groups, are taken and compute what they say.
void expect_guide_computes(std::string_view language, const CText::Load& load = nullptr);

}  // namespace koine::test
