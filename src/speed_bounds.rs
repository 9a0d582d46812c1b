//! What this machine can do at most, as text, and what a model can therefore reach on it.
//!
//! Decoding reads every weight once for each step, prefill multiplies with every weight once for
//! each token. Reading KV and everything else comes on top, and a large cache may keep some of the
//! weights, so these are bounds of memory and arithmetic and no forecasts.

use mini_infer_kernels::{ArithmeticLimits, Limit, MachineLimits, QuantizedType};
use mini_infer_model::Checkpoint;

/// The embedding table: read row by row, unless it is the output head too.
const EMBEDDING: &str = "token_embd.weight";
/// The output head, for models that have their own.
const OUTPUT_HEAD: &str = "output.weight";

/// What a model asks of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ModelWork {
    /// Bytes that a step of one sequence reads.
    step_bytes: f64,
    /// Multiplications and additions with integer weights for one token of a prompt.
    int8_ops: f64,
    /// The same with float weights, which are multiplied as f32 whatever their stored form.
    f32_ops: f64,
}

impl ModelWork {
    /// Adds up the matrices of a checkpoint. The output head counts for decoding alone: a prompt
    /// needs it once.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let mut work = Self::default();
        let has_head = checkpoint.tensor(OUTPUT_HEAD).is_some();
        let tensors = checkpoint.tensor_names().filter_map(|name| checkpoint.tensor(name));
        for tensor in tensors.filter(|tensor| tensor.shape.len() == 2) {
            let is_table = tensor.name == EMBEDDING;
            let quantized = checkpoint.quantization_of(&tensor).map(QuantizedType::weight_type);
            let weight_type = quantized.unwrap_or(tensor.weight_type);
            if !(is_table && has_head) {
                let num_groups = tensor.num_weights() / weight_type.group_size();
                work.step_bytes += (num_groups * weight_type.group_bytes()) as f64;
            }
            if !is_table && tensor.name != OUTPUT_HEAD {
                let is_float = weight_type.is_float();
                let ops = if is_float { &mut work.f32_ops } else { &mut work.int8_ops };
                *ops += 2.0 * tensor.num_weights() as f64;
            }
        }
        work
    }

    /// Returns the bounds as lines of text, for the widest instruction set.
    pub(crate) fn describe(&self, limits: &MachineLimits) -> Vec<String> {
        let decode = limits.read_bytes_per_s.all_threads / self.step_bytes;
        let widest = &limits.arithmetic[0];
        let f32_per_s = widest.f32_per_s.all_threads;
        let int8_per_s = widest.int8_per_s.map_or(f32_per_s, |limit| limit.all_threads);
        let prefill_s = self.int8_ops / int8_per_s + self.f32_ops / f32_per_s;
        vec![
            format!(
                "decode bound     {decode:.0} steps/s with {:.1} MB of weights from memory (more where a \
                 cache keeps them)",
                self.step_bytes / 1e6
            ),
            format!(
                "prefill bound    {:.0} tokens/s ({:.0} million operations for each)",
                1.0 / prefill_s,
                (self.int8_ops + self.f32_ops) / 1e6
            ),
        ]
    }
}

/// Returns the limits of a machine as lines of text.
pub(crate) fn describe(limits: &MachineLimits) -> Vec<String> {
    let rate = |limit: Limit, unit: &str| {
        let [one, all] = [limit.one_thread, limit.all_threads].map(|rate| rate / 1e9);
        format!("{all:.1} {unit} on {} threads, {one:.1} on one", limits.num_threads)
    };
    let mut lines = vec![format!("memory reads     {}", rate(limits.read_bytes_per_s, "GB/s"))];
    for ArithmeticLimits { isa, f32_per_s, bf16_per_s, int8_per_s } in &limits.arithmetic {
        let kinds = [("f32", Some(*f32_per_s)), ("bf16", *bf16_per_s), ("int8", *int8_per_s)];
        for (kind, limit) in kinds {
            if let Some(limit) = limit {
                let name = format!("{} {kind}", isa.name());
                lines.push(format!("{name:16} {}", rate(limit, "Gop/s")));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_kernels::Isa;

    fn limit(all_threads: f64) -> Limit {
        Limit { one_thread: all_threads / 2.0, all_threads }
    }

    fn limits() -> MachineLimits {
        MachineLimits {
            num_threads: 2,
            read_bytes_per_s: limit(20e9),
            arithmetic: vec![ArithmeticLimits {
                isa: Isa::Scalar,
                f32_per_s: limit(300e9),
                bf16_per_s: Some(limit(150e9)),
                int8_per_s: Some(limit(1200e9)),
            }],
        }
    }

    #[test]
    fn a_step_reads_each_weight_and_a_prompt_multiplies_with_it() {
        let work = ModelWork { step_bytes: 100e6, int8_ops: 240e6, f32_ops: 0.0 };
        let expected = [
            "decode bound     200 steps/s with 100.0 MB of weights from memory (more where a cache keeps \
             them)",
            "prefill bound    5000 tokens/s (240 million operations for each)",
        ];
        assert_eq!(work.describe(&limits()), expected);
    }

    #[test]
    fn integer_and_float_weights_take_their_own_rates() {
        let work = ModelWork { step_bytes: 1.0, int8_ops: 1200e6, f32_ops: 300e6 };
        assert!(work.describe(&limits())[1].contains("500 tokens/s (1500 million"));
    }

    #[test]
    fn limits_are_printed_for_all_threads_and_one() {
        let lines = describe(&limits());
        assert_eq!(lines[0], "memory reads     20.0 GB/s on 2 threads, 10.0 on one");
        assert_eq!(lines[3], "scalar int8      1200.0 Gop/s on 2 threads, 600.0 on one");
    }

    #[test]
    fn a_tied_table_is_read_in_each_step_and_multiplied_only_once_in_a_prompt() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tiny-qwen2/f32.gguf");
        let checkpoint = Checkpoint::open(path.as_ref()).unwrap();
        let work = ModelWork::of(&checkpoint);
        let layer_weights = 2.0 * (2.0 * 64.0 * 64.0 + 2.0 * 32.0 * 64.0 + 3.0 * 64.0 * 64.0);
        let expected = ModelWork {
            step_bytes: 4.0 * (layer_weights + 96.0 * 64.0),
            f32_ops: 2.0 * layer_weights,
            ..ModelWork::default()
        };
        assert_eq!(work, expected);
        let quantized = checkpoint.quantized_to(QuantizedType::Q8_0).unwrap();
        let expected = ModelWork {
            step_bytes: 34.0 / 32.0 * (layer_weights + 96.0 * 64.0),
            int8_ops: 2.0 * layer_weights,
            ..ModelWork::default()
        };
        assert_eq!(ModelWork::of(&quantized), expected);
    }
}
