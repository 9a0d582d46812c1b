//! What can be wrong with a checkpoint's tokenizer.

use mini_infer_core::TokenId;
use std::error::Error;
use std::fmt;

/// A tokenizer that cannot be used; always the checkpoint's fault, or a format we do not know.
#[derive(Debug)]
pub enum TokenizerError {
    /// The vocabulary has no tokens.
    EmptyVocabulary,
    /// The vocabulary has more tokens than ids exist for.
    TooManyTokens {
        /// Number of tokens given.
        got: usize,
    },
    /// A list that must have one entry per token has another length.
    LengthMismatch {
        /// Which list.
        list: &'static str,
        /// Its length.
        got: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// Two ids have the same text, so text has no single encoding.
    DuplicateToken {
        /// The text of both.
        text: String,
        /// The lower id.
        first: TokenId,
        /// The higher id.
        second: TokenId,
    },
    /// An id is not one of the vocabulary's.
    IdOutOfRange {
        /// What the id is for, as `bos` or the token's text.
        role: String,
        /// The id given.
        id: u64,
        /// The number of tokens.
        vocab_size: usize,
    },
    /// A token's score is no finite number.
    ScoreNotFinite {
        /// The token.
        id: TokenId,
        /// Its score.
        score: f32,
    },
    /// A token's type is none that GGUF defines.
    UnknownTokenType {
        /// The token.
        id: TokenId,
        /// Its type.
        got: i32,
    },
    /// The tokenizer's model is of a kind that is not supported.
    UnsupportedModel {
        /// The kind given.
        got: String,
        /// The kinds that work.
        supported: &'static [&'static str],
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not known, or is absent.
    UnknownPreTokenizer {
        /// The name given.
        got: Option<String>,
        /// The names that are known.
        supported: Vec<&'static str>,
    },
    /// A setting of `tokenizer.json` is not supported.
    UnsupportedSetting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        got: String,
    },
    /// A merge is not two tokens separated by a space.
    MalformedMerge {
        /// Position in the list of merges.
        index: usize,
        /// The merge.
        merge: String,
    },
    /// A merge joins or makes a token that does not exist.
    MergeUnknownToken {
        /// Position in the list of merges.
        index: usize,
        /// The token that does not exist.
        token: String,
    },
    /// Control or added tokens are too long to look for in every text.
    AddedTokensTooLong {
        /// Bytes of the longest, or of all together.
        got: usize,
        /// The most there may be.
        limit: usize,
    },
    /// Some text would have no encoding: there is neither a token for each byte nor an unknown one.
    NoFallback {
        /// The first byte without a token.
        missing_byte: u8,
    },
    /// A JSON file could not be read.
    Json {
        /// Which file.
        file: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The `tokenizers` crate refused a part.
    Build {
        /// What it said.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyVocabulary => write!(f, "the tokenizer's vocabulary is empty"),
            Self::TooManyTokens { got } => {
                write!(f, "the tokenizer has {got} tokens, more than 32-bit ids can number")
            }
            Self::LengthMismatch { list, got, expected } => {
                write!(f, "the tokenizer's {list} has {got} entries for {expected} tokens")
            }
            Self::DuplicateToken { text, first, second } => {
                write!(f, "tokens {first} and {second} have the same text {text:?}")
            }
            Self::IdOutOfRange { role, id, vocab_size } => {
                write!(f, "token id {id} ({role:?}) is outside the vocabulary of {vocab_size}")
            }
            Self::ScoreNotFinite { id, score } => write!(f, "token {id} has the score {score}"),
            Self::UnknownTokenType { id, got } => {
                write!(f, "token {id} has the type {got}, expected 1 to 6")
            }
            Self::UnsupportedModel { got, supported } => {
                let supported = supported.join(", ");
                write!(f, "the tokenizer model {got:?} is not supported, only {supported}")
            }
            Self::UnknownPreTokenizer { got: Some(got), supported } => {
                let supported = supported.join(", ");
                write!(f, "the pre-tokenizer {got:?} is not known, only {supported}")
            }
            Self::UnknownPreTokenizer { got: None, supported } => {
                let supported = supported.join(", ");
                write!(
                    f,
                    "the file has no tokenizer.ggml.pre; convert it again with a converter that \
                     writes one of {supported}"
                )
            }
            Self::UnsupportedSetting { setting, got } => {
                write!(f, "tokenizer.json sets {setting} to {got}, which is not supported")
            }
            Self::MalformedMerge { index, merge } => {
                write!(f, "merge {index} is not two tokens with a space between: {merge:?}")
            }
            Self::MergeUnknownToken { index, token } => {
                write!(f, "merge {index} needs the token {token:?}, which does not exist")
            }
            Self::AddedTokensTooLong { got, limit } => {
                write!(f, "control and added tokens of {got} bytes, more than {limit}")
            }
            Self::NoFallback { missing_byte } => write!(
                f,
                "the vocabulary has no token for byte {missing_byte:#04x} and no unknown token"
            ),
            Self::Json { file, source } => write!(f, "{file} cannot be read: {source}"),
            Self::Build { source } => write!(f, "the tokenizer cannot be built: {source}"),
        }
    }
}

impl Error for TokenizerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Json { source, .. } => Some(source),
            Self::Build { source } => Some(source.as_ref()),
            Self::EmptyVocabulary
            | Self::TooManyTokens { .. }
            | Self::LengthMismatch { .. }
            | Self::DuplicateToken { .. }
            | Self::IdOutOfRange { .. }
            | Self::ScoreNotFinite { .. }
            | Self::UnknownTokenType { .. }
            | Self::UnsupportedModel { .. }
            | Self::UnknownPreTokenizer { .. }
            | Self::UnsupportedSetting { .. }
            | Self::MalformedMerge { .. }
            | Self::MergeUnknownToken { .. }
            | Self::AddedTokensTooLong { .. }
            | Self::NoFallback { .. } => None,
        }
    }
}

/// Text that the tokenizer could not encode, such as one that exhausts a regex's step limit.
#[derive(Debug)]
pub struct EncodeError {
    /// What the `tokenizers` crate said.
    pub source: Box<dyn Error + Send + Sync>,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text cannot be tokenised: {}", self.source)
    }
}

impl Error for EncodeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}
