//! One token stream being extended.
//!
//! A sequence knows its tokens, prompt and output in one row, and which of them have their KV in
//! its block table. Between steps a running sequence knows more tokens than are computed, and
//! scheduling is letting the second number catch up with the first; only a beam that has its row of
//! logits has caught up, and waits for the other beams of its request. A waiting sequence has an
//! empty block table.

use crate::beam_search::Beam;
use crate::constrained_output::ConstrainedOutput;
use crate::logits_processor::{LogitsProcessor, PromptTokens};
use crate::prompt_rows::PromptRows;
use crate::random::{Draw, RandomStream};
use mini_infer_core::{
    Adapter, ClientId, FinishReason, OutputConstraint, PromptReport, RequestId, SamplingParams,
    SequenceId, SequenceUsage, TokenId,
};
use mini_infer_kv::{BlockTable, SequenceStart};
use std::ops::Range;
use std::sync::Arc;

/// The order in which the sequences of one client get memory: less is first.
///
/// The due time is the arrival moved back or forth by the priority. Every waiting sequence ages at
/// the same rate, so their order never changes and a queue sorted once stays sorted; and only the
/// finitely many requests that arrive before it is due can pass one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Arrival plus priority times the ageing interval, in nanoseconds of the engine's clock.
    pub(crate) due_ns: i128,
    /// Number of the request, in the order of submission.
    pub(crate) arrival: u64,
    /// Index of the sequence in its request.
    pub(crate) index: u32,
    /// Whose the request is; it follows from `arrival`, so it never decides.
    pub(crate) client: ClientId,
}

impl Rank {
    /// Returns the least rank of the same request.
    pub(crate) fn first_of_request(self) -> Self {
        Self { index: 0, ..self }
    }

    /// Returns the greatest rank of the same request.
    pub(crate) fn last_of_request(self) -> Self {
        Self { index: u32::MAX, ..self }
    }

    /// Tells whether both are ranks of one request.
    pub(crate) fn is_of_request(self, other: Self) -> bool {
        self.arrival == other.arrival
    }
}

/// The order in which running sequences of all clients get memory: less is first.
///
/// A client that was given less comes first; of those that were given the same, and while nobody
/// waits that is all, the rank decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Tokens that the client had been given when the step began.
    pub(crate) num_served_tokens: u64,
    /// The order within the client.
    pub(crate) rank: Rank,
}

/// What the sequences of one request share.
#[derive(Debug)]
pub(crate) struct SequenceSource {
    pub(crate) request: RequestId,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) prompt_tokens: PromptTokens,
    pub(crate) sampling: Arc<SamplingParams>,
    /// What the first of them tells about the prompt.
    pub(crate) report: PromptReport,
    pub(crate) first_rank: Rank,
    pub(crate) start: SequenceStart,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) constraint: Option<OutputConstraint>,
}

/// One token stream being extended.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) rank: Rank,
    /// What its client had been given when the step began that it runs in.
    pub(crate) num_served_tokens: u64,
    /// First tokens that count as given to its client, or that it did not have to be given: they
    /// are free when they are computed again.
    pub(crate) num_charged_tokens: u32,
    pub(crate) sampling: Arc<SamplingParams>,
    /// Namespace, lengths and caching, as the KV memory wants to know them.
    pub(crate) start: SequenceStart,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) random: RandomStream,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) num_prompt_tokens: u32,
    pub(crate) table: BlockTable,
    /// Prompt tokens that were not computed at first admission, because the prefix cache or a tier
    /// had them; `None` before it.
    pub(crate) num_hit_tokens: Option<u32>,
    /// Tokens that the step being planned computes.
    pub(crate) num_scheduled_tokens: u32,
    /// Tokens of the suspended chunk, whose slots are held and whose KV is there in some layers.
    pub(crate) num_suspended_tokens: u32,
    /// What changes the sequence's logits; `None` where nothing does.
    pub(crate) processor: Option<Box<LogitsProcessor>>,
    /// The sequence's part in a beam search.
    pub(crate) beam: Option<Box<Beam>>,
    /// What the output must be, followed token by token; never for a beam.
    pub(crate) constrained: Option<Box<ConstrainedOutput>>,
    /// What is found out about the prompt, until it is told.
    pub(crate) prompt_rows: Option<Box<PromptRows>>,
    /// Set by the step that ends the sequence.
    pub(crate) finish: Option<FinishReason>,
}

impl Sequence {
    /// Creates the sequence with this index in its request.
    pub(crate) fn new(source: &SequenceSource, index: u32) -> Self {
        let report = if index == 0 { source.report } else { PromptReport::Nothing };
        Self {
            id: SequenceId { request: source.request, index },
            rank: Rank { index, ..source.first_rank },
            num_served_tokens: 0,
            num_charged_tokens: 0,
            sampling: Arc::clone(&source.sampling),
            start: source.start,
            adapter: source.adapter.clone(),
            random: RandomStream::new(source.sampling.seed, index),
            tokens: source.prompt.clone(),
            num_prompt_tokens: source.start.shape.num_prompt_tokens,
            table: BlockTable::new(source.start),
            num_hit_tokens: None,
            num_scheduled_tokens: 0,
            num_suspended_tokens: 0,
            processor: LogitsProcessor::new(&source.sampling, &source.prompt_tokens),
            beam: source.sampling.beam.map(|_| Box::default()),
            constrained: source.constraint.as_ref().map(|rule| Box::new(rule.into())),
            prompt_rows: PromptRows::new(report, source.start.shape.num_prompt_tokens),
            finish: None,
        }
    }

    /// Returns the beam at `index` that continues this one with `token`; it has no blocks.
    pub(crate) fn continued(&self, index: u32, token: TokenId, beam: Beam) -> Self {
        let mut tokens = Vec::with_capacity(self.tokens.len() + 1);
        tokens.extend_from_slice(&self.tokens);
        tokens.push(token);
        Self {
            id: SequenceId { index, ..self.id },
            rank: Rank { index, ..self.rank },
            num_served_tokens: self.num_served_tokens,
            num_charged_tokens: self.num_charged_tokens,
            sampling: Arc::clone(&self.sampling),
            start: self.start,
            adapter: self.adapter.clone(),
            random: self.random,
            tokens,
            num_prompt_tokens: self.num_prompt_tokens,
            table: BlockTable::new(self.start),
            num_hit_tokens: self.num_hit_tokens,
            num_scheduled_tokens: 0,
            num_suspended_tokens: 0,
            processor: None,
            beam: Some(Box::new(beam)),
            constrained: None,
            prompt_rows: None,
            finish: None,
        }
    }

    /// Returns the place among the running sequences.
    pub(crate) fn place(&self) -> Place {
        Place { num_served_tokens: self.num_served_tokens, rank: self.rank }
    }

    /// Returns how many tokens the step being planned computes that its client was not given
    /// before, and counts them as given.
    pub(crate) fn charge(&mut self) -> u32 {
        let end = self.table.num_computed_tokens() + self.num_scheduled_tokens;
        let num_tokens = end.saturating_sub(self.num_charged_tokens);
        self.num_charged_tokens += num_tokens;
        num_tokens
    }

    /// Returns how many tokens are known.
    pub(crate) fn num_known_tokens(&self) -> u32 {
        count(&self.tokens)
    }

    /// Returns how many known tokens are not computed: 1 in decode, more in prefill, none while a
    /// beam waits for others.
    pub(crate) fn num_pending_tokens(&self) -> u32 {
        self.num_known_tokens() - self.table.num_computed_tokens()
    }

    /// Returns how many tokens were generated.
    pub(crate) fn num_output_tokens(&self) -> u32 {
        self.num_known_tokens() - self.num_prompt_tokens
    }

    /// Returns the tokens generated.
    pub(crate) fn output(&self) -> &[TokenId] {
        &self.tokens[self.num_prompt_tokens as usize..]
    }

    /// Tells whether tokens follow the prompt; else the sequence ends with the report on it.
    pub(crate) fn wants_output(&self) -> bool {
        self.start.shape.max_num_tokens > self.num_prompt_tokens
    }

    /// Returns the known tokens whose KV may come from the prefix cache or a tier, and one more,
    /// which is always computed: those before the first whose row is wanted.
    pub(crate) fn matchable_tokens(&self) -> &[TokenId] {
        let first_wanted = self.prompt_rows.as_ref().and_then(|rows| rows.first_wanted());
        first_wanted.map_or(&self.tokens, |position| &self.tokens[..=position as usize])
    }

    /// Returns the positions whose rows the report on the prompt wants of the next `num_tokens`
    /// tokens that are computed.
    pub(crate) fn kept_positions(&self, num_tokens: u32) -> Range<u32> {
        let start = self.table.num_computed_tokens();
        let rows = self.prompt_rows.as_ref();
        rows.map_or(0..0, |rows| rows.wanted_of(start..start + num_tokens))
    }

    /// Tells whether the sequence is a beam that waits for the other beams of its request.
    pub(crate) fn awaits_beams(&self) -> bool {
        self.beam.as_ref().is_some_and(|beam| beam.row.is_some())
    }

    /// Returns the random numbers that draw the next token.
    pub(crate) fn next_draw(&self) -> Draw {
        self.random.draw_at(self.num_known_tokens())
    }

    /// Appends a generated token and decides whether it was the last.
    #[inline]
    pub(crate) fn extend(&mut self, token: TokenId) {
        self.tokens.push(token);
        if let Some(processor) = &mut self.processor {
            processor.push(token);
        }
        let constrained = self.constrained.as_mut();
        if self.sampling.stop_token_ids.contains(&token) {
            self.finish = Some(FinishReason::Stop);
        } else if let Some(reason) = constrained.and_then(|output| output.accept(token)) {
            self.finish = Some(reason);
        } else if self.num_known_tokens() >= self.start.shape.max_num_tokens {
            self.finish = Some(FinishReason::Length);
        }
    }

    /// Returns what the sequence used so far.
    pub(crate) fn usage(&self) -> SequenceUsage {
        SequenceUsage {
            num_prompt_tokens: self.num_prompt_tokens,
            num_output_tokens: self.num_output_tokens(),
            num_hit_tokens: self.num_hit_tokens.unwrap_or(0),
        }
    }
}

fn count(tokens: &[TokenId]) -> u32 {
    u32::try_from(tokens.len()).expect("a sequence is bounded by max_model_len")
}
