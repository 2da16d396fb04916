//! Tables in device memory.

use std::any::Any;
use std::collections::VecDeque;

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DeviceBuffer, DevicePointerMut, DeviceType, DeviceView, Fill, InterleavedMemory, Part,
    Stream, Transfer,
};

use crate::column::DeviceRows;
use crate::error::IndexError;
use crate::kernels::{
    CHAIN_TOO_LONG, HashIndexRef, JoinTotals, KEY_OUT_OF_RANGE, Outcome, entry,
    entry_of_interleaved, entry_of_own,
};
use crate::launch::{self, InFlight};
use crate::shape::{STEPS_MAX, TableMethod, TableShape};

/// What is known of the rows of a finished table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Contents {
    /// Number of rows.
    pub(crate) rows: u64,
    pub(crate) is_unique: bool,
    pub(crate) has_holes: bool,
    pub(crate) aside_count: u64,
    pub(crate) aside_sum: u64,
}

impl Contents {
    /// Returns the contents of a table after all inserts.
    ///
    /// # Errors
    /// If a row could not be inserted.
    pub(crate) fn of(shape: &TableShape, outcome: &Outcome) -> Result<Contents, IndexError> {
        let is_perfect = match shape.method() {
            TableMethod::Perfect { first_key: first } => {
                if outcome.failures & KEY_OUT_OF_RANGE != 0 {
                    let end = first + shape.slots();
                    return Err(IndexError::KeyOutOfRange { first, end });
                }
                true
            }
            TableMethod::LinearProbing | TableMethod::Bucketed => false,
        };
        if outcome.failures & CHAIN_TOO_LONG != 0 {
            return Err(IndexError::ChainTooLong { steps: STEPS_MAX });
        }
        let rows = outcome.duplicates;
        if is_perfect && rows > 0 {
            return Err(IndexError::DuplicateKeys { rows });
        }
        Ok(Contents {
            rows: outcome.stored + outcome.aside_count,
            is_unique: rows == 0,
            has_holes: is_perfect && outcome.stored < shape.slots(),
            aside_count: outcome.aside_count,
            aside_sum: outcome.aside_sum,
        })
    }

    /// Returns the contents of a table with linear probing into which several GPUs have inserted.
    pub(crate) fn of_all(parts: impl IntoIterator<Item = Contents>) -> Contents {
        let mut all = Contents {
            is_unique: true,
            ..Contents::default()
        };
        for part in parts {
            all.rows += part.rows;
            all.is_unique &= part.is_unique;
            all.aside_count += part.aside_count;
            all.aside_sum = all.aside_sum.wrapping_add(part.aside_sum);
        }
        all
    }
}

/// Which rows a GPU works on, of those that it is given, if the table is interleaved over several GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterleavedRows {
    /// All. It accesses slots on other GPUs.
    All,
    /// Those whose search begins in a slot of its own memory. So every GPU must be given the rows of all.
    Own,
}

/// The slots in which searches of a GPU begin: `slot >> shift & mask` is `own`.
#[derive(Debug, Clone, Copy, Default)]
struct OwnSlots {
    shift: u32,
    mask: u32,
    own: u32,
}

/// The memory of a table. It stays allocated while a clone exists.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) shape: TableShape,
    slots: DeviceView<u8>,
    taken: DeviceView<u32>,
    contents: Contents,
    /// The rows that this GPU works on; `None` if the table is not interleaved over several GPUs.
    interleaved: Option<InterleavedRows>,
    own: OwnSlots,
}

impl Table {
    /// Asserts that kernels of this device may use it: only its slots may be in memory of another device.
    ///
    /// # Panics
    /// If they may not.
    pub(crate) fn assert_is_for(&self, cuda: &Cuda) {
        cuda.assert_reaches(&self.slots);
        cuda.assert_owns(&self.taken);
    }

    /// Returns the name of a kernel for this table.
    pub(crate) fn entry(&self, kernel: &str) -> String {
        let width = self.shape.width();
        match self.interleaved {
            None => entry(kernel, &self.shape),
            Some(InterleavedRows::All) => entry_of_interleaved(kernel, width),
            Some(InterleavedRows::Own) => entry_of_own(kernel, width),
        }
    }

    /// Returns what kernels take.
    pub(crate) fn index_ref(&self) -> HashIndexRef {
        let memory = (self.slots.pointer_mut(), self.taken.pointer_mut());
        HashIndexRef {
            own_shift: self.own.shift,
            own_mask: self.own.mask,
            own: self.own.own,
            ..HashIndexRef::new(&self.shape, memory, &self.contents)
        }
    }
}

impl HashIndexRef {
    /// Returns the table for keys whose hashes have the same `bits` upper bits.
    pub(crate) fn after(self, bits: u32) -> HashIndexRef {
        let shift = self.shift - bits;
        HashIndexRef { shift, ..self }
    }

    /// Returns a table whose slots and bits are at these addresses.
    pub(crate) fn new(
        shape: &TableShape,
        (slots, taken): (DevicePointerMut<u8>, DevicePointerMut<u32>),
        contents: &Contents,
    ) -> HashIndexRef {
        let first_key = match shape.method() {
            TableMethod::Perfect { first_key } => first_key,
            TableMethod::LinearProbing | TableMethod::Bucketed => 0,
        };
        HashIndexRef {
            slots,
            taken,
            slot_count: shape.slots(),
            first_key,
            aside_count: contents.aside_count,
            aside_sum: contents.aside_sum,
            shift: shape.shift(),
            is_unique: u32::from(contents.is_unique),
            has_holes: u32::from(contents.has_holes),
            steps_max: shape.steps_max() as u32,
            own_shift: 0,
            own_mask: 0,
            own: 0,
            unused: 0,
        }
    }
}

/// A table in device memory into which rows are inserted. It cannot be probed before [`IndexBuilder::finish`].
///
/// All work runs on the stream that the builder was created with.
#[derive(Debug)]
pub struct IndexBuilder {
    table: Table,
    outcome: DeviceBuffer<Outcome>,
    stream: Stream,
    /// Writes in flight that empty the memory. Dropping one waits for it.
    emptying: Vec<Box<dyn Any + Send>>,
    /// Inserts in flight, oldest first. Dropping one waits for it.
    inserting: VecDeque<InFlight>,
    /// Rows of all inserts so far.
    rows: u64,
}

impl IndexBuilder {
    /// Allocates a table and queues the writes that empty it.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn new(cuda: &Cuda, shape: TableShape, stream: &Stream) -> Result<Self, IndexError> {
        let slots = cuda.buffer::<u8>(shape.slot_bytes().max(1) as usize)?;
        IndexBuilder::in_memory(cuda, shape, slots.all(), stream)
    }

    /// Takes memory for the slots of a table, such as [`HybridMemory`](forebay_device::cuda::HybridMemory), and queues
    /// the writes that empty it. Nothing else may write this memory as long as the table exists. It may be that of
    /// another GPU which this one [reaches](forebay_device::Device::reaches), and whose memory its kernels change by
    /// [atomic operations](forebay_device::Device::has_atomics_on).
    ///
    /// # Errors
    /// If device memory is too small for a bit for each slot, or the device fails.
    ///
    /// # Panics
    /// If the memory is smaller than [`TableShape::slot_bytes`], its address is no multiple of 16, or it is that of
    /// a device that this one does not reach.
    pub fn in_memory(
        cuda: &Cuda,
        shape: TableShape,
        slots: DeviceView<u8>,
        stream: &Stream,
    ) -> Result<Self, IndexError> {
        let mut builder = IndexBuilder::around(cuda, shape, slots, stream)?;
        if shape.method().is_by_hash() {
            let slots = builder.table.slots.clone();
            builder.emptying.push(fill(cuda, 0xFF, slots, stream)?);
        }
        Ok(builder)
    }

    /// Takes memory of several GPUs for the slots of a table with linear probing, and empties those on this one, the
    /// GPU with this index. Blocks until they are empty. No builder may insert before all GPUs have one; when they have
    /// finished, [`HashIndex::complete`] completes the table. Nothing else may write the memory as long as the table
    /// exists.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// If the table is another one or its keys are not single numbers of the width of the payloads, or the memory is
    /// smaller than [`TableShape::slot_bytes`] or not of this device; for [`InterleavedRows::Own`], if the number of
    /// GPUs or the slots of a chunk are no power of two.
    pub fn interleaved(
        cuda: &mut Cuda,
        shape: TableShape,
        (memory, gpu): (&InterleavedMemory, usize),
        rows: InterleavedRows,
        stream: &Stream,
    ) -> Result<Self, IndexError> {
        assert_eq!(shape.method(), TableMethod::LinearProbing);
        shape.width().assert_is_uniform("interleaved tables");
        let own = match rows {
            InterleavedRows::All => OwnSlots::default(),
            InterleavedRows::Own => {
                let gpus = memory.gpus();
                let slots = memory.chunk_bytes() / shape.bytes_of_slot();
                assert!(gpus.is_power_of_two() && slots.is_power_of_two());
                OwnSlots {
                    shift: slots.ilog2(),
                    mask: gpus as u32 - 1,
                    own: gpu as u32,
                }
            }
        };
        let mut builder = IndexBuilder::around(cuda, shape, memory.all(gpu), stream)?;
        builder.table.interleaved = Some(rows);
        builder.table.own = own;
        let emptying = launch::empty(cuda, &builder.table.slots, (memory, gpu), stream)?;
        builder.emptying.push(Box::new(emptying));
        builder.emptying.clear();
        Ok(builder)
    }

    /// Takes memory for the slots of a table, which the caller empties.
    fn around(
        cuda: &Cuda,
        shape: TableShape,
        slots: DeviceView<u8>,
        stream: &Stream,
    ) -> Result<Self, IndexError> {
        cuda.assert_reaches(&slots);
        let address = slots.pointer().address();
        assert!(address.is_multiple_of(16), "slots at {address:#x}");
        let table = Table {
            shape,
            slots: slots.view(0..shape.slot_bytes() as usize),
            taken: cuda
                .buffer::<u32>(shape.taken_words().max(1) as usize)?
                .all(),
            contents: Contents::default(),
            interleaved: None,
            own: OwnSlots::default(),
        };
        let outcome = cuda.buffer::<Outcome>(1)?;
        let emptying = vec![
            fill(cuda, 0, table.taken.clone(), stream)?,
            fill(cuda, 0, outcome.all(), stream)?,
        ];
        Ok(IndexBuilder {
            table,
            outcome,
            stream: stream.clone(),
            emptying,
            inserting: VecDeque::new(),
            rows: 0,
        })
    }

    /// Queues a kernel that inserts rows, and returns at once. Releases the rows of inserts that have finished.
    ///
    /// # Errors
    /// [`IndexError::TooManyRows`], before the device does anything; if the kernel does not compile or the device
    /// fails.
    ///
    /// # Panics
    /// If the columns are not as [`DeviceRows::count`] says, or memory is that of another device.
    pub fn insert_async(&mut self, cuda: &mut Cuda, rows: &DeviceRows) -> Result<(), IndexError> {
        let count = self.rows + rows.count(self.table.shape.width());
        check_room(&self.table.shape, count)?;
        while let Some(oldest) = self.inserting.front()
            && oldest.is_done()?
        {
            drop(self.inserting.pop_front());
        }
        let outcome = self.outcome.all();
        let inserting = launch::insert(cuda, &self.table, rows, &outcome, &self.stream)?;
        self.inserting.push_back(inserting);
        self.rows = count;
        Ok(())
    }

    /// Waits for the inserts, and returns the table.
    ///
    /// # Errors
    /// If a row could not be inserted ([`IndexError::ChainTooLong`], [`IndexError::KeyOutOfRange`],
    /// [`IndexError::DuplicateKeys`]), or the device fails.
    pub fn finish(self, cuda: &Cuda) -> Result<HashIndex, IndexError> {
        let outcome = read(cuda, self.outcome.all(), &self.stream)?;
        let mut table = self.table;
        table.contents = Contents::of(&table.shape, &outcome)?;
        Ok(HashIndex { table })
    }
}

/// Returns an error if a table of this shape has fewer slots than rows.
pub(crate) fn check_room(shape: &TableShape, rows: u64) -> Result<(), IndexError> {
    let slots = shape.slots();
    if rows > slots {
        return Err(IndexError::TooManyRows { rows, slots });
    }
    Ok(())
}

/// A table in device memory, complete: nothing changes it.
#[derive(Debug, Clone)]
pub struct HashIndex {
    table: Table,
}

impl HashIndex {
    /// Returns the layout.
    pub fn shape(&self) -> TableShape {
        self.table.shape
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.table.contents.rows
    }

    /// Returns the layout, the slots and what is known of the rows.
    pub(crate) fn parts(&self) -> (TableShape, &DeviceView<u8>, Contents) {
        let Table {
            shape,
            slots,
            contents,
            ..
        } = &self.table;
        (*shape, slots, *contents)
    }

    /// Completes a table that several GPUs have built in one interleaved memory: each then knows the rows of all.
    ///
    /// # Panics
    /// If the tables are not in one memory.
    pub fn complete(tables: &mut [HashIndex]) {
        let Some(first) = tables.first() else {
            return;
        };
        let address = |table: &Table| table.slots.pointer().address();
        let slots = address(&first.table);
        for HashIndex { table } in tables.iter() {
            assert_eq!(address(table), slots, "tables of one memory");
        }
        let all = Contents::of_all(tables.iter().map(|it| it.table.contents));
        for HashIndex { table } in tables {
            table.contents = all;
        }
    }

    /// Queues a kernel that adds the matches of rows to totals, and returns at once. The result keeps table, rows and
    /// totals until the kernel has finished.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// If the columns are not as [`DeviceRows::count`] says, or memory is that of another device.
    pub fn probe_async(
        &self,
        cuda: &mut Cuda,
        rows: &DeviceRows,
        totals: &Totals,
        stream: &Stream,
    ) -> Result<InFlight, JobError> {
        launch::probe(cuda, &self.table, rows, totals, stream)
    }
}

/// The matches of probes, in device memory. Clones are the same totals.
#[derive(Debug, Clone)]
pub struct Totals {
    view: DeviceView<JoinTotals>,
}

impl Totals {
    /// Returns totals of zero. Blocks until the device memory is written.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn zero(cuda: &Cuda, stream: &Stream) -> Result<Totals, JobError> {
        let view = cuda.buffer::<JoinTotals>(1)?.all();
        Transfer::begin(cuda, Fill(0), view.clone(), stream)?.finish()?;
        Ok(Totals { view })
    }

    /// Returns the totals after the earlier work of the stream. Blocks until they are there.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self, cuda: &Cuda, stream: &Stream) -> Result<JoinTotals, JobError> {
        read(cuda, self.view.clone(), stream)
    }

    pub(crate) fn view(&self) -> &DeviceView<JoinTotals> {
        &self.view
    }
}

/// Queues a fill of device memory. Dropping the result waits for it.
pub(crate) fn fill<T: DeviceType + 'static>(
    cuda: &Cuda,
    byte: u8,
    to: DeviceView<T>,
    stream: &Stream,
) -> Result<Box<dyn Any + Send>, JobError> {
    Ok(Box::new(Transfer::begin(cuda, Fill(byte), to, stream)?))
}

/// Returns a value in device memory after the earlier work of the stream. Blocks until it is there.
fn read<T: DeviceType + 'static>(
    cuda: &Cuda,
    from: DeviceView<T>,
    stream: &Stream,
) -> Result<T, JobError> {
    let values = read_all(cuda, from, stream)?;
    Ok(values.into_iter().next().expect("one value"))
}

/// Returns the values in device memory after the earlier work of the stream. Blocks until they are there.
pub(crate) fn read_all<T: DeviceType + 'static>(
    cuda: &Cuda,
    from: DeviceView<T>,
    stream: &Stream,
) -> Result<Vec<T>, JobError> {
    let host = Part::divide(vec![0; from.len() * size_of::<T>()].into_boxed_slice(), &[]);
    let part = host.into_iter().next().expect("one part");
    let (_, part) = Transfer::begin(cuda, from, part, stream)?.finish()?;
    Ok(part.chunks_exact(size_of::<T>()).map(T::read).collect())
}
