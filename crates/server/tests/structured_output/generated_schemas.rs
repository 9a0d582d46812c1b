//! Schemas that a seed makes: every keyword in the company of others.

use crate::random::Random;
use serde_json::{Map, Value, json};

const NAMES: &[&str] = &["a", "b", "name", "é", "with space", "日本", "id", "x-y", "q\"", "value"];
const PATTERNS: &[&str] = &[
    "^[a-f0-9]{4}$",
    "^x*y$",
    "[0-9]",
    "^(one|two|three)$",
    "^\\S+$",
    "^a.b$",
    "^[A-Z][a-z]{0,5}$",
];
const FORMATS: &[&str] = &["date", "time", "date-time", "uuid", "ipv4", "email"];

/// Returns the schema of a seed.
pub(crate) fn schema(seed: u64) -> Value {
    let mut random = Random::new(seed);
    let mut schema = value(&mut random, 3);
    if random.one_in(3) {
        // Ends at once in most outputs, and never has to go on.
        let inner = value(&mut random, 1);
        let node = json!({
            "type": "object",
            "properties": {
                "value": inner,
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": false,
        });
        schema = json!({
            "type": "object",
            "properties": {"list": {"$ref": "#/$defs/node"}, "rest": schema},
            "required": ["list"],
            "additionalProperties": false,
            "$defs": {"node": node},
        });
    }
    schema
}

fn value(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth == 0 { 6 } else { 11 };
    match random.below(kinds) {
        0 => string(random),
        1 => integer(random),
        2 => number(random),
        3 => json!({"type": random.pick(&["boolean", "null"])}),
        4 => json!({"enum": [random.pick(NAMES), random.below(1000), null, 0.25]}),
        5 => json!({"const": random.pick(NAMES)}),
        6 | 7 => object(random, depth),
        8 => array(random, depth),
        9 => json!({"anyOf": [value(random, depth - 1), value(random, depth - 1)]}),
        _ => tagged(random, depth),
    }
}

fn string(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"type": "string", "pattern": random.pick(PATTERNS)}),
        1 => json!({"type": "string", "format": random.pick(FORMATS)}),
        2 => {
            let min = random.below(6);
            json!({"type": "string", "minLength": min, "maxLength": min + random.below(9)})
        }
        _ => json!({"type": "string"}),
    }
}

fn bound(random: &mut Random) -> i64 {
    let magnitude = i64::try_from(random.below(5_000)).unwrap();
    if random.one_in(2) { magnitude } else { -magnitude }
}

fn integer(random: &mut Random) -> Value {
    let (low, size) = (bound(random), random.below(3_000) + 20);
    let mut schema = json!({"type": "integer"});
    if random.one_in(2) {
        schema["minimum"] = json!(low);
    }
    if random.one_in(2) {
        schema["maximum"] = json!(low + i64::try_from(size).unwrap());
    }
    if schema.get("minimum").is_some() && schema.get("maximum").is_some() && random.one_in(2) {
        // Whether a number beyond doubles is a multiple, no validator can tell.
        schema["multipleOf"] = json!(random.below(9) + 1);
    }
    schema
}

fn number(random: &mut Random) -> Value {
    let low = bound(random) as f64 / 8.0;
    let mut schema = json!({"type": "number"});
    if random.one_in(2) {
        let key = *random.pick(&["minimum", "exclusiveMinimum"]);
        schema[key] = json!(low);
    }
    if random.one_in(2) {
        let key = *random.pick(&["maximum", "exclusiveMaximum"]);
        schema[key] = json!(low + 2.5);
    }
    schema
}

fn object(random: &mut Random, depth: u64) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..random.below(4) {
        let name = *random.pick(NAMES);
        properties.insert(name.to_owned(), value(random, depth - 1));
        if random.one_in(2) && !required.contains(&name) {
            required.push(name);
        }
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    match random.below(4) {
        0 => schema["additionalProperties"] = value(random, 0),
        1 => {
            schema["patternProperties"] = json!({"^p_[a-z]$": value(random, 0)});
            schema["additionalProperties"] = json!(false);
        }
        _ => schema["additionalProperties"] = json!(false),
    }
    schema
}

fn array(random: &mut Random, depth: u64) -> Value {
    let min = random.below(3);
    let mut schema = json!({"type": "array", "items": value(random, depth - 1)});
    schema["minItems"] = json!(min);
    schema["maxItems"] = json!(min + random.below(4));
    if random.one_in(3) {
        schema["prefixItems"] = json!([value(random, depth - 1), value(random, 0)]);
    }
    schema
}

/// Objects that a constant tells apart.
fn tagged(random: &mut Random, depth: u64) -> Value {
    let option = |random: &mut Random, tag: &str| {
        json!({
            "type": "object",
            "properties": {"tag": {"const": tag}, "value": value(random, depth - 1)},
            "required": ["tag", "value"],
            "additionalProperties": false,
        })
    };
    json!({"oneOf": [option(random, "one"), option(random, "two"), option(random, "three")]})
}
