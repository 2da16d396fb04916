// Query 6 with the bulk copy engine: one thread of a block queues copies of pieces of a row group into shared memory,
// all threads read the pieces that have arrived. More bytes are in flight than registers could hold.
#include "groups.cuh"

// A piece has one vector of each column for each thread.
constexpr u32 kPieceColumnBytes = kThreads * 16;
constexpr u32 kPieceBytes = kColumns * kPieceColumnBytes;
constexpr u32 kPiecesPerGroup = kColumnVectors / kThreads;
static_assert(kPiecesPerGroup * kThreads == kColumnVectors, "a row group consists of whole pieces");

__device__ inline u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// The stages of a block: each has room for one piece, and a barrier that completes when the piece has arrived.
struct Stages {
    u32 memory;
    u32 barriers;

    __device__ u32 piece(u32 stage) const { return memory + stage * kPieceBytes; }
    __device__ u32 barrier(u32 stage) const { return barriers + stage * 8; }

    // Called by one thread.
    __device__ void init() const {
        for (u32 stage = 0; stage < kStages; stage++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(stage)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    // Queues the copies of a piece's columns. Called by one thread.
    __device__ void queue(u32 stage, const u8* groups, u64 piece_index) const {
        const u8* from = groups + piece_index / kPiecesPerGroup * (kGroupVectors * 16ull) +
                         piece_index % kPiecesPerGroup * kPieceColumnBytes;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(stage)), "n"(kPieceBytes)
                     : "memory");
        for (u32 c = 0; c < kColumns; c++)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             piece(stage) + c * kPieceColumnBytes),
                         "l"(from + c * (kColumnVectors * 16ull)), "n"(kPieceColumnBytes), "r"(barrier(stage))
                         : "memory");
    }

    // Waits until the copies of a round have arrived; rounds alternate in parity.
    __device__ void wait(u32 stage, u32 parity) const {
        u32 done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barrier(stage)), "r"(parity)
                         : "memory");
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) query_bulk(const __grid_constant__ Groups groups) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(8) u64 barriers[kStages];
    const u8* from = reinterpret_cast<const u8*>(groups.words);
    Stages stages = {shared_address(memory), shared_address(barriers)};
    const u64 pieces = groups.count * kPiecesPerGroup;
    if (threadIdx.x == 0) {
        stages.init();
        for (u32 stage = 0; stage < kStages; stage++) {
            u64 piece = blockIdx.x + static_cast<u64>(stage) * gridDim.x;
            if (piece < pieces) stages.queue(stage, from, piece);
        }
    }
    __syncthreads();
    u64 sum = 0;
    u32 stage = 0, parity = 0;
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        stages.wait(stage, parity);
        const Values* rows = reinterpret_cast<const Values*>(memory + stage * kPieceBytes) + threadIdx.x;
        sum += products(rows[0], rows[kThreads], rows[2 * kThreads], rows[3 * kThreads]);
        // All threads have read the stage before it is filled again.
        __syncthreads();
        u64 next = piece + static_cast<u64>(kStages) * gridDim.x;
        if (threadIdx.x == 0 && next < pieces) {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            stages.queue(stage, from, next);
        }
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
    add_of_block(groups.total, sum);
}
