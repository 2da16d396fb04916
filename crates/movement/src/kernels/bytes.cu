// Copies between memories that a kernel can access, and the checksum that verifies them.

#include "device.cuh"
#include "bulk.cuh"
#include "threads.cuh"
#include "arguments.cuh"

// Copies the bytes of `a` from the byte `done` on, one byte a thread.
__device__ inline void copy_rest(const Copying& a, u64 done) {
    for (u64 i = done + this_thread(); i < a.bytes; i += threads()) a.to[i] = a.from[i];
}

__device__ inline bool is_aligned(const Copying& a) {
    return (reinterpret_cast<u64>(a.from) | reinterpret_cast<u64>(a.to)) % sizeof(uint4) == 0;
}

// Copies by loads and stores of 16 bytes, of which each thread has kAhead in flight.
extern "C" __global__ void copy_plain(const __grid_constant__ Copying a) {
    constexpr u32 kAhead = 4;
    u64 count = is_aligned(a) ? a.bytes / sizeof(uint4) : 0;
    auto from = reinterpret_cast<const uint4*>(a.from);
    auto to = reinterpret_cast<uint4*>(a.to);
    u64 i = this_thread();
    for (; i + (kAhead - 1) * threads() < count; i += kAhead * threads()) {
        uint4 values[kAhead];
#pragma unroll
        for (u32 k = 0; k < kAhead; k++) values[k] = read_once(from + i + k * threads());
#pragma unroll
        for (u32 k = 0; k < kAhead; k++) to[i + k * threads()] = values[k];
    }
    for (; i < count; i += threads()) to[i] = read_once(from + i);
    copy_rest(a, count * sizeof(uint4));
}

#if __CUDA_ARCH__ >= 900
// Copies by the bulk copy engine: one thread of a block moves pieces through kBulkStages stages of shared memory.
// Both addresses must be multiples of 16.
extern "C" __global__ void copy_bulk(const __grid_constant__ Copying a) {
    extern __shared__ __align__(128) u8 stages[];
    __shared__ u64 arrived[kBulkStages];
    u64 whole = a.bytes / 16 * 16;
    if (threadIdx.x == 0) {
        bulk_prepare(arrived);
        BulkPieces pieces{a.from, whole, a.piece_bytes};
        for (u32 s = 0; s < kBulkStages - 1; s++) pieces.load(s, stages, arrived);
        u32 round = 0;
        for (u64 piece = blockIdx.x; pieces.bytes_of(piece) > 0; piece += gridDim.x, round++) {
            u32 stage = round % kBulkStages;
            bulk_wait(&arrived[stage], round / kBulkStages % 2);
            bulk_store(a.to + piece * a.piece_bytes, stages + stage * a.piece_bytes, pieces.bytes_of(piece));
            // The stage of the previous piece is free once its store has read it.
            bulk_wait_stores_read<1>();
            pieces.load(round + kBulkStages - 1, stages, arrived);
        }
        bulk_wait_stores();
    }
    copy_rest(a, whole);
}
#endif

// Mixes a word with its index; as `mix` in `checksum.rs`.
__device__ inline u64 mix(u64 word, u64 index) {
    u64 mixed = word + (index + 1) * 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93ull;
    return mixed ^ (mixed >> 32);
}

// Adds the sum of the mixed words of device memory to `sum`. The address must be a multiple of 8.
extern "C" __global__ void checksum(const __grid_constant__ Summing a) {
    u64 sum = 0;
    u64 words = a.bytes / sizeof(u64);
    auto from = reinterpret_cast<const u64*>(a.from);
    for (u64 i = this_thread(); i < words; i += threads()) sum += mix(from[i], a.first + i);
    if (this_thread() == 0 && words * sizeof(u64) < a.bytes) {
        u64 last = 0;
        for (u64 i = words * sizeof(u64); i < a.bytes; i++) last |= static_cast<u64>(a.from[i]) << i % sizeof(u64) * 8;
        sum += mix(last, a.first + words);
    }
    add(sum, a.sum);
}
