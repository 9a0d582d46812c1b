//! Decides which sequences compute which tokens in a step, and holds their blocks.
//!
//! There is no prefill or decode phase: a step lets every running sequence's computed tokens catch
//! up with its known ones, under a token budget (as in vLLM's version 1 scheduler). Each decoding
//! sequence is sure of its one token; what is left of the budget goes to prompt chunks of running
//! sequences, then to waiting ones.
//!
//! Everything follows one order, the [`Rank`]. Running sequences are kept in it, so the one to
//! preempt is always the last and has never been scheduled in the step that preempts it. Why no
//! sequence starves: the first in the order never waits for memory, since it can preempt all
//! others and the pool holds any one sequence; the waiting are admitted strictly in order, apart
//! from those that stand back for a running one to compute their prefix. A preempted sequence
//! cannot come back in the same step: it needs all that it gave and one block of that is taken.
//!
//! Invariants: `running` is sorted and no longer than `max_num_seqs`; waiting sequences hold no
//! blocks. A step costs O(running sequences), plus O(log waiting) for each one admitted.

use crate::EngineConfig;
use crate::sequence::{NAMESPACE, Rank, Sequence};
use crate::step_plan::{Admission, ScheduledSequence, StepPlan};
use mini_infer_core::{Batch, KvTransfer, PrefixCaching, TokenId};
use mini_infer_kv::{BlockTable, KvManager, KvMemory, KvStats, PrefixMatch};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Waiting sequences that one step passes over because a running one computes their prefix.
const MAX_STANDING_BACK: usize = 16;

/// Part of the pool that admission leaves alone at least, as in vLLM: 1 / 100.
const WATERMARK_DIVISOR: u32 = 100;

/// The sequences of an engine and their KV memory.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    kv: KvManager,
    running: Vec<Sequence>,
    waiting: BTreeMap<Rank, Sequence>,
    /// Reused between lookups.
    found: PrefixMatch,
    /// What the executor has to move before the planned step.
    transfers: Vec<KvTransfer>,
}

impl Scheduler {
    /// Creates a scheduler without sequences.
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            kv: KvManager::new(config.kv()),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            found: PrefixMatch::default(),
            transfers: Vec::new(),
        }
    }

    /// Adds a sequence that waits for its admission.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.insert(sequence.rank, sequence);
    }

    /// Takes a sequence out, wherever it is, and releases its blocks.
    pub(crate) fn remove(&mut self, rank: Rank) -> Option<Sequence> {
        if let Some(sequence) = self.waiting.remove(&rank) {
            return Some(sequence);
        }
        let index = self.running.binary_search_by_key(&rank, |sequence| sequence.rank).ok()?;
        let mut sequence = self.running.remove(index);
        release_blocks(&mut self.kv, &mut sequence);
        Some(sequence)
    }

    /// Takes out every running sequence that is finished, in order, its blocks released.
    pub(crate) fn remove_finished(&mut self, mut finished: impl FnMut(Sequence)) {
        let kv = &mut self.kv;
        for mut sequence in self.running.extract_if(.., |sequence| sequence.finish.is_some()) {
            release_blocks(kv, &mut sequence);
            finished(sequence);
        }
    }

    /// Returns the running sequences, first in the order first.
    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// Returns the running sequence at `index`.
    pub(crate) fn running_mut(&mut self, index: usize) -> &mut Sequence {
        &mut self.running[index]
    }

    /// Returns how many sequences wait.
    pub(crate) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the use of the KV memory.
    pub(crate) fn kv_stats(&self) -> KvStats {
        self.kv.stats()
    }

    /// Returns what the executor has to move before the planned step.
    pub(crate) fn transfers(&self) -> &[KvTransfer] {
        &self.transfers
    }

    /// Plans the next step and reserves the blocks it writes to.
    pub(crate) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.clear();
        self.transfers.clear();
        let budget = self.schedule_running(plan);
        self.admit(plan, budget);
        for (running_index, sequence) in self.running.iter().enumerate() {
            let num_tokens = sequence.num_scheduled_tokens;
            if num_tokens > 0 {
                let samples = num_tokens == sequence.num_pending_tokens();
                plan.scheduled.push(ScheduledSequence { running_index, num_tokens, samples });
            }
        }
    }

    /// Turns a plan into the inputs of the executor.
    pub(crate) fn build_batch(&self, plan: &StepPlan, batch: &mut Batch) {
        batch.clear();
        for entry in &plan.scheduled {
            let sequence = &self.running[entry.running_index];
            let start = sequence.table.num_computed_tokens();
            let end = start + entry.num_tokens;
            batch.push_sequence(
                &sequence.tokens[start as usize..end as usize],
                start,
                sequence.table.blocks(),
                self.config.block_size,
                entry.samples,
            );
        }
    }

    /// Records that the tokens of a plan's entry are computed.
    pub(crate) fn mark_computed(&mut self, entry: ScheduledSequence) {
        let sequence = &mut self.running[entry.running_index];
        let num_computed = sequence.table.num_computed_tokens() + entry.num_tokens;
        let computed = &sequence.tokens[..num_computed as usize];
        self.kv.mark_computed(&mut sequence.table, computed);
    }

    /// Gives running sequences their tokens and returns what is left of the budget.
    fn schedule_running(&mut self, plan: &mut StepPlan) -> u32 {
        let mut budget = self.config.max_batched_tokens;
        let decodes = self.running.iter().filter(|sequence| sequence.num_pending_tokens() == 1);
        let mut num_decodes_left =
            u32::try_from(decodes.count()).expect("bounded by max_num_seqs, a u32");
        let mut i = 0;
        while i < self.running.len() {
            let pending = self.running[i].num_pending_tokens();
            if pending == 1 {
                num_decodes_left -= 1;
            }
            // Never negative: the budget covers one token for each running sequence.
            let wanted = pending.min(budget - num_decodes_left);
            let granted = self.grant(i, wanted, |preempted| {
                plan.num_preempted += 1;
                if preempted.num_pending_tokens() == 1 {
                    num_decodes_left -= 1;
                }
            });
            self.running[i].num_scheduled_tokens = granted;
            budget -= granted;
            i += 1;
        }
        budget
    }

    /// Gets slots for up to `wanted` tokens of a running sequence, preempting those behind it
    /// rather than giving it none. Returns how many tokens have slots.
    fn grant(&mut self, index: usize, wanted: u32, mut preempted: impl FnMut(&Sequence)) -> u32 {
        loop {
            let table = &mut self.running[index].table;
            let computed = table.num_computed_tokens();
            let granted = wanted.min(self.kv.num_obtainable_slots(table));
            if granted > 0 {
                let obtained = self.kv.allocate(table, computed + granted, &mut self.transfers);
                obtained.expect("no more slots are asked for than can be obtained");
                return granted;
            }
            if wanted == 0 || index + 1 == self.running.len() {
                return 0;
            }
            let mut last = self.running.pop().expect("the list is longer than index + 1");
            preempted(&last);
            release_blocks(&mut self.kv, &mut last);
            self.enqueue(last);
        }
    }

    /// Lets waiting sequences run, in order, while budget, places and memory last.
    fn admit(&mut self, plan: &mut StepPlan, mut budget: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let mut num_promised: u64 =
            self.running.iter().map(|sequence| self.num_promised_blocks(sequence)).sum();
        let mut passed = Bound::Unbounded;
        let mut num_standing_back = 0;
        while budget > 0 && self.running.len() < self.config.max_num_seqs as usize {
            let next = self.waiting.range((passed, Bound::Unbounded)).next();
            let Some((&rank, candidate)) = next else { return };
            self.kv.match_prefix(NAMESPACE, &candidate.tokens, &mut self.found);
            if self.is_being_computed(&candidate.tokens) {
                num_standing_back += 1;
                if num_standing_back > MAX_STANDING_BACK {
                    return;
                }
                passed = Bound::Excluded(rank);
                continue;
            }
            if !self.has_memory_for(candidate, num_promised) {
                return;
            }
            let sequence = self.waiting.remove(&rank).expect("it was found just above");
            let index = self.start(sequence, budget, plan);
            let started = &self.running[index];
            budget -= started.num_scheduled_tokens;
            num_promised += self.num_promised_blocks(started);
        }
    }

    /// Tells whether a running sequence is about to fill the very block that the lookup in `found`
    /// missed. Waiting for it saves computing and storing the block twice; it is always short,
    /// because running sequences come first, and preempted ones do not count.
    fn is_being_computed(&self, tokens: &[TokenId]) -> bool {
        let size = self.config.block_size.tokens() as usize;
        let start = self.found.num_blocks() as usize * size;
        let end = start + size;
        let is_on = self.config.prefix_caching == PrefixCaching::On;
        // As in a match, the last token does not count.
        is_on
            && tokens.len() > end
            && self.running.iter().any(|sequence| {
                sequence.table.has_reached(&self.found)
                    && sequence.tokens.get(start..end) == Some(&tokens[start..end])
            })
    }

    /// Returns how many blocks admission leaves to a running sequence: those for the tokens it
    /// knows, and one to grow into.
    fn num_promised_blocks(&self, sequence: &Sequence) -> u64 {
        let total = self.config.block_size.blocks_for(sequence.num_known_tokens()) as usize;
        1 + total.saturating_sub(sequence.table.blocks().len()) as u64
    }

    /// Tells whether a sequence that adopts `found` can be computed to its end without the blocks
    /// promised to running ones or, where that is more, the watermark.
    fn has_memory_for(&self, sequence: &Sequence, num_promised: u64) -> bool {
        let watermark = u64::from(self.config.num_blocks / WATERMARK_DIVISOR);
        let withheld = if self.running.is_empty() { 0 } else { num_promised.max(watermark) };
        let shape = sequence.start(self.config.max_model_len).shape;
        self.kv.has_room(&self.found, sequence.num_known_tokens(), shape, withheld)
    }

    /// Makes a sequence run that adopts `found`, and returns its index among the running ones.
    fn start(&mut self, mut sequence: Sequence, budget: u32, plan: &mut StepPlan) -> usize {
        let start = sequence.start(self.config.max_model_len);
        sequence.table = self.kv.start(&self.found, start, &mut self.transfers);
        let computed = sequence.table.num_computed_tokens();
        let granted = sequence.num_pending_tokens().min(budget);
        let num_tokens = computed + granted;
        let obtained = self.kv.allocate(&mut sequence.table, num_tokens, &mut self.transfers);
        obtained.expect("the memory of an admitted sequence was counted");
        sequence.num_scheduled_tokens = granted;
        let is_first = sequence.num_hit_tokens.is_none();
        if is_first {
            sequence.num_hit_tokens = Some(computed);
        }
        plan.admissions.push(Admission {
            sequence: sequence.id,
            is_first,
            num_prompt_tokens: sequence.num_prompt_tokens,
            num_hit_tokens: computed,
        });
        let index = self.running.partition_point(|other| other.rank < sequence.rank);
        self.running.insert(index, sequence);
        index
    }

    /// Checks the invariants in the module header; costs the size of the pool.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub(crate) fn check_invariants(&self) {
        let sequences = self.running.iter().chain(self.waiting.values());
        let tables: Vec<&BlockTable> = sequences.map(|sequence| &sequence.table).collect();
        self.kv.check_invariants(&tables);
        assert!(self.running.len() <= self.config.max_num_seqs as usize);
        assert!(self.running.is_sorted_by_key(|sequence| sequence.rank));
        for sequence in &self.running {
            assert!(sequence.num_pending_tokens() > 0, "{} has nothing to compute", sequence.id);
            assert!(sequence.num_known_tokens() < self.config.max_model_len);
        }
        for (rank, sequence) in &self.waiting {
            assert_eq!(*rank, sequence.rank);
            assert!(sequence.table.blocks().is_empty(), "{} waits with blocks", sequence.id);
        }
    }
}

/// Gives back the blocks of a sequence, which then has to compute all its tokens again.
fn release_blocks(kv: &mut KvManager, sequence: &mut Sequence) {
    sequence.num_scheduled_tokens = 0;
    let empty = BlockTable::new(*sequence.table.start());
    kv.free(std::mem::replace(&mut sequence.table, empty));
}
