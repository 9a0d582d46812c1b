//! What a prefix cache without end could save: the bound that hit rates are held against.
//!
//! Counted in tokens over the same requests in the order of their arrival: all that a prompt has in
//! common with any earlier one counts, but for its last token, which is always computed. O(ids)
//! for each request and O(log siblings) where it leaves all earlier ones.

use crate::simulated_prompt::{content_word, num_common_tokens};
use mini_infer_core::FixedHashMap;
use mini_infer_trace::{TOKENS_PER_ID, TraceRequest};
use std::collections::BTreeSet;

/// One id after a certain prefix.
#[derive(Clone, Copy, Debug)]
struct Node {
    index: usize,
    /// Tokens of the id that some prompt had: fewer than 512 where prompts only end there.
    num_tokens: u32,
}

/// All prompts so far as a tree of content ids.
#[derive(Default)]
struct PrefixTree {
    /// By index of the node before and id.
    nodes: FixedHashMap<(usize, u64), Node>,
    /// First words of the ids that follow a node, by its index.
    first_words: Vec<BTreeSet<u64>>,
}

impl PrefixTree {
    /// Adds a prompt and returns how many of its tokens earlier ones began with.
    fn add(&mut self, request: &TraceRequest) -> u32 {
        let mut num_hit_tokens = 0;
        let mut is_known = true;
        let mut parent = 0;
        let mut num_left = request.num_prompt_tokens;
        for &id in &request.content_ids {
            let num_tokens = num_left.min(TOKENS_PER_ID);
            num_left -= num_tokens;
            let num_known = self.insert(parent, id, num_tokens);
            if is_known {
                num_hit_tokens += num_known;
                is_known = num_known == num_tokens;
            }
            parent = self.nodes[&(parent, id)].index;
        }
        num_hit_tokens.min(request.num_prompt_tokens - 1)
    }

    /// Adds the first `num_tokens` tokens of `id` after a node and returns how many of them were
    /// known there.
    fn insert(&mut self, parent: usize, id: u64, num_tokens: u32) -> u32 {
        if let Some(node) = self.nodes.get_mut(&(parent, id)) {
            let num_known = node.num_tokens.min(num_tokens);
            node.num_tokens = node.num_tokens.max(num_tokens);
            return num_known;
        }
        let index = self.nodes.len() + 1;
        self.nodes.insert((parent, id), Node { index, num_tokens });
        self.first_words.resize_with(index + 1, BTreeSet::new);
        let word = content_word(id, 0);
        let siblings = &mut self.first_words[parent];
        // Words are ordered as their tokens are, so the neighbours have most in common.
        let neighbours = [siblings.range(..=word).next_back(), siblings.range(word..).next()];
        let common = neighbours.into_iter().flatten().map(|&near| num_common_tokens(near, word));
        let num_known = common.max().unwrap_or(0).min(num_tokens);
        siblings.insert(word);
        num_known
    }
}

/// Returns the share of all prompt tokens that an endless prefix cache would save.
#[must_use]
pub fn hit_rate_bound(requests: &[TraceRequest]) -> f64 {
    let mut tree = PrefixTree::default();
    let (mut num_hit_tokens, mut num_prompt_tokens) = (0, 0);
    for request in requests {
        num_prompt_tokens += u64::from(request.num_prompt_tokens);
        if !request.content_ids.is_empty() {
            num_hit_tokens += u64::from(tree.add(request));
        }
    }
    num_hit_tokens as f64 / num_prompt_tokens.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(num_prompt_tokens: u32, content_ids: &[u64]) -> TraceRequest {
        TraceRequest {
            arrival: Duration::ZERO,
            num_prompt_tokens,
            num_output_tokens: 1,
            content_ids: content_ids.into(),
        }
    }

    /// Compares every prompt with every earlier one, token by token.
    fn naive_bound(requests: &[TraceRequest]) -> f64 {
        let prompts: Vec<_> = (0..)
            .zip(requests)
            .map(|(i, request)| crate::simulated_prompt::prompt(request, i))
            .collect();
        let mut num_hit_tokens = 0;
        for (i, (namespace, prompt)) in prompts.iter().enumerate() {
            let common = prompts[..i].iter().filter(|(other, _)| other == namespace);
            let longest = common.map(|(_, other)| {
                prompt.iter().zip(other).take_while(|(token, other)| token == other).count()
            });
            num_hit_tokens += longest.max().unwrap_or(0).min(prompt.len() - 1);
        }
        let num_tokens: usize = prompts.iter().map(|(_, prompt)| prompt.len()).sum();
        num_hit_tokens as f64 / num_tokens as f64
    }

    #[test]
    fn the_bound_is_what_comparing_all_prompts_gives() {
        let requests = [
            request(1024, &[0, 1]),
            request(1024, &[0, 1]),
            request(700, &[0, 2]),
            request(1500, &[0, 2, 3]),
            request(1024, &[4, 5]),
            request(90, &[]),
            request(90, &[]),
            request(1600, &[0, 2, 6, 7]),
            request(513, &[0, 1]),
        ];
        assert_eq!(hit_rate_bound(&requests), naive_bound(&requests));
        let many: Vec<_> = (10..60).map(|id| request(600, &[id % 3, id])).collect();
        assert_eq!(hit_rate_bound(&many), naive_bound(&many));
    }
}
