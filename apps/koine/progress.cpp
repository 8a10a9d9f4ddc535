#include "progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace koine::app {

std::string progress_line(const Progress& p, int columns) {
  constexpr int widest_bar = 24, narrowest_bar = 4;
  const std::string where = fmt::format("epoch {:2}/{}", p.epoch + 1, p.epochs);
  const std::string loss = fmt::format("loss {:.4f}", p.loss);
  const std::string full = fmt::format("{}  train accuracy {:5.1f} %", loss, 100 * p.accuracy);
  const int words = static_cast<int>(where.size() + full.size()) + 2;
  const int width = std::min(widest_bar, columns - words);
  if (width >= narrowest_bar) {
    const auto filled = static_cast<int>(width * p.step / std::max<int64_t>(1, p.steps));
    std::string bar;
    for (int i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
    return where + " " + bar + " " + full;
  }
  const std::string line = words - 1 <= columns ? where + " " + full : where + " " + loss;
  return line.substr(0, static_cast<size_t>(std::max(0, columns)));
}

int terminal_columns() {
  if (isatty(STDOUT_FILENO) == 0) return 0;
  winsize size{};
  constexpr int usual = 80;
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : usual;
}

}  // namespace koine::app
