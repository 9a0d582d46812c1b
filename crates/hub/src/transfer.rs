//! Fetching one file of the Hub into the cache.
//!
//! Bytes go to `<checksum>.incomplete` and are hashed on the way; the file gets its final name only
//! after length and checksum agree and the bytes are on the disk. An interrupted transfer goes on
//! where it stopped, in this process or a later one: the name says which content the bytes belong
//! to, and the checksum over all of them is the proof. Bytes found from an earlier process that
//! turn out wrong are discarded and the file is fetched once more from its start.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::cache::{RepoCache, create_parent, has_length};
use crate::checksum::RunningChecksum;
use crate::client::{Client, Download};
use crate::error::HubError;
use crate::listing::FileContent;
use crate::lock::Lock;
use crate::options::RetryPolicy;
use crate::progress::{Progress, ProgressEvent};
use crate::repo_name::RepoName;
use crate::retry::Retries;

/// Bytes read at a time: large enough that the system calls do not show.
const BUFFER_BYTES: usize = 256 << 10;

/// The repository at a commit that files are fetched from, and where they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot<'a> {
    pub(crate) client: &'a Client<'a>,
    pub(crate) cache: &'a RepoCache,
    pub(crate) repo: &'a RepoName,
    pub(crate) commit: &'a str,
    pub(crate) retries: RetryPolicy,
}

/// One file on its way.
struct Transfer<'a> {
    snapshot: Snapshot<'a>,
    file: &'a str,
    content: &'a FileContent,
    path: PathBuf,
    output: File,
    checksum: RunningChecksum,
    num_bytes: u64,
}

impl Snapshot<'_> {
    /// Makes sure a file is in the cache and returns its path in the snapshot.
    ///
    /// # Errors
    ///
    /// Whatever keeps the file from being complete and verified.
    pub(crate) fn fetch(
        &self,
        file: &str,
        content: &FileContent,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let checksum = &content.checksum;
        let blob = self.cache.blob(checksum);
        let _lock = Lock::acquire(&self.cache.lock(checksum), file, progress)?;
        if !has_length(&blob, content.num_bytes) {
            let incomplete = self.cache.incomplete(checksum);
            create_parent(&incomplete)?;
            self.fetch_blob(file, content, &incomplete, progress)?;
            fs::rename(&incomplete, &blob).map_err(|error| HubError::io("create", &blob, error))?;
            progress.report(ProgressEvent::Finished { name: file });
        }
        self.cache.link(self.commit, file, checksum)
    }

    /// Brings the bytes to `incomplete`, verified and on the disk.
    fn fetch_blob(
        &self,
        file: &str,
        content: &FileContent,
        incomplete: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let mut transfer = Transfer::open(*self, file, content, incomplete)?;
        let mut has_foreign_bytes = transfer.num_bytes > 0;
        loop {
            transfer.receive_all(progress)?;
            match transfer.verify() {
                Err(HubError::ChecksumMismatch { .. }) if has_foreign_bytes => {
                    has_foreign_bytes = false;
                    transfer.restart()?;
                }
                Err(error) => {
                    // Kept, the wrong bytes would spoil every later attempt.
                    transfer.restart()?;
                    return Err(error);
                }
                Ok(()) => return transfer.sync(),
            }
        }
    }
}

impl<'a> Transfer<'a> {
    /// Opens the file and hashes the bytes an earlier transfer left.
    fn open(
        snapshot: Snapshot<'a>,
        file: &'a str,
        content: &'a FileContent,
        path: &Path,
    ) -> Result<Self, HubError> {
        let output = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| HubError::io("create", path, error))?;
        let checksum = content.checksum.start(content.num_bytes);
        let path = path.to_owned();
        let mut transfer = Self { snapshot, file, content, path, output, checksum, num_bytes: 0 };
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let num_read = transfer
                .output
                .read(&mut buffer)
                .map_err(|error| HubError::io("read", &transfer.path, error))?;
            if num_read == 0 {
                break;
            }
            transfer.checksum.update(&buffer[..num_read]);
            transfer.num_bytes += num_read as u64;
        }
        if transfer.num_bytes > content.num_bytes {
            transfer.restart()?;
        }
        Ok(transfer)
    }

    /// Receives until every byte is here, through interruptions.
    fn receive_all(&mut self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let mut retries = Retries::with_known_server(self.snapshot.retries);
        while self.num_bytes < self.content.num_bytes {
            let num_before = self.num_bytes;
            let failure = match self.receive(progress) {
                Ok(()) => continue,
                Err(failure) => failure,
            };
            if self.num_bytes > num_before {
                retries.succeed_in_part();
            }
            retries.pause_after(failure, progress)?;
        }
        Ok(())
    }

    /// Receives over one connection until every byte is here or the connection ends.
    fn receive(&mut self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let Snapshot { client, repo, commit, .. } = self.snapshot;
        let mut download = client.download(repo, commit, self.file, self.num_bytes)?;
        self.check_announced(&download)?;
        if download.start != self.num_bytes {
            self.restart()?;
            self.skip_to_start(&download)?;
        }
        progress.report(ProgressEvent::Started {
            name: self.file,
            total_bytes: Some(self.content.num_bytes),
            done_bytes: self.num_bytes,
        });
        let url = download.url.clone();
        let interrupted = |reason| HubError::Interrupted { url: url.clone(), reason };
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.num_bytes < self.content.num_bytes {
            let num_read = match download.read(&mut buffer) {
                Ok(0) => return Err(interrupted("the connection ended early".to_owned())),
                Ok(num_read) => num_read,
                Err(error) => return Err(interrupted(error.to_string())),
            };
            self.append(&buffer[..num_read])?;
            progress.report(ProgressEvent::Advanced { done_bytes: self.num_bytes });
        }
        Ok(())
    }

    /// Refuses a server that announces other content, before its bytes are fetched.
    fn check_announced(&self, download: &Download) -> Result<(), HubError> {
        match &download.checksum {
            Some(announced) if *announced != self.content.checksum => {
                Err(self.mismatch(announced.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// After a restart only a body from the file's beginning is of use.
    fn skip_to_start(&self, download: &Download) -> Result<(), HubError> {
        if download.start == 0 {
            return Ok(());
        }
        let problem = format!("sends the file from byte {}, which was not asked", download.start);
        Err(HubError::BadAnswer { url: download.url.clone(), problem })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let num_bytes = self.num_bytes + bytes.len() as u64;
        if num_bytes > self.content.num_bytes {
            return Err(self.mismatch(format!("of more than {} bytes", self.content.num_bytes)));
        }
        self.output.write_all(bytes).map_err(|error| self.write_error(error))?;
        self.checksum.update(bytes);
        self.num_bytes = num_bytes;
        Ok(())
    }

    fn verify(&self) -> Result<(), HubError> {
        let got = self.checksum.clone().finish();
        if got == self.content.checksum { Ok(()) } else { Err(self.mismatch(got.to_string())) }
    }

    /// Discards all bytes.
    fn restart(&mut self) -> Result<(), HubError> {
        self.output
            .set_len(0)
            .and_then(|()| self.output.seek(SeekFrom::Start(0)))
            .map_err(|error| HubError::io("truncate", &self.path, error))?;
        self.checksum = self.content.checksum.start(self.content.num_bytes);
        self.num_bytes = 0;
        Ok(())
    }

    fn sync(&self) -> Result<(), HubError> {
        self.output.sync_all().map_err(|error| self.write_error(error))
    }

    fn write_error(&self, error: std::io::Error) -> HubError {
        let mut failure = HubError::io("write", &self.path, error);
        if let HubError::DiskFull { needed_bytes, .. } = &mut failure {
            *needed_bytes = Some(self.content.num_bytes);
        }
        failure
    }

    fn mismatch(&self, got: String) -> HubError {
        let expected = self.content.checksum.to_string();
        HubError::ChecksumMismatch { file: self.file.to_owned(), expected, got }
    }
}
