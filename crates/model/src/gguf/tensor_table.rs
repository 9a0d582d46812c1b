//! The list of tensors in a GGUF file, and where their bytes are.
//!
//! Checked when read: names are unique, shapes and byte sizes do not overflow, every tensor lies
//! inside the file at an aligned offset, and no two overlap. GGUF writes the innermost dimension
//! first; shapes here are row-major, outermost first.

use super::cursor::Cursor;
use crate::error::ModelError;
use mini_infer_kernels::WeightType;
use std::collections::BTreeMap;
use std::ops::Range;

/// Dimensions that a tensor can have, ggml's limit.
const MAX_DIMENSIONS: u32 = 4;

/// A bound of the type numbers that are known.
const MAX_TYPE: u32 = 64;

/// Where a tensor lies and what it is.
#[derive(Clone, Debug)]
pub(super) struct TensorEntry {
    pub(super) weight_type: WeightType,
    pub(super) shape: Vec<usize>,
    /// Bytes from the start of the file.
    pub(super) range: Range<usize>,
}

/// A table entry whose offset still counts from the start of the data.
struct RelativeEntry<'a> {
    name: &'a str,
    weight_type: WeightType,
    shape: Vec<usize>,
    num_bytes: usize,
    offset: u64,
}

/// Reads `count` entries and checks them against the data, which begins at the first multiple of
/// `alignment` after them and ends with the file of `file_len` bytes.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: usize,
    file_len: usize,
) -> Result<BTreeMap<String, TensorEntry>, ModelError> {
    let mut relative = Vec::new();
    for _ in 0..count {
        relative.push(read_entry(cursor)?);
    }
    let data_start = cursor.offset().next_multiple_of(alignment);
    let mut table = BTreeMap::new();
    for entry in relative {
        let start = locate(&entry, data_start, alignment, file_len)?;
        let RelativeEntry { name, weight_type, shape, num_bytes, .. } = entry;
        let placed = TensorEntry { weight_type, shape, range: start..start + num_bytes };
        if table.insert(name.to_owned(), placed).is_some() {
            return Err(ModelError::DuplicateName { what: "tensor", name: name.to_owned() });
        }
    }
    check_overlaps(&table)?;
    Ok(table)
}

fn read_entry<'a>(cursor: &mut Cursor<'a>) -> Result<RelativeEntry<'a>, ModelError> {
    let name = cursor.name("a tensor name")?;
    let num_dimensions = cursor.u32("a tensor's number of dimensions")?;
    if !(1..=MAX_DIMENSIONS).contains(&num_dimensions) {
        return Err(malformed(name, "number of dimensions", num_dimensions, "1 to 4"));
    }
    let mut shape = Vec::new();
    for _ in 0..num_dimensions {
        let dimension = cursor.u64("a tensor's dimension")?;
        match usize::try_from(dimension) {
            Ok(dimension) if dimension > 0 => shape.push(dimension),
            _ => return Err(malformed(name, "dimension", dimension, "a positive size")),
        }
    }
    shape.reverse();
    let code = cursor.u32("a tensor's type")?;
    let weight_type = weight_type(code).ok_or_else(|| ModelError::Unsupported {
        what: format!("the type of tensor `{name}`"),
        got: format!("ggml type {code}"),
        supported: (0..MAX_TYPE)
            .filter_map(weight_type)
            .map(WeightType::name)
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    let offset = cursor.u64("a tensor's offset")?;
    let row = shape[shape.len() - 1];
    if !row.is_multiple_of(weight_type.group_size()) {
        return Err(malformed(name, "row length", row, "whole quantisation groups"));
    }
    let num_bytes = shape
        .iter()
        .try_fold(1_usize, |product, dimension| product.checked_mul(*dimension))
        .and_then(|num_weights| weight_type.bytes_for(num_weights))
        .ok_or_else(|| malformed(name, "shape", format!("{shape:?}"), "less than 2^63 bytes"))?;
    Ok(RelativeEntry { name, weight_type, shape, num_bytes, offset })
}

/// Returns where in the file a tensor starts, having checked that all of it is there.
fn locate(
    entry: &RelativeEntry<'_>,
    data_start: usize,
    alignment: usize,
    file_len: usize,
) -> Result<usize, ModelError> {
    let RelativeEntry { name, num_bytes, offset, .. } = *entry;
    if !offset.is_multiple_of(alignment as u64) {
        return Err(malformed(name, "offset", offset, "a multiple of the file's alignment"));
    }
    let start = usize::try_from(offset).ok().and_then(|offset| data_start.checked_add(offset));
    match start {
        Some(start) if start.checked_add(num_bytes).is_some_and(|end| end <= file_len) => Ok(start),
        _ => Err(malformed(
            name,
            "place",
            format!("{num_bytes} bytes at data offset {offset}, in a file of {file_len} bytes"),
            "inside the file: it is incomplete or damaged",
        )),
    }
}

fn check_overlaps(table: &BTreeMap<String, TensorEntry>) -> Result<(), ModelError> {
    let mut by_start: Vec<_> = table.iter().collect();
    by_start.sort_unstable_by_key(|(_, entry)| entry.range.start);
    for pair in by_start.windows(2) {
        let [(first, a), (second, b)] = pair else { continue };
        if a.range.end > b.range.start {
            let (first, second) = ((*first).clone(), (*second).clone());
            return Err(ModelError::OverlappingTensors { first, second });
        }
    }
    Ok(())
}

/// Maps ggml's type numbers (`enum ggml_type` in ggml.h).
fn weight_type(code: u32) -> Option<WeightType> {
    Some(match code {
        0 => WeightType::F32,
        1 => WeightType::F16,
        2 => WeightType::Q4_0,
        3 => WeightType::Q4_1,
        6 => WeightType::Q5_0,
        7 => WeightType::Q5_1,
        8 => WeightType::Q8_0,
        10 => WeightType::Q2K,
        11 => WeightType::Q3K,
        12 => WeightType::Q4K,
        13 => WeightType::Q5K,
        14 => WeightType::Q6K,
        16 => WeightType::Iq2Xxs,
        17 => WeightType::Iq2Xs,
        18 => WeightType::Iq3Xxs,
        19 => WeightType::Iq1S,
        20 => WeightType::Iq4Nl,
        21 => WeightType::Iq3S,
        22 => WeightType::Iq2S,
        23 => WeightType::Iq4Xs,
        29 => WeightType::Iq1M,
        30 => WeightType::Bf16,
        34 => WeightType::Tq1_0,
        35 => WeightType::Tq2_0,
        39 => WeightType::Mxfp4,
        _ => return None,
    })
}

fn malformed(name: &str, what: &str, got: impl ToString, expected: &'static str) -> ModelError {
    ModelError::Malformed {
        what: format!("the {what} of tensor `{name}`"),
        got: got.to_string(),
        expected,
    }
}
