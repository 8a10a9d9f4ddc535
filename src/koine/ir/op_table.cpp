#include "koine/ir/op_table.hpp"

#include <fmt/format.h>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"

namespace koine {
namespace {

// The result of `op` on operands of one dtype (the condition of a Where is bool), as derivation
// sees it.
std::string result_dtypes(Op op) {
  std::string out;
  for (int i = 0; i < dtype_count; ++i) {
    const DType d = static_cast<DType>(i);
    if (d == DType::Void) continue;
    std::vector<UOp> src(static_cast<size_t>(op_info(op).fewest), param(0, shape_of({}), d));
    if (op == Op::Where) src[0] = constant_bool(true);
    DType result;
    try {
      result = UOp::make(op, src, op == Op::Cast ? Arg(d) : Arg()).dtype();
    } catch (const Error&) {
      continue;  // refused
    }
    out +=
        fmt::format("{}\"{}\": \"{}\"", out.empty() ? "" : ", ", dtype_name(d), dtype_name(result));
  }
  return out;
}

}  // namespace

std::string op_table_json() {
  std::string out = "[\n";
  for (int i = 0; i < op_count; ++i) {
    const auto op = static_cast<Op>(i);
    const OpInfo& info = op_info(op);
    out += fmt::format(
        "  {{\"op\": \"{}\", \"group\": \"{}\", \"sources\": [{}, {}], \"meaning\": \"{}\"",
        info.name, group_name(info.group), info.fewest, info.most, info.meaning);
    if (is_elementwise(op)) out += fmt::format(", \"dtypes\": {{{}}}", result_dtypes(op));
    out += i + 1 < op_count ? "},\n" : "}\n";
  }
  return out + "]\n";
}

}  // namespace koine
