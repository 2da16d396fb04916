// Drops rows before they are divided. Rows of heavy keys are counted and summed up. The keys of the other rows of the
// build side are added to a Bloom filter; rows of the probe side whose key is not in it have no match.
#pragma once
#include "rows.cuh"

// Consecutive rows of one heavy key that a thread has not yet added to those of all threads: a key that most rows
// have takes few atomic operations.
struct PendingRows {
    HeavyRows* to = nullptr;
    u64 count = 0;
    u64 sum = 0;

    __device__ void add(HeavyRows* rows, u64 payload) {
        if (rows != to) flush();
        to = rows;
        count++;
        sum += payload;
    }

    __device__ void flush() {
        if (count == 0) return;
        atomicAdd(&to->count, count);
        atomicAdd(&to->sum, sum);
        count = sum = 0;
    }
};

// Returns the rows of a heavy key, or null if the key is not heavy; `heavy_slots` in `sieve.rs` makes the table.
__device__ inline HeavyRows* heavy_rows(const Sifting& a, u64 key, u64 hash) {
    u32 slot = static_cast<u32>(hash >> 32) & a.heavy_mask;
    for (;; slot = (slot + 1) & a.heavy_mask) {
        const u64 found = __ldg(a.heavy_keys + slot);
        if (found == ~0ull) return nullptr;
        if (found == key) return a.heavy_rows + slot;
    }
}

// Composite keys are not kept apart.
__device__ inline HeavyRows* heavy_rows(const Sifting&, const CompositeKey&, u64) { return nullptr; }

// The bits of a key in a blocked Bloom filter: four in one word, so that one access adds the key or finds it.
struct PlaceInFilter {
    u64* word;
    u64 bits = 0;

    __device__ PlaceInFilter(const Sifting& a, u64 hash) : word(a.filter + __umul64hi(hash, a.filter_words)) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) bits |= 1ull << (hash >> (8 + 6 * i) & 63);
    }

    __device__ void add() const { atomicOr(word, bits); }
    __device__ bool has() const { return (__ldcg(word) & bits) == bits; }
};

// Writes a bit of `kept` for each row of a run: 1 if the row is divided.
template <class R>
__global__ void __launch_bounds__(kThreads) sift(const __grid_constant__ Sifting a) {
    using Key = typename R::Key;
    const Key* keys = reinterpret_cast<const Key*>(a.rows.keys);
    const auto* payloads = reinterpret_cast<const typename R::Payload*>(a.rows.payloads);
    PendingRows pending;
    u64 filtered = 0;
    // All lanes of a warp take the same number of steps, because they vote.
    for (u64 first = this_thread() - this_lane(); first < a.rows.count; first += threads()) {
        const u64 row = first + this_lane();
        bool is_kept = row < a.rows.count;
        if (is_kept) {
            const Key key = keys[row];
            const u64 hash = hash_of(key);
            if (HeavyRows* rows = heavy_rows(a, key, hash)) {
                pending.add(rows, payloads[row]);
                is_kept = false;
            } else if (a.filter_words != 0) {
                const PlaceInFilter place(a, hash);
                if (a.is_probe) is_kept = place.has();
                else place.add();
                filtered += !is_kept;
            }
        }
        const u32 kept = ballot(is_kept);
        if (this_lane() == 0) a.kept[first / kLanes] = kept;
    }
    pending.flush();
    const u64 numbers[] = {filtered};
    add_of_block(a.filtered, numbers);
}
