//! Running searches on a device, on the thread that owns it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DeviceMemory, DevicePointer, DevicePointerMut, Event, Mirrored, Pinned, Priority, Stream,
};

use crate::arguments::{Goal, QUERIES_MAX, THREADS, WANT_COUNT, WANT_ROWS};
use crate::batch::{self, IMAGE_GRANULE_BYTES, Launch};
use crate::program;
use crate::queue::{ScanFound, ScanOrder, ScanWant};
use crate::table::ScanTable;
use forebay_text::form::DeviceForm;

/// Tables of automata and literals of one pass.
const IMAGES_BYTES: usize = 32 << 20;

/// Numbers that one pass can list: 64 MiB.
const LIST_CAPACITY: usize = 16 << 20;

/// Tables of blocks that stay on the device at the same time.
const TABLES_MAX: usize = 16;

/// Launches of one pass.
const LAUNCHES_MAX: usize = 256;

/// Counters of one launch: matches of each query, then numbers listed for each.
const COUNTER_BYTES: usize = QUERIES_MAX * (size_of::<u64>() + size_of::<u32>());

/// What searches keep on a device: buffers of a size set at start, and the tables of blocks in use.
#[derive(Default)]
pub(crate) struct Scanner {
    buffers: Option<Buffers>,
    tables: VecDeque<Resident>,
}

/// A table that has been copied to the device.
struct Resident {
    table: Weak<ScanTable>,
    memory: DeviceMemory,
    segments_at: u64,
    chunk_rows: Arc<[u32]>,
}

struct Buffers {
    /// The passes, one after the other.
    stream: Stream,
    /// The counters of the launches of a pass, then the tables of their queries.
    pass: Mirrored,
    /// Written by the device itself.
    list: Pinned,
    began: Event,
    ended: Event,
}

impl Buffers {
    fn new(cuda: &Cuda) -> Result<Buffers, JobError> {
        let bytes = COUNTER_BYTES * LAUNCHES_MAX + IMAGES_BYTES;
        let stream = cuda.stream(Priority::High)?;
        Ok(Buffers {
            pass: cuda.mirrored(cuda.allocate(bytes as u64)?, &stream)?,
            stream,
            list: cuda.host_buffer(LIST_CAPACITY * size_of::<u32>())?,
            began: cuda.event()?,
            ended: cuda.event()?,
        })
    }
}

/// Where a resident table stands.
#[derive(Clone)]
struct Target {
    chunks_at: u64,
    segments_at: u64,
    chunk_rows: Arc<[u32]>,
}

impl Scanner {
    /// Takes the buffers; before the device's memory is given to others.
    pub(crate) fn prepare(&mut self, cuda: &Cuda) -> Result<(), JobError> {
        if self.buffers.is_none() {
            self.buffers = Some(Buffers::new(cuda)?);
        }
        Ok(())
    }

    /// Searches a table for all orders; one answer each, in their order. Blocks until they are there.
    pub(crate) fn scan(
        &mut self,
        cuda: &mut Cuda,
        table: &Arc<ScanTable>,
        orders: &[ScanOrder],
    ) -> Result<Vec<ScanFound>, JobError> {
        self.prepare(cuda)?;
        let target = self.target(cuda, table)?;
        let buffers = self.buffers.as_mut().expect("made above");
        let forms: Vec<&DeviceForm> = orders
            .iter()
            .filter_map(|order| order.program.device_form())
            .collect();
        assert_eq!(
            forms.len(),
            orders.len(),
            "every program has a form for devices"
        );
        let mut found = vec![ScanFound::default(); orders.len()];
        let mut launches = batch::launches(&forms);
        while !launches.is_empty() {
            let rest = launches.split_off(launches_that_fit(&launches));
            let mut pass = Pass {
                cuda,
                buffers,
                target: &target,
                orders,
            };
            if let Err(error) = pass.run(&mut launches, &mut found) {
                // The orders keep the rows, which kernels of this pass may still read.
                cuda.synchronize(&buffers.stream)?;
                return Err(error);
            }
            launches = rest;
        }
        Ok(found)
    }

    /// The table on the device; copied there if it is not there yet.
    fn target(&mut self, cuda: &Cuda, table: &Arc<ScanTable>) -> Result<Target, JobError> {
        self.tables
            .retain(|resident| resident.table.strong_count() > 0);
        let is_it = |resident: &Resident| std::ptr::eq(resident.table.as_ptr(), Arc::as_ptr(table));
        if let Some(resident) = self.tables.iter().find(|resident| is_it(resident)) {
            return Ok(resident.target());
        }
        self.tables.truncate(TABLES_MAX - 1);
        let resident = self.copy(cuda, table)?;
        let target = resident.target();
        self.tables.push_front(resident);
        Ok(target)
    }

    fn copy(&mut self, cuda: &Cuda, table: &Arc<ScanTable>) -> Result<Resident, JobError> {
        let memory = cuda.allocate(table.image_bytes() as u64)?;
        let image = table.image(memory.address());
        let buffers = self.buffers.as_mut().expect("made before");
        let staging = buffers.pass.host_mut()?;
        for (index, piece) in image.bytes.chunks(IMAGES_BYTES).enumerate() {
            let staged = &mut staging[..piece.len()];
            staged.copy_from_slice(piece);
            cuda.write(staged, &memory, index * IMAGES_BYTES, &buffers.stream)?;
        }
        Ok(Resident {
            table: Arc::downgrade(table),
            segments_at: memory.address() + image.segments_at as u64,
            memory,
            chunk_rows: table.chunk_rows().into(),
        })
    }
}

impl Resident {
    fn target(&self) -> Target {
        Target {
            chunks_at: self.memory.address(),
            segments_at: self.segments_at,
            chunk_rows: Arc::clone(&self.chunk_rows),
        }
    }
}

/// How many launches the buffers of one pass take; one at least.
fn launches_that_fit(launches: &[Launch]) -> usize {
    let mut bytes = 0;
    let fits = |launch: &&Launch| {
        bytes += launch.image_bytes();
        bytes <= IMAGES_BYTES
    };
    launches
        .iter()
        .take(LAUNCHES_MAX)
        .take_while(fits)
        .count()
        .max(1)
}

/// A query of a launch, the order that it answers, and which of the lists it writes.
struct Assigned {
    launch: usize,
    query: usize,
    order: usize,
    list: Option<usize>,
}

/// Gives every query that wants a list one of its own.
fn assign(launches: &[Launch], orders: &[ScanOrder]) -> Vec<Assigned> {
    let mut lists = 0..;
    let queries = launches.iter().enumerate().flat_map(|(launch, plan)| {
        plan.forms
            .iter()
            .enumerate()
            .map(move |(query, &order)| (launch, query, order))
    });
    let assigned = queries.map(|(launch, query, order)| Assigned {
        launch,
        query,
        order,
        list: (orders[order].want != ScanWant::Count)
            .then(|| lists.next())
            .flatten(),
    });
    assigned.collect()
}

/// Some launches over one table, which the device does one after the other while the host waits for the last.
struct Pass<'a> {
    cuda: &'a mut Cuda,
    buffers: &'a mut Buffers,
    target: &'a Target,
    orders: &'a [ScanOrder],
}

impl Pass<'_> {
    /// Searches the whole table; lists that did not fit are made again in parts.
    fn run(&mut self, launches: &mut [Launch], found: &mut [ScanFound]) -> Result<(), JobError> {
        let assigned = assign(launches, self.orders);
        let lists = assigned.iter().filter(|query| query.list.is_some()).count();
        let capacity = LIST_CAPACITY / lists.max(1);
        self.search(
            launches,
            &assigned,
            0..self.target.chunk_rows.len(),
            capacity,
        )?;
        for query in &assigned {
            found[query.order] = self.read(query, capacity)?;
        }
        for query in &assigned {
            if self.is_cut(query, &found[query.order]) {
                found[query.order].list = self.list_in_parts(query.order)?;
            }
        }
        Ok(())
    }

    /// Whether a list lacks numbers that are wanted.
    fn is_cut(&self, query: &Assigned, found: &ScanFound) -> bool {
        let wanted = self.orders[query.order].limit.min(found.matches);
        query.list.is_some() && (found.list.len() as u64) < wanted
    }

    /// Lists one order in ranges of chunks that have no more rows than the list has room for.
    fn list_in_parts(&mut self, order: usize) -> Result<Vec<u32>, JobError> {
        let orders = &self.orders[order..=order];
        let form = orders[0]
            .program
            .device_form()
            .expect("it has been searched already");
        let mut launches = batch::launches(&[form]);
        let assigned = assign(&launches, orders);
        let mut part = Pass {
            cuda: self.cuda,
            buffers: self.buffers,
            target: self.target,
            orders,
        };
        let mut list = Vec::new();
        for chunks in ranges(&self.target.chunk_rows) {
            if list.len() as u64 >= orders[0].limit {
                break;
            }
            part.search(&mut launches, &assigned, chunks, LIST_CAPACITY)?;
            list.extend(part.read(&assigned[0], LIST_CAPACITY)?.list);
        }
        Ok(list)
    }

    /// Runs the launches over some chunks and waits for them; their counters are then in host memory.
    fn search(
        &mut self,
        launches: &mut [Launch],
        assigned: &[Assigned],
        chunks: Range<usize>,
        capacity: usize,
    ) -> Result<(), JobError> {
        let images = self.begin(launches)?;
        for query in assigned {
            launches[query.launch].arguments.queries[query.query]
                .set_goal(self.goal(query, capacity));
        }
        self.cuda
            .record(&self.buffers.began, &self.buffers.stream)?;
        for (index, (launch, at)) in launches.iter_mut().zip(images).enumerate() {
            self.launch(launch, at, index, &chunks)?;
        }
        self.cuda
            .record(&self.buffers.ended, &self.buffers.stream)?;
        let counters_bytes = launches.len() * COUNTER_BYTES;
        self.buffers.pass.fetch(self.cuda, counters_bytes)?;
        Ok(())
    }

    /// Sets the counters of the launches to zero and copies their tables to the device; returns the address of each.
    fn begin(&mut self, launches: &[Launch]) -> Result<Vec<u64>, JobError> {
        let pass = &mut self.buffers.pass;
        let address = pass.address();
        let host = pass.host_mut()?;
        let mut at = (launches.len() * COUNTER_BYTES).next_multiple_of(IMAGE_GRANULE_BYTES);
        host[..at].fill(0);
        let mut addresses = Vec::with_capacity(launches.len());
        for launch in launches {
            let (image, table) = (launch.image.len(), launch.table.len());
            host[at..at + image].copy_from_slice(&launch.image);
            host[at + image..at + image + table].copy_from_slice(&launch.table);
            addresses.push(address + at as u64);
            at += launch.image_bytes();
        }
        pass.send(self.cuda, at)?;
        Ok(addresses)
    }

    fn goal(&self, query: &Assigned, capacity: usize) -> Goal {
        let order = &self.orders[query.order];
        let list = query.list.unwrap_or(0) * capacity * size_of::<u32>();
        Goal {
            output: self.buffers.list.as_ptr().addr() as u64 + list as u64,
            listed: self.counters_at(query.launch) + listed_at(query.query) as u64,
            capacity: capacity as u32,
            limit: u32::try_from(order.limit).unwrap_or(u32::MAX),
            want: match order.want {
                ScanWant::Count => WANT_COUNT,
                ScanWant::Rows => WANT_ROWS,
            },
        }
    }

    fn counters_at(&self, launch: usize) -> u64 {
        self.buffers.pass.address() + (launch * COUNTER_BYTES) as u64
    }

    fn launch(
        &mut self,
        launch: &mut Launch,
        image_at: u64,
        index: usize,
        chunks: &Range<usize>,
    ) -> Result<(), JobError> {
        let lists = launch.arguments.lists();
        let counters_at = self.counters_at(index);
        let kernel = self.cuda.kernel(program(), launch.kernel.entry(lists))?;
        let shared_bytes = launch.image.len() as u32;
        let mut shape = kernel.persistent_shape(THREADS, shared_bytes)?;
        shape.blocks = shape.blocks.min(chunks.len() as u64);
        let arguments = &mut launch.arguments;
        arguments.chunks = DevicePointer::new(self.target.chunks_at);
        arguments.segments = DevicePointer::new(self.target.segments_at);
        arguments.image = DevicePointer::new(image_at);
        arguments.table = DevicePointer::new(image_at + launch.image.len() as u64);
        arguments.counters = DevicePointerMut::new(counters_at);
        arguments.chunk_begin = chunks.start as u32;
        arguments.chunk_end = chunks.end as u32;
        // SAFETY: `scan.cu` includes the header of these arguments. Every block of the table is kept by the table, which
        // the order holds; the buffers are the scanner's and as large as the counts in the arguments say; all are kept
        // until the pass has been waited for. Kernels of a pass write to counters and lists of their own.
        unsafe {
            self.cuda
                .launch(&kernel, &shape, arguments, &self.buffers.stream)
        }
    }

    /// What a query found, after its search.
    fn read(&self, query: &Assigned, capacity: usize) -> Result<ScanFound, JobError> {
        let counters = &self.buffers.pass.host()[query.launch * COUNTER_BYTES..][..COUNTER_BYTES];
        let matches = &counters[query.query * size_of::<u64>()..][..size_of::<u64>()];
        let listed = number(&counters[listed_at(query.query)..]) as usize;
        let numbers = |list: usize| {
            let list = &self.buffers.list[list * capacity * size_of::<u32>()..];
            let numbers = list
                .chunks_exact(size_of::<u32>())
                .take(listed.min(capacity));
            numbers.map(number).collect()
        };
        Ok(ScanFound {
            matches: u64::from_le_bytes(matches.try_into().expect("eight bytes")),
            list: query.list.map(numbers).unwrap_or_default(),
            device_ms: self.buffers.ended.elapsed_ms(&self.buffers.began)?.into(),
            shared_by: self.orders.len(),
        })
    }
}

/// Where the counter of numbers listed for a query stands, in bytes.
fn listed_at(query: usize) -> usize {
    QUERIES_MAX * size_of::<u64>() + query * size_of::<u32>()
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Ranges of chunks whose rows fit a list; a chunk alone always does.
fn ranges(chunk_rows: &[u32]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut rows) = (0, 0);
    for (index, &more) in chunk_rows.iter().enumerate() {
        if rows + more as usize > LIST_CAPACITY {
            ranges.push(start..index);
            (start, rows) = (index, 0);
        }
        rows += more as usize;
    }
    ranges.push(start..chunk_rows.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_chunks_and_fit() {
        let chunk_rows: Vec<u32> = (0..50_000).map(|index| 1 + index % 4096).collect();
        let ranges = ranges(&chunk_rows);
        assert!(ranges.len() > 2);
        assert_eq!(
            (ranges[0].start, ranges[ranges.len() - 1].end),
            (0, chunk_rows.len())
        );
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        for range in ranges {
            let rows: u32 = chunk_rows[range].iter().sum();
            assert!(rows as usize <= LIST_CAPACITY);
        }
    }
}
