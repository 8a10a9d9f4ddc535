#include "../cuda.hpp"
