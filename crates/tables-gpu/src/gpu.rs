//! Kernels on a GPU.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, StringArray};
use forebay_cancel::Stop;
use forebay_device::cuda::{
    Cuda, DeviceMemory, DeviceView, Event, Fill, Kernel, LaunchShape, Pinned, PinnedPart, Priority,
    Stream, Transfer, TransferJob,
};
use forebay_device::{
    Class, Device, DeviceContext, Job, JobError, JobFailure, MemoryPool, OperatorState,
    OutOfMemory, PoolOptions, Step,
};
use forebay_memory::Share;
use forebay_movement::Tier;
use forebay_movement::pick::Measurements;
use forebay_text::{Rows, SEPARATOR};
use forebay_text_gpu::{ScanFound, ScanOrder, ScanQueue, ScanTable, ScanWant, TiledRows, prepare};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::DeviceLimits;
use crate::engine::{
    COMPILING, Engine, FLAG_OF_CANCELLED, FileRead, FilesRead, Image, Launch, Memory, Ran,
    TextSearch,
};
use crate::giving_way::Freeing;
use crate::gpu_files::{self, Reader};
use crate::host::Host;
use crate::program::THREADS;
use crate::reason::{Kind, Missing, Reason};
use crate::search::whole_tiles;
use crate::work::StopOnDrop;

/// Maximum bytes of a copy to or from the device.
pub(crate) const COPY_BYTES: usize = 4 << 20;

/// Number of groups from which on the GPU selects them. To read and to finish fewer takes less time than to count and
/// to write them.
const GROUPS_SELECTED: usize = 1 << 15;

/// A GPU, and the tenant that its columns are.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// Index among the engines.
    index: usize,
    device: Arc<Device>,
    pool: Arc<MemoryPool>,
    max_bytes: u64,
    host: Arc<Host>,
    reader: Arc<Reader>,
    searches: Arc<ScanQueue>,
}

/// Opens the tenants of devices, with these limits of the memory of each, and pinned memory of the host, charged to
/// `host`. When other tenants claim memory, `freeing` releases some.
///
/// # Errors
/// [`OutOfMemory`] if a device has no memory.
pub(crate) fn open_all(
    devices: Vec<Arc<Device>>,
    limits: DeviceLimits,
    host: Share,
    measurements: Option<&Measurements>,
    freeing: &Freeing,
) -> Result<Vec<Arc<dyn Engine>>, OutOfMemory> {
    let Some(first) = devices.first() else {
        return Ok(Vec::new());
    };
    // All devices read it.
    let host = Arc::new(Host::new(Arc::clone(first), host));
    let reader = Arc::new(Reader::new(measurements));
    let gpus = devices.into_iter().enumerate().map(|(index, device)| {
        let freeing = freeing.clone();
        let reclaim = move |bytes| freeing.free(index, bytes);
        let of_all = (Arc::clone(&host), Arc::clone(&reader));
        let gpu = Gpu::open(index, device, limits, of_all, reclaim)?;
        Ok(Arc::new(gpu) as _)
    });
    gpus.collect()
}

impl Gpu {
    fn open(
        index: usize,
        device: Arc<Device>,
        limits: DeviceLimits,
        (host, reader): (Arc<Host>, Arc<Reader>),
        reclaim: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Gpu, OutOfMemory> {
        let max_bytes = limits.max_bytes.min(device.memory_budget_bytes());
        let options = PoolOptions {
            name: "tables".to_owned(),
            min_bytes: 0,
            share_bytes: device.part_of_memory(limits.share_percent),
            max_bytes,
        };
        let pool = device.open_pool(options, Some(Box::new(reclaim)))?;
        Ok(Gpu {
            index,
            device,
            pool,
            max_bytes,
            host,
            reader,
            searches: Arc::default(),
        })
    }
}

impl Engine for Gpu {
    fn name(&self) -> String {
        self.device.name().to_owned()
    }

    fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, Reason> {
        let memory = self.pool.allocate_or_claim(bytes).map_err(Reason::of)?;
        Ok(Memory {
            address: memory.address(),
            device: self.index,
            tier: Tier::Device,
            held: Arc::new(memory),
        })
    }

    fn free_bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.pool.used_bytes())
    }

    fn write_host(&self, words: Vec<u32>) -> BoxFuture<'static, Result<Memory, Reason>> {
        let (host, device) = (Arc::clone(&self.host), self.index);
        async move {
            let stored = tokio::task::spawn_blocking(move || host.store(&words));
            Ok(pinned(stored.await.map_err(Reason::of)??, device))
        }
        .boxed()
    }

    fn copy_to_host(
        &self,
        from: &Memory,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Memory, Reason>> {
        let (host, device, index) = (Arc::clone(&self.host), Arc::clone(&self.device), self.index);
        let from = Arc::clone(&from.held).downcast::<DeviceMemory>();
        let copy = move || {
            let from = from.map_err(|_| Reason::new("memory of another engine"))?;
            let to = host.take(bytes as usize)?;
            gpu_files::copy_back(&device, &from, to, bytes as usize)
        };
        async move {
            let copied = tokio::task::spawn_blocking(copy).await;
            Ok(pinned(copied.map_err(Reason::of)??, index))
        }
        .boxed()
    }

    fn read(&self, memory: &Memory, bytes: u64) -> BoxFuture<'static, Result<Vec<u32>, Reason>> {
        let (device, memory) = (Arc::clone(&self.device), memory.clone());
        let read = move || match memory.held.downcast::<DeviceMemory>() {
            Ok(on_device) => gpu_files::read_back(&device, &on_device, bytes as usize),
            Err(held) => {
                let pinned = held.downcast::<Pinned>();
                let pinned = pinned.map_err(|_| Reason::new("memory of another engine"))?;
                Ok(words(&pinned))
            }
        };
        async move {
            tokio::task::spawn_blocking(read)
                .await
                .map_err(Reason::of)?
        }
        .boxed()
    }

    fn read_files(&self, files: Vec<FileRead>) -> BoxFuture<'static, Result<FilesRead, Reason>> {
        let (device, reader) = (Arc::clone(&self.device), Arc::clone(&self.reader));
        let dropped = StopOnDrop::default();
        let stop = Stop {
            deadline: None,
            cancelled: Arc::clone(&dropped.0),
        };
        let read = move || reader.read(&device, files, &stop);
        async move {
            let read = tokio::task::spawn_blocking(read).await;
            drop(dropped);
            read.map_err(Reason::of)?
        }
        .boxed()
    }

    fn write(&self, words: Vec<u32>, to: &Memory) -> BoxFuture<'static, Result<(), Reason>> {
        let device = Arc::clone(&self.device);
        let to = Arc::clone(&to.held).downcast::<DeviceMemory>();
        async move {
            let to = to.map_err(|_| Reason::new("memory of another engine"))?;
            let copied = tokio::task::spawn_blocking(move || copy(&device, &words, &to));
            copied.await.map_err(Reason::of)?
        }
        .boxed()
    }

    fn write_texts(&self, texts: StringArray) -> BoxFuture<'static, Result<(Memory, u64), Reason>> {
        let (device, pool) = (Arc::clone(&self.device), Arc::clone(&self.pool));
        let index = self.index;
        async move {
            let write = move || tiled(&device, &pool, &texts);
            let written = tokio::task::spawn_blocking(write).await;
            let tiled = written.map_err(Reason::of)??;
            let bytes = tiled.memory_bytes();
            let memory = Memory {
                address: 0,
                device: index,
                tier: Tier::Device,
                held: Arc::new(tiled),
            };
            Ok((memory, bytes))
        }
        .boxed()
    }

    fn list_texts(&self, chunks: &[Memory]) -> Result<Memory, Reason> {
        let chunks = chunks.iter().map(|it| Arc::clone(&it.held).downcast());
        let chunks: Result<Vec<Arc<TiledRows>>, _> = chunks.collect();
        let chunks = chunks.map_err(|_| Reason::new("texts of another engine"))?;
        let rows: u64 = chunks.iter().map(|it| it.row_count() as u64).sum();
        if rows > ScanTable::ROWS_MAX {
            return Err(Reason::new(format!("{rows} texts")));
        }
        let table = ScanTable::new(chunks.into_iter().map(|it| (it, Vec::new())));
        Ok(Memory {
            address: 0,
            device: self.index,
            tier: Tier::Device,
            held: Arc::new(table),
        })
    }

    fn search(&self, search: TextSearch) -> BoxFuture<'static, Result<Duration, Reason>> {
        let (reply, replied) = oneshot::channel();
        let table = Arc::clone(&search.texts.held).downcast();
        let marks = Arc::clone(&search.marks.held).downcast();
        let of_another = |_| Reason::new("texts of another engine");
        let order = table.and_then(|table| Ok((table, marks?)));
        let submitted = order.map_err(of_another).and_then(|(table, marks)| {
            let order = ScanOrder {
                table,
                program: search.program,
                want: ScanWant::Marks(marks),
                limit: u64::MAX,
                stop: Stop {
                    deadline: None,
                    cancelled: search.is_stopped,
                },
            };
            // The receiver is gone if the query was cancelled.
            let answer = move |found| drop(reply.send(found));
            let submitted = self.searches.submit(&self.device, order, answer);
            submitted.map_err(Reason::of)
        });
        let device = Arc::clone(&self.device);
        async move {
            submitted?;
            let failed = |_| match device.is_lost() {
                true => Reason::lost(device.name()),
                false => Reason::of(format!("{} did not search the texts", device.name())),
            };
            let found: ScanFound = replied.await.map_err(failed)?;
            Ok(Duration::from_secs_f64(found.device_ms / 1e3))
        }
        .boxed()
    }

    fn selects_from(&self) -> usize {
        GROUPS_SELECTED
    }

    fn run(&self, launch: Launch) -> BoxFuture<'static, Result<Ran, Reason>> {
        let (reply, replied) = oneshot::channel();
        let image = launch.image(THREADS);
        let bytes = image.len as u64;
        let missing = Missing {
            device: self.index,
            bytes,
        };
        let memory = self.pool.allocate_or_claim(bytes);
        let memory = memory.map_err(|error| Reason::of(error).for_want_of(missing));
        let name = self.name();
        let mut dropped = EndOnDrop {
            device: Arc::clone(&self.device),
            flag: None,
        };
        let submitted = memory.and_then(|memory| {
            let memory = Arc::new(memory);
            let flag = (Arc::clone(&memory), image.flag);
            let job = FragmentJob {
                launch,
                image,
                memory,
                reply: Some(reply),
                compiling: None,
                compiled: Duration::ZERO,
                running: None,
            };
            let submitted = self.device.submit(Box::new(job));
            submitted.map_err(Reason::of)?;
            dropped.flag = Some(flag);
            Ok(())
        });
        async move {
            submitted?;
            let lost = |_| Err(Reason::lost(&name));
            let replied = replied.await;
            dropped.flag.take();
            replied.unwrap_or_else(lost)
        }
        .boxed()
    }
}

/// Returns pinned memory as memory that kernels of a device read.
fn pinned(memory: Pinned, device: usize) -> Memory {
    Memory {
        address: memory.device_pointer::<u32>().address(),
        device,
        tier: Tier::Pinned,
        held: Arc::new(memory),
    }
}

/// Sets the flag of kernels if the query that waits for them is cancelled. They may run for seconds, and end when
/// they find the flag set.
struct EndOnDrop {
    device: Arc<Device>,
    /// The memory of the kernels, and the index of the flag's first byte; `None` once they have replied.
    flag: Option<(Arc<DeviceMemory>, usize)>,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Some((memory, flag)) = self.flag.take() else {
            return;
        };
        if self
            .device
            .submit(set_flag(Arc::clone(&memory), flag))
            .is_err()
        {
            // The queue is full, or the device is lost.
            let device = Arc::clone(&self.device);
            let set_later = move || device.submit_when_free(set_flag(memory, flag));
            // If the system refuses the thread, the kernels run to their end.
            let _ = thread::Builder::new()
                .name("end kernels".to_owned())
                .spawn(set_later);
        }
    }
}

/// Returns a job that sets a flag in memory of the device.
fn set_flag(memory: Arc<DeviceMemory>, flag: usize) -> Box<dyn Job> {
    Box::new(move |context: &mut DeviceContext| {
        let parts = context.parts();
        if let Some(cuda) = parts.cuda {
            let streams = Streams::of(parts.state, cuda)?;
            let cancelled = FLAG_OF_CANCELLED.to_le_bytes();
            cuda.write(&cancelled, &memory, flag, &streams.copies)?;
        }
        Ok(Step::Done)
    })
}

/// Copies texts to the device, in the layout of searches. Blocks until they are there.
fn tiled(
    device: &Arc<Device>,
    pool: &MemoryPool,
    texts: &StringArray,
) -> Result<TiledRows, Reason> {
    // Compiles the kernels of searches when they are first used.
    prepare(device).map_err(Reason::of)?;
    let rows = whole_tiles(texts.len());
    let mut bytes = Vec::with_capacity(texts.value_data().len() + rows);
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for row in 0..rows {
        if row < texts.len() {
            bytes.extend_from_slice(texts.value(row).as_bytes());
        }
        bytes.push(SEPARATOR);
        offsets.push(bytes.len() as u32);
    }
    let rows = Rows {
        bytes: &bytes,
        offsets: &offsets,
    };
    let loading = TiledRows::begin_in_pool(device, pool, rows).map_err(Reason::of)?;
    loading.wait().map_err(Reason::of)
}

/// Returns bytes as words.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|it| u32::from_le_bytes(*it)).collect()
}

/// Copies words to the device. Blocks until they are there.
fn copy(device: &Device, words: &[u32], to: &Arc<DeviceMemory>) -> Result<(), Reason> {
    let lost = || Reason::lost(device.name());
    let mut copies = Vec::new();
    for (index, piece) in words.chunks(COPY_BYTES / 4).enumerate() {
        let mut pinned = device.stage(piece.len() * 4).ok_or_else(lost)?;
        for (bytes, word) in pinned.as_chunks_mut::<4>().0.iter_mut().zip(piece) {
            *bytes = word.to_le_bytes();
        }
        let begin = index * COPY_BYTES;
        let view = DeviceView::of(to, begin..begin + piece.len() * 4);
        let (done, copied) = std::sync::mpsc::channel();
        let job = TransferJob::new(
            PinnedPart::new(pinned, 0..piece.len() * 4),
            view,
            move |_, _| {
                // The receiver is gone if an earlier copy failed.
                let _ = done.send(());
            },
        );
        device.submit_when_free(Box::new(job)).map_err(Reason::of)?;
        copies.push(copied);
    }
    copies
        .into_iter()
        .try_for_each(|copied| copied.recv().map_err(|_| lost()))
}

/// Kernels that run.
#[derive(Debug)]
struct Running {
    began: Event,
    ended: Event,
    streams: Streams,
    kernels: Vec<(Arc<Kernel>, LaunchShape)>,
    /// Index of the first kernel that is not in the stream yet.
    next: usize,
    /// They are done before the kernels behind them begin.
    fills: Vec<Transfer<Fill, DeviceView<u8>>>,
}

/// The streams that all fragments on a device share.
#[derive(Debug, Clone)]
struct Streams {
    kernels: Stream,
    /// The stream of copies of arguments, results and flags, which wait for no kernel.
    copies: Stream,
}

impl Streams {
    /// Returns the streams of the device's thread, made by the first call.
    fn of(state: &mut OperatorState, cuda: &Cuda) -> Result<Streams, JobError> {
        let streams = state.get_or_try_init(0, || {
            Ok::<_, JobError>(Streams {
                kernels: cuda.stream(Priority::Normal)?,
                copies: cuda.stream(Priority::Normal)?,
            })
        });
        streams.cloned()
    }
}

/// Runs the kernels of a fragment and reads the totals.
#[derive(Debug)]
pub(crate) struct FragmentJob {
    launch: Launch,
    image: Image,
    memory: Arc<DeviceMemory>,
    reply: Option<oneshot::Sender<Result<Ran, Reason>>>,
    /// When the job began to wait for the compiler.
    compiling: Option<Instant>,
    compiled: Duration,
    running: Option<Running>,
}

impl FragmentJob {
    fn reply(&mut self, result: Result<Ran, Reason>) {
        if let Some(reply) = self.reply.take() {
            // The receiver is gone if the query was cancelled.
            let _ = reply.send(result);
        }
    }

    /// Starts the kernels.
    fn begin(&mut self, cuda: &mut Cuda, streams: Streams) -> Result<Step, JobError> {
        let tile_rows = u64::from(THREADS * crate::program::ROWS_OF_THREAD);
        let mut kernels = Vec::new();
        for (index, launch) in self.launch.kernels.iter().enumerate() {
            let kernel = cuda.kernel(&launch.program, "fragment")?;
            let mut shape = kernel.persistent_shape(THREADS, launch.shared_bytes)?;
            let tiles = self.image.tiles(index);
            shape.blocks = shape.blocks.min(tiles);
            let tiles_of_block = tiles.div_ceil(shape.blocks.max(1));
            if let Err(reason) = launch.check_sums(tiles_of_block * tile_rows) {
                self.reply(Err(reason));
                return Ok(Step::Done);
            }
            kernels.push((kernel, shape));
        }
        let (image, stream) = (&self.image, &streams.kernels);
        cuda.write(&image.bytes, &self.memory, 0, &streams.copies)?;
        let (began, ended) = (cuda.event()?, cuda.event()?);
        cuda.record(&began, stream)?;
        let mut fills = Vec::new();
        if image.results < image.len {
            let results = DeviceView::of(&self.memory, image.results..image.len);
            fills.push(Transfer::begin(cuda, Fill(0), results, stream)?);
        }
        fills.extend(zeroed(cuda, self.launch.zeroed.as_ref(), stream)?);
        let running = Running {
            began,
            ended,
            streams,
            kernels,
            next: 0,
            fills,
        };
        self.go_on(cuda, running)
    }

    /// Starts the kernels up to the next slice of tables or pass of a sort, so that a query that is cancelled ends
    /// there, without the memory that is set to 0 for the next slice.
    fn go_on(&mut self, cuda: &mut Cuda, mut running: Running) -> Result<Step, JobError> {
        let first = running.next;
        let mut left = running.kernels.iter().enumerate().skip(first);
        let all = &self.launch.kernels;
        for (index, (kernel, shape)) in left.by_ref() {
            if index > first && (all[index].zeroed.is_some() || all[index].may_stop) {
                break;
            }
            let stream = &running.streams.kernels;
            let zeroed = zeroed(cuda, all[index].zeroed.as_ref(), stream)?;
            running.fills.extend(zeroed);
            // A source without rows has no tile.
            if shape.blocks > 0 {
                let arguments = self.image.arguments_at(index, self.memory.address());
                self.queue(cuda, (kernel, shape), &arguments, stream)?;
            }
            running.next = index + 1;
        }
        let stream = &running.streams.kernels;
        if running.next == all.len() {
            cuda.record(&running.ended, stream)?;
        }
        let done = cuda.mark(stream)?;
        self.running = Some(running);
        Ok(Step::wait_for(done))
    }
}

/// Starts to set memory to 0, if it is that of a device.
fn zeroed(
    cuda: &mut Cuda,
    memory: Option<&(Memory, u64)>,
    stream: &Stream,
) -> Result<Option<Transfer<Fill, DeviceView<u8>>>, JobError> {
    let held = memory.map(|(memory, bytes)| (Arc::clone(&memory.held).downcast(), *bytes));
    let Some((Ok(memory), bytes)) = held else {
        return Ok(None);
    };
    let all = DeviceView::of(&memory, 0..bytes as usize);
    Ok(Some(Transfer::begin(cuda, Fill(0), all, stream)?))
}

impl Job for FragmentJob {
    fn class(&self) -> Class {
        Class::Interactive
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let parts = context.parts();
        let Some(cuda) = parts.cuda else {
            return Ok(Step::Done);
        };
        if let Some(running) = self.running.take() {
            if self.reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
                return Ok(Step::Done);
            }
            if running.next < running.kernels.len() {
                return self.go_on(cuda, running);
            }
            let flag = self.image.flag;
            let mut bytes = vec![0; self.image.len - flag];
            cuda.read(&self.memory, flag, &mut bytes, &running.streams.copies)?;
            let ms = running.ended.elapsed_ms(&running.began)?;
            let took = Duration::from_secs_f64(f64::from(ms) / 1e3);
            // Who gets the reply may move the columns, or allocate what the tables had.
            self.launch = Launch::new(false);
            self.reply(Image::ran(bytes, (took, self.compiled)));
            return Ok(Step::Done);
        }
        let mut compiling = None;
        let kernels = self.launch.kernels.iter().map(|it| &it.program);
        for program in kernels.chain(&self.launch.later) {
            // All are compiled at the same time.
            compiling = cuda.load(program)?.or(compiling);
        }
        if let Some(compiling) = compiling {
            if self.launch.waits {
                self.compiling.get_or_insert_with(Instant::now);
                return Ok(Step::wait_for(compiling));
            }
            self.reply(Err(Reason::of_kind(Kind::Compiling, COMPILING)));
            return Ok(Step::Done);
        }
        self.compiled = self.compiling.map_or(Duration::ZERO, |it| it.elapsed());
        if self.reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
            return Ok(Step::Done);
        }
        let streams = Streams::of(parts.state, cuda)?;
        self.begin(cuda, streams)
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.reply(Err(Reason::of(failure.clone())));
    }
}
