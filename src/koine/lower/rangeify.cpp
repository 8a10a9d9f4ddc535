#include "koine/lower/rangeify.hpp"

#include "koine/ir/effects.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/contents.hpp"
#include "koine/lower/decide.hpp"
#include "koine/lower/factor_panels.hpp"
#include "koine/lower/index_kernels.hpp"
#include "koine/lower/loops.hpp"
#include "koine/lower/merge.hpp"
#include "koine/lower/offsets.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/shared_products.hpp"
#include "koine/lower/split.hpp"
#include "koine/lower/validity.hpp"
#include "koine/lower/work_bound.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

// A part of the stage, which is looked at as stages are.
UOp shown(UOp program, std::string_view part, const CompileOptions& how) {
  dump_stage(part, [&] { return to_text(program); });
  if (how.verify >= 2) verify(program, level_after(part), part);
  return program;
}

}  // namespace

UOp decided_program(const UOp& values, const CompileOptions& how) {
  (void)Versions(values);  // refuses Stores into what is no memory
  UOp valid = share_commuted(make_validity_explicit(values));
  if (how.multiprocessors == 0) valid = copy_factors_into_panels(valid);
  return shown(decide(how.strict ? valid : round_shared_products(valid), how.row_bytes, how),
               "decide", how);
}

UOp bufferized_program(const UOp& decided, const CompileOptions& how) {
  return shown(bufferize(decided), "bufferize", how);
}

// Host programs are verified as they are planned.
UOp indexed_program(const UOp& bufferized, const CompileOptions& how) {
  const UOp out = index_kernels(bufferized, how.strict);
  dump_stage("index", [&] { return to_text(out); });
  return out;
}

UOp split_program(const UOp& indexed, const CompileOptions& how) {
  const UOp out = split(indexed, how);
  dump_stage("split", [&] { return to_text(out); });
  return out;
}

UOp merged_program(const UOp& split, const CompileOptions& how) {
  return with_differences_as_arguments(merge_kernels(split, how));
}

UOp rangeify(const UOp& values, const CompileOptions& how, const StageChange& change) {
  auto changed = [&](std::string_view part, UOp program) {
    return change ? change(part, program) : program;
  };
  UOp program = changed("decide", decided_program(values, how));
  program = changed("bufferize", bufferized_program(program, how));
  const UOp in_memory = program;
  program = changed("index", indexed_program(program, how));
  program = split_program(program, how);
  if (how.verify >= 2) check_work(in_memory, program);
  program = changed("split", program);
  program = changed("merge", merged_program(program, how));
  return lower_loops(program, how);
}

}  // namespace koine
