//! Object stores of files: this machine, HTTP servers, S3, Google Cloud Storage and Azure.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use url::Url;

use super::dataset_file::DatasetFile;
use super::local::LocalStore;
use super::reason::reason_of;
use crate::DatasetError;

/// Location that a path or URL names.
pub(super) enum Location {
    /// Path on this machine.
    Local(PathBuf),
    /// Path in a remote store.
    Remote {
        /// Index of the store.
        store: usize,
        /// Path in the store, still with `%` escapes and globs.
        path: String,
    },
}

struct Store {
    /// Prefix of paths, e.g. `s3://bucket/`.
    prefix: String,
    client: Arc<dyn ObjectStore>,
    lists: bool,
}

/// Stores in use, created when a URL first names them. Credentials come from the environment variables that the
/// providers' own tools use.
pub(super) struct Stores {
    all: Vec<Store>,
    /// First store.
    files: Arc<LocalStore>,
    by_prefix: HashMap<String, usize>,
}

impl Stores {
    pub(super) fn new() -> Self {
        let files = Arc::new(LocalStore::new());
        let local = Store { prefix: "file:///".to_owned(), client: files.clone(), lists: true };
        Stores { all: vec![local], files, by_prefix: HashMap::new() }
    }

    /// Returns the index of this machine's store.
    pub(super) fn local(&self) -> usize {
        0
    }

    /// Returns the path of a file on this machine.
    pub(super) fn path_of(&self, file: &DatasetFile) -> Option<PathBuf> {
        (file.store == self.local()).then(|| self.files.path_of(&file.meta.location)).flatten()
    }

    pub(super) fn client(&self, store: usize) -> &Arc<dyn ObjectStore> {
        &self.all[store].client
    }

    /// Returns the prefix of a store's paths, which ends with a slash.
    pub(super) fn prefix(&self, store: usize) -> &str {
        &self.all[store].prefix
    }

    /// Returns whether the store can list files.
    pub(super) fn lists(&self, store: usize) -> bool {
        self.all[store].lists
    }

    /// Returns the prefix and client of every store.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn ObjectStore>)> {
        self.all.iter().map(|store| (store.prefix.as_str(), &store.client))
    }

    /// Resolves a path, or a URL of a known scheme.
    pub(super) fn locate(&mut self, input: &str) -> Result<Location, DatasetError> {
        let Some((scheme, rest)) = input.split_once("://") else { return Ok(Location::Local(PathBuf::from(input))) };
        if scheme == "file" {
            let url = Url::parse(input).ok().and_then(|url| url.to_file_path().ok());
            let path =
                url.ok_or_else(|| DatasetError::input(input, "a file URL has the form file:///folder/file.parquet"))?;
            return Ok(Location::Local(path));
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let web = matches!(scheme, "http" | "https");
        if web && input.contains(['?', '#']) {
            return Err(DatasetError::input(input, "URLs with a query are not supported; download the file"));
        }
        if host.is_empty() || host.contains('@') {
            return Err(DatasetError::input(input, "the URL must name a host or bucket, without a user"));
        }
        let prefix = format!("{scheme}://{host}/");
        let store = match self.by_prefix.get(&prefix) {
            Some(store) => *store,
            None => {
                let client = client(input, scheme, &prefix)?;
                self.all.push(Store { prefix: prefix.clone(), client, lists: !web });
                self.by_prefix.insert(prefix, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        Ok(Location::Remote { store, path: path.to_owned() })
    }
}

fn client(input: &str, scheme: &str, prefix: &str) -> Result<Arc<dyn ObjectStore>, DatasetError> {
    fn boxed<T: ObjectStore>(client: object_store::Result<T>) -> object_store::Result<Arc<dyn ObjectStore>> {
        client.map(|client| Arc::new(client) as Arc<dyn ObjectStore>)
    }
    let client = match scheme {
        "s3" => boxed(AmazonS3Builder::from_env().with_url(prefix).build()),
        "gs" => boxed(GoogleCloudStorageBuilder::from_env().with_url(prefix).build()),
        "az" => boxed(MicrosoftAzureBuilder::from_env().with_url(prefix).build()),
        "http" | "https" => {
            let options = ClientOptions::new().with_allow_http(scheme == "http");
            boxed(HttpBuilder::new().with_url(prefix).with_client_options(options).build())
        }
        _ => {
            let reason = format!(
                "the scheme `{scheme}` is not supported; supported schemes are file, http, https, s3, gs and az"
            );
            return Err(DatasetError::input(input, reason));
        }
    };
    client.map_err(|e| DatasetError::input(input, reason_of(&e)))
}
