//! Decides which sequences compute which tokens in a step, and holds their blocks.
//!
//! There is no prefill or decode phase: a step lets every running sequence's computed tokens catch
//! up with its known ones, under a token budget (as in vLLM's version 1 scheduler). Each decoding
//! sequence is sure of its one token; what is left of the budget goes to prompt chunks of running
//! sequences, then to waiting ones.
//!
//! Everything follows one order, the [`Place`]: first whose client was given less, as the
//! [`FairQueue`] counts, then the [`Rank`] within the client. Running sequences are brought into it
//! when a step begins, so the one to preempt is always the last and has never been scheduled in the
//! step that preempts it. Why no sequence starves: what its client was given rises only with what
//! the client gets done, so each client comes first in the end, and in it each sequence; the first
//! in the order never waits for memory, since it can preempt all others and the pool holds any one
//! sequence; the waiting are admitted strictly in order, apart from those that stand back for a
//! running one to compute their prefix, and not in a step that preempts. Beams that wait for others
//! of their request hold blocks without using them; they lose them when nothing else can go on, and
//! what they wait with stays.
//!
//! Invariants: `running` is sorted and no longer than `max_num_seqs`; waiting sequences hold no
//! blocks. A step costs O(running sequences), where clients overtake each other O(n log n), plus
//! O(clients + log waiting) for each one admitted.

mod admission;
mod fair_queue;
mod passed_over;
mod sharing;

use crate::EngineConfig;
use crate::chunk_limit::{ChunkLimit, Demand, PromptShare};
use crate::sequence::{Rank, Sequence};
use crate::snapshot::{SequenceSnapshot, SequenceState, SharedBlock};
use crate::step_plan::{ScheduledSequence, StepPlan};
use fair_queue::FairQueue;
use mini_infer_core::{Batch, BlockId, ClientId, Executor, KvTransfer};
use mini_infer_kv::{BlockInfo, BlockTable, KvMemory, PrefixMatch};

/// What is left for a step to compute.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Tokens in all.
    num_tokens: u32,
    /// Those of sequences that are more than one token behind.
    num_prompt_tokens: u32,
}

impl Budget {
    /// Returns how many of its pending tokens a sequence may compute when `num_reserved` others
    /// still get their one.
    fn share_of(self, num_pending: u32, num_reserved: u32) -> u32 {
        let of_all = num_pending.min(self.num_tokens - num_reserved);
        if num_pending == 1 { of_all } else { of_all.min(self.num_prompt_tokens) }
    }

    /// Tells whether a waiting sequence may start.
    fn allows_admission(self) -> bool {
        self.num_tokens > 0 && self.num_prompt_tokens > 0
    }

    /// Takes out what a sequence with so many pending tokens computes.
    fn take(&mut self, num_pending: u32, granted: u32) {
        self.num_tokens -= granted;
        if num_pending > 1 {
            self.num_prompt_tokens -= granted;
        }
    }
}

/// The sequences of an engine and their KV memory.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    kv: Box<dyn KvMemory>,
    running: Vec<Sequence>,
    waiting: FairQueue,
    /// Reused between lookups.
    found: PrefixMatch,
}

impl Scheduler {
    /// Creates a scheduler without sequences.
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            kv: config.kv_memory(),
            running: Vec::new(),
            waiting: FairQueue::default(),
            found: PrefixMatch::default(),
        }
    }

    /// Notes that a client submits a request, before its sequences are added.
    pub(crate) fn enter(&mut self, client: ClientId) {
        self.waiting.enter(client);
    }

    /// Notes that a request of a client has ended, after its sequences were taken out.
    pub(crate) fn leave(&mut self, client: ClientId) {
        self.waiting.leave(client);
    }

    /// Adds a sequence that waits for its admission.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// Takes a sequence out, wherever it is, and releases its blocks.
    pub(crate) fn remove(&mut self, rank: Rank) -> Option<Sequence> {
        if let Some(sequence) = self.waiting.remove(rank) {
            return Some(sequence);
        }
        let index = self.running_index(rank)?;
        let mut sequence = self.running.remove(index);
        self.release_blocks(&mut sequence);
        Some(sequence)
    }

    /// Takes out every running sequence that is finished, in order, its blocks released.
    pub(crate) fn remove_finished(&mut self, mut finished: impl FnMut(Sequence)) {
        let kv = &mut self.kv;
        for mut sequence in self.running.extract_if(.., |sequence| sequence.finish.is_some()) {
            release_blocks(kv.as_mut(), &mut sequence);
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

    /// Tells whether a sequence of a client waits.
    pub(crate) fn has_waiting(&self, client: ClientId) -> bool {
        self.waiting.has_waiting(client)
    }

    /// Returns how many sequences wait.
    pub(crate) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the KV memory.
    pub(crate) fn kv(&self) -> &dyn KvMemory {
        self.kv.as_ref()
    }

    /// Evicts cached blocks but the `keep_blocks` released last, and gives back what is free.
    pub(crate) fn trim(&mut self, keep_blocks: u32, transfers: &mut Vec<KvTransfer>) {
        self.kv.trim(keep_blocks, transfers);
    }

    /// Plans the next step and reserves the blocks it writes to. Blocks are restored from `tier`
    /// where it has them.
    pub(crate) fn schedule<E: Executor>(
        &mut self,
        plan: &mut StepPlan,
        chunk_limit: &ChunkLimit,
        mut tier: Option<&mut E>,
    ) {
        plan.clear();
        self.bring_into_order();
        loop {
            let num_preempted = plan.num_preempted;
            let demand = self.demand();
            // While a chunk is suspended, it is what prompts get.
            let has_suspended = self.running.iter().any(|other| other.num_suspended_tokens > 0);
            let share = if has_suspended { PromptShare::NONE } else { chunk_limit.share(demand) };
            plan.pass = share.pass;
            let budget = Budget {
                num_tokens: self.config.max_batched_tokens,
                num_prompt_tokens: share.num_tokens,
            };
            let mut budget = self.schedule_running(plan, budget, demand.num_decodes);
            if plan.num_preempted == num_preempted {
                budget = self.admit(plan, budget, tier.as_deref_mut());
            }
            let is_empty = budget.num_tokens == self.config.max_batched_tokens;
            if !is_empty || has_suspended || !self.preempt_waiting_beam(plan) {
                break;
            }
        }
        for (running_index, sequence) in self.running.iter().enumerate() {
            let num_tokens = sequence.num_scheduled_tokens;
            if num_tokens > 0 {
                let samples =
                    num_tokens == sequence.num_pending_tokens() && sequence.wants_output();
                plan.scheduled.push(ScheduledSequence { running_index, num_tokens, samples });
            }
        }
    }

    /// Sorts the running sequences by what their clients have been given by now.
    fn bring_into_order(&mut self) {
        self.waiting.begin_step();
        for sequence in &mut self.running {
            sequence.num_served_tokens = self.waiting.num_served_before(sequence.rank.client);
        }
        if !self.running.is_sorted_by_key(Sequence::place) {
            self.running.sort_by_key(Sequence::place);
        }
    }

    /// Turns entries of a plan into the inputs of the executor.
    pub(crate) fn build_batch<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a ScheduledSequence>,
        batch: &mut Batch,
    ) {
        batch.clear();
        for entry in entries {
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
            batch.adapt_last(sequence.adapter.as_ref());
            batch.keep_of_last(sequence.kept_positions(entry.num_tokens));
        }
    }

    /// Returns the index among the running ones of a sequence that has the blocks which it had when
    /// its tokens were suspended.
    pub(crate) fn suspended_index(&self, rank: Rank) -> Option<usize> {
        self.running_index(rank).filter(|&index| self.running[index].num_suspended_tokens > 0)
    }

    fn running_index(&self, rank: Rank) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.rank == rank)
    }

    /// Records that the tokens of a plan's entry are computed.
    pub(crate) fn mark_computed(&mut self, entry: ScheduledSequence) {
        let sequence = &mut self.running[entry.running_index];
        let num_computed = sequence.table.num_computed_tokens() + entry.num_tokens;
        let computed = &sequence.tokens[..num_computed as usize];
        self.kv.mark_computed(&mut sequence.table, computed);
    }

    /// Returns how many sequences are one token behind, and how many more than that.
    fn demand(&self) -> Demand {
        let num_places = (self.config.max_num_seqs as usize).saturating_sub(self.running.len());
        let (mut num_decodes, mut num_prompts) = (0, self.waiting.len().min(num_places));
        for sequence in &self.running {
            match sequence.num_pending_tokens() {
                0 => {}
                _ if sequence.num_suspended_tokens > 0 => num_prompts += 1,
                1 => num_decodes += 1,
                _ => num_prompts += 1,
            }
        }
        let num_prompts = u32::try_from(num_prompts).expect("bounded by max_num_seqs, a u32");
        Demand { num_decodes, num_prompts }
    }

    /// Gives running sequences their tokens, of which `num_decodes` are one behind, and returns
    /// what is left of the budget.
    fn schedule_running(
        &mut self,
        plan: &mut StepPlan,
        mut budget: Budget,
        num_decodes: u32,
    ) -> Budget {
        let mut num_decodes_left = num_decodes;
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].num_suspended_tokens > 0 {
                self.running[i].num_scheduled_tokens = 0;
                i += 1;
                continue;
            }
            let pending = self.running[i].num_pending_tokens();
            if pending == 1 {
                num_decodes_left -= 1;
            }
            // Never negative: the budget covers one token for each running sequence.
            let wanted = budget.share_of(pending, num_decodes_left);
            let granted = self.grant(i, wanted, plan, |preempted| {
                if preempted.num_pending_tokens() == 1 && preempted.num_suspended_tokens == 0 {
                    num_decodes_left -= 1;
                }
            });
            self.running[i].num_scheduled_tokens = granted;
            self.charge(i);
            budget.take(pending, granted);
            i += 1;
        }
        budget
    }

    /// Counts what a running sequence computes as given to its client.
    fn charge(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        self.waiting.charge(sequence.rank.client, sequence.charge());
    }

    /// Gets slots for up to `wanted` tokens of a running sequence, preempting those behind it
    /// rather than giving it none. Returns how many tokens have slots.
    fn grant(
        &mut self,
        index: usize,
        wanted: u32,
        plan: &mut StepPlan,
        mut preempted: impl FnMut(&Sequence),
    ) -> u32 {
        loop {
            let table = &mut self.running[index].table;
            let computed = table.num_computed_tokens();
            // Asking first is for chunks, of which a part may be had.
            let granted = match wanted {
                1 => 1,
                _ => wanted.min(self.kv.num_obtainable_slots(table)),
            };
            let end = computed + granted;
            if granted > 0 && self.kv.allocate(table, end, &mut plan.transfers).is_ok() {
                return granted;
            }
            if wanted == 0 || index + 1 == self.running.len() {
                return 0;
            }
            let last = self.running.len() - 1;
            preempted(&self.running[last]);
            self.preempt(last, plan);
        }
    }

    /// Takes its blocks from the last of the running beams that wait for others, and tells whether
    /// there was one.
    fn preempt_waiting_beam(&mut self, plan: &mut StepPlan) -> bool {
        let last = self.running.iter().rposition(Sequence::awaits_beams);
        if let Some(index) = last {
            self.preempt(index, plan);
        }
        last.is_some()
    }

    /// Makes a running sequence wait, without blocks.
    fn preempt(&mut self, index: usize, plan: &mut StepPlan) {
        plan.num_preempted += 1;
        let mut sequence = self.running.remove(index);
        self.release_blocks(&mut sequence);
        self.enqueue(sequence);
    }

    /// Makes a sequence run whose blocks are there, and returns its index among the running ones.
    fn insert_running(&mut self, mut sequence: Sequence) -> usize {
        sequence.num_served_tokens = self.waiting.num_served_before(sequence.rank.client);
        let place = sequence.place();
        let index = self.running.partition_point(|other| other.place() < place);
        self.running.insert(index, sequence);
        index
    }

    /// Gives back the blocks of a sequence, which then has to compute all its tokens again.
    fn release_blocks(&mut self, sequence: &mut Sequence) {
        release_blocks(self.kv.as_mut(), sequence);
    }

    /// Returns all sequences as they are now.
    pub(crate) fn snapshot(&self) -> Vec<SequenceSnapshot> {
        let snapshot = |state: SequenceState| {
            move |sequence: &Sequence| SequenceSnapshot {
                id: sequence.id,
                state,
                num_known_tokens: sequence.num_known_tokens(),
                num_computed_tokens: sequence.table.num_computed_tokens(),
                num_hit_tokens: sequence.num_hit_tokens,
                block_table: sequence.table.blocks().to_vec(),
            }
        };
        let running = self.running.iter().map(snapshot(SequenceState::Running));
        running.chain(self.waiting.iter().map(snapshot(SequenceState::Waiting))).collect()
    }

    /// Returns the blocks that more than one sequence holds, by id.
    pub(crate) fn shared_blocks(&self) -> Vec<SharedBlock> {
        let tables = self.running.iter().flat_map(|sequence| sequence.table.blocks());
        let shared = |&block: &BlockId| {
            let BlockInfo { ref_count, num_tokens, .. } = self.kv.block(block);
            (ref_count > 1).then_some(SharedBlock { block, ref_count, num_tokens })
        };
        let mut blocks: Vec<SharedBlock> = tables.filter_map(shared).collect();
        blocks.sort_unstable_by_key(|shared| shared.block);
        blocks.dedup();
        blocks
    }

    /// Checks the invariants in the module header; costs the size of the pool.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub(crate) fn check_invariants(&self) {
        let sequences = self.running.iter().chain(self.waiting.iter());
        let tables: Vec<&BlockTable> = sequences.map(|sequence| &sequence.table).collect();
        self.kv.check_invariants(&tables);
        assert!(self.running.len() <= self.config.max_num_seqs as usize);
        assert!(self.running.is_sorted_by_key(Sequence::place));
        for sequence in &self.running {
            let has_work = sequence.num_pending_tokens() > 0;
            assert_eq!(has_work, !sequence.awaits_beams(), "work of {}", sequence.id);
            let may_grow = sequence.num_known_tokens() < sequence.start.shape.max_num_tokens;
            assert_eq!(may_grow, sequence.wants_output(), "length of {}", sequence.id);
        }
        self.waiting.check_invariants();
    }
}

fn release_blocks(kv: &mut dyn KvMemory, sequence: &mut Sequence) {
    sequence.num_scheduled_tokens = 0;
    sequence.num_suspended_tokens = 0;
    kv.free(std::mem::replace(&mut sequence.table, BlockTable::new(sequence.start)));
}
