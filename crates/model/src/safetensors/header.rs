//! The header of a safetensors file: which tensors there are, and where.

use super::TensorEntry;
use super::dtype::Dtype;
use crate::error::ModelError;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Far above real files, which have thousands.
const MAX_TENSORS: usize = 1 << 17;
/// Dimensions that a tensor can have; none of a language model has more.
const MAX_DIMENSIONS: usize = 8;
/// The entry that is no tensor: texts about the file.
const METADATA: &str = "__metadata__";

/// A tensor as the header describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryJson {
    dtype: String,
    shape: Vec<usize>,
    /// First byte and the one after the last, from the end of the header.
    data_offsets: (usize, usize),
}

/// Reads a header and checks it against the data, which lies from `data_start` to the end of the
/// file at `file_len`.
pub(super) fn read(
    header: &[u8],
    data_start: usize,
    file_len: usize,
) -> Result<BTreeMap<String, TensorEntry>, ModelError> {
    if header.first() != Some(&b'{') {
        return Err(ModelError::Malformed {
            what: "the start of the header".to_owned(),
            got: format!("\"{}\"", header[..header.len().min(8)].escape_ascii()),
            expected: "an opening brace: this is no safetensors file",
        });
    }
    let HeaderJson(entries) = serde_json::from_slice(header)
        .map_err(|source| ModelError::Json { what: "the header", source })?;
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let placed = check_entry(&name, entry, data_start, file_len)?;
        tensors.insert(name, placed);
    }
    check_places(&tensors, data_start, file_len)?;
    Ok(tensors)
}

fn check_entry(
    name: &str,
    entry: EntryJson,
    data_start: usize,
    file_len: usize,
) -> Result<TensorEntry, ModelError> {
    let EntryJson { dtype, shape, data_offsets: (start, end) } = entry;
    let Some(dtype) = Dtype::named(&dtype) else {
        return Err(malformed(name, "type", dtype, "a type of safetensors, such as BF16"));
    };
    if shape.len() > MAX_DIMENSIONS {
        let got = shape.len();
        return Err(malformed(name, "number of dimensions", got, "at most 8"));
    }
    if shape.contains(&0) {
        let got = format!("{shape:?}");
        return Err(malformed(name, "shape", got, "positive sizes"));
    }
    let num_elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    let num_bytes = num_elements.and_then(|num_elements| dtype.bytes_for(num_elements));
    let got = || format!("bytes {start} to {end} for {} of shape {shape:?}", dtype.name());
    if start > end || num_bytes != Some(end - start) {
        return Err(malformed(name, "place", got(), "as many bytes as shape and type take"));
    }
    match data_start.checked_add(end) {
        Some(last) if last <= file_len => {
            Ok(TensorEntry { dtype, shape, range: data_start + start..last })
        }
        _ => {
            let expected = "inside the file: it is incomplete or damaged";
            Err(malformed(name, "place", got(), expected))
        }
    }
}

/// Checks that tensors lie one after the other, from the header to the end of the file: bytes
/// that belong to no tensor could be anything.
fn check_places(
    tensors: &BTreeMap<String, TensorEntry>,
    data_start: usize,
    file_len: usize,
) -> Result<(), ModelError> {
    let mut by_start: Vec<_> = tensors.iter().collect();
    by_start.sort_unstable_by_key(|(_, entry)| (entry.range.start, entry.range.end));
    let (mut end, mut last) = (data_start, None);
    for (name, entry) in by_start {
        if let Some(first) = last
            && entry.range.start < end
        {
            let (first, second) = (String::clone(first), name.clone());
            return Err(ModelError::OverlappingTensors { first, second });
        }
        if entry.range.start != end {
            let got = format!("byte {}, after a tensor that ends at {end}", entry.range.start);
            return Err(malformed(name, "start", got, "no hole between tensors"));
        }
        (end, last) = (entry.range.end, Some(name));
    }
    if end == file_len {
        return Ok(());
    }
    Err(ModelError::Malformed {
        what: "the length of the file".to_owned(),
        got: format!("{file_len} bytes, with tensors up to byte {end}"),
        expected: "no bytes behind the last tensor",
    })
}

fn malformed(name: &str, what: &str, got: impl ToString, expected: &'static str) -> ModelError {
    ModelError::Malformed {
        what: format!("the {what} of tensor `{name}`"),
        got: got.to_string(),
        expected,
    }
}

/// The tensors of a header by name.
struct HeaderJson(BTreeMap<String, EntryJson>);

impl<'de> Deserialize<'de> for HeaderJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = HeaderJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<HeaderJson, A::Error> {
        let (mut tensors, mut has_metadata) = (BTreeMap::new(), false);
        while let Some(name) = object.next_key::<String>()? {
            let is_metadata = name == METADATA;
            if tensors.contains_key(&name) || (is_metadata && has_metadata) {
                return Err(A::Error::custom(format!("the name `{name}` appears twice")));
            }
            if is_metadata {
                object.next_value::<BTreeMap<String, String>>()?;
                has_metadata = true;
                continue;
            }
            if tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("there are more than {MAX_TENSORS} tensors")));
            }
            tensors.insert(name, object.next_value()?);
        }
        Ok(HeaderJson(tensors))
    }
}
