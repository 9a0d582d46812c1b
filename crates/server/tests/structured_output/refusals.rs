//! What cannot be followed is refused, soon, and by its place.

use crate::random_writer::RandomWriter;
use mini_infer_core::FinishReason;
use mini_infer_grammar::{GrammarError, GrammarSource};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a compilation may take here; an optimised build takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(20);

fn refusal(source: &GrammarSource) -> GrammarError {
    let started = Instant::now();
    let compiled = RandomWriter::new().grammars().compile(source);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    compiled.err().unwrap_or_else(|| panic!("accepted: {:.200}", format!("{source:?}")))
}

fn check_path(schema: Value, expected: &str) {
    let error = refusal(&GrammarSource::JsonSchema(schema));
    assert_eq!(error.path, expected, "{error}");
}

#[test]
fn faults_of_a_schema_name_path_and_keyword() {
    let in_property = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    let string = |key: &str, value: Value| json!({"type": "string", key: value});
    check_path(in_property(string("pattern", json!("(unclosed"))), "properties.a.pattern");
    check_path(in_property(string("pattern", json!("a(?=b)"))), "properties.a.pattern");
    check_path(in_property(string("format", json!("postcode"))), "properties.a.format");
    check_path(in_property(json!({"type": "text"})), "properties.a.type");
    check_path(in_property(json!({"not": {"type": "string"}})), "properties.a.not");
    let unique = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    check_path(json!({"anyOf": [{"type": "null"}, unique]}), "anyOf[1].uniqueItems");
    let both = json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]});
    check_path(json!({"type": "array", "items": both}), "items.oneOf");
    check_path(in_property(json!({"$ref": "http://example.com/x"})), "properties.a.$ref");
    check_path(in_property(json!({"$ref": "file:///etc/passwd"})), "properties.a.$ref");
    check_path(in_property(json!({"$ref": "#/$defs/missing"})), "properties.a.$ref");
    check_path(in_property(json!({"const": 9_007_199_254_740_993_u64})), "properties.a.const");
    check_path(json!({"x-guidance": {"lenient": true}, "type": "object"}), "x-guidance");
    let contradiction = json!({"type": "string", "minLength": 5, "maxLength": 3});
    let required = json!({
        "type": "object", "properties": {"a": contradiction}, "required": ["a"],
    });
    let error = refusal(&GrammarSource::JsonSchema(required));
    assert!(error.path.starts_with("properties.a"), "{error}");
    assert!(error.message.contains("minLength"), "{error}");
}

#[test]
fn regexes_and_grammars_that_are_wrong_say_why() {
    let check = |source: GrammarSource, expected: &str| {
        let error = refusal(&source);
        assert!(error.message.contains(expected), "{error}");
    };
    check(GrammarSource::Regex("(a".to_owned()), "unclosed");
    check(GrammarSource::Regex("a(?!b)".to_owned()), "look-around");
    check(GrammarSource::Choice(Vec::new()), "1 to");
    check(GrammarSource::Lark("start: missing".to_owned()), "missing");
    check(GrammarSource::Lark("start: <|no_such|>".to_owned()), "unknown special token");
    let gbnf = |text: &str| GrammarSource::Gbnf(text.to_owned());
    check(gbnf("root ::= missing"), "`missing` is not defined");
    check(gbnf("other ::= \"a\""), "`root` is not defined");
    check(gbnf("root ::= \"a\"\nroot ::= \"b\""), "`root` is defined twice");
    check(gbnf("root ::= <[1000]>"), "name tokens");
    check(gbnf("root ::= \"a"), "does not end");
    check(gbnf("root ::= [z-a]"), "wrong way round");
    check(gbnf("root ::= (\"a\""), "expected )");
    check(gbnf("root = \"a\""), "expected ::=");
    check(gbnf(&format!("root ::= \"a\"{}", "*".repeat(200_000))), "operators");
}

#[test]
fn what_is_too_large_or_too_deep_is_refused_in_bounded_time() {
    let mut deep = json!({"type": "null"});
    for _ in 0..80 {
        deep = json!({"type": "array", "items": deep});
    }
    refusal(&GrammarSource::JsonSchema(deep));
    let many: Vec<Value> = (0..30_000).map(Value::from).collect();
    refusal(&GrammarSource::JsonSchema(json!({"enum": many})));
    let brackets = format!("start: {}\"a\"{}", "(".repeat(10_000), ")".repeat(10_000));
    refusal(&GrammarSource::Lark(brackets));
    let brackets = format!("root ::= {}\"a\"{}", "(".repeat(10_000), ")".repeat(10_000));
    refusal(&GrammarSource::Gbnf(brackets));
    refusal(&GrammarSource::Regex("x".repeat(300 << 10)));
}

#[test]
fn chains_of_references_are_no_danger_to_the_stack() {
    let writer = RandomWriter::new();
    let num_links = 3_000;
    let mut definitions = serde_json::Map::new();
    for i in 0..num_links {
        let next = json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", i + 1)}});
        definitions.insert(format!("d{i}"), next);
    }
    definitions.insert(format!("d{num_links}"), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    writer.grammars().compile(&GrammarSource::JsonSchema(schema)).unwrap();
    let mut lark: String = (0..1_900).map(|i| format!("r{i}: \"a\" r{}\n", i + 1)).collect();
    lark.push_str("r1900: \"b\"\nstart: r0\n");
    writer.grammars().compile(&GrammarSource::Lark(lark)).unwrap();
    let mut gbnf = "root ::= r0\nr1900 ::= \"b\" | root\n".to_owned();
    gbnf.extend((0..1_900).map(|i| format!("r{i} ::= \"a\" r{}\n", i + 1)));
    writer.grammars().compile(&GrammarSource::Gbnf(gbnf)).unwrap();
}

#[test]
fn large_bounds_compile_or_are_refused_and_what_they_make_is_right() {
    let writer = RandomWriter::new();
    let tool = |i: usize| {
        let text = json!({"type": "string", "maxLength": 65_536});
        json!({
            "type": "object",
            "properties": {
                "name": {"const": format!("tool_{i}")},
                "texts": {"type": "array", "items": text, "minItems": 1, "maxItems": 5_000},
            },
            "required": ["name", "texts"],
            "additionalProperties": false,
        })
    };
    let schema = json!({"anyOf": (0..30).map(tool).collect::<Vec<_>>()});
    let started = Instant::now();
    let outputs = writer.write(&GrammarSource::JsonSchema(schema.clone()), 0..4).unwrap();
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let validator = jsonschema::validator_for(&schema).unwrap();
    for output in outputs.iter().filter(|output| output.reason == FinishReason::Stop) {
        assert!(validator.is_valid(&serde_json::from_str(&output.text).unwrap()));
    }
    let many = json!({"type": "array", "items": {"type": "integer"}, "minItems": 100_000});
    writer.grammars().compile(&GrammarSource::JsonSchema(many)).unwrap();
}
