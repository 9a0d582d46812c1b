//! Metadata values: their types on file, and what they decode to.
//!
//! A value stays where it lies in the file; only its extent is found when the file is opened, and
//! it is decoded when somebody asks for it, so that arrays of a quarter million tokens cost one
//! pass over their lengths.

use super::cursor::Cursor;
use crate::error::ModelError;

/// Arrays inside arrays beyond this depth are refused; no known checkpoint has any.
const MAX_ARRAY_DEPTH: u32 = 4;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Single precision.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Length and UTF-8 bytes.
    String,
    /// Element type, count and elements.
    Array,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// Double precision.
    F64,
}

impl ValueType {
    /// Reads a type field.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, ModelError> {
        let code = cursor.u32("a metadata value type")?;
        Ok(match code {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            got => {
                return Err(ModelError::Malformed {
                    what: "a metadata value type".to_owned(),
                    got: got.to_string(),
                    expected: "a number from 0 to 12",
                });
            }
        })
    }

    /// Returns the type's name as the GGUF specification writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "UINT8",
            Self::I8 => "INT8",
            Self::U16 => "UINT16",
            Self::I16 => "INT16",
            Self::U32 => "UINT32",
            Self::I32 => "INT32",
            Self::F32 => "FLOAT32",
            Self::Bool => "BOOL",
            Self::String => "STRING",
            Self::Array => "ARRAY",
            Self::U64 => "UINT64",
            Self::I64 => "INT64",
            Self::F64 => "FLOAT64",
        }
    }

    /// Returns the bytes of a value of fixed size, or the least that a string or array takes.
    const fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// A decoded metadata value; text and arrays are borrowed from the file.
#[derive(Clone, Copy, Debug)]
pub enum MetadataValue<'a> {
    /// Any of the unsigned types.
    Unsigned(u64),
    /// Any of the signed types.
    Signed(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// The bytes of a string, UTF-8 by specification.
    String(&'a [u8]),
    /// Values of one type.
    Array(MetadataArray<'a>),
}

/// An array of values, decoded one by one.
#[derive(Clone, Copy, Debug)]
pub struct MetadataArray<'a> {
    element_type: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> MetadataArray<'a> {
    /// Returns the type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements in order.
    ///
    /// # Panics
    /// When the mapped file was changed since it was opened.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = MetadataValue<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes, 0);
        let element_type = self.element_type;
        (0..self.len).map(move |_| {
            decode(&mut cursor, element_type)
                .expect("the array was walked when the file was opened")
        })
    }
}

/// Decodes the value of type `value_type` at the cursor.
pub(super) fn decode<'a>(
    cursor: &mut Cursor<'a>,
    value_type: ValueType,
) -> Result<MetadataValue<'a>, ModelError> {
    const WHAT: &str = "a metadata value";
    Ok(match value_type {
        ValueType::U8 => MetadataValue::Unsigned(u8::from_le_bytes(cursor.array(WHAT)?).into()),
        ValueType::I8 => MetadataValue::Signed(i8::from_le_bytes(cursor.array(WHAT)?).into()),
        ValueType::U16 => MetadataValue::Unsigned(u16::from_le_bytes(cursor.array(WHAT)?).into()),
        ValueType::I16 => MetadataValue::Signed(i16::from_le_bytes(cursor.array(WHAT)?).into()),
        ValueType::U32 => MetadataValue::Unsigned(cursor.u32(WHAT)?.into()),
        ValueType::I32 => MetadataValue::Signed(i32::from_le_bytes(cursor.array(WHAT)?).into()),
        ValueType::F32 => MetadataValue::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::Bool => MetadataValue::Bool(read_bool(cursor)?),
        ValueType::String => MetadataValue::String(cursor.string_bytes("a metadata string")?),
        ValueType::U64 => MetadataValue::Unsigned(cursor.u64(WHAT)?),
        ValueType::I64 => MetadataValue::Signed(i64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::F64 => MetadataValue::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::Array => {
            let (element_type, len) = array_header(cursor)?;
            let mut end = *cursor;
            skip_elements(&mut end, element_type, len, 1)?;
            let bytes = cursor.take("a metadata array", (end.offset() - cursor.offset()) as u64)?;
            MetadataValue::Array(MetadataArray { element_type, len, bytes })
        }
    })
}

/// Moves the cursor over a value, checking every length inside it.
pub(super) fn skip(cursor: &mut Cursor<'_>, value_type: ValueType) -> Result<(), ModelError> {
    skip_elements(cursor, value_type, 1, 0)
}

fn skip_elements(
    cursor: &mut Cursor<'_>,
    element_type: ValueType,
    len: usize,
    depth: u32,
) -> Result<(), ModelError> {
    match element_type {
        ValueType::String => {
            for _ in 0..len {
                cursor.string_bytes("a metadata string")?;
            }
        }
        ValueType::Bool => {
            for _ in 0..len {
                read_bool(cursor)?;
            }
        }
        ValueType::Array => {
            if depth >= MAX_ARRAY_DEPTH {
                return Err(ModelError::TooMany {
                    what: "levels of metadata arrays",
                    got: u64::from(depth) + 1,
                    limit: u64::from(MAX_ARRAY_DEPTH),
                });
            }
            for _ in 0..len {
                let (inner_type, inner_len) = array_header(cursor)?;
                skip_elements(cursor, inner_type, inner_len, depth + 1)?;
            }
        }
        ValueType::U8
        | ValueType::I8
        | ValueType::U16
        | ValueType::I16
        | ValueType::U32
        | ValueType::I32
        | ValueType::F32
        | ValueType::U64
        | ValueType::I64
        | ValueType::F64 => {
            // Cannot overflow: `array_header` bounds `len` by the bytes left.
            cursor.take("a metadata value", len as u64 * element_type.least_bytes())?;
        }
    }
    Ok(())
}

/// Reads an array's element type and count, which the bytes left bound.
fn array_header(cursor: &mut Cursor<'_>) -> Result<(ValueType, usize), ModelError> {
    let element_type = ValueType::read(cursor)?;
    let len = cursor.count("elements of a metadata array", element_type.least_bytes(), u64::MAX)?;
    Ok((element_type, len))
}

fn read_bool(cursor: &mut Cursor<'_>) -> Result<bool, ModelError> {
    match cursor.array("a metadata value")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [got] => Err(ModelError::Malformed {
            what: "a truth value in the metadata".to_owned(),
            got: got.to_string(),
            expected: "0 or 1",
        }),
    }
}
