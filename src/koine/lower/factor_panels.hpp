#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Elements of a factor that a cache keeps while rows pass over it. Panels of a larger one stand
/// outside of the rows.
constexpr int64_t most_elements_beside_rows = 1 << 17;  // 512 KiB of float32

/// Stage 2, for CPUs: of a product with many rows the factor with the columns is copied into
/// panels: of as many columns as a register tile takes, whose rows follow each other in memory. All
/// rows of the result pass over a panel before the next one, and each of its lines, and pages, is
/// used whole. Where the factor lies along the sum, as B in A.B^T and the weights of a Linear
/// layer, fewer rows are enough: lanes that go along a sum have to be summed themselves, and each
/// step of it loads both factors. Where panels stand outside of the rows, those of the other factor
/// are copied to lie along the sum. Beside windows the weights of many channels are copied to lie
/// along these, and for the gradient of the weights what the windows have sent back. (Goto and van
/// de Geijn, Anatomy of High-Performance Matrix Multiplication.)
UOp copy_factors_into_panels(const UOp& program);

}  // namespace koine
