//! A tokenizer as a GGUF file's metadata holds it.
//!
//! Plain data: whoever reads the file fills it in, so that this crate never opens one. Building
//! checks every length, id and merge. Source: the GGUF specification's `tokenizer.ggml.*` keys and
//! their defaults in llama.cpp.

use crate::byte_level::{self, BpeParts};
use crate::infill::NamedInfillTokens;
use crate::pre_tokenizer::PreTokenizerRule;
use crate::sentence_piece::SentencePieceBpe;
use crate::token_matcher::MatchedToken;
use crate::tokenizer::{NamedTokens, SpacePrefix, TextModel, TokenizerParts};
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::{Tokenizer, TokenizerError};
use mini_infer_core::{FixedHashMap, TokenId};
use tokenizers::models::bpe::{BPE, Vocab};

/// The `tokenizer.ggml.*` metadata of a GGUF file; each field's doc names its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `pre`: how words are cut; needed by `gpt2`.
    pub pre: Option<String>,
    /// `tokens`: the text of each token, indexed by id.
    pub tokens: Vec<String>,
    /// `scores`: one per token, higher merges first; needed by `llama`.
    pub scores: Vec<f32>,
    /// `token_type`: one per token, or empty if all are normal.
    pub token_types: Vec<i32>,
    /// `merges`: `left right`, first merges first; needed by `gpt2`.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<TokenId>,
    /// `eos_token_id`.
    pub eos: Option<TokenId>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<TokenId>,
    /// `unknown_token_id`.
    pub unk: Option<TokenId>,
    /// `padding_token_id`.
    pub pad: Option<TokenId>,
    /// `fim_pre_token_id`, `fim_suf_token_id` and `fim_mid_token_id`, in older files
    /// `prefix_token_id`, `suffix_token_id` and `middle_token_id`.
    pub infill: NamedInfillTokens,
    /// `add_bos_token`; the default depends on `model` and `pre`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`: `llama` begins texts with a space; true by default.
    pub add_space_prefix: Option<bool>,
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// Returns [`TokenizerError`] when the metadata contradicts itself or names a tokenizer or
    /// pre-tokenizer that is not known.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TokenizerError> {
        check_lengths_and_ids(&vocabulary)?;
        let kinds = token_kinds(&vocabulary)?;
        let (table, model, default_bos) = match vocabulary.model.as_str() {
            "gpt2" => byte_level_model(&vocabulary, &kinds)?,
            "llama" => sentence_piece_model(&vocabulary, &kinds)?,
            _ => {
                return Err(TokenizerError::UnsupportedModel {
                    got: vocabulary.model,
                    supported: &["gpt2", "llama"],
                });
            }
        };
        let matched = matched_tokens(&vocabulary.tokens, &kinds);
        let add_bos = vocabulary.add_bos.unwrap_or(default_bos);
        Tokenizer::from_parts(TokenizerParts {
            vocabulary: table,
            model,
            matched,
            prefix: vocabulary.bos.filter(|_| add_bos).into_iter().collect(),
            named: NamedTokens {
                bos: vocabulary.bos,
                eos: vocabulary.eos,
                unk: vocabulary.unk,
                pad: vocabulary.pad,
            },
            end_of_turn: vocabulary.eot,
            infill: vocabulary.infill,
        })
    }
}

fn check_lengths_and_ids(vocabulary: &GgufVocabulary) -> Result<(), TokenizerError> {
    let vocab_size = vocabulary.tokens.len();
    if vocab_size == 0 {
        return Err(TokenizerError::EmptyVocabulary);
    }
    if TokenId::try_from(vocab_size).is_err() {
        return Err(TokenizerError::TooManyTokens { got: vocab_size });
    }
    let lists = [("token_type", vocabulary.token_types.len()), ("scores", vocabulary.scores.len())];
    for (list, got) in lists {
        if got != 0 && got != vocab_size {
            return Err(TokenizerError::LengthMismatch { list, got, expected: vocab_size });
        }
    }
    let ids = [
        ("bos", vocabulary.bos),
        ("eos", vocabulary.eos),
        ("eot", vocabulary.eot),
        ("unk", vocabulary.unk),
        ("pad", vocabulary.pad),
        ("fim_pre", vocabulary.infill.prefix),
        ("fim_suf", vocabulary.infill.suffix),
        ("fim_mid", vocabulary.infill.middle),
    ];
    for (role, id) in ids {
        if let Some(id) = id.filter(|id| *id as usize >= vocab_size) {
            let (role, id) = (role.to_owned(), u64::from(id));
            return Err(TokenizerError::IdOutOfRange { role, id, vocab_size });
        }
    }
    Ok(())
}

/// GGUF's `token_type` of a single byte.
const BYTE: i32 = 6;

fn token_kinds(vocabulary: &GgufVocabulary) -> Result<Vec<TokenKind>, TokenizerError> {
    if vocabulary.token_types.is_empty() {
        return Ok(vec![TokenKind::Normal; vocabulary.tokens.len()]);
    }
    let kind = |(id, token_type): (TokenId, &i32)| {
        Ok(match *token_type {
            1 | BYTE => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::Added,
            5 => TokenKind::Unused,
            got => return Err(TokenizerError::UnknownTokenType { id, got }),
        })
    };
    (0..).zip(&vocabulary.token_types).map(kind).collect()
}

/// Returns the tokens that stand for themselves, with the white space that they take along.
///
/// GGUF has no place for the latter; Phi-3's tokens, by which its vocabulary is known, take what
/// follows them, as its `tokenizer.json` says and llama.cpp knows by the model's name.
fn matched_tokens(tokens: &[String], kinds: &[TokenKind]) -> Vec<MatchedToken> {
    const OF_PHI3: [&str; 3] = ["<|placeholder1|>", "<|assistant|>", "<|end|>"];
    const STRIP_NOTHING: [&str; 2] = ["<s>", "<|endoftext|>"];
    let stands_for_itself = |kind| matches!(kind, TokenKind::Control | TokenKind::Added);
    let mut matched: Vec<MatchedToken> = (0..)
        .zip(tokens)
        .zip(kinds)
        .filter(|(_, kind)| stands_for_itself(**kind))
        .map(|((id, text), _)| MatchedToken::plain(id, text))
        .collect();
    if OF_PHI3.iter().all(|text| matched.iter().any(|token| token.text == *text)) {
        for token in &mut matched {
            token.strip_right = !STRIP_NOTHING.contains(&token.text.as_str());
        }
    }
    matched
}

type Model = (Vocabulary, TextModel, bool);

fn byte_level_model(
    vocabulary: &GgufVocabulary,
    kinds: &[TokenKind],
) -> Result<Model, TokenizerError> {
    let rule = PreTokenizerRule::find(vocabulary.pre.as_deref())?;
    let mut table = Vocabulary::default();
    // Control tokens and holes are left out of the text model, so no text can encode to them.
    let mut ids = Vocab::with_capacity(kinds.len());
    let mut left_out: FixedHashMap<&str, TokenId> = FixedHashMap::default();
    for ((text, &kind), id) in vocabulary.tokens.iter().zip(kinds).zip(0..) {
        let earlier = match kind {
            TokenKind::Normal | TokenKind::Added => ids.insert(text.clone(), id),
            TokenKind::Unknown | TokenKind::Control | TokenKind::Unused => {
                left_out.insert(text, id)
            }
        };
        if let Some(first) = earlier {
            let text = text.clone();
            return Err(TokenizerError::DuplicateToken { text, first, second: id });
        }
        if kind == TokenKind::Normal {
            table.push(&byte_level::bytes_of(text), kind);
        } else {
            table.push(text.as_bytes(), kind);
        }
    }
    let mut merges = Vec::with_capacity(vocabulary.merges.len());
    for (index, merge) in vocabulary.merges.iter().enumerate() {
        let malformed = || TokenizerError::MalformedMerge { index, merge: merge.clone() };
        let (left, right) = merge.split_once(' ').ok_or_else(malformed)?;
        if left.is_empty() || right.is_empty() || right.contains(' ') {
            return Err(malformed());
        }
        let pair = (left.to_owned(), right.to_owned());
        byte_level::check_merge(index, &pair, |token| {
            ids.contains_key(token) || left_out.contains_key(token)
        })?;
        if [left, right, &format!("{left}{right}")].iter().all(|token| ids.contains_key(*token)) {
            merges.push(pair);
        }
    }
    let bpe = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(rule.whole_words)
        .build()
        .map_err(|source| TokenizerError::Build { source })?;
    let parts = BpeParts {
        normalizer: rule.normalizer(),
        pre_tokenizer: Some(rule.pre_tokenizer()?),
        later_pre_tokenizer: None,
        bpe,
    };
    Ok((table, TextModel::ByteLevel(Box::new(parts)), rule.adds_bos))
}

fn sentence_piece_model(
    vocabulary: &GgufVocabulary,
    kinds: &[TokenKind],
) -> Result<Model, TokenizerError> {
    let vocab_size = vocabulary.tokens.len();
    if vocabulary.scores.len() != vocab_size {
        let got = vocabulary.scores.len();
        return Err(TokenizerError::LengthMismatch { list: "scores", got, expected: vocab_size });
    }
    let mut table = Vocabulary::default();
    let mut builder = SentencePieceBpe::builder(vocab_size);
    let mut seen: FixedHashMap<&str, TokenId> = FixedHashMap::default();
    seen.reserve(vocab_size);
    for ((text, &kind), id) in vocabulary.tokens.iter().zip(kinds).zip(0..) {
        if let Some(first) = seen.insert(text, id) {
            let text = text.clone();
            return Err(TokenizerError::DuplicateToken { text, first, second: id });
        }
        let index = id as usize;
        let score = vocabulary.scores[index];
        if !score.is_finite() {
            return Err(TokenizerError::ScoreNotFinite { id, score });
        }
        let token_type = vocabulary.token_types.get(index);
        match byte_token(text).filter(|_| token_type == Some(&BYTE)) {
            Some(byte) => {
                builder.add_byte(byte, id);
                table.push(&[byte], kind);
            }
            None => {
                if matches!(kind, TokenKind::Normal | TokenKind::Added) {
                    builder.add_piece(text, id, score);
                }
                table.push(text.replace('▁', " ").as_bytes(), kind);
            }
        }
    }
    let space_prefix = match vocabulary.add_space_prefix {
        Some(false) => SpacePrefix::Absent,
        Some(true) | None => SpacePrefix::Added,
    };
    let model = builder.build(vocabulary.unk, space_prefix)?;
    Ok((table, TextModel::SentencePiece(model), true))
}

/// Parses `<0xXX>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
