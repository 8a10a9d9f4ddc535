#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"

// Words and texts as bytes, and back: what files of compiled code are made of.
namespace koine {

class ByteWriter {
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
  /// What was written, behind a heading and a sum that tells whether it is whole.
  std::string take(std::string_view heading) {
    ByteWriter sum;
    sum(hash_text(out_));
    return std::string(heading) + sum.out_ + out_;
  }

 private:
  std::string out_;
};

class ByteReader {
 public:
  /// `what` the bytes are is for errors. Throws Error (Value) where they begin with another heading
  /// or are not what was written.
  ByteReader(std::string_view bytes, std::string_view heading, std::string_view what)
      : what_(what) {
    KOINE_REQUIRE(bytes.starts_with(heading), Value,
                  "{}: these {} bytes do not begin as one of this version of Koine does", what,
                  bytes.size());
    rest_ = bytes.substr(heading.size());
    const uint64_t sum = word();
    KOINE_REQUIRE(hash_text(rest_) == sum, Value,
                  "{}: its {} bytes are not those that were written: compile it again", what,
                  bytes.size());
  }

  uint64_t word() {
    uint64_t out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  double number() { return std::bit_cast<double>(word()); }
  std::string text() { return std::string(take(word())); }

 private:
  std::string_view take(uint64_t bytes) {
    KOINE_REQUIRE(bytes <= rest_.size(), Value,
                  "{}: {} bytes are missing at the end: compile it again", what_,
                  bytes - rest_.size());
    const std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  std::string_view what_, rest_;
};

}  // namespace koine
