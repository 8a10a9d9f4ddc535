#include "koine/io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "koine/base/error.hpp"

namespace koine {
namespace {

using Json = nlohmann::json;

constexpr std::string_view metadata_key = "__metadata__";  // of the header: about no tensor

constexpr std::pair<std::string_view, DType> dtype_codes[] = {
    {"BOOL", DType::Bool},         {"I8", DType::Int8},
    {"I16", DType::Int16},         {"I32", DType::Int32},
    {"I64", DType::Int64},         {"U8", DType::UInt8},
    {"U16", DType::UInt16},        {"U32", DType::UInt32},
    {"U64", DType::UInt64},        {"F16", DType::Float16},
    {"BF16", DType::BFloat16},     {"F32", DType::Float32},
    {"F64", DType::Float64},       {"F8_E4M3", DType::Float8E4M3},
    {"F8_E5M2", DType::Float8E5M2}};

// A number of the header: a non-negative integer in 63 bits, or an Error.
int64_t natural(const Json& j, const std::string& path, std::string_view what) {
  KOINE_REQUIRE(j.is_number_unsigned() && j.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX),
                File, "{}: {} is not a non-negative integer", path, what);
  return static_cast<int64_t>(j.get<uint64_t>());
}

void require_name(const std::string& name) {
  KOINE_REQUIRE(name != metadata_key, Value,
                "safe_save: no tensor can be named '{}': the format keeps its notes there", name);
  const Json text = name;
  const std::string shown = text.dump(-1, ' ', false, Json::error_handler_t::replace);
  KOINE_REQUIRE(Json::parse(shown) == text, Value,
                "safe_save: the name {} is not UTF-8, which the format asks for", shown);
}

struct Entry {
  DType dtype;
  Shape shape;
  int64_t begin, end;
};

Entry parse_entry(const std::string& name, const Json& j, const std::string& path,
                  int64_t data_bytes) {
  KOINE_REQUIRE(
      j.is_object() && j.contains("dtype") && j.contains("shape") && j.contains("data_offsets"),
      File, "{}: tensor '{}' lacks dtype, shape or data_offsets", path, name);
  KOINE_REQUIRE(j["dtype"].is_string(), File, "{}: tensor '{}' has a dtype that is not a string",
                path, name);
  Entry e{DType::Void, {}, 0, 0};
  for (const auto& [code, dtype] : dtype_codes)
    if (code == j["dtype"].get<std::string>()) e.dtype = dtype;
  KOINE_REQUIRE(e.dtype != DType::Void, File, "{}: tensor '{}' has the unknown dtype '{}'", path,
                name, j["dtype"].get<std::string>());
  KOINE_REQUIRE(j["shape"].is_array() && j["shape"].size() <= 64, File,
                "{}: tensor '{}' has a malformed shape", path, name);
  int64_t bytes = item_size(e.dtype);
  for (const Json& s : j["shape"]) {
    const int64_t size = natural(s, path, "a size of '" + name + "'");
    e.shape.push_back(size);
    KOINE_REQUIRE(!__builtin_mul_overflow(bytes, size, &bytes), File,
                  "{}: tensor '{}' is larger than 2^63 bytes", path, name);
  }
  const Json& o = j["data_offsets"];
  KOINE_REQUIRE(o.is_array() && o.size() == 2, File, "{}: tensor '{}' needs two data_offsets", path,
                name);
  e.begin = natural(o[0], path, "an offset of '" + name + "'");
  e.end = natural(o[1], path, "an offset of '" + name + "'");
  KOINE_REQUIRE(e.begin <= e.end && e.end <= data_bytes, File,
                "{}: tensor '{}' lies at {}..{}, the data has {} bytes", path, name, e.begin, e.end,
                data_bytes);
  KOINE_REQUIRE(e.end - e.begin == bytes, File,
                "{}: tensor '{}' has {} bytes of data, its shape and dtype need {}", path, name,
                e.end - e.begin, bytes);
  return e;
}

// The header's object. Of two members of one name a reader would keep one, and not always the same.
Json parse_header(const std::string& header, const std::string& path) {
  std::set<std::string> names;
  std::string twice;
  const auto look = [&](int depth, Json::parse_event_t event, const Json& found) {
    if (event == Json::parse_event_t::key && depth == 1)
      if (const auto name = found.get<std::string>(); !names.insert(name).second) twice = name;
    return true;
  };
  Json json = Json::parse(header, look, false);
  KOINE_REQUIRE(!json.is_discarded() && json.is_object(), File,
                "{}: the header is not a JSON object", path);
  KOINE_REQUIRE(twice.empty(), File, "{}: tensor '{}' stands in the header twice", path, twice);
  return json;
}

// The format has the data of one tensor after that of another, and nothing else.
void require_all_data_used(const std::map<std::string, Entry>& entries, const std::string& path,
                           int64_t data_bytes) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, std::string_view>> order;
  for (const auto& [name, e] : entries) order.push_back({{e.begin, e.end}, name});
  std::sort(order.begin(), order.end());
  int64_t end = 0;
  for (const auto& [range, name] : order) {
    KOINE_REQUIRE(range.first == end, File,
                  "{}: tensor '{}' lies at {}..{}, but the data before it end at {}", path, name,
                  range.first, range.second, end);
    end = range.second;
  }
  KOINE_REQUIRE(end == data_bytes, File, "{}: the tensors have {} bytes of data, the file {}", path,
                end, data_bytes);
}

}  // namespace

std::map<std::string, Tensor> safe_load(const std::string& path, const std::string& device) {
  std::error_code code;
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, code));
  KOINE_REQUIRE(!code, File, "{}: cannot be opened: {}", path, code.message());
  std::ifstream in(path, std::ios::binary);
  KOINE_REQUIRE(in, File, "{}: cannot be opened for reading", path);
  uint64_t header_bytes = 0;
  KOINE_REQUIRE(file_bytes >= 8 && in.read(reinterpret_cast<char*>(&header_bytes), 8), File,
                "{}: {} bytes are too few for a safetensors file", path, file_bytes);
  KOINE_REQUIRE(header_bytes <= 100'000'000 && static_cast<int64_t>(header_bytes) <= file_bytes - 8,
                File, "{}: the header claims {} bytes, the file has {}", path, header_bytes,
                file_bytes);
  std::string header(header_bytes, '\0');
  KOINE_REQUIRE(in.read(header.data(), static_cast<std::streamsize>(header_bytes)), File,
                "{}: the header cannot be read", path);
  const Json json = parse_header(header, path);
  const int64_t data_bytes = file_bytes - 8 - static_cast<int64_t>(header_bytes);
  std::map<std::string, Entry> entries;
  for (const auto& [name, j] : json.items())
    if (name != metadata_key) entries.emplace(name, parse_entry(name, j, path, data_bytes));
  require_all_data_used(entries, path, data_bytes);
  std::map<std::string, Tensor> out;
  std::vector<char> data;
  for (const auto& [name, e] : entries) {
    data.resize(static_cast<size_t>(e.end - e.begin));
    in.seekg(static_cast<std::streamoff>(8 + static_cast<int64_t>(header_bytes) + e.begin));
    KOINE_REQUIRE(data.empty() || in.read(data.data(), static_cast<std::streamsize>(data.size())),
                  File, "{}: tensor '{}' cannot be read", path, name);
    out.emplace(name, Tensor::from_bytes(data.data(), e.shape, e.dtype, device));
  }
  return out;
}

void safe_save(const std::map<std::string, Tensor>& tensors, const std::string& path) {
  Json header = Json::object();
  std::vector<std::vector<std::byte>> data;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    require_name(name);
    data.push_back(tensor.bytes());
    std::string_view code;
    for (const auto& [c, dtype] : dtype_codes)
      if (dtype == tensor.dtype()) code = c;
    const auto bytes = static_cast<int64_t>(data.back().size());
    header[name] = {{"dtype", code},
                    {"shape", tensor.shape().present()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const uint64_t size = text.size();
  out.write(reinterpret_cast<const char*>(&size), 8);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& d : data)
    out.write(reinterpret_cast<const char*>(d.data()), static_cast<std::streamsize>(d.size()));
  out.close();
  KOINE_REQUIRE(out, File, "{}: cannot be written: is the folder there and the disk not full?",
                path);
}

}  // namespace koine
