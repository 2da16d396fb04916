//! The names of files in S3.

use datafusion::execution::SessionState;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::bucket::{VERSION, no_file, opened};
use crate::error::{Code, Result, SqlError};
use crate::files::{FILES_MAX, PATTERN, PATTERN_OPTIONS, pattern_of};

/// How the names begin.
const SCHEME: &str = "s3://";

/// The files of a bucket that a name tells: one file, those of a folder, or those of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    bucket: String,
    /// Key, folder or pattern, without escapes.
    key: String,
}

impl Location {
    /// Returns the location of a name such as `s3://bucket/folder/file.parquet`; `None` if it is not in S3.
    ///
    /// # Errors
    /// If the name is malformed.
    pub(crate) fn parse(name: &str) -> Result<Option<Location>> {
        let Some(rest) = name.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = bucket.starts_with(|first: char| first.is_ascii_alphanumeric())
            && bucket
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        if !is_bucket || key.starts_with('/') || key.contains(VERSION) || Path::parse(key).is_err()
        {
            let message = "the name of a file in S3 is malformed";
            let hint = "write s3://BUCKET/KEY; credentials and the endpoint come from the environment of this process";
            return Err(SqlError::new(Code::InvalidParameterValue, message).with_hint(hint));
        }
        Ok(Some(Location {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        }))
    }

    /// Returns the name of the bucket.
    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns whether every file of `other` is in this folder.
    pub(crate) fn covers(&self, other: &Location) -> bool {
        let folder = match self.key.trim_end_matches('/') {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        // What a pattern matches begins with the text before its first special character, and may go on in any way.
        let beginning = match other.key.find(PATTERN) {
            Some(first) => other.key[..first].to_owned(),
            None => format!("{}/", other.key),
        };
        self.bucket == other.bucket && beginning.starts_with(&folder)
    }

    /// Returns the folder in which all files are. It ends with `/`, unless it is the bucket.
    fn folder(&self) -> &str {
        let end = self.key.find(PATTERN).unwrap_or(self.key.len());
        let slash = self.key[..end].rfind('/');
        &self.key[..slash.map_or(0, |slash| slash + 1)]
    }

    /// Returns the URL of that folder.
    pub(super) fn folder_url(&self) -> String {
        let escaped = self.folder().bytes().map(|byte| match byte {
            b'/' | b'=' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        format!("{SCHEME}{}/{}", self.bucket, escaped.collect::<String>())
    }

    /// Calls `found` with the name of each file in the folder, and in folders of it, until it returns a value.
    ///
    /// # Errors
    /// If S3 does not list the files.
    pub(crate) async fn first<T>(
        &self,
        state: &SessionState,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let bucket = opened(&self.bucket, state)?;
        let mut files = bucket.list(Some(&path(self.folder())?));
        while let Some(file) = files.try_next().await? {
            let key = file.location.as_ref();
            if let Some(found) = found(key.strip_prefix(self.folder()).unwrap_or(key)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the files, at least one. Those of a folder pass `is_readable`, and are in the folder or in folders such
    /// as `year=2026` of it.
    ///
    /// # Errors
    /// If there are no files, or S3 does not list them.
    pub(super) async fn files(
        &self,
        store: &dyn ObjectStore,
        is_readable: impl Fn(&str) -> bool,
    ) -> Result<Vec<ObjectMeta>> {
        let is_folder = self.key.is_empty() || self.key.ends_with('/');
        let pattern = match self.key.contains(PATTERN) {
            true => Some(pattern_of(&self.key)?),
            false if is_folder => None,
            false => return Ok(vec![file(store, &path(&self.key)?).await?]),
        };
        let folder = self.folder();
        let is_wanted = |file: &ObjectMeta| {
            let key = file.location.as_ref();
            let Some(rest) = key.strip_prefix(folder).filter(|_| file.size > 0) else {
                return false;
            };
            let plain: Vec<&str> = rest.split('/').filter(|part| !part.contains('=')).collect();
            let Some(pattern) = &pattern else {
                return plain.len() <= 1 && is_readable(key);
            };
            let plain = format!("{folder}{}", plain.join("/"));
            let mut keys = [key, &plain].into_iter();
            keys.any(|key| pattern.matches_with(key, PATTERN_OPTIONS))
        };
        let listed = store.list(Some(&path(folder)?)).take(FILES_MAX + 1);
        let mut files: Vec<_> = listed.try_collect().await?;
        if files.len() > FILES_MAX {
            let message = format!("{} has more than {FILES_MAX} files", self.folder_url());
            return Err(SqlError::new(Code::LimitExceeded, message)
                .with_hint("name a folder with fewer files"));
        }
        files.retain(is_wanted);
        match files.is_empty() {
            true => Err(no_file(&self.bucket, &self.key)),
            false => Ok(files),
        }
    }
}

fn path(key: &str) -> object_store::Result<Path> {
    Ok(Path::parse(key)?)
}

/// Returns a file. S3 gives no reason when it does not know the file, so it is asked for the files in a folder of this
/// name: that there is no bucket, or why access is denied.
async fn file(store: &dyn ObjectStore, key: &Path) -> Result<ObjectMeta> {
    let error: SqlError = match store.head(key).await {
        Ok(file) => return Ok(file),
        Err(error) => error.into(),
    };
    if matches!(
        error.code,
        Code::UndefinedFile | Code::InsufficientPrivilege
    ) {
        store.list(Some(key)).try_next().await?;
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(name: &str) -> Location {
        let parsed = Location::parse(name).expect(name);
        parsed.expect("a name of S3")
    }

    #[test]
    fn names_are_buckets_and_keys() {
        assert_eq!(Location::parse("a/b.csv").expect("a path"), None);
        assert_eq!(location("s3://bucket/a/b*/c.csv").folder(), "a/");
        assert_eq!(
            location("s3://bucket/x y/a%?b/").folder_url(),
            "s3://bucket/x%20y/"
        );
        assert_eq!(location("s3://bucket").folder_url(), "s3://bucket/");
        for malformed in [
            "s3://",
            "s3:///a.csv",
            "s3://key:secret@bucket/a.csv",
            "s3://../a.csv",
            "s3://host:80/a.csv",
            "s3://bucket/../other/a.csv",
            "s3://bucket//a.csv",
            "s3://bucket/a//b.csv",
        ] {
            let error = Location::parse(malformed).expect_err(malformed);
            assert_eq!(error.code, Code::InvalidParameterValue, "{malformed}");
        }
    }

    #[test]
    fn a_folder_covers_what_is_in_it() {
        let folder = location("s3://bucket/in/deep");
        for inside in [
            "in/deep",
            "in/deep/",
            "in/deep/a.csv",
            "in/deep/*.csv",
            "in/deep/x/*",
        ] {
            assert!(
                folder.covers(&location(&format!("s3://bucket/{inside}"))),
                "{inside}"
            );
        }
        for outside in [
            "",
            "in",
            "in/deeper/a.csv",
            "in/deep*",
            "in/dee[p]/a.csv",
            "*",
        ] {
            assert!(
                !folder.covers(&location(&format!("s3://bucket/{outside}"))),
                "{outside}"
            );
        }
        assert!(!folder.covers(&location("s3://bucket2/in/deep/a.csv")));
        assert!(location("s3://bucket").covers(&location("s3://bucket/*")));
        assert!(!location("s3://bucket").covers(&location("s3://bucket2/*")));
    }
}
