#include "koine/tensor/custom.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/carried_name.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/flat_kernel.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/call_gradient.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

std::vector<UOp> params_for(std::string_view method, const std::string& name,
                            const std::vector<CallResult>& results) {
  KOINE_REQUIRE(!results.empty(), Value, "{}: '{}' is asked for no result", method,
                spoken_name(name));
  std::vector<UOp> out;
  for (const CallResult& r : results) {
    for (const Size& s : r.shape)
      KOINE_REQUIRE(s.smallest() >= 0, Value, "{}: result {} of '{}' has the shape {}", method,
                    out.size(), spoken_name(name), tensor::text_of(r.shape));
    KOINE_REQUIRE(r.dtype != DType::Void && r.dtype != DType::Index, Type,
                  "{}: result {} of '{}' is {}, which lies in no memory", method, out.size(),
                  spoken_name(name), dtype_name(r.dtype));
    out.push_back(param(static_cast<int64_t>(out.size()), shape_of(r.shape), r.dtype));
  }
  return out;
}

std::vector<Tensor> results_of_call(const UOp& body, const std::vector<Tensor>& arguments,
                                    size_t count) {
  std::vector<UOp> src{body};
  for (const Tensor& t : arguments) src.push_back(t.uop());
  const UOp call = UOp::make(Op::Call, src);
  std::vector<Tensor> out;
  for (size_t k = 0; k < count; ++k) out.emplace_back(get_tuple(call, static_cast<int64_t>(k)));
  return out;
}

void require_kernel(const std::string& name, const UOp& kernel, size_t results) {
  const size_t stored = results_of(kernel).size();
  KOINE_REQUIRE(
      stored == results, Value,
      "custom_kernel: '{}' stores into {} of its Params and has {} results: each result is "
      "stored into, and the arguments behind them are only read",
      spoken_name(name), stored, results);
  if (const auto violation = find_violation(flat_kernel(kernel).ast, VerifyLevel::Kernel))
    raise(ErrorKind::Value, "custom_kernel: '{}' is no kernel: {}", spoken_name(name),
          violation_text(*violation));
}

}  // namespace

std::vector<Tensor> custom_kernel(const std::string& name, const std::vector<CallResult>& results,
                                  const std::vector<Tensor>& arguments,
                                  const KernelBuilder& kernel) {
  KOINE_REQUIRE(!name.empty(), Value, "custom_kernel: a kernel needs a name");
  KOINE_REQUIRE(kernel, Value, "custom_kernel: '{}' is given no function that makes it", name);
  std::vector<UOp> params = params_for("custom_kernel", name, results);
  for (const Tensor& t : arguments)
    params.push_back(param(static_cast<int64_t>(params.size()), t.uop().shape(), t.dtype()));
  const UOp made = kernel(params);
  KOINE_REQUIRE(made.is(Op::Sink), Value,
                "custom_kernel: '{}' is no kernel: return sink({{...}}) of its stores, got {}",
                spoken_name(name), made ? op_name(made.op()) : "nothing");
  const UOp body = UOp::make(Op::Sink, made.src(), name);
  require_kernel(name, body, results.size());
  return results_of_call(body, arguments, results.size());
}

Tensor custom_kernel(const std::string& name, const CallResult& result,
                     const std::vector<Tensor>& arguments, const KernelBuilder& kernel) {
  return custom_kernel(name, std::vector<CallResult>{result}, arguments, kernel)[0];
}

std::vector<Tensor> call_function(const std::string& name, const std::vector<CallResult>& results,
                                  const std::vector<Tensor>& arguments) {
  const UOp body = host_function(name, params_for("call_function", name, results));
  return results_of_call(body, arguments, results.size());
}

Tensor call_function(const std::string& name, const CallResult& result,
                     const std::vector<Tensor>& arguments) {
  return call_function(name, std::vector<CallResult>{result}, arguments)[0];
}

void register_gradient(const std::string& name,
                       std::function<std::vector<Tensor>(const CallGradient&)> rule) {
  KOINE_REQUIRE(rule, Value, "register_gradient: '{}' is given no rule", name);
  register_call_gradient(name, [rule = std::move(rule)](const CallCotangents& given) {
    auto tensors = [](const std::vector<UOp>& values) {
      std::vector<Tensor> out;
      for (const UOp& v : values) out.emplace_back(v);
      return out;
    };
    std::vector<UOp> out;
    for (const Tensor& t :
         rule({tensors(given.arguments), tensors(given.results), tensors(given.cotangents)}))
      out.push_back(t.defined() ? t.uop() : UOp());
    return out;
  });
}

void keep_while_used(const std::string& name) {
  keep_name(name, [name] {
    unregister_function(name);
    unregister_call_rules(name);
  });
}
void let_go(const std::string& name) { let_go_name(name); }

void register_vmap(const std::string& name,
                   std::function<std::vector<Tensor>(const CallForExamples&)> rule) {
  KOINE_REQUIRE(rule, Value, "register_vmap: '{}' is given no rule", name);
  register_call_examples(name, [rule = std::move(rule)](const CallExamples& given) {
    CallForExamples all{{}, given.mapped, Size(given.examples)};
    for (const UOp& a : given.arguments) all.arguments.emplace_back(a);
    std::vector<UOp> out;
    for (const Tensor& t : rule(all)) out.push_back(t.defined() ? t.uop() : UOp());
    return out;
  });
}

}  // namespace koine
