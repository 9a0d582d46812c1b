//! Sequences of one request that go on from the same blocks: `n > 1` and beams.
//!
//! A fork shares all blocks of its parent, the open one included; whoever writes to that one first
//! gets a copy from the KV memory. A memory that cannot share gives no fork, and the sequence then
//! waits to be admitted and computes its tokens itself.

use super::Scheduler;
use crate::beam_search::Offspring;
use crate::sequence::{Rank, Sequence};
use mini_infer_kv::BlockTable;

impl Scheduler {
    /// Takes a sequence without output out of the queue, which goes on from the computed prompt of
    /// the running one of its request at `index`. `None` when there is none, no place besides the
    /// running and `num_forked` others, or no sharing.
    pub(crate) fn fork_sibling(&mut self, index: usize, num_forked: usize) -> Option<Sequence> {
        if self.running.len() + num_forked >= self.config.max_num_seqs as usize {
            return None;
        }
        let parent = &self.running[index];
        let has_no_output = |sibling: &Sequence| sibling.num_output_tokens() == 0;
        let rank = self.waiting.find_in_request(parent.rank, has_no_output)?;
        let table = self.kv.fork(&parent.table)?;
        let of_parent = parent.num_hit_tokens;
        let sibling = self.waiting.remove(rank).expect("it was found just above");
        let num_hit_tokens = sibling.num_hit_tokens.or(of_parent);
        let num_charged_tokens = sibling.num_charged_tokens.max(table.num_computed_tokens());
        Some(Sequence { table, num_hit_tokens, num_charged_tokens, ..sibling })
    }

    /// Lets forked sequences run, for which there are places.
    pub(crate) fn add_forked(&mut self, forked: impl Iterator<Item = Sequence>) {
        for sequence in forked {
            self.insert_running(sequence);
        }
        debug_assert!(self.running.len() <= self.config.max_num_seqs as usize);
    }

    /// Takes out all sequences of a request, in order, with their blocks.
    pub(crate) fn take_request(&mut self, first: Rank) -> Vec<Sequence> {
        let is_of_request = |sequence: &mut Sequence| sequence.rank.is_of_request(first);
        let mut taken: Vec<Sequence> = self.running.extract_if(.., is_of_request).collect();
        while let Some(rank) = self.waiting.find_in_request(first, |_| true) {
            taken.extend(self.waiting.remove(rank));
        }
        taken.sort_unstable_by_key(|sequence| sequence.rank);
        taken
    }

    /// Releases the blocks of sequences that were taken out.
    pub(crate) fn release(&mut self, taken: &mut [Sequence]) {
        for sequence in taken {
            self.release_blocks(sequence);
        }
    }

    /// Lets the next beams of a search go on from the blocks of their parents, which were taken
    /// out: the last to continue a parent keeps its blocks, the others share them. A beam whose
    /// parent has lost its blocks, or that finds no place, waits. Returns how many were forked.
    pub(crate) fn continue_beams(
        &mut self,
        mut parents: Vec<Sequence>,
        next: Vec<Offspring>,
    ) -> u64 {
        let mut num_forks = 0;
        let mut num_uses = vec![0_u32; parents.len()];
        for offspring in &next {
            num_uses[offspring.parent] += 1;
        }
        for (index, Offspring { parent, token, beam }) in (0..).zip(next) {
            num_uses[parent] -= 1;
            let is_last_use = num_uses[parent] == 0;
            let parent = &mut parents[parent];
            let mut sequence = parent.continued(index, token, beam);
            let has_place = self.running.len() < self.config.max_num_seqs as usize;
            let table = if parent.table.blocks().is_empty() || !has_place {
                None
            } else if is_last_use {
                Some(std::mem::replace(&mut parent.table, BlockTable::new(parent.start)))
            } else {
                let fork = self.kv.fork(&parent.table);
                num_forks += u64::from(fork.is_some());
                fork
            };
            match table {
                Some(table) => {
                    sequence.table = table;
                    self.insert_running(sequence);
                }
                None => self.enqueue(sequence),
            }
        }
        self.release(&mut parents);
        num_forks
    }
}
