// A GPU's own rows of a join with an interleaved table: those whose search begins in its own memory.
#pragma once
#include "linear.cuh"

// The own rows that a warp has read and not worked on, in shared memory. The warp works on them when it has a vector
// for each lane, so that no lane is idle in accesses to the table. All lanes of the warp must call each function.
template <class Work>
struct OwnRows {
    using Row = typename Work::Row;
    using Key = typename Row::Key;
    using Payload = typename Row::Payload;
    // Number of rows that a lane, and a warp, reads at once. They work on as many at once.
    static constexpr u32 kRows = Columns<Row>::kPerVector, kRowsOfWarp = kLanes * kRows;
    // Room for the rows that wait, fewer than kRowsOfWarp, and for those that the warp reads.
    static constexpr u32 kRoom = 2 * kRowsOfWarp;

    // The table, which tells what slots are this GPU's own.
    const Interleaved<Row> table;
    Work& work;
    Key* keys;
    Payload* payloads;
    u32 count;

    __device__ bool is_own(Key key) const { return table.is_own(table.home(key)); }

    // Adds the own rows of a lane's vector, if it has one. Works on rows if there are enough.
    __device__ __forceinline__ void add(const Key (&key)[kRows], const Payload (&payload)[kRows], bool has_rows) {
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            const bool is_added = has_rows && is_own(key[i]);
            const u32 added = ballot(is_added);
            if (is_added) {
                const u32 place = count + place_in(added, this_lane());
                keys[place] = key[i];
                payloads[place] = payload[i];
            }
            count += __popc(added);
        }
        if (count >= kRowsOfWarp) work_on_last();
    }

    // Works on the last kRowsOfWarp rows.
    __device__ __forceinline__ void work_on_last() {
        Key key[kRows];
        Payload payload[kRows];
        count -= kRowsOfWarp;
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            const u32 place = count + i * kLanes + this_lane();
            key[i] = keys[place];
            payload[i] = payloads[place];
        }
        // The next rows take the places of these after all lanes have read them.
        __syncwarp();
        work(key, payload);
    }

    // Works on all rows that wait: fewer than kRowsOfWarp.
    __device__ void work_on_rest() {
        __syncwarp();
        for (u32 place = this_lane(); place < count; place += kLanes) {
            Key key[1] = {keys[place]};
            Payload payload[1] = {payloads[place]};
            work(key, payload);
        }
    }

    // Adds the rows of all vectors. The lanes of a warp take the same number of steps.
    __device__ __forceinline__ void add_vectors(const Columns<Row>& columns, u64 whole) {
        for (u64 first = this_thread() - this_lane(); first < whole; first += threads()) {
            const u64 vector = first + this_lane();
            const bool has_rows = vector < whole;
            Key key[kRows];
            Payload payload[kRows];
            if (has_rows) {
                load_values<kRows>(columns.keys + vector * kRows, key);
                load_values<kRows>(columns.payloads + vector * kRows, payload);
            }
            add(key, payload, has_rows);
        }
    }
};

// Calls `work` with this GPU's own rows of two columns; `index` is the table, which tells what slots are its own.
// Every thread of the grid must call this. Rows behind the last vector do not wait for others.
template <class Work>
__device__ inline void each_own(const Rows& rows, const HashIndexRef& index, Work& work) {
    using Row = typename Work::Row;
    constexpr u32 kWarps = kThreads / kLanes, kRoom = OwnRows<Work>::kRoom;
    __shared__ typename Row::Key keys[kWarps][kRoom];
    __shared__ typename Row::Payload payloads[kWarps][kRoom];
    OwnRows<Work> own{{index}, work, keys[this_warp()], payloads[this_warp()], 0};
    const Columns<Row> columns(rows);
    const u64 whole = columns.vectors();
    own.add_vectors(columns, whole);
    own.work_on_rest();
    for (u64 row = whole * columns.kPerVector + this_thread(); row < columns.count; row += threads()) {
        typename Row::Key key[1] = {columns.keys[row]};
        typename Row::Payload payload[1] = {columns.payloads[row]};
        if (own.is_own(key[0])) work(key, payload);
    }
}
