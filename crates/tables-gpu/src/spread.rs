//! Rows over several devices. Each device runs kernels over the chunks in its own memory. It builds the tables of joins
//! for itself, from columns in the memory of any device, and the totals of all devices are then added up.

use std::sync::Arc;

use forebay_movement::Tier;

use crate::column::Chunk;
use crate::columns::{Columns, Known, Resident, State};
use crate::engine::{Engine, Memory};

/// The devices that run over rows.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    /// The indexes of the devices, at least one. The first adds up the totals of all.
    pub(crate) devices: Vec<usize>,
    /// The device of each chunk of each file; empty if one device has all.
    of_chunks: Vec<Vec<usize>>,
}

impl Spread {
    /// Returns one device, for all rows.
    pub(crate) fn alone(device: usize) -> Spread {
        Spread {
            devices: vec![device],
            of_chunks: Vec::new(),
        }
    }

    /// Leaves a device its own rows: sets the numbers of rows of the other chunks to 0.
    pub(crate) fn keep(&self, device: usize, chunks: &mut [Vec<u32>]) {
        for (rows, devices) in chunks.iter_mut().zip(&self.of_chunks) {
            for (rows, of_chunk) in rows.iter_mut().zip(devices) {
                *rows *= u32::from(*of_chunk == device);
            }
        }
    }
}

impl Columns {
    /// Returns the engine that has allocated memory.
    pub(crate) fn engine_of(&self, memory: &Memory) -> &Arc<dyn Engine> {
        &self.engines[memory.device]
    }

    /// Returns the devices that are not lost; if all are, all.
    pub(crate) fn live(&self) -> Vec<usize> {
        let all = 0..self.engines.len();
        let live: Vec<usize> = all
            .clone()
            .filter(|it| !self.engines[*it].is_lost())
            .collect();
        match live.is_empty() {
            true => all.collect(),
            false => live,
        }
    }

    /// Returns the names of the devices, as in `cuda:0+cuda:1`.
    pub(crate) fn device_names(&self) -> String {
        let names: Vec<String> = self.engines.iter().map(|it| it.name()).collect();
        names.join("+")
    }

    /// Returns the device for the chunks of a stripe.
    pub(crate) fn device_of(&self, stripe: u32) -> usize {
        let live = self.live();
        live[stripe as usize % live.len()]
    }

    /// Returns the device that runs over the rows of a chunk: the one that has them, or the one that would.
    fn runs_on(&self, chunk: &Chunk) -> usize {
        match chunk.memory.tier {
            Tier::Device => chunk.memory.device,
            _ => self.device_of(chunk.stripe),
        }
    }

    /// Returns the devices that run over rows. `chunks` are the numbers of rows of the chunks, 0 for those of which
    /// none counts. Rows that are read pass by pass are on one device.
    pub(crate) fn spread(&self, resident: &Resident, chunks: &[Vec<u32>]) -> Spread {
        if self.engines.len() == 1 || resident.is_on_disk() {
            return Spread::alone(self.device_of(0));
        }
        let files = resident.files.iter().map(|columns| {
            let column = columns.values().max_by_key(|it| it.bytes.device);
            let chunks = column.iter().flat_map(|it| &it.chunks);
            chunks.map(|it| self.runs_on(it)).collect::<Vec<_>>()
        });
        let of_chunks: Vec<Vec<usize>> = files.collect();
        let all = chunks.iter().flatten().zip(of_chunks.iter().flatten());
        let mut devices: Vec<usize> = all
            .filter(|(rows, _)| **rows > 0)
            .map(|(_, device)| *device)
            .collect();
        devices.sort_unstable();
        devices.dedup();
        match devices[..] {
            [] => Spread::alone(self.device_of(0)),
            [device] => Spread::alone(device),
            _ => Spread { devices, of_chunks },
        }
    }

    /// Forgets the columns with rows on devices that were lost, so that they are read again, onto the others.
    pub(crate) fn forget_lost(&self, known: &mut Known) {
        let (lost, live): (Vec<usize>, Vec<usize>) =
            (0..self.engines.len()).partition(|it| self.engines[*it].is_lost());
        if lost.is_empty() || live.is_empty() {
            return;
        }
        known.columns.retain(|_, entry| match &entry.state {
            State::Here(column) => lost.iter().all(|device| column.bytes_on(*device) == 0),
            State::Away(_) | State::Refused(_) => true,
        });
    }
}
