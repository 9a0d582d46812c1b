//! The adapters that requests name as their model.
//!
//! Loading happens beside the engine: whoever asks for one waits, nobody else. A request holds its
//! adapter, so unloading one, or loading another under its name, changes nothing for requests that
//! run; the memory goes back when the last of them ends.

use crate::wire::error::ApiError;
use mini_infer_core::Adapter;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Most adapters that are loaded at a time: each takes memory beside the plan.
const MAX_ADAPTERS: usize = 64;
/// Longest name of an adapter in bytes.
const MAX_NAME_BYTES: usize = 256;

/// An adapter that is ready for requests.
#[derive(Clone, Debug)]
pub struct LoadedAdapter {
    /// Its weights.
    pub adapter: Adapter,
    /// A digest of its files: KV is shared by requests on equal weights only.
    pub digest: [u8; 32],
}

/// Makes adapters for the model that is served.
pub trait AdapterSource: Send + Sync {
    /// Loads the adapter in a folder.
    ///
    /// # Errors
    /// Returns what is wrong with it, as a sentence for whoever asked.
    fn load(&self, folder: &Path) -> Result<LoadedAdapter, String>;
}

/// All adapters by name.
pub struct Adapters {
    source: Box<dyn AdapterSource>,
    /// The folder that clients may load from.
    folder: Option<PathBuf>,
    by_name: RwLock<BTreeMap<String, LoadedAdapter>>,
}

impl Adapters {
    /// Creates an empty registry. Clients may load what lies in `folder`; nothing, without one.
    #[must_use]
    pub fn new(source: Box<dyn AdapterSource>, folder: Option<PathBuf>) -> Self {
        Self { source, folder, by_name: RwLock::default() }
    }

    /// Loads an adapter that the operator named, from anywhere.
    ///
    /// # Errors
    /// Returns what is wrong with it, or with its name.
    pub fn load(&self, name: &str, folder: &Path) -> Result<(), String> {
        check_name(name)?;
        let loaded = self.source.load(folder)?;
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if by_name.contains_key(name) {
            return Err(format!("an adapter named {name} is loaded already; unload it first"));
        }
        if by_name.len() >= MAX_ADAPTERS {
            return Err(format!("{MAX_ADAPTERS} adapters are loaded already; unload one first"));
        }
        by_name.insert(name.to_owned(), loaded);
        Ok(())
    }

    /// Loads an adapter that a client named, from the folder for that.
    ///
    /// # Errors
    /// Refuses paths outside the folder, names that are taken, and adapters that do not fit.
    pub(crate) fn load_for_client(&self, name: &str, path: &str) -> Result<(), ApiError> {
        let Some(folder) = &self.folder else {
            return Err(ApiError::AdaptersAreFixed);
        };
        let refuse = |message: String| ApiError::invalid("lora_path", message);
        // The same answer for what is not there and for what is elsewhere: neither is the client's.
        let outside = || refuse(format!("{path} is no folder inside the server's --lora-dir"));
        let folder = folder.canonicalize().map_err(|_| outside())?;
        let path = folder.join(path).canonicalize().map_err(|_| outside())?;
        if !path.starts_with(&folder) {
            return Err(outside());
        }
        check_name(name).map_err(|message| ApiError::invalid("lora_name", message))?;
        self.load(name, &path).map_err(refuse)
    }

    /// Forgets an adapter; requests that run on it keep it.
    ///
    /// # Errors
    /// Refuses when clients may not change the adapters, or none has that name.
    pub(crate) fn unload(&self, name: &str) -> Result<(), ApiError> {
        if self.folder.is_none() {
            return Err(ApiError::AdaptersAreFixed);
        }
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let unknown = || ApiError::ModelNotFound { model: name.to_owned() };
        by_name.remove(name).map(drop).ok_or_else(unknown)
    }

    /// Returns the adapter of that name.
    pub(crate) fn get(&self, name: &str) -> Option<LoadedAdapter> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        by_name.get(name).cloned()
    }

    /// Returns all names in alphabetical order.
    pub(crate) fn names(&self) -> Vec<String> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        by_name.keys().cloned().collect()
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(format!("the name must have 1 to {MAX_NAME_BYTES} bytes, got {}", name.len()))
}
