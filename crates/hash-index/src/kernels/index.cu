// Builds and probes hash tables. The grid has as many threads as fit on the GPU; each takes rows until there are none.
#include "bucketed.cuh"
#include "linear.cuh"
#include "own.cuh"
#include "perfect.cuh"

// Inserts rows. Those that cannot be inserted set a bit of `failures`.
template <class Table>
__global__ void __launch_bounds__(kThreads, Table::kBlocks) insert(const __grid_constant__ Inserting a) {
    typename Table::Insert work(a.index, a.outcome);
    Columns<typename Table::Row>(a.rows).each(this_thread(), threads(), work);
    work.inserted.add_to(a.outcome);
}

// Adds the matches of rows to `totals`.
template <class Table>
__global__ void __launch_bounds__(kThreads, Table::kBlocks) probe(const __grid_constant__ Probing a) {
    typename Table::Probe work(a.index);
    Columns<typename Table::Row>(a.rows).each(this_thread(), threads(), work);
    work.found.add_to(a.totals);
}

// As `insert`, for an interleaved table: inserts this GPU's own rows.
template <class R>
__global__ void __launch_bounds__(kThreads) insert_own(const __grid_constant__ Inserting a) {
    typename InterleavedOwn<R>::Insert work(a.index, a.outcome);
    each_own(a.rows, a.index, work);
    work.inserted.add_to(a.outcome);
}

// As `probe`, for an interleaved table: adds the matches of this GPU's own rows.
template <class R>
__global__ void __launch_bounds__(kThreads) probe_own(const __grid_constant__ Probing a) {
    typename InterleavedOwn<R>::Probe work(a.index);
    each_own(a.rows, a.index, work);
    work.found.add_to(a.totals);
}

// Empties the slots of an interleaved table that are in this GPU's own memory. Several blocks share a chunk.
__global__ void __launch_bounds__(kThreads) empty_slots(const __grid_constant__ Emptying a) {
    const uint4 empty = {~0u, ~0u, ~0u, ~0u};
    const u64 stride = static_cast<u64>(a.blocks_of_chunk) * blockDim.x * sizeof empty;
    for (u64 unit = blockIdx.x;; unit += gridDim.x) {
        const u64 begin = (unit / a.blocks_of_chunk * a.gpus + a.gpu) * a.chunk_bytes;
        if (begin >= a.bytes) return;
        const u64 end = min(begin + a.chunk_bytes, a.bytes);
        const u64 first = begin + (unit % a.blocks_of_chunk * blockDim.x + threadIdx.x) * sizeof empty;
        for (u64 at = first; at < end; at += stride) *reinterpret_cast<uint4*>(a.slots + at) = empty;
    }
}
