// The words of CUDA for a compiler of C++. Each thread of a block is a fibre, which runs until it waits for the others.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

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
inline Index blockIdx, threadIdx, blockDim, gridDim;
constexpr u32 kLanes = 32;

using std::max;
using std::min;

// A number of each thread, for those of its warp.
extern u64 shown[1024];
// They wait for all threads of the block, and for those of the warp.
void __syncthreads();
void __syncwarp();
// No other thread runs meanwhile.
inline void __threadfence() {}
// Returns whether any thread of the block has another number than 0.
inline int __syncthreads_or(int number) {
    shown[threadIdx.x] = number != 0;
    __syncthreads();
    int any = 0;
    for (u32 t = 0; t < blockDim.x; t++) any |= shown[t] != 0;
    __syncthreads();
    return any;
}
// What a kernel is to `emulated_main.cuh`, which is compiled once for all kernels.
struct Arguments {
    void* address;
    size_t bytes;
};
Arguments arguments_of_kernel();
void run_kernel();

inline u32 this_lane() { return threadIdx.x % kLanes; }
inline u32 this_warp() { return threadIdx.x / kLanes; }
// Returns what a function makes of the numbers of a warp.
template <class Joined> u64 warp_joined(u64 number, Joined joined) {
    shown[threadIdx.x] = number;
    __syncwarp();
    const u32 first = threadIdx.x / kLanes * kLanes;
    for (u32 t = first; t < min(first + kLanes, blockDim.x); t++)
        if (t != threadIdx.x) number = joined(number, shown[t]);
    __syncwarp();
    return number;
}
// Returns a mask whose bit `lane` is that lane's flag.
inline u32 ballot(bool flag) {
    const u64 own = static_cast<u64>(flag) << this_lane();
    return static_cast<u32>(warp_joined(own, [](u64 a, u64 b) { return a | b; }));
}
inline u64 warp_sum(u64 number) {
    return warp_joined(number, [](u64 a, u64 b) { return a + b; });
}
inline u64 warp_max(u64 number) {
    return warp_joined(number, [](u64 a, u64 b) { return max(a, b); });
}
// A word that is not wanted is never read here, so that a read of one ends the program.
template <class Word> u32 read_word(const Word* word, bool is_wanted) { return is_wanted ? *word : 0; }
inline u32 read_word_once(const u32* word, bool is_wanted) { return read_word(word, is_wanted); }
inline void prefetch_line(const void* line) { static_cast<void>(*static_cast<const volatile u32*>(line)); }
inline u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> (shift & 31));
}
template <class Number> Number atomicCAS(Number* to, Number expected, Number number) {
    Number before = *to;
    if (before == expected) *to = number;
    return before;
}
inline int __clzll(u64 number) { return number == 0 ? 64 : __builtin_clzll(number); }
inline int __popc(u32 number) { return __builtin_popcount(number); }
inline u32 place_in(u32 ballot, u32 lane) { return __popc(ballot & ((1u << lane) - 1)); }
template <class Number> Number atomicAdd(Number* to, Number number) {
    Number before = *to;
    *to += number;
    return before;
}
inline u32 count_one(u32* counter) { return atomicAdd(counter, 1u); }
template <class Number> Number atomicExch(Number* to, Number number) {
    Number before = *to;
    *to = number;
    return before;
}
inline double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline long long __double2ll_rn(double value) { return llrint(value); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
// The looks at the flag of the kernel after which the query is cancelled.
extern u64 looks_left;
bool is_flag(const u32* word);
inline u32 load_relaxed(const u32* word) {
    if (is_flag(word) && looks_left-- == 0) *const_cast<u32*>(word) = 8;
    return *word;
}
inline u32 atomicOr(u32* to, u32 bits) {
    u32 before = *to;
    *to |= bits;
    return before;
}
inline void atomicMax(u64* to, u64 number) { *to = max(*to, number); }
inline void atomicMax(u32* to, u32 number) { *to = max(*to, number); }
