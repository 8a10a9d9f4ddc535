#pragma once
#include <cstdint>
#include <string>

namespace koine::app {

/// How far a training is.
struct Progress {
  int epoch = 0, epochs = 1;      ///< the first is 0
  int64_t step = 0, steps = 1;    ///< of the epoch, done so far
  double loss = 0, accuracy = 0;  ///< accuracy from 0 to 1
};

/// One line of at most `columns` columns: with a bar where there is room for one, and with fewer
/// words where there is little.
std::string progress_line(const Progress& progress, int columns);

/// Columns of the terminal that stdout is; 0 where it is none.
int terminal_columns();

}  // namespace koine::app
