#include "koine/runtime/blob.hpp"

#include <bit>
#include <cstring>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Another number for another form, so that old bytes are refused.
constexpr std::string_view heading = "koine kernel 1\n";

class Writer {
 public:
  void operator()(uint64_t word) {
    char raw[sizeof word];
    std::memcpy(raw, &word, sizeof word);
    out_.append(raw, sizeof word);
  }
  void operator()(double number) { (*this)(std::bit_cast<uint64_t>(number)); }
  void operator()(std::string_view text) {
    (*this)(static_cast<uint64_t>(text.size()));
    out_ += text;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  uint64_t word() {
    uint64_t out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  double number() { return std::bit_cast<double>(word()); }
  std::string text() { return std::string(take(word())); }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view take(uint64_t bytes) {
    KOINE_REQUIRE(bytes <= rest_.size(), Value,
                  "compiled kernel: {} bytes are missing at the end: compile it again",
                  bytes - rest_.size());
    const std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  std::string_view rest_;
};

}  // namespace

std::string blob_target(const Target& target) {
  return target.features.empty() ? target.name : target.name + " " + target.features;
}

void require_target(const Blob& blob, const Target& target) {
  const std::string here = blob_target(target);
  KOINE_REQUIRE(blob.target == here, Device,
                "compiled kernel '{}': it was made for {}, and is loaded for {}: compile it again",
                blob.kernel.name, blob.target, here);
}

std::string to_bytes(const Blob& blob) {
  const LoweredKernel& k = blob.kernel;
  Writer write;
  write(k.name);
  write(blob.target);
  write(to_text(k.linear));
  write(uint64_t{k.how.strict} | uint64_t{k.how.noopt} << 1);
  write(k.how.cpu);
  for (const double cost : {k.estimate.operations, k.estimate.steps, k.estimate.bytes}) write(cost);
  write(blob.code);
  const std::string content = write.take();
  Writer sum;
  sum(hash_text(content));
  return std::string(heading) + sum.take() + content;
}

Blob blob_from(std::string_view bytes) {
  KOINE_REQUIRE(bytes.starts_with(heading), Value,
                "compiled kernel: these {} bytes do not begin as one of this version of Koine does",
                bytes.size());
  Reader read(bytes.substr(heading.size()));
  const uint64_t sum = read.word();
  KOINE_REQUIRE(hash_text(read.rest()) == sum, Value,
                "compiled kernel: its {} bytes are not those that were written: compile it again",
                bytes.size());
  Blob out;
  LoweredKernel& k = out.kernel;
  k.name = read.text();
  out.target = read.text();
  k.linear = parse(read.text());
  const uint64_t flags = read.word();
  k.how = {(flags & 1) != 0, (flags & 2) != 0, compile_options().verify, read.text()};
  k.estimate = {read.number(), read.number(), read.number()};
  out.code = read.text();
  return out;
}

}  // namespace koine
