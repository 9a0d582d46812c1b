//! What is told about prompts, and what that may not cost.

use crate::fixture::{Fixture, VOCAB_SIZE, config, prompt, request};
use mini_infer_core::{
    Batch, BeamParams, EngineEvent, Executor, ExecutorError, FinishReason, KvTransfer, ManualClock,
    Pooling, PromptReport, RankedLogprobs, Request, RowForm, SamplingParams,
};
use mini_infer_engine::{EngineConfig, FakeExecutor, SubmitError};
use std::ops::Range;

const SCORES: PromptReport = PromptReport::Logprobs { num_top: 2 };
const MEAN: PromptReport = PromptReport::Embedding(Pooling::Mean);
const LAST: PromptReport = PromptReport::Embedding(Pooling::Last);

/// Asks about the prompt `prompt(of, length)`, and for `max_tokens` tokens after it.
fn asking(report: PromptReport, id: u64, of: u64, length: u64, max_tokens: u32) -> Request {
    Request { report, ..request(id, prompt(of, length), max_tokens) }
}

fn scores<E: Executor>(fixture: &Fixture<E>, id: u64) -> Vec<RankedLogprobs> {
    let told = fixture.events.iter().find_map(|event| {
        let EngineEvent::PromptLogprobs { sequence, logprobs } = event else { return None };
        (sequence.request.0 == id).then(|| logprobs.clone())
    });
    told.unwrap()
}

fn embedding(fixture: &Fixture, id: u64) -> Vec<f32> {
    let told = fixture.events.iter().find_map(|event| {
        let EngineEvent::Embedding { sequence, values } = event else { return None };
        (sequence.request.0 == id).then(|| values.clone())
    });
    told.unwrap()
}

#[test]
fn what_the_cache_holds_is_computed_again_for_rows_and_used_by_others() {
    let mut fixture = Fixture::new(config());
    for (id, report) in (1..).zip([PromptReport::Nothing, SCORES, SCORES, MEAN, LAST]) {
        fixture.submit(asking(report, id, 1, 100, 2));
        fixture.run();
    }
    let hits: Vec<u32> = fixture.ends().iter().map(|(_, _, usage)| usage.num_hit_tokens).collect();
    assert_eq!(hits, [0, 0, 0, 0, 99], "the last row is computed in any case");
    assert_eq!(scores(&fixture, 2).len(), 99);
    assert_eq!(scores(&fixture, 2), scores(&fixture, 3));
    assert_eq!(fixture.output(2, 0), fixture.output(1, 0));
}

#[test]
fn reports_do_not_depend_on_chunks() {
    let reports = |max_batched_tokens| {
        let mut fixture = Fixture::new(EngineConfig { max_batched_tokens, ..config() });
        fixture.submit(asking(SCORES, 1, 1, 100, 0));
        fixture.submit(asking(MEAN, 2, 2, 70, 0));
        fixture.submit(asking(LAST, 3, 2, 70, 0));
        fixture.run();
        (scores(&fixture, 1), embedding(&fixture, 2), embedding(&fixture, 3))
    };
    let whole = reports(300);
    assert_eq!(reports(8), whole);
    assert_eq!(reports(33), whole);
    assert_ne!(whole.1, whole.2);
}

#[test]
fn a_request_without_output_ends_with_its_report_and_may_fill_the_context() {
    let mut fixture = Fixture::new(config());
    for (id, report) in [(1, SCORES), (2, MEAN)] {
        fixture.submit(asking(report, id, id, 512, 0));
    }
    fixture.run();
    for (_, reason, usage) in fixture.ends() {
        assert_eq!((reason, usage.num_output_tokens), (FinishReason::Length, 0));
    }
    assert_eq!((scores(&fixture, 1).len(), fixture.num_tokens(1)), (511, 0));
    assert_eq!(fixture.engine.stats().kv.num_active_blocks, 0);
    let too_long = fixture.engine.submit(asking(SCORES, 3, 3, 513, 0)).unwrap_err();
    assert!(matches!(too_long, SubmitError::PromptTooLong { num_prompt_tokens: 513, .. }));
    fixture.submit(asking(SCORES, 4, 4, 1, 0));
    fixture.run();
    assert_eq!(scores(&fixture, 4), [], "nothing comes before the first token");
}

#[test]
fn the_choices_of_a_request_share_one_report() {
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { n: 3, temperature: 1.0, seed: 5, ..SamplingParams::greedy(4) };
    fixture.submit(Request { sampling, ..asking(SCORES, 1, 1, 60, 0) });
    fixture.run();
    let is_report = |event: &&EngineEvent| matches!(event, EngineEvent::PromptLogprobs { .. });
    assert_eq!(fixture.events.iter().filter(is_report).count(), 1);
    assert!(is_report(&&fixture.events[0]), "it comes before all tokens");
    assert_eq!(fixture.ends().len(), 3);
}

#[test]
fn what_does_not_go_with_a_report_is_refused() {
    let refused = |report, change: &dyn Fn(&mut SamplingParams)| {
        let mut request = asking(report, 1, 1, 9, 4);
        change(&mut request.sampling);
        Fixture::new(config()).engine.submit(request).unwrap_err()
    };
    let no_output = |sampling: &mut SamplingParams| sampling.max_tokens = 0;
    assert_eq!(refused(PromptReport::Nothing, &no_output), SubmitError::NoOutput);
    let two = |sampling: &mut SamplingParams| (sampling.max_tokens, sampling.n) = (0, 2);
    assert_eq!(refused(SCORES, &two), SubmitError::NoOutput);
    let beams = |sampling: &mut SamplingParams| {
        sampling.beam = Some(BeamParams { width: 2, length_penalty: 1.0 });
    };
    assert_eq!(refused(MEAN, &beams), SubmitError::ReportWithBeams);
    let too_many = PromptReport::Logprobs { num_top: 21 };
    assert_eq!(refused(too_many, &|_| {}), SubmitError::TooManyPromptLogprobs { num_top: 21 });
}

/// A device that notes how many rows are read at once, or keeps none.
struct Reader {
    fake: FakeExecutor,
    keeps_rows: bool,
    most_at_once: usize,
}

impl Executor for Reader {
    fn vocab_size(&self) -> usize {
        self.fake.vocab_size()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.fake.forward(batch, logits)
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        self.most_at_once = self.most_at_once.max(rows.len());
        if self.keeps_rows {
            return self.fake.read_kept_rows(rows, form, out);
        }
        Err(ExecutorError { message: "no rows here".to_owned() })
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        self.fake.transfer(transfers);
    }
}

fn reader(vocab_size: usize, keeps_rows: bool) -> Fixture<Reader> {
    let fake = FakeExecutor::new(vocab_size, config().block_size, config().num_blocks);
    let reader = Reader { fake, keeps_rows, most_at_once: 0 };
    Fixture::on(config(), reader, ManualClock::default())
}

#[test]
fn the_logits_that_are_read_at_once_are_bounded() {
    let mut fixture = reader(1 << 20, true);
    fixture.submit(asking(SCORES, 1, 1, 12, 0));
    fixture.run();
    assert_eq!(fixture.engine.executor().most_at_once, 4, "16 MiB of logits");
    assert_eq!(scores(&fixture, 1).len(), 11);
}

#[test]
fn a_row_that_cannot_be_read_ends_its_own_request_only() {
    let mut fixture = reader(VOCAB_SIZE, false);
    fixture.submit(asking(SCORES, 1, 1, 9, 4));
    fixture.submit(request(2, prompt(2, 9), 4));
    fixture.run();
    let ends = fixture.ends();
    let error = FinishReason::Error("the forward pass failed: no rows here".to_owned());
    assert_eq!((ends[0].0, &ends[0].1), (1, &error));
    assert_eq!((ends[1].0, &ends[1].1), (2, &FinishReason::Length));
    assert_eq!((fixture.num_tokens(1), fixture.num_tokens(2)), (0, 4));
}
