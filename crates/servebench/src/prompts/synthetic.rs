//! Prompts of random words: an instruction, a word that no other prompt has there, random words.
//!
//! Equal seeds give equal prompts, and a longer list begins with a shorter one. Two prompts of a
//! list agree in the shared prefix and the instruction and differ in the next word, so a server's
//! prefix cache finds nothing that it was not meant to find. Prompts too short for such a word (1 to
//! 4 tokens, in lists of more than 512) are random only.

use super::lengths;
use super::words::{WordList, stream};
use crate::results::LengthDist;
use rand::rngs::StdRng;

/// What a model is told to do; cut to a quarter of the prompt.
const INSTRUCTION: &str = "Tell a long story in which each of these words occurs";

/// How much shorter a follow-up is than the opening of its conversation.
const FOLLOW_UP_SHARE: usize = 4;

/// Text that several prompts begin with.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedPrefix {
    /// The words.
    pub(super) text: String,
    /// How many tokens they are.
    pub(super) num_tokens: usize,
}

impl SharedPrefix {
    /// Makes one of random words.
    pub(super) fn new(words: &WordList, num_tokens: usize, seed: u64) -> Self {
        // No prompt has this number, so none repeats these words.
        let mut rng = stream(seed, u64::MAX - 1);
        Self { text: random_text(words, num_tokens, &mut rng), num_tokens }
    }
}

/// What made-up prompts are like.
#[derive(Clone, Debug)]
pub(super) struct SyntheticPrompts {
    /// What they consist of.
    pub(super) words: WordList,
    /// Tokens of an opening, the shared prefix among them.
    pub(super) input_len: u32,
    /// How the tokens of openings spread.
    pub(super) input_dist: LengthDist,
    /// What all begin with.
    pub(super) shared_prefix: SharedPrefix,
}

impl SyntheticPrompts {
    /// Returns the turns of each conversation: the opening, then follow-ups of a quarter of its
    /// length.
    pub(super) fn conversations(
        &self,
        num_conversations: usize,
        num_turns: usize,
        seed: u64,
    ) -> Vec<Vec<String>> {
        let names = self.words.names(seed);
        let turns = |number: usize| {
            let mut rng = stream(seed, number as u64);
            let length = lengths::sample(self.input_dist, self.input_len, &mut rng) as usize;
            // At least one token of its own, however short the distribution made it.
            let length = length.max(self.shared_prefix.num_tokens + 1);
            let mut turns = vec![self.opening(length, &names.name(number), &mut rng)];
            turns.extend(follow_ups(&self.words, num_turns - 1, length, &mut rng));
            turns
        };
        (0..num_conversations).map(turns).collect()
    }

    fn opening(&self, length: usize, name: &str, rng: &mut StdRng) -> String {
        let prefix_len = self.shared_prefix.num_tokens;
        let mut text = self.words.text_after(&self.shared_prefix);
        let instruction_end = prefix_len + (length - prefix_len) / 4;
        for word in INSTRUCTION.split(' ') {
            if !text.push(word, instruction_end) {
                break;
            }
        }
        text.push(name, length);
        text.fill(length, rng);
        text.finish(rng)
    }
}

/// Returns what a user says later in a conversation: random words, each text a quarter of the
/// opening's length.
pub(super) fn follow_ups(
    words: &WordList,
    num_follow_ups: usize,
    opening_len: usize,
    rng: &mut StdRng,
) -> Vec<String> {
    let length = (opening_len / FOLLOW_UP_SHARE).max(1);
    (0..num_follow_ups).map(|_| random_text(words, length, rng)).collect()
}

fn random_text(words: &WordList, num_tokens: usize, rng: &mut StdRng) -> String {
    let mut text = words.text_after(&SharedPrefix::default());
    text.fill(num_tokens, rng);
    text.finish(rng)
}

#[cfg(test)]
mod tests {
    use super::super::token_counter::tests::counter;
    use super::*;
    use std::collections::HashSet;

    fn prompts(input_len: u32, counter: Option<&super::super::TokenCounter>) -> SyntheticPrompts {
        SyntheticPrompts {
            words: WordList::new(counter),
            input_len,
            input_dist: LengthDist::Fixed,
            shared_prefix: SharedPrefix::default(),
        }
    }

    fn openings(prompts: &SyntheticPrompts, num_prompts: usize, seed: u64) -> Vec<String> {
        let conversations = prompts.conversations(num_prompts, 1, seed);
        conversations.into_iter().map(|mut turns| turns.remove(0)).collect()
    }

    #[test]
    fn equal_seeds_give_equal_prompts_and_longer_lists_go_on() {
        let prompts = prompts(32, None);
        let five = openings(&prompts, 5, 7);
        assert_eq!(five, openings(&prompts, 9, 7)[..5]);
        assert_ne!(five, openings(&prompts, 5, 8));
    }

    #[test]
    fn prompts_have_as_many_words_as_asked_for_and_share_only_the_instruction() {
        let num_instruction_words = INSTRUCTION.split(' ').count();
        for input_len in [1, 2, 3, 8, 40, 256] {
            let openings = openings(&prompts(input_len, None), 500, 3);
            let shared = num_instruction_words.min(input_len as usize / 4);
            for opening in &openings {
                assert_eq!(opening.split(' ').count(), input_len as usize);
            }
            let starts: HashSet<Vec<&str>> =
                openings.iter().map(|text| text.split(' ').take(shared + 1).collect()).collect();
            assert_eq!(starts.len(), openings.len(), "{input_len} tokens");
            let instructions: HashSet<Vec<&str>> =
                openings.iter().map(|text| text.split(' ').take(shared).collect()).collect();
            assert_eq!(instructions.len(), 1, "{input_len} tokens");
        }
    }

    #[test]
    fn thousands_of_prompts_differ_in_the_word_after_the_instruction() {
        let openings = openings(&prompts(16, None), 5000, 3);
        let words: HashSet<&str> =
            openings.iter().map(|text| text.split(' ').nth(4).unwrap()).collect();
        assert_eq!(words.len(), 5000);
    }

    #[test]
    fn a_tokenizer_makes_lengths_exact_even_where_words_are_many_tokens() {
        for merges in [&[][..], &["t h", "th e"]] {
            let counter = counter(merges);
            for input_len in [1, 5, 64, 301] {
                for opening in openings(&prompts(input_len, Some(&counter)), 20, 1) {
                    assert_eq!(counter.count(&opening), input_len as usize, "{opening}");
                }
            }
        }
    }

    #[test]
    fn all_prompts_begin_with_the_shared_prefix_and_differ_after_it() {
        let mut prompts = prompts(64, None);
        prompts.shared_prefix = SharedPrefix::new(&prompts.words, 40, 1);
        let openings = openings(&prompts, 50, 2);
        let end = 40 + 24 / 4;
        let start = |text: &String, len| text.split(' ').take(len).map(str::to_owned).collect();
        let prefixes: HashSet<Vec<String>> = openings.iter().map(|text| start(text, end)).collect();
        assert_eq!(prefixes.len(), 1);
        assert!(openings[0].starts_with(&prompts.shared_prefix.text));
        let longer: HashSet<Vec<String>> =
            openings.iter().map(|text| start(text, end + 1)).collect();
        assert_eq!(longer.len(), 50);
        assert!(openings.iter().all(|text| text.split(' ').count() == 64));
    }

    #[test]
    fn follow_ups_are_a_quarter_of_the_opening() {
        let conversations = prompts(40, None).conversations(3, 4, 1);
        for turns in &conversations {
            let lengths: Vec<usize> = turns.iter().map(|turn| turn.split(' ').count()).collect();
            assert_eq!(lengths, [40, 10, 10, 10]);
        }
        assert_ne!(conversations[0][1], conversations[1][1]);
    }
}
