#pragma once
#include <map>
#include <random>
#include <string>
#include <vector>

#include "graphs.hpp"
#include "koine/base/options.hpp"
#include "koine/interp/bounded.hpp"
#include "settings.hpp"

// Random programs: steps over a pool of values, as a user's code is. The oracle computes every step
// at once on copies of its own; the library when it likes.
namespace koine::test {

/// One step. Graphs speak of earlier values by placeholders: Buffers without memory.
struct Step {
  enum class Kind : uint8_t {
    Leaf,      ///< value := data
    Make,      ///< value := a lazy graph of others, as they are now
    View,      ///< value := movement of one other, which it aliases
    Assign,    ///< value.assign(graph)
    SetRows,   ///< value[data] = graph: rows by position, of which the last one written stays
    Pick,      ///< value := values[0].index_select(axis, graph), computed positions too
    Backward,  ///< value := gradient of the sum of graphs[1], which is computed from graphs[0], the
               ///< value values[1]; with respect to values[0]
    Realize,   ///< `values` together
    Drop,      ///< nobody holds `values` any more
    Look,      ///< compares `values`, which are held on to
    Run,  ///< realizes `graphs` together, once for each of `bindings`, on fresh copies of what they
          ///< store to, and compares all results
  };
  Kind kind;
  int value = -1;
  std::vector<int> values;
  std::vector<UOp> graphs;
  Array data;
  std::vector<std::map<std::string, int64_t>> bindings;
  IndexMode index = IndexMode::Raise;  ///< KOINE_INDEX while positions are given
  int64_t axis = 0;
  bool looked = false;       ///< somebody looks at what lies between before backward() runs
  bool is_gradient = false;  ///< of a Make: another graph was differentiated
};

struct Program {
  std::map<int, UOp> placeholders;  ///< of every value of the pool
  std::vector<Step> steps;
};

/// What programs may hold. A feature that is known to be broken is off, with the reason in
/// `features_off()`, which is to be empty.
struct ProgramFeatures {
  Features graphs = Features::all();
  bool gradients = true, symbolic = true, stores = true, gated_stores = true, groups = true,
       nested_afters = true, self_overlap = true, assignments = true, positions = true,
       backward = true, symbolic_stores = true;
};
struct FeatureOff {
  std::string name, reason;
};
const std::vector<FeatureOff>& features_off();
ProgramFeatures features_on();

Program random_program(std::mt19937_64& random, const ProgramFeatures& features);

/// The gradient of the sum of y with respect to a node below; null where there is none.
UOp gradient_of(const UOp& y, const UOp& target);

/// Runs a program under settings against the oracle: empty, or what differs. In default mode
/// results lie within their bounds.
std::string problem_of(const Program& program, const Settings& settings);

/// The steps as text, with graphs in the form of to_text and the data of leaves.
std::string text_of(const Program& program);
/// The same as C++ on Tensors and builders.
std::string cpp_of(const Program& program);
/// Nodes and steps.
int64_t size_of(const Program& program);

}  // namespace koine::test
