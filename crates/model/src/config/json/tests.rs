//! Configurations as people have them, and what is refused.

use super::*;
use crate::rope::{Llama3Scaling, RopeScaling, RopeStyle};
use serde_json::{Value, json};

/// As transformers 4 wrote them, from the model pages of the Hub; keys without a part left out.
fn llama3() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128_000, "eos_token_id": [128_001, 128_008, 128_009], "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 131_072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "rope_theta": 500_000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128_256
    })
}

fn qwen2() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
        "intermediate_size": 4864, "max_position_embeddings": 32_768, "max_window_layers": 21,
        "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "sliding_window": 32_768, "tie_word_embeddings": true, "use_mrope": false,
        "use_sliding_window": false, "vocab_size": 151_936
    })
}

fn mistral() -> Value {
    json!({
        "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14_336, "max_position_embeddings": 32_768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "vocab_size": 32_000
    })
}

fn gemma3() -> Value {
    json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
        "attn_logit_softcapping": null, "cache_implementation": "hybrid",
        "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "intermediate_size": 6912, "max_position_embeddings": 32_768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10_000, "rope_scaling": null, "rope_theta": 1_000_000,
        "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262_144
    })
}

fn read(config: &Value) -> Result<ModelConfig, ModelError> {
    ModelConfig::from_json(config.to_string().as_bytes())
}

/// Returns `config` with other values under some keys.
fn with(mut config: Value, changes: &Value) -> Value {
    let changes = changes.as_object().expect("changes are an object");
    config.as_object_mut().expect("an object").extend(changes.clone());
    config
}

fn without(mut config: Value, keys: &[&str]) -> Value {
    config.as_object_mut().expect("an object").retain(|key, _| !keys.contains(&key.as_str()));
    config
}

#[test]
fn llama3_is_read_whole() {
    let config = read(&llama3()).unwrap();
    let scaling = RopeScaling::Llama3(Llama3Scaling {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context_length: 8192,
    });
    let expected = ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: 128_256,
        hidden_size: 2048,
        num_layers: 16,
        intermediate_size: 8192,
        context_length: 131_072,
        rms_norm_epsilon: 1e-5,
        norm_offset: 0.0,
        embedding_scale: 1.0,
        attention: AttentionGeometry {
            num_heads: 32,
            num_kv_heads: 8,
            head_dim: 64,
            scale: 0.125,
            window: None,
            soft_cap: None,
        },
        rope: RopeConfig { theta: 500_000.0, rotary_dim: 64, style: RopeStyle::HalfSplit, scaling },
        sliding: None,
        projections: Projections::Separate,
        experts: None,
        qkv_bias: QkvBias::Absent,
        qk_norm: QkNorm::Absent,
        norm_placement: NormPlacement::Before,
        activation: Activation::Silu,
        logit_soft_cap: None,
        output_head: OutputHead::Tied,
        pooling: None,
    };
    assert_eq!(config, expected);
}

#[test]
fn both_spellings_of_rope_parameters_mean_the_same() {
    let old = llama3();
    let mut parameters = old["rope_scaling"].clone();
    parameters["rope_theta"] = json!(500_000.0);
    let new = without(old.clone(), &["rope_scaling", "rope_theta"]);
    let new = with(new, &json!({ "rope_parameters": parameters }));
    assert_eq!(read(&new).unwrap(), read(&old).unwrap());

    let old = with(gemma3(), &json!({"rope_scaling": {"type": "linear", "factor": 8.0}}));
    let new = without(old.clone(), &["rope_scaling", "rope_theta", "rope_local_base_freq"]);
    let kinds = json!({ "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    } });
    let read_new = read(&with(new, &kinds)).unwrap();
    assert_eq!(read_new, read(&old).unwrap());
    assert_eq!(read_new.rope.scaling, RopeScaling::Linear(8.0));
    assert_eq!(read_new.sliding_of(0).unwrap().rope.scaling, RopeScaling::None);
}

#[test]
fn absent_keys_take_the_values_of_the_class() {
    let absent = ["head_dim", "num_key_value_heads", "rope_theta", "rope_scaling", "hidden_act"];
    let config = without(llama3(), &absent);
    let config = read(&without(config, &["tie_word_embeddings", "rms_norm_eps"])).unwrap();
    assert_eq!((config.attention.head_dim, config.attention.num_kv_heads), (64, 32));
    assert_eq!((config.rope.theta, config.rms_norm_epsilon), (10_000.0, 1e-6));
    assert_eq!(config.output_head, OutputHead::Untied);
}

#[test]
fn qwen2_has_biases_and_windows_only_where_they_are_used() {
    let config = read(&qwen2()).unwrap();
    assert_eq!((config.qkv_bias, config.sliding), (QkvBias::Present, None));
    let used = with(qwen2(), &json!({"use_sliding_window": true}));
    let error = read(&used).unwrap_err().to_string();
    assert!(error.starts_with("layer_types `layers 0, 1, 2"), "{error}");
    let all = read(&with(used, &json!({"max_window_layers": 0}))).unwrap();
    let windows = (0..24).map(|layer| all.sliding_of(layer).map(|sliding| sliding.window));
    assert!(windows.eq(vec![Some(32_768); 24]));
}

#[test]
fn the_window_of_mistral_is_on_all_layers_or_absent() {
    let config = read(&mistral()).unwrap();
    assert!((0..32).all(|layer| config.sliding_of(layer).is_some()));
    assert_eq!(config.sliding_of(31).unwrap().rope, config.rope);
    let later = read(&with(mistral(), &json!({"sliding_window": null}))).unwrap();
    assert_eq!(later.sliding, None);
}

#[test]
fn gemma3_says_what_gguf_leaves_out() {
    let config = read(&gemma3()).unwrap();
    let full: Vec<_> = (0..26).filter(|layer| config.sliding_of(*layer).is_none()).collect();
    assert_eq!(full, [5, 11, 17, 23]);
    assert_eq!((config.norm_offset, config.attention.scale), (1.0, 0.0625));
    assert_eq!(config.output_head, OutputHead::Tied);
    let mut types = vec!["sliding_attention"; 26];
    for i in (1..26).step_by(2) {
        types[i] = "full_attention";
    }
    let listed = read(&with(gemma3(), &json!({ "layer_types": types }))).unwrap();
    assert_eq!(listed.sliding.unwrap().full_every, 2);
}

#[test]
fn the_text_part_of_gemma3_with_images_is_read() {
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255_999,
        "eoi_token_index": 256_000, "eos_token_id": [1, 106], "image_token_index": 262_144,
        "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10_240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024
        },
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}
    });
    let read_config = read(&config).unwrap();
    assert_eq!((read_config.vocab_size, read_config.context_length), (262_208, 131_072));
    let attention = read_config.attention;
    assert_eq!((attention.num_heads, attention.num_kv_heads, attention.head_dim), (8, 4, 256));
    let mut changed = config;
    changed["text_config"]["final_logit_softcapping"] = json!(30.0);
    let error = read(&changed).unwrap_err().to_string();
    assert!(error.starts_with("text_config.final_logit_softcapping `30.0`"), "{error}");
}

#[test]
fn what_is_not_supported_is_refused_with_what_is() {
    let check = |config: Value, changes: Value, expected: &str| {
        let error = read(&with(config, &changes)).expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    };
    check(llama3(), json!({"model_type": "mamba"}), "model_type `mamba` is not supported");
    check(llama3(), json!({"model_type": "mamba"}), "supported: llama, mistral, qwen2");
    check(llama3(), json!({"hidden_act": "relu2"}), "hidden_act `relu2`");
    check(llama3(), json!({"attention_bias": true}), "attention_bias `true`");
    check(llama3(), json!({"mlp_bias": true}), "mlp_bias `true`");
    let scaling = json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}});
    check(llama3(), scaling, "rope_type `dynamic` is not supported; supported: default, linear");
    let classes = json!({"architectures": ["LlamaForSequenceClassification"]});
    check(llama3(), classes, "model class `LlamaForSequenceClassification`");
    let quantized = json!({"quantization_config": {"quant_method": "hqq", "bits": 4}});
    check(llama3(), quantized, "quantization_config `hqq`");
    let with_key = |method: &str, key: &str, value: Value| {
        let mut keys = json!({"quant_method": method, "bits": 4, "group_size": 128});
        keys[key] = value;
        json!({ "quantization_config": keys })
    };
    check(llama3(), with_key("gptq", "bits", json!(8)), "quantization_config.bits `8`");
    check(llama3(), with_key("gptq", "group_size", json!(0)), "quantization_config.group_size");
    check(llama3(), with_key("gptq", "checkpoint_format", json!("marlin")), "`marlin`");
    check(llama3(), with_key("gptq", "dynamic", json!({"+:x": {"bits": 8}})), ".dynamic");
    check(llama3(), with_key("awq", "version", json!("gemv")), "version `gemv`");
    check(llama3(), with_key("awq", "rotation", json!("hadamard")), "rotation");
    check(gemma3(), json!({"use_bidirectional_attention": true}), "use_bidirectional_attention");
    check(gemma3(), json!({"layer_types": vec!["chunked_attention"; 26]}), "chunked_attention");
    check(gemma3(), json!({"layer_types": ["full_attention"]}), "one for each of the 26 layers");
}

#[test]
fn unknown_keys_are_refused_unless_they_say_that_nothing_is_used() {
    for value in [json!(null), json!(false), json!([]), json!({})] {
        assert!(read(&with(llama3(), &json!({ "novel_attention": value }))).is_ok(), "{value}");
    }
    for value in [json!(true), json!(0), json!("yes"), json!([1]), json!({"a": 1})] {
        let error = read(&with(llama3(), &json!({ "novel_attention": value }))).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("the key novel_attention `"), "{error}");
        assert!(error.contains("if a key changes no number, remove it"), "{error}");
    }
    let nested = with(llama3()["rope_scaling"].clone(), &json!({"beta_fast": 32}));
    let error = read(&with(llama3(), &json!({ "rope_scaling": nested }))).unwrap_err().to_string();
    assert!(error.starts_with("the key rope_scaling.beta_fast"), "{error}");
    let notes = json!({"_name_or_path": "x", "unsloth_version": "2025.1", "temperature": 0.7});
    assert!(read(&with(llama3(), &notes)).is_ok());
}

#[test]
fn values_that_make_no_model_are_refused_by_key() {
    let check = |key: &str, value: Value| {
        let error = read(&with(llama3(), &json!({ key: value }))).expect_err(key).to_string();
        assert!(error.contains(key), "`{error}` does not name {key}");
    };
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"] {
        for value in [json!(null), json!(0), json!(-1), json!(1.5), json!(1_u64 << 60), json!("8")]
        {
            check(key, value);
        }
    }
    check("num_key_value_heads", json!(3));
    check("head_dim", json!(63));
    check("head_dim", json!(1 << 24));
    for value in [json!(0), json!(-1.0), json!("x"), json!(1e300)] {
        check("rope_theta", value.clone());
        check("rms_norm_eps", value);
    }
    check("tie_word_embeddings", json!("yes"));
    check("rope_scaling", json!([1]));
    let without_factor = json!({"rope_scaling": {"rope_type": "linear"}});
    let error = read(&with(llama3(), &without_factor)).unwrap_err().to_string();
    assert_eq!(error, "metadata key `rope_scaling.factor` is missing");
}

#[test]
fn bytes_that_are_no_configuration_are_refused() {
    let text = llama3().to_string();
    for cut in 0..text.len() {
        assert!(ModelConfig::from_json(&text.as_bytes()[..cut]).is_err(), "cut at {cut}");
    }
    let twice = text.replacen('{', "{\"hidden_size\": 2048,", 1);
    let error = ModelConfig::from_json(twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("the name `hidden_size` appears twice"), "{error}");
    let deep = "[".repeat(1 << 20);
    let error = ModelConfig::from_json(format!("{{\"a\":{deep}").as_bytes()).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(4 << 20));
    let error = ModelConfig::from_json(large.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("bytes of configuration"), "{error}");
}

fn phi3() -> Value {
    json!({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "auto_map": {"AutoModel": "x"},
        "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
        "interpolate_factor": 1, "intermediate_size": 8192, "lm_head_bias": false,
        "max_position_embeddings": 131_072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "long_factor": vec![2.0; 48], "short_factor": vec![1.0; 48], "type": "longrope"
        },
        "rope_theta": 10_000.0, "sliding_window": 262_144, "tie_word_embeddings": true,
        "vocab_size": 200_064
    })
}

#[test]
fn phi3_has_fused_projections_and_the_scaling_that_its_sizes_imply() {
    let config = read(&phi3()).unwrap();
    assert_eq!((config.projections, config.rope.rotary_dim), (Projections::Fused, 96));
    assert_eq!(config.sliding_of(31).unwrap().window, 262_144);
    let scaling = config.rope.scaling.long_rope().unwrap();
    assert_eq!(scaling.original_context_length, 4096);
    let expected = (1.0 + 32.0_f32.ln() / 4096.0_f32.ln()).sqrt();
    assert!((scaling.attention_factor - expected).abs() < 1e-6);
    let error = read(&with(phi3(), &json!({"full_attn_mod": 2}))).unwrap_err().to_string();
    assert!(error.starts_with("full_attn_mod `2`"), "{error}");
    let error = read(&with(phi3(), &json!({"partial_rotary_factor": 0.01}))).unwrap_err();
    assert!(error.to_string().contains("partial_rotary_factor"), "{error}");
}

#[test]
fn yarn_is_read_with_all_that_changes_its_numbers() {
    let yarn = json!({"rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768
    }});
    let config = read(&with(qwen2(), &yarn)).unwrap();
    assert_eq!(config.context_length, 131_072);
    let RopeScaling::Yarn(scaling) = config.rope.scaling else { panic!("not YaRN") };
    assert_eq!((scaling.beta_fast, scaling.beta_slow), (32.0, 1.0));
    let changed = |changes: &Value| {
        let scaling = with(yarn["rope_scaling"].clone(), changes);
        read(&with(qwen2(), &json!({ "rope_scaling": scaling }))).unwrap().rope.scaling
    };
    for changes in [
        json!({"beta_fast": 16}),
        json!({"beta_slow": 2}),
        json!({"truncate": false}),
        json!({"attention_factor": 1.5}),
        json!({"mscale": 1.0, "mscale_all_dim": 0.5}),
        json!({"original_max_position_embeddings": 16_384}),
    ] {
        assert_ne!(changed(&changes), RopeScaling::Yarn(scaling), "{changes}");
    }
}

#[test]
fn experts_and_soft_caps_are_read_and_what_they_cannot_be_is_refused() {
    let moe = with(
        without(qwen2(), &["architectures", "max_window_layers", "use_mrope"]),
        &json!({
            "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [],
            "moe_intermediate_size": 768, "norm_topk_prob": true, "num_experts": 128,
            "num_experts_per_tok": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001
        }),
    );
    let config = read(&moe).unwrap();
    let experts = Experts { count: 128, used: 8, weighting: ExpertWeighting::OfUsed };
    assert_eq!((config.experts, config.intermediate_size), (Some(experts), 768));
    for (changes, expected) in [
        (json!({"decoder_sparse_step": 2}), "decoder_sparse_step `2`"),
        (json!({"mlp_only_layers": [0]}), "mlp_only_layers"),
        (json!({"num_experts_per_tok": 129}), "num_experts_per_tok"),
    ] {
        let error = read(&with(moe.clone(), &changes)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let gemma2 = with(
        without(gemma3(), &["architectures", "rope_local_base_freq", "sliding_window_pattern"]),
        &json!({"model_type": "gemma2", "final_logit_softcapping": 25.0}),
    );
    let config = read(&gemma2).unwrap();
    assert_eq!((config.attention.soft_cap, config.logit_soft_cap), (None, Some(25.0)));
    let absent = read(&without(gemma2, &["attn_logit_softcapping"])).unwrap();
    assert_eq!(absent.attention.soft_cap, Some(50.0));
    assert_eq!(absent.sliding.unwrap().full_every, 2);
}

#[test]
fn no_changed_byte_makes_the_reader_panic() {
    for config in [llama3(), qwen2(), mistral(), gemma3()] {
        let text = config.to_string();
        for i in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone().into_bytes();
                changed[i] ^= 1 << bit;
                let _any_result = ModelConfig::from_json(&changed);
            }
        }
    }
}
