//! A tokenizer as Hugging Face's `tokenizer.json` holds it.
//!
//! Reads BPE models, byte-level (GPT-2's alphabet) or SentencePiece-like (`▁` for a space, byte
//! fallback). The parts are the `tokenizers` crate's own; this module takes them apart, so that the
//! crate never matches special tokens, and checks what the crate takes for granted.

use crate::byte_level::{self, BpeParts, TextPlace};
use crate::gguf_vocabulary::byte_token;
use crate::infill::NamedInfillTokens;
use crate::prompt_prefix;
use crate::text_growth;
use crate::token_matcher::MatchedToken;
use crate::tokenizer::{NamedTokens, SpacePrefix, TextModel, TokenizerParts};
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::{Tokenizer, TokenizerConfig, TokenizerError};
use mini_infer_core::{FixedHashMap, TokenId};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::fmt;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

#[derive(Deserialize)]
struct KindOnly {
    model: ModelKind,
}

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type", default)]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerJson {
    model: BpeJson,
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    #[serde(default)]
    normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    post_processor: Option<serde_json::Value>,
    #[serde(default)]
    decoder: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct BpeJson {
    vocab: FixedHashMap<String, u64>,
    merges: Vec<MergeJson>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
struct AddedJson {
    id: u64,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

/// A merge is written as `"left right"`, or as `["left", "right"]`.
struct MergeJson(String, String);

impl<'de> Deserialize<'de> for MergeJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = MergeJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, separated by a space or as a list")
            }

            fn visit_str<E: de::Error>(self, merge: &str) -> Result<MergeJson, E> {
                let (left, right) = merge
                    .split_once(' ')
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(merge), &self))?;
                Ok(MergeJson(left.to_owned(), right.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<MergeJson, A::Error> {
                let too_short = |len| de::Error::invalid_length(len, &"two tokens");
                let left = pair.next_element()?.ok_or_else(|| too_short(0))?;
                let right = pair.next_element()?.ok_or_else(|| too_short(1))?;
                match pair.next_element::<de::IgnoredAny>()? {
                    None => Ok(MergeJson(left, right)),
                    Some(_) => Err(too_short(3)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl Tokenizer {
    /// Builds the tokenizer from the bytes of a `tokenizer.json`, and what its
    /// `tokenizer_config.json` says if there is one.
    ///
    /// # Errors
    /// Returns [`TokenizerError`] when the file contradicts itself, or its model is no BPE.
    pub fn from_tokenizer_json(
        json: &[u8],
        config: Option<&TokenizerConfig>,
    ) -> Result<Self, TokenizerError> {
        let unreadable = |source| TokenizerError::Json { file: "tokenizer.json", source };
        let kind: KindOnly = serde_json::from_slice(json).map_err(unreadable)?;
        if let Some(got) = kind.model.kind.filter(|kind| kind != "BPE") {
            return Err(TokenizerError::UnsupportedModel { got, supported: &["BPE"] });
        }
        let file: TokenizerJson = serde_json::from_slice(json).map_err(unreadable)?;
        let decoder = DecoderKind::of(file.decoder.as_ref(), file.pre_tokenizer.as_ref())?;
        let tokens = Tokens::collect(&file, config, decoder)?;
        let named = tokens.named(config);
        let prefix = match config.and_then(|config| config.add_bos_token) {
            Some(add_bos) => named.bos.filter(|_| add_bos).into_iter().collect(),
            None => prompt_prefix::read(file.post_processor.as_ref(), tokens.table.len())?,
        };
        text_growth::check(file.normalizer.as_ref())?;
        let matched = matched_tokens(&file, &tokens.table);
        let parts = BpeParts {
            bpe: build_bpe(file.model, &tokens)?,
            later_pre_tokenizer: later_pre_tokenizer(file.pre_tokenizer.as_ref()),
            normalizer: file.normalizer,
            pre_tokenizer: file.pre_tokenizer,
        };
        let model = match decoder {
            DecoderKind::ByteLevel => TextModel::ByteLevel(Box::new(parts)),
            DecoderKind::Metaspace => {
                let space_prefix = space_prefix(&parts)?;
                TextModel::Metaspace(Box::new(parts), space_prefix)
            }
        };
        Tokenizer::from_parts(TokenizerParts {
            vocabulary: tokens.table,
            model,
            matched,
            prefix,
            named,
            end_of_turn: None,
            infill: NamedInfillTokens::default(),
        })
    }
}

/// How tokens turn into bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderKind {
    /// Over GPT-2's alphabet.
    ByteLevel,
    /// `▁` is a space, `<0xXX>` a byte.
    Metaspace,
}

impl DecoderKind {
    /// Reads the kind from the decoder's description; its other steps (replace, fuse, strip) say
    /// the same about the space again.
    fn of(
        decoder: Option<&serde_json::Value>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
    ) -> Result<Self, TokenizerError> {
        let mentions = |name: &str| {
            decoder.is_some_and(|decoder| {
                let step_is = |step: &serde_json::Value| step["type"] == name;
                step_is(decoder)
                    || decoder["decoders"].as_array().is_some_and(|steps| steps.iter().any(step_is))
            })
        };
        if mentions("ByteLevel") || matches!(pre_tokenizer, Some(PreTokenizerWrapper::ByteLevel(_)))
        {
            Ok(Self::ByteLevel)
        } else if mentions("Metaspace") || mentions("ByteFallback") {
            Ok(Self::Metaspace)
        } else {
            let got = decoder.map_or("nothing".to_owned(), ToString::to_string);
            Err(TokenizerError::UnsupportedSetting { setting: "decoder", got })
        }
    }
}

/// All tokens of the file by id and by text.
struct Tokens {
    table: Vocabulary,
    ids: FixedHashMap<String, TokenId>,
}

impl Tokens {
    fn collect(
        file: &TokenizerJson,
        config: Option<&TokenizerConfig>,
        decoder: DecoderKind,
    ) -> Result<Self, TokenizerError> {
        // Ids may have holes, but no more than there are tokens: a single huge id would otherwise
        // make a huge table.
        let num_tokens = file.model.vocab.len() + file.added_tokens.len();
        let limit = num_tokens.saturating_mul(2);
        let mut by_id: Vec<Option<(&str, TokenKind)>> = Vec::new();
        let mut ids = FixedHashMap::default();
        let unk = file.model.unk_token.as_deref();
        let unk = unk.or(config.and_then(|config| config.unk_token.as_deref()));
        let trained = file.model.vocab.iter().map(|(text, id)| (text, *id, TokenKind::Normal));
        let added = file.added_tokens.iter().map(|token| {
            let kind = if Some(token.content.as_str()) == unk {
                TokenKind::Unknown
            } else if token.special {
                TokenKind::Control
            } else {
                TokenKind::Added
            };
            (&token.content, token.id, kind)
        });
        for (text, wide_id, kind) in trained.chain(added) {
            let id = TokenId::try_from(wide_id).ok().filter(|id| (*id as usize) < limit);
            let id = id.ok_or_else(|| TokenizerError::IdOutOfRange {
                role: text.clone(),
                id: wide_id,
                vocab_size: num_tokens,
            })?;
            let index = id as usize;
            if by_id.len() <= index {
                by_id.resize(index + 1, None);
            }
            if let Some((earlier, _)) = by_id[index].filter(|(earlier, _)| earlier != text) {
                let role = format!("{earlier} and {text}");
                return Err(TokenizerError::IdOutOfRange {
                    role,
                    id: wide_id,
                    vocab_size: num_tokens,
                });
            }
            by_id[index] = Some((text, kind));
            if let Some(first) = ids.insert(text.clone(), id).filter(|first| *first != id) {
                let text = text.clone();
                return Err(TokenizerError::DuplicateToken { text, first, second: id });
            }
        }
        if by_id.is_empty() {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let mut table = Vocabulary::default();
        for token in by_id {
            let (text, kind) = token.unwrap_or(("", TokenKind::Unused));
            table.push(&output_bytes(text, kind, decoder, file.model.byte_fallback), kind);
        }
        Ok(Self { table, ids })
    }

    fn named(&self, config: Option<&TokenizerConfig>) -> NamedTokens {
        let Some(config) = config else { return NamedTokens::default() };
        let id = |text: &Option<String>| self.ids.get(text.as_deref()?).copied();
        NamedTokens {
            bos: id(&config.bos_token),
            eos: id(&config.eos_token),
            unk: id(&config.unk_token),
            pad: id(&config.pad_token),
        }
    }
}

/// Returns what a token adds to the output. Added tokens such as `▁▁` are spaces too, as in the
/// reference's decoder.
fn output_bytes(text: &str, kind: TokenKind, decoder: DecoderKind, byte_fallback: bool) -> Vec<u8> {
    match (kind, decoder) {
        (TokenKind::Normal, DecoderKind::ByteLevel) => byte_level::bytes_of(text),
        (TokenKind::Normal | TokenKind::Added, DecoderKind::Metaspace) => {
            match byte_token(text).filter(|_| byte_fallback) {
                Some(byte) => vec![byte],
                None => text.replace('▁', " ").into_bytes(),
            }
        }
        _ => text.as_bytes().to_vec(),
    }
}

fn matched_tokens(file: &TokenizerJson, table: &Vocabulary) -> Vec<MatchedToken> {
    let matched = |token: &AddedJson| {
        let id = TokenId::try_from(token.id).ok()?;
        let wanted = matches!(table.kind(id)?, TokenKind::Control | TokenKind::Added);
        wanted.then(|| MatchedToken {
            id,
            text: token.content.clone(),
            strip_left: token.lstrip,
            strip_right: token.rstrip,
            whole_word: token.single_word,
        })
    };
    file.added_tokens.iter().filter_map(matched).collect()
}

fn build_bpe(model: BpeJson, tokens: &Tokens) -> Result<BPE, TokenizerError> {
    let refused = |setting, got| Err(TokenizerError::UnsupportedSetting { setting, got });
    if let Some(got) = model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty()) {
        return refused("continuing_subword_prefix", got);
    }
    if let Some(got) = model.end_of_word_suffix.filter(|suffix| !suffix.is_empty()) {
        return refused("end_of_word_suffix", got);
    }
    if let Some(got) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return refused("dropout", got.to_string());
    }
    // Control tokens are left out of the text model, so no text can encode to them.
    let is_text = |id: TokenId| tokens.table.kind(id) != Some(TokenKind::Control);
    let mut merges = Vec::with_capacity(model.merges.len());
    for (index, MergeJson(left, right)) in model.merges.into_iter().enumerate() {
        let pair = (left, right);
        let known = |token: &str| model.vocab.contains_key(token);
        byte_level::check_merge(index, &pair, known)?;
        let union = format!("{}{}", pair.0, pair.1);
        let of_text = |token: &String| tokens.ids.get(token).is_some_and(|id| is_text(*id));
        if [&pair.0, &pair.1, &union].into_iter().all(of_text) {
            merges.push(pair);
        }
    }
    let vocab: Vocab = model
        .vocab
        .into_keys()
        .filter_map(|text| tokens.ids.get(&text).map(|id| (text, *id)))
        .filter(|(_, id)| is_text(*id))
        .collect();
    let mut builder = BPE::builder()
        .fuse_unk(model.fuse_unk)
        .byte_fallback(model.byte_fallback)
        .ignore_merges(model.ignore_merges);
    if let Some(unk) = model.unk_token.filter(|unk| vocab.contains_key(unk)) {
        builder = builder.unk_token(unk);
    }
    let built = builder.vocab_and_merges(vocab, merges).build();
    built.map_err(|source| TokenizerError::Build { source })
}

/// Returns the pre-tokenizer for text after the start, if it must not begin that with a space.
fn later_pre_tokenizer(first: Option<&PreTokenizerWrapper>) -> Option<PreTokenizerWrapper> {
    let Some(PreTokenizerWrapper::Metaspace(metaspace)) = first else { return None };
    if metaspace.get_prepend_scheme() != PrependScheme::First {
        return None;
    }
    let mut later = metaspace.clone();
    later.set_prepend_scheme(PrependScheme::Never);
    Some(PreTokenizerWrapper::Metaspace(later))
}

/// Finds out whether texts begin with a space that is not their own, by encoding a letter.
fn space_prefix(parts: &BpeParts) -> Result<SpacePrefix, TokenizerError> {
    let words = parts
        .words("a", TextPlace::Start)
        .map_err(|error| TokenizerError::Build { source: error.source })?;
    let begins = words.first().is_some_and(|word| word.starts_with('▁'));
    Ok(if begins { SpacePrefix::Added } else { SpacePrefix::Absent })
}
