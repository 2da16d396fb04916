// Linear probing: a row is in the first slot that was free from the slot of its key's hash on. A slot is a key and
// its payload, of the same width, which one access reads. With a composite key, a slot also has the key's mark and is
// a sector of 32 bytes.
#pragma once
#include "rows.cuh"

// Returns what a key writes to an empty slot to take it, by one atomic operation: the key, or for a composite key its
// hash. Other composite keys may have the same mark.
__device__ inline u64 mark_of(u64 key) { return key; }
__device__ inline u32 mark_of(u32 key) { return key; }
__device__ inline u64 mark_of(const CompositeKey& key) { return min(hash_of(key), ~0ull - 1); }

template <class Number>
struct Slot {
    using Payload = Number;

    Number key;
    Number payload;

    __device__ Number mark() const { return key; }
};
template <>
struct Slot<CompositeKey> {
    using Payload = u64;

    u64 taken_by;
    CompositeKey key;
    u64 payload;

    __device__ u64 mark() const { return taken_by; }
};

__device__ inline Slot<u64> load_slot(const u8* slots, u64 slot, u64) {
    ulonglong2 found = __ldg(reinterpret_cast<const ulonglong2*>(slots) + slot);
    return {found.x, found.y};
}
__device__ inline Slot<u32> load_slot(const u8* slots, u64 slot, u32) {
    uint2 found = __ldg(reinterpret_cast<const uint2*>(slots) + slot);
    return {found.x, found.y};
}
__device__ inline Slot<CompositeKey> load_slot(const u8* slots, u64 slot, const CompositeKey&) {
    const ulonglong2* halves = reinterpret_cast<const ulonglong2*>(slots) + 2 * slot;
    const ulonglong2 first = __ldg(halves), second = __ldg(halves + 1);
    return {first.x, {first.y, second.x}, second.y};
}

// Stores a row in a slot if the slot is empty. Returns the mark that was there. The rest is written after the mark:
// no kernel probes while rows are inserted. If several GPUs insert, the operations are of the system's scope.
template <bool kIsOfSystem>
__device__ inline u64 take_slot(u8* slots, u64 slot, u64 key, u64 payload) {
    u64* words = reinterpret_cast<u64*>(slots) + 2 * slot;
    u64 before = kIsOfSystem ? atomicCAS_system(words, ~0ull, key) : atomicCAS(words, ~0ull, key);
    if (before == ~0ull) words[1] = payload;
    return before;
}
// As above; key and payload are one word.
template <bool kIsOfSystem>
__device__ inline u32 take_slot(u8* slots, u64 slot, u32 key, u32 payload) {
    u64 row = static_cast<u64>(payload) << 32 | key;
    u64* word = reinterpret_cast<u64*>(slots) + slot;
    return static_cast<u32>(kIsOfSystem ? atomicCAS_system(word, ~0ull, row) : atomicCAS(word, ~0ull, row));
}
// As above, for a composite key.
template <bool kIsOfSystem>
__device__ inline u64 take_slot(u8* slots, u64 slot, const CompositeKey& key, u64 payload) {
    u64* words = reinterpret_cast<u64*>(slots) + 4 * slot;
    const u64 mark = mark_of(key);
    u64 before = kIsOfSystem ? atomicCAS_system(words, ~0ull, mark) : atomicCAS(words, ~0ull, mark);
    if (before == ~0ull) {
        words[1] = key.first;
        words[2] = key.second;
        words[3] = payload;
    }
    return before;
}

// `kAllAreOwn` says that this GPU works on all rows that it is given.
template <class R, bool kIsInterleaved = false, bool kAllAreOwn = !kIsInterleaved>
struct Linear {
    using Row = R;
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    // The type of keys in slots.
    using Stored = typename R::Stored;
    using Mark = decltype(mark_of(Stored{}));
    // The mark of an empty slot. Rows of the key with this mark are kept aside: counted and summed up. No composite
    // key has this mark.
    static constexpr Mark kEmpty = static_cast<Mark>(~0ull);

    // Blocks of a multiprocessor: as many as the compiler finds right.
    static constexpr u32 kBlocks = 0;

    const HashIndexRef& index;

    __device__ u64 home(Key key) const { return hash_of(key) >> index.shift & (index.slot_count - 1); }
    // Returns whether this GPU works on rows whose search begins in a slot.
    __device__ bool is_own(u64 slot) const {
        return kAllAreOwn || (slot >> index.own_shift & index.own_mask) == index.own;
    }
    static __device__ Mark mark(Key key) { return mark_of(static_cast<Stored>(key)); }
    __device__ Mark take(u64 slot, Key key, Payload payload) const {
        const auto stored = static_cast<typename Slot<Stored>::Payload>(payload);
        return take_slot<kIsInterleaved>(index.slots, slot, static_cast<Stored>(key), stored);
    }
    __device__ Slot<Stored> load(u64 slot) const { return load_slot(index.slots, slot, Stored{}); }
    __device__ u64 next(u64 slot) const { return (slot + 1) & (index.slot_count - 1); }

    struct Insert;
    struct Probe;
};

template <class R, bool kIsInterleaved, bool kAllAreOwn>
struct Linear<R, kIsInterleaved, kAllAreOwn>::Insert {
    using Row = R;
    const Linear table;
    Outcome* outcome;
    Inserted inserted;

    __device__ Insert(const HashIndexRef& index, Outcome* to) : table{index}, outcome(to) {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        if (has_failed(outcome)) return;
        u64 slots[kRows];
        Mark before[kRows];
        bool is_new[kRows], is_duplicate[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            slots[i] = table.home(keys[i]);
            before[i] = kEmpty;
            is_duplicate[i] = false;
            is_new[i] = table.is_own(slots[i]);
            if (is_new[i] && table.mark(keys[i]) == kEmpty) {
                inserted.aside_count++;
                inserted.aside_sum += payloads[i];
                is_new[i] = false;
            }
            if (is_new[i]) before[i] = table.take(slots[i], keys[i], payloads[i]);
        }
        follow(keys, payloads, slots, before, is_duplicate);
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            const bool is_stored = is_new[i] && before[i] == kEmpty;
            if (before[i] != kEmpty) atomicOr(&outcome->failures, kChainTooLong);
            inserted.stored += is_stored;
            inserted.duplicates += is_stored && is_duplicate[i];
        }
    }

    // Follows the chains of rows until each has a slot. `before` is what was in `slots`. The chains are followed
    // together, so that their accesses are in flight at once. A row counts as a duplicate if a slot has its mark,
    // because the thread that took the slot may not have written a composite key yet. False positives are possible.
    template <u32 kRows>
    __device__ __forceinline__ void follow(const Key (&keys)[kRows], const Payload (&payloads)[kRows],
                                           u64 (&slots)[kRows], Mark (&before)[kRows], bool (&is_duplicate)[kRows]) {
        for (u32 steps = 1; steps < table.index.steps_max; steps++) {
            bool is_open = false;
#pragma unroll
            for (u32 i = 0; i < kRows; i++) {
                if (before[i] == kEmpty) continue;
                is_open = true;
                is_duplicate[i] |= before[i] == table.mark(keys[i]);
                slots[i] = table.next(slots[i]);
                before[i] = table.take(slots[i], keys[i], payloads[i]);
            }
            if (!is_open || (steps % kStepsBetweenLooks == 0 && has_failed(outcome))) return;
        }
    }
};

template <class R, bool kIsInterleaved, bool kAllAreOwn>
struct Linear<R, kIsInterleaved, kAllAreOwn>::Probe {
    using Row = R;
    const Linear table;
    Found found;

    __device__ explicit Probe(const HashIndexRef& index) : table{index} {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        u64 places[kRows];
        Slot<Stored> slots[kRows];
        bool is_own[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            places[i] = table.home(keys[i]);
            is_own[i] = table.is_own(places[i]);
            if (is_own[i]) slots[i] = table.load(places[i]);
        }
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            if (!is_own[i]) continue;
            if (table.mark(keys[i]) != kEmpty) follow(keys[i], payloads[i], places[i], slots[i]);
            else found.add(table.index.aside_count, table.index.aside_sum, payloads[i]);
        }
    }

    // Follows the chain to its end, or to the match if no key has two. `slot` was read at `place`.
    __device__ __forceinline__ void follow(Key key, Payload payload, u64 place, Slot<Stored> slot) {
        u64 matches = 0, sum = 0;
        for (u32 steps = 1; slot.mark() != kEmpty; steps++) {
            if (slot.key == key) {
                matches++;
                sum += slot.payload;
                if (table.index.is_unique) break;
            }
            if (steps == table.index.steps_max) break;
            place = table.next(place);
            slot = table.load(place);
        }
        found.add(matches, sum, payload);
    }
};

// A table whose memory is interleaved over several GPUs.
template <class R>
using Interleaved = Linear<R, true>;
// The same, for rows that are all this GPU's own.
template <class R>
using InterleavedOwn = Linear<R, true, true>;
