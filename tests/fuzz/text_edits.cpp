#include "text_edits.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "check.hpp"
#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

using Line = GraphText::Line;

std::vector<std::string_view> split(std::string_view text, std::string_view at) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t stop = std::min(text.find(at), text.size());
    out.push_back(text.substr(0, stop));
    text.remove_prefix(std::min(stop + at.size(), text.size()));
  }
  return out;
}

bool is_memory_or_place(const UOp& u) {
  const UOp& base = strip_after(u);
  return base.is(Op::Buffer) || (base.is(Op::Param) && base.as<BufferArg>().name.empty()) ||
         is_address(u);
}

Line read_line(std::string_view row) {
  Line out;
  row.remove_prefix(row.find("= ") + 2);
  const size_t name = row.find_first_of("[(");
  out.op = row.substr(0, name);
  size_t open = name;
  if (row[name] == '[') {
    open = row.find("](", name) + 1;
    out.arg = row.substr(name + 1, open - name - 2);
  }
  const size_t close = row.find(')', open);
  for (const std::string_view word : split(row.substr(open + 1, close - open - 1), ", "))
    out.src.push_back(std::stoul(std::string(word.substr(1))));
  out.tail = row.substr(close + 1);
  return out;
}

// What the graph says of the lines, which stand in its order.
void describe(GraphText& graph, const UOp& root) {
  const bool values =
      graph.heading.empty() || graph.heading.find("after callify") != std::string::npos;
  size_t at = 0;
  for (const UOp& u : toposort(root)) {
    Line& line = graph.lines.at(at++);
    line.dtype = u.dtype();
    line.form = line.op;
    if (line.dtype == DType::Void) continue;
    line.rank = u.rank();
    line.form = shape_text(u) + (!values && is_memory_or_place(u) ? " place" : "");
  }
}

// Edits one graph. Each kind of edit says whether it found something to change.
class FittingEdits {
 public:
  FittingEdits(GraphText& graph, const OpResults& results, std::mt19937_64& random)
      : graph_(graph), lines_(graph.lines), results_(results), random_(random) {}

  void edit() {
    using Edit = bool (FittingEdits::*)();
    static constexpr Edit edits[] = {
        &FittingEdits::other_op,       &FittingEdits::other_op,      &FittingEdits::other_number,
        &FittingEdits::other_number,   &FittingEdits::other_source,  &FittingEdits::other_source,
        &FittingEdits::other_dtype,    &FittingEdits::other_arg,     &FittingEdits::other_order,
        &FittingEdits::other_length,   &FittingEdits::one_op_more,   &FittingEdits::one_op_more,
        &FittingEdits::one_store_more, &FittingEdits::one_cast_more,
    };
    constexpr int most_tries = 10;
    for (int i = 0; i < most_tries; ++i)
      if ((this->*edits[below(std::size(edits))])()) return;
  }

 private:
  static constexpr size_t none = ~size_t{0};

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool chance(size_t one_in) { return below(one_in) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  template <class Fits>
  size_t find(Fits&& fits) {
    const size_t from = below(lines_.size());
    for (size_t n = 0; n < lines_.size(); ++n)
      if (const size_t i = (from + n) % lines_.size(); fits(lines_[i])) return i;
    return none;
  }
  static Op op_of(const Line& line) { return *op_from_name(line.op); }
  static std::vector<std::string> words_of(const std::string& arg) {
    const auto words = split(arg, " ");
    return {words.begin(), words.end()};
  }
  static bool is_linear(const Line& line) { return line.op == "Linear"; }

  // An earlier line that may stand for line `like`; `like` itself where there is no other.
  size_t earlier(size_t like, size_t before) {
    const Line& l = lines_[like];
    std::vector<size_t> fitting;
    for (size_t j = 0; j < before; ++j)
      if (j != like && lines_[j].dtype == l.dtype && lines_[j].form == l.form) fitting.push_back(j);
    return fitting.empty() ? like : pick(fitting);
  }

  bool other_op() {
    const size_t i = find([&](const Line& l) {
      const GroupOp group = op_info(op_of(l)).group;
      return (group == GroupOp::Unary && l.op != "Cast") || group == GroupOp::Binary ||
             group == GroupOp::Marker;
    });
    if (i == none) return false;
    Line& line = lines_[i];
    std::vector<Op> fitting;
    for (int o = 0; o < op_count; ++o) {
      const Op op = static_cast<Op>(o);
      if (op == op_of(line) || op_info(op).group != op_info(op_of(line)).group) continue;
      const bool marker = op_info(op).group == GroupOp::Marker && op != Op::Assume;
      if (marker || results_.of(op, lines_[line.src[0]].dtype) == line.dtype) fitting.push_back(op);
    }
    if (fitting.empty() || line.op == "Assume") return false;
    line.op = op_name(pick(fitting));
    line.arg.clear();
    return true;
  }

  std::string scalar(DType dtype, int64_t old) {
    if (is_float(dtype)) {
      static const std::vector<std::string> floats{"0", "-0",   "1",   "-1",      "0.5",
                                                   "2", "3.75", "inf", "nan:7e00"};
      return pick(floats);
    }
    if (dtype == DType::Bool) return chance(2) ? "0" : "1";
    static const std::vector<std::string> far{
        "255",        "256",        "4096",       "16385",         "65536",
        "2147483647", "4294967296", "1000000000", "1099511627776", "9223372036854775807"};
    if (chance(12)) return pick(far);
    const int64_t near[] = {
        old + 1, old - 1, old / 2, static_cast<int64_t>(below(10)), static_cast<int64_t>(below(40)),
        -1};
    const int64_t value = near[below(std::size(near))];
    return std::to_string(is_signed(dtype) || dtype == DType::Index ? value : std::abs(value));
  }

  bool other_number() {
    const size_t i = find([](const Line& l) { return l.op == "Const"; });
    if (i == none) return false;
    const auto space = lines_[i].arg.find(' ');
    const int64_t old = std::strtoll(lines_[i].arg.c_str() + space, nullptr, 10) % (1 << 20);
    lines_[i].arg = lines_[i].arg.substr(0, space + 1) + scalar(lines_[i].dtype, old);
    return true;
  }

  bool other_source() {
    const size_t i = find([](const Line& l) { return !l.src.empty(); });
    if (i == none) return false;
    size_t& source = lines_[i].src[below(lines_[i].src.size())];
    const size_t old = source;
    source = earlier(old, i);
    return source != old;
  }

  // All of one dtype become another.
  bool other_dtype() {
    const size_t i =
        find([](const Line& l) { return l.dtype != DType::Void && l.dtype != DType::Index; });
    if (i == none) return false;
    const DType from = lines_[i].dtype;
    const auto to = static_cast<DType>(1 + below(dtype_count - 2));
    for (Line& l : lines_) {
      if (l.dtype == from) l.dtype = to;
      std::vector<std::string> words = words_of(l.arg);
      const auto name = std::find(words.begin(), words.end(), dtype_name(from));
      if (name == words.end()) continue;
      *name = dtype_name(to);
      l.arg = fmt::format("{}", fmt::join(words, " "));
      if (l.op == "Const") l.arg = fmt::format("{} {}", dtype_name(to), scalar(to, 3));
    }
    return from != to;
  }

  bool other_arg() {
    const size_t i = find([](const Line& l) {
      return !l.arg.empty() && l.op != "Const" && l.op != "Cast" && l.op != "Bitcast";
    });
    if (i == none) return false;
    Line& line = lines_[i];
    std::vector<std::string> words = words_of(line.arg);
    std::string& word = words[below(words.size())];
    static const std::vector<std::vector<std::string>> alike{
        {"LOOP", "REDUCE", "UPCAST", "UNROLL", "GROUP_REDUCE", "THREAD"},
        {"GLOBAL", "LOCAL", "REG"},
        {"Add", "Max", "Mul"}};
    for (const auto& list : alike)
      if (std::find(list.begin(), list.end(), word) != list.end()) {
        word = pick(list);
        line.arg = fmt::format("{}", fmt::join(words, " "));
        return true;
      }
    const size_t digit = word.find_first_of("0123456789");
    if (digit == word.npos || word.find_first_of("\"@") != word.npos) return false;
    word[digit] = static_cast<char>('0' + below(4));
    line.arg = fmt::format("{}", fmt::join(words, " "));
    return true;
  }

  bool other_order() {
    const size_t i = find([](const Line& l) { return l.src.size() > 1; });
    if (i == none) return false;
    auto& src = lines_[i].src;
    std::swap(src[below(src.size())], src[below(src.size())]);
    return true;
  }

  // One source more or less.
  bool other_length() {
    const size_t i =
        find([](const Line& l) { return op_info(op_of(l)).fewest != op_info(op_of(l)).most; });
    if (i == none || lines_[i].src.empty()) return false;
    auto& src = lines_[i].src;
    const auto at = src.begin() + static_cast<std::ptrdiff_t>(below(src.size()));
    if (chance(2))
      src.erase(at);
    else
      src.insert(at, earlier(*at, i));
    return true;
  }

  // Puts a line before line `user`, which takes it where it took `old`; where the line stands.
  size_t insert(size_t user, size_t old, Line line) {
    for (size_t j = user; j < lines_.size(); ++j)
      for (size_t& s : lines_[j].src)
        if (s >= user) ++s;
    lines_.insert(lines_.begin() + static_cast<std::ptrdiff_t>(user), std::move(line));
    for (size_t& s : lines_[user + 1].src)
      if (s == old) s = user;
    if (Line& last = lines_.back(); is_linear(last))  // instructions are listed
      if (const auto at = std::find(last.src.begin(), last.src.end(), user + 1);
          at != last.src.end())
        last.src.insert(at, user);
    return user;
  }

  // A line that uses a value, and which of its sources that is.
  bool use_of_value(size_t& user, size_t& source) {
    user = find([&](const Line& l) {
      return !l.src.empty() && !is_linear(l) && l.op != "Stack" &&
             lines_[l.src[0]].dtype != DType::Void;
    });
    if (user == none) return false;
    source = pick(lines_[user].src);
    const Line& s = lines_[source];
    return s.dtype != DType::Void && s.dtype != DType::Index && !s.form.ends_with("place");
  }

  bool one_op_more() {
    size_t user = 0, source = 0;
    if (!use_of_value(user, source)) return false;
    Line line = lines_[source];
    line.tail.clear();
    line.arg.clear();
    line.src = {source};
    if (chance(4) && line.rank > 0) {
      std::vector<int> flags(line.rank);
      for (int& f : flags) f = static_cast<int>(below(2));
      line.op = "Flip";
      line.arg = fmt::format("({})", fmt::join(flags, " "));
    } else {
      std::vector<Op> fitting;
      for (int o = 0; o < op_count; ++o)
        if (results_.of(static_cast<Op>(o), line.dtype) == line.dtype &&
            static_cast<Op>(o) != Op::Cast)
          fitting.push_back(static_cast<Op>(o));
      for (const Op marker : {Op::Contiguous, Op::Detach})
        if (graph_.heading.empty()) fitting.push_back(marker);
      if (fitting.empty()) return false;
      const Op op = pick(fitting);
      line.op = op_name(op);
      while (line.src.size() < static_cast<size_t>(op_info(op).fewest))
        line.src.push_back(chance(3) ? source : earlier(source, user));
    }
    insert(user, source, std::move(line));
    return true;
  }

  // What is in memory is overwritten before it is used.
  bool one_store_more() {
    const size_t user = find([&](const Line& l) { return !l.src.empty() && l.op != "Param"; });
    if (user == none) return false;
    const size_t source = pick(lines_[user].src);
    const Line memory = lines_[source];
    if (memory.op != "Param" && memory.op != "Buffer" && memory.op != "After") return false;
    if (memory.form.ends_with("place")) return false;
    const size_t value = earlier(source, user);
    const size_t written = chance(4) ? earlier(source, user) : source;
    const size_t done = insert(user, none, {"Store", "", "", {written, value}, {}, 0, "Store"});
    insert(done + 1, source,
           {"After", "", "", {source, done}, memory.dtype, memory.rank, memory.form});
    return true;
  }

  bool one_cast_more() {
    size_t user = 0, source = 0;
    if (!use_of_value(user, source)) return false;
    Line there = lines_[source], back = there;
    there.dtype = static_cast<DType>(1 + below(dtype_count - 2));
    there.op = back.op = "Cast";
    there.tail = back.tail = "";
    there.arg = dtype_name(there.dtype);
    back.arg = dtype_name(back.dtype);
    there.src = {source};
    const size_t first = insert(user, none, std::move(there));
    back.src = {first};
    insert(first + 1, source, std::move(back));
    return true;
  }

  GraphText& graph_;
  std::vector<Line>& lines_;
  const OpResults& results_;
  std::mt19937_64& random_;
};

}  // namespace

std::vector<GraphText> graphs_of(const std::string& text) {
  std::vector<GraphText> out;
  std::string comments;
  for (const std::string_view row : split(text, "\n")) {
    if (row.starts_with(';')) comments += std::string(row) + "\n";
    if (!row.starts_with('%')) continue;
    if (row.starts_with("%0 ")) {
      out.push_back({comments, {}});
      comments.clear();
    }
    out.back().lines.push_back(read_line(row));
  }
  for (GraphText& graph : out) describe(graph, parse(text_of(graph)));
  return out;
}

std::string text_of(const GraphText& graph) {
  std::string out = graph.heading;
  for (size_t i = 0; i < graph.lines.size(); ++i) {
    const Line& l = graph.lines[i];
    fmt::format_to(std::back_inserter(out), "%{} = {}", i, l.op);
    if (!l.arg.empty()) out += "[" + l.arg + "]";
    out += "(";
    for (size_t k = 0; k < l.src.size(); ++k)
      fmt::format_to(std::back_inserter(out), "{}%{}", k > 0 ? ", " : "", l.src[k]);
    out += ")" + l.tail + "\n";
  }
  return out;
}

OpResults::OpResults() {
  for (int o = 0; o < op_count; ++o) {
    const Op op = static_cast<Op>(o);
    if (!is_elementwise(op) || op == Op::Cast) continue;
    for (int d = 1; d < dtype_count; ++d) {
      const UOp operand = param(0, shape_of({}), static_cast<DType>(d));
      const std::vector<UOp> src(static_cast<size_t>(op_info(op).fewest), operand);
      try {
        table_[static_cast<size_t>(o)][static_cast<size_t>(d)] = UOp::make(op, src).dtype();
      } catch (const Error&) {
        continue;  // refused
      }
    }
  }
}

TextMutator::TextMutator(const std::vector<std::string>& corpus) {
  for (const std::string& text : corpus)
    for (GraphText& graph : graphs_of(text)) {
      texts_.push_back(text_of(graph));
      graphs_.push_back(std::move(graph));
    }
}

std::string TextMutator::run(std::mt19937_64& random) const {
  const size_t which = random() % graphs_.size();
  if (random() % 4 == 0) return wild_edits(texts_[which], texts_, random);
  GraphText graph = graphs_[which];
  FittingEdits edits(graph, results_, random);
  for (size_t left = 1 + random() % 4; left > 0; --left) edits.edit();
  return text_of(graph);
}

}  // namespace koine::test
