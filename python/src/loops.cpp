// Loops and branches of lists of tensors. koine/loops.py makes them of trees.
#include "functions.hpp"

namespace koine::python {

namespace {

// The names of Python's parameters.
loops::Words words_of(const std::string& method) {
  loops::Words out;
  out.length = "length=";
  out.condition = method == "cond" ? "pred" : "cond_fun";
  out.if_true = "true_fun";
  out.if_false = "false_fun";
  return out;
}

loops::Words words_of(const std::string& method, const nb::callable& carry) {
  loops::Words out = words_of(method);
  out.carry = name_of(carry);
  return out;
}

}  // namespace

void bind_loops(nb::module_& m) {
  m.def("_scan", [](const nb::callable& step, const Tensors& init, const Tensors& rows,
                    const std::optional<SizeLike>& length, bool reversed, const nb::callable& carry,
                    const nb::callable& row) {
    ScanOptions options{{}, reversed};
    if (length) options.length = as_size(*length, "scan");
    loops::Words words = words_of("scan", carry);
    words.row = name_of(row);
    return loops::scan(function_of(step), init, rows, options, std::source_location::current(),
                       words);
  });
  m.def("_fori", [](const SizeLike& lower, const SizeLike& upper, const nb::callable& step,
                    const Tensors& init, const nb::callable& carry) {
    return loops::fori(as_size(lower, "fori_loop"), as_size(upper, "fori_loop"), function_of(step),
                       init, std::source_location::current(), words_of("fori_loop", carry));
  });
  m.def("_fori_computed",
        [](const TensorLike& lower, const TensorLike& upper, const nb::callable& step,
           const Tensors& init, const nb::callable& carry) {
          return loops::fori(as_tensor(lower, "fori_loop"), as_tensor(upper, "fori_loop"),
                             function_of(step), init, std::source_location::current(),
                             words_of("fori_loop", carry));
        });
  m.def("_while", [](const nb::callable& condition, const nb::callable& step, const Tensors& init,
                     const nb::callable& carry) {
    return loops::repeat(function_of(condition), function_of(step), init,
                         std::source_location::current(), words_of("while_loop", carry));
  });
  m.def("_branch", [](const std::string& method, const TensorLike& which, bool is_condition,
                      const std::vector<nb::callable>& branches, const Tensors& arguments,
                      const nb::callable& result) {
    loops::Words words = words_of(method);
    words.result = name_of(result);
    Tensor number = as_tensor(which, method.c_str());
    if (is_condition) number = loops::number_of(number, words);
    std::vector<transforms::Function> functions;
    for (const nb::callable& b : branches) functions.push_back(function_of(b));
    return loops::branch(method, number, functions, arguments, std::source_location::current(),
                         words);
  });
}

}  // namespace koine::python
