//! Prompts for a recorded trace: texts of the recorded lengths that share what the prompts shared.
//!
//! A trace knows its prompts by ids, one for 512 tokens each. Every id becomes 512 tokens' worth of
//! words, by what came before it and its own number, so prompts with equal ids at equal positions
//! have equal words there. Where ids part, the first word is one that no other continuation has, so
//! prompts share exactly the words that their ids share. Scaling moves the ends of all ids alike,
//! and sharing scales with the lengths.

use super::Prompt;
use super::lengths::whole;
use super::synthetic::SharedPrefix;
use super::words::{Names, WordList, stream};
use crate::error::ServebenchError;
use mini_infer_trace::{TOKENS_PER_ID, Trace, TraceRequest};
use std::collections::HashMap;
use std::path::Path;

/// A place in the tree of prefixes: what one id stands for after all before it.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Number of the node; no other has it.
    number: u64,
    /// How many nodes before it have the same parent.
    sibling: usize,
}

/// A trace, and the words that its ids stand for.
#[derive(Clone, Debug)]
pub(super) struct TracePrompts {
    words: WordList,
    requests: Vec<TraceRequest>,
    /// The path of each request through the tree; as long as its ids, or one without ids.
    paths: Vec<Vec<Node>>,
    source: String,
    /// By what lengths are multiplied.
    scale: f64,
}

impl TracePrompts {
    /// Reads an Azure or a Mooncake trace.
    ///
    /// # Errors
    /// When the file cannot be read or is not as its format says.
    pub(super) fn read(path: &Path, words: WordList, scale: f64) -> Result<Self, ServebenchError> {
        let trace = Trace::read(path)?;
        let paths = paths(&trace.requests);
        let source = format!("trace:{}", trace.name);
        Ok(Self { words, requests: trace.requests, paths, source, scale })
    }

    /// Returns how many requests were recorded.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the first prompts, with the arrivals that were recorded.
    pub(super) fn prompts(&self, num_prompts: usize, seed: u64) -> Vec<Prompt> {
        let names = self.words.names(seed);
        let recorded = self.requests.iter().zip(&self.paths).take(num_prompts);
        let prompt = |(request, path): (&TraceRequest, &Vec<Node>)| Prompt {
            turns: vec![self.text(request.num_prompt_tokens, path, &names, seed)],
            source: self.source.clone(),
            output_len: Some(self.scaled(request.num_output_tokens)),
            arrival: Some(request.arrival),
        };
        recorded.map(prompt).collect()
    }

    fn text(&self, num_tokens: u32, path: &[Node], names: &Names, seed: u64) -> String {
        let length = self.scaled(num_tokens) as usize;
        let mut text = self.words.text_after(&SharedPrefix::default());
        let mut rng = stream(seed, 0);
        for (node, number) in path.iter().zip(1_u32..) {
            let recorded_end = num_tokens.min(TOKENS_PER_ID.saturating_mul(number));
            let is_last = number as usize == path.len();
            let end = if is_last { length } else { self.scaled(recorded_end) as usize };
            rng = stream(seed, node.number);
            text.push(&names.name(node.sibling), end);
            text.fill(end, &mut rng);
        }
        text.finish(&mut rng)
    }

    fn scaled(&self, num_tokens: u32) -> u32 {
        whole(f64::from(num_tokens) * self.scale)
    }
}

/// Returns the path of each request through the tree of all prefixes.
fn paths(requests: &[TraceRequest]) -> Vec<Vec<Node>> {
    const ROOT: u64 = 0;
    let mut nodes: HashMap<(u64, u64), Node> = HashMap::new();
    let mut num_children: HashMap<u64, usize> = HashMap::new();
    let mut num_nodes = 0;
    let mut child = |parent: u64| {
        num_nodes += 1;
        let sibling = num_children.entry(parent).or_default();
        *sibling += 1;
        Node { number: num_nodes, sibling: *sibling - 1 }
    };
    let mut path = |request: &TraceRequest| {
        if request.content_ids.is_empty() {
            return vec![child(ROOT)];
        }
        let mut parent = ROOT;
        let step = |&id: &u64| {
            let node = *nodes.entry((parent, id)).or_insert_with(|| child(parent));
            parent = node.number;
            node
        };
        request.content_ids.iter().map(step).collect()
    };
    requests.iter().map(&mut path).collect()
}

#[cfg(test)]
mod tests {
    use super::super::token_counter::tests::counter;
    use super::*;
    use rand::RngExt;
    use std::fs;

    /// Requests whose ids share prefixes of every length: a random walk down a small tree.
    fn generated() -> Vec<(u32, Vec<u64>)> {
        let mut rng = stream(11, 0);
        let request = |_| {
            let num_ids = rng.random_range(1..6_u32);
            let mut parent = 0;
            let ids = (0..num_ids).map(|_| {
                parent = parent * 3 + rng.random_range(1..4_u64);
                parent
            });
            let ids: Vec<u64> = ids.collect();
            (TOKENS_PER_ID * num_ids - rng.random_range(0..TOKENS_PER_ID), ids)
        };
        (0..60).map(request).collect()
    }

    fn read(requests: &[(u32, Vec<u64>)], words: WordList, scale: f64) -> TracePrompts {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let line = |(number, (length, ids)): (usize, &(u32, Vec<u64>))| {
            format!(
                "{{\"timestamp\": {}, \"input_length\": {length}, \"output_length\": 40, \
                 \"hash_ids\": {ids:?}}}\n",
                number * 500
            )
        };
        fs::write(&path, requests.iter().enumerate().map(line).collect::<String>()).unwrap();
        TracePrompts::read(&path, words, scale).unwrap()
    }

    fn num_shared(a: &str, b: &str) -> usize {
        a.split(' ').zip(b.split(' ')).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_share_as_many_words_as_their_ids_share_tokens() {
        let requests = generated();
        let prompts = read(&requests, WordList::new(None), 1.0).prompts(60, 5);
        for (a, (a_len, a_ids)) in prompts.iter().zip(&requests) {
            assert_eq!(a.turns[0].split(' ').count(), *a_len as usize);
            for (b, (b_len, b_ids)) in prompts.iter().zip(&requests) {
                let num_ids = a_ids.iter().zip(b_ids).take_while(|(a, b)| a == b).count();
                let shared = (num_ids * TOKENS_PER_ID as usize).min(*a_len.min(b_len) as usize);
                assert_eq!(num_shared(&a.turns[0], &b.turns[0]), shared, "{a_ids:?} {b_ids:?}");
            }
        }
    }

    #[test]
    fn scaled_prompts_share_the_same_part_of_their_length() {
        let requests = [(1024, vec![1, 2]), (1500, vec![1, 2, 3]), (1536, vec![1, 2, 4])];
        for (scale, expected) in [(0.25, 256), (0.3, 307), (1.5, 1536), (0.001, 1)] {
            let prompts = read(&requests, WordList::new(None), scale).prompts(3, 5);
            let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.turns[0].as_str()).collect();
            assert_eq!(num_shared(texts[0], texts[1]), expected);
            assert_eq!(num_shared(texts[1], texts[2]), expected);
            assert_eq!(texts[0].split(' ').count(), expected);
            let output_len = whole(40.0 * scale);
            assert!(prompts.iter().all(|prompt| prompt.output_len == Some(output_len)));
            let arrivals: Vec<u128> =
                prompts.iter().map(|prompt| prompt.arrival.unwrap().as_millis()).collect();
            assert_eq!(arrivals, [0, 500, 1000]);
        }
    }

    #[test]
    fn sharing_holds_in_tokens_of_a_tokenizer() {
        let counter = counter(&[]);
        let requests = [(700, vec![1, 2]), (900, vec![1, 3])];
        let prompts = read(&requests, WordList::new(Some(&counter)), 1.0).prompts(2, 5);
        let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.turns[0].as_str()).collect();
        let lengths: Vec<usize> = texts.iter().map(|text| counter.count(text)).collect();
        assert_eq!(lengths, [700, 900]);
    }

    #[test]
    fn requests_without_ids_share_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("azure.csv");
        let rows: String =
            (0..700).map(|at| format!("2023-11-16 18:15:{:02}.5,9,4\n", at % 60)).collect();
        fs::write(&path, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")).unwrap();
        let prompts = TracePrompts::read(&path, WordList::new(None), 1.0).unwrap();
        assert_eq!(prompts.len(), 700);
        let texts = prompts.prompts(700, 1);
        let starts: std::collections::HashSet<&str> =
            texts.iter().map(|prompt| prompt.turns[0].split(' ').next().unwrap()).collect();
        assert_eq!(starts.len(), 700);
        assert_eq!(prompts.prompts(3, 1), texts[..3]);
    }
}
