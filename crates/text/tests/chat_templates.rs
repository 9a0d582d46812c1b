//! Chat templates render as `transformers` renders them, and hostile ones end.
//!
//! The fixture holds templates that use what published ones use, with what `transformers` makes of
//! them; see `testdata/make_fixtures.py`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{
    ChatTemplate, GenerationPrompt, GgufVocabulary, RenderOptions, TemplateError, Tokenizer,
};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant, SystemTime};

/// A byte-level vocabulary of single bytes and `<s>`.
fn tokenizer() -> Tokenizer {
    let fixture = include_str!("../testdata/byte_level.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let mut tokens: Vec<String> = serde_json::from_value(fixture["tokens"].clone()).unwrap();
    tokens.truncate(256);
    tokens.push("<s>".to_owned());
    let mut token_types = vec![1; 256];
    token_types.push(3);
    Tokenizer::from_gguf(GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        bos: Some(256),
        ..GgufVocabulary::default()
    })
    .unwrap()
}

fn render(
    source: &str,
    messages: &[Value],
    options: &RenderOptions,
) -> Result<String, TemplateError> {
    let prompt = ChatTemplate::new(source, &tokenizer())?.render(messages, options)?;
    Ok(prompt.text().into_owned())
}

fn options() -> RenderOptions {
    RenderOptions {
        generation_prompt: GenerationPrompt::Omit,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    }
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let fixture = include_str!("../testdata/chat_templates.json");
    let cases: Vec<Value> = serde_json::from_str(fixture).unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let mut chat = case["chat"].as_object().unwrap().clone();
        let messages = chat.remove("messages").unwrap();
        let mut options = options();
        if chat.remove("add_generation_prompt") == Some(Value::Bool(true)) {
            options.generation_prompt = GenerationPrompt::Add;
        }
        options.variables = chat;
        let source = case["template"].as_str().unwrap();
        let got = render(source, messages.as_array().unwrap(), &options);
        let name = &case["name"];
        match case["raised"].as_str() {
            None => assert_eq!(got.unwrap(), case["text"].as_str().unwrap(), "{name}"),
            Some(message) => assert_eq!(got.unwrap_err().to_string(), message, "{name}"),
        }
    }
}

#[test]
fn the_time_is_the_callers() {
    let mut options = options();
    options.now = SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_400);
    let source = "Today: {{ strftime_now('%d %b %Y') }}";
    assert_eq!(render(source, &[], &options).unwrap(), "Today: 29 Feb 2000");
}

#[test]
fn what_a_template_cannot_handle_is_an_error_that_says_so() {
    let user = |content: Value| vec![json!({"role": "user", "content": content})];
    let check = |source: &str, messages: &[Value], expected: &str| {
        let error = render(source, messages, &options()).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}: {error}");
    };
    check("{{ raise_exception('System role not supported') }}", &[], "System role not supported");
    check("{% if %}", &[], "does not compile");
    check("{{ 'a' + messages[0].content }}", &user(Value::Null), "cannot render these messages");
    check("{{ messages[0].content.text.more }}", &user(json!("a")), "cannot render");
    check("{{ messages[5].content }}", &user(json!("a")), "cannot render");
    check("{{ nonesuch() }}", &[], "nonesuch");
    check(&" ".repeat(1 << 20), &[], "more than");
}

#[test]
fn a_hostile_template_is_stopped() {
    let started = Instant::now();
    let nested = format!("{}{}", "{% if true %}".repeat(5_000), "{% endif %}".repeat(5_000));
    let sources = [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ ('x' * 9999999).replace('x', 'x' * 9999999) }}",
        "{{ ([[1] * 99999] * 99999) | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        nested.as_str(),
    ];
    for source in sources {
        // A thread with a small stack, as a server's workers have.
        let source = source.to_owned();
        let ended = std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || render(&source, &[], &options()).map(|text| text.len()))
            .unwrap()
            .join()
            .unwrap();
        assert!(ended.is_err(), "{ended:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_long_chat_of_many_turns_renders() {
    let turn = |role: &str| json!({"role": role, "content": "word ".repeat(1_000)});
    let messages: Vec<Value> =
        (0..400).map(|i| turn(if i % 2 == 0 { "user" } else { "assistant" })).collect();
    let source =
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '\\n' }}{% endfor %}";
    assert!(render(source, &messages, &options()).unwrap().len() > 1_900_000);
}
