#include "text.hpp"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/text.hpp"
#include "koine/koine.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/loops.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"

namespace koine::app {
namespace {

// A graph of the text and the stage whose output it is; empty: a value.
struct Given {
  UOp graph;
  std::string stage;
};

size_t place_of(std::string_view stage) {
  const auto& stages = stage_names();
  return static_cast<size_t>(std::find(stages.begin(), stages.end(), stage) - stages.begin());
}
bool is_stage(std::string_view name) { return place_of(name) < stage_names().size(); }

// "; kernel 0 after expand: output" names expand.
std::string_view stage_in(std::string_view comment) {
  constexpr std::string_view mark = " after ";
  const size_t at = comment.find(mark);
  if (at == comment.npos) return {};
  std::string_view word = comment.substr(at + mark.size());
  word = word.substr(0, word.find_first_of(": \t\r"));
  return is_stage(word) ? word : std::string_view();
}

bool is_kernel(const UOp& sink) {
  for (const UOp& u : toposort(sink)) {
    if (u.is(Op::Range)) return true;
    if (u.is(Op::Store) && u.src(1).is_scalar() && is_address(u.src(0))) return true;
  }
  return false;
}

std::string form_of(const UOp& graph, std::string_view said) {
  if (graph.is(Op::Linear)) {
    if (said == "index" || said == "split" || said == "plan") return std::string(said);
    return !graph.src().empty() && graph.src(0).is(Op::Call) ? "plan" : "linearize";
  }
  if (!graph.is(Op::Sink)) return "";
  if (!said.empty() && place_of(said) < place_of("linearize")) return std::string(said);
  return is_kernel(graph) ? "rangeify" : "callify";
}

// A value is computed from Buffers: what only a call or a compiled program could give has no
// meaning here.
void require_closed(const UOp& value) {
  std::vector<const Node*> stack{value.node()};
  absl::flat_hash_set<const Node*> seen{value.node()};
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    const UOp u = UOp::share(node);
    KOINE_REQUIRE(!u.is(Op::Param) || !u.as<BufferArg>().name.empty(), Value,
                  "the value reads the Param of slot {}, which has no value outside of a Function: "
                  "use a Buffer",
                  u.as<BufferArg>().slot);
    for (size_t i = u.is(Op::Function) || u.is(Op::Call) ? 1 : 0; i < u.src().size(); ++i)
      if (seen.insert(u.src(i).node()).second) stack.push_back(u.src(i).node());
  }
}

// What Rangeify will put in must not be there already; numbers that the engine took out may be.
void require_names_of_user(const Given& given) {
  if (!given.stage.empty() && place_of(given.stage) >= place_of("rangeify")) return;
  for (const UOp& v : variables_below(given.graph))
    if (given.stage.empty() || !v.as<BufferArg>().name.starts_with("koine_literal_"))
      require_name_of_user(v);
}

void require_valid(const Given& given, const Target& target) {
  const VerifyLevel level = given.stage.empty() ? VerifyLevel::Tensor : level_after(given.stage);
  if (const auto violation = find_violation(given.graph, level, &target))
    raise(ErrorKind::Value, "this is no {}: {}",
          given.stage.empty() ? "value" : "graph after " + given.stage, violation_text(*violation));
  if (given.stage.empty()) require_closed(given.graph);
  require_names_of_user(given);
}

std::vector<Given> parse_all(std::string_view text, const Target& target) {
  std::vector<Given> out;
  std::string_view said;
  size_t begin = 0, at = 0, first_line = 0, line = 0;
  bool inside = false;
  auto finish = [&](size_t end) {
    if (!inside) return;
    const UOp graph = parse(text.substr(begin, end - begin), first_line);
    out.push_back({graph, form_of(graph, said)});
    require_valid(out.back(), target);
    inside = false;
    said = {};
  };
  for (; at < text.size(); ++line) {
    const size_t stop = std::min(text.find('\n', at), text.size());
    std::string_view row = text.substr(at, stop - at);
    row.remove_prefix(std::min(row.find_first_not_of(" \t\r"), row.size()));
    const bool comment = row.starts_with(';');
    const bool first = row.starts_with("%0") && (row.size() == 2 || row[2] < '0' || row[2] > '9');
    if (first || (comment && !stage_in(row).empty())) finish(at);
    if (comment && !inside) said = stage_in(row).empty() ? said : stage_in(row);
    if (!comment && !row.empty() && !inside) {
      inside = true;
      begin = at;
      first_line = line;
    }
    at = stop + 1;
  }
  finish(text.size());
  KOINE_REQUIRE(!out.empty(), Value, "the text holds no graph");
  return out;
}

// What is to be lowered of a graph: one kernel as it is given, or those of a host program.
struct Piece {
  UOp ast;
  std::string reason;
  std::vector<UOp> variables = {};  // of its launch
};
struct Work {
  std::vector<Piece> kernels;
  std::string given = "rangeify";
  bool by_hand = false;  // the kernels stand in the text, and were not made of its values
};

// The host program of a value or a program; null for a kernel.
UOp host_program_of(const Given& g, const Target& target) {
  const CompileOptions how = options_for(target);
  if (g.stage.empty()) return host_program({g.graph}, how);
  if (g.stage == "callify")
    return rangeify(split_large_reduces(on_each_device(g.graph, how), how), how);
  if (g.stage == "decide") return rangeify(g.graph, how);
  if (g.stage == "plan") return g.graph;
  UOp program = g.graph;
  if (g.stage == "bufferize") program = indexed_program(program, how);
  if (g.stage == "bufferize" || g.stage == "index") program = split_program(program, how);
  const bool is_host_program = program.is(Op::Linear) && g.stage != "linearize";
  return is_host_program ? lower_loops(merged_program(program, how), how) : UOp();
}

// The launches of a host program, and of those that loops hold.
void add_kernels(const UOp& program, Work& work) {
  for (const Kernel& k : kernels_of(program)) {
    work.kernels.push_back(
        {k.ast, std::string(k.reason), {k.variables.begin(), k.variables.end()}});
    for (const UOp& function : is_loop(k.ast) ? k.ast.src() : std::span<const UOp>())
      if (function.is(Op::Linear)) add_kernels(function, work);
  }
}

Work work_of(const Given& g, const Target& target) {
  const UOp program = host_program_of(g, target);
  if (!program) return {{{g.graph, "given"}}, g.stage, true};
  Work out;
  out.by_hand = g.graph.is(Op::Linear);
  add_kernels(program, out);
  return out;
}

// A copy between devices or a loop is no kernel: the host does it.
bool is_compiled(const Piece& kernel) {
  return !kernel.ast.is(Op::CustomFunction) && !is_loop(kernel.ast);
}

// ", n = 3" of each Variable that has a value.
std::string numbers_of_launch(const Piece& kernel) {
  std::string out;
  for (const UOp& v : kernel.variables)
    if (is_bound(v)) out += fmt::format(", {} = {}", v.as<BufferArg>().name, bound_value(v));
  return out;
}

LoweredKernel lower(const Piece& kernel, const Work& work, const Target& target,
                    const StageSink& sink = {}) {
  try {
    return lower_kernel(kernel.ast, target, sink, nullptr, {}, work.given);
  } catch (const VerifyError& e) {
    // What a stage finds wrong in a kernel written by hand is wrong in the text.
    if (work.by_hand) raise(ErrorKind::Value, "the kernel cannot be lowered: {}", e.finding());
    throw;
  }
}

UOp callified(const Given& g) {
  if (!g.stage.empty()) return g.graph;
  const UOp& value = g.graph;
  const Placement place =
      value.device() ? value.node()->placement : Placement{Device(default_device())};
  const UOp to = value.is(Op::After)  // in memory already
                     ? UOp()
                     : new_buffer(value.shape(), value.dtype(), place.device, place.axes);
  return callify({value}, {to}).body;
}

// A value or a program after one of the stages that take programs.
UOp program_after(std::string_view until, const Given& g) {
  UOp program = callified(g);
  const auto comes = [&](std::string_view stage) {
    return place_of(until) >= place_of(stage) &&
           (g.stage.empty() || place_of(g.stage) < place_of(stage));
  };
  if (comes("decide")) program = decided_program(split_large_reduces(on_each_device(program)));
  // What a person wrote into a decided program is decided upon as well.
  if (comes("bufferize"))
    program = bufferized_program(g.stage == "decide" ? decided_program(program) : program);
  if (comes("index")) program = indexed_program(program);
  return comes("split") ? split_program(program) : program;
}

void require_style(std::string_view style, std::string_view until) {
  const size_t at = place_of(until);
  const bool linear = until == "linearize";
  const bool kernel = at >= place_of("rangeify") && at <= place_of("select");
  KOINE_REQUIRE(style == "text" || (kernel && style == "tree") ||
                    (linear && (style == "list" || style == "legacy")),
                Value,
                "--style={} of the graph after {}: expected text, tree (after rangeify to select), "
                "list or legacy (after linearize)",
                style, until);
}

std::string styled(const UOp& graph, std::string_view style) {
  if (style == "tree") return tree_text(graph);
  if (style == "list") return compat::print_linear(graph);
  return style == "legacy" ? compat::print_linear(graph, compat::Style::Legacy) : to_text(graph);
}

const Target& target_here() { return device_runtime(default_device()).target(); }

}  // namespace

std::string text_after(std::string_view text, std::string_view until, std::string_view style) {
  KOINE_REQUIRE(is_stage(until), Value, "--until={}: the stages are {}", until,
                fmt::join(stage_names(), ", "));
  require_style(style, until);
  const Target& target = target_here();
  std::string out;
  size_t number = 0;
  for (const Given& g : parse_all(text, target)) {
    // A plan is of kernels that are still to be optimised.
    const std::string had = g.stage == "plan" && until != "split" ? "split" : g.stage;
    KOINE_REQUIRE(had.empty() || place_of(until) >= place_of(had), Value,
                  "--until={}: the graph is past it, after {}", until, g.stage);
    if (place_of(until) <= place_of("split")) {
      out += fmt::format("; after {}\n{}", until, to_text(program_after(until, g)));
      continue;
    }
    if (const UOp program = until == "plan" ? host_program_of(g, target) : UOp()) {
      out += fmt::format("; after plan\n{}", to_text(plan_memory(program)));
      continue;
    }
    const Work work = work_of(g, target);
    const bool as_c = until == "plan" || until == "render";
    for (const Piece& kernel : work.kernels) {
      out += fmt::format("; kernel {} after {}: {}\n", number++, until, kernel.reason);
      if (!is_compiled(kernel)) continue;
      const LoweredKernel lowered =
          lower(kernel, work, target, [&](std::string_view stage, const UOp& after) {
            if (stage == until) out += styled(after, style);
          });
      if (as_c) out += render("c", lowered.name, lowered.linear, false);
    }
  }
  return out;
}

void save_compiled(std::string_view text, const std::string& path) {
  std::vector<UOp> values;
  for (const Given& g : parse_all(text, target_here())) {
    KOINE_REQUIRE(g.stage.empty(), Value, "compile: the text holds what comes after {}, not values",
                  g.stage);
    values.push_back(g.graph);
  }
  std::map<std::string, Tensor> outputs, inputs;
  Substitution memory;
  for (const UOp& u : toposort(sink(values)))
    if (u.is(Op::Buffer)) {
      const Tensor input(buffer_from_host(
          u.shape(), u.dtype(), u.device() ? u.device().name() : default_device(), nullptr));
      memory.emplace(u, input.uop());
      inputs.emplace(std::to_string(u.as<BufferArg>().slot), input);
    }
  for (size_t i = 0; i < values.size(); ++i)
    outputs.emplace(values.size() == 1 ? "out" : fmt::format("out{}", i),
                    Tensor(substitute(values[i], memory)));
  save_program(outputs, inputs, path);
}

UOp last_graph(std::string_view text) { return parse_all(text, target_here()).back().graph; }

std::string sources_of(std::string_view text, std::string_view language) {
  const bool llvm = language == "llvm", ptx = language == "ptx";
  const Dialect* dialect = nullptr;
  std::string known;
  for (const Dialect* d : dialects()) {
    known += fmt::format("{}, ", d->name);
    if (d->name == language) dialect = d;
  }
  KOINE_REQUIRE(llvm || ptx || dialect, Value, "--target={}: expected {}ptx, or llvm", language,
                known);
  const bool groups = dialect != nullptr && !dialect->barrier.empty();
  const Target target = ptx      ? ptx_target(options().strict)
                        : groups ? text_target(language, options().strict)
                                 : target_here();
  const std::string_view comment = llvm ? ";" : "//";
  std::string out;
  std::unordered_map<UOp, std::string> names;  // of what is written
  std::map<std::string, size_t> of_name;       // how many
  for (const Given& g : parse_all(text, target)) {
    const Work work = work_of(g, target);
    for (const Piece& kernel : work.kernels) {
      if (!is_compiled(kernel)) {
        out += fmt::format("{} {}\n", comment, kernel.reason);
        continue;
      }
      const LoweredKernel k = lower(kernel, work, target);
      const bool first = names.empty();
      const auto [at, fresh] = names.try_emplace(k.linear, k.name);
      std::string& name = at->second;
      if (const size_t same = fresh ? of_name[k.name]++ : 0; same > 0)
        name += fmt::format("_{}", same);
      const std::string numbers = numbers_of_launch(kernel);
      if (!fresh || !numbers.empty())
        out += fmt::format("{} {}{}{}\n", comment, name, fresh ? "" : " again", numbers);
      if (!fresh) continue;
      out += llvm  ? render_llvm_text(k.linear, name, target)
             : ptx ? render_ptx(k.linear, name, target)
                   : render(language, name, k.linear, first);
    }
  }
  return out;
}

}  // namespace koine::app
