//! What kernels did for a query, as `EXPLAIN ANALYZE` tells it.

use std::time::{Duration, Instant};

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::column::Bytes;
use crate::columns::Resident;
use crate::engine::Launch;
use crate::from_disk::FromDisk;

/// Rows that were divided by the slices of tables of joins.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Divided {
    pub(crate) rows: u64,
    /// Largest number of slices.
    pub(crate) count: usize,
    pub(crate) bytes: u64,
    /// The part of `bytes` that is in memory of the host.
    pub(crate) host_bytes: u64,
}

/// What kernels did.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) began: Instant,
    /// The memory for what they return.
    pub(crate) held: MemoryReservation,
    /// When the query began to use its columns.
    pub(crate) used: u64,
    pub(crate) kernels: usize,
    /// The devices that ran some, the first that did first.
    devices: Vec<usize>,
    pub(crate) columns: usize,
    /// Number of rows that they read.
    pub(crate) rows: u64,
    /// Bytes of the tables of joins if they were whole, and of the totals of all slices of the groups.
    pub(crate) table_bytes: u64,
    pub(crate) group_bytes: u64,
    /// Number of slices of each table of a join, in all combinations of which they were made; or of all combinations,
    /// if some slices were divided.
    pub(crate) table_slices: Vec<u64>,
    /// Number of slices of the groups.
    pub(crate) group_slices: usize,
    pub(crate) divided: Divided,
    /// Bytes of these columns, without chunks that are skipped.
    pub(crate) bytes: Bytes,
    /// Time of the kernels on the device.
    pub(crate) took: Duration,
    /// What was read from column files, before them.
    pub(crate) from_disk: FromDisk,
    /// Time of searches of texts on the device, before them.
    pub(crate) searched: Duration,
    /// Time that they waited for the compiler.
    pub(crate) compiled: Duration,
}

impl Figures {
    pub(crate) fn new(context: &TaskContext, used: u64) -> Figures {
        Figures {
            began: Instant::now(),
            used,
            held: MemoryConsumer::new("totals").register(context.memory_pool()),
            kernels: 0,
            devices: Vec::new(),
            columns: 0,
            rows: 0,
            table_bytes: 0,
            group_bytes: 0,
            table_slices: Vec::new(),
            group_slices: 0,
            divided: Divided::default(),
            bytes: Bytes::default(),
            took: Duration::ZERO,
            from_disk: FromDisk::default(),
            searched: Duration::ZERO,
            compiled: Duration::ZERO,
        }
    }

    /// Adds the kernels of a launch on a device. Of the devices other than the first, only the rows that they add to
    /// totals count: all store the same rows of joins, and read the same columns.
    pub(crate) fn add(&mut self, launch: &Launch, device: usize) {
        let is_first = self.devices.first().is_none_or(|first| *first == device);
        if !self.devices.contains(&device) {
            self.devices.push(device);
        }
        let counted = launch.kernels.iter();
        // Kernels that store rows of joins have words of their own.
        let counted = counted.filter(|it| is_first || it.own_words.is_empty());
        let chunks = counted.flat_map(|it| &it.chunks).flatten();
        self.rows += chunks.map(|rows| u64::from(*rows)).sum::<u64>();
        if !is_first {
            return;
        }
        self.kernels += launch.kernels.len();
        let columns = launch.kernels.iter().map(|it| it.columns);
        self.columns += columns.sum::<usize>();
        for kernel in &launch.kernels {
            self.bytes += kernel.bytes;
        }
    }

    /// Returns what `EXPLAIN ANALYZE` prints.
    pub(crate) fn text(&self, resident: &[Resident]) -> String {
        let mut rows = self.rows.to_string();
        let all: u64 = resident.iter().map(Resident::rows).sum();
        if self.rows < all {
            // The others are in chunks of which no row counts.
            rows = format!("{rows} of {all}");
        }
        let kernels = match self.kernels {
            1 => "a kernel".to_owned(),
            several => format!("{several} kernels"),
        };
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let mut text = format!(
            "{rows} rows of {} columns, {:.1} MB on the device",
            self.columns,
            megabytes(self.bytes.device),
        );
        if self.bytes.host > 0 {
            let (device, host) = (self.bytes.device, self.bytes.host);
            let share = 100.0 * device as f64 / (device + host) as f64;
            text += &format!(" ({share:.1} %) and {:.1} MB on the host", megabytes(host));
        }
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        if self.from_disk.bytes > 0 {
            let FromDisk { bytes, took, path } = &self.from_disk;
            text += &format!(
                ", {:.1} MB read from disk by {path} in {:.0} ms",
                megabytes(*bytes),
                ms(*took)
            );
        }
        if !self.searched.is_zero() {
            text += &format!(", texts searched in {:.3} ms", ms(self.searched));
        }
        for (bytes, slices, of) in [
            (self.table_bytes, &*self.table_slices, "tables of joins"),
            (self.group_bytes, &[self.group_slices as u64][..], "groups"),
        ] {
            let is_sliced = slices.iter().product::<u64>() > 1;
            if is_sliced || bytes > 0 && self.table_bytes > 0 {
                text += &format!(", {of} of {:.1} MB", megabytes(bytes));
            }
            if is_sliced {
                let slices: Vec<_> = slices.iter().map(u64::to_string).collect();
                text += &format!(" in {} slices", slices.join(" x "));
            }
        }
        if self.divided.count > 0 {
            let Divided { rows, count, .. } = self.divided;
            let (bytes, host) = (self.divided.bytes, self.divided.host_bytes);
            let all = megabytes(bytes);
            text += &format!(", {rows} rows in {count} partitions of {all:.1} MB");
            if host > 0 {
                text += &format!(", {:.1} MB of them on the host", megabytes(host));
            }
        }
        text += &format!(", by {kernels} in {:.3} ms", ms(self.took));
        if self.devices.len() > 1 {
            text += &format!(" on each of {} GPUs", self.devices.len());
        }
        if !self.compiled.is_zero() {
            text += &format!(", compiled in {:.0} ms", ms(self.compiled));
        }
        text + &format!(
            ", {:.3} ms with what is before and after",
            ms(self.began.elapsed())
        )
    }
}
