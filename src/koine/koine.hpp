#pragma once
// Everything a user of the C++ library needs.
#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/step.hpp"
#include "koine/io/safetensors.hpp"
#include "koine/nn/nn.hpp"
#include "koine/nn/optim.hpp"
#include "koine/tensor/custom.hpp"
#include "koine/tensor/function.hpp"
#include "koine/tensor/random.hpp"
#include "koine/tensor/tensor.hpp"
#include "koine/tensor/transforms.hpp"
