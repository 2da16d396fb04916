//! Rows over several devices. Each device runs kernels over the chunks in its own memory. It builds the tables of joins
//! for itself, from columns in the memory of any device, and the totals of all devices are then added up.

use std::sync::Arc;

use forebay_movement::Tier;

use crate::column::{Chunk, Column};
use crate::columns::{Columns, Resident, State};
use crate::engine::{Engine, Launch, Memory};
use crate::reason::Reason;
use crate::skipped::Counting;

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

    /// Returns the device that runs over the rows of a chunk, of devices that can: the one that has them, or the one
    /// that would.
    fn runs_on(&self, chunk: &Chunk, able: &[usize]) -> usize {
        let has_rows = chunk.memory.tier == Tier::Device && able.contains(&chunk.memory.device);
        match has_rows {
            true => chunk.memory.device,
            false => able[chunk.stripe as usize % able.len()],
        }
    }

    /// Returns the devices that run over the rows of a source. Rows that are read pass by pass, and those of which none
    /// counts, are on one device.
    ///
    /// # Errors
    /// If no device knows where all columns are.
    pub(crate) fn spread(
        &self,
        all: &[Resident],
        (source, counting): (usize, &Counting),
    ) -> Result<Spread, Reason> {
        let resident = &all[source];
        if self.engines.len() == 1 {
            return Ok(Spread::alone(0));
        }
        let mut able = self.live();
        let columns = || {
            all.iter()
                .flat_map(|it| &it.files)
                .flat_map(|it| it.values())
        };
        able.retain(|device| columns().all(|column| column.has_parts(*device)));
        let Some(first) = able.first() else {
            return Err(Reason::no_room(
                "no GPU has room to tell where all columns are",
            ));
        };
        if resident.is_on_disk() {
            return Ok(Spread::alone(*first));
        }
        let chunks = counting.rows(source, resident.chunks()?);
        let files = resident.files.iter().map(|columns| {
            let column = columns.values().max_by_key(|it| it.bytes.device);
            let chunks = column.iter().flat_map(|it| &it.chunks);
            chunks.map(|it| self.runs_on(it, &able)).collect::<Vec<_>>()
        });
        let of_chunks: Vec<Vec<usize>> = files.collect();
        let all = chunks.iter().flatten().zip(of_chunks.iter().flatten());
        let mut devices: Vec<usize> = all
            .filter(|(rows, _)| **rows > 0)
            .map(|(_, device)| *device)
            .collect();
        devices.sort_unstable();
        devices.dedup();
        Ok(match devices[..] {
            [] => Spread::alone(*first),
            [device] => Spread::alone(device),
            _ => Spread { devices, of_chunks },
        })
    }

    /// Forgets the columns with rows on devices that were lost, so that they are read again, onto the others.
    pub(crate) fn forget_lost(&self) {
        let live = self.live();
        if live.len() == self.engines.len() {
            return;
        }
        self.known
            .lock()
            .columns
            .retain(|_, entry| match &entry.state {
                State::Here(column) => column.is_on(&live),
                State::Away(_) | State::Refused(_) => true,
            });
    }

    /// Checks that what kernels read is on no device that was lost.
    ///
    /// # Errors
    /// If some is.
    pub(crate) fn check_lost(&self, launch: &Launch) -> Result<(), Reason> {
        let live = self.live();
        if live.len() == self.engines.len() || launch.held.iter().all(|it| it.is_on(&live)) {
            return Ok(());
        }
        Err(Reason::lost("a GPU with rows of its columns"))
    }
}

impl Column {
    /// Returns whether kernels of a device can find its chunks.
    fn has_parts(&self, device: usize) -> bool {
        self.chunks.is_empty() || matches!(self.parts.get(device), Some(Some(_)))
    }

    /// Returns whether all chunks in memory of devices are in that of these.
    fn is_on(&self, devices: &[usize]) -> bool {
        let mut chunks = self.chunks.iter().map(|it| &it.memory);
        chunks.all(|it| it.tier != Tier::Device || devices.contains(&it.device))
    }
}
