// Header that the kernels of all operators include: short names of numeric types, and warp-wide functions.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 kLanes = 32;
constexpr u32 kAllLanes = 0xFFFFFFFFu;

// The lane and the warp of this thread in a one-dimensional block.
__device__ inline u32 this_lane() { return threadIdx.x % kLanes; }
__device__ inline u32 this_warp() { return threadIdx.x / kLanes; }

// Warp-wide functions: every lane of the warp must call them.

// Returns a mask whose bit `lane` is that lane's flag.
__device__ inline u32 ballot(bool flag) { return __ballot_sync(kAllLanes, flag); }
__device__ inline bool any_lane(bool flag) { return __any_sync(kAllLanes, flag); }
__device__ inline bool all_lanes(bool flag) { return __all_sync(kAllLanes, flag); }

// Returns the number of set bits of `ballot` below bit `lane`: the rank of that lane among the lanes whose flag is set.
__device__ inline u32 place_in(u32 ballot, u32 lane) { return __popc(ballot & ((1u << lane) - 1)); }

// Returns the sum of the numbers of all lanes in lane 0, and other numbers in the other lanes.
__device__ inline u64 warp_sum(u64 number) {
    for (u32 distance = kLanes / 2; distance > 0; distance /= 2)
        number += __shfl_down_sync(kAllLanes, number, distance);
    return number;
}

// Returns the largest of the numbers of all lanes in lane 0, and other numbers in the other lanes.
__device__ inline u64 warp_max(u64 number) {
    for (u32 distance = kLanes / 2; distance > 0; distance /= 2)
        number = max(number, __shfl_down_sync(kAllLanes, number, distance));
    return number;
}

// Reads a word that nothing writes meanwhile. If it is not wanted, nothing is read, without a branch: the compiler then
// has several reads in flight.
__device__ inline u32 read_word(const u32* word, bool is_wanted) {
    u32 value = 0;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1]; }"
        : "+r"(value)
        : "l"(word), "r"(static_cast<u32>(is_wanted)));
    return value;
}

// As `read_word`, for a word that is read once: it takes no place in the L1 cache from what is read again.
__device__ inline u32 read_word_once(const u32* word, bool is_wanted) {
    u32 value = 0;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.L1::no_allocate.u32 %0, [%1]; }"
        : "+r"(value)
        : "l"(word), "r"(static_cast<u32>(is_wanted)));
    return value;
}

// As `read_word`, for two bytes or one.
__device__ inline u32 read_word(const u16* word, bool is_wanted) {
    u16 value = 0;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u16 %0, [%1]; }"
        : "+h"(value)
        : "l"(word), "r"(static_cast<u32>(is_wanted)));
    return value;
}
__device__ inline u32 read_word(const u8* word, bool is_wanted) {
    u32 value = 0;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u8 %0, [%1]; }"
        : "+r"(value)
        : "l"(word), "r"(static_cast<u32>(is_wanted)));
    return value;
}

// Brings a line of global memory to the L2 cache; returns at once.
__device__ inline void prefetch_line(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Adds to a counter in global memory once per warp; returns the previous value in every lane.
__device__ inline u32 warp_add(u32* counter, u32 count) {
    u32 before = 0;
    if (this_lane() == 0) before = atomicAdd(counter, count);
    return __shfl_sync(kAllLanes, before, 0);
}

// Adds one to a counter in global memory for each thread that calls this, once for those of a warp that are together;
// returns the numbers before, another for each thread.
__device__ inline u32 count_one(u32* counter) {
    const u32 together = __activemask();
    u32 before = 0;
    if (place_in(together, this_lane()) == 0) before = atomicAdd(counter, static_cast<u32>(__popc(together)));
    return __shfl_sync(together, before, __ffs(static_cast<int>(together)) - 1) + place_in(together, this_lane());
}

// Reads a counter that other blocks increment concurrently. The value may be stale, but is one that the counter has
// held.
__device__ inline u32 load_relaxed(const u32* counter) { return *static_cast<const volatile u32*>(counter); }
