//! What sequences were told.

use mini_infer_core::{
    EngineEvent, FinishReason, RankedLogprobs, SequenceId, SequenceUsage, TokenId, TokenLogprobs,
};
use std::collections::BTreeMap;

/// What one sequence was told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Transcript {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
    /// What the request asked about its prompt.
    pub(crate) prompt: Option<PromptFindings>,
    pub(crate) end: Option<(FinishReason, SequenceUsage)>,
}

/// What was found out about a prompt.
#[derive(Debug, PartialEq)]
pub(crate) enum PromptFindings {
    Logprobs(Vec<RankedLogprobs>),
    Embedding(Vec<f32>),
}

/// What all sequences were told.
pub(crate) type Transcripts = BTreeMap<SequenceId, Transcript>;

/// Moves events to the transcripts of their sequences.
pub(crate) fn record(transcripts: &mut Transcripts, events: &mut Vec<EngineEvent>) {
    for event in events.drain(..) {
        match event {
            EngineEvent::PromptLogprobs { sequence, logprobs } => {
                record_prompt(transcripts, sequence, PromptFindings::Logprobs(logprobs));
            }
            EngineEvent::Embedding { sequence, values } => {
                record_prompt(transcripts, sequence, PromptFindings::Embedding(values));
            }
            EngineEvent::Token { sequence, token, logprobs } => {
                let transcript = transcripts.get_mut(&sequence).expect("a submitted sequence");
                assert_eq!(transcript.end, None, "{sequence} grows after its end");
                transcript.tokens.push(token);
                transcript.logprobs.push(logprobs);
            }
            EngineEvent::Finished { sequence, reason, usage } => {
                let transcript = transcripts.get_mut(&sequence).expect("a submitted sequence");
                assert_eq!(transcript.end, None, "{sequence} ends twice");
                transcript.end = Some((reason, usage));
            }
        }
    }
}

fn record_prompt(transcripts: &mut Transcripts, sequence: SequenceId, findings: PromptFindings) {
    let transcript = transcripts.get_mut(&sequence).expect("a submitted sequence");
    assert_eq!((&transcript.prompt, &transcript.end), (&None, &None), "{sequence} is told twice");
    assert!(transcript.tokens.is_empty(), "the prompt of {sequence} is told before its output");
    transcript.prompt = Some(findings);
}
