#pragma once
#include <memory>
#include <string>
#include <vector>

#include "koine/engine/executable.hpp"
#include "koine/engine/skeleton.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/validity.hpp"

namespace koine {

/// What all requests of one skeleton share: the program, and where its arguments come from.
struct Prepared {
  /// An argument of an executable.
  struct Argument {
    enum class Kind : uint8_t { Given, Output, Literal } kind = Kind::Given;
    size_t number = 0;  ///< of a Buffer of the skeleton, or of an output
    UOp literal = {};   ///< a Buffer that holds it
  };
  struct Program {
    std::shared_ptr<const Executable> executable;  ///< null: there is nothing to run
    std::vector<Argument> arguments;
    VariableValues literals;  ///< Variables that stand for some
  };
  /// What is given back for a value of the request.
  struct Output {
    enum class Kind : uint8_t {
      Known,     ///< it is in memory
      Assigned,  ///< its effects run; the Buffer is that of the memory they change
      Made       ///< it is computed into a new Buffer
    } kind = Kind::Made;
    size_t buffer = 0;  ///< of the skeleton, where it is known or assigned
    UOp shape = {};
    DType dtype = DType::Void;
    Placement place = {};
    bool lasting = false;  ///< the Buffer stands for the value from now on
  };

  std::vector<Output> outputs;  ///< one a value; behind these the flag of the checks
  bool checks = false;  ///< that the program makes before all else; the flag is the last output
  Program program;
  /// What reads no memory, by which the request is recognised: a node that is made again is the
  /// same one as long as it lives.
  std::vector<UOp> constants;
};

/// Stages 1 to 8 for distinct values, or what was prepared for a request that looked the same; with
/// `checks` or without. Takes the words out of the skeleton.
std::shared_ptr<const Prepared> prepare(const std::vector<UOp>& values, Skeleton& skeleton,
                                        bool checks);
/// Whether a Buffer stands for a value once it has been computed. What is asked of many values of
/// one graph looks at each node once; nodes that were seen must stay.
class Lasting {
 public:
  bool operator()(const UOp& value);

 private:
  PartlyInvalid invalid_;
  NodeMap<bool> varies_;
};
/// The values over the Buffers of what was computed before.
std::vector<UOp> with_results(const std::vector<UOp>& values, const std::string& device);
/// Where a value is to lie: on its device, else on the default one.
std::string device_of(const UOp& value);
Placement placement_of(const UOp& value);

void forget_prepared();

}  // namespace koine
