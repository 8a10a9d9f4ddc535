#include "koine/transform/checkpoint.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/custom_rule.hpp"

namespace koine {
namespace {

constexpr std::string_view checkpoint_word = "checkpoint", products_word = " products",
                           names_word = " names ", name_word = "name ";

void require_name(const std::string& name) {
  KOINE_REQUIRE(!name.empty() && name.find(',') == std::string::npos, Value,
                "save_as: the name '{}' of a value is empty or holds a comma", name);
}

// The name that a Function gives its value; empty: none.
std::string_view name_of(const UOp& function) {
  const auto* words = std::get_if<std::string>(&function.arg());
  return words != nullptr && words->starts_with(name_word)
             ? std::string_view(*words).substr(name_word.size())
             : std::string_view();
}

// Whether a factor of a product is the same along one of its axes.
bool repeats(UOp factor, const UOp& product) {
  while (factor.is(Op::Cast) || factor.is(Op::Expand)) factor = UOp(factor.src(0));
  for (size_t k = 0; k < product.rank(); ++k) {
    const size_t missing = product.rank() - factor.rank();
    const bool once = k < missing || is_const(factor.dim(k - missing), 1);
    if (once && !is_const(product.dim(k), 1)) return true;
  }
  return false;
}

// A product of matrices, a convolution: it costs more than reading both its factors.
bool is_sum_of_products(const UOp& u) {
  if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add) return false;
  UOp body = u.src(0);
  while (body.is(Op::Cast)) body = UOp(body.src(0));
  return body.is(Op::Mul) && repeats(body.src(0), body) && repeats(body.src(1), body);
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string checkpoint_kind(const Kept& kept) {
  std::string out(checkpoint_word);
  if (kept.products) out += products_word;
  for (const std::string& name : kept.names) {
    require_name(name);
    out += &name == kept.names.data() ? std::string(names_word) : ",";
    out += name;
  }
  return out;
}

std::optional<Kept> checkpoint_of(const UOp& function) {
  const auto* words = std::get_if<std::string>(&function.arg());
  if (words == nullptr || !words->starts_with(checkpoint_word)) return std::nullopt;
  std::string_view rest = std::string_view(*words).substr(checkpoint_word.size());
  Kept out;
  out.products = rest.starts_with(products_word);
  if (out.products) rest.remove_prefix(products_word.size());
  if (!rest.starts_with(names_word)) return out;
  rest.remove_prefix(names_word.size());
  while (true) {
    const size_t end = rest.find(',');
    out.names.emplace_back(rest.substr(0, end));
    if (end == std::string_view::npos) return out;
    rest.remove_prefix(end + 1);
  }
}

UOp named_value(const UOp& value, const std::string& name) {
  require_name(name);
  const std::vector<UOp> results{argument_param(0, value)}, arguments{value};
  return get_tuple(function(tuple(results), arguments, Arg(std::string(name_word) + name)), 0);
}

std::vector<UOp> kept_values(const UOp& body, const Kept& kept) {
  std::vector<UOp> out;
  if (!kept.products && kept.names.empty()) return out;
  for (const UOp& u : toposort_outside_bodies(body)) {
    const bool named =
        u.is(Op::GetTuple) && u.src(0).is(Op::Function) && contains(kept.names, name_of(u.src(0)));
    if (named || (kept.products && is_sum_of_products(u))) out.push_back(u);
    if (!u.is(Op::Function) || checkpoint_of(u) || !custom_rule_of(u).empty()) continue;
    const std::vector<UOp> inside = kept_values(u.src(0), kept);
    if (inside.empty()) continue;
    const UOp call = function(tuple(inside), u.src().subspan(1), u.arg());
    for (size_t k = 0; k < inside.size(); ++k)
      out.push_back(get_tuple(call, static_cast<int64_t>(k)));
  }
  return out;
}

UOp fenced(const UOp& value, const std::vector<UOp>& others) {
  constexpr OpMask memory = mask_of(Op::Buffer) | mask_of(Op::Param);
  if ((value.node()->ops_below & memory) == 0) return value;
  std::vector<UOp> sources{value};
  for (const UOp& other : others)
    if (std::find(sources.begin(), sources.end(), other) == sources.end()) sources.push_back(other);
  return UOp::make(Op::Fence, sources);
}

}  // namespace koine
