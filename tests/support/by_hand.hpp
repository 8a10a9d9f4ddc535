#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "c_text.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/optimize.hpp"

namespace koine::test {

/// Runs a kernel written by hand on a device, over memory of its own, with the edits asked for
/// (null: those of the heuristics). The bytes of Param i are `buffers[i]`, which are read back.
void run_by_hand(const UOp& ast, const std::string& device,
                 std::span<const std::span<std::byte>> buffers,
                 const std::vector<Opt>* opts = nullptr);

/// What a kernel of (out, in) makes of `out`.
template <class T, class In>
std::vector<T> run_by_hand(const UOp& ast, const std::string& device, std::vector<T> out,
                           std::vector<In>& in) {
  const std::span<std::byte> buffers[] = {std::as_writable_bytes(std::span(out)),
                                          std::as_writable_bytes(std::span(in))};
  run_by_hand(ast, device, buffers);
  return out;
}

/// Linear programs of (out, in) as one text, which is loaded while this lives.
class Texts {
 public:
  Texts(std::string_view language, std::vector<UOp> linears, const CText::Load& load = nullptr);
  /// What one of them makes of `out`.
  template <class T, class In>
  std::vector<T> run(size_t number, std::vector<T> out, std::vector<In> in) const {
    run(number, std::as_writable_bytes(std::span(out)), std::as_writable_bytes(std::span(in)));
    return out;
  }

 private:
  void run(size_t number, std::span<std::byte> out, std::span<std::byte> in) const;
  std::vector<UOp> linears_;
  std::unique_ptr<TextLibrary> library_;
};

/// Programs of writer.hpp whose threads wait for each other, and what they compute.
std::vector<UOp> programs_by_hand();
void expect_threads_wait(const Texts& programs);

/// out[in[i]] += 1 for each i: Param 0 has `bins` numbers of `dtype`, Param 1 `count` int32.
UOp histogram(int64_t count, int64_t bins, DType dtype, AxisType type = AxisType::Loop);

/// out[i] = of(in[i]) for each of 40 elements.
UOp kernel_of_40(DType dtype, const std::function<UOp(const UOp&)>& of);
/// An Ins or a Custom.
UOp code(Op op, const char* text, DType dtype, std::vector<UOp> src);

}  // namespace koine::test
