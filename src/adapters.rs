//! Adapters of the served model: the flags that name them, and how the server gets one.

use mini_infer_kernels::Isa;
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{LoraFolder, ModelConfig, Transformer};
use mini_infer_server::{AdapterSource, LoadedAdapter};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The files that make an adapter.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// An adapter as `--lora` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedAdapter {
    /// What clients ask for.
    pub(crate) name: String,
    /// Its folder.
    pub(crate) folder: PathBuf,
}

impl FromStr for NamedAdapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, folder)) if !name.is_empty() && !folder.is_empty() => {
                Ok(Self { name: name.to_owned(), folder: PathBuf::from(folder) })
            }
            _ => Err("write NAME=FOLDER".to_owned()),
        }
    }
}

/// Opens adapters for one model on the CPU.
pub(crate) struct CpuAdapters {
    /// The model.
    pub(crate) config: ModelConfig,
    /// Instruction set of its kernels.
    pub(crate) isa: Isa,
}

impl AdapterSource for CpuAdapters {
    fn load(&self, folder: &Path) -> Result<LoadedAdapter, String> {
        let opened = LoraFolder::open(folder, &self.config).map_err(|error| error.to_string())?;
        // Threads of its own would take the model's processors, and the matrices are small.
        let ops = CpuOps::new(self.isa, NonZeroUsize::MIN);
        let adapter = Transformer::adapter(&opened, &ops).map_err(|error| error.to_string())?;
        let digest = digest(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(LoadedAdapter { adapter, digest })
    }
}

/// Returns a digest of an adapter's files.
fn digest(folder: &Path) -> io::Result<[u8; 32]> {
    let mut digest = Sha256::new();
    for file in FILES {
        let bytes = fs::read(folder.join(file))?;
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(&bytes);
    }
    Ok(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_folder_are_needed() {
        let parsed: NamedAdapter = "org/sql=./a=b".parse().unwrap();
        assert_eq!((parsed.name.as_str(), parsed.folder.to_str()), ("org/sql", Some("./a=b")));
        for wrong in ["", "sql", "=folder", "sql="] {
            assert!(wrong.parse::<NamedAdapter>().is_err(), "{wrong:?}");
        }
    }
}
