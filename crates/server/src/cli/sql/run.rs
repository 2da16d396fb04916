//! Runs statements and writes their results.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use forebay_tables::{Outcome, Parsed, Rows, Session, SqlError, parse};
use forebay_terminal::note;
use tokio::sync::{Mutex, watch};

use super::failure::Failure;
use super::output::{Output, summary};
use super::progress::Progress;
use super::statements::{Piece, split};
use crate::logging::one_line;
use crate::stop::Stop;

/// What ends a statement early.
pub struct Interrupts {
    stopped: watch::Receiver<bool>,
    /// Counts presses of Ctrl-C, in the shell.
    pressed: Option<watch::Receiver<u64>>,
}

impl Interrupts {
    /// Listens for a request to stop the process.
    pub fn of_process(stop: &Stop) -> Interrupts {
        Interrupts {
            stopped: stop.listen(),
            pressed: None,
        }
    }

    /// Listens for a request to stop the process, and for Ctrl-C from now on.
    pub fn of_shell(stop: &Stop, pressed: &watch::Receiver<u64>) -> Interrupts {
        let mut pressed = pressed.clone();
        pressed.mark_unchanged();
        Interrupts {
            stopped: stop.listen(),
            pressed: Some(pressed),
        }
    }

    /// Returns the result of `work`, unless an interrupt comes first.
    ///
    /// # Errors
    /// Those of `work`, or the interrupt.
    pub async fn during<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            failure = self.next() => Err(failure),
            result = work => result,
        }
    }

    /// Waits for an interrupt.
    async fn next(&mut self) -> Failure {
        let Interrupts { stopped, pressed } = self;
        let pressed = async {
            match pressed {
                Some(pressed) => pressed.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => Failure::Stopped,
            _ = pressed => Failure::Interrupted,
        }
    }
}

/// A session and its output.
pub struct Runner {
    /// The session, which the completion of the shell asks for names.
    pub session: Arc<Mutex<Session>>,
    /// Where results go.
    pub output: Output,
}

impl Runner {
    /// Runs the statements of a text, up to the first that fails.
    ///
    /// # Errors
    /// If a statement fails or is interrupted, or standard output cannot be written.
    pub async fn run(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<(), Failure> {
        for piece in split(text) {
            let ended = self.run_piece(&piece, interrupts).await;
            let flushed = self.output.flush();
            self.tell_notices().await;
            ended.and(flushed).map_err(|failure| failure.at(&piece))?;
        }
        Ok(())
    }

    async fn run_piece(
        &mut self,
        piece: &Piece<'_>,
        interrupts: &mut Interrupts,
    ) -> Result<(), Failure> {
        for parsed in parse(piece.text)? {
            self.run_statement(parsed, interrupts).await?;
        }
        Ok(())
    }

    async fn run_statement(
        &mut self,
        parsed: Parsed,
        interrupts: &mut Interrupts,
    ) -> Result<(), Failure> {
        let mut progress = Progress::start();
        match self.start(parsed, interrupts, &mut progress).await? {
            Outcome::Rows(rows) => self.write(rows, interrupts, progress).await,
            Outcome::Done(tag) => {
                progress.clear();
                self.output.tell(&tag, progress.elapsed());
                Ok(())
            }
            Outcome::CopyIn(_) => Err(SqlError::unsupported("COPY FROM STDIN in this shell")
                .with_hint("use INSERT INTO a_table SELECT * FROM 'a_file.csv'")
                .into()),
        }
    }

    /// Starts a statement, and completes it if it has no rows.
    async fn start(
        &self,
        parsed: Parsed,
        interrupts: &mut Interrupts,
        progress: &mut Progress,
    ) -> Result<Outcome, Failure> {
        let mut session = self.session.lock().await;
        let mut outcome = pin!(session.run(parsed));
        loop {
            tokio::select! {
                biased;
                failure = interrupts.next() => return Err(failure),
                () = progress.tick() => progress.draw(0),
                outcome = &mut outcome => return Ok(outcome?),
            }
        }
    }

    /// Writes the rows of a query. Rows that were written before an error stay.
    async fn write(
        &mut self,
        mut rows: Rows,
        interrupts: &mut Interrupts,
        mut progress: Progress,
    ) -> Result<(), Failure> {
        let mut writing = self.output.begin(rows.schema())?;
        let mut count = 0;
        loop {
            let batch = tokio::select! {
                biased;
                failure = interrupts.next() => return Err(failure),
                () = progress.tick() => {
                    progress.draw(rows.rows_scanned());
                    continue;
                }
                batch = rows.next() => batch?,
            };
            let Some(batch) = batch else {
                break;
            };
            if self.output.draws_at_once(&writing) {
                progress.clear();
            }
            count += batch.num_rows() as u64;
            self.output.push(&mut writing, &batch)?;
        }
        progress.clear();
        let left_out = self.output.finish(writing)?;
        self.output
            .tell(&summary(count, left_out), progress.elapsed());
        Ok(())
    }

    /// Writes rows that are there already.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn show(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut writing = self.output.begin(&batch.schema())?;
        self.output.push(&mut writing, batch)?;
        let left_out = self.output.finish(writing)?;
        let summary = summary(batch.num_rows() as u64, left_out);
        self.output.tell(&summary, begun.elapsed());
        Ok(())
    }

    /// Tells what the session notes about the last statement.
    async fn tell_notices(&self) {
        for SqlError { message, hint, .. } in self.session.lock().await.take_notices() {
            let hint = hint.map_or(String::new(), |hint| format!(" ({hint})"));
            note(one_line(&format!("NOTICE: {message}{hint}")));
        }
    }
}
