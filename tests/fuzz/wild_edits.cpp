// Edits that ask for nothing of a text: characters, numbers, words and lines.
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "text_edits.hpp"

namespace koine::test {
namespace {

class WildEdits {
 public:
  WildEdits(std::string text, const std::vector<std::string>& corpus, std::mt19937_64& random)
      : text_(std::move(text)), corpus_(corpus), random_(random) {}

  std::string run() {
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
                                                "copies",
                                                "private 1",
                                                "unless_invalid",
                                                "leaf 1",
                                                "in_order",
                                                "goes_on",
                                                "traced",
                                                "view_base",
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
        const std::string mine = std::exchange(text_, pick(corpus_));
        const bool found = find(is_token, begin, end);
        const std::string token = found ? text_.substr(begin, end - begin) : "";
        text_ = mine;
        if (found && find(is_token, begin, end)) put(begin, end, token);
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
    constexpr size_t most = 1000000000;  // an edit may have made any digits of it
    const size_t number =
        std::min<size_t>(std::strtoull(text_.c_str() + begin + 1, nullptr, 10), most);
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

  std::string text_;
  const std::vector<std::string>& corpus_;
  std::mt19937_64& random_;
};

}  // namespace

std::string wild_edits(std::string text, const std::vector<std::string>& corpus,
                       std::mt19937_64& random) {
  return WildEdits(std::move(text), corpus, random).run();
}

}  // namespace koine::test
