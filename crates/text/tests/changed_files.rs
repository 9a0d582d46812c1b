//! Seeded changes to tokenizers and chat templates, each of which must be used or refused.
//!
//! No panic, and no more time than the size explains, whatever the file says. A failure prints its
//! case; `TEXT_SEED` starts another run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{
    ChatTemplate, GenerationPrompt, GgufVocabulary, RenderOptions, Tokenizer, TokenizerConfig,
};
use serde_json::{Map, Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

/// Changed copies of each file.
const NUM_CASES: u64 = 1500;
/// Far more than any small file takes, far less than a loop that a file can make endless.
const MAX_TIME: Duration = Duration::from_secs(20);
/// What is tokenized: words, digits, spaces, other scripts, and a run that backtracks.
const TEXT: &str =
    "ab <s> b\u{e9} 123\n\n  \u{4e2d}\u{1f600}'s aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";

/// A small generator of repeatable numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// Whether a changed file was still of use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Refused,
    Used,
}

/// Runs `read` with the numbers of many seeds.
fn check(name: &str, read: impl Fn(&mut Numbers) -> Outcome) {
    let first: u64 = std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut num_used = 0;
    for seed in first..first + NUM_CASES {
        let start = Instant::now();
        let mut numbers = Numbers(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let result = catch_unwind(AssertUnwindSafe(|| read(&mut numbers)));
        let outcome = result.unwrap_or_else(|_| panic!("{name} panics, TEXT_SEED={seed}"));
        let elapsed = start.elapsed();
        assert!(elapsed < MAX_TIME, "{name} takes {elapsed:?}, TEXT_SEED={seed}");
        num_used += u64::from(outcome == Outcome::Used);
    }
    // Changes that all files survive, or none, would show nothing.
    let usual = NUM_CASES / 50..NUM_CASES - NUM_CASES / 50;
    assert!(usual.contains(&num_used), "{num_used} of {NUM_CASES} changed {name} are used");
}

/// Cuts, repeats or overwrites a part of `bytes`.
fn change_bytes(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    let at = numbers.below(bytes.len());
    let end = (at + 1 + numbers.below(24)).min(bytes.len());
    match numbers.below(4) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copy = bytes[at..end].to_vec();
            let to = numbers.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        _ => bytes[at..end].fill_with(|| numbers.next().to_le_bytes()[0]),
    }
}

/// A value that no tokenizer should have where it stands.
fn odd_value(numbers: &mut Numbers) -> Value {
    let texts = [
        "",
        "a",
        "ab",
        "<s>",
        "BPE",
        "ByteLevel",
        "Split",
        "Sequence",
        "Regex",
        "\u{0}",
        "(a+)+$",
        "(a|aa)+c",
        "(?=",
        "[",
        "\\p{L}+|(?<!a)b",
        "(?i)a{1,1000}{1,1000}",
        "Isolated",
        "Prepend",
    ];
    match numbers.below(8) {
        0 => Value::Null,
        1 => json!(numbers.pick(&[true, false])),
        2 => json!(numbers.pick(&[0_u64, 1, 2, 3, 255, 1 << 31, u64::from(u32::MAX), u64::MAX])),
        3 => json!(numbers.pick(&[-1.0, 0.5, 1e300, -1e-300])),
        4 => json!([]),
        5 => (0..numbers.below(200)).fold(json!({}), |inner, _| json!([inner])),
        _ => json!(numbers.pick(&texts)),
    }
}

/// Replaces, removes or repeats something at a random place below `value`.
#[expect(clippy::wildcard_enum_match_arm, reason = "what holds no other values is replaced")]
fn change_json(value: &mut Value, numbers: &mut Numbers) {
    let descend = numbers.below(5) > 0;
    match value {
        Value::Array(items) if descend && !items.is_empty() => {
            let i = numbers.below(items.len());
            match numbers.below(8) {
                0 => drop(items.remove(i)),
                1 => items.push(items[i].clone()),
                _ => change_json(&mut items[i], numbers),
            }
        }
        Value::Object(fields) if descend && !fields.is_empty() => {
            let key = fields.keys().nth(numbers.below(fields.len())).unwrap().clone();
            match numbers.below(8) {
                0 => drop(fields.remove(&key)),
                1 => {
                    let new = odd_value(numbers);
                    let name = numbers.pick(&["type", "id", "content", "pattern", "\u{e9}"]);
                    fields.insert(name.to_owned(), new);
                }
                _ => change_json(fields.get_mut(&key).unwrap(), numbers),
            }
        }
        _ => *value = odd_value(numbers),
    }
}

/// A byte-level tokenizer with a part of every kind.
fn tokenizer_json() -> Value {
    json!({
        "added_tokens": [
            {"id": 8, "content": "<s>", "special": true, "lstrip": false, "rstrip": true},
            {"id": 9, "content": "  ", "special": false, "normalized": false}
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
             "use_regex": false}
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false,
            "ignore_merges": true, "fuse_unk": false,
            "vocab": {"a": 0, "b": 1, "ab": 2, "aa": 3, "aaaa": 4, "1": 5, "\u{120}": 6, "\u{120}b": 7},
            "merges": ["a b", ["a", "a"], "aa aa", "\u{120} b"]}
    })
}

/// Uses a tokenizer in every way that a request does.
fn use_tokenizer(tokenizer: &Tokenizer) {
    if let Ok(ids) = tokenizer.encode_text(TEXT) {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        let _ = tokenizer.detokenize(&ids);
    }
    for id in (0..10).chain([u32::MAX]) {
        let _ = (tokenizer.token_bytes(id), tokenizer.is_control(id));
    }
    if let Ok(template) = ChatTemplate::new("{{ bos_token }}{{ messages[0].content }}", tokenizer)
        && let Ok(prompt) = template.render(&[json!({"role": "user", "content": TEXT})], &options())
    {
        let _ = tokenizer.encode_chat(&prompt);
    }
}

fn options() -> RenderOptions {
    RenderOptions {
        generation_prompt: GenerationPrompt::Add,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    }
}

fn used(tokenizer: Result<Tokenizer, impl std::fmt::Display>) -> Outcome {
    match tokenizer {
        Ok(tokenizer) => {
            use_tokenizer(&tokenizer);
            Outcome::Used
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Outcome::Refused
        }
    }
}

/// The file above, and what is small of published ones.
fn tokenizer_files() -> Vec<Value> {
    let published = ["gemma3", "llama2", "llama3_1", "deepseek_v3"].map(|name| {
        let path = format!("{}/testdata/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let fixture: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        fixture["json"].clone()
    });
    // The first one, which is quickest to read, most often.
    let own = vec![tokenizer_json(); 12];
    [own, published.to_vec()].concat()
}

#[test]
fn changed_tokenizer_files_are_used_or_refused() {
    let files = tokenizer_files();
    for file in &files {
        assert!(Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), None).is_ok());
    }
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "<s>", "add_bos_token": true,
        "chat_template": [{"name": "default", "template": "{{ messages }}"}]});
    check("tokenizer.json", |numbers| {
        let (mut json, mut config) = (numbers.pick(&files), config.clone());
        (0..=numbers.below(3)).for_each(|_| change_json(&mut json, numbers));
        change_json(&mut config, numbers);
        let mut bytes = json.to_string().into_bytes();
        if numbers.below(6) == 0 {
            change_bytes(&mut bytes, numbers);
        }
        let config = TokenizerConfig::from_json(config.to_string().as_bytes()).ok();
        used(Tokenizer::from_tokenizer_json(&bytes, config.as_ref()))
    });
}

/// A vocabulary of GGUF metadata, changed.
fn changed_vocabulary(numbers: &mut Numbers) -> GgufVocabulary {
    let words = ["", "a", "b", "ab", "<s>", "\u{2581}", "<0x41>", "<0x", "\u{120}b", "aa", "a b"];
    let ids = [None, Some(0), Some(3), Some(4), Some(u32::MAX)];
    let pres = [None, Some("gpt-2"), Some("llama-bpe"), Some("qwen2"), Some("default")];
    let mut vocabulary = GgufVocabulary {
        model: numbers.pick(&["gpt2", "gpt2", "llama", "llama", "bert"]).to_owned(),
        pre: numbers.pick(&pres).map(str::to_owned),
        tokens: ["<s>", "a", "b", "ab", "aa"].map(str::to_owned).to_vec(),
        scores: vec![0.0, -1.0, -2.0, -0.5, -3.0],
        token_types: vec![3, 1, 1, 1, 1],
        merges: vec!["a b".to_owned()],
        bos: numbers.pick(&ids[..3]),
        unk: Some(0),
        ..GgufVocabulary::default()
    };
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(5);
        match numbers.below(8) {
            0 => vocabulary.tokens[at] = numbers.pick(&words).to_owned(),
            1 => vocabulary.token_types[at] = numbers.pick(&[-1, 0, 2, 3, 4, 5, 6, 7, i32::MAX]),
            2 => vocabulary.scores[at] = numbers.pick(&[f32::NAN, f32::INFINITY, -1e38, 0.0]),
            3 => vocabulary
                .merges
                .push(numbers.pick(&["a a", "a b", "b", "", "aa aa", "a b a"]).to_owned()),
            4 => vocabulary.eos = numbers.pick(&ids),
            5 => vocabulary.unk = numbers.pick(&ids),
            6 => vocabulary.eot = numbers.pick(&ids),
            _ => vocabulary.add_space_prefix = Some(false),
        }
    }
    vocabulary
}

#[test]
fn changed_gguf_vocabularies_are_used_or_refused() {
    check("GGUF vocabulary", |numbers| used(Tokenizer::from_gguf(changed_vocabulary(numbers))));
}

/// What is put into templates: parts of tags, and what asks for much.
const TEMPLATE_PIECES: &[&str] = &[
    "{% for x in range(9) %}",
    "{% endfor %}",
    "{{ messages * 3 }}",
    "{% if ",
    "{{ 'x' * 4000000000 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ 1 // 0 }}",
    "{{ turn(m) }}",
    "{% macro turn(m) %}{{ turn(m) }}{% endmacro %}",
    "{{ messages[-1:][::-1] }}",
    "%}",
    "{{",
    "{{ messages | join(messages) | tojson }}",
    "{{ '%s' | format(1) }}",
    "{{ 2 ** 100000 }}",
    "{{ ''.join(messages) }}",
    "{{ strftime_now('%Q%') }}",
    "{#",
    "{{ m.content.split('')[9] }}",
    "{% include 'x' %}",
    "{{ 'a'.center(4000000000) }}",
    "((((((((",
    "{{ messages | map(attribute='role') | list }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ range(0, 10, 0) }}",
    "{{ 'é'[1:0:-1] }}",
    "{{ 'a'.replace('', 'b' * 1000) }}",
    "{% set ns.n = ns %}",
    "{% set ns.n = [ns.n, ns] %}",
    "{% set ns.n = [ns.n, ns.n] %}",
    "{% set ns.n = ns.n + ns.n %}",
    "{% set m = [m, m] + [m] * 9 %}",
    "{{ ns == ns }}{{ ns | tojson }}{{ ns ~ m }}",
];

#[test]
fn changed_templates_render_or_are_refused() {
    let json = tokenizer_json().to_string();
    let tokenizer = Tokenizer::from_tokenizer_json(json.as_bytes(), None).unwrap();
    let whole = "{% set ns = namespace(n=0) %}{% macro turn(m) %}<s>{{ m.role }}\n{{ m['content'] | \
                 trim }}{% endmacro %}{% for m in messages %}{% if m.role == 'system' and not \
                 loop.first %}{{ raise_exception('no') }}{% endif %}{{ turn(m) }}{% set ns.n = ns.n \
                 + 1 %}{% endfor %}{{ tools | tojson }}{{ strftime_now('%d %b') }}{% if \
                 add_generation_prompt %}<s>assistant{% endif %}";
    let fixture = include_str!("../testdata/published_templates.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let published = fixture["templates"].as_object().unwrap().values();
    let published: Vec<&str> = published.filter_map(Value::as_str).collect();
    let chats: Vec<&Value> = fixture["chats"].as_object().unwrap().values().collect();
    let own = json!({"messages": [{"role": "system", "content": "be\u{e9}"},
        {"role": "user", "content": null}], "variables": {}});
    check("chat template", |numbers| {
        let is_own = numbers.below(4) > 0;
        let source = if is_own { whole } else { numbers.pick(&published) };
        let chat = if is_own { &own } else { numbers.pick(&chats) };
        let mut bytes = source.as_bytes().to_vec();
        for _ in 0..=numbers.below(2) {
            if numbers.below(3) == 0 {
                change_bytes(&mut bytes, numbers);
            } else {
                let at = numbers.below(bytes.len());
                let marks: Vec<_> = (at..bytes.len()).filter(|i| bytes[*i] == b'{').collect();
                let at =
                    if numbers.below(2) == 0 { at } else { marks.first().copied().unwrap_or(at) };
                bytes.splice(at..at, numbers.pick(TEMPLATE_PIECES).bytes());
            }
        }
        let source = String::from_utf8_lossy(&bytes);
        let template = ChatTemplate::new(&source, &tokenizer);
        let messages = chat["messages"].as_array().unwrap();
        let variables = chat["variables"].as_object().unwrap().clone();
        let options = RenderOptions { variables, ..options() };
        match template.map(|template| template.render(messages, &options)) {
            Ok(Ok(prompt)) => {
                let _ = tokenizer.encode_chat(&prompt);
                Outcome::Used
            }
            Ok(Err(error)) | Err(error) => {
                assert!(!error.to_string().is_empty());
                Outcome::Refused
            }
        }
    });
}
