//! Plays random operations on real KV memory and checks each against the model.

use crate::memory::Memory;
use crate::prefixes::{Kv, Prefixes, content_hash};
use crate::random::Random;
use mini_infer_core::{BlockId, BlockKey, KvTransfer, Namespace, PrefixCaching, TokenId};
use mini_infer_kv::{
    BlockState, BlockTable, KvConfig, KvManager, KvMemory, PrefixMatch, SequenceShape,
    SequenceStart,
};
use std::collections::BTreeSet;

/// Most rows of tokens that later prompts start like.
const MAX_HISTORY: usize = 12;

/// What one seed met, to prove that the operations reach everything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) num_operations: u64,
    pub(crate) num_hit_tokens: u64,
    pub(crate) num_partial_hits: u64,
    pub(crate) num_copies: u64,
    pub(crate) num_evictions: u64,
    pub(crate) num_failed_allocations: u64,
    pub(crate) num_restores: u64,
    /// Matches cut short because window parts were gone.
    pub(crate) num_hidden_matches: u64,
    pub(crate) num_blocks_that_gave_way: u64,
}

struct Sequence {
    start: SequenceStart,
    tokens: Vec<TokenId>,
    /// What the KV of each token is.
    kv: Vec<Kv>,
    table: BlockTable,
}

/// Real memory and the model beside it.
pub(crate) struct Player {
    random: Random,
    config: KvConfig,
    num_letters: u32,
    size: usize,
    real: KvManager,
    memory: Memory,
    prefixes: Prefixes,
    sequences: Vec<Sequence>,
    history: Vec<Vec<TokenId>>,
    transfers: Vec<KvTransfer>,
    found: PrefixMatch,
    coverage: Coverage,
}

impl Player {
    pub(crate) fn new(random: Random, config: KvConfig, num_letters: u32) -> Self {
        let real = KvManager::new(config);
        let memory = Memory::new(&config, real.num_block_ids());
        Self {
            random,
            config,
            num_letters,
            size: config.block_size.tokens() as usize,
            real,
            memory,
            prefixes: Prefixes::default(),
            sequences: Vec::new(),
            history: vec![Vec::new()],
            transfers: Vec::new(),
            found: PrefixMatch::default(),
            coverage: Coverage::default(),
        }
    }

    /// Plays operations and then ends all sequences.
    pub(crate) fn play(mut self, num_operations: u64) -> Coverage {
        for _ in 0..num_operations {
            self.operate();
            self.check();
        }
        while let Some(sequence) = self.sequences.pop() {
            self.end(sequence);
            self.check();
        }
        self.trim(0);
        self.check();
        let stats = self.real.stats();
        assert_eq!(stats.num_free_blocks, self.config.num_blocks, "blocks leak");
        self.coverage.num_operations = num_operations;
        self.coverage.num_copies = self.memory.num_copies;
        self.coverage.num_evictions = stats.num_evicted_blocks;
        assert_eq!(stats.num_copied_blocks, self.memory.num_copies);
        self.coverage
    }

    fn operate(&mut self) {
        let chosen = self.random.index_of(&self.sequences);
        match (self.random.below(100), chosen) {
            (0..=14, _) | (_, None) => self.admit(),
            (15..=64, Some(i)) => self.compute(i),
            (65..=69, Some(i)) => self.restore(i),
            (70..=80, Some(i)) => {
                let sequence = self.sequences.swap_remove(i);
                self.end(sequence);
            }
            (81..=86, Some(i)) => self.fork(i),
            (87..=88, _) => {
                let keep = self.random.below(self.config.num_blocks);
                self.trim(keep);
            }
            (_, _) => {
                let (start, tokens) = self.prompt();
                self.find(start.namespace, &tokens);
            }
        }
    }

    /// Makes a prompt that starts like something earlier.
    fn prompt(&mut self) -> (SequenceStart, Vec<TokenId>) {
        let i = self.random.index_of(&self.history).unwrap();
        let longest = u32::try_from(self.history[i].len()).unwrap();
        let num_shared = self.random.below(longest + 1) as usize;
        let mut tokens = self.history[i][..num_shared].to_vec();
        for _ in 0..1 + self.random.below(if num_shared == 0 { 60 } else { 20 }) {
            tokens.push(self.random.below(self.num_letters));
        }
        let is_off = self.random.one_in(8);
        let start = SequenceStart {
            namespace: Namespace([u8::from(self.random.one_in(3)); 32]),
            shape: SequenceShape::default(),
            prefix_caching: if is_off { PrefixCaching::Off } else { PrefixCaching::On },
        };
        (start, tokens)
    }

    /// Looks a prompt up and checks that exactly what is there is found.
    fn find(&mut self, namespace: Namespace, tokens: &[TokenId]) {
        self.real.match_prefix(namespace, tokens, &mut self.found);
        let kv = self.prefixes.kv(namespace, tokens);
        let longest = self.longest_match(&kv);
        let num_found = self.found.num_tokens() as usize;
        assert_eq!(self.found.num_blocks() as usize, num_found / self.size);
        if self.config.prefix_caching == PrefixCaching::Off {
            assert_eq!(num_found, 0);
        } else if self.config.window.is_none() {
            assert_eq!(num_found, longest, "not the longest match");
        } else {
            assert!(num_found <= longest, "found what is not there");
            if self.settle() {
                assert!(num_found >= self.least_visible_match(&kv), "a visible match is missed");
            }
            self.coverage.num_hidden_matches += u64::from(num_found < longest);
        }
        let key = self.real.next_key_of_match(&self.found, tokens);
        let end = (num_found / self.size + 1) * self.size;
        let has_keys =
            self.config.content_hash.is_some() && self.config.prefix_caching == PrefixCaching::On;
        let expected =
            (has_keys && tokens.len() > end).then(|| self.key(namespace, &tokens[..end]));
        assert_eq!(key, expected);
    }

    /// Admits a sequence, if there is room for its prompt.
    fn admit(&mut self) {
        let (start, tokens) = self.prompt();
        if start.prefix_caching == PrefixCaching::On {
            self.find(start.namespace, &tokens);
        } else {
            self.found.reset(start.namespace);
        }
        if self.random.one_in(4) {
            self.found.keep_full_blocks();
            assert_eq!(self.found.num_tokens() as usize % self.size, 0);
        }
        let num_tokens = u32::try_from(tokens.len()).unwrap();
        if !self.real.has_room(&self.found, num_tokens, start.shape, 0) {
            return;
        }
        let num_found = self.found.num_tokens();
        let table = self.real.start(&self.found, start, &mut self.transfers);
        assert_eq!(table.num_computed_tokens(), num_found);
        self.flush();
        self.coverage.num_hit_tokens += u64::from(num_found);
        self.coverage.num_partial_hits +=
            u64::from(num_found > self.found.num_blocks() * self.config.block_size.tokens());
        let kv = self.prefixes.kv(start.namespace, &tokens);
        self.history.push(tokens.clone());
        self.sequences.push(Sequence { start, tokens, kv, table });
        if self.random.one_in(3) {
            self.restore(self.sequences.len() - 1);
        }
        let is_at_once = self.config.window.is_none();
        let newest = self.sequences.len() - 1;
        if self.random.one_in(2) {
            // What `has_room` promised: all at once, or in small steps where there are windows.
            while self.sequences[newest].table.num_computed_tokens() < num_tokens {
                let step = if is_at_once { num_tokens } else { 1 };
                let computed = self.sequences[newest].table.num_computed_tokens();
                let target = (computed + step).min(num_tokens);
                assert!(self.advance(newest, target), "there was room");
            }
        }
    }

    /// Computes some of a sequence's tokens, or generates one when all are computed.
    fn compute(&mut self, i: usize) {
        let sequence = &mut self.sequences[i];
        let computed = sequence.table.num_computed_tokens();
        let mut num_pending = u32::try_from(sequence.tokens.len()).unwrap() - computed;
        if num_pending == 0 {
            sequence.tokens.push(self.random.below(self.num_letters));
            let Sequence { start, tokens, .. } = sequence;
            sequence.kv = self.prefixes.kv(start.namespace, tokens);
            num_pending = 1;
        }
        let target = computed + 1 + self.random.below(num_pending);
        let obtainable = self.real.num_obtainable_slots(&self.sequences[i].table);
        let obtained = self.advance(i, target);
        assert_eq!(obtained, target - computed <= obtainable);
        if obtained {
            let sequence = &self.sequences[i];
            self.history.push(sequence.tokens[..target as usize].to_vec());
        } else {
            self.coverage.num_failed_allocations += 1;
        }
        if self.history.len() > MAX_HISTORY {
            let i = self.random.index_of(&self.history).unwrap();
            self.history.swap_remove(i);
        }
    }

    /// Computes a sequence's tokens up to `target`; `false` when there is no memory for them.
    fn advance(&mut self, i: usize, target: u32) -> bool {
        let before = self.real.stats();
        let table = &mut self.sequences[i].table;
        let num_blocks = table.blocks().len();
        if self.real.allocate(table, target, &mut self.transfers).is_err() {
            assert_eq!(table.blocks().len(), num_blocks);
            assert_eq!(self.real.stats(), before, "a failed allocation changes something");
            self.flush();
            return false;
        }
        self.flush();
        self.check_readable(&self.sequences[i]);
        let Sequence { table, tokens, kv, .. } = &mut self.sequences[i];
        let computed = table.num_computed_tokens() as usize;
        for (at, &kv) in kv[..target as usize].iter().enumerate().skip(computed) {
            let block = table.blocks()[at / self.size];
            assert_eq!(self.real.block(block).ref_count, 1, "others read what is written");
            self.memory.write(block, at % self.size, kv);
        }
        let written = table.blocks().to_vec();
        self.real.mark_computed(table, &tokens[..target as usize]);
        let replaced = written.iter().zip(table.blocks()).filter(|(old, new)| old != new).count();
        self.coverage.num_blocks_that_gave_way += replaced as u64;
        true
    }

    /// Fills the next block of a sequence from the tier, if it is there.
    fn restore(&mut self, i: usize) {
        let Sequence { start, tokens, table, kv } = &mut self.sequences[i];
        let computed = table.num_computed_tokens() as usize;
        let end = computed + self.size;
        let key = self.real.next_key(table, tokens);
        let is_keyed = self.config.content_hash.is_some()
            && self.config.prefix_caching == PrefixCaching::On
            && start.prefix_caching == PrefixCaching::On
            && computed.is_multiple_of(self.size)
            && tokens.len() > end;
        let Some(key) = key else {
            // With windows, a table whose block found no room to give way has no keys.
            assert!(!is_keyed || self.config.window.is_some());
            return;
        };
        assert!(is_keyed);
        let Some(saved) = self.memory.tier.get(&key).cloned() else { return };
        assert_eq!(saved, kv[computed..end], "a key stands for something else");
        if self.advance(i, u32::try_from(end).unwrap()) {
            self.coverage.num_restores += 1;
        }
    }

    fn fork(&mut self, i: usize) {
        let Sequence { start, tokens, kv, table } = &self.sequences[i];
        let (start, tokens, kv) = (*start, tokens.clone(), kv.clone());
        let table = self.real.fork(table).unwrap();
        assert_eq!(table.num_computed_tokens(), self.sequences[i].table.num_computed_tokens());
        let num_blocks = (table.num_computed_tokens() as usize).div_ceil(self.size);
        assert_eq!(table.blocks(), &self.sequences[i].table.blocks()[..num_blocks]);
        let mut forked = Sequence { start, tokens, kv, table };
        // The fork goes on by itself.
        forked.tokens.truncate(forked.table.num_computed_tokens() as usize);
        forked.kv.truncate(forked.tokens.len());
        self.sequences.push(forked);
    }

    /// Ends a sequence and checks that all it computed is found, where it is to be kept.
    fn end(&mut self, sequence: Sequence) {
        let Sequence { start, mut tokens, table, .. } = sequence;
        let computed = table.num_computed_tokens() as usize;
        let tail = table.blocks().get(computed / self.size);
        let num_holders = tail.map_or(0, |&tail| self.real.block(tail).ref_count);
        self.real.free(table);
        tokens.truncate(computed);
        tokens.push(0);
        let is_kept = self.config.prefix_caching == PrefixCaching::On
            && start.prefix_caching == PrefixCaching::On
            && self.config.window.is_none();
        if is_kept {
            self.real.match_prefix(start.namespace, &tokens, &mut self.found);
            let num_found = self.found.num_tokens() as usize;
            // An open tail that a fork still holds is found when the fork ends.
            let num_kept =
                if num_holders > 1 { computed / self.size * self.size } else { computed };
            assert!((num_kept..=computed).contains(&num_found), "what ended is kept");
        }
    }

    fn trim(&mut self, keep_blocks: u32) {
        let before = self.real.stats().num_cached_blocks;
        self.real.trim(keep_blocks, &mut self.transfers);
        self.flush();
        let after = self.real.stats().num_cached_blocks;
        // A part is evicted at a time, so that no more goes than has to.
        assert_eq!(after, before.min(keep_blocks));
        for block in self.blocks().filter(|&block| self.state(block) == BlockState::Free) {
            assert!(!self.memory.is_committed(block), "free block {} has memory", block.0);
        }
    }

    /// Gets the transfers of calls that could not tell them; `false` when there is none to ask.
    fn settle(&mut self) -> bool {
        let Some(Sequence { table, .. }) = self.sequences.first_mut() else { return false };
        let computed = table.num_computed_tokens();
        self.real.allocate(table, computed, &mut self.transfers).unwrap();
        self.flush();
        true
    }

    fn flush(&mut self) {
        self.memory.transfer(&self.transfers);
        self.transfers.clear();
    }

    /// Returns how many of the tokens with this KV some block holds, the last one left out.
    fn longest_match(&self, kv: &[Kv]) -> usize {
        let resident = self.resident();
        let matchable = &kv[..kv.len() - 1];
        let holds_end = |block: &&[Kv]| resident.contains(&block[self.size - 1]);
        let num_full = matchable.chunks_exact(self.size).take_while(holds_end).count() * self.size;
        let open = matchable[num_full..].iter().take(self.size);
        num_full + open.take_while(|kv| resident.contains(kv)).count()
    }

    /// Returns all KV that lookups must find: in cached blocks, and in the full blocks of sequences
    /// that are to be found.
    fn resident(&self) -> BTreeSet<Kv> {
        let mut resident = BTreeSet::new();
        let mut add = |block: BlockId| {
            let num_tokens = self.real.block(block).num_tokens as usize;
            resident.extend((0..num_tokens).map(|i| self.memory.full(block, i).unwrap()));
        };
        self.blocks().filter(|&block| self.state(block) == BlockState::Cached).for_each(&mut add);
        for sequence in &self.sequences {
            if sequence.start.prefix_caching == PrefixCaching::On {
                let num_full = sequence.table.num_computed_tokens() as usize / self.size;
                sequence.table.blocks()[..num_full].iter().copied().for_each(&mut add);
            }
        }
        resident
    }

    /// Returns how many tokens of full blocks can certainly be found although only some window
    /// parts are there: up to a cached block, where every copy of what its successor sees is whole.
    fn least_visible_match(&self, kv: &[Kv]) -> usize {
        let window = self.config.window.unwrap().num_tokens as usize;
        let holders = |at: usize| {
            let offset = at % self.size;
            self.blocks().filter(move |&block| {
                let num_tokens = self.real.block(block).num_tokens as usize;
                offset < num_tokens && self.memory.full(block, offset) == Some(kv[at])
            })
        };
        let is_visible = |end: usize| {
            let is_whole =
                |at: usize| holders(at).all(|b| self.memory.window(b, at % self.size).is_some());
            let is_cached = holders(end - 1).any(|block| self.state(block) == BlockState::Cached);
            is_cached && ((end + 1).saturating_sub(window)..end).all(is_whole)
        };
        let ends = (1..).map(|i| i * self.size).take_while(|&end| end < kv.len());
        ends.filter(|&end| is_visible(end)).max().unwrap_or(0)
    }

    /// Checks that a sequence can read all that its next token sees through the window.
    fn check_readable(&self, sequence: &Sequence) {
        let Some(window) = self.config.window else { return };
        let Sequence { table, kv, .. } = sequence;
        let computed = table.num_computed_tokens() as usize;
        let first_visible = (computed + 1).saturating_sub(window.num_tokens as usize);
        for (at, &kv) in kv[..computed].iter().enumerate().skip(first_visible) {
            let held = self.memory.window(table.blocks()[at / self.size], at % self.size);
            assert_eq!(held, Some(kv), "token {at} of {computed}");
        }
    }

    /// Checks everything that holds between operations.
    fn check(&self) {
        let tables: Vec<_> = self.sequences.iter().map(|sequence| &sequence.table).collect();
        self.real.check_invariants(&tables);
        let mut num_computed_tokens = 0;
        for Sequence { table, kv, .. } in &self.sequences {
            let computed = table.num_computed_tokens() as usize;
            num_computed_tokens += computed as u64;
            for (at, &expected) in kv[..computed].iter().enumerate() {
                let held = self.memory.full(table.blocks()[at / self.size], at % self.size);
                assert_eq!(held, Some(expected), "token {at}");
            }
        }
        let stats = self.real.stats();
        assert_eq!(stats.num_live_tokens + stats.num_shared_tokens, num_computed_tokens);
        assert_eq!(stats.num_allocated_slots - stats.num_live_tokens, stats.waste.internal_slots);
        let num_used = stats.num_active_blocks + stats.num_cached_blocks;
        assert_eq!(stats.num_free_blocks + num_used, self.config.num_blocks);
    }

    fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.real.num_block_ids()).map(BlockId)
    }

    fn state(&self, block: BlockId) -> BlockState {
        self.real.block(block).state
    }

    fn key(&self, namespace: Namespace, tokens: &[TokenId]) -> BlockKey {
        let blocks = tokens.chunks_exact(self.size);
        blocks.fold(BlockKey::root(namespace), |key, block| content_hash(&key, block))
    }
}
