#include "programs_reduce.hpp"

#include <algorithm>

#include "check.hpp"
#include "isolate.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/validity.hpp"
#include "reduce.hpp"

namespace koine::test {
namespace {

class ProgramReduction {
 public:
  ProgramReduction(Program program, const Settings& settings, const Judge& judge, std::string kind)
      : best_(std::move(program)), settings_(settings), judge_(judge), kind_(std::move(kind)) {}

  Program run() {
    for (bool again = true; again && tries_ > 0;) {
      again = drop_steps();
      again = drop_parts() || again;
      again = shrink_graphs() || again;
      again = simplify_data() || again;
    }
    return best_;
  }

 private:
  bool fails(const Program& p) {
    if (tries_-- <= 0) return false;
    return kind_of(in_child([&] { return judge_(p, settings_); }, 20)) == kind_;
  }
  bool accept(Program p) {
    if (!fails(p)) return false;
    best_ = std::move(p);
    return true;
  }

  bool drop_steps() {
    bool any = false;
    for (size_t length = std::max<size_t>(1, best_.steps.size() / 2); length > 0; length /= 2)
      for (size_t i = best_.steps.size(); i-- > 0;) {
        if (i + length > best_.steps.size()) continue;
        Program p = best_;
        const auto from = p.steps.begin() + static_cast<std::ptrdiff_t>(i);
        p.steps.erase(from, from + static_cast<std::ptrdiff_t>(length));
        any = accept(std::move(p)) || any;
      }
    return any;
  }

  // Values of a step that names any number of them, graphs of a Run, bindings.
  bool drop_parts() {
    bool any = false;
    for (size_t i = 0; i < best_.steps.size(); ++i) {
      const Step::Kind kind = best_.steps[i].kind;
      const bool fixed = kind == Step::Kind::Backward || kind == Step::Kind::Pick;
      for (size_t k = best_.steps[i].values.size();
           !fixed && k-- > 0 && best_.steps[i].values.size() > 1;)
        any = without(i, k, &Step::values) || any;
      for (size_t k = best_.steps[i].graphs.size();
           !fixed && k-- > 0 && best_.steps[i].graphs.size() > 1;)
        any = without(i, k, &Step::graphs) || any;
      for (size_t k = best_.steps[i].bindings.size();
           k-- > 0 && best_.steps[i].bindings.size() > 1;)
        any = without(i, k, &Step::bindings) || any;
    }
    return any;
  }
  template <class List>
  bool without(size_t step, size_t part, List Step::* list) {
    Program p = best_;
    auto& parts = p.steps[step].*list;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(part));
    return accept(std::move(p));
  }

  // Nodes of each graph; a Make that others look at keeps its shape, unless it is made anew.
  bool shrink_graphs() {
    bool any = false;
    for (size_t i = 0; i < best_.steps.size(); ++i) {
      if (best_.steps[i].kind == Step::Kind::View) continue;
      for (size_t k = 0; k < best_.steps[i].graphs.size(); ++k) {
        const UOp before = best_.steps[i].graphs[k];
        Reducer how;
        how.most_tries = tries_;
        auto still_fails = [&](const UOp& g) {
          if (may_be_invalid(g) && !may_be_invalid(before)) return false;  // no tensor is that
          try {
            return fails(with_graph(i, k, g));
          } catch (const Error&) {  // other graphs read it, and cannot with this dtype or shape
            return false;
          }
        };
        const UOp after = reduce_graph(before, still_fails, how);
        if (after == before) continue;
        best_ = with_graph(i, k, after);
        any = true;
      }
    }
    return any;
  }
  // With another graph, and where its shape is another one, another placeholder for what it makes.
  Program with_graph(size_t step, size_t k, const UOp& graph) const {
    Program p = best_;
    Step& s = p.steps[step];
    s.graphs[k] = graph;
    if (s.kind != Step::Kind::Make) return p;
    UOp& place = p.placeholders.at(s.value);
    if (place.shape() == graph.shape() && place.dtype() == graph.dtype()) return p;
    const UOp old = place;
    place = new_buffer(graph.shape(), graph.dtype(), Device());
    for (Step& other : p.steps)
      for (UOp& g : other.graphs)
        g = transform_graph(g, [&](const UOp& original, const UOp& rebuilt) {
          return original == old ? place : rebuilt;
        });
    return p;
  }

  bool simplify_data() {
    bool any = false;
    for (size_t i = 0; i < best_.steps.size(); ++i) {
      if (best_.steps[i].kind != Step::Kind::Leaf) continue;
      const Array& now = best_.steps[i].data;
      for (const double v : {0.0, 1.0}) {
        Array plain = now;
        std::fill(plain.data.begin(), plain.data.end(),
                  is_float(now.dtype) ? double_to_bits(now.dtype, v)
                                      : int_to_bits(now.dtype, static_cast<int64_t>(v)));
        if (plain.data == now.data) break;
        Program p = best_;
        p.steps[i].data = plain;
        if (accept(std::move(p))) {
          any = true;
          break;
        }
      }
    }
    return any;
  }

  Program best_;
  const Settings& settings_;
  const Judge& judge_;
  std::string kind_;
  int64_t tries_ = 1500;
};

}  // namespace

std::vector<Settings> settings_of(std::mt19937_64& random) {
  std::vector<Settings> out;
  for (const bool strict : {true, false}) out.push_back(draw_settings(random, "INTERP", strict));
  if (random() % 4 == 0) out.push_back(draw_settings(random, "CPU", random() % 2 == 0));
  return out;
}

std::string kind_of(const std::string& problem) {
  if (problem.empty()) return "";
  if (problem.starts_with("crash: ")) return problem.substr(0, problem.find(':', 7));
  const size_t thrown = problem.find("exception: ");
  return thrown == std::string::npos ? "difference" : problem.substr(thrown, 40);
}

Program reduce_program(const Program& program, const Settings& settings, const Judge& judge) {
  const std::string kind = kind_of(in_child([&] { return judge(program, settings); }));
  return kind.empty() ? program : ProgramReduction(program, settings, judge, kind).run();
}

std::optional<ReducedFailure> reduced_failure(uint64_t seed, const ProgramFeatures& features,
                                              const Judge& judge) {
  std::mt19937_64 random(seed);
  const Program program = random_program(random, features);
  for (Settings settings : settings_of(random)) {
    const auto problem = [&](const Program& p) {
      return in_child([&] { return judge(p, settings); });
    };
    const std::string kind = kind_of(problem(program));
    if (kind.empty()) continue;
    for (int option = 0; option < 5; ++option) {  // the plainest settings that still do it
      const Settings before = settings;
      if (option == 0) settings.warm = false;
      if (option == 1) settings.threads = 1;
      if (option == 2) settings.cpu = options().cpu;
      if (option == 3) settings.noopt = true;
      if (option == 4) settings.verify = 1;
      if (kind_of(problem(program)) != kind) settings = before;
    }
    const Program small = reduce_program(program, settings, judge);
    return ReducedFailure{small, settings, problem(small)};
  }
  return {};
}

std::string report_of(uint64_t seed, const std::optional<ReducedFailure>& failure) {
  const std::string replay = fmt::format(
      "KOINE_TEST_SEED={} KOINE_TEST_CASES=1 fuzz_test --gtest_filter=fuzz.programs_agree*\n",
      seed);
  if (!failure) return replay + "it does not fail alone";
  return fmt::format("{}reduced, under {}\n{}\n{}\nas C++:\n{}", replay, text_of(failure->settings),
                     failure->problem, text_of(failure->program), cpp_of(failure->program));
}

}  // namespace koine::test
