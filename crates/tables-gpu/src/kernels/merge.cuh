// Adds the totals of groups that another device has added, whose memory this one reads, to its own totals of them.
#pragma once
#include "totals.cuh"

// Groups of a thread in a tile, as in `selection.rs`.
constexpr u32 kGroupsOfThread = 8;

// Returns the place for the totals of group `g` of the other device; null if this one has no room.
__device__ inline u64* own_group(const Fragment& f, u64 g) {
    u32 group = static_cast<u32>(g);
    if (f.own_keys != nullptr) {
        group = put_key(f.own_keys, f.own_key_bits, f.keys[0][g] - 1, f.flag);
    } else if (f.seen != nullptr) {
        // A row of a list, which is a group of its own.
        group = atomicAdd(f.seen, 1u);
        if (group >= f.groups) *f.flag = 2;
    }
    return group < f.groups ? f.totals + static_cast<u64>(group) * kGroupWords : nullptr;
}

// No other thread changes the totals of the group.
__device__ inline void add_group(u64* own, const u64* other) {
#pragma unroll
    for (u32 s = 0; s < kSlots; s++) {
        u64* total = own + kSlotWord[s];
        const u64 value = other[kSlotWord[s]];
        const u64 before = *total;
        *total = kIsMaximum[s] ? max(before, value) : before + value;
        if (kIsWide[s] && !kIsMaximum[s]) total[1] += other[kSlotWord[s] + 1] + (before + value < before ? 1 : 0);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) fragment(const __grid_constant__ Fragment f) {
    const u64* others = reinterpret_cast<const u64*>(f.words[0]);
    for (u64 tile = blockIdx.x; tile < f.tiles; tile += gridDim.x) {
#pragma unroll
        for (u32 i = 0; i < kGroupsOfThread; i++) {
            const u64 g = (tile * kGroupsOfThread + i) * kThreads + threadIdx.x;
            if (g >= f.groups) continue;
            const u64* other = others + g * kGroupWords;
            // The first total is the number of rows.
            if (other[kSlotWord[0]] == 0) continue;
            u64* own = own_group(f, g);
            if (own != nullptr) add_group(own, other);
        }
    }
}
