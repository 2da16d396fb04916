//! The shell: reads statements and commands at a terminal.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use forebay_terminal::note;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Behavior, CompletionType, Config, Editor};
use tokio::sync::watch;

use super::commands::Command;
use super::complete::Assistant;
use super::describe;
use super::failure::Failure;
use super::history;
use super::run::{Interrupts, Runner};
use crate::logging::one_line;
use crate::stop::Stop;

const PROMPT: &str = "forebay> ";
const WELCOME: &str = "Statements end with a semicolon. \\? lists the commands, \\q leaves.";
const HELP: &str = "\
  \\d            list tables and views
  \\d NAME       show the columns of a table, view or file
  \\table, \\json, \\csv
                format of results
  \\rows COUNT   maximum number of rows shown of a table, 0 for all
  \\timing       show the time of statements, or not
  \\? or \\h      this help
  \\q            leave (as quit, exit and Ctrl-D)

Statements end with a semicolon; Tab completes. Ctrl-C cancels a statement, or clears the input.
Tables are names in quotes, as in SELECT * FROM 'orders.parquet'; statements that begin with a space
are not kept in the history.";

/// Maximum number of entries of the history.
const HISTORY_MAX: usize = 5_000;

/// A shell.
struct Shell<'a> {
    runner: Runner,
    editor: Editor<Assistant, FileHistory>,
    /// `None` if no history is kept.
    history: Option<PathBuf>,
    stop: &'a Stop,
    /// Counts presses of Ctrl-C. As long as it exists, they do not end the process.
    pressed: watch::Receiver<u64>,
}

/// Reads and runs statements until the user leaves.
///
/// # Errors
/// If the terminal cannot be read or written, or a stop was requested.
pub async fn run(runner: Runner, stop: &Stop) -> Result<()> {
    let assistant = Assistant::new(Arc::clone(&runner.session));
    let mut shell = Shell {
        runner,
        editor: editor(assistant)?,
        history: None,
        stop,
        pressed: stop.interrupts(),
    };
    shell.load_history();
    note(WELCOME);
    while let Some(text) = shell.read()? {
        match shell.take(&text).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(Failure::Sql(report)) => note(report),
            Err(Failure::Interrupted) => note("cancelled"),
            Err(failure) => return Err(failure.into_error()),
        }
    }
    Ok(())
}

fn editor(assistant: Assistant) -> Result<Editor<Assistant, FileHistory>> {
    let behavior = match io::stdout().is_terminal() {
        true => Behavior::Stdio,
        false => Behavior::PreferTerm,
    };
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .behavior(behavior)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(assistant));
    Ok(editor)
}

impl Shell<'_> {
    fn load_history(&mut self) {
        match history::path() {
            Ok(path) => self.history = path,
            Err(error) => note(format_args!("no history is kept: {error}")),
        }
        if let Some(path) = &self.history {
            // The file does not exist before the first statement.
            let _ = self.editor.load_history(path);
        }
    }

    /// Reads statements or a command; `None` if the user leaves.
    fn read(&mut self) -> Result<Option<String>> {
        loop {
            match tokio::task::block_in_place(|| self.editor.readline(PROMPT)) {
                Ok(text) => {
                    self.remember(&text);
                    return Ok(Some(text));
                }
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds an input to the history, and to its file at once: a shell may end by a signal.
    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text.trim_end());
        let (Ok(true), Some(path)) = (added, &self.history) else {
            return;
        };
        if let Err(error) = self.editor.append_history(path) {
            note(format_args!(
                "{} cannot be written: {error}",
                path.display()
            ));
            self.history = None;
        }
    }

    /// Runs statements or a command. Returns false if the user leaves.
    async fn take(&mut self, text: &str) -> Result<bool, Failure> {
        match Command::parse(text) {
            None => {
                let mut interrupts = Interrupts::of_shell(self.stop, &self.pressed);
                self.runner.run(text, &mut interrupts).await?;
            }
            Some(Ok(Command::Quit)) => return Ok(false),
            Some(Ok(command)) => self.execute(command).await?,
            Some(Err(problem)) => note(one_line(&problem)),
        }
        Ok(true)
    }

    async fn execute(&mut self, command: Command) -> Result<(), Failure> {
        let output = &mut self.runner.output;
        match command {
            Command::Quit => {}
            Command::Help => note(HELP),
            Command::List => self.describe(None).await?,
            Command::Describe(name) => self.describe(Some(&name)).await?,
            Command::Timing => {
                output.shows_time = !output.shows_time;
                let state = match output.shows_time {
                    true => "shown",
                    false => "not shown",
                };
                note(format_args!("the time of statements is {state}"));
            }
            Command::Rows(count) => output.rows_max = Some(count),
            Command::Format(format) => output.format = format,
        }
        Ok(())
    }

    /// Shows the columns of a table, or all tables.
    async fn describe(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let mut interrupts = Interrupts::of_shell(self.stop, &self.pressed);
        let session = Arc::clone(&self.runner.session);
        let described = interrupts.during(async {
            let session = session.lock().await;
            match name {
                Some(name) => describe::columns(&session, name).await,
                None => describe::tables(&session).await,
            }
        });
        self.runner.show(&described.await?)
    }
}
