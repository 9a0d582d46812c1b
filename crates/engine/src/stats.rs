//! What the engine tells about itself.

use crate::StepTimes;
use mini_infer_core::FinishReason;
use mini_infer_kv::KvStats;

/// The engine at one moment; O(1) to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences that hold blocks and take part in steps.
    pub num_running_seqs: u32,
    /// Sequences that wait, preempted ones included.
    pub num_waiting_seqs: u32,
    /// Requests of which no sequence has run yet: what `max_queue_len` bounds.
    pub num_waiting_requests: u32,
    /// Prompt tokens that have passed some layers and go on in the next step; their slots are
    /// reserved and not filled.
    pub num_suspended_tokens: u32,
    /// Steps in a row, up to the last one, in which sequences were there and none was scheduled.
    /// Always 0, or the scheduler has a bug.
    pub num_steps_without_progress: u32,
    /// Use of the KV memory.
    pub kv: KvStats,
    /// Totals since the start.
    pub counters: EngineCounters,
}

/// Totals since the engine's start; they never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Steps that ran the executor.
    pub num_steps: u64,
    /// Times that a running sequence lost its blocks to another.
    pub num_preemptions: u64,
    /// Tokens of admitted prompts, once per request.
    pub num_prompt_tokens: u64,
    /// Tokens generated.
    pub num_output_tokens: u64,
    /// Prompt tokens looked up in the prefix cache, once per sequence that was not forked.
    pub num_queried_tokens: u64,
    /// Those of them that were found, in the cache or a tier.
    pub num_hit_tokens: u64,
    /// Tokens whose KV came from a tier, those of preempted sequences included.
    pub num_restored_tokens: u64,
    /// Sequences that began with the blocks of another of their request.
    pub num_forks: u64,
    /// Chunks of prompts that were begun to pass the layers in several steps.
    pub num_suspended_chunks: u64,
    /// Times that one was begun anew, since a sequence in it had lost its blocks or ended.
    pub num_dropped_chunks: u64,
    /// Requests refused because the queue was full.
    pub num_refused_requests: u64,
    /// Ended sequences by reason.
    pub finished: FinishCounters,
}

/// Ended sequences by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinishCounters {
    /// By a stop token or stop string.
    pub num_stop: u64,
    /// By a length limit.
    pub num_length: u64,
    /// By the client.
    pub num_abort: u64,
    /// By the device.
    pub num_error: u64,
}

impl FinishCounters {
    /// Counts one ended sequence.
    pub(crate) fn add(&mut self, reason: &FinishReason) {
        let counter = match reason {
            FinishReason::Stop => &mut self.num_stop,
            FinishReason::Length => &mut self.num_length,
            FinishReason::Abort => &mut self.num_abort,
            FinishReason::Error(_) => &mut self.num_error,
        };
        *counter += 1;
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Sequences in the batch; 0 when there was nothing to run.
    pub num_scheduled_seqs: u32,
    /// Tokens in the batch.
    pub num_scheduled_tokens: u32,
    /// Tokens generated.
    pub num_output_tokens: u32,
    /// Sequences that were admitted or admitted again.
    pub num_admitted: u32,
    /// Sequences that lost their blocks.
    pub num_preempted: u32,
    /// Whether the first sequence that could have been admitted found too little memory.
    pub admission: AdmissionStatus,
    /// Use of the KV memory while the step ran, before ended sequences released theirs.
    pub kv: KvStats,
    /// How long it took.
    pub times: StepTimes,
}

/// What kept waiting sequences from being admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionStatus {
    /// None waits, or there was no budget, no place, or nothing but the work of another to wait for.
    #[default]
    NotRefused,
    /// Too little memory for the next one.
    OutOfMemory,
}
