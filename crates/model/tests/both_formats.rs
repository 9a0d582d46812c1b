//! The two formats of one tiny model (testdata/make_tiny_families.py) say the same of it.

use mini_infer_model::config::{OutputHead, Projections};
use mini_infer_model::rope::{LongRopeDivisors, RopeScaling, RopeStyle};
use mini_infer_model::{Checkpoint, ModelConfig};
use std::path::PathBuf;

fn folder(family: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(family)
}

fn of_json(family: &str) -> ModelConfig {
    let bytes = std::fs::read(folder(family).join("config.json")).expect("a config.json");
    ModelConfig::from_json(&bytes).expect("a known family")
}

fn of_gguf(family: &str) -> ModelConfig {
    let checkpoint = Checkpoint::open(&folder(family).join("f16.gguf")).expect("a valid file");
    checkpoint.config().clone()
}

/// Checks that the formats differ in nothing but what their converter has changed.
fn check(family: &str, change: impl Fn(&mut ModelConfig)) {
    let (mut json, mut gguf) = (of_json(family), of_gguf(family));
    assert_ne!(json.output_head, OutputHead::AsStored);
    gguf.output_head = json.output_head;
    change(&mut json);
    // A file says numbers in fewer digits.
    let close = |a: f32, b: f32| (a / b - 1.0).abs() < 1e-6;
    assert!(close(json.attention.scale, gguf.attention.scale), "{family}");
    gguf.attention.scale = json.attention.scale;
    assert_eq!(json, gguf, "{family}");
}

#[test]
fn the_configurations_of_both_formats_are_equal_but_for_what_the_converter_changed() {
    let interleaved = |config: &mut ModelConfig| {
        config.rope.style = RopeStyle::Interleaved;
        if let Some(sliding) = &mut config.sliding {
            sliding.rope.style = RopeStyle::Interleaved;
        }
    };
    for family in ["tiny-qwen3", "tiny-qwen3-yarn", "tiny-qwen3-moe"] {
        check(family, |_| {});
    }
    for family in ["tiny-mistral", "tiny-mixtral"] {
        check(family, interleaved);
    }
    check("tiny-gemma2", |config| {
        config.norm_offset = 0.0;
        config.attention.scale = 0.25;
    });
    check("tiny-phi3", |config| {
        let sliding = config.sliding.as_mut().expect("a window on all layers");
        for rope in [&mut config.rope, &mut sliding.rope] {
            let RopeScaling::LongRope(scaling) = &mut rope.scaling else { panic!("LongRoPE") };
            scaling.divisors = LongRopeDivisors::InTensors;
        }
    });
}

#[test]
fn the_divisors_of_longrope_are_listed_in_config_json() {
    let config = of_json("tiny-phi3");
    assert_eq!((config.projections, config.rope.rotary_dim), (Projections::Fused, 8));
    let scaling = config.rope.scaling.long_rope().expect("LongRoPE");
    let expected = LongRopeDivisors::Listed {
        short: vec![1.0, 1.1, 1.2, 1.3],
        long: vec![1.0, 3.0, 5.0, 7.0],
    };
    assert_eq!((&scaling.divisors, scaling.original_context_length), (&expected, 32));
}
