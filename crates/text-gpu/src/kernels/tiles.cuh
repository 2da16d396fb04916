// Walking the tiles of a table of chunks, and reporting the rows that match.
//
// A tile is 32 rows of the same number of 8-byte words, interleaved: word w of row r stands at index w * 32 + r, so that a
// warp reads 256 contiguous bytes a step and its lanes end together (Sitaridi and Ross, "GPU-accelerated string matching
// for database applications", VLDB Journal 2016). Bytes after a value are 0xFF, which UTF-8 never contains.
#pragma once

#include "arguments.cuh"

constexpr u32 kLanes = 32;
constexpr u32 kAllLanes = 0xFFFFFFFFu;
constexpr u64 kPadding = ~0ull;

// The words of one row.
struct Row {
    const u64* first;
    u32 words;

    __device__ u64 word(u32 index) const { return index < words ? __ldg(first + index * kLanes) : kPadding; }
    __device__ u8 byte(u32 index) const { return (u8)(word(index / 8) >> (index % 8 * 8)); }
};

// The number that the row at a position has in its block.
__device__ inline u32 row_at(const Segment& segment, u32 position) {
    return segment.rows != nullptr ? segment.rows[position] : position;
}

// The rows that match queries of one launch: counted, and with kList also written out.
template <u32 kQueries, bool kList>
struct Report {
    const ScanArguments& arguments;
    u32 lane = threadIdx.x % kLanes;
    // Rows that match query `lane`.
    u32 count = 0;

    __device__ explicit Report(const ScanArguments& arguments) : arguments(arguments) {}

    // Takes what the lanes of a warp found for a query in one tile.
    __device__ void add(u32 query, bool matches, const Chunk& chunk, u32 row) {
        if (matches && chunk.has_dead) matches = !is_dead(chunk, row);
        const u32 ballot = __ballot_sync(kAllLanes, matches);
        if (lane == query) count += __popc(ballot);
        if (kList && ballot != 0) write(query, ballot, matches, chunk, row);
    }

    __device__ bool is_dead(const Chunk& chunk, u32 row) const {
        const Segment& segment = arguments.segments[chunk.segment];
        const u32 original = row_at(segment, chunk.position + row);
        return segment.dead[original / 32] >> (original % 32) & 1;
    }

    __device__ void write(u32 query, u32 ballot, bool matches, const Chunk& chunk, u32 row) const {
        const Query& wanted = arguments.queries[query];
        if (wanted.want == kWantCount) return;
        u32 slot = 0;
        if (lane == 0) slot = atomicAdd(wanted.listed, __popc(ballot));
        slot = __shfl_sync(kAllLanes, slot, 0) + __popc(ballot & ((1u << lane) - 1));
        if (!matches || slot >= wanted.capacity) return;
        const Segment& segment = arguments.segments[chunk.segment];
        const u32 position = chunk.position + row;
        wanted.output[slot] = segment.first_row + row_at(segment, position);
    }

    // Whether every query has all that it wants.
    __device__ bool is_enough() const {
        if (!kList || kQueries > 1) return false;
        const Query& wanted = arguments.queries[0];
        return wanted.want != kWantCount && *(volatile u32*)wanted.listed >= wanted.limit;
    }

    __device__ void finish() const {
        if (lane < kQueries && count != 0) atomicAdd(arguments.counters + lane, (u64)count);
    }
};

// Bytes of the image at the start of shared memory: tables that every row is looked up in.
__device__ inline const u8* load_image(const ScanArguments& arguments) {
    extern __shared__ uint4 shared_image[];
    for (u32 index = threadIdx.x; index < arguments.image_bytes / 16; index += blockDim.x)
        shared_image[index] = ((const uint4*)arguments.image)[index];
    __syncthreads();
    return (const u8*)shared_image;
}

// Some words of a row from one on; padding beyond the last that is read.
template <u32 kCount>
__device__ void load_words(u64 (&words)[kCount], const Row& row, u32 first, u32 read) {
#pragma unroll
    for (u32 index = 0; index < kCount; ++index)
        words[index] = first + index < read ? __ldcs(row.first + (first + index) * kLanes) : kPadding;
}

template <class Matcher, class Report>
__device__ void report_tile(const Matcher& matcher, Report& report, const typename Matcher::State& state,
                            const Chunk& chunk, u32 row) {
    if (!__any_sync(kAllLanes, matcher.matches_any(state))) return;
#pragma unroll(Matcher::kQueriesUnrolled)
    for (u32 query = 0; query < Matcher::kQueries; ++query)
        if (Matcher::kQueries == 1 || query < report.arguments.query_count)
            report.add(query, row < chunk.rows && matcher.matches(state, query), chunk, row);
}

// Rows of more than one word: one row a lane, the next few words on their way while these are read.
template <class Matcher, class Report>
__device__ void scan_tile(const Matcher& matcher, Report& report, const Chunk& chunk, u32 tile) {
    constexpr u32 kAhead = Matcher::kWordsAhead;
    const u32 row = tile * kLanes + report.lane;
    const Row words{chunk.words + (u64)tile * chunk.words_per_row * kLanes + report.lane, chunk.words_per_row};
    const u32 read = Matcher::kFirstWordOnly ? min(words.words, 1u) : words.words;
    typename Matcher::State state;
    matcher.begin(state);
    u64 ahead[kAhead];
    load_words(ahead, words, 0, read);
    for (u32 first = 0; first < read; first += kAhead) {
        u64 now[kAhead + 1];
#pragma unroll
        for (u32 index = 0; index < kAhead; ++index) now[index] = ahead[index];
        load_words(ahead, words, first + kAhead, read);
        now[kAhead] = ahead[0];
#pragma unroll
        for (u32 index = 0; index < kAhead; ++index)
            if (first + index < read) matcher.word(state, words, first + index, now[index], now[index + 1]);
        if (Matcher::kEndsEarly && __all_sync(kAllLanes, matcher.is_decided(state))) break;
    }
    matcher.end(state, words);
    report_tile(matcher, report, state, chunk, row);
}

// Rows of one word: several tiles a step, so that enough bytes are on their way.
template <class Matcher, class Report, u32 kTiles>
__device__ void scan_short_tiles(const Matcher& matcher, Report& report, const Chunk& chunk, u32 first_tile) {
    const u32 warps = blockDim.x / kLanes;
    u64 words[kTiles];
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index) {
        const u32 row = (first_tile + index * warps) * kLanes + report.lane;
        words[index] = row < chunk.rows ? __ldcs(chunk.words + row) : kPadding;
    }
    typename Matcher::State states[kTiles];
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index) {
        const u32 row = (first_tile + index * warps) * kLanes + report.lane;
        const Row whole{chunk.words + row, 1};
        matcher.begin(states[index]);
        matcher.word(states[index], whole, 0, words[index], kPadding);
        matcher.end(states[index], whole);
    }
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index) {
        const u32 row = (first_tile + index * warps) * kLanes + report.lane;
        report_tile(matcher, report, states[index], chunk, row);
    }
}

// Every chunk of the launch, dealt out to its blocks in turn.
template <class Matcher, bool kList>
__device__ void scan(const ScanArguments& arguments) {
    const Matcher matcher(arguments, load_image(arguments));
    Report<Matcher::kQueries, kList> report(arguments);
    const u32 warp = threadIdx.x / kLanes, warps = blockDim.x / kLanes;
    for (u32 index = arguments.chunk_begin + blockIdx.x; index < arguments.chunk_end; index += gridDim.x) {
        if (report.is_enough()) break;
        const Chunk chunk = arguments.chunks[index];
        const u32 tiles = (chunk.rows + kLanes - 1) / kLanes;
        if (chunk.words_per_row == 1) {
            for (u32 tile = warp; tile < tiles; tile += warps * Matcher::kShortTiles)
                scan_short_tiles<Matcher, decltype(report), Matcher::kShortTiles>(matcher, report, chunk, tile);
        } else {
            for (u32 tile = warp; tile < tiles; tile += warps) scan_tile(matcher, report, chunk, tile);
        }
    }
    report.finish();
}
