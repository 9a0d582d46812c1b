//! The machine on which servebench runs.

/// What is known of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Operating system and its version.
    pub platform: String,
    /// Name of the processor.
    pub cpu: Option<String>,
    /// Logical processors.
    pub num_logical_cpus: usize,
    /// Memory, in GiB.
    pub ram_gb: Option<f64>,
    /// Names of the GPUs.
    pub gpus: Option<Vec<String>>,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self::default()
    }
}
