//! Files in a folder on disk.
//!
//! A file is written under another name and renamed when it is complete, so a process that is
//! killed leaves whole files and perhaps one partial file, which the next start removes. Nothing is
//! flushed to the device: after a power failure a file may lack bytes under its final name, and its
//! checksum tells. Flushing would make a cache as slow as a database.
//!
//! One process at a time, held by a lock that the system releases when the process ends in whatever
//! way: two could not keep one capacity without telling each other about every file. Only the user
//! may read the files, for KV tells what was in a prompt.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::error::TierError;
use crate::file_format::{HEADER_BYTES, Header};
use crate::file_name::{FileName, FoundName};
use crate::footprint::footprint;
use crate::storage::{Leftover, ReadError, Storage, WriteError};

/// Name of the lock file. It stays: removing it would let two processes hold two files of one name.
const LOCK_FILE: &str = "mini-infer-kv.lock";
/// How long another holder of the lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two trials to take it.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A folder of files, held by this process.
#[derive(Debug)]
pub(crate) struct DiskStorage {
    root: PathBuf,
    _lock: File,
}

/// What a folder held when it was opened.
#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    /// Whole files, the one used longest ago first.
    pub(crate) files: Vec<FoundFile>,
    /// Bytes of partial files that could not be removed.
    pub(crate) leftover_bytes: u64,
}

/// One whole file.
#[derive(Debug)]
pub(crate) struct FoundFile {
    /// When it was last used, as far as the file system tells.
    pub(crate) used_at: SystemTime,
    /// Its name.
    pub(crate) name: FileName,
    /// The bytes of disk that it takes.
    pub(crate) footprint: u64,
}

/// Takes a lock that its last holder may be about to give up: a server that is ending, or a process
/// that somebody has just started and that has not yet closed the files it inherits.
fn lock_patiently(lock: &File) -> Result<(), TryLockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            result => return result,
        }
    }
}

impl DiskStorage {
    /// Takes possession of the folder, creating it where needed; lists its files and removes what a
    /// killed process left half-written. Reads names, lengths and times, never content.
    ///
    /// # Errors
    /// [`TierError::InUse`] when another process has the folder and does not let go of it within a
    /// second, [`TierError::Io`] when it cannot
    /// be written to or listed.
    pub(crate) fn open(root: &Path) -> Result<(Self, FoundFiles), TierError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| TierError::Io { action, path, source }
        };
        create_folders(root).map_err(failed("create", root))?;
        let lock_path = root.join(LOCK_FILE);
        let mut options = private(OpenOptions::new());
        let lock = options.create(true).truncate(false).read(true).write(true).open(&lock_path);
        let lock = lock.map_err(failed("write", &lock_path))?;
        match lock_patiently(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TierError::InUse { dir: root.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &lock_path)(error)),
        }
        let found = list(root).map_err(failed("list", root))?;
        Ok((Self { root: root.to_owned(), _lock: lock }, found))
    }

    /// Opens the file under its partial name, which nobody else has.
    fn create_partial(&self, name: &FileName, path: &Path) -> io::Result<File> {
        let create = || private(OpenOptions::new()).create_new(true).write(true).open(path);
        match create() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                create_folder(&name.folder(&self.root))?;
                create()
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                create()
            }
            created => created,
        }
    }
}

impl Storage for DiskStorage {
    fn write(&self, name: &FileName, header: &Header, block: &[u8]) -> Result<(), WriteError> {
        let path = name.partial_path(&self.root);
        let mut file = self
            .create_partial(name, &path)
            .map_err(|source| WriteError { source, leftover: Leftover::None })?;
        let written = file.write_all(header).and_then(|()| file.write_all(block));
        note_use(&file);
        // Closed before it is renamed, which not every system allows for an open file.
        drop(file);
        let renamed = written.and_then(|()| fs::rename(&path, name.path(&self.root)));
        renamed.map_err(|source| {
            let leftover = match remove_if_there(&path) {
                Ok(()) => Leftover::None,
                Err(_) => Leftover::Partial,
            };
            WriteError { source, leftover }
        })
    }

    fn read(
        &self,
        name: &FileName,
        header: &mut Header,
        block: &mut [u8],
    ) -> Result<(), ReadError> {
        let mut file = match File::open(name.path(&self.root)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(ReadError::Missing),
            Err(error) => return Err(ReadError::Io(error)),
        };
        let length = file.metadata().map_err(ReadError::Io)?.len();
        if length != (header.len() + block.len()) as u64 {
            return Err(ReadError::Length);
        }
        match file.read_exact(header).and_then(|()| file.read_exact(block)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(ReadError::Length);
            }
            Err(error) => return Err(ReadError::Io(error)),
        }
        note_use(&file);
        Ok(())
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        remove_if_there(&name.path(&self.root))
    }
}

/// Sets a file's time to that of its last use, by which the next start orders files. Those that the
/// system sets are no finer than its timer's interrupts. Where it does not let us, an older time
/// stays, and the order is less good.
fn note_use(file: &File) {
    file.set_modified(SystemTime::now()).ok();
}

/// Lists the folder and removes partial files and those too short to be whole.
fn list(root: &Path) -> io::Result<FoundFiles> {
    let mut found = FoundFiles::default();
    for folder in fs::read_dir(root)? {
        let folder = folder?;
        if !is_shard(&folder) {
            continue;
        }
        for file in fs::read_dir(folder.path())? {
            let file = file?;
            let name = FileName::parse(&folder.file_name(), &file.file_name());
            let (Some(name), Ok(metadata)) = (name, file.metadata()) else { continue };
            // Of links and pipes, none is this crate's; opening them could lead anywhere.
            if !metadata.is_file() {
                continue;
            }
            let num_bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
            match name {
                FoundName::Whole(name) if num_bytes > HEADER_BYTES => {
                    let used_at = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    let footprint = footprint(num_bytes - HEADER_BYTES);
                    found.files.push(FoundFile { used_at, name, footprint });
                }
                FoundName::Whole(_) | FoundName::Partial(_) => {
                    if remove_if_there(&file.path()).is_err() {
                        found.leftover_bytes += footprint(num_bytes);
                    }
                }
            }
        }
    }
    found.files.sort_unstable_by_key(|file| (file.used_at, file.name));
    Ok(found)
}

/// Tells whether `entry` is a folder that files of this crate lie in.
fn is_shard(entry: &fs::DirEntry) -> bool {
    let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
    let name = entry.file_name();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    is_folder && name.len() == 2 && name.as_encoded_bytes().iter().all(is_hex)
}

/// Removes a file; one that is not there is removed already.
fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a folder below one that is there, unless it is there too.
fn create_folder(path: &Path) -> io::Result<()> {
    match private_folder().create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Creates a folder and those above it, unless they are there.
fn create_folders(path: &Path) -> io::Result<()> {
    private_folder().recursive(true).create(path)
}

/// Lets only the user into folders that are created.
fn private_folder() -> DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there is nothing to set elsewhere"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Lets only the user read files that are created.
fn private(mut options: OpenOptions) -> OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    #[cfg(not(unix))]
    let _ = &mut options;
    options
}
