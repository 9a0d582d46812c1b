//! One choice's output: its text, told apart into answer, reasoning and calls of tools.
//!
//! Stop strings are looked for in the text as the model writes it, markup included; the parser sees
//! what they let through, the flush at the end too. Log probabilities of tokens whose text the
//! parser takes for markup go along with the next piece.

use crate::choice_text::{ChoiceText, Piece, PieceKind};
use crate::token_text::TokenText;
use crate::wire::shared::WireFinishReason;
use crate::wire::tools::{CallLimit, Tools};
use mini_infer_core::{TokenId, TokenLogprobs};
use mini_infer_text::{
    OutputEvent, OutputFormat, OutputHead, OutputParser, ReasoningStart, StopStatus,
};

/// How outputs are read.
#[derive(Clone)]
pub(crate) struct OutputReading {
    /// A parser at the beginning of an output.
    pub(crate) parser: OutputParser,
    /// How many calls an output may have.
    pub(crate) call_limit: CallLimit,
}

impl OutputReading {
    /// Returns how the outputs of a chat are read, `None` where there is nothing to look for.
    pub(crate) fn new(
        format: &OutputFormat,
        tools: Tools,
        reasoning: ReasoningStart,
    ) -> Option<Self> {
        if tools.names.is_empty() && format.reasoning().is_none() {
            return None;
        }
        let call_limit = tools.call_limit;
        let parser = OutputParser::new(format, tools.callable(), Some(reasoning));
        Some(Self { parser, call_limit })
    }

    /// Returns how outputs are read that were held to be calls with one of these heads, or text.
    pub(crate) fn told_by_heads(self, heads: &[OutputHead]) -> Self {
        Self { parser: self.parser.told_by_heads(heads.to_vec()), ..self }
    }
}

/// Whether an output goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStatus {
    /// More may come.
    Going,
    /// A stop string or the last call that it may have ended it.
    Ended,
}

/// Turns one choice's tokens into pieces as they come.
pub(crate) struct ChoiceOutput {
    text: ChoiceText,
    reading: Option<OutputReading>,
    /// Tokens whose text no piece holds.
    waiting: Vec<TokenText>,
    num_reasoning_tokens: u32,
    num_calls: usize,
    has_all_calls: bool,
    /// Index of the stop string that ended the text.
    stop_string: Option<usize>,
}

impl ChoiceOutput {
    /// Starts at the first token of an output.
    pub(crate) fn new(text: ChoiceText, reading: Option<OutputReading>) -> Self {
        Self {
            text,
            reading,
            waiting: Vec::new(),
            num_reasoning_tokens: 0,
            num_calls: 0,
            has_all_calls: false,
            stop_string: None,
        }
    }

    /// Takes the next token; after [`OutputStatus::Ended`] no more may come.
    pub(crate) fn push(
        &mut self,
        token: TokenId,
        logprobs: Option<&TokenLogprobs>,
    ) -> (Vec<Piece>, OutputStatus) {
        let Some(reading) = &mut self.reading else {
            let (piece, status) = self.text.push(token, logprobs);
            return (vec![piece], note_stop(&mut self.stop_string, status));
        };
        let was_reasoning = reading.parser.is_in_reasoning();
        let (events, tokens, status) = if reading.parser.is_marker(token) {
            let piece = self.text.push_marker(token, logprobs);
            let mut events = reading.parser.push(&piece.text);
            events.extend(reading.parser.push_marker(token));
            (events, piece.tokens, OutputStatus::Going)
        } else {
            let (piece, status) = self.text.push(token, logprobs);
            let mut events = reading.parser.push(&piece.text);
            if status != StopStatus::Going {
                events.extend(reading.parser.finish());
            }
            (events, piece.tokens, note_stop(&mut self.stop_string, status))
        };
        if was_reasoning || reading.parser.is_in_reasoning() {
            self.num_reasoning_tokens += 1;
        }
        let pieces = self.pieces(events, tokens);
        (pieces, if self.has_all_calls { OutputStatus::Ended } else { status })
    }

    /// Gives out what waits, when no token follows.
    pub(crate) fn finish(&mut self) -> (Vec<Piece>, OutputStatus) {
        let (piece, status) = self.text.finish();
        let status = note_stop(&mut self.stop_string, status);
        let Some(reading) = &mut self.reading else { return (vec![piece], status) };
        let mut events = reading.parser.push(&piece.text);
        events.extend(reading.parser.finish());
        let mut pieces = self.pieces(events, piece.tokens);
        if !self.waiting.is_empty() {
            let tokens = std::mem::take(&mut self.waiting);
            pieces.push(Piece { tokens, ..Piece::default() });
        }
        (pieces, if self.has_all_calls { OutputStatus::Ended } else { status })
    }

    /// Returns why the choice ended: by its calls, if it has any and nothing cut it short.
    pub(crate) fn finish_reason(&self, reason: WireFinishReason) -> WireFinishReason {
        match reason {
            WireFinishReason::Stop if self.num_calls > 0 => WireFinishReason::ToolCalls,
            WireFinishReason::Stop | WireFinishReason::Length | WireFinishReason::ToolCalls => {
                reason
            }
        }
    }

    /// Returns the index of the stop string that ended the choice.
    pub(crate) fn stop_string(&self) -> Option<usize> {
        self.stop_string
    }

    /// Returns the number of tokens inside the reasoning, its markers included.
    pub(crate) fn num_reasoning_tokens(&self) -> u32 {
        self.num_reasoning_tokens
    }

    fn pieces(&mut self, events: Vec<OutputEvent>, tokens: Vec<TokenText>) -> Vec<Piece> {
        self.waiting.extend(tokens);
        let limit = self.reading.as_ref().map(|reading| reading.call_limit);
        let mut pieces = Vec::with_capacity(events.len());
        for event in events {
            if self.has_all_calls {
                break;
            }
            let (kind, text) = match event {
                OutputEvent::Content(text) => (PieceKind::Content, text),
                OutputEvent::Reasoning(text) => (PieceKind::Reasoning, text),
                // The first one broke off, so its end has not been told.
                OutputEvent::CallBegun { .. }
                    if limit == Some(CallLimit::One) && self.num_calls == 1 =>
                {
                    self.has_all_calls = true;
                    continue;
                }
                OutputEvent::CallBegun { index, name } => {
                    self.num_calls += 1;
                    (PieceKind::CallBegun { index, name }, String::new())
                }
                OutputEvent::Arguments { index, text } => (PieceKind::Arguments { index }, text),
                OutputEvent::CallEnded { .. } => {
                    self.has_all_calls = limit == Some(CallLimit::One);
                    continue;
                }
            };
            let tokens = std::mem::take(&mut self.waiting);
            pieces.push(Piece { kind, text, tokens });
        }
        pieces
    }
}

/// Returns whether the text goes on, and keeps the index of the stop string that ended it.
fn note_stop(stop_string: &mut Option<usize>, status: StopStatus) -> OutputStatus {
    match status {
        StopStatus::Going => OutputStatus::Going,
        StopStatus::Stopped(index) => {
            *stop_string = Some(index);
            OutputStatus::Ended
        }
    }
}
