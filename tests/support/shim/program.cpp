// A program that runs one kernel of a text and ends: its name, three numbers of groups, three of
// threads, and a file for each buffer, which is read and written back.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

int main(int count, char** words) {
  using Run = void (*)(void**, const int64_t*, const uint32_t*, const uint32_t*);
  const auto run = reinterpret_cast<Run>(dlsym(RTLD_DEFAULT, words[1]));
  if (run == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  uint32_t sizes[6];
  for (int i = 0; i < 6; ++i) sizes[i] = static_cast<uint32_t>(std::atoi(words[2 + i]));
  std::vector<std::vector<char>> memory;
  std::vector<void*> buffers;
  for (int i = 8; i < count; ++i) {
    std::ifstream in(words[i], std::ios::binary);
    memory.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  for (std::vector<char>& m : memory) buffers.push_back(m.data());
  run(buffers.data(), nullptr, sizes, sizes + 3);
  for (int i = 8; i < count; ++i)
    std::ofstream(words[i], std::ios::binary)
        .write(memory[static_cast<size_t>(i - 8)].data(),
               static_cast<std::streamsize>(memory[static_cast<size_t>(i - 8)].size()));
}
