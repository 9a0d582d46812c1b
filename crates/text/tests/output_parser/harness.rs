//! Outputs cut into chunks in every way, and what a parser makes of them.

use mini_infer_core::TokenId;
use mini_infer_text::{
    CallableTool, GgufVocabulary, OutputEvent, OutputFormat, OutputParser, ReasoningFormat,
    ReasoningStart, Tokenizer, ToolFormat,
};
use serde_json::{Value, json};
use std::cell::Cell;

/// Markers that families have as control tokens.
pub(crate) const MARKERS: [&str; 9] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<think>",
    "</think>",
    "[THINK]",
];
const NUM_BYTES: usize = 256;

/// What an output holds, pieces joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) num_ended: usize,
}

impl Parsed {
    fn add(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            match event {
                OutputEvent::Content(text) => {
                    assert!(!text.is_empty());
                    self.content.push_str(&text);
                }
                OutputEvent::Reasoning(text) => {
                    assert!(!text.is_empty());
                    self.reasoning.push_str(&text);
                }
                OutputEvent::CallBegun { index, name } => {
                    assert_eq!(index, self.calls.len());
                    self.calls.push((name, String::new()));
                }
                OutputEvent::Arguments { index, text } => {
                    assert!(!text.is_empty() && index + 1 == self.calls.len());
                    self.calls[index].1.push_str(&text);
                }
                OutputEvent::CallEnded { index } => {
                    assert_eq!(index + 1, self.calls.len());
                    self.num_ended += 1;
                }
            }
        }
    }
}

/// Bytes, and the markers as tokens of the given type: 3 is a control token, 4 an added one.
pub(crate) fn tokenizer(marker_type: i32) -> Tokenizer {
    let mut tokens: Vec<String> = (0..NUM_BYTES).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(MARKERS.map(str::to_owned));
    let mut token_types = vec![6; NUM_BYTES];
    token_types.extend([marker_type; MARKERS.len()]);
    let scores = vec![0.0; tokens.len()];
    let model = "llama".to_owned();
    let vocabulary = GgufVocabulary { model, tokens, token_types, scores, ..Default::default() };
    Tokenizer::from_gguf(vocabulary).unwrap()
}

/// A text between markers, or a marker as a control token.
#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    Text(String),
    Marker(TokenId),
}

pub(crate) fn parse(parser: &OutputParser, chunks: &[Chunk]) -> Parsed {
    let mut parser = parser.clone();
    let mut parsed = Parsed::default();
    for chunk in chunks {
        parsed.add(match chunk {
            Chunk::Text(text) => parser.push(text),
            Chunk::Marker(token) => parser.push_marker(*token),
        });
    }
    parsed.add(parser.finish());
    parsed
}

/// Cuts markers out of a text that the parser takes as control tokens.
pub(crate) fn with_markers(parser: &OutputParser, mut text: &str) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let places = |text: &str| {
        let found = MARKERS.iter().enumerate().filter_map(|(i, marker)| {
            let token = TokenId::try_from(NUM_BYTES + i).unwrap();
            parser.is_marker(token).then_some((text.find(marker)?, token, marker.len()))
        });
        found.min()
    };
    while let Some((start, token, len)) = places(text) {
        chunks.push(Chunk::Text(text[..start].to_owned()));
        chunks.push(Chunk::Marker(token));
        text = &text[start + len..];
    }
    chunks.push(Chunk::Text(text.to_owned()));
    chunks
}

pub(crate) fn cut(chunks: &[Chunk], mut is_cut: impl FnMut() -> bool) -> Vec<Chunk> {
    let mut pieces = Vec::new();
    for chunk in chunks {
        let Chunk::Text(text) = chunk else {
            pieces.push(chunk.clone());
            continue;
        };
        let mut piece = String::new();
        for c in text.chars() {
            piece.push(c);
            if is_cut() {
                pieces.push(Chunk::Text(std::mem::take(&mut piece)));
            }
        }
        pieces.push(Chunk::Text(piece));
    }
    pieces
}

/// A family, and how its outputs begin.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) reasoning: Option<(ReasoningFormat, ReasoningStart)>,
}

const fn tools(format: ToolFormat) -> Family {
    Family { tools: Some(format), reasoning: None }
}

pub(crate) const HERMES: Family = tools(ToolFormat::Hermes);
pub(crate) const LLAMA: Family = tools(ToolFormat::Llama3Json);
pub(crate) const MISTRAL: Family = tools(ToolFormat::Mistral);
pub(crate) const PYTHONIC: Family = tools(ToolFormat::Pythonic);
pub(crate) const GEMMA: Family = tools(ToolFormat::Gemma);
pub(crate) const JSON: Family = tools(ToolFormat::Json);
pub(crate) const CODER: Family = tools(ToolFormat::Qwen3Coder);
pub(crate) const QWEN3: Family = Family {
    tools: Some(ToolFormat::Hermes),
    reasoning: Some((ReasoningFormat::Qwen3, ReasoningStart::Open)),
};
pub(crate) const BEGUN: Family =
    Family { tools: None, reasoning: Some((ReasoningFormat::Qwen3, ReasoningStart::Begun)) };

pub(crate) fn parser(family: Family, tokenizer: &Tokenizer) -> OutputParser {
    let format = family.reasoning.map(|(format, _)| format);
    let format = OutputFormat::new(family.tools, format, tokenizer);
    let tools = ["f", "get_weather", "get-time"].map(|name| CallableTool::new(name, None));
    let mut tools = tools.to_vec();
    tools.push(CallableTool::new("typed", Some(&typed_parameters())));
    OutputParser::new(&format, tools, family.reasoning.map(|(_, start)| start))
}

/// Parameters of every type, `any` without one.
fn typed_parameters() -> Value {
    json!({"type": "object", "properties": {
        "text": {"type": "string"}, "number": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "map": {"type": "object"}, "any": {},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    }})
}

/// Checks what `text` holds: with markers as texts and as control tokens, whole, cut at every
/// place, into characters, and at random.
pub(crate) fn check(
    family: Family,
    text: &str,
    content: &str,
    reasoning: &str,
    calls: &[(&str, &str)],
) {
    let seed: u64 = std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let state = Cell::new(seed);
    let next = || {
        state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        state.get() >> 33
    };
    for marker_type in [4, 3] {
        let parser = parser(family, &tokenizer(marker_type));
        let whole = with_markers(&parser, text);
        let parsed = parse(&parser, &whole);
        let got: Vec<(&str, &str)> =
            parsed.calls.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let what = format!("{text:?}, markers of type {marker_type}, TEXT_SEED={seed}");
        assert_eq!(got, calls, "{what}");
        assert_eq!(
            (parsed.content.as_str(), parsed.reasoning.as_str()),
            (content, reasoning),
            "{what}"
        );
        for place in 0..text.chars().count() {
            let mut i = 0;
            let halves = cut(&whole, || {
                i += 1;
                i == place + 1
            });
            assert_eq!(parse(&parser, &halves), parsed, "{what}: cut behind {place}");
        }
        assert_eq!(parse(&parser, &cut(&whole, || true)), parsed, "{what}: cut everywhere");
        for _ in 0..20 {
            let one_in = 1 + next() % 8;
            let pieces = cut(&whole, || next() % one_in == 0);
            assert_eq!(parse(&parser, &pieces), parsed, "{what}: {pieces:?}");
        }
    }
}

pub(crate) fn check_calls(family: Family, text: &str, calls: &[(&str, &str)]) {
    check(family, text, "", "", calls);
}

pub(crate) fn check_text(family: Family, text: &str) {
    check(family, text, text, "", &[]);
}
