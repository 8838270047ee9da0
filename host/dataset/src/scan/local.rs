//! Object store of this machine's files.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// [`LocalFileSystem`] with checks of ranges. It would allocate a range before reading it, and a damaged file of some
/// formats can name ranges far beyond its end, or many that each cover nearly all of it.
#[derive(Debug)]
pub(super) struct LocalStore(LocalFileSystem);

impl LocalStore {
    pub(super) fn new() -> LocalStore {
        LocalStore(LocalFileSystem::new())
    }

    pub(super) fn path_of(&self, location: &Path) -> Option<PathBuf> {
        self.0.path_to_filesystem(location).ok()
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let failed = |source: io::Error| Error::Generic { store: "file", source: source.into() };
        let size = self.0.path_to_filesystem(location)?.metadata().map_err(failed)?.len();
        if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > size) {
            let (from, to) = (range.start, range.end);
            return Err(failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("it is damaged: it refers to bytes {from} to {to}, but has {size}"),
            )));
        }
        // Valid ranges don't overlap, so they can't exceed the file in total.
        let bytes: u128 = ranges.iter().map(|range| u128::from(range.end - range.start)).sum();
        if bytes > u128::from(size) {
            return Err(failed(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("it is damaged: it refers to parts of {bytes} bytes in total, but has {size}"),
            )));
        }
        self.0.get_ranges(location, ranges).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}
