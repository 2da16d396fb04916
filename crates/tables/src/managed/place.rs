//! Where the folders of managed tables are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_tables_delta::remove_folder;
use parking_lot::Mutex;

use crate::catalogue::{Catalogue, Entry, Kind};
use crate::error::{Code, Result, SqlError};
use crate::scratch::Scratch;

/// Name of the folder of the tables.
const FOLDER: &str = "tables";
/// A file in the folder of a table that the catalogue does not have yet, or no longer.
const UNLISTED: &str = ".unlisted";
/// Maximum letters of a table's name in that of its folder.
const LETTERS_MAX: usize = 40;

/// Where the folders of managed tables are: in the data directory, or in a temporary folder that ends with the process.
#[derive(Debug)]
pub(crate) struct Place {
    folder: Option<PathBuf>,
    temporary: Mutex<Option<Scratch>>,
}

impl Place {
    /// Opens the place. Deletes folders of tables that were being created or dropped when a process was killed.
    ///
    /// # Errors
    /// If a folder cannot be deleted.
    pub(crate) fn open(data: Option<&Path>, catalogue: &Catalogue) -> io::Result<Place> {
        // Files are read by absolute paths.
        let folder = data.map(|data| std::path::absolute(data.join(FOLDER)));
        let folder = folder.transpose()?;
        let entries = folder.as_ref().map(fs::read_dir);
        let entries = entries.and_then(io::Result::ok).into_iter().flatten();
        for entry in entries.flatten() {
            let mark = entry.path().join(UNLISTED);
            if !mark.exists() {
                // An empty folder is what a kill left of one.
                let _ = fs::remove_dir(entry.path());
                continue;
            }
            match catalogue.has_folder(&entry.file_name().to_string_lossy()) {
                true => fs::remove_file(mark)?,
                false => remove_folder(&entry.path())?,
            }
        }
        Ok(Place {
            folder,
            temporary: Mutex::default(),
        })
    }

    fn root(&self) -> io::Result<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let mut temporary = self.temporary.lock();
        if let Some(folder) = &*temporary {
            return Ok(folder.path().to_owned());
        }
        Ok(temporary.insert(Scratch::new()?).path().to_owned())
    }

    /// Returns the path of the folder with this name.
    ///
    /// # Errors
    /// If there is no temporary folder and none can be made.
    pub(crate) fn path_of(&self, name: &str) -> Result<PathBuf> {
        let root = self.root().map_err(cannot_make)?;
        Ok(root.join(name))
    }

    /// Makes a marked folder for a new table. Returns its name.
    pub(super) fn make(&self, table: &str) -> Result<String> {
        let letters = table.chars().filter(char::is_ascii_alphanumeric);
        let letters: String = letters.take(LETTERS_MAX).collect();
        let prefix = format!("{letters}-");
        let make = || {
            let root = self.root()?;
            fs::create_dir_all(&root)?;
            let folder = tempfile::Builder::new()
                .prefix(&prefix)
                .rand_bytes(12)
                .tempdir_in(&root)?;
            fs::write(folder.path().join(UNLISTED), "")?;
            Ok(folder.keep())
        };
        let folder = make().map_err(cannot_make)?;
        let name = folder.file_name().unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Removes the mark of a table that the catalogue has.
    pub(super) fn set_listed(&self, name: &str) {
        // A mark that stays is removed when the tables are opened again.
        let _ = self
            .path_of(name)
            .map(|folder| fs::remove_file(folder.join(UNLISTED)));
    }

    /// Marks a table before it is removed from the catalogue. A folder that is no longer there needs no mark.
    fn set_unlisted(&self, name: &str) -> Result<()> {
        match fs::write(self.path_of(name)?.join(UNLISTED), "") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_make(error)),
            _ => Ok(()),
        }
    }

    /// Deletes the folder with this name.
    pub(super) fn remove(&self, name: &str) {
        let path = self.path_of(name);
        let removed = path.map(|path| remove_folder(&path).map_err(cannot_make));
        if let Err(error) = removed.flatten() {
            tracing::warn!(folder = name, %error, "the folder of a table cannot be deleted");
        }
    }
}

fn cannot_make(error: io::Error) -> SqlError {
    let message = format!("the folder of a table cannot be written: {error}");
    SqlError::new(Code::of_io(&error), message)
}

/// Removes tables from the catalogue by `remove`, and deletes the files of those that are managed.
///
/// # Errors
/// Those of `remove`, after which all tables are there.
pub(crate) fn forget(
    place: &Place,
    tables: &[Arc<Entry>],
    remove: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let managed = || tables.iter().filter(|entry| entry.kind == Kind::Managed);
    for entry in managed() {
        place.set_unlisted(&entry.definition)?;
    }
    if let Err(error) = remove() {
        for entry in managed() {
            place.set_listed(&entry.definition);
        }
        return Err(error);
    }
    for entry in managed() {
        match entry.managed.get() {
            Some(table) => table.managed().delete(),
            None => place.remove(&entry.definition),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::common::{ResolvedTableReference, TableReference};

    fn named(table: &str) -> ResolvedTableReference {
        TableReference::bare(table).resolve("", "public")
    }

    #[test]
    fn tables_that_were_not_listed_are_deleted_when_the_tables_are_opened() {
        let data = tempfile::tempdir().expect("a temporary folder");
        let catalogue = Catalogue::open(Some(data.path())).expect("a new one");
        let place = Place::open(Some(data.path()), &catalogue).expect("room");
        let [kept, killed, dropped] = ["Kept", "../killed", "ü"].map(|table| {
            let folder = place.make(table).expect("room");
            (folder.clone(), place.path_of(&folder).expect("a path"))
        });
        for (folder, _) in [&kept, &dropped] {
            let entry = Entry::new(Kind::Managed, folder.clone());
            catalogue.add("public", folder, entry, false).expect("new");
        }
        place.set_listed(&dropped.0);
        let entry = catalogue.table("public", &dropped.0).expect("it was added");
        let remove = || catalogue.remove(&[named(&dropped.0)], false);
        forget(&place, &[entry], remove).expect("it is there");
        Place::open(Some(data.path()), &catalogue).expect("readable");
        assert!(kept.1.exists() && !killed.1.exists() && !dropped.1.exists());
        assert!(!kept.1.join(UNLISTED).exists());
        // The catalogue forgets a table whose folder is missing.
        fs::remove_dir_all(&kept.1).expect("it is there");
        let entry = catalogue.table("public", &kept.0).expect("it was added");
        let remove = || catalogue.remove(&[named(&kept.0)], false);
        forget(&place, &[entry], remove).expect("no folder is needed");
    }
}
