//! What GPUs can do at most, from their makers' data sheets.
//!
//! Memory bandwidth, and dense FP16 or BF16 matrix arithmetic that sums in FP32: without sparsity,
//! which data sheets often put first and which doubles the figure. A GPU that is not listed has no
//! figures: they are not guessed from its name.

/// A GPU by its data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpec {
    /// Its name.
    pub name: &'static str,
    /// The words of the name that the driver gives it, all of which must be there.
    words: &'static [&'static str],
    /// Memory bandwidth, in GB/s.
    pub bandwidth_gb_s: f64,
    /// Dense matrix arithmetic, in TFLOP/s.
    pub peak_tflops: f64,
}

/// Words that make a name another GPU's.
const VARIANTS: [&str; 7] = ["laptop", "mobile", "super", "ti", "d", "max", "mig"];

const fn spec(
    name: &'static str,
    words: &'static [&'static str],
    [bandwidth_gb_s, peak_tflops]: [f64; 2],
) -> GpuSpec {
    GpuSpec { name, words, bandwidth_gb_s, peak_tflops }
}

/// The GPUs that are known.
static SPECS: [GpuSpec; 22] = [
    spec("NVIDIA B200", &["b200"], [8000.0, 2250.0]),
    spec("NVIDIA H200 SXM", &["h200"], [4800.0, 989.0]),
    spec("NVIDIA H100 SXM", &["h100", "hbm3"], [3350.0, 989.0]),
    spec("NVIDIA H100 SXM", &["h100", "sxm"], [3350.0, 989.0]),
    spec("NVIDIA H100 PCIe", &["h100", "pcie"], [2000.0, 756.0]),
    spec("NVIDIA H100 NVL", &["h100", "nvl"], [3900.0, 835.0]),
    spec("NVIDIA A100 80GB SXM", &["a100", "sxm", "80gb"], [2039.0, 312.0]),
    spec("NVIDIA A100 80GB PCIe", &["a100", "pcie", "80gb"], [1935.0, 312.0]),
    spec("NVIDIA A100 40GB", &["a100", "40gb"], [1555.0, 312.0]),
    spec("NVIDIA L40S", &["l40s"], [864.0, 362.0]),
    spec("NVIDIA L4", &["l4"], [300.0, 121.0]),
    spec("NVIDIA A10", &["a10"], [600.0, 125.0]),
    spec("NVIDIA RTX A6000", &["rtx", "a6000"], [768.0, 154.8]),
    spec("NVIDIA T4", &["t4"], [320.0, 65.0]),
    spec("NVIDIA V100 SXM2", &["v100", "sxm"], [900.0, 125.0]),
    spec("NVIDIA V100 PCIe", &["v100", "pcie"], [900.0, 112.0]),
    spec("NVIDIA GeForce RTX 5090", &["rtx", "5090"], [1792.0, 209.5]),
    spec("NVIDIA GeForce RTX 4090", &["rtx", "4090"], [1008.0, 165.2]),
    spec("NVIDIA GeForce RTX 4080", &["rtx", "4080"], [716.8, 97.5]),
    spec("NVIDIA GeForce RTX 3090", &["rtx", "3090"], [936.0, 71.0]),
    spec("AMD Instinct MI300X", &["mi300x"], [5300.0, 1307.4]),
    spec("AMD Instinct MI250X", &["mi250x"], [3276.8, 383.0]),
];

/// Returns the GPU that a driver or a user calls `name`; `None` when none of the list is meant for
/// certain.
#[must_use]
pub fn find(name: &str) -> Option<GpuSpec> {
    let name = name.to_lowercase();
    let words: Vec<_> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let has = |wanted: &str| {
        // Drivers number the sockets: SXM2, SXM4.
        words.iter().any(|word| *word == wanted || wanted == "sxm" && word.starts_with("sxm"))
    };
    if VARIANTS.iter().any(|variant| has(variant)) {
        return None;
    }
    SPECS.iter().find(|spec| spec.words.iter().all(|word| has(word))).copied()
}

/// Returns the names of the GPUs that are known.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = SPECS.iter().map(|spec| spec.name).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_the_names_that_drivers_give_them() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
            ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
            ("NVIDIA H200", "NVIDIA H200 SXM"),
            ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB SXM"),
            ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
            ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 40GB"),
            ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
            ("rtx 4090", "NVIDIA GeForce RTX 4090"),
            ("Tesla T4", "NVIDIA T4"),
            ("NVIDIA L4", "NVIDIA L4"),
        ] {
            assert_eq!(find(name).map(|spec| spec.name), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_gpu_that_only_looks_like_one_of_the_list_is_unknown() {
        for name in [
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GeForce RTX 4080 SUPER",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA A10G",
            "NVIDIA A100",
            "NVIDIA L40",
            "Apple M3 Max GPU (unified memory)",
            "",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
    }

    #[test]
    fn every_gpu_is_found_by_its_own_name() {
        for name in names() {
            assert_eq!(find(name).map(|spec| spec.name), Some(name));
        }
    }
}
