//! Writes log lines to standard error.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::settings::Settings;

/// Starts logging according to the settings.
///
/// # Errors
/// If the filter is malformed.
pub fn start(settings: &Settings) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(&settings.log).map_err(|error| anyhow::anyhow!("--log: {error}"))?;
    // Without colors, so that a line is the same on a terminal and in a file.
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        // A line that cannot be written is lost. The report of such an error would panic.
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(|| Lines(io::stderr()));
    match settings.log_format.as_str() {
        "json" => lines.json().init(),
        _ => lines.init(),
    }
    Ok(())
}

/// Writes each event as one line, even if names or messages in it contain line breaks.
///
/// Expects a whole event, with a line feed at its end, in each call. The formatter writes events in this way.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (&*text, ""),
        };
        self.0
            .write_all(format!("{}{end}", one_line(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Escapes characters that end a line, control a terminal or change the text direction.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_steering) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().flat_map(|letter| {
        if is_steering(letter) {
            letter.escape_debug().collect::<Vec<char>>()
        } else {
            vec![letter]
        }
    });
    Cow::Owned(escaped.collect())
}

fn is_steering(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A collection name that imitates a line of the log, in red.
    const FORGED: &str = "d.x\n2026-11-23T05:00:00Z ERROR forebay::auth: root logged in from 6.6.6.6\x1b[31m\u{9b}1m\u{202e}\r";

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log_twice() {
        tracing::warn!(namespace = %FORGED, "loaded {FORGED}");
        tracing::warn!(namespace = FORGED, error = ?io::Error::other(FORGED), "second");
    }

    fn assert_two_lines(kept: &Kept) {
        let text = String::from_utf8(kept.0.lock().clone()).expect("the log is UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for line in lines {
            assert!(
                line.contains("WARN") && !line.contains(is_steering),
                "{line:?}"
            );
        }
    }

    #[test]
    fn names_do_not_forge_lines() {
        let (text, json) = (Kept::default(), Kept::default());
        let writer = text.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            // A line that cannot be written is lost. The report of such an error would panic.
            .log_internal_errors(false)
            .with_writer(move || Lines(writer.clone()));
        tracing::subscriber::with_default(lines.finish(), log_twice);
        assert_two_lines(&text);
        let writer = json.clone();
        let lines = tracing_subscriber::fmt()
            .json()
            .with_writer(move || Lines(writer.clone()));
        tracing::subscriber::with_default(lines.finish(), log_twice);
        assert_two_lines(&json);
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let text = "naïve 'quotes' \\ 日本 🙂";
        assert_eq!(one_line(text), text);
        assert_eq!(one_line("a\tb\u{7f}"), "a\\tb\\u{7f}");
    }
}
