// Adds the totals of groups that another device has added, whose memory this one reads, to its own totals of them.
#pragma once
#include "cancelled.cuh"
#include "totals.cuh"

// Groups of a thread in a tile, as in `selection.rs`.
constexpr u32 kGroupsOfThread = 8;

// Returns the place for the totals of a group of the other device, whose key is `key` in a hash table; null if this one
// has no room.
__device__ inline u64* own_group(const Fragment& f, u64 g, u64 key) {
    u32 group = static_cast<u32>(g);
    if (f.own_keys != nullptr) {
        group = put_key(f.own_keys, f.own_key_bits, key - 1);
    } else if (f.seen != nullptr) {
        // A row of a list, which is a group of its own.
        group = atomicAdd(f.seen, 1u);
    }
    if (group >= f.groups) atomicMax(f.flag, kIsFull);
    return group < f.groups ? f.totals + static_cast<u64>(group) * kGroupWords : nullptr;
}

// Whether the totals of a group are added by a loop that is not unrolled, as its code would be long.
constexpr bool kIsWideGroup = kSlots > 32;

// No other thread changes the totals of the group.
__device__ inline void add_group(u64* own, const u64* other) {
#pragma unroll(kIsWideGroup ? 1 : kSlots)
    for (u32 s = 0; s < kSlots; s++) {
        u64* total = own + kSlotWord[s];
        const u64 value = other[kSlotWord[s]];
        const u64 before = *total;
        if (is_wide_maximum(s)) {
            raise_words(total[0], total[1], value, other[kSlotWord[s] + 1]);
            continue;
        }
        *total = kIsMaximum[s] ? max(before, value) : before + value;
        if (kIsWide[s]) total[1] += other[kSlotWord[s] + 1] + (before + value < before ? 1 : 0);
    }
}

// Returns the key of a group in a hash table, or else its first total, the number of its rows: 0 if it has none.
__device__ inline u64 known_of(const Fragment& f, const u64* others, u64 g) {
    if (g >= f.groups) return 0;
    return f.own_keys != nullptr ? f.keys[0][g] : others[g * kGroupWords + kSlotWord[0]];
}

__device__ inline void merge_group(const Fragment& f, const u64* others, u64 g, u64 known) {
    if (known == 0) return;
    u64* own = own_group(f, g, known);
    if (own != nullptr) add_group(own, others + g * kGroupWords);
}

extern "C" __global__ void __launch_bounds__(kThreads) fragment(const __grid_constant__ Fragment f) {
    const u64* others = reinterpret_cast<const u64*>(f.words[0]);
    for (u64 tile = blockIdx.x; tile < f.tiles; tile += gridDim.x) {
        const u64 first = tile * kGroupsOfThread * kThreads + threadIdx.x;
        if constexpr (kIsWideGroup) {
#pragma unroll 1
            for (u32 i = 0; i < kGroupsOfThread; i++) {
                const u64 g = first + i * kThreads;
                merge_group(f, others, g, known_of(f, others, g));
            }
            // Behind the tile, a look takes no register.
            if (must_end(f)) return;
            continue;
        }
        // All are read before the first is added, so that many reads of the other device's memory are in flight.
        u64 known[kGroupsOfThread];
#pragma unroll
        for (u32 i = 0; i < kGroupsOfThread; i++) known[i] = known_of(f, others, first + i * kThreads);
#pragma unroll
        for (u32 i = 0; i < kGroupsOfThread; i++) merge_group(f, others, first + i * kThreads, known[i]);
        if (must_end(f)) return;
    }
}
