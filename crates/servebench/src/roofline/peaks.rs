//! What the machine that serves can do at most, and how that is known.
//!
//! In this order: what the user gives; the data sheet of a GPU; what this machine's processor was
//! just measured to do. A GPU without a data sheet here, and a server elsewhere, have no peaks
//! unless the user gives them.

use super::gpu_specs;
use super::model_size::ModelSize;
use crate::machine::Machine;
use crate::results::RunResult;
use mini_infer_kernels::{ArithmeticLimits, Limit, MachineLimits};
use std::num::NonZeroUsize;

/// What `--gpu` says for a server that runs on the processor.
const NO_GPU: &str = "none";
/// Up to this many bits a weight, dot products are those of bytes.
const MOST_INT8_BITS: f64 = 9.0;

/// What a machine can do at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Which machine.
    pub device: String,
    /// Memory bandwidth, in bytes per second.
    pub bandwidth: f64,
    /// Arithmetic, in operations per second.
    pub ops_per_s: f64,
    /// What kind of arithmetic, and where both figures come from.
    pub source: String,
    /// More that a reader should know, in sentences.
    pub notes: Vec<String>,
    /// Everything that was measured, where this machine was.
    pub measured: Option<MachineLimits>,
}

/// What the user gives.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakFlags<'a> {
    /// Name of a GPU, or `none`.
    pub gpu: Option<&'a str>,
    /// Memory bandwidth, in GB/s.
    pub bandwidth_gb_s: Option<f64>,
    /// Arithmetic, in TFLOP/s.
    pub peak_tflops: Option<f64>,
}

impl Peaks {
    /// Returns operations per byte where both roofs meet.
    #[must_use]
    pub fn ridge(&self) -> f64 {
        self.ops_per_s / self.bandwidth
    }

    /// Finds the peaks of the machine that served `run`, or of this one.
    ///
    /// # Errors
    /// When they are not known: why, and which flags give them.
    pub fn find(
        flags: PeakFlags<'_>,
        run: Option<&RunResult>,
        model: Option<&ModelSize>,
    ) -> Result<Self, String> {
        let gpu = match flags.gpu {
            Some(NO_GPU) => None,
            Some(name) => Some(name.to_owned()),
            None => gpu_of(run),
        };
        if let (Some(bandwidth), Some(tflops)) = (flags.bandwidth_gb_s, flags.peak_tflops) {
            return Ok(Self {
                device: gpu.unwrap_or_else(|| "the given machine".to_owned()),
                bandwidth: bandwidth * 1e9,
                ops_per_s: tflops * 1e12,
                source: "both given".to_owned(),
                notes: Vec::new(),
                measured: None,
            });
        }
        let peaks = match gpu {
            Some(gpu) => Self::of_gpu(&gpu, run)?,
            None => Self::of_processor(run, model)?,
        };
        Ok(peaks.with(flags))
    }

    fn of_gpu(name: &str, run: Option<&RunResult>) -> Result<Self, String> {
        let Some(spec) = gpu_specs::find(name) else {
            return Err(format!(
                "the peaks of {name:?} are not known; pass --bandwidth and --peak-tflops from its \
                 data sheet, --gpu none when the server runs on the processor, or one of: {}",
                gpu_specs::names().join(", ")
            ));
        };
        let num_gpus = run.and_then(|run| run.environment.gpus.as_ref()).map_or(1, Vec::len);
        let several = (num_gpus > 1).then(|| {
            format!(
                "the machine has {num_gpus} GPUs and the peaks are those of one; for a server on \
                 several, pass --bandwidth and --peak-tflops for all of them"
            )
        });
        Ok(Self {
            device: spec.name.to_owned(),
            bandwidth: spec.bandwidth_gb_s * 1e9,
            ops_per_s: spec.peak_tflops * 1e12,
            source: "dense 16-bit floats, from the data sheet".to_owned(),
            notes: several.into_iter().collect(),
            measured: None,
        })
    }

    fn of_processor(run: Option<&RunResult>, model: Option<&ModelSize>) -> Result<Self, String> {
        let machine = Machine::detect();
        if let Some(run) = run {
            refuse_other_machine(run, &machine)?;
        }
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let limits = MachineLimits::measure(threads)
            .map_err(|error| format!("cannot measure this machine: {error}"))?;
        Ok(Self::of_limits(machine.cpu.as_deref(), limits, model))
    }

    fn of_limits(cpu: Option<&str>, limits: MachineLimits, model: Option<&ModelSize>) -> Self {
        let bits = model.map(ModelSize::bits_per_weight);
        let (kind, ops) = arithmetic_peak(&limits.arithmetic, bits);
        let threads = match limits.num_threads {
            1 => "1 thread".to_owned(),
            number => format!("{number} threads"),
        };
        let mut notes = Vec::new();
        if cfg!(debug_assertions) {
            notes.push("this is a debug build, which measures itself and not the machine".into());
        }
        Self {
            device: cpu.unwrap_or("this machine's processor").to_owned(),
            bandwidth: limits.read_bytes_per_s.all_threads,
            ops_per_s: ops.all_threads,
            source: format!("{kind}, measured here and now on {threads}"),
            notes,
            measured: Some(limits),
        }
    }

    /// Puts what the user gives in place of what was found.
    fn with(mut self, flags: PeakFlags<'_>) -> Self {
        if let Some(bandwidth) = flags.bandwidth_gb_s {
            self.bandwidth = bandwidth * 1e9;
            self.source.push_str(", bandwidth given");
        }
        if let Some(tflops) = flags.peak_tflops {
            self.ops_per_s = tflops * 1e12;
            self.source.push_str(", arithmetic given");
        }
        self
    }
}

/// Returns the GPU that a run names.
fn gpu_of(run: Option<&RunResult>) -> Option<String> {
    let run = run?;
    let sampled = run.gpu_telemetry.as_ref().filter(|gpu| gpu.avg_gpu_util.is_some());
    let sampled = sampled.and_then(|gpu| gpu.device_name.clone());
    let listed = || {
        let gpus =
            run.environment.gpus.as_ref().filter(|_| run.environment.local_server == Some(true));
        // Memory and driver follow the name.
        Some(gpus?.first()?.split(',').next()?.to_owned())
    };
    sampled.or_else(listed)
}

/// Fails when the server of a run was not on this machine.
fn refuse_other_machine(run: &RunResult, machine: &Machine) -> Result<(), String> {
    let flags = "pass --bandwidth and --peak-tflops, or --gpu";
    if run.environment.local_server == Some(false) {
        return Err(format!("the server of this run was on another machine; {flags}"));
    }
    if let (Some(then), Some(now)) = (&run.environment.cpu, &machine.cpu)
        && then != now
    {
        return Err(format!("this run was made on another machine ({then}, not {now}); {flags}"));
    }
    Ok(())
}

/// Returns the fastest arithmetic for weights of so many bits, and what it is called. Weights up
/// to a byte are multiplied as bytes, as CPU engines do.
fn arithmetic_peak(sets: &[ArithmeticLimits], bits: Option<f64>) -> (String, Limit) {
    let as_bytes = bits.is_none_or(|bits| bits <= MOST_INT8_BITS);
    let kinds = sets.iter().flat_map(|set| {
        let name = set.isa.name();
        let int8 = set.int8_per_s.filter(|_| as_bytes).map(|limit| ("int8", limit));
        let bf16 = set.bf16_per_s.map(|limit| ("bf16", limit));
        let all = [int8, bf16, Some(("f32", set.f32_per_s))];
        all.into_iter().flatten().map(move |(kind, limit)| (format!("{kind} ({name})"), limit))
    });
    let fastest = kinds.max_by(|(_, a), (_, b)| a.all_threads.total_cmp(&b.all_threads));
    fastest.expect("every machine has f32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roofline::tests::{model, run};
    use mini_infer_kernels::Isa;

    fn limits() -> MachineLimits {
        let limit = |all_threads| Limit { one_thread: all_threads / 2.0, all_threads };
        MachineLimits {
            num_threads: 2,
            read_bytes_per_s: limit(36e9),
            arithmetic: vec![ArithmeticLimits {
                isa: Isa::Scalar,
                f32_per_s: limit(234e9),
                bf16_per_s: Some(limit(468e9)),
                int8_per_s: Some(limit(936e9)),
            }],
        }
    }

    fn error(flags: PeakFlags<'_>, run: &RunResult) -> String {
        Peaks::find(flags, Some(run), None).unwrap_err()
    }

    #[test]
    fn both_flags_are_enough_and_each_alone_replaces_one_figure() {
        let flags = PeakFlags {
            gpu: Some("my accelerator"),
            bandwidth_gb_s: Some(100.0),
            peak_tflops: Some(2.0),
        };
        let peaks = Peaks::find(flags, None, None).unwrap();
        assert_eq!((peaks.device.as_str(), peaks.ridge()), ("my accelerator", 20.0));
        let flags =
            PeakFlags { gpu: Some("rtx 4090"), bandwidth_gb_s: Some(900.0), peak_tflops: None };
        let peaks = Peaks::find(flags, None, None).unwrap();
        assert_eq!((peaks.bandwidth, peaks.ops_per_s), (900e9, 165.2e12));
        assert!(peaks.source.ends_with("bandwidth given"), "{}", peaks.source);
    }

    #[test]
    fn an_unknown_gpu_is_an_error_and_not_a_guess() {
        let mut run = run(&[]);
        run.environment.gpus = Some(vec!["NVIDIA GeForce RTX 9999, 96.0 GB, driver 1".into()]);
        run.environment.local_server = Some(true);
        let error = error(PeakFlags::default(), &run);
        assert!(error.contains("NVIDIA GeForce RTX 9999") && error.contains("--bandwidth"));
    }

    #[test]
    fn the_gpu_of_a_run_is_taken_and_several_are_mentioned() {
        let mut run = run(&[]);
        let gpu = "NVIDIA H100 80GB HBM3, 79.6 GB, driver 550";
        run.environment.gpus = Some(vec![gpu.into(), gpu.into()]);
        run.environment.local_server = Some(true);
        let peaks = Peaks::find(PeakFlags::default(), Some(&run), None).unwrap();
        assert_eq!((peaks.device.as_str(), peaks.bandwidth), ("NVIDIA H100 SXM", 3350e9));
        assert!(peaks.notes[0].contains("2 GPUs"), "{:?}", peaks.notes);
    }

    #[test]
    fn a_server_elsewhere_has_no_peaks() {
        let mut run = run(&[]);
        run.environment.gpus = Some(vec!["NVIDIA L4, 22.5 GB, driver 550".into()]);
        run.environment.local_server = Some(false);
        assert!(error(PeakFlags::default(), &run).contains("on another machine"));
        run.environment.local_server = None;
        run.environment.gpus = None;
        run.environment.cpu = Some("Some processor of another machine".into());
        let error = error(PeakFlags { gpu: Some("none"), ..PeakFlags::default() }, &run);
        assert!(Machine::detect().cpu.is_none() || error.contains("made on another machine"));
    }

    #[test]
    fn small_weights_are_multiplied_as_bytes_and_large_ones_as_floats() {
        let peaks = Peaks::of_limits(Some("CPU"), limits(), Some(&model(1e9, 0.6e9)));
        assert_eq!((peaks.ops_per_s, peaks.bandwidth), (936e9, 36e9));
        assert!(peaks.source.starts_with("int8 (scalar), measured"), "{}", peaks.source);
        let peaks = Peaks::of_limits(Some("CPU"), limits(), Some(&model(1e9, 2e9)));
        assert_eq!(peaks.ops_per_s, 468e9);
    }
}
