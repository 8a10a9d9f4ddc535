// Tensors and programs in files.
#include <nanobind/stl/map.h>

#include <filesystem>
#include <koine/ir/call.hpp>
#include <koine/ir/graph.hpp>

#include "bind.hpp"

namespace koine::python {
namespace {

using Named = std::map<std::string, Tensor>;

Named named(const nb::dict& given, const char* method) {
  Named out;
  for (const auto& [name, value] : given) {
    KOINE_REQUIRE(nb::isinstance<nb::str>(name), Type, "{}: names are texts, not a '{}'", method,
                  name_of_type(name));
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
    if (text == nullptr) {
      PyErr_Clear();
      raise(ErrorKind::Value, "{}: the name {} is no text of UTF-8: a half of a pair stands alone",
            method, nb::repr(name).c_str());
    }
    out.emplace(std::string(text, static_cast<size_t>(size)), as_tensor(value, method));
  }
  return out;
}

// A file finds functions of the host by their names, and those of Python have none outside of this
// process.
void require_no_callback(const Named& outputs) {
  for (const auto& [name, tensor] : outputs)
    for (const UOp& u : toposort_with_bodies(tensor.uop())) {
      if (!u.is(Op::CustomFunction)) continue;
      const auto& function = u.as<std::string>();
      const std::string spoken = spoken_name(function);
      KOINE_REQUIRE(spoken == function, Value,
                    "save_program: '{}' needs the function '{}' of Python, which no file holds",
                    name, spoken);
    }
}

std::string path_of(nb::handle path, const char* method) {
  KOINE_REQUIRE(nb::isinstance<nb::str>(path) || nb::isinstance<nb::bytes>(path) ||
                    nb::hasattr(path, "__fspath__"),
                Type, "{}: a path is a text or a pathlib.Path, not a '{}'", method,
                name_of_type(path));
  const nb::bytes bytes = nb::cast<nb::bytes>(nb::module_::import_("os").attr("fsencode")(path));
  std::string out(bytes.c_str(), bytes.size());
  KOINE_REQUIRE(out.find('\0') == out.npos, Value, "{}: the path {} has a NUL in it", method,
                nb::repr(path).c_str());
  return out;
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def(
      "safe_load",
      [](nb::handle path, const std::string& device) {
        const std::string file = path_of(path, "safe_load");
        return unlocked([&] { return safe_load(file, device); });
      },
      "path"_a, "device"_a = "",
      "The tensors of a safetensors file, by name. FileError for anything that is none.\n\n"
      ">>> koine.safe_save({'w': koine.Tensor([1, 2])}, 'w.safetensors')\n"
      ">>> koine.safe_load('w.safetensors')['w'].tolist()\n"
      "[1, 2]");
  m.def(
      "safe_save",
      [](const nb::dict& tensors, nb::handle path) {
        const Named all = named(tensors, "safe_save");
        const std::string file = path_of(path, "safe_save");
        unlocked([&] { safe_save(all, file); });
      },
      "tensors"_a, "path"_a,
      "Writes tensors by name as a safetensors file.\n\n"
      ">>> koine.safe_save({'w': koine.Tensor([1, 2])}, 'w.safetensors')\n"
      ">>> koine.safe_load('w.safetensors')['w'].tolist()\n"
      "[1, 2]");
  m.def(
      "save_program",
      [](const nb::dict& outputs, const nb::dict& inputs, nb::handle path) {
        const Named out = named(outputs, "save_program"), in = named(inputs, "save_program");
        const std::string file = path_of(path, "save_program");
        require_no_callback(out);
        unlocked([&] { save_program(out, in, file); });
      },
      "outputs"_a, "inputs"_a, "path"_a,
      "Compiles outputs by name to a file that runs without a compiler; inputs are tensors in "
      "memory that they read.\n\n"
      ">>> x = koine.Tensor([1.0, 2.0]).realize()\n"
      ">>> koine.save_program({'y': x * 2}, {'x': x}, 'double.koine')\n"
      ">>> double = koine.SavedProgram('double.koine')\n"
      ">>> double({'x': koine.Tensor([5.0, 6.0])})['y'].tolist()\n"
      "[10.0, 12.0]");
  nb::class_<SavedProgram>(
      m, "SavedProgram",
      "A program from a file of save_program(). Load only what you trust: it is machine "
      "code.\n\n"
      ">>> x = koine.Tensor([1.0, 2.0]).realize()\n"
      ">>> koine.save_program({'sum': x.sum()}, {'x': x}, 'sum.koine')\n"
      ">>> koine.SavedProgram('sum.koine')({'x': koine.Tensor([5.0, 6.0])})['sum'].item()\n"
      "11.0")
      .def(
          "__init__",
          [](SavedProgram* self, nb::handle path) {
            const std::string file = path_of(path, "SavedProgram");
            KOINE_REQUIRE(!std::filesystem::is_directory(file), File,
                          "{}: cannot be opened: it is a folder", file);
            new (self) SavedProgram(file);
          },
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
