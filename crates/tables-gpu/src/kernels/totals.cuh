// Where the values of rows are added.
#pragma once
#include "hash.cuh"

// Returns a total in global memory.
__device__ inline u64* total_of(u64* totals, u32 group, u32 s) {
    return totals + static_cast<u64>(group) * kGroupWords + kSlotWord[s];
}

// Adds to a total in global memory, of 64 bits or of 128.
__device__ inline void add_total(u64* total, bool is_wide, i64 number) {
    u64 low = static_cast<u64>(number);
    u64 before = atomicAdd(total, low);
    if (!is_wide) return;
    u64 high = static_cast<u64>(number >> 63) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(total + 1, high);
}

// Whether a slot is a maximum of 128 bits: of two words, for which a block has the slot and the one behind it.
constexpr bool has_wide_maximum() {
    for (u32 s = 0; s < kSlots; s++)
        if (kIsMaximum[s] && kIsWide[s]) return true;
    return false;
}
constexpr bool kHasWideMaximum = has_wide_maximum();
__device__ inline bool is_wide_maximum(u32 s) { return kHasWideMaximum && kIsMaximum[s] && kIsWide[s]; }

// The first word of a maximum while a thread changes both words: a spin lock.
constexpr u64 kLocked = ~0ull;

// Raises a maximum of two words that several threads change. Few numbers are greater than all before, so that most
// threads only look.
__device__ inline void raise_total(u64* total, u64 high, u64 low) {
    const volatile u64* now = total;
    for (;;) {
        const u64 seen = now[0];
        if (seen == kLocked) continue;
        if (seen > high) return;
        // The second word is at least as new as the first.
        __threadfence();
        if (seen == high && now[1] >= low) return;
        if (atomicCAS(total, seen, kLocked) != seen) continue;
        // So is it for the thread that changes both: another may have raised the second word alone.
        __threadfence();
        if (seen < high || now[1] < low) atomicExch(total + 1, low);
        __threadfence();
        atomicExch(total, high);
        return;
    }
}

// Adds what a block has for a slot to the total in global memory; `low` is the second word of a maximum of two.
__device__ inline void finish_slot(u64* totals, u32 i, u64 value, u64 low = 0) {
    if (value == 0) return;
    const u32 s = i % kSlots;
    u64* total = total_of(totals, i / kSlots, s);
    if (is_wide_maximum(s))
        raise_total(total, value, low);
    else if (kIsMaximum[s])
        atomicMax(total, value);
    else
        add_total(total, kIsWide[s], static_cast<i64>(value));
}

extern __shared__ __align__(16) u64 memory[];

// Groups that are numbered by the values of their keys.
struct Numbered {
    using Key = u32;
    static constexpr bool kMayBeFull = false;

    __device__ u32 group_of(const Fragment&, Key key) const { return key; }
};

// Totals of a thread, for one group: in registers.
struct Registers : Numbered {
    u64 slot[kSlots];

    __device__ void start(const Fragment&) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) slot[s] = 0;
    }
    __device__ void add(u32, u32 s, i64 value) { slot[s] += static_cast<u64>(value); }
    __device__ void raise(u32, u32 s, u64 value) { slot[s] = max(slot[s], value); }
    __device__ void raise_wide(u32, u32 s, u64 high, u64 low) { raise_words(slot[s], slot[s + 1], high, low); }

    // Adds the totals of the block to those in global memory. Every thread must call this.
    __device__ void finish(const Fragment& f) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) {
            if (is_wide_maximum(s)) {
                finish_slot(f.totals, s, slot[s], slot[s + 1]);
                continue;
            }
            u64 value = kIsMaximum[s] ? warp_max(slot[s]) : warp_sum(slot[s]);
            if (this_lane() == 0) finish_slot(f.totals, s, value);
        }
    }
};

// Totals of a thread, for few groups: in shared memory, where no other thread writes them.
struct Private : Numbered {
    __device__ u64& at(u32 group, u32 s) { return memory[(group * kSlots + s) * kThreads + threadIdx.x]; }
    __device__ void start(const Fragment& f) {
        for (u32 i = 0; i < f.groups * kSlots; i++) at(0, i) = 0;
    }
    __device__ void add(u32 group, u32 s, i64 value) { at(group, s) += static_cast<u64>(value); }
    __device__ void raise(u32 group, u32 s, u64 value) { at(group, s) = max(at(group, s), value); }
    __device__ void raise_wide(u32 group, u32 s, u64 high, u64 low) {
        raise_words(at(group, s), at(group, s + 1), high, low);
    }

    __device__ void finish(const Fragment& f) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < f.groups * kSlots; i += kThreads) {
            u64 value = 0, low = 0;
            // Each thread begins at another place, so that they read different banks.
            for (u32 t = 0; t < kThreads; t++) {
                const u32 place = i * kThreads + (t + threadIdx.x) % kThreads;
                u64 one = memory[place];
                if (is_wide_maximum(i % kSlots))
                    raise_words(value, low, one, memory[place + kThreads]);
                else
                    value = kIsMaximum[i % kSlots] ? max(value, one) : value + one;
            }
            finish_slot(f.totals, i, value, low);
        }
    }
};

// Totals of a block: in shared memory, where all its threads add to them.
struct OfBlock : Numbered {
    __device__ void start(const Fragment& f) {
        for (u32 i = threadIdx.x; i < f.groups * kSlots; i += kThreads) memory[i] = 0;
        __syncthreads();
    }
    // Additions of 32 bits are one instruction in shared memory, those of 64 bits a loop.
    __device__ void add(u32 group, u32 s, i64 value) {
        u32* halves = reinterpret_cast<u32*>(memory + group * kSlots + s);
        u32 low = static_cast<u32>(value);
        u32 before = atomicAdd(halves, low);
        u32 high = static_cast<u32>(value >> 32) + (before + low < before ? 1 : 0);
        if (high != 0) atomicAdd(halves + 1, high);
    }
    __device__ void raise(u32 group, u32 s, u64 value) { atomicMax(memory + group * kSlots + s, value); }
    __device__ void raise_wide(u32 group, u32 s, u64 high, u64 low) {
        raise_total(memory + group * kSlots + s, high, low);
    }
    __device__ void finish(const Fragment& f) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < f.groups * kSlots; i += kThreads)
            finish_slot(f.totals, i, memory[i], is_wide_maximum(i % kSlots) ? memory[i + 1] : 0);
    }
};

// Totals of many groups: in global memory, where all threads add to them.
struct OfAll : Numbered {
    // Groups that are not in the slice have no total.
    static constexpr bool kMayBeFull = kIsSliced;

    u64* totals;

    __device__ u32 group_of(const Fragment& f, Key key) const {
        if constexpr (!kIsSliced) return key;
        return is_in_slice(key, f.own_first, f.own_count) ? static_cast<u32>(key - f.own_first) : kNoSlot;
    }
    __device__ void start(const Fragment& f) { totals = f.totals; }
    __device__ void add(u32 group, u32 s, i64 value) { add_total(total_of(totals, group, s), kIsWide[s], value); }
    __device__ void raise(u32 group, u32 s, u64 value) { atomicMax(total_of(totals, group, s), value); }
    __device__ void raise_wide(u32 group, u32 s, u64 high, u64 low) {
        raise_total(total_of(totals, group, s), high, low);
    }
    __device__ void finish(const Fragment&) {}
};

// A list of rows, each a group of its own. `seen` counts the rows, also those without room.
struct Listed : OfAll {
    static constexpr bool kMayBeFull = true;

    // No other thread has a total of the row, and each is written once.
    __device__ void add(u32 group, u32 s, i64 value) {
        u64* total = total_of(totals, group, s);
        total[0] = static_cast<u64>(value);
        if (kIsWide[s]) total[1] = static_cast<u64>(value >> 63);
    }
    __device__ void raise(u32 group, u32 s, u64 value) { *total_of(totals, group, s) = value; }
    __device__ void raise_wide(u32 group, u32 s, u64 high, u64 low) {
        u64* total = total_of(totals, group, s);
        total[0] = high;
        total[1] = low;
    }

    __device__ u32 group_of(const Fragment& f, Key) const {
        const u32 row = count_one(f.seen);
        if (row < f.groups) return row;
        atomicMax(f.flag, kIsFull);
        return kNoSlot;
    }
};

// The numbers of rows in intervals of ranks, instead of totals. Those of a block are in shared memory.
struct Counted : Numbered {
    static constexpr bool kMayBeFull = true;

    __device__ u32& at(u32 interval) const { return reinterpret_cast<u32*>(memory)[interval]; }
    __device__ void start(const Fragment& f) {
        for (u32 i = threadIdx.x; i < f.groups; i += kThreads) at(i) = 0;
        __syncthreads();
    }
    __device__ u32 group_of(const Fragment&, Key key) const {
        atomicAdd(&at(key), 1u);
        return kNoSlot;
    }
    __device__ void add(u32, u32, i64) {}
    __device__ void raise(u32, u32, u64) {}
    __device__ void raise_wide(u32, u32, u64, u64) {}
    __device__ void finish(const Fragment& f) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < f.groups; i += kThreads)
            if (at(i) != 0) atomicAdd(f.totals + i, static_cast<u64>(at(i)));
    }
};

// Totals of groups in a hash table of their keys, in global memory.
struct Hashed : OfAll {
    using Key = u64;
    static constexpr bool kMayBeFull = true;

    __device__ u32 group_of(const Fragment& f, Key key) const {
        if (kIsSliced && !is_in_slice(place_of<true>(key), f.own_first, f.own_count)) return kNoSlot;
        const u32 slot = put_key(f.own_keys, f.own_key_bits, key);
        if (slot == kNoSlot) atomicMax(f.flag, kIsFull);
        return slot;
    }
};
