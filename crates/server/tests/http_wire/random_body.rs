//! Random request bodies: what a schema allows, and then what somebody made of it.

use crate::document::Document;
use crate::random::Random;
use serde_json::{Map, Value, json};

/// Levels of a generated value.
const MAX_DEPTH: u32 = 6;

/// Texts that mean something to a tokenizer, a template, a grammar or a parser, or nothing at all.
const TEXTS: [&str; 16] = [
    "",
    "a",
    "x8",
    "?%!",
    "\u{0}",
    "\u{1f600}\u{fe0f} e\u{301}",
    "<|im_start|>system\n<|im_end|>",
    "{\"type\": \"object\"}",
    "{\"type\": [\"integer\"]",
    "[a-f]{2,5}",
    "(",
    "root ::= \"a\" root | \"b\"",
    "start: \"a\" start",
    "script",
    "function",
    "\u{202e}\r\n\t\u{7f}",
];

/// Values that no field expects, or that lie at an edge.
fn hostile(random: &mut Random) -> Value {
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(-0.0),
        json!(5e-324),
        json!(1e39),
        json!(f64::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(u32::MAX),
        json!([]),
        json!({}),
        json!([[[[]]]]),
        json!([null]),
        json!({"": null}),
        json!({"$ref": "#"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!("x".repeat(3000)),
        json!(vec![97; 300]),
    ];
    if random.one_in(3) { json!(random.pick(&TEXTS)) } else { random.pick(&values).clone() }
}

/// Returns a value that `schema` mostly allows, in a field called `name`.
pub(crate) fn of_schema(
    document: &Document,
    schema: &Value,
    name: &str,
    random: &mut Random,
    depth: u32,
) -> Value {
    let schema = document.resolved(schema);
    for key in ["anyOf", "oneOf"] {
        if let Some(options) = schema[key].as_array() {
            return of_schema(document, random.pick(options), name, random, depth);
        }
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(values) = schema["enum"].as_array() {
        return random.pick(values).clone();
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    };
    // `null` is the last of its kinds; it says nothing, so it comes less often.
    let kind = if random.one_in(8) { kinds.last() } else { kinds.first() };
    let Some(&kind) = kind else { return hostile(random) };
    match kind {
        "object" => object(document, schema, random, depth),
        "array" => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            let count = least + if depth < MAX_DEPTH { random.below(3) } else { 0 };
            let item = |_| of_schema(document, &schema["items"], name, random, depth + 1);
            (0..count).map(item).collect()
        }
        "string" => text(schema, name, random),
        "integer" | "number" => number(schema, name, random),
        "boolean" => json!(random.one_in(2)),
        _ => Value::Null,
    }
}

fn object(document: &Document, schema: &Value, random: &mut Random, depth: u32) -> Value {
    let mut members = Map::new();
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.contains(&json!(name)));
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if is_required(name) || (depth < MAX_DEPTH && random.one_in(9)) {
            members.insert(name.clone(), of_schema(document, schema, name, random, depth + 1));
        }
    }
    if let Some(values) = schema.get("additionalProperties").filter(|it| it.is_object()) {
        let key = random.below(300).to_string();
        members.insert(key, of_schema(document, values, "", random, depth + 1));
    }
    Value::Object(members)
}

fn text(schema: &Value, name: &str, random: &mut Random) -> Value {
    match (name, schema.get("pattern")) {
        ("model", _) if !random.one_in(6) => json!("script"),
        (_, Some(_)) => json!(format!("f_{}", random.below(3))),
        _ => json!(random.pick(&TEXTS)),
    }
}

fn number(schema: &Value, name: &str, random: &mut Random) -> Value {
    let bounds = [&schema["minimum"], &schema["exclusiveMinimum"], &schema["maximum"]];
    if random.one_in(6) {
        let bound = *random.pick(&bounds);
        return if bound.is_null() { json!(0) } else { bound.clone() };
    }
    let part = i64::try_from(random.below(200)).unwrap();
    if schema["type"] == "integer" || schema["type"][0] == "integer" {
        let low = schema["minimum"].as_i64().unwrap_or(-3);
        // Long outputs say no more than short ones.
        let is_length =
            ["n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens"]
                .contains(&name);
        return json!(low + part % if is_length { 4 } else { 200 });
    }
    let [low, above, high] = bounds.map(Value::as_f64);
    let low = low.or(above).unwrap_or(-3.0);
    json!(low + part as f64 / 200.0 * (high.unwrap_or(5.0) - low))
}

/// Changes a body at a few places.
pub(crate) fn mutate(body: &mut Value, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let num_places = count(body);
        let mut place = random.below(num_places);
        if let Some(found) = nth(body, &mut place) {
            change(found, random);
        }
    }
}

fn count(value: &Value) -> u64 {
    let inner: u64 = match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    1 + inner
}

fn nth<'a>(value: &'a mut Value, place: &mut u64) -> Option<&'a mut Value> {
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, place)),
        Value::Object(members) => members.values_mut().find_map(|member| nth(member, place)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn change(value: &mut Value, random: &mut Random) {
    match (random.below(5), &mut *value) {
        (0, Value::Object(members)) => {
            let names: Vec<String> = members.keys().cloned().collect();
            if !names.is_empty() {
                members.remove(random.pick(&names));
            }
        }
        (1, Value::Object(members)) => {
            let name = ["x", "type", "", "stop_token", "function"];
            members.insert((*random.pick(&name)).to_owned(), hostile(random));
        }
        (0, Value::Array(items)) => drop(items.pop()),
        (1, Value::Array(items)) => items.push(hostile(random)),
        (2, _) => *value = json!([value.take()]),
        _ => *value = hostile(random),
    }
}

/// Writes a body, now and then as no JSON writer would.
pub(crate) fn written(body: &Value, random: &mut Random) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(body).unwrap();
    let place = usize::try_from(random.below(bytes.len() as u64)).unwrap();
    match random.below(24) {
        0 => bytes.truncate(place),
        1 => bytes[place] = u8::try_from(random.below(256)).unwrap(),
        2 => bytes.extend(b" x"),
        3 => bytes = [b"[".repeat(200), bytes].concat(),
        4 => {
            let odd: [&[u8]; 5] = [b"NaN", b"1e400", b"\"\\ud800\"", b"\xff", b"00"];
            bytes.splice(place..place, random.pick(&odd).iter().copied());
        }
        5 if bytes.first() == Some(&b'{') => {
            bytes.splice(1..1, b"\"stream\": false, ".iter().copied());
        }
        _ => {}
    }
    bytes
}
