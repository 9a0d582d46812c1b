//! Times what constraints cost on a real vocabulary.
//!
//! ```text
//! cargo run --release -p mini-infer-grammar --example mask_speed -- TOKENIZER.JSON [THREADS]
//! ```
//!
//! Writes 16 outputs side by side under each of a few schemas, choosing among the allowed tokens at
//! random, and prints: preparing the vocabulary, compiling, one mask, telling one token, and what a
//! step of all outputs takes on the engine's thread when nothing else runs meanwhile.

use mini_infer_core::{OutputStatus, TokenId, mix64};
use mini_infer_grammar::{GrammarSource, Grammars};
use mini_infer_text::Tokenizer;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NUM_STREAMS: usize = 16;
const NUM_STEPS: usize = 200;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the path of a tokenizer.json");
    let num_threads = arguments.next().map_or(1, |text| text.parse().expect("a number"));
    let file = std::fs::read(path).expect("a readable file");
    let tokenizer = Arc::new(Tokenizer::from_tokenizer_json(&file, None).expect("a tokenizer"));
    let end = TokenId::try_from(tokenizer.vocab_size() - 1).expect("a token id");
    let stop_ids = match tokenizer.stop_token_ids() {
        [] => vec![end],
        ids => ids.to_vec(),
    };
    let grammars = Grammars::new(tokenizer, stop_ids, num_threads).expect("threads");
    let start = Instant::now();
    grammars.compile(&GrammarSource::Choice(vec!["a".to_owned()])).expect("a grammar");
    report("vocabulary", &mut [start.elapsed()]);
    for (name, source) in sources() {
        time(name, &source, &grammars);
    }
}

fn sources() -> Vec<(&'static str, GrammarSource)> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
        },
        "required": ["name", "age", "email", "tags"],
        "additionalProperties": false,
    });
    vec![
        ("schema", GrammarSource::JsonSchema(person)),
        ("json object", GrammarSource::JsonObject),
        ("regex", GrammarSource::Regex("[A-Z][a-z]+( [A-Z][a-z]+){2,20}".to_owned())),
    ]
}

fn time(name: &str, source: &GrammarSource, grammars: &Grammars) {
    let start = Instant::now();
    let constraint = grammars.compile(source).expect("a grammar");
    report(&format!("{name}: compile"), &mut [start.elapsed()]);
    let mut matchers: Vec<_> = (0..NUM_STREAMS).map(|_| constraint.start()).collect();
    let (mut masks, mut accepts, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..NUM_STEPS {
        let start_of_step = Instant::now();
        for matcher in &mut matchers {
            matcher.prepare();
        }
        for (i, matcher) in matchers.iter_mut().enumerate() {
            let start = Instant::now();
            let mask = matcher.allowed().expect("a mask");
            masks.push(start.elapsed());
            let allowed: Vec<TokenId> = mask.iter().collect();
            let random = usize::try_from(mix64((step * NUM_STREAMS + i) as u64) >> 16);
            let token = allowed[random.unwrap_or(0) % allowed.len()];
            let start = Instant::now();
            let status = matcher.accept(token).expect("an allowed token");
            accepts.push(start.elapsed());
            if status == OutputStatus::Complete {
                *matcher = constraint.start();
            }
        }
        steps.push(start_of_step.elapsed());
    }
    report(&format!("{name}: wait for a mask"), &mut masks);
    report(&format!("{name}: tell a token"), &mut accepts);
    report(&format!("{name}: step of {NUM_STREAMS}"), &mut steps);
}

#[expect(clippy::print_stdout, reason = "a program that reports")]
fn report(name: &str, times: &mut [Duration]) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!("{name}: p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100));
}
