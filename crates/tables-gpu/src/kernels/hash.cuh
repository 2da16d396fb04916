// Hash tables with linear probing: 2^`bits` slots, each with a key plus one, or 0 if it is empty.
#pragma once
#include "numbers.cuh"

// Instead of the slot of a key.
constexpr u32 kNoSlot = 0xFFFFFFFF;
// Values of the flag; the greatest one stays. After the first, a launch is repeated with more room. 5 and 6 apply
// to the marked sources. The host sets it to 8 if the query is cancelled.
constexpr u32 kIsFull = 1, kHasManyMatches = 2, kIsFarApart = 3, kIsFullJoin = 4, kHasSameKey = 5, kHasManyRows = 6;
constexpr u32 kHasSameFingerprint = 7;
// Indexes of the words behind the flag with a bit for each source: whether several of its rows have the same key, and
// whether its table has no room for its rows.
constexpr u32 kSameKeys = 4, kManyRows = 20;
// Slots that are tried for a key. A table in which these are taken by others is full.
constexpr u32 kProbes = 256;

// Mixes the bits of a key, as the finalizer of MurmurHash3 does.
__device__ inline u64 mixed(u64 key) {
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCDull;
    return (key ^ key >> 33) * 0xC4CEB9FE1A85EC53ull;
}

// Returns a fingerprint that also covers one more number. If two fingerprints and all numbers but one are equal, then
// so is this one.
__device__ inline u64 with_number(u64 fingerprint, u64 number) { return mixed(fingerprint ^ number); }

// Returns a fingerprint as a key. Sets the flag if all its bits are set, as in an empty slot.
__device__ inline u64 as_key(const Fragment& f, u64 fingerprint, bool is_wanted) {
    if (is_wanted & (fingerprint == ~0ull)) atomicMax(f.flag, kHasSameFingerprint);
    return fingerprint;
}

// Returns whether all rows of a group have the same number, from the maxima of the number and of its complement. If
// not, different keys have the same fingerprint, and it sets the flag.
__device__ inline bool has_one_number(const Fragment& f, u64 number, u64 complement) {
    if (number == ~complement) return true;
    atomicMax(f.flag, kHasSameFingerprint);
    return false;
}

// Returns where the search for a key begins.
__device__ inline u32 first_slot(u64 key, u32 bits) { return static_cast<u32>(mixed(key) >> (64 - bits)); }

// Returns the place of a key in a table that is made in slices: its element, or if these are the slots of a hash table
// a number of 32 bits, other ones than those that tell the slot.
template <bool kIsHash> __device__ inline u64 place_of(u64 key) {
    if constexpr (kIsHash) return static_cast<u32>(mixed(key));
    return key;
}

// Returns whether a place is in a slice.
__device__ inline bool is_in_slice(u64 place, u64 first, u64 count) { return place - first < count; }

// Returns the slot of a key of a table that nothing changes meanwhile; `kNoSlot` if it has none.
__device__ inline u32 slot_of(const u64* keys, u32 bits, u64 key) {
    u32 slot = first_slot(key, bits);
    for (u32 probe = 0; probe < kProbes; probe++) {
        const u64 known = keys[slot];
        if (known == key + 1) return slot;
        if (known == 0) break;
        slot = (slot + 1) & ((1u << bits) - 1);
    }
    return kNoSlot;
}

// Returns the slot of a key, in which it is put if it has none; `kNoSlot` if the table is full.
__device__ inline u32 put_key(u64* keys, u32 bits, u64 key) {
    u32 slot = first_slot(key, bits);
    for (u32 probe = 0; probe < kProbes; probe++) {
        u64 known = *static_cast<const volatile u64*>(keys + slot);
        if (known == 0) known = atomicCAS(keys + slot, u64{0}, key + 1);
        if (known == 0 || known == key + 1) return slot;
        slot = (slot + 1) & ((1u << bits) - 1);
    }
    return kNoSlot;
}
