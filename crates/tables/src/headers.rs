//! The files of a table before they are read: whether they have content, and whether those of CSV have the same header.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;
use futures_util::TryStreamExt;

use crate::error::{Code, Result, SqlError};

/// Maximum number of files whose headers are compared, and that are searched for the cause of an error.
const FILES_MAX: usize = 1_000;
/// Maximum bytes of a header.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Maximum characters of a header in a message.
const SHOWN_MAX: usize = 100;

/// Checks local files of a table. Returns those that are not empty, at most [`FILES_MAX`].
///
/// # Errors
/// If all are empty, or their headers differ: DataFusion reads CSV by position.
pub(crate) async fn check(
    command: &CreateExternalTable,
    state: &SessionState,
) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut bytes = 0;
    for location in &command.locations {
        let url = ListingTableUrl::parse(location)?;
        let store = state.runtime_env().object_store(&url)?;
        let mut listed = url.list_all_files(state, &*store, "").await?;
        while let Some(file) = listed.try_next().await? {
            bytes += file.size;
            if file.size > 0 && files.len() < FILES_MAX {
                files.push(Path::new("/").join(file.location.as_ref()));
            }
        }
    }
    if bytes == 0 {
        let message = format!("{} is empty", command.locations.join(", "));
        return Err(SqlError::new(Code::DataCorrupted, message));
    }
    if has_plain_header(command) {
        alike(&files)?;
    }
    Ok(files)
}

fn has_plain_header(command: &CreateExternalTable) -> bool {
    let is = |name: &str, wanted: &str| {
        let option = command.options.get(name);
        option.is_none_or(|option| option.eq_ignore_ascii_case(wanted))
    };
    command.file_type.eq_ignore_ascii_case("csv")
        && is("format.has_header", "true")
        && is("format.compression", "uncompressed")
}

fn alike(files: &[PathBuf]) -> Result<()> {
    let [first, others @ ..] = files else {
        return Ok(());
    };
    let wanted = header(first)?;
    for file in others {
        let found = header(file)?;
        if found != wanted {
            let message = format!(
                "the header of {} is {}, and that of {} is {}",
                file.display(),
                shown(&found),
                first.display(),
                shown(&wanted)
            );
            return Err(SqlError::new(Code::DatatypeMismatch, message).with_hint(
                "CSV is read by position: give all files the same columns in the same order",
            ));
        }
    }
    Ok(())
}

/// Returns the first line of a file without its end.
fn header(path: &Path) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let read = File::open(path)
        .and_then(|file| BufReader::new(file.take(HEADER_BYTES_MAX)).read_until(b'\n', &mut line));
    read.map_err(|error| {
        SqlError::new(Code::of_io(&error), format!("{}: {error}", path.display()))
    })?;
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line);
    Ok(line.trim_ascii_end().to_vec())
}

fn shown(header: &[u8]) -> String {
    let text = String::from_utf8_lossy(header);
    let cut: String = text.chars().take(SHOWN_MAX).collect();
    match cut.len() < text.len() {
        true => format!("{cut}..."),
        false => cut,
    }
}
