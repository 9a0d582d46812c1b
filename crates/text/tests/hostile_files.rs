//! Files of strangers, made to take time, memory or stack, or damaged at random.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{
    ChatTemplate, GenerationPrompt, RenderOptions, RenderedPrompt, TemplateError, Tokenizer,
    TokenizerConfig,
};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant, SystemTime};

/// Far more than any of these takes, on a machine busy with other work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers from a seed, which `TEXT_SEED` sets.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap()))
    }

    fn below(&mut self, limit: usize) -> usize {
        let Self(state) = self;
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*state >> 33).unwrap() % limit
    }
}

/// Runs `work` on a thread with a small stack, as a server's workers have, and checks that it ends.
fn check_ends<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let started = Instant::now();
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    });
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    result
}

fn tiny_tokenizer() -> Value {
    json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "added_tokens": [{"id": 2, "content": "<s>", "special": true}],
        "decoder": {"type": "ByteLevel"}})
}

fn load(file: &Value) -> Result<Tokenizer, String> {
    let bytes = serde_json::to_vec(file).unwrap();
    Tokenizer::from_tokenizer_json(&bytes, None).map_err(|error| error.to_string())
}

fn render(source: &str) -> Result<usize, TemplateError> {
    let options = RenderOptions {
        generation_prompt: GenerationPrompt::Add,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let template = ChatTemplate::new(source, &load(&tiny_tokenizer()).unwrap())?;
    let messages = [json!({"role": "user", "content": "a"})];
    template.render(&messages, &options).map(|prompt| prompt.text().len())
}

#[test]
fn expressions_that_would_overflow_the_stack_do_not_compile() {
    let sources = [
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(200_000)),
        format!("{{{{ {}1 }}}}", "1+".repeat(120_000)),
        format!("{{{{ {}'a' }}}}", "'a'~".repeat(60_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(120_000)),
        format!("{{{{ 1{} }}}}", "|string".repeat(35_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(20_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(400), ")".repeat(400)),
        format!("{{{{ {}{} }}}}", "[".repeat(200), "]".repeat(200)),
        format!("{}{}", "{% for a in [] %}".repeat(9_000), "{% endfor %}".repeat(9_000)),
    ];
    for source in sources {
        let ended = check_ends(|| render(&source));
        assert!(
            matches!(ended, Err(TemplateError::TooComplex { .. } | TemplateError::Syntax { .. })),
            "{ended:?}"
        );
    }
    // Just inside the limits, compiling takes less than the stack that a thread has.
    let longest = [
        format!("{{{{ {}1 }}}}", "not ".repeat(490)),
        format!("{{{{ x{} }}}}", " and x".repeat(240)),
        format!("{{{{ 1{} }}}}", "|string".repeat(240)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(240)),
    ];
    for source in longest {
        check_ends(|| render(&source)).unwrap();
    }
}

#[test]
fn lists_inside_lists_do_not_overflow_the_stack() {
    let deep = "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% for j in range(90000) %}\
        {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    let ended = check_ends(|| render(deep));
    assert!(matches!(ended, Err(TemplateError::TooExpensive)), "{ended:?}");
    let shallow = "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}\
        {% endfor %}{{ ns.x | length }}";
    assert_eq!(check_ends(|| render(shallow)).unwrap(), 1);
}

#[test]
fn widths_in_format_strings_are_bounded() {
    for source in ["{{ '{:>999999999}'.format('a') }}", "{{ '%999999999d' | format(1) }}"] {
        let ended = check_ends(|| render(source));
        assert!(matches!(ended, Err(TemplateError::TooExpensive)), "{source}: {ended:?}");
    }
    assert_eq!(render("{{ '{:>12}'.format('a') }}").unwrap(), 12);
}

#[test]
fn a_tokenizer_json_that_would_take_memory_or_break_the_model_is_refused() {
    let check = |key: &str, value: Value, expected: &str| {
        let mut file = tiny_tokenizer();
        file[key] = value;
        let error = check_ends(|| load(&file)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    check("normalizer", replace(" ", &"x".repeat(1 << 20)), "64 times as long");
    let doubling = vec![replace("x", "xx"); 20];
    let doubling = json!({"type": "Sequence", "normalizers": doubling});
    check("normalizer", doubling, "64 times as long");
    let processor = |ids: Vec<u32>| {
        json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": vec!["<s>"; ids.len()]}}})
    };
    check("post_processor", processor(vec![3]), "token id 3");
    check("post_processor", processor(vec![2; 1000]), "puts 1000 tokens before a text");
    let added = |num_tokens: u32, len: usize| -> Value {
        let token = |id: u32| json!({"id": id + 2, "content": format!("{id:0len$}")});
        (0..num_tokens).map(token).collect()
    };
    check("added_tokens", added(1, 2000), "of 2000 bytes, more than 1024");
    check("added_tokens", added(2000, 1000), "of 2000000 bytes, more than 1048576");
    check("model", serde_json::from_str(&nested(100)).unwrap(), "tokenizer.json cannot be read");
    let too_deep = format!(
        "{{\"model\": {{\"vocab\": {{}}, \"merges\": []}}, \"decoder\": {}}}",
        nested(100_000)
    );
    let error = Tokenizer::from_tokenizer_json(too_deep.as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let error = TokenizerConfig::from_json(nested(100_000).as_bytes()).unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json cannot be read"), "{error}");
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn patterns_that_backtrack_or_grow_end_with_an_error() {
    let text = format!("{}!", "a".repeat(2_000));
    for pattern in
        [r"(?=(a+)+$)b", r"(a|aa)+(?!a)$b", r"(?:(?=a)a{1000}){1000}", r"(\p{L}{999}){999}"]
    {
        let mut file = tiny_tokenizer();
        file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": pattern},
            "behavior": "Isolated", "invert": false});
        check_ends(|| match load(&file) {
            Ok(tokenizer) => drop(tokenizer.encode_text(&text)),
            Err(error) => assert!(error.contains("tokenizer"), "{error}"),
        });
    }
}

#[test]
fn tokens_that_begin_one_another_do_not_make_long_lists_of_occurrences() {
    let mut file = tiny_tokenizer();
    let token = |len: usize| json!({"id": len + 1, "content": "a".repeat(len), "special": true});
    file["added_tokens"] = (2..400).map(token).collect();
    let tokenizer = load(&file).unwrap();
    let template = ChatTemplate::new("{{ messages[0].content }}", &tokenizer).unwrap();
    let options = RenderOptions {
        generation_prompt: GenerationPrompt::Omit,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let messages = [json!({"role": "user", "content": "a".repeat(20_000)})];
    let prompt = check_ends(|| template.render(&messages, &options)).unwrap();
    assert_eq!(prompt.text().len(), 20_000);
    let ids = check_ends(|| tokenizer.encode_chat(&prompt)).unwrap();
    assert_eq!(ids, [0; 20_000]);
}

/// What a changed byte becomes: signs that mean something in JSON and in templates.
const SIGNS: &[u8] = b"0129-\"[]{},:\\ae%|. ";

/// Changes bytes, cuts, doubles and moves stretches.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let start = random.below(bytes.len());
        let len = random.below(40).min(bytes.len() - start);
        match random.below(4) {
            0 => bytes[start] = SIGNS[random.below(SIGNS.len())],
            1 => drop(bytes.drain(start..start + len)),
            2 => {
                let copy = bytes[start..start + len].to_vec();
                bytes.splice(start..start, copy);
            }
            _ => {
                let moved: Vec<u8> = bytes.drain(start..start + len).collect();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, moved);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'0');
        }
    }
}

/// Replaces one value somewhere inside `value`.
#[expect(clippy::wildcard_enum_match_arm, reason = "what has nothing inside is replaced")]
fn damage_value(value: &mut Value, random: &mut Random) {
    let goes_deeper = random.below(6) > 0;
    match value {
        Value::Array(items) if goes_deeper && !items.is_empty() => {
            let index = random.below(items.len());
            damage_value(&mut items[index], random);
        }
        Value::Object(fields) if goes_deeper && !fields.is_empty() => {
            let index = random.below(fields.len());
            damage_value(fields.values_mut().nth(index).unwrap(), random);
        }
        other => {
            let own = other.take();
            *other = match random.below(9) {
                0 => Value::Null,
                1 => json!(true),
                2 => json!(random.below(1000)),
                3 => json!(u32::MAX),
                4 => json!(["", "▁", "<s>", "a", "Regex"][random.below(5)]),
                5 => json!("x ".repeat(300)),
                6 => json!([own]),
                7 => json!({"type": "Sequence", "normalizers": [own]}),
                _ => json!({}),
            };
        }
    }
}

/// Loads the file and encodes with it; returns whether it could be loaded.
fn check_damaged(file: &[u8]) -> bool {
    check_ends(|| {
        let Ok(tokenizer) = Tokenizer::from_tokenizer_json(file, None) else { return false };
        let prompt = RenderedPrompt::from_markup("<s>Hello  wörld\n\n123 <bos>".to_owned());
        if let Ok(ids) = tokenizer.encode_chat(&prompt) {
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            drop(tokenizer.detokenize(&ids));
        }
        true
    })
}

#[test]
fn a_damaged_tokenizer_json_is_refused_or_gives_ids_of_its_vocabulary() {
    let mut random = Random::new();
    println!("TEXT_SEED={}", random.0);
    let mut num_loaded = 0;
    for name in ["gemma3", "llama2", "llama3_1", "deepseek_v3"] {
        let path = format!("{}/testdata/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let fixture: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let whole = fixture["json"].clone();
        for _ in 0..60 {
            let mut bytes = whole.to_string().into_bytes();
            damage(&mut bytes, &mut random);
            num_loaded += usize::from(check_damaged(&bytes));
            let mut file = whole.clone();
            for _ in 0..=random.below(2) {
                damage_value(&mut file, &mut random);
            }
            num_loaded += usize::from(check_damaged(&serde_json::to_vec(&file).unwrap()));
        }
    }
    assert!(num_loaded > 20, "{num_loaded}");
}

#[test]
fn a_damaged_template_is_refused_or_ends() {
    let mut random = Random::new();
    println!("TEXT_SEED={}", random.0);
    let fixture = include_str!("../testdata/published_templates.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let tokenizer = load(&tiny_tokenizer()).unwrap();
    let chats: Vec<&Value> = fixture["chats"].as_object().unwrap().values().collect();
    let mut num_rendered = 0;
    for source in fixture["templates"].as_object().unwrap().values() {
        for _ in 0..20 {
            let mut bytes = source.as_str().unwrap().as_bytes().to_vec();
            damage(&mut bytes, &mut random);
            let source = String::from_utf8_lossy(&bytes).into_owned();
            let chat = chats[random.below(chats.len())];
            num_rendered += check_ends(|| {
                let Ok(template) = ChatTemplate::new(&source, &tokenizer) else { return 0 };
                let options = RenderOptions {
                    generation_prompt: GenerationPrompt::Add,
                    variables: chat["variables"].as_object().unwrap().clone(),
                    now: SystemTime::UNIX_EPOCH,
                };
                let messages = chat["messages"].as_array().unwrap();
                usize::from(template.render(messages, &options).is_ok())
            });
        }
    }
    assert!(num_rendered > 20, "{num_rendered}");
}
