//! The paper's figures: title, axes, and the paper's result in words, because the paper's plots have no numbers.

use super::draw::{Axes, Axis};

/// Description of a figure of the paper.
#[derive(Debug)]
pub(crate) struct About {
    /// Number of the figure.
    pub number: u32,
    /// Title of the figure.
    pub title: &'static str,
    /// Its axes.
    pub axes: Axes,
    /// Whether y is a rate. If so, latencies of a single client are converted to rates.
    pub is_rate: bool,
    /// Result in the paper.
    pub paper: &'static str,
}

/// Returns the figure of a plot with a name such as `figure-12-regex`.
pub(crate) fn about(plot: &str) -> Option<&'static About> {
    let number: u32 = plot.split('-').nth(1)?.parse().ok()?;
    FIGURES.iter().find(|about| about.number == number)
}

const BUCKET: &str = "maximum number of values per bucket";
const DOCUMENTS: &str = "documents";
const SEARCHES: &str = "searches/s";

const FIGURES: [About; 8] = [
    About {
        number: 6,
        title: "Exact searches for each bucket size, on 16 connections",
        axes: Axes {
            x: BUCKET,
            x_axis: Axis::Log2,
            y: SEARCHES,
            y_axis: Axis::Linear,
        },
        is_rate: true,
        paper: "constant up to buckets of 2^17 to 2^18 values, lower for larger buckets, because a search reads one bucket.",
    },
    About {
        number: 7,
        title: "Regular expressions for each bucket size, one client",
        axes: Axes {
            x: BUCKET,
            x_axis: Axis::Log2,
            y: SEARCHES,
            y_axis: Axis::Linear,
        },
        is_rate: true,
        paper: "rising up to buckets of 2^17 values, because each bucket takes a kernel launch; falling at 2^19, \
                because there are too few buckets for three GPUs.",
    },
    About {
        number: 8,
        title: "Time for a second device to join and to leave",
        axes: Axes {
            x: BUCKET,
            x_axis: Axis::Log2,
            y: "milliseconds",
            y_axis: Axis::Log10,
        },
        is_rate: false,
        paper: "shorter with larger buckets; leaving takes less time than joining.",
    },
    About {
        number: 9,
        title: "Exact searches for each number of documents and devices, on 16 connections",
        axes: Axes {
            x: DOCUMENTS,
            x_axis: Axis::Log10,
            y: SEARCHES,
            y_axis: Axis::Linear,
        },
        is_rate: true,
        paper: "with 100 million documents, three GPUs reach 1.73 times (local) and 2.14 times (remote) the rate of one GPU; 0.22 ms \
                (local) and 0.30 ms (remote) per search.",
    },
    About {
        number: 10,
        title: "Regular expressions for each number of documents and devices, one client",
        axes: Axes {
            x: DOCUMENTS,
            x_axis: Axis::Log10,
            y: SEARCHES,
            y_axis: Axis::Log10,
        },
        is_rate: true,
        paper: "with 100 million documents and three GPUs, 40.9 ms (local) and 44.0 ms (remote) per search: 24 and 23 searches/s.",
    },
    About {
        number: 11,
        title: "Exact searches, compared with programs that have an index, one client",
        axes: Axes {
            x: DOCUMENTS,
            x_axis: Axis::Log10,
            y: SEARCHES,
            y_axis: Axis::Log10,
        },
        is_rate: true,
        paper: "with 100 million documents, 2.79 times the throughput of MongoDB 2.6.6; 0.071 ms per search with MongoDB, 0.30 ms \
                with three remote GPUs.",
    },
    About {
        number: 12,
        title: "Pattern searches compared with other programs, one client",
        axes: Axes {
            x: DOCUMENTS,
            x_axis: Axis::Log10,
            y: SEARCHES,
            y_axis: Axis::Log10,
        },
        is_rate: true,
        paper: "with 100 million documents, 44.0 ms per search with three remote GPUs and 28,198.8 ms with MongoDB 2.6.6: 640.8 times.",
    },
    About {
        number: 13,
        title: "Inserts with zero to five cached or indexed fields",
        axes: Axes {
            x: "fields cached or indexed",
            x_axis: Axis::Linear,
            y: "documents/s",
            y_axis: Axis::Linear,
        },
        is_rate: true,
        paper: "almost constant with cached fields; falling with each indexed field of MongoDB.",
    },
];
