// How kernels end early: they look at the flag, which the host sets if the query is cancelled, and kernels of the same
// launch if they give up. The host uses nothing of such a launch, or begins it again with more room.
#pragma once
#include "arguments.cuh"

// Returns whether the kernel is to end. Two threads of a block may get different answers. A thread waits for the L2
// cache here, so that loops seldom look.
__device__ inline bool must_end(const Fragment& f) { return load_relaxed(f.flag) != 0; }

// Returns whether the query is cancelled. A kernel that marks what the next run needs goes on if another gives up.
constexpr u32 kIsCancelled = 8;
__device__ inline bool is_cancelled(const Fragment& f) { return load_relaxed(f.flag) == kIsCancelled; }

// As `must_end`, in a loop over places that begins below `step` and goes on in steps: at the first place, and then
// once in `kPlaces`, or at each if a step is as long. Otherwise the kernel goes on. A counter of turns would take a
// register.
template <u32 kPlaces> __device__ inline bool must_end(const Fragment& f, u64 place, u32 step) {
    return static_cast<u32>(place) % kPlaces < step && must_end(f);
}

// Returns the flag in one thread of a block, and 0 in the others. If `__syncthreads_or` gets it behind other work, no
// thread waits for the read.
__device__ inline u32 flag_of_block(const Fragment& f) { return threadIdx.x == 0 ? load_relaxed(f.flag) : 0; }

// Returns whether the kernel is to end: the same answer in all threads of a block, each of which must call this.
__device__ inline bool block_must_end(const Fragment& f) { return __syncthreads_or(flag_of_block(f)) != 0; }
