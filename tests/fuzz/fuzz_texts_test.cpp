// Mutated graph texts through what `koine opt` and `koine render` do with them, and mutated
// safetensors: an Error or a result, never a crash and never an InternalError.
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "corpus.hpp"
#include "koine/base/timer.hpp"
#include "text.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" void __sanitizer_set_death_callback(void (*)());  // GCC has no header for it
#define KOINE_SANITIZED
#endif

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
#ifdef KOINE_SANITIZED
    __sanitizer_set_death_callback(last_words);
#else
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(s, on_signal);
#endif
    for (const int s : {SIGABRT, SIGALRM}) std::signal(s, on_signal);
  }
  ~Watch() { alarm(0); }
  void begin(uint64_t seed) {
    constexpr unsigned most_seconds = 120;  // of one text, on a slow machine under sanitizers
    current_seed = seed;
    alarm(most_seconds);
  }
};

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, std::mt19937_64& random)
      : corpus_(corpus), random_(random) {}

  std::string run() {
    text_ = pick(corpus_);
    const size_t edits = 1 + below(4);
    for (size_t i = 0; i < edits && !text_.empty(); ++i) edit();
    return text_;
  }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[below(list.size())];
  }

  // [begin, end) of a random run of characters of one kind.
  template <class Kind>
  bool find(Kind&& kind, size_t& begin, size_t& end) {
    const size_t from = below(text_.size());
    for (size_t n = 0; n < text_.size(); ++n) {
      begin = (from + n) % text_.size();
      if (!kind(text_[begin]) || (begin > 0 && kind(text_[begin - 1]))) continue;
      for (end = begin; end < text_.size() && kind(text_[end]);) ++end;
      return true;
    }
    return false;
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  static bool is_token(char c) { return std::strchr(" ,()[]=\n", c) == nullptr; }
  void put(size_t begin, size_t end, const std::string& with) {
    text_ = text_.substr(0, begin) + with + text_.substr(end);
  }

  std::string number() {
    static const std::vector<std::string> odd{"0",
                                              "1",
                                              "-1",
                                              "2",
                                              "3",
                                              "7",
                                              "8",
                                              "16",
                                              "63",
                                              "64",
                                              "255",
                                              "256",
                                              "257",
                                              "4096",
                                              "16385",
                                              "65536",
                                              "1000000000",
                                              "2147483647",
                                              "4294967296",
                                              "1099511627776",
                                              "4611686018427387904",
                                              "9223372036854775807",
                                              "-9223372036854775808",
                                              "18446744073709551615",
                                              "nan:7fc00000",
                                              "inf",
                                              "-inf",
                                              "1e300",
                                              "invalid"};
    return chance(2) ? pick(odd) : std::to_string(below(40));
  }
  bool chance(size_t one_in) { return below(one_in) == 0; }
  std::string op() {
    return std::string(op_name(static_cast<Op>(below(static_cast<size_t>(op_count)))));
  }
  std::string word() {
    static const std::vector<std::string> words{"LOOP",
                                                "REDUCE",
                                                "UPCAST",
                                                "UNROLL",
                                                "GROUP_REDUCE",
                                                "THREAD",
                                                "GLOBAL",
                                                "LOCAL",
                                                "REG",
                                                "tag 1",
                                                "Add",
                                                "Max",
                                                "Mul",
                                                "@\"CPU:1\"",
                                                "@\"NULL\"",
                                                "\"n\"",
                                                "\"thread\"",
                                                "; after expand",
                                                "; after select",
                                                "; after optimize",
                                                "; after callify",
                                                "(0)",
                                                "(1 0)"};
    if (chance(2)) return pick(words);
    return std::string(dtype_name(static_cast<DType>(below(dtype_count))));
  }

  void edit() {
    size_t begin = 0, end = 0;
    const size_t at = below(text_.size());
    switch (below(12)) {
      case 0:
        text_[at] = static_cast<char>(below(256));
        return;
      case 1:
        text_.erase(at, 1 + below(3));
        return;
      case 2:
        text_.insert(at, 1, static_cast<char>(32 + below(95)));
        return;
      case 3:
      case 4:
        if (find(is_digit, begin, end)) put(begin, end, number());
        return;
      case 5:
      case 6:  // another op
        if (find(is_letter, begin, end)) put(begin, end, chance(3) ? word() : op());
        return;
      case 7:
        if (find(is_token, begin, end)) put(begin, end, chance(2) ? word() : number());
        return;
      case 8:
        lines();
        return;
      case 9: {  // a token of another text
        const std::string mine = text_;
        text_ = pick(corpus_);
        if (!find(is_token, begin, end)) return;
        const std::string token = text_.substr(begin, end - begin);
        text_ = mine;
        if (find(is_token, begin, end)) put(begin, end, token);
        return;
      }
      default:
        sources();
    }
  }

  // A source of a node becomes another node before it, or two change places.
  void sources() {
    size_t begin = 0, end = 0;
    auto reference = [](char c) { return c == '%' || is_digit(c); };
    if (!find(reference, begin, end) || text_[begin] != '%' || end - begin < 2) return;
    const size_t number = std::strtoull(text_.c_str() + begin + 1, nullptr, 10);
    const bool near = number > 3 && chance(2);
    put(begin, end, fmt::format("%{}", near ? number - 1 - below(3) : below(number + 2)));
  }

  void lines() {
    std::vector<std::string> all;
    for (size_t from = 0; from < text_.size();) {
      const size_t stop = std::min(text_.find('\n', from), text_.size() - 1);
      all.push_back(text_.substr(from, stop + 1 - from));
      from = stop + 1;
    }
    const size_t a = below(all.size()), b = below(all.size());
    if (chance(3))
      std::swap(all[a], all[b]);
    else if (chance(2))
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(a));
    else
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(a), all[b]);
    text_.clear();
    for (const std::string& l : all) text_ += l;
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64& random_;
  std::string text_;
};

void use(const std::string& text, std::mt19937_64& random) {
  const auto& stages = stage_names();
  switch (random() % 3) {
    case 0:
      (void)app::text_after(text, stages[random() % stages.size()]);
      return;
    case 1:
      (void)app::sources_of(text, "c");
      return;
    default:
      (void)app::sources_of(text, "llvm");
  }
}

}  // namespace

TEST(fuzz, texts_are_refused_or_compiled) {
  const std::vector<std::string> corpus = stage_texts();
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(4000);
  int64_t compiled = 0, failures = 0;
  double slowest = 0;
  Watch watch;
  for (int64_t i = 0; i < cases && failures < 20; ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    std::mt19937_64 random(own);
    const std::string text = Mutator(corpus, random).run();
    if (cases == 1) fmt::print(stderr, "{}", text);  // a case that is looked at
    watch.begin(own);
    const double start = now_seconds();
    try {
      use(text, random);
      ++compiled;
    } catch (const Error&) {
      // Refused in words.
    } catch (const std::exception& e) {
      ++failures;
      ADD_FAILURE() << "KOINE_TEST_CASES=1 KOINE_TEST_SEED=" << own << ": "
                    << std::string(e.what()).substr(0, 1500) << "\n--- of\n"
                    << text.substr(0, 6000);
    }
    slowest = std::max(slowest, now_seconds() - start);
  }
  if (cases >= 1000) {
    EXPECT_GT(compiled, cases / 50) << "nearly all texts are refused: the mutations say nothing";
  }
  fmt::print("{} of {} texts compiled, the slowest took {:.2f} s\n", compiled, cases, slowest);
}

TEST(fuzz, safetensors_are_refused_or_read) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = (folder / fmt::format("koine_fuzz_{}.safetensors", getpid())).string();
  safe_save({{"a", Tensor::ones({3, 2})},
             {"b", Tensor::from<int32_t>({1, 2, 3})},
             {"c", Tensor::ones({2}).cast(DType::BFloat16)},
             {"empty", Tensor::zeros({0, 4})}},
            path);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string header = whole.substr(8, whole.rfind('}') - 7),
                    data = whole.substr(8 + header.size());
  const std::vector<std::string> headers{header};
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(3000);
  int64_t failures = 0;
  Watch watch;
  for (int64_t i = 0; i < cases && failures < 20; ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    std::mt19937_64 random(own);
    watch.begin(own);
    std::string text = Mutator(headers, random).run();
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
    } catch (const Error&) {
      // Refused in words.
    } catch (const std::exception& e) {
      ++failures;
      ADD_FAILURE() << "KOINE_TEST_CASES=1 KOINE_TEST_SEED=" << own << ": " << e.what();
    }
  }
  std::filesystem::remove(path);
}

}  // namespace koine::test
