//! Words that made-up prompts consist of, and texts of a given number of tokens.
//!
//! Each word of the list is one token, at the start of a text and after a space, in byte-level
//! vocabularies of the GPT-2 kind (checked with that of SmolLM2, 49,152 tokens), so that as many
//! words are about as many tokens in any. With a tokenizer, texts have exactly the number asked
//! for. Cost: a random number for each word; a text is counted as a whole only where the words'
//! own counts do not add up.

use super::synthetic::SharedPrefix;
use super::token_counter::TokenCounter;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// Common English words.
const WORDS: &str = "\
    able about act add after again age ago air all allow also always amount animal another answer \
    any apple area arm art ask away bad bag ball band bank bar base bath bear beat bed begin being \
    best better bird bit black blue boat body bone book born both bottom box branch bright build \
    busy buy call can cap car card care case cat catch cause center chair change check choice \
    church circle city class clean clear clock close cloth coach cold color come common company \
    cook cool corn count country course cover cross current dark date day deal deep direct doctor \
    dog door double down draw dream drive drop dust duty ear early earth east easy eat edge egg \
    eight empty end engine enter equal even event ever every eye face fact fair fall family far \
    farm fast feel field fill film final find finger first fish five floor flow flower fly follow \
    foot force forest form four free fresh friend front fruit full fun future gate give goal good \
    grand grass green group grow guard guess guide hair hall hand happy hard hat head health heart \
    heat here high hill history hold hole home hot hour house human hundred ice idea image inside \
    iron join jump just key kind know lake land language large last late law lead leaf learn leave \
    left leg letter level life lift light like list listen live local long look love mail make map \
    mark market match matter meal mean meat member might mile milk minute miss moment money month \
    more most mouth move movie much music name nation nature near neck need never new news next \
    night nine noise north nose note nothing now number object off offer often oil old once one \
    open orange other outside over own pair paper park part party pass path pay peace people \
    perfect person phone picture piece place plain plan plane plant plate play please point port \
    post pot pound present press price print problem pull push put question quick race rain raise \
    reach read ready reason red report rest rice ride right ring rise road rock role room root \
    rose round row safe salt same sand save say scale school science score sea season seat secret \
    see seed sell send sense set seven share sheet ship shirt short should show shut sign simple \
    sing single site six size skill sky sleep slow small smart snow soft soil some song soon sort \
    sound soup space speed spirit spot spring square staff stage stand star start state station \
    stay still stock stop store storm story street strong student study style sugar sun surface \
    sweet table tail take talk tall team ten thank thick thin thing think third three time tiny \
    title today together tone tool top total touch tower town trade train travel tree trip true \
    trust try turn two under unit use usual value very view visit wait walk want warm wash watch \
    water wave wear weather week weight well west wheel white whole wide wild wind window wing \
    winter wood word work write yard young zero";

/// With fewer words than this left, a tokenizer gets them all and texts are counted as a whole.
const MIN_WORDS: usize = 64;

/// Random words whose counts are checked against that of the text they make.
const NUM_CHECKED_WORDS: usize = 256;

/// Attempts to reach an exact count; each comes nearer, and two are enough for any tokenizer seen.
const MAX_FITTINGS: usize = 16;

/// Returns a stream of random numbers that depends on both numbers.
pub(super) fn stream(seed: u64, number: u64) -> StdRng {
    // The golden ratio of 2^64 spreads neighbouring numbers, as in SplitMix64.
    StdRng::seed_from_u64(seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The words, and what they count in the tokenizer of a run.
#[derive(Clone, Debug)]
pub(super) struct WordList {
    words: Vec<&'static str>,
    counter: Option<TokenCounter>,
    /// Whether words count in a text what they count alone.
    adds_up: bool,
}

impl WordList {
    /// Takes the words that are single tokens; without a tokenizer, all.
    pub(super) fn new(counter: Option<&TokenCounter>) -> Self {
        let all: Vec<&str> = WORDS.split(' ').collect();
        let Some(counter) = counter else {
            return Self { words: all, counter: None, adds_up: true };
        };
        let is_single =
            |word: &&str| counter.count(word) == 1 && counter.count(&format!("{word} {word}")) == 2;
        let single: Vec<&str> = all.iter().copied().filter(is_single).collect();
        let words = if single.len() >= MIN_WORDS { single } else { all };
        let mut rng = stream(0, 0);
        let checked: Vec<&str> =
            (0..NUM_CHECKED_WORDS).map(|_| words[rng.random_range(..words.len())]).collect();
        let adds_up = counter.count(&checked.join(" ")) == NUM_CHECKED_WORDS;
        Self { words, counter: Some(counter.clone()), adds_up }
    }

    /// Returns names in an order of the seed's.
    pub(super) fn names(&self, seed: u64) -> Names {
        let mut words = self.words.clone();
        words.shuffle(&mut StdRng::seed_from_u64(seed));
        Names { words }
    }

    /// Starts a text after a prefix, which may be empty.
    pub(super) fn text_after(&self, prefix: &SharedPrefix) -> WordText<'_> {
        WordText { list: self, text: prefix.text.clone(), num_tokens: prefix.num_tokens }
    }

    /// Returns what a word adds to a text.
    fn num_tokens(&self, word: &str, text: &str) -> usize {
        let Some(counter) = &self.counter else {
            // A hyphen is a token.
            return 1 + 2 * word.matches('-').count();
        };
        if text.is_empty() {
            counter.count(word)
        } else {
            counter.count(&format!("a {word}")).saturating_sub(counter.count("a"))
        }
    }
}

/// Words that differ for different numbers: one of the list, or several with hyphens between.
#[derive(Clone, Debug)]
pub(super) struct Names {
    words: Vec<&'static str>,
}

impl Names {
    /// Returns the word of a number.
    pub(super) fn name(&self, number: usize) -> String {
        let base = self.words.len();
        let mut name = self.words[number % base].to_owned();
        let mut rest = number / base;
        while rest > 0 {
            // Counted from 1, so that no name ends in a digit that means nothing.
            rest -= 1;
            name.push('-');
            name.push_str(self.words[rest % base]);
            rest /= base;
        }
        name
    }
}

/// A text under way.
#[derive(Clone, Debug)]
pub(super) struct WordText<'a> {
    list: &'a WordList,
    text: String,
    num_tokens: usize,
}

impl WordText<'_> {
    /// Adds a word if the text then has at most `num_tokens`; tells whether it did.
    pub(super) fn push(&mut self, word: &str, num_tokens: usize) -> bool {
        let added = self.list.num_tokens(word, &self.text);
        if self.num_tokens + added > num_tokens {
            return false;
        }
        self.append(word);
        self.num_tokens += added;
        true
    }

    /// Adds random words until the text has `num_tokens`.
    pub(super) fn fill(&mut self, num_tokens: usize, rng: &mut StdRng) {
        while self.num_tokens < num_tokens {
            self.append(self.list.words[rng.random_range(..self.list.words.len())]);
            self.num_tokens += 1;
        }
    }

    /// Returns the text, with exactly the tokens that it should have where there is a tokenizer.
    pub(super) fn finish(self, rng: &mut StdRng) -> String {
        match &self.list.counter {
            Some(counter) if !self.list.adds_up => self.fitted(counter, rng),
            Some(_) | None => self.text,
        }
    }

    fn append(&mut self, word: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(word);
    }

    fn fitted(&self, counter: &TokenCounter, rng: &mut StdRng) -> String {
        let mut text = self.clone();
        for _ in 0..MAX_FITTINGS {
            let got = counter.count(&text.text);
            if got == self.num_tokens {
                break;
            }
            if got > self.num_tokens {
                text.text = counter.cut(&text.text, self.num_tokens);
                continue;
            }
            text.num_tokens = got;
            text.fill(self.num_tokens, rng);
        }
        text.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_differ_for_all_numbers() {
        let names = Names { words: vec!["a", "b", "c"] };
        let all: HashSet<String> = (0..1000).map(|number| names.name(number)).collect();
        assert_eq!(all.len(), 1000);
        assert_eq!(
            (names.name(1), names.name(3), names.name(4)),
            ("b".into(), "a-a".into(), "b-a".into())
        );
    }

    #[test]
    fn the_list_has_no_word_twice() {
        let words: HashSet<&str> = WORDS.split(' ').collect();
        assert_eq!((words.len(), WORDS.split(' ').count()), (512, 512));
    }
}
