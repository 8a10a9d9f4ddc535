// Mutated graph texts through what every subcommand does with them, and mutated safetensors: an
// Error or a result, never a crash and never an InternalError.
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "check.hpp"
#include "corpus.hpp"
#include "koine/base/timer.hpp"
#include "koine/differential/run.hpp"
#include "koine/ir/text.hpp"
#include "koine/render/dialect.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/cpu/jit.hpp"
#include "text.hpp"
#include "text_edits.hpp"
#include "view.hpp"

// GCC has no header for it. Null where no sanitizer is linked.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace koine::test {
namespace {

// What is being run, for the last words of a process that dies of it.
volatile uint64_t current_seed = 0;

void last_words() {
  char text[64];
  size_t n = 0;
  const char* lead = "died of KOINE_TEST_CASES=1 KOINE_TEST_SEED=";
  while (lead[n] != 0) {
    text[n] = lead[n];
    ++n;
  }
  char digits[24];
  size_t count = 0;
  for (uint64_t rest = current_seed; count == 0 || rest > 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  while (count > 0) text[n++] = digits[--count];
  text[n++] = '\n';
  (void)!write(STDERR_FILENO, text, n);
}

void on_signal(int signal) {
  last_words();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Names the case when the process dies, and ends one that takes too long.
class Watch {
 public:
  Watch() {
    if (is_sanitized())
      __sanitizer_set_death_callback(last_words);
    else
      for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(s, on_signal);
    for (const int s : {SIGABRT, SIGALRM}) std::signal(s, on_signal);
  }
  ~Watch() { alarm(0); }
  void begin(uint64_t seed) {
    constexpr unsigned most_seconds = 120;  // of one text, on a slow machine under sanitizers
    current_seed = seed;
    alarm(most_seconds);
  }
};

// A file that goes with its owner.
struct ScratchFile {
  explicit ScratchFile(std::string_view ending)
      : path((std::filesystem::temp_directory_path() /
              fmt::format("koine_fuzz_{}.{}", getpid(), ending))
                 .string()) {}
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() { std::filesystem::remove(path); }
  const std::string path;
};

// How many texts each subcommand took, of render with its target.
using Taken = std::map<std::string, int64_t>;

std::vector<std::string> languages() {
  std::vector<std::string> out{"llvm", "ptx"};
  for (const Dialect* d : dialects()) out.emplace_back(d->name);
  return out;
}

template <class List>
const auto& one_of(const List& list, std::mt19937_64& random) {
  return list[random() % list.size()];
}

void opt(const std::string& text, std::mt19937_64& random) {
  const std::array<std::string, 3> styles{"tree", "list", "legacy"};
  const std::string style = random() % 4 == 0 ? one_of(styles, random) : "text";
  (void)app::text_after(text, one_of(stage_names(), random), style);
}

// Machine code of the kernels of a text; costs a hundred times as much as all the rest.
void compile_kernels(const std::string& text) {
  const Target target = cpu_target();
  for (const GraphText& graph : graphs_of(app::text_after(text, "linearize")))
    (void)jit_compile(parse(text_of(graph)), target);
}

bool is_small(const CompiledProgram& program) {
  constexpr double most_operations = 1e6;
  return operations_of(program.schedule(), Level::Schedule, {}) <= most_operations;
}

// The file that `koine compile` wrote, or one that was damaged since.
void run_saved(const std::string& path, std::mt19937_64& random, Taken& taken) {
  if (random() % 8 == 0) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(random() % std::filesystem::file_size(path)));
    file.put(static_cast<char>(random()));
  }
  SavedProgram program(path);
  if (!is_small(program.compiled())) return;
  std::map<std::string, Tensor> inputs;
  for (const ProgramPort& p : program.compiled().inputs())
    inputs.emplace(p.name, small(Shape(p.sizes), random()).cast(p.dtype));
  for (const auto& [name, value] : program(inputs)) (void)value.repr();
  ++taken["run"];
}

// What a text is drawn for.
enum class Command { Opt, View, Compile, Render };

Command draw_command(std::mt19937_64& random) {
  const uint64_t drawn = random() % 32;
  return drawn < 4    ? Command::Opt
         : drawn < 6  ? Command::View
         : drawn == 6 ? Command::Compile
                      : Command::Render;
}

// Gives the text to a subcommand, and some of what comes of it to the next one.
void use(const std::string& text, Command command, std::mt19937_64& random, const std::string& path,
         Taken& taken) {
  static const auto& all = *new const std::vector<std::string>(languages());
  if (command == Command::Opt) {
    opt(text, random);
    ++taken["opt"];
  } else if (command == Command::View) {
    (void)app::dot_text(app::last_graph(text));
    ++taken["view"];
  } else if (command == Command::Compile) {
    app::save_compiled(text, path);
    ++taken["compile"];
    // A loop may go on for ever, or nearly, as its text says.
    if (text.find("= While") == text.npos && text.find("= Scan") == text.npos)
      run_saved(path, random, taken);
  } else {
    const std::string& language = one_of(all, random);
    (void)app::sources_of(text, language);
    ++taken["render " + language];
    if (random() % 64 > 0) return;
    compile_kernels(text);
    ++taken["machine code"];
  }
}

}  // namespace

namespace {

using Words = std::vector<std::string>;

// Replaces one occurrence of a word of some list by another word of it.
bool exchange(std::string& text, const Words& words, std::mt19937_64& random) {
  const size_t from = random() % text.size();
  for (size_t n = 0; n < text.size(); ++n) {
    const size_t at = (from + n) % text.size();
    for (const std::string& word : words)
      if (text.compare(at, word.size(), word) == 0) {
        text.replace(at, word.size(), words[random() % words.size()]);
        return true;
      }
  }
  return false;
}

// A header with another dtype of the same size, another shape of as many elements, other names; or
// with another number or word, whatever comes of it; or with any edit at all.
std::string edited_header(const std::string& header, std::mt19937_64& random) {
  static const std::vector<Words> alike{
      {"\"F32\"", "\"I32\"", "\"U32\""},
      {"\"BF16\"", "\"F16\"", "\"I16\"", "\"U16\""},
      {"[3,2]", "[2,3]", "[6]", "[1,6]", "[3,2,1]", "[1,1,1,6]"},
      {"[0,4]", "[0]", "[4,0]", "[0,0]", "[7,0,9]"},
      {"\"a\"", "\"b\"", "\"c\"", "\"a.b\"", "\"__metadata__\"", "\"\\u00e9\"", "\"\""}};
  static const std::vector<Words> unlike{
      {"BOOL", "I8", "I16", "I32", "I64", "U8", "U64", "F16", "BF16", "F32", "F64", "F8_E4M3",
       "F8_E5M2", "F128"},
      {"shape", "dtype", "data_offsets"},
      {"0", "1", "2", "3", "4", "6", "8", "12", "24", "40", "-1", "1.5", "1e3", "null", "[]", "{}",
       "9223372036854775807", "18446744073709551615", "4611686018427387904"}};
  const uint64_t kind = random() % 4;
  if (kind == 0) return wild_edits(header, {header}, random);
  std::string text = header;
  for (uint64_t left = 1 + random() % 3; left > 0; --left) {
    const auto& lists = kind == 1 ? unlike : alike;
    exchange(text, lists[random() % lists.size()], random);
  }
  return text;
}

}  // namespace

TEST(fuzz, texts_are_refused_or_compiled) {
  const TextMutator of_stages(stage_texts()), of_values(value_texts());  // which alone are compiled
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(20000);
  Options limited = options();
  limited.memory_limit = 64 << 20;  // of what a text asks for
  const OptionScope scope(limited);
  const ScratchFile file("koine");
  int64_t failures = 0;
  Taken taken;
  double slowest = 0;
  uint64_t slow_seed = 0;
  Watch watch;
  for (int64_t i = 0; i < cases && failures < 20; ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    std::mt19937_64 random(own);
    const Command command = draw_command(random);
    const std::string text = (command == Command::Compile ? of_values : of_stages).run(random);
    if (cases == 1) fmt::print(stderr, "{}", text);  // a case that is looked at
    watch.begin(own);
    const double start = now_seconds();
    try {
      use(text, command, random, file.path, taken);
    } catch (const Error& e) {
      if (cases == 1) fmt::print(stderr, "{}\n", e.what());
      EXPECT_EQ(std::string(e.what()).find("internal error"), std::string::npos)
          << "KOINE_TEST_CASES=1 KOINE_TEST_SEED=" << own << ": " << e.what();
    } catch (const std::exception& e) {
      ++failures;
      ADD_FAILURE() << "KOINE_TEST_CASES=1 KOINE_TEST_SEED=" << own << ": "
                    << std::string(e.what()).substr(0, 1500) << "\n--- of\n"
                    << text.substr(0, 6000);
    }
    if (const double seconds = now_seconds() - start; seconds > slowest) {
      slowest = seconds;
      slow_seed = own;
    }
  }
  int64_t rendered = 0;
  for (const std::string& language : languages()) {
    rendered += taken["render " + language];
    EXPECT_TRUE(taken["render " + language] > 0 || cases < 1000) << language;
  }
  if (cases >= 1000) {
    EXPECT_GT(rendered, cases / 5) << "nearly all texts are refused: the mutations say nothing";
    for (const char* command : {"opt", "view", "compile", "run", "machine code"})
      EXPECT_GT(taken[command], 0) << command;
  }
  std::string counts;
  for (const auto& [what, count] : taken) counts += fmt::format(", {} {}", count, what);
  fmt::print("of {} texts{}; the slowest, {}, took {:.2f} s\n", cases, counts, slow_seed, slowest);
}

TEST(fuzz, safetensors_are_refused_or_read) {
  const ScratchFile scratch("safetensors");
  const std::string& path = scratch.path;
  safe_save({{"a", Tensor::ones({3, 2})},
             {"b", Tensor::from<int32_t>({1, 2, 3})},
             {"c", Tensor::ones({2}).cast(DType::BFloat16)},
             {"empty", Tensor::zeros({0, 4})}},
            path);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  const std::string header = whole.substr(8, length), data = whole.substr(8 + length);
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(3000);
  int64_t read = 0, failures = 0;
  Watch watch;
  for (int64_t i = 0; i < cases && failures < 20; ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    std::mt19937_64 random(own);
    watch.begin(own);
    const std::string text = edited_header(header, random);
    const auto claimed = static_cast<uint64_t>(random() % 8 == 0 ? random() % 1000 : text.size());
    std::string file(8, '\0');
    std::memcpy(file.data(), &claimed, 8);
    file += text + data;
    if (random() % 8 == 0) file.resize(random() % (file.size() + 1));
    if (random() % 8 == 0 && !file.empty())
      file[random() % 8 % file.size()] = static_cast<char>(random());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << file;
    try {
      (void)safe_load(path);
      ++read;
    } catch (const Error&) {
      // Refused in words.
    } catch (const std::exception& e) {
      ++failures;
      ADD_FAILURE() << "KOINE_TEST_CASES=1 KOINE_TEST_SEED=" << own << ": " << e.what();
    }
  }
  if (cases >= 1000) {
    EXPECT_GT(read, cases / 20) << "nearly all files are refused";
  }
  fmt::print("{} of {} files read\n", read, cases);
}

}  // namespace koine::test
