// A program over ranks of which rank 1 leaves in the middle, in the way that is asked for. The
// others would go on for minutes.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "koine/koine.hpp"

using koine::Tensor;
namespace distributed = koine::distributed;

namespace {

void step(const Tensor& x, int number) { (void)(x * number).sum().item(); }

void leave(const Tensor& x, const std::string& how) {
  if (how == "throw") throw std::runtime_error("rank 1 has had enough");
  if (how == "status") std::exit(3);
  if (how == "end") std::exit(0);
  if (how == "vanish") _exit(0);
  if (how == "abort") std::abort();
  if (how == "kill") std::raise(SIGKILL);
  if (how == "error") koine::raise(koine::ErrorKind::Value, "rank 1 found a mistake");
  if (how == "another") (void)x.reshape({6, 2}).sum(0).tolist<float>();
  if (how == "read") (void)x.tolist<float>();
}

// A function that fails, on rank 1 alone. Rank 1 may go on as if nothing had been.
void call(bool caught) {
  try {
    (void)koine::call_function("fails", koine::CallResult{{1}}, {Tensor::ones({1}).to("RANK:1")})
        .item();
  } catch (const koine::Error&) {
    if (!caught || distributed::rank() != 1) throw;
    sleep(40);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  try {
    distributed::init();
    koine::register_function("fails", [](auto, auto) { throw std::runtime_error("no disk"); });
    const Tensor x = Tensor::ones({12}).shard(distributed::devices(), 0).clone().realize();
    for (int k = 0; k < 10000000; ++k) {
      if (k == 4 && distributed::rank() == 1) leave(x, how);
      if (k == 4 && (how == "function" || how == "caught")) call(how == "caught");
      step(x, k);
      if (k == 10 && how.empty()) return 0;
    }
  } catch (const koine::Error& e) {
    std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(distributed::rank()), e.what());
    return 1;
  }
  return 0;
}
