// The threads of a grid, and what they share: single reads of memory and sums.
#pragma once

#include "device.cuh"

// Returns the index of this thread in the grid.
__device__ inline u64 this_thread() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }

// Returns the number of threads of the grid.
__device__ inline u64 threads() { return gridDim.x * static_cast<u64>(blockDim.x); }

// Reads 16 bytes once: they are not kept in the L1 cache.
__device__ inline uint4 read_once(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

// Adds a number of each thread of the block to `to`. All threads of a warp must call this.
__device__ inline void add(u64 sum, u64* to) {
    sum = warp_sum(sum);
    if (this_lane() == 0) atomicAdd(to, sum);
}
