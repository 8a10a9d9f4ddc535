#include "koine/ir/arg.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"

namespace koine {

std::string_view addrspace_name(AddrSpace space) {
  constexpr std::array<std::string_view, 3> names = {"GLOBAL", "LOCAL", "REG"};
  return names[static_cast<size_t>(space)];
}

std::string_view axis_type_name(AxisType type) {
  constexpr std::array<std::string_view, axis_type_count> names = {
      "GLOBAL", "LOCAL",        "WARP",   "THREAD", "LOOP",
      "REDUCE", "GROUP_REDUCE", "UPCAST", "UNROLL", "LANE"};
  return names[static_cast<size_t>(type)];
}

std::string_view param_kind_name(ParamKind kind) {
  constexpr std::array<std::string_view, param_kind_count> names = {"argument", "traced",
                                                                    "view_base"};
  return names[static_cast<size_t>(kind)];
}

namespace {
struct MarkInfo {
  std::string_view name;
  Op op;
  bool numbered;
};
constexpr std::array<MarkInfo, mark_count> marks = {{{"copies", Op::Contiguous, false},
                                                     {"private", Op::Contiguous, true},
                                                     {"unless_invalid", Op::Contiguous, false},
                                                     {"leaf", Op::Detach, true},
                                                     {"in_order", Op::End, false}}};
const MarkInfo& info(Mark mark) { return marks[static_cast<size_t>(mark)]; }
}  // namespace

std::string_view mark_name(Mark mark) { return info(mark).name; }
Op op_of(Mark mark) { return info(mark).op; }
bool is_numbered(Mark mark) { return info(mark).numbered; }

bool is_reduction(AxisType t) {
  return t == AxisType::Reduce || t == AxisType::GroupReduce || t == AxisType::Unroll;
}
char axis_letter(AxisType type) { return "glwtLRGurv"[static_cast<size_t>(type)]; }

struct Device::Entry {
  std::string name;
  std::vector<Device> parts;  // empty: one device
};

Device::Device(std::string_view name) {
  Entry entry;
  for (size_t begin = 0, comma = 0; comma != name.npos; begin = comma + 1) {
    comma = name.find(',', begin);
    std::string_view part = name.substr(begin, comma - begin);
    if (part.ends_with(":0")) part.remove_suffix(2);
    if (begin > 0) entry.name += ',';
    entry.name += part;
    if (begin == 0 && comma == name.npos) continue;
    entry.parts.push_back(Device(part));
    KOINE_REQUIRE(std::count(entry.parts.begin(), entry.parts.end(), entry.parts.back()) == 1,
                  Device, "the devices '{}' name {} twice", name, part);
  }
  static std::mutex mutex;
  // Node-based, so addresses are stable; never destroyed, since static handles may outlive it.
  static auto* entries = new std::unordered_map<std::string, Entry>;
  const std::lock_guard lock(mutex);
  entry_ = &entries->try_emplace(entry.name, entry).first->second;
}

const std::string& Device::name() const {
  static const auto& none = *new const std::string;
  return entry_ == nullptr ? none : entry_->name;
}
size_t Device::count() const {
  return entry_ == nullptr || entry_->parts.empty() ? 1 : entry_->parts.size();
}
Device Device::part(size_t i) const {
  return entry_ == nullptr || entry_->parts.empty() ? *this : entry_->parts.at(i);
}

namespace {

struct Hasher {
  uint64_t operator()(std::monostate) const { return 0; }
  uint64_t operator()(int64_t v) const { return static_cast<uint64_t>(v); }
  uint64_t operator()(DType v) const { return static_cast<uint64_t>(v); }
  uint64_t operator()(const ConstArg& v) const {
    return hash_mix(v.bits, static_cast<uint64_t>(v.dtype) * 2 + (v.invalid ? 1 : 0));
  }
  uint64_t operator()(const BufferArg& v) const {
    uint64_t h = hash_mix(static_cast<uint64_t>(v.slot),
                          static_cast<uint64_t>(v.dtype) * 4 + static_cast<uint64_t>(v.space));
    if (v.device) h = hash_mix(h, hash_text(v.device.name()));
    if (v.offset >= 0) h = hash_mix(h, static_cast<uint64_t>(v.offset));
    if (!(v.axes == AxisSet(0))) h = hash_mix(h, v.axes.bits());
    if (v.kind != ParamKind::Argument) h = hash_mix(h, static_cast<uint64_t>(v.kind));
    return v.name.empty() ? h : hash_mix(h, hash_text(v.name));
  }
  uint64_t operator()(const RangeArg& v) const {
    return hash_mix(static_cast<uint64_t>(v.id), static_cast<uint64_t>(v.type));
  }
  uint64_t operator()(const Ints& v) const {
    uint64_t h = v.size();
    for (const int64_t i : v) h = hash_mix(h, static_cast<uint64_t>(i));
    return h;
  }
  uint64_t operator()(const ReduceArg& v) const {
    uint64_t h = hash_mix(static_cast<uint64_t>(v.op), (*this)(v.axes));
    if (v.goes_on) h = hash_mix(h, 1);
    if (v.staged) h = hash_mix(h, 2);
    return v.core.empty() ? h : hash_mix(h, hash_text(v.core));
  }
  uint64_t operator()(const WmmaArg& v) const {
    const uint64_t factors = hash_mix((*this)(v.a), (*this)(v.b));
    return hash_mix(hash_mix(hash_text(v.core), factors), (*this)(v.accumulator));
  }
  uint64_t operator()(const LoadArg& v) const {
    const uint64_t where = hash_mix(static_cast<uint64_t>(v.space), hash_text(v.device.name()));
    return v.axes.empty() ? where : hash_mix(hash_mix(where, (*this)(v.axes)), hash_text(v.reason));
  }
  uint64_t operator()(const std::string& v) const { return hash_text(v); }
  uint64_t operator()(const CodeArg& v) const {
    return hash_mix(hash_text(v.text), static_cast<uint64_t>(v.dtype));
  }
  uint64_t operator()(const MarkArg& v) const {
    return hash_mix(static_cast<uint64_t>(v.mark), static_cast<uint64_t>(v.number));
  }
};

}  // namespace

uint64_t arg_hash(const Arg& arg) {
  if (arg.index() == 0) return hash_mix(0, 0);
  return hash_mix(arg.index(), std::visit(Hasher{}, arg));
}

}  // namespace koine
