// Tensors and programs in files.
#include <nanobind/stl/map.h>

#include "bind.hpp"

namespace koine::python {
namespace {

using Named = std::map<std::string, Tensor>;

Named named(const nb::dict& given, const char* method) {
  Named out;
  for (const auto& [name, value] : given) {
    KOINE_REQUIRE(nb::isinstance<nb::str>(name), Type, "{}: names are texts, not a '{}'", method,
                  name_of_type(name));
    out.emplace(nb::cast<std::string>(name), as_tensor(value, method));
  }
  return out;
}

std::string path_of(nb::handle path) {
  return nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def(
      "safe_load",
      [](nb::handle path, const std::string& device) {
        const std::string file = path_of(path);
        return unlocked([&] { return safe_load(file, device); });
      },
      "path"_a, "device"_a = "",
      "The tensors of a safetensors file, by name. FileError for anything that is none.");
  m.def(
      "safe_save",
      [](const nb::dict& tensors, nb::handle path) {
        const Named all = named(tensors, "safe_save");
        const std::string file = path_of(path);
        unlocked([&] { safe_save(all, file); });
      },
      "tensors"_a, "path"_a, "Writes tensors by name as a safetensors file.");
  m.def(
      "save_program",
      [](const nb::dict& outputs, const nb::dict& inputs, nb::handle path) {
        const Named out = named(outputs, "save_program"), in = named(inputs, "save_program");
        const std::string file = path_of(path);
        unlocked([&] { save_program(out, in, file); });
      },
      "outputs"_a, "inputs"_a, "path"_a,
      "Compiles outputs by name to a file that runs without a compiler; inputs are tensors in "
      "memory that they read.");
  nb::class_<SavedProgram>(
      m, "SavedProgram",
      "A program from a file of save_program(). Load only what you trust: it is machine code.")
      .def(
          "__init__",
          [](SavedProgram* self, nb::handle path) { new (self) SavedProgram(path_of(path)); },
          "path"_a)
      .def(
          "__call__",
          [](SavedProgram& program, const nb::dict& inputs) {
            return program(
                named(inputs, "SavedProgram"));  // for one thread at a time: the lock stays
          },
          "inputs"_a, "Outputs by name, for inputs by name.");
}

}  // namespace koine::python
