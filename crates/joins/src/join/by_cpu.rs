//! The first pass by the CPU: each thread divides one chunk after another.

use std::mem;
use std::ops::Range;

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Stream, Transfer};
use forebay_hash_index::{HostRows, HostSieve, HostSlices, RunShape, Side as JoinSide, Slices};
use parking_lot::Mutex;

use super::{PartitionedJoin, Side, on_gpu};
use crate::crew::Crew;
use crate::divide::{Place, RunMemory, SpillPart};
use crate::{JoinError, PinnedColumns};

/// Where the CPU's run goes.
enum To {
    Device(DeviceView<u8>),
    Host(SpillPart),
}

impl RunMemory {
    /// Takes the memory of the next run: in the device, as long as there is some.
    fn take(&mut self) -> To {
        match self.resident.pop() {
            Some(to) => To::Device(to),
            None => To::Host(self.spill.pop().expect("a part for each run")),
        }
    }
}

impl PartitionedJoin {
    /// Divides chunks of a side into these runs on threads of the CPU, without the rows that a sieve drops. Returns the
    /// runs and the memory that is left.
    pub(super) fn divide_by_cpu(
        &self,
        chunks: &PinnedColumns,
        (slices, runs): (Slices, &Range<usize>),
        mut memory: RunMemory,
        (sieve, stop): (Option<(&HostSieve, JoinSide)>, &Stop),
    ) -> Result<(Side<Place>, RunMemory), JoinError> {
        let (shape, device) = (self.plan.run, &*self.device);
        let chunks = rows_of_runs(chunks.host_rows(), shape, runs.len());
        let chunks = chunks.into_iter().map(|rows| (rows, memory.take()));
        let chunks: Vec<(HostRows<'_>, To)> = chunks.collect();
        let staging = Mutex::new(mem::take(&mut memory.staging));
        let (crew, stream) = (Crew::new(stop), &memory.stream);
        let divided = crew.each(chunks, self.plan.threads, |(rows, to)| match to {
            To::Host(mut part) => {
                let slices = shape.divide(rows, sieve, &mut part);
                Ok((slices, Place::Host(part)))
            }
            To::Device(view) => {
                let part = staging.lock().pop();
                let mut part = part.expect("a part for each thread");
                let slices = shape.divide(rows, sieve, &mut part);
                let part = copied(device, part, &view, stream)?;
                staging.lock().push(part);
                Ok((slices, Place::Device(view)))
            }
        });
        crew.end()?;
        memory.staging = staging.into_inner();
        let (of_runs, places): (Vec<HostSlices>, Vec<Place>) = divided.into_iter().unzip();
        let (first, stream) = (runs.start, self.memory.kernels.clone());
        let slices = on_gpu(device, move |cuda| {
            let mut slices = slices;
            slices.write(cuda, first, &of_runs, &stream)?;
            Ok(slices)
        })?;
        let runs = places;
        Ok((Side { slices, runs }, memory))
    }
}

/// Returns the rows of each run of a side, of which all but the last are full.
fn rows_of_runs(rows: HostRows<'_>, shape: RunShape, runs: usize) -> Vec<HostRows<'_>> {
    let count = rows.count(shape.width());
    let of_run = |run: u64| {
        let first = run * shape.rows();
        rows.part(shape.width(), first..count.min(first + shape.rows()))
    };
    (0..runs as u64).map(of_run).collect()
}

/// Copies a run to device memory. Blocks until it is there, and returns the host memory.
fn copied(
    device: &Device,
    from: SpillPart,
    to: &DeviceView<u8>,
    stream: &Stream,
) -> Result<SpillPart, JoinError> {
    let (to, stream) = (to.clone(), stream.clone());
    let copy = on_gpu(device, move |cuda| {
        Ok(Transfer::begin(cuda, from, to, &stream)?)
    })?;
    let ends = copy.finish();
    let (from, _) = ends.map_err(|fault| JoinError::lost(device, &fault))?;
    Ok(from)
}

#[cfg(test)]
mod tests {
    use forebay_hash_index::Width;

    use super::*;

    #[test]
    fn runs_have_all_rows_once() {
        let shape = RunShape::new(Width::Four, 10, 1);
        let bytes: Vec<u8> = (0..120).collect();
        for (rows, runs) in [(0, 0), (1, 1), (10, 1), (11, 2), (30, 3)] {
            let columns = HostRows {
                keys: &bytes[..4 * rows],
                payloads: &bytes[..4 * rows],
            };
            let of_runs = rows_of_runs(columns, shape, runs);
            assert_eq!(of_runs.len(), runs);
            assert!(of_runs.iter().all(|run| (1..=40).contains(&run.keys.len())));
            let keys: Vec<u8> = of_runs.iter().flat_map(|run| run.keys).copied().collect();
            assert_eq!(keys, columns.keys);
            let payloads: Vec<&[u8]> = of_runs.iter().map(|run| run.payloads).collect();
            assert_eq!(payloads.concat(), columns.payloads);
        }
    }
}
