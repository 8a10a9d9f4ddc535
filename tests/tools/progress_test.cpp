#include "progress.hpp"

#include <gtest/gtest.h>

namespace koine::app {

// Columns of UTF-8 text without wide characters.
static int columns_of(const std::string& text) {
  int n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return n;
}

TEST(progress, fits_every_terminal) {
  for (int columns = 0; columns <= 200; ++columns)
    for (const int64_t step : {0, 1, 17, 20}) {
      const std::string line = progress_line({9, 1000, step, 20, 123.45678, 1.0}, columns);
      EXPECT_LE(columns_of(line), columns) << line;
      if (columns >= 20) {
        EXPECT_NE(line.find("epoch 10/1000"), std::string::npos) << line;
      }
    }
}

TEST(progress, shows_a_bar_where_there_is_room) {
  const std::string line = progress_line({0, 3, 10, 20, 0.5, 0.25}, 120);
  EXPECT_EQ(line, "epoch  1/3 ████████████░░░░░░░░░░░░ loss 0.5000  train accuracy  25.0 %");
  EXPECT_EQ(progress_line({0, 3, 10, 20, 0.5, 0.25}, 47),
            "epoch  1/3 loss 0.5000  train accuracy  25.0 %");
  EXPECT_EQ(progress_line({0, 3, 10, 20, 0.5, 0.25}, 30), "epoch  1/3 loss 0.5000");
}

}  // namespace koine::app
