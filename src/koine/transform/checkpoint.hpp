#pragma once
#include <optional>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

// Functions that reverse mode computes again, where others keep what they computed:
// `Function["checkpoint ..."]`. Equal nodes are one node, so the second computation reads its
// arguments behind Fences that wait for the cotangents: it is not the first one, and begins when
// they are there.
namespace koine {

/// What is kept of the values of such a function, beside its arguments.
struct Kept {
  enum class Products { None, Unbatched, All };
  enum class Named { These, Others, AllButThese };
  Products products = Products::None;  ///< sums of products, such as those of matrices
  Named named = Named::These;  ///< values of `names`, of other names, or all that has none of them
  std::vector<std::string> names;
};

/// The arg of a Function that keeps this much. Throws Error (Value) for a name that is empty or has
/// a comma or a quote in it.
std::string checkpoint_kind(const Kept& kept);
/// None: reverse mode keeps what the Function computed.
std::optional<Kept> checkpoint_of(const UOp& function);

/// The value under a name: the result of `Function["name NAME"]`, which is the value.
UOp named_value(const UOp& value, const std::string& name);

/// The values of a body, a Tuple, that are kept; also those of Functions in it. They are in terms
/// of its Params.
std::vector<UOp> kept_values(const UOp& body, const Kept& kept);

/// A value for what is computed of it once `others` are there. What reads no memory is itself.
UOp fenced(const UOp& value, const std::vector<UOp>& others);

}  // namespace koine
