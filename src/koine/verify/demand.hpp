#pragma once
#include <array>
#include <vector>

#include "koine/verify/verify.hpp"

// How the verifier's rules are written: tables of demands on ops.
namespace koine {

/// What the demands on a node may ask of its graph.
struct Facts {
  const Target* target = nullptr;
  size_t rank = 0;    ///< Shaped: of every value that is no scalar
  int64_t lanes = 1;  ///< Shaped: the largest size of the last axis
};

inline constexpr int fine = -2, itself = -1;

/// A demand on the nodes of some ops: the rule in words, and which source of a node breaks it
/// (`fine`: none; `itself`: the node as a whole).
struct Demand {
  OpSet ops;
  std::string rule;
  int (*broken)(const UOp& node, const Facts& facts);
};

/// Demands filed by op.
class Demands {
 public:
  Demands(std::initializer_list<std::vector<Demand>> parts);
  std::optional<Violation> check(const UOp& node, const Facts& facts) const;
  const std::vector<Demand>& all() const { return all_; }

 private:
  std::vector<Demand> all_;
  std::array<std::vector<uint32_t>, static_cast<size_t>(op_count)> by_op_;
};

/// The first source from `from` on for which `bad` holds, else `fine`.
template <class F>
int first_source(const UOp& u, size_t from, F&& bad) {
  for (size_t i = from; i < u.src().size(); ++i)
    if (bad(u.src(i))) return static_cast<int>(i);
  return fine;
}
/// Of an op that is never there.
inline int refuse(const UOp&, const Facts&) { return itself; }
inline int unless(bool holds, int culprit = itself) { return holds ? fine : culprit; }

/// A named scalar of index between two constants.
bool is_bounded_variable(const UOp& param);

OpSet all_ops();
OpSet group_ops(std::initializer_list<GroupOp> groups);

// The tables (program.cpp, vector.cpp, tensor.cpp).
const Demands& tensor_demands();
const Demands& program_demands();
const Demands& memory_demands();
const Demands& kernel_demands();
const Demands& shaped_demands();
const Demands& selected_demands();
const Demands& linear_demands();

// Demands on graphs as a whole.
std::optional<Violation> check_program(const UOp& sink, std::span<const UOp> nodes);
std::optional<Violation> check_kernel(const UOp& sink, std::span<const UOp> nodes,
                                      VerifyLevel level);
std::optional<Violation> check_linear(const UOp& linear);
std::optional<Violation> check_schedule(const UOp& schedule);
/// Slots of buffers, names of Variables and numbers of Ranges are given once; in a program above
/// its kernels, a slot once on each device.
std::optional<Violation> check_names(std::span<const UOp> nodes, VerifyLevel level);

}  // namespace koine
