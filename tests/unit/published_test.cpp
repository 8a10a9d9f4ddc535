// Elementary functions against tables that NumPy publishes (tests/data/numpy).
#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>

#include "check.hpp"

namespace koine::test {
namespace {

struct Table {
  std::vector<float> inputs, outputs;
  std::vector<int64_t> units;  // in the last place, that NumPy allows
};

Table table_of(const std::string& function) {
  std::ifstream file("tests/data/numpy/" + function + ".csv");
  Table table;
  std::string line, cell;
  std::getline(file, line);
  EXPECT_EQ(line, "input,output,ulp");
  while (std::getline(file, line)) {
    std::stringstream cells(line);
    auto number = [&] {
      std::getline(cells, cell, ',');
      return std::stoul(cell, nullptr, 0);
    };
    table.inputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(number())));
    table.outputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(number())));
    table.units.push_back(static_cast<int64_t>(number()));
  }
  return table;
}

// Steps from one float32 to the other, as NumPy counts units; both zeros are one place.
int64_t steps_between(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : INT64_MAX;
  auto place = [](float v) {
    const int64_t size = std::bit_cast<uint32_t>(std::fabs(v));
    return std::signbit(v) ? -size : size;
  };
  return std::abs(place(a) - place(b));
}

}  // namespace

// Within each row's own units. The rows allow 2 to 4 and docs/switches.md states 2 for all six
// functions, from the function's value itself, which the tables round: no row has to allow more.
TEST(published, spec_D9_float32_functions_within_numpys_units) {
  struct Function {
    const char* name;
    Tensor (*compute)(const Tensor&);
    size_t rows;
  };
  for (const Function& f : {Function{"exp2", [](const Tensor& x) { return x.exp2(); }, 300},
                            Function{"log2", [](const Tensor& x) { return x.log2(); }, 300},
                            Function{"sin", [](const Tensor& x) { return x.sin(); }, 300},
                            Function{"cos", [](const Tensor& x) { return x.cos(); }, 300},
                            Function{"exp", [](const Tensor& x) { return x.exp(); }, 129},
                            Function{"log", [](const Tensor& x) { return x.log(); }, 113}}) {
    const Table table = table_of(f.name);
    ASSERT_EQ(table.inputs.size(), f.rows) << f.name;
    for (const char* device : {"CPU", "INTERP", "SIMT"})
      in_both_modes([&] {
        Options o = options();
        o.device = device;
        const OptionScope scope(o);
        const Tensor x = Tensor::from(table.inputs, {static_cast<int64_t>(f.rows)});
        const std::vector<float> got = f.compute(x).tolist<float>();
        int64_t largest = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const int64_t steps = steps_between(got[i], table.outputs[i]);
          EXPECT_LE(steps, std::min<int64_t>(table.units[i], 2))
              << f.name << "(" << table.inputs[i] << ") is " << table.outputs[i] << ", not "
              << got[i] << " on " << device;
          largest = std::max(largest, steps);
        }
        RecordProperty(fmt::format("{} {}", f.name, device), std::to_string(largest));
      });
  }
}

}  // namespace koine::test
