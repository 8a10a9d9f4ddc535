#include "to_cpp.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <unordered_map>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine::test {
namespace {

std::string dtype_cpp(DType dtype) {
  static const std::map<DType, std::string> names = {{DType::Void, "Void"},
                                                     {DType::Bool, "Bool"},
                                                     {DType::Int8, "Int8"},
                                                     {DType::Int16, "Int16"},
                                                     {DType::Int32, "Int32"},
                                                     {DType::Int64, "Int64"},
                                                     {DType::UInt8, "UInt8"},
                                                     {DType::UInt16, "UInt16"},
                                                     {DType::UInt32, "UInt32"},
                                                     {DType::UInt64, "UInt64"},
                                                     {DType::Float16, "Float16"},
                                                     {DType::BFloat16, "BFloat16"},
                                                     {DType::Float32, "Float32"},
                                                     {DType::Float64, "Float64"},
                                                     {DType::Index, "Index"},
                                                     {DType::Float8E4M3, "Float8E4M3"},
                                                     {DType::Float8E5M2, "Float8E5M2"}};
  return "DType::" + names.at(dtype);
}

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
  return fmt::format("std::string(\"{}\", {})", out, text.size());
}

std::string constant_cpp(const UOp& u) {
  if (is_invalid(u)) return fmt::format("invalid({})", dtype_cpp(u.dtype()));
  if (u.dtype() == DType::Index) return fmt::format("index_const({})", const_int(u));
  if (is_float(u.dtype()))
    return fmt::format("constant_bits({}, {:#x})", dtype_cpp(u.dtype()), u.as<ConstArg>().bits);
  return fmt::format("constant_int({}, INT64_C({}))", dtype_cpp(u.dtype()), const_int(u));
}

std::string arg_cpp(const Arg& arg) {
  if (const auto* i = std::get_if<int64_t>(&arg)) return fmt::format("int64_t{{{}}}", *i);
  if (const auto* d = std::get_if<DType>(&arg)) return dtype_cpp(*d);
  if (const auto* list = std::get_if<Ints>(&arg))
    return fmt::format("Ints{{{}}}", fmt::join(*list, ", "));
  if (const auto* r = std::get_if<ReduceArg>(&arg))
    return fmt::format("ReduceArg{{Op::{}, {{{}}}}}", op_name(r->op), fmt::join(r->axes, ", "));
  if (const auto* l = std::get_if<LoadArg>(&arg))
    return fmt::format("LoadArg{{{}, AddrSpace::{}, {{{}}}, {}}}",
                       l->device ? "Device(\"" + l->device.name() + "\")" : "{}",
                       l->space == AddrSpace::Reg     ? "Reg"
                       : l->space == AddrSpace::Local ? "Local"
                                                      : "Global",
                       fmt::join(l->axes, ", "), quoted(l->reason));
  if (const auto* s = std::get_if<std::string>(&arg)) return quoted(*s);
  if (const auto* m = std::get_if<MarkArg>(&arg))
    return fmt::format("MarkArg{{static_cast<Mark>({}), {}}}", static_cast<int>(m->mark),
                       m->number);
  return "{}";
}

class Printer {
 public:
  std::string run(const UOp& root) {
    std::string out;
    for (const UOp& u : toposort_with_bodies(root)) {
      if (inlined(u)) continue;
      const std::string name = u == root ? "root" : fmt::format("n{}", names_.size());
      const std::string text = expression(u);
      names_.emplace(u, name);
      out += fmt::format("const UOp {} = {};\n", name, text);
    }
    if (inlined(root)) out += fmt::format("const UOp root = {};\n", operand(root));
    return out;
  }

 private:
  static bool inlined(const UOp& u) { return u.is(Op::Const) || u.is(Op::Buffer) || is_sizes(u); }
  static bool is_sizes(const UOp& u) {
    if (!u.is(Op::Stack) || u.dtype() != DType::Index) return false;
    for (const UOp& s : u.src())
      if (!s.is(Op::Const)) return false;
    return true;
  }

  std::string operand(const UOp& u) const {
    if (u.is(Op::Const)) return constant_cpp(u);
    if (u.is(Op::Buffer)) return fmt::format("b{}", u.as<BufferArg>().slot);
    if (!is_sizes(u)) return names_.at(u);
    std::vector<int64_t> sizes;
    for (const UOp& s : u.src()) sizes.push_back(const_int(s));
    return fmt::format("shape_of({{{}}})", fmt::join(sizes, ", "));
  }

  std::string expression(const UOp& u) const {
    std::vector<std::string> src;
    for (const UOp& s : u.src()) src.push_back(operand(s));
    if (u.is(Op::Param)) {
      const BufferArg& b = u.as<BufferArg>();
      if (!b.name.empty() && u.src().size() == 3)
        return fmt::format("variable(\"{}\", {}, {})", b.name, const_int(u.src(1)),
                           const_int(u.src(2)));
      return fmt::format("param({}, {}, {})", b.slot, src.at(0), dtype_cpp(b.dtype));
    }
    const bool plain = std::holds_alternative<std::monostate>(u.arg());
    std::string tail = plain && u.tag() == 0 ? "" : ", " + arg_cpp(u.arg());
    if (u.tag() != 0) tail += fmt::format(", {}", u.tag());
    return fmt::format("UOp::make(Op::{}, {{{}}}{})", op_name(u.op()), fmt::join(src, ", "), tail);
  }

  std::unordered_map<UOp, std::string> names_;
};

}  // namespace

std::string to_cpp(const UOp& root) { return Printer().run(root); }

}  // namespace koine::test
