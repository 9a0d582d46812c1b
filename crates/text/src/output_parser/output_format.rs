//! How a model marks what its output holds: tool calls, reasoning, and the tokens for the markers.

use super::named_call::ARGS;
use super::{ReasoningFormat, ReasoningStart, ToolFormat};
use crate::{RenderedPrompt, Tokenizer};
use mini_infer_core::TokenId;

/// How a model's output is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    tools: Option<ToolFormat>,
    reasoning: Option<ReasoningFormat>,
    /// Markers that are control tokens.
    markers: Vec<(TokenId, &'static str)>,
}

impl OutputFormat {
    /// Puts a format together; `None` leaves that part of the output as text.
    #[must_use]
    pub fn new(
        tools: Option<ToolFormat>,
        reasoning: Option<ReasoningFormat>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let of_tools = tools.into_iter().flat_map(ToolFormat::markers);
        let of_reasoning = reasoning.into_iter().flat_map(|f| [f.start(), f.end()]);
        let token = |marker| Some((tokenizer.control_token(marker)?, marker));
        let markers = of_tools.chain(of_reasoning).filter_map(token).collect();
        Self { tools, reasoning, markers }
    }

    /// Returns how tool calls are written.
    #[must_use]
    pub fn tools(&self) -> Option<ToolFormat> {
        self.tools
    }

    /// Returns how reasoning is marked.
    #[must_use]
    pub fn reasoning(&self) -> Option<ReasoningFormat> {
        self.reasoning
    }

    /// Tells whether the model's output after `prompt` begins inside reasoning: the template ends
    /// with the marker that begins it. The same characters in a client's text do not count where
    /// they are a token.
    #[must_use]
    pub fn reasoning_start(&self, prompt: &RenderedPrompt) -> ReasoningStart {
        let text = prompt.guarded_text().trim_end();
        match self.reasoning {
            Some(format) if text.ends_with(format.start()) => ReasoningStart::Begun,
            Some(_) | None => ReasoningStart::Open,
        }
    }

    /// Returns the marker that ends the reasoning which an output begins inside of, if it does.
    #[must_use]
    pub fn pending_end(&self, start: ReasoningStart) -> Option<&'static str> {
        let format = self.reasoning.filter(|format| format.begins_inside(start))?;
        Some(format.end())
    }

    /// Returns the control token that a marker is, `None` for one that is text.
    #[must_use]
    pub fn marker_token(&self, marker: &str) -> Option<TokenId> {
        self.markers.iter().find(|(_, text)| *text == marker).map(|(token, _)| *token)
    }

    /// Tells whether newer Mistral models' marker between a call's name and its arguments is a
    /// control token.
    #[must_use]
    pub fn has_arguments_token(&self) -> bool {
        self.markers.iter().any(|(_, marker)| *marker == ARGS)
    }

    /// Returns the markers that are control tokens.
    pub(crate) fn markers(&self) -> &[(TokenId, &'static str)] {
        &self.markers
    }
}
