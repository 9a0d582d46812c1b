//! One choice's tokens as text: whole characters, cut at stop strings, with their log
//! probabilities.
//!
//! A token's log probabilities come with the text that holds the token's first byte, so text that
//! waits for the rest of a character or may become a stop string keeps them waiting too, and a
//! stop string that is not kept takes those of its own tokens away. Cost per token: copying its bytes, and one
//! automaton step per byte and stop string.

use crate::sampler_options::TextOptions;
use crate::token_text::TokenText;
use mini_infer_core::{TokenId, TokenLogprobs};
use mini_infer_text::{
    Detokenizer, EmptyStopString, OutputStart, StopStatus, StopStrings, Tokenizer,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a piece of a choice's output is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// Its answer.
    #[default]
    Content,
    /// Its reasoning.
    Reasoning,
    /// A call that has begun; the piece has no text.
    CallBegun { index: usize, name: String },
    /// A call's arguments.
    Arguments { index: usize },
}

impl PieceKind {
    /// Tells whether a piece of this kind goes on with what one of kind `open` began.
    pub(crate) fn continues(&self, open: &Self) -> bool {
        match self {
            Self::Content | Self::Reasoning => self == open,
            Self::CallBegun { .. } => false,
            Self::Arguments { .. } => matches!(open, Self::CallBegun { .. }),
        }
    }
}

/// What a choice's text grew by.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Piece {
    /// What it is part of.
    pub(crate) kind: PieceKind,
    /// Whole characters, possibly none.
    pub(crate) text: String,
    /// The tokens behind the text, when log probabilities were asked for.
    pub(crate) tokens: Vec<TokenText>,
}

impl Piece {
    /// Tells whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        let is_call = matches!(self.kind, PieceKind::CallBegun { .. });
        self.text.is_empty() && self.tokens.is_empty() && !is_call
    }
}

/// What an output's text begins after, ends with and consists of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputText<'a> {
    /// What the output follows.
    pub(crate) start: OutputStart,
    /// Strings that end it.
    pub(crate) stop: &'a [String],
    /// Tokens whose text is not looked at for stop strings.
    pub(crate) num_unwatched_tokens: u32,
    /// How it is written.
    pub(crate) options: TextOptions,
}

/// Turns one choice's tokens into text as they come.
pub(crate) struct ChoiceText {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopStrings,
    /// Tokens to come whose text is not looked at for stop strings.
    num_unwatched_tokens: u32,
    /// Text that the detokenizer gave out so far.
    num_bytes: usize,
    num_chars: usize,
    /// Text that was sent so far.
    num_sent_bytes: usize,
    /// Tokens whose text was not sent yet, with the byte where each starts.
    unsent: VecDeque<(usize, TokenText)>,
}

impl ChoiceText {
    /// Starts at the first token of an output.
    ///
    /// # Errors
    /// Returns [`EmptyStopString`] when one of `stop` is empty.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        output: OutputText<'_>,
    ) -> Result<Self, EmptyStopString> {
        let OutputText { start, stop, num_unwatched_tokens, options } = output;
        let detokenizer = Detokenizer::new(Arc::clone(tokenizer), start);
        Ok(Self {
            tokenizer: Arc::clone(tokenizer),
            detokenizer: detokenizer.with_control_tokens(options.control_tokens),
            stop: StopStrings::new(stop)?.with_stop_text(options.stop_text),
            num_unwatched_tokens,
            num_bytes: 0,
            num_chars: 0,
            num_sent_bytes: 0,
            unsent: VecDeque::new(),
        })
    }

    /// Takes the next token; after [`StopStatus::Stopped`] no more may come.
    pub(crate) fn push(
        &mut self,
        token: TokenId,
        logprobs: Option<&TokenLogprobs>,
    ) -> (Piece, StopStatus) {
        if let Some(logprobs) = logprobs {
            let token = TokenText::new(&self.tokenizer, token, logprobs, self.num_chars);
            self.unsent.push_back((self.num_bytes, token));
        }
        let mut chunk = String::new();
        self.detokenizer.push(token, &mut chunk);
        let mut text = String::new();
        let status = self.look_for_stop(&chunk, &mut text);
        self.num_unwatched_tokens = self.num_unwatched_tokens.saturating_sub(1);
        (self.piece(text), status)
    }

    /// Takes a control token that ends the text before it: gives out what waits.
    pub(crate) fn push_marker(
        &mut self,
        token: TokenId,
        logprobs: Option<&TokenLogprobs>,
    ) -> Piece {
        let mut chunk = String::new();
        self.detokenizer.finish(&mut chunk);
        let mut text = String::new();
        self.num_bytes += chunk.len();
        self.num_chars += chunk.chars().count();
        self.stop.interrupt(&mut text);
        text.push_str(&chunk);
        if let Some(logprobs) = logprobs {
            let token = TokenText::new(&self.tokenizer, token, logprobs, self.num_chars);
            self.unsent.push_back((self.num_bytes, token));
        }
        self.piece(text)
    }

    /// Gives out what waits, when no token follows.
    pub(crate) fn finish(&mut self) -> (Piece, StopStatus) {
        let mut chunk = String::new();
        self.detokenizer.finish(&mut chunk);
        let mut text = String::new();
        let status = self.look_for_stop(&chunk, &mut text);
        if status == StopStatus::Going {
            self.stop.finish(&mut text);
        }
        let mut piece = self.piece(text);
        if status == StopStatus::Going {
            piece.tokens.extend(self.unsent.drain(..).map(|(_, token)| token));
        }
        (piece, status)
    }

    fn look_for_stop(&mut self, chunk: &str, text: &mut String) -> StopStatus {
        self.num_bytes += chunk.len();
        self.num_chars += chunk.chars().count();
        if self.num_unwatched_tokens > 0 {
            text.push_str(chunk);
            return StopStatus::Going;
        }
        self.stop.push(chunk, text)
    }

    fn piece(&mut self, text: String) -> Piece {
        self.num_sent_bytes += text.len();
        let is_sent = |&(start, _): &(usize, TokenText)| start < self.num_sent_bytes;
        let num_sent = self.unsent.iter().take_while(|token| is_sent(token)).count();
        let tokens = self.unsent.drain(..num_sent).map(|(_, token)| token).collect();
        Piece { kind: PieceKind::Content, text, tokens }
    }
}
