// Reads row groups: where their columns are, which rows qualify, and how sums leave a block.
#pragma once
#include "arguments.cuh"
#include "device.cuh"

// Four values of one column.
struct __align__(16) Values {
    u32 value[4];
};

constexpr u32 kColumnVectors = kGroupRows / 4;
constexpr u32 kGroupVectors = kColumns * kColumnVectors;

// Reads 16 bytes that no thread reads again, past the L1 cache.
__device__ inline Values load_once(const Values* from) {
    Values v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.value[0]), "=r"(v.value[1]), "=r"(v.value[2]), "=r"(v.value[3])
                 : "l"(from));
    return v;
}

// Returns what four rows add to the answer. The sum of four products fits in 32 bits.
__device__ inline u32 products(const Values& ship_date, const Values& discount, const Values& quantity,
                               const Values& price) {
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        // Differences wrap, so one comparison checks both ends of a range.
        bool is_of_year = ship_date.value[i] - kShipBegin < kShipDays;
        bool is_discounted = discount.value[i] - kDiscountMin <= kDiscountMax - kDiscountMin;
        bool is_small = static_cast<int>(quantity.value[i]) < kQuantityEnd;
        u32 product = price.value[i] * discount.value[i];
        sum += is_of_year & is_discounted & is_small ? product : 0;
    }
    return sum;
}

// Adds the sums of all threads of the block to a number in global memory. Every thread of the block must call this.
__device__ inline void add_of_block(u64* total, u64 sum) {
    __shared__ u64 sums[kLanes];
    sum = warp_sum(sum);
    if (this_lane() == 0) sums[this_warp()] = sum;
    __syncthreads();
    if (this_warp() > 0) return;
    sum = this_lane() < blockDim.x / kLanes ? sums[this_lane()] : 0;
    sum = warp_sum(sum);
    if (this_lane() == 0 && sum > 0) atomicAdd(total, sum);
}
