#include "view.hpp"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine::app {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Pale enough for black letters.
std::string_view colour_of(GroupOp group) {
  switch (group) {
    case GroupOp::Source:
      return "#ffe8b8";
    case GroupOp::Movement:
      return "#e4dcf7";
    case GroupOp::Reduce:
      return "#f8cfc9";
    case GroupOp::Memory:
      return "#cfe6f5";
    case GroupOp::Order:
      return "#e6e6e6";
    case GroupOp::Call:
    case GroupOp::Codegen:
    case GroupOp::Marker:
      return "#f5dcec";
    case GroupOp::Unary:
    case GroupOp::Binary:
    case GroupOp::Ternary:
      return "#d5efd2";
  }
  return "#ffffff";
}

constexpr std::string_view page = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Koine graph</title>
<style>
html, body { margin: 0; height: 100%; overflow: hidden; font: 14px sans-serif; }
svg { width: 100%; height: 100%; cursor: grab; }
p { position: fixed; left: 8px; bottom: 0; color: #666; }
</style></head><body>
@SVG@
<p>drag to move, wheel to zoom, double click to see all</p>
<script>
const svg = document.querySelector("svg");
svg.removeAttribute("width");
svg.removeAttribute("height");
const all = svg.getAttribute("viewBox").split(/[ ,]+/).map(Number);
let box = all.slice();
const show = () => svg.setAttribute("viewBox", box.join(" "));
const scale = () => Math.max(box[2] / svg.clientWidth, box[3] / svg.clientHeight);
const left = () => (svg.clientWidth - box[2] / scale()) / 2;
const top_ = () => (svg.clientHeight - box[3] / scale()) / 2;
svg.addEventListener("wheel", e => {
  e.preventDefault();
  const f = Math.exp(e.deltaY * 0.0015), s = scale();
  const x = box[0] + (e.clientX - left()) * s, y = box[1] + (e.clientY - top_()) * s;
  box = [x - (x - box[0]) * f, y - (y - box[1]) * f, box[2] * f, box[3] * f];
  show();
}, { passive: false });
let at = null;
svg.addEventListener("pointerdown", e => { at = [e.clientX, e.clientY]; svg.setPointerCapture(e.pointerId); });
svg.addEventListener("pointermove", e => {
  if (!at) return;
  const s = scale();
  box[0] -= (e.clientX - at[0]) * s;
  box[1] -= (e.clientY - at[1]) * s;
  at = [e.clientX, e.clientY];
  show();
});
svg.addEventListener("pointerup", () => { at = null; });
svg.addEventListener("dblclick", () => { box = all.slice(); show(); });
</script></body></html>
)";

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A folder that goes with its owner.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "koine_view_XXXXXX").string();
    KOINE_REQUIRE(mkdtemp(name.data()) != nullptr, File, "{}: cannot be made", name);
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

bool is_number(const UOp& u) { return u.is(Op::Const); }

// Numbers, and sizes made of them, have uses all over a graph: one box for all of them would draw
// lines across all of the picture, which takes Graphviz minutes as well.
bool is_drawn_at_each_use(const UOp& u) {
  return is_number(u) || (u.is(Op::Stack) && !u.src().empty() && u.dtype() == DType::Index &&
                          std::ranges::all_of(u.src(), is_number));
}

// A line of DOT: the node that the text of the graph calls %n.
std::string box(const UOp& u, const std::string& name, size_t n) {
  std::string arg = arg_text(u.arg());
  if (u.is(Op::Stack) && is_drawn_at_each_use(u))
    for (const UOp& s : u.src()) arg += fmt::format("{}{}", arg.empty() ? "" : ", ", const_int(s));
  if (arg.size() > 60) arg = arg.substr(0, 57) + "...";
  std::string label = fmt::format("%{} {}", n, op_name(u.op()));
  if (!arg.empty()) label += "\n" + arg;
  if (u.dtype() != DType::Void)
    label += fmt::format("\n{} {}", dtype_name(u.dtype()), shape_text(u));
  std::string lines;
  for (size_t at = 0; at <= label.size();) {
    const size_t stop = std::min(label.find('\n', at), label.size());
    lines += (at == 0 ? "" : "\\n") + escaped(label.substr(at, stop - at));
    at = stop + 1;
  }
  return fmt::format("  {} [label=\"{}\", fillcolor=\"{}\"];\n", name, lines,
                     colour_of(op_info(u.op()).group));
}

}  // namespace

std::string dot_text(const UOp& graph) {
  std::string out =
      "digraph koine {\n"
      "  node [shape=box, style=\"filled,rounded\", color=\"#888888\", fontname=\"Helvetica\", "
      "fontsize=11, margin=\"0.08,0.04\"];\n"
      "  edge [color=\"#666666\", arrowsize=0.6];\n";
  absl::flat_hash_map<const Node*, size_t> number;
  absl::flat_hash_map<const Node*, size_t> copies;  // of what is drawn at each use, so far
  for (const UOp& u : toposort(graph)) {
    const size_t n = number.size();
    number.emplace(u.node(), n);
    if (is_drawn_at_each_use(u) && u != graph) continue;
    out += box(u, fmt::format("n{}", n), n);
    for (size_t i = 0; i < u.src().size(); ++i) {
      const auto source = number.find(u.src(i).node());
      if (source == number.end()) continue;  // the body of a Call is a graph of its own
      std::string from = fmt::format("n{}", source->second);
      if (is_drawn_at_each_use(u.src(i))) {
        from += fmt::format("_{}", copies[u.src(i).node()]++);
        out += box(u.src(i), from, source->second);
      }
      out += fmt::format("  {} -> n{} [tooltip=\"source {}\"];\n", from, n, i);
    }
  }
  return out + "}\n";
}

std::string picture_of(const std::string& dot, const std::string& form) {
  const Folder folder;
  const auto in = folder.path / "graph.dot", made = folder.path / "graph.svg";
  std::ofstream(in) << dot;
  // Splines, and the best place of each box, take minutes where a graph is large.
  const std::string effort = dot.size() > 1'000'000 ? "0.1" : "2";
  const std::string lines =
      dot.size() < 100'000 ? ""
                           : fmt::format("-Gsplines=line -Gnslimit={0} -Gnslimit1={0} ", effort);
  const int code = std::system(fmt::format("dot {}-Tsvg '{}' -o '{}' 2>'{}'", lines, in.string(),
                                           made.string(), (folder.path / "errors").string())
                                   .c_str());
  KOINE_REQUIRE(WEXITSTATUS(code) != 127, File,
                "Graphviz, which lays out pictures, is missing: install the package graphviz, or "
                "write the graph itself with -o graph.dot");
  KOINE_REQUIRE(code == 0, File, "Graphviz failed: {}", read(folder.path / "errors"));
  std::string svg = read(made);
  if (form == "svg") return svg;
  svg = svg.substr(svg.find("<svg"));  // without the prologue of a file of its own
  std::string out(page);
  constexpr std::string_view mark = "@SVG@";
  return out.replace(out.find(mark), mark.size(), svg);
}

}  // namespace koine::app
