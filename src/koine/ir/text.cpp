#include "koine/ir/text.hpp"

#include <absl/container/flat_hash_map.h>

#include <charconv>
#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"

namespace koine {
namespace {

std::string quote(std::string_view raw) {
  std::string out = "\"";
  for (const char c : raw) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) > 126) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string scalar_text(const ConstArg& c) {
  if (c.invalid) return "invalid";
  if (!is_float(c.dtype))
    return c.dtype == DType::UInt64 ? fmt::format("{}", c.bits)
                                    : fmt::format("{}", bits_to_int(c.dtype, c.bits));
  const double value = bits_to_double(c.dtype, c.bits);
  if (std::isnan(value)) return fmt::format("nan:{:x}", c.bits);
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return c.dtype == DType::Float32 ? fmt::format("{}", static_cast<float>(value))
                                   : fmt::format("{}", value);
}

struct ArgPrinter {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(DType v) const { return std::string(dtype_name(v)); }
  std::string operator()(const ConstArg& v) const {
    return fmt::format("{} {}", dtype_name(v.dtype), scalar_text(v));
  }
  std::string operator()(const BufferArg& v) const {
    std::string out = fmt::format("{} {} {}", v.slot, dtype_name(v.dtype), addrspace_name(v.space));
    if (v.device) out += " @" + quote(v.device.name());
    if (!v.name.empty()) out += " " + quote(v.name);
    if (v.offset >= 0) out += fmt::format(" at {}", v.offset);
    if (v.axes.empty()) out += " whole";
    if (!(v.axes == AxisSet(0)))
      v.axes.each([&](size_t axis) { out += fmt::format(" axis {}", axis); });
    if (v.kind != ParamKind::Argument) out += fmt::format(" {}", param_kind_name(v.kind));
    return out;
  }
  std::string operator()(const RangeArg& v) const {
    return fmt::format("{} {}", v.id, axis_type_name(v.type));
  }
  std::string operator()(const Ints& v) const { return fmt::format("({})", fmt::join(v, " ")); }
  std::string operator()(const ReduceArg& v) const {
    return fmt::format("{} ({}){}{}{}", op_name(v.op), fmt::join(v.axes, " "),
                       v.goes_on ? " goes_on" : "", v.staged ? " staged" : "",
                       v.core.empty() ? "" : " " + quote(v.core));
  }
  std::string operator()(const WmmaArg& v) const {
    return fmt::format("{} {} {} {}", quote(v.core), (*this)(v.a), (*this)(v.b),
                       (*this)(v.accumulator));
  }
  std::string operator()(const LoadArg& v) const {
    return fmt::format(
        "{}{}{}{}", addrspace_name(v.space), v.device ? " @" + quote(v.device.name()) : "",
        v.axes.empty() ? "" : " " + (*this)(v.axes), v.reason.empty() ? "" : " " + quote(v.reason));
  }
  std::string operator()(const std::string& v) const { return quote(v); }
  std::string operator()(const CodeArg& v) const {
    return fmt::format("{} {}", dtype_name(v.dtype), quote(v.text));
  }
  std::string operator()(const MarkArg& v) const {
    const std::string name(mark_name(v.mark));
    return is_numbered(v.mark) ? fmt::format("{} {}", name, v.number) : name;
  }
};

}  // namespace

std::string arg_text(const Arg& arg) { return std::visit(ArgPrinter{}, arg); }

std::string to_text(const UOp& root) {
  std::string out;
  absl::flat_hash_map<const Node*, size_t> number;
  for (const UOp& node : toposort_with_bodies(root)) {
    const size_t n = number.size();
    number.emplace(node.node(), n);
    out += fmt::format("%{} = {}", n, op_name(node.op()));
    if (node.arg().index() != 0) out += "[" + arg_text(node.arg()) + "]";
    out += "(";
    for (size_t i = 0; i < node.src().size(); ++i)
      out += fmt::format("{}%{}", i ? ", " : "", number.at(node.src(i).node()));
    out += ")";
    if (node.tag() != 0) out += fmt::format(" tag {}", node.tag());
    out += "\n";
  }
  return out;
}

namespace {

// Reader of one line of text; every failure names the line.
class LineParser {
 public:
  LineParser(std::string_view text, size_t line) : rest_(text), line_(line) {}

  [[noreturn]] void fail(std::string_view why) const {
    raise(ErrorKind::Value, "graph text, line {}: {} at '{}'", line_, why, rest_.substr(0, 30));
  }
  void space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }
  bool accept(char c) {
    space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  bool at_end() {
    space();
    return rest_.empty() || rest_[0] == ';';
  }
  bool peek(char c) {
    space();
    return !rest_.empty() && rest_[0] == c;
  }
  std::string_view word() {
    space();
    size_t n = 0;
    while (n < rest_.size() &&
           std::string_view(" \t,()[]=").find(rest_[n]) == std::string_view::npos)
      ++n;
    if (n == 0) fail("expected a word");
    const std::string_view w = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return w;
  }
  template <class T>
  T number(int base = 10) {
    const std::string_view w = word();
    return number_of<T>(w, base);
  }
  template <class T>
  T number_of(std::string_view w, int base = 10) {
    T value{};
    auto [end, code] = std::from_chars(w.data(), w.data() + w.size(), value, base);
    if (code != std::errc() || end != w.data() + w.size()) fail("expected an integer");
    return value;
  }
  DType dtype() {
    const auto d = dtype_from_name(word());
    if (!d) fail("unknown dtype");
    return *d;
  }
  std::string quoted() {
    expect('"');
    std::string out;
    while (true) {
      if (rest_.empty()) fail("unterminated string");
      const char c = rest_[0];
      rest_.remove_prefix(1);
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (rest_.empty()) fail("unterminated string");
      const char escaped = rest_[0];
      rest_.remove_prefix(1);
      if (escaped != 'x') {
        out += escaped;
        continue;
      }
      if (rest_.size() < 2) fail("unterminated escape");
      out += static_cast<char>(number_of<unsigned>(rest_.substr(0, 2), 16));
      rest_.remove_prefix(2);
    }
  }
  Ints ints() {
    expect('(');
    Ints out;
    while (!accept(')')) out.push_back(number<int64_t>());
    return out;
  }
  AddrSpace addrspace() {
    const std::string_view w = word();
    for (const AddrSpace s : {AddrSpace::Global, AddrSpace::Local, AddrSpace::Reg})
      if (addrspace_name(s) == w) return s;
    fail("unknown address space");
  }
  Device device() { return accept('@') ? Device(quoted()) : Device(); }

  // Of a buffer, a traced Param or a mark: what is made later gets others.
  void reserve(int64_t number) {
    if (number < 0 || number >= int64_t{1} << 62)
      fail("the slot of a buffer and the number of a mark lie from 0 to 2^62");
    reserve_slot(number);
  }
  ParamKind kind(std::string_view w) {
    for (const ParamKind k : {ParamKind::Traced, ParamKind::ViewBase})
      if (param_kind_name(k) == w) return k;
    fail("expected at, axis, whole, traced or view_base");
  }
  MarkArg mark() {
    const std::string_view w = word();
    for (int i = 0; i < mark_count; ++i) {
      MarkArg out{static_cast<Mark>(i)};
      if (mark_name(out.mark) != w) continue;
      if (is_numbered(out.mark)) reserve(out.number = number<int64_t>());
      return out;
    }
    fail("unknown mark");
  }

  ConstArg scalar() {
    const DType type = dtype();
    const std::string_view w = word();
    if (w == "invalid") return {type, 0, true};
    if (w.starts_with("nan:")) return {type, number_of<Bits>(w.substr(4), 16)};
    if (!is_float(type)) {
      if (type == DType::UInt64) return {type, number_of<uint64_t>(w)};
      return {type, int_to_bits(type, number_of<int64_t>(w))};
    }
    double value = 0;
    if (type == DType::Float32) {
      float single = 0;
      auto [end, code] = std::from_chars(w.data(), w.data() + w.size(), single);
      if (code != std::errc() || end != w.data() + w.size()) fail("expected a number");
      value = single;
    } else {
      auto [end, code] = std::from_chars(w.data(), w.data() + w.size(), value);
      if (code != std::errc() || end != w.data() + w.size()) fail("expected a number");
    }
    return {type, double_to_bits(type, value)};
  }

  Arg arg(Op op) {
    switch (op) {
      case Op::Const:
        return scalar();
      case Op::Param:
      case Op::Buffer: {
        BufferArg b{number<int64_t>(), dtype(), {}, addrspace()};
        if (op == Op::Buffer) reserve(b.slot);
        b.device = device();
        if (peek('"')) b.name = quoted();
        AxisSet axes;
        while (!peek(']')) {
          const std::string_view w = word();
          if (w == "at" && op == Op::Buffer)
            b.offset = number<int64_t>();
          else if (w == "axis" && b.device.count() > 1)
            axes.insert(number<uint32_t>());
          else if (w == "whole" && b.device.count() > 1)
            b.axes = {};
          else
            b.kind = kind(w);
        }
        if (!axes.empty()) b.axes = axes;
        if (b.kind == ParamKind::Traced) reserve(b.slot);
        return b;
      }
      case Op::Permute:
      case Op::Flip:
        return ints();
      case Op::Cast:
      case Op::Bitcast:
        return dtype();
      case Op::Reduce: {
        const auto reduce_op = op_from_name(word());
        if (!reduce_op) fail("unknown op");
        ReduceArg r{*reduce_op, ints()};
        while (!peek(']') && !peek('"')) {
          const auto mark = word();
          if (mark != "goes_on" && mark != "staged") fail("expected goes_on or staged");
          (mark == "staged" ? r.staged : r.goes_on) = true;
        }
        if (peek('"')) r.core = quoted();
        return r;
      }
      case Op::Load: {
        LoadArg l{{}, addrspace()};
        l.device = device();
        if (peek('(')) l.axes = ints();
        if (peek('"')) l.reason = quoted();
        return l;
      }
      case Op::Range: {
        const auto id = number<int64_t>();
        const std::string_view w = word();
        for (int t = 0; t < axis_type_count; ++t)
          if (axis_type_name(static_cast<AxisType>(t)) == w)
            return RangeArg{id, static_cast<AxisType>(t)};
        fail("unknown axis type");
      }
      case Op::GetTuple:
      case Op::Exp2:
      case Op::Log2:
      case Op::Sin:
      case Op::Mul:
      case Op::Replicated:
        return number<int64_t>();
      case Op::Wmma: {
        WmmaArg w{quoted()};
        w.a = ints();
        w.b = ints();
        w.accumulator = ints();
        return w;
      }
      case Op::Ins:
      case Op::Custom: {
        const DType type = dtype();
        return CodeArg{quoted(), type};
      }
      case Op::Contiguous:
      case Op::Detach:
      case Op::End:
        return peek('"') ? Arg(quoted()) : Arg(mark());
      default:
        return quoted();
    }
  }

 private:
  std::string_view rest_;
  size_t line_;
};

}  // namespace

UOp parse(std::string_view text, size_t lines_before) {
  std::vector<UOp> nodes;
  size_t line = lines_before;
  while (!text.empty()) {
    const size_t stop = text.find('\n');
    LineParser p(text.substr(0, stop), ++line);
    text = stop == std::string_view::npos ? std::string_view() : text.substr(stop + 1);
    if (p.at_end()) continue;
    auto reference = [&]() -> size_t {
      p.expect('%');
      return p.number<size_t>();
    };
    if (reference() != nodes.size()) p.fail(fmt::format("expected %{}", nodes.size()));
    p.expect('=');
    const auto op = op_from_name(p.word());
    if (!op) p.fail("unknown op");
    Arg arg;
    if (p.accept('[')) {
      arg = p.arg(*op);
      p.expect(']');
    }
    p.expect('(');
    std::vector<UOp> src;
    while (!p.accept(')')) {
      if (!src.empty()) p.expect(',');
      const size_t n = reference();
      if (n >= nodes.size()) p.fail(fmt::format("%{} is not defined yet", n));
      src.push_back(nodes[n]);
    }
    int64_t tag = 0;
    if (!p.at_end()) {
      if (p.word() != "tag") p.fail("expected 'tag'");
      tag = p.number<int64_t>();
    }
    if (!p.at_end()) p.fail("unexpected text");
    nodes.push_back(UOp::make(*op, src, arg, tag));
  }
  KOINE_REQUIRE(!nodes.empty(), Value, "graph text is empty");
  return nodes.back();
}

std::string stack_text(const UOp& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.src().size(); ++i) out += (i ? ", " : "") + dim_text(shape.src(i));
  return out + (shape.src().size() == 1 ? ",)" : ")");
}
std::string shape_text(const UOp& value) { return stack_text(value.shape()); }
std::string dim_text(const UOp& dim) { return expression_text(dim); }

namespace {

int precedence(Op op) {
  switch (op) {
    case Op::Add:
      return 4;
    case Op::Mul:
    case Op::Idiv:
    case Op::Mod:
    case Op::Fdiv:
      return 5;
    case Op::CmpLt:
    case Op::CmpNe:
      return 3;
    case Op::And:
      return 2;
    case Op::Or:
    case Op::Xor:
      return 1;
    default:
      return 9;
  }
}

std::string_view infix(Op op) {
  switch (op) {
    case Op::Add:
      return "+";
    case Op::Mul:
      return "*";
    case Op::Idiv:
      return "//";
    case Op::Mod:
      return "%";
    case Op::Fdiv:
      return "/";
    case Op::CmpLt:
      return "<";
    case Op::CmpNe:
      return "!=";
    case Op::And:
      return "&";
    case Op::Or:
      return "|";
    case Op::Xor:
      return "^";
    default:
      return {};
  }
}

}  // namespace

std::string expression_text(const UOp& expression) {
  absl::flat_hash_map<const Node*, std::string> text;
  for (const UOp& node : toposort(expression)) {
    auto of = [&](size_t i) { return text.at(node.src(i).node()); };
    auto wrapped = [&](size_t i, int level) {
      const int p = is_bound(node.src(i)) ? 0 : precedence(node.src(i).op());
      return p < level ? "(" + of(i) + ")" : of(i);
    };
    std::string out;
    if (node.is(Op::Const)) {
      out = scalar_text(node.as<ConstArg>());
    } else if (node.is(Op::Range)) {
      const RangeArg& r = node.as<RangeArg>();
      out = fmt::format("{}{}", axis_letter(r.type), r.id);
    } else if (node.is(Op::Param) || node.is(Op::Buffer)) {
      const BufferArg& b = node.as<BufferArg>();
      out = is_bound(node) ? fmt::format("{}={}", b.name, bound_value(node))
            : !b.name.empty()
                ? b.name
                : fmt::format("{}{}", b.space == AddrSpace::Reg ? "acc" : "data", b.slot);
    } else if (node.is(Op::Load)) {
      out = of(0);
      if (node.src().size() == 3) out = fmt::format("({} ? {} : {})", of(2), of(0), of(1));
    } else if (node.is(Op::Index)) {
      out = of(0) + "[";
      for (size_t i = 1; i < node.src().size(); ++i) out += (i > 1 ? ", " : "") + of(i);
      out += "]";
    } else if (node.is(Op::Where)) {
      out = fmt::format("where({}, {}, {})", of(0), of(1), of(2));
    } else if (const std::string_view symbol = infix(node.op()); !symbol.empty()) {
      const int level = precedence(node.op());
      out = wrapped(0, level) + std::string(symbol) + wrapped(1, level + 1);
    } else if (node.is(Op::Reduce)) {
      out = fmt::format("{}[", op_name(node.as<ReduceArg>().op));
      const size_t ranges = reduced_ranges(node).size();
      for (size_t i = 1; i <= ranges; ++i) out += (i > 1 ? "," : "") + of(i);
      out += "](" + of(0) + (start_of(node) ? ", from " + of(ranges + 1) : "") + ")";
    } else {
      out = std::string(op_name(node.op()));
      if (node.is(Op::Cast) || node.is(Op::Bitcast)) out = arg_text(node.arg());
      out += "(";
      for (size_t i = 0; i < node.src().size(); ++i) out += (i ? ", " : "") + of(i);
      out += ")";
    }
    // A shared subterm may make the text exponential: keep dumps readable.
    if (out.size() > 4000) out = out.substr(0, 3990) + " ...";
    text.emplace(node.node(), std::move(out));
  }
  return text.at(expression.node());
}

namespace {

// What a line of a tree says, and what stands below it. Places are written out, and an access
// shows what must have run before.
struct Line {
  std::string text;
  std::vector<UOp> below;
};

Line access_line(const UOp& u) {
  const UOp& address = strip_after(u.src(0));
  const UOp& memory = address.is(Op::Index) ? address.src(0) : u.src(0);
  const UOp& buffer = strip_after(memory);
  Line out{
      fmt::format("{} {} {}", op_name(u.op()), dtype_name(buffer.dtype()), expression_text(buffer)),
      {u.src().begin() + 1, u.src().end()}};
  if (address.is(Op::Index)) {
    for (size_t i = 1; i < address.src().size(); ++i)
      out.text += (i == 1 ? "[" : ", ") + expression_text(address.src(i));
    out.text += "] of " + shape_text(buffer);
  }
  if (memory.is(Op::After))
    for (const UOp& before : memory.src().subspan(1))
      if (!before.is(Op::Range)) out.below.push_back(before);
  return out;
}

Line line_of(const UOp& u) {
  const bool of_element = (u.is(Op::Load) || u.is(Op::Store)) && !u.src(0).is(Op::Reshape) &&
                          (u.src(0).is(Op::Index) || strip_after(u.src(0)).is(Op::Buffer));
  if (of_element) return access_line(u);
  Line out{std::string(op_name(u.op())), {}};
  const bool loops = u.is(Op::End) || (u.is(Op::Reduce) && !reduced_ranges(u).empty());
  if (u.is(Op::Reduce)) out.text += fmt::format(" {}", op_name(u.as<ReduceArg>().op));
  if (!loops && u.arg().index() != 0) out.text += " " + arg_text(u.arg());
  for (const UOp& s : u.src()) {
    if (loops && s.is(Op::Range))
      out.text += fmt::format(" {}:{}", expression_text(s), dim_text(s.src(0)));
    else
      out.below.push_back(s);
  }
  return out;
}

}  // namespace

std::string tree_text(const UOp& root) {
  std::string out;
  absl::flat_hash_map<const Node*, size_t> seen;
  struct Frame {
    UOp node;
    std::string lead;
    bool last;
    bool top;
  };
  std::vector<Frame> stack{
      {root.is(Op::Sink) && root.src().size() == 1 ? root.src(0) : root, "", true, true}};
  size_t line = 0;
  while (!stack.empty()) {
    const Frame f = stack.back();
    stack.pop_back();
    Line own = line_of(f.node);
    auto [it, fresh] = seen.try_emplace(f.node.node(), line);
    if (!fresh) own.text += fmt::format("  (line {})", it->second);
    const bool leaf = own.below.empty() || !fresh;
    out += fmt::format("{:3} {}{}{} {}\n", line++, f.lead, f.top ? "━" : (f.last ? "┗━" : "┣━"),
                       leaf ? "━" : "┳", own.text);
    if (!fresh) continue;
    const std::string below = f.lead + (f.top ? " " : (f.last ? "  " : "┃ "));
    for (size_t i = own.below.size(); i-- > 0;)
      stack.push_back({own.below[i], below, i + 1 == own.below.size(), false});
  }
  return out;
}

std::string linear_text(const UOp& linear) {
  std::string out = "step  op           dtype     input                arg\n";
  absl::flat_hash_map<const Node*, size_t> step;
  for (size_t i = 0; i < linear.src().size(); ++i) {
    const UOp& u = linear.src(i);
    std::string inputs;
    for (const UOp& s : u.src())  // of what an access waits for, the list is the order
      if (const auto it = step.find(strip_after(s).node()); it != step.end())
        inputs += fmt::format("{}{}", inputs.empty() ? "" : ", ", it->second);
    std::string row = fmt::format("{:4}  {:12} {:9} {:20} {}", i, op_name(u.op()),
                                  dtype_name(u.dtype()), "[" + inputs + "]", arg_text(u.arg()));
    row.erase(row.find_last_not_of(' ') + 1);
    out += row + "\n";
    step[u.node()] = i;
  }
  return out;
}

}  // namespace koine
