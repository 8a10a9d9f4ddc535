// Programs as text and as C++.
#include <fmt/ranges.h>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "programs.hpp"
#include "reduce.hpp"
#include "to_cpp.hpp"

namespace koine::test {
namespace {

std::string numbers_of(const Array& a) {
  std::string out;
  for (size_t i = 0; i < a.data.size(); ++i) {
    if (i == 64) return out + ", ...";
    out += fmt::format("{}{}", i ? ", " : "", bits_to_double(a.dtype, a.data[i]));
  }
  return out;
}

std::string kind_name(Step::Kind kind) {
  static const char* names[] = {"Leaf",     "Make",    "View", "Assign", "SetRows", "Pick",
                                "Backward", "Realize", "Drop", "Look",   "Run"};
  return names[static_cast<size_t>(kind)];
}

// Definitions of the names that graphs give to placeholders.
std::string names_cpp(const Program& program, const UOp& graph) {
  std::string out;
  for (const UOp& u : toposort(graph))
    for (const auto& [id, place] : program.placeholders)
      if (place == u)
        out += fmt::format("const UOp b{} = t{}.uop();\n", u.as<BufferArg>().slot, id);
  return out;
}

std::string tensor_cpp(const Program& program, const UOp& graph) {
  return fmt::format("[&] {{\n{}{}return Tensor(root);\n}}()", names_cpp(program, graph),
                     to_cpp(graph));
}

std::string leaf_cpp(const Step& s) {
  const auto bits = 8 * item_size(s.data.dtype);
  std::string items;
  for (const Bits b : s.data.data) items += fmt::format("{:#x}, ", b);
  return fmt::format(
      "const std::vector<uint{}_t> d{} = {{{}}};\n"
      "Tensor t{} = Tensor::from_bytes(d{}.data(), {{{}}}, *dtype_from_name(\"{}\"));\n",
      bits, s.value, items, s.value, s.value, fmt::join(s.data.sizes, ", "),
      dtype_name(s.data.dtype));
}

std::string view_cpp(const UOp& chain) {
  std::string out;
  for (UOp u = chain; !u.is(Op::Buffer); u = UOp(u.src(0))) {
    std::string call;
    if (u.is(Op::Permute)) {
      call = fmt::format(".permute({{{}}})", fmt::join(u.as<Ints>(), ", "));
    } else if (u.is(Op::Reshape)) {
      call = fmt::format(".reshape({{{}}})", fmt::join(u.sizes(), ", "));
    } else if (u.is(Op::Flip)) {
      std::vector<size_t> axes;
      for (size_t i = 0; i < u.rank(); ++i)
        if (u.as<Ints>()[i] != 0) axes.push_back(i);
      if (!axes.empty()) call = fmt::format(".flip({{{}}})", fmt::join(axes, ", "));
    } else {
      std::string bounds;
      for (size_t i = 0; i < u.rank(); ++i) {
        const int64_t from = const_int(u.src(1).src(i));
        bounds += fmt::format("{{{}, {}}}, ", from, from + const_int(u.src(2).src(i)));
      }
      call = fmt::format(".shrink({{{}}})", bounds);
    }
    out = call + out;
  }
  return out;
}

std::string run_cpp(const Program& program, const Step& s) {
  std::string out = "{  // what is stored to: a copy\n", names;
  for (size_t i = 0; i < s.graphs.size(); ++i) {
    out += fmt::format("const Tensor r{} = {};\n", i, tensor_cpp(program, s.graphs[i]));
    names += fmt::format("{}r{}.uop()", i ? ", " : "", i);
  }
  for (const auto& variables : s.bindings) {
    std::string values;
    for (const auto& [name, value] : variables)
      values += fmt::format("{{\"{}\", {}}}, ", name, value);
    out += fmt::format("realize({{{}}}, {{{}}});\n", names, values);
  }
  return out + "}\n";
}

std::string backward_cpp(const Program& program, const Step& s) {
  const int to = s.values[0], between = s.values[1];
  return fmt::format(
      "Tensor t{} = [&, t{} = t{}.clone()]() mutable {{\nt{}.requires_grad();\n"
      "const Tensor t{} = {};\n{}{}.sum().backward();\nreturn t{}.grad();\n}}();\n",
      s.value, to, to, to, between, tensor_cpp(program, s.graphs[0]),
      s.looked ? fmt::format("(void)t{}.bytes();\n", between) : "",
      tensor_cpp(program, s.graphs[1]), to);
}

const char* index_name(IndexMode mode) {
  return mode == IndexMode::Raise ? "raise" : mode == IndexMode::Clamp ? "clamp" : "fill";
}

std::string list_cpp(const std::vector<int>& ids) {
  std::string out;
  for (const int id : ids) out += fmt::format("{}t{}", out.empty() ? "" : ", ", id);
  return out;
}

}  // namespace

std::string text_of(const Program& program) {
  std::string out;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& s = program.steps[i];
    out += fmt::format("step {}: {}", i, kind_name(s.kind));
    if (s.value >= 0)
      out += fmt::format(" t{} (slot {})", s.value,
                         program.placeholders.at(s.value).as<BufferArg>().slot);
    if (!s.values.empty()) out += fmt::format(" {}", list_cpp(s.values));
    if (!s.data.data.empty())
      out += (s.kind == Step::Kind::Leaf ? " = " : " at ") + numbers_of(s.data);
    if (s.kind == Step::Kind::SetRows || s.kind == Step::Kind::Pick)
      out += fmt::format(" axis {} KOINE_INDEX={}", s.axis, index_name(s.index));
    if (s.looked) out += " looked at between";
    for (const auto& variables : s.bindings)
      for (const auto& [name, value] : variables) out += fmt::format(" {}={}", name, value);
    out += "\n";
    for (const UOp& g : s.graphs) out += to_text(g);
  }
  return out;
}

std::string cpp_of(const Program& program) {
  std::string out;
  for (const Step& s : program.steps) switch (s.kind) {
      case Step::Kind::Leaf:
        out += leaf_cpp(s);
        break;
      case Step::Kind::Make:
        out += fmt::format("Tensor t{} = {};\n", s.value, tensor_cpp(program, s.graphs[0]));
        break;
      case Step::Kind::View:
        out += fmt::format("Tensor t{} = t{}{};\n", s.value, s.values[0], view_cpp(s.graphs[0]));
        break;
      case Step::Kind::Assign:
        out += fmt::format("t{}.assign({});\n", s.value, tensor_cpp(program, s.graphs[0]));
        break;
      case Step::Kind::SetRows:
        out += fmt::format(
            "t{}.setitem({{Tensor::from<int64_t>({{{}}})}}, {});  // KOINE_INDEX={}\n", s.value,
            numbers_of(s.data), tensor_cpp(program, s.graphs[0]), index_name(s.index));
        break;
      case Step::Kind::Pick:
        out +=
            fmt::format("Tensor t{} = t{}.index_select({}, {});  // KOINE_INDEX={}\n", s.value,
                        s.values[0], s.axis, tensor_cpp(program, s.graphs[0]), index_name(s.index));
        break;
      case Step::Kind::Backward:
        out += backward_cpp(program, s);
        break;
      case Step::Kind::Realize:
      case Step::Kind::Look:
        out += fmt::format("Tensor::realize({{{}}});\n", list_cpp(s.values));
        break;
      case Step::Kind::Drop:
        for (const int id : s.values) out += fmt::format("t{} = Tensor();\n", id);
        break;
      case Step::Kind::Run:
        out += run_cpp(program, s);
    }
  return out;
}

int64_t size_of(const Program& program) {
  int64_t n = 0;
  for (const Step& s : program.steps) {
    n += 1 + static_cast<int64_t>(s.values.size() + s.bindings.size());
    for (const UOp& g : s.graphs) n += graph_size(g);
  }
  return n;
}

}  // namespace koine::test
