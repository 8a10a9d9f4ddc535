#pragma once
#include <cstdint>
#include <string>

#include "koine/tensor/tensor.hpp"

// One program in several processes, on one machine or many: `mpirun -n 4 program`. The k-th
// process, rank k, has the device "RANK:k", and to the program these are devices like any others:
// `shard`, `koine::collective`, gradients and optimisers work on them, and MPI moves the bytes.
// Every rank runs the same lines; what is on another device, such as CPU, each rank has for itself,
// and is taken to be equal on all. docs/devices.md says more.
namespace koine::distributed {

/// Joins the processes that mpirun started with this one; without mpirun there is one. Each may
/// have several devices: then rank 0 has the first of them, and so on. Throws Error (Device) where
/// OpenMPI is not installed. From then on a rank that fails ends the others: one that exits with
/// another status than 0, or while they go on.
void init(int64_t devices_each = 1);

/// The number of this process, and how many there are. These throw Error (Device) before init().
int64_t rank();
int64_t count();
/// The devices of all ranks, "RANK,RANK:1,RANK:2,RANK:3", and those of this one.
std::string devices();
std::string own_devices();

/// What each rank has of its own, (m, ...) on each, as one value in parts on all devices, of n m
/// rows: such as the rows of a batch that each rank reads. It is data: no gradient goes on to
/// `own`. Throws Error (Device) where the ranks give different shapes or dtypes, (Value) where the
/// devices of a rank cannot share out its rows.
Tensor parts(const Tensor& own);
/// What this rank has of a value in parts on all devices, on CPU. Data too. Throws Error (Value)
/// where the value is no such.
Tensor own_part(const Tensor& value);

}  // namespace koine::distributed
