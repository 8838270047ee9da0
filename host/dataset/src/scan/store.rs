//! Where files lie: this machine, an HTTP server, S3, Google, Azure.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use url::Url;

use super::files::DatasetFile;
use super::local::LocalStore;
use super::stream::reason_of;
use crate::DatasetError;

/// Where a path that was given leads.
pub(super) enum Location {
    /// A path of this machine.
    Local(PathBuf),
    /// A path in one of the stores.
    Remote {
        /// Which.
        store: usize,
        /// The path in it, still with `%` escapes and globs.
        path: String,
    },
}

struct Store {
    /// `s3://bucket/`: what comes before a path.
    prefix: String,
    client: Arc<dyn ObjectStore>,
    lists: bool,
}

/// The stores in use, made when a URL first names them. Credentials come from
/// the environment, under the names that the clouds' own tools use.
pub(super) struct Stores {
    all: Vec<Store>,
    /// The first of them.
    files: Arc<LocalStore>,
    by_prefix: HashMap<String, usize>,
}

impl Stores {
    pub(super) fn new() -> Self {
        let files = Arc::new(LocalStore::new());
        let local = Store { prefix: "file:///".to_owned(), client: files.clone(), lists: true };
        Stores { all: vec![local], files, by_prefix: HashMap::new() }
    }

    /// The store of this machine's files.
    pub(super) fn local(&self) -> usize {
        0
    }

    /// Where a file of this machine is.
    pub(super) fn path_of(&self, file: &DatasetFile) -> Option<PathBuf> {
        (file.store == self.local()).then(|| self.files.path_of(&file.meta.location)).flatten()
    }

    pub(super) fn client(&self, store: usize) -> &Arc<dyn ObjectStore> {
        &self.all[store].client
    }

    /// What comes before a path of this store, ending in a slash.
    pub(super) fn prefix(&self, store: usize) -> &str {
        &self.all[store].prefix
    }

    /// Whether the store can say which files there are.
    pub(super) fn lists(&self, store: usize) -> bool {
        self.all[store].lists
    }

    /// Every store's prefix and client.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn ObjectStore>)> {
        self.all.iter().map(|store| (store.prefix.as_str(), &store.client))
    }

    /// Where `given` leads: a path, or a URL of a scheme that is known.
    pub(super) fn locate(&mut self, given: &str) -> Result<Location, DatasetError> {
        let Some((scheme, rest)) = given.split_once("://") else { return Ok(Location::Local(PathBuf::from(given))) };
        if scheme == "file" {
            let url = Url::parse(given).ok().and_then(|url| url.to_file_path().ok());
            let path = url.ok_or_else(|| DatasetError::input(given, "a file URL reads file:///folder/file.parquet"))?;
            return Ok(Location::Local(path));
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let web = matches!(scheme, "http" | "https");
        if web && given.contains(['?', '#']) {
            return Err(DatasetError::input(given, "URLs with a query are not supported; download the file"));
        }
        if host.is_empty() || host.contains('@') {
            return Err(DatasetError::input(given, "the URL must name a host or bucket, without a user"));
        }
        let prefix = format!("{scheme}://{host}/");
        let store = match self.by_prefix.get(&prefix) {
            Some(store) => *store,
            None => {
                let client = client(given, scheme, &prefix)?;
                self.all.push(Store { prefix: prefix.clone(), client, lists: !web });
                self.by_prefix.insert(prefix, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        Ok(Location::Remote { store, path: path.to_owned() })
    }
}

fn client(given: &str, scheme: &str, prefix: &str) -> Result<Arc<dyn ObjectStore>, DatasetError> {
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
            let reason = format!("`{scheme}` is no scheme that is read; those are file, http, https, s3, gs and az");
            return Err(DatasetError::input(given, reason));
        }
    };
    client.map_err(|e| DatasetError::input(given, reason_of(&e)))
}
