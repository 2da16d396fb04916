//! What the second pass reads from disk, one load after another.

use std::ops::Range;

use forebay_device::PAGE_BYTES;

/// Some partitions that are joined together, and what is read from disk for them. Of a partition that is larger than
/// the memory, each load has some runs of both sides, and each pair of runs is in exactly one load.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) partitions: Range<usize>,
    /// The rows of the build side and of the probe side.
    pub(crate) sides: [LoadOfSide; 2],
}

/// The rows of a side that a load joins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadOfSide {
    /// Whether the rows of the runs in memory are among them.
    pub(crate) with_memory: bool,
    /// The rows on disk.
    pub(crate) pages: Vec<Pages>,
}

/// Pages of a run on disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Index of the run among those of its side on disk.
    pub(crate) run: usize,
    /// Index of the run in the file: those of the build side are first.
    pub(crate) run_in_file: usize,
    /// Offset in the run of the first page.
    pub(crate) first: u64,
    /// Where they are in the memory. Pages follow each other there.
    pub(crate) at: Range<usize>,
}

/// Returns the loads of all partitions, for runs on disk of the build side and of the probe side.
///
/// `bytes` returns the byte range of some partitions in a run of a side. A load has at most `room` bytes, if two runs
/// fit in these.
pub(crate) fn loads(
    partitions: usize,
    runs: [usize; 2],
    room: u64,
    bytes: impl Fn(usize, usize, Range<usize>) -> Range<u64>,
) -> Vec<Load> {
    let pages = |side, run, of: &Range<usize>| whole_pages(bytes(side, run, of.clone()));
    let of_runs = |side: usize, of: &Range<usize>| -> Vec<u64> {
        let of_run = |run| {
            let pages = pages(side, run, of);
            pages.end - pages.start
        };
        (0..runs[side]).map(of_run).collect()
    };
    let fits = |of: &Range<usize>| {
        let sums = [0, 1].map(|side| of_runs(side, of).iter().sum::<u64>());
        sums[0] + sums[1] <= room
    };
    let mut loads = Vec::new();
    let mut begin = 0;
    while begin < partitions {
        let mut of = begin..begin + 1;
        while of.end < partitions && fits(&(begin..of.end + 1)) {
            of.end += 1;
        }
        begin = of.end;
        let share = if fits(&of) { room } else { room / 2 };
        for build in pieces(&of_runs(0, &of), share) {
            for probe in pieces(&of_runs(1, &of), share) {
                let sides = [build.clone(), probe];
                loads.push(load(&of, sides, runs[0], |side, run| pages(side, run, &of)));
            }
        }
    }
    loads
}

/// Returns the load of some runs of both sides.
fn load(
    partitions: &Range<usize>,
    [build, probe]: [Range<usize>; 2],
    build_runs: usize,
    pages: impl Fn(usize, usize) -> Range<u64>,
) -> Load {
    let mut end = 0;
    let mut of_side = |side: usize, runs: Range<usize>| {
        let mut found = LoadOfSide {
            with_memory: runs.start == 0,
            pages: Vec::new(),
        };
        for run in runs {
            let pages = pages(side, run);
            if pages.is_empty() {
                continue;
            }
            let at = end..end + (pages.end - pages.start) as usize;
            end = at.end;
            found.pages.push(Pages {
                run,
                run_in_file: side * build_runs + run,
                first: pages.start,
                at,
            });
        }
        found
    };
    Load {
        partitions: partitions.clone(),
        sides: [of_side(0, build), of_side(1, probe)],
    }
}

/// Splits runs, whose bytes are given, into as few ranges as possible of at most `room` bytes. Returns at least one.
fn pieces(bytes: &[u64], room: u64) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut begin, mut sum) = (0, 0);
    for (run, bytes) in bytes.iter().enumerate() {
        if sum + bytes > room && begin < run {
            pieces.push(begin..run);
            (begin, sum) = (run, 0);
        }
        sum += bytes;
    }
    pieces.push(begin..bytes.len());
    pieces
}

/// Returns the whole pages that contain some bytes; `0..0` if there are none.
fn whole_pages(bytes: Range<u64>) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    match bytes.is_empty() {
        true => 0..0,
        false => bytes.start / page * page..bytes.end.next_multiple_of(page),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    /// Asserts that loads join each row of the build side with each of the probe side once, and have room.
    fn assert_is_join(loads: &[Load], partitions: usize, runs: [usize; 2], room: u64) {
        let mut pairs = BTreeSet::new();
        for load in loads {
            let [build, probe] = &load.sides;
            // The runs in memory are one more run.
            let of = |side: &LoadOfSide| -> Vec<Option<usize>> {
                let memory = side.with_memory.then_some(None);
                let pages = side.pages.iter().map(|pages| Some(pages.run));
                memory.into_iter().chain(pages).collect()
            };
            for partition in load.partitions.clone() {
                for run in of(build) {
                    for to in of(probe) {
                        let is_new = pairs.insert((partition, run, to));
                        assert!(is_new, "{partition}: {run:?}, {to:?}");
                    }
                }
            }
            let mut end = 0;
            for pages in build.pages.iter().chain(&probe.pages) {
                assert_eq!(pages.at.start, end);
                end = pages.at.end;
            }
            assert!(end as u64 <= room, "{load:?}");
        }
        assert_eq!(pairs.len(), partitions * (runs[0] + 1) * (runs[1] + 1));
    }

    #[test]
    fn partitions_share_loads_that_have_room_for_them() {
        // Each run has two pages of each partition.
        let bytes = |_: usize, _: usize, of: Range<usize>| {
            of.start as u64 * 2 * PAGE..of.end as u64 * 2 * PAGE
        };
        for (room, count) in [(1000, 1), (30, 3), (10, 8), (9, 8 * 2), (4, 8 * 6)] {
            let loads = loads(8, [3, 2], room * PAGE, bytes);
            assert_is_join(&loads, 8, [3, 2], room * PAGE);
            assert_eq!(loads.len(), count, "{room} pages");
        }
        let all = loads(8, [3, 2], 30 * PAGE, bytes);
        let expected = Pages {
            run: 1,
            run_in_file: 4,
            first: 6 * PAGE,
            at: 24 * PAGE_BYTES..30 * PAGE_BYTES,
        };
        assert_eq!(all[1].sides[1].pages[1], expected);
    }

    #[test]
    fn bytes_are_read_in_whole_pages_and_runs_without_rows_are_not() {
        let bytes = |side: usize, run: usize, _: Range<usize>| match (side, run) {
            (0, 1) => PAGE - 1..PAGE + 1,
            (1, 0) => 5 * PAGE..5 * PAGE + 1,
            _ => 7..7,
        };
        let loads = loads(1, [2, 2], 3 * PAGE, bytes);
        let [build, probe] = &loads[0].sides;
        let of = |side: &LoadOfSide| {
            let pages = &side.pages[0];
            (side.pages.len(), pages.run, pages.first, pages.at.clone())
        };
        assert_eq!(of(build), (1, 1, 0, 0..2 * PAGE_BYTES));
        assert_eq!(of(probe), (1, 0, 5 * PAGE, 2 * PAGE_BYTES..3 * PAGE_BYTES));
        assert_eq!(loads.len(), 1);
    }

    #[test]
    fn without_runs_on_disk_all_partitions_are_joined_at_once() {
        let loads = loads(64, [0, 0], 0, |_, _, _| 0..0);
        assert_eq!(loads.len(), 1);
        assert_is_join(&loads, 64, [0, 0], 0);
    }
}
