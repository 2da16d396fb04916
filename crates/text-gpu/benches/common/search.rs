//! Sends searches to GPUs and waits for their answers; shared with the tests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_text::Program;
use forebay_text_gpu::{ScanFound, ScanOrder, ScanQueue, ScanTable, ScanWant};

/// A search of a table with a compiled pattern, on the device that holds the table.
pub struct Search<'a> {
    pub device: &'a Device,
    pub queue: &'a Arc<ScanQueue>,
    pub table: &'a Arc<ScanTable>,
    pub program: &'a Arc<Program>,
}

/// The index of a search, and its result.
pub type Answer = (usize, ScanFound);

/// Queues all searches together, and returns their results in order. `wait` receives the answers.
///
/// # Panics
/// If an answer is missing, because a device was lost.
pub fn search_all<'a>(
    searches: impl IntoIterator<Item = Search<'a>>,
    want: ScanWant,
    wait: impl FnOnce(&Receiver<Answer>) -> Vec<Answer>,
) -> Vec<ScanFound> {
    let (sender, answers) = channel();
    let mut sent = 0;
    for (index, search) in searches.into_iter().enumerate() {
        let order = ScanOrder {
            table: Arc::clone(search.table),
            program: Arc::clone(search.program),
            want: want.clone(),
            limit: u64::MAX,
            stop: Stop::never(),
        };
        let sender = sender.clone();
        let answer = move |found| drop(sender.send((index, found)));
        let submitted = search.queue.submit(search.device, order, answer);
        submitted.expect("the device accepts searches");
        sent = index + 1;
    }
    drop(sender);
    let mut found = wait(&answers);
    assert_eq!(found.len(), sent, "a device was lost");
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, found)| found).collect()
}
