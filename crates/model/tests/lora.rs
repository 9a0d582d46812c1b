//! Adapters on tiny models against PEFT (testdata/make_tiny_lora.py): numbers, that sequences of
//! one batch keep to their own adapter bit for bit, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod goldens;

use goldens::{Golden, argmax, testdata};
use mini_infer_core::{Adapter, Batch, BlockId, BlockSize, Executor, TokenId};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::Ops;
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::{Checkpoint, LoraFolder, ModelExecutor, Transformer};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

const NUM_BLOCKS: u32 = 64;

/// A model, and two adapters for it.
#[derive(Clone, Copy)]
struct Adapted {
    model: &'static str,
    adapters: [&'static str; 2],
}

/// Its queries and keys are stored in another order than adapters have.
const LLAMA: Adapted = Adapted { model: "tiny-llama/f32.gguf", adapters: ["attention", "all"] };
/// Its projections are fused, in its checkpoints and in adapters.
const PHI3: Adapted = Adapted { model: "tiny-phi3", adapters: ["phi3-qkv", "phi3-all"] };
const PHI3_GGUF: Adapted = Adapted { model: "tiny-phi3/f16.gguf", ..PHI3 };

impl Adapted {
    fn checkpoint(self) -> Checkpoint {
        Checkpoint::open(&testdata(self.model)).unwrap()
    }

    fn reference(self) -> ModelExecutor<ReferenceOps> {
        let model = Transformer::load(&self.checkpoint(), ReferenceOps::new(1), 256).unwrap();
        let kv = ReferenceKv::new(model.config(), NUM_BLOCKS as usize, BlockSize::DEFAULT);
        ModelExecutor::new(model, kv)
    }

    fn fast(self, isa: Isa) -> ModelExecutor<CpuOps> {
        let model = Transformer::load(&self.checkpoint(), cpu_ops(isa), 256).unwrap();
        let layout = KvLayout {
            num_layers: model.config().num_layers,
            num_kv_heads: model.config().attention.num_kv_heads,
            head_dim: model.config().attention.head_dim,
            block_size: BlockSize::DEFAULT,
            dtype: KvDtype::F32,
            sliding: SlidingPattern::None,
        };
        ModelExecutor::new(model, KvStorage::reserve(layout, NUM_BLOCKS).unwrap())
    }

    fn load<O: Ops>(self, name: &str, ops: &O) -> Adapter
    where
        O::Matrix: Send + Sync,
    {
        let folder = testdata(&format!("tiny-lora/{name}"));
        let folder = LoraFolder::open(&folder, self.checkpoint().config()).unwrap();
        Transformer::adapter(&folder, ops).unwrap()
    }
}

fn cpu_ops(isa: Isa) -> CpuOps {
    CpuOps::new(isa, NonZeroUsize::new(2).unwrap())
}

fn goldens(adapter: &str, vocab_size: usize) -> Vec<Golden> {
    Golden::load(&testdata(&format!("tiny-lora/{adapter}.golden")), vocab_size)
}

/// The blocks of sequence `i`.
fn table(i: u32) -> Vec<BlockId> {
    (i * 8..i * 8 + 8).map(BlockId).collect()
}

/// Computes `tokens` and returns the logits of all of them.
fn logits(executor: &mut impl Executor, tokens: &[TokenId], adapter: Option<&Adapter>) -> Vec<f32> {
    let mut batch = Batch::default();
    batch.push_sequence(tokens, 0, &table(7), BlockSize::DEFAULT, false);
    batch.adapt_last(adapter);
    batch.logits_rows = (0..).take(tokens.len()).collect();
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).unwrap();
    logits
}

fn check_logits(executor: &mut impl Executor, name: &str, adapter: &Adapter, context: &str) {
    for golden in goldens(name, executor.vocab_size()) {
        let got = logits(executor, &golden.prompt, Some(adapter));
        golden.check(&got, &format!("{name} on {context}"));
    }
}

#[test]
fn logits_equal_peft_on_every_instruction_set() {
    for adapted in [LLAMA, PHI3, PHI3_GGUF] {
        for name in adapted.adapters {
            let adapter = adapted.load(name, &ReferenceOps::new(1));
            check_logits(&mut adapted.reference(), name, &adapter, "reference");
            for isa in Isa::all_present() {
                let adapter = adapted.load(name, &cpu_ops(isa));
                check_logits(&mut adapted.fast(isa), name, &adapter, isa.name());
            }
        }
    }
}

/// Sequences of two adapters and of none, some of them with the logits of their last token only, in
/// prefill and in decode.
#[test]
fn sequences_of_one_batch_keep_to_their_own_adapter() {
    for adapted in [LLAMA, PHI3] {
        let isa = Isa::all_present()[0];
        let mut executor = adapted.fast(isa);
        let vocab_size = executor.vocab_size();
        let adapters = adapted.adapters.map(|name| adapted.load(name, &cpu_ops(isa)));
        let chosen = [None, Some(&adapters[0]), Some(&adapters[1]), Some(&adapters[0]), None];
        let num_tokens = TokenId::try_from(vocab_size).unwrap();
        let prompt: Vec<TokenId> = (0..40).map(|i| i * 7 % num_tokens).collect();
        let next = 5;
        let mut together = [Vec::new(), Vec::new()];
        for (tokens, logits) in [&prompt[..], &[next]].into_iter().zip(&mut together) {
            let start = if tokens.len() > 1 { 0 } else { 40 };
            let mut batch = Batch::default();
            for (i, adapter) in (0..).zip(chosen) {
                batch.push_sequence(tokens, start, &table(i), BlockSize::DEFAULT, true);
                batch.adapt_last(adapter);
            }
            batch.check_invariants(BlockSize::DEFAULT);
            executor.forward(&batch, logits).unwrap();
        }
        let all = [&prompt[..], &[next]].concat();
        for (i, adapter) in chosen.into_iter().enumerate() {
            let alone = logits(&mut executor, &all, adapter);
            for (step, row) in [(0, 39), (1, 40)] {
                let alone = &alone[row * vocab_size..][..vocab_size];
                let together = &together[step][i * vocab_size..][..vocab_size];
                assert!(alone == together, "{}, sequence {i}, step {step}", adapted.model);
            }
        }
        let row = |i: usize| &together[0][i * vocab_size..][..vocab_size];
        assert!(row(0) == row(4) && row(1) == row(3) && row(0) != row(1) && row(1) != row(2));
    }
}

#[test]
fn greedy_tokens_equal_peft() {
    for adapted in [LLAMA, PHI3] {
        let mut executor = adapted.reference();
        let vocab_size = executor.vocab_size();
        for name in adapted.adapters {
            let adapter = adapted.load(name, &ReferenceOps::new(1));
            for golden in goldens(name, vocab_size) {
                let mut tokens = golden.prompt;
                for expected in golden.output {
                    let all = logits(&mut executor, &tokens, Some(&adapter));
                    let best = argmax(&all[all.len() - vocab_size..]);
                    assert_eq!(best, expected, "{name} after {} tokens", tokens.len());
                    tokens.push(expected);
                }
            }
        }
    }
}

/// Opens a copy of an adapter whose files were changed, and returns what is wrong with it.
fn refusal(test: &str, change: impl Fn(&Path)) -> String {
    let folder = std::env::temp_dir().join(format!("lora-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(testdata("tiny-lora/attention").join(file), folder.join(file)).unwrap();
    }
    change(&folder);
    let result = LoraFolder::open(&folder, LLAMA.checkpoint().config());
    fs::remove_dir_all(&folder).unwrap();
    result.expect_err(test).to_string()
}

/// Replaces a text in the header of the tensors by one of the same length.
fn rename(folder: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = folder.join("adapter_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let found: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|&i| bytes[i..].starts_with(from.as_bytes()))
        .collect();
    assert!(!found.is_empty(), "{from} is not in the file");
    for i in found {
        bytes[i..i + to.len()].copy_from_slice(to.as_bytes());
    }
    fs::write(&path, bytes).unwrap();
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let error = refusal("missing-file", |folder| {
        fs::remove_file(folder.join("adapter_model.safetensors")).unwrap();
    });
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    let error = refusal("foreign-layer", |folder| rename(folder, "layers.1.", "layers.9."));
    assert!(error.contains("layers.9.self_attn.q_proj.lora_A"), "{error}");
    let error = refusal("foreign-module", |folder| {
        rename(folder, "1.self_attn.q_proj", "1.self_attn.q_perm")
    });
    assert!(error.contains("q_perm"), "{error}");
    let error = refusal("shape", |folder| rename(folder, "[4,64]", "[8,32]"));
    assert!(error.contains("lora_A") && error.contains("[8, 32]"), "{error}");
    let error = refusal("config", |folder| {
        let config = r#"{"peft_type": "LORA", "lora_alpha": 8, "use_dora": true}"#;
        fs::write(folder.join("adapter_config.json"), config).unwrap();
    });
    assert!(error.contains("use_dora") && error.contains("adapter_config.json"), "{error}");
}

/// What changes a module that the model's layers do not have would change nothing.
#[test]
fn adapters_of_fused_projections_fit_no_other_models() {
    for (adapted, name, module) in [
        (LLAMA, "phi3-qkv", "layers.0.self_attn.qkv_proj"),
        (PHI3, "all", "layers.0.mlp.gate_proj"),
    ] {
        let folder = testdata(&format!("tiny-lora/{name}"));
        let error = LoraFolder::open(&folder, adapted.checkpoint().config()).unwrap_err();
        assert!(error.to_string().contains(module), "{error}");
    }
}
