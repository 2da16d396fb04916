// Hash tables with linear probing: 2^`bits` slots, each with a key plus one, or 0 if it is empty.
#pragma once
#include "numbers.cuh"

// Instead of the slot of a key.
constexpr u32 kNoSlot = 0xFFFFFFFF;
// Slots that are tried for a key. A table in which these are taken by others is full.
constexpr u32 kProbes = 256;

// Returns where the search for a key begins. The mixing function is the finalizer of MurmurHash3.
__device__ inline u32 first_slot(u64 key, u32 bits) {
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCDull;
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53ull;
    return static_cast<u32>(key >> (64 - bits));
}

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

// Returns the slot of a key, in which it is put if it has none. If the table is full, sets the flag to 2
// and returns `kNoSlot`.
__device__ inline u32 put_key(u64* keys, u32 bits, u64 key, u32* flag) {
    u32 slot = first_slot(key, bits);
    for (u32 probe = 0; probe < kProbes; probe++) {
        u64 known = *static_cast<const volatile u64*>(keys + slot);
        if (known == 0) known = atomicCAS(keys + slot, u64{0}, key + 1);
        if (known == 0 || known == key + 1) return slot;
        slot = (slot + 1) & ((1u << bits) - 1);
    }
    *flag = 2;
    return kNoSlot;
}
