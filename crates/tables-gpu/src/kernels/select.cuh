// Selects groups by their totals, which other kernels have added. `is_selected` and `rank_of_group` are generated from
// the plan above the aggregate.
#pragma once
#include "cancelled.cuh"

// Groups of a thread in a tile, and intervals of ranks that are counted, as in `selection.rs`.
constexpr u32 kGroupsOfThread = 8, kIntervals = 4096;

extern __shared__ __align__(16) u64 memory[];

// Returns a number below 2^31 that orders as `value` does, which has at most 127 bits; large values that are nearly
// equal have the same one.
__device__ inline u32 rank_of(i128 value) {
    const u128 magnitude = static_cast<u128>(value < 0 ? -value : value);
    const u64 high = static_cast<u64>(magnitude >> 64), low = static_cast<u64>(magnitude);
    const u32 bits = high != 0 ? 128 - __clzll(high) : 64 - __clzll(low);
    const u128 leading = bits > 24 ? magnitude >> (bits - 24) : magnitude << (24 - bits);
    const u32 rank = bits << 23 | (static_cast<u32>(leading) & 0x7FFFFF);
    return value < 0 ? (1u << 30) - 1 - rank : (1u << 30) + rank;
}

// Words of the constants: 0 the first rank, 2 the first behind the last, 4 the logarithm of an interval, 6 the number
// of groups to write, 8 whether to write; from 10 on the numbers of conditions.

// Returns whether a group is selected and its rank is in the range of the constants.
__device__ inline bool is_wanted(const Fragment& f, const u64* group) {
    if (!is_selected(f, group)) return false;
    const u64 rank = rank_of_group(group);
    return rank >= f.constants[0] && rank < f.constants[2];
}

// Calls a function for each group of a tile of this thread.
template <class Function> __device__ inline void each_group(const Fragment& f, u64 tile, const Function& function) {
#pragma unroll
    for (u32 i = 0; i < kGroupsOfThread; i++) {
        const u64 g = (tile * kGroupsOfThread + i) * kThreads + threadIdx.x;
        if (g < f.groups) function(i, static_cast<u32>(g), f.totals + g * kGroupWords);
    }
}

// Counts the groups in each interval of ranks.
__device__ inline void count_groups(const Fragment& f) {
    u32* counts = reinterpret_cast<u32*>(memory);
    for (u32 i = threadIdx.x; i < kIntervals; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (u64 tile = blockIdx.x; tile < f.tiles && !must_end<1 << 13>(f, tile, gridDim.x); tile += gridDim.x) {
        each_group(f, tile, [&](u32, u32, const u64* group) {
            if (!is_wanted(f, group)) return;
            const u64 interval = (rank_of_group(group) - f.constants[0]) >> f.constants[4];
            atomicAdd(counts + interval, 1u);
        });
    }
    __syncthreads();
    u32* all = reinterpret_cast<u32*>(f.results);
    for (u32 i = threadIdx.x; i < kIntervals; i += kThreads)
        if (counts[i] != 0) atomicAdd(all + i, counts[i]);
}

// Writes the number or key and the totals of a group. A constant tells how many groups there are. First is how many are
// written, then are the numbers or keys, then the totals.
__device__ inline void write_totals(const Fragment& f, u64 to, u64 number, const u64* group) {
    u64* numbers = f.results + 1;
    u64* totals = numbers + f.constants[6];
    numbers[to] = number;
#pragma unroll
    for (u32 word = 0; word < kGroupWords; word++) totals[to * kGroupWords + word] = group[word];
}

// Writes a number of a packed column, as `columns.cuh` reads it: `first` is the index of the column's first word, and
// `valid` that of the first with bits that tell which rows have a value. These are 0 before the kernel runs.
template <u32 kWidth, bool kHasNulls>
__device__ inline void put(const Fragment& f, u64 to, u64 first, u64 valid, bool is_valid, u64 number) {
    u32* words = reinterpret_cast<u32*>(f.own_words[0]);
    u32* word = words + first + to / 256 * (8 * kWidth) + to % 256 / 32 * kWidth + to % 32;
    word[0] = static_cast<u32>(number);
    if constexpr (kWidth == 64) word[32] = static_cast<u32>(number >> 32);
    if constexpr (kHasNulls)
        if (is_valid) atomicOr(words + valid + to / 32, 1u << to % 32);
}

// Returns a number of 64 bits of a table, by the index of its first word.
__device__ inline u64 from_table(const Fragment& f, u64 index) {
    return f.tables[index] | static_cast<u64>(f.tables[index + 1]) << 32;
}

// Writes a group as the one of index `to`: generated.
__device__ inline void write_group(const Fragment& f, u64 to, u64 number, const u64* group);

// Writes the groups, and first of the results how many are written.
__device__ inline void write_groups(const Fragment& f) {
    u32* shared = reinterpret_cast<u32*>(memory);
    u32* written = reinterpret_cast<u32*>(f.results);
    const u64 count = f.constants[6];
    for (u64 tile = blockIdx.x; tile < f.tiles; tile += gridDim.x) {
        if (threadIdx.x == 0) shared[0] = 0;
        __syncthreads();
        u32 kept = 0;
        each_group(f, tile, [&](u32 i, u32, const u64* group) {
            kept |= static_cast<u32>(is_wanted(f, group)) << i;
        });
        const u32 behind = kept != 0 ? atomicAdd(shared, static_cast<u32>(__popc(kept))) : 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            const bool ends = must_end(f);
            shared[1] = atomicAdd(written, shared[0]);
            shared[2] = ends;
        }
        __syncthreads();
        if (shared[2] != 0) return;
        u64 to = shared[1] + static_cast<u64>(behind);
        each_group(f, tile, [&](u32 i, u32 number, const u64* group) {
            if ((kept >> i & 1) == 0 || to >= count) return;
            // If all groups are written, they keep their order.
            const u64 at = count == f.groups ? number : to;
            write_group(f, at, f.own_keys != nullptr ? f.own_keys[number] - 1 : f.own_first + number, group);
            to++;
        });
    }
}

// With six blocks of 256 threads at a time, no thread spills registers. Without a number, NVRTC 13.0 lets some spill
// for sm_100, where eight blocks then have room.
extern "C" __global__ void __launch_bounds__(kThreads, 6) fragment(const __grid_constant__ Fragment f) {
    if (f.constants[8] == 0)
        count_groups(f);
    else
        write_groups(f);
}
