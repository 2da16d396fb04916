// Reports matching rows: counts them, and writes them to lists if `kList`.
#pragma once

#include "matcher.cuh"

// Row numbers that a warp collects for a list, in shared memory. Writing 32 at a time takes one atomic addition to the
// counter and one write of 128 bytes.
template <bool kUsed>
struct Stage {};

template <>
struct Stage<true> {
    u32* rows = rows_of_warp();
    u32 held = 0;

    __device__ static u32* rows_of_warp() {
        __shared__ u32 rows[kThreads / kLanes][2 * kLanes];
        return rows[this_warp()];
    }

    // Stores the row of each lane whose `matches` is set.
    __device__ void add(u32 matching, bool matches, u32 row) {
        if (matches) rows[held + place_in(matching, this_lane())] = row;
        held += __popc(matching);
        __syncwarp();
    }

    // Removes the first `count` rows and returns one to each lane, in order. At most 32 rows remain.
    __device__ u32 take(u32 count) {
        const u32 first = rows[this_lane()], rest = rows[this_lane() + kLanes];
        __syncwarp();
        rows[this_lane()] = rest;
        held -= count;
        __syncwarp();
        return first;
    }
};

// Results of a warp for the queries of its launch.
template <Matcher M, bool kList>
struct Report {
    // Only lists of a single query are staged: several queries would need one stage each.
    static constexpr bool kMayStage = kList && kStagedLists && M::kQueries == 1;

    const Scan& scan;
    // Each lane counts the matches of one query, whose index is the lane's number.
    u32 count = 0;
    Stage<kMayStage> stage = {};
    bool is_staged;

    __device__ explicit Report(const Scan& scan)
        : scan(scan), is_staged(kMayStage && scan.outputs[0].limit >= kStagedLimitMin) {}

    // Records the lanes' matches of a query in one tile.
    __device__ void add(u32 query, bool matches, const Chunk& chunk, u32 row) {
        if (matches && chunk.has_deleted) matches = !is_deleted(chunk, row);
        const u32 matching = ballot(matches);
        if (this_lane() == query) count += __popc(matching);
        if (kList && matching != 0 && scan.outputs[query].wants_rows) list(query, matching, matches, chunk, row);
    }

    __device__ bool is_deleted(const Chunk& chunk, u32 row) const {
        const Segment& segment = scan.segments[chunk.segment];
        const u32 original = row_in(segment, chunk.position + row);
        return segment.deleted[original / 32] >> (original % 32) & 1;
    }

    // Returns the number of the row at a position. Rows are numbered within their segment.
    __device__ static u32 row_in(const Segment& segment, u32 position) {
        return segment.rows != nullptr ? segment.rows[position] : position;
    }

    // Returns the number of a chunk's row. Rows are numbered across the whole table.
    __device__ u32 row_in_table(const Chunk& chunk, u32 row) const {
        const Segment& segment = scan.segments[chunk.segment];
        return segment.first_row + row_in(segment, chunk.position + row);
    }

    // Sets the mark of a row; see `ScanWant::Marks`.
    __device__ static void mark(u32* marks, u32 row) {
        atomicOr(&marks[row / 256 * kLanes + row % kLanes], 1u << (row / kLanes % 8 * 4));
    }

    __device__ void list(u32 query, u32 matching, bool matches, const Chunk& chunk, u32 row) {
        if (u32* marks = scan.outputs[query].marks; marks != nullptr) {
            if (matches) mark(marks, row_in_table(chunk, row));
            return;
        }
        if constexpr (kMayStage) {
            if (is_staged) {
                stage.add(matching, matches, matches ? row_in_table(chunk, row) : 0);
                if (stage.held >= kLanes) write_staged(kLanes);
                return;
            }
        }
        const Output& output = scan.outputs[query];
        const u32 first = warp_add(&scan.counters->listed[query], __popc(matching));
        const u32 slot = first + place_in(matching, this_lane());
        if (matches && slot < output.capacity) output.rows[slot] = row_in_table(chunk, row);
    }

    __device__ void write_staged(u32 rows) {
        const Output& output = scan.outputs[0];
        const u32 slot = warp_add(&scan.counters->listed[0], rows) + this_lane();
        const u32 number = stage.take(rows);
        if (this_lane() < rows && slot < output.capacity) output.rows[slot] = number;
    }

    // Returns whether the single query has reached its limit. A stale counter is harmless: the block searches one more
    // chunk, whose matches are counted and listed as usual.
    __device__ bool is_enough() const {
        if (!kList || M::kQueries > 1) return false;
        const Output& output = scan.outputs[0];
        return output.wants_rows && load_relaxed(&scan.counters->listed[0]) >= output.limit;
    }

    __device__ void finish() {
        if constexpr (kMayStage)
            if (stage.held != 0) write_staged(stage.held);
        if (this_lane() < M::kQueries && count != 0)
            atomicAdd(&scan.counters->matches[this_lane()], static_cast<u64>(count));
    }
};
