//! From the fields of DRY to its parameters.
//!
//! Breakers are written as text and looked for as tokens: each token that holds a breaker is one by
//! itself; a breaker that no token holds whole is the tokens that it is written with behind a letter.
//! Finding them costs a pass over the vocabulary for each request that uses DRY.

use crate::validation::{check_again, narrow};
use crate::wire::error::ApiError;
use crate::wire::sampler_fields::SamplerFields;
use mini_infer_core::{DryBreakers, DryParams, SamplingParams, TokenId};
use mini_infer_text::Tokenizer;
use std::sync::Arc;

/// Most breakers of one request.
pub(crate) const MAX_BREAKERS: usize = 16;
/// Most bytes of a breaker.
pub(crate) const MAX_BREAKER_BYTES: usize = 64;
/// llama.cpp's defaults.
const DEFAULT_BASE: f64 = 1.75;
const DEFAULT_ALLOWED_LENGTH: u32 = 2;
const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Reads the fields of DRY; `None` when they ask for none.
///
/// # Errors
/// Refuses lists and lengths that are out of range, naming the field.
pub(crate) fn read(
    fields: &SamplerFields,
    tokenizer: &Tokenizer,
) -> Result<Option<DryParams>, ApiError> {
    let num_last_tokens = num_last_tokens(fields)?;
    let breakers = match &fields.dry_sequence_breakers {
        Some(breakers) => checked(breakers)?,
        None => DEFAULT_BREAKERS.map(str::to_owned).to_vec(),
    };
    let multiplier = fields.dry_multiplier.unwrap_or(0.0);
    let dry = DryParams {
        multiplier: narrow(multiplier),
        base: narrow(fields.dry_base.unwrap_or(DEFAULT_BASE)),
        allowed_length: fields.dry_allowed_length.unwrap_or(DEFAULT_ALLOWED_LENGTH),
        num_last_tokens: num_last_tokens.unwrap_or(u32::MAX),
        breakers: Arc::default(),
    };
    if multiplier == 0.0 || num_last_tokens.is_none() {
        // Numbers out of range are refused also where they would have no effect.
        let multiplier = if multiplier == 0.0 { 1.0 } else { dry.multiplier };
        let dry = Some(DryParams { multiplier, ..dry });
        check_again(&SamplingParams { dry, ..SamplingParams::greedy(1) })?;
        return Ok(None);
    }
    Ok(Some(DryParams { breakers: Arc::new(find(&breakers, tokenizer)?), ..dry }))
}

/// Reads how far back repetitions are looked for: `None` for not at all.
fn num_last_tokens(fields: &SamplerFields) -> Result<Option<u32>, ApiError> {
    let (name, value) = match (fields.dry_range, fields.dry_penalty_last_n) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("dry_range", "is another name of `dry_penalty_last_n`"));
        }
        (None, None) => return Ok(Some(u32::MAX)),
        // A range of 0 is none, which bounds nothing; the last 0 tokens are no tokens.
        (Some(0), None) | (None, Some(-1)) => return Ok(Some(u32::MAX)),
        (None, Some(0)) => return Ok(None),
        (Some(range), None) => ("dry_range", range),
        (None, Some(last)) => ("dry_penalty_last_n", last),
    };
    let number = u32::try_from(value).map(Some);
    number.map_err(|_| ApiError::invalid(name, format!("must be a number of tokens, got {value}")))
}

fn checked(breakers: &[String]) -> Result<Vec<String>, ApiError> {
    let refuse = |message| Err(ApiError::invalid("dry_sequence_breakers", message));
    if breakers.len() > MAX_BREAKERS {
        return refuse(format!("takes at most {MAX_BREAKERS} strings, got {}", breakers.len()));
    }
    if breakers.iter().any(|breaker| !(1..=MAX_BREAKER_BYTES).contains(&breaker.len())) {
        return refuse(format!("takes strings of 1 to {MAX_BREAKER_BYTES} bytes"));
    }
    Ok(breakers.to_vec())
}

/// Finds the tokens of breakers.
fn find(breakers: &[String], tokenizer: &Tokenizer) -> Result<DryBreakers, ApiError> {
    let num_tokens = TokenId::try_from(tokenizer.vocab_size()).unwrap_or(TokenId::MAX);
    let mut found = DryBreakers::default();
    for breaker in breakers {
        let holds = |id: &TokenId| {
            tokenizer.token_bytes(*id).is_some_and(|bytes| contains(bytes, breaker.as_bytes()))
        };
        let num_before = found.tokens.len();
        found.tokens.extend((0..num_tokens).filter(holds));
        if found.tokens.len() == num_before {
            let phrase = phrase(breaker, tokenizer)?;
            match phrase[..] {
                [token] => found.tokens.push(token),
                _ => found.phrases.push(phrase),
            }
        }
    }
    found.tokens.sort_unstable();
    found.tokens.dedup();
    Ok(found)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Returns the tokens of a breaker behind a letter; the last one where they begin before it.
fn phrase(breaker: &str, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, ApiError> {
    let encode = |text: &str| {
        let ids = tokenizer.encode_text(text);
        ids.map_err(|error| ApiError::invalid("dry_sequence_breakers", error.to_string()))
    };
    let (letter, both) = (encode("a")?, encode(&format!("a{breaker}"))?);
    let behind = both.strip_prefix(&letter[..]).filter(|behind| !behind.is_empty());
    let last = both.last().copied();
    Ok(behind.map_or_else(|| last.into_iter().collect(), <[TokenId]>::to_vec))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mini_infer_text::GgufVocabulary;
    use serde_json::{Value, json};

    /// One token for each byte, and from 256 on `:`, `b:`, `::` and `ab`.
    pub(crate) fn tokenizer() -> Tokenizer {
        let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend([":", "b:", "::", "ab"].map(str::to_owned));
        let mut token_types = vec![6; 256];
        token_types.extend([1; 4]);
        Tokenizer::from_gguf(GgufVocabulary {
            model: "llama".to_owned(),
            scores: vec![0.0; tokens.len()],
            token_types,
            tokens,
            add_space_prefix: Some(false),
            ..GgufVocabulary::default()
        })
        .unwrap()
    }

    fn dry(fields: Value) -> Result<Option<DryParams>, String> {
        let fields: SamplerFields = serde_json::from_value(fields).unwrap();
        match read(&fields, &tokenizer()) {
            Ok(dry) => Ok(dry),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn dry_is_off_without_a_multiplier_or_tokens_to_look_at() {
        assert_eq!(dry(json!({})), Ok(None));
        assert_eq!(dry(json!({"dry_multiplier": 0, "dry_base": 2})), Ok(None));
        assert_eq!(dry(json!({"dry_multiplier": 1, "dry_penalty_last_n": 0})), Ok(None));
    }

    #[test]
    fn numbers_out_of_range_are_refused_where_dry_is_off_too() {
        for fields in [json!({"dry_base": 0.5}), json!({"dry_base": 17, "dry_multiplier": 0})] {
            assert_eq!(dry(fields).unwrap_err(), "dry_base");
        }
        assert_eq!(dry(json!({"dry_allowed_length": 0})).unwrap_err(), "dry_allowed_length");
        let many = json!({"dry_multiplier": 101, "dry_penalty_last_n": 0});
        assert_eq!(dry(many).unwrap_err(), "dry_multiplier");
    }

    #[test]
    fn absent_fields_have_the_usual_values() {
        let dry = dry(json!({"dry_multiplier": 0.8})).unwrap().unwrap();
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length), (0.8, 1.75, 2));
        assert_eq!(dry.num_last_tokens, u32::MAX);
        let bytes = *b"\n\"*:";
        let expected: Vec<TokenId> = bytes.map(TokenId::from).into_iter().chain(256..259).collect();
        assert_eq!(dry.breakers.tokens, expected, "all tokens with one of them");
    }

    #[test]
    fn a_range_has_two_names() {
        let last = |name: &str, value: i64| {
            let dry = dry(json!({"dry_multiplier": 1, name: value}));
            dry.map(|dry| dry.unwrap().num_last_tokens)
        };
        assert_eq!(last("dry_range", 0), Ok(u32::MAX));
        assert_eq!(last("dry_penalty_last_n", -1), Ok(u32::MAX));
        assert_eq!((last("dry_range", 7), last("dry_penalty_last_n", 7)), (Ok(7), Ok(7)));
        assert_eq!(last("dry_range", -1).unwrap_err(), "dry_range");
        assert_eq!(last("dry_penalty_last_n", -2).unwrap_err(), "dry_penalty_last_n");
        let both = json!({"dry_range": 5, "dry_penalty_last_n": 5});
        assert_eq!(dry(both).unwrap_err(), "dry_range");
    }

    #[test]
    fn breakers_that_no_token_holds_are_phrases() {
        let breakers = |list: Value| {
            let fields = json!({"dry_multiplier": 1, "dry_sequence_breakers": list});
            dry(fields).map(|dry| (*dry.unwrap().breakers).clone())
        };
        let found = breakers(json!(["ab", ":b"])).unwrap();
        assert_eq!((found.tokens, found.phrases), (vec![259], vec![vec![256, u32::from(b'b')]]));
        assert_eq!(breakers(json!([])).unwrap(), DryBreakers::default());
        for bad in [json!([""]), json!(["x".repeat(65)]), json!(vec!["a"; 17])] {
            assert_eq!(breakers(bad).unwrap_err(), "dry_sequence_breakers");
        }
    }
}
