//! Resolution of paths, folders, globs and URLs to files.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use futures::TryStreamExt as _;
use glob::{MatchOptions, Pattern};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStoreExt as _};

use super::dataset_file::DatasetFile;
use super::format::Format;
use super::source::NamedFile;
use super::store::{Location, Stores};
use crate::DatasetError;

/// Maximum files of a dataset or of one path.
const FILES_MAX: usize = 1 << 20;

/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 64;

/// [`is_hidden`], not the glob library, excludes names with a leading dot.
const MATCHING: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// Returns the files that `paths` match, sorted by name and without duplicates.
pub(super) async fn list(paths: &[String], stores: &mut Stores) -> Result<Vec<DatasetFile>, DatasetError> {
    if paths.is_empty() {
        return Err(DatasetError::Columns("no input path is given".to_owned()));
    }
    if paths.iter().any(String::is_empty) {
        return Err(DatasetError::Columns("an input path is empty".to_owned()));
    }
    let mut files = Vec::new();
    for input in paths {
        let before = files.len();
        match stores.locate(input)? {
            Location::Local(path) => list_local(input, &path, stores.local(), &mut files)?,
            Location::Remote { store, path } => list_remote(input, store, &path, stores, &mut files).await?,
        }
        if files.len() == before {
            let reason = format!("no file there has a supported extension ({})", Format::EXTENSIONS);
            return Err(DatasetError::input(input, reason));
        }
        check_file_count(input, files.len())?;
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut seen = HashSet::new();
    files.retain(|f| seen.insert((f.store, f.meta.location.clone())));
    Ok(files)
}

/// Returns the files that a scan of `paths` would read, sorted by name, if all are on this machine.
///
/// # Errors
/// If a path is a URL or matches no readable file.
pub async fn list_local_files(paths: &[String]) -> Result<Vec<NamedFile>, DatasetError> {
    if let Some(url) = paths.iter().find(|path| path.contains("://") && !path.starts_with("file://")) {
        return Err(DatasetError::input(url, "a cluster reads no URLs for its tenants; download the file"));
    }
    let mut stores = Stores::new();
    let files = list(paths, &mut stores).await?;
    let named = |file: DatasetFile| {
        let path = stores.path_of(&file);
        let path = path.ok_or_else(|| DatasetError::input(&file.name, "it is not on this machine"))?;
        Ok(NamedFile { name: file.name, path })
    };
    files.into_iter().map(named).collect()
}

/// Returns the files of a scan, sorted by name.
pub(super) fn list_named(named: &[NamedFile], stores: &Stores) -> Result<Vec<DatasetFile>, DatasetError> {
    if named.is_empty() {
        return Err(DatasetError::Columns("no input file is given".to_owned()));
    }
    let file = |file: &NamedFile| local_file(&file.name, file.name.clone(), &file.path, stores.local());
    let mut files: Vec<DatasetFile> = named.iter().map(file).collect::<Result<_, _>>()?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Returns the local files that a path, a folder or a glob matches, of any content, sorted by name. At most 2^20 files.
///
/// # Errors
/// If no file matches or too many do, or a folder is unreadable.
pub fn find_files(input: &str) -> Result<Vec<PathBuf>, DatasetError> {
    let mut files = Vec::new();
    find(input, Path::new(input), &mut |path| {
        files.push(path.to_owned());
        check_file_count(input, files.len())
    })?;
    if files.is_empty() {
        return Err(DatasetError::input(input, "it contains no files"));
    }
    files.sort();
    Ok(files)
}

fn is_glob(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

fn list_local(input: &str, path: &Path, store: usize, files: &mut Vec<DatasetFile>) -> Result<(), DatasetError> {
    find(input, path, &mut |found| {
        // An explicitly named file is reported later if it is not a data file.
        if found == path || Format::is_data(&found.to_string_lossy()) {
            files.push(local_file(input, display(found), found, store)?);
        }
        check_file_count(input, files.len())
    })
}

/// Visits the files that a path, a folder or a glob matches.
fn find(input: &str, path: &Path, each: FileVisitor<'_>) -> Result<(), DatasetError> {
    let text = path.to_string_lossy();
    if is_glob(&text) && !path.exists() {
        let mut found = 0;
        visit_matches(input, &text, &mut |path| {
            found += 1;
            each(path)
        })?;
        return if found == 0 { Err(DatasetError::input(input, "no file matches it")) } else { Ok(()) };
    }
    if path.is_dir() {
        return walk(input, path, &|_| true, &mut Vec::new(), each);
    }
    if !path.exists() {
        return Err(DatasetError::input(input, "there is no such file or folder"));
    }
    each(path)
}

fn check_file_count(input: &str, files: usize) -> Result<(), DatasetError> {
    if files > FILES_MAX {
        let quantity = format!("number of files up to {input}");
        return Err(DatasetError::LimitExceeded { quantity, value: files as u64, bound: FILES_MAX as u64 });
    }
    Ok(())
}

/// Callback for each file.
type FileVisitor<'a> = &'a mut dyn FnMut(&Path) -> Result<(), DatasetError>;

/// First characters of hidden names, which markers, logs and temporary files of other programs have.
const HIDDEN: [char; 2] = ['.', '_'];

/// Returns whether a pattern names a hidden file or folder explicitly: by a part that begins with the same character.
fn is_named(pattern: &str, name: &str) -> bool {
    let first = name.chars().next();
    let same = pattern.split('/').filter(|part| part.chars().next() == first);
    same.into_iter().any(|part| Pattern::new(part).is_ok_and(|part| part.matches(name)))
}

/// Returns whether a path that a pattern matches has a hidden name.
fn is_hidden(pattern: &str, path: &str) -> bool {
    let relative = |name: &&str| !matches!(*name, "." | "..");
    path.split('/').filter(relative).any(|name| name.starts_with(HIDDEN) && !is_named(pattern, name))
}

/// Visits the files that a glob matches. The part after `**` is searched by [`walk`], which links to parent folders
/// can't trap in a loop.
fn visit_matches(input: &str, pattern: &str, each: FileVisitor<'_>) -> Result<(), DatasetError> {
    let invalid = |e: glob::PatternError| DatasetError::input(input, format!("it is not a valid glob: {e}"));
    Pattern::new(pattern).map_err(invalid)?;
    let (fixed, rest) = pattern.split_at(pattern.find("**").unwrap_or(pattern.len()));
    let rest = if rest.ends_with("**") { format!("{rest}/*") } else { rest.to_owned() };
    let whole = pattern;
    let pattern = Pattern::new(&rest).map_err(invalid)?;
    for entry in glob::glob_with(if fixed.is_empty() { "." } else { fixed }, MATCHING).map_err(invalid)? {
        let path = entry.map_err(|e| DatasetError::input(input, format!("can't list a folder: {e}")))?;
        if is_hidden(whole, &path.to_string_lossy()) {
            continue;
        }
        if rest.is_empty() && path.is_file() {
            each(&path)?;
        } else if !rest.is_empty() && path.is_dir() {
            walk(input, &path, &|name| !is_named(whole, name), &mut Vec::new(), &mut |file| {
                let below = file.strip_prefix(&path).unwrap_or(file);
                if pattern.matches_path_with(below, MATCHING) && file.is_file() { each(file) } else { Ok(()) }
            })?;
        }
    }
    Ok(())
}

/// Visits the files under `folder`, except for hidden names that satisfy `hidden`. `above` has the device and inode of
/// each folder on the way.
fn walk(
    input: &str,
    folder: &Path,
    hidden: &dyn Fn(&str) -> bool,
    above: &mut Vec<(u64, u64)>,
    each: FileVisitor<'_>,
) -> Result<(), DatasetError> {
    let fail = |e: std::io::Error| DatasetError::input(input, format!("can't list {}: {e}", folder.display()));
    if above.len() > DEPTH_MAX {
        let quantity = format!("depth of folder {}", folder.display());
        return Err(DatasetError::LimitExceeded { quantity, value: above.len() as u64, bound: DEPTH_MAX as u64 });
    }
    let metadata = fs::metadata(folder).map_err(fail)?;
    let id = (metadata.dev(), metadata.ino());
    if above.contains(&id) {
        // A link to a parent folder: its files are visited there.
        return Ok(());
    }
    above.push(id);
    for entry in fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(HIDDEN) && hidden(&name) {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            walk(input, &path, hidden, above, each)?;
        } else {
            each(&path)?;
        }
    }
    above.pop();
    Ok(())
}

fn local_file(input: &str, name: String, path: &Path, store: usize) -> Result<DatasetFile, DatasetError> {
    let (format, compression) = Format::from_name(&name).map_err(|reason| DatasetError::input(&name, reason))?;
    let fail = |reason: String| DatasetError::input(input, format!("can't open {name}: {reason}"));
    let absolute: PathBuf = std::path::absolute(path).map_err(|e| fail(e.to_string()))?;
    // The store rejects `.` and `..` but accepts links, so the folder is canonicalised and the file is not.
    let absolute = match (absolute.parent(), absolute.file_name()) {
        (Some(folder), Some(base)) => folder.canonicalize().map_err(|e| fail(e.to_string()))?.join(base),
        _ => absolute,
    };
    let metadata = fs::metadata(&absolute).map_err(|e| fail(e.to_string()))?;
    let location = ObjectPath::from_absolute_path(&absolute).map_err(|e| fail(e.to_string()))?;
    let last_modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH).into();
    let meta = ObjectMeta { location, last_modified, size: metadata.len(), e_tag: None, version: None };
    Ok(DatasetFile { name, store, is_local: true, meta, format, compression })
}

/// Returns a path without a leading `./`.
fn display(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.strip_prefix("./").unwrap_or(&text).to_owned()
}

async fn list_remote(
    input: &str,
    store: usize,
    path: &str,
    stores: &Stores,
    files: &mut Vec<DatasetFile>,
) -> Result<(), DatasetError> {
    let fail = |e: object_store::Error| DatasetError::input(input, super::reason::reason_of(&e));
    let client = stores.client(store);
    let named = |meta: ObjectMeta| -> Result<DatasetFile, DatasetError> {
        let name = format!("{}{}", stores.prefix(store), meta.location);
        let (format, compression) = Format::from_name(&name).map_err(|reason| DatasetError::input(&name, reason))?;
        Ok(DatasetFile { name, store, is_local: false, meta, format, compression })
    };
    if !is_glob(path) && !path.ends_with('/') && !path.is_empty() {
        let location = ObjectPath::from_url_path(path).map_err(|e| DatasetError::input(input, e.to_string()))?;
        match client.head(&location).await {
            Ok(meta) => {
                files.push(named(ObjectMeta { location, ..meta })?);
                return Ok(());
            }
            Err(object_store::Error::NotFound { .. }) if stores.lists(store) => {}
            Err(object_store::Error::NotFound { .. }) => {
                return Err(DatasetError::input(input, "the server has no such file"));
            }
            Err(error) => return Err(fail(error)),
        }
    }
    if !stores.lists(store) {
        return Err(DatasetError::input(
            input,
            "folders and globs can't be listed over HTTP; give the URL of each file",
        ));
    }
    let pattern = match is_glob(path) {
        true => {
            Some(Pattern::new(path).map_err(|e| DatasetError::input(input, format!("it is not a valid glob: {e}")))?)
        }
        false => None,
    };
    let fixed = path.find(['*', '?', '[']).map_or(path, |at| &path[..at]);
    let fixed = if pattern.is_some() { fixed.rsplit_once('/').map_or("", |(folder, _)| folder) } else { fixed };
    let folder = ObjectPath::from_url_path(fixed).map_err(|e| DatasetError::input(input, e.to_string()))?;
    let mut listing = client.list(Some(&folder));
    while let Some(meta) = listing.try_next().await.map_err(fail)? {
        let is_match = pattern.as_ref().is_none_or(|p| p.matches_with(meta.location.as_ref(), MATCHING));
        // The name of an explicitly named folder does not matter.
        let below = meta.location.as_ref().strip_prefix(folder.as_ref()).unwrap_or_default();
        if is_match && !is_hidden(path, below) && Format::is_data(meta.location.as_ref()) {
            files.push(named(meta)?);
        }
        check_file_count(input, files.len())?;
    }
    Ok(())
}
