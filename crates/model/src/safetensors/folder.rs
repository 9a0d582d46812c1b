//! A checkpoint folder: `config.json`, and weights in one safetensors file or in several that an
//! index names.
//!
//! Every tensor has one place and one meaning: an index must name exactly the tensors of its files,
//! each in the file where it is, and a tensor that no family knows is an error.

use super::int4::{self, FileRange, PlacedColumns};
use super::{SafetensorsFile, TensorEntry, tensor_names};
use crate::config::{Int4Storage, ModelConfig, OutputHead, QkvBias};
use crate::error::ModelError;
use crate::unique_map::UniqueMap;
use crate::weights::{FileBytes, StoredWeights, TensorView};
use mini_infer_kernels::WeightType;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The configuration.
const CONFIG: &str = "config.json";
/// The weights where they are one file.
const SINGLE: &str = "model.safetensors";
/// The file that says which weights are in which file.
const INDEX: &str = "model.safetensors.index.json";
/// End of the names of weight files.
const EXTENSION: &str = ".safetensors";
/// End of the names of what is added to the results of a matrix.
const BIAS: &str = ".bias";
/// Far above real indices (10 MB for 60,000 tensors), and far below memory.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// More files than any checkpoint has (hundreds).
const MAX_SHARDS: usize = 1 << 12;

/// A folder's weights, by canonical names.
#[derive(Clone, Debug)]
pub(crate) struct SafetensorsFolder {
    shards: Vec<FileBytes>,
    tensors: BTreeMap<String, PlacedTensor>,
}

/// A tensor, and where it is.
#[derive(Clone, Debug)]
struct PlacedTensor {
    /// Its name in the file.
    stored_name: String,
    weight_type: WeightType,
    shape: Vec<usize>,
    place: Place,
}

/// Where the weights of a tensor are.
#[derive(Clone, Debug)]
enum Place {
    Rows(FileRange),
    Columns(PlacedColumns),
}

/// A file of weights.
struct Shard {
    path: PathBuf,
    file: SafetensorsFile,
}

#[derive(Deserialize)]
struct IndexJson {
    weight_map: UniqueMap<String>,
    /// Sums over the tensors, which differ in what they count.
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
}

impl SafetensorsFolder {
    /// Opens the files of a folder and checks that they fit each other.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or holds a model or tensor that is not supported;
    /// the error names it.
    pub(crate) fn open(folder: &Path) -> Result<(ModelConfig, Self), ModelError> {
        let path = folder.join(CONFIG);
        let json = read_bounded(&path)?;
        let config = ModelConfig::from_json(&json).map_err(|error| error.in_file(&path))?;
        let storage = Int4Storage::from_json(&json).map_err(|error| error.in_file(&path))?;
        let single = folder.join(SINGLE);
        // Where there are both, the single file counts, as in transformers.
        let shards =
            if single.exists() { vec![open_shard(single)?] } else { open_indexed(folder)? };
        let mut tensors = place_tensors(&shards, &config, storage)?;
        let files: Vec<_> = shards.iter().map(|shard| shard.file.bytes.clone()).collect();
        if let Some(storage) = storage {
            place_int4(&shards, &files, &config, storage, &mut tensors)?;
        }
        let mut this = Self { shards: files, tensors };
        this.drop_copied_head(&config).map_err(|error| error.in_file(folder))?;
        Ok((config, this))
    }

    /// Returns the canonical names of all tensors in alphabetical order.
    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns a tensor by its canonical name, if there is one.
    pub(crate) fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, tensor) = self.tensors.get_key_value(name)?;
        Some(TensorView {
            name,
            weight_type: tensor.weight_type,
            shape: &tensor.shape,
            weights: match &tensor.place {
                Place::Rows(place) => StoredWeights::Rows(place.of(&self.shards)),
                Place::Columns(place) => {
                    let columns = place.columns(&self.shards);
                    StoredWeights::Columns { columns, first_row: 0 }
                }
            },
        })
    }

    /// Returns what a tensor of a canonical name is called in the files, also one that is missing.
    pub(crate) fn stored_name(&self, canonical: &str, config: &ModelConfig) -> String {
        let found = self.tensors.get(canonical).map(|tensor| tensor.stored_name.clone());
        let found = found.or_else(|| tensor_names::stored(canonical, config));
        found.unwrap_or_else(|| canonical.to_owned())
    }

    /// Gives the memory of some of the files' bytes back to the system.
    pub(crate) fn release(&self, bytes: &[u8]) {
        self.shards.iter().for_each(|shard| shard.release(bytes));
    }

    /// Drops the output head of a model whose head is tied: some files have it although it is a
    /// copy of the embeddings.
    fn drop_copied_head(&mut self, config: &ModelConfig) -> Result<(), ModelError> {
        if config.output_head != OutputHead::Tied {
            return Ok(());
        }
        let head = self.tensor(tensor_names::OUTPUT_HEAD);
        if let (Some(head), Some(embedding)) = (head, self.tensor(tensor_names::EMBEDDING)) {
            let is_copy = head.weights == embedding.weights;
            self.release(head.stored_bytes());
            self.release(embedding.stored_bytes());
            if !is_copy {
                return Err(ModelError::MetadataValue {
                    key: "tie_word_embeddings".to_owned(),
                    got: "true".to_owned(),
                    expected: "false, as lm_head.weight differs from the embeddings".to_owned(),
                });
            }
            self.tensors.remove(tensor_names::OUTPUT_HEAD);
        }
        Ok(())
    }
}

/// Reads a small file whole.
pub(crate) fn read_bounded(path: &Path) -> Result<Vec<u8>, ModelError> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let got = bytes.len() as u64;
    if got > MAX_TEXT_BYTES {
        let error = ModelError::TooMany { what: "bytes of JSON", got, limit: MAX_TEXT_BYTES };
        return Err(error.in_file(path));
    }
    Ok(bytes)
}

fn open_shard(path: PathBuf) -> Result<Shard, ModelError> {
    let file = SafetensorsFile::parse(FileBytes::map(&path)?);
    let file = file.map_err(|error| error.in_file(&path))?;
    Ok(Shard { path, file })
}

/// Opens the files that the index names, and checks that it tells the truth about them.
fn open_indexed(folder: &Path) -> Result<Vec<Shard>, ModelError> {
    let path = folder.join(INDEX);
    let index: IndexJson = serde_json::from_slice(&read_bounded(&path)?)
        .map_err(|source| ModelError::Json { what: "the index", source }.in_file(&path))?;
    let mut tensors_of = BTreeMap::<&str, Vec<&str>>::new();
    for (tensor, file) in &index.weight_map.0 {
        tensors_of.entry(file).or_default().push(tensor);
    }
    if tensors_of.len() > MAX_SHARDS {
        let (got, limit) = (tensors_of.len() as u64, MAX_SHARDS as u64);
        return Err(ModelError::TooMany { what: "weight files", got, limit }.in_file(&path));
    }
    let mut shards = Vec::new();
    for (file, listed) in tensors_of {
        check_file_name(file).map_err(|error| error.in_file(&path))?;
        let shard = open_shard(folder.join(file))?;
        // Both lists are in alphabetical order and have no name twice.
        let missing = listed.iter().filter(|name| !shard.file.tensors.contains_key(**name));
        let missing: Vec<_> = missing.map(|name| (*name).to_owned()).collect();
        if !missing.is_empty() {
            return Err(ModelError::MissingTensors { names: missing }.in_file(&shard.path));
        }
        let extra =
            shard.file.tensors.keys().filter(|name| listed.binary_search(&name.as_str()).is_err());
        let extra: Vec<_> = extra.cloned().collect();
        if !extra.is_empty() {
            return Err(ModelError::UnlistedTensors { names: extra }.in_file(&shard.path));
        }
        shards.push(shard);
    }
    Ok(shards)
}

/// Checks that a file of the index lies in the folder itself.
fn check_file_name(name: &str) -> Result<(), ModelError> {
    let is_plain = name.ends_with(EXTENSION) && !name.contains(['/', '\\', ':', '\0']);
    if is_plain && name != EXTENSION {
        return Ok(());
    }
    Err(ModelError::Malformed {
        what: "a file of the weight map".to_owned(),
        got: format!("{name:?}"),
        expected: "the plain name of a .safetensors file in the same folder",
    })
}

/// Gives the tensors of all files their canonical names.
fn place_tensors(
    shards: &[Shard],
    config: &ModelConfig,
    storage: Option<Int4Storage>,
) -> Result<BTreeMap<String, PlacedTensor>, ModelError> {
    let mut placed = BTreeMap::new();
    let mut unused = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        for (stored_name, entry) in &shard.file.tensors {
            let is_unpacked = storage.is_some() && int4::is_part(stored_name);
            if is_unpacked || tensor_names::is_ignored(stored_name, config) {
                continue;
            }
            let Some(name) = tensor_names::canonical(stored_name, config) else {
                unused.push(stored_name.clone());
                continue;
            };
            let tensor =
                place(stored_name, entry, i).map_err(|error| error.in_file(&shard.path))?;
            if let Some(PlacedTensor { stored_name: first, .. }) = placed.insert(name, tensor) {
                let name = format!("{first}` and `{stored_name}");
                return Err(ModelError::DuplicateName { what: "tensor", name }.in_file(&shard.path));
            }
        }
    }
    if unused.is_empty() { Ok(placed) } else { Err(ModelError::UnusedTensors { names: unused }) }
}

/// Finds the matrices of four-bit weights, and gives them their canonical names.
fn place_int4(
    shards: &[Shard],
    files: &[FileBytes],
    config: &ModelConfig,
    storage: Int4Storage,
    placed: &mut BTreeMap<String, PlacedTensor>,
) -> Result<(), ModelError> {
    let find = |name: &str| {
        let entries = shards.iter().map(|shard| shard.file.tensors.get(name));
        entries.zip(0..).find_map(|(entry, shard)| entry.map(|entry| (entry, shard)))
    };
    let names =
        shards.iter().flat_map(|shard| shard.file.tensors.keys().map(move |name| (name, shard)));
    let mut unused = Vec::new();
    for (stored_name, shard) in names.filter(|(name, _)| int4::is_part(name)) {
        let base = stored_name.rsplit_once('.').map_or("", |(base, _)| base);
        let name = tensor_names::canonical(&format!("{base}.weight"), config);
        let Some(name) = name.filter(|_| find(&format!("{base}{}", int4::CODES)).is_some()) else {
            unused.push(stored_name.clone());
            continue;
        };
        if !stored_name.ends_with(int4::CODES) {
            continue;
        }
        let place = int4::place(base, find, storage, files);
        let place = place.map_err(|error| error.in_file(&shard.path))?;
        let tensor = PlacedTensor {
            stored_name: stored_name.clone(),
            weight_type: WeightType::Int4,
            shape: place.shape.to_vec(),
            place: Place::Columns(place),
        };
        if let Some(PlacedTensor { stored_name: first, .. }) = placed.insert(name, tensor) {
            let name = format!("{first}` and `{stored_name}");
            return Err(ModelError::DuplicateName { what: "tensor", name }.in_file(&shard.path));
        }
    }
    if !unused.is_empty() {
        return Err(ModelError::UnusedTensors { names: unused });
    }
    placed.retain(|name, tensor| {
        let Place::Rows(place) = &tensor.place else { return true };
        let is_needed = !name.ends_with(BIAS) || has_bias(name, config);
        // Programs that quantise give every matrix a bias, also those whose model has none.
        is_needed || place.of(files).iter().any(|byte| *byte != 0)
    });
    Ok(())
}

/// Tells whether the model adds a bias of this canonical name.
fn has_bias(name: &str, config: &ModelConfig) -> bool {
    let of_qkv = [".attn_q.bias", ".attn_k.bias", ".attn_v.bias"];
    config.qkv_bias == QkvBias::Present && of_qkv.iter().any(|end| name.ends_with(end))
}

fn place(stored_name: &str, entry: &TensorEntry, shard: usize) -> Result<PlacedTensor, ModelError> {
    Ok(PlacedTensor {
        stored_name: stored_name.to_owned(),
        weight_type: entry.weight_type(stored_name)?,
        shape: entry.shape.clone(),
        place: Place::Rows(FileRange { shard, range: entry.range.clone() }),
    })
}
