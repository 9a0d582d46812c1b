//! Matrices of four-bit weights that GPTQ and AWQ store as several tensors each.
//!
//! Where a plain checkpoint has `NAME.weight`, such a one has `NAME.qweight` (codes), `.qzeros`
//! (zero points), `.scales` and, for GPTQ, `.g_idx` (the group of each input feature). Owns where
//! they lie and that they fit each other; they become rows when the matrix is loaded.

use super::TensorEntry;
use crate::config::Int4Storage;
use crate::error::ModelError;
use crate::weights::FileBytes;
use mini_infer_kernels::{Int4Columns, Int4Order, WeightType};
use std::ops::Range;

/// End of the name of a matrix' codes.
pub(super) const CODES: &str = ".qweight";
const ZERO_POINTS: &str = ".qzeros";
const SCALES: &str = ".scales";
const GROUP_INDEX: &str = ".g_idx";
/// Codes in a word.
const WORD_CODES: usize = 8;
/// The type of words and group indices.
const WORD: &str = "I32";

/// Tells whether a tensor is a part of such a matrix.
pub(super) fn is_part(name: &str) -> bool {
    [CODES, ZERO_POINTS, SCALES, GROUP_INDEX].iter().any(|end| name.ends_with(end))
}

/// Bytes of one of the files of a folder.
#[derive(Clone, Debug)]
pub(super) struct FileRange {
    /// Which file.
    pub(super) shard: usize,
    /// Bytes from its start.
    pub(super) range: Range<usize>,
}

impl FileRange {
    /// Returns the bytes.
    pub(super) fn of<'a>(&self, shards: &'a [FileBytes]) -> &'a [u8] {
        &shards[self.shard][self.range.clone()]
    }
}

/// A tensor, and which file it is in.
pub(super) type Field<'a> = (&'a TensorEntry, usize);

/// Where the fields of a matrix are.
#[derive(Clone, Debug)]
pub(super) struct PlacedColumns {
    order: Int4Order,
    /// `[out_features, in_features]`
    pub(super) shape: [usize; 2],
    group_size: usize,
    codes: FileRange,
    zero_points: FileRange,
    scale_type: WeightType,
    scales: FileRange,
    group_index: Option<FileRange>,
}

impl PlacedColumns {
    /// Returns the matrix.
    pub(super) fn columns<'a>(&self, shards: &'a [FileBytes]) -> Int4Columns<'a> {
        Int4Columns {
            order: self.order,
            out_features: self.shape[0],
            in_features: self.shape[1],
            group_size: self.group_size,
            codes: self.codes.of(shards),
            zero_points: self.zero_points.of(shards),
            scale_type: self.scale_type,
            scales: self.scales.of(shards),
            group_index: self.group_index.as_ref().map(|field| field.of(shards)),
        }
    }
}

/// Finds the fields of the matrix called `base`, which `find` finds by name, and checks that they fit
/// each other.
pub(super) fn place<'a>(
    base: &str,
    find: impl Fn(&str) -> Option<Field<'a>>,
    storage: Int4Storage,
    shards: &[FileBytes],
) -> Result<PlacedColumns, ModelError> {
    let named = |end: &str| {
        let name = format!("{base}{end}");
        let field = find(&name);
        field.ok_or_else(|| ModelError::MissingTensors { names: vec![name] })
    };
    let (codes, zero_points, scales) = (named(CODES)?, named(ZERO_POINTS)?, named(SCALES)?);
    let group_index = find(&format!("{base}{GROUP_INDEX}"));
    let (first, second) = match codes.0.shape[..] {
        [first, second] => (first, second),
        _ => return Err(wrong_shape(base, CODES, codes, &[0, 0])),
    };
    let unpacked = |words: usize| words.saturating_mul(WORD_CODES);
    let (in_features, out_features) = match storage.order {
        Int4Order::Gptq | Int4Order::GptqV2 => (unpacked(first), second),
        Int4Order::Awq => (first, unpacked(second)),
    };
    let group_size = storage.group_size.unwrap_or(in_features);
    let num_groups = in_features.div_ceil(group_size);
    let zero_shape = [num_groups, out_features / WORD_CODES];
    check(base, CODES, codes, &[first, second], WORD)?;
    check(base, ZERO_POINTS, zero_points, &zero_shape, WORD)?;
    if scales.0.shape != [num_groups, out_features] {
        return Err(wrong_shape(base, SCALES, scales, &[num_groups, out_features]));
    }
    if let Some(index) = group_index {
        check(base, GROUP_INDEX, index, &[in_features], WORD)?;
    }
    let scale_type = scales.0.dtype.weight_type();
    let scale_type =
        scale_type.ok_or_else(|| wrong_type(base, SCALES, scales, "F16, BF16, F32"))?;
    let at = |(entry, shard): Field<'_>| FileRange { shard, range: entry.range.clone() };
    let placed = PlacedColumns {
        order: storage.order,
        shape: [out_features, in_features],
        group_size,
        codes: at(codes),
        zero_points: at(zero_points),
        scale_type,
        scales: at(scales),
        group_index: group_index.map(at),
    };
    let checked = placed.columns(shards).check();
    checked.map_err(|source| ModelError::Int4 { tensor: base.to_owned(), source })?;
    Ok(placed)
}

fn check(
    base: &str,
    end: &str,
    field: Field<'_>,
    shape: &[usize],
    dtype: &str,
) -> Result<(), ModelError> {
    if field.0.dtype.name() != dtype {
        return Err(wrong_type(base, end, field, dtype));
    }
    if field.0.shape != shape { Err(wrong_shape(base, end, field, shape)) } else { Ok(()) }
}

fn wrong_shape(base: &str, end: &str, field: Field<'_>, expected: &[usize]) -> ModelError {
    ModelError::TensorShape {
        tensor: format!("{base}{end}"),
        got: field.0.shape.clone(),
        expected: expected.to_vec(),
    }
}

fn wrong_type(base: &str, end: &str, field: Field<'_>, supported: &str) -> ModelError {
    ModelError::Unsupported {
        what: format!("the type of tensor `{base}{end}`"),
        got: field.0.dtype.name().to_owned(),
        supported: supported.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::Checkpoint;
    use crate::weights::{ModelTensors, StoredWeights};
    use mini_infer_kernels::WeightType;
    use std::path::{Path, PathBuf};

    fn fixture(method: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-int4");
        folder.join(method)
    }

    /// Replaces a text in the header by another of the same length; returns what is wrong then.
    fn problem_with(method: &str, old: &str, new: &str) -> String {
        assert_eq!(old.len(), new.len());
        let mut file = std::fs::read(fixture(method).join("model.safetensors")).unwrap();
        let at = file.windows(old.len()).position(|part| part == old.as_bytes());
        let at = at.expect("the header has the text");
        file[at..at + old.len()].copy_from_slice(new.as_bytes());
        let name = format!("mini-infer-int4-{}-{method}-{at}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(fixture(method).join("config.json"), folder.join("config.json")).unwrap();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        let opened = Checkpoint::open(&folder);
        let found = opened.and_then(|checkpoint| ModelTensors::find(&checkpoint).map(drop));
        std::fs::remove_dir_all(&folder).unwrap();
        found.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn matrices_of_both_methods_stay_columns_until_they_are_loaded() {
        for method in ["awq", "gptq"] {
            let checkpoint = Checkpoint::open(&fixture(method)).unwrap();
            let tensor = checkpoint.tensor("blk.1.ffn_down.weight").unwrap();
            assert_eq!((tensor.weight_type, tensor.shape), (WeightType::Int4, &[64, 128][..]));
            assert!(matches!(tensor.weights, StoredWeights::Columns { first_row: 0, .. }));
            assert_eq!(tensor.num_stored_bytes(), 64 * 128 / 2);
            let last = tensor.part("last", 40, &[24, 128]);
            assert!(matches!(last.weights, StoredWeights::Columns { first_row: 40, .. }));
            assert_eq!(last.num_stored_bytes(), 24 * 128 / 2);
            assert!(checkpoint.tensor("blk.1.attn_q.bias").is_some());
            assert!(checkpoint.tensor("blk.1.ffn_down.bias").is_none());
            assert_eq!(checkpoint.tensor("blk.1.attn_norm.weight").unwrap().shape, [64]);
        }
    }

    #[test]
    fn fields_that_are_missing_or_do_not_fit_are_named() {
        let check = |method: &str, old: &str, new: &str, expected: &str| {
            let problem = problem_with(method, old, new);
            assert!(problem.contains(expected), "`{problem}` does not say `{expected}`");
        };
        assert_eq!(problem_with("gptq", "qweight", "qweight"), "");
        check(
            "gptq",
            "0.mlp.up_proj.scales",
            "9.mlp.up_proj.scales",
            "missing tensors (1): model.layers.0.mlp.up_proj.scales",
        );
        check("awq", "0.mlp.up_proj.qweight", "9.mlp.up_proj.qweight", "9.mlp.up_proj.qzeros");
        check("awq", "mlp.up_proj.qzeros", "mlp.up_proj.qzeroz", "up_proj.qzeroz");
        check("gptq", "mlp.up_proj.bias", "mlp.no_proj.bias", "mlp.no_proj.bias");
        for method in ["awq", "gptq"] {
            check(method, "\"dtype\":\"I32\"", "\"dtype\":\"U32\"", "`U32` is not supported");
        }
        let shape = "qzeros\":{\"dtype\":\"I32\",\"shape\":[2,8]";
        check("awq", shape, &shape.replace("2,8", "8,2"), "has shape [8, 2], expected [2, 8]");
    }
}
