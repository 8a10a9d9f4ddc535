#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "koine/base/error.hpp"

int main(int argc, char** argv) {
  using namespace koine::app;
  CLI::App app{"koine: tensor compiler and deep-learning library"};
  app.require_subcommand(1);
  DemoOptions demo;
  auto* demo_command =
      app.add_subcommand("demo", "train a small convolutional net on handwritten digits");
  demo_command->add_option("--data", demo.data, "path of digits.csv")->capture_default_str();
  demo_command->add_option("--save", demo.save, "where to write the model")->capture_default_str();
  demo_command->add_option("--epochs", demo.epochs)
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  demo_command->add_option("--seed", demo.seed)->capture_default_str();
  OptOptions opt;
  auto* opt_command = app.add_subcommand("opt", "print a graph after a stage of the compiler");
  opt_command->add_option("file", opt.file, "text of a graph")->required();
  opt_command
      ->add_option("--until", opt.until,
                   "callify, rangeify, optimize, expand, select, linearize, plan or render")
      ->capture_default_str();
  auto* render_command = app.add_subcommand("render", "print the source of a graph's kernels");
  render_command->add_option("file", opt.file, "text of a graph")->required();
  render_command->add_option("--target", opt.target, "c or llvm")->capture_default_str();
  auto* devices_command = app.add_subcommand("devices", "list devices");
  auto* ops_command = app.add_subcommand("ops", "print the table of ops as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    if (*demo_command) return run_demo(demo);
    if (*opt_command) return run_opt(opt);
    if (*render_command) return run_render(opt);
    if (*devices_command) return run_devices();
    if (*ops_command) return run_ops();
  } catch (const koine::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
