//! The requests to S3.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::execution::SessionState;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    ClientConfigKey, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};
use tokio::time::timeout;

use crate::error::{Code, SqlError};

/// Stands between the key of a file and the ETag of its version. Names of clients do not have it.
pub(super) const VERSION: char = '\u{2060}';
/// Maximum time until a server accepts a connection.
const CONNECT_TIME_MAX: &str = "3s";
/// Maximum time until a request is answered, repetitions counted.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);
/// Maximum time in which a file has no further bytes, or a list no further page.
const PAUSE_TIME_MAX: Duration = Duration::from_secs(15);
/// Maximum time of a request with its answer, and of its repetitions. A client may read the rows of a file slowly.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Number of times that a request is repeated, if it failed for a reason that may pass.
const REPETITIONS: usize = 2;
/// How a process learns whether it may read a bucket.
const CREDENTIALS: &str = "credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and \
                           AWS_SESSION_TOKEN in the environment of this process; with \
                           AWS_SKIP_SIGNATURE=true, public buckets are read without them";
const ENDPOINT: &str = "AWS_ENDPOINT_URL, AWS_REGION and AWS_ALLOW_HTTP in the environment of \
                        this process say where S3 is";

/// A bucket, of which files are read: of one version, if their location has its ETag.
#[derive(Debug)]
pub(super) struct Bucket {
    name: Arc<str>,
    store: Arc<dyn ObjectStore>,
    /// What lists have, instead of the files of the store.
    listed: Option<Vec<ObjectMeta>>,
}

/// Returns the URL of a bucket.
pub(super) fn url(name: &str) -> datafusion::error::Result<ObjectStoreUrl> {
    ObjectStoreUrl::parse(format!("s3://{name}"))
}

/// Returns a bucket. Queries know it from then on.
///
/// # Errors
/// If the settings in the environment of the process are wrong.
pub(super) fn opened(name: &str, state: &SessionState) -> crate::Result<Arc<dyn ObjectStore>> {
    let (url, environment) = (url(name)?, state.runtime_env());
    if let Ok(bucket) = environment.object_store(&url) {
        return Ok(bucket);
    }
    let of_client = AmazonS3ConfigKey::Client;
    let client = AmazonS3Builder::from_env()
        .with_bucket_name(name)
        .with_config(of_client(ClientConfigKey::ConnectTimeout), CONNECT_TIME_MAX)
        .with_config(
            of_client(ClientConfigKey::Timeout),
            format!("{}s", REQUEST_TIME_MAX.as_secs()),
        )
        .with_retry(RetryConfig {
            max_retries: REPETITIONS,
            retry_timeout: REQUEST_TIME_MAX,
            ..RetryConfig::default()
        })
        .build();
    let client = client.map_err(|error| {
        let message = format!("the settings of S3 are wrong: {}", cause(&error));
        SqlError::new(Code::IoError, message).with_hint(ENDPOINT)
    })?;
    let bucket: Arc<dyn ObjectStore> = Arc::new(Bucket {
        name: name.into(),
        store: Arc::new(client),
        listed: None,
    });
    environment.register_object_store(url.as_ref(), Arc::clone(&bucket));
    Ok(bucket)
}

impl Bucket {
    /// Returns these files of a bucket. Lists have them with the ETags that they have now.
    pub(super) fn of_files(
        name: &str,
        bucket: Arc<dyn ObjectStore>,
        files: Vec<ObjectMeta>,
    ) -> Bucket {
        let files = files.into_iter().map(|file| ObjectMeta {
            location: versioned(&file),
            ..file
        });
        Bucket {
            name: name.into(),
            store: bucket,
            listed: Some(files.collect()),
        }
    }

    /// Waits for an answer about a file or a folder.
    async fn answer<T>(&self, key: &str, answer: impl Future<Output = Result<T>>) -> Result<T> {
        match timeout(ANSWER_TIME_MAX, answer).await {
            Ok(answer) => answer.map_err(|error| explained(&self.name, key, error)),
            Err(_) => Err(ours(late(ANSWER_TIME_MAX))),
        }
    }

    /// Ends a stream with an error if it pauses for too long.
    fn paced<T: Send + 'static>(
        &self,
        key: &str,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let paced = stream::try_unfold(items, |mut items| async move {
            match timeout(PAUSE_TIME_MAX, items.try_next()).await {
                Ok(item) => Ok(item?.map(|item| (item, items))),
                Err(_) => Err(ours(late(PAUSE_TIME_MAX))),
            }
        });
        let (name, key) = (Arc::clone(&self.name), key.to_owned());
        paced
            .map_err(move |error| explained(&name, &key, error))
            .boxed()
    }
}

/// Returns the error that tells what a client can do.
fn explained(bucket: &str, key: &str, error: Error) -> Error {
    if let Error::Generic { source, .. } = &error
        && source.is::<SqlError>()
    {
        return error;
    }
    let file = format!("s3://{bucket}/{key}");
    let text = error.to_string();
    let reason = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let reason = reason.map(|(reason, _)| reason);
    let is_denied = matches!(
        error,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
    ) || text.contains("403 Forbidden")
        || text.contains("401 Unauthorized");
    ours(match error {
        _ if reason == Some("NoSuchBucket") => {
            let message = format!("there is no bucket s3://{bucket}");
            SqlError::new(Code::UndefinedFile, message).with_hint(ENDPOINT)
        }
        Error::NotFound { .. } => no_file(bucket, key),
        Error::Precondition { .. } => {
            let message = format!("{file} changed while the statement read it");
            SqlError::new(Code::SerializationFailure, message)
                .with_hint("run the statement again: it reads the new version")
        }
        _ if is_denied => {
            let reason = reason.unwrap_or("access denied");
            let message = format!("S3 does not let this process read {file}: {reason}");
            SqlError::new(Code::InsufficientPrivilege, message).with_hint(CREDENTIALS)
        }
        _ if text.contains("redentials") => {
            let message = format!("there are no credentials for {file}: {}", cause(&error));
            SqlError::new(Code::InsufficientPrivilege, message).with_hint(CREDENTIALS)
        }
        _ => {
            let reason = reason.map_or_else(|| cause(&error), str::to_owned);
            let message = format!("{file} cannot be read: {reason}");
            SqlError::new(Code::IoError, message).with_hint(ENDPOINT)
        }
    })
}

/// Returns the location of a file's version. It is another one for each content, also in caches.
fn versioned(file: &ObjectMeta) -> Path {
    let version = file.e_tag.as_deref().filter(|tag| !tag.contains('/'));
    let versioned = version.map(|tag| Path::parse(format!("{}{VERSION}{tag}", file.location)));
    versioned
        .and_then(std::result::Result::ok)
        .unwrap_or_else(|| file.location.clone())
}

/// Returns the error of a file, folder or pattern that is not there.
pub(super) fn no_file(bucket: &str, key: &str) -> SqlError {
    SqlError::new(
        Code::UndefinedFile,
        format!("there is no file s3://{bucket}/{key}"),
    )
}

fn late(time: Duration) -> SqlError {
    let message = format!("S3 did not answer within {} s", time.as_secs());
    SqlError::new(Code::IoError, message).with_hint(ENDPOINT)
}

fn ours(error: SqlError) -> Error {
    Error::Generic {
        store: "S3",
        source: Box::new(error),
    }
}

/// Returns the first cause of an error.
fn cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => cause(source),
        None => error.to_string(),
    }
}

fn unsupported() -> Error {
    ours(SqlError::unsupported("writing to S3"))
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let mut key = location.clone();
        if let Some((plain, version)) = location.as_ref().rsplit_once(VERSION) {
            key = Path::parse(plain)?;
            options.if_match = Some(version.to_owned());
        }
        let answer = self.store.get_opts(&key, options);
        let mut result = self.answer(key.as_ref(), answer).await?;
        if let GetResultPayload::Stream(bytes) = result.payload {
            result.payload = GetResultPayload::Stream(self.paced(key.as_ref(), bytes));
        }
        Ok(result)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let Some(files) = &self.listed else {
            let folder = prefix.map_or("", |prefix| prefix.as_ref());
            return self.paced(folder, self.store.list(prefix));
        };
        let is_inside =
            |file: &&ObjectMeta| prefix.is_none_or(|prefix| file.location.prefix_matches(prefix));
        let files = files.iter().filter(is_inside).cloned().map(Ok);
        stream::iter(files.collect::<Vec<_>>()).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(ours(SqlError::unsupported("listing one folder of S3")))
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(unsupported())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(async { Err(unsupported()) }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported())
    }
}
