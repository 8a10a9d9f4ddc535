#pragma once
#include <string>

namespace koine::app {

struct DemoOptions {
  std::string data;  ///< empty: find_digits()
  std::string save = "digits.safetensors";
  int epochs = 14;
  uint64_t seed = 7;
  std::string device;        ///< empty: the default one
  bool distributed = false;  ///< with the processes of mpirun, which share out the batch
};
/// Trains a small convolutional net on the digits; the last line is the accuracy on held-out ones.
int run_demo(const DemoOptions& options);

struct OptOptions {
  std::string file, until = "linearize", target = "c", style = "text", output;
  bool noopt = false;
};
/// Prints a kernel or tensor graph after a stage.
int run_opt(const OptOptions& options);
/// Prints the source of every kernel of a graph.
int run_render(const OptOptions& options);
struct CompileOptions {
  std::string file, out = "program.koine";
};
/// Compiles the values of a graph to a file. Its Buffers are inputs, named by their numbers.
int run_compile(const CompileOptions& options);
struct RunOptions {
  std::string file, in, out;
};
/// Runs such a file on the tensors of a safetensors file; prints the outputs, or writes them to
/// one.
int run_program(const RunOptions& options);
/// Writes a picture of a graph: .dot, .svg or .html, by the name of the output.
int run_view(const OptOptions& options);
int run_devices();
/// Prints the table of ops as JSON.
int run_ops();

}  // namespace koine::app
