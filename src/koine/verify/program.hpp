#pragma once
#include "koine/verify/demand.hpp"

// Demands that kernels and linear programs share.
namespace koine {

/// Something that a Load reads or a Store writes: an element of memory, or a register.
bool is_place(const UOp& u);

/// Which source of an Index into memory is not the one place of an element.
int check_address(const UOp& index);

/// Params, Buffers, Ranges, Specials and accesses.
const std::vector<Demand>& memory_part();
/// Effects, their order, addresses.
const std::vector<Demand>& effect_part();

}  // namespace koine
