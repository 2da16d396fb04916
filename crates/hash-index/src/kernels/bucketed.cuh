// Buckets of 64 bytes: the keys of their slots, then the payloads. A row is in the first slot that was free from the
// first one of its key's bucket on. The slots of a bucket are taken in order, so that its last key tells whether it is
// full.
#pragma once
#include "rows.cuh"

// 16 bytes of keys.
template <class Word>
struct VectorType {
    using Type = uint4;
};
template <>
struct VectorType<u64> {
    using Type = ulonglong2;
};
template <class Word>
using VectorOf = typename VectorType<Word>::Type;

// The keys of a bucket.
template <class Word>
struct BucketKeys {
    // Slots of a bucket.
    static constexpr u32 kSlots = kBucketBytes / (2 * sizeof(Word));
    // The key of an empty slot.
    static constexpr Word kEmpty = static_cast<Word>(~0ull);

    Word keys[kSlots];

    // Reads them from the cache that all multiprocessors share: other threads may take slots meanwhile.
    __device__ __forceinline__ void load_shared(const Word* from) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s += kPerVector) put(s, __ldcg(reinterpret_cast<const Vector*>(from + s)));
    }

    // Reads those of a finished table.
    __device__ __forceinline__ void load(const Word* from) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s += kPerVector) put(s, __ldg(reinterpret_cast<const Vector*>(from + s)));
    }

    // Returns a bit for each slot with this key.
    __device__ __forceinline__ u32 equal(Word key) const {
        u32 bits = 0;
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) bits |= static_cast<u32>(keys[s] == key) << s;
        return bits;
    }

    // Returns the first empty slot, or kSlots. Later ones may be taken nevertheless: the vectors were not read at one
    // time.
    __device__ __forceinline__ u32 first_empty() const {
        return __ffs(equal(kEmpty) | 1u << kSlots) - 1;
    }

    __device__ bool is_full() const { return keys[kSlots - 1] != kEmpty; }

private:
    using Vector = VectorOf<Word>;
    static constexpr u32 kPerVector = sizeof(Vector) / sizeof(Word);

    __device__ void put(u32 slot, const uint4& vector) {
        keys[slot] = vector.x;
        keys[slot + 1] = vector.y;
        keys[slot + 2] = vector.z;
        keys[slot + 3] = vector.w;
    }
    __device__ void put(u32 slot, const ulonglong2& vector) {
        keys[slot] = vector.x;
        keys[slot + 1] = vector.y;
    }
};

template <class R>
struct Bucketed {
    using Row = R;
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    // The type of keys and payloads in buckets.
    using Word = typename R::Stored;
    static constexpr u32 kSlots = BucketKeys<Word>::kSlots;
    // Rows with this key are kept aside: counted and summed up.
    static constexpr Word kEmpty = BucketKeys<Word>::kEmpty;

    // Blocks of a multiprocessor. With its own choice, four, the compiler spills registers of some architectures.
    static constexpr u32 kBlocks = 3;

    const HashIndexRef& index;

    __device__ u64 home(Key key) const { return hash_of(key) >> index.shift; }
    __device__ u64 next(u64 bucket) const { return (bucket + 1) & (index.slot_count / kSlots - 1); }
    __device__ Word* keys(u64 bucket) const { return reinterpret_cast<Word*>(index.slots + bucket * kBucketBytes); }
    __device__ Word* payloads(u64 bucket) const { return keys(bucket) + kSlots; }

    struct Insert;
    struct Probe;
};

template <class R>
struct Bucketed<R>::Insert {
    using Row = R;
    const Bucketed<R> table;
    Outcome* outcome;
    Inserted inserted;

    __device__ Insert(const HashIndexRef& index, Outcome* to) : table{index}, outcome(to) {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        if (has_failed(outcome)) return;
        Look looks[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) looks[i] = look(table.home(keys[i]), keys[i]);
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            if (keys[i] != kEmpty) {
                follow(keys[i], payloads[i], looks[i]);
            } else {
                inserted.aside_count++;
                inserted.aside_sum += payloads[i];
            }
        }
    }

    // What a bucket had for a key.
    struct Look {
        // Whether a slot had this key.
        bool has_equal;
        u32 first_empty;
    };

    __device__ __forceinline__ Look look(u64 bucket, Word key) const {
        BucketKeys<Word> found;
        found.load_shared(table.keys(bucket));
        return {found.equal(key) != 0, found.first_empty()};
    }

    // Follows the chain until the row has a slot. `at` is the bucket of the key's hash.
    __device__ __forceinline__ void follow(Word key, Word payload, Look at) {
        u64 bucket = table.home(key);
        bool is_duplicate = false;
        for (u32 steps = 1;; steps++) {
            is_duplicate |= at.has_equal;
            for (u32 s = at.first_empty; s < kSlots; s++) {
                const Word before = atomicCAS(table.keys(bucket) + s, kEmpty, key);
                if (before == kEmpty) {
                    // No kernel probes while rows are inserted.
                    table.payloads(bucket)[s] = payload;
                    inserted.stored++;
                    inserted.duplicates += is_duplicate;
                    return;
                }
                is_duplicate |= before == key;
            }
            const bool is_time = steps % kStepsBetweenLooks == 0;
            if (steps == table.index.steps_max || (is_time && has_failed(outcome))) break;
            bucket = table.next(bucket);
            at = look(bucket, key);
        }
        atomicOr(&outcome->failures, kChainTooLong);
    }
};

template <class R>
struct Bucketed<R>::Probe {
    using Row = R;
    const Bucketed<R> table;
    Found found;

    __device__ explicit Probe(const HashIndexRef& index) : table{index} {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        Look looks[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) looks[i] = look(table.home(keys[i]), keys[i]);
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            if (keys[i] != kEmpty) follow(keys[i], payloads[i], looks[i]);
            else found.add(table.index.aside_count, table.index.aside_sum, payloads[i]);
        }
    }

    // What a bucket has for a key.
    struct Look {
        // A bit for each slot with this key.
        u32 equal;
        bool is_full;
    };

    __device__ __forceinline__ Look look(u64 bucket, Word key) const {
        BucketKeys<Word> found;
        found.load(table.keys(bucket));
        return {found.equal(key), found.is_full()};
    }

    // Follows the chain to its end, or to the match if no key has two. `at` is the bucket of the key's hash.
    __device__ __forceinline__ void follow(Word key, Word payload, Look at) {
        u64 bucket = table.home(key);
        for (u32 steps = 1;; steps++) {
            for (; at.equal != 0; at.equal &= at.equal - 1) {
                found.add(1, __ldg(table.payloads(bucket) + __ffs(at.equal) - 1), payload);
                if (table.index.is_unique) return;
            }
            if (!at.is_full || steps == table.index.steps_max) return;
            bucket = table.next(bucket);
            at = look(bucket, key);
        }
    }
};
