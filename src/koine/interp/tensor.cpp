
#include <numeric>
#include <optional>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/interp/call.hpp"
#include "koine/interp/interp.hpp"
#include "koine/interp/scalar.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/selection.hpp"

namespace koine {

int64_t Array::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

namespace {

using Sizes = std::vector<int64_t>;

Sizes strides_of(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

// Steps through all coordinates of a shape in row-major order.
class Coordinates {
 public:
  explicit Coordinates(const Sizes& sizes) : sizes_(sizes), at_(sizes.size(), 0) {}
  const Sizes& at() const { return at_; }
  void next() {
    for (size_t i = at_.size(); i-- > 0;) {
      if (++at_[i] < sizes_[i]) return;
      at_[i] = 0;
    }
  }

 private:
  const Sizes& sizes_;
  Sizes at_;
};

int64_t offset_of(const Sizes& at, const Sizes& strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
  return offset;
}

class TensorInterpreter {
 public:
  explicit TensorInterpreter(const Bindings& bindings) : bindings_(bindings) {}

  const Array& value(const UOp& root) {
    if (!versions_ && has_effects(root)) versions_.emplace(root);
    // Bodies of Functions are evaluated by their GetTuple, with Params bound.
    const auto order = toposort(root, [&](const UOp& u) {
      return !u.is(Op::Function) && !u.is(Op::Tuple) && !bindings_.contains(u);
    });
    for (const UOp& u : order)
      if (!values_.contains(u.node())) set(u, evaluate(u));
    if (!values_.contains(root.node())) set(root, evaluate(root));
    return values_.at(root.node());
  }

 private:
  void set(const UOp& u, Array a) {
    keep_.push_back(u);
    values_.emplace(u.node(), std::move(a));
  }

  const Array& of(const UOp& u) {
    if (const auto it = values_.find(u.node()); it != values_.end()) return it->second;
    return value(u);
  }

  Sizes resolve(const UOp& shape) {
    Sizes out;
    for (const UOp& d : shape.src())
      out.push_back(d.is(Op::Const) ? const_int(d) : bits_to_int(DType::Index, of(d).data.at(0)));
    return out;
  }

  Array blank(const UOp& u) {
    Array a{u.dtype(), resolve(u.shape()), {}, {}};
    const int64_t n = a.numel();
    KOINE_REQUIRE(n < (int64_t{1} << 32), Memory, "interpreter: {} of shape {} is too large",
                  op_name(u.op()), shape_text(u));
    a.data.assign(static_cast<size_t>(n), 0);
    return a;
  }

  Array evaluate(const UOp& u) {
    if (const auto it = bindings_.find(u); it != bindings_.end()) {
      if (is_variable(u)) require_in_range(u, bits_to_int(u.dtype(), it->second.data.at(0)));
      return it->second;
    }
    if (is_elementwise(u.op())) return elementwise(u);
    switch (u.op()) {
      case Op::Const: {
        Array a{u.dtype(), {}, {u.as<ConstArg>().bits}, {}};
        if (is_invalid(u)) a.valid = {0};
        return a;
      }
      case Op::Binary: {
        Array a = blank(u);
        const std::string& bytes = u.as<std::string>();
        for (size_t i = 0; i < bytes.size(); ++i) a.data[i] = static_cast<uint8_t>(bytes[i]);
        return a;
      }
      case Op::Param:
        if (is_bound(u)) return of(u.src(3));
        [[fallthrough]];
      case Op::Buffer:
        raise(ErrorKind::Key, "{} of slot {}{} is not bound to a value", op_name(u.op()),
              u.as<BufferArg>().slot,
              u.as<BufferArg>().name.empty() ? "" : " ('" + u.as<BufferArg>().name + "')");
      case Op::Stack:
        return stack_values(u);
      case Op::Reduce:
        if (const UOp selection = options().strict ? UOp() : one_hot_selection(u))
          return of(selection);
        return reduce_axes(u);
      case Op::Bitcast:
        return bitcast_value(u);
      case Op::Replicated:
        return one_of_equal_copies(u);
      case Op::Load:
        if (u.src().size() == 3)  // read where the gate is true, the alt elsewhere
          return in_memory(elementwise(where(u.src(2), u.src(0), u.src(1))));
        return in_memory(of(u.src(0)));
      case Op::Contiguous:
        return in_memory(of(u.src(0)));
      case Op::ContiguousBackward:
      case Op::Fence:
      case Op::Detach:
        return of(u.src(0));
      case Op::Assume: {
        const Array& a = of(u.src(0));
        auto number = [&](const UOp& end) { return bits_to_int(end.dtype(), of(end).data.at(0)); };
        const int64_t low = number(u.src(1)), high = number(u.src(2));
        for (size_t i = 0; i < a.data.size(); ++i) {
          const int64_t v = bits_to_int(a.dtype, a.data[i]);
          KOINE_REQUIRE(v >= low && v <= high, Index, "index: {} is out of range: use {} to {}", v,
                        low, high);
        }
        return a;
      }
      case Op::After:
        return after_stores(u);
      case Op::GetTuple:
        if (u.src(0).is(Op::Call)) return call_result(u);
        return get_tuple_value(u);
      case Op::Call:
      case Op::Store:
      case Op::Group:
      case Op::Sink:
        return {DType::Void, {}, {0}, {}};
      default:
        break;
    }
    if (is_movement(u.op())) return move(u);
    internal_error("the tensor interpreter does not know {}", op_name(u.op()));
  }

  // Memory has no validity bit: invalid elements become 0 (amendment C27).
  static Array in_memory(Array a) {
    for (size_t i = 0; i < a.valid.size(); ++i)
      if (a.valid[i] == 0) a.data[i] = 0;
    a.valid.clear();
    return a;
  }

  // Steps that walk an array while `c` walks a shape that it broadcasts to.
  static Sizes broadcast_strides(const Array& a, size_t rank) {
    Sizes strides = strides_of(a.sizes);
    for (size_t i = 0; i < strides.size(); ++i)
      if (a.sizes[i] == 1) strides[i] = 0;
    strides.insert(strides.begin(), rank - strides.size(), 0);
    return strides;
  }

  Array elementwise(const UOp& u) {
    Array out = blank(u);
    const size_t count = u.src().size();
    std::vector<const Array*> in;
    std::vector<Sizes> strides;
    bool masked = false;
    for (const UOp& s : u.src()) {
      const Array& a = of(s);
      in.push_back(&a);
      masked |= !a.valid.empty();
      strides.push_back(broadcast_strides(a, out.sizes.size()));
    }
    if (masked) out.valid.resize(out.data.size());
    const DType dtype = in[u.is(Op::Where) ? 1 : 0]->dtype;
    const ScalarOp compute(u.op(), u.dtype(), dtype, u.arg());
    Coordinates c(out.sizes);
    Bits operands[3] = {};
    for (size_t i = 0; i < out.data.size(); ++i, c.next()) {
      bool valid = true;
      bool element_valid[3] = {true, true, true};
      for (size_t k = 0; k < count; ++k) {
        const auto at = static_cast<size_t>(offset_of(c.at(), strides[k]));
        operands[k] = in[k]->data[at];
        element_valid[k] = in[k]->is_valid(at);
        valid = valid && element_valid[k];
      }
      if (u.is(Op::Where))  // only the chosen side counts
        valid = element_valid[0] && element_valid[(operands[0] & 1) != 0 ? 1 : 2];
      out.data[i] = compute(operands[0], operands[1], operands[2]);
      if (masked) out.valid[i] = valid;
    }
    return out;
  }

  // Replicated: the first copy, once all are known to be equal (amendment C8).
  Array one_of_equal_copies(const UOp& u) {
    Array out = blank(u);
    const Array& in = of(u.src(0));
    const auto axis = static_cast<size_t>(u.as<int64_t>());
    const Sizes strides = strides_of(in.sizes);
    if (!in.valid.empty()) out.valid.resize(out.data.size());
    Coordinates c(out.sizes);
    for (size_t i = 0; i < out.data.size(); ++i, c.next()) {
      Sizes at = c.at();
      at.insert(at.begin() + static_cast<std::ptrdiff_t>(axis), 0);
      const auto first = static_cast<size_t>(offset_of(at, strides));
      for (at[axis] = 1; at[axis] < in.sizes[axis]; ++at[axis])
        KOINE_REQUIRE(in.data[static_cast<size_t>(offset_of(at, strides))] == in.data[first], Value,
                      "Replicated: copy {} differs from copy 0 at element {}", at[axis], i);
      out.data[i] = in.data[first];
      if (!out.valid.empty()) out.valid[i] = in.is_valid(first);
    }
    return out;
  }

  // Every movement op but Stack, Bitcast and Replicated: where does output coordinate c read from?
  Array move(const UOp& u) {
    Array out = blank(u);
    const Array& in = of(u.src(0));
    const Sizes strides = strides_of(in.sizes);
    const size_t rank = in.sizes.size();
    if (u.is(Op::Reshape)) {
      out.data = in.data;
      out.valid = in.valid;
      return out;
    }
    const bool pads = u.is(Op::Pad);
    const Bits* fill = pads && u.src().size() == 4 ? &of(u.src(3)).data[0] : nullptr;
    if (!in.valid.empty() || (pads && fill == nullptr)) out.valid.assign(out.data.size(), 1);
    const Sizes offsets = pads || u.is(Op::Shrink) ? resolve(u.src(1)) : Sizes();
    std::vector<const Array*> indices;
    if (u.is(Op::Index))
      for (size_t i = 1; i < u.src().size(); ++i) indices.push_back(&of(u.src(i)));
    Coordinates c(out.sizes);
    Sizes at(rank);
    for (size_t i = 0; i < out.data.size(); ++i, c.next()) {
      bool inside = true;
      if (u.is(Op::Index)) {
        size_t position = 0;
        for (size_t k = 0; k < rank; ++k) {
          if (k >= indices.size()) {
            at[k] = c.at()[position++];
            continue;
          }
          const Array& index = *indices[k];
          const Sizes s = strides_of(index.sizes);
          int64_t offset = 0;
          for (size_t d = 0; d < s.size(); ++d) offset += c.at()[position++] * s[d];
          at[k] = bits_to_int(index.dtype, index.data[static_cast<size_t>(offset)]);
          inside = inside && at[k] >= 0 && at[k] < in.sizes[k];
        }
      } else {
        for (size_t k = 0; k < rank; ++k) {
          const int64_t x = c.at()[k];
          switch (u.op()) {
            case Op::Permute:
              at[static_cast<size_t>(u.as<Ints>()[k])] = x;
              break;
            case Op::Flip:
              at[k] = u.as<Ints>()[k] != 0 ? in.sizes[k] - 1 - x : x;
              break;
            case Op::Expand:
              at[k] = in.sizes[k] == 1 ? 0 : x;
              break;
            case Op::Shrink:
              at[k] = x + offsets[k];
              break;
            case Op::Pad:
              at[k] = x - offsets[k];
              inside = inside && at[k] >= 0 && at[k] < in.sizes[k];
              break;
            default:
              internal_error("{} is not a movement op", op_name(u.op()));
          }
        }
      }
      if (!inside) {  // a Pad's surroundings, or an index out of range, which reads 0 (C28)
        out.data[i] = fill != nullptr ? *fill : 0;
        if (pads && fill == nullptr) out.valid[i] = 0;
        continue;
      }
      const auto from = static_cast<size_t>(offset_of(at, strides));
      out.data[i] = in.data[from];
      if (!out.valid.empty()) out.valid[i] = in.is_valid(from);
    }
    return out;
  }

  Array stack_values(const UOp& u) {
    Array out = blank(u);
    bool masked = false;
    for (const UOp& s : u.src()) masked = masked || !of(s).valid.empty();
    out.data.clear();
    for (const UOp& s : u.src()) {
      const Array& a = of(s);
      out.data.insert(out.data.end(), a.data.begin(), a.data.end());
      for (size_t i = 0; masked && i < a.data.size(); ++i) out.valid.push_back(a.is_valid(i));
    }
    return out;
  }

  Array bitcast_value(const UOp& u) {
    Array out = blank(u);
    const Array& in = of(u.src(0));
    const auto from = static_cast<size_t>(item_size(in.dtype)),
               to = static_cast<size_t>(item_size(u.dtype()));
    std::vector<std::byte> bytes(in.data.size() * from + 8);
    for (size_t i = 0; i < in.data.size(); ++i)
      write_element(bytes.data(), in.dtype, static_cast<int64_t>(i), in.data[i]);
    for (size_t i = 0; i < out.data.size(); ++i) {
      out.data[i] = read_element(bytes.data(), u.dtype(), static_cast<int64_t>(i));
      if (!in.valid.empty()) {
        if (out.valid.empty()) out.valid.assign(out.data.size(), 1);
        for (size_t k = i * to / from; k * from < (i + 1) * to; ++k)  // all that it is made of
          out.valid[i] = out.valid[i] != 0 && in.is_valid(k);
      }
    }
    return out;
  }

  // Ascending left fold from the identity; invalid elements are skipped. One element is its own
  // sum.
  Array reduce_axes(const UOp& u) {
    const ReduceArg& arg = u.as<ReduceArg>();
    Array out = blank(u);
    const Array& in = of(u.src(0));
    const Bits identity = identity_of(arg.op, u.dtype()).as<ConstArg>().bits;
    std::fill(out.data.begin(), out.data.end(), identity);
    Sizes strides = strides_of(out.sizes);
    for (const int64_t axis : arg.axes) strides[static_cast<size_t>(axis)] = 0;
    const bool single = in.data.size() == out.data.size();
    const ScalarOp fold(arg.op, u.dtype(), u.dtype());
    Coordinates c(in.sizes);
    for (size_t i = 0; i < in.data.size(); ++i, c.next()) {
      if (!in.is_valid(i)) continue;
      Bits& acc = out.data[static_cast<size_t>(offset_of(c.at(), strides))];
      acc = single ? in.data[i] : fold(acc, in.data[i]);
    }
    return out;
  }

  // The buffer with the stores among the dependencies applied. What they store was computed from
  // the states that it names, so nothing is read after it was written. A store into another buffer
  // changes what reads that one, not this value.
  Array after_stores(const UOp& u) {
    Array out = of(u.src(0));
    const UOp base = versions_->of(u.src(0));
    for (const UOp& dependency : u.src().subspan(1))
      for (const UOp& store : stores_in(dependency))
        if (versions_->of(store.src(0)) == base) apply_store(out, base, store);
    return out;
  }

  void apply_store(Array& buffer, const UOp& base, const UOp& effect) {
    const Array& value = of(effect.src(1));
    const Array* gate = effect.src().size() == 3 ? &of(effect.src(2)) : nullptr;
    const Sizes gate_strides = gate ? broadcast_strides(*gate, value.sizes.size()) : Sizes();
    const Array places = places_of(effect.src(0), base, buffer);
    Coordinates c(value.sizes);
    for (size_t i = 0; i < value.data.size(); ++i, c.next()) {
      const bool exists = places.is_valid(i) && places.data[i] != 0;
      if (!exists || !value.is_valid(i)) continue;  // an invalid element is not stored (C27)
      if (gate != nullptr) {
        const auto at = static_cast<size_t>(offset_of(c.at(), gate_strides));
        if (!gate->is_valid(at) || (gate->data[at] & 1) == 0) continue;
      }
      buffer.data[static_cast<size_t>(places.data[i] - 1)] = value.data[i];
    }
  }

  // Where each element of a store's target lies in its buffer: the view, read from an array of the
  // numbers 1, 2, 3, ...; 0 or invalid where there is no such place.
  Array places_of(const UOp& target, const UOp& base, const Array& buffer) {
    std::vector<UOp> chain;
    UOp view = target;
    for (; !(view == base); view = view.src(0))
      if (!view.is(Op::After) && !view.is(Op::Detach)) chain.push_back(view);
    Array numbers{DType::Int64, buffer.sizes, {}, {}};
    for (int64_t i = 1; i <= buffer.numel(); ++i) numbers.data.push_back(static_cast<Bits>(i));
    UOp places = param(0, base.shape(), DType::Int64);
    Bindings inner = bound_variables();
    inner.insert_or_assign(places, std::move(numbers));
    for (; !chain.empty(); chain.pop_back()) {
      const UOp& step = chain.back();
      std::vector<UOp> src(step.src().begin(), step.src().end());
      src[0] = places;
      // What the view is indexed by was computed from the states that it names.
      for (size_t k = 1; step.is(Op::Index) && k < src.size(); ++k) {
        const UOp known = param(static_cast<int64_t>(inner.size()), src[k].shape(), src[k].dtype());
        inner.insert_or_assign(known, of(src[k]));
        src[k] = known;
      }
      if (step.is(Op::Pad) && src.size() == 4) src.pop_back();  // a fill has no place
      places = with_sources(step, src);
    }
    return interpret(places, inner);
  }

  Array get_tuple_value(const UOp& u) {
    const UOp& source = u.src(0);
    const auto index = static_cast<size_t>(u.as<int64_t>());
    if (source.is(Op::Tuple)) return of(source.src(index));
    const UOp& body = source.src(0);
    const auto arguments = source.src().subspan(1);
    Bindings inner = bound_variables();
    for (const auto& [variable, size] : variables_from(body, arguments))
      inner.insert_or_assign(variable, of(size));
    for (const auto& [slot, p] : params_of(body))
      inner.insert_or_assign(p, of(arguments[static_cast<size_t>(slot)]));
    return interpret(body.src(index), inner);
  }

  // What shapes and bounds are made of.
  Bindings bound_variables() const {
    Bindings out;
    for (const auto& [p, array] : bindings_)
      if (is_variable(p)) out.emplace(p, array);
    return out;
  }

  Array call_result(const UOp& u) {
    const UOp& call = u.src(0);
    auto it = calls_.find(call.node());
    if (it == calls_.end()) {
      std::vector<BoundedArray> arguments;
      for (const UOp& a : sources_outside_body(call)) arguments.push_back({of(a), {}});
      it = calls_.emplace(call.node(), interpret_call(call, arguments, bindings_, {})).first;
    }
    return it->second[static_cast<size_t>(u.as<int64_t>())].value;
  }

  const Bindings& bindings_;
  std::unordered_map<const Node*, std::vector<BoundedArray>> calls_;  // results
  std::optional<Versions> versions_;               // of the first root, where anything stores
  std::unordered_map<const Node*, Array> values_;  // references into it stay valid
  std::vector<UOp> keep_;
};

}  // namespace

Array interpret(const UOp& root, const Bindings& bindings) {
  TensorInterpreter interpreter(bindings);
  return interpreter.value(root);
}

int64_t interpret_index(const UOp& index, const Bindings& bindings) {
  if (index.is(Op::Const)) return const_int(index);
  return bits_to_int(DType::Index, interpret(index, bindings).data.at(0));
}

}  // namespace koine
