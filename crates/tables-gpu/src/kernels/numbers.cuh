// Signed integers, and numbers of 64 bits that order as they do.
#pragma once
#include "arguments.cuh"

using i32 = int;
using i64 = long long;
using i128 = __int128;
using u128 = unsigned __int128;

__device__ inline i128 wide_constant(u64 low, u64 high) {
    return static_cast<i128>(static_cast<u128>(high) << 64 | low);
}

// A number that orders as `value` does, above 0. A total of 0 is that of no row.
__device__ inline u64 ordered(i64 value) { return static_cast<u64>(value) ^ 1ull << 63; }
__device__ inline i64 plain(u64 ordered) { return static_cast<i64>(ordered ^ 1ull << 63); }
