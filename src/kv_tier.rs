//! KV outside the pool: swap space and files, opened for one model.
//!
//! What a block in a file means depends on the weights, the KV layout and the code that computed
//! it, so all three are digested whole; files of anything else are never read.

use crate::assemble::OpenedModel;
use crate::cli::TierArgs;
use crate::error::CommandError;
use crate::memory_plan::MemoryPlan;
use crate::output;
use mini_infer_kernels::{KvLayout, SlidingPattern};
use mini_infer_server::{TierReport, TierSource};
use mini_infer_tier::{
    FileStats, FileTier, FileTierConfig, HostStats, HostTier, TierError, TierIdentity, TierMonitor,
    TierStack, TierStats,
};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a file that are digested at once.
const READ_BYTES: usize = 1 << 20;

/// Where KV may go that the pool has no room for.
#[derive(Clone, Debug)]
pub(crate) struct TierSettings {
    /// Bytes of host memory beside the pool; 0 for none.
    swap_bytes: u64,
    /// A folder, and the bytes that its files may take.
    files: Option<(PathBuf, u64)>,
}

impl TierSettings {
    /// Takes the settings from their flags.
    pub(crate) fn new(args: &TierArgs) -> Self {
        let size = args.kv_tier_size.map_or(0, |size| size.0);
        Self {
            swap_bytes: args.swap_space.0,
            files: args.kv_tier_dir.clone().map(|dir| (dir, size)),
        }
    }

    /// Opens the tiers for the blocks of `model`; `None` when no tier is wanted.
    ///
    /// A folder that another server uses is done without, with a word to the user.
    ///
    /// # Errors
    /// When a tier holds no block or its folder cannot be used.
    pub(crate) fn open(
        &self,
        model: &OpenedModel,
        plan: &MemoryPlan,
    ) -> Result<Option<TierStack>, CommandError> {
        let block_bytes = plan.layout.block_bytes();
        let host = (self.swap_bytes > 0)
            .then(|| HostTier::new(self.swap_bytes, block_bytes))
            .transpose()
            .map_err(CommandError::SwapSpace)?;
        let files = match &self.files {
            Some((dir, capacity_bytes)) => {
                let identity = identity(model, &plan.layout)?;
                let dir = dir.clone();
                let capacity_bytes = *capacity_bytes;
                let config = FileTierConfig { dir, capacity_bytes, block_bytes, identity };
                match FileTier::open(config) {
                    Ok(files) => Some(files),
                    Err(error @ TierError::InUse { .. }) => {
                        output::line(format!("KV files         none: {error}"));
                        None
                    }
                    Err(error) => return Err(CommandError::FileTier(error)),
                }
            }
            None => None,
        };
        let is_any = host.is_some() || files.is_some();
        Ok(is_any.then(|| TierStack::new(host, files)))
    }
}

/// Tells the server what the tiers hold and did.
pub(crate) fn source(monitor: TierMonitor) -> TierSource {
    Arc::new(move || {
        let TierStats { host, files } = monitor.stats();
        host.map(host_report).into_iter().chain(files.map(file_report)).collect()
    })
}

fn host_report(stats: HostStats) -> TierReport {
    TierReport {
        name: "host",
        capacity_bytes: stats.capacity_bytes,
        held_bytes: stats.held_bytes,
        num_held_blocks: stats.num_held_blocks,
        num_saved_blocks: stats.num_saved_blocks,
        num_restored_blocks: stats.num_restored_blocks,
        num_evicted_blocks: stats.num_evicted_blocks,
        ..TierReport::default()
    }
}

fn file_report(stats: FileStats) -> TierReport {
    TierReport {
        name: "files",
        capacity_bytes: stats.capacity_bytes,
        held_bytes: stats.held_bytes,
        num_held_blocks: stats.num_held_blocks,
        num_queued_blocks: stats.num_queued_blocks,
        num_saved_blocks: stats.num_saved_blocks,
        num_restored_blocks: stats.num_restored_blocks,
        num_evicted_blocks: stats.num_evicted_blocks,
        dropped: vec![
            ("queue_full", stats.num_dropped_queue_full),
            ("paused", stats.num_dropped_paused),
            ("too_large", stats.num_dropped_too_large),
            ("closing", stats.num_dropped_closing),
        ],
        refused: vec![
            ("length", stats.num_refused_length),
            ("damaged", stats.num_refused_damaged),
            ("foreign", stats.num_refused_foreign),
            ("missing", stats.num_missing_files),
        ],
        errors: vec![
            ("read", stats.num_read_errors),
            ("write", stats.num_write_errors),
            ("remove", stats.num_remove_errors),
        ],
        is_paused: stats.is_writing_paused,
    }
}

/// Says what the bytes of a block depend on besides its tokens.
fn identity(model: &OpenedModel, layout: &KvLayout) -> Result<TierIdentity, CommandError> {
    let executable = std::env::current_exe().map_err(CommandError::system("find this program"))?;
    let mut numbers =
        vec![layout.num_layers, layout.num_kv_heads, layout.head_dim, layout.block_bytes()];
    numbers.push(layout.block_size.tokens() as usize);
    // Which layers come first in a block's bytes depends on the windows that are in use.
    numbers.push(match layout.sliding {
        SlidingPattern::None => 0,
        SlidingPattern::AllButEvery(period) => period,
    });
    let mut digest = digest_of_model(&model.path)?;
    if let Some(to) = model.quantize_to {
        digest = format!("{digest} as {}", to.weight_type());
    }
    Ok(TierIdentity {
        model: digest,
        kv_dtype: layout.dtype.name().to_owned(),
        layout: numbers.into_iter().map(|number| number as u64).collect(),
        build: digest_of(&executable)?,
    })
}

/// Returns a digest of a model's file, or of all files of its folder that numbers depend on.
fn digest_of_model(path: &Path) -> Result<String, CommandError> {
    if !path.is_dir() {
        return digest_of(path);
    }
    let what = || CommandError::system(format!("read {}", path.display()));
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(what())? {
        files.push(entry.map_err(what())?.path());
    }
    files.retain(|file| {
        let is_weights = file.extension().is_some_and(|extension| extension == "safetensors");
        is_weights || file.file_name().is_some_and(|name| name == "config.json")
    });
    files.sort_unstable();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(digest_of(&file)?);
    }
    Ok(hex(&hash.finalize()))
}

/// Returns the SHA-256 digest of a file, in hexadecimal digits.
fn digest_of(path: &Path) -> Result<String, CommandError> {
    let what = || CommandError::system(format!("read {}", path.display()));
    let mut file = File::open(path).map_err(what())?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let num_read = file.read(&mut buffer).map_err(what())?;
        if num_read == 0 {
            break;
        }
        hash.update(&buffer[..num_read]);
    }
    Ok(hex(&hash.finalize()))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_file_is_that_of_its_bytes() {
        let path = std::env::temp_dir().join(format!("mini-infer-digest-{}", std::process::id()));
        std::fs::write(&path, "abc").unwrap();
        let digest = digest_of(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(digest_of(&path).is_err());
    }

    #[test]
    fn the_digest_of_a_folder_is_that_of_its_numbers() {
        let path = std::env::temp_dir().join(format!("mini-infer-folder-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let write = |name: &str, text: &str| std::fs::write(path.join(name), text).unwrap();
        write("model.safetensors", "weights");
        write("config.json", "{}");
        let digest = digest_of_model(&path).unwrap();
        write("README.md", "words");
        assert_eq!(digest_of_model(&path).unwrap(), digest);
        write("config.json", "{ }");
        let other = digest_of_model(&path).unwrap();
        assert_ne!(other, digest);
        write("model.safetensors", "other weights");
        assert_ne!(digest_of_model(&path).unwrap(), other);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
