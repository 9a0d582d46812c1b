//! How large a model is: its parameters, and the bytes of its weights.
//!
//! What the user says comes first, then what the server says, then what the model's name says,
//! which is an estimate and is called one. A mixture of experts reads only some of its weights for
//! a token, so its name tells nothing that can be used.

use serde_json::{Map, Value};
use std::path::Path;

/// How large a model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSize {
    /// What the model is called.
    pub name: String,
    /// Parameters that take part in a token.
    pub num_parameters: f64,
    /// Bytes of the weights that a step reads.
    pub weight_bytes: f64,
    /// Where the two come from, as a sentence without its full stop.
    pub source: String,
}

/// What is known of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFacts<'a> {
    /// Its name.
    pub name: Option<&'a str>,
    /// Parameters that the user gave.
    pub num_parameters: Option<f64>,
    /// Bytes that the user gave.
    pub weight_bytes: Option<f64>,
    /// A file of weights, whose size counts.
    pub file: Option<&'a Path>,
    /// What the server said about the model.
    pub server: Option<&'a Map<String, Value>>,
}

/// A number and where it comes from.
type Sourced = (f64, String);

/// Bits of a weight by the name of its form, the longest names first. GGUF's mixtures are what
/// llama.cpp's `quantize` prints for a Llama of 8 thousand million parameters.
const BITS: [(&str, f64); 33] = [
    ("q4_k_m", 4.89),
    ("q4_k_s", 4.67),
    ("q5_k_m", 5.70),
    ("q5_k_s", 5.57),
    ("q3_k_l", 4.30),
    ("q3_k_m", 4.00),
    ("q3_k_s", 3.64),
    ("iq4_xs", 4.46),
    ("iq4_nl", 4.68),
    ("iq3_m", 3.76),
    ("iq3_xs", 3.50),
    ("iq2_xs", 2.59),
    ("mxfp4", 4.25),
    ("q2_k", 3.16),
    ("q6_k", 6.56),
    ("q4_0", 4.5),
    ("q4_1", 5.0),
    ("q5_0", 5.5),
    ("q5_1", 6.0),
    ("q8_0", 8.5),
    ("bf16", 16.0),
    ("fp16", 16.0),
    ("fp32", 32.0),
    ("int8", 8.0),
    ("int4", 4.0),
    ("4bit", 4.5),
    ("8bit", 8.5),
    // A scale of 16 bits and a zero point of 4 for each 128 weights.
    ("gptq", 4.16),
    ("awq", 4.16),
    ("fp8", 8.0),
    ("q8", 8.5),
    ("f16", 16.0),
    ("f32", 32.0),
];

impl ModelSize {
    /// Works out the size of a model.
    ///
    /// # Errors
    /// When it is not known: what is missing, and how to give it.
    pub fn find(facts: &ModelFacts<'_>) -> Result<Self, String> {
        let name = facts.name.unwrap_or("the model").to_owned();
        let parameters = parameters(facts);
        let bits = bits(facts);
        let bytes = match bytes(facts)? {
            Some(bytes) => Some(bytes),
            None => parameters.as_ref().zip(bits.as_ref()).map(|((number, _), (bits, form))| {
                (number * bits / 8.0, format!("estimated at {bits} bits a weight for {form}"))
            }),
        };
        let is_mixture = facts.name.is_some_and(is_mixture_of_experts);
        if is_mixture && (facts.num_parameters.is_none() || facts.weight_bytes.is_none()) {
            return Err(format!(
                "{name} is a mixture of experts, which reads only some of its weights for a \
                 token; pass --params with the active parameters and --model-bytes with the bytes \
                 that a step reads"
            ));
        }
        let Some((weight_bytes, bytes_source)) = bytes else {
            return Err(format!(
                "the size of {name} is not known; pass --model-bytes or --model-file{}",
                if parameters.is_none() { ", and --params" } else { "" }
            ));
        };
        let parameters = parameters.or_else(|| {
            let (bits, form) = bits.as_ref()?;
            let number = weight_bytes * 8.0 / bits;
            Some((number, format!("estimated from its bytes at {bits} bits a weight for {form}")))
        });
        let Some((num_parameters, parameters_source)) = parameters else {
            return Err(format!(
                "the number of parameters of {name} is not known; pass --params, such as 1.5B"
            ));
        };
        let source = format!("parameters {parameters_source}, weights {bytes_source}");
        Ok(Self { name, num_parameters, weight_bytes, source })
    }

    /// Returns the bits of one weight, in the mean.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.weight_bytes * 8.0 / self.num_parameters
    }
}

fn bytes(facts: &ModelFacts<'_>) -> Result<Option<Sourced>, String> {
    if let Some(bytes) = facts.weight_bytes {
        return Ok(Some((bytes, "given".to_owned())));
    }
    if let Some(file) = facts.file {
        let metadata = std::fs::metadata(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        if !metadata.is_file() {
            return Err(format!("{} is no file; pass the file of the weights", file.display()));
        }
        #[expect(clippy::cast_precision_loss, reason = "no file has 2^52 bytes")]
        let bytes = metadata.len() as f64;
        return Ok(Some((bytes, "from the size of the file".to_owned())));
    }
    let told = facts.server.and_then(|server| server.get("size_bytes")?.as_f64());
    Ok(told.filter(|bytes| *bytes > 0.0).map(|bytes| (bytes, "told by the server".to_owned())))
}

fn parameters(facts: &ModelFacts<'_>) -> Option<Sourced> {
    if let Some(number) = facts.num_parameters {
        return Some((number, "given".to_owned()));
    }
    let server = |key: &str| facts.server.and_then(|server| server.get(key));
    let told = server("num_parameters")
        .and_then(Value::as_f64)
        .or_else(|| parse_number(server("parameters")?.as_str()?));
    if let Some(number) = told.filter(|number| *number > 0.0) {
        return Some((number, "told by the server".to_owned()));
    }
    let number = parameters_in_name(facts.name?)?;
    Some((number, "estimated from its name".to_owned()))
}

/// Returns the bits of a weight, and the name of its form.
fn bits(facts: &ModelFacts<'_>) -> Option<Sourced> {
    let told = facts.server.and_then(|server| server.get("quantization")?.as_str());
    let file = facts.file.and_then(|file| file.file_name()?.to_str());
    [told, file, facts.name].into_iter().flatten().find_map(bits_in_name)
}

fn bits_in_name(name: &str) -> Option<Sourced> {
    let name = name.to_lowercase().replace('-', "_");
    let words: Vec<_> = name.split(['_', ':', '.', '/', ' ']).collect();
    let found = BITS.iter().find(|(form, _)| {
        // A short form must be a whole word; a long one cannot be an accident.
        if form.contains('_') { name.contains(form) } else { words.contains(form) }
    });
    found.map(|(form, bits)| (*bits, form.to_uppercase()))
}

/// Returns the parameters that a name such as `qwen2.5:0.5b` or `SmolLM2-135M` tells.
fn parameters_in_name(name: &str) -> Option<f64> {
    let words = name.split(['-', '_', ':', '/', ' ']);
    let number = |word: &str| {
        let lower = word.to_lowercase();
        let digits = lower.strip_suffix(['b', 'm'])?;
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        parse_number(word)
    };
    words.filter_map(number).next()
}

/// Returns whether a name tells of experts, such as `8x7B` or `30B-A3B`.
fn is_mixture_of_experts(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(['-', '_', ':', '/', ' ']).any(|word| {
        let is_count = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let active = word.strip_prefix('a').and_then(|word| word.strip_suffix('b'));
        let is_active = active.is_some_and(|number| number.parse::<f64>().is_ok());
        let is_product = word.split_once('x').is_some_and(|(experts, size)| {
            is_count(experts) && size.strip_suffix('b').is_some_and(|b| b.parse::<f64>().is_ok())
        });
        is_active || is_product || word == "moe"
    })
}

/// Reads a number with a decimal suffix: `135M`, `1.5B`, `98304`. `K`, `M`, `G`, `B` and `T` are
/// thousands, millions, thousand millions (two) and million millions.
#[must_use]
pub fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let (digits, factor) = match text.chars().last()?.to_ascii_lowercase() {
        'k' => (&text[..text.len() - 1], 1e3),
        'm' => (&text[..text.len() - 1], 1e6),
        'b' | 'g' => (&text[..text.len() - 1], 1e9),
        't' => (&text[..text.len() - 1], 1e12),
        _ => (text, 1.0),
    };
    let number: f64 = digits.trim().replace('_', "").parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(name: &str) -> Result<ModelSize, String> {
        ModelSize::find(&ModelFacts { name: Some(name), ..ModelFacts::default() })
    }

    fn check(size: &ModelSize, parameters: f64, bytes: f64) {
        let near = |got: f64, expected: f64| (got / expected - 1.0).abs() < 1e-9;
        assert!(near(size.num_parameters, parameters), "{size:?}");
        assert!(near(size.weight_bytes, bytes), "{size:?}");
    }

    #[test]
    fn names_tell_parameters_and_bits_and_that_is_called_an_estimate() {
        for (name, parameters, bits) in [
            ("SmolLM2-135M-Instruct.Q4_1", 135e6, 5.0),
            ("llama3:8b-q4_k_m", 8e9, 4.89),
            ("qwen2.5:0.5b-instruct-fp16", 0.5e9, 16.0),
            ("Qwen/Qwen3-4B-AWQ", 4e9, 4.16),
            ("mistral-7B-bf16", 7e9, 16.0),
            ("TinyLlama-1.1B-Chat.Q8_0.gguf", 1.1e9, 8.5),
        ] {
            let size = named(name).unwrap();
            check(&size, parameters, parameters * bits / 8.0);
            assert_eq!(size.source.matches("estimated").count(), 2, "{size:?}");
        }
    }

    #[test]
    fn what_a_name_does_not_tell_is_an_error_that_says_what_to_pass() {
        for (name, flags) in [
            ("gpt-oss", "--model-bytes or --model-file, and --params"),
            ("llama-8b", "--model-bytes or --model-file"),
            ("phi3.5-q4_0", "--model-bytes or --model-file, and --params"),
        ] {
            let error = named(name).unwrap_err();
            assert!(error.ends_with(flags), "{error}");
        }
    }

    #[test]
    fn mixtures_of_experts_need_both_numbers_from_the_user() {
        for name in ["mixtral-8x7b-q4_0", "Qwen3-30B-A3B-fp8", "olmoe-moe-7b-q8_0"] {
            assert!(named(name).unwrap_err().contains("mixture of experts"), "{name}");
        }
        let facts = ModelFacts {
            name: Some("mixtral-8x7b"),
            num_parameters: Some(13e9),
            weight_bytes: Some(7e9),
            ..ModelFacts::default()
        };
        check(&ModelSize::find(&facts).unwrap(), 13e9, 7e9);
        assert!(!is_mixture_of_experts("llama3-8b-instruct-xl"));
    }

    #[test]
    fn the_user_is_believed_before_the_server_and_the_server_before_the_name() {
        let told = json!({"num_parameters": 134_515_008, "size_bytes": 98_000_000});
        let server = told.as_object();
        let name = Some("SmolLM2-360M.Q8_0");
        let facts = ModelFacts { name, server, ..ModelFacts::default() };
        check(&ModelSize::find(&facts).unwrap(), 134_515_008.0, 98e6);
        let facts = ModelFacts { num_parameters: Some(1e6), weight_bytes: Some(5e5), ..facts };
        check(&ModelSize::find(&facts).unwrap(), 1e6, 5e5);
        let told = json!({"parameters": "494.03M", "quantization": "Q4_0"});
        let facts = ModelFacts { name, server: told.as_object(), ..ModelFacts::default() };
        check(&ModelSize::find(&facts).unwrap(), 494.03e6, 494.03e6 * 4.5 / 8.0);
    }

    #[test]
    fn the_size_of_a_file_counts_and_gives_the_parameters_with_its_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.Q4_0.gguf");
        std::fs::write(&file, [0; 900]).unwrap();
        let facts = ModelFacts { file: Some(&file), ..ModelFacts::default() };
        check(&ModelSize::find(&facts).unwrap(), 1600.0, 900.0);
        let facts = ModelFacts { file: Some(folder.path()), ..ModelFacts::default() };
        assert!(ModelSize::find(&facts).unwrap_err().contains("is no file"));
        let absent = folder.path().join("absent");
        let facts = ModelFacts { file: Some(&absent), ..ModelFacts::default() };
        assert!(ModelSize::find(&facts).unwrap_err().contains("cannot read"));
    }

    #[test]
    fn numbers_may_have_suffixes() {
        for (text, number) in
            [("135M", 135e6), ("1.5b", 1.5e9), ("2G", 2e9), ("98_304", 98304.0), ("1e9", 1e9)]
        {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for text in ["", "B", "many", "-1B", "0", "inf", "NaN"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
