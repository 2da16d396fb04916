//! The processor of the first pass, and the rows that it drops.

use forebay_hash_index::{HostSieve, Sieve, Sifted, Slices};

use super::{PartitionedJoin, SIDES, check_host_memory, on_gpu};
use crate::JoinError;

/// The processor that divides both sides, with the sieve that drops rows before.
pub(super) enum Divider {
    Gpu(Option<Sieve>),
    Cpu(Option<HostSieve>),
}

impl PartitionedJoin {
    /// Returns a processor with a sieve with these heavy keys, in its memory; without one if it would drop no row.
    pub(super) fn divider(
        &self,
        is_by_cpu: bool,
        heavy_keys: &[u64],
    ) -> Result<Divider, JoinError> {
        let (run, filter_rows) = (self.plan.run, self.plan.filter_rows());
        let has_sieve = !heavy_keys.is_empty() || filter_rows.is_some();
        if is_by_cpu {
            // A filter takes a byte for each row.
            check_host_memory(filter_rows.unwrap_or(0))?;
            let sieve = has_sieve.then(|| HostSieve::new(heavy_keys, filter_rows));
            return Ok(Divider::Cpu(sieve));
        }
        if !has_sieve {
            return Ok(Divider::Gpu(None));
        }
        let (heavy_keys, stream) = (heavy_keys.to_vec(), self.memory.kernels.clone());
        on_gpu(&self.device, move |cuda| {
            let sieve = Sieve::new(cuda, run, (&heavy_keys, filter_rows), &stream)?;
            Ok(Divider::Gpu(Some(sieve)))
        })
    }

    /// Returns the results of a sieve, after both sides were divided, and frees its memory.
    pub(super) fn sifted(&self, divider: Divider) -> Result<Sifted, JoinError> {
        let sieve = match divider {
            Divider::Gpu(Some(sieve)) => sieve,
            Divider::Cpu(Some(sieve)) => return Ok(sieve.finish()),
            Divider::Gpu(None) | Divider::Cpu(None) => return Ok(Sifted::default()),
        };
        let stream = self.memory.kernels.clone();
        on_gpu(&self.device, move |cuda| Ok(sieve.finish(cuda, &stream)?))
    }

    /// Takes device memory for the slices of this number of runs of a side.
    pub(super) fn slices_of(
        &self,
        divider: &Divider,
        (side, runs): (usize, usize),
    ) -> Result<Slices, JoinError> {
        let sieve = match divider {
            Divider::Gpu(sieve) => sieve.clone(),
            Divider::Cpu(_) => None,
        };
        let (shape, stream) = (self.plan.run, self.memory.kernels.clone());
        on_gpu(&self.device, move |cuda| {
            let slices = Slices::new(cuda, shape, runs, &stream)?;
            Ok(match &sieve {
                Some(sieve) => slices.sifted_by(sieve, SIDES[side]),
                None => slices,
            })
        })
    }
}
