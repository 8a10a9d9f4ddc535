#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, second pass: memory for what `decide` gave memory, and for copies and results of Calls.
/// A value that lies in memory becomes After(Buffer, Store(Buffer, value)), with the reason on the
/// After; temporaries are numbered from 0. Every effect of the program is an After then, and what
/// a Store reads besides memory is computed in its kernel. All that the Stores of one dependency
/// read is read before anything is written (row B20): what reads a buffer that is written beside it
/// is computed elsewhere first.
UOp bufferize(const UOp& program);

/// The memory that a value lies in, a Buffer or Param, seen through Afters and markers; null for a
/// value that a kernel computes.
UOp memory_of_value(const UOp& value);
/// The memory of which a Store fills a view; null where it is none.
UOp written_memory(const UOp& store);
/// Whether Stores that are a kernel together share its loops: they write values of one shape, into
/// different memories. Others have loops of their own, one behind the other.
bool share_loops(std::span<const UOp> stores);
/// A Buffer for a value of a program.
UOp temporary_for(const UOp& value, int64_t number);
/// The first number that no temporary of a program has.
int64_t next_temporary(const UOp& program);
/// Memory once it holds a value.
UOp filled(const UOp& memory, const UOp& value, std::string_view reason);

}  // namespace koine
