// Reads of memory that a kernel can access: sequential, random and dependent. Each kernel sums what it reads, so that
// the host can check that every read took place.

#include "device.cuh"
#include "bulk.cuh"
#include "threads.cuh"
#include "arguments.cuh"

__device__ inline u64 sum_of(uint4 v) { return static_cast<u64>(v.x) + v.y + v.z + v.w; }

// Writes its index to each word.
extern "C" __global__ void fill_words(const __grid_constant__ Reading a) {
    for (u64 i = this_thread(); i < a.bytes / sizeof(u32); i += threads()) a.words[i] = static_cast<u32>(i);
}

// Writes to the first word of each line the line that follows it in a cycle of all lines; as `next_line` in
// `pattern.rs`.
extern "C" __global__ void fill_cycle(const __grid_constant__ Reading a) {
    u64 lines = a.bytes / kLineBytes;
    for (u64 i = this_thread(); i < lines; i += threads())
        a.words[i * (kLineBytes / sizeof(u32))] = static_cast<u32>((i * kCycleFactor + kCycleAddend) & (lines - 1));
}

// Reads all bytes, 16 at a time; each thread has kAhead reads in flight.
extern "C" __global__ void read_plain(const __grid_constant__ Reading a) {
    constexpr u32 kAhead = 8;
    auto from = reinterpret_cast<const uint4*>(a.words);
    u64 count = a.bytes / sizeof(uint4), sum = 0, i = this_thread();
    for (; i + (kAhead - 1) * threads() < count; i += kAhead * threads()) {
        uint4 values[kAhead];
#pragma unroll
        for (u32 k = 0; k < kAhead; k++) values[k] = read_once(from + i + k * threads());
#pragma unroll
        for (u32 k = 0; k < kAhead; k++) sum += sum_of(values[k]);
    }
    for (; i < count; i += threads()) sum += sum_of(read_once(from + i));
    add(sum, a.sum);
}

#if __CUDA_ARCH__ >= 900
// Reads all bytes by the bulk copy engine: one thread of a block fills stages of shared memory, and all threads sum.
extern "C" __global__ void read_bulk(const __grid_constant__ Reading a) {
    extern __shared__ __align__(128) u8 stages[];
    __shared__ u64 arrived[kBulkStages];
    BulkPieces pieces{reinterpret_cast<const u8*>(a.words), a.bytes, a.piece_bytes};
    if (threadIdx.x == 0) {
        bulk_prepare(arrived);
        for (u32 s = 0; s < kBulkStages; s++) pieces.load(s, stages, arrived);
    }
    __syncthreads();
    u64 sum = 0;
    u32 round = 0;
    for (u64 piece = blockIdx.x; pieces.bytes_of(piece) > 0; piece += gridDim.x, round++) {
        u32 stage = round % kBulkStages;
        bulk_wait(&arrived[stage], round / kBulkStages % 2);
        auto values = reinterpret_cast<const uint4*>(stages + stage * a.piece_bytes);
        for (u32 i = threadIdx.x; i < pieces.bytes_of(piece) / sizeof(uint4); i += blockDim.x) sum += sum_of(values[i]);
        __syncthreads();
        if (threadIdx.x == 0) pieces.load(round + kBulkStages, stages, arrived);
    }
    add(sum, a.sum);
}
#endif

// Returns the element of a random read; as `element_of` in `pattern.rs`.
__device__ inline u64 element_of(u64 access, u64 elements) {
    u64 h = (access + 1) * 0x9E3779B97F4A7C15ull;
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ull;
    return (h ^ (h >> 32)) & (elements - 1);
}

template <typename T>
__device__ inline T load(const T* from) { return __ldg(from); }
__device__ inline u64 sum_of(u32 v) { return v; }
__device__ inline u64 sum_of(uint2 v) { return static_cast<u64>(v.x) + v.y; }

// Reads `accesses` random elements of kBytes bytes; kLanesEach lanes read one element together, a T each.
template <typename T, u32 kLanesEach>
__device__ inline void random_reads(const Reading& a) {
    constexpr u32 kAhead = 4;
    auto from = reinterpret_cast<const T*>(a.words);
    u64 elements = a.bytes / (sizeof(T) * kLanesEach);
    u64 lane = this_thread() % kLanesEach, step = threads() / kLanesEach, sum = 0;
    for (u64 i = this_thread() / kLanesEach; i < a.accesses; i += kAhead * step) {
        T values[kAhead] = {};
#pragma unroll
        for (u32 k = 0; k < kAhead; k++)
            if (i + k * step < a.accesses) values[k] = load(from + element_of(i + k * step, elements) * kLanesEach + lane);
#pragma unroll
        for (u32 k = 0; k < kAhead; k++) sum += sum_of(values[k]);
    }
    add(sum, a.sum);
}

template <u32 kBytes>
__global__ void read_random(const __grid_constant__ Reading a) {
    if constexpr (kBytes == 4) random_reads<u32, 1>(a);
    else if constexpr (kBytes == 8) random_reads<uint2, 1>(a);
    else random_reads<uint4, kBytes / sizeof(uint4)>(a);
}

// Follows the cycle of lines with one thread: each read needs the result of the one before. Adds the last line.
extern "C" __global__ void read_dependent(const __grid_constant__ Reading a) {
    u64 line = a.first_line;
    for (u64 i = 0; i < a.accesses; i++)
        line = *static_cast<const volatile u32*>(a.words + line * (kLineBytes / sizeof(u32)));
    *a.sum += line;
}
