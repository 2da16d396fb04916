// Divides the rows of a side into partitions by the upper bits of their keys' hashes, run by run, and joins partitions:
// the rows of one are a slice of each run.
#include "linear.cuh"

// Returns the partition of a key.
__device__ inline u32 partition_of(u64 key, u32 bits) {
    // With 0 bits, one shift would be by 64.
    return static_cast<u32>(hash_of(key) >> 1 >> (63 - bits));
}

// Adds the number of rows of each partition of a run to its slice.
template <class Word>
__global__ void __launch_bounds__(kThreads) count_rows(const __grid_constant__ Dividing a) {
    __shared__ u32 counts[kPartitionsMax];
    const u32 partitions = 1u << a.bits;
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) counts[p] = 0;
    __syncthreads();
    const Word* keys = reinterpret_cast<const Word*>(a.rows.keys);
    for (u64 row = this_thread(); row < a.rows.count; row += threads())
        atomicAdd(&counts[partition_of(keys[row], a.bits)], 1u);
    __syncthreads();
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x)
        if (counts[p] != 0) atomicAdd(&a.slices[p].count, counts[p]);
}

// Returns the rows for which a slice has room: its payloads are that many values behind its keys.
__device__ inline u32 room_of(u32 count) { return (count + kSliceRows - 1) / kSliceRows * kSliceRows; }

// Gives each slice of a run its place behind the one before. One block.
template <class Word>
__global__ void __launch_bounds__(kThreads) place_slices(const __grid_constant__ Dividing a) {
    __shared__ u32 begins[kPartitionsMax];
    const u32 partitions = 1u << a.bits;
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) begins[p] = a.slices[p].count;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 end = 0;
        for (u32 p = 0; p < partitions; p++) {
            const u32 count = begins[p];
            begins[p] = end;
            end += 2 * room_of(count);
        }
    }
    __syncthreads();
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) {
        a.slices[p].begin = begins[p];
        a.next[p] = begins[p];
    }
}

// Copies the rows of a run to their slices. A block copies as many rows at once as its threads hold: it counts them by
// partition, takes room for all rows of a partition together, and writes them side by side.
template <class Word>
__global__ void __launch_bounds__(kThreads) copy_rows(const __grid_constant__ Dividing a) {
    __shared__ u32 counts[kPartitionsMax], begins[kPartitionsMax], rooms[kPartitionsMax];
    const u32 partitions = 1u << a.bits;
    const Word* keys = reinterpret_cast<const Word*>(a.rows.keys);
    const Word* payloads = reinterpret_cast<const Word*>(a.rows.payloads);
    Word* to = reinterpret_cast<Word*>(a.to);
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) rooms[p] = room_of(a.slices[p].count);
    const u64 rows_of_block = blockDim.x * kRowsHeld;
    for (u64 first = blockIdx.x * rows_of_block; first < a.rows.count; first += gridDim.x * rows_of_block) {
        for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) counts[p] = 0;
        __syncthreads();
        Word key[kRowsHeld], payload[kRowsHeld];
        u32 partition[kRowsHeld], place[kRowsHeld];
#pragma unroll
        for (u32 i = 0; i < kRowsHeld; i++) {
            const u64 row = first + i * blockDim.x + threadIdx.x;
            if (row >= a.rows.count) continue;
            key[i] = keys[row];
            payload[i] = payloads[row];
        }
#pragma unroll
        for (u32 i = 0; i < kRowsHeld; i++) {
            if (first + i * blockDim.x + threadIdx.x >= a.rows.count) continue;
            partition[i] = partition_of(key[i], a.bits);
            place[i] = atomicAdd(&counts[partition[i]], 1u);
        }
        __syncthreads();
        for (u32 p = threadIdx.x; p < partitions; p += blockDim.x)
            if (counts[p] != 0) begins[p] = atomicAdd(&a.next[p], counts[p]);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < kRowsHeld; i++) {
            if (first + i * blockDim.x + threadIdx.x >= a.rows.count) continue;
            const u32 at = begins[partition[i]] + place[i];
            to[at] = key[i];
            to[at + rooms[partition[i]]] = payload[i];
        }
        // The numbers are zeroed for the next rows only after all threads have used them.
        __syncthreads();
    }
}

// Blocks of a multiprocessor. With its own choice the compiler spills 8 bytes of `probe_partition` for sm_80.
constexpr u32 kBlocks = 3;

// Calls `work` with this thread's rows of a partition. Several blocks share the slice of a run.
template <class Work>
__device__ inline void each_of_partition(const PartitionRows& rows, Work& work) {
    using Word = typename Work::Word;
    const u64 units = static_cast<u64>(rows.run_count) * rows.blocks_of_run;
    for (u64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Run run = rows.runs[unit / rows.blocks_of_run];
        const Slice slice = run.slices[rows.partition];
        const u8* keys = run.rows + slice.begin * static_cast<u64>(sizeof(Word));
        const u8* payloads = keys + room_of(slice.count) * static_cast<u64>(sizeof(Word));
        const u64 first = unit % rows.blocks_of_run * blockDim.x + threadIdx.x;
        const u64 stride = rows.blocks_of_run * static_cast<u64>(blockDim.x);
        Columns<Word>({keys, payloads, slice.count}).each(first, stride, work);
    }
}

// Inserts the rows of a partition. Those that cannot be inserted set a bit of `failures`.
template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocks)
    insert_partition(const __grid_constant__ InsertingPartition a) {
    typename Table::Insert work(a.index, a.outcome);
    each_of_partition(a.rows, work);
    work.inserted.add_to(a.outcome);
}

// Adds the matches of the rows of a partition to `totals`. The kernel reads what the inserts did, for which the host
// has not waited.
template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocks)
    probe_partition(const __grid_constant__ ProbingPartition a) {
    if (has_failed(a.outcome)) return;
    HashIndexRef index = a.index;
    index.is_unique = a.outcome->duplicates == 0;
    index.aside_count = a.outcome->aside_count;
    index.aside_sum = a.outcome->aside_sum;
    typename Table::Probe work(index);
    each_of_partition(a.rows, work);
    work.found.add_to(a.totals);
}
