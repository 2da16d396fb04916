// Sorts the rows of a list, and computes window functions over them. The host launches one step after another. A row
// has the words of a group; some of them are compared, the most significant first.
//
// Some steps use row numbers and places that earlier ones have written as indexes: load, scatter, gather, apply and
// spread. If an earlier step has ended before all of these were there, the flag is set. So these steps look at it
// before the first index. The others may compute with what is not there, and write where they always do.
#pragma once
#include "cancelled.cuh"
#include "numbers.cuh"

// The steps, as in `order.rs`.
enum Step : u32 { kLoad, kCount, kPlace, kScatter, kGather, kReduce, kScan, kApply, kSpread };

// Rows of a thread in a tile, as in `selection.rs`.
constexpr u32 kRowsOfThread = 8, kTileRows = kThreads * kRowsOfThread;
// Tiles of a stripe from one look at the flag to the next, if there is no reason to look at each.
constexpr u32 kTilesUnchecked = 8;
// Each block works on the tiles of a stripe. As in `order.rs`.
constexpr u32 kStripesMax = 512;
constexpr u32 kDigitBits = 8, kDigits = 1 << kDigitBits, kWarps = kThreads / kLanes;

extern __shared__ __align__(16) u64 memory[];

__device__ inline u32 stripes_of(const Fragment& f) { return min(kStripesMax, static_cast<u32>(f.tiles)); }
__device__ inline u64 first_tile(const Fragment& f, u32 stripe) { return f.tiles * stripe / stripes_of(f); }

// Calls a function for each stripe of this block.
template <class Function> __device__ inline void each_stripe(const Fragment& f, const Function& function) {
    for (u32 stripe = blockIdx.x; stripe < stripes_of(f); stripe += gridDim.x)
        function(stripe, first_tile(f, stripe), first_tile(f, stripe + 1));
}

// Calls a function for each digit of this thread.
template <class Function> __device__ inline void each_digit(const Function& function) {
    for (u32 digit = threadIdx.x; digit < kDigits; digit += kThreads) function(digit);
}

// Calls a function for each row of the list.
template <class Function> __device__ inline void each_row(const Fragment& f, const Function& function) {
    for (u64 tile = blockIdx.x; tile < f.tiles && !must_end<1 << 13>(f, tile, gridDim.x); tile += gridDim.x) {
#pragma unroll
        for (u32 i = 0; i < kRowsOfThread; i++) {
            const u64 row = tile * kTileRows + i * kThreads + threadIdx.x;
            if (row < f.groups) function(row);
        }
    }
}

// A radix sort, the least significant digit first. `keys` and `rows` are a word of each row and its number in the
// list, in the order so far; `new_keys` and `new_rows` are in the order of the next digit. `counts` has a number for
// each digit of each stripe, and `totals` one for each digit.
struct Sort {
    const u64* keys;
    const u32* rows;
    u64* new_keys;
    u32 *new_rows, *counts, *totals;
    u32 shift;

    __device__ explicit Sort(const Fragment& f)
        : keys(reinterpret_cast<const u64*>(f.words[0])),
          rows(reinterpret_cast<const u32*>(f.words[1])),
          new_keys(reinterpret_cast<u64*>(f.own_words[0])),
          new_rows(reinterpret_cast<u32*>(f.own_words[1])),
          counts(reinterpret_cast<u32*>(f.own_words[2])),
          totals(counts + kStripesMax * kDigits),
          shift(static_cast<u32>(f.constants[2])) {}

    __device__ u32 digit_of(u64 key) const { return static_cast<u32>(key >> shift) % kDigits; }

    // Prepares the totals for the next count.
    __device__ void clear() const {
        if (blockIdx.x == 0) each_digit([&](u32 digit) { totals[digit] = 0; });
    }

    // Reads a word of each row, in the order so far: at first, that of the list.
    __device__ void load(const Fragment& f) const {
        clear();
        const u64 word = f.constants[4];
        const bool is_first = f.constants[6] != 0;
        each_row(f, [&](u64 row) {
            const u32 of = is_first ? static_cast<u32>(row) : rows[row];
            new_keys[row] = f.totals[static_cast<u64>(of) * kGroupWords + word];
            new_rows[row] = of;
        });
    }

    // Counts the rows of each digit in each stripe, and in all.
    __device__ void count(const Fragment& f) const {
        u32* own = reinterpret_cast<u32*>(memory);
        each_stripe(f, [&](u32 stripe, u64 tile, u64 end) {
            each_digit([&](u32 digit) { own[digit] = 0; });
            __syncthreads();
            while (tile < end && !must_end(f)) {
                for (const u64 until = min(end, tile + kTilesUnchecked); tile < until; tile++) {
                    for (u32 i = 0; i < kRowsOfThread; i++) {
                        const u64 row = tile * kTileRows + i * kThreads + threadIdx.x;
                        if (row < f.groups) atomicAdd(own + digit_of(keys[row]), 1u);
                    }
                }
            }
            __syncthreads();
            each_digit([&](u32 digit) {
                counts[stripe * kDigits + digit] = own[digit];
                atomicAdd(totals + digit, own[digit]);
            });
            __syncthreads();
        });
    }

    // Replaces each count by the place of the first row with this digit in this stripe: the number of rows with lesser
    // digits, and with this one in the stripes before. A block works on a digit, and a thread on some of its stripes.
    __device__ void place(const Fragment& f) const {
        u32 *lesser = reinterpret_cast<u32*>(memory), *sums = lesser + kThreads;
        const u32 stripes = stripes_of(f), of_thread = (stripes + kThreads - 1) / kThreads;
        const u32 first = min(threadIdx.x * of_thread, stripes), end = min(first + of_thread, stripes);
        for (u32 digit = blockIdx.x; digit < kDigits; digit += gridDim.x) {
            u32 of_lesser = 0, sum = 0;
            for (u32 other = threadIdx.x; other < digit; other += kThreads) of_lesser += totals[other];
            for (u32 stripe = first; stripe < end; stripe++) sum += counts[stripe * kDigits + digit];
            lesser[threadIdx.x] = of_lesser;
            sums[threadIdx.x] = sum;
            __syncthreads();
            u32 place = 0;
            for (u32 thread = 0; thread < kThreads; thread++)
                place += lesser[thread] + (thread < threadIdx.x ? sums[thread] : 0);
            for (u32 stripe = first; stripe < end; stripe++) {
                u32& count = counts[stripe * kDigits + digit];
                const u32 before = place;
                place += count;
                count = before;
            }
            __syncthreads();
        }
    }

    // Returns the lanes whose rows have the digit of this lane's row. Without meaning for a lane without a row.
    __device__ u32 peers_of(u32 digit, bool has_row) const {
        u32 peers = ballot(has_row);
#pragma unroll
        for (u32 bit = 0; bit < kDigitBits; bit++) {
            const bool is_set = digit >> bit & 1;
            const u32 set = ballot(is_set);
            peers &= is_set ? set : ~set;
        }
        return peers;
    }

    // Counts the rows of a tile by warp and digit. `ranks` are the places of this thread's rows among those of its
    // warp with the same digit.
    __device__ void rank(const Fragment& f, u64 first, u32* of_warp, u64 (&key)[kRowsOfThread],
                         u32 (&ranks)[kRowsOfThread]) const {
#pragma unroll
        for (u32 i = 0; i < kRowsOfThread; i++) {
            const u64 row = first + i * kLanes;
            const bool has_row = row < f.groups;
            key[i] = has_row ? keys[row] : 0;
            const u32 digit = digit_of(key[i]);
            const u32 peers = peers_of(digit, has_row), before = of_warp[digit];
            const u32 place = place_in(peers, this_lane());
            ranks[i] = before + place;
            __syncwarp();
            if (has_row && place == 0) of_warp[digit] = before + __popc(peers);
            __syncwarp();
        }
    }

    // Puts the rows in the order of the digit. The sort is stable: rows with the same digit keep their order.
    __device__ void scatter(const Fragment& f) const {
        u32* starts = reinterpret_cast<u32*>(memory);
        u32* of_warps = starts + kDigits;
        u32* of_warp = of_warps + this_warp() * kDigits;
        clear();
        each_stripe(f, [&](u32 stripe, u64 tile, u64 end) {
            each_digit([&](u32 digit) { starts[digit] = counts[stripe * kDigits + digit]; });
            for (; tile < end; tile++) {
                const u32 flag = flag_of_block(f);
                for (u32 warp = 0; warp < kWarps; warp++)
                    each_digit([&](u32 digit) { of_warps[warp * kDigits + digit] = 0; });
                __syncthreads();
                const u64 first = tile * kTileRows + this_warp() * (kLanes * kRowsOfThread) + this_lane();
                u64 key[kRowsOfThread];
                u32 ranks[kRowsOfThread];
                rank(f, first, of_warp, key, ranks);
                if (__syncthreads_or(flag)) return;
                each_digit([&](u32 digit) {
                    u32 start = starts[digit];
                    for (u32 warp = 0; warp < kWarps; warp++) {
                        u32& count = of_warps[warp * kDigits + digit];
                        const u32 before = start;
                        start += count;
                        count = before;
                    }
                    starts[digit] = start;
                });
                __syncthreads();
#pragma unroll
                for (u32 i = 0; i < kRowsOfThread; i++) {
                    const u64 row = first + i * kLanes;
                    if (row >= f.groups) continue;
                    const u32 to = of_warp[digit_of(key[i])] + ranks[i];
                    new_keys[to] = key[i];
                    new_rows[to] = rows[row];
                }
                __syncthreads();
            }
        });
    }

    // Copies the rows in their order.
    __device__ void gather(const Fragment& f) const {
        const u64 words = static_cast<u64>(f.groups) * kGroupWords;
        const u32 step = gridDim.x * kThreads;
        for (u64 to = blockIdx.x * kThreads + threadIdx.x; to < words && !must_end<1 << 23>(f, to, step); to += step) {
            const u64 row = to / kGroupWords;
            new_keys[to] = f.totals[static_cast<u64>(rows[row]) * kGroupWords + (to - row * kGroupWords)];
        }
    }
};

// What begins at a row: a flag each.
constexpr u32 kPeers = 1, kPartition = 2;

// Returns what begins at a row of the sorted list: a partition, peers or nothing. Constants tell how many low bits of
// each word are not compared.
__device__ inline u32 begins_at(const Fragment& f, u64 row) {
    if (row == 0 || row == f.groups) return kPeers | kPartition;
    const u64 *own = f.totals + row * kGroupWords, *before = own - kGroupWords;
    u32 begins = 0;
    for (u32 i = 0; i < kSortWords; i++) {
        const u64 differ = own[kSortWord[i]] ^ before[kSortWord[i]];
        const u64 of_peers = f.constants[8 + 4 * i], of_partition = f.constants[10 + 4 * i];
        if (of_peers < 64 && differ >> of_peers != 0) begins |= kPeers;
        if (of_partition < 64 && differ >> of_partition != 0) begins |= kPeers | kPartition;
    }
    return begins;
}

// The state of a segmented scan after consecutive rows: where the last partition and the last peers begin, the number
// of groups of peers in the partition so far, the totals of its rows, and what begins in the rows.
struct State {
    u64 total[kStateWords > 0 ? kStateWords : 1];
    u32 partition, peers, dense, begins;

    // Returns the state of no rows.
    __device__ static State none() {
        State none;
#pragma unroll
        for (u32 w = 0; w < kStateWords; w++) none.total[w] = 0;
        none.partition = none.peers = none.dense = none.begins = 0;
        return none;
    }

    // Returns the state of one row.
    __device__ static State of(const Fragment& f, u64 row) {
        State one;
#pragma unroll
        for (u32 w = 0; w < kStateWords; w++) one.total[w] = f.totals[row * kGroupWords + kFirstState + w];
        one.begins = begins_at(f, row);
        one.partition = one.begins & kPartition ? static_cast<u32>(row) : 0;
        one.peers = one.begins & kPeers ? static_cast<u32>(row) : 0;
        one.dense = one.begins & kPeers ? 1 : 0;
        return one;
    }

    __device__ void add_total(const State& before, u32 s) {
        const u32 w = kStateWord[s];
        if (kStateIsMaximum[s]) {
            if (kStateIsWide[s])
                raise_words(total[w], total[w + 1], before.total[w], before.total[w + 1]);
            else
                total[w] = max(total[w], before.total[w]);
            return;
        }
        const u64 sum = total[w] + before.total[w];
        if (kStateIsWide[s]) total[w + 1] += before.total[w + 1] + (sum < before.total[w] ? 1 : 0);
        total[w] = sum;
    }

    // Combines this state with that of the rows before: the operator of the scan.
    __device__ void put_behind(const State& before) {
        if ((begins & kPartition) == 0) {
            partition = before.partition;
            dense += before.dense;
#pragma unroll
            for (u32 s = 0; s < kStates; s++) add_total(before, s);
        }
        if ((begins & kPeers) == 0) peers = before.peers;
        begins |= before.begins;
    }

    // Writes the state to memory in which a word of one state is `step` words before the next word of it.
    __device__ void put(u64* to, u32 step) const {
#pragma unroll
        for (u32 w = 0; w < kStateWords; w++) to[w * step] = total[w];
        to[kStateWords * step] = static_cast<u64>(peers) << 32 | partition;
        to[(kStateWords + 1) * step] = static_cast<u64>(begins) << 32 | dense;
    }

    __device__ static State get(const u64* from, u32 step) {
        State state;
#pragma unroll
        for (u32 w = 0; w < kStateWords; w++) state.total[w] = from[w * step];
        const u64 first = from[kStateWords * step], second = from[(kStateWords + 1) * step];
        state.partition = static_cast<u32>(first);
        state.peers = static_cast<u32>(first >> 32);
        state.dense = static_cast<u32>(second);
        state.begins = static_cast<u32>(second >> 32);
        return state;
    }
};

// Returns the state after the rows of all threads before this one, and in `all` that after the rows of the block.
// Every thread must call this, with the state of its rows.
__device__ inline State scanned(State own, State& all) {
    u64* shown = memory + threadIdx.x;
    own.put(shown, kThreads);
    for (u32 distance = 1; distance < kThreads; distance *= 2) {
        __syncthreads();
        const bool has_before = threadIdx.x >= distance;
        const State before = has_before ? State::get(shown - distance, kThreads) : State::none();
        __syncthreads();
        if (!has_before) continue;
        own.put_behind(before);
        own.put(shown, kThreads);
    }
    __syncthreads();
    all = State::get(memory + kThreads - 1, kThreads);
    const State before = threadIdx.x > 0 ? State::get(shown - 1, kThreads) : State::none();
    __syncthreads();
    return before;
}

// Window functions over the sorted list. `states` has a state for each stripe; `ends` has, for the first row of a
// partition or of peers, the last one.
struct Window {
    u64* states;
    u32* ends;

    __device__ explicit Window(const Fragment& f)
        : states(reinterpret_cast<u64*>(f.own_words[0])), ends(reinterpret_cast<u32*>(f.own_words[1])) {}

    // Calls a function with the index of each row of this thread in a tile and the state after it. `before` is the
    // state before the first. Returns the last state.
    template <class Function>
    __device__ static State of_tile(const Fragment& f, u64 tile, State before, const Function& function) {
        const u64 first = tile * kTileRows + threadIdx.x * kRowsOfThread;
        for (u32 i = 0; i < kRowsOfThread && first + i < f.groups; i++) {
            State state = State::of(f, first + i);
            state.put_behind(before);
            function(first + i, state);
            before = state;
        }
        return before;
    }

    // Writes the state of the rows of each stripe.
    __device__ void reduce(const Fragment& f) const {
        each_stripe(f, [&](u32 stripe, u64 tile, u64 end) {
            State carry = State::none(), all;
            for (; tile < end; tile++) {
                if (tile % kTilesUnchecked == 0 && block_must_end(f)) return;
                scanned(of_tile(f, tile, State::none(), [](u64, const State&) {}), all);
                all.put_behind(carry);
                carry = all;
            }
            if (threadIdx.x == 0) carry.put(states + stripe, kStripesMax);
        });
    }

    // Replaces the state of each stripe by that of all rows before it. One block does it.
    __device__ void scan(const Fragment& f) const {
        if (blockIdx.x != 0) return;
        constexpr u32 kOfThread = kStripesMax / kThreads;
        const u32 first = threadIdx.x * kOfThread, stripes = stripes_of(f);
        State own = State::none(), all;
        for (u32 stripe = first; stripe < min(first + kOfThread, stripes); stripe++) {
            State state = State::get(states + stripe, kStripesMax);
            state.put_behind(own);
            own = state;
        }
        State before = scanned(own, all);
        for (u32 stripe = first; stripe < min(first + kOfThread, stripes); stripe++) {
            State state = State::get(states + stripe, kStripesMax);
            before.put(states + stripe, kStripesMax);
            state.put_behind(before);
            before = state;
        }
    }

    // Writes the state after a row to the words of its functions.
    __device__ void write(const Fragment& f, u64 row, const State& state) const {
        u64* own = f.totals + row * kGroupWords;
        if (kRowNumberWord != kNoWord) own[kRowNumberWord] = row - state.partition + 1;
        if (kRankWord != kNoWord) own[kRankWord] = state.peers - state.partition + 1;
        if (kDenseRankWord != kNoWord) own[kDenseRankWord] = state.dense;
#pragma unroll
        for (u32 w = 0; w < kStateWords; w++) own[kFirstState + w] = state.total[w];
        if (kEndsWith == 0) return;
        const u32 start = kEndsWith == kPeers ? state.peers : state.partition;
        own[kStartWord] = start;
        if (begins_at(f, row + 1) & kEndsWith) ends[start] = static_cast<u32>(row);
    }

    __device__ void apply(const Fragment& f) const {
        each_stripe(f, [&](u32 stripe, u64 tile, u64 end) {
            if (block_must_end(f)) return;
            State carry = State::get(states + stripe, kStripesMax), all;
            for (; tile < end; tile++) {
                if (tile % kTilesUnchecked == 0 && block_must_end(f)) return;
                State before = scanned(of_tile(f, tile, State::none(), [](u64, const State&) {}), all);
                before.put_behind(carry);
                of_tile(f, tile, before, [&](u64 row, const State& state) { write(f, row, state); });
                all.put_behind(carry);
                carry = all;
            }
        });
    }

    // Copies the totals of the last row of each partition, or of the last peer, to the others.
    __device__ void spread(const Fragment& f) const {
        each_row(f, [&](u64 row) {
            u64* own = f.totals + row * kGroupWords;
            const u64 end = ends[own[kStartWord % kGroupWords]];
            if (end == row) return;
            const u64* last = f.totals + end * kGroupWords;
#pragma unroll
            for (u32 w = 0; w < kStateWords; w++) own[kFirstState + w] = last[kFirstState + w];
        });
    }
};

extern "C" __global__ void __launch_bounds__(kThreads) fragment(const __grid_constant__ Fragment f) {
    switch (f.constants[0]) {
        case kLoad: return Sort(f).load(f);
        case kCount: return Sort(f).count(f);
        case kPlace: return Sort(f).place(f);
        case kScatter: return Sort(f).scatter(f);
        case kGather: return Sort(f).gather(f);
        case kReduce: return Window(f).reduce(f);
        case kScan: return Window(f).scan(f);
        case kApply: return Window(f).apply(f);
        case kSpread: return Window(f).spread(f);
    }
}
