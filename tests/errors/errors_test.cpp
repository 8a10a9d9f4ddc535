// Every user error has a program that causes it; the process works on afterwards.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "check.hpp"

namespace koine::test {
namespace {

void still_works() {
  EXPECT_EQ((Tensor::from<float>({1, 2}) + Tensor(1.0)).tolist<float>(),
            (std::vector<float>{2, 3}));
}

class Errors : public ::testing::Test {
 protected:
  void TearDown() override { still_works(); }
  std::string path_ = (std::filesystem::temp_directory_path() /
                       fmt::format("koine_errors_{}.safetensors", getpid()))
                          .string();
  ~Errors() override { std::remove(path_.c_str()); }
  void write(const std::string& header, const std::string& data = "",
             uint64_t claimed = UINT64_MAX) {
    std::ofstream out(path_, std::ios::binary);
    const uint64_t size = claimed == UINT64_MAX ? header.size() : claimed;
    out.write(reinterpret_cast<const char*>(&size), 8);
    out << header << data;
  }
};

}  // namespace

TEST_F(Errors, shape_mismatch) {
  expect_error([] { (void)(Tensor::ones({2, 3}) + Tensor::ones({4})); },
               {"+: shapes", "(2, 3)", "(4,)", "broadcast"});
  expect_error([] { (void)Tensor::ones({2, 3}).matmul(Tensor::ones({4, 5})); },
               {"matmul", "(2, 3)", "(4, 5)", "3", "4"});
  expect_error([] { (void)Tensor::ones({1, 3, 4, 4}).conv2d(Tensor::ones({2, 4, 3, 3})); },
               {"conv2d", "3 channels", "wants 4"});
}
TEST_F(Errors, bad_axis) {
  expect_error([] { (void)Tensor::ones({2, 3}).sum({2}); }, {"sum", "axis 2", "(2, 3)", "-2 to 1"});
  expect_error([] { (void)Tensor::ones({2, 3}).sum({0, 0}); }, {"sum", "named twice"});
}
TEST_F(Errors, bad_dtype) {
  expect_error([] { (void)Tensor::ones({2}).bitwise_and(Tensor::ones({2})); }, {"And", "float32"});
  expect_error([] { (void)Tensor::ones({2}).one_hot(3); }, {"one_hot", "float32"});
  expect_error(
      [] {
        Tensor t = Tensor::arange(3);
        (void)t.requires_grad();
      },
      {"requires_grad", "int32"});
}
TEST_F(Errors, non_divisible_reshape) {
  expect_error([] { (void)Tensor::ones({2, 3}).reshape({4, -1}); },
               {"reshape", "(2, 3)", "6", "4"});
  expect_error([] { (void)Tensor::ones({2, 3}).reshape({7}); }, {"reshape", "6", "7"});
}
TEST_F(Errors, index_out_of_range) {
  expect_error([] { (void)Tensor::ones({2, 3})[5]; }, {"position 5", "axis 0", "size 2"});
  expect_error([] { (void)Tensor::ones({2})[{0, 0}]; }, {"2 indices", "(2,)"});
}
TEST_F(Errors, unknown_device) {
  expect_error([] { (void)Tensor::from_bytes(nullptr, {2}, DType::Float32, "ABC"); },
               {"unknown device 'ABC'", "CPU", "INTERP"});
  expect_error([] { (void)Tensor::from_bytes(nullptr, {2}, DType::Float32, "CPU:x"); },
               {"CPU:x", "number"});
}
TEST_F(Errors, missing_state_key) {
  nn::Linear layer(3, 2);
  expect_error([&] { nn::load_state(layer, {{"weight", Tensor::ones({2, 3})}}); },
               {"load_state", "bias"});
  expect_error(
      [&] {
        nn::load_state(layer, {{"weight", Tensor::ones({3, 2})}, {"bias", Tensor::ones({2})}});
      },
      {"weight", "(2, 3)", "(3, 2)"});
}
TEST_F(Errors, corrupt_safetensors) {
  expect_error([] { (void)safe_load("/nonexistent/file"); },
               {"/nonexistent/file", "cannot be opened"});
  write("{}", "", 1000);
  expect_error([&] { (void)safe_load(path_); }, {"claims 1000 bytes"});
  write("not json");
  expect_error([&] { (void)safe_load(path_); }, {"not a JSON object"});
  write(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234");
  expect_error([&] { (void)safe_load(path_); }, {"'x'", "0..8", "4 bytes"});
  write(R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})",
        "12345678");
  expect_error([&] { (void)safe_load(path_); }, {"'x'", "2^63"});
  write(R"({"x":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "12345678");
  expect_error([&] { (void)safe_load(path_); }, {"'x'", "F33"});
  write(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", "12345678");
  expect_error([&] { (void)safe_load(path_); }, {"not a non-negative integer"});
  write(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678");
  expect_error([&] { (void)safe_load(path_); }, {"8 bytes of data", "need 12"});
  write(R"({"x":[1,2]})");
  expect_error([&] { (void)safe_load(path_); }, {"'x'", "lacks"});
  const auto two = [](const char* name, int begin, int end) {
    return fmt::format(R"({{"x":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},)"
                       R"("{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}}})",
                       name, begin, end);
  };
  write(two("y", 4, 8), "12345678");
  EXPECT_EQ(safe_load(path_).size(), 2u);
  write(two("x", 4, 8), "12345678");
  expect_error([&] { (void)safe_load(path_); }, {"tensor 'x' stands in the header twice"});
  write(two("y", 2, 6), "123456");
  expect_error([&] { (void)safe_load(path_); }, {"'y' lies at 2..6", "before it end at 4"});
  write(two("y", 8, 12), "123456789abc");
  expect_error([&] { (void)safe_load(path_); }, {"'y' lies at 8..12", "before it end at 4"});
  write(two("y", 4, 8), "12345678more");
  expect_error([&] { (void)safe_load(path_); }, {"tensors have 8 bytes of data, the file 12"});
}
TEST_F(Errors, random_safetensors_never_crash) {
  std::mt19937_64 random(test_seed());
  const std::string good = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (int i = 0; i < 2000; ++i) {
    std::string header = good;
    for (uint64_t k = 0; k < 1 + random() % 3; ++k)
      header[random() % header.size()] = static_cast<char>(random() % 128);
    write(header, "12345678");
    try {
      (void)safe_load(path_);
    } catch (const Error&) {
    }
  }
}
TEST_F(Errors, out_of_memory) {
  expect_error([] { Tensor::zeros({int64_t{1} << 50}).clone().realize(); },
               {"out of memory", "CPU"});
  expect_error([] { Tensor::zeros({int64_t{1} << 62, 8}).clone().realize(); }, {"too"});
}
TEST_F(Errors, gradients) {
  expect_error([] { Tensor::ones({2}).backward(); }, {"backward", "(2,)", "scalar"});
  expect_error([] { Tensor::ones({2}).sum().backward(); }, {"requires_grad"});
  expect_error([] { (void)Tensor::ones({2}).grad(); }, {"grad", "backward()"});
  expect_error([] { (void)Tensor().shape(); }, {"default-constructed"});
}
TEST_F(Errors, einsum) {
  expect_error([] { (void)Tensor::einsum("ij,jk", {Tensor::ones({2, 3})}); },
               {"2 terms for 1 operands"});
  expect_error(
      [] { (void)Tensor::einsum("ij,jk->ik", {Tensor::ones({2, 3}), Tensor::ones({4, 5})}); },
      {"'j'", "3", "4"});
}

TEST(safetensors, save_and_load) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            fmt::format("koine_round_trip_{}.safetensors", getpid()))
                               .string();
  std::map<std::string, Tensor> state;
  for (const DType d : stored_dtypes())
    state.emplace(std::string(dtype_name(d)), Tensor::arange(6).cast(d).reshape({2, 3}));
  state.emplace("empty", Tensor::zeros({0, 3}));
  safe_save(state, path);
  const auto loaded = safe_load(path);
  ASSERT_EQ(loaded.size(), state.size());
  for (const auto& [name, t] : state) {
    EXPECT_EQ(loaded.at(name).dtype(), t.dtype());
    EXPECT_EQ(loaded.at(name).shape(), t.shape());
    EXPECT_EQ(loaded.at(name).bytes(), t.bytes()) << name;
  }
  const Tensor one = Tensor::ones({1});
  expect_error([&] { safe_save({{"a\xff", one}}, path); }, {"safe_save", "a\xef\xbf\xbd", "UTF-8"});
  expect_error([&] { safe_save({{"__metadata__", one}}, path); }, {"safe_save", "__metadata__"});
  EXPECT_EQ(safe_load(path).size(), state.size());  // the file stays as it was
  const std::string name = "\xc3\xa9 \"\\\n";
  safe_save({{name, one}}, path);
  EXPECT_EQ(safe_load(path).at(name).tolist<float>(), one.tolist<float>());
  std::remove(path.c_str());
}

}  // namespace koine::test
