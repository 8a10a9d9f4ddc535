#include "koine/tensor/lent.hpp"

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/recording.hpp"
#include "koine/transform/function.hpp"

namespace koine {

// The value becomes another Buffer, so that whoever has the one of now, and a gradient through it,
// keeps what it says: its memory goes along where nobody else can see it, and is copied otherwise.
// As all memory of others it is never written by programs, and read anew by each.
std::shared_ptr<std::byte> Tensor::Recording::lend(const Tensor& tensor) {
  if (is_tracing()) require_no_trace("numpy: writable=True of a tensor");
  const Impl& i = tensor.self();
  KOINE_REQUIRE(!i.number, Value, "numpy: writable=True of a number, which has no memory");
  const std::string shape = shape_text(tensor.uop());
  const auto refuse_gradient = [&](bool asked) {
    KOINE_REQUIRE(!asked, Value,
                  "numpy: writable=True of a tensor of shape {} that a gradient goes through, "
                  "which would not know of what is written: write to detach().clone() of it, and "
                  "assign() that",
                  shape);
  };
  refuse_gradient(i.storage->requires_grad);
  (void)tensor.look();
  Storage& s = *i.storage;
  const std::lock_guard lock(s.mutex);
  refuse_gradient(!s.current.is(Op::Buffer));
  const auto memory = memory_of(s.current);
  KOINE_REQUIRE(
      s.current.device().count() == 1 && memory->data() != nullptr, Device,
      "numpy: writable=True of a tensor on {}, whose memory NumPy does not see: to('CPU') "
      "is a copy there",
      s.current.device().name());
  if (const auto lent = s.lent.lock(); lent && lent == memory) return {lent, lent->data()};
  History::set_current(s, s.current);  // its views hold it no more
  std::shared_ptr<Memory> own = memory;
  UOp buffer = new_buffer(s.current.shape(), s.current.dtype(), s.current.device());
  if (s.current.use_count() > 1 || memory->is_shared()) {
    storage::set_memory(buffer, device_runtime(s.current.device()).allocate(memory->bytes()));
    own = memory_of(buffer);
    copy_bytes(*own, 0, *memory, 0, memory->bytes());
  }
  const auto lent = borrowed_memory(own->data(), own->bytes(), own);
  storage::set_memory(buffer, lent);
  History::replace(i.storage, buffer);
  s.waiting = {};
  s.lent = lent;
  return {lent, lent->data()};
}

std::shared_ptr<std::byte> lent_memory(const Tensor& tensor) {
  return Tensor::Recording::lend(tensor);
}

}  // namespace koine
