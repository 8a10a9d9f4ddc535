#pragma once
#include <array>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"

// Edits of graph texts, for tests of what is done with texts that nobody checked.
namespace koine::test {

/// A graph in the form of `to_text`, with what an edit must respect for it to stay a graph.
struct GraphText {
  struct Line {
    std::string op, arg, tail;
    std::vector<size_t> src;
    DType dtype = DType::Void;
    size_t rank = 0;
    std::string form;  ///< shape, and whether it is a place in memory; of effects the op
  };
  std::string heading;  ///< comments, which name the stage
  std::vector<Line> lines;
};

/// The graphs of a text that `to_text` and `koine opt` wrote.
std::vector<GraphText> graphs_of(const std::string& text);
std::string text_of(const GraphText& graph);

/// Which dtype an elementwise op gives for operands of each dtype; Void: it is refused.
class OpResults {
 public:
  OpResults();
  DType of(Op op, DType operand) const {
    return table_[static_cast<size_t>(op)][static_cast<size_t>(operand)];
  }

 private:
  std::array<std::array<DType, dtype_count>, static_cast<size_t>(op_count)> table_{};
};

/// Draws mutated texts. Of four, three are edited so that they stay well formed more often than
/// not; the fourth in characters, words and lines, whatever comes of it.
class TextMutator {
 public:
  explicit TextMutator(const std::vector<std::string>& corpus);
  std::string run(std::mt19937_64& random) const;
  /// The graphs that are edited.
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  OpResults results_;
  std::vector<GraphText> graphs_;
  std::vector<std::string> texts_;
};

/// The text after some edits of characters, numbers, words and lines; `corpus` lends words.
std::string wild_edits(std::string text, const std::vector<std::string>& corpus,
                       std::mt19937_64& random);

}  // namespace koine::test
