//! Rates of the transfer methods.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_device::Device;
use forebay_device::cuda::{DeviceBuffer, DeviceView, Fill, Transfer};

use crate::method::{
    Direction, HostBuffer, Missing, MoveRequest, StagedOptions, TransferMethod, available,
    checksum_on, move_bytes, run_on_device,
};
use crate::{MoveError, checksum};

/// Minimum bytes that a thread fills.
const FILL_BYTES_MIN: usize = 1 << 20;

/// Why [`Prepared`] can have no host memory.
const NO_HOST_MEMORY: &str = "an earlier move failed, and dropped the host memory";

/// Host and device memory between which a method moves bytes, again and again.
#[derive(Debug)]
pub struct Prepared {
    method: TransferMethod,
    /// `None` after a move that failed.
    host: Option<HostBuffer>,
    device_memory: DeviceBuffer<u8>,
    sum: u64,
    /// Time of allocating, and so of pinning, the host memory.
    pub allocation: Duration,
}

impl Prepared {
    /// Allocates memory for a method, and fills the host memory.
    ///
    /// # Errors
    /// [`MoveError`] if there is too little memory of a kind.
    pub fn allocate(
        device: &Arc<Device>,
        method: TransferMethod,
        bytes: usize,
    ) -> Result<Prepared, MoveError> {
        let device_memory = run_on_device(device, move |cuda| Ok(cuda.buffer::<u8>(bytes)?))?;
        let start = Instant::now();
        let mut host = HostBuffer::allocate(device, method, bytes)?;
        let allocation = start.elapsed();
        fill(&mut host);
        Ok(Prepared {
            method,
            sum: checksum(&host),
            host: Some(host),
            device_memory,
            allocation,
        })
    }

    /// Moves all bytes; returns the time, and the time within it for pinning.
    ///
    /// # Errors
    /// [`MoveError`] if the move fails.
    ///
    /// # Panics
    /// If an earlier move failed.
    pub fn run(
        &mut self,
        device: &Arc<Device>,
        direction: Direction,
        chunk_bytes: usize,
        staged: StagedOptions,
    ) -> Result<(Duration, Duration), MoveError> {
        let method = self.method;
        let host = self.host.take().expect(NO_HOST_MEMORY);
        let request = MoveRequest {
            method,
            direction,
            host,
            device_memory: self.device_memory.all(),
            chunk_bytes,
            staged,
        };
        let moved = move_bytes(device, request)?;
        self.host = Some(moved.host);
        Ok((moved.took, moved.pinning))
    }

    /// Returns the device memory.
    pub fn device_memory(&self) -> DeviceView<u8> {
        self.device_memory.all()
    }

    /// Returns the checksum of the bytes that are moved.
    pub fn checksum(&self) -> u64 {
        self.sum
    }

    /// Checks that every byte is at the destination of a direction. Before the move, [`Prepared::forget`] must have
    /// removed the bytes from there.
    ///
    /// # Errors
    /// [`MoveError::WrongSum`].
    ///
    /// # Panics
    /// If an earlier move failed.
    pub fn verify(&self, device: &Arc<Device>, direction: Direction) -> Result<(), MoveError> {
        let sum = match direction {
            Direction::ToDevice => checksum_on(device, self.device_memory.all())?,
            Direction::ToHost => checksum(self.host.as_ref().expect(NO_HOST_MEMORY)),
        };
        match sum == self.sum {
            true => Ok(()),
            false => Err(MoveError::WrongSum {
                what: format!("{}, {direction}", self.method),
            }),
        }
    }

    /// Fills the source of a direction with the bytes, and the destination with zeros.
    ///
    /// # Errors
    /// [`MoveError`] if the device fails.
    ///
    /// # Panics
    /// If an earlier move failed.
    pub fn forget(&mut self, device: &Arc<Device>, direction: Direction) -> Result<(), MoveError> {
        let all = self.device_memory.all();
        let host = self.host.as_mut().expect(NO_HOST_MEMORY);
        match direction {
            Direction::ToDevice => {
                fill(host);
                run_on_device(device, move |cuda| {
                    Transfer::begin(cuda, Fill(0), all, cuda.uploads())?.finish()?;
                    Ok(())
                })
            }
            Direction::ToHost => {
                with_all_cores(host, |_, part| part.fill(0));
                Ok(())
            }
        }
    }
}

/// Fills memory with bytes that differ from word to word, with all cores.
fn fill(host: &mut [u8]) {
    with_all_cores(host, |first, part| {
        let (words, rest) = part.as_chunks_mut::<8>();
        for (index, word) in (first as u64 + 1..).zip(words) {
            *word = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        }
        rest.fill(0x5A);
    });
}

/// Calls `work` with parts of memory, and with the index of the first 8-byte word of each, on several threads.
fn with_all_cores(host: &mut [u8], work: impl Fn(usize, &mut [u8]) + Sync) {
    let share = host.len().div_ceil(forebay_device::cores());
    let share = share.max(FILL_BYTES_MIN).next_multiple_of(8);
    thread::scope(|scope| {
        for (number, part) in host.chunks_mut(share).enumerate() {
            let work = &work;
            scope.spawn(move || work(number * share / 8, part));
        }
    });
}

/// The rate of a method on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MethodRate {
    /// The method.
    pub method: TransferMethod,
    /// Bytes per second to the device and to the host, or why the method is missing.
    pub bytes_per_s: Result<[f64; 2], Missing>,
    /// Bytes per second of allocating, and so of pinning, the host memory.
    pub allocated_bytes_per_s: f64,
}

/// Moves of each rate; the fastest counts.
const RATED_MOVES: usize = 3;

/// Measures every method that a GPU has, with `bytes` bytes in each direction. Blocks.
///
/// # Errors
/// [`MoveError`] if a method that the device has fails, or moves wrong bytes.
pub fn rate_methods(device: &Arc<Device>, bytes: usize) -> Result<Vec<MethodRate>, MoveError> {
    let rate = |(method, tried)| {
        let missing = match tried {
            Ok(()) => return rate_method(device, method, bytes),
            Err(missing) => missing,
        };
        Ok(MethodRate {
            method,
            bytes_per_s: Err(missing),
            allocated_bytes_per_s: 0.0,
        })
    };
    available(device).into_iter().map(rate).collect()
}

fn rate_method(
    device: &Arc<Device>,
    method: TransferMethod,
    bytes: usize,
) -> Result<MethodRate, MoveError> {
    let mut prepared = Prepared::allocate(device, method, bytes)?;
    let mut rates = [0.0_f64; 2];
    for (rate, direction) in rates.iter_mut().zip(Direction::ALL) {
        let chunk_bytes = bytes.min(16 << 20);
        prepared.forget(device, direction)?;
        for _ in 0..RATED_MOVES {
            let staged = StagedOptions::default();
            let (took, _) = prepared.run(device, direction, chunk_bytes, staged)?;
            *rate = rate.max(bytes as f64 / took.as_secs_f64());
        }
        prepared.verify(device, direction)?;
    }
    Ok(MethodRate {
        method,
        bytes_per_s: Ok(rates),
        allocated_bytes_per_s: bytes as f64 / prepared.allocation.as_secs_f64(),
    })
}
