//! Runs searches on a device's own thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DeviceMemory, DevicePointer, DevicePointerMut, DeviceType, DeviceView, Event, Fill,
    Kernel, KernelArguments, LaunchShape, Mirrored, Pinned, Priority, Stream, Transfer,
};

use crate::arguments::{
    Counters, DfaScan, GlushkovScan, LiteralScan, Matcher, Output, Scan, ShiftAndScan,
};
use crate::batch::{self, IMAGE_GRANULE_BYTES, Launch};
use crate::queue::{ScanFound, ScanOrder, ScanWant};
use crate::table::ScanTable;
use crate::tuned::Tuned;
use forebay_text::form::DeviceForm;

/// Maximum bytes that the tables of all launches in one pass may take together.
const IMAGES_BYTES: usize = 32 << 20;

/// Maximum row numbers that one pass can list (64 MiB).
const LIST_CAPACITY: usize = 16 << 20;

/// Maximum scan tables on the device at the same time.
const TABLES_MAX: usize = 16;

/// Maximum launches of one pass.
const LAUNCHES_MAX: usize = 256;

/// Bytes of the counters of one launch.
const COUNTER_BYTES: usize = size_of::<Counters>();

/// State of searches on a device: buffers whose size is fixed at start, and the scan tables in use.
#[derive(Default)]
pub(crate) struct Scanner {
    buffers: Option<Buffers>,
    tables: VecDeque<Resident>,
}

/// A scan table that has been copied to the device.
struct Resident {
    table: Weak<ScanTable>,
    /// Policy with which the table was divided into chunks.
    tuned: Arc<Tuned>,
    memory: DeviceMemory,
    segments_at: u64,
    chunk_rows: Arc<[u32]>,
}

struct Buffers {
    /// Stream of all passes, which run one after another.
    stream: Stream,
    /// Counters of a pass's launches, followed by the tables of their queries.
    pass: Mirrored,
    /// List of row numbers, which kernels write.
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

/// Device addresses of a resident table.
#[derive(Clone)]
struct Target {
    chunks_at: u64,
    segments_at: u64,
    chunk_rows: Arc<[u32]>,
}

impl Scanner {
    /// Allocates the buffers. Callers do this before other data fills the device's memory.
    pub(crate) fn prepare(&mut self, cuda: &Cuda) -> Result<(), JobError> {
        if self.buffers.is_none() {
            self.buffers = Some(Buffers::new(cuda)?);
        }
        Ok(())
    }

    /// Runs searches that share one table. Blocks; returns the results in the order of the searches.
    pub(crate) fn scan(
        &mut self,
        cuda: &mut Cuda,
        tuned: &Arc<Tuned>,
        orders: &[ScanOrder],
    ) -> Result<Vec<ScanFound>, JobError> {
        let Some(first) = orders.first() else {
            return Ok(Vec::new());
        };
        self.prepare(cuda)?;
        let target = self.target(cuda, tuned, &first.table)?;
        let buffers = self.buffers.as_mut().expect("made above");
        let forms: Vec<&DeviceForm> = orders
            .iter()
            .filter_map(|order| order.program.device_form())
            .collect();
        assert_eq!(
            forms.len(),
            orders.len(),
            "every program must have a device form"
        );
        for order in orders {
            if let ScanWant::Marks(memory) = &order.want {
                let words = order.table.row_count().div_ceil(256) * 32;
                assert!(memory.bytes() >= u64::from(words) * 4, "room for all marks");
            }
        }
        let mut found = vec![ScanFound::default(); orders.len()];
        let mut launches = batch::launches(&forms, &tuned.policy);
        while !launches.is_empty() {
            let rest = launches.split_off(launches_that_fit(&launches));
            let mut pass = Pass {
                cuda,
                tuned,
                buffers,
                target: &target,
                orders,
            };
            if let Err(error) = pass.run(&mut launches, &mut found) {
                // Kernels of this pass may still be reading the rows, which are freed with the searches.
                cuda.synchronize(&buffers.stream)?;
                return Err(error);
            }
            launches = rest;
        }
        Ok(found)
    }

    /// Returns the device addresses of a table, after copying it to the device if necessary.
    fn target(
        &mut self,
        cuda: &Cuda,
        tuned: &Arc<Tuned>,
        table: &Arc<ScanTable>,
    ) -> Result<Target, JobError> {
        self.tables
            .retain(|resident| resident.table.strong_count() > 0);
        let is_it = |resident: &Resident| {
            std::ptr::eq(resident.table.as_ptr(), Arc::as_ptr(table))
                && Arc::ptr_eq(&resident.tuned, tuned)
        };
        if let Some(resident) = self.tables.iter().find(|resident| is_it(resident)) {
            return Ok(resident.target());
        }
        self.tables.truncate(TABLES_MAX - 1);
        let resident = self.copy(cuda, tuned, table)?;
        let target = resident.target();
        self.tables.push_front(resident);
        Ok(target)
    }

    fn copy(
        &mut self,
        cuda: &Cuda,
        tuned: &Arc<Tuned>,
        table: &Arc<ScanTable>,
    ) -> Result<Resident, JobError> {
        let chunks = table.chunks(&tuned.policy);
        let memory = cuda.allocate(table.image_bytes(chunks.len()) as u64)?;
        let image = table.image(memory.address(), &chunks);
        let buffers = self.buffers.as_mut().expect("made before");
        let staging = buffers.pass.host_mut()?;
        for (index, piece) in image.bytes.chunks(IMAGES_BYTES).enumerate() {
            let staged = &mut staging[..piece.len()];
            staged.copy_from_slice(piece);
            cuda.write(staged, &memory, index * IMAGES_BYTES, &buffers.stream)?;
        }
        Ok(Resident {
            table: Arc::downgrade(table),
            tuned: Arc::clone(tuned),
            segments_at: memory.address() + image.segments_at as u64,
            memory,
            chunk_rows: chunks.iter().map(|(_, chunk)| chunk.rows as u32).collect(),
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

/// Returns how many of the launches fit in the buffers of one pass; at least one.
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

/// A query of a launch, with the index of its search in the pass and the index of the list that it writes.
struct Assigned {
    launch: usize,
    query: usize,
    order: usize,
    list: Option<usize>,
}

/// Assigns a list to each query that wants one.
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
        list: matches!(orders[order].want, ScanWant::Rows)
            .then(|| lists.next())
            .flatten(),
    });
    assigned.collect()
}

/// A pass: one or more launches over one table. The device runs them one after another, and the host waits for the
/// last.
struct Pass<'a> {
    cuda: &'a mut Cuda,
    tuned: &'a Arc<Tuned>,
    buffers: &'a mut Buffers,
    target: &'a Target,
    orders: &'a [ScanOrder],
}

impl Pass<'_> {
    /// Searches the whole table. If a search's list of matches does not fit, searches again in ranges of chunks to
    /// collect the list.
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

    /// Returns whether a list is incomplete.
    fn is_cut(&self, query: &Assigned, found: &ScanFound) -> bool {
        let wanted = self.orders[query.order].limit.min(found.matches);
        query.list.is_some() && (found.list.len() as u64) < wanted
    }

    /// Lists the matches of the search at index `order` with one scan per range of chunks. Each range has at most as
    /// many rows as the list can hold.
    fn list_in_parts(&mut self, order: usize) -> Result<Vec<u32>, JobError> {
        let orders = &self.orders[order..=order];
        let form = orders[0]
            .program
            .device_form()
            .expect("the program has a device form, because this pass has already run it");
        let mut launches = batch::launches(&[form], &self.tuned.policy);
        let assigned = assign(&launches, orders);
        let mut part = Pass {
            cuda: self.cuda,
            tuned: self.tuned,
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

    /// Runs the launches over a range of chunks and waits for them; their counters are then in host memory.
    fn search(
        &mut self,
        launches: &mut [Launch],
        assigned: &[Assigned],
        chunks: Range<usize>,
        capacity: usize,
    ) -> Result<(), JobError> {
        let images = self.begin(launches)?;
        self.clear_marks(assigned)?;
        for query in assigned {
            launches[query.launch].outputs[query.query] = self.output(query, capacity);
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

    /// Zeroes the counters of the launches and copies their tables to the device; returns the address of each launch's
    /// tables.
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

    /// Zeroes the marks of the searches that want them.
    fn clear_marks(&mut self, assigned: &[Assigned]) -> Result<(), JobError> {
        for query in assigned {
            if let ScanWant::Marks(memory) = &self.orders[query.order].want {
                let all = DeviceView::of(memory, 0..memory.bytes() as usize);
                Transfer::begin(self.cuda, Fill(0), all, &self.buffers.stream)?.finish()?;
            }
        }
        Ok(())
    }

    fn output(&self, query: &Assigned, capacity: usize) -> Output {
        let order = &self.orders[query.order];
        let list = query.list.unwrap_or(0) * capacity * size_of::<u32>();
        Output {
            rows: DevicePointerMut::new(
                self.buffers.list.device_pointer::<u32>().address() + list as u64,
            ),
            capacity: capacity as u32,
            limit: u32::try_from(order.limit).unwrap_or(u32::MAX),
            wants_rows: (!matches!(order.want, ScanWant::Count)).into(),
            marks: DevicePointerMut::new(match &order.want {
                ScanWant::Marks(memory) => memory.address(),
                ScanWant::Count | ScanWant::Rows => 0,
            }),
        }
    }

    fn launch(
        &mut self,
        launch: &Launch,
        image_at: u64,
        index: usize,
        chunks: &Range<usize>,
    ) -> Result<(), JobError> {
        let entry = launch.kernel.entry(launch.lists());
        let kernel = self.cuda.kernel(&self.tuned.program, entry)?;
        let shared_bytes = launch.image.len() as u32;
        let mut shape = kernel.persistent_shape(self.tuned.policy.threads, shared_bytes)?;
        shape.blocks = shape.blocks.min(chunks.len() as u64);
        let counters_at = self.buffers.pass.address() + (index * COUNTER_BYTES) as u64;
        let scan = Scan {
            chunks: DevicePointer::new(self.target.chunks_at),
            segments: DevicePointer::new(self.target.segments_at),
            image: DevicePointer::new(image_at),
            counters: DevicePointerMut::new(counters_at),
            chunk_begin: chunks.start as u32,
            chunk_end: chunks.end as u32,
            image_bytes: shared_bytes,
            query_count: launch.forms.len() as u32,
            outputs: launch.outputs,
        };
        match launch.matcher {
            Matcher::Dfa(mut matcher) => {
                matcher.table = DevicePointer::new(image_at + u64::from(shared_bytes));
                self.start(&kernel, &shape, &DfaScan { scan, matcher })
            }
            Matcher::Literal(matcher) => {
                self.start(&kernel, &shape, &LiteralScan { scan, matcher })
            }
            Matcher::Glushkov(matcher) => {
                self.start(&kernel, &shape, &GlushkovScan { scan, matcher })
            }
            Matcher::ShiftAnd(matcher) => {
                self.start(&kernel, &shape, &ShiftAndScan { scan, matcher })
            }
        }
    }

    /// Launches a kernel with its parameter.
    fn start<A: KernelArguments>(
        &self,
        kernel: &Kernel,
        shape: &LaunchShape,
        arguments: &A,
    ) -> Result<(), JobError> {
        // SAFETY: `scan.cu` includes the header of these arguments, and pairs each kernel with its matcher's parameter.
        // The search request holds the table, which holds its blocks; the scanner owns the buffers, which are as large
        // as the counts in the arguments. All of them are kept until the pass is done. Each kernel of a pass writes to
        // its own counters and lists.
        unsafe {
            self.cuda
                .launch(kernel, shape, arguments, &self.buffers.stream)
        }
    }

    /// Returns the result of a query after its search.
    fn read(&self, query: &Assigned, capacity: usize) -> Result<ScanFound, JobError> {
        let counters = Counters::read(&self.buffers.pass.host()[query.launch * COUNTER_BYTES..]);
        let listed = counters.listed[query.query] as usize;
        let numbers = |list: usize| {
            let list = &self.buffers.list[list * capacity * size_of::<u32>()..];
            let numbers = list
                .chunks_exact(size_of::<u32>())
                .take(listed.min(capacity));
            numbers.map(u32::read).collect()
        };
        Ok(ScanFound {
            matches: counters.matches[query.query],
            list: query.list.map(numbers).unwrap_or_default(),
            device_ms: self.buffers.ended.elapsed_ms(&self.buffers.began)?.into(),
            shared_by: self.orders.len(),
        })
    }
}

/// Splits the chunks into ranges whose rows fit a list; a single chunk always fits.
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
