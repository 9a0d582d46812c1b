//! What a sequence may write is a function of what it wrote, whichever thread finds it out.

use mini_infer_core::{OutputConstraint, OutputMatcher, OutputStatus, TokenId, TokenMask};
use mini_infer_grammar::{Alternative, GrammarSource, Grammars, OutputShape};
use mini_infer_text::{GgufVocabulary, OutputHead, Tokenizer};
use serde_json::json;
use std::sync::Arc;

const END: TokenId = 128;

/// The printable ASCII characters and an end token; ids are the bytes.
fn grammars(num_threads: usize) -> Grammars {
    let printable = |byte: u8| if (33..=126).contains(&byte) { char::from(byte) } else { '?' };
    let mut tokens: Vec<String> = (0..128).map(|byte| printable(byte).to_string()).collect();
    for (i, token) in tokens.iter_mut().enumerate().filter(|(_, token)| *token == "?") {
        // Holes need names of their own.
        *token = format!("hole{i}");
    }
    tokens[usize::from(b'?')] = "?".to_owned();
    tokens.push("<end>".to_owned());
    let mut token_types = vec![1; tokens.len()];
    for (token_type, token) in token_types.iter_mut().zip(&tokens) {
        if token.starts_with("hole") {
            *token_type = 5;
        }
    }
    token_types[END as usize] = 3;
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        eos: Some(END),
        ..GgufVocabulary::default()
    };
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocabulary).expect("a vocabulary"));
    Grammars::new(tokenizer, vec![END], num_threads).expect("threads start")
}

fn schema() -> GrammarSource {
    GrammarSource::JsonSchema(json!({
        "type": "array", "items": {"enum": ["ab", "cd", 12, true]}, "minItems": 3, "maxItems": 5,
    }))
}

/// Writes the allowed token that `choice` points at until nothing may follow, and returns all masks
/// and tokens.
fn write(
    matcher: &mut dyn OutputMatcher,
    choice: usize,
    prepares: bool,
) -> (Vec<Arc<TokenMask>>, Vec<TokenId>) {
    let (mut masks, mut tokens) = (Vec::new(), Vec::new());
    loop {
        if prepares {
            matcher.prepare();
        }
        let mask = matcher.allowed().expect("a mask");
        let allowed: Vec<TokenId> = mask.iter().collect();
        let token = allowed[choice % allowed.len()];
        masks.push(mask);
        tokens.push(token);
        if matcher.accept(token) == Ok(OutputStatus::Complete) {
            return (masks, tokens);
        }
    }
}

fn compile(grammars: &Grammars) -> OutputConstraint {
    grammars.compile(&schema()).expect("a grammar")
}

#[test]
fn masks_do_not_depend_on_threads_or_on_being_prepared() {
    let (alone, pooled) = (grammars(0), grammars(3));
    let (alone, pooled) = (compile(&alone), compile(&pooled));
    for choice in 0..12 {
        let expected = write(&mut *alone.start(), choice, false);
        assert_eq!(write(&mut *pooled.start(), choice, true), expected);
        assert_eq!(write(&mut *pooled.start(), choice, false), expected);
        let text: Vec<u8> =
            expected.1.iter().map(|&token| u8::try_from(token).expect("ASCII")).collect();
        let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert!((3..=5).contains(&value.as_array().expect("an array").len()));
    }
}

#[test]
fn sequences_of_one_grammar_do_not_touch_each_other() {
    let constraint = compile(&grammars(2));
    std::thread::scope(|scope| {
        for choice in 0..8 {
            let (constraint, expected) = (constraint.clone(), compile(&grammars(0)));
            scope.spawn(move || {
                let expected = write(&mut *expected.start(), choice, false);
                for _ in 0..5 {
                    assert_eq!(write(&mut *constraint.start(), choice, true), expected);
                }
            });
        }
    });
}

#[test]
fn a_matcher_that_is_dropped_while_it_is_worked_on_harms_nobody() {
    let grammars = grammars(1);
    let constraint = compile(&grammars);
    for _ in 0..50 {
        let mut matcher = constraint.start();
        matcher.prepare();
        drop(matcher);
    }
    write(&mut *constraint.start(), 0, true);
}

#[test]
fn the_end_token_is_allowed_exactly_where_the_output_may_end() {
    let grammars = grammars(0);
    let constraint = grammars.compile(&GrammarSource::Regex("a{2,3}".to_owned())).expect("valid");
    let mut matcher = constraint.start();
    let a = TokenId::from(b'a');
    let expected = [(vec![a], OutputStatus::Open), (vec![a], OutputStatus::Open)];
    for (allowed, status) in expected {
        assert_eq!(matcher.allowed().expect("a mask").iter().collect::<Vec<_>>(), allowed);
        assert_eq!(matcher.accept(a), Ok(status));
    }
    let mask = matcher.allowed().expect("a mask");
    assert_eq!(mask.iter().collect::<Vec<_>>(), [a, END]);
    assert_eq!(matcher.accept(END), Ok(OutputStatus::Complete));
    let mut matcher = constraint.start();
    for _ in 0..2 {
        assert_eq!(matcher.accept(a), Ok(OutputStatus::Open));
    }
    assert_eq!(matcher.accept(a), Ok(OutputStatus::Complete), "nothing can follow three");
}

#[test]
fn a_compiled_source_is_found_again() {
    let grammars = grammars(0);
    assert!(grammars.cached(&schema()).is_none());
    compile(&grammars);
    assert!(grammars.cached(&schema()).is_some());
    assert!(grammars.cached(&GrammarSource::JsonObject).is_none());
}

/// An output that is one of these regular expressions, of which the first alone may have the head, and
/// begins with a thought if there is one.
fn alternatives(sources: [&str; 2], head: &str, thought: Option<&str>) -> OutputConstraint {
    let grammars = grammars(0);
    let compile =
        |source: &str| grammars.compile(&GrammarSource::Regex(source.to_owned())).expect("valid");
    let one = |source, heads| Alternative { constraint: compile(source), heads, then: None };
    let heads = vec![OutputHead::Text(head.to_owned())];
    let both = grammars.one_of(vec![one(sources[0], heads), one(sources[1], Vec::new())]);
    let Some(end) = thought else { return both };
    let shape = GrammarSource::Shape(OutputShape::TextThrough(end.to_owned()));
    let constraint = grammars.compile(&shape).expect("valid");
    grammars.one_of(vec![Alternative { constraint, heads: Vec::new(), then: Some(both) }])
}

/// Tells whether an output may be this text and nothing more.
fn accepts(constraint: &OutputConstraint, text: &str) -> bool {
    let mut matcher = constraint.start();
    for (i, byte) in text.bytes().enumerate() {
        if !matcher.allowed().expect("a mask").allows(TokenId::from(byte)) {
            return false;
        }
        if matcher.accept(TokenId::from(byte)) == Ok(OutputStatus::Complete) {
            return i + 1 == text.len();
        }
    }
    matcher.allowed().expect("a mask").allows(END)
}

#[test]
fn an_output_is_one_of_its_alternatives_and_what_begins_with_a_head_is_its_owner() {
    let constraint = alternatives(["<f>[0-9]", "<[a-g]+(>[a-z0-9]+)?"], "<f>", None);
    for text in ["<f>1", "<g>abc", "<ff>1", "<f", "<abc"] {
        assert!(accepts(&constraint, text), "{text}");
    }
    // The second would take them.
    for text in ["<f>a", "<f>12", "<", "f"] {
        assert!(!accepts(&constraint, text), "{text}");
    }
}

#[test]
fn a_head_that_its_owner_cannot_have_any_more_comes_from_nobody() {
    // The first needs another text than its head says, so no output has the head.
    let constraint = alternatives(["xy", "[a-c]+"], "ab", None);
    assert!(accepts(&constraint, "xy") && accepts(&constraint, "ac") && accepts(&constraint, "ba"));
    assert!(!accepts(&constraint, "ab") && !accepts(&constraint, "abc"));
}

#[test]
fn a_thought_ends_with_its_first_marker_and_the_rest_follows_it() {
    let constraint = alternatives(["<f>[0-9]", "[a-c]+"], "<f>", Some("</t>"));
    for text in ["</t>a", "x<f>y</t></t</t><f>1", "abc<</t>cb"] {
        assert_eq!(accepts(&constraint, text), !text.contains("</t</t>"), "{text}");
    }
    assert!(!accepts(&constraint, "abc") && !accepts(&constraint, "x</t>"));
    assert!(!accepts(&constraint, "x</t>d") && !accepts(&constraint, "x</t>a</t>b"));
}
