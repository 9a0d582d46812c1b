//! Text to token ids.
//!
//! A text is first cut at tokens that stand for themselves, then what lies between goes through the
//! text model. Which tokens are cut out is the whole point: in a raw text only pieces that the
//! vocabulary adds for ordinary text (runs of white space, HTML tags); in a rendered chat template
//! also its markup (turn borders, `<think>`), which [`ChatTemplate`](crate::ChatTemplate) keeps
//! apart from the same characters in a client's text. So a client's text never yields a control
//! token.

use crate::byte_level::{BpeParts, TextPlace};
use crate::infill::{InfillTokens, NamedInfillTokens};
use crate::sentence_piece::SentencePieceBpe;
use crate::token_matcher::{MatchedToken, Piece, TokenMatcher};
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::{EncodeError, RenderedPrompt, TokenizerError};
use mini_infer_core::TokenId;
use std::borrow::Cow;
use std::fmt;

/// Turns text into token ids, and knows each token's bytes.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: TextModel,
    /// Added tokens that belong to ordinary text.
    ordinary: TokenMatcher,
    /// Control tokens, and added tokens that look like markup.
    markup: TokenMatcher,
    /// Tokens that begin every prompt: BOS, if the checkpoint asks for it.
    prefix: Vec<TokenId>,
    named: NamedTokens,
    stop_ids: Vec<TokenId>,
    infill: Option<InfillTokens>,
}

/// The text model between two special tokens.
#[derive(Debug)]
pub(crate) enum TextModel {
    /// Byte-level BPE.
    ByteLevel(Box<BpeParts>),
    /// A SentencePiece-like model from `tokenizer.json`; the flag is in [`SpacePrefix`].
    Metaspace(Box<BpeParts>, SpacePrefix),
    /// SentencePiece BPE with scores, from GGUF.
    SentencePiece(SentencePieceBpe),
}

/// Whether detokenised text begins with a space that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePrefix {
    Added,
    Absent,
}

/// Tokens that the checkpoint names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamedTokens {
    pub(crate) bos: Option<TokenId>,
    pub(crate) eos: Option<TokenId>,
    pub(crate) unk: Option<TokenId>,
    pub(crate) pad: Option<TokenId>,
}

/// What the readers of the two formats hand over.
pub(crate) struct TokenizerParts {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) model: TextModel,
    /// All control and added tokens.
    pub(crate) matched: Vec<MatchedToken>,
    pub(crate) prefix: Vec<TokenId>,
    pub(crate) named: NamedTokens,
    /// A token that ends a turn, beside EOS.
    pub(crate) end_of_turn: Option<TokenId>,
    /// The marks of a prompt with a gap that the checkpoint names.
    pub(crate) infill: NamedInfillTokens,
}

/// Control tokens that end a turn or a document in the chat formats in use. A checkpoint's EOS is
/// often only one of those that it was trained to stop with; llama.cpp keeps a list like this.
const END_TOKENS: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
];

impl Tokenizer {
    pub(crate) fn from_parts(mut parts: TokenizerParts) -> Result<Self, TokenizerError> {
        let TokenizerParts { vocabulary, named, .. } = &parts;
        let mut stop_ids: Vec<TokenId> = named.eos.into_iter().chain(parts.end_of_turn).collect();
        for token in &parts.matched {
            let control = vocabulary.kind(token.id) == Some(TokenKind::Control);
            if control && END_TOKENS.contains(&token.text.as_str()) {
                stop_ids.push(token.id);
            }
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let byte_level = matches!(parts.model, TextModel::ByteLevel(_));
        let is_markup = |token: &MatchedToken| {
            parts.vocabulary.kind(token.id) == Some(TokenKind::Control)
                || END_TOKENS.contains(&token.text.as_str())
                || looks_like_markup(&token.text, byte_level)
        };
        let infill = InfillTokens::find(parts.infill, &parts.matched);
        let (markup, ordinary) = parts.matched.drain(..).partition(is_markup);
        Ok(Self {
            ordinary: TokenMatcher::new(ordinary)?,
            markup: TokenMatcher::new(markup)?,
            vocabulary: parts.vocabulary,
            model: parts.model,
            prefix: parts.prefix,
            named: parts.named,
            stop_ids,
            infill,
        })
    }

    /// Returns the ids of a raw prompt: BOS if the checkpoint says so, then the text's.
    ///
    /// Special tokens inside the text stay text.
    ///
    /// # Errors
    /// Returns [`EncodeError`] when the text exhausts a limit of the pre-tokenizer.
    pub fn encode_text(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        let mut ids = self.prefix.clone();
        self.encode_between(text, TextPlace::Start, &mut ids)?;
        Ok(ids)
    }

    /// Returns the ids that begin every raw prompt: BOS if the checkpoint says so.
    #[must_use]
    pub fn prompt_prefix(&self) -> &[TokenId] {
        &self.prefix
    }

    /// Returns the ids of a prompt whose middle the model is to fill, between the text before and
    /// the one after: `None` when the vocabulary has no marks for that.
    ///
    /// Special tokens inside the texts stay text.
    ///
    /// # Errors
    /// Returns [`EncodeError`] when a text exhausts a limit of the pre-tokenizer.
    pub fn encode_infill(
        &self,
        before: &str,
        after: &str,
    ) -> Result<Option<Vec<TokenId>>, EncodeError> {
        let Some(InfillTokens { prefix, suffix, middle, .. }) = self.infill else {
            return Ok(None);
        };
        let mut ids = self.prefix.clone();
        for (mark, text) in [(prefix, before), (suffix, after)] {
            ids.push(mark);
            if !text.is_empty() {
                self.encode_between(text, TextPlace::Later, &mut ids)?;
            }
        }
        ids.push(middle);
        Ok(Some(ids))
    }

    /// Tells whether the vocabulary has marks for prompts with a gap.
    #[must_use]
    pub fn fills_gaps(&self) -> bool {
        self.infill.is_some()
    }

    /// Returns the token that ends what fills a gap, where it is not among those that end every
    /// text.
    #[must_use]
    pub fn infill_end(&self) -> Option<TokenId> {
        self.infill.and_then(|tokens| tokens.end)
    }

    /// Returns the ids of a rendered chat: the template's markup becomes special tokens, a client's
    /// text never does, and BOS comes exactly once.
    ///
    /// # Errors
    /// Returns [`EncodeError`] when the text exhausts a limit of the pre-tokenizer.
    pub fn encode_chat(&self, prompt: &RenderedPrompt) -> Result<Vec<TokenId>, EncodeError> {
        let mut ids = Vec::new();
        let mut place = TextPlace::Start;
        for piece in self.markup.split(prompt.guarded_text()) {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) => {
                    self.encode_between(&prompt.without_guard(text), place, &mut ids)?;
                }
            }
            place = TextPlace::Later;
        }
        if !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }

    /// Appends the ids of text in which no markup is recognised.
    fn encode_between(
        &self,
        text: &str,
        mut place: TextPlace,
        ids: &mut Vec<TokenId>,
    ) -> Result<(), EncodeError> {
        let text = match &self.model {
            TextModel::ByteLevel(_) | TextModel::Metaspace(..) => Cow::Borrowed(text),
            // SentencePiece sees the space before it looks for added tokens.
            TextModel::SentencePiece(model) => model.prefixed(text),
        };
        for piece in self.ordinary.split(&text) {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) => self.encode_piece(text, place, ids)?,
            }
            place = TextPlace::Later;
        }
        Ok(())
    }

    fn encode_piece(
        &self,
        text: &str,
        place: TextPlace,
        ids: &mut Vec<TokenId>,
    ) -> Result<(), EncodeError> {
        match &self.model {
            TextModel::ByteLevel(parts) | TextModel::Metaspace(parts, _) => {
                parts.encode(text, place, ids)
            }
            TextModel::SentencePiece(model) => {
                model.encode(text, ids);
                Ok(())
            }
        }
    }

    /// Returns the text of `ids`, without control tokens; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn detokenize(&self, ids: &[TokenId]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.output_bytes(id));
        }
        let text = String::from_utf8_lossy(&bytes);
        let own = if self.space_prefix() == SpacePrefix::Added {
            text.strip_prefix(' ').unwrap_or(&text)
        } else {
            &text
        };
        own.to_owned()
    }

    /// Returns the number of ids; a model may compute more logits than that.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Returns the token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.named.bos
    }

    /// Returns the token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.named.eos
    }

    /// Returns every token that ends an answer, EOS among them, in ascending order.
    #[must_use]
    pub fn stop_token_ids(&self) -> &[TokenId] {
        &self.stop_ids
    }

    /// Returns the bytes that a token stands for, its own text if it is a control token.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.vocabulary.bytes(id)
    }

    /// Returns whether a token steers the model and is no part of any text.
    #[must_use]
    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocabulary.kind(id) == Some(TokenKind::Control)
    }

    /// Returns whether text is made of this token: it is no control token, no hole of the vocabulary
    /// and no stand-in for what the vocabulary cannot express.
    #[must_use]
    pub fn is_text(&self, id: TokenId) -> bool {
        matches!(self.vocabulary.kind(id), Some(TokenKind::Normal | TokenKind::Added))
    }

    /// Returns the control token with this text.
    pub(crate) fn control_token(&self, text: &str) -> Option<TokenId> {
        let mut tokens = self.markup.tokens().iter();
        tokens.find(|token| token.text == text && self.is_control(token.id)).map(|token| token.id)
    }

    /// Returns what a token adds to the output: nothing if it is a control token, or is none of
    /// the vocabulary's.
    #[must_use]
    pub fn output_bytes(&self, id: TokenId) -> &[u8] {
        if self.is_control(id) { &[] } else { self.vocabulary.bytes(id).unwrap_or(&[]) }
    }

    pub(crate) fn space_prefix(&self) -> SpacePrefix {
        match &self.model {
            TextModel::ByteLevel(_) => SpacePrefix::Absent,
            TextModel::Metaspace(_, space_prefix) => *space_prefix,
            TextModel::SentencePiece(model) => model.space_prefix(),
        }
    }

    /// Returns the tokens that a template's markup is made of.
    pub(crate) fn markup_tokens(&self) -> &[MatchedToken] {
        self.markup.tokens()
    }

    /// Returns the names that templates know and the texts of the tokens behind them.
    pub(crate) fn named_token_texts(&self) -> Vec<(&'static str, String)> {
        let NamedTokens { bos, eos, unk, pad } = self.named;
        [("bos_token", bos), ("eos_token", eos), ("unk_token", unk), ("pad_token", pad)]
            .into_iter()
            .filter_map(|(name, id)| {
                let text = String::from_utf8_lossy(self.vocabulary.bytes(id?)?);
                Some((name, text.into_owned()))
            })
            .collect()
    }
}

impl fmt::Debug for Tokenizer {
    /// Writes a summary: the vocabulary itself would be megabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("prefix", &self.prefix)
            .field("named", &self.named)
            .field("stop_ids", &self.stop_ids)
            .finish_non_exhaustive()
    }
}

/// Tells an added token that structures a chat, such as `<tool_call>`, from one that belongs to
/// ordinary text, such as a run of spaces.
///
/// SentencePiece vocabularies add HTML tags to ordinary text, and byte-level ones do not.
fn looks_like_markup(text: &str, byte_level: bool) -> bool {
    let bracketed = (text.starts_with('<') && text.ends_with('>'))
        || (text.starts_with('[') && text.ends_with(']'));
    let tag_name = text.trim_matches(|c| matches!(c, '<' | '>' | '/'));
    let html = text.starts_with('<')
        && tag_name.len() < 12
        && tag_name.chars().all(|c| c.is_ascii_alphanumeric());
    bracketed && text.chars().count() > 2 && (byte_level || !html)
}
