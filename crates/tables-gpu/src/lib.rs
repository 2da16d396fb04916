//! Parts of SQL plans on GPUs: scans, conditions and aggregates in one generated kernel over packed columns in device
//! memory.
//!
//! [`rule`] is the rule for the engine's plans. It puts an operator above each aggregate that kernels can compute, and
//! above joins and conditions whose rows no aggregate reads. When the operator runs, its columns are in memory of the
//! device, or in pinned memory of the host, and kernels compute the result, or the CPU does, with the same rows.
#![deny(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use forebay_device::{Device, OutOfMemory};
use forebay_memory::Account;
use forebay_movement::pick::Measurements;
use forebay_tables::GpuRule;

mod above;
mod adding;
mod aggregates;
mod alternatives;
mod amounts;
mod arguments;
mod arithmetic;
mod column;
mod column_file;
mod columns;
mod comments;
mod computed;
mod conditional;
mod constants;
mod cost;
mod counts;
mod declared;
mod determined;
mod disk;
mod distinct;
mod domain;
mod draft;
mod engine;
mod exists;
mod explain;
mod expression;
mod figures;
mod file_key;
mod fingerprint;
mod float_code;
mod floats;
mod fragment;
mod from_disk;
mod full;
mod giving_way;
mod gpu;
mod gpu_files;
mod groups;
mod halves;
mod hopeless;
mod host;
mod in_list;
mod join;
mod joined;
mod kept;
mod keys;
mod largest;
#[expect(unsafe_code, reason = "the launch of a kernel")]
mod launch;
mod launches;
mod limit;
mod load;
mod merge;
mod on_cpu;
mod on_device;
mod operator;
mod order;
mod ordinal;
mod origin;
mod outer;
mod packed;
mod partitions;
mod passes;
mod pattern;
mod placement;
mod program;
mod ranks;
mod reason;
mod reduced;
mod result;
mod rule;
mod scanned;
mod search;
mod selection;
mod sets;
mod skipped;
mod slice;
mod source;
mod spread;
#[cfg(test)]
mod tests;
mod texts;
mod times;
mod turns;
mod union;
mod uses;
mod value;
mod variance;
mod window;
mod work;
mod written;

/// The folder of column files.
#[derive(Debug)]
pub struct ColumnFiles {
    /// Path of the folder. It is made if there is none.
    pub folder: PathBuf,
    /// Maximum bytes of all files.
    pub max_bytes: u64,
    /// The rates of this machine's storage paths, if they were measured.
    pub measurements: Option<Measurements>,
}

/// Limits of the memory of each GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Maximum bytes of columns and of what queries make.
    pub max_bytes: u64,
    /// Their share of the device's memory, in percent: other tenants give it back on demand, and never take it.
    pub share_percent: u8,
}

/// Returns the rule that gives parts of plans to GPUs, of which each [reaches](Device::reaches) the memory of the
/// others. Columns take memory of each within `limits`. Columns without room there are in pinned memory of the host,
/// which is a share of `host`. What was packed is kept in `files`; a folder that cannot be used is logged, and nothing
/// is kept.
///
/// # Errors
/// [`OutOfMemory`] if a device has no memory.
pub fn rule(
    gpus: Vec<Arc<Device>>,
    limits: DeviceLimits,
    host: &Account,
    files: Option<ColumnFiles>,
) -> Result<Arc<dyn GpuRule>, OutOfMemory> {
    let freeing = giving_way::Freeing::default();
    let measurements = files.as_ref().and_then(|it| it.measurements.clone());
    let engines = gpu::open_all(gpus, limits, host.share(), measurements.as_ref(), &freeing)?;
    let disk = files.and_then(|files| {
        let opened = disk::Disk::open(files.folder.clone(), files.max_bytes);
        let warn = |why| tracing::warn!(%why, folder = %files.folder.display(), "no column files");
        opened.map_err(warn).ok()
    });
    let columns = columns::Columns::new(engines, &freeing, disk);
    if let Some(measurements) = &measurements {
        columns.costs.set(measurements);
    }
    Ok(Arc::new(rule::Fragments(columns)))
}
