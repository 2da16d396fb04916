//! Which files the statements of clients may name.

use std::path::{Component, Path, PathBuf};

use crate::error::{Code, Result, SqlError};
use crate::s3::Location;

/// The files that statements may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paths {
    /// All files that the process can read. For a user of this machine.
    Any,
    /// Files in these folders, and in the folders below them. Those of S3 are as `s3://bucket/folder`.
    Inside(Vec<PathBuf>),
}

impl Paths {
    /// Checks that a statement may name this file, folder or pattern.
    ///
    /// # Errors
    /// If it is outside the folders, or a URL of anything but S3.
    pub(crate) fn check(&self, path: &str) -> Result<()> {
        let Paths::Inside(folders) = self else {
            return Ok(());
        };
        let real = (!path.contains("://")).then(|| real_path(path)).flatten();
        let in_s3 = Location::parse(path)?;
        let is_inside = |folder: &PathBuf| match &in_s3 {
            Some(location) => bucket_folder(folder).is_some_and(|folder| folder.covers(location)),
            None => {
                let folder = folder.canonicalize();
                folder
                    .is_ok_and(|folder| real.as_ref().is_some_and(|real| real.starts_with(folder)))
            }
        };
        if folders.iter().any(is_inside) {
            return Ok(());
        }
        let message = format!("this server does not let statements read {path}");
        let hint = match &**folders {
            [] => "start the server with --tables-paths FOLDER to allow the files of a folder"
                .to_owned(),
            folders => {
                let folders = folders.iter().map(|folder| folder.display().to_string());
                let folders: Vec<String> = folders.collect();
                format!(
                    "files in {} are allowed (--tables-paths)",
                    folders.join(", ")
                )
            }
        };
        Err(SqlError::new(Code::InsufficientPrivilege, message).with_hint(hint))
    }
}

impl Paths {
    /// Checks that a file that was found may be read: a link may lead elsewhere.
    ///
    /// # Errors
    /// If its real path is outside the folders.
    pub(crate) fn check_file(&self, path: &Path) -> Result<()> {
        let Paths::Inside(folders) = self else {
            return Ok(());
        };
        let real = path.canonicalize();
        let is_inside = |folder: &PathBuf| match (&real, folder.canonicalize()) {
            (Ok(real), Ok(folder)) => real.starts_with(folder),
            _ => false,
        };
        if folders.iter().any(is_inside) {
            return Ok(());
        }
        let message = format!(
            "this server does not let statements read {}",
            path.display()
        );
        Err(SqlError::new(Code::InsufficientPrivilege, message)
            .with_hint("it is a link to a file outside the allowed folders"))
    }
}

/// Returns the folder of S3 that a path names.
fn bucket_folder(path: &Path) -> Option<Location> {
    Location::parse(path.to_str()?).ok().flatten()
}

/// Returns the path without links and `..`, up to its first pattern; `None` if it cannot be told.
fn real_path(path: &str) -> Option<PathBuf> {
    let fixed = path.find(['*', '?', '[']).map_or(path, |star| {
        let folder = path[..star].rfind('/').map_or(0, |slash| slash + 1);
        &path[..folder]
    });
    let fixed = match fixed {
        "" => Path::new("."),
        fixed => Path::new(fixed),
    };
    let pattern = Path::new(&path[fixed.as_os_str().len().min(path.len())..]);
    if pattern
        .components()
        .any(|part| part == Component::ParentDir)
    {
        return None;
    }
    match fixed.canonicalize() {
        Ok(real) => Some(real),
        // The name of a file that does not exist: its folder decides.
        Err(_) => {
            let name = fixed.file_name()?;
            let folder = fixed
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_the_folders_may_be_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let inside = root.join("in");
        std::fs::create_dir_all(inside.join("deep")).expect("room");
        std::fs::create_dir_all(root.join("out")).expect("room");
        std::fs::write(root.join("out/secret.csv"), "a").expect("room");
        std::os::unix::fs::symlink(root.join("out"), inside.join("link")).expect("links");
        let paths = Paths::Inside(vec![inside.clone()]);
        let check = |name: &str| paths.check(&format!("{}/{name}", inside.display()));
        for allowed in [
            "a.csv",
            "deep/a.csv",
            "*.csv",
            "deep/*/x.parquet",
            "deep/",
            "",
        ] {
            check(allowed).expect(allowed);
        }
        for refused in [
            "../out/secret.csv",
            "deep/../../out/secret.csv",
            "link/secret.csv",
            "link/*.csv",
            "*/../../out/secret.csv",
            "missing/../../out/secret.csv",
            "..",
        ] {
            let error = check(refused).expect_err(refused);
            assert_eq!(error.code, Code::InsufficientPrivilege, "{refused}");
        }
        let paths = Paths::Inside(vec![inside, PathBuf::from("s3://bucket/in")]);
        for refused in [
            "/etc/passwd",
            "file:///etc/passwd",
            "s3://other/in/x.csv",
            "s3://bucket/x.csv",
        ] {
            let error = paths.check(refused).expect_err(refused);
            assert_eq!(error.code, Code::InsufficientPrivilege, "{refused}");
            Paths::Any.check(refused).expect("everything is allowed");
        }
        paths
            .check("s3://bucket/in/x.csv")
            .expect("it is in the folder");
    }
}
