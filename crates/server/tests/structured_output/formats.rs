//! Regular expressions, choices, and grammars in both languages.

use crate::random_writer::RandomWriter;
use mini_infer_core::FinishReason;
use mini_infer_grammar::{GrammarSource, OutputShape};
use serde_json::json;

/// Checks every finished output of a source; at least one in four must be.
fn check(source: &GrammarSource, is_right: impl Fn(&str) -> bool) {
    let writer = RandomWriter::new();
    let outputs = writer.write(source, 0..16).unwrap_or_else(|error| panic!("{error}: {source:?}"));
    let mut num_finished = 0;
    for output in outputs {
        if output.reason == FinishReason::Stop {
            assert!(is_right(&output.text), "{source:?}: {:?}", output.text);
            num_finished += 1;
        } else {
            assert_eq!(output.reason, FinishReason::Length, "{}", output.text);
        }
    }
    assert!(num_finished >= 4, "{source:?}: {num_finished}");
}

fn check_lines(source: &GrammarSource, allowed: &[&str]) {
    check(source, |text| allowed.contains(&text));
}

#[test]
fn regular_expressions_match_from_start_to_end() {
    let regex = |text: &str| GrammarSource::Regex(text.to_owned());
    check(&regex("[0-9]{3}-[a-f]{2}"), |text| {
        let bytes = text.as_bytes();
        bytes.len() == 6 && bytes[3] == b'-' && bytes[..3].iter().all(u8::is_ascii_digit)
    });
    check_lines(&regex("^(yes|no|maybe)$"), &["yes", "no", "maybe"]);
    check_lines(&regex("a/b\\\\c|\\.\\*"), &["a/b\\c", ".*"]);
    check_lines(&regex("(?i)no"), &["no", "NO", "No", "nO"]);
    check(&regex("日本{1,3}"), |text| text.starts_with('日') && text.chars().count() <= 4);
}

#[test]
fn choices_are_taken_to_the_letter() {
    let texts = [" a", "é\n", "a \"b\" \\ c", "abc", "abcd", "/x/", "日本\u{7f}"];
    let source = GrammarSource::Choice(texts.iter().map(|&text| text.to_owned()).collect());
    check_lines(&source, &texts);
}

#[test]
fn lark_grammars_constrain() {
    let source = GrammarSource::grammar("start: \"<\" WORD \">\"\nWORD: /[a-c]{1,3}/\n".to_owned());
    assert!(matches!(source, GrammarSource::Lark(_)));
    check(&source, |text| {
        let inner = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
        inner.is_some_and(|inner| {
            inner.len() <= 3 && inner.bytes().all(|b| (b'a'..=b'c').contains(&b))
        })
    });
}

#[test]
fn gbnf_grammars_constrain() {
    let gbnf = |text: &str| {
        let source = GrammarSource::grammar(text.to_owned());
        assert!(matches!(source, GrammarSource::Gbnf(_)));
        source
    };
    check_lines(&gbnf("root ::= \"a\" | \"b\\n\" [0-1]"), &["a", "b\n0", "b\n1"]);
    let balanced = |text: &str| {
        let mut depth = 0_i32;
        let ok = text.bytes().all(|byte| {
            depth += if byte == b'(' { 1 } else { -1 };
            depth >= 0 && b"()".contains(&byte)
        });
        ok && depth == 0
    };
    check(&gbnf("# nested\nroot ::= \"(\" root? \")\"\n"), balanced);
    // After llama.cpp's own grammar of JSON.
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    check(&gbnf(json), |text| {
        // The grammar takes numbers that no double holds, and halves of surrogate pairs.
        match serde_json::from_str::<serde_json::Value>(text) {
            Ok(value) => value.is_object(),
            Err(error) => {
                let message = error.to_string();
                message.contains("out of range") || message.contains("surrogate")
            }
        }
    });
}

#[test]
fn shapes_are_fixed_texts_around_json() {
    let call = |name: &str, arguments: serde_json::Value| {
        OutputShape::Json(json!({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }))
    };
    let integer = json!({
        "type": "object",
        "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["x"],
        "additionalProperties": false,
    });
    let empty = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let one = OutputShape::Sequence(vec![
        OutputShape::Marker("<tool_call>".to_owned()),
        OutputShape::Text("\n".to_owned()),
        OutputShape::OneOf(vec![call("add", integer), call("now", empty)]),
        OutputShape::Text("\n</tool_call>".to_owned()),
    ]);
    let separator = Box::new(OutputShape::Text("\n".to_owned()));
    let list = OutputShape::List { item: Box::new(one), separator };
    check(&GrammarSource::Shape(list), |text| {
        text.split("</tool_call>").filter(|part| !part.is_empty()).all(|part| {
            let body = part.trim_start_matches('\n').strip_prefix("<tool_call>\n").unwrap();
            let call: serde_json::Value = serde_json::from_str(body).unwrap();
            ["add", "now"].contains(&call["name"].as_str().unwrap())
        })
    });
}
