// Instruction selection: everything that a kernel may hold is compiled for every feature level, in
// both modes, and what this host can run gives what the interpreter's scalar says.
#include <bit>
#include <cmath>
#include <set>

#include "backends.hpp"
#include "check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/cpu/jit.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

constexpr int64_t rounds = 3;  // iterations of the loop around the lanes

struct Machine {
  std::string level;
  bool strict;
};
std::vector<Machine> machines() {
  std::vector<Machine> out;
  std::vector<std::string> levels{""};
  for (const std::string_view level : cpu_levels()) levels.emplace_back(level);
  for (const std::string& level : levels)
    for (const bool strict : {true, false}) out.push_back({level, strict});
  return out;
}

// One op with its arg on operands of one dtype (the condition of a Where apart).
struct Case {
  Op op;
  DType in;
  Arg arg;
  DType out = DType::Void;
  std::string name() const {
    return fmt::format("{}[{}] of {}", op_name(op), arg_text(arg), dtype_name(in));
  }
};

bool is_transcendental(Op op) {
  return op == Op::Exp2 || op == Op::Log2 || op == Op::Sin || op == Op::Pow || op == Op::Threefry;
}

// Every elementwise op and Bitcast that can be built of this dtype.
std::vector<Case> cases_of(DType in) {
  std::vector<Case> out;
  for (int i = 0; i < op_count; ++i) {
    const Op op = static_cast<Op>(i);
    if (!is_elementwise(op) && op != Op::Bitcast) continue;
    std::vector<Arg> args{{}};
    if (op == Op::Sin) args = {Arg{}, Arg{int64_t{1}}, Arg{int64_t{2}}, Arg{int64_t{3}}};
    if (op == Op::Exp2 || op == Op::Log2) args = {Arg{}, Arg{int64_t{1}}};
    if (op == Op::Cast || op == Op::Bitcast) {
      args.clear();
      for (const DType to : stored_dtypes())
        if (op == Op::Cast || item_size(to) == item_size(in)) args.emplace_back(to);
    }
    for (const Arg& arg : args) {
      const UOp x = constant_int(in, 1);
      std::vector<UOp> src(static_cast<size_t>(op == Op::Bitcast ? 1 : op_info(op).fewest), x);
      if (op == Op::Where) src[0] = constant_bool(true);
      try {
        out.push_back({op, in, arg, UOp::make(op, src, arg).dtype()});
      } catch (const Error&) {
        // Not an op of this dtype.
      }
    }
  }
  return out;
}

// out_k[i] = op_k(x[i], y[i], z[i]) for n lanes at a time; slot 3 is a condition.
UOp kernel_of(const std::vector<Case>& cases, DType in, int64_t lanes) {
  const int64_t size = rounds * lanes;
  const UOp r = range(0, index_const(rounds), AxisType::Loop),
            u = range(1, index_const(lanes), AxisType::Upcast);
  const UOp at = add(mul(r, index_const(lanes)), u);
  auto element = [&](int64_t slot, DType dtype) {
    return index(param(slot, shape_of({size}), dtype), {at});
  };
  std::vector<UOp> stores;
  for (size_t k = 0; k < cases.size(); ++k) {
    const Case& c = cases[k];
    std::vector<UOp> src;
    const bool picks = c.op == Op::Where;
    if (picks) src.push_back(load(element(3, DType::Bool)));
    const int64_t operands = c.op == Op::Bitcast ? 1 : op_info(c.op).fewest - (picks ? 1 : 0);
    for (int64_t i = 0; i < operands; ++i) src.push_back(load(element(i, in)));
    stores.push_back(
        store(element(4 + static_cast<int64_t>(k), c.out), UOp::make(c.op, src, c.arg)));
  }
  return sink(std::vector<UOp>{end(group(stores), std::vector<UOp>{r, u})});
}

// Units between two floats of one format: their bits, ordered.
double distance(DType dtype, Bits a, Bits b) {
  const double x = bits_to_double(dtype, a), y = bits_to_double(dtype, b);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? 0 : 1e30;
  const int width = dtype_info(dtype).bits;
  auto ordered = [&](Bits bits) {
    const Bits sign = Bits{1} << (width - 1);
    const auto magnitude = static_cast<double>(bits & (sign - 1));
    return (bits & sign) != 0 ? -magnitude : magnitude;
  };
  return std::abs(ordered(a) - ordered(b));
}

// A contraction may change the last digits of what is built of products and sums.
double allowed(const Case& c, bool strict) {
  if (strict || !is_float(c.out)) return 0;
  if (is_transcendental(c.op)) return 2;
  return 0;
}

void check_lanes(const std::vector<Case>& cases, DType in, int64_t lanes, const Machine& machine) {
  const Target target = cpu_target(machine.level, machine.strict);
  const UOp ast = kernel_of(cases, in, lanes);
  const std::vector<Opt> none;
  const std::string where = fmt::format("{} lanes of {} on {}", lanes, dtype_name(in), target.name);
  std::shared_ptr<JitCode> code;
  try {
    code = jit_compile(lower_kernel(ast, target, {}, &none).linear, target);
  } catch (const std::exception& e) {
    FAIL() << where << ": " << e.what();
  }
  if (!host_runs(machine.level)) return;
  ran_on("CPU");
  const auto size = static_cast<size_t>(rounds * lanes);
  std::vector<Array> inputs;
  for (uint64_t i = 0; i < 3; ++i) inputs.push_back(array_of(leaf({rounds * lanes}, in, 31 + i)));
  inputs.push_back(array_of(leaf({rounds * lanes}, DType::Bool, 34)));
  std::vector<std::vector<std::byte>> data;
  for (const Array& a : inputs) {
    data.emplace_back(size * 8);
    for (size_t i = 0; i < size; ++i)
      write_element(data.back().data(), a.dtype, static_cast<int64_t>(i), a.data[i]);
  }
  for (size_t k = 0; k < cases.size(); ++k) data.emplace_back(size * 8);
  std::vector<std::byte*> buffers;
  for (auto& d : data) buffers.push_back(d.data());
  code->function()(buffers.data(), nullptr, 0);
  for (size_t k = 0; k < cases.size(); ++k) {
    const Case& c = cases[k];
    for (size_t i = 0; i < size; ++i) {
      std::vector<Bits> operands;
      if (c.op == Op::Where) operands.push_back(inputs[3].data[i]);
      for (size_t a = 0; a < 3; ++a) operands.push_back(inputs[a].data[i]);
      const size_t count = c.op == Op::Bitcast ? 1 : static_cast<size_t>(op_info(c.op).fewest);
      const Bits expected =
          interpret_scalar(c.op, c.out, in, std::span<const Bits>(operands.data(), count), c.arg);
      const Bits got = read_element(data[4 + k].data(), c.out, static_cast<int64_t>(i));
      const bool same = expected == got || (is_float(c.out) && distance(c.out, expected, got) <=
                                                                   allowed(c, machine.strict));
      ASSERT_TRUE(same) << where << ": " << c.name() << " at element " << i << " of operands "
                        << fmt::format("{:#x}", fmt::join(operands, " ")) << " gives "
                        << fmt::format("{:#x} instead of {:#x}", got, expected);
    }
  }
}

}  // namespace

// Row L5: nothing that LLVM cannot select, whatever the op, the dtype, the lanes and the machine.
TEST(select, spec_L5_every_op_dtype_and_lane_count_compiles_and_runs) {
  for (const DType in : stored_dtypes()) {
    std::vector<Case> simple, hard;
    for (const Case& c : cases_of(in)) (is_transcendental(c.op) ? hard : simple).push_back(c);
    using Lanes = std::vector<int64_t>;
    for (const Machine& machine : machines()) {
      // The host's own is like one of the levels. At these each mode has half of the numbers of
      // lanes: what it changes is how floats round, not what LLVM can select.
      const bool host = machine.level.empty();
      const Lanes some = host             ? Lanes{1, 2, 4, 8, 16, 32}
                         : machine.strict ? Lanes{1, 3, 4, 7, 16, 31}
                                          : Lanes{2, 5, 8, 17, 32};
      for (const int64_t lanes : some) check_lanes(simple, in, lanes, machine);
      const Lanes few = host ? Lanes{1, 8} : machine.strict ? Lanes{1, 3, 8, 32} : Lanes{2, 4, 16};
      for (const int64_t lanes : few)
        if (!hard.empty()) check_lanes(hard, in, lanes, machine);
    }
  }
}

// Loads and Stores behind a gate of each lane, and a Load that all lanes share.
TEST(select, spec_L5_gated_memory_of_every_dtype_and_lane_count) {
  for (const DType d : stored_dtypes())
    for (const Machine& machine : machines())
      for (const int64_t lanes : {1, 2, 3, 4, 8, 16, 31, 32}) {
        const int64_t size = rounds * lanes;
        const UOp r = range(0, index_const(rounds), AxisType::Loop),
                  u = range(1, index_const(lanes), AxisType::Upcast);
        const UOp at = add(mul(r, index_const(lanes)), u);
        auto place = [&](int64_t slot, DType dtype, const UOp& where_) {
          return index(param(slot, shape_of({size}), dtype), {where_});
        };
        const UOp gate = load(place(3, DType::Bool, at)), x = load(place(2, d, at));
        const UOp shared = load(place(2, d, r)),
                  behind = load(place(2, d, at), constant_int(d, 1), gate);
        const std::vector<UOp> stores{store(place(0, d, at), where(gate, shared, behind)),
                                      store(place(1, d, at), x, gate)};
        const UOp ast = sink(std::vector<UOp>{end(group(stores), std::vector<UOp>{r, u})});
        const Target target = cpu_target(machine.level, machine.strict);
        SCOPED_TRACE(fmt::format("{} lanes of {} on {}", lanes, dtype_name(d), target.name));
        const std::vector<Opt> none;
        const auto code = jit_compile(lower_kernel(ast, target, {}, &none).linear, target);
        if (!host_runs(machine.level)) continue;
        ran_on("CPU");
        const Array in = array_of(leaf({size}, d, 41)), open = array_of(leaf({size}, DType::Bool));
        std::vector<std::vector<std::byte>> data(2, std::vector<std::byte>(in.data.size() * 8));
        data.push_back(bytes_of(in));
        data.push_back(bytes_of(open));
        std::vector<std::byte*> buffers;
        for (auto& bytes : data) buffers.push_back(bytes.data());
        code->function()(buffers.data(), nullptr, 0);
        const Bits one = constant_int(d, 1).as<ConstArg>().bits;
        for (int64_t i = 0; i < size; ++i) {
          const auto k = static_cast<size_t>(i);
          const Bits taken = open.data[k] != 0 ? in.data[static_cast<size_t>(i / lanes)] : one;
          ASSERT_EQ(read_element(data[0].data(), d, i), taken) << "loaded " << i;
          ASSERT_EQ(read_element(data[1].data(), d, i), open.data[k] != 0 ? in.data[k] : 0)
              << "stored " << i;
        }
      }
}

// A page that nobody may read begins in the middle of the lanes: those whose gate is closed.
TEST(select, spec_B15_spec_B16_closed_lanes_touch_no_memory) {
  for (const DType d : stored_dtypes())
    for (const Machine& machine : machines()) {
      if (!host_runs(machine.level)) continue;
      const Target target = cpu_target(machine.level, machine.strict);
      for (const int64_t lanes : {1, 4, 8, 16, 32})
        for (const int64_t open : {lanes / 2, int64_t{0}}) {
          SCOPED_TRACE(
              fmt::format("{} of {} lanes of {} on {}", open, lanes, dtype_name(d), target.name));
          const UOp u = range(0, index_const(lanes), AxisType::Upcast);
          auto place = [&](int64_t slot, DType dtype, const UOp& at) {
            return index(param(slot, shape_of({lanes}), dtype), {at});
          };
          // Gates of each lane, from its number or from memory.
          for (const bool from_memory : {false, true}) {
            const UOp gate =
                from_memory ? load(place(2, DType::Bool, u)) : lt(u, index_const(open));
            const UOp seen = load(place(1, d, u), constant_int(d, 1), gate);
            const UOp ast = sink(std::vector<UOp>{
                end(group(std::vector<UOp>{store(place(0, d, u), seen),
                                           store(place(1, d, u), constant_int(d, 1), gate)}),
                    std::vector<UOp>{u})});
            const std::vector<Opt> none;
            const auto code = jit_compile(lower_kernel(ast, target, {}, &none).linear, target);
            std::vector<std::byte> out(static_cast<size_t>(lanes) * 8);
            std::vector<std::byte> gates(static_cast<size_t>(lanes));
            for (int64_t i = 0; i < open; ++i) gates[static_cast<size_t>(i)] = std::byte{1};
            const GuardedMemory memory(open * item_size(d));
            std::byte* buffers[] = {out.data(), memory.data(), gates.data()};
            code->function()(buffers, nullptr, 0);
            const Bits one = constant_int(d, 1).as<ConstArg>().bits;
            for (int64_t i = 0; i < lanes; ++i)
              ASSERT_EQ(read_element(out.data(), d, i), i < open ? 0 : one) << i;
            for (int64_t i = 0; i < open; ++i)
              ASSERT_EQ(read_element(memory.data(), d, i), one) << i;
          }
        }
    }
}

// LLVM ends the process where it cannot go on; here it is an exception, and the next kernel
// compiles.
TEST(select, what_llvm_refuses_is_an_error) {
  Target impossible = cpu_target("x86-64-v2", false);
  impossible.features = "-64bit";
  const std::vector<Case> cases = cases_of(DType::Float32);
  const std::vector<Opt> none;
  const UOp linear =
      lower_kernel(kernel_of(cases, DType::Float32, 4), impossible, {}, &none).linear;
  EXPECT_THROW((void)jit_compile(linear, impossible), InternalError);
  check_lanes(cases_of(DType::Int32), DType::Int32, 4, {"x86-64-v2", true});
}

// In both modes, from Tensors: integers and bool wrap, or and and.
TEST(select, spec_D10_mulacc_of_whole_numbers) {
  for (const bool strict : {false, true}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    for (const DType d : stored_dtypes()) {
      if (is_float(d)) continue;
      const UOp a = leaf({37}, d, 1), b = leaf({37}, d, 2), c = leaf({37}, d, 3);
      const Array got = run_on(mulacc(a, b, c), "CPU");
      const Array x = array_of(a), y = array_of(b), z = array_of(c);
      for (size_t i = 0; i < 37; ++i) {
        const uint64_t product = x.data[i] * y.data[i];
        const Bits expected = d == DType::Bool
                                  ? (x.data[i] & y.data[i]) | z.data[i]
                                  : int_to_bits(d, static_cast<int64_t>(product + z.data[i]));
        ASSERT_EQ(got.data[i], expected) << dtype_name(d) << " at " << i;
      }
    }
  }
}

// Programs are kept by the name of their target: no two of them share one.
TEST(select, targets_have_names_of_their_own) {
  std::set<std::string> names;
  for (const std::string_view level : cpu_levels())
    for (const bool strict : {true, false}) {
      const Target t = cpu_target(level, strict);
      EXPECT_EQ(t.cpu, level);
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
    }
  EXPECT_FALSE(cpu_target("", false).cpu.empty());
  EXPECT_NE(cpu_target("", false).name, cpu_target("", true).name);
}

// An illegal op of a program for the target is named before LLVM sees it.
TEST(select, spec_L5_an_op_that_the_target_lacks_is_refused) {
  const Target rich = cpu_target("x86-64-v4", false), poor = cpu_target("x86-64-v2", true);
  const std::vector<Case> cases{{Op::Mulacc, DType::Float32, {}, DType::Float32}};
  const std::vector<Opt> none;
  const UOp linear = lower_kernel(kernel_of(cases, DType::Float32, 4), rich, {}, &none).linear;
  int fused = 0;
  for (const UOp& u : linear.src()) fused += u.is(Op::Mulacc) ? 1 : 0;
  ASSERT_EQ(fused, 1);
  EXPECT_THROW((void)jit_compile(linear, poor), InternalError);
  // A stage that leaves one behind is named, in every build and at the default level.
  const StageChange illegal = [](std::string_view stage, const UOp& graph) {
    if (stage != "select") return graph;
    return transform_graph(graph, [](const UOp&, const UOp& u) {
      const bool product = u.is(Op::Mul) && u.dtype() == DType::Float32;
      return product ? unary(Op::Exp2, UOp(u.src(0))) : u;
    });
  };
  const std::vector<Case> products{{Op::Mul, DType::Float32, {}, DType::Float32}};
  try {
    (void)lower_kernel(kernel_of(products, DType::Float32, 4), poor, {}, &none, illegal);
    ADD_FAILURE() << "nobody saw it";
  } catch (const VerifyError& e) {
    EXPECT_NE(std::string(e.what()).find("after select: Exp2"), std::string::npos) << e.what();
  }
}

// --- masks: what LLVM 19 gets wrong below AVX-512 unless the renderer avoids it
// -------------------

// Runs a kernel over float buffers on every machine and in the interpreter; all must agree.
void expect_agreement(const UOp& ast, const std::vector<std::vector<float>>& buffers) {
  const std::vector<Opt> none;
  auto run = [&](auto&& execute) {
    std::vector<std::vector<float>> data = buffers;
    std::vector<std::byte*> pointers;
    for (auto& d : data) pointers.push_back(reinterpret_cast<std::byte*>(d.data()));
    execute(pointers);
    std::vector<uint32_t> bits;
    for (const float v : data[0])
      bits.push_back(std::isnan(v) ? 0x7fc00000 : std::bit_cast<uint32_t>(v));
    return bits;
  };
  const UOp plain = lower_kernel(ast, generic_target(true), {}, &none).linear;
  const auto expected = run([&](const std::vector<std::byte*>& pointers) {
    KernelArguments arguments;
    arguments.buffers = pointers;
    interpret_linear(plain, arguments);
  });
  for (const Machine& machine : machines()) {
    if (!host_runs(machine.level)) continue;
    const Target target = cpu_target(machine.level, machine.strict);
    const UOp linear = lower_kernel(ast, target, {}, &none).linear;
    const auto code = jit_compile(linear, target);
    EXPECT_EQ(run([&](const std::vector<std::byte*>& pointers) {
                code->function()(pointers.data(), nullptr, 0);
              }),
              expected)
        << target.name << "\n"
        << to_text(linear);
  }
}

// A condition that all lanes share and one on the lane's number, for accesses, in every width.
TEST(select, masks_of_uniform_and_constant_conditions) {
  for (const int64_t lanes : {4, 8, 16, 32})
    for (const int64_t open : {int64_t{1}, int64_t{3}, lanes / 2, lanes - 1}) {
      const int64_t size = 4 * lanes;
      const UOp r = range(0, index_const(4), AxisType::Loop),
                u = range(1, index_const(lanes), AxisType::Upcast);
      const UOp at = add(mul(r, index_const(lanes)), u);
      auto buffer = [&](int64_t slot) { return param(slot, shape_of({size}), DType::Float32); };
      const UOp uniform = lt(load(index(buffer(2), {r})), constant(DType::Float32, 0));
      const UOp gate = bit_and(uniform, lt(u, index_const(open)));
      const UOp value = load(index(buffer(1), {at}), constant(DType::Float32, -7), gate);
      auto close = [&](const UOp& effect) {
        return sink(std::vector<UOp>{end(effect, std::vector<UOp>{r, u})});
      };
      std::vector<float> out(static_cast<size_t>(size), -1), in, flags;
      for (int64_t i = 0; i < size; ++i) {
        in.push_back(static_cast<float>(i + 1));
        flags.push_back(i % 2 == 0 ? -1.0f : 1.0f);
      }
      expect_agreement(close(store(index(buffer(0), {at}), value)), {out, in, flags});
      expect_agreement(close(store(index(buffer(0), {at}), load(index(buffer(1), {at})), gate)),
                       {out, in, flags});
    }
}

// A quotient of 0 in a choice by the lane's number: 0/0 is NaN, whatever the choice.
TEST(select, a_constant_choice_keeps_quotients_of_zero) {
  for (const int64_t lanes : {2, 4, 8, 16})
    for (const int64_t open : {int64_t{1}, lanes / 2, lanes - 1}) {
      const UOp u = range(0, index_const(lanes), AxisType::Upcast);
      auto buffer = [&](int64_t slot) { return param(slot, shape_of({lanes}), DType::Float32); };
      const UOp x = load(index(buffer(1), {u})), zero = constant(DType::Float32, 0);
      const UOp chosen = lt(u, index_const(open));
      // 0 in the chosen lanes, and in the others.
      const UOp here = cast(logical_not(chosen), DType::Float32),
                there = cast(chosen, DType::Float32);
      for (const UOp& quotient : {fdiv(zero, x), mul(zero, x), fdiv(here, x), fdiv(there, x),
                                  mul(here, x), mul(there, x)})
        for (const bool first : {true, false}) {
          const UOp value = first ? where(chosen, quotient, x) : where(chosen, x, quotient);
          const UOp ast =
              sink(std::vector<UOp>{end(store(index(buffer(0), {u}), value), std::vector<UOp>{u})});
          std::vector<float> in;
          for (int64_t i = 0; i < lanes; ++i)
            in.push_back(i % 3 == 0 ? 0.0f : i % 3 == 1 ? std::nanf("") : 2.0f);
          expect_agreement(ast, {std::vector<float>(static_cast<size_t>(lanes), -1), in});
        }
    }
}

// The smallest integer over a divisor whose least value is exactly -1 wraps instead of trapping.
TEST(select, spec_D7_division_by_at_least_minus_one) {
  for (const DType d : {DType::Int8, DType::Int16, DType::Int32, DType::Int64}) {
    const int64_t smallest = static_cast<int64_t>(integer_range(d).low);
    std::vector<int64_t> x{smallest, smallest + 1, -1, 0, 5, 7, smallest, 3},
        y{-5, -1, -1, -9, -1, 0, 1, 2};
    auto tensor = [&](const std::vector<int64_t>& v) {
      return Tensor::from<int64_t>(v, {8}).cast(d).realize().uop();
    };
    const UOp a = tensor(x), b = maximum(tensor(y), constant_int(d, -1));
    const auto quotients = Tensor(idiv(a, b)).cast(DType::Int64).tolist<int64_t>(),
               remainders = Tensor(mod(a, b)).cast(DType::Int64).tolist<int64_t>();
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t divisor = std::max<int64_t>(y[i], -1);
      const auto floored = [&]() -> int64_t {
        if (divisor == 0) return 0;
        if (divisor == -1)
          return bits_to_int(d,
                             int_to_bits(d, static_cast<int64_t>(0 - static_cast<uint64_t>(x[i]))));
        return static_cast<int64_t>(
            std::floor(static_cast<double>(x[i]) / static_cast<double>(divisor)));
      }();
      if (d == DType::Int64 && i == 6) {
        EXPECT_EQ(quotients[i], smallest);
      } else {
        EXPECT_EQ(quotients[i], floored) << dtype_name(d) << " " << x[i] << " // " << divisor;
      }
      const int64_t left =
          divisor == 0 || divisor == -1 || divisor == 1 ? 0 : x[i] - divisor * floored;
      EXPECT_EQ(remainders[i], left) << dtype_name(d) << " " << x[i] << " % " << divisor;
    }
  }
}

}  // namespace koine::test
