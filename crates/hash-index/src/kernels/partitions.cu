// Divides the rows of a side into partitions by the upper bits of their keys' hashes, run by run, and joins partitions:
// the rows of one are a slice of each run.
#include "linear.cuh"
#include "sieve.cuh"

// Returns the partition of a key.
template <class Key>
__device__ inline u32 partition_of(const Key& key, u32 bits) {
    // With 0 bits, one shift would be by 64.
    return static_cast<u32>(hash_of(key) >> 1 >> (63 - bits));
}

// Returns whether a sieve kept a row; without one, all rows are divided.
template <class Index> __device__ inline bool is_kept(const u32* kept, Index row) {
    return kept == nullptr || (kept[row / kLanes] >> (row % kLanes) & 1) != 0;
}

// Adds the number of rows of each partition of a run to its slice.
template <class R>
__global__ void __launch_bounds__(kThreads) count_rows(const __grid_constant__ Dividing a) {
    __shared__ u32 counts[kPartitionsMax];
    const u32 partitions = 1u << a.bits;
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) counts[p] = 0;
    __syncthreads();
    const auto* keys = reinterpret_cast<const typename R::Key*>(a.rows.keys);
    for (u64 row = this_thread(); row < a.rows.count; row += threads())
        if (is_kept(a.kept, row)) atomicAdd(&counts[partition_of(keys[row], a.bits)], 1u);
    __syncthreads();
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x)
        if (counts[p] != 0) atomicAdd(&a.slices[p].count, counts[p]);
}

// Returns the rows for which a slice has room: its payloads begin behind that many keys.
__device__ inline u32 room_of(u32 count) { return (count + kSliceRows - 1) / kSliceRows * kSliceRows; }

// Gives each slice of a run its place behind the one before. One block.
template <class R>
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
            end += room_of(count);
        }
    }
    __syncthreads();
    for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) {
        a.slices[p].begin = begins[p];
        a.next[p] = begins[p];
    }
}

// The rows of a tile, sorted by partition.
extern __shared__ __align__(16) u8 tile[];

// Calls `work` with the index of each of `count` rows and what `load` returns for it. kAhead rows of a thread are
// loaded ahead.
template <u32 kAhead, class Load, class Work>
__device__ inline void each_of_tile(u32 count, Load load, Work work) {
    for (u32 first = threadIdx.x; first < count; first += kAhead * blockDim.x) {
        decltype(load(0u)) loaded[kAhead];
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) {
            const u32 row = first + i * blockDim.x;
            if (row < count) loaded[i] = load(row);
        }
#pragma unroll
        for (u32 i = 0; i < kAhead; i++) {
            const u32 row = first + i * blockDim.x;
            if (row < count) work(row, loaded[i]);
        }
    }
}

// A row that a thread holds.
template <class R>
struct Held {
    typename R::Key key;
    typename R::Payload payload;
};

// Where a slice is written. Rows are counted from the beginning of the run; the columns are moved back by the rows
// before the slice.
template <class R>
struct SliceColumns {
    using Key = typename R::Key;
    using Payload = typename R::Payload;

    Key* keys;
    Payload* payloads;

    __device__ SliceColumns(u8* run, const Slice& slice)
        : keys(reinterpret_cast<Key*>(run + slice.begin * static_cast<u64>(sizeof(Payload)))),
          payloads(reinterpret_cast<Payload*>(
              run + (slice.begin + room_of(slice.count)) * static_cast<u64>(sizeof(Key)))) {}

    __device__ void put(u32 row, const Held<R>& held) const {
        keys[row] = held.key;
        payloads[row] = held.payload;
    }
};

// Copies the kept rows of a run to their slices. A block sorts a tile of rows by partition in shared memory, and
// takes room for all rows of a partition together. So its threads write rows side by side.
template <class R>
__global__ void __launch_bounds__(kThreadsOfTile) copy_rows(const __grid_constant__ Dividing a) {
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    // Of each partition: the number of its rows, then its next place in the tile; and the distance from there to the
    // place of the row in the run.
    __shared__ u32 places[kPartitionsMax], distances[kPartitionsMax];
    __shared__ u32 end;
    const u32 partitions = 1u << a.bits;
    constexpr u32 kRowsOfThread = kTileBytesOfThread / R::kBytes;
    constexpr u32 kAhead = kRowsHeld < kRowsOfThread ? kRowsHeld : kRowsOfThread;
    const u32 tile_rows = blockDim.x * kRowsOfThread;
    Key* const sorted_keys = reinterpret_cast<Key*>(tile);
    Payload* const sorted_payloads = reinterpret_cast<Payload*>(sorted_keys + tile_rows);
    for (u64 first = blockIdx.x * static_cast<u64>(tile_rows); first < a.rows.count;
         first += gridDim.x * static_cast<u64>(tile_rows)) {
        const Key* keys = reinterpret_cast<const Key*>(a.rows.keys) + first;
        const Payload* payloads = reinterpret_cast<const Payload*>(a.rows.payloads) + first;
        const u32 count = static_cast<u32>(min(static_cast<u64>(tile_rows), a.rows.count - first));
        // The bits of a tile begin with a whole word. Indexes of 32 bits take fewer registers.
        const u32* const kept = a.kept == nullptr ? nullptr : a.kept + first / kLanes;
        for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) places[p] = 0;
        if (threadIdx.x == 0) end = 0;
        __syncthreads();
        const auto key_of = [&](u32 row) { return keys[row]; };
        each_of_tile<kAhead>(count, key_of, [&](u32 index, const Key& key) {
            if (is_kept(kept, index)) atomicAdd(&places[partition_of(key, a.bits)], 1u);
        });
        __syncthreads();
        for (u32 p = threadIdx.x; p < partitions; p += blockDim.x) {
            const u32 rows = places[p];
            if (rows == 0) continue;
            places[p] = atomicAdd(&end, rows);
            distances[p] = atomicAdd(&a.next[p], rows) - places[p];
        }
        __syncthreads();
        const auto row_of = [&](u32 row) { return Held<R>{keys[row], payloads[row]}; };
        each_of_tile<kAhead>(count, row_of, [&](u32 index, const Held<R>& row) {
            if (!is_kept(kept, index)) return;
            const u32 place = atomicAdd(&places[partition_of(row.key, a.bits)], 1u);
            sorted_keys[place] = row.key;
            sorted_payloads[place] = row.payload;
        });
        __syncthreads();
        const auto sorted_of = [&](u32 place) { return Held<R>{sorted_keys[place], sorted_payloads[place]}; };
        each_of_tile<kAhead>(end, sorted_of, [&](u32 place, const Held<R>& row) {
            const u32 p = partition_of(row.key, a.bits);
            SliceColumns<R>(a.to, a.slices[p]).put(place + distances[p], row);
        });
        // The next tile takes the place of this one only after all threads have read it.
        __syncthreads();
    }
}

// Copies the used bytes of a run to pinned host memory: they end with its last slice, `last`.
__global__ void __launch_bounds__(kThreads) write_run(const __grid_constant__ WritingRun a) {
    const Slice last = *a.last;
    const u64 rows = last.begin + static_cast<u64>(room_of(last.count));
    const u64 vectors = rows * a.row_bytes / sizeof(uint4);
    const uint4* from = reinterpret_cast<const uint4*>(a.from);
    uint4* to = reinterpret_cast<uint4*>(a.to);
    for (u64 vector = this_thread(); vector < vectors; vector += threads()) to[vector] = from[vector];
}

// Blocks of a multiprocessor. With its own choice the compiler spills 8 bytes of `probe_partition` for sm_80. With
// three blocks it spills composite keys.
template <class Table>
constexpr u32 kBlocks = sizeof(typename Table::Key) <= sizeof(u64) ? 3 : 2;

// Calls `work` with this thread's rows of a partition. Several blocks share the slice of a run.
template <class Work>
__device__ inline void each_of_partition(const PartitionRows& rows, Work& work) {
    using Row = typename Work::Row;
    const u64 units = static_cast<u64>(rows.run_count) * rows.blocks_of_run;
    for (u64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Run run = rows.runs[unit / rows.blocks_of_run];
        const Slice slice = run.slices[rows.partition];
        const u8* keys = run.rows + slice.begin * static_cast<u64>(Row::kBytes);
        const u8* payloads = keys + room_of(slice.count) * static_cast<u64>(sizeof(typename Row::Key));
        const u64 first = unit % rows.blocks_of_run * blockDim.x + threadIdx.x;
        const u64 stride = rows.blocks_of_run * static_cast<u64>(blockDim.x);
        Columns<Row>({keys, payloads, slice.count}).each(first, stride, work);
    }
}

// Inserts the rows of a partition. Those that cannot be inserted set a bit of `failures`.
template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocks<Table>)
    insert_partition(const __grid_constant__ InsertingPartition a) {
    typename Table::Insert work(a.index, a.outcome);
    each_of_partition(a.rows, work);
    work.inserted.add_to(a.outcome);
}

// Adds the matches of the rows of a partition to `totals`. The kernel reads what the inserts did, for which the host
// has not waited.
template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocks<Table>)
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
