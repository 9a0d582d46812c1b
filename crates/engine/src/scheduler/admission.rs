//! Which waiting sequences start to run, and with which blocks.
//!
//! A sequence is admitted when there is budget, a place and memory for all tokens it knows, behind
//! what is promised to the running ones, and no other client that waits was given less. It starts
//! with the blocks that the prefix cache holds; then, block by block, with those that a tier can
//! restore; but nothing is taken of a prompt whose rows are to be read. Nobody is admitted who would
//! compute
//! what a running sequence is computing: it stands back, and the next may go first.

use super::passed_over::PassedOver;
use super::{Budget, Scheduler};
use crate::KvAllocator;
use crate::sequence::{Rank, Sequence};
use crate::stats::AdmissionStatus;
use crate::step_plan::{Admission, StepPlan};
use mini_infer_core::{Executor, PrefixCaching};

/// Part of the pool that admission leaves alone at least, as in vLLM: 1 / 100.
const WATERMARK_DIVISOR: u32 = 100;

impl Scheduler {
    /// Lets waiting sequences run, in order, while budget, places and memory last. Returns what is
    /// left of the budget.
    pub(super) fn admit<E: Executor>(
        &mut self,
        plan: &mut StepPlan,
        mut budget: Budget,
        mut tier: Option<&mut E>,
    ) -> Budget {
        if self.waiting.len() == 0 {
            return budget;
        }
        let mut num_promised: u64 =
            self.running.iter().map(|sequence| self.num_promised_blocks(sequence)).sum();
        let mut passed = PassedOver::default();
        while budget.allows_admission() && self.running.len() < self.config.max_num_seqs as usize {
            let Some(candidate) = self.waiting.next(&passed) else {
                break;
            };
            let rank = candidate.rank;
            if candidate.awaits_beams() {
                passed.pass(rank);
                continue;
            }
            if self.stands_back(rank) {
                passed.stand_back(rank);
                if passed.is_full() {
                    break;
                }
                continue;
            }
            if !self.has_memory_for(rank, num_promised) {
                plan.admission = AdmissionStatus::OutOfMemory;
                break;
            }
            let sequence = self.waiting.remove(rank).expect("it was found just above");
            let index = self.start(sequence, budget, plan, tier.as_deref_mut());
            self.charge(index);
            let started = &self.running[index];
            budget.take(started.num_pending_tokens(), started.num_scheduled_tokens);
            num_promised += self.num_promised_blocks(started);
        }
        budget
    }

    /// Looks up the prefix of a waiting sequence, and tells whether the sequence does better to
    /// wait for a running one. That is always short: running sequences come first, and preempted
    /// ones do not count.
    fn stands_back(&mut self, rank: Rank) -> bool {
        let candidate = self.waiting.get(rank).expect("the caller has found it");
        if candidate.num_output_tokens() == 0 && self.has_sibling_in_prefill(rank) {
            return true;
        }
        if !self.uses_cache(candidate) {
            self.found.reset(candidate.start.namespace);
            return false;
        }
        let tokens = candidate.matchable_tokens();
        self.kv.match_prefix(candidate.start.namespace, tokens, &mut self.found);
        self.is_being_computed(candidate)
    }

    fn uses_cache(&self, sequence: &Sequence) -> bool {
        self.config.prefix_caching == PrefixCaching::On
            && self.config.allocator == KvAllocator::Paged
            && sequence.start.prefix_caching == PrefixCaching::On
    }

    /// Tells whether a running sequence of the same request is computing the prompt: the waiting
    /// one will be forked from it.
    fn has_sibling_in_prefill(&self, rank: Rank) -> bool {
        let mut siblings = self.running.iter().filter(|other| other.rank.is_of_request(rank));
        siblings.any(|sibling| sibling.num_output_tokens() == 0)
    }

    /// Tells whether a running sequence is about to fill the very block that the lookup in `found`
    /// missed. Waiting for it saves computing and storing the block twice.
    fn is_being_computed(&self, candidate: &Sequence) -> bool {
        let tokens = candidate.matchable_tokens();
        let size = self.config.block_size.tokens() as usize;
        let start = self.found.num_blocks() as usize * size;
        let end = start + size;
        // As in a match, the last token does not count.
        tokens.len() > end
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

    /// Tells whether a waiting sequence that adopts `found` can be computed to its end without the
    /// blocks promised to running ones or, where that is more, the watermark.
    fn has_memory_for(&self, rank: Rank, num_promised: u64) -> bool {
        let candidate = self.waiting.get(rank).expect("the caller has found it");
        let num_withheld = if self.running.is_empty() {
            0
        } else {
            num_promised.max(u64::from(self.config.num_blocks / WATERMARK_DIVISOR))
        };
        let num_tokens = candidate.num_known_tokens();
        self.kv.has_room(&self.found, num_tokens, candidate.start.shape, num_withheld)
    }

    /// Makes a sequence run that adopts `found`, and returns its index among the running ones.
    fn start<E: Executor>(
        &mut self,
        mut sequence: Sequence,
        budget: Budget,
        plan: &mut StepPlan,
        tier: Option<&mut E>,
    ) -> usize {
        let continues_from = |tier: &&mut E| self.is_held(&sequence, tier);
        let tier = tier.filter(continues_from);
        if tier.is_some() {
            self.found.keep_full_blocks();
        }
        sequence.table = self.kv.start(&self.found, sequence.start, &mut plan.transfers);
        let num_found = sequence.table.num_computed_tokens();
        if let Some(tier) = tier {
            self.restore(&mut sequence, plan, tier);
        }
        let computed = sequence.table.num_computed_tokens();
        // Layers with a window may have room for all tokens one after the other only.
        let obtainable = self.kv.num_obtainable_slots(&sequence.table);
        let granted = budget.share_of(sequence.num_pending_tokens(), 0).min(obtainable);
        let end = computed + granted;
        let obtained = self.kv.allocate(&mut sequence.table, end, &mut plan.transfers);
        obtained.expect("no more slots are asked for than can be obtained");
        sequence.num_scheduled_tokens = granted;
        let is_first = sequence.num_hit_tokens.is_none();
        if is_first {
            sequence.num_hit_tokens = Some(computed);
        }
        sequence.num_charged_tokens = sequence.num_charged_tokens.max(computed);
        plan.admissions.push(Admission {
            sequence: sequence.id,
            is_first,
            num_prompt_tokens: sequence.num_prompt_tokens,
            num_hit_tokens: computed,
            num_restored_tokens: computed - num_found,
        });
        self.insert_running(sequence)
    }

    /// Tells whether a tier says that it has the block behind the full ones in `found`.
    fn is_held<E: Executor>(&self, sequence: &Sequence, tier: &E) -> bool {
        self.uses_cache(sequence)
            && self
                .kv
                .next_key_of_match(&self.found, sequence.matchable_tokens())
                .is_some_and(|key| tier.holds(&key))
    }

    /// Fills the blocks that follow those of the prefix cache from a tier, until one is missing.
    fn restore<E: Executor>(&mut self, sequence: &mut Sequence, plan: &mut StepPlan, tier: &mut E) {
        let size = self.config.block_size.tokens();
        let num_matchable = sequence.matchable_tokens().len();
        let Sequence { table, tokens, .. } = sequence;
        let tokens = &tokens[..num_matchable];
        while let Some(key) = self.kv.next_key(table, tokens) {
            if !tier.holds(&key) {
                return;
            }
            let block_index = table.num_computed_tokens() / size;
            let end = (block_index + 1) * size;
            if self.kv.allocate(table, end, &mut plan.transfers).is_err() {
                return;
            }
            // What the block holds may have to be saved first.
            tier.transfer(&plan.transfers);
            plan.transfers.clear();
            if !tier.restore(&key, table.blocks()[block_index as usize]) {
                return;
            }
            self.kv.mark_computed(table, &tokens[..end as usize]);
        }
    }
}
