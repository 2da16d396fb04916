// Bulk copies (`cp.async.bulk`, sm_90): one instruction moves kilobytes between global and shared memory, and an
// mbarrier counts the bytes that have arrived.
#pragma once

#include "device.cuh"

// Stages of shared memory of a block.
constexpr u32 kBulkStages = FOREBAY_BULK_STAGES;

#if __CUDA_ARCH__ >= 900

__device__ inline u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// Initialises the barriers of the stages. One thread calls this before it or others use them.
__device__ inline void bulk_prepare(u64* arrived) {
    for (u32 s = 0; s < kBulkStages; s++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&arrived[s])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Begins to load `bytes`, a multiple of 16, into shared memory. The barrier's phase ends when they have arrived.
__device__ inline void bulk_load(void* to, const u8* from, u32 bytes, u64* arrived) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(arrived))
                 : "memory");
}

// Waits for the end of the barrier's phase of this parity.
__device__ inline void bulk_wait(u64* arrived, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(arrived)), "r"(parity)
                     : "memory");
}

// Begins to store `bytes`, a multiple of 16, from shared memory.
__device__ inline void bulk_store(u8* to, const void* from, u32 bytes) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kLater of this thread's stores still have to read shared memory.
template <int kLater>
__device__ inline void bulk_wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLater) : "memory");
}

// Waits for all of this thread's stores.
__device__ inline void bulk_wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Pieces of memory, dealt to the blocks in turn.
struct BulkPieces {
    const u8* from;
    u64 bytes;
    u32 piece_bytes;

    __device__ u32 bytes_of(u64 piece) const {
        u64 start = piece * piece_bytes;
        if (start >= bytes) return 0;
        return static_cast<u32>(min(bytes - start, static_cast<u64>(piece_bytes)));
    }

    // Begins to load the piece of this block's round, if there is one, into the stage of that round.
    __device__ void load(u32 round, u8* stages, u64* arrived) const {
        u64 piece = blockIdx.x + round * static_cast<u64>(gridDim.x);
        u32 count = bytes_of(piece);
        u32 stage = round % kBulkStages;
        if (count > 0) bulk_load(stages + stage * piece_bytes, from + piece * piece_bytes, count, &arrived[stage]);
    }
};

#endif
