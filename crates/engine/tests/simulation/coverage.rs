//! What happened, to be sure that the scenarios are worth running.

use crate::runner::Simulation;
use crate::transcript::PromptFindings;
use mini_infer_core::FinishReason;

/// How often things happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    num_steps: u64,
    num_preemptions: u64,
    num_hit_tokens: u64,
    num_hits_inside_blocks: u64,
    num_window_runs: u64,
    num_restored_tokens: u64,
    num_forks: u64,
    num_copied_blocks: u64,
    num_suspended_chunks: u64,
    num_dropped_chunks: u64,
    num_found_by_beams: u64,
    num_found_in_changed_logits: u64,
    num_preemptions_of_changed: u64,
    num_refused: u64,
    num_aborts: u64,
    num_stops: u64,
    num_stop_strings: u64,
    num_lengths: u64,
    num_errors: u64,
    num_completed: u64,
    num_scored_prompts: u64,
    num_embedded_prompts: u64,
    num_preemptions_beside_reports: u64,
}

impl Coverage {
    /// Counts what happened in a run.
    pub(crate) fn of(run: &Simulation<'_>, num_checked: u64) -> Self {
        let stats = run.engine.stats();
        let counters = stats.counters;
        let block_size = run.scenario.config.block_size.tokens();
        let ends = run.transcripts.values().filter_map(|transcript| transcript.end.as_ref());
        let hits = ends.map(|(_, usage)| usage.num_hit_tokens);
        let inside = hits.filter(|num_hit_tokens| !num_hit_tokens.is_multiple_of(block_size));
        let searches = run.accepted.iter().filter(|request| request.sampling.beam.is_some());
        let found = searches.flat_map(|search| {
            run.transcripts.iter().filter(|(id, transcript)| {
                let end = transcript.end.as_ref().map(|(reason, _)| reason);
                let ended = matches!(end, Some(FinishReason::Stop | FinishReason::Length));
                id.request == search.id && ended
            })
        });
        let completed = run.transcripts.iter().filter(|(id, transcript)| {
            let constraint = run.scenario.constraints.get(&id.request);
            constraint.is_some_and(|rule| rule.is_complete(&transcript.tokens))
        });
        let reports = run.transcripts.values().filter_map(|transcript| transcript.prompt.as_ref());
        let (scored, embedded): (Vec<_>, Vec<_>) =
            reports.partition(|findings| matches!(findings, PromptFindings::Logprobs(_)));
        let has_reports = scored.len() + embedded.len() > 0;
        Self {
            num_steps: counters.num_steps,
            num_preemptions: counters.num_preemptions,
            num_hit_tokens: counters.num_hit_tokens,
            num_hits_inside_blocks: inside.count() as u64,
            num_window_runs: u64::from(run.scenario.config.window.is_some()),
            num_restored_tokens: counters.num_restored_tokens,
            num_forks: counters.num_forks,
            num_copied_blocks: stats.kv.num_copied_blocks,
            num_suspended_chunks: counters.num_suspended_chunks,
            num_dropped_chunks: counters.num_dropped_chunks,
            num_found_by_beams: found.count() as u64,
            num_found_in_changed_logits: num_checked,
            num_preemptions_of_changed: if num_checked > 0 { counters.num_preemptions } else { 0 },
            num_refused: run.num_refused as u64,
            num_aborts: counters.finished.num_abort,
            num_stops: counters.finished.num_stop,
            num_stop_strings: run.stopped.len() as u64,
            num_lengths: counters.finished.num_length,
            num_errors: run.num_errors as u64,
            num_completed: completed.count() as u64,
            num_scored_prompts: scored.len() as u64,
            num_embedded_prompts: embedded.len() as u64,
            num_preemptions_beside_reports: if has_reports { counters.num_preemptions } else { 0 },
        }
    }

    fn fields(&mut self) -> [&mut u64; 23] {
        [
            &mut self.num_steps,
            &mut self.num_preemptions,
            &mut self.num_hit_tokens,
            &mut self.num_hits_inside_blocks,
            &mut self.num_window_runs,
            &mut self.num_restored_tokens,
            &mut self.num_forks,
            &mut self.num_copied_blocks,
            &mut self.num_suspended_chunks,
            &mut self.num_dropped_chunks,
            &mut self.num_found_by_beams,
            &mut self.num_found_in_changed_logits,
            &mut self.num_preemptions_of_changed,
            &mut self.num_refused,
            &mut self.num_aborts,
            &mut self.num_stops,
            &mut self.num_stop_strings,
            &mut self.num_lengths,
            &mut self.num_errors,
            &mut self.num_completed,
            &mut self.num_scored_prompts,
            &mut self.num_embedded_prompts,
            &mut self.num_preemptions_beside_reports,
        ]
    }

    /// Adds another run.
    pub(crate) fn add(&mut self, mut other: Self) {
        for (total, more) in self.fields().into_iter().zip(other.fields()) {
            *total += *more;
        }
    }

    /// Fails when something that the simulation is for did not happen.
    pub(crate) fn assert_everything_happened(mut self) {
        let summary = format!("{self:?}");
        let all = self.fields().into_iter().all(|total| *total >= 20);
        assert!(all, "the scenarios miss something: {summary}");
    }
}
