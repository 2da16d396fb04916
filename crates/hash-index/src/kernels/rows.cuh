// The rows of two columns, several at once for each thread.
#pragma once
#include "arguments.cuh"
#include "device.cuh"

// Returns the index of this thread in the grid.
__device__ inline u64 this_thread() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }

// Returns the number of threads of the grid.
__device__ inline u64 threads() { return gridDim.x * static_cast<u64>(blockDim.x); }

// Returns whether a row could not be inserted. The build is an error then, and its threads end.
__device__ inline bool has_failed(const Outcome* outcome) { return load_relaxed(&outcome->failures) != 0; }

// Returns the hash of a key; as `hash_of` in `shape.rs`.
__device__ inline u64 hash_of(u64 key) {
    u64 hash = key * kHashFirst;
    return (hash ^ (hash >> 32)) * kHashSecond;
}

// A key of two numbers.
struct CompositeKey {
    u64 first;
    u64 second;
};
__device__ inline bool operator==(const CompositeKey& a, const CompositeKey& b) {
    return a.first == b.first && a.second == b.second;
}

// Returns the hash of a composite key; as `hash_of_composite` in `shape.rs`.
__device__ inline u64 hash_of(const CompositeKey& key) { return hash_of(hash_of(key.first) ^ key.second); }

// The type of a row's key in slots and buckets. Rows of which only one number has 8 bytes are stored as rows of two
// such numbers.
template <class Key, class Payload>
struct StoredKey {
    using Type = u64;
};
template <>
struct StoredKey<u32, u32> {
    using Type = u32;
};
template <class Payload>
struct StoredKey<CompositeKey, Payload> {
    using Type = CompositeKey;
};

// The types of a row.
template <class K, class P>
struct RowOf {
    using Key = K;
    using Payload = P;
    using Stored = typename StoredKey<K, P>::Type;
    static constexpr u32 kBytes = sizeof(Key) + sizeof(Payload);
};

// Steps after which a long search for a free slot looks whether another thread gave up.
constexpr u32 kStepsBetweenLooks = 64;

// Reads 16 bytes of a column, which no thread reads again: they leave the caches first.
__device__ inline void load_vector(const u64* from, u64* to) {
    ulonglong2 vector = __ldcs(reinterpret_cast<const ulonglong2*>(from));
    to[0] = vector.x;
    to[1] = vector.y;
}
__device__ inline void load_vector(const u32* from, u32* to) {
    uint4 vector = __ldcs(reinterpret_cast<const uint4*>(from));
    to[0] = vector.x;
    to[1] = vector.y;
    to[2] = vector.z;
    to[3] = vector.w;
}
__device__ inline void load_vector(const CompositeKey* from, CompositeKey* to) {
    u64 numbers[2];
    load_vector(&from->first, numbers);
    *to = {numbers[0], numbers[1]};
}

// Reads kCount values of a column by vectors.
template <u32 kCount, class Value>
__device__ inline void load_values(const Value* from, Value* to) {
    constexpr u32 kPerVector = 16 / sizeof(Value);
#pragma unroll
    for (u32 i = 0; i < kCount; i += kPerVector) load_vector(from + i, to + i);
}

// A column of keys, and one of their payloads; `R` has their types.
template <class R>
struct Columns {
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    // Least number of rows whose keys are whole vectors, and whose payloads are.
    static constexpr u32 kPerVector = 16 / (sizeof(Key) < sizeof(Payload) ? sizeof(Key) : sizeof(Payload));

    const Key* keys;
    const Payload* payloads;
    u64 count;

    __device__ explicit Columns(const Rows& rows)
        : keys(reinterpret_cast<const Key*>(rows.keys)),
          payloads(reinterpret_cast<const Payload*>(rows.payloads)),
          count(rows.count) {}

    // Returns how many times kPerVector rows the columns begin with: 0 if a column is not aligned to vectors.
    __device__ u64 vectors() const {
        u64 addresses = reinterpret_cast<u64>(keys) | reinterpret_cast<u64>(payloads);
        return addresses % 16 == 0 ? count / kPerVector : 0;
    }

    // Works on kVectors times kPerVector rows, which are `stride` apart.
    template <u32 kVectors, class Work>
    __device__ void of_vectors(u64 first, u64 stride, Work& work) const {
        Key key[kVectors * kPerVector];
        Payload payload[kVectors * kPerVector];
#pragma unroll
        for (u32 v = 0; v < kVectors; v++)
            load_values<kPerVector>(keys + (first + v * stride) * kPerVector, key + v * kPerVector);
#pragma unroll
        for (u32 v = 0; v < kVectors; v++)
            load_values<kPerVector>(payloads + (first + v * stride) * kPerVector, payload + v * kPerVector);
        work(key, payload);
    }

    // Calls `work` with the rows of a thread, of `stride` threads: kRowsAhead rows at once, and fewer at the end of the
    // columns.
    template <class Work>
    __device__ void each(u64 thread, u64 stride, Work& work) const {
        constexpr u32 kVectors = kRowsAhead / kPerVector;
        const u64 whole = vectors();
        u64 vector = thread;
        for (; vector + (kVectors - 1) * stride < whole; vector += kVectors * stride)
            of_vectors<kVectors>(vector, stride, work);
        for (; vector < whole; vector += stride) of_vectors<1>(vector, stride, work);
        for (u64 row = whole * kPerVector + thread; row < count; row += stride) {
            Key key[1] = {keys[row]};
            Payload payload[1] = {payloads[row]};
            work(key, payload);
        }
    }
};

// Adds kCount numbers of all threads of the block to numbers in global memory, each by one atomic operation. Every
// thread of the block must call this.
template <u32 kCount>
__device__ inline void add_of_block(u64* to, const u64 (&numbers)[kCount]) {
    __shared__ u64 sums[kCount][kThreads / kLanes];
#pragma unroll
    for (u32 i = 0; i < kCount; i++) {
        u64 sum = warp_sum(numbers[i]);
        if (this_lane() == 0) sums[i][this_warp()] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= kCount) return;
    u64 sum = 0;
    for (u32 w = 0; w < blockDim.x / kLanes; w++) sum += sums[threadIdx.x][w];
    if (sum != 0) atomicAdd(to + threadIdx.x, sum);
}

// What a thread inserted; in the order of `Outcome`.
struct Inserted {
    u64 stored = 0;
    u64 duplicates = 0;
    u64 aside_count = 0;
    u64 aside_sum = 0;

    __device__ void add_to(Outcome* outcome) const {
        const u64 numbers[] = {stored, duplicates, aside_count, aside_sum};
        add_of_block(&outcome->stored, numbers);
    }
};

// The matches that a thread found; in the order of `JoinTotals`.
struct Found {
    u64 count = 0;
    u64 build_sum = 0;
    u64 probe_sum = 0;

    // Adds the matches of a row: their number and the sum of their payloads on the build side.
    __device__ void add(u64 matches, u64 sum, u64 payload) {
        count += matches;
        build_sum += sum;
        probe_sum += matches * payload;
    }

    __device__ void add_to(JoinTotals* totals) const {
        const u64 numbers[] = {count, build_sum, probe_sum};
        add_of_block(&totals->count, numbers);
    }
};
