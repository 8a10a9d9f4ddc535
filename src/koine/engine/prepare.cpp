#include "koine/engine/prepare.hpp"

#include <algorithm>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/counting.hpp"
#include "koine/engine/literals.hpp"
#include "koine/engine/promises.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/callify.hpp"
#include "koine/transform/function.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

// --- caches --------------------------------------------------------------------------------------

// Executables by program, so that requests which look different may share one.
GraphCache<const Executable>& executables() {
  static auto* cache = new GraphCache<const Executable>(1024);
  return *cache;
}

// The words of a request's skeleton and of the options.
struct RequestKey {
  std::vector<uint64_t> words;
  uint64_t hash;
  bool operator==(const RequestKey& other) const { return words == other.words; }
};
struct RequestKeyHash {
  size_t operator()(const RequestKey& k) const { return k.hash; }
};
using PreparedCache = Cache<RequestKey, const Prepared, RequestKeyHash>;
PreparedCache& prepared_cache() {
  constexpr size_t most_words = size_t{1} << 23;
  static auto* cache = new PreparedCache(most_words);
  return *cache;
}
// As much as an entry costs beside its words.
constexpr size_t words_of_an_entry = 2048;

// The options that change what is compiled, or how it is checked, behind the words of the graph.
void add_options(RequestKey& key, bool checks, const CompileOptions& how) {
  for (const uint64_t w :
       {uint64_t{how.strict} | uint64_t{how.noopt} << 1 | uint64_t{checks} << 2 |
            uint64_t{how.atomic_scatter} << 3 | static_cast<uint64_t>(how.verify) << 4,
        hash_text(how.cpu), hash_text(options().device)}) {
    key.words.push_back(w);
    key.hash = hash_mix(key.hash, w);
  }
}

// --- from values to a program
// ----------------------------------------------------------------------

// Makes what is prepared for values over Buffers.
class Preparation {
 public:
  /// `given`: the values before what was computed earlier became Buffers.
  Preparation(const std::vector<UOp>& given, const std::vector<UOp>& values,
              const Skeleton& skeleton, const CompileOptions& how)
      : given_(given), values_(values), how_(how) {
    for (size_t i = 0; i < skeleton.buffers.size(); ++i) number_.emplace(skeleton.buffers[i], i);
  }

  std::shared_ptr<const Prepared> run(bool checks) {
    if (how_.verify >= 1)
      verify(values_.size() == 1 ? values_[0] : UOp::make(Op::Tuple, values_), VerifyLevel::Tensor,
             "the request");
    add_outputs();
    std::vector<UOp> work, destinations;
    if (const UOp checked = checks ? check() : UOp()) {
      work.push_back(checked);  // in front of all else
      destinations.push_back(placeholder(checked, values_.size()));
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      const Prepared::Output::Kind kind = made_.outputs[i].kind;
      if (kind == Prepared::Output::Kind::Known) continue;
      work.push_back(values_[i]);
      destinations.push_back(kind == Prepared::Output::Kind::Made ? placeholder(values_[i], i)
                                                                  : UOp());
    }
    if (!work.empty()) made_.program = program_of(work, destinations);
    hold_constants();
    return std::make_shared<const Prepared>(std::move(made_));
  }

 private:
  void hold_constants() {
    const std::string device = device_of(given_[0]);
    toposort(sink(given_), [&](const UOp& u) {
      if (is_constant(u.node())) {
        made_.constants.push_back(u);
        return false;
      }
      return !buffer_for(u, device);
    });
  }

  // Asks whether all promises are kept; null: there are none.
  UOp check() {
    const std::vector<UOp> promises = promises_of(values_);
    if (promises.empty()) return {};
    const UOp flag = any_broken(promises);
    KOINE_REQUIRE(!has_effects(flag), Value,
                  "a captured step checks positions before it writes anything, and some of these "
                  "follow from what it writes: compute them in a step before");
    made_.checks = true;
    const UOp out = checked(flag);
    made_.outputs.push_back(
        {Prepared::Output::Kind::Made, 0, out.shape(), out.dtype(), placement_of(flag), false});
    return out;
  }

  void add_outputs() {
    const Versions versions(sink(values_));
    Lasting lasts;
    for (size_t i = 0; i < values_.size(); ++i) {
      const UOp& value = values_[i];
      const UOp& base = strip_after(value);
      // Whoever names a state gets that state: where it is stored over, that is a copy.
      const UOp version = versions.of(value);
      const bool overwritten = version && versions.overwritten_by(version);
      Prepared::Output out;
      // What a body captured is no memory of the request: its value is copied.
      if (number_.contains(base) && !overwritten) {
        out.kind =
            value.is(Op::Buffer) ? Prepared::Output::Kind::Known : Prepared::Output::Kind::Assigned;
        out.buffer = number_.at(base);
      } else {
        out.shape = value.shape();
        out.dtype = value.dtype();
        out.place = placement_of(value);
      }
      // What is known is no result of itself.
      out.lasting = out.kind != Prepared::Output::Kind::Known && lasts(given_[i]);
      made_.outputs.push_back(std::move(out));
    }
  }

  // Stands for the Buffer of an output, which each run makes anew.
  UOp placeholder(const UOp& value, size_t output) {
    const Placement place = placement_of(value);
    const UOp buffer = new_buffer(value.shape(), value.dtype(), place.device, place.axes);
    output_.emplace(buffer, output);
    return buffer;
  }

  Prepared::Program program_of(const std::vector<UOp>& values,
                               const std::vector<UOp>& destinations) {
    const double start = now_seconds();
    Callified program = callify(values, destinations, how_);
    const std::string device = device_of(values_[0]);
    const std::string first = Device(device).part(0).name();
    const std::string key =
        fmt::format("{}/{}/{}{}{}", device_runtime(first).target(how_).name, how_.cpu, how_.verify,
                    how_.noopt ? "/noopt" : "", how_.atomic_scatter ? "/atomic" : "");
    dump_stage("callify", [&] { return to_text(program.body); });
    Prepared::Program out;
    out.executable = executables().find({program.body, key});
    if (!out.executable) {
      if (how_.verify >= 3) count_checks(check_callified(values, destinations, program, {}, how_));
      program = take_out_literals(program, out.literals);
      out.executable = executables().find({program.body, key});
    }
    const double scheduled = now_seconds() - start;
    count([&](Counters& c) { c.schedule_seconds += scheduled; });
    if (!out.executable) {
      out.executable = std::make_shared<const Executable>(program.body, first, StageChange{}, how_);
      executables().add({program.body, key}, out.executable);
    }
    for (const UOp& a : program.arguments) out.arguments.push_back(argument_of(a));
    return out;
  }

  Prepared::Argument argument_of(const UOp& buffer) const {
    if (const auto it = number_.find(buffer); it != number_.end())
      return {Prepared::Argument::Kind::Given, it->second};
    if (const auto it = output_.find(buffer); it != output_.end())
      return {Prepared::Argument::Kind::Output, it->second};
    return {Prepared::Argument::Kind::Literal, 0, buffer};
  }

  const std::vector<UOp>& given_;
  const std::vector<UOp>& values_;
  const CompileOptions& how_;
  std::unordered_map<UOp, size_t> number_;  // of the Buffers that are given
  std::unordered_map<UOp, size_t> output_;
  Prepared made_;
};

}  // namespace

// What is invalid in a value became 0 in its Buffer, so the two differ; a graph of constants and
// raw bytes follows the default device, which may change; and one that reads a Variable has another
// value next time.
bool Lasting::operator()(const UOp& value) {
  for (const UOp& u : toposort(value, [&](const UOp& n) { return !varies_.contains(n.node()); })) {
    invalid_.visit(u);
    bool varies = is_variable(u) && !is_bound(u);
    for (const UOp& s : sources_outside_body(u)) varies = varies || varies_.at(s.node());
    varies_.set(u.node(), varies);
  }
  const bool reads = (value.node()->ops_below & mask_of(Op::Buffer)) != 0;
  return reads && !value.is(Op::Buffer) && !varies_.at(value.node()) && !invalid_.contains(value);
}

std::string device_of(const UOp& value) {
  const Device d = value.device();
  return d ? d.name() : default_device();
}

Placement placement_of(const UOp& value) {
  return value.device() ? value.node()->placement : Placement{Device(default_device())};
}

// Bytes of the host that a body reads are memory too. A body is looked into behind what is known
// alone, as the skeleton of the request is made: else memory that this does not name would be part
// of what is prepared for all requests that look the same.
std::vector<UOp> with_results(const std::vector<UOp>& values, const std::string& device) {
  const auto with_known = [&](const UOp& graph) {
    Substitution known;
    toposort(graph, [&](const UOp& u) {
      const UOp buffer = buffer_for(u, device);
      if (buffer) known.emplace(u, buffer);
      return !buffer;
    });
    return known.empty() ? graph : substitute(graph, known);
  };
  UOp all = with_known(sink(values));
  const OpMask hidden = mask_of(Op::Function) | mask_of(Op::Binary);
  if ((all.node()->ops_below & hidden) == hidden) all = with_known(inline_functions(all));
  return {all.src().begin(), all.src().end()};
}

std::shared_ptr<const Prepared> prepare(const std::vector<UOp>& values, Skeleton& skeleton,
                                        bool checks) {
  RequestKey key{std::move(skeleton.words), skeleton.hash};
  const CompileOptions how = compile_options();
  add_options(key, checks, how);
  if (auto known = prepared_cache().find(key)) return known;
  const Interruptible scope;
  auto made =
      Preparation(values, with_results(values, device_of(values[0])), skeleton, how).run(checks);
  const size_t weight = key.words.size() + words_of_an_entry;
  if (skeleton.reusable) prepared_cache().add(std::move(key), made, weight);
  return made;
}

void forget_prepared() {
  prepared_cache().clear();
  executables().clear();
}

}  // namespace koine
