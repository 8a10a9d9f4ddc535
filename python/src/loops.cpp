// Loops and branches of lists of tensors. koine/loops.py makes them of trees.
#include "functions.hpp"

namespace koine::python {

void bind_loops(nb::module_& m) {
  m.def("_scan", [](const nb::callable& step, const Tensors& init, const Tensors& rows,
                    const std::optional<SizeLike>& length, bool reversed) {
    ScanOptions options{{}, reversed};
    if (length) options.length = as_size(*length, "scan");
    return loops::scan(function_of(step), init, rows, options, std::source_location::current());
  });
  m.def("_fori", [](const SizeLike& lower, const SizeLike& upper, const nb::callable& step,
                    const Tensors& init) {
    return loops::fori(as_size(lower, "fori_loop"), as_size(upper, "fori_loop"), function_of(step),
                       init, std::source_location::current());
  });
  m.def("_while", [](const nb::callable& condition, const nb::callable& step, const Tensors& init) {
    return loops::repeat(function_of(condition), function_of(step), init,
                         std::source_location::current());
  });
  m.def("_branch", [](const std::string& method, const TensorLike& which, bool is_condition,
                      const std::vector<nb::callable>& branches, const Tensors& arguments) {
    Tensor number = as_tensor(which, method.c_str());
    if (is_condition) number = loops::number_of(number);
    std::vector<transforms::Function> functions;
    for (const nb::callable& b : branches) functions.push_back(function_of(b));
    return loops::branch(method, number, functions, arguments, std::source_location::current());
  });
}

}  // namespace koine::python
