#include "isolate.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "koine/base/error.hpp"

namespace koine::test {
namespace {

// What a child has to say: shared memory that outlives it.
struct Board {
  int64_t at;      // the case it works on
  int64_t length;  // of `text`; -1: nothing yet
  char text[1 << 16];
};

class Child {
 public:
  Child() {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KOINE_INVARIANT(memory != MAP_FAILED, "no shared memory");
    board_ = static_cast<Board*>(memory);
    errors_ = std::tmpfile();
    KOINE_INVARIANT(errors_ != nullptr, "no temporary file");
  }
  ~Child() {
    munmap(board_, sizeof(Board));
    (void)std::fclose(errors_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Board& board() { return *board_; }

  // Runs `work` in a fork; the empty text where it came to its end.
  std::string run(const std::function<void()>& work) {
    board_->length = -1;
    (void)std::fflush(nullptr);
    const pid_t pid = fork();
    KOINE_INVARIANT(pid >= 0, "fork failed");
    if (pid == 0) {
      (void)dup2(fileno(errors_), STDERR_FILENO);
      work();
      (void)std::fflush(nullptr);
      _exit(0);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return fmt::format("crash: {}: {}",
                       signal == SIGALRM || signal == SIGPROF ? "it took too long"
                       : signal != 0                          ? strsignal(signal)
                                                              : "it exited early",
                       tail());
  }

  void say(const std::string& text) {
    board_->length = static_cast<int64_t>(std::min(text.size(), sizeof(board_->text)));
    std::memcpy(board_->text, text.data(), static_cast<size_t>(board_->length));
  }
  std::string said() const {
    return board_->length < 0 ? "" : std::string(board_->text, static_cast<size_t>(board_->length));
  }

 private:
  std::string tail() {
    const long end = (std::fseek(errors_, 0, SEEK_END), std::ftell(errors_));
    const long from = std::max(0L, end - 600);
    (void)std::fseek(errors_, from, SEEK_SET);
    std::string out(static_cast<size_t>(end - from), ' ');
    out.resize(std::fread(out.data(), 1, out.size(), errors_));
    return out;
  }

  Board* board_;
  std::FILE* errors_;
};

std::string result_of(const std::function<std::string()>& action) {
  try {
    return action();
  } catch (const std::exception& e) {
    return std::string("exception: ") + e.what();
  }
}

// Of the processor: on a busy machine a case may wait for long. What waits for ever ends as well.
void limit_time(double seconds) {
  const auto after = [](double s) {
    return itimerval{{0, 0},
                     {static_cast<time_t>(s), static_cast<suseconds_t>(std::fmod(s, 1) * 1e6)}};
  };
  const itimerval processor = after(seconds), wall = after(10 * seconds);
  (void)setitimer(ITIMER_PROF, &processor, nullptr);
  (void)setitimer(ITIMER_REAL, &wall, nullptr);
}

}  // namespace

std::string in_child(const std::function<std::string()>& action, double seconds) {
  Child child;
  const std::string death = child.run([&] {
    limit_time(seconds);
    child.say(result_of(action));
  });
  return death.empty() ? child.said() : death;
}

void check_isolated(int64_t count, int64_t batch, const std::function<std::string(int64_t)>& check,
                    const std::function<bool(int64_t, const std::string&)>& report) {
  for (int64_t next = 0; next < count;) {
    Child child;
    const int64_t end = std::min(count, next + batch);
    const std::string death = child.run([&] {
      for (int64_t i = next; i < end; ++i) {
        child.board().at = i;
        limit_time(60);
        const std::string problem = result_of([&] { return check(i); });
        if (problem.empty()) continue;
        child.say(problem);
        return;
      }
    });
    const std::string problem = death.empty() ? child.said() : death;
    if (problem.empty()) {
      next = end;
      continue;
    }
    if (!report(child.board().at, problem)) return;
    next = child.board().at + 1;
  }
}

}  // namespace koine::test
