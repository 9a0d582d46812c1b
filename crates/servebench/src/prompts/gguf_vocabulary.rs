//! The vocabulary in a GGUF file's metadata.
//!
//! Reads the header and the key-value pairs, keeps those of the tokenizer, and never looks at a
//! tensor, so a file of any size costs a few megabytes. The bytes are untrusted: what they say about
//! lengths is checked against the file's own. Source: the GGUF specification, versions 2 and 3.

use mini_infer_text::GgufVocabulary;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// What the keys of a tokenizer begin with.
const PREFIX: &str = "tokenizer.ggml.";

/// Reads the vocabulary of a GGUF file.
///
/// # Errors
/// When the file cannot be read, is no GGUF file, or has no vocabulary.
pub(super) fn read(path: &Path) -> io::Result<GgufVocabulary> {
    let file = File::open(path)?;
    let bytes_left = file.metadata()?.len();
    Reader { input: BufReader::new(file), bytes_left }.vocabulary()
}

/// One value of the metadata; numbers of every width are one kind.
enum Value {
    Whole(i64),
    Real(f64),
    Truth(bool),
    Text(String),
    List(Vec<Value>),
}

/// Reads values in order.
struct Reader<R> {
    input: R,
    /// Bytes from here to the end of the file: no length can be more.
    bytes_left: u64,
}

impl<R: Read> Reader<R> {
    fn vocabulary(&mut self) -> io::Result<GgufVocabulary> {
        if self.bytes::<4>()? != *b"GGUF" {
            return Err(malformed("it does not begin as a GGUF file"));
        }
        let version = u32::from_le_bytes(self.bytes()?);
        if !(2..=3).contains(&version) {
            return Err(malformed(format!("GGUF version {version} is not known, only 2 and 3")));
        }
        let _num_tensors = self.length()?;
        let num_pairs = self.length()?;
        let mut vocabulary = GgufVocabulary::default();
        for _ in 0..num_pairs {
            let key = self.text()?;
            let kind = u32::from_le_bytes(self.bytes()?);
            let value = self.value(kind)?;
            if let Some(name) = key.strip_prefix(PREFIX) {
                keep(&mut vocabulary, name, value)
                    .ok_or_else(|| malformed(format!("{key} is of a wrong type")))?;
            }
        }
        if vocabulary.tokens.is_empty() {
            return Err(malformed("it has no vocabulary, as tokenizer.ggml.tokens"));
        }
        Ok(vocabulary)
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(too_short)?;
        self.bytes_left = self.bytes_left.saturating_sub(N as u64);
        Ok(bytes)
    }

    /// Reads a length; everything counted takes a byte at least.
    fn length(&mut self) -> io::Result<u64> {
        let length = u64::from_le_bytes(self.bytes()?);
        if length > self.bytes_left {
            return Err(malformed(format!("a length of {length} is more than the file has")));
        }
        Ok(length)
    }

    fn text(&mut self) -> io::Result<String> {
        let length = self.length()?;
        let mut bytes = Vec::new();
        self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(too_short(ErrorKind::UnexpectedEof.into()));
        }
        self.bytes_left = self.bytes_left.saturating_sub(length);
        String::from_utf8(bytes).map_err(|_| malformed("a text in it is no UTF-8"))
    }

    /// Reads a value of a kind, by the numbers of the specification.
    fn value(&mut self, kind: u32) -> io::Result<Value> {
        if kind == 9 {
            let kind = u32::from_le_bytes(self.bytes()?);
            let length = self.length()?;
            if kind == 9 {
                return Err(malformed("a list of lists in it is not known"));
            }
            let items: io::Result<Vec<Value>> = (0..length).map(|_| self.single(kind)).collect();
            return Ok(Value::List(items?));
        }
        self.single(kind)
    }

    /// Reads a value that is no list.
    fn single(&mut self, kind: u32) -> io::Result<Value> {
        Ok(match kind {
            0 => Value::Whole(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Whole(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Whole(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Whole(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Whole(u32::from_le_bytes(self.bytes()?).into()),
            5 => Value::Whole(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Real(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Truth(self.bytes::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            10 | 11 => Value::Whole(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Real(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(malformed(format!("a value of kind {kind} is not known"))),
        })
    }
}

/// Keeps one key of the tokenizer; `None` when its type is wrong.
fn keep(vocabulary: &mut GgufVocabulary, name: &str, value: Value) -> Option<()> {
    match name {
        "model" => vocabulary.model = value.text()?,
        "pre" => vocabulary.pre = Some(value.text()?),
        "tokens" => vocabulary.tokens = value.list(Value::text)?,
        "merges" => vocabulary.merges = value.list(Value::text)?,
        "scores" => vocabulary.scores = value.list(Value::real)?,
        "token_type" => vocabulary.token_types = value.list(Value::whole)?,
        "bos_token_id" => vocabulary.bos = Some(value.whole()?),
        "eos_token_id" => vocabulary.eos = Some(value.whole()?),
        "eot_token_id" => vocabulary.eot = Some(value.whole()?),
        "unknown_token_id" => vocabulary.unk = Some(value.whole()?),
        "padding_token_id" => vocabulary.pad = Some(value.whole()?),
        "add_bos_token" => vocabulary.add_bos = Some(value.truth()?),
        "add_space_prefix" => vocabulary.add_space_prefix = Some(value.truth()?),
        _ => {}
    }
    Some(())
}

impl Value {
    fn text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn truth(self) -> Option<bool> {
        if let Self::Truth(truth) = self { Some(truth) } else { None }
    }

    fn whole<T: TryFrom<i64>>(self) -> Option<T> {
        if let Self::Whole(number) = self { number.try_into().ok() } else { None }
    }

    #[expect(clippy::cast_possible_truncation, reason = "scores are written as f32")]
    fn real(self) -> Option<f32> {
        if let Self::Real(number) = self { Some(number as f32) } else { None }
    }

    fn list<T>(self, item: impl Fn(Self) -> Option<T>) -> Option<Vec<T>> {
        if let Self::List(items) = self { items.into_iter().map(item).collect() } else { None }
    }
}

fn malformed(message: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message.into())
}

fn too_short(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::UnexpectedEof {
        return malformed("it ends before its metadata does");
    }
    error
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [&text(key), kind.to_le_bytes().as_slice(), value].concat()
    }

    fn texts(items: &[&str]) -> Vec<u8> {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend((items.len() as u64).to_le_bytes());
        bytes.extend(items.iter().flat_map(|item| text(item)));
        bytes
    }

    /// A GPT-2-like vocabulary: the printable ASCII bytes and a space, and the merges given.
    pub(in crate::prompts) fn small_file(merges: &[&str]) -> Vec<u8> {
        let mut tokens: Vec<String> = (0..=255_u32)
            .map(|byte| {
                // GPT-2 moves the bytes that do not print to the characters from U+0100 on.
                let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
                let num_before = (0..byte).filter(|&lower| !printable(lower)).count();
                let shifted = || 256 + u32::try_from(num_before).unwrap();
                let code = if printable(byte) { byte } else { shifted() };
                char::from_u32(code).unwrap().to_string()
            })
            .collect();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let pairs = [
            pair("general.alignment", 4, &32_u32.to_le_bytes()),
            pair("tokenizer.ggml.model", 8, &text("gpt2")),
            pair("tokenizer.ggml.pre", 8, &text("smollm")),
            pair("tokenizer.ggml.tokens", 9, &texts(&tokens)),
            pair("tokenizer.ggml.merges", 9, &texts(merges)),
            pair("tokenizer.ggml.bos_token_id", 4, &33_u32.to_le_bytes()),
            pair("tokenizer.ggml.add_bos_token", 7, &[1]),
        ];
        let mut file = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &[0; 8]].concat();
        file.extend((pairs.len() as u64).to_le_bytes());
        file.extend(pairs.concat());
        file
    }

    fn parse(bytes: &[u8]) -> io::Result<GgufVocabulary> {
        Reader { input: bytes, bytes_left: bytes.len() as u64 }.vocabulary()
    }

    #[test]
    fn the_keys_of_the_tokenizer_are_kept() {
        let vocabulary = parse(&small_file(&["o n"])).unwrap();
        assert_eq!(
            (vocabulary.model.as_str(), vocabulary.pre.as_deref()),
            ("gpt2", Some("smollm"))
        );
        assert_eq!((vocabulary.tokens.len(), vocabulary.tokens[256].as_str()), (257, "on"));
        assert_eq!((vocabulary.bos, vocabulary.add_bos), (Some(33), Some(true)));
        assert_eq!(vocabulary.merges, ["o n"]);
    }

    #[test]
    fn every_cut_and_damaged_length_is_refused() {
        let whole = small_file(&["o n"]);
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "cut at {end}");
        }
        // Only errors or other vocabularies: no panic, and no memory beyond the file's size.
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = parse(&damaged);
        }
        let mut long = whole;
        long[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(parse(&long).unwrap_err().to_string().contains("more than the file has"));
    }
}
