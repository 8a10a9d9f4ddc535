// Tensors as text, laid out as NumPy's.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <ostream>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

struct PrintState {
  std::mutex mutex;
  PrintOptions options;
};
PrintState& print_state() {
  static auto& state = *new PrintState;
  return state;
}

// The fewest digits after the point (or of the mantissa) that give the same bits back, or the value
// rounded to `precision` of them, without zeros at their end.
std::string shortest(DType dtype, double value, int precision, char style) {
  const Bits bits = double_to_bits(dtype, value);
  const auto written = [&](double v, int digits) {
    return style == 'e' ? fmt::format("{:.{}e}", v, digits) : fmt::format("{:.{}f}", v, digits);
  };
  const auto is_it = [&](const std::string& t) {
    return double_to_bits(dtype, std::strtod(t.c_str(), nullptr)) == bits;
  };
  const double whole = style == 'e' && value != 0 ? std::floor(std::log10(std::abs(value))) : 0;
  std::string text;
  for (int digits = 0; digits <= precision; ++digits) {
    text = written(value, digits);
    if (is_it(text)) break;
    // Numbers above a power of two lie farther apart than those below: what is rounded up may be it
    // where the nearest is not.
    const double half = std::pow(10, whole - digits) / 2;
    const std::string away = written(value + std::copysign(half, value), digits);
    if (!is_it(away)) continue;
    text = away;
    break;
  }
  const size_t point = text.find('.');
  if (point == std::string::npos) return text;
  const size_t end = std::min(text.find('e'), text.size());
  const size_t last = std::max(text.find_last_not_of('0', end - 1), point);
  return text.erase(last + 1, end - last - 1);
}

// Texts of the elements that show, all in one style and of one width.
class Column {
 public:
  Column(DType dtype, const std::vector<Bits>& shown, const PrintOptions& options) {
    if (is_float(dtype))
      write_floats(dtype, shown, options.precision);
    else
      for (const Bits b : shown) texts_.push_back(whole(dtype, b));
    size_t width = 0;
    for (const std::string& t : texts_) width = std::max(width, t.size());
    for (std::string& t : texts_) t = std::string(width - t.size(), ' ') + t;
  }
  const std::string& operator[](size_t i) const { return texts_[i]; }

 private:
  static std::string whole(DType dtype, Bits bits) {
    if (dtype == DType::Bool) return bits != 0 ? "True" : "False";
    if (dtype == DType::UInt64) return fmt::format("{}", bits);
    return fmt::format("{}", bits_to_int(dtype, bits));
  }

  // Fixed point, unless that would hide or drown digits: then all have exponents.
  void write_floats(DType dtype, const std::vector<Bits>& shown, int precision) {
    double smallest = INFINITY, largest = 0;
    for (const Bits b : shown) {
      const double size = std::abs(bits_to_double(dtype, b));
      if (!std::isfinite(size) || size == 0) continue;
      smallest = std::min(smallest, size);
      largest = std::max(largest, size);
    }
    const double ratio = bits_to_double(dtype, double_to_bits(dtype, largest / smallest));
    const bool exponents =
        largest > 0 && (largest >= most_without_exponent(dtype) || smallest < 1e-4 || ratio > 1000);
    const char style = exponents ? 'e' : 'f';
    size_t decimals = 0;  // of the longest
    for (const Bits b : shown) {
      const double v = bits_to_double(dtype, b);
      std::string text = std::isnan(v)   ? "nan"
                         : std::isinf(v) ? (v < 0 ? "-inf" : "inf")
                                         : shortest(dtype, v, precision, style);
      if (std::isfinite(v)) decimals = std::max(decimals, fraction_of(text));
      texts_.push_back(std::move(text));
    }
    for (size_t k = 0; k < texts_.size(); ++k)
      lengthen(texts_[k], bits_to_double(dtype, shown[k]), decimals, exponents);
  }

  // What a number of the dtype has more digits than, as in NumPy 2.
  static double most_without_exponent(DType dtype) {
    return dtype == DType::Float16 ? 1e3 : dtype == DType::Float32 ? 1e6 : 1e8;
  }

  static size_t fraction_of(const std::string& text) {
    const size_t point = text.find('.');
    if (point == std::string::npos) return 0;
    return std::min(text.find('e'), text.size()) - point - 1;
  }
  // As many digits as the longest: those of the number where there are exponents, else blanks, as
  // NumPy's.
  static void lengthen(std::string& text, double value, size_t decimals, bool exponents) {
    if (!std::isfinite(value)) return;
    if (fraction_of(text) < decimals && exponents) text = fmt::format("{:.{}e}", value, decimals);
    const size_t at = std::min(text.find('e'), text.size());
    std::string digits = text.substr(0, at);
    if (digits.find('.') == std::string::npos) digits += '.';
    text = digits + std::string(decimals - fraction_of(text), ' ') + text.substr(at);
  }

  std::vector<std::string> texts_;
};

// The positions of an axis that show; -1 stands for those left out.
std::vector<int64_t> shown_positions(int64_t size, bool shortened, int64_t edge) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) {
    if (shortened && size > 2 * edge && i == edge) {
      out.push_back(-1);
      i = size - edge;
    }
    if (i < size) out.push_back(i);
  }
  return out;
}

class Printer {
 public:
  Printer(const Tensor& tensor, std::shared_ptr<Memory> memory, const PrintOptions& options)
      : options_(options), sizes_(tensor.shape().present()), memory_(std::move(memory)) {
    const DType dtype = tensor.dtype();
    const bool shortened = tensor.numel().present() > options.threshold;
    for (const int64_t size : sizes_)
      positions_.push_back(shown_positions(size, shortened, options.edge_items));
    std::vector<Bits> shown;
    collect(0, 0, dtype, shown);
    column_.emplace(dtype, shown, options);
  }

  std::string text(size_t indent) {
    next_ = 0;
    return block(0, indent);
  }

 private:
  void collect(size_t axis, int64_t offset, DType dtype, std::vector<Bits>& shown) const {
    if (axis == sizes_.size()) {
      Bits bits = 0;
      const int64_t item = item_size(dtype);
      memory_->copy_out(&bits, offset * item, item);
      shown.push_back(bits);
      return;
    }
    for (const int64_t p : positions_[axis])
      if (p >= 0) collect(axis + 1, offset * sizes_[axis] + p, dtype, shown);
  }

  std::string block(size_t axis, size_t indent) {
    if (axis == sizes_.size()) return (*column_)[next_++];
    const bool row = axis + 1 == sizes_.size();
    const std::string margin(indent + 1, ' ');
    std::string out = "[", line;
    bool first = true;
    for (const int64_t p : positions_[axis]) {
      std::string part = p < 0 ? "..." : block(axis + 1, indent + 1);
      if (!first) out += row ? "," : "," + std::string(sizes_.size() - 1 - axis, '\n') + margin;
      if (row) {
        const size_t column = out.size() - std::min(out.size(), out.rfind('\n') + 1);
        const size_t start = out.find('\n') == std::string::npos ? indent + out.size() : column;
        if (!first && start + 1 + part.size() + 1 > static_cast<size_t>(options_.line_width))
          out += "\n" + margin;
        else if (!first)
          out += ' ';
      }
      out += part;
      first = false;
    }
    return out + "]";
  }

  const PrintOptions options_;
  std::vector<int64_t> sizes_;
  std::vector<std::vector<int64_t>> positions_;
  std::shared_ptr<Memory> memory_;
  std::optional<Column> column_;
  size_t next_ = 0;
};

// Whether a value stands for something that is not known before a call.
bool is_open(const UOp& value) {
  const NodeList below = toposort_outside_bodies(value);
  return std::any_of(below.begin(), below.end(),
                     [](const UOp& u) { return u.is(Op::Param) && !is_bound(u); });
}

}  // namespace

PrintOptions print_options() {
  const std::lock_guard lock(print_state().mutex);
  return print_state().options;
}
void set_print_options(const PrintOptions& options) {
  KOINE_REQUIRE(options.precision >= 0 && options.threshold >= 0 && options.edge_items >= 1 &&
                    options.line_width >= 1,
                Value,
                "set_print_options: precision {} and threshold {} must not be negative, "
                "edge items {} and line width {} must be positive",
                options.precision, options.threshold, options.edge_items, options.line_width);
  const std::lock_guard lock(print_state().mutex);
  print_state().options = options;
}

std::string Tensor::repr() const {
  if (!defined()) return "Tensor(undefined)";
  const std::string about = fmt::format("dtype={}, device={}", dtype_name(dtype()), this->device());
  const UOp value = uop();
  if (is_open(value)) return fmt::format("Tensor(shape={}, {}, traced)", shape_text(value), about);
  const bool empty = numel().present() == 0;
  const std::string shape =
      empty && shape_text(value) != "(0,)" ? fmt::format("shape={}, ", shape_text(value)) : "";
  return fmt::format("Tensor({}, {}{})",
                     empty ? "[]" : Printer(*this, look(), print_options()).text(7), shape, about);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.repr(); }

}  // namespace koine
