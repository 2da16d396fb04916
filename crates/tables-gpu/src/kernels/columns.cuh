// Reads packed columns, and adds the values of rows to totals.
#pragma once
#include "arguments.cuh"

using i32 = int;
using i64 = long long;
using i128 = __int128;

// Rows of a tile for each thread.
constexpr u32 kRows = 8;
// Words of a line of the cache.
constexpr u32 kLineWords = 32;

// Where a thread reads a column of a tile. Its rows are a block's threads apart, which is a multiple of 32, so that the
// packed number of each begins at the same bit of a word.
struct Cursor {
    const u32* word;
    const u32* valid;
    i64 reference;
    u64 mask;
    u32 shift;
    // Words from one row of the thread to the next.
    u32 step;
    // A line of the tile that is prefetched next; null if this thread prefetches none.
    const u32* ahead;

    // The same for a width that the compiler knows.
    template <u32 kWidth> __device__ const u32* word_of(u32 i) const {
        return word + i * (kWidth <= 64 ? kThreads / 32 * kWidth : step);
    }
    template <u32 kWidth> __device__ u64 mask_of() const {
        return kWidth == 0 ? 0 : kWidth <= 64 ? ~0ull >> (64 - kWidth) % 64 : mask;
    }

    // `first` is the thread's first row.
    __device__ void start(const Part& part, u32 first) {
        const u32 bit = first * part.width;
        word = part.words + bit / 32;
        shift = bit % 32;
        step = kThreads / 32 * part.width;
        mask = part.mask;
        reference = part.reference;
        valid = part.valid == nullptr ? nullptr : part.valid + first / 32;
        const u32 tile_words = step * kRows, line = threadIdx.x * kLineWords;
        ahead = line < tile_words ? part.words + first / (kThreads * kRows) * tile_words + line : nullptr;
    }

    // Brings the part of a tile that is `kTilesAhead` behind this one to the cache.
    __device__ void prefetch() const {
        if (ahead != nullptr) prefetch_line(ahead + kTilesAhead * kRows * step);
    }

    // Goes to the next tile.
    __device__ void advance() {
        word += step * kRows;
        if (valid != nullptr) valid += kThreads / 32 * kRows;
        if (ahead != nullptr) ahead += step * kRows;
    }
};

// What a thread reads in a tile: the columns, and the tables of the file.
struct Columns {
    Cursor cursor[kColumns > 0 ? kColumns : 1];
    const u32* table[kTables > 0 ? kTables : 1];
};

// Returns the packed number, of at most 32 bits, of row `i` of this thread; any number if it is not wanted. Words
// behind those of the last row can be read.
template <u32 kWidth> __device__ inline u32 read_narrow(const Cursor& cursor, u32 i, bool is_wanted) {
    const u32* word = cursor.word_of<kWidth>(i);
    u32 low = read_word(word, is_wanted), high = read_word(word + 1, is_wanted);
    return __funnelshift_r(low, high, cursor.shift) & static_cast<u32>(cursor.mask_of<kWidth>());
}

// As `read_narrow`, for packed numbers of up to 64 bits.
template <u32 kWidth> __device__ inline u64 read_wide(const Cursor& cursor, u32 i, bool is_wanted) {
    const u32* word = cursor.word_of<kWidth>(i);
    u32 words[3] = {read_word(word, is_wanted), read_word(word + 1, is_wanted), read_word(word + 2, is_wanted)};
    u32 low = __funnelshift_r(words[0], words[1], cursor.shift);
    u32 high = __funnelshift_r(words[1], words[2], cursor.shift);
    return (low | static_cast<u64>(high) << 32) & cursor.mask_of<kWidth>();
}

// Returns whether row `i` of this thread has a value.
__device__ inline bool has_value(const Cursor& cursor, u32 i, bool is_wanted) {
    if (cursor.valid == nullptr) return true;
    return read_word(cursor.valid + i * (kThreads / 32), is_wanted) >> threadIdx.x % 32 & 1;
}

__device__ inline i128 wide_constant(u64 low, u64 high) {
    return static_cast<i128>(static_cast<unsigned __int128>(high) << 64 | low);
}

// Adds to a total of 128 bits in global memory.
__device__ inline void add_total(u64* total, i64 number) {
    u64 low = static_cast<u64>(number);
    u64 before = atomicAdd(total, low);
    u64 high = static_cast<u64>(number >> 63) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(total + 1, high);
}

// Adds what a block has for a slot to the total in global memory.
__device__ inline void finish_slot(u64* totals, u32 i, u64 value) {
    if (value == 0) return;
    if (kIsMaximum[i % kSlots])
        atomicMax(totals + 2 * i, value);
    else
        add_total(totals + 2 * i, static_cast<i64>(value));
}

// A number that orders as `value` does, above 0. A total of 0 is that of no row.
__device__ inline u64 ordered(i64 value) { return static_cast<u64>(value) ^ 1ull << 63; }

extern __shared__ __align__(16) u64 memory[];

// Totals of a thread, for one group: in registers.
struct Registers {
    u64 slot[kSlots];

    __device__ void start(u64*) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) slot[s] = 0;
    }
    __device__ void add(u32, u32 s, i64 value) { slot[s] += static_cast<u64>(value); }
    __device__ void raise(u32, u32 s, u64 value) { slot[s] = max(slot[s], value); }

    // Adds the totals of the block to those in global memory. Every thread must call this.
    __device__ void finish(u64* totals) {
#pragma unroll
        for (u32 s = 0; s < kSlots; s++) {
            u64 value = kIsMaximum[s] ? warp_max(slot[s]) : warp_sum(slot[s]);
            if (this_lane() == 0) finish_slot(totals, s, value);
        }
    }
};

// Totals of a thread, for few groups: in shared memory, where no other thread writes them.
struct Private {
    __device__ u64& at(u32 group, u32 s) { return memory[(group * kSlots + s) * kThreads + threadIdx.x]; }
    __device__ void start(u64*) {
        for (u32 i = 0; i < kGroups * kSlots; i++) at(0, i) = 0;
    }
    __device__ void add(u32 group, u32 s, i64 value) { at(group, s) += static_cast<u64>(value); }
    __device__ void raise(u32 group, u32 s, u64 value) { at(group, s) = max(at(group, s), value); }

    __device__ void finish(u64* totals) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < kGroups * kSlots; i += kThreads) {
            u64 value = 0;
            // Each thread begins at another place, so that they read different banks.
            for (u32 t = 0; t < kThreads; t++) {
                u64 one = memory[i * kThreads + (t + threadIdx.x) % kThreads];
                value = kIsMaximum[i % kSlots] ? max(value, one) : value + one;
            }
            finish_slot(totals, i, value);
        }
    }
};

// Totals of a block: in shared memory, where all its threads add to them.
struct OfBlock {
    __device__ void start(u64*) {
        for (u32 i = threadIdx.x; i < kGroups * kSlots; i += kThreads) memory[i] = 0;
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
    __device__ void finish(u64* totals) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < kGroups * kSlots; i += kThreads) finish_slot(totals, i, memory[i]);
    }
};

// Totals of many groups: in global memory, where all threads add to them.
struct OfAll {
    u64* totals;

    __device__ void start(u64* to) { totals = to; }
    __device__ u64* at(u32 group, u32 s) { return totals + 2 * (static_cast<u64>(group) * kSlots + s); }
    __device__ void add(u32 group, u32 s, i64 value) { add_total(at(group, s), value); }
    __device__ void raise(u32 group, u32 s, u64 value) { atomicMax(at(group, s), value); }
    __device__ void finish(u64*) {}
};
