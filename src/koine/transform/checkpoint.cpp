#include "koine/transform/checkpoint.hpp"

#include <algorithm>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/custom_rule.hpp"

namespace koine {
namespace {

using Products = Kept::Products;
using Named = Kept::Named;

constexpr std::string_view checkpoint_word = "checkpoint", products_word = " products",
                           unbatched_word = " unbatched products", name_word = "name ";

std::string_view names_word(Named named) {
  return named == Named::These ? " names " : named == Named::Others ? " other names " : " all but ";
}

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

// What a sum is of.
UOp product_of(const UOp& sum) {
  UOp out = sum.src(0);
  while (out.is(Op::Cast)) out = UOp(out.src(0));
  return out;
}

// A product of matrices, a convolution: it costs more than reading both its factors.
bool is_sum_of_products(const UOp& u) {
  if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add) return false;
  const UOp body = product_of(u);
  return body.is(Op::Mul) && repeats(body.src(0), body) && repeats(body.src(1), body);
}

// Of a sum of products: whether both factors differ along an axis of the result.
bool is_batched(const UOp& sum) {
  const UOp product = product_of(sum);
  const auto differs = [&](UOp factor, size_t k) {
    while (factor.is(Op::Cast) || factor.is(Op::Expand)) factor = UOp(factor.src(0));
    const size_t missing = product.rank() - factor.rank();
    return k >= missing && !is_const(factor.dim(k - missing), 1);
  };
  const std::vector<int64_t>& axes = sum.as<ReduceArg>().axes;
  for (size_t k = 0; k < product.rank(); ++k)
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(k)) == axes.end() &&
        differs(product.src(0), k) && differs(product.src(1), k))
      return true;
  return false;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether it is a value under a name.
bool is_named(const UOp& u) {
  return u.is(Op::GetTuple) && u.src(0).is(Op::Function) && !name_of(u.src(0)).empty();
}

// Whether it is worth keeping: memory, numbers and other views of a value are not.
bool is_computed(const UOp& u) {
  constexpr OpMask memory = mask_of(Op::Buffer) | mask_of(Op::Param);
  return is_float(u.dtype()) && !is_movement(u.op()) && !u.is(Op::Param) && !u.is(Op::Buffer) &&
         !u.is(Op::Cast) && (u.node()->ops_below & memory) != 0;
}

}  // namespace

std::string checkpoint_kind(const Kept& kept) {
  std::string out(checkpoint_word);
  if (kept.products != Products::None)
    out += kept.products == Products::All ? products_word : unbatched_word;
  if (kept.names.empty() && kept.named == Named::These) return out;
  out += names_word(kept.named);
  for (const std::string& name : kept.names) {
    require_name(name);
    if (&name != kept.names.data()) out += ",";
    out += name;
  }
  return out;
}

std::optional<Kept> checkpoint_of(const UOp& function) {
  const auto* words = std::get_if<std::string>(&function.arg());
  if (words == nullptr || !words->starts_with(checkpoint_word)) return std::nullopt;
  std::string_view rest = std::string_view(*words).substr(checkpoint_word.size());
  Kept out;
  const auto read = [&](std::string_view word) {
    const bool found = rest.starts_with(word);
    if (found) rest.remove_prefix(word.size());
    return found;
  };
  if (read(products_word)) out.products = Products::All;
  if (read(unbatched_word)) out.products = Products::Unbatched;
  if (rest.empty()) return out;
  for (const Named named : {Named::These, Named::Others, Named::AllButThese})
    if (read(names_word(named))) out.named = named;
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
  if (kept.products == Products::None && kept.named == Named::These && kept.names.empty())
    return out;
  const NodeList order = toposort_outside_bodies(body);
  std::unordered_set<UOp> others;  // of a name that is not kept, and what is under it
  if (kept.named == Named::AllButThese)
    for (const UOp& u : order) {
      if (is_sum_of_products(u)) others.insert(product_of(u));  // larger than its sums and factors
      if (is_named(u) && contains(kept.names, name_of(u.src(0)))) {
        UOp of = u.src(0).src(1);
        while (is_movement(of.op()) || of.is(Op::Cast)) of = UOp(of.src(0));
        others.insert({u, of});
      }
    }
  for (const UOp& u : order) {
    const bool by_name = is_named(u) && kept.named != Named::AllButThese &&
                         contains(kept.names, name_of(u.src(0))) == (kept.named == Named::These);
    const bool by_product = kept.products != Products::None && is_sum_of_products(u) &&
                            (kept.products == Products::All || !is_batched(u));
    const bool as_other = kept.named == Named::AllButThese && is_computed(u) && !others.contains(u);
    if (by_name || by_product || as_other) out.push_back(u);
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
