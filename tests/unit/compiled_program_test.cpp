// Row X4: programs that are compiled ahead, as bytes, and run in another process without a
// compiler.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "koine/base/bytes.hpp"
#include "koine/engine/engine.hpp"
#include "koine/io/program.hpp"
#include "koine/nn/nn.hpp"
#include "koine/tensor/loops.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine::test {
namespace {

class File {
 public:
  File() {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("koine_program_{}_{}", getpid(), number++);
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

 private:
  std::filesystem::path path_;
};

Tensor numbers(std::vector<int64_t> sizes, double from) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return ((Tensor::arange(n).cast(DType::Float32) * Tensor(0.37) + Tensor(from)).sin())
      .reshape({sizes.begin(), sizes.end()})
      .realize();
}

}  // namespace

TEST(compiled_program, spec_X4_runs_without_compiling_anything) {
  const Tensor w = numbers({16, 8}, 1), b = numbers({8}, 2);
  auto net = [&](const Tensor& x) { return (x.matmul(w) + b).relu().softmax(-1); };
  const Tensor x = numbers({4, 16}, 3), other = numbers({4, 16}, 5);
  const std::vector<float> expected = net(x).tolist<float>(), again = net(other).tolist<float>();
  const File file;
  save_program({{"y", net(x)}, {"sum", x.sum()}}, {{"x", x}}, file.path());
  clear_compile_cache();
  reset_counters();
  SavedProgram program(file.path());
  EXPECT_EQ(program({{"x", x}}).at("y").tolist<float>(), expected);
  const auto outputs = program({{"x", other}});
  EXPECT_EQ(counters().compiled, 0);
  EXPECT_GT(counters().kernels, 0);
  EXPECT_EQ(outputs.at("y").tolist<float>(), again);
  EXPECT_EQ(outputs.at("sum").item<float>(), other.sum().item<float>());
  EXPECT_NE(program.compiled().source().find("void "), std::string::npos);
  EXPECT_TRUE(program.compiled().schedule().is(Op::Linear));
  EXPECT_EQ(program.compiled().inputs().at(0).name, "x");
  EXPECT_EQ(program.compiled().to_bytes(), file.bytes())
      << "bytes of a loaded program are the same";
}

TEST(compiled_program, holds_loops_positions_state_and_constants) {
  const Tensor x = numbers({6, 3}, 1), at = Tensor::from<int32_t>({2, 0}).realize();
  const auto [last, rows] = scan(
      [](const Tensor& c, const Tensor& row) { return std::pair{c * Tensor(0.5) + row, c.sum()}; },
      Tensor::zeros({3}), x);
  const File file;
  save_program(
      {{"last", last}, {"rows", rows}, {"picked", x[{at}]}, {"same", x}, {"one", Tensor(1.0)}},
      {{"x", x}, {"at", at}}, file.path());
  const std::vector<float> expected = last.tolist<float>(), collected = rows.tolist<float>();
  SavedProgram program(file.path());
  const auto out = program({{"x", x}, {"at", at}});
  EXPECT_EQ(out.at("last").tolist<float>(), expected);
  EXPECT_EQ(out.at("rows").tolist<float>(), collected);
  EXPECT_EQ(out.at("same").tolist<float>(), x.tolist<float>());
  EXPECT_EQ(out.at("one").item<float>(), 1);
  EXPECT_EQ(out.at("picked").tolist<float>(), (x[{at}]).tolist<float>());
  expect_error([&] { (void)program({{"x", x}, {"at", Tensor::from<int32_t>({2, 6})}}); },
               {"a position that an input holds is out of range"});
  EXPECT_EQ(program({{"x", x}, {"at", at}}).at("last").tolist<float>(), expected)
      << "usable after it";
}

TEST(compiled_program, wrong_inputs_are_named) {
  const Tensor x = numbers({4}, 1), unread = numbers({4}, 2);
  const File file;
  save_program({{"y", x + Tensor(1.0)}}, {{"x", x}}, file.path());
  SavedProgram program(file.path());
  expect_error([&] { (void)program({}); }, {"input 'x' is missing", "float32 of shape (4)"});
  expect_error([&] { (void)program({{"z", x}}); }, {"no input 'z'", "x (float32"});
  expect_error([&] { (void)program({{"x", numbers({5}, 1)}}); }, {"input 'x'", "(4)", "(5,)"});
  expect_error([&] { (void)program({{"x", x.cast(DType::Int32)}}); },
               {"input 'x'", "float32", "int32"});
  expect_error(
      [&] { save_program({{"y", x + Tensor(1.0)}}, {{"x", x}, {"u", unread}}, file.path()); },
      {"no value reads input 'u'"});
  expect_error([&] { save_program({}, {}, file.path()); }, {"no value to compile"});
  expect_error([&] { save_program({{"y", x}}, {{"x", x}}, "/nowhere/p.koine"); },
               {"cannot be written"});
  expect_error([&] { SavedProgram nothing("/nowhere/p.koine"); },
               {"/nowhere/p.koine", "cannot be opened"});
}

TEST(compiled_program, spec_X4_damaged_foreign_and_old_files_are_refused) {
  const Tensor x = numbers({4}, 1);
  const File file;
  save_program({{"y", x + Tensor(1.0)}}, {{"x", x}}, file.path());
  const std::string good = file.bytes();
  auto refused = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    file.write(bytes);
    expect_error([&] { SavedProgram program(file.path()); }, parts);
  };
  refused("", {"do not begin as one of this version"});
  std::string old = good;
  old[old.find('1')] = '0';
  refused(old, {"do not begin as one of this version"});
  for (const size_t at : {good.size() / 3, good.size() / 2, good.size() - 1}) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    refused(damaged, {"are not those that were written", "compile it again"});
    refused(good.substr(0, at), {"are not those that were written"});
  }
  // What was compiled for another processor says so, with a sum that is right.
  Options narrow = options();
  narrow.cpu = "x86-64-v2";
  std::string foreign;
  {
    const OptionScope scope(narrow);
    save_program({{"y", x + Tensor(1.0)}}, {{"x", x}}, file.path());
    foreign = file.bytes();
    EXPECT_NO_THROW(SavedProgram(file.path()));
  }
  const std::string target = "cpu-x86-64-v2";
  const size_t at = foreign.find(target);
  ASSERT_NE(at, std::string::npos);
  const std::string blob_heading = "koine kernel 1\n", file_heading = "koine program 1\n";
  const size_t blob = foreign.find(blob_heading);
  ASSERT_NE(blob, std::string::npos);
  uint64_t blob_bytes;
  std::memcpy(&blob_bytes, foreign.data() + blob - 8, 8);
  foreign.replace(at, target.size(), "cpu-x86-64-v9");
  auto renew = [&](size_t heading_at, size_t heading, size_t end) {
    const size_t sum = heading_at + heading;
    const uint64_t right = hash_text(std::string_view(foreign).substr(sum + 8, end - sum - 8));
    std::memcpy(foreign.data() + sum, &right, 8);
  };
  renew(blob, blob_heading.size(), blob + blob_bytes);
  renew(0, file_heading.size(), foreign.size());
  refused(foreign,
          {"it was made for cpu-x86-64-v9", "is loaded for cpu-x86-64-v2", "compile it again"});
}

}  // namespace koine::test
