// Tables of the rows of joins: read for the rows of another table, and filled.
//
// A table has the words of one row for each element. If a join repeats rows, their words are in the order in which
// they were stored instead, and two words of 32 bits come behind them: for each row the place, from 1 on, of the next
// with its key; and in front of the elements the number of rows, for each element the place of its first row. 0 is
// none. A search for rows that meet a condition has such a table, too. Behind the words of a row of `NOT IN` may come
// one word of 32 bits for all rows, before these two. Each slice of a table has that word of all rows.
#pragma once
#include "hash.cuh"

// Returns whether a step goes through several rows of a join.
constexpr bool is_repeating(u32 step) { return kStepJoin[step] < kJoins && kRepeats[kStepJoin[step]]; }

constexpr bool has_repeating() {
    for (u32 step = 0; step < kSteps; step++)
        if (is_repeating(step)) return true;
    return false;
}

// Whether an outer join that repeats rows has a condition. Kernels with such a join specialize it.
template <u32 kJoin> constexpr bool kHasCondition = false;

// The kind of a join that searches a row that meets its condition. Kernels with such a join specialize it.
enum class Search { kNone, kSemi, kAnti, kMark };
template <u32 kJoin> constexpr Search kSearch = Search::kNone;

// Whether a word tells of all rows of a join. Kernels with such a join specialize it.
template <u32 kJoin> constexpr bool kTellsOfAll = false;
// What that word tells: whether there are rows, and whether the key of one is NULL.
constexpr u32 kHasRows = 1, kHasNull = 2;

// The elements of a row in the tables of its joins. Behind them is the number of its slice, if rows are divided.
struct Joined {
    u32 word[kJoinWords + 1];
};
constexpr u32 kSliceWord = kJoinWords;

// Returns element `index` of a word's array, whose elements have this many bits; 0 if it is not wanted.
template <u32 kBits> __device__ inline u32 read_element(const u8* array, u64 index, bool is_wanted) {
    if constexpr (kBits == 8) return read_word(array + index, is_wanted);
    if constexpr (kBits == 16) return read_word(reinterpret_cast<const u16*>(array) + index, is_wanted);
    const u32* words = reinterpret_cast<const u32*>(array);
    if constexpr (kBits == 1) return read_word(words + index / 32, is_wanted) >> index % 32 & 1;
    return read_word(words + index, is_wanted);
}

template <u32 kJoin> __device__ inline bool is_matched(const Joined& joined) {
    return joined.word[kFirstWord[kJoin]] & 1;
}

template <u32 kJoin> __device__ inline void unmatch(Joined& joined) { joined.word[kFirstWord[kJoin]] &= ~1u; }

template <u32 kJoin> __device__ inline void set_matched(Joined& joined, u32 is_matched) {
    u32& word = joined.word[kFirstWord[kJoin]];
    word = (word & ~1u) | is_matched;
}

// The two words behind those of a row that a join repeats: where the next row is, and the place of the row that was
// read.
template <u32 kJoin> constexpr u32 kPlaceWord = kFirstWord[kJoin + 1] - 1;
template <u32 kJoin> constexpr u32 kNextWord = kPlaceWord<kJoin> - 1;
// The end of the words of a row, behind which may be the word that tells of all.
template <u32 kJoin>
constexpr u32 kEndWord = (kRepeats[kJoin] ? kNextWord<kJoin> : kFirstWord[kJoin + 1]) - kTellsOfAll<kJoin>;

// Reads the words of a join from `kWord` on.
template <u32 kJoin, u32 kWord>
__device__ inline void read_words(const Fragment& f, Joined& joined, u64 i, bool is_wanted) {
    if constexpr (kWord < kEndWord<kJoin>) {
        joined.word[kWord] = read_element<kWordBits[kWord]>(f.words[kWord], i, is_wanted);
        read_words<kJoin, kWord + 1>(f, joined, i, is_wanted);
    }
}

// Returns whether a row belongs to the slice of a join's table that is there. Rows without a key, or with one that no
// row of the join may have, belong to the first slice.
template <u32 kJoin> __device__ inline bool is_here(const Fragment& f, u64 index, bool has_key) {
    if constexpr (!kIsSliced) return true;
    const u64 place = has_key ? place_of<kIsHashed[kJoin]>(index) : 0;
    return is_in_slice(place, f.slice_firsts[kJoin], f.slice_counts[kJoin]);
}

// Goes to the first row with the key of an element, or from the row that was read to the next one. Returns whether
// there is one.
template <u32 kJoin> __device__ inline bool next_place(const Fragment& f, Joined& joined, u64 index, bool is_wanted) {
    const u32* places = reinterpret_cast<const u32*>(f.words[kPlaceWord<kJoin>]);
    const u32* nexts = reinterpret_cast<const u32*>(f.words[kNextWord<kJoin>]);
    u32& place = joined.word[kPlaceWord<kJoin>];
    u32& next = joined.word[kNextWord<kJoin>];
    place = place == 0 ? read_word(places + 1 + (is_wanted ? index : 0), is_wanted) : next;
    const bool has_place = is_wanted & (place != 0);
    next = read_word(nexts + (has_place ? place - 1 : 0), has_place);
    return has_place;
}

// Reads the element of a row in the table of a join. If the join repeats rows, reads that of the next. Returns whether
// there is a row; not if it is not wanted. If rows are divided by the slices of the table, only stores the number
// of the row's slice, and returns false.
template <u32 kJoin> __device__ inline bool look_up(const Fragment& f, Joined& joined, u64 index, bool is_wanted) {
    if constexpr (kIsDividing && kJoin == kDividedJoin) {
        // The place is that of `is_here`.
        const u64 place = is_wanted ? place_of<kIsHashed[kJoin]>(index) : 0;
        joined.word[kSliceWord] = static_cast<u32>(place / f.slice_counts[kJoin]);
        return false;
    }
    constexpr u32 kFirst = kFirstWord[kJoin];
    if constexpr (kIsSliced) {
        is_wanted &= is_here<kJoin>(f, index, true);
        if constexpr (!kIsHashed[kJoin]) index -= f.slice_firsts[kJoin];
    }
    if constexpr (kIsHashed[kJoin]) {
        // The key of a row that was read is not searched for the next.
        const bool is_read = kRepeats[kJoin] && joined.word[kPlaceWord<kJoin>] != 0;
        if (!is_read) {
            const u32 slot = is_wanted ? slot_of(f.keys[kJoin], f.key_bits[kJoin], index) : kNoSlot;
            is_wanted = slot != kNoSlot;
            index = slot;
        }
    }
    if constexpr (kRepeats[kJoin]) {
        is_wanted = next_place<kJoin>(f, joined, index, is_wanted);
        index = joined.word[kPlaceWord<kJoin>] - 1;
    }
    const u64 i = is_wanted ? index : 0;
    joined.word[kFirst] = read_element<kWordBits[kFirst]>(f.words[kFirst], i, is_wanted);
    const bool is_found = is_wanted & is_matched<kJoin>(joined);
    read_words<kJoin, kFirst + 1>(f, joined, i, is_found);
    return is_found;
}

// Returns whether `NOT IN` keeps a row without a match: with a key if the key of no other row is NULL, without a key
// if there are no other rows.
template <u32 kJoin> __device__ inline bool is_not_in(const Fragment& f, bool has_key) {
    const u32 told = *reinterpret_cast<const u32*>(f.words[kEndWord<kJoin>]);
    return (told & (has_key ? kHasNull : kHasRows)) == 0;
}

// Returns a number of the row of a join; 0 if there is none.
template <u32 kJoin, u32 kNumber> __device__ inline u64 out(const Joined& joined) {
    constexpr Out kAt = kOuts[kJoin][kNumber];
    if constexpr (kAt.bits <= 32) return joined.word[kAt.word] >> kAt.shift & ((1ull << kAt.bits) - 1);
    // Other numbers may be behind this one in its second word.
    const u64 words = static_cast<u64>(joined.word[kAt.word + 1]) << 32 | joined.word[kAt.word];
    return words & (~0ull >> (64 - kAt.bits) % 64);
}

// The words of an element that a kernel stores.
using Words = u32[kOwnWords > 0 ? kOwnWords : 1];
// The end of the words of a row that it stores.
constexpr u32 kOwnEnd = kOwnWords - (kOwnRepeats ? 2 : 0) - kOwnTellsOfAll;

// A common word is 0 for a key without rows, this if its rows have different numbers, and otherwise their number above
// the smallest plus one.
constexpr u32 kDifferentNumbers = 0xFFFFFFFF;

// The table that a kernel fills, instead of totals.
struct Table {
    // A slice has room for somewhat more rows than the mean.
    static constexpr bool kMayBeFull = kIsSliced && kOwnRepeats;

    // If rows are divided, the slice of the row that was stored last.
    u32 slice;

    __device__ void start(const Fragment&) {}
    __device__ void finish(const Fragment&) {}

    template <u32 kWord> __device__ void write(const Fragment& f, u64 index, const Words& words) {
        if constexpr (kWord < kOwnEnd) {
            constexpr u32 kBits = kOwnBits[kWord];
            if constexpr (kWord == kCommonWord) {
                u32* word = reinterpret_cast<u32*>(f.own_words[kWord]) + index;
                const u32 before = atomicCAS(word, 0u, words[kWord]);
                if (before != 0 && before != words[kWord]) *static_cast<volatile u32*>(word) = kDifferentNumbers;
            } else if constexpr (kBits == 32) reinterpret_cast<u32*>(f.own_words[kWord])[index] = words[kWord];
            if constexpr (kBits == 16)
                reinterpret_cast<u16*>(f.own_words[kWord])[index] = static_cast<u16>(words[kWord]);
            if constexpr (kBits == 8) f.own_words[kWord][index] = static_cast<u8>(words[kWord]);
            write<kWord + 1>(f, index, words);
        }
    }

    // Marks a value of a key in bits from the word `first` on.
    __device__ void mark(const Fragment& f, u32 first, u32 number, bool is_wanted) {
        if (kIsDividing || !is_wanted) return;
        u32* word = reinterpret_cast<u32*>(f.results) + first + number / 32;
        const u32 bit = 1u << number % 32;
        // Many rows have the same value.
        if ((load_relaxed(word) & bit) == 0) atomicOr(word, bit);
    }

    // Sets the flag, and marks the source in the words from `first` behind it.
    __device__ void mark_source(const Fragment& f, u32 flag, u32 first) {
        u32* word = f.flag + first + kSource / 32;
        constexpr u32 kBit = 1u << kSource % 32;
        if (load_relaxed(word) & kBit) return;
        atomicOr(word, kBit);
        atomicMax(f.flag, flag);
    }

    // Tells of a row, and whether it has a key.
    __device__ void tell_of_all(const Fragment& f, bool is_wanted, bool has_key) {
        if (!is_wanted) return;
        u32* told = reinterpret_cast<u32*>(f.own_words[kOwnEnd]);
        const u32 bits = has_key ? kHasRows : kHasRows | kHasNull;
        // Many rows tell the same.
        if ((load_relaxed(told) & bits) != bits) atomicOr(told, bits);
    }

    // Stores a row, or only notes its slice if rows are divided. An element of one bit is that of `seen`.
    __device__ void store(const Fragment& f, u64 index, bool is_wanted, const Words& words) {
        if (!is_wanted) return;
        if constexpr (kIsDividing) {
            slice = static_cast<u32>(place_of<kIsOwnHashed>(index) / f.own_count);
            return;
        }
        if constexpr (kIsSliced) {
            if (!is_in_slice(place_of<kIsOwnHashed>(index), f.own_first, f.own_count)) return;
            if constexpr (!kIsOwnHashed) index -= f.own_first;
        }
        if constexpr (kIsOwnHashed) {
            index = put_key(f.own_keys, f.own_key_bits, index);
            if (index == kNoSlot) {
                if (kAreRepeated) mark_source(f, kHasManyRows, kManyRows);
                else atomicMax(f.flag, kIsFullJoin);
                return;
            }
        }
        if constexpr (kOwnRepeats) {
            u32* places = reinterpret_cast<u32*>(f.own_words[kOwnWords - 1]);
            const u32 place = atomicAdd(places, 1u);
            if ((kIsSliced || kAreRepeated) && place >= f.own_rows) {
                mark_source(f, kHasManyRows, kManyRows);
                return;
            }
            reinterpret_cast<u32*>(f.own_words[kOwnWords - 2])[place] = atomicExch(places + 1 + index, place + 1);
            write<0>(f, place, words);
            return;
        }
        const u32 bit = 1u << index % 32;
        const u32 before = atomicOr(f.seen + index / 32, bit);
        if (kIsUnique && (before & bit)) mark_source(f, kHasSameKey, kSameKeys);
        write<0>(f, index, words);
    }
};
