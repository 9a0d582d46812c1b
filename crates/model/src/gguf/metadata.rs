//! The keys and values at the head of a GGUF file.

use super::cursor::Cursor;
use super::value::{MetadataArray, MetadataValue, ValueType, decode, skip};
use crate::error::ModelError;
use crate::weights::FileBytes;
use std::collections::BTreeMap;

/// The metadata of a GGUF file. Keeps the file's bytes alive; values are decoded when asked for.
#[derive(Clone, Debug)]
pub struct GgufMetadata {
    bytes: FileBytes,
    entries: BTreeMap<String, Entry>,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
struct Entry {
    value_type: ValueType,
    offset: usize,
}

impl GgufMetadata {
    /// Reads `count` keys and values, leaving the cursor behind the last one.
    pub(super) fn read(
        bytes: &FileBytes,
        cursor: &mut Cursor<'_>,
        count: usize,
    ) -> Result<Self, ModelError> {
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let key = cursor.name("a metadata key")?;
            let value_type = ValueType::read(cursor)?;
            let entry = Entry { value_type, offset: cursor.offset() };
            if entries.insert(key.to_owned(), entry).is_some() {
                let name = key.to_owned();
                return Err(ModelError::DuplicateName { what: "metadata key", name });
            }
            skip(cursor, value_type)?;
        }
        Ok(Self { bytes: bytes.clone(), entries })
    }

    /// Returns all keys in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the value of `key` as it is stored, if the key is there.
    ///
    /// # Panics
    /// When the mapped file was changed since it was opened.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<MetadataValue<'_>> {
        let entry = self.entries.get(key)?;
        let mut cursor = Cursor::new(&self.bytes, entry.offset);
        Some(decode(&mut cursor, entry.value_type).expect("values are checked when read"))
    }

    /// Returns the value of `key`, or `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is of another type, out of the type's range, or not UTF-8.
    pub fn get<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<Option<T>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_metadata(value) {
            Some(value) => Ok(Some(value)),
            None => Err(ModelError::MetadataType {
                key: key.to_owned(),
                got: describe(&value, self.entries[key].value_type),
                expected: T::EXPECTED,
            }),
        }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// As [`Self::get`], and when the key is absent.
    pub fn require<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<T, ModelError> {
        self.get(key)?.ok_or_else(|| ModelError::MissingMetadata { key: key.to_owned() })
    }
}

/// Names a value's type, and the value itself where that is short.
fn describe(value: &MetadataValue<'_>, value_type: ValueType) -> String {
    let name = value_type.name();
    match value {
        MetadataValue::Unsigned(x) => format!("{name} ({x})"),
        MetadataValue::Signed(x) => format!("{name} ({x})"),
        MetadataValue::F32(x) => format!("{name} ({x})"),
        MetadataValue::F64(x) => format!("{name} ({x})"),
        MetadataValue::Bool(x) => format!("{name} ({x})"),
        MetadataValue::String(x) => {
            format!("{name} (\"{}\")", x[..x.len().min(64)].escape_ascii())
        }
        MetadataValue::Array(array) => {
            format!("{name} of {} {}", array.len(), array.element_type().name())
        }
    }
}

/// Rust types that a metadata value can be read as. Integers are read from every integer type that
/// holds the number, because converters differ in the width that they write.
pub trait FromMetadata<'a>: Sized {
    /// What the value has to be, for messages.
    const EXPECTED: &'static str;

    /// Returns the value as this type, or `None` when it is something else.
    fn from_metadata(value: MetadataValue<'a>) -> Option<Self>;
}

macro_rules! integers_from_metadata {
    ($($integer:ty: $expected:literal),*) => {$(
        impl FromMetadata<'_> for $integer {
            const EXPECTED: &'static str = $expected;

            fn from_metadata(value: MetadataValue<'_>) -> Option<Self> {
                match value {
                    MetadataValue::Unsigned(x) => x.try_into().ok(),
                    MetadataValue::Signed(x) => x.try_into().ok(),
                    MetadataValue::F32(_)
                    | MetadataValue::F64(_)
                    | MetadataValue::Bool(_)
                    | MetadataValue::String(_)
                    | MetadataValue::Array(_) => None,
                }
            }
        }
    )*};
}

integers_from_metadata!(
    u32: "an integer from 0 to 2^32 - 1",
    u64: "an integer from 0 to 2^64 - 1",
    usize: "an integer that is not negative",
    i32: "an integer from -2^31 to 2^31 - 1"
);

impl FromMetadata<'_> for f32 {
    const EXPECTED: &'static str = "a FLOAT32";

    fn from_metadata(value: MetadataValue<'_>) -> Option<Self> {
        if let MetadataValue::F32(x) = value { Some(x) } else { None }
    }
}

impl FromMetadata<'_> for bool {
    const EXPECTED: &'static str = "a BOOL";

    fn from_metadata(value: MetadataValue<'_>) -> Option<Self> {
        if let MetadataValue::Bool(x) = value { Some(x) } else { None }
    }
}

impl<'a> FromMetadata<'a> for &'a str {
    const EXPECTED: &'static str = "a STRING of UTF-8 text";

    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        if let MetadataValue::String(x) = value { std::str::from_utf8(x).ok() } else { None }
    }
}

impl<'a> FromMetadata<'a> for MetadataArray<'a> {
    const EXPECTED: &'static str = "an ARRAY";

    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        if let MetadataValue::Array(x) = value { Some(x) } else { None }
    }
}

impl<'a, T: FromMetadata<'a>> FromMetadata<'a> for Vec<T> {
    const EXPECTED: &'static str = "an ARRAY whose every element is of the right type";

    fn from_metadata(value: MetadataValue<'a>) -> Option<Self> {
        MetadataArray::from_metadata(value)?.iter().map(T::from_metadata).collect()
    }
}
