#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "commands.hpp"
#include "koine/base/error.hpp"
#include "koine/base/options.hpp"

int main(int argc, char** argv) {
  using namespace koine::app;
  CLI::App app{"koine: tensor compiler and deep-learning library"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "koine " KOINE_VERSION);
  DemoOptions demo;
  auto* demo_command =
      app.add_subcommand("demo", "train a small convolutional net on handwritten digits");
  demo_command->add_option("--data", demo.data,
                           "path of digits.csv; unset means the installed one, or data/digits.csv");
  demo_command->add_option("--save", demo.save, "where to write the model")->capture_default_str();
  demo_command->add_option("--epochs", demo.epochs)
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  demo_command->add_option("--seed", demo.seed)
      ->capture_default_str()
      ->check([](const std::string& text) {  // CLI::Range takes what it cannot hold
        int64_t seed = -1;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, seed);
        return error == std::errc() && stop == end && seed >= 0
                   ? std::string()
                   : fmt::format("{} is not in 0 to {}", text, INT64_MAX);
      });
  demo_command->add_option("--device", demo.device, "such as CL; unset means KOINE_DEVICE, or CPU");
  demo_command->add_flag("--distributed", demo.distributed,
                         "share out the batch: mpirun -n 4 koine demo --distributed");
  OptOptions opt;
  auto* opt_command = app.add_subcommand("opt", "print a graph after a stage of the compiler");
  opt_command->add_option("file", opt.file, "text of a graph")->required();
  opt_command
      ->add_option("--until", opt.until, fmt::format("{}", fmt::join(koine::stage_names(), ", ")))
      ->capture_default_str();
  opt_command->add_option("--style", opt.style, "text, tree, list or legacy")
      ->capture_default_str();
  auto* render_command = app.add_subcommand("render", "print the source of a graph's kernels");
  render_command->add_option("file", opt.file, "text of a graph")->required();
  render_command
      ->add_option("--target", opt.target, "c, opencl, cuda, hip, metal, wgsl, ptx or llvm")
      ->capture_default_str();
  koine::app::CompileOptions compiled;
  auto* compile_command = app.add_subcommand("compile", "compile the values of a graph to a file");
  compile_command->add_option("file", compiled.file, "text of a graph")->required();
  compile_command->add_option("-o,--out", compiled.out)->capture_default_str();
  RunOptions run;
  auto* run_command = app.add_subcommand("run", "run a compiled file");
  run_command->add_option("file", run.file, "what compile has written")->required();
  run_command->add_option("--in", run.in, "inputs by name, a safetensors file");
  run_command->add_option("--out", run.out, "where to write the outputs; unset means print them");
  auto* view_command = app.add_subcommand("view", "write a picture of a graph");
  view_command->add_option("file", opt.file, "text of a graph; of several the last is shown")
      ->required();
  view_command->add_option("-o,--output", opt.output, "ends with .dot, .svg or .html")->required();
  auto* devices_command = app.add_subcommand("devices", "list devices");
  auto* ops_command = app.add_subcommand("ops", "print the table of ops as JSON");
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(commands.begin(), commands.end(), argv[1]) == commands.end()) {
    fmt::print(stderr, "error: koine has no subcommand '{}': it has {}\n", argv[1],
               fmt::join(commands, ", "));
    return 1;
  }
  CLI11_PARSE(app, argc, argv);
  try {
    (void)koine::options();  // a variable that is unknown or wrong is an error of every command
    if (*demo_command) return run_demo(demo);
    if (*opt_command) return run_opt(opt);
    if (*render_command) return run_render(opt);
    if (*compile_command) return run_compile(compiled);
    if (*run_command) return run_program(run);
    if (*view_command) return run_view(opt);
    if (*devices_command) return run_devices();
    if (*ops_command) return run_ops();
  } catch (const std::exception& e) {  // of our own mistakes the message says that they are ours
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
