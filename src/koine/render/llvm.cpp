#include "koine/render/llvm.hpp"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/raw_ostream.h>

#include <mutex>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

using llvm::Value;

class LlvmRenderer {
 public:
  LlvmRenderer(const UOp& linear, const Target& target, llvm::Module& module)
      : linear_(linear),
        target_(target),
        module_(module),
        context_(module.getContext()),
        b_(context_),
        signature_(signature_of(linear)) {}

  void run(const std::string& name) {
    auto* pointer = llvm::PointerType::get(context_, 0);
    std::vector<llvm::Type*> parameters{pointer, pointer, b_.getInt64Ty()};
    if (target_.groups) {
      parameters.assign(signature_.slots.size(), pointer);
      parameters.resize(parameters.size() + signature_.variables.size(), b_.getInt64Ty());
    }
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), parameters, false);
    function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_);
    if (target_.groups) function_->setCallingConv(llvm::CallingConv::PTX_Kernel);
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    function_->addFnAttr("no-trapping-math", "true");
    if (!target_.cpu.empty()) function_->addFnAttr("target-cpu", target_.cpu);
    if (!target_.features.empty()) function_->addFnAttr("target-features", target_.features);
    const std::string width = std::to_string(target_.vector_bytes * 8);
    function_->addFnAttr("prefer-vector-width", width);
    function_->addFnAttr("min-legal-vector-width", width);
    b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));
    find_loops();
    for (const UOp& u : linear_.src()) instruction(u);
    b_.CreateRetVoid();
  }

 private:
  struct Loop {
    llvm::BasicBlock* header;
    llvm::BasicBlock* exit;
    llvm::PHINode* counter;
    std::vector<std::pair<UOp, llvm::PHINode*>> carried;
    bool guarded;
    Value* bound;
  };

  struct Block {
    llvm::BasicBlock *before, *after;
    std::unordered_map<UOp, Value*> registers;  // as they were
  };

  // --- types and constants ---------------------------------------------------------------------
  llvm::Type* scalar_type(DType d) {
    switch (d) {
      case DType::Bool:
        return b_.getInt1Ty();
      case DType::Float32:
        return b_.getFloatTy();
      case DType::Float64:
        return b_.getDoubleTy();
      default:
        KOINE_INVARIANT(is_integer(d), "the LLVM renderer has no {}", dtype_name(d));
        return b_.getIntNTy(static_cast<unsigned>(dtype_info(d).bits));
    }
  }
  llvm::Type* type_of(const UOp& u) {
    if (u.dtype() == DType::Index) return index_type(index_bits(u), lane_count(u));
    return vector_of(scalar_type(u.dtype()), lane_count(u));
  }
  llvm::Type* index_type(int bits, int64_t lanes) {
    return vector_of(b_.getIntNTy(static_cast<unsigned>(bits)), lanes);
  }
  llvm::Type* vector_of(llvm::Type* t, int64_t lanes) {
    return lanes == 1 ? t : llvm::FixedVectorType::get(t, static_cast<unsigned>(lanes));
  }
  // In memory a bool is a byte.
  llvm::Type* memory_type(DType d) { return d == DType::Bool ? b_.getInt8Ty() : scalar_type(d); }

  llvm::Constant* constant_of(const UOp& u) {
    const DType d = u.dtype();
    const Bits bits = u.as<ConstArg>().bits;
    if (is_float(d)) {
      const auto& semantics =
          d == DType::Float32 ? llvm::APFloat::IEEEsingle() : llvm::APFloat::IEEEdouble();
      return llvm::ConstantFP::get(
          context_, llvm::APFloat(semantics, llvm::APInt(d == DType::Float32 ? 32 : 64, bits)));
    }
    return llvm::ConstantInt::get(scalar_type(d), bits);
  }

  // A source as an op computes on it: indices in the bits that all operands and the result fit.
  Value* operand(const UOp& u, size_t k) {
    Value* v = value(u.src(k));
    if (u.src(k).dtype() != DType::Index || !is_elementwise(u.op())) return v;
    return b_.CreateSExtOrTrunc(v, index_type(computing_bits(u), lane_count(u.src(k))));
  }

  Value* value(const UOp& raw) {
    const UOp& u = strip_after(raw);
    if (u.is(Op::Const)) return constant_of(u);
    const auto it = values_.find(u);
    KOINE_INVARIANT(it != values_.end(), "use before definition:\n{}", to_text(u));
    return it->second;
  }

  // --- loops -----------------------------------------------------------------------------------
  // REG buffers that each loop stores to.
  void find_loops() {
    std::vector<UOp> open;
    for (const UOp& u : linear_.src()) {
      if (u.is(Op::Range)) open.push_back(u);
      if (u.is(Op::End)) open.pop_back();
      if (!u.is(Op::Store)) continue;
      const UOp& buffer = accessed_buffer(u);
      if (!is_register(buffer)) continue;
      for (const UOp& r : open) {
        auto& list = stored_in_[r];
        if (std::find(list.begin(), list.end(), buffer) == list.end()) list.push_back(buffer);
      }
    }
  }

  void begin_loop(const UOp& range) {
    Loop loop;
    loop.bound = value(range.src(0));
    loop.guarded = range.src(0).bounds().low < 1;
    llvm::BasicBlock* before = b_.GetInsertBlock();
    loop.header = llvm::BasicBlock::Create(context_, "loop", function_);
    loop.exit = llvm::BasicBlock::Create(context_, "done", function_);
    b_.CreateBr(loop.header);
    b_.SetInsertPoint(loop.header);
    loop.counter = b_.CreatePHI(b_.getInt64Ty(), 2);
    loop.counter->addIncoming(b_.getInt64(0), before);
    for (const UOp& buffer : stored_in_[range]) {
      Value*& current = registers_[buffer];
      if (current == nullptr) continue;  // first stored inside: not carried
      llvm::PHINode* phi = b_.CreatePHI(current->getType(), 2);
      phi->addIncoming(current, before);
      current = phi;
      loop.carried.emplace_back(buffer, phi);
    }
    if (loop.guarded) {
      auto* body = llvm::BasicBlock::Create(context_, "body", function_);
      b_.CreateCondBr(b_.CreateICmpSLT(loop.counter, loop.bound), body, loop.exit);
      b_.SetInsertPoint(body);
    }
    values_[range] = loop.counter;
    loops_.push_back(std::move(loop));
  }

  void end_loop() {
    const Loop loop = std::move(loops_.back());
    loops_.pop_back();
    Value* next = b_.CreateNUWAdd(loop.counter, b_.getInt64(1));
    llvm::BasicBlock* latch = b_.GetInsertBlock();
    loop.counter->addIncoming(next, latch);
    for (const auto& [buffer, phi] : loop.carried) phi->addIncoming(registers_[buffer], latch);
    if (loop.guarded) {
      b_.CreateBr(loop.header);
      for (const auto& [buffer, phi] : loop.carried) registers_[buffer] = phi;
    } else {
      b_.CreateCondBr(b_.CreateICmpSLT(next, loop.bound), loop.header, loop.exit);
    }
    loop.exit->moveAfter(latch);
    b_.SetInsertPoint(loop.exit);
  }

  // A guarded block. A register keeps what it held where the block does not run.
  void begin_block(const UOp& condition) {
    auto* inside = llvm::BasicBlock::Create(context_, "then", function_);
    auto* after = llvm::BasicBlock::Create(context_, "endif", function_);
    b_.CreateCondBr(value(condition), inside, after);
    blocks_.push_back({b_.GetInsertBlock(), after, registers_});
    b_.SetInsertPoint(inside);
  }

  void end_block() {
    const Block block = std::move(blocks_.back());
    blocks_.pop_back();
    llvm::BasicBlock* inside = b_.GetInsertBlock();
    b_.CreateBr(block.after);
    block.after->moveAfter(inside);
    b_.SetInsertPoint(block.after);
    for (auto& [buffer, held] : registers_) {
      const auto before = block.registers.find(buffer);
      if (before == block.registers.end() || before->second == held) continue;
      llvm::PHINode* phi = b_.CreatePHI(held->getType(), 2);
      phi->addIncoming(before->second, block.before);
      phi->addIncoming(held, inside);
      held = phi;
    }
  }

  // --- memory ----------------------------------------------------------------------------------
  // A constant addend becomes the displacement of the address.
  Value* element_pointer(const UOp& buffer, const UOp& index) {
    llvm::Type* type = memory_type(buffer.dtype());
    Value* base = value(buffer);
    if (!index) return base;
    if (index.is(Op::Add) && index.src(1).is(Op::Const)) {
      Value* near = b_.CreateGEP(type, base, value(index.src(0)));
      return b_.CreateGEP(type, near, value(index.src(1)));
    }
    return b_.CreateGEP(type, base, value(index));
  }

  llvm::Align align_of(DType d) { return llvm::Align(static_cast<uint64_t>(item_size(d))); }

  Value* from_memory(Value* v, DType d) {
    return d == DType::Bool ? b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType())) : v;
  }
  Value* to_memory(Value* v, DType d) {
    if (d != DType::Bool) return v;
    llvm::Type* byte = b_.getInt8Ty();
    if (auto* vec = llvm::dyn_cast<llvm::FixedVectorType>(v->getType()))
      byte = vector_of(byte, vec->getNumElements());
    return b_.CreateZExt(v, byte);
  }

  // A LOCAL buffer: memory of the group, or an array on the stack of the thread that runs this part
  // of the kernel.
  Value* scratch(const UOp& buffer) {
    llvm::IRBuilder<> at_entry(&function_->getEntryBlock(), function_->getEntryBlock().begin());
    llvm::Type* type =
        llvm::ArrayType::get(memory_type(buffer.dtype()), static_cast<uint64_t>(buffer.numel()));
    if (target_.groups) {
      constexpr unsigned shared = 3;  // NVPTX's number of that memory
      auto* memory = new llvm::GlobalVariable(
          module_, type, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type),
          fmt::format("{}_local{}", function_->getName().str(), buffer.as<BufferArg>().slot),
          nullptr, llvm::GlobalValue::NotThreadLocal, shared);
      memory->setAlignment(llvm::Align(16));
      return at_entry.CreateAddrSpaceCast(memory, at_entry.getPtrTy());
    }
    auto* array = at_entry.CreateAlloca(type);
    array->setAlignment(llvm::Align(64));
    return array;
  }

  // A place on the stack where accesses whose scalar gate is closed go, so that no branch is
  // needed.
  Value* nowhere() {
    constexpr unsigned largest_access = 256 * 8;  // bytes: the most lanes of the widest element
    if (nowhere_ == nullptr) {
      llvm::IRBuilder<> at_entry(&function_->getEntryBlock(), function_->getEntryBlock().begin());
      auto* place =
          at_entry.CreateAlloca(llvm::ArrayType::get(at_entry.getInt8Ty(), largest_access));
      place->setAlignment(llvm::Align(16));
      nowhere_ = place;
    }
    return nowhere_;
  }

  // Where a vector starts whose lanes have gates of their own. Closed lanes hold addresses too, and
  // one that is not mapped is a fault that the machine looks into before it goes on. A vector that
  // starts further than its length outside of the buffer has no open lane: it stays at the end.
  Value* gated_pointer(const UOp& buffer, const UOp& base, int64_t lanes) {
    if (!base || !buffer.has_concrete_shape()) return element_pointer(buffer, base);
    const int64_t first = 1 - lanes, last = std::max<int64_t>(buffer.numel() - 1, 0);
    const Interval& bounds = base.bounds();
    if (bounds.low >= first && bounds.high <= last) return element_pointer(buffer, base);
    Value* at = b_.CreateSExt(value(base), b_.getInt64Ty());
    if (bounds.low < first)
      at = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, at, integer(at, first));
    if (bounds.high > last)
      at = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, integer(at, last));
    return b_.CreateGEP(memory_type(buffer.dtype()), value(buffer), at);
  }

  // Where LLVM 19 selects instructions fast, it blends whole registers, and takes a scalar that was
  // just loaded from all the bytes of one, past the end of its buffer: it may not see the load.
  Value* chosen(Value* condition, Value* a, Value* b) {
    auto hidden = [&](Value* v) {
      const bool folds = v->getType()->isFloatingPointTy() && llvm::isa<llvm::LoadInst>(v);
      return folds ? b_.CreateFreeze(v) : v;
    };
    return b_.CreateSelect(condition, hidden(a), hidden(b));
  }

  // The gate of an access when it is the same for all lanes; null otherwise.
  Value* scalar_gate(const UOp& gate) {
    if (gate.is_scalar()) return value(gate);
    return gate.is(Op::Expand) ? value(gate.src(0).src(0)) : nullptr;
  }

  Value* load_value(const UOp& u) {
    const UOp& buffer = accessed_buffer(u);
    if (is_register(buffer)) {
      Value* current = registers_[buffer];
      KOINE_INVARIANT(current != nullptr, "a REG buffer is read before it is stored:\n{}",
                      to_text(u));
      return current;
    }
    const UOp& address = strip_after(u.src(0));
    const DType d = u.dtype();
    const bool gated = u.src().size() == 3;
    const int64_t lanes = lane_count(u);
    if (lanes == 1) {
      Value* pointer = element_pointer(buffer, address.src(1));
      if (gated) pointer = b_.CreateSelect(value(u.src(2)), pointer, nowhere());
      Value* loaded = from_memory(b_.CreateAlignedLoad(memory_type(d), pointer, align_of(d)), d);
      return gated ? chosen(value(u.src(2)), loaded, value(u.src(1))) : loaded;
    }
    const Contiguous c = contiguous_access(address);
    KOINE_INVARIANT(c.yes, "a vector load is not contiguous:\n{}", to_text(u));
    llvm::Type* type = vector_of(memory_type(d), lanes);
    if (!gated)
      return from_memory(b_.CreateAlignedLoad(type, element_pointer(buffer, c.base), align_of(d)),
                         d);
    if (Value* gate = scalar_gate(u.src(2))) {
      Value* pointer = b_.CreateSelect(gate, element_pointer(buffer, c.base), nowhere());
      Value* loaded = from_memory(b_.CreateAlignedLoad(type, pointer, align_of(d)), d);
      return b_.CreateSelect(gate, loaded, value(u.src(1)));
    }
    Value* alt = to_memory(value(u.src(1)), d);
    Value* pointer = gated_pointer(buffer, c.base, lanes);
    return from_memory(b_.CreateMaskedLoad(type, pointer, align_of(d), value(u.src(2)), alt), d);
  }

  void store_value(const UOp& u) {
    const UOp& buffer = accessed_buffer(u);
    Value* v = value(u.src(1));
    const DType d = u.src(1).dtype();
    if (is_register(buffer)) {
      const bool index = d == DType::Index;
      registers_[buffer] = index ? b_.CreateSExt(v, index_type(64, lane_count(u.src(1)))) : v;
      return;
    }
    const UOp& address = strip_after(u.src(0));
    v = to_memory(v, d);
    const bool gated = u.src().size() == 3;
    if (lane_count(address.src(1)) == 1) {
      Value* pointer = element_pointer(buffer, address.src(1));
      if (gated) pointer = b_.CreateSelect(value(u.src(2)), pointer, nowhere());
      b_.CreateAlignedStore(v, pointer, align_of(d));
      return;
    }
    const Contiguous c = contiguous_access(address);
    KOINE_INVARIANT(c.yes, "a vector store is not contiguous:\n{}", to_text(u));
    Value* gate = gated ? scalar_gate(u.src(2)) : nullptr;
    if (gated && gate == nullptr) {
      Value* pointer = gated_pointer(buffer, c.base, lane_count(address.src(1)));
      b_.CreateMaskedStore(v, pointer, align_of(d), value(u.src(2)));
      return;
    }
    Value* pointer = element_pointer(buffer, c.base);
    if (gate != nullptr) pointer = b_.CreateSelect(gate, pointer, nowhere());
    b_.CreateAlignedStore(v, pointer, align_of(d));
  }

  // --- arithmetic ------------------------------------------------------------------------------
  static Value* integer(Value* like, int64_t v) {
    return llvm::ConstantInt::getSigned(like->getType(), v);
  }

  // Quotient towards zero and remainder. A CPU has vectors for the quotients of floats alone: of
  // integers of at most 32 bits that of float64 is nearer to the exact one than any other integer
  // over the divisor. LLVM multiplies instead where the divisor is a constant.
  std::pair<Value*, Value*> quotient_and_remainder(Value* a, Value* b, bool with_sign) {
    const bool in_floats = a->getType()->isVectorTy() &&
                           a->getType()->getScalarSizeInBits() <= 32 &&
                           !llvm::isa<llvm::Constant>(b) && !target_.groups;
    if (!in_floats)
      return with_sign ? std::pair{b_.CreateSDiv(a, b), b_.CreateSRem(a, b)}
                       : std::pair{b_.CreateUDiv(a, b), b_.CreateURem(a, b)};
    llvm::Type* wide = a->getType()->getWithNewType(b_.getDoubleTy());
    auto widened = [&](Value* v) {
      return with_sign ? b_.CreateSIToFP(v, wide) : b_.CreateUIToFP(v, wide);
    };
    Value* exact = b_.CreateFDiv(widened(a), widened(b));
    Value* q =
        with_sign ? b_.CreateFPToSI(exact, a->getType()) : b_.CreateFPToUI(exact, a->getType());
    return {q, b_.CreateSub(a, b_.CreateMul(q, b))};
  }

  // Floor division and its remainder; 0 where the divisor is 0, no trap at the smallest integer.
  Value* divide(const UOp& u, bool remainder) {
    Value *a = operand(u, 0), *b = operand(u, 1);
    const Interval &x = u.src(0).bounds(), &y = u.src(1).bounds();
    const bool zero_free = y.low > 0 || y.high < 0;
    Value* zero = integer(a, 0);
    Value* is_zero = nullptr;
    if (!zero_free) {
      is_zero = b_.CreateICmpEQ(b, zero);
      b = b_.CreateSelect(is_zero, integer(a, 1), b);
    }
    Value* result;
    if (!is_signed(u.dtype()) || (x.low >= 0 && y.low >= 0)) {
      const auto [q, r] = quotient_and_remainder(a, b, false);
      result = remainder ? r : q;
    } else {
      Value* minus = nullptr;  // divisor -1 would overflow at the smallest integer
      if (y.low <= -1) {
        minus = b_.CreateICmpEQ(b, integer(a, -1));
        b = b_.CreateSelect(minus, integer(a, 1), b);
      }
      const auto [q, r] = quotient_and_remainder(a, b, true);
      Value* uneven = b_.CreateICmpNE(r, zero);
      Value* differ = b_.CreateICmpSLT(b_.CreateXor(a, b), zero);
      Value* fix = b_.CreateAnd(uneven, differ);
      result = remainder ? b_.CreateSelect(fix, b_.CreateAdd(r, b), r)
                         : b_.CreateSelect(fix, b_.CreateSub(q, integer(a, 1)), q);
      if (minus != nullptr)
        result = b_.CreateSelect(minus, remainder ? zero : b_.CreateNeg(a), result);
    }
    return is_zero != nullptr ? b_.CreateSelect(is_zero, zero, result) : result;
  }

  Value* shift(const UOp& u) {
    Value *a = operand(u, 0), *n = operand(u, 1);
    const int64_t width = a->getType()->getScalarSizeInBits();
    const Interval& amount = u.src(1).bounds();
    const bool left = u.is(Op::Shl), arithmetic = !left && is_signed(u.dtype());
    const bool safe = amount.low >= 0 && amount.high < width;
    Value* large = nullptr;
    if (!safe) {
      large = b_.CreateICmpUGE(n, integer(a, width));
      n = b_.CreateSelect(large, integer(a, arithmetic ? width - 1 : 0), n);
    }
    if (arithmetic && width == 8 && !(safe && amount.low > 0)) {
      // With GFNI, LLVM 19 gets bytes wrong whose amount turns out to be 0 after its own folding.
      llvm::Type* wide = a->getType()->getWithNewBitWidth(16);
      return b_.CreateTrunc(b_.CreateAShr(b_.CreateSExt(a, wide), b_.CreateZExt(n, wide)),
                            a->getType());
    }
    Value* result = left         ? b_.CreateShl(a, n)
                    : arithmetic ? b_.CreateAShr(a, n)
                                 : b_.CreateLShr(a, n);
    return safe || arithmetic ? result : b_.CreateSelect(large, integer(a, 0), result);
  }

  Value* maximum_of(const UOp& u) {
    Value *a = operand(u, 0), *b = operand(u, 1);
    if (u.dtype() == DType::Bool) return b_.CreateOr(a, b);
    if (!is_float(u.dtype())) return b_.CreateSelect(is_less(a, b, u.dtype()), b, a);
    // b > a or b is NaN. A constant that is no NaN saves the second comparison.
    Value* larger = b_.CreateFCmpOGT(b, a);
    if (u.src(1).bounds().may_be_nan) larger = b_.CreateOr(larger, b_.CreateFCmpUNO(b, b));
    return b_.CreateSelect(larger, b, a);
  }

  Value* cast_value(const UOp& u) {
    Value* v = operand(u, 0);
    const DType from = u.src(0).dtype(), to = u.dtype();
    llvm::Type* type = type_of(u);
    if (to == DType::Bool)
      return is_float(from) ? b_.CreateFCmpUNE(v, llvm::Constant::getNullValue(v->getType()))
                            : b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
    const bool from_signed = is_signed(from);
    if (is_float(from) && is_float(to)) return b_.CreateFPCast(v, type);
    if (is_float(from))
      return b_.CreateIntrinsic(
          is_signed(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
          {type, v->getType()}, {v});
    if (is_float(to)) return from_signed ? b_.CreateSIToFP(v, type) : b_.CreateUIToFP(v, type);
    return b_.CreateIntCast(v, type, from_signed);
  }

  Value* stack_value(const UOp& u) {
    std::vector<llvm::Constant*> constants;
    for (const UOp& s : u.src())
      if (s.is(Op::Const)) constants.push_back(constant_of(s));
    if (constants.size() == u.src().size()) return llvm::ConstantVector::get(constants);
    Value* v = llvm::PoisonValue::get(vector_of(scalar_type(u.dtype()), lane_count(u)));
    for (size_t i = 0; i < u.src().size(); ++i) v = b_.CreateInsertElement(v, value(u.src(i)), i);
    return v;
  }

  // A uniform condition on some constant lanes picks from <condition, false>. As an `and` it may
  // become the mask of an access that is split in registers, and there LLVM 19 (AVX2) takes the
  // part of it that is all false for true.
  Value* conjunction(Value* a, Value* b) {
    if (!llvm::isa<llvm::Constant>(b)) std::swap(a, b);
    auto* lanes = llvm::dyn_cast<llvm::Constant>(b);
    Value* uniform = llvm::getSplatValue(a);
    if (lanes == nullptr || uniform == nullptr || !b->getType()->isVectorTy())
      return b_.CreateAnd(a, b);
    const unsigned count = llvm::cast<llvm::FixedVectorType>(b->getType())->getNumElements();
    std::vector<int> pick;
    for (unsigned i = 0; i < count; ++i)
      pick.push_back(lanes->getAggregateElement(i)->isNullValue());
    Value* pair = b_.CreateInsertElement(llvm::Constant::getNullValue(vector_of(b_.getInt1Ty(), 2)),
                                         uniform, uint64_t{0});
    return b_.CreateShuffleVector(pair, pick);
  }

  // LLVM 19 takes the lanes of a vector where it knows both operands to be 0 for 0, which is NaN;
  // freeze stops it.
  Value* quotient(Value* value) {
    return value->getType()->isVectorTy() ? b_.CreateFreeze(value) : value;
  }

  Value* compute(const UOp& u) {
    // What LLVM cannot select would end the process.
    const DType operands =
        is_elementwise(u.op()) ? u.src(u.is(Op::Where) ? 1 : 0).dtype() : u.dtype();
    KOINE_INVARIANT(!is_elementwise(u.op()) || is_native(target_, u.op(), operands),
                    "render: {} has no {} of {}", target_.name, op_name(u.op()),
                    dtype_name(operands));
    auto a = [&] { return operand(u, 0); };
    auto b = [&] { return operand(u, 1); };
    const bool real = is_float(u.dtype()), real_in = is_float(u.src(0).dtype());
    const bool boolean = u.dtype() == DType::Bool;
    switch (u.op()) {
      case Op::Add:
        return real      ? b_.CreateFAdd(a(), b())
               : boolean ? b_.CreateOr(a(), b())
                         : b_.CreateAdd(a(), b());
      case Op::Mul:
        return real                ? b_.CreateFMul(a(), b())
               : boolean           ? conjunction(a(), b())
               : hides_negation(u) ? negated(a())
                                   : b_.CreateMul(a(), b());
      case Op::Fdiv:
        return quotient(b_.CreateFDiv(a(), b()));
      case Op::Max:
        return maximum_of(u);
      case Op::Idiv:
        return divide(u, false);
      case Op::Mod:
        return divide(u, true);
      case Op::Shl:
      case Op::Shr:
        return shift(u);
      case Op::Xor:
        return b_.CreateXor(a(), b());
      case Op::Or:
        return b_.CreateOr(a(), b());
      case Op::And:
        return boolean ? conjunction(a(), b()) : b_.CreateAnd(a(), b());
      case Op::CmpLt:
        if (target_.groups && real_in && is_const(u.src(1), 0)) return below_negative_zero(a());
        return real_in ? b_.CreateFCmpOLT(a(), b()) : is_less(a(), b(), u.src(0).dtype());
      case Op::CmpNe:
        return real_in ? b_.CreateFCmpUNE(a(), b()) : b_.CreateICmpNE(a(), b());
      case Op::Where:
        return chosen(value(u.src(0)), operand(u, 1), operand(u, 2));
      case Op::Mulacc:
        return b_.CreateIntrinsic(llvm::Intrinsic::fma, {type_of(u)}, {a(), b(), value(u.src(2))});
      case Op::Sqrt:
        return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a());
      case Op::Trunc:
        return b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, a());
      case Op::Cast:
        return cast_value(u);
      case Op::Bitcast:
        if (u.src(0).dtype() == DType::Bool) return b_.CreateZExt(a(), type_of(u));
        if (boolean) return b_.CreateICmpNE(a(), llvm::Constant::getNullValue(a()->getType()));
        return b_.CreateBitCast(a(), type_of(u));
      case Op::Stack:
        return stack_value(u);
      case Op::Reshape:
        return a();
      case Op::Expand:
        return b_.CreateVectorSplat(static_cast<unsigned>(lane_count(u)), a());
      case Op::Index:
        return b_.CreateExtractElement(a(), static_cast<uint64_t>(const_int(u.src(1))));
      case Op::Shrink: {
        const int64_t from = const_int(u.src(1).src(0));
        if (lane_count(u) == 1) return b_.CreateExtractElement(a(), static_cast<uint64_t>(from));
        std::vector<int> mask;
        for (int64_t i = 0; i < lane_count(u); ++i) mask.push_back(static_cast<int>(from + i));
        return b_.CreateShuffleVector(a(), mask);
      }
      case Op::Wmma:
        return wmma_value(u);
      case Op::Ins:
        return instruction_value(u);
      case Op::Custom:
        raise(ErrorKind::Value, "Custom \"{}\" is source text, and {} is machine code: use Ins",
              u.as<CodeArg>().text, target_.name);
      default:
        internal_error("the LLVM renderer does not know {}", op_name(u.op()));
    }
  }

  // A row of A times columns of B, whose pairs or fours of numbers are 32 bits each: those of A are
  // the same for all columns.
  Value* wmma_value(const UOp& u) {
    static constexpr std::pair<std::string_view, llvm::Intrinsic::ID> known[] = {
        {"x86_vdpbf16ps", llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512},
        {"x86_vpdpbusd", llvm::Intrinsic::x86_avx512_vpdpbusd_512},
        {"x86_vpdpwssd", llvm::Intrinsic::x86_avx512_vpdpwssd_512}};
    const std::string& core = u.as<WmmaArg>().core;
    const auto* it =
        std::ranges::find(known, core, &std::pair<std::string_view, llvm::Intrinsic::ID>::first);
    KOINE_REQUIRE(it != std::end(known), Value, "machine code for {} has no tensor core {}",
                  target_.name, core);
    llvm::Type* words = index_type(32, lane_count(u));
    Value* row = b_.CreateVectorSplat(static_cast<unsigned>(lane_count(u)),
                                      b_.CreateBitCast(value(u.src(0)), b_.getInt32Ty()));
    Value* columns = b_.CreateBitCast(value(u.src(1)), words);
    llvm::Function* instruction = llvm::Intrinsic::getDeclaration(&module_, it->second);
    auto as_operand = [&](Value* v, unsigned k) {
      return b_.CreateBitCast(v, instruction->getFunctionType()->getParamType(k));
    };
    return b_.CreateCall(
        instruction, {as_operand(value(u.src(2)), 0), as_operand(row, 1), as_operand(columns, 2)});
  }

  // Inline assembly.
  Value* instruction_value(const UOp& u) {
    const auto [assembly, constraints] = parts_of_instruction(u);
    std::vector<llvm::Type*> types;
    std::vector<Value*> values;
    for (const UOp& s : u.src()) {
      values.push_back(value(s));
      types.push_back(values.back()->getType());
    }
    auto* type = llvm::FunctionType::get(type_of(u), types, false);
    if (auto error = llvm::InlineAsm::verify(type, constraints))
      raise(ErrorKind::Value, "Ins \"{}\": {}", u.as<CodeArg>().text,
            llvm::toString(std::move(error)));
    return b_.CreateCall(llvm::InlineAsm::get(type, assembly, constraints, false), values);
  }

  // NVIDIA's assembler takes it that a negative does not overflow (CUDA 13.0, sm_90): it is not
  // shown that a number is one.
  bool hides_negation(const UOp& product) const {
    return target_.groups && is_integer(product.dtype()) && product.dtype() != DType::Index &&
           is_const(product.src(1), -1);
  }
  // An instruction that LLVM knows nothing of, for each lane.
  Value* opaque(Value* v, llvm::Type* to, const std::string& assembly, const char* constraints) {
    if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType())) {
      Value* out = llvm::PoisonValue::get(llvm::FixedVectorType::get(to, vector->getNumElements()));
      for (unsigned lane = 0; lane < vector->getNumElements(); ++lane)
        out = b_.CreateInsertElement(
            out, opaque(b_.CreateExtractElement(v, lane), to, assembly, constraints), lane);
      return out;
    }
    auto* type = llvm::FunctionType::get(to, {v->getType()}, false);
    return b_.CreateCall(llvm::InlineAsm::get(type, assembly, constraints, false), {v});
  }
  Value* negated(Value* v) {
    const unsigned bits = v->getType()->getScalarSizeInBits();
    llvm::Type* type = v->getType();
    if (bits == 8)
      return b_.CreateTrunc(negated(b_.CreateZExt(v, type->getWithNewBitWidth(16))), type);
    return opaque(v, type->getScalarType(),
                  fmt::format("{{ .reg .b{0} t; not.b{0} t, $1; add.s{0} $0, t, 1; }}", bits),
                  bits == 16   ? "=h,h"
                  : bits == 32 ? "=r,r"
                               : "=l,l");
  }

  // It also takes x < 0 ? x : 0 for min(x, 0), which is -0 of -0.
  Value* below_negative_zero(Value* v) {
    return b_.CreateFCmpOLT(v, llvm::ConstantFP::get(v->getType(), -0.0));
  }

  // Of the greater of 0 and an integer of 16 bits it asks the wrong half of a register whether that
  // is 0. Integers so narrow are compared as wider ones, so that nobody sees which one is greater.
  Value* is_less(Value* a, Value* b, DType dtype) {
    const bool narrow = target_.groups && item_size(dtype) < 4;
    auto wide = [&](Value* v) {
      if (!narrow) return v;
      llvm::Type* const half = v->getType()->getWithNewBitWidth(16);
      return opaque(b_.CreateIntCast(v, half, is_signed(dtype)), b_.getInt32Ty(),
                    is_signed(dtype) ? "cvt.s32.s16 $0, $1;" : "cvt.u32.u16 $0, $1;", "=r,h");
    };
    a = wide(a);
    b = wide(b);
    return is_signed(dtype) ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b);
  }

  // The number of a group, or of a thread in one.
  Value* special(const UOp& u) {
    const std::string& name = u.as<std::string>();
    if (!target_.groups) {
      KOINE_REQUIRE(name == "thread", Value,
                    "machine code for {} has no groups of threads, and the kernel asks for {}",
                    target_.name, name);
      return function_->getArg(2);
    }
    using namespace llvm::Intrinsic;
    constexpr llvm::Intrinsic::ID of_group[] = {nvvm_read_ptx_sreg_ctaid_x,
                                                nvvm_read_ptx_sreg_ctaid_y,
                                                nvvm_read_ptx_sreg_ctaid_z},
                                  in_group[] = {nvvm_read_ptx_sreg_tid_x, nvvm_read_ptx_sreg_tid_y,
                                                nvvm_read_ptx_sreg_tid_z};
    const size_t axis = name == "thread" ? 0 : static_cast<size_t>(name.back() - '0');
    Value* number = b_.CreateIntrinsic(name[0] == 'l' ? in_group[axis] : of_group[axis], {}, {});
    return b_.CreateZExt(number, b_.getInt64Ty());
  }

  // The parameter of a kernel with groups: one a slot, then one a Variable.
  Value* parameter(const BufferArg& p) {
    const auto place = [](const auto& list, const auto& wanted) {
      return static_cast<unsigned>(std::find(list.begin(), list.end(), wanted) - list.begin());
    };
    return function_->getArg(p.name.empty() ? place(signature_.slots, p.slot)
                                            : static_cast<unsigned>(signature_.slots.size()) +
                                                  place(signature_.variables, p.name));
  }

  void instruction(const UOp& u) {
    switch (u.op()) {
      case Op::Const:
      case Op::Group:
        return;
      case Op::Barrier:  // without groups, LOCAL memory is the thread's own
        if (target_.groups) b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
        return;
      case Op::Buffer:
        if (!is_register(u)) values_[u] = scratch(u);
        return;
      case Op::Param: {
        const BufferArg& p = u.as<BufferArg>();
        if (target_.groups) {
          values_[u] = parameter(p);
        } else if (p.name.empty()) {
          Value* slot = b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), function_->getArg(0),
                                                      static_cast<uint64_t>(p.slot));
          values_[u] = b_.CreateLoad(b_.getPtrTy(), slot, fmt::format("data{}", p.slot));
        } else {
          const auto at =
              std::find(signature_.variables.begin(), signature_.variables.end(), p.name) -
              signature_.variables.begin();
          Value* slot = b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), function_->getArg(1),
                                                      static_cast<uint64_t>(at));
          values_[u] = b_.CreateLoad(b_.getInt64Ty(), slot, p.name);
        }
        return;
      }
      case Op::Special:
        values_[u] = special(u);
        return;
      case Op::Range:
        begin_loop(u);
        return;
      case Op::End:
        end_loop();
        return;
      case Op::Load:
        values_[u] = load_value(u);
        return;
      case Op::Store:
        store_value(u);
        return;
      case Op::If:
        begin_block(u.src(0));
        return;
      case Op::Endif:
        end_block();
        return;
      case Op::AtomicAdd: {
        const DType d = u.src(1).dtype();
        Value* place = element_pointer(accessed_buffer(u), strip_after(u.src(0)).src(1));
        b_.CreateAtomicRMW(is_float(d) ? llvm::AtomicRMWInst::FAdd : llvm::AtomicRMWInst::Add,
                           place, value(u.src(1)), align_of(d), llvm::AtomicOrdering::Monotonic);
        return;
      }
      case Op::Index:
        if (is_address(u)) return;
        break;
      default:
        break;
    }
    Value* computed = compute(u);
    if (u.dtype() == DType::Index) computed = b_.CreateSExtOrTrunc(computed, type_of(u));
    values_[u] = computed;
  }

  const UOp& linear_;
  const Target& target_;
  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> b_;
  Signature signature_;
  llvm::Function* function_ = nullptr;
  Value* nowhere_ = nullptr;
  std::unordered_map<UOp, Value*> values_;
  std::unordered_map<UOp, Value*> registers_;
  std::unordered_map<UOp, std::vector<UOp>> stored_in_;
  std::vector<Loop> loops_;
  std::vector<Block> blocks_;
};

}  // namespace

void set_llvm_options() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Our renderer emits strength-reduced addresses, each value where it is used; these passes only
    // cost time on them (sinking a sixth of that of a register tile).
    const char* arguments[] = {"koine", "-disable-lsr", "-disable-cgp", "-disable-machine-sink"};
    llvm::cl::ParseCommandLineOptions(4, arguments);
  });
}

void render_llvm(const UOp& linear, const std::string& name, const Target& target,
                 llvm::Module& module) {
  LlvmRenderer(linear, target, module).run(name);
}

std::string render_llvm_text(const UOp& linear, const std::string& name, const Target& target) {
  llvm::LLVMContext context;
  llvm::Module module(name, context);
  render_llvm(linear, name, target, module);
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

}  // namespace koine
