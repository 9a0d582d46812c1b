//! A model's output told apart into its answer, its reasoning and its calls of tools.
//!
//! [`OutputFormat`] says how a model marks them, [`OutputParser`] reads one output as it comes. Both
//! work character by character, so the events joined are the same however the output is cut, and
//! no more is held back than what may still become a marker or a call. Nothing is lost: what is no
//! call after all is given out as text. A marker that is a control token of the vocabulary counts
//! only as that token, so no text that a model repeats becomes a call.
//!
//! Deliberately absent: JSON on the wire, ids of calls, and checking arguments against a schema.

mod emitter;
mod head_gate;
mod json_call;
mod json_string;
mod json_value;
mod known_tools;
mod lookout;
mod markup_call;
mod markup_value;
mod named_call;
mod output_format;
mod python_call;
mod python_value;
mod reasoning;
mod reasoning_format;
mod tool_calls;
mod tool_format;
mod value_types;

pub use head_gate::OutputHead;
pub use known_tools::CallableTool;
pub use output_format::OutputFormat;
pub use reasoning::ReasoningStart;
pub use reasoning_format::ReasoningFormat;
pub use tool_format::ToolFormat;

use head_gate::{HeadGate, Verdict};
use known_tools::KnownTools;
use lookout::Item;
use mini_infer_core::TokenId;
use reasoning::{Part, Reasoning};
use tool_calls::ToolCalls;

/// What an output was found to hold; the pieces of one kind, joined, are its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call has begun.
    CallBegun {
        /// Which call of the output, from 0 on.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// A piece of a call's arguments, which together are a JSON object unless they break off.
    Arguments {
        /// Which call.
        index: usize,
        /// The piece, not empty.
        text: String,
    },
    /// A call is whole.
    CallEnded {
        /// Which call.
        index: usize,
    },
}

/// Reads one output.
#[derive(Clone, Debug)]
pub struct OutputParser {
    reasoning: Option<Reasoning>,
    /// Tells what an answer is, as long as it is not known.
    gate: Option<HeadGate>,
    tools: Option<ToolCalls>,
    markers: Vec<(TokenId, &'static str)>,
    events: Vec<OutputEvent>,
}

impl OutputParser {
    /// What stands between reasoning and an answer to the byte
    /// ([`OutputParser::told_by_heads`]).
    pub const GAP: &str = "\n\n";

    /// Starts to read an output of a request with these tools, which may be none. Without a
    /// reasoning start, reasoning is not looked for.
    #[must_use]
    pub fn new(
        format: &OutputFormat,
        callable: Vec<CallableTool>,
        reasoning: Option<ReasoningStart>,
    ) -> Self {
        let is_control = |marker: &str| format.markers().iter().any(|(_, text)| *text == marker);
        let reasoning = format.reasoning().zip(reasoning);
        let tools = format.tools().filter(|_| !callable.is_empty());
        Self {
            reasoning: reasoning.map(|(format, start)| Reasoning::new(format, start, is_control)),
            gate: None,
            tools: tools.map(|tools| ToolCalls::new(tools, KnownTools(callable), is_control)),
            markers: format.markers().to_vec(),
            events: Vec::new(),
        }
    }

    /// Reads an answer that is calls if it begins with one of `heads`, and else text to its end and to
    /// the byte: reasoning stands before it without white space, and [`OutputParser::GAP`] between.
    #[must_use]
    pub fn told_by_heads(self, heads: Vec<OutputHead>) -> Self {
        let reasoning = self.reasoning.map(|reasoning| reasoning.followed_by(Self::GAP));
        Self { reasoning, gate: Some(HeadGate::new(heads)), ..self }
    }

    /// Tells whether `token` is a control token that counts: it goes to
    /// [`OutputParser::push_marker`] and is no text.
    #[must_use]
    pub fn is_marker(&self, token: TokenId) -> bool {
        self.markers.iter().any(|(marker, _)| *marker == token)
    }

    /// Tells whether reasoning is looked for.
    #[must_use]
    pub fn looks_for_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }

    /// Tells whether the output is inside its reasoning.
    #[must_use]
    pub fn is_in_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Reasoning::is_inside)
    }

    /// Takes the next text and returns what it completes.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        text.chars().for_each(|c| self.take(Item::Char(c)));
        self.take_events()
    }

    /// Takes a control token that counts, and returns what it completes.
    pub fn push_marker(&mut self, token: TokenId) -> Vec<OutputEvent> {
        let marker = self.markers.iter().find(|(marker, _)| *marker == token);
        if let Some((_, marker)) = marker {
            self.take(Item::Marker(marker));
        }
        self.take_events()
    }

    /// Ends the output and returns what was held back.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        if let Some(reasoning) = &mut self.reasoning {
            let mut parts = Vec::new();
            reasoning.finish(&mut |part| parts.push(part));
            parts.into_iter().for_each(|part| self.give(part));
        }
        self.decide(Verdict::Text);
        if let Some(tools) = &mut self.tools {
            tools.finish();
        }
        self.take_events()
    }

    fn take(&mut self, item: Item) {
        let Some(reasoning) = &mut self.reasoning else { return self.give(Part::Answer(item)) };
        let mut parts = Vec::new();
        reasoning.push(item, &mut |part| parts.push(part));
        parts.into_iter().for_each(|part| self.give(part));
    }

    fn give(&mut self, part: Part) {
        match (part, &mut self.tools) {
            (Part::Reasoning(c), _) => match self.events.last_mut() {
                Some(OutputEvent::Reasoning(text)) => text.push(c),
                _ => self.events.push(OutputEvent::Reasoning(c.to_string())),
            },
            (Part::Answer(item), _) if self.gate.is_some() => self.judge(item),
            (Part::Answer(item), Some(tools)) => tools.push(item),
            (Part::Answer(Item::Char(c)), None) => match self.events.last_mut() {
                Some(OutputEvent::Content(text)) => text.push(c),
                _ => self.events.push(OutputEvent::Content(c.to_string())),
            },
            (Part::Answer(Item::Marker(_)), None) => {}
        }
    }

    /// Takes an item of an answer of which it is not known what it is.
    fn judge(&mut self, item: Item) {
        let Some(gate) = &mut self.gate else { return };
        match item {
            Item::Char(c) => {
                if let Some(verdict) = gate.push(c) {
                    self.decide(verdict);
                }
            }
            Item::Marker(text) => {
                let token = self.markers.iter().find(|(_, marker)| *marker == text);
                let verdict = token.map_or(Verdict::Text, |(token, _)| gate.push_token(*token));
                self.decide(verdict);
                self.give(Part::Answer(item));
            }
        }
    }

    /// Gives on what the gate holds back, and all that follows.
    fn decide(&mut self, verdict: Verdict) {
        let Some(gate) = self.gate.take() else { return };
        if verdict == Verdict::Text {
            self.tools = None;
        }
        gate.into_held().chars().for_each(|c| self.give(Part::Answer(Item::Char(c))));
    }

    /// Takes the events: reasoning comes before anything that the tool parser has.
    fn take_events(&mut self) -> Vec<OutputEvent> {
        let mut events = std::mem::take(&mut self.events);
        if let Some(tools) = &mut self.tools {
            events.extend(tools.take_events());
        }
        events
    }
}
