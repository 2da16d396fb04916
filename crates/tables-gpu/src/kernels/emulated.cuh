// The words of CUDA for a compiler of C++: a block has one thread, which is one warp. `main` runs a kernel over an image
// of memory in a file, at the address that the pointers in the image have.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(bytes)
#define __launch_bounds__(...)

struct Index {
    u32 x;
};
inline Index blockIdx, threadIdx, blockDim = {1}, gridDim;
constexpr u32 kLanes = 1;

using std::max;
using std::min;

inline u32 this_lane() { return 0; }
inline u64 warp_sum(u64 number) { return number; }
inline u64 warp_max(u64 number) { return number; }
inline void __syncthreads() {}
inline u32 __ldg(const u32* word) { return *word; }
inline u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> (shift & 31));
}
inline u64 atomicAdd(u64* to, u64 number) {
    u64 before = *to;
    *to += number;
    return before;
}
inline void atomicMax(u64* to, u64 number) { *to = max(*to, number); }
