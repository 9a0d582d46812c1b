//! What a chat's answer must be, where its tools and a field about its output meet.
//!
//! Where the model decides, the answer is calls as a whole, in the syntax of its family, or text that
//! follows the field to the letter; what begins as calls do is calls, so nothing that the field asks
//! for is ever read as one, nor the other way round. Reasoning comes before either. Calls that are
//! demanded leave the field nothing to hold, but what cannot be followed is refused all the same.

use crate::output_rule::OutputRule;
use crate::required_calls;
use crate::wire::error::ApiError;
use crate::wire::tools::Tools;
use mini_infer_core::OutputConstraint;
use mini_infer_grammar::{Alternative, Grammars, OutputShape};
use mini_infer_text::{OutputFormat, OutputHead, OutputParser, ReasoningStart};
use std::sync::Arc;

/// A rule that holds a whole answer.
#[derive(Debug)]
pub(crate) enum AnswerRule {
    /// One rule from the first token on.
    Output(OutputRule),
    /// The same, and a rule for text that there will be none of.
    Calls(OutputRule, OutputRule),
    /// Calls or text.
    Either(Box<CallsOrText>),
}

/// The parts of an answer that is calls or text.
#[derive(Debug)]
pub(crate) struct CallsOrText {
    thought: Option<Thought>,
    calls: OutputRule,
    /// What calls begin with, and nothing else.
    heads: Vec<OutputHead>,
    text: OutputRule,
}

/// Reasoning before an answer.
#[derive(Debug)]
struct Thought {
    rule: OutputRule,
    /// What it begins with; `None` where the answer begins inside.
    head: Option<OutputHead>,
}

impl AnswerRule {
    /// Returns the rule of an answer with these tools after a prompt, `None` where it may be anything.
    pub(crate) fn new(
        text: Option<OutputRule>,
        tools: &Tools,
        format: &OutputFormat,
        reasoning: ReasoningStart,
    ) -> Option<Self> {
        let demanded = required_calls::rule(tools, format, reasoning);
        match (demanded, text) {
            (Some(calls), Some(text)) => Some(Self::Calls(calls, text)),
            (Some(calls), None) => Some(Self::Output(calls)),
            (None, Some(text)) if tools.names.is_empty() => Some(Self::Output(text)),
            (None, Some(text)) => match required_calls::free_calls(tools, format) {
                Some(shape) => Some(Self::Either(Box::new(CallsOrText {
                    thought: Thought::new(format, reasoning),
                    heads: required_calls::heads(&shape, format),
                    calls: OutputRule::shape(shape, &[]),
                    text,
                }))),
                None => Some(Self::Output(text)),
            },
            (None, None) => None,
        }
    }

    /// Returns what tells calls from text, where the answer is either.
    pub(crate) fn heads(&self) -> Option<&[OutputHead]> {
        match self {
            Self::Either(parts) => Some(&parts.heads),
            Self::Output(_) | Self::Calls(..) => None,
        }
    }

    /// Compiles the rule for the served model.
    ///
    /// # Errors
    /// Refuses what cannot be compiled, naming the place in the schema.
    pub(crate) async fn compile(
        self,
        grammars: &Arc<Grammars>,
    ) -> Result<OutputConstraint, ApiError> {
        match self {
            Self::Output(rule) => rule.compile(grammars).await,
            Self::Calls(calls, text) => {
                text.compile(grammars).await?;
                calls.compile(grammars).await
            }
            Self::Either(parts) => parts.compile(grammars).await,
        }
    }
}

impl CallsOrText {
    async fn compile(self, grammars: &Arc<Grammars>) -> Result<OutputConstraint, ApiError> {
        let Self { thought, calls, heads, text } = self;
        let text = text.compile(grammars).await?;
        let calls = calls.compile(grammars).await?;
        let answer = vec![
            Alternative { constraint: calls, heads, then: None },
            Alternative { constraint: text, heads: Vec::new(), then: None },
        ];
        let Some(Thought { rule, head }) = thought else { return Ok(grammars.one_of(answer)) };
        let constraint = rule.compile(grammars).await?;
        let behind = grammars.one_of(answer.clone());
        let may_be_absent = head.is_some();
        let heads = head.into_iter().collect();
        let mut all = vec![Alternative { constraint, heads, then: Some(behind) }];
        if may_be_absent {
            all.extend(answer);
        }
        Ok(grammars.one_of(all))
    }
}

impl Thought {
    /// Returns the reasoning of a format, `None` for one without.
    fn new(format: &OutputFormat, start: ReasoningStart) -> Option<Self> {
        let reasoning = format.reasoning()?;
        let mut parts = vec![
            OutputShape::TextThrough(reasoning.end().to_owned()),
            OutputShape::Text(OutputParser::GAP.to_owned()),
        ];
        let mut head = None;
        if !reasoning.begins_inside(start) {
            let marker = OutputShape::Marker(reasoning.start().to_owned());
            head = required_calls::heads(&marker, format).pop();
            parts.insert(0, marker);
        }
        let rule = OutputRule::shape(OutputShape::Sequence(parts), &[]);
        Some(Self { rule, head })
    }
}
