// What random programs hold, without running any: a feature that stops being drawn is one that the
// long runs no longer check.
#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "programs.hpp"

namespace koine::test {
namespace {

// Every elementwise op with each dtype that the op table allows for its operands.
std::set<std::string> legal_pairs() {
  std::set<std::string> out;
  for (const auto& row : nlohmann::json::parse(std::ifstream("docs/ops.json"))) {
    if (!row.contains("dtypes")) continue;
    for (const DType d : stored_dtypes())
      if (row["dtypes"].contains(std::string(dtype_name(d))))
        out.insert(fmt::format("{} of {}", row["op"].get<std::string>(), dtype_name(d)));
  }
  return out;
}

// Counts by name what occurs, program by program.
class Survey {
 public:
  void add(const Program& program) {
    State state;
    for (const Step& s : program.steps) {
      note(fmt::format("step {}", static_cast<int>(s.kind)));
      add_step(program, s, state);
      for (const UOp& g : s.graphs) add_graph(g);
    }
  }
  int64_t count(const std::string& what) const {
    const auto found = counts_.find(what);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  // What has happened so far in a program.
  struct State {
    std::set<int> computed;                 // by a look, and held on to
    std::map<int, std::set<int>> lazy;      // what a value reads that is not
    std::map<int, std::vector<int>> views;  // by base
    std::map<int, int> base;                // of a view
  };

  void note(const std::string& what) { ++counts_[what]; }
  void note_if(bool occurs, const char* what) {
    if (occurs) note(what);
  }

  static std::set<int> places_in(const Program& program, const std::vector<UOp>& graphs) {
    std::set<int> out;
    for (const UOp& g : graphs)
      for (const UOp& u : toposort(g))
        for (const auto& [id, place] : program.placeholders)
          if (u == place) out.insert(id);
    return out;
  }
  // Whether a value that nobody has computed reads this one.
  static bool awaited(const State& state, int id) {
    for (const auto& [reader, read] : state.lazy)
      if (read.contains(id)) return true;
    return false;
  }
  // Views that show more elements together than their base has overlap.
  static bool overlaps(const Program& program, const State& state, int view) {
    const auto base = state.base.find(view);
    if (base == state.base.end()) return false;
    const auto numel = [&](int id) { return program.placeholders.at(id).numel(); };
    for (const int other : state.views.at(base->second))
      if (other != view && numel(other) + numel(view) > numel(base->second)) return true;
    return false;
  }

  void add_step(const Program& program, const Step& s, State& state) {
    switch (s.kind) {
      case Step::Kind::Make:
        state.lazy[s.value] = places_in(program, s.graphs);
        for (const int id : state.lazy.at(s.value))
          note_if(state.computed.contains(id), "a lazy value over one that was computed");
        note_if(s.is_gradient, "gradient of a graph");
        break;
      case Step::Kind::View: {
        const int of = s.values[0];
        const int base = state.base.contains(of) ? state.base.at(of) : of;
        state.base[s.value] = base;
        state.views[base].push_back(s.value);
        note_if(base != of, "view of a view");
        break;
      }
      case Step::Kind::Assign:
      case Step::Kind::SetRows:
        note_if(awaited(state, s.value), "assignment after a lazy reader");
        note_if(state.base.contains(s.value), "assignment through a view");
        note_if(overlaps(program, state, s.value), "assignment through one of overlapping views");
        break;
      case Step::Kind::Realize:
      case Step::Kind::Look:
        for (const int id : s.values)
          if (state.lazy.erase(id) > 0) state.computed.insert(id);
        note_if(s.values.size() > 1, "values realized together");
        break;
      case Step::Kind::Drop:
        for (const int id : s.values) {
          note_if(awaited(state, id), "a dropped value that a lazy one reads");
          state.lazy.erase(id);
          if (state.base.contains(id)) std::erase(state.views.at(state.base.at(id)), id);
        }
        break;
      case Step::Kind::Run:
        add_run(s);
        break;
      default:
        break;
    }
    if (s.kind == Step::Kind::SetRows || s.kind == Step::Kind::Pick)
      note(fmt::format("index mode {}", static_cast<int>(s.index)));
    note_if(s.kind == Step::Kind::Backward && s.looked, "backward() after a look between");
    note_if(s.kind == Step::Kind::Backward && !s.looked, "backward() at once");
  }

  void add_run(const Step& s) {
    note_if(s.graphs.size() > 1, "several outputs");
    std::set<int64_t> sizes;
    for (const auto& bindings : s.bindings)
      if (bindings.contains("n")) sizes.insert(bindings.at("n"));
    bool symbolic = false, stores = false;
    for (const UOp& g : s.graphs)
      for (const UOp& u : toposort(g))
        if (u.dtype() != DType::Void && !u.has_concrete_shape()) {
          symbolic = true;
          stores = stores || (u.is(Op::Shrink) && toposort(g).back().is(Op::After));
        }
    note_if(symbolic && sizes.size() > 1, "several bindings of a symbolic size");
    note_if(symbolic && stores, "stores of a symbolic size");
  }

  void add_graph(const UOp& graph) {
    for (const UOp& u : toposort(graph)) {
      if (is_elementwise(u.op()) && u.dtype() != DType::Index) {
        const DType d = u.src(u.is(Op::Where) ? 1 : 0).dtype();
        note(fmt::format("{} of {}", op_name(u.op()), dtype_name(d)));
        if (u.is(Op::Cast))
          note(fmt::format("Cast {} to {}", dtype_name(d), dtype_name(u.dtype())));
      } else {
        note(std::string(op_name(u.op())));
      }
      add_node(u);
    }
  }

  void add_node(const UOp& u) {
    const size_t sources = u.src().size();
    switch (u.op()) {
      case Op::Function:
        // The generator gives at most three arguments; what is captured comes after them.
        note_if(sources - 1 > 3, "Function that captures");
        note_if(depth(u) >= 3, "Functions three deep");
        note_if(resolve_of(u) == Resolve::Precompile, "precompiled Function");
        break;
      case Op::Store:
        note_if(sources == 3, "gated Store");
        break;
      case Op::Load:
        note_if(sources == 3, "gated Load");
        break;
      case Op::After:
        note_if(u.src(0).is(Op::After), "After on After");
        for (size_t i = 1; i < sources; ++i)
          note_if(u.src(i).is(Op::After), "After that waits for an After");
        break;
      case Op::Pad:
        note_if(sources == 3, "Pad without fill");
        note_if(sources == 4, "Pad with fill");
        break;
      case Op::Index:
        for (size_t i = 1; i < sources; ++i) note_if(u.src(i).rank() > 0, "tensor index");
        break;
      case Op::Reduce:
        note(fmt::format("Reduce {}", op_name(u.as<ReduceArg>().op)));
        break;
      case Op::Bitcast:
        note_if(item_size(u.dtype()) != item_size(u.src(0).dtype()), "resizing Bitcast");
        break;
      case Op::Const:
        note_if(u.dtype() == DType::UInt64 && const_int(u) < 0, "position above 2^63");
        break;
      default:
        break;
    }
  }

  // Functions in Functions.
  int depth(const UOp& function) {
    const auto known = depths_.find(function);
    if (known != depths_.end()) return known->second;
    int inside = 0;
    for (const UOp& u : toposort(function.src(0)))
      if (u.is(Op::Function)) inside = std::max(inside, depth(u));
    return depths_[function] = inside + 1;
  }

  std::map<std::string, int64_t> counts_;
  std::unordered_map<UOp, int> depths_;
};

// The features that are promised, by the names of the survey.
std::set<std::string> promised() {
  std::set<std::string> out = legal_pairs();
  for (const DType from : stored_dtypes())
    for (const DType to : stored_dtypes())
      if (from != to) out.insert(fmt::format("Cast {} to {}", dtype_name(from), dtype_name(to)));
  for (int kind = 0; kind <= static_cast<int>(Step::Kind::Run); ++kind)
    out.insert(fmt::format("step {}", kind));
  for (const IndexMode mode : {IndexMode::Raise, IndexMode::Clamp, IndexMode::Fill})
    out.insert(fmt::format("index mode {}", static_cast<int>(mode)));
  for (const Op op : {Op::Permute,    Op::Flip,
                      Op::Reshape,    Op::Expand,
                      Op::Pad,        Op::Shrink,
                      Op::Index,      Op::Stack,
                      Op::Reduce,     Op::Bitcast,
                      Op::Contiguous, Op::Detach,
                      Op::Load,       Op::Store,
                      Op::After,      Op::Group,
                      Op::Binary,     Op::Function,
                      Op::Tuple,      Op::GetTuple,
                      Op::Replicated, Op::ContiguousBackward,
                      Op::Fence})
    out.insert(std::string(op_name(op)));
  out.insert({"several bindings of a symbolic size",
              "stores of a symbolic size",
              "several outputs",
              "values realized together",
              "a dropped value that a lazy one reads",
              "a lazy value over one that was computed",
              "Functions three deep",
              "Function that captures",
              "precompiled Function",
              "gated Store",
              "gated Load",
              "After on After",
              "After that waits for an After",
              "view of a view",
              "assignment through a view",
              "assignment through one of overlapping views",
              "assignment after a lazy reader",
              "Pad without fill",
              "Pad with fill",
              "tensor index",
              "position above 2^63",
              "resizing Bitcast",
              "Reduce Add",
              "Reduce Max",
              "Reduce Mul",
              "gradient of a graph",
              "backward() at once",
              "backward() after a look between"});
  return out;
}

}  // namespace

TEST(fuzz, programs_generator_makes_every_feature) {
  constexpr uint64_t most_programs = 50000;  // as many as all shards run by default
  EXPECT_TRUE(features_off().empty()) << features_off()[0].name << ": " << features_off()[0].reason;
  EXPECT_GT(legal_pairs().size(), 200u);
  const ProgramFeatures features = features_on();
  std::set<std::string> missing = promised();
  Survey survey;
  uint64_t programs = 0;
  for (; programs < most_programs && !missing.empty(); ++programs) {
    std::mt19937_64 random(test_seed() + programs);
    survey.add(random_program(random, features));
    if (programs % 100 == 0)
      std::erase_if(missing, [&](const std::string& what) { return survey.count(what) > 0; });
  }
  EXPECT_TRUE(missing.empty()) << fmt::format("not in {} programs: {}", programs,
                                              fmt::join(missing, ", "));
  RecordProperty("programs", std::to_string(programs));
}

}  // namespace koine::test
