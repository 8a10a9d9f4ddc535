#pragma once
#include <string>
#include <string_view>

#include "koine/ir/uop.hpp"

// What the subcommands do with a file of graphs, as functions of its text.
namespace koine::app {

/// A file holds graphs, each from its line %0 on: values, or what a stage of the compiler gave,
/// down to linear programs. A comment "; ... after STAGE" above a graph says whose output it is, as
/// the output of `koine opt` does; without one a Sink with loops or element stores is a kernel, and
/// another Sink a program of whole values.

/// Every kernel of the text after the stage `until`, as text that can be given again; after `plan`
/// and `render` as C. Throws Error for a text that is malformed, or that is past the stage.
/// `style`: "text"; of kernels also "tree", which people read, and of linear programs "list" and
/// "legacy", the old names.
std::string text_after(std::string_view text, std::string_view until,
                       std::string_view style = "text");
/// The last graph of the text. Throws Error like text_after.
UOp last_graph(std::string_view text);
/// Compiles the values of a text to a file. Their Buffers are inputs, named by their numbers.
/// Throws Error like text_after, where the text holds more than values, and as save_program does.
void save_compiled(std::string_view text, const std::string& path);
/// The source of every kernel of the text in a language: that of a dialect, as one that a compiler
/// takes, or a module of "ptx" or "llvm" for each. What is launched again is a comment, as are the
/// Variables that have values. Throws Error like text_after.
std::string sources_of(std::string_view text, std::string_view language);

}  // namespace koine::app
