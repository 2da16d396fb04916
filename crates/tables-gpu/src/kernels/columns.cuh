// Reads packed columns, and adds the values of rows to totals.
#pragma once
#include "arguments.cuh"

using i32 = int;
using i64 = long long;
using i128 = __int128;

// What a tile reads: its parts of the columns, and the tables of its file.
struct Columns {
    Part part[kColumns > 0 ? kColumns : 1];
    const u32* table[kTables > 0 ? kTables : 1];
};

// Returns the packed number of a row, of at most 32 bits. The words of a part end with two that are no row's.
__device__ inline u32 read_narrow(const Part& part, u32 row) {
    u32 bit = row * part.width;
    const u32* word = part.words + bit / 32;
    return __funnelshift_r(__ldg(word), __ldg(word + 1), bit % 32) & static_cast<u32>(part.mask);
}

// Returns the packed number of a row, of 33 to 64 bits.
__device__ inline u64 read_wide(const Part& part, u32 row) {
    u32 bit = row * part.width, shift = bit % 32;
    const u32* word = part.words + bit / 32;
    u32 low = __funnelshift_r(__ldg(word), __ldg(word + 1), shift);
    u32 high = __funnelshift_r(__ldg(word + 1), __ldg(word + 2), shift);
    return (low | static_cast<u64>(high) << 32) & part.mask;
}

// Returns whether a row has a value.
__device__ inline bool has_value(const Part& part, u32 row) {
    return part.valid == nullptr || (__ldg(part.valid + row / 32) >> row % 32 & 1);
}

__device__ inline i128 wide_constant(u64 low, u64 high) {
    return static_cast<i128>(static_cast<unsigned __int128>(high) << 64 | low);
}

// Adds to a total of 128 bits in global memory.
__device__ inline void add_total(u64* total, i64 number) {
    u64 low = static_cast<u64>(number);
    u64 before = atomicAdd(total, low);
    u64 high = static_cast<u64>(number >> 63) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(total + 1, high);
}

// A number that orders as `value` does, above 0. A total of 0 is that of no row.
__device__ inline u64 ordered(i64 value) { return static_cast<u64>(value) ^ 1ull << 63; }

// Totals of a thread, for one group: in registers.
struct Registers {
    u64 slot[kSlots];

    __device__ void start(u64*) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) slot[s] = 0;
    }
    __device__ void add(u32, u32 s, i64 value) { slot[s] += static_cast<u64>(value); }
    __device__ void raise(u32, u32 s, u64 value) { slot[s] = max(slot[s], value); }

    // Adds the totals of the block to those in global memory. Every thread must call this.
    __device__ void finish(u64* totals) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) {
            u64 value = kIsMaximum[s] ? warp_max(slot[s]) : warp_sum(slot[s]);
            if (this_lane() != 0) continue;
            if (kIsMaximum[s])
                atomicMax(totals + 2 * s, value);
            else
                add_total(totals + 2 * s, static_cast<i64>(value));
        }
    }
};

// Totals of a thread, for few groups: in shared memory, where no other thread writes them.
struct Private {
    u64* slots;

    __device__ u64& at(u32 group, u32 s) { return slots[(group * kSlots + s) * blockDim.x + threadIdx.x]; }
    __device__ void start(u64*) {
        extern __shared__ __align__(16) u64 memory[];
        slots = memory;
        for (u32 i = 0; i < kGroups * kSlots; i++) at(0, i) = 0;
    }
    __device__ void add(u32 group, u32 s, i64 value) { at(group, s) += static_cast<u64>(value); }
    __device__ void raise(u32 group, u32 s, u64 value) { at(group, s) = max(at(group, s), value); }

    __device__ void finish(u64* totals) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < kGroups * kSlots; i += blockDim.x) {
            u64 value = 0;
            // Each thread begins at another place, so that they read different banks.
            for (u32 t = 0; t < blockDim.x; t++) {
                u64 one = slots[i * blockDim.x + (t + threadIdx.x) % blockDim.x];
                value = kIsMaximum[i % kSlots] ? max(value, one) : value + one;
            }
            if (value == 0) continue;
            if (kIsMaximum[i % kSlots])
                atomicMax(totals + 2 * i, value);
            else
                add_total(totals + 2 * i, static_cast<i64>(value));
        }
    }
};

// Totals of many groups: in global memory, where all threads add to them.
struct Shared {
    u64* totals;

    __device__ void start(u64* to) { totals = to; }
    __device__ u64* at(u32 group, u32 s) { return totals + 2 * (static_cast<u64>(group) * kSlots + s); }
    __device__ void add(u32 group, u32 s, i64 value) { add_total(at(group, s), value); }
    __device__ void raise(u32 group, u32 s, u64 value) { atomicMax(at(group, s), value); }
    __device__ void finish(u64*) {}
};
