// A perfect table: an array of payloads by key, for dense keys that occur once, and a bit for each key that occurs.
#pragma once
#include "rows.cuh"

template <class R>
struct Perfect {
    using Row = R;
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    // Blocks of a multiprocessor: as many as the compiler finds right.
    static constexpr u32 kBlocks = 0;

    const HashIndexRef& index;

    // Returns the slot of a key; one beyond the table if the key is out of its range.
    __device__ u64 slot_of(Key key) const { return static_cast<u64>(key) - index.first_key; }
    __device__ Payload* payloads() const { return reinterpret_cast<Payload*>(index.slots); }

    struct Insert;
    struct Probe;
};

template <class R>
struct Perfect<R>::Insert {
    using Row = R;
    const Perfect<R> table;
    Outcome* outcome;
    Inserted inserted;

    __device__ Insert(const HashIndexRef& index, Outcome* to) : table{index}, outcome(to) {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        if (has_failed(outcome)) return;
        u32 before[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            u64 slot = table.slot_of(keys[i]);
            before[i] = slot < table.index.slot_count ? atomicOr(table.index.taken + slot / 32, bit(slot)) : 0;
        }
#pragma unroll
        for (u32 i = 0; i < kRows; i++) store(table.slot_of(keys[i]), payloads[i], before[i]);
    }

    static __device__ u32 bit(u64 slot) { return 1u << slot % 32; }

    // `before` is what the bits of the slot's word were.
    __device__ void store(u64 slot, Payload payload, u32 before) {
        if (slot >= table.index.slot_count) {
            atomicOr(&outcome->failures, kKeyOutOfRange);
        } else if (before & bit(slot)) {
            inserted.duplicates++;
        } else {
            table.payloads()[slot] = payload;
            inserted.stored++;
        }
    }
};

template <class R>
struct Perfect<R>::Probe {
    using Row = R;
    const Perfect<R> table;
    Found found;

    __device__ explicit Probe(const HashIndexRef& index) : table{index} {}

    template <u32 kRows>
    __device__ __forceinline__ void operator()(const Key (&keys)[kRows], const Payload (&payloads)[kRows]) {
        bool matches[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) matches[i] = table.slot_of(keys[i]) < table.index.slot_count;
        // If every key occurs, the bits need not be read. Slots that are not taken were never written and are not read.
        if (table.index.has_holes) {
#pragma unroll
            for (u32 i = 0; i < kRows; i++) {
                u64 slot = table.slot_of(keys[i]);
                if (matches[i]) matches[i] = __ldg(table.index.taken + slot / 32) >> slot % 32 & 1;
            }
        }
        Payload values[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) values[i] = matches[i] ? __ldg(table.payloads() + table.slot_of(keys[i])) : 0;
#pragma unroll
        for (u32 i = 0; i < kRows; i++)
            if (matches[i]) found.add(1, values[i], payloads[i]);
    }
};
