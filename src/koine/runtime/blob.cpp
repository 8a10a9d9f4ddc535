#include "koine/runtime/blob.hpp"

#include "koine/base/bytes.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Another number for another form, so that old bytes are refused.
constexpr std::string_view heading = "koine kernel 1\n";

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
  ByteWriter write;
  write(k.name);
  write(blob.target);
  write(to_text(k.linear));
  write(uint64_t{k.how.strict} | uint64_t{k.how.noopt} << 1);
  write(k.how.cpu);
  for (const double cost : {k.estimate.operations, k.estimate.steps, k.estimate.bytes}) write(cost);
  write(blob.code);
  return write.take(heading);
}

Blob blob_from(std::string_view bytes) {
  ByteReader read(bytes, heading, "compiled kernel");
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
